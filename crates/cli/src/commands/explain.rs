//! `sprag explain`: for each unsettled step, what it waits for, since when, until when, and which worker has it.

use serde_json::json;

use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{hanging, line, local, plain, shown_status, span};

pub(crate) fn explain(context: &Context, run: Option<&str>) -> Result<Exit, Failure> {
    let app = context.app()?;
    let known = match (find_run(&app, run), run) {
        (Ok(known), _) => known,
        (Err(_), Some(name)) if app.find_rule(name).is_ok() => return super::rule::explain(context, name),
        (Err(error), _) => return Err(error),
    };
    let told = sprag_app::explain(&app, &known)?;
    if context.json {
        line(&json!(told).to_string());
        return Ok(Exit::Ok);
    }
    let style = context.style;
    let now = app.now();
    line(&format!(
        "{}  {}  {}",
        style.bold(&told.id),
        told.pipeline,
        style.status(&shown_status(told.status, told.waiting_for), 0)
    ));
    if let Some(place) = &told.waits_for {
        line(&format!("  the run waits for {}", plain(place)));
    }
    if told.steps.is_empty() && told.blocked.is_empty() && told.failed.is_empty() {
        let why = known.run.reason.as_deref().map(|why| format!(": {}", plain(why))).unwrap_or_default();
        line(&format!("  nothing waits: the run is {}{why}", told.status));
    }
    let is_blocked = |step: &str| told.blocked.iter().any(|one| one.step == step);
    for failure in told.failed.iter().filter(|failure| !is_blocked(&failure.step)) {
        let of_child = if failure.run == told.id { String::new() } else { format!(" (run {})", failure.run) };
        line(&format!("  {} {}{of_child}", style.sign("failed"), style.red(&plain(&failure.line()))));
        for text in &failure.last_lines {
            line(&format!("      {} {text}", style.dim("│")));
        }
        line(&format!("      {} sprag logs {} {}", style.dim("log:"), failure.run, failure.step));
    }
    if told.status == "failed" {
        line(&format!("  {} sprag retry {}", style.dim("next:"), told.id));
    }
    for step in &told.blocked {
        line(&format!("  {} {} ({})", style.sign("failed"), style.bold(&step.step), "blocked"));
        line(&format!("      because    {}", step.message));
        if let Some(checkout) = &step.checkout {
            line(&format!("      checkout   {checkout}"));
        }
        if !step.files.is_empty() {
            line(&format!("      files      {}", step.files.join(", ")));
        }
        line(&format!("      to do      {}, then: sprag resume {}", step.remedy, told.id));
    }
    for step in &told.steps {
        line(&format!("  {} {} ({})", style.sign(&step.status), style.bold(&step.step), step.status));
        line(&format!("      waits for  {}", hanging(&step.waits_for, 17)));
        if let Some(since) = step.since_ms {
            line(&format!("      since      {} ({} ago)", local(since), span(now.wall_ms - since)));
        }
        if let Some(until) = step.until_ms {
            line(&format!("      until      {} (in {})", local(until), span(until - now.wall_ms)));
        }
        line(&format!("      owner      {}", plain(&step.owner)));
    }
    if !told.refused.is_empty() {
        line("  refused events, newest last:");
        for refusal in &told.refused {
            line(&format!(
                "      {}  {} by {}: {}, {}",
                local(refusal.at_ms),
                refusal.event,
                refusal.actor,
                refusal.reason,
                plain(&refusal.detail)
            ));
        }
    }
    Ok(Exit::Ok)
}
