//! From the text of a schema to its rules.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Map, Number, Value};

use super::{Compiled, MAX_DEPTH, Rule, SchemaError, Type, join};

/// The largest compiled regular expression, in bytes.
const MAX_PATTERN_BYTES: usize = 1 << 20;
/// The memory in which one is run, in bytes.
const PATTERN_CACHE_BYTES: usize = 256 << 10;

/// Keywords that describe a value and do not restrict it.
const ANNOTATIONS: [&str; 14] = [
    "$schema",
    "$id",
    "$comment",
    "title",
    "description",
    "default",
    "deprecated",
    "readOnly",
    "writeOnly",
    "examples",
    "format",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
];

/// The most bytes of all places of a schema together.
const MAX_PLACE_BYTES: usize = 16 << 20;
/// The most regular expressions in one schema.
const MAX_PATTERNS: usize = 64;

/// Counts the regular expressions in a schema, or more if values in it look like some.
pub(crate) fn count_patterns(schema: &Value) -> usize {
    let (mut count, mut todo) = (0, vec![schema]);
    while let Some(part) = todo.pop() {
        match part {
            Value::Object(keywords) => {
                count += usize::from(keywords.get("pattern").is_some_and(Value::is_string));
                count += keywords.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
                todo.extend(keywords.values());
            }
            Value::Array(items) => todo.extend(items),
            _ => {}
        }
    }
    count
}

/// The schemas that are compiled so far.
#[derive(Default)]
pub(super) struct Compiler {
    pub(super) places: BTreeMap<String, Compiled>,
    pub(super) anchors: BTreeMap<String, String>,
    /// The bytes of all places so far: each names all that it lies in.
    place_bytes: usize,
}

impl Compiler {
    pub(super) fn compile_all(schema: &Value) -> Result<Compiler, SchemaError> {
        let patterns = count_patterns(schema);
        if patterns > MAX_PATTERNS {
            let message = format!("it has {patterns} patterns, and {MAX_PATTERNS} is the most");
            return Err(SchemaError { place: String::new(), message });
        }
        let mut compiler = Compiler::default();
        compiler.compile(String::new(), schema, 0)?;
        Ok(compiler)
    }

    fn compile(&mut self, place: String, schema: &Value, depth: usize) -> Result<(), SchemaError> {
        let error = |message: &str| SchemaError { place: place.clone(), message: message.to_owned() };
        if depth > MAX_DEPTH {
            return Err(error(&format!("schemas are nested more than {MAX_DEPTH} deep")));
        }
        self.place_bytes += place.len();
        if self.place_bytes > MAX_PLACE_BYTES {
            let message = "its names are too long, for as many and as deeply nested as they are";
            return Err(SchemaError { place: String::new(), message: message.to_owned() });
        }
        let compiled = match schema {
            Value::Bool(true) => Compiled::Anything,
            Value::Bool(false) => Compiled::Nothing,
            Value::Object(keywords) => Compiled::Rules(self.rules(&place, keywords, depth)?),
            _ => return Err(error("a schema is an object, `true` or `false`")),
        };
        self.places.insert(place, compiled);
        Ok(())
    }

    fn rules(
        &mut self,
        place: &str,
        keywords: &Map<String, Value>,
        depth: usize,
    ) -> Result<Vec<Rule>, SchemaError> {
        let mut rules = Vec::new();
        for (keyword, value) in keywords {
            let here = Keyword { place: join(place, keyword), value };
            let mut sub = |schema: &Value, at: String| self.compile(at, schema, depth + 1);
            match keyword.as_str() {
                "$ref" => rules.push(Rule::Ref(here.text()?.to_owned())),
                "$anchor" => {
                    self.anchors.insert(here.text()?.to_owned(), place.to_owned());
                }
                "$defs" | "definitions" => {
                    for (name, schema) in here.object()? {
                        sub(schema, join(&here.place, name))?;
                    }
                }
                "type" => rules.push(Rule::Type(here.types()?)),
                "enum" => rules.push(Rule::Enum(here.array()?.clone())),
                "const" => rules.push(Rule::Const(value.clone())),
                "minimum" => rules.push(Rule::Minimum(here.number()?)),
                "maximum" => rules.push(Rule::Maximum(here.number()?)),
                "exclusiveMinimum" => rules.push(Rule::ExclusiveMinimum(here.number()?)),
                "exclusiveMaximum" => rules.push(Rule::ExclusiveMaximum(here.number()?)),
                "multipleOf" => {
                    let number = here.number()?;
                    if number.as_f64().is_none_or(|number| number <= 0.0) {
                        return Err(here.error("must be a number above 0"));
                    }
                    rules.push(Rule::MultipleOf(number));
                }
                "minLength" => rules.push(Rule::Length { min: here.count()?, max: u64::MAX }),
                "maxLength" => rules.push(Rule::Length { min: 0, max: here.count()? }),
                "pattern" => rules.push(Rule::Pattern(here.pattern(here.text()?)?)),
                "minItems" => rules.push(Rule::ItemCount { min: here.count()?, max: u64::MAX }),
                "maxItems" => rules.push(Rule::ItemCount { min: 0, max: here.count()? }),
                "uniqueItems" if here.boolean()? => rules.push(Rule::UniqueItems),
                "uniqueItems" => {}
                "items" | "prefixItems" => {
                    if let Value::Array(schemas) = value {
                        for (n, schema) in schemas.iter().enumerate() {
                            sub(schema, join(&here.place, &n.to_string()))?;
                        }
                    } else if keyword == "items" {
                        sub(value, here.place)?;
                    } else {
                        return Err(here.error("must be an array of schemas"));
                    }
                }
                "properties" | "patternProperties" => {
                    for (name, schema) in here.object()? {
                        sub(schema, join(&here.place, name))?;
                    }
                }
                "additionalItems" | "additionalProperties" | "contains" | "if" | "then" | "else" => {
                    sub(value, here.place)?;
                }
                "minContains" | "maxContains" => {
                    here.count()?;
                }
                "minProperties" => rules.push(Rule::PropertyCount { min: here.count()?, max: u64::MAX }),
                "maxProperties" => rules.push(Rule::PropertyCount { min: 0, max: here.count()? }),
                "propertyNames" => {
                    sub(value, here.place.clone())?;
                    rules.push(Rule::PropertyNames(here.place));
                }
                "required" => rules.push(Rule::Required(here.names()?)),
                "dependentRequired" | "dependentSchemas" | "dependencies" => {
                    let (mut names, mut schemas) = (BTreeMap::new(), BTreeMap::new());
                    for (name, dependent) in here.object()? {
                        let at = Keyword { place: join(&here.place, name), value: dependent };
                        if dependent.is_array() && keyword != "dependentSchemas" {
                            names.insert(name.clone(), at.names()?);
                        } else if keyword == "dependentRequired" {
                            return Err(at.error("must be an array of property names"));
                        } else {
                            sub(dependent, at.place.clone())?;
                            schemas.insert(name.clone(), at.place);
                        }
                    }
                    rules.push(Rule::DependentRequired(names));
                    rules.push(Rule::DependentSchemas(schemas));
                }
                "allOf" | "anyOf" | "oneOf" => {
                    let schemas = here.array()?;
                    if schemas.is_empty() {
                        return Err(here.error("must hold at least one schema"));
                    }
                    let mut places = Vec::new();
                    for (n, schema) in schemas.iter().enumerate() {
                        let at = join(&here.place, &n.to_string());
                        sub(schema, at.clone())?;
                        places.push(at);
                    }
                    rules.push(match keyword.as_str() {
                        "allOf" => Rule::AllOf(places),
                        "anyOf" => Rule::AnyOf(places),
                        _ => Rule::OneOf(places),
                    });
                }
                "not" => {
                    sub(value, here.place.clone())?;
                    rules.push(Rule::Not(here.place));
                }
                name if ANNOTATIONS.contains(&name) || name.starts_with("x-") => {}
                "$dynamicRef"
                | "$dynamicAnchor"
                | "$vocabulary"
                | "unevaluatedItems"
                | "unevaluatedProperties" => {
                    return Err(here.error("this keyword is not supported"));
                }
                name => {
                    return Err(SchemaError {
                        place: place.to_owned(),
                        message: format!("{name:?} is no keyword of JSON Schema; your own begin with `x-`"),
                    });
                }
            }
        }
        rules.extend(combined(place, keywords)?);
        Ok(rules)
    }
}

/// Returns the rules that several keywords of one schema make together.
fn combined(place: &str, keywords: &Map<String, Value>) -> Result<Vec<Rule>, SchemaError> {
    let has = |name: &str| keywords.get(name).map(|_| join(place, name));
    let places = |name: &str| {
        let count = keywords.get(name).and_then(Value::as_array).map_or(0, Vec::len);
        (0..count).map(|n| join(&join(place, name), &n.to_string())).collect::<Vec<_>>()
    };
    let mut rules = Vec::new();
    // Draft 7 writes `items: [..], additionalItems`, draft 2020-12 `prefixItems: [..], items`.
    let is_list = keywords.get("items").is_some_and(Value::is_array);
    let (prefix, rest) = if is_list {
        (places("items"), has("additionalItems"))
    } else {
        (places("prefixItems"), has("items"))
    };
    if !prefix.is_empty() || rest.is_some() {
        rules.push(Rule::Items { prefix, rest });
    }
    let named = keywords.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
    let named: BTreeMap<String, String> =
        named.map(|name| (name.clone(), join(&join(place, "properties"), name))).collect();
    let mut patterns = Vec::new();
    let texts = keywords.get("patternProperties").and_then(Value::as_object);
    for text in texts.into_iter().flat_map(Map::keys) {
        let at = join(&join(place, "patternProperties"), text);
        patterns.push((Keyword { place: at.clone(), value: &Value::Null }.pattern(text)?, at));
    }
    let rest = has("additionalProperties");
    if !named.is_empty() || !patterns.is_empty() || rest.is_some() {
        rules.push(Rule::Properties { named, patterns, rest });
    }
    if let Some(schema) = has("contains") {
        let count = |name: &str, or: u64| keywords.get(name).and_then(Value::as_u64).unwrap_or(or);
        rules.push(Rule::Contains {
            schema,
            min: count("minContains", 1),
            max: count("maxContains", u64::MAX),
        });
    }
    if let Some(condition) = has("if") {
        rules.push(Rule::If { condition, then: has("then"), otherwise: has("else") });
    }
    Ok(rules)
}

/// A keyword's argument, and its place for messages.
struct Keyword<'v> {
    place: String,
    value: &'v Value,
}

impl<'v> Keyword<'v> {
    fn error(&self, message: &str) -> SchemaError {
        SchemaError { place: self.place.clone(), message: message.to_owned() }
    }

    fn text(&self) -> Result<&'v str, SchemaError> {
        self.value.as_str().ok_or_else(|| self.error("must be a string"))
    }

    fn boolean(&self) -> Result<bool, SchemaError> {
        self.value.as_bool().ok_or_else(|| self.error("must be true or false"))
    }

    fn array(&self) -> Result<&'v Vec<Value>, SchemaError> {
        self.value.as_array().ok_or_else(|| self.error("must be an array"))
    }

    fn object(&self) -> Result<&'v Map<String, Value>, SchemaError> {
        self.value.as_object().ok_or_else(|| self.error("must be an object"))
    }

    fn number(&self) -> Result<Number, SchemaError> {
        match self.value {
            Value::Number(number) => Ok(number.clone()),
            _ => Err(self.error("must be a number")),
        }
    }

    fn count(&self) -> Result<u64, SchemaError> {
        let whole = |number: f64| (number >= 0.0 && number.fract() == 0.0).then_some(number as u64);
        let count = self.value.as_u64().or_else(|| self.value.as_f64().and_then(whole));
        count.ok_or_else(|| self.error("must be a whole number of at least 0"))
    }

    fn names(&self) -> Result<Vec<String>, SchemaError> {
        let names = self.array()?.iter().map(|name| name.as_str().map(str::to_owned));
        names.collect::<Option<_>>().ok_or_else(|| self.error("must be an array of property names"))
    }

    fn types(&self) -> Result<Vec<Type>, SchemaError> {
        let named = |value: &Value| value.as_str().and_then(Type::named);
        let types = match self.value {
            Value::Array(types) => types.iter().map(named).collect::<Option<Vec<_>>>(),
            one => named(one).map(|one| vec![one]),
        };
        let types = types.filter(|types| !types.is_empty());
        types.ok_or_else(|| {
            let names: Vec<&str> = Type::ALL.iter().map(|(name, _)| *name).collect();
            self.error(&format!("must be one or several of {}", names.join(", ")))
        })
    }

    fn pattern(&self, text: &str) -> Result<Regex, SchemaError> {
        let built = regex::RegexBuilder::new(text)
            .size_limit(MAX_PATTERN_BYTES)
            .dfa_size_limit(PATTERN_CACHE_BYTES)
            .build();
        built.map_err(|error| {
            // The message draws the pattern over several lines; its last one says what is wrong.
            let why = error.to_string();
            let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            self.error(&format!("{text:?} is no regular expression: {why}"))
        })
    }
}
