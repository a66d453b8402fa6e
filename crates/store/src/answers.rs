//! Evaluates large specs outside the writer. The store undoes the operation that asks, answers its question on another
//! thread, and runs the operation again with the answer.
//!
//! ```text
//!   operation ── asks ──▶ little to read, little work: answered inside the writer
//!                   └──▶ else: Error::Unanswered ──▶ Store::commit ── a thread answers ──▶ the operation again
//! ```
//!
//! An answer depends only on the step's spec and on the values that its texts name. The second run of the operation
//! compares both, and asks again if either has changed meanwhile.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use sprag_lifecycle::{Plan, RunId, StepNo, mutant};

use crate::evaluator::{Prepared, SpecError, SpecEvaluator};
use crate::gathered::Gathered;

/// The most bytes of a spec and of the values that it names that the writer reads itself.
pub(crate) const READ_AT_ONCE_BYTES: usize = 64 << 10;

/// A question about a step's spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// Whether its `when` condition holds.
    Condition,
    /// Whether its `repeat` asks for another round.
    Repeat,
    /// The items of its fan-out.
    Items,
    /// The gate, timer, signal or child run that it waits for.
    Prepare,
}

/// The answer to a question.
#[derive(Debug, Clone)]
pub enum Answer {
    /// To [`Question::Condition`] and [`Question::Repeat`].
    Condition(bool),
    /// To [`Question::Items`].
    Items(Vec<Value>),
    /// To [`Question::Prepare`].
    Prepared(Prepared),
}

/// A question that waits for its answer.
#[derive(Debug, Clone)]
pub struct OpenQuestion {
    pub(crate) question: Question,
    /// The run, and the step's row in it: each item of a fan-out has its own.
    pub(crate) row: (RunId, StepNo),
    pub(crate) plan: Arc<Plan>,
    pub(crate) node: StepNo,
    pub(crate) names: Gathered,
    pub(crate) evaluator: Arc<dyn SpecEvaluator>,
}

impl OpenQuestion {
    /// Answers it with the full budget of a step.
    pub(crate) fn answer(&self) -> Result<Answer, SpecError> {
        self.evaluator.answer(self.question, self.plan.step(self.node), &self.names.value())
    }

    /// Whether an answer to `self` answers `other`.
    fn is(&self, other: &OpenQuestion) -> bool {
        // The row is compared first: of a thousand items at most one has its large texts compared.
        (self.question, self.row) == (other.question, other.row)
            && (mutant!(StaleAnswerUsed)
                || self.plan.step(self.node).spec == other.plan.step(other.node).spec
                    && self.names == other.names)
    }
}

/// A question with its answer, or why there is none.
type Answered = (Arc<OpenQuestion>, Result<Answer, SpecError>);

/// The answers that one operation has got so far.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<Vec<Answered>>);

impl Answers {
    /// Returns the answer to a question, if there is one.
    pub(crate) fn find(&self, open: &OpenQuestion) -> Option<Result<Answer, SpecError>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().find(|(known, _)| known.is(open)).map(|(_, answer)| answer.clone())
    }

    /// Answers a question on a thread that is neither the writer's nor the runtime's.
    pub(crate) async fn find_out(&self, open: Arc<OpenQuestion>) {
        let asked = Arc::clone(&open);
        let answer = match tokio::runtime::Handle::try_current() {
            Ok(runtime) => runtime.spawn_blocking(move || asked.answer()).await,
            // A simulation has no runtime, and no writer that others wait for.
            Err(_) => Ok(asked.answer()),
        };
        let answer = answer
            .unwrap_or_else(|_| Err(SpecError::new("reading the step's texts failed in an unexpected way")));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((open, answer));
    }
}
