//! The store as other crates see it, with any database. The roles in `roles.rs` define the operations on it.

use std::path::Path;
use std::sync::{Arc, Mutex};

use sprag_lifecycle::RunId;
use tokio::sync::oneshot;

use crate::answers::Answers;
use crate::author::{Author, current_author, current_step};
use crate::backend::Backend;
use crate::clock::{Clock, Entropy, Now, System};
use crate::error::{Error, Result};
use crate::evaluator::SpecEvaluator;
use crate::job::{Job, JobScope};
use crate::memory::{EvaluatorCell, Tables};
use crate::ops::{self, Lease};
use crate::postgres::Postgres;
use crate::queries::Queries;
use crate::roles::{Claims, Executor, LeaseHolder, Person, Reaper};
use crate::rows::Id;
use crate::runtime::{self, Runtime, SimulatedRuntime};
use crate::service::Observer;
use crate::session::Session;
use crate::sqlite::{Sqlite, SqliteOptions};
use crate::wake::{Hub, Reach, Subscription, Topic};

/// The most times that an operation is run again with another answer: more than a plan has steps.
const MOST_QUESTIONS: usize = 20_000;

/// A store. Cloning it is cheap; the last clone closes it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
    runtime: Runtime,
    /// The author of what people do without naming one: the user whose process this is.
    local_author: Option<Author>,
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

/// A closure that waits to be written, and the caller that waits for its answer.
struct Waiting<F, T> {
    operation: F,
    about: JobScope,
    /// The answers to the questions of its earlier runs.
    answers: Arc<Answers>,
    answer: Option<T>,
    caller: oneshot::Sender<Done<F, T>>,
}

/// The result of an operation, and the operation itself, which may have to run again.
type Done<F, T> = (Result<T>, F, JobScope);

impl<F, T> Job for Waiting<F, T>
where
    F: FnMut(&mut Session<'_>) -> Result<T> + Send,
    T: Send,
{
    fn run(&mut self, session: &mut Session<'_>) -> Result<()> {
        session.use_answers(Arc::clone(&self.answers));
        self.answer = Some((self.operation)(session)?);
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<()>) {
        let Waiting { operation, about, answer, caller, .. } = *self;
        // The change stays, even if the caller has gone away.
        let _ = caller.send((committed.and_then(|()| answer.ok_or(Error::Closed)), operation, about));
    }

    fn about(&self) -> &JobScope {
        &self.about
    }
}

impl Store {
    /// Opens the SQLite file in `folder`. Creates both if they do not exist.
    pub fn open(folder: &Path) -> Result<Store> {
        Store::open_with(folder, SqliteOptions::default(), Arc::new(System), Arc::new(System))
    }

    /// Opens a SQLite file with the caller's clock and randomness.
    pub fn open_with(
        folder: &Path,
        options: SqliteOptions,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Store> {
        let sqlite = Sqlite::open(folder, options, clock, entropy)?;
        Ok(Store::on_this_machine(Inner::Sqlite(sqlite)))
    }

    /// Opens the PostgreSQL database that a URL names. Creates its tables if they do not exist.
    #[cfg(feature = "postgres")]
    pub fn open_postgres(url: &str) -> Result<Store> {
        Store::open_postgres_with(url, None, Arc::new(System))
    }

    /// Opens a PostgreSQL database with the caller's randomness and, for tests, a clock instead of the database's
    /// own.
    #[cfg(feature = "postgres")]
    pub fn open_postgres_with(
        url: &str,
        clock: Option<Arc<dyn Clock>>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Store> {
        let postgres = Postgres::open(url, clock, entropy)?;
        Ok(Store::on_this_machine(Inner::Postgres(postgres)))
    }

    /// Creates a store in memory. It is gone with its last clone.
    pub fn in_memory(clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Store {
        let memory = Memory { tables: Mutex::default(), clock, entropy, hub: Hub::local() };
        Store::on_this_machine(Inner::Memory(Box::new(memory)))
    }

    fn on_this_machine(inner: Inner) -> Store {
        Store { inner: Arc::new(inner), runtime: Runtime::default(), local_author: None }
    }

    /// Returns the same store, as used from a simulated machine.
    pub fn seen_from(&self, machine: Arc<dyn SimulatedRuntime>) -> Store {
        Store {
            inner: Arc::clone(&self.inner),
            runtime: Runtime(Some(machine)),
            local_author: self.local_author.clone(),
        }
    }

    /// Sets the author of what people do in this process without naming one.
    pub fn with_local_author(self, author: Author) -> Store {
        Store { local_author: Some(author), ..self }
    }

    /// Returns the machine on which the store is used.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Passes the tables of a store in memory to `look`, for checkers; `None` for other stores.
    pub(crate) fn with_tables<T>(&self, look: impl FnOnce(&Tables) -> T) -> Option<T> {
        match &*self.inner {
            Inner::Memory(memory) => Some(look(&memory.tables())),
            Inner::Sqlite(_) | Inner::Postgres(_) => None,
        }
    }

    /// Sets the evaluator that reads the specs of steps. Only the first call has an effect.
    pub fn with_evaluator(self, evaluator: Arc<dyn SpecEvaluator>) -> Store {
        match &*self.inner {
            Inner::Memory(memory) => memory.tables().evaluator = EvaluatorCell(evaluator),
            Inner::Sqlite(sqlite) => sqlite.set_evaluator(evaluator),
            Inner::Postgres(postgres) => postgres.set_evaluator(evaluator),
        }
        self
    }

    /// Returns the evaluator that reads the specs of steps.
    pub fn evaluator(&self) -> Arc<dyn SpecEvaluator> {
        match &*self.inner {
            Inner::Memory(memory) => Arc::clone(&memory.tables().evaluator.0),
            Inner::Sqlite(sqlite) => sqlite.evaluator(),
            Inner::Postgres(postgres) => postgres.evaluator(),
        }
    }

    /// Runs one operation in a transaction. Returns once it is on disk.
    ///
    /// The operation may run more than once; only the last run counts.
    pub(crate) async fn write<T, F>(&self, operation: F) -> Result<T>
    where
        F: FnMut(&mut Session<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        self.write_on(Vec::new(), operation).await
    }

    /// Runs an operation that decides about these runs. A database with several writing processes holds and fetches
    /// them before the operation starts.
    pub(crate) async fn write_on<T, F>(&self, runs: Vec<RunId>, operation: F) -> Result<T>
    where
        F: FnMut(&mut Session<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        self.submit(JobScope { runs, ..JobScope::default() }, operation).await
    }

    /// Runs an operation of a person, who has a name even if the request has no author.
    pub(crate) async fn write_as_person<T, F>(&self, runs: Vec<RunId>, operation: F) -> Result<T>
    where
        F: FnMut(&mut Session<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        let about = JobScope { runs, ..JobScope::default() };
        self.submit_by(current_author().or_else(|| self.local_author.clone()), about, operation).await
    }

    /// Runs an operation on behalf of the author of the present request, if there is one.
    pub(crate) async fn submit<T, F>(&self, about: JobScope, operation: F) -> Result<T>
    where
        F: FnMut(&mut Session<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        self.submit_by(current_author(), about, operation).await
    }

    async fn submit_by<T, F>(
        &self,
        author: Option<Author>,
        mut about: JobScope,
        mut operation: F,
    ) -> Result<T>
    where
        F: FnMut(&mut Session<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        let step = current_step();
        // The run's row is held, so that the step cannot end between the check and the commit.
        let held = step.map(|lease| lease.execution.run).filter(|run| !about.runs.contains(run));
        about.runs.extend(held);
        let operation = move |session: &mut Session<'_>| {
            if let Some(lease) = step {
                ops::require_step(session, lease)?;
            }
            if let Some(author) = &author {
                session.set_author(author);
            }
            operation(session)
        };
        match &self.runtime.0 {
            Some(machine) => {
                runtime::write(&**machine, operation, async |noting| self.commit(about, noting).await).await
            }
            None => self.commit(about, operation).await,
        }
    }

    async fn commit<T, F>(&self, mut about: JobScope, mut operation: F) -> Result<T>
    where
        F: FnMut(&mut Session<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        if let Inner::Memory(memory) = &*self.inner {
            let mut topics = std::collections::BTreeSet::new();
            let mut random = || memory.entropy.next_u64();
            let now = memory.now();
            let answer = memory.tables().transact_telling(now, &mut random, &mut topics, &mut operation)?;
            memory.hub.tell(&topics);
            return Ok(answer);
        }
        let answers = Arc::new(Answers::default());
        for _ in 0..MOST_QUESTIONS {
            let (caller, answer) = oneshot::channel();
            let waiting =
                Box::new(Waiting { operation, about, answers: Arc::clone(&answers), answer: None, caller });
            match &*self.inner {
                Inner::Sqlite(sqlite) => sqlite.submit(waiting).await?,
                Inner::Postgres(postgres) => postgres.submit(waiting).await?,
                Inner::Memory(_) => return Err(Error::Closed),
            }
            let done = answer.await.map_err(|_| Error::Closed)?;
            match done.0 {
                Err(Error::Unanswered(open)) => answers.find_out(open).await,
                done => return done,
            }
            (operation, about) = (done.1, done.2);
        }
        Err(Error::bug(format!("an operation asked more than {MOST_QUESTIONS} questions about steps")))
    }

    /// Reads one consistent state. It blocks for as long as the disk needs.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&mut dyn Backend) -> Result<T>) -> Result<T> {
        match &*self.inner {
            Inner::Memory(memory) => {
                let now = memory.now();
                memory.tables().read(now, look)
            }
            Inner::Sqlite(sqlite) => sqlite.read(look),
            Inner::Postgres(postgres) => postgres.read(look),
        }
    }

    /// Subscribes to changes from now on.
    pub fn subscribe(&self, topics: Vec<Topic>) -> Subscription {
        self.subscribe_from(topics, Reach::Everywhere)
    }

    /// Subscribes to changes from now on, made in this process or in any.
    pub fn subscribe_from(&self, topics: Vec<Topic>, reach: Reach) -> Subscription {
        if let Some(machine) = &self.runtime.0 {
            return Subscription::simulated(machine.listen(&topics), self.runtime.clone());
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

    /// Returns the store's time.
    pub fn now(&self) -> Now {
        match &*self.inner {
            Inner::Memory(memory) => memory.now(),
            Inner::Sqlite(sqlite) => sqlite.now(),
            Inner::Postgres(postgres) => postgres.now(),
        }
    }

    /// Returns a random number from the store's randomness.
    pub fn random(&self) -> u64 {
        match &*self.inner {
            Inner::Memory(memory) => memory.entropy.next_u64(),
            Inner::Sqlite(sqlite) => sqlite.random(),
            Inner::Postgres(postgres) => postgres.random(),
        }
    }

    /// Returns a positive number as the id of a new entity.
    pub fn new_id(&self) -> Id {
        (self.random() >> 2) as Id + 1
    }

    /// Reads the whole file and returns whether it is sound, in words.
    pub fn health(&self) -> Result<String> {
        match &*self.inner {
            Inner::Memory(_) => Ok("in memory".into()),
            Inner::Sqlite(sqlite) => sqlite.health(),
            Inner::Postgres(postgres) => postgres.health(),
        }
    }

    /// Whether all processes that write to the store are on this machine, one at a time.
    pub(crate) fn is_file(&self) -> bool {
        matches!(&*self.inner, Inner::Sqlite(_))
    }

    /// Returns the process that holds the file's write lock now, with its command line, if it can be seen.
    pub fn lock_holder(&self) -> Option<String> {
        match &*self.inner {
            Inner::Sqlite(sqlite) => sqlite.lock_holder(),
            Inner::Memory(_) | Inner::Postgres(_) => None,
        }
    }

    /// Returns the file, or the URL without its password; `None` for a store in memory.
    pub fn path(&self) -> Option<&Path> {
        match &*self.inner {
            Inner::Memory(_) => None,
            Inner::Sqlite(sqlite) => Some(sqlite.path()),
            Inner::Postgres(postgres) => Some(postgres.path()),
        }
    }

    /// Returns the operations of an executor.
    pub fn executor(&self) -> Executor<'_> {
        Executor(self)
    }

    /// Returns the operations of a worker on an execution that it holds.
    pub fn worker(&self, lease: Lease) -> LeaseHolder<'_> {
        LeaseHolder { store: self, lease }
    }

    /// Returns the operations of a worker that holds nothing yet.
    pub fn claims(&self) -> Claims<'_> {
        Claims(self)
    }

    /// Returns the operations of the reaper.
    pub fn reaper(&self) -> Reaper<'_> {
        Reaper(self)
    }

    /// Returns the reads of a store.
    pub fn queries(&self) -> Queries<'_> {
        Queries(self)
    }

    /// Returns the operations of a person.
    pub fn person(&self) -> Person<'_> {
        Person(self)
    }
}
