//! The conversation of a thread: the attempts of its step and people's messages, each with the run whose log is its
//! transcript.

use serde::Serialize;
use serde_json::Value;
use sprag_lifecycle::Word;
use sprag_store::{ExecutionRow, Row, RunRow};

use crate::App;
use crate::error::Error;
use crate::text::rfc3339;
use crate::threads::ThreadView;

/// A thread and its conversation.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ThreadDetail {
    /// The thread.
    #[serde(flatten)]
    pub thread: ThreadView,
    /// The prompt of its step, as the pipeline has it: templates are not filled in.
    pub prompt: String,
    /// The parts of the conversation, oldest first: the attempts of the step, then the messages of people. Of the messages,
    /// those of the newest 200 runs.
    pub parts: Vec<ThreadPart>,
    /// The messages of people, oldest first.
    pub messages: Vec<ThreadMessage>,
}

/// A person's message to the agent of a thread.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ThreadMessage {
    /// The run in which the agent answers it.
    pub run: String,
    /// The status of that run.
    pub status: &'static str,
    /// The message.
    pub message: String,
    /// The time when it was sent.
    pub created_at: String,
}

/// A part of a conversation. The log of its attempt is the transcript.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ThreadPart {
    /// The run: that of the step, or the one in which the agent answers a message.
    pub run: String,
    /// The step of that run.
    pub step: String,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The message of a person; absent for an attempt of the step itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The status of the execution.
    pub status: &'static str,
    /// The tokens that it used; absent if the agent reported none, or before the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The price in US dollars, as the agent reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// The time of the message, or of the attempt's creation.
    pub created_at: String,
    /// The time when a worker received it.
    pub started_at: Option<String>,
    /// The time of its end.
    pub ended_at: Option<String>,
}

/// The tokens and the cost of executions.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Spent {
    pub(crate) tokens: Option<u64>,
    pub(crate) cost_usd: Option<f64>,
}

impl Spent {
    /// Returns what an execution's result reports: as outputs if it succeeded, about its agent if it failed.
    pub(crate) fn of(row: &ExecutionRow) -> Spent {
        let result: Value =
            row.result.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let tokens = [&result["outputs"]["tokens"], &result["agent"]["tokens"]];
        Spent {
            tokens: tokens.into_iter().find_map(Value::as_u64),
            cost_usd: result["outputs"]["cost_usd"].as_f64(),
        }
    }

    /// Returns the sum.
    pub(crate) fn plus(self, other: Spent) -> Spent {
        let sum = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0.0) + b.unwrap_or(0.0)),
        };
        let tokens = match (self.tokens, other.tokens) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
        };
        Spent { tokens, cost_usd: sum(self.cost_usd, other.cost_usd) }
    }
}

impl App {
    /// Returns a thread with its conversation, by its name, `RUN/STEP`.
    pub fn conversation(&self, name: &str) -> Result<ThreadDetail, Error> {
        let (mut thread, prompt) = self.thread_and_prompt(name)?;
        let mut parts = Vec::new();
        let known = crate::known::find_run(self, Some(&thread.run))?;
        let no = known.step_no(&thread.step)?;
        let rows = self.executions(known.id())?;
        parts.extend(rows.iter().filter(|row| row.id.step == no).map(|row| part(row, &thread.step, None)));
        let talks = self.talks(name)?;
        let messages = talks.iter().map(|talk| ThreadMessage {
            run: talk.id.to_string(),
            status: talk.status().as_str(),
            message: message_of(talk),
            created_at: rfc3339(talk.created_ms),
        });
        let messages = messages.collect();
        for talk in talks {
            let rows = self.executions(talk.id)?;
            if rows.is_empty() {
                parts.push(not_begun(&talk, &thread.step));
            }
            parts.extend(rows.iter().map(|row| part(row, &thread.step, Some(message_of(&talk)))));
        }
        let spent = parts.iter().map(|part| Spent { tokens: part.tokens, cost_usd: part.cost_usd });
        let spent = spent.fold(Spent::default(), Spent::plus);
        (thread.tokens, thread.cost_usd) = (spent.tokens, spent.cost_usd);
        Ok(ThreadDetail { thread, prompt, parts, messages })
    }
}

fn part(row: &ExecutionRow, step: &str, message: Option<String>) -> ThreadPart {
    let Spent { tokens, cost_usd } = Spent::of(row);
    ThreadPart {
        run: row.id.run.to_string(),
        step: step.to_owned(),
        attempt: row.id.attempt,
        message,
        status: row.status().as_str(),
        tokens,
        cost_usd,
        created_at: rfc3339(row.created_ms),
        started_at: row.started_ms.map(rfc3339),
        ended_at: row.ended_ms.map(rfc3339),
    }
}

/// Returns the part of a message that no worker has received yet.
fn not_begun(talk: &RunRow, step: &str) -> ThreadPart {
    ThreadPart {
        run: talk.id.to_string(),
        step: step.to_owned(),
        attempt: 1,
        message: Some(message_of(talk)),
        status: talk.status().as_str(),
        tokens: None,
        cost_usd: None,
        created_at: rfc3339(talk.created_ms),
        started_at: None,
        ended_at: talk.ended_ms.map(rfc3339),
    }
}

/// Returns the message that a talk gives to the agent.
fn message_of(talk: &RunRow) -> String {
    let inputs: Value = serde_json::from_str(&talk.inputs).unwrap_or_default();
    inputs["message"].as_str().unwrap_or_default().to_owned()
}
