//! JSON Schema for checks of outputs: the validation keywords of draft 2020-12, and the older spellings of draft 7.
//!
//! A schema is compiled when the pipeline is loaded. A keyword that is not known, and one that this validator does not
//! implement (`$dynamicRef`, `unevaluatedProperties`), is an error there: a misspelled `requierd` must not pass silently.
//! Schemas and values come from outside, so both the depth and the work of a validation are bounded.

mod compile;
mod validate;
mod values;

use std::collections::BTreeMap;
use std::fmt;

use regex::Regex;
use serde_json::{Number, Value};

use compile::Compiler;
pub(crate) use compile::count_patterns;
use validate::Validation;

/// The deepest nesting of schemas and references that is compiled or followed.
const MAX_DEPTH: usize = 128;

/// A compiled JSON Schema.
#[derive(Debug)]
pub struct JsonSchema {
    /// All schemas, by their place in the document (`""` is the whole, `/items` a part).
    places: BTreeMap<String, Compiled>,
    /// The places of `$anchor` names.
    anchors: BTreeMap<String, String>,
}

/// An error in a schema itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaError {
    /// The place in the schema, as a JSON pointer; empty for the whole.
    pub place: String,
    /// The mistake.
    pub message: String,
}

impl fmt::Display for SchemaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.place, self.message)
        }
    }
}

impl std::error::Error for SchemaError {}

/// One way in which a value does not fit its schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The place in the value, as a JSON pointer; empty for the whole.
    pub place: String,
    /// The mistake.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.place, self.message)
        }
    }
}

/// One schema: `true`, `false`, or the rules of an object, in the order in which they are checked.
#[derive(Debug)]
enum Compiled {
    Anything,
    Nothing,
    Rules(Vec<Rule>),
}

/// A keyword and its argument. Subschemas are named by their place in the document.
#[derive(Debug)]
enum Rule {
    Ref(String),
    Type(Vec<Type>),
    Enum(Vec<Value>),
    Const(Value),
    Minimum(Number),
    Maximum(Number),
    ExclusiveMinimum(Number),
    ExclusiveMaximum(Number),
    MultipleOf(Number),
    Length { min: u64, max: u64 },
    Pattern(Regex),
    Items { prefix: Vec<String>, rest: Option<String> },
    ItemCount { min: u64, max: u64 },
    UniqueItems,
    Contains { schema: String, min: u64, max: u64 },
    Properties { named: BTreeMap<String, String>, patterns: Vec<(Regex, String)>, rest: Option<String> },
    PropertyCount { min: u64, max: u64 },
    PropertyNames(String),
    Required(Vec<String>),
    DependentRequired(BTreeMap<String, Vec<String>>),
    DependentSchemas(BTreeMap<String, String>),
    AllOf(Vec<String>),
    AnyOf(Vec<String>),
    OneOf(Vec<String>),
    Not(String),
    If { condition: String, then: Option<String>, otherwise: Option<String> },
}

/// The JSON types. A number without a fraction is an integer, however it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Null,
    Boolean,
    Integer,
    Number,
    String,
    Array,
    Object,
}

impl Type {
    const ALL: [(&'static str, Type); 7] = [
        ("null", Type::Null),
        ("boolean", Type::Boolean),
        ("integer", Type::Integer),
        ("number", Type::Number),
        ("string", Type::String),
        ("array", Type::Array),
        ("object", Type::Object),
    ];

    fn named(name: &str) -> Option<Type> {
        Type::ALL.iter().find(|(known, _)| *known == name).map(|(_, found)| *found)
    }

    fn name(self) -> &'static str {
        Type::ALL.iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
    }

    fn fits(self, value: &Value) -> bool {
        match value {
            Value::Null => self == Type::Null,
            Value::Bool(_) => self == Type::Boolean,
            Value::Number(number) => {
                self == Type::Number || self == Type::Integer && values::is_whole(number)
            }
            Value::String(_) => self == Type::String,
            Value::Array(_) => self == Type::Array,
            Value::Object(_) => self == Type::Object,
        }
    }
}

impl JsonSchema {
    /// Compiles a schema.
    pub fn new(schema: &Value) -> Result<JsonSchema, SchemaError> {
        let Compiler { places, anchors, .. } = Compiler::compile_all(schema)?;
        let compiled = JsonSchema { places, anchors };
        for (place, one) in &compiled.places {
            let Compiled::Rules(rules) = one else { continue };
            for rule in rules {
                if let Rule::Ref(target) = rule
                    && compiled.resolve(target).is_none()
                {
                    let message = format!(
                        "$ref {target:?} leads nowhere: it must name a schema in the same document, such as \"#/$defs/NAME\""
                    );
                    return Err(SchemaError { place: place.clone(), message });
                }
            }
        }
        Ok(compiled)
    }

    /// Returns the first `most` violations of the schema, in the order of its keywords; none if the value fits.
    pub fn violations(&self, value: &Value, most: usize) -> Vec<Violation> {
        let mut found = Validation::of(self, value);
        found.truncate(most);
        found
    }

    /// Returns whether the value fits.
    pub fn is_valid(&self, value: &Value) -> bool {
        self.violations(value, 1).is_empty()
    }

    fn resolve(&self, target: &str) -> Option<&str> {
        let fragment = target.strip_prefix('#')?;
        let place = if fragment.is_empty() || fragment.starts_with('/') {
            // A fragment of a URI may write any character as `%` and two digits.
            percent_decoded(fragment)?
        } else {
            self.anchors.get(fragment)?.clone()
        };
        self.places.get_key_value(&place).map(|(place, _)| place.as_str())
    }
}

fn join(place: &str, part: &str) -> String {
    format!("{place}/{}", escaped(part))
}

/// Escapes a part of a JSON pointer.
fn escaped(part: &str) -> String {
    part.replace('~', "~0").replace('/', "~1")
}

fn percent_decoded(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            let digits = text.get(at + 1..at + 3)?;
            decoded.push(u8::from_str_radix(digits, 16).ok()?);
            at += 3;
        } else {
            decoded.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(decoded).ok()
}
