//! Plays a random pipeline with several workers, timers, answers, lost workers, and late and duplicate reports, in any
//! order, through the store's own operations. Checks each operation.

use std::collections::BTreeMap;
use std::sync::Arc;

use sprag_lifecycle::{
    ExecutionId, ExecutionStatus, GateStatus, OnFail, PlanStep, RunId, RunStatus, StepNo, StepStatus, Word,
};
use sprag_store::testing::{Backend, Session, Table, Tables, ops};
use sprag_store::{
    Claimer, Ending, ExecutionRow, GateKind, GateRow, Lease, Lost, NewRun, Now, OutboxRow, Result, Row,
    RunRow, StepRow, TimerRow, mix,
};

use super::compare::compare;
use super::generate::Graph;
use super::reference::{self, Prior};
use super::script::{Chance, Fault, Script, WaitsFor, signal_name};
use crate::check::{self, Violation};

/// Disturbances by people and machines during a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disturbances {
    /// Whether the run may be cancelled at any moment.
    pub cancel: bool,
    /// The number of times that it is resumed or rewound after its end.
    pub restarts: u32,
    /// Whether workers are lost, and reports come late and twice.
    pub faults: bool,
}

const WORKERS: usize = 3;
/// The lease in milliseconds. No lease expires here by itself: only the reaper's decision loses a worker.
const LEASE_MS: i64 = 1_000_000_000;
/// A timer that is due after this many milliseconds belongs to a limit that no run reaches.
const SOON_MS: i64 = 10_000;

struct GraphPlayer<'g> {
    graph: &'g Graph,
    tables: Tables,
    chance: Chance,
    entropy: u64,
    now_ms: i64,
    root: RunId,
    held: Vec<Lease>,
    past: Vec<Lease>,
    disturbances: Disturbances,
    /// The statuses of steps according to the journal.
    journal_statuses: BTreeMap<(RunId, StepNo), StepStatus>,
    read: usize,
    operations: usize,
}

/// Plays the graph, checks every operation, and compares the outcome at the end. Returns the number of operations.
pub fn play(graph: &Graph, seed: u64, disturbances: Disturbances) -> std::result::Result<usize, String> {
    let tables = Tables::default().with_evaluator(Arc::new(graph.scripts.clone()));
    let mut player = GraphPlayer {
        graph,
        tables,
        chance: Chance(seed ^ 0x5eed),
        entropy: seed,
        now_ms: 1,
        root: RunId::from_i64(1),
        held: Vec::new(),
        past: Vec::new(),
        disturbances,
        journal_statuses: BTreeMap::new(),
        read: 0,
        operations: 0,
    };
    let new = NewRun::new(player.root, Arc::clone(&graph.plan));
    player.transact(|session| ops::create_run(session, &new, ops::plan_hash(&new.plan)))?;
    player.skip_some()?;
    let mut prior = None;
    for round in 0..=disturbances.restarts {
        let cancelled = player.epoch()?;
        let run = player.root_row();
        let expected = reference::expect(&graph.plan, &graph.scripts, run.epoch, prior.as_ref());
        compare(&player.tables, &run, &graph.plan, &graph.scripts, &expected, cancelled)
            .map_err(|seen| format!("in epoch {}: {seen}", run.epoch))?;
        player.check_released()?;
        if round < disturbances.restarts {
            let to = player.chance.one_in(2).then(|| player.chance.below(graph.plan.steps.len()) as StepNo);
            if to.is_none() && run.status() == RunStatus::Completed {
                break;
            }
            let before = reference::prior(&player.tables, player.root, to).expect("the run is there");
            player.send_back(to, &before)?;
            prior = Some(before);
        }
    }
    Ok(player.operations)
}

impl GraphPlayer<'_> {
    /// Runs one of the store's operations and checks its effect.
    fn transact<T>(
        &mut self,
        operation: impl FnOnce(&mut Session<'_>) -> Result<T>,
    ) -> std::result::Result<T, String> {
        self.operations += 1;
        // The cost of a check grows with the size of the run, so large runs are checked less often.
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
            check::change(&before, &self.tables, entries).map_err(message_of)?;
            check::state(&self.tables).map_err(message_of)?;
            check::bounded(&self.tables).map_err(message_of)?;
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
            self.journal_statuses.insert((run, no), to);
            if to != StepStatus::Pending || (no as usize) >= plan.steps.len() {
                continue;
            }
            let planned = plan.step(no);
            if let Some(wanted) = planned.quorum {
                let now = |need: &StepNo| {
                    self.journal_statuses.get(&(run, *need)).copied().unwrap_or(StepStatus::Waiting)
                };
                let done = planned.needs.iter().filter(|need| now(need) == StepStatus::Done).count();
                let settled = planned.needs.iter().all(|need| now(need).is_settled());
                if (done as u32) < wanted && !(planned.policy.always && settled) {
                    return Err(format!("I1 order: {entry:?} with {done} of {wanted} needs"));
                }
                continue;
            }
            for need in &planned.needs {
                let stands = self.journal_statuses.get(&(run, *need)).copied().unwrap_or(StepStatus::Waiting);
                let fine = match stands {
                    StepStatus::Done | StepStatus::Skipped => true,
                    StepStatus::Failed => {
                        let policy = &plan.step(*need).policy;
                        planned.policy.always || policy.on_fail == OnFail::Continue || policy.then_continue
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

    /// Skips the steps that a person skips before the first epoch. Those that have ended at once stay as they are.
    fn skip_some(&mut self) -> std::result::Result<(), String> {
        for no in 0..self.graph.plan.steps.len() as StepNo {
            let is_skipped = self.graph.scripts.of(self.graph.plan.step(no)).is_skipped;
            let step = self.load::<StepRow>((self.root, no)).expect("the step is there");
            if is_skipped && !step.status().is_settled() && !self.is_over() {
                let root = self.root;
                self.transact(|session| ops::skip_step(session, root, no))?;
            }
        }
        Ok(())
    }

    /// Returns the script of a step, and whether it fails now.
    fn scripted(&mut self, run: RunId, step: &StepRow) -> (Script, bool) {
        let epoch = self.root_row().epoch;
        let row = self.load::<RunRow>(run).expect("a step has a run");
        let plan = self.tables.plan_of(&row).expect("a run has a plan");
        let script = self.graph.scripts.of(plan.step(step.node())).clone();
        let round = match step.item_of {
            Some(parent) => self.load::<StepRow>((run, parent)).map_or(0, |parent| parent.round),
            None => step.round,
        };
        let wrong = script.fails(epoch, round, step.item);
        (script, wrong)
    }

    fn is_service(&mut self, step: &StepRow) -> bool {
        let run = self.load::<RunRow>(step.run).expect("a step has a run");
        self.tables.plan_of(&run).expect("a run has a plan").step(step.node()).service
    }

    fn is_over(&mut self) -> bool {
        self.root_row().status().is_terminal()
    }

    /// Plays until the run ends. Returns whether it was cancelled.
    fn epoch(&mut self) -> std::result::Result<bool, String> {
        let size = self.graph.plan.steps.len() * 4;
        let cancel_at = self.disturbances.cancel.then(|| self.chance.below(size * 3));
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
        // Every participant acts and there are no more disturbances, so the run must end.
        let bound = 200 + 40 * self.graph.plan.steps.len();
        for _ in 0..bound {
            if self.is_over() {
                return Ok(cancelled);
            }
            self.undisturbed_round()?;
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

    fn undisturbed_round(&mut self) -> std::result::Result<(), String> {
        for _ in 0..8 {
            self.relay()?;
            self.fire()?;
            self.answer()?;
        }
        // Only the worker with the services of a run can claim its steps.
        for _ in 0..WORKERS {
            self.claim()?;
        }
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
            services_only: false,
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

    /// Reports the scripted result of one execution.
    fn finish_one(&mut self) -> std::result::Result<(), String> {
        let Some(lease) = self.take_held() else { return Ok(()) };
        let id = lease.execution;
        let execution = self.load::<ExecutionRow>(id).expect("what was received is there");
        let step = self.load::<StepRow>((id.run, id.step)).expect("an execution has a step");
        let (script, wrong) = self.scripted(id.run, &step);
        let badly = match script.fault {
            _ if !wrong => false,
            Fault::Tries(tries) => step.tries < tries,
            Fault::None | Fault::Permanent | Fault::Blocked | Fault::LosesWorker => true,
        };
        if !execution.cancel_requested && !badly && self.is_service(&step) {
            // It runs until it is asked to stop.
            self.held.push(lease);
            return Ok(());
        }
        self.past.push(lease);
        let ending = if execution.cancel_requested && !self.chance.one_in(3) {
            Ending::Cancelled
        } else if badly && script.fault == Fault::LosesWorker {
            return self.transact(|session| ops::abandon(session, lease, Lost::ProcessGone)).map(drop);
        } else if badly && script.fault == Fault::Blocked {
            Ending::Blocked { result: None }
        } else if badly {
            if self.chance.one_in(4) && script.fault != Fault::Permanent {
                Ending::TimedOut { result: None }
            } else {
                Ending::Failed { result: None, retriable: script.fault != Fault::Permanent }
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

    /// C07, I4: a report by a worker that has lost its execution, or has already reported, changes nothing.
    fn late_report(&mut self) -> std::result::Result<(), String> {
        if self.past.is_empty() || !self.disturbances.faults {
            return Ok(());
        }
        let lease = self.past[self.chance.below(self.past.len())];
        let ending = match self.chance.below(3) {
            0 => Ending::Completed { result: None },
            1 => Ending::Failed { result: None, retriable: true },
            _ => Ending::Cancelled,
        };
        let finished = self.transact(|session| ops::finish(session, lease, &ending, None))?;
        if finished.outcome.is_applied() {
            Err(format!("I4 a stale fence commits nothing: {lease:?}"))
        } else {
            Ok(())
        }
    }

    /// Loses a worker, where the run can recover from that.
    fn lose(&mut self) -> std::result::Result<(), String> {
        let Some(lease) = self.take_held() else { return Ok(()) };
        let id = lease.execution;
        let run = self.load::<RunRow>(id.run).expect("an execution has a run");
        let step = self.load::<StepRow>((id.run, id.step)).expect("an execution has a step");
        let plan = self.tables.plan_of(&run).expect("a run has a plan");
        let policy = &plan.step(step.node()).policy;
        let made_good = run.status().starts(policy.always) && !policy.at_most_once && step.losses == 0;
        if !self.disturbances.faults || !made_good {
            self.held.push(lease);
            return Ok(());
        }
        self.past.push(lease);
        self.transact(|session| ops::abandon(session, lease, Lost::ProcessGone)).map(drop)
    }

    fn give_back(&mut self) -> std::result::Result<(), String> {
        let Some(lease) = self.take_held() else { return Ok(()) };
        if !self.disturbances.faults {
            self.held.push(lease);
            return Ok(());
        }
        self.past.push(lease);
        self.transact(|session| ops::release(session, lease)).map(drop)
    }

    /// Fires one of the timers that may fire, in any order.
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

    /// Returns whether the script answers this gate or signal, so that its time is not over yet.
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
                if first.is_applied() && !second.is_applied() {
                    Ok(())
                } else {
                    Err(format!("one answer counts: {first:?}, then {second:?} to {gate:?}"))
                }
            }
            GateKind::Signal if !wrong => self
                .transact(|session| ops::signal(session, gate.run, &gate.question, &"{}".into()))
                .map(drop),
            _ => Ok(()),
        }
    }

    /// Sends a signal before any step waits for it.
    fn signal_early(&mut self) -> std::result::Result<(), String> {
        let plan = &self.graph.plan;
        let planned = plan.step(self.chance.below(plan.steps.len()) as StepNo);
        let script = self.graph.scripts.of(planned);
        if script.fault != Fault::None || !matches!(script.waits_for, WaitsFor::Signal) {
            return Ok(());
        }
        let name = signal_name(&planned.spec, None);
        let root = self.root;
        if self.is_over() {
            Ok(())
        } else {
            self.transact(|session| ops::signal(session, root, &name, &"{}".into())).map(drop)
        }
    }

    /// Executes an entry of the outbox, possibly twice, in any order.
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
        if self.chance.one_in(5) { Ok(()) } else { self.transact(|session| session.db().drop_outbox(row.id)) }
    }

    /// Checks that the full walk finds nothing that the incremental one has left.
    fn heal(&mut self) -> std::result::Result<(), String> {
        let live: Vec<RunId> =
            self.tables.all_runs().filter(|run| !run.status().is_terminal()).map(|run| run.id).collect();
        if live.is_empty() {
            return Ok(());
        }
        let run = *self.chance.pick(&live);
        // The notification about a child's end is still in the outbox.
        let pending = self.tables.all_outbox().any(|row| row.run == run && &*row.kind == "child.ended");
        let before = self.tables.all_entries().len();
        self.transact(|session| ops::heal_run(session, run))?;
        let found = self.tables.all_entries()[before..].iter().find(|entry| entry.entity != "execution");
        match found {
            Some(entry) if !pending => Err(format!("the full walk decided otherwise: {entry:?}")),
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
        if out.is_empty() || !self.disturbances.faults {
            return Ok(());
        }
        let id = *self.chance.pick(&out);
        self.transact(|session| ops::redispatch(session, id)).map(drop)
    }

    /// I16: after the end of the outermost run everything has ended, and no remaining lease is valid.
    fn check_released(&mut self) -> std::result::Result<(), String> {
        check::state(&self.tables).map_err(message_of)?;
        check::bounded(&self.tables).map_err(message_of)?;
        if let Some(run) = self.tables.all_runs().find(|run| !run.status().is_terminal()) {
            return Err(format!("I16 everything released: {run:?} goes on"));
        }
        self.past.append(&mut self.held);
        for _ in 0..4 {
            self.late_report()?;
        }
        Ok(())
    }

    /// Returns the steps of the outermost run that have a list.
    fn lists(&self) -> Vec<StepRow> {
        let of_run = self.tables.all_steps().filter(|step| step.run == self.root);
        of_run.filter(|step| step.items.is_some()).cloned().collect()
    }

    /// Returns the steps of the outermost run that have ended a round of their `repeat`.
    fn repeated(&self) -> Vec<StepRow> {
        let of_run = self.tables.all_steps().filter(|step| step.run == self.root && step.item_of.is_none());
        of_run.filter(|step| step.repeats > 0).cloned().collect()
    }

    /// P16: resumes or rewinds the run as a person; lists are kept or recreated according to the rules.
    fn send_back(&mut self, to: Option<StepNo>, prior: &Prior) -> std::result::Result<(), String> {
        let root = self.root;
        let lists = self.lists();
        let repeated = self.repeated();
        let outcome = self.transact(|session| match to {
            Some(to) => ops::rewind_run(session, root, to, None),
            None => ops::resume_run(session, root, None),
        })?;
        if !outcome.is_applied() {
            return Err(format!("a person could not go on: {outcome:?}"));
        }
        for old in repeated {
            let planned = self.graph.plan.step(old.no);
            let most = planned.repeat.map_or(0, |repeat| repeat.max);
            let Some(now) = self.load::<StepRow>(old.key()).filter(|step| step.round == old.round) else {
                continue;
            };
            let kept = !prior.resets(old.no) || (prior.keeps(&self.graph.plan, old.no) && old.repeats < most);
            // The step may have refused a round, or may have ended one, since.
            if kept && now.repeats < old.repeats {
                return Err(format!("P16 what is done is kept: {old:?} has become {now:?}"));
            }
        }
        for old in lists {
            let now = self.load::<StepRow>(old.key()).filter(|step| step.round == old.round);
            // A step that failed at once has already sent the run back to this one.
            let Some(now) = now.map(|step| step.items) else { continue };
            let same = now.map(|list| list.made_by) == old.items.map(|list| list.made_by);
            if same != (!prior.resets(old.no) || prior.keeps(&self.graph.plan, old.no)) {
                return Err(format!("P16 what is done is kept: {old:?} has become {now:?}"));
            }
        }
        Ok(())
    }
}

fn message_of(violation: Violation) -> String {
    format!("{}: {}", violation.invariant, violation.seen)
}

/// Describes the graph in a few lines, for the message of a failure.
pub fn describe(graph: &Graph) -> String {
    let steps = graph.plan.steps.iter().enumerate().map(|(no, step)| {
        let PlanStep { needs, policy, work, condition, spread, quorum, skipped_with, repeat, .. } = step;
        let script = graph.scripts.of(step);
        format!(
            "{no}: needs {needs:?} ({quorum:?}), skipped with {skipped_with:?}, {work:?}, {repeat:?}, when {condition:?}, {spread:?}, {policy:?}\n   {script:?}"
        )
    });
    steps.collect::<Vec<_>>().join("\n")
}
