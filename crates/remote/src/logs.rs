//! Sends what steps print to the server while they go on, from the files that their supervisors write.
//!
//! The file is the buffer: while the server is away it grows, and is sent from where the server stopped.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use sprag_store::ops::{Assignment, Lease};
use sprag_worker::wire::{LogSize, MOST_CHUNK_BYTES, Part};
use sprag_worker::{Control, Ended, Files, Runner, RunnerFuture};
use tokio::sync::watch;

use crate::backoff::{Backoff, pause};
use crate::client::Client;
use crate::error::Error;

/// How often a file is looked at that nobody announces changes of.
const LOOK: Duration = Duration::from_millis(200);
/// How long a report waits for the rest of its log.
const REST_WITHIN: Duration = Duration::from_secs(60);
/// How long one piece may take.
const PIECE_WITHIN: Duration = Duration::from_secs(20);

/// Does what another runner does, and sends its logs.
pub(crate) struct Streaming<R> {
    pub(crate) inner: R,
    pub(crate) client: Client,
    pub(crate) files: Files,
}

impl<R: Runner> Runner for Streaming<R> {
    fn run<'a>(&'a self, assignment: &'a Assignment, control: Control) -> RunnerFuture<'a> {
        Box::pin(async move {
            let lease = assignment.lease;
            let step = self.files.log(lease.execution, &assignment.name);
            let setup = self.files.log(lease.execution, "_setup");
            let sender = Sender { client: self.client.clone(), lease };
            let logs = vec![Log::new(Part::Step, step.clone()), Log::new(Part::Setup, setup)];
            let (done, over) = watch::channel(false);
            let mut sending = tokio::spawn(sender.send_all(logs, over));
            let mut lost = control.clone();
            let ended = self.inner.run(assignment, control).await;
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
            match whole {
                true => drop(std::fs::remove_file(&step)),
                false => tracing::warn!(log = %step.display(), "not all of a log was sent; it stays here"),
            }
            ended
        })
    }
}

/// A log and how much of it was sent.
struct Log {
    part: Part,
    path: PathBuf,
    sent: u64,
}

impl Log {
    fn new(part: Part, path: PathBuf) -> Self {
        let sent = match part {
            Part::Step => 0,
            // What is there already was sent by the step for which it was set up.
            Part::Setup => path.metadata().map_or(0, |found| found.len()),
        };
        Log { part, path, sent }
    }
}

struct Sender {
    client: Client,
    lease: Lease,
}

impl Sender {
    /// Sends until told that nothing more comes, and then the rest; whether all of it was.
    async fn send_all(self, mut logs: Vec<Log>, mut over: watch::Receiver<bool>) -> bool {
        let mut backoff = Backoff::default();
        loop {
            let last = *over.borrow();
            let mut sent_any = false;
            for log in &mut logs {
                match self.send_some(log).await {
                    Ok(sent) => {
                        sent_any |= sent;
                        backoff = Backoff::default();
                    }
                    Err(error) if error.is_unknown() => {
                        tracing::warn!(log = %log.path.display(), %error, "sending a log");
                        pause(backoff.next(error.after())).await;
                        sent_any = true;
                    }
                    Err(error) => {
                        tracing::warn!(log = %log.path.display(), %error, "a log is not taken any more");
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

    /// Sends the next piece, if there is one.
    async fn send_some(&self, log: &mut Log) -> Result<bool, Error> {
        let (path, from) = (log.path.clone(), log.sent);
        let read = tokio::task::spawn_blocking(move || piece(&path, from)).await;
        let piece = read.map_err(|error| Error::Local(error.to_string()))?;
        let piece = piece.map_err(|error| Error::Local(format!("{}: {error}", log.path.display())))?;
        if piece.is_empty() {
            return Ok(false);
        }
        let size = match self.post(log.part, log.sent, piece).await {
            Ok(size) => size,
            // There would be a gap, or it is not ours any more: an empty piece tells which.
            Err(Error::Refused(_)) => {
                let size = self.post(log.part, 0, Bytes::new()).await?;
                log.sent = log.sent.min(size);
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        log.sent = size;
        Ok(true)
    }

    async fn post(&self, part: Part, offset: u64, piece: Bytes) -> Result<u64, Error> {
        let Lease { execution, fence } = self.lease;
        let part = match part {
            Part::Step => "step",
            Part::Setup => "setup",
        };
        let path = format!(
            "/v1/work/logs?run={}&step={}&attempt={}&fence={fence}&part={part}&offset={offset}",
            execution.run, execution.step, execution.attempt
        );
        let sent = self.client.send::<LogSize>(&path, "application/octet-stream", piece, PIECE_WITHIN).await;
        sent.map(|answer| answer.size)
    }
}

/// A piece of a file from there on; nothing if there is none.
fn piece(path: &Path, from: u64) -> std::io::Result<Bytes> {
    let mut file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Bytes::new()),
        Err(error) => return Err(error),
    };
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(MOST_CHUNK_BYTES as u64 / 2).read_to_end(&mut bytes)?;
    Ok(bytes.into())
}
