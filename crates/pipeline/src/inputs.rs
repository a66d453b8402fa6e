//! The inputs of a run: declared with a type, checked when a run is started, completed with defaults.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::diagnostic::{Diagnostics, Problem, Report};
use crate::nearest::nearest;
use crate::pipeline::Pipeline;
use crate::source::Span;
use crate::yaml::{Node, quoted};

/// A declared input.
#[derive(Debug, Clone)]
pub struct Input {
    /// The name that templates refer to.
    pub name: String,
    /// The type of its values.
    pub kind: InputType,
    /// Whether every run must set it.
    pub required: bool,
    /// The value of a run that does not set it.
    pub default: Option<Value>,
    /// The allowed values; empty if any value of the type is allowed.
    pub allowed: Vec<Value>,
    /// The author's description, for people.
    pub description: Option<String>,
    pub(crate) span: Span,
}

/// The type of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum InputType {
    /// Text.
    String,
    /// A whole number.
    Integer,
    /// Any number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// A JSON array.
    List,
    /// A JSON object.
    Object,
}

impl InputType {
    fn of(word: &str) -> Option<InputType> {
        Some(match word {
            "string" => InputType::String,
            "integer" => InputType::Integer,
            "number" => InputType::Number,
            "boolean" => InputType::Boolean,
            "list" => InputType::List,
            "object" => InputType::Object,
            _ => return None,
        })
    }

    fn holds(self, value: &Value) -> bool {
        match self {
            InputType::String => value.is_string(),
            InputType::Integer => value.is_i64() || value.is_u64(),
            InputType::Number => value.is_number(),
            InputType::Boolean => value.is_boolean(),
            InputType::List => value.is_array(),
            InputType::Object => value.is_object(),
        }
    }

    fn expected(self) -> &'static str {
        match self {
            InputType::String => "text",
            InputType::Integer => "a whole number",
            InputType::Number => "a number",
            InputType::Boolean => "true or false",
            InputType::List => "a JSON list, such as [1, 2]",
            InputType::Object => "a JSON object, such as {\"a\": 1}",
        }
    }

    /// Parses a text from the command line as a value of this type.
    fn convert(self, text: &str) -> Option<Value> {
        let value = match self {
            InputType::String => Some(Value::String(text.to_owned())),
            InputType::Boolean | InputType::Integer | InputType::Number => {
                serde_json::from_str(text.trim()).ok()
            }
            InputType::List | InputType::Object => serde_json::from_str(text).ok(),
        };
        value.filter(|value| self.holds(value))
    }
}

impl Input {
    /// Decodes a declaration whose form has been checked. Reports contradictions between its parts.
    pub(crate) fn decode(name: &str, span: Span, node: &Node, report: &mut Report) -> Input {
        let word = node.text().or_else(|| node.get("type").and_then(Node::text));
        let kind = word.and_then(InputType::of).unwrap_or(InputType::String);
        let required = node.get("required").and_then(Node::boolean).unwrap_or(false);
        let mut typed = |value: &Node, what: &str| {
            let json = value.json();
            if !kind.holds(&json) {
                let message = format!("{what} of input `{name}` cannot be {}", value.describe());
                report.error(Problem::at(value.span, message).expected(kind.expected()));
            }
            json
        };
        let allowed: Vec<Value> = node
            .get("enum")
            .map(Node::items)
            .unwrap_or_default()
            .iter()
            .map(|v| typed(v, "a value"))
            .collect();
        let default = node.get("default").map(|value| typed(value, "the default"));
        if let (Some(place), Some(value)) = (node.get("default"), &default) {
            if required {
                let problem =
                    Problem::at(place.span, format!("input `{name}` is required and has a default"));
                report.error(problem.help("remove one of them: a default is used where nothing is given"));
            }
            if !allowed.is_empty() && !allowed.contains(value) {
                let problem =
                    Problem::at(place.span, format!("the default of input `{name}` is not in its `enum`"));
                report.error(problem.expected(list(&allowed)));
            }
        }
        let description = node.get("description").and_then(Node::text).map(str::to_owned);
        Input { name: name.to_owned(), kind, required, default, allowed, description, span }
    }

    fn check(&self, value: &Value, report: &mut Report) {
        if !self.kind.holds(value) {
            let message = format!("input `{}` cannot be {}", self.name, quoted(&value.to_string()));
            report.error(Problem::at(self.span, message).expected(self.kind.expected()));
        } else if !self.allowed.is_empty() && !self.allowed.contains(value) {
            let words: Vec<&str> = self.allowed.iter().filter_map(Value::as_str).collect();
            let near = value.as_str().and_then(|given| nearest(given, words));
            let message = format!("input `{}` cannot be {}", self.name, quoted(&value.to_string()));
            report.error(Problem::at(self.span, message).expected(list(&self.allowed)).nearest(near));
        }
    }
}

fn list(values: &[Value]) -> String {
    let shown: Vec<String> = values.iter().map(Value::to_string).collect();
    format!("one of {}", shown.join(", "))
}

impl Pipeline {
    /// Converts texts from a command line to the declared types.
    pub fn coerce(&self, given: &BTreeMap<String, String>) -> Result<BTreeMap<String, Value>, Diagnostics> {
        let mut report = Report::new(self.source.clone());
        let mut values = BTreeMap::new();
        for (name, text) in given {
            let Some(input) = self.declared(name, &mut report) else { continue };
            match input.kind.convert(text) {
                Some(value) => {
                    values.insert(name.clone(), value);
                }
                None => {
                    let message = format!("input `{name}` cannot be {}", quoted(text));
                    report.error(Problem::at(input.span, message).expected(input.kind.expected()));
                }
            }
        }
        if report.has_errors() { Err(report.finish()) } else { Ok(values) }
    }

    /// Checks the given inputs and adds the defaults of the others.
    pub fn complete(&self, given: &BTreeMap<String, Value>) -> Result<BTreeMap<String, Value>, Diagnostics> {
        let mut report = Report::new(self.source.clone());
        let mut values = BTreeMap::new();
        for (name, value) in given {
            if let Some(input) = self.declared(name, &mut report) {
                input.check(value, &mut report);
                values.insert(name.clone(), value.clone());
            }
        }
        for input in self.inputs.iter().filter(|input| !given.contains_key(&input.name)) {
            if let Some(default) = &input.default {
                values.insert(input.name.clone(), default.clone());
            } else if input.required {
                let problem =
                    Problem::at(input.span, format!("input `{}` is required and was not given", input.name));
                report.error(
                    problem
                        .expected(input.kind.expected())
                        .help(format!("give it with --input {}=…", input.name)),
                );
            }
        }
        if report.has_errors() { Err(report.finish()) } else { Ok(values) }
    }

    fn declared(&self, name: &str, report: &mut Report) -> Option<&Input> {
        let found = self.inputs.iter().find(|input| input.name == name);
        if found.is_none() {
            let names = || self.inputs.iter().map(|input| input.name.as_str());
            let mut problem = Problem::nowhere(format!("the pipeline has no input {}", quoted(name)));
            problem = match names().collect::<Vec<_>>().as_slice() {
                [] => problem.help("the pipeline takes no inputs"),
                all => problem.expected(format!("one of {}", all.join(", "))).nearest(nearest(name, names())),
            };
            report.error(problem);
        }
        found
    }
}
