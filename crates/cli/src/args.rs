//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

pub(crate) use crate::board_args::{BoardCommand, TaskCommand};
use crate::exit;
pub(crate) use crate::sub_args::{
    Answer, EnvCommand, HookCommand, QueueCommand, Serve, Shown, TokenCommand, WorkerCommand, inherited,
};

/// Runs pipelines of commands: durably, in order, and never a step twice.
#[derive(Debug, Parser)]
#[command(name = "sprag", version, after_help = exit::HELP, max_term_width = 100)]
pub(crate) struct Args {
    /// Where everything is kept [default: $XDG_DATA_HOME/sprag]
    #[arg(long, global = true, env = "SPRAG_DATA", value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Keep runs in PostgreSQL instead of the data directory, which then holds logs and worktrees alone:
    /// postgres://USER@HOST/DATABASE
    #[arg(long, global = true, env = "SPRAG_STORE", hide_env_values = true, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Answers for programs, as JSON on stdout
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t = Colour::Auto, value_name = "WHEN")]
    pub(crate) color: Colour,
    /// Tell more of what goes on (twice: even more)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colour {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How a graph is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GraphFormat {
    /// Lanes in the terminal, or a list where those would be too many
    Text,
    /// One line a step, by layers
    List,
    /// Mermaid's language
    Mermaid,
    /// A picture
    Svg,
}

/// A run, by its id or the end of it.
const RUN_HELP: &str = "The run: its id, or the last characters of it [default: the newest]";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write a first pipeline, fitted to this folder
    #[command(after_help = "\
It looks for Cargo.toml, package.json (and its scripts), pyproject.toml or
requirements.txt, go.mod, and a Makefile, and writes .sprag/pipelines/NAME.yaml.")]
    Init {
        /// What to call the pipeline
        #[arg(default_value = "ci")]
        name: String,
        /// Replace the file if it is there
        #[arg(long)]
        force: bool,
        /// Print it, and write nothing
        #[arg(long, visible_alias = "dry")]
        stdout: bool,
    },
    /// Run a pipeline file and watch it
    #[command(after_help = "\
Examples:
  sprag run examples/hello.yaml
  sprag run release.yaml --input version=1.2.0
  sprag run nightly.yaml --detach     leaves it to a `sprag worker`
  sprag run ci.yaml --json            one JSON object per event, the result last")]
    Run {
        /// The pipeline file
        file: PathBuf,
        /// An input's value; repeat it for more
        #[arg(long = "input", short = 'i', value_name = "KEY=VALUE")]
        pairs: Vec<String>,
        /// All inputs at once: a JSON file, `-` for stdin, or JSON itself
        #[arg(long, value_name = "FILE|JSON")]
        inputs: Option<String>,
        /// Show what would run, in which order, and run nothing
        #[arg(long, conflicts_with = "detach")]
        dry: bool,
        /// Leave the run to a worker, and return at once
        #[arg(long)]
        detach: bool,
        /// The same key never starts a second run
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
        /// How many steps to work on at once
        #[arg(long, value_name = "N")]
        slots: Option<usize>,
        /// How long this process may be silent before others take its work, 5s at least
        #[arg(long, value_name = "TIME", default_value = "30s")]
        lease: String,
        /// A NATS broker that tells workers of work and others of events, like nats://127.0.0.1:4222
        #[arg(long, value_name = "URL", env = "SPRAG_BUS", hide_env_values = true)]
        bus: Option<String>,
    },
    /// List runs, newest first
    Ls {
        /// Only runs in this status; repeat it for more
        #[arg(long, value_name = "STATUS")]
        status: Vec<String>,
        /// How many
        #[arg(long, short = 'n', default_value_t = 20)]
        limit: usize,
    },
    /// Show a run and its steps
    Status {
        #[arg(help = RUN_HELP)]
        run: Option<String>,
    },
    /// Show what steps printed
    #[command(after_help = "\
Examples:
  sprag logs            everything the newest run printed
  sprag logs RUN test   one step
  sprag logs -f         as it is printed")]
    Logs {
        #[arg(help = RUN_HELP)]
        run: Option<String>,
        /// Only this step
        step: Option<String>,
        /// Go on until the run ends
        #[arg(long, short)]
        follow: bool,
        /// Only this attempt [default: the last]
        #[arg(long, value_name = "N")]
        attempt: Option<u32>,
    },
    /// Wait until a run has ended; its outcome is the exit code
    Wait {
        #[arg(help = RUN_HELP)]
        run: Option<String>,
        /// Give up after this long (exit code 124), like 90s or 5m
        #[arg(long, value_name = "TIME")]
        timeout: Option<String>,
    },
    /// End a run: what goes on is ended, what waits never starts
    Cancel {
        #[arg(help = "The run: its id, or the last characters of it")]
        run: String,
    },
    /// Try again what failed, or one step and all that follows it
    #[command(after_help = "\
Examples:
  sprag retry RUN               the failed steps, keeping what is done
  sprag retry RUN --step test   `test` and everything after it, whatever became of them")]
    Retry {
        #[arg(help = RUN_HELP)]
        run: Option<String>,
        /// Go on from this step
        #[arg(long, value_name = "STEP")]
        step: Option<String>,
        /// Leave the run to a worker, and return at once
        #[arg(long)]
        detach: bool,
    },
    /// Go on with a run that failed, was cancelled, or whose process died
    Resume {
        #[arg(help = RUN_HELP)]
        run: Option<String>,
        /// Leave the run to a worker, and return at once
        #[arg(long)]
        detach: bool,
    },
    /// Go back: a step and everything after it run again
    Rewind {
        #[arg(help = RUN_HELP)]
        run: Option<String>,
        /// The step to go back to
        #[arg(long, value_name = "STEP")]
        to: String,
        /// Leave the run to a worker, and return at once
        #[arg(long)]
        detach: bool,
    },
    /// Start a new run from where another had finished a step
    #[command(after_help = "\
The step and everything before it are taken over as they are, with what they handed on;
everything else runs anew. The other run stays as it is.")]
    Fork {
        #[arg(help = RUN_HELP)]
        run: Option<String>,
        /// The finished step to begin after
        #[arg(long, value_name = "STEP")]
        from: String,
        /// Leave the run to a worker, and return at once
        #[arg(long)]
        detach: bool,
    },
    /// Make and look after boards: tasks for several agents and people
    #[command(after_help = "\
Examples:
  sprag board new release --goal 'Ship 2.0'
  sprag task add release 'Write the notes' --key notes
  sprag task add release 'Publish' --needs notes
  sprag board show release
  sprag board close release")]
    Board {
        #[command(subcommand)]
        command: BoardCommand,
    },
    /// Serve an agent over stdin and stdout, by the Model Context Protocol
    #[command(after_help = "\
The agent gets tools for boards, tasks, runs and questions. Many of these on one data
directory share it safely, with no server. See docs/mcp.md for how to add it to an agent.")]
    Mcp {
        /// Pass everything on to this server instead, like http://127.0.0.1:7717
        #[arg(long, env = "SPRAG_SERVER", value_name = "URL")]
        server: Option<String>,
        /// The token that the server wants [default: that of this user's own server on this machine]
        #[arg(long, env = "SPRAG_TOKEN", value_name = "TOKEN", hide_env_values = true)]
        token: Option<String>,
    },
    /// Claim and report work that is done from outside: by agents, scripts, people
    #[command(after_help = "\
Examples:
  TOKEN=$(sprag task claim --board release --as ada --wait 30s)
  sprag task heartbeat $TOKEN
  sprag task done $TOKEN --summary 'written' --created NOTES.md")]
    Task {
        #[command(subcommand)]
        command: TaskCommand,
    },
    /// Where runs work: list, look at, remove
    Env {
        #[command(subcommand)]
        command: EnvCommand,
    },
    /// Forget runs that ended long ago, with their logs and files
    #[command(after_help = "\
Examples:
  sprag gc --keep 30d --dry-run   what would go
  sprag gc --keep 30d             forget runs that ended more than 30 days ago

Runs that go on, that keep a worktree, or that a webhook has not been told of stay. A run with an idempotency key stays
for a day after its end, so that a repeated request finds it. The key of a forgotten run can be used again.")]
    Gc {
        /// How long ended runs are kept
        #[arg(long, value_name = "AGE")]
        keep: String,
        /// Only tell what would go
        #[arg(long)]
        dry_run: bool,
    },
    /// Show what a run's steps changed in its worktree, as a patch
    #[command(after_help = "\
Examples:
  sprag diff RUN               everything so far
  sprag diff RUN work          what the step `work` changed
  sprag diff RUN plan..test    between the ends of two steps")]
    Diff {
        #[arg(help = RUN_HELP)]
        run: Option<String>,
        /// A step, or two with `..` between them
        steps: Option<String>,
    },
    /// Answer a run's question with yes: it goes on
    #[command(after_help = "\
Without anybody else working on the run, this process goes on with it.

Examples:
  sprag approve RUN
  sprag approve RUN release --choice canary --comment 'only to the north'")]
    Approve {
        #[arg(help = "The run: its id, or the last characters of it")]
        run: String,
        /// The step that asks, if several do
        step: Option<String>,
        #[command(flatten)]
        answer: Answer,
    },
    /// Answer a run's question with no: the step that asks fails
    Reject {
        #[arg(help = "The run: its id, or the last characters of it")]
        run: String,
        /// The step that asks, if several do
        step: Option<String>,
        #[command(flatten)]
        answer: Answer,
    },
    /// Send a signal to a run that waits for it, or will
    Signal {
        #[arg(help = "The run: its id, or the last characters of it")]
        run: String,
        /// The signal's name
        name: String,
        /// What comes with it, as JSON: the step's outputs
        #[arg(long, value_name = "JSON")]
        payload: Option<String>,
        /// Leave the run to a worker, and return at once
        #[arg(long)]
        detach: bool,
    },
    /// Work off the runs that were left to workers, until stopped
    #[command(after_help = "\
Stop it with Ctrl-C or SIGTERM: it finishes the steps it has, then leaves. A second
signal ends them; they are then tried again elsewhere.

With --store it works for everybody who uses that database, from as many machines as there are.
With --server it claims over HTTP and opens no database: what it needs is a token with the
scope `work` (sprag token new NAME --scope work). It finds the one of this user's own server on
this machine by itself.

Examples:
  sprag worker --slots 4
  sprag worker --label gpu --label linux
  sprag worker ls
  SPRAG_STORE=postgres://sprag@db.example/sprag sprag worker
  SPRAG_TOKEN=... sprag worker --server http://build.example:7717 --queue gpu")]
    #[command(args_conflicts_with_subcommands = true)]
    Worker {
        #[command(subcommand)]
        command: Option<WorkerCommand>,
        /// A queue to serve; repeat it for more
        #[arg(long = "queue", value_name = "NAME", default_value = "default")]
        queues: Vec<String>,
        /// What it has that steps may ask for with `labels`; repeat it for more
        #[arg(long = "label", value_name = "NAME")]
        labels: Vec<String>,
        /// How many steps to work on at once
        #[arg(long, value_name = "N")]
        slots: Option<usize>,
        /// What to call it
        #[arg(long)]
        name: Option<String>,
        /// Leave once nothing is left that a worker can do (exit code 4 if there never was anything)
        #[arg(long)]
        until_idle: bool,
        /// How long this process may be silent before others take its work, 5s at least
        #[arg(long, value_name = "TIME", default_value = "30s")]
        lease: String,
        /// How long a step waits for a worker before it is handed over again, and a lost host given up
        #[arg(long, value_name = "TIME", default_value = "5m")]
        dispatch_deadline: String,
        /// A NATS broker that tells workers of work and others of events, like nats://127.0.0.1:4222
        #[arg(long, value_name = "URL", env = "SPRAG_BUS", hide_env_values = true)]
        bus: Option<String>,
        /// A variable of its own environment that steps inherit, beyond the few that all do: NAME or PREFIX_*;
        /// repeat it for more
        #[arg(long = "inherit", value_name = "NAME", env = "SPRAG_INHERIT", value_delimiter = ',', value_parser = inherited)]
        inherit: Vec<String>,
        /// Work for a server elsewhere instead of the data on this machine: http://HOST:PORT
        #[arg(long, value_name = "URL", conflicts_with = "until_idle")]
        server: Option<String>,
        /// What the server wants to be shown; the steps do not see it [default: as of this user's own server]
        #[arg(long, value_name = "TOKEN", env = "SPRAG_TOKEN", hide_env_values = true)]
        token: Option<String>,
        /// With --server: take no further steps while more than this of their logs waits to be sent
        #[arg(long, value_name = "SIZE", default_value = "2GB")]
        unsent_logs: String,
    },
    /// Serve the HTTP API, and work off runs, until stopped
    #[command(after_help = "\
Every request shows a token. The server writes one to the file `token` of its data directory, which
this user's `sprag mcp --server` and `sprag worker --server` read by themselves; make others with
`sprag token new`.

Stop it with Ctrl-C or SIGTERM: it finishes the requests and steps it has. A second signal ends them.

Examples:
  sprag serve
  sprag serve --listen 0.0.0.0:7717 --no-worker
  SPRAG_STORE=postgres://sprag@db.example/sprag sprag serve --no-worker")]
    Serve(Serve),
    /// Who may call a server: make, list and remove tokens
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// Whom a server tells of what happens: add, list, remove and retry webhooks
    Hook {
        #[command(subcommand)]
        command: HookCommand,
    },
    /// Where work waits for workers: list, hold, release, limit
    Queue {
        #[command(subcommand)]
        command: QueueCommand,
    },
    /// Show the journal: everything that happened, in order
    Events {
        /// Only this run's
        #[arg(long, value_name = "RUN")]
        run: Option<String>,
        /// Only what came after this number
        #[arg(long, value_name = "SEQ", default_value_t = 0)]
        since: u64,
        /// Go on as it grows
        #[arg(long, short)]
        follow: bool,
    },
    /// Say why a run waits: for what, since when, until when, who has it
    Explain {
        #[arg(help = RUN_HELP)]
        run: Option<String>,
    },
    /// Draw the steps of a pipeline file, or of a run with their statuses
    #[command(after_help = "\
Examples:
  sprag graph ci.yaml                          in the terminal
  sprag graph                                  the newest run, with what became of its steps
  sprag graph ci.yaml --format svg > ci.svg    a picture
  sprag graph ci.yaml --format mermaid         for a README")]
    Graph {
        /// The pipeline file, or a run: its id, or the last characters of it [default: the newest run]
        #[arg(value_name = "FILE|RUN")]
        what: Option<String>,
        /// How to draw it [default: text]
        #[arg(long, value_enum)]
        format: Option<GraphFormat>,
    },
    /// Check a pipeline file without running it
    Validate {
        /// The pipeline files
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Warnings count too (exit code 1)
        #[arg(long)]
        strict: bool,
    },
    /// Print the JSON Schema of pipeline files, for editors
    Schema,
    /// Print the lifecycle tables: what every status means and what leads to it
    Lifecycle {
        /// Only this one: run, step, execution, environment, thread, gate, worker, enforcement
        entity: Option<String>,
    },
    /// Check the data directory, the database, the broker and this machine
    Doctor {
        /// A NATS broker that tells workers of work and others of events, like nats://127.0.0.1:4222
        #[arg(long, value_name = "URL", env = "SPRAG_BUS", hide_env_values = true)]
        bus: Option<String>,
    },
    /// Print a completion script for a shell
    Completion {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}
