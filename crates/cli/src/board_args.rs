//! The command line of boards and tasks.

use clap::Subcommand;

/// What can be done with boards.
#[derive(Debug, Subcommand)]
pub(crate) enum BoardCommand {
    /// Make a board
    New {
        /// What to call it
        name: String,
        /// What is to be reached
        #[arg(long, value_name = "TEXT", default_value = "")]
        goal: String,
        /// How; `@FILE` reads it from a file, `@-` from stdin
        #[arg(long, value_name = "TEXT|@FILE", default_value = "")]
        plan: String,
        /// Where its tasks wait [default: a queue of its own]
        #[arg(long, value_name = "QUEUE")]
        queue: Option<String>,
        /// How often a task may be tried
        #[arg(long, value_name = "N", default_value_t = 1)]
        attempts: u32,
        /// How long before the second try; doubled for each further one
        #[arg(long, value_name = "TIME")]
        retry_delay: Option<String>,
    },
    /// List boards, newest first
    Ls {
        /// Those that are closed too
        #[arg(long)]
        all: bool,
    },
    /// Show a board and its tasks
    Show {
        /// The board's name, or its run's id
        board: String,
    },
    /// Show the goal and the plan, or say them anew
    Plan {
        /// The board's name, or its run's id
        board: String,
        /// What is to be reached
        #[arg(long, value_name = "TEXT")]
        goal: Option<String>,
        /// How; `@FILE` reads it from a file, `@-` from stdin
        #[arg(long, value_name = "TEXT|@FILE")]
        plan: Option<String>,
    },
    /// Leave a note for the others
    Note {
        /// The board's name, or its run's id
        board: String,
        /// What it says
        text: String,
        /// Who writes it
        #[arg(long = "as", value_name = "NAME", default_value = "somebody")]
        name: String,
        /// What it is about, in a word
        #[arg(long, value_name = "WORD")]
        tag: Option<String>,
    },
    /// Read the notes
    Notes {
        /// The board's name, or its run's id
        board: String,
        /// Only those about this
        #[arg(long, value_name = "WORD")]
        tag: Option<String>,
        /// Only those after this number
        #[arg(long, value_name = "N", default_value_t = 0)]
        after: i64,
    },
    /// Gather all results in one report
    Report {
        /// The board's name, or its run's id
        board: String,
    },
    /// Take no more tasks: the board ends with the last of them
    Close {
        /// The board's name, or its run's id
        board: String,
        /// Take back the tasks that nobody has begun
        #[arg(long)]
        cancel_waiting: bool,
    },
}

/// What can be done with tasks.
#[derive(Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// Add a task to a board
    Add {
        /// The board's name, or its run's id
        board: String,
        /// What is to be done; `@FILE` reads it from a file, `@-` from stdin
        text: String,
        /// What to call it; a second task with this key is not added
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        /// A task that must be done before, by key or number; repeat it for more
        #[arg(long, value_name = "TASK", value_delimiter = ',')]
        needs: Vec<String>,
        /// Begin even if a task that it needs failed
        #[arg(long)]
        even_if_needs_fail: bool,
        /// Higher is claimed first
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        priority: Option<i32>,
        /// Where it waits, if not where the board's tasks do
        #[arg(long, value_name = "QUEUE")]
        queue: Option<String>,
        /// A file that it is about; repeat it for more
        #[arg(long = "file", value_name = "PATH")]
        files: Vec<String>,
        /// What may help; repeat it for more
        #[arg(long = "hint", value_name = "TEXT")]
        hints: Vec<String>,
        /// What must hold for it to count as done; repeat it for more
        #[arg(long = "accept", value_name = "TEXT")]
        acceptance: Vec<String>,
    },
    /// Add many tasks at once, all or none: a JSON list of {text, key, needs, …}
    Batch {
        /// The board's name, or its run's id
        board: String,
        /// A file, or `-` for stdin
        file: String,
    },
    /// List the tasks of a board, or those of all live runs
    Ls {
        /// Only this board's, in all statuses
        #[arg(long, value_name = "BOARD")]
        board: Option<String>,
        /// Only this queue's
        #[arg(long, value_name = "NAME", conflicts_with = "board")]
        queue: Option<String>,
        /// Only those in this status; repeat it for more
        #[arg(long, value_name = "STATUS", requires = "board")]
        status: Vec<String>,
    },
    /// Show a task of a board
    Show {
        /// The board's name, or its run's id
        board: String,
        /// The task's key or number
        task: String,
    },
    /// Take a task: prints its token, and what is to be done
    Claim {
        /// The board to claim from
        #[arg(long, value_name = "BOARD")]
        board: Option<String>,
        /// A queue to claim from; repeat it for more [default: tasks, unless a board is named]
        #[arg(long = "queue", value_name = "NAME")]
        queues: Vec<String>,
        /// Who claims, for others to see
        #[arg(long = "as", value_name = "NAME", default_value = "somebody")]
        name: String,
        /// How long to wait for one [default: not at all]
        #[arg(long, value_name = "TIME")]
        wait: Option<String>,
        /// How long it is yours without a heartbeat
        #[arg(long, value_name = "TIME", default_value = "30m")]
        lease: String,
    },
    /// Say again what is to be done, and keep the task for longer
    Start {
        /// What `claim` printed
        token: String,
        /// How long from now
        #[arg(long, value_name = "TIME", default_value = "30m")]
        lease: String,
    },
    /// Keep a task for longer
    Heartbeat {
        /// What `claim` printed
        token: String,
        /// How long from now
        #[arg(long, value_name = "TIME", default_value = "30m")]
        lease: String,
    },
    /// Report that a task is done
    Done {
        /// What `claim` printed
        token: String,
        /// What came of it, in words
        #[arg(long, value_name = "TEXT")]
        summary: Option<String>,
        /// What came of it, as a JSON object: the step's outputs
        #[arg(long, value_name = "JSON")]
        result: Option<String>,
        /// One output; repeat it for more
        #[arg(long = "output", value_name = "NAME=VALUE")]
        outputs: Vec<String>,
        /// A file that was changed; repeat it for more
        #[arg(long = "changed", value_name = "PATH")]
        changed: Vec<String>,
        /// A file that was made; repeat it for more
        #[arg(long = "created", value_name = "PATH")]
        created: Vec<String>,
    },
    /// Report that a task failed
    Fail {
        /// What `claim` printed
        token: String,
        /// What went wrong; the next try reads it
        #[arg(long, value_name = "TEXT", default_value = "it could not be done")]
        reason: String,
        /// Another try makes no sense
        #[arg(long = "final")]
        for_good: bool,
    },
    /// Give a task back unfinished
    Release {
        /// What `claim` printed
        token: String,
    },
    /// Take a task of a board back
    Cancel {
        /// The board's name, or its run's id
        board: String,
        /// The task's key or number
        task: String,
    },
    /// Try a task of a board again that failed, was taken back, or was skipped
    Retry {
        /// The board's name, or its run's id
        board: String,
        /// The task's key or number
        task: String,
    },
}
