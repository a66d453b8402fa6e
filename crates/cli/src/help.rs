//! The help of `sprag` itself: its commands in groups.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, FromArgMatches};
use sprag_app::text::nearest;

use crate::args::{Args, AtServer};
use crate::exit::Failure;
use crate::help_examples;

/// The commands, in groups.
const GROUPS: &[(&str, &[&str])] = &[
    ("Start", &["init", "run", "do", "validate", "graph"]),
    ("Look", &["ls", "status", "watch", "logs", "explain", "events", "audit", "diff"]),
    ("Answer", &["questions", "approve", "reject", "signal", "thread"]),
    ("Start by itself", &["rule", "delivery"]),
    ("Continue and stop", &["wait", "cancel", "skip", "retry", "resume", "rewind", "fork"]),
    ("Share work", &["worker", "queue", "account", "board", "task", "serve", "token", "hook", "mcp"]),
    ("Maintain", &["env", "gc", "doctor", "config", "trust"]),
    ("Reference", &["agent", "schema", "lifecycle", "completion", "manual", "help"]),
];

const EXAMPLES: &str = "\
Examples:
  sprag init && sprag run ci     write a pipeline for this folder and run it
  sprag explain                  why the newest run waits or failed
  sprag logs --failed            what its failed steps printed
  sprag COMMAND --help           options and examples of a command";

/// The reasons why commands have no `--server`, and what to do instead.
const NOT_AT_SERVER: &[(&[&str], &str, &str)] = &[
    (&["init", "validate", "schema", "lifecycle"], "it needs no runs", "leave --server out"),
    (&["env"], "worktrees are on the machine where they were made", "log in there and run the command"),
    (
        &["gc", "doctor", "token", "hook"],
        "it manages the store of this data directory",
        "run it where the server runs, or use the HTTP API (docs/api.md)",
    ),
    (
        &["rule apply"],
        "the runs of its rules work in this folder",
        "run it where the server runs, or use the HTTP API (docs/rules.md)",
    ),
    (&["rule tick"], "a server fires its rules by itself", "leave --server out"),
    (
        &["delivery send"],
        "it posts to a webhook, with the secret of this machine",
        "name the server with --to URL",
    ),
    (
        &["do"],
        "the agent works in this folder, with this process as its worker",
        "start a pipeline with an agent step on the server: sprag run FILE --server URL",
    ),
    (
        &["agent", "serve", "config", "trust", "completion", "manual"],
        "it is about this machine",
        "leave --server out",
    ),
];

/// Parses the command line. A wrong one ends the program with clap's message, except where Sprag has a better one, which
/// the error holds.
pub(crate) fn parse() -> Result<Args, Failure> {
    let matches = match command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => match without_server(&error).or_else(|| not_a_number(&error)) {
            Some(failure) => return Err(failure),
            None => {
                let error = nearest_command(error);
                let is_mistake = error.use_stderr();
                if !is_mistake || !std::env::args_os().any(|word| word == "--json") {
                    error.exit()
                }
                let text = error.to_string();
                let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
                return Err(Failure::usage(first).next("sprag --help lists commands and options"));
            }
        },
    };
    Ok(Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()))
}

/// Returns the error about a value that must be a number; none if the error is another one.
fn not_a_number(error: &clap::Error) -> Option<Failure> {
    let text = error.to_string();
    let first = text.lines().next()?;
    let (what, why) = first.trim_start_matches("error: ").rsplit_once(": ")?;
    let is_number = why.ends_with("found in string") || why.contains("parse integer");
    let is_meant = error.kind() == ErrorKind::ValueValidation && is_number;
    is_meant.then(|| Failure::usage(what).next("write a whole number"))
}

/// Returns the names of the commands among which a word of the command line was looked for.
fn siblings(wrong: &str) -> Vec<String> {
    let mut level = Args::command();
    for word in std::env::args().skip(1).take_while(|word| word != wrong) {
        if let Some(below) = level.find_subcommand(&word) {
            level = below.clone();
        }
    }
    level.get_subcommands().map(|one| one.get_name().to_owned()).collect()
}

/// Suggests the command that the user probably means, if letters of it are swapped or one is missing: clap finds the
/// others.
fn nearest_command(mut error: clap::Error) -> clap::Error {
    let sorted = |word: &str| {
        let mut letters: Vec<char> = word.chars().collect();
        letters.sort_unstable();
        letters
    };
    if let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidSubcommand) {
        let names = siblings(wrong);
        let swapped = names.iter().map(String::as_str).find(|name| sorted(name) == sorted(wrong));
        let has_none = error.get(ContextKind::SuggestedSubcommand).is_none();
        let near = || nearest(wrong, names.iter().map(String::as_str)).filter(|_| has_none);
        if let Some(near) = swapped.or_else(near) {
            let near = ContextValue::Strings(vec![near.to_owned()]);
            error.insert(ContextKind::SuggestedSubcommand, near);
        }
    }
    error
}

/// Returns the reason why a command refuses `--server`; none if the error is another one.
fn without_server(error: &clap::Error) -> Option<Failure> {
    let is_server = matches!(
        error.get(ContextKind::InvalidArg), Some(ContextValue::String(arg)) if arg.starts_with("--server")
    );
    if error.kind() != ErrorKind::UnknownArgument || !is_server {
        return None;
    }
    // Global options and their values may come first.
    let words: Vec<String> = std::env::args().skip(1).collect();
    let below = |at: usize| words.get(at..at + 2).map(|both| both.join(" ")).unwrap_or_default();
    words.iter().enumerate().find_map(|(at, word)| refusal(&below(at)).or_else(|| refusal(word)))
}

/// Returns the reason why a command refuses `--server`; none if it takes it.
fn refusal(command: &str) -> Option<Failure> {
    let (_, why, next) = NOT_AT_SERVER.iter().find(|(names, ..)| names.contains(&command))?;
    Some(Failure::usage(format!("`sprag {command}` has no --server: {why}")).next(*next))
}

/// Refuses `--server` for a command whose neighbours take it.
pub(crate) fn refuse_server(command: &str, at: &AtServer) -> Result<(), Failure> {
    match refusal(command) {
        Some(failure) if at.server.is_some() => Err(failure),
        _ => Ok(()),
    }
}

/// Returns the command line with its help in groups.
pub(crate) fn command() -> Command {
    let command = with_examples(Args::command());
    let help = template(&command);
    command.help_template(help)
}

/// Adds the examples of the commands that are below another one.
fn with_examples(mut command: Command) -> Command {
    for (group, name, lines) in help_examples::EXAMPLES {
        let text = format!("Examples:\n  {}", lines.join("\n  "));
        command = command
            .mut_subcommand(group, |below| below.mut_subcommand(name, |one| one.after_help(text.clone())));
    }
    command
}

/// Returns the template of the help: the groups, the examples, and clap's own list of options.
fn template(command: &Command) -> String {
    let width = GROUPS.iter().flat_map(|(_, names)| names.iter()).map(|name| name.len()).max().unwrap_or(0);
    let mut groups = String::new();
    for (heading, names) in GROUPS {
        groups += &format!("\n{heading}:\n");
        for name in *names {
            let about = match command.find_subcommand(name).and_then(Command::get_about) {
                Some(about) => about.to_string(),
                None => "Print this help, or the help of a command".to_owned(),
            };
            groups += &format!("  {name:width$}  {about}\n");
        }
    }
    format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n{groups}\n{EXAMPLES}\n\nOptions:\n{{options}}{{after-help}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group_and_has_an_example() {
        let command = Args::command();
        for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
            let name = one.get_name();
            let listed = GROUPS.iter().flat_map(|(_, names)| names.iter()).filter(|listed| **listed == name);
            assert_eq!(listed.count(), 1, "{name}");
            let after = one.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains("Examples:\n  ") && after.contains(&format!("sprag {name}")), "{name}");
        }
    }

    #[test]
    fn every_command_below_another_has_an_example_that_can_be_typed() {
        let command = command();
        for group in command.get_subcommands().filter(|one| !one.is_hide_set()) {
            for one in group.get_subcommands().filter(|one| !one.is_hide_set()) {
                let after = one.get_after_help().map(ToString::to_string).unwrap_or_default();
                let name = format!("sprag {} {}", group.get_name(), one.get_name());
                assert!(after.contains("Examples:\n  ") && after.contains(&name), "{name}: {after}");
            }
        }
        for (_, _, lines) in help_examples::EXAMPLES {
            let text = lines.join("\n").replace("\\\n", "");
            for line in text.lines() {
                let parsed = command.clone().try_get_matches_from(words(line));
                assert!(
                    parsed.is_ok(),
                    "{line}: {}",
                    parsed.err().map(|error| error.to_string()).unwrap_or_default()
                );
            }
        }
    }

    /// Splits a line as a shell does, as far as examples need it.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut quote) = (vec![String::new()], None);
        for c in line.chars() {
            match (quote, c) {
                (Some(open), c) if c == open => quote = None,
                (None, '\'' | '"') => quote = Some(c),
                (None, ' ') => words.push(String::new()),
                _ => words.last_mut().expect("there is one").push(c),
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn the_help_fits_80_columns() {
        let mut command = command();
        let help = command.render_help().to_string();
        let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{long:#?}");
        for (heading, _) in GROUPS {
            assert!(help.contains(&format!("\n{heading}:\n")), "{help}");
        }
        // A longer line would be broken in the middle of a paragraph.
        for one in command.get_subcommands() {
            let after = one.get_after_help().map(ToString::to_string).unwrap_or_default();
            let long: Vec<&str> = after.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(long.is_empty(), "{}: {long:#?}", one.get_name());
        }
    }
}
