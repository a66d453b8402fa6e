//! `sprag worker --server`: a worker for a server on another machine, without a database.

use std::time::Duration;

use sprag_remote::{Address, Elsewhere, Error};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::worker::Options;
use crate::context::{Context, this_program};
use crate::exit::{Exit, Failure};
use crate::own_server::{self, Own};

/// The folder in the data directory for workers of remote servers.
const FOLDER: &str = "remote";

pub(crate) async fn worker(
    context: &Context,
    options: Options,
    server: &str,
    token: Option<String>,
    most_unsent: u64,
) -> Result<Exit, Failure> {
    let Options { queues, labels, slots, name, until_idle: _, lease, deadline: _, bus: _ } = options;
    super::worker::check_labels(&labels)?;
    if slots == Some(0) {
        return Err(Failure::usage("--slots must be at least 1"));
    }
    let server = Address::parse(server).map_err(failure)?;
    context.make_private()?;
    let _ = sprag_process::become_subreaper();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = tokio::select! {
        token = shown(context, &server, token) => token?,
        _ = terminate.recv() => return Ok(Exit::Ok),
        _ = interrupt.recv() => return Ok(Exit::Ok),
    };
    let wanted = sprag_remote::Options {
        server: server.clone(),
        token,
        authorities: context.authorities.clone(),
        name: name.unwrap_or_else(|| format!("worker-{}", std::process::id())),
        queues: queues.iter().map(|queue| queue.as_str().into()).collect(),
        labels: labels.iter().map(|label| label.as_str().into()).collect(),
        slots: slots
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(4, usize::from).max(2) * 4),
        lease,
        data: context.data.join(FOLDER),
        supervisor: this_program()?,
        most_unsent,
        step_tools: Some(sprag_mcp::RemoteStepTools::new(&server.to_string(), context.connector())),
    };
    let started = tokio::select! {
        started = Elsewhere::start(wanted) => started,
        _ = terminate.recv() => return Ok(Exit::Ok),
        _ = interrupt.recv() => return Ok(Exit::Ok),
    };
    let mut worker = started.map_err(failure)?;
    eprintln!(
        "worker {} serves {} of {server}; Ctrl-C stops it after its running steps",
        worker.id(),
        queues.join(", ")
    );
    let telling = tokio::spawn(tell(worker.notice()));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        error = worker.failed() => return Err(failure(error)),
    }
    telling.abort();
    eprintln!("Finishing the running steps. Press Ctrl-C again to stop them.");
    let abandon = worker.abandoner();
    let mut done = std::pin::pin!(worker.shutdown());
    let left = tokio::select! {
        left = &mut done => Some(left),
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
    };
    let left = match left {
        Some(left) => left,
        None => {
            abandon.abandon();
            done.await
        }
    };
    if let Some(left) = left.map_err(failure)? {
        eprintln!("{left}");
    }
    Ok(Exit::Ok)
}

/// Prints why the worker takes no steps, each time the reason changes.
async fn tell(mut notice: watch::Receiver<Option<String>>) {
    while notice.changed().await.is_ok() {
        let now = notice.borrow_and_update().clone();
        eprintln!("{}", now.as_deref().unwrap_or("claims steps again"));
    }
}

/// Parses a number of bytes from the command line.
pub(crate) fn unsent_logs(text: &str) -> Result<u64, Failure> {
    let wrong =
        || Failure::usage(format!("--unsent-logs {text:?} is not a size")).next("write it like 500MB or 2GB");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let factor: u64 = match text[digits..].trim().to_ascii_uppercase().trim_end_matches('B') {
        "" => 1,
        "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    text[..digits].parse::<u64>().ok().and_then(|n| n.checked_mul(factor)).ok_or_else(wrong)
}

/// Returns the token that the worker shows to the server: the given one, or the token of this user's own server.
async fn shown(
    context: &Context,
    server: &Address,
    given: Option<String>,
) -> Result<Option<String>, Failure> {
    /// The pause between two checks whether the server has started.
    const LOOK: Duration = Duration::from_millis(500);
    if let Some(given) = given.filter(|token| !token.trim().is_empty()) {
        return Ok(Some(given));
    }
    let mut told = false;
    loop {
        match own_server::local_token(&context.data, &server.to_string())? {
            Own::Token(token) => return Ok(Some(token)),
            Own::Elsewhere => return Ok(None),
            Own::NotThere if told => {}
            Own::NotThere => {
                eprintln!("no server listens at {server} yet: waiting for it");
                told = true;
            }
        }
        sprag_worker::pause(LOOK).await;
    }
}

fn failure(error: Error) -> Failure {
    let told = error.to_string();
    match error {
        Error::Address { .. } => Failure::usage(told),
        Error::Unwelcome { .. } => Failure::error(told).next(
            "show a token with the scope `work`: sprag token new NAME --scope work, where the server is",
        ),
        Error::Strange { .. } => Failure::error(told).next("look whether --server names a `sprag serve`"),
        _ => Failure::error(told),
    }
}
