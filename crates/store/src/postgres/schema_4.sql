-- Forgetting in small transactions, and what every process must know before it writes.

-- One row.
CREATE TABLE store_state (
    one           BOOLEAN PRIMARY KEY CHECK (one),
    -- Grows whenever plans are removed. A process that remembers plans compares it first.
    plans_removed BIGINT NOT NULL,
    -- The part of the journal that may hold entries of forgotten runs; empty if it begins after its end.
    sweep_from    BIGINT NOT NULL,
    sweep_to      BIGINT NOT NULL,
    -- How far the store's steady clock is ahead of the server's: grows when that one is put back.
    ahead_ms      BIGINT NOT NULL
);
INSERT INTO store_state VALUES (true, 0, 1, 0, 0);

-- The schema's version, beside the number that every writer takes: whoever migrates takes it too.
ALTER TABLE journal_head ADD COLUMN schema BIGINT NOT NULL DEFAULT 0;
-- The steady moment of the last commit that told something.
ALTER TABLE journal_head ADD COLUMN steady_ms BIGINT NOT NULL DEFAULT 0;
INSERT INTO meta (name, value) VALUES ('store_id', replace(gen_random_uuid()::text, '-', ''));

-- Runs whose row is removed and of which other rows or files are left.
CREATE TABLE forgotten (
    run       BIGINT  PRIMARY KEY,
    rows_left BOOLEAN NOT NULL
);
CREATE INDEX forgotten_rows ON forgotten (run) WHERE rows_left;

CREATE INDEX gates_of ON gates (run);
CREATE INDEX outbox_of ON outbox (run);
