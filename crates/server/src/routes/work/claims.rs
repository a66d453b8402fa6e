//! Workers register, claim work, and send heartbeats.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use sprag_process::ProcessId;
use sprag_store::ops::{self, Assignment, Claimer, Lease, NewWorker};
use sprag_store::{Backend, ExecutionRow, Reach, Store, Topic};
use sprag_worker::{LeaseState, wire};
use tokio::sync::oneshot;

use super::{MOST_HELD, Worker, check_count, check_lease, checked, done};
use crate::access::MayWork;
use crate::app::App;
use crate::connections::told;
use crate::extract::Json;
use crate::problem::{Answer, Problem};

/// The most workers of one token that are online at once.
const MOST_WORKERS: usize = 1_000;
/// The longest wait for a wake-up before the store is read again anyway.
const LOOK_ANYWAY: Duration = Duration::from_secs(2);

/// Present a worker, new or come back
///
/// `id` is the server's to know: what is sent is not looked at. The host in `process` is bound to the token.
#[utoipa::path(
    post, path = "/v1/work/register", tag = "work", request_body = Object,
    params(("x-sprag-worker" = String, Header, description = "32 to 128 letters and digits that the worker draws")),
    responses(
        (status = 200, body = wire::Registered),
        (status = 409, description = "Problem: it is draining"),
        (status = 429, description = "Problem: the token has as many workers as it may have"),
    )
)]
pub(crate) async fn register(
    Worker(id): Worker,
    MayWork(caller): MayWork,
    State(app): State<App>,
    Json(mut new): Json<NewWorker>,
) -> Answer<Json<wire::Registered>> {
    check_lease(new.lease_ms)?;
    let texts = [(&new.name, 128), (&new.process, 512), (&new.queues, 4_096), (&new.labels, 4_096)];
    if let Some((_, most)) = texts.iter().find(|(text, most)| text.len() > *most) {
        return Err(Problem::invalid(format!(
            "name, process, queues and labels: one has more than {most} bytes"
        )));
    }
    if texts.iter().any(|(text, _)| text.chars().any(char::is_control)) {
        return Err(Problem::invalid("name, process, queues and labels: one holds control characters"));
    }
    if new.slots == 0 || new.slots as usize > MOST_HELD {
        return Err(Problem::invalid(format!("slots: between 1 and {MOST_HELD}")));
    }
    new.id = id;
    new.process = vouched(&new.process, &caller.name).into();
    // Programs of the server's own user share the store with it anyway.
    let own = caller.is_own();
    let registered = app.store().write(move |session| {
        if !own && has_too_many(session.db(), &new, &caller.name)? {
            return Ok(Err(too_many_workers()));
        }
        ops::register_worker(session, &new).map(Ok)
    });
    registered.await??;
    let key = app.read(|db| db.token_key()).await?;
    Ok(Json(wire::Registered { applied: true, store: wire::store_name(&key) }))
}

/// Whether a token has as many workers as it may have, and this would be one more.
fn has_too_many(db: &mut dyn Backend, new: &NewWorker, token: &str) -> sprag_store::Result<bool> {
    let vouched = sprag_process::vouched_host("", token);
    let workers = db.workers()?;
    let is_there = workers.iter().any(|row| row.id == new.id);
    let count = workers.iter().filter(|row| row.host().ends_with(&vouched)).count();
    Ok(!is_there && count >= MOST_WORKERS)
}

fn too_many_workers() -> Problem {
    let mut problem = Problem::too_many(60);
    problem.message = format!("this token has {MOST_WORKERS} workers, which is all that one may have");
    problem
}

/// Returns a worker's process, on a host that is bound to the token it shows. Whatever the worker says, it is on no
/// host of another token's workers, and not on the server's.
fn vouched(process: &str, token: &str) -> String {
    let vouched = |host: &str| sprag_process::vouched_host(host, token);
    match process.parse::<ProcessId>() {
        Ok(mut process) => {
            process.host = vouched(&process.host);
            process.to_string()
        }
        Err(_) => vouched(process.split('/').next().unwrap_or_default()),
    }
}

/// Receive work; waits for some, if asked to
///
/// The same nonce gets what it got before, for as long as that is held: the answer may have been lost.
#[utoipa::path(
    post, path = "/v1/work/claim", tag = "work", request_body = wire::Claim,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::Claimed, description = "Nothing, if nothing came in time"))
)]
pub(crate) async fn claim(
    Worker(id): Worker,
    State(app): State<App>,
    Json(wanted): Json<wire::Claim>,
) -> Answer<Json<wire::Claimed>> {
    let received_ms = app.store().now().steady_ms;
    let claimer = checked(wanted.claimer, id)?;
    if !(1..=MOST_HELD).contains(&wanted.limit) {
        return Err(Problem::invalid(format!("limit: between 1 and {MOST_HELD}")));
    }
    let wait_ms = wanted.wait_ms.min(wire::LONGEST_WAIT_MS);
    let turn = app.waiting().begin(id);
    let topics = claimer.queues.iter().map(|queue| Topic::Queue(Arc::clone(queue))).collect();
    let wake = app.store().subscribe_from(topics, Reach::Here);
    let mut stopping = app.stopping();
    let until_ms = received_ms + wait_ms as i64;
    loop {
        let claimed = match turn.is_last() {
            true => claim_for(app.store(), &claimer, wanted.limit).await?,
            false => Vec::new(),
        };
        let left_ms = until_ms - app.store().now().steady_ms;
        if !claimed.is_empty() || left_ms <= 0 || *stopping.borrow() || !turn.is_last() {
            let given = claimed.into_iter().map(|assignment| given(assignment, received_ms)).collect();
            return Ok(Json(wire::Claimed { given }));
        }
        tokio::select! {
            () = wake.wait(LOOK_ANYWAY.min(Duration::from_millis(left_ms as u64))) => {}
            () = turn.over() => {}
            () = told(&mut stopping) => {}
        }
    }
}

/// Claims for a worker that may disconnect meanwhile. The work is then released at once.
async fn claim_for(store: &Store, claimer: &Claimer, limit: usize) -> Answer<Vec<Assignment>> {
    let (tell, hear) = oneshot::channel();
    let (store, claimer) = (store.clone(), claimer.clone());
    tokio::spawn(async move {
        let claimed = store.write(move |session| ops::claim_again(session, &claimer, limit)).await;
        // The worker may have received this assignment before and may be working on it.
        if let Err(Ok(unheard)) = tell.send(claimed)
            && !unheard.before
        {
            for assignment in unheard.assignments {
                tracing::info!(execution = %assignment.lease.execution, "its claimer has gone away: it goes back");
                if let Err(error) = store.worker(assignment.lease).release().await {
                    tracing::warn!(execution = %assignment.lease.execution, %error, "giving it back");
                }
            }
        }
    });
    match hear.await {
        Ok(claimed) => Ok(claimed?.assignments),
        Err(_) => Err(Problem::unavailable("the server ends")),
    }
}

/// Returns an assignment with the length of its lease, counted from the moment when the request came.
pub(super) fn given(assignment: Assignment, received_ms: i64) -> wire::GivenWork {
    wire::GivenWork { lease_ms: assignment.lease_until_ms - received_ms, assignment }
}

/// Show that a worker is there, and keep what it holds
#[utoipa::path(
    post, path = "/v1/work/heartbeat", tag = "work", request_body = wire::Heartbeat,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::Beaten, description = "Each lease is `held`, `cancel` or `lost`"))
)]
pub(crate) async fn heartbeat(
    Worker(id): Worker,
    State(app): State<App>,
    Json(told): Json<wire::Heartbeat>,
) -> Answer<Json<wire::Beaten>> {
    check_lease(told.lease_ms)?;
    check_count(told.leases.len())?;
    let received_ms = app.store().now().steady_ms;
    let lease_ms = told.lease_ms;
    let leases = told.leases;
    let (known, until_ms, kept) = app
        .store()
        .write(move |session| {
            let known = ops::heartbeat(session, id, lease_ms)?;
            let until_ms = session.now().steady_ms + lease_ms;
            let mut kept = Vec::with_capacity(leases.len());
            for lease in &leases {
                kept.push(match ops::not_held(session, id, *lease)? {
                    Some(_) => LeaseState::Lost,
                    None => ops::renew(session, &[*lease], lease_ms)?
                        .pop()
                        .map_or(LeaseState::Lost, LeaseState::from),
                });
            }
            Ok((known, until_ms, kept))
        })
        .await?;
    Ok(Json(wire::Beaten { known, lease_ms: until_ms - received_ms, kept }))
}

/// Wait until something that a worker holds has to end
#[utoipa::path(
    post, path = "/v1/work/watch", tag = "work", request_body = wire::Watch,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::Watched))
)]
pub(crate) async fn watch(
    Worker(id): Worker,
    State(app): State<App>,
    Json(asked): Json<wire::Watch>,
) -> Answer<Json<wire::Watched>> {
    check_count(asked.going.len() + asked.ending.len())?;
    let wake = app.store().subscribe_from(vec![Topic::Worker(id)], Reach::Here);
    let mut stopping = app.stopping();
    let wait_ms = asked.wait_ms.min(wire::LONGEST_WAIT_MS) as i64;
    let until_ms = app.store().now().steady_ms + wait_ms;
    let (going, ending): (Arc<[Lease]>, Arc<[Lease]>) = (asked.going.into(), asked.ending.into());
    loop {
        let (going, ending) = (Arc::clone(&going), Arc::clone(&ending));
        let changed = app
            .read(move |db| {
                let held = db.held_by(id)?;
                let lease = |row: &ExecutionRow| Lease { execution: row.id, fence: row.fence };
                // The worker may hold more by now than it did when it asked.
                let to_end = held.iter().any(|row| row.cancel_requested && !ending.contains(&lease(row)));
                let lost = |wanted: &Lease| !held.iter().any(|row| lease(row) == *wanted);
                Ok(to_end || going.iter().any(lost))
            })
            .await?;
        let left_ms = until_ms - app.store().now().steady_ms;
        if changed || left_ms <= 0 || *stopping.borrow() {
            return Ok(Json(wire::Watched { changed }));
        }
        tokio::select! {
            () = wake.wait(LOOK_ANYWAY.min(Duration::from_millis(left_ms as u64))) => {}
            () = told(&mut stopping) => {}
        }
    }
}

/// Take no more work
#[utoipa::path(
    post, path = "/v1/work/drain", tag = "work",
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::Done))
)]
pub(crate) async fn drain(Worker(id): Worker, State(app): State<App>) -> Answer<Json<wire::Done>> {
    // Ends a claim of this worker that still waits: it is to get no more work.
    drop(app.waiting().begin(id));
    Ok(done(app.store().claims().drain(id).await?.is_applied()))
}

/// Leave: whatever it still held goes to others
#[utoipa::path(
    post, path = "/v1/work/leave", tag = "work",
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::Done))
)]
pub(crate) async fn leave(Worker(id): Worker, State(app): State<App>) -> Answer<Json<wire::Done>> {
    Ok(done(app.store().claims().leave(id).await?.is_applied()))
}
