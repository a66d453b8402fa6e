//! The rows of triggers: rules, the events that reached them, and the decisions.

use std::sync::Arc;

use sprag_lifecycle::{
    Enforcement, EnforcementFacts, EnforcementStatus, RuleFacts, RuleStatus, RunId, TriggerRule,
};

use super::{Id, Position, Row, Status, WriterOnly};

/// A rule: it starts runs from events.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RuleRow {
    /// The rule's number.
    pub id: Id,
    pub(crate) status: RuleStatus,
    pub(crate) version: u32,
    /// The full name, `PIPELINE/RULE`; unique.
    pub name: Arc<str>,
    /// The number of definitions that were applied so far, from 1 on.
    pub generation: u32,
    /// The definition, as JSON: the rule, its pipeline, and the project's folder.
    pub definition: Arc<str>,
    /// The hash of the definition without its file and folder, by which a repeated request to apply it is recognised.
    pub hash: Arc<str>,
    /// The word of the source of its events: `schedule`, `run`, `git`.
    pub source: Arc<str>,
    /// The time at which the next tick fires (wall clock), jitter included, or of the next look at a repository; absent
    /// if the rule has none.
    pub next_ms: Option<i64>,
    /// The key of that tick; empty if there is none.
    pub next_key: Arc<str>,
    /// The position up to which events are decided: the nominal time of the last tick (wall clock), the number of the
    /// last journal entry for a rule about other runs, or the number of changes seen in a repository.
    pub cursor: i64,
    /// The state that it saw last of what it watches, as JSON; absent before the first look and for other sources.
    pub watched: Option<Arc<str>>,
    /// The run that it started last.
    pub run: Option<RunId>,
    /// The reason why it is paused or broken, or why an active rule cannot see what it watches.
    pub reason: Option<Arc<str>>,
    /// The number of ticks that were missed so far.
    pub missed: i64,
    /// The time up to which its rate is used (steady).
    pub rate_ms: i64,
    /// The time of the last change of its definition (wall clock).
    pub changed_ms: i64,
    /// The time of creation (wall clock).
    pub created_ms: i64,
}

/// The facts that a reporter gives besides a rule's row.
#[derive(Debug, Clone, Copy)]
pub struct RuleReport {
    /// The generation that the reporter read.
    pub generation: u32,
}

impl Row for RuleRow {
    row_basics!(TriggerRule, Id, RuleReport);

    fn key(&self) -> Id {
        self.id
    }

    fn facts(&self, given: &RuleReport) -> RuleFacts {
        RuleFacts { version_matches: given.generation == self.generation }
    }

    fn place(&self) -> Position {
        Position { id: Some(self.id), ..Position::default() }
    }

    fn note(&self) -> Option<Arc<str>> {
        let mut note = serde_json::json!({ "name": &*self.name, "generation": self.generation });
        if let Some(reason) = &self.reason {
            note["reason"] = (**reason).into();
        }
        Some(note.to_string().into())
    }
}

/// An event that reached a rule: a tick, a request, the end of a run. It never changes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DeliveryRow {
    /// The event's number.
    pub id: Id,
    /// The rule that it reached.
    pub rule: Id,
    /// The key under which the rule takes it once.
    pub key: Arc<str>,
    /// The word of its kind: `tick`, `missed`, `manual`, `webhook`, `run`, `move`.
    pub kind: Arc<str>,
    /// The names that conditions and inputs can use, as JSON.
    pub body: Arc<str>,
    /// The rules whose runs led to it, as a JSON list of names.
    pub chain: Arc<str>,
    /// The time of receipt (wall clock).
    pub received_ms: i64,
}

/// A match of a rule and an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EnforcementRow {
    /// The enforcement's number.
    pub id: Id,
    pub(crate) status: EnforcementStatus,
    pub(crate) version: u32,
    /// The rule.
    pub rule: Id,
    /// The event that the rule matched.
    pub event: Id,
    /// The number of times that the event was given to the rule, from 1 on; a replay is a new one.
    pub generation: u32,
    /// The run that it started.
    pub run: Option<RunId>,
    /// The reason of the decision.
    pub reason: Option<Arc<str>>,
    /// The earliest time of the decision (steady).
    pub due_ms: i64,
    /// The time of the first event of its window (steady).
    pub first_ms: i64,
    /// The key of its window; events with the same key become one run. Absent without a window.
    pub window: Option<Arc<str>>,
    /// The time of creation (wall clock).
    pub created_ms: i64,
}

/// The facts that a reporter gives besides an enforcement's row.
#[derive(Debug, Clone, Copy)]
pub struct EnforcementReport {
    /// Whether the rule is active.
    pub rule_active: bool,
    /// Whether the rule still has the definition that the decision was made by.
    pub rule_unchanged: bool,
    /// The present time (steady).
    pub now_ms: i64,
}

impl Row for EnforcementRow {
    row_basics!(Enforcement, Id, EnforcementReport);

    fn key(&self) -> Id {
        self.id
    }

    fn facts(&self, given: &EnforcementReport) -> EnforcementFacts {
        EnforcementFacts {
            rule_active: given.rule_active,
            rule_unchanged: given.rule_unchanged,
            due: self.due_ms <= given.now_ms,
        }
    }

    fn place(&self) -> Position {
        Position { run: self.run, id: Some(self.id), ..Position::default() }
    }

    fn note(&self) -> Option<Arc<str>> {
        let mut note = serde_json::json!({ "rule": self.rule, "event": self.event });
        if let Some(reason) = &self.reason {
            note["reason"] = (**reason).into();
        }
        Some(note.to_string().into())
    }
}
