//! The kinds of step. A step has exactly one kind, and no key that has no effect on that kind.

use serde_json::Value;

use crate::agent;
use crate::child;
use crate::decode::{Common, duration_ms, texts};
use crate::diagnostic::{Problem, Report};
use crate::documents;
use crate::gate;
use crate::inline;
use crate::language::{KINDS, STEP};
use crate::names::{TemplateRole, Uses};
use crate::render::MAX_TEXT_BYTES;
use crate::spec::{Kind, LandStrategy, Shell, Wait};
use crate::yaml::{MapKey, Node, Yaml, quoted};

/// Keys that have no effect on a kind of step; the loader refuses them.
#[rustfmt::skip]
const UNUSED_KEYS: &[(&str, &[&str])] = &[
    ("call",     &["shell", "dir", "env", "secrets", "sandbox", "outputs", "check", "cache"]),
    ("task",     &["shell", "dir", "env", "secrets", "sandbox", "outputs", "check", "cache", "timeout", "labels"]),
    ("gate",     &["shell", "dir", "env", "secrets", "sandbox", "outputs", "check", "cache", "queue", "labels", "priority", "at_most_once", "timeout", "repeat", "environment"]),
    ("wait",     &["shell", "dir", "env", "secrets", "sandbox", "outputs", "check", "cache", "queue", "labels", "priority", "at_most_once", "timeout", "repeat", "environment"]),
    ("land",     &["outputs", "check", "cache", "dir", "repeat"]),
    ("end",      &["shell", "dir", "env", "secrets", "sandbox", "outputs", "check", "cache", "queue", "labels", "priority", "at_most_once", "timeout", "retry", "matrix", "foreach", "max_parallel", "fail_fast", "environment", "always", "repeat"]),
    ("pipeline", &["shell", "dir", "env", "secrets", "sandbox", "outputs", "check", "cache", "queue", "labels", "at_most_once", "environment"]),
    ("steps",    &["shell", "dir", "env", "secrets", "sandbox", "outputs", "check", "cache", "queue", "labels", "at_most_once", "environment"]),
];

/// Keys of `retry` that have no effect on a kind of step: only a command has an exit code, and a child run is retried
/// without a delay.
#[rustfmt::skip]
const UNUSED_RETRY_KEYS: &[(&str, &[&str])] = &[
    ("call",     &["exit_codes"]),
    ("agent",    &["exit_codes"]),
    ("task",     &["exit_codes"]),
    ("pipeline", &["exit_codes", "backoff", "delay", "max_delay", "jitter"]),
    ("steps",    &["exit_codes", "backoff", "delay", "max_delay", "jitter"]),
];

/// Returns the step's kind, if it has exactly one.
pub(crate) fn kind<'n>(
    step: &'n Node,
    common: &Common<'n>,
    uses: &mut Uses<'n>,
    report: &mut Report,
) -> Option<Kind> {
    let mut kinds = step.entries().iter().filter(|(key, _)| KINDS.contains(&key.text.as_str()));
    let Some((key, node)) = kinds.next() else {
        // An unknown key, reported elsewhere, is probably a mistyped kind.
        let only_known = step.entries().iter().all(|(key, _)| STEP.key(&key.text).is_some());
        if only_known && matches!(step.yaml, Yaml::Map(_)) {
            let expected = format!("one of {}", KINDS.join(", "));
            report.error(Problem::at(step.span, "this step has no action").expected(expected));
        }
        return None;
    };
    if let Some((other, _)) = kinds.next() {
        let message = format!("a step has one action, and this one has `{}` and `{}`", key.text, other.text);
        report.error(Problem::at(other.span, message).help("split it into two steps"));
        return None;
    }
    refuse_unused_keys(step, key, node, report);
    match key.text.as_str() {
        "run" => command(node, common.get(step, "shell"), uses, report),
        "call" => {
            let handler = node.text().or_else(|| node.get("handler")?.text())?.to_owned();
            Some(Kind::Call { handler, with: json(node.get("with"), uses) })
        }
        "task" => {
            let prompt = node.get("prompt")?;
            uses.add(prompt, TemplateRole::Text);
            Some(Kind::Task { prompt: prompt.text()?.to_owned(), with: json(node.get("with"), uses) })
        }
        "gate" => gate::decode(node, uses, report),
        "agent" => agent::decode(step, node, uses, report),
        "wait" => wait(node, uses, report),
        "end" => {
            let message = node.get("message");
            if let Some(message) = message {
                uses.add(message, TemplateRole::Text);
            }
            let status = node.text().or_else(|| node.get("status").and_then(Node::text))?;
            let message = message.and_then(Node::text).map(str::to_owned);
            Some(Kind::End { completed: status == "completed", message })
        }
        "land" => land(node, common.get(step, "shell"), uses, report),
        "steps" => inline::decode(step, node, common, uses, report),
        "pipeline" => {
            if let Some(name) = node.get("name") {
                return documents::child(node, name, uses, report);
            }
            let file = if node.text().is_some() { node } else { one_of(node, &["file", "name"], report)?.1 };
            let given = node.get("inputs");
            let inputs = given.map(Node::entries).unwrap_or_default();
            let inputs = inputs.iter().map(|(key, value)| (key.text.clone(), json(Some(value), uses)));
            let inputs = inputs.collect();
            let mut files = std::collections::BTreeMap::new();
            let definition = match node.get("files") {
                None => child::resolve(file, given, report)?,
                Some(listed) => {
                    uses.add(file, TemplateRole::Text);
                    if !file.text()?.contains("{{") {
                        let problem =
                            Problem::at(listed.span, "`files` has no effect without a template in `file`");
                        report.error(problem.help("remove it, or choose the file with a template"));
                    }
                    for node in listed.items() {
                        files.insert(node.text()?.to_owned(), child::resolve(node, given, report)?);
                    }
                    files.values().next()?.clone()
                }
            };
            let definition = Box::new(definition);
            Some(Kind::Pipeline { inputs, file: file.text()?.to_owned(), definition, files })
        }
        _ => None,
    }
}

fn refuse_unused_keys(step: &Node, kind: &MapKey, node: &Node, report: &mut Report) {
    let in_vain = match UNUSED_KEYS.iter().find(|(name, _)| *name == kind.text) {
        Some((_, keys)) => *keys,
        None if kind.text == "run" && matches!(node.yaml, Yaml::List(_)) => &["shell"],
        None => &[],
    };
    for (found, _) in step.entries().iter().filter(|(found, _)| in_vain.contains(&found.text.as_str())) {
        let kind = if kind.text == "run" { "`run` without a shell" } else { &format!("`{}`", kind.text) };
        let article = if kind == "`end`" { "an" } else { "a" };
        let message = format!("`{}` has no effect on {article} {kind}", found.text);
        report.error(Problem::at(found.span, message).help(match (found.text.as_str(), kind) {
            ("environment", "`steps`") => "remove it, and add it to the commands and agents inside",
            ("environment", "`pipeline`") => "remove it, and write `environment:` in the child pipeline",
            _ => "remove it",
        }));
    }
    if let Some(delay) = step.get("repeat").and_then(|repeat| repeat.get("delay"))
        && ["pipeline", "steps"].contains(&kind.text.as_str())
    {
        let message = format!("`delay` has no effect in the `repeat` of a step with `{}`", kind.text);
        report.error(Problem::at(delay.span, message).help("start its steps with a `wait`"));
    }
    let Some((retry, how)) = step.entries().iter().find(|(key, _)| key.text == "retry") else { return };
    let in_vain =
        UNUSED_RETRY_KEYS.iter().find(|(name, _)| *name == kind.text).map_or(&[][..], |(_, keys)| *keys);
    for (found, _) in how.entries().iter().filter(|(found, _)| in_vain.contains(&found.text.as_str())) {
        let message = format!("`{}` has no effect in the `retry` of a `{}`", found.text, kind.text);
        report.error(Problem::at(found.span, message).help("remove it"));
    }
    if let "gate" | "wait" = kind.text.as_str() {
        let message = format!("a `{}` is not retried: a missing answer is not a failure", kind.text);
        report.warn(Problem::at(retry.span, message).help("remove `retry`"));
    }
}

/// Returns JSON whose texts may contain templates.
pub(crate) fn json<'n>(node: Option<&'n Node>, uses: &mut Uses<'n>) -> Value {
    let Some(node) = node else { return Value::Null };
    uses.add(node, TemplateRole::Text);
    node.json()
}

/// Decodes a command: text for a shell, or a program and its arguments.
pub(crate) fn command<'n>(
    node: &'n Node,
    shell: Option<&'n Node>,
    uses: &mut Uses<'n>,
    report: &mut Report,
) -> Option<Kind> {
    let longest = node.items().iter().chain([node]).filter_map(Node::text).map(str::len).max().unwrap_or(0);
    if longest > MAX_TEXT_BYTES {
        let message = format!("a command of {longest} bytes is too long: the limit is {MAX_TEXT_BYTES}");
        report.error(Problem::at(node.span, message).help("move it to a script file and run that"));
    }
    let Some(command) = node.text() else {
        uses.add(node, TemplateRole::Argv);
        let all: Vec<(&str, bool)> = node.items().iter().filter_map(argument).collect();
        match all.first() {
            Some((program, false)) if program.trim().is_empty() => {
                report.error(Problem::at(node.items()[0].span, "the program's name is empty"));
            }
            Some((_, true)) => {
                report.error(Problem::at(node.items()[0].span, "the program cannot be a list"));
            }
            _ => {}
        }
        for (list, _) in node.items().iter().zip(&all).filter(|(_, (text, each))| *each && !is_lone(text)) {
            let problem = Problem::at(list.span, "`each` needs a single template");
            report.error(problem.expected("a template such as {{ inputs.files }}"));
        }
        let each = all.iter().enumerate().filter(|(_, (_, each))| *each).map(|(n, _)| n).collect();
        return Some(Kind::Exec { argv: all.iter().map(|(text, _)| (*text).to_owned()).collect(), each });
    };
    let shell = match shell.map(|node| (node.text(), node)) {
        None => Shell::default(),
        Some((Some(name), _)) => Shell::named(name),
        Some((None, list)) => Shell(texts(Some(list))),
    };
    uses.add(node, TemplateRole::Command(shell.clone()));
    Some(Kind::Run { command: command.to_owned(), shell })
}

/// Returns the text of an argument, and whether it is a list of which each item is an argument.
pub(crate) fn argument(node: &Node) -> Option<(&str, bool)> {
    match node.text() {
        Some(text) => Some((text, false)),
        None => Some((node.get("each")?.text()?, true)),
    }
}

/// Returns whether a text is a single template, whose value keeps its type.
fn is_lone(text: &str) -> bool {
    matches!(crate::template::split(text).as_deref(), Ok([crate::template::Piece::Value(_)]))
}

fn land<'n>(
    node: &'n Node,
    shell: Option<&'n Node>,
    uses: &mut Uses<'n>,
    report: &mut Report,
) -> Option<Kind> {
    let into = if node.text().is_some() { node } else { node.get("into")? };
    uses.add(into, TemplateRole::Text);
    if let Some(message) = node.get("message") {
        uses.add(message, TemplateRole::Text);
    }
    super::branch::check(into, report);
    let push = node.get("push");
    let verify = node.get("verify").map(|verify| command(verify, shell, uses, report).map(Box::new));
    Some(Kind::Land {
        into: into.text()?.to_owned(),
        strategy: match node.get("strategy").and_then(Node::text) {
            Some("merge") => LandStrategy::Merge,
            Some("squash") => LandStrategy::Squash,
            _ => LandStrategy::Rebase,
        },
        verify: verify.flatten(),
        message: node.get("message").and_then(Node::text).map(str::to_owned),
        push: push
            .and_then(|push| push.text().or_else(|| push.get("remote").and_then(Node::text)))
            .map(str::to_owned),
        push_required: push.and_then(|push| push.get("required")).and_then(Node::boolean).unwrap_or(false),
    })
}

fn wait<'n>(node: &'n Node, uses: &mut Uses<'n>, report: &mut Report) -> Option<Kind> {
    if node.text().is_some() {
        return Some(Kind::Wait(Wait::For { ms: duration_ms(node)? }));
    }
    let (key, value) = one_of(node, &["for", "until", "signal"], report)?;
    if key != "signal" && node.get("timeout").is_some() {
        report.error(
            Problem::at(node.span, format!("`timeout` has no effect on a wait with `{key}`"))
                .help("remove it"),
        );
    }
    Some(Kind::Wait(match key {
        "for" => Wait::For { ms: duration_ms(value)? },
        "until" => {
            uses.add(value, TemplateRole::Text);
            if let Some(wrong) = value.text().filter(|text| !text.contains("{{") && time_ms(text).is_none()) {
                let message = format!("{} is not a time", quoted(wrong));
                report
                    .error(Problem::at(value.span, message).expected("a time such as 2030-01-31T08:00:00Z"));
            }
            Wait::Until { time: value.text()?.to_owned() }
        }
        _ => Wait::Signal { name: value.text()?.to_owned() },
    }))
}

/// Parses a time in RFC 3339 and returns it in milliseconds since 1970.
pub(crate) fn time_ms(text: &str) -> Option<i64> {
    text.trim().parse::<jiff::Timestamp>().ok().map(|time| time.as_millisecond())
}

/// Returns the one of these keys that a map has. Reports none or several.
pub(crate) fn one_of<'n>(
    node: &'n Node,
    keys: &[&'static str],
    report: &mut Report,
) -> Option<(&'static str, &'n Node)> {
    let mut found = keys.iter().filter_map(|key| Some((*key, node.get(key)?)));
    match (found.next(), found.next()) {
        (Some(only), None) => Some(only),
        (first, _) => {
            if matches!(node.yaml, Yaml::Map(_)) {
                let message = if first.is_some() {
                    "only one of these keys is allowed"
                } else {
                    "one of these keys is required"
                };
                report.error(Problem::at(node.span, message).expected(format!("one of {}", keys.join(", "))));
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn keys_without_effect_are_refused_with_a_remedy() {
        for (step, message, help) in [
            ("environment: own, steps: [{ id: b, run: x }]", "on a `steps`", "add it to the commands"),
            ("environment: own, pipeline: child.yaml", "on a `pipeline`", "in the child pipeline"),
            ("environment: own, gate: { ask: x }", "on a `gate`", "remove it"),
            ("environment: own, wait: 1s", "on a `wait`", "remove it"),
        ] {
            let text = format!("steps:\n- {{ id: a, {step} }}\n");
            let wrong = crate::parse_beside_child("p.yaml", &text).expect_err(step).to_string();
            assert!(wrong.contains(&format!("`environment` has no effect {message}")), "{wrong}");
            assert!(wrong.contains("p.yaml:2:12") && wrong.contains(help), "{wrong}");
        }
    }
}
