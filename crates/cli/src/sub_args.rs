//! What follows a command: the options of `serve`, and what can be done with tokens, hooks, queues, workers and environments.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

/// How a server is to behave.
#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7717")]
    pub(crate) listen: std::net::SocketAddr,
    /// What a request must show
    #[arg(long, value_enum, default_value_t = Shown::Token, value_name = "WHAT")]
    pub(crate) auth: Shown,
    /// A further name by which the server may be called; repeat it for more
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,
    /// The folder whose .sprag/pipelines can be named, and where runs work
    #[arg(long, value_name = "DIR")]
    pub(crate) project: Option<PathBuf>,
    /// Do no steps here: leave them to workers
    #[arg(long)]
    pub(crate) no_worker: bool,
    /// A queue to serve; repeat it for more
    #[arg(long = "queue", value_name = "NAME", default_value = "default")]
    pub(crate) queues: Vec<String>,
    /// What it has that steps may ask for with `labels`; repeat it for more
    #[arg(long = "label", value_name = "NAME")]
    pub(crate) labels: Vec<String>,
    /// A variable of its own environment that steps inherit, beyond the few that all do: NAME or PREFIX_*;
    /// repeat it for more
    #[arg(long = "inherit", value_name = "NAME", env = "SPRAG_INHERIT", value_delimiter = ',', value_parser = inherited)]
    pub(crate) inherit: Vec<String>,
    /// A NATS broker that tells workers of work and others of events, like nats://127.0.0.1:4222
    #[arg(long, value_name = "URL", env = "SPRAG_BUS", hide_env_values = true)]
    pub(crate) bus: Option<String>,
    /// How many steps to work on at once
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
    /// How long a client may keep silent, or not read what it asked for
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) idle_timeout: String,
    /// Log as JSON, one object a line
    #[arg(long)]
    pub(crate) log_json: bool,
    /// How often a webhook is tried in a row before it is parked
    #[arg(long, value_name = "N", default_value_t = 12)]
    pub(crate) hook_tries: u32,
    /// Let webhooks be sent to addresses of private networks (10.0.0.0/8, fc00::/7 and the like)
    #[arg(long)]
    pub(crate) allow_private_hooks: bool,
    /// How long this process may be silent before others take its work, 5s at least
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) lease: String,
    /// How long a step waits for a worker before it is handed over again, and a lost host given up
    #[arg(long, value_name = "TIME", default_value = "5m")]
    pub(crate) dispatch_deadline: String,
}

/// The name of a variable that steps inherit.
pub(crate) fn inherited(name: &str) -> Result<String, String> {
    let name = name.trim();
    match sprag_process::is_credential(name.as_ref()) {
        true => Err("no step sees what Sprag shows its server, its database or its broker".into()),
        false if name.is_empty() => Err("name a variable, such as AWS_PROFILE or AWS_*".into()),
        false => Ok(name.to_owned()),
    }
}

/// What a request must show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shown {
    /// A token: the one in the data directory, or one of `sprag token new`
    #[value(alias = "always")]
    Token,
    /// Nothing: every user of this machine may do everything
    None,
}

/// What can be done with tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token: it is shown once
    New {
        /// What to call it
        name: String,
        /// What it may do: read, run, work, admin; repeat it for more
        #[arg(long = "scope", value_name = "SCOPE", default_value = "read")]
        scopes: Vec<String>,
        /// When it ends, like 90d or 12h [default: never]
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
    },
    /// List the tokens, without their secrets
    Ls,
    /// Remove a token: whoever has it is not let in any more
    Rm {
        /// Its name or number
        token: String,
    },
}

/// What can be done with webhooks.
#[derive(Debug, Subcommand)]
pub(crate) enum HookCommand {
    /// Have a URL told of what happens: its secret is shown once
    #[command(after_help = "\
Each message is a POST of {\"hook\": ID, \"events\": [...]} with the headers sprag-event-id,
sprag-timestamp and sprag-signature: v1=HEX, the HMAC-SHA256 with the secret of the timestamp,
a dot and the body. A running `sprag serve` sends them, in order and at least once.")]
    Add {
        /// Where to POST: http://HOST:PORT/PATH
        url: String,
        /// What to sign with, 16 bytes at least [default: drawn]
        #[arg(long, env = "SPRAG_HOOK_SECRET", hide_env_values = true)]
        secret: Option<String>,
        /// Only this run's
        #[arg(long, value_name = "RUN")]
        run: Option<String>,
        /// Only those on this kind of thing, such as run; repeat it for more
        #[arg(long = "entity", value_name = "ENTITY")]
        entities: Vec<String>,
        /// Only this event, such as run.succeeded; repeat it for more
        #[arg(long = "event", value_name = "EVENT")]
        events: Vec<String>,
        /// Begin after this entry of the journal [default: from now on]
        #[arg(long, value_name = "SEQ")]
        since: Option<u64>,
    },
    /// List webhooks, how far each has been told, and which are parked
    Ls,
    /// Remove a webhook
    Rm {
        /// Its number
        id: String,
    },
    /// Try a parked webhook again, from where it was
    Retry {
        /// Its number
        id: String,
    },
}

/// What can be done with workers.
#[derive(Debug, Subcommand)]
pub(crate) enum WorkerCommand {
    /// List the workers that are there: what they serve, what they have, what they do
    Ls,
}

/// What can be done with queues.
#[derive(Debug, Subcommand)]
pub(crate) enum QueueCommand {
    /// List queues: what waits in them, what is out, who serves them
    Ls,
    /// Hold a queue: nothing of it is handed over until it is released
    Hold {
        /// The queue
        queue: String,
    },
    /// Release a queue
    Release {
        /// The queue
        queue: String,
    },
    /// Limit how much of a queue may be out at once
    Limit {
        /// The queue
        queue: String,
        /// So much, or `none`
        limit: String,
    },
}

/// A person's answer.
#[derive(Debug, clap::Args)]
pub(crate) struct Answer {
    /// Which of the choices [default: the first to approve, the last to reject]
    #[arg(long, value_name = "CHOICE")]
    pub(crate) choice: Option<String>,
    /// What else to say; a step that is sent back reads it
    #[arg(long, value_name = "TEXT")]
    pub(crate) comment: Option<String>,
    /// Leave the run to a worker, and return at once
    #[arg(long)]
    pub(crate) detach: bool,
}

/// What can be done with environments.
#[derive(Debug, Subcommand)]
pub(crate) enum EnvCommand {
    /// List them, and why each is still there
    Ls,
    /// Show those of a run
    Show {
        #[arg(help = "The run: its id, or the last characters of it")]
        run: String,
    },
    /// Remove those of a run that has ended; work that is not committed is saved first
    Rm {
        #[arg(help = "The run: its id, or the last characters of it")]
        run: String,
    },
    /// Remove all that no run needs: worktrees of ended runs, ready ones, merged branches, old recorded states
    Gc {
        /// Only tell what would go
        #[arg(long)]
        dry_run: bool,
        /// Forget recorded states, and saved work that a branch holds, of runs that ended longer ago than this
        #[arg(long, value_name = "AGE", default_value = "14d")]
        older_than: String,
        /// Also delete saved work of such runs that no branch holds
        #[arg(long)]
        salvage: bool,
    },
}
