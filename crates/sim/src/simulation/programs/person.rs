//! A person: starts runs, answers gates, sends signals, cancels and resumes.

use std::sync::Arc;
use std::time::Duration;

use sprag_lifecycle::{Plan, RunId, RunStatus, StepNo};
use sprag_store::testing::{RawStore, ops};
use sprag_store::{Created, GateKind, Id, Row, Store};

use super::super::draw::Scenario;
use super::super::record::Acknowledged;
use super::super::verdict::has_process;
use super::super::world::ProgramHandle;
use crate::graphs::Chance;

/// The requests of one person: the plans to run, and the rate of changes of mind.
#[derive(Debug, Clone, Default)]
pub struct PersonPlan {
    pub plans: Vec<Arc<Plan>>,
    pub restless: usize,
}

struct Person {
    handle: Arc<ProgramHandle>,
    store: Store,
    chance: Chance,
    runs: Vec<RunId>,
}

/// Acts until the faults end; from then on it only answers.
pub async fn act(handle: Arc<ProgramHandle>, scenario: Arc<Scenario>) {
    let chance = handle.world.chance(0x9e ^ handle.node as u64 ^ (u64::from(handle.life) << 8));
    let mut person = Person { store: handle.store(), handle, chance, runs: Vec::new() };
    let PersonPlan { mut plans, restless } = scenario.person_plan(person.handle.node);
    let mut made = 0;
    loop {
        person.pause(5_000).await;
        let quiet = person.handle.world.state().quiet;
        if let Some(plan) = plans.pop() {
            // After a crash the same idempotency key makes the repeated request safe.
            made += 1;
            person.create(plan, made).await;
            if plans.is_empty() {
                person.handle.world.state().record.done_persons.insert(person.handle.node);
            }
        } else if !quiet && restless > 0 && person.chance.below(100) < restless {
            person.change_mind().await;
        }
        if person.handle.world.options.serverless {
            person.cancel_some(quiet, restless).await;
        }
        person.answer(quiet).await;
    }
}

impl Person {
    async fn pause(&mut self, ms: usize) {
        let ms = 1 + self.chance.below(ms) as u64;
        self.handle.world.pause(Duration::from_millis(ms)).await;
    }

    async fn create(&mut self, plan: Arc<Plan>, number: usize) {
        let mut new = self.store.person().new_run(plan);
        new.priority = self.chance.below(3) as i32;
        let store = self.store.clone();
        // A run with a key is kept for longer than any of this lasts. One without is asked for once only: it may have ended
        // and be forgotten before the request is repeated.
        let asked = if self.chance.one_in(2) {
            let key: Arc<str> = format!("{}-{number}", self.handle.node).into();
            new.idempotency_key = Some(Arc::clone(&key));
            let asked = until_known!(self.handle, store.person().create_run(new.clone()));
            if let Some(Created::New(run) | Created::Existing(run)) = asked {
                self.handle.world.state().answers_key(&key, run);
            }
            asked
        } else {
            store.person().create_run(new).await.ok()
        };
        if let Some(Created::New(run) | Created::Existing(run)) = asked {
            self.runs.push(run);
            self.handle.world.state().record.acknowledged.push(Acknowledged::Run(run));
        }
    }

    async fn change_mind(&mut self) {
        if self.runs.is_empty() {
            return;
        }
        let run = *self.chance.pick(&self.runs);
        let store = self.store.clone();
        let Ok(Some(row)) = store.queries().run(run) else { return };
        let steps = store.read(|db| db.plan(row.plan)).ok().flatten().map_or(1, |plan| plan.steps.len());
        let to = self.chance.below(steps) as StepNo;
        let handle = Arc::clone(&self.handle);
        match (row.status().is_terminal(), self.chance.below(4)) {
            (false, 0 | 1) => {
                let _ = until_known!(handle, store.person().cancel_run(run));
            }
            (true, 0) => {
                let _ = until_known!(handle, store.person().rewind_run(run, to, None));
            }
            (true, 1) => {
                // Retention may have deleted the run since the query.
                let Some(plan) = store.read(|db| db.plan(row.plan)).ok().flatten() else { return };
                let mut new = store.person().new_run(plan);
                // A fork can end at once, and be deleted before its request is repeated.
                new.idempotency_key = Some(format!("fork-{}", new.id).into());
                if let Some(Created::New(run)) =
                    until_known!(handle, store.person().fork_run(run, to, new.clone()))
                {
                    self.runs.push(run);
                    handle.world.state().record.acknowledged.push(Acknowledged::Run(run));
                }
            }
            (true, _) => {
                let _ = until_known!(handle, store.person().resume_run(run, None));
            }
            _ => {
                let name: Arc<str> = "early/-1".into();
                let _ = until_known!(handle, store.person().signal(run, name.clone(), "{}".into()));
            }
        }
    }

    /// Cancels a run now and then. At the end, cancels every run without a process.
    async fn cancel_some(&mut self, quiet: bool, restless: usize) {
        const MANY: usize = 1_000;
        let live = self.store.queries().live_runs(None, MANY).unwrap_or_default();
        for run in live {
            let wanted = if quiet {
                !has_process(&self.handle.world, run)
            } else {
                self.chance.below(1_000) < restless
            };
            let row = self.store.queries().run(run).ok().flatten();
            if wanted && row.is_some_and(|row| row.status() != RunStatus::Cancelling) {
                let store = self.store.clone();
                let _ = until_known!(self.handle, store.person().cancel_run(run));
            }
        }
    }

    /// Answers gates and sends the expected signals: with delays, but always at the end.
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
                GateKind::Question => self.answer_one(gate.run, gate.id).await,
                GateKind::Signal => {
                    let (run, name) = (gate.run, Arc::clone(&gate.question));
                    let store = self.store.clone();
                    let _ = until_known!(self.handle, store.person().signal(run, name.clone(), "{}".into()));
                }
                GateKind::Time => {}
            }
        }
    }

    async fn answer_one(&mut self, run: RunId, gate: Id) {
        let yes = !self.chance.one_in(5);
        let text = ops::answer_text(if yes { "yes" } else { "no" }, None, yes);
        let store = self.store.clone();
        if let Some(outcome) = until_known!(self.handle, store.person().answer_gate(gate, text.clone()))
            && outcome.is_applied()
        {
            self.handle.world.state().record.acknowledged.push(Acknowledged::Answer(run, gate, text));
        }
    }
}
