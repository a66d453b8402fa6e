//! Sends the logs of steps to the server, from the files that their supervisors write: while the steps run, and
//! afterwards until the server has received them.
//!
//! ```text
//!   step runs ──▶ sent as it grows ──ended──▶ the rest within REST_WITHIN ──▶ report
//!                                                │ not all of it
//!                                                └▶ the server notes what is missing ──▶ report; the rest follows
//! ```
//!
//! The file is the buffer: it grows while the server cannot be reached, and is then sent from where the server
//! stopped.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use sprag_process::boot_ms;
use sprag_store::{Assignment, Lease};
use sprag_worker::wire::{LogSize, MOST_CHUNK_BYTES, Part};
use sprag_worker::{Control, Ended, Files, Runner, RunnerFuture, pause};
use tokio::sync::watch;

use crate::backoff::Backoff;
use crate::client::Client;
use crate::error::Error;
use crate::files::FileTransfer;
use crate::tidy;
use crate::unsent::{self, Backlog, Note};

/// The interval of checks of a growing file, because no notification announces its changes.
const LOOK: Duration = Duration::from_millis(200);
/// The time that a report waits for the rest of its log. After that the server is told what is missing, and the run
/// continues.
const REST_WITHIN: Duration = Duration::from_secs(10);
/// The largest and the smallest piece of a log in one request.
pub(crate) const LARGEST_PIECE: usize = MOST_CHUNK_BYTES / 2;
const SMALLEST_PIECE: usize = 8 << 10;
/// The time limit for sending one piece.
pub(crate) const PIECE_WITHIN: Duration = Duration::from_secs(20);
/// The longest time between two checks of the backlog when it does not change.
const LOOK_ANYWAY: Duration = Duration::from_secs(30);

/// A runner that runs another runner and sends its logs.
pub(crate) struct Streaming<R> {
    pub(crate) inner: R,
    pub(crate) client: Client,
    pub(crate) files: Files,
    pub(crate) backlog: Backlog,
}

impl<R: Runner> Runner for Streaming<R> {
    fn run<'a>(&'a self, assignment: &'a Assignment, control: Control) -> RunnerFuture<'a> {
        Box::pin(async move {
            let lease = assignment.lease;
            let logs_of = [
                (Part::Step, self.files.log(lease.execution, &assignment.name)),
                (Part::Setup, self.files.log(lease.execution, "_setup")),
            ];
            if let Err(error) = tidy::note_owner(&self.files.run(lease.execution.run), &self.client.store()) {
                tracing::warn!(run = %lease.execution.run, %error, "cannot write the store's id beside the logs");
            }
            // Before there is anything to send, because this process may be killed at any moment.
            logs_of.iter().for_each(|(part, log)| self.remember(lease, *part, log));
            let logs = logs_of.iter().map(|(part, log)| Log::new(*part, log.clone())).collect();
            let sender = Sender { client: self.client.clone(), lease };
            let (done, over) = watch::channel(false);
            let mut sending = tokio::spawn(sender.send_all(logs, over));
            let mut lost = control.clone();
            let transfer = FileTransfer { client: &self.client, files: &self.files, lease };
            let ended = match transfer.fetch(assignment, &mut lost).await {
                Ok(assignment) => {
                    let ended = self.inner.run(&assignment, control).await;
                    transfer.send(&assignment.name, ended, &mut lost).await
                }
                Err(ended) => ended,
            };
            let _ = done.send(true);
            let whole = if ended == Ended::Lost {
                false
            } else {
                tokio::select! {
                    sent = &mut sending => sent.unwrap_or(false),
                    () = pause(REST_WITHIN) => false,
                    () = lost.lost() => false,
                }
            };
            sending.abort();
            for (part, path) in logs_of {
                // The next worker starts the log of a returned step again.
                let is_over = ended == Ended::Returned && part == Part::Step;
                if whole || is_over || !path.exists() {
                    done_with(part, &path);
                    continue;
                }
                if ended != Ended::Lost {
                    self.announce(lease, part, &path, &mut lost).await;
                }
                self.remember(lease, part, &path);
                self.backlog.put(&path, length(&path));
            }
            ended
        })
    }
}

/// Cleans up after a log was received. The log of a setup stays until its run has ended, because several steps append
/// to it.
fn done_with(part: Part, log: &Path) {
    match part {
        Part::Step => unsent::received(log),
        Part::Setup => unsent::forget(log),
    }
}

impl<R> Streaming<R> {
    /// Notes on disk that a log is to be sent.
    fn remember(&self, lease: Lease, part: Part, log: &Path) {
        let note = Note { store: self.client.store(), key: self.client.key(), lease, part };
        if let Err(error) = unsent::remember(log, &note) {
            tracing::error!(log = %log.display(), %error, "cannot mark a log as unsent");
        }
    }

    /// Tells the server the size of a log and the location of its rest, before the ending of its step is reported.
    /// Retries until the server has received it or the execution is lost: until then, the server could not receive
    /// the report either.
    async fn announce(&self, lease: Lease, part: Part, path: &Path, lost: &mut Control) {
        let sender = Sender { client: self.client.clone(), lease };
        let telling = async {
            let mut backoff = Backoff::default();
            loop {
                match sender.post(part, 0, Bytes::new(), Some(path)).await {
                    Ok(_) => return,
                    Err(error) if error.is_unknown() => pause(backoff.next(error.after())).await,
                    Err(error) => {
                        tracing::warn!(log = %path.display(), %error, "cannot report that a log is incomplete");
                        return;
                    }
                }
            }
        };
        tokio::select! {
            () = telling => {}
            () = lost.lost() => {}
        }
    }
}

/// A log and the number of its bytes that were sent.
struct Log {
    part: Part,
    path: PathBuf,
    sent: u64,
    /// The size of the next piece: smaller on a connection so slow that a larger one does not arrive in time.
    piece_bytes: usize,
}

impl Log {
    fn new(part: Part, path: PathBuf) -> Self {
        let sent = match part {
            Part::Step => 0,
            // The step that ran the setup has sent the existing part.
            Part::Setup => length(&path),
        };
        Log { part, path, sent, piece_bytes: LARGEST_PIECE }
    }
}

fn length(path: &Path) -> u64 {
    path.metadata().map_or(0, |found| found.len())
}

/// Sends the logs that wait after their steps have ended, one after the other, for as long as the worker lives.
pub(crate) async fn send_backlog(client: Client, backlog: Backlog, data: PathBuf) {
    for log in unsent::find(&data, &client.store()) {
        backlog.put(&log, length(&log));
    }
    let mut backoff = Backoff::default();
    let mut last: Option<PathBuf> = None;
    loop {
        let Some(log) = backlog.next(last.as_deref()) else {
            let _ = tokio::time::timeout(LOOK_ANYWAY, backlog.changed()).await;
            continue;
        };
        match send_kept(&client, &backlog, &log).await {
            Ok(()) => backoff = Backoff::default(),
            Err(error) if error.is_unknown() => {
                tracing::warn!(log = %log.display(), %error, "sending a log failed: retrying later");
                pause(backoff.next(error.after())).await;
            }
            Err(Error::Gone(why)) => {
                tracing::info!(log = %log.display(), why, "the server no longer needs this log");
                unsent::received(&log);
                backlog.remove(&log);
            }
            Err(error) => {
                tracing::warn!(log = %log.display(), %error, "the server refuses this log: it stays here until its run is deleted");
                unsent::refused(&log);
                backlog.remove(&log);
            }
        }
        last = Some(log);
    }
}

/// Sends all of a log whose step has ended, under the key of the worker that ran it.
async fn send_kept(client: &Client, backlog: &Backlog, path: &Path) -> Result<(), Error> {
    let Some(note) = unsent::read(path) else {
        backlog.remove(path);
        return Ok(());
    };
    let sender = Sender { client: client.with_key(&note.key)?, lease: note.lease };
    let mut log = Log { sent: 0, ..Log::new(note.part, path.to_owned()) };
    // Continue where the server's copy ends.
    log.sent = sender.post(log.part, 0, Bytes::new(), Some(path)).await?;
    while sender.send_some(&mut log, true).await? {
        backlog.put(path, length(path).saturating_sub(log.sent));
    }
    done_with(note.part, path);
    backlog.remove(path);
    Ok(())
}

struct Sender {
    client: Client,
    lease: Lease,
}

impl Sender {
    /// Sends logs as they grow until `over` is true, and then the rest. Returns whether all of it was sent.
    async fn send_all(self, mut logs: Vec<Log>, mut over: watch::Receiver<bool>) -> bool {
        let mut backoff = Backoff::default();
        loop {
            let last = *over.borrow();
            let mut sent_any = false;
            for log in &mut logs {
                match self.send_some(log, false).await {
                    Ok(sent) => {
                        sent_any |= sent;
                        backoff = Backoff::default();
                    }
                    Err(error) if error.is_unknown() => {
                        tracing::warn!(log = %log.path.display(), %error, "sending a log failed");
                        pause(backoff.next(error.after())).await;
                        sent_any = true;
                    }
                    Err(error) => {
                        tracing::warn!(log = %log.path.display(), %error, "the server no longer accepts a log");
                        return false;
                    }
                }
            }
            match (sent_any, last) {
                (true, _) => {}
                (false, true) => return true,
                (false, false) => {
                    let _ = tokio::time::timeout(LOOK, over.wait_for(|over| *over)).await;
                }
            }
        }
    }

    /// Sends the next piece, and returns false if there is none. For a log that no longer grows, it also sends the
    /// size.
    async fn send_some(&self, log: &mut Log, ended: bool) -> Result<bool, Error> {
        let (path, from, most) = (log.path.clone(), log.sent, log.piece_bytes);
        let read = tokio::task::spawn_blocking(move || piece(&path, from, most)).await;
        let piece = read.map_err(|error| Error::Local(error.to_string()))?;
        let piece = piece.map_err(|error| Error::Local(format!("{}: {error}", log.path.display())))?;
        if piece.is_empty() {
            return Ok(false);
        }
        let whole = ended.then_some(log.path.as_path());
        let since_ms = boot_ms();
        let size = match self.post(log.part, log.sent, piece, whole).await {
            Ok(size) => {
                if boot_ms() - since_ms < PIECE_WITHIN.as_millis() as u64 / 4 {
                    log.piece_bytes = (log.piece_bytes * 2).min(LARGEST_PIECE);
                }
                size
            }
            // Either there would be a gap, or the execution is lost: the answer to an empty piece tells which.
            Err(Error::Refused(_)) => {
                let size = self.post(log.part, 0, Bytes::new(), None).await?;
                log.sent = log.sent.min(size);
                return Ok(true);
            }
            Err(error) => {
                log.piece_bytes = (log.piece_bytes / 2).max(SMALLEST_PIECE);
                return Err(error);
            }
        };
        log.sent = size;
        Ok(true)
    }

    /// Sends a piece, and returns how much of the log the server has then. With the path of a log that has ended, it
    /// also sends the size of the log.
    async fn post(&self, part: Part, offset: u64, piece: Bytes, whole: Option<&Path>) -> Result<u64, Error> {
        let Lease { execution, fence } = self.lease;
        let part = match part {
            Part::Step => "step",
            Part::Setup => "setup",
        };
        let mut path = format!(
            "/v1/work/logs?run={}&step={}&attempt={}&fence={fence}&part={part}&offset={offset}",
            execution.run, execution.step, execution.attempt
        );
        if let Some(log) = whole {
            path += &format!("&whole={}&path={}", length(log), encoded(&log.to_string_lossy()));
        }
        let sent = self.client.send::<LogSize>(&path, "application/octet-stream", piece, PIECE_WITHIN).await;
        sent.map(|answer| answer.size)
    }
}

/// Encodes a text as a value in a query.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// Reads a piece of a file from an offset on; empty if there is no more.
pub(crate) fn piece(path: &Path, from: u64, most: usize) -> std::io::Result<Bytes> {
    let mut file = match sprag_process::open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Bytes::new()),
        Err(error) => return Err(error),
    };
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes.into())
}
