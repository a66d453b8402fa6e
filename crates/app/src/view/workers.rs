//! Workers and queues, as programs see them.

use serde::Serialize;
use sprag_lifecycle::Word;
use sprag_store::{Now, QueueCount, QueueRow, Row, WorkerRow};

use super::wall_ms;
use crate::text::rfc3339;

views! {
    /// A worker or an agent that claims from queues.
    pub struct WorkerView {
        /// Its number.
        pub id: String,
        /// The worker's name.
        pub name: String,
        /// Its status.
        pub status: &'static str,
        /// The queues it serves.
        pub queues: Vec<String>,
        /// Its labels, which steps can require.
        pub labels: Vec<String>,
        /// The host it is on.
        pub host: String,
        /// The number of executions that it runs at once.
        pub slots: u32,
        /// The number of executions that it has now.
        pub busy: usize,
        /// The end of its lease without a heartbeat.
        pub heartbeat_until: String,
        /// The time when it first registered.
        pub created_at: String,
    }

    /// A queue.
    pub struct QueueView {
        /// Its name.
        pub name: String,
        /// Whether the queue is held. A held queue hands over no executions.
        pub held: bool,
        /// The number of executions that may be handed over at once; absent for no limit.
        pub limit: Option<u32>,
        /// The number of executions that wait for room in the queue.
        pub requested: u64,
        /// The number of executions that wait for a worker.
        pub scheduled: u64,
        /// The number of executions that workers have.
        pub running: u64,
        /// The waiting time of the oldest execution that waits for a worker, in milliseconds.
        pub oldest_ms: Option<i64>,
        /// The number of workers that serve it.
        pub workers: usize,
    }
}

impl WorkerView {
    /// Returns the view of a worker that has `busy` executions.
    pub fn of(worker: &WorkerRow, busy: usize, now: Now) -> Self {
        let list = |text: &str| text.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        WorkerView {
            id: worker.id.to_string(),
            name: worker.name.to_string(),
            status: worker.status().as_str(),
            queues: list(&worker.queues),
            labels: list(&worker.labels),
            host: worker.host().to_owned(),
            slots: worker.slots,
            busy,
            heartbeat_until: rfc3339(wall_ms(now, worker.heartbeat_until_ms)),
            created_at: rfc3339(worker.created_ms),
        }
    }
}

/// Returns every queue that has settings, holds something, or is served, in order.
pub fn queues(
    settings: &[QueueRow],
    counts: &[QueueCount],
    workers: &[WorkerRow],
    now: Now,
) -> Vec<QueueView> {
    let mut names: std::collections::BTreeSet<&str> = settings.iter().map(|queue| &*queue.name).collect();
    names.extend(counts.iter().map(|count| &*count.name));
    names.extend(workers.iter().flat_map(|worker| worker.queues.split(',')).filter(|name| !name.is_empty()));
    let view = |name: &str| {
        let set = settings.iter().find(|queue| &*queue.name == name);
        let count = counts.iter().find(|count| &*count.name == name);
        QueueView {
            name: name.to_owned(),
            held: set.is_some_and(|queue| queue.held),
            limit: set.and_then(|queue| queue.limit),
            requested: count.map_or(0, |count| count.requested),
            scheduled: count.map_or(0, |count| count.scheduled),
            running: count.map_or(0, |count| count.running),
            oldest_ms: count.and_then(|count| count.oldest_ms).map(|at| (now.steady_ms - at).max(0)),
            workers: workers.iter().filter(|worker| worker.serves(name)).count(),
        }
    };
    names.into_iter().map(view).collect()
}
