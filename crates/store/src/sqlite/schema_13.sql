-- Threads with a holder, and the thread of each execution (0 if it has none).
ALTER TABLE threads ADD COLUMN holder_run INTEGER;
ALTER TABLE threads ADD COLUMN holder_step INTEGER;
ALTER TABLE threads ADD COLUMN holder_attempt INTEGER;
ALTER TABLE threads ADD COLUMN holder_fence INTEGER;
ALTER TABLE executions ADD COLUMN thread INTEGER NOT NULL DEFAULT 0;
