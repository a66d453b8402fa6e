//! Reports of how work ended, by the workers that did it.

use axum::extract::State;
use sprag_lifecycle::Execution;
use sprag_store::ops::{self, Lease};
use sprag_store::{Id, Outcome, Session};
use sprag_worker::wire;

use super::claims::given;
use super::{Report, Worker, checked, done, refused};
use crate::app::App;
use crate::extract::Json;
use crate::problem::{Answer, Problem};

/// The most bytes of a step's result: its outputs, which workers keep below 4 MiB, with secrets masked.
const MOST_RESULT_BYTES: usize = 16 << 20;

/// Report how something ended, and receive what follows in the same run
///
/// The same report a second time is answered like the first: its answer may have been lost.
#[utoipa::path(
    post, path = "/v1/work/finish", tag = "work", request_body = wire::Finish,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses(
        (status = 200, body = wire::Finished),
        (status = 409, description = "Problem: it belongs to somebody else, or has ended otherwise"),
        (status = 413, description = "Problem: the result has more than 16 MiB"),
    )
)]
pub(crate) async fn finish(
    Worker(id): Worker,
    State(app): State<App>,
    Report(told): Report<wire::Finish>,
) -> Answer<Json<wire::Finished>> {
    if told.ending.result().is_some_and(|result| result.len() > MOST_RESULT_BYTES) {
        return Err(Problem::body_too_large(MOST_RESULT_BYTES));
    }
    let received_ms = app.store().now().steady_ms;
    let next = told.next.map(|next| checked(next, id)).transpose()?;
    let (lease, ending) = (told.lease, told.ending);
    let heard = app
        .store()
        .write(move |session| ops::finish_again(session, id, lease, &ending, next.as_ref()))
        .await?;
    if !heard.before && !heard.finished.outcome.is_applied() {
        return Err(refused(heard.finished.outcome));
    }
    let next = heard.finished.next.map(|assignment| given(assignment, received_ms));
    Ok(Json(wire::Finished { before: heard.before, next }))
}

/// Give something back unfinished
#[utoipa::path(
    post, path = "/v1/work/release", tag = "work", request_body = wire::Held,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::Done), (status = 409, description = "Problem: it is not the worker's"))
)]
pub(crate) async fn release(
    Worker(id): Worker,
    State(app): State<App>,
    Json(wire::Held { lease }): Json<wire::Held>,
) -> Answer<Json<wire::Done>> {
    give_up(&app, id, lease, ops::release).await
}

/// Say that the processes that did something are gone, and nobody knows how it would have ended
#[utoipa::path(
    post, path = "/v1/work/vanished", tag = "work", request_body = wire::Held,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::Done), (status = 409, description = "Problem: it is not the worker's"))
)]
pub(crate) async fn vanished(
    Worker(id): Worker,
    State(app): State<App>,
    Json(wire::Held { lease }): Json<wire::Held>,
) -> Answer<Json<wire::Done>> {
    give_up(&app, id, lease, |session, lease| ops::abandon(session, lease, ops::Lost::ProcessGone)).await
}

/// Takes an execution from a worker, if the worker holds it.
async fn give_up(
    app: &App,
    worker: Id,
    lease: Lease,
    act: fn(&mut Session<'_>, Lease) -> sprag_store::Result<Outcome<Execution>>,
) -> Answer<Json<wire::Done>> {
    let outcome = app
        .store()
        .write(move |session| match ops::not_held(session, worker, lease)? {
            Some(refused) => Ok(refused),
            None => act(session, lease),
        })
        .await?;
    if outcome.is_applied() { Ok(done(true)) } else { Err(refused(outcome)) }
}
