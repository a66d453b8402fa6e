//! Recordings of conversations: actions (`!`), lines written to the agent (`>`) and lines read from it (`<`).
//!
//! ```text
//!   # {"agent": "claude", "version": "2.1.325", …}      the launch
//!   ! {"do": "prompt", "id": "…", "text": "…"}
//!   > {"type":"user", …}
//!   < {"type":"assistant", …}
//! ```

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sprag_agent::{
    Answer, Conversation, Driver, Event, Launch, Limits, Message, Permissions, Session, Steer,
};

/// The launch of a recording.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Header {
    pub agent: String,
    pub version: String,
    pub driver: Driver,
    pub session: Session,
    pub permissions: Permissions,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    #[serde(default)]
    pub deltas: bool,
}

/// An action of the caller.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Action {
    Prompt { id: String, text: String },
    Steer { id: String, text: String, how: Steer },
    Interrupt,
    Answer { request: String, answer: Answer },
    Close,
    EndOfStream,
}

/// The folder in which a recorded agent worked.
pub const DIR: &str = "/worktree";

/// Returns the folder of the recordings.
pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

impl Header {
    pub fn of(launch: &Launch, version: &str) -> Header {
        Header {
            agent: launch.agent.clone(),
            version: version.to_owned(),
            driver: launch.driver,
            session: launch.session.clone(),
            permissions: launch.permissions,
            model: launch.model.clone(),
            system: launch.system.clone(),
            schema: launch.output_schema.clone(),
            deltas: launch.deltas,
        }
    }

    pub fn launch(&self) -> Launch {
        let mut launch =
            Launch::new(&self.agent, Path::new(DIR), Path::new("/scratch"), self.session.clone());
        launch.driver = self.driver;
        launch.permissions = self.permissions;
        launch.model.clone_from(&self.model);
        launch.system.clone_from(&self.system);
        launch.output_schema.clone_from(&self.schema);
        launch.deltas = self.deltas;
        launch
    }
}

/// Executes an action. Returns whether it was refused.
pub fn act(conversation: &mut Conversation, action: &Action) -> Result<(), sprag_agent::Refused> {
    match action {
        Action::Prompt { id, text } => conversation.prompt(&Message::new(id, text)).map(|_| ()),
        Action::Steer { id, text, how } => conversation.steer(&Message::new(id, text), *how),
        Action::Interrupt => conversation.interrupt(),
        Action::Answer { request, answer } => conversation.answer(request, answer),
        Action::Close => {
            conversation.close();
            Ok(())
        }
        Action::EndOfStream => {
            conversation.end_of_stream();
            Ok(())
        }
    }
}

/// Replays a recording and returns the events. Fails if the driver writes anything other than recorded.
pub fn replay(text: &str, chunk: usize) -> Result<Vec<Event>, String> {
    let mut lines = text.lines();
    let header = lines.next().and_then(|line| line.strip_prefix("# ")).ok_or("no header")?;
    let header: Header = serde_json::from_str(header).map_err(|error| format!("header: {error}"))?;
    let mut conversation = header.launch().conversation(Limits::default());
    conversation.begin();
    let mut events = Vec::new();
    for (number, line) in lines.enumerate() {
        let at = |problem: String| format!("line {}: {problem}", number + 2);
        let (kind, rest) = line.split_at_checked(2).ok_or_else(|| at("too short".to_owned()))?;
        match kind {
            "! " => {
                let action: Action = serde_json::from_str(rest).map_err(|error| at(error.to_string()))?;
                act(&mut conversation, &action)
                    .map_err(|refused| at(format!("{action:?} was refused: {refused}")))?;
            }
            "> " => {
                let written =
                    conversation.next_write().ok_or_else(|| at("nothing was written".to_owned()))?;
                let written: Value =
                    serde_json::from_slice(&written).map_err(|error| at(error.to_string()))?;
                let expected: Value = serde_json::from_str(rest).map_err(|error| at(error.to_string()))?;
                if written != expected {
                    return Err(at(format!("wrote\n  {written}\nand not\n  {expected}")));
                }
            }
            "< " => {
                for piece in rest.as_bytes().chunks(chunk) {
                    conversation.receive(piece);
                }
                conversation.receive(b"\n");
            }
            _ => return Err(at("neither !, > nor <".to_owned())),
        }
        events.extend(std::iter::from_fn(|| conversation.next_event()));
    }
    match conversation.next_write() {
        None => Ok(events),
        Some(more) => Err(format!("wrote more than it did then: {}", String::from_utf8_lossy(&more))),
    }
}

/// Keys whose lists do not matter for a conversation; a recording keeps their first two entries.
const LONG_LISTS: &[&str] = &[
    "agents",
    "availableCommands",
    "availableModels",
    "availableSkillDetails",
    "availableSkills",
    "available_output_styles",
    "capabilities",
    "commands",
    "models",
    "options",
    "plugins",
    "skills",
    "slash_commands",
    "terminal_slash_commands",
    "tools",
];
/// The length above which a text is an agent's instructions or help; a recording keeps its start.
const LONG_TEXT: usize = 500;
/// The length that is kept of such texts.
const KEPT_TEXT: usize = 80;

/// Makes a recorded message small.
pub fn slim(value: &mut Value) {
    match value {
        Value::Object(entries) => {
            // Permission requests have options that the driver chooses from.
            let is_choice = entries.contains_key("toolCall");
            for (key, value) in entries.iter_mut() {
                match value {
                    Value::Array(items) if !is_choice && LONG_LISTS.contains(&key.as_str()) => {
                        items.truncate(2)
                    }
                    Value::String(text) if key == "description" && text.len() > KEPT_TEXT => {
                        *text = "…".to_owned()
                    }
                    _ => {}
                }
                slim(value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(slim),
        Value::String(text) if text.len() > LONG_TEXT => {
            let end = (0..=KEPT_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(end);
            text.push('…');
        }
        _ => {}
    }
}

/// Returns an action as its line.
pub fn line(action: &Action) -> String {
    format!("! {}", json!(action))
}
