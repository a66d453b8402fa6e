//! Gemini: `POST …/models/M:generateContent` and `:streamGenerateContent`.

use serde_json::{Value, json};

use super::http::HttpResponse;
use super::request::ModelRequest;
use super::script::{Failure, Reply};

pub(super) fn answer(request: &ModelRequest, reply: &Reply) -> HttpResponse {
    let text = |text: &str| json!({"text": text});
    let call = |name: &str, input: &Value| json!({"functionCall": {"id": format!("call_{:04}", request.parts.len()), "name": name, "args": input}});
    let (parts, finish) = match reply {
        Reply::Text(said) => (vec![text(said)], "STOP"),
        Reply::Shell { say, command } => {
            let (name, input) = request.shell_call(command);
            let said = (!say.is_empty()).then(|| text(say));
            (said.into_iter().chain([call(&name, &input)]).collect(), "STOP")
        }
        Reply::Tool { name, input } => (vec![call(name, input)], "STOP"),
        Reply::Output(output) => (vec![text(&output.to_string())], "STOP"),
        Reply::Refusal => (Vec::new(), "SAFETY"),
        Reply::CutOff(said) => (vec![text(said)], "MAX_TOKENS"),
        _ => (Vec::new(), "STOP"),
    };
    let answer = json!({
        "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": finish, "index": 0}],
        "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 20, "totalTokenCount": 120},
        "modelVersion": request.model, "responseId": format!("r{:04}", request.parts.len()),
    });
    if request.stream {
        HttpResponse::events(format!("data: {answer}\r\n\r\n"))
    } else {
        HttpResponse::json(200, &answer)
    }
}

pub(super) fn failure(failure: Failure) -> HttpResponse {
    let quota = "type.googleapis.com/google.rpc.QuotaFailure";
    let (code, status, message, details) = match failure {
        Failure::Unauthorized => {
            (401, "UNAUTHENTICATED", "API key not valid. Please pass a valid API key.", json!([]))
        }
        Failure::UsageLimit { .. } => (
            429,
            "RESOURCE_EXHAUSTED",
            "You exceeded your current quota, please check your plan and billing details.",
            json!([{"@type": quota, "violations": [{"quotaMetric": "generate_requests",
                "quotaId": "GenerateRequestsPerDayPerProjectPerModel"}]}]),
        ),
        Failure::RateLimit => {
            (429, "RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota).", json!([]))
        }
        Failure::ServerError => (500, "INTERNAL", "An internal error has occurred.", json!([])),
        Failure::Overloaded => {
            (503, "UNAVAILABLE", "The model is overloaded. Please try again later.", json!([]))
        }
    };
    let error = json!({"code": code, "message": message, "status": status, "details": details});
    HttpResponse::json(code, &json!({"error": error}))
}
