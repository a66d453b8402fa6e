//! Puts one text into every field of a step that can contain a template, and renders the step with small and large
//! values.
//!
//! The fuzzer runs it on generated inputs, and an ordinary test of `sprag-pipeline` runs it on the corpus.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::{Value, json};
use sprag_pipeline::{
    Budget, Definition, Kind, StepSpec, render_step, render_step_within, when_holds, when_holds_within,
};

/// A part of every hostile value. Texts that contain it are skipped.
const MARK: &str = "\u{2}owned\u{3}";

/// Renders the text in every field. Returns the number of fields in which the loader accepted it.
pub fn exercise(bytes: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(bytes) else { return 0 };
    if text.contains(MARK) || text.contains('\u{2}') {
        return 0;
    }
    let expression = format!("{{{{ {text} }}}}");
    let steps = [
        json!({ "id": "b", "run": text }),
        json!({ "id": "b", "run": text, "shell": "bash" }),
        json!({ "id": "b", "run": ["echo", expression] }),
        json!({ "id": "b", "run": format!("echo \"{expression}\""), "env": { "E": expression } }),
        json!({ "id": "b", "run": "true", "when": text }),
        json!({ "id": "b", "run": "echo {{ item }}", "foreach": expression }),
        json!({ "id": "b", "call": { "handler": "h", "with": { "v": expression, "t": format!("a {expression}") } } }),
        json!({ "id": "b", "gate": { "ask": text } }),
        json!({ "id": "b", "task": { "prompt": text } }),
    ];
    steps.iter().filter(|step| fill_in(step)).count()
}

/// Loads and renders a step. Returns whether it could be loaded.
fn fill_in(step: &Value) -> bool {
    let first = json!({ "id": "a", "run": "true", "outputs": { "v": { "stdout": "json" } } });
    let file = json!({
        "inputs": { "x": "string", "n": "integer", "list": "list", "map": "object", "none": "string" },
        "steps": [first, step],
    });
    let definition = Definition {
        name: "fuzz.yaml".into(),
        text: file.to_string(),
        children: BTreeMap::new(),
        prompts: BTreeMap::new(),
        outer: None,
    };
    let Ok(loaded) = definition.parse() else { return false };
    let spec = &loaded.pipeline.steps[1].spec;
    for context in contexts() {
        check(spec, context);
    }
    true
}

/// Renders a step with the full and with the small budget. Where the small one suffices, both results must be equal.
fn check(spec: &StepSpec, context: &Value) {
    let small = Budget::small();
    let at_once = when_holds_within(spec, context, &small);
    if !small.is_spent() {
        assert_eq!(at_once, when_holds(spec, context), "a condition has one answer");
    }
    let context = match &spec.fan_out {
        Some(fan_out) => match fan_out.items(context).ok().and_then(|items| items.into_iter().next()) {
            Some(first) => fan_out.item_context(context, &first),
            None => return,
        },
        None => context.clone(),
    };
    let rendered = render_step(spec, &context);
    let small = Budget::small();
    let at_once = render_step_within(spec, &context, &small);
    if !small.is_spent() {
        assert_eq!(at_once, rendered, "a step is filled in one way");
    }
    let Ok(rendered) = rendered else { return };
    if let Kind::Run { command, .. } = &rendered.kind {
        assert!(!command.contains(MARK), "a value got into the command: {command:?}");
    }
    let argv = rendered.argv().unwrap_or_default();
    assert!(argv.iter().chain(rendered.env.values()).all(|text| !text.contains('\0')));
}

/// Returns small values of every type, and large ones.
fn contexts() -> &'static [Value; 2] {
    static CONTEXTS: OnceLock<[Value; 2]> = OnceLock::new();
    CONTEXTS.get_or_init(|| {
        let hostile = format!("{MARK}; touch owned $(touch owned) 'a' \"b\" a[$(x)]\n");
        let context = |x: String, list: Value| {
            json!({
                "inputs": { "x": x, "n": -7, "list": list, "map": { "a": { "b": [1.5, null] }, "c": MARK }, "none": null },
                "run": { "id": "r1", "name": "n" },
                "steps": { "a": { "outputs": { "v": list }, "status": "done", "attempt": 1, "feedback": "" } },
            })
        };
        let many = (0..2_000).map(|n| json!([n, MARK])).collect();
        [context(hostile.clone(), json!([3, MARK, { "k": "b" }, 1])), context(hostile.repeat(300), many)]
    })
}
