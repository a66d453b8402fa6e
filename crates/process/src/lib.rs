//! Runs one command under a supervisor of its own, ends its whole process tree, and keeps its log.
//!
//! ```text
//!   worker (tokio)                    supervisor (`sprag __supervise`)              the step's tree
//!  ┌──────────────┐ stdin: Order,    ┌────────────────────────────────┐ /dev/null  ┌──────────────┐
//!  │ Running      │ renew/cancel/kill│ one thread, one poll loop      │──────────▶ │ command      │
//!  │  renew()     │─────────────────▶│ child subreaper of the tree    │ stdout     │  own session │
//!  │  cancel()    │ EOF: worker died │ lease and timeout on its clock │◀────────── │  PDEATHSIG   │
//!  │  kill()      │                  │ TERM, grace, KILL, until ECHILD│ stderr     │   ├ child    │
//!  │  wait()      │◀─────────────────│                                │◀────────── │   └ setsid…  │
//!  └──────────────┘ stdout: started, └───────┬────────────────┬───────┘            └──────┬───────┘
//!                   ended, refused           ▼                ▼                           │
//!                                       log, captured     owner lock (flock) ◀── inherited┘
//! ```
//!
//! What holds, and by whom:
//! - The tree ends when the worker says so, at the step's timeout, when the lease is not renewed in
//!   time, and when the worker dies: by the supervisor.
//! - `ended` is reported only after the kernel said that no child is left.
//! - The tree ends when the supervisor is killed: by [`Running::wait`], and if the worker died as
//!   well, by whoever recovers the step, with [`end_orphans`].
//! - While any process of an attempt lives, its owner lock is held, and no other attempt starts there.
//!   (A process that closes all files it inherited keeps no lock: the markers in its environment find it.)
//!
//! ```no_run
//! # async fn example() -> Result<(), sprag_process::Error> {
//! use std::{path::Path, time::Duration};
//!
//! let mut order = sprag_process::Order::new(["cargo", "test"], "step.log");
//! order.lease_ms = Some(30_000);
//! let mut running = sprag_process::spawn(order, Path::new("sprag")).await?;
//! let mut heartbeat = tokio::time::interval(Duration::from_secs(10));
//! let ended = loop {
//!     tokio::select! {
//!         ended = running.wait() => break ended?,
//!         _ = heartbeat.tick() => running.renew(Duration::from_secs(30))?,
//!     }
//! };
//! assert!(ended.success());
//! # Ok(())
//! # }
//! ```

#[cfg(not(target_os = "linux"))]
compile_error!("sprag-process needs Linux: it ends process trees with child subreapers, /proc and pidfds");

mod clock;
mod error;
mod identity;
mod lock;
mod log;
mod order;
mod orphans;
mod report;
mod running;
mod supervisor;
mod sys;
mod table;

pub use clock::now_ms as boot_ms;
pub use error::{Error, RefusalKind};
pub use identity::{Liveness, NotAProcessId, ProcessId, current, is_alive};
pub use lock::{is_held, remove_if_free};
pub use log::{LogEntry, LogReader, Stream, WholeLines, remark};
pub use order::{Capture, DEFAULT_GRACE_MS, DEFAULT_LOG_LIMIT_BYTES, LEASE_GRACE_MS, Order, TREE_MARKER};
pub use orphans::{OrphansEnded, end_orphans};
pub use report::{Ended, NotStarted, Reason, Started, Usage};
pub use running::{Running, become_subreaper, spawn};
pub use supervisor::{SUPERVISE, run_if_supervisor, supervisor_main};
