-- The source of each rule's events, and the state that a rule saw last of what it watches (JSON). Every rule of an older
-- version has a schedule.
ALTER TABLE rules ADD COLUMN source TEXT NOT NULL DEFAULT 'schedule';
ALTER TABLE rules ADD COLUMN watched TEXT;
CREATE INDEX rules_about_runs ON rules (id) WHERE status = 'active' AND source = 'run';
