//! The invariants. Every layer that explores the engine calls [`state`] and [`change`], and nothing else decides what
//! is correct.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sprag_lifecycle::{
    ExecutionEvent, ExecutionId, ExecutionStatus, GateStatus, Items, OnFail, Plan, Policy, RunEvent, RunId,
    RunStatus, Standing, StepEvent, StepNo, StepNow, StepStatus, Tally, Word, standing,
};
use sprag_store::testing::Tables;
use sprag_store::{ExecutionRow, GateRow, Id, JournalEntry, Position, Row, RunRow, StepRow};

/// A violated invariant, with its id in the list and the observation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Violation {
    /// The id and the name of the invariant.
    pub invariant: &'static str,
    /// The observed rows, for people.
    pub seen: String,
}

fn violated<T>(invariant: &'static str, seen: impl Into<String>) -> Result<T, Violation> {
    Err(Violation { invariant, seen: seen.into() })
}

fn ensure(holds: bool, invariant: &'static str, seen: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds { Ok(()) } else { violated(invariant, seen()) }
}

/// Returns the standing of a step, derived from its row.
fn standing_of(plan: &Plan, step: &StepRow) -> Standing {
    let now = StepNow {
        node: step.node(),
        item_of: step.item_of,
        items: step.items.map(|list| list.items),
        status: step.status(),
        attempt: step.attempt,
        first_attempt: 1,
        tries: step.tries,
        losses: step.losses,
        reworks: step.reworks,
        repeats: step.repeats,
        needs: step.needs,
        skipped_by_when: step.skipped_by_when,
        rework_pending: step.rework_pending,
        work: sprag_lifecycle::Work::None,
    };
    standing(&now, &plan.step(step.node()).policy)
}

/// The rows, indexed for direct lookup.
struct Index<'t> {
    tables: &'t Tables,
    steps: BTreeMap<StepKey, &'t StepRow>,
    executions: BTreeMap<ExecutionId, &'t ExecutionRow>,
    gates: BTreeMap<Id, &'t GateRow>,
    runs: BTreeMap<RunId, &'t RunRow>,
    timed: BTreeSet<ExecutionId>,
}

type StepKey = (RunId, StepNo);

impl<'t> Index<'t> {
    fn of(tables: &'t Tables) -> Self {
        Index {
            tables,
            steps: tables.all_steps().map(|row| (row.key(), row)).collect(),
            executions: tables.all_executions().map(|row| (row.id, row)).collect(),
            gates: tables.all_gates().map(|row| (row.id, row)).collect(),
            runs: tables.all_runs().map(|row| (row.id, row)).collect(),
            timed: tables.all_timers().map(|timer| timer.execution).collect(),
        }
    }

    fn plan(&self, run: &RunRow) -> Arc<Plan> {
        self.tables.plan_of(run).expect("every run has its plan")
    }

    /// Returns the plan's policy for a step or an item.
    fn policy(&self, run: &RunRow, step: StepNo) -> Policy {
        let node = self.steps.get(&(run.id, step)).map_or(step, |step| step.node());
        self.plan(run).step(node).policy.clone()
    }
}

/// Checks the invariants of every state.
pub fn state(tables: &Tables) -> Result<(), Violation> {
    let index = Index::of(tables);
    for run in tables.all_runs() {
        let plan = index.plan(run);
        let of_run = index.steps.range((run.id, 0)..=(run.id, StepNo::MAX));
        let steps: BTreeMap<u32, &StepRow> = of_run.map(|((_, no), step)| (*no, *step)).collect();
        let planned: BTreeMap<u32, &StepRow> =
            steps.iter().filter(|(_, step)| step.item_of.is_none()).map(|(no, step)| (*no, *step)).collect();
        let standings: Vec<Standing> = planned.values().map(|step| standing_of(&plan, step)).collect();
        order(&plan, &planned, &standings)?;
        counts(run, &plan, &planned, &standings, taken_places(&plan, &steps))?;
        items(&plan, &steps)?;
        places(run, &plan, &steps)?;
        item_attempts(&steps)?;
        endings(run, &index, &steps)?;
    }
    executions(&index)?;
    outside(&index)?;
    work(&index)
}

/// I1: a step leaves waiting only when its needs are met; an `always` step when they are settled.
fn order(plan: &Plan, steps: &BTreeMap<u32, &StepRow>, standings: &[Standing]) -> Result<(), Violation> {
    for step in steps.values() {
        let begun = matches!(
            step.status(),
            StepStatus::Pending | StepStatus::Running | StepStatus::Done | StepStatus::Failed
        );
        if !begun {
            continue;
        }
        let planned = plan.step(step.no);
        if let Some(wanted) = planned.quorum {
            // A need may run again after the step has started.
            let done = planned.needs.iter().filter(|need| steps[need].status() == StepStatus::Done).count();
            let waits = matches!(step.status(), StepStatus::Pending);
            let fine = !waits || done as u32 >= wanted || planned.policy.always;
            ensure(fine, "I1 order", || format!("step {} starts with {done} of {wanted} needs", step.no))?;
            continue;
        }
        for need in &planned.needs {
            let stands = standings[*need as usize];
            let fine = stands == Standing::Met || (planned.policy.always && stands == Standing::Broken);
            ensure(fine, "I1 order", || {
                format!("step {} is {} while its need {need} stands {stands:?}", step.no, step.status())
            })?;
        }
    }
    Ok(())
}

/// Checks that the counts of the incremental walk equal those of a full count.
fn counts(
    run: &RunRow,
    plan: &Plan,
    steps: &BTreeMap<u32, &StepRow>,
    standings: &[Standing],
    taken: u32,
) -> Result<(), Violation> {
    let is_full = plan.max_parallel.is_some_and(|limit| taken >= limit);
    let count = |what| standings.iter().filter(|stands| **stands == what).count() as u32;
    let tally = Tally { unsettled: count(Standing::Open), broken: count(Standing::Broken) };
    ensure(run.tally == tally, "the run's tally", || format!("{:?}, counted {tally:?}", run.tally))?;
    for step in steps.values() {
        let needs = &plan.step(step.no).needs;
        let of = |what| needs.iter().filter(|need| standings[**need as usize] == what).count() as u32;
        let (open, broken) = (of(Standing::Open), of(Standing::Broken));
        ensure((step.needs.open, step.needs.broken) == (open, broken), "a step's count of needs", || {
            format!("step {} keeps {:?}, counted {open} open and {broken} broken", step.no, step.needs)
        })?;
        let waits_for_place = is_full && plan.step(step.no).takes_place(false);
        let settled = run.status() != RunStatus::Running || run.reworking.is_some() || waits_for_place;
        if let (Some(wanted), StepStatus::Waiting, false) =
            (plan.step(step.no).quorum, step.status(), settled)
        {
            let done = needs.iter().filter(|need| steps[need].status() == StepStatus::Done).count();
            ensure((done as u32) < wanted, "a step starts as soon as it can", || {
                format!("step {} waits with {done} of {wanted} needs", step.no)
            })?;
        }
    }
    Ok(())
}

/// P14: a fan-out's item counts are correct, it settles only after its items, and it respects `max_parallel`.
fn items(plan: &Plan, steps: &BTreeMap<u32, &StepRow>) -> Result<(), Violation> {
    for (parent, list) in steps.values().filter_map(|step| Some((step, step.items?))) {
        let of_list: Vec<&&StepRow> =
            steps.values().filter(|step| step.item_of == Some(parent.no) && step.no >= list.first).collect();
        let count = |what: fn(StepStatus) -> bool| of_list.iter().filter(|i| what(i.status())).count() as u32;
        let counted = Items {
            created: of_list.len() as u32,
            settled: count(StepStatus::is_settled),
            failed: count(|status| status == StepStatus::Failed),
            cancelled: count(|status| status == StepStatus::Cancelled),
            requeued: of_list.iter().filter(|item| is_requeued(item, list.first_attempt)).count() as u32,
            ..list.items
        };
        ensure(counted == list.items, "P14 a fan-out's count of its items", || {
            format!("step {} keeps {:?}, counted {counted:?}", parent.no, list.items)
        })?;
        let still = !parent.status().is_settled() || counted.settled == counted.created;
        ensure(still, "P14 a fan-out settles after its items", || format!("{parent:?}"))?;
        let whole = parent.status() != StepStatus::Done || counted.settled == counted.total;
        ensure(whole, "P14 a fan-out is done when all items are", || format!("{parent:?}"))?;
        let bound = plan.step(parent.no).spread.and_then(|spread| spread.max_parallel).unwrap_or(u32::MAX);
        let live = count(|status| matches!(status, StepStatus::Pending | StepStatus::Running));
        ensure(live <= bound, "P14 no more items at once than allowed", || format!("{live}: {parent:?}"))?;
    }
    Ok(())
}

/// Returns the number of steps and items that count for the run's `max_parallel`.
fn taken_places(plan: &Plan, steps: &BTreeMap<u32, &StepRow>) -> u32 {
    let begun = |step: &&&StepRow| matches!(step.status(), StepStatus::Pending | StepStatus::Running);
    let counts = |step: &&&StepRow| plan.step(step.node()).takes_place(step.item_of.is_some());
    steps.values().filter(counts).filter(begun).count() as u32
}

/// P14: a run has no more steps at work than its `max_parallel`, and no step waits while a place is free.
fn places(run: &RunRow, plan: &Plan, steps: &BTreeMap<u32, &StepRow>) -> Result<(), Violation> {
    let Some(limit) = plan.max_parallel else { return Ok(()) };
    let taken = taken_places(plan, steps);
    ensure(taken <= limit, "P14 no more steps at once than the run allows", || {
        format!("{taken} of {limit} in run {}", run.id)
    })?;
    if taken == limit || run.status() != RunStatus::Running || run.reworking.is_some() {
        return Ok(());
    }
    let planned =
        steps.values().filter(|step| step.item_of.is_none() && plan.step(step.no).takes_place(false));
    for step in planned.filter(|step| step.status() == StepStatus::Waiting) {
        let waits = step.needs.open > 0 || step.needs.broken > 0 || plan.step(step.no).quorum.is_some();
        ensure(waits, "P14 a free place of the run is used", || {
            format!("step {} waits with {taken} of {limit} places taken", step.no)
        })?;
    }
    Ok(())
}

/// Returns whether an item of a list whose items start with attempt `first` was reset and has not started since.
fn is_requeued(item: &StepRow, first: u32) -> bool {
    item.status() == StepStatus::Waiting && item.attempt > first
}

/// I26: the items of one number have one name in all lists of a fan-out, and no attempt twice.
fn item_attempts(steps: &BTreeMap<u32, &StepRow>) -> Result<(), Violation> {
    let mut last: BTreeMap<(StepNo, u32), &StepRow> = BTreeMap::new();
    for step in steps.values() {
        let (Some(parent), Some(item)) = (step.item_of, step.item) else { continue };
        if let Some(earlier) = last.insert((parent, item), step) {
            ensure(step.attempt > earlier.attempt, "I26 attempts of an item grow", || {
                format!("{step:?} after {earlier:?}")
            })?;
        }
    }
    Ok(())
}

/// I3, I16: a finished run has no open step and no live work; in a completed one every step is met.
fn endings(run: &RunRow, index: &Index<'_>, steps: &BTreeMap<u32, &StepRow>) -> Result<(), Violation> {
    if !run.status().is_terminal() {
        return Ok(());
    }
    ensure(run.tally.unsettled == 0, "I3 completion", || format!("{} with {:?}", run.status(), run.tally))?;
    if run.status() == RunStatus::Completed {
        ensure(run.tally.broken == 0, "I3 completion", || format!("completed with {:?}", run.tally))?;
    }
    ensure(steps.values().all(|step| step.status().is_settled()), "I3 completion", || {
        format!("{} with an unsettled step", run.status())
    })?;
    let first = ExecutionId { run: run.id, step: 0, attempt: 0 };
    let last = ExecutionId { run: run.id, step: StepNo::MAX, attempt: u32::MAX };
    let live = index.executions.range(first..=last).find(|(_, row)| !row.status().is_terminal());
    ensure(live.is_none(), "I16 everything released", || format!("{} with {:?}", run.status(), live))?;
    ensure(run.reworking.is_none(), "I16 everything released", || "ended in the middle of a rework".into())
}

/// Checks that each step has at most one live execution, of its current attempt.
fn executions(index: &Index<'_>) -> Result<(), Violation> {
    let mut live = BTreeMap::new();
    for row in index.executions.values().filter(|row| !row.status().is_terminal()) {
        let key = (row.id.run, row.id.step);
        ensure(live.insert(key, row.id).is_none(), "I6 one live attempt", || format!("two of {key:?}"))?;
        let step = index.steps.get(&key);
        let fits = step.is_some_and(|step| is_at(step, row.id.attempt));
        ensure(fits, "I13 no work without a step", || format!("{row:?} of {step:?}"))?;
        if row.status() == ExecutionStatus::Running {
            ensure(row.owner.is_some() && row.lease_until_ms > 0, "I10 an owner and a deadline", || {
                format!("{row:?}")
            })?;
            // I15: live work of a cancelled run has a cancel request.
            let run = index.runs[&row.id.run];
            let told = run.status() != RunStatus::Cancelling
                || row.cancel_requested
                || index.policy(run, row.id.step).always;
            ensure(told, "I15 a cancel reaches live work", || format!("{row:?}"))?;
        }
        if row.status() == ExecutionStatus::Requested && row.not_before_ms > 0 {
            let timed = index.timed.contains(&row.id);
            ensure(timed || row.cancel_requested, "I17 timers derive from rows", || format!("{row:?}"))?;
        }
    }
    Ok(())
}

/// Returns whether the step is at exactly this attempt.
fn is_at(step: &StepRow, attempt: u32) -> bool {
    step.attempt == attempt && matches!(step.status(), StepStatus::Pending | StepStatus::Running)
}

/// Checks that open gates and live child runs belong to a step that waits for them, end with it, and have a deadline.
fn outside(index: &Index<'_>) -> Result<(), Violation> {
    for gate in index.gates.values().filter(|gate| gate.status() == GateStatus::Open) {
        let step = index.steps.get(&(gate.run, gate.step));
        let fits = step.is_some_and(|step| is_at(step, gate.attempt) && step.work == Some(gate.id));
        ensure(fits, "I16 everything released", || format!("{gate:?} of {step:?}"))?;
        let id = ExecutionId { run: gate.run, step: gate.step, attempt: gate.attempt };
        let timed = gate.timeout_at_ms == 0 || index.timed.contains(&id);
        ensure(timed, "I17 timers derive from rows", || format!("{gate:?}"))?;
    }
    for child in index.runs.values().filter(|run| !run.status().is_terminal()) {
        let Some((parent, no)) = child.parent else { continue };
        let step = index.steps.get(&(parent, no));
        let fits = step.is_some_and(|step| is_at(step, step.attempt) && step.work == Some(child.id.to_i64()));
        ensure(fits, "I16 everything released", || format!("{child:?} of {step:?}"))?;
        let (parent, step) = (index.runs[&parent], index.steps[&(parent, no)]);
        let policy = index.policy(parent, no);
        let told = parent.status() != RunStatus::Cancelling
            || child.status() == RunStatus::Cancelling
            || policy.always;
        ensure(told, "I15 a cancel reaches live work", || format!("{child:?}"))?;
        let id = ExecutionId { run: parent.id, step: no, attempt: step.attempt };
        let timed = policy.timeout_ms.is_none()
            || child.status() == RunStatus::Cancelling
            || index.timed.contains(&id);
        ensure(timed, "I17 timers derive from rows", || format!("{child:?} of {step:?}"))?;
    }
    Ok(())
}

/// I10: a step in progress has work, and a worker, timer or person acts on it.
fn work(index: &Index<'_>) -> Result<(), Violation> {
    for step in index.steps.values() {
        if !matches!(step.status(), StepStatus::Pending | StepStatus::Running) {
            continue;
        }
        // While a rework drains, work that finished in the meantime stays unchanged.
        let run = index.runs[&step.run];
        let draining = run.reworking.is_some();
        let id = ExecutionId { run: step.run, step: step.no, attempt: step.attempt };
        let acts = match (step.items, index.executions.get(&id), step.work) {
            // An open board waits for its leader.
            (Some(list), _, _) => draining || run.open || !list.items.are_finished(true),
            (None, Some(execution), _) => draining || !execution.status().is_terminal(),
            (None, None, Some(work)) => match index.gates.get(&work) {
                Some(gate) => draining || gate.status() == GateStatus::Open,
                // A finished child notifies its parent through the outbox.
                None => index.runs.contains_key(&RunId::from_i64(work)),
            },
            (None, None, None) => false,
        };
        ensure(acts, "I10 every open state has somebody who acts", || {
            format!("nobody acts on {step:?}, whose execution is {:?}", index.executions.get(&id))
        })?;
    }
    Ok(())
}

/// Checks the invariants of every change. `entries` are the journal entries of one transaction.
pub fn change(before: &Tables, after: &Tables, entries: &[JournalEntry]) -> Result<(), Violation> {
    let index = Index::of(after);
    journal_tells_all(before, after, entries)?;
    let mut handed: BTreeMap<Position, u32> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| raises_fence(entry)) {
        *handed.entry(entry.place).or_default() += 1;
    }
    // Retention may delete a finished run with all its rows.
    let is_there = |run: RunId| index.runs.contains_key(&run);
    for old in before.all_executions().filter(|old| is_there(old.id.run)) {
        let Some(new) = index.executions.get(&old.id).copied() else {
            return violated("no row disappears", format!("{:?}", old.id));
        };
        ensure(new.fence >= old.fence, "I26 fences grow", || format!("{old:?} became {new:?}"))?;
        let handed = handed.get(&old.place()).copied().unwrap_or(0);
        ensure(new.fence == old.fence + handed, "I26 fences grow", || format!("{old:?} became {new:?}"))?;
        if old.status().is_terminal() {
            ensure(new == old, "I2 terminal states absorb", || format!("{old:?} became {new:?}"))?;
        }
    }
    for old in before.all_steps().filter(|old| is_there(old.run)) {
        let Some(new) = index.steps.get(&old.key()).copied() else {
            return violated("no row disappears", format!("{:?}", old.key()));
        };
        ensure(new.attempt >= old.attempt && new.round >= old.round, "attempts grow", || {
            format!("{old:?} became {new:?}")
        })?;
    }
    for old in before.all_runs() {
        let Some(new) = index.runs.get(&old.id).copied() else {
            ensure(old.status().is_terminal(), "only what has ended is forgotten", || format!("{old:?}"))?;
            continue;
        };
        let again = [RunEvent::Resumed.as_str(), RunEvent::Rewound.as_str()];
        let of_run = |entry: &&JournalEntry| entry.entity == "run" && entry.place.run == Some(old.id);
        let raised = entries.iter().filter(of_run).filter(|entry| again.contains(&entry.event)).count();
        ensure(new.epoch == old.epoch + raised as u32, "the epoch grows when a run goes on", || {
            format!("{old:?} became {new:?}")
        })?;
    }
    for entry in entries {
        cancelled_work_is_not_begun(before, &index, entry)?;
        terminal_runs_stay(entry)?;
    }
    Ok(())
}

fn raises_fence(entry: &JournalEntry) -> bool {
    entry.entity == "execution"
        && ExecutionEvent::parse(entry.event).is_some_and(ExecutionEvent::raises_fence)
}

/// I27, P10: replaying the entries from the old statuses gives exactly the new ones.
fn journal_tells_all(before: &Tables, after: &Tables, entries: &[JournalEntry]) -> Result<(), Violation> {
    /// The kind of an entity and its id within the kind.
    type Key = (&'static str, i64, u32, u32);
    let statuses = |tables: &Tables| -> BTreeMap<Key, &'static str> {
        let runs = tables.all_runs().map(|row| (("run", row.id.to_i64(), 0, 0), row.status().as_str()));
        let steps =
            tables.all_steps().map(|row| (("step", row.run.to_i64(), row.no, 0), row.status().as_str()));
        let executions = tables.all_executions().map(|row| {
            let ExecutionId { run, step, attempt } = row.id;
            (("execution", run.to_i64(), step, attempt), row.status().as_str())
        });
        let gates = tables
            .all_gates()
            .map(|row| (("gate", row.run.to_i64(), row.step, row.attempt), row.status().as_str()));
        let environments =
            tables.all_environments().map(|row| (("environment", row.id, 0, 0), row.status().as_str()));
        let enforcements =
            tables.all_enforcements().map(|row| (("enforcement", row.id, 0, 0), row.status().as_str()));
        runs.chain(steps).chain(executions).chain(gates).chain(environments).chain(enforcements).collect()
    };
    let mut told = statuses(before);
    for entry in entries {
        let step = entry.place.step.unwrap_or(0);
        let key = match (entry.entity, entry.place.run) {
            // The enforcement of an event has no run before it is decided.
            ("environment" | "enforcement", _) => (entry.entity, entry.place.id.unwrap_or(0), 0, 0),
            (_, None) => continue,
            ("execution" | "gate", Some(run)) => {
                (entry.entity, run.to_i64(), step, entry.place.attempt.unwrap_or(0))
            }
            (_, Some(run)) => (entry.entity, run.to_i64(), step, 0),
        };
        let was = told.insert(key, entry.to);
        // A run's steps are created with the run, so their first entry may have no previous status.
        let fits = was == entry.from || (was.is_none() && entry.entity == "step");
        ensure(fits, "I27 an event for each transition", || format!("{entry:?} after {was:?}"))?;
        ensure(entry.from != Some(entry.to), "no cell maps a status to itself", || format!("{entry:?}"))?;
    }
    for (key, status) in &statuses(after) {
        let said = told.get(key).copied();
        let fits = said.map_or(*status == StepStatus::Waiting.as_str(), |said| said == *status);
        ensure(fits, "I27 an event for each transition", || format!("{key:?} is {status}, told {said:?}"))?;
    }
    Ok(())
}

/// I15, O05: once a cancel is recorded, no claim of the cancelled work commits.
fn cancelled_work_is_not_begun(
    before: &Tables,
    after: &Index<'_>,
    entry: &JournalEntry,
) -> Result<(), Violation> {
    if entry.event != ExecutionEvent::HandoffReceived.as_str() {
        return Ok(());
    }
    let (Some(run), Some(step)) = (entry.place.run, entry.place.step) else {
        return violated("I27 an event for each transition", format!("{entry:?} has no place"));
    };
    let run = after.runs[&run];
    let always = after.policy(run, step).always;
    ensure(run.status().starts(always), "I15 nothing is claimed after a cancel", || {
        format!("{entry:?} in {run:?}")
    })?;
    let asked = before
        .all_executions()
        .find(|row| row.place() == entry.place)
        .is_some_and(|row| row.cancel_requested);
    ensure(!asked, "I15 nothing is claimed after a cancel", || format!("{entry:?}"))
}

/// P15: a terminal run stays terminal unless a person resumes or rewinds it.
fn terminal_runs_stay(entry: &JournalEntry) -> Result<(), Violation> {
    let Some(from) = entry.from else { return Ok(()) };
    let explicit = match entry.entity {
        "run" => {
            !RunStatus::parse(from).is_some_and(RunStatus::is_terminal)
                || [RunEvent::Resumed.as_str(), RunEvent::Rewound.as_str()].contains(&entry.event)
        }
        "step" => {
            !StepStatus::parse(from).is_some_and(StepStatus::is_settled)
                || [StepEvent::Reworked, StepEvent::Reset, StepEvent::Reopened]
                    .iter()
                    .any(|event| event.as_str() == entry.event)
        }
        "gate" => GateStatus::parse(from) == Some(GateStatus::Open),
        _ => !ExecutionStatus::parse(from).is_some_and(ExecutionStatus::is_terminal),
    };
    ensure(explicit, "P15 terminal statuses do not revert", || format!("{entry:?}"))
}

/// Checks that the attempts, losses and rounds of every step are within its plan's limits.
pub fn bounded(tables: &Tables) -> Result<(), Violation> {
    for run in tables.all_runs() {
        let plan = tables.plan_of(run).expect("every run has its plan");
        for step in tables.all_steps().filter(|step| step.run == run.id) {
            let policy = &plan.step(step.node()).policy;
            if let OnFail::Rework { max, .. } = policy.on_fail {
                ensure(step.reworks <= max, "P13 at most N rounds", || format!("{step:?}"))?;
            }
            if let Some(repeat) = plan.step(step.node()).repeat {
                // The last count is that of a round which was refused.
                let runs = step.repeats < repeat.max || step.status() != StepStatus::Running;
                ensure(step.repeats <= repeat.max && runs, "P13 at most N rounds", || format!("{step:?}"))?;
            }
            ensure(step.tries < policy.attempts.max(1), "I16 attempts are bounded", || format!("{step:?}"))?;
            ensure(step.losses < policy.losses.max(1), "I16 attempts are bounded", || format!("{step:?}"))?;
            let once = !policy.at_most_once || step.losses == 0;
            ensure(once, "what runs at most once is not tried again after a loss", || format!("{step:?}"))?;
        }
    }
    Ok(())
}

/// C10: no group has more live runs than its limit.
pub fn limits(tables: &Tables) -> Result<(), Violation> {
    let mut live: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for run in tables.all_runs() {
        let (Some(group), Some(plan)) = (&run.group, tables.plan_of(run)) else { continue };
        let limit = plan.concurrency.as_ref().map_or(u32::MAX, |limits| limits.limit);
        let kept = live.entry(group).or_default();
        kept.0 += u32::from(run.status() != RunStatus::Queued && !run.status().is_terminal());
        // Two pipelines may use the same group, each with its own limit.
        kept.1 = kept.1.max(limit);
    }
    for (group, (live, limit)) in live {
        ensure(live <= limit, "C10 limits hold", || {
            format!("{live} runs of {group:?} are live, of {limit}")
        })?;
    }
    Ok(())
}
