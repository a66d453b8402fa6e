//! Other processes for a test: the test program itself, started again in a role.
//!
//! A module that uses this has a test called `child_role`, which does nothing unless it is a child.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

const ROLE: &str = "SPRAG_TEST_ROLE";
const FOLDER: &str = "SPRAG_TEST_FOLDER";
const GIVEN: &str = "SPRAG_TEST_GIVEN";
/// The prefix of a child's messages: the test harness writes to the same pipe.
const MARK: &str = "say: ";
/// No child is waited for longer than this.
const DEADLINE: Duration = Duration::from_secs(100);

/// The task of a child process.
pub struct Part {
    pub role: String,
    pub folder: PathBuf,
    pub given: i64,
}

/// Returns the task of this process, if it is a child.
pub fn part() -> Option<Part> {
    Some(Part {
        role: std::env::var(ROLE).ok()?,
        folder: std::env::var_os(FOLDER)?.into(),
        given: std::env::var(GIVEN).ok()?.parse().ok()?,
    })
}

/// Sends a line to the parent. The line is in the pipe when this returns, whatever happens to this process.
pub fn say(line: impl std::fmt::Display) {
    let line = format!("{MARK}{line}\n");
    std::io::stdout().lock().write_all(line.as_bytes()).expect("the parent listens");
}

/// Returns the parent's next message; none when the parent is done or gone.
pub fn hear() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line).expect("the parent speaks");
    (read > 0).then(|| line.trim().to_owned())
}

/// Another process. It is ended when this is dropped.
pub struct Child {
    process: std::process::Child,
    lines: Receiver<String>,
}

impl Child {
    /// Starts this program again in a role, `MODULE::ROLE`.
    pub fn start(role: &str, folder: &Path, given: i64) -> Child {
        let (module, role) = role.split_once("::").expect("the module that plays it, and the role");
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([&format!("{module}::child_role"), "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(FOLDER, folder)
            .env(GIVEN, given.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some((_, said)) = line.split_once(MARK)
                    && sender.send(said.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        Child { process, lines }
    }

    /// Returns its next line; none when it has ended.
    pub fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(DEADLINE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the child says nothing"),
        }
    }

    /// Asserts that its next line is this.
    pub fn expect(&self, wanted: &str) {
        assert_eq!(self.line().as_deref(), Some(wanted));
    }

    /// Says a line to it.
    pub fn tell(&mut self, line: &str) {
        let stdin = self.process.stdin.as_mut().expect("a child hears until it is awaited");
        writeln!(stdin, "{line}").expect("the child hears");
    }

    /// Kills it at once (SIGKILL), and returns its lines until then.
    pub fn kill(mut self) -> Vec<String> {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        std::iter::from_fn(|| self.line()).collect()
    }

    /// Waits for its end, which must be a success, and returns its lines.
    pub fn end(mut self) -> Vec<String> {
        drop(self.process.stdin.take());
        let said = std::iter::from_fn(|| self.line()).collect();
        let status = self.process.wait().unwrap();
        assert!(status.success(), "the child failed: {status}");
        said
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts `n` children in one role, numbered from 1, and lets them go once all are ready.
pub fn start_together(n: i64, role: &str, folder: &Path) -> Vec<Child> {
    let mut children: Vec<Child> = (1..=n).map(|number| Child::start(role, folder, number)).collect();
    children.iter().for_each(|child| child.expect("ready"));
    children.iter_mut().for_each(|child| child.tell("go"));
    children
}

/// Does the child's part of `start_together`.
pub fn ready() {
    say("ready");
    assert_eq!(hear().as_deref(), Some("go"));
}
