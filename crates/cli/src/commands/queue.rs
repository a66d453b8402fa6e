//! `sprag queue`: where work waits for workers.

use serde_json::json;
use sprag::view::QueueView;
use sprag_store::{QueueRow, Store};

use crate::args::QueueCommand;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{line, plain, span, table};

pub(crate) async fn queue(context: &Context, command: &QueueCommand) -> Result<Exit, Failure> {
    let store = context.store()?;
    match command {
        QueueCommand::Ls => ls(context, &all(&store)?),
        QueueCommand::Hold { queue } => change(context, &store, queue, |queue| queue.held = true).await,
        QueueCommand::Release { queue } => change(context, &store, queue, |queue| queue.held = false).await,
        QueueCommand::Limit { queue, limit } => {
            let limit = match limit.as_str() {
                "none" => None,
                number => Some(number.parse::<u32>().map_err(|_| {
                    Failure::usage(format!("{number:?} is no limit")).next("write a number, or `none`")
                })?),
            };
            change(context, &store, queue, move |queue| queue.limit = limit).await
        }
    }
}

fn all(store: &Store) -> Result<Vec<QueueView>, Failure> {
    let (settings, counts, workers) =
        store.read(|db| Ok((db.queues()?, db.queue_counts()?, db.workers()?)))?;
    Ok(sprag::view::queues(&settings, &counts, &workers, store.now()))
}

async fn change(
    context: &Context,
    store: &Store,
    name: &str,
    change: impl Fn(&mut QueueRow) + Send + 'static,
) -> Result<Exit, Failure> {
    sprag::change_queue(store, name, change).await?;
    let found: Vec<QueueView> = all(store)?.into_iter().filter(|queue| queue.name == name).collect();
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
        line("no queue holds anything, and nobody serves one");
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
    table(context.style, &["QUEUE", "STATUS", "WAITING", "OUT", "LIMIT", "OLDEST", "WORKERS"], &rows);
    Ok(Exit::Ok)
}
