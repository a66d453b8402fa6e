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
//!   clocks.rs     jumps of the wall clock
//!   fire.rs       due ticks; the executor calls it
//!   watchers.rs   the sign of life of processes that watch
//!   waiting.rs    enforcements that wait for a decision
//!   person.rs     pause, resume, fire by hand, test, backfill
//!   view.rs       rules and decisions as people and programs see them
//! ```

mod apply;
mod clocks;
mod decide;
mod ended;
mod fire;
mod incoming;
mod person;
mod refused;
mod signature;
mod view;
mod waiting;
mod watch;
mod watchers;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
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
pub(crate) use refused::UnwrittenRefusals;
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

impl StoredRule {
    /// Returns the hash of its pipeline.
    fn pipeline_hash(&self) -> Vec<u8> {
        // Text and lists of texts always become JSON.
        Sha256::digest(serde_json::to_vec(&self.pipeline).unwrap_or_default()).to_vec()
    }
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

/// The rules that this process has parsed.
pub(crate) type ParsedRules = Arc<Mutex<Parsed>>;

/// Parsed rules and pipelines. The rules of one file share its pipeline.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    /// By number and generation.
    rules: BTreeMap<(Id, u32), Arc<LoadedRule>>,
    /// By the hash of the definition.
    pipelines: BTreeMap<Vec<u8>, Weak<Pipeline>>,
}

impl Parsed {
    /// Returns the pipeline with this hash, if a rule still has it.
    fn pipeline(&self, hash: &[u8]) -> Option<Arc<Pipeline>> {
        self.pipelines.get(hash)?.upgrade()
    }

    /// Keeps a rule, and forgets its older generations and the pipelines that no rule has any more.
    fn keep(&mut self, rule: &LoadedRule, hash: Vec<u8>) {
        let key = (rule.row.id, rule.row.generation);
        let older: Vec<_> = self.rules.range((key.0, 0)..key).map(|(older, _)| *older).collect();
        if !older.is_empty() {
            older.iter().for_each(|older| drop(self.rules.remove(older)));
            self.pipelines.retain(|_, pipeline| pipeline.strong_count() > 0);
        }
        self.pipelines.insert(hash, Arc::downgrade(&rule.pipeline));
        self.rules.insert(key, Arc::new(rule.with_row(rule.row.clone())));
    }
}

impl LoadedRule {
    /// Builds a rule from its stored definition and the pipeline in it.
    fn new(row: RuleRow, stored: StoredRule, pipeline: Arc<Pipeline>) -> Result<LoadedRule, String> {
        let Some(trigger) = pipeline.trigger(&stored.rule).cloned() else {
            return Err(format!("its stored pipeline has no rule {:?}", stored.rule));
        };
        let (file, project) = (stored.file, stored.project);
        Ok(LoadedRule { row, pipeline, trigger, file, project })
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

    /// Returns how the file that it was applied from differs from its definition by now, for people. A rule that was
    /// applied without a file, or whose folder is not one of this machine, says nothing.
    fn change_of_its_file(&self) -> Option<String> {
        let file = std::path::Path::new(&self.file);
        let now = match sprag_pipeline::load(file) {
            Ok(loaded) => loaded.pipeline.definition(),
            Err(_) if !file.is_file() => {
                let gone = || format!("{} is gone, and the rule works as it was applied", self.file);
                return self.file_is_gone().then(gone);
            }
            Err(wrong) => {
                let first = wrong.iter().next().map(|one| one.message.clone()).unwrap_or_default();
                return Some(format!(
                    "{} no longer loads ({first}), so the rule works as it was applied",
                    self.file
                ));
            }
        };
        let applied = self.pipeline.definition();
        let is_same =
            now.text == applied.text && now.children == applied.children && now.prompts == applied.prompts;
        (!is_same).then(|| format!("{} has changed since it was applied", self.file))
    }

    /// Whether the file that it was applied from was removed from its folder, which is one of this machine.
    fn file_is_gone(&self) -> bool {
        let file = std::path::Path::new(&self.file);
        file.is_absolute() && self.project.is_dir() && !file.exists()
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

    /// Returns the rules in use whose file was removed from its project on this machine, with the file.
    pub fn rules_without_file(&self) -> Result<Vec<(String, String)>, Error> {
        let loaded = self.rules(false)?.into_iter().filter_map(|row| self.loaded_rule(row).ok());
        let gone = loaded.filter(|rule| rule.file_is_gone());
        Ok(gone.map(|rule| (rule.row.name.to_string(), rule.file)).collect())
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

    /// Returns a rule with its parsed definition, which is parsed once for each generation, and its pipeline once for
    /// all rules of a file. The reason names what this program cannot use in it.
    pub(crate) fn loaded_rule(&self, row: RuleRow) -> Result<LoadedRule, String> {
        let parsed = || self.parsed_rules.lock().unwrap_or_else(PoisonError::into_inner);
        let known = parsed().rules.get(&(row.id, row.generation)).cloned();
        if let Some(known) = known {
            return Ok(known.with_row(row));
        }
        let stored: StoredRule = serde_json::from_str(&row.definition)
            .map_err(|error| format!("its stored definition cannot be read: {error}"))?;
        let hash = stored.pipeline_hash();
        let shared = parsed().pipeline(&hash);
        let pipeline = match shared {
            Some(pipeline) => pipeline,
            None => {
                let loaded = stored.pipeline.parse().map_err(|wrong| {
                    let first = wrong.iter().next().map(|one| one.message.clone()).unwrap_or_default();
                    format!("its stored pipeline cannot be used: {first}")
                })?;
                Arc::new(loaded.pipeline)
            }
        };
        let rule = LoadedRule::new(row, stored, pipeline)?;
        parsed().keep(&rule, hash);
        Ok(rule)
    }

    /// Returns a rule with its parsed definition.
    pub(crate) fn load_rule(&self, name: &str) -> Result<LoadedRule, Error> {
        let row = self.find_rule(name)?;
        let name = Arc::clone(&row.name);
        self.loaded_rule(row)
            .map_err(|why| Error::failed(format!("rule {name}: {why}")).next("apply its pipeline file again"))
    }
}
