//! Plays a random pipeline: several workers, timers, answers, lost workers, late and doubled reports, in any
//! order, through the store's own operations; every one of them is checked.

use std::collections::BTreeMap;
use std::sync::Arc;

use sprag_lifecycle::{
    ExecutionId, ExecutionStatus, GateStatus, OnFail, PlanStep, RunId, RunStatus, StepNo, StepStatus, Word,
};
use sprag_store::ops::{self, Claimer, Ending, Lease, Lost, NewRun};
use sprag_store::{
    Backend, ExecutionRow, GateKind, GateRow, Now, OutboxRow, Result, Row, RunRow, Session, StepRow, Table,
    Tables, TimerRow, mix,
};

use super::generate::Graph;
use super::reference::{self, Prior};
use super::script::{Chance, Fault, Outside, Script, signal_name};
use crate::check::{self, Violation};

/// What a person and the machines do beside the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trouble {
    /// The run may be cancelled at any moment.
    pub cancel: bool,
    /// How often it is resumed or rewound after its end.
    pub again: u32,
    /// Workers are lost, reports come late and twice.
    pub faults: bool,
}

const WORKERS: usize = 3;
/// No lease lapses by itself here: workers are lost by the reaper's word.
const LEASE_MS: i64 = 1_000_000_000;
/// A timer that is due later than this from now belongs to a bound that no run comes to.
const SOON_MS: i64 = 10_000;

struct World<'g> {
    graph: &'g Graph,
    tables: Tables,
    chance: Chance,
    entropy: u64,
    now_ms: i64,
    root: RunId,
    held: Vec<Lease>,
    past: Vec<Lease>,
    trouble: Trouble,
    /// Statuses of steps as the journal tells them.
    told: BTreeMap<(RunId, StepNo), StepStatus>,
    read: usize,
    operations: usize,
}

/// Plays the graph; what came of it is checked on the way and compared in the end. Says how many
/// operations it took.
pub fn play(graph: &Graph, seed: u64, trouble: Trouble) -> std::result::Result<usize, String> {
    let tables = Tables::default().speaking(Arc::new(graph.scripts.clone()));
    let mut world = World {
        graph,
        tables,
        chance: Chance(seed ^ 0x5eed),
        entropy: seed,
        now_ms: 1,
        root: RunId::from_i64(1),
        held: Vec::new(),
        past: Vec::new(),
        trouble,
        told: BTreeMap::new(),
        read: 0,
        operations: 0,
    };
    let new = NewRun::new(world.root, Arc::clone(&graph.plan));
    world.transact(|session| ops::create_run(session, &new, ops::plan_hash(&new.plan)))?;
    let mut prior = None;
    for round in 0..=trouble.again {
        let cancelled = world.epoch()?;
        let run = world.root_row();
        let expected = reference::expect(&graph.plan, &graph.scripts, run.epoch, prior.as_ref());
        reference::compare(&world.tables, &run, &graph.plan, &graph.scripts, &expected, cancelled)
            .map_err(|seen| format!("in epoch {}: {seen}", run.epoch))?;
        world.nothing_is_left()?;
        if round < trouble.again {
            let to = world.chance.one_in(2).then(|| world.chance.below(graph.plan.steps.len()) as StepNo);
            if to.is_none() && run.status() == RunStatus::Completed {
                break;
            }
            let before = reference::prior(&world.tables, world.root, to).expect("the run is there");
            world.go_on(to, &before)?;
            prior = Some(before);
        }
    }
    Ok(world.operations)
}

impl World<'_> {
    /// Runs one of the store's operations and checks what it did.
    fn transact<T>(
        &mut self,
        operation: impl FnOnce(&mut Session<'_>) -> Result<T>,
    ) -> std::result::Result<T, String> {
        self.operations += 1;
        // Large runs are looked at less often: a look costs as much as the run is large.
        let rows = self.tables.all_steps().count();
        let looks = rows < 60 || self.operations.is_multiple_of(rows / 30);
        let before = looks.then(|| self.tables.clone());
        let now = Now { wall_ms: self.now_ms, steady_ms: self.now_ms };
        let entropy = &mut self.entropy;
        let mut random = || {
            *entropy = entropy.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(*entropy)
        };
        let answer = self.tables.transact(now, &mut random, operation).map_err(|error| error.to_string())?;
        self.follow_journal()?;
        if let Some(before) = before {
            let entries = &self.tables.all_entries()[before.all_entries().len()..];
            check::change(&before, &self.tables, entries).map_err(in_words)?;
            check::state(&self.tables).map_err(in_words)?;
            check::bounded(&self.tables).map_err(in_words)?;
        }
        Ok(answer)
    }

    /// I1, by the journal alone: a step becomes ready only after all its needs.
    fn follow_journal(&mut self) -> std::result::Result<(), String> {
        let entries = &self.tables.all_entries()[self.read..];
        for entry in entries {
            let ("step", Some(run), Some(no)) = (entry.entity, entry.place.run, entry.place.step) else {
                continue;
            };
            let row = self.tables.all_runs().find(|row| row.id == run).expect("a step has a run");
            let plan = self.tables.plan_of(row).expect("a run has a plan");
            let to = StepStatus::parse(entry.to).expect("the journal knows its words");
            self.told.insert((run, no), to);
            if to != StepStatus::Pending || (no as usize) >= plan.steps.len() {
                continue;
            }
            let planned = plan.step(no);
            for need in &planned.needs {
                let stands = self.told.get(&(run, *need)).copied().unwrap_or(StepStatus::Waiting);
                let fine = match stands {
                    StepStatus::Done | StepStatus::Skipped => true,
                    StepStatus::Failed => {
                        planned.policy.always || plan.step(*need).policy.on_fail == OnFail::Continue
                    }
                    StepStatus::Cancelled => planned.policy.always,
                    StepStatus::Waiting | StepStatus::Pending | StepStatus::Running => false,
                };
                if !fine {
                    return Err(format!("I1 order: {entry:?} while its need {need} is {stands}"));
                }
            }
        }
        self.read = self.tables.all_entries().len();
        Ok(())
    }

    fn load<R: Row>(&mut self, key: R::Key) -> Option<R>
    where
        for<'t> dyn Backend + 't: Table<R>,
    {
        let now = Now { wall_ms: self.now_ms, steady_ms: self.now_ms };
        self.tables.read(now, |db| Table::<R>::load(db, key)).ok().flatten()
    }

    fn root_row(&mut self) -> RunRow {
        self.load::<RunRow>(self.root).expect("the run is there")
    }

    /// The script of a step, and whether it goes wrong now.
    fn scripted(&mut self, run: RunId, step: &StepRow) -> (Script, bool) {
        let epoch = self.root_row().epoch;
        let row = self.load::<RunRow>(run).expect("a step has a run");
        let plan = self.tables.plan_of(&row).expect("a run has a plan");
        let script = self.graph.scripts.of(plan.step(step.node())).clone();
        let round = match step.item_of {
            Some(parent) => self.load::<StepRow>((run, parent)).map_or(0, |parent| parent.round),
            None => step.round,
        };
        let wrong = script.goes_wrong(epoch, round, step.item);
        (script, wrong)
    }

    fn is_over(&mut self) -> bool {
        self.root_row().status().is_terminal()
    }

    /// Plays until the run ends; says whether somebody cancelled it.
    fn epoch(&mut self) -> std::result::Result<bool, String> {
        let size = self.graph.plan.steps.len() * 4;
        let cancel_at = self.trouble.cancel.then(|| self.chance.below(size * 3));
        let mut cancelled = false;
        for act in 0..size * 6 {
            if self.is_over() {
                break;
            }
            if cancel_at == Some(act) {
                cancelled =
                    self.transact(|session| ops::cancel_run(session, RunId::from_i64(1)))?.is_applied();
            }
            self.act()?;
        }
        // Everybody does their part, and nothing else happens: the run must end.
        let bound = 200 + 40 * self.graph.plan.steps.len();
        for _ in 0..bound {
            if self.is_over() {
                return Ok(cancelled);
            }
            self.quiet_round()?;
        }
        Err(format!("every run ends: not after {bound} rounds\n{}", self.unsettled()))
    }

    fn unsettled(&self) -> String {
        let open = self.tables.all_steps().filter(|step| !step.status().is_settled() || step.rework_pending);
        let open: Vec<String> = open.map(|step| format!("{step:?}")).collect();
        let runs: Vec<String> = self.tables.all_runs().map(|run| format!("{run:?}")).collect();
        format!("{}\n{}", runs.join("\n"), open.join("\n"))
    }

    fn act(&mut self) -> std::result::Result<(), String> {
        match self.chance.below(24) {
            0..=5 => self.claim(),
            6..=11 => self.finish_one(),
            12 => self.late_report(),
            13 => self.lose(),
            14 => self.give_back(),
            15 | 16 => self.fire(),
            17 | 18 => self.answer(),
            19 | 20 => self.relay(),
            21 => self.heal(),
            22 => self.dispatch_again(),
            _ => self.signal_early(),
        }
    }

    fn quiet_round(&mut self) -> std::result::Result<(), String> {
        for _ in 0..8 {
            self.relay()?;
            self.fire()?;
            self.answer()?;
        }
        self.claim()?;
        for _ in 0..self.held.len() {
            self.finish_one()?;
        }
        Ok(())
    }

    fn claimer(&mut self) -> Claimer {
        Claimer {
            worker: 1 + self.chance.below(WORKERS) as i64,
            queues: vec!["default".into(), "other".into()],
            reserved_only: false,
            lease_ms: LEASE_MS,
            nonce: 0,
        }
    }

    fn claim(&mut self) -> std::result::Result<(), String> {
        let (claimer, limit) = (self.claimer(), 1 + self.chance.below(6));
        let got = self.transact(|session| ops::claim(session, &claimer, limit))?;
        self.held.extend(got.iter().map(|assignment| assignment.lease));
        Ok(())
    }

    fn take_held(&mut self) -> Option<Lease> {
        let at = (!self.held.is_empty()).then(|| self.chance.below(self.held.len()))?;
        Some(self.held.swap_remove(at))
    }

    /// A worker reports what its script says.
    fn finish_one(&mut self) -> std::result::Result<(), String> {
        let Some(lease) = self.take_held() else { return Ok(()) };
        let id = lease.execution;
        let execution = self.load::<ExecutionRow>(id).expect("what was received is there");
        let step = self.load::<StepRow>((id.run, id.step)).expect("an execution has a step");
        let (script, wrong) = self.scripted(id.run, &step);
        let badly = match script.fault {
            _ if !wrong => false,
            Fault::Tries(tries) => step.tries < tries,
            Fault::None | Fault::ForGood | Fault::Deadly => true,
        };
        self.past.push(lease);
        let ending = if execution.cancel_requested && !self.chance.one_in(3) {
            Ending::Cancelled
        } else if badly && script.fault == Fault::Deadly {
            return self.transact(|session| ops::abandon(session, lease, Lost::ProcessGone)).map(drop);
        } else if badly {
            match self.chance.one_in(4) && script.fault != Fault::ForGood {
                true => Ending::TimedOut { result: None },
                false => Ending::Failed { result: None, retriable: script.fault != Fault::ForGood },
            }
        } else {
            Ending::Completed { result: None }
        };
        let next = self.chance.one_in(2).then(|| self.claimer());
        let finished = self.transact(|session| ops::finish(session, lease, &ending, next.as_ref()))?;
        if !finished.outcome.is_applied() {
            return Err(format!("the owner of {lease:?} was refused: {:?}", finished.outcome));
        }
        self.held.extend(finished.next.map(|assignment| assignment.lease));
        Ok(())
    }

    /// C07, I4: who has lost an execution, or has already reported, changes nothing.
    fn late_report(&mut self) -> std::result::Result<(), String> {
        if self.past.is_empty() || !self.trouble.faults {
            return Ok(());
        }
        let lease = self.past[self.chance.below(self.past.len())];
        let ending = match self.chance.below(3) {
            0 => Ending::Completed { result: None },
            1 => Ending::Failed { result: None, retriable: true },
            _ => Ending::Cancelled,
        };
        let finished = self.transact(|session| ops::finish(session, lease, &ending, None))?;
        match finished.outcome.is_applied() {
            true => Err(format!("I4 a stale fence commits nothing: {lease:?}")),
            false => Ok(()),
        }
    }

    /// A worker is lost where the run makes that good.
    fn lose(&mut self) -> std::result::Result<(), String> {
        let Some(lease) = self.take_held() else { return Ok(()) };
        let id = lease.execution;
        let run = self.load::<RunRow>(id.run).expect("an execution has a run");
        let step = self.load::<StepRow>((id.run, id.step)).expect("an execution has a step");
        let plan = self.tables.plan_of(&run).expect("a run has a plan");
        let policy = &plan.step(step.node()).policy;
        let made_good = run.status().starts(policy.always) && !policy.at_most_once && step.losses == 0;
        if !self.trouble.faults || !made_good {
            self.held.push(lease);
            return Ok(());
        }
        self.past.push(lease);
        self.transact(|session| ops::abandon(session, lease, Lost::ProcessGone)).map(drop)
    }

    fn give_back(&mut self) -> std::result::Result<(), String> {
        let Some(lease) = self.take_held() else { return Ok(()) };
        if !self.trouble.faults {
            self.held.push(lease);
            return Ok(());
        }
        self.past.push(lease);
        self.transact(|session| ops::release(session, lease)).map(drop)
    }

    /// A timer fires, in any order among those that may.
    fn fire(&mut self) -> std::result::Result<(), String> {
        let timers: Vec<TimerRow> = self.tables.all_timers().copied().collect();
        let mut may = Vec::new();
        for timer in timers {
            if timer.due_ms < self.now_ms + SOON_MS && !self.will_be_answered(timer.execution) {
                may.push(timer);
            }
        }
        if may.is_empty() {
            return Ok(());
        }
        let timer = *self.chance.pick(&may);
        self.now_ms = self.now_ms.max(timer.due_ms);
        self.transact(|session| ops::timer_fired(session, timer.execution)).map(drop)
    }

    /// Whether the script has this question or signal answered: then its time is not over yet.
    fn will_be_answered(&mut self, id: ExecutionId) -> bool {
        let Some(step) = self.load::<StepRow>((id.run, id.step)) else { return false };
        let Some(gate) = step.work.and_then(|work| self.load::<GateRow>(work)) else { return false };
        gate.attempt == id.attempt
            && gate.status() == GateStatus::Open
            && gate.kind != GateKind::Time
            && !self.scripted(id.run, &step).1
    }

    fn answer(&mut self) -> std::result::Result<(), String> {
        let open: Vec<GateRow> =
            self.tables.all_gates().filter(|gate| gate.status() == GateStatus::Open).cloned().collect();
        if open.is_empty() {
            return Ok(());
        }
        let gate = self.chance.pick(&open).clone();
        let step = self.load::<StepRow>((gate.run, gate.step)).expect("a gate has a step");
        let (script, wrong) = self.scripted(gate.run, &step);
        match gate.kind {
            GateKind::Question if !wrong || script.rejects => {
                let text = ops::answer_text(if wrong { "no" } else { "yes" }, None, !wrong);
                let first = self.transact(|session| ops::answer_gate(session, gate.id, &text))?;
                let second = self.transact(|session| ops::answer_gate(session, gate.id, &text))?;
                match first.is_applied() && !second.is_applied() {
                    true => Ok(()),
                    false => Err(format!("one answer counts: {first:?}, then {second:?} to {gate:?}")),
                }
            }
            GateKind::Signal if !wrong => self
                .transact(|session| ops::signal(session, gate.run, &gate.question, &"{}".into()))
                .map(drop),
            _ => Ok(()),
        }
    }

    /// A signal before anybody waits for it.
    fn signal_early(&mut self) -> std::result::Result<(), String> {
        let plan = &self.graph.plan;
        let planned = plan.step(self.chance.below(plan.steps.len()) as StepNo);
        let script = self.graph.scripts.of(planned);
        if script.fault != Fault::None || !matches!(script.outside, Outside::Signal) {
            return Ok(());
        }
        let name = signal_name(&planned.spec, None);
        let root = self.root;
        match self.is_over() {
            true => Ok(()),
            false => self.transact(|session| ops::signal(session, root, &name, &"{}".into())).map(drop),
        }
    }

    /// Carries out something of the outbox: perhaps twice, in any order.
    fn relay(&mut self) -> std::result::Result<(), String> {
        let due: Vec<OutboxRow> = self.tables.all_outbox().cloned().collect();
        if due.is_empty() {
            return Ok(());
        }
        let row = self.chance.pick(&due).clone();
        if &*row.kind == "child.ended" {
            let number = row.payload.chars().filter(char::is_ascii_digit).collect::<String>();
            let step: StepNo = number.parse().expect("the payload names the step");
            self.transact(|session| ops::look_at_step(session, row.run, step))?;
        }
        match self.chance.one_in(5) {
            true => Ok(()),
            false => self.transact(|session| session.db().drop_outbox(row.id)),
        }
    }

    /// The full walk finds nothing that the incremental one has left.
    fn heal(&mut self) -> std::result::Result<(), String> {
        let live: Vec<RunId> =
            self.tables.all_runs().filter(|run| !run.status().is_terminal()).map(|run| run.id).collect();
        if live.is_empty() {
            return Ok(());
        }
        let run = *self.chance.pick(&live);
        // What a child's end means is still on its way.
        let untold = self.tables.all_outbox().any(|row| row.run == run && &*row.kind == "child.ended");
        let before = self.tables.all_entries().len();
        self.transact(|session| ops::heal_run(session, run))?;
        let found = self.tables.all_entries()[before..].iter().find(|entry| entry.entity != "execution");
        match found {
            Some(entry) if !untold => Err(format!("the full walk decided otherwise: {entry:?}")),
            _ => Ok(()),
        }
    }

    fn dispatch_again(&mut self) -> std::result::Result<(), String> {
        let out: Vec<ExecutionId> = self
            .tables
            .all_executions()
            .filter(|row| row.status() == ExecutionStatus::Scheduled)
            .map(|row| row.id)
            .collect();
        if out.is_empty() || !self.trouble.faults {
            return Ok(());
        }
        let id = *self.chance.pick(&out);
        self.transact(|session| ops::redispatch(session, id)).map(drop)
    }

    /// I16: with the outermost run everything has ended, and whoever still believes in a lease is wrong.
    fn nothing_is_left(&mut self) -> std::result::Result<(), String> {
        check::state(&self.tables).map_err(in_words)?;
        check::bounded(&self.tables).map_err(in_words)?;
        if let Some(run) = self.tables.all_runs().find(|run| !run.status().is_terminal()) {
            return Err(format!("I16 everything released: {run:?} goes on"));
        }
        self.past.append(&mut self.held);
        for _ in 0..4 {
            self.late_report()?;
        }
        Ok(())
    }

    /// The steps of the outermost run that have a list.
    fn lists(&self) -> Vec<StepRow> {
        let of_run = self.tables.all_steps().filter(|step| step.run == self.root);
        of_run.filter(|step| step.items.is_some()).cloned().collect()
    }

    /// P16: a person sends the run back; lists are kept or made anew as the rules say.
    fn go_on(&mut self, to: Option<StepNo>, prior: &Prior) -> std::result::Result<(), String> {
        let root = self.root;
        let lists = self.lists();
        let outcome = self.transact(|session| match to {
            Some(to) => ops::rewind_run(session, root, to, None),
            None => ops::resume_run(session, root, None),
        })?;
        if !outcome.is_applied() {
            return Err(format!("a person could not go on: {outcome:?}"));
        }
        for old in lists {
            let now = self.load::<StepRow>(old.key()).filter(|step| step.round == old.round);
            // A step that failed at once has sent this one back already.
            let Some(now) = now.map(|step| step.items) else { continue };
            let same = now.map(|list| list.made_by) == old.items.map(|list| list.made_by);
            if same != (!prior.resets(old.no) || prior.keeps(&self.graph.plan, old.no)) {
                return Err(format!("P16 what is done is kept: {old:?} has become {now:?}"));
            }
        }
        Ok(())
    }
}

fn in_words(violation: Violation) -> String {
    format!("{}: {}", violation.invariant, violation.seen)
}

/// The graph in a few lines, for a failure's message.
pub fn describe(graph: &Graph) -> String {
    let steps = graph.plan.steps.iter().enumerate().map(|(no, step)| {
        let PlanStep { needs, policy, work, condition, spread, .. } = step;
        let script = graph.scripts.of(step);
        format!("{no}: needs {needs:?}, {work:?}, when {condition:?}, {spread:?}, {policy:?}\n   {script:?}")
    });
    steps.collect::<Vec<_>>().join("\n")
}
