//! Clean-up on a worker's host: removes environments that are no longer needed, and files of runs that have ended.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sprag_app::{LocalFiles, Then, remove_or_pool};
use sprag_lifecycle::RunId;
use sprag_worker::wire::{Destroy, Destroyed, Done, Due, MayDestroy, Tidy};
use sprag_worker::{Files, OnRecord};
use tokio::sync::watch;

use crate::client::Client;
use crate::error::Error;
use crate::unsent;

/// The interval between two clean-ups.
const EVERY: Duration = Duration::from_secs(30);
/// The time limit of a request.
const SHORT: Duration = Duration::from_secs(10);
/// The largest number of runs in one request.
const AT_ONCE: usize = 500;

/// Cleans up regularly until `stop` is true.
pub(crate) async fn look_after(client: Client, data: PathBuf, mut stop: watch::Receiver<bool>) {
    while !*stop.borrow() {
        if let Err(error) = tidy(&client, &data).await {
            tracing::debug!(%error, "cleaning up files of runs failed");
        }
        let _ = tokio::time::timeout(EVERY, stop.wait_for(|stop| *stop)).await;
    }
}

/// Cleans up once: asks the server about every run's folder, a page at a time.
pub(crate) async fn tidy(client: &Client, data: &Path) -> Result<(), Error> {
    let files = Files::new(data);
    let store = client.store();
    let runs: Vec<RunId> = std::fs::read_dir(data.join("runs"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|run| owner(&files.run(*run)).is_none_or(|owner| owner == store))
        .collect();
    let pages =
        if runs.is_empty() { vec![Vec::new()] } else { runs.chunks(AT_ONCE).map(<[_]>::to_vec).collect() };
    for (no, runs) in pages.into_iter().enumerate() {
        let due: Due = client.post("/v1/work/tidy", &Tidy { runs }, SHORT).await?;
        for run in due.ended {
            remove_leftovers(&files.run(run));
        }
        // Only folders that runs of this store have made, because the server does not know another store's runs
        // either.
        for run in due.forgotten.into_iter().map(|run| files.run(run)).filter(|run| owner(run).is_some()) {
            remove_all(&run);
        }
        // Each answer lists the environments, whatever runs it is about, so only those of the first are used.
        for site in due.environments.iter().filter(|_| no == 0) {
            remove(client, data, site).await?;
        }
    }
    Ok(())
}

/// The file in a run's folder that names the store of the run.
const OWNER: &str = "store";

/// Returns the store that a run's folder belongs to; none if an older version has created it.
fn owner(folder: &Path) -> Option<String> {
    /// The largest size of the file; a store's name is shorter.
    const MAX_BYTES: u64 = 4_096;
    String::from_utf8(sprag_process::read_regular(&folder.join(OWNER), MAX_BYTES).ok()?).ok()
}

/// Writes which store a run's folder belongs to.
pub(crate) fn note_owner(folder: &Path, store: &str) -> std::io::Result<()> {
    if folder.join(OWNER).exists() {
        return Ok(());
    }
    sprag_process::make_private_folder(folder)?;
    sprag_process::replace_private(&folder.join(OWNER), store.as_bytes())
}

/// Removes the files that only a live run needs. The output files of its steps stay until the run is forgotten, and
/// so does a log that the server has not received.
fn remove_leftovers(folder: &Path) {
    let mut kept = false;
    for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_owned();
        match ending.as_str() {
            // A lock that is held belongs to processes that are still stopping.
            "lock" => drop(sprag_process::remove_if_free(&path)),
            "log" if unsent::is_kept(&path) => kept = true,
            "log" | "stdout" => drop(std::fs::remove_file(&path)),
            _ => kept |= path.file_name().is_none_or(|name| name != OWNER),
        }
    }
    if !kept {
        let _ = std::fs::remove_file(folder.join(OWNER));
        let _ = std::fs::remove_dir(folder);
    }
}

/// Removes the folder of a run that was forgotten, unless processes of it are still stopping.
fn remove_all(folder: &Path) {
    let locks = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let held = locks
        .filter(|path| path.extension().is_some_and(|ending| ending == "lock"))
        .any(|lock| !sprag_process::remove_if_free(&lock).unwrap_or(false));
    if !held && let Err(error) = std::fs::remove_dir_all(folder) {
        tracing::warn!(folder = %folder.display(), %error, "cannot remove the files of a run");
    }
}

/// Removes an environment. The store has a record of the removal before git removes anything, and is told the result.
async fn remove(client: &Client, data: &Path, site: &OnRecord) -> Result<(), Error> {
    let details = site.details().map_err(Error::Local)?;
    let files = LocalFiles::on_this_host(&site.path, &details);
    // Another worker of this host has it in its own data directory.
    if !site.path.is_empty() && !files.are_in(&data.join("worktrees")) {
        return Ok(());
    }
    let present = !site.path.is_empty() && (files.path.exists() || site.status == "error");
    let destroy = Destroy { environment: site.id, present };
    let MayDestroy { attempt } = client.post("/v1/work/destroy", &destroy, SHORT).await?;
    let Some(attempt) = attempt else { return Ok(()) };
    let (caches, root) = (details.caches, data.join("worktrees"));
    let run = site.run.map(|run| run.to_string()).unwrap_or_default();
    let put = tokio::task::spawn_blocking(move || remove_or_pool(&files, &caches, &root, &run, Then::Pool));
    let put = match put.await {
        Ok(put) => put.map_err(|error| error.message),
        Err(error) => Err(error.to_string()),
    };
    match &put {
        Ok(how) => tracing::info!(path = &*site.path, how, "environment removed"),
        Err(why) => tracing::warn!(path = &*site.path, why, "removing an environment failed: it is retried"),
    }
    let told = Destroyed { environment: site.id, attempt, wrong: put.err() };
    client.post::<Done>("/v1/work/destroyed", &told, SHORT).await.map(drop)
}
