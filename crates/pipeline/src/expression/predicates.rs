//! The table of tests that can follow `is`.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::Value;

use super::budget::Budget;
use super::evaluate::contains;
use super::patterns;
use super::value::{Numeric, Outcome, compare, is_equal, kind};
use crate::nearest::nearest;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Predicate {
    Boolean,
    Defined,
    DivisibleBy,
    EndingWith,
    Equal,
    Even,
    False,
    Float,
    Glob,
    Greater,
    GreaterOrEqual,
    In,
    Integer,
    Iterable,
    Less,
    LessOrEqual,
    Lower,
    Mapping,
    Match,
    None,
    NotEqual,
    Number,
    Odd,
    Search,
    Sequence,
    StartingWith,
    String,
    True,
    Undefined,
    Upper,
}

/// All tests, ordered by name.
#[rustfmt::skip]
pub(super) static PREDICATES: [(&str, Predicate); 35] = [
    ("boolean",      Predicate::Boolean),
    ("defined",      Predicate::Defined),
    ("divisibleby",  Predicate::DivisibleBy),
    ("endingwith",   Predicate::EndingWith),
    ("eq",           Predicate::Equal),
    ("equalto",      Predicate::Equal),
    ("even",         Predicate::Even),
    ("false",        Predicate::False),
    ("float",        Predicate::Float),
    ("ge",           Predicate::GreaterOrEqual),
    ("glob",         Predicate::Glob),
    ("greaterthan",  Predicate::Greater),
    ("gt",           Predicate::Greater),
    ("in",           Predicate::In),
    ("int",          Predicate::Integer),
    ("integer",      Predicate::Integer),
    ("iterable",     Predicate::Iterable),
    ("le",           Predicate::LessOrEqual),
    ("lessthan",     Predicate::Less),
    ("lower",        Predicate::Lower),
    ("lt",           Predicate::Less),
    ("mapping",      Predicate::Mapping),
    ("match",        Predicate::Match),
    ("ne",           Predicate::NotEqual),
    ("none",         Predicate::None),
    ("number",       Predicate::Number),
    ("odd",          Predicate::Odd),
    ("sameas",       Predicate::Equal),
    ("search",       Predicate::Search),
    ("sequence",     Predicate::Sequence),
    ("startingwith", Predicate::StartingWith),
    ("string",       Predicate::String),
    ("true",         Predicate::True),
    ("undefined",    Predicate::Undefined),
    ("upper",        Predicate::Upper),
];

impl Predicate {
    /// Returns the test with this name. Operators are names of tests too, as in `select("==", 1)`.
    pub(super) fn named(name: &str) -> Outcome<Predicate> {
        let known = PREDICATES.iter().find(|(known, _)| *known == name).map(|(_, test)| *test);
        let sign = match name {
            "==" => Some(Predicate::Equal),
            "!=" => Some(Predicate::NotEqual),
            "<" => Some(Predicate::Less),
            "<=" => Some(Predicate::LessOrEqual),
            ">" => Some(Predicate::Greater),
            ">=" => Some(Predicate::GreaterOrEqual),
            _ => None,
        };
        known.or(sign).ok_or_else(|| match nearest(name, PREDICATES.iter().map(|(known, _)| *known)) {
            Some(near) => format!("there is no test `{name}`; did you mean `{near}`?"),
            None => format!("there is no test `{name}`"),
        })
    }

    /// Returns the number of arguments.
    pub(super) fn arity(self) -> usize {
        use Predicate as P;
        match self {
            P::DivisibleBy
            | P::EndingWith
            | P::Equal
            | P::Glob
            | P::Greater
            | P::GreaterOrEqual
            | P::In
            | P::Less
            | P::LessOrEqual
            | P::Match
            | P::NotEqual
            | P::Search
            | P::StartingWith => 1,
            _ => 0,
        }
    }

    /// Returns whether the test accepts an undefined value.
    pub(super) fn takes_undefined(self) -> bool {
        matches!(self, Predicate::Defined | Predicate::Undefined)
    }
}

/// Returns whether a test holds for a value. Only `defined` and `undefined` accept an undefined value.
pub(super) fn holds(
    test: Predicate,
    value: Option<&Value>,
    arguments: &[Cow<'_, Value>],
    budget: &Budget,
) -> Outcome<bool> {
    use Predicate as P;
    budget.pay_values(1)?;
    let Some(value) = value else { return Ok(test == P::Undefined) };
    let other = || arguments.first().map_or(&Value::Null, |value| &**value);
    let whole = |value: &Value| match Numeric::of(value) {
        Some(Numeric::Whole(number)) => Ok(number),
        _ => Err(format!("{} is not a whole number", kind(value))),
    };
    let ordered = |wanted: &[Ordering]| compare(value, other(), budget).map(|order| wanted.contains(&order));
    let both = |look: fn(&str, &str) -> bool| match (value, other()) {
        (Value::String(text), Value::String(part)) => {
            budget.pay_text(part.len())?;
            Ok(look(text, part))
        }
        (a, b) => Err(format!("cannot compare the start or end of {} with {}", kind(a), kind(b))),
    };
    let cased = |is_other: fn(char) -> bool, is_it: fn(char) -> bool| -> Outcome<bool> {
        let Value::String(text) = value else { return Ok(false) };
        budget.pay_text(text.len())?;
        Ok(!text.chars().any(is_other) && text.chars().any(is_it))
    };
    Ok(match test {
        P::Boolean => value.is_boolean(),
        P::Defined => true,
        P::Undefined => false,
        P::DivisibleBy => match whole(other())? {
            0 => return Err("`divisibleby` needs a number other than zero".into()),
            by => whole(value)?.checked_rem(by) == Some(0),
        },
        P::EndingWith => both(|text, part| text.ends_with(part))?,
        P::StartingWith => both(|text, part| text.starts_with(part))?,
        P::Equal => is_equal(value, other(), budget)?,
        P::NotEqual => !is_equal(value, other(), budget)?,
        P::Less => ordered(&[Ordering::Less])?,
        P::LessOrEqual => ordered(&[Ordering::Less, Ordering::Equal])?,
        P::Greater => ordered(&[Ordering::Greater])?,
        P::GreaterOrEqual => ordered(&[Ordering::Greater, Ordering::Equal])?,
        P::In => contains(other(), value, budget)?,
        P::Glob => patterns::is_glob(value, other(), budget)?,
        P::Match => patterns::is_match(value, other(), true, budget)?,
        P::Search => patterns::is_match(value, other(), false, budget)?,
        P::Even => whole(value)? % 2 == 0,
        P::Odd => whole(value)? % 2 != 0,
        P::True => *value == Value::Bool(true),
        P::False => *value == Value::Bool(false),
        P::None => value.is_null(),
        P::Number => value.is_number(),
        P::Integer => matches!(Numeric::of(value), Some(Numeric::Whole(_))),
        P::Float => matches!(Numeric::of(value), Some(Numeric::Real(_))),
        P::String => value.is_string(),
        P::Sequence => value.is_array(),
        P::Mapping => value.is_object(),
        P::Iterable => value.is_array() || value.is_object() || value.is_string(),
        P::Lower => cased(char::is_uppercase, char::is_lowercase)?,
        P::Upper => cased(char::is_lowercase, char::is_uppercase)?,
    })
}
