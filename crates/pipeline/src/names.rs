//! The names in templates: each must be one that will be known when the template is filled in.

use std::collections::{BTreeSet, HashMap};

use sprag_lifecycle::StepNo;
use sprag_lifecycle::graph::come_before;

use crate::diagnostic::{Problem, Report};
use crate::graph::{Graph, Vertex};
use crate::inputs::Input;
use crate::nearest::nearest;
use crate::source::Span;
use crate::spec::Shell;
use crate::template::{self, Piece};
use crate::yaml::{Node, Scalar, Yaml, quoted};
use crate::{render, shell};

/// What a template can name.
const ROOTS: [&str; 6] = ["inputs", "run", "env", "steps", "item", "matrix"];
/// What is known of a run.
const RUN: [&str; 3] = ["id", "name", "branch"];
/// What is known of a step that has ended.
const STEP: [&str; 4] = ["outputs", "status", "attempt", "feedback"];
/// What the answer to a gate is made of.
const GATE: [&str; 3] = ["choice", "comment", "approved"];
/// What a landing tells.
const LAND: [&str; 6] = ["commit", "before", "moved", "checkouts_left", "pushed", "push_error"];
/// What a step knows of itself.
const ITSELF: [&str; 2] = ["attempt", "feedback"];

/// The places in the file that may hold templates.
#[derive(Debug, Default)]
pub(crate) struct Uses<'n> {
    list: Vec<Use<'n>>,
    /// The step whose places are being added.
    pub(crate) step: Option<usize>,
}

#[derive(Debug)]
struct Use<'n> {
    node: &'n Node,
    place: Place,
    step: Option<usize>,
}

/// What a template is for, which says what it can name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// The name of a group, known before there is a run.
    Group,
    /// A text about where the run works, known before anything else of it is.
    Workplace,
    /// The value of a variable, known before `env` is.
    Variable,
    /// The list of a fan-out, known before its items are.
    Items,
    /// An expression without braces, decided before the step is started.
    Condition,
    /// A text, or any texts in a tree.
    Text,
    /// A program and its arguments.
    Argv,
    /// A command for this shell.
    Command(Shell),
}

impl<'n> Uses<'n> {
    pub(crate) fn add(&mut self, node: &'n Node, place: Place) {
        self.list.push(Use { node, place, step: self.step });
    }
}

/// All that templates can name.
pub(crate) struct Scope<'s> {
    pub(crate) inputs: &'s [Input],
    pub(crate) steps: &'s [StepNames<'s>],
    pub(crate) graph: &'s Graph,
}

/// What templates can name of a step.
pub(crate) struct StepNames<'s> {
    id: Option<&'s str>,
    /// None where they are not declared: what a handler, an agent or a child run hands on is its own affair.
    outputs: Option<Vec<&'s str>>,
    axes: Option<Vec<&'s str>>,
    has_items: bool,
}

impl<'s> StepNames<'s> {
    pub(crate) fn of(node: &'s Node, vertex: &'s Vertex) -> StepNames<'s> {
        let keys = |node: &'s Node| node.entries().iter().map(|(key, _)| key.text.as_str()).collect();
        StepNames {
            id: vertex.id.as_ref().map(|id| id.name.as_str()),
            outputs: match () {
                () if node.get("gate").is_some() => Some(GATE.to_vec()),
                () if node.get("land").is_some() => Some(LAND.to_vec()),
                () if ["call", "task", "pipeline", "wait"].iter().any(|kind| node.get(kind).is_some()) => {
                    None
                }
                () => Some(node.get("outputs").map(keys).unwrap_or_default()),
            },
            axes: node.get("matrix").map(keys),
            has_items: node.get("foreach").is_some(),
        }
    }
}

/// Reports templates that are malformed, name what will not be known, or stand where no value may.
/// Warns of inputs that nothing uses.
pub(crate) fn check(uses: &Uses<'_>, scope: &Scope<'_>, report: &mut Report) {
    let numbers = scope.steps.iter().enumerate().filter_map(|(no, step)| Some((step.id?, no))).collect();
    let mut checker = Checker { scope, numbers, used: BTreeSet::new(), read: Vec::new(), report };
    for used in &uses.list {
        checker.check(used);
    }
    checker.check_order();
    if checker.report.has_errors() {
        return;
    }
    let used = checker.used;
    for input in scope.inputs.iter().filter(|input| !used.contains(&input.name)) {
        let problem = Problem::at(input.span, format!("nothing uses the input `{}`", input.name));
        report.warn(problem.help(format!("use it as {{{{ inputs.{} }}}}, or remove it", input.name)));
    }
}

struct Checker<'c> {
    scope: &'c Scope<'c>,
    numbers: HashMap<&'c str, usize>,
    used: BTreeSet<String>,
    /// Which step's results each step names, and where.
    read: Vec<((StepNo, StepNo), Span)>,
    report: &'c mut Report,
}

impl Checker<'_> {
    fn check(&mut self, used: &Use<'_>) {
        self.texts(used.node, used);
        if used.place == Place::Argv {
            let argv: Vec<&str> = used.node.items().iter().filter_map(Node::text).collect();
            if let Some(bad) = render::find_evaluated_argument(&argv) {
                let problem = Problem::at(used.node.items()[bad].span, shell::EVALUATED_AGAIN.message);
                self.report.error(problem.help(shell::EVALUATED_AGAIN.help));
            }
        }
    }

    /// Checks the text of a node, or all texts in it.
    fn texts(&mut self, node: &Node, used: &Use<'_>) {
        match &node.yaml {
            Yaml::Scalar(Scalar { text, .. }) if used.place == Place::Condition => {
                self.condition(text, node.span, used)
            }
            Yaml::Scalar(Scalar { text, .. }) => self.template(text, node.span, used),
            Yaml::List(items) => items.iter().for_each(|item| self.texts(item, used)),
            Yaml::Map(entries) => entries.iter().for_each(|(_, value)| self.texts(value, used)),
        }
    }

    fn condition(&mut self, text: &str, span: Span, used: &Use<'_>) {
        match template::condition(text) {
            Ok(expression) => template::names(expression).iter().for_each(|name| self.name(name, span, used)),
            Err(why) => {
                let problem = Problem::at(span, format!("not an expression: {why}"));
                self.report.error(problem.expected("an expression such as inputs.mode == 'quick'"));
            }
        }
    }

    fn template(&mut self, text: &str, span: Span, used: &Use<'_>) {
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
                self.name(&name, span, used);
            }
        }
        if let Place::Command(shell) = &used.place
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

    fn name(&mut self, name: &str, span: Span, used: &Use<'_>) {
        let parts: Vec<&str> = name.split('.').collect();
        let root = parts[0];
        let known = self.known_roots(used);
        if !known.contains(&root) {
            let message = match ROOTS.contains(&root) {
                true => format!("`{root}` is not known when this is filled in"),
                false => format!("nothing is called {}", quoted(root)),
            };
            let near = nearest(root, known.iter().copied());
            self.report.error(
                Problem::at(span, message).expected(format!("one of {}", known.join(", "))).nearest(near),
            );
            return;
        }
        match (root, parts.get(1).copied()) {
            ("inputs", Some(field)) => {
                let names: Vec<&str> = self.scope.inputs.iter().map(|input| input.name.as_str()).collect();
                if self.one_of(field, &names, "the pipeline has no input", "declare it under `inputs:`", span)
                {
                    self.used.insert(field.to_owned());
                }
            }
            ("inputs", None) => self.used.extend(self.scope.inputs.iter().map(|input| input.name.clone())),
            ("run", Some(field)) => {
                self.one_of(
                    field,
                    &RUN,
                    "a run has no",
                    "it has `id`, `name` and, with a worktree, `branch`",
                    span,
                );
            }
            ("matrix", Some(field)) => {
                let axes = used.step.and_then(|step| self.scope.steps[step].axes.clone()).unwrap_or_default();
                self.one_of(field, &axes, "the matrix has no", "add it to the step's `matrix`", span);
            }
            ("steps", Some(id)) => self.step(id, &parts[2..], span, used),
            _ => {}
        }
    }

    fn known_roots(&self, used: &Use<'_>) -> Vec<&'static str> {
        let step = used.step.map(|step| &self.scope.steps[step]);
        let known = |root: &str| match (root, &used.place) {
            ("inputs", _) => true,
            (_, Place::Group) => false,
            (root, Place::Workplace) => root == "run",
            ("env", place) => !matches!(place, Place::Variable | Place::Items | Place::Condition),
            ("item", place) => *place != Place::Items && step.is_some_and(|step| step.has_items),
            ("matrix", _) => step.is_some_and(|step| step.axes.is_some()),
            // Variables of the pipeline belong to every step, also to the first.
            ("steps", _) => step.is_some(),
            _ => true,
        };
        ROOTS.into_iter().filter(|root| known(root)).collect()
    }

    /// Whether the name is one of those; reported if not.
    fn one_of(&mut self, name: &str, names: &[&str], message: &str, help: &str, span: Span) -> bool {
        if names.contains(&name) {
            return true;
        }
        let near = if self.report.is_full() { None } else { nearest(name, names.iter().copied()) };
        self.report.error(Problem::at(span, format!("{message} {}", quoted(name))).nearest(near).help(help));
        false
    }

    /// A name of another step must be one that comes before this one, or its value may not be there. All are
    /// asked at once: a thousand steps may name each other.
    fn check_order(&mut self) {
        if self.scope.graph.is_circular {
            return;
        }
        let pairs: Vec<(StepNo, StepNo)> = self.read.iter().map(|(pair, _)| *pair).collect();
        let before = come_before(&self.scope.graph.needs, &pairs);
        for (((other, _), span), _) in self.read.iter().zip(before).filter(|(_, before)| !before) {
            let id = self.scope.steps[*other as usize].id.unwrap_or_default();
            let problem = Problem::at(*span, format!("step `{id}` may not have ended when this one starts"));
            self.report.error(problem.help(format!("add `{id}` to the `needs` of this step")));
        }
    }

    /// A name of another step, and what is known of that.
    fn step(&mut self, id: &str, rest: &[&str], span: Span, used: &Use<'_>) {
        let Some(other) = self.numbers.get(id).copied() else {
            let ids: Vec<&str> = self.scope.steps.iter().filter_map(|step| step.id).collect();
            let whole =
                ids.iter().find(|known| known.strip_prefix(id).is_some_and(|rest| rest.starts_with('-')));
            let help = match whole {
                Some(whole) => format!("here `-` is minus: write steps[\"{whole}\"]"),
                None => "name a step that this one needs".to_owned(),
            };
            self.one_of(id, &ids, "there is no step", &help, span);
            return;
        };
        let Some(this) = used.step else { return };
        let fields = if other == this { &ITSELF[..] } else { &STEP[..] };
        if other != this {
            self.read.push(((other as StepNo, this as StepNo), span));
        }
        let Some(field) = rest.first() else { return };
        let help = format!("it has {}", fields.join(", "));
        if self.one_of(field, fields, &format!("of step `{id}` there is no"), &help, span)
            && let ("outputs", Some(output)) = (*field, rest.get(1))
        {
            let Some(outputs) = self.scope.steps[other].outputs.clone() else { return };
            self.one_of(
                output,
                &outputs,
                &format!("step `{id}` has no output"),
                "declare it under its `outputs:`",
                span,
            );
        }
    }
}
