//! The use cases of remote workers, which have no database: they register, claim, renew, report, make environments on
//! their hosts, and send what their steps print. Each is decided inside one transaction, which first checks that the
//! worker holds the step.
//!
//! ```text
//!   worker ── claim (waits) ─▶ what it may do, and for how long
//!      ├──── heartbeat ──────▶ what it still holds; watch (waits) tells when to ask
//!      ├──── logs ───────────▶ the execution's file, by offset
//!      ├──── files ──────────▶ the files that it passes on, and those that it was passed
//!      └──── finish ─────────▶ refused with the outcome, if another worker has it by now
//! ```

mod claims;
mod environments;
mod files;
mod logs;
mod registration;
mod reports;
mod sites;

use sprag_lifecycle::Execution;
use sprag_store::{AskRefused, Assignment, Claimer, Id, Outcome};
use sprag_worker::wire;

use crate::App;
use crate::error::{Error, ErrorKind, Hint};

/// The allowed lengths of a lease, which is the time for which a worker may be silent.
const LEASES_MS: std::ops::RangeInclusive<i64> = 5_000..=3_600_000;
/// The most queues that one worker serves.
const MOST_QUEUES: usize = 64;
/// The most executions that one worker holds.
const MOST_HELD: usize = 4_096;

/// A remote worker that has proven its number, and everything that it may do.
#[derive(Clone)]
pub struct RemoteWorker {
    app: App,
    id: Id,
}

impl App {
    /// Returns what the remote worker with this number may do. The caller has checked that the number is the worker's.
    pub fn remote_worker(&self, id: Id) -> RemoteWorker {
        RemoteWorker { app: self.clone(), id }
    }
}

impl From<AskRefused> for Error {
    fn from(why: AskRefused) -> Self {
        let not_its = |why| Error::new(ErrorKind::Refused, why);
        match why {
            AskRefused::NotHeld(outcome) => refused(outcome),
            AskRefused::NotRegistered => {
                not_its("this worker is not registered with this token").hint(Hint::RegisterWorker)
            }
            AskRefused::OtherEnvironment => not_its("the environment is not the one that the step works in"),
            AskRefused::OtherHost => not_its("there is no such environment on the worker's host"),
        }
    }
}

/// Returns a claimer restricted to what this worker may claim: in its own name, and only work that is not reserved to
/// one worker.
fn checked(mut claimer: Claimer, worker: Id) -> Result<Claimer, Error> {
    check_lease(claimer.lease_ms)?;
    if claimer.queues.is_empty() || claimer.queues.len() > MOST_QUEUES {
        return Err(Error::field("queues", format!("between 1 and {MOST_QUEUES}")));
    }
    if claimer.queues.iter().any(|queue| queue.is_empty() || queue.len() > 256) {
        return Err(Error::field("queues", "a name has between 1 and 256 bytes"));
    }
    if claimer.nonce <= 0 {
        return Err(Error::field("nonce", "a positive number, another for each claim"));
    }
    claimer.worker = worker;
    claimer.reserved_only = false;
    Ok(claimer)
}

fn check_lease(lease_ms: i64) -> Result<(), Error> {
    if LEASES_MS.contains(&lease_ms) {
        return Ok(());
    }
    Err(Error::field("lease_ms", "between 5 seconds and an hour"))
}

fn check_count(leases: usize) -> Result<(), Error> {
    if leases <= MOST_HELD {
        return Ok(());
    }
    Err(Error::field("leases", format!("at most {MOST_HELD}")))
}

/// Returns the error for a refused write, with its outcome.
fn refused(outcome: Outcome<Execution>) -> Error {
    match outcome.require_applied() {
        Err(refused) => Error::from(refused).hint(Hint::StopWork),
        Ok(_) => Error::new(ErrorKind::Refused, "it was done before"),
    }
}

/// Returns an assignment with the length of its lease, counted from the moment when the request came.
fn given(app: &App, assignment: Assignment, received_ms: i64) -> wire::GivenWork {
    let mut assignment = app.with_secret_inputs(assignment);
    match files::named_files(app, &assignment) {
        Ok(found) => assignment.files = found,
        // The step then reads the paths as they are, and reports what is missing.
        Err(error) => tracing::warn!(%error, "the files of a step cannot be listed"),
    }
    wire::GivenWork { lease_ms: assignment.lease_until_ms - received_ms, assignment }
}
