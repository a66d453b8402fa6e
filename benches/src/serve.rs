//! The cost of the server: W2 through HTTP compared to W2 in the library, and its memory with a thousand readers.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use sprag_app::App;
use sprag_app::boards::{self, BoardSpec, ClaimRequest, Done, TaskSpec};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::board::{Board, key, percentile};
use crate::clock::Stopwatch;
use crate::{Effort, Result};

/// The number of clients, each with a persistent connection.
const CLIENTS: usize = 64;
/// The number of workers that drain the queue in W2.
const WORKERS: usize = 8;
/// The number of readers of live events.
const READERS: usize = 1_000;
/// The number of tasks that are added at once.
const BATCH: usize = 1_000;

pub(crate) async fn measure(effort: Effort) -> Result<Board> {
    let tasks = effort.pick(10_000, 1_000);
    let mut board = Board::default();
    for round in 0..effort.rounds {
        let scratch = tempfile::tempdir()?;
        // The order alternates between rounds.
        if round % 2 == 0 {
            library(&mut board, scratch.path(), tasks).await?;
            http(&mut board, scratch.path(), tasks).await?;
        } else {
            http(&mut board, scratch.path(), tasks).await?;
            library(&mut board, scratch.path(), tasks).await?;
        }
        readers(&mut board, scratch.path(), effort.pick(READERS, 100)).await?;
    }
    let (ours, theirs) = (pairs("HTTP", CLIENTS), pairs("library", WORKERS));
    board.compare(&ours, theirs.clone());
    board.compare(&pairs("library", CLIENTS), theirs);
    board.note("HTTP has 64 clients that keep their connections, and shares two cores with them; the library's W2 has 8 workers.");
    Ok(board)
}

fn pairs(system: &'static str, in_flight: usize) -> crate::board::Key {
    key("W2 pairs", system, in_flight, "pairs/s")
}

fn specs(tasks: usize) -> Vec<TaskSpec> {
    (0..tasks).map(|n| TaskSpec { text: format!("task {n}"), ..TaskSpec::default() }).collect()
}

/// Measures the same board, drained in this process.
async fn library(board: &mut Board, folder: &Path, tasks: usize) -> Result<()> {
    for callers in [WORKERS, CLIENTS] {
        let data = tempfile::tempdir_in(folder)?;
        let app = App::open(data.path())?;
        boards::create(&app, &BoardSpec { name: "b".into(), ..BoardSpec::default() }).await?;
        let row = boards::known(&app, "b")?;
        for batch in specs(tasks).chunks(BATCH) {
            boards::add_tasks(&app, &row, batch).await?;
        }
        let watch = Stopwatch::start();
        let mut workers = JoinSet::new();
        for worker in 0..callers {
            workers.spawn(drain(app.clone(), worker));
        }
        let mut done = 0;
        while let Some(worked) = workers.join_next().await {
            done += worked??;
        }
        check(tasks, done)?;
        board.add(pairs("library", callers), tasks as f64 / watch.elapsed().as_secs_f64());
    }
    Ok(())
}

async fn drain(app: App, worker: usize) -> Result<usize> {
    let wanted = ClaimRequest {
        name: format!("w{worker}"),
        caller: "".into(),
        board: Some(boards::known(&app, "b")?),
        queues: Vec::new(),
        wait: Duration::ZERO,
        lease: Duration::from_secs(600),
        nonce: 0,
    };
    let mut done = 0;
    while let Ok(task) = boards::claim(&app, &wanted).await? {
        boards::done(&app, &task.token, &Done::default()).await?;
        done += 1;
    }
    Ok(done)
}

fn check(tasks: usize, done: usize) -> Result<()> {
    if tasks == done { Ok(()) } else { Err(format!("{tasks} tasks were done {done} times").into()) }
}

/// A private `sprag serve`, killed when it is dropped.
struct Server {
    child: Child,
    addr: String,
    /// The access token of every request.
    token: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    async fn start(data: &Path) -> Result<Server> {
        let program = std::env::current_exe()?.with_file_name("sprag");
        let mut child = Command::new(program)
            .args(["serve", "--listen", "127.0.0.1:0", "--no-worker"])
            .env("SPRAG_DATA", data)
            .stdout(Stdio::piped())
            .spawn()?;
        let told = child.stdout.take().ok_or("the server says nothing")?;
        let line = tokio::task::spawn_blocking(move || {
            let mut lines = std::io::BufRead::lines(std::io::BufReader::new(told));
            let found = lines.by_ref().take(50).flatten().find(|line| line.contains("http://"));
            // Further output is read and discarded, so that the server never blocks on its pipe.
            std::thread::spawn(move || lines.for_each(drop));
            found
        });
        let line = line.await?.ok_or("the server does not say where it listens")?;
        let addr = line.rsplit("http://").next().unwrap_or_default().trim().to_owned();
        let token = std::fs::read_to_string(data.join("token"))?.trim().to_owned();
        Ok(Server { child, addr, token })
    }

    /// Returns the memory in use, in MB.
    fn memory_mb(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").trim().parse::<f64>()? / 1024.0)
    }
}

/// A persistent connection.
struct Connection(BufReader<TcpStream>, String);

impl Connection {
    async fn open(server: &Server) -> Result<Connection> {
        let stream = TcpStream::connect(&server.addr).await?;
        stream.set_nodelay(true)?;
        Ok(Connection(BufReader::new(stream), server.token.clone()))
    }

    async fn post(&mut self, path: &str, body: &Value) -> Result<Value> {
        let body = body.to_string();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.1,
            body.len()
        );
        self.0.get_mut().write_all(request.as_bytes()).await?;
        let mut line = String::new();
        self.0.read_line(&mut line).await?;
        let status = line.clone();
        let mut length = 0;
        loop {
            line.clear();
            self.0.read_line(&mut line).await?;
            let header = line.trim().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(text) = header.strip_prefix("content-length:") {
                length = text.trim().parse()?;
            }
        }
        let mut answer = vec![0; length];
        self.0.read_exact(&mut answer).await?;
        if !status.starts_with("HTTP/1.1 2") {
            return Err(format!("{path}: {} {}", status.trim(), String::from_utf8_lossy(&answer)).into());
        }
        Ok(serde_json::from_slice(&answer)?)
    }
}

async fn filled(server: &Server, tasks: usize) -> Result<()> {
    let mut leader = Connection::open(server).await?;
    leader.post("/v1/boards", &json!({ "name": "b" })).await?;
    for batch in specs(tasks).chunks(BATCH) {
        leader.post("/v1/boards/b/tasks", &json!({ "tasks": batch })).await?;
    }
    Ok(())
}

async fn http(board: &mut Board, folder: &Path, tasks: usize) -> Result<()> {
    let data = tempfile::tempdir_in(folder)?;
    let server = Server::start(data.path()).await?;
    filled(&server, tasks).await?;
    let watch = Stopwatch::start();
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let mut connection = Connection::open(&server).await?;
        clients.spawn(async move {
            let wanted = json!({ "name": format!("w{client}"), "board": "b", "lease_s": 600 });
            let mut took = Vec::new();
            loop {
                let watch = Stopwatch::start();
                let told = connection.post("/v1/tasks/claim", &wanted).await?;
                let Some(token) = told["task"]["token"].as_str() else { return Result::Ok(took) };
                connection.post(&format!("/v1/tasks/{token}/done"), &json!({})).await?;
                took.push(watch.elapsed());
            }
        });
    }
    let mut took = Vec::new();
    while let Some(done) = clients.join_next().await {
        took.extend(done??);
    }
    let elapsed = watch.elapsed();
    check(tasks, took.len())?;
    board.add(pairs("HTTP", CLIENTS), tasks as f64 / elapsed.as_secs_f64());
    for percent in [50, 99] {
        let unit = if percent == 50 { "ms p50" } else { "ms p99" };
        let value = percentile(&mut took, percent).as_secs_f64() * 1e3;
        board.add(key("W2 pairs", "HTTP", CLIENTS, unit), value);
    }
    Ok(())
}

/// Measures the server's memory with many readers of live events, all of which receive every event.
async fn readers(board: &mut Board, folder: &Path, readers: usize) -> Result<()> {
    const TASKS: usize = 100;
    let data = tempfile::tempdir_in(folder)?;
    let server = Server::start(data.path()).await?;
    board.add(key("W5 memory", "server idle", 0, "MB"), server.memory_mb()?);
    let mut reading = JoinSet::new();
    for _ in 0..readers {
        let mut connection = Connection::open(&server).await?;
        let request = format!(
            "GET /v1/events?after=0 HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\naccept: text/event-stream\r\n\r\n",
            server.token
        );
        connection.0.get_mut().write_all(request.as_bytes()).await?;
        reading.spawn(async move {
            // A board and its tasks produce at least this many events.
            let (mut heard, mut line) = (0, String::new());
            while heard < TASKS {
                line.clear();
                if connection.0.read_line(&mut line).await? == 0 {
                    return Err("a reader was cut off".into());
                }
                heard += usize::from(line.starts_with("data:"));
            }
            Result::Ok(connection)
        });
    }
    filled(&server, TASKS).await?;
    let mut kept = Vec::new();
    while let Some(read) = tokio::time::timeout(Duration::from_secs(120), reading.join_next()).await? {
        kept.push(read??);
    }
    board.add(key("W5 memory", "server, SSE readers", readers, "MB"), server.memory_mb()?);
    Ok(())
}
