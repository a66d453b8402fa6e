//! One git process: its own group, a scrubbed environment, a deadline, and never a question to a person.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{Read, Seek, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
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
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, set_parent_process_death_signal},
};

use crate::{clock, error::Kind, owner};

/// Commands that only look at refs and files end in milliseconds; a minute is a hang.
pub(crate) const SHORT: Duration = Duration::from_secs(60);

/// How long a group may take to end after TERM.
const GRACE_MS: u64 = 2_000;

/// How often a cancellation is looked for.
const LOOK_EVERY_MS: u64 = 20;

/// More than this of what a command says is of no use to anybody.
const LONGEST_STDERR: usize = 8_192;

/// What git calls local: variables that tie it to some other repository, index or worktree.
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

/// Tells a long operation that nobody wants its result any more.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Ends what is going on: its process group first, then what it had made.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked for.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A git command to be run.
pub(crate) struct Git<'a> {
    command: Command,
    words: String,
    settings: u32,
    timeout: Duration,
    cancel: Option<&'a Cancel>,
    input: Option<Vec<u8>>,
    /// Short commands that write refs shall finish what they began, even when we are killed.
    ends_with_us: bool,
    owner: Option<BorrowedFd<'a>>,
}

/// How it ended and what it said.
pub(crate) struct Output {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    words: String,
}

/// Git, without anything that ties it to another repository.
pub(crate) fn scrubbed(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for variable in LOCAL_VARIABLES {
        command.env_remove(variable);
    }
    command.env("LC_ALL", "C").env("GIT_TERMINAL_PROMPT", "0").env("GIT_OPTIONAL_LOCKS", "0");
    command.process_group(0).stdin(Stdio::null());
    command
}

impl<'a> Git<'a> {
    pub(crate) fn new(directory: &Path, subcommand: &str) -> Self {
        let mut command = scrubbed("git");
        command.current_dir(directory);
        for setting in
            ["gc.auto=0", "maintenance.auto=false", "core.fsmonitor=false", "advice.detachedHead=false"]
        {
            command.args(["-c", setting]);
        }
        let mut git = Git {
            command,
            words: String::new(),
            settings: 0,
            timeout: SHORT,
            cancel: None,
            input: None,
            ends_with_us: false,
            owner: None,
        };
        git.words.push_str(subcommand);
        git.command.arg(subcommand);
        git
    }

    /// Git with settings for this command alone.
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

    /// The repository's own directory, where the current folder does not tell.
    pub(crate) fn git_dir(self, path: &Path) -> Self {
        self.env("GIT_DIR", path)
    }

    pub(crate) fn index(self, path: &Path) -> Self {
        self.env("GIT_INDEX_FILE", path)
    }

    /// Commits that we make for ourselves carry our name, whether or not the person has one.
    pub(crate) fn by_sprag(self) -> Self {
        ["GIT_AUTHOR", "GIT_COMMITTER"].into_iter().fold(self, |git, who| {
            git.env(&format!("{who}_NAME"), "Sprag").env(&format!("{who}_EMAIL"), "sprag@localhost")
        })
    }

    pub(crate) fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = Some(bytes.into());
        self
    }

    /// A command that may take long: it is ended when we are, when asked to, and at its deadline.
    pub(crate) fn long(mut self, timeout: Duration, cancel: &'a Cancel) -> Self {
        self.timeout = timeout;
        self.cancel = Some(cancel);
        self.ends_with_us = true;
        self
    }

    /// While it or anything it starts lives, the worktree's owner lock is held.
    pub(crate) fn owned_by(mut self, owner: Option<BorrowedFd<'a>>) -> Self {
        self.owner = owner;
        self
    }

    /// Runs it to its end, whatever that is.
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
        if self.ends_with_us {
            // SAFETY: prctl is allowed between fork and exec. The thread that starts it waits for its end.
            unsafe {
                self.command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?));
            }
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
                if !status.success() {
                    // What it started must not go on after it failed.
                    signal_group(&child, Signal::KILL);
                }
                Ok(Output { status, stdout, stderr: shorten(&stderr), words: self.words })
            }
            Err(kind) => {
                end_group(&mut child);
                Err(kind)
            }
        }
    }

    /// Runs it, and takes anything but success for a failure.
    pub(crate) fn run(self) -> Result<Output, Kind> {
        let output = self.output()?;
        if output.status.success() { Ok(output) } else { Err(output.failure()) }
    }

    /// Runs it and returns its one line.
    pub(crate) fn line(self) -> Result<String, Kind> {
        Ok(self.run()?.line())
    }

    fn directory(&self) -> PathBuf {
        self.command.get_current_dir().unwrap_or(Path::new(".")).to_owned()
    }

    /// Reads what it says until it ends. Whoever it left behind may keep the pipes open; that is no reason to wait.
    fn follow(&self, child: &mut Child) -> Result<(ExitStatus, Vec<u8>, Vec<u8>), Kind> {
        let io = |source| Kind::Io { doing: "read the output of", path: "git".into(), source };
        let give_up_at_ms = clock::now_ms().saturating_add(self.timeout.as_millis() as u64);
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
        let mut said = [Vec::new(), Vec::new()];
        loop {
            let now_ms = clock::now_ms();
            if now_ms >= give_up_at_ms {
                return Err(Kind::TimedOut { command: self.words.clone(), after: self.timeout });
            }
            if self.cancel.is_some_and(Cancel::is_cancelled) {
                return Err(Kind::Cancelled);
            }
            let wait_ms = match self.cancel {
                Some(_) => LOOK_EVERY_MS.min(give_up_at_ms - now_ms),
                None => give_up_at_ms - now_ms,
            };
            wait_ready(pipes.iter().flatten().map(AsFd::as_fd).chain([handle.as_fd()]), wait_ms);
            let ended = child.try_wait().map_err(io)?;
            for (pipe, said) in pipes.iter_mut().zip(&mut said) {
                if pipe.as_mut().is_some_and(|pipe| drain(pipe, said)) {
                    *pipe = None;
                }
            }
            if let Some(status) = ended {
                let [stdout, stderr] = said;
                return Ok((status, stdout, stderr));
            }
        }
    }
}

impl Output {
    /// Its first line, or all of it without the end of line.
    pub(crate) fn line(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end_matches('\n').to_owned()
    }

    /// What it says separated by zero bytes.
    pub(crate) fn fields(&self) -> Vec<String> {
        let text = self.stdout.split(|&byte| byte == 0).filter(|field| !field.is_empty());
        text.map(|field| String::from_utf8_lossy(field).into_owned()).collect()
    }

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
            return Kind::StaleGitLock { path: path.into() };
        }
        let stderr = if self.stderr.is_empty() { self.line() } else { self.stderr.clone() };
        Kind::Git { command: self.words.clone(), status: self.status.to_string(), stderr }
    }
}

/// A value for an environment variable or argument out of path parts.
pub(crate) fn joined(prefix: &str, path: &Path) -> OsString {
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

/// Takes what is there; says whether the pipe is at its end.
fn drain(pipe: &mut File, said: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 65_536];
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => return true,
            Ok(length) => said.extend_from_slice(&buffer[..length]),
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
        // Looking again is all that can be done, and the deadline bounds it.
        Err(_) => clock::pause_ms(1),
    }
}

fn signal_group(child: &Child, signal: Signal) {
    if let Some(group) = Pid::from_raw(child.id() as i32) {
        // An empty group is what we want.
        let _ = kill_process_group(group, signal);
    }
}

/// TERM lets git remove its lock files; KILL ends the rest. Back when the child is gone.
fn end_group(child: &mut Child) {
    signal_group(child, Signal::TERM);
    let kill_at_ms = clock::now_ms() + GRACE_MS;
    while clock::now_ms() < kill_at_ms {
        match child.try_wait() {
            Ok(None) => clock::pause_ms(5),
            _ => break,
        }
    }
    signal_group(child, Signal::KILL);
    let _ = child.wait();
}

fn shorten(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim();
    match text.char_indices().nth(LONGEST_STDERR) {
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

    #[test]
    fn a_command_that_hangs_is_ended_with_its_group_at_its_deadline() {
        let folder = tempfile::tempdir().expect("a folder");
        let began_ms = clock::now_ms();
        let cancel = Cancel::default();
        let hangs = Git::new(folder.path(), "-c").args(["alias.hang=!sleep 1000 & sleep 1000", "hang"]);
        let result = hangs.long(Duration::from_millis(200), &cancel).run();
        assert!(matches!(result, Err(Kind::TimedOut { .. })));
        assert!(clock::now_ms() - began_ms < 5_000);
    }
}
