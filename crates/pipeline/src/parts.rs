//! The optional parts of a step: condition, outputs, checks and fan-out.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use sprag_lifecycle::Repeat;

use crate::decode::{Common, duration_ms};
use crate::diagnostic::{Problem, Report};
use crate::form::Rule;
use crate::json_schema::{JsonSchema, count_patterns};
use crate::kinds::{command, one_of};
use crate::names::{TemplateRole, Uses};
use crate::spec::{Cache, Check, FanOut, FanOutItems, Format, Output, RepeatCondition};
use crate::template;
use crate::yaml::{Node, quoted};

/// The most regular expressions in all schemas of a pipeline. Each takes a few milliseconds to compile.
const MAX_PATTERNS: usize = 500;

/// Returns the node of the step's condition.
pub(crate) fn condition(step: &Node) -> Option<&Node> {
    let when = step.get("when")?;
    if when.entries().is_empty() { Some(when) } else { when.get("if") }
}

/// Returns the text of a condition, which may be written as a YAML boolean.
pub(crate) fn expression(node: &Node) -> Option<String> {
    node.text().map(str::to_owned).or_else(|| node.boolean().map(|holds| holds.to_string()))
}

/// Returns the number of needs that must be done, if not all of them must be.
pub(crate) fn quorum(step: &Node, report: &mut Report) -> Option<u32> {
    let needs = step.get("needs").filter(|needs| !needs.entries().is_empty())?;
    let (any, of, at_least) = (needs.get("any"), needs.get("of"), needs.get("at_least"));
    match (any, of, at_least) {
        (Some(_), None, None) => Some(1),
        (None, Some(of), Some(at_least)) => {
            let wanted = at_least.integer()?;
            let named: std::collections::BTreeSet<&str> = of.items().iter().filter_map(Node::text).collect();
            if wanted > named.len() as i64 {
                let problem = Problem::at(at_least.span, format!("`of` names only {} steps", named.len()));
                report
                    .error(problem.help("the step would never start: name more steps, or lower the number"));
            }
            u32::try_from(wanted).ok()
        }
        _ => {
            let problem = Problem::at(needs.span, "`needs` takes `any`, or `at_least` with `of`");
            report.error(problem.expected("{ any: [a, b] } or { at_least: 2, of: [a, b, c] }"));
            None
        }
    }
}

pub(crate) fn when<'n>(step: &'n Node, uses: &mut Uses<'n>) -> Option<String> {
    let when = condition(step)?;
    uses.add(when, TemplateRole::Condition);
    expression(when)
}

/// Returns whether the steps that need this one are skipped with it. Reports a condition that only skips items.
pub(crate) fn skip_rest(step: &Node, report: &mut Report) -> bool {
    let Some(rest) = step.get("when").and_then(|when| when.get("else")) else { return false };
    let is_fan_out = ["foreach", "matrix"].iter().any(|key| step.get(key).is_some());
    if is_fan_out && condition(step).and_then(Node::text).is_some_and(template::reads_item) {
        let problem = Problem::at(rest.span, "`skip_rest` has no effect here: the condition skips items");
        report.error(problem.help("remove `else`, or use a condition without `item` and `matrix`"));
    }
    rest.text() == Some("skip_rest")
}

/// Decodes the rounds of a step: their bounds, and the condition that ends them.
pub(crate) fn repeat<'n>(
    step: &'n Node,
    uses: &mut Uses<'n>,
    report: &mut Report,
) -> Option<(Repeat, RepeatCondition)> {
    let node = step.get("repeat")?;
    let (key, condition) = one_of(node, &["until", "while"], report)?;
    uses.add(condition, TemplateRole::Condition);
    let max = u32::try_from(node.get("max")?.integer()?).ok()?;
    let delay_ms = node.get("delay").and_then(duration_ms).unwrap_or(0);
    let expression = condition.text()?.to_owned();
    let condition = match key {
        "until" => RepeatCondition::Until(expression),
        _ => RepeatCondition::While(expression),
    };
    Some((Repeat { max, delay_ms }, condition))
}

/// Decodes the files that a step keeps between runs. Reports paths that leave the step's folder.
pub(crate) fn cache<'n>(step: &'n Node, uses: &mut Uses<'n>, report: &mut Report) -> Option<Cache> {
    let node = step.get("cache")?;
    let key = node.get("key")?;
    uses.add(key, TemplateRole::Text);
    let mut paths = Vec::new();
    for path in node.get("paths")?.items() {
        uses.add(path, TemplateRole::Text);
        let text = path.text()?;
        if text.starts_with(['/', '~']) || text.split('/').any(|part| part == "..") {
            let problem = Problem::at(path.span, "a path of `cache` must be inside the step's folder");
            report.error(problem.expected("a relative path such as target"));
        }
        paths.push(text.to_owned());
    }
    Some(Cache { key: key.text()?.to_owned(), paths })
}

pub(crate) fn outputs<'n>(
    step: &'n Node,
    uses: &mut Uses<'n>,
    report: &mut Report,
) -> BTreeMap<String, Output> {
    let written = step.get("outputs").map(Node::entries).unwrap_or_default();
    written.iter().filter_map(|(name, node)| Some((name.text.clone(), output(node, uses, report)?))).collect()
}

fn output<'n>(node: &'n Node, uses: &mut Uses<'n>, report: &mut Report) -> Option<Output> {
    let format = |node: &Node| if node.text() == Some("json") { Format::Json } else { Format::Text };
    if let Some(path) = node.text() {
        uses.add(node, TemplateRole::Text);
        return Some(Output::File { path: path.to_owned(), format: None });
    }
    let (key, value) = one_of(node, &["file", "stdout"], report)?;
    if key == "file" {
        uses.add(value, TemplateRole::Text);
        return Some(Output::File { path: value.text()?.to_owned(), format: node.get("as").map(format) });
    }
    if let Some(wrong) = node.get("as") {
        let problem = Problem::at(wrong.span, "`as` has no effect with `stdout`");
        report.error(problem.help("write `stdout: json` or `stdout: text`"));
    }
    Some(Output::Stdout { format: format(value) })
}

pub(crate) fn checks<'n>(
    step: &'n Node,
    common: &Common<'n>,
    uses: &mut Uses<'n>,
    report: &mut Report,
) -> Vec<Check> {
    let Some(written) = step.get("check") else { return Vec::new() };
    let each = if written.entries().is_empty() { written.items() } else { std::slice::from_ref(written) };
    each.iter().filter_map(|node| check(node, step, common, uses, report)).collect()
}

/// Returns the places of the checks that only warn.
pub(crate) fn warns(step: &Node) -> Vec<usize> {
    let Some(written) = step.get("check") else { return Vec::new() };
    let each = if written.entries().is_empty() { written.items() } else { std::slice::from_ref(written) };
    let warns = |node: &Node| node.get("warn").and_then(Node::boolean) == Some(true);
    each.iter().enumerate().filter(|(_, node)| warns(node)).map(|(at, _)| at).collect()
}

fn check<'n>(
    node: &'n Node,
    step: &'n Node,
    common: &Common<'n>,
    uses: &mut Uses<'n>,
    report: &mut Report,
) -> Option<Check> {
    let (key, value) = one_of(node, &["run", "file", "output"], report)?;
    for (extra, owner) in [("not_empty", "file"), ("schema", "output")] {
        if let Some(wrong) = node.get(extra).filter(|_| key != owner) {
            let problem = Problem::at(wrong.span, format!("`{extra}` has no effect without `{owner}`"));
            report.error(problem.help("remove it"));
        }
    }
    match key {
        "run" => command(value, common.get(step, "shell"), uses, report).map(Check::Command),
        "file" => {
            uses.add(value, TemplateRole::Text);
            let not_empty = node.get("not_empty").and_then(Node::boolean).unwrap_or(false);
            Some(Check::File { path: value.text()?.to_owned(), not_empty })
        }
        _ => {
            let name = value.text()?;
            if step.get("outputs").and_then(|outputs| outputs.get(name)).is_none() {
                let problem = Problem::at(value.span, format!("the step has no output `{name}`"));
                report.error(problem.help("declare it under `outputs:`"));
            }
            let Some(schema) = node.get("schema") else {
                let problem = Problem::at(node.span, "a check of an output needs the key `schema`");
                report.error(problem.expected("a JSON schema"));
                return None;
            };
            let schema = checked_schema(schema, report);
            Some(Check::Schema { output: name.to_owned(), schema })
        }
    }
}

/// Returns a JSON schema as JSON. Reports one that cannot be used.
pub(crate) fn checked_schema(schema: &Node, report: &mut Report) -> Value {
    let json = schema.json();
    report.patterns += count_patterns(&json);
    if report.patterns > MAX_PATTERNS {
        let message = format!("the schemas up to here have more than {MAX_PATTERNS} patterns");
        report.error(Problem::at(schema.span, message).help("split the pipeline"));
    } else if let Err(error) = JsonSchema::new(&json) {
        let problem = Problem::at(schema.span, format!("the schema is wrong: {error}"));
        report.error(problem.expected("a JSON Schema"));
    }
    json
}

pub(crate) fn fan_out<'n>(step: &'n Node, uses: &mut Uses<'n>, report: &mut Report) -> Option<FanOut> {
    let key = |name: &str| step.entries().iter().find(|(key, _)| key.text == name);
    let (mut include, mut exclude) = (Vec::new(), Vec::new());
    let over = match (key("matrix"), key("foreach")) {
        (Some(_), Some((second, _))) => {
            let problem = Problem::at(second.span, "a step has `matrix` or `foreach`, not both");
            report.error(problem.help("put the list into the matrix: `matrix: { item: [ … ] }`"));
            return None;
        }
        (Some((_, axes)), None) => {
            axes.entries().iter().for_each(|(_, values)| uses.add(values, TemplateRole::Items));
            include = matrix_entries(axes, "include", report);
            exclude = matrix_entries(axes, "exclude", report);
            let axes = axes.entries().iter().filter(|(name, _)| !MATRIX_KEYS.contains(&name.text.as_str()));
            FanOutItems::Matrix(axes.map(|(name, values)| (name.text.clone(), values.json())).collect())
        }
        (None, Some((_, list))) => {
            uses.add(list, TemplateRole::Items);
            FanOutItems::Each(list.json())
        }
        (None, None) => {
            for name in ["max_parallel", "fail_fast"] {
                if let Some((found, _)) = key(name) {
                    let problem =
                        Problem::at(found.span, format!("`{name}` has no effect without a fan-out"));
                    report.error(problem.help("add `matrix` or `foreach`, or remove it"));
                }
            }
            return None;
        }
    };
    let max_parallel = step.get("max_parallel").and_then(Node::integer).map(|n| n as u32);
    let fail_fast = step.get("fail_fast").and_then(Node::boolean).unwrap_or(false);
    Some(FanOut { over, max_parallel, fail_fast, include, exclude })
}

/// The keys of a matrix that are no axes.
pub(crate) const MATRIX_KEYS: [&str; 2] = ["include", "exclude"];

/// Decodes `include` or `exclude` of a matrix: maps of names and values.
fn matrix_entries(matrix: &Node, key: &str, report: &mut Report) -> Vec<Map<String, Value>> {
    let Some(list) = matrix.get(key) else { return Vec::new() };
    let mut entries = Vec::new();
    if list.text().is_some() {
        let problem = Problem::at(list.span, format!("`{key}` must be a list"));
        report.error(problem.expected("a list of maps, such as [{ os: linux, version: 3 }]"));
    }
    for node in list.items() {
        let Value::Object(entry) = node.json() else {
            let problem = Problem::at(node.span, format!("an entry of `{key}` must be a map"));
            report.error(problem.expected("names and values, such as { os: linux, version: 3 }"));
            continue;
        };
        for (name, _) in node.entries() {
            if !Rule::Identifier.keeps(&name.text) {
                let problem = Problem::at(name.span, format!("{} is not a name", quoted(&name.text)));
                report.error(problem.expected(Rule::Identifier.expected()));
            }
            if key == "exclude" && matrix.get(&name.text).is_none() {
                let problem =
                    Problem::at(name.span, format!("the matrix has no axis {}", quoted(&name.text)));
                report.error(problem.help("an entry of `exclude` names axes and the values to leave out"));
            }
        }
        entries.push(entry);
    }
    entries
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::parse_beside_child as parse;

    /// Returns the spec of the last step as JSON.
    fn spec(source: &str) -> Value {
        let loaded = parse("p.yaml", source).unwrap_or_else(|wrong| panic!("{source}\n{wrong}"));
        serde_json::to_value(&loaded.pipeline.steps.last().unwrap().spec).unwrap()
    }

    #[test]
    fn every_part_of_a_step_is_decoded() {
        for (step, expected) in [
            (
                "run: x\n  outputs: {a: plan.md}",
                json!({ "outputs": { "a": { "file": { "path": "plan.md", "format": null } } } }),
            ),
            (
                "run: x\n  outputs: {a: {file: f, as: json}, b: {stdout: json}}",
                json!({ "outputs": { "a": { "file": { "path": "f", "format": "json" } }, "b": { "stdout": { "format": "json" } } } }),
            ),
            (
                "run: x\n  check: {file: f, not_empty: true}",
                json!({ "checks": [{ "file": { "path": "f", "not_empty": true } }] }),
            ),
            (
                "run: x\n  outputs: {o: {stdout: json}}\n  check: [{run: [make, test]}, {output: o, schema: {type: array}}]",
                json!({
                    "outputs": { "o": { "stdout": { "format": "json" } } },
                    "checks": [
                        { "command": { "exec": { "argv": ["make", "test"] } } },
                        { "schema": { "output": "o", "schema": { "type": "array" } } },
                    ],
                }),
            ),
            ("run: x\n  when: run.name != 'x'", json!({ "when": "run.name != 'x'" })),
            ("run: x\n  secrets: [TOKEN]", json!({ "secrets": ["TOKEN"], "masks": ["TOKEN"] })),
            (
                "run: echo {{ matrix.os }}\n  matrix: {os: [l, m], v: [1]}\n  max_parallel: 2\n  fail_fast: true",
                json!({ "fan_out": { "over": { "matrix": { "os": ["l", "m"], "v": [1] } }, "max_parallel": 2, "fail_fast": true } }),
            ),
            (
                "run: x\n  repeat: {until: steps.a.round > 2, max: 5}",
                json!({ "repeat": { "until": "steps.a.round > 2" } }),
            ),
            (
                "run: echo {{ item.name }}\n  foreach: '{{ steps.first.outputs.list }}'",
                json!({ "fan_out": { "over": { "each": "{{ steps.first.outputs.list }}" }, "fail_fast": false } }),
            ),
        ] {
            let first = "- id: first\n  run: x\n  outputs: {list: {stdout: json}}\n";
            let mut found = spec(&format!("steps:\n{first}- id: a\n  {step}\n"));
            found.as_object_mut().unwrap().remove("kind");
            assert_eq!(found, expected, "{step}");
        }
    }

    #[test]
    fn every_kind_is_decoded() {
        let child = json!({ "name": "child.yaml", "text": include_str!("../tests/data/child.yaml") });
        for (step, expected) in [
            (
                "task: {prompt: Review it}",
                json!({ "kind": { "task": { "prompt": "Review it", "with": null } } }),
            ),
            (
                "gate: {ask: Land it?, choices: [yes, no], timeout: 1s}",
                json!({ "kind": { "gate": { "ask": "Land it?", "choices": ["yes", "no"] } }, "timeout_ms": 1000 }),
            ),
            ("wait: 5m", json!({ "kind": { "wait": { "for": { "ms": 300_000 } } } })),
            (
                "wait: {until: '2030-01-01T00:00:00Z'}",
                json!({ "kind": { "wait": { "until": { "time": "2030-01-01T00:00:00Z" } } } }),
            ),
            (
                "wait: {signal: deployed, timeout: 1s}",
                json!({ "kind": { "wait": { "signal": { "name": "deployed" } } }, "timeout_ms": 1000 }),
            ),
            (
                "pipeline: child.yaml",
                json!({ "kind": { "pipeline": { "file": "child.yaml", "inputs": {}, "definition": child } } }),
            ),
            (
                "pipeline: {file: child.yaml, inputs: {text: '{{ run.id }}'}}",
                json!({ "kind": { "pipeline": { "file": "child.yaml", "inputs": { "text": "{{ run.id }}" }, "definition": child } } }),
            ),
        ] {
            assert_eq!(spec(&format!("steps:\n- id: a\n  {step}\n")), expected, "{step}");
        }
        let loaded =
            parse("p.yaml", "defaults: {queue: q}\nsteps:\n- {id: a, task: {prompt: x, queue: people}}")
                .unwrap();
        assert_eq!(loaded.pipeline.steps[0].queue, "people");
    }

    #[test]
    fn contradictory_keys_are_refused() {
        for (step, expected) in [
            ("run: x\n  outputs: {a: {file: f, stdout: json}}", "4:16 only one of these keys is allowed"),
            ("run: x\n  outputs: {a: {as: json}}", "4:16 one of these keys is required"),
            ("run: x\n  outputs: {a: {stdout: json, as: json}}", "4:35 `as` has no effect with `stdout`"),
            ("run: x\n  check: {output: o, schema: {}}", "4:19 the step has no output `o`"),
            ("run: x\n  check: {run: x, not_empty: true}", "4:30 `not_empty` has no effect without `file`"),
            (
                "run: 'echo {{ matrix.a }}'\n  matrix: {a: [1], exclude: [{b: 1}]}",
                "4:31 the matrix has no axis `b`",
            ),
            ("run: x\n  matrix: {a: [1], include: [1]}", "4:30 an entry of `include` must be a map"),
            (
                "run: x\n  when: now() == failed() and always()",
                "4:9 not an expression: there is no function `always`",
            ),
            ("run: [{each: '{{ run.id }}'}]", "3:9 the program cannot be a list"),
            ("run: [ls, {each: 'x{{ run.id }}'}]", "3:13 `each` needs a single template"),
            ("run: x\n  max_parallel: 2", "4:3 `max_parallel` has no effect without a fan-out"),
            ("run: x\n  matrix: {a: [1]}\n  foreach: [1]", "5:3 a step has `matrix` or `foreach`, not both"),
            ("run: echo {{ item }}", "3:16 `item` is not available here"),
            ("run: echo {{ matrix.oz }}\n  matrix: {os: [1]}", "3:16 the matrix has no `oz`"),
            ("run: echo {{ steps.nope.status }}", "3:16 there is no step `nope`"),
            ("run: echo {{ steps.a.status }}", "3:16 step `a` has no field `status`"),
            ("run: echo {{ steps.z.status }}", "3:16 step `z` may not have finished when this one starts"),
            ("needs: z\n  run: echo {{ steps.z.outputs.x }}", "4:16 step `z` has no output `x`"),
            ("needs: z\n  run: echo {{ steps.z.otputs }}", "4:16 step `z` has no field `otputs`"),
            ("run: x\n  when: \"'false'\"", "4:9 not a condition: it is text"),
            ("run: x\n  when: inputs.x ==", "4:9 not an expression"),
            ("run: x\n  when: inputs.x == 1", "4:9 the pipeline has no input `x`"),
            (
                "foreach: [1]\n  when: {if: item == 1, else: skip_rest}\n  run: x {{ item }}",
                "4:31 `skip_rest` has no effect here",
            ),
            ("needs: {at_least: 2, of: [z]}\n  run: x", "3:21 `of` names only 1 steps"),
            ("needs: {any: [z], of: [z]}\n  run: x", "3:10 `needs` takes `any`, or `at_least` with `of`"),
            ("run: x\n  repeat: {until: 'true'}", "4:11 `repeat` needs the key `max`"),
            ("run: x\n  repeat: {until: 'true', while: 'true', max: 2}", "4:11 only one of these keys"),
            ("run: x\n  repeat: {max: 2}", "4:11 one of these keys is required"),
            ("run: x\n  repeat: {until: 'steps.a.outputs.n', max: 2}", "4:19 step `a` has no output `n`"),
            ("run: x\n  repeat: {until: '1', max: 2}", "4:19 not a condition: it is a number"),
            ("wait: 1s\n  repeat: {until: 'true', max: 2}", "4:3 `repeat` has no effect on a `wait`"),
            (
                "pipeline: child.yaml\n  repeat: {until: 'true', max: 2, delay: 1s}",
                "4:42 `delay` has no effect in the `repeat` of a step with `pipeline`",
            ),
            ("run: 'echo {{ steps.a.outputs.n }}'", "3:17 step `a` has no field `outputs`"),
            ("end: completed\n  always: true", "4:3 `always` has no effect on an `end`"),
            ("end: {message: x}", "3:8 `end` needs the key `status`"),
            ("gate: {ask: x, default: maybe, timeout: 1s}", "3:27 `maybe` is not one of the choices"),
            ("gate: {ask: x, default: 'no'}", "3:27 `default` has no effect without `timeout`"),
            ("gate: {ask: x}\n  env: {A: b}", "4:3 `env` has no effect on a `gate`"),
            ("wait: {for: 1s, until: x}", "3:9 only one of these keys is allowed"),
            ("wait: 0s", "3:9 `wait` cannot be zero"),
            ("wait: {until: soon}", "3:17 `soon` is not a time"),
            ("pipeline: none.yaml", "3:13 the child pipeline `none.yaml` cannot be used"),
            (
                "pipeline: '{{ run.id }}'",
                "3:13 the path of a child pipeline cannot contain templates without `files`",
            ),
            (
                "pipeline: {file: child.yaml, inputs: {texd: 1}}",
                "3:41 the child pipeline has no input `texd`",
            ),
            ("task: {prompt: x}\n  outputs: {a: f}", "4:3 `outputs` has no effect on a `task`"),
        ] {
            let source = format!("steps:\n- id: a\n  {step}\n- id: z\n  needs: []\n  run: x\n");
            let wrong = parse("p.yaml", &source).map(|_| ()).unwrap_err();
            let first = wrong.iter().next().unwrap();
            let found =
                format!("{}:{} {}", first.line.unwrap_or(0), first.column.unwrap_or(0), first.message);
            assert!(found.starts_with(expected), "{step}\n{wrong}");
        }
    }

    #[test]
    fn retry_on_a_gate_is_warned_of() {
        let loaded = parse("p.yaml", "steps:\n- id: a\n  gate: {ask: x}\n  retry: {attempts: 2}\n").unwrap();
        assert_eq!(loaded.warnings.len(), 1, "{}", loaded.warnings);
    }

    #[test]
    fn broken_files_of_the_whole_language_never_panic() {
        let whole = "steps:\n- {id: a, run: x, outputs: {l: {stdout: json}}}\n- id: b\n  run: 'echo {{ item }}'\n  foreach: '{{ steps.a.outputs.l }}'\n  when: steps.a.status == 'done'\n  check: [{file: f, not_empty: true}, {run: make}]\n- {id: c, gate: {ask: x, choices: [y, n]}}\n- {id: d, wait: {signal: s, timeout: 1s}}\n- {id: e, pipeline: {file: child.yaml, inputs: {text: x}}}\n- {id: f, task: {prompt: p, queue: q}}\n";
        assert!(parse("p.yaml", whole).is_ok(), "{}", parse("p.yaml", whole).unwrap_err());
        // Each character is left out once, and replaced once by one that has a meaning in YAML or templates.
        for (at, character) in whole.char_indices() {
            let (before, after) = (&whole[..at], &whole[at + character.len_utf8()..]);
            for put in ["", "{", "}", "[", "'", ":", "\n", "*", "é"] {
                if let Err(wrong) = parse("p.yaml", &format!("{before}{put}{after}")) {
                    assert!(!wrong.to_string().is_empty());
                }
            }
        }
    }
}
