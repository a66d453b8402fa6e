//! What can go wrong in a store, told so that a person can act on it.

use std::path::PathBuf;

/// A store's error: what was attempted, on what, and why it failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The file or folder cannot be opened or made.
    #[error("cannot open {}: {reason}", path.display())]
    Open {
        /// What was to be opened.
        path: PathBuf,
        /// Why it failed.
        reason: String,
    },
    /// The file lies on a file system whose locks cannot be trusted.
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
        /// The version it has.
        found: i64,
        /// The newest that this program knows.
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
        /// What SQLite says of it.
        reason: String,
    },
    /// Somebody held the file's lock for too long.
    #[error(
        "{} was locked by another process for {waited_ms} ms; \
         nothing was written: see who uses it (`sprag doctor`), then try again", path.display()
    )]
    Locked {
        /// The file.
        path: PathBuf,
        /// How long was waited for it.
        waited_ms: u64,
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
        /// What was attempted.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        reason: String,
    },
    /// The commit's answer was lost: it may have happened or not. Read again before acting.
    #[error("whether the change was written to {} is unknown: {reason}", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// What happened to the answer.
        reason: String,
    },
    /// A row holds a word that this version does not know.
    #[error("{entity} {id} has the unknown {field} {text:?}; a newer sprag may have written it")]
    UnknownWord {
        /// What kind of row.
        entity: &'static str,
        /// Which row.
        id: String,
        /// Which column.
        field: &'static str,
        /// What it holds.
        text: String,
    },
    /// A row changed between being read and being written; the writer looks again.
    #[error("{entity} {id} was changed by somebody else at the same moment")]
    Conflict {
        /// What kind of row.
        entity: &'static str,
        /// Which row.
        id: String,
    },
    /// The run is not there.
    #[error("there is no run {0}")]
    NoSuchRun(String),
    /// What was asked for makes no sense for this row; nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// The store was closed while the call waited.
    #[error("the store is closed")]
    Closed,
}

/// A store's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
