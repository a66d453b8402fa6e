//! Gates: the choices and fields of a question, and the steps that a choice leads to.

use std::collections::{BTreeMap, BTreeSet};

use sprag_lifecycle::{Answerers, NotBy, StepNo};

use crate::diagnostic::{Problem, Report};
use crate::graph::Graph;
use crate::inputs::Input;
use crate::names::{GATE_OUTPUTS, TemplateRole, Uses};
use crate::nearest::nearest;
use crate::pipeline::Step;
use crate::spec::Kind;
use crate::template;
use crate::yaml::{Node, quoted};

/// The longest name of a person who may answer, in characters: that of a token.
const LONGEST_NAME: usize = 107;

/// Decodes a gate.
pub(crate) fn decode<'n>(node: &'n Node, uses: &mut Uses<'n>, report: &mut Report) -> Option<Kind> {
    let ask = node.get("ask")?;
    uses.add(ask, TemplateRole::Text);
    let (choices, routes) = choices(node, report);
    let declared = node.get("fields").map(Node::entries).unwrap_or_default();
    let mut fields = Vec::with_capacity(declared.len());
    for (key, field) in declared {
        if GATE_OUTPUTS.contains(&key.text.as_str()) {
            let message =
                format!("a field cannot be named {}: every answer has that output", quoted(&key.text));
            report.error(Problem::at(key.span, message).help("choose another name"));
        }
        let field_input = Input::decode(&key.text, key.span, field, report);
        if let Some(secret) = field.get("secret").filter(|_| field_input.secret) {
            let problem = Problem::at(secret.span, "`secret` has no effect on the field of a gate");
            report.error(problem.help("an answer is stored as it is: use a secret input of the run"));
        }
        fields.push(field_input);
    }
    let default = node.get("default");
    if let (Some(place), Some(choice)) = (default, default.and_then(Node::text)) {
        if !choices.iter().any(|known| known == choice) {
            let problem = Problem::at(place.span, format!("{} is not one of the choices", quoted(choice)));
            report.error(problem.expected(format!("one of {}", choices.join(", "))));
        } else if node.get("timeout").is_none() {
            let problem = Problem::at(place.span, "`default` has no effect without `timeout`");
            report.error(problem.help("add a `timeout`, or remove it"));
        } else if let Some(field) = fields.iter().find(|field| field.required) {
            let message =
                format!("`default` answers the question without the required field `{}`", field.name);
            report.error(
                Problem::at(place.span, message).help("give the field a `default` instead of `required`"),
            );
        }
    }
    let default = default.and_then(Node::text).map(str::to_owned);
    let answerers = answerers(node, report);
    Some(Kind::Gate { ask: ask.text()?.to_owned(), choices, default, fields, routes, answerers })
}

/// Returns the people who may answer.
fn answerers(node: &Node, report: &mut Report) -> Answerers {
    let mut names: Vec<String> = Vec::new();
    for name in node.get("answer_by").map(Node::items).unwrap_or_default() {
        let Some(text) = name.text() else { continue };
        let refused = if text.chars().count() > LONGEST_NAME || text.chars().any(char::is_control) {
            Some(format!("a name has at most {LONGEST_NAME} characters, none of them a control character"))
        } else if text.contains("{{") {
            Some("the names are fixed: a run must not choose who answers it".to_owned())
        } else if text.starts_with("step:") || text.starts_with("agent:") {
            Some(format!("{} is not a person or a token", quoted(text)))
        } else if names.iter().any(|known| known == text) {
            Some(format!("{} is listed twice", quoted(text)))
        } else {
            None
        };
        match refused {
            Some(message) => report.error(
                Problem::at(name.span, message)
                    .expected("the name of a token or a user, or `token:NAME` or `user:NAME`"),
            ),
            None => names.push(text.to_owned()),
        }
    }
    let not_by = node.get("not_by").map(|_| NotBy::Starter);
    Answerers { answer_by: names, not_by }
}

/// Returns the choices of a gate, and the steps that they lead to.
fn choices(node: &Node, report: &mut Report) -> (Vec<String>, BTreeMap<String, String>) {
    let Some(written) = node.get("choices") else {
        return (vec!["yes".into(), "no".into()], BTreeMap::new());
    };
    let (mut choices, mut routes) = (Vec::new(), BTreeMap::new());
    for choice in written.items() {
        let name = match (choice.text(), choice.entries()) {
            (Some(name), _) => name.to_owned(),
            (None, [(key, way)]) => {
                if let Some(step) = way.get("to").and_then(Node::text) {
                    routes.insert(key.text.clone(), step.to_owned());
                }
                key.text.clone()
            }
            (None, entries) => {
                if entries.len() > 1 {
                    let problem = Problem::at(choice.span, "a choice has one name");
                    report.error(problem.expected("a text, or { TEXT: { to: STEP } }"));
                }
                continue;
            }
        };
        choices.push(name);
    }
    (choices, routes)
}

/// Reports choices that lead to a step which does not come after the gate.
pub(crate) fn check_routes(written: &[Node], graph: &Graph, ids: &[Option<&str>], report: &mut Report) {
    let mut found = Vec::new();
    for (no, step) in written.iter().enumerate() {
        let choices =
            step.get("gate").and_then(|gate| gate.get("choices")).map(Node::items).unwrap_or_default();
        for (_, way) in choices.iter().flat_map(Node::entries) {
            let Some(to) = way.get("to") else { continue };
            let Some(name) = to.text() else { continue };
            if let Some(key) = ["foreach", "matrix"].into_iter().find(|key| step.get(key).is_some()) {
                let message =
                    format!("a choice of a gate with `{key}` leads to no step: each item is answered");
                report.error(Problem::at(to.span, message).help(
                    "remove `to`, and give the later steps a `when` over the list `steps.ID.outputs.choice`",
                ));
                continue;
            }
            match ids.iter().position(|id| *id == Some(name)) {
                Some(target) => found.push(((no as StepNo, target as StepNo), to)),
                None => {
                    let problem = Problem::at(to.span, format!("there is no step {}", quoted(name)));
                    report.error(problem.nearest(nearest(name, ids.iter().flatten().copied())));
                }
            }
        }
    }
    if graph.is_circular || found.is_empty() {
        return;
    }
    let pairs: Vec<(StepNo, StepNo)> = found.iter().map(|(pair, _)| *pair).collect();
    let after = sprag_lifecycle::graph::come_before(&graph.needs, &pairs);
    for ((_, to), _) in found.iter().zip(after).filter(|(_, after)| !after) {
        let name = to.text().unwrap_or_default();
        let problem = Problem::at(to.span, format!("step {} does not come after this gate", quoted(name)));
        report.error(problem.help(
            "a choice leads to a step that needs the gate; to go back, use `on_fail: { rework: STEP }`",
        ));
    }
}

/// Adds a condition to each step that only some choices of a gate lead to: the step runs if one of them was chosen. A
/// step that several targets lead to runs for each of them.
pub(crate) fn add_routes(steps: &mut [Step]) {
    let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
    for (no, step) in steps.iter().enumerate() {
        step.needs.iter().for_each(|need| dependents[*need as usize].push(no));
    }
    let mut conditions: Vec<(usize, String)> = Vec::new();
    for gate in steps.iter() {
        let Kind::Gate { routes, .. } = &gate.spec.kind else { continue };
        let mut leading: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
        for (choice, target) in routes {
            let Some(target) = steps.iter().position(|step| step.id == *target) else { continue };
            let mut found = BTreeSet::from([target]);
            let mut todo = vec![target];
            while let Some(next) = todo.pop() {
                todo.extend(dependents[next].iter().filter(|no| found.insert(**no)));
            }
            for no in found.into_iter().filter(|no| *no == target || !steps[*no].policy.always) {
                leading.entry(no).or_default().insert(choice);
            }
        }
        for (no, choices) in leading {
            let name = format!("steps[{}]", serde_json::json!(gate.id));
            let choices = serde_json::json!(choices);
            // Without a question all of its targets run.
            conditions.push((
                no,
                format!(
                    "{name}.status == \"skipped\" or (({name}.outputs.choice | default(\"\")) in {choices})"
                ),
            ));
        }
    }
    for (no, condition) in conditions {
        steps[no].require(&condition);
    }
}

impl Step {
    /// Adds a condition to the step's own.
    pub(crate) fn require(&mut self, condition: &str) {
        self.spec.when = Some(match self.spec.when.as_deref() {
            Some(own) => {
                let own = template::condition(own).unwrap_or(own);
                format!("({condition}) and ({own})")
            }
            None => condition.to_owned(),
        });
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn choices_of_a_fan_out_lead_nowhere_and_are_refused() {
        for key in ["foreach: [1, 2]", "matrix: { os: [a] }"] {
            let text = format!(
                "steps:\n- {{ id: ask, {key}, gate: {{ ask: 'x {{{{ item_index }}}}', choices: [{{ a: {{ to: b }} }}, c] }} }}\n- {{ id: b, run: x }}\n"
            );
            let wrong = crate::parse("p.yaml", &text).expect_err("routes of a fan-out");
            assert!(wrong.to_string().contains("leads to no step"), "{wrong}");
            assert_eq!((wrong.len(), wrong.iter().next().and_then(|one| one.line)), (1, Some(2)), "{wrong}");
        }
    }
}
