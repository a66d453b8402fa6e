//! Warnings about constructs that are legal but probably a mistake. No rule reports a file that makes sense.
//!
//! There is no warning where a construct has good uses: an output that no step reads (people and parents do), a secret
//! that the command does not mention (the programs it starts may use it), `always` beside `when` (a step for failures).

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::decode::duration_ms;
use crate::diagnostic::{Problem, Report};
use crate::expression::Budget;
use crate::graph::{Graph, Vertex};
use crate::parts;
use crate::secret;
use crate::template;
use crate::yaml::{MapKey, Node, Yaml, quoted};

/// Checks a pipeline that has no errors.
pub(crate) fn check(root: &Node, vertices: &[Vertex], graph: &Graph, report: &mut Report) {
    let steps = root.get("steps").map(Node::items).unwrap_or_default();
    secret::check_unused(root, report);
    loose_ends(vertices, graph, steps, report);
    let defaults = root.get("defaults").and_then(|defaults| defaults.get("retry"));
    if let Some(retry) = defaults {
        waits(retry, None, report);
    }
    for step in steps {
        constant_condition(step, report);
        unused_items(step, report);
        shell_syntax(step, report);
        secrets(step, root.get("env"), report);
        choices(step, report);
        if let Some(retry) = step.get("retry") {
            waits(retry, defaults, report);
        }
        if let Some(codes) = step.get("retry").and_then(|retry| retry.get("exit_codes")) {
            repeated(codes.items(), report);
        }
        for (_, values) in step.get("matrix").map(Node::entries).unwrap_or_default() {
            repeated(values.items(), report);
        }
    }
}

/// Warns of a step that no other step needs if several steps are joined at the end: it was probably forgotten there.
/// Steps with `always`, or whose failure is ignored, are not part of a join on purpose.
fn loose_ends(vertices: &[Vertex], graph: &Graph, steps: &[Node], report: &mut Report) {
    let Some(last) = graph.needs.len().checked_sub(1).filter(|last| graph.needs[*last].len() > 1) else {
        return;
    };
    let mut needed = vec![false; vertices.len()];
    graph.needs.iter().flatten().for_each(|need| needed[*need as usize] = true);
    let aside = |step: &Node| {
        step.get("always").and_then(Node::boolean) == Some(true)
            || step.get("on_fail").and_then(Node::text) == Some("continue")
    };
    for no in (0..last).filter(|no| !needed[*no] && !aside(&steps[*no])) {
        if let (Some(id), Some(end)) = (&vertices[no].id, &vertices[last].id) {
            let problem = Problem::at(id.span, format!("no step needs `{}`", id.name));
            report.warn(problem.help(format!("should `{}` need it?", end.name)));
        }
    }
}

fn constant_condition(step: &Node, report: &mut Report) {
    let Some(when) = parts::condition(step) else { return };
    let Some(text) = parts::expression(when) else { return };
    let named = template::condition(&text).map(template::names);
    if let (Ok([]), Ok(holds)) = (named.as_deref(), template::holds(&text, &json!({}), &Budget::default())) {
        let message = format!("this condition is always {holds}");
        let help = if holds { "remove `when`" } else { "the step never runs: remove it, or its `when`" };
        report.warn(Problem::at(when.span, message).help(help));
    }
    // A step without `always` only starts while nothing has failed.
    let always = step.get("always").and_then(Node::boolean) == Some(true);
    let running = json!({ "run": { "status": "running" } });
    if !always
        && named.is_ok_and(|names| names == ["run.status"])
        && template::holds(&text, &running, &Budget::default()) == Ok(false)
    {
        let message =
            "without `always` this step only runs while nothing has failed: its condition never holds";
        report.warn(Problem::at(when.span, message).help("add `always: true`"));
    }
}

/// Warns of a fan-out whose step does not use its items.
fn unused_items(step: &Node, report: &mut Report) {
    for (key, name) in [("foreach", "item"), ("matrix", "matrix")] {
        let Some((written, _)) = entry(step, key) else { continue };
        let others = step.entries().iter().filter(|(other, _)| other.text != key);
        if !others.map(|(_, node)| node).any(|node| mentions(node, name) || mentions(node, "item_index")) {
            let use_it = if key == "foreach" { "{{ item }}" } else { "{{ matrix.NAME }}" };
            let problem = Problem::at(written.span, format!("every item of this `{key}` does the same work"));
            report.warn(problem.help(format!("use {use_it} in the step, or remove `{key}`")));
        }
    }
}

/// Returns whether a word occurs anywhere in a tree.
fn mentions(node: &Node, word: &str) -> bool {
    match &node.yaml {
        Yaml::Scalar(scalar) => {
            let is_part = |c: char| c.is_alphanumeric() || c == '_';
            scalar.text.split(|c| !is_part(c)).any(|part| part == word)
        }
        Yaml::List(items) => items.iter().any(|item| mentions(item, word)),
        Yaml::Map(entries) => entries.iter().any(|(_, value)| mentions(value, word)),
    }
}

/// Warns of shell syntax in a list, which runs without a shell.
fn shell_syntax(step: &Node, report: &mut Report) {
    const OPERATORS: [&str; 9] = ["|", "||", "&&", "&", ";", ">", ">>", "<", "2>&1"];
    let argv = step.get("run").map(Node::items).unwrap_or_default();
    // Programs such as `test` and `[` have operators of their own, but are seldom started without a shell.
    for argument in argv.iter().skip(1) {
        let text = argument.text().unwrap_or_default();
        if OPERATORS.contains(&text) || is_variable(text) {
            let message =
                format!("a list runs without a shell: {} is passed to the program unchanged", quoted(text));
            let help = "write the command as one text, or use `env` and a template for values";
            report.warn(Problem::at(argument.span, message).help(help));
        }
    }
}

/// Returns whether a text is only the expansion of a variable: `$HOME`, `${HOME}`.
fn is_variable(text: &str) -> bool {
    let Some(name) = text.strip_prefix('$') else { return false };
    let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
    name.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

fn secrets(step: &Node, common: Option<&Node>, report: &mut Report) {
    let Some(secrets) = step.get("secrets") else { return };
    repeated(secrets.items(), report);
    for secret in secrets.items() {
        let name = secret.text().unwrap_or_default();
        let set = [step.get("env"), common].into_iter().flatten().any(|env| env.get(name).is_some());
        if set {
            let problem = Problem::at(secret.span, format!("{} is also set by `env`", quoted(name)));
            report.warn(problem.help("remove one of them: the value in `env` replaces the secret"));
        }
    }
}

fn choices(step: &Node, report: &mut Report) {
    let Some(choices) = step.get("gate").and_then(|gate| gate.get("choices")) else { return };
    if let [only] = choices.items() {
        let message = format!("{} is the only answer", quoted(only.text().unwrap_or_default()));
        report.warn(Problem::at(choices.span, message).help("add a choice that stops the run, such as `no`"));
    }
    repeated(choices.items(), report);
}

/// Warns of keys of `retry` that change a delay which does not exist. `common` is the shared `retry` of all steps.
fn waits(retry: &Node, common: Option<&Node>, report: &mut Report) {
    let merged = |key: &str| retry.get(key).or_else(|| common?.get(key));
    let delay_ms = merged("delay").and_then(duration_ms).unwrap_or(0);
    if delay_ms == 0 {
        for key in ["backoff", "max_delay", "jitter"] {
            if let Some((written, _)) = entry(retry, key) {
                let problem = Problem::at(written.span, format!("`{key}` without a `delay` changes nothing"));
                report.warn(problem.help("add `delay: 1s`, or remove it"));
            }
        }
    } else if let Some(most) = retry.get("max_delay")
        && duration_ms(most).is_some_and(|most| most < delay_ms)
    {
        let problem = Problem::at(most.span, "`max_delay` is shorter than `delay`: every delay is this long");
        report.warn(problem.help("make it longer, or the delay shorter"));
    }
}

fn repeated(values: &[Node], report: &mut Report) {
    let mut seen: HashSet<String> = HashSet::with_capacity(values.len());
    for value in values {
        let json = value.json();
        if !seen.insert(json.to_string()) {
            let shown = json.as_str().map_or_else(|| json.to_string(), str::to_owned);
            let shown = if matches!(json, Value::Array(_) | Value::Object(_)) {
                "this".to_owned()
            } else {
                quoted(&shown)
            };
            report.warn(Problem::at(value.span, format!("{shown} is named twice")));
        }
    }
}

fn entry<'n>(node: &'n Node, key: &str) -> Option<&'n (MapKey, Node)> {
    node.entries().iter().find(|(found, _)| found.text == key)
}

#[cfg(test)]
mod tests {
    use crate::parse_beside_child as parse;

    /// Returns the warnings about a pipeline, each with its position.
    fn warnings(source: &str) -> Vec<String> {
        let loaded = parse("p.yaml", source).unwrap_or_else(|wrong| panic!("{source}\n{wrong}"));
        let shown = |w: &crate::Diagnostic| {
            assert_eq!(w.severity, crate::Severity::Warning);
            format!("{}:{} {}", w.line.unwrap_or(0), w.column.unwrap_or(0), w.message)
        };
        loaded.warnings.iter().map(shown).collect()
    }

    #[test]
    fn each_suspicious_step_is_warned_of_at_its_place() {
        for (step, expected) in [
            ("run: x\n  when: 1 == 1", "4:9 this condition is always true"),
            ("run: x\n  when: '{{ false }}'", "4:9 this condition is always false"),
            (
                "run: x\n  when: failed() or cancelled()",
                "4:9 without `always` this step only runs while nothing has failed: its condition never holds",
            ),
            ("run: x\n  foreach: [1, 2]", "4:3 every item of this `foreach` does the same work"),
            ("run: x\n  matrix: {os: [a, b]}", "4:3 every item of this `matrix` does the same work"),
            ("run: 'echo {{ matrix.os }}'\n  matrix: {os: [a, b, a]}", "4:23 `a` is named twice"),
            (
                "run: [cat, a, '|', wc]",
                "3:17 a list runs without a shell: `|` is passed to the program unchanged",
            ),
            (
                "run: [ls, '${HOME}']",
                "3:13 a list runs without a shell: `${HOME}` is passed to the program unchanged",
            ),
            ("run: x\n  secrets: [A]\n  env: {A: b}", "4:13 `A` is also set by `env`"),
            ("run: x\n  secrets: [A, A]", "4:16 `A` is named twice"),
            ("gate: {ask: x, choices: [go]}", "3:27 `go` is the only answer"),
            ("gate: {ask: x, choices: [yes, no, no]}", "3:37 `no` is named twice"),
            (
                "gate: {ask: x}\n  retry: {attempts: 2}",
                "4:3 a `gate` is not retried: a missing answer is not a failure",
            ),
            (
                "wait: 5s\n  retry: {attempts: 2}",
                "4:3 a `wait` is not retried: a missing answer is not a failure",
            ),
            ("run: x\n  retry: {delay: 1s}", "4:10 `retry` without `attempts` tries once"),
            (
                "run: x\n  retry: {attempts: 2, backoff: linear}",
                "4:24 `backoff` without a `delay` changes nothing",
            ),
            (
                "run: x\n  retry: {attempts: 2, delay: 5s, max_delay: 1s}",
                "4:46 `max_delay` is shorter than `delay`: every delay is this long",
            ),
            ("run: x\n  retry: {attempts: 2, exit_codes: [1, 1]}", "4:40 `1` is named twice"),
            ("run: x\n- id: b\n  run: x\n  needs: [a, a]", "6:14 `a` is named twice"),
        ] {
            assert_eq!(warnings(&format!("steps:\n- id: a\n  {step}\n")), [expected], "{step}");
        }
        let unused = "inputs: {n: integer}\nsteps: [{id: a, run: x}]\n";
        assert_eq!(warnings(unused), ["1:10 nothing uses the input `n`"]);
        let useless = "defaults: {retry: {attempts: 2, jitter: 5}}\nsteps: [{id: a, run: x}]\n";
        assert_eq!(warnings(useless), ["1:33 `jitter` without a `delay` changes nothing"]);
    }

    #[test]
    fn a_step_that_was_forgotten_at_the_join_is_warned_of() {
        let steps = |keys: &str| {
            format!(
                "steps:\n- {{id: a, run: x}}\n- {{id: b, needs: a, run: x{keys}}}\n- {{id: c, needs: a, run: x}}\n- {{id: d, needs: a, run: x}}\n- {{id: e, needs: [c, d], run: x}}\n"
            )
        };
        assert_eq!(warnings(&steps("")), ["3:8 no step needs `b`"]);
        assert_eq!(warnings(&steps(", always: false")).len(), 1);
        assert!(warnings(&steps(", always: true")).is_empty());
        assert!(warnings(&steps(", on_fail: continue")).is_empty());
        // Without a join, several final steps are fine.
        assert!(
            warnings("steps:\n- {id: a, run: x}\n- {id: b, run: x}\n- {id: c, needs: a, run: x}\n")
                .is_empty()
        );
    }

    #[test]
    fn files_that_make_sense_are_not_warned_of() {
        for step in [
            "run: x\n  when: run.name != 'x'\n  always: true",
            "run: ./deploy\n  secrets: [TOKEN]",
            "run: x\n  outputs: {a: plan.md}",
            "run: 'echo {{ item.name }}'\n  foreach: [{name: a}]\n  max_parallel: 1",
            "run: x\n  env: {OS: '{{ matrix.os }}'}\n  matrix: {os: [a, b], n: [1, 2]}",
            "run: x\n  when: failed()\n  always: true",
            "run: x\n  when: not cancelled()",
            "run: 'echo {{ item_index }}'\n  foreach: [a, b]",
            "run: [awk, '$NF > 1 {print $1}', f]",
            "run: [grep, '$', f]",
            "run: [sh, -c, 'cat a | wc']",
            "gate: {ask: Go on?}",
            "run: x\n  retry: {attempts: 3, delay: 1s, backoff: exponential, max_delay: 1s, jitter: 10}",
            "run: x\n  retry: {attempts: 3}",
        ] {
            let found = warnings(&format!("steps:\n- id: a\n  {step}\n"));
            assert!(found.is_empty(), "{step}: {found:?}");
        }
        let merged = "defaults: {retry: {delay: 2s}}\nsteps: [{id: a, run: x, retry: {attempts: 2, backoff: linear}}]\n";
        assert!(warnings(merged).is_empty());
    }
}
