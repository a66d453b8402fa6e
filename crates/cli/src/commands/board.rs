//! `sprag board`: tasks for several agents and people, added while they work.

use std::io::Read;

use serde_json::{Value, json};
use sprag_app::boards::{BoardSpec, BoardView, NoteSpec, NoteView, Report};

use super::source::Source;
use super::task::task_table;
use super::wait::parse_time;
use crate::args::{BoardCommand, Group};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{line, plain, table};

pub(crate) async fn board(context: &Context, group: &Group<BoardCommand>) -> Result<Exit, Failure> {
    let source = Source::open(context, &group.at)?;
    match &group.command {
        BoardCommand::New { name, goal, plan, queue, attempts, retry_delay } => {
            let delay = retry_delay.as_deref().map(|text| parse_time("--retry-delay", text)).transpose()?;
            let spec = BoardSpec {
                name: name.clone(),
                goal: goal.clone(),
                plan: text_or_file(plan)?,
                queue: queue.clone(),
                attempts: Some(*attempts),
                retry_delay_s: delay.map(|delay| delay.as_secs()),
            };
            let made = source.create_board(&spec).await?;
            if context.json {
                line(&json!(made).to_string());
            } else {
                line(&made.run);
                eprintln!("next: sprag task add {name} 'what is to be done'{}", source.at());
            }
        }
        BoardCommand::Ls { all } => ls(context, &source.boards(*all).await?),
        BoardCommand::Show { board } => {
            let view = source.board(board).await?;
            let tasks = source.tasks(board, &[]).await?;
            if context.json {
                let mut told = json!(view);
                told["list"] = json!(tasks);
                line(&told.to_string());
            } else {
                headline(&view);
                if tasks.is_empty() {
                    let at = source.at();
                    eprintln!("no tasks yet: sprag task add {} 'what is to be done'{at}", view.name);
                } else {
                    task_table(context, &tasks);
                }
            }
        }
        BoardCommand::Plan { board, goal, plan } => {
            let plan = plan.as_deref().map(text_or_file).transpose()?;
            let view = match (goal, &plan) {
                (None, None) => source.board(board).await?,
                _ => source.set_plan(board, goal.as_deref(), plan.as_deref()).await?,
            };
            if context.json {
                line(&json!({ "board": view.name, "goal": view.goal, "plan": view.plan }).to_string());
            } else {
                line(&format!("goal: {}", plain(&view.goal)));
                view.plan.lines().for_each(|text| line(&plain(text)));
            }
        }
        BoardCommand::Note { board, text, name, tag } => {
            let spec = NoteSpec { author: name.clone(), tag: tag.clone(), text: text_or_file(text)? };
            let note = source.add_note(board, &spec).await?;
            if context.json {
                line(&json!(note).to_string());
            } else {
                eprintln!("noted");
            }
        }
        BoardCommand::Notes { board, tag, after } => {
            notes(context, &source.notes(board, tag.as_deref(), *after).await?);
        }
        BoardCommand::Report { board } => {
            let report = source.report(board).await?;
            if context.json {
                line(&json!(report).to_string());
            } else {
                told(&report);
            }
        }
        BoardCommand::Close { board, cancel_waiting } => {
            let view = source.close_board(board, *cancel_waiting).await?;
            if context.json {
                line(&json!(view).to_string());
            } else {
                headline(&view);
            }
        }
    }
    Ok(Exit::Ok)
}

fn ls(context: &Context, boards: &[BoardView]) {
    if context.json {
        line(&json!(boards).to_string());
        return;
    }
    if boards.is_empty() {
        line("no boards are open");
        return;
    }
    let rows: Vec<Vec<String>> = boards
        .iter()
        .map(|board| {
            let tasks = &board.tasks;
            vec![
                board.name.clone(),
                if board.open { "open".into() } else { board.status.clone() },
                format!("{}/{}", tasks.settled(), tasks.total()),
                tasks.claimed.to_string(),
                tasks.failed.to_string(),
                board.run.clone(),
            ]
        })
        .collect();
    table(context.style, &["BOARD", "STATUS", "FINISHED", "CLAIMED", "FAILED", "RUN"], &rows);
}

fn headline(board: &BoardView) {
    let tasks = &board.tasks;
    let status = if board.open { "open" } else { &board.status };
    line(&format!("{} · {status} · run {}", board.name, board.run));
    if !board.goal.is_empty() {
        line(&format!("goal: {}", plain(&board.goal)));
    }
    let counts = [
        (tasks.ready, "ready"),
        (tasks.claimed, "claimed"),
        (tasks.waiting, "waiting"),
        (tasks.done, "done"),
        (tasks.failed, "failed"),
        (tasks.skipped, "skipped"),
        (tasks.cancelled, "cancelled"),
    ];
    let told: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if !told.is_empty() {
        line(&told.join(" · "));
    }
}

fn notes(context: &Context, notes: &[NoteView]) {
    if context.json {
        line(&json!(notes).to_string());
        return;
    }
    if notes.is_empty() {
        line("no notes");
    }
    for note in notes {
        let tag = if note.tag.is_empty() { String::new() } else { format!(" [{}]", note.tag) };
        line(&format!("{} {}{tag}: {}", note.id, plain(&note.author), plain(&note.text)));
    }
}

fn told(report: &Report) {
    headline(&report.board);
    for task in &report.tasks {
        let by = task.by.as_deref().map_or_else(String::new, |by| format!(" by {}", plain(by)));
        let name = task.spec.key.clone().unwrap_or_else(|| task.task.to_string());
        line(&format!("\n{name}: {}{by}", task.status));
        let result = task.result.as_ref().unwrap_or(&Value::Null);
        for key in ["summary", "message"] {
            if let Some(text) = result[key].as_str() {
                text.lines().for_each(|text| line(&format!("  {}", plain(text))));
            }
        }
        for what in ["changed", "created"] {
            for file in result["files"][what].as_array().into_iter().flatten().filter_map(Value::as_str) {
                line(&format!("  {what} {}", plain(file)));
            }
        }
    }
    if !report.notes.is_empty() {
        line("\nnotes:");
        for note in &report.notes {
            line(&format!("  {}: {}", plain(&note.author), plain(&note.text)));
        }
    }
}

/// Returns a text as it is, or the content of `@FILE`.
pub(super) fn text_or_file(text: &str) -> Result<String, Failure> {
    match text.strip_prefix('@') {
        None => Ok(text.to_owned()),
        Some(file) => read_file(file),
    }
}

/// Returns the content of a file; `-` is stdin.
pub(super) fn read_file(file: &str) -> Result<String, Failure> {
    let told = |error: std::io::Error| Failure::usage(format!("cannot read {file}: {error}"));
    if file == "-" {
        let mut text = String::new();
        std::io::stdin().take(16 * 1024 * 1024).read_to_string(&mut text).map_err(told)?;
        return Ok(text);
    }
    std::fs::read_to_string(file).map_err(told)
}
