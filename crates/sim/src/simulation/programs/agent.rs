//! Those who come by for tasks, and those who take what messages tell of. They use the claim protocol by hand:
//! claim or receive, keep, finish, give back, or forget.

use std::sync::Arc;
use std::time::Duration;

use sprag_store::ops::{Assignment, Claimer, Ending, NewWorker, Renewal};
use sprag_store::{DEFAULT_QUEUE, Id, Store};

use super::super::draw::{Cast, TASK_QUEUE};
use super::super::record::Acknowledged;
use super::super::world::Place;
use crate::graphs::Chance;

const LEASE_MS: i64 = 20_000;

struct Agent {
    place: Arc<Place>,
    store: Store,
    cast: Arc<Cast>,
    chance: Chance,
    id: Id,
    nonce: i64,
}

impl Agent {
    fn new(place: Arc<Place>, cast: Arc<Cast>) -> Self {
        let chance = place.world.chance(0xa9 ^ place.node as u64 ^ (u64::from(place.life) << 8));
        // Known by its name: it has the same number whenever it comes back.
        Agent { store: place.store(), id: 1_000 + place.node as Id, nonce: 0, cast, chance, place }
    }

    async fn pause(&mut self, ms: usize) {
        let ms = 1 + self.chance.below(ms) as u64;
        self.place.world.pause(Duration::from_millis(ms)).await;
    }

    fn claimer(&mut self, queue: &str) -> Claimer {
        self.nonce += 1;
        let nonce = (i64::from(self.place.life) << 32) + self.nonce;
        Claimer {
            worker: self.id,
            queues: vec![queue.into()],
            reserved_only: false,
            lease_ms: LEASE_MS,
            nonce,
        }
    }

    /// Works on something: keeps it, and ends it in one of the ways that there are.
    async fn work(&mut self, assignment: Assignment) {
        let lease = assignment.lease;
        self.place.world.begin_by_hand(lease, assignment.node, &assignment.plan);
        let takes = 1 + self.chance.below(6);
        for _ in 0..takes {
            self.pause(8_000).await;
            let store = self.store.clone();
            let kept = store.worker(lease).renew(LEASE_MS).await;
            match kept {
                Ok(Renewal::Lost) => return,
                Ok(Renewal::Held { cancel_requested: true, .. }) => {
                    let _ = insist!(self.place, store.worker(lease).finish(Ending::Cancelled, None));
                    return;
                }
                _ => {}
            }
            match self.chance.below(24) {
                0 => return,
                1 => {
                    let _ = store.worker(lease).release().await;
                    return;
                }
                _ => {}
            }
        }
        let result = Some(self.cast.result(lease));
        let ending = match self.chance.one_in(6) {
            true => Ending::Failed { result: None, retriable: self.chance.one_in(2) },
            false => Ending::Completed { result: result.clone() },
        };
        let store = self.store.clone();
        let told = insist!(self.place, store.worker(lease).finish(ending.clone(), None));
        let completed = matches!(ending, Ending::Completed { .. });
        if completed && told.is_some_and(|finished| finished.outcome.is_applied()) {
            let done = Acknowledged::Completed(lease.execution, result);
            self.place.world.state().record.acknowledged.push(done);
        }
    }
}

/// Comes by from time to time and takes a task.
pub async fn come_by(place: Arc<Place>, cast: Arc<Cast>) {
    let mut agent = Agent::new(place, cast);
    loop {
        agent.pause(6_000).await;
        let worker = NewWorker {
            id: agent.id,
            name: "agent".into(),
            process: "".into(),
            queues: TASK_QUEUE.into(),
            labels: "".into(),
            slots: 1,
            lease_ms: LEASE_MS,
        };
        let claimer = agent.claimer(TASK_QUEUE);
        let store = agent.store.clone();
        if let Some(Some(assignment)) =
            insist!(agent.place, store.claims().claim_as(worker.clone(), claimer.clone()))
        {
            agent.work(assignment).await;
        }
    }
}

/// Receives what messages tell of, in whatever order they come.
pub async fn take_letters(place: Arc<Place>, cast: Arc<Cast>) {
    let mut agent = Agent::new(place, cast);
    loop {
        agent.pause(4_000).await;
        let told = {
            let now_ms = agent.place.world.now_ms();
            let mut state = agent.place.world.state();
            let letters = state.record.letters.get_or_insert_default();
            let arrived: Vec<usize> = letters
                .iter()
                .enumerate()
                .filter(|(_, (at_ms, _))| *at_ms <= now_ms)
                .map(|(at, _)| at)
                .collect();
            if arrived.is_empty() {
                continue;
            }
            let at = arrived[agent.chance.below(arrived.len())];
            letters.swap_remove(at).1
        };
        let claimer = agent.claimer(DEFAULT_QUEUE);
        let store = agent.store.clone();
        if let Some(Ok(assignment)) = insist!(agent.place, store.claims().receive(claimer.clone(), told)) {
            agent.work(assignment).await;
        }
    }
}
