//! Claude Code's `result`: the end of a turn, and the many cases in which a reported success is none.

use serde_json::Value;

use crate::failure::{Failure, FailureKind};
use crate::state::{number, string, usage_of};
use crate::text::classify_error;
use crate::turn::{Reported, ReportedEnd};
use crate::usage::Usage;

/// Translates a `result`. `hint` is the error of the previous message, if that was one.
pub(super) fn reported(mut result: Value, hint: Option<&Failure>) -> Reported {
    let terminal = string(&result["terminal_reason"]);
    let end = if terminal.starts_with("aborted") {
        // This also happens with `subtype: success` and `is_error: false`, when a message with priority replaced the
        // turn.
        ReportedEnd::Interrupted
    } else if result["is_error"] == true || result["subtype"] != "success" {
        ReportedEnd::Failed(failure(&result, hint))
    } else {
        ReportedEnd::Completed
    };
    let reason = if terminal.is_empty() { string(&result["subtype"]) } else { terminal }.to_owned();
    let is_failed = matches!(end, ReportedEnd::Failed(_));
    let text = result["result"].as_str().filter(|_| !is_failed).map(str::to_owned);
    let output = result.get_mut("structured_output").map(Value::take).filter(|output| !output.is_null());
    let denied_calls = result["permission_denials"].as_array().map(|denied| denied.len() as u32);
    Reported { end, reason, text, output, denied_calls, raw: result }
}

fn failure(result: &Value, hint: Option<&Failure>) -> Failure {
    let said = error_text(result);
    let by_text = classify_error(&said);
    let typed = match string(&result["subtype"]) {
        "error_max_turns" => Some(FailureKind::MaxTurns),
        "error_max_budget_usd" => Some(FailureKind::Budget),
        "error_max_structured_output_retries" => Some(FailureKind::SchemaNotMet),
        _ => None,
    };
    let typed = typed.or_else(|| match string(&result["stop_reason"]) {
        "refusal" => Some(FailureKind::Refusal),
        _ => None,
    });
    let typed = typed.or_else(|| error_kind(string(&result["api_error"])));
    let typed = typed.or_else(|| error_kind(string(&result["api_error_type"])));
    let typed = typed.or_else(|| FailureKind::of_http_status(number(&result["api_error_status"])));
    let kind = typed.or(hint.map(|hint| hint.kind)).unwrap_or(by_text.kind);
    // Invalid requests have many names; the text identifies a full context.
    let kind = if kind == FailureKind::Request && by_text.kind == FailureKind::ContextFull {
        by_text.kind
    } else {
        kind
    };
    let resets = by_text.resets.or(hint.and_then(|hint| hint.resets));
    Failure::new(kind, by_text.message).resets(resets.filter(|_| kind == FailureKind::Limit))
}

/// Returns the text of an error: the result's text, or its list of errors.
pub(super) fn error_text(result: &Value) -> String {
    let errors = result["errors"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let text: Vec<&str> =
        result["result"].as_str().into_iter().chain(errors).filter(|text| !text.is_empty()).collect();
    if text.is_empty() {
        format!("Claude Code reported {}", string(&result["subtype"]))
    } else {
        text.join("; ")
    }
}

/// Maps the name in `error`, `api_error` or `api_error_type` to a kind of failure.
pub(super) fn error_kind(name: &str) -> Option<FailureKind> {
    match name {
        "authentication_failed" | "authentication_error" | "permission_error" | "oauth_org_not_allowed" => {
            Some(FailureKind::Auth)
        }
        "rate_limit" | "rate_limit_error" | "usage_limit_reached" | "billing_error" => {
            Some(FailureKind::Limit)
        }
        "overloaded" | "overloaded_error" | "server_error" | "api_error" | "timeout_error" => {
            Some(FailureKind::Overload)
        }
        "max_output_tokens" => Some(FailureKind::MaxTokens),
        "request_too_large" | "prompt_too_long" => Some(FailureKind::ContextFull),
        "invalid_request" | "invalid_request_error" | "not_found_error" | "model_not_found" => {
            Some(FailureKind::Request)
        }
        _ => None,
    }
}

/// Returns the usage of one API response. `input_tokens` counts only tokens that were not cached.
pub(super) fn usage_of_request(usage: &Value) -> Usage {
    let cached = number(&usage["cache_read_input_tokens"]);
    let written = number(&usage["cache_creation_input_tokens"]);
    let thinking = number(&usage["output_tokens_details"]["thinking_tokens"]);
    let input = number(&usage["input_tokens"]).saturating_add(cached).saturating_add(written);
    usage_of(input, cached, written, number(&usage["output_tokens"]), thinking)
}

/// Returns the total usage of all models, or `None` if the list is empty.
pub(super) fn usage_of_models(models: &Value) -> Option<Usage> {
    let models = models.as_object()?;
    let sum = models.values().fold(Usage::default(), |sum, model| {
        let cached = number(&model["cacheReadInputTokens"]);
        let written = number(&model["cacheCreationInputTokens"]);
        let input = number(&model["inputTokens"]).saturating_add(cached).saturating_add(written);
        let one = usage_of(
            input,
            cached,
            written,
            number(&model["outputTokens"]),
            number(&model["thinkingTokens"]),
        );
        sum.plus(&Usage { cost_usd: model["costUSD"].as_f64(), ..one })
    });
    Some(sum)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn failed(result: Value) -> FailureKind {
        match reported(result, None).end {
            ReportedEnd::Failed(failure) => failure.kind,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn t02_a_success_that_is_an_error_or_an_abort_is_none() {
        let ok = json!({"subtype": "success", "is_error": false, "terminal_reason": "completed", "result": "Done."});
        assert!(matches!(reported(ok, None).end, ReportedEnd::Completed));
        let replaced = json!({"subtype": "success", "is_error": false, "terminal_reason": "aborted_tools", "result": ""});
        assert!(matches!(reported(replaced, None).end, ReportedEnd::Interrupted));
        let auth = json!({"subtype": "success", "is_error": true, "api_error_status": 401, "result": "Invalid API key"});
        assert_eq!(failed(auth), FailureKind::Auth);
        let turns = json!({"subtype": "error_max_turns", "is_error": false});
        assert_eq!(failed(turns), FailureKind::MaxTurns);
        let refusal = json!({"subtype": "success", "is_error": true, "stop_reason": "refusal", "result": "API Error: …"});
        assert_eq!(failed(refusal), FailureKind::Refusal);
        let lost = json!({"subtype": "error_during_execution", "is_error": true, "errors": ["No conversation found with session ID: x"]});
        assert_eq!(failed(lost), FailureKind::SessionUnknown);
        assert_eq!(failed(json!({})), FailureKind::Other);
    }

    #[test]
    fn the_error_of_the_message_before_counts_if_the_result_names_none() {
        let hint = Failure::new(FailureKind::Auth, "Not logged in");
        let result = json!({"subtype": "success", "is_error": true, "api_error_status": null, "result": "Please run it"});
        let ReportedEnd::Failed(failure) = reported(result, Some(&hint)).end else { panic!("it failed") };
        assert_eq!(failure.kind, FailureKind::Auth);
    }

    #[test]
    fn figures_of_several_models_are_added() {
        let models = json!({"a": {"inputTokens": 10, "cacheReadInputTokens": 5, "outputTokens": 2, "costUSD": 0.5},
            "b": {"inputTokens": 1, "outputTokens": 1, "costUSD": 0.25}});
        let usage = usage_of_models(&models).expect("figures");
        assert_eq!((usage.input_tokens, usage.cached_input_tokens, usage.output_tokens), (16, 5, 3));
        assert_eq!(usage.cost_usd, Some(0.75));
        assert_eq!(usage_of_models(&Value::Null), None);
    }
}
