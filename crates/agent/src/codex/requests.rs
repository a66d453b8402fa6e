//! Codex's own requests: approvals that the caller answers, and all others, which the driver answers at once.

use serde_json::{Value, json};

use super::items::command_of;
use crate::conversation::Answer;
use crate::event::PermissionRequest;
use crate::state::string;
use crate::text::shorten;

/// An approval that waits for an answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Approval {
    /// The JSON-RPC id, unchanged.
    pub(super) id: Value,
    form: Form,
}

/// The form of the answer.
#[derive(Debug, Clone, PartialEq)]
enum Form {
    Decision,
    /// The permissions that Codex asked for.
    Permissions(Value),
    Elicitation,
}

/// Returns the id under which the caller answers a request.
pub(super) fn request_name(id: &Value) -> String {
    match id {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Translates an approval request; returns `None` for other methods. `item` is the input of the item that it concerns.
pub(super) fn approval(
    id: &Value,
    method: &str,
    params: Value,
    item: Option<&Value>,
) -> Option<(Approval, PermissionRequest)> {
    let (form, tool, title, input) = match method {
        "item/commandExecution/requestApproval" => {
            let command = command_of(&params).to_owned();
            let input = json!({"command": command, "cwd": params["cwd"]});
            (Form::Decision, "commandExecution".to_owned(), command, input)
        }
        "item/fileChange/requestApproval" => {
            let input = item.cloned().unwrap_or_else(|| json!({"item": params["itemId"]}));
            let paths =
                input["changes"].as_array().into_iter().flatten().map(|change| string(&change["path"]));
            (Form::Decision, "fileChange".to_owned(), paths.collect::<Vec<_>>().join(", "), input)
        }
        "item/permissions/requestApproval" => {
            let wanted = params["permissions"].clone();
            (
                Form::Permissions(wanted.clone()),
                "permissions".to_owned(),
                string(&params["reason"]).to_owned(),
                wanted,
            )
        }
        "mcpServer/elicitation/request" => {
            let title = string(&params["message"]).to_owned();
            let input = json!({"message": title, "meta": params["_meta"]});
            (Form::Elicitation, format!("mcp:{}", string(&params["serverName"])), title, input)
        }
        _ => return None,
    };
    let request = PermissionRequest {
        request: request_name(id),
        tool,
        input,
        title: shorten(&title),
        reason: params["reason"].as_str().map(str::to_owned),
        call: params["itemId"].as_str().map(str::to_owned),
        raw: params,
    };
    Some((Approval { id: id.clone(), form }, request))
}

/// Returns the result for an answer.
pub(super) fn result(approval: &Approval, answer: &Answer) -> Value {
    let allow = *answer == Answer::Allow;
    match &approval.form {
        Form::Decision => json!({"decision": if allow { "accept" } else { "decline" }}),
        Form::Permissions(wanted) if allow => json!({"permissions": wanted, "scope": "turn"}),
        Form::Permissions(_) => json!({"permissions": {}}),
        Form::Elicitation if allow => json!({"action": "accept", "content": {}}),
        Form::Elicitation => json!({"action": "decline"}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_approval_is_answered_in_its_own_form() {
        let deny = Answer::Deny { message: "no".to_owned() };
        let rows = [
            (
                "item/commandExecution/requestApproval",
                json!({"command": "sh -c ls", "cwd": "/wt", "itemId": "c"}),
                json!({"decision": "accept"}),
                json!({"decision": "decline"}),
            ),
            (
                "item/permissions/requestApproval",
                json!({"permissions": {"network": {"enabled": true}}}),
                json!({"permissions": {"network": {"enabled": true}}, "scope": "turn"}),
                json!({"permissions": {}}),
            ),
            (
                "mcpServer/elicitation/request",
                json!({"serverName": "s", "message": "ok?"}),
                json!({"action": "accept", "content": {}}),
                json!({"action": "decline"}),
            ),
        ];
        for (method, params, yes, no) in rows {
            let (waiting, request) = approval(&json!(0), method, params, None).expect(method);
            assert_eq!(request.request, "0");
            assert_eq!(result(&waiting, &Answer::Allow), yes);
            assert_eq!(result(&waiting, &deny), no);
        }
        assert!(approval(&json!(0), "account/chatgptAuthTokens/refresh", json!({}), None).is_none());
    }

    #[test]
    fn t05_a_file_change_is_known_by_its_content() {
        let changes = json!({"changes": [{"path": "a.rs", "diff": "+x"}]});
        let ask = |item: &str| {
            let params = json!({"itemId": item});
            approval(&json!(0), "item/fileChange/requestApproval", params, Some(&changes))
                .expect("an approval")
                .1
        };
        assert_eq!(ask("first").key(), ask("second").key());
        assert_eq!(ask("first").title, "a.rs");
    }
}
