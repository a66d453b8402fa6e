//! Another machine from Sprag's point of view: it has its own host name, and its own repository at the common path.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Sandbox, Started};

/// Names the machine, puts its repository in place, and becomes the command.
const ENTER: &str = r#"hostname "$0" && mount --bind "$1" "$2" && shift 2 && exec "$@""#;

/// See the module's documentation.
pub struct Host {
    name: &'static str,
    repository: PathBuf,
    place: PathBuf,
    /// Its data and what its programs print.
    pub sandbox: Sandbox,
}

impl Host {
    /// Returns a machine with this repository at this path, or the reason why the machine is not possible here.
    pub fn new(name: &'static str, store: &str, repository: &Path, place: &Path) -> Result<Host, String> {
        let tried = Command::new("unshare").args(["--mount", "--uts", "true"]).output();
        match tried {
            Ok(tried) if tried.status.success() => {}
            Ok(tried) => return Err(String::from_utf8_lossy(&tried.stderr).into_owned()),
            Err(error) => return Err(error.to_string()),
        }
        let (repository, place) = (repository.to_owned(), place.to_owned());
        Ok(Host { name, repository, place, sandbox: Sandbox::on(store) })
    }

    /// Starts `sprag` there.
    pub fn start<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Started {
        self.sandbox.start_command(self.command(args))
    }

    /// `sprag` there.
    pub fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let (repository, place) = (self.repository.to_string_lossy(), self.place.to_string_lossy());
        let words = ["unshare", "--mount", "--uts", "sh", "-c", ENTER, self.name, &repository, &place];
        through(&words, &self.sandbox.command(args))
    }
}

/// Returns the same command, started through another one.
pub fn through(words: &[&str], command: &Command) -> Command {
    let mut through = Command::new(words[0]);
    through.args(&words[1..]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => through.env(name, value),
            None => through.env_remove(name),
        };
    }
    through.current_dir(command.get_current_dir().expect("a sandbox's commands have a folder"));
    through.stdin(Stdio::null());
    through
}
