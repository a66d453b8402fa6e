//! `sprag approve`, `reject`, `signal`: what a run waits for from outside.

use serde_json::{Value, json};
use sprag::{ComplaintKind, gate_text, gates};
use sprag_lifecycle::RunId;
use sprag_store::ops::Signalled;
use sprag_store::{GateRow, RunRow, Store, Table};

use super::run::go_on;
use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::live::questions_alone;
use crate::show::{Style, line};

/// A person's answer.
pub(crate) struct Answer<'a> {
    pub(crate) run: &'a str,
    pub(crate) step: Option<&'a str>,
    pub(crate) choice: Option<&'a str>,
    pub(crate) comment: Option<&'a str>,
    pub(crate) approved: bool,
    pub(crate) detach: bool,
}

pub(crate) async fn answer(context: &Context, answer: Answer<'_>) -> Result<Exit, Failure> {
    let store = context.store()?;
    let known = find_run(&store, Some(answer.run))?;
    let root = known.run.root;
    let asked =
        gates::question(&store, known.id(), answer.step).map_err(|complaint| match complaint.kind {
            ComplaintKind::NotFound => Failure { exit: Exit::Nothing, ..complaint.into() },
            _ => complaint.into(),
        })?;
    let (gate, name) = (asked.gate, asked.step);
    let since = store.read(|db| db.last_seq())?;
    let given =
        gates::Answer { approved: Some(answer.approved), choice: answer.choice, comment: answer.comment };
    let choice = gates::answer(&store, &gate, given).await?.choice;
    if context.json {
        let told = json!({ "type": "answer", "run": gate.run, "step": name, "choice": choice, "approved": answer.approved });
        line(&told.to_string());
    } else {
        let style = Style::stderr();
        let sign = if answer.approved { style.green("✓") } else { style.red("✗") };
        eprintln!("{sign} {name} {}", style.dim(&format!("answered {choice:?}")));
    }
    go_on(context, &store, root, since, answer.detach).await
}

/// Tells what a run waits for from a person; who has watched it has seen the questions.
pub(crate) fn waits_for_person(
    context: &Context,
    store: &Store,
    run: RunId,
    watched: bool,
) -> Result<Exit, Failure> {
    let questions = questions_alone(store, run)?;
    if context.json {
        let told: Vec<Value> = questions
            .iter()
            .map(|gate| {
                let question: Value = serde_json::from_str(&gate.question).unwrap_or_default();
                json!({ "run": gate.run, "step": step_of(store, gate), "ask": question["ask"], "choices": question["choices"] })
            })
            .collect();
        line(&json!({ "type": "result", "run": run, "status": "running", "waits_for": told }).to_string());
        return Ok(Exit::WaitsForPerson);
    }
    let style = Style::stderr();
    for gate in &questions {
        let step = step_of(store, gate);
        if !watched {
            eprintln!("{} {step} waits for {}", style.bold("?"), gate_text(gate));
        }
        eprintln!(
            "{} sprag approve {} {step} · sprag reject {} {step}",
            style.dim("next:"),
            gate.run,
            gate.run
        );
    }
    Ok(Exit::WaitsForPerson)
}

fn step_of(store: &Store, gate: &GateRow) -> String {
    find_run(store, Some(&gate.run.to_string()))
        .map_or_else(|_| gate.step.to_string(), |known| known.name_of(store, gate.step))
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
    let store = context.store()?;
    let known = find_run(&store, Some(run))?;
    let id = known.id();
    let since = store.read(|db| db.last_seq())?;
    let sent = store.person().signal(id, name.into(), payload.to_string().into()).await?;
    let step = match sent {
        Signalled::Received(step) => Some(known.name_of(&store, step)),
        Signalled::Kept => None,
    };
    if context.json {
        line(&json!({ "type": "signal", "run": id, "name": name, "received_by": step }).to_string());
    } else {
        match &step {
            Some(step) => eprintln!("{} step {step} has waited for it", Style::stderr().green("✓")),
            None => eprintln!("kept: no step of run {id} waits for {name:?} yet"),
        }
    }
    if step.is_none() {
        return Ok(Exit::Ok);
    }
    go_on(context, &store, known.run.root, since, detach).await
}

/// The root run's row, as it is now.
pub(super) fn root_row(store: &Store, run: RunId) -> Result<RunRow, Failure> {
    let row = store.read(|db| Table::<RunRow>::load(db, run))?;
    row.ok_or_else(|| Failure::error(format!("run {run} is gone")))
}
