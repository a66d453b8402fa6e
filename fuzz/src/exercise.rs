//! All that is done with a pipeline file before its steps run: load, plan, render. Nothing of it may panic.
//!
//! The fuzzer runs it on what it makes up, an ordinary test of `sprag-pipeline` on the corpus.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sprag_pipeline::{Diagnostics, InputType, Pipeline, StepSpec, parse, render_step};

/// Loads the text; whether it is a pipeline.
pub fn exercise(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    match parse("fuzz.yaml", text) {
        Ok(loaded) => {
            tell(&loaded.warnings);
            run(&loaded.pipeline, &BTreeMap::new());
            run(&loaded.pipeline, &given(&loaded.pipeline));
            true
        }
        Err(wrong) => {
            assert!(!wrong.is_empty(), "a refusal says why");
            tell(&wrong);
            false
        }
    }
}

/// What people and programs read.
fn tell(told: &Diagnostics) {
    // One or the other: drawing takes longer than loading.
    let text = told.render(told.len() % 2 == 0);
    assert_eq!(text.is_empty(), told.is_empty());
    serde_json::to_string(told).expect("diagnostics are JSON");
}

/// A value for each input.
fn given(pipeline: &Pipeline) -> BTreeMap<String, Value> {
    let value = |kind: InputType| match kind {
        InputType::String => json!("$(x) 'y' \"z\"\n{{ a }}"),
        InputType::Integer => json!(-7),
        InputType::Number => json!(1.5),
        InputType::Boolean => json!(true),
        InputType::List => json!([1, "two", null]),
        InputType::Object => json!({ "a": { "b": [] } }),
    };
    let one = |input: &sprag_pipeline::Input| {
        (input.name.clone(), input.allowed.first().cloned().unwrap_or_else(|| value(input.kind)))
    };
    pipeline.inputs.iter().map(one).collect()
}

/// Plans a run and renders its steps, as far as these inputs let it.
fn run(pipeline: &Pipeline, given: &BTreeMap<String, Value>) {
    let texts = given.iter().map(|(name, value)| (name.clone(), value.to_string())).collect();
    if let Err(wrong) = pipeline.coerce(&texts) {
        tell(&wrong);
    }
    let inputs = match pipeline.complete(given) {
        Ok(inputs) => inputs,
        Err(wrong) => return tell(&wrong),
    };
    let plan = match pipeline.plan(given) {
        Ok(plan) => plan,
        Err(wrong) => return tell(&wrong),
    };
    assert_eq!(plan.check(), Ok(()), "a plan is a graph without circles");
    let context = json!({ "inputs": inputs, "run": { "id": "r1", "name": "n" } });
    for step in &plan.steps {
        let spec: StepSpec = serde_json::from_str(&step.spec).expect("a spec is read as it was written");
        assert_eq!(serde_json::to_string(&spec).ok().as_deref(), Some(step.spec.as_str()));
        if let Ok(rendered) = render_step(&spec, &context) {
            // What a process is started with holds no zero byte.
            let argv = rendered.argv().unwrap_or_default();
            assert!(argv.iter().chain(rendered.env.values()).all(|text| !text.contains('\0')));
        }
    }
}
