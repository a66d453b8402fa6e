//! Looks at the refs of any repository: a folder, the remote of one, or an address.
//!
//! ```text
//!   refs_of ──▶ names and commits (git ls-remote)
//!   changed_paths ──▶ a folder: its own objects
//!                     others: a bare repository in a cache, which keeps the tips that were seen
//! ```
//!
//! Git asks for no password here: a server has no terminal, and a question would last until the timeout.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    error::{Error, Kind},
    git::{Cancel, Git},
};

/// The longest time for the list of refs.
const LOOK_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest time to fetch commits whose paths are compared.
const FETCH_TIMEOUT: Duration = Duration::from_secs(300);
/// The most bytes of a list of refs or paths.
const MAX_LIST: usize = 16 << 20;
/// The transports that may be used. Others, such as `ext`, run commands from the address.
const TRANSPORTS: &str = "file:git:http:https:ssh";
/// The name of the remote in the cache.
const REMOTE: &str = "watched";

/// A repository to look at.
#[derive(Debug, Clone, Copy)]
pub struct WatchedRepository<'a> {
    /// The folder for relative paths and names of remotes.
    pub folder: &'a Path,
    /// A path, the name of a remote, or an address; empty for the folder itself.
    pub address: &'a str,
}

/// A change of a ref.
#[derive(Debug, Clone, Copy)]
pub struct RefChange<'a> {
    /// The ref's full name.
    pub name: &'a str,
    /// The commit before; empty if the ref is new.
    pub old: &'a str,
    /// The commit now; empty if the ref is gone.
    pub new: &'a str,
}

impl WatchedRepository<'_> {
    /// Returns the commits of all refs, by name.
    pub fn refs(&self, cancel: &Cancel) -> Result<BTreeMap<String, String>, Error> {
        let own = if self.address.is_empty() { Some(self.own_git_dir(cancel)?) } else { None };
        let address = own.as_deref().map_or(self.address.as_ref(), Path::as_os_str);
        let command =
            quiet(Git::new(self.folder, "ls-remote")).args(["--refs", "--quiet", "--"]).arg(address);
        let output = command.long(LOOK_TIMEOUT, cancel).at_most(MAX_LIST).run();
        let output = output.map_err(|kind| self.failed("read the refs of", kind))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let refs = text.lines().filter_map(|line| line.split_once('\t'));
        let is_commit = |oid: &str| oid.len() >= 40 && oid.bytes().all(|byte| byte.is_ascii_hexdigit());
        let refs = refs.filter(|(oid, name)| is_commit(oid) && name.starts_with("refs/"));
        Ok(refs.map(|(oid, name)| (name.to_owned(), oid.to_owned())).collect())
    }

    /// Returns the paths in which the commits of a change differ; none if they cannot be compared, because the ref is
    /// new or gone, a commit is no longer there, or the list is too long.
    pub fn changed_paths(
        &self,
        cache: &Path,
        change: RefChange<'_>,
        cancel: &Cancel,
    ) -> Result<Option<Vec<String>>, Error> {
        if change.old.is_empty() || change.new.is_empty() {
            return Ok(None);
        }
        let git_dir = match self.own_folder() {
            Some(_) if self.address.is_empty() => self.own_git_dir(cancel)?,
            Some(folder) => git_dir(&folder),
            None => {
                self.keep_tips(cache, &[change.name], cancel)?;
                cache.to_owned()
            }
        };
        let differences = quiet(Git::new(&git_dir, "diff-tree"))
            .git_dir(&git_dir)
            .env("GIT_NO_LAZY_FETCH", "1")
            .args(["-r", "-z", "--name-only", "--no-renames", "--no-ext-diff", "--no-textconv"])
            .args([change.old, change.new, "--"])
            .long(LOOK_TIMEOUT, cancel)
            .at_most(MAX_LIST);
        match differences.output() {
            Ok(output) if output.status.success() => Ok(Some(output.fields())),
            Ok(_) | Err(Kind::TooMuchOutput { .. }) => Ok(None),
            Err(kind) => Err(self.failed("compare commits of", kind)),
        }
    }

    /// Fetches the tips of refs into the cache, so that a later change can be compared with them. Does nothing for a
    /// repository in a folder, which has its commits itself.
    pub fn keep_tips(&self, cache: &Path, names: &[&str], cancel: &Cancel) -> Result<(), Error> {
        if self.own_folder().is_some() || names.is_empty() {
            return Ok(());
        }
        let failed = |kind| self.failed("fetch the commits of", kind);
        if !cache.join("HEAD").exists() {
            fs::create_dir_all(cache)
                .map_err(|source| failed(Kind::Io { doing: "create", path: cache.into(), source }))?;
            let init = quiet(Git::new(cache, "init")).args(["--quiet", "--bare", "--template=", "."]);
            init.long(LOOK_TIMEOUT, cancel).run().map_err(failed)?;
        }
        let url = self.url(cancel).map_err(failed)?;
        let fetch = quiet(Git::new(cache, "fetch"))
            .git_dir(cache)
            .setting(&format!("remote.{REMOTE}.url"), &url)
            .setting(&format!("remote.{REMOTE}.promisor"), "true")
            .setting(&format!("remote.{REMOTE}.partialclonefilter"), "blob:none")
            .args(["--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--depth=1"])
            .args(["--filter=blob:none", "--", REMOTE])
            .args(names.iter().map(|name| format!("+{name}:{name}")));
        fetch.long(FETCH_TIMEOUT, cancel).run().map(drop).map_err(failed)
    }

    /// Returns the git directory of the folder, which may be inside a checkout.
    fn own_git_dir(&self, cancel: &Cancel) -> Result<PathBuf, Error> {
        let look = quiet(Git::new(self.folder, "rev-parse"));
        let look = look.args(["--path-format=absolute", "--git-common-dir"]).long(LOOK_TIMEOUT, cancel);
        look.line().map(PathBuf::from).map_err(|kind| self.failed("find the repository of", kind))
    }

    /// Returns the folder of the repository, if the address is a path.
    fn own_folder(&self) -> Option<PathBuf> {
        let is_address = self.address.contains("://")
            || self.address.split('/').next().is_some_and(|first| first.contains(':'));
        let folder =
            if self.address.is_empty() { self.folder.to_owned() } else { self.folder.join(self.address) };
        (!is_address && folder.is_dir()).then_some(folder)
    }

    /// Returns the address, where it is the name of a remote.
    fn url(&self, cancel: &Cancel) -> Result<String, Kind> {
        let look = quiet(Git::new(self.folder, "ls-remote")).args(["--get-url", "--", self.address]);
        let url = look.long(LOOK_TIMEOUT, cancel).line()?;
        let has_host = url.contains("://") || url.split('/').next().is_some_and(|first| first.contains(':'));
        Ok(if has_host { url } else { self.folder.join(&url).display().to_string() })
    }

    fn failed(&self, doing: &str, kind: Kind) -> Error {
        let address =
            if self.address.is_empty() { self.folder.display().to_string() } else { self.address.to_owned() };
        Error { attempt: format!("{doing} {address}"), kind }
    }
}

/// Returns the reason why a repository could not be looked at, in one line.
pub fn watch_failure(error: &Error) -> String {
    let stderr = match &error.kind {
        Kind::TimedOut { after, .. } => return format!("it did not answer within {} s", after.as_secs()),
        Kind::Git { stderr, .. } => stderr,
        other => return other.to_string().lines().next().unwrap_or_default().to_owned(),
    };
    let asks = [
        "could not read Username",
        "could not read Password",
        "Authentication failed",
        "Permission denied (",
    ];
    if asks.iter().any(|sign| stderr.contains(sign)) {
        return "it asks for a password or a key: give git a credential helper or an ssh key".to_owned();
    }
    let said = stderr.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = said.clone().find(|line| line.starts_with("fatal: ")).or_else(|| said.clone().next());
    first.unwrap_or("git failed without a message").trim_start_matches("fatal: ").to_owned()
}

/// Makes git fail where it would ask, and use no transport that runs commands.
fn quiet(git: Git<'_>) -> Git<'_> {
    git.env("GIT_ASKPASS", "false")
        .env("SSH_ASKPASS", "false")
        .env("SSH_ASKPASS_REQUIRE", "force")
        .env("GCM_INTERACTIVE", "never")
        .env("GIT_ALLOW_PROTOCOL", TRANSPORTS)
}

/// Returns the git directory of a folder that may be a bare repository.
fn git_dir(folder: &Path) -> PathBuf {
    let inside = folder.join(".git");
    // A worktree or a submodule has a file in its place, which git follows.
    if inside.exists() { inside } else { folder.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(stderr: &str) -> String {
        let (command, status) = ("ls-remote".to_owned(), "exit status: 128".to_owned());
        let kind = Kind::Git { command, status, stderr: stderr.to_owned() };
        watch_failure(&Error { attempt: "read the refs of x".into(), kind })
    }

    #[test]
    fn failures_are_told_in_one_line() {
        let asks = "error: unable to read askpass response from 'false'\nfatal: could not read Username for \
                    'http://127.0.0.1': terminal prompts disabled";
        assert_eq!(
            failure(asks),
            "it asks for a password or a key: give git a credential helper or an ssh key"
        );
        let gone =
            "fatal: '/tmp/x' does not appear to be a git repository\nfatal: Could not read from remote";
        assert_eq!(failure(gone), "'/tmp/x' does not appear to be a git repository");
        assert_eq!(failure(""), "git failed without a message");
    }
}
