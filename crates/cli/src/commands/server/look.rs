//! Looks at runs of a server: `ls`, `status`, `explain`, `questions`, `graph`, `diff`.

use serde_json::Value;
use sprag_app::GraphView;

use super::{AtRemote, MOST_LISTED, escaped, status_of, word};
use crate::args::GraphFormat;
use crate::commands::{diff, graph};
use crate::exit::{Exit, Failure};
use crate::show::{hanging, line, plain, table};

impl AtRemote<'_> {
    pub(super) async fn ls(
        &self,
        statuses: &[String],
        waiting: Option<&str>,
        labels: &[String],
        limit: usize,
    ) -> Result<Exit, Failure> {
        let label =
            if labels.is_empty() { String::new() } else { format!("&label={}", escaped(&labels.join(","))) };
        let status = if statuses.is_empty() {
            String::new()
        } else {
            format!("&status={}", escaped(&statuses.join(",")))
        };
        let listed =
            self.get(&format!("/v1/runs?limit={}{status}{label}", limit.clamp(1, MOST_LISTED))).await?;
        let mut runs = listed["runs"].as_array().cloned().unwrap_or_default();
        if let Some(kind) = waiting {
            runs.retain(|run| run["waiting_for"].as_str().is_some_and(|wait| kind == "any" || kind == wait));
        }
        if self.context.json {
            line(&Value::Array(runs).to_string());
            return Ok(Exit::Ok);
        }
        let rows: Vec<Vec<String>> = runs
            .iter()
            .map(|run| {
                let words = [word(run, "id"), word(run, "pipeline"), status_of(run), word(run, "created_at")];
                words.into_iter().chain([word(run, "name")]).collect()
            })
            .collect();
        table(self.context.style, &["RUN", "PIPELINE", "STATUS", "CREATED", "NAME"], &rows);
        Ok(Exit::Ok)
    }

    pub(super) async fn status(&self, run: Option<&str>) -> Result<Exit, Failure> {
        let told = self.detail(&self.run(run).await?).await?;
        if self.context.json {
            line(&told.to_string());
            return Ok(Exit::Ok);
        }
        let style = self.context.style;
        self.head(&told);
        for step in told["steps"].as_array().into_iter().flatten() {
            let status = if step["not_run"] == true { "not run".to_owned() } else { status_of(step) };
            let attempt = step["attempt"].as_u64().filter(|attempt| *attempt > 1);
            let tries = attempt.map(|attempt| format!("attempt {attempt}")).unwrap_or_default();
            let text = format!(
                "  {} {:24}  {}  {tries}",
                style.sign(&word(step, "status")),
                word(step, "id"),
                style.status(&status, 16)
            );
            line(text.trim_end());
        }
        Ok(Exit::Ok)
    }

    /// Prints the first line about a run.
    fn head(&self, told: &Value) {
        let style = self.context.style;
        line(&format!(
            "{}  {}  {}",
            style.bold(&word(told, "id")),
            word(told, "pipeline"),
            style.status(&status_of(told), 0)
        ));
    }

    pub(super) async fn explain(&self, run: Option<&str>) -> Result<Exit, Failure> {
        let told = self.get(&format!("/v1/runs/{}/explain", escaped(&self.run(run).await?))).await?;
        if self.context.json {
            line(&told.to_string());
            return Ok(Exit::Ok);
        }
        let style = self.context.style;
        self.head(&told);
        if let Some(place) = told["waits_for"].as_str() {
            line(&format!("  the run waits for {}", plain(place)));
        }
        for failure in told["failed"].as_array().into_iter().flatten() {
            line(&format!(
                "  {} {} failed: {}",
                style.sign("failed"),
                word(failure, "step"),
                word(failure, "why")
            ));
            for text in failure["last_lines"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                line(&format!("      │ {}", plain(text)));
            }
        }
        for step in told["blocked"].as_array().into_iter().flatten() {
            let name = style.bold(&word(step, "step"));
            line(&format!("  {} {name} (blocked)", style.sign("failed")));
            line(&format!("      because    {}", hanging(&word(step, "message"), 17)));
            line(&format!("      to do      {}", hanging(&word(step, "remedy"), 17)));
        }
        for step in told["steps"].as_array().into_iter().flatten() {
            line(&format!(
                "  {} {} ({})",
                style.sign(&word(step, "status")),
                style.bold(&word(step, "id")),
                word(step, "status")
            ));
            for (name, key) in
                [("waits for", "waits_for"), ("since", "since"), ("until", "until"), ("owner", "owner")]
            {
                if let Some(text) = step[key].as_str() {
                    line(&format!("      {name:<9}  {}", hanging(text, 17)));
                }
            }
        }
        Ok(Exit::Ok)
    }

    pub(super) async fn questions(&self) -> Result<Exit, Failure> {
        let told = self.get("/v1/gates?kind=question").await?;
        let gates = told["gates"].as_array().cloned().unwrap_or_default();
        if self.context.json {
            line(&Value::Array(gates).to_string());
            return Ok(Exit::Ok);
        }
        for gate in &gates {
            line(&format!("{}  {}", word(gate, "run"), word(gate, "step")));
            line(&format!("    {}", hanging(gate["ask"].as_str().unwrap_or_default(), 4)));
        }
        if gates.is_empty() {
            line("no open questions");
        }
        Ok(Exit::Ok)
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
