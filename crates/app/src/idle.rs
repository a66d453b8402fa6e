//! Finding out whether workers have anything left to do, now or by the clock alone, and putting it into words.

use sprag_store::{Id, Now, WorkLeft, WorkLeftKind, WorkerRow};

use crate::App;
use crate::error::Error;
use crate::resume::is_dead;
use crate::waiting::Waiting;

/// Returns the first thing that is left for workers to do, as the worker `own` sees it; none if there is nothing.
pub fn first_left(app: &App, own: Id) -> Result<Option<Waiting>, Error> {
    let now = app.store.now();
    // Claimers execute nothing.
    let is_there = |worker: &WorkerRow| !worker.process.is_empty() && !is_lost(worker, now);
    let left = app.store.queries().work_left(own, now, &is_there)?;
    Ok(left.map(|left| told(left, now)))
}

fn is_lost(worker: &WorkerRow, now: Now) -> bool {
    is_dead(worker) || worker.heartbeat_until_ms <= now.steady_ms
}

/// Puts into words what is left to do.
fn told(left: WorkLeft, now: Now) -> Waiting {
    let WorkLeft { run, step, kind } = left;
    let what = match &kind {
        WorkLeftKind::ChildEnded => "its child run has ended".into(),
        WorkLeftKind::ProcessGone => "its process is gone".into(),
        WorkLeftKind::Start => "its start".into(),
        WorkLeftKind::GroupPlace(group) => format!("its place in group {group:?}"),
        WorkLeftKind::Executed(worker) => format!("worker {worker} runs it"),
        WorkLeftKind::WorkerGone => "its worker is gone".into(),
        WorkLeftKind::Slot => "a free slot".into(),
        WorkLeftKind::Backoff { attempt, .. } => format!("its backoff before attempt {attempt}"),
        WorkLeftKind::Account { name, .. } => format!("its account {}", crate::text::plain(name)),
        WorkLeftKind::QueuePlace(queue) => format!("its place in queue {queue:?}"),
        WorkLeftKind::Gate(gate) => crate::explain::gate_text(gate),
    };
    let until_ms = match &kind {
        WorkLeftKind::Backoff { until_ms, .. } | WorkLeftKind::Account { until_ms, .. } => Some(*until_ms),
        WorkLeftKind::Gate(gate) => Some(gate.timeout_at_ms),
        _ => None,
    };
    let until_ms = until_ms.map(|until_ms| until_ms - now.steady_ms + now.wall_ms);
    Waiting { run, step, what, is_gate: false, since_ms: None, until_ms }
}
