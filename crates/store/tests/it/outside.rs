//! Steps that no worker runs, on every store: signals and answers that come early, late or twice.

use std::sync::Arc;

use crate::common::evaluator::Plain;
use crate::common::*;
use sprag_lifecycle::{Plan, PlanStep, RunId, WorkKind};
use sprag_store::Store;
use sprag_store::ops::{Signalled, answer_text};

/// Returns one step of work, then one that waits for this.
fn then(work: WorkKind, spec: &str) -> Arc<Plan> {
    let waits = PlanStep { work, spec: spec.into(), ..PlanStep::new("waits", vec![0]) };
    Arc::new(Plan::new("waits", vec![PlanStep::new("first", Vec::new()), waits]).unwrap())
}

async fn past_the_first(store: &Store, run: RunId) {
    let first = claim(store, 1).await;
    assert_eq!(first.lease.execution.run, run);
    finish(store, &first, well()).await;
}

#[test]
fn a_signal_that_comes_first_is_kept_and_taken_once() {
    on_every_store(|store, _| async move {
        let store = Plain::on(store);
        let run = create(&store, &then(WorkKind::Wait, r#"{"signal":"go"}"#)).await;
        let sent = store.person().signal(run, "go".into(), "1".into()).await.unwrap();
        assert_eq!(sent, Signalled::Kept);
        past_the_first(&store, run).await;
        assert_eq!(status(&store, run), "completed");

        let next = create(&store, &then(WorkKind::Wait, r#"{"signal":"go"}"#)).await;
        past_the_first(&store, next).await;
        assert_eq!(status(&store, next), "running", "another run's signal is not this one's");
        let sent = store.person().signal(next, "go".into(), "2".into()).await.unwrap();
        assert_eq!(sent, Signalled::Received(1));
        assert_eq!(status(&store, next), "completed");
    });
}

#[test]
fn a_question_is_answered_once() {
    on_every_store(|store, _| async move {
        let store = Plain::on(store);
        let run = create(&store, &then(WorkKind::Gate, r#"{"gate_ms":60000}"#)).await;
        past_the_first(&store, run).await;
        let gate = look(&store, |db| db.open_gates(run)).pop().expect("it asks").id;
        assert!(store.person().answer_gate(gate, answer_text("yes", None, true)).await.unwrap().is_applied());
        assert!(
            !store.person().answer_gate(gate, answer_text("no", None, false)).await.unwrap().is_applied()
        );
        assert_eq!(status(&store, run), "completed");
    });
}
