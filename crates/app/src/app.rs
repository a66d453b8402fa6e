//! The application: a store, the data directory beside it, and every use case on them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sprag_store::{Id, Now, Observer, Reach, Store, Subscription, System, Topic};
use sprag_worker::Files;
use tokio::sync::Semaphore;

use crate::author::local_author;
use crate::claims::Turns;
use crate::error::{Error, ErrorKind};
use crate::evaluator::MarkedEvaluator;
use crate::make_private;
use crate::rules::{ParsedRules, UnwrittenRefusals};

/// The number of reads at once in [`App::blocking`]; each has a connection of its own.
const READERS: usize = 8;

/// A store of runs and the data directory beside it. Cloning it is cheap.
///
/// The command line, the server, MCP and the library do everything through it; none of them sees the store itself.
#[derive(Clone)]
pub struct App {
    pub(crate) store: Store,
    files: Files,
    data: Arc<Path>,
    /// The remote workers that wait for work here.
    pub(crate) turns: Turns,
    reads: Arc<Semaphore>,
    /// The definitions of rules that were parsed here.
    pub(crate) parsed_rules: ParsedRules,
    /// Refused requests of senders that no file counts yet.
    pub(crate) unwritten_refusals: UnwrittenRefusals,
}

impl App {
    /// Opens the store in a data directory. Makes both if they do not exist, and closes the directory to other users.
    pub fn open(data: &Path) -> Result<App, Error> {
        let closed = make_private(data)
            .map_err(|error| sprag_store::Error::Open { path: data.to_owned(), reason: error.to_string() })?;
        if let Some(closed) = closed {
            tracing::warn!("{closed}");
        }
        Ok(App::evaluating(Store::open(data)?, data))
    }

    /// Opens the PostgreSQL database that a URL names, and makes its tables if they do not exist. Logs and worktrees
    /// are kept in the data directory.
    #[cfg(feature = "postgres")]
    pub fn open_postgres(url: &str, data: &Path) -> Result<App, Error> {
        Ok(App::evaluating(Store::open_postgres(url)?, data))
    }

    /// Creates a store in memory, which is gone with its last user. Logs and worktrees are kept in the data directory.
    pub fn in_memory(data: &Path) -> App {
        App::evaluating(Store::in_memory(Arc::new(System), Arc::new(System)), data)
    }

    /// Has the store evaluate the expressions of pipelines.
    fn evaluating(store: Store, data: &Path) -> App {
        let store = store.with_local_author(local_author());
        crate::agents::read_agents();
        App::with_store(store.with_evaluator(Arc::new(MarkedEvaluator::new(data))), data)
    }

    /// Uses a store that is already open, as it is.
    pub fn with_store(store: Store, data: &Path) -> App {
        let reads = Arc::new(Semaphore::new(READERS));
        App {
            store,
            files: Files::new(data),
            data: data.into(),
            turns: Turns::default(),
            reads,
            parsed_rules: ParsedRules::default(),
            unwritten_refusals: UnwrittenRefusals::default(),
        }
    }

    /// Runs a function that may wait for the disk, without blocking the tasks that answer other callers.
    pub async fn blocking<T: Send + 'static, E: From<Error> + Send + 'static>(
        &self,
        work: impl FnOnce(&App) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let place = Arc::clone(&self.reads).acquire_owned().await;
        let place = place.map_err(|_| Error::new(ErrorKind::Unavailable, "the process is shutting down"))?;
        let app = self.clone();
        // The caller may go away: its place becomes free when the work is done, not before.
        let done = tokio::task::spawn_blocking(move || {
            let done = work(&app);
            drop(place);
            done
        });
        done.await
            .unwrap_or_else(|error| Err(Error::bug(format!("the work of a request is gone: {error}")).into()))
    }

    /// Returns the layout of logs and artifacts.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Returns the data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Returns the time, as the store measures it.
    pub fn now(&self) -> Now {
        self.store.now()
    }

    /// Returns a number that no other row has.
    pub fn new_id(&self) -> Id {
        self.store.new_id()
    }

    /// Returns the path of the database file, or the URL of the database without its password.
    pub fn store_path(&self) -> Option<PathBuf> {
        self.store.path().map(Path::to_owned)
    }

    /// Returns what `sprag doctor` reports about the store.
    pub fn health(&self) -> Result<String, Error> {
        Ok(self.store.health()?)
    }

    /// Returns the process that holds the store's write lock, if one does and the store can tell.
    pub fn lock_holder(&self) -> Option<String> {
        self.store.lock_holder()
    }

    /// Waits for a time, by the clock of the store's machine.
    pub async fn pause(&self, time: Duration) {
        self.store.runtime().pause(time).await;
    }

    /// Has every transition and refusal counted by an observer.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        self.store.observe(observer);
    }

    /// Subscribes to changes, also those that other processes make.
    pub fn subscribe(&self, topics: Vec<Topic>) -> Subscription {
        self.store.subscribe(topics)
    }

    /// Subscribes to changes that reach this process anyway, because its executor listens to the whole journal.
    pub fn subscribe_here(&self, topics: Vec<Topic>) -> Subscription {
        self.store.subscribe_from(topics, Reach::Here)
    }
}
