//! Turning an environment's row into files on this machine, or into nothing.
//!
//! A row of another host describes another machine's disk, and a remote worker wrote it. Paths of rows are used
//! through [`LocalFiles`] only, so that this machine never acts on what a remote worker says.

use std::path::{Path, PathBuf};

use sprag_process::VOUCHED_MARK;
use sprag_store::{EnvironmentDetails, EnvironmentRow};
use sprag_worktree::Repository;

/// The files of an environment that is on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalFiles {
    /// The worktree or folder.
    pub path: PathBuf,
    /// The repository's git directory; none if it is not known.
    pub repository: Option<PathBuf>,
}

impl LocalFiles {
    /// Returns the files of a row of this host; none if the row is another host's, or its files are nowhere.
    pub fn of(row: &EnvironmentRow) -> Option<LocalFiles> {
        let here = !row.path.is_empty() && *row.host == *sprag_worker::host();
        here.then(|| LocalFiles::on_this_host(&row.path, &EnvironmentDetails::of_readable(row)))
    }

    /// Returns the files that a server told this machine's worker of. The server tells a worker of its own host only.
    pub fn on_this_host(path: &str, details: &EnvironmentDetails) -> LocalFiles {
        LocalFiles { path: path.into(), repository: details.repository.as_deref().map(PathBuf::from) }
    }

    /// Returns the repository of an environment, on every host that has the run's repository at the same path: its
    /// worktree may have been on this host before. None if only a remote worker's word stands for it.
    pub fn repository_of(row: &EnvironmentRow) -> Option<PathBuf> {
        let details = EnvironmentDetails::of_readable(row);
        let hosts = [Some(&*row.host), details.lost_host.as_deref()];
        let vouched = hosts.into_iter().flatten().any(|host| host.contains(VOUCHED_MARK));
        if vouched { None } else { details.repository.map(PathBuf::from) }
    }

    /// Whether the files are in this folder of worktrees, and not in another data directory's.
    pub fn are_in(&self, root: &Path) -> bool {
        let canonical = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        self.path.parent().is_some_and(|parent| canonical(parent) == canonical(root))
    }

    /// Opens the repository, if it is there.
    pub fn repository(&self) -> Option<Repository> {
        Repository::discover_for(self.repository.as_deref()?, &self.path).ok()
    }
}
