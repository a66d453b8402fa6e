//! A conversation with one agent as a state machine without I/O: bytes and commands in, events and bytes out.
//!
//! ```text
//!              receive(bytes), end_of_stream()                        next_event()
//!   process ──────────────────────────────────▶ ┌──────────────┐ ──────────────────▶ worker
//!                                               │ Conversation │
//!   process ◀────────────────────────────────── └──────────────┘ ◀────────────────── worker
//!              next_write()                                           prompt, steer, interrupt, answer, close
//!
//!   Starting ──handshake──▶ Idle ──prompt──▶ Busy ──terminal event──▶ Idle …       any ──end of stream──▶ Ended
//! ```
//!
//! The adapters (`claude`, `codex`, `acp`) translate. The [`Core`] that they share tracks turns and usage, and applies
//! the rules against false success. Neither knows anything about runs, steps or stores.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::event::{Event, Unreadable};
use crate::failure::{Failure, FailureKind};
use crate::launch::{Driver, Launch};
use crate::lines::{Line, LineLimits, LineSplitter};
use crate::state::Core;
use crate::surrogates;
use crate::text::shorten;

/// Limits of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Limits of a line of the agent.
    pub lines: LineLimits,
    /// The most bytes of a tool's output in an event.
    pub max_tool_output_bytes: usize,
    /// The most bytes of a message to the agent.
    pub max_message_bytes: usize,
    /// The most bytes that may wait to be written to an agent that does not read. Above this, messages are refused and
    /// the agent's output is not read.
    pub max_unsent_bytes: usize,
}

impl Default for Limits {
    /// Returns 10 MB per message, the limit of the agents' stdin, and 32 KiB per tool output.
    fn default() -> Limits {
        Limits {
            lines: LineLimits::default(),
            max_tool_output_bytes: 32 << 10,
            max_message_bytes: 10 << 20,
            max_unsent_bytes: 12 << 20,
        }
    }
}

/// A message to the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The caller's id, a UUID. Claude Code and Codex store it with the session and report it when they receive the
    /// message.
    pub id: String,
    /// The text.
    pub text: String,
}

impl Message {
    /// Returns a message with this id and text.
    pub fn new(id: impl Into<String>, text: impl Into<String>) -> Message {
        Message { id: id.into(), text: text.into() }
    }
}

/// The answer to a permission request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The tool may be used, this once.
    Allow,
    /// The tool may not be used.
    Deny {
        /// The reason, for the agent.
        message: String,
    },
}

/// The way a message reaches an agent that is working.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Steer {
    /// The agent reads it after the tool that runs now.
    AfterTool,
    /// The agent stops its work and starts a turn with it.
    Now,
}

/// The state of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The handshake is in progress.
    Starting,
    /// The agent waits for a prompt.
    Idle,
    /// A turn is open.
    Busy,
    /// The conversation is over, or never started.
    Ended,
}

/// The reason why a command was refused. Nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "refused", rename_all = "snake_case")]
pub enum Refused {
    /// The handshake has not finished.
    #[error("the agent is still starting")]
    NotReady,
    /// A turn is open. The caller can steer it, interrupt it, or wait.
    #[error("a turn is open")]
    TurnOpen,
    /// No turn is open.
    #[error("no turn is open")]
    NoTurn,
    /// The conversation is over.
    #[error("the conversation is over")]
    Ended,
    /// The wire does not support this.
    #[error("{driver} cannot {what}")]
    Unsupported {
        /// The driver of the conversation.
        driver: Driver,
        /// The unsupported operation, as a verb phrase.
        what: String,
    },
    /// No permission request with this id is open.
    #[error("no permission request {request:?} is open")]
    UnknownRequest {
        /// The unknown id.
        request: String,
    },
    /// The message is larger than [`Limits::max_message_bytes`].
    #[error("the message has {bytes} bytes; the most is {limit}")]
    TooLarge {
        /// The size of the message in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The agent does not read its input, and too many bytes wait already.
    #[error("the agent does not read its input, and {waiting} bytes wait for it")]
    Backlog {
        /// The number of bytes that wait.
        waiting: usize,
    },
}

/// The translation between one wire and the shared core.
pub(crate) trait Adapter: Send {
    /// Sends the first message of the handshake.
    fn begin(&mut self, core: &mut Core);
    /// Handles one message of the agent.
    fn receive(&mut self, core: &mut Core, message: Value);
    /// Sends a prompt; the core has opened its turn.
    fn prompt(&mut self, core: &mut Core, message: &Message);
    /// Sends a message into the open turn.
    fn steer(&mut self, core: &mut Core, message: &Message, how: Steer) -> Result<(), Refused>;
    /// Asks the agent to end the open turn.
    fn interrupt(&mut self, core: &mut Core);
    /// Answers an open permission request.
    fn answer(&mut self, core: &mut Core, request: &str, answer: &Answer);
}

/// A conversation with one agent.
pub struct Conversation {
    adapter: Box<dyn Adapter>,
    core: Core,
    splitter: LineSplitter,
}

impl Conversation {
    pub(crate) fn new(launch: &Launch, limits: Limits) -> Conversation {
        let adapter: Box<dyn Adapter> = match launch.driver {
            Driver::ClaudeStream => Box::new(crate::claude::ClaudeAdapter::new(launch)),
            Driver::CodexAppServer => Box::new(crate::codex::CodexAdapter::new(launch)),
            Driver::Acp => Box::new(crate::acp::AcpAdapter::new(launch)),
        };
        let core = Core::new(launch.driver, launch.session.clone(), launch.output_schema.is_some(), limits);
        Conversation { adapter, core, splitter: LineSplitter::new(limits.lines) }
    }

    /// Starts the handshake.
    pub fn begin(&mut self) {
        self.adapter.begin(&mut self.core);
    }

    /// Returns the current state.
    pub fn phase(&self) -> Phase {
        self.core.phase()
    }

    /// Returns the driver that translates this conversation.
    pub fn driver(&self) -> Driver {
        self.core.driver
    }

    /// Returns the session's id, once it is known.
    pub fn session(&self) -> Option<&str> {
        self.core.session()
    }

    /// Receives bytes of the agent's stdout, split anywhere.
    pub fn receive(&mut self, bytes: &[u8]) {
        let Conversation { adapter, core, splitter } = self;
        splitter.push(bytes, |line| receive_line(adapter.as_mut(), core, &line));
    }

    /// Records the end of the agent's stdout. [`Event::Ended`] follows.
    pub fn end_of_stream(&mut self) {
        let Conversation { adapter, core, splitter } = self;
        splitter.finish(|line| receive_line(adapter.as_mut(), core, &line));
        self.core.end_of_stream();
    }

    /// Ends the conversation because the agent was not ready in time. [`Event::Ended`] follows.
    pub fn give_up_start(&mut self, message: &str) {
        if self.core.phase() == Phase::Starting {
            self.core.fail_start(Failure::new(FailureKind::Handshake, message));
        }
    }

    /// Sends a prompt, which opens a turn. Returns the number of the turn.
    pub fn prompt(&mut self, message: &Message) -> Result<u64, Refused> {
        match self.core.phase() {
            Phase::Idle => {}
            Phase::Starting => return Err(Refused::NotReady),
            Phase::Busy => return Err(Refused::TurnOpen),
            Phase::Ended => return Err(Refused::Ended),
        }
        self.core.check_room(message)?;
        let turn = self.core.open_turn(Some(message.id.clone()));
        self.adapter.prompt(&mut self.core, message);
        Ok(turn)
    }

    /// Sends a message into the open turn. If the turn ends before the agent reads it, the agent may open another turn
    /// for it.
    pub fn steer(&mut self, message: &Message, how: Steer) -> Result<(), Refused> {
        self.needs_turn()?;
        self.core.check_room(message)?;
        self.adapter.steer(&mut self.core, message, how)
    }

    /// Asks the agent to end the open turn. The turn cannot count as a success after this.
    pub fn interrupt(&mut self) -> Result<(), Refused> {
        self.needs_turn()?;
        if self.core.note_interrupt() {
            self.adapter.interrupt(&mut self.core);
        }
        Ok(())
    }

    /// Answers a permission request.
    pub fn answer(&mut self, request: &str, answer: &Answer) -> Result<(), Refused> {
        if self.core.phase() == Phase::Ended {
            return Err(Refused::Ended);
        }
        if !self.core.close_permission(request, answer) {
            return Err(Refused::UnknownRequest { request: request.to_owned() });
        }
        self.adapter.answer(&mut self.core, request, answer);
        Ok(())
    }

    /// Records that the caller wants no further turn. Once everything is written, [`Conversation::wants_close`] holds:
    /// closing the agent's stdin makes it exit.
    pub fn close(&mut self) {
        self.core.is_closing = true;
    }

    /// Returns whether the caller should close the agent's stdin.
    pub fn wants_close(&self) -> bool {
        (self.core.is_closing || self.core.phase() == Phase::Ended) && self.core.unsent_bytes() == 0
    }

    /// Returns whether the agent sends requests but does not read the answers. The caller should receive nothing from
    /// it until they are written.
    pub fn is_backlogged(&self) -> bool {
        self.core.is_backlogged()
    }

    /// Takes the next event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.core.next_event()
    }

    /// Takes the next bytes to write to the agent's stdin. The caller must write them completely and in this order.
    pub fn next_write(&mut self) -> Option<Vec<u8>> {
        self.core.next_write()
    }

    fn needs_turn(&self) -> Result<(), Refused> {
        match self.core.phase() {
            Phase::Busy => Ok(()),
            Phase::Starting => Err(Refused::NotReady),
            Phase::Idle => Err(Refused::NoTurn),
            Phase::Ended => Err(Refused::Ended),
        }
    }
}

/// Parses one line and passes a JSON object to the adapter.
fn receive_line(adapter: &mut dyn Adapter, core: &mut Core, line: &Line<'_>) {
    if core.phase() == Phase::Ended {
        return;
    }
    let (bytes, length) = match *line {
        Line::Whole { bytes, left_out } => (bytes, bytes.len() as u64 + left_out),
        Line::TooLong { head, length } => {
            return core.push(Event::Unreadable(Unreadable {
                reason: "the line is too long".to_owned(),
                head: shorten(&String::from_utf8_lossy(head)),
                length,
            }));
        }
    };
    let unreadable = |reason: String| {
        let head = bytes.get(..200).unwrap_or(bytes);
        Event::Unreadable(Unreadable { reason, head: shorten(&String::from_utf8_lossy(head)), length })
    };
    match parse(bytes) {
        Ok(message @ Value::Object(_)) => {
            adapter.receive(core, message);
            // Some agents retry a limit or a refused login for minutes, which is pointless.
            if core.take_give_up() {
                adapter.interrupt(core);
            }
        }
        Ok(_) => core.push(unreadable("the line is not a JSON object".to_owned())),
        Err(error) => core.push(unreadable(format!("the line is not JSON: {error}"))),
    }
}

/// Parses a line. Invalid UTF-8 and halves of surrogate pairs, which agents written in JavaScript print, become `�`.
fn parse(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    let error = match serde_json::from_slice(bytes) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let text = String::from_utf8_lossy(bytes);
    let repaired = surrogates::replace_lone_halves(&text);
    if repaired.is_none() && text.as_bytes() == bytes {
        return Err(error);
    }
    serde_json::from_str(repaired.as_deref().unwrap_or(&text))
}

/// Events and bytes that wait to be taken.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    pub(crate) events: VecDeque<Event>,
    pub(crate) writes: VecDeque<Vec<u8>>,
}
