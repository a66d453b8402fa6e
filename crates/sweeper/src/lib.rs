//! The executor: the work before handoff, and the reactions to timers, lapsed leases and dead processes.
//!
//! ```text
//!   commits ──wake──▶ Executor ──sweep──▶ timers due      → hand over
//!   deadlines ───────▶    │               leases lapsed   → abandon
//!                         │               owners dead     → abandon, give their runs to any worker
//!                         │               holders dead    → end them, if one of its runs waits for their place
//!                         │               not claimed     → take back, hand over again
//!                         │               places free     → hand over, start queued runs
//!                         │               rules due       → start their runs
//!                         └──relay───────▶ outbox          → effects, each on its own
//! ```
//!
//! Any number of executors may run at once, in any number of processes. The store's compare-and-set decides each of
//! their actions, and the second executor finds nothing left to do. An executor never writes to an execution that a
//! worker has received.

mod effects;
mod holders;
mod sweep;
mod triggers;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sprag_lifecycle::RunId;
use sprag_store::{Error, Id, Result, Store, Topic};
use tokio::sync::watch;

pub use effects::{Effect, EffectFuture};
pub use sweep::Swept;
pub use triggers::Triggers;

/// Knowledge about the processes of workers, as far as this process can see them.
pub trait Hosts: Send + Sync + 'static {
    /// Returns whether the process in this text is certainly gone: it was on this host, and is not alive.
    fn is_gone(&self, process: &str) -> bool;
}

/// The settings of an executor.
#[derive(Debug, Clone)]
pub struct Config {
    /// The only run that the executor serves; none means all runs.
    pub only: Option<RunId>,
    /// The worker of the same process, if it executes that run alone. The executor reserves the clean-up of a dead run
    /// that is in its way to this worker.
    pub worker: Option<Id>,
    /// The longest time without a wake-up before the executor sweeps by itself.
    pub sweep_interval: Duration,
    /// The longest time that an execution may wait in a queue before the executor hands it over again. After the same
    /// time the executor gives up the host that the execution waits for, if no worker is left there and the run may
    /// continue on another host.
    pub dispatch_deadline: Duration,
    /// The longest time that an execution may wait for a queue that no worker serves before its step fails.
    pub unserved_bound: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            only: None,
            worker: None,
            sweep_interval: Duration::from_secs(5),
            dispatch_deadline: Duration::from_secs(300),
            unserved_bound: Duration::from_secs(24 * 3600),
        }
    }
}

/// The executor; see the crate's documentation.
pub struct Executor {
    pub(crate) store: Store,
    pub(crate) config: Config,
    pub(crate) hosts: Arc<dyn Hosts>,
    pub(crate) effects: Vec<Arc<dyn Effect>>,
    pub(crate) triggers: Option<Arc<dyn Triggers>>,
    /// Runs that it serves beside its own, to end them because they hold a place that its run waits for.
    pub(crate) adopted: Mutex<BTreeSet<RunId>>,
}

/// The shortest pause between two sweeps, however busy the store is.
const SHORTEST_REST: Duration = Duration::from_millis(20);

/// The pause before the executor looks again at an item that is due and that a sweep did not handle.
const NOT_OURS: Duration = Duration::from_secs(1);

impl Executor {
    /// Returns an executor on this store.
    pub fn new(store: Store, config: Config, hosts: Arc<dyn Hosts>) -> Self {
        Executor { store, config, hosts, effects: Vec::new(), triggers: None, adopted: Mutex::default() }
    }

    /// Adds an effect to carry out after each run's end.
    pub fn with_effect(mut self, effect: Arc<dyn Effect>) -> Self {
        self.effects.push(effect);
        self
    }

    /// Fires the rules of the store in each sweep.
    pub fn with_triggers(mut self, triggers: Arc<dyn Triggers>) -> Self {
        self.triggers = Some(triggers);
        self
    }

    /// Repairs what a crash may have left half done, then sweeps until told to stop.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let topic = self.config.only.map_or(Topic::Journal, Topic::Run);
        let wake = self.store.subscribe(vec![topic]);
        if let Err(error) = self.reconcile().await {
            tracing::warn!(%error, "reconciling at start failed");
        }
        while !*stop.borrow() {
            let rest = match self.sweep().await {
                Ok(_) => self.rest(),
                Err(error @ Error::Newer { .. }) => {
                    tracing::error!(%error, "this program is too old for the store: stopping");
                    return;
                }
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
            // Many commits in a short time cause one sweep.
            let stopped = stop.wait_for(|stop| *stop);
            self.store.runtime().within(SHORTEST_REST, stopped).await;
        }
        // Carries out the effects of the last run's end.
        if let Err(error) = self.relay().await {
            tracing::warn!(%error, "running effects at shutdown failed");
        }
    }

    /// Returns the time until the next sweep, unless a commit wakes the executor earlier.
    fn rest(&self) -> Duration {
        let now_ms = self.store.now().steady_ms;
        if self.is_held_up() {
            // A holder that dies sends no notification.
            return NOT_OURS.min(self.config.sweep_interval);
        }
        let triggers = self.triggers.as_ref().and_then(|triggers| triggers.next_due().ok().flatten());
        let next_due = self.store.queries().next_due();
        match next_due.map(|due_ms| [due_ms, triggers].into_iter().flatten().min()) {
            Ok(Some(due_ms)) if due_ms > now_ms => {
                let left = u64::try_from(due_ms - now_ms).unwrap_or(0);
                Duration::from_millis(left).clamp(SHORTEST_REST, self.config.sweep_interval)
            }
            // Due, and still there after a sweep: it belongs to another process, or it exceeds the batch of one sweep.
            Ok(Some(_)) => NOT_OURS.min(self.config.sweep_interval),
            _ => self.config.sweep_interval,
        }
    }

    /// Heals every live run, once.
    async fn reconcile(&self) -> Result<()> {
        /// The number of runs in one read.
        const PAGE: usize = 100;
        if let Some(run) = self.config.only {
            return self.store.executor().heal_run(run).await;
        }
        let mut after = None;
        loop {
            let page = self.store.queries().live_runs(after, PAGE)?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(*last);
            for run in page {
                // One unreadable run must not keep the others from being healed.
                if let Err(error) = self.store.executor().heal_run(run).await {
                    tracing::warn!(%run, %error, "healing a run failed");
                }
            }
        }
    }

    /// Returns the number of items that one sweep handles: at most `of_all`, or all items if the executor serves one
    /// run.
    pub(crate) fn batch(&self, of_all: usize) -> usize {
        if self.config.only.is_some() { 1_000_000 } else { of_all }
    }

    /// Returns whether this executor serves a run: any run, or its own one and the adopted ones, with all their child
    /// runs.
    fn cares_for(&self, run: RunId) -> bool {
        let Some(only) = self.config.only else { return true };
        let mut above = Some(run);
        while let Some(run) = above {
            if run == only || self.adopted().contains(&run) {
                return true;
            }
            let row = self.store.queries().run(run).ok().flatten();
            above = row.and_then(|row| row.parent).map(|(parent, _)| parent);
        }
        false
    }
}
