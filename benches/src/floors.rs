//! The limits of this machine: a sync, a commit, and a commit that all waiting callers share.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::Result;
use crate::board::percentile;
use crate::clock::Stopwatch;

/// The smallest write of SQLite in bytes: one page.
const PAGE: usize = 4096;
/// The number of pages to which the store lets its log grow before it starts over.
const PAGES: u64 = 4000;

/// Syncs of one written page.
pub(crate) struct Syncs {
    /// The number of syncs per second.
    pub(crate) per_second: f64,
    /// The median duration.
    pub(crate) p50: Duration,
}

/// Writes and syncs a page repeatedly in a file that does not grow, like a log after its first cycle.
pub(crate) fn fdatasync(folder: &Path, time: Duration) -> Result<Syncs> {
    let path = folder.join("fdatasync");
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(&path)?;
    let page = [7u8; PAGE];
    for at in 0..PAGES {
        file.write_all_at(&page, at * PAGE as u64)?;
    }
    file.sync_all()?;
    let mut took = Vec::new();
    let whole = Stopwatch::start();
    while whole.elapsed() < time {
        let one = Stopwatch::start();
        file.write_all_at(&page, took.len() as u64 % PAGES * PAGE as u64)?;
        file.sync_data()?;
        took.push(one.elapsed());
    }
    let per_second = took.len() as f64 / whole.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(Syncs { per_second, p50: percentile(&mut took, 50) })
}

/// Returns a file with one row per caller, as durable as the store's.
fn counters(folder: &Path, callers: usize) -> Result<Connection> {
    let conn = Connection::open(folder.join(format!("floor-{callers}.db")))?;
    conn.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 4000; \
         DROP TABLE IF EXISTS counters; \
         CREATE TABLE counters (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)",
    )?;
    for id in 0..callers as i64 {
        conn.execute("INSERT INTO counters (id, n) VALUES (?1, 0)", [id])?;
    }
    Ok(conn)
}

const COUNT: &str = "UPDATE counters SET n = n + 1 WHERE id = ?1";

/// Checks that the rows contain all updates of the callers.
fn check(conn: &Connection, updates: u64) -> Result<()> {
    let found: i64 = conn.query_row("SELECT sum(n) FROM counters", [], |columns| columns.get(0))?;
    if found as u64 != updates {
        return Err(format!("the floor's rows count {found} updates, its callers {updates}").into());
    }
    Ok(())
}

/// Measures updates per second of one caller, each with its own commit.
pub(crate) fn one_row(folder: &Path, time: Duration) -> Result<f64> {
    let conn = counters(folder, 1)?;
    let mut count = conn.prepare(COUNT)?;
    let mut updates = 0;
    let watch = Stopwatch::start();
    while watch.elapsed() < time {
        count.execute([0i64])?;
        updates += 1;
    }
    let per_second = updates as f64 / watch.elapsed().as_secs_f64();
    check(&conn, updates)?;
    Ok(per_second)
}

/// A caller's row, and the channel that reports its commit.
type Update = (i64, oneshot::Sender<()>);

/// Measures updates per second of many callers that share commits: all waiting updates go into the next one.
pub(crate) async fn group_commit(folder: &Path, callers: usize, time: Duration) -> Result<f64> {
    let conn = counters(folder, callers)?;
    let (jobs, queue) = mpsc::channel::<Update>(1024);
    let writer = std::thread::spawn(move || commit_in_groups(conn, queue));
    let watch = Stopwatch::start();
    let tasks: Vec<_> = (0..callers as i64)
        .map(|id| {
            let jobs = jobs.clone();
            tokio::spawn(async move {
                let mut updates = 0u64;
                while watch.elapsed() < time {
                    let (caller, answer) = oneshot::channel();
                    jobs.send((id, caller)).await.map_err(|_| "the floor's writer is gone")?;
                    answer.await?;
                    updates += 1;
                }
                Result::Ok(updates)
            })
        })
        .collect();
    drop(jobs);
    let mut updates = 0;
    for task in tasks {
        updates += task.await??;
    }
    let per_second = updates as f64 / watch.elapsed().as_secs_f64();
    let conn = writer.join().map_err(|_| "the floor's writer panicked")??;
    check(&conn, updates)?;
    Ok(per_second)
}

fn commit_in_groups(conn: Connection, mut queue: mpsc::Receiver<Update>) -> Result<Connection> {
    let mut waiting = Vec::new();
    {
        let mut count = conn.prepare(COUNT)?;
        while let Some(first) = queue.blocking_recv() {
            waiting.push(first);
            while let Ok(next) = queue.try_recv() {
                waiting.push(next);
            }
            conn.execute_batch("BEGIN IMMEDIATE")?;
            for (id, _) in &waiting {
                count.execute([*id])?;
            }
            conn.execute_batch("COMMIT")?;
            for (_, caller) in waiting.drain(..) {
                let _ = caller.send(());
            }
        }
    }
    Ok(conn)
}
