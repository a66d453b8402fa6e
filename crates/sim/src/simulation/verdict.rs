//! The end of a simulation: whether everything has ended, and whether every acknowledged result is stored.

use std::collections::BTreeMap;

use sprag_lifecycle::{EnforcementStatus, EnvironmentStatus, ExecutionStatus, RunId};
use sprag_store::testing::{Backend, RawStore, Table};
use sprag_store::{ENFORCEMENT_KEY, ExecutionRow, GateRow, Result, Row, RunRow, StepRow, WorkerRow};

use super::programs::rules::{REQUESTS, TICKS};
use super::record::Acknowledged;
use super::world::{Role, World};
use crate::check::{self, Violation};

/// More than any simulation has of anything.
const MANY: usize = 10_000;

/// Checks that nothing is left to do. The error describes what is.
pub fn is_over(world: &World) -> std::result::Result<(), String> {
    {
        let state = world.state();
        if let Some(process) = state.record.processes.iter().find(|process| process.alive) {
            return Err(format!("a process of {} is still running", process.lease.execution));
        }
        let mut senders = state.nodes.iter().enumerate().filter(|(_, node)| node.role == Role::Sender);
        if !senders.all(|(at, _)| state.record.done_persons.contains(&at)) {
            return Err("a sender still has events to send".into());
        }
        let mut persons = state.nodes.iter().enumerate().filter(|(_, node)| node.role == Role::Person);
        if world.options.runs > 0 && !persons.all(|(at, _)| state.record.done_persons.contains(&at)) {
            return Err("a person still has runs to start".into());
        }
    }
    if world.options.serverless {
        return is_over_without_a_server(world);
    }
    let left = world.store.read(|db| {
        if let Some(run) = db.live_runs(None, 1)?.first() {
            let row = Table::<RunRow>::load(db, *run)?;
            return Ok(Some(format!("{row:?} is not over; {:#?}", open_steps(db, *run)?)));
        }
        if let Some(row) = db.rules()?.into_iter().find(|row| row.next_ms.is_some()) {
            return Ok(Some(format!("{row:?} has a tick to fire")));
        }
        if let Some(row) = db.enforcements_due(i64::MAX, 1)?.pop() {
            return Ok(Some(format!("{row:?} is not decided")));
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

/// Returns whether a live process works on a run or waits to.
pub fn has_process(world: &World, run: RunId) -> bool {
    let process = world.store.read(|db| {
        let pin = Table::<RunRow>::load(db, run)?.and_then(|row| row.pin);
        Ok(pin.map(|pin| Table::<WorkerRow>::load(db, pin)).transpose()?.flatten().map(|row| row.process))
    });
    process.ok().flatten().is_some_and(|process| !world.state().is_gone(&process))
}

/// Checks the end without a server: unfinished runs without a process may stay, but must not block a live process.
fn is_over_without_a_server(world: &World) -> std::result::Result<(), String> {
    let live = world.store.queries().live_runs(None, MANY).map_err(|error| error.to_string())?;
    match live.iter().find(|run| has_process(world, **run)) {
        Some(run) => {
            let left = world.store.read(|db| {
                let row = Table::<RunRow>::load(db, *run)?;
                let holders = db.places("group-0")?;
                Ok(format!("{row:?} is not over, {holders:?} hold places; {:#?}", open_steps(db, *run)?))
            });
            Err(left.unwrap_or_else(|error| error.to_string()))
        }
        None => Ok(()),
    }
}

/// Returns whether a run has ended, or has no process where no server runs.
fn is_left(db: &mut dyn Backend, world: &World, run: RunId) -> Result<bool> {
    let live = Table::<RunRow>::load(db, run)?.is_some_and(|row| !row.status().is_terminal());
    Ok(live && world.options.serverless)
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

/// Checks the invariants of the final state.
pub fn judge(world: &World) -> std::result::Result<(), Violation> {
    if let Some(checked) = world.store.with_tables(|tables| {
        let tables = tables.rows();
        check::state(&tables)?;
        check::bounded(&tables)?;
        check::limits(&tables)
    }) {
        checked?;
    }
    if world.state().violation.is_some() {
        return Ok(());
    }
    let (acknowledged, effects_done, forgotten) = {
        let record = &world.state().record;
        (record.acknowledged.clone(), record.effects_done.clone(), record.forgotten.clone())
    };
    let read = world.store.read(|db| {
        for told in acknowledged.iter().filter(|told| told.run().is_none_or(|run| !forgotten.contains(&run)))
        {
            if let Some(wrong) = is_missing(db, told)? {
                return Ok(Some(("what was acknowledged is there", wrong)));
            }
        }
        if let Some(wrong) = wrong_events(db)? {
            return Ok(Some(wrong));
        }
        for run in db.runs(None, &[], MANY)? {
            // A process that was killed at its run's end has executed no effects, and without a server no other does.
            if run.status().is_terminal() && !effects_done.contains(&run.id) && !world.options.serverless {
                return Ok(Some((
                    "P09 I11 effects are carried out",
                    format!("nothing was done after {run:?}"),
                )));
            }
        }
        for timer in db.timers_due(i64::MAX, MANY)? {
            if !is_left(db, world, timer.execution.run)? {
                return Ok(Some(("I16 everything released", format!("{timer:?} is left"))));
            }
        }
        for group in ["group-0", "group-1"] {
            for run in db.places(group)? {
                if !is_left(db, world, run)? {
                    return Ok(Some(("I16 everything released", format!("{run} has its place in {group}"))));
                }
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

impl Acknowledged {
    /// Returns the run that it concerns, if it concerns one.
    fn run(&self) -> Option<RunId> {
        match self {
            Acknowledged::Run(run) | Acknowledged::Answer(run, ..) | Acknowledged::Task(run, _) => Some(*run),
            Acknowledged::Completed(id, _) => Some(id.run),
            Acknowledged::Event(..) => None,
        }
    }
}

/// Checks that each rule has each of its ticks and requests once, each with one decision, and each run with one of them.
fn wrong_events(db: &mut dyn Backend) -> Result<Option<(&'static str, String)>> {
    let mut runs = BTreeMap::new();
    for rule in db.rules()? {
        let mut keys: Vec<String> =
            db.deliveries(Some(rule.id), MANY)?.into_iter().map(|event| event.key.to_string()).collect();
        keys.sort();
        let mut expected: Vec<String> = (1..=TICKS).map(|n| format!("tick {n}")).collect();
        expected.extend((0..REQUESTS).map(|n| format!("request {n}")));
        expected.sort();
        if keys != expected {
            return Ok(Some(("R01 R15 each event is taken once", format!("{}: {keys:?}", rule.name))));
        }
        let decisions = db.enforcements_by(rule.id, MANY)?;
        if decisions.len() != keys.len() {
            return Ok(Some(("R23 each event has one decision", format!("{decisions:?}"))));
        }
        for row in decisions {
            let is_fine = match row.status() {
                EnforcementStatus::Requested => row.run.is_some_and(|run| runs.insert(run, row.id).is_none()),
                EnforcementStatus::Skipped => row.reason.as_deref() == Some("the rule is paused"),
                _ => false,
            };
            if !is_fine {
                return Ok(Some((
                    "R02 R10 each event has one run, unless its rule is paused",
                    format!("{row:?}"),
                )));
            }
        }
    }
    for run in db.runs(None, &[], MANY)? {
        let of = run.idempotency_key.as_deref().and_then(|key| key.strip_prefix(ENFORCEMENT_KEY));
        if of.is_some_and(|of| runs.get(&run.id).is_none_or(|id| id.to_string() != of)) {
            return Ok(Some(("R02 each run of a rule has its event", format!("{run:?}"))));
        }
    }
    Ok(None)
}

fn is_missing(db: &mut dyn Backend, told: &Acknowledged) -> Result<Option<String>> {
    let there = match told {
        Acknowledged::Run(run) => Table::<RunRow>::load(db, *run)?.is_some(),
        Acknowledged::Task(board, no) => Table::<StepRow>::load(db, (*board, *no))?.is_some(),
        Acknowledged::Answer(_, gate, text) => {
            Table::<GateRow>::load(db, *gate)?.is_some_and(|row| row.answer.as_ref() == Some(text))
        }
        Acknowledged::Completed(id, result) => Table::<ExecutionRow>::load(db, *id)?
            .is_some_and(|row| row.status() == ExecutionStatus::Completed && row.result == *result),
        Acknowledged::Event(rule, key, event) => {
            db.delivery_called(*rule, key)?.is_some_and(|row| row.id == *event)
        }
    };
    Ok((!there).then(|| format!("{told:?}")))
}
