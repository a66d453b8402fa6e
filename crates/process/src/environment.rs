//! The environment of this program, moved into memory. Children inherit only the variables that are selected
//! for them.
//!
//! ```text
//!   main ── take_environment ──▶ memory (every variable)        /proc/PID/environ: the short list only
//!                                  │
//!        secrets of a step ◀───────┤ variable(NAME)
//!        steps, supervisors ◀──────┤ inherited(…): the default list and `inherit:`; everything in a foreground run
//!        git, its hooks, filters ◀─┘ inherited_by_git()
//! ```
//!
//! No child gets Sprag's own credentials. After [`take_environment`] no environment block contains them either.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    sync::{Mutex, OnceLock, PoisonError},
};

use crate::sys;

/// The variables with Sprag's credentials for its server, its database and its broker.
pub const CREDENTIALS: [&str; 3] = ["SPRAG_TOKEN", "SPRAG_STORE", "SPRAG_BUS"];

/// The options with the same credentials on the command line, which every user of the machine can read.
const CREDENTIAL_OPTIONS: [&str; 3] = ["--token", "--store", "--bus"];

/// The variables that every step inherits. A name that ends in `*` matches all names with that prefix.
pub const DEFAULT_INHERITED: [&str; 29] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_*",
    "TERM",
    "TZ",
    "TZDIR",
    "TMPDIR",
    "XDG_*",
    "SSH_AUTH_SOCK",
    "http_proxy",
    "https_proxy",
    "ftp_proxy",
    "all_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "FTP_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "CARGO_HOME",
    "RUSTUP_HOME",
    "GOPATH",
    "JAVA_HOME",
    "NVM_DIR",
    "VIRTUAL_ENV",
];

/// The additional variables for git: access to remotes, and the identity of commits.
const FOR_GIT: [&str; 4] = ["GIT_*", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "GNUPGHOME"];

/// The variables that this program itself reads, which stay in its environment block.
const FOR_ITSELF: [&str; 6] = ["SPRAG_*", "NO_COLOR", "CLICOLOR*", "RUST_*", "SSL_CERT_FILE", "SSL_CERT_DIR"];

/// All variables that the program was started with.
static SAVED: OnceLock<BTreeMap<OsString, OsString>> = OnceLock::new();
/// The names that children inherit beyond the default list. Until it is set, children inherit everything.
static RESTRICTED: OnceLock<Vec<String>> = OnceLock::new();
/// The names of secrets, which git and its children do not inherit.
static WITHHELD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Moves the program's environment into memory and erases it from `/proc/PID/environ`, except for the variables
/// that the program itself reads. Also erases credentials from the command line.
///
/// `main` calls it after it has read its arguments and before it starts threads.
///
/// # Safety
///
/// No other thread may run, because the environment belongs to the whole process.
pub unsafe fn take_environment() {
    let all: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    let stays = |name: &OsStr| {
        let listed = FOR_ITSELF.iter().chain(&DEFAULT_INHERITED).any(|pattern| matches(pattern, name));
        listed && !is_credential(name)
    };
    // SAFETY: the caller guarantees that no other thread runs, and std returns copies only.
    unsafe { sys::erase_environment(&stays) };
    // SAFETY: as above; later readers of the arguments get the erased ones.
    unsafe { sys::erase_arguments(&CREDENTIAL_OPTIONS) };
    let _ = SAVED.set(all);
}

/// Limits inheritance to the default list and these names. Only the first call has an effect.
pub fn restrict_inheritance(also: Vec<String>) {
    let _ = RESTRICTED.set(also);
}

/// Adds names of variables with secrets of steps. Git, its hooks and its filters do not inherit them.
pub fn withhold<'a>(names: impl IntoIterator<Item = &'a str>) {
    let mut withheld = WITHHELD.lock().unwrap_or_else(PoisonError::into_inner);
    for name in names {
        if !withheld.contains(name) {
            withheld.insert(name.to_owned());
        }
    }
}

/// Returns a variable that the program was started with, for a step that names it as its secret. Returns `None`
/// for Sprag's own credentials.
pub fn variable(name: &str) -> Option<OsString> {
    if is_credential(OsStr::new(name)) {
        return None;
    }
    match SAVED.get() {
        Some(all) => all.get(OsStr::new(name)).cloned(),
        None => std::env::var_os(name),
    }
}

/// Returns the variables that a step inherits. In a foreground run these are all, otherwise the default list,
/// `also` and the names from [`restrict_inheritance`]. Credentials and the names in `withheld` are never
/// included.
pub fn inherited(also: &[String], withheld: &[String]) -> Vec<(OsString, OsString)> {
    let chosen = |name: &OsStr| match RESTRICTED.get() {
        None => true,
        Some(names) => {
            DEFAULT_INHERITED.iter().any(|pattern| matches(pattern, name))
                || names.iter().chain(also).any(|pattern| matches(pattern, name))
        }
    };
    select(|name| chosen(name) && !withheld.iter().any(|secret| name == secret.as_str()))
}

/// Returns the variables that git inherits: those of a step and its own, without `SPRAG_*` and without secrets.
pub fn inherited_by_git() -> Vec<(OsString, OsString)> {
    let withheld = WITHHELD.lock().unwrap_or_else(PoisonError::into_inner);
    select(|name| {
        let chosen = match RESTRICTED.get() {
            None => true,
            Some(names) => {
                let listed = DEFAULT_INHERITED.iter().chain(&FOR_GIT).any(|pattern| matches(pattern, name));
                listed || names.iter().any(|pattern| matches(pattern, name))
            }
        };
        chosen && !matches("SPRAG_*", name) && !withheld.iter().any(|secret| name == secret.as_str())
    })
}

/// Returns whether a name is one of Sprag's own credentials.
pub fn is_credential(name: &OsStr) -> bool {
    CREDENTIALS.iter().any(|credential| name == *credential)
}

fn select(chosen: impl Fn(&OsStr) -> bool) -> Vec<(OsString, OsString)> {
    let matches = |name: &OsStr| chosen(name) && !is_credential(name);
    match SAVED.get() {
        Some(all) => {
            all.iter().filter(|(name, _)| matches(name)).map(|(n, v)| (n.clone(), v.clone())).collect()
        }
        None => std::env::vars_os().filter(|(name, _)| matches(name)).collect(),
    }
}

/// Returns whether a name equals the pattern, or starts with the prefix of one that ends in `*`.
fn matches(pattern: &str, name: &OsStr) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.as_bytes().starts_with(prefix.as_bytes()),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_one_name_or_a_prefix() {
        for (pattern, name, expected) in [
            ("PATH", "PATH", true),
            ("PATH", "PATHS", false),
            ("LC_*", "LC_ALL", true),
            ("LC_*", "LC", false),
            ("AWS_*", "AWS_SECRET", true),
            ("*", "ANY", true),
        ] {
            assert_eq!(matches(pattern, OsStr::new(name)), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn e06_no_step_can_read_credentials() {
        assert!(CREDENTIALS.iter().all(|name| variable(name).is_none()));
        let all = inherited(&["SPRAG_*".to_owned()], &[]);
        assert!(all.iter().all(|(name, _)| !is_credential(name)));
    }
}
