//! What a pipeline says of itself: its description, the names and labels of its runs, its outputs.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sprag_pipeline::{Budget, Pipeline, parse, render_outputs};

fn load(text: &str) -> Pipeline {
    parse("f.yaml", text).unwrap_or_else(|wrong| panic!("{wrong}")).pipeline
}

fn inputs(pipeline: &Pipeline, given: Value) -> BTreeMap<String, Value> {
    let given: BTreeMap<String, Value> = serde_json::from_value(given).expect("a map");
    pipeline.complete(&given).expect("inputs")
}

#[test]
fn names_and_labels_are_filled_in_from_inputs() {
    let pipeline = load(
        "description: Ships\nrun_name: 'ship {{ inputs.v }}'\nlabels: { v: '{{ inputs.v }}', n: 3, on: true }\n\
         inputs: { v: { type: integer, default: 1 } }\nsteps:\n  - { id: a, description: First, run: echo }\n",
    );
    assert_eq!(pipeline.description.as_deref(), Some("Ships"));
    assert_eq!(pipeline.steps[0].description.as_deref(), Some("First"));
    let labels = pipeline.run_labels(&inputs(&pipeline, json!({ "v": 7 }))).expect("labels");
    assert_eq!(labels.name.as_deref(), Some("ship 7"));
    let expected = [("n", "3"), ("on", "true"), ("v", "7")].map(|(key, value)| (key.into(), value.into()));
    assert_eq!(labels.labels, BTreeMap::from(expected));
}

#[test]
fn a_label_without_a_value_is_refused_at_its_place() {
    let pipeline =
        load("inputs: { v: string }\nlabels: { v: 'x{{ inputs.v }}' }\nsteps:\n  - { id: a, run: echo }\n");
    let wrong = pipeline.run_labels(&BTreeMap::new()).expect_err("no value").to_string();
    assert!(wrong.contains("label `v` has no value in this run") && wrong.contains("f.yaml:2:14"), "{wrong}");
}

#[test]
fn a_plan_reads_the_steps_that_its_outputs_name() {
    let steps = "steps:\n  - { id: a, run: echo, outputs: { x: { stdout: json } } }\n  - { id: b, run: echo }\n  - { id: c, run: echo }\n";
    let plan = |outputs: &str| {
        let pipeline = load(&format!("outputs: {outputs}\n{steps}"));
        pipeline.plan(&BTreeMap::new()).expect("a plan").outputs.expect("outputs")
    };
    assert_eq!(plan("{ n: '{{ steps.a.outputs.x }}', m: [{ k: 'is {{ steps.c.status }}' }] }").reads, [0, 2]);
    assert_eq!(plan("{ n: '{{ steps | length }}' }").reads, [0, 1, 2]);
    assert_eq!(plan("{ n: 3 }").reads, [0; 0]);
    assert!(load(steps).plan(&BTreeMap::new()).expect("a plan").outputs.is_none());
}

#[test]
fn outputs_keep_their_types_and_are_null_without_a_value() {
    let spec = json!({ "n": "{{ steps.a.outputs.x }}", "t": "v{{ inputs.v }}", "none": "{{ steps.b.outputs.x }}", "l": ["{{ run.id }}", 1] });
    let names = json!({
        "inputs": { "v": 2 }, "run": { "id": "r" },
        "steps": { "a": { "outputs": { "x": [1, 2] } }, "b": { "outputs": {} } },
    });
    let outputs = render_outputs(&spec.to_string(), &names, &Budget::default());
    assert_eq!(outputs, json!({ "n": [1, 2], "t": "v2", "none": null, "l": ["r", 1] }));
}

#[test]
fn outputs_of_steps_that_do_not_exist_are_refused() {
    for (outputs, words) in [
        ("{ n: '{{ steps.nosuch.outputs.x }}' }", "there is no step"),
        ("{ n: '{{ steps.a.outputs.y }}' }", "step `a` has no output"),
        ("{ n: '{{ steps.a.nosuch }}' }", "step `a` has no field"),
        ("{ n: '{{ env.X }}' }", "`env` is not available here"),
        ("{ n: '{{ item }}' }", "`item` is not available here"),
        ("{ 'a b': 1 }", "a b"),
        ("3", "`outputs`"),
    ] {
        let text = format!(
            "outputs: {outputs}\nsteps:\n  - {{ id: a, run: echo, outputs: {{ x: {{ stdout: json }} }} }}\n"
        );
        let wrong = parse("f.yaml", &text).expect_err(outputs).to_string();
        assert!(wrong.contains(words) && wrong.contains("f.yaml:1:"), "{outputs}: {wrong}");
    }
}
