//! Time in which no process could write does not count against leases.

use std::time::Duration;

use rusqlite::Connection;
use sprag_store::{Claimer, FILE_NAME, Store};

use crate::common::*;

/// Much shorter than the stall.
const LEASE_MS: i64 = 1_000;
/// Longer than what counts as a stall.
const STALL: Duration = Duration::from_millis(3_500);

#[test]
fn e15_the_first_write_after_a_stall_extends_leases_once() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(folder.path()).unwrap();
        create(&store, &sequence(1)).await;
        let claimer = Claimer { lease_ms: LEASE_MS, ..claimer(1) };
        let held = store.claims().claim(claimer, 1).await.unwrap().pop().unwrap();
        let kept = |store: &Store| store.claims().kept_through_stall(&[held.lease]).unwrap();
        assert_eq!(kept(&store), [None], "commits go on");

        let other = Connection::open(folder.path().join(FILE_NAME)).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        store.runtime().pause(STALL).await;
        let [Some(certain_ms)] = kept(&store)[..] else { panic!("nobody can take it away") };
        assert_eq!(certain_ms, 10_000);
        other.execute_batch("ROLLBACK").unwrap();

        // A process that has just been started, and knows nothing of the stall, is the first to write.
        let reaper = Store::open(folder.path()).unwrap();
        let now_ms = reaper.now().steady_ms;
        assert_eq!(look(&reaper, |db| db.lapsed(now_ms, 10)).len(), 1, "it looks lapsed");
        assert!(!reaper.reaper().expire(held.lease).await.unwrap().is_applied(), "and is not taken");
        // The lease is not renewed, and nothing is written: that is no second stall.
        let deadline_ms = reaper.runtime().boot_ms() + 30_000;
        while !reaper.reaper().expire(held.lease).await.unwrap().is_applied() {
            assert!(reaper.runtime().boot_ms() < deadline_ms, "a lease without a holder lapses");
            reaper.runtime().pause(STALL).await;
        }
        assert_eq!(kept(&store), [None], "it was taken away");
    });
}
