//! The views that programs see: the shapes behind `--json` and behind the HTTP API, written once.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use sprag_lifecycle::{Plan, RunId, StepNo, StepStatus, Word, WorkKind};
pub use sprag_store::is_current;
use sprag_store::{
    ExecutionRow, GateRow, JournalEntry, Now, QueueCount, QueueRow, Row, RunRow, StepRow, WorkerRow,
    step_name,
};

use crate::App;
use crate::error::Error;
use crate::labels::RunLabels;
use crate::logs::MissingLog;
use crate::text::rfc3339;
use crate::waiting_for::{RunWaits, WaitingFor};

/// Gives the types of this module a schema when the API asks for one.
macro_rules! views {
    ($($(#[$meta:meta])* pub struct $name:ident { $($body:tt)* })+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Serialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub struct $name { $($body)* }
    )+};
}

views! {
    /// A run in a list.
    pub struct RunView {
        /// Its id.
        pub id: String,
        /// The pipeline's name.
        pub pipeline: String,
        /// The run's own name; nothing if it was given none.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// Its labels, by key.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub labels: BTreeMap<String, String>,
        /// Its status.
        pub status: &'static str,
        /// What it waits for; nothing if it does not wait, or has ended.
        pub waiting_for: Option<WaitingFor>,
        /// The number of questions that it asks; absent if it asks none.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub questions: Option<usize>,
        /// The counts of its steps, without the items of fan-outs; absent for a board, and right after the start.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub progress: Option<ProgressView>,
        /// The run that started it, if it is a child run.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub parent: Option<String>,
        /// When it was made.
        pub created_at: String,
        /// The time of its start.
        pub started_at: Option<String>,
        /// The time of its end.
        pub ended_at: Option<String>,
    }

    /// The counts of a run's steps.
    pub struct ProgressView {
        /// The number of steps of its plan.
        pub total: u32,
        /// The number of steps that have settled: done, failed, skipped or cancelled.
        pub settled: u32,
        /// The number of steps that have failed or cannot run because of a failure.
        pub broken: u32,
    }

    /// Uncommitted changes of the checkout in which a run with a worktree was started.
    pub struct UncommittedView {
        /// The number of changed, staged and untracked files; absent if git could not list them.
        pub count: Option<usize>,
        /// The first few of these files.
        pub files: Vec<String>,
        /// The run's treatment of the changes, in one line; or the reason why git could not list them.
        pub message: String,
    }

    /// A run that was started.
    pub struct StartedView {
        /// The run.
        #[serde(flatten)]
        pub run: RunView,
        /// Uncommitted changes in the folder where it was started; absent if there are none, or if the run existed
        /// before.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub uncommitted: Option<UncommittedView>,
    }

    /// A run and its steps.
    pub struct StatusView {
        /// Its id.
        pub id: String,
        /// The pipeline's name.
        pub pipeline: String,
        /// The run's own name; nothing if it was given none.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// Its labels, by key.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub labels: BTreeMap<String, String>,
        /// Its status.
        pub status: &'static str,
        /// What it waits for; nothing if it does not wait, or has ended.
        pub waiting_for: Option<WaitingFor>,
        /// Raised by each resume and rewind.
        pub epoch: u32,
        /// Its steps, and the items of its fan-outs.
        pub steps: Vec<StepView>,
    }

    /// A run with all its details.
    pub struct RunDetail {
        /// The run and its steps.
        #[serde(flatten)]
        pub status: StatusView,
        /// The version of its row.
        pub version: u32,
        /// The run's inputs.
        pub inputs: Value,
        /// The outputs that its pipeline declares; absent if it declares none, or if the run has not ended.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub outputs: Option<Value>,
        /// Added to the priority of its steps.
        pub priority: i32,
        /// Its concurrency group.
        pub group: Option<String>,
        /// The reason of its end.
        pub reason: Option<String>,
        /// The parent run.
        pub parent: Option<String>,
        /// The time of its creation.
        pub created_at: String,
        /// The time of its start.
        pub started_at: Option<String>,
        /// The time of its end.
        pub ended_at: Option<String>,
    }

    /// A step of a run.
    pub struct StepView {
        /// Its id; an item of a fan-out is `step[2]`.
        pub id: String,
        /// Its status.
        pub status: &'static str,
        /// The number of the current attempt.
        pub attempt: u32,
        /// What it waits for; absent if it does not wait.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub waiting_for: Option<WaitingFor>,
        /// Whether it was cancelled before it began, such as a step after one that failed.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub not_run: bool,
        /// The fan-out that it is an item of.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub item_of: Option<String>,
        /// The state of its items, if it is a fan-out that has started.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub items: Option<ItemsView>,
        /// The child run of the step.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub child: Option<String>,
        /// The part of its last attempt's log that has not arrived.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub log_missing: Option<MissingLog>,
    }

    /// The state of a fan-out's items.
    pub struct ItemsView {
        /// The number of items.
        pub total: u32,
        /// The number of settled items.
        pub settled: u32,
        /// The number of failed items.
        pub failed: u32,
    }

    /// One attempt at a step.
    pub struct ExecutionView {
        /// The run.
        pub run: String,
        /// The step.
        pub step: String,
        /// The attempt, from 1.
        pub attempt: u32,
        /// Its status.
        pub status: &'static str,
        /// The queue in which it waits for a worker.
        pub queue: String,
        /// The worker that has it, or had it last.
        pub worker: Option<String>,
        /// Whether its cancellation was requested.
        pub cancel_requested: bool,
        /// The end of the worker's lease while the worker has it.
        pub lease_until: Option<String>,
        /// Its result: exit code, outputs, error.
        pub result: Option<Value>,
        /// The time of its creation.
        pub created_at: String,
        /// The time when a worker received it.
        pub started_at: Option<String>,
        /// The time of its end.
        pub ended_at: Option<String>,
    }

    /// An applied transition.
    pub struct EntryView {
        /// The entry's number in the order of commits.
        pub seq: u64,
        /// The time of the transition.
        pub at: String,
        /// The kind of the entity.
        pub entity: &'static str,
        /// The id of the entity.
        pub id: String,
        /// The entity's run.
        pub run: Option<String>,
        /// The entity's step.
        pub step: Option<String>,
        /// The event.
        pub event: &'static str,
        /// The status before.
        pub from: Option<&'static str>,
        /// The status after.
        pub to: &'static str,
        /// The actor that reported the event.
        pub actor: &'static str,
        /// The id of the worker that had the execution, or that received it.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub worker: Option<String>,
        /// The fence that this worker got with the execution.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub fence: Option<u32>,
        /// The token, local user, agent, rule or worker behind the actor, as `KIND:NAME`, if it is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub by: Option<String>,
        /// The path of an environment.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub path: Option<String>,
        /// The reason of a failure.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub reason: Option<String>,
    }

    /// A question, a point in time or a signal that a run waits for.
    pub struct GateView {
        /// Its number.
        pub id: String,
        /// The run that asks.
        pub run: String,
        /// The step that asks.
        pub step: String,
        /// `question`, `time` or `signal`.
        pub kind: &'static str,
        /// Its status.
        pub status: &'static str,
        /// The question, or the signal's name.
        pub ask: Option<String>,
        /// The possible answers.
        pub choices: Vec<String>,
        /// The time when it was opened.
        pub opened_at: String,
        /// The time when it expires.
        pub until: Option<String>,
    }

    /// A worker or an agent that claims from queues.
    pub struct WorkerView {
        /// Its number.
        pub id: String,
        /// The worker's name.
        pub name: String,
        /// Its status.
        pub status: &'static str,
        /// The queues it serves.
        pub queues: Vec<String>,
        /// Its labels, which steps can require.
        pub labels: Vec<String>,
        /// The host it is on.
        pub host: String,
        /// The number of executions that it runs at once.
        pub slots: u32,
        /// The end of its lease without a heartbeat.
        pub heartbeat_until: String,
        /// The time when it first registered.
        pub created_at: String,
    }

    /// A queue.
    pub struct QueueView {
        /// Its name.
        pub name: String,
        /// Whether the queue is held. A held queue hands over no executions.
        pub held: bool,
        /// The number of executions that may be handed over at once; absent for no limit.
        pub limit: Option<u32>,
        /// The number of executions that wait for room in the queue.
        pub requested: u64,
        /// The number of executions that wait for a worker.
        pub scheduled: u64,
        /// The number of executions that workers have.
        pub running: u64,
        /// The waiting time of the oldest execution that waits for a worker, in milliseconds.
        pub oldest_ms: Option<i64>,
        /// The number of workers that serve it.
        pub workers: usize,
    }
}

impl UncommittedView {
    /// Returns the view for changes that are not known, with the reason.
    pub fn unknown(why: impl Into<String>) -> Self {
        UncommittedView { count: None, files: Vec::new(), message: why.into() }
    }
}

impl RunView {
    /// Returns the view of a run.
    pub fn of(run: &RunRow) -> Self {
        let RunLabels { name, labels } = RunLabels::of(run);
        RunView {
            id: run.id.to_string(),
            pipeline: run.pipeline.to_string(),
            name,
            labels,
            status: run.status().as_str(),
            waiting_for: None,
            questions: None,
            progress: None,
            parent: run.parent.map(|(run, _)| run.to_string()),
            created_at: rfc3339(run.created_ms),
            started_at: run.started_ms.map(rfc3339),
            ended_at: run.ended_ms.map(rfc3339),
        }
    }

    /// Returns the views of runs with what each of them waits for, and how far it is.
    pub fn list(app: &App, runs: &[RunRow]) -> Result<Vec<Self>, Error> {
        let waits = app.all_waiting_for(runs)?;
        let view = |(run, waits): (&RunRow, RunWaits)| -> Result<RunView, Error> {
            let plan = if run.open { None } else { app.store.queries().plan_of(run.id)? };
            let progress = plan.map(|plan| {
                let total = plan.steps.len() as u32;
                let settled = total.saturating_sub(run.tally.unsettled);
                ProgressView { total, settled, broken: run.tally.broken }
            });
            let questions = Some(waits.questions).filter(|count| *count > 0);
            Ok(RunView { waiting_for: waits.run, questions, progress, ..RunView::of(run) })
        };
        runs.iter().zip(waits).map(view).collect()
    }
}

/// Returns whether a step was cancelled before it began: no attempt of it was executed.
pub fn is_not_run(step: &StepRow) -> bool {
    step.status() == StepStatus::Cancelled && step.started_ms.is_none() && step.attempt == 1
}

impl StatusView {
    /// Returns the view of a run and of its steps that count; `missing` are the logs that have not arrived to their
    /// end.
    pub fn of(run: &RunRow, plan: &Plan, steps: &[StepRow], missing: &BTreeMap<StepNo, MissingLog>) -> Self {
        let current = steps.iter().filter(|step| is_current(steps, step));
        let view = |step: &StepRow| StepView {
            log_missing: missing.get(&step.no).cloned(),
            ..StepView::of(plan, step)
        };
        let RunLabels { name, labels } = RunLabels::of(run);
        StatusView {
            id: run.id.to_string(),
            pipeline: run.pipeline.to_string(),
            name,
            labels,
            status: run.status().as_str(),
            waiting_for: None,
            epoch: run.epoch,
            steps: current.map(view).collect(),
        }
    }

    /// Adds what the run and its steps wait for.
    pub fn waiting(mut self, plan: &Plan, steps: &[StepRow], waits: &RunWaits) -> Self {
        self.waiting_for = waits.run;
        for (no, wait) in &waits.steps {
            let name = steps.iter().rfind(|step| step.no == *no).map(|step| step_name(plan, step));
            let view = self.steps.iter_mut().rfind(|view| Some(&view.id) == name.as_ref());
            view.into_iter().for_each(|view| view.waiting_for = Some(*wait));
        }
        self
    }
}

impl RunDetail {
    /// Adds what the run and its steps wait for.
    pub fn waiting(mut self, plan: &Plan, steps: &[StepRow], waits: &RunWaits) -> Self {
        self.status = self.status.waiting(plan, steps, waits);
        self
    }

    /// Adds the outputs that its pipeline declares.
    pub fn with_outputs(self, outputs: Option<Value>) -> Self {
        RunDetail { outputs, ..self }
    }

    /// Returns the full view of a run; `missing` are the logs that have not arrived to their end.
    pub fn of(run: &RunRow, plan: &Plan, steps: &[StepRow], missing: &BTreeMap<StepNo, MissingLog>) -> Self {
        RunDetail {
            status: StatusView::of(run, plan, steps, missing),
            version: run.version(),
            inputs: serde_json::from_str(&run.inputs).unwrap_or_default(),
            outputs: None,
            priority: run.priority,
            group: run.group.as_deref().map(str::to_owned),
            reason: run.reason.as_deref().map(str::to_owned),
            parent: run.parent.map(|(run, _)| run.to_string()),
            created_at: rfc3339(run.created_ms),
            started_at: run.started_ms.map(rfc3339),
            ended_at: run.ended_ms.map(rfc3339),
        }
    }
}

impl StepView {
    /// Adds what the step waits for.
    pub fn waiting(self, waiting_for: Option<WaitingFor>) -> Self {
        StepView { waiting_for, ..self }
    }

    /// Returns the view of a step.
    pub fn of(plan: &Plan, step: &StepRow) -> Self {
        let child = match (plan.step(step.node()).work, step.work) {
            (WorkKind::Child, Some(child)) => Some(RunId::from_i64(child).to_string()),
            _ => None,
        };
        StepView {
            id: step_name(plan, step),
            status: step.status().as_str(),
            attempt: step.attempt,
            waiting_for: None,
            not_run: is_not_run(step),
            item_of: step.item_of.map(|parent| plan.step(parent).id.clone()),
            items: step.items.map(|list| ItemsView {
                total: list.items.total,
                settled: list.items.settled,
                failed: list.items.failed,
            }),
            child,
            log_missing: None,
        }
    }
}

/// Converts a steady time to wall-clock time.
pub fn wall_ms(now: Now, steady_ms: i64) -> i64 {
    steady_ms - now.steady_ms + now.wall_ms
}

impl ExecutionView {
    /// Returns the view of an attempt at the step of this name.
    pub fn of(row: &ExecutionRow, step: &str, now: Now) -> Self {
        let running = row.status() == sprag_lifecycle::ExecutionStatus::Running;
        ExecutionView {
            run: row.id.run.to_string(),
            step: step.to_owned(),
            attempt: row.id.attempt,
            status: row.status().as_str(),
            queue: row.queue.to_string(),
            worker: row.owner.map(|owner| owner.to_string()),
            cancel_requested: row.cancel_requested,
            lease_until: running.then(|| rfc3339(wall_ms(now, row.lease_until_ms))),
            result: row.result.as_deref().and_then(|text| serde_json::from_str(text).ok()),
            created_at: rfc3339(row.created_ms),
            started_at: row.started_ms.map(rfc3339),
            ended_at: row.ended_ms.map(rfc3339),
        }
    }
}

impl EntryView {
    /// Returns the view of a journal entry; `step_name` knows the steps' ids.
    pub fn of(entry: &JournalEntry, step_name: impl Fn(StepNo) -> Option<String>) -> Self {
        let step = entry.place.step.map(|no| step_name(no).unwrap_or_else(|| no.to_string()));
        let run = entry.place.run.map(|run| run.to_string());
        let id = match (entry.entity, &run, &step, entry.place.attempt) {
            ("run", Some(run), _, _) => run.clone(),
            ("step", Some(run), Some(step), _) => format!("{run}/{step}"),
            ("execution", Some(run), Some(step), Some(attempt)) => format!("{run}/{step}/{attempt}"),
            _ => entry.place.id.map_or_else(String::new, |id| id.to_string()),
        };
        let note: Value =
            entry.note.as_deref().and_then(|note| serde_json::from_str(note).ok()).unwrap_or_default();
        EntryView {
            path: note["path"].as_str().map(str::to_owned),
            reason: note["reason"].as_str().map(str::to_owned),
            seq: entry.seq,
            at: rfc3339(entry.at_ms),
            entity: entry.entity,
            id,
            run,
            step,
            event: entry.event,
            from: entry.from,
            to: entry.to,
            actor: entry.actor.as_str(),
            worker: entry.worker.map(|id| id.to_string()),
            fence: entry.fence,
            by: entry.by.as_deref().map(str::to_owned),
        }
    }
}

impl GateView {
    /// Returns the view of a gate of the step of this name.
    pub fn of(gate: &GateRow, step: &str, now: Now) -> Self {
        let question = gate.kind == sprag_store::GateKind::Question;
        let asked: Value =
            if question { serde_json::from_str(&gate.question).unwrap_or_default() } else { Value::Null };
        let choices = asked["choices"].as_array().into_iter().flatten();
        let until_ms = match gate.timeout_at_ms {
            0 => (gate.until_ms > 0).then_some(gate.until_ms),
            timeout => Some(wall_ms(now, timeout)),
        };
        GateView {
            id: gate.id.to_string(),
            run: gate.run.to_string(),
            step: step.to_owned(),
            kind: gate.kind.as_str(),
            status: gate.status().as_str(),
            ask: if question {
                asked["ask"].as_str().map(str::to_owned)
            } else {
                (!gate.question.is_empty()).then(|| gate.question.to_string())
            },
            choices: choices.filter_map(Value::as_str).map(str::to_owned).collect(),
            opened_at: rfc3339(gate.opened_ms),
            until: until_ms.map(rfc3339),
        }
    }
}

impl WorkerView {
    /// Returns the view of a worker.
    pub fn of(worker: &WorkerRow, now: Now) -> Self {
        let list = |text: &str| text.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        WorkerView {
            id: worker.id.to_string(),
            name: worker.name.to_string(),
            status: worker.status().as_str(),
            queues: list(&worker.queues),
            labels: list(&worker.labels),
            host: worker.host().to_owned(),
            slots: worker.slots,
            heartbeat_until: rfc3339(wall_ms(now, worker.heartbeat_until_ms)),
            created_at: rfc3339(worker.created_ms),
        }
    }
}

/// Returns every queue that has settings, holds something, or is served, in order.
pub fn queues(
    settings: &[QueueRow],
    counts: &[QueueCount],
    workers: &[WorkerRow],
    now: Now,
) -> Vec<QueueView> {
    let mut names: std::collections::BTreeSet<&str> = settings.iter().map(|queue| &*queue.name).collect();
    names.extend(counts.iter().map(|count| &*count.name));
    names.extend(workers.iter().flat_map(|worker| worker.queues.split(',')).filter(|name| !name.is_empty()));
    let view = |name: &str| {
        let set = settings.iter().find(|queue| &*queue.name == name);
        let count = counts.iter().find(|count| &*count.name == name);
        QueueView {
            name: name.to_owned(),
            held: set.is_some_and(|queue| queue.held),
            limit: set.and_then(|queue| queue.limit),
            requested: count.map_or(0, |count| count.requested),
            scheduled: count.map_or(0, |count| count.scheduled),
            running: count.map_or(0, |count| count.running),
            oldest_ms: count.and_then(|count| count.oldest_ms).map(|at| (now.steady_ms - at).max(0)),
            workers: workers.iter().filter(|worker| worker.serves(name)).count(),
        }
    };
    names.into_iter().map(view).collect()
}

views! {
    /// The lifecycle of an entity: its statuses and transitions.
    pub struct LifecycleView {
        /// The entity's name in the journal.
        pub entity: &'static str,
        /// The statuses.
        pub statuses: Vec<&'static str>,
        /// The final statuses.
        pub terminal: Vec<&'static str>,
        /// The transitions.
        pub rules: Vec<RuleView>,
    }

    /// One row of a lifecycle table.
    pub struct RuleView {
        /// The event.
        pub event: &'static str,
        /// The actors that may report it.
        pub who: Vec<&'static str>,
        /// The statuses in which the event is allowed.
        pub from: Vec<&'static str>,
        /// The status that follows; two if it depends on whether the directory exists.
        pub to: Vec<&'static str>,
        /// The conditions that must still hold; otherwise the event came too late.
        pub unless_superseded: Vec<&'static str>,
    }
}

/// Returns the tables of all lifecycles.
pub fn lifecycles() -> Vec<LifecycleView> {
    use sprag_lifecycle::{
        Account, Enforcement, Environment, Execution, Gate, Run, Step, Thread, TriggerRule, WorkerPresence,
    };
    vec![
        lifecycle::<Run>(),
        lifecycle::<Step>(),
        lifecycle::<Execution>(),
        lifecycle::<Environment>(),
        lifecycle::<Thread>(),
        lifecycle::<Account>(),
        lifecycle::<Gate>(),
        lifecycle::<WorkerPresence>(),
        lifecycle::<TriggerRule>(),
        lifecycle::<Enforcement>(),
    ]
}

fn lifecycle<L: sprag_lifecycle::Lifecycle>() -> LifecycleView {
    fn words<W: Word>(all: &[W]) -> Vec<&'static str> {
        all.iter().map(|word| word.as_str()).collect()
    }
    let rule = |rule: &sprag_lifecycle::Rule<L>| RuleView {
        event: rule.event.as_str(),
        who: words(rule.who),
        from: words(rule.from),
        to: words(&rule.to.targets()),
        unless_superseded: words(rule.unless_superseded),
    };
    LifecycleView {
        entity: L::NAME,
        statuses: words(L::Status::ALL),
        terminal: words(L::TERMINAL),
        rules: L::RULES.iter().map(rule).collect(),
    }
}

views! {
    /// The environment of a run: a worktree or a folder.
    pub struct EnvironmentView {
        /// Its number.
        pub id: String,
        /// The run that it belongs to.
        pub run: Option<String>,
        /// Its status.
        pub status: &'static str,
        /// The host it is on.
        pub host: String,
        /// The directory.
        pub path: String,
        /// Its branch.
        pub branch: Option<String>,
        /// The repository's git directory.
        pub repository: Option<String>,
        /// Its keep policy: `never`, `on_failure`, `always`.
        pub keep: &'static str,
        /// Its size in bytes; 0 if it is not known here, as on another host.
        pub bytes: u64,
        /// The time when it was first requested.
        pub created_at: String,
        /// The number of the current attempt to create it.
        pub attempt: u32,
        /// The number of removals that were started.
        pub removals: u32,
        /// The reason why it still exists.
        pub why: String,
    }
}

impl EnvironmentView {
    /// Returns the view of an environment, with the reason why it is still there.
    pub fn of(row: &sprag_store::EnvironmentRow, why: String) -> Self {
        // Details that cannot be read are told as the reason why it is there.
        let details = sprag_store::EnvironmentDetails::of_readable(row);
        EnvironmentView {
            id: row.id.to_string(),
            run: row.run.map(|run| run.to_string()),
            status: row.status().as_str(),
            host: row.host.to_string(),
            path: row.path.to_string(),
            branch: details.branch,
            repository: details.repository,
            keep: details.keep.as_str(),
            bytes: bytes_of(row),
            created_at: rfc3339(row.created_ms),
            attempt: row.provision_attempt,
            removals: row.destroy_attempt,
            why,
        }
    }
}

/// Returns the number of bytes in an environment's folder, if it is on this host.
pub fn bytes_of(row: &sprag_store::EnvironmentRow) -> u64 {
    crate::local_files::LocalFiles::of(row).map_or(0, |files| size_of(&files.path))
}

/// Returns the number of bytes in a folder, without following links; files that cannot be read count as 0.
pub fn size_of(path: &std::path::Path) -> u64 {
    /// The most files that are counted one by one.
    const MOST: usize = 200_000;
    let mut total = 0;
    let mut todo = vec![path.to_owned()];
    let mut seen = 0;
    while let Some(next) = todo.pop() {
        let Ok(entries) = std::fs::read_dir(&next) else { continue };
        for entry in entries.flatten() {
            seen += 1;
            if seen > MOST {
                return total;
            }
            match entry.metadata() {
                Ok(found) if found.is_dir() => todo.push(entry.path()),
                Ok(found) => total += found.len(),
                Err(_) => {}
            }
        }
    }
    total
}
