-- Whether an execution failed for a reason that only a person can remove.
ALTER TABLE executions ADD COLUMN blocked INTEGER NOT NULL DEFAULT 0;
