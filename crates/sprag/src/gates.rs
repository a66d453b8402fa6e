//! What runs ask of people, and people's answers: the same for the command line, HTTP and agents.

use serde_json::Value;
use sprag_lifecycle::RunId;
use sprag_store::{GateKind, GateRow, Store, ops};

use crate::complaint::{Complaint, Kind};
use crate::known::Known;

/// A question that is open.
#[derive(Debug, Clone)]
pub struct Question {
    /// Where it stands.
    pub gate: GateRow,
    /// The name of the step that asks.
    pub step: String,
}

impl Question {
    /// The answers that it offers; the first lets the run go on.
    pub fn choices(&self) -> Vec<String> {
        choices(&self.gate)
    }
}

/// The answers that a question offers.
fn choices(gate: &GateRow) -> Vec<String> {
    let question: Value = serde_json::from_str(&gate.question).unwrap_or_default();
    let offered = question["choices"].as_array().into_iter().flatten();
    offered.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A person's answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Answer<'a> {
    /// Whether the run goes on; if it is left open, the first choice says yes and every other one no.
    pub approved: Option<bool>,
    /// Which of the choices; the first to approve, the last to reject, if it is left open.
    pub choice: Option<&'a str>,
    /// What else to say.
    pub comment: Option<&'a str>,
}

/// What was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The choice.
    pub choice: String,
    /// Whether the run goes on.
    pub approved: bool,
}

/// The open questions of a run, and of those that are the work of its steps.
pub fn questions(store: &Store, run: RunId) -> Result<Vec<Question>, Complaint> {
    let mut open = Vec::new();
    let mut todo = vec![run];
    while let Some(next) = todo.pop() {
        let known = Known::load(store, next)?;
        let (gates, children) = store.read(|db| Ok((db.open_gates(next)?, db.children(next)?)))?;
        for gate in gates.into_iter().filter(|gate| gate.kind == GateKind::Question) {
            let step = known.name_of(store, gate.step);
            open.push(Question { gate, step });
        }
        todo.extend(children);
    }
    Ok(open)
}

/// The one question that is meant: the only one, or that of the step which is named.
pub fn question(store: &Store, run: RunId, step: Option<&str>) -> Result<Question, Complaint> {
    let mut open = questions(store, run)?;
    open.retain(|question| step.is_none_or(|step| step == question.step));
    match open.len() {
        1 => Ok(open.remove(0)),
        0 => {
            let of_step = step.map(|step| format!(" in step {step:?}")).unwrap_or_default();
            Err(Complaint::new(Kind::NotFound, format!("run {run} asks nothing{of_step}"))
                .next(format!("see what it waits for: sprag explain {run}")))
        }
        _ => {
            let names: Vec<&str> = open.iter().map(|question| question.step.as_str()).collect();
            let message = format!("run {run} asks several questions: {}", names.join(", "));
            Err(Complaint::new(Kind::Wrong, message)
                .next(format!("name the step: sprag approve {run} {}", names[0])))
        }
    }
}

/// Answers a question.
pub async fn answer(store: &Store, gate: &GateRow, answer: Answer<'_>) -> Result<Answered, Complaint> {
    if gate.kind != GateKind::Question {
        let message = format!("the gate waits for a {}, not for an answer", gate.kind.as_str());
        return Err(Complaint::new(Kind::Wrong, message));
    }
    let choices = choices(gate);
    let meant = match answer.approved {
        Some(false) => choices.last(),
        _ => choices.first(),
    };
    let choice = answer.choice.or(meant.map(String::as_str)).unwrap_or("yes").to_owned();
    if !choices.is_empty() && !choices.contains(&choice) {
        return Err(Complaint::new(Kind::Wrong, format!("{choice:?} is no answer to this question"))
            .next(format!("choose one of: {}", choices.join(", "))));
    }
    let approved = answer.approved.unwrap_or_else(|| choices.first().is_none_or(|first| *first == choice));
    let text = ops::answer_text(&choice, answer.comment, approved);
    store.person().answer_gate(gate.id, text).await?.require_applied()?;
    Ok(Answered { choice, approved })
}
