//! The tables of boards in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sprag_lifecycle::{RunId, StepNo, StepStatus, TaskNeed, Word};

use super::MemoryTx;
use crate::boards::{BoardRow, Boards, NoteRow};
use crate::error::Result;
use crate::rows::Row;

#[derive(Debug, Clone, Default)]
pub(super) struct BoardTables {
    boards: BTreeMap<RunId, BoardRow>,
    keys: BTreeMap<(RunId, Arc<str>), StepNo>,
    /// The needs of tasks: run, task, need.
    needs: BTreeSet<(RunId, StepNo, TaskNeed)>,
    notes: Vec<NoteRow>,
}

impl BoardTables {
    /// Removes a board's own row.
    pub(super) fn forget_board(&mut self, run: RunId) {
        self.boards.remove(&run);
    }

    /// Removes the rows that belong to a board.
    pub(super) fn forget_rows(&mut self, run: RunId) {
        self.keys.retain(|(of, _), _| *of != run);
        self.needs.retain(|(of, _, _)| *of != run);
        self.notes.retain(|note| note.run != run);
    }
}

impl Boards for MemoryTx<'_> {
    fn put_board(&mut self, board: &BoardRow) -> Result<()> {
        let run = board.run;
        self.tables.boards.boards.insert(run, board.clone());
        self.undo.push(Box::new(move |tables| {
            tables.boards.boards.remove(&run);
        }));
        Ok(())
    }

    fn board(&mut self, run: RunId) -> Result<Option<BoardRow>> {
        Ok(self.tables.boards.boards.get(&run).cloned())
    }

    fn board_called(&mut self, name: &str) -> Result<Option<BoardRow>> {
        let called = self.tables.boards.boards.values().filter(|board| &*board.name == name);
        Ok(called.max_by_key(|board| (board.open, board.run)).cloned())
    }

    fn boards(&mut self, all: bool, limit: usize) -> Result<Vec<BoardRow>> {
        let wanted = self.tables.boards.boards.values().rev().filter(|board| all || board.open);
        Ok(wanted.take(limit).cloned().collect())
    }

    fn change_board(&mut self, board: &BoardRow) -> Result<()> {
        if let Some(kept) = self.tables.boards.boards.get_mut(&board.run) {
            let before = std::mem::replace(kept, board.clone());
            self.undo.push(Box::new(move |tables| {
                tables.boards.boards.insert(before.run, before);
            }));
        }
        Ok(())
    }

    fn task_counts(&mut self, run: RunId) -> Result<Vec<(StepStatus, u32)>> {
        let mut counts: BTreeMap<&str, (StepStatus, u32)> = BTreeMap::new();
        for step in self.tables.steps.values().filter(|step| step.run == run && step.item_of.is_some()) {
            counts.entry(step.status().as_str()).or_insert((step.status(), 0)).1 += 1;
        }
        Ok(counts.into_values().collect())
    }

    fn put_task_key(&mut self, run: RunId, key: &str, no: StepNo) -> Result<()> {
        let key: (RunId, Arc<str>) = (run, key.into());
        self.tables.boards.keys.insert(key.clone(), no);
        self.undo.push(Box::new(move |tables| {
            tables.boards.keys.remove(&key);
        }));
        Ok(())
    }

    fn task_by_key(&mut self, run: RunId, key: &str) -> Result<Option<StepNo>> {
        Ok(self.tables.boards.keys.get(&(run, key.into())).copied())
    }

    fn put_task_need(&mut self, run: RunId, no: StepNo, need: TaskNeed) -> Result<()> {
        self.tables.boards.needs.insert((run, no, need));
        self.undo.push(Box::new(move |tables| {
            tables.boards.needs.remove(&(run, no, need));
        }));
        Ok(())
    }

    fn task_needs(&mut self, run: RunId, no: StepNo) -> Result<Vec<TaskNeed>> {
        let first = (run, no, TaskNeed { item: 0, tolerant: false });
        let all = self.tables.boards.needs.range(first..);
        Ok(all.take_while(|(of, task, _)| (*of, *task) == (run, no)).map(|(_, _, need)| *need).collect())
    }

    fn task_followers(&mut self, run: RunId, need: StepNo) -> Result<Vec<TaskNeed>> {
        let all = self.tables.boards.needs.iter().filter(|(of, _, other)| *of == run && other.item == need);
        Ok(all.map(|(_, no, other)| TaskNeed { item: *no, tolerant: other.tolerant }).collect())
    }

    fn token_key(&mut self) -> Result<Arc<str>> {
        // No other process can reach a store in memory.
        Ok("memory".into())
    }

    fn put_note(&mut self, note: &NoteRow) -> Result<i64> {
        let id = self.tables.boards.notes.len() as i64 + 1;
        self.tables.boards.notes.push(NoteRow { id, ..note.clone() });
        self.undo.push(Box::new(|tables| {
            tables.boards.notes.pop();
        }));
        Ok(id)
    }

    fn notes(&mut self, run: RunId, tag: Option<&str>, after: i64, limit: usize) -> Result<Vec<NoteRow>> {
        let of = self.tables.boards.notes.iter().filter(|note| note.run == run && note.id > after);
        Ok(of.filter(|note| tag.is_none_or(|tag| tag == &*note.tag)).take(limit).cloned().collect())
    }

    fn note_count(&mut self, run: RunId, tag: &str) -> Result<i64> {
        let notes = self.tables.boards.notes.iter();
        Ok(notes.filter(|note| note.run == run && &*note.tag == tag).count() as i64)
    }
}
