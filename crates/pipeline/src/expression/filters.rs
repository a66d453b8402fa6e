//! The table of filters with their arguments. An expression can call nothing else.

use std::borrow::Cow;

use serde_json::Value;

use super::budget::Budget;
use super::parse::Arguments;
use super::value::{Found, Numeric, Outcome, is_true, kind};
use super::{lists, patterns, texts};
use crate::nearest::nearest;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filter {
    Abs,
    Attr,
    Batch,
    Bool,
    Capitalize,
    Chain,
    Default,
    DictSort,
    First,
    Flatten,
    Float,
    FromJson,
    Indent,
    Int,
    Items,
    Join,
    Last,
    Length,
    Lines,
    List,
    Lower,
    Map,
    Max,
    Min,
    RegexFindAll,
    RegexReplace,
    RegexSearch,
    Reject,
    RejectAttr,
    Replace,
    Reverse,
    Round,
    Select,
    SelectAttr,
    Slice,
    Sort,
    Split,
    String,
    Sum,
    Title,
    ToJson,
    Trim,
    Unique,
    Upper,
    UrlEncode,
    Zip,
}

/// The name and arguments of a filter.
#[derive(Debug)]
pub(super) struct Signature {
    pub(super) name: &'static str,
    filter: Filter,
    /// The names of its arguments, in order.
    takes: &'static [&'static str],
    /// The number of arguments that are required.
    needs: usize,
    /// Whether it takes any number of further positional arguments.
    more: bool,
}

const fn filter(
    name: &'static str,
    filter: Filter,
    takes: &'static [&'static str],
    needs: usize,
) -> Signature {
    Signature { name, filter, takes, needs, more: false }
}

const fn of_many(
    name: &'static str,
    filter: Filter,
    takes: &'static [&'static str],
    needs: usize,
) -> Signature {
    Signature { name, filter, takes, needs, more: true }
}

/// All filters, ordered by name.
#[rustfmt::skip]
pub(super) static FILTERS: [Signature; 48] = [
    filter("abs",        Filter::Abs,        &[], 0),
    filter("attr",       Filter::Attr,       &["name"], 1),
    filter("batch",      Filter::Batch,      &["count", "fill_with"], 1),
    filter("bool",       Filter::Bool,       &[], 0),
    filter("capitalize", Filter::Capitalize, &[], 0),
    of_many("chain",     Filter::Chain,      &[], 0),
    filter("count",      Filter::Length,     &[], 0),
    filter("d",          Filter::Default,    &["value", "boolean"], 0),
    filter("default",    Filter::Default,    &["value", "boolean"], 0),
    filter("dictsort",   Filter::DictSort,   &["by", "reverse", "case_sensitive"], 0),
    filter("first",      Filter::First,      &[], 0),
    filter("flatten",    Filter::Flatten,    &["levels"], 0),
    filter("float",      Filter::Float,      &["default"], 0),
    filter("fromjson",   Filter::FromJson,   &[], 0),
    filter("indent",     Filter::Indent,     &["width", "first", "blank"], 0),
    filter("int",        Filter::Int,        &["default", "base"], 0),
    filter("items",      Filter::Items,      &[], 0),
    filter("join",       Filter::Join,       &["d", "attribute"], 0),
    filter("last",       Filter::Last,       &[], 0),
    filter("length",     Filter::Length,     &[], 0),
    filter("lines",      Filter::Lines,      &[], 0),
    filter("list",       Filter::List,       &[], 0),
    filter("lower",      Filter::Lower,      &[], 0),
    of_many("map",       Filter::Map,        &["attribute", "default"], 0),
    filter("max",        Filter::Max,        &["attribute", "case_sensitive"], 0),
    filter("min",        Filter::Min,        &["attribute", "case_sensitive"], 0),
    filter("regex_findall", Filter::RegexFindAll, &["pattern"], 1),
    filter("regex_replace", Filter::RegexReplace, &["pattern", "with"], 2),
    filter("regex_search", Filter::RegexSearch, &["pattern"], 1),
    of_many("reject",    Filter::Reject,     &[], 0),
    of_many("rejectattr", Filter::RejectAttr, &[], 1),
    filter("replace",    Filter::Replace,    &["old", "new"], 2),
    filter("reverse",    Filter::Reverse,    &[], 0),
    filter("round",      Filter::Round,      &["precision", "method"], 0),
    of_many("select",    Filter::Select,     &[], 0),
    of_many("selectattr", Filter::SelectAttr, &[], 1),
    filter("slice",      Filter::Slice,      &["count", "fill_with"], 1),
    filter("sort",       Filter::Sort,       &["reverse", "case_sensitive", "attribute"], 0),
    filter("split",      Filter::Split,      &["by", "times"], 0),
    filter("string",     Filter::String,     &[], 0),
    filter("sum",        Filter::Sum,        &["attribute", "start"], 0),
    filter("title",      Filter::Title,      &[], 0),
    filter("tojson",     Filter::ToJson,     &["indent"], 0),
    filter("trim",       Filter::Trim,       &["characters"], 0),
    filter("unique",     Filter::Unique,     &["attribute", "case_sensitive"], 0),
    filter("upper",      Filter::Upper,      &[], 0),
    filter("urlencode",  Filter::UrlEncode,  &[], 0),
    of_many("zip",       Filter::Zip,        &[], 0),
];

impl Filter {
    /// Returns the filter with this name.
    pub(super) fn named(name: &str) -> Outcome<Filter> {
        FILTERS.iter().find(|known| known.name == name).map(|known| known.filter).ok_or_else(
            || match nearest(name, FILTERS.iter().map(|known| known.name)) {
                Some(near) => format!("there is no filter `{name}`; did you mean `{near}`?"),
                None => format!("there is no filter `{name}`"),
            },
        )
    }

    /// Returns whether the filter accepts an undefined value.
    pub(super) fn takes_undefined(self) -> bool {
        self == Filter::Default
    }
}

impl Signature {
    pub(super) fn of(filter: Filter) -> &'static Signature {
        // A test checks that the table has every filter.
        FILTERS.iter().find(|known| known.filter == filter).unwrap_or(&FILTERS[0])
    }

    /// Refuses arguments that the filter does not take.
    pub(super) fn check(&self, arguments: &Arguments) -> Outcome<()> {
        let name = self.name;
        self.takes_plain(arguments.plain.len() + arguments.named.len())?;
        for (key, _) in &arguments.named {
            let place = self.takes.iter().position(|known| known == key);
            match place {
                None => return Err(format!("the filter `{name}` has no argument `{key}`")),
                Some(place) if place < arguments.plain.len() && !self.more => {
                    return Err(format!("the filter `{name}` is given `{key}` twice"));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Refuses too many or too few positional arguments.
    pub(super) fn takes_plain(&self, count: usize) -> Outcome<()> {
        match count {
            _ if count < self.needs => Err(format!("the filter `{}` needs {} values", self.name, self.needs)),
            _ if count > self.takes.len() && !self.more => {
                Err(format!("the filter `{}` takes at most {} arguments", self.name, self.takes.len()))
            }
            _ => Ok(()),
        }
    }

    fn place(&self, name: &str) -> usize {
        self.takes.iter().position(|known| *known == name).unwrap_or(usize::MAX)
    }
}

/// The evaluated arguments of a filter.
pub(super) struct ArgumentValues<'c> {
    pub(super) plain: Vec<Cow<'c, Value>>,
    pub(super) named: Vec<(&'c str, Cow<'c, Value>)>,
}

/// The arguments of one filter, looked up by name.
pub(super) struct Options<'g, 'c> {
    pub(super) given: &'g ArgumentValues<'c>,
    signature: &'static Signature,
}

impl<'g> Options<'g, '_> {
    /// Returns the argument with this name, if it is given.
    pub(super) fn get(&self, name: &str) -> Option<&'g Value> {
        let named = self.given.named.iter().find(|(key, _)| *key == name).map(|(_, value)| &**value);
        // A filter with any number of positional arguments takes its options by name only.
        let plain = || {
            if self.signature.more {
                None
            } else {
                self.given.plain.get(self.signature.place(name)).map(|value| &**value)
            }
        };
        named.or_else(plain)
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(is_true)
    }

    /// Returns an argument that must be a text, if it is given.
    pub(super) fn text(&self, name: &str) -> Outcome<Option<&'g str>> {
        match self.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(name, "text", other)),
        }
    }

    /// Returns an argument that must be a whole number, if it is given.
    pub(super) fn whole(&self, name: &str) -> Outcome<Option<i128>> {
        match self.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match Numeric::of(value) {
                Some(Numeric::Whole(number)) => Ok(Some(number)),
                _ => Err(self.wrong(name, "a whole number", value)),
            },
        }
    }

    fn wrong(&self, name: &str, expected: &str, found: &Value) -> String {
        format!(
            "the argument `{name}` of the filter `{}` must be {expected}, not {}",
            self.signature.name,
            kind(found)
        )
    }
}

/// Applies a filter to a value.
pub(super) fn apply<'c>(
    filter: Filter,
    value: Found<'c>,
    given: &ArgumentValues<'c>,
    budget: &Budget,
) -> Outcome<Found<'c>> {
    let options = Options { given, signature: Signature::of(filter) };
    if filter == Filter::Default {
        let missing = match &value {
            None => true,
            Some(value) => options.flag("boolean") && !is_true(value),
        };
        return Ok(if missing {
            // Copying an existing value costs its size.
            Some(Cow::Owned(copy(options.get("value"), budget)?))
        } else {
            value
        });
    }
    let Some(value) = value else { return Ok(None) };
    match filter {
        Filter::Capitalize
        | Filter::Indent
        | Filter::Lines
        | Filter::Lower
        | Filter::Replace
        | Filter::Split
        | Filter::Title
        | Filter::Trim
        | Filter::Upper
        | Filter::UrlEncode => texts::apply(filter, &value, &options, budget).map(Cow::Owned).map(Some),
        Filter::Abs
        | Filter::Bool
        | Filter::Float
        | Filter::FromJson
        | Filter::Int
        | Filter::Round
        | Filter::String
        | Filter::ToJson => texts::convert(filter, &value, &options, budget).map(Cow::Owned).map(Some),
        Filter::RegexFindAll | Filter::RegexReplace | Filter::RegexSearch => {
            patterns::apply(filter, &value, &options, budget).map(Cow::Owned).map(Some)
        }
        _ => lists::apply(filter, value, &options, budget),
    }
}

fn copy(value: Option<&Value>, budget: &Budget) -> Outcome<Value> {
    match value {
        None => Ok(Value::String(String::new())),
        Some(value) => super::value::own(Cow::Borrowed(value), budget),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_names_each_filter() {
        assert!(FILTERS.is_sorted_by_key(|known| known.name));
        for known in &FILTERS {
            assert_eq!(Filter::named(known.name), Ok(known.filter));
            assert_eq!(Signature::of(known.filter).takes, known.takes);
        }
        assert_eq!(
            Filter::named("lenght"),
            Err("there is no filter `lenght`; did you mean `length`?".into())
        );
    }
}
