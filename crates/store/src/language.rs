//! What the store must ask about a step's spec: it keeps specs, and does not read them.

use std::fmt::Debug;
use std::sync::Arc;

use serde_json::Value;
use sprag_lifecycle::{Plan, PlanStep};

/// Reads specs. It is asked inside the writing transaction, so it must be pure: the same names always give the
/// same answer, and nothing outside is looked at. A text that cannot be filled in is an error, and fails the step.
pub trait Language: Debug + Send + Sync {
    /// Whether the step's own condition wants it.
    fn wanted(&self, step: &PlanStep, names: &Value) -> Result<bool, String>;
    /// The list of its fan-out.
    fn items(&self, step: &PlanStep, names: &Value) -> Result<Vec<Value>, String>;
    /// The branch that a run of this plan works on, if it has one of its own.
    fn branch(&self, plan: &Plan, run: &str) -> Option<String> {
        let _ = (plan, run);
        None
    }
    /// What a step waits for that no worker does.
    fn prepare(&self, step: &PlanStep, names: &Value) -> Result<Prepared, String>;
}

/// What a step waits for that no worker does.
#[derive(Debug, Clone)]
pub enum Prepared {
    /// An answer.
    Gate {
        /// The question.
        ask: String,
        /// What can be answered.
        choices: Vec<String>,
        /// How long the answer may take.
        timeout_ms: Option<u64>,
    },
    /// A span of time.
    Pause {
        /// How long.
        ms: u64,
    },
    /// A moment (wall clock).
    Until {
        /// When.
        wall_ms: i64,
    },
    /// A signal.
    Signal {
        /// Its name.
        name: String,
        /// How long it may take.
        timeout_ms: Option<u64>,
    },
    /// Another run.
    Child {
        /// What it runs.
        plan: Arc<Plan>,
        /// Its inputs, as JSON.
        inputs: Arc<str>,
    },
}

/// Knows nothing: for programs that only run steps which a worker does from start to end.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wordless;

impl Wordless {
    fn refuse<T>(step: &PlanStep) -> Result<T, String> {
        Err(format!("this program cannot read what step `{}` asks for", step.id))
    }
}

impl Language for Wordless {
    fn wanted(&self, step: &PlanStep, _: &Value) -> Result<bool, String> {
        Wordless::refuse(step)
    }

    fn items(&self, step: &PlanStep, _: &Value) -> Result<Vec<Value>, String> {
        Wordless::refuse(step)
    }

    fn prepare(&self, step: &PlanStep, _: &Value) -> Result<Prepared, String> {
        Wordless::refuse(step)
    }
}
