//! The language of pipeline files, as the store evaluates it.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use sprag_lifecycle::{OUTER_INPUT, Plan, PlanStep, RunId};
use sprag_pipeline::{
    Budget, Kind, StepSpec, Wait, Workplace, render_outputs, render_step_within, repeats_within, time_ms,
    when_holds_within,
};
use sprag_process::CrashMarks;
use sprag_store::{Answer, Prepared, Question, SpecError, SpecEvaluator};

use crate::agents::name_known_accounts;

/// The evaluator of the specs that [`sprag_pipeline::Pipeline::plan`] has written.
#[derive(Debug, Clone, Copy, Default)]
pub struct PipelineEvaluator;

impl PipelineEvaluator {
    fn answer_within(
        question: Question,
        step: &PlanStep,
        names: &Value,
        budget: &Budget,
    ) -> Result<Answer, SpecError> {
        let spec = read(step)?;
        match question {
            Question::Condition => {
                let names = spec.template_context(names.clone());
                let wanted = when_holds_within(&spec, &names, budget).map_err(SpecError::new)?;
                Ok(Answer::Condition(wanted))
            }
            Question::Repeat => {
                let names = spec.template_context(names.clone());
                let repeats = repeats_within(&spec, &names, budget).map_err(SpecError::new)?;
                Ok(Answer::Condition(repeats))
            }
            Question::Items => {
                let fan_out = spec.fan_out.ok_or_else(|| SpecError::new("the step has no list"))?;
                let items = fan_out.items_within(names, budget).map_err(SpecError::new)?;
                Ok(Answer::Items(items))
            }
            Question::Prepare => {
                let names = spec.template_context(names.clone());
                let rendered = render_step_within(&spec, &names, budget).map_err(SpecError::new)?;
                prepared(rendered).map(Answer::Prepared)
            }
        }
    }
}

impl SpecEvaluator for PipelineEvaluator {
    fn wanted(&self, step: &PlanStep, names: &Value) -> Result<bool, SpecError> {
        let answer = PipelineEvaluator::answer_within(Question::Condition, step, names, &Budget::default())?;
        Ok(matches!(answer, Answer::Condition(true)))
    }

    fn items(&self, step: &PlanStep, names: &Value) -> Result<Vec<Value>, SpecError> {
        match PipelineEvaluator::answer_within(Question::Items, step, names, &Budget::default())? {
            Answer::Items(items) => Ok(items),
            _ => Err(SpecError::new("the step has no list")),
        }
    }

    fn repeats(&self, step: &PlanStep, names: &Value) -> Result<bool, SpecError> {
        let answer = PipelineEvaluator::answer_within(Question::Repeat, step, names, &Budget::default())?;
        Ok(matches!(answer, Answer::Condition(true)))
    }

    fn outputs(&self, spec: &str, names: &Value) -> Value {
        render_outputs(spec, names, &Budget::default())
    }

    fn prepare(&self, step: &PlanStep, names: &Value) -> Result<Prepared, SpecError> {
        match PipelineEvaluator::answer_within(Question::Prepare, step, names, &Budget::default())? {
            Answer::Prepared(prepared) => Ok(prepared),
            _ => Err(SpecError::new("this is a worker's work")),
        }
    }

    fn answer_at_once(
        &self,
        question: Question,
        step: &PlanStep,
        names: &Value,
    ) -> Option<Result<Answer, SpecError>> {
        let budget = Budget::small();
        let answer = PipelineEvaluator::answer_within(question, step, names, &budget);
        (!budget.is_spent()).then_some(answer)
    }

    fn branch(&self, plan: &Plan, run: &str) -> Option<String> {
        let workplace: Workplace = serde_json::from_str(&plan.environment.as_ref()?.spec).ok()?;
        workplace.for_run(run, &plan.name).worktree.map(|worktree| worktree.branch)
    }
}

/// Returns what a step with its texts filled in waits for.
fn prepared(rendered: StepSpec) -> Result<Prepared, SpecError> {
    let timeout_ms = rendered.timeout_ms;
    match rendered.kind {
        Kind::Gate { ask, choices, default, fields, routes, answerers } => Ok(Prepared::Gate {
            ask,
            choices,
            default,
            fields: if fields.is_empty() { Value::Null } else { serde_json::json!(fields) },
            routes: if routes.is_empty() { Value::Null } else { serde_json::json!(routes) },
            answerers,
            timeout_ms,
        }),
        Kind::Wait(Wait::For { ms }) => Ok(Prepared::Pause { ms }),
        Kind::Wait(Wait::Until { time }) => match time_ms(&time) {
            Some(wall_ms) => Ok(Prepared::Until { wall_ms }),
            None => Err(SpecError::new(format_args!(
                "`until` is {time:?}, which is not a time such as 2030-01-31T08:00:00Z"
            ))),
        },
        Kind::Wait(Wait::Signal { name }) => Ok(Prepared::Signal { name, timeout_ms }),
        Kind::End { completed, message } => Ok(Prepared::End { completed, message }),
        Kind::Pipeline { mut inputs, definition, .. } => {
            // The names around steps that are written inside a step are no declared input.
            let outer = inputs.remove(OUTER_INPUT);
            let child = definition.parse().map_err(SpecError::new)?.pipeline;
            let child = child.with_masks(&rendered.masks).with_agents(&rendered.agents);
            let mut inputs = child.complete(&inputs).map_err(SpecError::new)?;
            let mut plan = child.plan(&inputs).map_err(SpecError::new)?;
            name_known_accounts(&mut plan);
            inputs.extend(outer.map(|outer| (OUTER_INPUT.to_owned(), outer)));
            let inputs = serde_json::to_string(&inputs).expect("inputs are JSON");
            Ok(Prepared::Child { plan: Arc::new(plan), inputs: inputs.into() })
        }
        Kind::Run { .. }
        | Kind::Exec { .. }
        | Kind::Call { .. }
        | Kind::Agent(_)
        | Kind::Task { .. }
        | Kind::Land { .. } => Err(SpecError::new("this is a worker's work")),
    }
}

/// The same evaluator for a program with a data directory. It does not fill in texts that have killed several
/// processes of this directory in a row.
#[derive(Debug, Clone)]
pub struct MarkedEvaluator(Arc<CrashMarks>);

impl MarkedEvaluator {
    /// Uses the marks in this data directory.
    pub fn new(data: &Path) -> Self {
        MarkedEvaluator(CrashMarks::of(data))
    }

    fn guarded<T>(
        &self,
        step: &PlanStep,
        names: &Value,
        read: impl FnOnce() -> Result<T, SpecError>,
    ) -> Result<T, SpecError> {
        let run = names["run"]["id"].as_str().unwrap_or_default();
        self.0.guarded(&mark(run, step), read).map_err(SpecError::new)?
    }
}

/// Returns the name of a step among the marks.
fn mark(run: &str, step: &PlanStep) -> String {
    format!("{run} {}", step.id)
}

impl SpecEvaluator for MarkedEvaluator {
    fn wanted(&self, step: &PlanStep, names: &Value) -> Result<bool, SpecError> {
        self.guarded(step, names, || PipelineEvaluator.wanted(step, names))
    }

    fn items(&self, step: &PlanStep, names: &Value) -> Result<Vec<Value>, SpecError> {
        self.guarded(step, names, || PipelineEvaluator.items(step, names))
    }

    fn repeats(&self, step: &PlanStep, names: &Value) -> Result<bool, SpecError> {
        self.guarded(step, names, || PipelineEvaluator.repeats(step, names))
    }

    fn outputs(&self, spec: &str, names: &Value) -> Value {
        let run = names["run"]["id"].as_str().unwrap_or_default();
        let outputs = self.0.guarded(&format!("{run} outputs"), || PipelineEvaluator.outputs(spec, names));
        outputs.unwrap_or_default()
    }

    fn prepare(&self, step: &PlanStep, names: &Value) -> Result<Prepared, SpecError> {
        self.guarded(step, names, || PipelineEvaluator.prepare(step, names))
    }

    fn answer_at_once(
        &self,
        question: Question,
        step: &PlanStep,
        names: &Value,
    ) -> Option<Result<Answer, SpecError>> {
        let answer =
            self.guarded(step, names, || PipelineEvaluator.answer_at_once(question, step, names).transpose());
        answer.transpose()
    }

    fn branch(&self, plan: &Plan, run: &str) -> Option<String> {
        PipelineEvaluator.branch(plan, run)
    }

    fn guard(&self, run: RunId, step: &PlanStep, read: &mut dyn FnMut()) -> Result<(), SpecError> {
        self.0.guarded(&mark(&run.to_string(), step), read).map_err(SpecError::new)
    }
}

fn read(step: &PlanStep) -> Result<StepSpec, SpecError> {
    serde_json::from_str(&step.spec)
        .map_err(|error| SpecError::new(format_args!("this version cannot read the step: {error}")))
}
