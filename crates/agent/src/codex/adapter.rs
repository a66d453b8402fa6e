//! Translates between Codex's app server and the core.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::items;
use super::requests::{self, Approval};
use crate::conversation::{Adapter, Answer, Message, Phase, Refused, Steer};
use crate::event::{Event, SessionInfo};
use crate::failure::{Failure, FailureKind};
use crate::launch::{Driver, Launch, McpServer, McpTransport, Permissions, Session};
use crate::rpc::{self, METHOD_NOT_FOUND, Pending, RpcError};
use crate::state::{Core, number, string, take, usage_of};
use crate::structured;
use crate::text::{classify_error, shorten};
use crate::turn::{Reported, ReportedEnd};

/// The number of turns of a resumed thread whose messages are read back.
const TURNS_READ_BACK: u32 = 5;
/// The most open items whose input is kept for an approval.
const MAX_OPEN_ITEMS: usize = 256;
/// Notifications that the driver opts out of, so that Codex does not send them.
const OPTED_OUT: &[&str] = &[
    "command/exec/outputDelta",
    "item/commandExecution/outputDelta",
    "item/fileChange/outputDelta",
    "item/plan/delta",
    "item/reasoning/summaryTextDelta",
    "item/reasoning/textDelta",
    "process/outputDelta",
    "thread/readState/changed",
    "turn/diff/updated",
    "turn/plan/updated",
];
/// Prefixes of notifications that the driver ignores.
const SILENT: &[&str] = &[
    "account/",
    "app/list/",
    "fs/",
    "hook/",
    "item/",
    "mcpServer/",
    "project/",
    "remoteControl/",
    "skills/",
    "thread/",
    "turn/",
];

/// The purpose of a request that the driver sent.
#[derive(Debug)]
enum Purpose {
    Initialize,
    OpenThread,
    ReadBack,
    StartTurn,
    Steer { message: String },
    Nothing,
}

pub(crate) struct CodexAdapter {
    launch: Launch,
    pending: Pending<Purpose>,
    thread: String,
    /// Codex's id of the open turn, once it is known.
    turn: Option<String>,
    /// Whether an interrupt waits for the turn's id.
    wants_interrupt: bool,
    /// The answer to the start, while the messages of a resumed thread are read back.
    opened: Option<SessionInfo>,
    /// The input of each open item, by item id.
    items: BTreeMap<String, Value>,
    approvals: BTreeMap<String, Approval>,
}

impl CodexAdapter {
    pub(crate) fn new(launch: &Launch) -> CodexAdapter {
        CodexAdapter {
            launch: launch.clone(),
            pending: Pending::new(false),
            thread: String::new(),
            turn: None,
            wants_interrupt: false,
            opened: None,
            items: BTreeMap::new(),
            approvals: BTreeMap::new(),
        }
    }

    fn request(&mut self, core: &mut Core, method: &str, params: Value, purpose: Purpose) {
        let line = self.pending.request(method, params, purpose);
        core.send(&line);
    }

    // The handshake.

    fn open_thread(&mut self, core: &mut Core) {
        let launch = &self.launch;
        let (approvals, sandbox) = match launch.permissions {
            Permissions::Auto => ("never", "danger-full-access"),
            Permissions::Ask => ("untrusted", "danger-full-access"),
            Permissions::ReadOnly => ("never", "read-only"),
        };
        let mut params =
            json!({"cwd": launch.dir.to_string_lossy(), "approvalPolicy": approvals, "sandbox": sandbox});
        if let Some(model) = &launch.model {
            params["model"] = json!(model);
        }
        if let Some(system) = &launch.system {
            params["developerInstructions"] = json!(system);
        }
        if !launch.mcp_servers.is_empty() {
            params["config"] = json!({"mcp_servers": mcp_servers(&launch.mcp_servers)});
        }
        let method = match &launch.session {
            Session::New { .. } => "thread/start",
            Session::Resume { id } => {
                params["threadId"] = json!(id);
                params["excludeTurns"] = json!(true);
                "thread/resume"
            }
        };
        self.request(core, method, params, Purpose::OpenThread);
    }

    fn thread_opened(&mut self, core: &mut Core, mut result: Value) {
        let mut thread = take(&mut result, "thread");
        self.thread = string(&thread["id"]).to_owned();
        if let Value::Object(fields) = &mut thread {
            fields.remove("turns");
        }
        let info = SessionInfo {
            session: self.thread.clone(),
            resumed: self.launch.session.is_resumed(),
            agent: format!("codex {}", string(&thread["cliVersion"])).trim_end().to_owned(),
            model: result["model"].as_str().map(str::to_owned),
            known_messages: Vec::new(),
            raw: thread,
        };
        if info.resumed {
            self.opened = Some(info);
            let params = json!({"threadId": self.thread, "limit": TURNS_READ_BACK, "itemsView": "full"});
            self.request(core, "thread/turns/list", params, Purpose::ReadBack);
        } else {
            core.ready(info);
        }
    }

    /// Takes the last turns of a resumed thread. An older Codex that cannot list them is ready without them.
    fn read_back(&mut self, core: &mut Core, turns: &Value) {
        let Some(mut info) = self.opened.take() else { return };
        let turns = turns["data"].as_array().into_iter().flatten();
        let items = turns.flat_map(|turn| turn["items"].as_array().into_iter().flatten());
        info.known_messages = items.filter_map(|item| item["clientId"].as_str()).map(str::to_owned).collect();
        core.ready(info);
    }

    // Answers.

    fn answered(&mut self, core: &mut Core, purpose: Purpose, result: Result<Value, RpcError>) {
        match (purpose, result) {
            (Purpose::Initialize, Ok(_)) => {
                let line = self.pending.notification("initialized", Value::Null);
                core.send(&line);
                self.open_thread(core);
            }
            (Purpose::OpenThread, Ok(result)) => self.thread_opened(core, result),
            (Purpose::Initialize | Purpose::OpenThread, Err(error)) => core.fail_start(start_failure(&error)),
            (Purpose::ReadBack, result) => self.read_back(core, &result.unwrap_or(Value::Null)),
            (Purpose::StartTurn, Ok(result)) => {
                if core.phase() == Phase::Busy {
                    self.turn_is(core, string(&result["turn"]["id"]));
                }
            }
            (Purpose::StartTurn, Err(error)) => {
                let failure = classify_error(&error.text());
                self.end_turn(core, ReportedEnd::Failed(failure), "rejected", Value::Null);
            }
            (Purpose::Steer { message }, Err(error)) => {
                core.push(Event::MessageReturned { message, reason: shorten(&error.text()) });
            }
            (Purpose::Steer { .. } | Purpose::Nothing, _) => {}
        }
    }

    /// Records the id of the open turn, and sends the interrupt that waited for it.
    fn turn_is(&mut self, core: &mut Core, id: &str) {
        self.turn = Some(id.to_owned());
        if std::mem::take(&mut self.wants_interrupt) {
            self.interrupt(core);
        }
    }

    // Notifications.

    fn notified(&mut self, core: &mut Core, method: &str, mut params: Value) {
        // Sub-agents have their own threads, whose turns are ignored.
        if params["threadId"].as_str().is_some_and(|thread| thread != self.thread) {
            return;
        }
        match method {
            "turn/started" => {
                let id = string(&params["turn"]["id"]).to_owned();
                core.ensure_turn(None);
                self.turn_is(core, &id);
                core.turn_started();
            }
            "turn/completed" => self.turn_completed(core, params),
            "item/started" => self.item_started(core, take(&mut params, "item")),
            "item/completed" => self.item_completed(core, take(&mut params, "item")),
            "item/agentMessage/delta" => {
                core.turn_started();
                core.push(Event::TextDelta { text: string(&params["delta"]).to_owned() });
            }
            "error" => {
                let error = &params["error"];
                if params["willRetry"] == true {
                    core.retrying(items::retry(error));
                } else {
                    core.problem(items::failure(error));
                }
            }
            "thread/tokenUsage/updated" => self.usage(core, &params),
            "account/rateLimits/updated" => {
                if let Some(notice) = items::limit(&params["rateLimits"]) {
                    core.limit(notice);
                }
            }
            "thread/status/changed" if params["status"]["type"] == "systemError" => {
                core.problem(Failure::new(FailureKind::Other, "Codex reported a system error of the thread"));
            }
            "serverRequest/resolved" => {
                let id = requests::request_name(&params["requestId"]);
                if self.approvals.remove(&id).is_some() {
                    core.withdraw_permission(&id);
                }
            }
            "warning" | "guardianWarning" => notice(core, &params["message"]),
            "configWarning" | "deprecationNotice" => notice(core, &params["summary"]),
            "model/rerouted" => {
                notice(core, &json!(format!("the model is now {}", string(&params["toModel"]))))
            }
            method if SILENT.iter().any(|start| method.starts_with(start)) => {}
            _ => core.push(Event::Unknown { raw: json!({"method": method, "params": params}) }),
        }
    }

    fn item_started(&mut self, core: &mut Core, item: Value) {
        if item["type"] == "userMessage"
            && let Some(message) = item["clientId"].as_str()
        {
            return core.delivered(message);
        }
        if let Some(call) = items::tool_call(&item) {
            if self.items.len() < MAX_OPEN_ITEMS {
                self.items.insert(call.id.clone(), call.input.clone());
            }
            core.tool_call(call);
        }
    }

    fn item_completed(&mut self, core: &mut Core, item: Value) {
        match string(&item["type"]) {
            "agentMessage" => core.text(string(&item["text"]), None),
            "reasoning" => {
                let summary = item["summary"].as_array().into_iter().flatten().filter_map(Value::as_str);
                core.thinking(&summary.collect::<Vec<_>>().join("\n"));
            }
            "contextCompaction" => notice(core, &json!("the agent compacted its conversation")),
            _ => {
                if let Some(call) = items::tool_call(&item) {
                    if self.items.remove(&call.id).is_none() && core.phase() == Phase::Busy {
                        core.tool_call(call);
                    }
                    core.tool_result(items::tool_result(item));
                }
            }
        }
    }

    fn usage(&mut self, core: &mut Core, params: &Value) {
        let total = &params["tokenUsage"]["total"];
        let session = usage_of(
            number(&total["inputTokens"]),
            number(&total["cachedInputTokens"]),
            number(&total["cacheWriteInputTokens"]),
            number(&total["outputTokens"]),
            number(&total["reasoningOutputTokens"]),
        );
        // A resumed thread reports its usage under the id of its last turn.
        let in_turn = self.turn.is_some() && params["turnId"].as_str() == self.turn.as_deref();
        core.usage(|meter| meter.session_so_far(&session, in_turn));
    }

    fn turn_completed(&mut self, core: &mut Core, mut params: Value) {
        let turn = take(&mut params, "turn");
        if self.turn.is_none() || turn["id"].as_str() != self.turn.as_deref() {
            let text = "Codex ended a turn that was not open any more; its result is not used".to_owned();
            return core.push(Event::Notice { text });
        }
        let status = string(&turn["status"]).to_owned();
        let end = match status.as_str() {
            "completed" => ReportedEnd::Completed,
            "interrupted" => ReportedEnd::Interrupted,
            _ => ReportedEnd::Failed(items::failure(&turn["error"])),
        };
        let is_interrupted = matches!(end, ReportedEnd::Interrupted);
        self.end_turn(core, end, &status, turn);
        if is_interrupted {
            let params = json!({"threadId": self.thread});
            self.request(core, "thread/backgroundTerminals/clean", params, Purpose::Nothing);
        }
    }

    fn end_turn(&mut self, core: &mut Core, end: ReportedEnd, reason: &str, raw: Value) {
        self.turn = None;
        self.wants_interrupt = false;
        self.approvals.clear();
        core.finish_text();
        let text = core.turn().map(|turn| turn.text.clone()).unwrap_or_default();
        let output = self.launch.output_schema.as_ref().and_then(|_| structured::extract(&text));
        core.end_turn(Reported {
            end,
            reason: reason.to_owned(),
            text: Some(text),
            output,
            denied_calls: None,
            raw,
        });
    }

    // Requests of Codex.

    fn requested(&mut self, core: &mut Core, id: &Value, method: &str, params: Value) {
        if method == "item/tool/requestUserInput" {
            core.push(Event::Notice {
                text: shorten(&format!("the agent asks a question: {}", params["questions"])),
            });
            let line = self.pending.answer(id, json!({"answers": {}}));
            return core.send(&line);
        }
        let item = params["itemId"].as_str().and_then(|item| self.items.get(item)).cloned();
        let Some((approval, request)) = requests::approval(id, method, params, item.as_ref()) else {
            let line = self.pending.refuse(id, METHOD_NOT_FOUND, "sprag does not know this method");
            return core.send(&line);
        };
        let answer = match self.launch.permissions {
            Permissions::Ask if core.can_ask() => {
                self.approvals.insert(request.request.clone(), approval);
                return core.ask(request);
            }
            Permissions::Auto => Answer::Allow,
            Permissions::Ask | Permissions::ReadOnly => Answer::Deny { message: String::new() },
        };
        core.answered_by_policy(request);
        let line = self.pending.answer(id, requests::result(&approval, &answer));
        core.send(&line);
    }
}

impl Adapter for CodexAdapter {
    fn begin(&mut self, core: &mut Core) {
        let mut opted_out = OPTED_OUT.to_vec();
        if !self.launch.deltas {
            opted_out.push("item/agentMessage/delta");
        }
        let params = json!({
            "clientInfo": {"name": "sprag", "title": "Sprag", "version": env!("CARGO_PKG_VERSION")},
            // Required for `thread/backgroundTerminals/clean`.
            "capabilities": {"experimentalApi": true, "optOutNotificationMethods": opted_out},
        });
        self.request(core, "initialize", params, Purpose::Initialize);
    }

    fn receive(&mut self, core: &mut Core, message: Value) {
        match rpc::read(message) {
            rpc::Message::Answer { id, result } => match self.pending.take(id) {
                Some(purpose) => self.answered(core, purpose, result),
                None => core.push(Event::Notice {
                    text: format!("Codex answered a request that was not made ({id})"),
                }),
            },
            rpc::Message::Request { id, method, params } => self.requested(core, &id, &method, params),
            rpc::Message::Notification { method, params } => self.notified(core, &method, params),
            rpc::Message::Other(raw) => core.push(Event::Unknown { raw }),
        }
    }

    fn prompt(&mut self, core: &mut Core, message: &Message) {
        self.turn = None;
        let mut params = json!({"threadId": self.thread, "clientUserMessageId": message.id,
            "input": [{"type": "text", "text": message.text}]});
        if let Some(schema) = &self.launch.output_schema {
            params["outputSchema"] = schema.clone();
        }
        self.request(core, "turn/start", params, Purpose::StartTurn);
    }

    fn steer(&mut self, core: &mut Core, message: &Message, how: Steer) -> Result<(), Refused> {
        if how == Steer::Now {
            let what = "replace a turn; interrupt it and send a prompt".to_owned();
            return Err(Refused::Unsupported { driver: Driver::CodexAppServer, what });
        }
        let Some(turn) = &self.turn else { return Err(Refused::NotReady) };
        let params = json!({"threadId": self.thread, "expectedTurnId": turn, "clientUserMessageId": message.id,
            "input": [{"type": "text", "text": message.text}]});
        core.add_message(&message.id);
        self.request(core, "turn/steer", params, Purpose::Steer { message: message.id.clone() });
        Ok(())
    }

    fn interrupt(&mut self, core: &mut Core) {
        match &self.turn {
            Some(turn) => {
                let params = json!({"threadId": self.thread, "turnId": turn});
                self.request(core, "turn/interrupt", params, Purpose::Nothing);
            }
            None => self.wants_interrupt = true,
        }
    }

    fn answer(&mut self, core: &mut Core, request: &str, answer: &Answer) {
        if let Some(approval) = self.approvals.remove(request) {
            let line = self.pending.answer(&approval.id, requests::result(&approval, answer));
            core.send(&line);
        }
    }
}

fn notice(core: &mut Core, text: &Value) {
    core.push(Event::Notice { text: shorten(string(text)) });
}

fn start_failure(error: &RpcError) -> Failure {
    let failure = classify_error(&error.text());
    let kind = if failure.kind == FailureKind::Other { FailureKind::Handshake } else { failure.kind };
    Failure { kind, ..failure }
}

fn mcp_servers(servers: &[McpServer]) -> Value {
    let entries: serde_json::Map<_, _> = servers
        .iter()
        .map(|server| {
            let entry = match &server.transport {
                McpTransport::Stdio { command, args, env } => {
                    json!({"command": command, "args": args, "env": env})
                }
                McpTransport::Http { url, headers } => json!({"url": url, "http_headers": headers}),
            };
            (server.name.clone(), entry)
        })
        .collect();
    Value::Object(entries)
}
