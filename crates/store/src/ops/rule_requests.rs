//! The requests and answers of the operations on rules.

use std::sync::Arc;

use sprag_lifecycle::RunId;

use super::{NewRun, NextTick, RuleSeen};
use crate::rows::Id;

/// An event to store.
#[derive(Debug, Clone)]
pub struct NewDelivery {
    /// The number that the event gets if it is new.
    pub id: Id,
    /// The number that its enforcement gets.
    pub enforcement: Id,
    /// The key under which the rule takes it once.
    pub key: Arc<str>,
    /// The word of its kind.
    pub kind: &'static str,
    /// The names that conditions and inputs can use, as JSON.
    pub body: Arc<str>,
    /// The rules whose runs led to it, as a JSON list.
    pub chain: Arc<str>,
}

/// A caller's decision about an event, by the rule's definition.
#[derive(Debug, Clone)]
pub enum TriggerDecision {
    /// Start a run.
    Start(Box<TriggeredRun>),
    /// Start nothing, for this reason.
    Skip(Arc<str>),
    /// The condition or the inputs have no value, for this reason.
    Fail(Arc<str>),
}

/// The run that an event starts.
#[derive(Debug, Clone)]
pub struct TriggeredRun {
    /// The run.
    pub new: NewRun,
    /// The hash of its plan.
    pub plan_hash: i64,
    /// The treatment of an earlier run of the rule that has not ended.
    pub overlap: Overlap,
    /// The window in which several events become one run.
    pub window: Option<Window>,
    /// The limit on the rule's runs in a time.
    pub rate: Option<Rate>,
}

/// The treatment of an earlier run of a rule that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlap {
    /// Start nothing.
    Skip,
    /// Start after it; one run waits at most.
    Queue,
    /// Cancel it.
    CancelOlder,
    /// Start beside it.
    Allow,
}

/// A window in which several events become one run.
#[derive(Debug, Clone)]
pub struct Window {
    /// The key that the events share.
    pub key: Arc<str>,
    /// The time without a further event after which the run starts.
    pub for_ms: i64,
    /// The longest time after the first event.
    pub at_most_ms: i64,
}

/// A limit on a rule's runs in a time.
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    /// The most runs.
    pub limit: i64,
    /// The time.
    pub per_ms: i64,
    /// Whether an event beyond the limit waits; otherwise it is skipped.
    pub hold: bool,
}

/// A due tick of a rule, with the caller's decision.
#[derive(Debug, Clone)]
pub struct FireTick {
    /// The rule as the caller read it.
    pub seen: RuleSeen,
    /// The ticks before it that no process saw, as one event, and their number.
    pub missed: Option<(NewDelivery, i64)>,
    /// The tick; absent if all due ticks were missed.
    pub tick: Option<(NewDelivery, TriggerDecision)>,
    /// The next tick.
    pub next: Option<NextTick>,
    /// The cursor afterwards.
    pub cursor: i64,
}

/// An event that a rule found by itself, with the caller's decision: the end of a run, or the move of a ref.
#[derive(Debug, Clone)]
pub struct FireEvent {
    /// The rule as the caller read it.
    pub seen: RuleSeen,
    /// The event; absent if only the cursor moves.
    pub event: Option<(NewDelivery, TriggerDecision)>,
    /// The cursor afterwards.
    pub cursor: i64,
    /// The state that the rule then has seen; absent if it has none.
    pub watched: Option<Arc<str>>,
}

/// The result of firing a tick or an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fired {
    /// The rule has changed, or another process was faster: nothing was written.
    Superseded,
    /// The tick was decided.
    Decided {
        /// The enforcement; absent if the tick was decided before, or was missed.
        enforcement: Option<Id>,
        /// The run that it started.
        run: Option<RunId>,
    },
}

/// The receipt for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// The event's number, the same for each repetition.
    pub event: Id,
    /// Whether it is new.
    pub is_new: bool,
}

/// The result of a decision about an enforcement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// The rule has changed since the caller read it: read again, and decide again.
    Superseded,
    /// It was decided before, or does not exist.
    Over,
    /// It waits.
    Held,
    /// Its run was started.
    Requested(RunId),
    /// Nothing starts.
    Skipped,
    /// Nothing starts, because of a mistake.
    Failed,
}

impl Settled {
    /// Returns the run that was started.
    pub fn run(&self) -> Option<RunId> {
        match self {
            Settled::Requested(run) => Some(*run),
            _ => None,
        }
    }
}
