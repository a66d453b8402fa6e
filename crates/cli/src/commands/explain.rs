//! `sprag explain`: for each unsettled step, what it waits for, since when, until when, and which worker has it.

use serde_json::{Value, json};
use sprag_app::{FailedStep, Reach, named_item};

use super::source::Source;
use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{Style, hanging, line, local, plain, shown_status_word, span, time_in};

pub(crate) async fn explain(context: &Context, run: Option<&str>) -> Result<Exit, Failure> {
    let app = context.app()?;
    let known = match (find_run(&app, run), run) {
        (Ok(known), _) => known,
        (Err(_), Some(name)) if app.find_rule(name).is_ok() => {
            return super::rule::explain(context, &Source::Store(app), name).await;
        }
        // Only the names of rules have a slash.
        (Err(_), Some(name)) if name.contains('/') => {
            return Err(Failure::usage(format!("no rule {name:?} is applied"))
                .next("record the rules of its file: sprag rule apply FILE"));
        }
        (Err(error), _) => return Err(error),
    };
    print(
        context,
        &json!(sprag_app::explain_with_inner(&app, &known, &Reach::default())?),
        app.now().wall_ms,
        "",
    )
}

/// Prints an explanation, from the value that programs see. `at` is added to the commands that it names.
pub(super) fn print(context: &Context, told: &Value, now_ms: i64, at: &str) -> Result<Exit, Failure> {
    if context.json {
        line(&told.to_string());
        return Ok(Exit::Ok);
    }
    let style = context.style;
    let (id, status) = (word(told, "id"), word(told, "status"));
    line(&format!(
        "{}  {}  {}",
        style.bold(&id),
        word(told, "pipeline"),
        style.status(&shown_status_word(&status, told["waiting_for"].as_str()), 0)
    ));
    if let Some(place) = told["waits_for"].as_str() {
        line(&format!("  the run waits for {}", plain(place)));
    }
    let (failed, blocked, steps) = (list(told, "failed"), list(told, "blocked"), list(told, "steps"));
    if steps.is_empty() && blocked.is_empty() && failed.is_empty() {
        let why = told["reason"].as_str().map(|why| format!(": {}", plain(why))).unwrap_or_default();
        line(&format!("  nothing waits: the run is {status}{why}"));
    }
    let is_blocked = |step: &Value| blocked.iter().any(|one| one["step"] == *step);
    for failure in failed.iter().filter(|failure| !is_blocked(&failure["step"])) {
        print_failure(style, &id, failure, at);
    }
    if status == "failed" {
        let verb = if blocked.is_empty() { "retry" } else { "resume" };
        line(&format!("  {} sprag {verb} {id}{at}", style.dim("next:")));
    }
    blocked.iter().for_each(|step| print_blocked(style, &id, step));
    steps.iter().for_each(|step| print_wait(style, step, now_ms));
    let refused = list(told, "refused");
    if !refused.is_empty() {
        line("  refused events, newest last:");
    }
    for refusal in refused {
        line(&format!(
            "      {}  {} by {}: {}, {}",
            time_in(refusal, "at").map(local).unwrap_or_default(),
            word(refusal, "event"),
            word(refusal, "actor"),
            word(refusal, "reason"),
            word(refusal, "detail")
        ));
    }
    Ok(Exit::Ok)
}

fn word(value: &Value, key: &str) -> String {
    plain(value[key].as_str().unwrap_or_default())
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn print_failure(style: Style, id: &str, failure: &Value, at: &str) {
    let Ok(failure) = serde_json::from_value::<FailedStep>(failure.clone()) else { return };
    let of_child = if failure.run == id { String::new() } else { format!(" (run {})", failure.run) };
    line(&format!("  {} {}{of_child}", style.sign("failed"), style.red(&plain(&failure.line()))));
    for text in &failure.last_lines {
        line(&format!("      {} {text}", style.dim("│")));
    }
    line(&format!("      {} sprag logs {} {}{at}", style.dim("log:"), failure.run, failure.step));
}

fn print_blocked(style: Style, id: &str, step: &Value) {
    line(&format!("  {} {} (blocked)", style.sign("failed"), style.bold(&word(step, "step"))));
    line(&format!("      because    {}", word(step, "message")));
    if step["checkout"].is_string() {
        line(&format!("      checkout   {}", word(step, "checkout")));
    }
    let files: Vec<String> = list(step, "files").iter().filter_map(Value::as_str).map(plain).collect();
    if !files.is_empty() {
        line(&format!("      files      {}", files.join(", ")));
    }
    line(&format!("      to do      {}, then: sprag resume {id}", word(step, "remedy")));
}

fn print_wait(style: Style, step: &Value, now_ms: i64) {
    let name = if step["key"].is_string() {
        word(step, "key")
    } else {
        named_item(&word(step, "id"), step["item"].as_str().map(plain).as_deref())
    };
    let status = word(step, "status");
    line(&format!("  {} {} ({status})", style.sign(&status), style.bold(&name)));
    let waits_for = step["waits_for"].as_str().unwrap_or_default();
    // A step that is being executed waits for nothing but its own end.
    match waits_for.strip_prefix("attempt ").and_then(|rest| rest.strip_suffix(" to end")) {
        Some(attempt) => line(&format!("      running    attempt {}", plain(attempt))),
        None => line(&format!("      waits for  {}", hanging(waits_for, 17))),
    }
    if let Some(since) = time_in(step, "since") {
        line(&format!("      since      {} ({} ago)", local(since), span(now_ms - since)));
    }
    if let Some(until) = time_in(step, "until") {
        line(&format!("      until      {} (in {})", local(until), span(until - now_ms)));
    }
    line(&format!("      owner      {}", word(step, "owner")));
}
