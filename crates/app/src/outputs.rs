//! The outputs of steps: of a handler, a command, a question, a child run, a fan-out.

use serde_json::{Value, json};
use sprag_lifecycle::{ExecutionId, ExecutionStatus, RunId, StepStatus};
use sprag_process::{LineJoiner, LogReader};
use sprag_store::{ExecutionRow, Row, RunRow, StepOutput, is_current, outputs_of, step_name};

use crate::App;
use crate::error::Error;
use crate::known::RunWithPlan;
use crate::logs::find_attempt;

/// A step of a run, as it was when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepState {
    /// The step's id; an item of a fan-out is `step[2]`.
    pub id: String,
    /// The step's status.
    pub status: StepStatus,
    /// The number of the last attempt, from 1; 0 if none was made.
    pub attempt: u32,
    /// The message of the last attempt, if the step has failed.
    pub error: Option<String>,
}

impl App {
    /// Returns the steps of a run that count, in the order of its pipeline; items follow after all planned steps.
    pub fn step_states(&self, run: RunId) -> Result<Vec<StepState>, Error> {
        let known = RunWithPlan::load(self, run)?;
        let steps = self.store.queries().steps(run)?;
        let mut states = Vec::new();
        for row in steps.iter().filter(|row| is_current(&steps, row)) {
            let id = ExecutionId { run, step: row.no, attempt: row.attempt };
            // An attempt that has failed stays as it is, so that it may be read after the steps.
            let error = match row.status() {
                StepStatus::Failed => self.store.queries().execution(id)?.map(|row| failure(&row)),
                _ => None,
            };
            let (id, status) = (step_name(&known.plan, row), row.status());
            states.push(StepState { id, status, attempt: row.attempt, error });
        }
        Ok(states)
    }

    /// Returns the lines of the log of a step's last attempt, as far as they are in this data directory.
    pub fn log_lines(&self, run: RunId, step: &str) -> Result<Vec<String>, Error> {
        let (known, step) = RunWithPlan::load(self, run)?.enter(self, step)?;
        let attempt = find_attempt(self, &known, known.find_step(&step, Some(self))?, None)?;
        let log = self.files().log(attempt.id, &step);
        if !log.exists() {
            return Ok(Vec::new());
        }
        let entries = LogReader::new(&log)
            .read_all()
            .map_err(|error| Error::bug(format!("the log {} cannot be read: {error}", log.display())))?;
        let mut joiner = LineJoiner::default();
        let mut lines: Vec<String> =
            entries.into_iter().filter_map(|entry| joiner.add(entry)).map(|entry| entry.text).collect();
        lines.extend(joiner.rest().map(|entry| entry.text));
        Ok(lines)
    }

    /// Returns the outputs that a run's pipeline declares; none if it declares none, or if the run has not ended.
    pub fn run_outputs(&self, run: &RunRow) -> Result<Option<Value>, Error> {
        if !run.status().is_terminal() {
            return Ok(None);
        }
        Ok(self.store.queries().run_outputs(run.id)?)
    }

    /// Returns what a step produced; none if it has not succeeded, or not yet.
    ///
    /// Of a handler that is the value that it returned, of a command the object of its declared outputs, of a question
    /// the answer, of a signal its payload, of a child run the outputs that its pipeline declares (without a
    /// declaration those of its steps, by their ids), and of a fan-out the list of its items' outputs. An item is named
    /// like `each[2]`.
    pub fn output(&self, run: RunId, step: &str) -> Result<Option<Value>, Error> {
        let known = RunWithPlan::load(self, run)?;
        let no = known.find_step(step, Some(self))?;
        Ok(self.store.queries().step_output(run, no)?.as_ref().map(value_of))
    }
}

/// Returns the message of an attempt that failed.
fn failure(row: &ExecutionRow) -> String {
    let result: Value =
        row.result.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    match (row.status(), result["message"].as_str(), result["exit_code"].as_i64()) {
        (_, Some(message), _) => message.to_owned(),
        (ExecutionStatus::TimedOut, None, _) => "it took too long".to_owned(),
        (_, None, Some(code)) => format!("exit code {code}"),
        (status, None, None) => status.to_string(),
    }
}

/// Returns the output of a step, parsed.
fn value_of(output: &StepOutput) -> Value {
    match output {
        StepOutput::Reported(None) => json!({}),
        StepOutput::Reported(Some(result)) => reported(result),
        StepOutput::Answer(answer) => {
            answer.as_deref().and_then(|answer| serde_json::from_str(answer).ok()).unwrap_or(json!({}))
        }
        StepOutput::Items(items) => {
            Value::Array(items.iter().map(|item| item.as_ref().map(value_of).unwrap_or_default()).collect())
        }
        StepOutput::Run(steps) => {
            let of_step = |(id, output): &(String, Option<StepOutput>)| {
                (id.clone(), output.as_ref().map(value_of).unwrap_or_default())
            };
            Value::Object(steps.iter().map(of_step).collect())
        }
        StepOutput::Declared(outputs) => outputs.clone(),
    }
}

/// Returns the output in the result that a worker reported: a handler's value as it is, or an object of outputs.
fn reported(result: &str) -> Value {
    let facts: Value = serde_json::from_str(result).unwrap_or_default();
    match (facts.get("outputs"), facts.get("output")) {
        (None, Some(output)) => output.clone(),
        _ => outputs_of(result),
    }
}
