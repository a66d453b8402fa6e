//! The tables of triggers besides rows with a status, and the queries over all of them.

use std::sync::Arc;

use crate::error::Result;
use crate::rows::{DeliveryRow, EnforcementRow, Id, RuleRow};

/// The tables and queries of triggers.
pub trait Triggers {
    /// Returns all rules, by name.
    fn rules(&mut self) -> Result<Vec<RuleRow>>;
    /// Returns the rule with this full name.
    fn rule_called(&mut self, name: &str) -> Result<Option<RuleRow>>;
    /// Returns the active rules with a schedule whose next tick is due, earliest first.
    fn rules_due(&mut self, wall_ms: i64, limit: usize) -> Result<Vec<RuleRow>>;
    /// Returns the time of the earliest tick, or look at a repository, of an active rule (wall clock).
    fn next_tick(&mut self) -> Result<Option<i64>>;
    /// Returns the active rules about the ends of other runs, by number.
    fn rules_about_runs(&mut self) -> Result<Vec<RuleRow>>;
    /// Returns the active rules whose next look at a repository is due, earliest first.
    fn looks_due(&mut self, wall_ms: i64, limit: usize) -> Result<Vec<RuleRow>>;

    /// Stores an event.
    fn put_delivery(&mut self, delivery: &DeliveryRow) -> Result<()>;
    /// Returns the event with this number.
    fn delivery(&mut self, id: Id) -> Result<Option<DeliveryRow>>;
    /// Returns the event that the rule took under this key.
    fn delivery_called(&mut self, rule: Id, key: &str) -> Result<Option<DeliveryRow>>;
    /// Returns events from the newest on, of one rule or all. The keys of ticks order those of the same millisecond.
    fn deliveries(&mut self, rule: Option<Id>, limit: usize) -> Result<Vec<DeliveryRow>>;
    /// Removes events of before this time (wall clock) that are decided, with their enforcements. Returns their number.
    fn forget_deliveries(&mut self, before_ms: i64, limit: usize) -> Result<usize>;

    /// Returns the enforcements that wait for a decision and are due (steady), oldest first.
    fn enforcements_due(&mut self, now_ms: i64, limit: usize) -> Result<Vec<EnforcementRow>>;
    /// Returns the time at which the next enforcement is due (steady).
    fn next_enforcement(&mut self) -> Result<Option<i64>>;
    /// Returns the enforcements of an event, the last generation first.
    fn enforcements_of(&mut self, event: Id) -> Result<Vec<EnforcementRow>>;
    /// Returns the enforcements of a rule from the newest on.
    fn enforcements_by(&mut self, rule: Id, limit: usize) -> Result<Vec<EnforcementRow>>;
    /// Returns the held enforcement of a rule's window.
    fn held_in(&mut self, rule: Id, window: &Arc<str>) -> Result<Option<EnforcementRow>>;
    /// Returns, of a rule's enforcements that wait for its rate and are older than one with this first time and number,
    /// the one that is due last.
    fn held_for_rate(&mut self, rule: Id, first_ms: i64, id: Id) -> Result<Option<EnforcementRow>>;
}
