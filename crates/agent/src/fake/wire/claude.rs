//! Claude Code's side of its stream.

use serde_json::{Value, json};

use super::{Call, Input, Prompt, Speaker, TurnEnding, TurnResult, mcp_server, unfitting};
use crate::event::ToolStatus;
use crate::fake::home::{NotOpened, StoredSession};
use crate::fake::step::Ending;
use crate::launch::McpServer;
use crate::state::{string, take};
use crate::usage::Usage;

pub(super) struct Claude {
    session: String,
    resume: Option<String>,
    asks: bool,
    servers: Vec<McpServer>,
    schema: Option<Value>,
    /// The id of the message that opened the turn.
    message: String,
    initialize: Value,
    asked: u64,
    results: u64,
    last_cost: f64,
}

impl Claude {
    /// Reads the session, the permissions and the MCP servers from the arguments that the driver adds.
    pub(super) fn new(args: &[String]) -> Claude {
        let after =
            |flag: &str| args.iter().position(|arg| arg == flag).and_then(|at| args.get(at + 1)).cloned();
        let servers =
            after("--mcp-config").and_then(|file| std::fs::read(file).ok()).map(|text| mcp_servers(&text));
        Claude {
            session: after("--session-id").unwrap_or_default(),
            resume: after("--resume"),
            asks: args.iter().any(|arg| arg == "--permission-prompt-tool"),
            servers: servers.unwrap_or_default(),
            schema: None,
            message: String::new(),
            initialize: Value::Null,
            asked: 0,
            results: 0,
            last_cost: 0.0,
        }
    }

    fn assistant(&self, block: Value) -> Value {
        json!({"type": "assistant", "message": {"id": format!("msg_fake_{}", self.results), "type": "message", "role": "assistant",
            "model": "fake", "content": [block], "stop_reason": null}, "parent_tool_use_id": null, "session_id": self.session,
            "user_message_uuid": self.message})
    }

    /// Returns an error in place of a message, in the form in which the program writes it for the model.
    fn error(&self, error: &str, status: u16, text: &str) -> Value {
        let mut message = self.assistant(json!({"type": "text", "text": text}));
        message["error"] = json!(error);
        message["is_api_error_message"] = json!(true);
        message["api_error_status"] = json!(status);
        message
    }

    fn result(&mut self, result: &TurnResult, fields: Value) -> Value {
        let cost = result.session.cost_usd.unwrap_or(0.0);
        let since = (cost - self.last_cost).max(0.0);
        self.last_cost = cost;
        let models = |usage: &Usage, cost: f64| json!({"fake": {"inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens, "costUSD": cost}});
        let mut message = json!({"type": "result", "session_id": self.session, "total_cost_usd": cost, "num_turns": 1,
            "usage": {"input_tokens": result.turn.input_tokens, "output_tokens": result.turn.output_tokens},
            "modelUsage": models(&result.session, cost), "model_usage_since_last_result": models(&result.turn, since),
            "permission_denials": [], "user_message_uuid": self.message, "result_index": self.results});
        self.results += 1;
        if let (Value::Object(message), Value::Object(fields)) = (&mut message, fields) {
            message.extend(fields);
        }
        message
    }

    fn failed(&mut self, result: &TurnResult, error: &str, status: u16, text: &str) -> Vec<Value> {
        let shown = self.error(error, status, text);
        let fields = json!({"subtype": "success", "is_error": true, "terminal_reason": "api_error", "api_error_status": status,
            "result": text});
        vec![shown, self.result(result, fields)]
    }
}

impl Speaker for Claude {
    fn receive(&mut self, mut message: Value) -> (Vec<Value>, Option<Input>) {
        match string(&message["type"]) {
            "control_request" => {
                let id = take(&mut message, "request_id");
                let mut request = take(&mut message, "request");
                match string(&request["subtype"]) {
                    "initialize" => {
                        self.initialize = id;
                        self.schema =
                            Some(take(&mut request, "jsonSchema")).filter(|schema| !schema.is_null());
                        let id = Some(self.session.clone()).filter(|id| !id.is_empty());
                        (Vec::new(), Some(Input::Open { resume: self.resume.clone(), id }))
                    }
                    "interrupt" => {
                        let answer = json!({"type": "control_response",
                            "response": {"subtype": "success", "request_id": id, "response": {"still_queued": []}}});
                        (vec![answer], Some(Input::Interrupt))
                    }
                    _ => (Vec::new(), None),
                }
            }
            "control_response" => {
                let response = &message["response"];
                let is_allowed = response["response"]["behavior"] == "allow";
                let request = string(&response["request_id"]).to_owned();
                // Claude Code repeats answers to its requests on stdout.
                (vec![message], Some(Input::Answer { request, is_allowed }))
            }
            "user" => {
                let text = string(&message["message"]["content"][0]["text"]).to_owned();
                let prompt = Prompt { id: string(&message["uuid"]).to_owned(), text };
                let input =
                    if message["priority"] == "now" { Input::Now(prompt) } else { Input::Message(prompt) };
                (Vec::new(), Some(input))
            }
            _ => (Vec::new(), None),
        }
    }

    fn opened(&mut self, session: Result<&StoredSession, NotOpened>, shown: &str) -> Vec<Value> {
        let asked = self.resume.clone().unwrap_or_else(|| self.session.clone());
        match session {
            Ok(session) => {
                self.session = shown.to_owned();
                self.last_cost = session.usage.cost_usd.unwrap_or(0.0);
                vec![
                    json!({"type": "control_response", "response": {"subtype": "success", "request_id": self.initialize,
                    "response": {"claude_code_version": "2.1.325-fake", "session_state": "idle"}}}),
                ]
            }
            Err(NotOpened::Unknown) => {
                let error = format!("No conversation found with session ID: {asked}");
                vec![
                    json!({"type": "result", "subtype": "error_during_execution", "is_error": true, "session_id": asked,
                    "errors": [error], "result_index": 0}),
                ]
            }
            // Claude Code reports this only on stderr.
            Err(NotOpened::InUse) => Vec::new(),
        }
    }

    fn refuse_login(&mut self) -> Option<Vec<Value>> {
        None
    }

    fn mcp_servers(&self) -> &[McpServer] {
        &self.servers
    }

    fn schema(&self) -> Option<&Value> {
        self.schema.as_ref()
    }

    fn asks(&self) -> bool {
        self.asks
    }

    fn opens_turns_for_late_messages(&self) -> bool {
        true
    }

    fn turn_started(&mut self, prompt: &Prompt) -> Vec<Value> {
        self.message.clone_from(&prompt.id);
        let init = json!({"type": "system", "subtype": "init", "session_id": self.session, "model": "fake", "tools": ["Bash"],
            "mcp_servers": [], "permissionMode": "default", "claude_code_version": "2.1.325-fake",
            "user_message_uuids": [prompt.id]});
        let mut messages = self.taken(prompt);
        messages.insert(
            0,
            json!({"type": "command_lifecycle", "command_uuid": prompt.id, "state": "started",
            "session_id": self.session}),
        );
        messages.insert(1, init);
        messages
    }

    fn known_message(&mut self, prompt: &Prompt) -> Option<Vec<Value>> {
        let mut messages = self.taken(prompt);
        messages.push(json!({"type": "command_lifecycle", "command_uuid": prompt.id, "state": "completed",
            "session_id": self.session}));
        Some(messages)
    }

    fn taken(&mut self, prompt: &Prompt) -> Vec<Value> {
        vec![
            json!({"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": prompt.text}]},
            "session_id": self.session, "parent_tool_use_id": null, "uuid": prompt.id, "isReplay": true}),
        ]
    }

    fn say(&mut self, text: &str) -> Vec<Value> {
        vec![self.assistant(json!({"type": "text", "text": text}))]
    }

    fn think(&mut self, text: &str) -> Vec<Value> {
        vec![self.assistant(json!({"type": "thinking", "thinking": text, "signature": ""}))]
    }

    fn call(&mut self, call: &Call) -> Vec<Value> {
        vec![
            self.assistant(
                json!({"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}),
            ),
        ]
    }

    fn ask(&mut self, call: &Call) -> (Vec<Value>, String) {
        self.asked += 1;
        let id = format!("ask-{}", self.asked);
        let request = json!({"subtype": "can_use_tool", "tool_name": call.name, "input": call.input, "tool_use_id": call.id});
        (vec![json!({"type": "control_request", "request_id": id, "request": request})], id)
    }

    fn result(&mut self, call: &Call, status: ToolStatus, output: &str) -> Vec<Value> {
        let denied = json!({"type": "system", "subtype": "permission_denied", "tool_name": call.name, "tool_use_id": call.id,
            "session_id": self.session});
        let result = json!({"type": "user", "message": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
            "content": output, "is_error": status != ToolStatus::Ok}]}, "parent_tool_use_id": null, "session_id": self.session});
        if status == ToolStatus::Denied { vec![denied, result] } else { vec![result] }
    }

    fn usage(&mut self, _turn: &Usage, _session: &Usage) -> Vec<Value> {
        // The result reports it.
        Vec::new()
    }

    fn end(&mut self, result: &TurnResult) -> Vec<Value> {
        let ok = |text: &str, output: Option<&Value>| {
            let mut fields = json!({"subtype": "success", "is_error": false, "terminal_reason": "completed", "stop_reason": "end_turn",
                "result": text});
            if let Some(output) = output {
                fields["structured_output"] = output.clone();
            }
            fields
        };
        match &result.how {
            TurnEnding::Interrupted => {
                let fields = json!({"subtype": "error_during_execution", "is_error": true, "terminal_reason": "aborted_tools",
                    "errors": ["interrupted"]});
                vec![self.result(result, fields)]
            }
            TurnEnding::Scripted(Ending::Ok) => {
                vec![self.result(result, ok(&result.text, result.output.as_ref()))]
            }
            TurnEnding::Scripted(Ending::Empty) => vec![self.result(result, ok("", None))],
            TurnEnding::Scripted(Ending::BadSchema) => {
                vec![self.result(result, ok(&result.text, Some(&unfitting())))]
            }
            TurnEnding::Scripted(Ending::FalseSuccess) => {
                let shown = self.error("server_error", 500, "API Error: 500 Internal server error");
                vec![shown, self.result(result, ok("Done.", result.output.as_ref()))]
            }
            TurnEnding::Scripted(Ending::Error500) => {
                self.failed(result, "server_error", 500, "API Error: 500 Internal server error")
            }
            TurnEnding::Scripted(Ending::Auth) => {
                self.failed(result, "authentication_failed", 401, "Invalid API key · Fix external API key")
            }
            TurnEnding::Scripted(Ending::Limit(_)) => {
                let info = json!({"status": "rejected", "resetsAt": result.resets_at, "rateLimitType": "five_hour",
                    "isUsingOverage": false});
                let mut messages = vec![
                    json!({"type": "rate_limit_event", "rate_limit_info": info, "session_id": self.session}),
                ];
                messages.extend(self.failed(result, "rate_limit", 429, "You've hit your 5-hour limit"));
                messages
            }
            TurnEnding::Scripted(Ending::Refusal) => {
                let text = "API Error: the model's safeguards flagged this message.";
                let mut messages = self.failed(result, "invalid_request", 400, text);
                messages[1]["stop_reason"] = json!("refusal");
                messages
            }
            TurnEnding::Scripted(Ending::MaxTurns) => {
                vec![self.result(
                    result,
                    json!({"subtype": "error_max_turns", "is_error": true, "terminal_reason": "max_turns"}),
                )]
            }
        }
    }
}

fn mcp_servers(text: &[u8]) -> Vec<McpServer> {
    let config: Value = serde_json::from_slice(text).unwrap_or(Value::Null);
    let servers = config["mcpServers"].as_object().into_iter().flatten();
    servers.map(|(name, entry)| mcp_server(name, entry, "headers")).collect()
}
