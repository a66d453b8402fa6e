//! The live view of a server's run, and `sprag watch --server`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use sprag_app::{FailedStep, RunStatus, Waiting, Word, why_ended};
use sprag_lifecycle::RunId;
use sprag_pipeline::Input;
use tokio::signal::unix::{SignalKind, signal};

use super::events::Journal;
use super::logs::RemoteTails;
use super::stream::{Following, News};
use super::{AtRemote, LOOK, escaped, outcome, word};
use crate::commands::ask::{Reply, TypedLines};
use crate::commands::run::{print_failures, print_next};
use crate::exit::{Exit, Failure};
use crate::live::TICK;
use crate::patience::Patience;
use crate::progress_line::ProgressLine;
use crate::show::{Style, counted, end_line, hanging, line, plain, span};
use crate::tails::LineOptions;

/// The number of redraws after which the command looks for itself.
const MOST_TICKS: u32 = (LOOK.as_millis() / TICK.as_millis()) as u32;

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
            started: BTreeSet::new(),
            patience: Patience::default(),
            waits: Vec::new(),
            detail,
            progress: ProgressLine::new(!self.context.json),
        };
        let mut ticks = tokio::time::interval(TICK);
        let mut following = Following::new(&self.client);
        following.journal(Some(run), Some(after));
        let mut typed = None;
        loop {
            view.detail = self.detail(run).await?;
            view.tell_children();
            if let Some(exit) = outcome(&word(&view.detail, "status")) {
                view.catch_up().await?;
                view.progress.clear();
                self.tell_outcome(&view.detail).await?;
                return Ok(exit);
            }
            let asks = view.detail["waiting_for"] == "person";
            let questions = if asks { self.questions_alone(run).await? } else { Vec::new() };
            if let Some(question) = questions.first() {
                view.catch_up().await?;
                view.progress.clear();
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
            for drawn in 0.. {
                let news = tokio::select! {
                    news = following.next(LOOK) => news?,
                    _ = ticks.tick(), if view.progress.is_drawn() => {
                        view.draw();
                        if drawn < MOST_TICKS { continue } else { Vec::new() }
                    }
                    _ = interrupt.recv() => return Ok(self.left(run, &mut view.progress)),
                    _ = terminate.recv() => return Ok(self.left(run, &mut view.progress)),
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
        eprintln!("{} {}", style.bold("?"), asked(gate));
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
                let is_last = choices.len() > 1 && choices.last() == Some(&choice);
                let rejects = is_last && gate["leads_to"].get(&choice).is_none();
                let sign = if rejects { style.red("✗") } else { style.green("✓") };
                eprintln!("{sign} {step} {}", style.dim(&format!("answered {choice:?}")));
                Ok(true)
            }
        }
    }

    fn left(&self, run: &str, progress: &mut ProgressLine) -> Exit {
        if !self.context.json {
            // The terminal has written `^C`, which goes with the line.
            if !progress.clear() {
                end_line();
            }
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
            if let Some(reason) = detail["reason"].as_str().filter(|_| status == "cancelled") {
                told["reason"] = reason.into();
            }
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
        let why = detail["reason"].as_str().filter(|why| status == "cancelled" && !why.is_empty());
        let why = why.map(|why| format!(": {}", plain(why))).unwrap_or_default();
        eprintln!("{}{why}", format!("{} {}", style.status(&status, 0), style.dim(&took)).trim_end());
        let mut failures: Vec<FailedStep> = Vec::new();
        if status == "failed" {
            let told = self.get(&format!("/v1/runs/{}/explain", escaped(&run))).await?;
            failures = serde_json::from_value(told["failed"].clone()).unwrap_or_default();
            print_failures(&run, &failures);
        }
        print_next(&run, RunStatus::parse(&status).unwrap_or(RunStatus::Running), &failures, &self.at());
        Ok(())
    }

    /// Prints the questions that a run waits for.
    pub(super) async fn tell_questions(&self, run: &str) -> Result<Exit, Failure> {
        let gates = self.questions_of(run).await?;
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
            let step = word(gate, "step");
            eprintln!("{} {}", style.bold("?"), asked(gate));
            let at = format!("{run} {step} --server {server}");
            eprintln!("{} sprag approve {at} · sprag reject {at}", style.dim("next:"));
        }
        if gates.is_empty() {
            eprintln!("{} sprag questions --server {server}", style.dim("next:"));
        }
        Ok(Exit::WaitsForPerson)
    }
}

/// Returns the text of a question and its choices.
fn asked(gate: &Value) -> String {
    let choices: Vec<&str> =
        gate["choices"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let (step, ask) = (word(gate, "step"), gate["ask"].as_str().unwrap_or_default());
    hanging(&format!("{step} waits for an answer: {ask} [{}]", choices.join(", ")), 2)
}

/// Returns a time in milliseconds since 1970.
pub(super) fn time_of(value: &Value) -> Option<i64> {
    let time: jiff::Timestamp = value.as_str()?.parse().ok()?;
    Some(time.as_millisecond())
}

/// The live view of one run.
pub(super) struct LiveView<'r, 'c> {
    pub(super) remote: &'r AtRemote<'c>,
    pub(super) run: String,
    pub(super) journal: Journal,
    pub(super) tails: RemoteTails,
    /// The attempts that are being executed, by step, with their start times in milliseconds.
    pub(super) running: BTreeMap<String, (u32, i64)>,
    /// The steps that have started since the last look: each may have a child run, which is not told yet.
    pub(super) started: BTreeSet<String>,
    /// The time of the next look at what the run waits for.
    pub(super) patience: Patience,
    /// What it waits for, as far as the last look has shown.
    pub(super) waits: Vec<Waiting>,
    /// The run with its steps, as of the last look.
    pub(super) detail: Value,
    pub(super) progress: ProgressLine,
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
                News::Line { attempt, offset, line } => {
                    self.progress.clear();
                    self.tails.take(attempt, offset, line);
                }
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
        // A wait may have ended with it.
        self.patience.reset();
        self.waits.clear();
        match (entry["entity"].as_str(), entry["event"].as_str(), entry["to"].as_str()) {
            (Some("step"), Some("step.started"), _) => {
                self.started.insert(step);
            }
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
                self.progress.clear();
                if self.started.contains(&step) {
                    self.detail = self.remote.detail(&self.run).await?;
                    self.tell_children();
                }
                if let Some((attempt, _)) = began {
                    self.tails.print(self.remote, (step.clone(), attempt), true).await?;
                }
                self.tell(event, &step, began, at).await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Prints the child runs of the steps that have started, which have logs of their own.
    fn tell_children(&mut self) {
        let started = std::mem::take(&mut self.started);
        let steps = self.detail["steps"].as_array().into_iter().flatten();
        for row in steps.filter(|row| started.contains(&word(row, "id")) && row["child"].is_string()) {
            self.progress.clear();
            let (style, child) = (Style::stderr(), format!("is run {}", word(row, "child")));
            eprintln!("{} {} {}", style.sign("running"), word(row, "id"), style.dim(&child));
        }
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
                let next = match began {
                    Some((attempt, _)) => format!("; {}", self.next_attempt(step, attempt + 1).await?),
                    None => String::new(),
                };
                format!("{} {step} failed: {why} ({took}){next}", style.bold("↻"))
            }
            "step.repeated" => {
                let round = self.ended_round(step, began.map(|(attempt, _)| attempt)).await?;
                format!("{} {step} {round} ({took})", style.bold("↻"))
            }
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
        let Some(row) = executions.iter().rfind(of_step) else {
            return Ok("no reason was reported".to_owned());
        };
        Ok(why_attempt_failed(row))
    }
}

/// Returns a few words on why an attempt failed, from the view that programs see.
pub(super) fn why_attempt_failed(row: &Value) -> String {
    let run = word(row, "run").parse().unwrap_or(RunId::from_i64(0));
    let result = row["result"].is_object().then(|| row["result"].to_string());
    why_ended(run, &word(row, "status"), result.as_deref())
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
