-- The packed journal: consecutive entries of one run that one commit adds are one row, under the number of the last of
-- them. `journal/bytes.rs` describes the body. The entries of the old table are copied here in small transactions
-- (`postgres/repack.rs`), and then it is dropped.
CREATE TABLE journal_packs (
    last_seq  BIGINT PRIMARY KEY,
    first_seq BIGINT NOT NULL,
    run       BIGINT,
    body      BYTEA  NOT NULL
);
CREATE INDEX journal_packs_of ON journal_packs (run, last_seq) WHERE run IS NOT NULL;
