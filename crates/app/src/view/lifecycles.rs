//! The tables of the lifecycles, as programs see them.

use serde::Serialize;
use sprag_lifecycle::Word;

views! {
    /// The lifecycle of an entity: its statuses and transitions.
    pub struct LifecycleView {
        /// The entity's name in the journal.
        pub entity: &'static str,
        /// The statuses.
        pub statuses: Vec<&'static str>,
        /// The final statuses.
        pub terminal: Vec<&'static str>,
        /// The transitions.
        pub rules: Vec<RuleView>,
    }

    /// One row of a lifecycle table.
    pub struct RuleView {
        /// The event.
        pub event: &'static str,
        /// The actors that may report it.
        pub who: Vec<&'static str>,
        /// The statuses in which the event is allowed.
        pub from: Vec<&'static str>,
        /// The status that follows; two if it depends on whether the directory exists.
        pub to: Vec<&'static str>,
        /// The conditions that must still hold; otherwise the event came too late.
        pub unless_superseded: Vec<&'static str>,
    }
}

/// Returns the tables of all lifecycles.
pub fn lifecycles() -> Vec<LifecycleView> {
    use sprag_lifecycle::{
        Account, Enforcement, Environment, Execution, Gate, Run, Step, Thread, TriggerRule, WorkerPresence,
    };
    vec![
        lifecycle::<Run>(),
        lifecycle::<Step>(),
        lifecycle::<Execution>(),
        lifecycle::<Environment>(),
        lifecycle::<Thread>(),
        lifecycle::<Account>(),
        lifecycle::<Gate>(),
        lifecycle::<WorkerPresence>(),
        lifecycle::<TriggerRule>(),
        lifecycle::<Enforcement>(),
    ]
}

fn lifecycle<L: sprag_lifecycle::Lifecycle>() -> LifecycleView {
    fn words<W: Word>(all: &[W]) -> Vec<&'static str> {
        all.iter().map(|word| word.as_str()).collect()
    }
    let rule = |rule: &sprag_lifecycle::Rule<L>| RuleView {
        event: rule.event.as_str(),
        who: words(rule.who),
        from: words(rule.from),
        to: words(&rule.to.targets()),
        unless_superseded: words(rule.unless_superseded),
    };
    LifecycleView {
        entity: L::NAME,
        statuses: words(L::Status::ALL),
        terminal: words(L::TERMINAL),
        rules: L::RULES.iter().map(rule).collect(),
    }
}
