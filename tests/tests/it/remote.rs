//! Workers over HTTP, without a database: the same ownership, with a network in between.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_tests::{
    HandWorker, Proxy, Random, Sandbox, Server, Signal, Started, is_running, now_ms, until, within,
};

const ENDLESS: &str =
    "run: |\n  setsid sh -c 'echo $$ > grandchild; exec sleep 300' &\n  echo $$ > child\n  wait";
const SECOND_TIME: &str = "run: |\n  [ ! -e pid ] || ! kill -0 $(cat pid) || echo overlap >> ran\n  echo $$ > pid\n  echo $SPRAG_ATTEMPT >> ran\n  [ $SPRAG_ATTEMPT != 1 ] || exec sleep 300";

/// A server without a worker of its own, and a sandbox whose runs it knows.
pub(crate) struct Scene {
    pub(crate) server: Server,
    pub(crate) sandbox: Sandbox,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        let sandbox = Sandbox::new();
        let server = Server::start(&sandbox, &["--no-worker"]);
        Scene { server, sandbox }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.server.addr)
    }

    /// Starts a worker that has only an address and a token.
    pub(crate) fn worker(&self, url: &str, more: &[&str]) -> Started {
        self.worker_of(&self.server, url, more)
    }

    /// Starts a worker in this scene's folder with the token of this server.
    pub(crate) fn worker_of(&self, server: &Server, url: &str, more: &[&str]) -> Started {
        let mut command = self.sandbox.command(["worker", "--server", url].iter().chain(more));
        command.env("SPRAG_DATA", self.sandbox.path("elsewhere")).env("SPRAG_TOKEN", &server.token);
        let worker = self.sandbox.start_command(command);
        until("the worker is there", || worker.stderr().contains("serves"));
        worker
    }

    pub(crate) fn detach(&self, name: &str) -> String {
        self.sandbox.detach(&self.sandbox.path(&format!("{name}.yaml")))
    }
}

/// The worker of a sandbox carries another data directory than the sandbox itself.
impl Drop for Scene {
    fn drop(&mut self) {
        let data = self.sandbox.path("elsewhere");
        for pid in sprag_tests::carrying("SPRAG_DATA", &data.to_string_lossy()) {
            sprag_tests::signal(pid, Signal::KILL);
        }
    }
}

/// Returns a worker that this test plays.
fn by_hand(scene: &Scene, key: char) -> HandWorker<'_> {
    HandWorker::new(&scene.server, key)
}

fn completed() -> Value {
    json!({ "how": "completed", "result": null })
}

#[test]
fn o01_a_report_of_an_unreceived_execution_is_refused() {
    let scene = Scene::new();
    scene.sandbox.pipeline("one", &[("a", "run: 'true'")]);
    let run = scene.detach("one");
    let (first, second) = (by_hand(&scene, 'a'), by_hand(&scene, 'b'));
    let lease = first.claim(1).expect("work");
    let stranger = second.finish(&lease, completed()).problem(409, "refused");
    assert_eq!(stranger["outcome"]["kind"], "superseded", "{stranger}");
    for path in ["release", "vanished"] {
        second.post(path, &json!({ "lease": lease })).problem(409, "refused");
    }
    let beat = second.post("heartbeat", &json!({ "leases": [lease], "lease_ms": 60_000 })).expect(200).json();
    assert_eq!(beat["kept"], json!(["lost"]));
    let mut old = lease.clone();
    old["fence"] = json!(1);
    first.finish(&old, completed()).problem(409, "refused");
    first.finish(&lease, completed()).expect(200);
    scene.sandbox.ends_as(&run, "completed");
    assert_eq!(scene.sandbox.check(&run).events("execution.completed"), 1);
}

#[test]
fn o02_o07_a_report_that_comes_twice_counts_once_and_another_is_refused() {
    let scene = Scene::new();
    scene.sandbox.pipeline("two", &[("a", "run: 'true'"), ("b", "run: 'true'")]);
    let run = scene.detach("two");
    let worker = by_hand(&scene, 'a');
    let lease = worker.claim(1).expect("work");
    let told = json!({ "lease": lease, "ending": completed(), "next": worker.claimer(2) });
    let first = worker.post("finish", &told).expect(200).json();
    let before = scene.sandbox.check(&run).entries;
    let again = worker.post("finish", &told).expect(200).json();
    assert_eq!((first["before"].clone(), again["before"].clone()), (json!(false), json!(true)));
    assert_eq!(
        first["next"]["assignment"]["lease"], again["next"]["assignment"]["lease"],
        "the same next step"
    );
    assert_eq!(again["next"]["assignment"]["name"], "b");
    for ending in
        [json!({ "how": "failed", "result": null, "retriable": true }), json!({ "how": "cancelled" })]
    {
        worker.finish(&lease, ending).problem(409, "refused");
    }
    assert_eq!(scene.sandbox.check(&run).entries, before, "nothing was written");
}

#[test]
fn o06_the_same_claim_gets_the_same_and_a_claimer_that_goes_away_loses_nothing() {
    let scene = Scene::new();
    scene.sandbox.pipeline("one", &[("a", "run: 'true'")]);
    let worker = by_hand(&scene, 'a');
    let wanted = json!({ "claimer": worker.claimer(7), "limit": 1, "wait_ms": 30_000 });
    let waiting =
        scene.server.request("POST", "/v1/work/claim").header("x-sprag-worker", &worker.key).json(&wanted);
    use std::io::Write;
    let (mut random, mut kept) = (Random::new(5), 0);
    for _ in 0..20 {
        let mut stream = sprag_tests::connect(scene.server.addr).expect("a connection");
        stream.write_all(&waiting.bytes()).expect("sent");
        let moment = Duration::from_millis(random.below(120));
        let leaves = std::thread::spawn(move || {
            within(moment, || None::<()>);
            drop(stream);
        });
        let run = scene.detach("one");
        leaves.join().expect("it leaves");
        // It was released at once; or the answer was on its way, and a repeated claim with the same nonce gets it.
        let other = by_hand(&scene, 'b');
        let (who, lease) =
            within(Duration::from_secs(2), || other.claim(now_ms() as i64).map(|lease| (&other, lease)))
                .or_else(|| worker.claim(7).map(|lease| (&worker, lease)))
                .expect("it is not lost");
        kept += usize::from(std::ptr::eq(who, &worker));
        who.finish(&lease, completed()).expect(200);
        scene.sandbox.ends_as(&run, "completed");
    }
    println!("{kept} of 20 were answered before their claimer left");
    let run = scene.detach("one");
    let first = worker.claim(8).expect("work");
    assert_eq!(worker.claim(8), Some(first.clone()), "the answer may have been lost");
    assert_eq!(worker.claim(9), None);
    worker.finish(&first, completed()).expect(200);
    assert_eq!(scene.sandbox.check(&run).events("handoff.received"), 1);
}

#[test]
fn o03_cancelled_before_hand_off_no_worker_sees_it() {
    let scene = Scene::new();
    scene.sandbox.pipeline("one", &[("a", "run: echo ran >> ran")]);
    let run = scene.detach("one");
    scene.sandbox.sprag(["cancel", &run]).expect(0);
    let worker = scene.worker(&scene.url(), &[]);
    scene.sandbox.pipeline("other", &[("a", "run: echo other >> ran")]);
    let other = scene.detach("other");
    scene.sandbox.ends_as(&other, "completed");
    assert_eq!(scene.sandbox.check(&run).count(|entry| entry.actor == "worker"), 0);
    assert_eq!(scene.sandbox.lines("ran"), ["other"]);
    worker.signal(Signal::TERM);
    worker.finish().expect(0);
}

#[test]
fn o04_cancelled_after_hand_off_the_worker_ends_the_tree_and_writes_once() {
    let scene = Scene::new();
    scene.sandbox.pipeline("tree", &[("a", ENDLESS)]);
    let run = scene.detach("tree");
    let worker = scene.worker(&scene.url(), &[]);
    let pids = [scene.sandbox.pid_in("child"), scene.sandbox.pid_in("grandchild")];
    let began_ms = now_ms();
    scene.sandbox.sprag(["cancel", &run]).expect(0);
    scene.sandbox.ends_as(&run, "cancelled");
    assert!(now_ms() - began_ms < 8_000, "told at once, not at the next heartbeat");
    assert!(!pids.iter().any(|pid| is_running(*pid)), "gone before it was written");
    let journal = scene.sandbox.check(&run);
    assert_eq!(journal.count(|entry| entry.event == "execution.cancelled" && entry.actor == "worker"), 1);
    worker.signal(Signal::TERM);
    worker.finish().expect(0);
}

#[test]
fn o05_a_cancel_that_races_hand_off_has_one_outcome() {
    let scene = Scene::new();
    scene.sandbox.pipeline("race", &[("a", "run: echo $SPRAG_RUN_ID >> ran; exec sleep 300")]);
    let worker = scene.worker(&scene.url(), &[]);
    for round in 0..15 {
        let run = scene.detach("race");
        within(Duration::from_millis(round * 3), || None::<()>);
        scene.sandbox.sprag(["cancel", &run]).expect(0);
        scene.sandbox.ends_as(&run, "cancelled");
        let journal = scene.sandbox.check(&run);
        assert_eq!(journal.events("execution.cancelled"), 1);
        let last = journal.entries.last().expect("entries");
        assert_eq!((last.entity.as_str(), last.to.as_str()), ("run", "cancelled"), "nothing after it");
        until("nothing of it runs", || scene.sandbox.processes_of(&run).is_empty());
    }
    worker.signal(Signal::TERM);
    worker.finish().expect(0);
}

#[test]
fn o08_o09_a_killed_worker_is_replaced_and_its_late_report_is_refused() {
    let scene = Scene::new();
    scene.sandbox.pipeline("one", &[("a", SECOND_TIME)]);
    let run = scene.detach("one");
    let first = scene.worker(&scene.url(), &["--lease", "5s"]);
    let step = scene.sandbox.pid_in("pid");
    let second = scene.worker(&scene.url(), &["--lease", "5s"]);
    let killed_ms = now_ms();
    first.kill();
    scene.sandbox.ends_as(&run, "completed");
    assert!(now_ms() - killed_ms < 25_000, "within its lease and a sweep");
    assert!(!is_running(step));
    assert_eq!(scene.sandbox.lines("ran"), ["1", "2"]);
    let before = scene.sandbox.check(&run).entries;
    let late = by_hand(&scene, 'z');
    let lease = json!({ "execution": { "run": run, "step": 0, "attempt": 1 }, "fence": 2 });
    late.finish(&lease, completed()).problem(409, "refused");
    assert_eq!(scene.sandbox.check(&run).entries, before);
    second.signal(Signal::TERM);
    second.finish().expect(0);
}

#[test]
fn o12_a_worker_that_is_asked_to_stop_finishes_its_steps() {
    let scene = Scene::new();
    let steps = [
        ("a", "run: echo in >> ran; until [ -e go ]; do sleep 0.1; done; echo out >> ran"),
        ("b", "run: echo b >> ran"),
    ];
    scene.sandbox.pipeline("gate", &steps);
    let run = scene.detach("gate");
    let worker = scene.worker(&scene.url(), &["--slots", "1"]);
    until("it works", || !scene.sandbox.lines("ran").is_empty());
    worker.signal(Signal::TERM);
    until("it drains", || worker.stderr().contains("Finishing the running steps"));
    let left = scene.detach("gate");
    scene.sandbox.write("go", "");
    worker.finish().expect(0);
    assert_eq!(scene.sandbox.status(&run)["steps"][0]["status"], "done");
    assert_eq!(scene.sandbox.status(&run)["steps"][1]["status"], "pending", "not even of the same run");
    assert_eq!(scene.sandbox.status(&left)["steps"][0]["status"], "pending", "it took nothing more");
    let told = scene.sandbox.json(["explain", &left, "--json"]);
    assert!(told["steps"][0]["waits_for"].as_str().expect("a reason").contains("none serves"), "{told}");
}

#[test]
fn o13_a_stopped_worker_finds_its_tree_ended_and_its_result_refused() {
    let scene = Scene::new();
    scene.sandbox.pipeline("one", &[("a", SECOND_TIME)]);
    let run = scene.detach("one");
    let first = scene.worker(&scene.url(), &["--lease", "5s"]);
    let step = scene.sandbox.pid_in("pid");
    let second = scene.worker(&scene.url(), &["--lease", "5s"]);
    first.signal(Signal::STOP);
    scene.sandbox.ends_as(&run, "completed");
    assert!(!is_running(step), "by the supervisor: the worker could not");
    assert_eq!(
        scene.sandbox.lines("ran"),
        ["1", "2"],
        "the second attempt found the first one's process gone"
    );
    let before = scene.sandbox.check(&run);
    assert_eq!(before.events("lease.expired"), 1);
    first.signal(Signal::CONT);
    second.signal(Signal::TERM);
    second.finish().expect(0);
    std::fs::remove_file(scene.sandbox.path("pid")).expect("the former attempt's file");
    let next = scene.detach("one");
    scene.sandbox.pid_in("pid");
    assert_eq!(scene.sandbox.check(&run).entries, before.entries, "nothing of it counts any more");
    scene.sandbox.sprag(["cancel", &next]).expect(0);
    scene.sandbox.ends_as(&next, "cancelled");
    first.signal(Signal::TERM);
    first.finish().expect(0);
}

#[test]
fn a_worker_that_is_cut_off_fences_itself_before_its_lease_lapses() {
    let scene = Scene::new();
    scene.sandbox.pipeline("one", &[("a", SECOND_TIME)]);
    let proxy = Proxy::to(scene.server.addr);
    let first = scene.worker(&proxy.url(), &["--lease", "6s"]);
    let run = scene.detach("one");
    let step = scene.sandbox.pid_in("pid");
    proxy.silence(true);
    let cut_ms = now_ms();
    until("its tree is ended", || !is_running(step));
    let took_ms = now_ms() - cut_ms;
    assert!(took_ms < 6_500, "its own clock, not the store's word: {took_ms} ms");
    assert_eq!(scene.sandbox.check(&run).events("lease.expired"), 0, "before the store took it away");
    proxy.silence(false);
    scene.sandbox.ends_as(&run, "completed");
    assert_eq!(scene.sandbox.lines("ran"), ["1", "2"], "attempt 2, and no overlap");
    first.signal(Signal::TERM);
    first.finish().expect(0);
}

#[test]
fn connections_that_are_cut_at_any_moment_lose_nothing_and_double_nothing() {
    const ROUNDS: usize = 30;
    let scene = Scene::new();
    let trace = "run: echo $SPRAG_RUN_ID $SPRAG_STEP_ID $SPRAG_ATTEMPT >> ledger";
    scene.sandbox.pipeline("three", &[("a", trace), ("b", trace), ("c", trace)]);
    let proxy = Proxy::to(scene.server.addr);
    let worker = scene.worker(&proxy.url(), &["--lease", "10s", "--slots", "4"]);
    let mut random = Random::new(6);
    let mut cut = 0;
    let mut runs = Vec::new();
    for _ in 0..ROUNDS {
        runs.push(scene.detach("three"));
        within(Duration::from_millis(random.below(120)), || None::<()>);
        cut += proxy.cut();
        proxy.delay(Duration::from_millis(random.below(4)));
    }
    for run in &runs {
        scene.sandbox.ends_as(run, "completed");
        let journal = scene.sandbox.check(run);
        for step in ["a", "b", "c"] {
            let ended = journal.of_step(step).iter().filter(|event| **event == "step.succeeded").count();
            assert_eq!(ended, 1, "{step} of {run} ended once");
        }
    }
    let ledger = scene.sandbox.lines("ledger");
    let mut distinct = ledger.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), ledger.len(), "each attempt started once");
    println!("{cut} connections cut; {} starts for {} steps", ledger.len(), 3 * ROUNDS);
    worker.signal(Signal::TERM);
    worker.finish().expect(0);
}

#[test]
fn a_server_that_is_killed_and_comes_back_takes_the_result() {
    let scene = Scene::new();
    let gate = "run: echo $SPRAG_ATTEMPT >> ran; until [ -e go ]; do sleep 0.1; done";
    scene.sandbox.pipeline("long", &[("a", gate), ("b", "run: echo b >> ran")]);
    let proxy = Proxy::to(scene.server.addr);
    let worker = scene.worker(&proxy.url(), &["--lease", "30s"]);
    let run = scene.detach("long");
    until("it works", || !scene.sandbox.lines("ran").is_empty());
    let Scene { server, sandbox } = &scene;
    let _ = server;
    sprag_tests::signal(sandbox_server_pid(sandbox), Signal::KILL);
    within(Duration::from_millis(500), || None::<()>);
    sandbox.write("go", "");
    let back = Server::start(sandbox, &["--no-worker"]);
    proxy.moved(back.addr);
    proxy.cut();
    sandbox.ends_as(&run, "completed");
    assert_eq!(sandbox.lines("ran"), ["1", "b"], "the first attempt's result was taken");
    sandbox.check(&run);
    worker.signal(Signal::TERM);
    worker.finish().expect(0);
}

/// Returns the pid of the sandbox's server.
fn sandbox_server_pid(sandbox: &Sandbox) -> i32 {
    let all = sprag_tests::carrying("SPRAG_DATA", &sandbox.data().to_string_lossy());
    let serves = |pid: &i32| sprag_tests::command_line(*pid).iter().any(|word| word == "serve");
    all.into_iter().find(serves).expect("a server")
}

#[test]
fn a_log_is_whole_and_in_order_after_cuts() {
    let scene = Scene::new();
    scene.sandbox.pipeline("loud", &[("a", "run: seq 1 160000")]);
    let proxy = Proxy::to(scene.server.addr);
    let worker = scene.worker(&proxy.url(), &["--lease", "10s"]);
    let run = scene.detach("loud");
    let mut random = Random::new(1);
    for _ in 0..12 {
        within(Duration::from_millis(random.below(60)), || None::<()>);
        proxy.cut();
    }
    scene.sandbox.ends_as(&run, "completed");
    let told = scene.sandbox.sprag(["logs", &run, "a"]).expect(0).stdout;
    let wanted: String = (1..=160_000).map(|n| format!("{n}\n")).collect();
    let plain: String =
        told.lines().map(|line| format!("{}\n", line.rsplit(' ').next().unwrap_or_default())).collect();
    assert!(wanted.len() > 1_000_000 && plain == wanted, "{} of {} bytes", plain.len(), wanted.len());
    worker.signal(Signal::TERM);
    worker.finish().expect(0);
}

#[test]
fn a_wrong_token_a_wrong_scope_and_a_foreign_server_are_reported() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    let url = format!("http://{}", server.addr);
    let token = |scope: &str| {
        let made = sandbox.sprag(["token", "new", scope, "--scope", scope]).expect(0).stdout;
        made.lines().find(|line| line.starts_with("sprag_")).expect("a token").trim().to_owned()
    };
    let (read, work) = (token("read"), token("work"));
    for (shown, why) in
        [(None, "requires a token"), (Some("sprag_no"), "unknown"), (Some(read.as_str()), "scope")]
    {
        let mut command = sandbox.command(["worker", "--server", &url]);
        // Not the data directory of the server: its token would be found there.
        command.env("SPRAG_DATA", sandbox.path("elsewhere"));
        if let Some(shown) = shown {
            command.env("SPRAG_TOKEN", shown);
        }
        let told = sandbox.start_command(command).finish().expect(1);
        assert!(told.stderr.contains(why) && told.stderr.contains("next:"), "{told:?}");
    }
    let refused =
        server.request("POST", "/v1/runs").token(&work).json(&json!({ "yaml": "steps: []" })).send();
    refused.problem(403, "forbidden");
    let told = sandbox.sprag(["worker", "--server", "ftp://x.example"]).expect(2);
    assert!(told.stderr.contains("http:// or https://"), "{told:?}");
    let strange = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = format!("http://{}", strange.local_addr().expect("an address"));
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for stream in strange.incoming().take(3).flatten() {
            let mut stream = stream;
            let _ = stream.read(&mut [0u8; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n<html/>");
        }
    });
    let told = sandbox.sprag(["worker", "--server", &at]).expect(1);
    assert!(told.stderr.contains("does not answer like a Sprag server"), "{told:?}");
}

#[test]
fn a_remote_workers_secrets_token_and_missing_repository() {
    let scene = Scene::new();
    let steps = "  - id: a\n    secrets: [PASSWORD]\n    run: echo $PASSWORD; echo token=$SPRAG_TOKEN.\n";
    scene.sandbox.yaml("secret", &format!("name: secret\nsteps:\n{steps}"));
    scene
        .sandbox
        .yaml("missing", "name: missing\nsteps:\n  - id: a\n    secrets: [NOT_SET]\n    run: 'true'\n");
    let mut command = scene.sandbox.command(["worker", "--server", &scene.url()]);
    command.env("SPRAG_DATA", scene.sandbox.path("elsewhere")).env("PASSWORD", "hunter2hunter2");
    command.env("SPRAG_TOKEN", &scene.server.token);
    let worker = scene.sandbox.start_command(command);
    let (run, missing) = (scene.detach("secret"), scene.detach("missing"));
    scene.sandbox.ends_as(&run, "completed");
    let log = scene.sandbox.sprag(["logs", &run, "a"]).expect(0).stdout;
    assert!(log.contains("***") && log.contains("token=.") && !log.contains("hunter2"), "{log}");
    scene.sandbox.ends_as(&missing, "failed");
    let told = scene.sandbox.sprag(["status", &missing]).expect(0).stdout;
    assert!(told.contains("NOT_SET is not set in the worker's environment"), "{told}");
    let yaml = "environment: { worktree: {} }\nsteps:\n  - id: a\n    run: 'true'\n";
    let gone = json!({ "yaml": yaml, "dir": "/nowhere/at/all" });
    let run =
        scene.server.post("/v1/runs", &gone).expect(201).json()["id"].as_str().expect("an id").to_owned();
    scene.sandbox.ends_as(&run, "failed");
    let told = scene.sandbox.sprag(["status", &run]).expect(0).stdout;
    assert!(told.contains("is not on this host"), "{told}");
    assert!(!Path::new(&scene.sandbox.path("elsewhere")).join("sprag.db").exists(), "it opens no store");
    worker.signal(Signal::TERM);
    worker.finish().expect(0);
}
