//! The errors of a store, with what a person can do about them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::outcome::NotApplied;

/// A store's error: what was attempted, on what, and why it failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The file or folder cannot be opened or created.
    #[error("cannot open {}: {reason}", path.display())]
    Open {
        /// The file or folder.
        path: PathBuf,
        /// The cause, in words.
        reason: String,
    },
    /// The file is on a file system whose locks cannot be trusted.
    #[error(
        "{} lies on a network file system ({kind}), where file locks cannot be trusted; \
         put the data on a local disk with --data DIR or SPRAG_DATA", path.display()
    )]
    NetworkFileSystem {
        /// The file.
        path: PathBuf,
        /// The file system's name.
        kind: &'static str,
    },
    /// A newer version of Sprag has written the file.
    #[error(
        "{} has schema version {found}, and this sprag knows versions up to {known}; \
         use the sprag that wrote it, or another folder with --data DIR", path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version of the file.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// The file is damaged, or is no database.
    #[error(
        "{} is damaged or not a Sprag database: {reason}; \
         nothing was changed: move it aside or restore a backup, then try again", path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// SQLite's message.
        reason: String,
    },
    /// Another process held the file's lock for too long.
    #[error(
        "{} was locked by {} for {waited_ms} ms; nothing was written: let it finish or end it \
         (`sprag doctor` shows it), then try again",
        path.display(), holder.as_deref().unwrap_or("another process")
    )]
    Locked {
        /// The file.
        path: PathBuf,
        /// The milliseconds that this process waited for the lock.
        waited_ms: u64,
        /// The process that held the lock when the wait ended, if it could be seen.
        holder: Option<String>,
    },
    /// The disk is full.
    #[error("no space left for {}; nothing was written: free some space, then try again", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// The disk or the file system failed.
    #[error("{} of {} failed: {reason}; nothing was written", action, path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause, in words.
        reason: String,
    },
    /// The commit's answer was lost: the commit may have happened or not. The caller must read again before it acts.
    #[error("whether the change was written to {} is unknown: {reason}", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The reason why the answer was lost.
        reason: String,
    },
    /// A row contains a word that this version does not know.
    #[error("{entity} {id} has the unknown {field} {text:?}; a newer sprag may have written it")]
    UnknownWord {
        /// The kind of row.
        entity: &'static str,
        /// The key of the row.
        id: String,
        /// The name of the column.
        field: &'static str,
        /// The text in the column.
        text: String,
    },
    /// A row contains a value that its column cannot have.
    #[error(
        "{entity} {id} has a bad value in its column {field}: {reason}; something other than sprag has changed it, or \
         the database is damaged"
    )]
    BadValue {
        /// The kind of row.
        entity: &'static str,
        /// The key of the row, or the statement that read a few of its columns.
        id: String,
        /// The name of the column.
        field: &'static str,
        /// The reason why the value is bad.
        reason: String,
    },
    /// A row changed between being read and being written; the writer reads it again.
    #[error("another process changed {entity} {id} at the same moment")]
    Conflict {
        /// The kind of row.
        entity: &'static str,
        /// The key of the row.
        id: String,
    },
    /// The run does not exist.
    #[error("there is no run {0}")]
    NoSuchRun(String),
    /// The state of a row does not allow the request; nothing was changed.
    #[error("{why}")]
    Refused {
        /// The outcome, as a table gives it.
        outcome: NotApplied,
        /// The reason, for people.
        why: String,
    },
    /// The author of the request may not do this; nothing was changed.
    #[error("{why}")]
    Forbidden {
        /// The reason, for people: who may.
        why: String,
    },
    /// The request itself is wrong, whatever the state; nothing was changed.
    #[error("{why}")]
    Invalid {
        /// The part of the request that is wrong.
        field: &'static str,
        /// The mistake, for people.
        why: String,
    },
    /// The engine contradicts itself, or rows that belong together are not all there; nothing was changed. The caller
    /// cannot mend it.
    #[error("{0}")]
    Bug(String),
    /// The store was closed while the call waited.
    #[error("the store is closed")]
    Closed,
    /// The operation asked a question about a step that is too much work for the writer. Only operations see it:
    /// the store gets the answer and runs the operation again.
    #[error("a question about a step waits for its answer")]
    Unanswered(std::sync::Arc<crate::answers::OpenQuestion>),
}

/// The number of bugs that this process has met.
static BUGS: AtomicU64 = AtomicU64::new(0);

/// Logs a bug with its context, and counts it.
pub fn record_bug(what: &str) {
    BUGS.fetch_add(1, Ordering::Relaxed);
    tracing::error!(what, "a bug, or a damaged database");
}

/// Returns the number of bugs that this process has met.
pub fn bugs() -> u64 {
    BUGS.load(Ordering::Relaxed)
}

impl Error {
    /// Returns whether a row holds a value that its column cannot have.
    pub fn is_damage(&self) -> bool {
        matches!(self, Error::BadValue { .. } | Error::UnknownWord { .. })
    }

    /// Returns the error for a request that the state of a row does not allow.
    pub(crate) fn refused(outcome: NotApplied, why: impl Into<String>) -> Error {
        Error::Refused { outcome, why: why.into() }
    }

    /// Returns the error for a request that is wrong in this field.
    pub(crate) fn invalid(field: &'static str, why: impl Into<String>) -> Error {
        Error::Invalid { field, why: why.into() }
    }

    /// Returns the error for a bug, which is logged and counted.
    pub(crate) fn bug(what: impl Into<String>) -> Error {
        let what = what.into();
        record_bug(&what);
        Error::Bug(what)
    }

    /// Whether the store cannot be used at the moment: the request may be valid, and nothing was written.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Error::Locked { .. } | Error::Full { .. } | Error::Newer { .. } | Error::Closed)
    }
}

/// The result of a store's function.
pub type Result<T, E = Error> = std::result::Result<T, E>;
