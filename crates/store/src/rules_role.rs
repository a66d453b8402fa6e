//! The verbs about rules: those of executors, which fire and decide, and those of people.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use sprag_lifecycle::{Actor, RuleEvent, TriggerRule, mutant};

use crate::error::{Error, Result};
use crate::ops::{
    self, FireEvent, FireTick, Fired, NewDelivery, NewRule, NextTick, Receipt, RuleApplied, RuleChange,
    RuleSeen, Settled, TriggerDecision,
};
use crate::outcome::{NotApplied, Outcome};
use crate::queries::Queries;
use crate::roles::{Executor, Person};
use crate::rows::{DeliveryRow, EnforcementRow, Id, RuleRow};

/// The most draws of a run's id: two runs of one millisecond share an id once in a hundred thousand times.
const DRAWS: usize = 8;

impl Executor<'_> {
    /// Decides a due tick: the event, the decision, the run and the next tick are one commit.
    pub async fn fire_tick(self, mut fire: FireTick) -> Result<Fired> {
        for _ in 0..DRAWS {
            let this = fire.clone();
            let fired = self.0.write(move |session| ops::fire_tick(session, &this)).await;
            match (fired, &mut fire.tick) {
                (Err(Error::Conflict { entity: "run", .. }), Some((_, TriggerDecision::Start(run)))) => {
                    run.new.id = self.0.person().new_run_id();
                }
                (fired, _) => return fired,
            }
        }
        Err(Error::Conflict { entity: "run", id: "of this millisecond".into() })
    }

    /// Decides an event that a rule found by itself: the event, the decision, the run and the cursor are one commit.
    pub async fn fire_event(self, mut fire: FireEvent) -> Result<Fired> {
        for _ in 0..DRAWS {
            let this = fire.clone();
            let fired = self.0.write(move |session| ops::fire_event(session, &this)).await;
            match (fired, &mut fire.event) {
                (Err(Error::Conflict { entity: "run", .. }), Some((_, TriggerDecision::Start(run)))) => {
                    run.new.id = self.0.person().new_run_id();
                }
                (fired, _) => return fired,
            }
        }
        Err(Error::Conflict { entity: "run", id: "of this millisecond".into() })
    }

    /// Claims a look at a repository that is due, until a time of the wall clock.
    pub async fn claim_look(self, seen: RuleSeen, next_ms: i64) -> Result<bool> {
        self.0.write(move |session| ops::claim_look(session, seen, next_ms)).await
    }

    /// Makes the next look of a rule at its repository due at once.
    pub async fn look_now(self, rule: Id) -> Result<bool> {
        self.0.write(move |session| ops::look_now(session, rule)).await
    }

    /// Notes why an active rule cannot see what it watches; none if it can.
    pub async fn note_sight(self, seen: RuleSeen, reason: Option<String>) -> Result<bool> {
        self.0.write(move |session| ops::note_sight(session, seen, reason.as_deref())).await
    }

    /// Decides an enforcement that waits.
    pub async fn decide(
        self,
        enforcement: Id,
        generation: u32,
        mut decision: TriggerDecision,
    ) -> Result<Settled> {
        for _ in 0..DRAWS {
            let this = decision.clone();
            let settled = self
                .0
                .write(move |session| ops::decide_enforcement(session, enforcement, generation, &this))
                .await;
            match (settled, &mut decision) {
                (Err(Error::Conflict { entity: "run", .. }), TriggerDecision::Start(run)) => {
                    run.new.id = self.0.person().new_run_id();
                }
                (settled, _) => return settled,
            }
        }
        Err(Error::Conflict { entity: "run", id: "of this millisecond".into() })
    }

    /// Records that a rule's definition cannot be used.
    pub async fn rule_broke(self, rule: Id, generation: u32, reason: String) -> Result<Outcome<TriggerRule>> {
        let reason = Some(reason.into());
        let change = RuleChange { event: RuleEvent::Broke, generation, reason, next: None };
        self.0.write(move |session| ops::rule_event(session, rule, Actor::Executor, &change)).await
    }

    /// Moves a rule's timer and cursor back, because the clock was set back.
    pub async fn reschedule_rule(self, seen: RuleSeen, next: NextTick, cursor: i64) -> Result<bool> {
        self.0.write(move |session| ops::reschedule_rule(session, seen, &next, cursor)).await
    }
}

impl Person<'_> {
    /// Applies a definition to a rule.
    pub async fn apply_rule(self, new: NewRule) -> Result<RuleApplied> {
        self.0.write_as_person(Vec::new(), move |session| ops::apply_rule(session, &new)).await
    }

    /// Pauses, resumes, mends or retires a rule.
    pub async fn change_rule(self, rule: Id, change: RuleChange) -> Result<Outcome<TriggerRule>> {
        self.0
            .write_as_person(Vec::new(), move |session| {
                ops::rule_event(session, rule, Actor::Person, &change)
            })
            .await
    }

    /// Stores an event for a rule. When this returns, the event is on disk.
    pub async fn receive_event(self, rule: Id, event: NewDelivery) -> Result<Receipt> {
        if mutant!(AnsweredBeforeStored) {
            return Ok(Receipt { event: event.id, is_new: true });
        }
        self.0.write_as_person(Vec::new(), move |session| ops::receive_event(session, rule, &event)).await
    }

    /// Gives an event to its rule again. Returns the new enforcement; none if there is no such event.
    pub async fn replay_event(self, event: Id) -> Result<Option<Id>> {
        let enforcement = self.0.new_id();
        self.0
            .write_as_person(Vec::new(), move |session| ops::replay_event(session, event, enforcement))
            .await
    }

    /// Decides an event as firing would, and undoes it: nothing is written. Returns the decision.
    pub async fn try_event(
        self,
        rule: Id,
        event: NewDelivery,
        mut decision: TriggerDecision,
    ) -> Result<EnforcementRow> {
        for _ in 0..DRAWS {
            let decided = Arc::new(Mutex::new(None));
            let (told, event, this) = (Arc::clone(&decided), event.clone(), decision.clone());
            let undone = self.0.write(move |session| {
                let row = ops::try_event(session, rule, &event, &this)?;
                *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(row);
                let why = NotApplied::Superseded { entity: "event", predicate: "no test" };
                Err::<(), Error>(Error::refused(why, "a test writes nothing"))
            });
            let undone = undone.await;
            let decided = decided.lock().unwrap_or_else(PoisonError::into_inner).take();
            match (undone, decided, &mut decision) {
                (Err(Error::Conflict { entity: "run", .. }), _, TriggerDecision::Start(run)) => {
                    run.new.id = self.0.person().new_run_id();
                }
                (_, Some(row), _) => return Ok(row),
                (Err(error), None, _) => return Err(error),
                (Ok(()), None, _) => return Err(Error::bug("a test of an event has no result")),
            }
        }
        Err(Error::Conflict { entity: "run", id: "of this millisecond".into() })
    }

    /// Removes decided events of before this time (wall clock). Returns their number.
    pub async fn forget_events(self, before_ms: i64, limit: usize) -> Result<usize> {
        self.0.write_as_person(Vec::new(), move |session| ops::forget_events(session, before_ms, limit)).await
    }
}

impl Queries<'_> {
    /// Returns all rules, by name.
    pub fn rules(self) -> Result<Vec<RuleRow>> {
        self.look(|db| db.rules())
    }

    /// Returns the rule with this full name.
    pub fn rule_called(self, name: &str) -> Result<Option<RuleRow>> {
        self.look(|db| db.rule_called(name))
    }

    /// Returns the rule with this number.
    pub fn rule(self, id: Id) -> Result<Option<RuleRow>> {
        self.look(|db| crate::backend::Table::<RuleRow>::load(db, id))
    }

    /// Returns the active rules whose next tick is due, earliest first.
    pub fn rules_due(self, wall_ms: i64, limit: usize) -> Result<Vec<RuleRow>> {
        self.look(|db| db.rules_due(wall_ms, limit))
    }

    /// Returns the time of the earliest tick of an active rule (wall clock).
    pub fn next_tick(self) -> Result<Option<i64>> {
        self.look(|db| db.next_tick())
    }

    /// Returns the active rules about the ends of other runs, by number.
    pub fn rules_about_runs(self) -> Result<Vec<RuleRow>> {
        self.look(|db| db.rules_about_runs())
    }

    /// Returns the active rules whose next look at a repository is due, earliest first.
    pub fn looks_due(self, wall_ms: i64, limit: usize) -> Result<Vec<RuleRow>> {
        self.look(|db| db.looks_due(wall_ms, limit))
    }

    /// Returns the event with this number.
    pub fn delivery(self, id: Id) -> Result<Option<DeliveryRow>> {
        self.look(|db| db.delivery(id))
    }

    /// Returns the event that the rule took under this key.
    pub fn delivery_called(self, rule: Id, key: &str) -> Result<Option<DeliveryRow>> {
        self.look(|db| db.delivery_called(rule, key))
    }

    /// Returns events from the newest on, of one rule or all.
    pub fn deliveries(self, rule: Option<Id>, limit: usize) -> Result<Vec<DeliveryRow>> {
        self.look(|db| db.deliveries(rule, limit))
    }

    /// Returns the enforcements that wait for a decision and are due, with their rules and events, oldest first.
    pub fn enforcements_due(
        self,
        now_ms: i64,
        limit: usize,
    ) -> Result<Vec<(EnforcementRow, RuleRow, DeliveryRow)>> {
        self.look(|db| {
            let mut found = Vec::new();
            let mut rules = BTreeMap::new();
            for row in db.enforcements_due(now_ms, limit)? {
                let rule: &Option<RuleRow> = match rules.entry(row.rule) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => new.insert(crate::backend::Table::<RuleRow>::load(db, row.rule)?),
                };
                if let (Some(rule), Some(event)) = (rule, db.delivery(row.event)?) {
                    found.push((row, rule.clone(), event));
                }
            }
            Ok(found)
        })
    }

    /// Returns the time at which the next enforcement is due (steady).
    pub fn next_enforcement(self) -> Result<Option<i64>> {
        self.look(|db| db.next_enforcement())
    }

    /// Returns the enforcements of an event, the last generation first.
    pub fn enforcements_of(self, event: Id) -> Result<Vec<EnforcementRow>> {
        self.look(|db| db.enforcements_of(event))
    }

    /// Returns the last decisions about a rule with their events, newest first.
    pub fn decisions(self, rule: Id, limit: usize) -> Result<Vec<(EnforcementRow, DeliveryRow)>> {
        self.look(|db| {
            let mut found = Vec::new();
            for row in db.enforcements_by(rule, limit)? {
                if let Some(event) = db.delivery(row.event)? {
                    found.push((row, event));
                }
            }
            Ok(found)
        })
    }
}
