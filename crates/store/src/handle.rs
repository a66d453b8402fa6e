//! The store as everybody else sees it: handles by owner, each with its own verbs and no others'.

use std::path::Path;
use std::sync::{Arc, Mutex};

use sprag_lifecycle::{
    Actor, Enforcement, EnforcementEvent, Environment, EnvironmentEvent, Execution, ExecutionId, Gate, Plan,
    Run, RunId, StepNo, Thread, ThreadEvent, WorkerEvent, WorkerPresence,
};
use tokio::sync::oneshot;

use crate::backend::{Backend, QueueRow};
use crate::error::{Error, Result};
use crate::job::{About, Job};
use crate::language::Language;
use crate::machine::{self, Machine, Surroundings};
use crate::memory::{Tables, Tongue};
use crate::ops::{
    self, Assignment, Claimer, Created, Ending, Finished, Lease, Lost, NewRun, NewWorker, Renewal, Signalled,
    ThreadIntent, Told,
};
use crate::outcome::Outcome;
use crate::postgres::Postgres;
use crate::rows::{EnvironmentGiven, Id, ThreadGiven};
use crate::seams::{Clock, Entropy, Now, System};
use crate::service::Observer;
use crate::session::Session;
use crate::sqlite::{Sqlite, SqliteOptions};
use crate::wake::{Hub, Reach, Subscription, Topic};

/// A store. Cloning it is cheap; the last clone closes it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
    surroundings: Surroundings,
}

enum Inner {
    Memory(Box<Memory>),
    Sqlite(Sqlite),
    Postgres(Postgres),
}

struct Memory {
    tables: Mutex<Tables>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    hub: Arc<Hub>,
}

impl Memory {
    fn now(&self) -> Now {
        Now { wall_ms: self.clock.wall_ms(), steady_ms: self.clock.boot_ms() }
    }

    fn tables(&self) -> std::sync::MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A closure that waits to be written, and the caller who waits for its answer.
struct Waiting<F, T> {
    operation: F,
    about: About,
    answer: Option<T>,
    caller: oneshot::Sender<Result<T>>,
}

impl<F, T> Job for Waiting<F, T>
where
    F: FnMut(&mut Session<'_>) -> Result<T> + Send,
    T: Send,
{
    fn run(&mut self, session: &mut Session<'_>) -> Result<()> {
        self.answer = Some((self.operation)(session)?);
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<()>) {
        let Waiting { answer, caller, .. } = *self;
        // A caller that has gone away has its change all the same.
        let _ = caller.send(committed.and_then(|()| answer.ok_or(Error::Closed)));
    }

    fn about(&self) -> &About {
        &self.about
    }
}

impl Store {
    /// Opens the SQLite file in `folder`, making both if they are not there.
    pub fn open(folder: &Path) -> Result<Store> {
        Store::open_with(folder, SqliteOptions::default(), Arc::new(System), Arc::new(System))
    }

    /// Opens a SQLite file with a clock and randomness of one's own.
    pub fn open_with(
        folder: &Path,
        options: SqliteOptions,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Store> {
        let sqlite = Sqlite::open(folder, options, clock, entropy)?;
        Ok(Store::on_this_machine(Inner::Sqlite(sqlite)))
    }

    /// Opens the PostgreSQL database that a URL names, making its tables if they are not there.
    pub fn open_postgres(url: &str) -> Result<Store> {
        Store::open_postgres_with(url, None, Arc::new(System))
    }

    /// Opens a PostgreSQL database with randomness of one's own and, for tests, a clock in the place of its own.
    pub fn open_postgres_with(
        url: &str,
        clock: Option<Arc<dyn Clock>>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Store> {
        let postgres = Postgres::open(url, clock, entropy)?;
        Ok(Store::on_this_machine(Inner::Postgres(postgres)))
    }

    /// A store in memory, gone with its last clone.
    pub fn in_memory(clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Store {
        let memory = Memory { tables: Mutex::default(), clock, entropy, hub: Hub::local() };
        Store::on_this_machine(Inner::Memory(Box::new(memory)))
    }

    fn on_this_machine(inner: Inner) -> Store {
        Store { inner: Arc::new(inner), surroundings: Surroundings::default() }
    }

    /// The same store, as it is used on a simulated machine.
    pub fn seen_from(&self, machine: Arc<dyn Machine>) -> Store {
        Store { inner: Arc::clone(&self.inner), surroundings: Surroundings(Some(machine)) }
    }

    /// The machine on which it is used.
    pub fn surroundings(&self) -> &Surroundings {
        &self.surroundings
    }

    /// Everything that a store in memory keeps, for checkers.
    pub fn with_tables<T>(&self, look: impl FnOnce(&Tables) -> T) -> Option<T> {
        match &*self.inner {
            Inner::Memory(memory) => Some(look(&memory.tables())),
            Inner::Sqlite(_) | Inner::Postgres(_) => None,
        }
    }

    /// Has the specs of steps read by `language`. The first one to be named stays.
    pub fn speaking(self, language: Arc<dyn Language>) -> Store {
        match &*self.inner {
            Inner::Memory(memory) => memory.tables().language = Tongue(language),
            Inner::Sqlite(sqlite) => sqlite.speak(language),
            Inner::Postgres(postgres) => postgres.speak(language),
        }
        self
    }

    /// Runs one operation in a transaction; answers once it is on disk.
    ///
    /// The operation may run more than once; only the last run counts.
    pub async fn write<T, F>(&self, operation: F) -> Result<T>
    where
        F: FnMut(&mut Session<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        self.write_on(Vec::new(), operation).await
    }

    /// The same, for an operation that decides about these runs: a database with several writing processes holds and
    /// fetches them before it begins.
    pub async fn write_on<T, F>(&self, runs: Vec<RunId>, operation: F) -> Result<T>
    where
        F: FnMut(&mut Session<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        self.submit(About { runs, ..About::default() }, operation).await
    }

    async fn submit<T, F>(&self, about: About, operation: F) -> Result<T>
    where
        F: FnMut(&mut Session<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        match &self.surroundings.0 {
            Some(machine) => {
                machine::write(&**machine, operation, async |noting| self.commit(about, noting).await).await
            }
            None => self.commit(about, operation).await,
        }
    }

    async fn commit<T, F>(&self, about: About, mut operation: F) -> Result<T>
    where
        F: FnMut(&mut Session<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        match &*self.inner {
            Inner::Memory(memory) => {
                let mut topics = std::collections::BTreeSet::new();
                let mut random = || memory.entropy.next_u64();
                let now = memory.now();
                let answer =
                    memory.tables().transact_telling(now, &mut random, &mut topics, &mut operation)?;
                memory.hub.tell(&topics);
                Ok(answer)
            }
            Inner::Sqlite(sqlite) => {
                let (caller, answer) = oneshot::channel();
                sqlite.submit(Box::new(Waiting { operation, about, answer: None, caller })).await?;
                answer.await.map_err(|_| Error::Closed)?
            }
            Inner::Postgres(postgres) => {
                let (caller, answer) = oneshot::channel();
                postgres.submit(Box::new(Waiting { operation, about, answer: None, caller })).await?;
                answer.await.map_err(|_| Error::Closed)?
            }
        }
    }

    /// Looks at one consistent state. It blocks for as long as the disk needs.
    pub fn read<T>(&self, look: impl FnOnce(&mut dyn Backend) -> Result<T>) -> Result<T> {
        match &*self.inner {
            Inner::Memory(memory) => {
                let now = memory.now();
                memory.tables().read(now, look)
            }
            Inner::Sqlite(sqlite) => sqlite.read(look),
            Inner::Postgres(postgres) => postgres.read(look),
        }
    }

    /// Waits for changes from now on.
    pub fn subscribe(&self, topics: Vec<Topic>) -> Subscription {
        self.subscribe_from(topics, Reach::Everywhere)
    }

    /// Waits for changes from now on, made here or anywhere.
    pub fn subscribe_from(&self, topics: Vec<Topic>, reach: Reach) -> Subscription {
        if let Some(machine) = &self.surroundings.0 {
            return Subscription::simulated(machine.listen(&topics), self.surroundings.clone());
        }
        match &*self.inner {
            Inner::Memory(memory) => memory.hub.subscribe(topics, reach),
            Inner::Sqlite(sqlite) => sqlite.hub.subscribe(topics, reach),
            Inner::Postgres(postgres) => postgres.hub().subscribe(topics, reach),
        }
    }

    pub(crate) fn set_observer(&self, observer: Arc<dyn Observer>) {
        match &*self.inner {
            Inner::Memory(_) => {}
            Inner::Sqlite(sqlite) => sqlite.observe(observer),
            Inner::Postgres(postgres) => postgres.observe(observer),
        }
    }

    /// The store's time.
    pub fn now(&self) -> Now {
        match &*self.inner {
            Inner::Memory(memory) => memory.now(),
            Inner::Sqlite(sqlite) => sqlite.now(),
            Inner::Postgres(postgres) => postgres.now(),
        }
    }

    /// Any number, from the store's randomness.
    pub fn random(&self) -> u64 {
        match &*self.inner {
            Inner::Memory(memory) => memory.entropy.next_u64(),
            Inner::Sqlite(sqlite) => sqlite.random(),
            Inner::Postgres(postgres) => postgres.random(),
        }
    }

    /// A positive number to call something new by.
    pub fn new_id(&self) -> Id {
        (self.random() >> 2) as Id + 1
    }

    /// Reads the whole file and says whether it is sound.
    pub fn health(&self) -> Result<String> {
        match &*self.inner {
            Inner::Memory(_) => Ok("in memory".into()),
            Inner::Sqlite(sqlite) => sqlite.health(),
            Inner::Postgres(postgres) => postgres.health(),
        }
    }

    /// The file, or the URL without its password; none for a store in memory.
    pub fn path(&self) -> Option<&Path> {
        match &*self.inner {
            Inner::Memory(_) => None,
            Inner::Sqlite(sqlite) => Some(sqlite.path()),
            Inner::Postgres(postgres) => Some(postgres.path()),
        }
    }

    /// What an executor may do.
    pub fn executor(&self) -> Executor<'_> {
        Executor(self)
    }

    /// What a worker may do with what it holds.
    pub fn worker(&self, lease: Lease) -> Holder<'_> {
        Holder { store: self, lease }
    }

    /// What a worker may do that holds nothing yet.
    pub fn claims(&self) -> Claims<'_> {
        Claims(self)
    }

    /// What the reaper may do.
    pub fn reaper(&self) -> Reaper<'_> {
        Reaper(self)
    }

    /// What a person may do.
    pub fn person(&self) -> Person<'_> {
        Person(self)
    }
}

/// Before hand-off, and when nothing happens.
#[derive(Clone, Copy)]
pub struct Executor<'s>(&'s Store);

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
pub struct Claims<'s>(&'s Store);

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
    ///
    /// In a file that processes share, whoever writes keeps all others from writing, and whatever one does wakes all:
    /// those for whom there is nothing only look.
    pub async fn claim(self, claimer: Claimer, limit: usize) -> Result<Vec<Assignment>> {
        if matches!(*self.0.inner, Inner::Sqlite(_)) && !self.0.read(|db| ops::is_waited_for(db, &claimer))? {
            return Ok(Vec::new());
        }
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
    store: &'s Store,
    lease: Lease,
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
pub struct Reaper<'s>(&'s Store);

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

    /// Reports an event on an environment for a host or a worker that is gone.
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
