//! Values during evaluation: borrowed from the context until an operation creates a new one.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::{Number, Value};

use super::budget::Budget;

/// A value, or `None` if a name or an attribute is absent.
pub(super) type Found<'c> = Option<Cow<'c, Value>>;

/// The result of an operation, with a message for people as its error.
pub(super) type Outcome<T> = Result<T, String>;

/// A number in the form in which it is computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Numeric {
    Whole(i128),
    Real(f64),
}

impl Numeric {
    pub(super) fn of(value: &Value) -> Option<Numeric> {
        let number = value.as_number()?;
        let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
        whole.map(Numeric::Whole).or_else(|| number.as_f64().map(Numeric::Real))
    }

    pub(super) fn real(self) -> f64 {
        match self {
            Numeric::Whole(number) => number as f64,
            Numeric::Real(number) => number,
        }
    }

    pub(super) fn value(self) -> Outcome<Value> {
        match self {
            Numeric::Whole(number) => from_integer(number),
            Numeric::Real(number) => Number::from_f64(number)
                .map(Value::Number)
                .ok_or_else(|| "the result is not a number that JSON can hold".into()),
        }
    }

    fn compare(self, other: Numeric) -> Option<Ordering> {
        match (self, other) {
            (Numeric::Whole(a), Numeric::Whole(b)) => Some(a.cmp(&b)),
            _ => self.real().partial_cmp(&other.real()),
        }
    }
}

/// Converts a whole number to JSON.
pub(super) fn from_integer(number: i128) -> Outcome<Value> {
    let value = i64::try_from(number).map(Value::from).or_else(|_| u64::try_from(number).map(Value::from));
    value.map_err(|_| format!("the number {number} is too large"))
}

/// Returns the kind of a value, for messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Returns whether a value counts as true: not null, zero or empty.
pub(super) fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(truth) => *truth,
        Value::Number(_) => Numeric::of(value).is_some_and(|number| number.real() != 0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
    }
}

/// Returns whether two values are equal. Whole numbers and other numbers are compared by value.
pub(super) fn is_equal(a: &Value, b: &Value, budget: &Budget) -> Outcome<bool> {
    budget.pay_values(1)?;
    Ok(match (a, b) {
        (Value::String(a), Value::String(b)) => {
            budget.pay(a.len().min(b.len()) as u64)?;
            a == b
        }
        (Value::Number(_), Value::Number(_)) => match (Numeric::of(a), Numeric::of(b)) {
            (Some(a), Some(b)) => a.compare(b) == Some(Ordering::Equal),
            _ => a == b,
        },
        (Value::Array(a), Value::Array(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (a, b) in a.iter().zip(b) {
                if !is_equal(a, b, budget)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Object(a), Value::Object(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (key, a) in a {
                budget.pay_text(key.len())?;
                match b.get(key) {
                    Some(b) if is_equal(a, b, budget)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        _ => a == b,
    })
}

/// Compares two values of the same kind: numbers, texts, booleans, or lists of these.
pub(super) fn compare(a: &Value, b: &Value, budget: &Budget) -> Outcome<Ordering> {
    budget.pay_values(1)?;
    let refuse = || format!("{} and {} cannot be ordered", kind(a), kind(b));
    match (a, b) {
        (Value::String(a), Value::String(b)) => {
            budget.pay(a.len().min(b.len()) as u64)?;
            Ok(a.cmp(b))
        }
        (Value::Number(_), Value::Number(_)) => match (Numeric::of(a), Numeric::of(b)) {
            (Some(a), Some(b)) => a.compare(b).ok_or_else(refuse),
            _ => Err(refuse()),
        },
        (Value::Bool(a), Value::Bool(b)) => Ok(a.cmp(b)),
        (Value::Null, Value::Null) => Ok(Ordering::Equal),
        (Value::Array(a), Value::Array(b)) => {
            for (a, b) in a.iter().zip(b) {
                match compare(a, b, budget)? {
                    Ordering::Equal => {}
                    order => return Ok(order),
                }
            }
            Ok(a.len().cmp(&b.len()))
        }
        _ => Err(refuse()),
    }
}

/// Returns the text form of a value: JSON for everything that is not a text. Null has no text form.
pub(super) fn text<'v>(value: &'v Value, budget: &Budget) -> Outcome<Cow<'v, str>> {
    match value {
        Value::String(text) => Ok(Cow::Borrowed(text)),
        Value::Null => Err("null has no text form".into()),
        other => json_text(other, budget).map(Cow::Owned),
    }
}

/// Returns a value as JSON text.
pub(super) fn json_text(value: &Value, budget: &Budget) -> Outcome<String> {
    pay_for(value, budget)?;
    let text = value.to_string();
    budget.pay_text(text.len())?;
    Ok(text)
}

/// Pays for a copy of a value.
pub(super) fn pay_for(value: &Value, budget: &Budget) -> Outcome<()> {
    let mut todo = vec![value];
    while let Some(next) = todo.pop() {
        match next {
            Value::String(text) => budget.pay_text(text.len())?,
            Value::Array(items) => {
                budget.pay_values(1)?;
                todo.extend(items);
            }
            Value::Object(entries) => {
                budget.pay_values(1)?;
                for (key, entry) in entries {
                    budget.pay_text(key.len())?;
                    todo.push(entry);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => budget.pay_values(1)?,
        }
    }
    Ok(())
}

/// Returns an owned value. Pays for the copy if there is one.
pub(super) fn own(value: Cow<'_, Value>, budget: &Budget) -> Outcome<Value> {
    match value {
        Cow::Owned(value) => Ok(value),
        Cow::Borrowed(value) => {
            pay_for(value, budget)?;
            Ok(value.clone())
        }
    }
}

/// Returns the number of characters of a text, items of a list or entries of an object.
pub(super) fn length(value: &Value, budget: &Budget) -> Outcome<usize> {
    match value {
        Value::String(text) => {
            budget.pay_text(text.len())?;
            Ok(text.chars().count())
        }
        Value::Array(items) => Ok(items.len()),
        Value::Object(entries) => Ok(entries.len()),
        other => Err(format!("{} has no length", kind(other))),
    }
}

/// Returns the value at a path of attributes such as `a.b.0`, or `None` if it is absent.
pub(super) fn at_path<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(value, |value, part| match value {
        Value::Object(entries) => entries.get(part),
        Value::Array(items) => items.get(part.parse::<usize>().ok()?),
        _ => None,
    })
}
