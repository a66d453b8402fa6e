//! Generates a value that matches a JSON schema, so that a dry run can continue where a real agent would have answered.

use serde_json::{Map, Value, json};

/// The deepest nesting; deeper parts become `null`.
const MAX_DEPTH: usize = 12;

/// Returns a small value that matches the usual schemas: types, enumerations, constants, required properties, lower
/// bounds, references.
pub(super) fn sample(schema: &Value) -> Value {
    build(schema, schema, 0)
}

fn build(schema: &Value, root: &Value, depth: usize) -> Value {
    if depth > MAX_DEPTH {
        return Value::Null;
    }
    if let Some(reference) = schema["$ref"].as_str() {
        let target = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        return target.map_or(Value::Null, |target| build(target, root, depth + 1));
    }
    for given in ["const", "default"] {
        if let Some(value) = schema.get(given) {
            return value.clone();
        }
    }
    if let Some(first) =
        schema["enum"].as_array().or(schema["examples"].as_array()).and_then(|values| values.first())
    {
        return first.clone();
    }
    for choice in ["oneOf", "anyOf", "allOf"] {
        if let Some(first) = schema[choice].as_array().and_then(|schemas| schemas.first()) {
            return build(first, root, depth + 1);
        }
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.first().and_then(Value::as_str),
        kind => kind.as_str(),
    };
    let kind = kind.or_else(|| schema.get("properties").map(|_| "object"));
    match kind {
        Some("object") => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let fields: Map<String, Value> = required
                .map(|name| (name.to_owned(), build(&schema["properties"][name], root, depth + 1)))
                .collect();
            Value::Object(fields)
        }
        Some("array") => {
            let count = schema["minItems"].as_u64().unwrap_or(0).min(10);
            (0..count).map(|_| build(&schema["items"], root, depth + 1)).collect()
        }
        Some("integer" | "number") => {
            let least =
                schema["minimum"].as_i64().or(schema["exclusiveMinimum"].as_i64().map(|bound| bound + 1));
            json!(least.unwrap_or(0))
        }
        Some("boolean") => json!(true),
        Some("null") => Value::Null,
        _ => {
            let least = schema["minLength"].as_u64().unwrap_or(0).min(1000) as usize;
            json!(format!("{:x<least$}", "fake"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_what_a_schema_requires() {
        let schema = json!({"type": "object", "required": ["verdict", "count", "list", "inner", "kind", "ok"], "properties": {
            "verdict": {"type": "string", "minLength": 6}, "count": {"type": "integer", "minimum": 3},
            "list": {"type": "array", "minItems": 2, "items": {"enum": ["a", "b"]}},
            "inner": {"$ref": "#/$defs/inner"}, "kind": {"const": 7}, "ok": {"type": ["boolean", "null"]},
            "optional": {"type": "string"}}, "$defs": {"inner": {"type": "object", "required": ["x"], "properties": {"x": {}}}}});
        let expected = json!({"verdict": "fakexx", "count": 3, "list": ["a", "a"], "inner": {"x": "fake"}, "kind": 7, "ok": true});
        assert_eq!(sample(&schema), expected);
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let schema = json!({"type": "object", "required": ["again"], "properties": {"again": {"$ref": "#"}}});
        assert!(sample(&schema).is_object());
    }
}
