//! The outputs that a command writes to the file named by `$SPRAG_OUTPUT`, and the variables of `dotenv` files.
//!
//! ```text
//!   key=value                one output, as text
//!   {"key": 3, "more": []}   several outputs, as JSON
//!   key<<END                 the lines up to END, as text
//! ```

use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

/// The largest size of a `dotenv` file.
const MAX_DOTENV_BYTES: u64 = 1 << 20;

/// Parses the outputs that a command has written. A later line replaces an earlier one with the same name.
pub(crate) fn outputs(text: &str) -> Result<Map<String, Value>, String> {
    let mut outputs = Map::new();
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let wrong = |why: &str| Err(format!("line {} of $SPRAG_OUTPUT {why}", at + 1));
        if line.trim().is_empty() {
            continue;
        }
        if line.trim_start().starts_with('{') {
            match serde_json::from_str::<Map<String, Value>>(line) {
                Ok(object) => outputs.extend(object),
                Err(error) => return wrong(&format!("is not a JSON object ({error})")),
            }
            continue;
        }
        let (name, value) = match (line.split_once('='), line.split_once("<<")) {
            (Some((name, value)), None) => (name, value.to_owned()),
            (Some((name, value)), Some((before, _))) if name.len() < before.len() => (name, value.to_owned()),
            (_, Some((name, end))) => {
                let mut value: Vec<&str> = Vec::new();
                loop {
                    match lines.next() {
                        Some((_, line)) if line == end => break,
                        Some((_, line)) => value.push(line),
                        None => return wrong(&format!("has no closing line {end:?}")),
                    }
                }
                (name, value.join("\n"))
            }
            (None, None) => return wrong("is neither name=value nor a JSON object"),
        };
        outputs.insert(name.to_owned(), Value::String(value));
    }
    match outputs.keys().find(|name| !is_name(name)) {
        Some(name) => Err(format!(
            "$SPRAG_OUTPUT: {name:?} is not a name: it has 1 to 64 letters, digits and `_`, and starts with a letter"
        )),
        None => Ok(outputs),
    }
}

fn is_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Reads the variables of a `dotenv` file.
pub(crate) fn dotenv(path: &Path) -> Result<Vec<(String, String)>, String> {
    let mut text = String::new();
    let read = sprag_process::open_regular(path)
        .and_then(|file| file.take(MAX_DOTENV_BYTES + 1).read_to_string(&mut text));
    if let Err(error) = read {
        return Err(format!("the `dotenv` file {}: {error}", path.display()));
    }
    if text.len() as u64 > MAX_DOTENV_BYTES {
        return Err(format!("the `dotenv` file {} has more than {MAX_DOTENV_BYTES} bytes", path.display()));
    }
    variables(&text)
        .map_err(|(line, why)| format!("the `dotenv` file {}, line {line}: {why}", path.display()))
}

/// Parses lines `NAME=value`. A value may stand in quotes; `#` starts a comment. The error has the line's number.
fn variables(text: &str) -> Result<Vec<(String, String)>, (usize, &'static str)> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        let line = line.strip_prefix("export ").map_or(line, str::trim_start);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, value)) = line.split_once('=') else { return Err((at + 1, "expected NAME=value")) };
        let name = name.trim_end();
        let is_variable = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_variable || name.starts_with("SPRAG_") {
            return Err((at + 1, "not a variable's name"));
        }
        let value = value.trim_start();
        let value = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => quoted(&value[1..], quote).ok_or((at + 1, "no closing quote"))?,
            _ => value.split(" #").next().unwrap_or_default().trim_end().to_owned(),
        };
        if value.contains('\0') {
            return Err((at + 1, "the value contains a zero byte"));
        }
        found.push((name.to_owned(), value));
    }
    Ok(found)
}

/// Returns the text up to the closing quote. Double quotes know `\n`, `\t`, `\"` and `\\`.
fn quoted(text: &str, quote: char) -> Option<String> {
    let mut value = String::new();
    let mut characters = text.chars();
    while let Some(next) = characters.next() {
        match next {
            _ if next == quote => return Some(value),
            '\\' if quote == '"' => match characters.next()? {
                'n' => value.push('\n'),
                't' => value.push('\t'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn written_outputs_are_parsed_as_documented() {
        let text = "a=1 = one\n\n{\"n\": 3, \"list\": [1]}\nlong<<END\nx\ny=<<\nEND\na=2\nempty=\nb=c<<d\n";
        let expected = json!({ "a": "2", "n": 3, "list": [1], "long": "x\ny=<<", "empty": "", "b": "c<<d" });
        assert_eq!(outputs(text).map(Value::Object), Ok(expected));
        for (text, why) in [
            ("a=1\nhello\n", "line 2 of $SPRAG_OUTPUT is neither name=value nor a JSON object"),
            ("{\"a\": }\n", "line 1 of $SPRAG_OUTPUT is not a JSON object"),
            ("a<<END\nx\n", "line 1 of $SPRAG_OUTPUT has no closing line \"END\""),
            ("a-b=1", "$SPRAG_OUTPUT: \"a-b\" is not a name"),
            ("=1", "$SPRAG_OUTPUT: \"\" is not a name"),
        ] {
            assert!(outputs(text).unwrap_err().starts_with(why), "{text}: {:?}", outputs(text));
        }
    }

    #[test]
    fn variables_are_parsed_as_documented() {
        let text = "# comment\nA=1\nexport B = \"x \\\"y\\\"\\n\" # more\nC='a $b # c'\nD=x y # z\nE=\n";
        let expected = [("A", "1"), ("B", "x \"y\"\n"), ("C", "a $b # c"), ("D", "x y"), ("E", "")];
        assert_eq!(variables(text), Ok(expected.map(|(a, b)| (a.to_owned(), b.to_owned())).to_vec()));
        assert_eq!(variables("A=1\nnothing"), Err((2, "expected NAME=value")));
        assert_eq!(variables("SPRAG_TOKEN=1"), Err((1, "not a variable's name")));
        assert_eq!(variables("A=\"1"), Err((1, "no closing quote")));
    }
}
