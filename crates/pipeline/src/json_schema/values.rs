//! JSON values: equality, comparison, and how messages show them.

use std::io::{self, Write};

use serde_json::{Number, Value};

/// Says which bounds a count breaks: `has fewer than 2 items`, `has more than 3 characters`.
pub(super) fn bounds(what: &str, min: u64, max: u64) -> String {
    let counted = |count: u64| {
        let plural = what.strip_suffix('y').map_or_else(|| format!("{what}s"), |stem| format!("{stem}ies"));
        if count == 1 { format!("{count} {what}") } else { format!("{count} {plural}") }
    };
    match (min, max) {
        (min, u64::MAX) => format!("has fewer than {}", counted(min)),
        (0, max) => format!("has more than {}", counted(max)),
        (min, max) => format!("does not have between {min} and {}", counted(max)),
    }
}

/// The longest text of a value in a message, in characters.
const LONGEST_SHOWN: usize = 80;

/// The beginning of a value's text. The rest of a long value is not even written.
pub(super) fn shown(value: &Value) -> String {
    let mut beginning = Beginning(Vec::new());
    // It is full when it refuses more.
    let _ = serde_json::to_writer(&mut beginning, value);
    let text = String::from_utf8_lossy(&beginning.0);
    match text.char_indices().nth(LONGEST_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into_owned(),
    }
}

/// Takes what a message shows at most, and a little more.
struct Beginning(Vec<u8>);

impl Write for Beginning {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        /// No character has more bytes; one more says that there is more.
        const MOST_BYTES: usize = (LONGEST_SHOWN + 1) * 4;
        let taken = bytes.len().min(MOST_BYTES - self.0.len());
        self.0.extend_from_slice(&bytes[..taken]);
        if taken == 0 && !bytes.is_empty() { Err(io::ErrorKind::WriteZero.into()) } else { Ok(taken) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The work of comparing a value, or of reading all of it.
pub(super) fn weight(value: &Value) -> usize {
    /// So many bytes of a text are as much work as another value.
    const TEXT_BYTES: usize = 64;
    let (mut weight, mut todo) = (0, vec![value]);
    while let Some(value) = todo.pop() {
        weight += 1;
        match value {
            Value::String(text) => weight += text.len() / TEXT_BYTES,
            Value::Array(items) => todo.extend(items),
            Value::Object(entries) => {
                weight += entries.keys().map(|key| 1 + key.len() / TEXT_BYTES).sum::<usize>();
                todo.extend(entries.values());
            }
            _ => {}
        }
    }
    weight
}

/// Returns the number as an integer if it has no fraction and is one that can be told apart from its neighbours.
fn whole(number: &Number) -> Option<i128> {
    /// Above this a floating-point number has no fraction that could be seen.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let integer = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    let float = || number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() <= EXACT);
    integer.or_else(|| float().map(|float| float as i128))
}

pub(super) fn is_whole(number: &Number) -> bool {
    whole(number).is_some() || number.as_f64().is_some_and(|float| float.is_finite() && float.fract() == 0.0)
}

pub(super) fn compare(a: &Number, b: &Number) -> Option<std::cmp::Ordering> {
    match (whole(a), whole(b)) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => a.as_f64()?.partial_cmp(&b.as_f64()?),
    }
}

pub(super) fn is_multiple(number: &Number, unit: &Number) -> bool {
    /// Decimal fractions are not exact: 0.3 is not quite three times 0.1.
    const TOLERANCE: f64 = 1e-9;
    match (whole(number), whole(unit)) {
        (Some(number), Some(unit)) => number % unit == 0,
        _ => {
            let times = number.as_f64().zip(unit.as_f64()).map(|(number, unit)| number / unit);
            times.is_some_and(|times| (times - times.round()).abs() < TOLERANCE)
        }
    }
}

/// Returns whether two values are the same JSON value: `1` and `1.0` are.
pub(super) fn is_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare(a, b) == Some(std::cmp::Ordering::Equal),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| is_equal(a, b)))
        }
        _ => a == b,
    }
}

/// Returns a text that is the same for equal values, and for no others.
pub(super) fn canonical(value: &Value) -> String {
    match value {
        Value::Number(number) => {
            whole(number).map_or_else(|| number.to_string(), |number| number.to_string())
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(canonical).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(object) => {
            let mut parts: Vec<String> = object
                .iter()
                .map(|(name, value)| format!("{}:{}", Value::String(name.clone()), canonical(value)))
                .collect();
            parts.sort();
            format!("{{{}}}", parts.join(","))
        }
        other => other.to_string(),
    }
}
