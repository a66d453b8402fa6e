//! Permissions that an agent asks for in the middle of its step: each is a gate of the run.
//!
//! ```text
//!   the agent asks ──▶ gate open ──▶ answered ──▶ taken once, by the execution that holds the step
//!                        │  └ nobody answers for a while: the worker parks the execution, which waits without a process
//!                        └ expired: the step fails; cancelled: the step has ended, or the agent withdrew the request
//! ```
//!
//! The number of the gate is derived from the step, the request's key (a hash of the tool and its input) and a counter. So
//! a resumed agent that asks the same again finds its answer, and an answer is used for one request alone. A step asks one
//! question at a time, which is its `work`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sprag_lifecycle::{Actor, ExecutionId, ExecutionStatus, GateEvent, GateStatus, StepStatus, mutant};

use super::Lease;
use crate::clock::fnv;
use crate::error::{Error, Result};
use crate::rows::{ExecutionRow, GateKind, GateReport, GateRow, Id, Row, StepRow};
use crate::session::Session;
use crate::wake::Topic;

/// The most equal requests of one step. An agent that asks more often is in a loop.
const MOST_EQUAL: u32 = 1000;
/// The largest question, in bytes.
const MOST_QUESTION_BYTES: usize = 64 << 10;

/// A request of an agent to use a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PermissionAsk {
    /// The hash of the tool and its input.
    pub key: String,
    /// The id of the request, unique within the agent's process.
    pub request: String,
    /// The question in one line, for people.
    pub ask: String,
    /// The tool and its input, for people and programs.
    pub details: Value,
    /// The longest wait for an answer, in milliseconds.
    pub timeout_ms: u64,
}

/// The state of a permission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum PermissionState {
    /// There is no answer yet.
    Open,
    /// A person has answered. The answer belongs to this request now.
    Answered {
        /// Whether the agent may use the tool.
        approved: bool,
        /// The person's comment.
        comment: Option<String>,
    },
    /// There was no answer in time.
    Expired,
    /// The asker does not hold the step any more, or was asked to stop.
    NotHeld,
}

/// The state of a question that an agent asks a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuestionState {
    /// There is no answer yet.
    Open,
    /// A person has answered.
    Answered {
        /// The choice.
        choice: String,
        /// The person's comment.
        comment: Option<String>,
    },
    /// There was no answer in time.
    Expired,
    /// Another question of the same step is open.
    Busy,
    /// The asker does not hold the step any more, or was asked to stop.
    NotHeld,
}

/// Returns the number of a gate for this request.
fn gate_id(id: ExecutionId, key: &str, number: u32) -> Id {
    (fnv(&format!("permission {} {} {key} {number}", id.run, id.step)) >> 2) as Id + 1
}

/// Returns the part of a gate's question that identifies a permission.
fn permission(gate: &GateRow) -> Option<Value> {
    let question: Value = serde_json::from_str(&gate.question).ok()?;
    question.get("permission").cloned()
}

/// Whether a gate is the request of an agent, and not the work of a step.
pub(super) fn is_permission(gate: &GateRow) -> bool {
    gate.kind == GateKind::Question && permission(gate).is_some()
}

/// Asks for a permission, or returns its state if the same was asked before.
pub fn ask_permission(
    session: &mut Session<'_>,
    lease: Lease,
    asked: &PermissionAsk,
) -> Result<PermissionState> {
    Ok(match ask(session, lease, asked, &["allow", "deny"])? {
        Asked::Open => PermissionState::Open,
        Asked::Answered(answer) => PermissionState::Answered {
            approved: answer["approved"] == true,
            comment: answer["comment"].as_str().map(str::to_owned),
        },
        Asked::Expired => PermissionState::Expired,
        Asked::NotHeld => PermissionState::NotHeld,
    })
}

/// Asks a question of an agent, or returns its state if the same was asked before. The agent may ask for a permission at
/// the same time; a step shows one question at a time, and the one that is open stays.
pub fn ask_question(
    session: &mut Session<'_>,
    lease: Lease,
    asked: &PermissionAsk,
    choices: &[String],
) -> Result<QuestionState> {
    let id = lease.execution;
    let shown = session.get::<StepRow>((id.run, id.step))?.and_then(|step| step.work);
    if let Some(shown) = shown
        && let Some(row) = session.get::<GateRow>(shown)?
        && row.status() == GateStatus::Open
        && permission(&row).is_some_and(|other| other["key"] != *asked.key)
    {
        return Ok(QuestionState::Busy);
    }
    let choices: Vec<&str> = choices.iter().map(String::as_str).collect();
    Ok(match ask(session, lease, asked, &choices)? {
        Asked::Open => QuestionState::Open,
        Asked::Answered(answer) => QuestionState::Answered {
            choice: answer["choice"].as_str().unwrap_or_default().to_owned(),
            comment: answer["comment"].as_str().map(str::to_owned),
        },
        Asked::Expired => QuestionState::Expired,
        Asked::NotHeld => QuestionState::NotHeld,
    })
}

/// Refuses a write of a step's agent, unless the step's execution runs under this fence and was not told to stop.
pub(crate) fn require_step(session: &mut Session<'_>, lease: Lease) -> Result<()> {
    let now_ms = session.now().steady_ms;
    match why_void(session.get::<ExecutionRow>(lease.execution)?.as_ref(), lease, now_ms) {
        None => Ok(()),
        Some(why) => Err(Error::Forbidden { why: format!("the attempt that this token belongs to {why}") }),
    }
}

/// Returns the reason why the token of an execution is void; none if it is valid.
pub fn why_void(row: Option<&ExecutionRow>, lease: Lease, now_ms: i64) -> Option<&'static str> {
    let Some(row) = row else { return Some("does not exist any more") };
    if row.status().is_terminal() {
        Some("has ended")
    } else if row.status() != ExecutionStatus::Running || row.fence != lease.fence {
        Some("belongs to another worker now")
    } else if row.cancel_requested {
        Some("was cancelled")
    } else if row.lease_until_ms <= now_ms {
        Some("has no live worker")
    } else {
        None
    }
}

/// The state of a question, with the whole answer.
enum Asked {
    Open,
    Answered(Value),
    Expired,
    NotHeld,
}

fn ask(session: &mut Session<'_>, lease: Lease, asked: &PermissionAsk, choices: &[&str]) -> Result<Asked> {
    let id = lease.execution;
    let is_held = session.get::<ExecutionRow>(id)?.is_some_and(|row| {
        row.status() == ExecutionStatus::Running && row.fence == lease.fence && !row.cancel_requested
    });
    if !is_held {
        return Ok(Asked::NotHeld);
    }
    // An answer belongs to one request of one process.
    let user = format!("{} {} {}", id.attempt, lease.fence, asked.request);
    for number in 0..MOST_EQUAL {
        let gate = gate_id(id, &asked.key, number);
        let Some(row) = session.get::<GateRow>(gate)? else {
            return open(session, lease, gate, asked, choices).map(|()| Asked::Open);
        };
        let is_same = (row.run, row.step) == (id.run, id.step)
            && permission(&row).is_some_and(|permission| permission["key"] == *asked.key);
        if !is_same {
            continue;
        }
        match row.status() {
            GateStatus::Open => {
                if expire_if_due(session, &row)? {
                    return Ok(Asked::Expired);
                }
                show(session, id, gate)?;
                return Ok(Asked::Open);
            }
            GateStatus::Answered => {
                let mut answer: Value = row
                    .answer
                    .as_deref()
                    .and_then(|text| serde_json::from_str(text).ok())
                    .unwrap_or_default();
                match answer["used_by"].as_str() {
                    None => {
                        answer["used_by"] = user.into();
                        let text: Arc<str> = answer.to_string().into();
                        session.note::<GateRow>(gate, |row| row.answer = Some(text))?;
                    }
                    Some(former) if former == user || mutant!(AnswerUsedTwice) => {}
                    Some(_) => continue,
                }
                return Ok(Asked::Answered(answer));
            }
            GateStatus::Expired | GateStatus::Cancelled => {}
        }
    }
    Err(Error::invalid("permission", format!("the agent asked for the same {MOST_EQUAL} times")))
}

/// Opens a gate for a request.
fn open(
    session: &mut Session<'_>,
    lease: Lease,
    gate: Id,
    asked: &PermissionAsk,
    choices: &[&str],
) -> Result<()> {
    let id = lease.execution;
    let question = serde_json::json!({
        "ask": asked.ask,
        "choices": choices,
        "permission": { "key": asked.key, "details": asked.details },
    })
    .to_string();
    if question.len() > MOST_QUESTION_BYTES {
        return Err(Error::invalid(
            "permission",
            format!("its text has more than {MOST_QUESTION_BYTES} bytes"),
        ));
    }
    let now = session.now();
    let timeout_ms = i64::try_from(asked.timeout_ms).unwrap_or(i64::MAX);
    session.create(
        GateRow {
            id: gate,
            status: GateStatus::Open,
            version: 1,
            run: id.run,
            step: id.step,
            attempt: id.attempt,
            kind: GateKind::Question,
            question: question.into(),
            until_ms: 0,
            opened_ms: now.wall_ms,
            answer: None,
            timeout_at_ms: now.steady_ms.saturating_add(timeout_ms).max(1),
        },
        "gate.opened",
        Actor::Worker,
    );
    show(session, id, gate)
}

/// Makes a gate the one for which the step waits, and withdraws another one.
fn show(session: &mut Session<'_>, id: ExecutionId, gate: Id) -> Result<()> {
    let Some(step) = session.get::<StepRow>((id.run, id.step))? else { return Ok(()) };
    if step.work == Some(gate) {
        return Ok(());
    }
    if let Some(former) = step.work {
        cancel_gate(session, former, Actor::Worker)?;
    }
    session.note::<StepRow>((id.run, id.step), |row| row.work = Some(gate))
}

/// Withdraws the question of a step, because its agent no longer asks.
pub fn withdraw_permission(session: &mut Session<'_>, lease: Lease) -> Result<()> {
    let id = lease.execution;
    let is_held = session
        .get::<ExecutionRow>(id)?
        .is_some_and(|row| row.status() == ExecutionStatus::Running && row.fence == lease.fence);
    let gate = session.get::<StepRow>((id.run, id.step))?.and_then(|step| step.work);
    match gate.filter(|_| is_held) {
        Some(gate) => cancel_gate(session, gate, Actor::Worker),
        None => Ok(()),
    }
}

/// Cancels a gate, if it is open.
pub(crate) fn cancel_gate(session: &mut Session<'_>, gate: Id, actor: Actor) -> Result<()> {
    let is_open = session.get::<GateRow>(gate)?.is_some_and(|row| row.status() == GateStatus::Open);
    if is_open {
        let given = GateReport { now_ms: session.now().steady_ms };
        session.apply::<GateRow>(gate, GateEvent::Cancelled, actor, &given, |_, _| {}).map(drop)?;
    }
    Ok(())
}

/// Expires a gate whose time is over. Returns whether it was.
pub(crate) fn expire_if_due(session: &mut Session<'_>, gate: &GateRow) -> Result<bool> {
    let now_ms = session.now().steady_ms;
    if gate.timeout_at_ms == 0 || gate.timeout_at_ms > now_ms {
        return Ok(false);
    }
    let given = GateReport { now_ms };
    let outcome =
        session.apply::<GateRow>(gate.id, GateEvent::Expired, Actor::Executor, &given, |_, _| {})?;
    Ok(outcome.is_applied())
}

/// Continues a step whose agent waited for an answer without a process. A worker that waits for the answer finds it by
/// itself.
pub(super) fn continue_parked(session: &mut Session<'_>, gate: &GateRow) -> Result<()> {
    session.announce(Topic::Run(gate.run));
    let Some(step) = session.get::<StepRow>((gate.run, gate.step))? else { return Ok(()) };
    if matches!(step.status(), StepStatus::Pending | StepStatus::Running) {
        let id = ExecutionId { run: gate.run, step: gate.step, attempt: step.attempt };
        super::schedule(session, id)?;
    }
    Ok(())
}
