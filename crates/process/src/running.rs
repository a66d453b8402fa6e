//! The worker's side: starts a supervisor, renews its lease, and waits for the end of the tree.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use crate::{
    Ended, Error, Order, Reason, RefusalKind, SUPERVISE, Started, TREE_MARKER, clock,
    order::{Command as Line, Envelope},
    orphans,
    report::Report,
    sys,
};

/// The environment variables that hold what a worker shows its server, its database or its broker.
const WORKER_TOKEN: &str = "SPRAG_TOKEN";
const WORKER_STORE: &str = "SPRAG_STORE";
const WORKER_BUS: &str = "SPRAG_BUS";
/// Beyond the grace, for the kernel to end what was killed.
const ORPHANS_DEADLINE: Duration = Duration::from_secs(30);

/// Makes this process the parent of whatever its supervisors leave behind when they are killed, instead
/// of the system's first process. For programs that run steps; not needed for the tree's end.
pub fn become_subreaper() -> std::io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Starts `program` as the supervisor of one command, and returns when the command runs, or could not be
/// started: then [`Running::wait`] says why.
///
/// `program` is a program that calls [`crate::run_if_supervisor`] first in its `main`.
pub async fn spawn(mut order: Order, program: &Path) -> Result<Running, Error> {
    if order.argv.is_empty() {
        return Err(Error::BadOrder { message: "the command is empty".to_owned() });
    }
    let marker = tree_marker();
    order.env.insert(TREE_MARKER.to_owned(), marker.clone());
    let lease_until_ms = order.lease_ms.map(|lease_ms| clock::now_ms().saturating_add(lease_ms));
    let envelope = Envelope { order, lease_until_ms };
    let mut line =
        serde_json::to_vec(&envelope).map_err(|error| Error::BadOrder { message: error.to_string() })?;
    line.push(b'\n');
    let order = envelope.order;

    let mut child = Command::new(program)
        .args([SUPERVISE, &order.label])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // What a worker shows its server, its database or its broker is not for the commands it runs.
        .env_remove(WORKER_TOKEN)
        .env_remove(WORKER_STORE)
        .env_remove(WORKER_BUS)
        // The terminal's Ctrl-C is for the worker, which knows whether to drain or to cancel.
        .process_group(0)
        .spawn()
        .map_err(|source| Error::Supervisor { program: program.to_owned(), source })?;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(Error::BadOrder { message: "the supervisor has no pipes".to_owned() });
    };
    // A supervisor that refuses does not read all of it; its refusal says more than the broken pipe.
    let sent = input.write_all(&line).await;
    let pipe = input.into_owned_fd().map_err(pipe_error("could not keep the pipe"))?;
    sys::set_nonblocking(&pipe).map_err(pipe_error("could not set up the pipe"))?;
    let mut running = Running {
        pipe,
        child,
        lines: BufReader::new(output).lines(),
        marker,
        owner_lock: order.owner_lock.clone(),
        grace: Duration::from_millis(order.grace_ms),
        started: None,
        ended: None,
    };
    match running.next_report().await? {
        Some(Report::Started(started)) => running.started = Some(started),
        Some(Report::Ended(ended)) => running.ended = Some(ended),
        Some(Report::Refused { kind: RefusalKind::LockHeld, .. }) => {
            return Err(Error::LockHeld { path: order.owner_lock.unwrap_or_default() });
        }
        Some(Report::Refused { kind, message }) => return Err(Error::Refused { kind, message }),
        None => {
            // Killed before it could speak, or even listen: `wait` ends what it may have started.
            if let Err(error) = sent {
                tracing::warn!(%error, "the supervisor ended before it had read its order");
            }
        }
    }
    Ok(running)
}

/// A command under supervision. Dropping it closes the pipe, and the supervisor ends the tree.
pub struct Running {
    pipe: OwnedFd,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    marker: String,
    owner_lock: Option<PathBuf>,
    grace: Duration,
    started: Option<Started>,
    ended: Option<Ended>,
}

impl Running {
    /// The command's process; None if it did not start.
    pub fn started(&self) -> Option<Started> {
        self.started
    }

    /// Process id of the supervisor; None after its end.
    pub fn supervisor_pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// The lease now lasts for `lease` from this moment; a renewal never shortens it.
    pub fn renew(&self, lease: Duration) -> Result<(), Error> {
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        self.send(Line::RenewUntil(clock::now_ms().saturating_add(lease_ms)))
    }

    /// Ends the tree: TERM, and KILL after the grace.
    pub fn cancel(&self) -> Result<(), Error> {
        self.send(Line::Cancel)
    }

    /// Ends the tree by KILL, also while it is in its grace.
    pub fn kill(&self) -> Result<(), Error> {
        self.send(Line::Kill)
    }

    /// Returns when no process of the tree is left. May be dropped and called again.
    ///
    /// When the supervisor was killed, ends what it left behind itself; the only error is that this did
    /// not succeed.
    pub async fn wait(&mut self) -> Result<Ended, Error> {
        while self.ended.is_none() {
            match self.next_report().await? {
                Some(Report::Ended(ended)) => self.ended = Some(ended),
                Some(_) => {}
                None => self.ended = Some(self.end_lost_tree().await?),
            }
        }
        // Its last act is the report; after its exit nothing of the attempt is left at all.
        let _ = self.child.wait().await;
        Ok(self.ended.clone().unwrap_or_else(|| Ended::because(Reason::SupervisorLost)))
    }

    async fn end_lost_tree(&self) -> Result<Ended, Error> {
        tracing::warn!(supervisor = self.child.id(), "the supervisor was killed; ending what it left behind");
        let (marker, owner_lock) = (self.marker.clone(), self.owner_lock.clone());
        let (grace, started) = (self.grace, self.started);
        let ended = tokio::task::spawn_blocking(move || {
            let markers = [(TREE_MARKER, marker.as_str())];
            let ended =
                orphans::end_orphans(&markers, owner_lock.as_deref(), grace, grace + ORPHANS_DEADLINE);
            if let Some(started) = started {
                orphans::reap_session(started.pid);
            }
            ended
        });
        let orphans = ended.await.unwrap_or_else(|panic| {
            Err(Error::Pipe { attempt: "could not end its processes", source: std::io::Error::other(panic) })
        })?;
        let leftovers = u32::try_from(orphans.processes).unwrap_or(u32::MAX);
        Ok(Ended { leftovers, ..Ended::because(Reason::SupervisorLost) })
    }

    /// None at the end of the supervisor's life.
    async fn next_report(&mut self) -> Result<Option<Report>, Error> {
        while let Some(line) =
            self.lines.next_line().await.map_err(pipe_error("could not read its report"))?
        {
            match serde_json::from_str(&line) {
                Ok(report) => return Ok(Some(report)),
                // A supervisor killed within its report leaves half a line.
                Err(error) => tracing::warn!(%error, "the supervisor said something unexpected"),
            }
        }
        Ok(None)
    }

    fn send(&self, line: Line) -> Result<(), Error> {
        let text = format!("{line}\n");
        // Shorter than a pipe's atomic size: it is written as a whole or not at all.
        let written = rustix::io::retry_on_intr(|| rustix::io::write(self.pipe.as_fd(), text.as_bytes()));
        // A supervisor that somebody stopped watches over nothing; it is our child, so the number is its.
        if let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(id as i32)) {
            let _ = kill_process(pid, Signal::CONT);
        }
        written.map(drop).map_err(|error| pipe_error("could not send a command")(error.into()))
    }
}

fn pipe_error(attempt: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Pipe { attempt, source }
}

/// Unique on this host for as long as any process could carry it.
fn tree_marker() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("{}-{}-{count}", std::process::id(), clock::now_ms())
}
