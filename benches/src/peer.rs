//! A peer as a separate process: built or installed beside this program, with requests and answers in lines of JSON.
//!
//! Each is in its own workspace or package (`benches/peers/`): their drivers and ours cannot be linked into one
//! program, and Sprag should not be built with dependencies that only they need.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::clock::Stopwatch;

/// A request to a peer.
#[derive(Serialize)]
pub(crate) struct Request<'a> {
    pub(crate) workload: Workload,
    /// The location of its data: a folder, or the URL of a private database.
    pub(crate) place: &'a str,
    /// The number of pipelines or tasks.
    pub(crate) tasks: usize,
    /// The number of steps of a pipeline.
    pub(crate) steps: usize,
    /// The number of concurrent pipelines or tasks.
    pub(crate) in_flight: usize,
    /// Whether to use its batched setting, if it has one.
    pub(crate) batched: bool,
}

#[derive(Serialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Workload {
    /// Steps one after the other, in `in_flight` concurrent pipelines.
    Pipelines,
    /// All tasks are enqueued, then executed.
    Claims,
    /// Pipelines one after the other, each timed.
    Latency,
}

/// The answer of a peer.
#[derive(Deserialize)]
pub(crate) struct Answer {
    elapsed_s: f64,
    /// The median duration of a pipeline in milliseconds.
    #[serde(default)]
    pub(crate) p50_ms: f64,
    /// The number of finished rows in its tables.
    done: usize,
    /// The number of tasks in the measured time, if not all.
    timed: Option<usize>,
    /// The number of tasks that were given to a worker twice.
    pub(crate) duplicates: usize,
    error: Option<String>,
}

impl Answer {
    /// Refuses an answer that contradicts its rows.
    fn check(self, request: &Request<'_>) -> Result<Self> {
        let expected = request.tasks * request.steps;
        match &self.error {
            Some(error) => Err(error.as_str().into()),
            None if self.done != expected => {
                Err(format!("it was given {expected} tasks, its tables have {} done", self.done).into())
            }
            None => Ok(self),
        }
    }

    /// Returns tasks per second.
    pub(crate) fn per_second(&self) -> f64 {
        self.timed.unwrap_or(self.done) as f64 / self.elapsed_s
    }
}

/// The command that starts a peer.
struct Program {
    file: PathBuf,
    /// The script for an interpreter.
    script: Option<PathBuf>,
}

/// A running peer. It exits when its input ends.
pub(crate) struct Peer {
    program: Program,
    process: Process,
}

struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Peer {
    /// Builds or installs the peer in this folder of `benches/peers`, and starts it.
    pub(crate) fn start(folder: &str) -> Result<Self> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(folder);
        let program = if source.join("Cargo.toml").exists() {
            build(&source, folder)?
        } else {
            install(&source, folder)?
        };
        let process = Process::start(&program)?;
        Ok(Peer { program, process })
    }

    /// Sends a request and waits for the answer.
    pub(crate) fn ask(&mut self, request: &Request<'_>) -> Result<Answer> {
        self.process.ask(request)?.check(request)
    }

    /// Measures one pipeline from the start of a separate process to its answer.
    pub(crate) fn cold(&self, request: &Request<'_>) -> Result<Duration> {
        let watch = Stopwatch::start();
        let answer = Process::start(&self.program)?.ask(request)?;
        let took = watch.elapsed();
        answer.check(request)?;
        Ok(took)
    }
}

impl Process {
    fn start(program: &Program) -> Result<Self> {
        let mut child = Command::new(&program.file)
            .args(&program.script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or("it has no output")?;
        Ok(Process { child, input, output: BufReader::new(output) })
    }

    fn ask(&mut self, request: &Request<'_>) -> Result<Answer> {
        let input = self.input.as_mut().ok_or("it was started without input")?;
        writeln!(input, "{}", serde_json::to_string(request)?)?;
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("it exited before it answered".into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Builds a peer in Rust.
fn build(source: &Path, name: &str) -> Result<Program> {
    let target = target_folder()?;
    let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "--quiet", "--locked", "--target-dir"])
        .arg(&target)
        .current_dir(source)
        .status()?;
    if !built.success() {
        return Err("it could not be built".into());
    }
    Ok(Program { file: target.join(format!("release/{name}-peer")), script: None })
}

/// Installs a peer for Node in a copy in the target folder, so that the source tree stays clean.
fn install(source: &Path, name: &str) -> Result<Program> {
    const LOCK: &str = "package-lock.json";
    let folder = target_folder()?.join(name);
    std::fs::create_dir_all(&folder)?;
    for file in std::fs::read_dir(source)? {
        let file = file?;
        std::fs::copy(file.path(), folder.join(file.file_name()))?;
    }
    // This file is written last, so that an incomplete installation is repeated.
    let installed = folder.join("node_modules/installed");
    let wanted = std::fs::read(folder.join(LOCK))?;
    if std::fs::read(&installed).ok().as_deref() != Some(&wanted) {
        let done = Command::new("npm")
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
            .current_dir(&folder)
            .stdout(Stdio::null())
            .status()
            .map_err(|error| format!("npm: {error}"))?;
        if !done.success() {
            return Err("it could not be installed".into());
        }
        std::fs::write(&installed, wanted)?;
    }
    Ok(Program { file: "node".into(), script: Some(folder.join("peer.js")) })
}

/// Returns the folder of the peers, `TARGET/peers`, next to this program's `TARGET/release`.
fn target_folder() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(2).ok_or("the program is in no target folder")?;
    Ok(target.join("peers"))
}
