//! Checks of outputs by JSON Schema: each keyword, errors in schemas, hostile schemas, and agreement with an independent
//! validator on random schemas and values.

use proptest::prelude::*;
use serde_json::{Value, json};
use sprag_pipeline::JsonSchema;

fn violations(schema: &Value, value: &Value) -> Vec<String> {
    let schema = JsonSchema::new(schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
    schema.violations(value, 10).iter().map(ToString::to_string).collect()
}

#[test]
fn each_keyword_accepts_and_refuses() {
    let cases = [
        (json!({ "type": "integer" }), json!(1.0), json!(1.5)),
        (json!({ "type": ["null", "string"] }), json!(null), json!(0)),
        (json!({ "enum": [1, "a", { "b": [2] }] }), json!({ "b": [2.0] }), json!({ "b": [] })),
        (json!({ "const": [1] }), json!([1.0]), json!([1, 1])),
        (json!({ "minimum": 2 }), json!(2), json!(1.9)),
        (json!({ "maximum": 2 }), json!(2), json!(2.1)),
        (json!({ "exclusiveMinimum": 2 }), json!(2.1), json!(2)),
        (json!({ "exclusiveMaximum": 2 }), json!(1), json!(2)),
        (json!({ "multipleOf": 0.1 }), json!(0.3), json!(0.35)),
        (json!({ "minimum": 9007199254740993u64 }), json!(9007199254740993u64), json!(9007199254740992u64)),
        (json!({ "minLength": 2 }), json!("äö"), json!("ä")),
        (json!({ "maxLength": 1 }), json!("ä"), json!("äö")),
        (json!({ "pattern": "^a+$" }), json!("aa"), json!("ab")),
        (json!({ "minItems": 1 }), json!([0]), json!([])),
        (json!({ "maxItems": 1 }), json!([0]), json!([0, 1])),
        (json!({ "uniqueItems": true }), json!([1, "1", [1]]), json!([{ "a": 1 }, { "a": 1.0 }])),
        (json!({ "items": { "type": "string" } }), json!(["a"]), json!(["a", 1])),
        (json!({ "prefixItems": [{ "const": 1 }], "items": false }), json!([1]), json!([1, 2])),
        (json!({ "items": [{ "const": 1 }], "additionalItems": false }), json!([1]), json!([1, 2])),
        (json!({ "contains": { "const": 1 }, "maxContains": 1 }), json!([0, 1]), json!([1, 1])),
        (json!({ "properties": { "a": { "type": "string" } } }), json!({ "b": 1 }), json!({ "a": 1 })),
        (
            json!({ "patternProperties": { "^x": { "type": "null" } } }),
            json!({ "xa": null }),
            json!({ "xa": 0 }),
        ),
        (
            json!({ "properties": { "a": {} }, "patternProperties": { "^x": {} }, "additionalProperties": false }),
            json!({ "a": 1, "x1": 1 }),
            json!({ "b": 1 }),
        ),
        (json!({ "propertyNames": { "maxLength": 1 } }), json!({ "a": 1 }), json!({ "ab": 1 })),
        (json!({ "minProperties": 1 }), json!({ "a": 1 }), json!({})),
        (json!({ "maxProperties": 1 }), json!({ "a": 1 }), json!({ "a": 1, "b": 2 })),
        (json!({ "required": ["a"] }), json!({ "a": null }), json!({ "b": 1 })),
        (json!({ "dependentRequired": { "a": ["b"] } }), json!({ "b": 1 }), json!({ "a": 1 })),
        (json!({ "dependentSchemas": { "a": { "required": ["b"] } } }), json!({}), json!({ "a": 1 })),
        (json!({ "dependencies": { "a": ["b"] } }), json!({ "a": 1, "b": 1 }), json!({ "a": 1 })),
        (json!({ "allOf": [{ "minimum": 1 }, { "maximum": 2 }] }), json!(2), json!(3)),
        (json!({ "anyOf": [{ "const": 1 }, { "const": 2 }] }), json!(2), json!(3)),
        (json!({ "oneOf": [{ "minimum": 1 }, { "minimum": 2 }] }), json!(1), json!(2)),
        (json!({ "not": { "const": 1 } }), json!(2), json!(1)),
        (
            json!({ "if": { "type": "string" }, "then": { "minLength": 1 }, "else": { "type": "null" } }),
            json!("a"),
            json!(0),
        ),
        (json!({ "$ref": "#/$defs/n", "$defs": { "n": { "type": "null" } } }), json!(null), json!(0)),
        (
            json!({ "$ref": "#n", "$defs": { "x": { "$anchor": "n", "type": "null" } } }),
            json!(null),
            json!(0),
        ),
        (
            json!({ "$ref": "#/definitions/a~1b%25", "definitions": { "a/b%": { "type": "null" } } }),
            json!(null),
            json!(0),
        ),
        (
            json!({ "properties": { "next": { "$ref": "#" } }, "additionalProperties": false }),
            json!({ "next": { "next": {} } }),
            json!({ "next": { "next": { "x": 1 } } }),
        ),
        (json!(true), json!(0), json!(null)),
    ];
    for (schema, fitting, other) in cases {
        assert_eq!(violations(&schema, &fitting), [""; 0], "{schema} {fitting}");
        assert_eq!(violations(&schema, &other).is_empty(), schema == json!(true), "{schema} {other}");
    }
}

#[test]
fn a_violation_names_its_place_and_what_is_wrong() {
    let schema = json!({
        "type": "object",
        "required": ["name"],
        "properties": { "list": { "items": { "type": "integer", "minimum": 1 } } },
        "additionalProperties": false,
    });
    let value = json!({ "list": [1, 0, "x"], "a/b": 1 });
    let expected = [
        "the property \"name\" is missing",
        "/a~1b: this property is not allowed",
        "/list/1: 0 is less than 1",
        "/list/2: \"x\" is not of type integer",
    ];
    assert_eq!(violations(&schema, &value), expected);
}

#[test]
fn a_wrong_schema_is_refused_with_its_place() {
    let cases = [
        (json!({ "requierd": ["a"] }), "\"requierd\" is no keyword of JSON Schema; your own begin with `x-`"),
        (
            json!({ "items": { "type": "int" } }),
            "/items/type: must be one or several of null, boolean, integer,",
        ),
        (json!({ "properties": { "a": 1 } }), "/properties/a: a schema is an object, `true` or `false`"),
        (json!({ "pattern": "(" }), "/pattern: \"(\" is no regular expression: unclosed group"),
        (json!({ "minLength": -1 }), "/minLength: must be a whole number of at least 0"),
        (json!({ "allOf": [] }), "/allOf: must hold at least one schema"),
        (json!({ "$ref": "http://localhost/x" }), "$ref \"http://localhost/x\" leads nowhere"),
        (json!({ "$ref": "#/$defs/none" }), "$ref \"#/$defs/none\" leads nowhere"),
        (json!({ "unevaluatedItems": false }), "/unevaluatedItems: this keyword is not supported"),
        (json!(7), "a schema is an object, `true` or `false`"),
    ];
    for (schema, expected) in cases {
        let error = JsonSchema::new(&schema).expect_err("a wrong schema").to_string();
        assert!(error.starts_with(expected), "{schema}: {error}");
    }
}

#[test]
fn e03_a_schema_that_refers_to_itself_or_multiplies_work_ends() {
    let endless = json!({ "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } }, "$ref": "#/$defs/a" });
    let told = violations(&endless, &json!(1));
    assert_eq!(told, ["the schema refers to itself without end, or the value is nested too deeply"]);
    // Each level asks twice about the next: 2^40 questions.
    let level = |n: u32| json!({ "anyOf": [{ "$ref": format!("#/$defs/l{n}") }, { "$ref": format!("#/$defs/l{n}") }] });
    let mut levels: serde_json::Map<String, Value> =
        (0..40).map(|n| (format!("l{n}"), level(n + 1))).collect();
    levels.insert("l40".into(), json!(false));
    let told = violations(&json!({ "$ref": "#/$defs/l0", "$defs": levels }), &json!(1));
    assert_eq!(told, ["checking the value against its schema takes too long"]);
}

/// Values and schemas over few names and numbers, so that they meet.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..4).prop_map(Value::from),
        (-6i64..7).prop_map(|n| json!(n as f64 / 2.0)),
        "[ab]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[abc]", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn schema() -> impl Strategy<Value = Value> {
    let types = ["null", "boolean", "integer", "number", "string", "array", "object"];
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        prop::sample::select(types.to_vec()).prop_map(|one| json!({ "type": one })),
        prop::sample::subsequence(types.to_vec(), 1..4).prop_map(|some| json!({ "type": some })),
        value().prop_map(|one| json!({ "const": one })),
        prop::collection::vec(value(), 1..4).prop_map(|some| json!({ "enum": some })),
        (-3i64..4, prop::sample::select(vec!["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]))
            .prop_map(|(n, key)| json!({ key: n })),
        (1i64..4).prop_map(|n| json!({ "multipleOf": n })),
        (
            0u64..4,
            prop::sample::select(vec![
                "minLength",
                "maxLength",
                "minItems",
                "maxItems",
                "minProperties",
                "maxProperties",
            ])
        )
            .prop_map(|(n, key)| json!({ key: n })),
        prop::sample::select(vec!["^a", "b$", "ab?", "[ab]{2}"]).prop_map(|text| json!({ "pattern": text })),
        Just(json!({ "uniqueItems": true })),
        prop::sample::subsequence(vec!["a", "b", "c"], 0..3).prop_map(|names| json!({ "required": names })),
        prop::sample::subsequence(vec!["a", "b", "c"], 0..3)
            .prop_map(|names| json!({ "dependentRequired": { "a": names } })),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let some = prop::collection::vec(inner.clone(), 1..4);
        prop_oneof![
            (some, prop::sample::select(vec!["allOf", "anyOf", "oneOf", "prefixItems"]))
                .prop_map(|(some, key)| json!({ key: some })),
            (inner.clone(), prop::sample::select(vec!["not", "items", "contains", "propertyNames", "additionalProperties"]))
                .prop_map(|(one, key)| json!({ key: one })),
            (inner.clone(), inner.clone(), inner.clone())
                .prop_map(|(a, b, c)| json!({ "if": a, "then": b, "else": c })),
            (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| {
                json!({ "properties": { "a": a }, "patternProperties": { "[ab]": b }, "additionalProperties": c })
            }),
            (inner.clone(), inner.clone(), 0u64..3, 0u64..3).prop_map(|(one, rest, min, max)| {
                json!({ "contains": one, "minContains": min, "maxContains": max, "items": rest })
            }),
            inner.prop_map(|one| json!({ "dependentSchemas": { "b": one } })),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn it_agrees_with_an_independent_validator(schema in schema(), value in value()) {
        let ours = JsonSchema::new(&schema).expect("a schema").is_valid(&value);
        let theirs = jsonschema::validator_for(&schema).expect("a schema").is_valid(&value);
        prop_assert_eq!(ours, theirs, "{} {}", schema, value);
    }
}
