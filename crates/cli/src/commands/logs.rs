//! `sprag logs`: what steps printed.

use std::collections::BTreeMap;
use std::time::Duration;

use sprag::view::is_current;
use sprag_lifecycle::StepNo;
use sprag_store::{Row, RunRow, Table, Topic};
use tokio::signal::unix::{SignalKind, signal};

use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::tails::Tails;

/// How often files are looked at while they grow.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) async fn logs(
    context: &Context,
    run: Option<&str>,
    step: Option<&str>,
    follow: bool,
    attempt: Option<u32>,
) -> Result<Exit, Failure> {
    let store = context.store()?;
    let known = find_run(&store, run)?;
    let only = step.map(|step| known.find_step(step, Some(&store))).transpose()?;
    let id = known.id();
    let wake = store.subscribe(vec![Topic::Run(id)]);
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut tails = Tails::new(&store, context.files(), &known, context.json, only.is_none());
    loop {
        let (row, steps, executions) =
            store.read(|db| Ok((Table::<RunRow>::load(db, id)?, db.steps(id)?, db.executions(id)?)))?;
        let over = row.is_none_or(|row| row.status().is_terminal());
        let steps: BTreeMap<StepNo, (Option<StepNo>, bool)> =
            steps.iter().map(|step| (step.no, (step.item_of, is_current(&steps, step)))).collect();
        for execution in &executions {
            let (item_of, current) = steps.get(&execution.id.step).copied().unwrap_or((None, true));
            let last = executions.iter().rfind(|other| other.id.step == execution.id.step);
            let wanted = match attempt {
                Some(attempt) => execution.id.attempt == attempt,
                None => follow || current && last.is_some_and(|last| last.id == execution.id),
            };
            // Of a fan-out, what its items printed.
            let of_step = |only| only == execution.id.step || item_of == Some(only);
            if wanted && only.is_none_or(of_step) {
                if follow && !over {
                    tails.print_some(execution.id)?;
                } else {
                    tails.print(execution.id)?;
                }
            }
        }
        if !follow || over {
            return Ok(Exit::Ok);
        }
        tokio::select! {
            () = wake.wait(LOOK) => {}
            _ = interrupt.recv() => return Ok(Exit::Ok),
        }
    }
}
