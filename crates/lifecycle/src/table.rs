//! What a table is, and how one is evaluated.
//!
//! A caller reports an event; it never picks a status. The table's rules say what the event means in
//! the entity's present status, who may report it, and which predicates must hold for it to still matter.

use crate::mutant;
use std::fmt::{Debug, Display};

/// Declares an enum of words with their text, which is what stores, messages and diagrams show.
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

/// One of a closed set of words: a status, an event, an actor, a predicate.
pub trait Word: Copy + Eq + Ord + Debug + Display + 'static {
    /// All of them, in the order of the table's columns.
    const ALL: &'static [Self];

    /// The word as stored and shown.
    fn as_str(self) -> &'static str;

    /// The word that reads `text`, if there is one: rows written by a newer version may hold others.
    fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|word| word.as_str() == text)
    }
}

words! {
    /// Who reports an event.
    Actor {
        /// The walk over a run, inside the store's transaction.
        Advance = "advance",
        /// Whoever prepares work, before hand-off.
        Executor = "executor",
        /// Whoever does the work, after hand-off.
        Worker = "worker",
        /// Speaks for the dead.
        Reaper = "reaper",
        /// A person, or a program on its behalf.
        Person = "person",
    }
}

/// One line of a table: `event`, reported by one of `who`, takes the entity from any of `from` to `to`.
#[derive(Debug)]
pub struct Rule<L: Lifecycle> {
    /// What happened.
    pub event: L::Event,
    /// Who may report it.
    pub who: &'static [Actor],
    /// In which statuses it means something.
    pub from: &'static [L::Status],
    /// What it makes of them.
    pub to: To<L::Status>,
    /// What must still be true; tested in this order, before the table.
    pub unless_superseded: &'static [L::Predicate],
}

/// Where a rule leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To<S> {
    /// Always there.
    Status(S),
    /// It depends on whether the directory is still on disk.
    ByPath {
        /// The directory is there.
        present: S,
        /// It is gone.
        absent: S,
    },
}

impl<S: Copy> To<S> {
    /// The statuses it can lead to.
    pub fn targets(self) -> Vec<S> {
        match self {
            To::Status(to) => vec![to],
            To::ByPath { present, absent } => vec![present, absent],
        }
    }
}

/// An entity's lifecycle: its words, its table, and how its predicates read the row's facts.
pub trait Lifecycle: Sized + Debug + 'static {
    /// What it is called in the journal.
    const NAME: &'static str;
    /// What it can be.
    type Status: Word;
    /// What can happen to it.
    type Event: Word;
    /// What can make an event come too late.
    type Predicate: Word;
    /// What the predicates look at: the row, and what the reporter knew.
    type Facts: Debug;

    /// The table.
    const RULES: &'static [Rule<Self>];
    /// The statuses that end it; nothing but a person's or a policy's explicit event leaves them.
    const TERMINAL: &'static [Self::Status];

    /// Whether the predicate holds.
    fn holds(predicate: Self::Predicate, facts: &Self::Facts) -> bool;

    /// Whether the directory is on disk, for rules that depend on it.
    fn path_present(_facts: &Self::Facts) -> bool {
        false
    }
}

/// What a table says of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<L: Lifecycle> {
    /// It takes the entity there.
    Apply(L::Status),
    /// It comes too late: the world has moved on.
    Superseded(L::Predicate),
    /// It means nothing in this status.
    NoCell,
    /// It means something in this status, but not from this reporter.
    WrongActor,
}

/// What `event`, reported by `who`, means for an entity in `status` with these facts.
///
/// Superseded is tested first and wins over illegal. When several rules know the event (an executor
/// and a worker may both report `execution.cancelled`), the reporter's own decides; a reporter who
/// has none is answered by the event's first rule's predicates, then as illegal.
pub fn evaluate<L: Lifecycle>(
    status: L::Status,
    event: L::Event,
    who: Actor,
    facts: &L::Facts,
) -> Verdict<L> {
    let of_event = || L::RULES.iter().filter(|rule| rule.event == event);
    let own = || of_event().filter(|rule| rule.who.contains(&who) || mutant!(AnybodyReports));
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
    match of_event().any(|rule| rule.from.contains(&status)) {
        true => Verdict::WrongActor,
        false => Verdict::NoCell,
    }
}

/// Shorthand for a table's line with a fixed target.
pub(crate) const fn rule<L: Lifecycle>(
    event: L::Event,
    who: &'static [Actor],
    from: &'static [L::Status],
    to: L::Status,
    unless_superseded: &'static [L::Predicate],
) -> Rule<L> {
    Rule { event, who, from, to: To::Status(to), unless_superseded }
}
