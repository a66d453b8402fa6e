//! The content of a request with an idempotency key, so that the same key with another request is refused.

use std::sync::Arc;

use serde_json::Value;
use sprag_store::{NewRun, RunRow, plan_hash};

use crate::error::Error;
use crate::labels::RunLabels;

/// A new run, as far as its caller decides it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRequest {
    plan: i64,
    inputs: Arc<str>,
    priority: i32,
    dir: Value,
    /// The run and the step that it continues after; null if it is no fork.
    forked_from: Value,
    labels: RunLabels,
}

impl RunRequest {
    /// Returns the request that a new run stands for.
    pub fn of(new: &NewRun) -> RunRequest {
        RunRequest {
            plan: plan_hash(&new.plan),
            inputs: Arc::clone(&new.inputs),
            priority: new.priority,
            dir: fact_of(&new.context, "dir"),
            forked_from: fact_of(&new.context, "forked_from"),
            labels: RunLabels::read(&new.context),
        }
    }

    /// Refuses the request if the same key has started this run for another request.
    pub fn check(&self, row: &RunRow) -> Result<(), Error> {
        let labels = RunLabels::of(row);
        let differences = [
            ("another pipeline", row.plan != self.plan),
            ("other inputs", row.inputs != self.inputs),
            ("another priority", row.priority != self.priority),
            ("another folder", fact_of(&row.context, "dir") != self.dir),
            ("another step to continue after", fact_of(&row.context, "forked_from") != self.forked_from),
            ("another name", labels.name != self.labels.name),
            ("other labels", labels.labels != self.labels.labels),
        ];
        let different: Vec<&str> =
            differences.iter().filter(|(_, differs)| *differs).map(|(name, _)| *name).collect();
        if different.is_empty() {
            return Ok(());
        }
        let message =
            format!("the idempotency key was used for run {} with {}", row.id, different.join(", "));
        Err(Error::invalid(message).next("use a different key for each request"))
    }
}

/// Returns a fact of a run's context; null if it has none of this name.
fn fact_of(context: &str, name: &str) -> Value {
    let context: Value = serde_json::from_str(context).unwrap_or_default();
    context[name].clone()
}
