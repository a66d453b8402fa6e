//! The agent's side of the three wires: parses input and formats output.
//!
//! A speaker is pure: it turns messages into [`Input`]s and actions into messages. The forms are those of the
//! recordings of the real agents in `tests/data`, with all fields that carry meaning.

mod acp;
mod claude;
mod codex;

use std::collections::BTreeMap;

use serde_json::Value;

use super::home::{NotOpened, StoredSession};
use super::step::Ending;
use super::{Dialect, FakeOptions};
use crate::event::ToolStatus;
use crate::launch::{McpServer, McpTransport};
use crate::state::string;
use crate::usage::Usage;

/// An input of the agent.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Input {
    /// Opens a session: a stored one, or a new one with the given id, if any.
    Open { resume: Option<String>, id: Option<String> },
    /// A message. It opens a turn, or steers the open one.
    Message(Prompt),
    /// A message that replaces the open turn.
    Now(Prompt),
    /// Ends the open turn.
    Interrupt,
    /// The answer to a permission request.
    Answer { request: String, is_allowed: bool },
}

/// A message to the agent.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Prompt {
    /// The caller's id; empty if the wire has none.
    pub(super) id: String,
    pub(super) text: String,
}

/// A tool call.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) input: Value,
    /// The command, if the tool is a shell.
    pub(super) command: Option<String>,
}

/// The way in which a turn ends.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum TurnEnding {
    Scripted(Ending),
    Interrupted,
}

/// The end of a turn, with everything that a wire reports about it.
#[derive(Debug, Clone)]
pub(super) struct TurnResult {
    pub(super) how: TurnEnding,
    pub(super) text: String,
    pub(super) output: Option<Value>,
    pub(super) turn: Usage,
    pub(super) session: Usage,
    /// The time at which a limit is reset (seconds since 1970).
    pub(super) resets_at: i64,
}

/// The agent's side of one wire.
pub(super) trait Speaker {
    /// Parses a message. Returns the immediate answers and the meaning.
    fn receive(&mut self, message: Value) -> (Vec<Value>, Option<Input>);
    /// Answers the request to open a session. `shown` is the reported id, which a fault may falsify.
    fn opened(&mut self, session: Result<&StoredSession, NotOpened>, shown: &str) -> Vec<Value>;
    /// Refuses to open a session without a login. Returns `None` if this wire reports it with the first turn.
    fn refuse_login(&mut self) -> Option<Vec<Value>>;
    /// Returns the MCP servers of the session.
    fn mcp_servers(&self) -> &[McpServer];
    /// Returns the schema of the turn's output.
    fn schema(&self) -> Option<&Value>;
    /// Returns whether the agent has to ask before it uses tools.
    fn asks(&self) -> bool;
    /// Returns whether a message that comes too late for a turn opens another.
    fn opens_turns_for_late_messages(&self) -> bool;
    fn turn_started(&mut self, prompt: &Prompt) -> Vec<Value>;
    /// Reports that the session already contains this message. Returns `None` if this wire accepts it again.
    fn known_message(&mut self, prompt: &Prompt) -> Option<Vec<Value>>;
    /// Reports that a steering message was read.
    fn taken(&mut self, prompt: &Prompt) -> Vec<Value>;
    fn say(&mut self, text: &str) -> Vec<Value>;
    fn think(&mut self, text: &str) -> Vec<Value>;
    fn call(&mut self, call: &Call) -> Vec<Value>;
    /// Asks for permission. Returns the id of the request.
    fn ask(&mut self, call: &Call) -> (Vec<Value>, String);
    fn result(&mut self, call: &Call, status: ToolStatus, output: &str) -> Vec<Value>;
    fn usage(&mut self, turn: &Usage, session: &Usage) -> Vec<Value>;
    fn end(&mut self, result: &TurnResult) -> Vec<Value>;
}

/// Returns the speaker of a dialect.
pub(super) fn speaker(options: &FakeOptions) -> Box<dyn Speaker> {
    match options.speak {
        Dialect::Claude => Box::new(claude::Claude::new(&options.args)),
        Dialect::Codex => Box::new(codex::Codex::default()),
        Dialect::Acp => Box::new(acp::Acp::default()),
    }
}

/// Returns an output that matches no schema.
fn unfitting() -> Value {
    serde_json::json!({"unexpected": ["this fits no schema"]})
}

/// Parses an MCP server in the form of any of the wires; each has a different name for headers.
fn mcp_server(name: &str, entry: &Value, headers: &str) -> McpServer {
    let transport = match entry["url"].as_str() {
        Some(url) => McpTransport::Http { url: url.to_owned(), headers: texts(&entry[headers]) },
        None => McpTransport::Stdio {
            command: string(&entry["command"]).to_owned(),
            args: entry["args"].as_array().into_iter().flatten().map(|arg| string(arg).to_owned()).collect(),
            env: texts(&entry["env"]),
        },
    };
    McpServer { name: name.to_owned(), transport }
}

/// Parses texts by name: a map, or a list of `{name, value}`.
fn texts(value: &Value) -> BTreeMap<String, String> {
    let pair = |name: &str, value: &Value| (name.to_owned(), string(value).to_owned());
    match value {
        Value::Object(entries) => entries.iter().map(|(name, value)| pair(name, value)).collect(),
        Value::Array(pairs) => {
            pairs.iter().map(|entry| pair(string(&entry["name"]), &entry["value"])).collect()
        }
        _ => BTreeMap::new(),
    }
}
