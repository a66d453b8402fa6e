//! Checks the names in templates: each must be defined at the time when the template is rendered.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use serde_json::Value;
use sprag_lifecycle::StepNo;
use sprag_lifecycle::graph::come_before;

use crate::diagnostic::{Problem, Report};
use crate::expression::{Budget, NOW};
use crate::graph::{Graph, Vertex};
use crate::inline::Outer;
use crate::inputs::Input;
use crate::nearest::nearest;
use crate::shell::Verdict;
use crate::source::Span;
use crate::spec::Shell;
use crate::template::{self, Piece};
use crate::yaml::{Node, Scalar, Yaml, quoted};
use crate::{agent, kinds, render, shell};

/// The names at the top of the template context.
const ROOTS: [&str; 7] = ["inputs", "run", "env", "steps", "item", "item_index", "matrix"];
/// The fields of `run`.
const RUN: [&str; 4] = ["id", "name", "branch", "status"];
/// The fields of a step that has finished.
const STEP: [&str; 8] =
    ["outputs", "status", "attempt", "round", "feedback", "error", "exit_code", "timed_out"];
/// The outputs of every gate.
pub(crate) const GATE_OUTPUTS: [&str; 3] = ["choice", "comment", "approved"];
/// The outputs of a landing.
const LAND: [&str; 6] = ["commit", "before", "moved", "checkouts", "pushed", "push_error"];
/// The fields of a step that its own templates can use.
const ITSELF: [&str; 2] = ["attempt", "feedback"];
/// The fields of a step with `repeat` that its own templates can use; `outputs` are those of the last round.
const ITSELF_REPEATED: [&str; 4] = ["attempt", "feedback", "round", "outputs"];

/// The texts of a file that may contain templates.
#[derive(Debug, Default)]
pub(crate) struct Uses<'n> {
    list: Vec<Use<'n>>,
    /// The step whose texts are being added.
    pub(crate) step: Option<usize>,
}

#[derive(Debug)]
struct Use<'n> {
    node: Cow<'n, Node>,
    role: TemplateRole,
    step: Option<usize>,
}

/// The role of a template, which decides the names it can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TemplateRole {
    /// The name of a concurrency group, or the name or a label of a run, rendered before the run exists.
    Group,
    /// An output of the pipeline, rendered after the run has ended.
    Output,
    /// A text of the run's environment, rendered when the run is created.
    Workplace,
    /// The value of an environment variable, rendered before `env` is defined.
    Variable,
    /// The list of a fan-out, rendered before its items exist.
    Items,
    /// An expression without braces, evaluated before the step starts.
    Condition,
    /// A text, or all texts in a tree.
    Text,
    /// A program and its arguments.
    Argv,
    /// A command for this shell.
    Command(Shell),
}

impl<'n> Uses<'n> {
    pub(crate) fn add(&mut self, node: &'n Node, role: TemplateRole) {
        self.list.push(Use { node: Cow::Borrowed(node), role, step: self.step });
    }

    /// Adds a text that is not in the pipeline file; its span is that of the key which names it.
    pub(crate) fn add_owned(&mut self, node: Node, role: TemplateRole) {
        self.list.push(Use { node: Cow::Owned(node), role, step: self.step });
    }
}

/// All names that templates can use.
pub(crate) struct Scope<'s> {
    /// The names around the step in which the pipeline is written.
    pub(crate) outer: Option<&'s Outer>,
    pub(crate) inputs: &'s [Input],
    pub(crate) steps: &'s [StepNames<'s>],
    pub(crate) graph: &'s Graph,
}

/// The names that templates can use for one step.
pub(crate) struct StepNames<'s> {
    pub(crate) id: Option<&'s str>,
    /// Absent if the outputs are not declared in the file, as for handlers, agents and child runs.
    pub(crate) outputs: Option<Vec<&'s str>>,
    axes: Option<Vec<&'s str>>,
    has_items: bool,
    repeats: bool,
}

impl<'s> StepNames<'s> {
    pub(crate) fn of(node: &'s Node, vertex: &'s Vertex) -> StepNames<'s> {
        let keys = |node: &'s Node| -> Vec<&'s str> {
            node.entries().iter().map(|(key, _)| key.text.as_str()).collect()
        };
        StepNames {
            id: vertex.id.as_ref().map(|id| id.name.as_str()),
            outputs: match () {
                () if node.get("gate").is_some() => {
                    let fields = node.get("gate").and_then(|gate| gate.get("fields")).map(keys);
                    Some(GATE_OUTPUTS.into_iter().chain(fields.unwrap_or_default()).collect())
                }
                () if node.get("land").is_some() => Some(LAND.to_vec()),
                () if node.get("agent").is_some() => Some(agent::output_names(node)),
                () if node.get("end").is_some() => Some(vec!["message"]),
                () if ["call", "task", "pipeline", "wait", "steps"]
                    .iter()
                    .any(|kind| node.get(kind).is_some()) =>
                {
                    None
                }
                // A command that writes to the file of outputs names them there.
                () if node.get("run").is_some_and(writes_outputs) => None,
                () => Some(node.get("outputs").map(keys).unwrap_or_default()),
            },
            axes: node.get("matrix").map(axes),
            has_items: node.get("foreach").is_some(),
            repeats: node.get("repeat").is_some(),
        }
    }
}

/// Returns the names of a matrix: its axes, and the names that `include` adds.
pub(crate) fn axes(matrix: &Node) -> Vec<&str> {
    let mut names = Vec::new();
    for (key, value) in matrix.entries() {
        match key.text.as_str() {
            "exclude" => {}
            "include" => {
                let added = value.items().iter().flat_map(Node::entries).map(|(key, _)| key.text.as_str());
                names.extend(added);
            }
            axis => names.push(axis),
        }
    }
    names
}

/// Returns whether a command names the variable with the file of its outputs.
fn writes_outputs(command: &Node) -> bool {
    command
        .items()
        .iter()
        .chain([command])
        .any(|part| part.text().is_some_and(|text| text.contains("SPRAG_OUTPUT")))
}

/// Reports templates that are malformed, use undefined names, or stand where no value is allowed. Warns of unused
/// inputs.
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
    /// Pairs of a step and the step whose results it reads, with the position of the name.
    read: Vec<((StepNo, StepNo), Span)>,
    report: &'c mut Report,
}

impl Checker<'_> {
    fn check(&mut self, used: &Use<'_>) {
        self.texts(&used.node, used);
        if used.role == TemplateRole::Argv {
            let argv: Vec<&str> = used
                .node
                .items()
                .iter()
                .map(|argument| kinds::argument(argument).map_or("", |(text, _)| text))
                .collect();
            for (at, verdict) in shell::arguments(&argv) {
                self.report_verdict(used.node.items()[at].span, &verdict);
            }
        }
    }

    /// Checks the text of a node, or all texts in it.
    fn texts(&mut self, node: &Node, used: &Use<'_>) {
        match &node.yaml {
            // A boolean needs no check, and other values have been reported.
            Yaml::Scalar(_) if used.role == TemplateRole::Condition => {
                if let Some(text) = node.text() {
                    self.condition(text, node.span, used);
                }
            }
            Yaml::Scalar(Scalar { text, .. }) => self.template(text, node.span, used),
            Yaml::List(items) => items.iter().for_each(|item| self.texts(item, used)),
            Yaml::Map(entries) => entries.iter().for_each(|(_, value)| self.texts(value, used)),
        }
    }

    fn condition(&mut self, text: &str, span: Span, used: &Use<'_>) {
        match template::condition(text) {
            Ok(expression) => {
                let names = template::names(expression);
                names.iter().for_each(|name| self.name(name, span, used));
                if names.is_empty()
                    && let Err(why) = template::holds(text, &Value::Null, &Budget::default())
                {
                    let problem = Problem::at(span, format!("not a condition: {why}"));
                    self.report.error(problem.expected("an expression such as inputs.mode == 'quick'"));
                }
            }
            Err(why) => {
                let problem = Problem::at(span, format!("not an expression: {why}"))
                    .expected("an expression such as inputs.mode == 'quick'");
                self.report.error(if text.contains("{{") {
                    let plain = text.replace("{{", " ").replace("}}", " ");
                    let plain = plain.split_whitespace().collect::<Vec<_>>().join(" ");
                    problem.help(format!("write it without braces: {}", quoted(&plain)))
                } else {
                    problem
                });
            }
        }
    }

    fn template(&mut self, text: &str, span: Span, used: &Use<'_>) {
        // Most texts contain no template; this check keeps loading a thousand steps within milliseconds.
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
        let TemplateRole::Command(shell) = &used.role else { return };
        match render::check_command(&pieces, shell) {
            Ok(reading) => {
                for (value, verdict) in reading.doubtful {
                    let span = self.locate(span, values.clone().nth(value).unwrap_or_default());
                    self.report_verdict(span, &verdict);
                }
            }
            Err((bad, refusal)) => {
                let span = self.locate(span, values.clone().nth(bad).unwrap_or_default());
                self.report.error(Problem::at(span, refusal.message).help(refusal.help));
            }
        }
    }

    /// Reports what a program may do with a value.
    fn report_verdict(&mut self, span: Span, verdict: &Verdict) {
        match verdict {
            Verdict::Data => {}
            Verdict::Evaluated => {
                let refusal = shell::EVALUATED_AGAIN;
                self.report.error(Problem::at(span, refusal.message).help(refusal.help));
            }
            Verdict::Command => {
                let problem = Problem::at(span, "the value is the command: it decides which program runs");
                self.report
                    .warn(problem.help("write the program's name here and pass the value as an argument"));
            }
            Verdict::PartOfArgument(program) => {
                let message = format!(
                    "the value is in the middle of an argument of {}, which may evaluate it",
                    quoted(program)
                );
                let help = "pass it as a separate argument, or through `env:`";
                self.report.warn(Problem::at(span, message).help(help));
            }
        }
    }

    /// Returns the position of a part of a text, or that of the whole text if escapes or folding changed it.
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
        if name == NOW {
            let before_the_run = matches!(used.role, TemplateRole::Group | TemplateRole::Workplace);
            if before_the_run || used.role == TemplateRole::Output {
                let problem = Problem::at(span, "`now()` is not available here");
                self.report.error(problem.help("use it in a step, and pass the value on as an output"));
            }
            return;
        }
        let known = self.known_roots(used);
        if !known.contains(&root) {
            let message = if ROOTS.contains(&root) {
                format!("`{root}` is not available here")
            } else {
                format!("unknown name {}", quoted(root))
            };
            let near = nearest(root, known.iter().copied());
            self.report.error(
                Problem::at(span, message).expected(format!("one of {}", known.join(", "))).nearest(near),
            );
            return;
        }
        match (root, parts.get(1).copied()) {
            ("inputs", Some(field)) => {
                let outer = self
                    .scope
                    .outer
                    .map_or(&[][..], |outer| outer.inputs.as_slice())
                    .iter()
                    .map(String::as_str);
                let names: Vec<&str> =
                    self.scope.inputs.iter().map(|input| input.name.as_str()).chain(outer).collect();
                if self.one_of(field, &names, "the pipeline has no input", "declare it under `inputs:`", span)
                {
                    self.used.insert(field.to_owned());
                    self.refuse_secret(Some(field), span, used);
                }
            }
            ("inputs", None) => {
                self.used.extend(self.scope.inputs.iter().map(|input| input.name.clone()));
                self.refuse_secret(None, span, used);
            }
            ("run", Some("status")) if used.role == TemplateRole::Workplace => {
                self.report.error(Problem::at(span, "the status of the run is not available here"));
            }
            ("run", Some(field)) => {
                let help = "it has `id`, `name`, `status` and, with a worktree, `branch`";
                self.one_of(field, &RUN, "a run has no", help, span);
            }
            ("matrix", Some(field)) => {
                let outer = self.scope.outer.and_then(|outer| outer.axes.as_ref());
                let outer = || outer.map(|axes| axes.iter().map(String::as_str).collect());
                let axes = used.step.and_then(|step| self.scope.steps[step].axes.clone());
                let axes: Vec<&str> = axes.or_else(outer).unwrap_or_default();
                self.one_of(field, &axes, "the matrix has no", "add it to the step's `matrix`", span);
            }
            ("steps", Some(id)) => self.step(id, &parts[2..], span, used),
            _ => {}
        }
    }

    /// Reports a secret input in a text that is stored or shown. Only variables of a process are neither.
    fn refuse_secret(&mut self, name: Option<&str>, span: Span, used: &Use<'_>) {
        if name.is_some() && matches!(used.role, TemplateRole::Variable | TemplateRole::Command(_)) {
            return;
        }
        let mut named = self.scope.inputs.iter().filter(|input| name.is_none_or(|name| input.name == name));
        if let Some(secret) = named.find(|input| input.secret) {
            let message = format!("the secret input `{}` cannot be used here", secret.name);
            let help = "use it in `env` or in the text of a command";
            self.report.error(Problem::at(span, message).help(help));
        }
    }

    fn known_roots(&self, used: &Use<'_>) -> Vec<&'static str> {
        let step = used.step.map(|step| &self.scope.steps[step]);
        let outer = self.scope.outer.cloned().unwrap_or_default();
        let known = |root: &str| match (root, &used.role) {
            ("inputs", _) => true,
            (_, TemplateRole::Group) => false,
            (root, TemplateRole::Workplace) => root == "run",
            ("env", place) => !matches!(
                place,
                TemplateRole::Variable | TemplateRole::Items | TemplateRole::Condition | TemplateRole::Output
            ),
            ("item", role) if *role != TemplateRole::Items && step.is_some_and(|step| step.has_items) => true,
            // A step with a matrix has no other item, except where its matrix is made.
            ("item", role) => {
                let hidden = *role != TemplateRole::Items && step.is_some_and(|step| step.axes.is_some());
                !hidden && step.is_some() && outer.item
            }
            ("item_index", role) => {
                let own = step.is_some_and(|step| step.has_items || step.axes.is_some());
                (*role != TemplateRole::Items && own) || (step.is_some() && outer.item_index)
            }
            ("matrix", role) => {
                let own = step.is_some_and(|step| step.axes.is_some());
                (*role != TemplateRole::Items && own) || (step.is_some() && outer.axes.is_some())
            }
            // Variables of the pipeline apply to every step, including the first.
            ("steps", role) => step.is_some() || *role == TemplateRole::Output,
            _ => true,
        };
        ROOTS.into_iter().filter(|root| known(root)).collect()
    }

    /// Returns whether the name is one of `names`. Reports it if not.
    fn one_of(&mut self, name: &str, names: &[&str], message: &str, help: &str, span: Span) -> bool {
        if names.contains(&name) {
            return true;
        }
        let near = if self.report.is_full() { None } else { nearest(name, names.iter().copied()) };
        self.report.error(Problem::at(span, format!("{message} {}", quoted(name))).nearest(near).help(help));
        false
    }

    /// Reports names of steps that do not come before the step that uses them. Checks all pairs at once, because a
    /// thousand steps may refer to each other.
    fn check_order(&mut self) {
        if self.scope.graph.is_circular {
            return;
        }
        let pairs: Vec<(StepNo, StepNo)> = self.read.iter().map(|(pair, _)| *pair).collect();
        let before = come_before(&self.scope.graph.needs, &pairs);
        for (((other, _), span), _) in self.read.iter().zip(before).filter(|(_, before)| !before) {
            let id = self.scope.steps[*other as usize].id.unwrap_or_default();
            let problem =
                Problem::at(*span, format!("step `{id}` may not have finished when this one starts"));
            self.report.error(problem.help(format!("add `{id}` to the `needs` of this step")));
        }
    }

    /// Checks a name that refers to another step.
    fn step(&mut self, id: &str, rest: &[&str], span: Span, used: &Use<'_>) {
        let Some(other) = self.numbers.get(id).copied() else {
            let outer = self.scope.outer.map(|outer| &outer.steps);
            if let Some(outputs) = outer.and_then(|steps| steps.get(id)).filter(|_| used.step.is_some()) {
                // The step around this one reads it, and is checked for the order.
                let outputs: Option<Vec<&str>> =
                    outputs.as_ref().map(|all| all.iter().map(String::as_str).collect());
                return self.field(id, rest, &STEP, outputs, span);
            }
            let ids = self.scope.steps.iter().filter_map(|step| step.id);
            let ids: Vec<&str> = ids.chain(outer.into_iter().flatten().map(|(id, _)| id.as_str())).collect();
            let whole =
                ids.iter().find(|known| known.strip_prefix(id).is_some_and(|rest| rest.starts_with('-')));
            let help = match whole {
                Some(whole) => format!("here `-` is minus: write steps[\"{whole}\"]"),
                None if used.step.is_none() => "name a step of this pipeline".to_owned(),
                None => "name a step that this one needs".to_owned(),
            };
            self.one_of(id, &ids, "there is no step", &help, span);
            return;
        };
        let fields = if used.step != Some(other) {
            &STEP[..]
        } else if self.scope.steps[other].repeats {
            &ITSELF_REPEATED[..]
        } else {
            &ITSELF[..]
        };
        if let Some(this) = used.step.filter(|this| *this != other) {
            self.read.push(((other as StepNo, this as StepNo), span));
        }
        let outputs = self.scope.steps[other].outputs.clone();
        self.field(id, rest, fields, outputs, span);
    }

    /// Checks a field of a step, and the name of an output if the outputs are known.
    fn field(&mut self, id: &str, rest: &[&str], fields: &[&str], outputs: Option<Vec<&str>>, span: Span) {
        let Some(field) = rest.first() else { return };
        let help = format!("it has {}", fields.join(", "));
        if self.one_of(field, fields, &format!("step `{id}` has no field"), &help, span)
            && let ("outputs", Some(output)) = (*field, rest.get(1))
        {
            let Some(outputs) = outputs else { return };
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
