//! Rewrites keys that stand for further steps: a step of several agents becomes one step for each and one that picks,
//! handlers and services become `always` steps at the end, and a gate after the last rework becomes a step behind the one that
//! failed. All later checks see ordinary steps with their places in the file.

use std::collections::BTreeSet;

use sprag_lifecycle::mutant;

use crate::contest;
use crate::diagnostic::{Problem, Report};
use crate::pipeline::Step;
use crate::services;
use crate::source::Span;
use crate::yaml::{MapKey, Node, Scalar, ScalarKind, Yaml};

/// The handlers in the order in which their steps are added, with the condition of each.
const HANDLERS: [(&str, Option<&str>); 4] = [
    ("success", Some("succeeded()")),
    ("failure", Some("failed()")),
    ("cancel", Some("cancelled()")),
    ("finally", None),
];

/// A pipeline file whose handlers and gates after rework are steps.
pub(crate) struct Expanded {
    pub(crate) root: Node,
    /// The conditions of added steps, by their ids.
    conditions: Vec<(String, String)>,
}

impl Expanded {
    /// Adds the conditions to the decoded steps.
    pub(crate) fn add_conditions(&self, steps: &mut [Step]) {
        for (id, condition) in &self.conditions {
            if let Some(step) = steps.iter_mut().find(|step| step.id == *id) {
                step.require(condition);
            }
        }
    }
}

/// Returns the file with the added steps; none if it has no key that stands for steps.
pub(crate) fn expand(root: &Node, report: &mut Report) -> Option<Expanded> {
    let written = root.get("steps").map(Node::items).unwrap_or_default();
    let handlers = root.get("handlers").filter(|handlers| !handlers.entries().is_empty());
    let services = root.get("services").filter(|services| !services.entries().is_empty());
    let has_contests = written.iter().any(contest::is_contest);
    let has_gates = written.iter().any(|step| then_gate(step).is_some());
    if handlers.is_none() && services.is_none() && !has_contests && !has_gates {
        return None;
    }
    let mut conditions = Vec::new();
    let contested =
        if has_contests { contest::with_contests(root, written, report) } else { written.to_vec() };
    let mut steps = with_gates(&contested, &mut conditions, report);
    if let Some(handlers) = handlers {
        add_handlers(handlers, &mut steps, &mut conditions, report);
    }
    if let Some(services) = services {
        services::add_steps(services, &mut steps, report);
    }
    let place = root.get("steps").map_or(root.span, |steps| steps.span);
    let others = root.entries().iter().filter(|(key, _)| key.text != "steps").cloned();
    let steps = (key("steps", place), Node::new(place, Yaml::List(steps)));
    let root = Node::new(root.span, Yaml::Map(others.chain([steps]).collect()));
    Some(Expanded { root, conditions })
}

/// Returns the gate that asks when the reworks of a step are used up.
fn then_gate(step: &Node) -> Option<&Node> {
    step.get("on_fail")?.get("then")?.get("gate")
}

fn id_of(step: &Node) -> Option<&str> {
    step.get("id").and_then(Node::text)
}

/// Returns the steps with a gate behind each step whose `on_fail` ends in one. Steps that need such a step need its gate
/// too.
fn with_gates(written: &[Node], conditions: &mut Vec<(String, String)>, report: &mut Report) -> Vec<Node> {
    let gated: BTreeSet<&str> =
        written.iter().filter(|step| then_gate(step).is_some()).filter_map(id_of).collect();
    let mut steps = Vec::with_capacity(written.len());
    for step in written {
        refuse_counted(step, &gated, report);
        steps.push(if gated.is_empty() { step.clone() } else { needing_gates(step, &gated) });
        let (Some(gate), Some(id)) = (then_gate(step), id_of(step)) else { continue };
        let own = gate_id(id);
        let mut entries = vec![
            (key("id", gate.span), text(&own, gate.span)),
            (key("needs", gate.span), Node::new(gate.span, Yaml::List(vec![text(id, gate.span)]))),
            (key("gate", gate.span), gate.clone()),
        ];
        entries.extend(step.entries().iter().filter(|(key, _)| key.text == "always").cloned());
        steps.push(Node::new(step.span, Yaml::Map(entries)));
        conditions.push((own, format!("steps[{}].status == \"failed\"", serde_json::json!(id))));
    }
    steps
}

/// Returns the id of the gate behind a step.
fn gate_id(step: &str) -> String {
    format!("{step}-gate")
}

/// Reports a step with a gate among needs of which only some count. The step fails before its question, so the others
/// would not wait for the answer.
fn refuse_counted(step: &Node, gated: &BTreeSet<&str>, report: &mut Report) {
    let Some(needs) = step.get("needs") else { return };
    let some = needs.get("any").or_else(|| needs.get("of")).map(Node::items).unwrap_or_default();
    for need in some.iter().filter(|need| need.text().is_some_and(|id| gated.contains(id))) {
        let id = need.text().unwrap_or_default();
        let message = format!("step `{id}` ends in a question, whose answer cannot be counted");
        report.error(
            Problem::at(need.span, message).help(
                "list it in plain `needs`, or replace `then` by `continue` and ask in a step of its own",
            ),
        );
    }
}

/// Returns a step that also needs the gates behind the steps that it needs.
fn needing_gates(step: &Node, gated: &BTreeSet<&str>) -> Node {
    let mut step = step.clone();
    if let Yaml::Map(entries) = &mut step.yaml {
        for (_, needs) in entries.iter_mut().filter(|(key, _)| key.text == "needs") {
            let named: Vec<Node> = match needs.text() {
                Some(_) => vec![needs.clone()],
                None => needs.items().to_vec(),
            };
            let gates: Vec<Node> = named
                .iter()
                .filter_map(|need| Some(text(&gate_id(gated.get(need.text()?)?), need.span)))
                .collect();
            if !gates.is_empty() {
                *needs = Node::new(needs.span, Yaml::List(named.into_iter().chain(gates).collect()));
            }
        }
    }
    step
}

/// Adds the steps of the handlers. The first step of each needs all steps that no other step needs.
fn add_handlers(
    handlers: &Node,
    steps: &mut Vec<Node>,
    conditions: &mut Vec<(String, String)>,
    report: &mut Report,
) {
    let mut ends = loose_ends(steps);
    let mut last_of_handlers = Vec::new();
    for (name, condition) in HANDLERS {
        let list = handlers.get(name).map(Node::items).unwrap_or_default();
        if name == "finally" && !last_of_handlers.is_empty() {
            ends = std::mem::take(&mut last_of_handlers);
        }
        let mut before: Option<&Node> = None;
        for step in list {
            check(step, report);
            let needs = match before.and_then(id_of) {
                Some(before) => vec![text(before, step.span)],
                None => ends.iter().map(|end| text(end, step.span)).collect(),
            };
            let mut entries: Vec<(MapKey, Node)> = step.entries().to_vec();
            entries.retain(|(key, _)| !["needs", "always"].contains(&key.text.as_str()));
            entries.push((key("needs", step.span), Node::new(step.span, Yaml::List(needs))));
            if step.get("end").is_none() {
                entries.push((key("always", step.span), yes(step.span)));
            }
            let place = step.span;
            if let Some(id) = id_of(step) {
                let own = condition.filter(|_| !mutant!(HandlerAlways)).map(str::to_owned);
                // A handler's steps run in order: one that fails ends the handler.
                let order = before.filter(|before| !tolerates(before)).and_then(id_of).map(|before| {
                    format!("steps[{}].status in [\"done\", \"skipped\"]", serde_json::json!(before))
                });
                let all: Vec<String> = own.into_iter().chain(order).collect();
                if !all.is_empty() {
                    conditions.push((id.to_owned(), all.join(" and ")));
                }
            }
            steps.push(Node::new(place, Yaml::Map(entries)));
            before = Some(step);
        }
        last_of_handlers.extend(before.and_then(id_of).map(str::to_owned));
    }
}

/// Returns whether a failure of the step counts as done.
fn tolerates(step: &Node) -> bool {
    step.get("on_fail").and_then(Node::text) == Some("continue")
}

/// Reports the keys that have no meaning in a handler.
fn check(step: &Node, report: &mut Report) {
    for (key, _) in step.entries() {
        let problem = match key.text.as_str() {
            "needs" => {
                Problem::at(key.span, "`needs` has no effect in a handler").help("its steps run in order")
            }
            "always" => Problem::at(key.span, "`always` has no effect in a handler").help("remove it"),
            "end" => Problem::at(key.span, "a handler cannot end the run").help("the run ends after it"),
            _ => continue,
        };
        report.error(problem);
    }
    if let Some(rework) = step.get("on_fail").and_then(|on_fail| on_fail.get("rework")) {
        let problem = Problem::at(rework.span, "a handler cannot send the run back");
        report.error(problem.expected("`fail` or `continue`"));
    }
}

/// Returns the ids of the steps that no step needs.
fn loose_ends(steps: &[Node]) -> Vec<String> {
    let mut needed = BTreeSet::new();
    for (no, step) in steps.iter().enumerate() {
        let before = no.checked_sub(1).and_then(|before| id_of(&steps[before]));
        match step.get("needs") {
            None => needed.extend(before),
            Some(needs) => {
                let some = needs.get("any").or_else(|| needs.get("of")).unwrap_or(needs);
                needed.extend(some.items().iter().chain([some]).filter_map(Node::text));
            }
        }
    }
    steps.iter().filter_map(id_of).filter(|id| !needed.contains(id)).map(str::to_owned).collect()
}

fn key(name: &str, span: Span) -> MapKey {
    MapKey { text: name.to_owned(), span }
}

fn text(text: &str, span: Span) -> Node {
    Node::new(span, Yaml::Scalar(Scalar { text: text.to_owned(), kind: ScalarKind::Text }))
}

fn yes(span: Span) -> Node {
    Node::new(span, Yaml::Scalar(Scalar { text: "true".into(), kind: ScalarKind::Boolean(true) }))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_question_after_rework_is_not_counted_among_some_needs() {
        let text = |needs: &str| {
            format!(
                "steps:\n- {{ id: plan, run: x }}\n- {{ id: check, run: x, on_fail: {{ rework: plan, then: {{ gate: {{ ask: x }} }} }} }}\n\
                 - {{ id: other, needs: plan, run: x }}\n- {{ id: ship, needs: {needs}, run: x }}\n"
            )
        };
        for needs in ["{ any: [check, other] }", "{ at_least: 2, of: [check, other] }"] {
            let wrong = crate::parse("p.yaml", &text(needs)).expect_err(needs);
            assert!(wrong.to_string().contains("step `check` ends in a question"), "{wrong}");
            assert_eq!(wrong.iter().next().and_then(|one| one.line), Some(5), "{wrong}");
        }
        assert!(crate::parse("p.yaml", &text("[check, other]")).is_ok());
    }
}
