-- What a journal entry tells beyond its sentence, as JSON: few have something, so that the journal's own rows stay small.
CREATE TABLE journal_notes (
    seq  INTEGER PRIMARY KEY,
    note TEXT NOT NULL
);

-- Whether a live run uses an environment is asked of the run, when it matters.
ALTER TABLE environments DROP COLUMN users;
