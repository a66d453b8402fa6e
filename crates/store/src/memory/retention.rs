//! Forgetting in memory.

use std::collections::{BTreeMap, BTreeSet};

use sprag_lifecycle::{EnvironmentStatus, RunId};

use super::MemoryTx;
use crate::error::Result;
use crate::retention::{Part, PlansForgotten, Retention};
use crate::rows::{Row, RunRow};

/// The remaining rows of forgotten runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Leftovers {
    /// Forgotten runs, and whether rows of them are left.
    runs: BTreeMap<RunId, bool>,
    /// The first and the last journal entry that may belong to a forgotten run.
    entries: Option<(u64, u64)>,
}

impl MemoryTx<'_> {
    /// Saves all tables, so that a failed operation is undone as a whole. The store in memory is for models and small
    /// tests.
    fn remember_all(&mut self) {
        let before = self.tables.clone();
        self.undo.push(Box::new(move |tables| *tables = before));
    }

    fn put_on_the_list(&mut self, run: &RunRow) {
        let tables = &mut *self.tables;
        tables.runs.remove(&run.id);
        tables.boards.forget_board(run.id);
        tables.timers.retain(|timer| timer.execution.run != run.id);
        tables.signals.retain(|(of, _, _)| *of != run.id);
        tables.refusals.remove(&Some(run.id));
        tables.places.retain(|(_, of)| *of != run.id);
        tables.leftovers.runs.insert(run.id, true);
        let (from, to) = tables.leftovers.entries.unwrap_or((u64::MAX, 0));
        tables.leftovers.entries = Some((from.min(run.first_seq), to.max(run.last_seq)));
    }
}

impl Retention for MemoryTx<'_> {
    fn ended_before(&mut self, wall_ms: i64, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>> {
        let born_by = RunId::new(wall_ms, u64::MAX);
        let ended = self.tables.runs.values().filter(|run| {
            Some(run.id) > after
                && run.id <= born_by
                && run.parent.is_none()
                && run.ended_ms.is_some_and(|ended| ended < wall_ms)
        });
        Ok(ended.take(limit).map(|run| run.id).collect())
    }

    fn all_children(&mut self, runs: &[RunId]) -> Result<Vec<RunId>> {
        let is_child = |child: &&RunRow| child.parent.is_some_and(|(parent, _)| runs.contains(&parent));
        Ok(self.tables.runs.values().filter(is_child).map(|child| child.id).collect())
    }

    fn with_environments(&mut self, runs: &[RunId]) -> Result<BTreeSet<RunId>> {
        let there = |row: &&crate::rows::EnvironmentRow| row.status() != EnvironmentStatus::Destroyed;
        let with = self.tables.environments.values().filter(there).filter_map(|row| row.run);
        Ok(with.filter(|run| runs.contains(run)).collect())
    }

    fn with_effects(&mut self, runs: &[RunId]) -> Result<BTreeSet<RunId>> {
        let with = self.tables.outbox.values().map(|row| row.run);
        Ok(with.filter(|run| runs.contains(run)).collect())
    }

    fn runs_there(&mut self, runs: &[RunId]) -> Result<BTreeSet<RunId>> {
        Ok(runs.iter().copied().filter(|run| self.tables.runs.contains_key(run)).collect())
    }

    fn forget_runs(&mut self, runs: &[RunRow]) -> Result<()> {
        if !runs.is_empty() {
            self.remember_all();
        }
        runs.iter().for_each(|run| self.put_on_the_list(run));
        Ok(())
    }

    fn half_forgotten(&mut self, limit: usize) -> Result<Vec<RunId>> {
        let half = self.tables.leftovers.runs.iter().filter(|(_, rows_left)| **rows_left);
        Ok(half.take(limit).map(|(run, _)| *run).collect())
    }

    fn forget_rows(&mut self, runs: &[RunId], _: Part) -> Result<Vec<RunId>> {
        self.remember_all();
        let children = self.all_children(runs)?;
        for child in &children {
            let row = self.tables.runs[child].clone();
            self.put_on_the_list(&row);
        }
        let tables = &mut *self.tables;
        tables.steps.retain(|(of, _), _| !runs.contains(of));
        tables.executions.retain(|id, _| !runs.contains(&id.run));
        tables.items.retain(|id, _| !runs.contains(&id.run));
        tables.gates.retain(|_, gate| !runs.contains(&gate.run));
        for run in runs {
            tables.boards.forget_rows(*run);
            tables.leftovers.runs.insert(*run, false);
        }
        Ok(children)
    }

    fn forgotten(&mut self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>> {
        let gone = |(run, rows_left): &(&RunId, &bool)| !**rows_left && Some(**run) > after;
        Ok(self.tables.leftovers.runs.iter().filter(gone).take(limit).map(|(run, _)| *run).collect())
    }

    fn drop_forgotten(&mut self, runs: &[RunId]) -> Result<()> {
        self.remember_all();
        self.tables.leftovers.runs.retain(|run, rows_left| *rows_left || !runs.contains(run));
        Ok(())
    }

    fn forget_entries(&mut self, _: usize) -> Result<bool> {
        let Some((from, to)) = self.tables.leftovers.entries else { return Ok(false) };
        self.remember_all();
        let tables = &mut *self.tables;
        let last = tables.journal.last().map(|entry| entry.seq);
        let runs = &tables.runs;
        tables.journal.retain(|entry| {
            let gone = entry.place.run.is_some_and(|run| !runs.contains_key(&run));
            !gone || !(from..=to).contains(&entry.seq) || Some(entry.seq) == last
        });
        tables.leftovers.entries = None;
        Ok(false)
    }

    fn forget_plans(&mut self, _: Option<i64>, _: Part) -> Result<PlansForgotten> {
        self.remember_all();
        let used: BTreeSet<i64> = self.tables.runs.values().map(|run| run.plan).collect();
        let before = self.tables.plans.len();
        self.tables.plans.retain(|hash, _| used.contains(hash));
        Ok(PlansForgotten { gone: before - self.tables.plans.len(), next: None })
    }

    fn store_id(&mut self) -> Result<String> {
        Ok("memory".into())
    }
}
