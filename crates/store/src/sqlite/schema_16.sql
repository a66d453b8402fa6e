-- The rounds of a step that runs again after a success, and the attempt or the child run of the last one.
ALTER TABLE steps ADD COLUMN repeats INTEGER NOT NULL DEFAULT 0;
ALTER TABLE steps ADD COLUMN last_round INTEGER;
