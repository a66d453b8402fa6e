//! A git repository in a sandbox, for runs with worktrees.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::sandbox::{Answer, Sandbox, Started};

/// A sandbox with a repository `repo`, whose branch `main` has one commit.
pub struct Project {
    /// The sandbox.
    pub sandbox: Sandbox,
}

impl Default for Project {
    fn default() -> Self {
        Project::new()
    }
}

impl Project {
    /// Creates a project.
    pub fn new() -> Self {
        Project::of(Sandbox::new())
    }

    /// Creates a project whose processes store runs in this database.
    pub fn on(store: &str) -> Self {
        Project::of(Sandbox::on(store))
    }

    fn of(sandbox: Sandbox) -> Self {
        let project = Project { sandbox };
        project.repository("repo");
        project
    }

    /// Makes another repository of the same kind beside it.
    pub fn repository(&self, name: &str) -> PathBuf {
        let path = self.sandbox.path(name);
        fs::create_dir_all(&path).expect("a folder");
        git(&path, ["init", "--quiet", "--initial-branch=main"]);
        git(&path, ["config", "user.name", "A Person"]);
        git(&path, ["config", "user.email", "person@example.org"]);
        fs::write(path.join("shared.txt"), "first\n").expect("a file");
        fs::write(path.join(".gitignore"), "ignored*\n").expect("a file");
        git(&path, ["add", "."]);
        git(&path, ["commit", "--quiet", "--message", "first"]);
        path
    }

    /// Returns the repository's main checkout.
    pub fn repo(&self) -> PathBuf {
        self.sandbox.path("repo")
    }

    /// Runs git in the main checkout, which must succeed, and returns its output.
    pub fn git<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> String {
        git(&self.repo(), args)
    }

    /// Writes a file and commits it on the branch of the main checkout.
    pub fn commit(&self, name: &str, text: &str) {
        let path = self.repo().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
        self.git(["add", "--", name]);
        self.git(["commit", "--quiet", "--message", &format!("{name} by a person")]);
    }

    /// Returns the content of a file of the main checkout.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.repo().join(name)).unwrap_or_default()
    }

    /// Writes a pipeline beside the repository, from its head and its steps, and returns its path.
    pub fn pipeline(&self, name: &str, head: &str, steps: &str) -> PathBuf {
        self.sandbox.write(&format!("{name}.yaml"), &format!("name: {name}\n{head}\nsteps:\n{steps}\n"))
    }

    /// Starts `sprag` in the repository.
    pub fn start<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Started {
        self.start_in(&self.repo(), args)
    }

    /// Starts `sprag` in a folder.
    pub fn start_in<A: AsRef<OsStr>>(&self, dir: &Path, args: impl IntoIterator<Item = A>) -> Started {
        self.sandbox.start_command(self.command_in(dir, args))
    }

    /// Returns `sprag` in a folder; its steps find the sandbox in $OUT and the repository in $REPO.
    pub fn command_in<A: AsRef<OsStr>>(&self, dir: &Path, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = self.sandbox.command(args);
        command.current_dir(dir).env("OUT", self.sandbox.path("")).env("REPO", self.repo());
        command
    }

    /// Runs `sprag` in the repository to its end.
    pub fn sprag<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Answer {
        self.start(args).finish()
    }

    /// Runs a pipeline, which must end with this exit code, and returns its run.
    pub fn run(&self, file: &Path, code: i32) -> String {
        self.sprag([OsStr::new("run"), file.as_os_str()]).expect(code);
        self.sandbox.newest().expect("a run")
    }

    /// Returns whether a run has not ended.
    pub fn status_is_live(&self, run: &str) -> bool {
        !["completed", "failed", "cancelled"].contains(&self.sandbox.status_word(run).as_str())
    }

    /// Returns the folder in which a run works, or worked.
    pub fn worktree(&self, run: &str) -> PathBuf {
        let shown = self.sandbox.json(["env", "show", run, "--json"]);
        shown[0]["path"].as_str().expect("a path").into()
    }

    /// Returns `sprag env ls --json` without the worktrees that are kept ready.
    pub fn environments(&self) -> Vec<Value> {
        let listed = self.sandbox.json(["env", "ls", "--json"]);
        let listed = listed.as_array().expect("a list").clone();
        listed.into_iter().filter(|one| one["status"] != "pooled").collect()
    }

    /// Returns Sprag's worktrees that git lists outside of the pool: leftovers of finished runs.
    pub fn registered(&self) -> Vec<String> {
        let listed = self.git(["worktree", "list", "--porcelain"]);
        let paths = listed.lines().filter_map(|line| line.strip_prefix("worktree "));
        paths
            .filter(|path| path.contains("/worktrees/") && !path.contains("/.pool/"))
            .map(str::to_owned)
            .collect()
    }

    /// Returns the names of refs with this prefix.
    pub fn refs(&self, prefix: &str) -> Vec<String> {
        self.git(["for-each-ref", "--format=%(refname)", prefix]).lines().map(str::to_owned).collect()
    }

    /// Asserts that nothing is left of any run: no environment, no entry, no branch but `main`, nothing staged.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert_eq!(self.environments(), Vec::<Value>::new());
        assert_eq!(self.registered(), Vec::<String>::new());
        assert_eq!(self.refs("refs/heads"), ["refs/heads/main"]);
        let ours = self.repo().join(".git/sprag");
        let data = self.sandbox.data().join("worktrees");
        for folder in [ours.join("staging"), ours.join("trash"), data.join(".staging"), data.join(".trash")] {
            let left: Vec<_> = fs::read_dir(&folder).into_iter().flatten().flatten().collect();
            assert!(left.is_empty(), "{} holds {left:?}", folder.display());
        }
    }
}

/// Runs git in a folder, which must succeed, and returns its output.
#[track_caller]
pub fn git<A: AsRef<OsStr>>(dir: &Path, args: impl IntoIterator<Item = A>) -> String {
    let output = try_git(dir, args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git in {}: {said}", dir.display());
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Returns a git command in a folder.
pub fn try_git<A: AsRef<OsStr>>(dir: &Path, args: impl IntoIterator<Item = A>) -> Output {
    let mut command = Command::new("git");
    command.args(args).current_dir(dir);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GIT_") {
            command.env_remove(name);
        }
    }
    command.env("GIT_CONFIG_NOSYSTEM", "1").output().expect("git is there")
}

/// Returns a larger number in the nightly run.
pub fn nightly<T>(usual: T, long: T) -> T {
    if std::env::var_os("SPRAG_NIGHTLY").is_some() { long } else { usual }
}
