//! Explaining why a run waits: what each unsettled step waits for, since when, until when, and who holds it.

mod steps;

use serde::Serialize;
use serde_json::Value;
use sprag_lifecycle::{EnvironmentStatus, RunId, RunStatus, StepStatus, Word, WorkerStatus};
use sprag_store::{
    EnvironmentRow, ExecutionRow, GateKind, GateRow, Refusal, Row, RunRow, StepRow, WaitFacts,
};

use crate::App;
use crate::error::Error;
use crate::failures::{FailedStep, failures};
use crate::gates::questions;
use crate::items::item_names;
use crate::known::RunWithPlan;
use crate::local_files::LocalFiles;
use crate::reach::Reach;
use crate::text::{local, plain, plain_lines, rfc3339};
use crate::waiting_for::WaitingFor;

use steps::{View, task_needs};

/// The most steps that are listed: people do not read longer lists.
const MOST_TOLD: usize = 1_000;
/// The description of a run that the reader does not reach.
const ANOTHER_RUN: &str = "another run, which this token does not reach";

/// An explanation of what a run waits for.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explained {
    /// The run.
    pub id: String,
    /// The pipeline's name.
    pub pipeline: String,
    /// Its status.
    pub status: &'static str,
    /// The condition that the whole run waits for.
    pub waits_for: Option<String>,
    /// The reason for its end, if there is one besides its steps.
    pub reason: Option<String>,
    /// Its steps that are not settled.
    pub steps: Vec<Unsettled>,
    /// The kind of thing that it waits for, in one word.
    pub waiting_for: Option<WaitingFor>,
    /// Its steps that failed, and why.
    pub failed: Vec<FailedStep>,
    /// Its steps that failed because of something that only a person can remove.
    pub blocked: Vec<BlockedStep>,
    /// Events that were refused, newest last.
    pub refused: Vec<RefusedView>,
}

/// The state of a step that is not settled.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Unsettled {
    /// The step.
    #[serde(rename = "id")]
    pub step: String,
    /// Its key, if it is a task of a board that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The value of the item for people, if it is an item of a fan-out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
    /// Its status.
    pub status: String,
    /// The condition that it waits for.
    pub waits_for: String,
    /// The start of the wait.
    pub since: Option<String>,
    /// The end of the wait, if it is known.
    pub until: Option<String>,
    /// The worker or agent that has it.
    pub owner: String,
    /// Since when (wall clock).
    #[serde(skip)]
    pub since_ms: Option<i64>,
    /// Until when (wall clock).
    #[serde(skip)]
    pub until_ms: Option<i64>,
    /// The kind of thing that it waits for.
    #[serde(skip)]
    pub wait: Wait,
}

/// The kind of thing that an unsettled step waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Other steps of its run.
    Needs,
    /// The end of its attempt, which a live worker executes.
    Work,
    /// Its holder: the claimer of a task, or a worker that is gone.
    LeaseHolder,
    /// The items of its fan-out.
    Items,
    /// The end of its run: it is a service that runs.
    Service,
    /// An answer, a time or a signal.
    Gate,
    /// The child run that is its work.
    Child(RunId),
    /// A free slot of workers that fit, which execute other steps.
    Slot,
    /// Something outside the run: a worker, a claimer, the end of a backoff, a place in a queue.
    Outside,
}

/// A step that failed because of an obstacle that only a person can remove. After that, a resume tries again.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BlockedStep {
    /// The step.
    pub step: String,
    /// A description of the obstacle.
    pub message: String,
    /// The checkout with the obstacle, if it is in one.
    pub checkout: Option<String>,
    /// The files in the way, as far as they are known.
    pub files: Vec<String>,
    /// The remedy.
    pub remedy: String,
}

impl BlockedStep {
    /// Reads the block from the result of the step's last attempt; none if the step was not blocked.
    fn of(step: String, execution: &ExecutionRow) -> Option<Self> {
        let facts: Value =
            serde_json::from_str(execution.result.as_deref().filter(|_| execution.blocked)?).ok()?;
        let text = |key: &str| facts[key].as_str().map(plain);
        let files = facts["files"].as_array().into_iter().flatten().filter_map(Value::as_str).map(plain);
        Some(BlockedStep {
            step,
            message: text("message").unwrap_or_default(),
            checkout: text("checkout"),
            files: files.collect(),
            remedy: text("remedy").unwrap_or_default(),
        })
    }
}

/// An event that was refused.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RefusedView {
    /// The time of the refusal.
    pub at: String,
    /// The kind of the entity.
    pub entity: &'static str,
    /// The entity's run.
    pub run: Option<String>,
    /// The entity's step.
    pub step: Option<String>,
    /// The reported event.
    pub event: &'static str,
    /// The actor that reported it.
    pub actor: &'static str,
    /// `superseded` or `illegal`.
    pub reason: &'static str,
    /// The predicate that failed, or the status in which the event is not allowed.
    pub detail: String,
    /// The time of the refusal (wall clock).
    #[serde(skip)]
    pub at_ms: i64,
}

/// Explains why a run waits.
pub fn explain(app: &App, known: &RunWithPlan) -> Result<Explained, Error> {
    explain_within(app, known, &Reach::default())
}

/// Explains why a run waits, to a caller with this reach: other runs are named if the caller reaches them.
pub fn explain_within(app: &App, known: &RunWithPlan, reach: &Reach) -> Result<Explained, Error> {
    let id = known.id();
    let facts = app.store.queries().wait_facts(&known.run)?;
    let WaitFacts { steps, executions, .. } = &facts;
    let place_made = being_made(app, id, &facts.environments, reach)?;
    let task_needs = task_needs(app, known, steps)?;
    let keys = known.task_keys(app)?;
    let view = View {
        known,
        steps,
        executions,
        workers: &facts.workers,
        gates: &facts.gates,
        place: place_made.as_deref(),
        task_needs: &task_needs,
        keys: &keys,
        hosts: &facts.hosts,
        accounts: &facts.accounts,
        now: app.store.now(),
    };
    let unsettled =
        steps.iter().filter(|step| !step.status().is_settled() || step.rework_pending).take(MOST_TOLD);
    let waits_for = if known.run.status() == RunStatus::Queued {
        let mut holders = Vec::new();
        for holder in &facts.place_holders {
            let is_reached = app.reaches(reach, *holder)?;
            holders.push(if is_reached { told_of_holder(app, *holder) } else { ANOTHER_RUN.to_owned() });
        }
        Some(format!(
            "a place in group {:?}, held by {}",
            facts.group.as_deref().unwrap_or_default(),
            if holders.is_empty() { "no run any more".to_owned() } else { holders.join(", ") }
        ))
    } else {
        None
    };
    let failed = steps.iter().filter(|step| step.status() == StepStatus::Failed && !step.rework_pending);
    let blocked = failed.take(MOST_TOLD).filter_map(|step| {
        let last = executions.iter().rfind(|row| (row.id.step, row.id.attempt) == (step.no, step.attempt))?;
        BlockedStep::of(view.name(step.no), last)
    });
    let unsettled: Vec<&StepRow> = unsettled.collect();
    let mut items = item_names(app, &known.plan, unsettled.iter().copied())?;
    let told = |step: &StepRow| Unsettled { item: items.remove(&step.no), ..view.waiting(step).told() };
    let mut waiting: Vec<Unsettled> = unsettled.iter().copied().map(told).collect();
    for step in &mut waiting {
        // A question of a child run can be answered through this run.
        if let Wait::Child(child) = step.wait
            && let Some(question) = questions(app, child)?.first()
        {
            step.waits_for = format!("run {child}, which waits for {}", gate_text(&question.gate));
            step.owner = format!("a person: sprag approve {id} {}", question.step);
        }
    }
    Ok(Explained {
        waiting_for: app.waiting_for(&known.run)?.run,
        failed: failures(app, known)?,
        blocked: blocked.collect(),
        id: id.to_string(),
        pipeline: known.run.pipeline.to_string(),
        status: known.run.status().as_str(),
        waits_for,
        reason: known.run.reason.as_deref().map(str::to_owned),
        steps: waiting,
        refused: facts.refusals.iter().map(|refusal| refused(known, refusal)).collect(),
    })
}

/// Explains why a run waits to a caller with this reach, with the steps inside its steps under their whole names, such as
/// `each[0].build`.
pub fn explain_with_inner(app: &App, known: &RunWithPlan, reach: &Reach) -> Result<Explained, Error> {
    let mut told = explain_within(app, known, reach)?;
    told.steps = with_inner(app, told.steps, "", reach)?;
    Ok(told)
}

fn with_inner(
    app: &App,
    steps: Vec<Unsettled>,
    prefix: &str,
    reach: &Reach,
) -> Result<Vec<Unsettled>, Error> {
    let mut all = Vec::with_capacity(steps.len());
    for mut step in steps {
        step.step = format!("{prefix}{}", step.step);
        let inner = match step.wait {
            Wait::Child(child) => Some(RunWithPlan::load(app, child)?).filter(RunWithPlan::is_inside),
            _ => None,
        };
        let Some(inner) = inner.filter(|_| all.len() < MOST_TOLD) else {
            all.push(step);
            continue;
        };
        let inside = format!("{}.", step.step);
        step.waits_for = "the steps inside it".into();
        step.owner = "none: they have their own".into();
        all.push(step);
        all.extend(with_inner(app, explain_within(app, &inner, reach)?.steps, &inside, reach)?);
    }
    Ok(all)
}

/// Describes a run that holds a place, and what to do if its process is gone.
fn told_of_holder(app: &App, holder: RunId) -> String {
    let unattended = RunWithPlan::load(app, holder)
        .and_then(|known| Ok(!known.run.status().is_terminal() && is_left(app, &known.run)?))
        .unwrap_or(false);
    if unattended {
        format!("{holder}, whose process is gone: sprag resume {holder}, or sprag cancel {holder}")
    } else {
        holder.to_string()
    }
}

/// Whether the process that a run is reserved to is gone.
fn is_left(app: &App, run: &RunRow) -> Result<bool, Error> {
    let Some(pin) = run.pin else { return Ok(false) };
    let worker = app.store.queries().worker(pin)?;
    Ok(worker
        .is_none_or(|worker| worker.status() == WorkerStatus::Offline || crate::resume::is_dead(&worker)))
}

fn refused(known: &RunWithPlan, refusal: &Refusal) -> RefusedView {
    let step = refusal.place.step.and_then(|no| known.plan.steps.get(no as usize));
    refused_view(refusal, step.map(|step| step.id.clone()))
}

/// Returns the view of a refused event of the step of this name.
pub(crate) fn refused_view(refusal: &Refusal, step: Option<String>) -> RefusedView {
    RefusedView {
        at: rfc3339(refusal.at_ms),
        entity: refusal.entity,
        run: refusal.place.run.map(|run| run.to_string()),
        step,
        event: refusal.event,
        actor: refusal.actor.as_str(),
        reason: refusal.reason,
        detail: refusal.detail.clone(),
        at_ms: refusal.at_ms,
    }
}

/// Describes what a gate waits for.
pub fn gate_text(gate: &GateRow) -> String {
    match gate.kind {
        GateKind::Question => {
            let question: Value = serde_json::from_str(&gate.question).unwrap_or_default();
            let choices = question["choices"].as_array().cloned().unwrap_or_default();
            let choices: Vec<&str> = choices.iter().filter_map(Value::as_str).collect();
            format!(
                "an answer: {} [{}]",
                plain_lines(question["ask"].as_str().unwrap_or_default()),
                choices.join(", ")
            )
        }
        GateKind::Time if gate.until_ms > 0 => format!("a time: {}", local(gate.until_ms)),
        GateKind::Time => "a time".into(),
        GateKind::Signal => format!("the signal {:?}", gate.question),
    }
}

/// Describes what a run's environment waits for, while it is being made.
fn being_made(
    app: &App,
    run: RunId,
    rows: &[EnvironmentRow],
    reach: &Reach,
) -> Result<Option<String>, Error> {
    let Some(row) = rows.iter().find(|row| row.status() == EnvironmentStatus::Provisioning) else {
        return Ok(None);
    };
    let repository = LocalFiles::of(row).and_then(|files| files.repository());
    let holder = repository
        .and_then(|repository| repository.lock_holder())
        .filter(|holder| holder.run != run.to_string());
    Ok(Some(match holder {
        Some(holder) => {
            let is_reached = app.reaches_shown(reach, &holder.run)?;
            let held_by = if is_reached { format!("run {}", holder.run) } else { ANOTHER_RUN.to_owned() };
            format!("the repository lock, held by {held_by} since {}", local(holder.since_unix_ms as i64))
        }
        None => "its worktree to be created".to_owned(),
    }))
}

fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}
