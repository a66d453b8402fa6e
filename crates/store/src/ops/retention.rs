//! Forgetting runs that ended long ago: which runs may be forgotten, and the part that one small transaction removes.

use std::collections::BTreeMap;

use sprag_lifecycle::{RunId, mutant};

use crate::clock::Now;
use crate::error::Result;
use crate::retention::{Bite, Part, PlansForgotten};
use crate::rows::{Id, Row, RunRow};
use crate::service::HookRow;
use crate::session::Session;

/// The number of runs that are checked and removed between two checks of the clock.
const AT_ONCE: usize = 4;
/// The rows, plans or journal entries that are removed between two checks of the clock: a millisecond or two.
const PART: Part = Part { rows: 200, bytes: 256 << 10 };

/// The time for which a hook holds back a run that was not delivered to it, if no server delivers to the hook.
const HOOK_HOLDS_MS: i64 = 7 * 86_400_000;
/// The same time for a broker. Workers also poll, so that only readers of old runs need the broker's messages.
const BROKER_HOLDS_MS: i64 = 86_400_000;
/// The time for which a run with an idempotency key stays after its end, however short the retention is. A client
/// that got no answer repeats its request, after an outage hours later; without the run the repetition would start it
/// again. A day is also longer than a wall clock is usually set forward.
const KEY_HOLDS_MS: i64 = 86_400_000;

/// The result of checking some runs that ended long ago.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Forgettable {
    /// The runs that may be forgotten. Their child runs are forgotten with them.
    pub runs: Vec<RunId>,
    /// The child runs that are forgotten with those.
    pub children: Vec<RunId>,
    /// The runs that must stay for now, with the reason.
    pub kept: Vec<(RunId, &'static str)>,
    /// The number of forgettable runs that were not delivered to a hook, by the hook's number.
    pub untold: BTreeMap<Id, usize>,
    /// The run after which to continue; absent if all were checked.
    pub next: Option<RunId>,
}

/// The runs and rows that one transaction has forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Forgot {
    /// The runs that were removed, with their child runs.
    pub runs: Vec<RunId>,
    /// The number of the given runs that it has checked.
    pub looked_at: usize,
    /// Whether rows of forgotten runs are left.
    pub rows_left: bool,
}

/// Checks up to `limit` runs that ended before this time, after `after`. Returns which of them may be forgotten.
pub fn forgettable_runs(
    session: &mut Session<'_>,
    before_ms: i64,
    after: Option<RunId>,
    limit: usize,
) -> Result<Forgettable> {
    let found = session.db().ended_before(before_ms, after, limit)?;
    let mut told = Forgettable {
        next: if found.len() < limit { None } else { found.last().copied() },
        ..Forgettable::default()
    };
    let hooks = session.db().hooks()?;
    let now = session.now();
    for run in found {
        let children = descendants(session, run)?;
        let family: Vec<RunId> = [run].into_iter().chain(children.iter().copied()).collect();
        let why = match session.get::<RunRow>(run)? {
            None => continue,
            Some(row) => why_not(&row, before_ms, &hooks, now).or(why_not_yet(session, &family)?),
        };
        if let Some(why) = why {
            told.kept.push((run, why));
            continue;
        }
        for hook in untold(session, run, &hooks)? {
            *told.untold.entry(hook).or_default() += 1;
        }
        told.runs.push(run);
        told.children.extend(children);
    }
    Ok(told)
}

/// Returns the child runs of this run, and their child runs, to any depth.
fn descendants(session: &mut Session<'_>, run: RunId) -> Result<Vec<RunId>> {
    let mut all = Vec::new();
    let mut next = session.db().all_children(&[run])?;
    while !next.is_empty() {
        all.extend(next.iter().copied());
        next = session.db().all_children(&next)?;
    }
    Ok(all)
}

/// Returns the reason why a run's own row keeps it, if there is one.
fn why_not(row: &RunRow, before_ms: i64, hooks: &[HookRow], now: Now) -> Option<&'static str> {
    let ended_ms = row.ended_ms.filter(|ended_ms| *ended_ms < before_ms && row.status().is_terminal());
    let Some(ended_ms) = ended_ms.or(mutant!(ForgetsWithoutLooking).then_some(0)) else {
        return Some("it goes on");
    };
    let waits = |hook: &&HookRow| holds_back(hook, row, ended_ms, now);
    match hooks.iter().find(waits) {
        Some(hook) if hook.is_relay() => Some("it has not been published to the broker"),
        Some(_) => Some("it has not been delivered to a webhook"),
        None if key_may_be_repeated(row, ended_ms, now) => Some("its idempotency key may still be repeated"),
        None => None,
    }
}

/// Whether the client that started a run may still repeat its request, which must then find the run.
fn key_may_be_repeated(row: &RunRow, ended_ms: i64, now: Now) -> bool {
    row.idempotency_key.is_some() && ended_ms > now.wall_ms - KEY_HOLDS_MS && !mutant!(KeyForgotten)
}

/// Whether a run must be delivered to a hook before it is forgotten. A hook to which no server delivers holds it back
/// only for a limited time; otherwise a hook that was tried once would hold back runs for ever.
fn holds_back(hook: &HookRow, row: &RunRow, ended_ms: i64, now: Now) -> bool {
    let patience_ms = if hook.is_relay() { BROKER_HOLDS_MS } else { HOOK_HOLDS_MS };
    let is_delivered = hook.holder != 0 && hook.lease_until_ms > now.steady_ms;
    hook.parked.is_none()
        && row.last_seq > hook.cursor
        && (is_delivered || ended_ms > now.wall_ms - patience_ms)
}

/// Returns the hooks to which a run was not delivered and that do not hold it back.
fn untold(session: &mut Session<'_>, run: RunId, hooks: &[HookRow]) -> Result<Vec<Id>> {
    let last_seq = session.get::<RunRow>(run)?.map_or(0, |row| row.last_seq);
    let behind = |hook: &&HookRow| hook.parked.is_none() && last_seq > hook.cursor;
    Ok(hooks.iter().filter(behind).map(|hook| hook.id).collect())
}

/// Returns the reason why something that belongs to a run, or to its child runs, keeps it.
fn why_not_yet(session: &mut Session<'_>, family: &[RunId]) -> Result<Option<&'static str>> {
    if !session.db().with_environments(family)?.is_empty() {
        return Ok(Some("its environment still exists"));
    }
    if !session.db().with_effects(family)?.is_empty() {
        return Ok(Some("an effect of its end is still pending"));
    }
    Ok(None)
}

/// Forgets the given runs that may still be forgotten, and removes remaining rows of forgotten runs, for one bite.
///
/// An ended run stays ended unless a person resumes or rewinds it, which is checked again here. Its children ended
/// before it, and continue only with it.
pub fn forget_runs(session: &mut Session<'_>, runs: &[RunId], before_ms: i64, bite: &Bite) -> Result<Forgot> {
    let mut forgot = Forgot::default();
    let hooks = session.db().hooks()?;
    let now = session.now();
    loop {
        forgot.rows_left = forget_rows(session, bite, &mut forgot.runs)?;
        let some = runs.iter().skip(forgot.looked_at).take(AT_ONCE).copied().collect::<Vec<_>>();
        if forgot.rows_left || some.is_empty() || (forgot.looked_at > 0 && !bite.goes_on()) {
            return Ok(forgot);
        }
        forgot.looked_at += some.len();
        session.db().prefetch_runs(&some)?;
        let mut busy = session.db().with_environments(&some)?;
        busy.append(&mut session.db().with_effects(&some)?);
        let mut gone = Vec::new();
        for run in some.into_iter().filter(|run| !busy.contains(run)) {
            let row = session.get::<RunRow>(run)?;
            gone.extend(row.filter(|row| why_not(row, before_ms, &hooks, now).is_none()));
        }
        session.db().forget_runs(&gone)?;
        if !gone.is_empty() {
            let plural = if gone.len() == 1 { "" } else { "s" };
            session.note_act("runs.deleted", &format!("{} run{plural}", gone.len()))?;
        }
        forgot.runs.extend(gone.iter().map(|row| row.id));
    }
}

/// Removes rows of forgotten runs for one bite. Returns whether some are left.
fn forget_rows(session: &mut Session<'_>, bite: &Bite, gone: &mut Vec<RunId>) -> Result<bool> {
    let mut half = session.db().half_forgotten(AT_ONCE)?;
    while !half.is_empty() {
        gone.extend(session.db().forget_rows(&half, PART)?);
        half = session.db().half_forgotten(AT_ONCE)?;
        if !half.is_empty() && !bite.goes_on() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes entries of forgotten runs from the journal for one bite. Returns whether more are left.
pub fn forget_entries(session: &mut Session<'_>, bite: &Bite) -> Result<bool> {
    while session.db().forget_entries(PART.rows)? {
        if !bite.goes_on() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes plans that no run uses, after `after`, for one bite.
pub fn forget_plans(session: &mut Session<'_>, after: Option<i64>, bite: &Bite) -> Result<PlansForgotten> {
    let mut done = PlansForgotten { gone: 0, next: after };
    loop {
        let some = session.db().forget_plans(done.next, PART)?;
        done = PlansForgotten { gone: done.gone + some.gone, next: some.next };
        if done.next.is_none() || !bite.goes_on() {
            return Ok(done);
        }
    }
}
