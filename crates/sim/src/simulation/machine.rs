//! The way of a program's operations to the store and back, and the delivery of wake-ups.

use std::sync::Arc;
use std::time::Duration;

use sprag_store::testing::RawStore;
use sprag_store::{Error, Fate, Lease, Row, SimulatedRuntime, Task, Topic, Written};
use tokio::sync::Notify;

use super::faults::unknown;
use super::world::{Event, ProgramHandle, State, World};
use crate::check::{self, Violation};

impl SimulatedRuntime for ProgramHandle {
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
            let fate = state.active_faults.fate(&mut state.chance, now_ms);
            match &fate {
                Fate::Lost(_) => state.summary.count("write lost"),
                Fate::Fails(_) => state.summary.count("write on a full disk"),
                Fate::Arrives => {}
            }
            state.writes += 1;
            world.entropy.begin(state.writes);
            fate
        })
    }

    fn answer(&self, what: &'static str, written: Written) -> Task<Option<Error>> {
        let committed = written.error.is_none();
        self.world.written(self.node, what, written);
        // Draws between two writes restart as well, because SQLite may have run the last one twice.
        let answers = {
            let mut state = self.world.state();
            state.answers += 1;
            state.answers
        };
        self.world.entropy.begin(!answers);
        let (world, node) = (Arc::clone(&self.world), self.node);
        Box::pin(async move {
            let on_the_way_ms = world.delay_ms(node);
            let lost = {
                let now_ms = world.now_ms();
                let mut state = world.state();
                let state = &mut *state;
                state.active_faults.loses(&mut state.chance, now_ms)
            };
            world.pause(Duration::from_millis(on_the_way_ms)).await;
            if lost && committed {
                world.state().summary.count("answer lost");
                world.record(node, format_args!("does not hear the answer"));
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
        state.active_faults.delay_ms(&mut state.chance, now_ms, node) as u64
    }

    /// Handles a write that the store has finished: records it, checks it, and wakes the listeners.
    fn written(&self, node: usize, what: &'static str, written: Written) {
        let now_ms = self.now_ms();
        let mut state = self.state();
        let state = &mut *state;
        state.summary.operations += 1;
        state.event_log.record_write(now_ms, &state.nodes[node].name, what, &written);
        if let Some(error) = &written.error {
            if let Some(violation) = misbehaves(error) {
                state.violation.get_or_insert(violation);
            }
            return;
        }
        if what.contains("forget_runs") {
            let known: Vec<_> = state.record.runs.keys().copied().collect();
            let there = self.store.queries().runs_there(&known).unwrap_or_default();
            if let Err(violation) = state.record.forgets(&there) {
                state.violation.get_or_insert(violation);
            }
            let count = state.record.forgotten.len() as u64;
            state.summary.forgotten = count;
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

    /// Checks the invariants of a change. Checks the whole state only now and then, because that costs more.
    fn check(&self, state: &mut State, written: &Written) -> Result<(), Violation> {
        /// The number of writes between two checks of the whole state.
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
        for ear in state.listeners(topic) {
            let copies = state.active_faults.deliveries(&mut state.chance, now_ms);
            state.summary.count_messages(copies.len());
            for after_ms in copies {
                state.at(now_ms + after_ms, Event::Ring(ear.clone()));
            }
        }
        if let Topic::Queue(queue) = topic {
            self.post(state, now_ms, queue);
        }
    }

    /// Sends a message for every hand-off to programs that receive messages, with the fence at the time of sending.
    fn post(&self, state: &mut State, now_ms: i64, queue: &str) {
        if state.record.handoffs.is_none() {
            return;
        }
        let waiting = self.store.read(|db| db.claimable(queue, 0, 4)).unwrap_or_default();
        for candidate in waiting {
            let row = self.store.read(|db| {
                sprag_store::testing::Table::<sprag_store::ExecutionRow>::load(db, candidate.execution)
            });
            let Ok(Some(row)) = row else { continue };
            debug_assert!(!row.status().is_terminal());
            let told = Lease { execution: row.id, fence: row.fence };
            let copies = state.active_faults.deliveries(&mut state.chance, now_ms);
            let handoffs = state.record.handoffs.get_or_insert_default();
            handoffs.extend(copies.into_iter().map(|after_ms| (now_ms + after_ms, told)));
        }
    }
}

/// Returns the violation, if an error shows that the engine contradicts itself.
fn misbehaves(error: &Error) -> Option<Violation> {
    let is_answer = matches!(
        error,
        Error::Refused { .. }
            | Error::Invalid { .. }
            | Error::Full { .. }
            | Error::Unknown { .. }
            | Error::NoSuchRun(_)
    );
    (!is_answer).then(|| Violation { invariant: "an operation answers", seen: error.to_string() })
}
