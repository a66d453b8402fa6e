//! `sprag gc`: removes runs that ended long ago.

use serde_json::json;

use super::env::bytes;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{counted, line};

pub(crate) async fn gc(context: &Context, keep: &str, dry_run: bool) -> Result<Exit, Failure> {
    let age = sprag_pipeline::parse_duration(keep).map_err(|error| {
        Failure::usage(format!("--keep {keep:?}: {error}")).next("write it like 12h or 30d")
    })?;
    let app = context.app()?;
    let done = app.forget(age, dry_run).await?;
    if context.json {
        line(&json!({ "dry_run": dry_run, "forgotten": done }).to_string());
        return Ok(Exit::Ok);
    }
    for (run, why) in &done.kept {
        line(&format!("{run}  kept: {why}"));
    }
    for (hook, runs) in &done.untold {
        line(&format!(
            "hook {hook} has not been told of {}: no server has delivered it for days; remove it with \
             `sprag hook rm {hook}` if nobody needs it",
            counted(*runs, "run")
        ));
    }
    if done.strays > 0 {
        let verb = if dry_run { "would remove" } else { "removed" };
        line(&format!("{verb} {} of runs that were forgotten before", counted(done.strays, "folder")));
    }
    let verb = if dry_run { "would forget" } else { "forgot" };
    match done.runs {
        0 => line(&format!("nothing to forget: no run ended more than {keep} ago")),
        1 => line(&format!("{verb} 1 run, {}", bytes(done.bytes))),
        many => line(&format!("{verb} {many} runs, {}", bytes(done.bytes))),
    }
    Ok(Exit::Ok)
}
