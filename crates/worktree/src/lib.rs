//! A git worktree for every run: made, kept ready, landed and removed, from many processes at once, and no work lost.
//!
//! ```text
//!   Repository ── identity, lock ──┐
//!                                  ▼
//!   Worktrees ── create ─▶ Worktree ── checkpoint, restore, land ──▶ remove
//!      ▲  │                                                            │ park
//!      │  └────────────────────────── pool ◀───────────────────────────┘
//!   recover: what dead runs left
//! ```
//!
//! What holds:
//! - The repository's lock covers registration only; checkouts, hooks, deletions and landings happen without it.
//! - Git never sees a half-made entry: it is built aside and renamed into `worktrees/`.
//! - Whoever is killed, wherever, blocks nobody: its owner lock is free then, and its work is saved under
//!   `refs/sprag/salvage/` before anything is removed.
//! - Entries without our mark, and branches that we did not make, are never touched.
//!
//! All calls block; none prints. Linux only, like the crate `sprag-process`.

mod branch;
mod checkout;
mod checkpoint;
mod clock;
mod create;
mod entry;
mod error;
mod fault;
mod fence;
mod git;
mod include;
mod index;
mod land;
mod line;
mod lock;
mod loose;
mod mark;
mod metrics;
mod name;
mod original;
mod owner;
mod pool;
mod ports;
mod recover;
mod refs;
mod remove;
mod repository;
mod salvage;
mod setup;
mod snapshot;
mod start;
mod sync;
mod tip;
mod trash;
mod visit;
mod wish;
mod worktrees;

pub use branch::{BranchFate, BranchPolicy};
pub use checkpoint::Checkpoint;
pub use create::{Branch, CreateOptions};
pub use error::{Error, Kind};
pub use fence::Fence;
pub use git::Cancel;
pub use land::{CheckoutFate, LandOptions, Landed, PushFate, Strategy, Verify};
pub use lock::{DEFAULT_DEADLINE, Held, Holder, SharedLock};
pub use mark::{Mark, Shared, Stamp, State};
pub use metrics::{Metrics, Spread, snapshot};
pub use name::check_branch;
pub use owner::OwnerLock;
pub use pool::Parked;
pub use ports::Ports;
pub use recover::Recovered;
pub use refs::{Keeps, RunRef};
pub use remove::Removed;
pub use repository::{Identity, Repository};
pub use salvage::Salvaged;
pub use trash::Leftover;
pub use visit::{Guest, Visit};
pub use worktrees::{Listed, Settings, Worktree, Worktrees};
