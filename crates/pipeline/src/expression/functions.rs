//! The table of functions: values that come from no name, such as the state of the run and the time.

use serde_json::Value;

use super::budget::Budget;
use super::value::{Numeric, Outcome, from_integer, kind};
use crate::nearest::nearest;

/// The most numbers of one `range`.
const MAX_RANGE: i128 = 100_000;
/// The longest format of `now`, in bytes.
const MAX_FORMAT: usize = 100;
/// The bytes that one character of a format can become.
const FORMATTED_BYTES: usize = 64;

/// The pseudo-name of [`Function::Now`] among the names of an expression.
pub(crate) const NOW: &str = "now()";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Cancelled,
    Failed,
    Now,
    Range,
    Succeeded,
}

/// All functions, ordered by name, with the least and the most arguments.
#[rustfmt::skip]
static FUNCTIONS: [(&str, Function, usize, usize); 5] = [
    ("cancelled", Function::Cancelled, 0, 0),
    ("failed",    Function::Failed,    0, 0),
    ("now",       Function::Now,       0, 1),
    ("range",     Function::Range,     1, 3),
    ("succeeded", Function::Succeeded, 0, 0),
];

impl Function {
    /// Returns the function with this name, if it takes this many arguments.
    pub(super) fn named(name: &str, count: usize) -> Outcome<Function> {
        let Some((_, function, least, most)) = FUNCTIONS.iter().find(|(known, ..)| *known == name) else {
            return Err(match (name, nearest(name, FUNCTIONS.iter().map(|(known, ..)| *known))) {
                ("failure" | "success", _) => {
                    format!("there is no function `{name}`; write `failed()` or `succeeded()`")
                }
                ("always", _) => "there is no function `always`; give the step `always: true`".into(),
                (_, Some(near)) => format!("there is no function `{name}`; did you mean `{near}`?"),
                (_, None) => format!("there is no function `{name}`; use a filter: `x | length`"),
            });
        };
        if (*least..=*most).contains(&count) {
            Ok(*function)
        } else {
            let range = if least == most { least.to_string() } else { format!("{least} to {most}") };
            Err(format!("the function `{name}` takes {range} values, not {count}"))
        }
    }

    /// Returns the name from the context that the function uses.
    pub(super) fn name(self) -> Option<&'static str> {
        match self {
            Function::Cancelled | Function::Failed | Function::Succeeded => Some("run.status"),
            Function::Now => Some(NOW),
            Function::Range => None,
        }
    }

    /// Calls the function.
    pub(super) fn call(self, given: &[Value], context: &Value, budget: &Budget) -> Outcome<Value> {
        match self {
            Function::Cancelled => Ok(["cancelling", "cancelled"].contains(&status(context)?).into()),
            Function::Failed => Ok(["failing", "failed"].contains(&status(context)?).into()),
            Function::Succeeded => {
                let bad = ["cancelling", "cancelled", "failing", "failed"];
                Ok((!bad.contains(&status(context)?)).into())
            }
            Function::Now => now(given.first(), context, budget),
            Function::Range => range(given, budget),
        }
    }
}

fn status(context: &Value) -> Outcome<&str> {
    context["run"]["status"].as_str().ok_or_else(|| "the run has no status here".into())
}

/// Returns the time as text in UTC: in RFC 3339, or in the given format.
fn now(format: Option<&Value>, context: &Value, budget: &Budget) -> Outcome<Value> {
    let time = context["now"].as_i64().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let time = time.ok_or("`now()` has no value here")?;
    let format = match format {
        None => "%Y-%m-%dT%H:%M:%SZ",
        Some(Value::String(format)) if format.len() <= MAX_FORMAT => format,
        Some(Value::String(_)) => {
            return Err(format!("the format of `now` has more than {MAX_FORMAT} bytes"));
        }
        Some(other) => return Err(format!("the format of `now` must be a text, not {}", kind(other))),
    };
    budget.pay_text(format.len() * FORMATTED_BYTES)?;
    // A width such as `%999Y` would make the result as long as its author likes.
    let digits = |part: &str| {
        part.chars().take_while(|c| !c.is_ascii_alphabetic()).filter(char::is_ascii_digit).count()
    };
    let wrong = || format!("`{format}` is not a format of time such as %Y-%m-%d");
    if format.split('%').skip(1).any(|part| digits(part) > 1) {
        return Err(wrong());
    }
    let zoned = time.to_zoned(jiff::tz::TimeZone::UTC);
    jiff::fmt::strtime::format(format, &zoned).map(Value::String).map_err(|_| wrong())
}

/// Returns the whole numbers from `start` (0 if left out) up to, but not including, `end`.
fn range(given: &[Value], budget: &Budget) -> Outcome<Value> {
    let mut numbers = Vec::with_capacity(given.len());
    for value in given {
        match Numeric::of(value) {
            Some(Numeric::Whole(number)) => numbers.push(number),
            _ => return Err(format!("`range` takes whole numbers, not {}", kind(value))),
        }
    }
    let (start, end, step) = match numbers[..] {
        [end] => (0, end, 1),
        [start, end] => (start, end, 1),
        [start, end, step] => (start, end, step),
        _ => return Err("`range` takes 1 to 3 values".into()),
    };
    if step == 0 {
        return Err("the step of a range cannot be 0".into());
    }
    let span = if step > 0 { end - start } else { start - end };
    let count = if span <= 0 { 0 } else { (span - 1) / step.abs() + 1 };
    if count > MAX_RANGE {
        return Err(format!("a range of {count} numbers is longer than {MAX_RANGE}"));
    }
    budget.pay_values(count as usize)?;
    (0..count).map(|at| from_integer(start + at * step)).collect::<Outcome<Vec<_>>>().map(Value::Array)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order() {
        assert!(FUNCTIONS.is_sorted_by_key(|(name, ..)| *name));
    }
}
