//! Writing a session: one compare-and-set per changed row, then the journal, effects and timers.

use std::collections::BTreeSet;
use std::sync::Arc;

use sprag_lifecycle::{ExecutionStatus, Lifecycle, mutant};

use super::{Holds, Session};
use crate::error::{Error, Result};
use crate::rows::{
    AccountRow, EnforcementRow, EnvironmentRow, ExecutionRow, GateRow, Row, RuleRow, RunRow, StepRow,
    ThreadRow, WorkerRow,
};
use crate::wake::Topic;

/// The summary of a session's writes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flushed {
    /// The number of journal entries.
    pub transitions: usize,
    /// The refused events: the kind of entity, and the kind of refusal.
    pub refused: Vec<(&'static str, &'static str)>,
    /// The topics whose subscribers to notify.
    pub topics: BTreeSet<Topic>,
}

impl Session<'_> {
    /// Writes all changes. A row that another process has changed meanwhile is a conflict: nothing of this operation
    /// may then stay.
    pub fn flush(mut self) -> Result<Flushed> {
        if self.runs.0.values().any(|slot| slot.dirty) {
            let last_seq = self.last_seq();
            let first_seq = self.journal.first().map_or(last_seq, |entry| entry.seq);
            self.number_runs(first_seq, last_seq);
        }
        if let Some(error) = self.broken {
            return Err(error);
        }
        let topics = self.topics();
        self.flush_kind::<RunRow>()?;
        self.flush_kind::<StepRow>()?;
        self.flush_kind::<ExecutionRow>()?;
        self.flush_kind::<EnvironmentRow>()?;
        self.flush_kind::<ThreadRow>()?;
        self.flush_kind::<GateRow>()?;
        self.flush_kind::<WorkerRow>()?;
        self.flush_kind::<RuleRow>()?;
        self.flush_kind::<EnforcementRow>()?;
        self.flush_kind::<AccountRow>()?;
        self.db.append(&self.journal)?;
        for row in &self.outbox {
            self.db.put_outbox(row)?;
        }
        for execution in &self.spent_timers {
            self.db.drop_timer(*execution)?;
        }
        for timer in &self.timers {
            self.db.put_timer(timer)?;
        }
        for (group, run, held) in &self.places {
            if *held {
                self.db.put_place(group, *run)?;
            } else {
                self.db.drop_place(group, *run)?;
            }
        }
        for refusal in &self.refusals {
            self.db.keep_refusal(refusal)?;
        }
        let refused = self.refusals.iter().map(|refusal| (refusal.entity, refusal.reason)).collect();
        Ok(Flushed { transitions: self.journal.len(), refused, topics })
    }

    fn number_runs(&mut self, first_seq: u64, last_seq: u64) {
        for slot in self.runs.0.values_mut().filter(|slot| slot.dirty) {
            slot.row.last_seq = last_seq;
            if slot.was.is_none() {
                slot.row.first_seq = first_seq;
            }
        }
    }

    /// Returns the topics whose subscribers to notify of this operation's changes.
    pub(crate) fn topics(&self) -> BTreeSet<Topic> {
        let mut topics = self.announced.clone();
        if !self.journal.is_empty() {
            topics.insert(Topic::Journal);
        }
        for run in self.runs.0.values().filter(|slot| slot.dirty).map(|slot| &slot.row) {
            topics.insert(Topic::Run(run.id));
            topics.insert(Topic::Run(run.root));
        }
        for row in self.executions.0.values().filter(|slot| slot.dirty).map(|slot| &slot.row) {
            topics.insert(Topic::Run(row.id.run));
            if row.status() == ExecutionStatus::Scheduled {
                topics.insert(match row.pin {
                    Some(worker) => Topic::Reserved(worker),
                    None => Topic::Queue(Arc::clone(&row.queue)),
                });
            }
        }
        topics
    }

    fn flush_kind<R: Row>(&mut self) -> Result<()>
    where
        Self: Holds<R>,
    {
        let (cache, db) = self.split();
        for slot in cache.0.values().filter(|slot| slot.dirty) {
            match slot.was {
                None => db.insert(&slot.row)?,
                Some(was) => {
                    if !db.update(&slot.row, was)? && !mutant!(ConflictOverlooked) {
                        let id = format!("{:?}", slot.row.key());
                        return Err(Error::Conflict { entity: R::Life::NAME, id });
                    }
                }
            }
        }
        Ok(())
    }
}
