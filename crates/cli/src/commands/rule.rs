//! `sprag rule` and `sprag delivery`: what starts runs by itself, and what it decided.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use sprag_app::rules::{Backfill, DecisionView, DeliveryView, RefusedRequests, RuleOutcome, TestView};
use sprag_app::{App, DeliveryRow, EnforcementRow, Row, RuleRow};

use super::{drawn, given_event, worker};
use crate::args::{DeliveryCommand, RuleCommand};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{Style, line, local, plain, table};

pub(crate) async fn rule(context: &Context, command: RuleCommand) -> Result<Exit, Failure> {
    match command {
        RuleCommand::Apply { file, dry } => apply(context, &file, dry).await,
        RuleCommand::Ls { all } => ls(context, all),
        RuleCommand::Show { rule, next } => show(context, &rule, next.into()),
        RuleCommand::Explain { rule } => explain(context, &rule),
        RuleCommand::Fire { rule, given } => {
            let app = context.app()?;
            let given = given_event::given(given.event.as_deref(), given.header)?;
            let (event, decision) = app.fire_rule(&rule, given.as_ref()).await?;
            decided(context, &event, &decision)
        }
        RuleCommand::Pause { rule, reason } => {
            let row = context.app()?.pause_rule(&rule, reason.as_deref()).await?;
            said(context, &row, "paused")
        }
        RuleCommand::Resume { rule, missed } => {
            let row = context.app()?.resume_rule(&rule, missed).await?;
            said(context, &row, "active")
        }
        RuleCommand::Rm { rule } => {
            let row = context.app()?.retire_rule(&rule).await?;
            said(context, &row, "retired")
        }
        RuleCommand::Test { rule, at, event, header } => {
            test(context, &rule, at.as_deref(), event.as_deref(), header).await
        }
        RuleCommand::Backfill { rule, from, to, again } => {
            let wanted = Backfill { from_ms: time("--from", &from)?, to_ms: time("--to", &to)?, again };
            let done = context.app()?.backfill_rule(&rule, wanted).await?;
            if context.json {
                line(&json!(done).to_string());
            } else {
                let (new, known) = (done.new.len(), done.known);
                let decided = if again { ", and decided again" } else { "" };
                line(&format!("{new} new, {known} taken before{decided}"));
            }
            Ok(Exit::Ok)
        }
        RuleCommand::Tick { detach } => tick(context, detach).await,
    }
}

pub(crate) async fn delivery(context: &Context, command: DeliveryCommand) -> Result<Exit, Failure> {
    let app = context.app()?;
    match command {
        DeliveryCommand::Ls { rule, limit } => deliveries(context, &app, rule.as_deref(), limit.into()),
        DeliveryCommand::Show { event } => {
            let view = app.delivery_view(event)?;
            if context.json {
                line(&json!(view).to_string());
                return Ok(Exit::Ok);
            }
            line(&format!("{}  {}", plain(&view.rule), plain(&view.key)));
            line(&plain(&view.event.to_string()));
            view.decisions.iter().for_each(|view| line(&format!("  {}", sentence(view))));
            Ok(Exit::Ok)
        }
        DeliveryCommand::Send { rule, file, to, header } => {
            given_event::send(context, &app, &rule, &file, &to, &header).await
        }
        DeliveryCommand::Replay { event } => {
            let (event, decision) = app.replay_event(event).await?;
            decided(context, &event, &decision)
        }
    }
}

async fn apply(context: &Context, file: &Path, dry: bool) -> Result<Exit, Failure> {
    let file = super::pipelines::find(file)?;
    let loaded = sprag_pipeline::load(&file).map_err(|problems| drawn(&problems))?;
    if !loaded.warnings.is_empty() && !context.json {
        eprintln!("{}", loaded.warnings.render(Style::stderr().coloured()));
    }
    let project =
        std::env::current_dir().map_err(|error| Failure::error(format!("the working folder: {error}")))?;
    let shown = std::fs::canonicalize(&file).unwrap_or(file.clone()).display().to_string();
    let applied = context.app()?.apply_rules(&loaded.pipeline, &shown, &project, dry).await?;
    if context.json {
        line(&json!({ "dry": dry, "rules": applied }).to_string());
        return Ok(Exit::Ok);
    }
    if applied.is_empty() {
        line(&format!("{} has no rules: add `on:` to it", file.display()));
        return Ok(Exit::Ok);
    }
    for rule in &applied {
        line(&format!("{:<9}  {}", rule.outcome.as_str(), plain(&rule.name)));
    }
    let took_effect = applied.iter().any(|rule| rule.outcome != RuleOutcome::Unchanged);
    if took_effect && !dry && !context.app()?.is_watched()? {
        eprintln!("No process watches: start `sprag serve`, or run `sprag rule tick` at intervals.");
    }
    Ok(Exit::Ok)
}

fn ls(context: &Context, all: bool) -> Result<Exit, Failure> {
    let app = context.app()?;
    let views = app.rule_views(all)?;
    if context.json {
        line(&json!(views).to_string());
        return Ok(Exit::Ok);
    }
    if views.is_empty() {
        line("no rules yet; record those of a file: sprag rule apply FILE");
        return Ok(Exit::Ok);
    }
    let rows: Vec<Vec<String>> = views
        .iter()
        .map(|view| {
            vec![
                plain(&view.name),
                view.status.to_owned(),
                view.next
                    .first()
                    .map(|tick| tick.fires_ms)
                    .or(view.looks_ms)
                    .map_or_else(|| "–".to_owned(), local),
                match (&view.reason, view.last_refusal(), view.decisions.first()) {
                    (Some(reason), ..) => plain(reason),
                    (None, Some(refused), _) => refusals(refused),
                    (None, None, Some(last)) => sentence(last),
                    (None, None, None) => "nothing yet".to_owned(),
                },
            ]
        })
        .collect();
    table(context.style, &["RULE", "STATUS", "NEXT", "LAST"], &rows);
    Ok(Exit::Ok)
}

/// Returns the refused requests of a rule as one line.
fn refusals(refused: &RefusedRequests) -> String {
    format!("refused ×{}, last {}: {}", refused.count, local(refused.last_ms), plain(&refused.reason))
}

/// Returns a decision as one line.
fn sentence(view: &DecisionView) -> String {
    let run = view.run.as_deref().map(|run| format!(" run {run}")).unwrap_or_default();
    let reason = view.reason.as_deref().map(|why| format!(": {}", plain(why))).unwrap_or_default();
    format!("{} {}{run}{reason}", local(view.at_ms), view.status)
}

fn show(context: &Context, name: &str, ticks: usize) -> Result<Exit, Failure> {
    let app = context.app()?;
    let view = app.rule_view(name, ticks)?;
    if context.json {
        line(&json!(view).to_string());
        return Ok(Exit::Ok);
    }
    let style = context.style;
    line(&format!("{}  {}  {}", style.bold(&plain(&view.name)), view.kind.unwrap_or("?"), view.status));
    if let (Some(file), Some(project)) = (&view.file, &view.project) {
        line(&format!("  from {}, runs in {}", plain(file), plain(project)));
    }
    if let Some(reason) = &view.reason {
        line(&format!("  {}", plain(reason)));
    }
    if let Some(url) = &view.url {
        line(&format!("  webhook  {url}"));
    }
    if let Some(refused) = &view.refused {
        line(&format!("  {}", refusals(refused)));
    }
    if let Some(waits_for) = &view.waits_for {
        line(&format!("  waits for {}", plain(waits_for)));
    }
    for tick in &view.next {
        line(&format!("  next  {}  {} ({})", local(tick.fires_ms), tick.time, tick.zone));
    }
    if view.missed > 0 {
        line(&format!("  missed ×{}", view.missed));
    }
    view.decisions.iter().for_each(|decision| line(&format!("  {}", sentence(decision))));
    Ok(Exit::Ok)
}

pub(crate) fn explain(context: &Context, name: &str) -> Result<Exit, Failure> {
    let told = context.app()?.explain_rule(name)?;
    if context.json {
        line(&json!(told).to_string());
        return Ok(Exit::Ok);
    }
    line(&format!("{}  {}", context.style.bold(&plain(&told.rule)), told.status));
    line(&format!("  {}", plain(&told.reason)));
    if told.status == "active" && !told.watched {
        let tick = if told.needs_server { "" } else { ", or run `sprag rule tick` at intervals" };
        line(&format!("  start `sprag serve`{tick}"));
    }
    match &told.last {
        Some(last) => line(&format!("  last: {}", sentence(last))),
        None => line("  no event has reached it yet"),
    }
    Ok(Exit::Ok)
}

fn decided(context: &Context, event: &DeliveryRow, decision: &EnforcementRow) -> Result<Exit, Failure> {
    let view = DecisionView::of(context.app()?.now(), decision, event);
    if context.json {
        line(&json!(view).to_string());
        return Ok(Exit::Ok);
    }
    match (&view.run, &view.reason) {
        (Some(run), _) => line(run),
        (None, Some(why)) => line(&format!("{}: {}", view.status, plain(why))),
        (None, None) => line(view.status),
    }
    Ok(Exit::Ok)
}

fn said(context: &Context, rule: &RuleRow, what: &str) -> Result<Exit, Failure> {
    if context.json {
        line(&json!({ "rule": &*rule.name, "status": rule.status() }).to_string());
    } else {
        line(&format!("{} is {what}", plain(&rule.name)));
    }
    Ok(Exit::Ok)
}

async fn test(
    context: &Context,
    rule: &str,
    at: Option<&str>,
    event: Option<&str>,
    headers: Vec<(String, String)>,
) -> Result<Exit, Failure> {
    let app = context.app()?;
    let recorded = event.and_then(|event| event.parse().ok());
    let tested = match (recorded, given_event::given(event.filter(|_| recorded.is_none()), headers)?) {
        (Some(recorded), _) => app.test_event(rule, recorded).await?,
        (None, Some(given)) => app.test_given(rule, &given).await?,
        (None, None) => app.test_rule(rule, at.map(|at| time("--at", at)).transpose()?).await?,
    };
    if context.json {
        line(&json!(TestView::of(&tested)).to_string());
        return Ok(Exit::Ok);
    }
    line(&plain(&tested.event.to_string()));
    line(&plain(&tested.verdict.to_string()));
    Ok(Exit::Ok)
}

/// The most rounds of one `tick`: a run that ends may start the next one, and a chain of rules is shorter.
const ROUNDS: usize = 10;

async fn tick(context: &Context, detach: bool) -> Result<Exit, Failure> {
    let app = context.app()?;
    let (mut exit, mut all, mut worked) = (Exit::Ok, 0, false);
    for round in 0..ROUNDS {
        let started = app.tick_rules().await?;
        all += started;
        if !context.json && (started > 0 || round == 0) {
            line(&format!("{started} started"));
        }
        // The worker of the round before may have fired a rule itself when it was about to end.
        if detach || (started == 0 && !worked) || app.has_workers()? {
            break;
        }
        let ended = work_off(context).await?;
        worked = ended != Exit::Nothing;
        if exit == Exit::Ok && (worked || started > 0) {
            exit = ended;
        }
    }
    if context.json {
        line(&json!({ "started": all }).to_string());
    }
    Ok(exit)
}

/// Executes all runs that wait, as `sprag worker --until-idle` does.
async fn work_off(context: &Context) -> Result<Exit, Failure> {
    let options = worker::Options {
        queues: vec!["default".to_owned()],
        labels: Vec::new(),
        slots: None,
        name: Some(format!("tick-{}", std::process::id())),
        until_idle: true,
        lease: Duration::from_secs(30),
        deadline: Duration::from_secs(300),
        bus: None,
    };
    worker::worker(context, options).await
}

fn deliveries(context: &Context, app: &App, rule: Option<&str>, limit: usize) -> Result<Exit, Failure> {
    let found = app.delivery_views(rule, limit)?;
    if context.json {
        line(&json!(found).to_string());
        return Ok(Exit::Ok);
    }
    if found.is_empty() {
        line("no events yet");
        return Ok(Exit::Ok);
    }
    let row = |view: &DeliveryView| {
        let decision = &view.decision;
        vec![decision.event.clone(), plain(&view.rule), decision.kind.clone(), sentence(decision)]
    };
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    table(context.style, &["EVENT", "RULE", "KIND", "DECISION"], &rows);
    Ok(Exit::Ok)
}

/// Parses a time that a person gives.
fn time(option: &str, text: &str) -> Result<i64, Failure> {
    sprag_pipeline::time_ms(text).ok_or_else(|| {
        Failure::usage(format!("{option} {text:?} is not a time")).next("write it like 2030-01-31T08:00:00Z")
    })
}
