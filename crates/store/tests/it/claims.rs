//! Claims on every store: order, limits, leases, releases.

use crate::common::*;
use sprag_lifecycle::{Backoff, Policy, RunId, RunStatus, Word};
use sprag_store::testing::{Table, ops};
use sprag_store::{Created, Error, Lease, QueueRow, Renewal, StepRow};

/// Returns the runs of the executions that a worker receives, in order.
async fn claimed(store: &sprag_store::Store, most: usize) -> Vec<RunId> {
    let given = store.claims().claim(claimer(1), most).await.unwrap();
    given.iter().map(|assignment| assignment.lease.execution.run).collect()
}

/// Returns a plan of one step in a group whose runs are live one at a time.
fn in_a_group_of_one() -> std::sync::Arc<sprag_lifecycle::Plan> {
    let mut plan = (*sequence(1)).clone();
    let (group, on_conflict) = ("g".into(), Default::default());
    plan.concurrency = Some(sprag_lifecycle::Concurrency { group, limit: 1, on_conflict });
    std::sync::Arc::new(plan)
}

#[test]
fn c02_c03_claims_follow_needs_then_priority_then_age() {
    on_every_store(|store, clock| async move {
        let low = create(&store, &sequence(2)).await;
        clock.advance(5);
        let mut new = store.person().new_run(sequence(1));
        new.priority = 5;
        let Created::New(high) = store.person().create_run(new).await.unwrap() else { panic!() };
        clock.advance(5);
        let late = create(&store, &sequence(1)).await;
        let order = claimed(&store, 10).await;
        assert_eq!(order, [high, low, late], "the second step of the first run waits for its need");
        assert!(store.claims().claim(claimer(2), 10).await.unwrap().is_empty(), "a clean none, at once");
    });
}

#[test]
fn c06_once_the_lease_was_taken_away_its_token_is_refused() {
    on_every_store(|store, clock| async move {
        let run = create(&store, &graph(&[&[]], |_| tries(3))).await;
        let lost = claim(&store, 1).await;
        assert!(matches!(store.worker(lost.lease).renew(60_000).await.unwrap(), Renewal::Held { .. }));
        assert!(!store.reaper().expire(lost.lease).await.unwrap().is_applied(), "the lease is live");
        clock.advance(60_001);
        assert!(store.reaper().expire(lost.lease).await.unwrap().is_applied());
        assert!(!store.reaper().expire(lost.lease).await.unwrap().is_applied(), "once");
        assert_eq!(store.worker(lost.lease).renew(60_000).await.unwrap(), Renewal::Lost);
        assert!(!store.worker(lost.lease).release().await.unwrap().is_applied());
        assert!(!finish(&store, &lost, well()).await.outcome.is_applied());
        let next = claim(&store, 2).await;
        assert_eq!(next.lease.execution.attempt, 2, "lost work is tried again");
        assert!(finish(&store, &next, well()).await.outcome.is_applied());
        assert_eq!(status(&store, run), "completed");
        let kept = look(&store, |db| db.refusals(run));
        assert!(kept.iter().any(|refusal| refusal.event == "execution.completed"), "{kept:?}");
    });
}

#[test]
fn c08_a_backoff_is_enforced_when_claiming() {
    on_every_store(|store, clock| async move {
        let policy = Policy { backoff: Backoff { delay_ms: 1_000, ..Backoff::default() }, ..tries(2) };
        let run = create(&store, &graph(&[&[]], |_| policy.clone())).await;
        let first = claim(&store, 1).await;
        let _ = finish(&store, &first, badly()).await;
        assert_eq!(steps(&store, run), ["pending"]);
        let timers = look(&store, |db| db.timers_due(i64::MAX, 10));
        assert_eq!(timers.len(), 1);
        assert!(!store.executor().schedule(timers[0].execution).await.unwrap(), "too early");
        store.executor().heal_run(run).await.unwrap();
        assert!(store.claims().claim(claimer(1), 1).await.unwrap().is_empty(), "not before its time");
        clock.advance(1_000);
        assert!(store.executor().schedule(timers[0].execution).await.unwrap());
        assert!(look(&store, |db| db.timers_due(i64::MAX, 10)).is_empty());
        let second = claim(&store, 1).await;
        let _ = finish(&store, &second, well()).await;
        assert_eq!(status(&store, run), "completed");
    });
}

#[test]
fn c10_a_queue_and_a_group_hold_their_limits() {
    on_every_store(|store, _| async move {
        let queue = QueueRow { name: "default".into(), limit: Some(2), held: false };
        store.executor().set_queue(queue.clone()).await.unwrap();
        let run = create(&store, &graph(&[&[], &[], &[], &[]], |_| Policy::default())).await;
        let got = store.claims().claim(claimer(1), 10).await.unwrap();
        assert_eq!(got.len(), 2);
        assert_eq!(store.executor().fill_queue("default".into(), 10).await.unwrap(), 0);
        let _ = finish(&store, &got[0], well()).await;
        assert_eq!(store.executor().fill_queue("default".into(), 10).await.unwrap(), 1);
        assert_eq!(store.claims().claim(claimer(1), 10).await.unwrap().len(), 1);
        let _ = store.person().cancel_run(run).await.unwrap();
        store.executor().set_queue(QueueRow { limit: None, ..queue }).await.unwrap();

        let plan = in_a_group_of_one();
        let (first, second) = (create(&store, &plan).await, create(&store, &plan).await);
        assert_eq!((status(&store, first), status(&store, second)), ("running".into(), "queued".into()));
        assert_eq!(store.executor().fill_group("g".into(), vec![]).await.unwrap(), None);
        let held = claim_of(&store, first).await;
        let _ = finish(&store, &held, well()).await;
        assert_eq!(store.executor().fill_group("g".into(), vec![]).await.unwrap(), Some(second));
        assert!(store.person().cancel_run(second).await.unwrap().is_applied());
    });
}

/// Receives what this run has to offer.
async fn claim_of(store: &sprag_store::Store, run: RunId) -> ops::Assignment {
    let all = store.claims().claim(claimer(9), 100).await.unwrap();
    all.into_iter().find(|got| got.lease.execution.run == run).expect("it has something to offer")
}

#[test]
fn o06_a_doubled_hand_off_message_runs_once() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(1)).await;
        let told = Lease { execution: sprag_lifecycle::ExecutionId { run, step: 0, attempt: 1 }, fence: 1 };
        let first = store.claims().receive(claimer(1), told).await.unwrap().expect("the first is in time");
        for worker in 1..4 {
            assert!(store.claims().receive(claimer(worker), told).await.unwrap().is_err());
        }
        let _ = finish(&store, &first, well()).await;
        assert!(store.claims().receive(claimer(2), told).await.unwrap().is_err());
        assert_eq!(status(&store, run), "completed");
    });
}

#[test]
fn an_orphaned_run_is_reserved_for_the_process_that_takes_it_over() {
    on_every_store(|store, _| async move {
        let mut new = store.person().new_run(sequence(1));
        new.pin = Some(5);
        let Created::New(run) = store.person().create_run(new).await.unwrap() else { panic!() };
        assert!(store.claims().claim(claimer(1), 1).await.unwrap().is_empty(), "it belongs to worker 5");
        assert!(store.executor().pin_run(run, Some(6)).await.unwrap());
        assert!(store.claims().claim(claimer(5), 1).await.unwrap().is_empty());
        let held = claim(&store, 6).await;
        let _ = finish(&store, &held, well()).await;
        assert_eq!(status(&store, run), RunStatus::Completed.as_str());
    });
}

#[test]
fn a_released_execution_goes_back_and_its_old_token_is_void() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(1)).await;
        let first = claim(&store, 1).await;
        assert!(store.worker(first.lease).release().await.unwrap().is_applied());
        assert!(!store.worker(first.lease).release().await.unwrap().is_applied());
        let second = claim(&store, 2).await;
        assert_eq!(second.lease.execution, first.lease.execution, "the same attempt");
        assert!(second.lease.fence > first.lease.fence);
        assert_eq!(store.worker(first.lease).renew(60_000).await.unwrap(), Renewal::Lost);
        assert!(!finish(&store, &first, well()).await.outcome.is_applied());
        assert!(finish(&store, &second, well()).await.outcome.is_applied());
        assert_eq!(status(&store, run), "completed");
        let step = look(&store, |db| Table::<StepRow>::load(db, (run, 0))).unwrap();
        assert_eq!(step.attempt, 1);
    });
}

#[test]
fn c10_a_full_queue_is_asked_without_writing_anything() {
    on_every_store(|store, _| async move {
        store
            .executor()
            .set_queue(QueueRow { name: "default".into(), limit: Some(1), held: false })
            .await
            .unwrap();
        let _run = create(&store, &graph(&[&[], &[]], |_| Policy::default())).await;
        let seq = look(&store, |db| db.last_seq());
        for _ in 0..3 {
            assert_eq!(store.executor().fill_queue("default".into(), 10).await.unwrap(), 0);
        }
        assert_eq!(look(&store, |db| db.last_seq()), seq);
    });
}

#[test]
fn c10_a_resume_waits_for_a_place_in_its_group() {
    on_every_store(|store, _| async move {
        let plan = in_a_group_of_one();
        let failed = create(&store, &plan).await;
        let held = claim(&store, 1).await;
        let _ = finish(&store, &held, badly()).await;
        let other = create(&store, &plan).await;
        assert_eq!((status(&store, failed), status(&store, other)), ("failed".into(), "running".into()));
        let refused = store.person().resume_run(failed, None).await;
        assert!(matches!(&refused, Err(Error::Refused { why, .. }) if why.contains("full")), "{refused:?}");
        assert_eq!(status(&store, failed), "failed");
        let held = claim(&store, 1).await;
        let _ = finish(&store, &held, well()).await;
        assert!(store.person().resume_run(failed, None).await.unwrap().is_applied());
    });
}

#[test]
fn c03_a_second_hand_over_keeps_its_place_in_line() {
    on_every_store(|store, clock| async move {
        let first = create(&store, &sequence(1)).await;
        clock.advance(10);
        let second = create(&store, &sequence(1)).await;
        clock.advance(10);
        let waiting = look(&store, |db| db.unclaimed_since(i64::MAX, 1));
        assert_eq!(waiting[0].run, first);
        assert!(store.executor().redispatch(waiting[0]).await.unwrap());
        let order = claimed(&store, 2).await;
        assert_eq!(order, [first, second]);
    });
}

#[test]
fn a_run_returns_to_its_own_worker_only_if_it_is_not_reserved() {
    on_every_store(|store, _| async move {
        let mut new = store.person().new_run(sequence(1));
        new.pin = Some(5);
        let Created::New(run) = store.person().create_run(new).await.unwrap() else { panic!() };
        assert!(!store.claims().reclaim(run, 6).await.unwrap(), "it is another's");
        assert!(store.executor().pin_run(run, None).await.unwrap());
        assert!(store.claims().reclaim(run, 5).await.unwrap());
        assert!(store.claims().claim(claimer(6), 1).await.unwrap().is_empty());
        let held = claim(&store, 5).await;
        let _ = finish(&store, &held, well()).await;
    });
}
