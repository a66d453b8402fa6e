//! The thread of an agent step, reported to the engine: the conversation that all attempts, and people, have with the agent.
//!
//! ```text
//!   enter (reprovision.started) ──▶ Started (start.succeeded) ──▶ the process has ended (turn.completed, turn.failed, …)
//! ```
//!
//! An execution that holds the thread keeps other ones from the session. It leaves the thread in the transaction that ends,
//! releases or abandons it, so a lost report costs nothing but an entry of the journal.

use std::sync::Arc;

use serde_json::{Value, json};
use sprag_agent::Outcome;
use sprag_lifecycle::{ExecutionId, RunId, StepNo, ThreadEvent, Word};
use sprag_store::{Assignment, Ending, Lease, ThreadEntry};

use super::process::{Finished, Stop};
use crate::command::failed;
use crate::records::{Records, ThreadOf, ThreadSaid};
use crate::slots::Ended;

/// The key of a run's context that names the thread to which the run talks.
pub const TALKS_TO: &str = "thread";

/// The thread in which an attempt works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ThreadTarget {
    pub(crate) of: ThreadOf,
    /// The name of the step whose thread it is.
    pub(crate) name: String,
    /// The run whose step a person talks to; none in a step's own attempt.
    pub(crate) talk: Option<RunId>,
}

impl ThreadTarget {
    /// Returns the thread of an attempt: that of its step, or the one that its run talks to.
    pub(crate) fn of(assignment: &Assignment) -> Result<ThreadTarget, String> {
        let id = assignment.lease.execution;
        let context: Value = serde_json::from_str(&assignment.context).unwrap_or_default();
        let Some(thread) = context.get(TALKS_TO) else {
            let of = ThreadOf { run: id.run, step: id.step };
            return Ok(ThreadTarget { of, name: assignment.name.clone(), talk: None });
        };
        let run = thread["run"].as_str().and_then(|run| run.parse::<RunId>().ok());
        let step = thread["step"].as_u64().and_then(|step| StepNo::try_from(step).ok());
        match (run, step, thread["name"].as_str()) {
            (Some(run), Some(step), Some(name)) => {
                Ok(ThreadTarget { of: ThreadOf { run, step }, name: name.to_owned(), talk: Some(run) })
            }
            _ => Err("the run names no thread".to_owned()),
        }
    }

    /// Returns the attempt in whose folder the session is stored.
    pub(crate) fn execution(&self, attempt: u32) -> ExecutionId {
        ExecutionId { run: self.of.run, step: self.of.step, attempt }
    }
}

/// A thread that this attempt holds.
pub(crate) struct HeldThread {
    records: Option<Arc<dyn Records>>,
    lease: Lease,
    of: ThreadOf,
    turn: u32,
    runtime: u32,
}

impl HeldThread {
    /// Enters the thread, or returns the ending of a step that may not start an agent in it.
    pub(crate) async fn enter(
        records: Option<Arc<dyn Records>>,
        lease: Lease,
        target: &ThreadTarget,
    ) -> Result<HeldThread, Ended> {
        let mut held = HeldThread { records, lease, of: target.of, turn: 0, runtime: 0 };
        let Some(records) = &held.records else { return Ok(held) };
        let thread = format!("{}/{}", target.of.run, target.name);
        match records.enter_thread(lease, target.of).await {
            Ok(ThreadEntry::Entered { turn, runtime }) => {
                (held.turn, held.runtime) = (turn, runtime);
                Ok(held)
            }
            Ok(ThreadEntry::Busy { run }) => {
                let facts = json!({
                    "reason": "busy",
                    "message": format!("thread {thread} is in use by run {run}"),
                    "remedy": format!("wait for run {run}, or stop it: sprag thread stop {thread}"),
                });
                Err(Ended::Report(Ending::Blocked { result: Some(facts.to_string().into()) }))
            }
            Ok(ThreadEntry::Refused) => {
                let message =
                    format!("thread {thread} was stopped, archived or removed: it takes no further turns");
                Err(failed(&json!({ "reason": "thread", "message": message }), false))
            }
            Err(error) => {
                let message = format!("thread {thread} cannot be entered: {error}");
                Err(failed(&json!({ "reason": "thread", "message": message }), true))
            }
        }
    }

    /// Reports that the agent has started.
    pub(crate) async fn started(&self) {
        self.say(ThreadEvent::StartSucceeded).await;
    }

    /// Reports the end of the agent's process.
    pub(crate) async fn ended(&self, finished: &Finished) {
        self.say(event_of(finished)).await;
    }

    async fn say(&self, event: ThreadEvent) {
        let Some(records) = &self.records else { return };
        let said = ThreadSaid { event: event.as_str().to_owned(), turn: self.turn, runtime: self.runtime };
        match records.thread_event(self.lease, self.of, said).await {
            Ok(true) => {}
            Ok(false) => tracing::debug!(%event, "the thread has moved on"),
            Err(error) => tracing::warn!(%event, %error, "an event of a thread was not reported"),
        }
    }
}

/// Returns the event that the end of a process means.
fn event_of(finished: &Finished) -> ThreadEvent {
    match (&finished.turn, &finished.stopped) {
        (_, Some(Stop::Parked | Stop::Cancelled)) => ThreadEvent::TurnInterrupted,
        (Ok(end), None) if end.outcome == Outcome::Completed => ThreadEvent::TurnCompleted,
        (Ok(end), None) if end.outcome == Outcome::Interrupted => ThreadEvent::TurnInterrupted,
        (Ok(_), _) | (Err(_), Some(_)) => ThreadEvent::TurnFailed,
        (Err(_), None) if finished.has_started => ThreadEvent::RuntimeExited,
        (Err(_), None) => ThreadEvent::CommandFailed,
    }
}
