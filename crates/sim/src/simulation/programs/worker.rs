//! The shipped worker. Its processes are simulated with the behaviour of a supervisor and its tree.

use std::sync::Arc;
use std::time::Duration;

use sprag_lifecycle::RunId;
use sprag_store::{Assignment, Created, DEFAULT_QUEUE, Ending, Id, Row, mix};
use sprag_worker::{Config, Control, Ended, Runner, RunnerFuture, Signal, Worker};
use tokio::sync::watch;

use super::super::draw::Scenario;
use super::super::record::{End, LEASE_GRACE_MS, NaturalEnd, Start};
use super::super::workspace::Keeper;
use super::super::world::ProgramHandle;
use super::executor;
use crate::graphs::Chance;

/// Returns the configuration of a worker, with drawn queues, slots and lease.
fn config(handle: &ProgramHandle, only: Option<(RunId, Id)>, id: Id) -> Config {
    let name = handle.world.state().nodes[handle.node].name.clone();
    let mut chance = handle.world.chance(handle.node as u64 ^ (u64::from(handle.life) << 8));
    let queues = match chance.below(3) {
        0 => vec![DEFAULT_QUEUE.into()],
        1 => vec!["other".into(), DEFAULT_QUEUE.into()],
        _ => vec![DEFAULT_QUEUE.into(), "other".into()],
    };
    // The first worker serves every queue, so that no queue is without a worker.
    let queues = if only.is_none() && name == "worker-1" {
        vec![DEFAULT_QUEUE.into(), "other".into()]
    } else {
        queues
    };
    let slots = 1 + chance.below(3);
    let lease = Duration::from_millis(*chance.pick(&[6_000, 10_000, 30_000]));
    Config { id, name, queues, labels: Vec::new(), only: only.map(|(run, _)| run), slots, lease }
}

/// Registers a worker, works until it is asked to stop, and manages the environments of its host.
pub async fn work(
    handle: Arc<ProgramHandle>,
    scenario: Arc<Scenario>,
    only: Option<(RunId, Id)>,
    stop: watch::Receiver<bool>,
) {
    let store = handle.store();
    let id = only.map_or_else(|| store.new_id(), |(_, id)| id);
    let config = config(&handle, only, id);
    let (process, host) = {
        let state = handle.world.state();
        (state.process_of(handle.node), state.nodes[handle.node].host)
    };
    let keeper = Keeper {
        world: Arc::clone(&handle.world),
        store: store.clone(),
        worker: id,
        host,
        at: Arc::default(),
    };
    let runner = Arc::new(SupervisedRunner {
        handle: Arc::clone(&handle),
        scenario: Arc::clone(&scenario),
        keeper: keeper.clone(),
    });
    let worker = loop {
        match Worker::register(
            store.clone(),
            config.clone(),
            Arc::clone(&runner) as Arc<dyn Runner>,
            &process,
        )
        .await
        {
            Ok(worker) => break worker,
            Err(_) => handle.world.pause(Duration::from_secs(1)).await,
        }
    };
    if only.is_none() {
        let chance = handle.world.chance(handle.node as u64 ^ (u64::from(handle.life) << 8) ^ 0x1c);
        drop(store.runtime().spawn(look_after(keeper, chance)));
    }
    let _ = worker.run(stop).await;
}

async fn look_after(keeper: Keeper, mut chance: Chance) {
    loop {
        keeper.world.pause(Duration::from_secs(15 + chance.below(30) as u64)).await;
        let _ = keeper.sweep(&mut chance).await;
    }
}

/// Starts a run that is reserved for this process, and executes it.
pub async fn attached(handle: Arc<ProgramHandle>, scenario: Arc<Scenario>, stop: watch::Receiver<bool>) {
    let store = handle.store();
    let id = store.new_id();
    let mut new = store.person().new_run(Arc::clone(&scenario.attached));
    new.idempotency_key = Some(format!("attached-{}-{}", handle.node, handle.life).into());
    // As in `sprag run`, the transaction that creates the run also registers its worker.
    let process = handle.world.state().process_of(handle.node);
    new.worker = Some(config(&handle, Some((new.id, id)), id).new_worker(&process));
    let asked = until_known!(handle, store.person().create_run(new.clone()));
    let Some(Created::New(run) | Created::Existing(run)) = asked else { return };
    let executor = executor(Arc::clone(&handle), Arc::clone(&scenario), Some((run, id)));
    let (stop_executor, stops) = watch::channel(false);
    let executing = store.runtime().spawn(executor.run(stops));
    let (stop_worker, stops) = watch::channel(false);
    let working = store.runtime().spawn(work(Arc::clone(&handle), scenario, Some((run, id)), stops));
    // The process serves only its own run.
    while !*stop.borrow() {
        let row = store.queries().run(run);
        if row.is_ok_and(|row| row.is_none_or(|row| row.status().is_terminal())) {
            break;
        }
        handle.world.pause(Duration::from_secs(1)).await;
    }
    let _ = stop_worker.send(true);
    let _ = working.await;
    let _ = stop_executor.send(true);
    let _ = executing.await;
}

/// Executes assignments as simulated processes under a supervisor.
struct SupervisedRunner {
    handle: Arc<ProgramHandle>,
    scenario: Arc<Scenario>,
    keeper: Keeper,
}

impl Runner for SupervisedRunner {
    fn run<'a>(&'a self, assignment: &'a Assignment, control: Control) -> RunnerFuture<'a> {
        Box::pin(self.execute(assignment, control))
    }
}

fn failed(why: &str) -> Ended {
    Ended::Report(Ending::Failed {
        result: Some(format!("{{\"message\":\"{why}\"}}").into()),
        retriable: true,
    })
}

impl SupervisedRunner {
    async fn execute(&self, assignment: &Assignment, control: Control) -> Ended {
        let world = &self.handle.world;
        let id = assignment.lease.execution;
        let run = mix(id.run.to_i64() as u64 ^ world.seed);
        let mut chance = Chance(mix(run ^ u64::from(id.step) << 32 ^ u64::from(id.attempt)));
        let mut directory = None;
        if assignment.plan.environment.is_some() {
            match self.keeper.enter(id.run, &mut chance).await {
                Ok(path) => directory = Some(path),
                Err(why) => return failed(&why),
            }
        }
        // Processes of an earlier attempt on this host are ended first, and their end is awaited.
        for _ in 0..600 {
            let former = {
                let state = world.state();
                let alive = state.record.alive(id.run, id.step);
                alive.filter(|process| state.record.processes[*process].host == self.keeper.host)
            };
            let Some(former) = former else { break };
            world.end_process(former, End::LeaseLost, 0);
            world.pause(Duration::from_millis(10)).await;
        }
        world.pause(Duration::from_millis(5 + chance.below(40) as u64)).await;
        let guard_ms = match control.now() {
            // The step only waits, as a landing does for its turn.
            Signal::Renewed { .. } if control.is_draining() && chance.below(2) == 0 => {
                return Ended::Returned;
            }
            Signal::Renewed { until_ms } => until_ms as i64 - LEASE_GRACE_MS,
            Signal::Cancel => return Ended::Report(Ending::Cancelled),
            Signal::Lost => return Ended::Lost,
        };
        // A supervisor that reads its order too late starts nothing.
        if guard_ms <= world.now_ms() {
            return Ended::Lost;
        }
        let natural_end = self.scenario.natural_end(&mut chance);
        let takes_ms = self.scenario.takes_ms(&mut chance);
        let node = self.handle.node;
        let (plan, lease) = (Arc::clone(&assignment.plan), assignment.lease);
        let start =
            Start { lease, step: assignment.node, plan, node, natural_end, takes_ms, guard_ms, directory };
        let process = world.start_process(start);
        self.watch(process, control, assignment).await
    }

    async fn watch(&self, process: usize, mut control: Control, assignment: &Assignment) -> Ended {
        /// The time after which a hanging process is ended, unless its step has its own limit.
        const LONGEST_MS: u64 = 180_000;
        let world = &self.handle.world;
        let over = Arc::clone(&world.state().record.processes[process].over);
        let limit_ms = assignment.step().policy.timeout_ms.unwrap_or(LONGEST_MS);
        let mut timeout = world.pause(Duration::from_millis(limit_ms));
        let (mut told, mut timed) = (true, true);
        loop {
            tokio::select! {
                biased;
                () = over.notified() => break,
                signal = control.next(), if told => match signal {
                    Signal::Renewed { until_ms } => world.renew_process(process, until_ms as i64 - LEASE_GRACE_MS),
                    Signal::Cancel => world.end_process(process, End::Cancelled, 5_000),
                    Signal::Lost => {
                        told = false;
                        world.end_process(process, End::Cancelled, 0);
                    }
                },
                () = &mut timeout, if timed => {
                    timed = false;
                    world.end_process(process, End::Timeout, 5_000);
                }
            }
        }
        let (ending, natural_end) = {
            let state = world.state();
            let process = &state.record.processes[process];
            (process.ending, process.natural_end)
        };
        let result = || Some(self.scenario.result(assignment.lease));
        match ending {
            _ if control.now() == Signal::Lost => Ended::Lost,
            Some(End::Exited) if natural_end == NaturalEnd::Well => {
                Ended::Report(Ending::Completed { result: result() })
            }
            Some(End::Exited) => failed("exit code 1"),
            Some(End::Timeout) => Ended::Report(Ending::TimedOut { result: None }),
            Some(End::Cancelled) => Ended::Report(Ending::Cancelled),
            Some(End::Killed) => Ended::Vanished,
            Some(End::LeaseLost) | None => Ended::Lost,
        }
    }
}
