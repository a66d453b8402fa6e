//! Claims whose callers go away: what a repeated claim may find is never given back.

use std::sync::Arc;

use sprag_app::App;
use sprag_lifecycle::{ExecutionStatus, Plan, PlanStep};
use sprag_store::{Claimer, Created, NewWorker, Row, Store};
use sprag_worker::wire;
use tokio::sync::watch;

const WORKER: i64 = 7;

/// A claim of a worker over HTTP. The nonce stays the same when the claim is repeated.
fn wanted() -> wire::Claim {
    let claimer = Claimer {
        services_only: false,
        worker: WORKER,
        queues: vec!["default".into()],
        reserved_only: false,
        lease_ms: 60_000,
        nonce: 41,
    };
    wire::Claim { claimer, limit: 1, wait_ms: 0 }
}

/// The connection of a worker is cut after the server has asked the store, and before it has the answer. The worker repeats
/// its claim, gets the execution and starts it. It must stay the worker's: another one would start it a second time.
#[tokio::test(flavor = "current_thread")]
async fn i06_what_a_repeated_claim_found_does_not_return_to_its_queue() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(folder.path()).expect("a store");
    let app = App::with_store(store.clone(), folder.path());
    let worker = NewWorker {
        id: WORKER,
        name: "far".into(),
        process: "".into(),
        queues: "default".into(),
        labels: "".into(),
        slots: 1,
        lease_ms: 60_000,
    };
    store.claims().register(worker).await.expect("it registers");
    let plan = Arc::new(Plan::new("p", vec![PlanStep::new("work", Vec::new())]).expect("a plan"));
    let new = store.person().new_run(plan);
    let Created::New(run) = store.person().create_run(new).await.expect("it is created") else {
        panic!("the run is new");
    };
    let (_stop, stopping) = watch::channel(false);
    let remote = app.remote_worker(WORKER);
    {
        let first = remote.claim(wanted(), stopping.clone());
        let mut first = std::pin::pin!(first);
        // One look starts the server's own task, and a pause of this one lets it ask the store.
        assert!(futures_now(first.as_mut()).await.is_none(), "the store has not answered yet");
        tokio::task::yield_now().await;
    }
    let repeated = remote.claim(wanted(), stopping).await.expect("it is answered");
    assert_eq!(repeated.given.len(), 1, "the repeat has the execution");
    let lease = repeated.given[0].assignment.lease;
    // The task of the first request has ended when the store has written everything that it asked for.
    for _ in 0..100 {
        tokio::task::yield_now().await;
        store.claims().heartbeat_of(WORKER, vec![lease], 60_000).await.expect("a heartbeat");
    }
    let rows = store.queries().held_by(WORKER).expect("a read");
    assert_eq!(rows.len(), 1, "it is still the worker's");
    assert_eq!(
        (rows[0].id.run, rows[0].fence, rows[0].status()),
        (run, lease.fence, ExecutionStatus::Running)
    );
}

/// Looks at a future once.
async fn futures_now<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match future.as_mut().poll(context) {
            std::task::Poll::Ready(done) => Some(done),
            std::task::Poll::Pending => None,
        })
    })
    .await
}
