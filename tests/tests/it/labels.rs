//! Workers with labels, and steps that ask for them.

use sprag_tests::{Sandbox, Signal, until};

const ASKS: &str = "steps:\n  - { id: plain, run: 'echo $SPRAG_STEP_ID >> ran' }\n  - { id: asks, labels: [gpu, linux], run: 'echo $SPRAG_STEP_ID >> ran' }\n";

#[test]
fn a_step_waits_for_a_worker_that_has_its_labels_and_explain_says_so() {
    let sandbox = Sandbox::new();
    sandbox.write("asks.yaml", ASKS);
    let run = sandbox.detach(&sandbox.path("asks.yaml"));
    let plain = sandbox.start(["worker", "--name", "plain", "--label", "linux"]);
    let waits_for = || {
        let told = sandbox.json(["explain", &run, "--json"]);
        let steps = told["steps"].as_array().expect("steps").clone();
        let asks = steps.iter().find(|step| step["id"] == "asks");
        asks.and_then(|step| step["waits_for"].as_str()).unwrap_or_default().to_owned()
    };
    until("the step waits", || {
        waits_for()
            .starts_with("a worker with labels gpu, linux; the only worker on queue \"default\" lacks some")
    });
    assert!(
        waits_for().contains("sprag worker --queue default --label gpu --label linux"),
        "{}",
        waits_for()
    );
    assert_eq!(sandbox.lines("ran"), ["plain"]);
    let able = sandbox.start(["worker", "--name", "able", "--label", "gpu", "--label", "linux"]);
    sandbox.ends_as(&run, "completed");
    assert_eq!(sandbox.lines("ran"), ["plain", "asks"]);
    let workers = sandbox.json(["worker", "ls", "--json"]);
    let told: Vec<(&str, String)> = workers
        .as_array()
        .expect("workers")
        .iter()
        .map(|worker| (worker["name"].as_str().expect("a name"), worker["labels"].to_string()))
        .collect();
    assert_eq!(told, [("able", "[\"gpu\",\"linux\"]".to_owned()), ("plain", "[\"linux\"]".to_owned())]);
    let people = sandbox.sprag(["worker", "ls"]).expect(0).stdout;
    assert!(
        people.contains("gpu,linux") && people.lines().all(|line| line.chars().count() <= 80),
        "{people}"
    );
    for worker in [plain, able] {
        worker.signal(Signal::TERM);
        worker.finish().expect(0);
    }
    sandbox.sprag(["worker", "ls"]).expect(0);
}

#[test]
fn a_run_in_its_own_process_does_all_of_its_steps_itself() {
    let sandbox = Sandbox::new();
    sandbox.write("asks.yaml", ASKS);
    sandbox.sprag(["run", "asks.yaml"]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["plain", "asks"]);
}

#[test]
fn invalid_labels_and_labels_on_steps_without_a_worker_are_refused() {
    let sandbox = Sandbox::new();
    let told = sandbox.sprag(["worker", "--label", "a,b"]).expect(2).stderr;
    assert!(told.contains("--label \"a,b\"") && told.contains("letters, digits"), "{told}");
    sandbox.write("task.yaml", "steps:\n  - { id: a, labels: [gpu], task: { prompt: x } }\n");
    let told = sandbox.sprag(["validate", "task.yaml"]).expect(2).stderr;
    assert!(told.contains("labels"), "{told}");
}
