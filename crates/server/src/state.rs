//! The state that every endpoint can reach.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sprag_app::{CheckoutLooks, Files, Id};
use sprag_tls::{Certificate, Connector};
use tokio::sync::watch;

use crate::access::{Access, Caller};
use crate::bodies::Bodies;
use crate::feed::Feed;
use crate::metrics::Metrics;
use crate::permits::Permits;
use crate::problem::Problem;
use crate::rate::Rate;

/// Whether a token is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// Every request has to show a token.
    Token,
    /// No request has to show a token. Every user of this machine may do everything.
    None,
}

/// The settings of a server.
#[derive(Debug, Clone)]
pub struct Options {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The certificate for https; none for plain HTTP.
    pub certificate: Option<Certificate>,
    /// The connections of webhooks, with the authorities that they trust.
    pub outgoing: Connector,
    /// A further address, which takes signed requests for rules and answers nothing else.
    pub in_listen: Option<SocketAddr>,
    /// Whether a token is needed.
    pub auth: Auth,
    /// Host names by which clients may call the server, beside its own.
    pub allow_hosts: Vec<String>,
    /// The folder whose pipelines can be named, and where runs work.
    pub project: Option<PathBuf>,
    /// The most bytes of a request's body.
    pub body_limit: usize,
    /// The most connections at once.
    pub connections: usize,
    /// The most requests a second of each token. If none: a thousand, and no limit for the server's own user.
    pub rate_limit: Option<u32>,
    /// The longest time until a request is answered, long polls included.
    pub request_timeout: Duration,
    /// The longest time that a client may take to send its headers, to send anything at all, or to read its answer.
    pub idle_timeout: Duration,
    /// The number of failed tries in a row after which a hook is parked.
    pub hook_tries: u32,
    /// Whether hooks may be sent to addresses of private networks.
    pub private_hooks: bool,
    /// The program that supervises the commands of hooks: one that calls `sprag_process::run_if_supervisor`. Without
    /// it, hooks with a command fail.
    pub program: Option<PathBuf>,
    /// The interval at which a silent stream shows that it is alive.
    pub heartbeat: Duration,
    /// Whether this process has a worker too. Then runs may begin in folders of this machine, and the caller that
    /// starts one is told of uncommitted changes there. A server without a worker never runs git for a caller.
    pub has_worker: bool,
}

impl Options {
    /// Returns the default settings, at this address.
    pub fn new(listen: SocketAddr) -> Self {
        Options {
            listen,
            certificate: None,
            outgoing: Connector::new(None),
            in_listen: None,
            auth: Auth::Token,
            allow_hosts: Vec::new(),
            project: None,
            body_limit: 2 << 20,
            connections: 4096,
            rate_limit: None,
            request_timeout: Duration::from_secs(75),
            idle_timeout: Duration::from_secs(30),
            hook_tries: 12,
            private_hooks: false,
            program: None,
            heartbeat: Duration::from_secs(15),
            has_worker: false,
        }
    }

    /// Returns the reason why a server must not be started with these settings: without tokens it may serve this
    /// machine alone.
    pub(crate) fn contradiction(&self) -> Option<&'static str> {
        match self.auth {
            Auth::Token => None,
            Auth::None if !self.listen.ip().is_loopback() => {
                Some("other machines can reach the server, so callers need a token")
            }
            Auth::None if !self.allow_hosts.is_empty() => {
                Some("--allow-host lets a proxy call the server, so callers need a token")
            }
            Auth::None => None,
        }
    }
}

/// A function that tells whether the executor and the worker of this process are still running.
pub(crate) type Alive = Box<dyn Fn() -> bool + Send + Sync>;

/// The parts of the server's process that endpoints use.
pub(crate) struct Surroundings {
    /// The journal as it grows.
    pub(crate) feed: Feed,
    /// The server's counters.
    pub(crate) metrics: Metrics,
    /// Tells whether the executor and the worker are still running.
    pub(crate) alive: Alive,
    /// Becomes true when the server is stopping.
    pub(crate) stopping: watch::Receiver<bool>,
}

/// The state that every endpoint can reach. Cloning it is cheap.
#[derive(Clone)]
pub struct ServerState(Arc<Inner>);

struct Inner {
    core: sprag_app::App,
    dir: PathBuf,
    options: Options,
    access: Access,
    rate: Rate,
    failed_rate: Rate,
    sender_rate: Rate,
    open: Arc<Permits<Id>>,
    bodies: Arc<Bodies>,
    feed: Feed,
    metrics: Metrics,
    alive: Alive,
    stopping: watch::Receiver<bool>,
    checkouts: CheckoutLooks,
    id: Id,
}

impl ServerState {
    pub(crate) fn new(
        core: sprag_app::App,
        options: Options,
        local_token: Option<&str>,
        surroundings: Surroundings,
    ) -> ServerState {
        let Surroundings { feed, metrics, alive, stopping } = surroundings;
        /// Several times what a busy worker needs.
        const USUAL_PER_SECOND: u32 = 1_000;
        /// The most failed attempts a second: enough to slow down guessing a token.
        const FAILED_PER_SECOND: u32 = 10;
        /// Several times what one worker needs.
        const LEAST_OPEN: usize = 64;
        let dir = options
            .project
            .clone()
            .or_else(|| std::env::current_dir().ok())
            .unwrap_or_else(|| core.data().into());
        ServerState(Arc::new(Inner {
            id: core.new_id(),
            access: Access::new(options.auth == Auth::Token, local_token),
            rate: Rate::new(options.rate_limit.unwrap_or(USUAL_PER_SECOND)),
            failed_rate: Rate::new(FAILED_PER_SECOND),
            sender_rate: Rate::new(options.rate_limit.unwrap_or(USUAL_PER_SECOND)),
            open: Permits::new((options.connections / 2).max(LEAST_OPEN)),
            bodies: Arc::default(),
            dir,
            core,
            checkouts: CheckoutLooks::new(options.has_worker),
            options,
            feed,
            metrics,
            alive,
            stopping,
        }))
    }

    /// Returns the application that every endpoint calls.
    pub fn core(&self) -> &sprag_app::App {
        &self.0.core
    }

    /// Returns the layout of logs and artifacts.
    pub fn files(&self) -> &Files {
        self.0.core.files()
    }

    /// Returns the data directory.
    pub fn data(&self) -> &Path {
        self.0.core.data()
    }

    /// Returns the folder in which runs work that name no other.
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// Returns the server's settings.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// Returns this server's number, under which it takes leases that only one server may hold.
    pub fn id(&self) -> Id {
        self.0.id
    }

    pub(crate) fn access(&self) -> &Access {
        &self.0.access
    }

    /// Returns the rate limit for a caller. The server's own user has none, unless a limit was set.
    pub(crate) fn rate(&self, caller: &Caller) -> Option<&Rate> {
        (!caller.is_own() || self.0.options.rate_limit.is_some()).then_some(&self.0.rate)
    }

    pub(crate) fn failed_rate(&self) -> &Rate {
        &self.0.failed_rate
    }

    /// Returns the rate limit for the senders of signed requests, by their addresses.
    pub(crate) fn sender_rate(&self) -> &Rate {
        &self.0.sender_rate
    }

    /// Returns the requests and streams that each token has open.
    pub(crate) fn open(&self) -> &Arc<Permits<Id>> {
        &self.0.open
    }

    /// Returns the count of bodies that are being read.
    pub(crate) fn bodies(&self) -> &Arc<Bodies> {
        &self.0.bodies
    }

    /// Returns the journal's feed.
    pub(crate) fn feed(&self) -> &Feed {
        &self.0.feed
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(crate) fn is_alive(&self) -> bool {
        (self.0.alive)()
    }

    /// Returns a signal that becomes true when the server is stopping: streams and long polls end with it.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.0.stopping.clone()
    }

    /// Returns the search for uncommitted changes where runs are started.
    pub(crate) fn checkouts(&self) -> &CheckoutLooks {
        &self.0.checkouts
    }

    /// Runs a function that may wait for the disk, without blocking the tasks that answer other requests.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ServerState) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let state = self.clone();
        self.core().blocking(move |_| work(&state)).await
    }
}
