//! What can happen in the model of a run, each as one of the store's own operations.

use sprag_lifecycle::{ExecutionId, ExecutionStatus};
use sprag_store::ops::{self, Ending, Lease, Lost};
use sprag_store::{GateRow, Row};

use super::{Act, EARLY, How, LATE, World, claimer, run_id, spend};
use crate::check::Violation;

pub(super) fn finishes(world: &World, worker: usize, lease: Lease, actions: &mut Vec<Act>) {
    let row = world.tables.all_executions().find(|row| row.id == lease.execution);
    let current = row.is_some_and(|row| row.fence == lease.fence && row.status() == ExecutionStatus::Running);
    let mut hows = vec![How::Well];
    if current && world.budget.failures > 0 {
        hows.push(How::Badly);
    }
    if row.is_some_and(|row| current && row.cancel_requested) {
        hows.push(How::Cancelled);
    }
    for how in hows {
        for next in [false, true] {
            actions.push(Act::Finish { worker, lease, how, next, reply_lost: false });
        }
        if world.budget.lost_replies > 0 {
            actions.push(Act::Finish { worker, lease, how, next: false, reply_lost: true });
        }
    }
}

/// Does one thing; says whether the world is another one now.
pub(super) fn step(world: &mut World, act: Act) -> bool {
    match act {
        Act::Claim(worker) => {
            let Some((got, changed)) = world.transact(EARLY, |s| ops::claim(s, &claimer(worker), 1)) else {
                return true;
            };
            world.workers[worker].extend(got.iter().map(|assignment| assignment.lease));
            changed
        }
        Act::Deliver(worker, told) => {
            let Some((got, changed)) = world.transact(EARLY, |s| ops::receive(s, &claimer(worker), told))
            else {
                return true;
            };
            if let Ok(assignment) = got {
                world.workers[worker].push(assignment.lease);
            }
            changed
        }
        Act::Finish { worker, lease, how, next, reply_lost } => {
            finish(world, worker, lease, how, next, reply_lost)
        }
        Act::Release { worker, lease, reply_lost } => {
            spend(&mut world.budget.releases);
            if reply_lost {
                spend(&mut world.budget.lost_replies);
            } else {
                world.workers[worker].retain(|held| *held != lease);
            }
            world.transact(EARLY, |s| ops::release(s, lease));
            true
        }
        Act::Crash(worker) => {
            spend(&mut world.budget.crashes);
            world.workers[worker].clear();
            true
        }
        Act::Expire(lease) => {
            spend(&mut world.budget.expiries);
            world.transact(LATE, |s| ops::abandon(s, lease, Lost::LeaseLapsed));
            true
        }
        Act::Died(lease) => world
            .transact(EARLY, |s| ops::abandon(s, lease, Lost::ProcessGone))
            .is_none_or(|(_, changed)| changed),
        Act::ReapEarly(lease) => {
            let done = world.transact(EARLY, |s| ops::abandon(s, lease, Lost::LeaseLapsed));
            if done.is_some_and(|(outcome, changed)| outcome.is_applied() || changed) {
                world.violation = Some(Violation {
                    invariant: "I9 a live lease is not touched",
                    seen: format!("{lease:?}"),
                });
            }
            false
        }
        Act::Redispatch(id) => {
            spend(&mut world.budget.redispatches);
            world.transact(EARLY, |s| ops::redispatch(s, id));
            true
        }
        Act::Fire(id) => {
            let expires = world.tables.all_gates().any(|gate| gate_of(gate) == id);
            if expires {
                spend(&mut world.budget.failures);
            }
            world.transact(LATE, |s| ops::timer_fired(s, id)).is_none_or(|(_, changed)| changed)
        }
        Act::Answer(gate, yes) => {
            if !yes {
                spend(&mut world.budget.failures);
            }
            let text = ops::answer_text("", None, yes);
            world.transact(EARLY, |s| ops::answer_gate(s, gate, &text)).is_none_or(|(_, changed)| changed)
        }
        Act::Tell(run, step) => {
            world.tidings.remove(&(run, step));
            world.transact(EARLY, |s| ops::look_at_step(s, run, step));
            true
        }
        Act::Cancel => {
            spend(&mut world.budget.cancels);
            world.transact(EARLY, |s| ops::cancel_run(s, run_id()));
            true
        }
        Act::Resume => {
            spend(&mut world.budget.resumes);
            world.transact(EARLY, |s| ops::resume_run(s, run_id(), None));
            true
        }
        Act::Rewind(to) => {
            spend(&mut world.budget.rewinds);
            world.transact(EARLY, |s| ops::rewind_run(s, run_id(), to, None));
            true
        }
        Act::Heal => {
            let done = world.transact(EARLY, |s| ops::heal_run(s, run_id()));
            // The incremental walk has left nothing to do: the full one agrees.
            if done.is_some_and(|((), changed)| changed) {
                let seen = format!("the full walk found more to do: {:?}", world.tables);
                world.violation = Some(Violation { invariant: "both walks decide the same", seen });
            }
            false
        }
    }
}

fn finish(world: &mut World, worker: usize, lease: Lease, how: How, next: bool, reply_lost: bool) -> bool {
    let ending = match how {
        How::Well => Ending::Completed { result: None },
        How::Badly => Ending::Failed { result: None, retriable: true },
        How::Cancelled => Ending::Cancelled,
    };
    let taker = next.then(|| claimer(worker));
    let current = world.running().contains(&lease);
    let done = world.transact(EARLY, |s| ops::finish(s, lease, &ending, taker.as_ref()));
    let Some((finished, changed)) = done else { return true };
    if finished.outcome.is_applied() && !current {
        let seen = format!("{lease:?} was completed by one who had lost it");
        world.violation = Some(Violation { invariant: "I4 a stale fence commits nothing", seen });
    }
    if how == How::Badly && finished.outcome.is_applied() {
        spend(&mut world.budget.failures);
    }
    if reply_lost {
        spend(&mut world.budget.lost_replies);
        return changed;
    }
    world.workers[worker].retain(|held| *held != lease);
    world.workers[worker].extend(finished.next.map(|assignment| assignment.lease));
    true
}
/// The attempt that a gate's timer is known by.
pub(super) fn gate_of(gate: &GateRow) -> ExecutionId {
    ExecutionId { run: gate.run, step: gate.step, attempt: gate.attempt }
}
