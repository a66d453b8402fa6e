//! The messages that the relay publishes for a journal entry.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sprag_lifecycle::{ExecutionId, ExecutionStatus, RunId, StepNo, Word};
use sprag_store::{ExecutionRow, Id, JournalEntry, Lease, Row};

use crate::subjects::Subjects;

/// A message to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) subject: String,
    /// The deduplication id: the broker drops a second message with the same id.
    pub(crate) id: String,
    pub(crate) payload: Bytes,
}

/// Announces a scheduled execution. The first worker that presents this fence to the store claims it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handoff {
    /// Always `execution.scheduled`.
    pub message: String,
    /// The number of the journal entry that scheduled the execution.
    pub seq: u64,
    /// The run of the execution.
    pub run: RunId,
    /// The step's name; absent if the plan gives it none.
    pub step: Option<String>,
    /// The step's number in its run.
    pub step_no: StepNo,
    /// The number of the attempt at the step, starting at 1.
    pub attempt: u32,
    /// The fence that the store compares before it grants the execution.
    pub fence: u32,
    /// The queue that the execution waits in.
    pub queue: String,
    /// The only worker that may claim the execution; absent if any worker of the queue may.
    pub pin: Option<Id>,
    /// The priority: workers claim higher values first.
    pub priority: i32,
}

/// The `message` of a handoff.
pub(crate) const SCHEDULED: &str = "execution.scheduled";
/// The `message` that asks a worker to stop an execution.
const CANCEL_REQUESTED: &str = "execution.cancel_requested";

impl Handoff {
    /// Returns the execution and the fence to claim it with.
    pub fn lease(&self) -> Lease {
        let execution = ExecutionId { run: self.run, step: self.step_no, attempt: self.attempt };
        Lease { execution, fence: self.fence }
    }
}

/// Returns the lifecycle messages of an entry. Executions have named messages; other entities use their event.
fn message_kinds(entry: &JournalEntry) -> Vec<&'static str> {
    match (entry.entity, entry.from) {
        ("execution", None) => vec!["execution.requested"],
        ("execution", Some(_)) => {
            let ended = ExecutionStatus::parse(entry.to).is_some_and(ExecutionStatus::is_terminal);
            let completed = ended.then_some("execution.completed");
            ["execution.status_changed"].into_iter().chain(completed).collect()
        }
        _ => vec![entry.event],
    }
}

/// Returns the public events of an entry; `view` is the entry as the other interfaces show it.
pub(crate) fn events(subjects: &Subjects, entry: &JournalEntry, view: &Value) -> Vec<Outgoing> {
    let outgoing = |kind: &'static str| {
        let mut payload = view.clone();
        payload["message"] = kind.into();
        Outgoing {
            subject: subjects.event(entry.place.run, entry.entity, kind),
            // The run is part of the id because a recreated store starts again at sequence number 1.
            id: format!(
                "{}.{kind}.{}",
                entry.seq,
                entry.place.run.map(|run| run.to_string()).unwrap_or_default()
            ),
            payload: payload.to_string().into(),
        }
    };
    message_kinds(entry).into_iter().map(outgoing).collect()
}

/// Returns the handoff message of an entry, or `None` if the execution is no longer scheduled.
pub(crate) fn handoff(
    subjects: &Subjects,
    entry: &JournalEntry,
    step: Option<&str>,
    row: &ExecutionRow,
) -> Option<Outgoing> {
    if row.status() != ExecutionStatus::Scheduled {
        return None;
    }
    let handoff = Handoff {
        message: SCHEDULED.to_owned(),
        seq: entry.seq,
        run: row.id.run,
        step: step.map(str::to_owned),
        step_no: row.id.step,
        attempt: row.id.attempt,
        fence: row.fence,
        queue: row.queue.to_string(),
        pin: row.pin,
        priority: row.priority,
    };
    // A pinned execution goes to its worker's subject: the queue's other workers could not claim it.
    let subject = row.pin.map_or_else(|| subjects.work(&row.queue), |pin| subjects.worker(pin));
    let payload = serde_json::to_vec(&handoff).expect("a handoff is plain data");
    Some(Outgoing { subject, id: format!("{}.{}", row.id, row.fence), payload: payload.into() })
}

/// Returns the message that asks the owner of a running execution to stop it, if a cancel is requested.
pub(crate) fn cancel(subjects: &Subjects, row: &ExecutionRow) -> Option<Outgoing> {
    let stop = row.cancel_requested && row.status() == ExecutionStatus::Running;
    let owner = row.owner.filter(|_| stop)?;
    let message = serde_json::json!({
        "message": CANCEL_REQUESTED,
        "run": row.id.run,
        "step_no": row.id.step,
        "attempt": row.id.attempt,
        "fence": row.fence,
        "queue": &*row.queue,
    });
    let id = format!("{}.{}.cancel", row.id, row.fence);
    Some(Outgoing { subject: subjects.worker(owner), id, payload: message.to_string().into() })
}
