//! Forgetting runs that ended long ago: their rows, then their files.
//!
//! A database in a file has one writer at a time. So the work is done in small transactions, and the lock is left
//! free between them for long enough that another waiting process gets it. Runs that a killed process forgot only in
//! part are on the store's list of forgotten runs; the next process continues with them.

mod pace;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sprag_lifecycle::RunId;
use sprag_store::{Id, Store};
use sprag_worker::Files;

use crate::App;
use crate::error::Error;
use crate::view::size_of;
use pace::Pace;

/// The number of runs that are read together, without a lock.
const PAGE: usize = 500;

/// The result of forgetting runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Forgotten {
    /// The number of forgotten runs, child runs included.
    pub runs: usize,
    /// The number of removed plans that no run has any more.
    pub plans: usize,
    /// The number of bytes of logs and files that were removed.
    pub bytes: u64,
    /// The number of removed folders of runs that the store does not have.
    pub strays: usize,
    /// Runs that are old enough and have to stay for now, each with the reason.
    pub kept: Vec<(String, &'static str)>,
    /// The number of these runs that were never delivered to a hook, by the hook's number: no server has delivered it
    /// for long.
    pub untold: BTreeMap<Id, usize>,
}

/// Rows and folders that are left of forgotten runs.
#[derive(Debug, Clone)]
pub struct Leftovers {
    /// The number of runs that are forgotten in part.
    pub half_forgotten: usize,
    /// Folders of runs that the store does not have.
    pub strays: Strays,
}

impl App {
    /// Forgets runs that ended longer ago than `keep`; with `dry_run`, only returns which.
    pub async fn forget(&self, keep: Duration, dry_run: bool) -> Result<Forgotten, Error> {
        let (store, data) = (&self.store, self.data());
        let before_ms = store.now().wall_ms - i64::try_from(keep.as_millis()).unwrap_or(i64::MAX / 2);
        let work =
            Work { store, files: Files::new(data), pace: Pace::new(store), done: Forgotten::default() };
        if dry_run {
            return Ok(work.preview(before_ms, data)?);
        }
        // The effects of a run whose process was killed at its end are still to be carried out. Without a server no
        // other process does that.
        crate::engine::finish_effects(self).await?;
        self.forget_old_events(i64::try_from(keep.as_millis()).unwrap_or(i64::MAX)).await?;
        Ok(work.forget(before_ms, data).await?)
    }

    /// Returns what is left of forgotten runs.
    pub fn leftovers(&self) -> Result<Leftovers, Error> {
        /// The most half-forgotten runs that are counted.
        const MANY: usize = 10_000;
        let half_forgotten = self.store.queries().half_forgotten(MANY)?;
        Ok(Leftovers { half_forgotten, strays: strays(&self.store, self.data())? })
    }
}

struct Work<'s> {
    store: &'s Store,
    files: Files,
    pace: Pace,
    done: Forgotten,
}

impl Work<'_> {
    fn preview(mut self, before_ms: i64, data: &Path) -> sprag_store::Result<Forgotten> {
        let mut after = None;
        // The loop ends: each round begins after the last run of the one before.
        loop {
            let page = self.store.person().forgettable_runs(before_ms, after, PAGE)?;
            self.done.runs += page.runs.len() + page.children.len();
            let folders = page.runs.iter().chain(&page.children).map(|run| self.files.run(*run));
            self.done.bytes += folders.map(|folder| size_of(&folder)).sum::<u64>();
            self.note(page.kept, page.untold);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        self.done.strays = strays(self.store, data)?.removable().len();
        Ok(self.done)
    }

    async fn forget(mut self, before_ms: i64, data: &Path) -> sprag_store::Result<Forgotten> {
        // First, the runs that a killed process has forgotten in part.
        self.forget_page(Vec::new(), before_ms).await?;
        let mut after = None;
        // The loop ends: each round begins after the last run of the one before.
        loop {
            let page = self.store.person().forgettable_runs(before_ms, after, PAGE)?;
            self.note(page.kept, page.untold);
            self.forget_page(page.runs, before_ms).await?;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        self.forget_entries().await?;
        self.forget_plans().await?;
        for run in strays(self.store, data)?.removable() {
            self.done.bytes += remove(&self.files.run(*run)).unwrap_or(0);
            self.done.strays += 1;
        }
        Ok(self.done)
    }

    fn note(&mut self, kept: Vec<(RunId, &'static str)>, untold: BTreeMap<Id, usize>) {
        self.done.kept.extend(kept.into_iter().map(|(run, why)| (run.to_string(), why)));
        for (hook, runs) in untold {
            *self.done.untold.entry(hook).or_default() += runs;
        }
    }

    /// Forgets runs, and removes rows and files of those that are forgotten already.
    async fn forget_page(&mut self, mut runs: Vec<RunId>, before_ms: i64) -> sprag_store::Result<()> {
        loop {
            let bite = self.pace.bite();
            let (next, of) = (runs.clone(), bite.clone());
            let store = self.store;
            let forgot =
                pace::insist(store, || store.person().forget_runs(next.clone(), before_ms, of.clone()))
                    .await?;
            self.pace.rest(store, bite.held_for()).await;
            runs.drain(..forgot.looked_at);
            self.done.runs += forgot.runs.len();
            if runs.is_empty() && !forgot.rows_left {
                return self.remove_files().await;
            }
        }
    }

    /// Removes the files of forgotten runs, and then the last rows that the store has of them.
    async fn remove_files(&mut self) -> sprag_store::Result<()> {
        let mut after = None;
        // The loop ends: each round begins after the last run of the one before.
        loop {
            let runs = self.store.queries().forgotten(after, PAGE)?;
            after = runs.last().copied();
            if after.is_none() {
                return Ok(());
            }
            let mut gone = Vec::with_capacity(runs.len());
            for run in runs {
                if let Some(bytes) = remove(&self.files.run(run)) {
                    self.done.bytes += bytes;
                    gone.push(run);
                }
            }
            let bite = self.pace.bite();
            let store = self.store;
            pace::insist(store, || store.person().files_are_gone(gone.clone())).await?;
            self.pace.rest(store, bite.held_for()).await;
        }
    }

    async fn forget_entries(&mut self) -> sprag_store::Result<()> {
        loop {
            let bite = self.pace.bite();
            let (store, of) = (self.store, bite.clone());
            let more = pace::insist(store, || store.person().forget_entries(of.clone())).await?;
            self.pace.rest(store, bite.held_for()).await;
            if !more {
                return Ok(());
            }
        }
    }

    async fn forget_plans(&mut self) -> sprag_store::Result<()> {
        let mut after = None;
        loop {
            let bite = self.pace.bite();
            let (store, of) = (self.store, bite.clone());
            let done = pace::insist(store, || store.person().forget_plans(after, of.clone())).await?;
            self.pace.rest(store, bite.held_for()).await;
            self.done.plans += done.gone;
            after = done.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }
}

/// Removes a run's folder. Returns the number of removed bytes, or none if the folder is still there.
fn remove(folder: &Path) -> Option<u64> {
    let bytes = if folder.exists() { size_of(folder) } else { 0 };
    match fs::remove_dir_all(folder) {
        Ok(()) => Some(bytes),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(bytes),
        Err(error) => {
            tracing::warn!(path = %folder.display(), %error, "could not remove the files of a deleted run");
            None
        }
    }
}

/// Folders of runs that a store does not have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Strays {
    /// The runs that the folders are named after.
    pub runs: Vec<RunId>,
    /// Whether the data directory has been used with other stores, whose runs these may be.
    pub shared: bool,
}

impl Strays {
    /// Returns the runs whose folders certainly belong to no store.
    pub fn removable(&self) -> &[RunId] {
        if self.shared { &[] } else { &self.runs }
    }
}

/// Finds the folders of runs that the store does not have: those of a process that was killed while it forgot them,
/// or that were forgotten from another host.
fn strays(store: &Store, data: &Path) -> sprag_store::Result<Strays> {
    // First the folders, then the runs: a run is in the store before it has a folder.
    let named = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<RunId>().ok();
    let folders: Vec<RunId> = match fs::read_dir(data.join("runs")) {
        Ok(entries) => entries.flatten().filter_map(named).collect(),
        Err(_) => return Ok(Strays::default()),
    };
    let mut runs = Vec::new();
    for some in folders.chunks(PAGE) {
        let there = store.queries().runs_there(some)?;
        runs.extend(some.iter().copied().filter(|run| !there.contains(run)));
    }
    runs.sort_unstable();
    let own = store.queries().store_id()?;
    let shared = used_with(data).iter().any(|id| *id != own) || used_with(data).is_empty();
    Ok(Strays { runs, shared })
}

/// Returns the file that names the stores whose runs have files in a data directory.
fn stores_file(data: &Path) -> PathBuf {
    data.join("runs").join("stores")
}

fn used_with(data: &Path) -> Vec<String> {
    /// The file has one line for each store, and no directory is used with thousands of stores.
    const MAX_BYTES: u64 = 1 << 20;
    let text = sprag_process::read_regular(&stores_file(data), MAX_BYTES).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
}

/// Notes that runs of this store have files in this data directory. A folder of a run that one store does not have
/// may belong to another.
pub(crate) fn note_store(store: &Store, data: &Path) {
    let noted = || -> Result<(), String> {
        let id = store.queries().store_id().map_err(|error| error.to_string())?;
        if used_with(data).contains(&id) {
            return Ok(());
        }
        let path = stores_file(data);
        sprag_process::make_private_folder(&data.join("runs")).map_err(|error| error.to_string())?;
        let file = sprag_process::private_options().create(true).append(true).open(&path);
        let file = file.and_then(sprag_process::regular);
        let written = file.and_then(|mut file| file.write_all(format!("{id}\n").as_bytes()));
        written.map_err(|error| format!("{}: {error}", path.display()))
    };
    if let Err(error) = noted() {
        tracing::warn!(
            error,
            "cannot record which store uses the data directory: `gc` keeps unknown folders"
        );
    }
}
