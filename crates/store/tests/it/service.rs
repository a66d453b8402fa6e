//! The server's own rows: tokens, hooks and counts, the same on every store.

use std::sync::Arc;

use crate::common::*;
use sprag_lifecycle::ExecutionStatus;
use sprag_store::{Delivery, HookRow, QueueRow, Row, Store, TokenRow};

fn token(id: i64, name: &str, hash: &str) -> TokenRow {
    TokenRow {
        id,
        name: name.into(),
        hash: hash.into(),
        scopes: "read,run".into(),
        created_ms: id,
        expires_ms: Some(7),
    }
}

fn hook(id: i64) -> HookRow {
    HookRow::new(id, "http://a/".into(), "s".into(), "{}".into(), 5)
}

fn the_hook(store: &Store) -> HookRow {
    look(store, |db| db.hooks()).remove(0)
}

#[tokio::test]
async fn tokens_are_found_by_their_hash_until_they_are_removed() {
    let stores = Stores::new();
    for (name, store) in &stores.all {
        let service = store.service();
        service.add_token(token(1, "a", "aa"), "read".into()).await.unwrap();
        service.add_token(token(2, "b", "bb"), "read".into()).await.unwrap();
        assert_eq!(look(store, |db| db.tokens()), [token(1, "a", "aa"), token(2, "b", "bb")], "{name}");
        assert_eq!(look(store, |db| db.token_by_hash("bb")), Some(token(2, "b", "bb")), "{name}");
        assert_eq!(look(store, |db| db.token_by_hash("b")), None, "{name}");
        assert!(service.remove_token(2).await.unwrap());
        assert!(!service.remove_token(2).await.unwrap());
        assert_eq!(look(store, |db| db.token_by_hash("bb")), None, "{name}");
    }
}

#[tokio::test]
async fn a_rotated_token_has_two_secrets_until_the_overlap_ends() {
    let stores = Stores::new();
    for (name, store) in &stores.all {
        let service = store.service();
        let lasting =
            |id, name, hash, created_ms| TokenRow { created_ms, expires_ms: None, ..token(id, name, hash) };
        let far_ms = i64::MAX / 2;
        service.add_token(lasting(1, "a", "aa", 1), "read".into()).await.unwrap();
        service.add_token(lasting(2, "b", "bb", 1), "read".into()).await.unwrap();
        let new = lasting(3, "a", "cc", 2);
        assert!(
            !service.rotate_token(9, new.clone(), far_ms).await.unwrap(),
            "{name}: there is no such token"
        );
        assert!(service.rotate_token(1, new.clone(), far_ms).await.unwrap(), "{name}");
        let old = look(store, |db| db.token_by_hash("aa")).expect("the old secret");
        assert_eq!((old.expires_ms, old.id), (Some(far_ms), 1), "{name}");
        assert_eq!(look(store, |db| db.token_by_hash("cc")), Some(new), "{name}");
        let newest = lasting(4, "a", "dd", 3);
        assert!(
            !service.rotate_token(1, newest.clone(), far_ms).await.unwrap(),
            "{name}: it was rotated before"
        );
        // The end of the overlap ends all earlier secrets.
        assert!(service.rotate_token(3, newest, 0).await.unwrap(), "{name}");
        for hash in ["aa", "cc"] {
            let old = look(store, |db| db.token_by_hash(hash)).expect("an old secret");
            assert_eq!(old.expires_ms, Some(0), "{name}");
        }
        // Secrets that have expired are removed at the next rotation.
        assert!(service.rotate_token(4, lasting(5, "a", "ee", 4), far_ms).await.unwrap(), "{name}");
        assert_eq!(look(store, |db| db.token_by_hash("aa")), None, "{name}");
        assert!(service.remove_token(5).await.unwrap(), "{name}");
        assert_eq!(look(store, |db| db.tokens()), [lasting(2, "b", "bb", 1)], "{name}: with all its secrets");
    }
}

#[tokio::test]
async fn a_hook_is_delivered_by_one_server_at_a_time() {
    let stores = Stores::new();
    for (name, store) in &stores.all {
        let service = store.service();
        create(store, &sequence(1)).await;
        service.add_hook(hook(1), None).await.unwrap();
        let last = look(store, |db| db.last_seq());
        assert_eq!(the_hook(store).cursor, last, "{name}: from now on");
        assert!(service.take_hook(1, 10, 1_000).await.unwrap());
        assert!(!service.take_hook(1, 11, 1_000).await.unwrap(), "{name}: another has it");
        assert!(service.take_hook(1, 10, 1_000).await.unwrap(), "{name}: its own may be kept");
        let done = Delivery::Done { cursor: last + 5 };
        assert!(!service.hook_told(1, 11, last, done.clone()).await.unwrap(), "{name}: not its own");
        assert!(!service.hook_told(1, 10, last + 1, done.clone()).await.unwrap(), "{name}: not from there");
        assert!(service.hook_told(1, 10, last, done).await.unwrap());
        assert_eq!(the_hook(store).cursor, last + 5, "{name}");
        stores.clock.advance(1_001);
        assert!(service.take_hook(1, 11, 1_000).await.unwrap(), "{name}: the lease has lapsed");
        let late = Delivery::Done { cursor: last + 9 };
        assert!(!service.hook_told(1, 10, last + 5, late).await.unwrap(), "{name}: too late");
        service.leave_hook(1, 10).await.unwrap();
        assert_eq!(the_hook(store).holder, 11, "{name}: only its own is given back");
        service.leave_hook(1, 11).await.unwrap();
        assert!(service.take_hook(1, 10, 1_000).await.unwrap(), "{name}");
        assert!(service.remove_hook(1).await.unwrap() && !service.remove_hook(1).await.unwrap());
        assert!(!service.take_hook(1, 10, 1_000).await.unwrap(), "{name}: it is gone");
    }
}

#[tokio::test]
async fn a_failing_hook_stays_parked_until_a_retry() {
    let stores = Stores::new();
    for (name, store) in &stores.all {
        let service = store.service();
        service.add_hook(hook(1), Some(3)).await.unwrap();
        let failed = |park| Delivery::Failed { next_try_ms: 99, error: "no".into(), park };
        assert!(service.take_hook(1, 10, 1_000).await.unwrap());
        assert!(service.hook_told(1, 10, 3, failed(false)).await.unwrap());
        let row = the_hook(store);
        assert_eq!((row.failures, row.next_try_ms, row.parked, row.cursor), (1, 99, None, 3), "{name}");
        assert!(service.hook_told(1, 10, 3, failed(true)).await.unwrap());
        assert_eq!(the_hook(store).parked.as_deref(), Some("no"), "{name}");
        assert!(!service.take_hook(1, 10, 1_000).await.unwrap(), "{name}: nobody tries it");
        assert!(service.retry_hook(1).await.unwrap() && !service.retry_hook(2).await.unwrap());
        let row = the_hook(store);
        assert_eq!((row.failures, row.next_try_ms, row.parked, row.cursor), (0, 0, None, 3), "{name}");
        assert!(service.take_hook(1, 10, 1_000).await.unwrap(), "{name}");
    }
}

#[tokio::test]
async fn queues_are_counted_alike() {
    let stores = Stores::new();
    let mut counts = Vec::new();
    for (name, store) in &stores.all {
        for _ in 0..3 {
            create(store, &sequence(2)).await;
        }
        let taken = store.claims().claim(claimer(1), 1).await.unwrap();
        assert_eq!(taken.len(), 1, "{name}");
        let held: Arc<str> = "default".into();
        store.executor().set_queue(QueueRow { name: held, limit: Some(2), held: true }).await.unwrap();
        create(store, &sequence(1)).await;
        let found = look(store, |db| db.queue_counts());
        let queue = &found[0];
        assert_eq!((queue.requested, queue.scheduled, queue.running), (1, 2, 1), "{name}");
        assert!(queue.oldest_ms.is_some(), "{name}");
        assert_eq!(look(store, |db| db.queues()).len(), 1, "{name}");
        let rows: Vec<ExecutionStatus> = look(store, |db| {
            let mut all = Vec::new();
            for run in db.live_runs(None, 10)? {
                all.extend(db.executions(run)?.iter().map(|row| row.status()));
            }
            Ok(all)
        });
        assert_eq!(rows.len(), 4, "{name}");
        counts.push(
            found.iter().map(|queue| (queue.requested, queue.scheduled, queue.running)).collect::<Vec<_>>(),
        );
    }
    assert_eq!(counts[0], counts[1]);
}
