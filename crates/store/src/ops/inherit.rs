//! The rows that a run takes over from the run it was forked from.

use std::sync::Arc;

use sprag_lifecycle::{Actor, ExecutionId, RunId, StepNo};

use crate::error::Result;
use crate::rows::{ExecutionRow, RunRow, StepRow};
use crate::session::Session;

/// Copies a settled step with its items and outputs. Returns the number after the highest that its steps have.
pub(super) fn inherit_step(session: &mut Session<'_>, from: RunId, to: RunId, no: StepNo) -> Result<u32> {
    let Some(step) = session.get::<StepRow>((from, no))? else { return Ok(0) };
    let mut next = no + 1;
    if let Some(list) = step.items {
        let of = |run| ExecutionId { run, step: no, attempt: list.made_by };
        let mut values: Vec<Arc<str>> = Vec::with_capacity(list.items.total as usize);
        for index in 0..list.items.total {
            values.extend(session.db().item(of(from), index)?);
        }
        session.db().put_items(of(to), 0, &values)?;
        for item in session.item_rows(from, no)? {
            next = next.max(item.no + 1);
            inherit_row(session, to, &item)?;
        }
    }
    inherit_row(session, to, &step)?;
    Ok(next)
}

fn inherit_row(session: &mut Session<'_>, to: RunId, step: &StepRow) -> Result<()> {
    let mut row = step.clone();
    row.run = to;
    row.version = 1;
    row.reworks = 0;
    row.last_round = None;
    // The only earlier rows are those that this operation has added: a run is created with its planned steps,
    // waiting.
    session.replace_new(row, "step.inherited", Actor::Person);
    let id = ExecutionId { run: step.run, step: step.no, attempt: step.attempt };
    if let Some(mut execution) = session.get::<ExecutionRow>(id)? {
        let epoch = session.get::<RunRow>(to)?.map_or(1, |run| run.epoch);
        execution.id = ExecutionId { run: to, ..id };
        execution.version = 1;
        execution.epoch = epoch;
        session.create(execution, "execution.inherited", Actor::Person);
    }
    Ok(())
}
