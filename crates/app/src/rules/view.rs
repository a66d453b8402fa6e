//! Rules and decisions as people and programs see them.

use serde::Serialize;
use sprag_store::{DeliveryRow, EnforcementRow, Row, RuleRow};

use super::LoadedRule;
use crate::App;
use crate::error::Error;

/// A rule, its next ticks and its last decisions.
#[derive(Debug, Clone, Serialize)]
pub struct RuleView {
    /// The full name.
    pub name: String,
    /// The status.
    pub status: &'static str,
    /// The reason why it is paused or broken.
    pub reason: Option<String>,
    /// The kind of its source: `schedule` or `webhook`; absent if its definition cannot be read.
    pub kind: Option<&'static str>,
    /// The file that it was applied from.
    pub file: Option<String>,
    /// The folder in which its runs work.
    pub project: Option<String>,
    /// The path of its webhook at a server; absent if it has none.
    pub url: Option<String>,
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

impl DecisionView {
    /// Returns the view of a decision.
    pub fn of(row: &EnforcementRow, event: &DeliveryRow) -> DecisionView {
        DecisionView {
            event: event.id.to_string(),
            kind: event.kind.to_string(),
            key: event.key.to_string(),
            status: sprag_lifecycle::Word::as_str(row.status()),
            reason: row.reason.as_deref().map(str::to_owned),
            run: row.run.map(|run| run.to_string()),
            at_ms: row.created_ms,
        }
    }
}

impl RuleView {
    /// Returns the view of a rule with its next ticks and its last decisions.
    pub fn of(app: &App, row: &RuleRow, ticks: usize, decisions: usize) -> Result<RuleView, Error> {
        let loaded = LoadedRule::load(row.clone());
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
            url: loaded.as_ref().and_then(LoadedRule::url),
            next,
            decisions: decisions.iter().map(|(row, event)| DecisionView::of(row, event)).collect(),
            run: row.run.map(|run| run.to_string()),
            missed: row.missed,
            generation: row.generation,
            changed_ms: row.changed_ms,
        })
    }

    /// Returns one sentence that tells why the rule did or did not fire last, or what it waits for.
    pub fn explained(&self, is_watched: bool) -> String {
        let reason =
            |text: &str| self.reason.as_ref().map_or(text.to_owned(), |why| format!("{text}: {why}"));
        match self.status {
            "paused" => return reason("it is paused"),
            "broken" => return reason("it is broken"),
            "retired" => return reason("it is retired"),
            _ => {}
        }
        let next = match self.next.first() {
            Some(tick) => format!("its next tick is {} ({})", tick.time, tick.zone),
            None if self.url.is_some() => "it waits for a request".to_owned(),
            None => "it has no further tick".to_owned(),
        };
        if !is_watched && (!self.next.is_empty() || self.url.is_some()) {
            return format!("{next}, and no process watches");
        }
        next
    }
}
