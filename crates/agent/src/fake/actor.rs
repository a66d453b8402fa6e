//! Plays a script: one turn per prompt, one step after the other, while handling messages from the caller.

use std::collections::VecDeque;
use std::io::{self, BufRead};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use serde_json::{Value, json};

use super::FakeOptions;
use super::home::{Home, NotOpened, StoredMessage, StoredSession};
use super::output::Output;
use super::sample::sample;
use super::step::{Ending, Step};
use super::tool::{self, Tool, ToolEnd};
use super::wire::{self, Call, Input, Prompt, Speaker, TurnEnding, TurnResult};
use super::{faults, mcp};
use crate::event::ToolStatus;
use crate::usage::Usage;

/// The usage of a turn whose script reports none.
const USUAL: Usage = Usage {
    input_tokens: 100,
    output_tokens: 20,
    cached_input_tokens: 0,
    cache_write_tokens: 0,
    reasoning_tokens: 0,
    cost_usd: Some(0.001),
};

/// An event for the actor.
pub(super) enum Inbox {
    Line(Vec<u8>),
    ToolEnded(u64, ToolEnd),
    /// Stdin has ended.
    Closed,
}

/// The reason why the process exits.
enum Stop {
    Exit(u8),
    Failed(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        // The caller closed the actor's stdout, so that no output can reach it.
        if error.kind() == io::ErrorKind::BrokenPipe { Stop::Exit(141) } else { Stop::Failed(error) }
    }
}

/// The next action of a turn after a step.
enum Flow {
    Next,
    End(TurnEnding),
    /// Another message replaces the turn.
    Replaced(Prompt),
}

/// The event that a turn waits for.
enum Awaited {
    Nothing,
    Tool(u64),
    Answer(String),
}

/// The result of a wait.
enum Came {
    Tool(ToolEnd),
    Answer(bool),
    Time,
    Interrupt,
    Now(Prompt),
}

/// The meaning of an event for the actor.
enum Heard {
    Nothing,
    Input(Input),
    ToolEnded(u64, ToolEnd),
}

/// Faults that last until the process exits.
#[derive(Default)]
struct Lasting {
    ignore_cancel: bool,
    tool_survives_cancel: bool,
    second_writer: bool,
    not_logged_in: bool,
    wrong_session_id: bool,
}

/// The open turn.
#[derive(Default)]
struct Turn {
    prompt: Prompt,
    text: String,
    output: Option<Value>,
    usage: Option<Usage>,
    dup_result: bool,
    late_result: bool,
}

struct Actor<'a> {
    options: &'a FakeOptions,
    home: Home,
    out: Output,
    speaker: Box<dyn Speaker>,
    inbox: Receiver<Inbox>,
    sender: Sender<Inbox>,
    session: StoredSession,
    lasting: Lasting,
    /// Messages that arrived in the middle of a turn.
    steers: VecDeque<Prompt>,
    /// The result of an earlier turn that is to be sent once more.
    late: Vec<Value>,
    calls: u64,
    is_closed: bool,
}

/// Plays the script until stdin ends or the script ends the process. Returns the exit code.
pub(super) fn play(options: &FakeOptions) -> io::Result<u8> {
    let mut home = Home::open(&options.home)?;
    home.note_start(&options.args)?;
    let (sender, inbox) = channel();
    let lines = sender.clone();
    let mut actor = Actor {
        options,
        home,
        out: Output::stdout(),
        speaker: wire::speaker(options),
        inbox,
        sender,
        session: StoredSession::default(),
        lasting: Lasting::default(),
        steers: VecDeque::new(),
        late: Vec::new(),
        calls: 0,
        is_closed: false,
    };
    let mut turn = Turn::default();
    for step in &options.script.start {
        if let Err(stop) = actor.fault(step, &mut turn) {
            return stop.code();
        }
    }
    // Reading starts after the start's faults, because a process that hangs does not read.
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut line = Vec::new();
        while let Ok(1..) = stdin.read_until(b'\n', &mut line) {
            if lines.send(Inbox::Line(std::mem::take(&mut line))).is_err() {
                return;
            }
        }
        lines.send(Inbox::Closed).ok();
    });
    match actor.run() {
        Err(stop) => stop.code(),
        Ok(never) => match never {},
    }
}

/// A type without values: the actor runs until it stops.
enum Never {}

impl Stop {
    fn code(self) -> io::Result<u8> {
        match self {
            Stop::Exit(code) => Ok(code),
            Stop::Failed(error) => Err(error),
        }
    }
}

impl Actor<'_> {
    fn run(&mut self) -> Result<Never, Stop> {
        loop {
            let heard = match self.steers.pop_front() {
                Some(late) => Heard::Input(Input::Message(late)),
                None if self.is_closed => return Err(Stop::Exit(0)),
                None => match self.inbox.recv() {
                    Ok(event) => self.hear(event)?,
                    Err(_) => return Err(Stop::Exit(0)),
                },
            };
            match heard {
                Heard::Input(Input::Open { resume, id }) => self.open(resume.as_deref(), id)?,
                Heard::Input(Input::Message(prompt) | Input::Now(prompt)) => {
                    let mut next = Some(prompt);
                    while let Some(prompt) = next {
                        next = self.turn(prompt)?;
                    }
                }
                Heard::Input(Input::Interrupt | Input::Answer { .. })
                | Heard::ToolEnded(..)
                | Heard::Nothing => {}
            }
        }
    }

    /// Handles an event, sends the immediate answers of the wire, and returns the remaining action.
    fn hear(&mut self, event: Inbox) -> Result<Heard, Stop> {
        match event {
            Inbox::Closed => {
                self.is_closed = true;
                Ok(Heard::Nothing)
            }
            Inbox::ToolEnded(number, end) => Ok(Heard::ToolEnded(number, end)),
            Inbox::Line(bytes) => {
                let message: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
                self.home.note(&json!({"line": message}))?;
                let (answers, input) = self.speaker.receive(message);
                self.send(&answers)?;
                Ok(input.map_or(Heard::Nothing, Heard::Input))
            }
        }
    }

    fn send(&mut self, messages: &[Value]) -> Result<(), Stop> {
        messages.iter().try_for_each(|message| self.out.line(message)).map_err(Stop::from)
    }

    fn open(&mut self, resume: Option<&str>, id: Option<String>) -> Result<(), Stop> {
        if self.lasting.not_logged_in
            && let Some(messages) = self.speaker.refuse_login()
        {
            return self.send(&messages);
        }
        let new_id = id.unwrap_or_else(faults::new_id);
        let opened = self.home.open_session(resume, &new_id, self.lasting.second_writer)?;
        let shown = match &opened {
            Ok(_) if self.lasting.wrong_session_id => faults::new_id(),
            Ok(session) => session.id.clone(),
            Err(_) => String::new(),
        };
        let messages = self.speaker.opened(opened.as_ref().map_err(|reason| *reason), &shown);
        self.send(&messages)?;
        match opened {
            Ok(session) => {
                self.session = session;
                Ok(())
            }
            Err(reason) => {
                let id = resume.unwrap_or(&new_id);
                let why = match reason {
                    NotOpened::Unknown => format!("No conversation found with session ID: {id}"),
                    NotOpened::InUse => format!("Error: Session ID {id} is already in use."),
                };
                Err(Stop::Failed(io::Error::other(why)))
            }
        }
    }

    // Turns.

    /// Plays one turn. Returns the message that replaced it, if any.
    fn turn(&mut self, prompt: Prompt) -> Result<Option<Prompt>, Stop> {
        let is_known =
            !prompt.id.is_empty() && self.session.messages.iter().any(|message| message.id == prompt.id);
        if is_known && let Some(messages) = self.speaker.known_message(&prompt) {
            self.send(&messages)?;
            return Ok(None);
        }
        self.session.messages.push(StoredMessage { id: prompt.id.clone(), text: prompt.text.clone() });
        self.home.save(&self.session)?;
        let started = self.speaker.turn_started(&prompt);
        self.send(&started)?;
        let late = std::mem::take(&mut self.late);
        self.send(&late)?;
        let mut turn = Turn { prompt, ..Turn::default() };
        let (how, next) = self.play(&mut turn)?;
        self.end(&turn, how)?;
        Ok(next)
    }

    fn play(&mut self, turn: &mut Turn) -> Result<(TurnEnding, Option<Prompt>), Stop> {
        if self.lasting.not_logged_in {
            return Ok((TurnEnding::Scripted(Ending::Auth), None));
        }
        let steps = self.options.script.steps(self.session.turns, &turn.prompt.text).to_vec();
        for step in &steps {
            match self.step(step, turn)? {
                Flow::Next => {}
                Flow::End(how) => return Ok((how, None)),
                Flow::Replaced(prompt) => return Ok((TurnEnding::Interrupted, Some(prompt))),
            }
        }
        Ok((TurnEnding::Scripted(Ending::Ok), None))
    }

    fn end(&mut self, turn: &Turn, how: TurnEnding) -> Result<(), Stop> {
        if !self.speaker.opens_turns_for_late_messages() {
            self.take_steers()?;
        }
        let usage = turn.usage.unwrap_or(USUAL);
        self.session.usage = self.session.usage.plus(&usage);
        self.session.turns += 1;
        self.home.save(&self.session)?;
        let wanted = self.speaker.schema().map(sample);
        let resets_at = match &how {
            TurnEnding::Scripted(Ending::Limit(reset)) => faults::time_of(*reset),
            _ => 0,
        };
        let output = turn.output.clone().or(wanted);
        let session = self.session.usage;
        let result = TurnResult { how, text: turn.text.clone(), output, turn: usage, session, resets_at };
        let messages = self.speaker.end(&result);
        self.send(&messages)?;
        if turn.dup_result {
            self.send(&messages)?;
        }
        if turn.late_result {
            let text = "a success that comes too late".to_owned();
            self.late =
                self.speaker.end(&TurnResult { how: TurnEnding::Scripted(Ending::Ok), text, ..result });
        }
        Ok(())
    }

    /// Reports that the messages which arrived meanwhile were read.
    fn take_steers(&mut self) -> Result<(), Stop> {
        while let Some(prompt) = self.steers.pop_front() {
            let messages = self.speaker.taken(&prompt);
            self.session.messages.push(StoredMessage { id: prompt.id, text: prompt.text });
            self.send(&messages)?;
        }
        Ok(())
    }

    // Steps.

    fn step(&mut self, step: &Step, turn: &mut Turn) -> Result<Flow, Stop> {
        match step {
            Step::Say(text) => {
                turn.text.clone_from(text);
                let messages = self.speaker.say(text);
                self.send(&messages)?;
            }
            Step::Think(text) => {
                let messages = self.speaker.think(text);
                self.send(&messages)?;
            }
            Step::Shell(command) => return self.shell(command, turn, false),
            Step::Ask(command) => return self.shell(command, turn, true),
            Step::Tool { name, input, output, asks } => {
                let call = self.call_of(name, input.clone(), None);
                return self.use_tool(&call, *asks, |_, _| Ok(Ok((ToolStatus::Ok, output.clone()))));
            }
            Step::Mcp { server, tool, input } => {
                let call = self.call_of(&format!("mcp__{server}__{tool}"), input.clone(), None);
                let found = self.speaker.mcp_servers().iter().find(|known| known.name == *server).cloned();
                let result = match found {
                    Some(server) => mcp::call(&server, tool, input),
                    None => Err(format!("the fake agent was given no MCP server {server:?}")),
                };
                let (status, output) = match result {
                    Ok(output) => (ToolStatus::Ok, output),
                    Err(problem) => (ToolStatus::Failed, problem),
                };
                return self.use_tool(&call, false, |_, _| Ok(Ok((status, output))));
            }
            Step::Usage(usage) => {
                let sum = turn.usage.unwrap_or_default().plus(usage);
                turn.usage = Some(sum);
                let messages = self.speaker.usage(&sum, &self.session.usage.plus(&sum));
                self.send(&messages)?;
            }
            Step::Output(output) => turn.output = Some(output.clone()),
            Step::Wait(time) => {
                let came = self.wait(&Awaited::Nothing, Some(*time))?;
                return Ok(self.flow(came));
            }
            Step::Silent => {
                let came = self.wait(&Awaited::Nothing, None)?;
                return Ok(self.flow(came));
            }
            Step::End(ending) => return Ok(Flow::End(TurnEnding::Scripted(ending.clone()))),
            fault => self.fault(fault, turn)?,
        }
        Ok(Flow::Next)
    }

    fn shell(&mut self, command: &str, turn: &Turn, asks: bool) -> Result<Flow, Stop> {
        let call = self.call_of("Bash", json!({"command": command}), Some(command.to_owned()));
        let env = [
            ("FAKE_SESSION", self.session.id.clone()),
            ("FAKE_TURN", (self.session.turns + 1).to_string()),
            ("FAKE_PROMPT", turn.prompt.text.clone()),
        ];
        let command = command.to_owned();
        self.use_tool(&call, asks, move |actor, number| {
            let tool = Tool::start(&command, &env, number, actor.sender.clone())?;
            match actor.wait(&Awaited::Tool(number), None)? {
                Came::Tool(end) => {
                    let status = if end.is_ok { ToolStatus::Ok } else { ToolStatus::Failed };
                    Ok(Ok((status, end.output)))
                }
                other => {
                    if !actor.lasting.tool_survives_cancel {
                        tool.kill();
                    }
                    Ok(Err(actor.flow(other)))
                }
            }
        })
    }

    /// Uses a tool: reports the call, asks for permission if required, executes it, and reports the result.
    fn use_tool(
        &mut self,
        call: &Call,
        asks: bool,
        work: impl FnOnce(&mut Self, u64) -> Result<Result<(ToolStatus, String), Flow>, Stop>,
    ) -> Result<Flow, Stop> {
        let messages = self.speaker.call(call);
        self.send(&messages)?;
        if asks && self.speaker.asks() {
            let (messages, request) = self.speaker.ask(call);
            self.send(&messages)?;
            match self.wait(&Awaited::Answer(request), None)? {
                Came::Answer(true) => {}
                Came::Answer(false) => {
                    let messages = self.speaker.result(call, ToolStatus::Denied, "not allowed");
                    self.send(&messages)?;
                    return Ok(Flow::Next);
                }
                other => return Ok(self.flow(other)),
            }
        }
        match work(self, self.calls)? {
            Ok((status, output)) => {
                let messages = self.speaker.result(call, status, &output);
                self.send(&messages)?;
                self.take_steers()?;
                Ok(Flow::Next)
            }
            Err(flow) => Ok(flow),
        }
    }

    fn call_of(&mut self, name: &str, input: Value, command: Option<String>) -> Call {
        self.calls += 1;
        Call {
            id: format!("call-{}-{}", self.session.turns + 1, self.calls),
            name: name.to_owned(),
            input,
            command,
        }
    }

    fn flow(&self, came: Came) -> Flow {
        match came {
            Came::Interrupt => Flow::End(TurnEnding::Interrupted),
            Came::Now(prompt) => Flow::Replaced(prompt),
            Came::Tool(_) | Came::Answer(_) | Came::Time => Flow::Next,
        }
    }

    /// Waits for an event or a time, and handles messages meanwhile.
    fn wait(&mut self, awaited: &Awaited, time: Option<Duration>) -> Result<Came, Stop> {
        let mut left = time;
        loop {
            let event = match left {
                None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(time) => self.inbox.recv_timeout(time),
            };
            let event = match event {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => return Ok(Came::Time),
                Err(RecvTimeoutError::Disconnected) => return Err(Stop::Exit(0)),
            };
            // A wait that was interrupted does not need to last its full time.
            left = left.map(|time| time / 2);
            match self.hear(event)? {
                Heard::ToolEnded(number, end) => {
                    if matches!(awaited, Awaited::Tool(wanted) if *wanted == number) {
                        return Ok(Came::Tool(end));
                    }
                }
                Heard::Input(Input::Interrupt) if !self.lasting.ignore_cancel => return Ok(Came::Interrupt),
                Heard::Input(Input::Now(prompt)) if !self.lasting.ignore_cancel => {
                    return Ok(Came::Now(prompt));
                }
                Heard::Input(Input::Message(prompt) | Input::Now(prompt)) => self.steers.push_back(prompt),
                Heard::Input(Input::Answer { request, is_allowed }) => {
                    if matches!(awaited, Awaited::Answer(wanted) if *wanted == request) {
                        return Ok(Came::Answer(is_allowed));
                    }
                }
                _ => {}
            }
            // The caller is gone and can neither interrupt nor answer.
            if self.is_closed && time.is_none() && !matches!(awaited, Awaited::Tool(_)) {
                return Err(Stop::Exit(0));
            }
        }
    }

    fn fault(&mut self, fault: &Step, turn: &mut Turn) -> Result<(), Stop> {
        match fault {
            Step::Hang => faults::hang(),
            Step::Exit(code) => return Err(Stop::Exit(*code)),
            Step::KillSelf => faults::kill_self(),
            Step::Eof => self.out.close()?,
            Step::Garbage => self.out.raw(faults::GARBAGE)?,
            Step::HalfLine => {
                let whole = self.speaker.say("half of this").iter().map(Value::to_string).collect::<String>();
                self.out.raw(&whole.as_bytes()[..whole.len() / 2])?;
            }
            Step::HugeLine(bytes) => {
                let messages = self.speaker.say(&"x".repeat(*bytes));
                self.send(&messages)?;
            }
            Step::SlowBytes(pause) => self.out.slow_down(*pause),
            Step::DupResult => turn.dup_result = true,
            Step::LateResult => turn.late_result = true,
            Step::Orphan(command) => tool::leave_behind(command)?,
            Step::IgnoreTerm => faults::ignore_term()?,
            Step::IgnoreCancel => self.lasting.ignore_cancel = true,
            Step::ToolSurvivesCancel => self.lasting.tool_survives_cancel = true,
            Step::LoseSession => self.home.delete(&self.session)?,
            Step::SecondWriter => self.lasting.second_writer = true,
            Step::NotLoggedIn => self.lasting.not_logged_in = true,
            Step::WrongSessionId => self.lasting.wrong_session_id = true,
            other => return Err(Stop::Failed(io::Error::other(format!("{other:?} needs a turn")))),
        }
        Ok(())
    }
}
