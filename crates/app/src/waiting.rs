//! Finding out what a run waits for while no worker executes it, so that a program that waits for the run can tell
//! its user.

use std::sync::Arc;

use sprag_lifecycle::{ExecutionId, ExecutionStatus, RunId, RunStatus, StepStatus, WorkKind};
use sprag_store::{GateKind, GateRow, Row, UnsettledRun};
use sprag_sweeper::{Config, Executor};

use crate::App;
use crate::engine::ThisHost;
use crate::error::Error;
use crate::explain::{Wait, explain};
use crate::known::RunWithPlan;
use crate::text::{local, span};

/// The deepest nesting of child runs that is searched.
const DEEPEST: u32 = 32;

/// The state of a run, as a person who waits for it sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Course {
    /// The run has ended.
    Ended,
    /// Workers execute steps of the run, or of its child runs.
    Works {
        /// The names of these steps.
        steps: Vec<String>,
        /// What other steps wait for meanwhile, besides a free slot.
        waits: Vec<Waiting>,
    },
    /// No step of the run is executed; it waits for this.
    Waits(Vec<Waiting>),
}

impl Course {
    /// Returns what the run waits for, or what some of its steps wait for while others are executed.
    pub fn waits(&self) -> &[Waiting] {
        match self {
            Course::Ended => &[],
            Course::Works { waits, .. } | Course::Waits(waits) => waits,
        }
    }
}

/// One thing that a run waits for.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The run that waits: the one that was asked about, or a child run.
    pub run: RunId,
    /// The step that waits; none if the whole run does.
    pub step: Option<String>,
    /// A description of what it waits for, and what to do about it.
    pub what: String,
    /// Whether it waits for a question, a time or a signal: the run reports those by itself when it reaches them.
    pub is_gate: bool,
    /// The time at which the wait began, in milliseconds of the wall clock.
    pub since_ms: Option<i64>,
    /// The time at which the wait ends at the latest, in milliseconds of the wall clock.
    pub until_ms: Option<i64>,
}

/// Two waits are equal if they say the same. The end of a wait is counted from now, and differs by a millisecond.
impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        (self.run, &self.step, &self.what) == (other.run, &other.step, &other.what)
    }
}

impl Eq for Waiting {}

impl Waiting {
    /// Formats the wait in one line, for people: for what, since when, until when.
    pub fn line(&self, now_ms: i64) -> String {
        let since = self.since_ms.map(|since| format!("since {}", local(since)));
        let until = self.until_ms.map(|until| format!("until {}, in {}", local(until), span(until - now_ms)));
        let times: Vec<String> = since.into_iter().chain(until).collect();
        let times = if times.is_empty() { String::new() } else { format!(" ({})", times.join("; ")) };
        format!("{}{times}", self.subject())
    }

    /// Formats the wait in one line that is drawn anew every moment: the times count up and down.
    pub fn live_line(&self, now_ms: i64) -> String {
        let since = self.since_ms.map(|since| format!(" for {}", whole_span(now_ms - since)));
        let until = self.until_ms.map(|until| format!(", {} left", whole_span(until - now_ms)));
        format!("waiting{}{}: {}", since.unwrap_or_default(), until.unwrap_or_default(), self.subject())
    }

    fn subject(&self) -> String {
        let step = self.step.as_ref().map(|step| format!("{step}: ")).unwrap_or_default();
        format!("{step}{}", self.what.replace('\n', " "))
    }
}

/// Formats a span in whole seconds.
fn whole_span(ms: i64) -> String {
    match ms.max(0) / 1000 {
        s @ 0..60 => format!("{s}s"),
        s => span(s * 1000),
    }
}

/// Looks at the state of a run and of its child runs.
pub fn course(app: &App, run: RunId) -> Result<Course, Error> {
    let mut seen = Seen::default();
    look(app, run, 0, &mut seen)?;
    let row = app.store.queries().run(run)?;
    if row.is_none_or(|row| row.status().is_terminal()) {
        return Ok(Course::Ended);
    }
    if !seen.works.is_empty() {
        return Ok(Course::Works { steps: seen.works, waits: seen.waits });
    }
    seen.waits.append(&mut seen.slots);
    if seen.waits.is_empty() {
        // The run is between two steps; or it stays like this, where no process looks after it.
        let what = format!("a process that continues it: sprag resume {run}, or sprag worker");
        seen.waits.push(Waiting { run, step: None, what, is_gate: false, since_ms: None, until_ms: None });
    }
    Ok(Course::Waits(seen.waits))
}

#[derive(Default)]
struct Seen {
    works: Vec<String>,
    waits: Vec<Waiting>,
    /// Waits for a free slot, which are usual while other steps are executed.
    slots: Vec<Waiting>,
}

fn look(app: &App, run: RunId, depth: u32, seen: &mut Seen) -> Result<(), Error> {
    if depth > DEEPEST {
        return Ok(());
    }
    let known = RunWithPlan::load(app, run)?;
    let told = explain(app, &known)?;
    let whole = told.waits_for.map(|what| Waiting {
        run,
        step: None,
        what,
        is_gate: false,
        since_ms: Some(known.run.created_ms),
        until_ms: None,
    });
    let queued = whole.is_some();
    seen.waits.extend(whole);
    for step in told.steps {
        match step.wait {
            // The steps of a queued run wait for the run.
            _ if queued => {}
            Wait::Work => seen.works.push(step.step),
            Wait::Child(child) => look(app, child, depth + 1, seen)?,
            Wait::Needs | Wait::Items | Wait::Service => {}
            Wait::Gate | Wait::LeaseHolder | Wait::Outside | Wait::Slot => {
                let what = match step.wait {
                    Wait::Gate => format!("{} ({})", step.waits_for, step.owner),
                    Wait::LeaseHolder => step.owner,
                    _ => step.waits_for,
                };
                let is_gate = step.wait == Wait::Gate;
                let list = if step.wait == Wait::Slot { &mut seen.slots } else { &mut seen.waits };
                list.push(Waiting {
                    run,
                    step: Some(step.key.unwrap_or(step.step)),
                    what,
                    is_gate,
                    since_ms: step.since_ms,
                    until_ms: step.until_ms,
                });
            }
        }
    }
    Ok(())
}

/// Returns the open questions of a run and of its child runs, if nothing else of it is active: no step, no wait, no
/// other run. A question whose time is over is about to end, and no longer waits for an answer.
pub fn questions_alone(app: &App, run: RunId) -> Result<Vec<GateRow>, Error> {
    let now_ms = app.store.now().steady_ms;
    let Some(UnsettledRun { run: row, plan: Some(plan), steps, gates }) =
        app.store.queries().unsettled(run)?
    else {
        return Ok(Vec::new());
    };
    if row.status() == RunStatus::Queued {
        return Ok(Vec::new());
    }
    let mut questions: Vec<GateRow> = Vec::new();
    for step in steps {
        let busy = matches!(step.status(), StepStatus::Pending | StepStatus::Running);
        // A service runs as long as its run, and is no reason to wait for.
        let is_service = plan.step(step.node()).service;
        if !busy && !step.rework_pending || step.items.is_some() || is_service {
            continue;
        }
        let asked = gates.iter().find(|gate| Some(gate.id) == step.work && gate.kind == GateKind::Question);
        match (asked, plan.step(step.node()).work, step.work) {
            (Some(gate), _, _) if gate.timeout_at_ms > 0 && gate.timeout_at_ms <= now_ms => {
                return Ok(Vec::new());
            }
            (Some(gate), _, _) => questions.push(gate.clone()),
            (None, WorkKind::Child, Some(child)) => {
                let of_child = questions_alone(app, RunId::from_i64(child))?;
                if of_child.is_empty() {
                    return Ok(Vec::new());
                }
                questions.extend(of_child);
            }
            _ => return Ok(Vec::new()),
        }
    }
    Ok(questions)
}

/// Whether an agent's process waits for the answer to this question. It ends if its worker stops.
pub fn agent_waits(app: &App, gate: &GateRow) -> Result<bool, Error> {
    let Some(step) = app.step(gate.run, gate.step)? else { return Ok(false) };
    let id = ExecutionId { run: gate.run, step: gate.step, attempt: step.attempt };
    Ok(app.execution(id)?.is_some_and(|row| row.status() == ExecutionStatus::Running))
}

/// Fires what is due by the clock in a run and its child runs: where no server and no worker runs, no other process
/// does.
pub async fn keep_time(app: &App, run: RunId) -> Result<(), Error> {
    let config = Config { only: Some(run), ..Config::default() };
    Ok(Executor::new(app.store.clone(), config, Arc::new(ThisHost)).keep_time().await?)
}
