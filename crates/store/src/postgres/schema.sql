-- Everything Sprag keeps. Times ending in _ms are milliseconds by the database's clock. Whole numbers are BIGINT
-- throughout, and what is ordered is ordered byte by byte, so that every store answers alike.
-- Indexes cover live rows only, so that what has ended costs nothing.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

-- The number of the last journal entry. Whoever appends holds this row until its commit: so the numbers have no
-- holes, and their order is the order of commits for every reader.
CREATE TABLE journal_head (
    one BOOLEAN PRIMARY KEY CHECK (one),
    seq BIGINT  NOT NULL
) WITH (fillfactor = 10);
INSERT INTO journal_head VALUES (true, 0);

CREATE TABLE plans (
    hash BIGINT PRIMARY KEY,
    body TEXT   NOT NULL
);

CREATE TABLE runs (
    id              BIGINT  PRIMARY KEY,
    status          TEXT COLLATE "C" NOT NULL,
    version         BIGINT  NOT NULL,
    epoch           BIGINT  NOT NULL,
    open            BOOLEAN NOT NULL,
    unsettled       BIGINT  NOT NULL,
    broken          BIGINT  NOT NULL,
    reworking       BIGINT,
    pin             BIGINT  NOT NULL,
    reason          TEXT,
    steps           BIGINT  NOT NULL,
    last_seq        BIGINT  NOT NULL,
    started_ms      BIGINT,
    ended_ms        BIGINT,
    -- Looked at when it is committed: a plan that is forgotten at that moment undoes the run, which then keeps it anew.
    plan            BIGINT  NOT NULL REFERENCES plans (hash) DEFERRABLE INITIALLY DEFERRED,
    pipeline        TEXT    NOT NULL,
    priority        BIGINT  NOT NULL,
    grp             TEXT COLLATE "C",
    idempotency_key TEXT,
    inputs          TEXT    NOT NULL,
    context         TEXT    NOT NULL,
    parent_run      BIGINT,
    parent_step     BIGINT,
    root            BIGINT  NOT NULL,
    first_seq       BIGINT  NOT NULL,
    created_ms      BIGINT  NOT NULL
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX runs_by_key ON runs (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX runs_live ON runs (id) WHERE status IN ('queued', 'running', 'failing', 'cancelling');
CREATE INDEX runs_pinned ON runs (pin)
    WHERE pin <> 0 AND status IN ('queued', 'running', 'failing', 'cancelling');
CREATE INDEX runs_queued ON runs (grp, priority DESC, id) WHERE status = 'queued';
CREATE INDEX runs_by_plan ON runs (plan);
-- A run that is forgotten takes the runs that were its steps' work with it, however long ago they ended.
CREATE INDEX runs_of_parent ON runs (parent_run, id) WHERE parent_run IS NOT NULL;
CREATE INDEX runs_children ON runs (parent_run, id)
    WHERE parent_run IS NOT NULL AND status IN ('queued', 'running', 'failing', 'cancelling');

CREATE TABLE steps (
    run             BIGINT  NOT NULL,
    no              BIGINT  NOT NULL,
    status          TEXT COLLATE "C" NOT NULL,
    version         BIGINT  NOT NULL,
    attempt         BIGINT  NOT NULL,
    round           BIGINT  NOT NULL,
    tries           BIGINT  NOT NULL,
    losses          BIGINT  NOT NULL,
    reworks         BIGINT  NOT NULL,
    open_needs      BIGINT  NOT NULL,
    broken_needs    BIGINT  NOT NULL,
    skipped_by_when BOOLEAN NOT NULL,
    rework_pending  BOOLEAN NOT NULL,
    feedback        TEXT,
    work            BIGINT,
    -- A fan-out's list in one text: "made_by first total created settled failed cancelled again ending".
    items           TEXT,
    started_ms      BIGINT,
    ended_ms        BIGINT,
    item_of         BIGINT,
    item            BIGINT,
    PRIMARY KEY (run, no)
);
CREATE INDEX steps_items ON steps (run, item_of, no) WHERE item_of IS NOT NULL;
CREATE INDEX steps_items_waiting ON steps (run, item_of, no) WHERE item_of IS NOT NULL AND status = 'waiting';

CREATE TABLE executions (
    run              BIGINT  NOT NULL,
    step             BIGINT  NOT NULL,
    attempt          BIGINT  NOT NULL,
    status           TEXT COLLATE "C" NOT NULL,
    version          BIGINT  NOT NULL,
    fence            BIGINT  NOT NULL,
    pin              BIGINT  NOT NULL,
    cancel_requested BOOLEAN NOT NULL,
    published_ms     BIGINT  NOT NULL,
    owner            BIGINT,
    lease_until_ms   BIGINT  NOT NULL,
    nonce            BIGINT  NOT NULL,
    retriable        BOOLEAN NOT NULL,
    result           TEXT,
    started_ms       BIGINT,
    ended_ms         BIGINT,
    epoch            BIGINT  NOT NULL,
    queue            TEXT COLLATE "C" NOT NULL,
    priority         BIGINT  NOT NULL,
    not_before_ms    BIGINT  NOT NULL,
    created_ms       BIGINT  NOT NULL,
    -- Who moved it last.
    actor            TEXT    NOT NULL,
    PRIMARY KEY (run, step, attempt)
);
-- At most one live execution per step, whatever anybody believes.
CREATE UNIQUE INDEX executions_live ON executions (run, step)
    WHERE status IN ('requested', 'scheduling', 'scheduled', 'running');
CREATE INDEX executions_claimable ON executions (queue, pin, priority DESC, published_ms, run, step, attempt)
    WHERE status = 'scheduled';
CREATE INDEX executions_requested ON executions (queue, priority DESC, created_ms, run, step, attempt)
    WHERE status = 'requested';
CREATE INDEX executions_leased ON executions (lease_until_ms, run, step, attempt) WHERE status = 'running';
CREATE INDEX executions_owned ON executions (owner, run, step, attempt) WHERE status = 'running';

CREATE TABLE environments (
    id                BIGINT  PRIMARY KEY,
    status            TEXT COLLATE "C" NOT NULL,
    version           BIGINT  NOT NULL,
    path              TEXT    NOT NULL,
    cleanup_requested BOOLEAN NOT NULL,
    provision_attempt BIGINT  NOT NULL,
    destroy_attempt   BIGINT  NOT NULL,
    owner             BIGINT,
    reason            TEXT,
    details           TEXT    NOT NULL,
    run               BIGINT,
    scope             BIGINT,
    host              TEXT    NOT NULL,
    managed           BOOLEAN NOT NULL,
    created_ms        BIGINT  NOT NULL
);
-- A run has one environment, and each step that asks for its own another.
CREATE UNIQUE INDEX environments_of ON environments (run, coalesce(scope, -1)) WHERE run IS NOT NULL;
CREATE INDEX environments_there ON environments (id) WHERE status <> 'destroyed';

CREATE TABLE threads (
    id             BIGINT  PRIMARY KEY,
    status         TEXT COLLATE "C" NOT NULL,
    version        BIGINT  NOT NULL,
    environment    BIGINT,
    stop_requested BOOLEAN NOT NULL,
    archived       BOOLEAN NOT NULL,
    deleted        BOOLEAN NOT NULL,
    turn           BIGINT  NOT NULL,
    turn_open      BOOLEAN NOT NULL,
    runtime        BIGINT  NOT NULL
);

CREATE TABLE gates (
    id            BIGINT PRIMARY KEY,
    status        TEXT COLLATE "C" NOT NULL,
    version       BIGINT NOT NULL,
    answer        TEXT,
    timeout_at_ms BIGINT NOT NULL,
    run           BIGINT NOT NULL,
    step          BIGINT NOT NULL,
    attempt       BIGINT NOT NULL,
    kind          TEXT   NOT NULL,
    question      TEXT   NOT NULL,
    until_ms      BIGINT NOT NULL,
    opened_ms     BIGINT NOT NULL
);
CREATE INDEX gates_open ON gates (run, opened_ms) WHERE status = 'open';
CREATE INDEX gates_open_everywhere ON gates (id) WHERE status = 'open';

CREATE TABLE workers (
    id                 BIGINT PRIMARY KEY,
    status             TEXT COLLATE "C" NOT NULL,
    version            BIGINT NOT NULL,
    queues             TEXT   NOT NULL,
    heartbeat_until_ms BIGINT NOT NULL,
    name               TEXT   NOT NULL,
    process            TEXT   NOT NULL,
    slots              BIGINT NOT NULL,
    created_ms         BIGINT NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX workers_there ON workers (id) WHERE status <> 'offline';

CREATE TABLE enforcements (
    id      BIGINT PRIMARY KEY,
    status  TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,
    run     BIGINT,
    rule    TEXT   NOT NULL,
    event   TEXT   NOT NULL,
    UNIQUE (rule, event)
);

-- What can be said in the journal: each distinct sentence once, under the hash of its words.
CREATE TABLE sentences (
    id     BIGINT PRIMARY KEY,
    entity TEXT NOT NULL,
    event  TEXT NOT NULL,
    was    TEXT NOT NULL,
    became TEXT NOT NULL,
    actor  TEXT NOT NULL
);

CREATE TABLE journal (
    seq      BIGINT PRIMARY KEY,
    at_ms    BIGINT NOT NULL,
    sentence BIGINT NOT NULL,
    run      BIGINT,
    step     BIGINT,
    attempt  BIGINT,
    entity   BIGINT
);
-- What an entry tells beyond its sentence, as JSON: few have something.
CREATE TABLE journal_notes (
    seq  BIGINT PRIMARY KEY,
    note TEXT   NOT NULL
);

CREATE TABLE outbox (
    id            BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    kind          TEXT   NOT NULL,
    run           BIGINT NOT NULL,
    payload       TEXT   NOT NULL,
    attempts      BIGINT NOT NULL,
    not_before_ms BIGINT NOT NULL,
    error         TEXT
);

CREATE TABLE timers (
    due_ms  BIGINT NOT NULL,
    run     BIGINT NOT NULL,
    step    BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    PRIMARY KEY (due_ms, run, step, attempt)
);
CREATE INDEX timers_of ON timers (run, step, attempt);

CREATE TABLE refusals (
    id      BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    run     BIGINT NOT NULL,
    at_ms   BIGINT NOT NULL,
    entity  TEXT   NOT NULL,
    step    BIGINT,
    attempt BIGINT,
    number  BIGINT,
    event   TEXT   NOT NULL,
    actor   TEXT   NOT NULL,
    reason  TEXT   NOT NULL,
    detail  TEXT   NOT NULL
);
CREATE INDEX refusals_of ON refusals (run, id);

CREATE TABLE queues (
    name    TEXT COLLATE "C" PRIMARY KEY,
    maximum BIGINT,
    held    BOOLEAN NOT NULL
);

CREATE TABLE places (
    grp TEXT COLLATE "C" NOT NULL,
    run BIGINT NOT NULL,
    PRIMARY KEY (grp, run)
);

-- The values of a fan-out's list, by the attempt that made it.
CREATE TABLE items (
    run     BIGINT NOT NULL,
    step    BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    no      BIGINT NOT NULL,
    value   TEXT   NOT NULL,
    PRIMARY KEY (run, step, attempt, no)
);

-- Signals that came before anybody waited for them.
CREATE TABLE signals (
    id      BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    run     BIGINT NOT NULL,
    name    TEXT   NOT NULL,
    payload TEXT   NOT NULL
);
CREATE INDEX signals_of ON signals (run, name, id);

CREATE TABLE boards (
    run        BIGINT  PRIMARY KEY,
    name       TEXT    NOT NULL,
    goal       TEXT    NOT NULL,
    plan       TEXT    NOT NULL,
    queue      TEXT    NOT NULL,
    open       BOOLEAN NOT NULL,
    created_ms BIGINT  NOT NULL
);
-- A name means one board among those that take tasks.
CREATE UNIQUE INDEX boards_open ON boards (name) WHERE open;
CREATE INDEX boards_by_name ON boards (name, run);

-- What a leader calls a task, if it calls it anything.
CREATE TABLE task_keys (
    run BIGINT NOT NULL,
    key TEXT   NOT NULL,
    no  BIGINT NOT NULL,
    PRIMARY KEY (run, key)
);

CREATE TABLE task_needs (
    run      BIGINT  NOT NULL,
    no       BIGINT  NOT NULL,
    need     BIGINT  NOT NULL,
    tolerant BOOLEAN NOT NULL,
    PRIMARY KEY (run, no, need)
);
CREATE INDEX task_needs_by_need ON task_needs (run, need, no);

CREATE TABLE notes (
    id     BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    run    BIGINT NOT NULL,
    author TEXT   NOT NULL,
    tag    TEXT   NOT NULL,
    text   TEXT   NOT NULL,
    at_ms  BIGINT NOT NULL
);
CREATE INDEX notes_of ON notes (run, id);
CREATE INDEX notes_tagged ON notes (run, tag, id);

-- Who may call a server, and whom it calls.
CREATE TABLE tokens (
    id         BIGINT PRIMARY KEY,
    name       TEXT   NOT NULL,
    hash       TEXT   NOT NULL UNIQUE,
    scopes     TEXT   NOT NULL,
    created_ms BIGINT NOT NULL,
    expires_ms BIGINT
);

CREATE TABLE hooks (
    id             BIGINT PRIMARY KEY,
    url            TEXT   NOT NULL,
    secret         TEXT   NOT NULL,
    filter         TEXT   NOT NULL,
    seq            BIGINT NOT NULL,
    failures       BIGINT NOT NULL,
    next_try_ms    BIGINT NOT NULL,
    parked         TEXT,
    error          TEXT,
    holder         BIGINT NOT NULL,
    lease_until_ms BIGINT NOT NULL,
    created_ms     BIGINT NOT NULL
);

-- A compare-and-set over several rows at once: as many as were meant, or the transaction is undone.
CREATE FUNCTION sprag_expect(changed BIGINT, wanted BIGINT, what TEXT) RETURNS BIGINT
LANGUAGE plpgsql AS $$
BEGIN
    IF changed <> wanted THEN
        RAISE EXCEPTION '% of % changed by somebody else', wanted - changed, what USING ERRCODE = '40001';
    END IF;
    RETURN changed;
END $$;

-- A status is moved by somebody who says who it is: `sprag.actor` is 'rows' in Sprag's own transactions, where each
-- execution's row tells who moves it. A hand-written UPDATE says nothing and is refused.
CREATE FUNCTION sprag_status_has_an_actor() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    who TEXT := coalesce(current_setting('sprag.actor', true), '');
BEGIN
    IF who = '' THEN
        RAISE EXCEPTION 'the status of % moves through Sprag alone (no actor is set)', TG_TABLE_NAME
            USING HINT = 'use sprag cancel, resume, retry or rewind', ERRCODE = '42501';
    END IF;
    RETURN NEW;
END $$;

-- What a worker has received is its own: the executor cannot move it, whatever it believes.
CREATE FUNCTION sprag_execution_has_an_owner() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    who TEXT := coalesce(current_setting('sprag.actor', true), '');
BEGIN
    IF who = '' THEN
        RAISE EXCEPTION 'the status of executions moves through Sprag alone (no actor is set)'
            USING HINT = 'use sprag cancel, resume, retry or rewind', ERRCODE = '42501';
    END IF;
    IF who = 'rows' THEN
        who := NEW.actor;
    END IF;
    IF OLD.status NOT IN ('requested', 'scheduling', 'scheduled') AND who NOT IN ('worker', 'reaper') THEN
        RAISE EXCEPTION 'execution %/%/% is %, and not the %''s any more',
            OLD.run, OLD.step, OLD.attempt, OLD.status, who USING ERRCODE = '42501';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER runs_actor BEFORE UPDATE OF status ON runs
    FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION sprag_status_has_an_actor();
CREATE TRIGGER steps_actor BEFORE UPDATE OF status ON steps
    FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION sprag_status_has_an_actor();
CREATE TRIGGER executions_actor BEFORE UPDATE OF status ON executions
    FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION sprag_execution_has_an_owner();
CREATE TRIGGER environments_actor BEFORE UPDATE OF status ON environments
    FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION sprag_status_has_an_actor();
CREATE TRIGGER threads_actor BEFORE UPDATE OF status ON threads
    FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION sprag_status_has_an_actor();
CREATE TRIGGER gates_actor BEFORE UPDATE OF status ON gates
    FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION sprag_status_has_an_actor();
CREATE TRIGGER workers_actor BEFORE UPDATE OF status ON workers
    FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION sprag_status_has_an_actor();
CREATE TRIGGER enforcements_actor BEFORE UPDATE OF status ON enforcements
    FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION sprag_status_has_an_actor();
