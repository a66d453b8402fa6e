//! The names in templates: each must be one that will be known when the template is filled in.

use std::collections::BTreeSet;

use crate::diagnostic::{Problem, Report};
use crate::inputs::Input;
use crate::nearest::nearest;
use crate::render;
use crate::source::Span;
use crate::spec::Shell;
use crate::template::{self, Piece};
use crate::yaml::{Node, Scalar, Yaml, quoted};

/// What a template can name, and whether it can do so yet.
const ROOTS: [(&str, bool); 6] =
    [("inputs", true), ("run", true), ("env", true), ("steps", false), ("item", false), ("matrix", false)];
/// What is known of a run.
const RUN: [&str; 2] = ["id", "name"];

/// A place in the file that may hold templates.
#[derive(Debug)]
pub(crate) struct Use<'n> {
    node: &'n Node,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// The name of a group, known before there is a run.
    Group,
    /// The value of a variable, known before `env` is.
    Variable,
    Text,
    Argv,
    Json,
    Command(Shell),
}

impl<'n> Use<'n> {
    pub(crate) fn group(node: &'n Node) -> Use<'n> {
        Use { node, place: Place::Group }
    }

    pub(crate) fn variable(node: &'n Node) -> Use<'n> {
        Use { node, place: Place::Variable }
    }

    pub(crate) fn text(node: &'n Node) -> Use<'n> {
        Use { node, place: Place::Text }
    }

    pub(crate) fn argv(node: &'n Node) -> Use<'n> {
        Use { node, place: Place::Argv }
    }

    pub(crate) fn json(node: &'n Node) -> Use<'n> {
        Use { node, place: Place::Json }
    }

    pub(crate) fn command(node: &'n Node, shell: Shell) -> Use<'n> {
        Use { node, place: Place::Command(shell) }
    }
}

/// Reports templates that are malformed, name what will not be known, or stand where no value may.
/// Warns of inputs that nothing uses.
pub(crate) fn check(uses: &[Use<'_>], inputs: &[Input], report: &mut Report) {
    let mut checker = Checker { inputs, used: BTreeSet::new(), report };
    for used in uses {
        checker.check(used);
    }
    if checker.report.has_errors() {
        return;
    }
    let unused: Vec<&Input> = inputs.iter().filter(|input| !checker.used.contains(&input.name)).collect();
    for input in unused {
        let problem = Problem::at(input.span, format!("nothing uses the input `{}`", input.name));
        report.warn(problem.help(format!("use it as {{{{ inputs.{} }}}}, or remove it", input.name)));
    }
}

struct Checker<'c> {
    inputs: &'c [Input],
    used: BTreeSet<String>,
    report: &'c mut Report,
}

impl Checker<'_> {
    fn check(&mut self, used: &Use<'_>) {
        match (&used.place, &used.node.yaml) {
            (Place::Argv, Yaml::List(items)) => {
                items.iter().for_each(|item| self.texts(item, &used.place));
                let argv: Vec<&str> = items.iter().filter_map(Node::text).collect();
                if let Some(bad) = render::find_evaluated_argument(&argv) {
                    let problem = Problem::at(items[bad].span, crate::shell::EVALUATED_AGAIN.message);
                    self.report.error(problem.help(crate::shell::EVALUATED_AGAIN.help));
                }
            }
            _ => self.texts(used.node, &used.place),
        }
    }

    /// Checks the text of a node, or all texts in it.
    fn texts(&mut self, node: &Node, place: &Place) {
        match &node.yaml {
            Yaml::Scalar(Scalar { text, .. }) => self.template(text, node.span, place),
            Yaml::List(items) => items.iter().for_each(|item| self.texts(item, place)),
            Yaml::Map(entries) => entries.iter().for_each(|(_, value)| self.texts(value, place)),
        }
    }

    fn template(&mut self, text: &str, span: Span, place: &Place) {
        // Most texts hold no template, and a thousand steps are loaded in a few milliseconds.
        if !text.contains("{{") && !text.contains("{%") {
            return;
        }
        let pieces = match template::split(text) {
            Ok(pieces) => pieces,
            Err(malformed) => {
                let span = self.locate(span, &malformed.part);
                self.report.error(Problem::at(span, malformed.message).help(malformed.help));
                return;
            }
        };
        let values = pieces.iter().filter_map(|piece| match piece {
            Piece::Value(expression) => Some(*expression),
            Piece::Literal(_) => None,
        });
        for expression in values.clone() {
            let span = self.locate(span, expression);
            for name in template::names(expression) {
                self.name(&name, span, place);
            }
        }
        if let Place::Command(shell) = place
            && let Err((bad, refusal)) = render::check_command(&pieces, shell)
        {
            let span = self.locate(span, values.clone().nth(bad).unwrap_or_default());
            self.report.error(Problem::at(span, refusal.message).help(refusal.help));
        }
    }

    /// Where a part of a text stands in the file; the whole where escapes or folding changed it.
    fn locate(&self, whole: Span, part: &str) -> Span {
        match self.report.source.slice(whole).find(part) {
            Some(at) if !part.is_empty() => {
                Span { start: whole.start + at, end: whole.start + at + part.len() }
            }
            _ => whole,
        }
    }

    fn name(&mut self, name: &str, span: Span, place: &Place) {
        let mut parts = name.split('.');
        let (root, field) = (parts.next().unwrap_or_default(), parts.next());
        let known: Vec<&str> = match place {
            Place::Group => vec!["inputs"],
            Place::Variable => vec!["inputs", "run"],
            _ => ROOTS.iter().filter(|(_, ready)| *ready).map(|(root, _)| *root).collect(),
        };
        if !known.contains(&root) {
            let message = match ROOTS.iter().find(|(name, _)| *name == root) {
                Some((_, false)) => format!("`{root}` in templates is not supported yet"),
                Some(_) => format!("`{root}` is not known yet when this is filled in"),
                None => format!("nothing is called {}", quoted(root)),
            };
            let near = nearest(root, known.iter().copied());
            self.report.error(
                Problem::at(span, message).expected(format!("one of {}", known.join(", "))).nearest(near),
            );
            return;
        }
        match (root, field) {
            ("inputs", Some(field)) => match self.inputs.iter().find(|input| input.name == field) {
                Some(_) => {
                    self.used.insert(field.to_owned());
                }
                None => {
                    let names = self.inputs.iter().map(|input| input.name.as_str());
                    let near = if self.report.is_full() { None } else { nearest(field, names) };
                    let message = format!("the pipeline has no input {}", quoted(field));
                    self.report
                        .error(Problem::at(span, message).nearest(near).help("declare it under `inputs:`"));
                }
            },
            ("inputs", None) => self.used.extend(self.inputs.iter().map(|input| input.name.clone())),
            ("run", Some(field)) if !RUN.contains(&field) => {
                let message = format!("a run has no {}", quoted(field));
                let problem = Problem::at(span, message).expected(format!("one of {}", RUN.join(", ")));
                self.report.error(problem.nearest(nearest(field, RUN)));
            }
            _ => {}
        }
    }
}
