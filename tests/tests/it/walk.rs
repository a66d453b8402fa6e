//! The walk over a pipeline's steps, checked by the journal and by the steps' own traces.

use sprag_tests::{Journal, Sandbox, now_ms, until, until_some};

/// Runs a pipeline to its end and checks its journal.
fn run(sandbox: &Sandbox, name: &str, code: i32) -> (String, Journal) {
    sandbox.sprag(["run", &format!("{name}.yaml")]).expect(code);
    let run = sandbox.newest().expect("a run");
    let journal = sandbox.check(&run);
    (run, journal)
}

const DONE: [&str; 3] = ["step.ready", "step.started", "step.succeeded"];

#[test]
fn p01_the_next_step_is_readied_by_the_end_of_the_one_before() {
    let sandbox = Sandbox::new();
    sandbox.pipeline(
        "three",
        &[("a", "run: echo a >> ran"), ("b", "run: echo b >> ran"), ("c", "run: echo c >> ran")],
    );
    let (_, journal) = run(&sandbox, "three", 0);
    assert_eq!(sandbox.lines("ran"), ["a", "b", "c"]);
    for step in ["a", "b", "c"] {
        assert_eq!(journal.of_step(step), DONE);
    }
    // In one commit: nothing comes between a step's end and the next one's beginning.
    assert_eq!(journal.seq_of("b", "step.ready"), journal.seq_of("a", "step.succeeded") + 1);
    assert_eq!(journal.events("run.succeeded"), 1);
}

#[test]
fn p02_no_later_step_changes_while_a_step_runs() {
    let sandbox = Sandbox::new();
    sandbox.pipeline(
        "gate",
        &[("a", "run: until [ -e go ]; do :; done"), ("b", "run: echo b"), ("c", "run: echo c")],
    );
    let id = sandbox.detach(&sandbox.path("gate.yaml"));
    let pending = sandbox.status(&id);
    assert_eq!(pending["steps"][0]["status"], "pending");
    let worker = sandbox.start(["worker", "--until-idle"]);
    sandbox.until_step(&id, "a", "running");
    let status = sandbox.status(&id);
    let statuses: Vec<&str> = (0..3).filter_map(|no| status["steps"][no]["status"].as_str()).collect();
    assert_eq!(statuses, ["running", "waiting", "waiting"]);
    let journal = sandbox.journal(Some(&id));
    assert_eq!(journal.count(|entry| matches!(entry.step.as_deref(), Some("b" | "c"))), 0);
    sandbox.write("go", "");
    worker.finish().expect(0);
    assert_eq!(sandbox.check(&id).of_step("c"), DONE);
}

#[test]
fn p05_an_untolerated_failure_ends_the_run_once_and_always_steps_run() {
    let sandbox = Sandbox::new();
    sandbox.pipeline(
        "fails",
        &[
            ("a", "run: exit 7"),
            ("b", "run: echo b >> ran"),
            ("sweep", "always: true\nrun: echo sweep >> ran"),
        ],
    );
    let (id, journal) = run(&sandbox, "fails", 100);
    assert_eq!(sandbox.lines("ran"), ["sweep"]);
    assert_eq!((journal.events("failure.observed"), journal.events("failure.settled")), (1, 1));
    assert_eq!(journal.of_step("b"), ["step.cancelled"]);
    let settled = journal.entries.iter().find(|entry| entry.event == "failure.settled").expect("settled").seq;
    assert!(journal.seq_of("sweep", "step.succeeded") < settled, "teardown comes first");
    assert_eq!(sandbox.status(&id)["steps"][2]["status"], "done");
}

#[test]
fn p06_a_run_that_has_ended_is_left_alone() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("ok", &[("a", "run: 'true'")]);
    sandbox.pipeline("bad", &[("a", "run: 'false'")]);
    let (completed, _) = run(&sandbox, "ok", 0);
    let (failed, _) = run(&sandbox, "bad", 100);
    let cancelled = sandbox.detach(&sandbox.path("ok.yaml"));
    sandbox.sprag(["cancel", &cancelled]).expect(0);
    let before: Vec<usize> =
        [&completed, &failed, &cancelled].map(|id| sandbox.check(id).entries.len()).to_vec();
    // A worker reconciles everything when it starts.
    sandbox.sprag(["worker", "--until-idle"]).expect(4);
    for (id, code) in [(&completed, 4), (&failed, 4), (&cancelled, 0)] {
        sandbox.sprag(["cancel", id]).expect(code);
    }
    let after: Vec<usize> =
        [&completed, &failed, &cancelled].map(|id| sandbox.check(id).entries.len()).to_vec();
    assert_eq!(before, after);
    sandbox.sprag(["resume", "000000000000"]).expect(2);
}

#[test]
fn p10_the_journal_has_one_entry_for_each_applied_transition() {
    let sandbox = Sandbox::new();
    sandbox.pipeline(
        "mixed",
        &[
            ("a", "run: 'true'"),
            ("b", "needs: [a]\nrun: '[ $SPRAG_ATTEMPT = 3 ]'\nretry: { attempts: 3 }"),
            ("c", "needs: [a]\nrun: exit 1\non_fail: continue"),
            ("d", "needs: [b, c]\nrun: 'true'"),
        ],
    );
    let (id, journal) = run(&sandbox, "mixed", 0);
    assert_eq!(journal.events("execution.requested"), 6, "a, b three times, c, d");
    assert_eq!(journal.events("handoff.received"), 6);
    assert_eq!(journal.events("step.retried"), 2);
    let whole = sandbox.journal(None);
    let replayed = whole.replay();
    assert_eq!(replayed[&("run".to_owned(), id)], "completed");
    assert!(replayed.iter().all(|((entity, _), status)| entity != "worker" || status == "offline"));
}

#[test]
fn p11_only_the_owner_completes_an_execution_and_only_while_it_runs() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("five", &[("a", "run: 'true'"), ("b", "run: 'true'"), ("c", "run: 'true'")]);
    let (_, journal) = run(&sandbox, "five", 0);
    for entry in journal.entries.iter().filter(|entry| entry.entity == "execution") {
        let by_worker = ["handoff.received", "execution.completed"].contains(&entry.event.as_str());
        assert_eq!(entry.actor, if by_worker { "worker" } else { "executor" }, "{entry:?}");
        assert!(entry.event != "execution.completed" || entry.from.as_deref() == Some("running"));
    }
}

#[test]
fn p12_a_later_step_of_the_same_queue_waits_for_its_predecessors() {
    let sandbox = Sandbox::new();
    sandbox.pipeline(
        "queued",
        &[
            ("first", "queue: agent\npriority: -5\nrun: until [ -e go ]; do :; done; echo first >> ran"),
            ("second", "queue: agent\npriority: 100\nrun: echo second >> ran"),
        ],
    );
    let id = sandbox.detach(&sandbox.path("queued.yaml"));
    let workers: Vec<_> =
        (0..2).map(|_| sandbox.start(["worker", "--queue", "agent", "--until-idle"])).collect();
    sandbox.until_step(&id, "first", "running");
    assert_eq!(sandbox.status(&id)["steps"][1]["status"], "waiting");
    sandbox.write("go", "");
    for worker in workers {
        worker.finish();
    }
    assert_eq!(sandbox.lines("ran"), ["first", "second"]);
    sandbox.check(&id);
}

#[test]
fn p15_an_ended_run_continues_only_on_an_explicit_command() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("bad", &[("a", "run: 'true'"), ("b", "run: '[ -e mended ]'")]);
    let (id, _) = run(&sandbox, "bad", 100);
    sandbox.write("mended", "");
    sandbox.sprag(["worker", "--until-idle"]).expect(4);
    assert_eq!(sandbox.status_word(&id), "failed");
    sandbox.sprag(["resume", &id]).expect(0);
    let journal = sandbox.check(&id);
    let terminal = ["completed", "failed", "cancelled"];
    let revived: Vec<&str> = journal
        .entries
        .iter()
        .filter(|entry| {
            entry.entity == "run" && entry.from.as_deref().is_some_and(|from| terminal.contains(&from))
        })
        .map(|entry| entry.event.as_str())
        .collect();
    assert_eq!(revived, ["run.resumed"]);
    assert_eq!(journal.of_step("a"), DONE, "what is done stays done");
}

#[test]
fn p17_two_needs_that_end_together_ready_the_next_step_once() {
    let sandbox = Sandbox::new();
    let wide: Vec<(String, String)> =
        (0..8).map(|no| (format!("w{no}"), "needs: []\nrun: 'true'".to_owned())).collect();
    let mut steps: Vec<(&str, &str)> = wide.iter().map(|(id, keys)| (id.as_str(), keys.as_str())).collect();
    steps.push(("join", "needs: [w0, w1, w2, w3, w4, w5, w6, w7]\nrun: echo joined >> ran"));
    sandbox.pipeline("fan", &steps);
    let runs: Vec<String> = (0..10).map(|_| sandbox.detach(&sandbox.path("fan.yaml"))).collect();
    let workers: Vec<_> = (0..3).map(|_| sandbox.start(["worker", "--until-idle", "--slots", "4"])).collect();
    for worker in workers {
        worker.finish();
    }
    assert_eq!(sandbox.lines("ran").len(), runs.len());
    for id in runs {
        assert_eq!(sandbox.check(&id).of_step("join"), DONE);
    }
}

#[test]
fn c08_a_backoff_is_waited_out_before_the_next_claim() {
    let sandbox = Sandbox::new();
    let keys = "run: cut -d' ' -f1 /proc/uptime >> at; false\nretry: { attempts: 3, delay: 400ms, backoff: exponential }";
    sandbox.pipeline("again", &[("a", keys)]);
    let id = sandbox.detach(&sandbox.path("again.yaml"));
    // Several workers look for work all the time; none may have it early.
    let workers: Vec<_> = (0..2).map(|_| sandbox.start(["worker", "--until-idle"])).collect();
    let told = until_some("the backoff is explained", || {
        let told = sandbox.json(["explain", &id, "--json"]);
        let waits = told["steps"][0]["waits_for"].as_str().map(str::to_owned);
        waits.filter(|waits| waits.contains("backoff")).map(|_| told)
    });
    assert!(told["steps"][0]["until"].is_string(), "{told}");
    for worker in workers {
        worker.finish();
    }
    let at: Vec<f64> = sandbox.lines("at").iter().map(|line| line.parse().expect("seconds")).collect();
    assert_eq!(at.len(), 3);
    // The kernel tells hundredths of a second.
    assert!(at[1] - at[0] >= 0.39 && at[2] - at[1] >= 0.79, "{at:?}");
    assert_eq!(sandbox.status_word(&id), "failed");
    sandbox.check(&id);
}

#[test]
fn retries_stop_at_exit_codes_that_are_not_worth_one() {
    let sandbox = Sandbox::new();
    sandbox.pipeline(
        "codes",
        &[("a", "run: echo x >> ran; exit $((5 + $SPRAG_ATTEMPT))\nretry: { attempts: 5, exit_codes: [6] }")],
    );
    let (_, journal) = run(&sandbox, "codes", 100);
    assert_eq!(sandbox.lines("ran").len(), 2, "6 is tried again, 7 is not");
    assert_eq!(
        journal.of_step("a"),
        ["step.ready", "step.started", "step.retried", "step.started", "step.failed"]
    );
}

#[test]
fn a_timeout_ends_the_whole_tree() {
    let sandbox = Sandbox::new();
    let keys = "run: setsid sh -c 'echo $$ > pid; exec sleep 300' & wait\ntimeout: 700ms";
    sandbox.pipeline("long", &[("a", keys)]);
    let began_ms = now_ms();
    let (id, journal) = run(&sandbox, "long", 100);
    assert!(now_ms() - began_ms >= 700);
    assert!(!sprag_tests::is_running(sandbox.pid_in("pid")));
    assert_eq!(journal.of_executions("a").last(), Some(&"execution.timed_out"));
    assert!(sandbox.processes_of(&id).is_empty());
}

#[test]
fn parallel_steps_of_a_graph_join() {
    let sandbox = Sandbox::new();
    let meet =
        |me: &str, other: &str| format!("needs: [a]\nrun: echo > {me}; until [ -e {other} ]; do :; done");
    let (b, c) = (meet("b", "c"), meet("c", "b"));
    sandbox.pipeline(
        "diamond",
        &[("a", "run: 'true'"), ("b", &b), ("c", &c), ("d", "needs: [b, c]\nrun: 'true'")],
    );
    // Neither b nor c could end if they did not run at once.
    let (_, journal) = run(&sandbox, "diamond", 0);
    let joined = journal.seq_of("d", "step.ready");
    assert!(journal.seq_of("b", "step.succeeded") < joined && journal.seq_of("c", "step.succeeded") < joined);
}

#[test]
fn always_steps_run_after_a_cancel() {
    let sandbox = Sandbox::new();
    sandbox.pipeline(
        "tidy",
        &[
            ("a", "run: echo $$ > pid; exec sleep 300"),
            ("b", "run: echo b >> ran"),
            ("c", "always: true\nrun: echo c >> ran"),
        ],
    );
    let id = sandbox.detach(&sandbox.path("tidy.yaml"));
    let worker = sandbox.start(["worker", "--until-idle"]);
    let pid = sandbox.pid_in("pid");
    sandbox.sprag(["cancel", &id]).expect(0);
    sandbox.ends_as(&id, "cancelled");
    worker.finish().expect(0);
    assert!(!sprag_tests::is_running(pid));
    assert_eq!(sandbox.lines("ran"), ["c"]);
    sandbox.check(&id);
}

#[test]
fn a_tolerated_failure_counts_as_done() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("soft", &[("a", "run: exit 1\non_fail: continue"), ("b", "run: echo b >> ran")]);
    let (id, _) = run(&sandbox, "soft", 0);
    assert_eq!(sandbox.lines("ran"), ["b"]);
    assert_eq!(sandbox.status(&id)["steps"][0]["status"], "failed");
}

#[test]
fn rework_sends_an_earlier_step_back_at_most_so_often() {
    let sandbox = Sandbox::new();
    let steps = |check: &'static str| {
        [
            ("make", "run: echo make >> ran"),
            ("polish", "run: echo polish >> ran"),
            ("check", check),
            ("ship", "run: echo ship >> ran"),
        ]
    };
    sandbox.pipeline("good", &steps("run: '[ $(grep -c make ran) = 3 ]'\non_fail: { rework: make, max: 2 }"));
    let (id, journal) = run(&sandbox, "good", 0);
    assert_eq!(sandbox.lines("ran"), ["make", "polish", "make", "polish", "make", "polish", "ship"]);
    assert_eq!(journal.events("step.reworked"), 6, "make, polish and check, twice");
    assert_eq!(sandbox.status(&id)["epoch"], 1);
    let sandbox = Sandbox::new();
    sandbox.pipeline("never", &steps("run: exit 1\non_fail: { rework: make, max: 2 }"));
    run(&sandbox, "never", 100);
    assert_eq!(sandbox.lines("ran").len(), 6);
}

#[test]
fn a_group_limits_its_live_runs() {
    let sandbox = Sandbox::new();
    let text = "name: one\nconcurrency: { group: only }\nsteps:\n  - id: a\n    run: |\n      echo in >> ran\n      until [ -e go ]; do :; done\n      echo out >> ran\n";
    sandbox.write("one.yaml", text);
    let first = sandbox.detach(&sandbox.path("one.yaml"));
    let second = sandbox.detach(&sandbox.path("one.yaml"));
    assert_eq!(
        (sandbox.status_word(&first), sandbox.status_word(&second)),
        ("running".into(), "queued".into())
    );
    let told = sandbox.json(["explain", &second, "--json"]);
    assert!(told["waits_for"].as_str().is_some_and(|place| place.contains(&first)), "{told}");
    let workers: Vec<_> = (0..2).map(|_| sandbox.start(["worker", "--until-idle"])).collect();
    until("the first works", || sandbox.lines("ran") == ["in"]);
    sandbox.write("go", "");
    for worker in workers {
        worker.finish();
    }
    assert_eq!(sandbox.lines("ran"), ["in", "out", "in", "out"]);
    sandbox.check(&second);
}
