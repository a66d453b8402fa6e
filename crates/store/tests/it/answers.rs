//! Large specs are evaluated outside the writer, and an answer counts only for the values that were evaluated.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use sprag_lifecycle::{Condition, Plan, PlanStep};
use sprag_store::{Answer, Prepared, Question, SpecError, SpecEvaluator, Store};

use crate::common::*;

/// The longest wait of a test for something that happens at once.
const SOON: Duration = Duration::from_secs(60);

/// An evaluator for which every condition is much work. Each evaluation reports that it has begun and waits for a permit.
/// The condition is whether step `s0` is done.
#[derive(Debug)]
struct Slow {
    begun: SyncSender<()>,
    permits: Mutex<Receiver<()>>,
    evaluations: AtomicUsize,
}

impl SpecEvaluator for Slow {
    fn wanted(&self, _: &PlanStep, names: &Value) -> Result<bool, SpecError> {
        self.evaluations.fetch_add(1, Ordering::Relaxed);
        self.begun.send(()).expect("the test listens");
        self.permits.lock().unwrap().recv_timeout(SOON).expect("a permit");
        Ok(names["steps"]["s0"]["status"] == "done")
    }

    fn items(&self, _: &PlanStep, _: &Value) -> Result<Vec<Value>, SpecError> {
        Ok(Vec::new())
    }

    fn prepare(&self, _: &PlanStep, _: &Value) -> Result<Prepared, SpecError> {
        Err(SpecError::new("there is nothing to prepare"))
    }

    fn answer_at_once(&self, _: Question, _: &PlanStep, _: &Value) -> Option<Result<Answer, SpecError>> {
        None
    }
}

/// Returns a plan in which `s0` and `s1` start at once, `s2` needs `s1`, and its condition reads `s0`.
fn plan() -> Arc<Plan> {
    let asks = PlanStep { condition: Condition::Step, reads: vec![0], ..step(2, &[1], tries(1)) };
    Arc::new(Plan::new("asks", vec![step(0, &[], tries(1)), step(1, &[], tries(1)), asks]).unwrap())
}

/// While one operation waits for its answer, another commits; the answer for the former values is not used.
#[test]
fn e03_a_condition_is_evaluated_outside_the_writer_and_again_if_its_values_change() {
    for (name, store) in &Stores::new().all[1..] {
        println!("on {name}");
        let (begun, begins) = sync_channel(16);
        let (permit, permits) = sync_channel(16);
        let evaluator =
            Arc::new(Slow { begun, permits: Mutex::new(permits), evaluations: AtomicUsize::new(0) });
        let store: Store = store.clone().with_evaluator(evaluator.clone());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let run = runtime.block_on(create(&store, &plan()));
        let mut claimed = runtime.block_on(store.claims().claim(claimer(1), 2)).unwrap();
        claimed.sort_by_key(|assignment| assignment.node);
        let [first, second] = <[_; 2]>::try_from(claimed).unwrap();
        // The end of `s1` makes the store ask about `s2`.
        let waits = {
            let store = store.clone();
            runtime.spawn(async move { finish(&store, &second, well()).await })
        };
        begins.recv_timeout(SOON).expect("the first evaluation begins");
        // The writer is free: the end of `s0` is committed while the evaluation goes on.
        let done =
            runtime.block_on(async { tokio::time::timeout(SOON, finish(&store, &first, well())).await });
        assert!(done.is_ok(), "the writer waited for an evaluation");
        for _ in 0..8 {
            permit.send(()).unwrap();
        }
        runtime.block_on(async { tokio::time::timeout(SOON, waits).await }).expect("soon").unwrap();
        assert_eq!(steps(&store, run)[2], "pending", "it waits for a worker: s0 was done when s1 ended");
        assert!(evaluator.evaluations.load(Ordering::Relaxed) >= 2, "the second time for other values");
    }
}
