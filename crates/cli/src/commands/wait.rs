//! `sprag wait`: until a run has ended.

use std::time::Duration;

use sprag_lifecycle::RunId;
use sprag_store::{Row, RunRow, Store, Table, Topic};

use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::show::line;

pub(crate) async fn wait(
    context: &Context,
    run: Option<&str>,
    timeout: Option<&str>,
) -> Result<Exit, Failure> {
    let limit = timeout.map(|text| parse_time("--timeout", text)).transpose()?;
    let store = context.store()?;
    let run = find_run(&store, run)?.id();
    let ended = ended(&store, run);
    let ended = match limit {
        None => ended.await?,
        Some(limit) => match tokio::time::timeout(limit, ended).await {
            Ok(status) => status?,
            Err(_) => return Ok(Exit::TimedOut),
        },
    };
    let Some(status) = ended else {
        return super::gates::waits_for_person(context, &store, run, false);
    };
    if context.json {
        line(&serde_json::json!({ "type": "result", "run": run, "status": status }).to_string());
    } else {
        line(&format!("{run} {}", context.style.status(status.to_string().as_str(), 0)));
    }
    Ok(status.into())
}

/// Waits until the run has ended; none if it waits for a person and nothing else of it goes on.
async fn ended(store: &Store, run: RunId) -> Result<Option<sprag_lifecycle::RunStatus>, Failure> {
    let wake = store.subscribe(vec![Topic::Run(run)]);
    loop {
        fire_due(store, run).await?;
        let row = store.read(|db| Table::<RunRow>::load(db, run))?;
        match row.map(|row| row.status()) {
            Some(status) if status.is_terminal() => return Ok(Some(status)),
            Some(_) if !crate::live::questions_alone(store, run)?.is_empty() => return Ok(None),
            Some(_) => wake.wait(Duration::from_secs(2)).await,
            None => return Err(Failure::error(format!("run {run} is gone"))),
        }
    }
}

/// Acts on what is due in this run: nobody else may be there to do it.
async fn fire_due(store: &Store, run: RunId) -> Result<(), Failure> {
    const MOST: usize = 1000;
    let now_ms = store.now().steady_ms;
    for timer in store.read(|db| db.timers_due(now_ms, MOST))? {
        if timer.execution.run == run {
            store.executor().timer_fired(timer.execution).await?;
        }
    }
    Ok(())
}

/// A time like `90s`, `5m` or `1h30m`.
pub(super) fn parse_time(option: &str, text: &str) -> Result<Duration, Failure> {
    sprag_pipeline::parse_duration(text).map_err(|error| {
        Failure::usage(format!("{option} {text:?}: {error}")).next("write it like 90s, 5m or 1h30m")
    })
}
