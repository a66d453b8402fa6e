//! The inputs of a run: declared with a type, checked when a run is started, completed with defaults.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::diagnostic::{Diagnostics, Problem, Report};
use crate::expression::{check_pattern, fits_pattern};
use crate::nearest::nearest;
use crate::pipeline::Pipeline;
use crate::source::Span;
use crate::yaml::{Node, quoted};

/// A declared input of a pipeline, or a field of a gate's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Input {
    /// The name that templates refer to.
    pub name: String,
    /// The type of its values.
    #[serde(rename = "type")]
    pub kind: InputType,
    /// Whether every run must set it.
    pub required: bool,
    /// The value of a run that does not set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    /// The allowed values; empty if any value of the type is allowed.
    #[serde(default, rename = "enum", skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<Value>,
    /// A regular expression that the whole text must fit; only for text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// The least and the greatest number, or size of a text, list or object.
    #[serde(flatten)]
    pub bounds: InputBounds,
    /// The author's description, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether its value is stored encrypted and shown as `***`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub secret: bool,
    #[serde(skip)]
    pub(crate) span: Span,
}

/// The bounds of an input, both included: of a number, or of the number of characters, items or entries.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct InputBounds {
    /// The lower bound; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<serde_json::Number>,
    /// The upper bound; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<serde_json::Number>,
}

impl InputBounds {
    /// Returns the reason why a value is out of bounds, if it is.
    fn refuse(&self, value: &Value) -> Option<String> {
        let (size, unit) = match value {
            Value::Number(number) => (number.as_f64()?, ""),
            Value::String(text) => (text.chars().count() as f64, " characters"),
            Value::Array(items) => (items.len() as f64, " items"),
            Value::Object(entries) => (entries.len() as f64, " entries"),
            Value::Null | Value::Bool(_) => return None,
        };
        let bound =
            |number: &Option<serde_json::Number>| number.as_ref().and_then(serde_json::Number::as_f64);
        match (bound(&self.min), bound(&self.max)) {
            (Some(min), _) if size < min => Some(format!("at least {}{unit}", self.min.as_ref()?)),
            (_, Some(max)) if size > max => Some(format!("at most {}{unit}", self.max.as_ref()?)),
            _ => None,
        }
    }
}

/// The type of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

    fn name(self) -> &'static str {
        match self {
            InputType::String => "text",
            InputType::Integer | InputType::Number => "a number",
            InputType::Boolean => "a boolean",
            InputType::List => "a list",
            InputType::Object => "an object",
        }
    }

    /// Returns the form of its values in words, for messages.
    pub fn expected(self) -> &'static str {
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
    pub fn convert(self, text: &str) -> Option<Value> {
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
        let pattern = node.get("pattern").and_then(Node::text).map(str::to_owned);
        if let (Some(place), Some(pattern)) = (node.get("pattern"), &pattern) {
            if kind != InputType::String {
                let problem = Problem::at(place.span, format!("`pattern` has no effect on {}", kind.name()));
                report.error(problem.help("remove it"));
            } else if let Err(why) = check_pattern(pattern) {
                report.error(Problem::at(place.span, why).expected("a regular expression such as [a-z]+"));
            }
        }
        let mut bound = |key: &str| {
            let place = node.get(key)?;
            let number = match place.json() {
                Value::Number(number) if kind == InputType::Number || number.is_i64() => Some(number),
                _ => None,
            };
            if kind == InputType::Boolean {
                let problem = Problem::at(place.span, format!("`{key}` has no effect on a boolean"));
                report.error(problem.help("remove it"));
            } else if number.is_none() {
                let problem = Problem::at(place.span, format!("`{key}` cannot be {}", place.describe()));
                let whole = kind != InputType::Number;
                report.error(problem.expected(if whole { "a whole number" } else { "a number" }));
            }
            number
        };
        let bounds = InputBounds { min: bound("min"), max: bound("max") };
        let as_number = |number: &Option<serde_json::Number>| number.as_ref().and_then(|n| n.as_f64());
        if let (Some(min), Some(max), Some(place)) =
            (as_number(&bounds.min), as_number(&bounds.max), node.get("max"))
            && min > max
        {
            report.error(Problem::at(place.span, format!("`max` of input `{name}` is below its `min`")));
        }
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
        let secret = node.get("secret").and_then(Node::boolean).unwrap_or(false);
        if let Some(place) = node.get("secret").filter(|_| secret) {
            if kind != InputType::String {
                let problem = Problem::at(place.span, "`secret` needs an input of type string");
                report.error(problem.help("remove it, or make the input a string"));
            }
            if let Some(default) = node.get("default") {
                let problem = Problem::at(default.span, "a secret input has no default");
                report.error(problem.help("a value in this file is no secret: remove it"));
            }
            if let Some(values) = node.get("enum") {
                let problem = Problem::at(values.span, "a secret input has no `enum`");
                report.error(problem.help("a value in this file is no secret: remove it"));
            }
        }
        let input = Input {
            name: name.to_owned(),
            kind,
            required,
            default,
            allowed,
            pattern,
            bounds,
            description,
            secret,
            span,
        };
        if let (Some(place), Some(value)) = (node.get("default"), &input.default)
            && let Some(expected) = input.refuse(value)
        {
            let problem = Problem::at(place.span, format!("the default of input `{name}` does not fit"));
            report.error(problem.expected(expected));
        }
        input
    }

    /// Returns a value for a message; that of a secret input is not shown.
    fn shown(&self, value: &Value) -> String {
        if self.secret { "`***`".to_owned() } else { quoted(&value.to_string()) }
    }

    /// Returns the expected form of a value that does not fit the pattern or the bounds.
    fn refuse(&self, value: &Value) -> Option<String> {
        let pattern = self.pattern.as_deref().zip(value.as_str());
        if let Some((pattern, text)) = pattern
            && fits_pattern(pattern, text) != Ok(true)
        {
            return Some(format!("a text that fits {pattern}"));
        }
        self.bounds.refuse(value)
    }

    /// Returns the expected form of a value that the declaration does not allow; none if it allows the value.
    pub fn mismatch(&self, value: &Value) -> Option<String> {
        if !self.kind.holds(value) {
            Some(self.kind.expected().to_owned())
        } else if !self.allowed.is_empty() && !self.allowed.contains(value) {
            Some(list(&self.allowed))
        } else {
            self.refuse(value)
        }
    }

    fn check(&self, value: &Value, report: &mut Report) {
        if !self.kind.holds(value) {
            let message = format!("input `{}` cannot be {}", self.name, self.shown(value));
            report.error(Problem::at(self.span, message).expected(self.kind.expected()));
        } else if !self.allowed.is_empty() && !self.allowed.contains(value) {
            let words: Vec<&str> = self.allowed.iter().filter_map(Value::as_str).collect();
            let near = value.as_str().and_then(|given| nearest(given, words));
            let message = format!("input `{}` cannot be {}", self.name, self.shown(value));
            report.error(Problem::at(self.span, message).expected(list(&self.allowed)).nearest(near));
        } else if let Some(expected) = self.refuse(value) {
            let message = format!("input `{}` cannot be {}", self.name, self.shown(value));
            report.error(Problem::at(self.span, message).expected(expected));
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
