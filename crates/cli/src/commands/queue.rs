//! `sprag queue`: the queues in which executions wait for workers.

use serde_json::{Value, json};

use super::server::escaped;
use super::source::{Source, elements};
use crate::args::{Group, QueueCommand};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{line, plain, span, table};

/// A change of a queue's settings.
#[derive(Debug, Clone, Copy)]
enum Change {
    Hold,
    Release,
    Limit(Option<u32>),
}

pub(crate) async fn queue(context: &Context, group: &Group<QueueCommand>) -> Result<Exit, Failure> {
    let source = Source::open(context, &group.at)?;
    match &group.command {
        QueueCommand::Ls => ls(context, &all(&source).await?),
        QueueCommand::Hold { queue } => change(context, &source, queue, Change::Hold).await,
        QueueCommand::Release { queue } => change(context, &source, queue, Change::Release).await,
        QueueCommand::Limit { queue, limit } => {
            let limit = match limit.as_str() {
                "none" => None,
                number => Some(number.parse::<u32>().map_err(|_| {
                    Failure::usage(format!("{number:?} is no limit")).next("write a number, or `none`")
                })?),
            };
            change(context, &source, queue, Change::Limit(limit)).await
        }
    }
}

async fn all(source: &Source<'_>) -> Result<Value, Failure> {
    match source {
        Source::Store(app) => Ok(json!(app.queues()?)),
        Source::Server(remote) => remote.list("/v1/queues", "queues").await,
    }
}

async fn change(context: &Context, source: &Source<'_>, name: &str, change: Change) -> Result<Exit, Failure> {
    let is_new = !elements(&all(source).await?).iter().any(|queue| queue["name"] == name);
    match source {
        Source::Store(app) => {
            let change = move |queue: &mut sprag_app::QueueRow| match change {
                Change::Hold => queue.held = true,
                Change::Release => queue.held = false,
                Change::Limit(limit) => queue.limit = limit,
            };
            app.change_queue(name, change).await?;
        }
        Source::Server(remote) => {
            let (method, verb, body) = match change {
                Change::Hold => ("POST", "hold", None),
                Change::Release => ("POST", "release", None),
                Change::Limit(limit) => ("PUT", "limit", Some(json!({ "limit": limit }))),
            };
            remote.send(method, &format!("/v1/queues/{}/{verb}", escaped(name)), body).await?;
        }
    }
    if is_new {
        eprintln!("queue {} is new: no step waits in it, and no worker serves it", plain(name));
    }
    let all = all(source).await?;
    let found = elements(&all).iter().find(|queue| queue["name"] == name).cloned().unwrap_or_default();
    if context.json {
        line(&found.to_string());
        return Ok(Exit::Ok);
    }
    ls(context, &json!([found]))
}

fn ls(context: &Context, queues: &Value) -> Result<Exit, Failure> {
    if context.json {
        line(&queues.to_string());
        return Ok(Exit::Ok);
    }
    let queues = elements(queues);
    if queues.is_empty() {
        line("no queues: nothing waits, and no worker is online");
        return Ok(Exit::Ok);
    }
    let row = |queue: &Value| {
        let count = |key: &str| queue[key].as_u64().unwrap_or(0);
        vec![
            plain(queue["name"].as_str().unwrap_or_default()),
            if queue["held"] == true { "held".to_owned() } else { "open".to_owned() },
            (count("requested") + count("scheduled")).to_string(),
            count("running").to_string(),
            queue["limit"].as_u64().map_or_else(|| "-".to_owned(), |limit| limit.to_string()),
            queue["oldest_ms"].as_i64().map(span).unwrap_or_default(),
            count("workers").to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = queues.iter().map(row).collect();
    table(context.style, &["QUEUE", "STATUS", "WAITING", "RUNNING", "LIMIT", "OLDEST", "WORKERS"], &rows);
    Ok(Exit::Ok)
}
