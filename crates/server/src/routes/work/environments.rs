//! Environments on other hosts: workers there ask for them, make them, report them, and clean them up.

use axum::extract::State;
use sprag_app::Environments;
use sprag_lifecycle::{Actor, EnvironmentEvent, EnvironmentStatus, RunId};
use sprag_store::ops::{self, Lease};
use sprag_store::{EnvironmentReport, EnvironmentRow, Id, Row, RunRow, Session, Table, WorkerRow};
use sprag_worker::{Made, OnRecord, Records, last_finished, wire};

use super::sites::{checked_details, checked_wanted, lost_host};
use super::{Worker, done, refused, registered};
use crate::app::App;
use crate::extract::Json;
use crate::problem::{Answer, Problem, internal};

/// Ask or tell about the environment of a run, while holding a step of it
#[utoipa::path(
    post, path = "/v1/work/environment", tag = "work", request_body = wire::AskEnvironment,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses(
        (status = 200, body = Object),
        (status = 409, description = "Problem: the step is not the worker's, or the environment is another's"),
    )
)]
pub(crate) async fn ask(
    Worker(id): Worker,
    State(app): State<App>,
    Json(wire::AskEnvironment { lease, ask }): Json<wire::AskEnvironment>,
) -> Answer<Json<wire::Told>> {
    let about = match &ask {
        wire::Ask::Plan { run } | wire::Ask::Find { run, .. } | wire::Ask::LastFinished { run } => {
            About::Run(*run)
        }
        wire::Ask::Provide { wanted, .. } => About::Run(wanted.run),
        wire::Ask::Describe { environment, .. } | wire::Ask::Made { environment, .. } => {
            About::Environment(*environment)
        }
        wire::Ask::TakeFromDead { .. } => About::Run(lease.execution.run),
    };
    if let wire::Ask::TakeFromDead { path } = ask {
        let may = app.store().write(move |session| match may_ask(session, id, lease, about)? {
            Ok(()) => Ok(registered(session, id)?.map(|worker| worker.host().to_owned())),
            Err(refused) => Ok(Err(refused)),
        });
        let host = may.await??;
        let taken = Records::take_from_dead(app.store(), lease, id, host, path).await.map_err(internal)?;
        return Ok(Json(wire::Told::Taken(taken)));
    }
    let new_id = app.store().new_id();
    app.store()
        .write(move |session| match may_ask(session, id, lease, about)? {
            Ok(()) => answer(session, id, new_id, ask.clone()),
            Err(refused) => Ok(Err(refused)),
        })
        .await?
        .map(Json)
}

/// Answers a question in the same transaction that has checked that the worker holds the step.
fn answer(
    session: &mut Session<'_>,
    worker: Id,
    new_id: Id,
    ask: wire::Ask,
) -> sprag_store::Result<Answer<wire::Told>> {
    Ok(Ok(match ask {
        wire::Ask::Plan { run } => {
            let row = Table::<RunRow>::load(session.db(), run)?;
            wire::Told::Plan(row.map(|row| session.db().plan(row.plan)).transpose()?.flatten())
        }
        wire::Ask::Find { run, scope } => {
            let rows = session.db().environments_of(run)?;
            wire::Told::Found(rows.iter().find(|row| row.scope == scope).map(OnRecord::of))
        }
        wire::Ask::Provide { wanted, seen } => {
            let rows = session.db().environments_of(wanted.run)?;
            let found = rows.iter().find(|row| row.scope == wanted.scope);
            let checked = registered(session, worker)?
                .and_then(|worker| checked_wanted(wanted, new_id, &worker, found));
            let wanted = match checked {
                Ok(wanted) => wanted,
                Err(problem) => return Ok(Err(problem)),
            };
            wire::Told::Provided(ops::provide_environment(session, &wanted, seen)?.into())
        }
        wire::Ask::Describe { environment, details } => {
            let row = Table::<EnvironmentRow>::load(session.db(), environment)?;
            let lost = row.filter(|row| row.status() != EnvironmentStatus::Ready).map(|row| lost_host(&row));
            let details = match checked_details(&details, lost.unwrap_or_default()) {
                Ok(details) => details,
                Err(problem) => return Ok(Err(problem)),
            };
            ops::describe_environment(session, environment, &details)?;
            wire::Told::Noted(true)
        }
        wire::Ask::Made { environment, attempt, how } => {
            // Reported before, and the answer to that report was lost.
            let row = Table::<EnvironmentRow>::load(session.db(), environment)?;
            let stands = how == Made::Ready
                && row.is_some_and(|row| {
                    row.status() == EnvironmentStatus::Ready && row.provision_attempt == attempt
                });
            let given = EnvironmentReport { attempt, ..EnvironmentReport::default() };
            let (event, reason) = how.event();
            let (reason, actor) = (reason.as_deref(), Actor::Worker);
            let told = |session: &mut Session<'_>| {
                ops::environment_event_because(session, environment, event, actor, &given, reason)
            };
            wire::Told::Noted(stands || told(session)?.is_applied())
        }
        // The whole store was asked about this above.
        wire::Ask::TakeFromDead { .. } => wire::Told::Taken(None),
        wire::Ask::LastFinished { run } => wire::Told::Steps(last_finished(session.db(), run)?),
    }))
}

#[derive(Clone, Copy)]
enum About {
    Run(RunId),
    Environment(Id),
}

/// Checks whether the worker that holds this step may ask about this run or environment.
fn may_ask(
    session: &mut Session<'_>,
    worker: Id,
    lease: Lease,
    about: About,
) -> sprag_store::Result<Answer<()>> {
    if let Some(outcome) = ops::not_held(session, worker, lease)? {
        return Ok(Err(refused(outcome)));
    }
    let db = session.db();
    let own = lease.execution.run;
    let above = Table::<RunRow>::load(db, own)?.and_then(|row| ops::environment_of(&row.context));
    let fits = match about {
        About::Run(run) => run == own || Some(run) == above,
        About::Environment(environment) => {
            let row = Table::<EnvironmentRow>::load(db, environment)?;
            row.is_some_and(|row| {
                row.owner == Some(worker) && row.run.is_some_and(|run| run == own || Some(run) == above)
            })
        }
    };
    Ok(match fits {
        true => Ok(()),
        false => Err(Problem::refused("the environment is not the one that the step works in")),
    })
}

/// Ask what can go on the worker's host: files of runs that have ended, environments that nobody needs
#[utoipa::path(
    post, path = "/v1/work/tidy", tag = "work", request_body = wire::Tidy,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::Due))
)]
pub(crate) async fn tidy(
    Worker(id): Worker,
    State(app): State<App>,
    Json(wire::Tidy { runs }): Json<wire::Tidy>,
) -> Answer<Json<wire::Due>> {
    /// The most runs in one request.
    const MOST_RUNS: usize = 1_000;
    if runs.len() > MOST_RUNS {
        return Err(Problem::invalid(format!("runs: at most {MOST_RUNS} at once")));
    }
    app.blocking(move |app| {
        let store = app.store();
        let (mut ended, mut forgotten) = (Vec::new(), Vec::new());
        for run in runs {
            let row = store.read(|db| Table::<RunRow>::load(db, run))?;
            if row.is_none() {
                forgotten.push(run);
            }
            if row.is_none_or(|row| row.status().is_terminal()) {
                ended.push(run);
            }
        }
        let keeper = Environments::new(app.core(), id);
        let due = match host_of(app, id)? {
            Some(host) => keeper.due_on(&host).map_err(internal)?,
            None => Vec::new(),
        };
        Ok(Json(wire::Due { ended, forgotten, environments: due.iter().map(OnRecord::of).collect() }))
    })
    .await
}

/// Returns the host of a worker.
fn host_of(app: &App, worker: Id) -> Answer<Option<String>> {
    let row = app.store().read(|db| Table::<WorkerRow>::load(db, worker))?;
    let host = row.and_then(|row| row.process.split('/').next().map(str::to_owned));
    Ok(host.filter(|host| !host.is_empty()))
}

/// Begin to remove an environment of the worker's host
#[utoipa::path(
    post, path = "/v1/work/destroy", tag = "work", request_body = wire::Destroy,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::MayDestroy), (status = 409, description = "Problem: it is on another host"))
)]
pub(crate) async fn destroy(
    Worker(id): Worker,
    State(app): State<App>,
    Json(wire::Destroy { environment, present }): Json<wire::Destroy>,
) -> Answer<Json<wire::MayDestroy>> {
    let attempt = app.store().write(move |session| {
        let host = match registered(session, id)? {
            Ok(worker) => worker.host().to_owned(),
            Err(problem) => return Ok(Err(problem)),
        };
        let row = Table::<EnvironmentRow>::load(session.db(), environment)?;
        match row.is_some_and(|row| *row.host == *host) {
            true => ops::dispatch_destroy(session, environment, id, present).map(Ok),
            false => Ok(Err(Problem::refused("there is no such environment on the worker's host"))),
        }
    });
    Ok(Json(wire::MayDestroy { attempt: attempt.await?? }))
}

/// Say how removing an environment went
#[utoipa::path(
    post, path = "/v1/work/destroyed", tag = "work", request_body = wire::Destroyed,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::Done), (status = 409, description = "Problem: somebody else is at it"))
)]
pub(crate) async fn destroyed(
    Worker(id): Worker,
    State(app): State<App>,
    Json(wire::Destroyed { environment, attempt, wrong }): Json<wire::Destroyed>,
) -> Answer<Json<wire::Done>> {
    let event = match wrong {
        None => EnvironmentEvent::DestroySucceeded,
        Some(_) => EnvironmentEvent::DestroyFailed,
    };
    let outcome = app
        .store()
        .write(move |session| {
            let row = Table::<EnvironmentRow>::load(session.db(), environment)?;
            if row.is_none_or(|row| row.owner != Some(id)) {
                return Ok(None);
            }
            let given = EnvironmentReport { attempt, ..EnvironmentReport::default() };
            ops::environment_event_because(
                session,
                environment,
                event,
                Actor::Worker,
                &given,
                wrong.as_deref(),
            )
            .map(Some)
        })
        .await?;
    match outcome {
        Some(outcome) => {
            outcome.require_applied()?;
            Ok(done(true))
        }
        None => Err(Problem::refused("somebody else removes it")),
    }
}
