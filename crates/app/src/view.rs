//! The views that programs see: the shapes behind `--json` and behind the HTTP API, written once.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use sprag_lifecycle::{Actor, StepNo, Word};
pub use sprag_store::is_current;
use sprag_store::{ExecutionRow, GateRow, JournalEntry, Now, Row, RunRow};

use crate::App;
use crate::error::Error;
use crate::labels::RunLabels;
use crate::logs::MissingLog;
use crate::runs::DamagedRun;
use crate::step_agent::StepNote;
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

mod environments;
mod inner;
mod lifecycles;
mod steps;
mod workers;

pub use environments::{EnvironmentView, bytes_of, size_of};
pub use lifecycles::{LifecycleView, RuleView, lifecycles};
pub use steps::{is_not_run, round_of};
pub use workers::{QueueView, WorkerView, queues};

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
        /// The counts of its steps, without the items of fan-outs; absent right after the start.
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

    /// A run that cannot be read.
    pub struct DamagedView {
        /// Its id.
        pub id: String,
        /// `damaged`.
        pub status: &'static str,
        /// The row, the column, and what is wrong with the value.
        pub reason: String,
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
        /// The last reports and notes of the agents of its steps; absent if there are none.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub notes: Vec<StepNote>,
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
        /// The round of its `repeat`, from 1; absent if it has none.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub round: Option<u32>,
        /// The most rounds of its `repeat`; absent if it has none.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub max_rounds: Option<u32>,
        /// Whether it is a service, which runs beside the other steps.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub service: bool,
        /// What it waits for; absent if it does not wait.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub waiting_for: Option<WaitingFor>,
        /// Whether it was cancelled before it began, such as a step after one that failed.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub not_run: bool,
        /// The fan-out that it is an item of.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub item_of: Option<String>,
        /// The value of the item for people, in at most 40 characters; absent for other steps, and after the first 1,000
        /// items of a run.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub item: Option<String>,
        /// The state of its items, if it is a fan-out that has started.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub items: Option<ItemsView>,
        /// The child run of the step.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub child: Option<String>,
        /// The part of its last attempt's log that has not arrived.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub log_missing: Option<MissingLog>,
        /// The time of the start of its first attempt; absent before.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub started_at: Option<String>,
        /// The time of its end; absent before.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub ended_at: Option<String>,
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
        /// The name of the worker, if the entry is about a worker that is still known.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// The path of an environment.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub path: Option<String>,
        /// The reason of a failure.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub reason: Option<String>,
    }

    /// A value that the answer to a question gives.
    #[derive(serde::Deserialize)]
    pub struct FieldView {
        /// Its name.
        pub name: String,
        /// `string`, `integer`, `number`, `boolean`, `list` or `object`.
        #[serde(rename = "type")]
        pub kind: String,
        /// Whether an answer that lets the run continue must give it.
        pub required: bool,
        /// The value if the answer does not give it.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub default: Option<Value>,
        /// The allowed values; absent if all of its type are.
        #[serde(default, rename = "enum", skip_serializing_if = "Vec::is_empty")]
        pub allowed: Vec<Value>,
        /// A regular expression that the whole text must fit.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub pattern: Option<String>,
        /// The smallest number, or the least characters, items or entries.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub min: Option<Value>,
        /// The largest number, or the most characters, items or entries.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub max: Option<Value>,
        /// Its purpose.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub description: Option<String>,
    }

    /// A question, a point in time or a signal that a run waits for.
    pub struct GateView {
        /// Its number.
        pub id: String,
        /// The run that asks.
        pub run: String,
        /// The name of the run's pipeline.
        pub pipeline: String,
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
        /// The steps at which the run continues, by the choices that lead to them; absent if none does.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub leads_to: BTreeMap<String, String>,
        /// The values that an answer gives; absent if it has none.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub fields: Vec<FieldView>,
        /// The names of those who may answer; absent if everyone may.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub answer_by: Vec<String>,
        /// `starter` if the starter of the run may not answer.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub not_by: Option<String>,
        /// The time when it was opened.
        pub opened_at: String,
        /// The time when it expires.
        pub until: Option<String>,
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
            let progress = if run.open {
                // The tasks of a board are not in its plan.
                Some(app.progress(run)?)
            } else {
                app.store.queries().plan_of(run.id)?.map(|plan| {
                    let total = plan.steps.len() as u32;
                    let settled = total.saturating_sub(run.tally.unsettled);
                    ProgressView { total, settled, broken: run.tally.broken }
                })
            };
            let questions = Some(waits.questions).filter(|count| *count > 0);
            Ok(RunView { waiting_for: waits.run, questions, progress, ..RunView::of(run) })
        };
        runs.iter().zip(waits).map(view).collect()
    }
}

impl From<DamagedRun> for DamagedView {
    fn from(run: DamagedRun) -> Self {
        DamagedView { id: run.id.to_string(), status: "damaged", reason: run.why }
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
            name: None,
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
            by: match (&entry.by, entry.worker) {
                (Some(by), _) => Some(by.to_string()),
                (None, Some(worker)) if entry.actor == Actor::Worker => Some(format!("worker:{worker}")),
                (None, _) => None,
            },
        }
    }
}

impl GateView {
    /// Returns the view of a gate of the pipeline and the step of these names.
    pub fn of(gate: &GateRow, pipeline: &str, step: &str, now: Now) -> Self {
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
            pipeline: pipeline.to_owned(),
            step: step.to_owned(),
            kind: gate.kind.as_str(),
            status: gate.status().as_str(),
            ask: if question {
                asked["ask"].as_str().map(str::to_owned)
            } else {
                (!gate.question.is_empty()).then(|| gate.question.to_string())
            },
            choices: choices.filter_map(Value::as_str).map(str::to_owned).collect(),
            leads_to: serde_json::from_value(asked["routes"].clone()).unwrap_or_default(),
            fields: serde_json::from_value(asked["fields"].clone()).unwrap_or_default(),
            answer_by: serde_json::from_value(asked["answer_by"].clone()).unwrap_or_default(),
            not_by: asked["not_by"].as_str().map(str::to_owned),
            opened_at: rfc3339(gate.opened_ms),
            until: until_ms.map(rfc3339),
        }
    }
}
