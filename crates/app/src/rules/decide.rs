//! The meaning of an event for a rule: a run, or a reason for none. Firing and `rule test` both decide here.

use std::sync::Arc;

use serde_json::{Value, json};
use sprag_lifecycle::{Concurrency, EnforcementStatus, OnConflict};
use sprag_pipeline::{Diagnostics, OverlapPolicy, Tick};
use sprag_store::{
    EnforcementRow, Now, Overlap, Rate, Row, TriggerDecision, TriggeredRun, Window, plan_hash,
};

use super::LoadedRule;
use super::fire::new_event;
use super::incoming::bounded;
use crate::App;
use crate::agents::name_accounts;
use crate::error::Error;
use crate::labels::RunLabels;

/// The decision about an event, for people.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// A run with these inputs starts.
    Start(Value),
    /// A run with these inputs starts later, if nothing is in its way then; the reason names the time.
    Hold(Value, String),
    /// Nothing starts, for this reason.
    Skip(String),
    /// The condition or the inputs have no value, for this reason.
    Fail(String),
}

impl Verdict {
    /// Returns the verdict of a decision that the store has made.
    fn of(now: Now, decided: &EnforcementRow, inputs: Value) -> Verdict {
        let reason = || decided.reason.as_deref().unwrap_or_default().to_owned();
        match decided.status() {
            EnforcementStatus::Requested => Verdict::Start(inputs),
            EnforcementStatus::Held => {
                let until = super::view::utc(now.wall_ms + (decided.due_ms - now.steady_ms));
                Verdict::Hold(inputs, format!("{} until {until}", reason()))
            }
            EnforcementStatus::Failed => Verdict::Fail(reason()),
            EnforcementStatus::Created | EnforcementStatus::Skipped => Verdict::Skip(reason()),
        }
    }
}

/// Returns the names that conditions and inputs can use for a tick.
pub(super) fn tick_names(tick: &Tick) -> Value {
    json!({ "tick": { "time": tick.time, "date": tick.date, "zone": tick.zone } })
}

/// The most rules in a chain of runs.
const LONGEST_CHAIN: usize = 8;

/// Returns the reason why a chain of rules ends before a rule; none if the rule may continue it.
fn chain_ends(rule: &str, chain: &[String]) -> Option<String> {
    if chain.iter().any(|before| before == rule) {
        return Some(format!("a loop: {} → {rule}", chain.join(" → ")));
    }
    if chain.len() >= LONGEST_CHAIN {
        return Some(format!("the chain has {LONGEST_CHAIN} rules already: {}", chain.join(" → ")));
    }
    None
}

fn first_message(wrong: &Diagnostics) -> String {
    wrong.iter().next().map(|one| one.message.clone()).unwrap_or_default()
}

impl App {
    /// Decides what an event means for a rule.
    pub(super) fn decide(&self, rule: &LoadedRule, names: &Value, chain: &[String]) -> TriggerDecision {
        if let Some(why) = chain_ends(&rule.row.name, chain) {
            return TriggerDecision::Skip(why.into());
        }
        match self.triggered_run(rule, names, chain) {
            Ok(Some(run)) => TriggerDecision::Start(Box::new(run)),
            Ok(None) => {
                let when = rule.trigger.when.as_deref().unwrap_or_default();
                let values = rule.trigger.values_of_when(names);
                let values = if values.is_empty() {
                    String::new()
                } else {
                    format!(", where {}", values.join(" and "))
                };
                TriggerDecision::Skip(format!("its condition is false: {when}{values}").into())
            }
            Err(why) => TriggerDecision::Fail(why.into()),
        }
    }

    /// Returns the decision that an event would get now. The store makes it as for firing, and undoes it.
    pub(super) async fn tried(
        &self,
        rule: &LoadedRule,
        names: &Value,
        chain: &[String],
    ) -> Result<Verdict, Error> {
        let decision = self.decide(rule, names, chain);
        let inputs = match &decision {
            TriggerDecision::Start(run) => crate::secret_inputs::shown(&run.new.inputs),
            TriggerDecision::Skip(_) | TriggerDecision::Fail(_) => Value::Null,
        };
        let event = new_event(self, &format!("test {}", self.new_id()), "test", names, chain);
        let decided = self.store.person().try_event(rule.row.id, event, decision).await?;
        Ok(Verdict::of(self.now(), &decided, inputs))
    }

    /// Returns the run that an event starts; none if the rule's condition is false.
    fn triggered_run(
        &self,
        rule: &LoadedRule,
        names: &Value,
        chain: &[String],
    ) -> Result<Option<TriggeredRun>, String> {
        if !rule.trigger.holds(names)? {
            return Ok(None);
        }
        let given = rule.trigger.run_inputs(&rule.pipeline, names)?;
        let inputs = rule.pipeline.complete(&given).map_err(|wrong| first_message(&wrong))?;
        let mut plan = rule.pipeline.plan(&inputs).map_err(|wrong| first_message(&wrong))?;
        name_accounts(&mut plan);
        let labels = RunLabels::default().or_those_of(&rule.pipeline, &inputs);
        let labels = labels.map_err(|wrong| first_message(&wrong))?;
        let (overlap, on_conflict) = match rule.trigger.overlap {
            OverlapPolicy::Skip => (Overlap::Skip, Some(OnConflict::Reject)),
            OverlapPolicy::Queue => (Overlap::Queue, Some(OnConflict::Queue)),
            OverlapPolicy::CancelOlder => (Overlap::CancelOlder, Some(OnConflict::CancelOlder)),
            OverlapPolicy::Allow => (Overlap::Allow, None),
        };
        // The place of a group also holds where an older run is resumed, or several executors start runs at once.
        if let Some(on_conflict) = on_conflict {
            let group = format!("rule:{}", rule.row.name);
            if plan.concurrency.is_none() {
                plan.concurrency = Some(Concurrency { group, limit: 1, on_conflict });
            } else {
                plan.second_group = Some(group.into());
            }
        }
        let plan = Arc::new(plan);
        let hash = plan_hash(&plan);
        let mut chain = chain.to_vec();
        chain.push(rule.row.name.to_string());
        let start = self.new_run(plan, &inputs).map_err(|error| error.to_string())?;
        let start = start.in_folder(rule.project.clone()).labelled(labels);
        let new = start.triggered_by(&rule.row.name, &chain).map_err(|error| error.to_string())?;
        let window = match &rule.trigger.debounce {
            Some(debounce) => {
                let key = debounce.key.as_deref().unwrap_or_default();
                let key = rule.trigger.text(key, names).map_err(|why| format!("`debounce`: {why}"))?;
                let (for_ms, at_most_ms) = (debounce.for_ms, debounce.at_most_ms);
                Some(Window { key: bounded(key).into(), for_ms, at_most_ms })
            }
            None => None,
        };
        let rate = rule.trigger.rate;
        let rate = rate.map(|rate| Rate { limit: rate.limit, per_ms: rate.per_ms, hold: rate.hold });
        Ok(Some(TriggeredRun { new, plan_hash: hash, overlap, window, rate }))
    }
}
