//! Forgetting: runs that ended long ago leave the store, with everything that was theirs.
//!
//! What is live is never touched: a run goes only once it has ended, its environments are gone, whatever was to be
//! done after its end is done, and every hook has been told of it.

use sprag_lifecycle::RunId;

use crate::error::Result;
use crate::ops;
use crate::roles::Person;

/// What a database must be able to forget.
pub trait Retention {
    /// Runs that ended before this moment (wall clock) and are no other run's work, from the oldest on, after `after`.
    fn ended_before(&mut self, wall_ms: i64, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>>;
    /// Runs that are the work of this run's steps, ended or not, in order.
    fn all_children(&mut self, run: RunId) -> Result<Vec<RunId>>;
    /// Whether something is still to be done after this run's commits.
    fn has_effects(&mut self, run: RunId) -> Result<bool>;
    /// Removes a run and all that is kept of it, but for its environments, which tell in which repositories there may be
    /// something to clean up. The last entry of the journal stays: numbers are never given twice.
    fn forget_run(&mut self, run: RunId) -> Result<()>;
    /// Removes plans that no run has; how many.
    fn forget_plans(&mut self) -> Result<usize>;
}

impl Person<'_> {
    /// Forgets up to `limit` runs that ended before this moment (wall clock), after `after`: those that went, and the
    /// last one that was looked at, from which to go on.
    pub async fn forget_runs(
        self,
        before_ms: i64,
        after: Option<RunId>,
        limit: usize,
    ) -> Result<ops::Forgotten> {
        self.0.write(move |session| ops::forget_runs(session, before_ms, after, limit)).await
    }

    /// The same, without forgetting anything.
    pub async fn forgettable_runs(
        self,
        before_ms: i64,
        after: Option<RunId>,
        limit: usize,
    ) -> Result<ops::Forgotten> {
        self.0.write(move |session| ops::forgettable_runs(session, before_ms, after, limit)).await
    }

    /// Forgets plans that no run has.
    pub async fn forget_plans(self) -> Result<usize> {
        self.0.write(|session| session.db().forget_plans()).await
    }
}
