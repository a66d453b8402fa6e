//! The operations of the reaper, on behalf of workers that are gone.

use sprag_lifecycle::{Actor, Execution, ExecutionEvent, WorkerEvent, WorkerPresence, advance, mutant};

use super::Lease;
use crate::error::Result;
use crate::outcome::Outcome;
use crate::rows::{ExecutionReport, ExecutionRow, Id, RunRow, WorkerReport, WorkerRow};
use crate::run_state::HeldRun;
use crate::session::Session;

/// The way in which an owner was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// The owner sent no heartbeat for longer than its lease.
    LeaseLapsed,
    /// The owner's process is gone, as seen on its own host.
    ProcessGone,
}

/// Takes an execution from an owner that was lost. The store's clock decides whether a lease has expired.
pub fn abandon(session: &mut Session<'_>, lease: Lease, lost: Lost) -> Result<Outcome<Execution>> {
    let run_epoch = session.get::<RunRow>(lease.execution.run)?.map_or(0, |run| run.epoch);
    let event = match lost {
        Lost::LeaseLapsed => ExecutionEvent::LeaseExpired,
        Lost::ProcessGone => ExecutionEvent::OwnerDied,
    };
    let given = ExecutionReport {
        fence: lease.fence,
        run_epoch,
        run_live: true,
        owner_dead: lost == Lost::ProcessGone,
        now_ms: super::lease_clock(session.now()),
    };
    let outcome =
        session.apply::<ExecutionRow>(lease.execution, event, Actor::Reaper, &given, |row, now| {
            row.fence += u32::from(!mutant!(FenceStaysWhenTaken));
            row.ended_ms = Some(now.wall_ms);
        })?;
    super::worker::tell_account(session, lease.execution)?;
    if outcome.is_applied() {
        super::leave_thread(session, lease, Actor::Reaper)?;
    }
    if outcome.is_applied()
        && let Some(mut held) = HeldRun::take(session, lease.execution.run)?
    {
        advance(&mut held, [lease.execution.step])?;
    }
    Ok(outcome)
}

/// Records that a worker is gone.
pub fn worker_lost(session: &mut Session<'_>, worker: Id, lost: Lost) -> Result<Outcome<WorkerPresence>> {
    let event = match lost {
        Lost::LeaseLapsed => WorkerEvent::HeartbeatLapsed,
        Lost::ProcessGone => WorkerEvent::Died,
    };
    let given = WorkerReport { now_ms: session.now().steady_ms, process_gone: lost == Lost::ProcessGone };
    session.apply::<WorkerRow>(worker, event, Actor::Reaper, &given, |_, _| {})
}
