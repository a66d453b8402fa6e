//! Receiving an announced execution, the same on every store, also for late, duplicated, foreign and reserved messages.

use crate::common::*;
use sprag_lifecycle::ExecutionId;
use sprag_store::testing::Table;
use sprag_store::{Claimer, Clock, Lease, Row, RunRow, Store, System, Told};

async fn told(store: &Store, claimer: Claimer, lease: Lease) -> &'static str {
    match store.claims().receive_told(claimer, lease).await.unwrap() {
        Told::Received(assignment) => {
            assert_eq!(assignment.lease.execution, lease.execution);
            "received"
        }
        Told::Stale => "stale",
        Told::NotHere => "not here",
    }
}

fn first(run: sprag_lifecycle::RunId, fence: u32) -> Lease {
    Lease { execution: ExecutionId { run, step: 0, attempt: 1 }, fence }
}

#[test]
fn o06_a_message_that_is_over_is_no_event_and_leaves_nothing_behind() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(1)).await;
        assert_eq!(told(&store, claimer(1), first(run, 2)).await, "stale", "another fence");
        let nobodys = sprag_lifecycle::RunId::from_i64(run.to_i64() + 1);
        assert_eq!(told(&store, claimer(1), first(nobodys, 1)).await, "stale");
        assert_eq!(told(&store, claimer(1), first(run, 1)).await, "received");
        let before = (journal(&store), look(&store, |db| Table::<RunRow>::load(db, run)));
        for worker in 1..4 {
            assert_eq!(told(&store, claimer(worker), first(run, 1)).await, "stale");
            assert_eq!(told(&store, claimer(worker), first(run, 2)).await, "stale", "it is held by now");
        }
        assert_eq!((journal(&store), look(&store, |db| Table::<RunRow>::load(db, run))), before);
        assert!(look(&store, |db| db.refusals(run)).is_empty());
    });
}

#[test]
fn c03_a_message_gives_a_worker_only_executions_that_it_may_run() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(1)).await;
        let elsewhere = Claimer { queues: vec!["other".into()], ..claimer(1) };
        assert_eq!(told(&store, elsewhere, first(run, 1)).await, "not here");
        let reserved_only = Claimer { reserved_only: true, ..claimer(1) };
        assert_eq!(told(&store, reserved_only.clone(), first(run, 1)).await, "not here");
        assert!(store.executor().pin_run(run, Some(1)).await.unwrap());
        let fence = look(&store, |db| db.executions(run))[0].fence;
        assert_eq!(told(&store, claimer(2), first(run, fence)).await, "stale", "it is another's");
        assert_eq!(told(&store, reserved_only, first(run, fence)).await, "received");
        assert_eq!(look(&store, |db| db.executions(run))[0].status().to_string(), "running");
    });
}

#[test]
fn o05_a_revoked_hand_off_is_stale_and_its_successor_is_not() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(1)).await;
        let id = first(run, 1).execution;
        assert!(store.executor().redispatch(id).await.unwrap());
        let fence = look(&store, |db| db.executions(run))[0].fence;
        assert!(fence > 1);
        assert_eq!(told(&store, claimer(1), first(run, 1)).await, "stale");
        assert_eq!(told(&store, claimer(1), first(run, fence)).await, "received");
    });
}

/// On PostgreSQL another process may hold a run; receiving needs only the execution.
#[test]
fn o06_a_message_is_received_while_another_process_holds_its_run() {
    const HELD_S: i64 = 6;
    let server = sprag_testkit::Postgres::shared();
    let database = server.database();
    let store = Store::open_postgres(&database.url).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let run = runtime.block_on(create(&store, &sequence(2)));
    let schema = &database.schema;
    let hold = format!("BEGIN; SELECT id FROM {schema}.runs FOR UPDATE; SELECT pg_sleep({HELD_S}); COMMIT");
    std::thread::scope(|scope| {
        let holding = scope.spawn(|| server.sql(&hold));
        let sleeps = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%{schema}%'"
        );
        let held = (0..500).any(|_| {
            std::thread::park_timeout(std::time::Duration::from_millis(10));
            server.sql(&sleeps) == "1"
        });
        assert!(held, "the run is held");
        let begun_ms = System.boot_ms();
        assert_eq!(runtime.block_on(told(&store, claimer(1), first(run, 1))), "received");
        assert_eq!(runtime.block_on(told(&store, claimer(2), first(run, 1))), "stale");
        let took_ms = System.boot_ms() - begun_ms;
        assert!(took_ms < HELD_S * 1000 / 2, "it waited {took_ms} ms for the run");
        assert!(!holding.is_finished(), "it was held all the time");
        drop(holding.join());
    });
    // The worker that received it looks at the run when the run is free.
    let is_running = |_| {
        std::thread::park_timeout(std::time::Duration::from_millis(10));
        look(&store, |db| db.steps(run))[0].status().to_string() == "running"
    };
    assert!((0..1_000).any(is_running));
    let assignment = look(&store, |db| db.executions(run)).remove(0);
    let lease = Lease { execution: assignment.id, fence: assignment.fence };
    let finished = runtime.block_on(store.worker(lease).finish(well(), None)).unwrap();
    assert!(finished.outcome.is_applied());
}
