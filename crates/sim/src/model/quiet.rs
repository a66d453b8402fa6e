//! Properties of a state beyond its rows: reads change nothing, and without further faults the run ends.

use sprag_lifecycle::{ExecutionStatus, GateStatus};
use sprag_store::testing::ops;
use sprag_store::{Lost, Row};

use super::acts::step;
use super::{EARLY, LATE, PipelineAction, PipelineState, WorkEnd};
use crate::check::Violation;

/// Checks that the full walk finds nothing that the incremental one has left, no reaper touches a live lease, and a
/// late or duplicate message executes nothing.
pub(super) fn idle(state: &PipelineState) -> bool {
    let mut acts = Vec::new();
    // The notification about a child's end is still pending otherwise.
    if state.child_ends.is_empty() {
        acts.push(PipelineAction::Heal);
    }
    acts.extend(state.running().into_iter().map(PipelineAction::ReapEarly));
    let stale = state.messages.iter().filter(|message| !state.is_current(message));
    acts.extend(stale.map(|message| PipelineAction::Deliver(0, *message)));
    let unchanged = acts.into_iter().all(|act| {
        let mut state = state.clone();
        let changed = step(&mut state, act);
        !changed && state.violation.is_none()
    });
    unchanged && outdated_views_change_nothing(state)
}

/// Checks that a second reaper and a second executor with outdated views change nothing: a lease or hand-off is lost
/// only once.
fn outdated_views_change_nothing(state: &PipelineState) -> bool {
    let running = state.running();
    let reaped = state.held.iter().filter(|lease| !running.contains(lease)).all(|lease| {
        [Lost::LeaseLapsed, Lost::ProcessGone].into_iter().all(|lost| {
            let mut state = state.clone();
            let done = state.transact(LATE, |session| ops::abandon(session, *lease, lost));
            done.is_some_and(|(outcome, changed)| !outcome.is_applied() && !changed)
        })
    });
    let handed_over = state.tables.all_executions().filter(|row| row.status() != ExecutionStatus::Scheduled);
    reaped
        && handed_over.map(|row| row.id).all(|id| {
            let mut state = state.clone();
            let again = state.transact(EARLY, |session| ops::redispatch(session, id));
            let unserved = state.transact(EARLY, |session| ops::fail_unserved(session, id));
            [again, unserved]
                .into_iter()
                .all(|done| done.is_some_and(|(applied, changed)| !applied && !changed))
        })
}

/// Liveness: without further faults, and with every participant acting, the run ends within a bound.
pub fn quiet(mut state: PipelineState) -> std::result::Result<(), Violation> {
    /// More rounds than any of these runs can need.
    const ROUNDS: usize = 100;
    for _ in 0..ROUNDS {
        if state.run_status().is_terminal() {
            return Ok(());
        }
        let due: Vec<PipelineAction> = state
            .tables
            .all_executions()
            .filter(|row| row.status() == ExecutionStatus::Requested)
            .map(|row| PipelineAction::Fire(row.id))
            .collect();
        let open = state.tables.all_gates().filter(|gate| gate.status() == GateStatus::Open);
        let answers: Vec<PipelineAction> = open.map(|gate| PipelineAction::Answer(gate.id, true)).collect();
        let notifications: Vec<PipelineAction> =
            state.child_ends.iter().map(|(run, step)| PipelineAction::NotifyParent(*run, *step)).collect();
        for act in due.into_iter().chain(answers).chain(notifications) {
            step(&mut state, act);
        }
        for lease in state.running() {
            if !state.believed(&lease) {
                step(&mut state, PipelineAction::Died(lease));
            }
        }
        for worker in 0..state.workers.len() {
            if state.workers[worker].is_empty() {
                step(&mut state, PipelineAction::Claim(worker));
            }
            for lease in state.workers[worker].clone() {
                let row = state.tables.all_executions().find(|row| row.id == lease.execution);
                let how = if row.is_some_and(|row| row.cancel_requested) {
                    WorkEnd::Cancelled
                } else {
                    WorkEnd::Succeeded
                };
                step(
                    &mut state,
                    PipelineAction::Finish { worker, lease, how, next: false, reply_lost: false },
                );
            }
        }
        if let Some(violation) = state.violation {
            return Err(violation);
        }
    }
    Err(Violation { invariant: "every run ends", seen: format!("{:?}", state.tables) })
}
