//! Messages and log lines on stderr. Writing them never fails a command, and never blocks a server.
//!
//! ```text
//!   eprintln!  ─┐                          ┌─▶ commands: written at once, errors ignored
//!   tracing    ─┴─▶ write(line) ───────────┴─▶ serve, worker, mcp: a bounded queue ─▶ a thread ─▶ stderr
//! ```
//!
//! A long-lived process outlives the reader of its stderr: the pipe is then closed, or full for ever. Lines that do
//! not fit into the queue are dropped and counted. The count is written as soon as there is room again.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Prints to stderr like the macro of the standard library, which panics if stderr cannot be written to.
macro_rules! eprint {
    ($($text:tt)*) => { $crate::stderr::write(format!($($text)*).into_bytes()) };
}

/// Prints a line to stderr like the macro of the standard library, which panics if stderr cannot be written to. Texts
/// of others in the line cannot control the terminal.
macro_rules! eprintln {
    ($($text:tt)*) => {
        $crate::stderr::write(format!("{}\n", $crate::show::defused(&format!($($text)*))).into_bytes())
    };
}

/// The most lines that wait to be written: a second of a busy server.
const MAX_WAITING: usize = 4_096;
/// The longest time that the end of the process waits for the queued lines.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

static QUEUE: OnceLock<SyncSender<Message>> = OnceLock::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);

enum Message {
    /// Bytes to write.
    Text(Vec<u8>),
    /// A request to answer once everything before it has been written.
    Flush(SyncSender<()>),
}

/// Writes through a queue from now on. Without a thread for it, lines are still written at once.
pub(crate) fn write_in_background() {
    let (send, receive) = sync_channel(MAX_WAITING);
    let started = std::thread::Builder::new().name("stderr".into()).spawn(move || drain(&receive));
    if started.is_ok() {
        let _ = QUEUE.set(send);
    }
}

/// Writes text, or drops it. It never fails and, in a long-lived process, never waits.
pub(crate) fn write(text: Vec<u8>) {
    match QUEUE.get() {
        None => {
            let _ = io::stderr().write_all(&text);
        }
        Some(queue) => {
            if queue.try_send(Message::Text(text)).is_err() {
                DROPPED.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Waits until the lines that were written before are out, for at most a second.
pub(crate) fn flush() {
    let Some(queue) = QUEUE.get() else { return };
    let (tell, told) = sync_channel(1);
    if queue.try_send(Message::Flush(tell)).is_ok() {
        let _ = told.recv_timeout(FLUSH_LIMIT);
    }
}

fn drain(queue: &Receiver<Message>) {
    let mut stderr = io::stderr();
    for message in queue {
        match message {
            Message::Text(text) => {
                let _ = stderr.write_all(&text);
            }
            Message::Flush(done) => {
                let _ = done.try_send(());
            }
        }
        let dropped = DROPPED.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let _ = writeln!(stderr, "{dropped} lines were left out: stderr was not read in time");
        }
    }
}

/// The writer of `tracing`'s lines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        write(text.to_vec());
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
