//! Translates between Claude Code's stream and the core.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Value, json};

use super::result;
use crate::conversation::{Adapter, Answer, Message, Phase, Refused, Steer};
use crate::event::{
    Event, LimitNotice, PermissionRequest, Retry, SessionInfo, ToolCall, ToolResult, ToolStatus,
};
use crate::failure::{Failure, FailureKind, Reset};
use crate::launch::{Launch, Permissions, Session};
use crate::state::{Core, number, string, take};
use crate::text::{classify_error, shorten};
use crate::turn::{Reported, ReportedEnd};
use crate::usage::Usage;

/// The id of the driver's first control request.
const INITIALIZE: &str = "initialize";
/// The most ids of messages, calls and answers that are remembered to detect repetitions.
const REMEMBERED: usize = 256;
/// Messages that the driver ignores.
const SILENT: &[&str] = &[
    "auth_status",
    "files_persisted",
    "keep_alive",
    "prompt_suggestion",
    "streamlined_text",
    "streamlined_tool_use_summary",
    "tool_progress",
    "tool_use_summary",
];

pub(crate) struct ClaudeAdapter {
    system: Option<String>,
    schema: Option<Value>,
    permissions: Permissions,
    deltas: bool,
    interrupts: u32,
    /// The input of each open permission request, which an allowing answer repeats.
    asked: BTreeMap<String, Value>,
    /// Tool calls that the agent denied by its own rules.
    denied: BTreeSet<String>,
    delivered: Remembered,
    /// API responses whose usage was counted; each comes in several messages.
    counted: Remembered,
}

impl ClaudeAdapter {
    pub(crate) fn new(launch: &Launch) -> ClaudeAdapter {
        ClaudeAdapter {
            system: launch.system.clone(),
            schema: launch.output_schema.clone(),
            permissions: launch.permissions,
            deltas: launch.deltas,
            interrupts: 0,
            asked: BTreeMap::new(),
            denied: BTreeSet::new(),
            delivered: Remembered::default(),
            counted: Remembered::default(),
        }
    }

    fn control_response(&mut self, core: &mut Core, mut message: Value) {
        let mut response = take(&mut message, "response");
        // The driver's own answers come back too (`--replay-user-messages`), and those to interrupts carry no
        // information.
        if response["request_id"] != INITIALIZE || core.phase() != Phase::Starting {
            return;
        }
        if response["subtype"] == "error" {
            return core.fail_start(start_failure(string(&response["error"])));
        }
        let mut raw = take(&mut response, "response");
        if let Value::Object(fields) = &mut raw {
            // Long lists of the agent's capabilities.
            for list in ["commands", "models", "agents", "available_output_styles"] {
                fields.remove(list);
            }
        }
        let session = match core.wanted() {
            Session::New { id } | Session::Resume { id } => id.clone(),
        };
        let agent = format!("claude {}", string(&raw["claude_code_version"])).trim_end().to_owned();
        core.ready(SessionInfo {
            session,
            resumed: core.wanted().is_resumed(),
            agent,
            raw,
            ..SessionInfo::default()
        });
    }

    fn control_request(&mut self, core: &mut Core, mut message: Value) {
        let id = string(&message["request_id"]).to_owned();
        let mut request = take(&mut message, "request");
        if request["subtype"] != "can_use_tool" {
            let error = format!("sprag does not answer {}", string(&request["subtype"]));
            return core.send(&json!({"type": "control_response",
                "response": {"subtype": "error", "request_id": id, "error": error}}));
        }
        let input = take(&mut request, "input");
        self.asked.insert(id.clone(), input.clone());
        let title = title_of(&input).or(request["description"].as_str());
        let permission = PermissionRequest {
            request: id.clone(),
            tool: string(&request["tool_name"]).to_owned(),
            title: shorten(title.unwrap_or("")),
            input,
            reason: request["decision_reason"].as_str().map(str::to_owned),
            call: request["tool_use_id"].as_str().map(str::to_owned),
            raw: request,
        };
        match self.permissions {
            Permissions::Ask if core.can_ask() => core.ask(permission),
            Permissions::Auto => {
                core.answered_by_policy(permission);
                self.answer(core, &id, &Answer::Allow);
            }
            Permissions::Ask => {
                core.answered_by_policy(permission);
                self.answer(core, &id, &Answer::Deny { message: "too many requests are open".to_owned() });
            }
            Permissions::ReadOnly => {
                core.answered_by_policy(permission);
                self.answer(core, &id, &Answer::Deny { message: "this step may only read".to_owned() });
            }
        }
    }

    fn system(&mut self, core: &mut Core, message: Value) {
        match string(&message["subtype"]) {
            "init" => {
                core.saw_session(string(&message["session_id"]));
                self.ensure_turn(core, &message);
                core.turn_started();
            }
            "api_retry" => core.retrying(retry(&message)),
            "permission_denied" => {
                if self.denied.len() < REMEMBERED {
                    self.denied.insert(string(&message["tool_use_id"]).to_owned());
                }
            }
            "model_refusal_no_fallback" => {
                core.problem(Failure::new(FailureKind::Refusal, "the model declined"));
            }
            "informational" => core.push(Event::Notice { text: shorten(string(&message["content"])) }),
            "compact_boundary" => {
                core.push(Event::Notice { text: "the agent compacted its conversation".to_owned() })
            }
            "status"
            | "hook_started"
            | "hook_response"
            | "hook_progress"
            | "task_started"
            | "task_progress"
            | "task_notification"
            | "task_updated"
            | "session_state_changed"
            | "api_metrics"
            | "thinking_tokens" => {}
            _ => core.push(Event::Unknown { raw: message }),
        }
    }

    fn command_lifecycle(&mut self, core: &mut Core, message: Value) {
        let id = string(&message["command_uuid"]).to_owned();
        match string(&message["state"]) {
            "started" => {
                core.ensure_turn(Some(id.clone()));
                self.deliver(core, &id);
            }
            // A message completes without a turn if the session already contains it: sending it again is safe and has
            // no effect.
            "completed" if core.turn().is_some_and(|turn| !turn.is_started && turn.messages == [id]) => {
                let failure =
                    Failure::new(FailureKind::AlreadyDelivered, "the session already holds this message");
                core.end_turn(Reported {
                    end: ReportedEnd::Failed(failure),
                    reason: "completed".to_owned(),
                    text: None,
                    output: None,
                    denied_calls: None,
                    raw: message,
                });
            }
            _ => {}
        }
    }

    fn user(&mut self, core: &mut Core, mut message: Value) {
        if message["isReplay"] == true {
            self.deliver(core, string(&message["uuid"]));
        }
        let mut inner = take(&mut message, "message");
        for mut block in blocks(take(&mut inner, "content")) {
            if block["type"] != "tool_result" {
                continue;
            }
            let id = string(&block["tool_use_id"]).to_owned();
            let status = if self.denied.remove(&id) {
                ToolStatus::Denied
            } else if block["is_error"] == true {
                ToolStatus::Failed
            } else {
                ToolStatus::Ok
            };
            core.tool_result(ToolResult { id, status, output: text_of(take(&mut block, "content")) });
        }
    }

    fn assistant(&mut self, core: &mut Core, mut message: Value) {
        self.ensure_turn(core, &message);
        core.turn_started();
        let parent = message["parent_tool_use_id"].as_str().map(str::to_owned);
        let error = string(&message["error"]).to_owned();
        let status = number(&message["api_error_status"]);
        let mut inner = take(&mut message, "message");
        if !error.is_empty() || message["is_api_error_message"] == true {
            // The text comes from the agent program, not from the model.
            let said = text_of(take(&mut inner, "content"));
            let by_text = classify_error(&said);
            let typed = if inner["stop_reason"] == "refusal" {
                Some(FailureKind::Refusal)
            } else {
                result::error_kind(&error)
            };
            let kind = typed.or_else(|| FailureKind::of_http_status(status)).unwrap_or(by_text.kind);
            return core.problem(Failure { kind, ..by_text });
        }
        let usage = take(&mut inner, "usage");
        if !usage.is_null() && self.counted.is_news(string(&inner["id"])) {
            let request = result::usage_of_request(&usage);
            core.usage(|meter| meter.add(&request));
        }
        for mut block in blocks(take(&mut inner, "content")) {
            match string(&block["type"]) {
                "text" => core.text(string(&block["text"]), parent.clone()),
                "thinking" => core.thinking(string(&block["thinking"])),
                "tool_use" => {
                    let input = take(&mut block, "input");
                    core.tool_call(ToolCall {
                        id: string(&block["id"]).to_owned(),
                        name: string(&block["name"]).to_owned(),
                        title: shorten(title_of(&input).unwrap_or("")),
                        input,
                        parent: parent.clone(),
                    });
                }
                _ => {}
            }
        }
    }

    fn result(&mut self, core: &mut Core, message: Value) {
        if core.phase() == Phase::Starting {
            return core.fail_start(start_failure(&result::error_text(&message)));
        }
        let several = message["user_message_uuids"].as_array().map(Vec::as_slice).unwrap_or_default();
        let named: Vec<&str> =
            several.iter().chain([&message["user_message_uuid"]]).filter_map(Value::as_str).collect();
        if !named.is_empty() && !core.is_about_open_turn(&named) {
            let text = "the agent ended a turn that was not open any more; its result is not used".to_owned();
            return core.push(Event::Notice { text });
        }
        core.saw_session(string(&message["session_id"]));
        let mut turn = result::usage_of_request(&message["usage"]);
        if let Some(models) = result::usage_of_models(&message["model_usage_since_last_result"]) {
            turn = turn.max(&models);
        }
        let session = result::usage_of_models(&message["modelUsage"]).unwrap_or_default();
        let session = Usage { cost_usd: message["total_cost_usd"].as_f64(), ..session };
        core.usage(|meter| {
            meter.turn_so_far(&turn);
            meter.session_so_far(&session, true);
        });
        let hint = core.turn().and_then(|turn| turn.hint.clone());
        self.asked.clear();
        core.end_turn(result::reported(message, hint.as_ref()));
    }

    /// Opens a turn that the agent started by itself, for the message that it names.
    fn ensure_turn(&mut self, core: &mut Core, message: &Value) {
        let named = message["user_message_uuid"].as_str().or(message["user_message_uuids"][0].as_str());
        core.ensure_turn(named.map(str::to_owned));
    }

    fn deliver(&mut self, core: &mut Core, id: &str) {
        if !id.is_empty() && self.delivered.is_news(id) {
            core.delivered(id);
        }
    }

    fn send_user(core: &mut Core, message: &Message, priority: Option<&str>) {
        let mut line = json!({"type": "user", "uuid": message.id,
            "message": {"role": "user", "content": [{"type": "text", "text": message.text}]}});
        if let Some(priority) = priority {
            line["priority"] = json!(priority);
        }
        core.send(&line);
    }
}

impl Adapter for ClaudeAdapter {
    fn begin(&mut self, core: &mut Core) {
        let mut request = json!({"subtype": "initialize"});
        if let Some(system) = self.system.take() {
            request["appendSystemPrompt"] = json!(system);
        }
        if let Some(schema) = self.schema.take() {
            request["jsonSchema"] = schema;
        }
        core.send(&json!({"type": "control_request", "request_id": INITIALIZE, "request": request}));
    }

    fn receive(&mut self, core: &mut Core, message: Value) {
        match string(&message["type"]) {
            "assistant" => self.assistant(core, message),
            "user" => self.user(core, message),
            "result" => self.result(core, message),
            "system" => self.system(core, message),
            "command_lifecycle" => self.command_lifecycle(core, message),
            "control_request" => self.control_request(core, message),
            "control_response" => self.control_response(core, message),
            "control_cancel_request" => {
                let id = string(&message["request_id"]);
                self.asked.remove(id);
                core.withdraw_permission(id);
            }
            "rate_limit_event" => core.limit(limit(&message["rate_limit_info"])),
            "stream_event" => {
                let delta = &message["event"]["delta"];
                if self.deltas && delta["type"] == "text_delta" && message["parent_tool_use_id"].is_null() {
                    core.turn_started();
                    core.push(Event::TextDelta { text: string(&delta["text"]).to_owned() });
                }
            }
            silent if SILENT.contains(&silent) => {}
            _ => core.push(Event::Unknown { raw: message }),
        }
    }

    fn prompt(&mut self, core: &mut Core, message: &Message) {
        Self::send_user(core, message, None);
    }

    fn steer(&mut self, core: &mut Core, message: &Message, how: Steer) -> Result<(), Refused> {
        let priority = match how {
            Steer::AfterTool => {
                core.add_message(&message.id);
                None
            }
            // The turn ends as interrupted, and the agent opens another for the message.
            Steer::Now => Some("now"),
        };
        Self::send_user(core, message, priority);
        Ok(())
    }

    fn interrupt(&mut self, core: &mut Core) {
        self.interrupts += 1;
        let id = format!("interrupt-{}", self.interrupts);
        core.send(&json!({"type": "control_request", "request_id": id, "request": {"subtype": "interrupt"}}));
    }

    fn answer(&mut self, core: &mut Core, request: &str, answer: &Answer) {
        let input = self.asked.remove(request).unwrap_or_else(|| json!({}));
        let response = match answer {
            Answer::Allow => json!({"behavior": "allow", "updatedInput": input}),
            Answer::Deny { message } => json!({"behavior": "deny", "message": message}),
        };
        core.send(&json!({"type": "control_response",
            "response": {"subtype": "success", "request_id": request, "response": response}}));
    }
}

/// The most recent ids of one kind.
#[derive(Debug, Default)]
struct Remembered(VecDeque<String>);

impl Remembered {
    /// Remembers the id and returns whether it is new.
    fn is_news(&mut self, id: &str) -> bool {
        if self.0.iter().any(|known| known == id) {
            return false;
        }
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(id.to_owned());
        true
    }
}

fn start_failure(said: &str) -> Failure {
    let failure = classify_error(said);
    let kind = if failure.kind == FailureKind::Other { FailureKind::Handshake } else { failure.kind };
    Failure { kind, ..failure }
}

fn retry(message: &Value) -> Retry {
    let status = number(&message["error_status"]);
    let error = string(&message["error"]);
    let kind = result::error_kind(error)
        .or_else(|| FailureKind::of_http_status(status))
        .unwrap_or(FailureKind::Overload);
    let failure = Failure::new(kind, format!("the model's service answered {status} ({error})"));
    Retry {
        attempt: number(&message["attempt"]) as u32,
        max_attempts: number(&message["max_retries"]) as u32,
        delay_ms: message["retry_delay_ms"].as_f64().map(|delay| delay as u64),
        failure,
    }
}

fn limit(info: &Value) -> LimitNotice {
    LimitNotice {
        rejected: info["status"] == "rejected" && info["isUsingOverage"] != true,
        resets: info["resetsAt"].as_i64().map(Reset::At),
        window: string(&info["rateLimitType"]).to_owned(),
        used_percent: info["utilization"].as_f64().map(|part| part * 100.0),
    }
}

/// Returns the blocks of a content, which is a list of blocks or a text.
fn blocks(content: Value) -> Vec<Value> {
    match content {
        Value::Array(blocks) => blocks,
        Value::String(text) => vec![json!({"type": "text", "text": text})],
        _ => Vec::new(),
    }
}

/// Returns the texts of a content, one per line.
fn text_of(content: Value) -> String {
    match content {
        Value::String(text) => text,
        Value::Array(blocks) => {
            let texts = blocks.iter().map(|block| match block["text"].as_str() {
                Some(text) => text.to_owned(),
                None => format!("[{}]", string(&block["type"])),
            });
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// Returns the part of a tool's input that describes the call best.
fn title_of(input: &Value) -> Option<&str> {
    ["command", "file_path", "path", "pattern", "url", "query", "description", "prompt"]
        .into_iter()
        .find_map(|key| input[key].as_str())
}
