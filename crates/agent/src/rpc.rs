//! JSON-RPC 2.0 over lines, as Codex's app server and ACP agents speak it: request ids, and the four forms of a
//! message.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::state::take;

/// JSON-RPC's code for an unknown method.
pub(crate) const METHOD_NOT_FOUND: i64 = -32601;
/// ACP's code for an agent that is not logged in.
pub(crate) const AUTH_REQUIRED: i64 = -32000;

/// A message, classified by its fields.
#[derive(Debug, PartialEq)]
pub(crate) enum Message {
    /// An answer to a request of the driver.
    Answer { id: u64, result: Result<Value, RpcError> },
    /// A request that needs an answer with the same id.
    Request { id: Value, method: String, params: Value },
    /// A notification.
    Notification { method: String, params: Value },
    /// Any other message.
    Other(Value),
}

/// The error of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RpcError {
    pub(crate) code: i64,
    pub(crate) message: String,
    pub(crate) data: Value,
}

impl RpcError {
    /// Returns the whole error in one line.
    pub(crate) fn text(&self) -> String {
        let details = match &self.data {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            data => data["details"]
                .as_str()
                .or(data["message"].as_str())
                .map_or_else(|| data.to_string(), str::to_owned),
        };
        [self.message.as_str(), details.as_str()]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(": ")
    }
}

/// Classifies a message.
pub(crate) fn read(mut message: Value) -> Message {
    let method = message.get("method").and_then(Value::as_str).map(str::to_owned);
    let id = message.get("id").cloned();
    match (method, id) {
        (Some(method), None | Some(Value::Null)) => {
            Message::Notification { method, params: take(&mut message, "params") }
        }
        (Some(method), Some(id)) => Message::Request { id, method, params: take(&mut message, "params") },
        (None, Some(id)) => {
            let Some(id) = id.as_u64() else { return Message::Other(message) };
            if let Some(error) = message.get("error").filter(|error| !error.is_null()) {
                let error = RpcError {
                    code: error["code"].as_i64().unwrap_or(0),
                    message: error["message"].as_str().unwrap_or("unknown error").to_owned(),
                    data: error.get("data").cloned().unwrap_or(Value::Null),
                };
                Message::Answer { id, result: Err(error) }
            } else if message.get("result").is_some() {
                Message::Answer { id, result: Ok(take(&mut message, "result")) }
            } else {
                Message::Other(message)
            }
        }
        (None, None) => Message::Other(message),
    }
}

/// The driver's requests that wait for an answer, each with its purpose.
#[derive(Debug)]
pub(crate) struct Pending<Purpose> {
    next: u64,
    open: BTreeMap<u64, Purpose>,
    /// Whether messages contain the protocol's version, which Codex omits.
    with_version: bool,
}

impl<Purpose> Pending<Purpose> {
    pub(crate) fn new(with_version: bool) -> Pending<Purpose> {
        Pending { next: 1, open: BTreeMap::new(), with_version }
    }

    /// Returns the message of a new request.
    pub(crate) fn request(&mut self, method: &str, params: Value, purpose: Purpose) -> Value {
        let id = self.next;
        self.next += 1;
        self.open.insert(id, purpose);
        self.versioned(json!({"id": id, "method": method, "params": params}))
    }

    pub(crate) fn notification(&self, method: &str, params: Value) -> Value {
        match params {
            Value::Null => self.versioned(json!({"method": method})),
            params => self.versioned(json!({"method": method, "params": params})),
        }
    }

    pub(crate) fn answer(&self, id: &Value, result: Value) -> Value {
        self.versioned(json!({"id": id, "result": result}))
    }

    pub(crate) fn refuse(&self, id: &Value, code: i64, message: &str) -> Value {
        self.versioned(json!({"id": id, "error": {"code": code, "message": message}}))
    }

    /// Returns the purpose of the request with this id; `None` if it was already answered or never sent.
    pub(crate) fn take(&mut self, id: u64) -> Option<Purpose> {
        self.open.remove(&id)
    }

    fn versioned(&self, mut message: Value) -> Value {
        if self.with_version {
            message["jsonrpc"] = json!("2.0");
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_forms_are_distinguished() {
        assert_eq!(read(json!({"id": 1, "result": {}})), Message::Answer { id: 1, result: Ok(json!({})) });
        assert_eq!(
            read(json!({"id": 1, "result": null})),
            Message::Answer { id: 1, result: Ok(Value::Null) }
        );
        let error = RpcError { code: -1, message: "no".to_owned(), data: json!({"details": "why"}) };
        assert_eq!(error.text(), "no: why");
        let message = json!({"id": 1, "error": {"code": -1, "message": "no", "data": {"details": "why"}}});
        assert_eq!(read(message), Message::Answer { id: 1, result: Err(error) });
        let request = read(json!({"id": "x", "method": "m", "params": {"a": 1}}));
        assert_eq!(
            request,
            Message::Request { id: json!("x"), method: "m".to_owned(), params: json!({"a": 1}) }
        );
        assert_eq!(
            read(json!({"method": "m"})),
            Message::Notification { method: "m".to_owned(), params: Value::Null }
        );
        for other in [json!({}), json!({"id": "x", "result": 1}), json!({"id": 7}), json!([1]), json!(3)] {
            assert_eq!(read(other.clone()), Message::Other(other));
        }
    }

    #[test]
    fn an_answer_is_taken_once() {
        let mut pending = Pending::new(true);
        let line = pending.request("initialize", json!({}), "start");
        assert_eq!(line, json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}));
        assert_eq!(pending.take(1), Some("start"));
        assert_eq!(pending.take(1), None);
        assert_eq!(pending.take(99), None);
    }
}
