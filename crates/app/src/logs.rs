//! Finding the log of an attempt, and whether all of it is here.

use std::collections::BTreeMap;

use serde::Serialize;
use sprag_lifecycle::{StepNo, StepStatus, WorkKind};
use sprag_store::{ExecutionRow, Row, StepRow};
use sprag_worker::{Files, Owed};

use crate::App;
use crate::error::{Error, ErrorKind};
use crate::explain::explain_within;
use crate::known::RunWithPlan;
use crate::reach::Reach;
use crate::text::size;

/// The place of the log of an attempt that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogPlace {
    /// In this data directory, as far as the attempt has printed anything.
    Here,
    /// Only a part of it is here.
    Partly {
        /// The number of bytes that are here.
        received: u64,
        /// The length of the whole log, and the place that keeps it until it is here.
        owed: Owed,
    },
    /// Another host has the log.
    Elsewhere {
        /// The host's name.
        host: String,
        /// The worker that ran the attempt there.
        worker: String,
    },
    /// The log is not where it should be: another data directory has it, or it was deleted.
    Missing,
}

impl LogPlace {
    /// Returns a message about the log for people, if there is anything to say.
    pub fn told(&self) -> Option<String> {
        match self {
            LogPlace::Here => None,
            LogPlace::Partly { received, owed } => Some(format!(
                "{} of {} are here; the rest is on host {} in {}, and is sent while a worker runs there",
                size(*received),
                size(owed.size),
                owed.host,
                owed.path
            )),
            LogPlace::Elsewhere { host, worker } => {
                Some(format!("it is on host {host}, where worker {worker} ran it: read it there"))
            }
            LogPlace::Missing => {
                Some("it is not in this data directory: another one has it, or it was deleted".to_owned())
            }
        }
    }
}

/// Finds the log of an attempt at the step of this name.
pub fn log_place(app: &App, files: &Files, row: &ExecutionRow, step: &str) -> Result<LogPlace, Error> {
    if let Some((owed, received)) = files.owed(row.id, step) {
        return Ok(LogPlace::Partly { received, owed });
    }
    if files.log(row.id, step).exists() {
        return Ok(LogPlace::Here);
    }
    let owner = row.owner.map(|owner| app.store.queries().worker(owner));
    let Some(owner) = owner.transpose()?.flatten() else { return Ok(LogPlace::Missing) };
    Ok(match owner.host() {
        "" => LogPlace::Missing,
        host if host == sprag_worker::host() => LogPlace::Missing,
        host => LogPlace::Elsewhere { host: host.to_owned(), worker: owner.name.to_string() },
    })
}

/// Returns the reason why a step has no log to show: it prints none, or has not begun.
pub fn why_no_log(app: &App, known: &RunWithPlan, step: &StepRow) -> Result<String, Error> {
    let name = known.name_of(app, step.no);
    let planned = known.plan.step(step.node());
    if known.is_board() && step.item_of.is_none() {
        return Ok(format!("a board prints nothing: sprag board show {}", known.plan.name));
    }
    if step.items.is_some() {
        return Ok(format!("{name} has none of its own: its items have"));
    }
    match (planned.work, step.work) {
        (WorkKind::Child, Some(child)) => {
            let child = sprag_lifecycle::RunId::from_i64(child);
            return Ok(format!("{name} is run {child}: sprag logs {child}"));
        }
        (WorkKind::Task, _) => {
            return Ok(format!("{name} prints nothing: agents and people do it"));
        }
        (WorkKind::Gate | WorkKind::Wait | WorkKind::End, _) => {
            return Ok(format!("{name} prints nothing: no command runs in it"));
        }
        _ => {}
    }
    if matches!(step.status(), StepStatus::Skipped | StepStatus::Cancelled) {
        return Ok(format!("{name} was {} before it started", step.status()));
    }
    // The reader of the log may reach no other run.
    let waits = explain_within(app, known, &Reach::of_step(known.id()))?
        .steps
        .into_iter()
        .find(|waiting| waiting.step == name);
    Ok(match waits {
        Some(waiting) => format!("{name} has not started: it waits for {}", waiting.waits_for),
        None => format!("{name} has not started"),
    })
}

/// Returns the attempt at a step whose log is shown: the one with this number, or the last that has begun. An attempt
/// that does not exist is an error that names those that do.
pub fn find_attempt(
    app: &App,
    known: &RunWithPlan,
    no: StepNo,
    attempt: Option<u32>,
) -> Result<ExecutionRow, Error> {
    let of_step: Vec<ExecutionRow> =
        app.store.queries().executions(known.id())?.into_iter().filter(|row| row.id.step == no).collect();
    let found = match attempt {
        Some(attempt) => of_step.iter().find(|row| row.id.attempt == attempt),
        None => of_step.iter().rfind(|row| row.started_ms.is_some()).or(of_step.last()),
    };
    if let Some(found) = found {
        return Ok(found.clone());
    }
    if let (true, None, Some(step)) = (of_step.is_empty(), attempt, app.step(known.id(), no)?) {
        return Err(Error::new(ErrorKind::NotFound, why_no_log(app, known, &step)?));
    }
    let name = known.name_of(app, no);
    let which =
        attempt.map_or_else(|| "no attempt yet".to_owned(), |attempt| format!("no attempt {attempt}"));
    let numbers: Vec<String> = of_step.iter().map(|row| row.id.attempt.to_string()).collect();
    let there = match numbers.as_slice() {
        [] => "it has none yet".to_owned(),
        [one] => format!("it has only attempt {one}"),
        all => format!("it has attempts {}", all.join(", ")),
    };
    Err(Error::new(ErrorKind::NotFound, format!("step {name} of run {} has {which}", known.id())).next(there))
}

/// A part of a log that has not arrived in this data directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MissingLog {
    /// The number of missing bytes.
    pub bytes: u64,
    /// The host with the complete log.
    pub host: String,
    /// The path of the log on that host.
    pub path: String,
}

/// Returns, by number, the steps of which a part of the last log is missing here.
pub fn missing_logs(
    app: &App,
    files: &Files,
    known: &RunWithPlan,
) -> Result<BTreeMap<StepNo, MissingLog>, Error> {
    let mut missing = BTreeMap::new();
    if !files.owes_anything(known.id()) {
        return Ok(missing);
    }
    for row in app.store.queries().executions(known.id())? {
        let name = known.name_of(app, row.id.step);
        match files.owed(row.id, &name) {
            Some((owed, received)) => {
                let bytes = owed.size - received;
                missing.insert(row.id.step, MissingLog { bytes, host: owed.host, path: owed.path });
            }
            // A later attempt's log is complete.
            None if row.started_ms.is_some() => drop(missing.remove(&row.id.step)),
            None => {}
        }
    }
    Ok(missing)
}
