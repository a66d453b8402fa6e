//! `sprag run`, `retry`, `resume`, `cancel`: starting, continuing and ending runs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use sprag_app::bus::Address;
use sprag_app::view::UncommittedView;
use sprag_app::{
    App, Builder, Cancelled, Engine, FailedStep, Id, NewWorker, Row, RunLabels, RunRow, Started, StepPath,
    abandon_dead_owners, is_attended,
};
use sprag_lifecycle::{RunId, RunStatus, Word};
use sprag_pipeline::LoadedPipeline;

use super::ask::{TypedLines, answer_open};
use super::drawn;
use super::inputs::{RawInputs, prepare};
use super::worker::drain;
use crate::context::{Context, RunWithPlan, find_run, refused, this_program};
use crate::exit::{Exit, Failure};
use crate::live::{OnInterrupt, Watched, watch};
use crate::settings::Settings;
use crate::show::{Style, counted, line, plain, span};

/// The options for starting a run.
pub(crate) struct Options {
    pub(crate) dry: bool,
    pub(crate) detach: bool,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) labels: RunLabels,
    pub(crate) priority: i32,
    pub(crate) selection: sprag_pipeline::Selection,
    pub(crate) slots: Option<usize>,
    pub(crate) lease: Duration,
    pub(crate) bus: Option<Address>,
    /// Whether all agents are replaced by the fake one.
    pub(crate) fake_agents: bool,
    /// The folder in which the run works; the working folder if it is left out.
    pub(crate) dir: Option<PathBuf>,
}

pub(crate) async fn start(
    context: &Context,
    file: &Path,
    given: RawInputs<'_>,
    options: Options,
) -> Result<Exit, Failure> {
    let loaded = sprag_pipeline::load_stream(file).map_err(|problems| drawn(&problems))?;
    start_loaded(context, loaded, &file.display().to_string(), given, options).await
}

/// Starts a run of a pipeline that is loaded, and watches it. `place` names the pipeline in messages.
pub(crate) async fn start_loaded(
    context: &Context,
    loaded: LoadedPipeline,
    place: &str,
    given: RawInputs<'_>,
    options: Options,
) -> Result<Exit, Failure> {
    if options.slots == Some(0) {
        return Err(Failure::usage("--slots must be at least 1"));
    }
    if !loaded.warnings.is_empty() && !context.json {
        // Prints one line only, because the user wants to see the run.
        let told = counted(loaded.warnings.len() + loaded.warnings.omitted(), "warning");
        let hint = format!("{told} about {place}: see `sprag validate {place}`");
        eprintln!("{}", Style::stderr().dim(&hint));
    }
    let pipeline = loaded.pipeline.select(&options.selection).map_err(|problems| drawn(&problems))?;
    let (plan, inputs) = prepare(&pipeline, &given, context.interactive)?;
    let labels = options.labels.clone().or_those_of(&pipeline, &inputs);
    let labels = labels.map_err(|problems| drawn(&problems))?;
    if options.dry {
        return super::dry::dry(context, &pipeline, &plan, &inputs);
    }
    if !options.fake_agents && !options.detach {
        refuse_missing_agents(&pipeline)?;
    }
    let app = context.app()?;
    let dir = match options.dir.clone() {
        Some(dir) => dir,
        None => {
            std::env::current_dir().map_err(|error| Failure::error(format!("the working folder: {error}")))?
        }
    };
    // A key may name an existing run. Then nothing starts here, and the worker decides.
    let told = match options.idempotency_key {
        Some(_) => sprag_app::uncommitted(&plan, &dir),
        None => {
            sprag_app::check_worktree(&plan, &dir)?;
            sprag_app::refuse_uncommitted(&plan, &dir)?
        }
    };
    // A run that is left to workers is told of in one JSON value, which holds them.
    if let Some(told) = told.as_ref().filter(|_| !(context.json && options.detach)) {
        tell_uncommitted(context, told);
    }
    let mut start = app.new_run(plan, &inputs)?.in_folder(dir);
    start = start.idempotency_key(options.idempotency_key.as_deref());
    start = start.labelled(labels).priority(options.priority);
    if options.fake_agents {
        start = start.with_fake_agents();
    }
    if options.detach {
        let Started { run, is_new } = app.start_run(start).await?;
        return leave(context, &app, run.id, told.filter(|_| is_new).as_ref());
    }
    let attached = Attached::prepare(context, &app, start.id(), WorkerOptions::from(&options))?;
    let started = app.start_run(start.reserved_to(attached.worker()?)).await?;
    if started.is_new {
        return attached.see_through(context, &app, started.run.id, None).await;
    }
    continue_existing(context, &app, &started.run).await
}

/// Waits for the run that a key has already started. The run's process may have died; then this process resumes the run.
pub(crate) async fn continue_existing(context: &Context, app: &App, run: &RunRow) -> Result<Exit, Failure> {
    let id = run.id.to_string();
    if !context.json {
        eprintln!("the idempotency key has already started run {id}");
    }
    if run.status().is_terminal() || is_attended(app, run)? {
        super::wait::wait(context, Some(&id), None).await
    } else {
        let known = find_run(app, Some(&id))?;
        resume_run(context, app, &known, false, None).await
    }
}

/// Fails if an agent of the pipeline cannot be started here, before there is a run or a worktree.
fn refuse_missing_agents(pipeline: &sprag_pipeline::Pipeline) -> Result<(), Failure> {
    let missing = sprag_app::missing_agents(pipeline)?;
    let Some(first) = missing.first() else { return Ok(()) };
    let failure = Failure::error(first.message.clone());
    Err(failure.next("`sprag doctor` lists the agents; `--agents fake` tries the pipeline without them"))
}

/// Prints a warning about uncommitted changes in the checkout that a run is started in.
fn tell_uncommitted(context: &Context, told: &UncommittedView) {
    if context.json {
        let mut told = json!(told);
        told["type"] = json!("uncommitted");
        line(&told.to_string());
    } else {
        eprintln!("{}", Style::stderr().dim(&plain(&told.message)));
    }
}

/// Reports a run that was left to workers.
pub(crate) fn detached(context: &Context, app: &App, run: RunId) -> Result<Exit, Failure> {
    leave(context, app, run, None)
}

/// Tells of a run that was left to workers, and in JSON of the uncommitted changes where it was started.
fn leave(
    context: &Context,
    app: &App,
    run: RunId,
    uncommitted: Option<&UncommittedView>,
) -> Result<Exit, Failure> {
    let status = app.run(run)?.map(|row| row.status());
    if context.json {
        let mut told = json!({ "type": "result", "run": run, "status": status });
        if let Some(uncommitted) = uncommitted {
            told["uncommitted"] = json!(uncommitted);
        }
        line(&told.to_string());
        return Ok(Exit::Ok);
    }
    line(&run.to_string());
    if !app.has_workers()? {
        let known = find_run(app, Some(&run.to_string()))?;
        eprintln!("no worker is running: start one with `sprag worker{}`", worker_options(&known));
    }
    eprintln!("watch it: sprag watch {run}");
    Ok(Exit::Ok)
}

/// Returns the options of a worker that fits all steps of a run.
fn worker_options(known: &RunWithPlan) -> String {
    let steps = || known.plan.steps.iter().filter(|step| step.is_for_workers());
    let queues: BTreeSet<&str> = steps().map(|step| step.queue.as_str()).collect();
    let labels: BTreeSet<&str> = steps().flat_map(|step| step.labels.iter().map(String::as_str)).collect();
    let queues = queues.into_iter().map(|queue| format!(" --queue {}", plain(queue)));
    let is_usual = steps().all(|step| step.queue == "default");
    let labels = labels.into_iter().map(|label| format!(" --label {}", plain(label)));
    if is_usual { labels.collect() } else { queues.chain(labels).collect() }
}

/// The options of the worker that executes a run, as far as the user set them.
#[derive(Default)]
pub(crate) struct WorkerOptions {
    slots: Option<usize>,
    lease: Option<Duration>,
    bus: Option<Address>,
}

impl From<&Options> for WorkerOptions {
    fn from(options: &Options) -> Self {
        let slots = options.slots.or_else(|| Settings::load().ok()?.slots());
        WorkerOptions { slots, lease: Some(options.lease), bus: options.bus.clone() }
    }
}

/// This process as the worker of one run alone.
pub(crate) struct Attached {
    builder: Builder,
    id: Id,
}

impl Attached {
    /// Prepares the worker. Registers nothing yet: the transaction that creates or takes over the run does that.
    pub(crate) fn prepare(
        context: &Context,
        app: &App,
        run: RunId,
        worker: WorkerOptions,
    ) -> Result<Self, Failure> {
        let _ = sprag_process::become_subreaper();
        let id = app.new_id();
        let mut builder = Engine::builder(&context.data)
            .app(app.clone())
            .commands(this_program()?)
            .fake_agent(this_program()?)
            .step_tools(sprag_mcp::LocalStepTools::new(app))
            .name(format!("run-{run}"))
            .attached_to(run, id);
        if let Some(slots) = worker.slots {
            builder = builder.slots(slots);
        }
        if let Some(lease) = worker.lease {
            builder = builder.lease(lease);
        }
        if let Some(bus) = worker.bus {
            builder = builder.bus(bus);
        }
        Ok(Attached { builder, id })
    }

    /// Returns the worker that the run is to be reserved to.
    pub(crate) fn worker(&self) -> Result<NewWorker, Failure> {
        Ok(self.builder.worker()?)
    }

    /// Executes the run and shows it until it has ended, from its start or from after `since`.
    pub(crate) async fn see_through(
        self,
        context: &Context,
        app: &App,
        run: RunId,
        since: Option<u64>,
    ) -> Result<Exit, Failure> {
        let engine = self.builder.attached_to(run, self.id).start().await?;
        let known = find_run(app, Some(&run.to_string()))?;
        heading(context, &known);
        let watched = watch_and_ask(context, app, &known, since, OnInterrupt::Cancel).await?;
        let status = match watched {
            Watched::Ended(status) => {
                engine.shutdown().await?;
                status
            }
            Watched::Waits => {
                // An agent that waits for the answer is stopped: its session continues after the answer.
                drain(engine, std::future::ready(())).await?;
                return super::gates::waits_for_person(context, app, run, true);
            }
            Watched::Left => {
                drain(engine, std::future::ready(())).await?;
                app.run(run)?.map_or(RunStatus::Cancelled, |row| row.status())
            }
        };
        outcome(context, app, &known, status)?;
        Ok(match watched {
            Watched::Ended(status) => status.into(),
            Watched::Waits => Exit::WaitsForPerson,
            Watched::Left => Exit::Cancelled,
        })
    }
}

/// Prints the first line of a run's live view.
pub(crate) fn heading(context: &Context, known: &RunWithPlan) {
    if !context.json {
        let steps = counted(known.plan.steps.len(), "step");
        let style = Style::stderr();
        eprintln!("{} {} · {steps}", style.bold(&known.plan.name), style.dim(&known.id().to_string()));
    }
}

/// Watches a run. On a terminal, asks the questions that it waits for, and continues.
pub(crate) async fn watch_and_ask(
    context: &Context,
    app: &App,
    known: &RunWithPlan,
    mut since: Option<u64>,
    on_interrupt: OnInterrupt,
) -> Result<Watched, Failure> {
    let mut typed = None;
    loop {
        let watched = {
            let interactive = context.interactive;
            watch(app, context.files(), known, context.json, since, on_interrupt, interactive).await?
        };
        if watched != Watched::Waits || !context.interactive {
            return Ok(watched);
        }
        since = Some(app.last_seq()?);
        let typed = typed.get_or_insert_with(TypedLines::open);
        if !answer_open(app, known.id(), typed).await? {
            return Ok(Watched::Waits);
        }
    }
}

/// Prints the run's outcome, every failure again, and the next commands to try.
pub(crate) fn outcome(
    context: &Context,
    app: &App,
    known: &RunWithPlan,
    status: RunStatus,
) -> Result<(), Failure> {
    let run = known.id();
    let row = app.run(run)?;
    let reason =
        row.as_ref().and_then(|row| row.reason.as_deref()).filter(|_| status == RunStatus::Cancelled);
    let why = reason.map(|reason| format!(": {}", plain(reason))).unwrap_or_default();
    if context.json {
        let mut told = json!({ "type": "result", "run": run, "status": status });
        if let Some(reason) = reason {
            told["reason"] = reason.into();
        }
        if let Some(outputs) = row.as_ref().map(|row| app.run_outputs(row)).transpose()?.flatten() {
            told["outputs"] = outputs;
        }
        line(&told.to_string());
        return Ok(());
    }
    let took = row.and_then(|row| Some(format!("in {}", span(row.ended_ms? - row.started_ms?))));
    let style = Style::stderr();
    let told =
        format!("{} {}", style.status(status.to_string().as_str(), 0), style.dim(&took.unwrap_or_default()));
    eprintln!("{}{why}", told.trim_end());
    let failures = if status == RunStatus::Failed { tell_failures(app, known)? } else { Vec::new() };
    print_next(&run.to_string(), status, &failures, "");
    Ok(())
}

/// Prints every failure of a run, and returns them.
pub(crate) fn tell_failures(app: &App, known: &RunWithPlan) -> Result<Vec<FailedStep>, Failure> {
    let failures = sprag_app::failures(app, known)?;
    print_failures(&known.id().to_string(), &failures);
    Ok(failures)
}

/// Prints failures of a run and of its child runs, each with the last lines of its log.
pub(crate) fn print_failures(run: &str, failures: &[FailedStep]) {
    /// The most failures that are printed; further ones are counted.
    const MOST: usize = 20;
    let style = Style::stderr();
    for failure in failures.iter().take(MOST) {
        let of_child = if failure.run == run { String::new() } else { format!(" (run {})", failure.run) };
        eprintln!("{} {}", style.sign("failed"), style.red(&plain(&format!("{}{of_child}", failure.line()))));
        for text in &failure.last_lines {
            eprintln!("    {} {}", style.dim("│"), plain(text));
        }
    }
    if failures.len() > MOST {
        eprintln!("and {}", counted(failures.len() - MOST, "more failure"));
    }
}

/// Prints the commands that help after a run has ended or was left. `at` is added to each.
pub(crate) fn print_next(run: &str, status: RunStatus, failures: &[FailedStep], at: &str) {
    // Only a person can make room for a landing; the step itself has done its part.
    let is_blocked = failures.iter().any(|step| step.why.starts_with("blocked: "));
    let (first, second) = match status {
        RunStatus::Completed => (format!("status {run}"), "logs"),
        RunStatus::Failed if is_blocked => (format!("explain {run}"), "resume"),
        RunStatus::Failed => (format!("logs {run} --failed"), "retry"),
        RunStatus::Cancelled => (format!("status {run}"), "resume"),
        _ => (format!("status {run}"), "wait"),
    };
    eprintln!("{} sprag {first}{at} · sprag {second} {run}{at}", Style::stderr().dim("next:"));
}

pub(crate) async fn cancel(context: &Context, run: &str) -> Result<Exit, Failure> {
    let app = context.app()?;
    let known = find_run(&app, Some(run))?;
    let id = known.id();
    // A second request would be refused, and recorded as such.
    let cancelled = if known.run.status() == RunStatus::Cancelling {
        Ok(Cancelled::Done { run: Box::new(known.run.clone()), is_attended: true })
    } else {
        app.cancel_run(id, None).await
    };
    let (status, is_attended) = match cancelled {
        Ok(Cancelled::Done { run, is_attended }) => (run.status(), is_attended),
        Ok(Cancelled::Changed { .. }) => return Ok(Exit::Ok),
        // It is cancelled already: that is what was asked for.
        Err(error) => match app.require_run(id)?.status() {
            status @ (RunStatus::Cancelling | RunStatus::Cancelled) => (status, true),
            _ => return Err(refused(&app, id, error)),
        },
    };
    if context.json {
        line(&json!({ "run": id, "status": status }).to_string());
    } else {
        line(&format!("{id} {}", context.style.status(status.to_string().as_str(), 0)));
    }
    if !is_attended {
        eprintln!("its `always` steps wait for a worker: `sprag resume {id}` executes them");
    }
    Ok(Exit::Ok)
}

pub(crate) async fn resume(context: &Context, run: Option<&str>, detach: bool) -> Result<Exit, Failure> {
    let app = context.app()?;
    let known = find_run(&app, run)?;
    resume_run(context, &app, &known, detach, None).await
}

pub(crate) async fn retry(
    context: &Context,
    run: Option<&str>,
    step: Option<&str>,
    detach: bool,
) -> Result<Exit, Failure> {
    let app = context.app()?;
    let known = find_run(&app, run)?;
    let to = step.map(|step| known.path_to(&app, step)).transpose()?;
    if !known.run.status().is_terminal() {
        let id = known.id();
        return Err(Failure::error(format!(
            "run {id} is {}: it can be rewound or retried after it has ended",
            known.run.status()
        ))
        .next(format!("wait for it (`sprag wait {id}`), or cancel it (`sprag cancel {id}`)")));
    }
    resume_run(context, &app, &known, detach, to).await
}

/// Continues a run after something that it had waited for: executes it here, unless another process does.
pub(crate) async fn go_on(
    context: &Context,
    app: &App,
    run: RunId,
    since: u64,
    detach: bool,
) -> Result<Exit, Failure> {
    let row = app.require_run(run)?;
    if row.status().is_terminal() {
        let known = find_run(app, Some(&run.to_string()))?;
        outcome(context, app, &known, row.status())?;
        return Ok(row.status().into());
    }
    if detach || is_attended(app, &row)? {
        return Ok(Exit::Ok);
    }
    abandon_dead_owners(app, &row).await?;
    let attached = Attached::prepare(context, app, run, WorkerOptions::default())?;
    sprag_app::take_over(app, &row, Some(attached.worker()?)).await?;
    attached.see_through(context, app, run, Some(since)).await
}

/// Continues a run: from a step, from the failed steps, or from where its process died.
async fn resume_run(
    context: &Context,
    app: &App,
    known: &RunWithPlan,
    detach: bool,
    to: Option<StepPath>,
) -> Result<Exit, Failure> {
    let id = known.id();
    let status = known.run.status();
    if status == RunStatus::Completed && to.is_none() {
        return Err(Failure::ended(&id.to_string(), status.as_str(), ""));
    }
    if !status.is_terminal() {
        abandon_dead_owners(app, &known.run).await?;
    }
    let since = app.last_seq()?;
    let tell = |note: Option<String>| {
        if let Some(note) = note.filter(|_| !context.json) {
            eprintln!("{}", Style::stderr().dim(&note));
        }
    };
    if detach {
        tell(sprag_app::resume_from(app, known, to, None).await?);
        return detached(context, app, id);
    }
    let attached = Attached::prepare(context, app, id, WorkerOptions::default())?;
    tell(sprag_app::resume_from(app, known, to, Some(attached.worker()?)).await?);
    attached.see_through(context, app, id, Some(since)).await
}
