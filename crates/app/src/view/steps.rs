//! A run with its steps: what `status` shows, and the API.

use std::collections::BTreeMap;

use serde_json::Value;
use sprag_lifecycle::{Plan, RunId, StepNo, StepStatus, Word, WorkKind};
use sprag_store::{Row, RunRow, StepRow, is_current, step_name};

use super::{ItemsView, RunDetail, StatusView, StepView};
use crate::App;
use crate::error::Error;
use crate::items::item_names;
use crate::labels::RunLabels;
use crate::logs::MissingLog;
use crate::text::rfc3339;
use crate::waiting_for::{RunWaits, WaitingFor};

/// Returns whether a step was cancelled before it began: no attempt of it was executed since the run went back to it
/// for the last time.
pub fn is_not_run(step: &StepRow) -> bool {
    let is_fresh = step.started_ms.is_none() && (step.tries, step.losses, step.repeats) == (0, 0, 0);
    step.status() == StepStatus::Cancelled && is_fresh
}

/// Returns the round of a step's `repeat` and the most rounds; none if the step has none, or if its items have them.
pub fn round_of(plan: &Plan, step: &StepRow) -> Option<(u32, u32)> {
    let planned = plan.step(step.node());
    let most = planned.repeat.filter(|_| planned.spread.is_none() || step.item_of.is_some())?.max;
    Some(((step.repeats + 1).min(most), most))
}

impl StatusView {
    /// Returns the view of a run and of its steps that count; `missing` are the logs that have not arrived to their
    /// end.
    pub fn of(run: &RunRow, plan: &Plan, steps: &[StepRow], missing: &BTreeMap<StepNo, MissingLog>) -> Self {
        let current = steps.iter().filter(|step| is_current(steps, step));
        let view = |step: &StepRow| StepView {
            log_missing: missing.get(&step.no).cloned(),
            ..StepView::of(plan, step)
        };
        let RunLabels { name, labels } = RunLabels::of(run);
        StatusView {
            id: run.id.to_string(),
            pipeline: run.pipeline.to_string(),
            name,
            labels,
            status: run.status().as_str(),
            waiting_for: None,
            epoch: run.epoch,
            steps: current.map(view).collect(),
            notes: Vec::new(),
        }
    }

    /// Adds the values of the items of its fan-outs.
    pub fn with_items(mut self, app: &App, plan: &Plan, steps: &[StepRow]) -> Result<Self, Error> {
        let current = steps.iter().filter(|step| is_current(steps, step));
        let mut names = item_names(app, plan, current)?;
        let numbers: BTreeMap<String, StepNo> = steps
            .iter()
            .filter(|step| step.item.is_some())
            .map(|step| (step_name(plan, step), step.no))
            .collect();
        for view in self.steps.iter_mut().filter(|view| view.item_of.is_some()) {
            view.item = numbers.get(&view.id).and_then(|no| names.remove(no));
        }
        Ok(self)
    }

    /// Adds what the run and its steps wait for.
    pub fn waiting(mut self, plan: &Plan, steps: &[StepRow], waits: &RunWaits) -> Self {
        self.waiting_for = waits.run;
        for (no, wait) in &waits.steps {
            let name = steps.iter().rfind(|step| step.no == *no).map(|step| step_name(plan, step));
            let view = self.steps.iter_mut().rfind(|view| Some(&view.id) == name.as_ref());
            view.into_iter().for_each(|view| view.waiting_for = Some(*wait));
        }
        self
    }
}

impl RunDetail {
    /// Adds what the run and its steps wait for.
    pub fn waiting(mut self, plan: &Plan, steps: &[StepRow], waits: &RunWaits) -> Self {
        self.status = self.status.waiting(plan, steps, waits);
        self
    }

    /// Adds the outputs that its pipeline declares.
    pub fn with_outputs(self, outputs: Option<Value>) -> Self {
        RunDetail { outputs, ..self }
    }

    /// Returns the full view of a run; `missing` are the logs that have not arrived to their end.
    pub fn of(run: &RunRow, plan: &Plan, steps: &[StepRow], missing: &BTreeMap<StepNo, MissingLog>) -> Self {
        RunDetail {
            status: StatusView::of(run, plan, steps, missing),
            version: run.version(),
            inputs: crate::secret_inputs::shown(&run.inputs),
            outputs: None,
            priority: run.priority,
            group: run.group.as_deref().map(str::to_owned),
            reason: run.reason.as_deref().map(str::to_owned),
            parent: run.parent.map(|(run, _)| run.to_string()),
            created_at: rfc3339(run.created_ms),
            started_at: run.started_ms.map(rfc3339),
            ended_at: run.ended_ms.map(rfc3339),
        }
    }
}

impl StepView {
    /// Adds what the step waits for.
    pub fn waiting(self, waiting_for: Option<WaitingFor>) -> Self {
        StepView { waiting_for, ..self }
    }

    /// Returns the view of a step.
    pub fn of(plan: &Plan, step: &StepRow) -> Self {
        let child = match (plan.step(step.node()).work, step.work) {
            (WorkKind::Child, Some(child)) => Some(RunId::from_i64(child).to_string()),
            _ => None,
        };
        StepView {
            id: step_name(plan, step),
            status: step.status().as_str(),
            attempt: step.attempt,
            round: round_of(plan, step).map(|(round, _)| round),
            max_rounds: round_of(plan, step).map(|(_, most)| most),
            service: plan.step(step.node()).service,
            waiting_for: None,
            not_run: is_not_run(step),
            item_of: step.item_of.map(|parent| plan.step(parent).id.clone()),
            item: None,
            items: step.items.map(|list| ItemsView {
                total: list.items.total,
                settled: list.items.settled,
                failed: list.items.failed,
            }),
            child,
            log_missing: None,
            started_at: step.started_ms.map(rfc3339),
            ended_at: step.ended_ms.map(rfc3339),
        }
    }
}
