//! Exercises everything that happens to a pipeline file before its steps run: load, plan, render. Nothing may panic.
//!
//! The fuzzer runs it on generated inputs, and an ordinary test of `sprag-pipeline` runs it on the corpus.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sprag_pipeline::{Definition, Diagnostics, InputType, Pipeline, StepSpec, render_step, when_holds};

/// Loads the text. Returns whether it is a valid pipeline.
pub fn exercise(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    match file(text).parse() {
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

/// Returns the text as a file with a child.
fn file(text: &str) -> Definition {
    let named = |name: &str, text: &str| Definition {
        name: name.into(),
        text: text.into(),
        children: BTreeMap::new(),
        prompts: BTreeMap::new(),
        outer: None,
    };
    let child = named(
        "child.yaml",
        "inputs: { text: { default: x } }\nsteps: [{ id: a, run: \"echo {{ inputs.text }}\" }]\n",
    );
    Definition { children: BTreeMap::from([("child.yaml".to_owned(), child)]), ..named("fuzz.yaml", text) }
}

/// Renders diagnostics for people and for programs.
fn tell(told: &Diagnostics) {
    // Only one of both forms, because rendering takes longer than loading.
    let text = told.render(told.len().is_multiple_of(2));
    assert_eq!(text.is_empty(), told.is_empty());
    serde_json::to_string(told).expect("diagnostics are JSON");
}

/// Returns a value for each input.
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

/// Plans a run and renders its steps, as far as these inputs allow.
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
    // Every step has succeeded with these outputs, independent of its declarations.
    let ended = json!({ "outputs": { "a": [1, { "b": "c" }], "items": ["x"], "plan": "y" }, "status": "done", "attempt": 1, "feedback": null });
    let steps: BTreeMap<&str, &Value> = plan.steps.iter().map(|step| (step.id.as_str(), &ended)).collect();
    let context = json!({ "inputs": inputs, "run": { "id": "r1", "name": "n" }, "steps": steps });
    for step in &plan.steps {
        let spec: StepSpec = serde_json::from_str(&step.spec).expect("a spec is read as it was written");
        assert_eq!(serde_json::to_string(&spec).ok().as_deref(), Some(step.spec.as_str()));
        let items = spec.fan_out.as_ref().and_then(|fan_out| Some((fan_out, fan_out.items(&context).ok()?)));
        let context = match &items {
            Some((fan_out, items)) => match items.first() {
                Some(first) => fan_out.item_context(&context, first),
                None => continue,
            },
            None => context.clone(),
        };
        let _ = when_holds(&spec, &context);
        if let Ok(rendered) = render_step(&spec, &context) {
            // The arguments of a process contain no zero byte.
            let argv = rendered.argv().unwrap_or_default();
            assert!(argv.iter().chain(rendered.env.values()).all(|text| !text.contains('\0')));
        }
    }
}
