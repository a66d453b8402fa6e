//! The items of a fan-out: every combination of a matrix, or each item of a list known only now.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::render::RenderError;
use crate::spec::{FanOut, Over};
use crate::template;

/// More steps than this in one run are a mistake in a template, not work.
const MAX_ITEMS: usize = 100_000;

impl FanOut {
    /// The items, in order: maps of a matrix's names, or the values of a list.
    pub fn items(&self, context: &Value) -> Result<Vec<Value>, RenderError> {
        let items = match &self.over {
            Over::Matrix(axes) => combinations(axes),
            Over::Each(list) => listed(list, context),
        };
        items.map_err(|why| RenderError { place: "the fan-out".into(), why })
    }

    /// The context in which the step of one item is rendered.
    pub fn item_context(&self, context: &Value, item: &Value) -> Value {
        let name = match self.over {
            Over::Matrix(_) => "matrix",
            Over::Each(_) => "item",
        };
        let mut context = context.clone();
        if let Value::Object(names) = &mut context {
            names.remove("item");
            names.insert(name.into(), item.clone());
        }
        context
    }
}

/// Every combination, the last axis changing fastest.
fn combinations(axes: &BTreeMap<String, Vec<Value>>) -> Result<Vec<Value>, String> {
    let count = axes.values().try_fold(1usize, |count, values| count.checked_mul(values.len()));
    let count = count.filter(|count| *count <= MAX_ITEMS).ok_or_else(too_many)?;
    let combination = |mut number: usize| {
        let mut picked = Map::new();
        for (name, values) in axes.iter().rev() {
            picked.insert(name.clone(), values[number % values.len()].clone());
            number /= values.len();
        }
        Value::Object(picked)
    };
    Ok((0..count).map(combination).collect())
}

fn listed(list: &Value, context: &Value) -> Result<Vec<Value>, String> {
    let list = match list {
        Value::String(template) => template::value(template, context)?,
        Value::Array(items) => {
            let filled = items.iter().map(|item| match item {
                Value::String(template) => template::value(template, context),
                other => Ok(other.clone()),
            });
            Value::Array(filled.collect::<Result<_, _>>()?)
        }
        other => other.clone(),
    };
    match list {
        Value::Array(items) if items.len() <= MAX_ITEMS => Ok(items),
        Value::Array(_) => Err(too_many()),
        other => Err(format!("`foreach` needs a list, and this is {}", kind_of(&other))),
    }
}

fn too_many() -> String {
    format!("more than {MAX_ITEMS} items")
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn items(over: Over) -> Result<Vec<Value>, String> {
        let context = json!({ "inputs": { "l": [1, "x"], "n": 3, "empty": [] } });
        FanOut { over, max_parallel: None, fail_fast: false }.items(&context).map_err(|error| error.why)
    }

    #[test]
    fn a_matrix_gives_every_combination_once() {
        let axes = BTreeMap::from([
            ("os".into(), vec![json!("l"), json!("m")]),
            ("v".into(), vec![json!(1), json!(2)]),
        ]);
        let expected = [("l", 1), ("l", 2), ("m", 1), ("m", 2)].map(|(os, v)| json!({ "os": os, "v": v }));
        assert_eq!(items(Over::Matrix(axes)).unwrap(), expected);
        let huge = ["a", "b", "c"].map(|axis| (axis.to_owned(), vec![json!(0); 100]));
        assert_eq!(items(Over::Matrix(BTreeMap::from(huge))), Err("more than 100000 items".into()));
    }

    #[test]
    fn a_list_comes_from_the_file_or_from_a_template() {
        assert_eq!(items(Over::Each(json!("{{ inputs.l }}"))), Ok(vec![json!(1), json!("x")]));
        assert_eq!(
            items(Over::Each(json!(["a", "{{ inputs.n }}", 2]))),
            Ok(vec![json!("a"), json!(3), json!(2)])
        );
        assert_eq!(items(Over::Each(json!("{{ inputs.empty }}"))), Ok(vec![]));
        assert_eq!(
            items(Over::Each(json!("{{ inputs.n }}"))),
            Err("`foreach` needs a list, and this is a number".into())
        );
        assert!(items(Over::Each(json!("{{ inputs.nope }}"))).is_err());
    }
}
