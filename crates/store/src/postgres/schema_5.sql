-- Whether an execution failed for a reason that only a person can remove.
ALTER TABLE executions ADD COLUMN blocked BOOLEAN NOT NULL DEFAULT false;
