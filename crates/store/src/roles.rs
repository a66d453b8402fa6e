//! The roles of a store's callers: each role has its own operations, and no others.

use std::sync::Arc;

use sprag_lifecycle::{
    Account, Actor, Environment, EnvironmentEvent, Execution, ExecutionId, Gate, Plan, Run, RunId, StepNo,
    StepStatus, Thread, ThreadEvent, WorkerEvent, WorkerPresence,
};

use crate::backend::QueueRow;
use crate::error::{Error, Result};
use crate::handle::Store;
use crate::job::JobScope;
use crate::ops::{
    self, AskRefused, Assignment, Claimer, Created, Ending, Finished, IfCurrent, Lease, Lost, NewHold,
    NewRun, NewWorker, PermissionAsk, PermissionState, QuestionState, Renewal, Signalled, ThreadEntry,
    ThreadIntent, Told, WorkerLimit,
};
use crate::outcome::Outcome;
use crate::rows::{EnvironmentReport, Id, ThreadReport};
use crate::session::Session;

/// The role that acts before hand-off, and on executions that no worker receives.
#[derive(Clone, Copy)]
pub struct Executor<'s>(pub(crate) &'s Store);

impl Executor<'_> {
    /// Starts a queued run, if its group has a free place; `None` if it has to wait.
    pub async fn start_run(self, id: RunId) -> Result<Option<Outcome<Run>>> {
        self.0.write_on(vec![id], move |session| ops::start_run(session, id)).await
    }

    /// Publishes an execution that is due.
    pub async fn schedule(self, id: ExecutionId) -> Result<bool> {
        self.0.write_on(vec![id.run], move |session| ops::schedule(session, id)).await
    }

    /// Revokes an execution that no worker received, and publishes it again.
    pub async fn redispatch(self, id: ExecutionId) -> Result<bool> {
        self.0.write_on(vec![id.run], move |session| ops::redispatch(session, id)).await
    }

    /// Checks a whole run and makes the decisions that are due.
    pub async fn heal_run(self, id: RunId) -> Result<()> {
        self.0.write_on(vec![id], move |session| ops::heal_run(session, id)).await
    }

    /// Limits or holds a queue.
    pub async fn set_queue(self, queue: QueueRow) -> Result<()> {
        self.0.write(move |session| ops::set_queue(session, &queue)).await
    }

    /// Changes a queue's settings in one transaction.
    pub async fn change_queue(
        self,
        name: Arc<str>,
        change: impl Fn(&mut QueueRow) + Send + 'static,
    ) -> Result<()> {
        let change = move |session: &mut Session<'_>| ops::change_queue(session, &name, &change);
        self.0.write_as_person(Vec::new(), change).await
    }

    /// Publishes executions that wait in a queue with free places.
    pub async fn fill_queue(self, queue: Arc<str>, limit: usize) -> Result<usize> {
        self.0.write(move |session| ops::fill_queue(session, &queue, limit)).await
    }

    /// Starts the next run of a group that has a free place.
    pub async fn fill_group(self, group: Arc<str>, unattended: Vec<RunId>) -> Result<Option<RunId>> {
        self.0.write(move |session| ops::fill_group(session, &group, &unattended)).await
    }

    /// Reserves a live run to another worker, or to none.
    pub async fn pin_run(self, id: RunId, pin: Option<Id>) -> Result<bool> {
        self.0.write_on(vec![id], move |session| ops::pin_run(session, id, pin)).await
    }

    /// Reserves a live run to a present worker, if its reservation still is `seen`. Returns whether it did.
    pub async fn adopt_run(self, id: RunId, seen: Option<Id>, worker: Id) -> Result<bool> {
        self.0.write_on(vec![id], move |session| ops::adopt_run(session, id, seen, worker)).await
    }

    /// Releases a live run to any worker if the worker that it is reserved to is gone. Returns whether it did.
    pub async fn free_orphan(self, id: RunId) -> Result<bool> {
        self.0.write_on(vec![id], move |session| ops::free_orphan(session, id)).await
    }

    /// Gives up on an execution for which there is no worker.
    pub async fn fail_unserved(self, id: ExecutionId) -> Result<bool> {
        self.0.write_on(vec![id.run], move |session| ops::fail_unserved(session, id)).await
    }

    /// Records that an effect in the outbox was carried out.
    pub async fn effect_done(self, id: i64) -> Result<()> {
        self.0.write(move |session| session.db().drop_outbox(id)).await
    }

    /// Records that an effect in the outbox failed, and postpones it until `not_before_ms` (steady).
    pub async fn effect_failed(self, id: i64, not_before_ms: i64, error: String) -> Result<()> {
        self.0.write(move |session| session.db().postpone_outbox(id, not_before_ms, &error)).await
    }

    /// Creates a thread.
    pub async fn create_thread(self, id: Id, environment: Option<Id>) -> Result<()> {
        self.0.write(move |session| ops::create_thread(session, id, environment)).await
    }

    /// Reports an event on an environment.
    pub async fn environment(
        self,
        id: Id,
        event: EnvironmentEvent,
        given: EnvironmentReport,
    ) -> Result<Outcome<Environment>> {
        self.0.write(move |session| ops::environment_event(session, id, event, Actor::Executor, &given)).await
    }

    /// Handles an attempt's timer.
    pub async fn timer_fired(self, id: ExecutionId) -> Result<bool> {
        self.0.write_on(vec![id.run], move |session| ops::timer_fired(session, id)).await
    }

    /// Advances one step whose work outside of the workers may have ended.
    pub async fn look_at_step(self, run: RunId, step: StepNo) -> Result<()> {
        self.0.write_on(vec![run], move |session| ops::look_at_step(session, run, step)).await
    }
}

/// The role of a worker that holds nothing yet.
#[derive(Clone, Copy)]
pub struct Claims<'s>(pub(crate) &'s Store);

impl Claims<'_> {
    /// Finds a run's environment, or records that the caller creates it.
    pub async fn provide_environment(
        self,
        wanted: ops::EnvironmentRequest,
        seen: Option<ops::Sighting>,
    ) -> Result<ops::Provide> {
        self.0.write(move |session| ops::provide_environment(session, &wanted, seen)).await
    }

    /// Stores the present facts about an environment.
    pub async fn describe_environment(self, id: Id, details: Arc<str>) -> Result<()> {
        self.0.write(move |session| ops::describe_environment(session, id, &details)).await
    }

    /// Starts to remove an environment, unless its run is live. Returns the number of the attempt, if the removal may
    /// start.
    pub async fn dispatch_destroy(self, id: Id, worker: Id, path_present: bool) -> Result<Option<u32>> {
        self.0.write(move |session| ops::dispatch_destroy(session, id, worker, path_present)).await
    }

    /// Starts to remove an environment on the remote worker's own host. Returns the number of the attempt, if the removal
    /// may start.
    pub async fn destroy_on_own_host(
        self,
        id: Id,
        worker: Id,
        path_present: bool,
    ) -> Result<std::result::Result<Option<u32>, AskRefused>> {
        self.0.write(move |session| ops::destroy_on_own_host(session, id, worker, path_present)).await
    }

    /// Reports the result of a remote worker's removal of an environment; `None` if another worker removes it.
    pub async fn environment_removed(
        self,
        id: Id,
        worker: Id,
        attempt: u32,
        wrong: Option<String>,
    ) -> Result<Option<Outcome<Environment>>> {
        self.0
            .write(move |session| ops::environment_removed(session, id, worker, attempt, wrong.as_deref()))
            .await
    }

    /// Starts to remove the environment of a live run that no process continues. Returns the number of the attempt,
    /// if the removal may start.
    pub async fn take_environment_of_dead_run(self, id: Id, worker: Id) -> Result<Option<u32>> {
        self.0.write(move |session| ops::take_environment_of_dead_run(session, id, worker)).await
    }

    /// Reports the result of creating or removing an environment.
    pub async fn environment(
        self,
        id: Id,
        event: EnvironmentEvent,
        given: EnvironmentReport,
        reason: Option<String>,
    ) -> Result<Outcome<Environment>> {
        self.0
            .write(move |session| {
                ops::environment_event_because(session, id, event, Actor::Worker, &given, reason.as_deref())
            })
            .await
    }

    /// Registers a worker, new or returning.
    pub async fn register(self, new: NewWorker) -> Result<()> {
        self.0.write(move |session| ops::register_worker(session, &new)).await
    }

    /// Registers a worker within a limit. Returns false if the limit is reached and this would be one more worker.
    pub async fn register_within(self, new: NewWorker, limit: WorkerLimit) -> Result<bool> {
        self.0.write(move |session| ops::register_within(session, &new, &limit)).await
    }

    /// Records a worker's heartbeat, and renews its leases. The first value tells whether the store still counts the
    /// worker as present.
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

    /// Returns for how many milliseconds from now each lease is certain to stay with its holder although no process
    /// can write to the store; `None` if commits succeed, or if the lease was taken away before.
    pub fn kept_through_stall(self, leases: &[Lease]) -> Result<Vec<Option<i64>>> {
        if !self.0.is_file() {
            return Ok(vec![None; leases.len()]);
        }
        self.0.read(|db| ops::kept_through_stall(db, leases))
    }

    /// Reserves a run to its own worker again, if it is reserved to none.
    pub async fn reclaim(self, run: RunId, worker: Id) -> Result<bool> {
        self.0.write_on(vec![run], move |session| ops::reclaim_run(session, run, worker)).await
    }

    /// Registers a worker and reserves a live run to it. Returns whether no other worker was faster. `seen` is the
    /// reservation that the caller judged useless.
    pub async fn take_over(self, run: RunId, seen: Option<Id>, worker: NewWorker) -> Result<bool> {
        self.0.write_on(vec![run], move |session| ops::take_over_run(session, run, seen, &worker)).await
    }

    /// Stops a worker from taking more work.
    pub async fn drain(self, worker: Id) -> Result<Outcome<WorkerPresence>> {
        self.0
            .write(move |session| {
                ops::worker_event(session, worker, WorkerEvent::DrainRequested, Actor::Worker, None)
            })
            .await
    }

    /// Removes a worker in good order; other workers get the work that it still held.
    pub async fn leave(self, worker: Id) -> Result<Outcome<WorkerPresence>> {
        self.0.write(move |session| ops::leave(session, worker)).await
    }

    /// Receives up to `limit` executions.
    pub async fn claim(self, claimer: Claimer, limit: usize) -> Result<Vec<Assignment>> {
        let about = JobScope { claim: Some((claimer.clone(), limit)), ..JobScope::default() };
        self.0.submit(about, move |session| ops::claim(session, &claimer, limit)).await
    }

    /// Receives up to `limit` executions; the same nonce gets the same ones again. `agent` is set for an agent or a
    /// person, identified by name, and registers it once it has received something.
    pub async fn claim_once(
        self,
        claimer: Claimer,
        limit: usize,
        agent: Option<NewWorker>,
    ) -> Result<ops::Got> {
        let about = JobScope { claim: Some((claimer.clone(), limit)), ..JobScope::default() };
        self.0.submit(about, move |session| ops::claim_once(session, &claimer, limit, agent.as_ref())).await
    }

    /// Records the heartbeat of a remote worker, and renews those of the leases that it holds.
    pub async fn heartbeat_of(
        self,
        worker: Id,
        leases: Vec<Lease>,
        lease_ms: i64,
    ) -> Result<ops::RemoteBeat> {
        self.0.write(move |session| ops::heartbeat_of(session, worker, &leases, lease_ms)).await
    }

    /// Receives one execution that a message announced, if the message is still valid and this worker may have it.
    pub async fn receive_told(self, claimer: Claimer, told: Lease) -> Result<Told> {
        let about = JobScope { told: Some(told.execution), ..JobScope::default() };
        self.0.submit(about, move |session| ops::receive_told(session, &claimer, told)).await
    }

    /// Receives one execution that a message announced.
    pub async fn receive(
        self,
        claimer: Claimer,
        told: Lease,
    ) -> Result<std::result::Result<Assignment, Outcome<Execution>>> {
        self.0.write(move |session| ops::receive(session, &claimer, told)).await
    }
}

/// The role of a worker for one execution that it holds. Every write carries the fence of the lease.
#[derive(Clone, Copy)]
pub struct LeaseHolder<'s> {
    pub(crate) store: &'s Store,
    pub(crate) lease: Lease,
}

impl LeaseHolder<'_> {
    /// Reports the end of the execution and, if `next` asks for it, receives the next one in the same commit.
    pub async fn finish(self, ending: Ending, next: Option<Claimer>) -> Result<Finished> {
        let lease = self.lease;
        self.store
            .write_on(vec![lease.execution.run], move |session| {
                ops::finish(session, lease, &ending, next.as_ref())
            })
            .await
    }

    /// Reports the end of a task for the bearer of its token. A report that was accepted before, word for word, is
    /// confirmed again.
    pub async fn finish_by_token(self, ending: Ending) -> Result<ops::Heard> {
        let lease = self.lease;
        self.store
            .write_on(vec![lease.execution.run], move |session| ops::finish_by_token(session, lease, &ending))
            .await
    }

    /// Reports the end of the execution for a remote worker, which must be its owner. A report that was accepted
    /// before, word for word, is confirmed again.
    pub async fn finish_of(self, worker: Id, ending: Ending, next: Option<Claimer>) -> Result<ops::Heard> {
        let lease = self.lease;
        self.store
            .write_on(vec![lease.execution.run], move |session| {
                ops::finish_again(session, worker, lease, &ending, next.as_ref())
            })
            .await
    }

    /// Takes the execution from a remote worker, if that worker holds it: returns it to its queue unfinished, or
    /// records that the processes that executed it are gone.
    pub async fn give_up(self, worker: Id, processes_gone: bool) -> Result<Outcome<Execution>> {
        let lease = self.lease;
        self.store
            .write_on(vec![lease.execution.run], move |session| {
                match ops::not_held(session, worker, lease)? {
                    Some(refused) => Ok(refused),
                    None if processes_gone => ops::abandon(session, lease, Lost::ProcessGone),
                    None => ops::release(session, lease),
                }
            })
            .await
    }

    /// Renews the lease.
    pub async fn renew(self, lease_ms: i64) -> Result<Renewal> {
        let lease = self.lease;
        let renewals = self.store.write(move |session| ops::renew(session, &[lease], lease_ms)).await?;
        Ok(renewals.first().copied().unwrap_or(Renewal::Lost))
    }

    /// Renews the lease of a claimer, and records that the claimer is present.
    pub async fn keep(self, lease_ms: i64) -> Result<Renewal> {
        let lease = self.lease;
        self.store.write(move |session| ops::keep(session, lease, lease_ms)).await
    }

    /// Returns the work again, if the lease still holds.
    pub async fn assignment(self) -> Result<Option<Assignment>> {
        let lease = self.lease;
        self.store.write(move |session| ops::assignment_of(session, lease)).await
    }

    /// Makes the execution the holder of the thread of a step, before its agent is started.
    pub async fn enter_thread(self, run: RunId, step: StepNo) -> Result<ThreadEntry> {
        let lease = self.lease;
        self.store
            .write_on(vec![lease.execution.run], move |session| ops::enter_thread(session, lease, run, step))
            .await
    }

    /// Reports an event on the thread whose agent lives in the execution, or is about to.
    pub async fn thread(
        self,
        thread: Id,
        event: ThreadEvent,
        report: ThreadReport,
    ) -> Result<Outcome<Thread>> {
        let report = ThreadReport { holder: Some(self.lease), ..report };
        self.store
            .write(move |session| ops::thread_event(session, thread, event, Actor::Worker, &report))
            .await
    }

    /// Reports that the agent of the execution has answered, which matters if it tries its account after a hold
    /// ([`Assignment::tries_account`]). Returns whether the account is free because of it.
    pub async fn account_answered(self) -> Result<bool> {
        let lease = self.lease;
        self.store.write(move |session| ops::account_answered(session, lease)).await
    }

    /// Asks for a permission that the agent of the execution wants, or returns its state.
    pub async fn ask_permission(self, asked: PermissionAsk) -> Result<PermissionState> {
        let lease = self.lease;
        self.store
            .write_on(vec![lease.execution.run], move |session| ops::ask_permission(session, lease, &asked))
            .await
    }

    /// Asks a question of the execution's agent, or returns its state.
    pub async fn ask_question(self, asked: PermissionAsk, choices: Vec<String>) -> Result<QuestionState> {
        let lease = self.lease;
        let operation = move |session: &mut Session<'_>| ops::ask_question(session, lease, &asked, &choices);
        self.store.write_on(vec![lease.execution.run], operation).await
    }

    /// Adds a note of the execution's agent to its run, and returns the note's number.
    pub async fn add_note(self, author: Arc<str>, tag: Arc<str>, text: Arc<str>) -> Result<i64> {
        let run = self.lease.execution.run;
        self.store
            .write_on(vec![run], move |session| ops::add_run_note(session, run, &author, &tag, &text))
            .await
    }

    /// Withdraws the question of the execution's agent.
    pub async fn withdraw_permission(self) -> Result<()> {
        let lease = self.lease;
        self.store
            .write_on(vec![lease.execution.run], move |session| ops::withdraw_permission(session, lease))
            .await
    }

    /// Returns the unfinished execution to its queue.
    pub async fn release(self) -> Result<Outcome<Execution>> {
        let lease = self.lease;
        self.store.write_on(vec![lease.execution.run], move |session| ops::release(session, lease)).await
    }
}

/// The role that acts on behalf of workers that are gone.
#[derive(Clone, Copy)]
pub struct Reaper<'s>(pub(crate) &'s Store);

impl Reaper<'_> {
    /// Takes an execution from an owner whose lease has expired, by the store's clock.
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

    /// Records that a worker is gone.
    pub async fn worker_lost(self, worker: Id, lost: Lost) -> Result<Outcome<WorkerPresence>> {
        self.0.write(move |session| ops::worker_lost(session, worker, lost)).await
    }

    /// Marks an environment's host as lost if no worker has been on it since `since_ms`. Returns false if one has.
    pub async fn host_lost(self, environment: Id, since_ms: i64) -> Result<bool> {
        self.0.write(move |session| ops::host_lost(session, environment, since_ms)).await
    }

    /// Reports an event on an environment for a worker that is gone.
    pub async fn environment(
        self,
        id: Id,
        event: EnvironmentEvent,
        given: EnvironmentReport,
    ) -> Result<Outcome<Environment>> {
        self.0.write(move |session| ops::environment_event(session, id, event, Actor::Reaper, &given)).await
    }
}

/// The role of a person, or of a program on a person's behalf.
#[derive(Clone, Copy)]
pub struct Person<'s>(pub(crate) &'s Store);

impl Person<'_> {
    /// Creates a run and starts it, if its group has a free place. Draws the id in `new` again if it is taken.
    pub async fn create_run(self, mut new: NewRun) -> Result<Created> {
        /// The most draws. Two runs of one millisecond share an id once in a hundred thousand times.
        const DRAWS: usize = 8;
        let hash = ops::plan_hash(&new.plan);
        for _ in 0..DRAWS {
            let this = new.clone();
            match self
                .0
                .write_as_person(vec![this.id], move |session| ops::create_run(session, &this, hash))
                .await?
            {
                Created::NameTaken => new.id = self.new_run_id(),
                created => return Ok(created),
            }
        }
        Err(Error::Conflict { entity: "run", id: "of this millisecond".into() })
    }

    /// Creates a run that starts after the finished step `from` of `source`.
    pub async fn fork_run(self, source: RunId, from: StepNo, new: NewRun) -> Result<Created> {
        let hash = ops::plan_hash(&new.plan);
        self.0
            .write_as_person(Vec::new(), move |session| ops::fork_run(session, source, from, &new, hash))
            .await
    }

    /// Returns an id for a new run.
    pub fn new_run_id(self) -> RunId {
        RunId::new(self.0.now().wall_ms, self.0.random())
    }

    /// Returns a request for a run of `plan`, with a new id.
    pub fn new_run(self, plan: Arc<Plan>) -> NewRun {
        NewRun::new(self.new_run_id(), plan)
    }

    /// Requests the cancellation of a run.
    pub async fn cancel_run(self, id: RunId) -> Result<Outcome<Run>> {
        self.0.write_as_person(vec![id], move |session| ops::cancel_run(session, id)).await
    }

    /// Requests the cancellation of a run, if its row still has this version.
    pub async fn cancel_run_at(self, id: RunId, version: u32) -> Result<IfCurrent<Outcome<Run>>> {
        self.0.write_as_person(Vec::new(), move |session| ops::cancel_run_at(session, id, version)).await
    }

    /// Retries failed and cancelled steps; reserves the run to `worker`.
    pub async fn resume_run(self, id: RunId, worker: Option<NewWorker>) -> Result<Outcome<Run>> {
        self.0.write_as_person(vec![id], move |session| ops::resume_run(session, id, worker.as_ref())).await
    }

    /// Continues from an earlier step; reserves the run to `worker`.
    pub async fn rewind_run(self, id: RunId, to: StepNo, worker: Option<NewWorker>) -> Result<Outcome<Run>> {
        self.0
            .write_as_person(vec![id], move |session| ops::rewind_run(session, id, to, worker.as_ref()))
            .await
    }

    /// Continues from a step inside a step; `path` has the rows on the way to it, each in the child run of the one before.
    pub async fn rewind_inside(
        self,
        id: RunId,
        path: Vec<StepNo>,
        worker: Option<NewWorker>,
    ) -> Result<Outcome<Run>> {
        self.0
            .write_as_person(vec![id], move |session| ops::rewind_inside(session, id, &path, worker.as_ref()))
            .await
    }

    /// Skips a step of a live run. Returns its status afterwards.
    pub async fn skip_step(self, run: RunId, step: StepNo) -> Result<StepStatus> {
        self.0.write_as_person(vec![run], move |session| ops::skip_step(session, run, step)).await
    }

    /// Starts the next try of a step that waits for its delay. Returns the number of tries that start.
    pub async fn retry_now(self, run: RunId, step: StepNo) -> Result<usize> {
        self.0.write_as_person(vec![run], move |session| ops::retry_now(session, run, step)).await
    }

    /// Answers a gate.
    pub async fn answer_gate(self, id: Id, answer: Arc<str>) -> Result<Outcome<Gate>> {
        self.0.write_as_person(Vec::new(), move |session| ops::answer_gate(session, id, &answer)).await
    }

    /// Sends a signal to a run.
    pub async fn signal(self, run: RunId, name: Arc<str>, payload: Arc<str>) -> Result<Signalled> {
        self.0.write_as_person(vec![run], move |session| ops::signal(session, run, &name, &payload)).await
    }

    /// Records a request on a thread.
    pub async fn thread_intent(self, id: Id, intent: ThreadIntent) -> Result<bool> {
        self.0.write_as_person(Vec::new(), move |session| ops::thread_intent(session, id, intent)).await
    }

    /// Holds an account: no execution of it is handed over until the hold ends. A hold that exists is replaced.
    pub async fn hold_account(self, new: NewHold) -> Result<Outcome<Account>> {
        self.0.write_as_person(Vec::new(), move |session| ops::hold_account(session, &new)).await
    }

    /// Ends the hold of an account.
    pub async fn release_account(self, name: Arc<str>) -> Result<Outcome<Account>> {
        self.0.write_as_person(Vec::new(), move |session| ops::release_account(session, &name)).await
    }

    /// Requests the removal of an environment.
    pub async fn request_cleanup(self, id: Id) -> Result<bool> {
        self.0.write_as_person(Vec::new(), move |session| ops::request_cleanup(session, id)).await
    }
}
