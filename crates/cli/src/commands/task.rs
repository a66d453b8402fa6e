//! `sprag task`: work that agents and people claim from outside. A claim gives a token; whoever shows it
//! may report, as long as the claim lasts.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use sprag_lifecycle::{ExecutionId, ExecutionStatus, RunId, RunStatus, StepNo, WorkKind};
use sprag_pipeline::{Kind, StepSpec};
use sprag_store::ops::{Assignment, Claimer, Ending, Lease, NewWorker, Renewal};
use sprag_store::{ExecutionRow, Id, Row, RunRow, StepRow, Store, Table, Topic, step_name};

use super::wait::parse_time;
use crate::args::TaskCommand;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{line, plain, rfc3339, span, table};

pub(crate) async fn task(context: &Context, command: &TaskCommand) -> Result<Exit, Failure> {
    match command {
        TaskCommand::Ls { queue } => ls(context, queue.as_deref()),
        TaskCommand::Claim { queues, name, wait, lease } => {
            claim(context, queues, name, wait.as_deref(), lease).await
        }
        TaskCommand::Heartbeat { token, lease } => heartbeat(context, token, lease).await,
        TaskCommand::Done { token, result, outputs } => {
            done(context, token, result.as_deref(), outputs).await
        }
        TaskCommand::Fail { token, reason } => {
            let result = json!({ "reason": "task", "message": reason }).to_string();
            let ending = Ending::Failed { result: Some(result.into()), retriable: true };
            report(context, token, ending).await
        }
        TaskCommand::Release { token } => {
            let store = context.store()?;
            store.worker(parse_token(token)?).release().await?.require_applied()?;
            said(context, token, "released")
        }
    }
}

/// Tasks that wait, and those that somebody has.
fn ls(context: &Context, queue: Option<&str>) -> Result<Exit, Failure> {
    const MOST: usize = 1000;
    let store = context.store()?;
    let mut rows = Vec::new();
    let mut told = Vec::new();
    for run in store.read(|db| db.live_runs(None, MOST))? {
        let (row, executions) =
            store.read(|db| Ok((Table::<RunRow>::load(db, run)?, db.executions(run)?)))?;
        let Some(plan) = row.map(|row| store.read(|db| db.plan(row.plan))).transpose()?.flatten() else {
            continue;
        };
        for execution in executions.iter().filter(|row| !row.status().is_terminal()) {
            let Some(step) = store.read(|db| Table::<StepRow>::load(db, (run, execution.id.step)))? else {
                continue;
            };
            if plan.step(step.node()).work != WorkKind::Task
                || queue.is_some_and(|queue| queue != &*execution.queue)
            {
                continue;
            }
            let name = step_name(&plan, &step);
            let status = if execution.status() == ExecutionStatus::Running { "claimed" } else { "waiting" };
            let age = span(store.now().wall_ms - execution.created_ms);
            rows.push(vec![
                run.to_string(),
                name.clone(),
                execution.queue.to_string(),
                status.to_owned(),
                age,
            ]);
            told.push(json!({ "run": run, "step": name, "queue": &*execution.queue, "status": status, "created_at": rfc3339(execution.created_ms) }));
        }
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

async fn claim(
    context: &Context,
    queues: &[String],
    name: &str,
    wait: Option<&str>,
    lease: &str,
) -> Result<Exit, Failure> {
    let store = context.store()?;
    let lease = parse_time("--lease", lease)?;
    let wait = wait.map(|wait| parse_time("--wait", wait)).transpose()?.unwrap_or_default();
    let queues: Vec<Arc<str>> = queues.iter().map(|queue| queue.as_str().into()).collect();
    let worker = register(&store, name, &queues, lease).await?;
    let topics = queues.iter().map(|queue| Topic::Queue(Arc::clone(queue), 0)).collect();
    let wake = store.subscribe(topics);
    let until_ms = store.now().steady_ms + wait.as_millis() as i64;
    loop {
        let claimer = Claimer {
            worker,
            queues: queues.clone(),
            reserved_only: false,
            lease_ms: lease.as_millis() as i64,
            nonce: (store.random() >> 1) as i64,
        };
        if let Some(assignment) = store.claims().claim(claimer, 1).await?.into_iter().next() {
            return show(context, &store, &assignment).await;
        }
        let left_ms = until_ms - store.now().steady_ms;
        if left_ms <= 0 {
            return nothing(context, &store, &queues);
        }
        wake.wait(Duration::from_millis(left_ms.min(2_000) as u64)).await;
    }
}

/// Whoever claims is known by its name, so that `explain` can tell who has what.
async fn register(store: &Store, name: &str, queues: &[Arc<str>], lease: Duration) -> Result<Id, Failure> {
    let id = store.new_id();
    let new = NewWorker {
        id,
        name: name.into(),
        process: "".into(),
        queues: queues.join(",").into(),
        slots: 1,
        lease_ms: lease.as_millis() as i64,
    };
    let _ = store.claims().register(new).await?;
    Ok(id)
}

async fn show(context: &Context, store: &Store, assignment: &Assignment) -> Result<Exit, Failure> {
    let rendered = match render(assignment) {
        Ok(rendered) => rendered,
        Err(message) => {
            let result = json!({ "reason": "template", "message": message }).to_string();
            let ending = Ending::Failed { result: Some(result.into()), retriable: false };
            let _ = store.worker(assignment.lease).finish(ending, None).await?;
            return Err(Failure::error(format!("step {} cannot be done: {message}", assignment.name)));
        }
    };
    let Kind::Task { prompt, with } = rendered.kind else {
        let _ = store.worker(assignment.lease).release().await?;
        return Err(Failure::usage(format!(
            "the queue also holds commands, such as step {}, and these are for `sprag worker`",
            assignment.name
        ))
        .next("claim from a queue that only tasks are in"));
    };
    let token = token_of(assignment.lease);
    let now = store.now();
    let until = assignment.lease_until_ms - now.steady_ms + now.wall_ms;
    if context.json {
        let told = json!({
            "token": token, "run": assignment.lease.execution.run, "step": assignment.name,
            "attempt": assignment.lease.execution.attempt, "prompt": prompt, "with": with,
            "feedback": assignment.feedback.as_deref(), "lease_until": rfc3339(until),
        });
        line(&told.to_string());
        return Ok(Exit::Ok);
    }
    line(&token);
    eprintln!(
        "{} of run {}: yours for {}",
        assignment.name,
        assignment.lease.execution.run,
        span(until - now.wall_ms)
    );
    eprintln!("\n{}\n", plain_lines(&prompt));
    if !with.is_null() {
        eprintln!("with {with}\n");
    }
    if let Some(feedback) = &assignment.feedback {
        eprintln!("feedback on the last try:\n{}\n", plain_lines(feedback));
    }
    eprintln!(
        "next: sprag task done {token} · sprag task fail {token} --reason TEXT · sprag task heartbeat {token}"
    );
    Ok(Exit::Ok)
}

fn plain_lines(text: &str) -> String {
    text.lines().map(plain).collect::<Vec<_>>().join("\n")
}

fn render(assignment: &Assignment) -> Result<StepSpec, String> {
    let spec: StepSpec = serde_json::from_str(&assignment.step().spec).map_err(|error| error.to_string())?;
    sprag_worker::render(assignment, &spec)
}

/// Nothing to claim: why, and when to come back.
fn nothing(context: &Context, store: &Store, queues: &[Arc<str>]) -> Result<Exit, Failure> {
    let mut out = 0;
    for queue in queues {
        out += store.read(|db| db.in_flight(queue))?;
    }
    let waiting = store.read(|db| {
        let mut waiting = false;
        for run in db.live_runs(None, 100)? {
            waiting |= Table::<RunRow>::load(db, run)?.is_some_and(|row| row.status() == RunStatus::Running);
        }
        Ok(waiting)
    })?;
    let (why, retry_after_s) = match (out, waiting) {
        (0, false) => ("empty", 60),
        (0, true) => ("waiting_for_needs", 10),
        _ => ("all_claimed", 30),
    };
    if context.json {
        line(&json!({ "token": null, "why": why, "retry_after_s": retry_after_s }).to_string());
    } else {
        eprintln!("nothing to claim in {}: {}", queues.join(", "), why.replace('_', " "));
    }
    Ok(Exit::Nothing)
}

async fn heartbeat(context: &Context, token: &str, lease: &str) -> Result<Exit, Failure> {
    let store = context.store()?;
    let held = parse_token(token)?;
    let lease = parse_time("--lease", lease)?;
    let row = store.read(|db| Table::<ExecutionRow>::load(db, held.execution))?;
    let owner = row.and_then(|row| row.owner).unwrap_or_default();
    let (_, renewals) = store.claims().heartbeat(owner, vec![held], lease.as_millis() as i64).await?;
    match renewals.first() {
        Some(Renewal::Held { cancel_requested: true, .. }) => Err(Failure {
            exit: Exit::Cancelled,
            ..Failure::error("the task was cancelled: stop working on it")
        }
        .next(format!("then give it up: sprag task release {token}"))),
        Some(Renewal::Held { .. }) => said(context, token, "held"),
        _ => Err(lost(token)),
    }
}

fn lost(token: &str) -> Failure {
    Failure::error(format!("{token} is no longer yours: the claim lapsed, or the task has ended"))
        .next("claim another: sprag task claim")
}

async fn done(
    context: &Context,
    token: &str,
    result: Option<&str>,
    pairs: &[String],
) -> Result<Exit, Failure> {
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
    let result = json!({ "outputs": outputs }).to_string();
    report(context, token, Ending::Completed { result: Some(result.into()) }).await
}

async fn report(context: &Context, token: &str, ending: Ending) -> Result<Exit, Failure> {
    let store = context.store()?;
    let finished = store.worker(parse_token(token)?).finish(ending, None).await?;
    if !finished.outcome.is_applied() {
        return Err(lost(token));
    }
    said(context, token, "reported")
}

fn said(context: &Context, token: &str, what: &str) -> Result<Exit, Failure> {
    if context.json {
        line(&json!({ "token": token, "outcome": what }).to_string());
    } else {
        eprintln!("{what}");
    }
    Ok(Exit::Ok)
}

/// What proves a claim: the run, the step's number, the attempt, and the fence.
fn token_of(lease: Lease) -> String {
    let ExecutionId { run, step, attempt } = lease.execution;
    format!("{run}.{step}.{attempt}.{}", lease.fence)
}

fn parse_token(token: &str) -> Result<Lease, Failure> {
    let parsed = || -> Option<Lease> {
        let mut parts = token.split('.');
        let run: RunId = parts.next()?.parse().ok()?;
        let step: StepNo = parts.next()?.parse().ok()?;
        let attempt = parts.next()?.parse().ok()?;
        let fence = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some(Lease { execution: ExecutionId { run, step, attempt }, fence })
    };
    parsed().ok_or_else(|| {
        Failure::usage(format!("{token:?} is not a token")).next("use what `sprag task claim` printed")
    })
}
