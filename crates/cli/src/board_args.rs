//! The command line of boards and tasks.

use clap::Subcommand;

/// The subcommands for boards.
#[derive(Debug, Subcommand)]
pub(crate) enum BoardCommand {
    /// Create a board
    New {
        /// The board's name
        name: String,
        /// The goal
        #[arg(long, value_name = "TEXT", default_value = "")]
        goal: String,
        /// The plan; `@FILE` reads it from a file, `@-` from stdin
        #[arg(long, value_name = "TEXT|@FILE", default_value = "")]
        plan: String,
        /// The queue of its tasks [default: a queue of its own]
        #[arg(long, value_name = "QUEUE")]
        queue: Option<String>,
        /// The most attempts at a task
        #[arg(long, value_name = "N", default_value_t = 1)]
        attempts: u32,
        /// The delay before the second attempt; doubled for each further one
        #[arg(long, value_name = "TIME")]
        retry_delay: Option<String>,
    },
    /// List boards, newest first
    Ls {
        /// Include closed boards
        #[arg(long)]
        all: bool,
    },
    /// Show a board and its tasks
    Show {
        /// The board's name, or its run's id
        board: String,
    },
    /// Show or replace the goal and the plan
    Plan {
        /// The board's name, or its run's id
        board: String,
        /// The goal
        #[arg(long, value_name = "TEXT")]
        goal: Option<String>,
        /// The plan; `@FILE` reads it from a file, `@-` from stdin
        #[arg(long, value_name = "TEXT|@FILE")]
        plan: Option<String>,
    },
    /// Add a note for the other participants
    Note {
        /// The board's name, or its run's id
        board: String,
        /// The text of the note
        text: String,
        /// The author
        #[arg(long = "as", value_name = "NAME", default_value = "somebody")]
        name: String,
        /// Its subject, in a word
        #[arg(long, value_name = "WORD")]
        tag: Option<String>,
    },
    /// Read the notes
    Notes {
        /// The board's name, or its run's id
        board: String,
        /// Only notes with this subject
        #[arg(long, value_name = "WORD")]
        tag: Option<String>,
        /// Only notes after this number
        #[arg(long, value_name = "N", default_value_t = 0)]
        after: i64,
    },
    /// Collect all results in one report
    Report {
        /// The board's name, or its run's id
        board: String,
    },
    /// Accept no more tasks: the board ends when the last one has finished
    Close {
        /// The board's name, or its run's id
        board: String,
        /// Cancel the tasks that are not claimed
        #[arg(long)]
        cancel_waiting: bool,
    },
}

/// The subcommands for tasks.
#[derive(Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// Add a task to a board
    Add {
        /// The board's name, or its run's id
        board: String,
        /// The work to do; `@FILE` reads it from a file, `@-` from stdin
        text: String,
        /// The task's key; a second task with this key is not added
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        /// A task that must finish first, by key or number; repeat it for more
        #[arg(long, value_name = "TASK", value_delimiter = ',')]
        needs: Vec<String>,
        /// Start even if a task that it needs failed
        #[arg(long)]
        even_if_needs_fail: bool,
        /// The priority; tasks with a higher one are claimed first
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        priority: Option<i32>,
        /// Its queue [default: that of the board]
        #[arg(long, value_name = "QUEUE")]
        queue: Option<String>,
        /// A file that the task concerns; repeat it for more
        #[arg(long = "file", value_name = "PATH")]
        files: Vec<String>,
        /// A hint; repeat it for more
        #[arg(long = "hint", value_name = "TEXT")]
        hints: Vec<String>,
        /// A condition for it to count as done; repeat it for more
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
        #[command(flatten)]
        board: OfBoard,
        /// Only tasks in this queue
        #[arg(long, value_name = "NAME", conflicts_with = "OfBoard")]
        queue: Option<String>,
        /// Only tasks in this status; repeat it for more
        #[arg(long, value_name = "STATUS", requires = "OfBoard")]
        status: Vec<String>,
    },
    /// Show a task of a board
    Show {
        /// The board's name, or its run's id
        board: String,
        /// The task's key or number
        task: String,
    },
    /// Claim a task: prints its token and the work to do
    Claim {
        #[command(flatten)]
        board: OfBoard,
        /// A queue to claim from; repeat it for more [default: tasks, unless a board is named]
        #[arg(long = "queue", value_name = "NAME")]
        queues: Vec<String>,
        /// The claimer's name, which others see
        #[arg(long = "as", value_name = "NAME", default_value = "somebody")]
        name: String,
        /// How long to wait for a task [default: not at all]
        #[arg(long, value_name = "TIME")]
        wait: Option<String>,
        /// How long the claim lasts without a heartbeat
        #[arg(long, value_name = "TIME", default_value = "30m")]
        lease: String,
    },
    /// Show a claimed task again, and extend the claim
    Start {
        /// The token that `claim` printed
        token: String,
        /// How long from now
        #[arg(long, value_name = "TIME", default_value = "30m")]
        lease: String,
    },
    /// Extend the claim on a task
    Heartbeat {
        /// The token that `claim` printed
        token: String,
        /// How long from now
        #[arg(long, value_name = "TIME", default_value = "30m")]
        lease: String,
    },
    /// Report that a task is done
    Done {
        /// The token that `claim` printed
        token: String,
        /// The result in words
        #[arg(long, value_name = "TEXT")]
        summary: Option<String>,
        /// The result as a JSON object: the step's outputs
        #[arg(long, value_name = "JSON")]
        result: Option<String>,
        /// One output; repeat it for more
        #[arg(long = "output", value_name = "NAME=VALUE")]
        outputs: Vec<String>,
        /// A file that was changed; repeat it for more
        #[arg(long = "changed", value_name = "PATH")]
        changed: Vec<String>,
        /// A file that was created; repeat it for more
        #[arg(long = "created", value_name = "PATH")]
        created: Vec<String>,
    },
    /// Report that a task failed
    Fail {
        /// The token that `claim` printed
        token: String,
        /// The reason; the next attempt reads it
        #[arg(long, value_name = "TEXT", default_value = "it could not be done")]
        reason: String,
        /// Do not retry the task
        #[arg(long = "final")]
        for_good: bool,
    },
    /// Give a task back unfinished
    Release {
        /// The token that `claim` printed
        token: String,
    },
    /// Cancel a task of a board
    Cancel {
        /// The board's name, or its run's id
        board: String,
        /// The task's key or number
        task: String,
    },
    /// Retry a task of a board that failed, was cancelled or was skipped
    Retry {
        /// The board's name, or its run's id
        board: String,
        /// The task's key or number
        task: String,
    },
}

/// The board whose tasks are meant, as the first word or as an option.
#[derive(Debug, Clone, Default, clap::Args)]
#[group(multiple = false)]
pub(crate) struct OfBoard {
    /// Only tasks of this board
    #[arg(value_name = "BOARD")]
    word: Option<String>,
    /// The same as BOARD
    #[arg(long = "board", value_name = "BOARD")]
    option: Option<String>,
}

impl OfBoard {
    /// Returns the board's name, or its run's id.
    pub(crate) fn name(&self) -> Option<&str> {
        self.word.as_deref().or(self.option.as_deref())
    }
}
