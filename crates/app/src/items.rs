//! The names of a fan-out's items for people: their values, in a few characters.

use std::collections::BTreeMap;

use serde_json::Value;
use sprag_lifecycle::{Plan, StepNo};
use sprag_store::{StepRow, is_task};

use crate::App;
use crate::error::Error;
use crate::text::plain;

/// The most items of one run whose values are read.
const MOST_NAMED: usize = 1_000;
/// The most characters of a name.
const LONGEST: usize = 40;

/// Returns the values of those steps that are items of a fan-out, by number: of the first thousand. A task of a board has
/// a key instead.
pub fn item_names<'s>(
    app: &App,
    plan: &Plan,
    steps: impl IntoIterator<Item = &'s StepRow>,
) -> Result<BTreeMap<StepNo, String>, Error> {
    let is_item = |step: &&StepRow| step.item.is_some() && !is_task(plan, step);
    let items: Vec<&StepRow> = steps.into_iter().filter(is_item).take(MOST_NAMED).collect();
    if items.is_empty() {
        return Ok(BTreeMap::new());
    }
    let values = app.store.queries().item_values(&items)?;
    Ok(values.into_iter().map(|(no, value)| (no, item_name(&value))).collect())
}

/// Returns a step's name with the value of its item, if it is one: `test[2] (linux, 1.80)`.
pub fn named_item(step: &str, item: Option<&str>) -> String {
    item.map_or_else(|| step.to_owned(), |item| format!("{step} ({item})"))
}

/// Returns the JSON value of an item as a short name. Of a combination of a matrix it has the values alone.
fn item_name(value: &str) -> String {
    let parsed: Value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
    let scalar = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(_) | Value::Array(_) => None,
        other => Some(other.to_string()),
    };
    let name = match &parsed {
        Value::Object(values) => {
            values.values().map(scalar).collect::<Option<Vec<_>>>().map(|all| all.join(", "))
        }
        other => scalar(other),
    };
    let name = plain(&name.unwrap_or_else(|| parsed.to_string()));
    if name.chars().count() <= LONGEST {
        return name;
    }
    name.chars().take(LONGEST - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::item_name;

    #[test]
    fn an_item_is_named_by_its_value() {
        for (value, name) in [
            (r#""banana""#, "banana"),
            ("3", "3"),
            ("null", "null"),
            (r#"{"os":"linux","rust":"1.80"}"#, "linux, 1.80"),
            (r#"{"os":["a","b"]}"#, r#"{"os":["a","b"]}"#),
            (r#"["a",1]"#, r#"["a",1]"#),
            (r#""two\nlines""#, "two\u{fffd}lines"),
        ] {
            assert_eq!(item_name(value), name);
        }
        let long = item_name(&format!("{:?}", "x".repeat(50)));
        assert_eq!((long.chars().count(), long.ends_with("x…")), (40, true));
    }
}
