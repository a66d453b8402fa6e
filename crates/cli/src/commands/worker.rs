//! `sprag worker`: works off what was left to workers.

use std::time::Duration;

use serde_json::json;
use sprag::Engine;
use sprag::bus::Address;
use sprag::view::WorkerView;
use sprag_store::{RunRow, Store, Table};
use tokio::signal::unix::{SignalKind, signal};

use crate::context::{Context, this_program};
use crate::exit::{Exit, Failure};
use crate::show::{line, plain, table};

/// How a worker is to behave.
pub(crate) struct Options {
    pub(crate) queues: Vec<String>,
    pub(crate) labels: Vec<String>,
    pub(crate) slots: Option<usize>,
    pub(crate) name: Option<String>,
    pub(crate) until_idle: bool,
    pub(crate) lease: Duration,
    pub(crate) deadline: Duration,
    pub(crate) bus: Option<Address>,
}

pub(crate) async fn worker(context: &Context, options: Options) -> Result<Exit, Failure> {
    let Options { queues, labels, slots, name, until_idle, lease, deadline, bus } = options;
    check_labels(&labels)?;
    if slots == Some(0) {
        return Err(Failure::usage("--slots must be at least 1"));
    }
    let _ = sprag_process::become_subreaper();
    let store = context.store()?;
    let idle_at_first = until_idle && is_idle(&store)?;
    let mut builder = Engine::builder(&context.data)
        .store(store.clone())
        .commands(this_program()?)
        .lease(lease)
        .dispatch_deadline(deadline)
        .queues(queues.iter().map(String::as_str))
        .labels(labels.iter().map(String::as_str));
    if let Some(slots) = slots {
        builder = builder.slots(slots);
    }
    if let Some(name) = name {
        builder = builder.name(name);
    }
    if let Some(bus) = &bus {
        builder = builder.bus(bus.clone());
    }
    let engine = builder.start().await?;
    eprintln!("worker {} serves {}; Ctrl-C drains and stops", engine.worker_id(), queues.join(", "));
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        result = idle(&store), if until_idle => result?,
    }
    if !until_idle {
        eprintln!("draining: finishing the steps it has; a second signal ends them");
    }
    let again = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    drain(engine, again).await?;
    let figures = sprag_worktree::snapshot();
    if figures.creates + figures.create_failures + figures.removes + figures.cleanup_failures > 0 {
        tracing::info!(?figures, "worktrees");
        eprintln!("worktrees: {figures}");
    }
    if bus.is_some() {
        eprintln!("bus: {}", sprag::bus::snapshot());
    }
    Ok(if idle_at_first { Exit::Nothing } else { Exit::Ok })
}

/// Labels as a pipeline can name them.
pub(crate) fn check_labels(labels: &[String]) -> Result<(), Failure> {
    let is_name = |label: &&String| {
        label.len() <= 64
            && label.starts_with(|c: char| c.is_ascii_alphanumeric())
            && label.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    match labels.iter().find(|label| !is_name(label)) {
        Some(label) => Err(Failure::usage(format!("--label {label:?} cannot be asked for by a step"))
            .next("write 1 to 64 letters, digits, `-`, `_` and `.`, a letter or digit first")),
        None => Ok(()),
    }
}

/// `sprag worker ls`: who is there.
pub(crate) fn ls(context: &Context) -> Result<Exit, Failure> {
    let store = context.store()?;
    let (mut workers, now) = (store.read(|db| db.workers())?, store.now());
    workers.sort_by(|a, b| a.name.cmp(&b.name));
    let views: Vec<WorkerView> = workers.iter().map(|worker| WorkerView::of(worker, now)).collect();
    if context.json {
        line(&json!(views).to_string());
        return Ok(Exit::Ok);
    }
    if views.is_empty() {
        line("no worker is there: start one with `sprag worker`");
        return Ok(Exit::Nothing);
    }
    let mut rows = Vec::new();
    for (worker, view) in workers.iter().zip(&views) {
        let busy = store.read(|db| db.held_by(worker.id))?.len();
        let or_none = |list: &[String]| if list.is_empty() { "-".to_owned() } else { plain(&list.join(",")) };
        rows.push(vec![
            plain(&view.name),
            view.status.to_owned(),
            format!("{busy}/{}", view.slots),
            or_none(&view.queues),
            or_none(&view.labels),
            plain(&view.host),
        ]);
    }
    table(context.style, &["WORKER", "STATUS", "BUSY", "QUEUES", "LABELS", "HOST"], &rows);
    Ok(Exit::Ok)
}

/// A lease as it was written: long enough for its heartbeats to come in time.
pub(crate) fn lease(text: &str) -> Result<Duration, Failure> {
    at_least_5s("--lease", text)
}

/// A deadline as it was written: long enough for workers that are there to come.
pub(crate) fn dispatch_deadline(text: &str) -> Result<Duration, Failure> {
    at_least_5s("--dispatch-deadline", text)
}

fn at_least_5s(flag: &str, text: &str) -> Result<Duration, Failure> {
    const SHORTEST: Duration = Duration::from_secs(5);
    let next = "write it like 30s or 2m, at least 5s";
    match sprag_pipeline::parse_duration(text) {
        Ok(time) if time >= SHORTEST => Ok(time),
        Ok(_) => Err(Failure::usage(format!("{flag} {text} is too short")).next(next)),
        Err(error) => Err(Failure::usage(format!("{flag} {text:?}: {error}")).next(next)),
    }
}

/// Finishes what goes on; ends it instead as soon as `impatient` is ready.
pub(crate) async fn drain(engine: Engine, impatient: impl Future<Output = ()>) -> Result<(), Failure> {
    let abandon = engine.abandoner();
    let mut done = std::pin::pin!(engine.shutdown());
    tokio::select! {
        result = &mut done => return Ok(result?),
        () = impatient => abandon.abandon(),
    }
    Ok(done.await?)
}

fn is_idle(store: &Store) -> Result<bool, Failure> {
    /// More live runs than this are not nothing.
    const LOOK: usize = 10_000;
    store
        .read(|db| {
            for run in db.live_runs(None, LOOK)? {
                // A run that is reserved to its own process was not left to workers.
                if Table::<RunRow>::load(db, run)?.is_some_and(|row| row.pin.is_none()) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .map_err(Failure::from)
}

/// Waits until no run is left to workers.
async fn idle(store: &Store) -> Result<(), Failure> {
    let wake = store.subscribe(vec![sprag_store::Topic::Journal]);
    while !is_idle(store)? {
        wake.wait(Duration::from_secs(1)).await;
    }
    Ok(())
}
