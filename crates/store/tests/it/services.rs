//! Services on every store: one worker has all of them and the steps that use them, and they end with their run.

use std::sync::Arc;

use crate::common::*;
use sprag_lifecycle::{Plan, PlanStep, Policy, RunId, RunStatus, SERVICE_PRIORITY};
use sprag_store::{Claimer, Lost, NewRun, NewWorker, QueueRow, Row};

fn service(id: &str, attempts: u32) -> PlanStep {
    PlanStep {
        service: true,
        priority: SERVICE_PRIORITY,
        policy: Policy { always: true, attempts, ..Policy::default() },
        spec: "{}".into(),
        ..PlanStep::new(id, vec![])
    }
}

/// Returns a plan of two steps in sequence, with two services.
fn plan() -> Arc<Plan> {
    let steps = vec![
        step(0, &[], Policy::default()),
        step(1, &[0], Policy::default()),
        service("db", 2),
        service("web", 2),
    ];
    Arc::new(Plan::new("served", steps).unwrap())
}

/// Returns the names of the executions that a worker receives.
async fn names(store: &sprag_store::Store, claimer: Claimer) -> Vec<String> {
    let mut names: Vec<String> =
        store.claims().claim(claimer, 10).await.unwrap().into_iter().map(|got| got.name).collect();
    names.sort();
    names
}

#[test]
fn p18_one_worker_has_the_services_of_a_run_and_its_steps() {
    on_every_store(|store, _| async move {
        let run = create(&store, &plan()).await;
        let first = store.claims().claim(claimer(1), 1).await.unwrap().pop().unwrap();
        assert_eq!(first.name, "db", "services come first");
        assert_eq!(
            names(&store, claimer(2)).await,
            [""; 0],
            "the other service and the steps follow the first one"
        );
        let rest = store.claims().claim(claimer(1), 10).await.unwrap();
        assert_eq!(
            rest.iter().map(|got| got.name.as_str()).collect::<Vec<_>>(),
            ["web"],
            "steps wait for all services"
        );
        assert_eq!(names(&store, claimer(2)).await, [""; 0]);
        let step = claim(&store, 1).await;
        let used = step.services.clone().expect("it uses services");
        assert_eq!((step.name.as_str(), used.run, used.steps), ("s0", run, vec![2, 3]));
        // The service is lost while a step runs: the next attempt stays with the worker of the step.
        let _ = store.reaper().owner_died(first.lease).await.unwrap();
        assert_eq!(names(&store, claimer(2)).await, [""; 0]);
        assert_eq!(names(&store, Claimer { services_only: true, ..claimer(1) }).await, ["db"]);
        finish(&store, &step, well()).await;
        assert_eq!(
            names(&store, Claimer { services_only: true, ..claimer(1) }).await,
            [""; 0],
            "no service waits"
        );
        assert_eq!(names(&store, claimer(1)).await, ["s1"]);
        // All executions of a worker are lost: another one takes the services, then the steps.
        let _ = store.reaper().worker_lost(1, Lost::ProcessGone).await;
        for row in look(&store, |db| db.executions(run)).iter().filter(|row| row.owner.is_some()) {
            let lease = sprag_store::Lease { execution: row.id, fence: row.fence };
            let _ = store.reaper().owner_died(lease).await.unwrap();
        }
        assert_eq!(names(&store, claimer(2)).await, ["db", "web"]);
        assert_eq!(names(&store, claimer(2)).await, ["s1"]);
    });
}

#[test]
fn p14_services_are_stopped_after_the_last_step_and_the_run_ends_after_them() {
    on_every_store(|store, _| async move {
        let run = create(&store, &plan()).await;
        let services = store.claims().claim(claimer(1), 10).await.unwrap();
        for _ in 0..2 {
            let step = claim(&store, 1).await;
            assert!(look(&store, |db| db.executions(run)).iter().all(|row| !row.cancel_requested));
            finish(&store, &step, well()).await;
        }
        let rows = look(&store, |db| db.executions(run));
        assert_eq!(
            rows.iter().filter(|row| row.cancel_requested).count(),
            2,
            "both services are asked to stop"
        );
        assert_eq!(steps(&store, run), ["done", "done", "running", "running"]);
        finish(&store, &services[0], well()).await;
        // The second one is lost while it stops: that is no failure.
        let _ = store.reaper().owner_died(services[1].lease).await.unwrap();
        assert_eq!(steps(&store, run), ["done", "done", "done", "skipped"]);
        assert_eq!(store.queries().run(run).unwrap().unwrap().status(), RunStatus::Completed);
    });
}

#[test]
fn p14_a_cancelled_run_does_not_wait_for_services_that_never_started() {
    on_every_store(|store, _| async move {
        let run = create(&store, &plan()).await;
        let _ = store.person().cancel_run(run).await.unwrap();
        assert_eq!(steps(&store, run), ["cancelled", "cancelled", "skipped", "skipped"]);
        assert_eq!(store.queries().run(run).unwrap().unwrap().status(), RunStatus::Cancelled);
        // A resume starts the services again.
        let _ = store.person().resume_run(run, None).await.unwrap();
        assert_eq!(names(&store, claimer(1)).await, ["db", "web"]);
    });
}

#[test]
fn p14_a_service_that_keeps_failing_fails_its_run() {
    on_every_store(|store, _| async move {
        let run = create(&store, &plan()).await;
        for _ in 0..2 {
            let got = store.claims().claim(claimer(1), 10).await.unwrap();
            let db = got.iter().find(|got| got.name == "db").expect("it is tried twice");
            finish(&store, db, badly()).await;
        }
        let rows = look(&store, |db| db.executions(run));
        assert!(rows.iter().any(|row| row.cancel_requested), "the other service is asked to stop");
        assert_eq!(steps(&store, run)[..3], ["cancelled", "cancelled", "failed"]);
    });
}

#[test]
fn p18_services_take_no_place_of_a_queue() {
    on_every_store(|store, _| async move {
        let limited = QueueRow { name: "default".into(), limit: Some(1), held: false };
        store.executor().set_queue(limited).await.unwrap();
        create(&store, &plan()).await;
        assert_eq!(names(&store, claimer(1)).await, ["db", "web"]);
        assert_eq!(names(&store, claimer(1)).await, ["s0"]);
    });
}

/// A queue with one place, and runs of any priority: services take none of its places, and steps do.
#[test]
fn p18_the_priority_of_a_run_makes_no_service_of_a_step_and_no_step_of_a_service() {
    on_every_store(|store, _| async move {
        let limited = QueueRow { name: "default".into(), limit: Some(1), held: false };
        store.executor().set_queue(limited).await.unwrap();
        for (n, priority) in [(1, -5), (2, 1), (3, 1_000)] {
            store.person().create_run(NewRun { priority, ..named(n, &plan()) }).await.unwrap();
            assert_eq!(names(&store, claimer(n)).await, ["db", "web"], "priority {priority}");
            let step = claim(&store, n).await;
            assert_eq!(step.name, "s0");
            // Nothing else of the queue starts while it runs, however urgent it is.
            let urgent = PlanStep { priority: 1_000, ..step_of(&step) };
            let urgent = Arc::new(Plan::new("urgent", vec![urgent]).unwrap());
            let run = NewRun { priority: 1_000, ..named(10 + n, &urgent) };
            store.person().create_run(run).await.unwrap();
            assert_eq!(names(&store, claimer(9)).await, [""; 0], "the queue is full");
            let full = Claimer { services_only: true, ..claimer(n) };
            assert_eq!(names(&store, full).await, [""; 0], "no step goes to a worker without a slot");
            let _ = store.person().cancel_run(RunId::from_i64(10 + n)).await.unwrap();
            for row in
                look(&store, |db| db.executions(RunId::from_i64(n))).iter().filter(|row| row.owner.is_some())
            {
                let lease = sprag_store::Lease { execution: row.id, fence: row.fence };
                let _ = store.reaper().owner_died(lease).await.unwrap();
            }
            let _ = store.person().cancel_run(RunId::from_i64(n)).await.unwrap();
        }
    });
}

/// Returns a step like the one of an assignment, without its needs.
fn step_of(assignment: &sprag_store::Assignment) -> PlanStep {
    PlanStep { needs: Vec::new(), ..assignment.step().clone() }
}

/// Services take no slots, so an idle worker could take those of every run, and all steps would then wait for it.
#[test]
fn p18_a_worker_has_the_services_of_at_most_as_many_runs_as_it_has_slots() {
    on_every_store(|store, _| async move {
        for id in [1, 2] {
            let worker = NewWorker {
                id,
                name: "one".into(),
                process: format!("host/{id}").into(),
                queues: "default".into(),
                labels: "".into(),
                slots: 1,
                lease_ms: 60_000,
            };
            store.claims().register(worker).await.unwrap();
        }
        let runs =
            [create(&store, &plan()).await, create(&store, &plan()).await, create(&store, &plan()).await];
        assert_eq!(names(&store, claimer(1)).await, ["db", "web"], "the services of one run");
        let full = Claimer { services_only: true, ..claimer(1) };
        assert_eq!(names(&store, full).await, [""; 0], "a full worker takes no services of another run");
        assert_eq!(names(&store, claimer(2)).await, ["db", "web"], "the other worker has the next run");
        let owned = |run| {
            let rows = look(&store, |db| db.executions(run));
            rows.into_iter().filter_map(|row| row.owner).collect::<std::collections::BTreeSet<_>>().len()
        };
        let mut owners: Vec<usize> = runs.into_iter().map(owned).collect();
        owners.sort_unstable();
        assert_eq!(owners, [0, 1, 1], "one run waits");
        assert_eq!(names(&store, claimer(1)).await, ["s0"]);
        assert_eq!(names(&store, claimer(2)).await, ["s0"]);
    });
}
