//! A person: starts runs, answers questions, sends signals, changes its mind.

use std::sync::Arc;
use std::time::Duration;

use sprag_lifecycle::{Plan, RunId, StepNo};
use sprag_store::ops::{self, Created};
use sprag_store::{GateKind, Id, Row, RunRow, Store, Table};

use super::super::draw::Cast;
use super::super::record::Acknowledged;
use super::super::world::Place;
use crate::graphs::Chance;

/// What one person wants: runs of these plans, and how restless it is.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    pub plans: Vec<Arc<Plan>>,
    pub restless: usize,
}

struct Person {
    place: Arc<Place>,
    store: Store,
    chance: Chance,
    runs: Vec<RunId>,
}

/// Wants things until nothing goes wrong any more; from then on it only answers.
pub async fn wish(place: Arc<Place>, cast: Arc<Cast>) {
    let chance = place.world.chance(0x9e ^ place.node as u64 ^ (u64::from(place.life) << 8));
    let mut person = Person { store: place.store(), place, chance, runs: Vec::new() };
    let Wishes { mut plans, restless } = cast.wishes(person.place.node);
    let mut made = 0;
    loop {
        person.pause(5_000).await;
        let quiet = person.place.world.state().quiet;
        if let Some(plan) = plans.pop() {
            // Whoever starts again after a crash asks for the same: the key says so.
            made += 1;
            person.create(plan, made).await;
            if plans.is_empty() {
                person.place.world.state().record.satisfied.insert(person.place.node);
            }
        } else if !quiet && restless > 0 && person.chance.below(100) < restless {
            person.change_mind().await;
        }
        person.answer(quiet).await;
    }
}

impl Person {
    async fn pause(&mut self, ms: usize) {
        let ms = 1 + self.chance.below(ms) as u64;
        self.place.world.pause(Duration::from_millis(ms)).await;
    }

    async fn create(&mut self, plan: Arc<Plan>, number: usize) {
        let mut new = self.store.person().new_run(plan);
        new.idempotency_key = Some(format!("{}-{number}", self.place.node).into());
        new.priority = self.chance.below(3) as i32;
        let store = self.store.clone();
        if let Some(Created::New(run) | Created::Existing(run)) =
            insist!(self.place, store.person().create_run(new.clone()))
        {
            self.runs.push(run);
            self.place.world.state().record.acknowledged.push(Acknowledged::Run(run));
        }
    }

    async fn change_mind(&mut self) {
        if self.runs.is_empty() {
            return;
        }
        let run = *self.chance.pick(&self.runs);
        let store = self.store.clone();
        let Ok(Some(row)) = store.read(|db| Table::<RunRow>::load(db, run)) else { return };
        let steps = store.read(|db| db.plan(row.plan)).ok().flatten().map_or(1, |plan| plan.steps.len());
        let to = self.chance.below(steps) as StepNo;
        let place = Arc::clone(&self.place);
        match (row.status().is_terminal(), self.chance.below(4)) {
            (false, 0 | 1) => {
                let _ = insist!(place, store.person().cancel_run(run));
            }
            (true, 0) => {
                let _ = insist!(place, store.person().rewind_run(run, to, None));
            }
            (true, 1) => {
                let new = store
                    .person()
                    .new_run(store.read(|db| db.plan(row.plan)).ok().flatten().expect("it has a plan"));
                if let Some(Created::New(run)) = insist!(place, store.person().fork_run(run, to, new.clone()))
                {
                    self.runs.push(run);
                    place.world.state().record.acknowledged.push(Acknowledged::Run(run));
                }
            }
            (true, _) => {
                let _ = insist!(place, store.person().resume_run(run, None));
            }
            _ => {
                let name: Arc<str> = "early/-1".into();
                let _ = insist!(place, store.person().signal(run, name.clone(), "{}".into()));
            }
        }
    }

    /// Answers what is asked, and sends the signals that are waited for: at leisure, but always in the end.
    async fn answer(&mut self, quiet: bool) {
        const MANY: usize = 1_000;
        let open = self.store.read(|db| {
            let mut open = Vec::new();
            for run in db.live_runs(None, MANY)? {
                open.extend(db.open_gates(run)?);
            }
            Ok(open)
        });
        for gate in open.unwrap_or_default() {
            if !quiet && !self.chance.one_in(3) {
                continue;
            }
            match gate.kind {
                GateKind::Question => self.answer_one(gate.id).await,
                GateKind::Signal => {
                    let (run, name) = (gate.run, Arc::clone(&gate.question));
                    let store = self.store.clone();
                    let _ = insist!(self.place, store.person().signal(run, name.clone(), "{}".into()));
                }
                GateKind::Time => {}
            }
        }
    }

    async fn answer_one(&mut self, gate: Id) {
        let yes = !self.chance.one_in(5);
        let text = ops::answer_text(if yes { "yes" } else { "no" }, None, yes);
        let store = self.store.clone();
        if let Some(outcome) = insist!(self.place, store.person().answer_gate(gate, text.clone()))
            && outcome.is_applied()
        {
            self.place.world.state().record.acknowledged.push(Acknowledged::Answer(gate, text));
        }
    }
}
