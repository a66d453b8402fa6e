//! Decisions about the enforcements that wait: events from outside, held windows, replays.

use std::collections::BTreeMap;

use serde_json::Value;
use sprag_pipeline::OverlapPolicy;
use sprag_store::{Id, Result, Settled, TriggerDecision};
use tokio::task::JoinSet;

use super::{LoadedRule, RuleKeeper};

/// The most enforcements that one look handles; the next look handles the rest.
const BATCH: usize = 256;

/// A decision to commit.
struct Decision {
    enforcement: Id,
    /// The time of its first event (steady).
    first_ms: i64,
    /// The generation of the rule by which it was made.
    generation: u32,
    decision: TriggerDecision,
}

/// The decisions of one look. Those of a lane are committed one after the other, and lanes wait for the disk together.
#[derive(Default)]
struct Lanes {
    /// Decisions that depend on the one before, by rule.
    ordered: BTreeMap<Id, Vec<Decision>>,
    /// Decisions that depend on no other.
    free: Vec<Decision>,
}

impl LoadedRule {
    /// Whether the decision about one event depends on the decisions before it.
    fn order_matters(&self) -> bool {
        let trigger = &self.trigger;
        trigger.overlap != OverlapPolicy::Allow || trigger.debounce.is_some() || trigger.rate.is_some()
    }
}

impl RuleKeeper {
    /// Decides the enforcements that wait. Returns the number of runs that started.
    pub(super) async fn decide_waiting(&self) -> Result<usize> {
        let lanes = self.decisions().await?;
        let free = lanes.free.into_iter().map(|one| vec![one]);
        let mut commits = JoinSet::new();
        for lane in lanes.ordered.into_values().chain(free) {
            let store = self.app.store.clone();
            commits.spawn(async move {
                let mut started = 0;
                for Decision { enforcement, generation, decision, .. } in lane {
                    match store.executor().decide(enforcement, generation, decision).await {
                        Ok(settled) => started += usize::from(matches!(settled, Settled::Requested(_))),
                        Err(error) => {
                            tracing::warn!(enforcement, %error, "deciding failed: left to the next sweep");
                        }
                    }
                }
                started
            });
        }
        let mut started = 0;
        while let Some(lane) = commits.join_next().await {
            // What a lane that panicked left is due again in the next sweep.
            started += lane.unwrap_or(0);
        }
        Ok(started)
    }

    /// Evaluates the enforcements that wait and are due.
    async fn decisions(&self) -> Result<Lanes> {
        let now_ms = self.app.now().steady_ms;
        let mut lanes = Lanes::default();
        for (row, rule, event) in self.app.store.queries().enforcements_due(now_ms, BATCH)? {
            let (enforcement, first_ms, generation, of) = (row.id, row.first_ms, rule.generation, rule.id);
            let (decision, order_matters) = match self.load(rule).await? {
                Some(loaded) => {
                    let names: Value = serde_json::from_str(&event.body).unwrap_or_default();
                    let chain: Vec<String> = serde_json::from_str(&event.chain).unwrap_or_default();
                    (self.app.decide(&loaded, &names, &chain), loaded.order_matters())
                }
                // The rule is broken now. A decision that waited for it to be mended would be made again and again.
                None => (TriggerDecision::Skip("the rule is broken".into()), false),
            };
            let decision = Decision { enforcement, first_ms, generation, decision };
            if order_matters {
                lanes.ordered.entry(of).or_default().push(decision);
            } else {
                lanes.free.push(decision);
            }
        }
        // Whatever was held longer is due later; the events count in the order in which they came.
        for lane in lanes.ordered.values_mut() {
            lane.sort_by_key(|one| (one.first_ms, one.enforcement));
        }
        Ok(lanes)
    }
}
