//! Forgetting: runs that ended long ago are removed from the store, with everything that belongs to them.
//!
//! ```text
//!   look (no lock)      which runs ended long ago, and may be forgotten
//!   forget  ──tx──▶     removes the run's row, and adds the run to the list `forgotten`
//!   rows    ──tx──▶     removes one part of the rows of all tables, and forgets child runs
//!   files               the caller removes the run's folder
//!   done    ──tx──▶     removes the run from the list
//!   entries ──tx──▶     removes the journal's entries of forgotten runs, from front to back
//! ```
//!
//! Every transaction is small, so that live steps are written in between. A process that is killed leaves the list,
//! and the next one continues with it. Live rows are never touched: a run is forgotten only once it has ended, its
//! environments are gone, its effects are done, and it was delivered to the hooks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use sprag_lifecycle::RunId;

use crate::error::Result;
use crate::ops::{self, Forgettable, Forgot};
use crate::roles::Person;
use crate::rows::RunRow;
use crate::session::Session;

/// The operations of a database for forgetting.
pub trait Retention {
    /// Returns runs that ended before this time (wall clock) and are no child runs, from the oldest on, after
    /// `after`.
    fn ended_before(&mut self, wall_ms: i64, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>>;
    /// Returns the child runs of these runs, ended or not, in order.
    fn all_children(&mut self, runs: &[RunId]) -> Result<Vec<RunId>>;
    /// Returns those of these runs that have an environment which is not destroyed.
    fn with_environments(&mut self, runs: &[RunId]) -> Result<BTreeSet<RunId>>;
    /// Returns those of these runs with effects that are not carried out yet.
    fn with_effects(&mut self, runs: &[RunId]) -> Result<BTreeSet<RunId>>;
    /// Returns those of these runs that are in the store.
    fn runs_there(&mut self, runs: &[RunId]) -> Result<BTreeSet<RunId>>;
    /// Reads these runs at once, and holds those that are free. This is an optimization: [`crate::backend::Table::load`] finds
    /// them as well.
    fn prefetch_runs(&mut self, _: &[RunId]) -> Result<()> {
        Ok(())
    }

    /// Removes the rows of runs that have ended, and lists them in `forgotten`. Their child runs can then neither
    /// continue nor be resumed.
    fn forget_runs(&mut self, runs: &[RunRow]) -> Result<()>;
    /// Returns the forgotten runs of which rows are left, in order.
    fn half_forgotten(&mut self, limit: usize) -> Result<Vec<RunId>>;
    /// Removes rows that belong to these runs, and forgets their child runs: one part of all that is left, over all
    /// tables and runs together. Returns the runs that it forgot.
    ///
    /// The environments stay: they show in which repositories there may be something to clean up.
    fn forget_rows(&mut self, runs: &[RunId], part: Part) -> Result<Vec<RunId>>;
    /// Returns the forgotten runs of which files may be left, after `after`, in order.
    fn forgotten(&mut self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>>;
    /// Removes runs from the list: nothing of them is left.
    fn drop_forgotten(&mut self, runs: &[RunId]) -> Result<()>;
    /// Checks up to `most` entries of the journal and removes those of forgotten runs. Returns whether more are to be
    /// checked. The last entry stays, because numbers are never used twice.
    fn forget_entries(&mut self, most: usize) -> Result<bool>;
    /// Checks one part of the plans after `after` and removes those that no run uses.
    fn forget_plans(&mut self, after: Option<i64>, part: Part) -> Result<PlansForgotten>;
    /// Returns the id that this store drew for itself when it was created.
    fn store_id(&mut self) -> Result<String>;
}

/// Returns the number of packs to check instead of this many entries: most packs have the entries of one step.
pub(crate) fn packs_in(entries: usize) -> usize {
    const ENTRIES_OF_A_STEP: usize = 8;
    entries.div_ceil(ENTRIES_OF_A_STEP)
}

/// The result of checking some plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlansForgotten {
    /// The number of plans that no run used, and that were removed.
    pub gone: usize,
    /// The plan after which to continue; absent if all were checked.
    pub next: Option<i64>,
}

/// The most that is removed between two checks of the clock.
///
/// A row may hold megabytes, and SQLite visits every page of it while all other operations wait. So there are two
/// bounds. The bound on bytes is exceeded by at most one row. PostgreSQL removes a row without its large values, and
/// keeps only the bound on rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The number of rows in all tables together.
    pub rows: usize,
    /// The bytes in those rows' large values.
    pub bytes: i64,
}

impl Part {
    /// The number of rows that a forgotten run counts as, for everything that is removed together with it.
    pub(crate) const ROWS_OF_A_RUN: usize = 8;

    /// Returns the number of runs that fit.
    pub(crate) fn runs(&self) -> usize {
        self.rows.div_ceil(Part::ROWS_OF_A_RUN)
    }

    /// Whether nothing more fits.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0 || self.bytes <= 0
    }

    /// Takes rows of these sizes while they fit. Returns the number that did.
    pub(crate) fn take(&mut self, sizes: impl IntoIterator<Item = i64>) -> usize {
        let mut taken = 0;
        for bytes in sizes {
            if self.is_empty() {
                break;
            }
            self.rows -= 1;
            self.bytes -= bytes;
            taken += 1;
        }
        taken
    }
}

/// One transaction's share of the work. The operation checks it inside the transaction to decide whether to continue.
#[derive(Debug, Clone)]
pub struct Bite(Arc<Share>);

#[derive(Debug)]
struct Share {
    limit: Limit,
    /// The time at which the transaction started to work, in microseconds of a clock that never jumps.
    began_us: AtomicU64,
    parts: AtomicUsize,
}

#[derive(Debug, Clone, Copy)]
enum Limit {
    Time(Duration),
    Parts(usize),
}

impl Bite {
    /// Creates a bite that lasts for this time.
    pub fn lasting(time: Duration) -> Self {
        Bite::limited(Limit::Time(time))
    }

    /// Creates a bite of this many parts, whatever time they take, for simulations.
    pub fn of(parts: usize) -> Self {
        Bite::limited(Limit::Parts(parts))
    }

    fn limited(limit: Limit) -> Self {
        Bite(Arc::new(Share { limit, began_us: AtomicU64::new(now_us()), parts: AtomicUsize::new(0) }))
    }

    /// Starts the bite. A transaction that runs again starts it again.
    fn begin(&self) {
        self.0.began_us.store(now_us(), Ordering::Relaxed);
        self.0.parts.store(0, Ordering::Relaxed);
    }

    /// Whether there is time for another part.
    pub(crate) fn goes_on(&self) -> bool {
        match self.0.limit {
            Limit::Time(time) => self.held_for() < time,
            Limit::Parts(parts) => self.0.parts.fetch_add(1, Ordering::Relaxed) + 1 < parts,
        }
    }

    /// Returns the time since its transaction started to work.
    pub fn held_for(&self) -> Duration {
        Duration::from_micros(now_us().saturating_sub(self.0.began_us.load(Ordering::Relaxed)))
    }
}

fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}

impl Person<'_> {
    /// Returns up to `limit` runs that ended before this time (wall clock), after `after`, and may be forgotten.
    pub fn forgettable_runs(self, before_ms: i64, after: Option<RunId>, limit: usize) -> Result<Forgettable> {
        self.0.read(|db| ops::forgettable_runs(&mut Session::new(db)?, before_ms, after, limit))
    }

    /// Forgets these runs if they still may be forgotten, and removes rows of forgotten runs, for one bite.
    pub async fn forget_runs(self, runs: Vec<RunId>, before_ms: i64, bite: Bite) -> Result<Forgot> {
        self.0
            .write_as_person(Vec::new(), move |session| {
                bite.begin();
                ops::forget_runs(session, &runs, before_ms, &bite)
            })
            .await
    }

    /// Removes runs from the list of those with remains, because their files are gone.
    pub async fn files_are_gone(self, runs: Vec<RunId>) -> Result<()> {
        self.0.write(move |session| session.db().drop_forgotten(&runs)).await
    }

    /// Removes entries of forgotten runs from the journal, for one bite. Returns whether more are left.
    pub async fn forget_entries(self, bite: Bite) -> Result<bool> {
        self.0
            .write(move |session| {
                bite.begin();
                ops::forget_entries(session, &bite)
            })
            .await
    }

    /// Removes plans that no run uses, after `after`, for one bite.
    pub async fn forget_plans(self, after: Option<i64>, bite: Bite) -> Result<PlansForgotten> {
        self.0
            .write(move |session| {
                bite.begin();
                ops::forget_plans(session, after, &bite)
            })
            .await
    }
}
