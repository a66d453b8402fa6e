-- Acts of administration, which no table decides: tokens, webhooks and queues that were made, changed or removed.
CREATE TABLE acts (
    id      INTEGER PRIMARY KEY,
    at_ms   INTEGER NOT NULL,
    by      TEXT,
    act     TEXT    NOT NULL,
    subject TEXT    NOT NULL
);
CREATE INDEX acts_by_time ON acts (at_ms);
