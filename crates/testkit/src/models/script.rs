//! The answers of the stand-in: scenes that a prompt selects, and one reply per answer of the model.

use serde_json::{Value, json};

use super::request::{ModelRequest, Part};

/// One answer of the model.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// A text that ends the turn.
    Text(String),
    /// A text, then a call of the agent's own shell tool with this command.
    Shell {
        /// The text before the call; empty for none.
        say: String,
        /// The command.
        command: String,
    },
    /// A call of the tool with this name.
    Tool {
        /// The name as the agent declares it.
        name: String,
        /// The input.
        input: Value,
    },
    /// Structured output: through the agent's tool for it if it declares one, otherwise as text.
    Output(Value),
    /// No content at all.
    Empty,
    /// The model declines to answer.
    Refusal,
    /// The model reaches its token limit in the middle of this text.
    CutOff(String),
    /// An HTTP error.
    Failure(Failure),
    /// A failure of the first requests of each conversation step, then another reply.
    Flaky {
        /// The number of requests that fail.
        times: u32,
        /// The failure of these requests.
        failure: Failure,
        /// The reply to later requests.
        then: Box<Reply>,
    },
    /// No answer until the client hangs up or the server is dropped.
    Hang,
}

/// An HTTP error in the form of each vendor's API.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Failure {
    /// 401.
    Unauthorized,
    /// 429: the account's usage limit is reached until this time (seconds since 1970).
    UsageLimit {
        /// The time at which the limit is reset.
        resets_at: i64,
    },
    /// 429: too many requests at the moment.
    RateLimit,
    /// 500.
    ServerError,
    /// 529 (Anthropic), 503 elsewhere.
    Overloaded,
}

impl Reply {
    /// Returns a text reply that ends the turn.
    pub fn text(text: impl Into<String>) -> Reply {
        Reply::Text(text.into())
    }

    /// Returns a reply that calls the agent's shell tool.
    pub fn shell(command: impl Into<String>) -> Reply {
        Reply::Shell { say: String::new(), command: command.into() }
    }

    /// Returns a reply that fails `times` times for each step of a conversation before it succeeds.
    pub fn flaky(times: u32, failure: Failure, then: Reply) -> Reply {
        Reply::Flaky { times, failure, then: Box::new(then) }
    }
}

/// Scenes with their replies.
#[derive(Debug, Clone, Default)]
pub struct Script {
    scenes: Vec<(String, Vec<Reply>)>,
    otherwise: Vec<Reply>,
}

impl Script {
    /// Returns a script that answers every prompt with "Done.".
    pub fn new() -> Script {
        Script { scenes: Vec::new(), otherwise: vec![Reply::text("Done.")] }
    }

    /// Adds a scene: prompts that contain `trigger` get these replies in order, and then the last one again.
    pub fn scene(mut self, trigger: &str, replies: impl IntoIterator<Item = Reply>) -> Script {
        self.scenes.push((trigger.to_owned(), replies.into_iter().collect()));
        self
    }

    /// Sets the replies to prompts that select no scene.
    pub fn otherwise(mut self, replies: impl IntoIterator<Item = Reply>) -> Script {
        self.otherwise = replies.into_iter().collect();
        self
    }

    /// Returns the reply to a request, and a key that is equal for retries of the same request.
    pub(super) fn reply(&self, request: &ModelRequest) -> (Reply, String) {
        // Requests without tools ask for titles, topics or classifications; they are not part of the conversation.
        if request.tools.is_empty() {
            return (Reply::text("A title"), "side".to_owned());
        }
        let parts = &request.parts;
        let found = parts.iter().enumerate().rev().find_map(|(at, part)| {
            let (Part::User(text) | Part::System(text)) = part else { return None };
            let scene = self.scenes.iter().rev().find(|(trigger, _)| text.contains(trigger.as_str()))?;
            Some((at, scene.0.as_str(), &scene.1))
        });
        let last_prompt = || parts.iter().rposition(|part| matches!(part, Part::User(_))).unwrap_or(0);
        let (at, name, replies) = found.unwrap_or_else(|| (last_prompt(), "", &self.otherwise));
        let step = request.answers_after(at);
        let reply = replies.get(step).or(replies.last()).cloned().unwrap_or(Reply::Empty);
        (reply, format!("{name}#{at}#{step}"))
    }

    /// Reads a script from JSON: `{"scenes": {"trigger": [reply, …]}, "otherwise": [reply, …]}`. A reply is a text, or an object
    /// with one of the keys `text`, `shell`, `tool` and `input`, `output`, `fail`, `hang`, `empty`, `refusal`, `cut_off`.
    pub fn from_json(value: &Value) -> Result<Script, String> {
        let replies = |list: &Value| -> Result<Vec<Reply>, String> {
            list.as_array()
                .ok_or_else(|| format!("not a list: {list}"))?
                .iter()
                .map(reply_from_json)
                .collect()
        };
        let mut script = Script::new();
        for (trigger, list) in value["scenes"].as_object().into_iter().flatten() {
            script = script.scene(trigger, replies(list)?);
        }
        match &value["otherwise"] {
            Value::Null => Ok(script),
            list => Ok(script.otherwise(replies(list)?)),
        }
    }
}

fn reply_from_json(value: &Value) -> Result<Reply, String> {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    if let Some(said) = value.as_str().map(str::to_owned).or_else(|| text("text")) {
        return Ok(Reply::Text(said));
    }
    if let Some(command) = text("shell") {
        return Ok(Reply::Shell { say: text("say").unwrap_or_default(), command });
    }
    if let Some(name) = text("tool") {
        return Ok(Reply::Tool { name, input: value.get("input").cloned().unwrap_or_else(|| json!({})) });
    }
    if let Some(output) = value.get("output") {
        return Ok(Reply::Output(output.clone()));
    }
    if let Some(cut) = text("cut_off") {
        return Ok(Reply::CutOff(cut));
    }
    if let Some(failure) = text("fail") {
        let failure = match failure.as_str() {
            "401" => Failure::Unauthorized,
            "429" => Failure::RateLimit,
            "500" => Failure::ServerError,
            "529" => Failure::Overloaded,
            "limit" => Failure::UsageLimit { resets_at: value["resets_at"].as_i64().unwrap_or(0) },
            other => return Err(format!("fail: {other}: want 401, 429, 500, 529 or limit")),
        };
        return Ok(match value["times"].as_u64() {
            Some(times) => Reply::flaky(times as u32, failure, reply_from_json(&value["then"])?),
            None => Reply::Failure(failure),
        });
    }
    for (key, reply) in [("hang", Reply::Hang), ("empty", Reply::Empty), ("refusal", Reply::Refusal)] {
        if value.get(key).is_some() {
            return Ok(reply);
        }
    }
    Err(format!("not a reply: {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::request::Api;

    fn request(parts: Vec<Part>) -> ModelRequest {
        ModelRequest { api: Api::Anthropic, tools: vec!["Bash".to_owned()], parts, ..ModelRequest::default() }
    }

    #[test]
    fn a_scene_is_found_by_the_conversation_and_counts_the_answers_after_its_prompt() {
        let script = Script::new().scene("build", [Reply::shell("make"), Reply::text("built")]);
        let mut parts = vec![Part::User("please build it".to_owned())];
        assert_eq!(script.reply(&request(parts.clone())).0, Reply::shell("make"));
        parts.push(Part::Call { name: "Bash".to_owned(), input: Value::Null });
        parts.push(Part::Result("ok".to_owned()));
        assert_eq!(script.reply(&request(parts.clone())).0, Reply::text("built"));
        parts.push(Part::Assistant("built".to_owned()));
        parts.push(Part::User("build again".to_owned()));
        assert_eq!(script.reply(&request(parts.clone())).0, Reply::shell("make"));
        parts.push(Part::User("something else".to_owned()));
        assert_eq!(script.reply(&request(parts)).0, Reply::shell("make"), "the latest scene stays");
    }

    #[test]
    fn a_request_without_tools_is_answered_on_the_side() {
        let script = Script::new().otherwise([Reply::Hang]);
        let side = ModelRequest { tools: Vec::new(), ..request(vec![Part::User("title?".to_owned())]) };
        assert_eq!(script.reply(&side).0, Reply::text("A title"));
        assert_eq!(script.reply(&request(vec![Part::User("x".to_owned())])).0, Reply::Hang);
    }

    #[test]
    fn a_script_is_read_from_json() {
        let value = json!({"scenes": {"a": ["hi", {"shell": "ls"}, {"fail": "limit", "resets_at": 7}]}, "otherwise": [{"hang": true}]});
        let script = Script::from_json(&value).expect("a script");
        assert_eq!(script.scenes[0].1[2], Reply::Failure(Failure::UsageLimit { resets_at: 7 }));
        assert_eq!(script.otherwise, [Reply::Hang]);
        assert!(Script::from_json(&json!({"otherwise": [{"fial": "401"}]})).is_err());
    }
}
