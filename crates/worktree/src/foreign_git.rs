//! Running git commands of other programs in a checkout or a repository.
//!
//! Several git commands take the index lock more than once and assume that nothing changes in between. `git
//! stash pop` writes back an index that it computed before its merge, and `git rebase --abort` resets the
//! branch to its position at the start of the rebase. If a landing moved the branch in between, the rest of the
//! command would undo it. So a landing waits, for a limited time, until no such command is running in a
//! checkout that it is about to update.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    time::Duration,
};

use sprag_process::boot_ms;

use crate::{
    clock,
    git::{self, Git},
};

/// The interval between two checks of the processes.
const POLL_INTERVAL_MS: u64 = 5;

/// Commands that change neither index nor HEAD.
const READERS: [&str; 34] = [
    "annotate",
    "archive",
    "blame",
    "bundle",
    "cat-file",
    "check-ignore",
    "config",
    "credential",
    "daemon",
    "serialise",
    "diff",
    "difftool",
    "fetch",
    "for-each-ref",
    "fsck",
    "fsmonitor--daemon",
    "gc",
    "grep",
    "help",
    "log",
    "ls-files",
    "ls-remote",
    "ls-tree",
    "maintenance",
    "prune",
    "push",
    "remote",
    "repack",
    "rev-list",
    "rev-parse",
    "shortlog",
    "show",
    "show-ref",
    "status",
];

/// Global options of git that take a separate value.
const WITH_VALUE: [&str; 6] = ["-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env"];

/// A set of pids.
pub(crate) type Processes = BTreeSet<u32>;

/// Waits, for at most `bound_ms`, until no foreign git command that could change a checkout is running in these
/// folders. Ignores the processes in `known`. Returns those that are still running.
pub(crate) fn wait_until_idle(folders: &[&Path], known: &Processes, bound_ms: u64) -> Processes {
    let deadline_ms = clock::now_ms() + bound_ms;
    loop {
        let running: Processes = writers(folders).difference(known).copied().collect();
        if running.is_empty() || clock::now_ms() >= deadline_ms {
            return running;
        }
        clock::pause_ms(POLL_INTERVAL_MS);
    }
}

/// Returns the foreign git commands in these folders that could change a checkout.
pub(crate) fn writers(folders: &[&Path]) -> Processes {
    git_processes(|process| is_writer(process, folders))
}

/// Returns the `git prune` commands that are running in a repository, or in a place that cannot be determined.
pub(crate) fn prunes(common_dir: &Path) -> Processes {
    git_processes(|process| {
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        subcommand(&words(&line)) == Some("prune") && !is_elsewhere(process, common_dir)
    })
}

/// Returns whether a git command that is at least this old is running on this machine, in any repository.
pub(crate) fn is_running_since(age: Duration) -> bool {
    !git_processes(|process| age_of(process).is_some_and(|found| found >= age)).is_empty()
}

/// Returns the age of a process; none if it has ended.
fn age_of(process: &Path) -> Option<Duration> {
    /// The unit of this time, which is the same on every Linux.
    const TICKS_PER_SECOND: u64 = 100;
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    // The program's name, in parentheses, may contain anything. The start is the 20th field after it.
    let started: u64 = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()?;
    Some(Duration::from_millis(boot_ms().saturating_sub(started * 1000 / TICKS_PER_SECOND)))
}

fn git_processes(wanted: impl Fn(&Path) -> bool) -> Processes {
    let Ok(processes) = fs::read_dir("/proc") else { return Processes::new() };
    let numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_git = |process: &Path| fs::read(process.join("comm")).is_ok_and(|name| name == b"git\n");
    let wanted = |number: &u32| {
        let process = PathBuf::from(format!("/proc/{number}"));
        is_git(&process) && wanted(&process)
    };
    numbers.filter(wanted).collect()
}

/// Returns whether a process certainly works in another repository.
fn is_elsewhere(process: &Path, common_dir: &Path) -> bool {
    let Ok(current) = fs::read_link(process.join("cwd")) else { return false };
    let asked = ["--path-format=absolute", "--git-common-dir"];
    let found = Git::new(&current, "rev-parse").args(asked).output();
    found.is_ok_and(|found| {
        let path = fs::canonicalize(found.line()).unwrap_or_default();
        found.status.success() && path != common_dir
    })
}

fn is_writer(process: &Path, folders: &[&Path]) -> bool {
    works_in(process, folders)
        && fs::read(process.join("cmdline")).is_ok_and(|line| {
            let environment = || fs::read(process.join("environ")).unwrap_or_default();
            !is_reader(&words(&line)) && !git::is_ours(&line, &environment())
        })
}

fn works_in(process: &Path, folders: &[&Path]) -> bool {
    let Ok(current): Result<PathBuf, _> = fs::read_link(process.join("cwd")) else { return false };
    folders.iter().any(|folder| current.starts_with(folder))
}

fn words(line: &[u8]) -> Vec<String> {
    let words = line.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    words.map(|word| OsString::from_vec(word.to_vec()).to_string_lossy().into_owned()).collect()
}

/// Returns whether a git command only reads. An alias is not expanded and counts as a command that writes.
fn is_reader(words: &[String]) -> bool {
    subcommand(words).is_none_or(|word| READERS.contains(&word))
}

/// Returns the subcommand of a git command line.
fn subcommand(words: &[String]) -> Option<&str> {
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        if WITH_VALUE.contains(&word.as_str()) {
            words.next();
        } else if !word.starts_with('-') {
            return Some(word);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(line: &str) -> bool {
        is_reader(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_command_is_found_behind_gits_own_options() {
        for line in
            ["git log", "git --no-pager -C /x diff", "git -c a=b --git-dir /x status", "git --version"]
        {
            assert!(reads(line), "{line}");
        }
        for line in ["git commit -m log", "git -C /log stash pop", "git -c a=b pull", "git my-alias"] {
            assert!(!reads(line), "{line}");
        }
    }
}
