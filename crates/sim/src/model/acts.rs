//! The actions in the model of a run, each as one of the store's own operations.

use sprag_lifecycle::{ExecutionId, ExecutionStatus};
use sprag_store::testing::ops;
use sprag_store::{Ending, GateRow, Lease, Lost, Row};

use super::{EARLY, LATE, PipelineAction, PipelineState, WorkEnd, claimer, run_id, spend};
use crate::check::Violation;

pub(super) fn finishes(
    state: &PipelineState,
    worker: usize,
    lease: Lease,
    actions: &mut Vec<PipelineAction>,
) {
    let row = state.tables.all_executions().find(|row| row.id == lease.execution);
    let current = row.is_some_and(|row| row.fence == lease.fence && row.status() == ExecutionStatus::Running);
    let mut hows = vec![WorkEnd::Succeeded];
    if current && state.budget.failures > 0 {
        hows.push(WorkEnd::Failed);
    }
    if row.is_some_and(|row| current && row.cancel_requested) {
        hows.push(WorkEnd::Cancelled);
    }
    for how in hows {
        for next in [false, true] {
            actions.push(PipelineAction::Finish { worker, lease, how, next, reply_lost: false });
        }
        if state.budget.lost_replies > 0 {
            actions.push(PipelineAction::Finish { worker, lease, how, next: false, reply_lost: true });
        }
    }
}

/// Executes one action. Returns whether the state has changed.
pub(super) fn step(state: &mut PipelineState, act: PipelineAction) -> bool {
    match act {
        PipelineAction::Claim(worker) => {
            let Some((got, changed)) = state.transact(EARLY, |s| ops::claim(s, &claimer(worker), 1)) else {
                return true;
            };
            state.workers[worker].extend(got.iter().map(|assignment| assignment.lease));
            changed
        }
        PipelineAction::Deliver(worker, lease) => {
            let Some((got, changed)) = state.transact(EARLY, |s| ops::receive(s, &claimer(worker), lease))
            else {
                return true;
            };
            if let Ok(assignment) = got {
                state.workers[worker].push(assignment.lease);
            }
            changed
        }
        PipelineAction::Finish { worker, lease, how, next, reply_lost } => {
            finish(state, worker, lease, how, next, reply_lost)
        }
        PipelineAction::Release { worker, lease, reply_lost } => {
            spend(&mut state.budget.releases);
            if reply_lost {
                spend(&mut state.budget.lost_replies);
            } else {
                state.workers[worker].retain(|held| *held != lease);
            }
            state.transact(EARLY, |s| ops::release(s, lease));
            true
        }
        PipelineAction::Crash(worker) => {
            spend(&mut state.budget.crashes);
            state.workers[worker].clear();
            true
        }
        PipelineAction::Expire(lease) => {
            spend(&mut state.budget.expiries);
            state.transact(LATE, |s| ops::abandon(s, lease, Lost::LeaseLapsed));
            true
        }
        PipelineAction::Died(lease) => state
            .transact(EARLY, |s| ops::abandon(s, lease, Lost::ProcessGone))
            .is_none_or(|(_, changed)| changed),
        PipelineAction::ReapEarly(lease) => {
            let done = state.transact(EARLY, |s| ops::abandon(s, lease, Lost::LeaseLapsed));
            if done.is_some_and(|(outcome, changed)| outcome.is_applied() || changed) {
                state.violation = Some(Violation {
                    invariant: "I9 a live lease is not touched",
                    seen: format!("{lease:?}"),
                });
            }
            false
        }
        PipelineAction::Redispatch(id) => {
            spend(&mut state.budget.redispatches);
            state.transact(EARLY, |s| ops::redispatch(s, id));
            true
        }
        PipelineAction::Fire(id) => {
            let expires = state.tables.all_gates().any(|gate| gate_of(gate) == id);
            if expires {
                spend(&mut state.budget.failures);
            }
            state.transact(LATE, |s| ops::timer_fired(s, id)).is_none_or(|(_, changed)| changed)
        }
        PipelineAction::Answer(gate, yes) => {
            if !yes {
                spend(&mut state.budget.failures);
            }
            let text = ops::answer_text("", None, yes);
            state.transact(EARLY, |s| ops::answer_gate(s, gate, &text)).is_none_or(|(_, changed)| changed)
        }
        PipelineAction::NotifyParent(run, step) => {
            state.child_ends.remove(&(run, step));
            state.transact(EARLY, |s| ops::look_at_step(s, run, step));
            true
        }
        PipelineAction::Cancel => {
            spend(&mut state.budget.cancels);
            state.transact(EARLY, |s| ops::cancel_run(s, run_id()));
            true
        }
        PipelineAction::Resume => {
            spend(&mut state.budget.resumes);
            state.transact(EARLY, |s| ops::resume_run(s, run_id(), None));
            true
        }
        PipelineAction::Rewind(to) => {
            spend(&mut state.budget.rewinds);
            state.transact(EARLY, |s| ops::rewind_run(s, run_id(), to, None));
            true
        }
        PipelineAction::Heal => {
            let done = state.transact(EARLY, |s| ops::heal_run(s, run_id()));
            // The incremental walk has left nothing to do, so the full one must agree.
            if done.is_some_and(|((), changed)| changed) {
                let seen = format!("the full walk found more to do: {:?}", state.tables);
                state.violation = Some(Violation { invariant: "both walks decide the same", seen });
            }
            false
        }
    }
}

fn finish(
    state: &mut PipelineState,
    worker: usize,
    lease: Lease,
    how: WorkEnd,
    next: bool,
    reply_lost: bool,
) -> bool {
    let ending = match how {
        WorkEnd::Succeeded => Ending::Completed { result: None },
        WorkEnd::Failed => Ending::Failed { result: None, retriable: true },
        WorkEnd::Cancelled => Ending::Cancelled,
    };
    let taker = next.then(|| claimer(worker));
    let current = state.running().contains(&lease);
    let done = state.transact(EARLY, |s| ops::finish(s, lease, &ending, taker.as_ref()));
    let Some((finished, changed)) = done else { return true };
    if finished.outcome.is_applied() && !current {
        let seen = format!("{lease:?} was completed by one who had lost it");
        state.violation = Some(Violation { invariant: "I4 a stale fence commits nothing", seen });
    }
    if how == WorkEnd::Failed && finished.outcome.is_applied() {
        spend(&mut state.budget.failures);
    }
    if reply_lost {
        spend(&mut state.budget.lost_replies);
        return changed;
    }
    state.workers[worker].retain(|held| *held != lease);
    state.workers[worker].extend(finished.next.map(|assignment| assignment.lease));
    true
}
/// Returns the execution id that identifies a gate's timer.
pub(super) fn gate_of(gate: &GateRow) -> ExecutionId {
    ExecutionId { run: gate.run, step: gate.step, attempt: gate.attempt }
}
