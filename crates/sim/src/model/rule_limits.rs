//! The model of a rule whose events must not all start at once: an overlap policy beside the pipeline's own group, a rate,
//! or a window. Servers decide the events in any order, runs end and are resumed, and time passes.

use std::collections::BTreeMap;
use std::sync::Arc;

use sprag_lifecycle::{Concurrency, EnforcementStatus, OnConflict, Plan, PlanStep, RunId, RunStatus};
use sprag_store::testing::{Session, Tables, ops};
use sprag_store::{
    EnforcementRow, Id, NewDelivery, NewRule, Now, Overlap, Rate, Result, Row, RuleRow, TriggerDecision,
    TriggeredRun, Window,
};
use stateright::{Model, Property};

use crate::check::Violation;

const RULE: Id = 1;
/// The pipeline's own group, which has places for all runs.
const GROUP: &str = "mine";
/// The time between two runs that the rate wants.
const APART: i64 = 2;
/// The longest time of a window.
const LONGEST: i64 = 3;

/// The limit of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The treatment of an earlier run; the pipeline has a group of its own.
    Overlap(Overlap),
    /// One run in a time; further events wait.
    Rate,
    /// Events become one run.
    Window,
}

/// The model of a rule with a limit.
#[derive(Debug, Clone, Copy)]
pub struct RuleLimitModel {
    /// The limit.
    pub limit: Limit,
    /// The number of events.
    pub events: usize,
    /// The longest time.
    pub time: i64,
    /// The number of runs that are resumed.
    pub resumes: u8,
}

/// The state of a rule with a limit.
#[derive(Debug, Clone)]
pub struct LimitState {
    limit: Limit,
    tables: Tables,
    now: i64,
    resumes: u8,
    /// The last number that was drawn.
    drawn: i64,
    /// The time of the last run's start.
    started: Option<i64>,
    violation: Option<Violation>,
}

/// An action in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitAction {
    /// Time passes.
    Pass,
    /// The next event arrives.
    Receive,
    /// A server decides a waiting enforcement.
    Decide(Id),
    /// A run ends.
    End(RunId),
    /// A person resumes a run.
    Resume(RunId),
    /// The sweep starts a queued run that has its places.
    Fill,
}

impl LimitState {
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
        let mut plan = Plan::new("p", vec![PlanStep::new("a", vec![])]).expect("a plan");
        let mut overlap = Overlap::Allow;
        if let Limit::Overlap(policy) = self.limit {
            let group = GROUP.to_owned();
            plan.concurrency = Some(Concurrency { group, limit: 9, on_conflict: OnConflict::Queue });
            plan.second_group = Some("rule:p/r".into());
            overlap = policy;
        }
        let window = Window { key: "k".into(), for_ms: 2, at_most_ms: LONGEST };
        let window = (self.limit == Limit::Window).then_some(window);
        let rate = Rate { limit: 1, per_ms: APART, hold: true };
        let rate = (self.limit == Limit::Rate).then_some(rate);
        let plan = Arc::new(plan);
        let plan_hash = sprag_store::plan_hash(&plan);
        let new = sprag_store::NewRun::new(RunId::from_i64(self.draw()), plan);
        TriggerDecision::Start(Box::new(TriggeredRun { new, plan_hash, overlap, window, rate }))
    }

    /// Returns the enforcements that wait for a decision, oldest first.
    fn open(&self) -> Vec<EnforcementRow> {
        let is_open = |row: &&EnforcementRow| {
            matches!(row.status(), EnforcementStatus::Created | EnforcementStatus::Held)
        };
        let mut open: Vec<EnforcementRow> = self.tables.all_enforcements().filter(is_open).cloned().collect();
        open.sort_by_key(|row| (row.first_ms, row.id));
        open
    }

    fn due(&self) -> Vec<Id> {
        self.open().iter().filter(|row| row.due_ms <= self.now).map(|row| row.id).collect()
    }

    /// Returns the runs with their statuses, in order.
    fn runs(&self) -> BTreeMap<RunId, RunStatus> {
        self.tables.all_runs().map(|run| (run.id, run.status())).collect()
    }

    fn receive(&mut self) {
        let n = self.tables.all_deliveries().count();
        let event = NewDelivery {
            id: self.draw(),
            enforcement: self.draw(),
            key: format!("event {n}").into(),
            kind: "webhook",
            body: "{}".into(),
            chain: "[]".into(),
        };
        self.transact(|session| ops::receive_event(session, RULE, &event));
    }

    fn decide(&mut self, id: Id) {
        let decision = self.decision();
        let before = self.open();
        let runs = self.runs().len();
        let generation = self.rule().generation;
        self.transact(|session| ops::decide_enforcement(session, id, generation, &decision));
        if self.runs().len() > runs {
            self.check_start(id, &before);
        }
        self.check();
    }

    /// Checks the start of an enforcement's run, with those that waited before.
    fn check_start(&mut self, id: Id, before: &[EnforcementRow]) {
        if self.limit != Limit::Rate {
            return;
        }
        let of = |row: &EnforcementRow| (row.first_ms, row.id);
        let this = before.iter().find(|row| row.id == id).map(of);
        let waits = |row: &&EnforcementRow| row.status() == EnforcementStatus::Held && Some(of(row)) < this;
        if let Some(older) = before.iter().find(waits) {
            self.violate("HR10 no event overtakes one that waits for the rate", format!("{older:?}"));
        }
        if self.started.is_some_and(|started| self.now - started < APART) {
            self.violate("HR10 runs start as far apart as the rate wants", format!("{:?}", self.started));
        }
        self.started = Some(self.now);
    }

    fn check(&mut self) {
        let at_work = |status: &&RunStatus| !status.is_terminal() && **status != RunStatus::Queued;
        let at_work = self.runs().values().filter(at_work).count();
        if matches!(self.limit, Limit::Overlap(_)) && at_work > 1 {
            self.violate("HR9 one run of a rule is at work", format!("{:?}", self.runs()));
        }
        let open = self.open();
        let in_window: Vec<&EnforcementRow> = open.iter().filter(|row| row.window.is_some()).collect();
        if in_window.len() > 1 {
            self.violate("R22 a window holds one event", format!("{in_window:?}"));
        } else if in_window.iter().any(|row| row.due_ms > row.first_ms + LONGEST) {
            self.violate("R22 a window ends at its longest time", format!("{in_window:?}"));
        }
    }

    fn violate(&mut self, invariant: &'static str, seen: String) {
        self.violation.get_or_insert(Violation { invariant, seen });
    }

    /// Ends a run, as a failure or a person would.
    fn end(&mut self, run: RunId) {
        self.transact(|session| ops::cancel_run(session, run));
        self.check();
    }

    fn resume(&mut self, run: RunId) {
        self.transact(|session| ops::resume_run(session, run, None));
        self.check();
    }

    fn fill(&mut self) {
        self.transact(|session| ops::fill_group(session, GROUP, &[]));
        self.check();
    }

    /// Whether one server that keeps running decides everything, and every run gets its turn.
    fn settles(&self) -> bool {
        let mut state = self.clone();
        for _ in 0..40 {
            if let Some(id) = state.due().first() {
                state.decide(*id);
                continue;
            }
            let live = state.runs().into_iter().find(|(_, status)| !status.is_terminal());
            match live {
                Some((_, RunStatus::Queued)) => state.fill(),
                Some((run, _)) => {
                    state.end(run);
                    state.fill();
                }
                None if state.open().is_empty() => return state.violation.is_none(),
                None => state.now += 1,
            }
        }
        false
    }

    /// Returns the facts by which two states are the same.
    #[expect(
        clippy::type_complexity,
        reason = "the facts by which two states are the same, and nothing else"
    )]
    fn key(&self) -> (i64, u8, Option<i64>, i64, Vec<(u8, i64, i64, Option<usize>)>, Vec<u8>, Option<usize>) {
        let runs = self.runs();
        let nth = |run: RunId| runs.keys().position(|other| *other == run);
        let mut all: Vec<&EnforcementRow> = self.tables.all_enforcements().collect();
        all.sort_by_key(|row| (row.first_ms, row.id));
        let events = all
            .iter()
            .map(|row| (row.status() as u8, row.first_ms, row.due_ms, row.run.and_then(nth)))
            .collect();
        let statuses = runs.values().map(|status| *status as u8).collect();
        let rule = self.rule();
        (self.now, self.resumes, self.started, rule.rate_ms, events, statuses, rule.run.and_then(nth))
    }
}

impl std::hash::Hash for LimitState {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.key(), &self.violation).hash(state);
    }
}

impl PartialEq for LimitState {
    fn eq(&self, other: &Self) -> bool {
        (self.key(), &self.violation) == (other.key(), &other.violation)
    }
}

impl Model for RuleLimitModel {
    type State = LimitState;
    type Action = LimitAction;

    fn init_states(&self) -> Vec<LimitState> {
        let mut state = LimitState {
            limit: self.limit,
            tables: Tables::default(),
            now: 0,
            resumes: 0,
            drawn: 100,
            started: None,
            violation: None,
        };
        let new = NewRule {
            id: RULE,
            name: "p/r".into(),
            definition: "{}".into(),
            hash: "0".into(),
            auto: false,
            source: "webhook",
            next: None,
            cursor: Some(0),
        };
        state.transact(|session| ops::apply_rule(session, &new));
        vec![state]
    }

    fn actions(&self, state: &LimitState, actions: &mut Vec<LimitAction>) {
        if state.violation.is_some() {
            return;
        }
        if state.now < self.time {
            actions.push(LimitAction::Pass);
        }
        if state.tables.all_deliveries().count() < self.events {
            actions.push(LimitAction::Receive);
        }
        actions.extend(state.due().into_iter().map(LimitAction::Decide));
        if !matches!(self.limit, Limit::Overlap(_)) {
            return;
        }
        for (run, status) in state.runs() {
            if !status.is_terminal() {
                actions.push(LimitAction::End(run));
            } else if state.resumes < self.resumes {
                actions.push(LimitAction::Resume(run));
            }
        }
        if state.runs().values().any(|status| *status == RunStatus::Queued) {
            actions.push(LimitAction::Fill);
        }
    }

    fn next_state(&self, state: &LimitState, act: LimitAction) -> Option<LimitState> {
        let mut state = state.clone();
        match act {
            LimitAction::Pass => state.now += 1,
            LimitAction::Receive => state.receive(),
            LimitAction::Decide(id) => state.decide(id),
            LimitAction::End(run) => state.end(run),
            LimitAction::Resume(run) => {
                state.resumes += 1;
                state.resume(run);
            }
            LimitAction::Fill => state.fill(),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the invariants hold", |_, state: &LimitState| state.violation.is_none()),
            Property::always("one server that keeps running decides everything", |_, state: &LimitState| {
                state.settles()
            }),
            Property::sometimes("an event waits or is skipped", |_, state: &LimitState| {
                let mut all = state.tables.all_enforcements();
                let waits = |status| matches!(status, EnforcementStatus::Held | EnforcementStatus::Skipped);
                all.any(|row| waits(row.status()))
                    || state.runs().values().any(|run| *run == RunStatus::Queued)
            }),
            Property::sometimes("a run starts", |_, state: &LimitState| !state.runs().is_empty()),
        ]
    }
}
