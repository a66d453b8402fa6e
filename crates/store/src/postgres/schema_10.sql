-- Triggers: rules, the events that reached them, and the decisions about both. `rules.next_ms` is a time of the wall
-- clock, because calendars are; `enforcements.due_ms`, `first_ms` and `rules.rate_ms` are of the steady clock.
CREATE TABLE rules (
    id         BIGINT PRIMARY KEY,
    status     TEXT COLLATE "C" NOT NULL,
    version    BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    definition TEXT   NOT NULL,
    hash       TEXT   NOT NULL,
    next_ms    BIGINT,
    next_key   TEXT   NOT NULL,
    seen       BIGINT NOT NULL,
    run        BIGINT,
    reason     TEXT,
    missed     BIGINT NOT NULL,
    rate_ms    BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL,
    name       TEXT COLLATE "C" NOT NULL UNIQUE,
    created_ms BIGINT NOT NULL
);
CREATE INDEX rules_due ON rules (next_ms) WHERE status = 'active' AND next_ms IS NOT NULL;
CREATE TRIGGER rules_actor BEFORE UPDATE OF status ON rules
    FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION sprag_status_has_an_actor();

CREATE TABLE deliveries (
    id          BIGINT PRIMARY KEY,
    rule        BIGINT NOT NULL,
    key         TEXT COLLATE "C" NOT NULL,
    kind        TEXT   NOT NULL,
    body        TEXT   NOT NULL,
    chain       TEXT   NOT NULL,
    received_ms BIGINT NOT NULL,
    UNIQUE (rule, key)
);
CREATE INDEX deliveries_of ON deliveries (rule, received_ms);
CREATE INDEX deliveries_by_time ON deliveries (received_ms);

-- No version before this one stored enforcements.
DROP TABLE enforcements;
CREATE TABLE enforcements (
    id         BIGINT PRIMARY KEY,
    status     TEXT COLLATE "C" NOT NULL,
    version    BIGINT NOT NULL,
    run        BIGINT,
    reason     TEXT,
    due_ms     BIGINT NOT NULL,
    first_ms   BIGINT NOT NULL,
    win        TEXT COLLATE "C",
    rule       BIGINT NOT NULL,
    event      BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    UNIQUE (event, rule, generation)
);
CREATE INDEX enforcements_due ON enforcements (due_ms) WHERE status IN ('created', 'held');
CREATE INDEX enforcements_of ON enforcements (rule, created_ms);
CREATE TRIGGER enforcements_actor BEFORE UPDATE OF status ON enforcements
    FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION sprag_status_has_an_actor();
