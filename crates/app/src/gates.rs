//! Questions that runs ask people, and people's answers: the same for the command line, HTTP and agents.

use serde_json::Value;
use sprag_lifecycle::RunId;
use sprag_store::{GateKind, GateRow, answer_text};

use crate::App;
use crate::error::{Error, ErrorKind, Hint};
use crate::known::RunWithPlan;

/// An open question.
#[derive(Debug, Clone)]
pub struct Question {
    /// The gate of the question.
    pub gate: GateRow,
    /// The name of the step that asks.
    pub step: String,
}

impl Question {
    /// Returns the text of the question.
    pub fn ask(&self) -> String {
        let question: Value = serde_json::from_str(&self.gate.question).unwrap_or_default();
        question["ask"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns the answers that the question offers; the first lets the run continue.
    pub fn choices(&self) -> Vec<String> {
        choices(&self.gate)
    }
}

/// Returns the answers that a question offers.
fn choices(gate: &GateRow) -> Vec<String> {
    let question: Value = serde_json::from_str(&gate.question).unwrap_or_default();
    let offered = question["choices"].as_array().into_iter().flatten();
    offered.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A person's answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Answer<'a> {
    /// Whether the run continues. If absent, the first choice approves and every other one rejects.
    pub approved: Option<bool>,
    /// The choice. If absent, the first one to approve, the last one to reject.
    pub choice: Option<&'a str>,
    /// A comment, which a step that is sent back reads.
    pub comment: Option<&'a str>,
}

/// The answer as it was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The choice.
    pub choice: String,
    /// Whether the run continues.
    pub approved: bool,
}

/// Returns the open questions of a run and of its child runs.
pub fn questions(app: &App, run: RunId) -> Result<Vec<Question>, Error> {
    let known = RunWithPlan::load(app, run)?;
    let named = |gate: GateRow| {
        let step = if gate.run == run {
            known.name_of(app, gate.step)
        } else {
            RunWithPlan::load(app, gate.run)?.name_of(app, gate.step)
        };
        Ok(Question { gate, step })
    };
    app.store.queries().open_questions(run)?.into_iter().map(named).collect()
}

/// Returns the question that is meant: the only open one, or that of the step which is named.
pub fn question(app: &App, run: RunId, step: Option<&str>) -> Result<Question, Error> {
    let mut open = questions(app, run)?;
    open.retain(|question| step.is_none_or(|step| step == question.step));
    match open.len() {
        1 => Ok(open.remove(0)),
        0 => {
            let of_step = step.map(|step| format!(" in step {step:?}")).unwrap_or_default();
            Err(Error::new(ErrorKind::NotFound, format!("run {run} asks nothing{of_step}"))
                .hint(Hint::ExplainRun(run)))
        }
        _ => {
            let names: Vec<&str> = open.iter().map(|question| question.step.as_str()).collect();
            let message = format!("run {run} asks several questions: {}", names.join(", "));
            let step = names[0].to_owned();
            Err(Error::invalid(message).hint(Hint::NameStep { run, step }))
        }
    }
}

/// Answers a question.
pub async fn answer(app: &App, gate: &GateRow, answer: Answer<'_>) -> Result<Answered, Error> {
    if gate.kind != GateKind::Question {
        let message = format!("the gate waits for a {}, not for an answer", gate.kind.as_str());
        return Err(Error::invalid(message));
    }
    let choices = choices(gate);
    let meant = match answer.approved {
        Some(false) => choices.last(),
        _ => choices.first(),
    };
    let choice = answer.choice.or(meant.map(String::as_str)).unwrap_or("yes").to_owned();
    if !choices.is_empty() && !choices.contains(&choice) {
        return Err(Error::invalid(format!("{choice:?} is not an answer to this question"))
            .next(format!("choose one of: {}", choices.join(", "))));
    }
    let approved = answer.approved.unwrap_or_else(|| choices.first().is_none_or(|first| *first == choice));
    let text = answer_text(&choice, answer.comment, approved);
    app.store.person().answer_gate(gate.id, text).await?.require_applied()?;
    Ok(Answered { choice, approved })
}
