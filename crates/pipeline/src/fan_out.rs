//! The items of a fan-out: the combinations of a matrix, or the items of a list that may come from a template.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::expression::Budget;
use crate::render::RenderError;
use crate::spec::{FanOut, FanOutItems};
use crate::template;

/// The most items of one fan-out. More of them are a mistake in a template.
const MAX_ITEMS: usize = 100_000;

impl FanOut {
    /// Returns the items in order: maps from a matrix's names to values, or the values of a list.
    pub fn items(&self, context: &Value) -> Result<Vec<Value>, RenderError> {
        self.items_within(context, &Budget::default())
    }

    /// Returns the items as [`FanOut::items`] does, within the given budget.
    pub fn items_within(&self, context: &Value, budget: &Budget) -> Result<Vec<Value>, RenderError> {
        let items = match &self.over {
            FanOutItems::Matrix(axes) => combinations(axes, budget),
            FanOutItems::Each(list) => listed(list, context, budget),
        };
        items.map_err(|why| RenderError { place: "the fan-out".into(), why })
    }

    /// Returns the template context for one item.
    pub fn item_context(&self, context: &Value, item: &Value) -> Value {
        let name = match self.over {
            FanOutItems::Matrix(_) => "matrix",
            FanOutItems::Each(_) => "item",
        };
        let mut context = context.clone();
        if let Value::Object(names) = &mut context {
            names.remove("item");
            names.insert(name.into(), item.clone());
        }
        context
    }
}

/// Returns every combination; the last axis changes fastest.
fn combinations(axes: &BTreeMap<String, Vec<Value>>, budget: &Budget) -> Result<Vec<Value>, String> {
    let count = axes.values().try_fold(1usize, |count, values| count.checked_mul(values.len()));
    let count = count.filter(|count| *count <= MAX_ITEMS).ok_or_else(too_many)?;
    // Each value is copied once for every combination of the other axes.
    for (name, values) in axes {
        let written: usize = values.iter().map(|value| value.to_string().len() + name.len()).sum();
        budget.pay_text(written.saturating_mul(count / values.len().max(1)))?;
    }
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

fn listed(list: &Value, context: &Value, budget: &Budget) -> Result<Vec<Value>, String> {
    let list = match list {
        Value::String(template) => template::value(template, context, budget)?,
        Value::Array(items) => {
            let filled = items.iter().map(|item| match item {
                Value::String(template) => template::value(template, context, budget),
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

    fn items(over: FanOutItems) -> Result<Vec<Value>, String> {
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
        assert_eq!(items(FanOutItems::Matrix(axes)).unwrap(), expected);
        let huge = ["a", "b", "c"].map(|axis| (axis.to_owned(), vec![json!(0); 100]));
        assert_eq!(items(FanOutItems::Matrix(BTreeMap::from(huge))), Err("more than 100000 items".into()));
    }

    #[test]
    fn a_list_comes_from_the_file_or_from_a_template() {
        assert_eq!(items(FanOutItems::Each(json!("{{ inputs.l }}"))), Ok(vec![json!(1), json!("x")]));
        assert_eq!(
            items(FanOutItems::Each(json!(["a", "{{ inputs.n }}", 2]))),
            Ok(vec![json!("a"), json!(3), json!(2)])
        );
        assert_eq!(items(FanOutItems::Each(json!("{{ inputs.empty }}"))), Ok(vec![]));
        assert_eq!(
            items(FanOutItems::Each(json!("{{ inputs.n }}"))),
            Err("`foreach` needs a list, and this is a number".into())
        );
        assert!(items(FanOutItems::Each(json!("{{ inputs.nope }}"))).is_err());
    }
}
