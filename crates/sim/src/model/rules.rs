//! The model of a rule with several servers: each reads what is due and commits its decision later, or dies in between,
//! while people pause, resume and change the rule, and events arrive more than once.

use std::collections::BTreeSet;
use std::sync::Arc;

use sprag_lifecycle::{Actor, EnforcementStatus, Plan, PlanStep, RuleEvent, RuleStatus, RunId};
use sprag_store::testing::{Session, Tables, ops};
use sprag_store::{
    FireEvent, FireTick, Id, NewDelivery, NewRule, NextTick, Now, Overlap, Result, Row, RuleChange, RuleRow,
    RuleSeen, TriggerDecision, TriggeredRun,
};
use stateright::{Model, Property};

use crate::check::Violation;

const RULE: Id = 1;

/// The model of a rule.
#[derive(Debug, Clone, Copy)]
pub struct RuleModel {
    /// The number of servers.
    pub servers: usize,
    /// The number of ticks.
    pub ticks: i64,
    /// The number of different events from outside.
    pub events: usize,
    /// The number of times that people pause, resume or change the rule.
    pub changes: u8,
    /// Whether the ticks are events that the rule finds by itself: ends of runs, moves of refs.
    pub finds: bool,
}

/// The state of a rule and of the servers.
#[derive(Debug, Clone)]
pub struct RuleState {
    tables: Tables,
    /// What each server has read and not committed yet.
    servers: Vec<Option<Read>>,
    /// The present time; tick `n` is due at `n`.
    now: i64,
    changes: u8,
    /// Ticks that a person's change left behind.
    excused: BTreeSet<i64>,
    finds: bool,
    /// The last number that was drawn.
    drawn: i64,
    violation: Option<Violation>,
}

/// A server's knowledge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Read {
    /// The rule, with a tick that is due.
    Tick(RuleSeen, i64),
    /// An enforcement that waits, and the generation of its rule.
    Waiting(Id, u32),
}

/// An action in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleAction {
    /// Time passes until the next tick.
    Pass,
    /// A server reads a due tick.
    ReadTick(usize),
    /// A server reads an enforcement that waits.
    ReadWaiting(usize),
    /// A server commits its decision.
    Commit(usize),
    /// A server dies before it commits.
    Die(usize),
    /// An event arrives, perhaps again.
    Receive(usize),
    /// A person pauses the rule.
    Pause,
    /// A person resumes the rule, with or without the missed ticks.
    Resume(bool),
    /// A person applies another definition.
    Apply,
}

impl RuleState {
    fn rule(&self) -> &RuleRow {
        self.tables.all_rules().next().expect("the rule is there")
    }

    fn draw(&mut self) -> i64 {
        self.drawn += 1;
        self.drawn
    }

    fn transact<T>(&mut self, operation: impl FnOnce(&mut Session<'_>) -> Result<T>) -> Option<T> {
        let now = Now { wall_ms: self.now, steady_ms: self.now };
        let done = self.tables.transact(now, &mut || 4, operation);
        self.tables.forget_history();
        done.ok()
    }

    fn decision(&mut self) -> TriggerDecision {
        let plan = Arc::new(Plan::new("p", vec![PlanStep::new("a", vec![])]).expect("a plan"));
        let plan_hash = sprag_store::plan_hash(&plan);
        let new = sprag_store::NewRun::new(RunId::from_i64(self.draw()), plan);
        let (overlap, window, rate) = (Overlap::Allow, None, None);
        TriggerDecision::Start(Box::new(TriggeredRun { new, plan_hash, overlap, window, rate }))
    }

    fn event(&mut self, key: &str) -> NewDelivery {
        NewDelivery {
            id: self.draw(),
            enforcement: self.draw(),
            key: key.into(),
            kind: "tick",
            body: "{}".into(),
            chain: "[]".into(),
        }
    }

    fn runs(&self) -> usize {
        self.tables.all_runs().count()
    }

    /// Commits what a server has read.
    fn commit(&mut self, read: Read) {
        let (was_active, before) = (self.rule().status() == RuleStatus::Active, self.runs());
        let decision = self.decision();
        match read {
            Read::Tick(seen, n) => {
                let event = Some((self.event(&format!("tick {n}")), decision));
                if self.finds {
                    let fire = FireEvent { seen, event, cursor: n, watched: None };
                    self.transact(|session| ops::fire_event(session, &fire));
                    return self.committed(read, was_active, before);
                }
                let next = Some(next(n + 1));
                let fire = FireTick { seen, missed: None, tick: event, next, cursor: n };
                self.transact(|session| ops::fire_tick(session, &fire));
            }
            Read::Waiting(enforcement, generation) => {
                self.transact(|session| ops::decide_enforcement(session, enforcement, generation, &decision));
            }
        }
        self.committed(read, was_active, before);
    }

    /// Checks what a commit did to a rule with this number of runs before.
    fn committed(&mut self, read: Read, was_active: bool, before: usize) {
        if self.runs() > before && !was_active {
            self.violate("R10 nothing starts while a rule is not active", format!("{read:?}"));
        }
        self.check();
    }

    fn violate(&mut self, invariant: &'static str, seen: String) {
        self.violation.get_or_insert(Violation { invariant, seen });
    }

    fn check(&mut self) {
        let mut keys = BTreeSet::new();
        let mut wrong = Vec::new();
        let cursor = self.rule().cursor;
        for event in self.tables.all_deliveries() {
            if !keys.insert(event.key.to_string()) {
                wrong.push(("R01 an event is taken once", format!("{} twice", event.key)));
            }
            let n: Option<i64> = event.key.strip_prefix("tick ").and_then(|n| n.parse().ok());
            if n.is_some_and(|n| n > cursor) {
                wrong.push((
                    "R02 a tick that fired has moved the cursor",
                    format!("{} > {cursor}", event.key),
                ));
            }
        }
        for n in (1..=cursor).filter(|n| !self.excused.contains(n)) {
            if !keys.contains(&format!("tick {n}")) {
                wrong.push(("R02 the cursor passes a tick only when it is decided", format!("tick {n}")));
            }
        }
        let requested = self.tables.all_enforcements();
        let requested = requested.filter(|row| row.status() == EnforcementStatus::Requested);
        let started: Vec<Option<RunId>> = requested.map(|row| row.run).collect();
        if started.contains(&None) || started.len() != self.runs() {
            wrong.push(("R01 each run has one enforcement", format!("{started:?}")));
        }
        for (invariant, seen) in wrong {
            self.violate(invariant, seen);
        }
    }

    fn change(&mut self, event: RuleEvent, from_now: bool) {
        let now = self.now;
        let next = from_now.then(|| (Some(next(now + 1)), now));
        if from_now {
            self.excused.extend(self.rule().cursor + 1..=now);
        }
        let generation = self.rule().generation;
        let change = RuleChange { event, generation, reason: None, next };
        self.transact(|session| ops::rule_event(session, RULE, Actor::Person, &change));
        self.check();
    }

    /// Returns the rule as a server reads it, if a tick is due.
    fn due(&self) -> Option<Read> {
        let rule = self.rule();
        let due = if self.finds { Some(rule.cursor + 1) } else { rule.next_ms };
        let is_due = rule.status() == RuleStatus::Active && due.is_some_and(|due| due <= self.now);
        is_due.then(|| Read::Tick(RuleSeen::of(rule), rule.cursor + 1))
    }

    /// Returns the first enforcement that waits.
    fn waiting(&self) -> Option<Read> {
        let mut all = self.tables.all_enforcements();
        let waits = all.find(|row| row.status() == EnforcementStatus::Created)?;
        Some(Read::Waiting(waits.id, self.rule().generation))
    }

    /// Whether one server that keeps running decides everything once the rule is active.
    fn settles(&self) -> bool {
        let mut state = self.clone();
        if state.rule().status() == RuleStatus::Paused {
            state.change(RuleEvent::Resumed, false);
        }
        for _ in 0..20 {
            match state.due().or_else(|| state.waiting()) {
                Some(read) => state.commit(read),
                None => return state.violation.is_none() && state.rule().cursor >= state.now,
            }
        }
        false
    }

    #[expect(
        clippy::type_complexity,
        reason = "the facts by which two states are the same, and nothing else"
    )]
    fn key(
        &self,
    ) -> (u8, u32, i64, Option<i64>, Vec<(String, u8)>, usize, Vec<Option<(bool, i64, u32, String)>>) {
        let rule = self.rule();
        let key_of = |enforcement: Id| {
            let row = self.tables.all_enforcements().find(|row| row.id == enforcement);
            let event = row.and_then(|row| self.tables.all_deliveries().find(|event| event.id == row.event));
            event.map_or(String::new(), |event| event.key.to_string())
        };
        let mut events: Vec<(String, u8)> =
            self.tables.all_enforcements().map(|row| (key_of(row.id), row.status() as u8)).collect();
        events.sort();
        let servers = self.servers.iter().map(|read| {
            read.map(|read| match read {
                Read::Tick(seen, n) => (true, seen.cursor * 100 + n, seen.generation, String::new()),
                Read::Waiting(id, generation) => (false, 0, generation, key_of(id)),
            })
        });
        let status = rule.status() as u8;
        (status, rule.generation, rule.cursor, rule.next_ms, events, self.runs(), servers.collect())
    }
}

fn next(n: i64) -> NextTick {
    NextTick { due_ms: n, key: format!("tick {n}").into() }
}

impl std::hash::Hash for RuleState {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.key(), self.now, self.changes, &self.excused, &self.violation).hash(state);
    }
}

impl PartialEq for RuleState {
    fn eq(&self, other: &Self) -> bool {
        (self.key(), self.now, self.changes, &self.excused, &self.violation)
            == (other.key(), other.now, other.changes, &other.excused, &other.violation)
    }
}

impl RuleModel {
    fn source(&self) -> &'static str {
        if self.finds { "run" } else { "schedule" }
    }
}

impl Model for RuleModel {
    type State = RuleState;
    type Action = RuleAction;

    fn init_states(&self) -> Vec<RuleState> {
        let mut state = RuleState {
            tables: Tables::default(),
            servers: vec![None; self.servers],
            now: 0,
            finds: self.finds,
            changes: 0,
            excused: BTreeSet::new(),
            drawn: 100,
            violation: None,
        };
        let new = NewRule {
            id: RULE,
            name: "p/r".into(),
            definition: "{}".into(),
            hash: "0".into(),
            auto: false,
            source: self.source(),
            next: (!self.finds).then(|| next(1)),
            cursor: Some(0),
        };
        state.transact(|session| ops::apply_rule(session, &new));
        vec![state]
    }

    fn actions(&self, state: &RuleState, actions: &mut Vec<RuleAction>) {
        if state.violation.is_some() {
            return;
        }
        if state.now < self.ticks {
            actions.push(RuleAction::Pass);
        }
        for (server, read) in state.servers.iter().enumerate() {
            match read {
                Some(_) => actions.extend([RuleAction::Commit(server), RuleAction::Die(server)]),
                None => {
                    actions.extend(state.due().map(|_| RuleAction::ReadTick(server)));
                    actions.extend(state.waiting().map(|_| RuleAction::ReadWaiting(server)));
                }
            }
        }
        actions.extend((0..self.events).map(RuleAction::Receive));
        if state.changes < self.changes {
            actions.push(match state.rule().status() {
                RuleStatus::Paused => RuleAction::Resume(state.now % 2 == 0),
                _ => RuleAction::Pause,
            });
            actions.push(RuleAction::Apply);
        }
    }

    fn next_state(&self, state: &RuleState, act: RuleAction) -> Option<RuleState> {
        let mut state = state.clone();
        match act {
            RuleAction::Pass => state.now += 1,
            RuleAction::ReadTick(server) => state.servers[server] = state.due(),
            RuleAction::ReadWaiting(server) => state.servers[server] = state.waiting(),
            RuleAction::Commit(server) => {
                let read = state.servers[server].take()?;
                state.commit(read);
            }
            RuleAction::Die(server) => state.servers[server] = None,
            RuleAction::Receive(n) => {
                let event = state.event(&format!("event {n}"));
                let receipt = state.transact(|session| ops::receive_event(session, RULE, &event))?;
                let is_there = state.tables.all_deliveries().any(|event| event.id == receipt.event);
                if !is_there {
                    state.violate("R14 what is acknowledged is stored", format!("{receipt:?}"));
                }
                state.check();
            }
            RuleAction::Pause => {
                state.changes += 1;
                state.change(RuleEvent::Paused, false);
            }
            RuleAction::Resume(from_now) => {
                state.changes += 1;
                state.change(RuleEvent::Resumed, from_now);
            }
            RuleAction::Apply => {
                state.changes += 1;
                let now = state.now;
                // A changed rule that finds its events by itself still finds those before the change.
                if !self.finds {
                    state.excused.extend(state.rule().cursor + 1..=now);
                }
                let hash = format!("{}", state.changes);
                let new = NewRule {
                    id: 2,
                    name: "p/r".into(),
                    definition: "{}".into(),
                    hash: hash.as_str().into(),
                    auto: false,
                    source: self.source(),
                    next: (!self.finds).then(|| next(now + 1)),
                    cursor: Some(now),
                };
                state.transact(|session| ops::apply_rule(session, &new));
                state.check();
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the invariants hold", |_, state: &RuleState| state.violation.is_none()),
            Property::always("one server that keeps running decides everything", |_, state: &RuleState| {
                state.settles()
            }),
            Property::sometimes("a tick and an event start a run each", |_, state: &RuleState| {
                state.runs() == 2 && state.tables.all_deliveries().any(|event| event.key.starts_with("event"))
            }),
            Property::sometimes("a pause comes before an event's decision", |_, state: &RuleState| {
                let mut all = state.tables.all_enforcements();
                all.any(|row| row.status() == EnforcementStatus::Skipped)
            }),
        ]
    }
}
