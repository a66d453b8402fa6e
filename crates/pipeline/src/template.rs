//! Templates: text with values in it, `{{ inputs.issue }}`. Values only: no statements, no loops.

use std::borrow::Cow;
use std::sync::LazyLock;

use minijinja::{Environment, Error, UndefinedBehavior};
use serde_json::Value;

/// Steps of evaluation that one expression may take: a template is not a program.
const FUEL: u64 = 50_000;

/// Values that one text may hold, so that a file at its largest is still checked at once.
const MAX_VALUES: usize = 200;

/// A part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece<'t> {
    /// Text as it stands.
    Literal(Cow<'t, str>),
    /// The expression between `{{` and `}}`.
    Value(&'t str),
}

/// Why a text is not a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Malformed {
    /// The part of the text that is to blame.
    pub(crate) part: String,
    pub(crate) message: String,
    pub(crate) help: &'static str,
}

const RAW_HELP: &str = "to write `{{` as it is: {% raw %}{{ … }}{% endraw %}";
/// Words that begin a statement of the template language; other text after `{%` is text, as in `date +{%Y}`.
const STATEMENTS: [&str; 17] = [
    "if", "elif", "else", "endif", "for", "endfor", "set", "endset", "with", "endwith", "macro", "block",
    "include", "import", "from", "extends", "filter",
];

/// Splits a text into what stands as it is and what is filled in.
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
            if let Err(error) = compile(expression) {
                let part = rest[at..at + length + 4].to_owned();
                let message = format!("not an expression: {}", describe(&error));
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
                    message: format!("templates hold values, not statements such as `{word}`"),
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

/// Adds text to the literal before it, so that a `{%` that means nothing splits nothing.
fn push_literal<'t>(pieces: &mut Vec<Piece<'t>>, text: &'t str) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(Piece::Literal(before)) => before.to_mut().push_str(text),
        _ => pieces.push(Piece::Literal(Cow::Borrowed(text))),
    }
}

/// How far it is to the `}}` that ends an expression, past those inside its strings and maps.
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

/// The word of a `{% word … %}` at the start of the text, and the length of the whole.
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

/// The expression of a condition, which may stand in braces or not.
pub(crate) fn condition(text: &str) -> Result<&str, String> {
    let text = text.trim();
    let inside = text.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}")).unwrap_or(text).trim();
    compile(inside).map(|_| inside).map_err(|error| describe(&error))
}

/// Whether a condition holds.
pub(crate) fn holds(text: &str, context: &Value) -> Result<bool, String> {
    let context = minijinja::Value::from(minijinja::value::Serde(context));
    let value = compile(condition(text)?).and_then(|e| e.eval(context)).map_err(|error| describe(&error))?;
    if value.is_undefined() { Err("it is undefined".into()) } else { Ok(value.is_true()) }
}

/// The names that an expression takes from outside, with their dots: `inputs.issue`.
pub(crate) fn names(expression: &str) -> Vec<String> {
    let mut names: Vec<String> =
        compile(expression).map(|e| e.undeclared_variables(true).into_iter().collect()).unwrap_or_default();
    names.sort();
    names
}

/// The JSON value of an expression; an undefined one is an error.
pub(crate) fn evaluate(expression: &str, context: &Value) -> Result<Value, String> {
    let context = minijinja::Value::from(minijinja::value::Serde(context));
    let value = compile(expression).and_then(|e| e.eval(context)).map_err(|error| describe(&error))?;
    if value.is_undefined() {
        return Err("it is undefined".into());
    }
    serde_json::to_value(&value).map_err(|error| error.to_string())
}

/// The text of a value where text is wanted.
pub(crate) fn as_text(value: Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text),
        Value::Null => Err("it is null, which has no text".into()),
        other => Ok(other.to_string()),
    }
}

/// The template filled in, as text.
pub(crate) fn text(template: &str, context: &Value) -> Result<String, String> {
    let mut filled = String::new();
    for piece in split(template).map_err(|malformed| malformed.message)? {
        match piece {
            Piece::Literal(text) => filled.push_str(&text),
            Piece::Value(expression) => {
                let value = evaluate(expression, context).and_then(as_text);
                filled.push_str(&value.map_err(|why| format!("`{{{{ {expression} }}}}`: {why}"))?);
            }
        }
    }
    Ok(filled)
}

/// The template filled in: a lone `{{ x }}` keeps its type, all else is text.
pub(crate) fn value(template: &str, context: &Value) -> Result<Value, String> {
    match split(template).as_deref() {
        Ok([Piece::Value(expression)]) => {
            evaluate(expression, context).map_err(|why| format!("`{{{{ {expression} }}}}`: {why}"))
        }
        _ => text(template, context).map(Value::String),
    }
}

static EXPRESSIONS: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(FUEL));
    // Filters and tests only: a function such as `range` makes much out of nothing.
    let functions: Vec<String> = environment.globals().map(|(name, _)| name.to_owned()).collect();
    for function in functions {
        environment.remove_global(&function);
    }
    environment
});

fn compile(expression: &str) -> Result<minijinja::Expression<'static, 'static>, Error> {
    EXPRESSIONS.compile_expression_owned(expression.to_owned())
}

/// The error without the place in the expression, which is one line.
fn describe(error: &Error) -> String {
    let kind = error.kind().to_string();
    error.detail().map_or(kind.clone(), |detail| format!("{kind}: {detail}"))
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
            ("{% if x %}y{% endif %}", "templates hold values, not statements such as `if`"),
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
            ("{{ range(10) }}", Err(())),
        ] {
            assert_eq!(value(template, &context).map_err(|_| ()), expected, "{template}");
        }
    }

    #[test]
    fn names_keep_their_dots() {
        assert_eq!(names("inputs.a.b ~ run.id if steps.x.y"), ["inputs.a.b", "run.id", "steps.x.y"]);
    }
}
