//! The end of a simulation: is everything over, and is everything there that somebody was told.

use sprag_lifecycle::{EnvironmentStatus, ExecutionStatus};
use sprag_store::{Backend, ExecutionRow, GateRow, Result, Row, RunRow, StepRow, Table};

use super::record::Acknowledged;
use super::world::{Role, World};
use crate::check::{self, Violation};

/// More than any simulation has of anything.
const MANY: usize = 10_000;

/// Whether nothing is left to be done; if not, in words what is.
pub fn is_over(world: &World) -> std::result::Result<(), String> {
    {
        let state = world.state();
        if let Some(process) = state.record.processes.iter().find(|process| process.alive) {
            return Err(format!("a process of {} goes on", process.lease.execution));
        }
        let mut persons = state.nodes.iter().enumerate().filter(|(_, node)| node.role == Role::Person);
        if world.options.runs > 0 && !persons.all(|(at, _)| state.record.satisfied.contains(&at)) {
            return Err("somebody still wants runs".into());
        }
    }
    let left = world.store.read(|db| {
        if let Some(run) = db.live_runs(None, 1)?.first() {
            let row = Table::<RunRow>::load(db, *run)?;
            return Ok(Some(format!("{row:?} is not over; {:#?}", open_steps(db, *run)?)));
        }
        if let Some(row) = db.outbox_due(i64::MAX, 1)?.pop() {
            return Ok(Some(format!("{row:?} was not carried out")));
        }
        let there =
            db.environments(false)?.into_iter().find(|row| row.status() != EnvironmentStatus::Destroyed);
        Ok(there.map(|row| format!("{row:?} is still there")))
    });
    match left {
        Ok(None) => Ok(()),
        Ok(Some(left)) => Err(left),
        Err(error) => Err(error.to_string()),
    }
}

fn open_steps(db: &mut dyn Backend, run: sprag_lifecycle::RunId) -> Result<Vec<String>> {
    let mut open: Vec<String> = Vec::new();
    for step in db.steps(run)?.into_iter().filter(|step| !step.status().is_settled()) {
        open.push(format!("{step:?}"));
    }
    for row in db.executions(run)?.into_iter().filter(|row| !row.status().is_terminal()) {
        open.push(format!("{row:?}"));
    }
    Ok(open)
}

/// What must hold in the end.
pub fn judge(world: &World) -> std::result::Result<(), Violation> {
    if let Some(checked) = world.store.with_tables(|tables| {
        check::state(tables)?;
        check::bounded(tables)?;
        check::limits(tables)
    }) {
        checked?;
    }
    if world.state().violation.is_some() {
        return Ok(());
    }
    let (acknowledged, tended) = {
        let state = world.state();
        (state.record.acknowledged.clone(), state.record.tended.clone())
    };
    let read = world.store.read(|db| {
        for told in &acknowledged {
            if let Some(wrong) = is_missing(db, told)? {
                return Ok(Some(("what was acknowledged is there", wrong)));
            }
        }
        for run in db.runs(None, &[], MANY)? {
            if run.status().is_terminal() && !tended.contains(&run.id) {
                return Ok(Some((
                    "P09 I11 effects are carried out",
                    format!("nothing was done after {run:?}"),
                )));
            }
        }
        if let Some(timer) = db.timers_due(i64::MAX, 1)?.pop() {
            return Ok(Some(("I16 everything released", format!("{timer:?} is left"))));
        }
        for group in ["group-0", "group-1"] {
            if let Some(run) = db.places(group)?.first() {
                return Ok(Some(("I16 everything released", format!("{run} has its place in {group}"))));
            }
        }
        Ok(None)
    });
    match read {
        Ok(None) => Ok(()),
        Ok(Some((invariant, seen))) => Err(Violation { invariant, seen }),
        Err(error) => Err(Violation { invariant: "a store can be read", seen: error.to_string() }),
    }
}

fn is_missing(db: &mut dyn Backend, told: &Acknowledged) -> Result<Option<String>> {
    let there = match told {
        Acknowledged::Run(run) => Table::<RunRow>::load(db, *run)?.is_some(),
        Acknowledged::Task(board, no) => Table::<StepRow>::load(db, (*board, *no))?.is_some(),
        Acknowledged::Answer(gate, text) => {
            Table::<GateRow>::load(db, *gate)?.is_some_and(|row| row.answer.as_ref() == Some(text))
        }
        Acknowledged::Completed(id, result) => Table::<ExecutionRow>::load(db, *id)?
            .is_some_and(|row| row.status() == ExecutionStatus::Completed && row.result == *result),
    };
    Ok((!there).then(|| format!("{told:?}")))
}
