//! The server's metrics, for Prometheus.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use sprag_app::view::QueueView;
use sprag_app::{AccountView, JournalEntry, Observer};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Transition {
    entity: &'static str,
    event: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    method: String,
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Queue {
    queue: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Account {
    account: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    entity: &'static str,
    reason: &'static str,
}

/// The server's counters. Cloning it is cheap; all clones share the same counters.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    transitions: Family<Transition, Counter>,
    requests: Family<Asked, Counter>,
    latency: Family<Route, Histogram>,
    depth: Family<Queue, Gauge>,
    running: Family<Queue, Gauge>,
    oldest: Family<Queue, Gauge>,
    account_held: Family<Account, Gauge>,
    account_running: Family<Account, Gauge>,
    account_waiting: Family<Account, Gauge>,
    workers: Gauge,
    streams: Gauge,
    hooks_parked: Gauge,
    commit_size: Histogram,
    commit_time: Histogram,
    undone: Counter,
    refusals: Family<Reason, Counter>,
}

impl Metrics {
    /// Returns counters that are all zero.
    pub(crate) fn new() -> Self {
        let latency = || Histogram::new(exponential_buckets(0.0005, 2.0, 16));
        let inner = Inner {
            registry: Registry::with_prefix("sprag"),
            transitions: Family::default(),
            requests: Family::default(),
            latency: Family::new_with_constructor(latency),
            depth: Family::default(),
            running: Family::default(),
            oldest: Family::default(),
            account_held: Family::default(),
            account_running: Family::default(),
            account_waiting: Family::default(),
            workers: Gauge::default(),
            streams: Gauge::default(),
            hooks_parked: Gauge::default(),
            commit_size: Histogram::new(exponential_buckets(1.0, 2.0, 9)),
            commit_time: Histogram::new(exponential_buckets(0.0001, 2.0, 16)),
            undone: Counter::default(),
            refusals: Family::default(),
        };
        Metrics(Arc::new(inner.registered()))
    }

    /// Counts the transitions in these entries.
    pub(crate) fn transitions(&self, entries: &[JournalEntry]) {
        for JournalEntry { entity, event, .. } in entries {
            self.0.transitions.get_or_create(&Transition { entity, event }).inc();
        }
    }

    /// Counts a request and its answer.
    pub(crate) fn request(&self, method: &Method, route: &str, status: u16, took: Duration) {
        // An unknown method must not create a series of its own.
        let method = match method.as_str() {
            known @ ("GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "PATCH" | "OPTIONS") => known,
            _ => "other",
        };
        let asked = Asked { method: method.to_owned(), route: route.to_owned(), status };
        self.0.requests.get_or_create(&asked).inc();
        self.0.latency.get_or_create(&Route { route: route.to_owned() }).observe(took.as_secs_f64());
    }

    /// Counts a stream for as long as the guard lives.
    pub(crate) fn stream(&self) -> StreamGuard {
        self.0.streams.inc();
        StreamGuard(self.clone())
    }

    /// Returns everything in Prometheus' text format.
    pub(crate) fn text(&self, now: &Present) -> Result<String, std::fmt::Error> {
        let inner = &self.0;
        inner.depth.clear();
        inner.running.clear();
        inner.oldest.clear();
        for queue in &now.queues {
            let label = Queue { queue: queue.name.clone() };
            inner.depth.get_or_create(&label).set((queue.requested + queue.scheduled) as i64);
            inner.running.get_or_create(&label).set(queue.running as i64);
            inner.oldest.get_or_create(&label).set(queue.oldest_ms.unwrap_or(0) / 1000);
        }
        inner.account_held.clear();
        inner.account_running.clear();
        inner.account_waiting.clear();
        for account in &now.accounts {
            let label = Account { account: account.name.clone() };
            inner.account_held.get_or_create(&label).set(i64::from(account.status == "held"));
            inner.account_running.get_or_create(&label).set(account.running as i64);
            inner.account_waiting.get_or_create(&label).set(account.waiting as i64);
        }
        inner.workers.set(now.workers as i64);
        inner.hooks_parked.set(now.hooks_parked as i64);
        let mut text = String::new();
        prometheus_client::encoding::text::encode_registry(&mut text, &inner.registry)?;
        prometheus_client::encoding::text::encode_registry(&mut text, &of_worktrees())?;
        #[cfg(feature = "nats")]
        prometheus_client::encoding::text::encode_registry(&mut text, &of_bus())?;
        prometheus_client::encoding::text::encode_registry(&mut text, &of_bugs())?;
        prometheus_client::encoding::text::encode_eof(&mut text)?;
        Ok(text)
    }
}

/// Values that are read from the store when the metrics are requested.
pub(crate) struct Present {
    pub(crate) queues: Vec<QueueView>,
    pub(crate) accounts: Vec<AccountView>,
    pub(crate) workers: usize,
    pub(crate) hooks_parked: usize,
}

impl Observer for Metrics {
    fn committed(&self, operations: usize, took_us: u64) {
        self.0.commit_size.observe(operations as f64);
        self.0.commit_time.observe(took_us as f64 / 1e6);
    }

    fn refused(&self, entity: &'static str, reason: &'static str) {
        self.0.refusals.get_or_create(&Reason { entity, reason }).inc();
    }

    fn undone(&self) {
        self.0.undone.inc();
    }
}

/// Returns the present counts of this process's worktrees, which count by themselves.
fn of_worktrees() -> Registry {
    let mut registry = Registry::with_prefix("sprag");
    let mut total = |name: &str, help: &str, value: u64| {
        let counter: Counter = Counter::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    };
    let now = sprag_worktree::snapshot();
    total("repository_lock_waits", "Waits for repository locks", now.lock_wait.count);
    total(
        "repository_lock_wait_microseconds",
        "Time spent waiting for repository locks",
        now.lock_wait.total_us,
    );
    total("repository_lock_hold_microseconds", "Time repository locks were held", now.lock_hold.total_us);
    total("repository_lock_timeouts", "Waits for repository locks that timed out", now.lock_timeouts);
    total("worktrees_made", "Worktrees created or taken from the pool", now.creates);
    total("worktrees_from_pool", "Worktrees taken from the pool", now.pool_hits);
    total("worktrees_copied", "Worktrees copied from a concurrent checkout", now.copies);
    total("worktrees_not_made", "Worktree creations that failed and were rolled back", now.create_failures);
    total("worktrees_removed", "Worktrees removed", now.removes);
    total("worktree_cleanup_failures", "Failed deletions of worktree files", now.cleanup_failures);
    registry
}

/// Returns the count of bugs and other failures that no caller can mend, as this process has met them.
fn of_bugs() -> Registry {
    let mut registry = Registry::with_prefix("sprag");
    let counter: Counter = Counter::default();
    counter.inc_by(sprag_app::bugs());
    registry.register("bugs", "Bugs and failures that no caller can mend", counter);
    registry
}

/// Returns the counts of messages that this process has sent to a broker and received from it.
#[cfg(feature = "nats")]
fn of_bus() -> Registry {
    let mut registry = Registry::with_prefix("sprag_bus");
    let mut total = |name: &str, help: &str, value: u64| {
        let counter: Counter = Counter::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    };
    let now = sprag_app::bus::snapshot();
    total("published", "Messages confirmed by the broker", now.published);
    total("received", "Hand-offs received by message", now.received);
    total("stale", "Messages about outdated hand-offs", now.stale);
    total("passed_on", "Messages returned for another worker", now.passed_on);
    total("strange", "Messages that could not be parsed", now.strange);
    registry
}

impl Inner {
    fn registered(mut self) -> Self {
        let registry = &mut self.registry;
        registry.register("transitions", "Applied transitions, by all processes", self.transitions.clone());
        registry.register("http_requests", "Requests by route and status", self.requests.clone());
        registry.register("http_request_seconds", "Time until the answer starts", self.latency.clone());
        registry.register("queue_depth", "Executions that wait in a queue", self.depth.clone());
        registry.register("leases_held", "Executions that a worker has", self.running.clone());
        registry.register(
            "queue_oldest_seconds",
            "Waiting time of the oldest execution",
            self.oldest.clone(),
        );
        registry.register("account_held", "1 if an account of agents is held", self.account_held.clone());
        registry.register("account_running", "Steps that use an account", self.account_running.clone());
        registry.register("account_waiting", "Steps that wait for an account", self.account_waiting.clone());
        registry.register("workers", "Live workers", self.workers.clone());
        registry.register("streams_open", "Readers of live events and logs", self.streams.clone());
        registry.register("hooks_parked", "Parked webhooks", self.hooks_parked.clone());
        registry.register("commit_operations", "Operations per commit", self.commit_size.clone());
        registry.register("commit_seconds", "Duration of a commit", self.commit_time.clone());
        registry.register("commits_undone", "Transactions that were rolled back", self.undone.clone());
        registry.register("refusals", "Events of this process that were refused", self.refusals.clone());
        self
    }
}

/// A guard that counts a stream while it lives.
pub(crate) struct StreamGuard(Metrics);

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.0.streams.dec();
    }
}
