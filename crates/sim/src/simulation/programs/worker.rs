//! The shipped worker; what it runs is simulated, as a supervisor and its tree would behave.

use std::sync::Arc;
use std::time::Duration;

use sprag_lifecycle::RunId;
use sprag_store::ops::{Assignment, Created, Ending};
use sprag_store::{DEFAULT_QUEUE, Id, Row, RunRow, Table, mix};
use sprag_worker::{Config, Control, Ended, Runner, RunnerFuture, Signal, Worker};
use tokio::sync::watch;

use super::super::draw::Cast;
use super::super::record::{Course, End, LEASE_GRACE_MS, Start};
use super::super::workspace::Keeper;
use super::super::world::Place;
use super::executor;
use crate::graphs::Chance;

/// Registers and works until told to stop, and looks after the directories of its host.
pub async fn work(
    place: Arc<Place>,
    cast: Arc<Cast>,
    only: Option<(RunId, Id)>,
    stop: watch::Receiver<bool>,
) {
    let store = place.store();
    let id = only.map_or_else(|| store.new_id(), |(_, id)| id);
    let (process, host, name) = {
        let state = place.world.state();
        let node = &state.nodes[place.node];
        (state.process_of(place.node), node.host, node.name.clone())
    };
    let mut chance = place.world.chance(place.node as u64 ^ (u64::from(place.life) << 8));
    let queues = match chance.below(3) {
        0 => vec![DEFAULT_QUEUE.into()],
        1 => vec!["other".into(), DEFAULT_QUEUE.into()],
        _ => vec![DEFAULT_QUEUE.into(), "other".into()],
    };
    // The first of them serves every queue, so that nothing waits for one that nobody serves.
    let queues = if only.is_none() && name == "worker-1" {
        vec![DEFAULT_QUEUE.into(), "other".into()]
    } else {
        queues
    };
    let slots = 1 + chance.below(3);
    let lease = Duration::from_millis(*chance.pick(&[6_000, 10_000, 30_000]));
    let keeper = Keeper {
        world: Arc::clone(&place.world),
        store: store.clone(),
        worker: id,
        host,
        at: Arc::default(),
    };
    let runner =
        Arc::new(Supervised { place: Arc::clone(&place), cast: Arc::clone(&cast), keeper: keeper.clone() });
    let config =
        Config { id, name, queues, labels: Vec::new(), only: only.map(|(run, _)| run), slots, lease };
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
            Err(_) => place.world.pause(Duration::from_secs(1)).await,
        }
    };
    if only.is_none() {
        drop(store.surroundings().spawn(look_after(keeper, chance)));
    }
    let _ = worker.run(stop).await;
}

async fn look_after(keeper: Keeper, mut chance: Chance) {
    loop {
        keeper.world.pause(Duration::from_secs(15 + chance.below(30) as u64)).await;
        let _ = keeper.sweep(&mut chance).await;
    }
}

/// Starts a run that is reserved to this very process, and works it off.
pub async fn attached(place: Arc<Place>, cast: Arc<Cast>, stop: watch::Receiver<bool>) {
    let store = place.store();
    let id = store.new_id();
    let mut new = store.person().new_run(Arc::clone(&cast.attached));
    new.idempotency_key = Some(format!("attached-{}-{}", place.node, place.life).into());
    new.pin = Some(id);
    let asked = insist!(place, store.person().create_run(new.clone()));
    let Some(Created::New(run) | Created::Existing(run)) = asked else { return };
    let executor = executor(Arc::clone(&place), Arc::clone(&cast), Some((run, id)));
    let (stop_executor, stops) = watch::channel(false);
    let executing = store.surroundings().spawn(executor.run(stops));
    let (stop_worker, stops) = watch::channel(false);
    let working = store.surroundings().spawn(work(Arc::clone(&place), cast, Some((run, id)), stops));
    // Its own run is all that it is there for.
    while !*stop.borrow() {
        let row = store.read(|db| Table::<RunRow>::load(db, run));
        if row.is_ok_and(|row| row.is_none_or(|row| row.status().is_terminal())) {
            break;
        }
        place.world.pause(Duration::from_secs(1)).await;
    }
    let _ = stop_worker.send(true);
    let _ = working.await;
    let _ = stop_executor.send(true);
    let _ = executing.await;
}

/// Runs what a worker was given, as a process of the world under a supervisor.
struct Supervised {
    place: Arc<Place>,
    cast: Arc<Cast>,
    keeper: Keeper,
}

impl Runner for Supervised {
    fn run<'a>(&'a self, assignment: &'a Assignment, control: Control) -> RunnerFuture<'a> {
        Box::pin(self.see_to_end(assignment, control))
    }
}

fn failed(why: &str) -> Ended {
    Ended::Report(Ending::Failed {
        result: Some(format!("{{\"message\":\"{why}\"}}").into()),
        retriable: true,
    })
}

impl Supervised {
    async fn see_to_end(&self, assignment: &Assignment, control: Control) -> Ended {
        let world = &self.place.world;
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
        // Whatever is left of a former attempt on this host is ended first, and seen to be gone.
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
            Signal::Renewed { until_ms } => until_ms as i64 - LEASE_GRACE_MS,
            Signal::Cancel => return Ended::Report(Ending::Cancelled),
            Signal::Lost => return Ended::Lost,
        };
        // A supervisor that reads its order too late starts nothing.
        if guard_ms <= world.now_ms() {
            return Ended::Lost;
        }
        let course = self.cast.course(&mut chance);
        let takes_ms = self.cast.takes_ms(&mut chance);
        let node = self.place.node;
        let (plan, lease) = (Arc::clone(&assignment.plan), assignment.lease);
        let start = Start { lease, step: assignment.node, plan, node, course, takes_ms, guard_ms, directory };
        let process = world.start_process(start);
        self.watch(process, control, assignment).await
    }

    async fn watch(&self, process: usize, mut control: Control, assignment: &Assignment) -> Ended {
        /// What hangs is ended then, unless its step says otherwise.
        const LONGEST_MS: u64 = 180_000;
        let world = &self.place.world;
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
        let (ending, course) = {
            let state = world.state();
            let process = &state.record.processes[process];
            (process.ending, process.course)
        };
        let result = || Some(self.cast.result(assignment.lease));
        match ending {
            _ if control.now() == Signal::Lost => Ended::Lost,
            Some(End::Exited) if course == Course::Well => {
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
