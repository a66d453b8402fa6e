//! `sprag worker --server`: works for a server elsewhere, without a database.

use sprag_remote::{Address, Elsewhere, Error};
use tokio::signal::unix::{SignalKind, signal};

use super::worker::Options;
use crate::context::{Context, this_program};
use crate::exit::{Exit, Failure};

/// The folder in the data directory that belongs to workers for servers elsewhere.
const FOLDER: &str = "remote";

pub(crate) async fn worker(
    context: &Context,
    options: Options,
    server: &str,
    token: Option<String>,
) -> Result<Exit, Failure> {
    let Options { queues, labels, slots, name, until_idle: _, lease, deadline: _, bus: _ } = options;
    super::worker::check_labels(&labels)?;
    if slots == Some(0) {
        return Err(Failure::usage("--slots must be at least 1"));
    }
    let server = Address::parse(server).map_err(failure)?;
    let _ = sprag_process::become_subreaper();
    let wanted = sprag_remote::Options {
        server: server.clone(),
        token: token.filter(|token| !token.trim().is_empty()),
        name: name.unwrap_or_else(|| format!("worker-{}", std::process::id())),
        queues: queues.iter().map(|queue| queue.as_str().into()).collect(),
        labels: labels.iter().map(|label| label.as_str().into()).collect(),
        slots: slots
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(4, usize::from).max(2) * 4),
        lease,
        data: context.data.join(FOLDER),
        supervisor: this_program()?,
    };
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let started = tokio::select! {
        started = Elsewhere::start(wanted) => started,
        _ = terminate.recv() => return Ok(Exit::Ok),
        _ = interrupt.recv() => return Ok(Exit::Ok),
    };
    let mut worker = started.map_err(failure)?;
    eprintln!("worker {} serves {} of {server}; Ctrl-C drains and stops", worker.id(), queues.join(", "));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        error = worker.failed() => return Err(failure(error)),
    }
    eprintln!("draining: finishing the steps it has; a second signal ends them");
    let abandon = worker.abandoner();
    let mut done = std::pin::pin!(worker.shutdown());
    tokio::select! {
        result = &mut done => return result.map(|()| Exit::Ok).map_err(failure),
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    abandon.abandon();
    done.await.map(|()| Exit::Ok).map_err(failure)
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
