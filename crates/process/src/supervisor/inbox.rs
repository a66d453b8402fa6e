//! The supervisor's stdin: the order, then commands, then the end of the worker.

use std::io;

use rustix::{
    io::{Errno, read, retry_on_intr},
    stdio::stdin,
};

use crate::{order::Command, sys};

/// The longest order. It contains an environment and secrets, whose size the system limits to about this.
const MAX_ORDER_BYTES: usize = 16 << 20;

/// The longest command; real ones have a few dozen bytes.
const MAX_COMMAND_BYTES: usize = 4096;

/// Reads stdin line by line.
#[derive(Default)]
pub(super) struct Inbox {
    buffer: Vec<u8>,
    closed: bool,
}

impl Inbox {
    /// Waits for the order. After it, reads do not block.
    pub(super) fn first_line(&mut self) -> io::Result<String> {
        let mut chunk = [0; 16 << 10];
        let end = loop {
            if self.buffer.len() > MAX_ORDER_BYTES {
                return Err(io::Error::other("the order is too long"));
            }
            let length = retry_on_intr(|| read(stdin(), &mut chunk))?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let before = self.buffer.len();
            self.buffer.extend_from_slice(&chunk[..length]);
            if let Some(end) = chunk[..length].iter().position(|&byte| byte == b'\n') {
                break before + end;
            }
        };
        // The same read may contain the first commands.
        let rest = self.buffer.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.buffer, rest);
        line.pop();
        sys::set_nonblocking(stdin())?;
        String::from_utf8(line).map_err(io::Error::other)
    }

    /// Returns whether the worker's end of the pipe is open.
    pub(super) fn is_open(&self) -> bool {
        !self.closed
    }

    /// Returns the commands since the last call.
    pub(super) fn take_commands(&mut self) -> Vec<Command> {
        let mut commands = Vec::new();
        self.split_lines(&mut commands);
        let mut chunk = [0; 1024];
        while !self.closed {
            match read(stdin(), &mut chunk) {
                Ok(0) => self.closed = true,
                Ok(length) => self.buffer.extend_from_slice(&chunk[..length]),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => break,
                Err(_) => self.closed = true,
            }
            self.split_lines(&mut commands);
        }
        commands
    }

    fn split_lines(&mut self, commands: &mut Vec<Command>) {
        while let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
            commands.extend(std::str::from_utf8(&self.buffer[..end]).ok().and_then(Command::parse));
            self.buffer.drain(..=end);
        }
        if self.buffer.len() > MAX_COMMAND_BYTES {
            self.buffer.clear();
        }
    }
}
