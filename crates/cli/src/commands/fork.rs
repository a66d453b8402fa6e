//! `sprag fork`: a new run that starts where another run had finished a step.

use super::run::{Attached, WorkerOptions, detached};
use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::show::Style;

pub(crate) async fn fork(
    context: &Context,
    run: Option<&str>,
    from: &str,
    detach: bool,
) -> Result<Exit, Failure> {
    let app = context.app()?;
    let known = find_run(&app, run)?;
    let source = known.id();
    let fork = sprag_app::fork(&app, &known, from)?;
    if detach {
        let run = app.fork_run(fork).await?;
        return detached(context, &app, run.id);
    }
    let attached = Attached::prepare(context, &app, fork.id(), WorkerOptions::default())?;
    let run = app.fork_run(fork.reserved_to(attached.worker()?)).await?;
    if !context.json {
        let style = Style::stderr();
        eprintln!("{}", style.dim(&format!("forked from run {source} after {from}")));
    }
    attached.see_through(context, &app, run.id, None).await
}
