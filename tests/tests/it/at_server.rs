//! Commands against a server (`--server URL`): they do what they do without one, with the same exit codes.

use sprag_tests::{Answer, Proxy, Sandbox, Server, Signal, until};

/// A sandbox, and a server of it.
struct Scene {
    sandbox: Sandbox,
    server: Server,
}

impl Scene {
    fn new() -> Scene {
        let sandbox = Sandbox::new();
        let server = Server::start(&sandbox, &[]);
        Scene { sandbox, server }
    }

    fn url(&self) -> String {
        format!("http://{}", self.server.addr)
    }

    fn sprag(&self, args: &[&str]) -> Answer {
        self.sandbox.sprag([args, &["--server", &self.url()]].concat())
    }

    /// Starts a run that has ended when this returns. Returns its id.
    fn ended(&self, file: &str, exit: i32) -> String {
        let run = self.sprag(&["run", file, "--detach", "--json"]).expect(0).json();
        let run = run["run"].as_str().expect("an id").to_owned();
        self.sprag(&["wait", &run, "--timeout", "60s"]).expect(exit);
        run
    }
}

#[test]
fn logs_of_a_server_have_all_options() {
    let scene = Scene::new();
    scene.sandbox.yaml(
        "says",
        "steps:\n  - { id: first, run: 'printf \"one\\ntwo\\n\\033[31mred\\033[0m\\n\"' }\n\
         \x20 - { id: second, run: 'echo three; exit 3' }\n",
    );
    let run = scene.ended("says.yaml", 100);
    let logs = |more: &[&str]| scene.sprag(&[&["logs", &run], more].concat()).expect(0);
    assert_eq!(logs(&["--failed"]).stdout, "second │ three\n");
    assert_eq!(logs(&["first", "--tail", "2"]).stdout, "two\nred\n");
    assert_eq!(logs(&["first", "--raw"]).stdout, "one\ntwo\n\u{1b}[31mred\u{1b}[0m\n");
    assert_eq!(logs(&["--since", "2031-01-31T10:00:00Z"]).stdout, "");
    assert_eq!(logs(&["--since", "1h"]).stdout.lines().count(), 4);
    assert_eq!(logs(&["-f"]).stdout.lines().count(), 4, "the run has ended");
    assert!(logs(&["second", "-t"]).stdout.starts_with("20"), "a time");
    let told = logs(&["second", "--json"]).json();
    assert_eq!((&told["attempt"], &told["text"]), (&1.into(), &"three".into()));
    scene.sprag(&["logs", &run, "--attempt", "7"]).expect(2);
    scene.sprag(&["logs", &run, "nosuch"]).expect(2);
}

#[test]
fn logs_and_events_of_a_server_are_followed() {
    let scene = Scene::new();
    scene.sandbox.yaml(
        "slow",
        "steps:\n  - { id: wait, run: 'echo begun; until test -e go; do sleep 0.05; done; echo over' }\n",
    );
    let run = scene.sprag(&["run", "slow.yaml", "--detach", "--json"]).expect(0).json();
    let run = run["run"].as_str().expect("an id").to_owned();
    let url = scene.url();
    let logs = scene.sandbox.start(["logs", "-f", &run, "--server", &url]);
    let events = scene.sandbox.start(["events", "-f", "--tail", "1", "--run", &run, "--server", &url]);
    let watch = scene.sandbox.start(["watch", &run, "--server", &url]);
    until("it has begun", || scene.sprag(&["logs", &run]).stdout.contains("begun"));
    scene.sandbox.write("go", "");
    let told = logs.finish().expect(0).stdout;
    assert_eq!(told, "wait │ begun\nwait │ over\n");
    let told = watch.finish().expect(0);
    assert!(told.stdout.ends_with("over\n") && told.stderr.contains("✓ wait"), "{told:?}");
    assert!(told.stderr.contains("completed in "), "{told:?}");
    // It follows the journal until it is interrupted.
    until("the end is told", || events.stdout().contains("run.succeeded"));
    events.signal(Signal::INT);
    let told = events.finish().expect(0).stdout;
    assert!(!told.contains("run.created"), "--tail 1 skips the start: {told}");
}

#[test]
fn runs_of_a_server_are_drawn_retried_and_forked() {
    let scene = Scene::new();
    scene.sandbox.yaml(
        "tries",
        "steps:\n  - { id: build, run: 'echo built' }\n  - { id: test, run: 'test -e fixed' }\n",
    );
    let run = scene.ended("tries.yaml", 100);
    let local = scene.sandbox.sprag(["graph", &run, "--json"]).expect(0).json();
    assert_eq!(scene.sprag(&["graph", &run, "--json"]).expect(0).json(), local);
    assert!(scene.sprag(&["graph", &run]).expect(0).stdout.contains("test"));
    scene.sprag(&["graph", "tries.yaml"]).expect(2);
    scene.sandbox.write("fixed", "");
    let told = scene.sprag(&["retry", &run]).expect(0);
    assert!(told.stderr.contains("✓ test") && !told.stderr.contains("✓ build"), "{told:?}");
    scene.sprag(&["retry", &run]).expect(4);
    scene.sprag(&["resume", &run]).expect(4);
    scene.sprag(&["cancel", &run]).expect(4);
    scene.sprag(&["approve", &run]).expect(4);
    let told = scene.sprag(&["rewind", &run, "--to", "build"]).expect(0);
    assert!(told.stderr.contains("✓ build"), "{told:?}");
    let told = scene.sprag(&["fork", &run, "--from", "build"]).expect(0);
    assert!(told.stderr.contains("✓ test"), "{told:?}");
    let told = scene.sprag(&["diff", &run]).expect(1).stderr;
    assert!(told.contains("has no worktree"), "{told}");
}

#[test]
fn a_run_of_a_server_is_found_by_its_name_and_shows_its_failure() {
    let scene = Scene::new();
    scene.sandbox.yaml("fails", "steps:\n  - { id: test, run: 'echo why; exit 3' }\n");
    let told = scene.sprag(&["run", "fails.yaml", "--name", "nightly"]).expect(100);
    assert!(told.stderr.contains("✗ test failed: exit code 3"), "{told:?}");
    assert!(told.stderr.contains("│ why") && told.stderr.contains("--server"), "{told:?}");
    let told = scene.sprag(&["status", "nightly"]).expect(0).stdout;
    let failed = told.lines().find(|line| line.contains("✗ test")).expect("the failed step");
    assert!(failed.ends_with(['s', 'm', 'h']), "it says how long the step took: {told}");
    assert!(told.contains("next: sprag explain"), "{told}");
    let told = scene.sprag(&["status", "nosuch"]).expect(2).stderr;
    assert!(told.contains("sprag ls --server"), "{told}");
    // The server finds runs by the rules for runs of this machine.
    let run = scene.sandbox.newest().expect("a run");
    for name in [&run[..8], &run[4..], "nightly"] {
        assert_eq!(scene.sprag(&["status", name, "--json"]).expect(0).json()["id"], *run, "{name}");
        assert_eq!(scene.server.get(&format!("/v1/runs/find?name={name}"))["id"], *run, "{name}");
    }
    scene.sandbox.sprag(["board", "new", "plans"]).expect(0);
    assert_eq!(scene.sprag(&["status", "plans", "--json"]).expect(0).json()["pipeline"], "plans");
    assert_eq!(scene.sprag(&["status", "--json"]).expect(0).json()["pipeline"], "fails", "a board is no run");
    let several = scene.server.request("GET", "/v1/runs/find?name=0").send();
    assert!([404, 422].contains(&several.status), "{several:?}");
    let told = scene.sprag(&["run", "fails.yaml", "--slots", "2"]).expect(2).stderr;
    assert!(told.contains("worker"), "{told}");
}

#[test]
fn live_runs_of_a_server_are_watched() {
    let scene = Scene::new();
    scene.sandbox.yaml("asks", "steps:\n  - { id: ask, gate: { ask: 'Really?' } }\n");
    let told = scene.sprag(&["run", "asks.yaml"]).expect(5);
    assert!(told.stderr.contains("Really?") && told.stderr.contains("sprag approve"), "{told:?}");
    let watch = scene.sandbox.start(["watch", "--json", "--server", &scene.url()]);
    until("it is shown", || watch.stdout().contains("\"waiting_for\":\"person\""));
    let shown: serde_json::Value =
        serde_json::from_str(watch.stdout().lines().next().expect("a line")).expect("JSON");
    assert_eq!(shown["steps"], serde_json::json!({ "settled": 0, "total": 1 }));
    let listed = scene.server.get("/v1/runs");
    let progress = &listed["runs"][0]["progress"];
    assert_eq!((&progress["settled"], &progress["total"]), (&0.into(), &1.into()), "{listed}");
    scene.sprag(&["approve", "asks"]).expect(2);
    let run = scene.sprag(&["ls", "--json"]).expect(0).json()[0]["id"].as_str().expect("an id").to_owned();
    scene.sprag(&["approve", &run]).expect(0);
    until("its end is shown", || watch.stdout().contains("\"completed\""));
    watch.signal(Signal::INT);
    watch.finish().expect(0);
}

#[test]
fn steps_of_a_run_say_what_they_wait_for() {
    let scene = Scene::new();
    scene.sandbox.yaml("asks", "steps:\n  - { id: ask, gate: { ask: 'Really?' } }\n");
    scene.sprag(&["run", "asks.yaml"]).expect(5);
    let run = scene.sprag(&["ls", "--json"]).expect(0).json()[0]["id"].as_str().expect("an id").to_owned();
    let told = scene.server.get(&format!("/v1/runs/{run}/steps"));
    assert_eq!(told["steps"][0]["waiting_for"], "person", "{told}");
    let told = scene.server.get(&format!("/v1/runs/{run}/steps/ask"));
    assert_eq!(told["step"]["waiting_for"], "person", "{told}");
}

#[test]
fn commands_without_a_server_say_why() {
    let sandbox = Sandbox::new();
    for command in [&["env", "ls"][..], &["gc", "--keep", "1d"], &["board", "ls"], &["validate", "x"]] {
        let told = sandbox.sprag([command, &["--server", "http://127.0.0.1:9"]].concat()).expect(2).stderr;
        assert!(told.contains("has no --server:") && told.contains("next:"), "{command:?}: {told}");
    }
}

#[test]
fn a_command_that_follows_a_server_reads_its_streams() {
    let scene = Scene::new();
    scene
        .sandbox
        .yaml("slow", "steps:\n  - { id: wait, run: 'echo begun; until test -e go; do sleep 0.05; done' }\n");
    let watch = scene.sandbox.start(["run", "slow.yaml", "--server", &scene.url()]);
    until("it has begun", || watch.stdout().contains("begun"));
    // One for the journal, and one for the log of the running step.
    let open = || scene.server.request("GET", "/metrics").send().expect(200).text();
    until("two streams are open", || open().lines().any(|line| line == "sprag_streams_open 2"));
    scene.sandbox.write("go", "");
    watch.finish().expect(0);
}

#[test]
fn a_command_that_follows_a_server_connects_again_where_it_was() {
    let scene = Scene::new();
    scene.sandbox.yaml(
        "counts",
        "steps:\n  - id: count\n    run: |\n      for n in 1 2 3; do until test -e go.$n; do sleep 0.02; done; echo line $n; done\n",
    );
    let run = scene.sprag(&["run", "counts.yaml", "--detach", "--json"]).expect(0).json();
    let run = run["run"].as_str().expect("an id").to_owned();
    let proxy = Proxy::to(scene.server.addr);
    let (url, token) = (proxy.url(), scene.sandbox.local_token());
    let start = |args: &[&str]| scene.sandbox.start([args, &["--server", &url, "--token", &token]].concat());
    let watch = start(&["watch", &run]);
    let logs = start(&["logs", "-f", &run]);
    let events = start(&["events", "-f", "--run", &run]);
    let wait = start(&["wait", &run]);
    until("the events are shown", || events.stdout().contains("step.started"));
    for (no, name) in [(1, "go.1"), (2, "go.2")] {
        scene.sandbox.write(name, "");
        let line = format!("line {no}");
        until(&format!("both show {line}"), || {
            watch.stdout().contains(&line) && logs.stdout().contains(&line)
        });
        assert!(proxy.cut() > 0, "there were connections");
    }
    // Lines that are printed and entries that are written while nothing is connected come after that.
    proxy.silence(true);
    scene.sandbox.write("go.3", "");
    scene.sprag(&["wait", &run, "--timeout", "60s"]).expect(0);
    proxy.cut();
    proxy.silence(false);
    let told = watch.finish().expect(0);
    assert_eq!(told.stdout, "line 1\nline 2\nline 3\n", "each line once: {told:?}");
    assert_eq!(told.stderr.matches("✓ count").count(), 1, "{told:?}");
    assert_eq!(logs.finish().expect(0).stdout.lines().count(), 3);
    wait.finish().expect(0);
    until("the end is told", || events.stdout().contains("run.succeeded"));
    events.signal(Signal::INT);
    let told = events.finish().expect(0).stdout;
    let local = scene.sandbox.sprag(["events", "--run", &run]).expect(0).stdout;
    assert_eq!(told, local, "each entry once, in order");
}
