//! Commands that look at runs of a server, start them and answer their questions: `--server URL`.
//!
//! The server has the store; this process sends requests and prints the answers, as JSON as they are.

use std::time::Duration;

use serde_json::{Value, json};
use sprag_process::LogEntry;
use sprag_remote::{Address, Client};

use crate::args::{Answer, AtServer, Command, LogOptions};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::own_server::{self, Own};
use crate::show::{Style, hanging, line, plain, shown_status_word, table};

/// The time limit of one request.
const LIMIT: Duration = Duration::from_secs(30);
/// The pause between two looks at a run that is waited for.
const LOOK: Duration = Duration::from_millis(500);
/// The number of runs that are searched for one whose id starts or ends as the user wrote.
const SEARCHED: usize = 500;
/// The number of journal entries in one request.
const PAGE: usize = 1000;

/// Executes a command that names a server; none if it names none.
pub(crate) async fn at_server(context: &Context, command: &Command) -> Result<Option<Exit>, Failure> {
    let at = match command {
        // A dry run starts nothing, so it needs no server.
        Command::Run { dry: true, .. } => return Ok(None),
        Command::Run { at, .. }
        | Command::Ls { at, .. }
        | Command::Status { at, .. }
        | Command::Logs { at, .. }
        | Command::Wait { at, .. }
        | Command::Cancel { at, .. }
        | Command::Approve { at, .. }
        | Command::Reject { at, .. }
        | Command::Signal { at, .. }
        | Command::Events { at, .. }
        | Command::Explain { at, .. }
        | Command::Questions { at } => at,
        _ => return Ok(None),
    };
    let Some(remote) = AtRemote::open(context, at)? else { return Ok(None) };
    let done = match command {
        Command::Run {
            file: Some(file),
            pairs,
            inputs,
            detach,
            idempotency_key,
            name,
            labels,
            priority,
            ..
        } => {
            let file = super::pipelines::find(file)?;
            let loaded = sprag_pipeline::load_stream(&file).map_err(|problems| super::drawn(&problems))?;
            let given = super::inputs::RawInputs { pairs: pairs.as_slice(), all: inputs.as_deref() };
            let (_, inputs) = super::inputs::prepare(&loaded.pipeline, &given, context.interactive)?;
            let labels = sprag_app::parse_labels(labels.iter().map(String::as_str))?;
            let request = json!({
                "yaml": text_of(&file, &loaded.pipeline.name)?, "inputs": inputs, "priority": priority, "name": name,
                "labels": labels,
            });
            remote.start(request, idempotency_key.as_deref(), *detach).await
        }
        Command::Ls { status, waiting, labels, limit, .. } => {
            remote.ls(status, waiting.as_deref(), labels, *limit).await
        }
        Command::Status { run, .. } => remote.status(run.as_deref()).await,
        Command::Logs { run, step, options, .. } => {
            remote.logs(run.as_deref(), step.as_deref(), options).await
        }
        Command::Wait { run, timeout, .. } => {
            let limit =
                timeout.as_deref().map(|text| super::wait::parse_time("--timeout", text)).transpose()?;
            remote.wait(run.as_deref(), limit).await
        }
        Command::Cancel { run, .. } => remote.cancel(run).await,
        Command::Approve { run, step, answer, .. } => remote.answer(run, step.as_deref(), answer, true).await,
        Command::Reject { run, step, answer, .. } => remote.answer(run, step.as_deref(), answer, false).await,
        Command::Signal { run, name, payload, .. } => remote.signal(run, name, payload.as_deref()).await,
        Command::Events { run, since, .. } => remote.events(run.as_deref(), *since).await,
        Command::Explain { run, .. } => remote.explain(run.as_deref()).await,
        Command::Questions { .. } => remote.questions().await,
        _ => Err(Failure::usage("name a pipeline file to start on the server")),
    };
    done.map(Some)
}

/// A server, and the way to print its answers.
pub(crate) struct AtRemote<'c> {
    context: &'c Context,
    client: Client,
}

impl<'c> AtRemote<'c> {
    /// Connects to the server that the command line names; none if it names none.
    pub(crate) fn open(context: &'c Context, at: &AtServer) -> Result<Option<Self>, Failure> {
        let Some(server) = at.server.as_deref() else { return Ok(None) };
        let address = Address::parse(server).map_err(|error| Failure::usage(error.to_string()))?;
        let token = match at.token.clone().filter(|token| !token.trim().is_empty()) {
            Some(token) => Some(token),
            None => match own_server::local_token(&context.data, &address.to_string())? {
                Own::Token(token) => Some(token),
                Own::Elsewhere | Own::NotThere => None,
            },
        };
        let client =
            Client::new(address, token.as_deref()).map_err(|error| Failure::usage(error.to_string()))?;
        Ok(Some(AtRemote { context, client }))
    }

    async fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Result<Vec<u8>, Failure> {
        self.ask_with(method, path, None, body).await
    }

    async fn ask_with(
        &self,
        method: &str,
        path: &str,
        key: Option<&str>,
        body: Option<Value>,
    ) -> Result<Vec<u8>, Failure> {
        let answer = self.client.ask_with(method, path, key, body, LIMIT).await;
        let (status, bytes) = answer.map_err(|error| Failure::error(error.to_string()))?;
        if (200..300).contains(&status) {
            return Ok(bytes);
        }
        let told: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let message =
            told["message"].as_str().map_or_else(|| format!("the server answers {status}"), str::to_owned);
        let failure = match status {
            400 | 404 | 422 => Failure::usage(message),
            _ => Failure::error(message),
        };
        let next = match status {
            401 | 403 => Some("show a token of the server with --token or SPRAG_TOKEN".to_owned()),
            _ => told["next"].as_str().map(str::to_owned),
        };
        Err(Failure { next, ..failure })
    }

    async fn get(&self, path: &str) -> Result<Value, Failure> {
        let bytes = self.ask("GET", path, None).await?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Failure::error(format!("the answer is not JSON: {error}")))
    }

    async fn post(&self, path: &str, body: Value) -> Result<Value, Failure> {
        let bytes = self.ask("POST", path, Some(body)).await?;
        Ok(serde_json::from_slice(&bytes).unwrap_or_default())
    }

    /// Returns the id of the run that the user means: by its id, the start or the end of it, or the newest.
    async fn run(&self, wanted: Option<&str>) -> Result<String, Failure> {
        let listed =
            self.get(&format!("/v1/runs?limit={}", if wanted.is_some() { SEARCHED } else { 1 })).await?;
        let ids = listed["runs"].as_array().into_iter().flatten().filter_map(|run| run["id"].as_str());
        let Some(wanted) = wanted else {
            let newest = ids.map(str::to_owned).next();
            return newest
                .ok_or_else(|| Failure::error("there are no runs yet").next("start one: sprag run FILE"));
        };
        let part = wanted.to_ascii_lowercase();
        let meant: Vec<&str> = ids.filter(|id| id.starts_with(&part) || id.ends_with(&part)).collect();
        match meant.as_slice() {
            [one] => Ok((*one).to_owned()),
            // An older run may be named by its whole id.
            [] => Ok(wanted.to_owned()),
            several => Err(Failure::usage(format!(
                "several runs start or end with {wanted:?}: {}",
                several.join(", ")
            ))
            .next("write more of the id")),
        }
    }

    pub(crate) async fn ls(
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
        let listed = self.get(&format!("/v1/runs?limit={}{status}{label}", limit.clamp(1, SEARCHED))).await?;
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
            .map(|run| vec![word(run, "id"), word(run, "pipeline"), status_of(run), word(run, "created_at")])
            .collect();
        table(self.context.style, &["RUN", "PIPELINE", "STATUS", "CREATED"], &rows);
        Ok(Exit::Ok)
    }

    pub(crate) async fn status(&self, run: Option<&str>) -> Result<Exit, Failure> {
        let told = self.get(&format!("/v1/runs/{}", escaped(&self.run(run).await?))).await?;
        if self.context.json {
            line(&told.to_string());
            return Ok(Exit::Ok);
        }
        let style = self.context.style;
        line(&format!(
            "{}  {}  {}",
            style.bold(&word(&told, "id")),
            word(&told, "pipeline"),
            style.status(&status_of(&told), 0)
        ));
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

    pub(crate) async fn explain(&self, run: Option<&str>) -> Result<Exit, Failure> {
        let told = self.get(&format!("/v1/runs/{}/explain", escaped(&self.run(run).await?))).await?;
        if self.context.json {
            line(&told.to_string());
            return Ok(Exit::Ok);
        }
        let style = self.context.style;
        line(&format!(
            "{}  {}  {}",
            style.bold(&word(&told, "id")),
            word(&told, "pipeline"),
            style.status(&status_of(&told), 0)
        ));
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

    pub(crate) async fn events(&self, run: Option<&str>, since: u64) -> Result<Exit, Failure> {
        let run = match run {
            Some(run) => format!("&run={}", escaped(&self.run(Some(run)).await?)),
            None => String::new(),
        };
        let mut after = since;
        loop {
            let part = self.get(&format!("/v1/journal?limit={PAGE}&after={after}{run}")).await?;
            let entries = part["entries"].as_array().cloned().unwrap_or_default();
            for entry in &entries {
                if self.context.json {
                    line(&entry.to_string());
                } else {
                    let from = entry["from"].as_str().unwrap_or("·");
                    line(&format!(
                        "{:>6} {}  {:<21} {from} → {}  {}",
                        entry["seq"],
                        word(entry, "at"),
                        word(entry, "event"),
                        word(entry, "to"),
                        word(entry, "id")
                    ));
                }
            }
            match entries.last().and_then(|entry| entry["seq"].as_u64()) {
                Some(last) if entries.len() == PAGE => after = last,
                _ => return Ok(Exit::Ok),
            }
        }
    }

    pub(crate) async fn logs(
        &self,
        run: Option<&str>,
        step: Option<&str>,
        options: &LogOptions,
    ) -> Result<Exit, Failure> {
        let run = self.run(run).await?;
        let told = self.get(&format!("/v1/runs/{}", escaped(&run))).await?;
        let steps = told["steps"].as_array().into_iter().flatten();
        let meant = steps.filter(|one| step.is_none_or(|step| one["id"] == step || one["item_of"] == step));
        let meant = meant.filter(|one| !options.failed || one["status"] == "failed");
        for one in meant {
            let name = word(one, "id");
            let attempt = options.attempt.map(|attempt| format!("?attempt={attempt}")).unwrap_or_default();
            let path = format!("/v1/runs/{}/steps/{}/log{attempt}", escaped(&run), escaped(&name));
            // A step that has printed nothing has no log.
            let Ok(bytes) = self.ask("GET", &path, None).await else { continue };
            let text = String::from_utf8_lossy(&bytes);
            let entries: Vec<LogEntry> = text.lines().filter_map(LogEntry::parse).collect();
            let skipped = options.tail.map_or(0, |most| entries.len().saturating_sub(most));
            for entry in &entries[skipped..] {
                self.log_line(&run, &name, entry, options, step.is_none());
            }
        }
        Ok(Exit::Ok)
    }

    fn log_line(&self, run: &str, step: &str, entry: &LogEntry, options: &LogOptions, named: bool) {
        if self.context.json {
            line(&json!({ "run": run, "step": step, "at": entry.at, "stream": entry.stream, "text": entry.text }).to_string());
            return;
        }
        let style = self.context.style;
        let time = if options.timestamps { format!("{} ", entry.at) } else { String::new() };
        let name = if named { format!("{step} │ ") } else { String::new() };
        let text = sprag_app::text::command_line(&entry.text, style.coloured());
        line(&format!("{}{text}", style.dim(&format!("{time}{name}"))));
    }

    pub(crate) async fn questions(&self) -> Result<Exit, Failure> {
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

    pub(crate) async fn answer(
        &self,
        run: &str,
        step: Option<&str>,
        answer: &Answer,
        approved: bool,
    ) -> Result<Exit, Failure> {
        let run = self.run(Some(run)).await?;
        let told = self.get(&format!("/v1/gates?kind=question&run={}", escaped(&run))).await?;
        let gates = told["gates"].as_array().cloned().unwrap_or_default();
        let meant: Vec<&Value> =
            gates.iter().filter(|gate| step.is_none_or(|step| gate["step"] == step)).collect();
        let gate = match meant.as_slice() {
            [one] => *one,
            [] => {
                return Err(Failure {
                    exit: Exit::Nothing,
                    ..Failure::error(format!("run {run} asks nothing"))
                });
            }
            _ => {
                return Err(Failure::usage(format!("run {run} asks several questions")).next("name the step"));
            }
        };
        let body = json!({ "approved": approved, "choice": answer.choice, "comment": answer.comment });
        self.post(&format!("/v1/gates/{}/answer", word(gate, "id")), body).await?;
        self.said(
            &json!({ "type": "answer", "run": run, "step": gate["step"], "approved": approved }),
            "answered",
        )
    }

    pub(crate) async fn signal(&self, run: &str, name: &str, payload: Option<&str>) -> Result<Exit, Failure> {
        let run = self.run(Some(run)).await?;
        let payload: Value = serde_json::from_str(payload.unwrap_or("{}"))
            .map_err(|error| Failure::usage(format!("--payload is not JSON: {error}")))?;
        let body = json!({ "name": name, "payload": payload });
        let told = self.post(&format!("/v1/runs/{}/signals", escaped(&run)), body).await?;
        self.said(
            &json!({ "type": "signal", "run": run, "name": name, "received_by": told["received_by"] }),
            "sent",
        )
    }

    pub(crate) async fn cancel(&self, run: &str) -> Result<Exit, Failure> {
        let run = self.run(Some(run)).await?;
        let path = format!("/v1/runs/{}", escaped(&run));
        let cancelled = self.post(&format!("{path}/cancel"), json!({})).await;
        let told = self.get(&path).await?;
        let status = word(&told, "status");
        if !status.starts_with("cancel") {
            cancelled?;
        }
        self.said(&json!({ "run": run, "status": status }), &status)
    }

    /// Waits for the end of a run.
    pub(crate) async fn wait(&self, run: Option<&str>, timeout: Option<Duration>) -> Result<Exit, Failure> {
        let run = self.run(run).await?;
        let mut looks = tokio::time::interval(LOOK);
        let ended = async {
            loop {
                looks.tick().await;
                let told = self.get(&format!("/v1/runs/{}", escaped(&run))).await?;
                let exit = match told["status"].as_str() {
                    Some("completed") => Some(Exit::Ok),
                    Some("failed") => Some(Exit::RunFailed),
                    Some("cancelled") => Some(Exit::Cancelled),
                    _ if told["waiting_for"] == "person" => Some(Exit::WaitsForPerson),
                    _ => None,
                };
                if let Some(exit) = exit {
                    return Ok::<_, Failure>((exit, told));
                }
            }
        };
        let ended: Result<(Exit, Value), Failure> = match timeout {
            None => ended.await,
            Some(limit) => match tokio::time::timeout(limit, ended).await {
                Ok(ended) => ended,
                Err(_) => return Ok(Exit::TimedOut),
            },
        };
        let (exit, told) = ended?;
        self.said(&json!({ "type": "result", "run": run, "status": told["status"] }), &status_of(&told))?;
        Ok(exit)
    }

    /// Starts a run on the server, and waits for its end unless it is detached.
    pub(crate) async fn start(
        &self,
        request: Value,
        idempotency_key: Option<&str>,
        detach: bool,
    ) -> Result<Exit, Failure> {
        let answer = self.ask_with("POST", "/v1/runs", idempotency_key, Some(request)).await?;
        let told: Value = serde_json::from_slice(&answer).unwrap_or_default();
        let run = word(&told, "id");
        if detach {
            return self.said(&json!({ "type": "result", "run": run, "status": told["status"] }), "started");
        }
        if !self.context.json {
            eprintln!("{} runs on {}", Style::stderr().bold(&run), self.client.address());
        }
        let exit = self.wait(Some(&run), None).await?;
        if !self.context.json {
            self.logs(Some(&run), None, &LogOptions::default()).await?;
        }
        Ok(exit)
    }

    fn said(&self, told: &Value, what: &str) -> Result<Exit, Failure> {
        if self.context.json {
            line(&told.to_string());
        } else {
            line(&format!("{} {what}", word(told, "run")));
        }
        Ok(Exit::Ok)
    }
}

/// Returns the text of a pipeline file for the server, which does not see the name of the file.
fn text_of(file: &std::path::Path, name: &str) -> Result<String, Failure> {
    let yaml = std::fs::read_to_string(file)
        .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    let has_name = yaml.lines().any(|line| line.starts_with("name:") || line.starts_with("---"));
    Ok(if has_name { yaml } else { format!("name: {}\n{yaml}", json!(name)) })
}

fn word(value: &Value, key: &str) -> String {
    plain(value[key].as_str().unwrap_or_default())
}

fn status_of(value: &Value) -> String {
    shown_status_word(&word(value, "status"), value["waiting_for"].as_str())
}

/// Escapes a text for a path or a query.
fn escaped(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
