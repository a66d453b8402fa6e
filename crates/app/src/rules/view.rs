//! Rules and decisions as people and programs see them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use sprag_lifecycle::{EnforcementStatus, Lifecycle, RuleStatus, RunStatus, TriggerRule, Word};
use sprag_pipeline::TriggerSource;
use sprag_store::{DeliveryRow, EnforcementRow, Id, JournalEntry, Now, Row, RuleRow};

use super::watch::seen_refs;
use super::{LoadedRule, RefusedRequests, TestedTick, Verdict};
use crate::App;
use crate::error::Error;

/// The number of journal entries that are read at once.
const PAGE: u64 = 500;
/// The most journal entries that are read for the change by which a rule was paused or broke.
const MOST_READ: u64 = 10_000;
/// The number of decisions that the view of one rule has.
const SHOWN_DECISIONS: usize = 5;

/// A rule, its next ticks and its last decisions.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = TriggerRule))]
pub struct RuleView {
    /// The full name.
    pub name: String,
    /// The status.
    pub status: &'static str,
    /// The reason why it is paused or broken.
    pub reason: Option<String>,
    /// The kind of its source, such as `schedule`; absent if its definition cannot be read.
    pub kind: Option<&'static str>,
    /// The file that it was applied from.
    pub file: Option<String>,
    /// The folder in which its runs work.
    pub project: Option<String>,
    /// The event that it waits for, in words; absent for a schedule, which has ticks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// The time of its next look at a repository (milliseconds since 1970).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub looks_ms: Option<i64>,
    /// The commits of the refs that it has seen, by name; absent before the first look.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refs: Option<BTreeMap<String, String>>,
    /// The path of its webhook at a server; absent if it has none.
    pub url: Option<String>,
    /// Requests for its webhook that servers of this machine refused.
    pub refused: Option<RefusedRequests>,
    /// The next ticks; none while it is not active.
    pub next: Vec<TickView>,
    /// The last decisions, newest first.
    pub decisions: Vec<DecisionView>,
    /// The run that it started last.
    pub run: Option<String>,
    /// The number of ticks that were missed so far.
    pub missed: i64,
    /// The number of definitions that were applied so far.
    pub generation: u32,
    /// The time of the last change of its definition (milliseconds since 1970).
    pub changed_ms: i64,
}

/// A tick that is to come.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TickView {
    /// The nominal time, in the schedule's zone.
    pub time: String,
    /// The name of the zone.
    pub zone: String,
    /// The time at which it fires (milliseconds since 1970), jitter included.
    pub fires_ms: i64,
}

/// A decision about an event.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DecisionView {
    /// The event's number.
    pub event: String,
    /// The kind of the event.
    pub kind: String,
    /// The key of the event.
    pub key: String,
    /// The status of the decision.
    pub status: &'static str,
    /// The reason.
    pub reason: Option<String>,
    /// The run that it started.
    pub run: Option<String>,
    /// The time of the decision's creation (milliseconds since 1970).
    pub at_ms: i64,
}

/// An event that reached a rule, with its last decision.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeliveryView {
    /// The full name of the rule.
    pub rule: String,
    /// The event's last decision.
    #[serde(flatten)]
    pub decision: DecisionView,
}

/// An event that reached a rule, with its content and all its decisions.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventView {
    /// The event's number.
    pub id: String,
    /// The full name of the rule.
    pub rule: String,
    /// The kind of the event.
    pub kind: String,
    /// The key of the event: another event with this key is the same one.
    pub key: String,
    /// The time at which it was stored (milliseconds since 1970).
    pub received_ms: i64,
    /// The event, as conditions and inputs see it.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub event: Value,
    /// The decisions, the last one first.
    pub decisions: Vec<DecisionView>,
}

/// The reason why a rule did or did not fire last, or what it waits for.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExplainedRule {
    /// The full name.
    pub rule: String,
    /// The status.
    pub status: &'static str,
    /// One sentence.
    pub reason: String,
    /// Whether a process is there that fires rules.
    pub watched: bool,
    /// Whether only a server can take its events.
    pub needs_server: bool,
    /// The last decision.
    pub last: Option<DecisionView>,
}

/// The decision that an event would get.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TestView {
    /// The event, as conditions and inputs see it.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub event: Value,
    /// `start`, `hold` (a run that starts later), `skip` or `fail`.
    pub decision: &'static str,
    /// The inputs of the run that would start.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub inputs: Option<Value>,
    /// The reason why none would, or why it would wait.
    pub reason: Option<String>,
}

impl TestView {
    /// Returns the view of a tested event.
    pub fn of(tested: &TestedTick) -> TestView {
        let (decision, inputs, reason) = match &tested.verdict {
            Verdict::Start(inputs) => ("start", Some(inputs.clone()), None),
            Verdict::Hold(inputs, why) => ("hold", Some(inputs.clone()), Some(why.clone())),
            Verdict::Skip(why) => ("skip", None, Some(why.clone())),
            Verdict::Fail(why) => ("fail", None, Some(why.clone())),
        };
        TestView { event: tested.event.clone(), decision, inputs, reason }
    }
}

impl App {
    /// Returns the views of all rules with the next tick and the last decision of each; retired ones only with `all`.
    pub fn rule_views(&self, all: bool) -> Result<Vec<RuleView>, Error> {
        self.rules(all)?.iter().map(|row| RuleView::of(self, row, 1, 1)).collect()
    }

    /// Returns the view of a rule with its next ticks and its last decisions.
    pub fn rule_view(&self, name: &str, ticks: usize) -> Result<RuleView, Error> {
        RuleView::of(self, &self.find_rule(name)?, ticks, SHOWN_DECISIONS)
    }

    /// Returns why a rule did or did not fire last, or what it waits for.
    pub fn explain_rule(&self, name: &str) -> Result<ExplainedRule, Error> {
        let row = self.find_rule(name)?;
        let mut view = RuleView::of(self, &row, 1, 1)?;
        let watched = self.is_watched()?;
        let settling = self.clock_is_settling().filter(|_| view.status == "active" && !view.next.is_empty());
        let since = self.last_change(&row)?;
        let mut reason = settling.unwrap_or_else(|| view.explained(watched, since.as_ref()));
        if let Some(behind) = self.queued_behind(&view)? {
            reason = format!("{reason}; {behind}");
        }
        if let Some(change) = self.loaded_rule(row).ok().and_then(|rule| rule.change_of_its_file()) {
            reason = format!("{reason}; {change}");
        }
        Ok(ExplainedRule {
            status: view.status,
            reason,
            watched,
            needs_server: view.url.is_some(),
            last: view.decisions.pop(),
            rule: view.name,
        })
    }

    /// Returns the change by which a rule became paused or broken, if it is among the last ones of the journal.
    fn last_change(&self, row: &RuleRow) -> Result<Option<JournalEntry>, Error> {
        if !matches!(row.status(), RuleStatus::Paused | RuleStatus::Broken) {
            return Ok(None);
        }
        let status = Word::as_str(row.status());
        let is = |entry: &JournalEntry| {
            entry.entity == TriggerRule::NAME && entry.place.id == Some(row.id) && entry.to == status
        };
        let end = self.store.queries().last_seq()?;
        let mut upto = end;
        while upto > 0 && end - upto < MOST_READ {
            let after = upto.saturating_sub(PAGE);
            let page = self.store.queries().journal(after, None, (upto - after) as usize)?;
            if let Some(found) = page.entries.into_iter().rev().find(is) {
                return Ok(Some(found));
            }
            upto = after;
        }
        Ok(None)
    }

    /// Returns for which runs the last run of a rule waits, if it does.
    fn queued_behind(&self, view: &RuleView) -> Result<Option<String>, Error> {
        let Some(run) = view.decisions.first().and_then(|last| last.run.as_deref()?.parse().ok()) else {
            return Ok(None);
        };
        let row = self.store.queries().run(run)?.filter(|row| row.status() == RunStatus::Queued);
        let Some(row) = row else { return Ok(None) };
        let holders = self.store.queries().wait_facts(&row)?.place_holders;
        let holders: Vec<String> = holders.iter().map(ToString::to_string).collect();
        Ok((!holders.is_empty()).then(|| format!("run {run} is queued behind {}", holders.join(", "))))
    }

    /// Returns the last events of one rule or all, newest first.
    pub fn delivery_views(&self, rule: Option<&str>, limit: usize) -> Result<Vec<DeliveryView>, Error> {
        let mut views = Vec::new();
        for (event, decision) in self.rule_events(rule, limit)? {
            let Some(decision) = decision else { continue };
            let rule = self.rule_name(event.rule)?.to_string();
            views.push(DeliveryView { rule, decision: DecisionView::of(self.now(), &decision, &event) });
        }
        Ok(views)
    }

    /// Returns an event with its content and all its decisions.
    pub fn delivery_view(&self, event: Id) -> Result<EventView, Error> {
        let (event, decisions) = self.rule_event(event)?;
        Ok(EventView {
            id: event.id.to_string(),
            rule: self.rule_name(event.rule)?.to_string(),
            kind: event.kind.to_string(),
            key: event.key.to_string(),
            received_ms: event.received_ms,
            event: serde_json::from_str(&event.body).unwrap_or_default(),
            decisions: decisions.iter().map(|row| DecisionView::of(self.now(), row, &event)).collect(),
        })
    }
}

impl DecisionView {
    /// Returns the view of a decision at this time.
    pub fn of(now: Now, row: &EnforcementRow, event: &DeliveryRow) -> DecisionView {
        let reason = row.reason.as_deref().map(|reason| match row.status() {
            EnforcementStatus::Held => {
                format!("{reason} until {}", utc(now.wall_ms + (row.due_ms - now.steady_ms)))
            }
            _ => reason.to_owned(),
        });
        DecisionView {
            event: event.id.to_string(),
            kind: event.kind.to_string(),
            key: event.key.to_string(),
            status: sprag_lifecycle::Word::as_str(row.status()),
            reason,
            run: row.run.map(|run| run.to_string()),
            at_ms: row.created_ms,
        }
    }
}

impl RuleView {
    /// Returns the view of a rule with its next ticks and its last decisions.
    pub fn of(app: &App, row: &RuleRow, ticks: usize, decisions: usize) -> Result<RuleView, Error> {
        let loaded = app.loaded_rule(row.clone());
        let is_active = row.status() == sprag_lifecycle::RuleStatus::Active;
        let mut next = Vec::new();
        if let (Ok(rule), true) = (&loaded, is_active)
            && let Some(schedule) = rule.schedule()
        {
            let mut after_ms = row.cursor.max(app.now().wall_ms.min(row.next_ms.unwrap_or(i64::MAX)) - 1);
            while next.len() < ticks {
                let Some(tick) = schedule.next_after(after_ms) else { break };
                after_ms = tick.nominal_ms;
                let fires_ms = schedule.fires_ms(&row.name, &tick);
                next.push(TickView { time: tick.time, zone: tick.zone, fires_ms });
            }
        }
        let decisions = app.store.queries().decisions(row.id, decisions)?;
        let (reason, loaded) = match loaded {
            Ok(rule) => (row.reason.as_deref().map(str::to_owned), Some(rule)),
            Err(why) => (Some(row.reason.as_deref().map_or(why, str::to_owned)), None),
        };
        Ok(RuleView {
            name: row.name.to_string(),
            status: sprag_lifecycle::Word::as_str(row.status()),
            reason,
            kind: loaded.as_ref().map(|rule| rule.trigger.source.kind()),
            file: loaded.as_ref().map(|rule| rule.file.clone()),
            project: loaded.as_ref().map(|rule| rule.project.display().to_string()),
            waits_for: loaded.as_ref().and_then(|rule| waits_for(&rule.trigger.source)),
            looks_ms: row.next_ms.filter(|_| is_active && &*row.source == "git"),
            refs: seen_refs(row),
            refused: app.refused_requests(&row.name),
            url: loaded.as_ref().and_then(LoadedRule::url),
            next,
            decisions: decisions.iter().map(|(row, event)| DecisionView::of(app.now(), row, event)).collect(),
            run: row.run.map(|run| run.to_string()),
            missed: row.missed,
            generation: row.generation,
            changed_ms: row.changed_ms,
        })
    }

    /// Returns the refused requests, if the last one came after the last decision.
    pub fn last_refusal(&self) -> Option<&RefusedRequests> {
        let is_later =
            |one: &&RefusedRequests| self.decisions.first().is_none_or(|last| last.at_ms < one.last_ms);
        self.refused.as_ref().filter(is_later)
    }

    /// Returns one sentence that tells why the rule did or did not fire last, or what it waits for.
    fn explained(&self, is_watched: bool, since: Option<&JournalEntry>) -> String {
        let reason =
            |text: &str| self.reason.as_ref().map_or(text.to_owned(), |why| format!("{text}: {why}"));
        let since_then = since.map(|entry| format!(" since {}", utc(entry.at_ms))).unwrap_or_default();
        let by =
            since.and_then(|entry| entry.by.as_deref()).map(|by| format!(" by {by}")).unwrap_or_default();
        match self.status {
            "paused" => return reason(&format!("it is paused{by}{since_then}")),
            "broken" => return reason(&format!("it is broken{since_then}")),
            "retired" => return reason("it is retired"),
            _ => {}
        }
        if let Some(why) = &self.reason {
            return why.clone();
        }
        let refused = self.last_refusal();
        let next = match (self.next.first(), &self.waits_for) {
            (Some(tick), _) if tick.zone == "UTC" => format!("its next tick is {} (UTC)", tick.time),
            (Some(tick), _) => {
                format!("its next tick is {} ({}), at {}", tick.time, tick.zone, utc(tick.fires_ms))
            }
            (None, Some(waits_for)) => match refused {
                Some(RefusedRequests { count, reason, .. }) => {
                    format!("it waits for {waits_for}; {count} refused so far, the last because {reason}")
                }
                None => format!("it waits for {waits_for}"),
            },
            (None, None) => return "it has no further tick".to_owned(),
        };
        if is_watched { next } else { format!("{next}, and no process watches") }
    }
}

/// Returns a time as text, in UTC.
pub(super) fn utc(ms: i64) -> String {
    let time = jiff::Timestamp::from_millisecond(ms).ok();
    time.and_then(|time| time.round(jiff::Unit::Second).ok())
        .map_or_else(|| ms.to_string(), |time| time.to_string())
}

/// Returns what a rule without a schedule waits for, for people.
fn waits_for(source: &TriggerSource) -> Option<String> {
    match source {
        TriggerSource::Schedule(_) => None,
        TriggerSource::Webhook(_) => Some("a request".to_owned()),
        TriggerSource::Git(source) => {
            let repository = if source.repository.is_empty() { "its folder" } else { &source.repository };
            Some(format!("a move of {} in {repository}", source.refs.join(" or ")))
        }
        TriggerSource::Run(source) => {
            let ended = if source.ended.is_empty() {
                String::new()
            } else {
                format!(" as {}", source.ended.join(" or "))
            };
            Some(format!("the end of a run of {}{ended}", source.pipelines.join(" or ")))
        }
    }
}
