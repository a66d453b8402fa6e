//! Runs a conversation over a process's stdin and stdout: one task per agent, with bounded queues.
//!
//! ```text
//!   AgentControl ──commands──▶ ┌────────────┐ ──write──▶ stdin
//!                              │ run (task) │
//!   AgentEvents ◀──events───── └────────────┘ ◀──read─── stdout
//!          at most `max_queued_bytes` in all; when they are full, stdout is not read, and the agent waits
//! ```
//!
//! Commands and writes continue while events wait, so that a caller can interrupt a turn even if it reads events
//! slowly.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::conversation::{Answer, Conversation, Message, Phase, Refused, Steer};
use crate::event::Event;

/// The most bytes of one read.
const READ_BYTES: usize = 16 << 10;
/// The most commands that may wait for the task.
const MAX_COMMANDS: usize = 16;

/// Limits of a running conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunnerSettings {
    /// The time within which the agent must be ready for a prompt.
    pub handshake: Duration,
    /// The most bytes of events that may wait for the reader (see [`Event::weight`]). A larger single event waits
    /// alone.
    pub max_queued_bytes: usize,
}

impl Default for RunnerSettings {
    /// Returns 60 s for the handshake, which includes the start of MCP servers, and 512 KiB of events.
    fn default() -> RunnerSettings {
        RunnerSettings { handshake: Duration::from_secs(60), max_queued_bytes: 512 << 10 }
    }
}

enum Command {
    Prompt(Message, oneshot::Sender<Result<u64, Refused>>),
    Steer(Message, Steer, oneshot::Sender<Result<(), Refused>>),
    Interrupt(oneshot::Sender<Result<(), Refused>>),
    Answer(String, Answer, oneshot::Sender<Result<(), Refused>>),
    Close,
}

/// Sends commands to an agent. Dropping the last clone closes the agent's stdin.
#[derive(Clone)]
pub struct AgentControl {
    commands: mpsc::Sender<Command>,
}

impl AgentControl {
    /// Sends a prompt, which opens a turn. Returns the number of the turn.
    pub async fn prompt(&self, message: Message) -> Result<u64, Refused> {
        self.ask(|reply| Command::Prompt(message, reply)).await
    }

    /// Sends a message into the open turn.
    pub async fn steer(&self, message: Message, how: Steer) -> Result<(), Refused> {
        self.ask(|reply| Command::Steer(message, how, reply)).await
    }

    /// Asks the agent to end the open turn.
    pub async fn interrupt(&self) -> Result<(), Refused> {
        self.ask(Command::Interrupt).await
    }

    /// Answers a permission request.
    pub async fn answer(&self, request: impl Into<String>, answer: Answer) -> Result<(), Refused> {
        self.ask(|reply| Command::Answer(request.into(), answer, reply)).await
    }

    /// Closes the agent's stdin once everything is written, which makes the agent exit.
    pub async fn close(&self) {
        // If the task has stopped, stdin is closed already.
        self.commands.send(Command::Close).await.ok();
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, Refused>>) -> Command,
    ) -> Result<T, Refused> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| Refused::Ended)?;
        answer.await.unwrap_or(Err(Refused::Ended))
    }
}

/// The events of an agent. Dropping it ends the conversation.
pub struct AgentEvents {
    queue: mpsc::UnboundedReceiver<(Event, OwnedSemaphorePermit)>,
}

impl AgentEvents {
    /// Waits for the next event. Returns `None` after [`Event::Ended`].
    pub async fn next(&mut self) -> Option<Event> {
        self.queue.recv().await.map(|(event, _)| event)
    }
}

/// Connects a conversation to the pipes of its process. The caller spawns the returned future, which does the work. It
/// finishes after the agent's stdout has ended and all events were taken, or when the events are dropped. Then it
/// closes both pipes; it never kills the process.
pub fn run(
    conversation: Conversation,
    stdout: impl AsyncRead + Send + Unpin,
    stdin: impl AsyncWrite + Send + Unpin,
    settings: RunnerSettings,
) -> (AgentControl, AgentEvents, impl Future<Output = ()> + Send) {
    let (commands, command_queue) = mpsc::channel(MAX_COMMANDS);
    // The permits that travel with the events bound the queue.
    let (events, event_queue) = mpsc::unbounded_channel();
    let runner = Runner {
        conversation,
        commands: Some(command_queue),
        events,
        room: Arc::new(Semaphore::new(settings.max_queued_bytes)),
        settings,
    };
    (AgentControl { commands }, AgentEvents { queue: event_queue }, runner.run(stdout, stdin))
}

struct Runner {
    conversation: Conversation,
    commands: Option<mpsc::Receiver<Command>>,
    events: mpsc::UnboundedSender<(Event, OwnedSemaphorePermit)>,
    room: Arc<Semaphore>,
    settings: RunnerSettings,
}

impl Runner {
    async fn run(mut self, mut stdout: impl AsyncRead + Send + Unpin, stdin: impl AsyncWrite + Send + Unpin) {
        let mut stdin = Some(stdin);
        let mut buffer = vec![0; READ_BYTES];
        let mut event: Option<Event> = None;
        let mut writing: Option<(Vec<u8>, usize)> = None;
        let deadline = handshake_deadline(self.settings.handshake);
        tokio::pin!(deadline);
        self.conversation.begin();
        loop {
            event = event.or_else(|| self.conversation.next_event());
            if writing.is_none() && stdin.is_some() {
                writing = self.conversation.next_write().map(|bytes| (bytes, 0));
            }
            if stdin.is_none() {
                // Nothing can be written any more.
                while self.conversation.next_write().is_some() {}
            }
            let can_read = event.is_none() && !self.conversation.is_backlogged();
            if writing.is_none() && self.conversation.wants_close() {
                stdin = None;
            }
            let phase = self.conversation.phase();
            if event.is_none() && phase == Phase::Ended {
                return;
            }
            tokio::select! {
                permit = reserve(&self.room, event.as_ref(), self.settings.max_queued_bytes), if event.is_some() => {
                    if let Some(ready) = event.take()
                        && self.events.send((ready, permit)).is_err()
                    {
                        return;
                    }
                }
                () = self.events.closed() => return,
                written = write(stdin.as_mut(), writing.as_mut()), if writing.is_some() => match written {
                    Ok(true) => writing = None,
                    Ok(false) => {}
                    // The agent does not read any more. It may still write until its stdout ends.
                    Err(error) => {
                        tracing::debug!(%error, "the agent closed its stdin");
                        (stdin, writing) = (None, None);
                    }
                },
                read = stdout.read(&mut buffer), if can_read && phase != Phase::Ended => match read {
                    Ok(0) => self.conversation.end_of_stream(),
                    Ok(length) => self.conversation.receive(&buffer[..length]),
                    Err(error) => {
                        tracing::debug!(%error, "the agent's stdout cannot be read");
                        self.conversation.end_of_stream();
                    }
                },
                command = next_command(&mut self.commands), if self.commands.is_some() => self.command(command),
                _ = &mut deadline, if phase == Phase::Starting => {
                    let seconds = self.settings.handshake.as_secs_f32();
                    self.conversation.give_up_start(&format!("the agent was not ready within {seconds} s"));
                }
            }
        }
    }

    fn command(&mut self, command: Option<Command>) {
        // A caller that stopped waiting for the reply does not need it.
        match command {
            Some(Command::Prompt(message, reply)) => drop(reply.send(self.conversation.prompt(&message))),
            Some(Command::Steer(message, how, reply)) => {
                drop(reply.send(self.conversation.steer(&message, how)))
            }
            Some(Command::Interrupt(reply)) => drop(reply.send(self.conversation.interrupt())),
            Some(Command::Answer(request, answer, reply)) => {
                drop(reply.send(self.conversation.answer(&request, &answer)));
            }
            Some(Command::Close) => self.conversation.close(),
            None => {
                self.commands = None;
                self.conversation.close();
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "an agent that does not answer sends no signal")]
fn handshake_deadline(limit: Duration) -> tokio::time::Sleep {
    tokio::time::sleep(limit)
}

async fn next_command(commands: &mut Option<mpsc::Receiver<Command>>) -> Option<Command> {
    match commands {
        Some(commands) => commands.recv().await,
        None => std::future::pending().await,
    }
}

/// Waits until the event fits into the queue.
async fn reserve(room: &Arc<Semaphore>, event: Option<&Event>, all: usize) -> OwnedSemaphorePermit {
    let weight = event.map_or(0, Event::weight).min(all);
    let permits = u32::try_from(weight).unwrap_or(u32::MAX);
    match Arc::clone(room).acquire_many_owned(permits).await {
        Ok(permit) => permit,
        // The semaphore is never closed.
        Err(_) => std::future::pending().await,
    }
}

/// Writes a part of the bytes and returns whether all are written. Dropping the future loses nothing.
async fn write(
    stdin: Option<&mut (impl AsyncWrite + Unpin)>,
    writing: Option<&mut (Vec<u8>, usize)>,
) -> std::io::Result<bool> {
    let (Some(stdin), Some((bytes, done))) = (stdin, writing) else { return Ok(true) };
    if *done < bytes.len() {
        match stdin.write(&bytes[*done..]).await? {
            0 => return Err(std::io::ErrorKind::WriteZero.into()),
            written => *done += written,
        }
        if *done < bytes.len() {
            return Ok(false);
        }
    }
    stdin.flush().await?;
    Ok(true)
}
