//! What people do with rules: pause, resume, fire by hand, test, backfill.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use sprag_lifecycle::{RuleEvent, RuleStatus};
use sprag_pipeline::{Schedule, Tick};
use sprag_store::{DeliveryRow, EnforcementRow, Id, NewDelivery, Receipt, Row, RuleChange, RuleRow};

use super::decide::tick_names;
use super::{GivenEvent, LoadedRule, RuleKeeper, Verdict};
use crate::App;
use crate::error::{Error, ErrorKind};

/// The shortest time for which the key of a decided event is kept.
const KEY_KEPT_MS: i64 = 30 * 24 * 3_600_000;
/// The most events that one transaction removes.
const FORGOTTEN_AT_ONCE: usize = 500;
/// The most ticks that one backfill starts.
const MOST_BACKFILLED: usize = 1_000;

/// The decision that a tick or an event would get now.
#[derive(Debug, Clone)]
pub struct TestedTick {
    /// The event, as conditions and inputs see it.
    pub event: Value,
    /// The decision.
    pub verdict: Verdict,
}

/// The ticks to give to a rule.
#[derive(Debug, Clone, Copy)]
pub struct Backfill {
    /// The first time (milliseconds since 1970).
    pub from_ms: i64,
    /// The last time (milliseconds since 1970).
    pub to_ms: i64,
    /// Whether ticks that the rule has taken before are decided again.
    pub again: bool,
}

/// The effect of a backfill.
#[derive(Debug, Clone, Default, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Backfilled {
    /// The ticks that were given to the rule, by their keys.
    pub new: Vec<String>,
    /// The number of ticks that the rule had taken before.
    pub known: usize,
}

impl App {
    /// Pauses a rule: from now on its events start nothing.
    pub async fn pause_rule(&self, name: &str, reason: Option<&str>) -> Result<RuleRow, Error> {
        let rule = self.find_rule(name)?;
        self.change_rule(&rule, RuleEvent::Paused, reason, false).await
    }

    /// Removes a rule; its history stays.
    pub async fn retire_rule(&self, name: &str) -> Result<RuleRow, Error> {
        let rule = self.find_rule(name)?;
        self.change_rule(&rule, RuleEvent::Retired, None, false).await
    }

    /// Ends the pause of a rule, or mends a broken one. Ticks of the pause start nothing, unless `catch_up` asks for
    /// them: then the rule's policy about missed ticks decides.
    pub async fn resume_rule(&self, name: &str, catch_up: bool) -> Result<RuleRow, Error> {
        let rule = self.find_rule(name)?;
        if rule.status() == RuleStatus::Broken {
            self.load_rule(name)?;
            return self.change_rule(&rule, RuleEvent::Mended, None, !catch_up).await;
        }
        self.change_rule(&rule, RuleEvent::Resumed, None, !catch_up).await
    }

    async fn change_rule(
        &self,
        rule: &RuleRow,
        event: RuleEvent,
        reason: Option<&str>,
        from_now: bool,
    ) -> Result<RuleRow, Error> {
        let next = if from_now {
            let loaded = self.load_rule(&rule.name)?;
            Some(self.first_tick(&rule.name, &loaded.trigger)?)
        } else {
            None
        };
        let reason = reason.map(Into::into);
        let change = RuleChange { event, generation: rule.generation, reason, next };
        self.store.person().change_rule(rule.id, change).await?.require_applied()?;
        self.find_rule(&rule.name)
    }

    /// Fires a rule by hand: a schedule for the present moment, any other rule with an event that the caller gives.
    /// Moves neither its next tick nor its cursor.
    pub async fn fire_rule(
        &self,
        name: &str,
        event: Option<&GivenEvent>,
    ) -> Result<(DeliveryRow, EnforcementRow), Error> {
        let rule = self.load_rule(name)?;
        require_active(&rule.row)?;
        let id = self.new_id();
        let names = match event {
            Some(event) => event.names_for(&rule, &id.to_string())?,
            None => tick_names(&self.moment(&rule)?),
        };
        let receipt = self.receive(&rule, id, &format!("manual {id}"), "manual", &names).await?;
        self.decided(receipt.event).await
    }

    /// Returns a tick for the present moment, in the rule's zone.
    fn moment(&self, rule: &LoadedRule) -> Result<Tick, Error> {
        let now_ms = self.now().wall_ms;
        require_schedule(rule)?
            .at(now_ms)
            .ok_or_else(|| Error::failed("the present time is not in any calendar of this program"))
    }

    async fn receive(
        &self,
        rule: &LoadedRule,
        id: Id,
        key: &str,
        kind: &'static str,
        names: &Value,
    ) -> Result<Receipt, Error> {
        let event = NewDelivery {
            id,
            enforcement: self.new_id(),
            key: key.into(),
            kind,
            body: names.to_string().into(),
            chain: "[]".into(),
        };
        Ok(self.store.person().receive_event(rule.row.id, event).await?)
    }

    /// Decides an event that was just stored, and returns the decision. Another process may be faster.
    async fn decided(&self, event: Id) -> Result<(DeliveryRow, EnforcementRow), Error> {
        RuleKeeper::new(self).fire_due().await?;
        let found = self.store.queries().enforcements_of(event)?.into_iter().next();
        match (self.store.queries().delivery(event)?, found) {
            (Some(delivery), Some(enforcement)) => Ok((delivery, enforcement)),
            _ => Err(Error::bug(format!("event {event} is gone"))),
        }
    }

    /// Returns the decision that a rule's tick would get: the next one, or the one of this moment. Writes nothing.
    pub async fn test_rule(&self, name: &str, at_ms: Option<i64>) -> Result<TestedTick, Error> {
        let rule = self.load_rule(name)?;
        let schedule = require_schedule(&rule)?;
        let tick = match at_ms {
            Some(at_ms) => schedule.at(at_ms),
            None => schedule.next_after(self.now().wall_ms),
        };
        let tick = tick.ok_or_else(|| Error::invalid(format!("rule {} has no such tick", rule.row.name)))?;
        let event = tick_names(&tick);
        let verdict = self.tried(&rule, &event, &[]).await?;
        Ok(TestedTick { event, verdict })
    }

    /// Returns the decision that an event would get which the caller gives. Writes nothing.
    pub async fn test_given(&self, name: &str, event: &GivenEvent) -> Result<TestedTick, Error> {
        let rule = self.load_rule(name)?;
        let event = event.names_for(&rule, "test")?;
        let verdict = self.tried(&rule, &event, &[]).await?;
        Ok(TestedTick { event, verdict })
    }

    /// Returns the decision that a recorded event would get now. Writes nothing.
    pub async fn test_event(&self, name: &str, event: Id) -> Result<TestedTick, Error> {
        let rule = self.load_rule(name)?;
        let delivery = self.store.queries().delivery(event)?;
        let delivery = delivery.ok_or_else(|| no_event(event))?;
        let event: Value = serde_json::from_str(&delivery.body).unwrap_or_default();
        let chain: Vec<String> = serde_json::from_str(&delivery.chain).unwrap_or_default();
        let verdict = self.tried(&rule, &event, &chain).await?;
        Ok(TestedTick { event, verdict })
    }

    /// Gives the ticks between two times to a rule, oldest first. Ticks that it has taken before start nothing, unless
    /// the caller wants them again.
    pub async fn backfill_rule(&self, name: &str, wanted: Backfill) -> Result<Backfilled, Error> {
        let Backfill { from_ms, to_ms, again } = wanted;
        let rule = self.load_rule(name)?;
        require_active(&rule.row)?;
        let schedule = require_schedule(&rule)?;
        let mut ticks = Vec::new();
        let mut after_ms = from_ms - 1;
        while let Some(tick) = schedule.next_after(after_ms).filter(|tick| tick.nominal_ms <= to_ms) {
            after_ms = tick.nominal_ms;
            ticks.push(tick);
            if ticks.len() > MOST_BACKFILLED {
                let message = format!("there are more than {MOST_BACKFILLED} ticks between these times");
                return Err(Error::invalid(message).next("backfill a shorter time"));
            }
        }
        if to_ms > self.now().wall_ms {
            return Err(Error::invalid("a backfill ends before now").next("give an earlier last time"));
        }
        let mut done = Backfilled::default();
        for tick in ticks {
            let receipt = self.receive(&rule, self.new_id(), &tick.key, "tick", &tick_names(&tick)).await?;
            if receipt.is_new {
                done.new.push(tick.key);
                continue;
            }
            done.known += 1;
            if again {
                self.store.person().replay_event(receipt.event).await?;
            }
        }
        RuleKeeper::new(self).fire_due().await?;
        Ok(done)
    }

    /// Gives a recorded event to its rule again, whatever was decided before.
    pub async fn replay_event(&self, event: Id) -> Result<(DeliveryRow, EnforcementRow), Error> {
        self.store.person().replay_event(event).await?.ok_or_else(|| no_event(event))?;
        self.decided(event).await
    }

    /// Returns the last events of one rule or all, newest first, each with its last decision.
    pub fn rule_events(
        &self,
        name: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(DeliveryRow, Option<EnforcementRow>)>, Error> {
        let rule = name.map(|name| self.find_rule(name)).transpose()?;
        let mut found = Vec::new();
        for delivery in self.store.queries().deliveries(rule.map(|rule| rule.id), limit)? {
            let decision = self.store.queries().enforcements_of(delivery.id)?.into_iter().next();
            found.push((delivery, decision));
        }
        Ok(found)
    }

    /// Returns a recorded event with all its decisions, the last one first.
    pub fn rule_event(&self, event: Id) -> Result<(DeliveryRow, Vec<EnforcementRow>), Error> {
        let delivery = self.store.queries().delivery(event)?.ok_or_else(|| no_event(event))?;
        Ok((delivery, self.store.queries().enforcements_of(event)?))
    }

    /// Returns the name of a rule.
    pub fn rule_name(&self, id: Id) -> Result<Arc<str>, Error> {
        Ok(self.store.queries().rule(id)?.map_or_else(|| id.to_string().into(), |rule| rule.name))
    }

    /// Removes decided events of longer than `keep_ms` ago. Keeps each key for at least 30 days, and for as long as a
    /// missed tick of any rule may still start a run.
    pub(crate) async fn forget_old_events(&self, keep_ms: i64) -> Result<(), Error> {
        let rules = self.store.queries().rules()?;
        self.forget_watched(&rules)?;
        let within = rules
            .into_iter()
            .filter_map(|row| self.loaded_rule(row).ok())
            .map(|rule| rule.trigger.missed.within_ms);
        let kept_ms = within.chain([KEY_KEPT_MS, keep_ms]).max().unwrap_or(keep_ms);
        let before_ms = self.now().wall_ms.saturating_sub(kept_ms);
        // The loop ends: each round removes events, and new ones are younger.
        while self.store.person().forget_events(before_ms, FORGOTTEN_AT_ONCE).await? == FORGOTTEN_AT_ONCE {}
        Ok(())
    }

    /// Fires all due ticks, looks at the repositories that are due and decides all waiting events, once. Returns the
    /// number of runs that started.
    pub async fn tick_rules(&self) -> Result<usize, Error> {
        let keeper = RuleKeeper::new(self);
        let fired = keeper.fire_due().await?;
        Ok(fired + keeper.look_at_all().await?)
    }
}

fn require_schedule(rule: &LoadedRule) -> Result<&Schedule, Error> {
    rule.schedule().ok_or_else(|| {
        Error::invalid(format!("rule {} has no schedule", rule.row.name))
            .next("give the event that it waits for")
    })
}

fn require_active(rule: &RuleRow) -> Result<(), Error> {
    if rule.status() == RuleStatus::Active {
        return Ok(());
    }
    let message = format!("rule {} is {}", rule.name, rule.status());
    Err(Error::new(ErrorKind::Refused, message).next("resume it first"))
}

fn no_event(event: Id) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no event {event}")).next("list the events")
}

/// Returns a short text for a verdict's inputs, for people.
impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Start(inputs) if *inputs == json!({}) => write!(f, "starts a run"),
            Verdict::Start(inputs) => write!(f, "starts a run with {inputs}"),
            Verdict::Hold(inputs, why) if *inputs == json!({}) => write!(f, "starts a run later: it {why}"),
            Verdict::Hold(inputs, why) => write!(f, "starts a run later, with {inputs}: it {why}"),
            Verdict::Skip(why) => write!(f, "starts nothing: {why}"),
            Verdict::Fail(why) => write!(f, "fails: {why}"),
        }
    }
}
