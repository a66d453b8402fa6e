//! The store as everybody else sees it, whatever is behind it. What may be done to it is a matter of roles (`roles.rs`).

use std::path::Path;
use std::sync::{Arc, Mutex};

use sprag_lifecycle::RunId;
use tokio::sync::oneshot;

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::job::{About, Job};
use crate::language::Language;
use crate::machine::{self, Machine, Surroundings};
use crate::memory::{Tables, Tongue};
use crate::ops::Lease;
use crate::postgres::Postgres;
use crate::roles::{Claims, Executor, Holder, Person, Reaper};
use crate::rows::Id;
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

    pub(crate) async fn submit<T, F>(&self, about: About, operation: F) -> Result<T>
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
