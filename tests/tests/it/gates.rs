//! Questions to people, waits for a time or a signal, and places in a group.

use serde_json::{Value, json};
use sprag_tests::{Sandbox, Server, now_ms, until};

const RELEASE: &str = r#"
steps:
  - id: build
    run: echo build >> ran
  - id: ask
    gate: { ask: "Release it?", choices: [all, some, none] }
  - id: ship
    run: echo ship {{ steps.ask.outputs.choice }} {{ steps.ask.outputs.comment | default("-") }} >> ran
"#;

/// Returns a sandbox with a run that asks a question.
fn asking() -> (Sandbox, String) {
    let sandbox = Sandbox::new();
    sandbox.yaml("release", RELEASE);
    let run = sandbox.run(&["release.yaml"], 5);
    (sandbox, run)
}

#[test]
fn a_question_is_printed_and_the_exit_code_is_5() {
    let sandbox = Sandbox::new();
    sandbox.yaml("release", RELEASE);
    let told = sandbox.sprag(["run", "release.yaml"]).expect(5);
    let run = sandbox.newest().expect("a run");
    assert!(told.stderr.contains("Release it? [all, some, none]"), "{told:?}");
    assert!(told.stderr.contains(&format!("sprag approve {run} ask")), "{told:?}");
    let told = sandbox.sprag(["wait", &run, "--json"]).expect(5).json();
    let asked =
        json!([{ "run": run, "step": "ask", "ask": "Release it?", "choices": ["all", "some", "none"] }]);
    assert_eq!(told, json!({ "type": "result", "run": run, "status": "running", "waits_for": asked }));
    let told = sandbox.sprag(["explain", &run]).expect(0).stdout;
    assert!(told.contains("an answer: Release it?"), "{told}");
}

#[test]
fn an_answer_continues_the_run_in_this_process() {
    let (sandbox, run) = asking();
    let told = sandbox.sprag(["approve", &run]).expect(0);
    assert!(told.stderr.contains("answered \"all\"") && told.stderr.contains("completed"), "{told:?}");
    assert_eq!(sandbox.lines("ran"), ["build", "ship all -"]);
    assert_eq!(sandbox.steps(&run), "build done, ask done, ship done");
    sandbox.check(&run);
}

#[test]
fn an_answer_names_a_choice_and_says_why() {
    let (sandbox, run) = asking();
    let refused = sandbox.sprag(["approve", &run, "--choice", "most"]).expect(2);
    assert!(refused.stderr.contains("all, some, none"), "{refused:?}");
    sandbox.sprag(["approve", &run, "build"]).expect(4);
    sandbox.sprag(["approve", &run, "ask", "--choice", "some", "--comment", "$(touch evil); ok"]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["build", "ship some $(touch evil); ok"]);
    assert!(!sandbox.path("evil").exists());
}

#[test]
fn a_rejection_fails_the_step() {
    let (sandbox, run) = asking();
    let told = sandbox.sprag(["reject", &run, "--comment", "not today"]).expect(100);
    assert!(told.stderr.contains("answered \"none\""), "{told:?}");
    assert_eq!(sandbox.steps(&run), "build done, ask failed, ship cancelled");
    assert_eq!(sandbox.lines("ran"), ["build"]);
    sandbox.check(&run);
}

#[test]
fn a_second_answer_is_refused() {
    let (sandbox, run) = asking();
    sandbox.sprag(["approve", &run, "--detach"]).expect(0);
    let refused = sandbox.sprag(["reject", &run]).expect(4);
    assert!(refused.stderr.contains("asks nothing"), "{refused:?}");
    sandbox.sprag(["resume", &run]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["build", "ship all -"]);
    sandbox.sprag(["approve", &run]).expect(4);
}

#[test]
fn of_two_answers_at_once_one_counts() {
    let (sandbox, run) = asking();
    let answers = ["approve", "reject"].map(|word| sandbox.start([word, &run, "--detach"]));
    let codes: Vec<i32> = answers.into_iter().map(|answer| answer.finish().code).collect();
    let status = sandbox.step(&run, "ask")["status"].clone();
    match status.as_str() {
        Some("done") => assert!(codes[0] == 0 && codes[1] != 0, "{codes:?}"),
        Some("failed") => assert!(codes[0] != 0 && codes[1] == 100, "{codes:?}"),
        _ => panic!("{status}: {codes:?}"),
    }
    let journal = sandbox.journal(Some(&run));
    assert_eq!(journal.events("gate.answered"), 1);
}

#[test]
fn a_rejection_sends_earlier_work_back_with_the_comment() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "review",
        r#"
steps:
  - id: write
    run: echo "write ${SPRAG_FEEDBACK:-}" >> ran
  - id: review
    gate: { ask: Good enough? }
    on_fail: { rework: write, max: 1 }
"#,
    );
    let run = sandbox.run(&["review.yaml"], 5);
    sandbox.sprag(["reject", &run, "--comment", "too long"]).expect(5);
    assert_eq!(
        sandbox.lines("ran"),
        ["write ", "write step `review` failed: the answer was \"no\": too long"]
    );
    sandbox.sprag(["approve", &run]).expect(0);
    sandbox.check(&run);
    let run = sandbox.run(&["review.yaml"], 5);
    sandbox.sprag(["reject", &run]).expect(5);
    sandbox.sprag(["reject", &run]).expect(100);
}

#[test]
fn a_question_without_an_answer_in_time_fails_the_step() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "late",
        "steps:\n  - id: ask\n    gate: { ask: Anybody?, timeout: 50ms }\n    on_fail: continue\n  - id: busy\n    needs: []\n    run: until [ -e go ]; do :; done\n",
    );
    let running = sandbox.start(["run", "late.yaml", "--json"]);
    until("the question is too old", || {
        let run = sandbox.newest();
        run.is_some_and(|run| sandbox.step(&run, "ask")["status"] == "failed")
    });
    sandbox.write("go", "");
    running.finish().expect(0);
    let run = sandbox.newest().expect("a run");
    assert_eq!(sandbox.journal(Some(&run)).events("gate.expired"), 1);
    sandbox.check(&run);
}

#[test]
fn a_question_is_withdrawn_when_its_run_is_cancelled() {
    let (sandbox, run) = asking();
    sandbox.sprag(["cancel", &run]).expect(0);
    assert_eq!(sandbox.steps(&run), "build done, ask cancelled, ship cancelled");
    sandbox.sprag(["approve", &run]).expect(4);
    assert_eq!(sandbox.check(&run).events("gate.cancelled"), 1);
    // Going on with it asks again.
    sandbox.sprag(["resume", &run]).expect(5);
    sandbox.sprag(["approve", &run]).expect(0);
    sandbox.check(&run);
}

#[test]
fn a_run_finishes_parallel_steps_before_it_exits_for_a_question() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "beside",
        "steps:\n  - { id: ask, needs: [], gate: { ask: Really? } }\n  - { id: slow, needs: [], run: \"until [ -e go ]; do :; done; echo slow >> ran\" }\n  - { id: join, needs: [ask, slow], run: echo join >> ran }\n",
    );
    let running = sandbox.start(["run", "beside.yaml", "--json"]);
    let run = sprag_tests::until_some("a run that asks", || {
        sandbox.newest().filter(|run| sandbox.step(run, "ask")["status"] == "running")
    });
    sandbox.write("go", "");
    running.finish().expect(5);
    assert_eq!(sandbox.lines("ran"), ["slow"]);
    sandbox.sprag(["approve", &run]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["slow", "join"]);
}

#[test]
fn a_running_process_continues_after_an_answer_from_another_one() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "beside",
        "steps:\n  - { id: ask, needs: [], gate: { ask: Really? } }\n  - { id: slow, needs: [], run: \"until [ -e go ]; do :; done\" }\n  - { id: after, needs: [ask], run: touch go }\n",
    );
    let running = sandbox.start(["run", "beside.yaml", "--json"]);
    let run = sprag_tests::until_some("a run that asks", || {
        sandbox.newest().filter(|run| sandbox.step(run, "ask")["status"] == "running")
    });
    let told = sandbox.sprag(["approve", &run]).expect(0);
    assert!(!told.stderr.contains("completed"), "{told:?}");
    running.finish().expect(0);
}

#[test]
fn waits_are_for_a_while_or_until_a_time() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "waits",
        r#"
inputs: { time: { required: true } }
steps:
  - { id: a, run: date +%s%N >> times }
  - { id: rest, wait: 150ms }
  - { id: more, wait: { for: 50ms } }
  - { id: past, wait: { until: "2001-01-31T08:00:00Z" } }
  - { id: given, wait: { until: "{{ inputs.time }}" } }
  - { id: b, run: date +%s%N >> times }
"#,
    );
    sandbox.run(&["waits.yaml", "-i", "time=2001-01-31T08:00:00+02:00"], 0);
    let at: Vec<u64> = sandbox.lines("times").iter().map(|line| line.parse().expect("a time")).collect();
    assert!(at[1] - at[0] >= 200_000_000, "{at:?}");
    let run = sandbox.run(&["waits.yaml", "-i", "time=tomorrow"], 100);
    let told = sandbox.sprag(["status", &run]).expect(0).stdout;
    assert!(told.contains("is not a time"), "{told}");
}

const SIGNALLED: &str = r#"
steps:
  - id: deployed
    wait: { signal: deployed, timeout: 10m }
  - id: use
    run: echo {{ steps.deployed.outputs.version }} {{ steps.deployed.outputs.hosts }} > used
"#;

#[test]
fn a_signal_ends_a_wait_and_brings_outputs() {
    let sandbox = Sandbox::new();
    sandbox.yaml("signalled", SIGNALLED);
    let running = sandbox.start(["run", "signalled.yaml", "--json"]);
    let run = sprag_tests::until_some("a run that waits", || {
        sandbox.newest().filter(|run| sandbox.step(run, "deployed")["status"] == "running")
    });
    let refused = sandbox.sprag(["signal", &run, "deployd"]).expect(2);
    assert!(
        refused.stderr.contains("no step of run") && refused.stderr.contains("did you mean \"deployed\"?")
    );
    sandbox.sprag(["signal", &run, "deployed", "--payload", "{"]).expect(2);
    let told = sandbox.json([
        "signal",
        &run,
        "deployed",
        "--payload",
        r#"{"version": 3, "hosts": ["a"]}"#,
        "--json",
    ]);
    assert_eq!(told["received_by"], "deployed");
    running.finish().expect(0);
    assert_eq!(sandbox.read("used"), "3 [\"a\"]\n");
    sandbox.sprag(["signal", &run, "deployed"]).expect(4);
    sandbox.check(&run);
}

#[test]
fn a_signal_that_comes_early_is_kept() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "early",
        &SIGNALLED.replace("steps:\n", "steps:\n  - { id: first, run: \"until [ -e go ]; do :; done\" }\n"),
    );
    let running = sandbox.start(["run", "early.yaml", "--json"]);
    let run = sprag_tests::until_some("a run", || sandbox.newest());
    sandbox.sprag(["signal", &run, "deployed", "--payload", r#"{"version": 4, "hosts": []}"#]).expect(0);
    sandbox.write("go", "");
    running.finish().expect(0);
    assert_eq!(sandbox.read("used"), "4 []\n");
}

#[test]
fn a_signal_that_does_not_come_in_time_fails_the_step() {
    let sandbox = Sandbox::new();
    sandbox.yaml("late", &SIGNALLED.replace("10m", "50ms"));
    let began_ms = now_ms();
    let run = sandbox.run(&["late.yaml"], 100);
    assert!(now_ms() - began_ms >= 50);
    assert_eq!(sandbox.steps(&run), "deployed failed, use cancelled");
    sandbox.check(&run);
}

#[test]
fn a_run_whose_process_died_in_a_wait_continues_after_the_signal() {
    let sandbox = Sandbox::new();
    sandbox.yaml("signalled", SIGNALLED);
    let running = sandbox.start(["run", "signalled.yaml", "--json"]);
    let run = sprag_tests::until_some("a run that waits", || {
        sandbox.newest().filter(|run| sandbox.step(run, "deployed")["status"] == "running")
    });
    running.kill();
    let told =
        sandbox.sprag(["signal", &run, "deployed", "--payload", r#"{"version": 5, "hosts": []}"#]).expect(0);
    assert!(told.stderr.contains("completed"), "{told:?}");
    assert_eq!(sandbox.read("used"), "5 []\n");
}

#[test]
fn each_signal_ends_one_wait() {
    let sandbox = Sandbox::new();
    let wait = "wait: { signal: next }";
    sandbox.pipeline(
        "twice",
        &[
            ("one", wait),
            ("two", wait),
            ("last", "run: echo {{ steps.one.outputs.n }} {{ steps.two.outputs.n }} > said"),
        ],
    );
    let run = sandbox.detach(&sandbox.path("twice.yaml"));
    for n in [1, 2] {
        sandbox
            .sprag(["signal", &run, "next", "--payload", &format!("{{\"n\": {n}}}"), "--detach"])
            .expect(0);
    }
    sandbox.sprag(["resume", &run]).expect(0);
    assert_eq!(sandbox.read("said"), "1 2\n");
}

#[test]
fn c10_a_full_group_rejects_or_cancels_the_older() {
    let sandbox = Sandbox::new();
    let text = |policy: &str| {
        format!(
            "inputs: {{ n: {{ default: '1' }} }}\nconcurrency: {{ group: 'g-{{{{ inputs.n }}}}', on_conflict: {policy} }}\nsteps:\n  - {{ id: one, run: 'echo {{{{ inputs.n }}}} >> began; until [ -e go ]; do :; done' }}\n"
        )
    };
    sandbox.yaml("reject", &text("reject"));
    let first = sandbox.start(["run", "reject.yaml", "--json"]);
    until("it has begun", || sandbox.lines("began").len() == 1);
    let refused = sandbox.sprag(["run", "reject.yaml"]).expect(1);
    let holder = sandbox.newest().expect("a run");
    assert!(refused.stderr.contains("is full") && refused.stderr.contains(&holder), "{refused:?}");
    let other = sandbox.start(["run", "reject.yaml", "-i", "n=2", "--json"]);
    until("another group's has begun", || sandbox.lines("began").len() == 2);
    sandbox.write("go", "");
    first.finish().expect(0);
    other.finish().expect(0);
    sandbox.run(&["reject.yaml"], 0);
    assert_eq!(sandbox.json(["ls", "--json"]).as_array().map(Vec::len), Some(3));

    std::fs::remove_file(sandbox.path("go")).expect("a file");
    sandbox.yaml("older", &text("cancel_older"));
    let first = sandbox.start(["run", "older.yaml", "-i", "n=3", "--json"]);
    until("it has begun", || sandbox.lines("began").len() == 4);
    let second = sandbox.start(["run", "older.yaml", "-i", "n=3", "--json"]);
    let told = first.finish().expect(130);
    assert_eq!(told.lines::<Value>().pop().expect("a result")["status"], "cancelled");
    until("the newer has begun", || sandbox.lines("began").len() == 5);
    sandbox.write("go", "");
    second.finish().expect(0);
}

#[test]
fn c10_a_limit_holds_with_several_workers() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "two",
        "concurrency: { group: g, limit: 2 }\nsteps:\n  - { id: one, run: 'echo begin >> log; sleep 0.05; echo end >> log' }\n",
    );
    let runs: Vec<String> = (0..6).map(|_| sandbox.detach(&sandbox.path("two.yaml"))).collect();
    let workers = [(); 3].map(|()| sandbox.start(["worker", "--until-idle", "--slots", "4"]));
    for run in &runs {
        sandbox.ends_as(run, "completed");
    }
    for worker in workers {
        worker.finish().expect(0);
    }
    let (mut now, mut most) = (0, 0);
    for line in sandbox.lines("log") {
        now += if line == "begin" { 1 } else { -1 };
        most = most.max(now);
    }
    assert!((1..=2).contains(&most), "{most}");
}

#[test]
fn i02_a_gate_names_who_may_answer_and_the_server_keeps_to_it() {
    const GUARDED: &str = "name: deploy\nsteps:\n  - id: ask\n    gate: { ask: 'Deploy?', answer_by: [ada, ci], not_by: starter }\n  - { id: ship, run: 'true' }\n";
    let sandbox = Sandbox::new();
    sandbox.write("project/.sprag/pipelines/deploy.yaml", GUARDED);
    let project = sandbox.path("project").display().to_string();
    let token = |name: &str, scope: &str| {
        sandbox.sprag(["token", "new", name, "--scope", scope]).expect(0).stdout.trim().to_owned()
    };
    let [ci, ada, bo] = ["ci", "ada", "bo"].map(|name| token(name, "run"));
    let server = Server::start(&sandbox, &["--project", &project]);
    let start = |body: &Value| server.request("POST", "/v1/runs").token(&ci).json(body).send();
    let run =
        start(&json!({ "pipeline": "deploy" })).expect(201).json()["id"].as_str().expect("an id").to_owned();
    let gate = server.get(&format!("/v1/gates?run={run}"))["gates"][0].clone();
    assert_eq!((&gate["answer_by"], &gate["not_by"]), (&json!(["ada", "ci"]), &json!("starter")));
    let path = format!("/v1/gates/{}/answer", gate["id"].as_str().expect("a number"));
    let answer =
        |token: &str| server.request("POST", &path).token(token).json(&json!({ "choice": "yes" })).send();
    // Neither the starter, nor one that is not listed, nor the server's own user.
    for (token, who) in [(&ci, "token:ci"), (&bo, "token:bo"), (&server.token, "token:local")] {
        let told = answer(token).problem(403, "forbidden");
        let message = told["message"].as_str().expect("a message");
        assert!(message.starts_with(who) && message.contains("for ada or ci, not the starter"), "{message}");
    }
    // Over MCP and on the command line it is the same rule.
    let told = server.call_as(&ci, "gate_answer", &json!({ "run": run, "choice": "yes" }));
    assert_eq!(told["error"], "forbidden", "{told}");
    let told = server.call_as(&bo, "gate_list", &json!({}));
    assert_eq!(told["gates"][0]["for"], "ada or ci, not the starter of the run", "{told}");
    let told = sandbox.sprag(["approve", &run]).expect(1).stderr;
    assert!(told.contains("may not answer"), "{told}");
    let told = sandbox.sprag(["explain", &run]).expect(0).stdout;
    assert!(told.contains("ada or ci, not the starter of the run"), "{told}");
    let told = sandbox.sprag(["questions"]).expect(0).stdout;
    assert!(told.contains("for ada or ci, not the starter of the run"), "{told}");
    // The question cannot be left out either, and its names are no templates.
    let told = start(&json!({ "pipeline": "deploy", "skip": ["ask"] })).expect(422).text();
    assert!(told.contains("cannot be left out"), "{told}");
    let chosen = GUARDED.replace("[ada, ci]", "['{{ inputs.who }}']");
    let told = start(&json!({ "yaml": chosen })).expect(422).text();
    assert!(told.contains("must not choose who answers"), "{told}");
    answer(&ada).expect(200);
    server.until(&run, "completed");
    let audit = sandbox.sprag(["audit", "--act", "gate"]).expect(0).stdout;
    assert!(audit.contains("token:ada"), "{audit}");
}
