//! The broker is a hint: lost, wiped, late, duplicated, killed or cut off, it only changes the pace.

use std::time::Duration;

use super::broker::{Broker, alternating, complaints, counted, counts, serves};
use serde_json::json;
use sprag_testkit::Postgres;
use sprag_tests::{Nats, Proxy, Random, Sandbox, Server, Signal, nightly, until, until_some};

/// Runs the same check on a file and on PostgreSQL.
fn on_every_store(check: impl Fn(&Sandbox)) {
    for sandbox in [Sandbox::new(), Sandbox::on(&Postgres::shared().database().url)] {
        check(&sandbox);
    }
}

/// Asserts that every run succeeded, in order, and that no finished step ran again.
fn all_done(sandbox: &Sandbox, runs: &[String], steps: usize) {
    let names: Vec<String> = (0..steps).map(|step| format!("s{step}")).collect();
    for (nth, run) in runs.iter().enumerate() {
        sandbox.ends_as(run, "completed");
        let journal = sandbox.check(run);
        for event in ["handoff.received", "execution.completed", "step.succeeded"] {
            assert_eq!(journal.events(event), steps, "{event} of run {nth}");
        }
        assert_eq!(journal.events("run.succeeded"), 1, "run {nth}");
        assert_eq!(sandbox.lines(&format!("out-{nth}")), names, "run {nth}");
    }
}

#[test]
fn o10_a_wiped_broker_costs_time_only() {
    on_every_store(wiped);
}

fn wiped(sandbox: &Sandbox) {
    let mut nats = Nats::start();
    let workers = ["a", "b"].map(|queue| serves(sandbox, &nats.url(), &["--queue", queue]));
    let broker = Broker::of(&nats.url());
    let mut runs = Vec::new();
    for round in 0..4 {
        for nth in 0..4 {
            runs.push(sandbox.detach(&alternating(sandbox, round * 4 + nth, 4)));
        }
        if round % 2 == 0 {
            broker.delete_streams();
        } else {
            nats.wipe();
            nats.again();
            broker.until_back();
        }
    }
    all_done(sandbox, &runs, 4);
    // The broker is useful again: the publishing process has created the streams again.
    let next = runs.len();
    until("hand-offs go through it again", || {
        runs.push(sandbox.detach(&alternating(sandbox, runs.len(), 2)));
        sandbox.ends_as(&runs[runs.len() - 1], "completed");
        broker.has(&format!("sprag.events.{}.run.succeeded", runs[runs.len() - 1]))
    });
    assert!(runs.len() > next);
    drop(workers);
}

#[test]
fn o06_a_redelivery_while_the_first_worker_still_runs_changes_nothing() {
    let (sandbox, nats) = (Sandbox::new(), Nats::start());
    let broker = Broker::of(&nats.url());
    // The broker loses its patience long before the worker hears of it, and before its answer arrives.
    broker.impatient("default", Duration::from_millis(150));
    let proxy = Proxy::to(nats.addr);
    let bus = format!("nats://{}", proxy.addr);
    let server = Server::start(&sandbox, &["--no-worker", "--bus", &nats.url()]);
    proxy.delay(Duration::from_millis(250));
    let worker = serves(&sandbox, &bus, &["--slots", "4"]);
    until("it pulls", || broker.pulls("default"));
    let go = sandbox.path("go");
    let text = format!("run: echo began >> out; while [ ! -e '{}' ]; do sleep 0.05; done", go.display());
    let file = sandbox.pipeline("slow", &[("a", &text)]);
    let runs: Vec<String> = (0..2).map(|_| sandbox.detach(&file)).collect();
    until("both go on", || sandbox.lines("out").len() == 2);
    let redelivered = until_some("the broker has told it again", || {
        let stream = broker.stream("sprag-work")?;
        let info = broker.block(stream.consumer_info("queue-default")).ok()?;
        // More deliveries than there are hand-offs; and by now all are acknowledged, late as it was.
        let more = info.delivered.consumer_sequence > info.delivered.stream_sequence;
        (more && info.num_ack_pending == 0).then_some(info.delivered.consumer_sequence)
    });
    assert!(redelivered > 2);
    sandbox.write("go", "");
    for run in &runs {
        sandbox.ends_as(run, "completed");
        assert_eq!(sandbox.check(run).events("handoff.received"), 1);
    }
    assert_eq!(sandbox.lines("out").len(), 2, "nothing was begun twice");
    let counted = counts(worker);
    assert!(counted["stale"] >= 1, "{counted:?}");
    drop(server);
}

#[test]
fn o10_a_message_of_a_dead_worker_acknowledged_late_changes_nothing() {
    let (sandbox, nats) = (Sandbox::new(), Nats::start());
    let broker = Broker::of(&nats.url());
    broker.impatient("default", Duration::from_secs(60));
    let server = Server::start(&sandbox, &["--no-worker", "--bus", &nats.url()]);
    let file = sandbox.pipeline("one", &[("a", "run: echo a >> out")]);
    let run = sandbox.detach(&file);
    // A client took the message and vanished: the others find the work by polling.
    let held = broker.hold("default");
    let worker = serves(&sandbox, &nats.url(), &[]);
    sandbox.ends_as(&run, "completed");
    broker.block(held.ack()).expect("an answer");
    let next = sandbox.detach(&file);
    sandbox.ends_as(&next, "completed");
    assert_eq!(sandbox.lines("out").len(), 2);
    sandbox.check(&run);
    drop((server, worker));
}

#[test]
fn o06_doubled_reordered_and_senseless_messages_are_counted_and_run_nothing_twice() {
    on_every_store(doubled);
}

fn doubled(sandbox: &Sandbox) {
    const RUNS: usize = 10;
    let nats = Nats::start();
    let broker = Broker::of(&nats.url());
    let server = Server::start(sandbox, &["--no-worker", "--bus", &nats.url()]);
    // Published while no worker could receive them.
    until("the streams are made", || broker.stream("sprag-events").is_some());
    let runs: Vec<String> = (0..RUNS).map(|nth| sandbox.detach(&alternating(sandbox, nth, 1))).collect();
    let told = until_some("all are told of", || {
        let told = broker.all("sprag.work.*");
        (told.len() == RUNS).then_some(told)
    });
    assert_eq!(told[0].1["message"], "execution.scheduled");
    assert_eq!((&told[0].1["queue"], &told[0].1["pin"]), (&json!("a"), &json!(null)));
    for (subject, handoff) in told.iter().rev() {
        for _ in 0..2 {
            broker.publish(subject, handoff.to_string().into_bytes());
        }
        let mut wrong = handoff.clone();
        wrong["fence"] = json!(handoff["fence"].as_u64().expect("a fence") + 1);
        broker.publish(subject, wrong.to_string().into_bytes());
    }
    let mut nobodys = told[0].1.clone();
    nobodys["run"] = json!("zzzzzzzzzzzz");
    broker.publish("sprag.work.a", nobodys.to_string().into_bytes());
    broker.publish("sprag.work.a", b"not even JSON".to_vec());
    let workers = [(); 2].map(|()| serves(sandbox, &nats.url(), &["--queue", "a", "--slots", "3"]));
    all_done(sandbox, &runs, 1);
    until("every message was taken", || broker.all("sprag.work.*").is_empty());
    let counted = workers.map(counts);
    let sum = |of: &str| counted.iter().map(|counts| counts[of]).sum::<u64>();
    assert!(sum("stale") > 3 * RUNS as u64, "{counted:?}");
    assert_eq!(sum("strange"), 1, "{counted:?}");
    drop(server);
}

#[test]
fn o14_killed_brokers_lose_no_run_and_repeat_no_step() {
    let kills = nightly(20, 60);
    let (sandbox, mut nats) = (Sandbox::new(), Nats::start());
    let workers = ["a", "b"].map(|queue| serves(&sandbox, &nats.url(), &["--queue", queue]));
    let mut random = Random::new(41);
    let mut runs = Vec::new();
    for kill in 0..kills {
        for nth in 0..2 {
            runs.push(sandbox.detach(&alternating(&sandbox, kill * 2 + nth, 4)));
        }
        let step = random.below(4) as usize;
        let first = kill * 2;
        until("a step is done", || sandbox.lines(&format!("out-{first}")).len() > step);
        nats.kill();
        nats.again();
    }
    all_done(&sandbox, &runs, 4);
    let broker = Broker::of(&nats.url());
    // Everything that happened is told in the end, what happened while it was away included.
    let last = &runs[runs.len() - 1];
    until("the relay has caught up", || broker.has(&format!("sprag.events.{last}.run.succeeded")));
    for run in &runs {
        let ended = broker.events(run);
        let ended = ended.iter().filter(|told| told["message"] == "execution.completed");
        let mut seqs: Vec<u64> = ended.filter_map(|told| told["seq"].as_u64()).collect();
        seqs.dedup();
        assert_eq!(seqs.len(), 4, "run {run}");
    }
    drop(workers);
}

#[test]
fn o10_a_missing_broker_is_reported_once_and_used_when_it_starts() {
    let (sandbox, mut nats) = (Sandbox::new(), Nats::start());
    nats.kill();
    let workers = ["a", "b"].map(|queue| serves(&sandbox, &nats.url(), &["--queue", queue]));
    let mut runs: Vec<String> = (0..3).map(|nth| sandbox.detach(&alternating(&sandbox, nth, 4))).collect();
    all_done(&sandbox, &runs, 4);
    for worker in &workers {
        until("it is told", || complaints(&worker.stderr()) > 0);
    }
    nats.again();
    let broker = Broker::of(&nats.url());
    until("both pull", || ["a", "b"].iter().all(|queue| broker.pulls(queue)));
    runs.extend((3..8).map(|nth| sandbox.detach(&alternating(&sandbox, nth, 4))));
    all_done(&sandbox, &runs, 4);
    let mut received = 0;
    for worker in workers {
        worker.signal(Signal::TERM);
        let told = worker.finish().expect(0);
        assert_eq!(complaints(&told.stderr), 1, "{}", told.stderr);
        received += counted(&told.stderr)["received"];
    }
    assert!(received > 5, "{received}");
}

#[test]
fn o10_a_worker_disconnected_from_the_broker_continues() {
    let (sandbox, nats) = (Sandbox::new(), Nats::start());
    let proxy = Proxy::to(nats.addr);
    let broker = Broker::of(&nats.url());
    let cut_off = serves(&sandbox, &format!("nats://{}", proxy.addr), &["--queue", "a"]);
    let near = serves(&sandbox, &nats.url(), &["--queue", "b"]);
    until("both pull", || ["a", "b"].iter().all(|queue| broker.pulls(queue)));
    let mut runs: Vec<String> = (0..2).map(|nth| sandbox.detach(&alternating(&sandbox, nth, 4))).collect();
    // Nothing passes, and no side is notified.
    proxy.silence(true);
    runs.extend((2..5).map(|nth| sandbox.detach(&alternating(&sandbox, nth, 4))));
    all_done(&sandbox, &runs, 4);
    proxy.silence(false);
    proxy.cut();
    until("it pulls again", || broker.pulls("a"));
    runs.extend((5..8).map(|nth| sandbox.detach(&alternating(&sandbox, nth, 4))));
    all_done(&sandbox, &runs, 4);
    drop((cut_off, near));
}
