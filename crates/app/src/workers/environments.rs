//! Environments on other hosts: workers there ask for them, make them, report them, and clean them up.

use sprag_lifecycle::{Actor, EnvironmentEvent, EnvironmentStatus, RunId};
use sprag_store::ops::{self, Lease};
use sprag_store::{EnvironmentReport, EnvironmentRow, Id, Row, RunRow, Session, Table, WorkerRow};
use sprag_worker::{Made, OnRecord, Records, last_finished, wire};

use super::sites::{checked_details, checked_wanted, lost_host};
use super::{Decided, RemoteWorker, refused, registered};
use crate::App;
use crate::environments::Environments;
use crate::error::{Error, ErrorKind};

impl RemoteWorker {
    /// Answers a question about the environment of a run, or records a fact about it. The worker holds a step of the
    /// run.
    pub async fn environment(&self, asked: wire::AskEnvironment) -> Result<wire::Told, Error> {
        let wire::AskEnvironment { lease, ask } = asked;
        let id = self.id;
        let about = About::of(lease, &ask);
        if let wire::Ask::TakeFromDead { path } = ask {
            let may = self.app.store.write(move |session| match may_ask(session, id, lease, about)? {
                Ok(()) => Ok(registered(session, id)?.map(|worker| worker.host().to_owned())),
                Err(refused) => Ok(Err(refused)),
            });
            let host = may.await??;
            let taken = Records::take_from_dead(&self.app.store, lease, id, host, path).await;
            return Ok(wire::Told::Taken(taken.map_err(Error::failed)?));
        }
        let new_id = self.app.new_id();
        let told = self.app.store.write(move |session| match may_ask(session, id, lease, about)? {
            Ok(()) => answer(session, id, new_id, ask.clone()),
            Err(refused) => Ok(Err(refused)),
        });
        told.await?
    }

    /// Returns what can be removed on the worker's host: files of those of these runs that have ended, and
    /// environments that no run needs.
    pub async fn tidy(&self, asked: wire::Tidy) -> Result<wire::Due, Error> {
        /// The most runs in one request.
        const MOST_RUNS: usize = 1_000;
        if asked.runs.len() > MOST_RUNS {
            return Err(Error::field("runs", format!("at most {MOST_RUNS} at once")));
        }
        let id = self.id;
        self.app.blocking(move |app| due_for(app, id, asked.runs)).await
    }

    /// Starts to remove an environment of the worker's host.
    pub async fn destroy(&self, asked: wire::Destroy) -> Result<wire::MayDestroy, Error> {
        let wire::Destroy { environment, present } = asked;
        let id = self.id;
        let attempt = self.app.store.write(move |session| {
            let host = match registered(session, id)? {
                Ok(worker) => worker.host().to_owned(),
                Err(error) => return Ok(Err(error)),
            };
            let row = Table::<EnvironmentRow>::load(session.db(), environment)?;
            if row.is_some_and(|row| *row.host == *host) {
                ops::dispatch_destroy(session, environment, id, present).map(Ok)
            } else {
                Ok(Err(not_its("there is no such environment on the worker's host")))
            }
        });
        Ok(wire::MayDestroy { attempt: attempt.await?? })
    }

    /// Records the result of removing an environment.
    pub async fn destroyed(&self, told: wire::Destroyed) -> Result<wire::Done, Error> {
        let wire::Destroyed { environment, attempt, wrong } = told;
        let event = match wrong {
            None => EnvironmentEvent::DestroySucceeded,
            Some(_) => EnvironmentEvent::DestroyFailed,
        };
        let id = self.id;
        let outcome = self.app.store.write(move |session| {
            let row = Table::<EnvironmentRow>::load(session.db(), environment)?;
            if row.is_none_or(|row| row.owner != Some(id)) {
                return Ok(None);
            }
            let given = EnvironmentReport { attempt, ..EnvironmentReport::default() };
            let (actor, reason) = (Actor::Worker, wrong.as_deref());
            ops::environment_event_because(session, environment, event, actor, &given, reason).map(Some)
        });
        let outcome = outcome.await?.ok_or_else(|| not_its("another worker removes it"))?;
        outcome.require_applied()?;
        Ok(wire::Done { applied: true })
    }
}

fn not_its(why: &str) -> Error {
    Error::new(ErrorKind::Refused, why)
}

/// Answers a question in the same transaction that has checked that the worker holds the step.
fn answer(session: &mut Session<'_>, worker: Id, new_id: Id, ask: wire::Ask) -> Decided<wire::Told> {
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
            match checked {
                Ok(wanted) => wire::Told::Provided(ops::provide_environment(session, &wanted, seen)?.into()),
                Err(error) => return Ok(Err(error)),
            }
        }
        wire::Ask::Describe { environment, details } => {
            let row = Table::<EnvironmentRow>::load(session.db(), environment)?;
            let lost = row.filter(|row| row.status() != EnvironmentStatus::Ready);
            let checked = lost.as_ref().map_or(Ok(None), lost_host);
            match checked.and_then(|lost| checked_details(&details, lost)) {
                Ok(details) => ops::describe_environment(session, environment, &details)?,
                Err(error) => return Ok(Err(error)),
            }
            wire::Told::Noted(true)
        }
        wire::Ask::Made { environment, attempt, how } => {
            wire::Told::Noted(made(session, environment, attempt, how)?)
        }
        // The whole store was asked about this before.
        wire::Ask::TakeFromDead { .. } => wire::Told::Taken(None),
        wire::Ask::LastFinished { run } => wire::Told::Steps(last_finished(session.db(), run)?),
    }))
}

/// Records the result of making an environment. Returns whether the report stands: it counts, or the same was reported
/// before and the answer was lost.
fn made(session: &mut Session<'_>, id: Id, attempt: u32, how: Made) -> sprag_store::Result<bool> {
    let row = Table::<EnvironmentRow>::load(session.db(), id)?;
    let is_made =
        |row: EnvironmentRow| row.status() == EnvironmentStatus::Ready && row.provision_attempt == attempt;
    if how == Made::Ready && row.is_some_and(is_made) {
        return Ok(true);
    }
    let given = EnvironmentReport { attempt, ..EnvironmentReport::default() };
    let (event, reason) = how.event();
    let (actor, reason) = (Actor::Worker, reason.as_deref());
    Ok(ops::environment_event_because(session, id, event, actor, &given, reason)?.is_applied())
}

/// The object of a question.
#[derive(Clone, Copy)]
enum About {
    Run(RunId),
    Environment(Id),
}

impl About {
    fn of(lease: Lease, ask: &wire::Ask) -> About {
        match ask {
            wire::Ask::Plan { run } | wire::Ask::Find { run, .. } | wire::Ask::LastFinished { run } => {
                About::Run(*run)
            }
            wire::Ask::Provide { wanted, .. } => About::Run(wanted.run),
            wire::Ask::Describe { environment, .. } | wire::Ask::Made { environment, .. } => {
                About::Environment(*environment)
            }
            wire::Ask::TakeFromDead { .. } => About::Run(lease.execution.run),
        }
    }
}

/// Checks whether the worker that holds this step may ask about this run or environment.
fn may_ask(session: &mut Session<'_>, worker: Id, lease: Lease, about: About) -> Decided<()> {
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
    if fits { Ok(Ok(())) } else { Ok(Err(not_its("the environment is not the one that the step works in"))) }
}

/// Returns what can be removed on the host of a worker.
fn due_for(app: &App, worker: Id, runs: Vec<RunId>) -> Result<wire::Due, Error> {
    let (mut ended, mut forgotten) = (Vec::new(), Vec::new());
    for run in runs {
        let row = app.store.read(|db| Table::<RunRow>::load(db, run))?;
        if row.is_none() {
            forgotten.push(run);
        }
        if row.is_none_or(|row| row.status().is_terminal()) {
            ended.push(run);
        }
    }
    let row = app.store.read(|db| Table::<WorkerRow>::load(db, worker))?;
    let due = match row.as_ref().map(WorkerRow::host).filter(|host| !host.is_empty()) {
        Some(host) => Environments::new(app, worker).due_on(host)?,
        None => Vec::new(),
    };
    Ok(wire::Due { ended, forgotten, environments: due.iter().map(OnRecord::of).collect() })
}
