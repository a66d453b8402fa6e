//! Anthropic Messages: `POST /v1/messages`, as one JSON object or as server-sent events.

use serde_json::{Value, json};

use super::http::HttpResponse;
use super::request::ModelRequest;
use super::script::{Failure, Reply};

pub(super) fn answer(request: &ModelRequest, reply: &Reply) -> HttpResponse {
    let call = |name: &str, input: &Value| json!({"type": "tool_use", "id": format!("toolu_{:04}", request.parts.len()), "name": name, "input": input});
    let text = |text: &str| json!({"type": "text", "text": text});
    let (content, stop) = match reply {
        Reply::Text(said) => (vec![text(said)], "end_turn"),
        Reply::Shell { say, command } => {
            let (name, input) = request.shell_call(command);
            let said = (!say.is_empty()).then(|| text(say));
            (said.into_iter().chain([call(&name, &input)]).collect(), "tool_use")
        }
        Reply::Tool { name, input } => (vec![call(name, input)], "tool_use"),
        Reply::Output(output) if request.tools.iter().any(|tool| tool == "StructuredOutput") => {
            (vec![call("StructuredOutput", output)], "tool_use")
        }
        Reply::Output(output) => (vec![text(&output.to_string())], "end_turn"),
        Reply::Refusal => (Vec::new(), "refusal"),
        Reply::CutOff(said) => (vec![text(said)], "max_tokens"),
        _ => (Vec::new(), "end_turn"),
    };
    let usage = json!({"input_tokens": 100, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 20});
    let message = |content: &[Value], stop: Value| {
        json!({"id": format!("msg_{:04}", request.parts.len()), "type": "message", "role": "assistant", "model": request.model,
            "content": content, "stop_reason": stop, "stop_sequence": null, "usage": usage})
    };
    if !request.stream {
        return HttpResponse::json(200, &message(&content, json!(stop)));
    }
    let mut events = Events::default();
    events.push("message_start", json!({"message": message(&[], Value::Null)}));
    for (index, block) in content.iter().enumerate() {
        let (empty, delta) = if block["type"] == "text" {
            (json!({"type": "text", "text": ""}), json!({"type": "text_delta", "text": block["text"]}))
        } else {
            let empty = json!({"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}});
            (empty, json!({"type": "input_json_delta", "partial_json": block["input"].to_string()}))
        };
        events.push("content_block_start", json!({"index": index, "content_block": empty}));
        events.push("content_block_delta", json!({"index": index, "delta": delta}));
        events.push("content_block_stop", json!({"index": index}));
    }
    let delta = json!({"stop_reason": stop, "stop_sequence": null});
    events.push("message_delta", json!({"delta": delta, "usage": {"output_tokens": 20}}));
    events.push("message_stop", json!({}));
    HttpResponse::events(events.0)
}

pub(super) fn failure(failure: Failure) -> HttpResponse {
    let (status, kind, message) = match failure {
        Failure::Unauthorized => (401, "authentication_error", "invalid x-api-key"),
        Failure::UsageLimit { .. } => {
            (429, "rate_limit_error", "This request would exceed your account's rate limit.")
        }
        Failure::RateLimit => (429, "rate_limit_error", "Number of requests has exceeded your rate limit."),
        Failure::ServerError => (500, "api_error", "Internal server error"),
        Failure::Overloaded => (529, "overloaded_error", "Overloaded"),
    };
    let body =
        json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_test"});
    let response = HttpResponse::json(status, &body);
    match failure {
        Failure::UsageLimit { resets_at } => response
            .with("anthropic-ratelimit-unified-status", "rejected")
            .with("anthropic-ratelimit-unified-reset", resets_at)
            .with("anthropic-ratelimit-unified-representative-claim", "five_hour")
            .with("anthropic-ratelimit-unified-5h-status", "rejected")
            .with("anthropic-ratelimit-unified-5h-reset", resets_at),
        _ => response,
    }
}

/// Server-sent events whose data names its own type.
#[derive(Default)]
pub(super) struct Events(pub(super) String);

impl Events {
    pub(super) fn push(&mut self, kind: &str, mut data: Value) {
        data["type"] = json!(kind);
        self.0.push_str(&format!("event: {kind}\ndata: {data}\n\n"));
    }
}
