//! `sprag task`: work that agents and people claim from outside. A claim gives a token. Its holder may report as long
//! as the claim lasts.

use std::time::Duration;

use serde_json::{Map, Value, json};
use sprag_app::boards::{ClaimSpec, Claimed, Done, TaskAdded, TaskSpec, TaskView};

use super::source::{Source, elements};
use super::wait::parse_time;
use crate::args::{Group, TaskCommand};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{line, plain, span, table, time_in};

pub(crate) async fn task(context: &Context, group: &Group<TaskCommand>) -> Result<Exit, Failure> {
    let source = Source::open(context, &group.at)?;
    let command = &group.command;
    match command {
        TaskCommand::Add { board, text, .. } => {
            let spec = TaskSpec { text: super::board::text_or_file(text)?, ..spec_of(command) };
            added(context, source.add_tasks(board, &[spec]).await?)
        }
        TaskCommand::Batch { board, file } => {
            let text = super::board::read_file(file)?;
            let specs: Vec<TaskSpec> = serde_json::from_str(&text).map_err(|error| {
                Failure::usage(format!("{file} is not a list of tasks: {error}"))
                    .next("write it like [{\"key\": \"a\", \"text\": \"…\"}, {\"text\": \"…\", \"needs\": [\"a\"]}]")
            })?;
            added(context, source.add_tasks(board, &specs).await?)
        }
        TaskCommand::Ls { board, status, queue } => match board.name() {
            Some(board) => ls_board(context, &source.tasks(board, status).await?),
            None => ls(context, &source.open_tasks(queue.as_deref()).await?),
        },
        TaskCommand::Show { board, task } => shown(context, &source.task(board, task).await?),
        TaskCommand::Claim { board, queues, name, wait, lease } => {
            let wait = wait.as_deref().map(|wait| parse_time("--wait", wait)).transpose()?;
            claim(context, &source, board.name(), queues, name, wait.unwrap_or_default(), lease).await
        }
        TaskCommand::Start { token, lease } => {
            let lease = parse_time("--lease", lease)?;
            given(context, &source.start_task(token, lease).await?, &source.at())
        }
        TaskCommand::Heartbeat { token, lease } => {
            source.extend_claim(token, parse_time("--lease", lease)?).await?;
            said(context, token, "held")
        }
        TaskCommand::Done { token, .. } => {
            source.report_done(token, &done_of(command)?).await?;
            said(context, token, "reported")
        }
        TaskCommand::Fail { token, reason, for_good } => {
            source.report_failed(token, reason, *for_good).await?;
            said(context, token, "reported")
        }
        TaskCommand::Release { token } => {
            source.release_claim(token).await?;
            said(context, token, "released")
        }
        TaskCommand::Cancel { board, task } => shown(context, &source.cancel_task(board, task).await?),
        TaskCommand::Retry { board, task } => shown(context, &source.retry_task(board, task).await?),
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

fn added(context: &Context, added: Vec<TaskAdded>) -> Result<Exit, Failure> {
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

/// Prints the tasks that wait and those that are claimed, of boards and pipelines alike.
fn ls(context: &Context, tasks: &Value) -> Result<Exit, Failure> {
    if context.json {
        line(&tasks.to_string());
        return Ok(Exit::Ok);
    }
    if elements(tasks).is_empty() {
        line("no tasks are open");
        return Ok(Exit::Ok);
    }
    let now_ms = jiff::Timestamp::now().as_millisecond();
    let row = |task: &Value| {
        let mut cells: Vec<String> = ["run", "step", "queue", "status"]
            .iter()
            .map(|key| plain(task[key].as_str().unwrap_or_default()))
            .collect();
        cells.push(time_in(task, "created_at").map(|at| span(now_ms - at)).unwrap_or_default());
        cells
    };
    let rows: Vec<Vec<String>> = elements(tasks).iter().map(row).collect();
    table(context.style, &["RUN", "STEP", "QUEUE", "STATUS", "AGE"], &rows);
    Ok(Exit::Ok)
}

fn ls_board(context: &Context, tasks: &[TaskView]) -> Result<Exit, Failure> {
    if context.json {
        line(&json!(tasks).to_string());
    } else if tasks.is_empty() {
        line("no tasks");
    } else {
        task_table(context, tasks);
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
    source: &Source<'_>,
    board: Option<&str>,
    queues: &[String],
    name: &str,
    wait: Duration,
    lease: &str,
) -> Result<Exit, Failure> {
    let lease = parse_time("--lease", lease)?;
    let queues = match (board, queues.is_empty()) {
        (None, true) => vec!["tasks".to_owned()],
        _ => queues.to_vec(),
    };
    let from = board.map_or_else(|| queues.join(", "), str::to_owned);
    let spec =
        ClaimSpec { name: name.to_owned(), board: board.map(str::to_owned), queues, ..ClaimSpec::default() };
    match source.claim(spec, wait, lease).await? {
        Ok(claimed) => given(context, &claimed, &source.at()),
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

/// Prints a claimed task. `at` is added to the commands that it names.
fn given(context: &Context, task: &Claimed, at: &str) -> Result<Exit, Failure> {
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
        "next: sprag task done {token}{at} · sprag task fail {token} --reason TEXT{at} · sprag task heartbeat {token}{at}"
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
