//! The owner lock: held while any process of an attempt is alive.

use sprag_process::{Error, is_held, spawn};

use crate::common::{Bench, eventually, is_running, run, signal, start, supervisor, wait};

#[tokio::test]
async fn the_lock_is_held_while_the_tree_lives_and_free_after_it() {
    let bench = Bench::new();
    let lock = bench.path("owner");
    let mut order = bench.order("echo $$ >pid; exec sleep 1000");
    order.owner_lock = Some(lock.clone());
    let mut running = start(order.clone()).await;
    bench.pid("pid").await;
    assert!(is_held(&lock).expect("a lock"));
    match spawn(order.clone(), supervisor()).await.err() {
        Some(Error::LockHeld { path }) => assert_eq!(path, lock),
        other => panic!("{other:?}"),
    }
    running.cancel().expect("it listens");
    wait(&mut running).await;
    assert!(!is_held(&lock).expect("a lock"));
    order.argv = vec!["true".into()];
    assert!(run(order).await.success(), "the next attempt may start");
}

#[tokio::test]
async fn o13_a_surviving_child_keeps_the_next_attempt_out() {
    let bench = Bench::new();
    let lock = bench.path("owner");
    let mut order = bench.order("setsid sh -c 'echo $$ >daemon; exec sleep 1000' & sleep 1000");
    order.owner_lock = Some(lock.clone());
    let mut running = start(order.clone()).await;
    let daemon = bench.pid("daemon").await;
    let supervisor_pid = running.supervisor_pid().expect("it runs") as i32;
    signal(supervisor_pid, libc::SIGKILL);
    eventually("the supervisor is gone", || !is_running(supervisor_pid)).await;
    assert!(is_running(daemon));
    assert!(is_held(&lock).expect("a lock"));
    assert!(matches!(spawn(order, supervisor()).await, Err(Error::LockHeld { .. })));
    wait(&mut running).await;
    assert!(!is_running(daemon));
    assert!(!is_held(&lock).expect("a lock"));
}

#[tokio::test]
async fn a_lock_in_a_missing_folder_is_refused() {
    let bench = Bench::new();
    let mut order = bench.order("true");
    order.owner_lock = Some(bench.path("no-folder/owner"));
    match spawn(order, supervisor()).await.err() {
        Some(Error::Refused { message, .. }) => assert!(message.contains("no-folder"), "{message}"),
        other => panic!("{other:?}"),
    }
}
