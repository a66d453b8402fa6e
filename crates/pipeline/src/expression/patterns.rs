//! Regular expressions and patterns of file names. Matching takes linear time, and pays for it.

use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};

use super::budget::Budget;
use super::filters::{Filter, Options};
use super::value::{Outcome, kind, text};

/// The longest pattern, in bytes.
const MAX_PATTERN: usize = 1_000;
/// The most bytes of a compiled pattern.
const MAX_COMPILED: usize = 1 << 20;
/// The cost of compiling a pattern.
const COMPILE_COST: u64 = 128 << 10;
/// The cost of matching one byte.
const MATCH_COST: u64 = 16;

/// The pattern that was compiled last. The items of a list are matched with one pattern.
#[derive(Debug, Default)]
pub(super) struct LastPattern(std::cell::RefCell<Option<(String, Regex)>>);

impl LastPattern {
    /// Returns the compiled pattern.
    fn get(&self, pattern: &str, budget: &Budget) -> Outcome<Regex> {
        if let Some((known, regex)) = &*self.0.borrow()
            && known == pattern
        {
            return Ok(regex.clone());
        }
        if pattern.len() > MAX_PATTERN {
            return Err(format!("a pattern has at most {MAX_PATTERN} bytes"));
        }
        budget.pay(COMPILE_COST)?;
        let regex = RegexBuilder::new(pattern)
            .size_limit(MAX_COMPILED)
            .dfa_size_limit(MAX_COMPILED)
            .build()
            .map_err(|error| format!("not a regular expression: {}", last_line(&error.to_string())))?;
        *self.0.borrow_mut() = Some((pattern.to_owned(), regex.clone()));
        Ok(regex)
    }
}

/// Returns the last line of an error, which says what is wrong.
fn last_line(error: &str) -> String {
    error.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// Checks a pattern that is known when a file is loaded.
pub(crate) fn check_pattern(pattern: &str) -> Result<(), String> {
    LastPattern::default().get(pattern, &Budget::default()).map(drop)
}

/// Returns whether a whole text fits a pattern, as the `pattern` of an input asks.
pub(crate) fn fits_pattern(pattern: &str, text: &str) -> Result<bool, String> {
    let budget = Budget::default();
    budget.pay((text.len() as u64).saturating_mul(MATCH_COST))?;
    Ok(LastPattern::default().get(&format!("^(?:{pattern})$"), &budget)?.is_match(text))
}

/// Returns whether a text fits: from its start if `from_start`.
pub(super) fn is_match(value: &Value, pattern: &Value, from_start: bool, budget: &Budget) -> Outcome<bool> {
    let (value, pattern) = both(value, pattern, budget)?;
    budget.pay((value.len() as u64).saturating_mul(MATCH_COST))?;
    let regex = budget.patterns.get(pattern, budget)?;
    Ok(if from_start {
        regex.find(value).is_some_and(|found| found.start() == 0)
    } else {
        regex.is_match(value)
    })
}

/// Returns whether a path fits a pattern with `*`, `**`, `?` and `[…]`.
pub(super) fn is_glob(value: &Value, pattern: &Value, budget: &Budget) -> Outcome<bool> {
    let (value, pattern) = both(value, pattern, budget)?;
    budget.pay((value.len() as u64).saturating_mul(MATCH_COST))?;
    let regex = budget.patterns.get(&of_glob(pattern), budget)?;
    Ok(regex.is_match(value))
}

/// Checks a pattern of names that is known when a file is loaded.
pub(crate) fn check_glob(pattern: &str) -> Result<(), String> {
    LastPattern::default().get(&of_glob(pattern), &Budget::default()).map(drop)
}

/// Returns whether a text fits a pattern with `*`, `**`, `?` and `[…]` that was checked before.
pub(crate) fn fits_glob(pattern: &str, text: &str) -> bool {
    LastPattern::default().get(&of_glob(pattern), &Budget::default()).is_ok_and(|regex| regex.is_match(text))
}

fn both<'v>(value: &'v Value, pattern: &'v Value, budget: &Budget) -> Outcome<(&'v str, &'v str)> {
    budget.pay_values(1)?;
    match (value, pattern) {
        (Value::String(value), Value::String(pattern)) => Ok((value, pattern)),
        (Value::String(_), other) => Err(format!("a pattern must be a text, not {}", kind(other))),
        (other, _) => Err(format!("only a text can be matched with a pattern, not {}", kind(other))),
    }
}

/// Returns the regular expression of a pattern of file names.
fn of_glob(glob: &str) -> String {
    let mut regex = String::from("^");
    let mut rest = glob;
    while let Some(next) = rest.chars().next() {
        let (part, length) = match next {
            '*' if rest.starts_with("**/") => ("(?:[^/]+/)*".to_owned(), 3),
            '*' if rest.starts_with("**") => (".*".to_owned(), 2),
            '*' => ("[^/]*".to_owned(), 1),
            '?' => ("[^/]".to_owned(), 1),
            '[' => match rest.find(']').filter(|end| *end > 1) {
                Some(end) => {
                    let inside = &rest[1..end];
                    let (not, inside) = match inside.strip_prefix(['!', '^']) {
                        Some(inside) => ("^", inside),
                        None => ("", inside),
                    };
                    let escaped: String =
                        inside
                            .chars()
                            .map(|c| {
                                if c == '-' || c.is_alphanumeric() { c.to_string() } else { format!("\\{c}") }
                            })
                            .collect();
                    (format!("[{not}{escaped}]"), end + 1)
                }
                None => (regex::escape("["), 1),
            },
            other => (regex::escape(other.encode_utf8(&mut [0; 4])), other.len_utf8()),
        };
        regex.push_str(&part);
        rest = &rest[length..];
    }
    regex.push('$');
    regex
}

/// Applies a filter with a regular expression.
pub(super) fn apply(
    filter: Filter,
    value: &Value,
    options: &Options<'_, '_>,
    budget: &Budget,
) -> Outcome<Value> {
    let value = text(value, budget)?;
    let value = &*value;
    budget.pay((value.len() as u64).saturating_mul(MATCH_COST))?;
    let regex = budget.patterns.get(options.text("pattern")?.unwrap_or_default(), budget)?;
    match filter {
        Filter::RegexReplace => {
            let with = options.text("with")?.unwrap_or_default();
            let count = regex.find_iter(value).count();
            // A group can insert the whole text again.
            let groups = with.bytes().filter(|byte| *byte == b'$').count();
            let each = with.len().saturating_add(groups.saturating_mul(value.len()));
            budget.pay_text(value.len().saturating_add(count.saturating_mul(each)))?;
            Ok(regex.replace_all(value, with).into_owned().into())
        }
        Filter::RegexFindAll => {
            let mut all = Vec::new();
            for found in regex.captures_iter(value) {
                all.push(captured(&regex, &found, budget)?);
            }
            Ok(Value::Array(all))
        }
        _ => match regex.captures(value) {
            Some(found) => captured(&regex, &found, budget),
            None => Ok(Value::Null),
        },
    }
}

/// Returns a match: the named groups as an object, else the group if there is one, else the groups as a list if there
/// are several, else the whole match.
fn captured(regex: &Regex, found: &regex::Captures<'_>, budget: &Budget) -> Outcome<Value> {
    let part = |at: usize| -> Outcome<Value> {
        let text = found.get(at).map(|part| part.as_str());
        budget.pay_text(text.map_or(0, str::len))?;
        Ok(text.map_or(Value::Null, Value::from))
    };
    let names: Vec<(usize, &str)> =
        regex.capture_names().enumerate().filter_map(|(at, name)| Some((at, name?))).collect();
    if !names.is_empty() {
        let mut map = Map::new();
        for (at, name) in names {
            map.insert(name.to_owned(), part(at)?);
        }
        return Ok(Value::Object(map));
    }
    match found.len() {
        1 => part(0),
        2 => part(1),
        count => (1..count).map(part).collect::<Outcome<Vec<_>>>().map(Value::Array),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_file_names_fit_as_in_a_shell() {
        for (glob, path, expected) in [
            ("*.rs", "a.rs", true),
            ("*.rs", "src/a.rs", false),
            ("**/*.rs", "src/deep/a.rs", true),
            ("**/*.rs", "a.rs", true),
            ("src/**", "src/a/b", true),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("a.b", "axb", false),
            ("[", "[", true),
            ("é*", "école", true),
        ] {
            let found = is_glob(&path.into(), &glob.into(), &Budget::default());
            assert_eq!(found, Ok(expected), "{glob} {path}");
        }
    }
}
