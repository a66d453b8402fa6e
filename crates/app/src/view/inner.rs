//! The steps inside the steps of a run, as they are shown with it: `each[0].build`.

use sprag_lifecycle::RunId;

use super::{StatusView, StepView, is_current};
use crate::App;
use crate::error::Error;
use crate::known::RunWithPlan;

/// The most steps inside steps that are shown with one run.
const MOST_INNER: usize = 500;

impl StatusView {
    /// Adds the steps inside its steps, with their whole names, after the step that they are inside of, and the notes of
    /// their agents.
    pub fn with_inner(mut self, app: &App) -> Result<Self, Error> {
        if let Ok(run) = self.id.parse() {
            self.notes = app.step_notes(run)?;
        }
        let mut room = MOST_INNER;
        self.steps = with_inner(app, self.steps, "", &mut room)?;
        Ok(self)
    }
}

fn with_inner(
    app: &App,
    steps: Vec<StepView>,
    prefix: &str,
    room: &mut usize,
) -> Result<Vec<StepView>, Error> {
    let mut all = Vec::with_capacity(steps.len());
    for mut step in steps {
        step.id = format!("{prefix}{}", step.id);
        let child: Option<RunId> = step.child.as_deref().and_then(|child| child.parse().ok());
        let name = step.id.clone();
        all.push(step);
        let Some(child) = child.filter(|_| *room > 0) else { continue };
        let known = RunWithPlan::load(app, child)?;
        if !known.is_inside() {
            continue;
        }
        let rows = app.store.queries().steps(child)?;
        let waits = app.waiting_for(&known.run)?;
        let current: Vec<StepView> = rows
            .iter()
            .filter(|row| is_current(&rows, row))
            .take(*room)
            .map(|row| StepView::of(&known.plan, row).waiting(waits.steps.get(&row.no).copied()))
            .collect();
        *room -= current.len();
        all.extend(with_inner(app, current, &format!("{name}."), room)?);
    }
    Ok(all)
}
