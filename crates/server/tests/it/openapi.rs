//! The stored OpenAPI file must match the code, so that changes of the API are visible.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

fn described() -> Value {
    sprag_server::openapi()
}

#[test]
fn the_openapi_file_is_up_to_date() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
    let text = format!("{:#}\n", described());
    if std::env::var_os("SPRAG_GEN").is_some() {
        std::fs::write(&file, &text).expect("written");
    }
    let kept = std::fs::read_to_string(&file).expect("it is kept");
    assert!(kept == text, "crates/server/openapi.json differs from the code: run `cargo xtask gen`");
}

#[test]
fn every_operation_has_an_answer_a_tag_and_the_problems() {
    let api = described();
    assert_eq!(api["openapi"], "3.1.0");
    let mut operations = BTreeSet::new();
    for (path, item) in api["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            let name = format!("{method} {path}");
            let answers = operation["responses"].as_object().expect("answers");
            assert!(answers.keys().any(|status| status.starts_with('2')), "{name} has a good answer");
            assert!(answers.contains_key("default"), "{name} tells of problems");
            assert!(operation["summary"].is_string(), "{name} says what it does");
            assert!(operation["tags"][0].is_string(), "{name} belongs somewhere");
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                if parameter["in"] == "path" {
                    let named = format!("{{{}}}", parameter["name"].as_str().expect("a name"));
                    assert!(path.contains(&named), "{name} has {named}");
                }
            }
            let id = operation["operationId"].as_str().expect("an id").to_owned();
            assert!(operations.insert(id.clone()), "{id} is there once");
        }
    }
    assert!(operations.len() > 30, "{operations:?}");
}

#[test]
fn every_reference_leads_somewhere() {
    let api = described();
    let mut found = BTreeSet::new();
    collect(&api, &mut found);
    for reference in found {
        let pointer = reference.strip_prefix('#').expect("a reference within");
        assert!(api.pointer(pointer).is_some(), "{reference}");
    }
}

fn collect(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(entries) => {
            found.extend(entries.get("$ref").and_then(Value::as_str).map(str::to_owned));
            entries.values().for_each(|value| collect(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| collect(value, found)),
        _ => {}
    }
}
