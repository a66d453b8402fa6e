//! A common form for the requests of three dialects.

use serde_json::Value;

/// The API that a request was made to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Api {
    /// Anthropic Messages.
    #[default]
    Anthropic,
    /// OpenAI Responses.
    Responses,
    /// Gemini `generateContent`.
    Gemini,
}

/// A part of the conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// A text of the user, or of the agent program in the user's name.
    User(String),
    /// A further instruction between the messages. Claude Code puts messages here that arrive in the middle of a turn.
    System(String),
    /// A text of the model.
    Assistant(String),
    /// A tool call of the model.
    Call {
        /// The tool's name.
        name: String,
        /// The tool's input.
        input: Value,
    },
    /// The result of a tool call.
    Result(String),
}

/// A request for an answer of the model.
#[derive(Debug, Clone, Default)]
pub struct ModelRequest {
    /// The API of the request.
    pub api: Api,
    /// The requested model.
    pub model: String,
    /// The key or token of the request, without the word `Bearer`.
    pub key: String,
    /// The system prompt.
    pub system: String,
    /// The names of the declared tools.
    pub tools: Vec<String>,
    /// The conversation so far, in order.
    pub parts: Vec<Part>,
    /// Whether the client wants server-sent events.
    pub stream: bool,
    /// The unchanged body.
    pub body: Value,
}

impl ModelRequest {
    /// Returns the last text of the user.
    pub fn prompt(&self) -> &str {
        let texts = self.parts.iter().rev().filter_map(|part| match part {
            Part::User(text) => Some(text.as_str()),
            _ => None,
        });
        texts.into_iter().next().unwrap_or("")
    }

    /// Returns the number of answers that the model has given after the part at `at`: sequences of texts and calls.
    pub(super) fn answers_after(&self, at: usize) -> usize {
        let mut answers = 0;
        let mut inside = false;
        for part in self.parts.iter().skip(at) {
            let is_answer = matches!(part, Part::Assistant(_) | Part::Call { .. });
            answers += usize::from(is_answer && !inside);
            inside = is_answer;
        }
        answers
    }

    /// Returns the declared tool that runs shell commands, and its input for `command`.
    pub(super) fn shell_call(&self, command: &str) -> (String, Value) {
        use serde_json::json;
        let has = |name: &str| self.tools.iter().any(|tool| tool == name);
        let call = |name: &str, input: Value| (name.to_owned(), input);
        if has("exec_command") {
            call("exec_command", json!({"cmd": command, "yield_time_ms": 30_000}))
        } else if has("shell_command") {
            call("shell_command", json!({"command": command}))
        } else if has("shell") {
            call("shell", json!({"command": ["sh", "-c", command]}))
        } else if has("run_shell_command") {
            call(
                "run_shell_command",
                json!({"command": command, "description": "Run", "is_background": false}),
            )
        } else if has("bash") {
            call("bash", json!({"command": command, "description": "Run"}))
        } else {
            call("Bash", json!({"command": command, "description": "Run"}))
        }
    }

    /// Parses the body of a request to `path`. Returns `None` if it does not ask for an answer.
    pub(super) fn read(path: &str, key: String, body: Value) -> Option<ModelRequest> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let mut request = if path.ends_with("/messages") {
            anthropic(&body)
        } else if path.ends_with("/responses") {
            responses(&body)
        } else if let Some((model, verb)) = path.rsplit('/').next().and_then(|last| last.split_once(':')) {
            let stream = match verb {
                "generateContent" => false,
                "streamGenerateContent" => true,
                _ => return None,
            };
            ModelRequest { model: model.to_owned(), stream, ..gemini(&body) }
        } else {
            return None;
        };
        request.key = if key.is_empty() { query_key(query) } else { key };
        request.body = body;
        Some(request)
    }
}

fn query_key(query: &str) -> String {
    query.split('&').find_map(|pair| pair.strip_prefix("key=")).unwrap_or("").to_owned()
}

/// Returns the names of tools, including those inside namespaces.
fn names<'a>(tools: impl Iterator<Item = &'a Value>) -> Vec<String> {
    let mut found = Vec::new();
    for tool in tools {
        found.extend(tool["name"].as_str().or(tool["type"].as_str()).map(str::to_owned));
        found.extend(list(&tool["tools"]).filter_map(|inner| inner["name"].as_str()).map(str::to_owned));
    }
    found
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Joins the texts of a value that is a text or a list of blocks with texts.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            blocks.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

fn anthropic(body: &Value) -> ModelRequest {
    let mut parts = Vec::new();
    for message in list(&body["messages"]) {
        let said: fn(String) -> Part = match message["role"].as_str() {
            Some("user") => Part::User,
            Some("assistant") => Part::Assistant,
            _ => Part::System,
        };
        if let Some(text) = message["content"].as_str() {
            parts.push(said(text.to_owned()));
        }
        for block in list(&message["content"]) {
            match block["type"].as_str() {
                Some("text") => parts.push(said(text_of(&block["text"]))),
                Some("tool_use") => parts.push(Part::Call {
                    name: block["name"].as_str().unwrap_or("").to_owned(),
                    input: block["input"].clone(),
                }),
                Some("tool_result") => parts.push(Part::Result(text_of(&block["content"]))),
                _ => {}
            }
        }
    }
    ModelRequest {
        api: Api::Anthropic,
        model: body["model"].as_str().unwrap_or("").to_owned(),
        system: text_of(&body["system"]),
        tools: names(list(&body["tools"])),
        parts,
        stream: body["stream"] == true,
        ..ModelRequest::default()
    }
}

fn responses(body: &Value) -> ModelRequest {
    let mut parts = Vec::new();
    let mut tools = names(list(&body["tools"]));
    if let Some(text) = body["input"].as_str() {
        parts.push(Part::User(text.to_owned()));
    }
    for item in list(&body["input"]) {
        match item["type"].as_str().unwrap_or("message") {
            "message" => {
                let text = text_of(&item["content"]);
                match item["role"].as_str() {
                    Some("user") => parts.push(Part::User(text)),
                    Some("assistant") => parts.push(Part::Assistant(text)),
                    _ => {}
                }
            }
            // Codex declares the tools of newer models as an item of the conversation.
            "additional_tools" => tools.extend(names(list(&item["tools"]))),
            "function_call" | "custom_tool_call" | "local_shell_call" => parts.push(Part::Call {
                name: item["name"].as_str().unwrap_or("").to_owned(),
                input: item["arguments"].clone(),
            }),
            "function_call_output" | "custom_tool_call_output" => {
                parts.push(Part::Result(text_of(&item["output"])))
            }
            _ => {}
        }
    }
    ModelRequest {
        api: Api::Responses,
        model: body["model"].as_str().unwrap_or("").to_owned(),
        system: text_of(&body["instructions"]),
        tools,
        parts,
        stream: body["stream"] == true,
        ..ModelRequest::default()
    }
}

fn gemini(body: &Value) -> ModelRequest {
    let mut parts = Vec::new();
    for content in list(&body["contents"]) {
        let by_model = content["role"] == "model";
        for part in list(&content["parts"]) {
            if let Some(text) = part["text"].as_str() {
                let text = text.to_owned();
                parts.push(if by_model { Part::Assistant(text) } else { Part::User(text) });
            } else if let Some(call) = part.get("functionCall") {
                let name = call["name"].as_str().unwrap_or("").to_owned();
                parts.push(Part::Call { name, input: call["args"].clone() });
            } else if let Some(result) = part.get("functionResponse") {
                parts.push(Part::Result(result["response"].to_string()));
            }
        }
    }
    let declared = list(&body["tools"]).flat_map(|tool| list(&tool["functionDeclarations"]));
    ModelRequest {
        api: Api::Gemini,
        system: text_of(&body["systemInstruction"]["parts"]),
        tools: names(declared),
        parts,
        ..ModelRequest::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(path: &str, body: Value) -> ModelRequest {
        ModelRequest::read(path, String::new(), body).expect("a request for an answer")
    }

    #[test]
    fn three_dialects_have_one_form() {
        let conversation = vec![
            Part::User("do it".to_owned()),
            Part::Call { name: "shell".to_owned(), input: json!({"command": "ls"}) },
            Part::Result("a b".to_owned()),
            Part::Assistant("done".to_owned()),
        ];
        let anthropic = read(
            "/v1/messages?beta=true",
            json!({"model": "m", "stream": true, "system": [{"type": "text", "text": "s"}], "tools": [{"name": "shell"}],
                "messages": [{"role": "user", "content": "do it"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "shell", "input": {"command": "ls"}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "a b"}]},
                {"role": "assistant", "content": [{"type": "text", "text": "done"}]}]}),
        );
        assert_eq!(anthropic.parts, conversation);
        assert_eq!((anthropic.system.as_str(), anthropic.stream, anthropic.answers_after(0)), ("s", true, 2));
        let gemini = read(
            "/v1beta/models/g-1:streamGenerateContent?alt=sse&key=k",
            json!({"systemInstruction": {"parts": [{"text": "s"}]}, "tools": [{"functionDeclarations": [{"name": "shell"}]}],
                "contents": [{"role": "user", "parts": [{"text": "do it"}]},
                {"role": "model", "parts": [{"functionCall": {"name": "shell", "args": {"command": "ls"}}}]},
                {"role": "user", "parts": [{"functionResponse": {"response": {"output": "a b"}}}]},
                {"role": "model", "parts": [{"text": "done"}]}]}),
        );
        assert_eq!((gemini.model.as_str(), gemini.key.as_str()), ("g-1", "k"));
        assert_eq!(gemini.parts.len(), conversation.len());
        let responses = read(
            "/v1/responses",
            json!({"model": "m", "instructions": "s", "tools": [{"type": "function", "name": "shell"}], "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "do it"}]},
                {"type": "function_call", "name": "shell", "arguments": {"command": "ls"}, "call_id": "c"},
                {"type": "function_call_output", "call_id": "c", "output": "a b"},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}]}),
        );
        assert_eq!(responses.parts, conversation);
        assert_eq!(responses.prompt(), "do it");
        assert!(ModelRequest::read("/v1/models", String::new(), Value::Null).is_none());
    }
}
