//! The arguments of `sprag rule` and `sprag delivery`.

use std::path::PathBuf;

use clap::Subcommand;

/// The subcommands for rules.
#[derive(Debug, Subcommand)]
pub(crate) enum RuleCommand {
    /// Record the rules in the `on:` of a pipeline file: from now on they start runs
    #[command(after_help = "\
Rules that the file no longer has are retired. Runs work in the present folder.

Examples:
  sprag rule apply nightly.yaml --dry    what would change
  sprag rule apply nightly.yaml")]
    Apply {
        /// The pipeline file
        file: PathBuf,
        /// Only tell what would change
        #[arg(long)]
        dry: bool,
    },
    /// List the rules: status, next tick, last decision
    Ls {
        /// Also retired ones
        #[arg(long)]
        all: bool,
    },
    /// Show a rule: its next ticks and its last decisions
    Show {
        /// PIPELINE/RULE, or the rule's id alone where it is unique
        rule: String,
        /// The number of ticks to show
        #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(0..=1000))]
        next: u16,
    },
    /// Tell why a rule fires or does not
    Explain {
        /// PIPELINE/RULE, or the rule's id alone where it is unique
        rule: String,
    },
    /// Fire a rule now, by hand: its next tick stays; a webhook's rule needs an event
    Fire {
        /// PIPELINE/RULE, or the rule's id alone where it is unique
        rule: String,
        #[command(flatten)]
        given: EventArgs,
    },
    /// Pause a rule: its events start nothing
    Pause {
        /// PIPELINE/RULE, or the rule's id alone where it is unique
        rule: String,
        /// Why, for people
        #[arg(long)]
        reason: Option<String>,
    },
    /// Resume a paused rule, or mend a broken one
    Resume {
        /// PIPELINE/RULE, or the rule's id alone where it is unique
        rule: String,
        /// Treat the ticks of the pause as missed ones, by the rule's `missed` [default: they start nothing]
        #[arg(long)]
        missed: bool,
    },
    /// Remove a rule; its history stays
    Rm {
        /// PIPELINE/RULE, or the rule's id alone where it is unique
        rule: String,
    },
    /// Tell what the next tick, a time or a recorded event would start; writes nothing
    Test {
        /// PIPELINE/RULE, or the rule's id alone where it is unique
        rule: String,
        /// The time of the tick, such as 2030-01-31T08:00:00Z [default: the next tick]
        #[arg(long, value_name = "TIME", conflicts_with = "event")]
        at: Option<String>,
        /// The number of a recorded event, or a file with the payload of an event
        #[arg(long, value_name = "EVENT")]
        event: Option<String>,
        /// A header of the event in the file that rules see, such as 'x-github-event: push'; repeat it for more
        #[arg(long, value_name = "HEADER", value_parser = header, requires = "event")]
        header: Vec<(String, String)>,
    },
    /// Give the ticks between two times to a rule; those that it has taken start nothing
    Backfill {
        /// PIPELINE/RULE, or the rule's id alone where it is unique
        rule: String,
        /// The first time, such as 2030-01-31T08:00:00Z
        #[arg(long, value_name = "TIME")]
        from: String,
        /// The last time
        #[arg(long, value_name = "TIME")]
        to: String,
        /// Decide ticks again that the rule has taken before
        #[arg(long)]
        again: bool,
    },
    /// Fire what is due, run it, and exit: for cron or systemd, without a server
    #[command(after_help = "\
A unit for systemd is in deploy/. With --detach the runs are left to a worker or a server.

Examples:
  sprag rule tick")]
    Tick {
        /// Start the runs and leave them to workers
        #[arg(long)]
        detach: bool,
    },
}

/// Parses a header that a person gives.
fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write it like 'x-github-event: push'")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// An event that a person gives to a rule.
#[derive(Debug, clap::Args)]
pub(crate) struct EventArgs {
    /// A file with the payload of an event, as its sender would send it; `-` reads the standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) event: Option<String>,
    /// A header of the event that rules see, such as 'x-github-event: push'; repeat it for more
    #[arg(long, value_name = "HEADER", value_parser = header, requires = "event")]
    pub(crate) header: Vec<(String, String)>,
}

/// The subcommands for events that reached rules.
#[derive(Debug, Subcommand)]
pub(crate) enum DeliveryCommand {
    /// List the last events and their decisions
    Ls {
        /// Only events of this rule
        rule: Option<String>,
        /// The number of events
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
        limit: u16,
    },
    /// Show an event and all its decisions
    Show {
        /// The event's number
        event: i64,
    },
    /// Sign a payload as the sender of a rule's webhook would, and post it to a server
    #[command(after_help = "\
The signature is made with the first of the rule's `secrets` that is set here.

Examples:
  sprag delivery send ci/push push.json --header 'x-github-event: push'
  sprag delivery send ci/push - --to https://hooks.example.com < push.json")]
    Send {
        /// PIPELINE/RULE, or the rule's id alone where it is unique
        rule: String,
        /// A file with the payload; `-` reads the standard input
        file: PathBuf,
        /// The server
        #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7717")]
        to: String,
        /// A header of the request that rules see, such as 'x-github-event: push'; repeat it for more
        #[arg(long, value_name = "HEADER", value_parser = header)]
        header: Vec<(String, String)>,
    },
    /// Give an event to its rule again
    Replay {
        /// The event's number
        event: i64,
    },
}
