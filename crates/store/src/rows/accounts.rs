//! The row of an account: a login of coding agents that runs share.

use std::sync::Arc;

use sprag_lifecycle::{Account, AccountFacts, AccountStatus, RunId};

use super::{Id, Position, Row, Status, WriterOnly};
use crate::clock::{Now, fnv};

/// An account, and the hold on it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AccountRow {
    /// The number that follows from the account's name (see [`account_id`]).
    pub id: Id,
    pub(crate) status: AccountStatus,
    pub(crate) version: u32,
    /// The account's name.
    pub name: Arc<str>,
    /// The most executions that may be out at once, as the plan that was used last says; 0 before the first one.
    pub maximum: u32,
    /// The generation. It grows whenever a hold ends.
    pub generation: u32,
    /// The end of the last hold by the store's steady clock; absent for a hold that only a person ends.
    pub until_ms: Option<i64>,
    /// The same by the wall clock.
    pub until_wall_ms: Option<i64>,
    /// The time at which the last hold began (wall clock).
    pub held_since_ms: Option<i64>,
    /// The reason of the last hold, in a few words.
    pub reason: Option<Arc<str>>,
    /// The run that reported the limit; absent if a person set the hold.
    pub run: Option<RunId>,
    /// The limits without a known end that were reported one after the other. Each doubles the length of the hold.
    pub strikes: u32,
}

/// Returns the number of an account with this name; it is never 0.
pub fn account_id(name: &str) -> Id {
    (fnv(&format!("account {name}")) >> 1).max(1) as Id
}

impl AccountRow {
    /// Creates an account that is free.
    pub(crate) fn new(name: &str) -> AccountRow {
        AccountRow {
            id: account_id(name),
            status: AccountStatus::Free,
            version: 1,
            name: name.into(),
            maximum: 0,
            generation: 1,
            until_ms: None,
            until_wall_ms: None,
            held_since_ms: None,
            reason: None,
            run: None,
            strikes: 0,
        }
    }

    /// Whether the end of the hold has passed by one of the two clocks. Ending a hold too early is harmless, because one
    /// execution tries the account first.
    pub fn until_passed(&self, now: Now) -> bool {
        let passed = |until: Option<i64>, now_ms: i64| until.is_some_and(|until| until <= now_ms);
        passed(self.until_ms, now.steady_ms) || passed(self.until_wall_ms, now.wall_ms)
    }

    /// Whether no execution may be handed over now.
    pub fn is_held(&self, now: Now) -> bool {
        self.status == AccountStatus::Held && !self.until_passed(now)
    }
}

/// The facts that a reporter gives besides an account's row.
#[derive(Debug, Clone, Copy)]
pub struct AccountReport {
    /// Whether the report carries the present fence of its execution.
    pub fence_matches: bool,
    /// The generation in which the execution was handed over.
    pub generation: u32,
    /// Whether the end of the hold (of a limit: the reported end) has passed.
    pub until_passed: bool,
}

impl Row for AccountRow {
    row_basics!(Account, Id, AccountReport);

    fn key(&self) -> Id {
        self.id
    }

    fn facts(&self, given: &AccountReport) -> AccountFacts {
        AccountFacts {
            fence_matches: given.fence_matches,
            generation_matches: given.generation == self.generation,
            until_passed: given.until_passed,
        }
    }

    fn place(&self) -> Position {
        Position { id: Some(self.id), ..Position::default() }
    }

    fn note(&self) -> Option<Arc<str>> {
        let mut note = serde_json::json!({ "account": &*self.name });
        if self.status == AccountStatus::Held {
            note["until_ms"] = self.until_wall_ms.into();
            note["reason"] = self.reason.as_deref().into();
            note["run"] = self.run.map(|run| run.to_string()).into();
        }
        Some(note.to_string().into())
    }
}
