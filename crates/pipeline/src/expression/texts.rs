//! Filters of texts and numbers. They pay for results before making them.

use serde_json::Value;

use super::budget::{Budget, VALUE_BYTES};
use super::filters::{Filter, Options};
use super::value::{Numeric, Outcome, is_true, json_text, kind, text};

/// The deepest indentation.
const MAX_WIDTH: i128 = 1_000;
/// The largest precision of `round`, in digits.
const MAX_DIGITS: i128 = 300;

/// Applies a filter of texts.
pub(super) fn apply(
    filter: Filter,
    value: &Value,
    options: &Options<'_, '_>,
    budget: &Budget,
) -> Outcome<Value> {
    let value = text(value, budget)?;
    let value = &*value;
    // A letter can take up to three times as many bytes in the other case.
    budget.pay_text(value.len().saturating_mul(3))?;
    Ok(match filter {
        Filter::Lower => value.to_lowercase().into(),
        Filter::Upper => value.to_uppercase().into(),
        Filter::Capitalize => capitalized(value).into(),
        Filter::Title => {
            let parts = value.split_inclusive(|c: char| c.is_whitespace() || "-([{<".contains(c));
            parts.map(capitalized).collect::<String>().into()
        }
        Filter::Trim => match options.text("characters")? {
            Some(characters) => value.trim_matches(|c| characters.contains(c)).into(),
            None => value.trim().into(),
        },
        Filter::Lines => {
            budget.pay_values(value.lines().count())?;
            Value::Array(value.lines().map(Value::from).collect())
        }
        Filter::Split => split(value, options, budget)?,
        Filter::Replace => replaced(value, options, budget)?.into(),
        Filter::UrlEncode => url_encoded(value).into(),
        _ => indented(value, options, budget)?.into(),
    })
}

/// Returns a text for a URL. As in Jinja, `/` stays.
fn url_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(byte.into());
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    match characters.next() {
        None => String::new(),
        Some(first) => first.to_uppercase().collect::<String>() + &characters.as_str().to_lowercase(),
    }
}

fn split(value: &str, options: &Options<'_, '_>, budget: &Budget) -> Outcome<Value> {
    let times = options.whole("times")?.filter(|times| *times >= 0);
    let parts =
        times.map_or(usize::MAX, |times| usize::try_from(times).map_or(usize::MAX, |n| n.saturating_add(1)));
    let by = options.text("by")?;
    // Every part has at least one character, or stands between two.
    let most = match by {
        Some("") => value.chars().count().saturating_add(2),
        Some(by) => value.matches(by).count().saturating_add(1),
        None => value.split_whitespace().count(),
    };
    budget.pay_values(most.min(parts))?;
    let texts: Vec<Value> = match by {
        Some(by) => value.splitn(parts, by).map(Value::from).collect(),
        None => {
            let mut rest = value.trim_start();
            let mut found = Vec::new();
            while !rest.is_empty() && found.len() + 1 < parts {
                let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
                found.push(Value::from(&rest[..end]));
                rest = rest[end..].trim_start();
            }
            if !rest.is_empty() {
                found.push(Value::from(rest));
            }
            found
        }
    };
    Ok(Value::Array(texts))
}

fn replaced(value: &str, options: &Options<'_, '_>, budget: &Budget) -> Outcome<String> {
    let (old, new) = (options.text("old")?.unwrap_or_default(), options.text("new")?.unwrap_or_default());
    let times = match old {
        "" => value.chars().count().saturating_add(1),
        old => value.matches(old).count(),
    };
    budget.pay_text(value.len().saturating_add(times.saturating_mul(new.len())))?;
    Ok(value.replace(old, new))
}

fn indented(value: &str, options: &Options<'_, '_>, budget: &Budget) -> Outcome<String> {
    let width = options.whole("width")?.unwrap_or(4);
    if !(0..=MAX_WIDTH).contains(&width) {
        return Err(format!("`indent` takes a width from 0 to {MAX_WIDTH}, not {width}"));
    }
    let (first, blank) = (options.flag("first"), options.flag("blank"));
    let count = value.split('\n').count();
    budget.pay_text(value.len().saturating_add(count.saturating_mul(width as usize)))?;
    let margin = " ".repeat(width as usize);
    let lines = value.split('\n').enumerate().map(|(number, line)| {
        let wanted = if number == 0 { first } else { blank || !line.is_empty() };
        if wanted { format!("{margin}{line}") } else { line.to_owned() }
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// Applies a filter that converts any value to a number, a boolean or a text.
pub(super) fn convert(
    filter: Filter,
    value: &Value,
    options: &Options<'_, '_>,
    budget: &Budget,
) -> Outcome<Value> {
    match filter {
        Filter::Bool => match value {
            Value::String(text) => match text.trim().to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" | "1" => Ok(true.into()),
                "false" | "no" | "off" | "0" | "" => Ok(false.into()),
                _ => {
                    let shown: String = text.chars().take(40).collect();
                    Err(format!("`{shown}` is neither true nor false"))
                }
            },
            other => Ok(is_true(other).into()),
        },
        Filter::FromJson => {
            let text = text(value, budget)?;
            // A value in memory is larger than its text.
            budget.pay((text.len() as u64).saturating_mul(VALUE_BYTES))?;
            serde_json::from_str(&text).map_err(|error| format!("not JSON ({error})"))
        }
        Filter::String => text(value, budget).map(|text| {
            let text = text.into_owned();
            text.into()
        }),
        Filter::ToJson => json(value, options, budget).map(Value::String),
        Filter::Abs => match Numeric::of(value) {
            Some(Numeric::Whole(number)) => Numeric::Whole(number.abs()).value(),
            Some(Numeric::Real(number)) => Numeric::Real(number.abs()).value(),
            None => Err(format!("{} has no absolute value", kind(value))),
        },
        Filter::Int => number(value, options, whole),
        Filter::Float => number(value, options, |value, _| match value {
            Value::String(text) => text.trim().parse::<f64>().ok().map(Numeric::Real),
            Value::Bool(truth) => Some(Numeric::Real(f64::from(u8::from(*truth)))),
            other => Numeric::of(other).map(|number| Numeric::Real(number.real())),
        }),
        _ => rounded(value, options),
    }
}

fn json(value: &Value, options: &Options<'_, '_>, budget: &Budget) -> Outcome<String> {
    let width = match options.get("indent") {
        None | Some(Value::Null | Value::Bool(false)) => return json_text(value, budget),
        Some(Value::Bool(true)) => 2,
        Some(_) => options.whole("indent")?.unwrap_or(2),
    };
    if !(0..=16).contains(&width) {
        return Err(format!("`tojson` takes an indentation from 0 to 16, not {width}"));
    }
    // Each value takes its own line, indented at most as deep as JSON is nested.
    let compact = json_text(value, budget)?;
    let lines = compact.bytes().filter(|byte| b",[{".contains(byte)).count().saturating_add(1);
    budget.pay((lines as u64).saturating_mul(2 * 128 * width as u64))?;
    let margin = " ".repeat(width as usize);
    let formatter = serde_json::ser::PrettyFormatter::with_indent(margin.as_bytes());
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
    serde::Serialize::serialize(value, &mut serializer).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|error| error.to_string())
}

/// Parses a value as a number. Returns the default, if any, for a value that is not a number.
fn number(
    value: &Value,
    options: &Options<'_, '_>,
    read: impl Fn(&Value, u32) -> Option<Numeric>,
) -> Outcome<Value> {
    let base = options.whole("base").ok().flatten().unwrap_or(10);
    if !(2..=36).contains(&base) {
        return Err(format!("the base of a number must be 2 to 36, not {base}"));
    }
    match (read(value, base as u32), options.get("default")) {
        (Some(number), _) => number.value(),
        (None, Some(default)) => Ok(default.clone()),
        (None, None) => Err(format!("{} is not a number", kind(value))),
    }
}

fn whole(value: &Value, base: u32) -> Option<Numeric> {
    let truncated = |number: f64| (number.abs() < 1e38).then_some(Numeric::Whole(number.trunc() as i128));
    match value {
        Value::Bool(truth) => Some(Numeric::Whole(i128::from(*truth))),
        Value::String(text) => {
            let text = text.trim();
            let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
            let prefix = match base {
                2 => "0b",
                8 => "0o",
                16 => "0x",
                _ => "",
            };
            let digits = digits.strip_prefix(prefix).unwrap_or(digits);
            let sign = if text.starts_with('-') { -1 } else { 1 };
            let parsed = digits
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric())
                .then(|| i128::from_str_radix(digits, base));
            match parsed {
                Some(Ok(number)) => number.checked_mul(sign).map(Numeric::Whole),
                _ => text.parse::<f64>().ok().and_then(truncated),
            }
        }
        other => match Numeric::of(other)? {
            Numeric::Whole(number) => Some(Numeric::Whole(number)),
            Numeric::Real(number) => truncated(number),
        },
    }
}

fn rounded(value: &Value, options: &Options<'_, '_>) -> Outcome<Value> {
    let digits = options.whole("precision")?.unwrap_or(0);
    if !(-MAX_DIGITS..=MAX_DIGITS).contains(&digits) {
        return Err(format!("`round` takes a precision from -{MAX_DIGITS} to {MAX_DIGITS}, not {digits}"));
    }
    let method = options.text("method")?.unwrap_or("common");
    let round: fn(f64) -> f64 = match method {
        "common" => f64::round_ties_even,
        "ceil" => f64::ceil,
        "floor" => f64::floor,
        other => return Err(format!("`round` has the methods common, ceil and floor, not `{other}`")),
    };
    match Numeric::of(value) {
        Some(Numeric::Whole(number)) if digits >= 0 => Numeric::Whole(number).value(),
        Some(Numeric::Whole(number)) => {
            let factor = 10_f64.powi(-digits as i32);
            let number = round(number as f64 / factor) * factor;
            Numeric::Whole(number as i128).value()
        }
        Some(Numeric::Real(number)) if digits >= 0 && method == "common" => {
            let text = format!("{number:.*}", digits as usize);
            text.parse().map(Numeric::Real).map_err(|_| "it cannot be rounded".to_owned())?.value()
        }
        Some(Numeric::Real(number)) => {
            let factor = 10_f64.powi(digits as i32);
            let scaled = number * factor;
            let number = if scaled.is_finite() { round(scaled) / factor } else { number };
            Numeric::Real(number).value()
        }
        None => Err(format!("{} cannot be rounded", kind(value))),
    }
}
