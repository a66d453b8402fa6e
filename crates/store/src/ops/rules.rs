//! Rules and their events: apply, fire, receive, decide.
//!
//! ```text
//!   tick ──▶ fire_tick: event + enforcement + run + next tick, in one commit
//!   request ─▶ receive: event + enforcement (created) ──▶ decide: run, or a reason
//! ```
//!
//! The caller evaluates a rule's definition and brings the decision. The operation accepts it only if the rule still is
//! what the caller read, and decides what depends on other rows: whether the event is known, whether an earlier run is
//! live, whether a window or a rate holds it back.

use std::sync::Arc;

use sprag_lifecycle::{
    Actor, Enforcement, EnforcementEvent, EnforcementStatus, RuleEvent, RuleStatus, RunId, RunStatus,
    TriggerRule, mutant,
};

use super::{
    Created, FireEvent, FireTick, Fired, NewDelivery, Overlap, Receipt, Settled, TriggerDecision,
    TriggeredRun, Window, cancel_run, create_run,
};
use crate::author::Author;
use crate::error::{Error, Result};
use crate::outcome::Outcome;
use crate::rows::{DeliveryRow, EnforcementReport, EnforcementRow, Id, Row, RuleReport, RuleRow, RunRow};
use crate::session::Session;
use crate::wake::Topic;

/// A definition to apply to a rule.
#[derive(Debug, Clone)]
pub struct NewRule {
    /// The number that the rule gets if it is new.
    pub id: Id,
    /// The full name.
    pub name: Arc<str>,
    /// The definition, as JSON.
    pub definition: Arc<str>,
    /// The hash of what the rule does: of its definition without the file and the folder.
    pub hash: Arc<str>,
    /// Whether no person asked for it, but a server that starts. Then a retired rule stays retired, and a rule with the
    /// same hash stays with the file and the folder that it has.
    pub auto: bool,
    /// The word of the source of its events.
    pub source: &'static str,
    /// The first tick.
    pub next: Option<NextTick>,
    /// The position from which events count; `None` for the end of the journal.
    pub cursor: Option<i64>,
}

/// The next tick of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextTick {
    /// The time at which it fires (wall clock).
    pub due_ms: i64,
    /// The key of the tick.
    pub key: Arc<str>,
}

/// The effect of applying a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleApplied {
    /// The rule is new.
    New(Id),
    /// The rule has another definition now.
    Changed(Id),
    /// The rule had this definition.
    Unchanged(Id),
    /// The rule is retired, and stays so because no person asked for it.
    StaysRetired(Id),
}

impl RuleApplied {
    /// Returns the rule's number.
    pub fn id(self) -> Id {
        match self {
            RuleApplied::New(id)
            | RuleApplied::Changed(id)
            | RuleApplied::Unchanged(id)
            | RuleApplied::StaysRetired(id) => id,
        }
    }
}

/// Applies a definition to a rule. The same definition changes nothing; a new one takes effect at once, and one that only
/// names another file or folder leaves the rule's ticks as they are.
pub fn apply_rule(session: &mut Session<'_>, new: &NewRule) -> Result<RuleApplied> {
    let cursor = match new.cursor {
        Some(cursor) => cursor,
        None => session.db().last_seq()? as i64,
    };
    let now_ms = session.now().wall_ms;
    let (next_ms, next_key) = split(new.next.as_ref());
    let Some(found) = session.db().rule_called(&new.name)? else {
        let row = RuleRow {
            id: new.id,
            status: RuleStatus::Active,
            version: 1,
            name: Arc::clone(&new.name),
            generation: 1,
            definition: Arc::clone(&new.definition),
            hash: Arc::clone(&new.hash),
            source: new.source.into(),
            next_ms,
            next_key,
            cursor,
            watched: None,
            run: None,
            reason: None,
            missed: 0,
            rate_ms: 0,
            changed_ms: now_ms,
            created_ms: now_ms,
        };
        session.create(row, "rule.created", Actor::Person);
        return Ok(RuleApplied::New(new.id));
    };
    let id = found.id;
    let Some(row) = session.get::<RuleRow>(id)? else { return Err(gone(id)) };
    let is_in_use = matches!(row.status(), RuleStatus::Active | RuleStatus::Paused);
    if new.auto && row.status() == RuleStatus::Retired {
        return Ok(RuleApplied::StaysRetired(id));
    }
    let does_the_same = row.hash == new.hash && is_in_use;
    if does_the_same && (new.auto || row.definition == new.definition) {
        return Ok(RuleApplied::Unchanged(id));
    }
    let keeps_reason = row.status() == RuleStatus::Paused;
    // A changed rule still sees what it had not looked at yet. The cursor of a schedule is a time, of which the caller
    // has settled the ticks before.
    let keeps_cursor = is_in_use && *row.source == *new.source && new.source != "schedule";
    let keeps_cursor = keeps_cursor || does_the_same;
    let change = |row: &mut RuleRow| {
        row.generation += 1;
        row.definition = Arc::clone(&new.definition);
        row.hash = Arc::clone(&new.hash);
        row.source = new.source.into();
        if !does_the_same {
            row.next_ms = next_ms;
            row.next_key = next_key;
        }
        if !keeps_cursor {
            row.cursor = cursor;
            row.watched = None;
        }
        row.changed_ms = now_ms;
        if !keeps_reason {
            row.reason = None;
        }
    };
    if is_in_use {
        session.note::<RuleRow>(id, change)?;
    } else {
        let given = RuleReport { generation: row.generation };
        let outcome =
            session.apply::<RuleRow>(id, RuleEvent::Applied, Actor::Person, &given, |row, _| change(row))?;
        if !outcome.is_applied() {
            return Err(Error::bug(format!("rule {id} cannot be applied: {outcome:?}")));
        }
    }
    Ok(RuleApplied::Changed(id))
}

/// A change of a rule's status.
#[derive(Debug, Clone)]
pub struct RuleChange {
    /// The event.
    pub event: RuleEvent,
    /// The generation that the reporter read.
    pub generation: u32,
    /// The reason that the row then has.
    pub reason: Option<Arc<str>>,
    /// The next tick and the cursor from now on; `None` leaves both.
    pub next: Option<(Option<NextTick>, i64)>,
}

/// Reports an event on a rule.
pub fn rule_event(
    session: &mut Session<'_>,
    id: Id,
    actor: Actor,
    change: &RuleChange,
) -> Result<Outcome<TriggerRule>> {
    let given = RuleReport { generation: change.generation };
    session.apply::<RuleRow>(id, change.event, actor, &given, |row, _| {
        row.reason.clone_from(&change.reason);
        if let Some((next, cursor)) = &change.next {
            (row.next_ms, row.next_key) = split(next.as_ref());
            row.cursor = *cursor;
            row.watched = None;
        }
    })
}

/// Moves a rule's timer and cursor back, because the clock was set back. Ticks that were decided before keep their keys,
/// so none is decided again.
/// Returns whether the rule still was what the caller read.
pub fn reschedule_rule(
    session: &mut Session<'_>,
    seen: RuleSeen,
    next: &NextTick,
    cursor: i64,
) -> Result<bool> {
    let Some(row) = session.get::<RuleRow>(seen.rule)?.filter(|row| seen.is_current(row)) else {
        return Ok(false);
    };
    session.note::<RuleRow>(row.id, |row| {
        row.next_ms = Some(next.due_ms);
        row.next_key = Arc::clone(&next.key);
        row.cursor = cursor;
    })?;
    Ok(true)
}

/// A rule as the caller read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RuleSeen {
    /// The rule.
    pub rule: Id,
    /// Its generation.
    pub generation: u32,
    /// Its cursor.
    pub cursor: i64,
}

impl RuleSeen {
    /// Returns what a caller reads of a rule.
    pub fn of(row: &RuleRow) -> RuleSeen {
        RuleSeen { rule: row.id, generation: row.generation, cursor: row.cursor }
    }

    /// Whether the rule is active and still what the caller read.
    fn is_current(self, row: &RuleRow) -> bool {
        row.status() == RuleStatus::Active
            && (RuleSeen::of(row) == self || mutant!(TickNotClaimed) || mutant!(MoveNotClaimed))
    }
}

/// Decides a due tick: stores the event, its enforcement, its run and the next tick, or nothing at all.
pub fn fire_tick(session: &mut Session<'_>, fire: &FireTick) -> Result<Fired> {
    let rule = fire.seen.rule;
    let Some(row) = session.get::<RuleRow>(rule)?.filter(|row| fire.seen.is_current(row)) else {
        return Ok(Fired::Superseded);
    };
    session.set_author(&Author::rule(&row.name));
    if let Some((missed, count)) = &fire.missed
        && session.db().delivery_called(rule, &missed.key)?.is_none()
    {
        store_event(session, rule, missed)?;
        skip(session, missed.enforcement, &row, &format!("missed ×{count}"))?;
        session.note::<RuleRow>(rule, |row| row.missed += count)?;
    }
    let mut fired = Fired::Decided { enforcement: None, run: None };
    if let Some((event, decision)) = &fire.tick
        && (session.db().delivery_called(rule, &event.key)?.is_none() || mutant!(TickNotClaimed))
        && !mutant!(CursorWithoutRun)
    {
        store_event(session, rule, event)?;
        let run = settle(session, event.enforcement, &row, decision)?.run();
        fired = Fired::Decided { enforcement: Some(event.enforcement), run };
    }
    if !mutant!(RunWithoutCursor) {
        session.note::<RuleRow>(rule, |row| {
            (row.next_ms, row.next_key) = split(fire.next.as_ref());
            row.cursor = fire.cursor;
        })?;
    }
    Ok(fired)
}

/// Decides an event that a rule found by itself: stores the event, its enforcement, its run and the new cursor, or
/// nothing at all. Leaves the time of the next look as it is.
pub fn fire_event(session: &mut Session<'_>, fire: &FireEvent) -> Result<Fired> {
    let rule = fire.seen.rule;
    let Some(row) = session.get::<RuleRow>(rule)?.filter(|row| fire.seen.is_current(row)) else {
        return Ok(Fired::Superseded);
    };
    session.set_author(&Author::rule(&row.name));
    let mut fired = Fired::Decided { enforcement: None, run: None };
    if let Some((event, decision)) = &fire.event
        && (session.db().delivery_called(rule, &event.key)?.is_none() || mutant!(MoveNotClaimed))
        && !mutant!(SightWithoutRun)
    {
        store_event(session, rule, event)?;
        let run = settle(session, event.enforcement, &row, decision)?.run();
        fired = Fired::Decided { enforcement: Some(event.enforcement), run };
    }
    session.note::<RuleRow>(rule, |row| {
        row.cursor = fire.cursor;
        if fire.watched.is_some() {
            row.watched.clone_from(&fire.watched);
            row.reason = None;
        }
    })?;
    Ok(fired)
}

/// Claims a look at a repository that is due: other processes leave it alone until the given time (wall clock). Returns
/// whether the rule still was what the caller read, and was due.
pub fn claim_look(session: &mut Session<'_>, seen: RuleSeen, next_ms: i64) -> Result<bool> {
    let now_ms = session.now().wall_ms;
    let Some(row) = session.get::<RuleRow>(seen.rule)?.filter(|row| seen.is_current(row)) else {
        return Ok(false);
    };
    if row.next_ms.is_none_or(|due_ms| due_ms > now_ms) {
        return Ok(false);
    }
    session.note::<RuleRow>(row.id, |row| row.next_ms = Some(next_ms))?;
    Ok(true)
}

/// Makes the next look of an active rule due at once. Returns whether the rule looks at a repository.
pub fn look_now(session: &mut Session<'_>, rule: Id) -> Result<bool> {
    let now_ms = session.now().wall_ms;
    let row = session.get::<RuleRow>(rule)?;
    let is_active = |row: &RuleRow| row.status() == RuleStatus::Active && &*row.source == "git";
    let Some(row) = row.filter(is_active) else { return Ok(false) };
    if row.next_ms.is_none_or(|next_ms| next_ms > now_ms) {
        session.note::<RuleRow>(rule, |row| row.next_ms = Some(now_ms))?;
        session.announce(Topic::Journal);
    }
    Ok(true)
}

/// Notes why an active rule cannot see what it watches, or that it can again. Returns whether the rule still was what
/// the caller read.
pub fn note_sight(session: &mut Session<'_>, seen: RuleSeen, reason: Option<&str>) -> Result<bool> {
    let Some(row) = session.get::<RuleRow>(seen.rule)?.filter(|row| seen.is_current(row)) else {
        return Ok(false);
    };
    if row.reason.as_deref() != reason {
        session.note::<RuleRow>(row.id, |row| row.reason = reason.map(Into::into))?;
    }
    Ok(true)
}

/// Stores an event from outside, to be decided by the next sweep. Does not wait for the rule's row.
pub fn receive_event(session: &mut Session<'_>, rule: Id, event: &NewDelivery) -> Result<Receipt> {
    if let Some(known) = session.db().delivery_called(rule, &event.key)? {
        return Ok(Receipt { event: known.id, is_new: false });
    }
    store_event(session, rule, event)?;
    Ok(Receipt { event: event.id, is_new: true })
}

/// Gives an event to its rule again: a new generation. Returns its enforcement; none if there is no such event.
pub fn replay_event(session: &mut Session<'_>, event: Id, enforcement: Id) -> Result<Option<Id>> {
    let Some(delivery) = session.db().delivery(event)? else { return Ok(None) };
    let last = session.db().enforcements_of(event)?.first().map_or(0, |row| row.generation);
    create_enforcement(session, enforcement, delivery.rule, event, last + 1);
    Ok(Some(enforcement))
}

/// Decides an enforcement that waits, if its rule still has the generation that the caller read.
pub fn decide_enforcement(
    session: &mut Session<'_>,
    id: Id,
    generation: u32,
    decision: &TriggerDecision,
) -> Result<Settled> {
    let now_ms = session.now().steady_ms;
    let Some(row) = session.get::<EnforcementRow>(id)? else { return Ok(Settled::Over) };
    if !matches!(row.status(), EnforcementStatus::Created | EnforcementStatus::Held) {
        return Ok(Settled::Over);
    }
    if row.due_ms > now_ms {
        return Ok(Settled::Held);
    }
    let Some(rule) = session.get::<RuleRow>(row.rule)? else { return Err(gone(row.rule)) };
    session.set_author(&Author::rule(&rule.name));
    match rule.status() {
        RuleStatus::Active if rule.generation != generation => return Ok(Settled::Superseded),
        RuleStatus::Active => {}
        status => return skip(session, id, &rule, &format!("the rule is {status}")),
    }
    settle(session, id, &rule, decision)
}

/// Decides an event as firing would, for a caller that undoes all of it. Returns the decision.
pub fn try_event(
    session: &mut Session<'_>,
    id: Id,
    event: &NewDelivery,
    decision: &TriggerDecision,
) -> Result<EnforcementRow> {
    let Some(rule) = session.get::<RuleRow>(id)? else { return Err(gone(id)) };
    store_event(session, id, event)?;
    if rule.status() == RuleStatus::Active {
        settle(session, event.enforcement, &rule, decision)?;
    } else {
        skip(session, event.enforcement, &rule, &format!("the rule is {}", rule.status()))?;
    }
    session.get::<EnforcementRow>(event.enforcement)?.ok_or_else(|| gone(id))
}

/// Stores an event and its first enforcement.
fn store_event(session: &mut Session<'_>, rule: Id, event: &NewDelivery) -> Result<()> {
    create_enforcement(session, event.enforcement, rule, event.id, 1);
    let received_ms = session.now().wall_ms;
    session.db().put_delivery(&DeliveryRow {
        id: event.id,
        rule,
        key: Arc::clone(&event.key),
        kind: event.kind.into(),
        body: Arc::clone(&event.body),
        chain: Arc::clone(&event.chain),
        received_ms,
    })
}

/// Records that a rule matched an event.
fn create_enforcement(session: &mut Session<'_>, id: Id, rule: Id, event: Id, generation: u32) {
    let now = session.now();
    let row = EnforcementRow {
        id,
        status: EnforcementStatus::Created,
        version: 1,
        rule,
        event,
        generation,
        run: None,
        reason: None,
        due_ms: now.steady_ms,
        first_ms: now.steady_ms,
        window: None,
        created_ms: now.wall_ms,
    };
    session.create(row, "enforcement.created", Actor::Executor);
}

/// Carries out a decision about an enforcement that is due, of a rule that is active.
fn settle(session: &mut Session<'_>, id: Id, rule: &RuleRow, decision: &TriggerDecision) -> Result<Settled> {
    match decision {
        TriggerDecision::Skip(reason) => skip(session, id, rule, reason),
        TriggerDecision::Fail(reason) if mutant!(ConditionErrorIsFalse) => skip(session, id, rule, reason),
        TriggerDecision::Fail(reason) => {
            let outcome = report(session, id, rule, EnforcementEvent::Failed, |row| {
                row.reason = Some(Arc::clone(reason));
            })?;
            require(outcome, Settled::Failed)
        }
        TriggerDecision::Start(wanted) => start(session, id, rule, wanted),
    }
}

/// Starts the run of an enforcement, unless a window, the rate or an earlier run is in the way.
fn start(session: &mut Session<'_>, id: Id, rule: &RuleRow, wanted: &TriggeredRun) -> Result<Settled> {
    let Some(row) = session.get::<EnforcementRow>(id)? else { return Ok(Settled::Over) };
    let now_ms = session.now().steady_ms;
    if let (EnforcementStatus::Created, Some(window)) = (row.status(), &wanted.window) {
        return hold_in_window(session, &row, rule, window);
    }
    if let Some(rate) = wanted.rate {
        // The generic cell rate algorithm: each run uses up the time that it may take on average.
        let each_ms = (rate.per_ms / rate.limit.max(1)).max(1);
        let free_ms = rule.rate_ms - (rate.per_ms - each_ms);
        if free_ms > now_ms && !rate.hold {
            return skip(session, id, rule, "more events than its rate allows");
        }
        if rate.hold {
            // Each waiter has a time of its own behind the older ones, so that it wakes once and none overtakes it.
            let before = session.db().held_for_rate(rule.id, row.first_ms, id)?;
            let before = before.filter(|_| !mutant!(RateOvertaken));
            let due_ms = before.map_or(free_ms, |before| free_ms.max(before.due_ms.max(now_ms) + each_ms));
            if due_ms > now_ms {
                return hold(session, &row, rule, due_ms, row.first_ms, None, "waits for its rate");
            }
        }
    }
    let earlier = live_run(session, rule, wanted)?;
    match (wanted.overlap, &earlier) {
        (Overlap::Skip, Some(run)) => {
            return skip(session, id, rule, &format!("run {} of this rule has not ended", run.id));
        }
        (Overlap::Queue, Some(run)) if run.status() == RunStatus::Queued => {
            return skip(session, id, rule, &format!("run {} of this rule waits already", run.id));
        }
        _ => {}
    }
    // The key belongs to the enforcement, so that no other request can use it.
    let mut new = wanted.new.clone();
    new.idempotency_key = Some(format!("{ENFORCEMENT_KEY}{id}").into());
    let run = match create_run(session, &new, wanted.plan_hash) {
        Ok(Created::New(run) | Created::Existing(run)) => run,
        Ok(Created::NameTaken) => {
            return Err(Error::Conflict { entity: "run", id: new.id.to_string() });
        }
        Err(Error::Refused { why, .. }) => return skip(session, id, rule, &why),
        Err(error) => return Err(error),
    };
    // The group may have cancelled it already.
    let still_live = match &earlier {
        Some(older) => session.get::<RunRow>(older.id)?,
        None => None,
    };
    let still_live =
        still_live.filter(|run| !run.status().is_terminal() && run.status() != RunStatus::Cancelling);
    if let (Overlap::CancelOlder, Some(older)) = (wanted.overlap, &still_live) {
        let why = format!("the newer run {run} of rule {} replaces it", rule.name);
        session.note::<RunRow>(older.id, |row| row.reason = Some(why.as_str().into()))?;
        let _ = cancel_run(session, older.id)?;
    }
    let outcome = report(session, id, rule, EnforcementEvent::Requested, |row| {
        row.run = Some(run);
        row.reason = None;
    })?;
    session.note::<RuleRow>(rule.id, |row| {
        row.run = Some(run);
        if let Some(rate) = wanted.rate {
            row.rate_ms = row.rate_ms.max(now_ms) + (rate.per_ms / rate.limit.max(1)).max(1);
        }
    })?;
    require(outcome, Settled::Requested(run))
}

/// Returns a live run of a rule: the last one that it started, or an older one that was resumed.
fn live_run(session: &mut Session<'_>, rule: &RuleRow, wanted: &TriggeredRun) -> Result<Option<RunRow>> {
    let mut runs: Vec<RunId> = rule.run.into_iter().collect();
    if let Some(group) = &wanted.new.plan.second_group {
        runs.extend(session.places_of(group)?);
    }
    for run in runs {
        let row = session.get::<RunRow>(run)?.filter(|run| !run.status().is_terminal());
        if row.is_some() {
            return Ok(row);
        }
    }
    Ok(None)
}

/// The prefix of the idempotency keys of runs that rules start. Other requests cannot use it.
pub const ENFORCEMENT_KEY: &str = "enforcement:";

/// Holds an enforcement until its window ends. The event that the window held before becomes part of this one.
fn hold_in_window(
    session: &mut Session<'_>,
    row: &EnforcementRow,
    rule: &RuleRow,
    window: &Window,
) -> Result<Settled> {
    let now_ms = session.now().steady_ms;
    let mut first_ms = now_ms;
    if let Some(older) = session.db().held_in(rule.id, &window.key)?.filter(|older| older.id != row.id) {
        first_ms = older.first_ms;
        skip(session, older.id, rule, &format!("merged into event {}", row.event))?;
    }
    let due_ms = (now_ms + window.for_ms).min(first_ms + window.at_most_ms);
    hold(session, row, rule, due_ms, first_ms, Some(&window.key), "waits for further events")
}

fn hold(
    session: &mut Session<'_>,
    row: &EnforcementRow,
    rule: &RuleRow,
    due_ms: i64,
    first_ms: i64,
    window: Option<&Arc<str>>,
    reason: &str,
) -> Result<Settled> {
    let change = |row: &mut EnforcementRow| {
        row.due_ms = due_ms;
        row.first_ms = first_ms;
        row.window = window.cloned();
        row.reason = Some(reason.into());
    };
    if row.status() == EnforcementStatus::Held {
        session.note::<EnforcementRow>(row.id, change)?;
        return Ok(Settled::Held);
    }
    let outcome = report(session, row.id, rule, EnforcementEvent::Held, change)?;
    require(outcome, Settled::Held)
}

fn skip(session: &mut Session<'_>, id: Id, rule: &RuleRow, reason: &str) -> Result<Settled> {
    let outcome = report(session, id, rule, EnforcementEvent::Skipped, |row| {
        row.reason = Some(reason.into());
    })?;
    require(outcome, Settled::Skipped)
}

fn report(
    session: &mut Session<'_>,
    id: Id,
    rule: &RuleRow,
    event: EnforcementEvent,
    change: impl FnOnce(&mut EnforcementRow),
) -> Result<Outcome<Enforcement>> {
    let now_ms = session.now().steady_ms;
    let rule_active = rule.status() == RuleStatus::Active;
    let given = EnforcementReport { rule_active, rule_unchanged: true, now_ms };
    session.apply::<EnforcementRow>(id, event, Actor::Executor, &given, |row, _| change(row))
}

/// Returns the result of an event that the operation has checked: if the table refuses it, nothing is written.
fn require(outcome: Outcome<Enforcement>, settled: Settled) -> Result<Settled> {
    if outcome.is_applied() {
        return Ok(settled);
    }
    Err(Error::bug(format!("an enforcement cannot become {settled:?}: {outcome:?}")))
}

/// Returns the columns of a next tick.
fn split(next: Option<&NextTick>) -> (Option<i64>, Arc<str>) {
    match next {
        Some(next) => (Some(next.due_ms), Arc::clone(&next.key)),
        None => (None, "".into()),
    }
}

fn gone(rule: Id) -> Error {
    Error::Conflict { entity: "rule", id: rule.to_string() }
}

/// Removes decided events of before this time (wall clock). Returns their number.
pub fn forget_events(session: &mut Session<'_>, before_ms: i64, limit: usize) -> Result<usize> {
    let before_ms = if mutant!(EventKeysForgotten) { i64::MAX } else { before_ms };
    session.db().forget_deliveries(before_ms, limit)
}
