//! What a server's run waits for, and the progress line of its live view.

use serde_json::{Value, json};
use sprag_app::Waiting;
use sprag_lifecycle::RunId;

use super::follow::LiveView;
use super::{escaped, word};
use crate::exit::Failure;
use crate::live::{NAMED, live_text};
use crate::patience::say;
use crate::show::{Style, plain, span, time_in};

impl LiveView<'_, '_> {
    /// Prints what the run waits for, or what some of its steps wait for while others are executed: after a moment, and at
    /// each change.
    pub(super) async fn say_waits(&mut self) -> Result<(), Failure> {
        if self.remote.context.json || !self.patience.is_due() {
            return Ok(());
        }
        self.waits = self.find_waits().await?;
        let unsaid = self.patience.unlisted(self.waits.clone());
        // On a terminal the progress line says it.
        if !self.progress.is_drawn() && !unsaid.is_empty() {
            self.progress.clear();
            say(Style::stderr(), &unsaid, jiff::Timestamp::now().as_millisecond());
        }
        Ok(())
    }

    /// Returns what the run and its steps wait for. While a step is executed, a wait for a worker is usual.
    async fn find_waits(&self) -> Result<Vec<Waiting>, Failure> {
        let Ok(run) = self.run.parse::<RunId>() else { return Ok(Vec::new()) };
        let told = self.remote.get(&format!("/v1/runs/{}/explain", escaped(&self.run))).await?;
        let wait = |step: Option<String>, what: String, about: &Value| Waiting {
            run,
            step,
            what,
            is_gate: false,
            since_ms: time_in(about, "since"),
            until_ms: time_in(about, "until"),
        };
        if let Some(what) = told["waits_for"].as_str() {
            let since = json!({ "since": self.detail["created_at"] });
            return Ok(vec![wait(None, plain(what), &since)]);
        }
        let steps: Vec<&Value> = told["steps"].as_array().into_iter().flatten().collect();
        let of_steps = |is_meant: &dyn Fn(&str) -> bool| -> Vec<Waiting> {
            let meant = steps.iter().filter(|step| is_meant(step["id"].as_str().unwrap_or_default()));
            meant
                .map(|step| {
                    let what = match self.kind_of_wait(&word(step, "id")) {
                        Some("person" | "signal") => {
                            format!("{} ({})", word(step, "waits_for"), word(step, "owner"))
                        }
                        _ => word(step, "waits_for"),
                    };
                    wait(Some(word(step, "id")), what, step)
                })
                .collect()
        };
        let waits = of_steps(&|step| match self.kind_of_wait(step) {
            Some(kind) => self.running.is_empty() || kind != "worker",
            None => false,
        });
        Ok(if waits.is_empty() && self.running.is_empty() { of_steps(&|_| true) } else { waits })
    }

    /// Returns the kind of thing that a step waits for; none if it does not wait.
    fn kind_of_wait(&self, step: &str) -> Option<&str> {
        let mut steps = self.detail["steps"].as_array().into_iter().flatten();
        steps.find(|row| row["id"] == step)?["waiting_for"].as_str()
    }

    /// Draws the progress line: the running steps, and what the others wait for.
    pub(super) fn draw(&mut self) {
        let now = jiff::Timestamp::now().as_millisecond();
        let steps: Vec<&Value> = self.detail["steps"].as_array().into_iter().flatten().collect();
        let row_of = |step: &str| steps.iter().find(|row| row["id"] == step);
        let is_service = |step: &str| row_of(step).is_some_and(|row| row["service"] == true);
        let fan_outs = steps.iter().filter(|row| row["status"] == "running" && row["items"].is_object());
        let fan_outs = fan_outs.map(|row| {
            let count = |key: &str| row["items"][key].as_u64().unwrap_or(0);
            let name = format!("{} {}/{}", word(row, "id"), count("settled"), count("total"));
            (name, time_in(row, "started_at").unwrap_or(now))
        });
        let running = self.running.iter().filter(|(step, _)| !is_service(step));
        let running = running.map(|(step, (_, at))| (step.clone(), *at));
        let all: Vec<(String, i64)> = fan_outs.chain(running).collect();
        let names: Vec<String> =
            all.iter().take(NAMED).map(|(name, at)| format!("{name} {}", span(now - at))).collect();
        let planned = || steps.iter().filter(|row| row["item_of"].is_null());
        let is_settled = |row: &&&Value| {
            ["done", "failed", "skipped", "cancelled"].iter().any(|status| row["status"] == *status)
        };
        let counts = (planned().filter(is_settled).count(), planned().count());
        if let Some(text) = live_text(counts, &names, all.len(), &self.waits, now) {
            self.progress.draw(&text);
        }
    }

    /// Describes the round of a step that has ended with an attempt, and the delay before the next one.
    pub(super) async fn ended_round(&self, step: &str, attempt: Option<u32>) -> Result<String, Failure> {
        let detail = self.remote.detail(&self.run).await?;
        let mut steps = detail["steps"].as_array().into_iter().flatten();
        let row = steps.find(|row| row["id"] == step).cloned().unwrap_or_default();
        // The count belongs to this round only while the next one is the present attempt.
        let is_next = attempt.is_some_and(|attempt| row["attempt"] == json!(attempt + 1));
        let rounds = row["round"].as_u64().zip(row["max_rounds"].as_u64()).filter(|_| is_next);
        let round = rounds.map_or("a round".to_owned(), |(next, most)| {
            format!("round {} of {most}", next.saturating_sub(1))
        });
        let told = self.remote.get(&format!("/v1/runs/{}/explain", escaped(&self.run))).await?;
        let mut steps = told["steps"].as_array().into_iter().flatten();
        let wait = steps.find(|row| row["id"] == step && row["waits_for"].as_str().is_some_and(is_delay));
        let left = wait
            .and_then(|row| time_in(row, "until"))
            .map(|until| until - jiff::Timestamp::now().as_millisecond());
        let next = left.filter(|left| *left > 0).map(|left| format!("; the next one in {}", span(left)));
        Ok(format!("{round} done{}", next.unwrap_or_default()))
    }

    /// Describes the next attempt at a step: its number, and the delay before it.
    pub(super) async fn next_attempt(&self, step: &str, attempt: u32) -> Result<String, Failure> {
        let told = self.remote.get(&format!("/v1/runs/{}/explain", escaped(&self.run))).await?;
        let steps = told["steps"].as_array().into_iter().flatten();
        let row = steps.into_iter().find(|row| row["id"] == step).cloned().unwrap_or_default();
        // The reason names the attempt as `attempt 2 of 3`. By now it may have begun.
        let named =
            row["waits_for"].as_str().and_then(|text| text.strip_prefix("its backoff before attempt "));
        let of =
            named.and_then(|text| text.split(';').next()).filter(|of| of.starts_with(&attempt.to_string()));
        let number = of.map_or_else(|| attempt.to_string(), plain);
        let left = time_in(&row, "until").map(|until| until - jiff::Timestamp::now().as_millisecond());
        let wait = left.filter(|left| of.is_some() && *left > 0).map(|left| format!(" in {}", span(left)));
        Ok(format!("retry {number}{}", wait.unwrap_or_default()))
    }
}

/// Whether a step waits for the delay before its next round.
fn is_delay(waits_for: &str) -> bool {
    waits_for.starts_with("the delay before round")
}
