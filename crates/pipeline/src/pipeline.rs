//! A pipeline file, understood: typed, checked, its defaults merged into each step.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::Value;
use sprag_lifecycle::{
    Concurrency, Condition, OnConflict, Plan, PlanStep, Policy, Spread, StepNo, Surroundings, WorkKind,
};

use crate::child::Definition;
use crate::diagnostic::{Diagnostics, Problem, Report};
use crate::inputs::Input;
use crate::source::{Source, Span};
use crate::spec::{Kind, StepSpec};
use crate::template;
use crate::workplace::Workplace;

/// A pipeline as its author wrote it.
#[derive(Debug, Clone)]
pub struct Pipeline {
    /// The pipeline's name.
    pub name: String,
    /// What a run is given.
    pub inputs: Vec<Input>,
    /// A limit that its runs share.
    pub concurrency: Option<ConcurrencyRule>,
    /// Where its runs work, if not where they are started.
    pub workplace: Option<Workplace>,
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
    /// What a worker must have to be given it.
    pub labels: Vec<String>,
    /// Higher is claimed first.
    pub priority: i32,
    /// It works in an environment of its own.
    pub own_environment: bool,
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
                Ok(group) => Some(Concurrency { group, limit: rule.limit, on_conflict: rule.on_conflict }),
                Err(why) => {
                    report.error(Problem::at(
                        rule.span,
                        format!("the concurrency group has no name in this run: {why}"),
                    ));
                    None
                }
            });
        let environment = self.workplace.as_ref().and_then(|workplace| {
            let pattern = workplace.pattern(&context["inputs"]).map_err(|why| {
                report.error(Problem::nowhere(format!("the environment has no place in this run: {why}")));
            });
            let spec = serde_json::to_string(&pattern.ok()?).expect("a workplace is text and lists");
            Some(Surroundings { spec })
        });
        // With all inputs there, what the loader has checked is enough.
        if inputs.len() < self.inputs.len() {
            self.check_values(&context, &mut report);
        }
        let numbers: HashMap<&str, StepNo> =
            self.steps.iter().enumerate().map(|(no, step)| (step.id.as_str(), no as StepNo)).collect();
        let steps = (0..self.steps.len()).map(|no| self.plan_step(no, &numbers));
        let plan = Plan::new(self.name.clone(), steps.collect());
        match plan {
            Ok(mut plan) if !report.has_errors() => {
                plan.concurrency = concurrency;
                plan.environment = environment;
                Ok(plan)
            }
            Ok(_) => Err(report.finish()),
            Err(why) => {
                report.error(Problem::nowhere(why.to_string()));
                Err(report.finish())
            }
        }
    }

    /// The child pipelines that its steps name, by the names they have for them.
    pub(crate) fn children(&self) -> impl Iterator<Item = (String, Definition)> {
        self.steps.iter().filter_map(|step| match &step.spec.kind {
            Kind::Pipeline { file, definition, .. } => Some((file.clone(), (**definition).clone())),
            _ => None,
        })
    }

    fn plan_step(&self, no: usize, numbers: &HashMap<&str, StepNo>) -> PlanStep {
        let step = &self.steps[no];
        let spec =
            serde_json::to_string(&step.spec).expect("a spec is text, numbers and maps with text keys");
        let names = match spec.contains("steps") || step.spec.when.is_some() {
            true => step.spec.names(),
            false => Vec::new(),
        };
        let of_item =
            |name: &String| ["item", "matrix"].contains(&name.split('.').next().unwrap_or_default());
        let when = step.spec.when.as_deref().map(|when| {
            template::condition(when).map(template::names).unwrap_or_default().iter().any(of_item)
        });
        let mut planned = PlanStep::new(step.id.clone(), step.needs.clone());
        planned.policy = step.policy.clone();
        planned.queue = step.queue.clone();
        planned.labels = step.labels.clone();
        planned.priority = step.priority;
        planned.work = match &step.spec.kind {
            Kind::Run { .. } | Kind::Exec { .. } | Kind::Call { .. } | Kind::Land { .. } => {
                WorkKind::Execution
            }
            Kind::Task { .. } => WorkKind::Task,
            Kind::Gate { .. } => WorkKind::Gate,
            Kind::Wait(_) => WorkKind::Wait,
            Kind::Pipeline { .. } => WorkKind::Child,
        };
        planned.condition = match (when, &step.spec.fan_out) {
            (None, _) => Condition::None,
            (Some(true), Some(_)) => Condition::Item,
            (Some(_), _) => Condition::Step,
        };
        planned.spread = step.spec.fan_out.as_ref().map(|fan_out| Spread {
            max_parallel: fan_out.max_parallel,
            fail_fast: fan_out.fail_fast,
            open: false,
        });
        planned.own_environment = step.own_environment;
        planned.reads = self.reads(no, &names, numbers);
        planned.spec = spec;
        planned
    }

    /// The steps whose results these names are about; all that come before if it cannot be told.
    fn reads(&self, no: usize, names: &[String], numbers: &HashMap<&str, StepNo>) -> Vec<StepNo> {
        let mut reads = std::collections::BTreeSet::new();
        for name in names {
            let mut parts = name.split('.');
            if parts.next() != Some("steps") {
                continue;
            }
            match parts.next().and_then(|id| numbers.get(id)) {
                Some(found) => drop(reads.insert(*found)),
                None => reads.extend(self.before(no)),
            }
        }
        reads.into_iter().collect()
    }

    /// All steps that come before this one.
    fn before(&self, no: usize) -> std::collections::BTreeSet<StepNo> {
        let mut found = std::collections::BTreeSet::new();
        let mut todo = vec![no];
        while let Some(next) = todo.pop() {
            todo.extend(
                self.steps[next].needs.iter().filter(|need| found.insert(**need)).map(|need| *need as usize),
            );
        }
        found
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
