//! apalis-sqlite as a process of its own: asked and answered in lines of JSON.
//!
//! It lives in its own workspace, for its driver and ours cannot be linked into one program.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::Result;

/// What the peer is asked to do.
#[derive(Serialize)]
pub(crate) struct Request<'a> {
    /// `chained`: each task enqueues its successor; `drain`: enqueued first, then worked off.
    pub(crate) workload: &'static str,
    /// Where its file goes.
    pub(crate) folder: &'a Path,
    /// How many chains, or tasks.
    pub(crate) tasks: usize,
    /// How many tasks a chain has.
    pub(crate) steps: usize,
    /// How many are worked on at once.
    pub(crate) in_flight: usize,
}

/// What came of it.
#[derive(Deserialize)]
pub(crate) struct Answer {
    elapsed_s: f64,
    /// Rows of its table that are done.
    done: usize,
    /// Tasks that were handed to a worker twice.
    pub(crate) duplicates: usize,
    error: Option<String>,
}

impl Answer {
    /// Tasks per second, if its rows say that all were done.
    pub(crate) fn per_second(&self, tasks: usize) -> Result<f64> {
        if let Some(error) = &self.error {
            return Err(format!("apalis: {error}").into());
        }
        if self.done != tasks {
            return Err(format!("apalis was given {tasks} tasks, its table has {} done", self.done).into());
        }
        Ok(tasks as f64 / self.elapsed_s)
    }
}

/// The peer's process; it ends when its input does.
pub(crate) struct Apalis {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Apalis {
    /// Builds and starts it.
    pub(crate) fn start() -> Result<Self> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/apalis");
        let target = target_folder()?;
        let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--release", "--quiet", "--locked", "--target-dir"])
            .arg(&target)
            .current_dir(&source)
            .status()?;
        if !built.success() {
            return Err("it could not be built".into());
        }
        let mut child = Command::new(target.join("release/apalis-peer"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or("it has no output")?;
        Ok(Apalis { child, input, output: BufReader::new(output) })
    }

    /// Asks, and waits for the answer.
    pub(crate) fn ask(&mut self, request: &Request<'_>) -> Result<Answer> {
        let input = self.input.as_mut().ok_or("apalis was started without input")?;
        writeln!(input, "{}", serde_json::to_string(request)?)?;
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("apalis ended before it answered".into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Apalis {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Beside this program's own: `TARGET/release/sprag-benches` and `TARGET/peers`.
fn target_folder() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(2).ok_or("the program lies in no target folder")?;
    Ok(target.join("peers"))
}
