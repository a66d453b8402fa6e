//! The items of a fan-out: the combinations of a matrix, or the items of a list that may come from a template.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::expression::{Budget, kind_of};
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
            FanOutItems::Matrix(axes) => self.combinations(axes, context, budget),
            FanOutItems::Each(list) => listed("`foreach`", list, context, budget),
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

/// The axes of a matrix with their values.
type Axes = BTreeMap<String, Vec<Value>>;
/// One combination of a matrix.
type Combination = Map<String, Value>;

impl FanOut {
    /// Returns the combinations of a matrix, as GitHub Actions does: all combinations of the axes, without those that
    /// fit an entry of `exclude`. Then each entry of `include` extends all combinations that it does not contradict; if
    /// it contradicts all of them, it is a combination of its own.
    fn combinations(
        &self,
        axes: &BTreeMap<String, Value>,
        context: &Value,
        budget: &Budget,
    ) -> Result<Vec<Value>, String> {
        let mut values = Axes::new();
        for (name, written) in axes {
            values.insert(name.clone(), listed(&format!("axis `{name}`"), written, context, budget)?);
        }
        let mut all = product(&values, budget)?;
        for excluded in filled(&self.exclude, context, budget)? {
            budget.pay_values(all.len().saturating_mul(excluded.len()))?;
            all.retain(|one| !excluded.iter().all(|(name, value)| one.get(name) == Some(value)));
        }
        let mut added = Vec::new();
        for included in filled(&self.include, context, budget)? {
            budget.pay_values(all.len().saturating_mul(included.len()))?;
            let fits = |one: &Combination| {
                included.iter().all(|(name, value)| !axes.contains_key(name) || one.get(name) == Some(value))
            };
            let mut used = false;
            for one in all.iter_mut().filter(|one| fits(one)) {
                used = true;
                one.extend(included.clone());
            }
            if !used {
                added.push(included);
            }
        }
        all.extend(added);
        if all.len() > MAX_ITEMS { Err(too_many()) } else { Ok(all.into_iter().map(Value::Object).collect()) }
    }
}

/// Returns entries of `include` or `exclude` with their templates filled in.
fn filled(entries: &[Combination], context: &Value, budget: &Budget) -> Result<Vec<Combination>, String> {
    let fill = |entry: &Combination| -> Result<Combination, String> {
        let entry = entry.iter().map(|(name, value)| {
            let value = match value {
                Value::String(template) => template::value(template, context, budget)?,
                other => other.clone(),
            };
            Ok::<_, String>((name.clone(), value))
        });
        entry.collect()
    };
    entries.iter().map(fill).collect()
}

/// Returns every combination; the last axis changes fastest. Without axes there is none.
fn product(axes: &Axes, budget: &Budget) -> Result<Vec<Combination>, String> {
    if axes.is_empty() {
        return Ok(Vec::new());
    }
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
        picked
    };
    Ok((0..count).map(combination).collect())
}

/// Returns the items of a list, or of the list that a template produces. `what` names it in messages.
fn listed(what: &str, list: &Value, context: &Value, budget: &Budget) -> Result<Vec<Value>, String> {
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
        other => Err(format!("{what} needs a list, and this is {}", kind_of(&other))),
    }
}

fn too_many() -> String {
    format!("more than {MAX_ITEMS} items")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn items(over: FanOutItems) -> Result<Vec<Value>, String> {
        let context = json!({ "inputs": { "l": [1, "x"], "n": 3, "empty": [] } });
        FanOut { over, ..FanOut::default() }.items(&context).map_err(|error| error.why)
    }

    #[test]
    fn a_matrix_gives_every_combination_once() {
        let axes = BTreeMap::from([("os".into(), json!(["l", "m"])), ("v".into(), json!([1, 2]))]);
        let expected = [("l", 1), ("l", 2), ("m", 1), ("m", 2)].map(|(os, v)| json!({ "os": os, "v": v }));
        assert_eq!(items(FanOutItems::Matrix(axes)).unwrap(), expected);
        let huge = ["a", "b", "c"].map(|axis| (axis.to_owned(), json!(vec![0; 100])));
        assert_eq!(items(FanOutItems::Matrix(BTreeMap::from(huge))), Err("more than 100000 items".into()));
    }

    #[test]
    fn a_matrix_includes_and_excludes_as_in_github_actions() {
        let entries = |json: Value| serde_json::from_value::<Vec<Combination>>(json).unwrap();
        let context = json!({ "inputs": { "l": ["cat", "dog"] } });
        let matrix = |axes: Value, include: Value, exclude: Value| {
            let over = FanOutItems::Matrix(serde_json::from_value(axes).unwrap());
            let fan_out =
                FanOut { over, include: entries(include), exclude: entries(exclude), ..FanOut::default() };
            Value::Array(fan_out.items(&context).unwrap())
        };
        // The example of its documentation; axes are ordered by name here.
        let found = matrix(
            json!({ "fruit": ["apple", "pear"], "animal": "{{ inputs.l }}" }),
            json!([
                { "color": "green" }, { "color": "pink", "animal": "cat" },
                { "fruit": "apple", "shape": "circle" }, { "fruit": "banana" },
                { "fruit": "banana", "animal": "cat" },
            ]),
            json!([]),
        );
        assert_eq!(
            found,
            json!([
                { "fruit": "apple", "animal": "cat", "color": "pink", "shape": "circle" },
                { "fruit": "pear", "animal": "cat", "color": "pink" },
                { "fruit": "apple", "animal": "dog", "color": "green", "shape": "circle" },
                { "fruit": "pear", "animal": "dog", "color": "green" },
                { "fruit": "banana" }, { "fruit": "banana", "animal": "cat" },
            ])
        );
        let found = matrix(
            json!({ "os": ["l", "m", "w"], "v": [1, 2] }),
            json!([{ "os": "w", "v": 2 }]),
            json!([{ "os": "m" }, { "os": "w", "v": 2 }]),
        );
        let expected = [("l", 1), ("l", 2), ("w", 1), ("w", 2)].map(|(os, v)| json!({ "os": os, "v": v }));
        assert_eq!(found, json!(expected));
        let only = json!([{ "os": "l" }, { "os": "m" }]);
        assert_eq!(matrix(json!({}), only.clone(), json!([])), only);
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
