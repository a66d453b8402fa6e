//! The options of commands about runs: which runs, which steps, which part of the logs, on which server.

/// Which runs to list.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ListOptions {
    /// Only runs in this status; repeat it for more
    #[arg(long, value_name = "STATUS")]
    pub(crate) status: Vec<String>,
    /// Only runs that wait: for anything, or for a person, a task, a signal, a worker, an account, a group or a time
    #[arg(long, value_name = "FOR", num_args = 0..=1, require_equals = true, default_missing_value = "any")]
    pub(crate) waiting: Option<String>,
    /// Only runs with this label; repeat it for more
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub(crate) labels: Vec<String>,
    /// Only runs of this pipeline
    #[arg(long, value_name = "PIPELINE")]
    pub(crate) pipeline: Option<String>,
    /// Only runs started since then: a duration such as 2d, or a time
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// List boards too (`sprag board ls` lists them alone)
    #[arg(long)]
    pub(crate) boards: bool,
    /// The most runs to list
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20, value_parser = at_least_one)]
    pub(crate) limit: usize,
}

/// The server that has the runs, for commands that look at runs, start them or answer their questions.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct AtServer {
    /// Ask this server instead of the data directory: http://HOST:PORT
    #[arg(long, global = true, value_name = "URL", help_heading = "Server")]
    pub(crate) server: Option<String>,
    /// The token for the server [default: that of this user's own server]
    // Commands about tasks have a token of their own, that of a claim.
    #[arg(
        long,
        id = "server_token",
        global = true,
        value_name = "TOKEN",
        env = "SPRAG_TOKEN",
        hide_env_values = true,
        help_heading = "Server"
    )]
    pub(crate) token: Option<String>,
}

/// A command with others below it, which look at objects of the data directory or of a server, or act on them.
#[derive(Debug, clap::Args)]
pub(crate) struct Group<C: clap::Subcommand> {
    #[command(subcommand)]
    pub(crate) command: C,
    #[command(flatten)]
    pub(crate) at: AtServer,
}

/// The steps to run.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct StepArgs {
    /// Run only this step; repeat it for more
    #[arg(long, value_name = "STEP", help_heading = "Steps")]
    only: Vec<String>,
    /// Run only this step and all steps that need it
    #[arg(long, value_name = "STEP", help_heading = "Steps")]
    from: Option<String>,
    /// Skip this step; repeat it for more
    #[arg(long, value_name = "STEP", help_heading = "Steps")]
    skip: Vec<String>,
}

impl StepArgs {
    /// Returns the selected steps.
    pub(crate) fn selection(&self) -> sprag_pipeline::Selection {
        sprag_pipeline::Selection {
            only: self.only.clone(),
            from: self.from.clone(),
            skip: self.skip.clone(),
        }
    }
}

/// Which part of the logs to show, and how.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct LogOptions {
    /// Continue until the run ends
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only this attempt [default: the last]
    #[arg(long, value_name = "N")]
    pub(crate) attempt: Option<u32>,
    /// Only steps that failed
    #[arg(long, conflicts_with = "step")]
    pub(crate) failed: bool,
    /// Only the last N lines of each step
    #[arg(long, value_name = "N")]
    pub(crate) tail: Option<usize>,
    /// Only lines after this time: a duration before now such as 10m, or a time such as 2026-01-31T10:00:00Z
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// Print the time of each line
    #[arg(long, short = 't')]
    pub(crate) timestamps: bool,
    /// Print exactly what the steps printed: no names, and control characters unchanged
    #[arg(long, conflicts_with = "timestamps")]
    pub(crate) raw: bool,
}

/// Parses a number of things to list.
fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "write a whole number above 0".to_owned())
}
