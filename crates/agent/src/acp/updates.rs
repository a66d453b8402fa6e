//! ACP's session updates: chunks of text, tool calls in pieces, usage.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::event::{Event, ToolCall, ToolResult, ToolStatus};
use crate::state::{Core, number, string, take, usage_of};
use crate::text::shorten;
use crate::usage::Usage;

/// The most open tool calls that are remembered.
const MAX_OPEN_CALLS: usize = 256;

/// The tool calls that have not finished. An agent reports a call in several updates, the first often without the
/// input.
#[derive(Debug, Default)]
pub(super) struct OpenCalls(BTreeMap<String, OpenCall>);

#[derive(Debug, Default)]
struct OpenCall {
    call: ToolCall,
    is_told: bool,
}

impl OpenCalls {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Applies a `tool_call`, a `tool_call_update`, or the call inside a permission request, and returns the call as
    /// known now.
    pub(super) fn update(&mut self, core: &mut Core, mut update: Value, asks: bool) -> ToolCall {
        let id = string(&update["toolCallId"]).to_owned();
        if self.0.len() >= MAX_OPEN_CALLS && !self.0.contains_key(&id) {
            self.0.pop_first();
        }
        let open = self.0.entry(id.clone()).or_default();
        open.call.id.clone_from(&id);
        // Few agents report the tool's own name; all report its kind (`execute`, `edit` …).
        if let Some(name) = update["_meta"]["toolName"].as_str().or(update["kind"].as_str()) {
            name.clone_into(&mut open.call.name);
        }
        if let Some(title) = update["title"].as_str().filter(|title| !title.is_empty()) {
            open.call.title = shorten(title);
        }
        let input = take(&mut update, "rawInput");
        if input.as_object().is_some_and(|input| !input.is_empty()) {
            open.call.input = input;
        }
        let status = string(&update["status"]).to_owned();
        let is_over = matches!(status.as_str(), "completed" | "failed");
        let call = open.call.clone();
        if !open.is_told && (asks || is_over || status == "in_progress") {
            open.is_told = true;
            core.tool_call(call.clone());
        }
        if is_over {
            self.0.remove(&id);
            let status = if status == "completed" { ToolStatus::Ok } else { ToolStatus::Failed };
            core.tool_result(ToolResult { id, status, output: output_of(&update) });
        }
        call
    }
}

/// Returns the output of a finished call.
fn output_of(update: &Value) -> String {
    if let Some(output) = update["rawOutput"]["output"].as_str() {
        return output.to_owned();
    }
    let texts =
        update["content"].as_array().into_iter().flatten().map(|block| match string(&block["type"]) {
            "content" => string(&block["content"]["text"]).to_owned(),
            "diff" => format!("[changed {}]", string(&block["path"])),
            other => format!("[{other}]"),
        });
    texts.collect::<Vec<_>>().join("\n")
}

/// Applies one update to the open turn.
pub(super) fn update(core: &mut Core, calls: &mut OpenCalls, mut update: Value, deltas: bool) {
    match string(&update["sessionUpdate"]) {
        "agent_message_chunk" => {
            if let Some(usage) = request_usage(&update["_meta"]["usage"]) {
                core.usage(|meter| meter.add(&usage));
            }
            let content = take(&mut update, "content");
            let text = string(&content["text"]);
            if !text.is_empty() {
                core.text_piece(text, deltas);
            }
        }
        "agent_thought_chunk" => {
            core.finish_text();
            core.thinking(string(&update["content"]["text"]));
        }
        "tool_call" | "tool_call_update" => {
            core.finish_text();
            calls.update(core, update, false);
        }
        "usage_update" => {
            // `used` is the size of the context, not the tokens spent.
            if let Some(cost) =
                update["cost"]["amount"].as_f64().filter(|_| update["cost"]["currency"] == "USD")
            {
                let session = Usage { cost_usd: Some(cost), ..Usage::default() };
                core.usage(|meter| meter.session_so_far(&session, true));
            }
        }
        "user_message_chunk"
        | "available_commands_update"
        | "current_mode_update"
        | "config_option_update"
        | "plan"
        | "session_info_update" => {}
        _ => core
            .push(Event::Unknown { raw: json!({"method": "session/update", "params": {"update": update}}) }),
    }
}

/// Reads usage in either of the forms that agents use: `{inputTokens, outputTokens, …}` and `{input_tokens,
/// output_tokens}`.
pub(super) fn request_usage(usage: &Value) -> Option<Usage> {
    let pick = |names: [&str; 2]| names.into_iter().map(|name| number(&usage[name])).max().unwrap_or(0);
    let figures = usage_of(
        pick(["inputTokens", "input_tokens"]),
        pick(["cachedReadTokens", "cached_read_tokens"]),
        pick(["cachedWriteTokens", "cached_write_tokens"]),
        pick(["outputTokens", "output_tokens"]),
        pick(["thoughtTokens", "thought_tokens"]),
    );
    (figures.total_tokens() > 0).then_some(figures)
}
