//! The parameters of the tools. An agent reads the comments.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sprag_app::boards::{Done, NoteSpec, TaskSpec};
use sprag_app::rules::GivenEvent;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListBoards {
    /// Whether to include closed boards.
    #[serde(default)]
    pub(crate) all: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneBoard {
    /// The board's name, or its run's id.
    pub(crate) board: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetPlan {
    /// The board's name, or its run's id.
    pub(crate) board: String,
    /// The new goal; unchanged if it is left out.
    #[serde(default)]
    pub(crate) goal: Option<String>,
    /// The new plan; unchanged if it is left out.
    #[serde(default)]
    pub(crate) plan: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CloseBoard {
    /// The board's name, or its run's id.
    pub(crate) board: String,
    /// Whether to cancel tasks that have not been started.
    #[serde(default)]
    pub(crate) cancel_waiting: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AddTasks {
    /// The board's name, or its run's id.
    pub(crate) board: String,
    /// The tasks: all are added, or none.
    pub(crate) tasks: Vec<TaskSpec>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListTasks {
    /// The board's name, or its run's id.
    pub(crate) board: String,
    /// Only tasks in these statuses: waiting, ready, claimed, done, failed, skipped, cancelled.
    #[serde(default)]
    pub(crate) status: Vec<String>,
    /// Only tasks after this number, for the next page.
    #[serde(default)]
    pub(crate) after: u32,
    /// The page size [default: 100; at most 1000].
    #[serde(default)]
    pub(crate) limit: Option<usize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneTask {
    /// The board's name, or its run's id.
    pub(crate) board: String,
    /// The task's key, or its number.
    pub(crate) task: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Register {
    /// Your name. The same name is the same worker: choose a unique one.
    pub(crate) name: String,
    /// The board that you work for.
    #[serde(default)]
    pub(crate) board: Option<String>,
    /// Other queues that you claim from.
    #[serde(default)]
    pub(crate) queues: Vec<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Keep {
    /// The token that `task_claim` gave.
    pub(crate) token: String,
    /// The lease in seconds from now [default: 1800].
    #[serde(default)]
    pub(crate) lease_s: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Complete {
    /// The token that `task_claim` gave.
    pub(crate) token: String,
    /// The result of the task.
    #[serde(default)]
    pub(crate) result: Done,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fail {
    /// The token that `task_claim` gave.
    pub(crate) token: String,
    /// The reason of the failure; the next try reads it.
    pub(crate) reason: String,
    /// Whether another try is useless.
    #[serde(default)]
    pub(crate) for_good: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Token {
    /// The token that `task_claim` gave.
    pub(crate) token: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AddNote {
    /// The board's name, or its run's id.
    pub(crate) board: String,
    /// The note.
    pub(crate) note: NoteSpec,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListNotes {
    /// The board's name, or its run's id.
    pub(crate) board: String,
    /// Only notes on this subject.
    #[serde(default)]
    pub(crate) tag: Option<String>,
    /// Only notes after this number: the ones that you have not read yet.
    #[serde(default)]
    pub(crate) after: i64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartRun {
    /// The path of a pipeline file in the project's folder (`.yaml` or `.yml`). Give this, or `yaml`.
    #[serde(default)]
    pub(crate) file: Option<String>,
    /// A pipeline as text.
    #[serde(default)]
    pub(crate) yaml: Option<String>,
    /// The folder in which its commands run [default: the folder where the server was started].
    #[serde(default)]
    pub(crate) dir: Option<String>,
    /// Its inputs, by name.
    #[serde(default)]
    pub(crate) inputs: BTreeMap<String, Value>,
    /// Added to the priority of its steps.
    #[serde(default)]
    pub(crate) priority: i32,
    /// A key that never starts a second run.
    #[serde(default)]
    pub(crate) idempotency_key: Option<String>,
    /// A name for the run, to find it again.
    #[serde(default)]
    pub(crate) name: Option<String>,
    /// Labels of the run, by key, to find it again.
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    /// Run only these steps; the others are skipped.
    #[serde(default)]
    pub(crate) only: Vec<String>,
    /// Run only this step and the steps that need it.
    #[serde(default)]
    pub(crate) from: Option<String>,
    /// Skip these steps.
    #[serde(default)]
    pub(crate) skip: Vec<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListRuns {
    /// Only runs that are queued, running, failing, cancelling, completed, failed or cancelled.
    #[serde(default)]
    pub(crate) status: Vec<String>,
    /// Only runs with all of these labels, by key.
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    /// The number of runs [default: 20; at most 200].
    #[serde(default)]
    pub(crate) limit: Option<usize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneRun {
    /// The run's id, or the last characters of it.
    pub(crate) run: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StepOfRun {
    /// The run's id, or the last characters of it.
    pub(crate) run: String,
    /// The step's id, or an item of a fan-out such as `each[3]`.
    pub(crate) step: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Logs {
    /// The run's id, or the last characters of it.
    pub(crate) run: String,
    /// The step.
    pub(crate) step: String,
    /// The number of bytes from the end [default: 16384; at most 262144].
    #[serde(default)]
    pub(crate) bytes: Option<usize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnswerGate {
    /// The run's id, or the last characters of it.
    pub(crate) run: String,
    /// The step that asks, if several do.
    #[serde(default)]
    pub(crate) step: Option<String>,
    /// One of the choices that the question offers.
    pub(crate) choice: String,
    /// A comment.
    #[serde(default)]
    pub(crate) comment: Option<String>,
    /// The values of the question's fields, by name.
    #[serde(default)]
    pub(crate) fields: serde_json::Map<String, serde_json::Value>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListThreads {
    /// Only threads of this run.
    #[serde(default)]
    pub(crate) run: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneThread {
    /// The thread: RUN/STEP.
    pub(crate) thread: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadThread {
    /// The thread: RUN/STEP.
    pub(crate) thread: String,
    /// The position after which to begin; 0 if it is left out.
    #[serde(default)]
    pub(crate) after: Option<u64>,
    /// The most events, at most 1000; 50 if it is left out.
    #[serde(default)]
    pub(crate) limit: Option<usize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SendMessage {
    /// The thread: RUN/STEP.
    pub(crate) thread: String,
    /// The message.
    pub(crate) message: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneAccount {
    /// The account's name.
    pub(crate) account: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HoldAccount {
    /// The account's name.
    pub(crate) account: String,
    /// The length of the hold in seconds; without it only a release ends the hold.
    #[serde(default)]
    pub(crate) seconds: Option<u32>,
    /// The reason, in a few words.
    #[serde(default)]
    pub(crate) reason: Option<String>,
}

/// A rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneRule {
    /// `PIPELINE/RULE`, or the rule's id alone where it is unique.
    pub(crate) rule: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApplyRules {
    /// The pipeline file with the rules, below the project folder.
    #[serde(default)]
    pub(crate) file: Option<String>,
    /// The pipeline itself, in YAML, instead of a file.
    #[serde(default)]
    pub(crate) yaml: Option<String>,
    /// The folder in which the runs work, below the project folder; the project folder by default.
    #[serde(default)]
    pub(crate) dir: Option<String>,
    /// Whether only to tell what would happen.
    #[serde(default)]
    pub(crate) dry: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BackfillRule {
    /// `PIPELINE/RULE`, or the rule's id alone where it is unique.
    pub(crate) rule: String,
    /// The first time, such as 2030-01-31T08:00:00Z.
    pub(crate) from: String,
    /// The last time.
    pub(crate) to: String,
    /// Whether ticks that the rule has taken before are decided again.
    #[serde(default)]
    pub(crate) again: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PauseRule {
    /// `PIPELINE/RULE`, or the rule's id alone where it is unique.
    pub(crate) rule: String,
    /// The reason, in a few words.
    #[serde(default)]
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResumeRule {
    /// `PIPELINE/RULE`, or the rule's id alone where it is unique.
    pub(crate) rule: String,
    /// Whether ticks of the pause count as missed ones; otherwise they start nothing.
    #[serde(default)]
    pub(crate) missed: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FireRule {
    /// `PIPELINE/RULE`, or the rule's id alone where it is unique.
    pub(crate) rule: String,
    /// The event; absent for a rule with a schedule, which fires for the present moment.
    #[serde(default)]
    pub(crate) event: Option<GivenEvent>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestRule {
    /// `PIPELINE/RULE`, or the rule's id alone where it is unique.
    pub(crate) rule: String,
    /// The time of a tick, such as 2030-01-31T08:00:00Z.
    #[serde(default)]
    pub(crate) at: Option<String>,
    /// The number of a recorded event.
    #[serde(default)]
    pub(crate) recorded: Option<String>,
    /// An event.
    #[serde(default)]
    pub(crate) event: Option<GivenEvent>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListDeliveries {
    /// Only events of this rule.
    #[serde(default)]
    pub(crate) rule: Option<String>,
    /// The number of events; 20 by default, 200 at most.
    #[serde(default)]
    pub(crate) limit: Option<usize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneDelivery {
    /// The event's number.
    pub(crate) event: String,
}
