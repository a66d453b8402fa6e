//! The name and the labels of a run: a person or a program gives them when it starts the run, to find it again.
//!
//! The run's context keeps them. A child run has a copy of its parent's context, but no name and no labels of its own.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sprag_pipeline::{Diagnostics, Pipeline};
use sprag_store::RunRow;

use crate::error::Error;

/// The most characters of a run's name.
const LONGEST_NAME: usize = 128;
/// The most labels of a run.
const MOST_LABELS: usize = 32;
/// The most characters of a label's key, and of its value.
const LONGEST_LABEL: usize = 64;

/// The name and the labels of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunLabels {
    /// The name, of 1 to 128 characters; absent if the run has none. Several runs may have the same.
    pub name: Option<String>,
    /// The labels by their keys, at most 32. Keys and values have 1 to 64 characters.
    pub labels: BTreeMap<String, String>,
}

impl RunLabels {
    /// Returns the name and the labels of a run.
    pub fn of(row: &RunRow) -> RunLabels {
        if row.parent.is_some() { RunLabels::default() } else { RunLabels::read(&row.context) }
    }

    /// Adds the name and the labels that the run's pipeline gives it, where the caller has given none. The inputs must
    /// be complete.
    pub fn or_those_of(
        mut self,
        pipeline: &Pipeline,
        inputs: &BTreeMap<String, Value>,
    ) -> Result<RunLabels, Diagnostics> {
        let own = pipeline.run_labels(inputs)?;
        if let (None, Some(name)) = (&self.name, own.name) {
            pipeline.check_run_name(&name)?;
            self.name = Some(name);
        }
        for (key, value) in own.labels {
            self.labels.entry(key).or_insert(value);
        }
        Ok(self)
    }

    /// Reads the name and the labels in the context of a run that has no parent.
    pub(crate) fn read(context: &str) -> RunLabels {
        // Most runs have neither: their contexts need not be parsed.
        if !context.contains("\"name\"") && !context.contains("\"labels\"") {
            return RunLabels::default();
        }
        let context: Value = serde_json::from_str(context).unwrap_or_default();
        let labels = context["labels"].as_object().into_iter().flatten();
        RunLabels {
            name: context["name"].as_str().map(str::to_owned),
            labels: labels
                .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                .collect(),
        }
    }

    /// Adds the name and the labels to the context of a run.
    pub(crate) fn write(&self, context: &mut Map<String, Value>) {
        if let Some(name) = &self.name {
            context.insert("name".into(), json!(name));
        }
        if !self.labels.is_empty() {
            context.insert("labels".into(), json!(self.labels));
        }
    }

    /// Refuses a name or labels that are too long, too many, or cannot be shown.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let fits = |text: &str, most: usize| {
            (1..=most).contains(&text.chars().count()) && !text.chars().any(char::is_control)
        };
        if self.name.as_deref().is_some_and(|name| name.trim().is_empty() || !fits(name, LONGEST_NAME)) {
            return Err(Error::field(
                "name",
                format!("it must be 1–{LONGEST_NAME} characters, without control characters"),
            ));
        }
        if self.labels.len() > MOST_LABELS {
            return Err(Error::field("labels", format!("a run has at most {MOST_LABELS}")));
        }
        let is_wrong = |(key, value): &(&String, &String)| {
            key.contains(['=', ','])
                || value.contains(',')
                || ![key, value].iter().all(|text| fits(text, LONGEST_LABEL))
        };
        if let Some((key, value)) = self.labels.iter().find(is_wrong) {
            let rule =
                format!("keys and values must be 1–{LONGEST_LABEL} characters, without control characters");
            return Err(Error::field(
                "labels",
                format!("{key:?}={value:?}: {rule} and commas; a key has no `=`"),
            ));
        }
        Ok(())
    }

    /// Whether the run has all of these labels.
    pub(crate) fn has(&self, wanted: &BTreeMap<String, String>) -> bool {
        wanted.iter().all(|(key, value)| self.labels.get(key) == Some(value))
    }
}

/// Reads labels such as `team=web`. The same key twice is an error.
pub fn parse_labels<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<BTreeMap<String, String>, Error> {
    let mut labels = BTreeMap::new();
    for text in texts {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| Error::field("label", format!("{text:?} is not like KEY=VALUE")))?;
        if labels.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(Error::field("label", format!("{key:?} is given twice")));
        }
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labelled(name: Option<&str>, labels: &[(&str, &str)]) -> RunLabels {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        RunLabels { name: name.map(str::to_owned), labels }
    }

    #[test]
    fn names_and_labels_have_bounds() {
        let long = "é".repeat(64);
        for fine in [
            RunLabels::default(),
            labelled(Some("Nightly build"), &[("team", "web"), ("url", "a=b")]),
            labelled(Some(&"n".repeat(128)), &[(&long, &long)]),
        ] {
            fine.check().expect("fine");
        }
        for (wrong, field) in [
            (labelled(Some(""), &[]), "name"),
            (labelled(Some("  "), &[]), "name"),
            (labelled(Some(&"n".repeat(129)), &[]), "name"),
            (labelled(Some("a\u{1b}[2J"), &[]), "name"),
            (labelled(None, &[("", "x")]), "labels"),
            (labelled(None, &[("x", "")]), "labels"),
            (labelled(None, &[("a=b", "x")]), "labels"),
            (labelled(None, &[("a", "x,y")]), "labels"),
            (labelled(None, &[("a", "x\n")]), "labels"),
            (labelled(None, &[(&"k".repeat(65), "x")]), "labels"),
        ] {
            assert_eq!(wrong.check().expect_err("wrong").field, Some(field), "{wrong:?}");
        }
        let many: Vec<String> = (0..33).map(|n| format!("k{n}=v")).collect();
        let labels = parse_labels(many.iter().map(String::as_str)).expect("read");
        assert!(RunLabels { name: None, labels }.check().is_err());
    }

    #[test]
    fn a_context_keeps_them_beside_the_rest() {
        let given = labelled(Some("x"), &[("team", "web")]);
        let mut context = Map::new();
        context.insert("dir".into(), json!("/w"));
        given.write(&mut context);
        let text = Value::Object(context).to_string();
        assert_eq!(RunLabels::read(&text), given);
        assert_eq!(RunLabels::read(r#"{"dir":"/w"}"#), RunLabels::default());
        assert!(given.has(&parse_labels(["team=web"]).expect("read")));
        assert!(!given.has(&parse_labels(["team=core"]).expect("read")));
        assert!(parse_labels(["team"]).is_err() && parse_labels(["a=1", "a=2"]).is_err());
    }
}
