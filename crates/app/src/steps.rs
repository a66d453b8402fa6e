//! Single steps of a live run: skip one, and start the next try of one now.

use sprag_lifecycle::{RunId, StepStatus};
use sprag_store::Row;

use crate::App;
use crate::error::Error;
use crate::known::RunWithPlan;
use crate::resume::abandon_the_dead;

/// The effect of a request on a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepChange {
    /// The step's name: its id, and the number of its item in a fan-out.
    pub step: String,
    /// The step's status afterwards.
    pub status: StepStatus,
}

impl App {
    /// Skips a step or an item of a live run: it counts as done for the steps that need it. A step that has begun is
    /// stopped first, and one whose needs are open is skipped when they are met; its status then is not yet `skipped`.
    pub async fn skip_step(&self, run: RunId, step: &str) -> Result<StepChange, Error> {
        let (known, step) = RunWithPlan::load(self, run)?.enter(self, step)?;
        let (run, no) = (known.id(), known.find_step(&step, Some(self))?);
        // Where no server runs, no other process abandons a dead process's work.
        abandon_the_dead(self, run).await?;
        let status = self.store.person().skip_step(run, no).await?;
        Ok(StepChange { step: known.name_of(self, no), status })
    }

    /// Starts the next try or round of a step that waits for its delay; for a fan-out, of all its items that do.
    pub async fn retry_now(&self, run: RunId, step: &str) -> Result<StepChange, Error> {
        let (known, step) = RunWithPlan::load(self, run)?.enter(self, step)?;
        let (run, no) = (known.id(), known.find_step(&step, Some(self))?);
        self.store.person().retry_now(run, no).await?;
        let status = self.store.queries().step(run, no)?.map_or(StepStatus::Pending, |row| row.status());
        Ok(StepChange { step: known.name_of(self, no), status })
    }
}
