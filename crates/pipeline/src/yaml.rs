//! Reads YAML text as a tree in which every node has a position. Depth and size are bounded.
//!
//! The tree is built from the parser's events rather than through serde: serde stops at the first error and has no
//! positions for keys, while authors want all errors at once.

use std::collections::{HashMap, HashSet};

use granit_parser::{Event, Parser, ScalarStyle, Tag};
use serde_json::Value;

use crate::diagnostic::{Problem, Report};
use crate::source::{Source, Span};

/// Deeper than any key of the language, with room for the JSON arguments of a handler.
const MAX_DEPTH: usize = 32;
/// The most nodes after aliases are expanded. The largest file without aliases has fewer.
const MAX_NODES: usize = 400_000;
/// The most bytes of text after aliases are expanded: four times the largest file.
const MAX_TEXT_BYTES: usize = 4 << 20;

const QUOTE_TEMPLATES: &str = "a text that starts with `{{` needs quotes: \"{{ inputs.x }}\"";

const QUOTE_BRACKETS: &str =
    "inside `{ … }` and `[ … ]`, put a text with `{` or `[` in quotes: { run: \"echo {{ run.id }}\" }";
/// The lines before an error in which the text that causes it is searched.
const LINES_BEFORE: usize = 5;

/// A value with its position.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) span: Span,
    pub(crate) yaml: Yaml,
    /// The number of nodes in the subtree, including this one.
    size: usize,
    /// The number of levels of the subtree, including this one.
    height: usize,
    /// The number of bytes of text in the subtree, including keys.
    bytes: usize,
}

#[derive(Debug, Clone)]
pub(crate) enum Yaml {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<(MapKey, Node)>),
}

/// A scalar as written, with its type by YAML 1.2.
#[derive(Debug, Clone)]
pub(crate) struct Scalar {
    pub(crate) text: String,
    pub(crate) kind: ScalarKind,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ScalarKind {
    Null,
    Boolean(bool),
    Integer(i64),
    Number(f64),
    Text,
}

#[derive(Debug, Clone)]
pub(crate) struct MapKey {
    pub(crate) text: String,
    pub(crate) span: Span,
}

impl Node {
    pub(crate) fn new(span: Span, yaml: Yaml) -> Node {
        let (size, height, bytes) = match &yaml {
            Yaml::Scalar(scalar) => (0, 0, scalar.text.len()),
            Yaml::List(items) => totals(items.iter()),
            Yaml::Map(entries) => {
                let (size, height, bytes) = totals(entries.iter().map(|(_, node)| node));
                (size, height, bytes + entries.iter().map(|(key, _)| key.text.len()).sum::<usize>())
            }
        };
        Node { span, yaml, size: size + 1, height: height + 1, bytes }
    }

    /// Describes the node for "expected …, found …".
    pub(crate) fn describe(&self) -> &'static str {
        match &self.yaml {
            Yaml::List(_) => "a list",
            Yaml::Map(_) => "a map",
            Yaml::Scalar(scalar) => match scalar.kind {
                ScalarKind::Null => "null",
                ScalarKind::Boolean(_) => "a boolean",
                ScalarKind::Integer(_) => "an integer",
                ScalarKind::Number(_) => "a number",
                ScalarKind::Text => "text",
            },
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|(k, _)| k.text == key).map(|(_, node)| node)
    }

    /// Returns the entries of a map; empty for other nodes.
    pub(crate) fn entries(&self) -> &[(MapKey, Node)] {
        if let Yaml::Map(entries) = &self.yaml { entries } else { &[] }
    }

    /// Returns the items of a list; empty for other nodes.
    pub(crate) fn items(&self) -> &[Node] {
        if let Yaml::List(items) = &self.yaml { items } else { &[] }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match &self.yaml {
            Yaml::Scalar(Scalar { text, kind: ScalarKind::Text }) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn integer(&self) -> Option<i64> {
        match &self.yaml {
            Yaml::Scalar(Scalar { kind: ScalarKind::Integer(n), .. }) => Some(*n),
            _ => None,
        }
    }

    /// Returns a whole or a decimal number.
    pub(crate) fn number(&self) -> Option<f64> {
        match &self.yaml {
            Yaml::Scalar(Scalar { kind: ScalarKind::Integer(n), .. }) => Some(*n as f64),
            Yaml::Scalar(Scalar { kind: ScalarKind::Number(n), .. }) => Some(*n),
            _ => None,
        }
    }

    pub(crate) fn boolean(&self) -> Option<bool> {
        match &self.yaml {
            Yaml::Scalar(Scalar { kind: ScalarKind::Boolean(b), .. }) => Some(*b),
            _ => None,
        }
    }

    pub(crate) fn json(&self) -> Value {
        match &self.yaml {
            Yaml::Scalar(scalar) => match scalar.kind {
                ScalarKind::Null => Value::Null,
                ScalarKind::Boolean(b) => Value::Bool(b),
                ScalarKind::Integer(n) => Value::from(n),
                ScalarKind::Number(n) => Value::from(n),
                ScalarKind::Text => Value::String(scalar.text.clone()),
            },
            Yaml::List(items) => items.iter().map(Node::json).collect(),
            Yaml::Map(entries) => entries.iter().map(|(key, node)| (key.text.clone(), node.json())).collect(),
        }
    }
}

fn totals<'a>(children: impl Iterator<Item = &'a Node>) -> (usize, usize, usize) {
    children.fold((0, 0, 0), |(size, height, bytes), child| {
        (size + child.size, height.max(child.height), bytes + child.bytes)
    })
}

/// Reads the first document of the report's source. Reports errors and returns `None` if there are any.
pub(crate) fn read(report: &mut Report) -> Option<Node> {
    let source = report.source.clone();
    let mut builder =
        Builder { report, open: Vec::new(), anchors: HashMap::new(), nodes: 0, copied_bytes: 0, root: None };
    let mut documents = 0;
    for next in Parser::new_from_str(&source.text) {
        let (event, span) = match next {
            Ok((event, span)) => (event, Span::from(span.byte_range().unwrap_or_default())),
            Err(error) => {
                let at = error.marker().byte_offset().unwrap_or(source.text.len());
                let has_tab = error.info().contains("tab");
                // The parser names the value before the tab.
                let rest = source.text.get(at..).unwrap_or_default();
                let tab = rest.find('\t').filter(|tab| has_tab && rest[..*tab].lines().count() <= 2);
                let at = at + tab.unwrap_or(0);
                let problem = Problem::at(Span { start: at, end: at }, format!("not YAML: {}", error.info()));
                let line = source.line(source.position(at).line);
                let bare = [": {{", "- {{", "[{{", ", {{"].iter().any(|bare| line.contains(bare));
                builder.report.error(if bare {
                    problem.help(QUOTE_TEMPLATES)
                } else if has_tab {
                    problem.help("indent with spaces: YAML allows no tabs there")
                } else if has_bare_brackets(&source, at) {
                    problem.help(QUOTE_BRACKETS)
                } else {
                    problem
                });
                return None;
            }
        };
        if matches!(event, Event::DocumentStart(..)) {
            documents += 1;
            if documents > 1 {
                // The further documents are read by themselves.
                break;
            }
        }
        if let Err(problem) = builder.event(event, span) {
            builder.report.error(problem);
            return None;
        }
    }
    builder.root
}

/// Returns whether the lines up to an error have a text without quotes inside a flow map or list that contains a bracket.
fn has_bare_brackets(source: &Source, error: usize) -> bool {
    let last = source.position(error).line;
    // Some errors are found at the start of the next line.
    (last.saturating_sub(LINES_BEFORE).max(1)..=last).any(|first| {
        let (mut depth, mut quote) = (0_usize, None);
        (first..=last).any(|line| bare_bracket_in(source.line(line), &mut depth, &mut quote))
    })
}

/// Reads one line of flow collections that are open `depth` times, perhaps inside quotes.
fn bare_bracket_in(line: &str, depth: &mut usize, quote: &mut Option<char>) -> bool {
    let mut in_text = false;
    let mut before = ' ';
    let mut chars = line.trim_start().trim_start_matches("- ").chars().peekable();
    while let Some(c) = chars.next() {
        let ends_key = c == ':' && chars.peek().is_none_or(|next| next.is_whitespace());
        match c {
            _ if *quote == Some(c) => *quote = None,
            _ if quote.is_some() => {}
            '\'' | '"' if !in_text => (*quote, in_text) = (Some(c), true),
            '#' if before.is_whitespace() => return false,
            '{' | '[' if in_text && *depth > 0 => return true,
            '{' | '[' if !in_text => *depth += 1,
            '}' | ']' if *depth > 0 => (*depth, in_text) = (*depth - 1, false),
            ',' if *depth > 0 => in_text = false,
            ':' if ends_key => in_text = false,
            _ => in_text |= !c.is_whitespace(),
        }
        before = c;
    }
    false
}

struct Builder<'r> {
    report: &'r mut Report,
    open: Vec<Frame>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    /// Bytes of text that anchors and aliases have added to the file's.
    copied_bytes: usize,
    root: Option<Node>,
}

/// A collection that has not ended yet.
struct Frame {
    span: Span,
    anchor: usize,
    inside: Inside,
}

enum Inside {
    List(Vec<Node>),
    Map { entries: Vec<(MapKey, Node)>, seen: HashSet<String>, key: Option<MapKey> },
}

impl Builder<'_> {
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), Problem> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let forced_text = refuse_tag(tag.as_deref(), span)?;
                let plain = style == ScalarStyle::Plain && !forced_text;
                let kind = if plain { resolve(&text) } else { ScalarKind::Text };
                let scalar = Scalar { text: text.into_owned(), kind };
                self.add(anchor, Node::new(trimmed(span, self.report), Yaml::Scalar(scalar)))
            }
            Event::SequenceStart(_, anchor, tag) => {
                refuse_tag(tag.as_deref(), span)?;
                self.begin(span, anchor, Inside::List(Vec::new()))
            }
            Event::MappingStart(_, anchor, tag) => {
                refuse_tag(tag.as_deref(), span)?;
                self.begin(span, anchor, Inside::Map { entries: Vec::new(), seen: HashSet::new(), key: None })
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(frame) = self.open.pop() else { return Ok(()) };
                let whole =
                    trimmed(Span { start: frame.span.start, end: span.end.max(frame.span.end) }, self.report);
                let yaml = match frame.inside {
                    Inside::List(items) => Yaml::List(items),
                    Inside::Map { entries, .. } => Yaml::Map(entries),
                };
                self.add(frame.anchor, Node::new(whole, yaml))
            }
            Event::Alias(id) => match self.anchors.get(&id) {
                Some(node) if self.nodes + node.size > MAX_NODES => Err(too_many(span)),
                Some(node) if self.copied_bytes + node.bytes > MAX_TEXT_BYTES => Err(too_long(span)),
                Some(node) => {
                    let copy = Node { span, ..node.clone() };
                    self.nodes += copy.size - 1;
                    self.copied_bytes += copy.bytes;
                    self.add(0, copy)
                }
                None => Err(Problem::at(span, "this alias is inside the value that it refers to")),
            },
            _ => Ok(()),
        }
    }

    fn begin(&mut self, span: Span, anchor: usize, inside: Inside) -> Result<(), Problem> {
        if self.open.len() >= MAX_DEPTH {
            return Err(too_deep(span));
        }
        self.open.push(Frame { span, anchor, inside });
        Ok(())
    }

    /// Adds a finished node to its collection.
    fn add(&mut self, anchor: usize, node: Node) -> Result<(), Problem> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(too_many(node.span));
        }
        // An alias adds its own levels, which `begin` has not counted.
        if self.open.len() + node.height > MAX_DEPTH + 1 {
            return Err(too_deep(node.span));
        }
        if anchor > 0 {
            // A node inside several anchors is stored once for each.
            if self.copied_bytes + node.bytes > MAX_TEXT_BYTES {
                return Err(too_long(node.span));
            }
            self.anchors.insert(anchor, node.clone());
            self.nodes += node.size;
            self.copied_bytes += node.bytes;
        }
        match self.open.last_mut().map(|frame| &mut frame.inside) {
            None => self.root = Some(node),
            Some(Inside::List(items)) => items.push(node),
            Some(Inside::Map { entries, seen, key }) => match key.take() {
                Some(name) => {
                    if seen.insert(name.text.clone()) {
                        entries.push((name, node));
                    } else {
                        let message = format!("the key {} is written twice", quoted(&name.text));
                        self.report.error(Problem::at(name.span, message).help("remove one of them"));
                    }
                }
                None => {
                    let Yaml::Scalar(scalar) = node.yaml else {
                        let source = &self.report.source.text;
                        if source[..node.span.start].ends_with('{')
                            && source[node.span.start..].starts_with('{')
                        {
                            let whole = Span { start: node.span.start - 1, end: node.span.end };
                            return Err(Problem::at(whole, "YAML takes this for a map").help(QUOTE_TEMPLATES));
                        }
                        return Err(
                            Problem::at(node.span, "a key must be a word").expected("a key, such as `run:`")
                        );
                    };
                    *key = Some(MapKey { text: scalar.text, span: node.span });
                }
            },
        }
        Ok(())
    }
}

fn too_many(span: Span) -> Problem {
    Problem::at(span, format!("the file grows past {MAX_NODES} values here")).help("use fewer aliases")
}

fn too_long(span: Span) -> Problem {
    let message = format!("aliases make the file grow past {} MiB here", MAX_TEXT_BYTES >> 20);
    Problem::at(span, message).help("use fewer aliases, or move long texts to files of their own")
}

fn too_deep(span: Span) -> Problem {
    Problem::at(span, format!("nested more than {MAX_DEPTH} levels deep"))
}

/// Returns whether a tag asks for text. Refuses all tags except those that restate the default type.
fn refuse_tag(tag: Option<&Tag>, span: Span) -> Result<bool, Problem> {
    match tag.map(|tag| tag.core_suffix()) {
        None | Some(Some("seq" | "map")) => Ok(false),
        Some(Some("str")) => Ok(true),
        Some(_) => {
            Err(Problem::at(span, "YAML tags are not supported").help("remove the word that starts with `!`"))
        }
    }
}

/// Returns the span without the trailing blank lines of a block.
fn trimmed(span: Span, report: &Report) -> Span {
    let kept = report.source.slice(span).trim_end().len();
    Span { start: span.start, end: span.start + kept }
}

/// Returns the type of an unquoted scalar by the core schema of YAML 1.2: `yes`, `no`, `on` and `off` are text.
fn resolve(text: &str) -> ScalarKind {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return ScalarKind::Null,
        "true" | "True" | "TRUE" => return ScalarKind::Boolean(true),
        "false" | "False" | "FALSE" => return ScalarKind::Boolean(false),
        _ => {}
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let radix =
        |prefix: &str, radix| text.strip_prefix(prefix).and_then(|d| i64::from_str_radix(d, radix).ok());
    if digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        let integer = digits.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        if let Some(n) = integer.or_else(|| radix("0x", 16)).or_else(|| radix("0o", 8)) {
            return ScalarKind::Integer(n);
        }
        let numeric = digits.bytes().all(|b| b.is_ascii_digit() || b".eE+-".contains(&b));
        if let Some(n) = numeric.then(|| text.parse::<f64>().ok()).flatten().filter(|n| n.is_finite()) {
            return ScalarKind::Number(n);
        }
    }
    ScalarKind::Text
}

/// Quotes text of the file for a message: in backticks, with control characters made visible.
pub(crate) fn quoted(text: &str) -> String {
    const MAX_CHARS: usize = 60;
    let mut shown: String = text.chars().take(MAX_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        shown.push('…');
    }
    format!("`{}`", shown.replace("\\'", "'").replace("\\\"", "\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<Value, String> {
        let mut report = Report::new(Source::new("f", text));
        let node = read(&mut report);
        if report.has_errors() {
            let first = report.finish();
            let first = first.iter().next().unwrap().clone();
            return Err(format!("{}:{} {}", first.line.unwrap(), first.column.unwrap(), first.message));
        }
        Ok(node.map_or(Value::Null, |node| node.json()))
    }

    #[test]
    fn scalars_follow_the_core_schema() {
        let text = "[1, -2, 0x10, 0o7, 1.5, 1e3, true, yes, no, on, ~, '1', .5, 1_000, 1.2.3, +3, \"a\\nb\", 99999999999999999999]";
        let json =
            r#"[1,-2,16,7,1.5,1000.0,true,"yes","no","on",null,"1",0.5,"1_000","1.2.3",3,"a\nb",1e20]"#;
        assert_eq!(check(text), Ok(serde_json::from_str(json).unwrap()));
    }

    #[test]
    fn brackets_in_a_text_inside_a_flow_map_ask_for_quotes() {
        let help = |text: &str| {
            let mut report = Report::new(Source::new("f", text));
            read(&mut report);
            report.finish().iter().next().and_then(|first| first.help.clone()).unwrap_or_default()
        };
        for text in [
            "- { id: a, run: echo {{ run.id }} }",
            "steps:\n- { id: b, when: steps[\"a-b\"].status == 'x', run: x }\n- { id: c, run: x }\n",
            "- {id: a,\n   run: echo {{ run.id }} }",
            "- { id: a, run: [echo, a{{ run.id }}] }",
        ] {
            assert_eq!(help(text), QUOTE_BRACKETS, "{text}");
        }
        for text in ["a: [1, 2", "a: { b: 'c {{ d }}'", "a: b: {{ c }}", "a: &x [*y]"] {
            assert_ne!(help(text), QUOTE_BRACKETS, "{text}");
        }
    }

    #[test]
    fn an_invalid_pipeline_is_refused_with_its_position() {
        let deep = format!("{}1{}", "[".repeat(40), "]".repeat(40));
        let ladder: String =
            (1..60).fold("a0: &a0 x\n".into(), |s, n| format!("{s}a{n}: &a{n} [*a{}]\n", n - 1));
        let bomb = (1..12).fold("a0: &a0 x\n".to_owned(), |s, n| {
            let ten = vec![format!("*a{}", n - 1); 10].join(", ");
            format!("{s}a{n}: &a{n} [{ten}]\n")
        });
        // One large scalar with many aliases, and nested anchors.
        let long = format!("a: &a {}\nb: [{}]", "x".repeat(400_000), "*a, ".repeat(20_000));
        let anchors: String = (0..30).map(|n| format!("&a{n} [")).collect();
        let nested = format!("a: {anchors}{}{}", "x".repeat(400_000), "]".repeat(30));
        for (text, error) in [
            ("a: 1\nb: 2\na: 3", "3:1 the key `a` is written twice"),
            ("a: [1, 2", "1:4 not YAML: "),
            ("a: &x [*x]", "1:8 this alias is inside the value that it refers to"),
            ("a: *nope", "1:4 not YAML: "),
            ("a: !secret x", "1:"),
            ("? [a]\n: b", "1:3 a key must be a word"),
            (&deep, "1:33 nested more than 32 levels deep"),
            (&ladder, "33:12 nested more than 32 levels deep"),
            (&bomb, "7:"),
            (&long, "2:"),
            (&nested, "1:"),
        ] {
            let found = check(text).unwrap_err();
            assert!(found.starts_with(error), "{text}\n{found}");
        }
    }
}
