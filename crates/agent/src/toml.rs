//! The small part of TOML in which `agents.toml` is written: texts, numbers, lists of texts, and inline tables of texts.

use std::collections::BTreeMap;

/// A value of a key.
#[derive(Debug, PartialEq)]
pub(crate) enum Value {
    Text(String),
    Number(u32),
    Texts(Vec<String>),
    Table(BTreeMap<String, String>),
}

impl Value {
    /// Reads a value that is the rest of a line.
    pub(crate) fn parse(text: &str) -> Result<Value, String> {
        let mut rest = text;
        let value = match rest.chars().next() {
            Some('"' | '\'') => Value::Text(quoted(&mut rest)?),
            Some('[') => {
                rest = rest[1..].trim_start();
                let mut items = Vec::new();
                while !rest.starts_with(']') {
                    items.push(quoted(&mut rest)?);
                    separator(&mut rest, ']')?;
                }
                rest = &rest[1..];
                Value::Texts(items)
            }
            Some('{') => {
                rest = rest[1..].trim_start();
                let mut entries = BTreeMap::new();
                while !rest.starts_with('}') {
                    let (name, after) = rest.split_once('=').ok_or("write `{ NAME = \"value\" }`")?;
                    rest = after.trim_start();
                    let name = name.trim().trim_matches('"').to_owned();
                    if name.is_empty() || name.contains(['\0', ' ']) {
                        return Err(format!("{name:?} is no name of a variable"));
                    }
                    entries.insert(name, quoted(&mut rest)?);
                    separator(&mut rest, '}')?;
                }
                rest = &rest[1..];
                Value::Table(entries)
            }
            _ => {
                let number = rest.parse().map_err(|_| {
                    format!("{rest:?} is neither a text in quotes, a list, a table nor a number")
                })?;
                rest = "";
                Value::Number(number)
            }
        };
        match rest.trim() {
            "" => Ok(value),
            more => Err(format!("{more:?} follows the value")),
        }
    }
}

/// Takes a text in quotes from the front.
fn quoted(rest: &mut &str) -> Result<String, String> {
    let quote = rest.chars().next().filter(|quote| ['"', '\''].contains(quote));
    let quote = quote.ok_or("write texts in quotes")?;
    let mut text = String::new();
    let mut characters = rest.char_indices().skip(1);
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' if quote == '"' => match characters.next() {
                Some((_, escaped @ ('"' | '\\'))) => text.push(escaped),
                Some((_, 'n')) => text.push('\n'),
                Some((_, 't')) => text.push('\t'),
                _ => return Err("the only escapes are \\\\, \\\", \\n and \\t".to_owned()),
            },
            end if end == quote => {
                *rest = rest[at + 1..].trim_start();
                if text.contains('\0') {
                    return Err("a text must not contain a zero byte".to_owned());
                }
                return Ok(text);
            }
            other => text.push(other),
        }
    }
    Err("the text has no closing quote".to_owned())
}

/// Takes a comma, unless the list ends here.
fn separator(rest: &mut &str, end: char) -> Result<(), String> {
    match rest.strip_prefix(',') {
        Some(after) => *rest = after.trim_start(),
        None if rest.starts_with(end) => {}
        None => return Err(format!("write `,` between values and `{end}` after the last one, in one line")),
    }
    Ok(())
}

/// Returns a line without its comment. A `#` inside quotes is part of a text.
pub(crate) fn without_comment(line: &str) -> &str {
    let mut open = None;
    let mut escaped = false;
    for (at, character) in line.char_indices() {
        match (open, character) {
            _ if escaped => escaped = false,
            (Some('"'), '\\') => escaped = true,
            (Some(quote), same) if quote == same => open = None,
            (None, '"' | '\'') => open = Some(character),
            (None, '#') => return &line[..at],
            _ => {}
        }
    }
    line
}
