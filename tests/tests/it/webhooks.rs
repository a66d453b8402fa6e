//! Webhooks in: signed requests reach rules, and each of them starts one run, whatever happens to servers and answers.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use sprag_testkit::Postgres;
use sprag_tests::{Reply, Request, Sandbox, Server, connect, nightly, until, until_some};

use crate::json_shapes::check_shape;
use crate::serve_hooks::hmac;

const RULES: &str = "name: ci
inputs: { ref: string }
on:
  - id: push
    webhook: { kind: github, secrets: [HOOK_NEW, HOOK_OLD], max_body: 1000 }
    when: event.body.ref == 'refs/heads/main' and event.headers['x-github-event'] == 'push'
    overlap: allow
    inputs: { ref: \"{{ event.body.ref }} {{ event.body.by }}\" }
  - id: many
    webhook: { kind: generic, secrets: [HOOK_NEW], key: \"{{ event.body.id }}\" }
    debounce: { for: 1s, at_most: 5s }
    overlap: allow
    inputs: { ref: \"{{ event.body.id }}\" }
  - id: few
    webhook: { kind: generic, secrets: [HOOK_NEW] }
    rate: { limit: 1, per: 1h, over: skip }
    overlap: allow
    inputs: { ref: few }
  - id: chat
    webhook: { kind: slack, secrets: [HOOK_NEW] }
    inputs: { ref: chat }
steps:
  - id: build
    run: echo {{ inputs.ref }} >> builds
";

/// Starts a server that has these secrets, and a second address for webhooks.
fn serve(sandbox: &Sandbox, secrets: &[(&str, &str)], args: &[&str]) -> Server {
    let fixed = ["serve", "--listen", "127.0.0.1:0", "--in-listen", "127.0.0.1:0"];
    let mut command = sandbox.command(fixed.iter().chain(args));
    command.envs(secrets.iter().copied());
    Server::from_process(sandbox, sandbox.start_command(command))
}

/// Returns the address that takes webhooks alone.
fn in_addr(server: &mut Server) -> SocketAddr {
    until_some("the address for webhooks is shown", || {
        let told = server.process().stdout();
        told.split_once("webhooks at http://")?.1.split('/').next()?.parse().ok()
    })
}

/// Returns a request to a rule that GitHub would sign.
fn github(addr: SocketAddr, secret: &str, delivery: &str, body: &str) -> Request {
    Request::to(addr, "POST", "/in/ci/push")
        .header("x-github-event", "push")
        .header("x-github-delivery", delivery)
        .header("x-hub-signature-256", &format!("sha256={}", hmac(secret, body)))
        .body("application/json", body.as_bytes())
}

fn generic(addr: SocketAddr, rule: &str, body: &str) -> Reply {
    let request = Request::to(addr, "POST", &format!("/in/ci/{rule}"));
    let request = request.header("x-signature-256", &hmac("new", body));
    request.body("application/json", body.as_bytes()).send()
}

/// Returns what a command answers with `--json`.
fn ask<'a>(sandbox: &Sandbox, args: impl IntoIterator<Item = &'a &'a str>) -> Value {
    sandbox.sprag(args.into_iter().chain(&["--json"])).expect(0).json()
}

fn events(sandbox: &Sandbox) -> Vec<Value> {
    ask(sandbox, &["delivery", "ls", "--limit", "1000"]).as_array().expect("events").clone()
}

/// Waits until an event is decided, and returns the decision.
fn decision(sandbox: &Sandbox, taken: &Reply) -> Value {
    let event = taken.json()["event"].as_str().expect("an id").to_owned();
    until_some("the event is decided", || {
        let told = ask(sandbox, &["delivery", "show", &event]);
        let first = &told["decisions"][0];
        (!["created", "held"].contains(&first["status"].as_str()?)).then(|| first.clone())
    })
}

fn signed_requests(sandbox: &Sandbox) {
    sandbox.yaml("ci", RULES);
    sandbox.sprag(["rule", "apply", "ci.yaml"]).expect(0);
    assert_eq!(ask(sandbox, &["rule", "show", "push"])["url"], "/in/ci/push");
    let secrets = [("HOOK_NEW", "new"), ("HOOK_OLD", "old")];
    let mut server = serve(sandbox, &secrets, &[]);
    let addr = in_addr(&mut server);

    // R16: what is not signed is refused, and nothing is stored.
    let body = r#"{"ref": "refs/heads/main", "by": "ann"}"#;
    Request::to(addr, "POST", "/in/ci/push").json(&json!({})).send().problem(401, "unsigned");
    github(addr, "other", "1", body).send().problem(401, "unsigned");
    let written_again = r#"{"ref":"refs/heads/main","by":"ann"}"#;
    let signature = format!("sha256={}", hmac("new", written_again));
    let other = Request::to(addr, "POST", "/in/ci/push").header("x-hub-signature-256", &signature);
    other.body("application/json", body.as_bytes()).send().problem(401, "unsigned");
    // What cannot be read is refused with the reason, and nothing starts.
    let long = format!("{{\"ref\": \"{}\"}}", "x".repeat(2_000));
    github(addr, "new", "1", &long).send().problem(413, "too_large");
    github(addr, "new", "1", "{").send().problem(400, "malformed");
    for levels in [110, 450] {
        let deep = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        github(addr, "new", "1", &deep).send().problem(400, "malformed");
    }
    let kind = Request::to(addr, "POST", "/in/ci/few").header("x-signature-256", &hmac("new", "x"));
    kind.body("application/octet-stream", b"x").send().problem(415, "unsupported_media_type");
    // The address answers nothing else, and the name by which a sender calls does not matter.
    Request::to(addr, "POST", "/in/ci/nothing").json(&json!({})).send().problem(404, "not_found");
    Request::to(addr, "GET", "/v1/runs").token(&sandbox.local_token()).send().problem(404, "not_found");
    Request::to(addr, "GET", "/in/ci/push").send().problem(405, "method_not_allowed");
    assert!(events(sandbox).is_empty(), "nothing refused is stored");
    let refused = &ask(sandbox, &["rule", "show", "push"])["refused"];
    assert_eq!(
        refused["count"], 7,
        "three signatures, one long body and three that cannot be read: {refused}"
    );
    let told = sandbox.sprag(["explain", "ci/push"]).expect(0).stdout;
    assert!(told.contains("7 refused so far, the last because the body is not JSON"), "{told}");
    github(addr, "new", "1", &long).send().problem(413, "too_large");
    let told = sandbox.sprag(["rule", "ls"]).expect(0).stdout;
    assert!(told.contains("refused ×8") && told.contains("the body is longer than 1000 bytes"), "{told}");
    assert!(told.contains("a body of type \"application/octet-stream\" cannot be read"), "{told}");
    let forged = github(addr, "other", "1", body).send();
    forged.problem(401, "unsigned");
    let told = sandbox.sprag(["explain", "ci/push"]).expect(0).stdout;
    assert!(told.contains("9 refused so far, the last because its signature"), "{told}");

    // R17: either secret will do. R15, R18: a repeated body is the same event, whatever its delivery id.
    let first = github(addr, "old", "1", body).header("host", "hooks.example.com").send().expect(202);
    for n in 2..5 {
        let again = github(server.addr, "new", &n.to_string(), body).send().expect(200);
        assert_eq!(again.json(), first.json());
    }
    until("the run has ended", || sandbox.lines("builds") == ["refs/heads/main ann"]);
    assert_eq!(decision(sandbox, &first)["status"], "requested");

    // A condition that is false, and R20: one that has no answer.
    let other = github(addr, "new", "9", r#"{"ref": "refs/heads/other"}"#).send().expect(202);
    let told = decision(sandbox, &other);
    assert_eq!(told["status"], "skipped");
    assert!(told["reason"].as_str().expect("a reason").contains("its condition is false"), "{told}");
    // R23: with the values that it read.
    assert!(
        told["reason"].as_str().expect("a reason").contains(r#"event.body.ref is "refs/heads/other""#),
        "{told}"
    );
    let none = github(addr, "new", "10", r#"{"zen": "ping"}"#).send().expect(202);
    let told = decision(sandbox, &none);
    assert_eq!(told["status"], "failed");
    assert!(told["reason"].as_str().expect("a reason").contains("event.body.ref"), "{told}");

    // R25: a payload is data, in commands and in templates.
    let evil = r#"{"ref": "refs/heads/main", "by": "$(touch pwned) {{ 7 * 7 }} '; touch pwned"}"#;
    github(addr, "new", "11", evil).send().expect(202);
    until("the run has ended", || sandbox.lines("builds").len() == 2);
    assert_eq!(sandbox.lines("builds")[1], "refs/heads/main $(touch pwned) {{ 7 * 7 }} '; touch pwned");
    assert!(!sandbox.path("pwned").exists());

    // A limit on runs, and the question that Slack asks before it sends anything.
    let one = generic(addr, "few", "{\"n\": 1}").expect(202);
    assert_eq!(decision(sandbox, &one)["status"], "requested");
    let two = generic(addr, "few", "{\"n\": 2}").expect(202);
    assert_eq!(decision(sandbox, &two)["reason"], "more events than its rate allows");
    let count = events(sandbox).len();
    sandbox.write("challenge.json", r#"{"type": "url_verification", "challenge": "3eZb"}"#);
    let to = format!("http://{addr}");
    let mut command = sandbox.command(["delivery", "send", "chat", "challenge.json", "--to", &to, "--json"]);
    command.env("HOOK_NEW", "new");
    assert_eq!(sandbox.start_command(command).finish().expect(0).json()["challenge"], "3eZb");
    assert_eq!(events(sandbox).len(), count);

    // A paused rule takes requests and starts nothing.
    sandbox.sprag(["rule", "pause", "ci/push"]).expect(0);
    let late = github(addr, "new", "12", r#"{"ref": "refs/heads/main", "by": "bob"}"#).send().expect(202);
    assert_eq!(decision(sandbox, &late)["reason"], "the rule is paused");
    sandbox.sprag(["rule", "resume", "ci/push"]).expect(0);
    drop(server);

    // A secret that this server does not have makes the endpoint unavailable, never open.
    let server = serve(sandbox, &[("HOOK_NEW", "new")], &[]);
    let told = github(server.addr, "new", "13", body).send().problem(503, "unavailable");
    assert!(told["message"].as_str().expect("a message").contains("HOOK_OLD"), "{told}");
    // R17: a secret that the rule no longer has is refused at once; a retired rule is gone.
    sandbox.yaml("ci", &RULES.replace(", HOOK_OLD]", "]"));
    sandbox.sprag(["rule", "apply", "ci.yaml"]).expect(0);
    github(server.addr, "old", "14", body).send().problem(401, "unsigned");
    github(server.addr, "new", "14", body).send().expect(200);
    sandbox.sprag(["rule", "rm", "ci/push"]).expect(0);
    github(server.addr, "new", "15", body).send().problem(404, "not_found");
}

#[test]
fn r14_r15_r16_r17_r18_r20_r25_a_signed_request_starts_one_run() {
    signed_requests(&Sandbox::new());
}

#[test]
fn r14_r15_r16_r17_r18_r20_r25_a_signed_request_starts_one_run_on_postgres() {
    let database = Postgres::shared().database();
    signed_requests(&Sandbox::on(&database.url));
}

fn windows(sandbox: &Sandbox) {
    sandbox.yaml("ci", RULES);
    sandbox.sprag(["rule", "apply", "ci.yaml"]).expect(0);
    let secrets = [("HOOK_NEW", "new"), ("HOOK_OLD", "old")];
    let server = serve(sandbox, &secrets, &[]);

    // R22: the last event of the window counts, also if the server dies inside it.
    let taken: Vec<Reply> = ["a", "b", "c"]
        .map(|id| generic(server.addr, "many", &format!("{{\"id\": \"{id}\"}}")).expect(202))
        .into();
    server.into_process().kill();
    let server = serve(sandbox, &secrets, &[]);
    until("the window has ended", || sandbox.lines("builds") == ["c"]);
    let told: Vec<Value> = taken.iter().map(|taken| decision(sandbox, taken)).collect();
    assert_eq!(told[2]["status"], "requested", "{told:?}");
    for merged in &told[..2] {
        assert!(merged["reason"].as_str().expect("a reason").starts_with("merged into event"), "{merged}");
    }

    // R24: a test decides as firing does, and writes nothing.
    sandbox.write("push.json", r#"{"ref": "refs/heads/main", "by": "ann"}"#);
    let before = events(sandbox);
    let event = ["--event", "push.json", "--header", "X-GitHub-Event: push"];
    let tested = ask(sandbox, ["rule", "test", "push"].iter().chain(&event));
    assert_eq!(
        (&tested["decision"], &tested["inputs"]["ref"]),
        (&json!("start"), &json!("refs/heads/main ann"))
    );
    let tested = ask(sandbox, &["rule", "test", "push", "--event", "push.json"]);
    assert_eq!(tested["decision"], "fail", "{tested}");
    let wrong = ["rule", "test", "push", "--event", "push.json", "--header", "cookie: x"];
    assert!(sandbox.sprag(wrong).expect(2).stderr.contains("x-github-event"));
    assert!(sandbox.sprag(["rule", "test", "push"]).expect(2).stderr.contains("has no schedule"));
    sandbox.sprag(["rule", "fire", "push"]).expect(2);
    assert_eq!(events(sandbox), before);
    let fired = ask(sandbox, ["rule", "fire", "push"].iter().chain(&event));
    assert_eq!(fired["status"], "requested", "{fired}");

    // A payload that is signed and posted by hand, once and again.
    let to = format!("http://{}", server.addr);
    let send = |variables: &[(&str, &str)]| {
        let mut args = vec!["delivery", "send", "push", "push.json", "--to", &to];
        args.extend(["--header", "x-github-event: push", "--json"]);
        let mut command = sandbox.command(args);
        command.envs(variables.iter().copied());
        sandbox.start_command(command).finish()
    };
    let sent = send(&[("HOOK_OLD", "old")]).expect(0);
    check_shape("delivery send", &sent);
    assert_eq!(sent.json()["status"], 202);
    assert_eq!(send(&[("HOOK_NEW", "new")]).expect(0).json()["status"], 200);
    assert!(send(&[("HOOK_NEW", "wrong")]).expect(1).stderr.contains("signature"));
    assert!(send(&[]).expect(2).stderr.contains("HOOK_NEW or HOOK_OLD"));
    let told = sandbox.sprag(["explain", "ci/push"]).expect(0).stdout;
    assert!(told.contains("it waits for a request"), "{told}");
}

#[test]
fn r22_r24_events_of_a_window_become_one_run_and_people_can_try_rules() {
    windows(&Sandbox::new());
}

#[test]
fn r22_r24_events_of_a_window_become_one_run_on_postgres() {
    let database = Postgres::shared().database();
    windows(&Sandbox::on(&database.url));
}

/// Sends requests to servers that are killed, until each is acknowledged. Each has one event and one run then.
fn acknowledged_requests_survive(sandbox: &Sandbox) {
    sandbox.yaml("ci", RULES);
    sandbox.sprag(["rule", "apply", "ci.yaml"]).expect(0);
    let secrets = [("HOOK_NEW", "new"), ("HOOK_OLD", "old")];
    let start = || serve(sandbox, &secrets, &["--no-worker"]);
    let mut server = start();
    let body = |n: usize| format!("{{\"ref\": \"refs/heads/main\", \"by\": \"{n}\"}}");

    // R14: the event is committed, the server dies before its sender gets an answer, and the sender repeats.
    let request = github(server.addr, "new", "lost", &body(0));
    let mut sender = connect(server.addr).expect("a connection");
    sender.write_all(&request.bytes()).expect("sent");
    until("the event is stored", || events(sandbox).len() == 1);
    server.into_process().kill();
    drop(sender);
    server = start();
    let known = github(server.addr, "new", "again", &body(0)).send().expect(200).json();
    assert_eq!(events(sandbox)[0]["event"], known["event"]);

    // R15: several senders, two servers, each request at both of them, and one server dies again and again.
    let (senders, each) = (4, nightly(6, 100));
    let steady = start();
    let (steady_addr, changing) = (steady.addr, Mutex::new(server.addr));
    let (answered, taken) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let all = senders * each;
    std::thread::scope(|scope| {
        for sender in 0..senders {
            let (changing, answered, taken, body) = (&changing, &answered, &taken, &body);
            scope.spawn(move || {
                for nth in 0..each {
                    let n = 1 + sender * each + nth;
                    let told = until_some("a server that dies takes the request", || {
                        let addr = *changing.lock().expect("an address");
                        let reply = github(addr, "new", &n.to_string(), &body(n)).try_send().ok()?;
                        matches!(reply.status, 200 | 202).then(|| reply.json())
                    });
                    let again = github(steady_addr, "old", "again", &body(n)).send().expect(200).json();
                    assert_eq!(again, told, "one event for one request");
                    taken
                        .lock()
                        .expect("a list")
                        .insert(n, told["event"].as_str().expect("an id").to_owned());
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for nth in 1..4 {
            until("some requests are answered", || answered.load(Ordering::Relaxed) >= nth * all / 4);
            let next = start();
            *changing.lock().expect("an address") = next.addr;
            std::mem::replace(&mut server, next).into_process().kill();
        }
    });
    let taken = taken.into_inner().expect("a list");
    assert_eq!(taken.len(), all);
    until("all events are decided", || events(sandbox).iter().all(|event| event["status"] == "requested"));
    let stored = events(sandbox);
    assert_eq!(stored.len(), all + 1, "one event for each request");
    for event in taken.values() {
        assert_eq!(stored.iter().filter(|stored| stored["event"] == event.as_str()).count(), 1);
    }
    let runs = ask(sandbox, &["ls", "--limit", "1000"]);
    assert_eq!(runs.as_array().expect("runs").len(), all + 1, "one run for each event");
}

#[test]
fn r14_r15_acknowledged_requests_survive_killed_servers() {
    acknowledged_requests_survive(&Sandbox::new());
}

#[test]
fn r14_r15_acknowledged_requests_survive_killed_servers_on_postgres() {
    let database = Postgres::shared().database();
    acknowledged_requests_survive(&Sandbox::on(&database.url));
}

/// Ten senders send one request to two servers at once: one event, one number, one run.
fn repeated_at_once(sandbox: &Sandbox) {
    sandbox.yaml("ci", RULES);
    sandbox.sprag(["rule", "apply", "ci.yaml"]).expect(0);
    let secrets = [("HOOK_NEW", "new"), ("HOOK_OLD", "old")];
    let servers = [serve(sandbox, &secrets, &["--no-worker"]), serve(sandbox, &secrets, &["--no-worker"])];
    for round in 0..nightly(5, 50) {
        let body = format!("{{\"ref\": \"refs/heads/main\", \"by\": \"{round}\"}}");
        let together = std::sync::Barrier::new(10);
        let replies: Vec<Reply> = std::thread::scope(|scope| {
            let send = |n: usize| {
                let request = github(servers[n % 2].addr, "new", &n.to_string(), &body);
                let together = &together;
                scope.spawn(move || {
                    together.wait();
                    request.send()
                })
            };
            let senders: Vec<_> = (0..10).map(send).collect();
            senders.into_iter().map(|sender| sender.join().expect("a reply")).collect()
        });
        let new = replies.iter().filter(|reply| reply.status == 202).count();
        assert_eq!(new, 1, "round {round}: {replies:?}");
        let known = replies.iter().filter(|reply| reply.status == 200).count();
        assert_eq!(known, 9, "round {round}: {replies:?}");
        assert!(replies.iter().all(|reply| reply.json() == replies[0].json()), "{replies:?}");
        decision(sandbox, &replies[0]);
        assert_eq!(events(sandbox).len(), round + 1);
    }
    let runs = ask(sandbox, &["ls", "--limit", "1000"]);
    assert_eq!(runs.as_array().expect("runs").len(), events(sandbox).len());
}

#[test]
fn r15_a_request_that_ten_senders_repeat_at_once_on_two_servers_is_one_event() {
    repeated_at_once(&Sandbox::new());
}

#[test]
fn r15_a_request_that_ten_senders_repeat_at_once_on_postgres() {
    let database = Postgres::shared().database();
    repeated_at_once(&Sandbox::on(&database.url));
}

#[test]
fn a_sender_with_too_many_requests_is_told_when_to_come_back() {
    let sandbox = Sandbox::new();
    sandbox.yaml("ci", RULES);
    sandbox.sprag(["rule", "apply", "ci.yaml"]).expect(0);
    let mut server = serve(&sandbox, &[("HOOK_NEW", "new"), ("HOOK_OLD", "old")], &["--rate-limit", "5"]);
    let addr = in_addr(&mut server);
    // All at once: on a busy machine one after the other would be slow enough.
    let replies: Vec<Reply> = std::thread::scope(|scope| {
        let send = |n: usize| scope.spawn(move || generic(addr, "few", &json!({ "id": n }).to_string()));
        let senders: Vec<_> = (0..60).map(send).collect();
        senders.into_iter().map(|sender| sender.join().expect("a reply")).collect()
    });
    let refused: Vec<&Reply> = replies.iter().filter(|reply| reply.status == 429).collect();
    assert!(!refused.is_empty(), "60 requests at once are too many");
    assert!(replies.iter().all(|reply| [200, 202, 429].contains(&reply.status)));
    let after = &refused[0].headers["retry-after"];
    assert!(after.parse::<u64>().is_ok_and(|seconds| seconds >= 1), "{after}");
    // What was refused is not stored; what was taken is.
    let taken = replies.iter().filter(|reply| reply.status != 429).count();
    assert_eq!(events(&sandbox).len(), taken);
}
