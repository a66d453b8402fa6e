//! `sprag run`, `retry`, `resume`, `cancel`: starting runs, going on with them, ending them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use sprag::bus::Address;
use sprag::{Engine, is_attended, take_from_the_dead, works};
use sprag_lifecycle::{RunId, RunStatus, StepNo};
use sprag_store::ops::Created;
use sprag_store::{Id, Row, RunRow, Store, Table};

use super::drawn;
use super::inputs::{Given, prepare};
use super::worker::drain;
use crate::context::{Context, Known, find_run, this_program};
use crate::exit::{Exit, Failure};
use crate::live::{Watched, watch};
use crate::show::{Style, counted, line, span};

/// How a run is to be started.
pub(crate) struct Options {
    pub(crate) dry: bool,
    pub(crate) detach: bool,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) slots: Option<usize>,
    pub(crate) lease: Duration,
    pub(crate) bus: Option<Address>,
}

pub(crate) async fn start(
    context: &Context,
    file: &Path,
    given: Given<'_>,
    options: Options,
) -> Result<Exit, Failure> {
    if options.slots == Some(0) {
        return Err(Failure::usage("--slots must be at least 1"));
    }
    let loaded = sprag_pipeline::load(file).map_err(|problems| drawn(&problems))?;
    if !loaded.warnings.is_empty() && !context.json {
        // One line: the run is what people came for.
        let told = counted(loaded.warnings.len() + loaded.warnings.left_out(), "warning");
        let hint = format!("{told} about {0}: see `sprag validate {0}`", file.display());
        eprintln!("{}", Style::stderr().dim(&hint));
    }
    let (plan, inputs) = prepare(&loaded.pipeline, &given)?;
    if options.dry {
        return super::dry::dry(context, &loaded.pipeline, &plan, &inputs);
    }
    let store = context.store()?;
    let dir =
        std::env::current_dir().map_err(|error| Failure::error(format!("the working folder: {error}")))?;
    let mut new = store.person().new_run(Arc::new(plan));
    new.inputs = json!(inputs).to_string().into();
    new.context = json!({ "dir": dir }).to_string().into();
    new.idempotency_key = options.idempotency_key.as_deref().map(Into::into);
    if options.detach {
        return match store.person().create_run(new).await? {
            Created::New(run) | Created::Existing(run) => Ok(detached(context, &store, run)?),
            Created::NameTaken => Err(name_taken()),
        };
    }
    let attached = Attached::begin(context, &store, new.id, Means::from(&options)).await?;
    new.pin = Some(attached.id);
    let expected = new.id;
    match store.person().create_run(new).await? {
        Created::New(run) if run == expected => attached.see_through(context, &store, run, None).await,
        Created::Existing(run) => {
            attached.leave().await?;
            if !context.json {
                eprintln!("this key has started run {run} before");
            }
            let known = find_run(&store, Some(&run.to_string()))?;
            // Its process may have died: then this one goes on with it. A live one is waited for.
            match known.run.status().is_terminal() || is_attended(&store, &known.run)? {
                true => super::wait::wait(context, Some(&run.to_string()), None).await,
                false => again(context, &store, &known, false, None).await,
            }
        }
        Created::New(run) => {
            let _ = store.person().cancel_run(run).await?;
            Err(name_taken())
        }
        Created::NameTaken => Err(name_taken()),
    }
}

pub(crate) fn name_taken() -> Failure {
    Failure::error("the name drawn for the run was taken").next("try again")
}

/// Tells of a run that was left to workers.
pub(crate) fn detached(context: &Context, store: &Store, run: RunId) -> Result<Exit, Failure> {
    let status = store.read(|db| Table::<RunRow>::load(db, run))?.map(|row| row.status());
    if context.json {
        line(&json!({ "type": "result", "run": run, "status": status }).to_string());
        return Ok(Exit::Ok);
    }
    line(&run.to_string());
    if !store.read(|db| db.workers())?.iter().any(works) {
        eprintln!("no worker is running: start one with `sprag worker`");
    }
    eprintln!("watch it: sprag logs -f {run}");
    Ok(Exit::Ok)
}

/// With what a run is worked off, where that was said.
#[derive(Default)]
pub(crate) struct Means {
    slots: Option<usize>,
    lease: Option<Duration>,
    bus: Option<Address>,
}

impl From<&Options> for Means {
    fn from(options: &Options) -> Self {
        Means { slots: options.slots, lease: Some(options.lease), bus: options.bus.clone() }
    }
}

/// This process's worker, which works off one run alone.
pub(crate) struct Attached {
    engine: Engine,
    pub(crate) id: Id,
}

impl Attached {
    pub(crate) async fn begin(
        context: &Context,
        store: &Store,
        run: RunId,
        means: Means,
    ) -> Result<Self, Failure> {
        let _ = sprag_process::become_subreaper();
        let id = store.new_id();
        let mut builder = Engine::builder(&context.data)
            .store(store.clone())
            .commands(this_program()?)
            .name(format!("run-{run}"))
            .attached_to(run, id);
        if let Some(slots) = means.slots {
            builder = builder.slots(slots);
        }
        if let Some(lease) = means.lease {
            builder = builder.lease(lease);
        }
        if let Some(bus) = means.bus {
            builder = builder.bus(bus);
        }
        Ok(Attached { engine: builder.start().await?, id })
    }

    pub(crate) async fn leave(self) -> Result<(), Failure> {
        Ok(self.engine.shutdown().await?)
    }

    /// Shows the run until it has ended: from its beginning, or what came after `since`.
    pub(crate) async fn see_through(
        self,
        context: &Context,
        store: &Store,
        run: RunId,
        since: Option<u64>,
    ) -> Result<Exit, Failure> {
        let known = find_run(store, Some(&run.to_string()))?;
        if !context.json {
            let steps = counted(known.plan.steps.len(), "step");
            let style = Style::stderr();
            eprintln!("{} {} · {steps}", style.bold(&known.plan.name), style.dim(&run.to_string()));
        }
        let watched = watch(store, context.files(), &known, context.json, since).await?;
        let status = match watched {
            Watched::Ended(status) => {
                self.leave().await?;
                status
            }
            Watched::Waits => {
                self.leave().await?;
                return super::gates::waits_for_person(context, store, run, true);
            }
            Watched::Left => {
                drain(self.engine, std::future::ready(())).await?;
                store
                    .read(|db| Table::<RunRow>::load(db, run))?
                    .map_or(RunStatus::Cancelled, |row| row.status())
            }
        };
        outcome(context, store, &known, status)?;
        Ok(match watched {
            Watched::Ended(status) => status.into(),
            Watched::Waits => Exit::WaitsForPerson,
            Watched::Left => Exit::Cancelled,
        })
    }
}

/// The run's outcome, and what to try next.
fn outcome(context: &Context, store: &Store, known: &Known, status: RunStatus) -> Result<(), Failure> {
    let run = known.id();
    if context.json {
        line(&json!({ "type": "result", "run": run, "status": status }).to_string());
        return Ok(());
    }
    let row = store.read(|db| Table::<RunRow>::load(db, run))?;
    let took = row.and_then(|row| Some(span(row.ended_ms? - row.started_ms?))).unwrap_or_default();
    let style = Style::stderr();
    eprintln!("{} {}", style.status(status.to_string().as_str(), 0), style.dim(&format!("in {took}")));
    let next = match status {
        RunStatus::Completed => format!("sprag status {run} · sprag logs {run} · sprag events --run {run}"),
        RunStatus::Failed => format!("sprag logs {run} · sprag explain {run} · sprag resume {run}"),
        _ => format!("sprag status {run} · sprag resume {run}"),
    };
    eprintln!("{} {next}", style.dim("next:"));
    Ok(())
}

pub(crate) async fn cancel(context: &Context, run: &str) -> Result<Exit, Failure> {
    let store = context.store()?;
    let known = find_run(&store, Some(run))?;
    let id = known.id();
    store.person().cancel_run(id).await?.require_applied()?;
    let status = store.read(|db| Table::<RunRow>::load(db, id))?.map(|row| row.status());
    if context.json {
        line(&json!({ "run": id, "status": status }).to_string());
    } else if let Some(status) = status {
        line(&format!("{id} {}", context.style.status(status.to_string().as_str(), 0)));
    }
    Ok(Exit::Ok)
}

pub(crate) async fn resume(context: &Context, run: Option<&str>, detach: bool) -> Result<Exit, Failure> {
    let store = context.store()?;
    let known = find_run(&store, run)?;
    again(context, &store, &known, detach, None).await
}

pub(crate) async fn retry(
    context: &Context,
    run: Option<&str>,
    step: Option<&str>,
    detach: bool,
) -> Result<Exit, Failure> {
    let store = context.store()?;
    let known = find_run(&store, run)?;
    let to = step.map(|step| known.step_no(step)).transpose()?;
    if !known.run.status().is_terminal() {
        let id = known.id();
        return Err(Failure::error(format!(
            "run {id} is {}: there is nothing to retry yet",
            known.run.status()
        ))
        .next(format!("wait for it (`sprag wait {id}`), or take it over (`sprag resume {id}`)")));
    }
    again(context, &store, &known, detach, to).await
}

/// After something that a run had waited for: works it off here, unless somebody else does.
pub(crate) async fn go_on(
    context: &Context,
    store: &Store,
    run: RunId,
    since: u64,
    detach: bool,
) -> Result<Exit, Failure> {
    let row = super::gates::root_row(store, run)?;
    if row.status().is_terminal() {
        let known = find_run(store, Some(&run.to_string()))?;
        outcome(context, store, &known, row.status())?;
        return Ok(row.status().into());
    }
    if detach || is_attended(store, &row)? {
        return Ok(Exit::Ok);
    }
    take_from_the_dead(store, &row).await?;
    let attached = Attached::begin(context, store, run, Means::default()).await?;
    store.executor().pin_run(run, Some(attached.id)).await?;
    attached.see_through(context, store, run, Some(since)).await
}

/// Goes on with a run: from a step, from what failed, or from where its process died.
async fn again(
    context: &Context,
    store: &Store,
    known: &Known,
    detach: bool,
    to: Option<StepNo>,
) -> Result<Exit, Failure> {
    let id = known.id();
    let status = known.run.status();
    if status == RunStatus::Completed && to.is_none() {
        return Err(Failure::error(format!("run {id} is completed: nothing is left to do"))
            .next(format!("run a step again with `sprag retry {id} --step STEP`")));
    }
    if !status.is_terminal() {
        take_from_the_dead(store, &known.run).await?;
    }
    let since = store.read(|db| db.last_seq())?;
    let attached =
        if detach { None } else { Some(Attached::begin(context, store, id, Means::default()).await?) };
    let pin = attached.as_ref().map(|attached| attached.id);
    let done = sprag::again(store, known, to, pin).await;
    match attached {
        None => {
            done?;
            detached(context, store, id)
        }
        Some(attached) => {
            if let Err(refused) = done {
                attached.leave().await?;
                return Err(refused.into());
            }
            attached.see_through(context, store, id, Some(since)).await
        }
    }
}
