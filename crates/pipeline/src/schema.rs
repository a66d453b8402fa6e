//! The JSON schema of a pipeline file, for completion and hovers in editors. It is generated from the table of keys.

use serde_json::{Map, Value, json};

use crate::duration;
use crate::form::{Form, Record, Rule, names_of};
use crate::language::{KINDS, PIPELINE, STEP};

/// Returns the schema, in JSON Schema 2020-12.
pub fn schema() -> Value {
    let mut schema = record(&PIPELINE);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("Sprag pipeline");
    schema["description"] = json!("A pipeline of steps that Sprag runs durably and in order.");
    schema["$defs"] = json!({ "step": step() });
    schema
}

/// Default values for editors: the record as messages name it, the key, the value.
#[rustfmt::skip]
const DEFAULTS: &[(&str, &str, &str)] = &[
    ("a step",        "queue",        "\"default\""),
    ("a step",        "priority",     "0"),
    ("a step",        "shell",        "\"sh\""),
    ("a step",        "always",       "false"),
    ("a step",        "at_most_once", "false"),
    ("a step",        "fail_fast",    "false"),
    ("a step",        "on_fail",      "\"fail\""),
    ("`retry`",       "attempts",     "1"),
    ("`retry`",       "backoff",      "\"fixed\""),
    ("`retry`",       "jitter",       "0"),
    ("`on_fail`",     "max",          "1"),
    ("`on_fail`",     "then",         "\"fail\""),
    ("`when`",        "else",         "\"skip\""),
    ("`gate`",        "choices",      "[\"yes\", \"no\"]"),
    ("`agent`",       "stall",        "\"15m\""),
    ("`agent`",       "session",      "\"new\""),
    ("`agent`",       "on_limit",     "\"wait\""),
    ("`agent`",       "answer_within", "\"1d\""),
    ("`agent`",       "park_after",   "\"10m\""),
    ("`agent`",       "pick",         "\"ask\""),
    ("`budget`",      "on_over",      "\"fail\""),
    ("`check`",       "not_empty",    "false"),
    ("`concurrency`", "limit",        "1"),
    ("`concurrency`", "on_conflict",  "\"queue\""),
    ("a service",     "on_fail",      "\"fail\""),
    ("a service",     "restart",      "0"),
    ("`ready`",       "timeout",      "\"1m\""),
    ("`sandbox`",     "write",        "[\"worktree\"]"),
    ("`sandbox`",     "network",      "\"none\""),
    ("`sandbox`",     "required",     "true"),
    ("an input",      "type",         "\"string\""),
    ("an input",      "required",     "false"),
];

/// Example values for completion and hovers.
#[rustfmt::skip]
const EXAMPLES: &[(&str, &str, &str)] = &[
    ("a pipeline",    "inputs",      r#"[{ "issue": { "type": "integer", "required": true } }]"#),
    ("a pipeline",    "description", r#"["Builds and tests the program"]"#),
    ("a pipeline",    "run_name",    r#"["release {{ inputs.version }}"]"#),
    ("a pipeline",    "labels",      r#"[{ "team": "web", "version": "{{ inputs.version }}" }]"#),
    ("a pipeline",    "outputs",     r#"[{ "version": "{{ steps.build.outputs.version }}" }]"#),
    ("a pipeline",    "env",         r#"[{ "RUST_LOG": "info" }]"#),
    ("a pipeline",    "defaults",    r#"[{ "timeout": "30m", "retry": { "attempts": 2, "delay": "5s" } }]"#),
    ("a pipeline",    "services",    r#"[{ "web": { "run": "./serve --port $SPRAG_PORT_WEB", "ports": ["web"], "ready": { "port": "web" } } }]"#),
    ("a pipeline",    "concurrency", r#"[{ "group": "deploy", "limit": 1 }]"#),
    ("a pipeline",    "steps",       r#"[[{ "id": "build", "run": "make" }, { "id": "test", "run": "make test" }]]"#),
    ("a step",        "run",         r#"["make test", ["ls", "-l", "a file with spaces"]]"#),
    ("a step",        "call",        r#"["notify", { "handler": "notify", "with": { "to": "team" } }]"#),
    ("a step",        "needs",       r#"[["build", "lint"], [], { "any": ["fast", "slow"] }, { "at_least": 2, "of": ["a", "b", "c"] }]"#),
    ("a step",        "end",         r#"["completed", { "status": "failed", "message": "Nothing to release" }]"#),
    ("a step",        "retry",       r#"[{ "attempts": 3, "backoff": "exponential", "delay": "5s" }]"#),
    ("a step",        "on_fail",     r#"["continue", { "rework": "build", "max": 2 }]"#),
    ("a step",        "env",         r#"[{ "TITLE": "{{ inputs.title }}" }]"#),
    ("a step",        "dir",         r#"["crates/cli"]"#),
    ("a step",        "shell",       r#"["bash", ["python3", "-c"]]"#),
    ("a step",        "secrets",     r#"[["DEPLOY_TOKEN"]]"#),
    ("a step",        "labels",      r#"[["gpu", "linux"]]"#),
    ("a step",        "sandbox",     r#"[{ "network": "none", "memory": "4GiB", "processes": 512 }]"#),
    ("a pipeline",    "sandbox",     r#"[{ "write": ["worktree"], "network": "none" }]"#),
    ("a step",        "task",        r#"[{ "prompt": "Review the change", "queue": "reviewers" }]"#),
    ("a step",        "agent",       r#"[{ "use": "claude", "prompt": "Fix issue {{ inputs.issue }}. Commit when done." }]"#),
    ("a step",        "gate",        r#"[{ "ask": "Release it?", "choices": ["yes", "no"], "timeout": "24h" }]"#),
    ("a step",        "wait",        r#"["5m", { "until": "2030-01-31T08:00:00Z" }, { "signal": "deployed" }]"#),
    ("a step",        "steps",       r#"[[{ "id": "build", "run": "make" }, { "id": "test", "run": "make test" }]]"#),
    ("a step",        "pipeline",    r#"["child.yaml", { "file": "child.yaml", "inputs": { "issue": 7 } }]"#),
    ("a step",        "when",        r#"["inputs.mode == 'quick'", { "if": "steps.changes.outputs.count > 0", "else": "skip_rest" }]"#),
    ("a step",        "check",       r#"[{ "run": "make check" }, [{ "file": "plan.md", "not_empty": true }]]"#),
    ("a step",        "matrix",      r#"[{ "os": ["linux", "macos"], "version": [1, 2] }]"#),
    ("a step",        "foreach",     r#"["{{ steps.list.outputs.files }}", ["a", "b"]]"#),
    ("a step",        "outputs",     r#"[{ "plan": "plan.md", "items": { "stdout": "json" } }]"#),
    ("`retry`",       "exit_codes",  r#"[[75]]"#),
    ("`concurrency`", "group",       r#"["issue-{{ inputs.issue }}"]"#),
    ("an input",      "enum",        r#"[["quick", "thorough"]]"#),
];

/// Returns the schema of a step, which has exactly one kind.
fn step() -> Value {
    let mut schema = record(&STEP);
    schema["oneOf"] = KINDS.iter().map(|kind| json!({ "required": [kind] })).collect();
    schema
}

fn record(record: &'static Record) -> Value {
    let accepted = || record.keys.iter();
    let written = |table: &[(&str, &str, &str)], key: &str| {
        let found = table.iter().find(|(what, name, _)| (*what, *name) == (record.what, key));
        found.map(|(_, _, json)| serde_json::from_str::<Value>(json).expect("the tables hold JSON"))
    };
    let properties: Map<String, Value> = accepted()
        .map(|key| {
            let mut schema = form(&key.form);
            schema["title"] = key.name.into();
            schema["description"] = key.about.into();
            if let Some(default) = written(DEFAULTS, key.name) {
                schema["default"] = default;
            }
            if let Some(examples) = written(EXAMPLES, key.name) {
                schema["examples"] = examples;
            }
            (key.name.to_owned(), schema)
        })
        .collect();
    let required: Vec<&str> = accepted().filter(|key| key.required).map(|key| key.name).collect();
    json!({
        "type": "object",
        "title": record.what.trim_start_matches("a ").trim_start_matches("an ").trim_matches('`'),
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn form(of: &'static Form) -> Value {
    match of {
        Form::Any => json!({}),
        Form::Text(rule) => text(*rule),
        Form::Duration(_) => {
            json!({ "type": "string", "pattern": duration::PATTERN, "examples": ["30s", "5m", "1h30m"] })
        }
        Form::Integer(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Form::Positive(max) => json!({ "type": "number", "exclusiveMinimum": 0, "maximum": max }),
        Form::Boolean => json!({ "type": "boolean" }),
        Form::Word(words) => {
            json!({ "type": "string", "enum": names_of(words).collect::<Vec<_>>() })
        }
        Form::Scalar => json!({ "type": ["string", "number", "boolean"] }),
        Form::List(of, min) => json!({ "type": "array", "items": form(of), "minItems": min }),
        Form::Record(found) if std::ptr::eq(*found, &STEP) => json!({ "$ref": "#/$defs/step" }),
        Form::Record(found) => record(found),
        Form::Table(rule, of) => json!({
            "type": "object",
            "propertyNames": text(*rule),
            "additionalProperties": form(of),
        }),
        Form::Either(forms) => {
            json!({ "anyOf": forms.iter().map(form).collect::<Vec<_>>() })
        }
    }
}

fn text(rule: Rule) -> Value {
    match rule.pattern() {
        Some(pattern) => json!({ "type": "string", "pattern": pattern }),
        None => json!({ "type": "string" }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::diagnostic::Report;
    use crate::source::Source;

    /// A file that uses every key, in addition to the examples.
    const EVERY_KEY: &str = include_str!("../tests/data/every_key.yaml");
    /// A file with the keys that exclude one in that file.
    const EVERY_OTHER_KEY: &str = include_str!("../tests/data/every_other_key.yaml");
    /// A file that uses every kind of step in each of its forms.
    const WHOLE: &str = include_str!("../tests/data/whole_language.yaml");

    /// Returns all pipelines in the repository: the examples, those in the docs, and one with every key.
    fn files() -> Vec<(String, String)> {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut files = vec![
            ("every_key.yaml".to_owned(), EVERY_KEY.to_owned()),
            ("every_other_key.yaml".to_owned(), EVERY_OTHER_KEY.to_owned()),
            ("whole.yaml".to_owned(), WHOLE.to_owned()),
        ];
        for entry in std::fs::read_dir(root.join("examples")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "yaml") {
                files.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
            }
        }
        let docs = std::fs::read_to_string(root.join("docs/pipelines.md")).unwrap();
        let blocks = docs.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
        files
            .extend(blocks.enumerate().map(|(no, block)| (format!("pipelines.md block {no}"), block.into())));
        assert!(files.len() > 10, "the examples are found");
        files
    }

    fn json(text: &str) -> Value {
        crate::yaml::read(&mut Report::new(Source::new("f", text))).unwrap().json()
    }

    #[test]
    fn the_schema_accepts_what_the_loader_accepts() {
        let validator = jsonschema::validator_for(&schema()).unwrap();
        for (name, text) in files() {
            if let Err(wrong) = crate::parse_beside_child(&name, &text) {
                panic!("{wrong}");
            }
            let errors: Vec<String> =
                validator.iter_errors(&json(&text)).map(|e| format!("{}: {e}", e.instance_path())).collect();
            assert!(errors.is_empty(), "{name}: {errors:#?}");
        }
    }

    /// Asserts that the loader refuses everything that the schema refuses, for documents with one or two mistakes.
    #[track_caller]
    fn refuses_as_much(schema: &Value, file: &Value, loads: &dyn Fn(&str) -> bool) -> (usize, usize) {
        let validator = jsonschema::validator_for(schema).unwrap();
        let mut chance = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |bound: usize| {
            chance ^= chance << 13;
            chance ^= chance >> 7;
            chance ^= chance << 17;
            (chance % bound as u64) as usize
        };
        let mut broken = variations(file);
        // Parts of the document in wrong places, and documents with two mistakes.
        let parts = parts(file);
        for _ in 0..2000 {
            let mut twice = file.clone();
            for _ in 0..=below(2) {
                let part = parts[below(parts.len())].clone();
                let places = count(&twice);
                replace(&mut twice, &mut below(places), &part);
            }
            broken.push(twice);
        }
        let mut refused = 0;
        for document in &broken {
            if !validator.is_valid(document) {
                refused += 1;
                // JSON is a subset of YAML.
                assert!(!loads(&document.to_string()), "accepted: {document}");
            }
        }
        (broken.len(), refused)
    }

    #[test]
    fn the_loader_refuses_what_the_schema_refuses() {
        let (mut tried, mut refused) = (0, 0);
        for (name, text) in files() {
            let loads = |text: &str| crate::parse_beside_child(&name, text).is_ok();
            let counts = refuses_as_much(&schema(), &json(&text), &loads);
            (tried, refused) = (tried + counts.0, refused + counts.1);
        }
        println!("{refused} of {tried} refused");
        assert!(tried > 10_000 && refused > tried / 3, "{refused} of {tried}");
    }

    #[test]
    fn editors_have_something_to_say_about_every_key() {
        let whole = schema();
        let mut todo = vec![&whole];
        let mut keys = 0;
        while let Some(next) = todo.pop() {
            if let Some(properties) = next["properties"].as_object() {
                assert_eq!(next["additionalProperties"], false, "{next}");
                for (name, schema) in properties {
                    keys += 1;
                    assert_eq!(schema["title"], json!(name));
                    assert!(
                        schema["description"].as_str().is_some_and(|about| about.ends_with('.')),
                        "{name}"
                    );
                }
            }
            match next {
                Value::Object(entries) => todo.extend(entries.values()),
                Value::Array(items) => todo.extend(items),
                _ => {}
            }
        }
        assert!(keys > 60, "{keys}");
    }

    #[test]
    fn examples_and_defaults_are_values_that_their_keys_may_have() {
        let whole = schema();
        let mut todo = vec![&whole];
        let mut checked = 0;
        while let Some(next) = todo.pop() {
            // A property is checked as part of the whole, so that references to the step's definition resolve.
            let examples = next["examples"].as_array().cloned().unwrap_or_default();
            let own = |key: &str| {
                next.get("title").and_then(|_| next.get(key)).filter(|v| !v.is_object() || key != "default")
            };
            for value in examples.iter().chain(own("default")) {
                let mut alone = next.clone();
                alone["$defs"] = whole["$defs"].clone();
                assert!(jsonschema::validator_for(&alone).unwrap().is_valid(value), "{value} {next}");
                checked += 1;
            }
            match next {
                Value::Object(entries) => {
                    todo.extend(entries.iter().filter(|(key, _)| *key != "examples").map(|(_, v)| v))
                }
                Value::Array(items) => todo.extend(items),
                _ => {}
            }
        }
        assert!(checked > 40, "{checked}");
        for (what, name, _) in DEFAULTS.iter().chain(EXAMPLES) {
            let known = [&PIPELINE, &STEP].into_iter().chain(crate::language::ALL.iter().copied());
            let others = ["`gate`", "`check`"].contains(what);
            assert!(
                others || known.filter(|r| r.what == *what).any(|r| r.key(name).is_some()),
                "{what} {name}"
            );
        }
    }

    /// Returns the number of values in a document.
    fn count(json: &Value) -> usize {
        match json {
            Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
            Value::Object(entries) => 1 + entries.values().map(count).sum::<usize>(),
            _ => 1,
        }
    }

    /// Returns every value in a document.
    fn parts(json: &Value) -> Vec<Value> {
        let inside: Vec<Value> = match json {
            Value::Array(items) => items.iter().flat_map(parts).collect(),
            Value::Object(entries) => entries.values().flat_map(parts).collect(),
            _ => Vec::new(),
        };
        std::iter::once(json.clone()).chain(inside).collect()
    }

    /// Replaces the value at this index, counted through the document.
    fn replace(json: &mut Value, place: &mut usize, with: &Value) {
        if *place == 0 {
            *json = with.clone();
        }
        let Some(left) = place.checked_sub(1) else {
            *place = usize::MAX;
            return;
        };
        *place = left;
        let inside: Vec<&mut Value> = match json {
            Value::Array(items) => items.iter_mut().collect(),
            Value::Object(entries) => entries.values_mut().collect(),
            _ => Vec::new(),
        };
        for value in inside {
            if *place == usize::MAX {
                return;
            }
            replace(value, place, with);
        }
    }

    #[test]
    fn every_key_that_is_ready_is_in_the_file_of_every_key() {
        let mut written = BTreeSet::new();
        for file in [EVERY_KEY, EVERY_OTHER_KEY] {
            add_keys(&Form::Record(&PIPELINE), &json(file), &mut written);
        }
        for record in crate::language::ALL {
            for key in record.keys {
                assert!(written.contains(&(record.what, key.name)), "{} of {}", key.name, record.what);
            }
        }
    }

    /// Adds the keys of all records in a value of this form.
    fn add_keys(form: &Form, value: &Value, found: &mut BTreeSet<(&'static str, &'static str)>) {
        match (form, value) {
            (Form::Record(record), Value::Object(entries)) => {
                for (key, value) in
                    entries.iter().filter_map(|(name, value)| Some((record.key(name)?, value)))
                {
                    found.insert((record.what, key.name));
                    add_keys(&key.form, value, found);
                }
            }
            (Form::Table(_, of), Value::Object(entries)) => {
                entries.values().for_each(|value| add_keys(of, value, found));
            }
            (Form::List(of, _), Value::Array(items)) => {
                items.iter().for_each(|item| add_keys(of, item, found));
            }
            (Form::Either(forms), _) => forms.iter().for_each(|form| add_keys(form, value, found)),
            _ => {}
        }
    }

    /// Returns the document with each of its values replaced, removed, or given a sibling, one at a time.
    fn variations(json: &Value) -> Vec<Value> {
        let mut found: Vec<Value> = [
            json!(null),
            json!(true),
            json!(-7),
            json!(1.5),
            json!(""),
            json!("no such word"),
            json!("../up"),
            json!([]),
            json!({}),
            json!([null]),
            json!({ "no such key": 1 }),
            json!(["x", 3]),
            json!("30"),
            json!(99999999),
        ]
        .into();
        match json {
            Value::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    let with = |value| {
                        let mut copy = items.clone();
                        copy[at] = value;
                        Value::Array(copy)
                    };
                    found.extend(variations(item).into_iter().map(with));
                }
            }
            Value::Object(entries) => {
                for (key, value) in entries {
                    let with = |value| {
                        let mut copy = entries.clone();
                        copy.insert(key.clone(), value);
                        Value::Object(copy)
                    };
                    found.extend(variations(value).into_iter().map(with));
                    let mut without = entries.clone();
                    without.remove(key);
                    found.push(without.clone().into());
                    without.insert(format!("{key}x"), value.clone());
                    found.push(without.into());
                }
            }
            _ => {}
        }
        found
    }
}
