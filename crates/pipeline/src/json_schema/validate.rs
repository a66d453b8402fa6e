//! A value against the rules of its schema.

use std::collections::BTreeSet;

use serde_json::{Map, Number, Value};

use super::values::{bounds, canonical, compare, is_equal, is_multiple, shown, weight};
use super::{Compiled, JsonSchema, MAX_DEPTH, Rule, Violation, escaped};

/// The most work in one validation: schemas that are applied to values, and values that are compared.
const MAX_STEPS: usize = 2_000_000;
/// After so many violations no more are looked for.
const ENOUGH: usize = 16;
/// The most values of an `enum` that a message names.
const MOST_NAMED: usize = 10;
/// The work of a pattern that is tried, besides that of reading the text.
const PATTERN_STEPS: usize = 4;

/// The way from the whole value to a part of it.
#[derive(Default)]
struct Path(Vec<String>);

impl Path {
    fn pointer(&self) -> String {
        self.0.iter().map(|part| format!("/{}", escaped(part))).collect()
    }
}

/// One validation, with the work that it has done so far.
pub(super) struct Validation<'s> {
    schema: &'s JsonSchema,
    steps: usize,
    /// The reason why the validation was cut short. The value then does not match, whatever was found so far.
    gave_up: Option<&'static str>,
}

impl<'s> Validation<'s> {
    /// Returns everything that is wrong with a value.
    pub(super) fn of(schema: &'s JsonSchema, value: &Value) -> Vec<Violation> {
        let mut validation = Validation { schema, steps: 0, gave_up: None };
        let mut found = Vec::new();
        validation.check("", value, &mut Path::default(), 0, &mut found);
        match validation.gave_up {
            Some(message) => vec![Violation { place: String::new(), message: message.to_owned() }],
            None => found,
        }
    }

    /// Applies the schema at `place` to a value and adds what is wrong.
    fn check(
        &mut self,
        place: &str,
        value: &Value,
        path: &mut Path,
        depth: usize,
        found: &mut Vec<Violation>,
    ) {
        if depth > MAX_DEPTH {
            self.gave_up = Some("the schema refers to itself without end, or the value is nested too deeply");
        }
        if !self.may_do(1) || found.len() >= ENOUGH {
            return;
        }
        match self.schema.places.get(place) {
            Some(Compiled::Rules(rules)) => {
                for rule in rules {
                    self.apply(rule, value, path, depth, found);
                }
            }
            Some(Compiled::Nothing) => found.push(violation(path, "nothing is allowed here".into())),
            Some(Compiled::Anything) | None => {}
        }
    }

    /// Counts work before it is done. Returns whether there is time for it.
    fn may_do(&mut self, steps: usize) -> bool {
        self.steps = self.steps.saturating_add(steps);
        if self.steps > MAX_STEPS && self.gave_up.is_none() {
            self.gave_up = Some("checking the value against its schema takes too long");
        }
        self.gave_up.is_none()
    }

    fn fits(&mut self, place: &str, value: &Value, path: &mut Path, depth: usize) -> bool {
        let mut found = Vec::new();
        self.check(place, value, path, depth + 1, &mut found);
        found.is_empty() && self.gave_up.is_none()
    }

    fn apply(
        &mut self,
        rule: &Rule,
        value: &Value,
        path: &mut Path,
        depth: usize,
        found: &mut Vec<Violation>,
    ) {
        let work = match rule {
            Rule::Enum(allowed) => allowed.len().max(1).saturating_mul(weight(value)),
            Rule::Const(_) => weight(value),
            Rule::Length { .. } if value.is_string() => weight(value),
            Rule::Pattern(_) if value.is_string() => PATTERN_STEPS + 16 * weight(value),
            Rule::UniqueItems if value.is_array() => weight(value),
            Rule::Properties { patterns, .. } => match value.as_object() {
                Some(object) => {
                    let names: usize = object.keys().map(|name| PATTERN_STEPS + name.len() / 4).sum();
                    object.len() + names.saturating_mul(patterns.len())
                }
                None => 0,
            },
            Rule::Required(names) => names.len(),
            Rule::DependentRequired(dependents) => dependents.values().map(Vec::len).sum(),
            _ => 0,
        };
        if !self.may_do(work) {
            return;
        }
        let mut wrong = |path: &Path, message: String| found.push(violation(path, message));
        match rule {
            Rule::Ref(target) => {
                let schema = self.schema;
                if let Some(place) = schema.resolve(target) {
                    self.check(place, value, path, depth + 1, found);
                }
            }
            Rule::Type(types) => {
                if !types.iter().any(|one| one.fits(value)) {
                    let names: Vec<&str> = types.iter().map(|one| one.name()).collect();
                    wrong(path, format!("{} is not of type {}", shown(value), names.join(" or ")));
                }
            }
            Rule::Enum(allowed) => {
                if !allowed.iter().any(|one| is_equal(one, value)) {
                    let named: Vec<String> = allowed.iter().take(MOST_NAMED).map(shown).collect();
                    let more = if allowed.len() > MOST_NAMED { ", …" } else { "" };
                    wrong(path, format!("{} is not one of {}{more}", shown(value), named.join(", ")));
                }
            }
            Rule::Const(wanted) => {
                if !is_equal(wanted, value) {
                    wrong(path, format!("{} is not {}", shown(value), shown(wanted)));
                }
            }
            Rule::Minimum(_)
            | Rule::Maximum(_)
            | Rule::ExclusiveMinimum(_)
            | Rule::ExclusiveMaximum(_)
            | Rule::MultipleOf(_) => {
                if let Value::Number(number) = value
                    && let Some(message) = number_breaks(rule, number)
                {
                    wrong(path, message);
                }
            }
            Rule::Length { min, max } => {
                if let Value::String(text) = value {
                    let length = text.chars().count() as u64;
                    if !(*min..=*max).contains(&length) {
                        wrong(path, format!("{} {}", shown(value), bounds("character", *min, *max)));
                    }
                }
            }
            Rule::Pattern(pattern) => {
                if let Value::String(text) = value
                    && !pattern.is_match(text)
                {
                    wrong(path, format!("{} does not match {:?}", shown(value), pattern.as_str()));
                }
            }
            Rule::ItemCount { .. } | Rule::UniqueItems | Rule::Items { .. } | Rule::Contains { .. } => {
                if let Value::Array(items) = value {
                    self.apply_to_items(rule, items, path, depth, found);
                }
            }
            Rule::Properties { .. }
            | Rule::PropertyCount { .. }
            | Rule::PropertyNames(_)
            | Rule::Required(_)
            | Rule::DependentRequired(_)
            | Rule::DependentSchemas(_) => {
                if let Value::Object(object) = value {
                    self.apply_to_object(rule, value, object, path, depth, found);
                }
            }
            Rule::AllOf(places) => {
                for place in places {
                    self.check(place, value, path, depth + 1, found);
                }
            }
            Rule::AnyOf(places) => {
                if !places.iter().any(|place| self.fits(place, value, path, depth)) {
                    wrong(path, format!("{} fits none of the schemas of anyOf", shown(value)));
                }
            }
            Rule::OneOf(places) => {
                let fitting = places.iter().filter(|place| self.fits(place, value, path, depth)).count();
                if fitting != 1 {
                    let which = if fitting == 0 { "none".to_owned() } else { fitting.to_string() };
                    wrong(
                        path,
                        format!("{} fits {which} of the schemas of oneOf instead of one", shown(value)),
                    );
                }
            }
            Rule::Not(place) => {
                if self.fits(place, value, path, depth) {
                    wrong(path, format!("{} fits a schema that it must not fit", shown(value)));
                }
            }
            Rule::If { condition, then, otherwise } => {
                let branch = if self.fits(condition, value, path, depth) { then } else { otherwise };
                if let Some(place) = branch {
                    self.check(place, value, path, depth + 1, found);
                }
            }
        }
    }

    fn apply_to_items(
        &mut self,
        rule: &Rule,
        items: &[Value],
        path: &mut Path,
        depth: usize,
        found: &mut Vec<Violation>,
    ) {
        match rule {
            Rule::ItemCount { min, max } if !(*min..=*max).contains(&(items.len() as u64)) => {
                found.push(violation(path, format!("the array {}", bounds("item", *min, *max))));
            }
            Rule::UniqueItems => {
                let mut seen = BTreeSet::new();
                if let Some(twice) = items.iter().find(|item| !seen.insert(canonical(item))) {
                    found.push(violation(path, format!("{} is in the array twice", shown(twice))));
                }
            }
            Rule::Items { prefix, rest } => {
                for (n, item) in items.iter().enumerate() {
                    let Some(place) = prefix.get(n).or(rest.as_ref()) else { continue };
                    path.0.push(n.to_string());
                    self.check(place, item, path, depth + 1, found);
                    path.0.pop();
                }
            }
            Rule::Contains { schema, min, max } => {
                let fitting = items.iter().filter(|item| self.fits(schema, item, path, depth)).count();
                if !(*min..=*max).contains(&(fitting as u64)) {
                    let message = format!("{fitting} items fit the schema of contains: the number of these ");
                    found.push(violation(path, message + &bounds("item", *min, *max)));
                }
            }
            _ => {}
        }
    }

    fn apply_to_object(
        &mut self,
        rule: &Rule,
        value: &Value,
        object: &Map<String, Value>,
        path: &mut Path,
        depth: usize,
        found: &mut Vec<Violation>,
    ) {
        match rule {
            Rule::Properties { named, patterns, rest } => {
                for (name, property) in object {
                    path.0.push(name.clone());
                    let by_name = named.get(name);
                    let by_pattern = patterns.iter().filter(|(pattern, _)| pattern.is_match(name));
                    let mut places: Vec<&String> =
                        by_name.into_iter().chain(by_pattern.map(|(_, place)| place)).collect();
                    if places.is_empty() {
                        places.extend(rest);
                        if let [rest] = places[..]
                            && matches!(self.schema.places.get(rest), Some(Compiled::Nothing))
                        {
                            if found.len() < ENOUGH {
                                found.push(violation(path, "this property is not allowed".into()));
                            }
                            places.clear();
                        }
                    }
                    for place in places {
                        self.check(place, property, path, depth + 1, found);
                    }
                    path.0.pop();
                }
            }
            Rule::PropertyCount { min, max } if !(*min..=*max).contains(&(object.len() as u64)) => {
                found.push(violation(path, format!("the object {}", bounds("property", *min, *max))));
            }
            Rule::PropertyNames(place) => {
                for name in object.keys() {
                    let name = Value::String(name.clone());
                    if found.len() >= ENOUGH {
                        break;
                    }
                    if !self.fits(place, &name, path, depth) {
                        let message = format!("the property name {} is not allowed", shown(&name));
                        found.push(violation(path, message));
                    }
                }
            }
            Rule::Required(names) => {
                for name in names.iter().filter(|name| !object.contains_key(*name)).take(ENOUGH) {
                    found.push(violation(path, format!("the property {name:?} is missing")));
                }
            }
            Rule::DependentRequired(dependents) => {
                for (name, wanted) in dependents.iter().filter(|(name, _)| object.contains_key(*name)) {
                    for missing in wanted.iter().filter(|wanted| !object.contains_key(*wanted)).take(ENOUGH) {
                        let message = format!("the property {missing:?} is missing beside {name:?}");
                        found.push(violation(path, message));
                    }
                }
            }
            Rule::DependentSchemas(dependents) => {
                for (_, place) in dependents.iter().filter(|(name, _)| object.contains_key(*name)) {
                    self.check(place, value, path, depth + 1, found);
                }
            }
            _ => {}
        }
    }
}

/// Says how a number breaks a rule about numbers; none if it keeps it.
fn number_breaks(rule: &Rule, number: &Number) -> Option<String> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let is = |limit: &Number, allowed: &[std::cmp::Ordering]| {
        compare(number, limit).is_some_and(|order| allowed.contains(&order))
    };
    let message = match rule {
        Rule::Minimum(limit) if !is(limit, &[Greater, Equal]) => format!("{number} is less than {limit}"),
        Rule::Maximum(limit) if !is(limit, &[Less, Equal]) => format!("{number} is greater than {limit}"),
        Rule::ExclusiveMinimum(limit) if !is(limit, &[Greater]) => {
            format!("{number} is not greater than {limit}")
        }
        Rule::ExclusiveMaximum(limit) if !is(limit, &[Less]) => format!("{number} is not less than {limit}"),
        Rule::MultipleOf(unit) if !is_multiple(number, unit) => {
            format!("{number} is not a multiple of {unit}")
        }
        _ => return None,
    };
    Some(message)
}

fn violation(path: &Path, message: String) -> Violation {
    Violation { place: path.pointer(), message }
}
