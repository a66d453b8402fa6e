//! Clean-up on a worker's host: environments that nobody needs any more, and files of runs that have ended.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sprag::{Details, Then, put_away};
use sprag_lifecycle::RunId;
use sprag_worker::wire::{Destroy, Destroyed, Done, Due, MayDestroy, Tidy};
use sprag_worker::{Files, OnRecord};
use tokio::sync::watch;

use crate::client::Client;
use crate::error::Error;

/// How often it is looked.
const EVERY: Duration = Duration::from_secs(30);
/// How long a question may take.
const SHORT: Duration = Duration::from_secs(10);
/// How many runs are asked about at once.
const AT_ONCE: usize = 500;

/// Cleans up until told to stop.
pub(crate) async fn look_after(client: Client, data: PathBuf, mut stop: watch::Receiver<bool>) {
    while !*stop.borrow() {
        if let Err(error) = tidy(&client, &data).await {
            tracing::debug!(%error, "looking after what is left of runs");
        }
        let _ = tokio::time::timeout(EVERY, stop.wait_for(|stop| *stop)).await;
    }
}

/// Cleans up once.
pub(crate) async fn tidy(client: &Client, data: &Path) -> Result<(), Error> {
    let runs: Vec<RunId> = std::fs::read_dir(data.join("runs"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .take(AT_ONCE)
        .collect();
    let due: Due = client.post("/v1/work/tidy", &Tidy { runs }, SHORT).await?;
    for run in due.ended {
        forget(&Files::new(data), run);
    }
    for site in due.environments {
        remove(client, data, &site).await?;
    }
    Ok(())
}

/// Removes what only a live run needs; the files that its steps have handed on stay.
fn forget(files: &Files, run: RunId) {
    let folder = files.run(run);
    for path in std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_owned();
        match ending.as_str() {
            // A lock that is held belongs to processes that are still ending.
            "lock" => drop(sprag_process::remove_if_free(&path)),
            "log" | "stdout" => drop(std::fs::remove_file(&path)),
            _ => {}
        }
    }
    let _ = std::fs::remove_dir(&folder);
}

/// Removes an environment: the store knows of it before git does, and hears how it went.
async fn remove(client: &Client, data: &Path, site: &OnRecord) -> Result<(), Error> {
    let present = !site.path.is_empty() && (Path::new(&*site.path).exists() || site.status == "error");
    let destroy = Destroy { environment: site.id, present };
    let MayDestroy { attempt } = client.post("/v1/work/destroy", &destroy, SHORT).await?;
    let Some(attempt) = attempt else { return Ok(()) };
    let (details, root, path) = (Details::read(&site.details), data.join("worktrees"), site.path.to_string());
    let run = site.run.map(|run| run.to_string()).unwrap_or_default();
    let put =
        tokio::task::spawn_blocking(move || put_away(&details, &root, Path::new(&path), &run, Then::Pool));
    let put = put.await.unwrap_or_else(|error| Err(error.to_string()));
    match &put {
        Ok(how) => tracing::info!(path = &*site.path, how, "environment removed"),
        Err(why) => tracing::warn!(path = &*site.path, why, "environment not removed; it is tried again"),
    }
    let told = Destroyed { environment: site.id, attempt, wrong: put.err() };
    client.post::<Done>("/v1/work/destroyed", &told, SHORT).await.map(drop)
}
