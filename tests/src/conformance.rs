//! Compares every answer that a test gets with the API's own description.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex};

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::http::Reply;

/// The description, as it is kept in the repository; a test of the server sees that it is what the server says.
static API: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../crates/server/openapi.json")).expect("a description")
});
static VALIDATORS: Mutex<BTreeMap<String, Arc<Validator>>> = Mutex::new(BTreeMap::new());

/// Panics if an answer does not have the form that the description gives it: its status, the type of its content, and what
/// JSON holds. Answers to what is not described pass.
#[track_caller]
pub(crate) fn check(method: &str, path: &str, reply: &Reply) {
    let kind = reply.headers.get("content-type").map_or("", |kind| kind.split(';').next().unwrap_or(kind));
    let Some(template) = template(path.split('?').next().unwrap_or(path)) else { return };
    let operation = &API["paths"][template][method.to_ascii_lowercase()];
    if operation.is_null() || reply.body.is_empty() {
        return;
    }
    let status = reply.status.to_string();
    let responses = &operation["responses"];
    let response = if responses[&status].is_null() { &responses["default"] } else { &responses[&status] };
    let schema = &response["content"][kind]["schema"];
    assert!(!schema.is_null(), "{method} {path}: {kind:?} with status {status} is not described");
    if !kind.ends_with("json") {
        assert_eq!(schema["type"], "string", "{method} {path}: {kind} is text or bytes");
        return;
    }
    let found = validator(&format!("{method} {template} {status}"), schema);
    let body: Value = serde_json::from_slice(&reply.body).expect("JSON");
    let wrong: Vec<String> =
        found.iter_errors(&body).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(wrong.is_empty(), "{method} {path}: {body}\nis not what /openapi.json says: {wrong:#?}");
}

/// Returns the path template that matches a path; one without parameters wins.
fn template(path: &str) -> Option<&'static str> {
    let parts: Vec<&str> = path.split('/').collect();
    let fits = |template: &&String| {
        let wanted: Vec<&str> = template.split('/').collect();
        // Only the names of artifacts have parts of their own.
        let is_rest = template.ends_with("/artifacts/{path}") && parts.len() >= wanted.len();
        (wanted.len() == parts.len() || is_rest)
            && wanted.iter().zip(&parts).all(|(wanted, part)| wanted.starts_with('{') || wanted == part)
    };
    let paths = API["paths"].as_object()?;
    paths.keys().filter(fits).min_by_key(|template| template.matches('{').count()).map(String::as_str)
}

fn validator(key: &str, schema: &Value) -> Arc<Validator> {
    let mut known = VALIDATORS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let found = known.entry(key.to_owned()).or_insert_with(|| {
        let whole = json!({ "components": API["components"], "allOf": [schema] });
        Arc::new(jsonschema::validator_for(&whole).unwrap_or_else(|error| panic!("{key}: {error}")))
    });
    Arc::clone(found)
}
