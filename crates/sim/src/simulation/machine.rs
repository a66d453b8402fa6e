//! What a program meets on its way to the store and back, and how it hears of changes.

use std::sync::Arc;
use std::time::Duration;

use sprag_store::ops::Lease;
use sprag_store::{Error, Fate, Machine, Row, Task, Topic, Written};
use tokio::sync::Notify;

use super::faults::unknown;
use super::world::{Event, Place, State, World};
use crate::check::{self, Violation};

impl Machine for Place {
    fn boot_ms(&self) -> i64 {
        self.world.now_ms()
    }

    fn pause(&self, for_a_while: Duration) -> Task {
        self.world.pause(for_a_while)
    }

    fn spawn(&self, task: Task) {
        self.world.state().spawn(self.node, self.life, task);
    }

    fn listen(&self, topics: &[Topic]) -> Arc<Notify> {
        self.world.state().listen(self.node, topics)
    }

    fn send(&self, _: &'static str) -> Task<Fate> {
        let (world, node) = (Arc::clone(&self.world), self.node);
        Box::pin(async move {
            let on_the_way_ms = world.delay_ms(node);
            world.pause(Duration::from_millis(on_the_way_ms)).await;
            let now_ms = world.now_ms();
            let mut state = world.state();
            let state = &mut *state;
            let fate = state.weather.fate(&mut state.chance, now_ms);
            match &fate {
                Fate::Lost(_) => state.summary.count("write lost"),
                Fate::Fails(_) => state.summary.count("write on a full disk"),
                Fate::Arrives => {}
            }
            state.writes += 1;
            world.dice.begin(state.writes);
            fate
        })
    }

    fn answer(&self, what: &'static str, written: Written) -> Task<Option<Error>> {
        let committed = written.error.is_none();
        self.world.written(self.node, what, written);
        let (world, node) = (Arc::clone(&self.world), self.node);
        Box::pin(async move {
            let on_the_way_ms = world.delay_ms(node);
            let lost = {
                let now_ms = world.now_ms();
                let mut state = world.state();
                let state = &mut *state;
                state.weather.loses(&mut state.chance, now_ms)
            };
            world.pause(Duration::from_millis(on_the_way_ms)).await;
            if lost && committed {
                world.state().summary.count("answer lost");
                world.tell(node, format_args!("does not hear the answer"));
            }
            lost.then(unknown)
        })
    }
}

impl World {
    fn delay_ms(&self, node: usize) -> u64 {
        let now_ms = self.now_ms();
        let mut state = self.state();
        let state = &mut *state;
        state.weather.delay_ms(&mut state.chance, now_ms, node) as u64
    }

    /// A write has come to its end in the store: it is told, checked, and those who may want to know are rung.
    fn written(&self, node: usize, what: &'static str, written: Written) {
        let now_ms = self.now_ms();
        let mut state = self.state();
        let state = &mut *state;
        state.summary.operations += 1;
        state.story.tell_write(now_ms, &state.nodes[node].name, what, &written);
        if let Some(error) = &written.error {
            if let Some(violation) = misbehaves(error) {
                state.violation.get_or_insert(violation);
            }
            return;
        }
        if !written.entries.is_empty() {
            let checked = self.check(state, &written).and_then(|()| state.record.follow(&written.entries));
            if let Err(violation) = checked {
                state.violation.get_or_insert(violation);
            }
            state.summary.follow(&written.entries);
        }
        for topic in &written.topics {
            self.ring(state, now_ms, topic);
        }
    }

    /// The invariants of a change; of the whole state now and then, for that costs more.
    fn check(&self, state: &mut State, written: &Written) -> Result<(), Violation> {
        /// How often everything is looked at.
        const WHOLE: u64 = 16;
        let Some(rows) = self.store.with_tables(|tables| tables.rows()) else { return Ok(()) };
        check::change(&state.last, &rows, &written.entries)?;
        if state.writes.is_multiple_of(WHOLE) {
            check::state(&rows)?;
            check::bounded(&rows)?;
            check::limits(&rows)?;
        }
        state.last = rows;
        Ok(())
    }

    fn ring(&self, state: &mut State, now_ms: i64, topic: &Topic) {
        for ear in state.ears(topic) {
            let copies = state.weather.deliveries(&mut state.chance, now_ms);
            state.summary.count_messages(copies.len());
            for after_ms in copies {
                state.at(now_ms + after_ms, Event::Ring(ear.clone()));
            }
        }
        if let Topic::Queue(queue, _) = topic {
            self.post(state, now_ms, queue);
        }
    }

    /// Every hand-off is also a message, to whoever takes them: with the fence of the moment it was sent.
    fn post(&self, state: &mut State, now_ms: i64, queue: &str) {
        if state.record.letters.is_none() {
            return;
        }
        let waiting = self.store.read(|db| db.claimable(queue, 0, 4)).unwrap_or_default();
        for candidate in waiting {
            let row = self
                .store
                .read(|db| sprag_store::Table::<sprag_store::ExecutionRow>::load(db, candidate.execution));
            let Ok(Some(row)) = row else { continue };
            debug_assert!(!row.status().is_terminal());
            let told = Lease { execution: row.id, fence: row.fence };
            let copies = state.weather.deliveries(&mut state.chance, now_ms);
            let letters = state.record.letters.get_or_insert_default();
            letters.extend(copies.into_iter().map(|after_ms| (now_ms + after_ms, told)));
        }
    }
}

/// What no operation may answer, whatever was asked: it says that the engine contradicts itself.
fn misbehaves(error: &Error) -> Option<Violation> {
    let wrong = match error {
        Error::Refused(why) => ["the walk and the tables", "is incomplete", "unexpected way"]
            .iter()
            .any(|words| why.contains(words)),
        Error::Full { .. } | Error::Unknown { .. } | Error::NoSuchRun(_) => false,
        _ => true,
    };
    wrong.then(|| Violation { invariant: "an operation answers", seen: error.to_string() })
}
