//! One output pipe of the command: read without waiting, masked, cut into entries.

use std::os::fd::OwnedFd;

use rustix::io::{Errno, read};

use crate::log::{CaptureWriter, Lines, LogWriter, Masker, Piece, Secrets, Stream};

/// Silence after which the beginning of a line is logged without waiting for its end.
const QUIET_MS: u64 = 100;

/// A turn of the loop reads at most this often from a stream: cancelling must not wait for a flood.
const READS_PER_TURN: usize = 8;

/// A pipe holds at most 1 MiB unless an administrator says otherwise. When the tree is gone, more than
/// that can only come from a stranger who was handed the pipe, and who is not waited for.
const LAST_READS: usize = 32;

/// Where output goes.
pub(super) struct Sinks {
    pub(super) log: LogWriter,
    pub(super) capture: Option<CaptureWriter>,
    pub(super) secrets: Secrets,
}

/// The reading end of one stream.
pub(super) struct Output {
    /// None after the end of the stream.
    fd: Option<OwnedFd>,
    stream: Stream,
    masker: Masker,
    lines: Lines,
    /// When an unfinished line is logged as it is.
    flush_at_ms: Option<u64>,
}

impl Output {
    pub(super) fn new(fd: OwnedFd, stream: Stream) -> Self {
        Output { fd: Some(fd), stream, masker: Masker::default(), lines: Lines::default(), flush_at_ms: None }
    }

    pub(super) fn fd(&self) -> Option<&OwnedFd> {
        self.fd.as_ref()
    }

    pub(super) fn flush_at_ms(&self) -> Option<u64> {
        self.flush_at_ms
    }

    /// Takes what is there, up to the bound of one turn.
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

    /// Takes what is left when the tree is gone, and ends the stream.
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

    /// Says whether there was something.
    fn read(&mut self, most: usize, buffer: &mut [u8], sinks: &mut Sinks) -> bool {
        let mut any = false;
        for _ in 0..most {
            let Some(fd) = &self.fd else { break };
            match read(fd, &mut *buffer) {
                Ok(0) => self.fd = None,
                Ok(length) => {
                    any = true;
                    self.accept(&buffer[..length], sinks);
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => break,
                Err(_) => self.fd = None,
            }
        }
        any
    }

    fn accept(&mut self, bytes: &[u8], sinks: &mut Sinks) {
        if self.stream == Stream::Out
            && let Some(capture) = &mut sinks.capture
        {
            capture.add(bytes);
        }
        // A flood beyond the limit costs no more than reading it.
        if sinks.log.is_full() {
            return sinks.log.drop_bytes(bytes.len());
        }
        let mut clean = Vec::with_capacity(bytes.len());
        self.masker.push(&sinks.secrets, bytes, &mut clean);
        let (stream, log) = (self.stream, &mut sinks.log);
        self.lines.push(&clean, &mut |piece| log.add(stream, piece));
    }
}
