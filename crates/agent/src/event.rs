//! The one event model: everything an agent does, whichever wire it speaks.
//!
//! ```text
//!   Started ── TurnStarted ─┬─ Text, Thinking, ToolCall, ToolResult, Usage, Limit, Retrying ─┬─ TurnEnded ── … ── Ended
//!                           └─ PermissionRequested ─▶ answer ─▶ PermissionClosed ────────────┘
//! ```
//!
//! Events are data: they serialize to JSON in the form in which a transcript stores them, and older transcripts remain
//! readable when fields are added.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::failure::{Failure, Reset};
use crate::usage::Usage;

/// An event of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The agent is ready for a prompt.
    Started(SessionInfo),
    /// The agent has confirmed that a message is part of its conversation.
    MessageDelivered {
        /// The id that the caller gave the message.
        message: String,
    },
    /// The agent rejected a message; the session does not contain it.
    MessageReturned {
        /// The id that the caller gave the message.
        message: String,
        /// The agent's reason.
        reason: String,
    },
    /// The agent has started to work on a turn.
    TurnStarted {
        /// The number of the turn in this process, from 1.
        turn: u64,
        /// The message that opened it; absent if the agent opened the turn by itself, for example for a steering
        /// message that came too late for the previous turn.
        message: Option<String>,
    },
    /// A complete message of the agent.
    Text {
        /// The text.
        text: String,
        /// The tool call of the sub-agent that wrote it; absent for the agent itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<String>,
    },
    /// A piece of a message that is still being written. Only sent if the launch asks for deltas; the complete text
    /// follows as `Text`.
    TextDelta {
        /// The piece.
        text: String,
    },
    /// A summary of the agent's reasoning.
    Thinking {
        /// The text.
        text: String,
    },
    /// The agent calls a tool.
    ToolCall(ToolCall),
    /// A tool call has finished.
    ToolResult(ToolResult),
    /// The agent asks to use a tool and waits for an answer.
    PermissionRequested(PermissionRequest),
    /// A permission request does not need an answer any more.
    PermissionClosed {
        /// The request.
        request: String,
        /// The way in which it was closed.
        how: PermissionClosing,
    },
    /// Tokens and cost, whenever the agent reports them.
    Usage(UsageReport),
    /// The state of the account's usage limit.
    Limit(LimitNotice),
    /// A request to the model failed and the agent retries it.
    Retrying(Retry),
    /// An error hint that makes a later success doubtful. It does not end the turn.
    Problem(Failure),
    /// A turn has ended.
    TurnEnded(TurnEnd),
    /// A message of the agent for people: a warning, a deprecation, a note about its settings.
    Notice {
        /// The text.
        text: String,
    },
    /// A message of the agent that this version does not know, unchanged.
    Unknown {
        /// The message.
        raw: Value,
    },
    /// A line that is not a message.
    Unreadable(Unreadable),
    /// The conversation is over. This is the last event, and there is exactly one.
    Ended(End),
}

impl Event {
    /// Returns the approximate number of bytes that the event occupies in memory. Queues are bounded by it.
    pub fn weight(&self) -> usize {
        const BASE: usize = 128;
        BASE + match self {
            Event::Text { text, .. }
            | Event::TextDelta { text }
            | Event::Thinking { text }
            | Event::Notice { text } => text.len(),
            Event::ToolCall(call) => call.name.len() + call.title.len() + value_weight(&call.input),
            Event::ToolResult(result) => result.output.len(),
            Event::PermissionRequested(request) => value_weight(&request.raw) + value_weight(&request.input),
            Event::TurnEnded(end) => {
                end.text.len() + value_weight(&end.raw) + end.output.as_ref().map_or(0, value_weight)
            }
            Event::Started(info) => value_weight(&info.raw),
            Event::Unknown { raw } => value_weight(raw),
            Event::Unreadable(line) => line.head.len(),
            Event::Problem(failure) => failure.message.len(),
            _ => 0,
        }
    }
}

/// Estimates the memory of a JSON value.
fn value_weight(value: &Value) -> usize {
    match value {
        Value::String(text) => 24 + text.len(),
        Value::Array(items) => 24 + items.iter().map(value_weight).sum::<usize>(),
        Value::Object(entries) => {
            24 + entries.iter().map(|(key, value)| 64 + key.len() + value_weight(value)).sum::<usize>()
        }
        _ => 24,
    }
}

/// The session that an agent has opened.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// The id with which the session can be resumed.
    pub session: String,
    /// Whether the session existed before.
    pub resumed: bool,
    /// The program and version as the agent reports them: `claude 2.1.325`; may be empty.
    #[serde(default)]
    pub agent: String,
    /// The model, if the agent reports it.
    #[serde(default)]
    pub model: Option<String>,
    /// Ids of messages that the resumed session already contains, if the agent reports them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known_messages: Vec<String>,
    /// The agent's answer to the start, unchanged; null if the wire has none.
    #[serde(default)]
    pub raw: Value,
}

/// A tool call of the agent or a sub-agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The agent's id of the call.
    pub id: String,
    /// The tool's name in the agent: `Bash`, `commandExecution`, `execute` …
    pub name: String,
    /// One line for people: the command, or the file.
    #[serde(default)]
    pub title: String,
    /// The tool's arguments.
    #[serde(default)]
    pub input: Value,
    /// The call of the sub-agent that made this one; absent for the agent itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
}

/// The end of a tool call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The agent's id of the call.
    pub id: String,
    /// Whether the call succeeded.
    pub status: ToolStatus,
    /// The output, shortened to [`crate::Limits::max_tool_output_bytes`].
    #[serde(default)]
    pub output: String,
}

/// The way in which a tool call ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolStatus {
    /// It succeeded.
    #[default]
    Ok,
    /// It failed.
    Failed,
    /// It was not allowed to run.
    Denied,
}

/// A request to use a tool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PermissionRequest {
    /// The id by which it is answered; unique within this process.
    pub request: String,
    /// The tool's name.
    pub tool: String,
    /// The input that the tool would get.
    #[serde(default)]
    pub input: Value,
    /// A description in one line, for people.
    #[serde(default)]
    pub title: String,
    /// The agent's reason for asking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The id of the tool call that it concerns, if the agent reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// The agent's request, unchanged.
    #[serde(default)]
    pub raw: Value,
}

impl PermissionRequest {
    /// Returns a key that is equal for requests of the same tool with the same input, in any process and with any order
    /// of fields.
    pub fn key(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(self.tool.as_bytes());
        hash.update([0]);
        hash_canonical(&self.input, &mut hash);
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Hashes a value independently of the order of an object's keys.
fn hash_canonical(value: &Value, hash: &mut Sha256) {
    match value {
        Value::Array(items) => {
            hash.update(b"[");
            for item in items {
                hash_canonical(item, hash);
                hash.update(b",");
            }
            hash.update(b"]");
        }
        Value::Object(entries) => {
            let mut keys: Vec<&String> = entries.keys().collect();
            keys.sort();
            hash.update(b"{");
            for key in keys {
                hash.update(Value::String(key.clone()).to_string().as_bytes());
                hash.update(b":");
                hash_canonical(&entries[key], hash);
                hash.update(b",");
            }
            hash.update(b"}");
        }
        scalar => hash.update(scalar.to_string().as_bytes()),
    }
}

/// The way in which a permission request was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermissionClosing {
    /// The caller allowed it.
    Allowed,
    /// The caller denied it.
    Denied,
    /// The driver answered it according to the launch's permissions.
    ByPolicy,
    /// The agent withdrew it, for example because the turn was interrupted.
    Withdrawn,
}

/// Tokens and cost of a turn so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UsageReport {
    /// The number of the turn; 0 if no turn is open.
    pub turn: u64,
    /// The usage of this turn alone. It never decreases within a turn.
    pub this_turn: Usage,
    /// The usage of the whole session as the agent counts it, which may include earlier processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Usage>,
}

/// The state of the account's usage limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitNotice {
    /// Whether the service refuses requests now. Otherwise the notice only reports how much of the limit is used.
    pub rejected: bool,
    /// The time at which the limit is reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resets: Option<Reset>,
    /// The agent's name for the limit window: `five_hour`, `primary` …
    #[serde(default)]
    pub window: String,
    /// The used part of the window in percent, if the agent reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_percent: Option<f64>,
}

/// A failed request to the model that the agent retries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Retry {
    /// The number of the attempt that failed, from 1; 0 if unknown.
    pub attempt: u32,
    /// The most attempts that the agent makes; 0 if unknown.
    pub max_attempts: u32,
    /// The delay before the next attempt in milliseconds, if the agent reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// The failure of the attempt.
    pub failure: Failure,
}

/// The end of a turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnEnd {
    /// The number of the turn.
    pub turn: u64,
    /// The outcome, with the rules against false success applied. [`crate::judge`] checks whether the output matches
    /// its schema.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The last complete message of the agent in this turn.
    #[serde(default)]
    pub text: String,
    /// The structured output, if the launch asked for one and the agent produced one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Tokens and cost of this turn.
    #[serde(default)]
    pub usage: Usage,
    /// The number of tools that the agent called.
    #[serde(default)]
    pub tool_calls: u32,
    /// The number of tool calls that were denied.
    #[serde(default)]
    pub denied_calls: u32,
    /// The agent's own word for the end: `end_turn`, `completed`, `aborted_tools` …
    #[serde(default)]
    pub reason: String,
    /// The agent's message that ended the turn, unchanged.
    #[serde(default)]
    pub raw: Value,
}

/// The outcome of a turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", content = "failure", rename_all = "snake_case")]
pub enum Outcome {
    /// The agent reports success, it said or did something, and nothing contradicts it.
    Completed,
    /// The turn was cancelled before its end.
    Interrupted,
    /// The turn failed.
    Failed(Failure),
}

/// A line that is not a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unreadable {
    /// The reason: not JSON, too long, not an object.
    pub reason: String,
    /// The first bytes, with invalid UTF-8 replaced.
    pub head: String,
    /// The length of the line in bytes.
    pub length: u64,
}

/// The end of the conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// The turn that was open, if any; it has no [`TurnEnd`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_turn: Option<u64>,
    /// The reason, if the end was not requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::failure::FailureKind;

    #[test]
    fn events_are_stored_and_read_back() {
        let end = TurnEnd {
            turn: 2,
            outcome: Outcome::Failed(
                Failure::new(FailureKind::Limit, "full").resets(Reset::At(1_900_000_000)),
            ),
            text: "x".to_owned(),
            output: Some(json!({"verdict": "good"})),
            usage: Usage { output_tokens: 20, ..Usage::default() },
            tool_calls: 1,
            denied_calls: 0,
            reason: "api_error".to_owned(),
            raw: json!({"type": "result"}),
        };
        let events = [
            Event::Started(SessionInfo { session: "s".to_owned(), ..SessionInfo::default() }),
            Event::TurnEnded(end),
            Event::Ended(End::default()),
        ];
        for event in events {
            let text = serde_json::to_string(&event).expect("JSON");
            assert_eq!(serde_json::from_str::<Event>(&text).expect("an event"), event, "{text}");
        }
        let stored = json!({"event": "turn_ended", "turn": 1, "outcome": "completed"});
        let read: Event = serde_json::from_value(stored).expect("fields that were added later have defaults");
        assert!(matches!(read, Event::TurnEnded(TurnEnd { outcome: Outcome::Completed, .. })));
    }

    #[test]
    fn t05_the_key_of_a_permission_is_its_tool_and_input_alone() {
        let request = |tool: &str, input: Value, id: &str| PermissionRequest {
            request: id.to_owned(),
            tool: tool.to_owned(),
            input,
            ..PermissionRequest::default()
        };
        let first = request("Bash", json!({"command": "ls", "n": [1, 2]}), "a");
        let same: Value = serde_json::from_str(r#"{"n":[1,2],"command":"ls"}"#).expect("JSON");
        assert_eq!(first.key(), request("Bash", same, "b").key());
        assert_ne!(first.key(), request("Bash", json!({"command": "ls", "n": [2, 1]}), "a").key());
        assert_ne!(first.key(), request("Write", json!({"command": "ls", "n": [1, 2]}), "a").key());
        assert_eq!(first.key().len(), 64);
    }
}
