//! `sprag rule` and `sprag delivery`: what starts runs by itself, and what it decided.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_app::rules::{Backfill, DecisionView, GivenEvent, RuleOutcome, TestView, Verdict};

use super::server::{AtRemote, escaped};
use super::source::{Source, elements};
use super::{drawn, given_event, worker};
use crate::args::{DeliveryCommand, Group, RuleCommand};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::help::refuse_server;
use crate::show::{Style, line, local, plain, table};

pub(crate) async fn rule(context: &Context, group: Group<RuleCommand>) -> Result<Exit, Failure> {
    let Group { command, at } = group;
    match command {
        RuleCommand::Apply { file, dry } => {
            refuse_server("rule apply", &at)?;
            return apply(context, &file, dry).await;
        }
        RuleCommand::Tick { detach } => {
            refuse_server("rule tick", &at)?;
            return tick(context, detach).await;
        }
        _ => {}
    }
    let source = Source::open(context, &at)?;
    match command {
        RuleCommand::Ls { all } => ls(context, &source, all).await,
        RuleCommand::Show { rule, next } => show(context, &source, &rule, next.into()).await,
        RuleCommand::Explain { rule } => explain(context, &source, &rule).await,
        RuleCommand::Fire { rule, given } => {
            let given = given_event::given(given.event.as_deref(), given.header)?;
            let decision = match &source {
                Source::Store(app) => {
                    let (event, decision) = app.fire_rule(&rule, given.as_ref()).await?;
                    json!(DecisionView::of(app.now(), &decision, &event))
                }
                Source::Server(remote) => {
                    let path = format!("{}/fire", remote.rule_path(&rule).await?);
                    remote.post(&path, json!({ "event": given.map(event_body) })).await?
                }
            };
            decided(context, &decision)
        }
        RuleCommand::Pause { rule, reason } => {
            let row = match &source {
                Source::Store(app) => row_view(&app.pause_rule(&rule, reason.as_deref()).await?),
                Source::Server(remote) => {
                    let path = format!("{}/pause", remote.rule_path(&rule).await?);
                    remote.post(&path, json!({ "reason": reason })).await?
                }
            };
            said(context, &row, "paused")
        }
        RuleCommand::Resume { rule, missed } => {
            let row = match &source {
                Source::Store(app) => row_view(&app.resume_rule(&rule, missed).await?),
                Source::Server(remote) => {
                    let path = format!("{}/resume", remote.rule_path(&rule).await?);
                    remote.post(&path, json!({ "missed": missed })).await?
                }
            };
            said(context, &row, "active")
        }
        RuleCommand::Rm { rule } => {
            let row = match &source {
                Source::Store(app) => row_view(&app.retire_rule(&rule).await?),
                Source::Server(remote) => {
                    remote.send("DELETE", &remote.rule_path(&rule).await?, None).await?
                }
            };
            said(context, &row, "retired")
        }
        RuleCommand::Test { rule, at, event, header } => {
            test(context, &source, &rule, at.as_deref(), event.as_deref(), header).await
        }
        RuleCommand::Backfill { rule, from, to, again } => {
            let wanted = Backfill { from_ms: time("--from", &from)?, to_ms: time("--to", &to)?, again };
            let done = match &source {
                Source::Store(app) => json!(app.backfill_rule(&rule, wanted).await?),
                Source::Server(remote) => {
                    let path = format!("{}/backfill", remote.rule_path(&rule).await?);
                    remote.post(&path, json!({ "from": from, "to": to, "again": again })).await?
                }
            };
            if context.json {
                line(&done.to_string());
            } else {
                let (new, known) = (elements(&done["new"]).len(), done["known"].as_u64().unwrap_or(0));
                let decided = if again { ", and decided again" } else { "" };
                line(&format!("{new} new, {known} taken before{decided}"));
            }
            Ok(Exit::Ok)
        }
        // They work without a source.
        RuleCommand::Apply { .. } | RuleCommand::Tick { .. } => Ok(Exit::Ok),
    }
}

pub(crate) async fn delivery(context: &Context, group: Group<DeliveryCommand>) -> Result<Exit, Failure> {
    let Group { command, at } = group;
    if let DeliveryCommand::Send { .. } = &command {
        refuse_server("delivery send", &at)?;
    }
    let source = Source::open(context, &at)?;
    match command {
        DeliveryCommand::Ls { rule, limit } => {
            deliveries(context, &source, rule.as_deref(), limit.into()).await
        }
        DeliveryCommand::Show { event } => {
            let view = match &source {
                Source::Store(app) => json!(app.delivery_view(event)?),
                Source::Server(remote) => remote.get(&format!("/v1/deliveries/{event}")).await?,
            };
            if context.json {
                line(&view.to_string());
                return Ok(Exit::Ok);
            }
            line(&format!("{}  {}", word(&view, "rule"), word(&view, "key")));
            line(&plain(&view["event"].to_string()));
            elements(&view["decisions"]).iter().for_each(|view| line(&format!("  {}", sentence(view))));
            Ok(Exit::Ok)
        }
        DeliveryCommand::Send { rule, file, to, header } => {
            given_event::send(context, &context.app()?, &rule, &file, &to, &header).await
        }
        DeliveryCommand::Replay { event } => {
            let decision = match &source {
                Source::Store(app) => {
                    let (event, decision) = app.replay_event(event).await?;
                    json!(DecisionView::of(app.now(), &decision, &event))
                }
                Source::Server(remote) => {
                    remote.post(&format!("/v1/deliveries/{event}/replay"), json!({})).await?
                }
            };
            decided(context, &decision)
        }
    }
}

impl AtRemote<'_> {
    /// Returns the path of the rule that the user means: by its full name, or by its id where that is unique.
    async fn rule_path(&self, name: &str) -> Result<String, Failure> {
        if let Some((pipeline, rule)) = name.split_once('/') {
            return Ok(format!("/v1/rules/{}/{}", escaped(pipeline), escaped(rule)));
        }
        let rules = self.list("/v1/rules", "rules").await?;
        let names = elements(&rules).iter().filter_map(|rule| rule["name"].as_str()?.split_once('/'));
        let found: Vec<(&str, &str)> = names.filter(|(_, rule)| *rule == name).collect();
        match found.as_slice() {
            [(pipeline, rule)] => Ok(format!("/v1/rules/{}/{}", escaped(pipeline), escaped(rule))),
            [] => Err(Failure::usage(format!("there is no rule {name:?}"))
                .next(format!("list the rules: sprag rule ls{}", self.at()))),
            [(one, _), (other, _), ..] => Err(Failure::usage(format!("several rules are called {name:?}"))
                .next(format!("give the full name, such as {one}/{name} or {other}/{name}"))),
        }
    }
}

fn event_body(event: GivenEvent) -> Value {
    json!({ "body": event.body, "headers": event.headers })
}

/// Returns a rule as programs see it, as far as this command prints it.
fn row_view(rule: &sprag_app::RuleRow) -> Value {
    json!({ "name": &*rule.name, "status": sprag_app::Row::status(rule) })
}

fn word(value: &Value, key: &str) -> String {
    plain(value[key].as_str().unwrap_or_default())
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

async fn ls(context: &Context, source: &Source<'_>, all: bool) -> Result<Exit, Failure> {
    let views = match source {
        Source::Store(app) => json!(app.rule_views(all)?),
        Source::Server(remote) => remote.list(&format!("/v1/rules?all={all}"), "rules").await?,
    };
    if context.json {
        line(&views.to_string());
        return Ok(Exit::Ok);
    }
    let views = elements(&views);
    if views.is_empty() {
        line("no rules yet; record those of a file: sprag rule apply FILE");
        return Ok(Exit::Ok);
    }
    let row = |view: &Value| {
        let next = view["next"][0]["fires_ms"].as_i64().or(view["looks_ms"].as_i64());
        let (refused, last) = (&view["refused"], &view["decisions"][0]);
        // Requests that were refused after the last decision are the news.
        let is_refused = refused["last_ms"].as_i64() > last["at_ms"].as_i64();
        vec![
            word(view, "name"),
            word(view, "status"),
            next.map_or_else(|| "–".to_owned(), local),
            match view["reason"].as_str() {
                Some(reason) => plain(reason),
                None if is_refused => refusals(refused),
                None if last.is_object() => sentence(last),
                None => "nothing yet".to_owned(),
            },
        ]
    };
    let rows: Vec<Vec<String>> = views.iter().map(row).collect();
    table(context.style, &["RULE", "STATUS", "NEXT", "LAST"], &rows);
    Ok(Exit::Ok)
}

/// Returns the refused requests of a rule as one line.
fn refusals(refused: &Value) -> String {
    let (count, last) = (refused["count"].as_u64().unwrap_or(0), refused["last_ms"].as_i64().unwrap_or(0));
    format!("refused ×{count}, last {}: {}", local(last), word(refused, "reason"))
}

/// Returns a decision as one line.
fn sentence(view: &Value) -> String {
    let run = view["run"].as_str().map(|run| format!(" run {}", plain(run))).unwrap_or_default();
    let reason = view["reason"].as_str().map(|why| format!(": {}", plain(why))).unwrap_or_default();
    let at = local(view["at_ms"].as_i64().unwrap_or_default());
    format!("{at} {}{run}{reason}", word(view, "status"))
}

async fn show(context: &Context, source: &Source<'_>, name: &str, ticks: usize) -> Result<Exit, Failure> {
    let view = match source {
        Source::Store(app) => json!(app.rule_view(name, ticks)?),
        Source::Server(remote) => {
            remote.get(&format!("{}?next={ticks}", remote.rule_path(name).await?)).await?
        }
    };
    if context.json {
        line(&view.to_string());
        return Ok(Exit::Ok);
    }
    let text = |key: &str| view[key].as_str().map(plain);
    let kind = text("kind").unwrap_or_else(|| "?".to_owned());
    line(&format!("{}  {kind}  {}", context.style.bold(&word(&view, "name")), word(&view, "status")));
    if let (Some(file), Some(project)) = (text("file"), text("project")) {
        line(&format!("  from {file}, runs in {project}"));
    }
    if let Some(reason) = text("reason") {
        line(&format!("  {reason}"));
    }
    if let Some(url) = text("url") {
        line(&format!("  webhook  {url}"));
    }
    if view["refused"].is_object() {
        line(&format!("  {}", refusals(&view["refused"])));
    }
    if let Some(waits_for) = text("waits_for") {
        line(&format!("  waits for {waits_for}"));
    }
    for tick in elements(&view["next"]) {
        let fires = local(tick["fires_ms"].as_i64().unwrap_or_default());
        line(&format!("  next  {fires}  {} ({})", word(tick, "time"), word(tick, "zone")));
    }
    if let Some(missed) = view["missed"].as_i64().filter(|missed| *missed > 0) {
        line(&format!("  missed ×{missed}"));
    }
    elements(&view["decisions"]).iter().for_each(|decision| line(&format!("  {}", sentence(decision))));
    Ok(Exit::Ok)
}

pub(super) async fn explain(context: &Context, source: &Source<'_>, name: &str) -> Result<Exit, Failure> {
    let told = match source {
        Source::Store(app) => json!(app.explain_rule(name)?),
        Source::Server(remote) => remote.get(&format!("{}/explain", remote.rule_path(name).await?)).await?,
    };
    if context.json {
        line(&told.to_string());
        return Ok(Exit::Ok);
    }
    line(&format!("{}  {}", context.style.bold(&word(&told, "rule")), word(&told, "status")));
    line(&format!("  {}", word(&told, "reason")));
    if told["status"] == "active" && told["watched"] == false {
        let needs_server = told["needs_server"] == true;
        let tick = if needs_server { "" } else { ", or run `sprag rule tick` at intervals" };
        line(&format!("  start `sprag serve`{tick}"));
    }
    match &told["last"] {
        Value::Null => line("  no event has reached it yet"),
        last => line(&format!("  last: {}", sentence(last))),
    }
    Ok(Exit::Ok)
}

fn decided(context: &Context, view: &Value) -> Result<Exit, Failure> {
    if context.json {
        line(&view.to_string());
        return Ok(Exit::Ok);
    }
    match (view["run"].as_str(), view["reason"].as_str()) {
        (Some(run), _) => line(&plain(run)),
        (None, Some(why)) => line(&format!("{}: {}", word(view, "status"), plain(why))),
        (None, None) => line(&word(view, "status")),
    }
    Ok(Exit::Ok)
}

fn said(context: &Context, rule: &Value, what: &str) -> Result<Exit, Failure> {
    if context.json {
        line(&json!({ "rule": rule["name"], "status": rule["status"] }).to_string());
    } else {
        line(&format!("{} is {what}", word(rule, "name")));
    }
    Ok(Exit::Ok)
}

async fn test(
    context: &Context,
    source: &Source<'_>,
    rule: &str,
    at: Option<&str>,
    event: Option<&str>,
    headers: Vec<(String, String)>,
) -> Result<Exit, Failure> {
    let recorded = event.and_then(|event| event.parse::<i64>().ok());
    let given = given_event::given(event.filter(|_| recorded.is_none()), headers)?;
    let at_ms = at.map(|at| time("--at", at)).transpose()?;
    let tested = match source {
        Source::Store(app) => json!(TestView::of(&match (recorded, given) {
            (Some(recorded), _) => app.test_event(rule, recorded).await?,
            (None, Some(given)) => app.test_given(rule, &given).await?,
            (None, None) => app.test_rule(rule, at_ms).await?,
        })),
        Source::Server(remote) => {
            let recorded = recorded.map(|recorded| recorded.to_string());
            let body = json!({ "at": at, "recorded": recorded, "event": given.map(event_body) });
            remote.post(&format!("{}/test", remote.rule_path(rule).await?), body).await?
        }
    };
    if context.json {
        line(&tested.to_string());
        return Ok(Exit::Ok);
    }
    line(&plain(&tested["event"].to_string()));
    line(&plain(&verdict(&tested)));
    Ok(Exit::Ok)
}

/// Returns the decision on a tested event in words.
fn verdict(tested: &Value) -> String {
    let (inputs, why) = (tested["inputs"].clone(), word(tested, "reason"));
    let verdict = match tested["decision"].as_str() {
        Some("start") => Verdict::Start(inputs),
        Some("hold") => Verdict::Hold(inputs, why),
        Some("skip") => Verdict::Skip(why),
        _ => Verdict::Fail(why),
    };
    verdict.to_string()
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

async fn deliveries(
    context: &Context,
    source: &Source<'_>,
    rule: Option<&str>,
    limit: usize,
) -> Result<Exit, Failure> {
    let found = match source {
        Source::Store(app) => json!(app.delivery_views(rule, limit)?),
        Source::Server(remote) => {
            let rule = rule.map(|rule| format!("&rule={}", escaped(rule))).unwrap_or_default();
            remote.list(&format!("/v1/deliveries?limit={limit}{rule}"), "deliveries").await?
        }
    };
    if context.json {
        line(&found.to_string());
        return Ok(Exit::Ok);
    }
    if elements(&found).is_empty() {
        line("no events yet");
        return Ok(Exit::Ok);
    }
    let row =
        |view: &Value| vec![word(view, "event"), word(view, "rule"), word(view, "kind"), sentence(view)];
    let rows: Vec<Vec<String>> = elements(&found).iter().map(row).collect();
    table(context.style, &["EVENT", "RULE", "KIND", "DECISION"], &rows);
    Ok(Exit::Ok)
}

/// Parses a time that a person gives.
fn time(option: &str, text: &str) -> Result<i64, Failure> {
    sprag_pipeline::time_ms(text).ok_or_else(|| {
        Failure::usage(format!("{option} {text:?} is not a time")).next("write it like 2030-01-31T08:00:00Z")
    })
}
