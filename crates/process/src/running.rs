//! The worker's side: starts a supervisor, renews its lease, and waits until the tree has ended.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use crate::{
    Ended, Error, KilledOrphans, Order, Reason, RefusalKind, SUPERVISE, Started, TREE_MARKER,
    adopted::kill_adopted,
    cgroup::Cgroup,
    clock, environment,
    order::{Command as Line, Envelope},
    orphans,
    report::Report,
    sys,
};

/// The time beyond the grace for the kernel to end killed processes.
const ORPHANS_DEADLINE: Duration = Duration::from_secs(30);

/// Starts `program` as the supervisor of one command. Returns when the command runs or has failed to start; in
/// the second case [`Running::wait`] tells why.
///
/// `program` must call [`crate::run_if_supervisor`] first in its `main`.
pub async fn spawn(mut order: Order, program: &Path) -> Result<Running, Error> {
    if order.argv.is_empty() {
        return Err(Error::BadOrder { message: "the command is empty".to_owned() });
    }
    let inherits = order.inherits.take().unwrap_or_else(|| environment::inherited(&[], &[]));
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
        // A step can read its supervisor's environment, so that contains only what the step inherits.
        .env_clear()
        .envs(inherits)
        // The terminal's Ctrl-C is for the worker, which decides whether to drain or to cancel.
        .process_group(0)
        .spawn()
        .map_err(|source| Error::Supervisor { program: program.to_owned(), source })?;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(Error::BadOrder { message: "the supervisor has no pipes".to_owned() });
    };
    // A supervisor that refuses stops reading; its refusal is more useful than the broken pipe.
    let sent = input.write_all(&line).await;
    let pipe = input.into_owned_fd().map_err(pipe_error("could not keep the pipe"))?;
    sys::set_nonblocking(&pipe).map_err(pipe_error("could not set up the pipe"))?;
    let cgroup = child.id().and_then(|pid| Cgroup::path_of(pid as i32));
    let mut running = Running {
        pipe,
        child,
        cgroup,
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
            // The supervisor was killed before it reported or even read: `wait` stops what it may have started.
            if let Err(error) = sent {
                tracing::warn!(%error, "the supervisor exited before it had read its order");
            }
        }
    }
    Ok(running)
}

/// A command under supervision. Dropping it closes the pipe, and the supervisor stops the tree.
pub struct Running {
    pipe: OwnedFd,
    child: Child,
    /// The cgroup of the tree; absent where cgroups are not available.
    cgroup: Option<PathBuf>,
    lines: Lines<BufReader<ChildStdout>>,
    marker: String,
    owner_lock: Option<PathBuf>,
    grace: Duration,
    started: Option<Started>,
    ended: Option<Ended>,
}

impl Running {
    /// Returns the command's process; `None` if it did not start.
    pub fn started(&self) -> Option<Started> {
        self.started
    }

    /// Returns the supervisor's process id; `None` after its end.
    pub fn supervisor_pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Extends the lease to `lease` from now. A renewal never shortens it.
    pub fn renew(&self, lease: Duration) -> Result<(), Error> {
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        self.send(Line::RenewUntil(clock::now_ms().saturating_add(lease_ms)))
    }

    /// Stops the tree: TERM, then KILL after the grace.
    pub fn cancel(&self) -> Result<(), Error> {
        self.send(Line::Cancel)
    }

    /// Kills the tree at once, even during the grace.
    pub fn kill(&self) -> Result<(), Error> {
        self.send(Line::Kill)
    }

    /// Waits until no process of the tree is left. The future may be dropped and the method called again.
    ///
    /// If the supervisor was killed, this method kills the rest of the tree itself. It fails only if that does
    /// not succeed.
    pub async fn wait(&mut self) -> Result<Ended, Error> {
        while self.ended.is_none() {
            match self.next_report().await? {
                Some(Report::Ended(ended)) => self.ended = Some(ended),
                Some(_) => {}
                None => self.ended = Some(self.kill_lost_tree().await?),
            }
        }
        // The report is the supervisor's last action. After its exit nothing of the attempt is left.
        let _ = self.child.wait().await;
        Ok(self.ended.clone().unwrap_or_else(|| Ended::because(Reason::SupervisorLost)))
    }

    async fn kill_lost_tree(&self) -> Result<Ended, Error> {
        tracing::warn!(
            supervisor = self.child.id(),
            "the supervisor was killed: killing the rest of its tree"
        );
        let (marker, owner_lock) = (self.marker.clone(), self.owner_lock.clone());
        let (grace, started, cgroup) = (self.grace, self.started, self.cgroup.clone());
        let ended = tokio::task::spawn_blocking(move || {
            let markers = [(TREE_MARKER, marker.as_str())];
            let ended =
                orphans::kill_orphans(&markers, owner_lock.as_deref(), grace, grace + ORPHANS_DEADLINE);
            if let Some(cgroup) = cgroup.as_deref().and_then(Cgroup::at) {
                cgroup.kill(ORPHANS_DEADLINE);
            }
            if let Some(started) = started {
                orphans::reap_session(started.pid);
            }
            // Processes without the marker and without the lock are children of this process by now.
            let adopted = kill_adopted(ORPHANS_DEADLINE)?;
            ended.map(|ended| KilledOrphans { processes: ended.processes + adopted })
        });
        let orphans = ended.await.unwrap_or_else(|panic| {
            Err(Error::Pipe { attempt: "could not kill its processes", source: std::io::Error::other(panic) })
        })?;
        let leftovers = u32::try_from(orphans.processes).unwrap_or(u32::MAX);
        Ok(Ended { leftovers, ..Ended::because(Reason::SupervisorLost) })
    }

    /// Returns the supervisor's next report; `None` when the supervisor has exited.
    async fn next_report(&mut self) -> Result<Option<Report>, Error> {
        while let Some(line) =
            self.lines.next_line().await.map_err(pipe_error("could not read its report"))?
        {
            match serde_json::from_str(&line) {
                Ok(report) => return Ok(Some(report)),
                // A supervisor that is killed while it reports leaves an incomplete line.
                Err(error) => tracing::warn!(%error, "the supervisor sent a line that is not a report"),
            }
        }
        Ok(None)
    }

    fn send(&self, line: Line) -> Result<(), Error> {
        let text = format!("{line}\n");
        // Shorter than PIPE_BUF, so the write is atomic.
        let written = rustix::io::retry_on_intr(|| rustix::io::write(self.pipe.as_fd(), text.as_bytes()));
        // Continue a supervisor that was stopped by a signal. It is our child, so the pid is still its own.
        if let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(id as i32)) {
            let _ = kill_process(pid, Signal::CONT);
        }
        written.map(drop).map_err(|error| pipe_error("could not send a command")(error.into()))
    }
}

fn pipe_error(attempt: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Pipe { attempt, source }
}

/// Returns a value that is unique on this host for as long as any process could carry it.
fn tree_marker() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("{}-{}-{count}", std::process::id(), clock::now_ms())
}
