//! What is published: one journal entry becomes its messages.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sprag_lifecycle::{ExecutionId, ExecutionStatus, RunId, StepNo, Word};
use sprag_store::ops::Lease;
use sprag_store::{ExecutionRow, Id, JournalEntry, Row};

use crate::subjects::Subjects;

/// A message on its way to the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) subject: String,
    /// The broker drops a second one with this id.
    pub(crate) id: String,
    pub(crate) payload: Bytes,
}

/// An execution is in its queue's hands: whoever shows this fence first receives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handoff {
    /// `execution.scheduled`.
    pub message: String,
    /// The journal entry that it tells of.
    pub seq: u64,
    /// The run.
    pub run: RunId,
    /// The step's name.
    pub step: Option<String>,
    /// The step's number in its run.
    pub step_no: StepNo,
    /// The attempt at the step.
    pub attempt: u32,
    /// What the store compares before it gives the execution to anybody.
    pub fence: u32,
    /// The queue.
    pub queue: String,
    /// The only worker that may have it.
    pub pin: Option<Id>,
    /// Higher is wanted sooner.
    pub priority: i32,
}

/// What a hand-off's message says it is.
pub(crate) const SCHEDULED: &str = "execution.scheduled";
/// What a message to a worker says that asks it to end something.
const CANCEL_REQUESTED: &str = "execution.cancel_requested";

impl Handoff {
    /// What may be received.
    pub fn lease(&self) -> Lease {
        let execution = ExecutionId { run: self.run, step: self.step_no, attempt: self.attempt };
        Lease { execution, fence: self.fence }
    }
}

/// Which messages of the lifecycle an entry stands for, beside its own event.
fn words(entry: &JournalEntry) -> Vec<&'static str> {
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

/// An entry as anybody may follow it; `view` is the entry as programs see it everywhere.
pub(crate) fn events(subjects: &Subjects, entry: &JournalEntry, view: &Value) -> Vec<Outgoing> {
    let tell = |word: &'static str| {
        let mut told = view.clone();
        told["message"] = word.into();
        Outgoing {
            subject: subjects.event(entry.place.run, entry.entity, word),
            // A store that was made anew counts from one again; its runs are others.
            id: format!(
                "{}.{word}.{}",
                entry.seq,
                entry.place.run.map(|run| run.to_string()).unwrap_or_default()
            ),
            payload: told.to_string().into(),
        }
    };
    words(entry).into_iter().map(tell).collect()
}

/// The hand-off that an entry tells of, if the row still is in its queue's hands.
pub(crate) fn handoff(
    subjects: &Subjects,
    entry: &JournalEntry,
    step: Option<&str>,
    row: &ExecutionRow,
) -> Option<Outgoing> {
    if row.status() != ExecutionStatus::Scheduled {
        return None;
    }
    let told = Handoff {
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
    // What only one worker may have is told to it alone: in a queue it would only be in the others' way.
    let subject = row.pin.map_or_else(|| subjects.work(&row.queue), |pin| subjects.worker(pin));
    let payload = serde_json::to_vec(&told).expect("a hand-off is plain data");
    Some(Outgoing { subject, id: format!("{}.{}", row.id, row.fence), payload: payload.into() })
}

/// Asks the worker that has an execution to end it, if somebody wants it to end.
pub(crate) fn cancel(subjects: &Subjects, row: &ExecutionRow) -> Option<Outgoing> {
    let wanted = row.cancel_requested && row.status() == ExecutionStatus::Running;
    let owner = row.owner.filter(|_| wanted)?;
    let told = serde_json::json!({
        "message": CANCEL_REQUESTED,
        "run": row.id.run,
        "step_no": row.id.step,
        "attempt": row.id.attempt,
        "fence": row.fence,
        "queue": &*row.queue,
    });
    let id = format!("{}.{}.cancel", row.id, row.fence);
    Some(Outgoing { subject: subjects.worker(owner), id, payload: told.to_string().into() })
}
