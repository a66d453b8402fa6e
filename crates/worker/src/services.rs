//! Services: processes beside the steps of a run.
//!
//! ```text
//!   a service ─▶ Services::enlist ─▶ starting ──(its test passes)──▶ ready ──(asked to stop)──▶ gone
//!   a step ────▶ Services::join ─────── waits until all that it uses are ready ── runs ──▶ leaves
//! ```
//!
//! A service is an execution like any other: it has a lease, a supervisor that ends its whole process tree, a log and
//! attempts. The store gives all services of a run, and the steps that use them, to one worker; so this registry of one
//! process knows all of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sprag_lifecycle::{ExecutionId, RunId, StepNo};
use sprag_store::{Ending, Lease, UsedServices};
use sprag_worktree::Ports;
use tokio::sync::watch;

use crate::control::{Control, Signal, pause};
use crate::slots::Ended;

/// The time that a service, which this worker has claimed, may take to appear in the registry.
const APPEARS_WITHIN: Duration = Duration::from_secs(10);

/// The services of this process, by their runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Services(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    runs: Mutex<BTreeMap<RunId, RunServices>>,
    /// Changes whenever a service appears, becomes ready or is gone, and when a step leaves.
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct RunServices {
    services: BTreeMap<StepNo, Entry>,
    /// The number of steps that use them.
    users: usize,
    /// The variables with the reserved ports.
    env: BTreeMap<String, String>,
    /// The data directory with the leases of the ports.
    data: PathBuf,
}

/// A service of a run. An attempt that was lost may end after its successor has started, so each knows its own lease.
#[derive(Debug, Clone, Copy)]
struct Entry {
    lease: Lease,
    is_ready: bool,
}

/// A service in the registry. It leaves the registry when this is dropped.
pub(crate) struct Enlisted {
    services: Services,
    lease: Lease,
}

/// A step that uses services. It leaves them when this is dropped.
#[derive(Debug)]
pub(crate) struct Using {
    services: Services,
    run: RunId,
    /// The variables with the reserved ports.
    pub(crate) env: BTreeMap<String, String>,
}

/// The state of the services that a step waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Joint {
    /// All of them are ready.
    Ready,
    /// Some are starting.
    Starting,
    /// Some are not in the registry.
    Missing,
}

impl Services {
    fn runs(&self) -> MutexGuard<'_, BTreeMap<RunId, RunServices>> {
        self.0.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self) {
        self.0.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Enters a service that starts into the registry.
    pub(crate) fn enlist(&self, lease: Lease) -> Enlisted {
        let ExecutionId { run, step, .. } = lease.execution;
        self.runs().entry(run).or_default().services.insert(step, Entry { lease, is_ready: false });
        self.announce();
        Enlisted { services: self.clone(), lease }
    }

    fn joint(&self, used: &UsedServices) -> Joint {
        let runs = self.runs();
        let of_run = runs.get(&used.run);
        let states: Vec<Option<bool>> = used
            .steps
            .iter()
            .map(|step| of_run.and_then(|of_run| of_run.services.get(step)).map(|entry| entry.is_ready))
            .collect();
        if states.contains(&None) {
            Joint::Missing
        } else if states.contains(&Some(false)) {
            Joint::Starting
        } else {
            Joint::Ready
        }
    }

    /// Waits until all services that a step uses are ready. A step whose service ends first, or whose worker is draining,
    /// returns to its queue. `on_wait` is called once if the step has to wait.
    pub(crate) async fn join(
        &self,
        used: &UsedServices,
        control: &Control,
        on_wait: impl FnOnce(),
    ) -> Result<Using, Ended> {
        let mut changed = self.0.changed.subscribe();
        let mut on_wait = Some(on_wait);
        let mut control = control.clone();
        let mut appeared = false;
        let mut too_late = std::pin::pin!(pause(APPEARS_WITHIN));
        loop {
            changed.mark_unchanged();
            match self.joint(used) {
                Joint::Ready => {
                    let mut runs = self.runs();
                    let of_run = runs.entry(used.run).or_default();
                    of_run.users += 1;
                    return Ok(Using { services: self.clone(), run: used.run, env: of_run.env.clone() });
                }
                Joint::Starting => appeared = true,
                // It was there: it has ended, and its next attempt comes to this worker or to another one.
                Joint::Missing if appeared => return Err(Ended::Returned),
                Joint::Missing => {}
            }
            if let Some(on_wait) = on_wait.take() {
                on_wait();
            }
            let mut stopping = control.clone();
            tokio::select! {
                _ = changed.changed() => {}
                signal = control.next() => match signal {
                    Signal::Renewed { .. } => {}
                    Signal::Cancel => return Err(Ended::Report(Ending::Cancelled)),
                    Signal::Lost => return Err(Ended::Lost),
                },
                () = stopping.draining() => return Err(Ended::Returned),
                () = &mut too_late, if !appeared => return Err(Ended::Returned),
            }
        }
    }

    /// Waits until no step of this process uses the services of a run.
    pub(crate) async fn unused(&self, run: RunId) {
        let mut changed = self.0.changed.subscribe();
        while self.runs().get(&run).is_some_and(|of_run| of_run.users > 0) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Enlisted {
    /// Reserves the ports of the run's services, and returns them as variables.
    pub(crate) async fn reserve(
        &self,
        ports: Vec<String>,
        data: &Path,
    ) -> Result<BTreeMap<String, String>, String> {
        if ports.is_empty() {
            return Ok(BTreeMap::new());
        }
        let run = self.lease.execution.run;
        let env = lease(run, ports, data.to_owned()).await?;
        if let Some(of_run) = self.services.runs().get_mut(&run) {
            of_run.env.clone_from(&env);
            of_run.data = data.to_owned();
        }
        Ok(env)
    }

    /// Lets the steps that use the service start.
    pub(crate) fn is_ready(&self) {
        let ExecutionId { run, step, .. } = self.lease.execution;
        if let Some(entry) =
            self.services.runs().get_mut(&run).and_then(|of_run| of_run.services.get_mut(&step))
            && entry.lease == self.lease
        {
            entry.is_ready = true;
        }
        self.services.announce();
    }
}

impl Services {
    /// Changes the entry of a run. The last service or step to leave frees the ports: a step may still use them after
    /// its services are gone.
    fn leave(&self, run: RunId, change: impl FnOnce(&mut RunServices)) {
        let gone = {
            let mut runs = self.runs();
            let Some(of_run) = runs.get_mut(&run) else { return };
            change(of_run);
            let is_over = of_run.services.is_empty() && of_run.users == 0;
            if is_over { runs.remove(&run) } else { None }
        };
        if let Some(gone) = gone.filter(|gone| !gone.env.is_empty()) {
            self.release(run, gone.data);
        }
        self.announce();
    }
}

impl Drop for Enlisted {
    fn drop(&mut self) {
        let ExecutionId { run, step, .. } = self.lease.execution;
        self.services.leave(run, |of_run| {
            if of_run.services.get(&step).is_some_and(|entry| entry.lease == self.lease) {
                of_run.services.remove(&step);
            }
        });
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        self.services.leave(self.run, |of_run| of_run.users = of_run.users.saturating_sub(1));
    }
}

/// Returns the name under which the ports of a run's services are leased. The run's environment has leases of its own,
/// which end with it.
fn holder(run: RunId) -> String {
    format!("{run}-services")
}

/// Reserves ports, and returns them as variables.
async fn lease(run: RunId, ports: Vec<String>, data: PathBuf) -> Result<BTreeMap<String, String>, String> {
    let leased = tokio::task::spawn_blocking(move || {
        Ports::open(&data).and_then(|leases| leases.lease(&holder(run), &ports))
    });
    let leased = leased.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    Ok(leased
        .into_iter()
        .map(|(name, port)| (format!("SPRAG_PORT_{}", name.to_uppercase()), port.to_string()))
        .collect())
}

impl Services {
    /// Frees the ports of a run on a thread of its own, because the file with the leases has a lock. A service that has
    /// started again meanwhile keeps them.
    fn release(&self, run: RunId, data: PathBuf) {
        let services = self.clone();
        let release = move || {
            let is_wanted = || services.runs().contains_key(&run);
            let freed = Ports::open(&data).and_then(|leases| leases.release_own(&holder(run), is_wanted));
            if let Err(error) = freed {
                tracing::warn!(%run, %error, "freeing the ports of services failed");
            }
        };
        // Without a runtime the process ends: the next lease removes those of dead processes.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn_blocking(release));
        }
    }
}
