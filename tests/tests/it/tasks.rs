//! Tasks: work that agents, scripts and people claim.

use serde_json::{Value, json};
use sprag_tests::{Sandbox, until, until_some};

const REVIEW: &str = r#"
inputs: { title: { default: "a title" } }
steps:
  - id: make
    run: echo made
    outputs: { what: { stdout: text } }
  - id: review
    retry: { attempts: 2 }
    task:
      queue: reviewers
      prompt: "Review {{ inputs.title }}, {{ steps.make.outputs.what }}"
      with: { n: "{{ steps.make.attempt }}", list: [1, "{{ inputs.title }}"] }
  - id: use
    run: echo {{ steps.review.outputs.verdict }} {{ steps.review.outputs.score }} >> used
"#;

/// Returns a sandbox with a run that waits for a review, the run's id, and a worker.
fn reviewed() -> (Sandbox, String, sprag_tests::Started) {
    let sandbox = Sandbox::new();
    sandbox.yaml("review", REVIEW);
    let running = sandbox.start(["run", "review.yaml", "--json"]);
    let run = until_some("a run", || sandbox.newest());
    until("a task is there", || sandbox.json(["task", "ls", "--json"]) != json!([]));
    (sandbox, run, running)
}

fn claim(sandbox: &Sandbox) -> Value {
    sandbox.json(["task", "claim", "--queue", "reviewers", "--as", "ada", "--json"])
}

fn token(task: &Value) -> &str {
    task["token"].as_str().expect("a token")
}

#[test]
fn a_task_is_claimed_kept_and_done() {
    let (sandbox, run, running) = reviewed();
    let listed = sandbox.json(["task", "ls", "--json"]);
    assert_eq!((&listed[0]["step"], &listed[0]["status"]), (&json!("review"), &json!("waiting")));
    let task = claim(&sandbox);
    assert_eq!(task["prompt"], "Review a title, made");
    assert_eq!(task["with"], json!({ "n": 1, "list": [1, "a title"] }));
    assert_eq!((&task["run"], &task["step"], &task["attempt"]), (&json!(run), &json!("review"), &json!(1)));
    assert_eq!(sandbox.json(["task", "ls", "--json"])[0]["status"], "claimed");
    let told = sandbox.sprag(["explain", &run]).expect(0).stdout;
    assert!(told.contains("ada"), "{told}");
    sandbox.sprag(["task", "heartbeat", token(&task), "--lease", "10m"]).expect(0);
    let result = r#"{"verdict": "good; $(touch evil)", "score": 3}"#;
    sandbox.sprag(["task", "done", token(&task), "--result", result]).expect(0);
    running.finish().expect(0);
    assert_eq!(sandbox.lines("used"), ["good; $(touch evil) 3"]);
    sandbox.check(&run);
}

#[test]
fn c02_nothing_to_claim_is_exit_code_4() {
    let (sandbox, _, running) = reviewed();
    let none = sandbox.sprag(["task", "claim", "--queue", "others", "--json"]).expect(4).json();
    assert_eq!(none["token"], Value::Null);
    let task = claim(&sandbox);
    let none = sandbox.sprag(["task", "claim", "--queue", "reviewers", "--json"]).expect(4).json();
    assert_eq!(none["why"], "all_claimed");
    sandbox.sprag(["task", "claim", "--queue", "reviewers", "--wait", "50ms"]).expect(4);
    sandbox.sprag(["task", "done", token(&task), "--output", "verdict=ok", "--output", "score=1"]).expect(0);
    running.finish().expect(0);
}

#[test]
fn a_claim_waits_for_a_task_that_comes() {
    let sandbox = Sandbox::new();
    sandbox.yaml("review", REVIEW);
    let waiting = sandbox.start(["task", "claim", "--queue", "reviewers", "--wait", "60s", "--json"]);
    let running = sandbox.start(["run", "review.yaml", "--json"]);
    let task = waiting.finish().expect(0).json();
    sandbox.sprag(["task", "done", token(&task), "--output", "verdict=ok", "--output", "score=1"]).expect(0);
    running.finish().expect(0);
}

#[test]
fn a_failed_task_is_tried_again_with_its_reason() {
    let (sandbox, run, running) = reviewed();
    let first = claim(&sandbox);
    assert_eq!(first["feedback"], Value::Null);
    sandbox.sprag(["task", "fail", token(&first), "--reason", "no tests"]).expect(0);
    let second = claim(&sandbox);
    assert_eq!(second["attempt"], 2);
    assert_eq!(second["feedback"], "step `review` failed: no tests");
    sandbox.sprag(["task", "fail", token(&second)]).expect(0);
    running.finish().expect(100);
    assert_eq!(sandbox.steps(&run), "make done, review failed, use cancelled");
    sandbox.check(&run);
}

#[test]
fn c06_only_the_holder_of_a_task_reports_and_only_once() {
    let (sandbox, run, running) = reviewed();
    let task = claim(&sandbox);
    let refused = |args: &[&str]| {
        let told = sandbox.sprag(["task"].iter().chain(args)).expect(1);
        let (lost, reported) = ("no longer yours", "has already been reported as completed");
        assert!(told.stderr.contains(lost) || told.stderr.contains(reported), "{told:?}");
    };
    // A token cannot be forged: not with another fence, not without the store's signature.
    let parts: Vec<&str> = token(&task).split('.').collect();
    let forged = [parts[0], parts[1], parts[2], "7", parts[4]].join(".");
    for token in [&forged, &parts[..4].join(".")] {
        sandbox.sprag(["task", "done", token]).expect(2);
        sandbox.sprag(["task", "heartbeat", token]).expect(2);
    }
    sandbox.sprag(["task", "done", "nonsense"]).expect(2);
    sandbox.sprag(["task", "release", token(&task)]).expect(0);
    refused(&["done", token(&task)]);
    let again = claim(&sandbox);
    assert_eq!(again["attempt"], 1, "what was given back unfinished is no failed try");
    refused(&["fail", token(&task)]);
    sandbox.sprag(["task", "done", token(&again), "--output", "verdict=ok", "--output", "score=1"]).expect(0);
    refused(&["done", token(&again)]);
    running.finish().expect(0);
    assert_eq!(sandbox.lines("used"), ["ok 1"]);
    sandbox.check(&run);
}

#[test]
fn c06_a_claim_that_lapsed_is_refused() {
    let (sandbox, run, running) = reviewed();
    let short = sandbox.json(["task", "claim", "--queue", "reviewers", "--lease", "100ms", "--json"]);
    let again = until_some("it can be claimed again", || {
        let told = sandbox.sprag(["task", "claim", "--queue", "reviewers", "--json"]);
        (told.code == 0).then(|| told.json())
    });
    sandbox.sprag(["task", "done", token(&short)]).expect(1);
    sandbox.sprag(["task", "heartbeat", token(&short)]).expect(1);
    sandbox.sprag(["task", "done", token(&again), "--output", "verdict=ok", "--output", "score=2"]).expect(0);
    running.finish().expect(0);
    assert_eq!(sandbox.lines("used"), ["ok 2"]);
    sandbox.check(&run);
}

#[test]
fn the_holder_of_a_task_learns_that_its_run_was_cancelled() {
    let (sandbox, run, running) = reviewed();
    let task = claim(&sandbox);
    sandbox.sprag(["cancel", &run]).expect(0);
    let told = sandbox.sprag(["task", "heartbeat", token(&task)]).expect(130);
    assert!(told.stderr.contains("cancelled"), "{told:?}");
    sandbox.sprag(["task", "release", token(&task)]).expect(0);
    running.finish().expect(130);
    sandbox.check(&run);
}

#[test]
fn c01_items_of_a_fan_out_are_tasks_of_their_own() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "many",
        "steps:\n  - { id: each, foreach: [a, b, c, d], task: { prompt: \"Do {{ item }}\" } }\n  - { id: use, run: \"echo {{ steps.each.outputs.who }} > used\" }\n",
    );
    let running = sandbox.start(["run", "many.yaml", "--json"]);
    until("tasks are there", || sandbox.json(["task", "ls", "--json"]).as_array().map(Vec::len) == Some(4));
    let claims: Vec<_> = (0..4).map(|_| sandbox.start(["task", "claim", "--json"])).collect();
    let mut tasks: Vec<Value> = claims.into_iter().map(|claim| claim.finish().expect(0).json()).collect();
    tasks.sort_by_key(|task| task["step"].to_string());
    let prompts: Vec<&str> = tasks.iter().filter_map(|task| task["prompt"].as_str()).collect();
    assert_eq!(prompts, ["Do a", "Do b", "Do c", "Do d"]);
    for (n, task) in tasks.iter().enumerate() {
        sandbox.sprag(["task", "done", token(task), "--output", &format!("who={n}")]).expect(0);
    }
    running.finish().expect(0);
    assert_eq!(sandbox.read("used"), "[\"0\",\"1\",\"2\",\"3\"]\n");
}

#[test]
fn a_detached_run_continues_after_an_answer_although_its_tasks_are_claimed() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "both",
        "steps:\n  - { id: review, task: { prompt: Review } }\n  - { id: ask, gate: { ask: Well? } }\n  - { id: last, run: echo last >> ran }\n",
    );
    let run = sandbox.detach(&sandbox.path("both.yaml"));
    let task = sandbox.json(["task", "claim", "--json"]);
    sandbox.sprag(["task", "done", token(&task)]).expect(0);
    sandbox.until_step(&run, "ask", "running");
    // A claimer of tasks runs no steps: this process continues the run.
    sandbox.sprag(["approve", &run]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["last"]);
}
