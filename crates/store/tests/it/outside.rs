//! Steps that no worker runs, on every store: signals and answers that come early, late or twice.

use std::sync::Arc;

use crate::common::evaluator::Plain;
use crate::common::*;
use sprag_lifecycle::{Plan, PlanStep, Policy, RunId, WorkKind};
use sprag_store::testing::Table;
use sprag_store::{Author, Error, RunRow, Signalled, StepRow, Store, acting_as, answer_text};

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

#[test]
fn i02_the_starter_of_a_run_does_not_answer_a_question_for_others() {
    on_every_store(|store, _| async move {
        let store = Plain::on(store);
        let spec = r#"{"gate_ms":60000,"answer_by":["ada","ci"],"not_by":"starter"}"#;
        let plan = then(WorkKind::Gate, spec);
        let run = acting_as(Author::token("ci"), create(&store, &plan)).await;
        past_the_first(&store, run).await;
        let gate = look(&store, |db| db.open_gates(run)).pop().expect("it asks").id;
        let answer = async |author: Author| {
            let answer = store.person().answer_gate(gate, answer_text("yes", None, true));
            acting_as(author, answer).await
        };
        for other in [Author::token("ci"), Author::token("bo"), Author::agent("ada"), Author::rule("ada")] {
            match answer(other.clone()).await {
                Err(Error::Forbidden { why }) => assert!(why.contains("ada or ci, not the starter"), "{why}"),
                answered => panic!("{other} answers: {answered:?}"),
            }
        }
        assert_eq!(status(&store, run), "running");
        assert!(answer(Author::token("ada")).await.unwrap().is_applied());
        assert_eq!(status(&store, run), "completed");
    });
}

#[test]
fn a_child_that_is_tried_again_is_told_of_its_first_failure() {
    on_every_store(|store, _| async move {
        let store = Plain::on(store);
        let inner = serde_json::to_value(&*sequence(2)).unwrap();
        let spec = serde_json::json!({ "child": inner }).to_string();
        let policy = Policy { attempts: 2, ..Policy::default() };
        let step = PlanStep { work: WorkKind::Child, spec, policy, ..PlanStep::new("child", Vec::new()) };
        let run = create(&store, &Arc::new(Plan::new("parent", vec![step]).unwrap())).await;
        let held = claim(&store, 1).await;
        let child = held.lease.execution.run;
        finish(&store, &held, badly()).await;
        store.executor().look_at_step(run, 0).await.unwrap();
        let row = look(&store, |db| Table::<StepRow>::load(db, (run, 0))).expect("the step");
        let feedback = row.feedback.expect("the reason of the second try");
        let expected =
            format!("its run {child} did not succeed: step `{}` failed: exit code", sequence(2).step(0).id);
        assert!(feedback.contains(&expected), "{feedback}");
    });
}

/// A child run whose plan is gone cannot be resumed. That is no failure of the step which waits for it: the whole
/// operation is undone, the caller is told of the damage, and a metric counts it.
#[test]
fn a_damaged_child_run_is_a_bug_and_not_a_failure_of_its_step() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Plain::on(Store::open(folder.path()).unwrap());
        let inner = serde_json::to_value(&*sequence(1)).unwrap();
        let spec = serde_json::json!({ "child": inner }).to_string();
        let step = PlanStep { work: WorkKind::Child, spec, ..PlanStep::new("child", Vec::new()) };
        let run = create(&store, &Arc::new(Plan::new("parent", vec![step]).unwrap())).await;
        let held = claim(&store, 1).await;
        let child = held.lease.execution.run;
        finish(&store, &held, badly()).await;
        store.executor().look_at_step(run, 0).await.unwrap();
        assert_eq!((status(&store, run), status(&store, child)), ("failed".into(), "failed".into()));
        let plan = look(&store, |db| Table::<RunRow>::load(db, child)).expect("the child").plan;
        drop(store);

        let file = rusqlite::Connection::open(folder.path().join(sprag_store::FILE_NAME)).unwrap();
        // The damage is what foreign keys would prevent.
        file.pragma_update(None, "foreign_keys", false).unwrap();
        assert_eq!(file.execute("DELETE FROM plans WHERE hash = ?1", [plan]).unwrap(), 1);
        drop(file);

        let store = Plain::on(Store::open(folder.path()).unwrap());
        let (entries, bugs) = (journal(&store).len(), sprag_store::bugs());
        let resumed = store.person().resume_run(run, None).await;
        assert!(matches!(resumed, Err(Error::Bug(_))), "{resumed:?}");
        assert!(sprag_store::bugs() > bugs);
        assert_eq!((status(&store, run), journal(&store).len()), ("failed".into(), entries));
    });
}
