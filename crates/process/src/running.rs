//! The worker's side: starts a supervisor, renews its lease, and waits until the tree has ended.

use std::{
    collections::HashSet,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::unix::pipe,
    process::{Child, ChildStdout, Command},
};

use crate::{
    Ended, Error, KilledOrphans, Order, Reason, RefusalKind, SUPERVISE, Started, TREE_MARKER,
    adopted::kill_adopted,
    cgroup::Cgroup,
    clock, environment,
    order::{Command as Line, Wire},
    orphans,
    report::Report,
    sys, table,
};

/// The time beyond the grace for the kernel to end killed processes.
const ORPHANS_DEADLINE: Duration = Duration::from_secs(30);

/// Starts `program` as the supervisor of one command. Returns when the command runs or has failed to start; in
/// the second case [`Running::wait`] tells why.
///
/// `program` must call [`crate::run_if_supervisor`] first in its `main`.
pub async fn spawn(order: Order, program: &Path) -> Result<Running, Error> {
    spawn_with(order, program, None).await
}

/// The worker's ends of the pipes to a command's stdin and from its stdout. Dropping them closes both, which also
/// happens when the worker dies.
#[derive(Debug)]
pub struct Duplex {
    /// The command's stdin.
    pub stdin: pipe::Sender,
    /// The command's stdout, which is not logged.
    pub stdout: pipe::Receiver,
}

/// Starts a command as [`spawn`] does, with pipes to the worker as its stdin and stdout. Its stderr goes to the log.
pub async fn spawn_duplex(mut order: Order, program: &Path) -> Result<(Running, Duplex), Error> {
    let pipes = || -> std::io::Result<_> {
        let (its_input, our_output) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (our_input, its_output) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let duplex = Duplex {
            stdin: pipe::Sender::from_owned_fd(our_output)?,
            stdout: pipe::Receiver::from_owned_fd(our_input)?,
        };
        Ok((its_input, its_output, duplex))
    };
    let (its_input, its_output, duplex) = pipes().map_err(pipe_error("could not make its pipes"))?;
    order.wire = Some(Wire { stdin: its_input.as_raw_fd(), stdout: its_output.as_raw_fd() });
    // The supervisor has copies of its own once it runs; these ones are closed here.
    let running = spawn_with(order, program, Some((its_input, its_output))).await?;
    Ok((running, duplex))
}

async fn spawn_with(
    mut order: Order,
    program: &Path,
    passed_on: Option<(OwnedFd, OwnedFd)>,
) -> Result<Running, Error> {
    if order.argv.is_empty() {
        return Err(Error::BadOrder { message: "the command is empty".to_owned() });
    }
    let inherits = order.inherits.take().unwrap_or_else(|| environment::inherited(&[], &[]));
    let marker = tree_marker();
    order.env.insert(TREE_MARKER.to_owned(), marker.clone());
    let mut line =
        serde_json::to_vec(&order).map_err(|error| Error::BadOrder { message: error.to_string() })?;
    line.push(b'\n');

    let mut command = Command::new(program);
    command
        .args([SUPERVISE, &order.label])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // A step can read its supervisor's environment, so that contains only what the step inherits.
        .env_clear()
        .envs(inherits)
        // The terminal's Ctrl-C is for the worker, which decides whether to drain or to cancel.
        .process_group(0);
    if let Some((input, output)) = &passed_on {
        let (input, output) = (input.as_raw_fd(), output.as_raw_fd());
        // SAFETY: between fork and exec the closure makes two system calls; it neither allocates nor locks.
        unsafe {
            command.pre_exec(move || {
                sys::keep_over_exec(input)?;
                sys::keep_over_exec(output)
            });
        }
    }
    let mut child =
        command.spawn().map_err(|source| Error::Supervisor { program: program.to_owned(), source })?;
    drop(passed_on);
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

/// The processes of a tree and the processor time that they have used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeActivity {
    /// The processor time of the live processes, in clock ticks (hundredths of a second).
    pub cpu_ticks: u64,
    /// The process ids and start times, in order.
    pub processes: Vec<(i32, u64)>,
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

    /// Returns the state of the tree as the kernel shows it; `None` after its end. Reads all of `/proc`, so call it
    /// seldom and on a blocking thread.
    pub fn activity(supervisor: u32) -> Option<TreeActivity> {
        let roots = HashSet::from([i32::try_from(supervisor).ok()?]);
        let mut tree = table::descendants(&table::all().ok()?, &roots);
        tree.retain(|stat| !stat.is_gone());
        tree.sort_by_key(|stat| (stat.pid, stat.start_time));
        Some(TreeActivity {
            cpu_ticks: tree.iter().map(|stat| stat.cpu_ticks).sum(),
            processes: tree.iter().map(|stat| (stat.pid, stat.start_time)).collect(),
        })
    }

    /// Returns the supervisor's process id; `None` after its end.
    pub fn supervisor_pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Extends the lease to this moment of the boot clock. A renewal never shortens it.
    pub fn renew(&self, until_ms: u64) -> Result<(), Error> {
        self.send(Line::RenewUntil(until_ms))
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
