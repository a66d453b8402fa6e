//! The model of a thread with every possible report, by every actor, about this turn and earlier ones, while people
//! stop, archive and delete it.

use sprag_lifecycle::{Actor, Lifecycle, Thread, ThreadEvent, ThreadStatus, Word};
use sprag_store::testing::{Session, Tables, ops};
use sprag_store::{Id, Now, Result, Row, ThreadIntent, ThreadReport, ThreadRow};
use stateright::{Model, Property};

use crate::check::Violation;

const THREAD: Id = 1;

/// The model of a thread.
#[derive(Debug, Clone, Copy)]
pub struct ThreadModel {
    /// The number of the last turn that is opened.
    pub turns: u32,
}

/// A thread's state, and the first violation.
#[derive(Debug, Clone)]
pub struct ThreadState {
    tables: Tables,
    violation: Option<Violation>,
}

/// An action in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadAction {
    /// A report about this turn and this runtime.
    Report(ThreadEvent, Actor, u32, u32),
    /// A request of a person.
    Request(ThreadIntent),
}

impl ThreadState {
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

    fn report(&mut self, event: ThreadEvent, actor: Actor, given: ThreadReport) -> bool {
        let before = self.row().clone();
        let outcome = self
            .transact(|session| ops::thread_event(session, THREAD, event, actor, &given))
            .expect("it answers");
        let after = self.row().clone();
        let seen = || format!("{event:?} of {given:?} by {actor:?}: {before:?} became {after:?}");
        if !outcome.is_applied() {
            if after != before {
                self.violate("L05 a refusal leaves the row as it was", seen());
            }
            return false;
        }
        let starts =
            [ThreadEvent::StartSucceeded, ThreadEvent::TurnStarted, ThreadEvent::RuntimeObservedActive];
        if starts.contains(&event) && before.stop_requested {
            self.violate("L09 a start does not overtake a stop", seen());
        }
        let of_turn = starts.contains(&event)
            || matches!(
                event,
                ThreadEvent::TurnCompleted | ThreadEvent::TurnFailed | ThreadEvent::CommandFailed
            );
        if of_turn && (given.turn != before.turn || !before.turn_open) {
            self.violate("L11 a former turn's report is none of this one", seen());
        }
        let revives =
            [ThreadEvent::ReprovisionStarted, ThreadEvent::TurnDispatched, ThreadEvent::StartSucceeded];
        if revives.contains(&event) && (before.deleted || before.archived) {
            self.violate("L10 what was deleted is not revived", seen());
        }
        if event.ends_turn() && (after.turn_open || after.stop_requested) {
            self.violate("L12 what ends a turn ends the wish to stop it", seen());
        }
        if after.turn < before.turn {
            self.violate("turns only grow", seen());
        }
        true
    }
}

impl std::hash::Hash for ThreadState {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.key(), &self.violation).hash(state);
    }
}

impl PartialEq for ThreadState {
    fn eq(&self, other: &Self) -> bool {
        (self.key(), &self.violation) == (other.key(), &other.violation)
    }
}

/// Checks that the thread's owner can bring it to rest without further requests, and that it can then take the next
/// turn unless it was archived or deleted.
fn reaches_rest(mut state: ThreadState) -> bool {
    let now = |state: &ThreadState| ThreadReport { turn: state.row().turn, runtime: state.row().runtime };
    for _ in 0..6 {
        let row = state.row().clone();
        match row.status() {
            ThreadStatus::Created | ThreadStatus::Provisioning | ThreadStatus::Active
                if row.stop_requested =>
            {
                state.report(ThreadEvent::StopCompleted, Actor::Worker, now(&state));
            }
            ThreadStatus::Created | ThreadStatus::Provisioning => {
                let given = now(&state);
                if !state.report(ThreadEvent::StartSucceeded, Actor::Worker, given) {
                    state.report(ThreadEvent::TurnInterrupted, Actor::Reaper, given);
                }
            }
            ThreadStatus::Active => {
                state.report(ThreadEvent::TurnCompleted, Actor::Worker, now(&state));
            }
            ThreadStatus::Error if row.archived || row.deleted => return true,
            ThreadStatus::Error => {
                state.report(ThreadEvent::ReprovisionStarted, Actor::Executor, now(&state));
            }
            ThreadStatus::Idle if row.archived || row.deleted => return true,
            ThreadStatus::Idle => {
                return state.report(ThreadEvent::TurnDispatched, Actor::Executor, now(&state));
            }
        }
    }
    false
}

impl Model for ThreadModel {
    type State = ThreadState;
    type Action = ThreadAction;

    fn init_states(&self) -> Vec<ThreadState> {
        let mut state = ThreadState { tables: Tables::default(), violation: None };
        state.transact(|session| ops::create_thread(session, THREAD, None));
        vec![state]
    }

    fn actions(&self, state: &ThreadState, actions: &mut Vec<ThreadAction>) {
        if state.violation.is_some() {
            return;
        }
        let row = state.row();
        for rule in Thread::RULES {
            for actor in rule.who {
                if rule.event.opens_turn() && row.turn >= self.turns {
                    continue;
                }
                // The report concerns this turn, the previous one, or a future one.
                for turn in row.turn.saturating_sub(1)..=row.turn + 1 {
                    for runtime in [row.runtime, row.runtime + 1] {
                        actions.push(ThreadAction::Report(rule.event, *actor, turn, runtime));
                    }
                }
            }
        }
        let wishes = [ThreadIntent::Stop, ThreadIntent::Archive, ThreadIntent::Delete];
        actions.extend(wishes.map(ThreadAction::Request));
    }

    fn next_state(&self, state: &ThreadState, act: ThreadAction) -> Option<ThreadState> {
        let mut state = state.clone();
        match act {
            ThreadAction::Report(event, actor, turn, runtime) => {
                state.report(event, actor, ThreadReport { turn, runtime });
            }
            ThreadAction::Request(wish) => {
                state.transact(|session| ops::thread_intent(session, THREAD, wish));
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the invariants hold", |_, state: &ThreadState| state.violation.is_none()),
            Property::always("what goes on has an open turn", |_, state: &ThreadState| {
                let row = state.row();
                let busy = matches!(row.status(), ThreadStatus::Active | ThreadStatus::Provisioning);
                !busy || row.turn_open
            }),
            Property::always("a thread comes to rest, and takes the next turn", |_, state: &ThreadState| {
                reaches_rest(state.clone())
            }),
            Property::sometimes("a thread is deleted in mid-turn", |_, state: &ThreadState| {
                state.row().deleted && state.row().status().as_str() == "active"
            }),
        ]
    }
}
