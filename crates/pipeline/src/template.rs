//! Templates: text with values in it, `{{ inputs.issue }}`. There are no statements and no loops.

use std::borrow::Cow;

use serde_json::Value;

use crate::expression::{Budget, Expression};

/// The most values in one text, so that even the largest file is checked quickly.
const MAX_VALUES: usize = 200;

/// A part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece<'t> {
    /// Text that is copied unchanged.
    Literal(Cow<'t, str>),
    /// The expression between `{{` and `}}`.
    Value(&'t str),
}

/// The error of a text that is not a valid template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Malformed {
    /// The part of the text with the mistake.
    pub(crate) part: String,
    pub(crate) message: String,
    pub(crate) help: &'static str,
}

const RAW_HELP: &str = "to write `{{` as it is: {% raw %}{{ … }}{% endraw %}";
/// Words that start a statement of the template language. Other text after `{%` is literal, as in `date +{%Y}`.
const STATEMENTS: [&str; 17] = [
    "if", "elif", "else", "endif", "for", "endfor", "set", "endset", "with", "endwith", "macro", "block",
    "include", "import", "from", "extends", "filter",
];

/// Splits a text into literals and expressions.
pub(crate) fn split(text: &str) -> Result<Vec<Piece<'_>>, Malformed> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("{{").into_iter().chain(rest.find("{%")).min() {
        if rest[at..].starts_with("{{") {
            push_literal(&mut pieces, &rest[..at]);
            let inside = &rest[at + 2..];
            let Some(length) = expression_length(inside) else {
                let part = first_line(&rest[at..]);
                return Err(Malformed { part, message: "`{{` without its `}}`".into(), help: RAW_HELP });
            };
            let expression = inside[..length].trim();
            if let Err(why) = Expression::read(expression) {
                let part = rest[at..at + length + 4].to_owned();
                let message = format!("not an expression: {why}");
                return Err(Malformed { part, message, help: RAW_HELP });
            }
            if pieces.len() >= 2 * MAX_VALUES {
                let part = rest[at..at + length + 4].to_owned();
                let message = format!("more than {MAX_VALUES} values in one text");
                return Err(Malformed { part, message, help: "move the text to a file, or split it" });
            }
            pieces.push(Piece::Value(expression));
            rest = &inside[length + 2..];
            continue;
        }
        match tag(&rest[at..]) {
            Some(("raw", length)) => {
                push_literal(&mut pieces, &rest[..at]);
                let raw = &rest[at + length..];
                let Some((end, end_length)) = find_endraw(raw) else {
                    let part = first_line(&rest[at..]);
                    return Err(Malformed {
                        part,
                        message: "`{% raw %}` without its `{% endraw %}`".into(),
                        help: RAW_HELP,
                    });
                };
                push_literal(&mut pieces, &raw[..end]);
                rest = &raw[end + end_length..];
            }
            Some((word, length)) if STATEMENTS.contains(&word) => {
                return Err(Malformed {
                    part: rest[at..at + length].to_owned(),
                    message: format!("templates contain values, not statements such as `{word}`"),
                    help: "use an expression: {{ a if condition else b }}",
                });
            }
            _ => {
                push_literal(&mut pieces, &rest[..at + 2]);
                rest = &rest[at + 2..];
            }
        }
    }
    push_literal(&mut pieces, rest);
    Ok(pieces)
}

/// Appends text to the preceding literal, so that a literal `{%` does not split it.
fn push_literal<'t>(pieces: &mut Vec<Piece<'t>>, text: &'t str) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(Piece::Literal(before)) => before.to_mut().push_str(text),
        _ => pieces.push(Piece::Literal(Cow::Borrowed(text))),
    }
}

/// Returns the distance to the `}}` that ends an expression, ignoring those inside its strings and maps.
fn expression_length(text: &str) -> Option<usize> {
    let mut quote = None;
    let mut depth = 0usize;
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match (quote, byte) {
            (Some(_), b'\\') => {
                bytes.next();
            }
            (Some(open), _) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, b'{') => depth += 1,
            (None, b'}') if depth > 0 => depth -= 1,
            (None, b'}') if text[at..].starts_with("}}") => return Some(at),
            _ => {}
        }
    }
    None
}

/// Returns the word of a `{% word … %}` at the start of the text, and the length of the whole tag.
fn tag(text: &str) -> Option<(&str, usize)> {
    let inside = text.strip_prefix("{%")?;
    let end = inside.find("%}")?;
    let word = inside[..end].trim_start_matches('-').trim_start();
    let word = &word[..word.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(word.len())];
    Some((word, end + 4))
}

fn find_endraw(text: &str) -> Option<(usize, usize)> {
    text.match_indices("{%").find_map(|(at, _)| match tag(&text[at..]) {
        Some(("endraw", length)) => Some((at, length)),
        _ => None,
    })
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// Returns the expression of a condition, with or without braces.
pub(crate) fn condition(text: &str) -> Result<&str, String> {
    let text = text.trim();
    let inside = text.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}")).unwrap_or(text).trim();
    Expression::read(inside).map(|_| inside)
}

/// Returns whether a condition reads the item of a fan-out.
pub(crate) fn reads_item(text: &str) -> bool {
    let of_item = |name: &String| {
        ["item", "item_index", "matrix"].contains(&name.split('.').next().unwrap_or_default())
    };
    condition(text).map(names).unwrap_or_default().iter().any(of_item)
}

/// Returns whether a condition holds.
pub(crate) fn holds(text: &str, context: &Value, budget: &Budget) -> Result<bool, String> {
    Expression::read(condition(text)?)?.holds(context, budget)
}

/// Returns the names that an expression uses from the context, with their dots: `inputs.issue`.
pub(crate) fn names(expression: &str) -> Vec<String> {
    Expression::read(expression).map(|expression| expression.names()).unwrap_or_default()
}

/// Evaluates an expression to JSON. An undefined value is an error.
pub(crate) fn evaluate(expression: &str, context: &Value, budget: &Budget) -> Result<Value, String> {
    Expression::read(expression)?.evaluate(context, budget)
}

/// Converts a value to text.
pub(crate) fn as_text(value: Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text),
        Value::Null => Err("it is null, which has no text form".into()),
        other => Ok(other.to_string()),
    }
}

/// Renders the template as text.
pub(crate) fn text(template: &str, context: &Value, budget: &Budget) -> Result<String, String> {
    let mut filled = String::new();
    for piece in split(template).map_err(|malformed| malformed.message)? {
        match piece {
            Piece::Literal(text) => filled.push_str(&text),
            Piece::Value(expression) => {
                let value = evaluate(expression, context, budget).and_then(as_text);
                let value = value.and_then(|value| budget.pay_text(value.len()).map(|()| value));
                filled.push_str(&value.map_err(|why| value_error(expression, &why))?);
            }
        }
    }
    Ok(filled)
}

/// Renders the template. A lone `{{ x }}` keeps its type, everything else becomes text.
pub(crate) fn value(template: &str, context: &Value, budget: &Budget) -> Result<Value, String> {
    match split(template).as_deref() {
        Ok([Piece::Value(expression)]) => {
            evaluate(expression, context, budget).map_err(|why| value_error(expression, &why))
        }
        _ => text(template, context, budget).map(Value::String),
    }
}

/// Returns the error message about the value of an expression.
pub(crate) fn value_error(expression: &str, why: &str) -> String {
    /// The most characters of the expression that are shown.
    const SHOWN: usize = 200;
    let shown: String = expression.chars().take(SHOWN).collect();
    let more = if shown.len() < expression.len() { "…" } else { "" };
    format!("`{{{{ {shown}{more} }}}}`: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_split_into_literals_and_values() {
        let lit = |text: &'static str| Piece::Literal(text.into());
        for (text, pieces) in [
            ("plain ${#x} {#y#} {%s}", vec![lit("plain ${#x} {#y#} {%s}")]),
            ("{{ inputs.x }}", vec![Piece::Value("inputs.x")]),
            ("a {{x}}b", vec![lit("a "), Piece::Value("x"), lit("b")]),
            ("{{ '}}' ~ x }}", vec![Piece::Value("'}}' ~ x")]),
            ("{{ {'a': {'b': 1}} }}!", vec![Piece::Value("{'a': {'b': 1}}"), lit("!")]),
            ("f {% raw %}'{{.State}}'{% endraw %} g", vec![lit("f '{{.State}}' g")]),
        ] {
            assert_eq!(split(text), Ok(pieces), "{text}");
        }
        for (text, message) in [
            ("a {{ x", "`{{` without its `}}`"),
            ("{{.State}}", "not an expression"),
            ("{% if x %}y{% endif %}", "templates contain values, not statements such as `if`"),
            ("{% raw %}", "`{% raw %}` without its"),
            ("{{ }}", "not an expression"),
        ] {
            assert!(split(text).unwrap_err().message.starts_with(message), "{text}: {:?}", split(text));
        }
    }

    #[test]
    fn a_lone_value_keeps_its_type_and_nothing_is_empty_by_accident() {
        let context = json!({ "inputs": { "n": 3, "list": [1, 2], "none": null, "s": "x" } });
        for (template, expected) in [
            ("{{ inputs.n }}", Ok(json!(3))),
            (" {{ inputs.n }}", Ok(json!(" 3"))),
            ("{{ inputs.list }}", Ok(json!([1, 2]))),
            ("l={{ inputs.list }}", Ok(json!("l=[1,2]"))),
            ("{{ inputs.none }}", Ok(json!(null))),
            ("{{ inputs.nope | default('d') }}", Ok(json!("d"))),
            ("{{ 'a' if inputs.n > 2 else 'b' }}", Ok(json!("a"))),
            ("{{ inputs.nope }}", Err(())),
            ("{{ nope.nope }}", Err(())),
            ("x{{ inputs.none }}", Err(())),
            ("{{ range(3) }}", Ok(json!([0, 1, 2]))),
            ("{{ length(3) }}", Err(())),
        ] {
            assert_eq!(value(template, &context, &Budget::default()).map_err(|_| ()), expected, "{template}");
        }
    }

    #[test]
    fn names_keep_their_dots() {
        assert_eq!(names("inputs.a.b ~ run.id if steps.x.y"), ["inputs.a.b", "run.id", "steps.x.y"]);
    }
}
