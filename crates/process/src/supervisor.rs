//! The supervisor: the process between a worker and the processes of one step.
//!
//! It has one thread and no runtime. It reads its order, takes the owner lock, starts the command, and watches
//! until the tree is empty. It reports on stdout, one JSON object per line.

mod child;
mod inbox;
mod output;
mod tree;
mod watch;

use std::{fmt::Display, process::ExitCode, time::Duration};

use rustix::{process::set_child_subreaper, stdio, thread::set_name};

use crate::{
    Ended, NotStarted, Reason, RefusalKind,
    cgroup::Cgroup,
    clock,
    limits::LimitGroup,
    lock::{self, OwnerLock},
    log::{CaptureWriter, LogWriter},
    order::{Command, Order},
    report::Report,
    sandbox::REMOVAL,
    secrets::Secrets,
    sys,
};
use inbox::Inbox;
use output::Sinks;
use watch::Watch;

/// The first command-line argument that makes a program a supervisor.
pub const SUPERVISE: &str = "__supervise";

/// The longest wait for the kernel to kill the processes of a cgroup.
const CGROUP_DEADLINE: Duration = Duration::from_secs(10);

/// Runs the supervisor if this process was started as one, and returns its exit code. `main` must call this
/// before it starts threads or a runtime.
pub fn run_if_supervisor() -> Option<ExitCode> {
    std::env::args_os().nth(1).is_some_and(|first| first == SUPERVISE).then(supervisor_main)
}

/// Reads an order from stdin, runs its command until the whole tree has ended, and reports on stdout.
pub fn supervisor_main() -> ExitCode {
    match supervise() {
        Ok(()) => ExitCode::SUCCESS,
        Err((kind, message)) => {
            report(&Report::Refused { kind, message });
            ExitCode::FAILURE
        }
    }
}

type Refusal = (RefusalKind, String);

fn supervise() -> Result<(), Refusal> {
    // The name is only for `ps`.
    let _ = set_name(c"sprag-supervise");
    let signals = sys::signals().map_err(refuse(RefusalKind::Setup, "could not take signals"))?;
    set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(refuse(RefusalKind::Setup, "could not become the subreaper"))?;

    let mut inbox = Inbox::default();
    let line = inbox.first_line().map_err(refuse(RefusalKind::Order, "could not read the order"))?;
    let order: Order =
        serde_json::from_str(&line).map_err(refuse(RefusalKind::Order, "could not understand the order"))?;
    drop(line);
    let mut lease_until_ms = order.lease_until_ms;

    let owner_lock = take_lock(&order)?;
    let sinks = open_sinks(&order)?;
    let (limits, warnings) = create_limits(&order);
    let cgroup = match limits.as_ref().and_then(LimitGroup::tree) {
        Some(limited) => Some(record_cgroup(limited, owner_lock.as_ref())),
        None if order.cgroup => Cgroup::create().map(|made| record_cgroup(made, owner_lock.as_ref())),
        None => None,
    };
    let outcome = match stop_before_start(&mut inbox, &mut lease_until_ms) {
        Some(reason) => Err(reason),
        None => check_limits(&order, &warnings).and_then(|()| {
            child::start(&order, cgroup.as_ref(), limits.as_ref(), owner_lock.as_ref().map(OwnerLock::number))
        }),
    };
    match outcome {
        Ok(child) => {
            report(&Report::Started(child.started));
            let mut ended =
                Watch::new(child, &order, lease_until_ms, inbox, signals, sinks, limits.as_ref()).run();
            ended.warnings.splice(0..0, warnings);
            remove_cgroup(cgroup, owner_lock.as_ref());
            remove_limits(limits);
            // The tree is empty. Release the lock before the report, so that the next attempt can start at
            // once.
            drop(owner_lock);
            report(&Report::Ended(ended));
        }
        Err(reason) => {
            let (log_dropped_bytes, log_error) = sinks.log.finish();
            remove_cgroup(cgroup, owner_lock.as_ref());
            remove_limits(limits);
            drop(owner_lock);
            report(&Report::Ended(Ended { log_dropped_bytes, log_error, ..Ended::because(reason) }));
        }
    }
    Ok(())
}

/// Returns why the command must not start any more: cancelled, worker gone, or lease lost.
fn stop_before_start(inbox: &mut Inbox, lease_until_ms: &mut Option<u64>) -> Option<Reason> {
    for command in inbox.take_commands() {
        match command {
            Command::RenewUntil(until_ms) => *lease_until_ms = (*lease_until_ms).max(Some(until_ms)),
            Command::Cancel | Command::Kill => return Some(Reason::Cancelled),
        }
    }
    if !inbox.is_open() {
        return Some(Reason::ParentGone);
    }
    lease_until_ms.is_some_and(|until_ms| until_ms <= clock::now_ms()).then_some(Reason::LeaseLost)
}

fn take_lock(order: &Order) -> Result<Option<OwnerLock>, Refusal> {
    let Some(path) = &order.owner_lock else { return Ok(None) };
    match lock::acquire(path) {
        Ok(Some(_)) if !lock::kill_recorded(path) => {
            let message = format!("could not stop processes of an earlier attempt: see {}", path.display());
            Err((RefusalKind::LockHeld, message))
        }
        Ok(Some(lock)) => Ok(Some(lock)),
        Ok(None) => {
            let message = format!("a process of an earlier attempt still holds {}", path.display());
            Err((RefusalKind::LockHeld, message))
        }
        Err(error) => Err(refuse(RefusalKind::Lock, format!("could not lock {}", path.display()))(error)),
    }
}

/// Creates the cgroups that limit the tree, if there are limits. Also returns the limits that cannot be enforced here.
fn create_limits(order: &Order) -> (Option<LimitGroup>, Vec<String>) {
    let wanted = order.sandbox.as_ref().filter(|sandbox| !sandbox.limits.is_empty());
    let Some(sandbox) = wanted else { return (None, Vec::new()) };
    let (group, missing) = LimitGroup::create(&sandbox.limits);
    let warnings = missing.into_iter().map(|why| format!("a limit of its sandbox is not enforced: {why}"));
    (Some(group), warnings.collect())
}

/// Refuses to start a command one of whose limits cannot be enforced, unless that is allowed.
fn check_limits(order: &Order, missing: &[String]) -> Result<(), Reason> {
    let (Some(why), Some(sandbox)) = (missing.first(), &order.sandbox) else { return Ok(()) };
    if sandbox.best_effort {
        return Ok(());
    }
    let message = format!(
        "{why}; run the worker in a cgroup that is delegated to its user (a systemd service with `Delegate=yes`; the \
         package `systemd`), remove the limit, or write `required: false`"
    );
    Err(Reason::CouldNotStart { kind: NotStarted::Sandbox, message })
}

/// Removes the cgroups that limited the tree.
fn remove_limits(limits: Option<LimitGroup>) {
    if let Some(limits) = limits {
        limits.remove(REMOVAL);
    }
}

/// Records the tree's cgroup in the lock file.
fn record_cgroup(cgroup: Cgroup, owner_lock: Option<&OwnerLock>) -> Cgroup {
    // Without the record, `kill_abandoned_cgroups` still finds the cgroup by the name of the dead supervisor.
    let _ = owner_lock.map(|lock| lock.record_cgroup(Some(cgroup.path())));
    cgroup
}

/// Kills processes that left the tree in some other way, and removes the cgroup.
fn remove_cgroup(cgroup: Option<Cgroup>, owner_lock: Option<&OwnerLock>) {
    if cgroup.is_some_and(|cgroup| cgroup.kill(CGROUP_DEADLINE)) {
        let _ = owner_lock.map(|lock| lock.record_cgroup(None));
    }
}

fn open_sinks(order: &Order) -> Result<Sinks, Refusal> {
    let log = LogWriter::open(&order.log, order.log_limit_bytes)
        .map_err(refuse(RefusalKind::Log, format!("could not open the log {}", order.log.display())))?;
    let capture = match &order.capture_stdout {
        None => None,
        Some(capture) => Some(CaptureWriter::open(capture).map_err(refuse(
            RefusalKind::Capture,
            format!("could not open {} for the output", capture.path.display()),
        ))?),
    };
    Ok(Sinks { log, capture, secrets: Secrets::new(&order.secrets) })
}

fn refuse<E: Display>(kind: RefusalKind, attempt: impl Display) -> impl FnOnce(E) -> Refusal {
    move |error| (kind, format!("{attempt}: {error}"))
}

/// Writes the report. If the worker is gone, there is no other reader, so errors are ignored.
fn report(report: &Report) {
    let Ok(mut line) = serde_json::to_vec(report) else { return };
    line.push(b'\n');
    let mut rest = &line[..];
    while !rest.is_empty() {
        match rustix::io::retry_on_intr(|| rustix::io::write(stdio::stdout(), rest)) {
            Ok(written) => rest = &rest[written..],
            Err(_) => return,
        }
    }
}
