-- The accounts of coding agents, with the holds on them, and the account of each execution (0 if it has none).
CREATE TABLE accounts (
    id            BIGINT PRIMARY KEY,
    status        TEXT COLLATE "C" NOT NULL,
    version       BIGINT NOT NULL,
    name          TEXT   NOT NULL,
    maximum       BIGINT NOT NULL,
    generation    BIGINT NOT NULL,
    until_ms      BIGINT,
    until_wall_ms BIGINT,
    held_since_ms BIGINT,
    reason        TEXT,
    run           BIGINT,
    strikes       BIGINT NOT NULL
);
CREATE TRIGGER accounts_actor BEFORE UPDATE OF status ON accounts
    FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION sprag_status_has_an_actor();
ALTER TABLE executions ADD COLUMN account BIGINT NOT NULL DEFAULT 0;
ALTER TABLE executions ADD COLUMN account_generation BIGINT NOT NULL DEFAULT 0;
ALTER TABLE executions ADD COLUMN limited_since_ms BIGINT NOT NULL DEFAULT 0;
ALTER TABLE executions ADD COLUMN limited_ms BIGINT NOT NULL DEFAULT 0;
CREATE INDEX executions_of_account ON executions (account, status, run, step, attempt)
    WHERE account > 0 AND status IN ('requested', 'scheduled', 'running');
