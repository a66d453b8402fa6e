-- Threads with a holder, and the thread of each execution (0 if it has none).
ALTER TABLE threads ADD COLUMN holder_run BIGINT;
ALTER TABLE threads ADD COLUMN holder_step BIGINT;
ALTER TABLE threads ADD COLUMN holder_attempt BIGINT;
ALTER TABLE threads ADD COLUMN holder_fence BIGINT;
ALTER TABLE executions ADD COLUMN thread BIGINT NOT NULL DEFAULT 0;
