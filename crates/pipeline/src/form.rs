//! The forms of values in a pipeline file, and the check of a node against its form.
//!
//! The loader and the JSON schema use the same forms, so that both accept the same files.

use crate::diagnostic::{Problem, Report};
use crate::duration;
use crate::foreign;
use crate::nearest::nearest;
use crate::sandbox;
use crate::yaml::{MapKey, Node, Scalar, ScalarKind, Yaml, quoted};

/// The form that a value must have.
#[derive(Debug)]
pub(crate) enum Form {
    /// Text that follows a rule.
    Text(Rule),
    /// A duration with its unit, of at least this many milliseconds.
    Duration(u64),
    /// A whole number between two bounds, both included.
    Integer(i64, i64),
    /// A number above zero and up to this bound.
    Positive(f64),
    /// `true` or `false`.
    Boolean,
    /// One of these words.
    Word(&'static [Word]),
    /// Text, a number or a boolean, used as text.
    Scalar,
    /// Any value, passed on as JSON.
    Any,
    /// A list of at least this many values of one form.
    List(&'static Form, usize),
    /// A map with fixed keys.
    Record(&'static Record),
    /// A map with keys that the author chooses.
    Table(Rule, &'static Form),
    /// One of several forms, selected by whether the value is a scalar, a list or a map.
    Either(&'static [Form]),
}

/// A fixed word that a value may be.
#[derive(Debug)]
pub(crate) struct Word {
    pub(crate) name: &'static str,
}

/// Returns the names of words.
pub(crate) fn names_of(words: &'static [Word]) -> impl Iterator<Item = &'static str> {
    words.iter().map(|word| word.name)
}

/// A map with fixed keys.
#[derive(Debug)]
pub(crate) struct Record {
    /// The thing it describes, for messages: "a step".
    pub(crate) what: &'static str,
    pub(crate) keys: &'static [Key],
}

/// A key of a record.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) form: Form,
    pub(crate) required: bool,
    pub(crate) about: &'static str,
}

/// A rule for text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Any text without zero bytes, possibly empty.
    Any,
    /// Like `Any`, with at least one character that is not blank.
    Filled,
    /// The id of a step.
    Id,
    /// The name of a pipeline, a queue or a handler.
    Name,
    /// A name that templates can refer to.
    Identifier,
    /// The name of an environment variable.
    Variable,
    /// The name of an inherited variable, or a prefix of such names followed by `*`.
    Inherited,
    /// A size in bytes with its unit.
    Size,
    /// A path of the machine: absolute, or below the home folder.
    SandboxPath,
    /// Such a path, or `worktree`.
    WritablePath,
}

impl Rule {
    /// Returns the expected form, for messages.
    pub(crate) fn expected(self) -> &'static str {
        match self {
            Rule::Any => "text",
            Rule::Filled => "text that is not empty",
            Rule::Id => "1 to 64 letters, digits, `-` and `_`, starting with a letter or digit",
            Rule::Name => "1 to 64 letters, digits, `-`, `_` and `.`, starting with a letter or digit",
            Rule::Identifier => "1 to 64 letters, digits and `_`, starting with a letter",
            Rule::Variable => "letters, digits and `_`, not starting with a digit or with `SPRAG_`",
            Rule::Size => "a size such as 512MiB or 4GiB, at least 1MiB",
            Rule::SandboxPath => "an absolute path, or one below the home folder such as ~/.cargo",
            Rule::WritablePath => {
                "`worktree`, an absolute path, or one below the home folder such as ~/.cache"
            }
            Rule::Inherited => {
                "a variable's name, or a prefix and `*`; not SPRAG_TOKEN, SPRAG_STORE or SPRAG_BUS, which no step can see"
            }
        }
    }

    /// Returns the rule as a regular expression for the schema, or `None` if any text is valid.
    pub(crate) fn pattern(self) -> Option<&'static str> {
        match self {
            Rule::Any => None,
            Rule::Filled => Some("\\S"),
            Rule::Id => Some("^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"),
            Rule::Name => Some("^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"),
            Rule::Identifier => Some("^[A-Za-z][A-Za-z0-9_]{0,63}$"),
            Rule::Variable => Some("^(?!SPRAG_)[A-Za-z_][A-Za-z0-9_]*$"),
            Rule::Size => Some("^[0-9]+(KiB|MiB|GiB|TiB)$"),
            Rule::SandboxPath => Some("^(~/|/)[^/{]"),
            Rule::WritablePath => Some("^(worktree$|(~/|/)[^/{])"),
            Rule::Inherited => Some("^(?!SPRAG_(TOKEN|STORE|BUS)$)([A-Za-z_][A-Za-z0-9_]*\\*?|\\*)$"),
        }
    }

    pub(crate) fn keeps(self, text: &str) -> bool {
        let word = |first: fn(char) -> bool, extra: &str| {
            text.len() <= 64
                && text.starts_with(first)
                && text.chars().all(|c| c.is_ascii_alphanumeric() || extra.contains(c))
        };
        match self {
            Rule::Any => !text.contains('\0'),
            Rule::Filled => !text.contains('\0') && !text.trim().is_empty(),
            Rule::Id => word(|c| c.is_ascii_alphanumeric(), "_-"),
            Rule::Name => word(|c| c.is_ascii_alphanumeric(), "._-"),
            Rule::Identifier => word(|c| c.is_ascii_alphabetic(), "_"),
            Rule::Variable => !text.starts_with("SPRAG_") && is_variable(text),
            Rule::Size => sandbox::bytes(text).is_some(),
            Rule::SandboxPath => sandbox::is_path(text),
            Rule::WritablePath => text == "worktree" || sandbox::is_path(text),
            Rule::Inherited => {
                let credential = ["SPRAG_TOKEN", "SPRAG_STORE", "SPRAG_BUS"].contains(&text);
                !credential && (text == "*" || is_variable(text.strip_suffix('*').unwrap_or(text)))
            }
        }
    }
}

fn is_variable(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl Record {
    pub(crate) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

impl Form {
    /// Reports all mistakes in the node and returns true if there are none. `what` names the value in messages.
    pub(crate) fn check(&self, node: &Node, what: &str, report: &mut Report) -> bool {
        match self {
            Form::Any => true,
            Form::Text(rule) => match node.text() {
                Some(text) if rule.keeps(text) => true,
                Some(text) => {
                    report.error(broken_rule(*rule, text, what, node.span));
                    false
                }
                None => self.refuse(node, what, report),
            },
            Form::Duration(min_ms) => match node.text().map(duration::parse_ms) {
                Some(Ok(ms)) if ms >= *min_ms => true,
                Some(Ok(_)) => {
                    report.error(
                        Problem::at(node.span, format!("{what} cannot be zero")).expected(duration::EXPECTED),
                    );
                    false
                }
                Some(Err(why)) => {
                    let message = format!("{what}: {why}: {}", quoted(node.text().unwrap_or_default()));
                    report.error(Problem::at(node.span, message).expected(duration::EXPECTED));
                    false
                }
                None => self.refuse(node, what, report),
            },
            Form::Integer(min, max) => match node.integer() {
                Some(n) if (*min..=*max).contains(&n) => true,
                _ => self.refuse(node, what, report),
            },
            Form::Positive(max) => match node.number() {
                Some(n) if n > 0.0 && n <= *max => true,
                _ => self.refuse(node, what, report),
            },
            Form::Boolean => node.boolean().is_some() || self.refuse(node, what, report),
            Form::Word(words) => self.check_word(words, node, what, report),
            Form::Scalar => match &node.yaml {
                Yaml::Scalar(Scalar { kind, text }) if *kind != ScalarKind::Null && !text.contains('\0') => {
                    true
                }
                _ => self.refuse(node, what, report),
            },
            Form::List(of, min) => match &node.yaml {
                Yaml::List(items) if items.len() >= *min => {
                    // Not `all`: every item is checked, so that every error is reported.
                    items.iter().filter(|item| !of.check(item, what, report)).count() == 0
                }
                _ => self.refuse(node, what, report),
            },
            Form::Record(record) => match &node.yaml {
                Yaml::Map(entries) => check_record(record, entries, node, report),
                _ => self.refuse(node, what, report),
            },
            Form::Table(rule, of) => match &node.yaml {
                Yaml::Map(entries) => {
                    let bad = entries.iter().filter(|(key, value)| {
                        let named = rule.keeps(&key.text);
                        if !named {
                            report.error(broken_rule(
                                *rule,
                                &key.text,
                                &format!("a name in {what}"),
                                key.span,
                            ));
                        }
                        !of.check(value, &format!("`{}` in {what}", shown(&key.text)), report) || !named
                    });
                    bad.count() == 0
                }
                _ => self.refuse(node, what, report),
            },
            Form::Either(forms) => match forms.iter().find(|form| form.fits(node)) {
                Some(form) => form.check(node, what, report),
                None => self.refuse(node, what, report),
            },
        }
    }

    /// Returns the expected form, for messages.
    pub(crate) fn expected(&self) -> String {
        match self {
            Form::Any => "a value".into(),
            Form::Text(rule) => rule.expected().into(),
            Form::Duration(_) => duration::EXPECTED.into(),
            Form::Integer(min, max) => format!("a whole number from {min} to {max}"),
            Form::Positive(max) => format!("a number above 0, up to {max}"),
            Form::Boolean => "true or false".into(),
            Form::Word(words) => one_of(names_of(words)),
            Form::Scalar => "text, a number or a boolean".into(),
            Form::List(_, 0) => "a list".into(),
            Form::List(_, min) => format!("a list of at least {min}"),
            Form::Record(record) => {
                let keys = record.keys.iter().map(|key| key.name);
                format!("a map with keys such as {}", keys.take(3).collect::<Vec<_>>().join(", "))
            }
            Form::Table(..) => "a map of names and values".into(),
            Form::Either(forms) => forms.iter().map(Form::expected).collect::<Vec<_>>().join("; or "),
        }
    }

    /// Returns whether a node of this kind is meant to have this form, valid or not.
    fn fits(&self, node: &Node) -> bool {
        match self {
            Form::List(..) => matches!(node.yaml, Yaml::List(_)),
            Form::Record(_) | Form::Table(..) => matches!(node.yaml, Yaml::Map(_)),
            Form::Any => true,
            Form::Integer(..) => node.integer().is_some(),
            Form::Positive(_) => node.number().is_some(),
            Form::Boolean => node.boolean().is_some(),
            Form::Text(_) | Form::Duration(_) | Form::Word(_) => node.text().is_some(),
            Form::Scalar => matches!(node.yaml, Yaml::Scalar(_)),
            Form::Either(forms) => forms.iter().any(|form| form.fits(node)),
        }
    }

    fn check_word(&self, words: &'static [Word], node: &Node, what: &str, report: &mut Report) -> bool {
        let Some(text) = node.text() else { return self.refuse(node, what, report) };
        if names_of(words).any(|name| name == text) {
            return true;
        }
        let near = nearest(text, names_of(words));
        let message = format!("{what} cannot be {}", quoted(text));
        report.error(Problem::at(node.span, message).expected(self.expected()).nearest(near));
        false
    }

    /// Reports a node of the wrong kind. Returns false for the convenience of callers.
    fn refuse(&self, node: &Node, what: &str, report: &mut Report) -> bool {
        let found = match (&node.yaml, self) {
            (Yaml::Scalar(scalar), Form::Integer(..)) if node.integer().is_some() => {
                format!("{what} cannot be {}", quoted(&scalar.text))
            }
            (Yaml::Scalar(scalar), _) if scalar.kind != ScalarKind::Null => {
                format!("{what} cannot be {}, {}", quoted(&scalar.text), node.describe())
            }
            (Yaml::List(items), Form::List(..)) if items.is_empty() => format!("{what} is an empty list"),
            _ => format!("{what} cannot be {}", node.describe()),
        };
        let mut problem = Problem::at(node.span, found).expected(self.expected());
        if let Some(remedy) = self.remedy(node) {
            problem = problem.help(remedy);
        }
        report.error(problem);
        false
    }

    /// Suggests a correction, if the author's intention can be guessed.
    fn remedy(&self, node: &Node) -> Option<String> {
        let Yaml::Scalar(scalar) = &node.yaml else { return None };
        match (self, scalar.kind) {
            (Form::Duration(_), ScalarKind::Integer(n)) => {
                Some(format!("add a unit: `{n}s` for {n} seconds"))
            }
            (Form::Record(record), ScalarKind::Integer(n)) if record.what == "`retry`" => {
                Some(format!("write `retry: {{ attempts: {n} }}`"))
            }
            (Form::Boolean, ScalarKind::Text) => match scalar.text.to_lowercase().as_str() {
                "yes" | "on" | "y" => Some("write `true`".into()),
                "no" | "off" | "n" => Some("write `false`".into()),
                _ => None,
            },
            (Form::Integer(..), ScalarKind::Text) if scalar.text.parse::<i64>().is_ok() => {
                Some("remove the quotes".into())
            }
            (
                Form::Text(_) | Form::Word(_),
                ScalarKind::Integer(_) | ScalarKind::Number(_) | ScalarKind::Boolean(_),
            ) => Some(format!("write it in quotes: \"{}\"", scalar.text)),
            _ => None,
        }
    }
}

fn check_record(
    record: &'static Record,
    entries: &[(MapKey, Node)],
    node: &Node,
    report: &mut Report,
) -> bool {
    let mut right = true;
    for (name, value) in entries {
        right &= match record.key(&name.text) {
            Some(key) => key.form.check(value, &format!("`{}`", key.name), report),
            None if foreign::answer(record.what, &name.text).is_some() => {
                let message = format!("{} has no key {}", record.what, quoted(&name.text));
                let answer = foreign::answer(record.what, &name.text).unwrap_or_default();
                report.error(Problem::at(name.span, message).help(answer));
                false
            }
            None => {
                let known = || record.keys.iter().map(|key| key.name);
                let near = if report.is_full() {
                    None
                } else {
                    nearest(&name.text, record.keys.iter().map(|k| k.name))
                };
                let message = format!("{} has no key {}", record.what, quoted(&name.text));
                report.error(Problem::at(name.span, message).expected(one_of(known())).nearest(near));
                false
            }
        };
    }
    for key in record.keys.iter().filter(|key| key.required) {
        if !entries.iter().any(|(name, _)| name.text == key.name) {
            let message = format!("{} needs the key `{}`", record.what, key.name);
            report.error(Problem::at(node.span, message).help(format!("`{}`: {}", key.name, key.about)));
            right = false;
        }
    }
    right
}

fn broken_rule(rule: Rule, text: &str, what: &str, span: crate::source::Span) -> Problem {
    let message = if text.is_empty() {
        format!("{what} is empty")
    } else {
        format!("{what} cannot be {}", quoted(text))
    };
    Problem::at(span, message).expected(rule.expected())
}

fn shown(text: &str) -> String {
    quoted(text).trim_matches('`').to_owned()
}

fn one_of<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    match names.as_slice() {
        [] => "nothing".into(),
        [only] => format!("`{only}`"),
        _ => format!("one of {}", names.join(", ")),
    }
}
