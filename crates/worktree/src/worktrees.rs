//! The worktrees of one repository in one data directory, and one of them in the hand of its owner.

use std::{
    ffi::OsString,
    fs,
    os::{fd::BorrowedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use sprag_process::is_held;

use crate::{
    entry::{self, OurEntry},
    error::{Attempt, Error, Kind},
    git::Git,
    lock::{DEFAULT_DEADLINE, make_folder, me},
    mark::{Mark, State, write_whole},
    owner::OwnerLock,
    repository::Repository,
    visit,
};

/// Bounds and sizes.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long is waited for the repository's lock.
    pub lock_deadline: Duration,
    /// How long a checkout, a fetch or a hook may take.
    pub git_timeout: Duration,
    /// How many clean worktrees are kept ready.
    pub pool_size: usize,
    /// How long processes of a run have to end after TERM, before KILL.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            lock_deadline: DEFAULT_DEADLINE,
            git_timeout: Duration::from_secs(600),
            pool_size: 4,
            grace: Duration::from_secs(5),
        }
    }
}

/// The worktrees of one repository in one data directory.
#[derive(Debug, Clone)]
pub struct Worktrees {
    pub(crate) repository: Repository,
    pub(crate) root: PathBuf,
    pub(crate) root_identity: (u64, u64),
    pub(crate) settings: Settings,
}

/// A worktree of ours, owned by this process as long as this value lives.
#[derive(Debug)]
pub struct Worktree {
    pub(crate) repository: Repository,
    pub(crate) mark: Mark,
    pub(crate) owner: OwnerLock,
    pub(crate) timeout: Duration,
    /// What a person should know although it worked: locks that git left behind, for instance.
    pub warnings: Vec<String>,
    /// Whether it came ready from the pool.
    pub from_pool: bool,
    /// Whether its files were written from those that git had checked out for another one at the same time.
    pub is_copy: bool,
}

/// What can be said about a worktree without owning it.
#[derive(Debug, Clone)]
pub struct Listed {
    /// Its mark.
    pub mark: Mark,
    /// Whether somebody of its run lives.
    pub is_held: bool,
    /// Whether its files are there.
    pub is_present: bool,
}

impl Worktrees {
    /// Opens, and makes if need be, the data directory. Git's clean-up in a checkout around it passes it by.
    pub fn open(repository: Repository, root: &Path, settings: Settings) -> Result<Worktrees, Error> {
        let open = || {
            make_folder(root)?;
            let root = fs::canonicalize(root).map_err(Kind::io("find", root))?;
            if root.to_str().is_none() {
                let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, "its name is not UTF-8");
                return Err(Kind::Io { doing: "use", path: root, source });
            }
            let ignore = root.join(".gitignore");
            if !ignore.exists() {
                write_whole(&ignore, b"*\n")?;
            }
            let found = fs::metadata(&root).map_err(Kind::io("look at", &root))?;
            let root_identity = (found.dev(), found.ino());
            Ok(Worktrees { repository, root, root_identity, settings })
        };
        open().attempt(|| format!("open the data directory {}", root.display()))
    }

    /// The repository.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// The data directory, in canonical form.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// All our worktrees of the repository, in whatever data directory.
    pub fn list(&self) -> Result<Vec<Listed>, Error> {
        let entries = entry::ours(&self.repository.entries_dir());
        let entries = entries
            .attempt(|| format!("list the worktrees of {}", self.repository.common_dir().display()))?;
        let listed = entries.into_iter().filter_map(|entry| entry.mark).map(|mark| Listed {
            is_held: is_held(&self.repository.owner_lock_path(&mark.id)).unwrap_or(true),
            is_present: mark.path.join(".git").exists(),
            mark,
        });
        Ok(listed.collect())
    }

    /// Takes over a worktree whose owner is gone, or that was kept: by its id or its path.
    pub fn adopt(&self, name: &str, run: &str) -> Result<Worktree, Error> {
        let adopt = || {
            let (entry, mut mark) = self.find(name)?;
            let owner = OwnerLock::take(&self.repository.owner_lock_path(&mark.id))?.ok_or_else(|| {
                Kind::InUse { path: mark.path.clone(), holder: format!("run {}", mark.run) }
            })?;
            // What looks left over is in use as long as somebody of the run is in it.
            if visit::entry_alone(&entry)?.is_some() {
                entry::repair(&entry, &mark)?;
            }
            mark.process = me();
            mark.prepared = false;
            run.clone_into(&mut mark.run);
            mark.state = State::Ready;
            mark.write(&entry)?;
            Ok(self.worktree(mark, owner))
        };
        adopt().attempt(|| format!("take over the worktree {name} for run {run}"))
    }

    /// One of ours by its id or its path: its entry and its mark.
    pub(crate) fn find(&self, name: &str) -> Result<(PathBuf, Mark), Kind> {
        let named = |entry: &OurEntry| {
            entry.id == name || entry.mark.as_ref().is_some_and(|mark| mark.path == Path::new(name))
        };
        let found = entry::ours(&self.repository.entries_dir())?.into_iter().find(named);
        let found = found.and_then(|entry| entry.mark.map(|mark| (entry.path, mark)));
        found.ok_or_else(|| Kind::NoSuchWorktree { name: name.to_owned() })
    }

    pub(crate) fn worktree(&self, mark: Mark, owner: OwnerLock) -> Worktree {
        let (repository, timeout) = (self.repository.clone(), self.settings.git_timeout);
        Worktree { repository, mark, owner, timeout, warnings: Vec::new(), from_pool: false, is_copy: false }
    }

    pub(crate) fn trash(&self) -> PathBuf {
        self.root.join(".trash")
    }

    pub(crate) fn entry_trash(&self) -> PathBuf {
        self.repository.sprag_dir().join("trash")
    }

    pub(crate) fn staging(&self) -> PathBuf {
        self.repository.sprag_dir().join("staging")
    }
}

impl Worktree {
    /// Where its files are.
    pub fn path(&self) -> &Path {
        &self.mark.path
    }

    /// Its name in the repository.
    pub fn id(&self) -> &str {
        &self.mark.id
    }

    /// The repository that it is of.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// All that is recorded about it.
    pub fn mark(&self) -> &Mark {
        &self.mark
    }

    /// The lock that says that somebody of its run lives.
    pub fn owner_lock(&self) -> &OwnerLock {
        &self.owner
    }

    /// Prepares a command to work in it: there, known to it, and without anything that leads git elsewhere.
    pub fn prepare(&self, command: &mut Command) {
        command.current_dir(self.path());
        crate::git::LOCAL_VARIABLES.iter().for_each(|variable| {
            command.env_remove(variable);
        });
        command.envs(self.environment());
        self.owner.inherit(command);
    }

    /// What processes that work in it should have in their environment: git tidies up elsewhere, under the lock.
    pub fn environment(&self) -> Vec<(String, String)> {
        environment_of(&self.mark)
    }

    /// Steps may come in: it has the right files and is set up; `setup_key` says what its ignored files are the
    /// result of, if they are of a new setup.
    pub fn set_prepared(&mut self, setup_key: Option<&str>) -> Result<(), Error> {
        self.mark.prepared = true;
        if let Some(key) = setup_key {
            self.mark.setup_key = Some(key.to_owned());
        }
        let written = self.mark.write(&self.entry());
        written.attempt(|| format!("record that the worktree {} is ready", self.path().display()))
    }

    /// Leaves it for a person to look at: no clean-up takes it until somebody adopts it.
    pub fn keep(mut self, reason: &str) -> Result<PathBuf, Error> {
        self.mark.state = State::Kept;
        self.mark.reason = Some(reason.to_owned());
        let written = self.mark.write(&self.entry());
        written.attempt(|| format!("keep the worktree {}", self.path().display()))?;
        Ok(self.mark.path.clone())
    }

    pub(crate) fn entry(&self) -> PathBuf {
        self.repository.entries_dir().join(&self.mark.id)
    }

    pub(crate) fn owner_fd(&self) -> BorrowedFd<'_> {
        self.owner.as_fd()
    }

    /// Git in its files, by its entry: also when its `.git` file is gone.
    pub(crate) fn git<'a>(&self, subcommand: &str) -> Git<'a> {
        git_in(&self.repository, &self.mark, subcommand)
    }

    /// The commit its HEAD is at, if there is one.
    pub(crate) fn head(&self) -> Result<Option<String>, Kind> {
        let output = self.git("rev-parse").args(["--verify", "--quiet", "HEAD"]).output()?;
        Ok(output.status.success().then(|| output.line()))
    }
}

/// What processes that work in a worktree should have in their environment.
pub(crate) fn environment_of(mark: &Mark) -> Vec<(String, String)> {
    let mut settings =
        vec![("gc.auto".to_owned(), "0".to_owned()), ("maintenance.auto".to_owned(), "false".to_owned())];
    settings.extend(sparse_settings(mark));
    let mut variables = vec![("GIT_CONFIG_COUNT".to_owned(), settings.len().to_string())];
    for (number, (key, value)) in settings.into_iter().enumerate() {
        variables.push((format!("GIT_CONFIG_KEY_{number}"), key));
        variables.push((format!("GIT_CONFIG_VALUE_{number}"), value));
    }
    variables.extend(mark.markers.iter().cloned());
    variables
}

/// Git in the files of a worktree, by its entry.
pub(crate) fn git_in<'a>(repository: &Repository, mark: &Mark, subcommand: &str) -> Git<'a> {
    let git = Git::with_settings(&mark.path, &sparse_settings(mark), subcommand);
    let work_tree: OsString = mark.path.clone().into();
    git.git_dir(&repository.entries_dir().join(&mark.id)).env("GIT_WORK_TREE", work_tree)
}

fn sparse_settings(mark: &Mark) -> Vec<(String, String)> {
    match mark.sparse.is_empty() {
        true => Vec::new(),
        false => ["core.sparseCheckout", "core.sparseCheckoutCone"]
            .map(|key| (key.to_owned(), "true".to_owned()))
            .into(),
    }
}
