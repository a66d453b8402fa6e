//! The supervisor's loop: from the start of the command until the kernel says that no child is left.

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
    tree::Ending,
};
use crate::{
    Ended, Order, Reason, clock,
    log::Stream,
    order::{Command, LEASE_GRACE_MS},
    sys,
};

/// `poll` does not count the time a machine sleeps, leases do: look at the clock at least this often.
const LONGEST_WAIT_MS: u64 = 1_000;

/// Without a deadline only events matter; all of them end the wait.
const IDLE_WAIT_MS: u64 = 60_000;

/// A fork storm must not keep the loop from its other duties.
const REAPS_PER_TURN: usize = 1_000;

const BUFFER_BYTES: usize = 64 << 10;

/// Everything the loop looks after.
pub(super) struct Watch {
    pid: i32,
    status: Option<WaitStatus>,
    leftovers: u32,
    ending: Option<Ending>,
    started_ms: u64,
    timeout_at_ms: Option<u64>,
    lease_until_ms: Option<u64>,
    grace_ms: u64,
    inbox: Inbox,
    signals: OwnedFd,
    outputs: [Output; 2],
    sinks: Sinks,
}

impl Watch {
    pub(super) fn new(
        child: Child,
        order: &Order,
        lease_until_ms: Option<u64>,
        inbox: Inbox,
        signals: OwnedFd,
        sinks: Sinks,
    ) -> Self {
        // A pipe that would block only costs liveness, not the end of the tree; and this call cannot fail on a pipe.
        let _ = sys::set_nonblocking(&child.out).and_then(|()| sys::set_nonblocking(&child.err));
        let started_ms = clock::now_ms();
        Watch {
            pid: child.started.pid,
            status: None,
            leftovers: 0,
            ending: None,
            started_ms,
            timeout_at_ms: order.timeout_ms.map(|timeout_ms| started_ms.saturating_add(timeout_ms)),
            lease_until_ms,
            grace_ms: order.grace_ms,
            inbox,
            signals,
            outputs: [Output::new(child.out, Stream::Out), Output::new(child.err, Stream::Err)],
            sinks,
        }
    }

    /// Returns when the tree is empty and all it wrote is in the log.
    pub(super) fn run(mut self) -> Ended {
        let mut buffer = vec![0; BUFFER_BYTES];
        while self.reap() {
            let now_ms = clock::now_ms();
            self.obey(now_ms);
            self.decide(now_ms);
            if let Some(ending) = &mut self.ending {
                ending.act(now_ms);
            }
            self.sinks.log.flush();
            self.wait_for_news(&mut buffer);
        }
        for output in &mut self.outputs {
            output.finish(&mut buffer, &mut self.sinks);
        }
        self.report()
    }

    /// Collects children that ended; says whether any is left.
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

    /// Follows the worker's commands, and its silence. Before [`Watch::decide`]: a lease that was renewed
    /// in time is not lost because this process was slow to read it.
    fn obey(&mut self, now_ms: u64) {
        if !self.inbox.is_open() {
            return;
        }
        for command in self.inbox.take_commands() {
            match command {
                Command::RenewUntil(until_ms) => {
                    self.lease_until_ms = self.lease_until_ms.max(Some(until_ms));
                }
                Command::Cancel => self.end(Reason::Cancelled, now_ms, self.grace_ms),
                Command::Kill => {
                    self.end(Reason::Cancelled, now_ms, 0);
                    self.hurry(now_ms);
                }
            }
        }
        if !self.inbox.is_open() {
            let grace_ms = self.grace_ms.min(LEASE_GRACE_MS);
            self.end(Reason::ParentGone, now_ms, grace_ms);
            self.hurry(now_ms + grace_ms);
        }
    }

    fn decide(&mut self, now_ms: u64) {
        let passed = |deadline: Option<u64>| deadline.is_some_and(|at_ms| at_ms <= now_ms);
        if self.status.is_some() {
            self.end(Reason::Exited, now_ms, self.grace_ms);
        } else if passed(self.lease_until_ms) {
            // The next attempt may start elsewhere any moment.
            self.end(Reason::LeaseLost, now_ms, self.grace_ms.min(LEASE_GRACE_MS));
        } else if passed(self.timeout_at_ms) {
            self.end(Reason::Timeout, now_ms, self.grace_ms);
        }
    }

    /// Begins to end the tree, unless that has begun: the first reason counts. A command that ended
    /// by itself ended for that reason, whatever came while its leftovers were ended.
    fn end(&mut self, reason: Reason, now_ms: u64, grace_ms: u64) {
        if self.ending.is_some() {
            return;
        }
        let exited = self.status.is_some();
        let reason = if exited { Reason::Exited } else { reason };
        let (ending, terminated) = Ending::begin(reason, self.pid, now_ms, grace_ms);
        self.ending = Some(ending);
        if exited && terminated > 0 {
            self.leftovers = terminated;
            self.sinks.log.note(&format!("sprag: processes the command left behind are ended: {terminated}"));
        }
    }

    fn hurry(&mut self, kill_by_ms: u64) {
        if let Some(ending) = &mut self.ending {
            ending.kill_by(kill_by_ms);
        }
    }

    /// Waits for a child's end, output, a command or a deadline, and takes the output.
    fn wait_for_news(&mut self, buffer: &mut [u8]) {
        let timeout_ms = match self.next_deadline_ms() {
            Some(at_ms) => at_ms.saturating_sub(clock::now_ms()).min(LONGEST_WAIT_MS),
            None => IDLE_WAIT_MS,
        };
        let input = stdin();
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        if self.inbox.is_open() {
            fds.push(PollFd::new(&input, PollFlags::IN));
        }
        fds.extend(self.outputs.iter().filter_map(Output::fd).map(|fd| PollFd::new(fd, PollFlags::IN)));
        // Should poll ever fail, the loop still does all its work, only less calmly.
        if sys::wait_ready(&mut fds, timeout_ms).is_err() {
            sys::pause(1);
        }
        let now_ms = clock::now_ms();
        if sys::take_signals(&self.signals).iter().any(|&signal| signal != libc::SIGCHLD) {
            self.end(Reason::Signalled, now_ms, self.grace_ms);
        }
        for output in &mut self.outputs {
            output.flush_if_quiet(&mut self.sinks, now_ms);
            output.take(buffer, &mut self.sinks, now_ms);
        }
    }

    fn next_deadline_ms(&self) -> Option<u64> {
        let ending = match &self.ending {
            Some(ending) => [Some(ending.due_ms()), None],
            None => [self.timeout_at_ms, self.lease_until_ms],
        };
        let quiet = self.outputs.iter().map(Output::flush_at_ms);
        ending.into_iter().chain(quiet).flatten().min()
    }

    fn report(self) -> Ended {
        let (log_dropped_bytes, log_error) = self.sinks.log.finish();
        let (capture_dropped_bytes, capture_error) =
            self.sinks.capture.map_or((0, None), |capture| capture.finish());
        Ended {
            reason: self.ending.map_or(Reason::Exited, |ending| ending.reason),
            exit_code: self.status.and_then(WaitStatus::exit_status),
            signal: self.status.and_then(WaitStatus::terminating_signal),
            leftovers: self.leftovers,
            usage: sys::children_usage(clock::now_ms() - self.started_ms),
            log_dropped_bytes,
            log_error,
            capture_dropped_bytes,
            capture_error,
        }
    }
}
