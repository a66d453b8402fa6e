//! The tables: rules, and their evaluation.
//!
//! A caller reports an event; it never chooses a status. The rules define which status the event leads to from
//! the current status, which actors may report it, and which predicates must hold for it to apply.

use crate::mutant;
use std::fmt::{Debug, Display};

/// Declares an enum whose variants have a fixed text for stores, messages and diagrams.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$doc])* $variant),+ }

        impl $crate::Word for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad($crate::Word::as_str(*self))
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str($crate::Word::as_str(*self))
            }
        }
    };
}
pub(crate) use words;

/// A value of a closed set with a fixed text: a status, an event, an actor, a predicate.
pub trait Word: Copy + Eq + Ord + Debug + Display + 'static {
    /// All values, in the order of the table's columns.
    const ALL: &'static [Self];

    /// Returns the text that is stored and shown.
    fn as_str(self) -> &'static str;

    /// Returns the value with this text. `None` is possible for rows that a newer version wrote.
    fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|word| word.as_str() == text)
    }
}

words! {
    /// The reporter of an event.
    Actor {
        /// The walk over a run, inside the store's transaction.
        Advance = "advance",
        /// Prepares work until hand-off.
        Executor = "executor",
        /// Does the work after hand-off.
        Worker = "worker",
        /// Reports for dead workers and hosts.
        Reaper = "reaper",
        /// A person, or a program on a person's behalf.
        Person = "person",
    }
}

/// One rule: `event`, reported by one of `who`, takes the entity from any status of `from` to `to`.
#[derive(Debug)]
pub struct Rule<L: Lifecycle> {
    /// The event.
    pub event: L::Event,
    /// The actors that may report the event.
    pub who: &'static [Actor],
    /// The statuses from which the event is legal.
    pub from: &'static [L::Status],
    /// The status that follows.
    pub to: To<L::Status>,
    /// The predicates that must hold. They are tested in this order, before the status.
    pub unless_superseded: &'static [L::Predicate],
}

/// The target of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To<S> {
    /// One fixed status.
    Status(S),
    /// A status that depends on whether the environment's directory exists.
    ByPath {
        /// The status if the directory exists.
        present: S,
        /// The status if the directory does not exist.
        absent: S,
    },
}

impl<S: Copy> To<S> {
    /// Returns the possible statuses.
    pub fn targets(self) -> Vec<S> {
        match self {
            To::Status(to) => vec![to],
            To::ByPath { present, absent } => vec![present, absent],
        }
    }
}

/// The lifecycle of an entity: its statuses, events, rules and predicates.
pub trait Lifecycle: Sized + Debug + 'static {
    /// The entity's name in the journal.
    const NAME: &'static str;
    /// The statuses; the first one is initial.
    type Status: Word;
    /// The events.
    type Event: Word;
    /// The conditions under which an event still applies.
    type Predicate: Word;
    /// The facts that predicates test: from the row, and from the report.
    type Facts: Debug;

    /// The rules of the table.
    const RULES: &'static [Rule<Self>];
    /// The final statuses. Only explicit events of a person or a policy leave them.
    const TERMINAL: &'static [Self::Status];

    /// Returns whether the predicate holds.
    fn holds(predicate: Self::Predicate, facts: &Self::Facts) -> bool;

    /// Returns whether the environment's directory exists, for [`To::ByPath`].
    fn path_present(_facts: &Self::Facts) -> bool {
        false
    }
}

/// The table's decision about an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<L: Lifecycle> {
    /// The event applies and leads to this status.
    Apply(L::Status),
    /// The event comes too late: this predicate does not hold.
    Superseded(L::Predicate),
    /// The event is illegal in this status.
    NoCell,
    /// The event is legal in this status, but not from this reporter.
    WrongActor,
}

/// Decides what `event`, reported by `who`, means for an entity in `status` with these facts.
///
/// Predicates are tested first, so superseded wins over illegal. If several rules have the event (both an
/// executor and a worker may report `execution.cancelled`), the rule of the reporter decides. For a reporter
/// without a rule, the predicates of the event's first rule are tested, and then the event is illegal.
pub fn evaluate<L: Lifecycle>(
    status: L::Status,
    event: L::Event,
    who: Actor,
    facts: &L::Facts,
) -> Verdict<L> {
    let of_event = || L::RULES.iter().filter(|rule| rule.event == event);
    let own = || of_event().filter(|rule| rule.who.contains(&who) || mutant!(ActorIgnored));
    let predicates =
        own().next().or_else(|| of_event().next()).map_or(&[][..], |rule| rule.unless_superseded);
    if let Some(failed) = predicates.iter().find(|predicate| !L::holds(**predicate, facts)) {
        return Verdict::Superseded(*failed);
    }
    let late = (mutant!(TerminalStatesMove) && L::NAME == "execution")
        || (mutant!(LateAnswerCounts) && L::NAME == "gate");
    if let Some(rule) = own().find(|rule| rule.from.contains(&status) || late) {
        return Verdict::Apply(match rule.to {
            To::Status(to) => to,
            To::ByPath { present, absent } if L::path_present(facts) => {
                debug_assert_ne!(present, absent);
                present
            }
            To::ByPath { absent, .. } => absent,
        });
    }
    if of_event().any(|rule| rule.from.contains(&status)) { Verdict::WrongActor } else { Verdict::NoCell }
}

/// Creates a rule with a fixed target.
pub(crate) const fn rule<L: Lifecycle>(
    event: L::Event,
    who: &'static [Actor],
    from: &'static [L::Status],
    to: L::Status,
    unless_superseded: &'static [L::Predicate],
) -> Rule<L> {
    Rule { event, who, from, to: To::Status(to), unless_superseded }
}
