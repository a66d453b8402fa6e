//! Explaining what one unsettled step waits for.

use std::collections::BTreeMap;
use std::sync::Arc;

use sprag_lifecycle::{ExecutionId, ExecutionStatus, RunId, StepNo, StepStatus, WorkKind};
use sprag_store::{
    AccountBusy, AccountWait, ExecutionRow, GateKind, GateRow, Id, Now, Row, StepRow, WorkerRow,
    answerers_of, is_task, step_name,
};

use super::{MOST_TOLD, Unsettled, Wait, gate_text, plural};
use crate::App;
use crate::accounts::account_text;
use crate::boards::OWN_QUEUE;
use crate::error::Error;
use crate::failures::why_attempt_failed;
use crate::known::RunWithPlan;
use crate::text::{plain, rfc3339};
use crate::view::round_of;

/// The most steps that an explanation names as holders of a run's places.
const MOST_PLACES: usize = 4;

impl Unsettled {
    /// Fills in its times as text.
    pub(super) fn told(mut self) -> Self {
        self.since = self.since_ms.map(rfc3339);
        self.until = self.until_ms.map(rfc3339);
        self
    }
}

pub(super) struct View<'v> {
    pub(super) known: &'v RunWithPlan,
    pub(super) steps: &'v [StepRow],
    pub(super) executions: &'v [ExecutionRow],
    pub(super) workers: &'v [WorkerRow],
    pub(super) gates: &'v [GateRow],
    /// The text about what the run's environment waits for, while it is being made.
    pub(super) place: Option<&'v str>,
    /// The needs of a board's waiting tasks.
    pub(super) task_needs: &'v BTreeMap<StepNo, Vec<StepNo>>,
    /// The keys of a board's tasks.
    pub(super) keys: &'v BTreeMap<StepNo, String>,
    /// The hosts that have the run's files.
    pub(super) hosts: &'v [Arc<str>],
    /// The reasons why executions wait for their accounts.
    pub(super) accounts: &'v BTreeMap<ExecutionId, AccountWait>,
    pub(super) now: Now,
}

/// Returns, by number, the tasks that the waiting tasks of a board need.
pub(super) fn task_needs(
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

    pub(super) fn name(&self, no: StepNo) -> String {
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
                GateKind::Question => {
                    let who = match answerers_of(&gate.question) {
                        all if all.is_everyone() => "a person".to_owned(),
                        some => plain(&some.to_string()),
                    };
                    format!("{who}: sprag approve {} {}", gate.run, self.name(step.no))
                }
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

    pub(super) fn waiting(&self, step: &StepRow) -> Unsettled {
        let execution = self
            .executions
            .iter()
            .find(|row| row.id.step == step.no && row.id.attempt == step.attempt)
            .filter(|_| matches!(step.status(), StepStatus::Pending | StepStatus::Running));
        let mut waiting = Unsettled {
            step: self.name(step.no),
            key: self.keys.get(&step.no).cloned(),
            item: None,
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
            None if step.skipped_by_when && !busy => {
                waiting.wait = Wait::Needs;
                waiting.waits_for = "its needs, to be skipped then".into();
                waiting.owner = "none: a person skips it".into();
            }
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
                waiting.waits_for = match self.taken_places(step) {
                    _ if !open.is_empty() => open.join(", "),
                    Some(taken) => taken,
                    None => "its run to continue".into(),
                };
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

    /// Describes the steps that keep a step from starting because of the run's `max_parallel`, if it has no place left.
    fn taken_places(&self, step: &StepRow) -> Option<String> {
        let plan = &self.known.plan;
        let takes_place = |step: &StepRow| plan.step(step.node()).takes_place(step.item_of.is_some());
        let limit = plan.max_parallel.filter(|_| takes_place(step))?;
        let at_work: Vec<StepNo> = self
            .steps
            .iter()
            .filter(|other| matches!(other.status(), StepStatus::Pending | StepStatus::Running))
            .filter(|other| takes_place(other))
            .map(|other| other.no)
            .collect();
        let shown: Vec<String> = at_work.iter().take(MOST_PLACES).map(|no| self.shown_name(*no)).collect();
        let more = if at_work.len() > shown.len() { ", …" } else { "" };
        let enough = at_work.len() >= limit as usize;
        enough.then(|| {
            format!(
                "one of the {limit} places of its run (max_parallel): {}{more} must end",
                shown.join(", ")
            )
        })
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
            ExecutionStatus::Scheduled if let Some(services) = self.missing_services(row) => {
                waiting.since_ms = Some(self.wall(row.published_ms));
                waiting.wait = Wait::Needs;
                waiting.waits_for = services;
            }
            ExecutionStatus::Scheduled => {
                waiting.since_ms = Some(self.wall(row.published_ms));
                waiting.owner = format!("queue {:?}", row.queue);
                waiting.waits_for = match row.pin {
                    Some(pin) => match self.worker(Some(pin)) {
                        Some(worker) => {
                            waiting.wait = Wait::Slot;
                            format!("a free slot of {worker}, which started the run")
                        }
                        None => {
                            let run = row.id.run;
                            format!(
                                "the process that started the run, which is gone: sprag resume {run}, or any worker"
                            )
                        }
                    },
                    None => self.worker_for(row, &mut waiting.wait),
                };
            }
            _ => {
                waiting.since_ms = row.started_ms;
                waiting.wait = if self.is_executed(row) { Wait::Work } else { Wait::LeaseHolder };
                waiting.owner = self.worker(row.owner).unwrap_or_else(|| "a worker that is gone".into());
                if waiting.wait == Wait::LeaseHolder {
                    waiting.until_ms = Some(self.wall(row.lease_until_ms));
                }
                let is_service = self.is_service(row.id.step);
                if is_service && waiting.wait == Wait::Work {
                    waiting.wait = Wait::Service;
                }
                waiting.waits_for = if row.cancel_requested && is_service {
                    "its processes to end: no step needs it any more".into()
                } else if row.cancel_requested {
                    "its processes to end: it was cancelled or skipped".into()
                } else if is_service {
                    "the other steps of its run to end: it is a service".into()
                } else {
                    format!("attempt {} to end", row.id.attempt)
                };
            }
        }
    }

    /// Whether the step is a service.
    fn is_service(&self, no: StepNo) -> bool {
        self.known.plan.services().contains(&no)
    }

    /// Describes the services that no worker has yet, for a step that could start otherwise.
    fn missing_services(&self, row: &ExecutionRow) -> Option<String> {
        if self.is_service(row.id.step) {
            return None;
        }
        let is_missing = |step: &&StepRow| {
            let is_current = |row: &&ExecutionRow| row.id.step == step.no && row.id.attempt == step.attempt;
            let has_owner = self.executions.iter().find(is_current).is_some_and(|row| row.owner.is_some());
            self.is_service(step.no) && !step.status().is_settled() && !has_owner
        };
        let missing: Vec<String> =
            self.steps.iter().filter(is_missing).map(|step| self.name(step.no)).collect();
        (!missing.is_empty())
            .then(|| format!("service{} {} to start", plural(missing.len()), missing.join(", ")))
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
    /// live worker takes it. Sets the kind of the wait if it is a free slot.
    fn worker_for(&self, row: &ExecutionRow, wait: &mut Wait) -> String {
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
                *wait = Wait::Slot;
                format!("a free slot; {n} worker{} serve{} it", plural(n), if n == 1 { "s" } else { "" })
            }
        }
    }
}
