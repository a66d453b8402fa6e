//! A step of a script: an action or a fault of the fake agent.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::failure::Reset;
use crate::usage::Usage;

/// A step of a script.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Writes a message.
    Say(String),
    /// Reports its reasoning.
    Think(String),
    /// Runs a command with `sh -c` in a separate session, and waits for it. The command gets `FAKE_SESSION`,
    /// `FAKE_TURN` and `FAKE_PROMPT`.
    Shell(String),
    /// Asks for permission to run a command, and runs it if it is allowed.
    Ask(String),
    /// Simulates a tool call without executing anything.
    Tool {
        /// The tool.
        name: String,
        /// Its input.
        input: Value,
        /// Its output.
        output: String,
        /// Whether it asks for permission first.
        asks: bool,
    },
    /// Calls a tool of a configured MCP server.
    Mcp {
        /// The server's name.
        server: String,
        /// The tool.
        tool: String,
        /// Its input.
        input: Value,
    },
    /// Reports tokens and cost, which are added to the turn's usage.
    Usage(Usage),
    /// Sets the structured output.
    Output(Value),
    /// Pauses, and handles messages meanwhile.
    Wait(Duration),
    /// Ends the turn. A turn without it ends with `ok`.
    End(Ending),
    /// Hangs forever: reads nothing, writes nothing.
    Hang,
    /// Writes nothing more in this turn, but obeys an interrupt.
    Silent,
    /// Exits with this code.
    Exit(u8),
    /// Kills itself with SIGKILL.
    KillSelf,
    /// Closes its stdout and keeps running.
    Eof,
    /// Writes lines that are not messages: ANSI escapes, invalid UTF-8, other JSON.
    Garbage,
    /// Writes half of a message without a line end.
    HalfLine,
    /// Writes a message of this many bytes in one line.
    HugeLine(usize),
    /// Writes everything from now on byte by byte, with this pause after each.
    SlowBytes(Duration),
    /// Reports the end of this turn twice.
    DupResult,
    /// Reports a success of this turn again in the middle of the next one.
    LateResult,
    /// Leaves a process behind that runs this command.
    Orphan(String),
    /// Ignores SIGTERM from now on.
    IgnoreTerm,
    /// Ignores interrupts from now on.
    IgnoreCancel,
    /// Does not stop a running tool when a turn is interrupted, from now on.
    ToolSurvivesCancel,
    /// Deletes its session from the disk.
    LoseSession,
    /// Opens sessions that another process has open, and then loses its own turns, as Claude Code does.
    SecondWriter,
    /// Behaves as if it is not logged in.
    NotLoggedIn,
    /// Reports a different session than requested.
    WrongSessionId,
}

/// The end of a turn.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// Success.
    Ok,
    /// The model's service answers 500.
    Error500,
    /// The key is refused.
    Auth,
    /// The account's usage limit is reached until this time.
    Limit(Reset),
    /// Success after an error.
    FalseSuccess,
    /// Success without any message.
    Empty,
    /// The model declines.
    Refusal,
    /// The agent reaches its maximum number of turns.
    MaxTurns,
    /// Success with an output that does not match its schema.
    BadSchema,
}

/// The default reset of a limit without a time.
const LIMIT_SECONDS: u64 = 3600;

impl Step {
    /// The names of steps that need no value.
    pub(super) const BARE: [(&str, Step); 15] = [
        ("hang", Step::Hang),
        ("silent", Step::Silent),
        ("kill_self", Step::KillSelf),
        ("eof", Step::Eof),
        ("garbage", Step::Garbage),
        ("half_line", Step::HalfLine),
        ("dup_result", Step::DupResult),
        ("late_result", Step::LateResult),
        ("ignore_term", Step::IgnoreTerm),
        ("ignore_cancel", Step::IgnoreCancel),
        ("tool_survives_cancel", Step::ToolSurvivesCancel),
        ("lose_session", Step::LoseSession),
        ("second_writer", Step::SecondWriter),
        ("not_logged_in", Step::NotLoggedIn),
        ("wrong_session_id", Step::WrongSessionId),
    ];

    /// Reads a step.
    pub(super) fn read(step: Value) -> Result<Step, String> {
        let (name, value) = match step {
            Value::String(name) => (name, Value::Null),
            Value::Object(fields) if fields.len() == 1 => fields.into_iter().next().unwrap_or_default(),
            other => return Err(format!("want a name, or a map with one key, and not {other}")),
        };
        if let Some((_, step)) = Step::BARE.into_iter().find(|(bare, _)| *bare == name) {
            return Ok(step);
        }
        let text = || value.as_str().map(str::to_owned).ok_or_else(|| format!("{name} wants a text"));
        let number = |default: u64| match &value {
            Value::Null => Ok(default),
            value => value.as_u64().ok_or_else(|| format!("{name} wants a number")),
        };
        match name.as_str() {
            "say" => text().map(Step::Say),
            "think" => text().map(Step::Think),
            "shell" => text().map(Step::Shell),
            "ask" if value.is_string() => text().map(Step::Ask),
            "ask" | "tool" => Ok(Step::Tool {
                name: value["tool"]
                    .as_str()
                    .or(value["name"].as_str())
                    .ok_or_else(|| format!("{name} wants `tool`"))?
                    .to_owned(),
                input: value.get("input").cloned().unwrap_or_else(|| json!({})),
                output: value["output"].as_str().unwrap_or("").to_owned(),
                asks: name == "ask",
            }),
            "mcp" => {
                let part = |key: &str| {
                    value[key].as_str().map(str::to_owned).ok_or_else(|| format!("mcp wants `{key}`"))
                };
                let input = value.get("input").cloned().unwrap_or_else(|| json!({}));
                Ok(Step::Mcp { server: part("server")?, tool: part("tool")?, input })
            }
            "usage" => {
                let count = |key: &str| value[key].as_u64().unwrap_or(0);
                let tokens = Usage {
                    input_tokens: count("input"),
                    output_tokens: count("output"),
                    ..Usage::default()
                };
                Ok(Step::Usage(Usage { cost_usd: value["usd"].as_f64(), ..tokens }))
            }
            "output" => Ok(Step::Output(value)),
            "wait" => duration(&value).map(Step::Wait),
            "end" => Ending::read(&value).map(Step::End),
            "exit" => Ok(Step::Exit(
                u8::try_from(number(0)?).map_err(|_| "exit wants a code from 0 to 255".to_owned())?,
            )),
            "huge_line" => Ok(Step::HugeLine(number(4 << 20)? as usize)),
            "slow_bytes" if value.is_null() => Ok(Step::SlowBytes(Duration::from_millis(1))),
            "slow_bytes" => duration(&value).map(Step::SlowBytes),
            "orphan" if value.is_null() => Ok(Step::Orphan("sleep 600".to_owned())),
            "orphan" => text().map(Step::Orphan),
            _ => Err(format!("no step {name:?}")),
        }
    }

    /// Returns the step's name and value.
    pub(super) fn to_pair(&self) -> (&'static str, Value) {
        if let Some((name, _)) = Step::BARE.iter().find(|(_, step)| step == self) {
            return (name, Value::Null);
        }
        match self {
            Step::Say(text) => ("say", json!(text)),
            Step::Think(text) => ("think", json!(text)),
            Step::Shell(command) => ("shell", json!(command)),
            Step::Ask(command) => ("ask", json!(command)),
            Step::Tool { name, input, output, asks } => {
                (if *asks { "ask" } else { "tool" }, json!({"tool": name, "input": input, "output": output}))
            }
            Step::Mcp { server, tool, input } => {
                ("mcp", json!({"server": server, "tool": tool, "input": input}))
            }
            Step::Usage(usage) => {
                let mut value = Map::new();
                value.insert("input".to_owned(), json!(usage.input_tokens));
                value.insert("output".to_owned(), json!(usage.output_tokens));
                value.extend(usage.cost_usd.map(|cost| ("usd".to_owned(), json!(cost))));
                ("usage", Value::Object(value))
            }
            Step::Output(output) => ("output", output.clone()),
            Step::Wait(time) => ("wait", json!(format!("{}ms", time.as_millis()))),
            Step::End(ending) => ("end", ending.to_value()),
            Step::Exit(code) => ("exit", json!(code)),
            Step::HugeLine(bytes) => ("huge_line", json!(bytes)),
            Step::SlowBytes(pause) => ("slow_bytes", json!(format!("{}ms", pause.as_millis()))),
            Step::Orphan(command) => ("orphan", json!(command)),
            bare => unreachable!("{bare:?} is in the table of bare steps"),
        }
    }
}

impl Ending {
    fn read(value: &Value) -> Result<Ending, String> {
        if let Some(limit) = value.get("limit") {
            let reset = match limit.as_i64() {
                Some(time) => Reset::At(time),
                None => Reset::InSeconds(duration(limit)?.as_secs()),
            };
            return Ok(Ending::Limit(reset));
        }
        match value.as_str() {
            Some("ok") => Ok(Ending::Ok),
            Some("error_500") => Ok(Ending::Error500),
            Some("auth") => Ok(Ending::Auth),
            Some("limit") => Ok(Ending::Limit(Reset::InSeconds(LIMIT_SECONDS))),
            Some("false_success") => Ok(Ending::FalseSuccess),
            Some("empty") => Ok(Ending::Empty),
            Some("refusal") => Ok(Ending::Refusal),
            Some("max_turns") => Ok(Ending::MaxTurns),
            Some("bad_schema") => Ok(Ending::BadSchema),
            _ => Err(format!(
                "no end {value}; there are ok, error_500, auth, limit, false_success, empty, refusal, max_turns and bad_schema"
            )),
        }
    }

    fn to_value(&self) -> Value {
        match self {
            Ending::Ok => json!("ok"),
            Ending::Error500 => json!("error_500"),
            Ending::Auth => json!("auth"),
            Ending::Limit(Reset::At(time)) => json!({"limit": time}),
            Ending::Limit(Reset::InSeconds(seconds)) => json!({"limit": format!("{seconds}s")}),
            Ending::Limit(_) => json!("limit"),
            Ending::FalseSuccess => json!("false_success"),
            Ending::Empty => json!("empty"),
            Ending::Refusal => json!("refusal"),
            Ending::MaxTurns => json!("max_turns"),
            Ending::BadSchema => json!("bad_schema"),
        }
    }
}

/// Reads `200ms`, `5s`, `3m`, `2h`, or a number of seconds.
fn duration(value: &Value) -> Result<Duration, String> {
    let wrong = || format!("want a time such as 200ms, 5s, 3m or 2h, and not {value}");
    if let Some(seconds) = value.as_u64() {
        return Ok(Duration::from_secs(seconds));
    }
    let text = value.as_str().ok_or_else(wrong)?;
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(at);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    match unit.trim() {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number.saturating_mul(60))),
        "h" => Ok(Duration::from_secs(number.saturating_mul(3600))),
        _ => Err(wrong()),
    }
}
