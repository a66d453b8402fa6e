//! One git process: a guard that stops its whole tree, a clean environment, a timeout, and no prompts.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{Read, Seek, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, OFlags, fcntl_getfl, fcntl_setfl, memfd_create},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use sprag_process::{OnParentExit, guard, inherited_by_git, kill_adopted};

use crate::{clock, error::Kind, owner, stale_lock};

/// The timeout of commands that only read refs and files. They take milliseconds.
pub(crate) const SHORT: Duration = Duration::from_secs(60);

/// The longest wait for a guard to stop its tree after TERM: longer than its own grace.
const GUARD_MS: u64 = 5_000;

/// The longest wait for the kernel to kill the processes of a killed guard.
const ADOPTED_DEADLINE: Duration = Duration::from_secs(10);

/// Subcommands that only read and write git's own objects. They run no hooks, filters or helpers, and need no
/// guard.
const UNGUARDED: [&str; 16] = [
    "cat-file",
    "check-attr",
    "check-ignore",
    "check-ref-format",
    "commit-tree",
    "config",
    "count-objects",
    "for-each-ref",
    "ls-files",
    "ls-tree",
    "merge-base",
    "rev-list",
    "rev-parse",
    "show-ref",
    "var",
    "version",
];

/// The interval of checks for a cancellation.
const CHECK_INTERVAL_MS: u64 = 20;

/// The most characters of a command's stderr in an error.
const MAX_STDERR_CHARS: usize = 8_192;

/// The settings of every git process of Sprag, the first words of its command line. A bare repository must be named
/// explicitly, because a branch can contain a folder that looks like one, with filters and hooks from a foreign commit.
const SETTINGS: [&str; 5] = [
    "gc.auto=0",
    "maintenance.auto=false",
    "core.fsmonitor=false",
    "advice.detachedHead=false",
    "safe.bareRepository=explicit",
];

/// The setting for the folder of hooks, and the value that disables them.
pub(crate) const HOOKS_PATH: &str = "core.hooksPath";
pub(crate) const NO_HOOKS: &str = "/dev/null";

/// The setting that makes git enter submodules. It is off where a sandboxed step may have replaced one.
pub(crate) const RECURSE: &str = "submodule.recurse";

/// The variable in which git passes the settings of its command line to the programs that it starts.
const GIT_CONFIG_PARAMETERS: &[u8] = b"GIT_CONFIG_PARAMETERS=";

/// The variables that git calls local: they bind it to another repository, index or worktree.
pub(crate) const LOCAL_VARIABLES: [&str; 17] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_PARAMETERS",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_INTERNAL_SUPER_PREFIX",
    "GIT_NAMESPACE",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
];

/// A flag that cancels a long operation.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Cancels the operation: its processes are stopped, and its changes are rolled back.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether the operation was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A git command to run.
pub(crate) struct Git<'a> {
    command: Command,
    words: String,
    settings: u32,
    timeout: Duration,
    max_output: usize,
    cancel: Option<&'a Cancel>,
    input: Option<Vec<u8>>,
    /// Whether the command stops when this process dies. Short commands that write refs finish instead.
    stops_with_parent: bool,
    owner: Option<BorrowedFd<'a>>,
}

/// The exit status and the output of a command.
pub(crate) struct Output {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    words: String,
}

/// Creates a command without git's local variables, and without the variables that hooks and filters must not
/// see: Sprag's own and the secrets of steps.
pub(crate) fn scrubbed(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs(inherited_by_git());
    for variable in LOCAL_VARIABLES {
        command.env_remove(variable);
    }
    command.env("LC_ALL", "C").env("GIT_TERMINAL_PROMPT", "0").env("GIT_OPTIONAL_LOCKS", "0");
    command.process_group(0).stdin(Stdio::null());
    command
}

/// Whether Sprag has started a git process, here or in another program: it has our settings on its command line. A git
/// that such a git starts, itself or through a hook, has them from git in its environment. Both are given as the kernel
/// shows them. No variable of our own is needed, which hooks would see.
pub(crate) fn is_ours(command_line: &[u8], environment: &[u8]) -> bool {
    let mut words = command_line.split(|&byte| byte == 0).skip(1);
    let on_line = SETTINGS
        .iter()
        .all(|setting| words.next() == Some(b"-c") && words.next() == Some(setting.as_bytes()));
    let inherited = || {
        let variables = environment.split(|&byte| byte == 0);
        // Git quotes keys and values apart or, before 2.31, together.
        let mut told = variables.filter_map(|variable| variable.strip_prefix(GIT_CONFIG_PARAMETERS));
        let plain =
            told.next().map(|told| told.iter().copied().filter(|&byte| byte != b'\'').collect::<Vec<u8>>());
        plain.is_some_and(|plain| plain.starts_with(SETTINGS.join(" ").as_bytes()))
    };
    on_line || inherited()
}

impl<'a> Git<'a> {
    pub(crate) fn new(directory: &Path, subcommand: &str) -> Self {
        let mut command = scrubbed("git");
        command.current_dir(directory);
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        let mut git = Git {
            command,
            words: String::new(),
            settings: 0,
            timeout: SHORT,
            max_output: usize::MAX,
            cancel: None,
            input: None,
            stops_with_parent: false,
            owner: None,
        };
        git.words.push_str(subcommand);
        git.command.arg(subcommand);
        git
    }

    /// Creates git with settings for this command alone.
    pub(crate) fn with_settings(directory: &Path, settings: &[(String, String)], subcommand: &str) -> Self {
        settings.iter().fold(Git::new(directory, subcommand), |git, (key, value)| git.setting(key, value))
    }

    pub(crate) fn setting(mut self, key: &str, value: &str) -> Self {
        let number = self.settings;
        self.settings += 1;
        self.command.env(format!("GIT_CONFIG_KEY_{number}"), key);
        self.command.env(format!("GIT_CONFIG_VALUE_{number}"), value);
        self.command.env("GIT_CONFIG_COUNT", self.settings.to_string());
        self
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.words.push(' ');
        self.words.push_str(&arg.as_ref().to_string_lossy());
        self.command.arg(arg);
        self
    }

    pub(crate) fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(self, args: I) -> Self {
        args.into_iter().fold(self, Git::arg)
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets the git directory, where the current folder does not determine it.
    pub(crate) fn git_dir(self, path: &Path) -> Self {
        self.env("GIT_DIR", path)
    }

    pub(crate) fn index(self, path: &Path) -> Self {
        self.env("GIT_INDEX_FILE", path)
    }

    /// Uses Sprag as author and committer, so that internal commits need no configured identity.
    pub(crate) fn by_sprag(self) -> Self {
        ["GIT_AUTHOR", "GIT_COMMITTER"].into_iter().fold(self, |git, who| {
            git.env(&format!("{who}_NAME"), "Sprag").env(&format!("{who}_EMAIL"), "sprag@localhost")
        })
    }

    pub(crate) fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = Some(bytes.into());
        self
    }

    /// Marks a command that may take long: it stops at its timeout, when cancelled, and when this process dies.
    pub(crate) fn long(mut self, timeout: Duration, cancel: &'a Cancel) -> Self {
        self.timeout = timeout;
        self.cancel = Some(cancel);
        self.stops_with_parent = true;
        self
    }

    /// Stops the command when it prints more bytes than this.
    pub(crate) fn at_most(mut self, bytes: usize) -> Self {
        self.max_output = bytes;
        self
    }

    /// Makes the command and its children hold the worktree's owner lock.
    pub(crate) fn owned_by(mut self, owner: Option<BorrowedFd<'a>>) -> Self {
        self.owner = owner;
        self
    }

    /// Runs the command to its end, successful or not.
    pub(crate) fn output(mut self) -> Result<Output, Kind> {
        if self.cancel.is_some_and(Cancel::is_cancelled) {
            return Err(Kind::Cancelled);
        }
        if let Some(input) = self.input.take() {
            self.command.stdin(memory_file(&input).map_err(Kind::io("prepare the input of", "git"))?);
        }
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(owner) = self.owner {
            owner::inherit(&mut self.command, owner.as_raw_fd());
        }
        let first = self.words.split(' ').next().unwrap_or_default();
        if self.stops_with_parent || !UNGUARDED.contains(&first) {
            // The starting thread waits for the command, because the guard is notified of that thread's death.
            guard(
                &mut self.command,
                if self.stops_with_parent { OnParentExit::Stop } else { OnParentExit::Finish },
            );
        }
        let mut child = self.command.spawn().map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound if !self.directory().is_dir() => {
                Kind::Io { doing: "work in", path: self.directory(), source }
            }
            std::io::ErrorKind::NotFound => {
                Kind::GitUnusable { message: "the program `git` was not found".to_owned() }
            }
            _ => Kind::Io { doing: "start", path: "git".into(), source },
        })?;
        match self.follow(&mut child) {
            Ok((status, stdout, stderr)) => {
                if status.signal() == Some(Signal::KILL.as_raw()) {
                    kill_leftovers();
                }
                Ok(Output { status, stdout, stderr: shorten(&stderr), words: self.words })
            }
            Err(kind) => {
                stop_tree(&mut child);
                Err(kind)
            }
        }
    }

    /// Runs the command. Any status but success is an error.
    pub(crate) fn run(self) -> Result<Output, Kind> {
        let output = self.output()?;
        if output.status.success() { Ok(output) } else { Err(output.failure()) }
    }

    /// Runs the command and returns its output of one line.
    pub(crate) fn line(self) -> Result<String, Kind> {
        Ok(self.run()?.line())
    }

    fn directory(&self) -> PathBuf {
        self.command.get_current_dir().unwrap_or(Path::new(".")).to_owned()
    }

    /// Reads the output until the command ends. Does not wait for other processes that keep the pipes open.
    fn follow(&self, child: &mut Child) -> Result<(ExitStatus, Vec<u8>, Vec<u8>), Kind> {
        let io = |source| Kind::Io { doing: "read the output of", path: "git".into(), source };
        let deadline_ms = clock::now_ms().saturating_add(self.timeout.as_millis() as u64);
        let pid =
            Pid::from_raw(child.id() as i32).ok_or_else(|| io(std::io::Error::other("no process id")))?;
        let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| io(error.into()))?;
        let mut pipes: [Option<File>; 2] = [
            child.stdout.take().map(|pipe| File::from(OwnedFd::from(pipe))),
            child.stderr.take().map(|pipe| File::from(OwnedFd::from(pipe))),
        ];
        for pipe in pipes.iter().flatten() {
            let flags = fcntl_getfl(pipe).map_err(|error| io(error.into()))?;
            fcntl_setfl(pipe, flags | OFlags::NONBLOCK).map_err(|error| io(error.into()))?;
        }
        let mut output = [Vec::new(), Vec::new()];
        loop {
            let now_ms = clock::now_ms();
            if now_ms >= deadline_ms {
                return Err(Kind::TimedOut { command: self.words.clone(), after: self.timeout });
            }
            if self.cancel.is_some_and(Cancel::is_cancelled) {
                return Err(Kind::Cancelled);
            }
            let wait_ms = match self.cancel {
                Some(_) => CHECK_INTERVAL_MS.min(deadline_ms - now_ms),
                None => deadline_ms - now_ms,
            };
            wait_ready(pipes.iter().flatten().map(AsFd::as_fd).chain([handle.as_fd()]), wait_ms);
            let ended = child.try_wait().map_err(io)?;
            for (pipe, output) in pipes.iter_mut().zip(&mut output) {
                if pipe.as_mut().is_some_and(|pipe| drain(pipe, output, self.max_output)) {
                    *pipe = None;
                }
                if output.len() > self.max_output {
                    return Err(Kind::TooMuchOutput { command: self.words.clone(), most: self.max_output });
                }
            }
            if let Some(status) = ended {
                let [stdout, stderr] = output;
                return Ok((status, stdout, stderr));
            }
        }
    }
}

impl Output {
    /// Returns the output without the line end.
    pub(crate) fn line(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end_matches('\n').to_owned()
    }

    /// Returns the output, split at zero bytes.
    pub(crate) fn fields(&self) -> Vec<String> {
        let text = self.stdout.split(|&byte| byte == 0).filter(|field| !field.is_empty());
        text.map(|field| String::from_utf8_lossy(field).into_owned()).collect()
    }

    /// Returns the error of a command that failed. If a lock file that a killed git left behind is the reason, the file
    /// is removed, so that a retry can succeed.
    pub(crate) fn failure(&self) -> Kind {
        if self.stderr.contains("detected dubious ownership")
            && let Some(path) = self.stderr.split('\'').nth(1)
        {
            return Kind::DubiousOwnership { path: path.into() };
        }
        if let Some(path) =
            self.stderr.split("Unable to create '").nth(1).and_then(|rest| rest.split('\'').next())
            && self.stderr.contains("File exists")
        {
            let path = PathBuf::from(path);
            stale_lock::remove_if_abandoned(&path);
            return Kind::StaleGitLock { path };
        }
        let stderr = if self.stderr.is_empty() { self.line() } else { self.stderr.clone() };
        Kind::Git { command: self.words.clone(), status: self.status.to_string(), stderr }
    }
}

/// Returns the prefix followed by the path.
pub(crate) fn with_prefix(prefix: &str, path: &Path) -> OsString {
    let mut text = OsString::from(prefix);
    text.push(path);
    text
}

fn memory_file(bytes: &[u8]) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("sprag-git-input", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

/// Reads the available bytes. Returns whether the pipe is at its end.
fn drain(pipe: &mut File, output: &mut Vec<u8>, most: usize) -> bool {
    let mut buffer = [0; 65_536];
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => return true,
            Ok(length) => {
                output.extend_from_slice(&buffer[..length]);
                if output.len() > most {
                    return false;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

fn wait_ready<'f>(fds: impl Iterator<Item = BorrowedFd<'f>>, timeout_ms: u64) {
    let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let timeout =
        Timespec { tv_sec: (timeout_ms / 1000) as i64, tv_nsec: (timeout_ms % 1000 * 1_000_000) as _ };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        // Retrying is all that can be done, and the timeout limits it.
        Err(_) => clock::pause_ms(1),
    }
}

/// Stops the tree through its guard. TERM lets git remove its lock files; KILL ends the rest. Returns when the
/// tree is gone.
fn stop_tree(child: &mut Child) {
    if let Some(pid) = Pid::from_raw(child.id() as i32) {
        // It has not been reaped, so the pid is still its own.
        let _ = kill_process(pid, Signal::TERM);
    }
    let kill_at_ms = clock::now_ms() + GUARD_MS;
    while clock::now_ms() < kill_at_ms {
        match child.try_wait() {
            Ok(None) => clock::pause_ms(5),
            _ => return,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    kill_leftovers();
}

/// Kills the processes that a killed guard left to this program.
fn kill_leftovers() {
    // The function logs processes that it cannot kill, and the next call finds them again.
    let _ = kill_adopted(ADOPTED_DEADLINE);
}

fn shorten(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim();
    match text.char_indices().nth(MAX_STDERR_CHARS) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_that_git_calls_local_is_scrubbed() {
        let listed = Git::new(Path::new("/"), "rev-parse").arg("--local-env-vars").run().expect("git");
        for name in String::from_utf8_lossy(&listed.stdout).lines() {
            assert!(LOCAL_VARIABLES.contains(&name), "{name}");
        }
    }

    /// Has git start a program that tells its own command line and environment, as a hook would see them.
    fn told_by_a_child(with_settings: bool) -> (Vec<u8>, Vec<u8>) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (line, environment) = (path("line"), path("environment"));
        let alias = format!(
            "alias.spy=!cat /proc/$PPID/cmdline > '{line}'; env --null | cat /dev/stdin /proc/self/environ > '{environment}'"
        );
        let status = if with_settings {
            Git::new(folder.path(), "-c")
                .args([&alias, "spy"])
                .run()
                .map(|output| output.status)
                .expect("git")
        } else {
            let words = ["-c", alias.as_str(), "spy"];
            scrubbed("git").current_dir(folder.path()).args(words).status().expect("git")
        };
        assert!(status.success());
        (std::fs::read(line).expect("a line"), std::fs::read(environment).expect("an environment"))
    }

    #[test]
    fn our_git_and_its_children_are_recognized_without_a_variable() {
        let (line, environment) = told_by_a_child(true);
        assert!(is_ours(&line, b""), "{}", String::from_utf8_lossy(&line));
        assert!(is_ours(b"git\0stash\0", &environment), "{}", String::from_utf8_lossy(&environment));
        assert!(!String::from_utf8_lossy(&environment).contains("SPRAG"), "hooks see nothing of Sprag's");
        let (line, environment) = told_by_a_child(false);
        assert!(!is_ours(&line, &environment));
        assert!(!is_ours(b"git\0-c\0gc.auto=0\0stash\0", b"GIT_CONFIG_PARAMETERS='gc.auto'='0'\0"));
    }

    #[test]
    fn a_hanging_command_is_stopped_with_its_group_at_its_timeout() {
        let folder = tempfile::tempdir().expect("a folder");
        let started_ms = clock::now_ms();
        let cancel = Cancel::default();
        let hangs = Git::new(folder.path(), "-c").args(["alias.hang=!sleep 1000 & sleep 1000", "hang"]);
        let result = hangs.long(Duration::from_millis(200), &cancel).run();
        assert!(matches!(result, Err(Kind::TimedOut { .. })));
        assert!(clock::now_ms() - started_ms < 5_000);
    }
}
