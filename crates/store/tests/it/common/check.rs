//! Invariants of any store at any moment, checked through `Backend` alone.

use std::collections::BTreeMap;

use sprag_lifecycle::{ExecutionStatus, RunId, RunStatus, StepStatus};
use sprag_store::testing::{Backend, Table};
use sprag_store::{ExecutionRow, JournalEntry, Row, RunRow, StepRow, Store};

use super::look;

/// An entity: its kind, step and attempt.
type Which = (&'static str, Option<u32>, Option<u32>);

/// Checks every run that the journal after `since` tells of, and gives the journal's end.
pub fn check(store: &Store, since: u64) -> u64 {
    look(store, |db| {
        let told = db.journal(since, None, 10_000_000)?;
        for (entry, seq) in told.iter().zip(since + 1..) {
            assert_eq!(entry.seq, seq, "the journal has no holes");
        }
        assert_eq!(db.last_seq()?, since + told.len() as u64);
        let mut runs: Vec<RunId> = told.iter().filter_map(|entry| entry.place.run).collect();
        runs.sort_unstable();
        runs.dedup();
        for run in runs {
            check_run(db, run)?;
        }
        db.last_seq()
    })
}

fn check_run(db: &mut dyn Backend, id: RunId) -> sprag_store::Result<()> {
    let run = Table::<RunRow>::load(db, id)?.expect("a run of which the journal tells is there");
    let (steps, executions) = (db.steps(id)?, db.executions(id)?);
    let last = last_words(&db.journal(0, Some(id), 10_000_000)?);
    assert_eq!(last.get(&("run", None, None)), Some(&run.status().to_string().as_str()), "run {id}");
    for step in &steps {
        let told = last.get(&("step", Some(step.no), None)).copied().unwrap_or("waiting");
        assert_eq!(told, step.status().to_string(), "step {id}/{}", step.no);
        check_step(step, &executions);
    }
    for execution in &executions {
        let which = ("execution", Some(execution.id.step), Some(execution.id.attempt));
        assert_eq!(last.get(&which).copied(), Some(execution.status().to_string().as_str()), "{which:?}");
    }
    let unsettled = steps.iter().filter(|step| !step.status().is_settled()).count();
    assert_eq!(run.tally.unsettled as usize, unsettled, "the tally of run {id}");
    if run.status() == RunStatus::Completed {
        assert_eq!(unsettled, 0, "run {id} is completed");
    }
    if unsettled == 0 {
        assert!(run.status().is_terminal(), "run {id} has nothing left to do and is {}", run.status());
    }
    Ok(())
}

/// Returns each entity's last status in the journal. Checks that each entry follows from the one before.
fn last_words(journal: &[JournalEntry]) -> BTreeMap<Which, &'static str> {
    let mut last: BTreeMap<Which, &'static str> = BTreeMap::new();
    for entry in journal {
        let attempt = entry.place.attempt.filter(|_| entry.entity == "execution");
        let which = (entry.entity, entry.place.step, attempt);
        let before = last.insert(which, entry.to);
        if let (Some(before), Some(from)) = (before, entry.from) {
            assert_eq!(before, from, "{entry:?} goes on from what was");
        }
    }
    last
}

fn check_step(step: &StepRow, executions: &[ExecutionRow]) {
    let work: Vec<ExecutionStatus> = executions
        .iter()
        .filter(|execution| execution.id.step == step.no && execution.id.attempt == step.attempt)
        .map(Row::status)
        .collect();
    use ExecutionStatus::{Completed, Requested, Running, Scheduled, Scheduling};
    let fits = match step.status() {
        StepStatus::Waiting => work.is_empty(),
        StepStatus::Pending => matches!(work[..], [Requested | Scheduling | Scheduled]),
        StepStatus::Running => work == [Running],
        StepStatus::Done => work == [Completed],
        StepStatus::Failed | StepStatus::Skipped | StepStatus::Cancelled => {
            work.iter().all(|status| status.is_terminal())
        }
    };
    assert!(fits, "step {}/{} is {} and its work {work:?}", step.run, step.no, step.status());
}
