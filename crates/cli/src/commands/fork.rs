//! `sprag fork`: a new run that begins where another had finished a step.

use sprag_store::ops::Created;

use super::run::{Attached, Means, detached, name_taken};
use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::show::Style;

pub(crate) async fn fork(
    context: &Context,
    run: Option<&str>,
    from: &str,
    detach: bool,
) -> Result<Exit, Failure> {
    let store = context.store()?;
    let known = find_run(&store, run)?;
    let source = known.id();
    let (step, mut new) = sprag::fork(&store, &known, from)?;
    if detach {
        return match store.person().fork_run(source, step, new).await? {
            Created::New(run) | Created::Existing(run) => detached(context, &store, run),
            Created::NameTaken => Err(name_taken()),
        };
    }
    let attached = Attached::begin(context, &store, new.id, Means::default()).await?;
    new.pin = Some(attached.id);
    match store.person().fork_run(source, step, new).await {
        Ok(Created::New(run)) => {
            if !context.json {
                let style = Style::stderr();
                eprintln!("{}", style.dim(&format!("forked from run {source} after {from}")));
            }
            attached.see_through(context, &store, run, None).await
        }
        Ok(_) => {
            attached.leave().await?;
            Err(name_taken())
        }
        Err(error) => {
            attached.leave().await?;
            Err(error.into())
        }
    }
}
