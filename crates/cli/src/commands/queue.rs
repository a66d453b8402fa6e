//! `sprag queue`: the queues in which executions wait for workers.

use serde_json::json;
use sprag_app::view::QueueView;
use sprag_app::{App, QueueRow};

use crate::args::QueueCommand;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{line, plain, span, table};

pub(crate) async fn queue(context: &Context, command: &QueueCommand) -> Result<Exit, Failure> {
    let app = context.app()?;
    match command {
        QueueCommand::Ls => ls(context, &all(&app)?),
        QueueCommand::Hold { queue } => change(context, &app, queue, |queue| queue.held = true).await,
        QueueCommand::Release { queue } => change(context, &app, queue, |queue| queue.held = false).await,
        QueueCommand::Limit { queue, limit } => {
            let limit = match limit.as_str() {
                "none" => None,
                number => Some(number.parse::<u32>().map_err(|_| {
                    Failure::usage(format!("{number:?} is no limit")).next("write a number, or `none`")
                })?),
            };
            change(context, &app, queue, move |queue| queue.limit = limit).await
        }
    }
}

fn all(app: &App) -> Result<Vec<QueueView>, Failure> {
    Ok(app.queues()?)
}

async fn change(
    context: &Context,
    app: &App,
    name: &str,
    change: impl Fn(&mut QueueRow) + Send + 'static,
) -> Result<Exit, Failure> {
    let is_new = !all(app)?.iter().any(|queue| queue.name == name);
    app.change_queue(name, change).await?;
    if is_new {
        eprintln!("queue {} is new: no step waits in it, and no worker serves it", plain(name));
    }
    let found: Vec<QueueView> = all(app)?.into_iter().filter(|queue| queue.name == name).collect();
    if context.json {
        line(&json!(found.first()).to_string());
        return Ok(Exit::Ok);
    }
    ls(context, &found)
}

fn ls(context: &Context, queues: &[QueueView]) -> Result<Exit, Failure> {
    if context.json {
        line(&json!(queues).to_string());
        return Ok(Exit::Ok);
    }
    if queues.is_empty() {
        line("no queues: nothing waits, and no worker is online");
        return Ok(Exit::Ok);
    }
    let rows: Vec<Vec<String>> = queues
        .iter()
        .map(|queue| {
            vec![
                plain(&queue.name),
                if queue.held { "held".to_owned() } else { "open".to_owned() },
                (queue.requested + queue.scheduled).to_string(),
                queue.running.to_string(),
                queue.limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string()),
                queue.oldest_ms.map(span).unwrap_or_default(),
                queue.workers.to_string(),
            ]
        })
        .collect();
    table(context.style, &["QUEUE", "STATUS", "WAITING", "RUNNING", "LIMIT", "OLDEST", "WORKERS"], &rows);
    Ok(Exit::Ok)
}
