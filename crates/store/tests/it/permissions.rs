//! Permissions of agents on every store: asked once, answered once, parked, expired.

use serde_json::json;
use sprag_lifecycle::{ExecutionId, GateStatus, RunId};
use sprag_store::{
    Assignment, Author, Ending, GateRow, PermissionAsk, PermissionState, Row, Store, answer_text,
};

use crate::common::*;

const HOUR_MS: i64 = 3_600_000;

fn request(key: &str, request: &str) -> PermissionAsk {
    PermissionAsk {
        key: key.to_owned(),
        request: request.to_owned(),
        ask: format!("robot asks for permission: {key}"),
        details: json!({ "tool": "Bash" }),
        timeout_ms: HOUR_MS as u64,
    }
}

async fn ask(store: &Store, held: &Assignment, key: &str, id: &str) -> PermissionState {
    store.worker(held.lease).ask_permission(request(key, id)).await.unwrap()
}

fn open(store: &Store, run: RunId) -> Vec<GateRow> {
    store.queries().open_questions(run).unwrap()
}

async fn answer(store: &Store, run: RunId, approved: bool) {
    let gate = open(store, run).pop().expect("an open question");
    let text = answer_text("allow", Some("fine"), approved);
    assert!(store.person().answer_gate(gate.id, text).await.unwrap().is_applied());
}

fn answered(approved: bool) -> PermissionState {
    PermissionState::Answered { approved, comment: Some("fine".to_owned()) }
}

async fn claimed(store: &Store) -> Vec<Assignment> {
    store.claims().claim(claimer(1), 10).await.unwrap()
}

#[test]
fn t05_an_answer_belongs_to_one_request_and_survives_its_worker() {
    on_every_store(|store, clock| async move {
        let run = create(&store, &graph(&[&[]], |_| tries(1))).await;
        let held = claim(&store, 1).await;
        assert_eq!(ask(&store, &held, "ls", "1").await, PermissionState::Open);
        assert_eq!(
            ask(&store, &held, "ls", "1").await,
            PermissionState::Open,
            "a repeated call asks nothing new"
        );
        let first = open(&store, run);
        assert_eq!(first.len(), 1);
        // The worker dies. The question stays, and the next attempt waits for its answer without a worker.
        clock.advance(10 * 60_000);
        assert!(store.reaper().expire(held.lease).await.unwrap().is_applied());
        assert_eq!(open(&store, run), first);
        assert!(claimed(&store).await.is_empty(), "it is parked");
        assert_eq!(ask(&store, &held, "ls", "1").await, PermissionState::NotHeld, "the fence is old");
        answer(&store, run, true).await;
        let held = claimed(&store).await.pop().expect("the answer continues it");
        assert_eq!(held.lease.execution.attempt, 2);
        // The same request takes the answer, also if the reply was lost; another one asks again.
        assert_eq!(ask(&store, &held, "ls", "1").await, answered(true));
        assert_eq!(ask(&store, &held, "ls", "1").await, answered(true));
        assert_eq!(ask(&store, &held, "ls", "2").await, PermissionState::Open);
        answer(&store, run, false).await;
        assert_eq!(ask(&store, &held, "ls", "2").await, answered(false));
        // A further question replaces the one before it, and ends with the step.
        assert_eq!(ask(&store, &held, "rm", "3").await, PermissionState::Open);
        assert_eq!(ask(&store, &held, "mv", "4").await, PermissionState::Open);
        assert_eq!(open(&store, run).len(), 1, "a step asks one question at a time");
        assert!(finish(&store, &held, well()).await.outcome.is_applied());
        assert!(open(&store, run).is_empty());
        assert_eq!(status(&store, run), "completed");
    });
}

#[test]
fn t05_a_parked_step_continues_with_the_answer_or_fails_without_one() {
    on_every_store(|store, clock| async move {
        let plan = graph(&[&[]], |_| tries(3));
        let (run, late) = (create(&store, &plan).await, create(&store, &plan).await);
        for held in claimed(&store).await {
            assert_eq!(ask(&store, &held, "ls", "1").await, PermissionState::Open);
            assert!(finish(&store, &held, Ending::Parked).await.outcome.is_applied());
        }
        assert!(claimed(&store).await.is_empty(), "both wait without a worker");
        store.executor().heal_run(run).await.unwrap();
        assert!(claimed(&store).await.is_empty());
        answer(&store, run, true).await;
        let held = claimed(&store).await.pop().expect("the answer continues it");
        assert_eq!((held.lease.execution.run, held.lease.execution.attempt), (run, 1), "no try is lost");
        assert_eq!(ask(&store, &held, "ls", "9").await, answered(true));
        store.worker(held.lease).withdraw_permission().await.unwrap();
        assert!(finish(&store, &held, well()).await.outcome.is_applied());
        // Without an answer in time, the timer fails the other one, and no attempt follows.
        let gate = open(&store, late).pop().expect("an open question").id;
        clock.advance(HOUR_MS + 1);
        let timer = ExecutionId { run: late, step: 0, attempt: 1 };
        store.executor().timer_fired(timer).await.unwrap();
        assert_eq!(store.queries().gate(gate).unwrap().expect("a gate").status(), GateStatus::Expired);
        assert_eq!((status(&store, run).as_str(), status(&store, late).as_str()), ("completed", "failed"));
    });
}

#[test]
fn s19_a_steps_agent_writes_while_its_attempt_runs_and_not_after_it() {
    on_every_store(|store, clock| async move {
        let (run, other) = (
            create(&store, &graph(&[&[]], |_| tries(2))).await,
            create(&store, &graph(&[&[]], |_| tries(1))).await,
        );
        let mut all = claimed(&store).await;
        let theirs = all.iter().position(|held| held.lease.execution.run == other).map(|at| all.remove(at));
        let (held, theirs) = (all.pop().expect("an execution"), theirs.expect("an execution"));
        // Any write counts, whatever it is about: here a hold of a queue.
        let write = async |held: &Assignment| {
            let hold = store.executor().change_queue("q".into(), |_| {});
            sprag_store::acting_for_step(Author::agent("work"), held.lease, hold).await
        };
        let is_void = |done: sprag_store::Result<()>| matches!(done, Err(sprag_store::Error::Forbidden { why }) if why.contains("the attempt"));
        assert!(write(&held).await.is_ok() && write(&theirs).await.is_ok());
        // A request to stop ends it before the attempt has ended.
        assert!(store.person().cancel_run(other).await.unwrap().is_applied());
        assert!(is_void(write(&theirs).await));
        // The lease has lapsed: before the reaper sees it, and after.
        clock.advance(10 * 60_000);
        assert!(is_void(write(&held).await));
        assert!(store.reaper().expire(held.lease).await.unwrap().is_applied());
        assert!(is_void(write(&held).await));
        let second = claimed(&store).await.pop().expect("another attempt");
        assert_eq!(second.lease.execution.run, run);
        assert!(is_void(write(&held).await) && write(&second).await.is_ok());
        let forged = sprag_store::Lease { fence: second.lease.fence + 1, ..second.lease };
        assert!(is_void(write(&Assignment { lease: forged, ..second.clone() }).await));
        assert!(finish(&store, &second, well()).await.outcome.is_applied());
        assert!(is_void(write(&second).await));
    });
}
