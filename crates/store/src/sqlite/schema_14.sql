-- Triggers: rules, the events that reached them, and the decisions about both. `rules.next_ms` is a time of the wall
-- clock, because calendars are; `enforcements.due_ms`, `first_ms` and `rules.rate_ms` are of the steady clock.
CREATE TABLE rules (
    id         INTEGER PRIMARY KEY,
    status     TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    definition TEXT    NOT NULL,
    hash       TEXT    NOT NULL,
    next_ms    INTEGER,
    next_key   TEXT    NOT NULL,
    seen       INTEGER NOT NULL,
    run        INTEGER,
    reason     TEXT,
    missed     INTEGER NOT NULL,
    rate_ms    INTEGER NOT NULL,
    changed_ms INTEGER NOT NULL,
    name       TEXT    NOT NULL UNIQUE,
    created_ms INTEGER NOT NULL
);
CREATE INDEX rules_due ON rules (next_ms) WHERE status = 'active' AND next_ms IS NOT NULL;

CREATE TABLE deliveries (
    id          INTEGER PRIMARY KEY,
    rule        INTEGER NOT NULL,
    key         TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    body        TEXT    NOT NULL,
    chain       TEXT    NOT NULL,
    received_ms INTEGER NOT NULL,
    UNIQUE (rule, key)
);
CREATE INDEX deliveries_of ON deliveries (rule, received_ms);
CREATE INDEX deliveries_by_time ON deliveries (received_ms);

-- No version before this one stored enforcements.
DROP TABLE enforcements;
CREATE TABLE enforcements (
    id         INTEGER PRIMARY KEY,
    status     TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    run        INTEGER,
    reason     TEXT,
    due_ms     INTEGER NOT NULL,
    first_ms   INTEGER NOT NULL,
    win        TEXT,
    rule       INTEGER NOT NULL,
    event      INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    UNIQUE (event, rule, generation)
);
CREATE INDEX enforcements_due ON enforcements (due_ms) WHERE status = 'created' OR status = 'held';
CREATE INDEX enforcements_of ON enforcements (rule, created_ms);
