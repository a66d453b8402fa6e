//! Group commit: waiting operations share a commit and nothing else, and a failing one fails alone.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::*;
use sprag_lifecycle::{Plan, RunId};
use sprag_store::testing::{RawStore, Session, ops};
use sprag_store::{Created, Error, Result, Store};
use tokio::task::JoinSet;

const CALLERS: i64 = 64;
const FAILS: i64 = 13;
const PANICS: i64 = 27;

fn plan_of(n: i64) -> Arc<Plan> {
    let mut plan = (*sequence(1)).clone();
    plan.name = format!("plan{n}");
    Arc::new(plan)
}

fn make(session: &mut Session<'_>, n: i64) -> Result<Created> {
    let plan = plan_of(n);
    let hash = ops::plan_hash(&plan);
    ops::create_run(session, &named(n, &plan), hash)
}

/// Creates a run, and then fails in its own way or not at all.
fn operation(session: &mut Session<'_>, n: i64) -> Result<()> {
    make(session, n)?;
    match n {
        FAILS => Err(Error::Bug("on purpose".into())),
        PANICS => panic!("on purpose"),
        _ => Ok(()),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Keeps the writer busy until all of these wait for it, so that they share a commit.
async fn in_one_batch(store: &Store) -> Vec<(i64, Result<()>)> {
    let (go, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let busy = store.clone();
    let busy = tokio::spawn(async move {
        let hold = move |_: &mut Session<'_>| {
            // The sender goes away when all wait: an operation may run twice, and then is not held again.
            let held = wait.lock().unwrap().recv_timeout(Duration::from_secs(20));
            assert_eq!(held, Err(std::sync::mpsc::RecvTimeoutError::Disconnected), "let go in time");
            Ok(())
        };
        busy.write(hold).await
    });
    tokio::task::yield_now().await;
    let mut callers = JoinSet::new();
    for n in 1..=CALLERS {
        let store = store.clone();
        callers.spawn(async move { (n, store.write(move |session| operation(session, n)).await) });
    }
    // A few turns of this thread's runtime let every caller hand in its operation.
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
    drop(go);
    busy.await.unwrap().unwrap();
    callers.join_all().await
}

#[test]
fn one_failing_operation_in_a_batch_fails_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let answers = runtime().block_on(in_one_batch(&store));
    assert_eq!(answers.len(), CALLERS as usize);
    drop(store);
    let store = Store::open(folder.path()).unwrap();
    for (n, answer) in answers {
        let run = look(&store, |db| db.steps(RunId::from_i64(n)));
        match (n, answer) {
            (FAILS, Err(Error::Bug(why))) => assert_eq!(why, "on purpose"),
            (PANICS, Err(Error::Bug(why))) => assert!(why.contains("undone"), "{why}"),
            (n, answer) => {
                answer.unwrap_or_else(|error| panic!("operation {n}: {error}"));
                assert_eq!(run.len(), 1, "run {n} was committed");
                continue;
            }
        }
        assert!(run.is_empty(), "nothing of run {n} was written");
        let plan = look(&store, |db| db.plan(ops::plan_hash(&plan_of(n))));
        assert!(plan.is_none(), "and nothing that it wrote before it failed");
    }
    crate::common::check::check(&store, 0);
}

/// A rolled-back operation leaves no trace in the cache: its plan is not in the file.
#[test]
fn a_plan_that_an_undone_operation_brought_is_written_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    runtime().block_on(async {
        for n in [FAILS, PANICS] {
            assert!(store.write(move |session| operation(session, n)).await.is_err());
            store.write(move |session| make(session, n)).await.unwrap();
        }
        let other = Store::open(folder.path()).unwrap();
        let got = other.claims().claim(claimer(1), 10).await.unwrap();
        assert_eq!(got.len(), 2, "another process finds the runs whole");
        for held in got {
            assert!(finish(&other, &held, well()).await.outcome.is_applied());
        }
    });
}
