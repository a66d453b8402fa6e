//! The live view of a server's run, and `sprag watch --server`.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sprag_pipeline::Input;
use tokio::signal::unix::{SignalKind, signal};

use super::events::Journal;
use super::logs::RemoteTails;
use super::stream::{Following, News};
use super::{AtRemote, LOOK, escaped, outcome, word};
use crate::commands::ask::{Reply, TypedLines};
use crate::exit::{Exit, Failure};
use crate::patience::Patience;
use crate::show::{Style, counted, hanging, line, local, plain, span, time_in};
use crate::tails::LineOptions;

/// The most waits that are printed.
const MOST_WAITS: usize = 5;

impl AtRemote<'_> {
    /// `sprag watch RUN`: shows the run until it has ended.
    pub(super) async fn watch(&self, run: &str) -> Result<Exit, Failure> {
        let run = self.run(Some(run)).await?;
        self.follow(&run, 0).await
    }

    /// Shows a run from after an entry of the journal until it has ended or asks something, and prints its outcome.
    pub(super) async fn follow(&self, run: &str, after: u64) -> Result<Exit, Failure> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let detail = self.detail(run).await?;
        let style = Style::stderr();
        let steps = detail["steps"].as_array().into_iter().flatten();
        let planned = steps.clone().filter(|step| step["item_of"].is_null()).count();
        if !self.context.json {
            let (pipeline, id) = (word(&detail, "pipeline"), style.dim(run));
            eprintln!("{} {id} · {}", style.bold(&pipeline), counted(planned, "step"));
        }
        let options = LineOptions { named: planned > 1, ..LineOptions::default() };
        let mut view = LiveView {
            remote: self,
            run: run.to_owned(),
            journal: Journal { run: Some(run.to_owned()), after },
            tails: RemoteTails::new(run, &detail, options),
            running: BTreeMap::new(),
            patience: Patience::default(),
            said: Vec::new(),
        };
        let mut following = Following::new(&self.client);
        following.journal(Some(run), Some(after));
        let mut typed = None;
        loop {
            let detail = self.detail(run).await?;
            if let Some(exit) = outcome(&word(&detail, "status")) {
                view.catch_up().await?;
                self.tell_outcome(&detail).await?;
                return Ok(exit);
            }
            let asks = detail["waiting_for"] == "person";
            let questions = if asks { self.questions_alone(run).await? } else { Vec::new() };
            if let Some(question) = questions.first() {
                view.catch_up().await?;
                if self.context.interactive {
                    let typed = typed.get_or_insert_with(TypedLines::open);
                    if self.ask_here(question, typed, &mut following).await? {
                        continue;
                    }
                }
                return self.tell_questions(run).await;
            }
            view.say_waits().await?;
            view.follow_logs(&mut following);
            // Lines of logs change nothing about the run's status.
            loop {
                let news = tokio::select! {
                    news = following.next(LOOK) => news?,
                    _ = interrupt.recv() => return Ok(self.left(run)),
                    _ = terminate.recv() => return Ok(self.left(run)),
                };
                let look = news.is_empty() || news.iter().any(|one| matches!(one, News::Entry(_)));
                view.take(news).await?;
                if look {
                    break;
                }
            }
        }
    }

    /// Asks a question on the terminal, and sends the answer. Returns whether the run continues.
    async fn ask_here(
        &self,
        gate: &Value,
        typed: &mut TypedLines,
        following: &mut Following,
    ) -> Result<bool, Failure> {
        let (style, id, step) = (Style::stderr(), word(gate, "id"), word(gate, "step"));
        let choices = gate["choices"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let choices: Vec<String> = choices.map(str::to_owned).collect();
        let ask = gate["ask"].as_str().unwrap_or_default();
        eprintln!("{} {}", style.bold("?"), hanging(&format!("{step} waits for an answer: {ask}"), 2));
        let is_open = async || {
            following.next(LOOK).await?;
            Ok(self.get(&format!("/v1/gates/{}", escaped(&id))).await?["status"] == "open")
        };
        let fields: Vec<Input> = serde_json::from_value(gate["fields"].clone()).unwrap_or_default();
        match typed.answer(&step, &choices, &fields, is_open).await? {
            Reply::Left => Ok(false),
            Reply::Closed => Ok(true),
            Reply::Answer { choice, comment, fields } => {
                let fields = field_values(gate, fields);
                let body = json!({ "choice": choice, "comment": comment, "fields": fields });
                self.post(&format!("/v1/gates/{}/answer", escaped(&id)), body).await?;
                eprintln!("{} {step} {}", style.green("✓"), style.dim(&format!("answered {choice:?}")));
                Ok(true)
            }
        }
    }

    fn left(&self, run: &str) -> Exit {
        if !self.context.json {
            let server = self.client.address();
            eprintln!("stopped watching; the run continues: sprag watch {run} --server {server}");
        }
        Exit::Ok
    }

    /// Prints the outcome of a run that has ended, and every failure again.
    async fn tell_outcome(&self, detail: &Value) -> Result<(), Failure> {
        let (run, status) = (word(detail, "id"), word(detail, "status"));
        if self.context.json {
            let mut told = json!({ "type": "result", "run": run, "status": status });
            if let Some(outputs) = detail.get("outputs") {
                told["outputs"] = outputs.clone();
            }
            line(&told.to_string());
            return Ok(());
        }
        let style = Style::stderr();
        let took = match (time_of(&detail["started_at"]), time_of(&detail["ended_at"])) {
            (Some(started), Some(ended)) => format!("in {}", span(ended - started)),
            _ => String::new(),
        };
        eprintln!("{}", format!("{} {}", style.status(&status, 0), style.dim(&took)).trim_end());
        let at = format!("--server {}", self.client.address());
        if status == "failed" {
            let told = self.get(&format!("/v1/runs/{}/explain", escaped(&run))).await?;
            for failure in told["failed"].as_array().into_iter().flatten() {
                let text = format!("{} failed: {}", word(failure, "step"), word(failure, "why"));
                eprintln!("{} {}", style.sign("failed"), style.red(&text));
                for text in failure["last_lines"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    eprintln!("    {} {}", style.dim("│"), plain(text));
                }
            }
            eprintln!("{} sprag logs {run} --failed {at} · sprag retry {run} {at}", style.dim("next:"));
        } else {
            eprintln!("{} sprag status {run} {at} · sprag logs {run} {at}", style.dim("next:"));
        }
        Ok(())
    }

    /// Prints the questions that a run waits for.
    pub(super) async fn tell_questions(&self, run: &str) -> Result<Exit, Failure> {
        let told = self.get(&format!("/v1/gates?kind=question&run={}", escaped(run))).await?;
        let gates = told["gates"].as_array().cloned().unwrap_or_default();
        if self.context.json {
            let pick = |gate: &Value| json!({ "run": gate["run"], "step": gate["step"], "ask": gate["ask"], "choices": gate["choices"] });
            let asked: Vec<Value> = gates.iter().map(pick).collect();
            line(
                &json!({ "type": "result", "run": run, "status": "running", "waits_for": asked }).to_string(),
            );
            return Ok(Exit::WaitsForPerson);
        }
        let (style, server) = (Style::stderr(), self.client.address());
        for gate in &gates {
            let (run, step) = (word(gate, "run"), word(gate, "step"));
            let choices: Vec<&str> =
                gate["choices"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let ask = gate["ask"].as_str().unwrap_or_default();
            let asked = format!("{step} waits for an answer: {ask} [{}]", choices.join(", "));
            eprintln!("{} {}", style.bold("?"), hanging(&asked, 2));
            let at = format!("{run} {step} --server {server}");
            eprintln!("{} sprag approve {at} · sprag reject {at}", style.dim("next:"));
        }
        if gates.is_empty() {
            eprintln!("{} sprag questions --server {server}", style.dim("next:"));
        }
        Ok(Exit::WaitsForPerson)
    }
}

/// Returns a time in milliseconds since 1970.
pub(super) fn time_of(value: &Value) -> Option<i64> {
    let time: jiff::Timestamp = value.as_str()?.parse().ok()?;
    Some(time.as_millisecond())
}

/// The live view of one run.
struct LiveView<'r, 'c> {
    remote: &'r AtRemote<'c>,
    run: String,
    journal: Journal,
    tails: RemoteTails,
    /// The attempts that are being executed, by step, with their start times in milliseconds.
    running: BTreeMap<String, (u32, i64)>,
    /// The time of the next look at what the run waits for.
    patience: Patience,
    /// The waits that were printed last.
    said: Vec<String>,
}

impl LiveView<'_, '_> {
    /// Shows what came since the last look.
    async fn take(&mut self, news: Vec<News>) -> Result<(), Failure> {
        for one in news {
            match one {
                News::Entry(entry) => {
                    let seq = entry["seq"].as_u64().unwrap_or_default();
                    if seq > self.journal.after {
                        self.journal.after = seq;
                        self.show(&entry).await?;
                    }
                }
                News::Line { attempt, offset, line } => self.tails.take(attempt, offset, line),
                News::LogEnded(_) | News::Lost(_) => {}
            }
        }
        Ok(())
    }

    /// Shows all entries that the journal has.
    async fn catch_up(&mut self) -> Result<(), Failure> {
        loop {
            let entries = self.journal.next(self.remote).await?;
            if entries.is_empty() {
                return Ok(());
            }
            for entry in &entries {
                self.show(entry).await?;
            }
        }
    }

    /// Prints what the run waits for, if none of its steps is being executed: after a moment, and at each change.
    async fn say_waits(&mut self) -> Result<(), Failure> {
        if self.remote.context.json || !self.running.is_empty() {
            self.patience.reset();
            return Ok(());
        }
        if !self.patience.is_due() {
            return Ok(());
        }
        let told = self.remote.get(&format!("/v1/runs/{}/explain", escaped(&self.run))).await?;
        let of_run = told["waits_for"].as_str().map(|what| format!("the run: {what}"));
        let steps = told["steps"].as_array().into_iter().flatten();
        let of_steps = steps.map(|step| {
            let until = time_in(step, "until").map(|until| format!(" (until {})", local(until)));
            let what = step["waits_for"].as_str().unwrap_or_default();
            format!("{}: {what}{}", word(step, "id"), until.unwrap_or_default())
        });
        let waits: Vec<String> = of_run.into_iter().chain(of_steps).take(MOST_WAITS).collect();
        if waits != self.said {
            for text in &waits {
                eprintln!("{} {}", Style::stderr().dim("waiting:"), hanging(&plain(text), 9));
            }
            self.said = waits;
        }
        Ok(())
    }

    /// Follows the logs of the steps that are being executed.
    fn follow_logs(&mut self, following: &mut Following) {
        if self.remote.context.json {
            return;
        }
        for (step, (attempt, _)) in &self.running {
            let id = (step.clone(), *attempt);
            let offset = self.tails.position(&id);
            following.log(&self.run, &id, offset);
        }
    }

    async fn show(&mut self, entry: &Value) -> Result<(), Failure> {
        if self.remote.context.json {
            line(&entry.to_string());
            return Ok(());
        }
        let step = word(entry, "step");
        let at = time_of(&entry["at"]).unwrap_or_default();
        match (entry["entity"].as_str(), entry["event"].as_str(), entry["to"].as_str()) {
            (Some("execution"), _, Some("running")) => {
                let id = word(entry, "id");
                let attempt = id.rsplit('/').next().and_then(|attempt| attempt.parse().ok()).unwrap_or(1);
                self.running.insert(step, (attempt, at));
            }
            (
                Some("step"),
                Some(
                    event @ ("step.succeeded" | "step.failed" | "step.cancelled" | "step.skipped"
                    | "step.retried" | "step.repeated"),
                ),
                _,
            ) => {
                let began = self.running.remove(&step);
                if let Some((attempt, _)) = began {
                    self.tails.print(self.remote, (step.clone(), attempt), true).await?;
                }
                self.tell(event, &step, began, at).await?;
            }
            _ => {}
        }
        Ok(())
    }

    async fn tell(&self, event: &str, step: &str, began: Option<(u32, i64)>, at: i64) -> Result<(), Failure> {
        let style = Style::stderr();
        let took = style.dim(&began.map(|(_, began)| span(at - began)).unwrap_or_default());
        let told = match event {
            "step.succeeded" => format!("{} {step} {took}", style.sign("done")),
            "step.failed" => {
                let why = self.why(step, began.map(|(attempt, _)| attempt)).await?;
                format!("{} {step} {} {took}", style.sign("failed"), style.red(&format!("failed: {why}")))
            }
            "step.retried" => {
                let why = self.why(step, began.map(|(attempt, _)| attempt)).await?;
                let next = began.map(|(attempt, _)| format!("; retry {}", attempt + 1)).unwrap_or_default();
                format!("{} {step} failed: {why} ({took}){next}", style.bold("↻"))
            }
            "step.repeated" => format!("{} {step} has ended a round {took}", style.bold("↻")),
            "step.cancelled" if began.is_none() => {
                format!("{} {step} {}", style.sign("not run"), style.dim("not run"))
            }
            "step.cancelled" => format!("{} {step} {}", style.sign("cancelled"), style.dim("cancelled")),
            _ => format!("{} {step} {}", style.sign("skipped"), style.dim("skipped")),
        };
        eprintln!("{}", told.trim_end());
        Ok(())
    }

    /// Returns why an attempt at a step failed, from its result.
    async fn why(&self, step: &str, attempt: Option<u32>) -> Result<String, Failure> {
        let executions = self.remote.executions(&self.run).await?;
        let of_step = |row: &&Value| {
            row["step"] == step && attempt.is_none_or(|attempt| row["attempt"] == json!(attempt))
        };
        let result = executions.iter().rfind(of_step).map(|row| row["result"].clone()).unwrap_or_default();
        Ok(match (result["message"].as_str(), result["exit_code"].as_i64()) {
            (Some(message), _) => plain(message),
            (None, Some(code)) => format!("exit code {code}"),
            (None, None) => "no reason was reported".to_owned(),
        })
    }
}

/// Returns the values of a question's fields by name. The server refuses a text that is not a value of its field.
pub(super) fn field_values(gate: &Value, texts: BTreeMap<String, String>) -> Value {
    let fields: Vec<Input> = serde_json::from_value(gate["fields"].clone()).unwrap_or_default();
    let value = |(name, text): (String, String)| {
        let kind = fields.iter().find(|field| field.name == name).map(|field| field.kind);
        (name, kind.and_then(|kind| kind.convert(&text)).unwrap_or(Value::String(text)))
    };
    Value::Object(texts.into_iter().map(value).collect())
}
