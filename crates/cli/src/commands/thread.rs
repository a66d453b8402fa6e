//! `sprag thread`: the conversations of agent steps, and messages to their agents.

use std::time::Duration;

use serde_json::json;
use sprag_app::{MOST_EVENTS, Row, Started, ThreadView, transcript_text};

use super::run::{Attached, WorkerOptions, detached};
use crate::args::ThreadCommand;
use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{Style, line, local, plain, table};

/// The time between two looks at a transcript that grows.
const FOLLOW: Duration = Duration::from_millis(200);

pub(crate) async fn thread(context: &Context, command: &ThreadCommand) -> Result<Exit, Failure> {
    match command {
        ThreadCommand::Ls { run } => ls(context, run.as_deref()),
        ThreadCommand::Show { thread } => show(context, thread),
        ThreadCommand::Send { thread, message, detach } => send(context, thread, message, *detach).await,
        ThreadCommand::Stop { thread } => {
            let run = context.app()?.stop_thread(thread).await?;
            if context.json {
                line(&json!({ "thread": thread, "cancelled": run }).to_string());
            } else {
                eprintln!("stopping run {run}");
            }
            Ok(Exit::Ok)
        }
        ThreadCommand::Log { thread, follow, raw } => log(context, thread, *follow, *raw).await,
        ThreadCommand::Archive { thread } => {
            context.app()?.archive_thread(thread).await?;
            done(context, &json!({ "thread": thread, "archived": true }), "archived")
        }
        ThreadCommand::Rm { thread } => {
            let run = context.app()?.remove_thread(thread).await?;
            done(context, &json!({ "thread": thread, "removed": true, "cancelled": run }), "removed")
        }
    }
}

fn done(context: &Context, facts: &serde_json::Value, told: &str) -> Result<Exit, Failure> {
    if context.json {
        line(&facts.to_string());
    } else {
        eprintln!("{told}");
    }
    Ok(Exit::Ok)
}

/// Prints the transcript of a thread.
async fn log(context: &Context, name: &str, follow: bool, raw: bool) -> Result<Exit, Failure> {
    let app = context.app()?;
    let mut reader = app.transcript(name)?;
    let mut position = 0;
    loop {
        let page = reader.read(&app, position, MOST_EVENTS)?;
        position = page.next;
        for event in &page.events {
            if raw || context.json {
                line(&json!(event).to_string());
            } else if let Some(text) = transcript_text(&event.event) {
                text.lines().for_each(|shown| line(&plain(shown)));
            }
        }
        if page.events.is_empty() {
            if !follow || !page.is_live {
                return Ok(Exit::Ok);
            }
            app.pause(FOLLOW).await;
        }
    }
}

fn ls(context: &Context, run: Option<&str>) -> Result<Exit, Failure> {
    let app = context.app()?;
    let run = run.map(|run| find_run(&app, Some(run))).transpose()?.map(|known| known.id());
    let threads = app.threads(run, &sprag_app::Reach::default())?;
    if context.json {
        line(&json!(threads).to_string());
    } else if threads.is_empty() {
        line("no threads: no agent step has started");
    } else {
        print(context, &threads);
    }
    Ok(Exit::Ok)
}

fn print(context: &Context, threads: &[ThreadView]) {
    let rows: Vec<Vec<String>> = threads
        .iter()
        .map(|thread| {
            vec![
                plain(&thread.thread),
                plain(&thread.pipeline),
                plain(&thread.agent),
                thread.status.to_owned(),
                thread.turns.to_string(),
                thread.held_by.clone().unwrap_or_default(),
            ]
        })
        .collect();
    table(context.style, &["THREAD", "PIPELINE", "AGENT", "STATUS", "TURNS", "HELD BY"], &rows);
}

fn show(context: &Context, name: &str) -> Result<Exit, Failure> {
    let app = context.app()?;
    let (thread, talks) = (app.conversation(name)?.thread, app.talks(name)?);
    if context.json {
        let talks: Vec<_> = talks
            .iter()
            .map(|row| json!({ "run": row.id, "status": row.status(), "message": message_of(&row.inputs) }))
            .collect();
        let mut told = json!(thread);
        told["messages"] = json!(talks);
        line(&told.to_string());
        return Ok(Exit::Ok);
    }
    print(context, std::slice::from_ref(&thread));
    for row in &talks {
        let message = message_of(&row.inputs);
        let head = message.lines().next().unwrap_or_default();
        line(&format!("{}  {}  {}  {}", row.id, local(row.created_ms), row.status(), plain(head)));
    }
    line(&context.style.dim(&format!(
        "sprag logs {} {} · sprag resume {}",
        thread.run,
        plain(&thread.step),
        thread.run
    )));
    Ok(Exit::Ok)
}

fn message_of(inputs: &str) -> String {
    let inputs: serde_json::Value = serde_json::from_str(inputs).unwrap_or_default();
    inputs["message"].as_str().unwrap_or_default().to_owned()
}

async fn send(context: &Context, name: &str, message: &str, detach: bool) -> Result<Exit, Failure> {
    let app = context.app()?;
    let start = app.talk(name, message).await?;
    if detach {
        let Started { run, .. } = app.start_run(start).await?;
        return detached(context, &app, run.id);
    }
    let attached = Attached::prepare(context, &app, start.id(), WorkerOptions::default())?;
    let started = app.start_run(start.reserved_to(attached.worker()?)).await?;
    let exit = attached.see_through(context, &app, started.run.id, None).await?;
    if exit == Exit::Ok && !context.json {
        let run = name.split('/').next().unwrap_or_default();
        eprintln!("{} sprag resume {run} lets the step continue from here", Style::stderr().dim("then:"));
    }
    Ok(exit)
}
