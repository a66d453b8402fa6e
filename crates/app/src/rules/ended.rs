//! Rules about the ends of other runs. They follow the journal, so an end that no process saw is found later.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use serde_json::{Value, json};
use sprag_lifecycle::{Lifecycle, Run, RunStatus, Word};
use sprag_pipeline::{RunSource, TriggerSource};
use sprag_store::{FireEvent, Fired, Id, JournalEntry, Result, RuleRow, RuleSeen, RunRow};

use super::fire::new_event;
use super::{LoadedRule, RuleKeeper};
use crate::labels::RunLabels;

/// The number of journal entries that are read at once.
const PAGE: usize = 500;
/// The most pages that one look reads; the next look reads the rest.
const PAGES: usize = 20;
/// The number of entries that a rule did not want after which its cursor is stored anyway.
const UNWANTED: i64 = 2_000;
/// The most bytes of an event. A larger one is stored without the run's inputs and outputs.
const LARGEST_EVENT: usize = 256 << 10;

/// The progress of rules in the journal: the stored cursor, and the number up to which entries were read beyond it.
pub(super) type Progress = BTreeMap<Id, (i64, i64)>;

/// A rule that follows the journal.
struct Following {
    rule: LoadedRule,
    /// The number of the last entry that was read.
    read: i64,
}

impl Following {
    fn source(&self) -> Option<&RunSource> {
        match &self.rule.trigger.source {
            TriggerSource::Run(source) => Some(source),
            _ => None,
        }
    }
}

/// A run that has ended, as rules see it.
struct EndedRun {
    pipeline: String,
    labels: BTreeMap<String, String>,
    /// The names that conditions and inputs can use.
    names: Value,
    /// The rules whose runs led to it.
    chain: Vec<String>,
}

impl RuleKeeper {
    /// Gives the ends of runs to the rules about them, each with the rule's cursor in one commit. Returns the number of
    /// runs that started.
    pub(super) async fn fire_ended(&self) -> Result<usize> {
        let mut following = self.following().await?;
        let mut started = 0;
        for _ in 0..PAGES {
            let Some(from) = following.iter().map(|one| one.read).min() else { break };
            let page = self.app.store.queries().journal(from.max(0) as u64, None, PAGE)?;
            let is_full = page.entries.len() == PAGE;
            let upto = match page.entries.last() {
                Some(last) if is_full => last.seq as i64,
                _ => from.max(page.last_seq as i64),
            };
            for entry in page.entries.iter().filter(|entry| is_end(entry)) {
                started += self.fire_end(&mut following, entry).await?;
            }
            following.iter_mut().for_each(|one| one.read = one.read.max(upto));
            if !is_full {
                break;
            }
        }
        for one in &mut following {
            if one.read - one.rule.row.cursor >= UNWANTED {
                let seen = RuleSeen::of(&one.rule.row);
                let fire = FireEvent { seen, event: None, cursor: one.read, watched: None };
                if self.app.store.executor().fire_event(fire).await? != Fired::Superseded {
                    one.rule.row.cursor = one.read;
                }
            }
        }
        let progress = following.iter().map(|one| (one.rule.row.id, (one.rule.row.cursor, one.read)));
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress.collect();
        Ok(started)
    }

    /// Returns the active rules about other runs, each with its progress in the journal.
    async fn following(&self) -> Result<Vec<Following>> {
        let mut following = Vec::new();
        for row in self.app.store.queries().rules_about_runs()? {
            let read = self.read_up_to(&row);
            if let Some(rule) = self.load(row).await? {
                following.push(Following { rule, read });
            }
        }
        Ok(following)
    }

    /// Returns the number of the last entry that this process has read for a rule.
    fn read_up_to(&self, row: &RuleRow) -> i64 {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        match progress.get(&row.id) {
            Some((cursor, read)) if *cursor == row.cursor => *read,
            _ => row.cursor,
        }
    }

    /// Gives the end of a run to the rules that want it. A rule that another process has changed meanwhile is left to
    /// the next look. Returns the number of runs that started.
    async fn fire_end(&self, following: &mut Vec<Following>, entry: &JournalEntry) -> Result<usize> {
        let (seq, status) = (entry.seq as i64, entry.to);
        let wants =
            |one: &Following| one.read < seq && one.source().is_some_and(|source| source.counts(status));
        if !following.iter().any(wants) {
            return Ok(0);
        }
        let Some(ended) = self.ended_run(entry)? else { return Ok(0) };
        let mut started = 0;
        let mut outdated = Vec::new();
        for one in following.iter_mut().filter(|one| wants(one)) {
            let fits = one.source().is_some_and(|source| source.matches(&ended.pipeline, &ended.labels));
            if !fits {
                continue;
            }
            let decision = self.app.decide(&one.rule, &ended.names, &ended.chain);
            let key = format!("run {} {status} {seq}", ended.names["event"]["run"].as_str().unwrap_or("?"));
            let event = new_event(&self.app, &key, "run", &ended.names, &ended.chain);
            let seen = RuleSeen::of(&one.rule.row);
            let fire = FireEvent { seen, event: Some((event, decision)), cursor: seq, watched: None };
            match self.app.store.executor().fire_event(fire).await {
                Ok(Fired::Decided { run, .. }) => {
                    started += usize::from(run.is_some());
                    one.rule.row.cursor = seq;
                }
                Ok(Fired::Superseded) => outdated.push(one.rule.row.id),
                // One rule that cannot be read or written must not stop the others.
                Err(error) => {
                    let rule = &one.rule.row.name;
                    tracing::warn!(%rule, %error, "firing a rule failed: left to the next sweep");
                    outdated.push(one.rule.row.id);
                }
            }
        }
        following.retain(|one| !outdated.contains(&one.rule.row.id));
        Ok(started)
    }

    /// Returns the run whose end an entry tells of; none if it is a child run, whose end is part of its parent's work,
    /// or if it was removed.
    fn ended_run(&self, entry: &JournalEntry) -> Result<Option<EndedRun>> {
        let Some(run) = entry.place.run else { return Ok(None) };
        let row = self.app.store.queries().run(run)?;
        let Some(row) = row.filter(|row| row.parent.is_none()) else { return Ok(None) };
        // A run that cannot be evaluated has no outputs; its end counts all the same.
        let outputs = self.app.run_outputs(&row).ok().flatten();
        let labels = RunLabels::of(&row);
        let mut names = json!({ "event": {
            "run": row.id.to_string(),
            "status": entry.to,
            "pipeline": &*row.pipeline,
            "name": labels.name,
            "labels": labels.labels,
            "reason": row.reason.as_deref(),
            "inputs": crate::secret_inputs::shown(&row.inputs),
            "outputs": outputs,
        } });
        if names.to_string().len() > LARGEST_EVENT
            && let Some(event) = names["event"].as_object_mut()
        {
            event.remove("inputs");
            event.remove("outputs");
        }
        let (pipeline, labels) = (row.pipeline.to_string(), labels.labels);
        Ok(Some(EndedRun { pipeline, labels, names, chain: chain_of(&row) }))
    }
}

/// Whether an entry tells of the end of a run.
fn is_end(entry: &JournalEntry) -> bool {
    let ends = || RunStatus::ALL.iter().any(|status| status.is_terminal() && status.as_str() == entry.to);
    entry.entity == Run::NAME && ends()
}

/// Returns the rules whose runs led to a run, the first one first.
fn chain_of(row: &RunRow) -> Vec<String> {
    if !row.context.contains("\"trigger\"") {
        return Vec::new();
    }
    let context: Value = serde_json::from_str(&row.context).unwrap_or_default();
    serde_json::from_value(context["trigger"]["chain"].clone()).unwrap_or_default()
}
