//! Looks at runs of a server: `ls`, `status`, `explain`, `questions`, `graph`, `diff`.

use serde_json::Value;
use sprag_app::GraphView;
use sprag_lifecycle::Word;

use super::follow::why_attempt_failed;
use super::{AtRemote, MOST_LISTED, escaped, status_of, word};
use crate::args::{GraphFormat, ListOptions};
use crate::commands::ls::{self, Listed};
use crate::commands::status::{WIDEST_ITEM, after_tries};
use crate::commands::{diff, explain, graph, logs, questions};
use crate::exit::{Exit, Failure};
use crate::show::{columns_of, line, local, padded, plain, shortened, span, time_in};

/// The most pages of open questions that are read.
const MOST_PAGES: usize = 20;

impl AtRemote<'_> {
    pub(super) async fn ls(&self, options: &ListOptions) -> Result<Exit, Failure> {
        let statuses: Vec<&str> = options.statuses()?.iter().map(|status| status.as_str()).collect();
        let mut query = format!("/v1/runs?limit={MOST_LISTED}&boards={}", options.boards);
        if !statuses.is_empty() {
            query += &format!("&status={}", statuses.join(","));
        }
        if !options.labels.is_empty() {
            query += &format!("&label={}", escaped(&options.labels.join(",")));
        }
        if let Some(pipeline) = &options.pipeline {
            query += &format!("&pipeline={}", escaped(pipeline));
        }
        if let Some(since) = &options.since {
            let now = jiff::Timestamp::now().as_millisecond();
            query += &format!("&since={}", escaped(&logs::start_of(since, now)?));
        }
        let mut listed = Listed::default();
        let mut cursor = String::new();
        for _ in 0..ls::SEARCHED / MOST_LISTED {
            let page = self.get(&format!("{query}{cursor}")).await?;
            let runs = page["runs"].as_array().into_iter().flatten();
            listed.runs.extend(runs.filter(|run| options.is_meant(run["waiting_for"].as_str())).cloned());
            listed.damaged.extend(page["damaged"].as_array().into_iter().flatten().cloned());
            listed.more = listed.runs.len() > options.limit;
            match page["next_cursor"].as_str() {
                Some(next) if !listed.more => cursor = format!("&cursor={}", escaped(next)),
                _ => break,
            }
        }
        listed.runs.truncate(options.limit);
        ls::print(self.context, &listed, options, jiff::Timestamp::now().as_millisecond(), &self.at())
    }

    pub(super) async fn status(&self, run: Option<&str>) -> Result<Exit, Failure> {
        let told = self.detail(&self.run(run).await?).await?;
        if self.context.json {
            line(&told.to_string());
            return Ok(Exit::Ok);
        }
        let style = self.context.style;
        let created = time_in(&told, "created_at").map(local).unwrap_or_default();
        let now = jiff::Timestamp::now().as_millisecond();
        let took = |what: &Value| {
            let ended = time_in(what, "ended_at").unwrap_or(now);
            time_in(what, "started_at").map(|at| span(ended - at))
        };
        line(&format!(
            "{}  {}  {}  {}",
            style.bold(&word(&told, "id")),
            word(&told, "pipeline"),
            style.status(&status_of(&told), 0),
            style.dim(&format!(
                "{created}{}",
                took(&told).map(|took| format!(" · {took}")).unwrap_or_default()
            ))
        ));
        for (key, text) in [
            ("name:", word(&told, "name")),
            ("labels:", ls::told_labels(&told["labels"])),
            ("reason:", word(&told, "reason")),
        ] {
            if !text.is_empty() {
                line(&format!("  {} {text}", style.dim(key)));
            }
        }
        let steps: Vec<&Value> = told["steps"].as_array().into_iter().flatten().collect();
        let has_failed = |step: &Value| step["status"] == "failed";
        let executions = if steps.iter().any(|step| has_failed(step)) {
            self.executions(&word(&told, "id")).await?
        } else {
            Vec::new()
        };
        let name = |step: &Value| {
            let item = step["item"].as_str().map(|item| shortened(&plain(item), WIDEST_ITEM));
            sprag_app::named_item(&word(step, "id"), item.as_deref())
        };
        let width = steps.iter().map(|step| columns_of(&name(step))).max().unwrap_or(0);
        for step in steps {
            let not_run = step["not_run"] == true;
            let status = if not_run { "not run".to_owned() } else { status_of(step) };
            let sign = if not_run { status.clone() } else { word(step, "status") };
            let tries = match (step["round"].as_u64(), step["max_rounds"].as_u64(), step["attempt"].as_u64())
            {
                (Some(round), Some(most), _) => format!("round {round} of {most}"),
                (_, _, Some(attempt)) if attempt > 1 && !not_run => format!("attempt {attempt}"),
                _ => String::new(),
            };
            let last = executions.iter().rfind(|row| row["step"] == step["id"]);
            let why = last.filter(|_| has_failed(step)).map(why_attempt_failed);
            let text = format!(
                "  {} {}  {}  {:>7}  {tries}{}",
                style.sign(&sign),
                padded(&name(step), width),
                style.status(&status, 16),
                took(step).unwrap_or_default(),
                after_tries(&tries, why.or_else(|| about(step)))
            );
            line(text.trim_end());
        }
        for note in told["notes"].as_array().into_iter().flatten() {
            let said = if note["kind"] == "report" { "reports" } else { "notes" };
            let whose = style.dim(&format!("{} {said}:", word(note, "step")));
            line(&format!("  {whose} {}", word(note, "text")));
        }
        if told["status"] == "failed" {
            line(&style.dim(&format!("next: sprag explain {}{}", word(&told, "id"), self.at())));
        }
        Ok(Exit::Ok)
    }

    pub(super) async fn explain(&self, run: Option<&str>) -> Result<Exit, Failure> {
        let told = self.get(&format!("/v1/runs/{}/explain", escaped(&self.run(run).await?))).await?;
        explain::print(self.context, &told, jiff::Timestamp::now().as_millisecond(), &self.at())
    }

    pub(super) async fn questions(&self) -> Result<Exit, Failure> {
        let (mut gates, mut cursor) = (Vec::new(), String::new());
        for _ in 0..MOST_PAGES {
            let page = self.get(&format!("/v1/gates?kind=question{cursor}")).await?;
            gates.extend(page["gates"].as_array().into_iter().flatten().cloned());
            let Some(next) = page["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={}", escaped(next));
        }
        questions::print(self.context, &gates, jiff::Timestamp::now().as_millisecond(), &self.at())
    }

    pub(super) async fn graph(
        &self,
        what: Option<&str>,
        format: Option<GraphFormat>,
    ) -> Result<Exit, Failure> {
        if what.map(graph::of_file).transpose()?.flatten().is_some() {
            return Err(Failure::usage("a pipeline file is here, not on the server")
                .next("name a run, or leave --server out"));
        }
        let told = self.get(&format!("/v1/runs/{}/graph", escaped(&self.run(what).await?))).await?;
        let view: GraphView = serde_json::from_value(told)
            .map_err(|error| Failure::error(format!("the answer is not a graph: {error}")))?;
        graph::draw(self.context, &view, format)
    }

    pub(super) async fn diff(
        &self,
        run: Option<&str>,
        steps: Option<&str>,
        options: diff::Options,
    ) -> Result<Exit, Failure> {
        let steps = steps.map(|steps| format!("?steps={}", escaped(steps))).unwrap_or_default();
        let run = self.run(run).await?;
        let told = self.get(&format!("/v1/runs/{}/diff{steps}", escaped(&run))).await?;
        diff::print(self.context, &told, options)?;
        Ok(Exit::Ok)
    }
}

/// Returns the item counts of a fan-out, or the child run of a step; none for other steps.
fn about(step: &Value) -> Option<String> {
    let items = &step["items"];
    if items.is_object() {
        let count = |key: &str| items[key].as_u64().unwrap_or(0);
        let failed =
            if count("failed") > 0 { format!(", {} failed", count("failed")) } else { String::new() };
        return Some(format!("{} of {} items{failed}", count("settled"), count("total")));
    }
    let child = step["child"].as_str().map(|child| format!("run {}", plain(child)));
    child.or_else(|| (step["service"] == true).then(|| "service".to_owned()))
}
