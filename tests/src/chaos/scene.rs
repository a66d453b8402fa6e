//! The scene of chaos: a sandbox with a repository and a bare remote, the counters, and the findings.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::pipelines::{MARKS, Pipeline};
use crate::{Answer, Project, Random, Signal, Started, git, now_ms, signal, try_git, wait::ready};

/// The longest that a command which does no steps may take; processes that hold a lock are stopped for less than this.
const PATIENCE: Duration = Duration::from_secs(180);
/// The lease of every process: short, so that pauses outlast it.
pub(super) const LEASE: [&str; 2] = ["--lease", "5s"];

/// Records each move of a branch of the remote, and whether it drops commits.
const UPDATE_HOOK: &str = r#"#!/bin/sh
zero=0000000000000000000000000000000000000000
kind=forward
if [ "$2" != $zero ] && { [ "$3" = $zero ] || ! git merge-base --is-ancestor "$2" "$3"; }; then kind=rewound; fi
printf '%s %s %s %s\n' "$kind" "$1" "$2" "$3" >> "$GIT_DIR/moves"
"#;

/// See the module's documentation.
pub(super) struct Scene {
    pub(super) project: Project,
    /// The port of the server from which workers without a database claim.
    port: u16,
    deadline_ms: u64,
    over: AtomicBool,
    counted: Mutex<BTreeMap<&'static str, u64>>,
    found: Mutex<Vec<String>>,
}

impl Scene {
    /// A repository with a remote, all pipelines, and places for marks. Runs are kept in this database, or in a file.
    pub(super) fn new(lasts: Duration, store: Option<&str>) -> Scene {
        let project = store.map_or_else(Project::new, Project::on);
        let scene = Scene {
            project,
            port: free_port(),
            deadline_ms: now_ms() + lasts.as_millis() as u64,
            over: AtomicBool::new(false),
            counted: Mutex::default(),
            found: Mutex::default(),
        };
        for folder in ["marks", "groups", "remote.git"] {
            fs::create_dir_all(scene.path(folder)).expect("a folder");
        }
        let sandbox = &scene.project.sandbox;
        sandbox.write("marks.sh", MARKS);
        for pipeline in Pipeline::all() {
            sandbox.yaml(pipeline.name, &pipeline.text());
        }
        let remote = scene.path("remote.git");
        git(&remote, ["init", "--quiet", "--bare", "--initial-branch=main"]);
        let hook = remote.join("hooks/update");
        fs::create_dir_all(remote.join("hooks")).expect("a folder");
        fs::write(&hook, UPDATE_HOOK).expect("a file");
        executable(&hook);
        let repo = scene.project.repo();
        fs::write(repo.join("words.txt"), "").expect("a file");
        scene.project.commit("words.txt", "");
        scene.project.git(["remote", "add", "origin", "../remote.git"]);
        scene.project.git(["push", "--quiet", "--set-upstream", "origin", "main"]);
        git(&scene.path("."), ["clone", "--quiet", "remote.git", "colleague"]);
        let colleague = scene.path("colleague");
        git(&colleague, ["config", "user.name", "A Colleague"]);
        git(&colleague, ["config", "user.email", "colleague@example.org"]);
        scene
    }

    /// Returns a file of the sandbox.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.project.sandbox.path(name)
    }

    /// Returns whether chaos still runs.
    pub(super) fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed) && now_ms() < self.deadline_ms
    }

    /// Ends chaos before its time.
    pub(super) fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Waits up to this many milliseconds, less if chaos ends.
    pub(super) fn pause(&self, ms: u64) {
        let until_ms = now_ms() + ms;
        while self.goes_on() && now_ms() < until_ms {
            ready(&mut [], Duration::from_millis(20));
        }
    }

    /// Counts something for the figures.
    pub(super) fn count(&self, what: &'static str) {
        self.count_many(what, 1);
    }

    /// Counts several at once.
    pub(super) fn count_many(&self, what: &'static str, times: usize) {
        *self.counted.lock().expect("no thread panics with it").entry(what).or_default() += times as u64;
    }

    /// Returns the counters.
    pub(super) fn counted(&self) -> BTreeMap<&'static str, u64> {
        self.counted.lock().expect("no thread panics with it").clone()
    }

    /// Notes a finding, and prints it at once.
    pub(super) fn finding(&self, check: &str, what: impl Display) {
        let text = format!("{check}: {what}");
        eprintln!("FINDING {text}");
        self.found.lock().expect("no thread panics with it").push(text);
    }

    /// Returns the findings.
    pub(super) fn findings(&self) -> Vec<String> {
        self.found.lock().expect("no thread panics with it").clone()
    }

    /// Appends a line to a file that the checks read.
    pub(super) fn note(&self, file: &str, line: &str) {
        let mut open = OpenOptions::new().create(true).append(true).open(self.path(file)).expect("a file");
        open.write_all(format!("{line}\n").as_bytes()).expect("the folder takes files");
    }

    /// Returns the lines of a file of the sandbox.
    pub(super) fn lines(&self, file: &str) -> Vec<String> {
        self.project.sandbox.lines(file)
    }

    /// Starts `sprag` in the repository.
    pub(super) fn start(&self, args: &[&str]) -> Started {
        self.project.start(args)
    }

    /// Returns the address of the server that workers without a database claim from.
    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the data directory of workers without a database.
    pub(super) fn elsewhere(&self) -> PathBuf {
        self.path("elsewhere")
    }

    /// Starts a worker that knows nothing but an address and a token; none if no server has made a token yet.
    pub(super) fn start_elsewhere(&self, args: &[&str]) -> Option<Started> {
        let token = fs::read_to_string(self.project.sandbox.data().join("token")).ok()?;
        let url = format!("http://{}", self.address());
        let args = ["worker", "--server", &url].into_iter().chain(args.iter().copied());
        let mut command = self.project.command_in(&self.path("."), args);
        command
            .env_remove("SPRAG_STORE")
            .env("SPRAG_DATA", self.elsewhere())
            .env("SPRAG_TOKEN", token.trim());
        Some(self.project.sandbox.start_command(command))
    }

    /// Waits for the end of a process. One that takes longer is killed, and that is a finding.
    pub(super) fn ended(&self, mut process: Started, limit: Duration) -> Option<Answer> {
        if !process.ends_within(limit) {
            let stderr = process.stderr();
            self.finding("hang", format!("expected {} to end within {limit:?}\n{stderr}", process.told()));
            process.kill();
            return None;
        }
        let answer = process.finish();
        let panicked = answer.code == 101 || answer.stderr.contains("panicked at");
        if panicked {
            self.finding("panic", format!("{answer:?}"));
        }
        Some(answer)
    }

    /// Runs `sprag` to its end. A hang is a finding.
    pub(super) fn sprag(&self, args: &[&str]) -> Option<Answer> {
        self.ended(self.start(args), PATIENCE)
    }

    /// Runs `sprag` and parses its answer; none if it failed.
    pub(super) fn json(&self, args: &[&str]) -> Option<Value> {
        let answer = self.sprag(args)?;
        if answer.code != 0 { None } else { serde_json::from_str(&answer.stdout).ok() }
    }

    /// Stops a process for a while, and continues it, whatever happens meanwhile.
    pub(super) fn stop_for(&self, process: &Started, ms: u64) {
        signal(process.pid(), Signal::STOP);
        self.count("SIGSTOP");
        self.pause(ms);
        signal(process.pid(), Signal::CONT);
    }

    /// Kills a process.
    pub(super) fn kill(&self, process: Started) {
        self.count("kill -9");
        process.kill();
    }

    /// Runs git as a person does. Returns whether it succeeded.
    pub(super) fn git(&self, folder: &Path, args: &[&str]) -> bool {
        try_git(folder, args).status.success()
    }
}

/// Returns a number between the two, the second excluded.
pub(super) fn between(random: &mut Random, from: u64, to: u64) -> u64 {
    from + random.below(to - from)
}

/// Returns true with this probability in percent.
pub(super) fn chance(random: &mut Random, percent: u64) -> bool {
    random.below(100) < percent
}

/// Returns a loopback port on which no process listens.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("loopback");
    listener.local_addr().expect("an address").port()
}

fn executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a file of ours");
}
