//! An ACP agent's side of the protocol.

use serde_json::{Value, json};

use super::{Call, Input, Prompt, Speaker, TurnEnding, TurnResult, mcp_server, unfitting};
use crate::event::ToolStatus;
use crate::fake::home::{NotOpened, StoredSession};
use crate::fake::step::Ending;
use crate::launch::McpServer;
use crate::rpc::{AUTH_REQUIRED, METHOD_NOT_FOUND};
use crate::state::{string, take};
use crate::usage::Usage;

#[derive(Default)]
pub(super) struct Acp {
    session: String,
    servers: Vec<McpServer>,
    schema: Option<Value>,
    open: Value,
    /// The id of the request that the end of the open turn answers.
    prompt: Value,
    asked: u64,
}

impl Acp {
    fn update(&self, update: Value) -> Value {
        json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": self.session, "update": update}})
    }

    fn answer(id: &Value, result: Value) -> Value {
        json!({"jsonrpc": "2.0", "id": id, "result": result})
    }

    fn refuse(id: &Value, code: i64, message: &str) -> Value {
        json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
    }

    fn open(&mut self, id: Value, params: &Value, resume: Option<String>) -> (Vec<Value>, Option<Input>) {
        self.open = id;
        let servers = params["mcpServers"].as_array().into_iter().flatten();
        self.servers = servers.map(|entry| mcp_server(string(&entry["name"]), entry, "headers")).collect();
        (Vec::new(), Some(Input::Open { resume, id: None }))
    }
}

impl Speaker for Acp {
    fn receive(&mut self, mut message: Value) -> (Vec<Value>, Option<Input>) {
        let id = take(&mut message, "id");
        let params = take(&mut message, "params");
        match string(&message["method"]) {
            "" => {
                let option = string(&message["result"]["outcome"]["optionId"]);
                (Vec::new(), Some(Input::Answer { request: id.to_string(), is_allowed: option == "allow" }))
            }
            "initialize" => {
                let capabilities = json!({"loadSession": true, "sessionCapabilities": {"resume": {}}});
                let info = json!({"name": "fake", "version": env!("CARGO_PKG_VERSION")});
                let result = json!({"protocolVersion": 1, "agentCapabilities": capabilities, "agentInfo": info, "authMethods": []});
                (vec![Acp::answer(&id, result)], None)
            }
            "session/new" => self.open(id, &params, None),
            "session/resume" | "session/load" => {
                let resume = Some(string(&params["sessionId"]).to_owned());
                self.open(id, &params, resume)
            }
            "session/prompt" => {
                self.prompt = id;
                let text = string(&params["prompt"][0]["text"]).to_owned();
                self.schema = schema_in(&text);
                (Vec::new(), Some(Input::Message(Prompt { id: String::new(), text })))
            }
            "session/cancel" => (Vec::new(), Some(Input::Interrupt)),
            "session/set_mode" | "session/set_model" => (vec![Acp::answer(&id, json!({}))], None),
            _ => (vec![Acp::refuse(&id, METHOD_NOT_FOUND, "no such method")], None),
        }
    }

    fn opened(&mut self, session: Result<&StoredSession, NotOpened>, shown: &str) -> Vec<Value> {
        let answer = match session {
            Ok(_) => {
                self.session = shown.to_owned();
                Acp::answer(&self.open, json!({"sessionId": shown}))
            }
            Err(NotOpened::Unknown) => Acp::refuse(&self.open, -32602, "session not found"),
            Err(NotOpened::InUse) => Acp::refuse(&self.open, -32602, "the session is already in use"),
        };
        vec![answer]
    }

    fn refuse_login(&mut self) -> Option<Vec<Value>> {
        Some(vec![Acp::refuse(&self.open, AUTH_REQUIRED, "Authentication required")])
    }

    fn mcp_servers(&self) -> &[McpServer] {
        &self.servers
    }

    fn schema(&self) -> Option<&Value> {
        self.schema.as_ref()
    }

    fn asks(&self) -> bool {
        true
    }

    fn opens_turns_for_late_messages(&self) -> bool {
        false
    }

    fn turn_started(&mut self, _prompt: &Prompt) -> Vec<Value> {
        Vec::new()
    }

    fn known_message(&mut self, _prompt: &Prompt) -> Option<Vec<Value>> {
        None
    }

    fn taken(&mut self, _prompt: &Prompt) -> Vec<Value> {
        Vec::new()
    }

    fn say(&mut self, text: &str) -> Vec<Value> {
        // Models write a text in several pieces.
        let half = (0..=text.len() / 2).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let pieces = [&text[..half], &text[half..]].into_iter().filter(|piece| !piece.is_empty());
        pieces.map(|piece| self.update(json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": piece}}))).collect()
    }

    fn think(&mut self, text: &str) -> Vec<Value> {
        vec![self.update(
            json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": text}}),
        )]
    }

    fn call(&mut self, call: &Call) -> Vec<Value> {
        let title = call.command.as_deref().unwrap_or(&call.name);
        let kind = if call.command.is_some() { "execute" } else { "other" };
        vec![
            self.update(json!({"sessionUpdate": "tool_call", "toolCallId": call.id, "title": title, "kind": kind, "status": "pending",
                "rawInput": {}})),
            self.update(json!({"sessionUpdate": "tool_call_update", "toolCallId": call.id, "status": "in_progress",
                "rawInput": call.input})),
        ]
    }

    fn ask(&mut self, call: &Call) -> (Vec<Value>, String) {
        self.asked += 1;
        let options = json!([{"optionId": "allow", "name": "Allow", "kind": "allow_once"},
            {"optionId": "reject", "name": "Reject", "kind": "reject_once"}]);
        let title = call.command.as_deref().unwrap_or(&call.name);
        let tool = json!({"toolCallId": call.id, "title": title, "kind": "execute", "status": "pending", "rawInput": call.input});
        let params = json!({"sessionId": self.session, "options": options, "toolCall": tool});
        let request = json!({"jsonrpc": "2.0", "id": self.asked, "method": "session/request_permission", "params": params});
        (vec![request], self.asked.to_string())
    }

    fn result(&mut self, call: &Call, status: ToolStatus, output: &str) -> Vec<Value> {
        let word = if status == ToolStatus::Ok { "completed" } else { "failed" };
        vec![self.update(json!({"sessionUpdate": "tool_call_update", "toolCallId": call.id, "status": word,
            "content": [{"type": "content", "content": {"type": "text", "text": output}}]}))]
    }

    fn usage(&mut self, _turn: &Usage, session: &Usage) -> Vec<Value> {
        let cost = session.cost_usd.unwrap_or(0.0);
        vec![self.update(json!({"sessionUpdate": "usage_update", "used": 100, "size": 200_000,
            "cost": {"amount": cost, "currency": "USD"}}))]
    }

    fn end(&mut self, result: &TurnResult) -> Vec<Value> {
        let mut messages = self.usage(&result.turn, &result.session);
        let figures = json!({"inputTokens": result.turn.input_tokens, "outputTokens": result.turn.output_tokens,
            "totalTokens": result.turn.total_tokens()});
        let stop = |reason: &str| json!({"stopReason": reason, "usage": figures, "_meta": {}});
        let block = |output: &Value| format!("```json\n{output}\n```");
        let id = self.prompt.clone();
        let answer = match &result.how {
            TurnEnding::Interrupted => Acp::answer(&id, stop("cancelled")),
            TurnEnding::Scripted(Ending::Ok) => {
                if let Some(output) = &result.output {
                    messages.extend(self.say(&block(output)));
                }
                Acp::answer(&id, stop("end_turn"))
            }
            TurnEnding::Scripted(Ending::Empty) => Acp::answer(&id, stop("end_turn")),
            TurnEnding::Scripted(Ending::BadSchema) => {
                messages.extend(self.say(&block(&unfitting())));
                Acp::answer(&id, stop("end_turn"))
            }
            TurnEnding::Scripted(Ending::FalseSuccess) => {
                messages.extend(self.say("Done."));
                let mut end = stop("end_turn");
                end["_meta"] = json!({"codex": {"threadStatus": "systemError"}});
                Acp::answer(&id, end)
            }
            TurnEnding::Scripted(Ending::Error500) => {
                Acp::refuse(&id, -32603, "Internal error: 500 Internal server error")
            }
            TurnEnding::Scripted(Ending::Auth) => Acp::refuse(&id, AUTH_REQUIRED, "Authentication required"),
            TurnEnding::Scripted(Ending::Limit(_)) => Acp::refuse(
                &id,
                429,
                &format!("You have exhausted your quota (resets_at {})", result.resets_at),
            ),
            TurnEnding::Scripted(Ending::Refusal) => Acp::answer(&id, stop("refusal")),
            TurnEnding::Scripted(Ending::MaxTurns) => Acp::answer(&id, stop("max_turn_requests")),
        };
        messages.push(answer);
        messages
    }
}

/// Finds the schema that the driver put into the prompt.
fn schema_in(text: &str) -> Option<Value> {
    let (_, after) = text.rsplit_once("fit this JSON schema:\n")?;
    serde_json::from_str(after.trim()).ok()
}
