//! apalis-sqlite as a peer: reads one request per line, executes it, and answers with one line.
//!
//! `setup` of apalis-sqlite turns syncing off on the connection it gets. Here a separate pool sets up the file, and all
//! work goes through connections with `synchronous = FULL`.

use std::collections::HashSet;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use apalis::prelude::*;
use apalis_sqlite::{Config, SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteStorage};
use futures::channel::mpsc::{self, UnboundedSender};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteJournalMode, SqliteSynchronous};
use tokio::sync::Notify;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const QUEUE: &str = "bench";
/// The time after which a request counts as stalled.
const TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Deserialize)]
struct Request {
    workload: Workload,
    /// The folder for its file.
    place: PathBuf,
    tasks: usize,
    steps: usize,
    in_flight: usize,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Workload {
    /// Each task enqueues its successor; `in_flight` chains run at once.
    Pipelines,
    /// All tasks are enqueued, then executed.
    Claims,
}

#[derive(Serialize, Default)]
struct Answer {
    elapsed_s: f64,
    done: usize,
    duplicates: usize,
    error: Option<String>,
}

/// A task: its chain, and its position in the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Step {
    chain: usize,
    no: usize,
}

/// The state that handlers share.
#[derive(Clone)]
struct Shared {
    storage: SqliteStorage<Step>,
    /// Wakes the worker, as the update hook of apalis-sqlite does.
    bell: UnboundedSender<()>,
    seen: Arc<Mutex<Seen>>,
    all_seen: Arc<Notify>,
    chains: usize,
    steps: usize,
}

#[derive(Default)]
struct Seen {
    steps: HashSet<Step>,
    twice: usize,
    begun: usize,
}

impl Shared {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Starts a chain that has not started, if there is one.
    fn next_chain(&self) -> Option<Step> {
        let mut seen = self.seen();
        let chain = seen.begun;
        (chain < self.chains).then(|| {
            seen.begun += 1;
            Step { chain, no: 0 }
        })
    }

    async fn enqueue(&self, step: Step) -> Result<(), BoxDynError> {
        self.storage.clone().push(step).await?;
        let _ = self.bell.unbounded_send(());
        Ok(())
    }
}

/// Executes a step, which only enqueues its successor.
async fn work(step: Step, shared: Data<Shared>) -> Result<(), BoxDynError> {
    let following =
        if step.no + 1 < shared.steps { Some(Step { no: step.no + 1, ..step }) } else { shared.next_chain() };
    if let Some(following) = following {
        shared.enqueue(following).await?;
    }
    let mut seen = shared.seen();
    if !seen.steps.insert(step) {
        seen.twice += 1;
    }
    if seen.steps.len() == shared.chains * shared.steps {
        shared.all_seen.notify_one();
    }
    Ok(())
}

async fn durable_pool(folder: &Path, connections: u32) -> Result<SqlitePool, Failure> {
    let options = SqliteConnectOptions::new()
        .filename(folder.join("apalis.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(30));
    let setup = SqlitePoolOptions::new().max_connections(1).connect_with(options.clone()).await?;
    SqliteStorage::setup(&setup).await?;
    setup.close().await;
    let pool = SqlitePoolOptions::new().max_connections(connections).connect_with(options).await?;
    let level: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&pool).await?;
    if level != 2 {
        return Err(format!("synchronous is {level}, not FULL").into());
    }
    Ok(pool)
}

async fn done(pool: &SqlitePool) -> Result<usize, Failure> {
    let done: i64 =
        sqlx::query_scalar("SELECT count(*) FROM Jobs WHERE status = 'Done'").fetch_one(pool).await?;
    Ok(done as usize)
}

async fn answer(request: &Request) -> Result<Answer, Failure> {
    let pool = durable_pool(&request.place, 10).await?;
    let config = Config::default().queue(QUEUE).batch_size(request.in_flight.max(10));
    let storage = SqliteStorage::<Step>::new(&pool).with_config(config);
    let (bell, rung) = mpsc::unbounded();
    let shared = Shared {
        storage: storage.clone(),
        bell,
        seen: Arc::default(),
        all_seen: Arc::default(),
        chains: request.tasks,
        steps: request.steps,
    };
    let at_first = if request.workload == Workload::Claims { request.tasks } else { request.in_flight };
    let first: Vec<Step> = (0..at_first).map_while(|_| shared.next_chain()).collect();
    let mut watch = Instant::now();
    if request.workload == Workload::Claims {
        for some in first.chunks(500) {
            storage.clone().push_bulk(some.to_vec()).await?;
        }
        watch = Instant::now();
    } else {
        for step in first {
            shared.enqueue(step).await?;
        }
    }
    let _ = shared.bell.unbounded_send(());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = WorkerBuilder::new("bench")
        .backend(storage.poll_with_stream(rung))
        .data(shared.clone())
        .concurrency(request.in_flight)
        .build(work);
    let working = tokio::spawn(async move {
        worker
            .run_until(async {
                let _ = stopped.await;
                Ok::<(), std::io::Error>(())
            })
            .await
    });
    let expected = request.tasks * request.steps;
    let finished = tokio::time::timeout(TIMEOUT, async {
        shared.all_seen.notified().await;
        // A task counts only once it is in the table.
        while done(&pool).await? < expected {
            let _ = shared.bell.unbounded_send(());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok::<(), Failure>(())
    })
    .await;
    let elapsed_s = watch.elapsed().as_secs_f64();
    let counted = done(&pool).await?;
    let _ = stop.send(());
    if tokio::time::timeout(Duration::from_secs(10), working).await.is_err() {
        eprintln!("apalis-peer: the worker did not stop when asked to");
    }
    let duplicates = shared.seen().twice;
    finished.map_err(|_| format!("stalled: {counted} of {expected} done after {elapsed_s:.0} s"))??;
    Ok(Answer { elapsed_s, done: counted, duplicates, error: None })
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    for line in std::io::stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let answer = answer(&request)
            .await
            .unwrap_or_else(|error| Answer { error: Some(error.to_string()), ..Answer::default() });
        println!("{}", serde_json::to_string(&answer)?);
    }
    Ok(())
}
