//! The executor: what happens before hand-off, and who acts when nothing happens.
//!
//! ```text
//!   commits ──wake──▶ Executor ──sweep──▶ timers due      → hand over
//!   deadlines ───────▶    │               leases lapsed   → abandon
//!                         │               owners dead     → abandon, give their runs to anyone
//!                         │               nobody came     → take back, hand over again
//!                         │               places free     → hand over, start queued runs
//!                         └──relay───────▶ outbox          → effects, each on its own
//! ```
//!
//! Any number of executors may run at once, in any number of processes: whatever they do is decided by
//! the store's compare-and-set, and the one who comes second finds nothing left to do. An executor never
//! writes to an execution that a worker has received.

mod effects;
mod sweep;

use std::sync::Arc;
use std::time::Duration;

use sprag_lifecycle::RunId;
use sprag_store::{Result, RunRow, Store, Table, Topic};
use tokio::sync::watch;

pub use effects::{Effect, EffectFuture};
pub use sweep::Swept;

/// Whether a worker's process still lives, as far as can be seen from here.
pub trait Hosts: Send + Sync + 'static {
    /// Whether the process in this text is gone for sure: on this host, and not alive.
    fn is_gone(&self, process: &str) -> bool;
}

/// How an executor behaves.
#[derive(Debug, Clone)]
pub struct Config {
    /// Looks after this run alone; none means all.
    pub only: Option<RunId>,
    /// How long nothing may happen before it looks by itself.
    pub sweep_interval: Duration,
    /// How long an execution may lie in a queue before it is handed over again, and before the host that it waits
    /// for is given up, if nobody works there and the run may go on elsewhere.
    pub dispatch_deadline: Duration,
    /// How long an execution may wait for a queue that no worker serves before its step fails.
    pub unserved_bound: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            only: None,
            sweep_interval: Duration::from_secs(5),
            dispatch_deadline: Duration::from_secs(300),
            unserved_bound: Duration::from_secs(24 * 3600),
        }
    }
}

/// See the crate's documentation.
pub struct Executor {
    pub(crate) store: Store,
    pub(crate) config: Config,
    pub(crate) hosts: Arc<dyn Hosts>,
    pub(crate) effects: Vec<Arc<dyn Effect>>,
}

/// However busy the store is, an executor looks no more often than this.
const SHORTEST_REST: Duration = Duration::from_millis(20);

/// How long to leave alone what is due and was not dealt with.
const NOT_OURS: Duration = Duration::from_secs(1);

impl Executor {
    /// An executor on this store.
    pub fn new(store: Store, config: Config, hosts: Arc<dyn Hosts>) -> Self {
        Executor { store, config, hosts, effects: Vec::new() }
    }

    /// Carries out an effect after each run's end.
    pub fn with_effect(mut self, effect: Arc<dyn Effect>) -> Self {
        self.effects.push(effect);
        self
    }

    /// Sets right what a crash may have left half done, then sweeps until told to stop.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let topic = self.config.only.map_or(Topic::Journal, Topic::Run);
        let wake = self.store.subscribe(vec![topic]);
        if let Err(error) = self.reconcile().await {
            tracing::warn!(%error, "reconciling at start");
        }
        while !*stop.borrow() {
            let rest = match self.sweep().await {
                Ok(_) => self.rest(),
                Err(error) => {
                    tracing::warn!(%error, "sweep");
                    self.config.sweep_interval
                }
            };
            tokio::select! {
                biased;
                _ = stop.changed() => {}
                () = wake.wait(rest) => {}
            }
            // A storm of commits is one reason to look, not a thousand.
            let stopped = stop.wait_for(|stop| *stop);
            self.store.surroundings().within(SHORTEST_REST, stopped).await;
        }
        // What the last run left to be done after its end.
        if let Err(error) = self.relay().await {
            tracing::warn!(%error, "effects at the end");
        }
    }

    /// How long there is nothing to do, unless somebody rings.
    fn rest(&self) -> Duration {
        let now_ms = self.store.now().steady_ms;
        match self.store.read(|db| db.next_due()) {
            Ok(Some(due_ms)) if due_ms > now_ms => {
                let left = u64::try_from(due_ms - now_ms).unwrap_or(0);
                Duration::from_millis(left).clamp(SHORTEST_REST, self.config.sweep_interval)
            }
            // Due, and still there after a sweep: somebody else's, or more than one sweep takes on.
            Ok(Some(_)) => NOT_OURS.min(self.config.sweep_interval),
            _ => self.config.sweep_interval,
        }
    }

    /// Walks over every live run in full, once.
    async fn reconcile(&self) -> Result<()> {
        /// Runs that are read at once.
        const PAGE: usize = 100;
        if let Some(run) = self.config.only {
            return self.store.executor().heal_run(run).await;
        }
        let mut after = None;
        loop {
            let page = self.store.read(|db| db.live_runs(after, PAGE))?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(*last);
            for run in page {
                // One unreadable run must not keep the others from being healed.
                if let Err(error) = self.store.executor().heal_run(run).await {
                    tracing::warn!(%run, %error, "cannot heal");
                }
            }
        }
    }

    /// How much one sweep takes on: of everybody's a bounded part, of one run's all.
    pub(crate) fn batch(&self, of_all: usize) -> usize {
        if self.config.only.is_some() { 1_000_000 } else { of_all }
    }

    /// Whether a run is one that this executor looks after: any, or the one, with all that are its work.
    fn cares_for(&self, run: RunId) -> bool {
        self.config.only.is_none_or(|only| {
            only == run
                || self
                    .store
                    .read(|db| Table::<RunRow>::load(db, run))
                    .is_ok_and(|row| row.is_some_and(|row| row.root == only))
        })
    }
}
