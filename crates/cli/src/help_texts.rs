//! The end of each command's help: what to know beside its options, and examples.

pub(crate) const INIT: &str = "\
It looks for Cargo.toml, package.json and its scripts, pyproject.toml,
requirements.txt, go.mod and a Makefile, and writes .sprag/pipelines/NAME.yaml.

Examples:
  sprag init           writes .sprag/pipelines/ci.yaml
  sprag run ci         runs it
  sprag init --stdout  prints it
  sprag init --agents  writes .sprag/pipelines/feature.yaml, for coding agents";

pub(crate) const DO: &str = "\
The check is guessed from the project (cargo test, npm test, make test, …); the
agent gets up to three attempts. Then it shows the diff and asks. Without a
terminal, `sprag approve RUN` answers it.

Examples:
  sprag do 'fix the flaky test'
  sprag do 'add a --quiet option' --use codex --check 'make test'
  sprag do 'anything' --agents fake    offline, without any agent";

pub(crate) const AGENT: &str = "\
Examples:
  sprag run feature --agents fake    replaces the agents of a pipeline
  sprag agent fake script.yaml --speak codex --home /tmp/fake";

pub(crate) const RUN: &str = "\
Without a name it lists the pipelines in .sprag/pipelines. On a terminal it asks
for missing inputs, and for answers to the run's questions.

Examples:
  sprag run ci                        .sprag/pipelines/ci.yaml
  sprag run examples/hello.yaml
  sprag run release.yaml --input version=1.2.0
  sprag run - < ci.yaml               a pipeline from stdin
  sprag run nightly.yaml --detach     leaves it to a `sprag worker`
  sprag run feature --agents fake     tries a pipeline of agents without them
  sprag run ci.yaml --json            one JSON object per event, the result last";

pub(crate) const LS: &str = "\
Examples:
  sprag ls
  sprag ls --status failed -n 5
  sprag ls --waiting           runs that wait for something
  sprag ls --waiting=person    runs that wait for an answer
  sprag ls --boards            boards too";

pub(crate) const STATUS: &str = "\
Examples:
  sprag status        the newest run
  sprag status 0aj8   by the first characters of its id";

pub(crate) const LOGS: &str = "\
Examples:
  sprag logs                     everything the newest run printed
  sprag logs RUN test            one step
  sprag logs RUN --failed        only the steps that failed
  sprag logs RUN test --tail 20  its last 20 lines
  sprag logs -f                  as it is printed";

pub(crate) const WATCH: &str = "\
With a run it shows what `sprag run` shows, while other processes execute it.
Without one it shows one line for each live run. Ctrl-C stops watching; the
runs continue.

Examples:
  sprag watch RUN
  sprag watch";

pub(crate) const QUESTIONS: &str = "\
Examples:
  sprag questions
  sprag approve RUN STEP";

pub(crate) const WAIT: &str = "\
Examples:
  sprag wait RUN && echo completed
  sprag wait RUN --timeout 10m";

pub(crate) const CANCEL: &str = "\
Cancelling a run that is already cancelled is fine (exit code 0).

Examples:
  sprag cancel RUN";

pub(crate) const RETRY: &str = "\
Examples:
  sprag retry RUN               the failed steps; finished ones stay finished
  sprag retry RUN --step test   `test` and everything after it
  sprag retry RUN --step test --now
                                `test` waits for its next try: it starts now";

pub(crate) const SKIP: &str = "\
A step that has begun is stopped first. A step whose needs are open is skipped
when they are met. A skipped step counts as done and has no outputs.

Examples:
  sprag skip RUN slow-tests
  sprag skip RUN 'each[3]'";

pub(crate) const RESUME: &str = "\
Exit code 4 if the run is completed: there is nothing to do.

Examples:
  sprag resume RUN
  sprag resume RUN --detach";

pub(crate) const REWIND: &str = "\
The run must have ended. Files of its worktree are restored to where the step
began.

Examples:
  sprag rewind RUN --to test";

pub(crate) const FORK: &str = "\
The new run takes over the step and everything before it, with their outputs,
and runs the rest. The other run stays as it is.

Examples:
  sprag fork RUN --from build";

pub(crate) const BOARD: &str = "\
Examples:
  sprag board new release --goal 'Ship 2.0'
  sprag task add release 'Write the notes' --key notes
  sprag task add release 'Publish' --needs notes
  sprag board show release
  sprag board close release";

pub(crate) const MCP: &str = "\
The agent gets tools for boards, tasks, runs and questions. Several of these can
share one data directory without a server. docs/mcp.md says how to add it to an
agent.

Examples:
  sprag mcp
  sprag mcp --server http://127.0.0.1:7717";

pub(crate) const TASK: &str = "\
Examples:
  TOKEN=$(sprag task claim --board release --as ada --wait 30s)
  sprag task heartbeat $TOKEN
  sprag task done $TOKEN --summary 'written' --created NOTES.md";

pub(crate) const ENV: &str = "\
Examples:
  sprag env ls
  sprag env show RUN
  sprag env rm RUN
  sprag env gc --dry-run";

pub(crate) const GC: &str = "\
Examples:
  sprag gc --keep 30d --dry-run   what would be deleted
  sprag gc --keep 30d             delete runs that ended more than 30 days ago

Kept: live runs, runs with a kept worktree, runs with undelivered webhooks. A
run with an idempotency key is kept for a day after its end, so that a repeated
request finds it. The key of a deleted run can be used again.";

pub(crate) const DIFF: &str = "\
Examples:
  sprag diff RUN               everything so far
  sprag diff RUN work          what the step `work` changed
  sprag diff RUN work@1        what the first attempt at it changed
  sprag diff RUN plan..test    between the ends of two steps
  sprag diff RUN --stat        the changed files

A patch that is longer than the terminal is shown in $SPRAG_PAGER, $PAGER or
less.";

pub(crate) const APPROVE: &str = "\
If no other process executes the run, this one continues it. A question of a
child run can be answered through its parent.

Examples:
  sprag approve RUN
  sprag approve RUN release --choice canary --comment 'only to the north'
  sprag approve RUN release --field percent=20 --field reason='a small change'";

pub(crate) const REJECT: &str = "\
Examples:
  sprag reject RUN
  sprag reject RUN release --comment 'the notes are missing'";

pub(crate) const SIGNAL: &str = "\
A name that no step of the run waits for is an error.

Examples:
  sprag signal RUN deployed
  sprag signal RUN deployed --payload '{\"version\": 3}'";

pub(crate) const WORKER: &str = "\
Ctrl-C or SIGTERM stops it after its running steps have finished. Steps that
only wait for their turn to land return to their queue. A second signal stops
the running steps too; other workers then retry them.

With --store it works for all users of that database, on any number of machines.
With --server it claims over HTTP and opens no database. It then needs a token
with the scope `work` (sprag token new NAME --scope work), unless the server is
this user's own on this machine.

Examples:
  sprag worker --slots 4
  sprag worker --label gpu --label linux
  sprag worker ls
  SPRAG_STORE=postgres://sprag@db.example/sprag sprag worker
  SPRAG_TOKEN=... sprag worker --server http://build.example:7717 --queue gpu";

pub(crate) const SERVE: &str = "\
Every request needs a token. The server writes one to the file `token` of its
data directory. This user's `sprag mcp --server` and `sprag worker --server`
read it; `sprag token new` makes others.

Ctrl-C or SIGTERM stops it after its requests and steps have finished. A second
signal stops those too.

Examples:
  sprag serve
  sprag serve --listen 0.0.0.0:7717 --no-worker
  SPRAG_STORE=postgres://sprag@db.example/sprag sprag serve --no-worker";

pub(crate) const AUDIT: &str = "\
Examples:
  sprag audit --since 1d
  sprag audit --by ada --act run
  sprag audit --act token
  sprag audit --run RUN --json";

pub(crate) const TOKEN: &str = "\
Examples:
  sprag token new ci --scope run --expires 90d
  sprag token ls
  sprag token rm ci";

pub(crate) const HOOK: &str = "\
Examples:
  sprag hook add http://127.0.0.1:9000/sprag --event run.succeeded
  sprag hook add http://127.0.0.1:9000/chat --format slack --status failed
  sprag hook test HOOK
  sprag hook ls
  sprag hook rm HOOK";

pub(crate) const RULE: &str = "\
A rule is an entry of `on:` in a pipeline file. `sprag serve` fires rules, or
`sprag rule tick` at intervals.

Examples:
  sprag rule apply nightly.yaml
  sprag rule ls
  sprag rule show nightly --next 10
  sprag rule fire nightly";

pub(crate) const DELIVERY: &str = "\
Examples:
  sprag delivery ls nightly
  sprag delivery replay EVENT";

pub(crate) const QUEUE: &str = "\
Examples:
  sprag queue ls
  sprag queue hold default
  sprag queue limit gpu 2";

pub(crate) const ACCOUNT: &str = "\
Steps with an agent share its account. When an agent reports a usage limit, the
account is held for all runs until the limit ends, and no try is lost.

Examples:
  sprag account ls
  sprag account hold work --for 2h --reason lunch
  sprag account release work";

pub(crate) const THREAD: &str = "\
A thread is the conversation of an agent step. When the step's run has ended,
a message continues its session in its worktree. Then resume the run: the next
attempt continues the same session, with the files as they are.

Examples:
  sprag thread ls
  sprag thread send RUN/STEP \"the test needs a fixture\"
  sprag thread log RUN/STEP -f
  sprag resume RUN";

pub(crate) const EVENTS: &str = "\
Examples:
  sprag events --run RUN
  sprag events -f --tail 20";

pub(crate) const EXPLAIN: &str = "\
It says what each step waits for, since when, until when, and which worker has
it. For a failed step it says why it failed, and shows the last lines it
printed.

Examples:
  sprag explain RUN
  sprag explain PIPELINE/RULE";

pub(crate) const GRAPH: &str = "\
Examples:
  sprag graph ci.yaml                          in the terminal
  sprag graph                                  the newest run, with statuses
  sprag graph ci.yaml --format svg > ci.svg    a picture
  sprag graph ci.yaml --format mermaid         for a README";

pub(crate) const VALIDATE: &str = "\
Examples:
  sprag validate ci
  sprag validate .sprag/pipelines/*.yaml --strict";

pub(crate) const SCHEMA: &str = "\
Examples:
  sprag schema > sprag.schema.json";

pub(crate) const LIFECYCLE: &str = "\
Examples:
  sprag lifecycle run";

pub(crate) const TRUST: &str = "\
The file .sprag/agents.toml of a repository names programs that agent steps
start. It counts after this command, until its content changes.

Examples:
  sprag trust
  sprag trust --remove";

pub(crate) const DOCTOR: &str = "\
Exit code 1 if a check fails.

Examples:
  sprag doctor";

pub(crate) const COMPLETION: &str = "\
Examples:
  sprag completion bash > ~/.local/share/bash-completion/completions/sprag
  sprag completion zsh > ~/.zfunc/_sprag";

pub(crate) const MANUAL: &str = "\
Examples:
  sprag manual ~/.local/share        man/man1 and completions for this user
  sprag manual \"$DESTDIR/usr/share\"  for a package";

pub(crate) const CONFIG: &str = "\
Settings are read from $XDG_CONFIG_HOME/sprag/config.toml, then from
.sprag/config.toml in this folder or the nearest one above it. The environment
and the command line come last. docs/cli.md lists the keys.

Examples:
  sprag config
  sprag config --json";
