//! The reference page, generated from the tables: a diagram and a grid for each lifecycle.

use std::fmt::Write;

use crate::table::{Lifecycle, To, Word};
use crate::{
    Account, Enforcement, Environment, Execution, Gate, Run, Step, Thread, TriggerRule, WorkerPresence,
};

/// Returns the content of docs/lifecycles.md.
pub fn reference() -> String {
    let mut page = String::from(
        "# Lifecycles\n\
         \n\
         <!-- Generated from the tables in crates/lifecycle by `cargo xtask gen`. A test fails when they differ. -->\n\
         \n\
         A program reports an **event**, and the entity's table decides which status follows; no other code\n\
         changes a status. In each grid a row is an event and a column is a status. The cell is the status\n\
         that the event leads to; `–` means that the event is refused as illegal. An event whose conditions\n\
         no longer hold is refused as superseded, which is tested before the grid. A refused event changes\n\
         nothing; `sprag explain` shows the latest ones.\n",
    );
    section::<Run>(&mut page, "One execution of a pipeline with its inputs.");
    section::<Step>(&mut page, "A node of the pipeline in one run. Only the walk over the run writes it.");
    section::<Execution>(
        &mut page,
        "One attempt at a step. The executor owns it until it is published, and the worker owns it after\n\
         receiving it. In between, the fence decides: a number that grows whenever the owner changes.",
    );
    section::<Environment>(
        &mut page,
        "The place where a run works: a git worktree or a directory, on one host.",
    );
    section::<Thread>(&mut page, "A conversation with a coding agent, over several turns.");
    section::<Account>(
        &mut page,
        "A login of coding agents that runs share. A hold protects it: after a usage limit no further step\n\
         starts with it. When the hold's time has passed, one step tries the account before the others.",
    );
    section::<Gate>(&mut page, "A question to a person.");
    section::<WorkerPresence>(&mut page, "A process that claims executions from queues.");
    section::<TriggerRule>(
        &mut page,
        "A trigger of runs: a schedule, a webhook, a git ref or the end of another run. While it is active, a\n\
         changed definition is a write to its row and no event.",
    );
    section::<Enforcement>(
        &mut page,
        "A match of a rule and an event, once per rule, event and generation; a replay is a new generation.",
    );
    page
}

fn section<L: Lifecycle>(page: &mut String, about: &str) {
    let mut title = L::NAME.to_owned();
    title[..1].make_ascii_uppercase();
    write!(page, "\n## {title}\n\n{about}\n\n").expect("writing to a String");
    diagram::<L>(page);
    grid::<L>(page);
}

fn diagram<L: Lifecycle>(page: &mut String) {
    page.push_str("```mermaid\nstateDiagram-v2\n");
    writeln!(page, "    [*] --> {}", L::Status::ALL[0]).expect("writing to a String");
    for rule in L::RULES {
        for from in rule.from {
            for (nth, to) in rule.to.targets().into_iter().enumerate() {
                let when = match (rule.to, nth) {
                    (To::Status(_), _) => "",
                    (To::ByPath { .. }, 0) => " (directory exists)",
                    (To::ByPath { .. }, _) => " (directory gone)",
                };
                writeln!(page, "    {from} --> {to}: {}{when}", rule.event).expect("writing to a String");
            }
        }
    }
    for status in L::TERMINAL {
        writeln!(page, "    {status} --> [*]").expect("writing to a String");
    }
    page.push_str("```\n\n");
}

fn grid<L: Lifecycle>(page: &mut String) {
    let statuses: Vec<_> = L::Status::ALL.iter().map(|s| s.as_str()).collect();
    writeln!(page, "| event | reported by | {} | superseded unless |", statuses.join(" | "))
        .expect("writing to a String");
    writeln!(page, "|---|---|{}---|", "---|".repeat(statuses.len())).expect("writing to a String");
    for event in L::Event::ALL {
        // One row per set of reporters: an executor and a worker may report the same event under different
        // conditions.
        let mut rules: Vec<_> = L::RULES.iter().filter(|rule| rule.event == *event).collect();
        while let Some(first) = rules.first().copied() {
            let (same, rest): (Vec<_>, Vec<_>) = rules
                .into_iter()
                .partition(|r| r.who == first.who && r.unless_superseded == first.unless_superseded);
            rules = rest;
            let cells: Vec<String> = L::Status::ALL
                .iter()
                .map(|status| match same.iter().find(|rule| rule.from.contains(status)).map(|rule| rule.to) {
                    None => "–".to_owned(),
                    Some(To::Status(to)) => to.to_string(),
                    Some(To::ByPath { present, absent }) => {
                        format!("{present} if the directory exists, else {absent}")
                    }
                })
                .collect();
            let who: Vec<_> = first.who.iter().map(|who| who.as_str()).collect();
            let unless: Vec<_> = first.unless_superseded.iter().map(|p| p.as_str()).collect();
            writeln!(
                page,
                "| {event} | {} | {} | {} |",
                who.join(", "),
                cells.join(" | "),
                unless.join("; ")
            )
            .expect("writing to a String");
        }
    }
}
