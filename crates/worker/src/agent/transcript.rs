//! The record of an agent's events: readable text in the step's log, and all events beside it.
//!
//! ```text
//!   runs/RUN/STEP.ATTEMPT.log       what the agent said, its tool calls and their results in short
//!   runs/RUN/STEP.ATTEMPT.events    every event as a line of JSON, up to a limit
//! ```
//!
//! Everything is masked. An agent's output is data: it reaches the log as text of its own lines, whatever it contains.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use sprag_agent::{Event, Outcome, PermissionClosing, ToolStatus, TurnEnd};
use sprag_process::{LineLog, Secrets, private_options};

/// The most bytes of events that one attempt stores.
const MAX_EVENTS_BYTES: usize = 64 << 20;
/// The most characters of a tool call or a result in one line of the log.
const MAX_LINE_CHARS: usize = 120;
/// The most lines of a tool's result in the log.
const MAX_RESULT_LINES: usize = 5;

/// The record of one attempt.
pub(crate) struct Transcript {
    log: Option<LineLog>,
    events: Option<File>,
    events_bytes: usize,
    secrets: Secrets,
}

impl Transcript {
    /// Opens both files. The agent works without a record that cannot be written.
    pub(crate) fn open(log: &Path, events: &Path, secrets: Secrets) -> Transcript {
        let warn = |path: &Path, error: std::io::Error| {
            tracing::warn!(path = %path.display(), %error, "an agent's events cannot be recorded");
        };
        let log = LineLog::open(log).map_err(|error| warn(log, error)).ok();
        let file = private_options().create(true).append(true).open(events);
        let file = file.map_err(|error| warn(events, error)).ok();
        let events_bytes =
            file.as_ref().and_then(|file| Some(file.metadata().ok()?.len() as usize)).unwrap_or(0);
        Transcript { log, events: file, events_bytes, secrets }
    }

    /// Records an event.
    pub(crate) fn add(&mut self, event: &Event) {
        if let Some(text) = readable(event) {
            self.note(&text);
        }
        if let Ok(value) = serde_json::to_value(event) {
            self.keep(value);
        }
    }

    /// Records the message that the agent gets.
    pub(crate) fn prompt(&mut self, text: &str) {
        self.keep(serde_json::json!({ "event": "prompt", "text": text }));
    }

    /// Writes a text to the step's log.
    pub(crate) fn note(&mut self, text: &str) {
        if let Some(log) = &mut self.log {
            log.write(&self.secrets.mask(text));
        }
    }

    fn keep(&mut self, mut value: serde_json::Value) {
        let Some(file) = &mut self.events else { return };
        self.secrets.mask_json(&mut value);
        let line = format!("{value}\n");
        self.events_bytes += line.len();
        if self.events_bytes > MAX_EVENTS_BYTES {
            self.events = None;
            self.note("sprag: too many events; the rest is only in this log");
        } else if let Err(error) = file.write_all(line.as_bytes()) {
            tracing::warn!(%error, "an agent's events cannot be recorded");
            self.events = None;
        }
    }
}

/// Returns a stored event as text for people; `None` for an event that only programs need.
pub fn transcript_text(event: &serde_json::Value) -> Option<String> {
    if event["event"] == "prompt" {
        let lines: Vec<String> = event["text"].as_str()?.lines().map(|line| format!("< {line}")).collect();
        return Some(lines.join("\n"));
    }
    readable(&serde_json::from_value(event.clone()).ok()?)
}

/// Returns an event as text for people; `None` for an event that only programs need.
fn readable(event: &Event) -> Option<String> {
    Some(match event {
        Event::Started(info) => {
            let agent = if info.agent.is_empty() { "the agent" } else { &info.agent };
            let model = info.model.as_ref().map(|model| format!(", model {model}")).unwrap_or_default();
            let how = if info.resumed { "resumed" } else { "new" };
            format!("# {}, session {} ({how})", one_line(&format!("{agent}{model}")), info.session)
        }
        Event::Text { text, .. } => text.trim_end().to_owned(),
        Event::ToolCall(call) => {
            let title = if call.title.is_empty() { call.input.to_string() } else { call.title.clone() };
            format!("> {}: {}", one_line(&call.name), one_line(&title))
        }
        Event::ToolResult(result) => {
            let status = match result.status {
                ToolStatus::Ok => "",
                ToolStatus::Failed => "failed: ",
                ToolStatus::Denied => "denied: ",
            };
            let lines: Vec<&str> = result.output.trim_end().lines().collect();
            let mut text = format!("  {status}{}", one_line(lines.first().unwrap_or(&"")));
            for line in lines.iter().take(MAX_RESULT_LINES).skip(1) {
                text.push_str(&format!("\n  {}", one_line(line)));
            }
            if lines.len() > MAX_RESULT_LINES {
                text.push_str(&format!("\n  ({} more lines)", lines.len() - MAX_RESULT_LINES));
            }
            if text.trim().is_empty() {
                return None;
            }
            text
        }
        Event::PermissionRequested(request) => {
            format!("# asks to use {}: {}", one_line(&request.tool), one_line(&request.title))
        }
        Event::PermissionClosed { how, .. } => {
            let how = match how {
                PermissionClosing::Allowed => "allowed",
                PermissionClosing::Denied => "denied",
                PermissionClosing::ByPolicy => "answered by the step's `permissions`",
                PermissionClosing::Withdrawn => "withdrawn",
            };
            format!("# {how}")
        }
        Event::Limit(limit) if limit.rejected => "# the account's usage limit is reached".to_owned(),
        Event::Retrying(retry) => {
            format!(
                "# a request to the model failed, and the agent retries it: {}",
                one_line(&retry.failure.message)
            )
        }
        Event::Problem(failure) => format!("# problem: {}", one_line(&failure.message)),
        Event::Notice { text } => format!("# {}", one_line(text)),
        Event::Unreadable(line) => {
            format!("# a line of {} bytes is no message: {}", line.length, one_line(&line.reason))
        }
        Event::TurnEnded(end) => turn_end(end),
        _ => return None,
    })
}

fn turn_end(end: &TurnEnd) -> String {
    let how = match &end.outcome {
        Outcome::Completed => "the turn has ended".to_owned(),
        Outcome::Interrupted => "the turn was interrupted".to_owned(),
        Outcome::Failed(failure) => format!("the turn has failed: {}", one_line(&failure.message)),
    };
    let cost = end.usage.cost_usd.map(|cost| format!(", ${cost:.2}")).unwrap_or_default();
    let tools = if end.tool_calls == 1 { "tool call" } else { "tool calls" };
    format!("# {how} ({} {tools}, {} tokens{cost})", end.tool_calls, end.usage.total_tokens())
}

/// Returns the first line of a text, shortened, with control characters replaced.
pub(super) fn one_line(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let mut shown: String =
        line.chars().take(MAX_LINE_CHARS).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if shown.len() < text.trim().len() && line.chars().count() > MAX_LINE_CHARS {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use sprag_agent::{ToolCall, ToolResult};

    use super::*;

    #[test]
    fn t10_a_tool_cannot_forge_lines_of_the_record() {
        let call =
            ToolCall { name: "Bash".into(), title: "ls\u{1b}[2J\nforged".into(), ..ToolCall::default() };
        assert_eq!(readable(&Event::ToolCall(call)).as_deref(), Some("> Bash: ls\u{fffd}[2J"));
        let output = (0..10).map(|n| format!("line {n}\n")).collect();
        let result = ToolResult { output, ..ToolResult::default() };
        let text = readable(&Event::ToolResult(result)).expect("text");
        assert!(
            text.ends_with("  (5 more lines)") && text.lines().all(|line| line.starts_with("  ")),
            "{text}"
        );
        assert_eq!(one_line(&"x".repeat(500)).chars().count(), MAX_LINE_CHARS + 1);
    }
}
