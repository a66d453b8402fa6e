//! The lifecycles of triggers: rules, and their matches with events.
//!
//! ```text
//!   rule + event ──▶ enforcement ──▶ requested (its run starts in the same commit)
//!                         │ held (a window or a rate) ──▶ requested
//!                         └──▶ skipped, failed (each with its reason)
//! ```

use crate::table::{Actor, Lifecycle, Rule, rule, words};
use Actor::{Executor, Person};

words! {
    /// The status of a rule.
    RuleStatus {
        /// Its events start runs.
        Active = "active",
        /// A person stopped it for a while.
        Paused = "paused",
        /// Its stored definition cannot be used.
        Broken = "broken",
        /// A person removed it.
        Retired = "retired",
    }
}

words! {
    /// An event of a rule.
    RuleEvent {
        /// A person pauses it.
        Paused = "rule.paused",
        /// A person ends the pause.
        Resumed = "rule.resumed",
        /// Its stored definition turned out to be unusable.
        Broke = "rule.broke",
        /// The cause was checked and is gone.
        Mended = "rule.mended",
        /// A person removes it.
        Retired = "rule.retired",
        /// A person applies a definition to a broken or retired rule.
        Applied = "rule.applied",
    }
}

words! {
    /// A condition of a rule's events.
    RulePredicate {
        /// The rule was not changed since the reporter read it.
        MatchingVersion = "matching version",
    }
}

/// The facts that the rule's predicates test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleFacts {
    /// Whether the rule still has the version that the reporter read.
    pub version_matches: bool,
}

/// The lifecycle of a rule: it starts runs from events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TriggerRule;

impl Lifecycle for TriggerRule {
    const NAME: &'static str = "rule";
    type Status = RuleStatus;
    type Event = RuleEvent;
    type Predicate = RulePredicate;
    type Facts = RuleFacts;

    #[rustfmt::skip]
    const RULES: &'static [Rule<Self>] = &[
        rule(RuleEvent::Paused,  &[Person],           &[RuleStatus::Active, RuleStatus::Broken],                     RuleStatus::Paused,  &[]),
        rule(RuleEvent::Resumed, &[Person],           &[RuleStatus::Paused],                                         RuleStatus::Active,  &[]),
        rule(RuleEvent::Broke,   &[Executor],         &[RuleStatus::Active],                                         RuleStatus::Broken,  &[RulePredicate::MatchingVersion]),
        rule(RuleEvent::Mended,  &[Executor, Person], &[RuleStatus::Broken],                                         RuleStatus::Active,  &[RulePredicate::MatchingVersion]),
        rule(RuleEvent::Retired, &[Person],           &[RuleStatus::Active, RuleStatus::Paused, RuleStatus::Broken], RuleStatus::Retired, &[]),
        rule(RuleEvent::Applied, &[Person],           &[RuleStatus::Broken, RuleStatus::Retired],                    RuleStatus::Active,  &[]),
    ];

    // A retired rule can be applied again.
    const TERMINAL: &'static [RuleStatus] = &[];

    fn holds(_: RulePredicate, facts: &RuleFacts) -> bool {
        facts.version_matches
    }
}

words! {
    /// The status of an enforcement.
    EnforcementStatus {
        /// A rule matched an event, and nothing is decided yet.
        Created = "created",
        /// It waits for the end of its window, or for its rate.
        Held = "held",
        /// Its run was started.
        Requested = "requested",
        /// No run starts, for a reason that is no mistake.
        Skipped = "skipped",
        /// No run starts, because the condition or the inputs have no value.
        Failed = "failed",
    }
}

words! {
    /// An event of an enforcement.
    EnforcementEvent {
        /// The enforcement has to wait.
        Held = "enforcement.held",
        /// The run was started.
        Requested = "enforcement.requested",
        /// No run starts; the reason is on the row.
        Skipped = "enforcement.skipped",
        /// The condition or the inputs have no value; the reason is on the row.
        Failed = "enforcement.failed",
    }
}

words! {
    /// A condition of an enforcement's events.
    EnforcementPredicate {
        /// The rule is active.
        RuleActive = "its rule is active",
        /// The rule was not changed since the decision was made.
        RuleUnchanged = "its rule is unchanged",
        /// The time until which it is held has come.
        Due = "its time has come",
    }
}

/// The facts that the enforcement's predicates test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnforcementFacts {
    /// Whether the rule is active.
    pub rule_active: bool,
    /// Whether the rule still has the definition that the decision was made by.
    pub rule_unchanged: bool,
    /// Whether the time until which it is held has come.
    pub due: bool,
}

/// The lifecycle of an enforcement: a rule matched an event, once per rule, event and generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enforcement;

impl Lifecycle for Enforcement {
    const NAME: &'static str = "enforcement";
    type Status = EnforcementStatus;
    type Event = EnforcementEvent;
    type Predicate = EnforcementPredicate;
    type Facts = EnforcementFacts;

    #[rustfmt::skip]
    const RULES: &'static [Rule<Self>] = &[
        rule(EnforcementEvent::Held,      &[Executor], &[EnforcementStatus::Created], EnforcementStatus::Held,
            &[EnforcementPredicate::RuleActive, EnforcementPredicate::RuleUnchanged]),
        rule(EnforcementEvent::Requested, &[Executor], &[EnforcementStatus::Created, EnforcementStatus::Held], EnforcementStatus::Requested,
            &[EnforcementPredicate::RuleActive, EnforcementPredicate::RuleUnchanged, EnforcementPredicate::Due]),
        rule(EnforcementEvent::Skipped,   &[Executor], &[EnforcementStatus::Created, EnforcementStatus::Held], EnforcementStatus::Skipped, &[]),
        rule(EnforcementEvent::Failed,    &[Executor], &[EnforcementStatus::Created, EnforcementStatus::Held], EnforcementStatus::Failed,
            &[EnforcementPredicate::RuleUnchanged]),
    ];

    const TERMINAL: &'static [EnforcementStatus] =
        &[EnforcementStatus::Requested, EnforcementStatus::Skipped, EnforcementStatus::Failed];

    fn holds(predicate: EnforcementPredicate, facts: &EnforcementFacts) -> bool {
        match predicate {
            EnforcementPredicate::RuleActive => facts.rule_active,
            EnforcementPredicate::RuleUnchanged => facts.rule_unchanged,
            EnforcementPredicate::Due => facts.due,
        }
    }
}
