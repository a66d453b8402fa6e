//! The fake agent's home: sessions that can be resumed, and a record of the input of each process.
//!
//! ```text
//!   HOME/given.jsonl             one line per start (argv, variables) and per line of stdin
//!   HOME/sessions/ID.json        the session: turns so far, messages, tokens
//!   HOME/sessions/ID.lock        held by the process that has it open
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::usage::Usage;

/// A session on disk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct StoredSession {
    pub(super) id: String,
    /// The number of finished turns, with any outcome.
    pub(super) turns: usize,
    /// The messages that it contains, with their texts.
    pub(super) messages: Vec<StoredMessage>,
    pub(super) usage: Usage,
}

/// A message in a session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredMessage {
    pub(super) id: String,
    pub(super) text: String,
}

/// The reason why a session was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotOpened {
    Unknown,
    InUse,
}

pub(super) struct Home {
    folder: PathBuf,
    record: File,
    /// Held while a session is open.
    lock: Option<File>,
    /// Whether this process writes nothing, because another process has the session open or because the session was
    /// lost.
    is_silent: bool,
}

impl Home {
    pub(super) fn open(folder: &std::path::Path) -> io::Result<Home> {
        fs::create_dir_all(folder.join("sessions"))?;
        let record = OpenOptions::new().create(true).append(true).open(folder.join("given.jsonl"))?;
        Ok(Home { folder: folder.to_owned(), record, lock: None, is_silent: false })
    }

    /// Adds a line to the record.
    pub(super) fn note(&mut self, what: &Value) -> io::Result<()> {
        // One write, so that the lines of several processes do not mix.
        self.record.write_all(format!("{what}\n").as_bytes())
    }

    /// Adds the start of this process to the record. Values of variables may be secret, so only their hashes are
    /// stored.
    pub(super) fn note_start(&mut self, args: &[String]) -> io::Result<()> {
        let env: serde_json::Map<String, Value> = std::env::vars_os()
            .map(|(name, value)| {
                (name.to_string_lossy().into_owned(), json!(short_hash(value.as_encoded_bytes())))
            })
            .collect();
        let dir = std::env::current_dir().unwrap_or_default();
        self.note(&json!({"start": std::process::id(), "args": args, "env": env, "dir": dir}))
    }

    /// Opens a session: an existing one, or a new one with the given id, if any.
    pub(super) fn open_session(
        &mut self,
        resume: Option<&str>,
        new_id: &str,
        may_share: bool,
    ) -> io::Result<Result<StoredSession, NotOpened>> {
        let id = resume.unwrap_or(new_id);
        if !is_plain(id) {
            return Ok(Err(NotOpened::Unknown));
        }
        let file = self.file(id);
        match (resume, file.exists()) {
            (Some(_), false) => return Ok(Err(NotOpened::Unknown)),
            (None, true) => return Ok(Err(NotOpened::InUse)),
            _ => {}
        }
        let lock = OpenOptions::new().create(true).append(true).open(file.with_extension("lock"))?;
        self.is_silent = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err();
        if self.is_silent && !may_share {
            return Ok(Err(NotOpened::InUse));
        }
        self.lock = Some(lock);
        let session = match resume {
            Some(_) => serde_json::from_slice(&fs::read(&file)?).unwrap_or_default(),
            None => StoredSession::default(),
        };
        let session = StoredSession { id: id.to_owned(), ..session };
        self.save(&session)?;
        Ok(Ok(session))
    }

    /// Stores a session, unless another process has it open or it was deleted.
    pub(super) fn save(&self, session: &StoredSession) -> io::Result<()> {
        if self.is_silent {
            return Ok(());
        }
        let file = self.file(&session.id);
        // The write is atomic, even if the process is killed.
        let draft = file.with_extension(format!("{}.new", std::process::id()));
        fs::write(&draft, serde_json::to_vec_pretty(session)?)?;
        fs::rename(draft, file)
    }

    /// Deletes a session permanently.
    pub(super) fn delete(&mut self, session: &StoredSession) -> io::Result<()> {
        self.is_silent = true;
        match fs::remove_file(self.file(&session.id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn file(&self, id: &str) -> PathBuf {
        self.folder.join("sessions").join(format!("{id}.json"))
    }
}

/// Returns whether an id can be a file name.
fn is_plain(id: &str) -> bool {
    (1..=100).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// Returns a hash with which a test can recognize a value that it knows.
pub(super) fn short_hash(value: &[u8]) -> String {
    let hash = Sha256::digest(value);
    format!("sha256:{}", hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_made_resumed_and_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut first = Home::open(folder.path()).expect("a home");
        assert_eq!(first.open_session(Some("a"), "", false).expect("no I/O error"), Err(NotOpened::Unknown));
        let mut session = first.open_session(None, "a", false).expect("no I/O error").expect("a new session");
        session.turns = 2;
        first.save(&session).expect("it is stored");
        assert_eq!(
            first.open_session(None, "a", false).expect("no I/O error"),
            Err(NotOpened::InUse),
            "the id is taken"
        );

        let mut second = Home::open(folder.path()).expect("a home");
        assert_eq!(second.open_session(Some("a"), "", false).expect("no I/O error"), Err(NotOpened::InUse));
        let shared = second.open_session(Some("a"), "", true).expect("no I/O error").expect("it may share");
        second.save(&StoredSession { turns: 9, ..shared }).expect("it vanishes");
        drop((first, second));

        let mut third = Home::open(folder.path()).expect("a home");
        // A process that another test has just forked holds the lock until it has started its program.
        let mut tries = (0..100_000).map(|_| third.open_session(Some("a"), "", false).expect("no I/O error"));
        let resumed = tries.find_map(|opened| {
            std::thread::yield_now();
            opened.ok()
        });
        let resumed = resumed.expect("it is free now");
        assert_eq!(resumed.turns, 2);
        third.delete(&resumed).expect("it is deleted");
        third.delete(&resumed).expect("once more does no harm");
        assert_eq!(third.open_session(Some("a"), "", false).expect("no I/O error"), Err(NotOpened::Unknown));
        for id in ["../x", "", "a/b"] {
            assert_eq!(
                third.open_session(Some(id), "", false).expect("no I/O error"),
                Err(NotOpened::Unknown),
                "{id}"
            );
        }
    }

    #[test]
    fn t11_the_record_holds_no_values_of_variables() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut home = Home::open(folder.path()).expect("a home");
        home.note_start(&["--x".to_owned()]).expect("a record");
        let text = fs::read_to_string(folder.path().join("given.jsonl")).expect("a record");
        let path = std::env::var("PATH").expect("PATH");
        assert!(text.contains("\"PATH\"") && !text.contains(&path), "{text}");
        assert!(text.contains(&short_hash(path.as_bytes())));
    }
}
