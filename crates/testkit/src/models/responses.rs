//! OpenAI Responses: `POST /v1/responses`, as one JSON object or as server-sent events.

use serde_json::{Value, json};

use super::anthropic::Events;
use super::http::HttpResponse;
use super::request::ModelRequest;
use super::script::{Failure, Reply};

pub(super) fn answer(request: &ModelRequest, reply: &Reply) -> HttpResponse {
    let number = request.parts.len();
    let call = |name: &str, input: &Value| {
        json!({"type": "function_call", "id": format!("fc_{number:04}"), "call_id": format!("call_{number:04}"), "name": name,
            "arguments": input.to_string(), "status": "completed"})
    };
    let text = |text: &str| {
        json!({"type": "message", "id": format!("msg_{number:04}"), "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}]})
    };
    let (items, is_cut) = match reply {
        Reply::Text(said) => (vec![text(said)], false),
        Reply::Shell { say, command } => {
            let (name, input) = request.shell_call(command);
            let said = (!say.is_empty()).then(|| text(say));
            (said.into_iter().chain([call(&name, &input)]).collect(), false)
        }
        Reply::Tool { name, input } => (vec![call(name, input)], false),
        Reply::Output(output) => (vec![text(&output.to_string())], false),
        Reply::Refusal => (vec![text("I cannot help with that.")], false),
        Reply::CutOff(said) => (vec![text(said)], true),
        _ => (Vec::new(), false),
    };
    let whole = |status: &str, output: &[Value]| {
        let incomplete = if is_cut { json!({"reason": "max_output_tokens"}) } else { Value::Null };
        json!({"id": format!("resp_{number:04}"), "object": "response", "created_at": 0, "status": status, "model": request.model,
            "output": output, "error": null, "incomplete_details": incomplete,
            "usage": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 20,
                "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 120}})
    };
    let end = if is_cut { "incomplete" } else { "completed" };
    if !request.stream {
        return HttpResponse::json(200, &whole(end, &items));
    }
    let mut events = Events::default();
    events.push("response.created", json!({"response": whole("in_progress", &[])}));
    for (index, item) in items.iter().enumerate() {
        let mut begun = item.clone();
        begun["status"] = json!("in_progress");
        if item["type"] == "message" {
            begun["content"] = json!([]);
        } else {
            begun["arguments"] = json!("");
        }
        events.push("response.output_item.added", json!({"output_index": index, "item": begun}));
        let place = |mut data: Value| {
            data["item_id"] = item["id"].clone();
            data["output_index"] = json!(index);
            data
        };
        if item["type"] == "message" {
            let text = &item["content"][0]["text"];
            let empty = json!({"type": "output_text", "text": "", "annotations": []});
            events.push("response.content_part.added", place(json!({"content_index": 0, "part": empty})));
            events.push("response.output_text.delta", place(json!({"content_index": 0, "delta": text})));
            events.push("response.output_text.done", place(json!({"content_index": 0, "text": text})));
            events.push(
                "response.content_part.done",
                place(json!({"content_index": 0, "part": item["content"][0]})),
            );
        } else {
            let arguments = &item["arguments"];
            events.push("response.function_call_arguments.delta", place(json!({"delta": arguments})));
            events.push("response.function_call_arguments.done", place(json!({"arguments": arguments})));
        }
        events.push("response.output_item.done", json!({"output_index": index, "item": item}));
    }
    events.push(&format!("response.{end}"), json!({"response": whole(end, &items)}));
    HttpResponse::events(events.0)
}

pub(super) fn failure(failure: Failure) -> HttpResponse {
    let error = |kind: &str, code: &str, message: &str| json!({"error": {"type": kind, "code": code, "message": message, "param": null}});
    match failure {
        Failure::Unauthorized => HttpResponse::json(
            401,
            &error("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
        ),
        Failure::UsageLimit { resets_at } => {
            let mut body =
                error("usage_limit_reached", "usage_limit_reached", "The usage limit has been reached");
            body["error"]["plan_type"] = json!("pro");
            body["error"]["resets_at"] = json!(resets_at);
            HttpResponse::json(429, &body)
                .with("x-codex-primary-used-percent", "100")
                .with("x-codex-primary-window-minutes", "300")
                .with("x-codex-primary-reset-at", resets_at)
        }
        Failure::RateLimit => HttpResponse::json(
            429,
            &error("requests", "rate_limit_exceeded", "Rate limit reached for requests."),
        ),
        Failure::ServerError => {
            HttpResponse::json(500, &error("server_error", "server_error", "Internal server error"))
        }
        Failure::Overloaded => {
            HttpResponse::json(503, &error("server_error", "server_is_overloaded", "Overloaded"))
        }
    }
}
