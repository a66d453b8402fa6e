//! Evaluates the nodes of an expression. The parser bounds nesting, the budget bounds work.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::{Map, Value};

use super::arithmetic;
use super::budget::Budget;
use super::filters::{self, ArgumentValues};
use super::parse::{Arguments, Comparison, Id, Link, Node};
use super::predicates;
use super::value::{Found, Numeric, Outcome, compare, is_equal, is_true, kind, own};

/// Evaluates a node. An undefined value is an error.
pub(super) fn evaluate(nodes: &[Node], root: Id, context: &Value, budget: &Budget) -> Outcome<Value> {
    let evaluator = Evaluator { nodes, context, budget };
    own(evaluator.defined(root)?, budget)
}

/// Evaluates a node as a condition, which must be true or false: the text "false" is neither.
pub(super) fn holds(nodes: &[Node], root: Id, context: &Value, budget: &Budget) -> Outcome<bool> {
    let evaluator = Evaluator { nodes, context, budget };
    match &*evaluator.defined(root)? {
        Value::Bool(holds) => Ok(*holds),
        other => Err(format!(
            "it is {}, and a condition is true or false: compare it, or use `| bool`",
            kind(other)
        )),
    }
}

struct Evaluator<'c> {
    nodes: &'c [Node],
    context: &'c Value,
    budget: &'c Budget,
}

impl<'c> Evaluator<'c> {
    /// Evaluates a node whose value must be defined.
    fn defined(&self, id: Id) -> Outcome<Cow<'c, Value>> {
        self.value(id)?.ok_or_else(|| self.undefined(id))
    }

    fn undefined(&self, id: Id) -> String {
        match self.nodes[id].path(self.nodes) {
            Some(path) => format!("`{path}` is undefined"),
            None => "it is undefined".into(),
        }
    }

    fn value(&self, id: Id) -> Outcome<Found<'c>> {
        self.budget.pay_values(1)?;
        Ok(Some(match &self.nodes[id] {
            Node::Constant(value) => Cow::Borrowed(value),
            Node::Name(name) => return Ok(self.context.get(name).map(Cow::Borrowed)),
            Node::Call(function, arguments) => {
                let given = arguments.iter().map(|id| own(self.defined(*id)?, self.budget));
                let given = given.collect::<Outcome<Vec<_>>>()?;
                Cow::Owned(function.call(&given, self.context, self.budget)?)
            }
            Node::List(items) => {
                let items = items.iter().map(|item| own(self.defined(*item)?, self.budget));
                Cow::Owned(Value::Array(items.collect::<Outcome<_>>()?))
            }
            Node::Map(entries) => Cow::Owned(Value::Object(self.map(entries)?)),
            Node::Chain(of, links) => return self.chain(id, *of, links),
            Node::Not(of, odd) => Cow::Owned(Value::Bool(is_true(&*self.defined(*of)?) ^ odd)),
            Node::Signed(of, minus) => Cow::Owned(arithmetic::signed(&*self.defined(*of)?, *minus)?),
            Node::Or(all) => return self.first(all, true),
            Node::And(all) => return self.first(all, false),
            Node::Arithmetic(first, rest) => {
                let mut value = self.defined(*first)?;
                for (operator, next) in rest {
                    value = arithmetic::apply(*operator, value, self.defined(*next)?, self.budget)?;
                }
                value
            }
            Node::Compare(first, rest) => Cow::Owned(Value::Bool(self.compare(*first, rest)?)),
            Node::Choice(choices, otherwise) => {
                for (value, condition) in choices {
                    if is_true(&*self.defined(*condition)?) {
                        return self.value(*value);
                    }
                }
                return otherwise.map_or(Ok(None), |otherwise| self.value(otherwise));
            }
        }))
    }

    fn map(&self, entries: &[(Id, Id)]) -> Outcome<Map<String, Value>> {
        let mut map = Map::new();
        for (key, value) in entries {
            let key = match own(self.defined(*key)?, self.budget)? {
                Value::String(key) => key,
                other => return Err(format!("{} cannot be a key of a map", kind(&other))),
            };
            map.insert(key, own(self.defined(*value)?, self.budget)?);
        }
        Ok(map)
    }

    /// Returns the first value whose truth is `wanted`, or the last value.
    fn first(&self, all: &[Id], wanted: bool) -> Outcome<Found<'c>> {
        let mut value = None;
        for id in all {
            let next = self.defined(*id)?;
            let found = is_true(&next) == wanted;
            value = Some(next);
            if found {
                break;
            }
        }
        Ok(value)
    }

    fn compare(&self, first: Id, rest: &[(Comparison, Id)]) -> Outcome<bool> {
        let mut left = self.defined(first)?;
        for (how, next) in rest {
            let right = self.defined(*next)?;
            let order = || compare(&left, &right, self.budget);
            let holds = match how {
                Comparison::Equal => is_equal(&left, &right, self.budget)?,
                Comparison::NotEqual => !is_equal(&left, &right, self.budget)?,
                Comparison::Less => order()? == Ordering::Less,
                Comparison::LessOrEqual => order()? != Ordering::Greater,
                Comparison::Greater => order()? == Ordering::Greater,
                Comparison::GreaterOrEqual => order()? != Ordering::Less,
                Comparison::In => contains(&right, &left, self.budget)?,
                Comparison::NotIn => !contains(&right, &left, self.budget)?,
            };
            if !holds {
                return Ok(false);
            }
            left = right;
        }
        Ok(true)
    }

    fn chain(&self, id: Id, of: Id, links: &'c [Link]) -> Outcome<Found<'c>> {
        let mut value = self.value(of)?;
        for (at, link) in links.iter().enumerate() {
            self.budget.pay_values(1)?;
            let missing = || match (at, &self.nodes[of], links) {
                (0, Node::Name(name), _) => format!("`{name}` is undefined"),
                (_, Node::Name(_), _) => format!("a part of {} is undefined", self.describe(id)),
                _ => "it is undefined".into(),
            };
            value = match link {
                Link::Attribute(name) => attribute(value.ok_or_else(missing)?, name, self.budget)?,
                Link::Item(item) => {
                    let item = self.defined(*item)?;
                    element(value.ok_or_else(missing)?, &item, self.budget)?
                }
                Link::Slice(parts) => {
                    let bounds = self.bounds(parts)?;
                    Some(Cow::Owned(super::lists::slice(value.ok_or_else(missing)?, bounds, self.budget)?))
                }
                Link::Filter(filter, arguments) => {
                    let given = self.given(arguments)?;
                    if !filter.takes_undefined() && value.is_none() {
                        return Err(missing());
                    }
                    filters::apply(*filter, value, &given, self.budget)?
                }
                Link::Is(test, arguments, negated) => {
                    let arguments =
                        arguments.iter().map(|id| self.defined(*id)).collect::<Outcome<Vec<_>>>()?;
                    if !test.takes_undefined() && value.is_none() {
                        return Err(missing());
                    }
                    let holds = predicates::holds(*test, value.as_deref(), &arguments, self.budget)?;
                    Some(Cow::Owned(Value::Bool(holds ^ negated)))
                }
            };
        }
        Ok(value)
    }

    fn describe(&self, id: Id) -> String {
        self.nodes[id].path(self.nodes).map_or_else(|| "it".into(), |path| format!("`{path}`"))
    }

    fn given(&self, arguments: &'c Arguments) -> Outcome<ArgumentValues<'c>> {
        Ok(ArgumentValues {
            plain: arguments.plain.iter().map(|id| self.defined(*id)).collect::<Outcome<_>>()?,
            named: arguments
                .named
                .iter()
                .map(|(name, id)| Ok((name.as_str(), self.defined(*id)?)))
                .collect::<Outcome<_>>()?,
        })
    }

    fn bounds(&self, parts: &[Option<Id>; 3]) -> Outcome<[Option<i128>; 3]> {
        let mut bounds = [None; 3];
        for (bound, part) in bounds.iter_mut().zip(parts) {
            let Some(id) = part else { continue };
            let value = self.defined(*id)?;
            *bound = match (Numeric::of(&value), &*value) {
                (Some(Numeric::Whole(number)), _) => Some(number),
                (_, Value::Null) => None,
                (_, other) => {
                    return Err(format!("the bounds of a slice must be whole numbers, not {}", kind(other)));
                }
            };
        }
        Ok(bounds)
    }
}

/// Returns whether a list contains an item, an object a key, or a text a substring.
pub(super) fn contains(inside: &Value, what: &Value, budget: &Budget) -> Outcome<bool> {
    match (inside, what) {
        (Value::String(text), Value::String(part)) => {
            budget.pay_text(text.len().saturating_add(part.len()))?;
            Ok(text.contains(part.as_str()))
        }
        (Value::Array(items), _) => {
            for item in items {
                if is_equal(item, what, budget)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (Value::Object(entries), Value::String(key)) => {
            budget.pay_text(key.len())?;
            Ok(entries.contains_key(key))
        }
        (Value::Object(_), _) => Ok(false),
        (other, _) => Err(format!("`in` needs a list, an object or a text, not {}", kind(other))),
    }
}

/// Returns an attribute of an object, or `None` if it is absent.
fn attribute<'c>(of: Cow<'c, Value>, name: &str, budget: &Budget) -> Outcome<Found<'c>> {
    budget.pay_text(name.len())?;
    Ok(match of {
        Cow::Borrowed(value) => value.get(name).map(Cow::Borrowed),
        Cow::Owned(Value::Object(mut entries)) => entries.remove(name).map(Cow::Owned),
        Cow::Owned(_) => None,
    })
}

/// Returns an item of a list (negative indices count from the end), a character of a text, or an entry of an object;
/// `None` if it is absent.
fn element<'c>(of: Cow<'c, Value>, at: &Value, budget: &Budget) -> Outcome<Found<'c>> {
    if let Value::String(name) = at {
        return attribute(of, name, budget);
    }
    let Some(Numeric::Whole(at)) = Numeric::of(at) else {
        return Err(format!("{} cannot be an index into {}", kind(at), kind(&of)));
    };
    let place = |length: usize| {
        let at = if at < 0 { at.checked_add(length as i128)? } else { at };
        usize::try_from(at).ok().filter(|at| *at < length)
    };
    if let Value::String(text) = &*of {
        budget.pay_text(text.len())?;
        let character = place(text.chars().count()).and_then(|at| text.chars().nth(at));
        return Ok(character.map(|character| Cow::Owned(Value::String(character.into()))));
    }
    Ok(match of {
        Cow::Borrowed(Value::Array(items)) => place(items.len()).map(|at| Cow::Borrowed(&items[at])),
        Cow::Owned(Value::Array(mut items)) => place(items.len()).map(|at| Cow::Owned(items.swap_remove(at))),
        _ => None,
    })
}
