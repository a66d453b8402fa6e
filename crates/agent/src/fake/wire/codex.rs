//! Codex's side of its app server.

use serde_json::{Value, json};

use super::{Call, Input, Prompt, Speaker, TurnEnding, TurnResult, mcp_server, unfitting};
use crate::event::ToolStatus;
use crate::fake::home::{NotOpened, StoredSession};
use crate::fake::step::Ending;
use crate::launch::McpServer;
use crate::rpc::METHOD_NOT_FOUND;
use crate::state::{string, take};
use crate::usage::Usage;

#[derive(Default)]
pub(super) struct Codex {
    thread: String,
    turns: u64,
    turn: String,
    is_busy: bool,
    asks: bool,
    servers: Vec<McpServer>,
    schema: Option<Value>,
    /// The request to open a thread.
    open: Value,
    dir: String,
    items: u64,
    asked: u64,
    /// The messages of the session, for drivers that read them back.
    known: Vec<String>,
}

impl Codex {
    fn note(&self, method: &str, mut params: Value) -> Value {
        params["threadId"] = json!(self.thread);
        json!({"method": method, "params": params})
    }

    fn turn_note(&self, method: &str, mut params: Value) -> Value {
        params["turnId"] = json!(self.turn);
        self.note(method, params)
    }

    fn open_thread(
        &mut self,
        id: Value,
        mut params: Value,
        resume: Option<String>,
    ) -> (Vec<Value>, Option<Input>) {
        self.open = id;
        self.asks = params["approvalPolicy"] != "never";
        self.dir = string(&params["cwd"]).to_owned();
        let config = take(&mut params, "config");
        let servers = config["mcp_servers"].as_object().into_iter().flatten();
        self.servers = servers.map(|(name, entry)| mcp_server(name, entry, "http_headers")).collect();
        (Vec::new(), Some(Input::Open { resume, id: None }))
    }

    fn message_item(&mut self, text: &str) -> Vec<Value> {
        self.items += 1;
        let item =
            |text: &str| json!({"type": "agentMessage", "id": format!("item-{}", self.items), "text": text});
        vec![
            self.turn_note("item/started", json!({"item": item("")})),
            self.turn_note("item/completed", json!({"item": item(text)})),
        ]
    }

    fn item(&self, call: &Call, status: &str) -> Value {
        match &call.command {
            Some(command) => {
                json!({"type": "commandExecution", "id": call.id, "command": format!("/bin/bash -lc '{command}'"),
                "cwd": self.dir, "status": status, "commandActions": [{"type": "unknown", "command": command}]})
            }
            None => {
                json!({"type": "mcpToolCall", "id": call.id, "server": "fake", "tool": call.name, "arguments": call.input,
                "status": status})
            }
        }
    }

    fn completed(&mut self, status: &str, error: Value) -> Value {
        self.is_busy = false;
        let turn =
            json!({"id": self.turn, "items": [], "itemsView": "notLoaded", "status": status, "error": error});
        self.note("turn/completed", json!({"turn": turn}))
    }

    fn failed(&mut self, info: &str, message: &str) -> Vec<Value> {
        let error = json!({"message": message, "codexErrorInfo": info});
        vec![
            self.turn_note("error", json!({"error": error, "willRetry": false})),
            self.completed("failed", error),
        ]
    }
}

impl Speaker for Codex {
    fn receive(&mut self, mut message: Value) -> (Vec<Value>, Option<Input>) {
        let id = take(&mut message, "id");
        let mut params = take(&mut message, "params");
        let answer = |result: Value| vec![json!({"id": id, "result": result})];
        let refuse = |message: &str| vec![json!({"id": id, "error": {"code": -32600, "message": message}})];
        match string(&message["method"]) {
            "" => {
                let is_allowed =
                    message["result"]["decision"] == "accept" || message["result"]["action"] == "accept";
                (Vec::new(), Some(Input::Answer { request: id.to_string(), is_allowed }))
            }
            "initialize" => (answer(json!({"userAgent": "fake/0.166.0", "platformOs": "linux"})), None),
            "initialized" => (Vec::new(), None),
            "thread/start" => self.open_thread(id, params, None),
            "thread/resume" => {
                let resume = Some(string(&params["threadId"]).to_owned());
                self.open_thread(id, params, resume)
            }
            "thread/turns/list" => {
                let items: Vec<Value> =
                    self.known.iter().map(|id| json!({"type": "userMessage", "clientId": id})).collect();
                (answer(json!({"data": [{"id": "earlier", "items": items, "status": "completed"}]})), None)
            }
            "turn/start" | "turn/steer" => {
                let text = string(&params["input"][0]["text"]).to_owned();
                let prompt = Prompt { id: string(&params["clientUserMessageId"]).to_owned(), text };
                let is_steer = message["method"] == "turn/steer";
                if is_steer && (!self.is_busy || params["expectedTurnId"] != self.turn.as_str()) {
                    return (refuse("no active turn to steer"), None);
                }
                if is_steer {
                    return (answer(json!({})), Some(Input::Message(prompt)));
                }
                self.turns += 1;
                self.turn = format!("turn-{}-{}", std::process::id(), self.turns);
                self.is_busy = true;
                self.schema = Some(take(&mut params, "outputSchema")).filter(|schema| !schema.is_null());
                let turn = json!({"id": self.turn, "items": [], "status": "inProgress"});
                (answer(json!({"turn": turn})), Some(Input::Message(prompt)))
            }
            "turn/interrupt" if !self.is_busy => (refuse("no active turn to interrupt"), None),
            "turn/interrupt" => (answer(json!({})), Some(Input::Interrupt)),
            "thread/backgroundTerminals/clean" => (answer(json!({})), None),
            _ => (
                vec![json!({"id": id, "error": {"code": METHOD_NOT_FOUND, "message": "no such method"}})],
                None,
            ),
        }
    }

    fn opened(&mut self, session: Result<&StoredSession, NotOpened>, shown: &str) -> Vec<Value> {
        match session {
            Ok(session) => {
                self.thread = shown.to_owned();
                self.known = session.messages.iter().map(|message| message.id.clone()).collect();
                let thread = json!({"id": shown, "cliVersion": "0.166.0-fake", "status": {"type": "idle"}, "cwd": self.dir});
                let mut messages =
                    vec![json!({"id": self.open, "result": {"thread": thread, "model": "fake"}})];
                if session.turns > 0 {
                    // A resumed thread reports its usage so far.
                    messages.extend(self.usage(&Usage::default(), &session.usage));
                }
                messages
            }
            Err(NotOpened::Unknown) => {
                vec![
                    json!({"id": self.open, "error": {"code": -32600, "message": "no rollout found for thread id"}}),
                ]
            }
            Err(NotOpened::InUse) => {
                vec![
                    json!({"id": self.open, "error": {"code": -32600, "message": "the thread is already in use"}}),
                ]
            }
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
        false
    }

    fn turn_started(&mut self, prompt: &Prompt) -> Vec<Value> {
        let turn = json!({"id": self.turn, "items": [], "status": "inProgress"});
        let mut messages = vec![self.note("turn/started", json!({"turn": turn}))];
        messages.extend(self.taken(prompt));
        messages
    }

    fn known_message(&mut self, _prompt: &Prompt) -> Option<Vec<Value>> {
        None
    }

    fn taken(&mut self, prompt: &Prompt) -> Vec<Value> {
        self.items += 1;
        let item = json!({"type": "userMessage", "id": format!("item-{}", self.items), "clientId": prompt.id,
            "content": [{"type": "text", "text": prompt.text}]});
        vec![
            self.turn_note("item/started", json!({"item": item})),
            self.turn_note("item/completed", json!({"item": item})),
        ]
    }

    fn say(&mut self, text: &str) -> Vec<Value> {
        self.message_item(text)
    }

    fn think(&mut self, text: &str) -> Vec<Value> {
        self.items += 1;
        let item = json!({"type": "reasoning", "id": format!("item-{}", self.items), "summary": [text], "content": []});
        vec![self.turn_note("item/completed", json!({"item": item}))]
    }

    fn call(&mut self, call: &Call) -> Vec<Value> {
        vec![self.turn_note("item/started", json!({"item": self.item(call, "inProgress")}))]
    }

    fn ask(&mut self, call: &Call) -> (Vec<Value>, String) {
        self.asked += 1;
        let params = match &call.command {
            Some(command) => {
                json!({"itemId": call.id, "command": command, "cwd": self.dir, "turnId": self.turn,
                "threadId": self.thread, "commandActions": [{"type": "unknown", "command": command}]})
            }
            None => {
                json!({"serverName": "fake", "mode": "form", "message": call.name, "requestedSchema": {}, "_meta": call.input,
                "turnId": self.turn, "threadId": self.thread})
            }
        };
        let method = match call.command {
            Some(_) => "item/commandExecution/requestApproval",
            None => "mcpServer/elicitation/request",
        };
        (vec![json!({"id": self.asked, "method": method, "params": params})], self.asked.to_string())
    }

    fn result(&mut self, call: &Call, status: ToolStatus, output: &str) -> Vec<Value> {
        let word = match status {
            ToolStatus::Ok => "completed",
            ToolStatus::Failed => "failed",
            ToolStatus::Denied => "declined",
        };
        let mut item = self.item(call, word);
        match &call.command {
            Some(_) => item["aggregatedOutput"] = json!(output),
            None => item["result"] = json!({"content": [{"type": "text", "text": output}]}),
        }
        vec![self.turn_note("item/completed", json!({"item": item}))]
    }

    fn usage(&mut self, turn: &Usage, session: &Usage) -> Vec<Value> {
        let figures = |usage: &Usage| {
            json!({"totalTokens": usage.total_tokens(), "inputTokens": usage.input_tokens, "cachedInputTokens": 0,
                "outputTokens": usage.output_tokens, "reasoningOutputTokens": 0})
        };
        let usage = json!({"total": figures(session), "last": figures(turn)});
        vec![self.turn_note("thread/tokenUsage/updated", json!({"tokenUsage": usage}))]
    }

    fn end(&mut self, result: &TurnResult) -> Vec<Value> {
        let mut messages = self.usage(&result.turn, &result.session);
        let ending = match &result.how {
            TurnEnding::Interrupted => {
                messages.push(self.completed("interrupted", Value::Null));
                return messages;
            }
            TurnEnding::Scripted(ending) => ending,
        };
        match ending {
            Ending::Ok => {
                if let Some(output) = &result.output {
                    messages.extend(self.message_item(&output.to_string()));
                }
                messages.push(self.completed("completed", Value::Null));
            }
            Ending::Empty => messages.push(self.completed("completed", Value::Null)),
            Ending::BadSchema => {
                messages.extend(self.message_item(&unfitting().to_string()));
                messages.push(self.completed("completed", Value::Null));
            }
            Ending::FalseSuccess => {
                messages.extend(self.message_item("Done."));
                let error = json!({"message": "stream disconnected", "codexErrorInfo": "other"});
                messages.push(self.turn_note("error", json!({"error": error, "willRetry": false})));
                messages.push(self.completed("completed", Value::Null));
            }
            Ending::Error500 => messages.extend(self.failed("internalServerError", "Internal server error")),
            Ending::Auth => {
                messages.extend(self.failed("unauthorized", "unexpected status 401 Unauthorized"))
            }
            Ending::Limit(_) => {
                let window =
                    json!({"usedPercent": 100, "windowDurationMins": 300, "resetsAt": result.resets_at});
                messages.push(json!({"method": "account/rateLimits/updated", "params": {"rateLimits": {"limitId": "codex",
                    "primary": window}}}));
                messages.extend(self.failed("usageLimitExceeded", "You’ve hit your usage limit."));
            }
            Ending::Refusal => messages.extend(self.failed("cyberPolicy", "the request was declined")),
            Ending::MaxTurns => {
                messages.extend(self.failed("sessionBudgetExceeded", "the session's budget is used up"))
            }
        }
        messages
    }
}
