//! Hand-off through a real broker: the messages that workers get, and the events that others can follow.

use std::collections::BTreeMap;

use super::broker::{Broker, alternating, counts, serves};
use serde_json::{Value, json};
use sprag_tests::{Nats, Sandbox, Signal, until, until_some};

const RUNS: usize = 12;

#[test]
fn o06_hand_offs_go_through_the_broker_and_each_step_runs_once() {
    let (sandbox, nats) = (Sandbox::new(), Nats::start());
    let workers = ["a", "b"].map(|queue| serves(&sandbox, &nats.url(), &["--queue", queue]));
    let broker = Broker::of(&nats.url());
    until("both pull", || ["a", "b"].iter().all(|queue| broker.pulls(queue)));
    let runs: Vec<String> = (0..RUNS).map(|nth| sandbox.detach(&alternating(&sandbox, nth, 4))).collect();
    for (nth, run) in runs.iter().enumerate() {
        sandbox.ends_as(run, "completed");
        sandbox.check(run);
        assert_eq!(sandbox.lines(&format!("out-{nth}")), ["s0", "s1", "s2", "s3"], "run {nth}");
    }
    let counted = workers.map(counts);
    let received: u64 = counted.iter().map(|counts| counts["received"]).sum();
    // Each of the steps changes hands. Some may be found by a look that happens to come first.
    assert!(received > 2 * RUNS as u64, "{counted:?}");
    assert_eq!(counted.iter().map(|counts| counts["strange"]).sum::<u64>(), 0, "{counted:?}");
    assert!(counted.iter().all(|counts| counts["received"] > RUNS as u64 / 2), "{counted:?}");
}

#[test]
fn o11_events_can_be_followed_and_one_relay_publishes() {
    let (sandbox, nats) = (Sandbox::new(), Nats::start());
    // Two candidates for one relay, of which the one that publishes is killed in the middle.
    let [first, second] = ["a", "b"].map(|queue| serves(&sandbox, &nats.url(), &["--queue", queue]));
    let broker = Broker::of(&nats.url());
    let before = sandbox.detach(&alternating(&sandbox, 0, 2));
    sandbox.ends_as(&before, "completed");
    until("the run's end is published", || broker.has(&format!("sprag.events.{before}.run.succeeded")));
    first.kill();
    let third = serves(&sandbox, &nats.url(), &["--queue", "a"]);
    let after = sandbox.detach(&alternating(&sandbox, 1, 2));
    sandbox.ends_as(&after, "completed");
    until("the next relay goes on", || broker.has(&format!("sprag.events.{after}.run.succeeded")));
    for run in [&before, &after] {
        let journal = sandbox.check(run);
        let told = broker.events(run);
        let mut wanted: BTreeMap<String, usize> = BTreeMap::new();
        for entry in &journal.entries {
            let words: &[&str] = match (entry.entity.as_str(), entry.from.as_deref(), entry.to.as_str()) {
                ("execution", None, _) => &["execution.requested"],
                ("execution", _, "completed") => &["execution.status_changed", "execution.completed"],
                ("execution", ..) => &["execution.status_changed"],
                _ => &[&entry.event],
            };
            words.iter().for_each(|word| *wanted.entry(format!("{word} {}", entry.seq)).or_default() += 1);
        }
        let mut got: BTreeMap<String, usize> = BTreeMap::new();
        for message in &told {
            let word = message["message"].as_str().expect("a word");
            *got.entry(format!("{word} {}", message["seq"])).or_default() += 1;
        }
        assert_eq!(got, wanted, "every entry once: the broker drops what a second relay tells again");
        let completed: Vec<&Value> =
            told.iter().filter(|told| told["message"] == "execution.completed").collect();
        assert_eq!(completed.len(), 2);
        assert_eq!((&completed[0]["step"], &completed[0]["to"]), (&json!("s0"), &json!("completed")));
    }
    drop((second, third));
}

#[test]
fn o04_a_cancel_reaches_the_worker_that_has_the_step() {
    let (sandbox, nats) = (Sandbox::new(), Nats::start());
    let worker = serves(&sandbox, &nats.url(), &[]);
    let broker = Broker::of(&nats.url());
    let pid = sandbox.path("pid");
    let file = sandbox.pipeline("long", &[("a", &format!("run: echo $$ > '{}'; sleep 300", pid.display()))]);
    let run = sandbox.detach(&file);
    sandbox.pid_in("pid");
    sandbox.sprag(["cancel", &run]).expect(0);
    sandbox.ends_as(&run, "cancelled");
    let told = until_some("the worker is told", || {
        let told = broker.all("sprag.worker.*");
        told.into_iter().find(|(_, told)| told["message"] == "execution.cancel_requested")
    });
    assert_eq!((&told.1["run"], &told.1["step_no"], &told.1["attempt"]), (&json!(run), &json!(0), &json!(1)));
    let journal = sandbox.check(&run);
    assert_eq!(journal.of_executions("a").last(), Some(&"execution.cancelled"));
    until("others can follow it", || broker.has(&format!("sprag.events.{run}.run.cancel.requested")));
    drop(worker);
}

#[test]
fn c03_a_run_that_is_reserved_to_its_process_goes_to_no_worker() {
    let (sandbox, nats) = (Sandbox::new(), Nats::start());
    let worker = serves(&sandbox, &nats.url(), &[]);
    let steps: Vec<(String, String)> =
        (0..6).map(|nth| (format!("s{nth}"), format!("needs: []\nrun: echo {nth} >> out"))).collect();
    let steps: Vec<(&str, &str)> = steps.iter().map(|(id, text)| (id.as_str(), text.as_str())).collect();
    let file = sandbox.pipeline("own", &steps);
    let bus = nats.url();
    let run = sandbox.run(&[&file.to_string_lossy(), "--bus", &bus, "--slots", "2"], 0);
    assert_eq!(sandbox.check(&run).events("handoff.received"), 6);
    assert_eq!(sandbox.lines("out").len(), 6);
    assert_eq!(counts(worker)["received"], 0);
}

#[test]
fn c10_held_and_limited_queues_are_so_with_a_broker_too() {
    let (sandbox, nats) = (Sandbox::new(), Nats::start());
    sandbox.sprag(["queue", "hold", "a"]).expect(0);
    sandbox.sprag(["queue", "limit", "b", "1"]).expect(0);
    let workers = ["a", "b"].map(|queue| serves(&sandbox, &nats.url(), &["--queue", queue]));
    let held = sandbox.detach(&alternating(&sandbox, 0, 2));
    let text = "name: many\nsteps:\n".to_owned()
        + &(0..6)
            .map(|nth| {
                format!(
                    "  - id: s{nth}\n    needs: []\n    queue: b\n    run: mkdir busy && rmdir busy && echo x >> ran\n"
                )
            })
            .collect::<String>();
    let limited = sandbox.detach(&sandbox.yaml("many", &text));
    sandbox.ends_as(&limited, "completed");
    assert_eq!(sandbox.lines("ran").len(), 6, "no two of them at once");
    assert_eq!(sandbox.check(&held).events("handoff.published"), 0);
    sandbox.sprag(["queue", "release", "a"]).expect(0);
    sandbox.ends_as(&held, "completed");
    drop(workers);
}

#[test]
fn o12_a_draining_worker_returns_announced_executions() {
    let (sandbox, nats) = (Sandbox::new(), Nats::start());
    let worker = serves(&sandbox, &nats.url(), &["--slots", "1"]);
    let go = sandbox.path("go");
    let wait = format!("run: while [ ! -e '{}' ]; do sleep 0.05; done; echo done >> out", go.display());
    let file = sandbox.pipeline("slow", &[("a", &wait)]);
    let runs: Vec<String> = (0..3).map(|_| sandbox.detach(&file)).collect();
    until("one goes on", || runs.iter().any(|run| sandbox.step(run, "a")["status"] == "running"));
    worker.signal(Signal::TERM);
    sandbox.write("go", "");
    let told = worker.finish().expect(0);
    assert!(told.stderr.contains("bus: "), "{}", told.stderr);
    assert_eq!(sandbox.lines("out").len(), 1);
    let next = serves(&sandbox, &nats.url(), &[]);
    runs.iter().for_each(|run| sandbox.ends_as(run, "completed"));
    assert_eq!(sandbox.lines("out").len(), 3);
    drop(next);
}

#[test]
fn the_broker_is_named_by_a_variable_that_steps_do_not_see() {
    let (sandbox, nats) = (Sandbox::new(), Nats::start());
    let mut command = sandbox.command(["worker"]);
    command.env("SPRAG_BUS", nats.url());
    let worker = sandbox.start_command(command);
    let broker = Broker::of(&nats.url());
    until("it pulls", || broker.pulls("default"));
    let run = sandbox.detach(&sandbox.pipeline("secret", &[("a", "run: echo \"bus=$SPRAG_BUS.\" > out")]));
    sandbox.ends_as(&run, "completed");
    assert_eq!(sandbox.lines("out"), ["bus=."]);
    assert_eq!(counts(worker)["received"], 1);
}
