//! The `sprag` crate embedded in a program.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sprag::{Context, Engine, HandlerError, Pipeline, Run, RunStatus};
use sprag_tests::{SOON, Sandbox, program, until};
use tokio::sync::Notify;

fn pipeline(steps: &str) -> Pipeline {
    Pipeline::parse(&format!("steps:\n{steps}")).expect("a pipeline")
}

/// Submits and waits, with a bound.
async fn run(engine: &Engine, pipeline: &Pipeline) -> (Run, RunStatus) {
    let run = start(engine, pipeline).await;
    let status = ended(&run).await;
    (run, status)
}

async fn start(engine: &Engine, pipeline: &Pipeline) -> Run {
    engine.new_run(pipeline).start().await.expect("a run")
}

async fn ended(run: &Run) -> RunStatus {
    tokio::time::timeout(SOON, run.wait()).await.expect("in time").expect("a status")
}

/// Returns what a step produced.
fn output(run: &Run, step: &str) -> Option<Value> {
    run.output(step).expect("a store")
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
) -> impl Fn(Context, Value) -> EndlessFuture + Send + Sync + use<> {
    let (began, dropped) = (Arc::clone(began), Arc::clone(dropped));
    move |_, _| {
        let (began, guard) = (Arc::clone(&began), Dropped(Arc::clone(&dropped)));
        Box::pin(async move {
            let _guard = guard;
            began.notify_one();
            std::future::pending().await
        })
    }
}

type EndlessFuture = std::pin::Pin<Box<dyn Future<Output = Result<Value, HandlerError>> + Send>>;

#[tokio::test]
async fn handlers_get_their_input_and_return_outputs() {
    let sandbox = Sandbox::new();
    let engine = Engine::sqlite(sandbox.data())
        .handler("sum", |ctx: Context, with: Value| async move {
            let n = with["n"].as_i64().ok_or("n is missing")?;
            Ok(json!({ "sum": n + ctx.inputs()["more"].as_i64().unwrap_or(0), "key": ctx.idempotency_key() }))
        })
        .handler("flaky", |ctx: Context, (): ()| async move {
            if ctx.attempt() < 3 { Err("not yet".into()) } else { Ok(ctx.attempt()) }
        })
        .handler("final", |_, (): ()| async { Err::<(), _>(HandlerError::permanent("no use")) })
        .start()
        .await
        .expect("an engine");
    let text = "inputs: { more: { type: integer, default: 5 } }\nsteps:\n  - id: a\n    call: { handler: sum, with: { n: 2 } }\n  - id: b\n    call: flaky\n    retry: { attempts: 3 }\n  - id: c\n    call: final\n    retry: { attempts: 3 }\n    on_fail: continue\n";
    let pipeline = Pipeline::parse(text).expect("a pipeline");
    let (run, status) = run(&engine, &pipeline).await;
    let id = run.id();
    assert_eq!(status, RunStatus::Completed);
    assert_eq!(output(&run, "a"), Some(json!({ "sum": 7, "key": format!("{id}/a") })));
    assert_eq!(output(&run, "b"), Some(json!(3)));
    assert_eq!(output(&run, "c"), None);
    engine.shutdown().await.expect("a shutdown");
    let told = sandbox.status(&id.to_string());
    assert_eq!((&told["steps"][1]["attempt"], &told["steps"][2]["attempt"]), (&json!(3), &json!(1)));
    sandbox.check(&id.to_string());
}

#[tokio::test]
async fn a_cancelled_handler_is_dropped_before_the_run_is_cancelled() {
    let sandbox = Sandbox::new();
    let (began, dropped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let engine = Engine::sqlite(sandbox.data())
        .handler("endless", endless(&began, &dropped))
        .start()
        .await
        .expect("an engine");
    let run = start(&engine, &pipeline("  - id: a\n    call: endless\n")).await;
    soon(began.notified()).await;
    run.cancel().await.expect("a cancel");
    assert_eq!(ended(&run).await, RunStatus::Cancelled);
    soon(dropped.notified()).await;
    engine.shutdown().await.expect("a shutdown");
    sandbox.check(&run.id().to_string());
}

#[tokio::test]
async fn a_handler_that_takes_too_long_is_dropped() {
    let sandbox = Sandbox::new();
    let (began, dropped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let engine = Engine::sqlite(sandbox.data())
        .handler("endless", endless(&began, &dropped))
        .start()
        .await
        .expect("an engine");
    let (run, status) = run(&engine, &pipeline("  - id: a\n    call: endless\n    timeout: 200ms\n")).await;
    assert_eq!(status, RunStatus::Failed);
    soon(dropped.notified()).await;
    assert_eq!(sandbox.check(&run.id().to_string()).events("execution.timed_out"), 1);
    engine.shutdown().await.expect("a shutdown");
}

#[tokio::test]
async fn a_panic_fails_its_step_and_nothing_else() {
    let sandbox = Sandbox::new();
    let (began, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, wait) = (Arc::clone(&began), Arc::clone(&go));
    let engine = Engine::sqlite(sandbox.data())
        .handler("panics", |ctx: Context, (): ()| async move {
            assert!(ctx.attempt() > 9, "a bug in a handler");
            Ok(())
        })
        .handler("waits", move |_, (): ()| {
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
    let other = start(&engine, &pipeline("  - id: a\n    call: waits\n")).await;
    soon(began.notified()).await;
    let (run, status) =
        run(&engine, &pipeline("  - id: a\n    call: panics\n    retry: { attempts: 2 }\n")).await;
    assert_eq!(status, RunStatus::Failed);
    assert_eq!(sandbox.status(&run.id().to_string())["steps"][0]["attempt"], 2);
    go.notify_one();
    assert_eq!(ended(&other).await, RunStatus::Completed);
    assert_eq!(output(&other, "a"), Some(json!("fine")));
    engine.shutdown().await.expect("a shutdown");
}

#[tokio::test]
async fn a_handler_may_work_for_longer_than_its_lease() {
    let sandbox = Sandbox::new();
    let engine = Engine::sqlite(sandbox.data())
        .lease(Duration::from_secs(5))
        .handler("long", |ctx: Context, (): ()| async move {
            // Longer than the lease, by a clock of its own.
            let _ = tokio::time::timeout(Duration::from_secs(7), std::future::pending::<()>()).await;
            Ok(ctx.attempt())
        })
        .start()
        .await
        .expect("an engine");
    let (run, status) = run(&engine, &pipeline("  - id: a\n    call: long\n")).await;
    assert_eq!((status, output(&run, "a")), (RunStatus::Completed, Some(json!(1))));
    engine.shutdown().await.expect("a shutdown");
}

#[tokio::test]
async fn commands_run_with_the_program_that_supervises() {
    let sandbox = Sandbox::new();
    let engine = Engine::sqlite(sandbox.data()).commands(program()).start().await.expect("an engine");
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
    let engine = Engine::sqlite(sandbox.data())
        .handler("ok", |_, (): ()| async { Ok(1) })
        .start()
        .await
        .expect("an engine");
    let mut events = engine.events(0);
    let pipeline = pipeline("  - id: a\n    call: ok\n  - id: b\n    call: ok\n");
    let mut runs = Vec::new();
    for _ in 0..30 {
        runs.push(start(&engine, &pipeline).await);
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
    let mut one = runs[7].events();
    let told = one.ready().expect("a store");
    assert_eq!(told.last().map(|entry| entry.event), Some("run.succeeded"));
    assert_eq!(told.len(), sandbox.check(&runs[7].id().to_string()).entries.len());
    engine.shutdown().await.expect("a shutdown");
}

#[tokio::test]
async fn a_shutdown_finishes_running_steps_and_the_next_engine_continues() {
    let sandbox = Sandbox::new();
    let (began, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let calls = Arc::new(Mutex::new(Vec::new()));
    let build = || {
        let (tell, wait, calls) = (Arc::clone(&began), Arc::clone(&go), Arc::clone(&calls));
        Engine::sqlite(sandbox.data()).slots(1).handler("waits", move |ctx: Context, (): ()| {
            let (tell, wait, calls) = (Arc::clone(&tell), Arc::clone(&wait), Arc::clone(&calls));
            async move {
                calls.lock().expect("no panic").push(format!("{} {}", ctx.step(), ctx.attempt()));
                tell.notify_one();
                wait.notified().await;
                Ok(json!(null))
            }
        })
    };
    let engine = build().start().await.expect("an engine");
    let two = pipeline("  - id: a\n    call: waits\n  - id: b\n    call: waits\n");
    let id = start(&engine, &two).await.id();
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
    assert_eq!(ended(&engine.run(id).expect("the run")).await, RunStatus::Completed);
    assert_eq!(*calls.lock().expect("no panic"), ["a 1", "b 1"]);
    engine.shutdown().await.expect("a shutdown");
    sandbox.check(&id.to_string());
}

/// Returns a function that fails as often as it is told, and counts its calls.
fn counted(
    failures: usize,
    calls: &Arc<AtomicUsize>,
) -> impl Fn(sprag::RunId) -> std::future::Ready<Result<(), &'static str>> + use<> {
    let calls = Arc::clone(calls);
    move |_| {
        let before = calls.fetch_add(1, Ordering::SeqCst);
        std::future::ready(if before < failures { Err("not today") } else { Ok(()) })
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
    let engine = Engine::sqlite(sandbox.data())
        .handler("ok", |_, (): ()| async { Ok(1) })
        .after_run("bad", counted(2, &bad))
        .after_run("good", counted(0, &good))
        .start()
        .await
        .expect("an engine");
    let (first, status) = run(&engine, &pipeline("  - id: a\n    call: ok\n")).await;
    let id = first.id();
    assert_eq!(status, RunStatus::Completed);
    let before = sandbox.check(&id.to_string()).entries;
    reaches(&good, 1).await;
    // Others are not kept waiting by the one that fails.
    let (other, _) = run(&engine, &pipeline("  - id: a\n    call: ok\n")).await;
    reaches(&bad, 3).await;
    assert_eq!(first.status().expect("a store"), RunStatus::Completed);
    assert_eq!(sandbox.check(&id.to_string()).entries, before, "nothing was undone");
    assert_eq!(other.status().expect("a store"), RunStatus::Completed);
    engine.shutdown().await.expect("a shutdown");
}

#[tokio::test]
async fn a_run_has_the_outputs_that_its_pipeline_declares() {
    let sandbox = Sandbox::new();
    let engine = Engine::sqlite(sandbox.data())
        .handler("seven", |_: Context, (): ()| async move { Ok(7) })
        .start()
        .await
        .expect("an engine");
    let text = "run_name: lucky\noutputs: { n: '{{ steps.a.outputs.value }}' }\nsteps:\n  - { id: a, call: seven }\n";
    let (run, status) = run(&engine, &Pipeline::parse(text).expect("a pipeline")).await;
    assert_eq!(status, RunStatus::Completed);
    assert_eq!(run.outputs::<Value>().expect("a store"), Some(json!({ "n": 7 })));
}
