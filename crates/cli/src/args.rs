//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

pub(crate) use crate::agent_args::AgentCommand;
pub(crate) use crate::board_args::{BoardCommand, TaskCommand};
pub(crate) use crate::rule_args::{DeliveryCommand, RuleCommand};
pub(crate) use crate::run_args::{AtServer, Group, ListOptions, LogOptions, StepArgs};
pub(crate) use crate::sub_args::{
    AccountCommand, Answer, AuditArgs, EnvCommand, HookCommand, HookFormatArg, NewHookArgs, QueueCommand,
    Serve, Shown, ThreadCommand, TokenCommand, WorkerCommand, inherited,
};
use crate::{exit, help_texts};

/// The heading of the options that every command has.
const GLOBAL: &str = "Global options";

/// Run pipelines of commands and coding agents. Every step is stored, so a run survives crashes.
#[derive(Debug, Parser)]
#[command(name = "sprag", version, after_help = exit::HELP, max_term_width = 80)]
#[command(arg_required_else_help = true, subcommand_required = true)]
pub(crate) struct Args {
    /// The data directory [env: SPRAG_DATA] [default: $XDG_DATA_HOME/sprag]
    #[arg(long, global = true, value_name = "DIR", help_heading = GLOBAL)]
    pub(crate) data: Option<PathBuf>,
    /// Store runs in PostgreSQL; the data directory then holds only logs and worktrees:
    /// postgres://USER@HOST/DATABASE
    #[arg(long, global = true, env = "SPRAG_STORE", hide_env_values = true, value_name = "URL", help_heading = GLOBAL)]
    pub(crate) store: Option<String>,
    /// A PEM file with the authorities to trust for https:// [default: those of this machine]
    #[arg(long, global = true, env = "SPRAG_TLS_CA", hide_env_values = true, value_name = "FILE", help_heading = GLOBAL)]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Print JSON (docs/cli.md has the shape of each command)
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,
    /// Never ask questions on the terminal
    #[arg(long, global = true, env = "SPRAG_NO_INPUT", hide_env_values = true, value_parser = clap::builder::FalseyValueParser::new(), help_heading = GLOBAL)]
    pub(crate) no_input: bool,
    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t = Colour::Auto, value_name = "WHEN", help_heading = GLOBAL)]
    pub(crate) color: Colour,
    /// Log more to stderr
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = GLOBAL)]
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

/// A run, by its id, a part of it, or the name of a board.
const RUN_HELP: &str = "The run: its id, the start or end of it, its name, or a board [default: the newest]";
/// A run that must be named.
const THE_RUN_HELP: &str = "The run: its id, the start or end of it, its name, or a board";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write a first pipeline for this folder
    #[command(after_help = help_texts::INIT)]
    Init {
        /// The pipeline's name [default: ci, or feature with --agents]
        name: Option<String>,
        /// Replace an existing file
        #[arg(long)]
        force: bool,
        /// Print it instead of writing the file
        #[arg(long, visible_alias = "dry")]
        stdout: bool,
        /// Write a pipeline of coding agents: plan, work, review, approve, land
        #[arg(long)]
        agents: bool,
    },
    /// Have an agent do one task in a worktree, then ask to land it
    #[command(after_help = help_texts::DO)]
    Do {
        /// The task
        task: String,
        /// The agent; several with commas do the same task, and you pick one result
        #[arg(long = "use", value_name = "AGENT", default_value = "claude")]
        agent: String,
        /// The command that must succeed
        #[arg(long, value_name = "COMMAND")]
        check: Option<String>,
        /// Land without asking
        #[arg(long, short)]
        yes: bool,
        /// Replace the agent by the fake one, which costs nothing and makes a small commit
        #[arg(long, value_name = "fake", value_parser = ["fake"])]
        agents: Option<String>,
    },
    /// Run a pipeline and watch it
    #[command(after_help = help_texts::RUN)]
    Run {
        /// The pipeline: a file, the name of one in .sprag/pipelines, or `-` for stdin
        #[arg(value_name = "NAME|FILE")]
        file: Option<PathBuf>,
        /// The value of an input; repeat it for more
        #[arg(long = "input", short = 'i', value_name = "KEY=VALUE")]
        pairs: Vec<String>,
        /// All inputs at once: a JSON file, `-` for stdin, or JSON itself
        #[arg(long, value_name = "FILE|JSON")]
        inputs: Option<String>,
        /// Show what would run, in which order, without running it
        #[arg(long, visible_alias = "dry-run", conflicts_with = "detach")]
        dry: bool,
        /// Leave the run to a worker and return at once
        #[arg(long)]
        detach: bool,
        /// The same key never starts a second run
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
        /// A name for the run, to find it again
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// A label of the run, to find it again; repeat it for more
        #[arg(long = "label", value_name = "KEY=VALUE")]
        labels: Vec<String>,
        /// A number added to the priority of its steps
        #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
        priority: i32,
        #[command(flatten)]
        steps: StepArgs,
        /// How many steps to run at once
        #[arg(long, value_name = "N")]
        slots: Option<usize>,
        /// How long this process may miss heartbeats before others take its work, at least 5s
        #[arg(long, value_name = "TIME", default_value = "30s")]
        lease: String,
        /// A NATS broker that notifies workers of work and publishes events, like nats://127.0.0.1:4222
        #[arg(long, value_name = "URL", env = "SPRAG_BUS", hide_env_values = true)]
        bus: Option<String>,
        /// Replace every agent by the fake one, which costs nothing and makes a small commit
        #[arg(long, value_name = "fake", value_parser = ["fake"], conflicts_with = "server")]
        agents: Option<String>,
        #[command(flatten)]
        at: AtServer,
    },
    /// List runs, newest first
    #[command(after_help = help_texts::LS)]
    Ls {
        #[command(flatten)]
        options: ListOptions,
        #[command(flatten)]
        at: AtServer,
    },
    /// Show a run and its steps
    #[command(after_help = help_texts::STATUS)]
    Status {
        #[arg(help = RUN_HELP)]
        run: Option<String>,
        #[command(flatten)]
        at: AtServer,
    },
    /// Show what steps printed
    #[command(after_help = help_texts::LOGS)]
    Logs {
        #[arg(help = RUN_HELP)]
        run: Option<String>,
        /// Only this step
        step: Option<String>,
        #[command(flatten)]
        options: LogOptions,
        #[command(flatten)]
        at: AtServer,
    },
    /// Watch a run, or all live runs
    #[command(after_help = help_texts::WATCH)]
    Watch {
        #[arg(
            help = "The run: its id, the start or end of it, its name, or a board [default: all live runs]"
        )]
        run: Option<String>,
        #[command(flatten)]
        at: AtServer,
    },
    /// List open questions of all runs
    #[command(after_help = help_texts::QUESTIONS)]
    Questions {
        #[command(flatten)]
        at: AtServer,
    },
    /// Wait until a run has ended; its outcome is the exit code
    #[command(after_help = help_texts::WAIT)]
    Wait {
        #[arg(help = RUN_HELP)]
        run: Option<String>,
        /// Stop waiting after this time (exit code 124), like 90s or 5m
        #[arg(long, value_name = "TIME")]
        timeout: Option<String>,
        #[command(flatten)]
        at: AtServer,
    },
    /// Cancel a run: stop its running steps and skip the rest
    #[command(after_help = help_texts::CANCEL)]
    Cancel {
        #[arg(help = THE_RUN_HELP)]
        run: String,
        #[command(flatten)]
        at: AtServer,
    },
    /// Retry the failed steps, or one step and all that follow it
    #[command(after_help = help_texts::RETRY)]
    Retry {
        #[arg(help = RUN_HELP)]
        run: Option<String>,
        /// Continue from this step
        #[arg(long, value_name = "STEP")]
        step: Option<String>,
        /// Start the next try of the step now: it waits for the delay before it
        #[arg(long, requires = "step")]
        now: bool,
        /// Leave the run to a worker and return at once
        #[arg(long)]
        detach: bool,
        #[command(flatten)]
        at: AtServer,
    },
    /// Skip a step of a live run: the steps that need it continue
    #[command(after_help = help_texts::SKIP)]
    Skip {
        #[arg(help = THE_RUN_HELP)]
        run: String,
        /// The step, or an item of a fan-out like `each[3]`
        step: String,
        /// Leave the run to a worker and return at once
        #[arg(long)]
        detach: bool,
        #[command(flatten)]
        at: AtServer,
    },
    /// Continue a run that failed, was cancelled, or whose process died
    #[command(after_help = help_texts::RESUME)]
    Resume {
        #[arg(help = RUN_HELP)]
        run: Option<String>,
        /// Leave the run to a worker and return at once
        #[arg(long)]
        detach: bool,
        #[command(flatten)]
        at: AtServer,
    },
    /// Go back to a step: it and everything after it run again
    #[command(after_help = help_texts::REWIND)]
    Rewind {
        #[arg(help = RUN_HELP)]
        run: Option<String>,
        /// The step to go back to
        #[arg(long, value_name = "STEP")]
        to: String,
        /// Leave the run to a worker and return at once
        #[arg(long)]
        detach: bool,
        #[command(flatten)]
        at: AtServer,
    },
    /// Start a new run from a finished step of another run
    #[command(after_help = help_texts::FORK)]
    Fork {
        #[arg(help = RUN_HELP)]
        run: Option<String>,
        /// The finished step to start after
        #[arg(long, value_name = "STEP")]
        from: String,
        /// Leave the run to a worker and return at once
        #[arg(long)]
        detach: bool,
        /// The same key never starts a second run
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
        #[command(flatten)]
        at: AtServer,
    },
    /// Manage boards: tasks for several agents and people
    #[command(after_help = help_texts::BOARD)]
    Board(Group<BoardCommand>),
    /// Serve an agent over stdio, by the Model Context Protocol
    #[command(after_help = help_texts::MCP)]
    Mcp {
        /// Forward everything to this server, like http://127.0.0.1:7717
        #[arg(long, env = "SPRAG_SERVER", hide_env_values = true, value_name = "URL")]
        server: Option<String>,
        /// The token for the server [default: that of this user's own server on this machine]
        #[arg(long, env = "SPRAG_TOKEN", value_name = "TOKEN", hide_env_values = true)]
        token: Option<String>,
        /// Offer the tools of the step whose agent started this program
        #[arg(long, hide = true)]
        step: bool,
    },
    /// Claim and report tasks: work that agents, scripts and people do
    #[command(after_help = help_texts::TASK)]
    Task(Group<TaskCommand>),
    /// Manage worktrees of runs
    #[command(after_help = help_texts::ENV)]
    Env {
        #[command(subcommand)]
        command: EnvCommand,
    },
    /// Delete runs that ended long ago, with their logs and files
    #[command(after_help = help_texts::GC)]
    Gc {
        /// How long ended runs are kept
        #[arg(long, value_name = "AGE")]
        keep: String,
        /// Only print what would be deleted
        #[arg(long)]
        dry_run: bool,
    },
    /// Show what a run's steps changed in its worktree, as a patch
    #[command(after_help = help_texts::DIFF)]
    Diff {
        #[arg(help = RUN_HELP)]
        run: Option<String>,
        /// A step, an attempt at it (STEP@2), or two of them with `..` between them
        steps: Option<String>,
        /// List the changed files with the number of changed lines
        #[arg(long)]
        stat: bool,
        /// Never use a pager
        #[arg(long)]
        no_pager: bool,
        #[command(flatten)]
        at: AtServer,
    },
    /// Answer a run's question with yes: the run continues
    #[command(after_help = help_texts::APPROVE)]
    #[command(visible_alias = "answer")]
    Approve {
        #[arg(help = THE_RUN_HELP)]
        run: String,
        /// The step that asks, if several do
        step: Option<String>,
        #[command(flatten)]
        answer: Answer,
        #[command(flatten)]
        at: AtServer,
    },
    /// Answer a run's question with no: the step that asks fails
    #[command(after_help = help_texts::REJECT)]
    Reject {
        #[arg(help = THE_RUN_HELP)]
        run: String,
        /// The step that asks, if several do
        step: Option<String>,
        #[command(flatten)]
        answer: Answer,
        #[command(flatten)]
        at: AtServer,
    },
    /// Send a signal to a run that waits for it, or will
    #[command(after_help = help_texts::SIGNAL)]
    Signal {
        #[arg(help = THE_RUN_HELP)]
        run: String,
        /// The signal's name
        name: String,
        /// The data of the signal as JSON: the outputs of the step that receives it
        #[arg(long, value_name = "JSON")]
        payload: Option<String>,
        /// Leave the run to a worker and return at once
        #[arg(long)]
        detach: bool,
        #[command(flatten)]
        at: AtServer,
    },
    /// Run a worker for detached runs
    #[command(after_help = help_texts::WORKER)]
    #[command(args_conflicts_with_subcommands = true)]
    Worker {
        #[command(subcommand)]
        command: Option<WorkerCommand>,
        /// A queue to serve; repeat it for more
        #[arg(long = "queue", value_name = "NAME", default_value = "default")]
        queues: Vec<String>,
        /// A label that steps may ask for with `labels`; repeat it for more
        #[arg(long = "label", value_name = "NAME")]
        labels: Vec<String>,
        /// How many steps to run at once
        #[arg(long, value_name = "N")]
        slots: Option<usize>,
        /// The worker's name
        #[arg(long)]
        name: Option<String>,
        /// Stop when no work is left for a worker (exit code 4 if there was none at all)
        #[arg(long)]
        until_idle: bool,
        /// How long this process may miss heartbeats before others take its work, at least 5s
        #[arg(long, value_name = "TIME", default_value = "30s")]
        lease: String,
        /// How long a step waits for a worker before it is scheduled again, and a lost host is given up
        #[arg(long, value_name = "TIME", default_value = "5m")]
        dispatch_deadline: String,
        /// A NATS broker that notifies workers of work and publishes events, like nats://127.0.0.1:4222
        #[arg(long, value_name = "URL", env = "SPRAG_BUS", hide_env_values = true)]
        bus: Option<String>,
        /// A variable of its environment that steps inherit besides the usual few: NAME or PREFIX_*; repeat it for
        /// more
        #[arg(long = "inherit", value_name = "NAME", env = "SPRAG_INHERIT", hide_env_values = true, value_delimiter = ',', value_parser = inherited)]
        inherit: Vec<String>,
        /// Work for this server instead of the data directory: http://HOST:PORT
        #[arg(long, value_name = "URL", conflicts_with = "until_idle")]
        server: Option<String>,
        /// The token for the server; steps do not see it [default: that of this user's own server]
        #[arg(long, value_name = "TOKEN", env = "SPRAG_TOKEN", hide_env_values = true)]
        token: Option<String>,
        /// With --server: claim no further steps while more than this of their logs is unsent
        #[arg(long, value_name = "SIZE", default_value = "2GB")]
        unsent_logs: String,
    },
    /// Serve the HTTP API and execute runs
    #[command(after_help = help_texts::SERVE)]
    Serve(Serve),
    /// Manage access tokens of a server
    #[command(after_help = help_texts::TOKEN)]
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// Manage webhooks
    #[command(after_help = help_texts::HOOK)]
    Hook {
        #[command(subcommand)]
        command: HookCommand,
    },
    /// Manage rules: what starts runs by itself
    #[command(after_help = help_texts::RULE)]
    Rule(Group<RuleCommand>),
    /// Look at the events that reached rules, and replay them
    #[command(after_help = help_texts::DELIVERY)]
    Delivery(Group<DeliveryCommand>),
    /// Manage queues: list, hold, release, limit
    #[command(after_help = help_texts::QUEUE)]
    Queue(Group<QueueCommand>),
    /// Manage accounts of coding agents: list, hold, release
    #[command(after_help = help_texts::ACCOUNT)]
    Account(Group<AccountCommand>),
    /// Show who did what: runs, answers, landings, tokens, webhooks
    #[command(after_help = help_texts::AUDIT)]
    Audit(AuditArgs),
    /// Talk to the agents of steps that have ended
    #[command(after_help = help_texts::THREAD)]
    Thread(Group<ThreadCommand>),
    /// Show the journal: everything that happened, in order
    #[command(after_help = help_texts::EVENTS)]
    Events {
        /// Only entries of this run
        #[arg(long, value_name = "RUN")]
        run: Option<String>,
        /// Only entries after this number
        #[arg(long, value_name = "SEQ", default_value_t = 0)]
        since: u64,
        /// Continue as it grows
        #[arg(long, short)]
        follow: bool,
        /// Start with the last N entries
        #[arg(long, value_name = "N", conflicts_with = "since")]
        tail: Option<usize>,
        #[command(flatten)]
        at: AtServer,
    },
    /// Explain why a run waits or failed, or why a rule does not fire
    #[command(after_help = help_texts::EXPLAIN)]
    Explain {
        #[arg(help = RUN_HELP)]
        run: Option<String>,
        #[command(flatten)]
        at: AtServer,
    },
    /// Draw the steps of a pipeline file, or of a run with their statuses
    #[command(after_help = help_texts::GRAPH)]
    Graph {
        /// The pipeline (a file, or a name in .sprag/pipelines) or a run [default: the newest run]
        #[arg(value_name = "FILE|RUN")]
        what: Option<String>,
        /// How to draw it [default: text]
        #[arg(long, value_enum)]
        format: Option<GraphFormat>,
        #[command(flatten)]
        at: AtServer,
    },
    /// Check pipeline files without running them
    #[command(after_help = help_texts::VALIDATE)]
    Validate {
        /// The pipelines: files, or names in .sprag/pipelines
        #[arg(required = true, value_name = "NAME|FILE")]
        files: Vec<PathBuf>,
        /// Treat warnings as errors (exit code 2)
        #[arg(long)]
        strict: bool,
    },
    /// Print the JSON Schema of pipeline files, for editors
    #[command(after_help = help_texts::SCHEMA)]
    Schema,
    /// Print the lifecycle tables: each status and what leads to it
    #[command(after_help = help_texts::LIFECYCLE)]
    Lifecycle {
        /// Only this one: run, step, execution, environment, thread, gate, worker, rule, enforcement
        entity: Option<String>,
    },
    /// Let the agents.toml of this repository count, as it is now
    #[command(after_help = help_texts::TRUST)]
    Trust {
        /// Trust it no longer
        #[arg(long)]
        remove: bool,
    },
    /// Check the data directory, the database and this machine
    #[command(after_help = help_texts::DOCTOR)]
    Doctor {
        /// A NATS broker that notifies workers of work and publishes events, like nats://127.0.0.1:4222
        #[arg(long, value_name = "URL", env = "SPRAG_BUS", hide_env_values = true)]
        bus: Option<String>,
    },
    /// Print a completion script for a shell
    #[command(after_help = help_texts::COMPLETION)]
    Completion {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write man pages and completion scripts as files
    #[command(after_help = help_texts::MANUAL)]
    Manual {
        /// The folder: man/man1, bash-completion/completions, zsh/site-functions and fish/vendor_completions.d are
        /// made below it
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Show the configuration and where it comes from
    #[command(after_help = help_texts::CONFIG)]
    Config,
    /// Play a fake coding agent, for tests and demonstrations
    #[command(after_help = help_texts::AGENT)]
    Agent {
        #[command(subcommand)]
        command: AgentCommand,
    },
}
