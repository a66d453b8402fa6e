//! `sprag fork`: a new run that starts where another run had finished a step.

use super::run::{Attached, WorkerOptions, continue_existing, detached};
use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::show::Style;

pub(crate) async fn fork(
    context: &Context,
    run: Option<&str>,
    from: &str,
    key: Option<&str>,
    detach: bool,
) -> Result<Exit, Failure> {
    let app = context.app()?;
    let known = find_run(&app, run)?;
    let source = known.id();
    let fork = sprag_app::fork(&app, &known, from)?.idempotency_key(key);
    if detach {
        let started = app.fork_run(fork).await?;
        return detached(context, &app, started.run.id);
    }
    let attached = Attached::prepare(context, &app, fork.id(), WorkerOptions::default())?;
    let started = app.fork_run(fork.reserved_to(attached.worker()?)).await?;
    if !started.is_new {
        return continue_existing(context, &app, &started.run).await;
    }
    if !context.json {
        let style = Style::stderr();
        eprintln!("{}", style.dim(&format!("forked from run {source} after {from}")));
    }
    attached.see_through(context, &app, started.run.id, None).await
}
