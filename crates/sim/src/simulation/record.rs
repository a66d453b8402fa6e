//! The world's own record: which processes really ran, when, and how they ended. It is what the promises are
//! about, so it is not the database's word that decides here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sprag_lifecycle::{
    ExecutionId, Following, OnFail, Plan, RunId, RunStatus, StepEvent, StepNo, StepStatus, Word, WorkKind,
};
use sprag_store::ops::Lease;
use sprag_store::{Id, JournalEntry};
use tokio::sync::Notify;

use super::workspace::Directory;
use super::world::{Event, World};
use crate::check::Violation;

/// How a process is to end, if nobody ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    Well,
    Badly,
    /// It would never end.
    Hangs,
}

/// Why a process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By itself.
    Exited,
    /// Its lease was not renewed, or its worker is gone.
    LeaseLost,
    /// Its worker told it so.
    Cancelled,
    /// It took too long.
    Timeout,
    /// Somebody else killed it.
    Killed,
}

/// One command's tree.
pub struct Process {
    pub lease: Lease,
    pub node: usize,
    pub host: usize,
    pub course: Course,
    pub alive: bool,
    /// Its worker was killed, and its supervisor is ending it: for that moment, the next attempt may begin on another
    /// host, where nobody sees it. (On its own host, the next one waits for its lock.)
    pub orphan: bool,
    /// Being ended, for this reason.
    pub ending: Option<End>,
    /// Its supervisor ends it then, unless it is renewed.
    pub guard_ms: i64,
    /// Where it works, if its run has an environment.
    pub directory: Option<Arc<str>>,
    pub over: Arc<Notify>,
}

/// What somebody was told, and may rely on.
#[derive(Debug, Clone)]
pub enum Acknowledged {
    Run(RunId),
    Answer(Id, Arc<str>),
    Task(RunId, StepNo),
    Completed(ExecutionId, Option<Arc<str>>),
}

/// See the module's documentation.
#[derive(Default)]
pub struct Record {
    pub processes: Vec<Process>,
    started: BTreeSet<ExecutionId>,
    /// Steps whose completion was committed, and that nobody sent back since.
    finished: BTreeSet<(RunId, StepNo)>,
    /// When a step was last readied, and when it was last sent back: a task that was ready before one of its needs was
    /// tried again is not called back.
    ready: BTreeMap<(RunId, StepNo), u64>,
    back: BTreeMap<(RunId, StepNo), u64>,
    /// Runs whose effects were carried out since they last ended.
    pub tended: BTreeSet<RunId>,
    pub acknowledged: Vec<Acknowledged>,
    /// Hand-off messages under way, if anybody takes them: when they arrive, and of what they tell.
    pub letters: Option<Vec<(i64, Lease)>>,
    /// Persons whose runs are all made, or refused.
    pub satisfied: BTreeSet<usize>,
    pub starts: u64,
    pub again: u64,
}

impl Record {
    /// Takes note of what the journal says: what was sent back may be run again.
    pub fn follow(&mut self, entries: &[JournalEntry]) -> Result<(), Violation> {
        for entry in entries {
            if entry.entity == "run"
                && entry.to == RunStatus::Running.as_str()
                && let Some(run) = entry.place.run
            {
                self.tended.remove(&run);
            }
            let (Some(run), Some(step)) = (entry.place.run, entry.place.step) else { continue };
            match (entry.entity, entry.event) {
                ("step", event)
                    if [StepEvent::Reworked, StepEvent::Reset, StepEvent::Reopened]
                        .iter()
                        .any(|back| back.as_str() == event) =>
                {
                    self.finished.remove(&(run, step));
                    self.back.insert((run, step), entry.seq);
                }
                ("step", event) if event == StepEvent::Ready.as_str() => {
                    self.ready.insert((run, step), entry.seq);
                }
                ("execution", event) => {
                    let attempt = entry.place.attempt.unwrap_or_default();
                    self.execution_moved(ExecutionId { run, step, attempt }, event)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn execution_moved(&mut self, id: ExecutionId, event: &str) -> Result<(), Violation> {
        match event {
            "execution.completed" => {
                let process = self.processes.iter().rev().find(|process| process.lease.execution == id);
                if let Some(process) = process {
                    let well = !process.alive
                        && process.ending == Some(End::Exited)
                        && process.course == Course::Well;
                    let seen = || format!("{id} is reported as done, and its process is not");
                    ensure(well, "I4 what is reported has happened", seen)?;
                }
                self.finished.insert((id.run, id.step));
            }
            "lease.expired" | "owner.died" if self.started.contains(&id) => self.again += 1,
            _ => {}
        }
        Ok(())
    }

    /// The live process of a step, if it has one.
    pub fn alive(&self, run: RunId, step: StepNo) -> Option<usize> {
        self.processes.iter().position(|process| {
            process.alive && (process.lease.execution.run, process.lease.execution.step) == (run, step)
        })
    }

    fn goes_on(&self, run: RunId, step: StepNo) -> bool {
        self.alive(run, step).is_some_and(|process| !self.processes[process].orphan)
    }

    /// A process begins: what must hold by the record alone.
    fn begins(&mut self, id: ExecutionId) -> Result<(), Violation> {
        ensure(self.started.insert(id), "I6 one start per attempt", || format!("{id} begins again"))?;
        self.is_free(id)
    }

    /// Nobody else is at the step, and it is not finished.
    fn is_free(&self, id: ExecutionId) -> Result<(), Violation> {
        let ExecutionId { run, step, .. } = id;
        ensure(!self.goes_on(run, step), "O13 attempts do not overlap", || {
            format!("{id} begins while a former attempt goes on")
        })?;
        ensure(!self.finished.contains(&(run, step)), "O14 no finished step runs again", || format!("{id}"))
    }

    /// The tasks of a board that a task needs.
    fn tasks_are_over(
        &self,
        id: ExecutionId,
        needs: &[Following],
        status: impl Fn(StepNo) -> Option<StepStatus>,
    ) -> Result<(), Violation> {
        let ready = self.ready.get(&(id.run, id.step)).copied().unwrap_or(0);
        let called_back = |need: StepNo| self.back.get(&(id.run, need)).is_some_and(|back| *back > ready);
        let open = needs.iter().filter(|need| !self.finished.contains(&(id.run, need.item)));
        for need in open.filter(|need| !called_back(need.item)) {
            let settled = status(need.item).is_some_and(StepStatus::is_settled);
            ensure(need.tolerant && settled, "C03 needs between tasks", || {
                format!("{id} begins, and task {} was never finished", need.item)
            })?;
        }
        Ok(())
    }

    /// The needs of a step that begins, by the record: each was finished or may be passed over, and none goes on.
    fn needs_are_over(
        &self,
        plan: &Plan,
        id: ExecutionId,
        node: StepNo,
        status: impl Fn(StepNo) -> Option<StepStatus>,
    ) -> Result<(), Violation> {
        let planned = plan.step(node);
        for need in &planned.needs {
            let needed = plan.step(*need);
            ensure(!self.goes_on(id.run, *need), "I1 order", || {
                format!("{id} begins while its need {need} goes on")
            })?;
            let simple = needed.spread.is_none() && needed.work == WorkKind::Execution;
            if !simple || self.finished.contains(&(id.run, *need)) {
                continue;
            }
            // It was never finished: there must be a reason to go on all the same.
            let fine = match status(*need) {
                Some(StepStatus::Skipped) => true,
                Some(StepStatus::Failed) => {
                    planned.policy.always || needed.policy.on_fail == OnFail::Continue
                }
                Some(StepStatus::Cancelled) => planned.policy.always,
                // A fork begins where another run had finished it.
                Some(StepStatus::Done) => true,
                _ => false,
            };
            ensure(fine, "I1 order", || format!("{id} begins, and its need {need} never ended"))?;
        }
        Ok(())
    }
}

fn ensure(holds: bool, invariant: &'static str, seen: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation { invariant, seen: seen() }) }
}

/// What a process is started with.
pub struct Start {
    pub lease: Lease,
    pub step: StepNo,
    pub plan: Arc<Plan>,
    pub node: usize,
    pub course: Course,
    pub takes_ms: i64,
    pub guard_ms: i64,
    pub directory: Option<Arc<str>>,
}

impl World {
    /// A process begins; its number.
    pub fn start_process(&self, start: Start) -> usize {
        let now_ms = self.now_ms();
        let id = start.lease.execution;
        let steps = self.store.read(|db| db.steps(id.run)).unwrap_or_default();
        let mut state = self.state();
        let state = &mut *state;
        let status = |no: StepNo| steps.iter().find(|step| step.no == no).map(sprag_store::Row::status);
        let begins = state
            .record
            .begins(id)
            .and_then(|()| state.record.needs_are_over(&start.plan, id, start.step, status));
        if let Err(violation) = begins {
            state.violation.get_or_insert(violation);
        }
        let host = state.nodes[start.node].host;
        if let Some(path) = &start.directory {
            let directory = state.workspace.directories.get(&(host, Arc::clone(path)));
            if directory == Some(&Directory::Going) || directory == Some(&Directory::Half) {
                let seen = format!("{id} begins in {path}, which is {directory:?}");
                state.violation.get_or_insert(Violation { invariant: "I23 I24 a whole worktree", seen });
            }
        }
        let (run, name) = (state.story.name_of(id.run), &state.nodes[start.node].name);
        state.story.tell(now_ms, name, format_args!("begins r{run}/{}#{}", id.step, id.attempt));
        state.record.starts += 1;
        let process = state.record.processes.len();
        state.record.processes.push(Process {
            lease: start.lease,
            node: start.node,
            host,
            course: start.course,
            alive: true,
            orphan: false,
            ending: None,
            guard_ms: start.guard_ms,
            directory: start.directory,
            over: Arc::new(Notify::new()),
        });
        if start.course != Course::Hangs {
            state.at(now_ms + start.takes_ms, Event::ProcessEnds(process));
        }
        state.at(start.guard_ms, Event::Guard(process));
        process
    }

    /// Somebody begins by hand: the same must hold, but what was given back may be begun again.
    pub fn begin_by_hand(&self, lease: Lease, step: StepNo, plan: &Plan) {
        let id = lease.execution;
        let rows = self.store.read(|db| Ok((db.steps(id.run)?, db.task_needs(id.run, id.step)?)));
        let (steps, needs) = rows.unwrap_or_default();
        let mut state = self.state();
        let state = &mut *state;
        let status = |no: StepNo| steps.iter().find(|step| step.no == no).map(sprag_store::Row::status);
        let held = state
            .record
            .is_free(id)
            .and_then(|()| state.record.needs_are_over(plan, id, step, status))
            .and_then(|()| state.record.tasks_are_over(id, &needs, status));
        if let Err(violation) = held {
            state.violation.get_or_insert(violation);
        }
    }

    /// A process is renewed: its supervisor lets it go on until then.
    pub fn renew_process(&self, process: usize, guard_ms: i64) {
        let mut state = self.state();
        let kept = &mut state.record.processes[process];
        kept.guard_ms = kept.guard_ms.max(guard_ms);
        state.at(guard_ms, Event::Guard(process));
    }

    /// A process's guard looks at the clock.
    pub fn guard(&self, process: usize) {
        let overdue = self.state().record.processes[process].guard_ms <= self.now_ms();
        if overdue {
            self.end_process(process, End::LeaseLost, LEASE_GRACE_MS);
        }
    }

    /// Begins to end a process, which takes at most `grace_ms`. The first reason counts.
    pub fn end_process(&self, process: usize, why: End, grace_ms: i64) {
        let now_ms = self.now_ms();
        let mut state = self.state();
        let state = &mut *state;
        let kept = &mut state.record.processes[process];
        if !kept.alive {
            return;
        }
        kept.ending.get_or_insert(why);
        let takes_ms = state.chance.below(grace_ms.max(1) as usize + 1) as i64;
        state.at(now_ms + takes_ms, Event::ProcessGone(process));
    }

    /// A process is gone; whoever waits for that hears of it.
    pub fn process_gone(&self, process: usize) {
        let now_ms = self.now_ms();
        let mut state = self.state();
        let state = &mut *state;
        let kept = &mut state.record.processes[process];
        if !kept.alive {
            return;
        }
        kept.alive = false;
        let why = *kept.ending.get_or_insert(End::Exited);
        kept.over.notify_one();
        let id = kept.lease.execution;
        let how = match (why, kept.course) {
            (End::Exited, Course::Well) => "is done",
            (End::Exited, _) => "fails",
            (End::LeaseLost, _) => "is ended: its lease is over",
            (End::Cancelled, _) => "is ended: somebody wanted so",
            (End::Timeout, _) => "is ended: it took too long",
            (End::Killed, _) => "is killed from outside",
        };
        let run = state.story.name_of(id.run);
        state.story.tell(now_ms, "process", format_args!("r{run}/{}#{} {how}", id.step, id.attempt));
    }
}

/// What a supervisor gives a tree between asking it to end and killing it, when its lease is over.
pub const LEASE_GRACE_MS: i64 = sprag_process::LEASE_GRACE_MS as i64;
