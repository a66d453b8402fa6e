//! Fan-outs, gates and child runs where they meet resumes, reworks and timers: the smallest histories that
//! random graphs once failed on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::language::Plain;
use crate::common::*;
use serde_json::json;
use sprag_lifecycle::{
    Condition, ExecutionId, OnFail, Plan, PlanStep, Policy, RunId, Spread, StepNo, WorkKind,
};
use sprag_store::ops::Assignment;
use sprag_store::{Entropy, Manual, Store};

fn fan_out(items: u32, max_parallel: Option<u32>) -> PlanStep {
    PlanStep {
        spec: json!({ "items": items }).to_string(),
        spread: Some(Spread { max_parallel, fail_fast: false, open: false }),
        ..PlanStep::new("each", Vec::new())
    }
}

fn child(of: &Plan) -> PlanStep {
    let spec = json!({ "child": of, "items": 2 }).to_string();
    PlanStep { work: WorkKind::Child, spec, ..PlanStep::new("child", Vec::new()) }
}

fn plan(steps: Vec<PlanStep>) -> Arc<Plan> {
    Arc::new(Plan::new("test", steps).unwrap())
}

async fn claim_all(store: &Store) -> Vec<Assignment> {
    store.claims().claim(claimer(1), 100).await.unwrap()
}

/// Carries out the outbox: children tell their parents.
async fn relay(store: &Store) {
    for row in look(store, |db| db.outbox_due(i64::MAX, 100)) {
        let payload: serde_json::Value = serde_json::from_str(&row.payload).unwrap();
        if let Some(step) = payload["step"].as_u64() {
            store.executor().look_at_step(row.run, step as StepNo).await.unwrap();
        }
        store.executor().effect_done(row.id).await.unwrap();
    }
}

#[test]
fn p14_a_fan_out_whose_condition_has_no_answer_fails_even_without_items() {
    on_every_store(|store, _| async move {
        let store = Plain::on(store);
        let spec = json!({ "items": 0, "when": "no answer" }).to_string();
        let plan = plan(vec![PlanStep { spec, condition: Condition::Step, ..fan_out(0, None) }]);
        let run = create(&store, &plan).await;
        assert_eq!((status(&store, run), steps(&store, run)), ("failed".into(), vec!["failed".into()]));
    });
}

#[test]
fn p14_items_that_are_resumed_keep_to_what_may_be_live_at_once() {
    on_every_store(|store, _| async move {
        let store = Plain::on(store);
        let run = create(&store, &plan(vec![fan_out(5, Some(2))])).await;
        for round in 0..2 {
            let mut finished = 0;
            while finished < 5 {
                let live = claim_all(&store).await;
                assert!((1..=2).contains(&live.len()), "{} at once", live.len());
                for assignment in &live {
                    finish(&store, assignment, if round == 0 { badly() } else { well() }).await;
                }
                finished += live.len();
            }
            if round == 0 {
                assert_eq!(status(&store, run), "failed");
                assert!(store.person().resume_run(run, None).await.unwrap().is_applied());
            }
        }
        assert_eq!(status(&store, run), "completed");
    });
}

#[test]
fn p16_a_fan_out_that_is_not_wanted_any_more_takes_its_items_with_it() {
    on_every_store(|store, _| async move {
        let store = Plain::on(store);
        let spec = json!({ "items": 3, "first_attempt_only": true }).to_string();
        let step = PlanStep { spec, condition: Condition::Step, reads: vec![0], ..fan_out(3, None) };
        let run = create(&store, &plan(vec![step])).await;
        for assignment in claim_all(&store).await {
            finish(&store, &assignment, badly()).await;
        }
        assert!(store.person().resume_run(run, None).await.unwrap().is_applied());
        assert_eq!(status(&store, run), "completed");
        assert_eq!(steps(&store, run), ["skipped", "cancelled", "cancelled", "cancelled"]);
    });
}

#[test]
fn p16_an_always_fan_out_that_went_well_runs_again_as_any_always_step_does() {
    on_every_store(|store, _| async move {
        let store = Plain::on(store);
        let always = Policy { always: true, ..Policy::default() };
        let run = create(
            &store,
            &plan(vec![step(0, &[], Policy::default()), PlanStep { policy: always, ..fan_out(1, None) }]),
        )
        .await;
        for assignment in claim_all(&store).await {
            finish(&store, &assignment, if assignment.node == 0 { badly() } else { well() }).await;
        }
        assert_eq!(steps(&store, run), ["failed", "done", "done"]);
        assert!(store.person().resume_run(run, None).await.unwrap().is_applied());
        assert_eq!(claim_all(&store).await.iter().map(|a| a.node).collect::<Vec<_>>(), [0, 1]);
    });
}

#[test]
fn i10_a_child_that_is_resumed_is_bounded_again() {
    on_every_store(|store, _| async move {
        let store = Plain::on(store);
        let policy = Policy { timeout_ms: Some(1_000), ..Policy::default() };
        let run = create(&store, &plan(vec![PlanStep { policy, ..child(&sequence(1)) }])).await;
        finish(&store, &claim(&store, 1).await, badly()).await;
        relay(&store).await;
        assert_eq!(status(&store, run), "failed");
        assert!(store.person().resume_run(run, None).await.unwrap().is_applied());
        let timers = look(&store, |db| db.timers_due(i64::MAX, 10));
        assert!(timers.iter().any(|timer| timer.execution.attempt == 2), "{timers:?}");
    });
}

#[test]
fn i10_a_timer_that_fires_early_is_set_again() {
    on_every_store(|store, clock| async move {
        let store = Plain::on(store);
        let spec = json!({ "gate_ms": 50 }).to_string();
        let gate = PlanStep { work: WorkKind::Gate, spec, ..PlanStep::new("gate", Vec::new()) };
        let run = create(&store, &plan(vec![gate])).await;
        let id = ExecutionId { run, step: 0, attempt: 1 };
        assert!(!store.executor().timer_fired(id).await.unwrap());
        clock.advance(50);
        let due = look(&store, |db| db.timers_due(i64::MAX, 10));
        assert_eq!(due.len(), 1, "somebody must look when its time has come");
        assert!(store.executor().timer_fired(id).await.unwrap());
        assert_eq!(status(&store, run), "failed");
    });
}

#[test]
fn p13_what_was_begun_for_any_case_is_not_ended_by_a_rework() {
    on_every_store(|store, _| async move {
        // 1 sends 0 back while the always step 2 runs; then 3 fails, and nothing is sent back.
        let needs: [&[StepNo]; 4] = [&[], &[0], &[0], &[]];
        let plan = graph(&needs, |no| match no {
            1 => Policy { on_fail: OnFail::Rework { step: 0, max: 1 }, ..Policy::default() },
            2 => Policy { always: true, ..Policy::default() },
            _ => Policy::default(),
        });
        let run = create(&store, &plan).await;
        let first = claim_all(&store).await;
        finish(&store, &first[0], well()).await;
        let second = claim_all(&store).await;
        finish(&store, &second[0], badly()).await;
        let told = look(&store, |db| db.executions(run));
        assert!(told.iter().all(|row| !row.cancel_requested), "{told:?}");
        finish(&store, &first[1], badly()).await;
        finish(&store, &second[1], well()).await;
        assert_eq!(steps(&store, run), ["done", "failed", "done", "failed"]);
        assert_eq!(status(&store, run), "failed");
    });
}

#[test]
fn p13_a_rework_waits_for_what_was_begun_for_any_case() {
    on_every_store(|store, _| async move {
        let needs: [&[StepNo]; 3] = [&[], &[0], &[0]];
        let plan = graph(&needs, |no| match no {
            1 => Policy { on_fail: OnFail::Rework { step: 0, max: 1 }, ..Policy::default() },
            2 => Policy { always: true, ..Policy::default() },
            _ => Policy::default(),
        });
        let run = create(&store, &plan).await;
        finish(&store, &claim(&store, 1).await, well()).await;
        let both = claim_all(&store).await;
        finish(&store, &both[0], badly()).await;
        assert!(claim_all(&store).await.is_empty(), "the always step is still at it");
        finish(&store, &both[1], well()).await;
        finish(&store, &claim(&store, 1).await, well()).await;
        for assignment in claim_all(&store).await {
            finish(&store, &assignment, well()).await;
        }
        assert_eq!((status(&store, run), steps(&store, run)), ("completed".into(), vec!["done".into(); 3]));
    });
}

/// Draws every number three times.
#[derive(Debug)]
struct Stuttering(AtomicU64);

impl Entropy for Stuttering {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) / 3
    }
}

#[tokio::test]
async fn i25_children_made_in_one_millisecond_are_told_apart() {
    let clock = Arc::new(Manual::new(1_800_000_000_000, 1));
    let store = Plain::on(Store::in_memory(clock, Arc::new(Stuttering(AtomicU64::new(3)))));
    let step = PlanStep { spread: Some(Spread::default()), ..child(&sequence(1)) };
    let created = store.person().create_run(named(1, &plan(vec![step]))).await;
    assert!(created.is_ok(), "{created:?}");
    assert_eq!(look(&store, |db| db.children(RunId::from_i64(1))).len(), 2);
}
