//! Labels: which workers receive a step with labels.

use std::sync::Arc;

use crate::common::*;
use sprag_lifecycle::Plan;
use sprag_store::testing::ops::could_take;
use sprag_store::{NewWorker, Store};

/// Returns a plain step, then one that asks for two labels, then a plain one.
fn plan() -> Arc<Plan> {
    let mut plan = (*sequence(3)).clone();
    plan.steps[1].labels = vec!["gpu".into(), "linux".into()];
    Arc::new(plan)
}

async fn register(store: &Store, id: i64, labels: &str) {
    let new = NewWorker {
        id,
        name: format!("w{id}").into(),
        process: "".into(),
        queues: "default".into(),
        labels: labels.into(),
        slots: 1,
        lease_ms: 60_000,
    };
    store.claims().register(new).await.unwrap();
}

#[test]
fn a_step_goes_to_a_worker_that_has_all_it_asks_for() {
    on_every_store(|store, _| async move {
        for (id, labels) in [(1, ""), (2, "gpu"), (3, "linux,arm,gpu")] {
            register(&store, id, labels).await;
        }
        let run = create(&store, &plan()).await;
        let first = claim(&store, 1).await;
        // The report also receives the next step, but only for a worker that may run it: not for this one.
        let reported = store.worker(first.lease).finish(well(), Some(claimer(1))).await.unwrap();
        assert!(reported.outcome.is_applied() && reported.next.is_none(), "{reported:?}");
        for id in [1, 2, 4] {
            let got = store.claims().claim(claimer(id), 5).await.unwrap();
            assert!(got.is_empty(), "worker {id} has not what it takes: {got:?}");
        }
        let waiting = look(&store, |db| db.executions(run)).into_iter().find(|row| row.id.step == 1);
        let waiting = waiting.expect("the second step waits");
        let able: Vec<i64> = look(&store, |db| {
            let mut able = Vec::new();
            for worker in db.workers()? {
                if could_take(db, &worker, &waiting)? {
                    able.push(worker.id);
                }
            }
            Ok(able)
        });
        assert_eq!(able, [3]);
        let second = claim(&store, 3).await;
        assert_eq!(second.lease.execution, waiting.id);
        let reported = store.worker(second.lease).finish(well(), Some(claimer(3))).await.unwrap();
        let third = reported.next.expect("what asks for nothing is for anybody");
        finish(&store, &third, well()).await;
        assert_eq!(status(&store, run), "completed");
    });
}

#[test]
fn an_unclaimable_execution_does_not_block_those_behind_it() {
    on_every_store(|store, _| async move {
        register(&store, 1, "").await;
        for _ in 0..8 {
            let mut asking = (*sequence(1)).clone();
            asking.steps[0].labels = vec!["gpu".into()];
            create(&store, &Arc::new(asking)).await;
        }
        let behind = create(&store, &sequence(1)).await;
        assert_eq!(claim(&store, 1).await.lease.execution.run, behind);
    });
}

#[test]
fn a_reserved_execution_ignores_labels() {
    on_every_store(|store, _| async move {
        register(&store, 1, "").await;
        let mut new = store.person().new_run(plan());
        new.pin = Some(1);
        store.person().create_run(new).await.unwrap();
        let first = claim(&store, 1).await;
        let reported = store.worker(first.lease).finish(well(), Some(claimer(1))).await.unwrap();
        assert!(reported.next.is_some(), "`sprag run` does all steps of its run itself");
    });
}
