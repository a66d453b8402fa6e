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
        for (no, step) in self.steps.iter_mut().enumerate() {
            let wanted = (selection.only.is_empty() || only.contains(&no))
                && (selection.from.is_none() || after.contains(&no))
                && !skip.contains(&no);
            // A step that is not selected is never done, so it cannot be counted.
            step.quorum = None;
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
        let wrong = runs(Selection { skip: list(&["bb"]), ..Selection::default() }).unwrap_err();
        assert!(wrong.contains("the pipeline has no step `bb`"), "{wrong}");
    }
}
