//! The questions of the store about a step's spec. The store keeps specs, and does not read them.

use std::fmt::{Debug, Display};
use std::sync::Arc;

use serde_json::Value;
use sprag_lifecycle::{Answerers, Plan, PlanStep, RunId};

use crate::answers::{Answer, Question};

/// The reason why a step's spec cannot be evaluated, in words for the author of the pipeline. It fails the step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SpecError(String);

impl SpecError {
    /// Returns an error with this reason.
    pub fn new(why: impl Display) -> Self {
        SpecError(why.to_string())
    }
}

/// Reads specs. The store calls it inside the writing transaction, or between two tries of one, so it must be pure:
/// the same names always give the same answer. A text that cannot be filled in is an error, and fails the step.
pub trait SpecEvaluator: Debug + Send + Sync {
    /// Whether the step's own condition holds.
    fn wanted(&self, step: &PlanStep, names: &Value) -> Result<bool, SpecError>;
    /// Returns the list of the step's fan-out.
    fn items(&self, step: &PlanStep, names: &Value) -> Result<Vec<Value>, SpecError>;
    /// Whether the condition of the step's `repeat` asks for another round; `names` contain the round that has ended.
    fn repeats(&self, step: &PlanStep, names: &Value) -> Result<bool, SpecError> {
        let _ = names;
        NoEvaluator::refuse(step)
    }
    /// Returns the branch on which a run of this plan works, if it has one of its own.
    fn branch(&self, plan: &Plan, run: &str) -> Option<String> {
        let _ = (plan, run);
        None
    }
    /// Returns the declared outputs of a run: `spec` is that of its plan, `names` are its inputs and the results of the
    /// steps that the plan's outputs read.
    fn outputs(&self, spec: &str, names: &Value) -> Value {
        let _ = (spec, names);
        Value::Object(serde_json::Map::new())
    }
    /// Returns the gate, timer, signal or child run for which a step waits.
    fn prepare(&self, step: &PlanStep, names: &Value) -> Result<Prepared, SpecError>;

    /// Answers a question with the full budget of a step.
    fn answer(&self, question: Question, step: &PlanStep, names: &Value) -> Result<Answer, SpecError> {
        match question {
            Question::Condition => self.wanted(step, names).map(Answer::Condition),
            Question::Repeat => self.repeats(step, names).map(Answer::Condition),
            Question::Items => self.items(step, names).map(Answer::Items),
            Question::Prepare => self.prepare(step, names).map(Answer::Prepared),
        }
    }

    /// Answers a question inside the writer if that is little work; `None` if it is more.
    fn answer_at_once(
        &self,
        question: Question,
        step: &PlanStep,
        names: &Value,
    ) -> Option<Result<Answer, SpecError>> {
        Some(self.answer(question, step, names))
    }

    /// Runs `read`, which fills in texts of a step outside the store. Returns the reason if they are no longer filled
    /// in.
    fn guard(&self, run: RunId, step: &PlanStep, read: &mut dyn FnMut()) -> Result<(), SpecError> {
        let _ = (run, step);
        read();
        Ok(())
    }
}

/// The work of a step that no worker executes.
#[derive(Debug, Clone)]
pub enum Prepared {
    /// A wait for an answer.
    Gate {
        /// The question.
        ask: String,
        /// The possible answers.
        choices: Vec<String>,
        /// The choice that counts if there is no answer in time.
        default: Option<String>,
        /// The values that an answer gives, a JSON list of their declarations; a declared `default` counts at the
        /// timeout.
        fields: Value,
        /// The steps at which the run continues, a JSON object by choices.
        routes: Value,
        /// The people who may answer.
        answerers: Answerers,
        /// The time for the answer, in milliseconds; absent means no limit.
        timeout_ms: Option<u64>,
    },
    /// A wait for a span of time.
    Pause {
        /// The span, in milliseconds.
        ms: u64,
    },
    /// A wait until a time (wall clock).
    Until {
        /// The time, in milliseconds.
        wall_ms: i64,
    },
    /// A wait for a signal.
    Signal {
        /// The signal's name.
        name: String,
        /// The time for the signal, in milliseconds; absent means no limit.
        timeout_ms: Option<u64>,
    },
    /// A wait for a child run.
    Child {
        /// The plan of the child run.
        plan: Arc<Plan>,
        /// The inputs of the child run, as JSON.
        inputs: Arc<str>,
    },
    /// The end of the run.
    End {
        /// Whether the run has succeeded; otherwise the step fails.
        completed: bool,
        /// The reason, in the author's words.
        message: Option<String>,
    },
}

/// A evaluator without words, for programs that only run steps which a worker executes from start to end.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoEvaluator;

impl NoEvaluator {
    fn refuse<T>(step: &PlanStep) -> Result<T, SpecError> {
        Err(SpecError::new(format_args!("this program cannot read what step `{}` asks for", step.id)))
    }
}

impl SpecEvaluator for NoEvaluator {
    fn wanted(&self, step: &PlanStep, _: &Value) -> Result<bool, SpecError> {
        NoEvaluator::refuse(step)
    }

    fn items(&self, step: &PlanStep, _: &Value) -> Result<Vec<Value>, SpecError> {
        NoEvaluator::refuse(step)
    }

    fn prepare(&self, step: &PlanStep, _: &Value) -> Result<Prepared, SpecError> {
        NoEvaluator::refuse(step)
    }
}
