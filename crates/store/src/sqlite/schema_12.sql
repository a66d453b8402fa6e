-- The accounts of coding agents, with the holds on them, and the account of each execution (0 if it has none).
CREATE TABLE accounts (
    id            INTEGER PRIMARY KEY,
    status        TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    name          TEXT    NOT NULL,
    maximum       INTEGER NOT NULL,
    generation    INTEGER NOT NULL,
    until_ms      INTEGER,
    until_wall_ms INTEGER,
    held_since_ms INTEGER,
    reason        TEXT,
    run           INTEGER,
    strikes       INTEGER NOT NULL
);
ALTER TABLE executions ADD COLUMN account INTEGER NOT NULL DEFAULT 0;
ALTER TABLE executions ADD COLUMN account_generation INTEGER NOT NULL DEFAULT 0;
ALTER TABLE executions ADD COLUMN limited_since_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE executions ADD COLUMN limited_ms INTEGER NOT NULL DEFAULT 0;
CREATE INDEX executions_of_account ON executions (account, status, run, step, attempt)
    WHERE account > 0 AND (status = 'requested' OR status = 'scheduled' OR status = 'running');
