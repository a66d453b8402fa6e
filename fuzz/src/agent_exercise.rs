//! Exercises everything that the crate `agent` reads: streams of agents in each wire, their error texts, and the fake
//! agent's scripts.
//!
//! The fuzzer runs it on generated inputs, and an ordinary test of `sprag-agent` runs it on the corpus.

use std::path::Path;

use serde_json::{Value, json};
use sprag_agent::fake::{Script, script_of};
use sprag_agent::{
    Answer, Conversation, Driver, Event, Exit, Launch, Limits, Message, Outcome, Permissions, Phase, Session,
    Steer, Verdict, classify_answer, classify_error, explain_exit, judge, reset_in,
};

/// The session that a launch requests and the handshake below reports.
pub const SESSION: &str = "s";

/// The kind of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exercised {
    /// A stream, with this number of turns that ended.
    Stream(usize),
    /// A text.
    Text,
    /// A script, and whether it was accepted.
    Script(bool),
}

/// Exercises one input. The first byte selects the wire or the parser, the second the launch and the size of the pieces
/// of a stream; the rest is the text.
pub fn exercise(bytes: &[u8]) -> Exercised {
    let (chooser, rest) = bytes.split_first().unwrap_or((&0, &[]));
    let (setting, rest) = rest.split_first().unwrap_or((&0, &[]));
    match chooser % 5 {
        3 => texts(&String::from_utf8_lossy(rest)),
        4 => script(&String::from_utf8_lossy(rest)),
        driver => {
            let driver = Driver::ALL[usize::from(driver)];
            let whole = stream(driver, *setting, rest, usize::MAX);
            let in_pieces = stream(driver, *setting, rest, 1 + usize::from(*setting >> 5));
            assert_eq!(whole, in_pieces, "the pieces in which a stream comes change its events");
            Exercised::Stream(whole.iter().filter(|event| matches!(event, Event::TurnEnded(_))).count())
        }
    }
}

fn texts(text: &str) -> Exercised {
    let failure = classify_error(text);
    assert!(failure.message.len() < 4096, "an error message is short: {} bytes", failure.message.len());
    classify_answer(text);
    reset_in(text);
    explain_exit(Exit { code: Some(1), signal: None, stderr: text });
    Exercised::Text
}

fn script(text: &str) -> Exercised {
    let parsed = Script::parse(text);
    if let Ok(script) = &parsed {
        check_written(script);
    }
    Exercised::Script(parsed.is_ok())
}

/// Checks that a script can be read back after it is written.
fn check_written(script: &Script) {
    let text = script.to_yaml();
    let again = Script::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(again.to_yaml(), text);
}

fn launch(driver: Driver, setting: u8) -> Launch {
    let session = if setting & 1 == 0 {
        Session::New { id: SESSION.to_owned() }
    } else {
        Session::Resume { id: SESSION.to_owned() }
    };
    let mut launch = Launch::new("some-agent", Path::new("/wt"), Path::new("/scratch"), session);
    launch.driver = driver;
    launch.permissions = [Permissions::Ask, Permissions::Auto, Permissions::ReadOnly, Permissions::Ask]
        [usize::from(setting >> 1 & 3)];
    launch.output_schema = (setting & 8 != 0).then(|| json!({"type": "object"}));
    launch.deltas = setting & 16 != 0;
    launch
}

/// The caller of a conversation. It takes events and writes, and checks the crate's guarantees.
struct Caller {
    conversation: Conversation,
    events: Vec<Event>,
    /// The id of the last permission request.
    asked: String,
    messages: u32,
    last_turn: u64,
    is_interrupted: bool,
}

impl Caller {
    /// Takes all waiting writes and events.
    fn drain(&mut self) {
        while let Some(bytes) = self.conversation.next_write() {
            let (end, line) = bytes.split_last().expect("a write is not empty");
            assert!(*end == b'\n' && !line.contains(&b'\n'), "a write is one line");
            let message: Value = serde_json::from_slice(line).expect("a write is JSON");
            assert!(message.is_object(), "{message}");
        }
        while let Some(event) = self.conversation.next_event() {
            self.check(&event);
            self.events.push(event);
        }
    }

    fn check(&mut self, event: &Event) {
        let has_ended = matches!(self.events.last(), Some(Event::Ended(_)));
        assert!(!has_ended, "{event:?} follows the last event");
        let stored = serde_json::to_string(event).expect("an event is JSON");
        serde_json::from_str::<Event>(&stored).unwrap_or_else(|error| panic!("{stored}: {error}"));
        match event {
            Event::PermissionRequested(request) => self.asked.clone_from(&request.request),
            Event::TurnEnded(end) => {
                assert!(end.turn > self.last_turn, "turn {} ends after turn {}", end.turn, self.last_turn);
                self.last_turn = end.turn;
                let is_success = judge(end, None) == Verdict::Success;
                assert_eq!(is_success, end.outcome == Outcome::Completed);
                let was_interrupted = std::mem::take(&mut self.is_interrupted);
                assert!(!(is_success && was_interrupted), "a success after an interrupt: {end:?}");
            }
            _ => {}
        }
    }

    fn message(&mut self) -> Message {
        self.messages += 1;
        Message::new(format!("m{}", self.messages), "Do it.")
    }

    /// Performs the action of a line that starts with `!`. Refusals are fine.
    fn act(&mut self, what: u8) {
        match what {
            b'p' => {
                let message = self.message();
                let is_idle = self.conversation.phase() == Phase::Idle;
                assert_eq!(self.conversation.prompt(&message).is_ok(), is_idle);
            }
            b's' | b'n' => {
                let message = self.message();
                let how = if what == b's' { Steer::AfterTool } else { Steer::Now };
                self.conversation.steer(&message, how).ok();
            }
            b'i' => self.is_interrupted |= self.conversation.interrupt().is_ok(),
            b'a' => drop(self.conversation.answer(&self.asked, &Answer::Allow)),
            b'd' => {
                let answer = Answer::Deny { message: "no".to_owned() };
                drop(self.conversation.answer(&self.asked, &answer));
            }
            b'c' => self.conversation.close(),
            _ => {}
        }
        self.drain();
    }

    fn receive(&mut self, line: &[u8], piece: usize) {
        for bytes in line.chunks(piece) {
            self.conversation.receive(bytes);
        }
        self.conversation.receive(b"\n");
        self.drain();
    }
}

/// Plays a stream: `!h` brings the agent to its first prompt, other lines that start with `!` are actions of the caller, and everything
/// else comes from the agent. Returns all events.
fn stream(driver: Driver, setting: u8, text: &[u8], piece: usize) -> Vec<Event> {
    let conversation = launch(driver, setting).conversation(Limits::default());
    let mut caller = Caller {
        conversation,
        events: Vec::new(),
        asked: String::new(),
        messages: 0,
        last_turn: 0,
        is_interrupted: false,
    };
    caller.conversation.begin();
    caller.drain();
    for line in text.split(|byte| *byte == b'\n') {
        match line {
            [b'!', b'h'] => handshake(driver).iter().for_each(|line| caller.receive(line.as_bytes(), piece)),
            [b'!', what] => caller.act(*what),
            line => caller.receive(line, piece),
        }
    }
    caller.conversation.end_of_stream();
    caller.drain();
    assert!(matches!(caller.events.last(), Some(Event::Ended(_))), "the last event is the end");
    assert_eq!(caller.conversation.phase(), Phase::Ended);
    assert!(caller.conversation.prompt(&Message::new("m", "x")).is_err());
    check_written(&script_of(&caller.events));
    caller.events
}

/// Returns the shortest answers that make an agent ready for a prompt.
pub fn handshake(driver: Driver) -> &'static [&'static str] {
    match driver {
        Driver::ClaudeStream => {
            &[r#"{"type":"control_response","response":{"request_id":"initialize","response":{}}}"#]
        }
        Driver::CodexAppServer => &[
            r#"{"id":1,"result":{}}"#,
            r#"{"id":2,"result":{"thread":{"id":"s"}}}"#,
            // The messages of a resumed thread; of a new one they are not asked for.
            r#"{"id":3,"result":{"data":[]}}"#,
        ],
        Driver::Acp => &[
            r#"{"id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}}"#,
            r#"{"id":2,"result":{"sessionId":"s"}}"#,
        ],
    }
}
