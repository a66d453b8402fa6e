//! Why a run waits: for each unsettled step what it waits for, since when, until when, and who has it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use sprag_lifecycle::{
    EnvironmentStatus, ExecutionStatus, RunId, RunStatus, StepNo, StepStatus, Word, WorkKind,
};
use sprag_store::ops::hosts_of_files;
use sprag_store::{
    ExecutionRow, GateKind, GateRow, Id, Now, Refusal, Row, StepRow, Store, WorkerRow, is_task, step_name,
};

use crate::complaint::Complaint;
use crate::environments::Details;
use crate::known::Known;
use crate::text::{local, plain, rfc3339};

/// More steps than this are not told of: nobody reads them.
const MOST_TOLD: usize = 1_000;

/// Why a run waits.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explained {
    /// The run.
    pub id: String,
    /// The pipeline's name.
    pub pipeline: String,
    /// Its status.
    pub status: &'static str,
    /// What the whole run waits for.
    pub waits_for: Option<String>,
    /// Its steps that are not settled.
    pub steps: Vec<Unsettled>,
    /// Events that were refused, newest last.
    pub refused: Vec<RefusedView>,
}

/// What is known of one step that is not settled.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Unsettled {
    /// The step.
    #[serde(rename = "id")]
    pub step: String,
    /// Its status.
    pub status: String,
    /// What it waits for.
    pub waits_for: String,
    /// Since when.
    pub since: Option<String>,
    /// Until when.
    pub until: Option<String>,
    /// Who has it.
    pub owner: String,
    /// Since when (wall clock).
    #[serde(skip)]
    pub since_ms: Option<i64>,
    /// Until when (wall clock).
    #[serde(skip)]
    pub until_ms: Option<i64>,
}

/// An event that was refused.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RefusedView {
    /// When.
    pub at: String,
    /// What kind of thing.
    pub entity: &'static str,
    /// The step it belongs to.
    pub step: Option<String>,
    /// What was reported.
    pub event: &'static str,
    /// By whom.
    pub actor: &'static str,
    /// `superseded` or `illegal`.
    pub reason: &'static str,
    /// The predicate that failed, or the status in which the event means nothing.
    pub detail: String,
    /// When (wall clock).
    #[serde(skip)]
    pub at_ms: i64,
}

/// Looks at a run and says why it waits.
pub fn explain(store: &Store, known: &Known) -> Result<Explained, Complaint> {
    let id = known.id();
    let (steps, executions, workers, refusals, crowd) = store.read(|db| {
        let group = known.run.group.clone();
        let crowd = group.map(|group| db.places(&group)).transpose()?.unwrap_or_default();
        Ok((db.steps(id)?, db.executions(id)?, db.workers()?, db.refusals(id)?, crowd))
    })?;
    let gates = store.read(|db| db.open_gates(id))?;
    let place_made = being_made(store, id)?;
    let hosts = store.read(|db| hosts_of_files(db, &known.run))?;
    let task_needs = task_needs(store, known, &steps)?;
    let view = View {
        known,
        steps: &steps,
        executions: &executions,
        workers: &workers,
        gates: &gates,
        place: place_made.as_deref(),
        task_needs: &task_needs,
        hosts: &hosts,
        now: store.now(),
    };
    let unsettled =
        steps.iter().filter(|step| !step.status().is_settled() || step.rework_pending).take(MOST_TOLD);
    let waits_for = (known.run.status() == RunStatus::Queued).then(|| {
        let holders: Vec<String> = crowd.iter().map(ToString::to_string).collect();
        format!(
            "a place in group {:?}, held by {}",
            known.run.group.as_deref().unwrap_or_default(),
            if holders.is_empty() { "nobody".to_owned() } else { holders.join(", ") }
        )
    });
    Ok(Explained {
        id: id.to_string(),
        pipeline: known.run.pipeline.to_string(),
        status: known.run.status().as_str(),
        waits_for,
        steps: unsettled.map(|step| view.waiting(step).told()).collect(),
        refused: refusals.iter().map(|refusal| refused(known, refusal)).collect(),
    })
}

fn refused(known: &Known, refusal: &Refusal) -> RefusedView {
    let step = refusal.place.step.and_then(|no| known.plan.steps.get(no as usize));
    RefusedView {
        at: rfc3339(refusal.at_ms),
        entity: refusal.entity,
        step: step.map(|step| step.id.clone()),
        event: refusal.event,
        actor: refusal.actor.as_str(),
        reason: refusal.reason,
        detail: refusal.detail.clone(),
        at_ms: refusal.at_ms,
    }
}

impl Unsettled {
    /// Writes its times out.
    fn told(mut self) -> Self {
        self.since = self.since_ms.map(rfc3339);
        self.until = self.until_ms.map(rfc3339);
        self
    }
}

struct View<'v> {
    known: &'v Known,
    steps: &'v [StepRow],
    executions: &'v [ExecutionRow],
    workers: &'v [WorkerRow],
    gates: &'v [GateRow],
    /// What the run's environment waits for, while it is being made.
    place: Option<&'v str>,
    /// What the waiting tasks of a board need.
    task_needs: &'v BTreeMap<StepNo, Vec<StepNo>>,
    /// Where the run's files are.
    hosts: &'v [Arc<str>],
    now: Now,
}

/// What the tasks of a board that wait for others need, by number.
fn task_needs(
    store: &Store,
    known: &Known,
    steps: &[StepRow],
) -> Result<BTreeMap<StepNo, Vec<StepNo>>, Complaint> {
    let mut needs = BTreeMap::new();
    let waiting = steps.iter().filter(|step| is_task(&known.plan, step) && step.needs.open > 0);
    for step in waiting.take(MOST_TOLD) {
        let of = store.read(|db| db.task_needs(step.run, step.no))?;
        needs.insert(step.no, of.iter().map(|need| need.item).collect());
    }
    Ok(needs)
}

impl View<'_> {
    /// Whether agents and people claim it.
    fn is_task(&self, no: StepNo) -> bool {
        let step = self.steps.iter().find(|step| step.no == no);
        step.is_some_and(|step| self.known.plan.step(step.node()).work == WorkKind::Task)
    }

    fn name(&self, no: StepNo) -> String {
        let row = self.steps.iter().find(|step| step.no == no);
        row.map_or_else(|| no.to_string(), |row| step_name(&self.known.plan, row))
    }

    /// What a step waits for that no worker does.
    fn outside(&self, step: &StepRow, waiting: &mut Unsettled) -> bool {
        if let Some(list) = step.items {
            let items = list.items;
            if self.known.run.open {
                let run = self.known.id();
                waiting.waits_for = format!(
                    "its tasks, of which {} of {} are settled, and for `sprag board close {run}`",
                    items.settled, items.total
                );
                waiting.owner = "the board's leader".into();
                return true;
            }
            waiting.waits_for = format!(
                "its items: {} of {} are settled, {} are live",
                items.settled,
                items.total,
                items.created - items.settled
            );
            return true;
        }
        if let Some(gate) = self.gates.iter().find(|gate| Some(gate.id) == step.work) {
            waiting.waits_for = gate_text(gate);
            waiting.since_ms = Some(gate.opened_ms);
            waiting.until_ms = (gate.timeout_at_ms > 0).then(|| self.wall(gate.timeout_at_ms));
            waiting.owner = match gate.kind {
                GateKind::Question => format!("a person: sprag approve {} {}", gate.run, self.name(step.no)),
                GateKind::Signal => format!("anybody: sprag signal {} {}", gate.run, gate.question),
                GateKind::Time => "the clock".into(),
            };
            return true;
        }
        match (self.known.plan.step(step.node()).work, step.work) {
            (WorkKind::Child, Some(child)) => {
                let child = RunId::from_i64(child);
                waiting.waits_for = format!("run {child} to end");
                waiting.owner = format!("that run: sprag explain {child}");
                waiting.since_ms = step.started_ms;
                true
            }
            _ => false,
        }
    }

    /// A steady moment as people read the clock.
    fn wall(&self, steady_ms: i64) -> i64 {
        steady_ms - self.now.steady_ms + self.now.wall_ms
    }

    fn worker(&self, id: Option<Id>) -> Option<String> {
        let worker = self.workers.iter().find(|worker| Some(worker.id) == id)?;
        let process: Option<sprag_process::ProcessId> = worker.process.parse().ok();
        Some(match process {
            Some(process) if sprag_process::is_alive(&process) == sprag_process::Liveness::Dead => format!(
                "worker {} (pid {} on {}), which is gone: `sprag resume` or any worker takes over",
                worker.name, process.pid, process.host
            ),
            Some(process) => format!("worker {} (pid {} on {})", worker.name, process.pid, process.host),
            None => format!("worker {}", worker.name),
        })
    }

    fn waiting(&self, step: &StepRow) -> Unsettled {
        let execution = self
            .executions
            .iter()
            .find(|row| row.id.step == step.no && row.id.attempt == step.attempt)
            .filter(|_| matches!(step.status(), StepStatus::Pending | StepStatus::Running));
        let mut waiting = Unsettled {
            step: self.name(step.no),
            status: step.status().to_string(),
            waits_for: String::new(),
            since_ms: execution.map(|row| row.created_ms).or(self.known.run.started_ms),
            until_ms: None,
            since: None,
            until: None,
            owner: "the executor".to_owned(),
        };
        let busy = matches!(step.status(), StepStatus::Pending | StepStatus::Running);
        match execution {
            None if busy && self.outside(step, &mut waiting) => {}
            None if step.rework_pending => {
                waiting.waits_for = "the live work of the steps it sends back to end".into();
            }
            None => {
                let own = self.task_needs.get(&step.no);
                let needs = own.unwrap_or_else(|| &self.known.plan.step(step.node()).needs);
                let open: Vec<String> = needs
                    .iter()
                    .filter_map(|need| self.steps.iter().find(|other| other.no == *need))
                    .filter(|other| !other.status().is_settled())
                    .map(|other| format!("{} ({})", self.name(other.no), other.status()))
                    .collect();
                waiting.waits_for = if open.is_empty() { "its run to go on".into() } else { open.join(", ") };
                waiting.owner = "nobody yet".into();
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
                    waiting.waits_for = format!("its backoff, before attempt {}", row.id.attempt);
                    waiting.until_ms = Some(self.wall(row.not_before_ms));
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
                waiting.owner = self.worker(row.owner).unwrap_or_else(|| "a worker that is gone".into());
                waiting.until_ms = Some(self.wall(row.lease_until_ms));
                waiting.waits_for = if row.cancel_requested {
                    "its processes to end: it was cancelled".into()
                } else {
                    format!("attempt {} to end (the lease lasts as long as it is renewed)", row.id.attempt)
                };
            }
        }
    }
}

impl View<'_> {
    /// What an execution that anybody may take waits for: which worker, and why none of those who are there.
    fn worker_for(&self, row: &ExecutionRow) -> String {
        let queue = &row.queue;
        let serving: Vec<&WorkerRow> = self.workers.iter().filter(|worker| worker.serves(queue)).collect();
        if serving.is_empty() {
            return match self.is_task(row.id.step) {
                true => format!("somebody who claims it: sprag task claim --queue {queue}"),
                false => format!("a worker: none serves queue {queue:?} (sprag worker --queue {queue})"),
            };
        }
        let step = self.steps.iter().find(|step| step.no == row.id.step);
        let labels = step.map_or(&[][..], |step| &self.known.plan.step(step.node()).labels);
        let able: Vec<&WorkerRow> = serving.iter().copied().filter(|worker| worker.has_all(labels)).collect();
        if able.is_empty() {
            let (n, wanted) = (serving.len(), labels.join(", "));
            let options: String = labels.iter().map(|label| format!(" --label {label}")).collect();
            return format!(
                "a worker with {wanted}: none of the {n} that serve{} queue {queue:?} has (sprag worker --queue {queue}{options})",
                if n == 1 { "s" } else { "" }
            );
        }
        let is_there = |worker: &&WorkerRow| self.hosts.iter().all(|host| **host == *worker.host());
        match (able.iter().copied().filter(is_there).count(), self.hosts.first()) {
            (0, Some(host)) => {
                format!(
                    "a worker on {host}, where the run's files are: {} would do, but not from elsewhere",
                    able.len()
                )
            }
            (n, _) => {
                format!("a free slot; {n} worker{} serve{} it", plural(n), if n == 1 { "s" } else { "" })
            }
        }
    }
}

/// What a gate waits for, in words.
pub fn gate_text(gate: &GateRow) -> String {
    match gate.kind {
        GateKind::Question => {
            let question: Value = serde_json::from_str(&gate.question).unwrap_or_default();
            let choices = question["choices"].as_array().cloned().unwrap_or_default();
            let choices: Vec<&str> = choices.iter().filter_map(Value::as_str).collect();
            format!(
                "an answer: {} [{}]",
                plain(question["ask"].as_str().unwrap_or_default()),
                choices.join(", ")
            )
        }
        GateKind::Time if gate.until_ms > 0 => format!("a time: {}", local(gate.until_ms)),
        GateKind::Time => "a time".into(),
        GateKind::Signal => format!("the signal {:?}", gate.question),
    }
}

/// What a run's environment waits for, while it is being made.
fn being_made(store: &Store, run: RunId) -> Result<Option<String>, Complaint> {
    let rows = store.read(|db| db.environments_of(run))?;
    let Some(row) = rows.iter().find(|row| row.status() == EnvironmentStatus::Provisioning) else {
        return Ok(None);
    };
    let repository =
        Details::of(row).repository.and_then(|path| sprag_worktree::Repository::discover(&path).ok());
    let holder = repository
        .and_then(|repository| repository.lock_holder())
        .filter(|holder| holder.run != run.to_string());
    Ok(Some(match holder {
        Some(holder) => format!(
            "the repository lock, held by run {} since {}",
            holder.run,
            local(holder.since_unix_ms as i64)
        ),
        None => "its worktree to be made".to_owned(),
    }))
}

fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}
