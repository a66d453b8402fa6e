//! The end of a run's services: they stop when all other steps have settled, and the run ends after them.

use std::sync::Arc;

use super::walk::Walk;
use super::{RunState, Work};
use crate::mutant;

impl<S: RunState> Walk<'_, S> {
    /// Returns whether the run has services and all its other steps have settled.
    pub(super) fn only_services_left(&mut self) -> Result<bool, S::Error> {
        let plan = Arc::clone(&self.plan);
        let services = plan.services();
        let unsettled = self.state.run().tally.unsettled;
        if services.is_empty() || unsettled as usize > services.len() {
            return Ok(false);
        }
        let mut live = 0;
        for no in services {
            live += u32::from(!self.state.step(*no)?.status.is_settled());
        }
        Ok(unsettled == live)
    }

    /// Visits the services that must stop, because all other steps have settled. Returns whether there is one.
    pub(super) fn end_services(&mut self) -> Result<bool, S::Error> {
        if mutant!(ServiceOutlivesRun) || !self.only_services_left()? {
            return Ok(false);
        }
        let plan = Arc::clone(&self.plan);
        for no in plan.services() {
            let step = self.state.step(*no)?;
            if !step.status.is_settled() && step.work != (Work::Live { ending: true }) {
                self.agenda.insert(*no);
            }
        }
        Ok(!self.agenda.is_empty())
    }
}
