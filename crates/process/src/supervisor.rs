//! The supervisor: the process between a worker and the processes of one step.
//!
//! One thread, no runtime. It reads its order, takes the owner lock, starts the command, and watches
//! until the tree is empty. All it says goes to its stdout, as one JSON object per line.

mod child;
mod inbox;
mod output;
mod tree;
mod watch;

use std::{fmt::Display, process::ExitCode};

use rustix::{process::set_child_subreaper, stdio, thread::set_name};

use crate::{
    Ended, Reason, RefusalKind, clock,
    lock::{self, OwnerLock},
    log::{CaptureWriter, LogWriter, Secrets},
    order::{Command, Envelope, Order},
    report::Report,
    sys,
};
use inbox::Inbox;
use output::Sinks;
use watch::Watch;

/// The first argument that makes a program a supervisor.
pub const SUPERVISE: &str = "__supervise";

/// Runs the supervisor if this process was started as one; `main` returns what it gives, and does so
/// before it starts threads or a runtime.
pub fn run_if_supervisor() -> Option<ExitCode> {
    std::env::args_os().nth(1).is_some_and(|first| first == SUPERVISE).then(supervisor_main)
}

/// Reads an order from stdin, runs its command to the end of the whole tree, and reports on stdout.
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
    // Only for `ps`.
    let _ = set_name(c"sprag-supervise");
    let signals = sys::signals().map_err(refuse(RefusalKind::Setup, "could not take signals"))?;
    set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(refuse(RefusalKind::Setup, "could not become the subreaper"))?;

    let mut inbox = Inbox::default();
    let line = inbox.first_line().map_err(refuse(RefusalKind::Order, "could not read the order"))?;
    let Envelope { order, mut lease_until_ms } =
        serde_json::from_str(&line).map_err(refuse(RefusalKind::Order, "could not understand the order"))?;
    drop(line);

    let owner_lock = take_lock(&order)?;
    let sinks = open_sinks(&order)?;
    let outcome = match too_late(&mut inbox, &mut lease_until_ms) {
        Some(reason) => Err(reason),
        None => child::start(&order),
    };
    match outcome {
        Ok(child) => {
            report(&Report::Started(child.started));
            let ended = Watch::new(child, &order, lease_until_ms, inbox, signals, sinks).run();
            // The tree is empty: whoever hears of the end may start the next attempt at once.
            drop(owner_lock);
            report(&Report::Ended(ended));
        }
        Err(reason) => {
            let (log_dropped_bytes, log_error) = sinks.log.finish();
            drop(owner_lock);
            report(&Report::Ended(Ended { log_dropped_bytes, log_error, ..Ended::because(reason) }));
        }
    }
    Ok(())
}

/// Whether the worker lost the step, or changed its mind, before the command even started.
fn too_late(inbox: &mut Inbox, lease_until_ms: &mut Option<u64>) -> Option<Reason> {
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
        Ok(Some(lock)) => Ok(Some(lock)),
        Ok(None) => {
            let message = format!("a process of a former attempt still holds {}", path.display());
            Err((RefusalKind::LockHeld, message))
        }
        Err(error) => Err(refuse(RefusalKind::Lock, format!("could not lock {}", path.display()))(error)),
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

/// A worker that is gone hears nothing; there is nobody else to tell.
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
