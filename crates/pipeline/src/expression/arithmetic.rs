//! Operators: arithmetic without overflow, and joining and repeating of texts and lists within the budget.

use serde_json::Value;

use super::budget::Budget;
use super::parse::Operator;
use super::value::{Numeric, Outcome, kind, own, pay_for, text};
use std::borrow::Cow;

/// Applies an operator to two values.
pub(super) fn apply<'c>(
    operator: Operator,
    a: Cow<'c, Value>,
    b: Cow<'c, Value>,
    budget: &Budget,
) -> Outcome<Cow<'c, Value>> {
    budget.pay_values(1)?;
    if operator == Operator::Join {
        return joined(&a, &b, budget).map(Cow::Owned);
    }
    if let (Some(x), Some(y)) = (Numeric::of(&a), Numeric::of(&b)) {
        return computed(operator, x, y)?.value().map(Cow::Owned);
    }
    match (operator, &*a, &*b) {
        (Operator::Add, Value::String(_), Value::String(_)) => joined(&a, &b, budget).map(Cow::Owned),
        (Operator::Add, Value::Array(_), Value::Array(_)) => {
            let (Value::Array(mut all), Value::Array(more)) = (own(a, budget)?, own(b, budget)?) else {
                return Ok(Cow::Owned(Value::Null));
            };
            budget.pay_values(all.len().saturating_add(more.len()))?;
            all.extend(more);
            Ok(Cow::Owned(Value::Array(all)))
        }
        (Operator::Multiply, Value::String(_) | Value::Array(_), Value::Number(_)) => {
            repeated(&a, &b, budget).map(Cow::Owned)
        }
        (Operator::Multiply, Value::Number(_), Value::String(_) | Value::Array(_)) => {
            repeated(&b, &a, budget).map(Cow::Owned)
        }
        _ => Err(format!("cannot apply `{}` to {} and {}", sign(operator), kind(&a), kind(&b))),
    }
}

/// Returns a number, negated if `minus`.
pub(super) fn signed(value: &Value, minus: bool) -> Outcome<Value> {
    match Numeric::of(value) {
        Some(number) if !minus => number.value(),
        Some(Numeric::Whole(number)) => Numeric::Whole(-number).value(),
        Some(Numeric::Real(number)) => Numeric::Real(-number).value(),
        None => Err(format!("{} cannot have a sign", kind(value))),
    }
}

/// Adds two numbers.
pub(super) fn sum(a: Numeric, b: Numeric) -> Outcome<Numeric> {
    computed(Operator::Add, a, b)
}

fn computed(operator: Operator, a: Numeric, b: Numeric) -> Outcome<Numeric> {
    let real = |number: f64| {
        if number.is_finite() {
            Ok(Numeric::Real(number))
        } else {
            Err(format!("the result of `{}` is not a finite number", sign(operator)))
        }
    };
    let whole = |number: Option<i128>| {
        number.map(Numeric::Whole).ok_or_else(|| format!("the result of `{}` is too large", sign(operator)))
    };
    let zero = || Err(format!("`{}` by zero", sign(operator)));
    match (operator, a, b) {
        (Operator::Add, Numeric::Whole(a), Numeric::Whole(b)) => whole(a.checked_add(b)),
        (Operator::Add, a, b) => real(a.real() + b.real()),
        (Operator::Subtract, Numeric::Whole(a), Numeric::Whole(b)) => whole(a.checked_sub(b)),
        (Operator::Subtract, a, b) => real(a.real() - b.real()),
        (Operator::Multiply, Numeric::Whole(a), Numeric::Whole(b)) => whole(a.checked_mul(b)),
        (Operator::Multiply, a, b) => real(a.real() * b.real()),
        (Operator::Divide | Operator::DivideWhole | Operator::Remainder, _, b) if b.real() == 0.0 => zero(),
        (Operator::Divide, a, b) => real(a.real() / b.real()),
        (Operator::DivideWhole, Numeric::Whole(a), Numeric::Whole(b)) => whole(floor(a, b).map(|(q, _)| q)),
        (Operator::DivideWhole, a, b) => real((a.real() / b.real()).floor()),
        (Operator::Remainder, Numeric::Whole(a), Numeric::Whole(b)) => whole(floor(a, b).map(|(_, r)| r)),
        (Operator::Remainder, a, b) => {
            let (a, b) = (a.real(), b.real());
            let rest = a % b;
            real(if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest })
        }
        (Operator::Power, Numeric::Whole(a), Numeric::Whole(b @ 0..)) => {
            whole(u32::try_from(b).ok().and_then(|b| a.checked_pow(b)))
        }
        (Operator::Power, a, b) => real(a.real().powf(b.real())),
        (Operator::Join, _, _) => Err("`~` joins numbers only as texts".into()),
    }
}

/// Returns quotient and remainder, rounded towards negative infinity.
fn floor(a: i128, b: i128) -> Option<(i128, i128)> {
    let (quotient, rest) = (a.checked_div(b)?, a.checked_rem(b)?);
    if rest != 0 && (rest < 0) != (b < 0) {
        Some((quotient.checked_sub(1)?, rest.checked_add(b)?))
    } else {
        Some((quotient, rest))
    }
}

fn joined(a: &Value, b: &Value, budget: &Budget) -> Outcome<Value> {
    let (a, b) = (text(a, budget)?, text(b, budget)?);
    budget.pay_text(a.len().saturating_add(b.len()))?;
    Ok(Value::String([a, b].concat()))
}

fn repeated(what: &Value, times: &Value, budget: &Budget) -> Outcome<Value> {
    let Some(Numeric::Whole(times)) = Numeric::of(times) else {
        return Err(format!("{} can only be repeated a whole number of times", kind(what)));
    };
    let times = usize::try_from(times.max(0)).map_err(|_| "too many repetitions".to_owned())?;
    match what {
        Value::String(text) => {
            budget.pay_text(text.len().saturating_mul(times))?;
            Ok(Value::String(text.repeat(times)))
        }
        Value::Array(items) => {
            budget.pay_values(items.len().saturating_mul(times))?;
            let mut all = Vec::with_capacity(items.len().saturating_mul(times));
            for _ in 0..times {
                for item in items {
                    pay_for(item, budget)?;
                    all.push(item.clone());
                }
                if items.is_empty() {
                    break;
                }
            }
            Ok(Value::Array(all))
        }
        other => Err(format!("{} cannot be repeated", kind(other))),
    }
}

fn sign(operator: Operator) -> &'static str {
    match operator {
        Operator::Add => "+",
        Operator::Subtract => "-",
        Operator::Join => "~",
        Operator::Multiply => "*",
        Operator::Divide => "/",
        Operator::DivideWhole => "//",
        Operator::Remainder => "%",
        Operator::Power => "**",
    }
}
