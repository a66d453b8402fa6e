//! Who may do what to a store: each role has the operations that are its own, and no others.

use std::sync::Arc;

use sprag_lifecycle::{
    Actor, Enforcement, EnforcementEvent, Environment, EnvironmentEvent, Execution, ExecutionId, Gate, Plan,
    Run, RunId, StepNo, Thread, ThreadEvent, WorkerEvent, WorkerPresence,
};

use crate::backend::QueueRow;
use crate::error::{Error, Result};
use crate::handle::Store;
use crate::job::About;
use crate::ops::{
    self, Assignment, Claimer, Created, Ending, Finished, Lease, Lost, NewRun, NewWorker, Renewal, Signalled,
    ThreadIntent, Told,
};
use crate::outcome::Outcome;
use crate::rows::{EnvironmentGiven, Id, ThreadGiven};

/// Before hand-off, and when nothing happens.
#[derive(Clone, Copy)]
pub struct Executor<'s>(pub(crate) &'s Store);

impl Executor<'_> {
    /// Starts a queued run, if its group has a place; `None` if it has to wait.
    pub async fn start_run(self, id: RunId) -> Result<Option<Outcome<Run>>> {
        self.0.write_on(vec![id], move |session| ops::start_run(session, id)).await
    }

    /// Hands over an execution whose time has come.
    pub async fn schedule(self, id: ExecutionId) -> Result<bool> {
        self.0.write_on(vec![id.run], move |session| ops::schedule(session, id)).await
    }

    /// Takes back what nobody came for, and hands it over again.
    pub async fn redispatch(self, id: ExecutionId) -> Result<bool> {
        self.0.write_on(vec![id.run], move |session| ops::redispatch(session, id)).await
    }

    /// Looks at a whole run and decides whatever is due.
    pub async fn heal_run(self, id: RunId) -> Result<()> {
        self.0.write_on(vec![id], move |session| ops::heal_run(session, id)).await
    }

    /// Limits or holds a queue.
    pub async fn set_queue(self, queue: QueueRow) -> Result<()> {
        self.0.write(move |session| ops::set_queue(session, &queue)).await
    }

    /// Hands over what waits in a queue that has places again.
    pub async fn fill_queue(self, queue: Arc<str>, limit: usize) -> Result<usize> {
        self.0.write(move |session| ops::fill_queue(session, &queue, limit)).await
    }

    /// Starts the next run of a group that has a place.
    pub async fn fill_group(self, group: Arc<str>, unattended: Vec<RunId>) -> Result<Option<RunId>> {
        self.0.write(move |session| ops::fill_group(session, &group, &unattended)).await
    }

    /// Reserves a live run to another worker, or to none.
    pub async fn pin_run(self, id: RunId, pin: Option<Id>) -> Result<bool> {
        self.0.write_on(vec![id], move |session| ops::pin_run(session, id, pin)).await
    }

    /// Gives up on an execution that nobody can be found for.
    pub async fn fail_unserved(self, id: ExecutionId) -> Result<bool> {
        self.0.write_on(vec![id.run], move |session| ops::fail_unserved(session, id)).await
    }

    /// Something in the outbox was done.
    pub async fn effect_done(self, id: i64) -> Result<()> {
        self.0.write(move |session| session.db().drop_outbox(id)).await
    }

    /// Something in the outbox failed: not again before then (steady).
    pub async fn effect_failed(self, id: i64, not_before_ms: i64, error: String) -> Result<()> {
        self.0.write(move |session| session.db().postpone_outbox(id, not_before_ms, &error)).await
    }

    /// Begins a conversation.
    pub async fn create_thread(self, id: Id, environment: Option<Id>) -> Result<()> {
        self.0.write(move |session| ops::create_thread(session, id, environment)).await
    }

    /// Notes that a rule matched an event; `false` if it had done so before.
    pub async fn create_enforcement(self, id: Id, rule: Arc<str>, event: Arc<str>) -> Result<bool> {
        self.0
            .write(move |session| ops::create_enforcement(session, id, Arc::clone(&rule), Arc::clone(&event)))
            .await
    }

    /// Reports what came of a match.
    pub async fn enforcement(
        self,
        id: Id,
        event: EnforcementEvent,
        run: Option<RunId>,
    ) -> Result<Outcome<Enforcement>> {
        self.0.write(move |session| ops::enforcement_event(session, id, event, run)).await
    }

    /// Reports an event on an environment.
    pub async fn environment(
        self,
        id: Id,
        event: EnvironmentEvent,
        given: EnvironmentGiven,
    ) -> Result<Outcome<Environment>> {
        self.0.write(move |session| ops::environment_event(session, id, event, Actor::Executor, &given)).await
    }

    /// Reports an event on a thread.
    pub async fn thread(self, id: Id, event: ThreadEvent, given: ThreadGiven) -> Result<Outcome<Thread>> {
        self.0.write(move |session| ops::thread_event(session, id, event, Actor::Executor, &given)).await
    }

    /// An attempt's time has come.
    pub async fn timer_fired(self, id: ExecutionId) -> Result<bool> {
        self.0.write_on(vec![id.run], move |session| ops::timer_fired(session, id)).await
    }

    /// Looks at one step whose work, somewhere else, may have come to an end.
    pub async fn look_at_step(self, run: RunId, step: StepNo) -> Result<()> {
        self.0.write_on(vec![run], move |session| ops::look_at_step(session, run, step)).await
    }
}

/// A worker that holds nothing yet.
#[derive(Clone, Copy)]
pub struct Claims<'s>(pub(crate) &'s Store);

impl Claims<'_> {
    /// Finds a run's environment, or notes that the one who asks makes it.
    pub async fn provide_environment(self, wanted: ops::Wanted, there: bool) -> Result<ops::Provide> {
        self.0.write(move |session| ops::provide_environment(session, &wanted, there)).await
    }

    /// Notes what is known of an environment by now.
    pub async fn describe_environment(self, id: Id, details: Arc<str>) -> Result<()> {
        self.0.write(move |session| ops::describe_environment(session, id, &details)).await
    }

    /// Begins to remove an environment, unless its run lives; the attempt's number, if it may.
    pub async fn dispatch_destroy(self, id: Id, worker: Id, path_present: bool) -> Result<Option<u32>> {
        self.0.write(move |session| ops::dispatch_destroy(session, id, worker, path_present)).await
    }

    /// Begins to remove the environment of a live run that nobody goes on with; the attempt's number, if it may.
    pub async fn take_environment_of_dead_run(self, id: Id, worker: Id) -> Result<Option<u32>> {
        self.0.write(move |session| ops::take_environment_of_dead_run(session, id, worker)).await
    }

    /// Reports what became of making or removing an environment.
    pub async fn environment(
        self,
        id: Id,
        event: EnvironmentEvent,
        given: EnvironmentGiven,
        reason: Option<String>,
    ) -> Result<Outcome<Environment>> {
        self.0
            .write(move |session| {
                ops::environment_event_because(session, id, event, Actor::Worker, &given, reason.as_deref())
            })
            .await
    }

    /// Registers a worker, new or come back.
    pub async fn register(self, new: NewWorker) -> Result<Outcome<WorkerPresence>> {
        self.0.write(move |session| ops::register_worker(session, &new)).await
    }

    /// Shows that a worker is there, and prolongs its leases; the first answer says whether the store
    /// still counts on it.
    pub async fn heartbeat(
        self,
        worker: Id,
        leases: Vec<Lease>,
        lease_ms: i64,
    ) -> Result<(bool, Vec<Renewal>)> {
        self.0
            .write(move |session| {
                Ok((ops::heartbeat(session, worker, lease_ms)?, ops::renew(session, &leases, lease_ms)?))
            })
            .await
    }

    /// Reserves a run to its own worker again, if it is reserved to nobody.
    pub async fn reclaim(self, run: RunId, worker: Id) -> Result<bool> {
        self.0.write_on(vec![run], move |session| ops::reclaim_run(session, run, worker)).await
    }

    /// Takes no more work from now on.
    pub async fn drain(self, worker: Id) -> Result<Outcome<WorkerPresence>> {
        self.0
            .write(move |session| {
                ops::worker_event(session, worker, WorkerEvent::DrainRequested, Actor::Worker, None)
            })
            .await
    }

    /// Leaves in good order; whatever it still held goes to others.
    pub async fn leave(self, worker: Id) -> Result<Outcome<WorkerPresence>> {
        self.0.write(move |session| ops::leave(session, worker)).await
    }

    /// Receives up to `limit` executions.
    pub async fn claim(self, claimer: Claimer, limit: usize) -> Result<Vec<Assignment>> {
        let about = About { claim: Some((claimer.clone(), limit)), ..About::default() };
        self.0.submit(about, move |session| ops::claim(session, &claimer, limit)).await
    }

    /// Receives one execution for an agent or a person that is known by its name.
    pub async fn claim_as(self, worker: NewWorker, claimer: Claimer) -> Result<Option<Assignment>> {
        let about = About { claim: Some((claimer.clone(), 1)), ..About::default() };
        self.0.submit(about, move |session| ops::claim_as(session, &worker, &claimer)).await
    }

    /// Receives one execution that a message told of, if it is still meant and this worker may have it.
    pub async fn receive_told(self, claimer: Claimer, told: Lease) -> Result<Told> {
        let about = About { told: Some(told.execution), ..About::default() };
        self.0.submit(about, move |session| ops::receive_told(session, &claimer, told)).await
    }

    /// Receives one execution that a message told of.
    pub async fn receive(
        self,
        claimer: Claimer,
        told: Lease,
    ) -> Result<std::result::Result<Assignment, Outcome<Execution>>> {
        self.0.write(move |session| ops::receive(session, &claimer, told)).await
    }
}

/// A worker and one thing that it holds. Every write carries the fence it was given.
#[derive(Clone, Copy)]
pub struct Holder<'s> {
    pub(crate) store: &'s Store,
    pub(crate) lease: Lease,
}

impl Holder<'_> {
    /// Reports how it ended and, if `next` asks for it, receives what follows in the same commit.
    pub async fn finish(self, ending: Ending, next: Option<Claimer>) -> Result<Finished> {
        let lease = self.lease;
        self.store
            .write_on(vec![lease.execution.run], move |session| {
                ops::finish(session, lease, &ending, next.as_ref())
            })
            .await
    }

    /// Prolongs the lease.
    pub async fn renew(self, lease_ms: i64) -> Result<Renewal> {
        let lease = self.lease;
        let renewals = self.store.write(move |session| ops::renew(session, &[lease], lease_ms)).await?;
        Ok(renewals.first().copied().unwrap_or(Renewal::Lost))
    }

    /// Gives it back unfinished.
    pub async fn release(self) -> Result<Outcome<Execution>> {
        let lease = self.lease;
        self.store.write_on(vec![lease.execution.run], move |session| ops::release(session, lease)).await
    }
}

/// Speaks for the dead.
#[derive(Clone, Copy)]
pub struct Reaper<'s>(pub(crate) &'s Store);

impl Reaper<'_> {
    /// Takes an execution from an owner whose lease has lapsed, by the store's clock.
    pub async fn expire(self, lease: Lease) -> Result<Outcome<Execution>> {
        self.0
            .write_on(vec![lease.execution.run], move |session| {
                ops::abandon(session, lease, Lost::LeaseLapsed)
            })
            .await
    }

    /// Takes an execution from an owner whose process is gone.
    pub async fn owner_died(self, lease: Lease) -> Result<Outcome<Execution>> {
        self.0
            .write_on(vec![lease.execution.run], move |session| {
                ops::abandon(session, lease, Lost::ProcessGone)
            })
            .await
    }

    /// Notes that a worker is gone.
    pub async fn worker_lost(self, worker: Id, lost: Lost) -> Result<Outcome<WorkerPresence>> {
        self.0.write(move |session| ops::worker_lost(session, worker, lost)).await
    }

    /// Takes an environment from a host where nobody has worked since then; false if somebody has.
    pub async fn host_lost(self, environment: Id, since_ms: i64) -> Result<bool> {
        self.0.write(move |session| ops::host_lost(session, environment, since_ms)).await
    }

    /// Reports an event on an environment for a worker that is gone.
    pub async fn environment(
        self,
        id: Id,
        event: EnvironmentEvent,
        given: EnvironmentGiven,
    ) -> Result<Outcome<Environment>> {
        self.0.write(move |session| ops::environment_event(session, id, event, Actor::Reaper, &given)).await
    }
}

/// A person, or a program on its behalf.
#[derive(Clone, Copy)]
pub struct Person<'s>(pub(crate) &'s Store);

impl Person<'_> {
    /// Makes a run and starts it, if its group has a place. The name in `new` is drawn again if it is taken.
    pub async fn create_run(self, mut new: NewRun) -> Result<Created> {
        /// Two runs of one millisecond share a name once in a hundred thousand times.
        const DRAWS: usize = 8;
        let hash = ops::plan_hash(&new.plan);
        for _ in 0..DRAWS {
            let this = new.clone();
            match self.0.write_on(vec![this.id], move |session| ops::create_run(session, &this, hash)).await?
            {
                Created::NameTaken => new.id = self.new_run_id(),
                created => return Ok(created),
            }
        }
        Err(Error::Refused("no free name for the run was found".into()))
    }

    /// Makes a run that begins where `source` had finished the step `from`.
    pub async fn fork_run(self, source: RunId, from: StepNo, new: NewRun) -> Result<Created> {
        let hash = ops::plan_hash(&new.plan);
        self.0.write(move |session| ops::fork_run(session, source, from, &new, hash)).await
    }

    /// A name for a new run.
    pub fn new_run_id(self) -> RunId {
        RunId::new(self.0.now().wall_ms, self.0.random())
    }

    /// A run of `plan`, with a new name.
    pub fn new_run(self, plan: Arc<Plan>) -> NewRun {
        NewRun::new(self.new_run_id(), plan)
    }

    /// Asks a run to end.
    pub async fn cancel_run(self, id: RunId) -> Result<Outcome<Run>> {
        self.0.write_on(vec![id], move |session| ops::cancel_run(session, id)).await
    }

    /// Tries again what failed or was cancelled.
    pub async fn resume_run(self, id: RunId, pin: Option<Id>) -> Result<Outcome<Run>> {
        self.0.write_on(vec![id], move |session| ops::resume_run(session, id, pin)).await
    }

    /// Goes on from an earlier step.
    pub async fn rewind_run(self, id: RunId, to: StepNo, pin: Option<Id>) -> Result<Outcome<Run>> {
        self.0.write_on(vec![id], move |session| ops::rewind_run(session, id, to, pin)).await
    }

    /// Answers a gate.
    pub async fn answer_gate(self, id: Id, answer: Arc<str>) -> Result<Outcome<Gate>> {
        self.0.write(move |session| ops::answer_gate(session, id, &answer)).await
    }

    /// Sends a signal to a run.
    pub async fn signal(self, run: RunId, name: Arc<str>, payload: Arc<str>) -> Result<Signalled> {
        self.0.write_on(vec![run], move |session| ops::signal(session, run, &name, &payload)).await
    }

    /// Notes a wish on a thread.
    pub async fn thread_intent(self, id: Id, intent: ThreadIntent) -> Result<bool> {
        self.0.write(move |session| ops::thread_intent(session, id, intent)).await
    }

    /// Asks for an environment to be removed.
    pub async fn request_cleanup(self, id: Id) -> Result<bool> {
        self.0.write(move |session| ops::request_cleanup(session, id)).await
    }
}
