//! The live view of a server's run, and `sprag watch --server`.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::events::Journal;
use super::logs::RemoteTails;
use super::{AtRemote, escaped, next_look, only_asks, outcome, word};
use crate::commands::watch::{LiveRun, redraw};
use crate::exit::{Exit, Failure};
use crate::show::{Style, counted, hanging, line, plain, span};
use crate::tails::LineOptions;

/// The most runs that are shown at once.
const MOST: usize = 200;

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
        };
        loop {
            // The status is read first, so that all entries up to it are shown.
            let detail = self.detail(run).await?;
            view.update().await?;
            if let Some(exit) = outcome(&word(&detail, "status")) {
                self.tell_outcome(&detail).await?;
                return Ok(exit);
            }
            if only_asks(&detail) {
                return self.tell_questions(run).await;
            }
            tokio::select! {
                () = next_look() => {}
                _ = interrupt.recv() => return Ok(self.left(run)),
                _ = terminate.recv() => return Ok(self.left(run)),
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
            eprintln!("{} sprag status {run} {at}", style.dim("next:"));
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
            eprintln!("{} sprag approve {run} {step} --server {server}", style.dim("next:"));
        }
        if gates.is_empty() {
            eprintln!("{} sprag questions --server {server}", style.dim("next:"));
        }
        Ok(Exit::WaitsForPerson)
    }

    /// `sprag watch`: shows all live runs until Ctrl-C.
    pub(super) async fn watch_all(&self) -> Result<Exit, Failure> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let in_place = !self.context.json && std::io::stdout().is_terminal();
        let mut drawn = 0;
        let mut shown: BTreeMap<String, String> = BTreeMap::new();
        loop {
            let live = self.live_runs().await?;
            if in_place {
                drawn = redraw(self.context.style, &live, drawn, jiff::Timestamp::now().as_millisecond());
            } else {
                self.changes(&live, &mut shown).await?;
            }
            tokio::select! {
                () = next_look() => {}
                _ = interrupt.recv() => return Ok(Exit::Ok),
                _ = terminate.recv() => return Ok(Exit::Ok),
            }
        }
    }

    async fn live_runs(&self) -> Result<Vec<LiveRun>, Failure> {
        let path = format!("/v1/runs?limit={MOST}&status=queued,running,failing,cancelling");
        let listed = self.get(&path).await?;
        let mut live = Vec::new();
        for view in listed["runs"].as_array().into_iter().flatten() {
            let told = self.get(&format!("/v1/runs/{}/steps", escaped(&word(view, "id")))).await?;
            let steps = told["steps"].as_array().into_iter().flatten();
            let planned: Vec<&Value> = steps.filter(|step| step["item_of"].is_null()).collect();
            let is_settled = |step: &&&Value| {
                ["done", "failed", "skipped", "cancelled"].iter().any(|status| step["status"] == *status)
            };
            let since = time_of(&view["started_at"]).or_else(|| time_of(&view["created_at"]));
            live.push(LiveRun {
                view: view.clone(),
                settled: planned.iter().filter(is_settled).count(),
                total: planned.len(),
                since_ms: since.unwrap_or_default(),
            });
        }
        Ok(live)
    }

    /// Prints a line for each run that has changed since the last look, and for each that has ended.
    async fn changes(&self, live: &[LiveRun], shown: &mut BTreeMap<String, String>) -> Result<(), Failure> {
        for run in live {
            let text = run.text(self.context);
            if shown.get(&run.id()) != Some(&text) {
                line(&text);
                shown.insert(run.id(), text);
            }
        }
        let ended: Vec<String> =
            shown.keys().filter(|id| live.iter().all(|run| run.id() != **id)).cloned().collect();
        for id in ended {
            shown.remove(&id);
            let Ok(detail) = self.detail(&id).await else { continue };
            line(&LiveRun::ended_text(self.context, &detail));
        }
        Ok(())
    }
}

/// Returns a time in milliseconds since 1970.
fn time_of(value: &Value) -> Option<i64> {
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
}

impl LiveView<'_, '_> {
    /// Shows the entries and the lines of logs that are new.
    async fn update(&mut self) -> Result<(), Failure> {
        loop {
            let entries = self.journal.next(self.remote).await?;
            if entries.is_empty() {
                break;
            }
            for entry in &entries {
                self.show(entry).await?;
            }
        }
        if !self.remote.context.json {
            for (step, (attempt, _)) in self.running.clone() {
                self.tails.print(self.remote, (step, attempt), false).await?;
            }
        }
        Ok(())
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
                    | "step.retried"),
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
                format!("{} {step} failed: {why} {took}; it is tried again", style.bold("↻"))
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
        let result = executions.iter().rfind(of_step).map(|row| row["result"].clone()).unwrap_or_default();
        Ok(match (result["message"].as_str(), result["exit_code"].as_i64()) {
            (Some(message), _) => plain(message),
            (None, Some(code)) => format!("exit code {code}"),
            (None, None) => "no reason was reported".to_owned(),
        })
    }
}
