//! Starts runs on a server, continues and cancels them, and answers their questions.

use std::path::Path;

use serde_json::{Value, json};
use sprag_app::{StepStatus, Word};

use super::events::Journal;
use super::follow::field_values;
use super::{AtRemote, escaped, outcome, word};
use crate::args::{Answer, Command};
use crate::commands::gates::field_texts;
use crate::commands::steps::{RETRY_TEXT, skip_text};
use crate::commands::{drawn, inputs, pipelines};
use crate::exit::{Exit, Failure};
use crate::show::line;

impl AtRemote<'_> {
    /// Starts a run on the server, and shows it until its end unless it is detached.
    pub(super) async fn start(&self, command: &Command, file: &Path) -> Result<Exit, Failure> {
        let Command::Run {
            pairs, inputs: all, detach, idempotency_key, name, labels, priority, steps, ..
        } = command
        else {
            return Err(Failure::usage("name a pipeline file to start on the server"));
        };
        let file = pipelines::find(file)?;
        let loaded = sprag_pipeline::load_stream(&file).map_err(|problems| drawn(&problems))?;
        let files = loaded.pipeline.definition().files();
        let files =
            files.map_err(|why| Failure::usage(format!("{} cannot be sent: {why}", file.display())))?;
        let given = inputs::RawInputs { pairs, all: all.as_deref() };
        let (_, inputs) = inputs::prepare(&loaded.pipeline, &given, self.context.interactive)?;
        let labels = sprag_app::parse_labels(labels.iter().map(String::as_str))?;
        let yaml = with_name(loaded.pipeline.source(), &loaded.pipeline.name);
        let mut request =
            json!({ "yaml": yaml, "inputs": inputs, "priority": priority, "name": name, "labels": labels });
        if !files.is_empty() {
            request["files"] = json!(files);
        }
        let selection = steps.selection();
        if !selection.is_all() {
            request["only"] = json!(selection.only);
            request["from"] = json!(selection.from);
            request["skip"] = json!(selection.skip);
        }
        let answer = self.ask("POST", "/v1/runs", idempotency_key.as_deref(), Some(request)).await?;
        let told: Value = serde_json::from_slice(&answer).unwrap_or_default();
        self.shown(&told, "started", 0, *detach).await
    }

    /// Shows a run that was started or continued until its end, unless it is detached.
    pub(in crate::commands) async fn shown(
        &self,
        told: &Value,
        what: &str,
        after: u64,
        detach: bool,
    ) -> Result<Exit, Failure> {
        let run = word(told, "id");
        if detach && !self.context.json {
            // The id alone, as without a server.
            line(&run);
            return Ok(Exit::Ok);
        }
        if detach {
            return self.said(&json!({ "type": "result", "run": run, "status": told["status"] }), what);
        }
        self.follow(&run, after).await
    }

    /// Continues a run: `retry`, `resume` or `rewind`.
    pub(super) async fn go_back(
        &self,
        run: Option<&str>,
        verb: &str,
        body: Value,
        detach: bool,
    ) -> Result<Exit, Failure> {
        let run = self.run(run).await?;
        let detail = self.detail(&run).await?;
        let names_step = ["step", "to"].iter().any(|key| body[*key].is_string());
        if detail["status"] == "completed" && !names_step {
            return Err(Failure::ended(&run, "completed", &self.at()));
        }
        let mut journal = Journal { run: Some(run.clone()), after: 0 };
        while !journal.next(self).await?.is_empty() {}
        let told = self.post(&format!("/v1/runs/{}/{verb}", escaped(&run)), body).await?;
        self.shown(&told, "continues", journal.after, detach).await
    }

    /// Sends a request about a live run. If the server refuses it and the run has ended, the failure says so.
    async fn request(&self, run: &str, verb: &str, body: Value) -> Result<Value, Failure> {
        let refused = match self.post(&format!("/v1/runs/{}/{verb}", escaped(run)), body).await {
            Err(failure) if failure.exit == Exit::Error => failure,
            other => return other,
        };
        let status = word(&self.detail(run).await?, "status");
        let has_ended = outcome(&status).is_some();
        Err(if has_ended { Failure::ended(run, &status, &self.at()) } else { refused })
    }

    /// Skips a step of a live run, or starts its next try now.
    pub(super) async fn on_step(&self, run: Option<&str>, verb: &str, body: Value) -> Result<Exit, Failure> {
        let run = self.run(run).await?;
        let told = self.request(&run, verb, body.clone()).await?;
        let step = word(&body, "step");
        let steps = told["steps"].as_array().map_or(&[][..], Vec::as_slice);
        let status = steps.iter().find(|row| row["id"] == step).map(|row| word(row, "status"));
        let status = status.unwrap_or_default();
        let text = match StepStatus::parse(&status) {
            _ if verb == "retry" => RETRY_TEXT,
            Some(status) => skip_text(status),
            None => "will be skipped",
        };
        let said = json!({ "type": "step", "run": run, "step": step, "status": status });
        self.said(&said, &format!("step {step} {text}"))
    }

    /// Starts a run from a finished step of another.
    pub(super) async fn fork(
        &self,
        run: Option<&str>,
        from: &str,
        key: Option<&str>,
        detach: bool,
    ) -> Result<Exit, Failure> {
        let run = self.run(run).await?;
        let path = format!("/v1/runs/{}/fork", escaped(&run));
        let answer = self.ask("POST", &path, key, Some(json!({ "from": from }))).await?;
        let told: Value = serde_json::from_slice(&answer).unwrap_or_default();
        self.shown(&told, "started", 0, detach).await
    }

    pub(super) async fn answer(
        &self,
        run: &str,
        step: Option<&str>,
        answer: &Answer,
        approved: bool,
    ) -> Result<Exit, Failure> {
        let run = self.run(Some(run)).await?;
        let gates = self.questions_of(&run).await?;
        // A question of a child run may be named by its own step alone.
        let is_meant = |gate: &Value, step: &str| {
            let name = gate["step"].as_str().unwrap_or_default();
            name == step || name.rsplit('.').next() == Some(step)
        };
        let meant: Vec<&Value> =
            gates.iter().filter(|gate| step.is_none_or(|step| is_meant(gate, step))).collect();
        let gate = match meant.as_slice() {
            [one] => *one,
            [] => {
                let next = format!("list the questions: sprag questions --server {}", self.client.address());
                let of_step = step.map(|step| format!(" in step {step:?}")).unwrap_or_default();
                let failure = Failure::error(format!("run {run} asks nothing{of_step}")).next(next);
                return Err(Failure { exit: Exit::Nothing, ..failure });
            }
            [first, ..] => {
                let names: Vec<String> = meant.iter().map(|gate| word(gate, "step")).collect();
                let message = format!("run {run} asks several questions: {}", names.join(", "));
                let next = format!("name the step: sprag approve {run} {}{}", word(first, "step"), self.at());
                return Err(Failure::usage(message).next(next));
            }
        };
        let mut body = json!({ "approved": approved, "choice": answer.choice, "comment": answer.comment });
        body["fields"] = field_values(gate, field_texts(&answer.fields)?);
        self.post(&format!("/v1/gates/{}/answer", word(gate, "id")), body).await?;
        let told =
            json!({ "type": "answer", "run": gate["run"], "step": gate["step"], "approved": approved });
        self.said(&told, "answered")
    }

    pub(super) async fn signal(&self, run: &str, name: &str, payload: Option<&str>) -> Result<Exit, Failure> {
        let run = self.run(Some(run)).await?;
        let payload: Value = serde_json::from_str(payload.unwrap_or("{}")).map_err(|error| {
            Failure::usage(format!("--payload is not JSON: {error}")).next("write it like '{\"version\": 3}'")
        })?;
        let body = json!({ "name": name, "payload": payload });
        let told = self.request(&run, "signals", body).await?;
        let received_by = &told["received_by"];
        let said = match received_by.as_str() {
            Some(step) => format!("signal delivered to step {step}"),
            None => format!("kept: no step waits for {name:?} yet; the next one that does gets it"),
        };
        self.said(&json!({ "type": "signal", "run": run, "name": name, "received_by": received_by }), &said)
    }

    pub(super) async fn cancel(&self, run: &str) -> Result<Exit, Failure> {
        let run = self.run(Some(run)).await?;
        let cancelled = self.request(&run, "cancel", json!({})).await;
        let told = self.detail(&run).await?;
        let status = word(&told, "status");
        if let (false, Err(failure)) = (status.starts_with("cancel"), cancelled) {
            return Err(failure);
        }
        self.said(&json!({ "run": run, "status": status }), &status)
    }
}

/// Returns the text of a pipeline for the server, which does not see the name of the file.
fn with_name(yaml: &str, name: &str) -> String {
    // A file may have further pipelines after the first one.
    let mut first = yaml.lines().take_while(|line| !line.starts_with("---"));
    let has_name = yaml.starts_with("---") || first.any(|line| line.starts_with("name:"));
    if has_name { yaml.to_owned() } else { format!("name: {}\n{yaml}", json!(name)) }
}
