-- Fan-outs, child runs, gates of every kind, signals.

ALTER TABLE runs ADD COLUMN parent_run INTEGER;
ALTER TABLE runs ADD COLUMN parent_step INTEGER;
ALTER TABLE runs ADD COLUMN root INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN steps INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET root = id, steps = (SELECT count(*) FROM steps WHERE run = runs.id);
CREATE INDEX runs_children ON runs (parent_run, id)
    WHERE parent_run IS NOT NULL
      AND (status = 'queued' OR status = 'running' OR status = 'failing' OR status = 'cancelling');

ALTER TABLE steps ADD COLUMN item_of INTEGER;
ALTER TABLE steps ADD COLUMN item INTEGER;
ALTER TABLE steps ADD COLUMN work INTEGER;
-- A fan-out's list in one text, since few steps have one: "made_by first total created settled failed cancelled again
-- ending".
ALTER TABLE steps ADD COLUMN items TEXT;
CREATE INDEX steps_items ON steps (run, item_of, no) WHERE item_of IS NOT NULL;
CREATE INDEX steps_items_waiting ON steps (run, item_of, no) WHERE item_of IS NOT NULL AND status = 'waiting';

-- The values of a fan-out's list, by the attempt that made it.
CREATE TABLE items (
    run     INTEGER NOT NULL,
    step    INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    no      INTEGER NOT NULL,
    value   TEXT    NOT NULL,
    PRIMARY KEY (run, step, attempt, no)
) WITHOUT ROWID;

ALTER TABLE gates ADD COLUMN attempt INTEGER NOT NULL DEFAULT 1;
ALTER TABLE gates ADD COLUMN kind TEXT NOT NULL DEFAULT 'question';
ALTER TABLE gates ADD COLUMN until_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE gates ADD COLUMN opened_ms INTEGER NOT NULL DEFAULT 0;
CREATE INDEX gates_open ON gates (run, opened_ms) WHERE status = 'open';

-- Signals that came before anybody waited for them.
CREATE TABLE signals (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    run     INTEGER NOT NULL,
    name    TEXT    NOT NULL,
    payload TEXT    NOT NULL
);
CREATE INDEX signals_of ON signals (run, name, id);

ALTER TABLE environments ADD COLUMN scope INTEGER;
ALTER TABLE environments ADD COLUMN details TEXT NOT NULL DEFAULT '{}';
ALTER TABLE environments ADD COLUMN created_ms INTEGER NOT NULL DEFAULT 0;
-- A run has one environment, and each step that asks for its own another.
CREATE UNIQUE INDEX environments_of ON environments (run, coalesce(scope, -1)) WHERE run IS NOT NULL;
CREATE INDEX environments_there ON environments (id) WHERE status <> 'destroyed';
