//! The programs of the simulated world: the shipped executor and worker, and clients of the store.

/// Repeats an operation until its outcome is known. Does not repeat a refused operation.
macro_rules! until_known {
    ($handle:expr, $ask:expr) => {{
        /// More attempts than any period of faults lasts.
        const TRIES: usize = 500;
        let mut tries = 0;
        loop {
            match $ask.await {
                Ok(answer) => break Some(answer),
                Err(error) if tries < TRIES && super::is_retriable(&error) => {
                    tries += 1;
                    $handle.world.pause(Duration::from_millis(700)).await;
                }
                Err(_) => break None,
            }
        }
    }};
}

mod agent;
mod collector;
mod leader;
mod person;
pub mod rules;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use sprag_lifecycle::RunId;
use sprag_store::{Error, Id, Task};
use sprag_sweeper::{Config, Effect, EffectFuture, Executor, Hosts};
use tokio::sync::watch;

use super::draw::Scenario;
use super::workspace::Keeper;
use super::world::{ProgramHandle, Role, World};

pub use person::PersonPlan;

/// Starts the program of a node.
pub fn begin(handle: Arc<ProgramHandle>, scenario: &Arc<Scenario>) -> Task {
    let role = handle.world.state().nodes[handle.node].role;
    let (stop, stops) = watch::channel(false);
    handle.world.state().nodes[handle.node].stop = Some(stop);
    let scenario = Arc::clone(scenario);
    match role {
        Role::Executor => Box::pin(executor(handle, scenario, None).run(stops)),
        Role::Worker => Box::pin(worker::work(handle, scenario, None, stops)),
        Role::Attached => Box::pin(worker::attached(handle, scenario, stops)),
        Role::Agent => Box::pin(agent::claim_tasks(handle, scenario)),
        Role::Courier => Box::pin(agent::receive_handoffs(handle, scenario)),
        Role::Person => Box::pin(person::act(handle, scenario)),
        Role::Leader => Box::pin(leader::lead(handle, scenario)),
        Role::Collector => Box::pin(collector::collect(handle)),
        Role::Sender => Box::pin(rules::send(handle)),
    }
}

/// Returns the shipped executor, which can check whether processes of its own host are gone.
fn executor(handle: Arc<ProgramHandle>, scenario: Arc<Scenario>, only: Option<(RunId, Id)>) -> Executor {
    let worker = only.map(|(_, worker)| worker);
    let config = Config { only: only.map(|(run, _)| run), worker, ..scenario.executor.clone() };
    let host = handle.world.state().nodes[handle.node].host;
    let hosts = Arc::new(OnHost { world: Arc::clone(&handle.world), host });
    let world = Arc::clone(&handle.world);
    let keeper =
        only.map(|(_, worker)| Keeper { world, store: handle.store(), worker, host, at: Arc::default() });
    let effect = Arc::new(EndEffect { handle: Arc::clone(&handle), keeper });
    let executor = Executor::new(handle.store(), config, hosts).with_effect(effect);
    match &scenario.ruled {
        Some(plan) if only.is_none() => {
            executor.with_triggers(Arc::new(rules::FiredRules { handle, plan: Arc::clone(plan) }))
        }
        _ => executor,
    }
}

struct OnHost {
    world: Arc<World>,
    host: usize,
}

impl Hosts for OnHost {
    fn is_gone(&self, process: &str) -> bool {
        process.starts_with(&format!("host-{}/", self.host)) && self.world.state().is_gone(process)
    }
}

/// The effect after a run's end. It fails now and then.
struct EndEffect {
    handle: Arc<ProgramHandle>,
    /// Removes the run's environment, if this process serves only that run.
    keeper: Option<Keeper>,
}

impl Effect for EndEffect {
    fn name(&self) -> &'static str {
        "tend"
    }

    fn run_ended(&self, run: RunId) -> EffectFuture<'_> {
        Box::pin(async move {
            let world = &self.handle.world;
            world.pause(Duration::from_millis(5)).await;
            if let Some(keeper) = &self.keeper {
                let mut chance = world.chance(run.to_i64() as u64);
                keeper.run_ended(run, &mut chance).await.map_err(|error| error.to_string())?;
            }
            let mut state = world.state();
            if !state.quiet && state.chance.one_in(10) {
                return Err("not this time".into());
            }
            state.record.effects_done.insert(run);
            Ok(())
        })
    }
}

/// Returns whether the operation may have happened, or may succeed if it is repeated.
fn is_retriable(error: &Error) -> bool {
    matches!(error, Error::Unknown { .. } | Error::Full { .. } | Error::Locked { .. })
}
