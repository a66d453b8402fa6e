//! What every endpoint can reach.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sprag_store::{Backend, Id, Store};
use sprag_worker::Files;
use tokio::sync::{Semaphore, watch};

use crate::access::Access;
use crate::feed::Feed;
use crate::metrics::Metrics;
use crate::problem::{Problem, internal};
use crate::rate::Rate;
use crate::routes::Waiting;

/// How many reads of the store go on at once; each has a connection of its own.
const READERS: usize = 8;

/// Whether a token is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// Not from this machine, if the server listens to nobody else.
    Loopback,
    /// Always.
    Always,
}

/// How a server behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Whether a token is needed.
    pub auth: Auth,
    /// Names by which the server may be called, beside its own.
    pub allow_hosts: Vec<String>,
    /// The folder whose pipelines can be named, and where runs work.
    pub project: Option<PathBuf>,
    /// How many bytes a body may have.
    pub body_limit: usize,
    /// How many connections there may be at once.
    pub connections: usize,
    /// How many requests a second each token may send; none: a thousand, and any number without a token.
    pub rate_limit: Option<u32>,
    /// How long a request may take until it is answered, long polls included.
    pub request_timeout: Duration,
    /// How long a client may take to send its headers, to send anything at all, or to read its answer.
    pub idle_timeout: Duration,
    /// How often a hook is tried in a row before it is parked.
    pub hook_tries: u32,
    /// How often a silent stream shows that it is alive.
    pub heartbeat: Duration,
}

impl Options {
    /// The usual ones, at this address.
    pub fn new(listen: SocketAddr) -> Self {
        Options {
            listen,
            auth: Auth::Loopback,
            allow_hosts: Vec::new(),
            project: None,
            body_limit: 2 << 20,
            connections: 4096,
            rate_limit: None,
            request_timeout: Duration::from_secs(75),
            idle_timeout: Duration::from_secs(30),
            hook_tries: 12,
            heartbeat: Duration::from_secs(15),
        }
    }

    /// Whether a request must show a token.
    pub(crate) fn wants_token(&self) -> bool {
        self.auth == Auth::Always || !self.listen.ip().is_loopback()
    }
}

/// Whether the executor and the worker of this process go on.
pub(crate) type Alive = Box<dyn Fn() -> bool + Send + Sync>;

/// What every endpoint can reach. Cloning it is cheap.
#[derive(Clone)]
pub struct App(Arc<Inner>);

struct Inner {
    store: Store,
    files: Files,
    data: PathBuf,
    dir: PathBuf,
    options: Options,
    access: Access,
    rate: Rate,
    failed_rate: Rate,
    feed: Feed,
    metrics: Metrics,
    alive: Alive,
    stopping: watch::Receiver<bool>,
    reads: Arc<Semaphore>,
    waiting: Waiting,
    id: Id,
}

impl App {
    pub(crate) fn new(
        store: Store,
        data: &Path,
        options: Options,
        feed: Feed,
        metrics: Metrics,
        alive: Alive,
        stopping: watch::Receiver<bool>,
    ) -> App {
        /// What a busy worker needs, several times over.
        const USUAL_PER_SECOND: u32 = 1_000;
        /// Guessing a token is slower than this.
        const FAILED_PER_SECOND: u32 = 10;
        let dir =
            options.project.clone().or_else(|| std::env::current_dir().ok()).unwrap_or_else(|| data.into());
        App(Arc::new(Inner {
            id: store.new_id(),
            access: Access::new(options.wants_token()),
            rate: Rate::new(options.rate_limit.unwrap_or(USUAL_PER_SECOND)),
            failed_rate: Rate::new(FAILED_PER_SECOND),
            files: Files::new(data),
            data: data.to_owned(),
            dir,
            store,
            options,
            feed,
            metrics,
            alive,
            stopping,
            reads: Arc::new(Semaphore::new(READERS)),
            waiting: Waiting::default(),
        }))
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Where runs' files lie.
    pub fn files(&self) -> &Files {
        &self.0.files
    }

    /// The data directory.
    pub fn data(&self) -> &Path {
        &self.0.data
    }

    /// Where runs work that say nothing else.
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// How the server behaves.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// This server's number, by which it holds what only one may do.
    pub fn id(&self) -> Id {
        self.0.id
    }

    pub(crate) fn access(&self) -> &Access {
        &self.0.access
    }

    /// How often a caller may ask. This machine's own may without end, unless somebody set a limit.
    pub(crate) fn rate(&self, has_token: bool) -> Option<&Rate> {
        (has_token || self.0.options.rate_limit.is_some()).then_some(&self.0.rate)
    }

    pub(crate) fn failed_rate(&self) -> &Rate {
        &self.0.failed_rate
    }

    /// The journal as it grows.
    pub(crate) fn feed(&self) -> &Feed {
        &self.0.feed
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// The workers that wait for work.
    pub(crate) fn waiting(&self) -> &Waiting {
        &self.0.waiting
    }

    pub(crate) fn is_alive(&self) -> bool {
        (self.0.alive)()
    }

    /// Becomes true when the server is to end: streams and long polls end with it.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.0.stopping.clone()
    }

    /// Looks at one consistent state of the store, beside the tasks that answer others.
    pub async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut dyn Backend) -> sprag_store::Result<T> + Send + 'static,
    ) -> Result<T, Problem> {
        self.blocking(move |app| Ok(app.store().read(look)?)).await
    }

    /// Does something that may wait for the disk.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&App) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let place = Arc::clone(&self.0.reads).acquire_owned().await;
        let place = place.map_err(|_| Problem::unavailable("the server ends"))?;
        let app = self.clone();
        // Whoever asked may go away: the place is free when the work is done, not before.
        tokio::task::spawn_blocking(move || {
            let done = work(&app);
            drop(place);
            done
        })
        .await
        .unwrap_or_else(|error| Err(internal(format!("the request's work is gone: {error}"))))
    }
}
