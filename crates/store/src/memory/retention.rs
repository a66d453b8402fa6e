//! Forgetting in memory.

use sprag_lifecycle::RunId;

use super::MemoryTx;
use crate::error::Result;
use crate::retention::Retention;

impl Retention for MemoryTx<'_> {
    fn ended_before(&mut self, wall_ms: i64, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>> {
        let ended = self.tables.runs.values().filter(|run| {
            Some(run.id) > after && run.parent.is_none() && run.ended_ms.is_some_and(|ended| ended < wall_ms)
        });
        Ok(ended.take(limit).map(|run| run.id).collect())
    }

    fn all_children(&mut self, run: RunId) -> Result<Vec<RunId>> {
        let is_child = |child: &&crate::rows::RunRow| child.parent.is_some_and(|(parent, _)| parent == run);
        Ok(self.tables.runs.values().filter(is_child).map(|child| child.id).collect())
    }

    fn has_effects(&mut self, run: RunId) -> Result<bool> {
        Ok(self.tables.outbox.values().any(|row| row.run == run))
    }

    fn forget_run(&mut self, run: RunId) -> Result<()> {
        // Undone as a whole: it is not what memory is for, and never in anybody's way.
        let before = self.tables.clone();
        self.undo.push(Box::new(move |tables| *tables = before));
        let tables = &mut *self.tables;
        let last = tables.journal.last().map(|entry| entry.seq);
        tables.journal.retain(|entry| entry.place.run != Some(run) || Some(entry.seq) == last);
        tables.runs.remove(&run);
        tables.steps.retain(|(of, _), _| *of != run);
        tables.executions.retain(|id, _| id.run != run);
        tables.items.retain(|id, _| id.run != run);
        tables.gates.retain(|_, gate| gate.run != run);
        tables.signals.retain(|(of, _, _)| *of != run);
        tables.timers.retain(|timer| timer.execution.run != run);
        tables.refusals.remove(&Some(run));
        tables.places.retain(|(_, of)| *of != run);
        tables.boards.forget(run);
        Ok(())
    }

    fn forget_plans(&mut self) -> Result<usize> {
        let before = self.tables.plans.clone();
        let used: std::collections::BTreeSet<i64> = self.tables.runs.values().map(|run| run.plan).collect();
        self.tables.plans.retain(|hash, _| used.contains(hash));
        let gone = before.len() - self.tables.plans.len();
        self.undo.push(Box::new(move |tables| tables.plans = before));
        Ok(gone)
    }
}
