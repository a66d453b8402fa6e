//! The worktrees of one repository in one data directory, and a single worktree with its owner lock.

use std::{
    ffi::OsString,
    fs,
    os::{fd::BorrowedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use sprag_process::{is_held, make_private_folder};

use crate::{
    entry::{self, OurEntry},
    error::{Attempt, Error, Kind},
    git::{Git, HOOKS_PATH, NO_HOOKS, RECURSE},
    lock::{DEFAULT_DEADLINE, current_process},
    mark::{Mark, State, write_atomic},
    owner::OwnerLock,
    quarantine::is_guarded,
    repository::Repository,
    visit,
};

/// Time limits and sizes.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The longest wait for the repository's lock.
    pub lock_deadline: Duration,
    /// The timeout of a checkout, a fetch or a hook.
    pub git_timeout: Duration,
    /// The most clean worktrees in the pool.
    pub pool_size: usize,
    /// The time between TERM and KILL for the processes of a run.
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

/// A worktree that this process owns while the value lives.
#[derive(Debug)]
pub struct Worktree {
    pub(crate) repository: Repository,
    pub(crate) mark: Mark,
    pub(crate) owner: OwnerLock,
    pub(crate) timeout: Duration,
    /// Warnings for the user about an otherwise successful operation, such as stale lock files of git.
    pub warnings: Vec<String>,
    /// Whether the worktree was taken from the pool.
    pub from_pool: bool,
    /// Whether it contains caches of runs with another key, which this run must not see.
    pub(crate) has_foreign_caches: bool,
    /// Whether its files were copied from a concurrent checkout of the same commit.
    pub is_copy: bool,
}

/// The state of a worktree, as any process can see it.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The worktree's mark.
    pub mark: Mark,
    /// Whether a process of its run is alive.
    pub is_held: bool,
    /// Whether its files exist.
    pub is_present: bool,
}

impl Worktrees {
    /// Opens the data directory and creates it if it is missing. Makes `git clean` in a surrounding checkout
    /// ignore it.
    pub fn open(repository: Repository, root: &Path, settings: Settings) -> Result<Worktrees, Error> {
        let open = || {
            make_private_folder(root).map_err(Kind::io("create the folder", root))?;
            let root = fs::canonicalize(root).map_err(Kind::io("find", root))?;
            if root.to_str().is_none() {
                let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, "its name is not UTF-8");
                return Err(Kind::Io { doing: "use", path: root, source });
            }
            let ignore = root.join(".gitignore");
            if !ignore.exists() {
                write_atomic(&ignore, b"*\n")?;
            }
            let found = fs::metadata(&root).map_err(Kind::io("inspect", &root))?;
            let root_identity = (found.dev(), found.ino());
            Ok(Worktrees { repository, root, root_identity, settings })
        };
        open().attempt(|| format!("open the data directory {}", root.display()))
    }

    /// Returns the repository.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// Returns the canonical path of the data directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns all worktrees of Sprag in the repository, in every data directory.
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

    /// Takes ownership of a worktree, by id or path, whose owner is gone or that was kept.
    pub fn adopt(&self, name: &str, run: &str) -> Result<Worktree, Error> {
        let adopt = || {
            let (entry, mut mark) = self.find(name)?;
            let owner = OwnerLock::take(&self.repository.owner_lock_path(&mark.id))?.ok_or_else(|| {
                Kind::InUse { path: mark.path.clone(), holder: format!("run {}", mark.run) }
            })?;
            // A worktree without an owner is still in use while a step of the run works in it.
            if visit::lock_entry(&entry)?.is_some() {
                entry::repair(&entry, &mark)?;
            }
            mark.process = current_process();
            mark.prepared = false;
            run.clone_into(&mut mark.run);
            mark.state = State::Ready;
            mark.write(&entry)?;
            let worktree = self.worktree(mark, owner);
            worktree.settle_landing()?;
            Ok(worktree)
        };
        adopt().attempt(|| format!("take over the worktree {name} for run {run}"))
    }

    /// Takes ownership of a worktree of this run in this data directory, to remove or pool it. Refuses a
    /// worktree whose mark names another run, another data directory or another path.
    pub fn adopt_to_remove(&self, path: &Path, run: &str) -> Result<Worktree, Error> {
        let check = || {
            let (_, mark) = self.find(&path.display().to_string())?;
            self.check_ours(&mark)?;
            if mark.run != run {
                let reason = format!("it belongs to run {}, not to run {run}", mark.run);
                return Err(Kind::NotOurs { path: mark.path, reason });
            }
            Ok(())
        };
        check().attempt(|| format!("take back the worktree {} of run {run}", path.display()))?;
        self.adopt(&path.display().to_string(), run)
    }

    /// Finds a worktree by id or path, and returns its entry and its mark.
    pub(crate) fn find(&self, name: &str) -> Result<(PathBuf, Mark), Kind> {
        let named = |entry: &OurEntry| {
            entry.id == name || entry.mark.as_ref().is_some_and(|mark| mark.path == Path::new(name))
        };
        let found = entry::ours(&self.repository.entries_dir())?.into_iter().find(named);
        let found = found.and_then(|entry| entry.mark.map(|mark| (entry.path, mark)));
        found.ok_or_else(|| Kind::NoSuchWorktree { name: name.to_owned() })
    }

    /// Returns the repository as configured for one worktree: with its hooks or without.
    pub(crate) fn repository_for(&self, mark: &Mark) -> Repository {
        if mark.without_hooks { self.repository.without_hooks() } else { self.repository.clone() }
    }

    pub(crate) fn worktree(&self, mark: Mark, owner: OwnerLock) -> Worktree {
        let (repository, timeout) = (self.repository_for(&mark), self.settings.git_timeout);
        Worktree {
            repository,
            mark,
            owner,
            timeout,
            warnings: Vec::new(),
            from_pool: false,
            has_foreign_caches: false,
            is_copy: false,
        }
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
    /// Returns the folder with its files.
    pub fn path(&self) -> &Path {
        &self.mark.path
    }

    /// Returns its id, the name of its entry in the repository.
    pub fn id(&self) -> &str {
        &self.mark.id
    }

    /// Returns its repository.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// Returns its mark.
    pub fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Returns its owner lock, which is held while a process of its run lives.
    pub fn owner_lock(&self) -> &OwnerLock {
        &self.owner
    }

    /// Prepares a command to run in the worktree: sets the folder, removes git's local variables, and passes on
    /// the owner lock.
    pub fn prepare(&self, command: &mut Command) {
        command.current_dir(self.path());
        crate::git::LOCAL_VARIABLES.iter().for_each(|variable| {
            command.env_remove(variable);
        });
        command.envs(self.environment());
        self.owner.inherit(command);
    }

    /// Returns the environment for processes in the worktree. It turns off git's automatic maintenance, which
    /// runs elsewhere under the lock.
    pub fn environment(&self) -> Vec<(String, String)> {
        environment_of(&self.mark)
    }

    /// Marks the worktree as ready for steps: it has the right files and is set up. `setup_key` identifies a
    /// setup that has just run.
    pub fn set_prepared(&mut self, setup_key: Option<&str>) -> Result<(), Error> {
        self.mark.prepared = true;
        if let Some(key) = setup_key {
            self.mark.setup_key = Some(key.to_owned());
        }
        let written = self.mark.write(&self.entry());
        written.attempt(|| format!("record that the worktree {} is ready", self.path().display()))
    }

    /// Keeps the worktree for a person to inspect. Recovery leaves it alone until it is adopted.
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

    /// Returns git for its files, by its entry, which also works without its `.git` file.
    pub(crate) fn git<'a>(&self, subcommand: &str) -> Git<'a> {
        git_in(&self.repository, &self.mark, subcommand)
    }

    /// Returns git's `add` for all of its files.
    pub(crate) fn add_all<'a>(&self) -> Result<Git<'a>, Kind> {
        let index = self.entry().join("index");
        let guarded = is_guarded(&self.repository, &self.mark).then_some(&*index);
        crate::quarantine::add_all(&|subcommand| self.git(subcommand), guarded)
    }

    /// Returns the commit at its HEAD; `None` before the first commit.
    pub(crate) fn head(&self) -> Result<Option<String>, Kind> {
        let output = self.git("rev-parse").args(["--verify", "--quiet", "HEAD"]).output()?;
        match output.status.code() {
            Some(0) => Ok(Some(output.line())),
            Some(1) => Ok(None),
            _ => Err(output.failure()),
        }
    }
}

/// Returns the environment for processes in a worktree.
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

/// Returns git for the files of a worktree, by its entry.
pub(crate) fn git_in<'a>(repository: &Repository, mark: &Mark, subcommand: &str) -> Git<'a> {
    let mut settings = sparse_settings(mark);
    if mark.without_hooks || !repository.runs_hooks() {
        settings.push((HOOKS_PATH.to_owned(), NO_HOOKS.to_owned()));
    }
    if is_guarded(repository, mark) {
        settings.push((RECURSE.to_owned(), "false".to_owned()));
    }
    let git = Git::with_settings(&mark.path, &settings, subcommand);
    let work_tree: OsString = mark.path.clone().into();
    git.git_dir(&repository.entries_dir().join(&mark.id)).env("GIT_WORK_TREE", work_tree)
}

fn sparse_settings(mark: &Mark) -> Vec<(String, String)> {
    if mark.sparse.is_empty() {
        return Vec::new();
    }
    ["core.sparseCheckout", "core.sparseCheckoutCone"].map(|key| (key.to_owned(), "true".to_owned())).into()
}
