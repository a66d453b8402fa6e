//! The usual time that a pipeline and its steps take, from its last completed runs.

use std::collections::BTreeMap;

use serde::Serialize;
use sprag_lifecycle::RunStatus;

use crate::App;
use crate::error::Error;
use crate::known::RunWithPlan;
use crate::reach::Reach;
use crate::runs::RunFilter;

/// The most runs that are looked at.
const MOST_RUNS: usize = 10;
/// The most steps of a run that are looked at.
const MOST_STEPS: usize = 2_000;

/// The usual time that a pipeline takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DurationsView {
    /// The pipeline's name.
    pub pipeline: String,
    /// The number of completed runs that were looked at; at most 10.
    pub runs: usize,
    /// The median time of these runs, in milliseconds; absent if there are none.
    pub run_ms: Option<i64>,
    /// The median time of each step, in milliseconds: of the last attempt in each of these runs.
    pub steps: BTreeMap<String, i64>,
}

impl App {
    /// Returns the usual time that a pipeline and its steps take, from its last completed runs that the caller reaches.
    pub fn usual_durations(&self, pipeline: &str, reach: &Reach) -> Result<DurationsView, Error> {
        let filter = RunFilter {
            statuses: vec![RunStatus::Completed],
            pipeline: Some(pipeline.to_owned()),
            reach: reach.clone(),
            ..RunFilter::default()
        };
        let page = self.runs(&filter, MOST_RUNS)?;
        let mut of_runs = Vec::new();
        let mut of_steps: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for run in &page.runs {
            of_runs.extend(passed(run.started_ms, run.ended_ms));
            // A run that is being forgotten has no steps any more.
            let Ok(known) = RunWithPlan::load(self, run.id) else { continue };
            let rows = self.steps(run.id)?;
            for row in rows.iter().filter(|row| row.item_of.is_none()).take(MOST_STEPS) {
                let took = passed(row.started_ms, row.ended_ms);
                let step = known.plan.steps.get(row.no as usize);
                if let (Some(took), Some(step)) = (took, step) {
                    of_steps.entry(step.id.clone()).or_default().push(took);
                }
            }
        }
        let steps = of_steps.into_iter().filter_map(|(id, all)| Some((id, median(all)?)));
        Ok(DurationsView {
            pipeline: pipeline.to_owned(),
            runs: page.runs.len(),
            run_ms: median(of_runs),
            steps: steps.collect(),
        })
    }
}

fn passed(from: Option<i64>, to: Option<i64>) -> Option<i64> {
    Some((to? - from?).max(0))
}

fn median(mut all: Vec<i64>) -> Option<i64> {
    all.sort_unstable();
    all.get(all.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_and_a_clock_that_was_set_back_counts_as_zero() {
        assert_eq!((median(vec![]), median(vec![3, 1, 2]), median(vec![9, 1])), (None, Some(2), Some(9)));
        assert_eq!((passed(Some(5), Some(2)), passed(None, Some(2))), (Some(0), None));
    }
}
