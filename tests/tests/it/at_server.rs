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
    let told = scene.sprag(&["diff", &run]).expect(4).stderr;
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
    let is_told = failed.ends_with("s   exit code 3");
    assert!(is_told, "it says how long the step took, and why it failed: {told}");
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
    for command in [&["env", "ls"][..], &["gc", "--keep", "1d"], &["hook", "ls"], &["validate", "x"]] {
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

#[test]
fn logs_and_status_of_a_server_say_why_there_is_nothing() {
    let scene = Scene::new();
    scene.sandbox.yaml(
        "stops",
        "steps:\n  - { id: test, run: 'exit 3' }\n  - { id: ship, run: echo shipped }\n  - { id: ask, gate: { ask: 'Really?' } }\n",
    );
    let run = scene.ended("stops.yaml", 100);
    for (step, why) in [
        ("ship", "ship was cancelled before it started\n"),
        ("ask", "ask prints nothing: no command runs in it\n"),
    ] {
        let here = scene.sandbox.sprag(["logs", &run, step]).expect(0).stderr;
        let there = scene.sprag(&["logs", &run, step]).expect(0).stderr;
        assert_eq!((here.as_str(), there.as_str()), (why, why), "{step}");
    }
    let told = scene.sprag(&["status", &run]).expect(0).stdout;
    assert!(told.contains("· ship  not run\n"), "{told}");
    let failed = told.lines().find(|line| line.contains("✗ test")).expect("a line");
    assert!(failed.ends_with("exit code 3"), "{failed}");
    // The name of a step in the place of a run.
    let url = scene.url();
    for (at, more) in [(&[][..], String::new()), (&["--server", &url], format!(" --server {url}"))] {
        let told = scene.sandbox.sprag([&["logs", "test"], at].concat()).expect(2).stderr;
        let next = format!("next: test is a step of the newest run: sprag logs {run} test{more}\n");
        assert!(told.ends_with(&next), "{told}");
    }
}

#[test]
fn an_ended_run_leaves_nothing_to_do_here_and_at_a_server() {
    let scene = Scene::new();
    scene
        .sandbox
        .yaml("waits", "steps:\n  - { id: bad, run: exit 3 }\n  - { id: go, wait: { signal: go } }\n");
    scene.sandbox.yaml("ends", "steps:\n  - { id: go, run: 'true' }\n");
    let (failed, completed) = (scene.ended("waits.yaml", 100), scene.ended("ends.yaml", 0));
    for (args, next) in [
        (vec!["signal", &failed, "go"], format!("sprag resume {failed}")),
        (vec!["skip", &failed, "go"], format!("sprag resume {failed}")),
        (vec!["cancel", &failed], format!("sprag resume {failed}")),
        (vec!["cancel", &completed], format!("sprag retry {completed} --step STEP")),
        (vec!["resume", &completed], format!("sprag retry {completed} --step STEP")),
    ] {
        for told in [scene.sandbox.sprag(&args), scene.sprag(&args)] {
            let told = told.expect(4).stderr;
            assert!(
                told.contains(": there is nothing to do\nnext: ") && told.contains(&next),
                "{args:?}: {told}"
            );
        }
    }
}

#[test]
fn a_run_without_a_name_lists_the_pipelines_for_a_server_too() {
    let scene = Scene::new();
    std::fs::create_dir_all(scene.sandbox.path(".sprag/pipelines")).expect("a folder");
    scene
        .sandbox
        .write(".sprag/pipelines/ci.yaml", "description: Checks all\nsteps:\n  - { id: a, run: 'true' }\n");
    let told = scene.sprag(&["run"]).expect(0);
    assert_eq!(told.stdout, scene.sandbox.sprag(["run"]).expect(0).stdout);
    assert!(told.stdout.contains("Checks all · 1 step"), "{}", told.stdout);
    assert_eq!(told.stderr, format!("run one: sprag run ci --server {}\n", scene.url()));
    for (args, reason) in [
        (&["do", "nothing"][..], "`sprag do` has no --server: the agent works in this folder"),
        (&["agent", "fake"], "`sprag agent` has no --server: it is about this machine"),
    ] {
        let told = scene.sprag(args).expect(2).stderr;
        assert!(told.contains(reason) && told.contains("\nnext: "), "{told}");
    }
}

#[test]
fn wait_with_a_timeout_tells_the_status() {
    let scene = Scene::new();
    scene.sandbox.yaml("waits", "steps:\n  - { id: go, wait: { signal: go } }\n");
    let run = scene.sprag(&["run", "waits.yaml", "--detach"]).expect(0).stdout;
    let run = run.trim();
    until("it runs", || scene.sandbox.status_word(run) == "running");
    let args = ["wait", run, "--timeout", "200ms"];
    for told in [scene.sandbox.sprag(args), scene.sprag(&args)] {
        let told = told.expect(124);
        assert_eq!(told.stdout, "");
        assert!(told.stderr.ends_with(&format!("run {run} has not ended in 200ms\n")), "{}", told.stderr);
    }
    let args = ["wait", run, "--timeout", "200ms", "--json"];
    for told in [scene.sandbox.sprag(args), scene.sprag(&args)] {
        let told = told.expect(124).json();
        assert_eq!(told, serde_json::json!({ "type": "result", "run": run, "status": "running" }));
    }
}

#[test]
fn the_live_view_of_a_server_is_that_of_a_run_here() {
    let scene = Scene::new();
    let (sandbox, url) = (&scene.sandbox, scene.url());
    sandbox.yaml(
        "both",
        "steps:\n  - { id: flaky, needs: [], retry: { attempts: 2, delay: 300ms }, run: 'test -e again || { touch again; exit 3; }' }\n  - { id: work, needs: [], run: 'until [ -e go ]; do sleep 0.02; done' }\n  - { id: review, needs: [], task: { queue: people, prompt: Look } }\n",
    );
    let mut terminal = sandbox.on_terminal(1, ["run", "both.yaml", "--server", &url]);
    terminal.shows("flaky failed: exit code 3 (");
    terminal.shows("; retry 2 of 2 in ");
    terminal.shows("1/3  work ");
    terminal.shows("s: review: an agent or a person who claims it: sprag task claim --queue people");
    terminal.types("\u{3}");
    let (code, shown) = terminal.finish();
    assert_eq!(code, 0, "{shown}");
    let last = shown.rsplit(['\n', '\r']).find(|line| !line.is_empty()).expect("a line");
    assert!(
        last.trim_start_matches("\u{1b}[2K")
            .trim_start_matches("\u{1b}[1A\u{1b}[J")
            .starts_with("stopped watching"),
        "{last:?}"
    );
    // Where there is no terminal, the wait is told of once.
    let run = sandbox.newest().expect("a run");
    let watching = sandbox.start(["watch", &run, "--server", &url]);
    let claim = "waiting: review: an agent or a person who claims it: sprag task claim --queue people";
    until("it is told of", || watching.stderr().contains(claim));
    sandbox.write("go", "");
    let task = sandbox.json(["task", "claim", "--queue", "people", "--as", "ada", "--json"]);
    sandbox.sprag(["task", "done", task["token"].as_str().expect("a token")]).expect(0);
    let told = watching.finish().expect(0).stderr;
    assert_eq!(told.matches(claim).count(), 1, "{told}");
}

#[test]
fn rounds_and_child_runs_of_a_server_are_shown_as_here() {
    let scene = Scene::new();
    scene.sandbox.yaml("child", "steps:\n  - { id: inner, run: echo child }\n");
    scene.sandbox.yaml(
        "parent",
        "steps:\n  - { id: sub, pipeline: child.yaml }\n  - { id: poll, run: 'true', repeat: { until: steps.poll.round == 2, max: 4, delay: 600ms } }\n",
    );
    let here = scene.sandbox.sprag(["run", "parent.yaml"]).expect(0).stderr;
    let there = scene.sprag(&["run", "parent.yaml"]).expect(0).stderr;
    for told in [here, there] {
        assert!(told.contains("▶ sub is run "), "{told}");
        let round = told.lines().find(|line| line.starts_with("↻ poll ")).expect("a round");
        assert!(round.starts_with("↻ poll round 1 of 4 done; the next one in "), "{told}");
        assert!(round.ends_with("ms)"), "it says how long the round took: {told}");
        assert!(told.find("▶ sub is run") < told.find("✓ sub"), "{told}");
    }
}

#[test]
fn questions_inside_a_step_are_answered_at_a_server() {
    let scene = Scene::new();
    scene.sandbox.yaml(
        "asks",
        "steps:\n  - id: each\n    foreach: [a, b]\n    steps:\n      - { id: ask, gate: { ask: 'Go on with {{ item }}?' } }\n",
    );
    let told = scene.sprag(&["run", "asks.yaml"]).expect(5).stderr;
    let run = scene.sprag(&["ls", "--json"]).expect(0).json()[0]["id"].as_str().expect("an id").to_owned();
    for step in ["each[0].ask", "each[1].ask"] {
        assert!(told.contains(&format!("sprag approve {run} {step} --server")), "{told}");
    }
    let several = scene.sprag(&["approve", &run]).expect(2).stderr;
    let here = scene.sandbox.sprag(["approve", &run]).expect(2).stderr;
    assert_eq!(several.lines().next(), here.lines().next());
    assert!(several.contains("each[0].ask, each[1].ask"), "{several}");
    let none = scene.sprag(&["approve", &run, "each[2].ask"]).expect(4).stderr;
    assert!(none.contains("asks nothing in step \"each[2].ask\""), "{none}");
    scene.sprag(&["approve", &run, "each[0].ask"]).expect(0);
    // One is left: the step's own name is enough.
    scene.sprag(&["approve", &run, "ask"]).expect(0);
    scene.sprag(&["wait", &run, "--timeout", "60s"]).expect(0);
}

#[test]
fn a_new_webhook_says_whether_a_server_sends_its_messages() {
    let sandbox = Sandbox::new();
    let add = || sandbox.sprag(["hook", "add", "http://127.0.0.1:9/"]).expect(0).stderr;
    let told = add();
    assert!(
        told.contains("No server is running here, so nothing is sent yet: start `sprag serve`"),
        "{told}"
    );
    let server = Server::start(&sandbox, &["--no-worker"]);
    until("the server delivers", || add().contains("messages are sent while `sprag serve` runs"));
    drop(server);
    until("the server is gone", || add().contains("No server is running here"));
}
