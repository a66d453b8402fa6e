//! The operations of executors before hand-off, and on executions that no worker received: schedule, revoke, heal.

use std::collections::BTreeSet;

use sprag_lifecycle::{ExecutionId, ExecutionStatus, RunId, RunStatus, advance, heal, mutant};

use crate::accounts::{AccountBusy, busy};
use crate::backend::QueueRow;
use crate::error::Result;
use crate::rows::{AccountRow, ExecutionRow, Id, Row, RunRow, StepRow, account_id};
use crate::run_state::{HeldRun, has_queue_place};
use crate::session::Session;

/// The time for which an execution that no worker could receive leaves its place to others of its account.
const UNSERVED_PAUSE_MS: i64 = 60_000;

/// Publishes an execution that is due.
pub fn schedule(session: &mut Session<'_>, id: ExecutionId) -> Result<bool> {
    let Some(mut held) = HeldRun::take(session, id.run)? else { return Ok(false) };
    held.session.clear_timer(id);
    publish(&mut held, id)
}

/// Publishes an execution. Advances its step if it has waited for its account for too long, and has failed therefore.
fn publish(held: &mut HeldRun<'_, '_>, id: ExecutionId) -> Result<bool> {
    let published = held.schedule(id)?;
    if held.session.get::<ExecutionRow>(id)?.is_some_and(|row| row.status() == ExecutionStatus::Failed) {
        advance(held, [id.step])?;
    }
    Ok(published)
}

/// Revokes an execution that no worker received, and publishes it again.
pub fn redispatch(session: &mut Session<'_>, id: ExecutionId) -> Result<bool> {
    let row = session.get::<ExecutionRow>(id)?.filter(|row| row.status() == ExecutionStatus::Scheduled);
    let Some(row) = row else { return Ok(false) };
    if let Some(pin) = row.pin
        && (super::is_gone(session, Some(pin))? || super::works_elsewhere(session, pin, id.run)?)
    {
        // The worker that it is reserved to will not receive it: it never registered, is gone, or is on another host
        // than the run's files.
        super::pin_run(session, id.run, None)?;
    }
    let is_served = row.account.is_none() || has_taker(session, &row)?;
    let Some(mut held) = HeldRun::take(session, id.run)? else { return Ok(false) };
    if !held.revoke(id)? {
        return Ok(false);
    }
    if row.account.is_some() && !is_served {
        // It leaves its place to others of its account for a while.
        let not_before_ms = held.session.now().steady_ms + UNSERVED_PAUSE_MS;
        held.session.note::<ExecutionRow>(id, |row| row.not_before_ms = not_before_ms)?;
    }
    held.schedule(id)
}

/// Whether a worker that is present could receive an execution.
fn has_taker(session: &mut Session<'_>, row: &ExecutionRow) -> Result<bool> {
    for worker in session.db().workers()? {
        if super::could_take(session.db(), &worker, row)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Checks a whole run: recounts, makes the decisions that are due, and publishes the executions that can be
/// published.
pub fn heal_run(session: &mut Session<'_>, id: RunId) -> Result<()> {
    let Some(mut held) = HeldRun::take(session, id)? else {
        tracing::warn!(run = %id, "cannot advance: there is no such run");
        return Ok(());
    };
    match held.row()?.status() {
        RunStatus::Queued => {
            super::start_run(session, id)?;
            return Ok(());
        }
        status if status.is_terminal() => return Ok(()),
        _ => {}
    }
    held.ignores_holds = mutant!(HoldForgottenAtStart);
    heal(&mut held)?;
    for execution in requested_of(held.session, id)? {
        publish(&mut held, execution)?;
    }
    Ok(())
}

/// Returns the run's current executions that wait to be published.
fn requested_of(session: &mut Session<'_>, run: RunId) -> Result<Vec<ExecutionId>> {
    let mut found = Vec::new();
    for step in session.seen::<StepRow>().filter(|step| step.run == run).cloned().collect::<Vec<_>>() {
        let id = ExecutionId { run, step: step.no, attempt: step.attempt };
        if session.get::<ExecutionRow>(id)?.is_some_and(|row| row.status() == ExecutionStatus::Requested) {
            found.push(id);
        }
    }
    Ok(found)
}

/// Limits or holds a queue.
pub fn set_queue(session: &mut Session<'_>, queue: &QueueRow) -> Result<()> {
    session.db().put_queue(queue)
}

/// Changes a queue's settings. A queue without settings starts with no limit, and is not held.
pub fn change_queue(session: &mut Session<'_>, name: &str, change: impl FnOnce(&mut QueueRow)) -> Result<()> {
    let found = session.db().queue(name)?;
    let mut queue = found.unwrap_or_else(|| QueueRow { name: name.into(), limit: None, held: false });
    change(&mut queue);
    let limit = queue.limit.map_or_else(|| "no limit".to_owned(), |limit| format!("limit {limit}"));
    let held = if queue.held { ", held" } else { "" };
    session.note_act("queue.changed", &format!("{name}: {limit}{held}"))?;
    set_queue(session, &queue)
}

/// Publishes executions that wait in a queue with free places.
pub fn fill_queue(session: &mut Session<'_>, queue: &str, limit: usize) -> Result<usize> {
    let now_ms = session.now().steady_ms;
    let (mut handed_over, mut tried) = (0, BTreeSet::new());
    // The accounts that have no place: their other executions need not be tried.
    let mut without: Vec<Id> = Vec::new();
    // The loop ends: each round but the last hands over an execution or finds one more account without a place.
    loop {
        let progress = (handed_over, without.len());
        let page = session.db().requested(queue, now_ms, &without, limit)?;
        let is_last = page.len() < limit;
        for id in page {
            let account = session.get::<ExecutionRow>(id)?.and_then(|row| row.account);
            if !tried.insert(id) {
                continue;
            }
            let fallbacks = if account.is_some() { fallbacks(session, id)? } else { Vec::new() };
            if let Some(account) = account
                && fallbacks.is_empty()
            {
                if without.contains(&account) {
                    continue;
                }
                if is_without_place(session, account)? {
                    without.push(account);
                    continue;
                }
            }
            // An execution with fallbacks waits for any of its accounts, whichever its row names.
            if !fallbacks.is_empty() && !has_any_place(session, &fallbacks)? {
                continue;
            }
            if schedule(session, id)? {
                handed_over += 1;
            } else if !has_queue_place(session, queue)? {
                return Ok(handed_over);
            }
        }
        if is_last || handed_over >= limit || progress == (handed_over, without.len()) {
            return Ok(handed_over);
        }
    }
}

/// Returns the accounts that a step's agent may use, if it has fallbacks: its own, then the others in order.
fn fallbacks(session: &mut Session<'_>, id: ExecutionId) -> Result<Vec<Id>> {
    let (Some(run), Some(step)) =
        (session.get::<RunRow>(id.run)?, session.get::<StepRow>((id.run, id.step))?)
    else {
        return Ok(Vec::new());
    };
    let plan = session.plan(id.run, run.plan)?;
    let planned = plan.step(step.node()).account.as_ref().filter(|account| !account.fallbacks.is_empty());
    Ok(planned
        .map_or_else(Vec::new, |account| account.candidates().map(|(name, _)| account_id(name)).collect()))
}

/// Whether one of these accounts has a place. A step whose own account is full waits for it: fallbacks are for holds.
fn has_any_place(session: &mut Session<'_>, accounts: &[Id]) -> Result<bool> {
    for (at, account) in accounts.iter().enumerate() {
        let Some(row) = session.get::<AccountRow>(*account)? else { return Ok(true) };
        let (now, out) = (session.now(), super::out_of_account(session, *account)?);
        match busy(&row, &out, now) {
            None => return Ok(true),
            Some(AccountBusy::Full | AccountBusy::Probing) if at == 0 => return Ok(false),
            Some(_) => {}
        }
    }
    Ok(false)
}

/// Whether an account has no place for one more execution. Writes nothing, unlike the hand-over that would find out too.
fn is_without_place(session: &mut Session<'_>, account: Id) -> Result<bool> {
    let Some(row) = session.get::<AccountRow>(account)? else { return Ok(false) };
    let (now, out) = (session.now(), super::out_of_account(session, account)?);
    Ok(busy(&row, &out, now).is_some())
}

/// Gives up on an execution for which there is no worker; its step fails.
pub fn fail_unserved(session: &mut Session<'_>, id: ExecutionId) -> Result<bool> {
    let Some(mut held) = HeldRun::take(session, id.run)? else { return Ok(false) };
    if held.session.get::<ExecutionRow>(id)?.is_none_or(|row| row.status() != ExecutionStatus::Scheduled)
        || !held.revoke(id)?
        || !held.fail_unserved(id)?
    {
        return Ok(false);
    }
    advance(&mut held, [id.step])?;
    Ok(true)
}

/// Starts the next run of a group that has a free place. Skips `unattended` runs.
pub fn fill_group(session: &mut Session<'_>, group: &str, unattended: &[RunId]) -> Result<Option<RunId>> {
    /// The most queued runs to check. More unattended runs than this at the head of the queue need a person's
    /// attention.
    const LOOK: usize = 64;
    for run in session.db().queued(group, LOOK)?.into_iter().filter(|run| !unattended.contains(run)) {
        if super::start_run(session, run)?.is_some_and(|outcome| outcome.is_applied()) {
            return Ok(Some(run));
        }
    }
    Ok(None)
}
