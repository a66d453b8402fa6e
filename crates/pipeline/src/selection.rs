//! A run of some of a pipeline's steps: the others are skipped.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::diagnostic::{Diagnostics, Problem, Report};
use crate::nearest::nearest;
use crate::pipeline::Pipeline;
use crate::spec::Kind;
use crate::yaml::quoted;

/// The steps of a pipeline that a run executes. By default it executes all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Selection {
    /// Only these steps; empty for all.
    pub only: Vec<String>,
    /// Only this step and those that need it, directly or through others.
    pub from: Option<String>,
    /// Not these steps.
    pub skip: Vec<String>,
}

impl Selection {
    /// Returns whether all steps are selected.
    pub fn is_all(&self) -> bool {
        *self == Selection::default()
    }
}

impl Pipeline {
    /// Skips the steps that are not selected, as if their `when` were false. Reports ids that no step has.
    pub fn select(mut self, selection: &Selection) -> Result<Pipeline, Diagnostics> {
        if selection.is_all() {
            return Ok(self);
        }
        let mut report = Report::new(self.source.clone());
        let mut numbers = |ids: &[String]| -> BTreeSet<usize> {
            let found = ids.iter().filter_map(|id| {
                let found = self.steps.iter().position(|step| step.id == *id);
                if found.is_none() {
                    let ids = self.steps.iter().map(|step| step.id.as_str());
                    let problem = Problem::nowhere(format!("the pipeline has no step {}", quoted(id)));
                    report.error(problem.nearest(nearest(id, ids)));
                }
                found
            });
            found.collect()
        };
        let (only, skip) = (numbers(&selection.only), numbers(&selection.skip));
        let from = numbers(selection.from.as_slice());
        if report.has_errors() {
            return Err(report.finish());
        }
        let after = self.with_dependents(from);
        let selected: Vec<bool> = (0..self.steps.len())
            .map(|no| {
                // The selected steps may need the services.
                let named = self.steps[no].spec.service.is_some()
                    || ((selection.only.is_empty() || only.contains(&no))
                        && (selection.from.is_none() || after.contains(&no)));
                named && !skip.contains(&no)
            })
            .collect();
        if !self.steps.iter().zip(&selected).any(|(step, wanted)| *wanted && step.spec.service.is_none()) {
            let problem = Problem::nowhere("no step is selected: the selection leaves out all of them");
            report.error(problem.help("a step runs if `only` and `from` select it and `skip` does not"));
        }
        for (no, step) in self.steps.iter_mut().enumerate() {
            let wanted = selected[no];
            // A step that is not selected is never done, so it cannot be counted.
            let countable = step.needs.iter().filter(|need| selected[**need as usize]).count() as u32;
            step.quorum = step.quorum.map(|quorum| quorum.min(countable)).filter(|quorum| *quorum > 0);
            if let (false, Kind::Gate { answerers, .. }) = (wanted, &step.spec.kind)
                && !answerers.is_everyone()
            {
                let message =
                    format!("step {} cannot be left out: its question is for {answerers}", quoted(&step.id));
                report.error(Problem::nowhere(message).help("run it with the others"));
            }
            if !wanted {
                step.spec.when = Some("false".into());
                step.skip_rest = false;
            }
        }
        if report.has_errors() { Err(report.finish()) } else { Ok(self) }
    }

    /// Returns these steps and all that need them, directly or through others.
    fn with_dependents(&self, mut found: BTreeSet<usize>) -> BTreeSet<usize> {
        let mut todo: Vec<usize> = found.iter().copied().collect();
        while let Some(next) = todo.pop() {
            for (no, step) in self.steps.iter().enumerate() {
                if step.needs.contains(&(next as u32)) && found.insert(no) {
                    todo.push(no);
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_selected_steps_run() {
        let source = "steps:\n- {id: a, run: x}\n- {id: b, run: x}\n- {id: c, needs: b, run: x}\n- {id: d, needs: a, run: x}\n";
        let runs = |selection: Selection| {
            let pipeline = crate::parse("p.yaml", source).unwrap().pipeline.select(&selection);
            let steps = pipeline.map(|pipeline| pipeline.steps).map_err(|wrong| wrong.to_string())?;
            let steps = steps.iter().filter(|step| step.spec.when.is_none()).map(|step| step.id.clone());
            Ok::<_, String>(steps.collect::<Vec<_>>().join(" "))
        };
        let list = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        assert_eq!(runs(Selection::default()), Ok("a b c d".into()));
        assert_eq!(runs(Selection { only: list(&["c", "a"]), ..Selection::default() }), Ok("a c".into()));
        assert_eq!(runs(Selection { from: Some("b".into()), ..Selection::default() }), Ok("b c".into()));
        let both = Selection { from: Some("a".into()), skip: list(&["c"]), ..Selection::default() };
        assert_eq!(runs(both), Ok("a b d".into()));
        let nothing = Selection { only: list(&["a"]), from: Some("b".into()), ..Selection::default() };
        assert!(runs(nothing).unwrap_err().contains("no step is selected"));
        let wrong = runs(Selection { skip: list(&["bb"]), ..Selection::default() }).unwrap_err();
        assert!(wrong.contains("the pipeline has no step `bb`"), "{wrong}");
    }

    #[test]
    fn only_selected_needs_are_counted() {
        let source = "steps:\n- {id: a, needs: [], run: x}\n- {id: b, needs: [], run: x}\n- {id: c, needs: [], run: x}\n\
                      - {id: two, needs: {at_least: 2, of: [a, b, c]}, run: x}\n- {id: any, needs: {any: [a, b]}, run: x}\n";
        let quorums = |skip: &[&str]| {
            let skip = skip.iter().map(|id| (*id).to_owned()).collect();
            let selection = Selection { skip, ..Selection::default() };
            let pipeline = crate::parse("p.yaml", source).unwrap().pipeline.select(&selection).unwrap();
            [pipeline.steps[3].quorum, pipeline.steps[4].quorum]
        };
        assert_eq!(quorums(&["two"]), [Some(2), Some(1)]);
        assert_eq!(quorums(&["c"]), [Some(2), Some(1)]);
        assert_eq!(quorums(&["a", "c"]), [Some(1), Some(1)]);
        assert_eq!(quorums(&["a", "b"]), [Some(1), None]);
    }
}
