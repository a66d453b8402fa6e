//! The `sprag` crate embedded in a program.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use sprag::{Call, CallError, Effect, EffectFuture, Engine, Pipeline, RunId, RunStatus};
use sprag_tests::{SOON, Sandbox, program, until};
use tokio::sync::Notify;

fn pipeline(steps: &str) -> Pipeline {
    sprag::parse("test.yaml", &format!("steps:\n{steps}")).expect("a pipeline")
}

/// Submits and waits, with a bound.
async fn run(engine: &Engine, pipeline: &Pipeline) -> (RunId, RunStatus) {
    let run = engine.submit(pipeline, &BTreeMap::new()).await.expect("a run");
    (run, ended(engine, run).await)
}

async fn ended(engine: &Engine, run: RunId) -> RunStatus {
    tokio::time::timeout(SOON, engine.wait(run)).await.expect("in time").expect("a status")
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, what).await.expect("in time")
}

/// Says when it is dropped.
struct Dropped(Arc<Notify>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Returns a handler that reports its start and its drop, and never ends.
fn endless(
    began: &Arc<Notify>,
    dropped: &Arc<Notify>,
) -> impl Fn(Call) -> EndlessFuture + Send + Sync + use<> {
    let (began, dropped) = (Arc::clone(began), Arc::clone(dropped));
    move |_| {
        let (began, guard) = (Arc::clone(&began), Dropped(Arc::clone(&dropped)));
        Box::pin(async move {
            let _guard = guard;
            began.notify_one();
            std::future::pending().await
        })
    }
}

type EndlessFuture = std::pin::Pin<Box<dyn Future<Output = Result<serde_json::Value, CallError>> + Send>>;

#[tokio::test]
async fn handlers_get_their_input_and_return_outputs() {
    let sandbox = Sandbox::new();
    let engine = Engine::builder(sandbox.data())
        .handler("sum", |call: Call| async move {
            let n = call.with["n"].as_i64().ok_or("n is missing")?;
            Ok(json!({ "sum": n + call.inputs["more"].as_i64().unwrap_or(0), "key": call.idempotency_key() }))
        })
        .handler("flaky", |call: Call| async move {
            if call.attempt < 3 { Err("not yet".into()) } else { Ok(json!(call.attempt)) }
        })
        .handler("final", |_| async { Err(CallError { message: "no use".into(), retriable: false }) })
        .start()
        .await
        .expect("an engine");
    let text = "inputs: { more: { type: integer, default: 5 } }\nsteps:\n  - id: a\n    call: { handler: sum, with: { n: 2 } }\n  - id: b\n    call: flaky\n    retry: { attempts: 3 }\n  - id: c\n    call: final\n    retry: { attempts: 3 }\n    on_fail: continue\n";
    let pipeline = sprag::parse("test.yaml", text).expect("a pipeline");
    let (id, status) = run(&engine, &pipeline).await;
    assert_eq!(status, RunStatus::Completed);
    assert_eq!(engine.output(id, "a").expect("a store"), Some(json!({ "sum": 7, "key": format!("{id}/a") })));
    assert_eq!(engine.output(id, "b").expect("a store"), Some(json!(3)));
    assert_eq!(engine.output(id, "c").expect("a store"), None);
    engine.shutdown().await.expect("a shutdown");
    let told = sandbox.status(&id.to_string());
    assert_eq!((&told["steps"][1]["attempt"], &told["steps"][2]["attempt"]), (&json!(3), &json!(1)));
    sandbox.check(&id.to_string());
}

#[tokio::test]
async fn a_cancelled_handler_is_dropped_before_the_run_is_cancelled() {
    let sandbox = Sandbox::new();
    let (began, dropped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let engine = Engine::builder(sandbox.data())
        .handler("endless", endless(&began, &dropped))
        .start()
        .await
        .expect("an engine");
    let id =
        engine.submit(&pipeline("  - id: a\n    call: endless\n"), &BTreeMap::new()).await.expect("a run");
    soon(began.notified()).await;
    engine.cancel(id).await.expect("a cancel");
    assert_eq!(ended(&engine, id).await, RunStatus::Cancelled);
    soon(dropped.notified()).await;
    engine.shutdown().await.expect("a shutdown");
    sandbox.check(&id.to_string());
}

#[tokio::test]
async fn a_handler_that_takes_too_long_is_dropped() {
    let sandbox = Sandbox::new();
    let (began, dropped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let engine = Engine::builder(sandbox.data())
        .handler("endless", endless(&began, &dropped))
        .start()
        .await
        .expect("an engine");
    let (id, status) = run(&engine, &pipeline("  - id: a\n    call: endless\n    timeout: 200ms\n")).await;
    assert_eq!(status, RunStatus::Failed);
    soon(dropped.notified()).await;
    assert_eq!(sandbox.check(&id.to_string()).events("execution.timed_out"), 1);
    engine.shutdown().await.expect("a shutdown");
}

#[tokio::test]
async fn a_panic_fails_its_step_and_nothing_else() {
    let sandbox = Sandbox::new();
    let (began, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, wait) = (Arc::clone(&began), Arc::clone(&go));
    let engine = Engine::builder(sandbox.data())
        .handler("panics", |call: Call| async move {
            assert!(call.attempt > 9, "a bug in a handler");
            Ok(json!(null))
        })
        .handler("waits", move |_| {
            let (tell, wait) = (Arc::clone(&tell), Arc::clone(&wait));
            async move {
                tell.notify_one();
                wait.notified().await;
                Ok(json!("fine"))
            }
        })
        .start()
        .await
        .expect("an engine");
    let other =
        engine.submit(&pipeline("  - id: a\n    call: waits\n"), &BTreeMap::new()).await.expect("a run");
    soon(began.notified()).await;
    let (id, status) =
        run(&engine, &pipeline("  - id: a\n    call: panics\n    retry: { attempts: 2 }\n")).await;
    assert_eq!(status, RunStatus::Failed);
    assert_eq!(sandbox.status(&id.to_string())["steps"][0]["attempt"], 2);
    go.notify_one();
    assert_eq!(ended(&engine, other).await, RunStatus::Completed);
    assert_eq!(engine.output(other, "a").expect("a store"), Some(json!("fine")));
    engine.shutdown().await.expect("a shutdown");
}

#[tokio::test]
async fn a_handler_may_work_for_longer_than_its_lease() {
    let sandbox = Sandbox::new();
    let engine = Engine::builder(sandbox.data())
        .lease(Duration::from_secs(5))
        .handler("long", |call: Call| async move {
            // Longer than the lease, by a clock of its own.
            let _ = tokio::time::timeout(Duration::from_secs(7), std::future::pending::<()>()).await;
            Ok(json!(call.attempt))
        })
        .start()
        .await
        .expect("an engine");
    let (id, status) = run(&engine, &pipeline("  - id: a\n    call: long\n")).await;
    assert_eq!((status, engine.output(id, "a").expect("a store")), (RunStatus::Completed, Some(json!(1))));
    engine.shutdown().await.expect("a shutdown");
}

#[tokio::test]
async fn commands_run_with_the_program_that_supervises() {
    let sandbox = Sandbox::new();
    let engine = Engine::builder(sandbox.data()).commands(program()).start().await.expect("an engine");
    let ran = sandbox.path("ran");
    let (_, status) = run(&engine, &pipeline(&format!("  - id: a\n    run: [touch, {ran:?}]\n"))).await;
    assert_eq!((status, ran.exists()), (RunStatus::Completed, true));
    let (_, status) = run(&engine, &pipeline("  - id: a\n    call: nobody\n")).await;
    assert_eq!(status, RunStatus::Failed, "no such handler");
    engine.shutdown().await.expect("a shutdown");
}

#[tokio::test]
async fn the_stream_of_events_has_no_gap() {
    let sandbox = Sandbox::new();
    let engine = Engine::builder(sandbox.data())
        .handler("ok", |_| async { Ok(json!(1)) })
        .start()
        .await
        .expect("an engine");
    let mut events = engine.events(None, 0);
    let pipeline = pipeline("  - id: a\n    call: ok\n  - id: b\n    call: ok\n");
    let mut runs = Vec::new();
    for _ in 0..30 {
        runs.push(engine.submit(&pipeline, &BTreeMap::new()).await.expect("a run"));
    }
    let (mut next, mut over) = (1, 0);
    while over < runs.len() {
        for entry in soon(events.next()).await.expect("a store") {
            assert_eq!(entry.seq, next);
            next += 1;
            over += usize::from(entry.event == "run.succeeded");
        }
    }
    // From another place and for one run: the same entries.
    let mut one = engine.events(Some(runs[7]), 0);
    let told = one.ready().expect("a store");
    assert_eq!(told.last().map(|entry| entry.event), Some("run.succeeded"));
    assert_eq!(told.len(), sandbox.check(&runs[7].to_string()).entries.len());
    engine.shutdown().await.expect("a shutdown");
}

#[tokio::test]
async fn a_shutdown_finishes_running_steps_and_the_next_engine_continues() {
    let sandbox = Sandbox::new();
    let (began, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let calls = Arc::new(Mutex::new(Vec::new()));
    let build = || {
        let (tell, wait, calls) = (Arc::clone(&began), Arc::clone(&go), Arc::clone(&calls));
        Engine::builder(sandbox.data()).slots(1).handler("waits", move |call: Call| {
            let (tell, wait, calls) = (Arc::clone(&tell), Arc::clone(&wait), Arc::clone(&calls));
            async move {
                calls.lock().expect("no panic").push(format!("{} {}", call.step, call.attempt));
                tell.notify_one();
                wait.notified().await;
                Ok(json!(null))
            }
        })
    };
    let engine = build().start().await.expect("an engine");
    let two = pipeline("  - id: a\n    call: waits\n  - id: b\n    call: waits\n");
    let id = engine.submit(&two, &BTreeMap::new()).await.expect("a run");
    soon(began.notified()).await;
    let mut leaving = std::pin::pin!(engine.shutdown());
    let early = tokio::time::timeout(Duration::from_millis(100), &mut leaving).await;
    assert!(early.is_err(), "it waits for what goes on");
    go.notify_one();
    soon(leaving).await.expect("a shutdown");
    assert_eq!(*calls.lock().expect("no panic"), ["a 1"], "it takes nothing more");
    let engine = build().start().await.expect("an engine");
    soon(began.notified()).await;
    go.notify_one();
    assert_eq!(ended(&engine, id).await, RunStatus::Completed);
    assert_eq!(*calls.lock().expect("no panic"), ["a 1", "b 1"]);
    engine.shutdown().await.expect("a shutdown");
    sandbox.check(&id.to_string());
}

/// Fails as often as it is told, and counts.
struct Counted {
    name: &'static str,
    failures: usize,
    calls: Arc<AtomicUsize>,
}

impl Effect for Counted {
    fn name(&self) -> &'static str {
        self.name
    }

    fn run_ended(&self, _: RunId) -> EffectFuture<'_> {
        let before = self.calls.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move { if before < self.failures { Err("not today".into()) } else { Ok(()) } })
    }
}

/// Waits until something was called so often.
async fn reaches(count: &Arc<AtomicUsize>, wanted: usize) {
    let count = Arc::clone(count);
    let look = move || until("the effect is carried out", || count.load(Ordering::SeqCst) >= wanted);
    tokio::task::spawn_blocking(look).await.expect("in time");
}

#[tokio::test]
async fn p09_a_failing_effect_blocks_no_other_undoes_nothing_and_is_retried() {
    let sandbox = Sandbox::new();
    let (bad, good) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let engine = Engine::builder(sandbox.data())
        .handler("ok", |_| async { Ok(json!(1)) })
        .effect(Arc::new(Counted { name: "bad", failures: 2, calls: Arc::clone(&bad) }))
        .effect(Arc::new(Counted { name: "good", failures: 0, calls: Arc::clone(&good) }))
        .start()
        .await
        .expect("an engine");
    let (id, status) = run(&engine, &pipeline("  - id: a\n    call: ok\n")).await;
    assert_eq!(status, RunStatus::Completed);
    let before = sandbox.check(&id.to_string()).entries;
    reaches(&good, 1).await;
    // Others are not kept waiting by the one that fails.
    let (other, _) = run(&engine, &pipeline("  - id: a\n    call: ok\n")).await;
    reaches(&bad, 3).await;
    assert_eq!(engine.status(id).expect("a store"), RunStatus::Completed);
    assert_eq!(sandbox.check(&id.to_string()).entries, before, "nothing was undone");
    assert_eq!(engine.status(other).expect("a store"), RunStatus::Completed);
    engine.shutdown().await.expect("a shutdown");
}
