//! DBOS for Rust as a peer: reads one request per line, executes it in the database it names, and answers with one
//! line.
//!
//! A pipeline is a workflow whose steps do nothing. A task is a workflow without steps that waits in a queue, which is
//! the least that DBOS can make durable.

use std::collections::HashSet;
use std::io::BufRead;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dbos::{Config, DBOS, Enqueue, QueueConflict, QueueOptions, StartOptions, WorkflowRef};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPool, PgPoolOptions};
use tokio::sync::Notify;
use tokio::task::JoinSet;

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Done<T> = Result<T, dbos::Error>;

const QUEUE: &str = "bench";
/// The polling interval of the queue: as short as possible, because only polling wakes it.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// The time after which a request counts as stalled.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Connections in addition to those of the workflows: for the notifier, the queue and the supervisor.
const FURTHER_CONNECTIONS: usize = 6;
/// The number of tasks that are enqueued at once before a drain is timed.
const ENQUEUERS: usize = 16;

#[derive(Deserialize)]
struct Request {
    workload: Workload,
    /// The URL of a private database.
    place: String,
    tasks: usize,
    steps: usize,
    in_flight: usize,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum Workload {
    Pipelines,
    Claims,
    Latency,
}

#[derive(Serialize, Default)]
struct Answer {
    elapsed_s: f64,
    p50_ms: f64,
    done: usize,
    /// The number of tasks in the measured time.
    timed: Option<usize>,
    duplicates: usize,
    error: Option<String>,
}

/// The state that the tasks of a queue share.
#[derive(Default)]
struct Drain {
    seen: Mutex<Seen>,
    expected: AtomicUsize,
    all_seen: Notify,
}

#[derive(Default)]
struct Seen {
    tasks: HashSet<usize>,
    twice: usize,
    /// The time at which half of them had started.
    half: Option<Instant>,
}

impl Drain {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn see(&self, task: usize) {
        let mut seen = self.seen();
        if !seen.tasks.insert(task) {
            seen.twice += 1;
        }
        let expected = self.expected.load(Ordering::Relaxed);
        if seen.tasks.len() >= expected / 2 {
            seen.half.get_or_insert_with(Instant::now);
        }
        if seen.tasks.len() == expected {
            self.all_seen.notify_one();
        }
    }
}

async fn pipeline(steps: usize) -> Done<usize> {
    for _ in 0..steps {
        dbos::step("noop", || async { Done::Ok(()) }).await?;
    }
    Ok(steps)
}

/// Connects to the database and checks that it is as durable as for Sprag.
async fn connect(url: &str) -> Result<PgPool, Failure> {
    let pool = PgPoolOptions::new().max_connections(1).connect(url).await?;
    for setting in ["fsync", "synchronous_commit"] {
        let value: String =
            sqlx::query_scalar("SELECT current_setting($1)").bind(setting).fetch_one(&pool).await?;
        if value != "on" {
            return Err(format!("{setting} is {value}").into());
        }
    }
    Ok(pool)
}

async fn count(pool: &PgPool, sql: &'static str) -> Result<usize, Failure> {
    let rows: i64 = sqlx::query_scalar(sql).fetch_one(pool).await?;
    Ok(rows as usize)
}

/// Queries for the expected contents of its tables.
const SUCCEEDED: &str = "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'";
const STEPS: &str = "SELECT count(*) FROM dbos.operation_outputs";

async fn answer(request: &Request) -> Result<Answer, Failure> {
    let pool = connect(&request.place).await?;
    let drain = Arc::new(Drain::default());
    let dbos = DBOS::new(Config {
        app_version: Some("1".to_owned()),
        max_connections: (request.in_flight + FURTHER_CONNECTIONS) as u32,
        ..Config::new("bench", &request.place)
    });
    let pipelines = dbos.register_workflow("pipeline", pipeline)?;
    let tasks = {
        let drain = Arc::clone(&drain);
        dbos.register_workflow("task", move |task: usize| {
            drain.see(task);
            async move { Done::Ok(task) }
        })?
    };
    dbos.launch().await?;
    let answer = match request.workload {
        Workload::Pipelines | Workload::Latency => run_pipelines(request, &pipelines, &pool).await?,
        Workload::Claims => drain_queue(request, &dbos, &tasks, &drain, &pool).await?,
    };
    dbos.shutdown().await;
    Ok(answer)
}

/// Runs `in_flight` workflows at a time, and waits for each.
async fn run_pipelines(
    request: &Request,
    pipelines: &WorkflowRef<usize, usize>,
    pool: &PgPool,
) -> Result<Answer, Failure> {
    let before = (count(pool, SUCCEEDED).await?, count(pool, STEPS).await?);
    let begun = Arc::new(AtomicUsize::new(0));
    let watch = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..request.in_flight {
        let (pipelines, begun) = (pipelines.clone(), Arc::clone(&begun));
        let (runs, steps) = (request.tasks, request.steps);
        callers.spawn(async move {
            let mut took = Vec::new();
            while begun.fetch_add(1, Ordering::Relaxed) < runs {
                let one = Instant::now();
                pipelines.run(steps).await?;
                took.push(one.elapsed());
            }
            Done::Ok(took)
        });
    }
    let mut took = Vec::new();
    while let Some(done) = tokio::time::timeout(TIMEOUT, callers.join_next()).await? {
        took.extend(done??);
    }
    let elapsed_s = watch.elapsed().as_secs_f64();
    took.sort();
    let p50_ms = took.get(took.len() / 2).map_or(0.0, |half| half.as_secs_f64() * 1e3);
    let succeeded = count(pool, SUCCEEDED).await? - before.0;
    if succeeded != request.tasks {
        return Err(format!("{succeeded} of {} workflows succeeded", request.tasks).into());
    }
    let done = count(pool, STEPS).await? - before.1;
    Ok(Answer { elapsed_s, p50_ms, done, ..Answer::default() })
}

/// Enqueues all tasks, then executes them, `in_flight` at a time.
async fn drain_queue(
    request: &Request,
    dbos: &DBOS,
    tasks: &WorkflowRef<usize, usize>,
    drain: &Drain,
    pool: &PgPool,
) -> Result<Answer, Failure> {
    let expected = count(pool, SUCCEEDED).await? + request.tasks;
    drain.expected.store(request.tasks, Ordering::Relaxed);
    let mut makers = JoinSet::new();
    for maker in 0..ENQUEUERS {
        let (tasks, all) = (tasks.clone(), request.tasks);
        makers.spawn(async move {
            for task in (maker..all).step_by(ENQUEUERS) {
                let queue = Some(Enqueue::new(QUEUE));
                tasks.start_with(task, StartOptions { queue, ..StartOptions::default() }).await?;
            }
            Done::Ok(())
        });
    }
    while let Some(made) = makers.join_next().await {
        made??;
    }
    // No worker serves a queue before it is registered, so the drain starts here.
    let options = QueueOptions {
        worker_concurrency: Some(request.in_flight as i32),
        polling_interval: LOOK_EVERY,
        ..QueueOptions::default()
    };
    dbos.register_queue(QUEUE, options, QueueConflict::UpdateIfLatestVersion).await?;
    let worked_off = async {
        drain.all_seen.notified().await;
        // A task counts only once it is in the table.
        while count(pool, SUCCEEDED).await? < expected {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok::<(), Failure>(())
    };
    let stalled = |_| format!("stalled: {} of {} tasks begun", drain.seen().tasks.len(), request.tasks);
    tokio::time::timeout(TIMEOUT, worked_off).await.map_err(stalled)??;
    let seen = drain.seen();
    // Only the second half is timed: the worker polls once a second at first, and a tenth more often with every poll.
    let elapsed_s = seen.half.ok_or("no task has started")?.elapsed().as_secs_f64();
    let timed = Some(request.tasks - request.tasks / 2);
    Ok(Answer { elapsed_s, done: request.tasks, timed, duplicates: seen.twice, ..Answer::default() })
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
