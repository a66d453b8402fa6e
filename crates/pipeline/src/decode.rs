//! From a checked tree to a typed pipeline. Goes on after an error, so that all are told at once.

use std::collections::BTreeMap;

use sprag_lifecycle::{Backoff, Growth, OnFail, Policy};

use crate::diagnostic::{Problem, Report};
use crate::duration;
use crate::form::{Form, State};
use crate::graph::{self, Named, Vertex};
use crate::inputs::Input;
use crate::language::{KINDS, PIPELINE, STEP};
use crate::names::{self, Use};
use crate::pipeline::{ConcurrencyRule, OnConflict, Pipeline, Step};
use crate::render::MAX_TEXT_BYTES;
use crate::spec::{Kind, Shell, StepSpec};
use crate::yaml::{Node, Scalar, Yaml};

const DEFAULT_QUEUE: &str = "default";

/// The pipeline in the tree; none if anything is wrong with it, which is reported.
pub(crate) fn decode(root: &Node, default_name: &str, report: &mut Report) -> Option<Pipeline> {
    Form::Record(&PIPELINE).check(root, "a pipeline file", report);
    let name = root.get("name").and_then(Node::text).unwrap_or(default_name);
    let declared = root.get("inputs").map(Node::entries).unwrap_or_default();
    let inputs: Vec<Input> =
        declared.iter().map(|(key, node)| Input::decode(&key.text, key.span, node, report)).collect();
    let mut uses = Vec::new();
    let concurrency = root.get("concurrency").and_then(|node| concurrency(node, &mut uses));
    let common = Common { defaults: root.get("defaults"), env: root.get("env") };
    if let Some(env) = common.env {
        uses.extend(env.entries().iter().map(|(_, value)| Use::variable(value)));
    }
    let written = root.get("steps").map(Node::items).unwrap_or_default();
    let vertices: Vec<Vertex> = written.iter().map(vertex).collect();
    let graph = graph::resolve(&vertices, report);
    let steps: Vec<Option<Step>> = written
        .iter()
        .enumerate()
        .map(|(no, node)| {
            let rework = graph.rework[no];
            let policy = policy(node, common.defaults, rework);
            let kind = kind(node, &common, &mut uses, report)?;
            let spec = StepSpec {
                kind,
                env: common.env(node, &mut uses),
                dir: common.dir(node, &mut uses),
                timeout_ms: common.get(node, "timeout").and_then(duration_ms),
            };
            Some(Step {
                id: vertices[no].id.as_ref()?.name.clone(),
                needs: graph.needs[no].clone(),
                policy,
                queue: common.text(node, "queue").map_or(DEFAULT_QUEUE.into(), owned),
                priority: common.get(node, "priority").and_then(Node::integer).unwrap_or(0) as i32,
                spec,
            })
        })
        .collect();
    names::check(&uses, &inputs, report);
    if report.has_errors() {
        return None;
    }
    let steps = steps.into_iter().collect::<Option<Vec<Step>>>()?;
    Some(Pipeline { name: name.to_owned(), inputs, concurrency, steps, source: report.source.clone() })
}

/// What steps share.
struct Common<'n> {
    defaults: Option<&'n Node>,
    env: Option<&'n Node>,
}

impl<'n> Common<'n> {
    /// The step's own value, or the default.
    fn get(&self, step: &'n Node, key: &str) -> Option<&'n Node> {
        step.get(key).or_else(|| self.defaults?.get(key))
    }

    fn text(&self, step: &'n Node, key: &str) -> Option<&'n Node> {
        self.get(step, key).filter(|node| node.text().is_some())
    }

    fn dir(&self, step: &'n Node, uses: &mut Vec<Use<'n>>) -> Option<String> {
        let dir = self.text(step, "dir").filter(|_| is_process(step))?;
        uses.push(Use::text(dir));
        Some(owned(dir))
    }

    fn env(&self, step: &'n Node, uses: &mut Vec<Use<'n>>) -> BTreeMap<String, String> {
        if !is_process(step) {
            return BTreeMap::new();
        }
        let own = step.get("env").map(Node::entries).unwrap_or_default();
        uses.extend(own.iter().map(|(_, value)| Use::variable(value)));
        let all = self.env.map(Node::entries).unwrap_or_default().iter().chain(own);
        all.filter_map(|(key, value)| match &value.yaml {
            Yaml::Scalar(Scalar { text, .. }) => Some((key.text.clone(), text.clone())),
            _ => None,
        })
        .collect()
    }
}

/// A handler is no process: it has no directory and no variables, those of the pipeline included.
fn is_process(step: &Node) -> bool {
    step.get("call").is_none()
}

fn owned(node: &Node) -> String {
    node.text().unwrap_or_default().to_owned()
}

fn duration_ms(node: &Node) -> Option<u64> {
    node.text().and_then(|text| duration::parse_ms(text).ok())
}

fn named(node: &Node) -> Option<Named> {
    node.text().map(|name| Named { name: name.to_owned(), span: node.span })
}

fn vertex(step: &Node) -> Vertex {
    let needs = step.get("needs").map(|node| match node.text() {
        Some(_) => named(node).into_iter().collect(),
        None => node.items().iter().filter_map(named).collect(),
    });
    let rework = step.get("on_fail").and_then(|node| node.get("rework")).and_then(named);
    Vertex { id: step.get("id").and_then(named), needs, rework }
}

/// The step's kind, if it has exactly one and nothing on it that this kind would not act on.
fn kind<'n>(
    step: &'n Node,
    common: &Common<'n>,
    uses: &mut Vec<Use<'n>>,
    report: &mut Report,
) -> Option<Kind> {
    let mut kinds = step.entries().iter().filter(|(key, _)| KINDS.contains(&key.text.as_str()));
    let Some((key, node)) = kinds.next() else {
        // An unknown key is probably the kind mistyped, and has been reported.
        let only_known = step.entries().iter().all(|(key, _)| STEP.key(&key.text).is_some());
        if only_known && matches!(step.yaml, Yaml::Map(_)) {
            let ready =
                KINDS.iter().filter(|kind| STEP.key(kind).is_some_and(|key| key.state == State::Ready));
            let expected = format!("one of {}", ready.copied().collect::<Vec<_>>().join(", "));
            report.error(Problem::at(step.span, "this step does nothing").expected(expected));
        }
        return None;
    };
    if let Some((other, _)) = kinds.next() {
        let message = format!("a step does one thing, and this one has `{}` and `{}`", key.text, other.text);
        report.error(Problem::at(other.span, message).help("make two steps of it"));
        return None;
    }
    let in_vain: &[&str] = match (key.text.as_str(), &node.yaml) {
        ("run", Yaml::List(_)) => &["shell"],
        ("call", _) => &["shell", "dir", "env"],
        _ => &[],
    };
    for (found, _) in step.entries().iter().filter(|(found, _)| in_vain.contains(&found.text.as_str())) {
        let kind = if key.text == "run" { "a `run` without a shell" } else { "a `call`" };
        let message = format!("`{}` means nothing to {kind}", found.text);
        report.error(Problem::at(found.span, message).help("remove it"));
    }
    match key.text.as_str() {
        "run" => run(node, common.get(step, "shell"), uses, report),
        "call" => {
            let handler = node.text().or_else(|| node.get("handler")?.text())?.to_owned();
            let with = node.get("with");
            if let Some(with) = with {
                uses.push(Use::json(with));
            }
            Some(Kind::Call { handler, with: with.map_or(serde_json::Value::Null, Node::json) })
        }
        _ => None,
    }
}

fn run<'n>(
    node: &'n Node,
    shell: Option<&'n Node>,
    uses: &mut Vec<Use<'n>>,
    report: &mut Report,
) -> Option<Kind> {
    let longest = node.items().iter().chain([node]).filter_map(Node::text).map(str::len).max().unwrap_or(0);
    if longest > MAX_TEXT_BYTES {
        let message = format!("a command of {longest} bytes cannot be started: {MAX_TEXT_BYTES} is the most");
        report.error(Problem::at(node.span, message).help("move it to a script file and run that"));
    }
    let Some(command) = node.text() else {
        uses.push(Use::argv(node));
        let argv: Vec<String> = node.items().iter().filter_map(Node::text).map(str::to_owned).collect();
        if argv.first().is_some_and(|program| program.trim().is_empty()) {
            report.error(Problem::at(node.items()[0].span, "the program's name is empty"));
        }
        return Some(Kind::Exec { argv });
    };
    let shell = match shell {
        None => Shell::default(),
        Some(node) => match node.text() {
            Some(name) => Shell::named(name),
            None => Shell(node.items().iter().filter_map(Node::text).map(str::to_owned).collect()),
        },
    };
    uses.push(Use::command(node, shell.clone()));
    Some(Kind::Run { command: command.to_owned(), shell })
}

fn policy(step: &Node, defaults: Option<&Node>, rework: Option<u32>) -> Policy {
    let own = step.get("retry");
    let common = defaults.and_then(|defaults| defaults.get("retry"));
    let retry = |key: &str| own.and_then(|retry| retry.get(key)).or_else(|| common?.get(key));
    let flag = |key: &str| step.get(key).and_then(Node::boolean).unwrap_or(false);
    let integer = |node: Option<&Node>| node.and_then(Node::integer);
    let on_fail = match (step.get("on_fail"), rework) {
        (Some(node), _) if node.text() == Some("continue") => OnFail::Continue,
        (Some(node), Some(step)) => {
            OnFail::Rework { step, max: integer(node.get("max")).unwrap_or(1) as u32 }
        }
        _ => OnFail::Fail,
    };
    Policy {
        attempts: integer(retry("attempts")).unwrap_or(1) as u32,
        backoff: Backoff {
            growth: match retry("backoff").and_then(Node::text) {
                Some("linear") => Growth::Linear,
                Some("exponential") => Growth::Exponential,
                _ => Growth::Fixed,
            },
            delay_ms: retry("delay").and_then(duration_ms).unwrap_or(0),
            max_delay_ms: retry("max_delay").and_then(duration_ms).unwrap_or(0),
            jitter_percent: integer(retry("jitter")).unwrap_or(0) as u8,
        },
        on_fail,
        always: flag("always"),
        at_most_once: flag("at_most_once"),
        retry_exit_codes: retry("exit_codes")
            .map(Node::items)
            .unwrap_or_default()
            .iter()
            .filter_map(|code| integer(Some(code)))
            .map(|code| code as i32)
            .collect(),
        ..Policy::default()
    }
}

fn concurrency<'n>(node: &'n Node, uses: &mut Vec<Use<'n>>) -> Option<ConcurrencyRule> {
    let group = node.get("group").filter(|group| group.text().is_some())?;
    uses.push(Use::group(group));
    let on_conflict = match node.get("on_conflict").and_then(Node::text) {
        Some("reject") => OnConflict::Reject,
        Some("cancel_older") => OnConflict::CancelOlder,
        _ => OnConflict::Queue,
    };
    let limit = node.get("limit").and_then(Node::integer).unwrap_or(1) as u32;
    Some(ConcurrencyRule { group: owned(group), limit, on_conflict, span: group.span })
}
