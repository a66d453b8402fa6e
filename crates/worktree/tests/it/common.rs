//! Helpers of the tests: a repository with files, git as a user runs it, and a check that nothing is left.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use rustix::event::{Timespec, poll};
use sprag_worktree::{
    BranchPolicy, Cancel, CreateOptions, Error, Kind, Repository, Settings, Worktree, Worktrees,
};
use tempfile::TempDir;

/// A repository `repo` and a data directory `data` in a temporary folder.
pub struct Place {
    pub folder: TempDir,
}

impl Place {
    /// Creates a repository with `files` small files in one commit on `main`.
    pub fn new(files: usize) -> Place {
        let place = Place { folder: tempfile::tempdir().expect("a folder") };
        init(&place.repo(), files);
        place
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn repo(&self) -> PathBuf {
        self.path().join("repo")
    }

    pub fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    pub fn common(&self) -> PathBuf {
        self.repo().join(".git")
    }

    /// Waits until no owner lock is held. A process that another test starts inherits the lock's file between
    /// its fork and its exec.
    pub fn until_unowned(&self) {
        let owners = self.common().join("sprag/owners");
        let held = |entry: fs::DirEntry| sprag_process::is_held(&entry.path()).unwrap_or(true);
        wait_for("the owner locks", || !fs::read_dir(&owners).into_iter().flatten().flatten().any(held));
    }

    pub fn worktrees(&self) -> Worktrees {
        self.worktrees_with(settings())
    }

    pub fn worktrees_with(&self, settings: Settings) -> Worktrees {
        open(&self.repo(), &self.data(), settings)
    }

    pub fn git(&self, args: &[&str]) -> String {
        git(&self.repo(), args)
    }

    /// Checks that nothing of any worktree is left: no branch but main, no entry, no folder, no lock.
    pub fn assert_nothing_left(&self) {
        assert_eq!(self.git(&["for-each-ref", "--format=%(refname)", "refs/heads"]), "refs/heads/main");
        for folder in ["worktrees", "sprag/staging", "sprag/owners", "sprag/trash"] {
            let inside = children(&self.common().join(folder));
            assert!(inside.is_empty(), "{folder}: {inside:?}");
        }
        for folder in [".staging", ".trash"] {
            let inside = children(&self.data().join(folder));
            assert!(inside.is_empty(), "{folder}: {inside:?}");
        }
        let visible: Vec<String> =
            children(&self.data()).into_iter().filter(|name| !name.starts_with('.')).collect();
        assert!(visible.is_empty(), "{visible:?}");
        assert!(!self.common().join("refs/heads").join("work.lock").exists());
    }
}

pub fn settings() -> Settings {
    Settings { grace: Duration::from_millis(300), pool_size: 64, ..Settings::default() }
}

pub fn open(repo: &Path, data: &Path, settings: Settings) -> Worktrees {
    let repository = Repository::discover(repo).expect("a repository");
    Worktrees::open(repository, data, settings).expect("a data directory")
}

pub fn init(repo: &Path, files: usize) {
    fs::create_dir_all(repo).expect("a folder");
    git(repo, &["init", "--quiet", "--initial-branch=main"]);
    git(repo, &["config", "user.name", "Somebody"]);
    git(repo, &["config", "user.email", "somebody@example.com"]);
    for number in 0..files {
        let folder = repo.join(format!("dir{}", number / 100));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join(format!("file{number}.txt")), format!("file {number}\n")).expect("a file");
    }
    fs::write(repo.join(".gitignore"), "ignored/\n*.env\n/.sprag/\n").expect("a file");
    git(repo, &["add", "--all"]);
    git(repo, &["commit", "--quiet", "--message=first"]);
}

/// Runs git as a user would; it must succeed.
pub fn git(directory: &Path, args: &[&str]) -> String {
    let output = git_output(directory, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {args:?} in {}: {stderr}", directory.display());
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

pub fn git_output(directory: &Path, args: &[&str]) -> Output {
    Command::new("git").args(args).current_dir(directory).env("LC_ALL", "C").output().expect("git")
}

pub fn options(run: &str, branch: &str) -> CreateOptions {
    CreateOptions::new(run, run, branch, "main")
}

pub fn create(worktrees: &Worktrees, run: &str, branch: &str) -> Result<Worktree, Error> {
    worktrees.create(&options(run, branch), &Cancel::default())
}

/// Creates a worktree whose run died, so that its lock is free.
pub fn dead(worktrees: &Worktrees, run: &str, branch: &str) -> PathBuf {
    let worktree = create(worktrees, run, branch).expect("a worktree");
    worktree.path().to_owned()
}

pub fn remove(worktrees: &Worktrees, worktree: Worktree) -> sprag_worktree::Removed {
    worktrees.remove(worktree, BranchPolicy::Delete, &Cancel::default()).expect("removed")
}

pub fn recover(worktrees: &Worktrees) -> sprag_worktree::Recovered {
    worktrees.recover(&|_| false).expect("recovered")
}

pub fn entry_of(place: &Place, run: &str) -> PathBuf {
    let folder = place.common().join("worktrees");
    let name = children(&folder).into_iter().find(|name| name.starts_with(&format!("sprag-{run}-")));
    folder.join(name.expect("an entry of the run"))
}

pub fn is_clean(checkout: &Path) -> bool {
    git(checkout, &["status", "--porcelain"]).is_empty()
}

pub fn children(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .map(|entries| {
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        })
        .unwrap_or_default();
    names.sort();
    names
}

pub fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> Kind {
    result.expect_err("an error").kind
}

pub fn pause_ms(ms: i64) {
    let _ = poll(&mut [], Some(&Timespec { tv_sec: ms / 1000, tv_nsec: (ms % 1000 * 1_000_000) as _ }));
}

/// Waits for a condition, for at most 20 seconds.
pub fn wait_for(what: &str, condition: impl Fn() -> bool) {
    assert!((0..4_000).any(|_| condition() || (pause_ms(5), false).1), "waited in vain for {what}");
}

pub fn is_running(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

pub fn script(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("a script");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("executable");
}

pub fn is_nightly() -> bool {
    std::env::var_os("SPRAG_NIGHTLY").is_some()
}

/// Creates a repository whose main checkout has the submodule `sub`, and a git configuration that allows it.
pub fn with_submodule() -> (Place, PathBuf) {
    let place = Place::new(3);
    let inner = place.path().join("inner");
    init(&inner, 0);
    fs::write(inner.join("inner.txt"), "x\n").expect("a file");
    git(&inner, &["add", "."]);
    git(&inner, &["commit", "--quiet", "--message=inner"]);
    let url = inner.to_str().expect("text");
    place.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, "sub"]);
    place.git(&["commit", "--quiet", "--message=with a submodule"]);
    let config = place.path().join("gitconfig");
    let text =
        "[protocol \"file\"]\n\tallow = always\n[user]\n\tname = Somebody\n\temail = somebody@example.com\n";
    fs::write(&config, text).expect("a file");
    (place, config)
}
