//! What a pipeline says of itself: descriptions, names and labels of its runs, and the outputs that it declares.

use serde_json::{Value, json};
use sprag_tests::{Sandbox, Server};

const RELEASE: &str = "\
description: Releases a version
run_name: \"release {{ inputs.version }}\"
labels: { version: \"{{ inputs.version }}\", level: 3 }
inputs: { version: { default: \"1.0\", description: The version to release } }
outputs:
  n: \"{{ steps.count.outputs.n }}\"
  text: \"{{ inputs.version }} has {{ steps.count.outputs.n }}\"
  skipped: \"{{ steps.never.outputs.x }}\"
  all: [\"{{ steps.count.status }}\", 7]
steps:
  - id: count
    description: Counts to three
    run: echo 3
    outputs: { n: { stdout: json } }
  - id: never
    when: \"inputs.version == 'x'\"
    run: echo '{}'
    outputs: { x: { stdout: json } }
";

fn outputs() -> Value {
    json!({ "n": 3, "text": "1.0 has 3", "skipped": null, "all": ["done", 7] })
}

#[test]
fn a_run_has_the_name_the_labels_and_the_outputs_of_its_pipeline() {
    let sandbox = Sandbox::new();
    sandbox.yaml("release", RELEASE);
    let told = sandbox.sprag(["run", "release.yaml", "--json"]).expect(0).lines::<Value>();
    assert_eq!(told.last().expect("a result")["outputs"], outputs());
    let run = sandbox.json(["ls", "--json"])[0].clone();
    assert_eq!(run["name"], "release 1.0");
    assert_eq!(run["labels"], json!({ "version": "1.0", "level": "3" }));
    assert_eq!(sandbox.json(["status", "release 1.0", "--json"])["id"], run["id"]);
    // What the caller gives counts more.
    let args = ["run", "release.yaml", "--name", "mine", "--label", "level=4", "--label", "team=web"];
    sandbox.sprag(args.iter().chain(&["-i", "version=2.0"])).expect(0);
    let run = sandbox.json(["ls", "--json"])[0].clone();
    assert_eq!(run["name"], "mine");
    assert_eq!(run["labels"], json!({ "version": "2.0", "level": "4", "team": "web" }));
    // A name that is too long is refused before the run starts.
    let long = format!("version={}", "9".repeat(200));
    sandbox.sprag(["run", "release.yaml", "-i", &long]).expect(2);
    assert_eq!(sandbox.json(["ls", "--json"]).as_array().expect("runs").len(), 2);
}

#[test]
fn a_parent_and_the_api_see_the_declared_outputs() {
    let sandbox = Sandbox::new();
    sandbox.yaml("release", RELEASE);
    sandbox.yaml(
        "parent",
        "outputs: { twice: \"{{ steps.child.outputs.n * 2 }}\" }\nsteps:\n\
         \x20 - { id: child, pipeline: release.yaml }\n\
         \x20 - { id: show, run: 'echo got {{ steps.child.outputs.n }} {{ steps.child.outputs.text }}' }\n\
         \x20 - id: choose\n    when: steps.child.outputs.n == 3\n    run: echo chosen\n\
         \x20 - id: each\n    foreach: '{{ steps.child.outputs.all }}'\n    pipeline: release.yaml\n\
         \x20 - { id: list, run: 'echo {{ steps.each.outputs.n | tojson }}' }\n",
    );
    let told = sandbox.sprag(["run", "parent.yaml"]).expect(0);
    assert!(told.stdout.contains("got 3 1.0 has 3") && told.stdout.contains("chosen"), "{told:?}");
    assert!(told.stdout.contains("[3,3]"), "{told:?}");
    let server = Server::start(&sandbox, &[]);
    let run = sandbox.newest().expect("a run");
    let runs = server.get("/v1/runs");
    assert_eq!(runs["runs"].as_array().expect("runs").iter().filter(|one| one["id"] == run).count(), 1);
    let parent = runs["runs"].as_array().expect("runs").iter().find(|run| run["pipeline"] == "parent");
    let parent = parent.expect("it is listed")["id"].as_str().expect("an id").to_owned();
    let detail = server.get(&format!("/v1/runs/{parent}"));
    assert_eq!(detail["outputs"], json!({ "twice": 6 }));
    let child = detail["steps"][0]["child"].as_str().expect("a child");
    assert_eq!(server.get(&format!("/v1/runs/{child}"))["outputs"], outputs());
}

#[test]
fn a_failed_run_has_the_outputs_that_exist() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "fails",
        "outputs: { a: '{{ steps.a.outputs.a }}', b: '{{ steps.b.outputs.b }}', was: '{{ steps.b.status }}' }\n\
         steps:\n  - { id: a, run: 'echo 1', outputs: { a: { stdout: json } } }\n\
         \x20 - { id: b, run: 'exit 3', outputs: { b: { stdout: json } } }\n",
    );
    let told = sandbox.sprag(["run", "fails.yaml", "--json"]).expect(100).lines::<Value>();
    assert_eq!(told.last().expect("a result")["outputs"], json!({ "a": 1, "b": null, "was": "failed" }));
}

#[test]
fn descriptions_are_shown() {
    let sandbox = Sandbox::new();
    std::fs::create_dir_all(sandbox.path(".sprag/pipelines")).expect("a folder");
    sandbox.write(".sprag/pipelines/release.yaml", RELEASE);
    let told = sandbox.sprag(["run"]).expect(0).stdout;
    assert!(told.contains("Releases a version"), "{told}");
    let told = sandbox.json(["run", "--json"]);
    assert_eq!(told[0]["description"], "Releases a version");
    let told = sandbox.sprag(["run", "release", "--dry"]).expect(0).stdout;
    assert!(told.contains("Releases a version") && told.contains("Counts to three"), "{told}");
}

#[test]
fn mistakes_in_what_a_pipeline_says_of_itself_are_found_at_their_places() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "wrong",
        "run_name: '{{ run.id }}'\nlabels: { 'a=b': x }\noutputs: { n: '{{ steps.nosuch.outputs.n }}', e: '{{ env.X }}' }\n\
         steps:\n  - { id: a, description: '', run: echo }\n",
    );
    let told = sandbox.sprag(["validate", "wrong.yaml"]).expect(2).stderr;
    for words in [
        "`run` is not available here",
        "a=b",
        "there is no step",
        "`env` is not available here",
        "description",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    sandbox.yaml(
        "missing",
        "inputs: { v: string }\nrun_name: 'x {{ inputs.v }}'\nsteps:\n  - { id: a, run: echo }\n",
    );
    let told = sandbox.sprag(["run", "missing.yaml"]).expect(2).stderr;
    assert!(
        told.contains("`run_name` has no value in this run") && told.contains("missing.yaml:2"),
        "{told}"
    );
}
