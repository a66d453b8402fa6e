//! Rules: the triggers of pipeline files, applied to a store.
//!
//! ```text
//!   apply.rs      records the rules of a file
//!   incoming.rs   requests from outside
//!   signature.rs  the signatures of requests
//!   refused.rs    the count of requests that were refused
//!   decide.rs     what an event means for a rule: the same code for firing and for `rule test`
//!   ended.rs      the ends of other runs
//!   watch.rs      the moves of git refs
//!   fire.rs       due ticks and waiting enforcements; the executor calls it
//!   person.rs     pause, resume, fire by hand, test, backfill
//!   view.rs       rules and decisions as people and programs see them
//! ```

mod apply;
mod decide;
mod ended;
mod fire;
mod incoming;
mod person;
mod refused;
mod signature;
mod view;
mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use sprag_lifecycle::RuleStatus;
use sprag_pipeline::{Definition, Pipeline, Schedule, Trigger, TriggerSource, Webhook};
use sprag_store::{Id, Row, RuleRow};

use crate::App;
use crate::error::{Error, ErrorKind};
use crate::text::nearest;

pub use apply::{AppliedRule, RuleOutcome};
pub use decide::Verdict;
pub use fire::RuleKeeper;
pub use incoming::{Endpoint, GivenEvent, NotTaken, SignedRequest, Taken};
pub use person::{Backfill, Backfilled, TestedTick};
pub use refused::RefusedRequests;
pub use view::{DecisionView, DeliveryView, EventView, ExplainedRule, RuleView, TestView, TickView};

/// A rule's definition, as its row stores it: everything that its runs need, so that no file is read when it fires.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct StoredRule {
    /// The rule's id in the pipeline.
    rule: String,
    /// The pipeline file, with its children.
    pipeline: Definition,
    /// The file's path, for people.
    file: String,
    /// The folder in which its runs work.
    project: PathBuf,
}

/// A rule whose definition was parsed.
#[derive(Debug)]
pub(crate) struct LoadedRule {
    pub(crate) row: RuleRow,
    pub(crate) pipeline: Arc<Pipeline>,
    trigger: Trigger,
    file: String,
    project: PathBuf,
}

/// Parsed rules, by number and generation.
pub(crate) type ParsedRules = Arc<Mutex<BTreeMap<(Id, u32), Arc<LoadedRule>>>>;

impl LoadedRule {
    /// Parses the definition of a rule. The reason names what this program cannot use in it.
    pub(crate) fn load(row: RuleRow) -> Result<LoadedRule, String> {
        let stored: StoredRule = serde_json::from_str(&row.definition)
            .map_err(|error| format!("its stored definition cannot be read: {error}"))?;
        let loaded = stored.pipeline.parse().map_err(|wrong| {
            let first = wrong.iter().next().map(|one| one.message.clone()).unwrap_or_default();
            format!("its stored pipeline cannot be used: {first}")
        })?;
        let pipeline = loaded.pipeline;
        let Some(trigger) = pipeline.trigger(&stored.rule).cloned() else {
            return Err(format!("its stored pipeline has no rule {:?}", stored.rule));
        };
        let (file, project) = (stored.file, stored.project);
        Ok(LoadedRule { row, pipeline: Arc::new(pipeline), trigger, file, project })
    }

    /// Returns the rule with a newer row of the same generation.
    fn with_row(&self, row: RuleRow) -> LoadedRule {
        LoadedRule {
            row,
            pipeline: Arc::clone(&self.pipeline),
            trigger: self.trigger.clone(),
            file: self.file.clone(),
            project: self.project.clone(),
        }
    }

    /// Returns whether the file that it was applied from has another definition by now. A file that is gone, or that
    /// was never one of this machine, says nothing.
    fn differs_from_its_file(&self) -> bool {
        let Ok(loaded) = sprag_pipeline::load(std::path::Path::new(&self.file)) else { return false };
        let (now, applied) = (loaded.pipeline.definition(), self.pipeline.definition());
        now.text != applied.text || now.children != applied.children || now.prompts != applied.prompts
    }

    /// Returns the path of its webhook at a server; none if it has none.
    fn url(&self) -> Option<String> {
        self.webhook().map(|_| format!("/in/{}", self.row.name))
    }

    /// Returns the signed requests that it takes; none if it takes none.
    fn webhook(&self) -> Option<&Webhook> {
        match &self.trigger.source {
            TriggerSource::Webhook(webhook) => Some(webhook),
            TriggerSource::Git(source) => source.told_by.as_ref(),
            TriggerSource::Schedule(_) | TriggerSource::Run(_) => None,
        }
    }

    /// Returns the schedule; none if other events start its runs.
    fn schedule(&self) -> Option<&Schedule> {
        let TriggerSource::Schedule(schedule) = &self.trigger.source else { return None };
        Some(schedule)
    }
}

impl App {
    /// Returns all rules, by name; retired ones only with `all`.
    pub fn rules(&self, all: bool) -> Result<Vec<RuleRow>, Error> {
        let mut rules = self.store.queries().rules()?;
        rules.retain(|rule| all || rule.status() != RuleStatus::Retired);
        Ok(rules)
    }

    /// Returns the rule that a person names: `PIPELINE/RULE`, or the id alone where it is unique.
    pub fn find_rule(&self, name: &str) -> Result<RuleRow, Error> {
        let rules = self.store.queries().rules()?;
        if let Some(rule) = rules.iter().find(|rule| &*rule.name == name) {
            return Ok(rule.clone());
        }
        let short = |rule: &&RuleRow| rule.name.rsplit('/').next() == Some(name);
        let mut found = rules.iter().filter(short).filter(|rule| rule.status() != RuleStatus::Retired);
        match (found.next(), found.next()) {
            (Some(rule), None) => Ok(rule.clone()),
            (Some(one), Some(other)) => Err(Error::invalid(format!("several rules are called {name:?}"))
                .next(format!("give the full name, such as {} or {}", one.name, other.name))),
            _ => {
                let error = Error::new(ErrorKind::NotFound, format!("there is no rule {name:?}"));
                Err(match nearest(name, rules.iter().map(|rule| &*rule.name)) {
                    Some(near) => error.next(format!("did you mean {near:?}?")),
                    None if rules.is_empty() => error.next("apply the rules of a pipeline file"),
                    None => error.next("list the rules"),
                })
            }
        }
    }

    /// Returns a rule with its parsed definition, which is parsed once for each generation. The reason names what this
    /// program cannot use in it.
    pub(crate) fn loaded_rule(&self, row: RuleRow) -> Result<LoadedRule, String> {
        let key = (row.id, row.generation);
        let known = self.parsed_rules.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(known) = known {
            return Ok(known.with_row(row));
        }
        let rule = LoadedRule::load(row)?;
        let mut parsed = self.parsed_rules.lock().unwrap_or_else(PoisonError::into_inner);
        parsed.retain(|(id, _), _| *id != key.0);
        parsed.insert(key, Arc::new(rule.with_row(rule.row.clone())));
        Ok(rule)
    }

    /// Returns a rule with its parsed definition.
    pub(crate) fn load_rule(&self, name: &str) -> Result<LoadedRule, Error> {
        let row = self.find_rule(name)?;
        let name = Arc::clone(&row.name);
        LoadedRule::load(row)
            .map_err(|why| Error::failed(format!("rule {name}: {why}")).next("apply its pipeline file again"))
    }
}
