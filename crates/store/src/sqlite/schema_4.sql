-- Who may call a server, and whom it calls.

CREATE TABLE tokens (
    id         INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    hash       TEXT    NOT NULL UNIQUE,
    scopes     TEXT    NOT NULL,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER
);

CREATE TABLE hooks (
    id             INTEGER PRIMARY KEY,
    url            TEXT    NOT NULL,
    secret         TEXT    NOT NULL,
    filter         TEXT    NOT NULL,
    seq            INTEGER NOT NULL,
    failures       INTEGER NOT NULL,
    next_try_ms    INTEGER NOT NULL,
    parked         TEXT,
    error          TEXT,
    holder         INTEGER NOT NULL,
    lease_until_ms INTEGER NOT NULL,
    created_ms     INTEGER NOT NULL
);

-- Open gates of all runs, for those who ask what there is to answer.
CREATE INDEX gates_open_everywhere ON gates (id) WHERE status = 'open';
