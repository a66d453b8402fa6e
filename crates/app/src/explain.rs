//! Explaining why a run waits: what each unsettled step waits for, since when, until when, and who holds it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use sprag_lifecycle::{
    EnvironmentStatus, ExecutionId, ExecutionStatus, RunId, RunStatus, StepNo, StepStatus, Word, WorkKind,
    WorkerStatus,
};
use sprag_store::{
    AccountBusy, AccountWait, EnvironmentRow, ExecutionRow, GateKind, GateRow, Id, Now, Refusal, Row, RunRow,
    StepRow, WaitFacts, WorkerRow, is_task, step_name,
};

use crate::App;
use crate::accounts::account_text;
use crate::boards::OWN_QUEUE;
use crate::error::Error;
use crate::failures::{FailedStep, failures, why_attempt_failed};
use crate::gates::questions;
use crate::known::RunWithPlan;
use crate::local_files::LocalFiles;
use crate::text::{local, plain, plain_lines, rfc3339};
use crate::view::round_of;
use crate::waiting_for::WaitingFor;

/// The most steps that are listed: people do not read longer lists.
const MOST_TOLD: usize = 1_000;

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
    /// An answer, a time or a signal.
    Gate,
    /// The child run that is its work.
    Child(RunId),
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
    let id = known.id();
    let facts = app.store.queries().wait_facts(&known.run)?;
    let WaitFacts { steps, executions, .. } = &facts;
    let place_made = being_made(id, &facts.environments);
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
    let waits_for = (known.run.status() == RunStatus::Queued).then(|| {
        let holders: Vec<String> =
            facts.place_holders.iter().map(|holder| told_of_holder(app, *holder)).collect();
        format!(
            "a place in group {:?}, held by {}",
            known.run.group.as_deref().unwrap_or_default(),
            if holders.is_empty() { "no run any more".to_owned() } else { holders.join(", ") }
        )
    });
    let failed = steps.iter().filter(|step| step.status() == StepStatus::Failed && !step.rework_pending);
    let blocked = failed.take(MOST_TOLD).filter_map(|step| {
        let last = executions.iter().rfind(|row| (row.id.step, row.id.attempt) == (step.no, step.attempt))?;
        BlockedStep::of(view.name(step.no), last)
    });
    let mut waiting: Vec<Unsettled> = unsettled.map(|step| view.waiting(step).told()).collect();
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

impl Unsettled {
    /// Fills in its times as text.
    fn told(mut self) -> Self {
        self.since = self.since_ms.map(rfc3339);
        self.until = self.until_ms.map(rfc3339);
        self
    }
}

struct View<'v> {
    known: &'v RunWithPlan,
    steps: &'v [StepRow],
    executions: &'v [ExecutionRow],
    workers: &'v [WorkerRow],
    gates: &'v [GateRow],
    /// The text about what the run's environment waits for, while it is being made.
    place: Option<&'v str>,
    /// The needs of a board's waiting tasks.
    task_needs: &'v BTreeMap<StepNo, Vec<StepNo>>,
    /// The keys of a board's tasks.
    keys: &'v BTreeMap<StepNo, String>,
    /// The hosts that have the run's files.
    hosts: &'v [Arc<str>],
    /// The reasons why executions wait for their accounts.
    accounts: &'v BTreeMap<ExecutionId, AccountWait>,
    now: Now,
}

/// Returns, by number, the tasks that the waiting tasks of a board need.
fn task_needs(
    app: &App,
    known: &RunWithPlan,
    steps: &[StepRow],
) -> Result<BTreeMap<StepNo, Vec<StepNo>>, Error> {
    let mut needs = BTreeMap::new();
    let waiting = steps.iter().filter(|step| is_task(&known.plan, step) && step.needs.open > 0);
    for step in waiting.take(MOST_TOLD) {
        needs.insert(step.no, app.store.queries().task_needs(step.run, step.no)?);
    }
    Ok(needs)
}

impl View<'_> {
    /// Whether the step is a task that agents and people claim.
    fn is_task(&self, no: StepNo) -> bool {
        let step = self.steps.iter().find(|step| step.no == no);
        step.is_some_and(|step| self.known.plan.step(step.node()).work == WorkKind::Task)
    }

    fn name(&self, no: StepNo) -> String {
        let row = self.steps.iter().find(|step| step.no == no);
        row.map_or_else(|| no.to_string(), |row| step_name(&self.known.plan, row))
    }

    /// Returns the name by which people know a step: the key of a task, or its id.
    fn shown_name(&self, no: StepNo) -> String {
        self.keys.get(&no).cloned().unwrap_or_else(|| self.name(no))
    }

    /// Whether the agent of a step waits for an answer.
    fn is_asking(&self, step: &StepRow) -> bool {
        step.items.is_none() && self.gates.iter().any(|gate| Some(gate.id) == step.work)
    }

    /// Describes a wait for something that no worker executes. Returns whether the step has one.
    fn outside(&self, step: &StepRow, waiting: &mut Unsettled) -> bool {
        if let Some(list) = step.items {
            let items = list.items;
            waiting.wait = Wait::Items;
            if self.known.run.open {
                waiting.wait = Wait::Outside;
                let board = &self.known.run.pipeline;
                waiting.waits_for = format!(
                    "its tasks, of which {} of {} have finished, and for `sprag board close {board}`",
                    items.settled, items.total
                );
                waiting.owner = "the board's leader".into();
                return true;
            }
            waiting.waits_for = format!(
                "its items: {} of {} have finished, {} are running or waiting",
                items.settled,
                items.total,
                items.created - items.settled
            );
            return true;
        }
        if let Some(gate) = self.gates.iter().find(|gate| Some(gate.id) == step.work) {
            waiting.wait = Wait::Gate;
            waiting.waits_for = gate_text(gate);
            waiting.since_ms = Some(gate.opened_ms);
            waiting.until_ms = match gate.timeout_at_ms {
                0 => None,
                // The moment that the pipeline names, which the conversion of the timer misses by a millisecond.
                _ if gate.kind == GateKind::Time && gate.until_ms > 0 => Some(gate.until_ms),
                timeout => Some(self.wall(timeout)),
            };
            waiting.owner = match gate.kind {
                GateKind::Question => format!("a person: sprag approve {} {}", gate.run, self.name(step.no)),
                GateKind::Signal => {
                    format!("any program or person: sprag signal {} {}", gate.run, gate.question)
                }
                GateKind::Time => "the clock".into(),
            };
            return true;
        }
        match (self.known.plan.step(step.node()).work, step.work) {
            (WorkKind::Child, Some(child)) => {
                let child = RunId::from_i64(child);
                waiting.wait = Wait::Child(child);
                waiting.waits_for = format!("run {child} to end");
                waiting.owner = format!("that run: sprag explain {child}");
                waiting.since_ms = step.started_ms;
                true
            }
            _ => false,
        }
    }

    /// Converts a steady time to wall-clock time.
    fn wall(&self, steady_ms: i64) -> i64 {
        steady_ms - self.now.steady_ms + self.now.wall_ms
    }

    fn worker(&self, id: Option<Id>) -> Option<String> {
        let worker = self.workers.iter().find(|worker| Some(worker.id) == id)?;
        let process: Option<sprag_process::ProcessId> = worker.process.parse().ok();
        let name = plain(&worker.name);
        Some(match process {
            Some(process) if crate::resume::is_dead(worker) => format!(
                "worker {} (pid {} on {}), which is gone: `sprag resume` or any worker takes over",
                name,
                process.pid,
                plain(&process.host)
            ),
            Some(process) => format!("worker {name} (pid {} on {})", process.pid, plain(&process.host)),
            None => format!("worker {name}"),
        })
    }

    /// Whether a live worker executes it. Tasks do not count: agents and people do them in their own time.
    fn is_executed(&self, row: &ExecutionRow) -> bool {
        let owner = self.workers.iter().find(|worker| Some(worker.id) == row.owner);
        !self.is_task(row.id.step) && owner.is_some_and(|owner| !crate::resume::is_dead(owner))
    }

    fn waiting(&self, step: &StepRow) -> Unsettled {
        let execution = self
            .executions
            .iter()
            .find(|row| row.id.step == step.no && row.id.attempt == step.attempt)
            .filter(|_| matches!(step.status(), StepStatus::Pending | StepStatus::Running));
        let mut waiting = Unsettled {
            step: self.name(step.no),
            key: self.keys.get(&step.no).cloned(),
            status: step.status().to_string(),
            waits_for: String::new(),
            since_ms: execution.map(|row| row.created_ms).or(self.known.run.started_ms),
            until_ms: None,
            since: None,
            until: None,
            owner: "the executor".to_owned(),
            wait: Wait::Outside,
        };
        let busy = matches!(step.status(), StepStatus::Pending | StepStatus::Running);
        match execution {
            // The question of an agent comes before the attempt that asks it.
            Some(_) if self.is_asking(step) && self.outside(step, &mut waiting) => {}
            None if busy && self.outside(step, &mut waiting) => {}
            None if step.rework_pending => {
                waiting.waits_for = "the running steps that it sends back to stop".into();
            }
            None => {
                let own = self.task_needs.get(&step.no);
                let needs = own.unwrap_or_else(|| &self.known.plan.step(step.node()).needs);
                let open: Vec<String> = needs
                    .iter()
                    .filter_map(|need| self.steps.iter().find(|other| other.no == *need))
                    .filter(|other| !other.status().is_settled())
                    .map(|other| format!("{} ({})", self.shown_name(other.no), other.status()))
                    .collect();
                waiting.wait = Wait::Needs;
                waiting.waits_for =
                    if open.is_empty() { "its run to continue".into() } else { open.join(", ") };
                waiting.owner = "none yet".into();
            }
            Some(row) => {
                self.work(row, &mut waiting);
                if let Some(place) = self.place.filter(|_| row.status() == ExecutionStatus::Running) {
                    waiting.waits_for = place.to_owned();
                }
            }
        }
        waiting
    }

    fn work(&self, row: &ExecutionRow, waiting: &mut Unsettled) {
        match row.status() {
            ExecutionStatus::Requested | ExecutionStatus::Scheduling => {
                if row.not_before_ms > self.now.steady_ms {
                    waiting.waits_for = self.backoff(row);
                    waiting.until_ms = Some(self.wall(row.not_before_ms));
                } else if let Some(wait) = self.accounts.get(&row.id) {
                    waiting.waits_for = account_text(wait);
                    waiting.until_ms = wait.account.until_wall_ms.filter(|_| wait.why == AccountBusy::Held);
                    if wait.why == AccountBusy::Held {
                        let name = plain(&wait.account.name);
                        waiting.owner = format!("the account's hold: sprag account release {name}");
                    }
                } else {
                    waiting.waits_for = format!("a place in queue {:?}, which is full or held", row.queue);
                }
            }
            ExecutionStatus::Scheduled => {
                waiting.since_ms = Some(self.wall(row.published_ms));
                waiting.owner = format!("queue {:?}", row.queue);
                waiting.waits_for = match row.pin {
                    Some(pin) => match self.worker(Some(pin)) {
                        Some(worker) => format!("a free slot of {worker}, which started the run"),
                        None => {
                            let run = row.id.run;
                            format!(
                                "the process that started the run, which is gone: sprag resume {run}, or any worker"
                            )
                        }
                    },
                    None => self.worker_for(row),
                };
            }
            _ => {
                waiting.since_ms = row.started_ms;
                waiting.wait = if self.is_executed(row) { Wait::Work } else { Wait::LeaseHolder };
                waiting.owner = self.worker(row.owner).unwrap_or_else(|| "a worker that is gone".into());
                if waiting.wait == Wait::LeaseHolder {
                    waiting.until_ms = Some(self.wall(row.lease_until_ms));
                }
                waiting.waits_for = if row.cancel_requested {
                    "its processes to end: it was cancelled".into()
                } else {
                    format!("attempt {} to end", row.id.attempt)
                };
            }
        }
    }

    /// Describes the delay before the next attempt: which attempt, and why the one before it failed.
    fn backoff(&self, row: &ExecutionRow) -> String {
        let step = self.steps.iter().find(|step| step.no == row.id.step);
        if let Some(step) = step.filter(|step| step.tries == 0)
            && let Some((round, most)) = round_of(&self.known.plan, step)
        {
            return format!("the delay before round {round} of {most}");
        }
        let most = step.map_or(0, |step| self.known.plan.step(step.node()).policy.attempts);
        let of = if row.id.attempt <= most { format!(" of {most}") } else { String::new() };
        let before =
            self.executions.iter().rfind(|one| one.id.step == row.id.step && one.id.attempt < row.id.attempt);
        let why =
            before.map(|one| format!("; attempt {} failed: {}", one.id.attempt, why_attempt_failed(one)));
        format!("its backoff before attempt {}{of}{}", row.id.attempt, why.unwrap_or_default())
    }
}

impl View<'_> {
    /// Describes what an execution that is not reserved to one worker waits for: which kind of worker, and why no
    /// live worker takes it.
    fn worker_for(&self, row: &ExecutionRow) -> String {
        let queue = &row.queue;
        if self.is_task(row.id.step) {
            let is_of_board = self.known.is_board() && queue.starts_with(OWN_QUEUE);
            let from =
                if is_of_board { self.known.run.pipeline.to_string() } else { format!("--queue {queue}") };
            return format!("an agent or a person who claims it: sprag task claim {from}");
        }
        // Claimers take tasks only, whatever queue they read.
        let serving: Vec<&WorkerRow> =
            self.workers.iter().filter(|worker| !worker.process.is_empty() && worker.serves(queue)).collect();
        let step = self.steps.iter().find(|step| step.no == row.id.step);
        let labels = step.map_or(&[][..], |step| &self.known.plan.step(step.node()).labels);
        let options: String = labels.iter().map(|label| format!(" --label {label}")).collect();
        if serving.is_empty() {
            return format!("a worker: none serves queue {queue:?} (sprag worker --queue {queue}{options})");
        }
        let able: Vec<&WorkerRow> = serving.iter().copied().filter(|worker| worker.has_all(labels)).collect();
        if able.is_empty() {
            let labelled = format!("label{} {}", plural(labels.len()), labels.join(", "));
            let lacking = match serving.len() {
                1 => format!(
                    "the only worker on queue {queue:?} lacks {}",
                    if labels.len() == 1 { "it" } else { "some" }
                ),
                n => format!(
                    "none of the {n} workers on queue {queue:?} has {}",
                    if labels.len() == 1 { "it" } else { "all" }
                ),
            };
            return format!("a worker with {labelled}; {lacking} (sprag worker --queue {queue}{options})");
        }
        let is_there = |worker: &&WorkerRow| self.hosts.iter().all(|host| **host == *worker.host());
        match (able.iter().copied().filter(is_there).count(), self.hosts.first()) {
            (0, Some(host)) => {
                format!(
                    "a worker on {host}, where the run's files are: {} would fit, but on another host",
                    able.len()
                )
            }
            (n, _) => {
                format!("a free slot; {n} worker{} serve{} it", plural(n), if n == 1 { "s" } else { "" })
            }
        }
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
fn being_made(run: RunId, rows: &[EnvironmentRow]) -> Option<String> {
    let row = rows.iter().find(|row| row.status() == EnvironmentStatus::Provisioning)?;
    let repository = LocalFiles::of(row).and_then(|files| files.repository());
    let holder = repository
        .and_then(|repository| repository.lock_holder())
        .filter(|holder| holder.run != run.to_string());
    Some(match holder {
        Some(holder) => format!(
            "the repository lock, held by run {} since {}",
            holder.run,
            local(holder.since_unix_ms as i64)
        ),
        None => "its worktree to be created".to_owned(),
    })
}

fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}
