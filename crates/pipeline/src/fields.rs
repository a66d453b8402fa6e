//! The fields of a gate's answer: checked when the answer is given.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};
use sprag_lifecycle::mutant;

use crate::inputs::Input;

/// The reason why an answer's fields are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// The reason; it names the field.
    pub message: String,
    /// The allowed values or fields.
    pub expected: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; expected {}", self.message, self.expected)
    }
}

impl std::error::Error for FieldError {}

/// Checks the fields of an answer and adds the defaults of the others. `texts` are values from a command line, which are
/// converted to the fields' types. Only an approval must give the required fields.
pub fn complete_fields(
    declared: &[Input],
    values: &Map<String, Value>,
    texts: &BTreeMap<String, String>,
    is_approval: bool,
) -> Result<Map<String, Value>, FieldError> {
    let mut given = values.clone();
    for (name, text) in texts {
        let field = find(declared, name)?;
        let value = field
            .kind
            .convert(text)
            .ok_or_else(|| refused(name, &format!("{text:?}"), field.kind.expected()))?;
        given.insert(name.clone(), value);
    }
    for (name, value) in &given {
        let expected = find(declared, name)?.mismatch(value).filter(|_| !mutant!(AnswerUnchecked));
        if let Some(expected) = expected {
            return Err(refused(name, &value.to_string(), &expected));
        }
    }
    for field in declared {
        if given.contains_key(&field.name) {
            continue;
        }
        if let Some(default) = &field.default {
            given.insert(field.name.clone(), default.clone());
        } else if field.required && is_approval && !mutant!(AnswerUnchecked) {
            let message = format!("the field `{}` is required and was not given", field.name);
            return Err(FieldError { message, expected: field.kind.expected().to_owned() });
        }
    }
    Ok(given)
}

fn find<'f>(declared: &'f [Input], name: &str) -> Result<&'f Input, FieldError> {
    declared.iter().find(|field| field.name == name).ok_or_else(|| {
        let known: Vec<&str> = declared.iter().map(|field| field.name.as_str()).collect();
        let expected =
            if known.is_empty() { "no fields".to_owned() } else { format!("one of {}", known.join(", ")) };
        FieldError { message: format!("the question has no field {name:?}"), expected }
    })
}

fn refused(field: &str, value: &str, expected: &str) -> FieldError {
    FieldError { message: format!("the field `{field}` cannot be {value}"), expected: expected.to_owned() }
}
