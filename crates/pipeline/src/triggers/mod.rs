//! Triggers: the `on` of a pipeline file. Each entry is a rule, which `sprag rule apply` records.
//!
//! ```text
//!   decode.rs    checks the entries of a file
//!   schedule.rs  the ticks of a schedule
//!   sources.rs   the ends of other runs, and the moves of git refs
//!   cron.rs      cron expressions
//! ```

mod cron;
pub(crate) mod decode;
mod schedule;
mod sources;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde_json::Value;

pub use schedule::{Schedule, Tick};
pub use sources::{GitSource, RunSource};

use crate::child::Definition;
use crate::expression::Budget;
use crate::inputs::InputType;
use crate::pipeline::Pipeline;
use crate::template;

/// A rule of a pipeline file: it starts runs from events.
#[derive(Debug, Clone)]
pub struct Trigger {
    /// The id from the file, unique in the pipeline.
    pub id: String,
    /// The source of its events.
    pub source: TriggerSource,
    /// The condition under which an event starts a run.
    pub when: Option<String>,
    /// The inputs of its runs, as templates.
    pub inputs: BTreeMap<String, Value>,
    /// The treatment of ticks that no process saw in time.
    pub missed: Missed,
    /// The treatment of an earlier run that has not ended.
    pub overlap: OverlapPolicy,
    /// The window in which several events become one run.
    pub debounce: Option<Debounce>,
    /// The limit on its runs in a time.
    pub rate: Option<RateLimit>,
}

/// A window in which several events become one run.
#[derive(Debug, Clone)]
pub struct Debounce {
    /// The template of the window's key; absent if the rule has one window.
    pub key: Option<String>,
    /// The time without a further event after which the run starts, in milliseconds.
    pub for_ms: i64,
    /// The longest time after the first event, in milliseconds.
    pub at_most_ms: i64,
}

/// A limit on the runs of a rule in a time.
#[derive(Debug, Clone, Copy)]
pub struct RateLimit {
    /// The most runs.
    pub limit: i64,
    /// The time, in milliseconds.
    pub per_ms: i64,
    /// Whether an event beyond the limit waits; otherwise it is skipped.
    pub hold: bool,
}

/// Signed requests from outside.
#[derive(Debug, Clone)]
pub struct Webhook {
    /// The sender.
    pub kind: WebhookKind,
    /// The variables of the server that hold secrets.
    pub secrets: Vec<String>,
    /// The template of the key under which a request is taken once; absent for the body's hash.
    pub key: Option<String>,
    /// The most bytes of a body.
    pub max_body: usize,
}

/// The sender of requests, which decides how they are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebhookKind {
    /// GitHub: an HMAC of the body.
    Github,
    /// GitLab: the secret itself in a header.
    Gitlab,
    /// Stripe: an HMAC of a timestamp and the body.
    Stripe,
    /// Slack: an HMAC of a timestamp and the body.
    Slack,
    /// Standard webhooks: an HMAC of an id, a timestamp and the body.
    Standard,
    /// Any other sender: an HMAC of the body in `x-signature-256`.
    Generic,
}

/// The source of a rule's events.
#[derive(Debug, Clone)]
pub enum TriggerSource {
    /// Ticks of a schedule.
    Schedule(Schedule),
    /// Requests from outside.
    Webhook(Webhook),
    /// Ends of other runs.
    Run(RunSource),
    /// Moves of git refs.
    Git(GitSource),
}

impl TriggerSource {
    /// Returns the word of its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            TriggerSource::Schedule(_) => "schedule",
            TriggerSource::Webhook(_) => "webhook",
            TriggerSource::Run(_) => "run",
            TriggerSource::Git(_) => "git",
        }
    }
}

/// The treatment of ticks that no process saw in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missed {
    /// The ticks that start a run.
    pub run: MissedRuns,
    /// The age beyond which none does, in milliseconds.
    pub within_ms: i64,
}

/// The missed ticks that start a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissedRuns {
    /// None of them.
    None,
    /// The latest one.
    Latest,
    /// All of them, oldest first, up to a limit.
    All,
}

/// The treatment of an earlier run of a rule that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverlapPolicy {
    /// Start nothing.
    Skip,
    /// Start after it; one run waits at most.
    Queue,
    /// Cancel it.
    CancelOlder,
    /// Start beside it.
    Allow,
}

impl Trigger {
    /// Returns whether the rule's condition holds for an event. An error names what has no value.
    pub fn holds(&self, names: &Value) -> Result<bool, String> {
        let Some(when) = &self.when else { return Ok(true) };
        template::holds(when, names, &Budget::default()).map_err(|why| format!("`when: {when}`: {why}"))
    }

    /// Returns the values that the rule's condition reads from an event, such as `event.body.ref is "main"`. Lists and
    /// objects are left out, and long texts are cut.
    pub fn values_of_when(&self, names: &Value) -> Vec<String> {
        /// The most values, and the most characters of one.
        const MOST: (usize, usize) = (5, 80);
        let when = self.when.as_deref().and_then(|when| template::condition(when).ok());
        let read = template::names(when.unwrap_or_default());
        let values = read.iter().filter_map(|name| {
            let value = name.split('.').try_fold(names, |value, part| value.get(part))?;
            (!value.is_object() && !value.is_array()).then(|| {
                let text = value.to_string();
                let short: String = text.chars().take(MOST.1).collect();
                let rest = if short.len() < text.len() { "…" } else { "" };
                format!("{name} is {short}{rest}")
            })
        });
        values.take(MOST.0).collect()
    }

    /// Renders a template of the rule as text.
    pub fn text(&self, template: &str, names: &Value) -> Result<String, String> {
        template::text(template, names, &Budget::default())
    }

    /// Returns the inputs of a run for an event. A value for an input of type `string` becomes text.
    pub fn run_inputs(&self, pipeline: &Pipeline, names: &Value) -> Result<BTreeMap<String, Value>, String> {
        let budget = Budget::default();
        let mut inputs = BTreeMap::new();
        for (name, value) in &self.inputs {
            let declared = pipeline.inputs.iter().find(|input| input.name == *name);
            let filled = filled(value, names, &budget).map_err(|why| format!("input `{name}`: {why}"))?;
            let is_text = declared.is_some_and(|input| input.kind == InputType::String);
            let filled = match filled {
                Value::String(_) => filled,
                other if is_text => {
                    let text = template::as_text(other).map_err(|why| format!("input `{name}`: {why}"))?;
                    Value::String(text)
                }
                other => other,
            };
            inputs.insert(name.clone(), filled);
        }
        Ok(inputs)
    }
}

/// Renders the templates in the texts of a value.
fn filled(value: &Value, names: &Value, budget: &Budget) -> Result<Value, String> {
    Ok(match value {
        Value::String(text) => template::value(text, names, budget)?,
        Value::Array(items) => {
            items.iter().map(|item| filled(item, names, budget)).collect::<Result<_, _>>()?
        }
        Value::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| Ok((key.clone(), filled(value, names, budget)?)));
            Value::Object(entries.collect::<Result<_, String>>()?)
        }
        other => other.clone(),
    })
}

impl Pipeline {
    /// Returns the pipeline with its children as one text, from which it can be parsed again without any file.
    pub fn definition(&self) -> Definition {
        Definition {
            name: self.source.name.clone(),
            text: self.source.text.clone(),
            children: self.children().collect(),
            prompts: self.prompts().collect(),
            outer: None,
        }
    }

    /// Returns the rule with this id.
    pub fn trigger(&self, id: &str) -> Option<&Trigger> {
        self.triggers.iter().find(|trigger| trigger.id == id)
    }
}
