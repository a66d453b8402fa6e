//! Runs one command under its own supervisor, stops its whole process tree, and writes its log.
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
//! Guarantees:
//! - The supervisor stops the tree when the worker asks for it, at the step's timeout, when the lease is not
//!   renewed in time, and when the worker dies.
//! - The supervisor reports `ended` only after the kernel confirmed that no child is left.
//! - If the supervisor is killed, [`Running::wait`] stops the tree. If the worker died as well, the next
//!   attempt or the recovery of the step does, with [`kill_orphans`].
//! - While any process of an attempt lives, it holds the owner lock, and no other attempt starts there.
//! - A process that closes all inherited files holds no lock, but the markers in its environment identify it.
//!   If it cleared those too, the cgroup of the tree contains it, where a cgroup is delegated to the user.
//!   Otherwise the worker adopts it when the supervisor is killed. Only without a cgroup, and with the worker
//!   killed as well, is such a process out of reach.
//!
//! ```no_run
//! # async fn example() -> Result<(), sprag_process::Error> {
//! use std::{path::Path, time::Duration};
//!
//! let mut order = sprag_process::Order::new(["cargo", "test"], "step.log");
//! order.lease_until_ms = Some(sprag_process::boot_ms() + 30_000);
//! let mut running = sprag_process::spawn(order, Path::new("sprag")).await?;
//! let mut heartbeat = tokio::time::interval(Duration::from_secs(10));
//! let ended = loop {
//!     tokio::select! {
//!         ended = running.wait() => break ended?,
//!         _ = heartbeat.tick() => running.renew(sprag_process::boot_ms() + 30_000)?,
//!     }
//! };
//! assert!(ended.success());
//! # Ok(())
//! # }
//! ```

#[cfg(not(target_os = "linux"))]
compile_error!("sprag-process needs Linux: it ends process trees with child subreapers, /proc and pidfds");

mod adopted;
mod cgroup;
mod clock;
mod crash_marks;
mod environment;
mod error;
mod files;
mod guard;
mod identity;
mod limits;
mod lock;
mod log;
mod order;
mod orphans;
mod report;
mod running;
mod sandbox;
mod secrets;
mod socket_filter;
mod supervisor;
mod sys;
mod table;

pub use adopted::{become_subreaper, kill_adopted};
pub use cgroup::{cgroup_support, kill_abandoned_cgroups};
pub use clock::now_ms as boot_ms;
pub use crash_marks::CrashMarks;
pub use environment::{
    CREDENTIALS, DEFAULT_INHERITED, inherited, inherited_by_git, is_credential, restrict_inheritance,
    take_environment, variable, withhold,
};
pub use error::{Error, RefusalKind};
pub use files::{
    copy_private, make_private_folder, normalized, open_below, open_regular, private_options, read_regular,
    regular, replace_private, short_socket_path, write_private,
};
pub use guard::{OnParentExit, guard, terminate};
pub use identity::{
    Liveness, ProcessId, ProcessIdError, VOUCHED_MARK, current, is_alive, reported_host_name, vouched_host,
};
pub use limits::{Limits, missing_limits};
pub use lock::{is_held, remove_if_free};
pub use log::{LineJoiner, LineLog, LogEntry, LogReader, Stream, append_notes};
pub use order::{Capture, DEFAULT_GRACE_MS, DEFAULT_LOG_LIMIT_BYTES, LEASE_GRACE_MS, Order, TREE_MARKER};
pub use orphans::{KilledOrphans, kill_orphans};
pub use report::{Ended, NotStarted, Reason, Started, Usage};
pub use running::{Duplex, Running, TreeActivity, spawn, spawn_duplex};
pub use sandbox::{Mount, Network, PACKAGE as SANDBOX_PACKAGE, Sandbox, machine_secrets, sandbox_support};
pub use secrets::{SecretSearch, Secrets};
pub use supervisor::{SUPERVISE, run_if_supervisor, supervisor_main};
