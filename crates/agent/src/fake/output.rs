//! The fake agent's stdout, with simulated faults.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::Value;

pub(super) struct Output {
    /// The pause after each byte; absent for normal speed.
    pause: Option<Duration>,
    is_closed: bool,
}

impl Output {
    pub(super) fn stdout() -> Output {
        Output { pause: None, is_closed: false }
    }

    /// Writes a message and the end of its line.
    pub(super) fn line(&mut self, message: &Value) -> io::Result<()> {
        self.raw(format!("{message}\n").as_bytes())
    }

    /// Writes bytes unchanged.
    pub(super) fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_closed {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        match self.pause {
            None => stdout.write_all(bytes)?,
            Some(pause) => {
                for byte in bytes {
                    stdout.write_all(&[*byte])?;
                    stdout.flush()?;
                    std::thread::park_timeout(pause);
                }
            }
        }
        stdout.flush()
    }

    pub(super) fn slow_down(&mut self, pause: Duration) {
        self.pause = Some(pause);
    }

    /// Closes the pipe while the process keeps running.
    pub(super) fn close(&mut self) -> io::Result<()> {
        let nowhere = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&nowhere)?;
        self.is_closed = true;
        Ok(())
    }
}
