//! Reservations on every store: a live process has its run's steps to itself.

use std::sync::Arc;

use crate::common::*;
use sprag_lifecycle::{Concurrency, OnConflict, Plan, PlanStep, WorkKind};
use sprag_store::{Claimer, Created, Ending, Id, Lost, NewRun, NewWorker};

fn new_worker(id: Id, host: &str) -> NewWorker {
    NewWorker {
        id,
        name: "one".into(),
        process: format!("{host}/{id}").into(),
        queues: "default".into(),
        labels: "".into(),
        slots: 1,
        lease_ms: 1000,
    }
}

/// A reservation is looked at whatever became of the worker, and whenever it was made.
#[test]
fn i20_a_run_reserved_for_a_lost_worker_is_freed() {
    on_every_store(|store, _| async move {
        let reserved = async |pin: Id| {
            let mut new = store.person().new_run(sequence(2));
            new.pin = Some(pin);
            let Created::New(run) = store.person().create_run(new).await.unwrap() else { panic!() };
            run
        };
        let orphans = || look(&store, |db| db.orphaned_runs(10));
        store.claims().register(new_worker(7, "a")).await.unwrap();
        let (known, never) = (reserved(7).await, reserved(4711).await);
        assert_eq!(orphans(), [never]);
        assert!(!store.executor().free_orphan(known).await.unwrap(), "its worker is there");
        let _ = store.reaper().worker_lost(7, Lost::ProcessGone).await.unwrap();
        // Made after its worker was found to be gone.
        let late = reserved(7).await;
        for run in [known, never, late] {
            assert!(orphans().contains(&run));
            assert!(store.executor().free_orphan(run).await.unwrap());
            assert!(!store.executor().free_orphan(run).await.unwrap(), "once");
        }
        assert_eq!(orphans(), []);
        assert_eq!(store.claims().claim(claimer(8), 10).await.unwrap().len(), 3, "anyone may have them");
    });
}

/// The worker of a run registers in the transaction that makes the run, takes it over or goes on with it: so it does not if
/// that is refused.
#[test]
fn i20_a_worker_registers_in_the_transaction_of_its_run() {
    on_every_store(|store, _| async move {
        let worker = |id: Id| new_worker(id, "a");
        let there = || look(&store, |db| db.workers()).iter().map(|row| row.id).collect::<Vec<_>>();
        let mut plan = (*sequence(1)).clone();
        let on_conflict = OnConflict::Reject;
        plan.concurrency = Some(Concurrency { group: "g".into(), limit: 1, on_conflict });
        let plan = Arc::new(plan);
        let new = |id: Id| {
            let mut new = store.person().new_run(Arc::clone(&plan));
            new.worker = Some(worker(id));
            new.idempotency_key = Some(format!("key-{id}").into());
            new
        };
        let Created::New(run) = store.person().create_run(new(1)).await.unwrap() else { panic!() };
        assert_eq!(there(), [1]);
        assert!(store.person().create_run(new(2)).await.is_err(), "the group is full");
        let same = store.person().create_run(NewRun { worker: Some(worker(3)), ..new(1) }).await;
        assert_eq!(same.unwrap(), Created::Existing(run));
        assert!(
            !store.claims().take_over(run, None, worker(4)).await.unwrap(),
            "it is another's, who is there"
        );
        assert!(!store.person().resume_run(run, Some(worker(5))).await.unwrap().is_applied(), "it goes on");
        assert_eq!(there(), [1]);
        // The worker that saw the useless reservation takes the run over; the second one is too late.
        assert!(store.claims().take_over(run, Some(1), worker(6)).await.unwrap());
        assert!(!store.claims().take_over(run, Some(1), worker(7)).await.unwrap());
        assert_eq!(there(), [1, 6]);
        let held = claim(&store, 6).await;
        let failed = Ending::Failed { result: None, retriable: false };
        let _ = finish(&store, &held, failed).await;
        assert!(!store.claims().take_over(run, Some(6), worker(8)).await.unwrap(), "it has ended");
        assert!(store.person().resume_run(run, Some(worker(9))).await.unwrap().is_applied());
        assert_eq!(there(), [1, 6, 9]);
        assert!(store.claims().claim(claimer(6), 1).await.unwrap().is_empty());
        assert_eq!(claim(&store, 9).await.lease.execution.run, run);
    });
}

/// A process runs all steps of its run itself, whatever queue they name; tasks are left to claimers.
#[test]
fn a_reserved_execution_is_claimed_from_every_queue_but_tasks_are_not_reserved() {
    on_every_store(|store, _| async move {
        let step = |id: &str, queue: &str, work| PlanStep {
            queue: queue.into(),
            work,
            ..PlanStep::new(id, Vec::new())
        };
        let steps = vec![
            step("a", "batch", WorkKind::Execution),
            step("b", "default", WorkKind::Execution),
            step("c", "people", WorkKind::Task),
        ];
        let mut new = store.person().new_run(Arc::new(Plan::new("queues", steps).unwrap()));
        new.worker = Some(new_worker(5, "a"));
        let Created::New(run) = store.person().create_run(new).await.unwrap() else { panic!() };
        let mine = Claimer { reserved_only: true, ..claimer(5) };
        let serves = |worker: Id, queue: &str| Claimer { queues: vec![queue.into()], ..claimer(worker) };
        assert!(store.claims().claim(serves(6, "batch"), 1).await.unwrap().is_empty(), "it is reserved");
        assert_eq!(store.claims().claim(serves(6, "people"), 1).await.unwrap().len(), 1, "it is a task");
        let got = store.claims().claim(mine, 5).await.unwrap();
        assert_eq!(got.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let _ = store.worker(got[0].lease).release().await.unwrap();
        let _ = store.reaper().worker_lost(5, Lost::ProcessGone).await.unwrap();
        assert!(store.executor().free_orphan(run).await.unwrap());
        assert_eq!(store.claims().claim(serves(6, "batch"), 1).await.unwrap().len(), 1, "it is anyone's");
    });
}
