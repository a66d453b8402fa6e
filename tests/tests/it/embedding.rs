//! The library `sprag` as programs embed it: typed handlers, outputs of any step, cancellation, logs, and the examples.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sprag::{Context, Engine, ErrorKind, Pipeline, Run, RunStatus, StepStatus};
use sprag_tests::{Request, SOON, Sandbox, Signal, program, until_some};
use tokio::sync::Notify;

#[derive(Deserialize)]
struct Order {
    lines: Vec<Line>,
}

#[derive(Deserialize)]
struct Line {
    cents: u64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Receipt {
    cents: u64,
    step: String,
}

async fn completed(engine: &Engine, pipeline: &str) -> Run {
    let run = started(engine, pipeline).await;
    assert_eq!(ended(&run).await, RunStatus::Completed);
    run
}

async fn started(engine: &Engine, pipeline: &str) -> Run {
    let pipeline = Pipeline::parse(pipeline).expect("a pipeline");
    engine.new_run(&pipeline).start().await.expect("a run")
}

async fn ended(run: &Run) -> RunStatus {
    tokio::time::timeout(SOON, run.wait()).await.expect("in time").expect("a status")
}

async fn shop() -> Engine {
    let charge = |ctx: Context, order: Order| async move {
        let cents = order.lines.iter().map(|line| line.cents).sum();
        Ok(Receipt { cents, step: ctx.step().to_owned() })
    };
    Engine::in_memory().handler("charge", charge).start().await.expect("an engine")
}

#[tokio::test]
async fn handlers_have_typed_inputs_and_outputs() {
    let engine = shop().await;
    let run = completed(
        &engine,
        "steps: [{ id: pay, call: { handler: charge, with: { lines: [{ cents: 40 }, { cents: 2 }] } } }]",
    )
    .await;
    let receipt: Option<Receipt> = run.output("pay").expect("an output");
    assert_eq!(receipt, Some(Receipt { cents: 42, step: "pay".into() }));
    let other = run.output::<u64>("pay").expect_err("another type");
    assert_eq!(other.kind(), ErrorKind::Invalid);
    assert!(other.to_string().contains("\"pay\""), "{other}");
    engine.shutdown().await.expect("a shutdown");
}

#[tokio::test]
async fn a_wrong_input_fails_the_step_without_a_retry_and_names_handler_and_field() {
    let engine = shop().await;
    let run = started(
        &engine,
        "steps: [{ id: pay, call: { handler: charge, with: { lines: [{ cents: ten }] } }, retry: { attempts: 3 } }]",
    )
    .await;
    assert_eq!(ended(&run).await, RunStatus::Failed);
    let step = run.steps().expect("steps").remove(0);
    assert_eq!((step.status, step.attempt), (StepStatus::Failed, 1));
    let error = step.error.expect("a message");
    assert!(error.contains("\"charge\"") && error.contains("`with.lines[0].cents`"), "{error}");
    assert_eq!(run.output::<Value>("pay").expect("a store"), None);
    engine.shutdown().await.expect("a shutdown");
}

#[tokio::test]
async fn outputs_of_every_kind_of_step_can_be_read() {
    let sandbox = Sandbox::new();
    let engine = Engine::sqlite(sandbox.data())
        .commands(program())
        .handler("double", |_, n: i64| async move { Ok(n * 2) })
        .start()
        .await
        .expect("an engine");
    let run = completed(
        &engine,
        r#"
steps:
  - id: count
    run: [echo, '{"n": 3}']
    outputs: { facts: { stdout: json } }
  - id: quiet
    run: ["true"]
  - id: each
    foreach: [1, 2, 3]
    call: { handler: double, with: "{{ item }}" }
"#,
    )
    .await;
    let output = |step: &str| run.output::<Value>(step).expect("an output");
    assert_eq!(output("count"), Some(json!({ "facts": { "n": 3 } })));
    assert_eq!(output("quiet"), Some(json!({})));
    assert_eq!(output("each"), Some(json!([2, 4, 6])));
    assert_eq!(output("each[1]"), Some(json!(4)));
    let unknown = run.output::<Value>("nope").expect_err("no such step");
    assert!(unknown.advice().is_some_and(|advice| advice.contains("count")), "{unknown}");
    engine.shutdown().await.expect("a shutdown");
}

#[tokio::test]
async fn a_handler_that_listens_has_time_to_stop_by_itself() {
    let (began, stopped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell_begun, tell_stopped) = (Arc::clone(&began), Arc::clone(&stopped));
    let engine = Engine::in_memory()
        .handler("listens", move |ctx: Context, (): ()| {
            let (began, stopped) = (Arc::clone(&tell_begun), Arc::clone(&tell_stopped));
            async move {
                assert!(!ctx.is_cancelled());
                began.notify_one();
                ctx.cancelled().await;
                // Work after the request to stop, which a dropped future would not do.
                tokio::task::yield_now().await;
                stopped.notify_one();
                Ok(ctx.is_cancelled())
            }
        })
        .start()
        .await
        .expect("an engine");
    let run = started(&engine, "steps: [{ id: a, call: listens }]").await;
    tokio::time::timeout(SOON, began.notified()).await.expect("in time");
    run.cancel().await.expect("a cancel");
    assert_eq!(ended(&run).await, RunStatus::Cancelled);
    tokio::time::timeout(SOON, stopped.notified()).await.expect("it stopped by itself");
    assert_eq!(run.output::<Value>("a").expect("a store"), None);
    engine.shutdown().await.expect("a shutdown");
}

#[tokio::test]
async fn a_handler_that_listens_and_does_not_stop_is_dropped_after_the_grace() {
    let began = Arc::new(Notify::new());
    let tell = Arc::clone(&began);
    let engine = Engine::in_memory()
        .grace(Duration::from_millis(50))
        .handler("stubborn", move |ctx: Context, (): ()| {
            let began = Arc::clone(&tell);
            async move {
                let _ = ctx.is_cancelled();
                began.notify_one();
                std::future::pending::<()>().await;
                Ok(())
            }
        })
        .start()
        .await
        .expect("an engine");
    let run = started(&engine, "steps: [{ id: a, call: stubborn }]").await;
    tokio::time::timeout(SOON, began.notified()).await.expect("in time");
    run.cancel().await.expect("a cancel");
    assert_eq!(ended(&run).await, RunStatus::Cancelled);
    engine.shutdown().await.expect("a shutdown");
}

#[tokio::test]
async fn what_a_handler_logs_is_in_the_log_of_its_step() {
    let sandbox = Sandbox::new();
    let engine = Engine::sqlite(sandbox.data())
        .handler("talks", |ctx: Context, (): ()| async move {
            ctx.log("one\ntwo");
            ctx.log(format_args!("attempt {}", ctx.attempt()));
            Ok(())
        })
        .start()
        .await
        .expect("an engine");
    let run = completed(&engine, "steps: [{ id: a, call: talks }]").await;
    assert_eq!(run.log("a").expect("a log"), ["one", "two", "attempt 1"]);
    engine.shutdown().await.expect("a shutdown");
    let shown = sandbox.sprag(["logs", &run.id().to_string()]).expect(0).stdout;
    assert!(shown.contains("two") && shown.contains("attempt 1"), "{shown}");
}

#[tokio::test]
async fn an_engine_serves_the_http_api_of_its_runs() {
    let sandbox = Sandbox::new();
    let engine = Engine::sqlite(sandbox.data())
        .handler("ok", |_, (): ()| async { Ok("fine") })
        .start()
        .await
        .expect("an engine");
    let run = completed(&engine, "steps: [{ id: a, call: ok }]").await;
    let server = engine.serve(([127, 0, 0, 1], 0).into()).await.expect("a server");
    let (addr, token) = (server.addr(), sandbox.local_token());
    let path = format!("/v1/runs/{}", run.id());
    let asked = tokio::task::spawn_blocking(move || {
        Request::to(addr, "GET", &path).send().expect(401);
        Request::to(addr, "GET", &path).token(&token).send().expect(200).json()
    });
    assert_eq!(asked.await.expect("an answer")["status"], "completed");
    server.shutdown().await;
    engine.shutdown().await.expect("a shutdown");
}

/// Returns the built example of this name, and builds it if it is not there.
fn example(name: &str) -> PathBuf {
    let profile = program().parent().expect("a folder");
    let built = profile.join("examples").join(name);
    if !built.exists() {
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "--package", "sprag", "--example", name, "--manifest-path"]);
        build.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"));
        build.arg("--target-dir").arg(profile.parent().expect("a folder"));
        assert!(build.status().expect("cargo").success(), "{name} is built");
    }
    built
}

#[test]
fn the_batch_example_sums_up_and_starts_nothing_twice() {
    let sandbox = Sandbox::new();
    let batch = || {
        let mut command = Command::new(example("batch"));
        command.arg("120").arg(sandbox.data());
        sandbox.start_command(command).finish().expect(1).stdout
    };
    let said = batch();
    assert!(said.contains(r#"120 runs: {"completed": 119, "failed": 1}"#), "{said}");
    assert!(said.contains("there is no item 100"), "{said}");
    assert_eq!(batch(), said, "the same runs, by their keys");
}

#[test]
fn the_web_service_example_runs_orders_and_streams_their_events() {
    let sandbox = Sandbox::new();
    let mut command = Command::new(example("web_service"));
    command.arg(sandbox.data()).arg("127.0.0.1:0");
    let service = sandbox.start_command(command);
    let addr = until_some("it listens", || {
        let said = service.stdout();
        said.strip_prefix("listening on ")?.lines().next()?.parse().ok()
    });
    let order = || {
        let body = json!({ "item": "teapot", "cents": 4200 });
        Request::to(addr, "POST", "/orders").header("idempotency-key", "order-7").json(&body).send()
    };
    let first = order().expect(202).json();
    assert_eq!(order().expect(202).json(), first, "the key has started it already");
    let path = format!("/orders/{}", first["run"].as_str().expect("a run"));
    let events = Request::to(addr, "GET", &format!("{path}/events")).send().expect(200).text();
    assert!(events.contains("event: run.succeeded"), "{events}");
    let order = until_some("the order is charged", || {
        let order = Request::to(addr, "GET", &path).send().expect(200).json();
        (order["status"] == "completed").then_some(order)
    });
    assert_eq!(order["receipt"]["cents"], 4200);
    assert_eq!(order["receipt"]["shelf"], 6);
    Request::to(addr, "GET", "/orders/0ajd4xepmxy6").send().expect(404);
    let other = Request::to(addr, "POST", "/orders").header("idempotency-key", "order-7");
    let refused = other.json(&json!({ "item": "teapot", "cents": 1 })).send().expect(422).text();
    assert!(refused.contains("other inputs"), "{refused}");
    service.signal(Signal::INT);
    assert!(service.finish().expect(0).stdout.ends_with("stopped\n"));
}
