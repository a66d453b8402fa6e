//! Codex's items as tool calls and results, and its errors as failures.

use serde_json::{Value, json};

use crate::event::{LimitNotice, Retry, ToolCall, ToolResult, ToolStatus};
use crate::failure::{Failure, FailureKind, Reset};
use crate::state::{number, string, take};
use crate::text::{classify_error, shorten};

/// Translates an item that is a tool call; returns `None` for messages and other items.
pub(super) fn tool_call(item: &Value) -> Option<ToolCall> {
    let kind = string(&item["type"]);
    let (name, title, input) = match kind {
        "commandExecution" => {
            let command = command_of(item);
            (kind.to_owned(), command.to_owned(), json!({"command": command, "cwd": item["cwd"]}))
        }
        "fileChange" => {
            let paths =
                item["changes"].as_array().into_iter().flatten().map(|change| string(&change["path"]));
            (kind.to_owned(), paths.collect::<Vec<_>>().join(", "), json!({"changes": item["changes"]}))
        }
        "mcpToolCall" | "dynamicToolCall" => {
            let place = item["server"].as_str().or(item["namespace"].as_str());
            let tool = string(&item["tool"]);
            let name = place.map_or_else(|| tool.to_owned(), |place| format!("{place}.{tool}"));
            (name.clone(), name, item["arguments"].clone())
        }
        "webSearch" => (kind.to_owned(), string(&item["query"]).to_owned(), json!({"query": item["query"]})),
        "imageView" => (kind.to_owned(), string(&item["path"]).to_owned(), json!({"path": item["path"]})),
        "collabAgentToolCall" | "imageGeneration" | "sleep" | "functionCallOutput" => {
            (kind.to_owned(), string(&item["tool"]).to_owned(), Value::Null)
        }
        _ => return None,
    };
    Some(ToolCall { id: string(&item["id"]).to_owned(), name, title: shorten(&title), input, parent: None })
}

/// Returns the command without the shell that Codex wraps it in.
pub(super) fn command_of(item: &Value) -> &str {
    item["commandActions"][0]["command"].as_str().unwrap_or_else(|| string(&item["command"]))
}

/// Translates the end of an item that is a tool call.
pub(super) fn tool_result(mut item: Value) -> ToolResult {
    let exit = item["exitCode"].as_i64().unwrap_or(0);
    let status = match string(&item["status"]) {
        "declined" => ToolStatus::Denied,
        "failed" => ToolStatus::Failed,
        _ if exit != 0 || item["success"] == false => ToolStatus::Failed,
        _ => ToolStatus::Ok,
    };
    let output = match string(&item["type"]) {
        "commandExecution" => take(&mut item, "aggregatedOutput"),
        "mcpToolCall" if !item["error"].is_null() => take(&mut item["error"], "message"),
        "mcpToolCall" => Value::String(mcp_text(&item["result"])),
        _ => Value::Null,
    };
    let output = match output {
        Value::String(output) => output,
        _ => String::new(),
    };
    ToolResult { id: string(&item["id"]).to_owned(), status, output }
}

fn mcp_text(result: &Value) -> String {
    let texts = result["content"].as_array().into_iter().flatten().filter_map(|block| block["text"].as_str());
    texts.collect::<Vec<_>>().join("\n")
}

/// Translates an error: `{message, codexErrorInfo, additionalDetails}`.
pub(super) fn failure(error: &Value) -> Failure {
    let details =
        error["additionalDetails"].as_str().map(|details| format!(" ({details})")).unwrap_or_default();
    let by_text = classify_error(&format!("{}{details}", string(&error["message"])));
    let info = &error["codexErrorInfo"];
    let kind = match info {
        Value::String(name) => kind_by_name(name),
        Value::Object(fields) => fields.values().next().map(|inner| {
            // All of these concern the connection to the model's service.
            FailureKind::of_http_status(number(&inner["httpStatusCode"])).unwrap_or(FailureKind::Overload)
        }),
        _ => None,
    };
    let kind = kind.unwrap_or(by_text.kind);
    Failure { kind, resets: by_text.resets.filter(|_| kind == FailureKind::Limit), ..by_text }
}

fn kind_by_name(name: &str) -> Option<FailureKind> {
    match name {
        "usageLimitExceeded" | "rateLimitExceeded" => Some(FailureKind::Limit),
        "sessionBudgetExceeded" => Some(FailureKind::Budget),
        "contextWindowExceeded" => Some(FailureKind::ContextFull),
        "serverOverloaded" | "flexUnavailable" | "policyCapacityUnavailable" | "internalServerError" => {
            Some(FailureKind::Overload)
        }
        "unauthorized" => Some(FailureKind::Auth),
        "badRequest" | "modelNotFound" => Some(FailureKind::Request),
        "cyberPolicy" | "misalignmentPolicyViolation" => Some(FailureKind::Refusal),
        _ => None,
    }
}

/// Translates an error after which Codex retries: "Reconnecting... 2/5".
pub(super) fn retry(error: &Value) -> Retry {
    let words = string(&error["message"]).split_whitespace();
    let counts = words
        .filter_map(|word| word.split_once('/'))
        .find_map(|(attempt, most)| Some((attempt.parse::<u32>().ok()?, most.parse::<u32>().ok()?)));
    let (attempt, max_attempts) = counts.unwrap_or((0, 0));
    Retry { attempt, max_attempts, delay_ms: None, failure: failure(error) }
}

/// Translates the account's limit windows: the fullest one counts. Returns `None` if the update names no window.
pub(super) fn limit(limits: &Value) -> Option<LimitNotice> {
    let reached = !limits["rateLimitReachedType"].is_null() || limits["spendControlReached"] == true;
    let windows = ["primary", "secondary"].into_iter().filter(|name| limits[*name].is_object());
    let used = |name: &str| limits[name]["usedPercent"].as_f64().unwrap_or(0.0);
    let fullest = windows.max_by(|a, b| used(a).total_cmp(&used(b)))?;
    Some(LimitNotice {
        rejected: reached,
        resets: limits[fullest]["resetsAt"].as_i64().map(Reset::At),
        window: fullest.to_owned(),
        used_percent: Some(used(fullest)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_kinds() {
        let rows = [
            (json!({"message": "x", "codexErrorInfo": "usageLimitExceeded"}), FailureKind::Limit),
            (
                json!({"message": "x", "codexErrorInfo": {"httpConnectionFailed": {"httpStatusCode": 401}}}),
                FailureKind::Auth,
            ),
            (
                json!({"message": "x", "codexErrorInfo": {"responseStreamDisconnected": {}}}),
                FailureKind::Overload,
            ),
            (
                json!({"message": "Incomplete response returned, reason: max_output_tokens", "codexErrorInfo": "other"}),
                FailureKind::MaxTokens,
            ),
            (json!({"message": "x"}), FailureKind::Other),
            (json!({"message": "x", "codexErrorInfo": {}}), FailureKind::Other),
            (Value::Null, FailureKind::Other),
        ];
        for (error, kind) in rows {
            assert_eq!(failure(&error).kind, kind, "{error}");
        }
        let retry = retry(
            &json!({"message": "Reconnecting... 2/5", "codexErrorInfo": {"responseStreamDisconnected": {"httpStatusCode": 401}}}),
        );
        assert_eq!((retry.attempt, retry.max_attempts, retry.failure.kind), (2, 5, FailureKind::Auth));
    }

    #[test]
    fn the_fullest_window_counts() {
        let limits = json!({"primary": {"usedPercent": 100, "resetsAt": 7}, "secondary": {"usedPercent": 30, "resetsAt": 9}});
        let notice = limit(&limits).expect("a notice");
        assert_eq!(
            (notice.window.as_str(), notice.resets, notice.rejected),
            ("primary", Some(Reset::At(7)), false)
        );
        assert_eq!(limit(&json!({"limitId": "codex"})), None);
    }

    #[test]
    fn tool_calls_of_all_kinds() {
        let command = json!({"type": "commandExecution", "id": "c", "command": "/bin/bash -lc 'ls'", "cwd": "/wt",
            "commandActions": [{"command": "ls"}], "status": "completed", "exitCode": 2, "aggregatedOutput": "no"});
        let call = tool_call(&command).expect("a call");
        assert_eq!((call.name.as_str(), call.title.as_str()), ("commandExecution", "ls"));
        assert_eq!(
            tool_result(command),
            ToolResult { id: "c".to_owned(), status: ToolStatus::Failed, output: "no".to_owned() }
        );
        let mcp = json!({"type": "mcpToolCall", "id": "m", "server": "sprag", "tool": "note", "arguments": {"a": 1},
            "status": "completed", "result": {"content": [{"type": "text", "text": "ok"}]}});
        assert_eq!(tool_call(&mcp).expect("a call").name, "sprag.note");
        assert_eq!(tool_result(mcp).output, "ok");
        assert_eq!(tool_call(&json!({"type": "agentMessage"})), None);
        assert_eq!(tool_result(json!({"type": "mcpToolCall", "error": "text"})).output, "");
    }
}
