//! The programs of the simulated world: the shipped executor and worker, and those who ask things of the store.

/// Asks until there is an answer: what may have happened is asked for again, what was refused is not.
macro_rules! insist {
    ($place:expr, $ask:expr) => {{
        /// More often than any spell of bad weather lasts.
        const TRIES: usize = 500;
        let mut tries = 0;
        loop {
            match $ask.await {
                Ok(answer) => break Some(answer),
                Err(error) if tries < TRIES && super::is_worth_another_try(&error) => {
                    tries += 1;
                    $place.world.pause(Duration::from_millis(700)).await;
                }
                Err(_) => break None,
            }
        }
    }};
}

mod agent;
mod leader;
mod person;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use sprag_executor::{Config, Effect, EffectFuture, Executor, Hosts};
use sprag_lifecycle::RunId;
use sprag_store::{Error, Id, Task};
use tokio::sync::watch;

use super::draw::Cast;
use super::workspace::Keeper;
use super::world::{Place, Role, World};

pub use person::Wishes;

/// Begins what a node does.
pub fn begin(place: Arc<Place>, cast: &Arc<Cast>) -> Task {
    let role = place.world.state().nodes[place.node].role;
    let (stop, stops) = watch::channel(false);
    place.world.state().nodes[place.node].stop = Some(stop);
    let cast = Arc::clone(cast);
    match role {
        Role::Executor => Box::pin(executor(place, cast, None).run(stops)),
        Role::Worker => Box::pin(worker::work(place, cast, None, stops)),
        Role::Attached => Box::pin(worker::attached(place, cast, stops)),
        Role::Agent => Box::pin(agent::come_by(place, cast)),
        Role::Courier => Box::pin(agent::take_letters(place, cast)),
        Role::Person => Box::pin(person::wish(place, cast)),
        Role::Leader => Box::pin(leader::lead(place, cast)),
    }
}

/// The shipped executor; it sees which processes of its own host are gone.
fn executor(place: Arc<Place>, cast: Arc<Cast>, only: Option<(RunId, Id)>) -> Executor {
    let config = Config { only: only.map(|(run, _)| run), ..cast.executor.clone() };
    let host = place.world.state().nodes[place.node].host;
    let hosts = Arc::new(OnHost { world: Arc::clone(&place.world), host });
    let world = Arc::clone(&place.world);
    let keeper =
        only.map(|(_, worker)| Keeper { world, store: place.store(), worker, host, at: Arc::default() });
    let effect = Arc::new(Tend { place: Arc::clone(&place), keeper });
    Executor::new(place.store(), config, hosts).with_effect(effect)
}

struct OnHost {
    world: Arc<World>,
    host: usize,
}

impl Hosts for OnHost {
    fn is_gone(&self, process: &str) -> bool {
        let Some((host, rest)) = process.split_once('/') else { return false };
        if host != format!("host-{}", self.host) {
            return false;
        }
        let Some((node, life)) = rest.split_once('.') else { return false };
        let (Ok(node), Ok(life)) = (node.parse::<usize>(), life.parse::<u32>()) else { return false };
        let state = self.world.state();
        state.nodes.get(node).is_none_or(|node| !node.up || node.life != life)
    }
}

/// What is done after a run's end; now and then it fails.
struct Tend {
    place: Arc<Place>,
    /// Removes what the run worked in, if this process is there for that run alone.
    keeper: Option<Keeper>,
}

impl Effect for Tend {
    fn name(&self) -> &'static str {
        "tend"
    }

    fn run_ended(&self, run: RunId) -> EffectFuture<'_> {
        Box::pin(async move {
            let world = &self.place.world;
            world.pause(Duration::from_millis(5)).await;
            if let Some(keeper) = &self.keeper {
                let mut chance = world.chance(run.to_i64() as u64);
                keeper.run_ended(run, &mut chance).await.map_err(|error| error.to_string())?;
            }
            let mut state = world.state();
            if !state.quiet && state.chance.one_in(10) {
                return Err("not this time".into());
            }
            state.record.tended.insert(run);
            Ok(())
        })
    }
}

/// Whether it may have happened, or may happen if it is asked for again.
fn is_worth_another_try(error: &Error) -> bool {
    matches!(error, Error::Unknown { .. } | Error::Full { .. } | Error::Locked { .. })
}
