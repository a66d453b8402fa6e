//! `services`: processes beside the steps of a run, through the program.

use sprag_tests::{Sandbox, Server, Started, children, is_running, until};

use crate::remote::Scene;

/// A web server that needs a moment, on a reserved port, which writes its process id and serves the folder.
const WEB: &str = r#"
  web:
    description: Serves the folder
    run: |
      echo $$ >> web.pids
      exec python3 -u -c 'import http.server, os; http.server.HTTPServer(("127.0.0.1", int(os.environ["SPRAG_PORT_WEB"])), http.server.SimpleHTTPRequestHandler).serve_forever()'
    ports: [web]
    ready: { port: web, timeout: 30s }
"#;

/// A program that reads a file from the web server.
const GET_PY: &str = r#"import os, urllib.request
print(urllib.request.urlopen("http://127.0.0.1:%s/page" % os.environ["SPRAG_PORT_WEB"]).read().decode().strip())
"#;

/// A command that runs it.
const GET: &str = "python3 get.py >> got";

fn pids(sandbox: &Sandbox) -> Vec<i32> {
    sandbox.lines("web.pids").iter().map(|line| line.parse().expect("a process id")).collect()
}

fn nothing_is_left(sandbox: &Sandbox, run: &str) {
    until("no process of the run is left", || sandbox.processes_of(run).is_empty());
    assert!(pids(sandbox).iter().all(|pid| !is_running(*pid)));
}

/// P18: services start once, before the first step; steps, items and steps inside steps reach them; they end with the run
/// and keep their logs. They take no slot and no place of the run.
#[test]
fn p18_services_live_beside_the_steps_of_a_run() {
    let sandbox = Sandbox::new();
    page(&sandbox);
    sandbox.yaml(
        "served",
        &format!(
            r#"
max_parallel: 1
services:{WEB}
  logs:
    run: "echo starting; echo listens on 7; exec sleep 1000"
    ready: {{ log: "listens on [0-9]+$" }}
  asks:
    run: [sleep, "1000"]
    env: {{ LEVEL: 3 }}
    ready: {{ run: 'test "$LEVEL" = 3 && echo asked >> asked && test $(wc -l < asked) -ge 2' }}
steps:
  - id: first
    run: echo first >> got; test $(wc -l < asked) -ge 2; {GET}
  - id: each
    foreach: [1, 2]
    run: "{GET} # {{{{ item }}}}"
  - id: inside
    steps:
      - id: deep
        run: {GET}
handlers:
  finally:
    - {{ id: last, run: 'kill -0 $(cat web.pids) && echo alive >> got' }}
"#
        ),
    );
    let run = sandbox.run(&["served.yaml", "--slots", "1"], 0);
    assert_eq!(sandbox.lines("got"), ["first", "hello", "hello", "hello", "hello", "alive"]);
    assert_eq!(pids(&sandbox).len(), 1, "started once");
    nothing_is_left(&sandbox, &run);
    let steps = sandbox.steps(&run);
    assert!(steps.contains("last done, web done, logs done, asks done"), "{steps}");
    let log = sandbox.sprag(["logs", &run, "logs"]).expect(0).stdout;
    assert!(log.contains("listens on 7") && log.contains("the service is ready"), "{log}");
    let log = sandbox.sprag(["logs", &run, "web"]).expect(0).stdout;
    assert!(log.contains("GET /page"), "{log}");
    let graph = sandbox.json(["graph", &run, "--json"]);
    let kinds: Vec<&str> =
        graph["steps"].as_array().unwrap().iter().filter_map(|step| step["kind"].as_str()).collect();
    assert_eq!(kinds[kinds.len() - 3..], ["service", "service", "service"]);
    let dry = sandbox.sprag(["run", "served.yaml", "--dry"]).expect(0).stdout;
    assert!(dry.contains("service") && dry.contains("Serves the folder"), "{dry}");
    let journal = sandbox.check(&run);
    assert!(journal.seq_of("web", "step.started") < journal.seq_of("first", "step.started"));
    // The ports are free again.
    let leases = || std::fs::read_to_string(sandbox.data().join("ports.json")).expect("the file of leases");
    until("the ports are free", || !leases().contains(&run));
}

fn page(sandbox: &Sandbox) {
    sandbox.write("page", "hello\n");
    sandbox.write("get.py", GET_PY);
}

/// Writes a pipeline of these steps and one that uses the web server.
fn served(sandbox: &Sandbox, steps: &str) {
    page(sandbox);
    let text = format!("services:{WEB}\nsteps:\n{steps}  - {{ id: use, run: {GET} }}\n");
    sandbox.yaml("served", &text);
}

/// P18: a service that ends is started again as often as `restart` says; then the run fails, or continues without it.
#[test]
fn p18_a_service_that_ends_is_restarted_or_fails_the_run() {
    let sandbox = Sandbox::new();
    let crash = |restart: &str| {
        format!(
            "services:\n  s:\n    run: 'echo x >> starts; test $(wc -l < starts) -ge 3 || exit 7; touch up; exec sleep 1000'\n    \
             ready: {{ run: test -e up }}\n    {restart}\nsteps:\n  - {{ id: use, run: test -e up }}\n"
        )
    };
    sandbox.yaml("again", &crash("restart: { max: 2, delay: 10ms }"));
    let run = sandbox.run(&["again.yaml", "--slots", "1"], 0);
    assert_eq!((sandbox.lines("starts").len(), sandbox.steps(&run).as_str()), (3, "use done, s done"));
    for name in ["starts", "up"] {
        std::fs::remove_file(sandbox.path(name)).unwrap();
    }
    sandbox.yaml("fails", &crash("restart: 1"));
    let run = sandbox.run(&["fails.yaml"], 100);
    assert_eq!(sandbox.steps(&run), "use cancelled, s failed");
    let told = sandbox.sprag(["status", &run]).expect(0).stdout;
    assert!(told.contains("the service ended by itself with exit code 7"), "{told}");
    // A resume starts it again, and the run completes.
    sandbox.sprag(["resume", &run]).expect(0);
    assert_eq!(sandbox.steps(&run), "use done, s done");
    sandbox.yaml(
        "without",
        "services:\n  s: { run: exit 7, on_fail: continue, ready: { port: 9 } }\nsteps:\n  - { id: use, run: echo ran >> ran }\n",
    );
    let run = sandbox.run(&["without.yaml"], 0);
    assert_eq!((sandbox.steps(&run).as_str(), sandbox.lines("ran").len()), ("use done, s failed", 1));
    sandbox.yaml(
        "slow",
        "services:\n  s: { run: sleep 1000, ready: { run: 'false', timeout: 300ms } }\nsteps:\n  - { id: use, run: echo }\n",
    );
    let run = sandbox.run(&["slow.yaml"], 100);
    let told = sandbox.sprag(["status", &run]).expect(0).stdout;
    assert!(told.contains("the service was not ready within 0.3 s"), "{told}");
    nothing_is_left_of(&sandbox, &run);
}

fn nothing_is_left_of(sandbox: &Sandbox, run: &str) {
    until("no process of the run is left", || sandbox.processes_of(run).is_empty());
}

/// P14: kill -9 of the process ends the services with it, and the process that takes the run over has its own.
#[test]
fn p14_services_die_with_their_process_and_start_with_the_next_one() {
    let sandbox = Sandbox::new();
    served(
        &sandbox,
        "  - { id: before, run: echo before >> ran }\n  - id: block\n    run: |\n      echo $$ > blocked\n      test -e go || exec sleep 1000\n",
    );
    let process = sandbox.start(["run", "served.yaml"]);
    let blocked = sandbox.pid_in("blocked");
    let run = sandbox.newest().expect("a run");
    let first = pids(&sandbox);
    assert!(first.len() == 1 && is_running(first[0]));
    process.kill();
    until("the service is gone with its process", || !is_running(first[0]) && !is_running(blocked));
    sandbox.write("go", "");
    sandbox.sprag(["resume", &run]).expect(0);
    assert_eq!(
        (sandbox.lines("ran").len(), pids(&sandbox).len()),
        (1, 2),
        "done steps stay, the service starts again"
    );
    assert_eq!(sandbox.lines("got"), ["hello"]);
    nothing_is_left(&sandbox, &run);
    // A rewind has a service, too.
    sandbox.sprag(["rewind", &run, "--to", "use"]).expect(0);
    assert_eq!((pids(&sandbox).len(), sandbox.lines("got").len()), (3, 2));
    nothing_is_left(&sandbox, &run);
    sandbox.check(&run);
}

/// P14: after a cancel, `always` steps still reach the services, which end after them.
#[test]
fn p14_a_cancel_ends_services_after_the_always_steps() {
    let sandbox = Sandbox::new();
    let tidy = format!("  - {{ id: tidy, always: true, run: {GET} }}\n");
    served(&sandbox, &format!("  - {{ id: block, run: 'touch blocked; sleep 1000' }}\n{tidy}"));
    let process = sandbox.start(["run", "served.yaml"]);
    until("the run blocks", || sandbox.path("blocked").exists());
    let run = sandbox.newest().expect("a run");
    let told = sandbox.sprag(["explain", &run]).expect(0).stdout;
    assert!(told.contains("the other steps of its run to end: it is a service"), "{told}");
    sandbox.sprag(["cancel", &run]).expect(0);
    assert_eq!(process.finish().code, 130);
    assert_eq!(sandbox.steps(&run), "block cancelled, tidy done, use cancelled, web done");
    assert_eq!(sandbox.lines("got"), ["hello"]);
    nothing_is_left(&sandbox, &run);
}

/// P14: a run that waits for an answer has no process, and no service; the answer starts the services again.
#[test]
fn p14_a_question_stops_the_services_of_a_process_that_leaves() {
    let sandbox = Sandbox::new();
    served(&sandbox, "  - { id: ask, gate: { ask: Go on? } }\n");
    let run = sandbox.run(&["served.yaml"], 5);
    nothing_is_left(&sandbox, &run);
    sandbox.sprag(["approve", &run]).expect(0);
    assert_eq!(
        (sandbox.lines("got").len(), sandbox.steps(&run).as_str()),
        (1, "ask done, use done, web done")
    );
    nothing_is_left(&sandbox, &run);
    sandbox.check(&run);
}

/// P04: of several workers, one has the services of a run and all its steps, also when it is killed.
#[test]
fn p04_one_of_several_workers_has_a_run_with_services() {
    let sandbox = Sandbox::new();
    served(&sandbox, "  - { id: block, run: 'echo $$ > blocked; test -e go || exec sleep 1000' }\n");
    let run = sandbox.detach(&sandbox.path("served.yaml"));
    let told = sandbox.sprag(["explain", &run]).expect(0).stdout;
    assert!(told.contains("service web to start"), "{told}");
    let mut workers: Vec<Started> =
        (0..3).map(|_| sandbox.start(["worker", "--slots", "1", "--lease", "5s"])).collect();
    let blocked = sandbox.pid_in("blocked");
    let told = sandbox.json(["explain", &run, "--json"]);
    let of = |id: &str| {
        let step = told["steps"].as_array().and_then(|steps| steps.iter().find(|step| step["id"] == id));
        step.map(|step| step["owner"].to_string()).unwrap_or_else(|| panic!("no {id}: {told}"))
    };
    assert_eq!(of("web"), of("block"), "{told}");
    let below = |worker: &Started| children(worker.pid()).into_iter().flat_map(children).collect::<Vec<_>>();
    let owner = |worker: &Started| below(worker).contains(&blocked);
    let at = workers.iter().position(owner).expect("one of them has the step");
    let killed = workers.swap_remove(at);
    killed.kill();
    let first = pids(&sandbox)[0];
    until("its service is gone", || !is_running(first));
    sandbox.write("go", "");
    sandbox.ends_as(&run, "completed");
    assert_eq!((sandbox.lines("got").len(), pids(&sandbox).len()), (1, 2));
    nothing_is_left(&sandbox, &run);
    for worker in &workers {
        worker.signal(sprag_tests::Signal::TERM);
    }
    workers.into_iter().for_each(|worker| drop(worker.finish().expect(0)));
    sandbox.check(&run);
}

/// P18: a worker over HTTP runs services; their logs reach the server.
#[test]
fn p18_a_worker_over_http_runs_services() {
    let scene = Scene::new();
    served(&scene.sandbox, "");
    let run = scene.detach("served");
    let worker = scene.worker(&scene.url(), &["--slots", "1"]);
    scene.sandbox.ends_as(&run, "completed");
    assert_eq!(scene.sandbox.lines("got"), ["hello"]);
    until("the service's log has arrived", || {
        scene.sandbox.sprag(["logs", &run, "web"]).stdout.contains("GET /page")
    });
    nothing_is_left(&scene.sandbox, &run);
    drop(worker);
}

/// P18: a server's worker keeps services while the run waits for an answer.
#[test]
fn p18_a_server_keeps_services_while_a_run_waits() {
    let sandbox = Sandbox::new();
    served(&sandbox, "  - { id: ask, gate: { ask: Go on? } }\n");
    let server = Server::start(&sandbox, &[]);
    let run = sandbox.detach(&sandbox.path("served.yaml"));
    sandbox.until_step(&run, "ask", "running");
    until("the service runs", || pids(&sandbox).iter().any(|pid| is_running(*pid)));
    assert_eq!(sandbox.status(&run)["waiting_for"], "person");
    sandbox.sprag(["approve", &run, "--detach"]).expect(0);
    sandbox.ends_as(&run, "completed");
    assert_eq!((pids(&sandbox).len(), sandbox.lines("got").len()), (1, 1), "started once");
    nothing_is_left(&sandbox, &run);
    drop(server);
}

/// P14: a run with services waits for a child with services of its own. The child's start although its worker has one slot.
#[test]
fn p14_services_of_a_child_run_start_beside_those_of_its_parent() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "nested",
        "services:\n  outer: { run: sleep 1000 }\nsteps:\n  - { id: child, pipeline: { name: inner } }\n---\nname: inner\nservices:\n  own: { run: sleep 1000 }\nsteps:\n  - { id: work, run: echo inside >> ran }\n",
    );
    let run = sandbox.run(&["nested.yaml", "--slots", "1"], 0);
    assert_eq!(sandbox.lines("ran"), ["inside"]);
    nothing_is_left_of(&sandbox, &run);
}
