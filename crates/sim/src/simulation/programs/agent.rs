//! Agents that claim tasks, and programs that receive hand-off messages. They use the claim protocol directly: claim or
//! receive, renew, finish, release, or abandon.

use std::sync::Arc;
use std::time::Duration;

use sprag_store::{Assignment, Claimer, DEFAULT_QUEUE, Ending, Got, Id, NewWorker, Renewal, Store};

use super::super::draw::{Scenario, TASK_QUEUE};
use super::super::record::Acknowledged;
use super::super::world::ProgramHandle;
use crate::graphs::Chance;

const LEASE_MS: i64 = 20_000;

struct Agent {
    handle: Arc<ProgramHandle>,
    store: Store,
    scenario: Arc<Scenario>,
    chance: Chance,
    id: Id,
    nonce: i64,
}

impl Agent {
    fn new(handle: Arc<ProgramHandle>, scenario: Arc<Scenario>) -> Self {
        let chance = handle.world.chance(0xa9 ^ handle.node as u64 ^ (u64::from(handle.life) << 8));
        // The worker id derives from the node, so it stays the same after a restart.
        Agent { store: handle.store(), id: 1_000 + handle.node as Id, nonce: 0, scenario, chance, handle }
    }

    async fn pause(&mut self, ms: usize) {
        let ms = 1 + self.chance.below(ms) as u64;
        self.handle.world.pause(Duration::from_millis(ms)).await;
    }

    fn claimer(&mut self, queue: &str) -> Claimer {
        self.nonce += 1;
        let nonce = (i64::from(self.handle.life) << 32) + self.nonce;
        Claimer {
            worker: self.id,
            queues: vec![queue.into()],
            reserved_only: false,
            services_only: false,
            lease_ms: LEASE_MS,
            nonce,
        }
    }

    /// Works on an assignment: renews its lease, and ends it in one of the possible ways.
    async fn work(&mut self, assignment: Assignment) {
        let lease = assignment.lease;
        self.handle.world.begin_by_hand(lease, assignment.node, &assignment.plan);
        let takes = 1 + self.chance.below(6);
        for _ in 0..takes {
            self.pause(8_000).await;
            let store = self.store.clone();
            let kept = store.worker(lease).renew(LEASE_MS).await;
            match kept {
                Ok(Renewal::Lost) => return,
                Ok(Renewal::Held { cancel_requested: true, .. }) => {
                    let _ = until_known!(self.handle, store.worker(lease).finish(Ending::Cancelled, None));
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
        let result = Some(self.scenario.result(lease));
        let ending = if self.chance.one_in(6) {
            Ending::Failed { result: None, retriable: self.chance.one_in(2) }
        } else {
            Ending::Completed { result: result.clone() }
        };
        let store = self.store.clone();
        let told = until_known!(self.handle, store.worker(lease).finish(ending.clone(), None));
        let completed = matches!(ending, Ending::Completed { .. });
        if completed && told.is_some_and(|finished| finished.outcome.is_applied()) {
            let done = Acknowledged::Completed(lease.execution, result);
            self.handle.world.state().record.acknowledged.push(done);
        }
    }
}

/// Claims a task from time to time.
pub async fn claim_tasks(handle: Arc<ProgramHandle>, scenario: Arc<Scenario>) {
    let mut agent = Agent::new(handle, scenario);
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
        let claimed =
            until_known!(agent.handle, store.claims().claim_once(claimer.clone(), 1, Some(worker.clone())));
        if let Some(assignment) = claimed.and_then(Got::one) {
            agent.work(assignment).await;
        }
    }
}

/// Receives the executions of hand-off messages in any order.
pub async fn receive_handoffs(handle: Arc<ProgramHandle>, scenario: Arc<Scenario>) {
    let mut agent = Agent::new(handle, scenario);
    loop {
        agent.pause(4_000).await;
        let told = {
            let now_ms = agent.handle.world.now_ms();
            let mut state = agent.handle.world.state();
            let handoffs = state.record.handoffs.get_or_insert_default();
            let arrived: Vec<usize> = handoffs
                .iter()
                .enumerate()
                .filter(|(_, (at_ms, _))| *at_ms <= now_ms)
                .map(|(at, _)| at)
                .collect();
            if arrived.is_empty() {
                continue;
            }
            let at = arrived[agent.chance.below(arrived.len())];
            handoffs.swap_remove(at).1
        };
        let claimer = agent.claimer(DEFAULT_QUEUE);
        let store = agent.store.clone();
        if let Some(Ok(assignment)) =
            until_known!(agent.handle, store.claims().receive(claimer.clone(), told))
        {
            agent.work(assignment).await;
        }
    }
}
