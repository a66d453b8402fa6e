//! One output pipe of the command: non-blocking reads, masking, and splitting into entries.

use std::os::fd::OwnedFd;

use rustix::io::{Errno, read};

use crate::{
    log::{CaptureWriter, Lines, LogWriter, Piece, Stream},
    secrets::{Masker, Secrets},
};

/// The silence after which an unfinished line is logged.
const QUIET_MS: u64 = 100;

/// The most reads from one stream in a turn of the loop, so that a flood of output does not delay a cancel.
const READS_PER_TURN: usize = 8;

/// The most reads after the tree is gone. A pipe holds at most 1 MiB by default, so more output can only come
/// from a foreign process that was handed the pipe.
const LAST_READS: usize = 32;

/// The destinations of the output.
pub(super) struct Sinks {
    pub(super) log: LogWriter,
    pub(super) capture: Option<CaptureWriter>,
    pub(super) secrets: Secrets,
}

/// The reading end of one stream.
pub(super) struct Output {
    /// The pipe; absent after the end of the stream.
    fd: Option<OwnedFd>,
    stream: Stream,
    masker: Masker,
    lines: Lines,
    /// The time at which an unfinished line is logged.
    flush_at_ms: Option<u64>,
}

impl Output {
    /// Creates the reading end; without a descriptor, the stream has ended already.
    pub(super) fn new(fd: Option<OwnedFd>, stream: Stream) -> Self {
        Output { fd, stream, masker: Masker::default(), lines: Lines::default(), flush_at_ms: None }
    }

    pub(super) fn fd(&self) -> Option<&OwnedFd> {
        self.fd.as_ref()
    }

    pub(super) fn flush_at_ms(&self) -> Option<u64> {
        self.flush_at_ms
    }

    /// Reads the available output, up to the limit of one turn.
    pub(super) fn take(&mut self, buffer: &mut [u8], sinks: &mut Sinks, now_ms: u64) {
        if self.read(READS_PER_TURN, buffer, sinks) {
            self.flush_at_ms = self.lines.has_pending().then_some(now_ms + QUIET_MS);
        }
    }

    /// Logs the unfinished line if the stream was silent long enough.
    pub(super) fn flush_if_quiet(&mut self, sinks: &mut Sinks, now_ms: u64) {
        if self.flush_at_ms.is_some_and(|at| at <= now_ms) {
            self.flush_at_ms = None;
            let stream = self.stream;
            self.lines.flush(&mut |piece| sinks.log.add(stream, piece));
        }
    }

    /// Reads the rest after the tree is gone, and ends the stream.
    pub(super) fn finish(&mut self, buffer: &mut [u8], sinks: &mut Sinks) {
        self.read(LAST_READS, buffer, sinks);
        let mut clean = Vec::new();
        self.masker.finish(&sinks.secrets, &mut clean);
        let (stream, log) = (self.stream, &mut sinks.log);
        let mut emit = |piece: Piece| log.add(stream, piece);
        self.lines.push(&clean, &mut emit);
        self.lines.finish(&mut emit);
        self.fd = None;
    }

    /// Returns whether there was any output.
    fn read(&mut self, max_reads: usize, buffer: &mut [u8], sinks: &mut Sinks) -> bool {
        let mut got_output = false;
        for _ in 0..max_reads {
            let Some(fd) = &self.fd else { break };
            match read(fd, &mut *buffer) {
                Ok(0) => self.fd = None,
                Ok(length) => {
                    got_output = true;
                    self.accept(&buffer[..length], sinks);
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => break,
                Err(_) => self.fd = None,
            }
        }
        got_output
    }

    fn accept(&mut self, bytes: &[u8], sinks: &mut Sinks) {
        if self.stream == Stream::Out
            && let Some(capture) = &mut sinks.capture
        {
            capture.add(bytes);
        }
        // Beyond the limit, output is only read and counted.
        if sinks.log.is_full() {
            return sinks.log.drop_bytes(bytes.len());
        }
        let mut clean = Vec::with_capacity(bytes.len());
        self.masker.push(&sinks.secrets, bytes, &mut clean);
        let (stream, log) = (self.stream, &mut sinks.log);
        self.lines.push(&clean, &mut |piece| log.add(stream, piece));
    }
}
