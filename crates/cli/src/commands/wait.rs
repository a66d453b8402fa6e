//! `sprag wait`: waits until a run has ended.

use std::time::Duration;

use sprag_app::{App, Course, Row, Topic, keep_time, questions_alone};
use sprag_lifecycle::RunId;

use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::patience::{Patience, say};
use crate::show::{Style, line, plain};

pub(crate) async fn wait(
    context: &Context,
    run: Option<&str>,
    timeout: Option<&str>,
) -> Result<Exit, Failure> {
    let limit = timeout.map(|text| parse_time("--timeout", text)).transpose()?;
    let app = context.app()?;
    let run = find_run(&app, run)?.id();
    let ended = ended(&app, run);
    let ended = match limit {
        None => ended.await?,
        Some(limit) => match tokio::time::timeout(limit, ended).await {
            Ok(status) => status?,
            Err(_) => {
                if context.json {
                    let status = app.run(run)?.map(|row| row.status());
                    line(&serde_json::json!({ "type": "result", "run": run, "status": status }).to_string());
                } else {
                    eprintln!("run {run} has not ended in {}", timeout.unwrap_or_default());
                }
                return Ok(Exit::TimedOut);
            }
        },
    };
    let Some(status) = ended else {
        return super::gates::waits_for_person(context, &app, run, false);
    };
    if context.json {
        line(&serde_json::json!({ "type": "result", "run": run, "status": status }).to_string());
    } else {
        line(&format!("{run} {}", context.style.status(status.to_string().as_str(), 0)));
    }
    Ok(status.into())
}

/// The pause between two looks at what the run waits for.
const LOOK: Duration = Duration::from_millis(200);

/// Waits until the run has ended, and prints what it waits for. Returns none if the run waits for a person and none of
/// its other steps continues.
async fn ended(app: &App, run: RunId) -> Result<Option<sprag_lifecycle::RunStatus>, Failure> {
    let wake = app.subscribe(vec![Topic::Run(run)]);
    let mut patience = Patience::default();
    let mut worked_on = false;
    loop {
        keep_time(app, run).await?;
        let row = app.run(run)?;
        match row.map(|row| row.status()) {
            Some(status) if status.is_terminal() => return Ok(Some(status)),
            Some(_) if !questions_alone(app, run)?.is_empty() => return Ok(None),
            Some(_) => {}
            None => return Err(Failure::error(format!("run {run} is gone"))),
        }
        let course = patience.changed(app, run)?;
        let waits = course.as_ref().map_or(Vec::new(), |course| patience.unlisted(course.waits().to_vec()));
        match course {
            // Printed once: `status` and `logs` show which of its steps are running.
            Some(Course::Works { steps, .. }) if !std::mem::replace(&mut worked_on, true) => {
                let (first, more) = (plain(&steps[0]), steps.len() - 1);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                eprintln!("{} {run}: {first}{more} runs", Style::stderr().dim("waiting for"));
            }
            _ => {}
        }
        say(Style::stderr(), &waits, app.now().wall_ms);
        wake.wait(LOOK).await;
    }
}

/// Parses a duration like `90s`, `5m` or `1h30m`.
pub(super) fn parse_time(option: &str, text: &str) -> Result<Duration, Failure> {
    sprag_pipeline::parse_duration(text).map_err(|error| {
        Failure::usage(format!("{option} {text:?}: {error}")).next("write it like 90s, 5m or 1h30m")
    })
}
