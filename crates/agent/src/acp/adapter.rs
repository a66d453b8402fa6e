//! Translates between ACP and the core.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::quirks;
use super::updates::{self, OpenCalls};
use crate::conversation::{Adapter, Answer, Message, Phase, Refused, Steer};
use crate::event::{Event, PermissionRequest, SessionInfo};
use crate::failure::{Failure, FailureKind};
use crate::launch::{Driver, Launch, McpServer, McpTransport, Permissions, Session};
use crate::rpc::{self, AUTH_REQUIRED, METHOD_NOT_FOUND, Pending, RpcError};
use crate::state::{Core, string, take};
use crate::structured;
use crate::text::{classify_error, shorten};
use crate::turn::{Reported, ReportedEnd};

/// The version of the protocol that this crate speaks.
const VERSION: u64 = 1;

/// The purpose of a request that the driver sent.
#[derive(Debug)]
enum Purpose {
    Initialize,
    Open {
        by: Opening,
    },
    /// A setting of the session. An agent that refuses it keeps its own, and a notice reports that.
    Set {
        what: &'static str,
    },
    Prompt {
        turn: u64,
    },
}

/// The way a session is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opening {
    New,
    Resume,
    Load,
}

/// A permission request that waits for an answer.
#[derive(Debug)]
struct Asked {
    id: Value,
    options: Value,
}

pub(crate) struct AcpAdapter {
    launch: Launch,
    pending: Pending<Purpose>,
    session: String,
    agent: String,
    capabilities: Value,
    /// The answer that opened the session, while settings follow.
    opened: Option<Value>,
    /// Settings that are not answered yet.
    settings: u32,
    calls: OpenCalls,
    asked: BTreeMap<String, Asked>,
    /// Whether the system prompt was sent, which it is once per session.
    is_introduced: bool,
    /// The turn whose prompt was answered last or is open.
    turn: u64,
    is_delivered: bool,
}

impl AcpAdapter {
    pub(crate) fn new(launch: &Launch) -> AcpAdapter {
        AcpAdapter {
            launch: launch.clone(),
            pending: Pending::new(true),
            session: String::new(),
            agent: String::new(),
            capabilities: Value::Null,
            opened: None,
            settings: 0,
            calls: OpenCalls::default(),
            asked: BTreeMap::new(),
            is_introduced: launch.session.is_resumed(),
            turn: 0,
            is_delivered: true,
        }
    }

    fn request(&mut self, core: &mut Core, method: &str, params: Value, purpose: Purpose) {
        let line = self.pending.request(method, params, purpose);
        core.send(&line);
    }

    // The handshake.

    fn initialized(&mut self, core: &mut Core, mut result: Value) {
        let version = result["protocolVersion"].as_u64();
        if version != Some(VERSION) {
            let spoken = version.map_or("none".to_owned(), |version| version.to_string());
            let message = format!("the agent speaks version {spoken} of ACP; Sprag speaks version {VERSION}");
            return core.fail_start(Failure::new(FailureKind::Handshake, message));
        }
        let info = take(&mut result, "agentInfo");
        self.agent = format!("{} {}", string(&info["name"]), string(&info["version"])).trim().to_owned();
        self.capabilities = take(&mut result, "agentCapabilities");
        let by = match &self.launch.session {
            Session::New { .. } => Opening::New,
            Session::Resume { .. } if self.capabilities["sessionCapabilities"]["resume"].is_object() => {
                Opening::Resume
            }
            Session::Resume { .. } if self.capabilities["loadSession"] == true => Opening::Load,
            Session::Resume { .. } => {
                let message = "the agent can neither resume nor load a session";
                return core.fail_start(Failure::new(FailureKind::SessionUnknown, message));
            }
        };
        self.open(core, by);
    }

    fn open(&mut self, core: &mut Core, by: Opening) {
        let mut params = json!({"cwd": self.launch.dir.to_string_lossy(), "mcpServers": mcp_servers(&self.launch.mcp_servers)});
        if let Session::Resume { id } = &self.launch.session {
            params["sessionId"] = json!(id);
        }
        let method = match by {
            Opening::New => "session/new",
            Opening::Resume => "session/resume",
            Opening::Load => "session/load",
        };
        self.request(core, method, params, Purpose::Open { by });
    }

    fn opened(&mut self, core: &mut Core, by: Opening, result: Value) {
        self.session = match (&self.launch.session, result["sessionId"].as_str()) {
            (_, Some(id)) => id.to_owned(),
            (Session::Resume { id }, None) => id.clone(),
            (Session::New { .. }, None) => {
                let message = format!("the agent opened a session without an id ({by:?})");
                return core.fail_start(Failure::new(FailureKind::Handshake, message));
            }
        };
        self.set_model(core, &result);
        self.set_mode(core, &result);
        self.opened = Some(result);
        self.ready_if_set(core);
    }

    fn set_model(&mut self, core: &mut Core, result: &Value) {
        let Some(model) = self.launch.model.clone() else { return };
        if quirks::takes_model_by_argument(&self.launch.agent) {
            return;
        }
        let option = option_of_category(result, "model");
        let what = "model";
        if let Some(option) = option {
            if option["currentValue"] != model.as_str() {
                let params = json!({"sessionId": self.session, "configId": option["id"], "value": model});
                self.settings += 1;
                self.request(core, "session/set_config_option", params, Purpose::Set { what });
            }
        } else if result["models"]["currentModelId"] != model.as_str() {
            self.settings += 1;
            self.request(
                core,
                "session/set_model",
                json!({"sessionId": self.session, "modelId": model}),
                Purpose::Set { what },
            );
        }
    }

    fn set_mode(&mut self, core: &mut Core, result: &Value) {
        let modes = &result["modes"];
        let offered: Vec<&str> = modes["availableModes"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|mode| mode["id"].as_str())
            .collect();
        let wanted = quirks::mode_ids(self.launch.permissions).iter().find(|id| offered.contains(id));
        if let Some(id) = wanted.filter(|id| modes["currentModeId"] != **id) {
            let params = json!({"sessionId": self.session, "modeId": id});
            self.settings += 1;
            self.request(core, "session/set_mode", params, Purpose::Set { what: "mode" });
        }
    }

    fn ready_if_set(&mut self, core: &mut Core) {
        if self.settings > 0 {
            return;
        }
        let Some(mut opened) = self.opened.take() else { return };
        let model = opened["models"]["currentModelId"].as_str().map(str::to_owned);
        let model = model
            .or_else(|| option_of_category(&opened, "model")?["currentValue"].as_str().map(str::to_owned));
        if let Value::Object(fields) = &mut opened {
            // Long lists of models and their variants.
            fields.remove("configOptions");
            fields.remove("models");
        }
        let resumed = self.launch.session.is_resumed();
        let agent = self.agent.clone();
        core.ready(SessionInfo {
            session: self.session.clone(),
            resumed,
            agent,
            model,
            raw: opened,
            ..SessionInfo::default()
        });
    }

    // Answers.

    fn answered(&mut self, core: &mut Core, purpose: Purpose, result: Result<Value, RpcError>) {
        match (purpose, result) {
            (Purpose::Initialize, Ok(result)) => self.initialized(core, result),
            (Purpose::Open { by }, Ok(result)) => self.opened(core, by, result),
            (Purpose::Open { by: Opening::Resume }, Err(_)) if self.capabilities["loadSession"] == true => {
                self.open(core, Opening::Load);
            }
            (Purpose::Open { by: Opening::Resume | Opening::Load }, Err(error)) => {
                let failure = rpc_failure(&error);
                let is_known =
                    matches!(failure.kind, FailureKind::Auth | FailureKind::Limit | FailureKind::Overload);
                let kind = if is_known { failure.kind } else { FailureKind::SessionUnknown };
                core.fail_start(Failure { kind, ..failure });
            }
            (Purpose::Initialize | Purpose::Open { by: Opening::New }, Err(error)) => {
                let failure = rpc_failure(&error);
                let kind =
                    if failure.kind == FailureKind::Other { FailureKind::Handshake } else { failure.kind };
                core.fail_start(Failure { kind, ..failure });
            }
            (Purpose::Set { what }, result) => {
                self.settings -= 1;
                if let Err(error) = result {
                    core.push(Event::Notice {
                        text: format!("the agent did not take the {what}: {}", shorten(&error.text())),
                    });
                }
                self.ready_if_set(core);
            }
            (Purpose::Prompt { turn }, result) => self.prompt_answered(core, turn, result),
        }
    }

    fn prompt_answered(&mut self, core: &mut Core, turn: u64, result: Result<Value, RpcError>) {
        if turn != self.turn || core.phase() != Phase::Busy {
            let text = "the agent ended a turn that was not open any more; its result is not used".to_owned();
            return core.push(Event::Notice { text });
        }
        self.calls.clear();
        self.asked.clear();
        core.finish_text();
        let (end, reason, raw) = match result {
            Err(error) => (
                ReportedEnd::Failed(rpc_failure(&error)),
                "error".to_owned(),
                json!({"error": error.text(), "code": error.code}),
            ),
            Ok(result) => {
                let reason = string(&result["stopReason"]).to_owned();
                (self.stopped(core, &reason, &result), reason, result)
            }
        };
        let text = core.turn().map(|turn| turn.text.clone()).unwrap_or_default();
        let output = self.launch.output_schema.as_ref().and_then(|_| structured::extract(&text));
        core.end_turn(Reported { end, reason, text: Some(text), output, denied_calls: None, raw });
    }

    fn stopped(&mut self, core: &mut Core, reason: &str, result: &Value) -> ReportedEnd {
        let quota = &result["_meta"]["quota"]["token_count"];
        if let Some(usage) =
            updates::request_usage(quota).or_else(|| updates::request_usage(&result["usage"]))
        {
            core.usage(|meter| meter.turn_so_far(&usage));
        }
        let meta = &result["_meta"]["codex"];
        if meta["threadStatus"] == "systemError" || meta["threadStatus"]["type"] == "systemError" {
            core.problem(Failure::new(FailureKind::Other, "the agent reported a system error of its thread"));
        }
        let failed = |kind, message: &str| ReportedEnd::Failed(Failure::new(kind, message));
        match reason {
            "end_turn" => ReportedEnd::Completed,
            "cancelled" => ReportedEnd::Interrupted,
            "refusal" => failed(FailureKind::Refusal, "the model declined"),
            "max_tokens" => failed(FailureKind::MaxTokens, "the model's answer was cut off at its longest"),
            "max_turn_requests" => {
                failed(FailureKind::MaxTurns, "the agent made as many requests as a turn may have")
            }
            other => failed(
                FailureKind::Other,
                &format!("the agent stopped for a reason that is not known: {other:?}"),
            ),
        }
    }

    // Requests and notifications of the agent.

    fn requested(&mut self, core: &mut Core, id: Value, method: &str, mut params: Value) {
        if method != "session/request_permission" {
            let line = self.pending.refuse(&id, METHOD_NOT_FOUND, "sprag does not offer this method");
            return core.send(&line);
        }
        let options = take(&mut params, "options");
        let call = self.calls.update(core, take(&mut params, "toolCall"), true);
        let name = match &id {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let tool = if call.name.is_empty() { call.title.clone() } else { call.name.clone() };
        // Some agents describe the input only by a title.
        let input = if call.input.is_null() { json!({"title": call.title}) } else { call.input };
        let request = PermissionRequest {
            request: name.clone(),
            tool,
            input,
            title: call.title,
            reason: None,
            call: Some(call.id),
            raw: json!({"options": options}),
        };
        self.asked.insert(name.clone(), Asked { id, options });
        let answer = match self.launch.permissions {
            Permissions::Ask if core.can_ask() => return core.ask(request),
            Permissions::Auto => Answer::Allow,
            Permissions::Ask | Permissions::ReadOnly => Answer::Deny { message: String::new() },
        };
        core.answered_by_policy(request);
        self.answer(core, &name, &answer);
    }

    fn notified(&mut self, core: &mut Core, method: &str, mut params: Value) {
        if method != "session/update" {
            // Extensions start with an underscore or a vendor's name.
            if method != "$/cancel_request" && !method.starts_with('_') {
                core.push(Event::Unknown { raw: json!({"method": method, "params": params}) });
            }
            return;
        }
        // Loading a session replays its history before the turn; other sessions are those of sub-agents.
        if core.phase() != Phase::Busy || params["sessionId"].as_str() != Some(self.session.as_str()) {
            return;
        }
        let update = take(&mut params, "update");
        let is_work = matches!(
            string(&update["sessionUpdate"]),
            "agent_message_chunk" | "agent_thought_chunk" | "tool_call" | "tool_call_update"
        );
        if is_work && !std::mem::replace(&mut self.is_delivered, true) {
            // ACP does not acknowledge a prompt; the first update shows that the agent has received it.
            let message = core.turn().and_then(|turn| turn.messages.first().cloned());
            if let Some(message) = message {
                core.delivered(&message);
            }
        }
        updates::update(core, &mut self.calls, update, self.launch.deltas);
    }
}

impl Adapter for AcpAdapter {
    fn begin(&mut self, core: &mut Core) {
        let params = json!({
            "protocolVersion": VERSION,
            "clientCapabilities": {"fs": {"readTextFile": false, "writeTextFile": false}, "terminal": false},
            "clientInfo": {"name": "sprag", "title": "Sprag", "version": env!("CARGO_PKG_VERSION")},
        });
        self.request(core, "initialize", params, Purpose::Initialize);
    }

    fn receive(&mut self, core: &mut Core, message: Value) {
        match rpc::read(message) {
            rpc::Message::Answer { id, result } => match self.pending.take(id) {
                Some(purpose) => self.answered(core, purpose, result),
                None => core.push(Event::Notice {
                    text: format!("the agent answered a request that was not made ({id})"),
                }),
            },
            rpc::Message::Request { id, method, params } => self.requested(core, id, &method, params),
            rpc::Message::Notification { method, params } => self.notified(core, &method, params),
            rpc::Message::Other(raw) => core.push(Event::Unknown { raw }),
        }
    }

    fn prompt(&mut self, core: &mut Core, message: &Message) {
        self.turn += 1;
        self.is_delivered = false;
        let mut text = String::new();
        if !std::mem::replace(&mut self.is_introduced, true)
            && let Some(system) = &self.launch.system
        {
            text = format!("{system}\n\n");
        }
        text.push_str(&message.text);
        if let Some(schema) = &self.launch.output_schema {
            text.push_str(&structured::instruction(schema));
        }
        let params = json!({"sessionId": self.session, "prompt": [{"type": "text", "text": text}]});
        let turn = self.turn;
        self.request(core, "session/prompt", params, Purpose::Prompt { turn });
    }

    fn steer(&mut self, _core: &mut Core, _message: &Message, how: Steer) -> Result<(), Refused> {
        let what = match how {
            Steer::AfterTool => "steer a turn; send the message as the next prompt",
            Steer::Now => "replace a turn; interrupt it and send a prompt",
        };
        Err(Refused::Unsupported { driver: Driver::Acp, what: what.to_owned() })
    }

    fn interrupt(&mut self, core: &mut Core) {
        // The protocol requires open requests to be answered as cancelled.
        for (name, asked) in std::mem::take(&mut self.asked) {
            let line = self.pending.answer(&asked.id, json!({"outcome": {"outcome": "cancelled"}}));
            core.send(&line);
            core.withdraw_permission(&name);
        }
        let line = self.pending.notification("session/cancel", json!({"sessionId": self.session}));
        core.send(&line);
    }

    fn answer(&mut self, core: &mut Core, request: &str, answer: &Answer) {
        let Some(asked) = self.asked.remove(request) else { return };
        let kinds = match answer {
            Answer::Allow => ["allow_once", "allow_always"],
            Answer::Deny { .. } => ["reject_once", "reject_always"],
        };
        let options = asked.options.as_array().map(Vec::as_slice).unwrap_or_default();
        let option = kinds.iter().find_map(|kind| options.iter().find(|option| option["kind"] == *kind));
        let outcome = match option {
            Some(option) => json!({"outcome": "selected", "optionId": option["optionId"]}),
            None => json!({"outcome": "cancelled"}),
        };
        let line = self.pending.answer(&asked.id, json!({"outcome": outcome}));
        core.send(&line);
    }
}

fn option_of_category<'a>(result: &'a Value, category: &str) -> Option<&'a Value> {
    result["configOptions"].as_array()?.iter().find(|option| option["category"] == category)
}

fn rpc_failure(error: &RpcError) -> Failure {
    let failure = classify_error(&error.text());
    let typed = match error.code {
        // This is ACP's meaning of the code, unless the text shows that it is JSON-RPC's, which covers any server
        // error.
        AUTH_REQUIRED if matches!(failure.kind, FailureKind::Other | FailureKind::Request) => {
            Some(FailureKind::Auth)
        }
        code => u64::try_from(code).ok().and_then(FailureKind::of_http_status),
    };
    let kind = typed.unwrap_or(failure.kind);
    Failure { kind, resets: failure.resets.filter(|_| kind == FailureKind::Limit), ..failure }
}

fn mcp_servers(servers: &[McpServer]) -> Value {
    let pairs = |map: &BTreeMap<String, String>| -> Vec<Value> {
        map.iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
    };
    let entries = servers.iter().map(|server| match &server.transport {
        McpTransport::Stdio { command, args, env } => {
            json!({"name": server.name, "command": command, "args": args, "env": pairs(env)})
        }
        McpTransport::Http { url, headers } => {
            json!({"type": "http", "name": server.name, "url": url, "headers": pairs(headers)})
        }
    });
    entries.collect()
}
