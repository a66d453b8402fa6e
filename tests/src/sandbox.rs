//! A folder with its own data, and `sprag` processes that use no other.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde_json::Value;
use tempfile::TempDir;

use crate::journal::{Entry, Journal};
use crate::machine::{carrying, signal};
use crate::wait::{SOON, ready, until};

/// Returns the program under test, next to this test's own; built now if it does not exist.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let test = std::env::current_exe().expect("this test is a file");
        let folder = test.parent().expect("a program lies in a folder");
        // Tests lie in PROFILE/deps, other programs in PROFILE.
        let profile = folder.parent().filter(|_| folder.ends_with("deps")).unwrap_or(folder);
        let program = profile.join("sprag");
        if !program.exists() {
            let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            build.args(["build", "--package", "sprag-cli", "--manifest-path"]);
            build.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"));
            build.arg("--target-dir").arg(profile.parent().expect("profiles lie in a folder"));
            if profile.ends_with("release") {
                build.arg("--release");
            }
            assert!(build.status().expect("cargo runs").success(), "sprag is built");
        }
        program
    })
}

/// A folder that goes when it is dropped, with every process that worked in it.
pub struct Sandbox {
    folder: TempDir,
    /// The database that its processes use, if that is none of their own.
    store: Option<String>,
    started: AtomicU32,
}

impl Default for Sandbox {
    fn default() -> Self {
        Sandbox::new()
    }
}

impl Sandbox {
    /// Creates an empty sandbox.
    pub fn new() -> Self {
        Sandbox::with(None)
    }

    fn with(store: Option<String>) -> Self {
        Sandbox { folder: tempfile::tempdir().expect("a folder"), store, started: AtomicU32::new(0) }
    }

    /// Creates a sandbox whose processes store runs in this database, like one machine of many.
    pub fn on(store: &str) -> Self {
        Sandbox::with(Some(store.to_owned()))
    }

    /// Returns a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the data directory.
    pub fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// Returns the token that a server of this sandbox has written to its data directory.
    #[track_caller]
    pub fn local_token(&self) -> String {
        let token = fs::read_to_string(self.data().join("token")).expect("the server's token");
        token.trim().to_owned()
    }

    /// Writes a file, and creates the folders that it is in.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        let folder = path.parent().expect("a folder");
        fs::create_dir_all(folder).expect("the sandbox takes folders");
        fs::write(&path, text).expect("the folder takes files");
        path
    }

    /// Writes a pipeline file; `name.yaml` of this text.
    pub fn yaml(&self, name: &str, text: &str) -> PathBuf {
        self.write(&format!("{name}.yaml"), text)
    }

    /// Writes a pipeline of steps: `(id, what else it holds)`, each line of it indented as given.
    pub fn pipeline(&self, name: &str, steps: &[(&str, &str)]) -> PathBuf {
        let mut text = format!("name: {name}\nsteps:\n");
        for (id, keys) in steps {
            text += &format!("  - id: {id}\n");
            for line in keys.lines() {
                text += &format!("    {line}\n");
            }
        }
        self.write(&format!("{name}.yaml"), &text)
    }

    /// Returns the content of a file; empty if it does not exist.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Returns the lines of a file that steps append to.
    pub fn lines(&self, name: &str) -> Vec<String> {
        self.read(name).lines().map(str::to_owned).collect()
    }

    /// Returns `sprag` in this folder and with its data, without the rest of the test's environment.
    pub fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(program());
        command.args(args).current_dir(self.folder.path());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("SPRAG_") || name == "NO_COLOR" {
                command.env_remove(&*name);
            }
        }
        command.env("SPRAG_DATA", self.data()).stdin(Stdio::null());
        // Where tests find what steps did, and by what a sandbox finds its processes.
        command.env("SPRAG_INHERIT", "OUT,REPO,SPRAG_DATA");
        command.envs(self.store.iter().map(|url| ("SPRAG_STORE", url)));
        command
    }

    /// Returns `sprag` started by a shell script, with the same environment; the script ends with `exec "$@"`.
    pub fn command_through<A: AsRef<OsStr>>(
        &self,
        script: &str,
        args: impl IntoIterator<Item = A>,
    ) -> Command {
        let plain = self.command(args);
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(plain.get_program()).args(plain.get_args());
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Starts `sprag` without waiting for it.
    pub fn start<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Started {
        self.start_command(self.command(args))
    }

    /// Has the output of a command go to files. Returns the one of its standard output.
    pub(crate) fn record_output(&self, command: &mut Command) -> PathBuf {
        let no = self.started.fetch_add(1, Ordering::Relaxed);
        let (out, err) = (self.path(&format!("{no}.stdout")), self.path(&format!("{no}.stderr")));
        command.stdout(File::create(&out).expect("a file")).stderr(File::create(&err).expect("a file"));
        out
    }

    /// Starts a command with its output going to files.
    pub fn start_command(&self, mut command: Command) -> Started {
        let out = self.record_output(&mut command);
        let err = out.with_extension("stderr");
        let told = format!("{:?}", command.get_args().collect::<Vec<_>>());
        Started { child: command.spawn().expect("sprag starts"), out, err, told }
    }

    /// Runs `sprag` to its end.
    pub fn sprag<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Answer {
        self.start(args).finish()
    }

    /// Runs `sprag` to its end, which must be a success, and parses its answer as JSON.
    pub fn json<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Value {
        self.sprag(args).expect(0).json()
    }

    /// Runs a pipeline to an end with this exit code, and returns the run's id.
    #[track_caller]
    pub fn run(&self, args: &[&str], code: i32) -> String {
        let told = self.sprag(["run"].iter().chain(args).chain(&["--json"])).expect(code);
        let result = told.lines::<Value>().pop().expect("a result");
        result["run"].as_str().expect("an id").to_owned()
    }

    /// Returns the part of `sprag status --json` about one step, or about one item as `step[2]`.
    #[track_caller]
    pub fn step(&self, run: &str, id: &str) -> Value {
        let told = self.status(run);
        let steps = told["steps"].as_array().expect("steps");
        steps.iter().rfind(|step| step["id"] == id).unwrap_or_else(|| panic!("no {id}: {told}")).clone()
    }

    /// Returns each step with its status, as `a done, b failed`.
    pub fn steps(&self, run: &str) -> String {
        let told = self.status(run);
        let word = |step: &Value, key: &str| step[key].as_str().unwrap_or_default().to_owned();
        let steps = told["steps"].as_array().expect("steps").iter();
        let steps = steps.map(|step| format!("{} {}", word(step, "id"), word(step, "status")));
        steps.collect::<Vec<_>>().join(", ")
    }

    /// Starts a detached run, and returns its id.
    pub fn detach(&self, file: &Path) -> String {
        let told = self.json([OsStr::new("run"), file.as_os_str(), "--detach".as_ref(), "--json".as_ref()]);
        told["run"].as_str().expect("an id").to_owned()
    }

    /// Returns the newest run, which may be a board.
    pub fn newest(&self) -> Option<String> {
        let runs = self.json(["ls", "--boards", "--json", "-n", "1"]);
        runs[0]["id"].as_str().map(str::to_owned)
    }

    /// Returns `sprag status --json`.
    pub fn status(&self, run: &str) -> Value {
        self.json(["status", run, "--json"])
    }

    /// Returns the run's status in one word.
    pub fn status_word(&self, run: &str) -> String {
        self.status(run)["status"].as_str().expect("a status").to_owned()
    }

    /// Waits until a step has this status.
    pub fn until_step(&self, run: &str, step: &str, status: &str) {
        until(&format!("{step} of {run} is {status}"), || {
            let told = self.status(run);
            let steps = told["steps"].as_array().expect("steps");
            steps.iter().any(|one| one["id"] == step && one["status"] == status)
        });
    }

    /// Waits until a step has written a number (its process id) to a file.
    pub fn pid_in(&self, name: &str) -> i32 {
        until(&format!("{name} holds a process id"), || self.read(name).ends_with('\n'));
        self.read(name).trim().parse().expect("a process id")
    }

    /// Returns the journal of one run or all.
    pub fn journal(&self, run: Option<&str>) -> Journal {
        let mut args = vec!["events", "--json"];
        args.extend(run.into_iter().flat_map(|run| ["--run", run]));
        let entries = self.sprag(args).expect(0).lines::<Entry>();
        Journal { entries, whole: run.is_none() }
    }

    /// Waits until a run has ended, as it must.
    pub fn ends_as(&self, run: &str, status: &str) {
        let code = match status {
            "completed" => 0,
            "failed" => 100,
            _ => 130,
        };
        let told = self.sprag(["wait", run, "--json", "--timeout", "60s"]);
        if (told.code, told.json()["status"].as_str()) != (code, Some(status)) {
            let (steps, why) = (self.sprag(["status", run]), self.sprag(["explain", run]));
            panic!("run {run} is not {status}: {told:?}\n{steps:?}\n{why:?}\n{}", self.step_logs(run));
        }
    }

    /// Returns the logs of all steps of a run, for the message of a test that fails.
    fn step_logs(&self, run: &str) -> String {
        let ids = self.status(run)["steps"].as_array().cloned().unwrap_or_default();
        let ids = ids.iter().filter_map(|step| step["id"].as_str());
        ids.map(|id| format!("{id}: {:?}\n", self.sprag(["logs", run, id]))).collect()
    }

    /// Replays a run's journal and compares its end with the run's rows.
    pub fn check(&self, run: &str) -> Journal {
        let journal = self.journal(Some(run));
        journal.agrees_with(&self.status(run));
        journal
    }

    /// Keeps the folder when this is dropped, for inspection, and returns its path.
    pub fn keep(&mut self) -> PathBuf {
        self.folder.disable_cleanup(true);
        self.folder.path().to_owned()
    }

    /// Returns the processes that belong to a run.
    pub fn processes_of(&self, run: &str) -> Vec<i32> {
        carrying("SPRAG_RUN_ID", run)
    }
}

/// A test that fails must not leave its processes to the next.
impl Drop for Sandbox {
    fn drop(&mut self) {
        let data = self.data();
        // A process that was about to start another one is killed in the next round.
        for _ in 0..100 {
            let left = carrying("SPRAG_DATA", &data.to_string_lossy());
            if left.is_empty() {
                break;
            }
            for pid in left {
                signal(pid, Signal::KILL);
            }
        }
    }
}

/// A `sprag` process.
#[derive(Debug)]
pub struct Started {
    child: Child,
    out: PathBuf,
    err: PathBuf,
    told: String,
}

impl Started {
    /// Returns its process id.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Returns its standard output until now.
    pub fn stdout(&self) -> String {
        fs::read_to_string(&self.out).unwrap_or_default()
    }

    /// Returns its standard error until now.
    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.err).unwrap_or_default()
    }

    /// Sends it a signal.
    pub fn signal(&self, sent: Signal) {
        assert!(signal(self.pid(), sent), "{} is there", self.told);
    }

    /// Stops it at a moment when it does not write: one that is stopped in a write keeps everybody else from writing,
    /// for as long as it is stopped, as SQLite's locks are.
    pub fn stop_between_writes(&self) {
        until("it stops between two writes", || {
            self.signal(Signal::STOP);
            let stands = !self.has_write_lock();
            if !stands {
                self.signal(Signal::CONT);
            }
            stands
        });
    }

    /// Stops it in the middle of a write: until it continues, no other process can write to its SQLite file.
    pub fn stop_in_a_write(&mut self) {
        until("it stops in a write", || {
            assert!(self.is_running(), "it ended first: {}", self.stderr());
            self.signal(Signal::STOP);
            until("it stands", || self.is_stopped());
            let stands = self.has_write_lock();
            if !stands {
                self.signal(Signal::CONT);
            }
            stands
        });
    }

    /// Returns whether all its threads stand still.
    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("it is there");
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    }

    /// Returns whether it holds the write lock of a SQLite file: one byte of its shared memory.
    fn has_write_lock(&self) -> bool {
        const WRITER: &str = "120";
        let pid = self.pid().to_string();
        let locks = std::fs::read_to_string("/proc/locks").expect("the kernel tells of locks");
        // "12: POSIX  ADVISORY  WRITE 32299 fe:00:11633818 120 120"
        let held = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            [(1, "POSIX"), (3, "WRITE"), (4, &pid), (6, WRITER)]
                .iter()
                .all(|(no, word)| words.get(*no) == Some(word))
        };
        locks.lines().any(held)
    }

    /// Returns whether it has not ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it, and waits until it is gone.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns its command line.
    pub fn told(&self) -> &str {
        &self.told
    }

    /// Waits for its end. Returns whether it ended within this time.
    pub fn ends_within(&mut self, limit: Duration) -> bool {
        if let Some(pid) = Pid::from_raw(self.pid())
            && let Ok(handle) = pidfd_open(pid, PidfdFlags::empty())
        {
            ready(&mut [PollFd::from_borrowed_fd(handle.as_fd(), PollFlags::IN)], limit);
        }
        !self.is_running()
    }

    /// Waits for its end.
    pub fn finish(self) -> Answer {
        self.finish_within(SOON * 2)
    }

    /// Waits for its end, which must come within this time.
    pub fn finish_within(mut self, limit: Duration) -> Answer {
        self.ends_within(limit);
        match self.child.try_wait().expect("a child") {
            Some(status) => Answer {
                code: code(status),
                stdout: self.stdout(),
                stderr: self.stderr(),
                told: std::mem::take(&mut self.told),
            },
            None => {
                panic!("not within {limit:?}: {}\n{}\n{}", self.told, self.stdout(), self.stderr())
            }
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the exit code; the negative number of the signal that ended it otherwise.
fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| -status.signal().unwrap_or(0))
}

/// The result of a `sprag` process: its exit code and its output.
#[derive(Debug)]
pub struct Answer {
    /// The exit code.
    pub code: i32,
    /// For programs.
    pub stdout: String,
    /// For people.
    pub stderr: String,
    told: String,
}

impl Answer {
    /// Asserts the exit code.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}\n{}\n{}", self.told, self.stdout, self.stderr);
        self
    }

    /// Returns its output as one JSON value.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{}: {error}\n{}\n{}", self.told, self.stdout, self.stderr))
    }

    /// Returns its output as JSON values, one a line.
    #[track_caller]
    pub fn lines<T: serde::de::DeserializeOwned>(&self) -> Vec<T> {
        let read = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.stdout.lines().map(read).collect()
    }
}
