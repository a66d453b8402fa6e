//! A real process behind a conversation, in the test's own thread. All input and output is recorded in order.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::Value;
use sprag_agent::{
    Answer, Conversation, Event, Exit, Failure, Launch, Limits, Outcome, Steer, TurnEnd, explain_exit,
};

use super::brief::brief;
use super::recording::{self, Action, Header};

/// The longest wait of a live test.
const PATIENCE: Duration = Duration::from_secs(120);

/// An agent's process and the conversation with it.
pub struct AgentProcess {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Receiver<Vec<u8>>,
    stderr: Receiver<String>,
    conversation: Conversation,
    messages: u32,
    seen: Vec<Event>,
    /// The recording so far, in lines.
    record: Vec<String>,
    scrub: Vec<(String, String)>,
    unread: Vec<u8>,
}

impl AgentProcess {
    /// Starts the launch's command with only these variables, and waits until it is ready or has failed.
    pub fn start(
        launch: &Launch,
        env: &[(String, String)],
        version: &str,
        scrub: Vec<(String, String)>,
    ) -> AgentProcess {
        let line = launch.command_line();
        for file in &line.files {
            std::fs::write(&file.path, &file.content).expect("a private file");
        }
        let mut command = Command::new(&line.argv[0]);
        command.args(&line.argv[1..]).current_dir(&launch.dir).env_clear();
        command.envs(env.iter().cloned()).envs(&line.env);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{line:?}: {error}"));
        let (sender, stdout) = channel();
        let mut out = child.stdout.take().expect("a pipe");
        std::thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok(length @ 1..) = out.read(&mut buffer) {
                if sender.send(buffer[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        let (sender, stderr) = channel();
        let mut err = child.stderr.take().expect("a pipe");
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            err.read_to_end(&mut bytes).ok();
            sender.send(String::from_utf8_lossy(&bytes).into_owned()).ok();
        });
        let mut conversation = launch.conversation(Limits::default());
        conversation.begin();
        let stdin = child.stdin.take();
        let header = Header::of(launch, version);
        let record = vec![format!("# {}", serde_json::to_string(&header).expect("JSON"))];
        let mut agent = AgentProcess {
            child,
            stdin,
            stdout,
            stderr,
            conversation,
            // A resumed session contains the earlier messages.
            messages: if launch.session.is_resumed() { 100 } else { 0 },
            seen: Vec::new(),
            record,
            scrub,
            unread: Vec::new(),
        };
        agent.flush();
        agent.wait_for(|event| matches!(event, Event::Started(_) | Event::Ended(_)));
        agent
    }

    /// Returns the events so far.
    pub fn events(&self) -> &[Event] {
        &self.seen
    }

    /// Returns the session's id.
    pub fn session(&self) -> String {
        self.conversation.session().expect("a session").to_owned()
    }

    pub fn prompt(&mut self, text: &str) {
        let id = self.next_id();
        self.act(Action::Prompt { id, text: text.to_owned() });
    }

    /// Sends a prompt under the id of an earlier message.
    pub fn prompt_again(&mut self, message: u32, text: &str) {
        let id = format!("00000000-0000-4000-8000-{message:012}");
        self.act(Action::Prompt { id, text: text.to_owned() });
    }

    pub fn steer(&mut self, text: &str, how: Steer) {
        let id = self.next_id();
        self.act(Action::Steer { id, text: text.to_owned(), how });
    }

    pub fn interrupt(&mut self) {
        self.act(Action::Interrupt);
    }

    pub fn answer(&mut self, request: &str, answer: Answer) {
        self.act(Action::Answer { request: request.to_owned(), answer });
    }

    /// Waits for the end of the turn.
    pub fn turn_end(&mut self) -> TurnEnd {
        match self.wait_for(|event| matches!(event, Event::TurnEnded(_) | Event::Ended(_))) {
            Event::TurnEnded(end) => end,
            other => panic!("the agent ended: {other:?}\n{}", self.story()),
        }
    }

    /// Sends a prompt and waits for the end of its turn.
    pub fn turn(&mut self, text: &str) -> TurnEnd {
        self.prompt(text);
        self.turn_end()
    }

    /// Sends a prompt and returns the failure of its turn.
    pub fn failure(&mut self, text: &str) -> Failure {
        match self.turn(text).outcome {
            Outcome::Failed(failure) => failure,
            other => panic!("{other:?}\n{}", self.story()),
        }
    }

    /// Waits for a permission request; returns its id.
    pub fn asked(&mut self) -> String {
        match self.wait_for(|event| matches!(event, Event::PermissionRequested(_))) {
            Event::PermissionRequested(request) => request.request,
            _ => unreachable!("it was waited for"),
        }
    }

    /// Waits for an event. Fails with everything that happened if it does not arrive.
    pub fn wait_for(&mut self, wanted: impl Fn(&Event) -> bool) -> Event {
        self.look_for(PATIENCE, wanted)
            .unwrap_or_else(|| panic!("what was waited for did not come\n{}", self.story()))
    }

    /// Waits for an event that may not arrive within this time.
    pub fn look_for(&mut self, patience: Duration, wanted: impl Fn(&Event) -> bool) -> Option<Event> {
        loop {
            while let Some(event) = self.conversation.next_event() {
                self.seen.push(event.clone());
                if wanted(&event) {
                    return Some(event);
                }
            }
            match self.stdout.recv_timeout(patience) {
                Ok(bytes) => self.receive(&bytes),
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => {
                    if matches!(self.seen.last(), Some(Event::Ended(_))) {
                        return None;
                    }
                    self.act(Action::EndOfStream);
                }
            }
        }
    }

    /// Closes the agent's stdin and waits for its exit. Returns the recording.
    pub fn close(mut self) -> String {
        self.act(Action::Close);
        self.stdin = None;
        let last = self.wait_for(|event| matches!(event, Event::Ended(_)));
        assert!(matches!(last, Event::Ended(ref end) if end.failure.is_none()), "{last:?}\n{}", self.story());
        self.child.wait().expect("an exit");
        self.recording()
    }

    /// Waits for an exit that was not requested. Returns its explanation and the recording.
    pub fn exit(mut self) -> (Failure, String) {
        if !self.seen.iter().any(|event| matches!(event, Event::Ended(_))) {
            self.wait_for(|event| matches!(event, Event::Ended(_)));
        }
        self.stdin = None;
        let status = self.child.wait().expect("an exit");
        let stderr = self.stderr.recv_timeout(PATIENCE).unwrap_or_default();
        (explain_exit(Exit { code: status.code(), signal: None, stderr: &stderr }), self.recording())
    }

    /// Returns all events, one per line.
    pub fn story(&self) -> String {
        self.seen.iter().map(brief).collect::<Vec<_>>().join("\n")
    }

    fn next_id(&mut self) -> String {
        self.messages += 1;
        format!("00000000-0000-4000-8000-{:012}", self.messages)
    }

    fn act(&mut self, action: Action) {
        self.record.push(recording::line(&action));
        recording::act(&mut self.conversation, &action)
            .unwrap_or_else(|refused| panic!("{action:?}: {refused}\n{}", self.story()));
        self.flush();
    }

    /// Passes bytes to the conversation line by line, so that the recording has each answer of the driver after the
    /// line that it answers.
    fn receive(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.unread.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let text = String::from_utf8_lossy(&self.unread).trim_end().to_owned();
                self.note('<', &text);
                self.unread.clear();
            }
            self.conversation.receive(piece);
            self.flush();
        }
    }

    fn flush(&mut self) {
        while let Some(bytes) = self.conversation.next_write() {
            self.note('>', String::from_utf8_lossy(&bytes).trim_end());
            if let Some(stdin) = &mut self.stdin {
                // If the agent has exited, the end of its stdout shows it.
                stdin.write_all(&bytes).and_then(|()| stdin.flush()).ok();
            }
        }
    }

    fn note(&mut self, kind: char, text: &str) {
        let mut text = text.to_owned();
        for (machine, shown) in &self.scrub {
            text = text.replace(machine, shown);
        }
        if let Ok(mut value) = serde_json::from_str::<Value>(&text) {
            recording::slim(&mut value);
            text = value.to_string();
        }
        self.record.push(format!("{kind} {text}"));
    }

    fn recording(&self) -> String {
        self.record.join("\n") + "\n"
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        self.stdin = None;
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Makes a folder with a repository of one commit.
pub fn repository(dir: &Path) {
    std::fs::create_dir_all(dir).expect("a folder");
    let git = |args: &[&str]| {
        let done = Command::new("git")
            .args(["-c", "user.name=t", "-c", "user.email=t@t"])
            .args(args)
            .current_dir(dir)
            .output();
        let done = done.expect("git");
        assert!(done.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    git(&["init", "-q", "-b", "main"]);
    git(&["commit", "-q", "--allow-empty", "-m", "first"]);
}

/// Returns the subjects of the commits in a folder, the newest first.
pub fn commits(dir: &Path) -> Vec<String> {
    let log = Command::new("git").args(["log", "--format=%s"]).current_dir(dir).output().expect("git");
    String::from_utf8_lossy(&log.stdout).lines().map(str::to_owned).collect()
}

/// Returns an absolute path without links.
pub fn real(path: &Path) -> PathBuf {
    path.canonicalize().expect("a path")
}
