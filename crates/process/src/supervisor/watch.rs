//! The supervisor's loop: from the start of the command until the kernel reports that no child is left.

use std::os::fd::OwnedFd;

use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
    process::{WaitOptions, WaitStatus, wait},
    stdio::stdin,
};

use super::{
    child::Child,
    inbox::Inbox,
    output::{Output, Sinks},
    tree::TreeStop,
};
use crate::{
    Ended, Order, Reason, clock,
    limits::LimitGroup,
    log::Stream,
    order::{Command, LEASE_GRACE_MS},
    sys,
};

/// The longest wait with a deadline. `poll` does not count the time that a machine sleeps, but leases do.
const MAX_WAIT_MS: u64 = 1_000;

/// The longest wait without a deadline. Every event ends the wait.
const IDLE_WAIT_MS: u64 = 60_000;

/// The most children reaped in a turn, so that a fork storm does not block the rest of the loop.
const REAPS_PER_TURN: usize = 1_000;

const BUFFER_BYTES: usize = 64 << 10;

/// The interval between two checks whether the kernel has killed a process because of the limit on memory. Where it
/// kills one process, the rest of the tree is killed then.
const MEMORY_CHECK_MS: u64 = 250;

/// The state of the loop.
pub(super) struct Watch<'l> {
    pid: i32,
    status: Option<WaitStatus>,
    leftovers: u32,
    stopping: Option<TreeStop>,
    started_ms: u64,
    timeout_at_ms: Option<u64>,
    lease_until_ms: Option<u64>,
    grace_ms: u64,
    inbox: Inbox,
    signals: OwnedFd,
    outputs: [Output; 2],
    sinks: Sinks,
    limits: Option<&'l LimitGroup>,
    memory_check_ms: Option<u64>,
    is_isolated: bool,
    memory_bytes: Option<u64>,
    processes: Option<u32>,
}

impl<'l> Watch<'l> {
    pub(super) fn new(
        child: Child,
        order: &Order,
        lease_until_ms: Option<u64>,
        inbox: Inbox,
        signals: OwnedFd,
        sinks: Sinks,
        limits: Option<&'l LimitGroup>,
    ) -> Self {
        // This cannot fail on a pipe. A blocking pipe would only delay the loop.
        let _ = child.out.iter().chain([&child.err]).try_for_each(sys::set_nonblocking);
        let started_ms = clock::now_ms();
        Watch {
            pid: child.started.pid,
            status: None,
            leftovers: 0,
            stopping: None,
            started_ms,
            timeout_at_ms: order.timeout_ms.map(|timeout_ms| started_ms.saturating_add(timeout_ms)),
            lease_until_ms,
            grace_ms: order.grace_ms,
            inbox,
            signals,
            outputs: [Output::new(child.out, Stream::Out), Output::new(Some(child.err), Stream::Err)],
            sinks,
            limits,
            memory_check_ms: limits
                .is_some_and(LimitGroup::limits_memory)
                .then(|| started_ms.saturating_add(MEMORY_CHECK_MS)),
            is_isolated: order.sandbox.as_ref().is_some_and(|sandbox| sandbox.isolated),
            memory_bytes: order.sandbox.as_ref().and_then(|sandbox| sandbox.limits.memory_bytes),
            processes: order.sandbox.as_ref().and_then(|sandbox| sandbox.limits.processes),
        }
    }

    /// Runs until the tree is empty and its output is in the log.
    pub(super) fn run(mut self) -> Ended {
        let mut buffer = vec![0; BUFFER_BYTES];
        while self.reap() {
            let now_ms = clock::now_ms();
            self.apply_commands(now_ms);
            self.check_deadlines(now_ms);
            if let Some(stopping) = &mut self.stopping {
                stopping.act(now_ms);
            }
            self.sinks.log.flush();
            self.wait_for_events(&mut buffer);
        }
        for output in &mut self.outputs {
            output.finish(&mut buffer, &mut self.sinks);
        }
        self.report()
    }

    /// Reaps children that ended. Returns whether any is left.
    fn reap(&mut self) -> bool {
        for _ in 0..REAPS_PER_TURN {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid.as_raw_pid() == self.pid => self.status = Some(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    /// Applies the worker's commands and notices its end. Runs before [`Watch::check_deadlines`]: a renewal
    /// that was sent in time counts even if this process reads it late.
    fn apply_commands(&mut self, now_ms: u64) {
        if !self.inbox.is_open() {
            return;
        }
        for command in self.inbox.take_commands() {
            match command {
                Command::RenewUntil(until_ms) => {
                    self.lease_until_ms = self.lease_until_ms.max(Some(until_ms));
                }
                Command::Cancel => self.stop(Reason::Cancelled, now_ms, self.grace_ms),
                Command::Kill => {
                    self.stop(Reason::Cancelled, now_ms, 0);
                    self.kill_by(now_ms);
                }
            }
        }
        if !self.inbox.is_open() {
            let grace_ms = self.grace_ms.min(LEASE_GRACE_MS);
            self.stop(Reason::ParentGone, now_ms, grace_ms);
            self.kill_by(now_ms + grace_ms);
        }
    }

    fn check_deadlines(&mut self, now_ms: u64) {
        let passed = |deadline: Option<u64>| deadline.is_some_and(|at_ms| at_ms <= now_ms);
        if passed(self.memory_check_ms) {
            self.memory_check_ms = Some(now_ms.saturating_add(MEMORY_CHECK_MS));
            if self.memory_kills() > 0 {
                self.stop(Reason::MemoryLimit, now_ms, 0);
                self.kill_by(now_ms);
            }
        }
        if self.status.is_some() {
            self.stop(Reason::Exited, now_ms, self.grace_ms);
        } else if passed(self.lease_until_ms) {
            // The next attempt may start elsewhere at any moment.
            self.stop(Reason::LeaseLost, now_ms, self.grace_ms.min(LEASE_GRACE_MS));
        } else if passed(self.timeout_at_ms) {
            self.stop(Reason::Timeout, now_ms, self.grace_ms);
        }
    }

    /// Starts to stop the tree, unless that has already started: the first reason counts. If the command has
    /// exited by itself, the reason is [`Reason::Exited`], whatever happens during the clean-up.
    fn stop(&mut self, reason: Reason, now_ms: u64, grace_ms: u64) {
        if self.stopping.is_some() {
            return;
        }
        let exited = self.status.is_some();
        let reason = if exited { Reason::Exited } else { reason };
        let (stopping, terminated) =
            TreeStop::start(reason, self.pid, now_ms, grace_ms, self.is_isolated, exited);
        self.stopping = Some(stopping);
        // The processes that are left after the kernel has killed one for its memory were not left behind on purpose.
        if exited && terminated > 0 && self.memory_kills() == 0 {
            self.leftovers = terminated;
            self.sinks
                .log
                .note(&format!("sprag: processes the command left behind were stopped: {terminated}"));
        }
    }

    fn kill_by(&mut self, kill_by_ms: u64) {
        if let Some(stopping) = &mut self.stopping {
            stopping.kill_by(kill_by_ms);
        }
    }

    /// Waits for the end of a child, output, a command or a deadline, and reads the output.
    fn wait_for_events(&mut self, buffer: &mut [u8]) {
        let timeout_ms = match self.next_deadline_ms() {
            Some(at_ms) => at_ms.saturating_sub(clock::now_ms()).min(MAX_WAIT_MS),
            None => IDLE_WAIT_MS,
        };
        let input = stdin();
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        if self.inbox.is_open() {
            fds.push(PollFd::new(&input, PollFlags::IN));
        }
        fds.extend(self.outputs.iter().filter_map(Output::fd).map(|fd| PollFd::new(fd, PollFlags::IN)));
        // If poll ever fails, the loop still works, only with short pauses.
        if sys::wait_ready(&mut fds, timeout_ms).is_err() {
            sys::pause(1);
        }
        let now_ms = clock::now_ms();
        if sys::take_signals(&self.signals).iter().any(|&signal| signal != libc::SIGCHLD) {
            self.stop(Reason::Signalled, now_ms, self.grace_ms);
        }
        for output in &mut self.outputs {
            output.flush_if_quiet(&mut self.sinks, now_ms);
            output.take(buffer, &mut self.sinks, now_ms);
        }
    }

    fn next_deadline_ms(&self) -> Option<u64> {
        let stopping = match &self.stopping {
            Some(stopping) => [Some(stopping.due_ms()), None],
            None => [self.timeout_at_ms, self.lease_until_ms],
        };
        let memory_check_ms = self.memory_check_ms.filter(|_| self.stopping.is_none());
        let quiet = self.outputs.iter().map(Output::flush_at_ms);
        stopping.into_iter().chain([memory_check_ms]).chain(quiet).flatten().min()
    }

    fn memory_kills(&self) -> u64 {
        self.limits.map_or(0, LimitGroup::memory_kills)
    }

    /// Returns the reason for the end, and the limits that were reached, for people.
    fn limits_reached(&self) -> (Reason, Vec<String>) {
        let reason = self.stopping.as_ref().map_or(Reason::Exited, |stopping| stopping.reason.clone());
        let mut warnings = Vec::new();
        let is_over = reason == Reason::MemoryLimit || self.memory_kills() > 0;
        if let Some(bytes) = self.memory_bytes.filter(|_| is_over) {
            warnings.push(format!("it used more than its memory limit of {} and was killed", size(bytes)));
        }
        if let (Some(most), refused @ 1..) =
            (self.processes, self.limits.map_or(0, LimitGroup::refused_processes))
        {
            let times = if refused == 1 { "once".to_owned() } else { format!("{refused} times") };
            warnings.push(format!("it reached its limit of {most} processes {times}"));
        }
        let reason = if is_over && reason == Reason::Exited { Reason::MemoryLimit } else { reason };
        (reason, warnings)
    }

    fn report(mut self) -> Ended {
        let (reason, warnings) = self.limits_reached();
        for warning in &warnings {
            self.sinks.log.note(&format!("sprag: {warning}"));
        }
        let (log_dropped_bytes, log_error) = self.sinks.log.finish();
        let (capture_dropped_bytes, capture_error) =
            self.sinks.capture.map_or((0, None), |capture| capture.finish());
        Ended {
            reason,
            exit_code: self.status.and_then(WaitStatus::exit_status),
            signal: self.status.and_then(WaitStatus::terminating_signal),
            leftovers: self.leftovers,
            usage: sys::children_usage(clock::now_ms() - self.started_ms),
            log_dropped_bytes,
            log_error,
            capture_dropped_bytes,
            capture_error,
            warnings,
        }
    }
}

/// Returns a size for people.
fn size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let fitting = units.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    fitting.map_or_else(|| format!("{bytes} bytes"), |(unit, name)| format!("{} {name}", bytes / unit))
}
