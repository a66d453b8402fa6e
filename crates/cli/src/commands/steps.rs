//! `sprag skip` and `sprag retry --now`: requests on single steps of a live run.

use serde_json::json;
use sprag_app::{StepChange, StepStatus};

use super::run::go_on;
use crate::context::{Context, find_run, refused};
use crate::exit::{Exit, Failure};
use crate::show::{Style, line};

pub(crate) async fn skip(context: &Context, run: &str, step: &str, detach: bool) -> Result<Exit, Failure> {
    let app = context.app()?;
    let known = find_run(&app, Some(run))?;
    let since = app.last_seq()?;
    let change = app.skip_step(known.id(), step).await.map_err(|error| refused(&app, known.id(), error))?;
    tell(context, &known.id().to_string(), &change, skip_text(change.status));
    go_on(context, &app, known.run.root, since, detach).await
}

pub(crate) async fn retry_now(
    context: &Context,
    run: Option<&str>,
    step: &str,
    detach: bool,
) -> Result<Exit, Failure> {
    let app = context.app()?;
    let known = find_run(&app, run)?;
    let since = app.last_seq()?;
    let change = app.retry_now(known.id(), step).await.map_err(|error| refused(&app, known.id(), error))?;
    tell(context, &known.id().to_string(), &change, RETRY_TEXT);
    go_on(context, &app, known.run.root, since, detach).await
}

/// The text about a try that starts now.
pub(crate) const RETRY_TEXT: &str = "starts its next try now";

/// Returns the text about a step that was told to be skipped and is in this status.
pub(crate) fn skip_text(status: StepStatus) -> &'static str {
    match status {
        StepStatus::Skipped => "is skipped",
        StepStatus::Waiting => "will be skipped when its needs are met",
        _ => "will be skipped when its work has stopped",
    }
}

fn tell(context: &Context, run: &str, change: &StepChange, text: &str) {
    if context.json {
        line(
            &json!({ "type": "step", "run": run, "step": change.step, "status": change.status }).to_string(),
        );
    } else {
        eprintln!("{} step {} {text}", Style::stderr().green("✓"), change.step);
    }
}
