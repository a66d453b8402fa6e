//! The same random histories on memory, SQLite and PostgreSQL leave the same traces.

use std::sync::Arc;

use crate::common::evaluator::Plain;
use crate::common::*;
use serde_json::json;
use sprag_lifecycle::{
    Backoff, Condition, OnFail, Plan, PlanStep, Policy, RunId, RunStatus, Spread, StepNo, Word, WorkKind,
};
use sprag_store::testing::RawStore;
use sprag_store::{Ending, GateKind, Lease, Manual, Row, Store, answer_text, mix};

const SEEDS: u64 = 200;
const NIGHTLY_SEEDS: u64 = 5_000;

struct Chance(u64);

impl Chance {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0) % n as u64) as usize
    }
}

fn random_plan(chance: &mut Chance, depth: usize) -> Arc<Plan> {
    let n = 1 + chance.below(6 - 2 * depth);
    let steps = (0..n).map(|no| {
        let needs: Vec<StepNo> = (0..no as StepNo).filter(|_| chance.below(2) == 0).collect();
        let on_fail = match chance.below(5) {
            0 => OnFail::Continue,
            1 if !needs.is_empty() => OnFail::Rework { step: needs[0], max: 1 },
            _ => OnFail::Fail,
        };
        let policy = Policy {
            attempts: 1 + chance.below(3) as u32,
            backoff: Backoff { delay_ms: [0, 10][chance.below(2)], ..Backoff::default() },
            on_fail,
            always: chance.below(5) == 0,
            at_most_once: chance.below(6) == 0,
            ..Policy::default()
        };
        dressed(chance, step(no, &needs, policy), depth)
    });
    Arc::new(Plan::new("random", steps.collect()).unwrap())
}

/// Makes a step a fan-out, a gate, a wait or a child run, or gives it a condition; or leaves it as it is.
fn dressed(chance: &mut Chance, mut step: PlanStep, depth: usize) -> PlanStep {
    let mut spec = json!({ "items": chance.below(5) });
    if chance.below(4) == 0 {
        let max_parallel = (chance.below(2) == 0).then(|| 1 + chance.below(2) as u32);
        step.spread = Some(Spread { max_parallel, fail_fast: chance.below(3) == 0, open: false });
    }
    if chance.below(5) == 0 {
        step.condition = if step.spread.is_some() { Condition::Item } else { Condition::Step };
        if chance.below(2) == 0 {
            spec["when"] = json!(chance.below(2) == 0);
        }
    }
    step.work = match chance.below(10) {
        0 => {
            spec["gate_ms"] = json!(10);
            WorkKind::Gate
        }
        1 => {
            spec["pause_ms"] = json!(10);
            WorkKind::Wait
        }
        2 => {
            spec["signal"] = json!("go");
            WorkKind::Wait
        }
        3 if depth < 2 => {
            spec["child"] = json!(*random_plan(chance, depth + 1));
            WorkKind::Child
        }
        4 => WorkKind::Task,
        _ => WorkKind::Execution,
    };
    step.spec = spec.to_string();
    step
}

/// Plays one random history; what it is depends on the seed alone.
async fn play(store: &Store, clock: &Manual, seed: u64) -> Vec<String> {
    let mut chance = Chance(seed);
    let runs: Vec<RunId> = (0..1 + chance.below(3) as i64).map(|n| RunId::from_i64(1000 + n)).collect();
    for run in &runs {
        let mut new = named(run.to_i64(), &random_plan(&mut chance, 0));
        new.priority = chance.below(3) as i32;
        store.person().create_run(new).await.unwrap();
    }
    let mut held: Vec<Lease> = Vec::new();
    let mut answers = Vec::new();
    for _ in 0..90 {
        let run = runs[chance.below(runs.len())];
        let lease = (!held.is_empty()).then(|| held[chance.below(held.len())]);
        match (chance.below(17), lease) {
            (0..=3, _) => {
                let worker = chance.below(3) as i64 + 1;
                let got = store.claims().claim(claimer(worker), 1 + chance.below(2)).await.unwrap();
                held.extend(got.iter().map(|assignment| assignment.lease));
                answers.push(format!("claimed {:?}", got.iter().map(|a| a.lease).collect::<Vec<_>>()));
            }
            (4..=6, Some(lease)) => {
                let ending = match chance.below(5) {
                    0 => badly(),
                    1 => Ending::TimedOut { result: None },
                    _ => well(),
                };
                let next = (chance.below(2) == 0).then(|| claimer(1));
                let finished = store.worker(lease).finish(ending, next).await.unwrap();
                held.extend(finished.next.as_ref().map(|assignment| assignment.lease));
                answers.push(format!("finished {:?} {:?}", finished.outcome, finished.next.map(|a| a.lease)));
            }
            (7, Some(lease)) => {
                answers.push(format!("released {:?}", store.worker(lease).release().await.unwrap()))
            }
            (8, Some(lease)) => {
                answers.push(format!("owner died {:?}", store.reaper().owner_died(lease).await.unwrap()));
            }
            (8, None) => {
                answers.push(format!("cancelled {:?}", store.person().cancel_run(run).await.unwrap()))
            }
            (9, _) => {
                answers.push(format!("resumed {:?}", store.person().resume_run(run, None).await.unwrap()))
            }
            (10, _) => {
                clock.advance(10);
                let due = store.read(|db| db.timers_due(i64::MAX, 10)).unwrap();
                for timer in due {
                    let fired = store.executor().timer_fired(timer.execution).await.unwrap();
                    answers.push(format!("timer {fired:?}"));
                }
            }
            (11, _) => answers.push(answer(store, run, chance.below(4) > 0).await),
            (12, _) => {
                let ended = RunStatus::parse(&status(store, run)).is_some_and(RunStatus::is_terminal);
                if !ended {
                    let sent = store.person().signal(run, "go".into(), "{}".into()).await.unwrap();
                    answers.push(format!("signalled {sent:?}"));
                }
            }
            (13 | 14, _) => {
                for row in store.read(|db| db.outbox_due(i64::MAX, 3)).unwrap() {
                    answers.push(format!("effect {} {}", row.kind, row.payload));
                    let payload: serde_json::Value = serde_json::from_str(&row.payload).unwrap();
                    if let Some(step) = payload["step"].as_u64() {
                        store.executor().look_at_step(row.run, step as StepNo).await.unwrap();
                    }
                    store.executor().effect_done(row.id).await.unwrap();
                }
            }
            (15, _) if chance.below(3) == 0 => {
                let rewound = store.person().rewind_run(run, 0, None).await.unwrap();
                answers.push(format!("rewound {rewound:?}"));
            }
            _ => {
                store.executor().heal_run(run).await.unwrap();
                answers.push("healed".into());
            }
        }
    }
    answers.extend(story(store));
    let live = store.read(|db| db.live_runs(None, 100)).unwrap();
    answers.push(format!("live {live:?}"));
    for run in runs.iter().chain(&live) {
        let (steps, executions, refusals) =
            store.read(|db| Ok((db.steps(*run)?, db.executions(*run)?, db.refusals(*run)?))).unwrap();
        answers.push(format!("{steps:?} {executions:?} {refusals:?}"));
        let (gates, children) = store.read(|db| Ok((db.open_gates(*run)?, db.children(*run)?))).unwrap();
        answers.push(format!("{gates:?} {children:?}"));
        answers.push(format!("{:?}", store.read(|db| db.runs(None, &[], 10)).unwrap()));
        assert!(steps.iter().all(|step| step.version() > 0));
    }
    answers
}

/// Answers the oldest question of a run, if it has one.
async fn answer(store: &Store, run: RunId, yes: bool) -> String {
    let gates = store.read(|db| db.open_gates(run)).unwrap();
    match gates.into_iter().find(|gate| gate.kind == GateKind::Question) {
        Some(gate) => {
            let text = answer_text(if yes { "yes" } else { "no" }, None, yes);
            format!("answered {:?}", store.person().answer_gate(gate.id, text).await.unwrap())
        }
        None => "no question".into(),
    }
}

#[test]
fn the_same_history_leaves_the_same_trace_in_every_store() {
    let seeds = if std::env::var_os("SPRAG_NIGHTLY").is_some() { NIGHTLY_SEEDS } else { SEEDS };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut transitions = 0;
    for seed in 0..seeds {
        let mut traces = Vec::new();
        let stores = Stores::new();
        for (name, store) in &stores.all {
            let clock = Arc::new(Manual::new(1_800_000_000_000, seed));
            let store = match *name {
                "memory" => Store::in_memory(clock.clone(), Arc::new(Manual::new(0, seed))),
                "postgres" => {
                    let database = sprag_testkit::Postgres::shared().database();
                    let chance = Arc::new(Manual::new(0, seed));
                    Store::open_postgres_with(&database.url, Some(clock.clone()), chance).unwrap()
                }
                _ => {
                    let folder = store.path().unwrap().parent().unwrap().join("again");
                    let options = sprag_store::SqliteOptions::simulated();
                    Store::open_with(&folder, options, clock.clone(), Arc::new(Manual::new(0, seed))).unwrap()
                }
            };
            let store = Plain::on(store);
            traces.push((*name, runtime.block_on(play(&store, &clock, seed))));
        }
        let (_, expected) = &traces[0];
        transitions += expected.len();
        for (name, trace) in &traces[1..] {
            for (at, (left, right)) in expected.iter().zip(trace).enumerate() {
                assert_eq!(left, right, "seed {seed}: {name} differs from memory at line {at}");
            }
            assert_eq!(expected.len(), trace.len(), "seed {seed}: {name}");
        }
    }
    println!("figure: stores: {seeds} seeds, {transitions} lines of trace, all equal");
}
