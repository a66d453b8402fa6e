//! Simulated directories: created, incomplete, lost, removed. The store's rows of environments are compared with the
//! real state.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sprag_lifecycle::{EnvironmentEvent, EnvironmentStatus, RunId};
use sprag_store::{EnvironmentReport, EnvironmentRequest, EnvironmentRow, Id, Provide, Row, Sighting, Store};

use super::world::World;
use crate::check::Violation;
use crate::graphs::Chance;

/// A directory on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Directory {
    /// A program is creating it, or died while doing so.
    Incomplete,
    /// It is complete.
    Complete,
    /// A program is removing it, or died while doing so.
    Removing,
}

/// All directories by host and path.
#[derive(Debug, Default)]
pub struct Workspace {
    pub directories: BTreeMap<(usize, Arc<str>), Directory>,
}

/// A program that manages environments on its host.
#[derive(Clone)]
pub struct Keeper {
    pub world: Arc<World>,
    pub store: Store,
    pub worker: Id,
    pub host: usize,
    /// Runs whose directory this program is working on, one operation at a time.
    pub at: Arc<Mutex<BTreeMap<RunId, Arc<tokio::sync::Mutex<()>>>>>,
}

/// The longest wait for an environment that another program works on.
const LONGEST_WAIT_MS: i64 = 120_000;

impl Keeper {
    fn directory(&self, path: &Arc<str>) -> Option<Directory> {
        self.world.state().workspace.directories.get(&(self.host, Arc::clone(path))).copied()
    }

    fn set(&self, path: &Arc<str>, directory: Option<Directory>) {
        let key = (self.host, Arc::clone(path));
        let mut state = self.world.state();
        match directory {
            Some(directory) => state.workspace.directories.insert(key, directory),
            None => state.workspace.directories.remove(&key),
        };
    }

    async fn pause(&self, ms: u64) {
        self.world.pause(Duration::from_millis(ms)).await;
    }

    fn find(&self, run: RunId) -> sprag_store::Result<Option<EnvironmentRow>> {
        let rows = self.store.queries().environments_of(run)?;
        Ok(rows.into_iter().find(|row| row.scope.is_none()))
    }

    /// Returns the directory of a run, and creates it if necessary. The error says why there is none.
    pub async fn enter(&self, run: RunId, chance: &mut Chance) -> Result<Arc<str>, String> {
        let told = |error: sprag_store::Error| error.to_string();
        let give_up_ms = self.world.now_ms() + LONGEST_WAIT_MS;
        let alone = {
            let mut all = self.at.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(run).or_default())
        };
        let _alone = alone.lock().await;
        loop {
            let known = self.find(run).map_err(told)?;
            let seen = known.map(|row| Sighting {
                version: row.version(),
                is_present: self.directory(&row.path) == Some(Directory::Complete),
            });
            let wanted = EnvironmentRequest {
                id: self.store.new_id(),
                run,
                scope: None,
                host: format!("host-{}", self.host).into(),
                worker: self.worker,
                managed: true,
                path: format!("/work/{run}").into(),
                details: "{}".into(),
            };
            match self.store.claims().provide_environment(wanted, seen).await.map_err(told)? {
                Provide::Ready(row) => return Ok(row.path),
                Provide::Make(row) => return self.make(row, chance).await,
                Provide::Busy(_) if self.world.now_ms() >= give_up_ms => {
                    return Err("its environment is not available".into());
                }
                Provide::Busy(_) => self.pause(1_000).await,
            }
        }
    }

    async fn make(&self, row: EnvironmentRow, chance: &mut Chance) -> Result<Arc<str>, String> {
        if self.directory(&row.path).is_some() {
            let seen = format!("{} is there already", row.path);
            self.world.violate(Violation { invariant: "I24 a leftover is not used again", seen });
        }
        self.set(&row.path, Some(Directory::Incomplete));
        self.pause(10 + chance.below(3_000) as u64).await;
        let fails = chance.one_in(12);
        if !fails && self.directory(&row.path) == Some(Directory::Incomplete) {
            self.set(&row.path, Some(Directory::Complete));
        }
        let event =
            if fails { EnvironmentEvent::ProvisionFailed } else { EnvironmentEvent::ProvisionSucceeded };
        let given = EnvironmentReport { attempt: row.provision_attempt, ..EnvironmentReport::default() };
        let outcome = self.store.claims().environment(row.id, event, given, None).await;
        let is_applied = outcome.map_err(|error| error.to_string())?.is_applied();
        if fails {
            Err("it could not be created".into())
        } else if is_applied {
            Ok(row.path)
        } else {
            Err("another program has created it meanwhile".into())
        }
    }

    /// Removes environments that no run on this host needs, and reports failures on behalf of dead programs.
    pub async fn sweep(&self, chance: &mut Chance) -> sprag_store::Result<()> {
        for row in self.store.queries().environments(false)? {
            if row.status() == EnvironmentStatus::Provisioning && self.is_gone(row.owner)? {
                let given =
                    EnvironmentReport { attempt: row.provision_attempt, ..EnvironmentReport::default() };
                let event = EnvironmentEvent::ProvisionFailed;
                let _ = self.store.reaper().environment(row.id, event, given).await?;
            }
            let over = match row.run {
                Some(run) => {
                    let run = self.store.queries().run(run)?;
                    run.is_none_or(|run| run.status().is_terminal())
                }
                None => true,
            };
            if over && *row.host == *format!("host-{}", self.host) {
                self.remove(&row, chance).await?;
            }
        }
        Ok(())
    }

    /// Removes the environment of a finished run.
    pub async fn run_ended(&self, run: RunId, chance: &mut Chance) -> sprag_store::Result<()> {
        let here: Arc<str> = format!("host-{}", self.host).into();
        for row in self.store.queries().environments_of(run)? {
            if row.host == here && row.status() != EnvironmentStatus::Destroyed {
                self.remove(&row, chance).await?;
            }
        }
        Ok(())
    }

    fn is_gone(&self, worker: Option<Id>) -> sprag_store::Result<bool> {
        let Some(worker) = worker else { return Ok(true) };
        let row = self.store.queries().worker(worker)?;
        Ok(row.is_none_or(|row| row.status() == sprag_lifecycle::WorkerStatus::Offline))
    }

    async fn remove(&self, row: &EnvironmentRow, chance: &mut Chance) -> sprag_store::Result<()> {
        let present = self.directory(&row.path).is_some() || row.status() == EnvironmentStatus::Error;
        let attempt = self.store.claims().dispatch_destroy(row.id, self.worker, present).await?;
        let Some(attempt) = attempt else { return Ok(()) };
        let busy = self.is_worked_in(&row.path);
        if !busy {
            self.set(&row.path, Some(Directory::Removing));
            self.pause(5 + chance.below(2_000) as u64).await;
        }
        if self.is_worked_in(&row.path) && !busy {
            let seen = format!("somebody works in {} while it is removed", row.path);
            self.world.violate(Violation { invariant: "I23 a worktree goes after its execution", seen });
        }
        let fails = busy || chance.one_in(10);
        let event = if fails {
            EnvironmentEvent::DestroyFailed
        } else {
            self.set(&row.path, None);
            EnvironmentEvent::DestroySucceeded
        };
        let given = EnvironmentReport { attempt, ..EnvironmentReport::default() };
        let _ = self.store.claims().environment(row.id, event, given, None).await?;
        Ok(())
    }

    fn is_worked_in(&self, path: &Arc<str>) -> bool {
        let state = self.world.state();
        let mut alive =
            state.record.processes.iter().filter(|process| process.alive && process.host == self.host);
        alive.any(|process| process.directory.as_ref() == Some(path))
    }
}
