//! Questions that runs ask people, and people's answers: the same for the command line, HTTP and agents.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use sprag_lifecycle::RunId;
use sprag_pipeline::{Input, complete_fields};
use sprag_store::{GateKind, GateRow, answer_with_fields};

use crate::App;
use crate::error::{Error, ErrorKind, Hint};
use crate::known::RunWithPlan;

/// An open question.
#[derive(Debug, Clone)]
pub struct Question {
    /// The gate of the question.
    pub gate: GateRow,
    /// The name of the step that asks; of a step inside a step its whole name, such as `each[0].ask`.
    pub step: String,
}

impl Question {
    /// Returns the text of the question.
    pub fn ask(&self) -> String {
        let question: Value = serde_json::from_str(&self.gate.question).unwrap_or_default();
        question["ask"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns the answers that the question offers; the last one of several rejects.
    pub fn choices(&self) -> Vec<String> {
        Form::of(&self.gate).choices
    }

    /// Returns the values that an answer gives.
    pub fn fields(&self) -> Vec<Input> {
        Form::of(&self.gate).fields
    }
}

/// The choices and fields of a question, as its gate stores them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Form {
    choices: Vec<String>,
    fields: Vec<Input>,
    /// The steps at which the run continues, by the choices that lead to them.
    routes: BTreeMap<String, String>,
}

impl Form {
    fn of(gate: &GateRow) -> Form {
        serde_json::from_str(&gate.question).unwrap_or_default()
    }

    /// Returns whether an answer with this choice lets the run continue: all choices but the last one of several do, and
    /// all that lead to a step.
    fn approves(&self, choice: &str) -> bool {
        let is_last = self.choices.len() > 1 && self.choices.last().is_some_and(|last| last == choice);
        self.routes.contains_key(choice) || !is_last
    }

    /// Returns the choice that an approval or a rejection means if it names none.
    fn meant(&self, approved: bool) -> Option<&str> {
        let mut choices = self.choices.iter().map(String::as_str);
        if approved { choices.next() } else { choices.rfind(|choice| !self.routes.contains_key(*choice)) }
    }
}

/// A person's answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Answer<'a> {
    /// Whether the run continues. If absent, the last one of several choices rejects and every other one approves.
    pub approved: Option<bool>,
    /// The choice. If absent, the first one to approve, the last one to reject.
    pub choice: Option<&'a str>,
    /// A comment, which a step that is sent back reads.
    pub comment: Option<&'a str>,
    /// The values of the question's fields.
    pub fields: Option<&'a Map<String, Value>>,
    /// The values of the question's fields as texts, such as those of a command line.
    pub texts: Option<&'a BTreeMap<String, String>>,
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
            RunWithPlan::load(app, gate.run)?.whole_name_of(app, gate.step, run)?
        };
        Ok(Question { gate, step })
    };
    app.store.queries().open_questions(run)?.into_iter().map(named).collect()
}

/// Returns the question that is meant: the only open one, or that of the step which is named.
pub fn question(app: &App, run: RunId, step: Option<&str>) -> Result<Question, Error> {
    let mut open = questions(app, run)?;
    let asks = |question: &Question, step: &str| {
        step == question.step || question.step.rsplit('.').next() == Some(step)
    };
    open.retain(|question| step.is_none_or(|step| asks(question, step)));
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
    let form = Form::of(gate);
    let Some(choice) = answer.choice.or_else(|| match form.meant(answer.approved != Some(false)) {
        None if form.choices.is_empty() => Some("yes"),
        meant => meant,
    }) else {
        return Err(Error::invalid("every choice of this question leads to a step: none rejects it")
            .next(format!("approve it with one of: {}", form.choices.join(", "))));
    };
    if !form.choices.is_empty() && !form.choices.iter().any(|known| known == choice) {
        return Err(Error::invalid(format!("{choice:?} is not an answer to this question"))
            .next(format!("choose one of: {}", form.choices.join(", "))));
    }
    if let (Some(false), Some(step)) = (answer.approved, form.routes.get(choice)) {
        return Err(Error::invalid(format!("{choice:?} leads to step {step:?}: it is not a rejection"))
            .next(format!("approve it: sprag approve RUN --choice {choice}")));
    }
    let choice = choice.to_owned();
    let approved = answer.approved.unwrap_or_else(|| form.approves(&choice));
    let none = (Map::new(), BTreeMap::new());
    let (values, texts) = (answer.fields.unwrap_or(&none.0), answer.texts.unwrap_or(&none.1));
    let fields = complete_fields(&form.fields, values, texts, approved)
        .map_err(|error| Error::invalid(error.message).next(format!("expected {}", error.expected)))?;
    let text = answer_with_fields(&choice, answer.comment, approved, fields);
    app.store.person().answer_gate(gate.id, text).await?.require_applied()?;
    Ok(Answered { choice, approved })
}
