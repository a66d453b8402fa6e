-- Everything Sprag keeps. Times ending in _ms are milliseconds: `*_until_ms`, `not_before_ms`, `published_ms`
-- and `due_ms` by the store's steady clock, the others by the wall clock.
-- Indexes cover live rows only, so that what has ended costs nothing. Their conditions are chains of OR: for
-- every row written, SQLite would first put the words of an IN list into a table of their own.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE plans (
    hash INTEGER PRIMARY KEY,
    body TEXT NOT NULL
);

CREATE TABLE runs (
    id              INTEGER PRIMARY KEY,
    status          TEXT    NOT NULL,
    version         INTEGER NOT NULL,
    epoch           INTEGER NOT NULL,
    open            INTEGER NOT NULL,
    unsettled       INTEGER NOT NULL,
    broken          INTEGER NOT NULL,
    reworking       INTEGER,
    plan            INTEGER NOT NULL REFERENCES plans (hash),
    pipeline        TEXT    NOT NULL,
    pin             INTEGER NOT NULL,
    priority        INTEGER NOT NULL,
    grp             TEXT,
    idempotency_key TEXT,
    inputs          TEXT    NOT NULL,
    context         TEXT    NOT NULL,
    reason          TEXT,
    first_seq       INTEGER NOT NULL,
    last_seq        INTEGER NOT NULL,
    created_ms      INTEGER NOT NULL,
    started_ms      INTEGER,
    ended_ms        INTEGER
);
CREATE UNIQUE INDEX runs_by_key ON runs (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX runs_live ON runs (id)
    WHERE status = 'queued' OR status = 'running' OR status = 'failing' OR status = 'cancelling';
CREATE INDEX runs_pinned ON runs (pin)
    WHERE pin <> 0 AND (status = 'queued' OR status = 'running' OR status = 'failing' OR status = 'cancelling');
CREATE INDEX runs_queued ON runs (grp, priority DESC, id) WHERE status = 'queued';

CREATE TABLE steps (
    run             INTEGER NOT NULL,
    no              INTEGER NOT NULL,
    status          TEXT    NOT NULL,
    version         INTEGER NOT NULL,
    attempt         INTEGER NOT NULL,
    round           INTEGER NOT NULL,
    tries           INTEGER NOT NULL,
    losses          INTEGER NOT NULL,
    reworks         INTEGER NOT NULL,
    open_needs      INTEGER NOT NULL,
    broken_needs    INTEGER NOT NULL,
    skipped_by_when INTEGER NOT NULL,
    rework_pending  INTEGER NOT NULL,
    feedback        TEXT,
    started_ms      INTEGER,
    ended_ms        INTEGER,
    PRIMARY KEY (run, no)
) WITHOUT ROWID;

CREATE TABLE executions (
    run              INTEGER NOT NULL,
    step             INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    status           TEXT    NOT NULL,
    version          INTEGER NOT NULL,
    fence            INTEGER NOT NULL,
    epoch            INTEGER NOT NULL,
    queue            TEXT    NOT NULL,
    pin              INTEGER NOT NULL,
    priority         INTEGER NOT NULL,
    cancel_requested INTEGER NOT NULL,
    not_before_ms    INTEGER NOT NULL,
    published_ms     INTEGER NOT NULL,
    owner            INTEGER,
    lease_until_ms   INTEGER NOT NULL,
    nonce            INTEGER NOT NULL,
    retriable        INTEGER NOT NULL,
    result           TEXT,
    created_ms       INTEGER NOT NULL,
    started_ms       INTEGER,
    ended_ms         INTEGER,
    PRIMARY KEY (run, step, attempt)
) WITHOUT ROWID;
-- At most one live execution per step, whatever anybody believes.
CREATE UNIQUE INDEX executions_live ON executions (run, step)
    WHERE status = 'requested' OR status = 'scheduling' OR status = 'scheduled' OR status = 'running';
CREATE INDEX executions_claimable ON executions (queue, pin, priority DESC, published_ms, run, step, attempt)
    WHERE status = 'scheduled';
CREATE INDEX executions_requested ON executions (queue, priority DESC, created_ms, run, step, attempt)
    WHERE status = 'requested';
CREATE INDEX executions_leased ON executions (lease_until_ms, run, step, attempt) WHERE status = 'running';

CREATE TABLE environments (
    id                INTEGER PRIMARY KEY,
    status            TEXT    NOT NULL,
    version           INTEGER NOT NULL,
    run               INTEGER,
    host              TEXT    NOT NULL,
    path              TEXT    NOT NULL,
    managed           INTEGER NOT NULL,
    cleanup_requested INTEGER NOT NULL,
    provision_attempt INTEGER NOT NULL,
    destroy_attempt   INTEGER NOT NULL,
    users             INTEGER NOT NULL,
    owner             INTEGER,
    reason            TEXT
);

CREATE TABLE threads (
    id             INTEGER PRIMARY KEY,
    status         TEXT    NOT NULL,
    version        INTEGER NOT NULL,
    environment    INTEGER,
    stop_requested INTEGER NOT NULL,
    archived       INTEGER NOT NULL,
    deleted        INTEGER NOT NULL,
    turn           INTEGER NOT NULL,
    turn_open      INTEGER NOT NULL,
    runtime        INTEGER NOT NULL
);

CREATE TABLE gates (
    id            INTEGER PRIMARY KEY,
    status        TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    run           INTEGER NOT NULL,
    step          INTEGER NOT NULL,
    question      TEXT    NOT NULL,
    answer        TEXT,
    timeout_at_ms INTEGER NOT NULL
);

CREATE TABLE workers (
    id                 INTEGER PRIMARY KEY,
    status             TEXT    NOT NULL,
    version            INTEGER NOT NULL,
    name               TEXT    NOT NULL,
    process            TEXT    NOT NULL,
    queues             TEXT    NOT NULL,
    slots              INTEGER NOT NULL,
    heartbeat_until_ms INTEGER NOT NULL,
    created_ms         INTEGER NOT NULL
);
CREATE INDEX workers_there ON workers (id) WHERE status <> 'offline';

CREATE TABLE enforcements (
    id      INTEGER PRIMARY KEY,
    status  TEXT    NOT NULL,
    version INTEGER NOT NULL,
    rule    TEXT    NOT NULL,
    event   TEXT    NOT NULL,
    run     INTEGER,
    UNIQUE (rule, event)
);

-- What can be said in the journal: each distinct sentence once.
CREATE TABLE sentences (
    id     INTEGER PRIMARY KEY,
    entity TEXT NOT NULL,
    event  TEXT NOT NULL,
    was    TEXT NOT NULL,
    became TEXT NOT NULL,
    actor  TEXT NOT NULL,
    UNIQUE (entity, event, was, became, actor)
);

CREATE TABLE journal (
    seq      INTEGER PRIMARY KEY,
    at_ms    INTEGER NOT NULL,
    sentence INTEGER NOT NULL REFERENCES sentences (id),
    run      INTEGER,
    step     INTEGER,
    attempt  INTEGER,
    entity   INTEGER
);

CREATE TABLE outbox (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    kind          TEXT    NOT NULL,
    run           INTEGER NOT NULL,
    payload       TEXT    NOT NULL,
    attempts      INTEGER NOT NULL,
    not_before_ms INTEGER NOT NULL,
    error         TEXT
);

CREATE TABLE timers (
    due_ms  INTEGER NOT NULL,
    run     INTEGER NOT NULL,
    step    INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    PRIMARY KEY (due_ms, run, step, attempt)
) WITHOUT ROWID;
CREATE INDEX timers_of ON timers (run, step, attempt);

CREATE TABLE refusals (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    run     INTEGER NOT NULL,
    at_ms   INTEGER NOT NULL,
    entity  TEXT    NOT NULL,
    step    INTEGER,
    attempt INTEGER,
    number  INTEGER,
    event   TEXT    NOT NULL,
    actor   TEXT    NOT NULL,
    reason  TEXT    NOT NULL,
    detail  TEXT    NOT NULL
);
CREATE INDEX refusals_of ON refusals (run, id);

CREATE TABLE queues (
    name    TEXT PRIMARY KEY,
    maximum INTEGER,
    held    INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE places (
    grp TEXT    NOT NULL,
    run INTEGER NOT NULL,
    PRIMARY KEY (grp, run)
) WITHOUT ROWID;
