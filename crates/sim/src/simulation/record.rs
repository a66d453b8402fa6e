//! The world's own record of processes: which ones really ran, when, and how they ended. The guarantees are about
//! processes, so this record decides, not the database.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sprag_lifecycle::{
    ExecutionId, Plan, RunId, RunStatus, StepEvent, StepNo, StepStatus, TaskNeed, Word, WorkKind,
};
use sprag_store::testing::RawStore;
use sprag_store::{Id, JournalEntry, Lease};
use tokio::sync::Notify;

use super::workspace::Directory;
use super::world::{Event, World};
use crate::check::Violation;

/// The natural end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NaturalEnd {
    Well,
    Badly,
    /// It never ends by itself.
    Hangs,
}

/// The reason why a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It exited by itself.
    Exited,
    /// Its lease was not renewed, or its worker died.
    LeaseLost,
    /// Its worker stopped it.
    Cancelled,
    /// It exceeded its time limit.
    Timeout,
    /// It was killed from outside.
    Killed,
}

/// The process tree of one command.
pub struct Process {
    pub lease: Lease,
    pub node: usize,
    pub host: usize,
    pub natural_end: NaturalEnd,
    pub alive: bool,
    /// Whether its worker was killed and its supervisor is ending it. During that moment the next attempt may start on
    /// another host, which cannot see it. (On its own host, the next attempt waits for its lock.)
    pub orphan: bool,
    /// The reason for which it is being ended, if it is.
    pub ending: Option<End>,
    /// The time at which its supervisor ends it unless it is renewed.
    pub guard_ms: i64,
    /// Its directory, if its run has an environment.
    pub directory: Option<Arc<str>>,
    pub over: Arc<Notify>,
}

/// An acknowledged result that its caller may rely on.
#[derive(Debug, Clone)]
pub enum Acknowledged {
    Run(RunId),
    Answer(RunId, Id, Arc<str>),
    Task(RunId, StepNo),
    Completed(ExecutionId, Option<Arc<str>>),
    /// The number of an event, by its rule and its key.
    Event(Id, Arc<str>, Id),
}

/// The record of one world. See the module's documentation.
#[derive(Default)]
pub struct Record {
    pub processes: Vec<Process>,
    started: BTreeSet<ExecutionId>,
    /// Steps whose completion was committed, and which were not sent back since.
    finished: BTreeSet<(RunId, StepNo)>,
    /// The times at which each step became ready and was last sent back: a task that was ready before one of its needs
    /// was retried is not revoked.
    ready: BTreeMap<(RunId, StepNo), u64>,
    back: BTreeMap<(RunId, StepNo), u64>,
    /// Runs whose effects were executed since they last ended.
    pub effects_done: BTreeSet<RunId>,
    pub acknowledged: Vec<Acknowledged>,
    /// All created runs, and whether the journal says that they have ended.
    pub runs: BTreeMap<RunId, bool>,
    /// Runs that retention has deleted.
    pub forgotten: BTreeSet<RunId>,
    /// The runs of requests with an idempotency key.
    keys: BTreeMap<Arc<str>, RunId>,
    /// Hand-off messages in transit, if a program receives them: arrival time and lease.
    pub handoffs: Option<Vec<(i64, Lease)>>,
    /// Persons whose runs are all created or refused.
    pub done_persons: BTreeSet<usize>,
    pub starts: u64,
    pub again: u64,
}

impl Record {
    /// I25: a request that is repeated with its key finds the run that it has made.
    pub fn answers_key(&mut self, key: &Arc<str>, run: RunId) -> Result<(), Violation> {
        let first = *self.keys.entry(Arc::clone(key)).or_insert(run);
        ensure(first == run, "I25 a key makes one run", || {
            format!("key {key} has made {first}, and is answered with {run}")
        })
    }

    /// Follows the journal: a step that was sent back may run again.
    pub fn follow(&mut self, entries: &[JournalEntry]) -> Result<(), Violation> {
        for entry in entries {
            if entry.entity == "run"
                && let Some(run) = entry.place.run
            {
                let ended = RunStatus::parse(entry.to).is_some_and(RunStatus::is_terminal);
                self.runs.insert(run, ended);
            }
            if entry.entity == "run"
                && entry.to == RunStatus::Running.as_str()
                && let Some(run) = entry.place.run
            {
                self.effects_done.remove(&run);
            }
            let (Some(run), Some(step)) = (entry.place.run, entry.place.step) else { continue };
            match (entry.entity, entry.event) {
                ("step", event)
                    if [StepEvent::Reworked, StepEvent::Reset, StepEvent::Reopened, StepEvent::Repeated]
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
                        && process.natural_end == NaturalEnd::Well;
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

    /// Compares the stored runs with the record after a deletion.
    pub fn forgets(&mut self, there: &BTreeSet<RunId>) -> Result<(), Violation> {
        for (run, ended) in &self.runs {
            if there.contains(run) || !self.forgotten.insert(*run) {
                continue;
            }
            ensure(*ended, "only what has ended is forgotten", || format!("{run} is gone, and it goes on"))?;
        }
        Ok(())
    }

    /// Returns the live process of a step, if it has one.
    pub fn alive(&self, run: RunId, step: StepNo) -> Option<usize> {
        self.processes.iter().position(|process| {
            process.alive && (process.lease.execution.run, process.lease.execution.step) == (run, step)
        })
    }

    fn goes_on(&self, run: RunId, step: StepNo) -> bool {
        self.alive(run, step).is_some_and(|process| !self.processes[process].orphan)
    }

    /// Checks by the record alone that a process may start.
    fn begins(&mut self, id: ExecutionId) -> Result<(), Violation> {
        ensure(self.started.insert(id), "I6 one start per attempt", || format!("{id} begins again"))?;
        self.is_free(id)
    }

    /// Checks that no other process works on the step, and that it is not finished.
    fn is_free(&self, id: ExecutionId) -> Result<(), Violation> {
        let ExecutionId { run, step, .. } = id;
        ensure(!self.goes_on(run, step), "O13 attempts do not overlap", || {
            format!("{id} begins while a former attempt goes on")
        })?;
        ensure(!self.finished.contains(&(run, step)), "O14 no finished step runs again", || format!("{id}"))
    }

    /// Checks that the tasks which a task needs have finished.
    fn tasks_are_over(
        &self,
        id: ExecutionId,
        needs: &[TaskNeed],
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

    /// Checks by the record that a step may start: each of its needs has finished or may be skipped, and none is
    /// running.
    fn needs_are_over(
        &self,
        plan: &Plan,
        id: ExecutionId,
        node: StepNo,
        status: impl Fn(StepNo) -> Option<StepStatus>,
    ) -> Result<(), Violation> {
        let planned = plan.step(node);
        if planned.quorum.is_some() {
            // It may begin while some of its needs go on; the invariants of the rows count the others.
            return Ok(());
        }
        for need in &planned.needs {
            let needed = plan.step(*need);
            ensure(!self.goes_on(id.run, *need), "I1 order", || {
                format!("{id} begins while its need {need} goes on")
            })?;
            let simple = needed.spread.is_none() && needed.work == WorkKind::Execution;
            if !simple || self.finished.contains(&(id.run, *need)) {
                continue;
            }
            // The need never finished, so there must be a reason to continue nevertheless.
            let fine = match status(*need) {
                Some(StepStatus::Skipped) => true,
                Some(StepStatus::Failed) => planned.policy.always || needed.policy.tolerates_failure(),
                Some(StepStatus::Cancelled) => planned.policy.always,
                // A fork starts with steps that another run has finished.
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

/// The parameters of a new process.
pub struct Start {
    pub lease: Lease,
    pub step: StepNo,
    pub plan: Arc<Plan>,
    pub node: usize,
    pub natural_end: NaturalEnd,
    pub takes_ms: i64,
    pub guard_ms: i64,
    pub directory: Option<Arc<str>>,
}

impl World {
    /// Starts a process and returns its index.
    pub fn start_process(&self, start: Start) -> usize {
        let now_ms = self.now_ms();
        let id = start.lease.execution;
        let steps = self.store.queries().steps(id.run).unwrap_or_default();
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
            if directory == Some(&Directory::Removing) || directory == Some(&Directory::Incomplete) {
                let seen = format!("{id} begins in {path}, which is {directory:?}");
                state.violation.get_or_insert(Violation { invariant: "I23 I24 a whole worktree", seen });
            }
        }
        let (run, name) = (state.event_log.name_of(id.run), &state.nodes[start.node].name);
        state.event_log.record(now_ms, name, format_args!("begins r{run}/{}#{}", id.step, id.attempt));
        state.record.starts += 1;
        let process = state.record.processes.len();
        state.record.processes.push(Process {
            lease: start.lease,
            node: start.node,
            host,
            natural_end: start.natural_end,
            alive: true,
            orphan: false,
            ending: None,
            guard_ms: start.guard_ms,
            directory: start.directory,
            over: Arc::new(Notify::new()),
        });
        if start.natural_end != NaturalEnd::Hangs {
            state.at(now_ms + start.takes_ms, Event::ProcessEnds(process));
        }
        state.at(start.guard_ms, Event::Guard(process));
        process
    }

    /// Records a start by an agent. The same checks apply, but released work may be started again.
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

    /// Renews a process: its supervisor lets it run until then.
    pub fn renew_process(&self, process: usize, guard_ms: i64) {
        let mut state = self.state();
        let kept = &mut state.record.processes[process];
        kept.guard_ms = kept.guard_ms.max(guard_ms);
        state.at(guard_ms, Event::Guard(process));
    }

    /// Ends a process whose guard time has passed.
    pub fn guard(&self, process: usize) {
        let overdue = self.state().record.processes[process].guard_ms <= self.now_ms();
        if overdue {
            self.end_process(process, End::LeaseLost, LEASE_GRACE_MS);
        }
    }

    /// Starts to end a process, which takes at most `grace_ms`. The first reason counts.
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

    /// Removes a process that has ended, and wakes its waiters.
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
        let how = match (why, kept.natural_end) {
            (End::Exited, NaturalEnd::Well) => "is done",
            (End::Exited, _) => "fails",
            (End::LeaseLost, _) => "is ended: its lease is over",
            (End::Cancelled, _) => "is ended: somebody wanted so",
            (End::Timeout, _) => "is ended: it took too long",
            (End::Killed, _) => "is killed from outside",
        };
        let run = state.event_log.name_of(id.run);
        state.event_log.record(now_ms, "process", format_args!("r{run}/{}#{} {how}", id.step, id.attempt));
    }
}

/// The time between asking a tree to end and killing it, after its lease has expired.
pub const LEASE_GRACE_MS: i64 = sprag_process::LEASE_GRACE_MS as i64;
