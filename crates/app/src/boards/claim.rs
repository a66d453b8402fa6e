//! Claiming tasks: agents and people claim a task, hold it and report it. The token of a claim is the right to the
//! task.

use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use sprag_lifecycle::{ExecutionId, RunId, StepNo, Word};
use sprag_pipeline::{Kind, StepSpec};
use sprag_store::{
    Assignment, BoardRow, Claimer, Ending, ExecutionRow, Id, Lease, NewWorker, NotApplied, Renewal, Row,
};

use super::refusals::{cancelled, invalid, lost, no_token, refused};
use super::{Result, check_queue, check_text, rfc3339, task};

use crate::App;
use crate::claims::{self, Claim};

/// The longest that a claimer may wait for a task in one call.
pub const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// The shortest and the longest lease.
const LEASES: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(7 * 24 * 3600);

/// A request to claim a task.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// The claimer's name, for others to see.
    pub name: String,
    /// The name of the token that the claimer shows; empty for programs of the store's own user. The same name with
    /// the same token is the same agent.
    pub caller: Arc<str>,
    /// The board to claim from; none to claim from queues alone.
    pub board: Option<BoardRow>,
    /// The queues to claim from, beside the board's.
    pub queues: Vec<String>,
    /// The longest time to wait for a task.
    pub wait: Duration,
    /// The time for which the claimer holds the task without a heartbeat.
    pub lease: Duration,
    /// A number that the caller draws. The same number gets the same task again for as long as it is held, because
    /// the answer may have been lost. 0 for none.
    pub nonce: i64,
}

/// A request to claim a task.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimSpec {
    /// The claimer's name. The same name with the same token is the same worker: choose a unique one.
    pub name: String,
    /// The board to claim from. Give this, or `queues`.
    #[serde(default)]
    pub board: Option<String>,
    /// Queues to claim from, in addition to the board's.
    #[serde(default)]
    pub queues: Vec<String>,
    /// The seconds to wait for a task if there is none [default: 0; at most 60 over HTTP, 300 otherwise].
    #[serde(default)]
    pub wait_s: u64,
    /// The lease in seconds without a heartbeat [default: 1800].
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 604800))]
    pub lease_s: Option<u64>,
    /// A number chosen by the caller. If the answer was lost, a claim with the same number gets the same task, not a
    /// second one.
    #[serde(default)]
    pub request: Option<u32>,
}

/// Returns a lease of so many seconds; half an hour if the caller gave none.
pub fn lease_of(seconds: Option<u64>) -> Duration {
    Duration::from_secs(seconds.unwrap_or(30 * 60))
}

impl ClaimSpec {
    /// Returns the request of a caller that shows this token, with waits no longer than `longest_wait`.
    pub fn wanted(self, app: &App, longest_wait: Duration, caller: Arc<str>) -> Result<ClaimRequest> {
        Ok(ClaimRequest {
            caller,
            board: self.board.as_deref().map(|board| super::known(app, board)).transpose()?,
            name: self.name,
            queues: self.queues,
            wait: Duration::from_secs(self.wait_s).min(longest_wait),
            lease: lease_of(self.lease_s),
            // 0 stands for callers that gave none.
            nonce: self.request.map_or(0, |request| i64::from(request) + 1),
        })
    }
}

/// A claimed task and its token.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub struct Claimed {
    /// The token that permits reports while the lease lasts.
    pub token: String,
    /// The id of the run or of the board's run.
    pub run: String,
    /// The step's name.
    pub step: String,
    /// The task's number on its board.
    pub task: StepNo,
    /// The key that the leader gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The work to do.
    pub prompt: String,
    /// Further data for the claimer: files, hints and acceptance criteria of a board's task.
    pub with: Value,
    /// The results of the tasks that it needed, by key or number.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub needs: Map<String, Value>,
    /// The feedback of the last try.
    pub feedback: Option<String>,
    /// The end of the lease without a heartbeat.
    pub lease_until: String,
    /// The remaining time of the lease, in seconds.
    pub lease_s: i64,
}

/// The reason why there is nothing to claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub struct Nothing {
    /// `empty`, `all_claimed`, `waiting_for_needs`, `backing_off` or `closed`.
    pub why: String,
    /// The number of seconds after which to try again.
    pub retry_after_s: u64,
}

/// An extended lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub struct Held {
    /// The token.
    pub token: String,
    /// The end of the lease.
    pub lease_until: String,
}

/// The result of a finished task.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Done {
    /// A summary of the result.
    #[serde(default)]
    pub summary: Option<String>,
    /// Values that later steps and tasks can read, by name.
    #[serde(default)]
    pub outputs: Map<String, Value>,
    /// Files that were changed.
    #[serde(default)]
    pub files_changed: Vec<String>,
    /// Files that were created.
    #[serde(default)]
    pub files_created: Vec<String>,
}

/// Returns the number by which the store knows an agent: the same name with the same token is the same agent. With
/// another token it is another agent, which gets nothing that this one has claimed.
pub fn agent_id(name: &str, caller: &str) -> Id {
    // The length keeps a name and a token apart, wherever the name ends.
    let hash = Sha256::digest(format!("{} {name} {caller}", name.len()).as_bytes());
    let mut bits = [0u8; 8];
    bits.copy_from_slice(&hash[..8]);
    // The number is positive, and outside the range of numbers that the store draws.
    (u64::from_be_bytes(bits) >> 3) as Id | 1 << 61
}

/// Refuses a name that others could not read, or that would steer their terminals.
pub fn check_agent_name(name: &str) -> Result<()> {
    if name.trim().is_empty() || name.len() > 128 || name.chars().any(char::is_control) {
        return Err(invalid("an agent's name has 1 to 128 characters, none of them a control character"));
    }
    Ok(())
}

/// Returns the name under which others see an agent: with its token, if it shows one.
pub fn agent_name(name: &str, caller: &str) -> String {
    if caller.is_empty() { name.to_owned() } else { format!("{name}@{caller}") }
}

/// Registers an agent, so that others see that it is there. One that is registered already stays as it is.
pub async fn register_agent(app: &App, name: &str, caller: &str, queues: &[String]) -> Result<()> {
    check_agent_name(name)?;
    let new = NewWorker {
        id: agent_id(name, caller),
        name: agent_name(name, caller).into(),
        process: "".into(),
        queues: queues.join(",").into(),
        labels: "".into(),
        slots: 1,
        lease_ms: 30 * 60 * 1000,
    };
    app.store.claims().register(new).await?;
    Ok(())
}

/// Claims a task; waits for one, if asked to. The caller may go away while it waits: dropping the future ends the wait.
pub async fn claim(app: &App, wanted: &ClaimRequest) -> Result<std::result::Result<Claimed, Nothing>> {
    check_agent_name(&wanted.name)?;
    check_lease(wanted.lease)?;
    let queues = queues(wanted)?;
    let agent = NewWorker {
        id: agent_id(&wanted.name, &wanted.caller),
        name: agent_name(&wanted.name, &wanted.caller).into(),
        process: "".into(),
        queues: queues.join(",").into(),
        labels: "".into(),
        slots: 0,
        lease_ms: wanted.lease.as_millis() as i64,
    };
    let claimer = Claimer {
        worker: agent.id,
        queues: queues.clone(),
        reserved_only: false,
        services_only: false,
        lease_ms: agent.lease_ms,
        nonce: wanted.nonce,
    };
    let until_ms = app.now().steady_ms + wanted.wait.min(LONGEST_WAIT).as_millis() as i64;
    let claim = Claim { claimer, limit: 1, agent: Some(agent), until_ms, turn: None, stopping: None };
    match claims::claim(app, claim).await?.pop() {
        Some(assignment) => given(app, &assignment).await.map(Ok),
        None => why_nothing(app, wanted, &queues).map(Err),
    }
}

fn queues(wanted: &ClaimRequest) -> Result<Vec<Arc<str>>> {
    let mut queues: Vec<Arc<str>> = wanted.queues.iter().map(|queue| queue.as_str().into()).collect();
    queues.extend(wanted.board.iter().map(|board| Arc::clone(&board.queue)));
    queues.sort();
    queues.dedup();
    queues.iter().try_for_each(|queue| check_queue(queue).map(drop))?;
    match queues.len() {
        0 => Err(invalid("give a board or a queue to claim from")),
        1..=64 => Ok(queues),
        _ => Err(invalid("at most 64 queues at once")),
    }
}

fn check_lease(lease: Duration) -> Result<()> {
    if LEASES.contains(&lease) {
        return Ok(());
    }
    Err(invalid("a lease must be between 0.1 seconds and a week"))
}

/// Returns the task as its claimer gets it. A task that cannot be described ends or is released.
async fn given(app: &App, assignment: &Assignment) -> Result<Claimed> {
    let spec: std::result::Result<StepSpec, _> = serde_json::from_str(&assignment.step().spec);
    let rendered = match spec {
        Ok(spec) => {
            let mut rendered = Err(String::new());
            let run = assignment.lease.execution.run;
            let guarded = app.store.evaluator().guard(run, assignment.step(), &mut || {
                rendered = sprag_worker::render(assignment, &spec, None);
            });
            guarded.map_err(|error| error.to_string()).and(rendered)
        }
        Err(error) => Err(error.to_string()),
    };
    let kind = match rendered {
        Ok(rendered) => rendered.kind,
        Err(message) => {
            let result = json!({ "reason": "template", "message": message }).to_string();
            let ending = Ending::Failed { result: Some(result.into()), retriable: false };
            let _ = app.store.worker(assignment.lease).finish(ending, None).await?;
            return Err(refused(format!("step {} cannot be done: {message}", assignment.name)));
        }
    };
    let Kind::Task { prompt, with } = kind else {
        let _ = app.store.worker(assignment.lease).release().await?;
        return Err(invalid(format!(
            "the queue also holds commands, such as step {}, and these are for workers: \
             claim from a queue that only tasks are in",
            assignment.name
        )));
    };
    let id = assignment.lease.execution;
    let own: Option<task::TaskSpec> =
        assignment.item.as_deref().and_then(|item| serde_json::from_str(item).ok());
    let own = own.filter(|_| assignment.step().spread.is_some_and(|spread| spread.open));
    let with = match &own {
        None => with,
        Some(own) => {
            json!({ "files": own.files, "hints": own.hints, "acceptance": own.acceptance })
        }
    };
    let now = app.store.now();
    Ok(Claimed {
        token: token_of(app, assignment.lease)?,
        run: id.run.to_string(),
        step: assignment.name.clone(),
        task: id.step,
        attempt: id.attempt,
        prompt,
        with,
        needs: match &own {
            Some(_) => what_needs_said(app, id)?,
            None => Map::new(),
        },
        key: own.and_then(|own| own.key),
        feedback: assignment.feedback.as_deref().map(str::to_owned),
        lease_until: rfc3339(assignment.lease_until_ms - now.steady_ms + now.wall_ms),
        lease_s: (assignment.lease_until_ms - now.steady_ms) / 1000,
    })
}

/// Returns what the tasks that this one needs reported.
fn what_needs_said(app: &App, id: ExecutionId) -> Result<Map<String, Value>> {
    let board = app.store.queries().board(id.run)?;
    let needs = app.store.queries().task_needs(id.run, id.step)?;
    let mut said = Map::new();
    for need in needs {
        let Some(board) = &board else { break };
        let view = task::task(app, board, &need.to_string())?;
        let name = view.spec.key.unwrap_or_else(|| need.to_string());
        said.insert(name, json!({ "status": view.status, "result": view.result }));
    }
    Ok(said)
}

/// Returns the reason why there was no task, and after how many seconds to ask again.
fn why_nothing(app: &App, wanted: &ClaimRequest, queues: &[Arc<str>]) -> Result<Nothing> {
    let told = |why: &str, retry_after_s| Ok(Nothing { why: why.to_owned(), retry_after_s });
    let out = app.store.queries().in_flight(queues)?;
    if let Some(board) = &wanted.board {
        // The board may have been closed while the claimer waited.
        let counts = super::view(app, &super::known(app, &board.run.to_string())?)?;
        return match counts.tasks {
            counts if counts.claimed > 0 && counts.waiting == 0 => told("all_claimed", 30),
            counts if counts.waiting > 0 => told("waiting_for_needs", 10),
            // Ready, but not available: its backoff is not over, or it is in another queue.
            counts if counts.ready > 0 => told("backing_off", 10),
            _ if !counts.open => told("closed", 0),
            _ => told("empty", 30),
        };
    }
    if out > 0 {
        return told("all_claimed", 30);
    }
    /// The most live runs that are searched for the reason.
    const LOOK: usize = 100;
    let waiting = app.store.queries().has_waiting_steps(queues, LOOK)?;
    if waiting { told("waiting_for_needs", 10) } else { told("empty", 60) }
}

/// Shows that the holder is there, and returns the task again.
pub async fn start(app: &App, token: &str, lease: Duration) -> Result<Claimed> {
    let held = parse_token(app, token)?;
    heartbeat(app, token, lease).await?;
    let assignment = app
        .store
        .worker(held)
        .assignment()
        .await?
        .ok_or_else(|| lost(token, NotApplied::NotFound { entity: "execution" }))?;
    given(app, &assignment).await
}

/// Renews the lease on a task.
pub async fn heartbeat(app: &App, token: &str, lease: Duration) -> Result<Held> {
    check_lease(lease)?;
    let held = parse_token(app, token)?;
    let lease_ms = lease.as_millis() as i64;
    let renewal = app.store.worker(held).keep(lease_ms).await?;
    match renewal {
        Renewal::Held { cancel_requested: true, .. } => Err(cancelled()),
        Renewal::Held { until_ms, .. } => {
            let now = app.store.now();
            Ok(Held { token: token.to_owned(), lease_until: rfc3339(until_ms - now.steady_ms + now.wall_ms) })
        }
        Renewal::Lost => {
            let row = app.store.queries().execution(held.execution)?;
            Err(lost(token, why_lost(row.as_ref(), held)))
        }
    }
}

/// Returns the reason why a token's lease cannot be renewed.
fn why_lost(row: Option<&ExecutionRow>, held: Lease) -> NotApplied {
    match row {
        None => NotApplied::NotFound { entity: "execution" },
        Some(row) if row.fence == held.fence => {
            NotApplied::Illegal { entity: "execution", status: row.status().as_str(), wrong_actor: false }
        }
        Some(_) => NotApplied::Superseded { entity: "execution", predicate: "matching fence" },
    }
}

/// Reports that a task is done.
pub async fn done(app: &App, token: &str, done: &Done) -> Result<()> {
    check_text("the summary", done.summary.as_deref().unwrap_or_default())?;
    let mut result = json!({ "outputs": done.outputs });
    if let Some(summary) = &done.summary {
        result["summary"] = summary.as_str().into();
    }
    if !done.files_changed.is_empty() || !done.files_created.is_empty() {
        result["files"] = json!({ "changed": done.files_changed, "created": done.files_created });
    }
    let text = result.to_string();
    check_text("what is reported", &text)?;
    finish(app, token, Ending::Completed { result: Some(text.into()) }).await
}

/// Reports that a task failed; the next claimer reads the reason.
pub async fn fail(app: &App, token: &str, reason: &str, retriable: bool) -> Result<()> {
    check_text("the reason", reason)?;
    let result = json!({ "reason": "task", "message": reason }).to_string();
    finish(app, token, Ending::Failed { result: Some(result.into()), retriable }).await
}

/// Reports how a task ended. The same report a second time gets the same answer as the first, because that answer may
/// have been lost.
async fn finish(app: &App, token: &str, ending: Ending) -> Result<()> {
    let heard = app.store.worker(parse_token(app, token)?).finish_by_token(ending).await?;
    if heard.before {
        return Ok(());
    }
    heard.finished.outcome.require_applied().map(drop).map_err(|why| lost(token, why))
}

/// Releases a task unfinished.
pub async fn release(app: &App, token: &str) -> Result<()> {
    let outcome = app.store.worker(parse_token(app, token)?).release().await?;
    outcome.require_applied().map(drop).map_err(|why| lost(token, why))
}

/// Returns the agent or person that holds the task of a token; none if it is not held under this token any more.
pub(crate) fn holder(app: &App, token: &str) -> Result<Option<Id>> {
    let held = parse_token(app, token)?;
    let row = app.store.queries().execution(held.execution)?;
    Ok(row.filter(|row| row.fence == held.fence).and_then(|row| row.owner))
}

/// Releases all tasks that an agent holds. Returns their number.
pub(crate) async fn release_held(app: &App, agent: Id) -> Result<usize> {
    let mut released = 0;
    for row in app.store.queries().held_by(agent)? {
        let lease = Lease { execution: row.id, fence: row.fence };
        released += usize::from(app.store.worker(lease).release().await?.is_applied());
    }
    Ok(released)
}

/// The number of characters of a token that are its signature.
const SIGNATURE: usize = 16;

/// Returns the token of a claim: the run, the step's number, the attempt and the fence, signed by the store that gave
/// it.
pub(crate) fn token_of(app: &App, lease: Lease) -> Result<String> {
    let ExecutionId { run, step, attempt } = lease.execution;
    let place = format!("{run}.{step}.{attempt}.{}", lease.fence);
    let signature = signer(app, &place)?.finalize().into_bytes();
    let text: String = signature.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{place}.{}", &text[..SIGNATURE]))
}

fn signer(app: &App, place: &str) -> Result<Hmac<Sha256>> {
    let key = app.store.queries().token_key()?;
    let mut signer = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("a key may have any length");
    signer.update(place.as_bytes());
    Ok(signer)
}

/// Returns the claim that a token proves, if this store gave the token. Only tasks have tokens, and the signature
/// keeps callers from inventing one.
fn parse_token(app: &App, token: &str) -> Result<Lease> {
    let no_token = || no_token(token);
    let (place, signature) = token.rsplit_once('.').ok_or_else(no_token)?;
    let parsed = || -> Option<(Lease, Vec<u8>)> {
        let mut parts = place.split('.');
        let run: RunId = parts.next()?.parse().ok()?;
        let step: StepNo = parts.next()?.parse().ok()?;
        let attempt = parts.next()?.parse().ok()?;
        let fence = parts.next()?.parse().ok()?;
        let bytes = (signature.len() == SIGNATURE && signature.is_ascii()).then_some(signature)?;
        let bytes: Option<Vec<u8>> =
            (0..SIGNATURE).step_by(2).map(|at| u8::from_str_radix(&bytes[at..at + 2], 16).ok()).collect();
        let lease = Lease { execution: ExecutionId { run, step, attempt }, fence };
        parts.next().is_none().then_some((lease, bytes?))
    };
    let (lease, bytes) = parsed().ok_or_else(no_token)?;
    signer(app, place)?.verify_truncated_left(&bytes).map_err(|_| no_token())?;
    Ok(lease)
}
