//! The language of pipeline files, as the store asks about it.

use std::sync::Arc;

use serde_json::Value;
use sprag_lifecycle::{Plan, PlanStep};
use sprag_pipeline::{Kind, StepSpec, Wait, Workplace, render_step, time_ms, when_holds};
use sprag_store::{Language, Prepared};

/// Reads the specs that [`sprag_pipeline::Pipeline::plan`] has written.
#[derive(Debug, Clone, Copy, Default)]
pub struct PipelineLanguage;

impl Language for PipelineLanguage {
    fn wanted(&self, step: &PlanStep, names: &Value) -> Result<bool, String> {
        let spec = read(step)?;
        when_holds(&spec, &spec.names_seen(names.clone())).map_err(|error| error.to_string())
    }

    fn items(&self, step: &PlanStep, names: &Value) -> Result<Vec<Value>, String> {
        match read(step)?.fan_out {
            Some(fan_out) => fan_out.items(names).map_err(|error| error.to_string()),
            None => Err("the step has no list".into()),
        }
    }

    fn branch(&self, plan: &Plan, run: &str) -> Option<String> {
        let workplace: Workplace = serde_json::from_str(&plan.environment.as_ref()?.spec).ok()?;
        workplace.of_run(run, &plan.name).worktree.map(|worktree| worktree.branch)
    }

    fn prepare(&self, step: &PlanStep, names: &Value) -> Result<Prepared, String> {
        let spec = read(step)?;
        let rendered =
            render_step(&spec, &spec.names_seen(names.clone())).map_err(|error| error.to_string())?;
        let timeout_ms = rendered.timeout_ms;
        match rendered.kind {
            Kind::Gate { ask, choices } => Ok(Prepared::Gate { ask, choices, timeout_ms }),
            Kind::Wait(Wait::For { ms }) => Ok(Prepared::Pause { ms }),
            Kind::Wait(Wait::Until { time }) => match time_ms(&time) {
                Some(wall_ms) => Ok(Prepared::Until { wall_ms }),
                None => Err(format!("`until` is {time:?}, which is not a time such as 2030-01-31T08:00:00Z")),
            },
            Kind::Wait(Wait::Signal { name }) => Ok(Prepared::Signal { name, timeout_ms }),
            Kind::Pipeline { inputs, definition, .. } => {
                let child = definition.parse().map_err(|wrong| wrong.to_string())?.pipeline;
                let inputs = child.complete(&inputs).map_err(|wrong| wrong.to_string())?;
                let plan = child.plan(&inputs).map_err(|wrong| wrong.to_string())?;
                let inputs = serde_json::to_string(&inputs).expect("inputs are JSON");
                Ok(Prepared::Child { plan: Arc::new(plan), inputs: inputs.into() })
            }
            Kind::Run { .. }
            | Kind::Exec { .. }
            | Kind::Call { .. }
            | Kind::Task { .. }
            | Kind::Land { .. } => Err("this is a worker's work".into()),
        }
    }
}

fn read(step: &PlanStep) -> Result<StepSpec, String> {
    serde_json::from_str(&step.spec).map_err(|error| format!("this version cannot read the step: {error}"))
}
