-- The packed journal: consecutive entries of one run that one commit adds are one row, under the number of the last of
-- them. `journal/bytes.rs` describes the body. The entries of the old table move here in small transactions
-- (`sqlite/repack.rs`), and the last of these drops it.
CREATE TABLE journal_packs (
    last_seq  INTEGER PRIMARY KEY,
    first_seq INTEGER NOT NULL,
    run       INTEGER,
    body      BLOB    NOT NULL
);
CREATE INDEX journal_packs_of ON journal_packs (run, last_seq) WHERE run IS NOT NULL;
