//! Applying the rules of a pipeline file.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use sprag_lifecycle::{RuleEvent, RuleStatus};
use sprag_pipeline::{Pipeline, Trigger, TriggerSource};
use sprag_store::{NewRule, NextTick, Row, RuleApplied, RuleChange};

use super::StoredRule;
use super::watch::first_look;
use crate::App;
use crate::error::Error;
use crate::secret::hex;

/// The effect of applying one rule.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AppliedRule {
    /// The full name.
    pub name: String,
    /// The effect.
    pub outcome: RuleOutcome,
}

/// The effect of applying one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum RuleOutcome {
    /// The rule is new.
    New,
    /// The rule has another definition now.
    Changed,
    /// The rule had this definition.
    Unchanged,
    /// The file no longer has the rule, so it was retired.
    Retired,
    /// The rule was retired before, and only a person brings it back.
    #[serde(rename = "stays retired")]
    StaysRetired,
}

impl RuleOutcome {
    /// Returns the word of the effect.
    pub fn as_str(self) -> &'static str {
        match self {
            RuleOutcome::New => "new",
            RuleOutcome::Changed => "changed",
            RuleOutcome::Unchanged => "unchanged",
            RuleOutcome::Retired => "retired",
            RuleOutcome::StaysRetired => "stays retired",
        }
    }
}

/// The request to apply a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Applying {
    /// Only tell what would happen.
    Dry,
    /// A person asked for it.
    AsAsked,
    /// A server does it when it starts.
    ByItself,
}

impl StoredRule {
    /// Returns the hash of what the rule does, wherever its file and its folder are.
    fn hash(&self) -> Result<String, Error> {
        let mut pipeline = serde_json::to_value(&self.pipeline)
            .map_err(|error| Error::bug(format!("a rule cannot be stored: {error}")))?;
        remove_file_names(&mut pipeline);
        Ok(hex(&Sha256::digest(json!([self.rule, pipeline]).to_string())))
    }
}

/// Removes the names of a stored pipeline's file and of its children's files.
fn remove_file_names(definition: &mut Value) {
    let Some(definition) = definition.as_object_mut() else { return };
    definition.remove("name");
    if let Some(children) = definition.get_mut("children").and_then(Value::as_object_mut) {
        children.values_mut().for_each(remove_file_names);
    }
}

impl App {
    /// Returns the first tick of a rule from now on, and the cursor before it.
    pub(super) fn first_tick(&self, name: &str, trigger: &Trigger) -> Result<(Option<NextTick>, i64), Error> {
        let now_ms = self.now().wall_ms;
        match &trigger.source {
            TriggerSource::Schedule(schedule) => {
                let next = schedule.next_after(now_ms).map(|tick| NextTick {
                    due_ms: schedule.fires_ms(name, &tick),
                    key: tick.key.as_str().into(),
                });
                Ok((next, now_ms))
            }
            // The cursor counts on from the time, so that it never has the same value twice.
            TriggerSource::Git(_) => Ok((Some(first_look(now_ms)), now_ms)),
            TriggerSource::Webhook(_) => Ok((None, now_ms)),
            TriggerSource::Run(_) => Ok((None, self.store.queries().last_seq()? as i64)),
        }
    }

    /// Applies the rules of a pipeline file: new ones become active, changed ones count from now on, and rules that the
    /// file no longer has are retired. With `dry`, only tells what would happen.
    pub async fn apply_rules(
        &self,
        pipeline: &Pipeline,
        file: &str,
        project: &Path,
        dry: bool,
    ) -> Result<Vec<AppliedRule>, Error> {
        self.apply(pipeline, file, project, if dry { Applying::Dry } else { Applying::AsAsked }).await
    }

    /// Applies the rules of a pipeline file without a person who asks for it, as a server does when it starts. A retired
    /// rule stays retired, and a rule that does the same in another folder stays there: servers for two checkouts of a
    /// project do not take it from each other.
    pub async fn apply_rules_by_itself(
        &self,
        pipeline: &Pipeline,
        file: &str,
        project: &Path,
    ) -> Result<Vec<AppliedRule>, Error> {
        self.apply(pipeline, file, project, Applying::ByItself).await
    }

    async fn apply(
        &self,
        pipeline: &Pipeline,
        file: &str,
        project: &Path,
        how: Applying,
    ) -> Result<Vec<AppliedRule>, Error> {
        let dry = how == Applying::Dry;
        if !dry {
            // Ticks that are due count by the definition that they were due by.
            super::RuleKeeper::new(self).fire_due().await?;
        }
        let existing = self.store.queries().rules()?;
        let mut applied = Vec::new();
        for trigger in &pipeline.triggers {
            let name = format!("{}/{}", pipeline.name, trigger.id);
            let stored = StoredRule {
                rule: trigger.id.clone(),
                pipeline: pipeline.definition(),
                file: file.to_owned(),
                project: project.to_owned(),
            };
            let definition = serde_json::to_string(&stored)
                .map_err(|error| Error::bug(format!("a rule cannot be stored: {error}")))?;
            let hash = stored.hash()?;
            let outcome = if dry {
                match existing.iter().find(|row| *row.name == *name) {
                    None => RuleOutcome::New,
                    Some(row) if *row.definition == *definition && row.status() != RuleStatus::Retired => {
                        RuleOutcome::Unchanged
                    }
                    Some(_) => RuleOutcome::Changed,
                }
            } else {
                let (next, cursor) = self.first_tick(&name, trigger)?;
                let new = NewRule {
                    id: self.new_id(),
                    name: name.as_str().into(),
                    definition: definition.into(),
                    hash: hash.into(),
                    auto: how == Applying::ByItself,
                    source: trigger.source.kind(),
                    next,
                    cursor: Some(cursor),
                };
                match self.store.person().apply_rule(new).await? {
                    RuleApplied::New(_) => RuleOutcome::New,
                    RuleApplied::Changed(_) => RuleOutcome::Changed,
                    RuleApplied::Unchanged(_) => RuleOutcome::Unchanged,
                    RuleApplied::StaysRetired(_) => RuleOutcome::StaysRetired,
                }
            };
            applied.push(AppliedRule { name, outcome });
        }
        let of_pipeline = format!("{}/", pipeline.name);
        let gone = existing.iter().filter(|row| {
            row.name.starts_with(&of_pipeline)
                && row.status() != RuleStatus::Retired
                && !applied.iter().any(|applied| *applied.name == *row.name)
        });
        let mut retired = Vec::new();
        for row in gone {
            if !dry {
                let change = RuleChange {
                    event: RuleEvent::Retired,
                    generation: row.generation,
                    reason: Some(Arc::from("its pipeline file no longer has it")),
                    next: None,
                };
                let _ = self.store.person().change_rule(row.id, change).await?;
            }
            retired.push(AppliedRule { name: row.name.to_string(), outcome: RuleOutcome::Retired });
        }
        applied.append(&mut retired);
        Ok(applied)
    }
}
