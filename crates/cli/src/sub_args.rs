//! Arguments below the first level: the options of `serve`, and the subcommands for tokens, hooks, queues, workers and
//! environments.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

use crate::run_args::AtServer;

/// The options of a server.
#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7717")]
    pub(crate) listen: std::net::SocketAddr,
    /// A PEM file with the certificate for https, and those of its authorities; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// A PEM file with the certificate's private key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// A further address, which takes signed webhooks at /in/PIPELINE/RULE and answers nothing else
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) in_listen: Option<std::net::SocketAddr>,
    /// The credentials that a request needs
    #[arg(long, value_enum, default_value_t = Shown::Token, value_name = "WHAT")]
    pub(crate) auth: Shown,
    /// A further host name of the server; repeat it for more
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,
    /// The folder whose .sprag/pipelines can be named, and in which runs work
    #[arg(long, value_name = "DIR")]
    pub(crate) project: Option<PathBuf>,
    /// Apply the rules of the project's pipelines at the start
    #[arg(long, requires = "project")]
    pub(crate) apply_rules: bool,
    /// Show the dashboard in a browser, signed in
    #[arg(long)]
    pub(crate) open: bool,
    /// Execute no steps here: leave them to workers
    #[arg(long)]
    pub(crate) no_worker: bool,
    /// A queue to serve; repeat it for more
    #[arg(long = "queue", value_name = "NAME", default_value = "default")]
    pub(crate) queues: Vec<String>,
    /// A label that steps may ask for with `labels`; repeat it for more
    #[arg(long = "label", value_name = "NAME")]
    pub(crate) labels: Vec<String>,
    /// A variable of its environment that steps inherit besides the usual few: NAME or PREFIX_*; repeat it for more
    #[arg(long = "inherit", value_name = "NAME", env = "SPRAG_INHERIT", hide_env_values = true, value_delimiter = ',', value_parser = inherited)]
    pub(crate) inherit: Vec<String>,
    /// A NATS broker that notifies workers of work and publishes events, like nats://127.0.0.1:4222
    #[arg(long, value_name = "URL", env = "SPRAG_BUS", hide_env_values = true)]
    pub(crate) bus: Option<String>,
    /// How many steps to run at once
    #[arg(long, value_name = "N")]
    pub(crate) slots: Option<usize>,
    /// How many requests a second each caller may send [default: 1000 for each token]
    #[arg(long, value_name = "N")]
    pub(crate) rate_limit: Option<u32>,
    /// How many bytes a request's body may have
    #[arg(long, value_name = "N", default_value_t = 2 << 20)]
    pub(crate) body_limit: usize,
    /// How many connections there may be at once; one token, or one address, gets half of them
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub(crate) connections: usize,
    /// How long a client may send nothing, or not read its answer
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) idle_timeout: String,
    /// Log as JSON, one object per line
    #[arg(long)]
    pub(crate) log_json: bool,
    /// How many times a webhook is tried in a row before it is parked
    #[arg(long, value_name = "N", default_value_t = 12)]
    pub(crate) hook_tries: u32,
    /// Let webhooks be sent to addresses of private networks (10.0.0.0/8, fc00::/7 and the like)
    #[arg(long)]
    pub(crate) allow_private_hooks: bool,
    /// How long this process may miss heartbeats before others take its work, at least 5s
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) lease: String,
    /// How long a step waits for a worker before it is scheduled again, and a lost host is given up
    #[arg(long, value_name = "TIME", default_value = "5m")]
    pub(crate) dispatch_deadline: String,
}

/// The name of a variable that steps inherit.
pub(crate) fn inherited(name: &str) -> Result<String, String> {
    let name = name.trim();
    if sprag_process::is_credential(name.as_ref()) {
        Err("no step sees what Sprag shows its server, its database or its broker".into())
    } else if name.is_empty() {
        Err("name a variable, such as AWS_PROFILE or AWS_*".into())
    } else {
        Ok(name.to_owned())
    }
}

/// The credentials that a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shown {
    /// A token: the one in the data directory, or one of `sprag token new`
    #[value(alias = "always")]
    Token,
    /// Nothing: every user of this machine may do everything
    None,
}

/// The acts that `sprag audit` shows.
#[derive(Debug, clap::Args)]
pub(crate) struct AuditArgs {
    /// Only acts of this author: user:NAME, token:NAME, agent:NAME, rule:NAME, or the name alone
    #[arg(long, value_name = "WHO")]
    pub(crate) by: Option<String>,
    /// Only acts of this kind, like run.created, gate, landed or token
    #[arg(long, value_name = "ACT")]
    pub(crate) act: Option<String>,
    /// Only acts on this run
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Only acts since this time: 2d ago, or 2026-01-31T10:00:00Z
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// The most acts to show, newest first
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) limit: usize,
    #[command(flatten)]
    pub(crate) at: AtServer,
}

/// The subcommands for tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a token: it is shown once
    #[command(visible_alias = "add")]
    New {
        /// Its name
        name: String,
        /// Its scope: read, run, work or admin; repeat it for more
        #[arg(long = "scope", value_name = "SCOPE", default_value = "read")]
        scopes: Vec<String>,
        /// When it expires, like 90d or 12h [default: never]
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
        /// Only runs of pipelines, and boards, with such a name, like 'deploy-*'; repeat it for more
        #[arg(long = "pipeline", value_name = "PATTERN")]
        pipelines: Vec<String>,
        /// Only this queue, and runs whose steps wait in no other; repeat it for more
        #[arg(long = "queue", value_name = "PATTERN")]
        queues: Vec<String>,
        /// Only runs with this label; repeat it for more
        #[arg(long = "label", value_name = "KEY=VALUE")]
        labels: Vec<String>,
        /// Only workers and environments on this host; repeat it for more
        #[arg(long = "host", value_name = "PATTERN")]
        hosts: Vec<String>,
    },
    /// Give a token a new secret, which is shown once: both are valid until the overlap ends
    Rotate {
        /// Its name or number
        token: String,
        /// How long the old secret stays valid, like 10m or 1h
        #[arg(long, value_name = "TIME", default_value = "10m")]
        overlap: String,
    },
    /// List the tokens, without their secrets
    Ls,
    /// Remove a token with all its secrets: requests that show it are refused
    Rm {
        /// Its name or number
        token: String,
    },
}

/// The subcommands for webhooks.
#[derive(Debug, Subcommand)]
pub(crate) enum HookCommand {
    /// Notify a URL, or a command, of events: its secret is shown once
    #[command(after_help = "\
A running `sprag serve` sends the messages, in order and at least once. docs/api.md
describes the formats and their signatures.

Examples:
  sprag hook add http://127.0.0.1:9000/sprag --event run.succeeded
  sprag hook add http://127.0.0.1:9000/chat --format slack --status failed
  sprag hook add --run 'jq -r .events[].id | mail -s failed ada' --status failed
  sprag hook add http://127.0.0.1:9000/ --pipeline ci --label team=web \\
    --template '{{ run.pipeline }} is {{ event.to }}'")]
    Add(Box<NewHookArgs>),
    /// List webhooks, the last entry sent to each, and which are parked
    Ls,
    /// Remove a webhook
    Rm {
        /// Its number
        id: String,
    },
    /// Try a parked webhook again, from where it was
    Retry {
        /// Its number [default: all that are parked]
        id: Option<String>,
    },
    /// Send a test message at once; nothing else about the webhook changes
    Test {
        /// Its number
        id: String,
    },
}

/// The options of a new webhook.
#[derive(Debug, clap::Args)]
pub(crate) struct NewHookArgs {
    /// Where to POST: https://HOST/PATH, or http://HOST:PORT/PATH
    #[arg(required_unless_present = "run")]
    pub(crate) url: Option<String>,
    /// Run this command instead, with the message on its stdin; exit code 0 accepts it
    #[arg(long, value_name = "COMMAND", conflicts_with = "url")]
    pub(crate) run: Option<String>,
    /// The form of messages [default: json]
    #[arg(long, value_enum)]
    pub(crate) format: Option<HookFormatArg>,
    /// The text of each message, with values like {{ run.pipeline }}, {{ event.to }} and {{ failures }}
    #[arg(long, value_name = "TEXT")]
    pub(crate) template: Option<String>,
    /// The secret that signs messages, at least 16 bytes [default: random]
    #[arg(long, env = "SPRAG_HOOK_SECRET", hide_env_values = true)]
    pub(crate) secret: Option<String>,
    /// Only events of this run
    #[arg(long = "of", value_name = "RUN")]
    pub(crate) of_run: Option<String>,
    /// Only events of runs of this pipeline; repeat it for more
    #[arg(long = "pipeline", value_name = "NAME")]
    pub(crate) pipelines: Vec<String>,
    /// Only when a run gets this status, such as failed; repeat it for more
    #[arg(long = "status", value_name = "STATUS")]
    pub(crate) statuses: Vec<String>,
    /// Only events of runs with this label; repeat it for more
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub(crate) labels: Vec<String>,
    /// Only events of this kind of entity, such as run; repeat it for more
    #[arg(long = "entity", value_name = "ENTITY")]
    pub(crate) entities: Vec<String>,
    /// Only this event, such as run.succeeded; repeat it for more
    #[arg(long = "event", value_name = "EVENT")]
    pub(crate) events: Vec<String>,
    /// Start after this entry of the journal [default: from now on]
    #[arg(long, value_name = "SEQ")]
    pub(crate) since: Option<u64>,
}

/// The form of a webhook's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum HookFormatArg {
    /// All events and their runs
    Json,
    /// A text for Slack, Mattermost and others
    Slack,
    /// As standard-webhooks describes it
    Standard,
    /// The text of --template
    Template,
}

/// The subcommands for workers.
#[derive(Debug, Subcommand)]
pub(crate) enum WorkerCommand {
    /// List workers, their queues, their labels and what they execute
    Ls {
        #[command(flatten)]
        at: AtServer,
    },
}

/// The subcommands for queues.
#[derive(Debug, Subcommand)]
pub(crate) enum QueueCommand {
    /// List queues: what waits, what is running, and which workers serve them
    Ls,
    /// Hold a queue: workers get nothing of it until it is released
    Hold {
        /// The queue
        queue: String,
    },
    /// Release a queue
    Release {
        /// The queue
        queue: String,
    },
    /// Limit how many steps of a queue may run at once
    Limit {
        /// The queue
        queue: String,
        /// The number, or `none`
        limit: String,
    },
}

/// The subcommands for accounts.
#[derive(Debug, Subcommand)]
pub(crate) enum AccountCommand {
    /// List accounts: which are held and until when, what is running, what waits
    Ls,
    /// Hold an account: no further step uses it until the hold ends
    Hold {
        /// The account
        account: String,
        /// The length of the hold, such as 2h [default: until it is released]
        #[arg(long = "for", value_name = "TIME")]
        time: Option<String>,
        /// The reason, which `explain` shows
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Release an account: its steps start again
    Release {
        /// The account
        account: String,
    },
}

/// The subcommands for threads.
#[derive(Debug, Subcommand)]
pub(crate) enum ThreadCommand {
    /// List threads: the conversations of agent steps
    Ls {
        /// Only threads of this run
        #[arg(long, value_name = "RUN")]
        run: Option<String>,
    },
    /// Show a thread, and the runs in which people talked to it
    Show {
        /// The thread: RUN/STEP
        thread: String,
    },
    /// Send a message to the agent of a step that has ended, and show its answer
    Send {
        /// The thread: RUN/STEP
        thread: String,
        /// The message
        message: String,
        /// Leave it to a worker and return at once
        #[arg(long, short)]
        detach: bool,
    },
    /// Stop an agent that answers a message
    Stop {
        /// The thread: RUN/STEP
        thread: String,
    },
    /// Show the transcript: prompts, texts, tool calls and results, in order
    Log {
        /// The thread: RUN/STEP
        thread: String,
        /// Continue until the thread is idle and its run has ended
        #[arg(long, short)]
        follow: bool,
        /// Show all events as JSON, one per line
        #[arg(long)]
        raw: bool,
    },
    /// Archive a thread: it takes no further messages, and lists leave it out
    Archive {
        /// The thread: RUN/STEP
        thread: String,
    },
    /// Remove a thread: stop its agent, and take no further messages
    Rm {
        /// The thread: RUN/STEP
        thread: String,
    },
}

/// A person's answer.
#[derive(Debug, clap::Args)]
pub(crate) struct Answer {
    /// The choice [default: the first to approve, the last to reject]
    #[arg(long, value_name = "CHOICE")]
    pub(crate) choice: Option<String>,
    /// A comment; a step that is sent back reads it
    #[arg(long, value_name = "TEXT")]
    pub(crate) comment: Option<String>,
    /// The value of a field of the question; may be repeated
    #[arg(long = "field", value_name = "NAME=VALUE")]
    pub(crate) fields: Vec<String>,
    /// Leave the run to a worker and return at once
    #[arg(long)]
    pub(crate) detach: bool,
}

/// The subcommands for environments.
#[derive(Debug, Subcommand)]
pub(crate) enum EnvCommand {
    /// List worktrees, and why each still exists
    Ls,
    /// Show the worktrees of a run
    Show {
        #[arg(help = "The run: its id, or the first or last characters of it")]
        run: String,
    },
    /// Remove the worktrees of a run that has ended; uncommitted work is saved first
    Rm {
        #[arg(help = "The run: its id, or the first or last characters of it")]
        run: String,
    },
    /// Remove all that no run needs: worktrees of ended runs, pooled ones, merged branches, old checkpoints
    Gc {
        /// Only print what would be removed
        #[arg(long)]
        dry_run: bool,
        /// Delete checkpoints, and saved work that a branch holds, of runs that ended longer ago than this
        #[arg(long, value_name = "AGE", default_value = "14d")]
        older_than: String,
        /// Also delete saved work of such runs that no branch holds
        #[arg(long)]
        salvage: bool,
    },
}
