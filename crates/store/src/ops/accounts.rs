//! Accounts: the reports of agents about usage limits, and the holds of persons.
//!
//! A limit is one commit: the account is held, and the execution returns to its queue without a lost try. It waits there
//! until the account has a place again.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sprag_lifecycle::{
    Account, AccountEvent, AccountPredicate, AccountStatus, Actor, Execution, ExecutionStatus,
};

use super::{Lease, release_until};
use crate::accounts::OutOfAccount;
use crate::error::{Error, Result};
use crate::outcome::Outcome;
use crate::rows::{AccountReport, AccountRow, ExecutionRow, Id, Row, account_id};
use crate::session::Session;
use crate::wake::Topic;

/// The hold after a limit whose end is not known. It doubles with each further one.
const FIRST_HOLD_MS: i64 = 15 * 60_000;
/// The longest hold after a limit whose end is not known.
const LONGEST_UNKNOWN_MS: i64 = 5 * 3_600_000;
/// The longest hold after a limit: a later end is a mistake of the agent or of a clock.
const LONGEST_HOLD_MS: i64 = 8 * 24 * 3_600_000;
/// The pause of an execution whose limit ended in the past. Without it, an agent that always reports such a limit would
/// start again and again.
const PAUSE_MS: i64 = 60_000;
/// The longest reason, in bytes.
const LONGEST_REASON: usize = 500;

/// A usage limit, as an agent reported it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UsageLimit {
    /// The end of the limit (wall clock, in milliseconds); absent if the agent did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
    /// The agent's words about it.
    pub message: Arc<str>,
}

/// A hold that a person sets.
#[derive(Debug, Clone)]
pub struct NewHold {
    /// The account's name.
    pub account: Arc<str>,
    /// The end of the hold (wall clock, in milliseconds); absent if only a person ends it.
    pub until_ms: Option<i64>,
    /// The reason, in a few words.
    pub reason: Option<Arc<str>>,
}

/// Finds an account of a plan's step, or creates it. Stores the limit that the plan gives it.
pub(crate) fn account_of(session: &mut Session<'_>, name: &str, maximum: u32) -> Result<AccountRow> {
    let row = find_or_create(session, name)?;
    if row.maximum != maximum {
        session.note::<AccountRow>(row.id, |row| row.maximum = maximum)?;
    }
    session.get::<AccountRow>(row.id)?.ok_or_else(|| Error::bug("an account that was just read is gone"))
}

fn find_or_create(session: &mut Session<'_>, name: &str) -> Result<AccountRow> {
    let id = account_id(name);
    match session.get::<AccountRow>(id)? {
        Some(row) if &*row.name == name => Ok(row),
        Some(row) => {
            Err(Error::invalid("account", format!("{name:?} and {:?} have the same number", row.name)))
        }
        None => {
            let row = AccountRow::new(name);
            session.create(row.clone(), "account.created", Actor::Executor);
            Ok(row)
        }
    }
}

/// Returns the account's executions that are out, with the changes of this operation.
pub(crate) fn out_of_account(session: &mut Session<'_>, account: Id) -> Result<OutOfAccount> {
    let mut out: OutOfAccount = session.db().out_of_account(account)?.into_iter().collect();
    for row in session.seen::<ExecutionRow>().filter(|row| row.account == Some(account)) {
        if matches!(row.status(), ExecutionStatus::Scheduled | ExecutionStatus::Running) {
            out.insert(row.id, row.account_generation);
        } else {
            out.remove(&row.id);
        }
    }
    Ok(out)
}

/// Reports an event on an account, and makes the changes that follow from every such event.
fn account_event(
    session: &mut Session<'_>,
    id: Id,
    event: AccountEvent,
    actor: Actor,
    given: &AccountReport,
    change: impl FnOnce(&mut AccountRow, crate::clock::Now),
) -> Result<Outcome<Account>> {
    session.apply::<AccountRow>(id, event, actor, given, |row, now| {
        row.generation += u32::from(event.raises_generation());
        change(row, now);
    })
}

/// Reports that the hold of an account has lapsed, if it has.
pub(crate) fn lapse_hold(session: &mut Session<'_>, id: Id) -> Result<()> {
    let now = session.now();
    let held = session.get::<AccountRow>(id)?.filter(|row| row.status() == AccountStatus::Held);
    let Some(row) = held.filter(|row| row.until_passed(now)) else { return Ok(()) };
    let given = AccountReport { fence_matches: true, generation: row.generation, until_passed: true };
    account_event(session, id, AccountEvent::HoldLapsed, Actor::Executor, &given, |_, _| {}).map(drop)
}

/// Reports that an execution met the usage limit of its account: holds the account, and returns the execution to its
/// queue without a lost try.
pub fn limited(session: &mut Session<'_>, lease: Lease, limit: &UsageLimit) -> Result<Outcome<Execution>> {
    let row = session.get::<ExecutionRow>(lease.execution)?;
    let Some((row, id)) = row.and_then(|row| row.account.map(|id| (row, id))) else {
        // Without an account there is nothing to hold: the execution pauses.
        let until_ms = session.now().steady_ms + PAUSE_MS;
        return release_until(session, lease, until_ms);
    };
    let now = session.now();
    let strikes = session.get::<AccountRow>(id)?.map_or(0, |account| account.strikes);
    let for_ms = match limit.until_ms {
        Some(until_ms) => until_ms.saturating_sub(now.wall_ms).min(LONGEST_HOLD_MS),
        None => FIRST_HOLD_MS.saturating_mul(1 << strikes.min(16)).min(LONGEST_UNKNOWN_MS),
    };
    let given = AccountReport {
        fence_matches: row.status() == ExecutionStatus::Running && row.fence == lease.fence,
        generation: row.account_generation,
        until_passed: for_ms <= 0,
    };
    let reason: Arc<str> = cut(&limit.message, LONGEST_REASON).into();
    let hold = |account: &mut AccountRow, now: crate::clock::Now| {
        account.until_ms = Some(now.steady_ms + for_ms);
        account.until_wall_ms = Some(now.wall_ms + for_ms);
        account.held_since_ms = Some(now.wall_ms);
        account.reason = Some(reason);
        account.run = Some(row.id.run);
        account.strikes = if limit.until_ms.is_some() { 0 } else { account.strikes.saturating_add(1) };
    };
    if session.get::<AccountRow>(id)?.is_some_and(|account| prolongs(&account, &given, limit, for_ms, now)) {
        session.note::<AccountRow>(id, |account| hold(account, now))?;
        return release_until(session, lease, 0);
    }
    let outcome = account_event(session, id, AccountEvent::LimitHit, Actor::Worker, &given, hold)?;
    let is_past = matches!(outcome, Outcome::Superseded(AccountPredicate::UntilNotPassed));
    release_until(session, lease, if is_past { now.steady_ms + PAUSE_MS } else { 0 })
}

/// Whether a limit prolongs the hold of an account: it ends later, or the hold's time has passed. A limit without a known end
/// does not prolong a hold that lasts: several agents report the same limit.
fn prolongs(
    account: &AccountRow,
    given: &AccountReport,
    limit: &UsageLimit,
    for_ms: i64,
    now: crate::clock::Now,
) -> bool {
    let is_later =
        limit.until_ms.is_some() && account.until_ms.is_some_and(|until| now.steady_ms + for_ms > until);
    account.status() == AccountStatus::Held
        && given.fence_matches
        && given.generation == account.generation
        && !given.until_passed
        && (is_later || account.until_passed(now))
}

/// Reports that the agent of an execution has answered: if the execution tries its account after a hold, the account is
/// free again. Returns whether it is so because of this report.
pub fn account_answered(session: &mut Session<'_>, lease: Lease) -> Result<bool> {
    let Some(row) = session.get::<ExecutionRow>(lease.execution)? else { return Ok(false) };
    let Some(account) = row.account.map(|id| session.get::<AccountRow>(id)).transpose()?.flatten() else {
        return Ok(false);
    };
    // A report about an account that is not being tried is no news, and no refusal worth keeping.
    if account.status() != AccountStatus::Probing || account.generation != row.account_generation {
        return Ok(false);
    }
    let given = AccountReport {
        fence_matches: row.fence == lease.fence,
        generation: row.account_generation,
        until_passed: true,
    };
    let outcome =
        account_event(session, account.id, AccountEvent::ProbePassed, Actor::Worker, &given, |row, _| {
            row.strikes = 0;
        })?;
    if outcome.is_applied() {
        announce_waiting(session, account.id)?;
    }
    Ok(outcome.is_applied())
}

/// Wakes the executor of the run that waits longest for an account.
pub(crate) fn announce_waiting(session: &mut Session<'_>, account: Id) -> Result<()> {
    for next in session.db().waiting_for_account(account, 1)? {
        session.announce(Topic::Run(next.run));
    }
    Ok(())
}

/// Holds an account. A hold that exists is replaced.
pub fn hold_account(session: &mut Session<'_>, new: &NewHold) -> Result<Outcome<Account>> {
    let row = find_or_create(session, &new.account)?;
    let now = session.now();
    let given = AccountReport { fence_matches: true, generation: row.generation, until_passed: false };
    if row.status() == AccountStatus::Held {
        let _ = account_event(session, row.id, AccountEvent::HoldLifted, Actor::Person, &given, |_, _| {})?;
    }
    let for_ms = new.until_ms.map(|until_ms| until_ms.saturating_sub(now.wall_ms));
    account_event(session, row.id, AccountEvent::HoldSet, Actor::Person, &given, |row, now| {
        row.until_ms = for_ms.map(|for_ms| now.steady_ms.saturating_add(for_ms));
        row.until_wall_ms = new.until_ms;
        row.held_since_ms = Some(now.wall_ms);
        row.reason = new.reason.as_deref().map(|reason| cut(reason, LONGEST_REASON).into());
        row.run = None;
    })
}

/// Ends the hold of an account.
pub fn release_account(session: &mut Session<'_>, name: &str) -> Result<Outcome<Account>> {
    let id = account_id(name);
    let given = AccountReport { fence_matches: true, generation: 0, until_passed: false };
    let outcome = account_event(session, id, AccountEvent::HoldLifted, Actor::Person, &given, |row, _| {
        row.strikes = 0;
    })?;
    if outcome.is_applied() {
        announce_waiting(session, id)?;
    }
    Ok(outcome)
}

/// Returns the beginning of a text, at most `most` bytes.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}
