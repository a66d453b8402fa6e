//! What failed in a run, and why: each failed step with its exit code, its attempts, and the last lines that it printed.

use std::collections::BTreeSet;
use std::io::{Read, Seek, SeekFrom};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sprag_lifecycle::{RunId, StepStatus, Word, WorkKind};
use sprag_process::{LineJoiner, LogEntry, open_regular};
use sprag_store::{ExecutionRow, Row, RunInFull, StepRow, is_current, step_name};

use crate::App;
use crate::error::Error;
use crate::items::{item_names, named_item};
use crate::known::RunWithPlan;
use crate::text::{command_line, plain};

/// The most failed steps that are described.
const MOST_STEPS: usize = 100;
/// The deepest nesting of child runs that is searched.
const DEEPEST: u32 = 8;
/// The number of lines that are shown of each log.
const LINES: usize = 10;
/// The part of a log that is read for its last lines, in bytes.
const TAIL_BYTES: u64 = 64 << 10;

/// A step that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailedStep {
    /// The run: the one that was asked about, or a child run.
    pub run: String,
    /// The step's id; an item of a fan-out is `step[2]`.
    pub step: String,
    /// The value of the item for people; absent for other steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
    /// The number of the last attempt.
    pub attempt: u32,
    /// The number of attempts that the pipeline allows in one round.
    pub attempts: u32,
    /// The reason, such as `exit code 3`.
    pub why: String,
    /// The last lines that the attempt printed, as far as its log is here.
    pub last_lines: Vec<String>,
}

impl FailedStep {
    /// Describes the failure in one line: `test failed: exit code 3, attempt 2 of 2`.
    pub fn line(&self) -> String {
        let FailedStep { step, why, attempt, attempts, .. } = self;
        let tries = match (*attempt, *attempts) {
            (1, 1) => String::new(),
            (attempt, attempts) if attempt <= attempts => format!(", attempt {attempt} of {attempts}"),
            (attempt, _) => format!(", attempt {attempt}"),
        };
        format!("{} failed: {why}{tries}", named_item(step, self.item.as_deref()))
    }
}

/// Returns a few words on why a step of this run failed, from its result, and the next action where only a person can
/// act.
pub fn why_failed(run: RunId, result: &str) -> Option<String> {
    let facts: Value = serde_json::from_str(result).ok()?;
    if let (Some("blocked"), Some(message), Some(remedy)) =
        (facts["reason"].as_str(), facts["message"].as_str(), facts["remedy"].as_str())
    {
        return Some(plain(&format!("blocked: {message}; {remedy}, then: sprag resume {run}")));
    }
    if let Some(could_not) = facts["reason"].get("could_not_start") {
        return could_not["message"].as_str().map(plain);
    }
    if let Some(message) = facts["message"].as_str() {
        return Some(plain(message));
    }
    if let Some(code) = facts["exit_code"].as_i64() {
        return Some(format!("exit code {code}"));
    }
    facts["signal"].as_i64().map(|signal| format!("ended by signal {signal}"))
}

/// Returns a few words on why an attempt failed.
pub fn why_attempt_failed(row: &ExecutionRow) -> String {
    why_ended(row.id.run, row.status().as_str(), row.result.as_deref())
}

/// Returns a few words on why an attempt failed that ended with this status and result.
pub fn why_ended(run: RunId, status: &str, result: Option<&str>) -> String {
    let told = match status {
        "timed_out" => Some("took too long".to_owned()),
        "abandoned" => Some("its worker was lost".to_owned()),
        _ => result.and_then(|result| why_failed(run, result)),
    };
    told.unwrap_or_else(|| "no reason was reported".to_owned())
}

/// Returns a few words on why a step failed, whose last attempt this is; a fan-out and a child pipeline have none.
pub fn why_step_failed(app: &App, work: WorkKind, step: &StepRow, last: Option<&ExecutionRow>) -> String {
    if let Some(items) = step.items.map(|list| list.items).filter(|items| items.failed > 0) {
        return format!("{} of {} items failed", items.failed, items.total);
    }
    if let (WorkKind::Child, Some(child)) = (work, step.work) {
        let child = RunId::from_i64(child);
        let first = RunWithPlan::load(app, child).and_then(|known| failures(app, &known));
        if let Some(first) = first.ok().and_then(|all| all.into_iter().next()) {
            return format!("run {child}: {}", first.line());
        }
    }
    last.map_or_else(|| no_attempt(app, work, step), why_attempt_failed)
}

/// Returns the failed steps of a run and of its child runs. A fan-out is represented by its failed items, and a child
/// pipeline by its failed steps.
pub fn failures(app: &App, known: &RunWithPlan) -> Result<Vec<FailedStep>, Error> {
    let mut found = Vec::new();
    collect(app, known, 0, &mut found)?;
    Ok(found)
}

fn collect(app: &App, known: &RunWithPlan, depth: u32, found: &mut Vec<FailedStep>) -> Result<(), Error> {
    let Some(RunInFull { steps, executions, .. }) = app.run_in_full(known.id())? else { return Ok(()) };
    let failed = |step: &&StepRow| {
        step.status() == StepStatus::Failed && !step.rework_pending && is_current(&steps, step)
    };
    let represented: BTreeSet<_> = steps.iter().filter(failed).filter_map(|step| step.item_of).collect();
    let alone = || steps.iter().filter(failed).filter(|step| !represented.contains(&step.no));
    let mut items = item_names(app, &known.plan, alone())?;
    for step in alone() {
        if found.len() >= MOST_STEPS {
            break;
        }
        let planned = known.plan.step(step.node());
        if let (WorkKind::Child, Some(child)) = (planned.work, step.work)
            && depth < DEEPEST
            && let Ok(child) = RunWithPlan::load(app, RunId::from_i64(child))
        {
            let before = found.len();
            collect(app, &child, depth + 1, found)?;
            if found.len() > before {
                continue;
            }
        }
        let last = executions.iter().rfind(|row| row.id.step == step.no);
        let name = step_name(&known.plan, step);
        found.push(FailedStep {
            run: known.id().to_string(),
            item: items.remove(&step.no),
            attempt: step.attempt,
            attempts: planned.policy.attempts,
            why: why_step_failed(app, planned.work, step, last),
            last_lines: last.map(|row| last_lines(app, row, &name)).unwrap_or_default(),
            step: name,
        });
    }
    Ok(())
}

/// Returns why a step without attempts failed.
fn no_attempt(app: &App, work: WorkKind, step: &StepRow) -> String {
    let gate = step.work.filter(|_| work == WorkKind::Gate);
    let gate = gate.and_then(|gate| app.store.queries().gate(gate).ok().flatten());
    if let Some(answer) = gate.and_then(|gate| gate.answer) {
        let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
        let comment = answer["comment"].as_str().filter(|comment| !comment.is_empty());
        let comment = comment.map(|comment| format!(": {comment}")).unwrap_or_default();
        return plain(&format!("it was answered {}{comment}", answer["choice"]));
    }
    if let Some(told) = step.feedback.as_deref().filter(|told| !told.is_empty()) {
        return plain(told.lines().next().unwrap_or_default());
    }
    let told = match work {
        WorkKind::Gate => "it was not answered in time",
        WorkKind::Wait => "what it waited for did not come in time",
        WorkKind::Child => "its run did not complete",
        _ => "no reason was reported",
    };
    told.to_owned()
}

/// Returns the last lines that an attempt printed; none if its log is not here.
pub(crate) fn last_lines(app: &App, row: &ExecutionRow, name: &str) -> Vec<String> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = open_regular(&app.files().log(row.id, name))?;
        let from = file.metadata()?.len().saturating_sub(TAIL_BYTES);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        // The first line may be cut off.
        let start =
            if from > 0 { bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1) } else { 0 };
        bytes.drain(..start);
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let mut joiner = LineJoiner::default();
    let text = String::from_utf8_lossy(&bytes);
    let entries = text.lines().filter_map(LogEntry::parse);
    let mut lines: Vec<LogEntry> = entries.filter_map(|entry| joiner.add(entry)).collect();
    lines.extend(joiner.rest());
    let skipped = lines.len().saturating_sub(LINES);
    lines[skipped..].iter().map(|entry| command_line(&entry.text, false)).collect()
}
