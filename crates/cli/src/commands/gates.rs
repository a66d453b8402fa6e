//! `sprag approve`, `reject`, `signal`: answers and signals that a run waits for.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sprag_app::{App, ErrorKind, GateRow, gate_text, gates, questions_alone};
use sprag_lifecycle::RunId;
use sprag_pipeline::Input;

use super::run::go_on;
use crate::context::{Context, find_run, refused};
use crate::exit::{Exit, Failure};
use crate::show::{Style, hanging, line, plain};

/// A person's answer.
pub(crate) struct Answer<'a> {
    pub(crate) run: &'a str,
    pub(crate) step: Option<&'a str>,
    pub(crate) choice: Option<&'a str>,
    pub(crate) comment: Option<&'a str>,
    /// The values of fields, as `NAME=VALUE`.
    pub(crate) fields: &'a [String],
    pub(crate) approved: bool,
    pub(crate) detach: bool,
}

pub(crate) async fn answer(context: &Context, answer: Answer<'_>) -> Result<Exit, Failure> {
    let app = context.app()?;
    let known = find_run(&app, Some(answer.run))?;
    let root = known.run.root;
    let asked = gates::question(&app, known.id(), answer.step).map_err(|error| match error.kind {
        ErrorKind::NotFound => Failure { exit: Exit::Nothing, ..error.into() },
        _ => error.into(),
    })?;
    let (gate, name) = (asked.gate, asked.step);
    let since = app.last_seq()?;
    let texts = field_texts(answer.fields)?;
    let given = gates::Answer {
        approved: Some(answer.approved),
        choice: answer.choice,
        comment: answer.comment,
        fields: None,
        texts: Some(&texts),
    };
    let choice = gates::answer(&app, &gate, given).await?.choice;
    if context.json {
        let told = json!({ "type": "answer", "run": gate.run, "step": name, "choice": choice, "approved": answer.approved });
        line(&told.to_string());
    } else {
        let style = Style::stderr();
        let sign = if answer.approved { style.green("✓") } else { style.red("✗") };
        eprintln!("{sign} {name} {}", style.dim(&format!("answered {choice:?}")));
    }
    go_on(context, &app, root, since, answer.detach).await
}

/// Returns the options with which an answer gives the required fields of a question.
pub(crate) fn required_fields(fields: &[Input]) -> String {
    let required = fields.iter().filter(|field| field.required);
    required.map(|field| format!(" --field {}=…", plain(&field.name))).collect()
}

/// Returns the values of fields by their names, from `NAME=VALUE`.
pub(crate) fn field_texts(given: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    let split = |text: &String| match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(Failure::usage(format!("--field {text}: there is no value"))
            .next("write it like --field reason='too early'")),
    };
    given.iter().map(split).collect()
}

/// Prints what a run waits for from a person. A user who has watched the run has already seen the questions.
pub(crate) fn waits_for_person(
    context: &Context,
    app: &App,
    run: RunId,
    watched: bool,
) -> Result<Exit, Failure> {
    let questions = questions_alone(app, run)?;
    if context.json {
        let told: Vec<Value> = questions
            .iter()
            .map(|gate| {
                let question: Value = serde_json::from_str(&gate.question).unwrap_or_default();
                let mut told = json!({
                    "run": gate.run, "step": step_of(app, gate), "ask": question["ask"],
                    "choices": question["choices"],
                });
                if question["fields"].is_array() {
                    told["fields"] = question["fields"].clone();
                }
                told
            })
            .collect();
        line(&json!({ "type": "result", "run": run, "status": "running", "waits_for": told }).to_string());
        return Ok(Exit::WaitsForPerson);
    }
    let style = Style::stderr();
    for gate in &questions {
        let step = step_of(app, gate);
        // The questions of child runs were not shown before.
        if !watched || gate.run != run {
            let told = format!("{step} waits for {}", gate_text(gate));
            eprintln!("{} {}", style.bold("?"), hanging(&told, 2));
        }
        let question = gates::Question { gate: gate.clone(), step: step.clone() };
        eprintln!(
            "{} sprag approve {} {step}{} · sprag reject {} {step}",
            style.dim("next:"),
            gate.run,
            required_fields(&question.fields()),
            gate.run
        );
    }
    Ok(Exit::WaitsForPerson)
}

pub(crate) fn step_of(app: &App, gate: &GateRow) -> String {
    find_run(app, Some(&gate.run.to_string()))
        .map_or_else(|_| gate.step.to_string(), |known| known.name_of(app, gate.step))
}

pub(crate) async fn signal(
    context: &Context,
    run: &str,
    name: &str,
    payload: Option<&str>,
    detach: bool,
) -> Result<Exit, Failure> {
    let payload: Value = match payload {
        Some(text) => serde_json::from_str(text).map_err(|error| {
            Failure::usage(format!("--payload is not JSON: {error}")).next("write it like '{\"version\": 3}'")
        })?,
        None => json!({}),
    };
    let app = context.app()?;
    let known = find_run(&app, Some(run))?;
    let id = known.id();
    let since = app.last_seq()?;
    let step = app.signal(id, name, &payload).await.map_err(|error| refused(&app, id, error))?;
    if context.json {
        line(&json!({ "type": "signal", "run": id, "name": name, "received_by": step }).to_string());
    } else {
        match &step {
            Some(step) => eprintln!("{} signal delivered to step {step}", Style::stderr().green("✓")),
            None => {
                eprintln!("kept: no step of run {id} waits for {name:?} yet; the next one that does gets it")
            }
        }
    }
    if step.is_none() {
        return Ok(Exit::Ok);
    }
    go_on(context, &app, known.run.root, since, detach).await
}
