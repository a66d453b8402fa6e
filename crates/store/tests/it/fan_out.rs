//! Fan-outs, gates and child runs combined with resumes, reworks and timers: the smallest histories on which
//! random graphs once failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::evaluator::Plain;
use crate::common::*;
use serde_json::json;
use sprag_lifecycle::{
    Condition, ExecutionId, OnFail, Plan, PlanStep, Policy, RunId, Spread, StepNo, WorkKind,
};
use sprag_store::{Assignment, Ending, Entropy, Manual, Store};

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

/// Runs the effects in the outbox: children notify their parents.
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
fn p14_resumed_items_respect_the_limit_of_live_items() {
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
fn p14_a_fail_fast_fan_out_starts_no_item_after_a_failure() {
    on_every_store(|store, _| async move {
        let store = Plain::on(store);
        let spread = Some(Spread { max_parallel: Some(1), fail_fast: true, open: false });
        let run = create(&store, &plan(vec![PlanStep { spread, ..fan_out(4, None) }])).await;
        let first = claim_all(&store).await;
        assert_eq!(first.len(), 1);
        finish(&store, &first[0], badly()).await;
        assert!(claim_all(&store).await.is_empty(), "an item starts after another one failed");
        assert_eq!(status(&store, run), "failed");
    });
}

#[test]
fn p16_a_fan_out_that_is_skipped_later_skips_its_items() {
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
fn p16_a_successful_always_fan_out_runs_again_after_a_resume() {
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
fn p13_a_rework_does_not_stop_running_always_steps() {
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
fn p13_a_rework_waits_for_running_always_steps() {
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
async fn i25_children_created_in_one_millisecond_have_different_ids() {
    let clock = Arc::new(Manual::new(1_800_000_000_000, 1));
    let store = Plain::on(Store::in_memory(clock, Arc::new(Stuttering(AtomicU64::new(3)))));
    let step = PlanStep { spread: Some(Spread::default()), ..child(&sequence(1)) };
    let created = store.person().create_run(named(1, &plan(vec![step]))).await;
    assert!(created.is_ok(), "{created:?}");
    assert_eq!(look(&store, |db| db.children(RunId::from_i64(1))).len(), 2);
}

/// Returns a failed ending that only a person can unblock.
fn blocked() -> Ending {
    Ending::Blocked { result: Some(r#"{"reason":"blocked"}"#.into()) }
}

/// Returns a policy with three tries and then a rework of the first step.
fn persistent() -> Policy {
    Policy { attempts: 3, on_fail: OnFail::Rework { step: 0, max: 2 }, ..Policy::default() }
}

#[test]
fn e09_a_blocked_failure_is_neither_tried_again_nor_reworked_and_a_resume_tries_again() {
    on_every_store(|store, _| async move {
        let store = Plain::on(store);
        let lands = PlanStep { policy: persistent(), ..PlanStep::new("land", vec![0]) };
        let each = PlanStep { needs: vec![0], policy: persistent(), ..fan_out(2, None) };
        let of = Plan::new("lands", vec![PlanStep::new("land", Vec::new())]).unwrap();
        let inner = PlanStep { needs: vec![0], policy: persistent(), ..child(&of) };
        for (what, last) in [("a step", lands), ("a fan-out", each), ("a child run", inner)] {
            let run = create(&store, &plan(vec![PlanStep::new("work", Vec::new()), last])).await;
            finish(&store, &claim(&store, 1).await, well()).await;
            for assignment in claim_all(&store).await {
                finish(&store, &assignment, blocked()).await;
            }
            relay(&store).await;
            assert_eq!(claim_all(&store).await.len(), 0, "{what}: nothing is done again");
            assert_eq!(
                (status(&store, run), steps(&store, run).remove(1)),
                ("failed".into(), "failed".into())
            );
            assert!(store.person().resume_run(run, None).await.unwrap().is_applied());
            let again = claim_all(&store).await;
            assert!(!again.is_empty(), "{what}");
            for assignment in again {
                finish(&store, &assignment, well()).await;
            }
            relay(&store).await;
            assert_eq!(status(&store, run), "completed", "{what}");
        }
    });
}

#[test]
fn a_fan_out_with_an_ordinary_failure_beside_a_blocked_one_is_reworked() {
    on_every_store(|store, _| async move {
        let store = Plain::on(store);
        let policy = Policy { on_fail: OnFail::Rework { step: 0, max: 1 }, ..Policy::default() };
        let each = PlanStep { needs: vec![0], policy, ..fan_out(2, None) };
        create(&store, &plan(vec![PlanStep::new("work", Vec::new()), each])).await;
        finish(&store, &claim(&store, 1).await, well()).await;
        let items = claim_all(&store).await;
        finish(&store, &items[0], blocked()).await;
        finish(&store, &items[1], badly()).await;
        let again = claim(&store, 1).await;
        assert_eq!(again.lease.execution.step, 0, "the first step is done again");
    });
}

/// Claims all that waits, fails what a first try at an item fails at, and returns how each start looks from outside.
async fn work_off_items(store: &Store, fails: impl Fn(&str) -> bool) -> Vec<(String, u32, u32)> {
    let mut starts = Vec::new();
    loop {
        let live = claim_all(store).await;
        if live.is_empty() {
            return starts;
        }
        for assignment in &live {
            let first = !starts.iter().any(|(name, ..)| *name == assignment.name);
            let fence = assignment.lease.fence;
            starts.push((assignment.name.clone(), assignment.lease.execution.attempt, fence));
            let ending = if first && fails(&assignment.name) { badly() } else { well() };
            finish(store, assignment, ending).await;
        }
    }
}

/// Checks that no start of an item looks like an earlier one from outside, and that its attempts grow.
fn assert_attempts_grow(starts: &[(String, u32, u32)]) {
    let mut last: std::collections::BTreeMap<&str, u32> = std::collections::BTreeMap::new();
    for (name, attempt, _) in starts {
        let before = last.insert(name, *attempt);
        assert!(before.is_none_or(|before| *attempt > before), "{name} starts again: {starts:?}");
    }
}

#[test]
fn i26_rewound_items_continue_counting_their_attempts() {
    on_every_store(|store, _| async move {
        let store = Plain::on(store);
        let each = PlanStep { policy: tries(2), ..fan_out(3, Some(2)) };
        let run = create(&store, &plan(vec![each])).await;
        let mut starts = work_off_items(&store, |name| name == "each[1]").await;
        for _ in 0..2 {
            assert_eq!(status(&store, run), "completed");
            assert!(store.person().rewind_run(run, 0, None).await.unwrap().is_applied());
            starts.extend(work_off_items(&store, |name| name == "each[2]").await);
        }
        assert_eq!((status(&store, run), starts.len()), ("completed".into(), 12));
        assert_attempts_grow(&starts);
    });
}

#[test]
fn i26_reworked_items_continue_counting_their_attempts() {
    on_every_store(|store, _| async move {
        let store = Plain::on(store);
        let rework = Policy { on_fail: OnFail::Rework { step: 0, max: 1 }, ..Policy::default() };
        let check = PlanStep { policy: rework, ..PlanStep::new("check", vec![0]) };
        let run = create(&store, &plan(vec![fan_out(2, None), check])).await;
        let starts = work_off_items(&store, |name| name == "check").await;
        assert_eq!((status(&store, run), starts.len()), ("completed".into(), 6));
        assert_attempts_grow(&starts);
    });
}

#[test]
fn i26_items_that_are_resumed_after_a_rewind_wait_for_their_turn() {
    on_every_store(|store, _| async move {
        let store = Plain::on(store);
        let run = create(&store, &plan(vec![fan_out(4, Some(2))])).await;
        let mut starts = work_off_items(&store, |_| false).await;
        assert!(store.person().rewind_run(run, 0, None).await.unwrap().is_applied());
        starts.extend(work_off_items(&store, |_| true).await);
        assert_eq!(status(&store, run), "failed");
        assert!(store.person().resume_run(run, None).await.unwrap().is_applied());
        let again = claim_all(&store).await;
        assert_eq!(again.len(), 2, "no more at once than may be");
        for assignment in &again {
            let attempt = assignment.lease.execution.attempt;
            starts.push((assignment.name.clone(), attempt, assignment.lease.fence));
            finish(&store, assignment, well()).await;
        }
        starts.extend(work_off_items(&store, |_| false).await);
        assert_eq!((status(&store, run), starts.len()), ("completed".into(), 12));
        assert_attempts_grow(&starts);
    });
}
