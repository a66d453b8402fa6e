//! A run while it lives, through the program: the limit of its steps at once, steps that are skipped, tries that start now.

use serde_json::json;
use sprag_tests::{Sandbox, Server, until, until_some};

/// P14: a run has no more steps and items at work than its `max_parallel`; `explain` names those that have the places,
/// and gates and fan-outs themselves take none.
#[test]
fn p14_a_run_has_no_more_steps_at_work_than_it_allows() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "limited",
        r#"
max_parallel: 2
defaults:
  shell: [sh, -e, -c, 'echo + >> log; trap "echo - >> log" EXIT; [ "$SPRAG_STEP_ID" = after ] || for _ in $(seq 1 2000); do [ -e go ] && break; sleep 0.02; done; eval "$0"']
steps:
  - { id: a, needs: [], run: "true" }
  - { id: b, needs: [], run: test $SPRAG_ATTEMPT = 2, retry: { attempts: 2 } }
  - { id: c, needs: [], run: "true" }
  - { id: each, needs: [], foreach: [1, 2, 3], run: "true" }
  - { id: pause, needs: [], wait: 1ms }
  - { id: after, needs: [pause], run: "true" }
"#,
    );
    let started = sandbox.start(["run", "limited.yaml", "--slots", "6"]);
    until("two steps have begun", || sandbox.lines("log").len() == 2);
    let run = sandbox.newest().expect("a run");
    sandbox.until_step(&run, "pause", "done");
    assert_eq!(
        sandbox.steps(&run),
        "a running, b running, c waiting, each running, pause done, after waiting"
    );
    let told = sandbox.sprag(["explain", &run]).expect(0).stdout;
    let places = "one of the 2 places of its run (max_parallel): a, b must end";
    assert_eq!(told.matches(places).count(), 2, "{told}");
    sandbox.write("go", "");
    started.finish().expect(0);
    let log = sandbox.lines("log");
    assert_eq!(log.len(), 16, "{log:?}");
    let mut at_work = 0;
    for line in &log {
        at_work += if line == "+" { 1 } else { -1 };
        assert!(at_work <= 2, "{log:?}");
    }
    assert_eq!(sandbox.step(&run, "each")["items"]["total"], json!(3));
    sandbox.check(&run);
    for (name, told) in [("max_parallel: 0", "from 1 to"), ("max_parallel: few", "a whole number from 1")] {
        sandbox.yaml("bad", &format!("{name}\nsteps:\n  - {{ id: a, run: echo }}\n"));
        let refused = sandbox.sprag(["validate", "bad.yaml"]).expect(2);
        assert!(refused.stdout.contains(told) || refused.stderr.contains(told), "{refused:?}");
    }
}

/// P13, P16: a person skips steps of a live run in every status, and starts a try that waits for its delay; the program,
/// the server and the tools of agents do the same.
#[test]
fn p13_steps_of_a_live_run_are_skipped_and_tried_at_once() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "live",
        r#"
steps:
  - { id: slow, needs: [], run: touch slow; sleep 600 }
  - { id: ask, needs: [], gate: { ask: "Go on?" } }
  - { id: pause, needs: [], wait: 1h }
  - { id: flaky, needs: [], run: "echo try >> tries; test -e mended", retry: { attempts: 2, delay: 1h } }
  - { id: each, needs: [], foreach: [1, 2], run: "[ {{ item }} = 1 ] || sleep 600" }
  - { id: late, needs: [slow], when: { if: "true", else: skip_rest }, run: echo never >> never }
  - { id: with-late, needs: [late], run: echo never >> never }
  - { id: child, needs: [], pipeline: { name: inner } }
  - { id: last, needs: [slow, ask, pause, flaky, each, child], run: "echo {{ steps.slow.status }} {{ steps.flaky.status }} > last" }
---
name: inner
steps: [{ id: sleeps, run: sleep 600 }]
"#,
    );
    let started = sandbox.start(["run", "live.yaml", "--slots", "6"]);
    until("the slow step has begun", || sandbox.path("slow").exists());
    let run = until_some("the outer run", || {
        let runs = sandbox.json(["ls", "--json"]);
        let outer = runs.as_array()?.iter().find(|run| run["pipeline"] == "live")?;
        outer["id"].as_str().map(str::to_owned)
    });
    until("the first try has failed", || sandbox.step(&run, "flaky")["attempt"] == json!(2));
    sandbox.until_step(&run, "each[0]", "done");
    sandbox.until_step(&run, "each[1]", "running");
    sandbox.until_step(&run, "child", "running");

    let told = sandbox.sprag(["skip", &run, "late"]).expect(0);
    assert!(told.stderr.contains("step late will be skipped when its needs are met"), "{told:?}");
    let explained = sandbox.sprag(["explain", &run]).expect(0).stdout;
    assert!(explained.contains("its needs, to be skipped then"), "{explained}");
    let told = sandbox.sprag(["skip", &run, "slow"]).expect(0);
    assert!(told.stderr.contains("step slow will be skipped when its work has stopped"), "{told:?}");
    for step in ["ask", "pause"] {
        let told = sandbox.sprag(["skip", &run, step]).expect(0);
        assert!(told.stderr.contains(&format!("step {step} is skipped")), "{told:?}");
    }
    let server = Server::start(&sandbox, &["--no-worker"]);
    server.post(&format!("/v1/runs/{run}/skip"), &json!({ "step": "each[1]" })).expect(200);
    server.post(&format!("/v1/runs/{run}/skip"), &json!({ "step": "ask" })).problem(409, "refused");
    server.post(&format!("/v1/runs/{run}/skip"), &json!({ "step": "nothing" })).expect(422);
    server.post(&format!("/v1/runs/{run}/retry"), &json!({ "step": "slow", "now": true })).expect(409);
    server.call("run_skip", &json!({ "run": run, "step": "child" }));
    sandbox.write("mended", "");
    let told = sandbox.sprag(["retry", &run, "--step", "flaky", "--now", "--json"]).expect(0);
    assert_eq!(told.json()["step"], json!("flaky"));
    started.finish().expect(0);

    assert_eq!(
        sandbox.steps(&run),
        "slow skipped, ask skipped, pause skipped, flaky done, each done, late skipped, with-late skipped, child skipped, last done, each[0] done, each[1] skipped"
    );
    assert_eq!(sandbox.read("last").trim(), "skipped done");
    assert_eq!(sandbox.lines("tries").len(), 2);
    assert!(!sandbox.path("never").exists());
    sandbox.check(&run);
    let told = sandbox.sprag(["skip", &run, "last"]).expect(4);
    assert!(told.stderr.contains("is completed: there is nothing to do"), "{told:?}");
    let acts = sandbox.json(["audit", "--json"]);
    let skips =
        acts.as_array().expect("acts").iter().filter(|act| act["act"] == "step.skip_requested").count();
    assert_eq!(skips, 6, "{acts}");
    // A rewind to a skipped step runs it.
    sandbox.yaml("quick", "steps:\n  - { id: a, wait: 1h }\n  - { id: b, run: echo b >> b }\n");
    let started = sandbox.start(["run", "quick.yaml"]);
    let quick = until_some("the run", || {
        sandbox.newest().filter(|newest| sandbox.status(newest)["pipeline"] == "quick")
    });
    sandbox.until_step(&quick, "a", "running");
    sandbox.sprag(["skip", &quick, "b"]).expect(0);
    sandbox.sprag(["skip", &quick, "a"]).expect(0);
    started.finish().expect(0);
    assert_eq!(sandbox.steps(&quick), "a skipped, b skipped");
    sandbox.sprag(["rewind", &quick, "--to", "b"]).expect(0);
    assert_eq!(sandbox.lines("b"), ["b"]);
    sandbox.check(&quick);
}
