//! A git worktree for every run: created, pooled, landed and removed by many processes at once, without losing
//! work.
//!
//! ```text
//!   Repository ── identity, lock ──┐
//!                                  ▼
//!   Worktrees ── create ─▶ Worktree ── checkpoint, restore, land ──▶ remove
//!      ▲  │                                                            │ park
//!      │  └────────────────────────── pool ◀───────────────────────────┘
//!   recover: reclaims what dead runs left
//! ```
//!
//! Guarantees:
//! - The repository's lock covers registration only. Checkouts, hooks, deletions and landings run without it.
//! - Git never sees an incomplete entry, because it is built in a staging folder and renamed into `worktrees/`.
//! - A process that is killed at any point blocks no other process. Its owner lock is then free, and its work
//!   is saved under `refs/sprag/salvage/` before anything is removed.
//! - Entries without Sprag's mark, and branches that Sprag did not create, are never changed.
//!
//! All calls block, and none prints. Linux only, like the crate `sprag-process`.

mod branch;
mod checkout;
mod checkout_snapshot;
mod checkpoint;
mod clock;
mod create;
mod dirty;
mod entry;
mod error;
mod fair_queue;
mod fault;
mod fence;
mod foreign_git;
mod git;
mod include;
mod index;
mod land;
mod lock;
mod loose;
mod mark;
mod metrics;
mod modules;
mod name;
mod owner;
mod pool;
mod ports;
mod prune;
mod quarantine;
mod read;
mod recover;
mod refs;
mod remove;
mod repository;
mod salvage;
mod sandbox;
mod setup;
mod single_flight;
mod snapshot;
mod stale_lock;
mod start;
mod sync;
mod take_loose;
mod tip;
mod trash;
mod visit;
mod watch;
mod worktrees;

pub use branch::{BranchFate, BranchPolicy};
pub use checkpoint::{ChangedFile, Checkpoint};
pub use create::{Branch, CreateOptions};
pub use dirty::Uncommitted;
pub use error::{Blocked, Error, Kind, Obstacle};
pub use fence::Fence;
pub use git::Cancel;
pub use land::{InterruptedMove, LandOptions, Landed, OutdatedCheckout, Push, PushFate, Strategy, Verify};
pub use lock::{DEFAULT_DEADLINE, LockGuard, LockHolder, SharedLock};
pub use mark::{Mark, Shared, Stamp, State};
pub use metrics::{DurationStats, Metrics, snapshot};
pub use modules::SavedModule;
pub use name::check_branch;
pub use owner::OwnerLock;
pub use pool::Parked;
pub use ports::Ports;
pub use prune::BrokenRef;
pub use recover::Recovered;
pub use refs::{RefPurpose, RunRef};
pub use remove::Removed;
pub use repository::{Identity, Repository};
pub use salvage::Salvaged;
pub use trash::Leftover;
pub use visit::{SharedWorktree, UsageLock};
pub use watch::{RefChange, WatchedRepository, watch_failure};
pub use worktrees::{Listed, Settings, Worktree, Worktrees};
