-- Boards: open runs whose tasks are added while they go on.

-- What the tokens of claimed tasks are signed with.
INSERT INTO meta (name, value) VALUES ('token_key', lower(hex(randomblob(32))));

CREATE TABLE boards (
    run        INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    goal       TEXT    NOT NULL,
    plan       TEXT    NOT NULL,
    queue      TEXT    NOT NULL,
    open       INTEGER NOT NULL,
    created_ms INTEGER NOT NULL
);
-- A name means one board among those that take tasks.
CREATE UNIQUE INDEX boards_open ON boards (name) WHERE open;
CREATE INDEX boards_by_name ON boards (name, run);

-- What a leader calls a task, if it calls it anything.
CREATE TABLE task_keys (
    run INTEGER NOT NULL,
    key TEXT    NOT NULL,
    no  INTEGER NOT NULL,
    PRIMARY KEY (run, key)
) WITHOUT ROWID;

CREATE TABLE task_needs (
    run      INTEGER NOT NULL,
    no       INTEGER NOT NULL,
    need     INTEGER NOT NULL,
    tolerant INTEGER NOT NULL,
    PRIMARY KEY (run, no, need)
) WITHOUT ROWID;
CREATE INDEX task_needs_by_need ON task_needs (run, need, no);

CREATE TABLE notes (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    run    INTEGER NOT NULL,
    author TEXT    NOT NULL,
    tag    TEXT    NOT NULL,
    text   TEXT    NOT NULL,
    at_ms  INTEGER NOT NULL
);
CREATE INDEX notes_of ON notes (run, id);
CREATE INDEX notes_tagged ON notes (run, tag, id);
