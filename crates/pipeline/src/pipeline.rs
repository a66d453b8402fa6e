//! A pipeline file, understood: typed, checked, its defaults merged into each step.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use sprag_lifecycle::{Concurrency, Plan, PlanStep, Policy, StepNo};

use crate::diagnostic::{Diagnostics, Problem, Report};
use crate::inputs::Input;
use crate::source::{Source, Span};
use crate::spec::StepSpec;
use crate::template;

/// A pipeline as its author wrote it.
#[derive(Debug, Clone)]
pub struct Pipeline {
    /// The pipeline's name.
    pub name: String,
    /// What a run is given.
    pub inputs: Vec<Input>,
    /// A limit that its runs share.
    pub concurrency: Option<ConcurrencyRule>,
    /// The steps, in the order they were written.
    pub steps: Vec<Step>,
    pub(crate) source: Arc<Source>,
}

/// One step, with the pipeline's defaults merged in.
#[derive(Debug, Clone)]
pub struct Step {
    /// The name its author gave it.
    pub id: String,
    /// The steps that come before it.
    pub needs: Vec<StepNo>,
    /// What becomes of failure.
    pub policy: Policy,
    /// Where its executions wait for a worker.
    pub queue: String,
    /// Higher is claimed first.
    pub priority: i32,
    /// What it does.
    pub spec: StepSpec,
}

/// A limit shared by runs, before its group is named for one run.
#[derive(Debug, Clone)]
pub struct ConcurrencyRule {
    /// The group's name, a template over `inputs`.
    pub group: String,
    /// How many of the group may be live at once.
    pub limit: u32,
    /// What becomes of a run that finds the group full.
    pub on_conflict: OnConflict,
    pub(crate) span: Span,
}

/// What becomes of a run that finds its group full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnConflict {
    /// It waits.
    #[default]
    Queue,
    /// It is refused.
    Reject,
    /// Older runs of the group are cancelled.
    CancelOlder,
}

impl Pipeline {
    /// The file's text, from which a run's frozen copy can be hashed.
    pub fn source(&self) -> &str {
        &self.source.text
    }

    /// The plan of a run with these inputs, which are checked as [`Pipeline::complete`] does.
    pub fn plan(&self, inputs: &BTreeMap<String, Value>) -> Result<Plan, Diagnostics> {
        let inputs = self.complete(inputs)?;
        let mut report = Report::new(self.source.clone());
        let context = serde_json::json!({ "inputs": inputs });
        let concurrency =
            self.concurrency.as_ref().and_then(|rule| match template::text(&rule.group, &context) {
                Ok(group) => Some(Concurrency { group, limit: rule.limit }),
                Err(why) => {
                    report.error(Problem::at(
                        rule.span,
                        format!("the concurrency group has no name in this run: {why}"),
                    ));
                    None
                }
            });
        // With all inputs there, what the loader has checked is enough.
        if inputs.len() < self.inputs.len() {
            self.check_values(&context, &mut report);
        }
        let steps = self.steps.iter().map(|step| PlanStep {
            id: step.id.clone(),
            needs: step.needs.clone(),
            policy: step.policy.clone(),
            queue: step.queue.clone(),
            priority: step.priority,
            spec: serde_json::to_string(&step.spec).expect("a spec is text, numbers and maps with text keys"),
        });
        let plan = Plan::new(self.name.clone(), steps.collect());
        match plan {
            Ok(mut plan) if !report.has_errors() => {
                plan.concurrency = concurrency;
                Ok(plan)
            }
            Ok(_) => Err(report.finish()),
            Err(why) => {
                report.error(Problem::nowhere(why.to_string()));
                Err(report.finish())
            }
        }
    }

    /// Reports the templates that have no value for want of an input, before any step has run.
    fn check_values(&self, context: &Value, report: &mut Report) {
        for step in &self.steps {
            for expression in step.spec.expressions() {
                let names = template::names(&expression);
                let of_inputs =
                    !names.is_empty() && names.iter().all(|name| name.split('.').next() == Some("inputs"));
                if let Some(why) = of_inputs.then(|| template::evaluate(&expression, context).err()).flatten()
                {
                    let message = format!(
                        "step `{}` uses `{{{{ {expression} }}}}`, which has no value in this run: {why}",
                        step.id
                    );
                    report
                        .error(Problem::nowhere(message).help("give the input, or use the filter `default`"));
                }
            }
        }
    }
}
