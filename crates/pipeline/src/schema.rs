//! The JSON schema of a pipeline file, for completion and hovers in editors; made from the table of keys.

use serde_json::{Map, Value, json};

use crate::duration;
use crate::form::{Form, Record, Rule, State};
use crate::language::{KINDS, PIPELINE, STEP};

/// The schema, in JSON Schema 2020-12.
pub fn schema() -> Value {
    let mut schema = record(&PIPELINE);
    let head = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Sprag pipeline",
        "description": "A pipeline of steps that Sprag runs durably and in order.",
        "$defs": { "step": step() },
    });
    if let (Value::Object(schema), Value::Object(head)) = (&mut schema, head) {
        schema.extend(head);
    }
    schema
}

/// A step, which has exactly one of the kinds.
fn step() -> Value {
    let mut schema = record(&STEP);
    let ready = KINDS.iter().filter(|kind| STEP.key(kind).is_some_and(|key| key.state == State::Ready));
    schema["oneOf"] = ready.map(|kind| json!({ "required": [kind] })).collect();
    schema
}

fn record(record: &'static Record) -> Value {
    let ready = || record.keys.iter().filter(|key| key.state == State::Ready);
    let properties: Map<String, Value> = ready()
        .map(|key| {
            let mut schema = form(&key.form);
            schema["description"] = key.about.into();
            (key.name.to_owned(), schema)
        })
        .collect();
    let required: Vec<&str> = ready().filter(|key| key.required).map(|key| key.name).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn form(of: &'static Form) -> Value {
    match of {
        Form::Any => json!({}),
        Form::Text(rule) => text(*rule),
        Form::Duration(_) => {
            json!({ "type": "string", "pattern": duration::PATTERN, "examples": ["30s", "5m", "1h30m"] })
        }
        Form::Integer(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Form::Boolean => json!({ "type": "boolean" }),
        Form::Word(words) => {
            json!({ "enum": words.iter().map(|word| word.name).collect::<Vec<_>>() })
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
        Form::Either(forms) => json!({ "anyOf": forms.iter().map(form).collect::<Vec<_>>() }),
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
    use super::*;
    use crate::diagnostic::Report;
    use crate::source::Source;

    /// A file that uses every key, beside the examples.
    const EVERY_KEY: &str = include_str!("../tests/data/every_key.yaml");

    fn files() -> Vec<(String, String)> {
        let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        let mut files = vec![("every_key.yaml".to_owned(), EVERY_KEY.to_owned())];
        for entry in std::fs::read_dir(examples).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "yaml") {
                files.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
            }
        }
        assert!(files.len() > 4, "the examples are found");
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

    #[test]
    fn the_loader_refuses_what_the_schema_refuses() {
        let validator = jsonschema::validator_for(&schema()).unwrap();
        let (mut tried, mut refused) = (0, 0);
        for (name, text) in files() {
            for broken in variations(&json(&text)) {
                tried += 1;
                if !validator.is_valid(&broken) {
                    refused += 1;
                    // JSON is YAML.
                    assert!(
                        crate::parse_beside_child(&name, &broken.to_string()).is_err(),
                        "accepted: {broken}"
                    );
                }
            }
        }
        assert!(tried > 1000 && refused > tried / 2, "{refused} of {tried}");
    }

    #[test]
    fn every_key_that_is_ready_is_in_the_file_of_every_key() {
        for record in crate::language::ALL {
            for key in record.keys.iter().filter(|key| key.state == State::Ready) {
                let written = EVERY_KEY.split(|c: char| !(c.is_alphanumeric() || c == '_'));
                assert!(written.into_iter().any(|word| word == key.name), "{} of {}", key.name, record.what);
            }
        }
    }

    /// The document with each of its values replaced, removed, or given a neighbour, one at a time.
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
