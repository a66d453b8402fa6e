//! `sprag worker`: executes the runs that were left to workers.

use std::time::Duration;

use serde_json::{Value, json};
use sprag_app::bus::Address;
use sprag_app::{Engine, Topic, first_left};
use tokio::signal::unix::{SignalKind, signal};

use super::source::{Source, elements};
use crate::args::AtServer;
use crate::context::{Context, this_program};
use crate::exit::{Exit, Failure};
use crate::patience::Patience;
use crate::show::{Style, line, plain, table};

/// The pause between two checks whether any work is left.
const LOOK: Duration = Duration::from_millis(200);

/// The options of a worker.
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

/// The number of a worker that does not exist.
const NO_WORKER: i64 = 0;

pub(crate) async fn worker(context: &Context, options: Options) -> Result<Exit, Failure> {
    let Options { queues, labels, slots, name, until_idle, lease, deadline, bus } = options;
    check_labels(&labels)?;
    if slots == Some(0) {
        return Err(Failure::usage("--slots must be at least 1"));
    }
    let _ = sprag_process::become_subreaper();
    let app = context.app()?;
    let mut builder = Engine::builder(&context.data)
        .app(app.clone())
        .commands(this_program()?)
        .fake_agent(this_program()?)
        .step_tools(sprag_mcp::LocalStepTools::new(&app))
        .lease(lease)
        .dispatch_deadline(deadline)
        .queues(queues.iter().map(String::as_str))
        .labels(labels.iter().map(String::as_str));
    if let Some(slots) = slots {
        builder = builder.slots(slots);
    }
    let name = name.unwrap_or_else(|| format!("worker-{}", std::process::id()));
    builder = builder.name(name.clone());
    if let Some(bus) = &bus {
        builder = builder.bus(bus.clone());
    }
    // Its executor may end what a dead worker left before the look that follows.
    let idle_before = first_left(&app, NO_WORKER)?.is_none();
    let engine = builder.start().await?;
    let idle_at_first = until_idle && idle_before && first_left(&app, engine.worker_id())?.is_none();
    eprintln!("worker {name} serves {}; Ctrl-C stops it after its running steps", queues.join(", "));
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = engine.worker_ends() => return Ok(engine.shutdown().await.map(|()| Exit::Ok)?),
        result = idle(&engine), if until_idle => result?,
    }
    if !until_idle {
        eprintln!("Finishing the running steps. Press Ctrl-C again to stop them.");
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
        eprintln!("bus: {}", sprag_app::bus::snapshot());
    }
    Ok(if idle_at_first { Exit::Nothing } else { Exit::Ok })
}

/// Checks that labels have the form that a pipeline can name.
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

/// `sprag worker ls`: lists the workers.
pub(crate) async fn ls(context: &Context, at: &AtServer) -> Result<Exit, Failure> {
    let workers = match Source::open(context, at)? {
        Source::Store(app) => json!(app.worker_views(|_| true)?),
        Source::Server(remote) => remote.list("/v1/workers", "workers").await?,
    };
    if context.json {
        line(&workers.to_string());
        return Ok(Exit::Ok);
    }
    if elements(&workers).is_empty() {
        line("no workers online; start one: sprag worker");
        return Ok(Exit::Ok);
    }
    let row = |worker: &Value| {
        let text = |key: &str| plain(worker[key].as_str().unwrap_or_default());
        let or_none = |key: &str| {
            let words: Vec<&str> = elements(&worker[key]).iter().filter_map(Value::as_str).collect();
            if words.is_empty() { "-".to_owned() } else { plain(&words.join(",")) }
        };
        let (busy, slots) = (worker["busy"].as_u64().unwrap_or(0), worker["slots"].as_u64().unwrap_or(0));
        vec![
            text("name"),
            text("status"),
            if slots > 0 { format!("{busy}/{slots}") } else { busy.to_string() },
            or_none("queues"),
            or_none("labels"),
            text("host"),
        ]
    };
    let rows: Vec<Vec<String>> = elements(&workers).iter().map(row).collect();
    table(context.style, &["WORKER", "STATUS", "BUSY", "QUEUES", "LABELS", "HOST"], &rows);
    Ok(Exit::Ok)
}

/// Parses a lease. It must be long enough for its heartbeats to arrive in time.
pub(crate) fn lease(text: &str) -> Result<Duration, Failure> {
    at_least_5s("--lease", text)
}

/// Parses a dispatch deadline. It must be long enough for live workers to claim an execution.
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

/// Finishes the running executions; stops them instead as soon as `impatient` is ready.
pub(crate) async fn drain(engine: Engine, impatient: impl Future<Output = ()>) -> Result<(), Failure> {
    let abandon = engine.abandoner();
    let mut done = std::pin::pin!(engine.shutdown());
    tokio::select! {
        result = &mut done => return Ok(result?),
        () = impatient => abandon.abandon(),
    }
    Ok(done.await?)
}

/// Waits until no work is left for workers, and prints what it waits for.
async fn idle(engine: &Engine) -> Result<(), Failure> {
    let app = engine.app();
    let wake = app.subscribe(vec![Topic::Journal]);
    let mut patience = Patience::default();
    let mut said = None;
    while let Some(left) = first_left(app, engine.worker_id())? {
        if engine.busy() > 0 || said.as_ref() == Some(&left) {
            patience.reset();
        } else if patience.is_due() {
            let line = format!("run {} {}", left.run, left.line(app.now().wall_ms));
            eprintln!("{} {}", Style::stderr().dim("waiting:"), plain(&line));
            said = Some(left);
        }
        wake.wait(LOOK).await;
    }
    Ok(())
}
