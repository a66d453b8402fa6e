//! Parses a script's YAML, in the subset that scripts need, into a JSON value.

use granit_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

/// The deepest nesting: more than any script, with room for a tool's input.
const MAX_DEPTH: usize = 40;

/// An open list or map.
enum Open {
    List(Vec<Value>),
    Map(Map<String, Value>, Option<String>),
}

/// Parses one document, or returns the line of the mistake and its description. Anchors and tags are refused.
pub(super) fn read(text: &str) -> Result<Value, (usize, String)> {
    let mut open: Vec<Open> = Vec::new();
    let mut root = None;
    for next in Parser::new_from_str(text) {
        let (event, span) =
            next.map_err(|error| (error.marker().line(), format!("not YAML: {}", error.info())))?;
        let line = span.start.line();
        let wrong = |problem: &str| Err((line, problem.to_owned()));
        let done = match event {
            Event::Scalar(text, style, anchor, tag) => {
                if anchor > 0 || tag.is_some() {
                    return wrong("a script has no anchors and no tags");
                }
                if style == ScalarStyle::Plain { plain(&text) } else { Value::String(text.into_owned()) }
            }
            Event::SequenceStart(_, anchor, _) | Event::MappingStart(_, anchor, _) if anchor > 0 => {
                return wrong("a script has no anchors");
            }
            Event::SequenceStart(..) | Event::MappingStart(..) if open.len() >= MAX_DEPTH => {
                return wrong("this is nested too deeply");
            }
            Event::SequenceStart(..) => {
                open.push(Open::List(Vec::new()));
                continue;
            }
            Event::MappingStart(..) => {
                open.push(Open::Map(Map::new(), None));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(Open::List(items)) => Value::Array(items),
                Some(Open::Map(entries, _)) => Value::Object(entries),
                None => return wrong("an end without a beginning"),
            },
            Event::Alias(_) => return wrong("a script has no aliases"),
            _ => continue,
        };
        match open.last_mut() {
            None if root.is_some() => return wrong("a second document"),
            None => root = Some(done),
            Some(Open::List(items)) => items.push(done),
            Some(Open::Map(entries, key)) => match key.take() {
                Some(name) => {
                    if entries.insert(name.clone(), done).is_some() {
                        return wrong(&format!("{name} is there twice"));
                    }
                }
                None => match done {
                    Value::String(name) => *key = Some(name),
                    other => *key = Some(other.to_string()),
                },
            },
        }
    }
    root.ok_or((1, "the script is empty".to_owned()))
}

/// Returns the value of a word without quotes.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" => Value::Null,
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        // Numbers follow JSON's syntax; everything else is a text.
        _ => match serde_json::from_str::<Value>(text) {
            Ok(number @ Value::Number(_)) => number,
            _ => Value::String(text.to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_becomes_json() {
        let text = "a: [1, -2.5, true, null, ~, 'x: y', \"q\\n\", plain words]\nb:\n  c: |\n    two\n    lines\n  1: one\n";
        let expected = json!({"a": [1, -2.5, true, null, null, "x: y", "q\n", "plain words"],
            "b": {"c": "two\nlines\n", "1": "one"}});
        assert_eq!(read(text), Ok(expected.clone()));
        assert_eq!(read(&expected.to_string()), Ok(expected), "JSON is YAML");
    }

    #[test]
    fn mistakes_have_a_line() {
        for (text, line, word) in [
            ("a: 1\na: 2", 2, "twice"),
            ("a: &x 1", 1, "anchors"),
            ("a: !t 1", 1, "tags"),
            ("a: [1", 1, "not YAML"),
            ("", 1, "empty"),
            ("a\n---\nb", 3, "second document"),
        ] {
            let (found, problem) = read(text).expect_err(text);
            assert!(problem.contains(word), "{text}: {problem}");
            assert!(found.abs_diff(line) <= 1, "{text}: line {found}");
        }
        assert!(read(&"[".repeat(100)).is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[-:{}\\[\\]a1 \n'\"&*!|,]{0,60}") {
            read(&text).ok();
        }
    }
}
