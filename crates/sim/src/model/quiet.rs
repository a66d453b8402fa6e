//! What must hold of a state beside its rows: looking changes nothing, and without further faults the run ends.

use sprag_lifecycle::{ExecutionStatus, GateStatus};
use sprag_store::Row;
use sprag_store::ops::{self, Lost};

use super::acts::step;
use super::{Act, EARLY, How, LATE, World};
use crate::check::Violation;

/// The full walk finds nothing that the incremental one has left, no reaper touches a live lease, and a
/// message that comes late or again runs nothing.
pub(super) fn idle(world: &World) -> bool {
    let mut acts = Vec::new();
    // What a child's end means is still on its way.
    if world.tidings.is_empty() {
        acts.push(Act::Heal);
    }
    acts.extend(world.running().into_iter().map(Act::ReapEarly));
    let stale = world.messages.iter().filter(|message| !world.is_current(message));
    acts.extend(stale.map(|message| Act::Deliver(0, *message)));
    let unchanged = acts.into_iter().all(|act| {
        let mut world = world.clone();
        let changed = step(&mut world, act);
        !changed && world.violation.is_none()
    });
    unchanged && second_ones_do_nothing(world)
}

/// A second reaper and a second executor, whose look at the tables was long ago: whoever lost a lease, or the
/// right to hand over, loses it once.
fn second_ones_do_nothing(world: &World) -> bool {
    let running = world.running();
    let reaped = world.held.iter().filter(|lease| !running.contains(lease)).all(|lease| {
        [Lost::LeaseLapsed, Lost::ProcessGone].into_iter().all(|lost| {
            let mut world = world.clone();
            let done = world.transact(LATE, |session| ops::abandon(session, *lease, lost));
            done.is_some_and(|(outcome, changed)| !outcome.is_applied() && !changed)
        })
    });
    let handed_over = world.tables.all_executions().filter(|row| row.status() != ExecutionStatus::Scheduled);
    reaped
        && handed_over.map(|row| row.id).all(|id| {
            let mut world = world.clone();
            let again = world.transact(EARLY, |session| ops::redispatch(session, id));
            let unserved = world.transact(EARLY, |session| ops::fail_unserved(session, id));
            [again, unserved]
                .into_iter()
                .all(|done| done.is_some_and(|(applied, changed)| !applied && !changed))
        })
}

/// Liveness: with no further faults, and everybody doing their part, the run ends within a bound.
pub fn quiet(mut world: World) -> std::result::Result<(), Violation> {
    /// More rounds than any of these runs can need.
    const ROUNDS: usize = 100;
    for _ in 0..ROUNDS {
        if world.run_status().is_terminal() {
            return Ok(());
        }
        let due: Vec<Act> = world
            .tables
            .all_executions()
            .filter(|row| row.status() == ExecutionStatus::Requested)
            .map(|row| Act::Fire(row.id))
            .collect();
        let open = world.tables.all_gates().filter(|gate| gate.status() == GateStatus::Open);
        let answers: Vec<Act> = open.map(|gate| Act::Answer(gate.id, true)).collect();
        let told: Vec<Act> = world.tidings.iter().map(|(run, step)| Act::Tell(*run, *step)).collect();
        for act in due.into_iter().chain(answers).chain(told) {
            step(&mut world, act);
        }
        for lease in world.running() {
            if !world.believed(&lease) {
                step(&mut world, Act::Died(lease));
            }
        }
        for worker in 0..world.workers.len() {
            if world.workers[worker].is_empty() {
                step(&mut world, Act::Claim(worker));
            }
            for lease in world.workers[worker].clone() {
                let row = world.tables.all_executions().find(|row| row.id == lease.execution);
                let how =
                    if row.is_some_and(|row| row.cancel_requested) { How::Cancelled } else { How::Well };
                step(&mut world, Act::Finish { worker, lease, how, next: false, reply_lost: false });
            }
        }
        if let Some(violation) = world.violation {
            return Err(violation);
        }
    }
    Err(Violation { invariant: "every run ends", seen: format!("{:?}", world.tables) })
}
