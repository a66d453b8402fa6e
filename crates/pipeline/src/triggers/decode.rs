//! Decodes the `on` of a file. [`Form::check`](crate::form::Form::check) has reported values of the wrong form before.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use super::cron::Cron;
use super::schedule::{Schedule, SchedulePart, Ticks};
use super::{
    Debounce, Missed, MissedRuns, OverlapPolicy, RateLimit, Trigger, TriggerSource, Webhook, WebhookKind,
    sources,
};
use crate::decode::{duration_ms, texts};
use crate::diagnostic::{Problem, Report};
use crate::inputs::Input;
use crate::kinds::{one_of, time_ms};
use crate::nearest::nearest;
use crate::template::{self, Piece};
use crate::yaml::{Node, Scalar, Yaml, quoted};

/// The age beyond which a missed tick starts nothing, unless the file says otherwise.
const MISSED_WITHIN_MS: i64 = 24 * 3_600_000;
/// The shortest `every`, in milliseconds.
const SHORTEST_MS: u64 = 1_000;
/// The most bytes of a request's body, unless the file says otherwise.
const MAX_BODY: usize = 1 << 20;
/// The names of a request.
const EVENT: [&str; 3] = ["body", "headers", "id"];
/// The names of a tick.
const TICK: [&str; 3] = ["time", "date", "zone"];

/// Decodes the rules of a file.
pub(crate) fn triggers(root: &Node, inputs: &[Input], report: &mut Report) -> Vec<Trigger> {
    let entries = root.get("on").map(Node::items).unwrap_or_default();
    let mut triggers: Vec<Trigger> = Vec::new();
    for node in entries {
        let Some(trigger) = trigger(node, inputs, report) else { continue };
        if triggers.iter().any(|other| other.id == trigger.id) {
            let span = node.get("id").map_or(node.span, |id| id.span);
            let problem = Problem::at(span, format!("two rules have the id {}", quoted(&trigger.id)));
            report.error(problem.help("give each rule of the pipeline its own id"));
        }
        triggers.push(trigger);
    }
    triggers
}

fn trigger(node: &Node, inputs: &[Input], report: &mut Report) -> Option<Trigger> {
    let id = node.get("id").and_then(Node::text)?.to_owned();
    let (kind, value) = one_of(node, &["schedule", "webhook", "run", "git"], report)?;
    let (source, names): (TriggerSource, &[(&str, &[&str])]) = match kind {
        "schedule" => (TriggerSource::Schedule(parts(value, report)?), &[("tick", &TICK)]),
        "webhook" => (TriggerSource::Webhook(webhook(value, "kind", report)?), &[("event", &EVENT)]),
        "run" => (TriggerSource::Run(sources::run(value, report)?), &[("event", &sources::ENDED_RUN)]),
        _ => (TriggerSource::Git(sources::git(value, node, report)?), &[("event", &sources::MOVE)]),
    };
    let (without_effect, has): (&[&str], _) = match source {
        TriggerSource::Schedule(_) => (&["debounce", "rate"], "has a schedule"),
        _ => (&["missed"], "has no schedule"),
    };
    for (key, value) in without_effect.iter().filter_map(|key| Some((*key, node.get(key)?))) {
        let problem = Problem::at(value.span, format!("`{key}` has no effect: the rule {has}"));
        report.error(problem.help("remove it"));
    }
    let when = node.get("when");
    if let Some(when) = when {
        match when.text().map(template::condition) {
            Some(Ok(expression)) => check_names(expression, when, names, report),
            Some(Err(why)) => {
                let problem = Problem::at(when.span, format!("not an expression: {why}"));
                report.error(problem.expected("an expression such as tick.date != '2030-01-01'"));
            }
            None => {}
        }
    }
    let given = node.get("inputs").map(Node::entries).unwrap_or_default();
    for (key, value) in given {
        if !inputs.iter().any(|input| input.name == key.text) {
            let known = || inputs.iter().map(|input| input.name.as_str());
            let message = format!("the pipeline has no input {}", quoted(&key.text));
            report.error(Problem::at(key.span, message).nearest(nearest(&key.text, known())));
        }
        check_templates(value, names, report);
    }
    for input in inputs.iter().filter(|input| input.required) {
        if !given.iter().any(|(key, _)| key.text == input.name) {
            let message =
                format!("rule `{id}` does not give the input `{}`, which every run needs", input.name);
            report.error(Problem::at(node.span, message).help("give it under the rule's `inputs`"));
        }
    }
    Some(Trigger {
        id,
        source,
        when: when.and_then(Node::text).map(str::to_owned),
        inputs: given.iter().map(|(key, value)| (key.text.clone(), value.json())).collect(),
        debounce: node.get("debounce").and_then(|node| debounce(node, names, report)),
        rate: node.get("rate").and_then(rate),
        missed: missed(node.get("missed")),
        overlap: match node.get("overlap").and_then(Node::text) {
            Some("queue") => OverlapPolicy::Queue,
            Some("cancel_older") => OverlapPolicy::CancelOlder,
            Some("allow") => OverlapPolicy::Allow,
            _ => OverlapPolicy::Skip,
        },
    })
}

/// Decodes signed requests; the key `sender` names their sender.
pub(super) fn webhook(node: &Node, sender: &str, report: &mut Report) -> Option<Webhook> {
    let kind = match node.get(sender).and_then(Node::text)? {
        "github" => WebhookKind::Github,
        "gitlab" => WebhookKind::Gitlab,
        "stripe" => WebhookKind::Stripe,
        "slack" => WebhookKind::Slack,
        "standard" => WebhookKind::Standard,
        _ => WebhookKind::Generic,
    };
    let key = node.get("key");
    if let Some(key) = key {
        check_templates(key, &[("event", &EVENT)], report);
    }
    Some(Webhook {
        kind,
        secrets: texts(node.get("secrets")),
        key: key.and_then(Node::text).map(str::to_owned),
        max_body: node.get("max_body").and_then(Node::integer).map_or(MAX_BODY, |bytes| bytes as usize),
    })
}

fn debounce(node: &Node, names: &[(&str, &[&str])], report: &mut Report) -> Option<Debounce> {
    let for_ms = node.get("for").and_then(duration_ms)? as i64;
    let key = node.get("key");
    if let Some(key) = key {
        check_templates(key, names, report);
    }
    let at_most = node.get("at_most").and_then(duration_ms);
    Some(Debounce {
        key: key.and_then(Node::text).map(str::to_owned),
        for_ms,
        at_most_ms: at_most.map_or(for_ms.saturating_mul(10), |ms| ms as i64),
    })
}

fn rate(node: &Node) -> Option<RateLimit> {
    Some(RateLimit {
        limit: node.get("limit").and_then(Node::integer)?,
        per_ms: node.get("per").and_then(duration_ms)? as i64,
        hold: node.get("over").and_then(Node::text) != Some("skip"),
    })
}

fn missed(node: Option<&Node>) -> Missed {
    let run = match node.and_then(|node| node.get("run")).and_then(Node::text) {
        Some("none") => MissedRuns::None,
        Some("all") => MissedRuns::All,
        _ => MissedRuns::Latest,
    };
    let within = node.and_then(|node| node.get("within")).and_then(duration_ms);
    Missed { run, within_ms: within.map_or(MISSED_WITHIN_MS, |ms| ms as i64) }
}

/// Decodes a schedule: one part, or a list of parts.
fn parts(node: &Node, report: &mut Report) -> Option<Schedule> {
    let nodes: Vec<&Node> = match &node.yaml {
        Yaml::List(items) => items.iter().collect(),
        _ => vec![node],
    };
    let parts: Vec<SchedulePart> = nodes.iter().filter_map(|node| part(node, report)).collect();
    if parts.len() < nodes.len() {
        return None;
    }
    let schedule = Schedule { parts };
    // A schedule of points in time that have passed is legal: the file stays as it is after they have.
    let has_patterns = schedule.parts.iter().any(|part| !matches!(part.ticks, Ticks::At(_)));
    if has_patterns && schedule.next_after(0).is_none() {
        let problem = Problem::at(node.span, "the schedule never fires");
        report.error(problem.help("no day of any year matches it: check the day, the month and `except`"));
    }
    Some(schedule)
}

fn part(node: &Node, report: &mut Report) -> Option<SchedulePart> {
    let (kind, value) = one_of(node, &["cron", "every", "at"], report)?;
    let zone_node = node.get("zone");
    let zone_name = zone_node.and_then(Node::text).unwrap_or("UTC").to_owned();
    let zone = match TimeZone::get(&zone_name) {
        Ok(zone) => zone,
        Err(_) => {
            let known: Vec<String> = jiff::tz::db().available().map(|name| name.to_string()).collect();
            let near = nearest(&zone_name, known.iter().map(String::as_str)).map(str::to_owned);
            let span = zone_node.map_or(node.span, |zone| zone.span);
            let problem = Problem::at(span, format!("there is no time zone {}", quoted(&zone_name)));
            report.error(problem.expected("a name such as Europe/Berlin or UTC").nearest(near.as_deref()));
            return None;
        }
    };
    let ticks = match kind {
        "cron" => Ticks::Cron(cron(value, &zone, &zone_name, report)?),
        "every" => {
            let every = duration_ms(value)?;
            if every < SHORTEST_MS {
                let problem = Problem::at(value.span, "`every` is shorter than a second");
                report.error(problem.expected("a duration of at least 1s"));
                return None;
            }
            Ticks::Every(every as i64)
        }
        _ => Ticks::At(times(value, report)?),
    };
    let mut except = Vec::new();
    for day in node.get("except").map(Node::items).unwrap_or_default() {
        match day.text().map(str::parse::<Date>) {
            Some(Ok(date)) => except.push(date),
            _ => {
                let message = format!("{} is not a day", quoted(day.text().unwrap_or_default()));
                report.error(Problem::at(day.span, message).expected("a day such as 2030-12-24"));
            }
        }
    }
    let jitter_ms = node.get("jitter").and_then(duration_ms).unwrap_or(0) as i64;
    Some(SchedulePart { ticks, zone, zone_name, except, jitter_ms })
}

fn times(node: &Node, report: &mut Report) -> Option<Vec<i64>> {
    let written = match &node.yaml {
        Yaml::List(items) => items.iter().collect(),
        _ => vec![node],
    };
    let mut times = Vec::new();
    for time in written {
        let text = time.text().unwrap_or_default();
        match time_ms(text) {
            Some(ms) => times.push(ms),
            None => {
                let problem = Problem::at(time.span, format!("{} is not a time", quoted(text)));
                report.error(problem.expected("a time such as 2030-01-31T08:00:00Z"));
                return None;
            }
        }
    }
    times.sort_unstable();
    times.dedup();
    Some(times)
}

fn cron(node: &Node, zone: &TimeZone, zone_name: &str, report: &mut Report) -> Option<Cron> {
    let text = node.text()?;
    let cron = match Cron::parse(text) {
        Ok(cron) => cron,
        Err(why) => {
            let problem = Problem::at(node.span, format!("{} is not a cron expression: {why}", quoted(text)));
            report.error(problem.expected("minute, hour, day of the month, month and day of the week"));
            return None;
        }
    };
    if cron.joins_days() {
        let problem = Problem::at(node.span, "both day fields are given: cron means either of them");
        report.warn(problem.help("use two schedules, or a `when`, if both have to match"));
    }
    if let Some(days) = cron.is_fixed().then(|| changed_days(&cron, zone)).filter(|days| !days.is_empty()) {
        let message =
            format!("on {} the clocks of {zone_name} skip or repeat this time", days.join(" and on "));
        let help = "it fires once on these days: when the gap ends, or the first time";
        report.warn(Problem::at(node.span, message).help(help));
    }
    Some(cron)
}

/// Returns the days of the next two years on which a fixed time is in a gap or a repeat of the zone.
fn changed_days(cron: &Cron, zone: &TimeZone) -> Vec<String> {
    let now = Timestamp::now();
    let Ok(end) = now.to_zoned(TimeZone::UTC).checked_add(2.years()) else { return Vec::new() };
    let mut days = Vec::new();
    for transition in zone.following(now).take_while(|transition| transition.timestamp() < end.timestamp()) {
        let border = transition.timestamp();
        let Ok(before) = border.checked_sub(1.nanosecond()) else { continue };
        let (old, new) =
            (zone.to_offset(before).to_datetime(border), zone.to_offset(border).to_datetime(border));
        let (first, last) = (old.min(new), old.max(new));
        let Ok(lower) = first.checked_sub(1.minute()) else { continue };
        if cron.next_after(lower).is_some_and(|found| found < last) {
            days.push(first.date().to_string());
        }
    }
    days
}

/// Checks the names in all templates of a value.
fn check_templates(node: &Node, names: &[(&str, &[&str])], report: &mut Report) {
    match &node.yaml {
        Yaml::Scalar(Scalar { text, .. }) => match template::split(text) {
            Ok(pieces) => {
                for piece in pieces {
                    if let Piece::Value(expression) = piece {
                        check_names(expression, node, names, report);
                    }
                }
            }
            Err(malformed) => report.error(Problem::at(node.span, malformed.message).help(malformed.help)),
        },
        Yaml::List(items) => items.iter().for_each(|item| check_templates(item, names, report)),
        Yaml::Map(entries) => entries.iter().for_each(|(_, value)| check_templates(value, names, report)),
    }
}

/// Reports names that an event of the rule does not have. No fields means any.
fn check_names(expression: &str, node: &Node, names: &[(&str, &[&str])], report: &mut Report) {
    for name in template::names(expression) {
        let mut parts = name.split('.');
        let (root, field) = (parts.next().unwrap_or_default(), parts.next());
        let known = || {
            let all = names.iter().flat_map(|(root, fields)| match fields {
                [] => vec![(*root).to_owned()],
                fields => fields.iter().map(|field| format!("{root}.{field}")).collect(),
            });
            all.collect::<Vec<_>>().join(", ")
        };
        match names.iter().find(|(known, _)| *known == root) {
            Some((_, [])) => {}
            Some((_, fields)) if field.is_none_or(|field| fields.contains(&field)) => {}
            _ => {
                let message = format!("an event of this rule has no {}", quoted(&name));
                report.error(Problem::at(node.span, message).expected(format!("one of {}", known())));
            }
        }
    }
}
