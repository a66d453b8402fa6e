//! What agents and people do with tasks: claim one, hold it, report it. The token is the right to it.

use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::Sha256;
use sprag_lifecycle::{ExecutionId, ExecutionStatus, RunId, StepNo, StepStatus, Word};
use sprag_pipeline::{Kind, StepSpec};
use sprag_store::ops::{Assignment, Claimer, Ending, Lease, NewWorker, Renewal};
use sprag_store::{BoardRow, ExecutionRow, Id, NotApplied, Row, StepRow, Store, Table, Topic};

use super::{BoardError, Result, check_queue, check_text, rfc3339, task};

/// The longest that one may wait for a task in one call.
pub const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// The shortest and the longest lease.
const LEASES: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(7 * 24 * 3600);

/// Who wants what.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Who claims, for others to see.
    pub name: String,
    /// The board to claim from, if only one is meant.
    pub board: Option<BoardRow>,
    /// The queues to claim from, beside the board's.
    pub queues: Vec<String>,
    /// How long to wait for a task.
    pub wait: Duration,
    /// How long it is theirs without a heartbeat.
    pub lease: Duration,
    /// The same number gets the same task again for as long as it is held: the answer may have been lost. 0 for none.
    pub nonce: i64,
}

/// A wish for a task, as agents and programs send it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimSpec {
    /// Who claims. The same name is the same worker: choose one that nobody else uses.
    pub name: String,
    /// The board to claim from. Give this, or `queues`.
    #[serde(default)]
    pub board: Option<String>,
    /// Queues to claim from, beside the board's.
    #[serde(default)]
    pub queues: Vec<String>,
    /// Seconds to wait for a task if there is none: 0 if not given, 60 at most over HTTP, 300 otherwise.
    #[serde(default)]
    pub wait_s: u64,
    /// Seconds for which the task is theirs without a heartbeat: 1800 if not given.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 604800))]
    pub lease_s: Option<u64>,
    /// Any number of the caller's own. If no answer came, the same number gets the same task, not a second one.
    #[serde(default)]
    pub request: Option<u32>,
}

/// A lease of so many seconds; half an hour if nobody said.
pub fn lease_of(seconds: Option<u64>) -> Duration {
    Duration::from_secs(seconds.unwrap_or(30 * 60))
}

impl ClaimSpec {
    /// What is meant, with waits no longer than this.
    pub fn wanted(self, store: &Store, longest_wait: Duration) -> Result<Wanted> {
        Ok(Wanted {
            board: self.board.as_deref().map(|board| super::known(store, board)).transpose()?,
            name: self.name,
            queues: self.queues,
            wait: Duration::from_secs(self.wait_s).min(longest_wait),
            lease: lease_of(self.lease_s),
            // 0 is for those who named none.
            nonce: self.request.map_or(0, |request| i64::from(request) + 1),
        })
    }
}

/// A task, and the right to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub struct Claimed {
    /// Whoever shows it may report, as long as the claim lasts.
    pub token: String,
    /// The run, or the board that it is.
    pub run: String,
    /// The step's name.
    pub step: String,
    /// The task's number on its board.
    pub task: StepNo,
    /// What its leader calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Which try it is.
    pub attempt: u32,
    /// What is to be done.
    pub prompt: String,
    /// More for who claims it: a board's task has files, hints and acceptance criteria here.
    pub with: Value,
    /// What the tasks that it needed had to say, by key or number.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub needs: Map<String, Value>,
    /// What its last try had to say.
    pub feedback: Option<String>,
    /// Until when it is theirs without a heartbeat.
    pub lease_until: String,
    /// The same in seconds from now.
    pub lease_s: i64,
}

/// There is nothing to claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub struct Nothing {
    /// `empty`, `all_claimed`, `waiting_for_needs`, `backing_off` or `closed`.
    pub why: String,
    /// When to come back.
    pub retry_after_s: u64,
}

/// A lease that was prolonged.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub struct Held {
    /// The token.
    pub token: String,
    /// Until when.
    pub lease_until: String,
}

/// How a task was done.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Done {
    /// What came of it, in words.
    #[serde(default)]
    pub summary: Option<String>,
    /// What steps and tasks after it may read, by name.
    #[serde(default)]
    pub outputs: Map<String, Value>,
    /// Files that were changed.
    #[serde(default)]
    pub files_changed: Vec<String>,
    /// Files that were made.
    #[serde(default)]
    pub files_created: Vec<String>,
}

/// The number by which an agent is known: the same name is the same agent.
pub fn agent_id(name: &str) -> Id {
    // Kept positive, and apart from the numbers that are drawn.
    (sprag_store::fnv(name) >> 2) as Id | 1 << 61
}

/// Claims a task for somebody who may go away while they wait: what was just claimed for them then goes back at
/// once, instead of staying with nobody until its lease lapses.
pub async fn claim_for_caller(
    store: &Store,
    wanted: Wanted,
) -> Result<std::result::Result<Claimed, Nothing>> {
    let (tell, told) = tokio::sync::oneshot::channel();
    let store = store.clone();
    tokio::spawn(async move {
        let claimed = claim_while(&store, &wanted, || !tell.is_closed()).await;
        // Who named the claim may be asking for the same one again at this very moment.
        if let Err(Ok(Ok(unheard))) = tell.send(claimed)
            && wanted.nonce == 0
            && let Err(error) = release(&store, &unheard.token).await
        {
            tracing::warn!(token = unheard.token, %error, "could not give back what nobody waits for any more");
        }
    });
    told.await.unwrap_or_else(|_| Err(BoardError::Refused("the claim was ended: try again".into())))
}

/// Claims a task; waits for one, if asked to.
pub async fn claim(store: &Store, wanted: &Wanted) -> Result<std::result::Result<Claimed, Nothing>> {
    claim_while(store, wanted, || true).await
}

async fn claim_while(
    store: &Store,
    wanted: &Wanted,
    is_wanted: impl Fn() -> bool,
) -> Result<std::result::Result<Claimed, Nothing>> {
    if wanted.name.trim().is_empty() || wanted.name.len() > 128 {
        return Err(BoardError::invalid("who claims says who it is, in 1 to 128 characters"));
    }
    check_lease(wanted.lease)?;
    let queues = queues(wanted)?;
    let worker = NewWorker {
        id: agent_id(&wanted.name),
        name: wanted.name.as_str().into(),
        process: "".into(),
        queues: queues.join(",").into(),
        labels: "".into(),
        slots: 1,
        lease_ms: wanted.lease.as_millis() as i64,
    };
    let topics = queues.iter().map(|queue| Topic::Queue(Arc::clone(queue), 0)).collect();
    let wake = store.subscribe(topics);
    let until_ms = store.now().steady_ms + wanted.wait.min(LONGEST_WAIT).as_millis() as i64;
    while is_wanted() {
        let claimer = Claimer {
            worker: worker.id,
            queues: queues.clone(),
            reserved_only: false,
            lease_ms: worker.lease_ms,
            nonce: wanted.nonce,
        };
        if let Some(assignment) = store.claims().claim_as(worker.clone(), claimer).await? {
            return given(store, &assignment).await.map(Ok);
        }
        if mind_the_clock(store).await? {
            continue;
        }
        let left_ms = until_ms - store.now().steady_ms;
        if left_ms <= 0 {
            return why_nothing(store, wanted, &queues).map(Err);
        }
        wake.wait(Duration::from_millis(left_ms.min(2_000) as u64)).await;
    }
    why_nothing(store, wanted, &queues).map(Err)
}

/// Does what is overdue: where no server and no worker runs, whoever wants a task sees to it that those of the dead,
/// and those that had to wait for their next try, can be had. Says whether there was anything.
async fn mind_the_clock(store: &Store) -> Result<bool> {
    /// Not more of each at once: others want to write too.
    const SOME: usize = 64;
    let now_ms = store.now().steady_ms;
    let (timers, lapsed) = store.read(|db| Ok((db.timers_due(now_ms, SOME)?, db.lapsed(now_ms, SOME)?)))?;
    let mut acted = false;
    for timer in timers {
        acted |= store.executor().timer_fired(timer.execution).await.unwrap_or_else(|error| {
            tracing::warn!(run = %timer.execution.run, %error, "a timer could not be seen to");
            false
        });
    }
    for (execution, fence) in lapsed {
        match store.reaper().expire(Lease { execution, fence }).await {
            Ok(outcome) => acted |= outcome.is_applied(),
            Err(error) => tracing::warn!(run = %execution.run, %error, "a lapsed lease could not be seen to"),
        }
    }
    Ok(acted)
}

fn queues(wanted: &Wanted) -> Result<Vec<Arc<str>>> {
    let mut queues: Vec<Arc<str>> = wanted.queues.iter().map(|queue| queue.as_str().into()).collect();
    queues.extend(wanted.board.iter().map(|board| Arc::clone(&board.queue)));
    queues.sort();
    queues.dedup();
    queues.iter().try_for_each(|queue| check_queue(queue).map(drop))?;
    match queues.len() {
        0 => Err(BoardError::invalid("say from where to claim: a board, or a queue")),
        1..=64 => Ok(queues),
        _ => Err(BoardError::invalid("64 queues at once are the most")),
    }
}

fn check_lease(lease: Duration) -> Result<()> {
    if LEASES.contains(&lease) {
        return Ok(());
    }
    Err(BoardError::invalid("a lease is between a tenth of a second and a week"))
}

/// What the claimer is told. What cannot be told ends, or goes back.
async fn given(store: &Store, assignment: &Assignment) -> Result<Claimed> {
    let spec: std::result::Result<StepSpec, _> = serde_json::from_str(&assignment.step().spec);
    let rendered = match spec {
        Ok(spec) => sprag_worker::render(assignment, &spec),
        Err(error) => Err(error.to_string()),
    };
    let kind = match rendered {
        Ok(rendered) => rendered.kind,
        Err(message) => {
            let result = json!({ "reason": "template", "message": message }).to_string();
            let ending = Ending::Failed { result: Some(result.into()), retriable: false };
            let _ = store.worker(assignment.lease).finish(ending, None).await?;
            return Err(BoardError::Refused(format!("step {} cannot be done: {message}", assignment.name)));
        }
    };
    let Kind::Task { prompt, with } = kind else {
        let _ = store.worker(assignment.lease).release().await?;
        return Err(BoardError::invalid(format!(
            "the queue also holds commands, such as step {}, and these are for `sprag worker`: \
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
    let now = store.now();
    Ok(Claimed {
        token: token_of(store, assignment.lease)?,
        run: id.run.to_string(),
        step: assignment.name.clone(),
        task: id.step,
        attempt: id.attempt,
        prompt,
        with,
        needs: match &own {
            Some(_) => what_needs_said(store, id)?,
            None => Map::new(),
        },
        key: own.and_then(|own| own.key),
        feedback: assignment.feedback.as_deref().map(str::to_owned),
        lease_until: rfc3339(assignment.lease_until_ms - now.steady_ms + now.wall_ms),
        lease_s: (assignment.lease_until_ms - now.steady_ms) / 1000,
    })
}

/// What the tasks that this one needs reported.
fn what_needs_said(store: &Store, id: ExecutionId) -> Result<Map<String, Value>> {
    let board = store.read(|db| db.board(id.run))?;
    let needs = store.read(|db| db.task_needs(id.run, id.step))?;
    let mut said = Map::new();
    for need in needs {
        let Some(board) = &board else { break };
        let view = task::task(store, board, &need.item.to_string())?;
        let name = view.spec.key.unwrap_or_else(|| need.item.to_string());
        said.insert(name, json!({ "status": view.status, "result": view.result }));
    }
    Ok(said)
}

/// Why there was nothing, and when to come back.
fn why_nothing(store: &Store, wanted: &Wanted, queues: &[Arc<str>]) -> Result<Nothing> {
    let told = |why: &str, retry_after_s| Ok(Nothing { why: why.to_owned(), retry_after_s });
    let mut out = 0;
    for queue in queues {
        out += store.read(|db| db.in_flight(queue))?;
    }
    if let Some(board) = &wanted.board {
        // It may have been closed while they waited.
        let counts = super::view(store, &super::known(store, &board.run.to_string())?)?;
        return match counts.tasks {
            counts if counts.claimed > 0 && counts.waiting == 0 => told("all_claimed", 30),
            counts if counts.waiting > 0 => told("waiting_for_needs", 10),
            // Ready, and not to be had: its wait between two tries is not over, or it is in another queue.
            counts if counts.ready > 0 => told("backing_off", 10),
            _ if !counts.open => told("closed", 0),
            _ => told("empty", 30),
        };
    }
    if out > 0 {
        return told("all_claimed", 30);
    }
    /// More live runs than this are not looked at for the reason.
    const LOOK: usize = 100;
    let waiting = store.read(|db| {
        for run in db.live_runs(None, LOOK)? {
            let Some(row) = Table::<sprag_store::RunRow>::load(db, run)? else { continue };
            let Some(plan) = db.plan(row.plan)? else { continue };
            let ours = |queue: &str| queues.iter().any(|wanted| &**wanted == queue);
            if plan
                .steps
                .iter()
                .any(|step| ours(&step.queue) && step.spread.is_none_or(|spread| !spread.open))
            {
                let steps = db.steps(run)?;
                let open = |step: &StepRow| {
                    ours(&plan.step(step.node()).queue) && step.status() == StepStatus::Waiting
                };
                if steps.iter().any(open) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    })?;
    if waiting { told("waiting_for_needs", 10) } else { told("empty", 60) }
}

/// Shows that the holder is there, and says again what is to be done.
pub async fn start(store: &Store, token: &str, lease: Duration) -> Result<Claimed> {
    let held = parse_token(store, token)?;
    heartbeat(store, token, lease).await?;
    let assignment = store
        .write(move |session| sprag_store::ops::assignment_of(session, held))
        .await?
        .ok_or_else(|| lost(token, NotApplied::NotFound { entity: "execution" }))?;
    given(store, &assignment).await
}

/// Keeps a task for longer.
pub async fn heartbeat(store: &Store, token: &str, lease: Duration) -> Result<Held> {
    check_lease(lease)?;
    let held = parse_token(store, token)?;
    let lease_ms = lease.as_millis() as i64;
    let renewal = store.write(move |session| sprag_store::ops::keep(session, held, lease_ms)).await?;
    match renewal {
        Renewal::Held { cancel_requested: true, .. } => {
            Err(BoardError::Cancelled { token: token.to_owned() })
        }
        Renewal::Held { until_ms, .. } => {
            let now = store.now();
            Ok(Held { token: token.to_owned(), lease_until: rfc3339(until_ms - now.steady_ms + now.wall_ms) })
        }
        Renewal::Lost => {
            let row = store.read(|db| Table::<ExecutionRow>::load(db, held.execution))?;
            Err(lost(token, why_lost(row.as_ref())))
        }
    }
}

/// What stands against a token that cannot be renewed.
fn why_lost(row: Option<&ExecutionRow>) -> NotApplied {
    match row {
        None => NotApplied::NotFound { entity: "execution" },
        Some(row) if row.status() != ExecutionStatus::Running => {
            NotApplied::Illegal { entity: "execution", status: row.status().as_str(), wrong_actor: false }
        }
        Some(_) => NotApplied::Superseded { entity: "execution", predicate: "the fence matches" },
    }
}

fn lost(token: &str, why: NotApplied) -> BoardError {
    BoardError::Lost { token: token.to_owned(), why }
}

/// Reports that a task is done.
pub async fn done(store: &Store, token: &str, done: &Done) -> Result<()> {
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
    finish(store, token, Ending::Completed { result: Some(text.into()) }).await
}

/// Reports that a task failed; the next one to try it reads the reason.
pub async fn fail(store: &Store, token: &str, reason: &str, retriable: bool) -> Result<()> {
    check_text("the reason", reason)?;
    let result = json!({ "reason": "task", "message": reason }).to_string();
    finish(store, token, Ending::Failed { result: Some(result.into()), retriable }).await
}

async fn finish(store: &Store, token: &str, ending: Ending) -> Result<()> {
    let finished = store.worker(parse_token(store, token)?).finish(ending, None).await?;
    finished.outcome.require_applied().map(drop).map_err(|why| lost(token, why))
}

/// Gives a task back unfinished.
pub async fn release(store: &Store, token: &str) -> Result<()> {
    let outcome = store.worker(parse_token(store, token)?).release().await?;
    outcome.require_applied().map(drop).map_err(|why| lost(token, why))
}

/// How many characters of a token are its signature.
const SIGNATURE: usize = 16;

/// What proves a claim: the run, the step's number, the attempt and the fence, signed by the store that gave it.
pub(crate) fn token_of(store: &Store, lease: Lease) -> Result<String> {
    let ExecutionId { run, step, attempt } = lease.execution;
    let place = format!("{run}.{step}.{attempt}.{}", lease.fence);
    let signature = signer(store, &place)?.finalize().into_bytes();
    let text: String = signature.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{place}.{}", &text[..SIGNATURE]))
}

fn signer(store: &Store, place: &str) -> Result<Hmac<Sha256>> {
    let key = store.read(|db| db.token_key())?;
    let mut signer = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("a key may have any length");
    signer.update(place.as_bytes());
    Ok(signer)
}

/// The claim that a token proves, if it was given by this store: only tasks have tokens, and nobody can make one up.
fn parse_token(store: &Store, token: &str) -> Result<Lease> {
    let no_token = || BoardError::NoToken(token.to_owned());
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
    signer(store, place)?.verify_truncated_left(&bytes).map_err(|_| no_token())?;
    Ok(lease)
}
