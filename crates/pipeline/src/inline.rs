//! Several steps inside a step: they become a pipeline of their own, which the step runs as a child.
//!
//! The names around the step (`inputs`, `item`, results of earlier steps) reach the child as one hidden input, which
//! the store unfolds wherever it gathers names ([`sprag_lifecycle::OUTER_INPUT`]). The child's text is JSON that is
//! written from the tree, so that a run can store it; diagnostics come from the tree itself.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sprag_lifecycle::OUTER_INPUT;

use crate::child::Definition;
use crate::decode::{self, Common};
use crate::diagnostic::Report;
use crate::names::{self, StepNames, TemplateRole, Uses};
use crate::spec::Kind;
use crate::yaml::{MapKey, Node, Scalar, ScalarKind, Yaml};

/// The place of the file in a step whose pipeline is written inside it. No path starts with this sign.
pub(crate) const INSIDE: &str = "#steps";

/// The names around a step that the steps inside it can use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outer {
    /// The inputs of the pipeline.
    pub(crate) inputs: Vec<String>,
    /// The steps of the pipeline, with the names of their outputs; `None` if those are not known before they run.
    pub(crate) steps: BTreeMap<String, Option<Vec<String>>>,
    /// Whether `item` is available.
    pub(crate) item: bool,
    /// Whether `item_index` is available.
    pub(crate) item_index: bool,
    /// The names of `matrix`, if it is available.
    pub(crate) axes: Option<Vec<String>>,
    /// Whether the run works in a worktree, which the steps inside share.
    #[serde(default)]
    pub(crate) worktree: bool,
}

impl Outer {
    /// Adds the names of the pipeline that is being decoded to those around it.
    pub(crate) fn with(
        mut self,
        inputs: impl Iterator<Item = String>,
        steps: &[StepNames<'_>],
        has_worktree: bool,
    ) -> Outer {
        self.inputs.extend(inputs);
        self.worktree |= has_worktree;
        for step in steps {
            let Some(id) = step.id else { continue };
            let outputs =
                step.outputs.as_ref().map(|all| all.iter().map(|name| (*name).to_owned()).collect());
            self.steps.insert(id.to_owned(), outputs);
        }
        self
    }

    /// Returns the names inside this step: its own item comes before the one around it.
    fn inside(mut self, step: &Node) -> Outer {
        if let Some(matrix) = step.get("matrix") {
            self.axes = Some(names::axes(matrix).into_iter().map(str::to_owned).collect());
            self.item = false;
        }
        let has_items = step.get("foreach").is_some();
        self.item |= has_items;
        self.item_index |= has_items || step.get("matrix").is_some();
        self
    }
}

/// Decodes the steps inside a step.
pub(crate) fn decode<'n>(
    step: &'n Node,
    steps: &'n Node,
    common: &Common<'n>,
    uses: &mut Uses<'n>,
    report: &mut Report,
) -> Option<Kind> {
    let id = step.get("id").and_then(Node::text)?;
    let around = report.own.clone();
    let outer = around.clone().inside(step);
    let key = |text: &str| MapKey { text: text.to_owned(), span: steps.span };
    let shared = common.shared().into_iter().map(|(name, node)| (key(name), node.clone()));
    let entries = shared.chain([(key("steps"), steps.clone())]).collect();
    let root = Node::new(steps.span, Yaml::Map(entries));

    let above = (std::mem::take(&mut report.child_secrets), std::mem::take(&mut report.child_agents));
    let outer_before = report.outer.replace(outer.clone());
    let pipeline = decode::decode_checked(&root, id, report);
    (report.child_secrets, report.child_agents) = above;
    report.outer = outer_before;
    report.own = around;
    let pipeline = pipeline?;
    report.child_secrets.extend(pipeline.secrets.iter().cloned());
    report.child_agents.extend(pipeline.agents().map(str::to_owned));

    let own: BTreeSet<&str> = pipeline.steps.iter().map(|step| step.id.as_str()).collect();
    let mut given = serde_json::Map::from_iter([("inputs".to_owned(), json!("{{ inputs }}"))]);
    let mut results = serde_json::Map::new();
    // Checked in the place of the step, as if its own texts used them.
    let mut check = |text: String| {
        let scalar = Yaml::Scalar(Scalar { text: text.clone(), kind: ScalarKind::Text });
        uses.add_owned(Node::new(steps.span, scalar), TemplateRole::Text);
        Value::from(text)
    };
    for name in pipeline.steps.iter().flat_map(|step| step.spec.names()) {
        let mut parts = name.split('.');
        match (parts.next().unwrap_or_default(), parts.next()) {
            ("inputs", Some(input)) if outer.inputs.iter().any(|known| known == input) => {
                check(format!("{{{{ inputs.{input} }}}}"));
            }
            ("item", _) if outer.item => drop(given.insert("item".into(), check("{{ item }}".into()))),
            ("item_index", _) if outer.item_index => {
                given.insert("item_index".into(), check("{{ item_index }}".into()));
            }
            ("matrix", _) if outer.axes.is_some() => {
                given.insert("matrix".into(), check("{{ matrix }}".into()));
            }
            ("steps", Some(other)) if !own.contains(other) && outer.steps.contains_key(other) => {
                results.insert(other.to_owned(), check(format!("{{{{ steps[\"{other}\"] }}}}")));
            }
            _ => {}
        }
    }
    given.insert("steps".into(), Value::Object(results));
    let definition = Definition {
        name: report.source.name.clone(),
        text: text_of(&root, id),
        children: pipeline.children().collect(),
        prompts: pipeline.prompts().collect(),
        outer: Some(outer),
    };
    Some(Kind::Pipeline {
        inputs: BTreeMap::from([(OUTER_INPUT.to_owned(), Value::Object(given))]),
        file: INSIDE.to_owned(),
        definition: Box::new(definition),
        files: BTreeMap::new(),
    })
}

/// Returns the tree as JSON, which is YAML too, with the order of its keys and with the pipeline's name.
fn text_of(root: &Node, name: &str) -> String {
    let mut text = format!("{{\"name\": {}", Value::from(name));
    for (key, node) in root.entries() {
        text.push_str(&format!(", {}: ", Value::from(key.text.as_str())));
        write(node, &mut text);
    }
    text.push_str("}\n");
    text
}

fn write(node: &Node, text: &mut String) {
    match &node.yaml {
        Yaml::Scalar(scalar) => text.push_str(&match scalar.kind {
            ScalarKind::Null => "null".to_owned(),
            ScalarKind::Boolean(value) => value.to_string(),
            ScalarKind::Integer(value) => value.to_string(),
            ScalarKind::Number(value) => Value::from(value).to_string(),
            ScalarKind::Text => Value::from(scalar.text.as_str()).to_string(),
        }),
        Yaml::List(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                text.push_str(if at > 0 { ", " } else { "" });
                write(item, text);
            }
            text.push(']');
        }
        Yaml::Map(entries) => {
            text.push('{');
            for (at, (key, value)) in entries.iter().enumerate() {
                text.push_str(if at > 0 { ", " } else { "" });
                text.push_str(&format!("{}: ", Value::from(key.text.as_str())));
                write(value, text);
            }
            text.push('}');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the first step inside the first step, once as loaded and once as a run stores it.
    fn inside(file: &str) -> crate::Step {
        let loaded = crate::parse("p.yaml", file).unwrap_or_else(|wrong| panic!("{file}\n{wrong}"));
        assert!(loaded.warnings.is_empty(), "{}", loaded.warnings);
        let Kind::Pipeline { definition, .. } = &loaded.pipeline.steps[0].spec.kind else { panic!("{file}") };
        let stored = serde_json::to_string(definition).unwrap();
        let stored: Definition = serde_json::from_str(&stored).unwrap();
        let inner = stored.parse().unwrap_or_else(|wrong| panic!("{stored:?}\n{wrong}"));
        assert!(inner.warnings.is_empty(), "{}", inner.warnings);
        inner.pipeline.steps.into_iter().next().unwrap()
    }

    #[test]
    fn sandboxes_and_sources_of_secrets_reach_steps_inside_a_step() {
        let spec = inside(
            "sandbox: { network: loopback }\nsecrets: { DB: { run: pass show db } }\nsteps:\n- id: each\n  foreach: [1]\n  \
             steps: [{ id: a, run: 'x {{ item }}', secrets: [DB] }]\n",
        )
        .spec;
        assert_eq!(spec.sandbox.map(|sandbox| sandbox.network), Some(crate::SandboxNetwork::Loopback));
        assert_eq!(spec.sources.keys().collect::<Vec<_>>(), ["DB"]);
    }

    #[test]
    fn an_agent_inside_a_step_works_in_the_worktree_of_the_run() {
        let steps = "steps:\n- id: each\n  steps:\n  - { id: deeper, steps: [{ id: a, agent: { use: claude, prompt: x } }] }\n";
        inside(&format!("environment: {{ worktree: {{}} }}\n{steps}"));
        let outside = crate::parse("p.yaml", steps).expect_err("an agent without a worktree");
        assert!(outside.to_string().contains("outside a worktree"), "{outside}");
    }
}
