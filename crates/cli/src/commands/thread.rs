//! `sprag thread`: the conversations of agent steps, and messages to their agents.

use std::time::Duration;

use serde_json::{Value, json};
use sprag_app::{MOST_EVENTS, Started, TranscriptReader, transcript_text};

use super::run::{Attached, WorkerOptions, detached};
use super::server::{AtRemote, escaped};
use super::source::{Source, elements};
use crate::args::{Group, ThreadCommand};
use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{Style, line, local, plain, table, time_in};

/// The time between two looks at a transcript that grows.
const FOLLOW: Duration = Duration::from_millis(200);

pub(crate) async fn thread(context: &Context, group: &Group<ThreadCommand>) -> Result<Exit, Failure> {
    let source = Source::open(context, &group.at)?;
    match &group.command {
        ThreadCommand::Ls { run } => ls(context, &source, run.as_deref()).await,
        ThreadCommand::Show { thread } => show(context, &source, thread).await,
        ThreadCommand::Send { thread, message, detach } => {
            send(context, &source, thread, message, *detach).await
        }
        ThreadCommand::Stop { thread } => {
            let run = match &source {
                Source::Store(app) => json!(app.stop_thread(thread).await?),
                Source::Server(remote) => {
                    let path = format!("{}/stop", remote.thread_path(thread).await?);
                    remote.post(&path, json!({})).await?["run"].take()
                }
            };
            if context.json {
                line(&json!({ "thread": thread, "cancelled": run }).to_string());
            } else {
                eprintln!("stopping run {}", plain(run.as_str().unwrap_or_default()));
            }
            Ok(Exit::Ok)
        }
        ThreadCommand::Log { thread, follow, raw } => log(context, &source, thread, *follow, *raw).await,
        ThreadCommand::Archive { thread } => {
            match &source {
                Source::Store(app) => app.archive_thread(thread).await.map(drop)?,
                Source::Server(remote) => {
                    let path = format!("{}/archive", remote.thread_path(thread).await?);
                    remote.post(&path, json!({})).await?;
                }
            }
            done(context, &json!({ "thread": thread, "archived": true }), "archived")
        }
        ThreadCommand::Rm { thread } => {
            let run = match &source {
                Source::Store(app) => json!(app.remove_thread(thread).await?),
                Source::Server(remote) => {
                    let path = remote.thread_path(thread).await?;
                    let held_by = remote.get(&path).await?["held_by"].take();
                    remote.send("DELETE", &path, None).await?;
                    held_by
                }
            };
            done(context, &json!({ "thread": thread, "removed": true, "cancelled": run }), "removed")
        }
    }
}

impl AtRemote<'_> {
    /// Returns the path of a thread, by its name, `RUN/STEP`.
    async fn thread_path(&self, name: &str) -> Result<String, Failure> {
        let Some((run, step)) = name.split_once('/') else {
            return Err(Failure::usage(format!("{name:?} is not the name of a thread"))
                .next(format!("write it as RUN/STEP; sprag thread ls{} lists them", self.at())));
        };
        let run = self.run(Some(run)).await?;
        Ok(format!("/v1/runs/{}/steps/{}/thread", escaped(&run), escaped(step)))
    }
}

fn done(context: &Context, facts: &Value, told: &str) -> Result<Exit, Failure> {
    if context.json {
        line(&facts.to_string());
    } else {
        eprintln!("{told}");
    }
    Ok(Exit::Ok)
}

/// A transcript that is read page by page.
enum Transcript<'s> {
    Store(&'s sprag_app::App, TranscriptReader),
    Server(&'s AtRemote<'s>, String),
}

impl Transcript<'_> {
    /// Returns the page after a position, as programs see it.
    async fn page(&mut self, position: u64) -> Result<Value, Failure> {
        match self {
            Transcript::Store(app, reader) => Ok(json!(reader.read(app, position, MOST_EVENTS)?)),
            Transcript::Server(remote, path) => {
                remote.get(&format!("{path}/transcript?after={position}&limit={MOST_EVENTS}")).await
            }
        }
    }
}

/// Prints the transcript of a thread.
async fn log(
    context: &Context,
    source: &Source<'_>,
    name: &str,
    follow: bool,
    raw: bool,
) -> Result<Exit, Failure> {
    let mut transcript = match source {
        Source::Store(app) => Transcript::Store(app, app.transcript(name)?),
        Source::Server(remote) => Transcript::Server(remote, remote.thread_path(name).await?),
    };
    let mut position = 0;
    let mut ticks = tokio::time::interval(FOLLOW);
    loop {
        let page = transcript.page(position).await?;
        position = page["next"].as_u64().unwrap_or(position);
        let events = elements(&page["events"]);
        for event in events {
            if raw || context.json {
                line(&event.to_string());
            } else if let Some(text) = transcript_text(&event["event"]) {
                text.lines().for_each(|shown| line(&plain(shown)));
            }
        }
        if events.is_empty() {
            if !follow || page["is_live"] != true {
                return Ok(Exit::Ok);
            }
            ticks.tick().await;
        }
    }
}

async fn ls(context: &Context, source: &Source<'_>, run: Option<&str>) -> Result<Exit, Failure> {
    let threads = match (source, run) {
        (Source::Store(app), run) => {
            let run = run.map(|run| find_run(app, Some(run))).transpose()?.map(|known| known.id());
            json!(app.threads(run, &sprag_app::Reach::default())?)
        }
        (Source::Server(remote), None) => remote.list("/v1/threads", "threads").await?,
        (Source::Server(remote), run) => {
            let run = remote.run(run).await?;
            remote.list(&format!("/v1/threads?run={}", escaped(&run)), "threads").await?
        }
    };
    if context.json {
        line(&threads.to_string());
    } else if elements(&threads).is_empty() {
        line("no threads: no agent step has started");
    } else {
        print(context, elements(&threads));
    }
    Ok(Exit::Ok)
}

fn word(value: &Value, key: &str) -> String {
    plain(value[key].as_str().unwrap_or_default())
}

fn print(context: &Context, threads: &[Value]) {
    let row = |thread: &Value| {
        let mut cells: Vec<String> =
            ["thread", "pipeline", "agent", "status"].iter().map(|key| word(thread, key)).collect();
        cells.push(thread["turns"].as_u64().unwrap_or(0).to_string());
        cells.push(word(thread, "held_by"));
        cells
    };
    let rows: Vec<Vec<String>> = threads.iter().map(row).collect();
    table(context.style, &["THREAD", "PIPELINE", "AGENT", "STATUS", "TURNS", "HELD BY"], &rows);
}

async fn show(context: &Context, source: &Source<'_>, name: &str) -> Result<Exit, Failure> {
    let thread = match source {
        Source::Store(app) => json!(app.conversation(name)?),
        Source::Server(remote) => remote.get(&remote.thread_path(name).await?).await?,
    };
    if context.json {
        line(&thread.to_string());
        return Ok(Exit::Ok);
    }
    print(context, std::slice::from_ref(&thread));
    for message in elements(&thread["messages"]) {
        let head = message["message"].as_str().and_then(|text| text.lines().next()).unwrap_or_default();
        let sent = time_in(message, "created_at").map(local).unwrap_or_default();
        line(&format!("{}  {sent}  {}  {}", word(message, "run"), word(message, "status"), plain(head)));
    }
    let (run, step, at) = (word(&thread, "run"), word(&thread, "step"), source.at());
    line(&context.style.dim(&format!("sprag logs {run} {step}{at} · sprag resume {run}{at}")));
    Ok(Exit::Ok)
}

async fn send(
    context: &Context,
    source: &Source<'_>,
    name: &str,
    message: &str,
    detach: bool,
) -> Result<Exit, Failure> {
    let exit = match source {
        Source::Store(app) => {
            let start = app.talk(name, message).await?;
            if detach {
                let Started { run, .. } = app.start_run(start).await?;
                return detached(context, app, run.id);
            }
            let attached = Attached::prepare(context, app, start.id(), WorkerOptions::default())?;
            let started = app.start_run(start.reserved_to(attached.worker()?)).await?;
            attached.see_through(context, app, started.run.id, None).await?
        }
        Source::Server(remote) => {
            let path = format!("{}/messages", remote.thread_path(name).await?);
            let told = remote.post(&path, json!({ "message": message })).await?;
            let told = json!({ "id": told["run"], "status": "queued" });
            let exit = remote.shown(&told, "started", 0, detach).await?;
            if detach {
                return Ok(exit);
            }
            exit
        }
    };
    if exit == Exit::Ok && !context.json {
        let (run, at) = (name.split('/').next().unwrap_or_default(), source.at());
        eprintln!("{} sprag resume {run}{at} lets the step continue from here", Style::stderr().dim("then:"));
    }
    Ok(exit)
}
