//! The endpoints of remote workers: they claim, renew, report, and send what their steps print. Each worker holds a
//! token with the scope `work`, and needs no database.
//!
//! ```text
//!   worker ── claim (waits) ─▶ what it may do, and for how long
//!      ├──── heartbeat ──────▶ what it still holds; watch (waits) tells when to ask
//!      ├──── logs ───────────▶ the execution's file, by offset
//!      └──── finish ─────────▶ 409 with the outcome, if another worker has it by now
//! ```

mod claims;
mod environments;
mod logs;
mod reports;
mod sites;
mod waiting;

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use sprag_app::tokens::Scope;
use sprag_lifecycle::Execution;
use sprag_store::ops::Claimer;
use sprag_store::{Id, Outcome, Session, Table, WorkerRow};
use sprag_worker::wire;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{Caller, forbidden};
use crate::app::App;
use crate::extract::{Json, parse, read_body};
use crate::problem::Problem;

pub(crate) use waiting::Waiting;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(claims::register))
        .routes(routes!(claims::claim))
        .routes(routes!(claims::heartbeat))
        .routes(routes!(claims::watch))
        .routes(routes!(claims::drain))
        .routes(routes!(claims::leave))
        .routes(routes!(reports::finish))
        .routes(routes!(reports::release))
        .routes(routes!(reports::vanished))
        .routes(routes!(logs::append))
        .routes(routes!(environments::ask))
        .routes(routes!(environments::tidy))
        .routes(routes!(environments::destroy))
        .routes(routes!(environments::destroyed))
}

/// The most bytes of a report: its outputs, a megabyte each, and a little more.
const MOST_REPORT_BYTES: usize = 32 << 20;
/// The allowed lengths of a lease, which is the time for which a worker may be silent.
const LEASES_MS: std::ops::RangeInclusive<i64> = 5_000..=3_600_000;
/// The most queues that one worker serves.
const MOST_QUEUES: usize = 64;
/// The most executions that one worker holds.
const MOST_HELD: usize = 4_096;

/// A worker that may work, by its number. The number is bound to the token that the request shows.
pub(crate) struct Worker(pub(crate) Id);

impl FromRequestParts<App> for Worker {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        let caller = match parts.extensions.get::<Caller>() {
            Some(caller) if caller.may(Scope::Work) => caller,
            _ => return Err(forbidden(Scope::Work)),
        };
        let key = parts.headers.get(wire::WORKER).and_then(|key| key.to_str().ok()).unwrap_or_default();
        if !(32..=128).contains(&key.len()) || !key.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(Problem::malformed(format!(
                "{}: 32 to 128 letters and digits that the worker draws, and keeps to itself",
                wire::WORKER
            )));
        }
        Ok(Worker(wire::worker_id(key, &caller.hash)))
    }
}

/// Returns the row that a worker got when it registered; a problem if it has not.
fn registered(session: &mut Session<'_>, worker: Id) -> sprag_store::Result<Result<WorkerRow, Problem>> {
    let row = Table::<WorkerRow>::load(session.db(), worker)?;
    Ok(row.ok_or_else(|| {
        Problem::refused("this worker is not registered with this token").next("POST /v1/work/register first")
    }))
}

/// A body that may be as long as a worker's report.
pub(crate) struct Report<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for Report<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        parse(&read_body(request, MOST_REPORT_BYTES, app).await?.bytes).map(Report)
    }
}

/// Returns a claimer restricted to what this worker may claim: in its own name, and only work that is not reserved to
/// one worker.
fn checked(mut claimer: Claimer, worker: Id) -> Result<Claimer, Problem> {
    check_lease(claimer.lease_ms)?;
    if claimer.queues.is_empty() || claimer.queues.len() > MOST_QUEUES {
        return Err(Problem::invalid(format!("queues: between 1 and {MOST_QUEUES}")));
    }
    if claimer.queues.iter().any(|queue| queue.is_empty() || queue.len() > 256) {
        return Err(Problem::invalid("queues: a name has between 1 and 256 bytes"));
    }
    if claimer.nonce <= 0 {
        return Err(Problem::invalid("nonce: a positive number, another for each claim"));
    }
    claimer.worker = worker;
    claimer.reserved_only = false;
    Ok(claimer)
}

fn check_lease(lease_ms: i64) -> Result<(), Problem> {
    match LEASES_MS.contains(&lease_ms) {
        true => Ok(()),
        false => Err(Problem::invalid("lease_ms: between 5 seconds and an hour")),
    }
}

fn check_count(leases: usize) -> Result<(), Problem> {
    match leases <= MOST_HELD {
        true => Ok(()),
        false => Err(Problem::invalid(format!("leases: at most {MOST_HELD}"))),
    }
}

/// Returns the problem for a refused write, with its outcome.
fn refused(outcome: Outcome<Execution>) -> Problem {
    match outcome.require_applied() {
        Err(refused) => Problem::from(refused).next("end the work: it belongs to somebody else, or is over"),
        Ok(_) => Problem::refused("it was done before"),
    }
}

/// Returns the answer that tells whether something was done.
fn done(applied: bool) -> Json<wire::Done> {
    Json(wire::Done { applied })
}
