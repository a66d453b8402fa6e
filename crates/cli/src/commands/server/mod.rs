//! Commands that look at runs of a server, start them and answer their questions: `--server URL`. Commands about other
//! objects are in their own files, with a [`Source`](super::source::Source).
//!
//! The server has the store; this process sends requests and prints the answers, as JSON as they are.
//!
//! ```text
//!   at_server ─┬─ look    ls, status, explain, questions, graph, diff
//!              ├─ act     run, retry, resume, rewind, fork, cancel, approve, reject, signal
//!              ├─ wait    wait
//!              ├─ follow  the live view of a run; watch
//!              ├─ waits   what such a run waits for
//!              ├─ stream  what the server sends meanwhile
//!              ├─ logs    logs
//!              └─ events  events
//! ```

mod act;
mod events;
mod follow;
mod logs;
mod look;
mod stream;
mod wait;
mod waits;
mod watch;

use std::time::Duration;

use serde_json::{Value, json};
use sprag_lifecycle::RunId;
use sprag_remote::{Address, Client};

use crate::args::{AtServer, Command};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::own_server::{self, Own};
use crate::show::{line, plain, shown_status_word};

/// The time limit of one request.
const LIMIT: Duration = Duration::from_secs(30);
/// The time after which a command that follows the server looks for itself. A question of a child run, for example, is in
/// the journal of another run.
const LOOK: Duration = Duration::from_secs(2);
/// The most runs in one list.
const MOST_LISTED: usize = 500;

/// Executes a command that names a server; none if it names none.
pub(crate) async fn at_server(context: &Context, command: &Command) -> Result<Option<Exit>, Failure> {
    let at = match command {
        // A dry run starts nothing, so it needs no server.
        Command::Run { dry: true, .. } => return Ok(None),
        Command::Run { at, .. }
        | Command::Ls { at, .. }
        | Command::Status { at, .. }
        | Command::Logs { at, .. }
        | Command::Watch { at, .. }
        | Command::Wait { at, .. }
        | Command::Cancel { at, .. }
        | Command::Retry { at, .. }
        | Command::Skip { at, .. }
        | Command::Resume { at, .. }
        | Command::Rewind { at, .. }
        | Command::Fork { at, .. }
        | Command::Approve { at, .. }
        | Command::Reject { at, .. }
        | Command::Signal { at, .. }
        | Command::Events { at, .. }
        | Command::Explain { at, .. }
        | Command::Graph { at, .. }
        | Command::Diff { at, .. }
        | Command::Questions { at } => at,
        _ => return Ok(None),
    };
    let Some(remote) = AtRemote::open(context, at)? else { return Ok(None) };
    let done = match command {
        Command::Run { file: None, .. } => super::pipelines::list(context, &remote.at()),
        Command::Run { file: Some(file), slots, bus, .. } => {
            if slots.is_some() || bus.is_some() {
                return Err(Failure::usage(
                    "--slots and --bus are settings of a worker; the server has its own",
                )
                .next("leave them out, or give them to `sprag worker`"));
            }
            remote.start(command, file).await
        }
        Command::Ls { options, .. } => remote.ls(options).await,
        Command::Status { run, .. } => remote.status(run.as_deref()).await,
        Command::Logs { run, step, options, .. } => {
            remote.logs(run.as_deref(), step.as_deref(), options).await
        }
        Command::Watch { run: Some(run), .. } => remote.watch(run).await,
        Command::Watch { run: None, .. } => remote.watch_all().await,
        Command::Wait { run, timeout, .. } => {
            let limit =
                timeout.as_deref().map(|text| super::wait::parse_time("--timeout", text)).transpose()?;
            remote.wait(run.as_deref(), limit).await
        }
        Command::Cancel { run, .. } => remote.cancel(run).await,
        Command::Retry { run, step: Some(step), now: true, .. } => {
            remote.on_step(run.as_deref(), "retry", json!({ "step": step, "now": true })).await
        }
        Command::Skip { run, step, .. } => remote.on_step(Some(run), "skip", json!({ "step": step })).await,
        Command::Retry { run, step, detach, .. } => {
            remote.go_back(run.as_deref(), "retry", json!({ "step": step }), *detach).await
        }
        Command::Resume { run, detach, .. } => {
            remote.go_back(run.as_deref(), "resume", json!({}), *detach).await
        }
        Command::Rewind { run, to, detach, .. } => {
            remote.go_back(run.as_deref(), "rewind", json!({ "to": to }), *detach).await
        }
        Command::Fork { run, from, detach, idempotency_key, .. } => {
            remote.fork(run.as_deref(), from, idempotency_key.as_deref(), *detach).await
        }
        Command::Approve { run, step, answer, .. } => remote.answer(run, step.as_deref(), answer, true).await,
        Command::Reject { run, step, answer, .. } => remote.answer(run, step.as_deref(), answer, false).await,
        Command::Signal { run, name, payload, .. } => remote.signal(run, name, payload.as_deref()).await,
        Command::Events { run, since, follow, tail, .. } => {
            remote.events(run.as_deref(), *since, *follow, *tail).await
        }
        Command::Explain { run, .. } => remote.explain(run.as_deref()).await,
        Command::Graph { what, format, .. } => remote.graph(what.as_deref(), *format).await,
        Command::Diff { run, steps, stat, no_pager, .. } => {
            let options = super::diff::Options { stat: *stat, pager: !no_pager };
            remote.diff(run.as_deref(), steps.as_deref(), options).await
        }
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
    pub(super) fn open(context: &'c Context, at: &AtServer) -> Result<Option<Self>, Failure> {
        let Some(server) = at.server.as_deref() else { return Ok(None) };
        let address = Address::parse(server).map_err(|error| Failure::usage(error.to_string()))?;
        let token = match at.token.clone().filter(|token| !token.trim().is_empty()) {
            Some(token) => Some(token),
            None => match own_server::local_token(&context.data, &address.to_string())? {
                Own::Token(token) => Some(token),
                Own::Elsewhere | Own::NotThere => None,
            },
        };
        let client = Client::new(address, token.as_deref(), context.connector())
            .map_err(|error| Failure::usage(error.to_string()))?;
        Ok(Some(AtRemote { context, client }))
    }

    /// Sends a request. Returns the status and the body of the answer, whatever the status is.
    async fn exchange(
        &self,
        method: &str,
        path: &str,
        key: Option<&str>,
        body: Option<Value>,
    ) -> Result<(u16, Vec<u8>), Failure> {
        let answer = self.client.ask_with(method, path, key, body, LIMIT).await;
        answer.map_err(|error| {
            let error = error.to_string();
            if !error.contains("Connection refused") {
                return Failure::error(error);
            }
            Failure::error(format!("no server answers at {}", self.client.address()))
                .next("start one: sprag serve; or correct --server")
        })
    }

    /// Returns the option that commands need which are named to the user.
    pub(super) fn at(&self) -> String {
        format!(" --server {}", self.client.address())
    }

    /// Sends a request. Returns the body of its answer, or the problem that the server reports.
    async fn ask(
        &self,
        method: &str,
        path: &str,
        key: Option<&str>,
        body: Option<Value>,
    ) -> Result<Vec<u8>, Failure> {
        let (status, bytes) = self.exchange(method, path, key, body).await?;
        if (200..300).contains(&status) { Ok(bytes) } else { Err(problem(status, &bytes)) }
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value, Failure> {
        let bytes = self.ask("GET", path, None, None).await?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Failure::error(format!("the answer is not JSON: {error}")))
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> Result<Value, Failure> {
        self.send("POST", path, Some(body)).await
    }

    /// Sends a request that changes something. Returns the answer; null if it has no content.
    pub(super) async fn send(&self, method: &str, path: &str, body: Option<Value>) -> Result<Value, Failure> {
        let bytes = self.ask(method, path, None, body).await?;
        Ok(serde_json::from_slice(&bytes).unwrap_or_default())
    }

    /// Returns the list in an answer.
    pub(super) async fn list(&self, path: &str, key: &str) -> Result<Value, Failure> {
        Ok(self.get(path).await?[key].take())
    }

    /// Returns the view of a run with its steps.
    async fn detail(&self, run: &str) -> Result<Value, Failure> {
        self.get(&format!("/v1/runs/{}", escaped(run))).await
    }

    /// Returns the id of the run that the user means: by its id, the start or the end of it, its name, the name of its
    /// board, or the newest. The server decides, by the rules for runs of this machine.
    pub(super) async fn run(&self, wanted: Option<&str>) -> Result<String, Failure> {
        let is_whole = |text: &str| text.parse::<RunId>().is_ok_and(|id| id.to_string() == text);
        if let Some(whole) = wanted.filter(|wanted| is_whole(wanted)) {
            return Ok(whole.to_owned());
        }
        let name = wanted.map(|name| format!("?name={}", escaped(name))).unwrap_or_default();
        let (status, bytes) = self.exchange("GET", &format!("/v1/runs/find{name}"), None, None).await?;
        if status == 200 {
            let told: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            return Ok(word(&told, "id"));
        }
        let failure = problem(status, &bytes);
        Err(match (status, wanted) {
            (404, _) => failure.next(format!("list the runs: sprag ls --server {}", self.client.address())),
            (409, None) => failure.next("start one: sprag run FILE"),
            _ => failure,
        })
    }

    /// Returns the open questions of a run and of its child runs. Their steps are named as the run names them.
    async fn questions_of(&self, run: &str) -> Result<Vec<Value>, Failure> {
        let mut told = self.list(&format!("/v1/gates?run={}&children=true", escaped(run)), "gates").await?;
        Ok(told.as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Returns the questions of a run that waits for nothing else; none otherwise.
    async fn questions_alone(&self, run: &str) -> Result<Vec<Value>, Failure> {
        let told = self.get(&format!("/v1/runs/{}/questions", escaped(run))).await?;
        Ok(told["questions"].as_array().cloned().unwrap_or_default())
    }

    /// Prints the result of a command: a line of words for people, an object for programs.
    fn said(&self, told: &Value, what: &str) -> Result<Exit, Failure> {
        if self.context.json {
            line(&told.to_string());
        } else {
            line(&format!("{} {what}", word(told, "run")));
        }
        Ok(Exit::Ok)
    }
}

/// Returns the problem that the server reports, with the exit code that the same problem has without a server.
pub(super) fn problem(status: u16, body: &[u8]) -> Failure {
    let told: Value = serde_json::from_slice(body).unwrap_or_default();
    let message =
        told["message"].as_str().map_or_else(|| format!("the server answers {status}"), str::to_owned);
    // A diagnostic is drawn with its own heading.
    let message = message.strip_prefix("error: ").map(str::to_owned).unwrap_or(message);
    let failure = match status {
        400 | 404 | 422 => Failure::usage(message),
        409 if told["code"] == "no_worktree" => Failure { exit: Exit::Nothing, ..Failure::error(message) },
        _ => Failure::error(message),
    };
    let next = match status {
        401 | 403 if told["code"] != "unsigned" => {
            Some("show a token of the server with --token or SPRAG_TOKEN".to_owned())
        }
        422 if told["code"] == "pipeline" => None,
        _ => told["next"].as_str().map(str::to_owned),
    };
    Failure { next, ..failure }
}

fn word(value: &Value, key: &str) -> String {
    plain(value[key].as_str().unwrap_or_default())
}

fn status_of(value: &Value) -> String {
    shown_status_word(&word(value, "status"), value["waiting_for"].as_str())
}

/// Returns the exit code of a run in a status that it cannot leave by itself; none for a live run.
fn outcome(status: &str) -> Option<Exit> {
    match status {
        "completed" => Some(Exit::Ok),
        "failed" => Some(Exit::RunFailed),
        "cancelled" => Some(Exit::Cancelled),
        _ => None,
    }
}

/// Escapes a text for a path or a query.
pub(super) fn escaped(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
