//! A thread with everything that can be reported of it, by everybody, of this turn and of former ones, while people
//! stop, archive and delete it.

use sprag_lifecycle::{Actor, Lifecycle, Thread, ThreadEvent, ThreadStatus, Word};
use sprag_store::ops::{self, ThreadIntent};
use sprag_store::{Id, Now, Result, Row, Session, Tables, ThreadGiven, ThreadRow};
use stateright::{Model, Property};

use crate::check::Violation;

const THREAD: Id = 1;

/// A thread over so many turns.
#[derive(Debug, Clone, Copy)]
pub struct Threads {
    /// No turn after this one is opened.
    pub turns: u32,
}

/// A thread's state, and the first thing that was wrong.
#[derive(Debug, Clone)]
pub struct World {
    tables: Tables,
    violation: Option<Violation>,
}

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Something is reported, of this turn and this runtime.
    Report(ThreadEvent, Actor, u32, u32),
    /// A person wants something.
    Wish(ThreadIntent),
}

impl World {
    fn row(&self) -> &ThreadRow {
        self.tables.all_threads().next().expect("the thread is there")
    }

    fn transact<T>(&mut self, operation: impl FnOnce(&mut Session<'_>) -> Result<T>) -> Option<T> {
        let now = Now { wall_ms: 0, steady_ms: 1 };
        let done = self.tables.transact(now, &mut || 4, operation);
        self.tables.forget_history();
        done.ok()
    }

    fn key(&self) -> (u8, bool, bool, bool, u32, bool, u32) {
        let row = self.row();
        let ThreadRow { stop_requested, archived, deleted, turn, turn_open, runtime, .. } = *row;
        (row.status() as u8, stop_requested, archived, deleted, turn, turn_open, runtime)
    }

    fn violate(&mut self, invariant: &'static str, seen: String) {
        self.violation.get_or_insert(Violation { invariant, seen });
    }

    fn report(&mut self, event: ThreadEvent, actor: Actor, given: ThreadGiven) -> bool {
        let before = self.row().clone();
        let outcome = self
            .transact(|session| ops::thread_event(session, THREAD, event, actor, &given))
            .expect("it answers");
        let after = self.row().clone();
        let told = || format!("{event:?} of {given:?} by {actor:?}: {before:?} became {after:?}");
        if !outcome.is_applied() {
            if after != before {
                self.violate("L05 a refusal leaves the row as it was", told());
            }
            return false;
        }
        let starts =
            [ThreadEvent::StartSucceeded, ThreadEvent::TurnStarted, ThreadEvent::RuntimeObservedActive];
        if starts.contains(&event) && before.stop_requested {
            self.violate("L09 a start does not overtake a stop", told());
        }
        let of_turn = starts.contains(&event)
            || matches!(
                event,
                ThreadEvent::TurnCompleted | ThreadEvent::TurnFailed | ThreadEvent::CommandFailed
            );
        if of_turn && (given.turn != before.turn || !before.turn_open) {
            self.violate("L11 a former turn's report is none of this one", told());
        }
        let revives =
            [ThreadEvent::ReprovisionStarted, ThreadEvent::TurnDispatched, ThreadEvent::StartSucceeded];
        if revives.contains(&event) && (before.deleted || before.archived) {
            self.violate("L10 what was deleted is not revived", told());
        }
        if event.ends_turn() && (after.turn_open || after.stop_requested) {
            self.violate("L12 what ends a turn ends the wish to stop it", told());
        }
        if after.turn < before.turn {
            self.violate("turns only grow", told());
        }
        true
    }
}

impl std::hash::Hash for World {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.key(), &self.violation).hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        (self.key(), &self.violation) == (other.key(), &other.violation)
    }
}

/// With nobody wishing anything, whoever has the thread brings it to rest, and it can take the next turn unless it
/// was put away.
fn comes_to_rest(mut world: World) -> bool {
    let now = |world: &World| ThreadGiven { turn: world.row().turn, runtime: world.row().runtime };
    for _ in 0..6 {
        let row = world.row().clone();
        match row.status() {
            ThreadStatus::Created | ThreadStatus::Provisioning | ThreadStatus::Active
                if row.stop_requested =>
            {
                world.report(ThreadEvent::StopCompleted, Actor::Worker, now(&world));
            }
            ThreadStatus::Created | ThreadStatus::Provisioning => {
                let given = now(&world);
                if !world.report(ThreadEvent::StartSucceeded, Actor::Worker, given) {
                    world.report(ThreadEvent::TurnInterrupted, Actor::Reaper, given);
                }
            }
            ThreadStatus::Active => {
                world.report(ThreadEvent::TurnCompleted, Actor::Worker, now(&world));
            }
            ThreadStatus::Error if row.archived || row.deleted => return true,
            ThreadStatus::Error => {
                world.report(ThreadEvent::ReprovisionStarted, Actor::Executor, now(&world));
            }
            ThreadStatus::Idle if row.archived || row.deleted => return true,
            ThreadStatus::Idle => {
                return world.report(ThreadEvent::TurnDispatched, Actor::Executor, now(&world));
            }
        }
    }
    false
}

impl Model for Threads {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        let mut world = World { tables: Tables::default(), violation: None };
        world.transact(|session| ops::create_thread(session, THREAD, None));
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Act>) {
        if world.violation.is_some() {
            return;
        }
        let row = world.row();
        for rule in Thread::RULES {
            for actor in rule.who {
                if rule.event.opens_turn() && row.turn >= self.turns {
                    continue;
                }
                // Of this turn, of the one before, and of one that is yet to come.
                for turn in row.turn.saturating_sub(1)..=row.turn + 1 {
                    for runtime in [row.runtime, row.runtime + 1] {
                        actions.push(Act::Report(rule.event, *actor, turn, runtime));
                    }
                }
            }
        }
        let wishes = [ThreadIntent::Stop, ThreadIntent::Archive, ThreadIntent::Delete];
        actions.extend(wishes.map(Act::Wish));
    }

    fn next_state(&self, world: &World, act: Act) -> Option<World> {
        let mut world = world.clone();
        match act {
            Act::Report(event, actor, turn, runtime) => {
                world.report(event, actor, ThreadGiven { turn, runtime });
            }
            Act::Wish(wish) => {
                world.transact(|session| ops::thread_intent(session, THREAD, wish));
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the invariants hold", |_, world: &World| world.violation.is_none()),
            Property::always("what goes on has an open turn", |_, world: &World| {
                let row = world.row();
                let busy = matches!(row.status(), ThreadStatus::Active | ThreadStatus::Provisioning);
                !busy || row.turn_open
            }),
            Property::always("a thread comes to rest, and takes the next turn", |_, world: &World| {
                comes_to_rest(world.clone())
            }),
            Property::sometimes("a thread is deleted in mid-turn", |_, world: &World| {
                world.row().deleted && world.row().status().as_str() == "active"
            }),
        ]
    }
}
