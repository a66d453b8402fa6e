//! The rate of a rule: events beyond it wait, start in their order, and none is lost when servers are killed.

use serde_json::Value;
use sprag_testkit::Postgres;
use sprag_tests::{Request, Sandbox, Server, until};

use crate::serve_hooks::hmac;

const RULE: &str = "name: slow
inputs: { n: string }
on:
  - id: asked
    webhook: { kind: generic, secrets: [HOOK] }
    rate: { limit: 2, per: 2s }
    overlap: allow
    inputs: { n: \"{{ event.body.n }}\" }
steps:
  - id: a
    run: 'true'
";
/// The number of events; the rate lets two of them start at once.
const EVENTS: usize = 8;

fn serve(sandbox: &Sandbox) -> Server {
    let mut command = sandbox.command(["serve", "--listen", "127.0.0.1:0", "--no-worker"]);
    command.env("HOOK", "secret");
    Server::from_process(sandbox, sandbox.start_command(command))
}

/// Sends event `n`, which is on disk then.
fn send(server: &Server, n: usize) {
    let body = format!("{{\"n\": \"{n}\"}}");
    let request =
        Request::to(server.addr, "POST", "/in/slow/asked").header("x-signature-256", &hmac("secret", &body));
    request.body("application/json", body.as_bytes()).send().expect(202);
}

/// Returns the events that have started runs, as their numbers and the times of the starts, oldest first.
fn runs(sandbox: &Sandbox) -> Vec<(usize, i64)> {
    let ask = |args: &[&str]| sandbox.sprag(args.iter().copied().chain(["--json"])).expect(0).json();
    let runs = ask(&["ls", "--limit", "1000"]);
    let events = ask(&["delivery", "ls", "--limit", "1000"]);
    let run = |run: &Value| {
        let event = events.as_array().expect("events").iter().find(|event| event["run"] == run["id"])?;
        let shown = ask(&["delivery", "show", event["event"].as_str().expect("an event")]);
        let n = shown["event"]["event"]["body"]["n"].as_str().expect("its number").parse().expect("a number");
        let created: jiff::Timestamp = run["created_at"].as_str().expect("a time").parse().expect("a time");
        Some((n, created.as_millisecond()))
    };
    let mut runs: Vec<(usize, i64)> = runs.as_array().expect("runs").iter().filter_map(run).collect();
    runs.sort_by_key(|(_, created_ms)| *created_ms);
    runs
}

fn events_wait_for_the_rate(sandbox: &Sandbox) {
    sandbox.yaml("slow", RULE);
    sandbox.sprag(["rule", "apply", "slow.yaml"]).expect(0);
    let mut server = serve(sandbox);
    for n in 0..EVENTS / 2 {
        send(&server, n);
    }
    until("the rate is used up, and others wait", || runs(sandbox).len() >= 2);
    let told = sandbox.sprag(["delivery", "ls"]).expect(0).stdout;
    assert!(told.contains("waits for its rate until"), "{told}");
    // Newcomers queue behind those that wait, whatever happens to the server.
    server.into_process().kill();
    server = serve(sandbox);
    for n in EVENTS / 2..EVENTS {
        send(&server, n);
    }
    until("half of them have started", || runs(sandbox).len() >= EVENTS / 2);
    server.into_process().kill();
    let server = serve(sandbox);
    until("all of them have started", || runs(sandbox).len() == EVENTS);
    let runs = runs(sandbox);
    let order: Vec<usize> = runs.iter().map(|(n, _)| *n).collect();
    assert_eq!(order, (0..EVENTS).collect::<Vec<_>>(), "{runs:?}");
    // Two at once, and one in each second from then on: any three take a second at least.
    let apart = runs.windows(3).map(|three| three[2].1 - three[0].1).min().expect("runs");
    assert!(apart >= 900, "three runs started within {apart} ms: {runs:?}");
    drop(server);
}

#[test]
fn hr10_events_beyond_the_rate_start_in_their_order_and_none_is_lost() {
    events_wait_for_the_rate(&Sandbox::new());
}

#[test]
fn hr10_events_beyond_the_rate_start_in_their_order_on_postgres() {
    let database = Postgres::shared().database();
    events_wait_for_the_rate(&Sandbox::on(&database.url));
}
