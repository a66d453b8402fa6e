//! Filters of lists and objects. They move items where possible and pay for copies.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::Value;

use super::arithmetic;
use super::budget::Budget;
use super::filters::{self, ArgumentValues, Filter, Options, Signature};
use super::predicates::{self, Predicate};
use super::value::{Found, Numeric, Outcome, at_path, compare, is_true, kind, length, own, pay_for, text};

/// Applies a filter of lists to a value.
pub(super) fn apply<'c>(
    filter: Filter,
    value: Cow<'c, Value>,
    options: &Options<'_, 'c>,
    budget: &Budget,
) -> Outcome<Found<'c>> {
    let made = |value: Value| Ok(Some(Cow::Owned(value)));
    match filter {
        Filter::Length => made(length(&value, budget)?.into()),
        Filter::Attr => {
            let name = options.text("name")?.unwrap_or_default();
            copied(at_path(&value, name), budget)
        }
        Filter::First => end(value, true, budget),
        Filter::Last => end(value, false, budget),
        Filter::Max | Filter::Min => extreme(filter, value, options, budget),
        Filter::Join => made(join(value, options, budget)?),
        Filter::Sum => made(sum(value, options, budget)?),
        Filter::Reverse => match &*value {
            Value::String(text) => {
                budget.pay_text(text.len())?;
                made(text.chars().rev().collect::<String>().into())
            }
            _ => {
                let mut all = items(value, budget)?;
                all.reverse();
                made(all.into())
            }
        },
        Filter::Items => made(pairs(value, budget)?.into()),
        Filter::DictSort => {
            let mut all = pairs(value, budget)?;
            let place = if options.text("by")? == Some("value") { "1" } else { "0" };
            sort(&mut all, options, Some(place), budget)?;
            made(all.into())
        }
        Filter::List => made(items(value, budget)?.into()),
        Filter::Flatten => made(flat(value, options, budget)?.into()),
        Filter::Sort => {
            let mut all = items(value, budget)?;
            sort(&mut all, options, options.text("attribute")?, budget)?;
            made(all.into())
        }
        Filter::Unique => made(unique(value, options, budget)?.into()),
        Filter::Batch => made(batch(items(value, budget)?, options, budget)?),
        Filter::Slice => made(slices(items(value, budget)?, options, budget)?),
        Filter::Chain => {
            let mut all = items(value, budget)?;
            for more in &options.given.plain {
                all.extend(items(more.clone(), budget)?);
            }
            made(all.into())
        }
        Filter::Zip => made(zip(items(value, budget)?, options, budget)?),
        Filter::Map => made(map(items(value, budget)?, options, budget)?),
        Filter::Select | Filter::Reject => {
            let wanted = filter == Filter::Select;
            made(select(items(value, budget)?, None, &options.given.plain, wanted, budget)?)
        }
        _ => {
            let wanted = filter == Filter::SelectAttr;
            let Some((Value::String(attribute), rest)) =
                options.given.plain.split_first().map(|(first, rest)| (&**first, rest))
            else {
                return Err("the name of an attribute must be a text".into());
            };
            made(select(items(value, budget)?, Some(attribute), rest, wanted, budget)?)
        }
    }
}

/// Returns the items of a list, the keys of an object, or the characters of a text.
fn items(value: Cow<'_, Value>, budget: &Budget) -> Outcome<Vec<Value>> {
    match value {
        Cow::Owned(Value::Array(items)) => Ok(items),
        Cow::Borrowed(Value::Array(items)) => {
            for item in items {
                pay_for(item, budget)?;
            }
            Ok(items.clone())
        }
        other => match &*other {
            Value::Object(entries) => {
                for key in entries.keys() {
                    budget.pay_text(key.len())?;
                }
                Ok(entries.keys().map(|key| Value::from(key.as_str())).collect())
            }
            Value::String(text) => {
                budget.pay_values(text.len())?;
                Ok(text.chars().map(|character| Value::String(character.into())).collect())
            }
            other => Err(format!("{} is not a list", kind(other))),
        },
    }
}

/// Returns the items of a list, and in place of each list in it the items of that, all or some levels deep.
fn flat(value: Cow<'_, Value>, options: &Options<'_, '_>, budget: &Budget) -> Outcome<Vec<Value>> {
    let levels = options.whole("levels")?.unwrap_or(i128::MAX);
    let items = match own(value, budget)? {
        Value::Array(items) => items,
        other => return Err(format!("{} is not a list", kind(&other))),
    };
    let mut todo: Vec<(Value, i128)> = items.into_iter().rev().map(|item| (item, levels)).collect();
    let mut flat = Vec::new();
    while let Some((next, levels)) = todo.pop() {
        budget.pay_values(1)?;
        match next {
            Value::Array(items) if levels > 0 => {
                todo.extend(items.into_iter().rev().map(|item| (item, levels - 1)));
            }
            other => flat.push(other),
        }
    }
    Ok(flat)
}

/// Returns an item, or the given attribute of it.
fn part<'v>(item: &'v Value, attribute: Option<&str>) -> Option<&'v Value> {
    attribute.map_or(Some(item), |path| at_path(item, path))
}

/// Returns the same as [`part`], or an error if the attribute is absent.
fn needed<'v>(item: &'v Value, attribute: Option<&str>) -> Outcome<&'v Value> {
    part(item, attribute).ok_or_else(|| format!("an item has no `{}`", attribute.unwrap_or_default()))
}

fn pairs(value: Cow<'_, Value>, budget: &Budget) -> Outcome<Vec<Value>> {
    match own(value, budget)? {
        Value::Object(entries) => {
            budget.pay_values(entries.len().saturating_mul(2))?;
            Ok(entries.into_iter().map(|(key, value)| Value::Array(vec![key.into(), value])).collect())
        }
        other => Err(format!("{} has no entries", kind(&other))),
    }
}

fn copied<'c>(value: Option<&Value>, budget: &Budget) -> Outcome<Found<'c>> {
    value.map(|value| own(Cow::Borrowed(value), budget).map(Cow::Owned)).transpose()
}

/// Returns the first or the last item.
fn end<'c>(value: Cow<'c, Value>, first: bool, budget: &Budget) -> Outcome<Found<'c>> {
    Ok(match value {
        Cow::Borrowed(Value::Array(items)) => {
            let item = if first { items.first() } else { items.last() };
            item.map(Cow::Borrowed)
        }
        Cow::Owned(Value::Array(mut items)) => {
            let item = if first && !items.is_empty() { Some(items.swap_remove(0)) } else { items.pop() };
            item.map(Cow::Owned)
        }
        other => match &*other {
            Value::String(text) => {
                let character = if first { text.chars().next() } else { text.chars().next_back() };
                character.map(|character| Cow::Owned(Value::String(character.into())))
            }
            Value::Object(_) => {
                let mut keys = items(other, budget)?;
                let key = if first && !keys.is_empty() { Some(keys.swap_remove(0)) } else { keys.pop() };
                key.map(Cow::Owned)
            }
            other => return Err(format!("{} has no items", kind(other))),
        },
    })
}

/// Returns the key by which a value is ordered. Upper and lower case are equal unless `sensitive`.
fn key(value: &Value, sensitive: bool, budget: &Budget) -> Outcome<Value> {
    match value {
        Value::String(text) if !sensitive => {
            budget.pay_text(text.len().saturating_mul(3))?;
            Ok(text.to_lowercase().into())
        }
        other => own(Cow::Borrowed(other), budget),
    }
}

fn extreme<'c>(
    filter: Filter,
    value: Cow<'c, Value>,
    options: &Options<'_, '_>,
    budget: &Budget,
) -> Outcome<Found<'c>> {
    let (attribute, sensitive) = (options.text("attribute")?, options.flag("case_sensitive"));
    let wanted = if filter == Filter::Max { Ordering::Greater } else { Ordering::Less };
    let mut best: Option<(Value, Value)> = None;
    for item in items(value, budget)? {
        let by = needed(&item, attribute)?;
        let by = key(by, sensitive, budget)?;
        let better = match &best {
            Some((known, _)) => compare(&by, known, budget)? == wanted,
            None => true,
        };
        if better {
            best = Some((by, item));
        }
    }
    Ok(best.map(|(_, item)| Cow::Owned(item)))
}

fn join(value: Cow<'_, Value>, options: &Options<'_, '_>, budget: &Budget) -> Outcome<Value> {
    let (between, attribute) = (options.text("d")?.unwrap_or_default(), options.text("attribute")?);
    let mut joined = String::new();
    for (at, item) in items(value, budget)?.iter().enumerate() {
        let item = needed(item, attribute)?;
        let text = text(item, budget)?;
        budget.pay_text(text.len().saturating_add(between.len()))?;
        if at > 0 {
            joined.push_str(between);
        }
        joined.push_str(&text);
    }
    Ok(joined.into())
}

fn sum(value: Cow<'_, Value>, options: &Options<'_, '_>, budget: &Budget) -> Outcome<Value> {
    let attribute = options.text("attribute")?;
    let number = |value: &Value| {
        Numeric::of(value).ok_or_else(|| format!("`sum` needs numbers, and this is {}", kind(value)))
    };
    let mut total = options.get("start").map_or(Ok(Numeric::Whole(0)), number)?;
    for item in &items(value, budget)? {
        let item = match attribute {
            Some(path) => match at_path(item, path) {
                Some(item) => item,
                None => continue,
            },
            None => item,
        };
        total = arithmetic::sum(total, number(item)?)?;
    }
    total.value()
}

/// Sorts items by an attribute. Items without it come first; equal items keep their order.
fn sort(
    items: &mut Vec<Value>,
    options: &Options<'_, '_>,
    attribute: Option<&str>,
    budget: &Budget,
) -> Outcome<()> {
    let (sensitive, reverse) = (options.flag("case_sensitive"), options.flag("reverse"));
    let mut keyed = Vec::with_capacity(items.len());
    for item in std::mem::take(items) {
        let by = part(&item, attribute).map(|by| key(by, sensitive, budget)).transpose()?;
        keyed.push((by, item));
    }
    // A sort cannot be interrupted: after the first error all remaining pairs compare as equal.
    let mut wrong = None;
    keyed.sort_by(|(a, _), (b, _)| {
        if wrong.is_some() {
            return Ordering::Equal;
        }
        let order = match (a, b) {
            (Some(a), Some(b)) => compare(a, b, budget),
            (a, b) => Ok(a.is_some().cmp(&b.is_some())),
        };
        match order {
            Ok(order) if reverse => order.reverse(),
            Ok(order) => order,
            Err(why) => {
                wrong = Some(why);
                Ordering::Equal
            }
        }
    });
    if let Some(why) = wrong {
        return Err(why);
    }
    items.extend(keyed.into_iter().map(|(_, item)| item));
    Ok(())
}

fn unique(value: Cow<'_, Value>, options: &Options<'_, '_>, budget: &Budget) -> Outcome<Vec<Value>> {
    let (attribute, sensitive) = (options.text("attribute")?, options.flag("case_sensitive"));
    let mut seen = std::collections::HashSet::new();
    let mut found = Vec::new();
    for item in items(value, budget)? {
        let by = needed(&item, attribute)?;
        let by = super::value::json_text(&key(by, sensitive, budget)?, budget)?;
        if seen.insert(by) {
            found.push(item);
        }
    }
    Ok(found)
}

fn count(options: &Options<'_, '_>) -> Outcome<usize> {
    match options.whole("count")?.map(usize::try_from) {
        Some(Ok(count)) if count > 0 => Ok(count),
        _ => Err("the count must be a whole number of at least 1".into()),
    }
}

/// Splits the items into lists of equal length. The last list is padded if a fill value is given.
fn batch(all: Vec<Value>, options: &Options<'_, '_>, budget: &Budget) -> Outcome<Value> {
    let size = count(options)?;
    let mut batches: Vec<Value> = Vec::new();
    let mut rest = all.into_iter();
    loop {
        let mut next: Vec<Value> = rest.by_ref().take(size).collect();
        if next.is_empty() {
            return Ok(batches.into());
        }
        budget.pay_values(1)?;
        if let Some(filler) = options.get("fill_with") {
            while next.len() < size {
                pay_for(filler, budget)?;
                next.push(filler.clone());
            }
        }
        batches.push(next.into());
    }
}

/// Splits the items into a given number of lists of nearly equal length, longer ones first.
fn slices(all: Vec<Value>, options: &Options<'_, '_>, budget: &Budget) -> Outcome<Value> {
    let count = count(options)?;
    budget.pay_values(count)?;
    let (size, longer) = (all.len() / count, all.len() % count);
    let mut rest = all.into_iter();
    let mut lists = Vec::with_capacity(count);
    for number in 0..count {
        let mut next: Vec<Value> = rest.by_ref().take(size + usize::from(number < longer)).collect();
        if let Some(filler) = options.get("fill_with").filter(|_| longer > 0 && number >= longer) {
            pay_for(filler, budget)?;
            next.push(filler.clone());
        }
        lists.push(Value::Array(next));
    }
    Ok(lists.into())
}

fn zip(all: Vec<Value>, options: &Options<'_, '_>, budget: &Budget) -> Outcome<Value> {
    let mut others = Vec::new();
    for more in &options.given.plain {
        others.push(items(more.clone(), budget)?.into_iter());
    }
    let mut zipped: Vec<Value> = Vec::new();
    for first in all {
        budget.pay_values(1 + others.len())?;
        let mut row = vec![first];
        row.extend(others.iter_mut().filter_map(Iterator::next));
        if row.len() <= others.len() {
            break;
        }
        zipped.push(row.into());
    }
    Ok(zipped.into())
}

/// Returns an attribute of each item, or the result of a filter for each.
fn map(all: Vec<Value>, options: &Options<'_, '_>, budget: &Budget) -> Outcome<Value> {
    let mut mapped = Vec::with_capacity(all.len());
    if let Some(path) = options.text("attribute")? {
        for item in &all {
            let found = at_path(item, path).or_else(|| options.get("default"));
            let found = found.ok_or_else(|| format!("an item has no `{path}`"))?;
            mapped.push(own(Cow::Borrowed(found), budget)?);
        }
        return Ok(mapped.into());
    }
    let Some((Value::String(name), rest)) =
        options.given.plain.split_first().map(|(first, rest)| (&**first, rest))
    else {
        return Err("`map` takes an attribute or the name of a filter".into());
    };
    let filter = Filter::named(name)?;
    // A filter that itself maps over items would nest evaluations without a bound on depth.
    if matches!(
        filter,
        Filter::Map | Filter::Select | Filter::Reject | Filter::SelectAttr | Filter::RejectAttr
    ) {
        return Err(format!("`map` cannot apply `{name}`"));
    }
    Signature::of(filter).takes_plain(rest.len())?;
    for item in all {
        budget.pay_values(1)?;
        let given = ArgumentValues { plain: rest.to_vec(), named: Vec::new() };
        let found = filters::apply(filter, Some(Cow::Owned(item)), &given, budget)?;
        mapped.push(found.ok_or("an item is undefined here")?.into_owned());
    }
    Ok(mapped.into())
}

/// Selects the items for which a test holds, or does not hold. Without a test, selects those that are true.
fn select(
    all: Vec<Value>,
    attribute: Option<&str>,
    test: &[Cow<'_, Value>],
    wanted: bool,
    budget: &Budget,
) -> Outcome<Value> {
    let test = match test.split_first() {
        Some((name, arguments)) => {
            let Value::String(name) = &**name else { return Err("the name of a test must be a text".into()) };
            let test = Predicate::named(name)?;
            if test.arity() != arguments.len() {
                return Err(format!(
                    "the test `{name}` takes {} values, not {}",
                    test.arity(),
                    arguments.len()
                ));
            }
            Some((test, arguments))
        }
        None => None,
    };
    let mut selected = Vec::new();
    for item in all {
        budget.pay_values(1)?;
        let value = part(&item, attribute);
        let holds = match (&test, value) {
            (Some((test, _)), None) if !test.takes_undefined() => {
                return Err("an item has no such attribute".into());
            }
            (Some((test, arguments)), value) => predicates::holds(*test, value, arguments, budget)?,
            (None, value) => value.is_some_and(is_true),
        };
        if holds == wanted {
            selected.push(item);
        }
    }
    Ok(selected.into())
}

/// Returns a slice of a list or a text. `bounds` are start, end and step; negative ones count from the end.
pub(super) fn slice(value: Cow<'_, Value>, bounds: [Option<i128>; 3], budget: &Budget) -> Outcome<Value> {
    let [from, to, by] = bounds;
    let by = by.unwrap_or(1);
    if by == 0 {
        return Err("the step of a slice cannot be 0".into());
    }
    let is_text = value.is_string();
    if !is_text && !value.is_array() {
        return Err(format!("{} cannot be sliced", kind(&value)));
    }
    let all = items(value, budget)?;
    let length = all.len() as i128;
    let place =
        |at: i128, least: i128, most: i128| (if at < 0 { at + length } else { at }).clamp(least, most);
    let (mut at, end) = if by > 0 {
        (
            from.map_or(0, |at| place(clamp(at), 0, length)),
            to.map_or(length, |at| place(clamp(at), 0, length)),
        )
    } else {
        (
            from.map_or(length - 1, |at| place(clamp(at), -1, length - 1)),
            to.map_or(-1, |at| place(clamp(at), -1, length - 1)),
        )
    };
    let mut all: Vec<Option<Value>> = all.into_iter().map(Some).collect();
    let mut taken = Vec::new();
    while if by > 0 { at < end } else { at > end } {
        taken.extend(usize::try_from(at).ok().and_then(|at| all.get_mut(at)?.take()));
        at = at.saturating_add(by);
    }
    Ok(if is_text { taken.iter().filter_map(Value::as_str).collect::<String>().into() } else { taken.into() })
}

/// Limits a bound to what any list can have.
fn clamp(at: i128) -> i128 {
    at.clamp(i128::from(i64::MIN), i128::from(i64::MAX))
}
