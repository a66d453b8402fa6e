//! The report of `sprag doctor --bus` on healthy and broken brokers.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use super::broker::{Broker, counted, serves, soon};
use sprag_tests::{Nats, Sandbox, Signal, until};

#[test]
fn doctor_checks_the_broker() {
    let (sandbox, mut nats) = (Sandbox::new(), Nats::start());
    let bus = nats.url();
    let told = soon(|| sandbox.sprag(["doctor", "--bus", &bus])).expect(0);
    assert!(told.stdout.contains("nats-server 2."), "{}", told.stdout);
    assert!(told.stdout.contains("JetStream is there"), "{}", told.stdout);
    assert!(told.stdout.contains("stream sprag-work is not made yet"), "{}", told.stdout);
    let worker = serves(&sandbox, &bus, &[]);
    let broker = Broker::of(&bus);
    until("the streams are made", || broker.stream("sprag-events").is_some());
    let told = sandbox.sprag(["doctor", "--bus", &bus]).expect(0);
    assert!(told.stdout.contains("stream sprag-work: replicas 1, 0 messages"), "{}", told.stdout);
    assert!(told.stdout.contains("stream sprag-events: replicas 1"), "{}", told.stdout);
    assert!(broker.all("sprag.work.doctor").is_empty(), "it changes nothing there");
    drop(worker);
    nats.kill();
    let told = sandbox.sprag(["doctor", "--bus", &bus]).expect(1);
    assert!(told.stdout.contains("connecting to the broker"), "{}", told.stdout);
    let told = sandbox.sprag(["doctor", "--bus", "nats://me:secret@/x y"]).expect(2);
    assert!(!told.stderr.contains("secret"), "{}", told.stderr);
}

/// Returns the doctor's report on a useless broker; it must not take long, and must not show the password.
#[track_caller]
fn expect_told(address: &str, words: &[&str]) {
    let told = soon(|| Sandbox::new().sprag(["doctor", "--bus", address])).expect(1);
    for word in words {
        assert!(told.stdout.contains(word), "{word:?}: {}", told.stdout);
    }
    assert!(!told.stdout.contains("hush"), "{}", told.stdout);
}

#[test]
fn a_broker_without_jetstream_is_reported_with_the_remedy() {
    let nats = Nats::with("");
    expect_told(&nats.url(), &["nats-server 2.", "JetStream is not there", "-js"]);
}

#[test]
fn a_missing_permission_on_the_broker_is_named() {
    let nats = Nats::with(
        r#"jetstream: enabled
        authorization: { users: [
            { user: all, password: hush }
            { user: enough, password: hush, permissions: {
                publish: ["sprag.>", "$JS.API.>", "$JS.ACK.>"], subscribe: ["sprag.worker.*", "_INBOX.>"] } }
            { user: no_api, password: hush, permissions: { publish: { deny: "$JS.API.>" } } }
            { user: no_inbox, password: hush, permissions: { subscribe: { deny: "_INBOX.>" } } }
            { user: no_work, password: hush, permissions: { publish: { deny: "sprag.work.>" } } }
        ] }"#,
    );
    let as_user = |login: &str| format!("nats://{login}@{}", nats.addr);
    // What the page on the broker asks for is enough.
    let (sandbox, enough) = (Sandbox::new(), as_user("enough:hush"));
    let told = sandbox.sprag(["doctor", "--bus", &enough]).expect(0);
    assert!(told.stdout.contains("JetStream is there"), "{}", told.stdout);
    let worker = serves(&sandbox, &enough, &[]);
    let broker = Broker::as_user(("all", "hush"), &nats.url());
    until("it pulls", || broker.pulls("default"));
    let run = sandbox.detach(&sandbox.pipeline("one", &[("a", "run: 'true'")]));
    sandbox.ends_as(&run, "completed");
    until("it is told of", || broker.has(&format!("sprag.events.{run}.run.succeeded")));
    worker.signal(Signal::TERM);
    let told = worker.finish().expect(0);
    assert!(!told.stderr.contains("refuses"), "{}", told.stderr);
    assert_eq!(counted(&told.stderr)["received"], 1, "{}", told.stderr);
    let remedy = "docs/bus.md lists what it needs";
    let lacks = ["this user may not do what is needed", remedy];
    for (user, what) in [
        ("no_api", "Publish to \"$JS.API.INFO\""),
        ("no_inbox", "Subscription to \"_INBOX."),
        ("no_work", "Publish to \"sprag.work.doctor\""),
    ] {
        expect_told(&as_user(&format!("{user}:hush")), &[lacks[0], lacks[1], what]);
    }
    let worker = serves(&sandbox, &as_user("no_api:hush"), &[]);
    until("the log tells so as well", || worker.stderr().contains("the broker refuses something"));
    let run = sandbox.detach(&sandbox.pipeline("one", &[("a", "run: 'true'")]));
    sandbox.ends_as(&run, "completed");
    drop(worker);
    for stranger in ["all:hushed", "nobody:hush"] {
        expect_told(&as_user(stranger), &["authorization violation", "see the user and the password"]);
    }
}

#[test]
fn a_broker_that_is_too_old_is_reported_with_its_version() {
    let old = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = old.local_addr().expect("an address");
    // As much of one as the doctor asks for.
    let serving = std::thread::spawn(move || {
        let (mut client, _) = old.accept().expect("a client");
        let info = format!(
            r#"INFO {{"server_id":"OLD","server_name":"OLD","version":"2.8.4","go":"","host":"127.0.0.1","port":{},"headers":true,"max_payload":1048576,"proto":1}}"#,
            addr.port()
        );
        write!(client, "{info}\r\n").expect("a client");
        let lines = BufReader::new(client.try_clone().expect("a socket")).lines();
        for line in lines.map_while(Result::ok).take(1_000) {
            if line.starts_with("PING") && client.write_all(b"PONG\r\n").is_err() {
                break;
            }
        }
    });
    expect_told(&format!("nats://{addr}"), &["nats-server 2.8.4: 2.9 or newer is needed"]);
    serving.join().expect("it has served");
}
