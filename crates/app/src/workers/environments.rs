//! Environments on other hosts: workers there ask for them, make them, report them, and clean them up.

use sprag_lifecycle::RunId;
use sprag_store::{EnvironmentRow, Id, Row, WorkerRow};
use sprag_worker::{OnRecord, Records, last_finished, wire};

use super::RemoteWorker;
use super::sites::{checked_details, checked_wanted, lost_host};
use crate::App;
use crate::environments::Environments;
use crate::error::{Error, ErrorKind};

impl RemoteWorker {
    /// Answers a question about the environment of a run, or records a fact about it. The worker holds a step of the
    /// run.
    pub async fn environment(&self, asked: wire::AskEnvironment) -> Result<wire::Told, Error> {
        let wire::AskEnvironment { lease, ask } = asked;
        let (app, worker) = (&self.app, self.id);
        let store = app.store.remote_worker(worker, lease);
        Ok(match ask {
            wire::Ask::Plan { run } => wire::Told::Plan(store.plan(run).await??),
            wire::Ask::Find { run, scope } => {
                wire::Told::Found(store.environment(run, scope).await??.as_ref().map(OnRecord::of))
            }
            wire::Ask::Provide { wanted, seen } => {
                let (run, scope, new_id) = (wanted.run, wanted.scope, app.new_id());
                let check = move |worker: &WorkerRow, found: Option<&EnvironmentRow>| {
                    checked_wanted(wanted.clone(), new_id, worker, found)
                };
                wire::Told::Provided(store.provide_environment(run, scope, seen, check).await??.into())
            }
            wire::Ask::Describe { environment, details } => {
                let check = move |not_ready: Option<&EnvironmentRow>| {
                    checked_details(&details, not_ready.map_or(Ok(None), lost_host)?)
                };
                store.describe_environment(environment, check).await??;
                wire::Told::Noted(true)
            }
            wire::Ask::Made { environment, attempt, how } => {
                let (event, reason) = how.event();
                wire::Told::Noted(store.environment_created(environment, attempt, event, reason).await??)
            }
            wire::Ask::TakeFromDead { path } => {
                let host = store.host().await??;
                let taken = Records::take_from_dead(&app.store, lease, worker, host, path).await;
                wire::Told::Taken(taken.map_err(Error::failed)?)
            }
            wire::Ask::EnterThread { thread } => {
                wire::Told::Thread(store.enter_thread(thread.run, thread.step).await??)
            }
            wire::Ask::ThreadEvent { thread, said } => {
                let Some((event, report)) = said.event() else {
                    return Err(Error::invalid(format!("{:?} is no event of a thread", said.event)));
                };
                let counts = store.thread_event(thread.run, thread.step, event, report).await??;
                wire::Told::Noted(counts)
            }
            wire::Ask::Permission { asked } => wire::Told::Permission(store.ask_permission(asked).await??),
            wire::Ask::WithdrawPermission {} => {
                store.withdraw_permission().await??;
                wire::Told::Noted(true)
            }
            wire::Ask::StepToken {} => {
                store.holds().await??;
                wire::Told::StepToken(app.step_token(lease)?)
            }
            wire::Ask::LastFinished { run } => {
                let run = store.run_in_full(run).await??;
                wire::Told::Steps(run.map(|run| last_finished(&run)).unwrap_or_default())
            }
        })
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
        let claims = self.app.store.claims();
        let attempt = claims.destroy_on_own_host(environment, self.id, present).await??;
        Ok(wire::MayDestroy { attempt })
    }

    /// Records the result of removing an environment.
    pub async fn destroyed(&self, told: wire::Destroyed) -> Result<wire::Done, Error> {
        let wire::Destroyed { environment, attempt, wrong } = told;
        let claims = self.app.store.claims();
        let outcome = claims.environment_removed(environment, self.id, attempt, wrong).await?;
        let outcome = outcome.ok_or_else(|| Error::new(ErrorKind::Refused, "another worker removes it"))?;
        outcome.require_applied()?;
        Ok(wire::Done { applied: true })
    }
}

/// Returns what can be removed on the host of a worker.
fn due_for(app: &App, worker: Id, runs: Vec<RunId>) -> Result<wire::Due, Error> {
    let (mut ended, mut forgotten) = (Vec::new(), Vec::new());
    for run in runs {
        let row = app.store.queries().run(run)?;
        if row.is_none() {
            forgotten.push(run);
        }
        if row.is_none_or(|row| row.status().is_terminal()) {
            ended.push(run);
        }
    }
    let row = app.store.queries().worker(worker)?;
    let due = match row.as_ref().map(WorkerRow::host).filter(|host| !host.is_empty()) {
        Some(host) => Environments::new(app, worker).due_on(host)?,
        None => Vec::new(),
    };
    Ok(wire::Due { ended, forgotten, environments: due.iter().map(OnRecord::of).collect() })
}
