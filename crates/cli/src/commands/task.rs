//! `sprag task`: work that agents and people claim from outside. A claim gives a token. Its holder may report as long
//! as the claim lasts.

use std::time::Duration;

use serde_json::{Map, Value, json};
use sprag_app::boards::{self, ClaimRequest, Claimed, Done, TaskSpec, TaskView};
use sprag_app::{App, BoardRow, OpenTask, Row};
use sprag_lifecycle::ExecutionStatus;

use super::wait::parse_time;
use crate::args::TaskCommand;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{line, plain, rfc3339, span, table};

/// The most tasks that are listed at once.
const MOST: usize = 1000;

pub(crate) async fn task(context: &Context, command: &TaskCommand) -> Result<Exit, Failure> {
    let app = context.app()?;
    match command {
        TaskCommand::Add { board, text, .. } => {
            let board = boards::known(&app, board)?;
            let spec = TaskSpec { text: super::board::text_or_file(text)?, ..spec_of(command) };
            added(context, boards::add_tasks(&app, &board, &[spec]).await?)
        }
        TaskCommand::Batch { board, file } => {
            let board = boards::known(&app, board)?;
            let text = super::board::read_file(file)?;
            let specs: Vec<TaskSpec> = serde_json::from_str(&text).map_err(|error| {
                Failure::usage(format!("{file} is not a list of tasks: {error}"))
                    .next("write it like [{\"key\": \"a\", \"text\": \"…\"}, {\"text\": \"…\", \"needs\": [\"a\"]}]")
            })?;
            added(context, boards::add_tasks(&app, &board, &specs).await?)
        }
        TaskCommand::Ls { board, status, queue } => match board.name() {
            Some(board) => ls_board(context, &app, &boards::known(&app, board)?, status),
            None => ls(context, &app, queue.as_deref()),
        },
        TaskCommand::Show { board, task } => {
            let board = boards::known(&app, board)?;
            shown(context, &boards::task(&app, &board, task)?)
        }
        TaskCommand::Claim { board, queues, name, wait, lease } => {
            let board = board.name().map(|board| boards::known(&app, board)).transpose()?;
            let wait = wait.as_deref().map(|wait| parse_time("--wait", wait)).transpose()?;
            claim(context, &app, board, queues, name, wait.unwrap_or_default(), lease).await
        }
        TaskCommand::Start { token, lease } => {
            let lease = parse_time("--lease", lease)?;
            given(context, &boards::start(&app, token, lease).await?)
        }
        TaskCommand::Heartbeat { token, lease } => {
            boards::heartbeat(&app, token, parse_time("--lease", lease)?).await?;
            said(context, token, "held")
        }
        TaskCommand::Done { token, .. } => {
            boards::done(&app, token, &done_of(command)?).await?;
            said(context, token, "reported")
        }
        TaskCommand::Fail { token, reason, for_good } => {
            boards::fail(&app, token, reason, !for_good).await?;
            said(context, token, "reported")
        }
        TaskCommand::Release { token } => {
            boards::release(&app, token).await?;
            said(context, token, "released")
        }
        TaskCommand::Cancel { board, task } => {
            let board = boards::known(&app, board)?;
            shown(context, &boards::cancel_task(&app, &board, task).await?)
        }
        TaskCommand::Retry { board, task } => {
            let board = boards::known(&app, board)?;
            shown(context, &boards::retry_task(&app, &board, task).await?)
        }
    }
}

fn spec_of(command: &TaskCommand) -> TaskSpec {
    let TaskCommand::Add {
        key, needs, even_if_needs_fail, priority, queue, files, hints, acceptance, ..
    } = command
    else {
        return TaskSpec::default();
    };
    TaskSpec {
        key: key.clone(),
        text: String::new(),
        needs: needs.clone(),
        even_if_needs_fail: *even_if_needs_fail,
        priority: *priority,
        queue: queue.clone(),
        files: files.clone(),
        hints: hints.clone(),
        acceptance: acceptance.clone(),
    }
}

fn done_of(command: &TaskCommand) -> Result<Done, Failure> {
    let TaskCommand::Done { summary, result, outputs: pairs, changed, created, .. } = command else {
        return Ok(Done::default());
    };
    let mut outputs: Map<String, Value> = match result {
        None => Map::new(),
        Some(text) => serde_json::from_str(text).map_err(|error| {
            Failure::usage(format!("--result is not a JSON object: {error}"))
                .next("write it like {\"verdict\": \"good\"}")
        })?,
    };
    for pair in pairs {
        let (name, value) = pair.split_once('=').ok_or_else(|| {
            Failure::usage(format!("--output {pair:?} has no value")).next("write it as --output NAME=VALUE")
        })?;
        outputs.insert(name.to_owned(), Value::String(value.to_owned()));
    }
    Ok(Done {
        summary: summary.clone(),
        outputs,
        files_changed: changed.clone(),
        files_created: created.clone(),
    })
}

fn added(context: &Context, added: Vec<boards::TaskAdded>) -> Result<Exit, Failure> {
    if context.json {
        line(&json!(added).to_string());
        return Ok(Exit::Ok);
    }
    for task in added {
        line(&task.task.to_string());
        if task.existing {
            eprintln!("task {} already exists and stays as it is", task.key.unwrap_or_default());
        }
    }
    Ok(Exit::Ok)
}

/// Lists the tasks that wait and those that are claimed, of boards and pipelines alike.
fn ls(context: &Context, app: &App, queue: Option<&str>) -> Result<Exit, Failure> {
    let mut rows = Vec::new();
    let mut told = Vec::new();
    let now_ms = app.now().wall_ms;
    for OpenTask { execution, step, .. } in app.open_tasks(queue, MOST)? {
        let (run, created_ms) = (execution.id.run, execution.created_ms);
        let status = if execution.status() == ExecutionStatus::Running { "claimed" } else { "waiting" };
        let (queue, age) = (execution.queue.to_string(), span(now_ms - created_ms));
        rows.push(vec![run.to_string(), step.clone(), queue.clone(), status.to_owned(), age]);
        told.push(json!({
            "run": run, "step": step, "queue": queue, "status": status, "created_at": rfc3339(created_ms),
        }));
    }
    if context.json {
        line(&Value::Array(told).to_string());
    } else if rows.is_empty() {
        line("no tasks are open");
    } else {
        table(context.style, &["RUN", "STEP", "QUEUE", "STATUS", "AGE"], &rows);
    }
    Ok(Exit::Ok)
}

fn ls_board(context: &Context, app: &App, board: &BoardRow, statuses: &[String]) -> Result<Exit, Failure> {
    let tasks = boards::tasks(app, board, statuses, 0, MOST)?;
    if context.json {
        line(&json!(tasks).to_string());
    } else if tasks.is_empty() {
        line("no tasks");
    } else {
        task_table(context, &tasks);
    }
    Ok(Exit::Ok)
}

/// Prints a board's tasks, one on each line.
pub(super) fn task_table(context: &Context, tasks: &[TaskView]) {
    let rows: Vec<Vec<String>> = tasks
        .iter()
        .map(|task| {
            vec![
                task.task.to_string(),
                task.spec.key.clone().unwrap_or_default(),
                task.status.clone(),
                task.by.clone().unwrap_or_default(),
                task.spec.needs.join(" "),
                plain(&short(&task.spec.text)),
            ]
        })
        .collect();
    table(context.style, &["TASK", "KEY", "STATUS", "BY", "NEEDS", "TEXT"], &rows);
}

/// Returns the beginning of a text, to fit on one line with others.
fn short(text: &str) -> String {
    const WIDTH: usize = 40;
    let first = text.lines().next().unwrap_or_default();
    match first.char_indices().nth(WIDTH) {
        Some((end, _)) => format!("{}…", &first[..end]),
        None => first.to_owned(),
    }
}

fn shown(context: &Context, task: &TaskView) -> Result<Exit, Failure> {
    if context.json {
        line(&json!(task).to_string());
        return Ok(Exit::Ok);
    }
    line(&format!("task {} · {} · try {}", task.task, task.status, task.attempt));
    let lists = [("file", &task.spec.files), ("hint", &task.spec.hints), ("accept", &task.spec.acceptance)];
    line(&format!("\n{}\n", plain_lines(&task.spec.text)));
    for (what, entries) in lists {
        entries.iter().for_each(|entry| line(&format!("{what:<7} {}", plain(entry))));
    }
    if !task.spec.needs.is_empty() {
        line(&format!("needs   {}", task.spec.needs.join(" ")));
    }
    if let Some(by) = &task.by {
        line(&format!("by      {}", plain(by)));
    }
    if let Some(result) = &task.result {
        let text = serde_json::to_string_pretty(result).unwrap_or_default();
        line(&format!("result  {}", plain_lines(&text)));
    }
    Ok(Exit::Ok)
}

async fn claim(
    context: &Context,
    app: &App,
    board: Option<BoardRow>,
    queues: &[String],
    name: &str,
    wait: Duration,
    lease: &str,
) -> Result<Exit, Failure> {
    let lease = parse_time("--lease", lease)?;
    let queues = match (&board, queues.is_empty()) {
        (None, true) => vec!["tasks".to_owned()],
        _ => queues.to_vec(),
    };
    let from = board.as_ref().map_or_else(|| queues.join(", "), |board| board.name.to_string());
    let wanted =
        ClaimRequest { name: name.to_owned(), caller: "".into(), board, queues, wait, lease, nonce: 0 };
    match boards::claim(app, &wanted).await? {
        Ok(claimed) => given(context, &claimed),
        Err(nothing) if context.json => {
            let told = json!({ "token": null, "why": nothing.why, "retry_after_s": nothing.retry_after_s });
            line(&told.to_string());
            Ok(Exit::Nothing)
        }
        Err(nothing) => {
            let why = match nothing.why.as_str() {
                "empty" => "it has no tasks".to_owned(),
                "waiting_for_needs" => "the tasks wait for others".to_owned(),
                "backing_off" => "the tasks wait for their next try".to_owned(),
                "all_claimed" => "all tasks are claimed".to_owned(),
                other => other.replace('_', " "),
            };
            eprintln!("nothing to claim in {from}: {why}");
            Ok(Exit::Nothing)
        }
    }
}

fn given(context: &Context, task: &Claimed) -> Result<Exit, Failure> {
    if context.json {
        line(&json!(task).to_string());
        return Ok(Exit::Ok);
    }
    let token = &task.token;
    line(token);
    let name = task.key.as_deref().unwrap_or(&task.step);
    eprintln!("{} of run {}: yours for {}", plain(name), task.run, span(task.lease_s * 1000));
    eprintln!("\n{}\n", plain_lines(&task.prompt));
    if !is_empty(&task.with) {
        eprintln!("{}\n", readable(&task.with, 0));
    }
    for (need, said) in &task.needs {
        let mut told = format!("{} is {}\n", plain(need), plain(said["status"].as_str().unwrap_or_default()));
        if !is_empty(&said["result"]) {
            told += &format!("{}\n", readable(&said["result"], 2));
        }
        eprintln!("{told}");
    }
    if let Some(feedback) = &task.feedback {
        eprintln!("feedback on the last try:\n{}\n", plain_lines(feedback));
    }
    eprintln!(
        "next: sprag task done {token} · sprag task fail {token} --reason TEXT · sprag task heartbeat {token}"
    );
    Ok(Exit::Ok)
}

/// Returns whether a value has nothing to read.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(entries) => entries.values().all(is_empty),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Returns a value for people: one line for each entry that says something, and a list below its name.
fn readable(value: &Value, indent: usize) -> String {
    let space = " ".repeat(indent);
    let text = |value: &Value| match value {
        Value::String(text) => plain_lines(text).replace('\n', &format!("\n{space}  ")),
        other => plain(&other.to_string()),
    };
    let lines: Vec<String> = match value {
        Value::Object(entries) => entries
            .iter()
            .filter(|(_, value)| !is_empty(value))
            .map(|(name, value)| match value {
                Value::Object(_) | Value::Array(_) => {
                    format!("{space}{}:\n{}", plain(name), readable(value, indent + 2))
                }
                value => format!("{space}{}: {}", plain(name), text(value)),
            })
            .collect(),
        Value::Array(list) => list.iter().map(|entry| format!("{space}- {}", text(entry))).collect(),
        value => vec![format!("{space}{}", text(value))],
    };
    lines.join("\n")
}

fn plain_lines(text: &str) -> String {
    text.lines().map(plain).collect::<Vec<_>>().join("\n")
}

fn said(context: &Context, token: &str, what: &str) -> Result<Exit, Failure> {
    if context.json {
        line(&json!({ "token": token, "outcome": what }).to_string());
    } else {
        eprintln!("{what}");
    }
    Ok(Exit::Ok)
}
