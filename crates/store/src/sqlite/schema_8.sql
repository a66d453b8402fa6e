-- Forgetting in small transactions, and what every process must know before it writes.

-- One row.
CREATE TABLE store_state (
    one           INTEGER PRIMARY KEY CHECK (one = 1),
    -- Grows whenever plans are removed. A process that remembers plans compares it first.
    plans_removed INTEGER NOT NULL,
    -- The part of the journal that may hold entries of forgotten runs; empty if it begins after its end.
    sweep_from    INTEGER NOT NULL,
    sweep_to      INTEGER NOT NULL,
    -- One moment on both clocks, noted twice a second: from there the steady clock goes on after the machine's next
    -- start. 0 if none was noted yet.
    steady_ms     INTEGER NOT NULL,
    wall_ms       INTEGER NOT NULL,
    -- When a transaction last committed, to half a second, and until when a pause counts as part of the last stall; both
    -- in milliseconds since the machine started.
    committed_ms   INTEGER NOT NULL,
    grace_until_ms INTEGER NOT NULL
);
INSERT INTO store_state VALUES (1, 0, 1, 0, 0, 0, 0, 0);
INSERT INTO meta (name, value) VALUES ('store_id', lower(hex(randomblob(16))));

-- Runs whose row is removed and of which other rows or files are left.
CREATE TABLE forgotten (
    run       INTEGER PRIMARY KEY,
    rows_left INTEGER NOT NULL
);
CREATE INDEX forgotten_rows ON forgotten (run) WHERE rows_left = 1;

CREATE INDEX runs_by_plan ON runs (plan);
CREATE INDEX gates_of ON gates (run);
CREATE INDEX outbox_of ON outbox (run);
