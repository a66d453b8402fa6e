//! The records of environments, read and written through the server by the holder of a step.

use std::sync::Arc;
use std::time::Duration;

use sprag_lifecycle::{Plan, RunId, StepNo};
use sprag_process::boot_ms;
use sprag_store::{EnvironmentRequest, Id, Lease, PermissionAsk, PermissionState, Sighting, ThreadEntry};
use sprag_worker::wire::{Ask, AskEnvironment, Destroyed, Done, Told};
use sprag_worker::{Made, OnRecord, Provided, Records, RecordsFuture, Taken, ThreadOf, ThreadSaid, pause};

use crate::backoff::{Backoff, random};
use crate::client::Client;

/// The time limit of one request, and the time for which it is retried.
const SHORT: Duration = Duration::from_secs(10);
const ASK_FOR: Duration = Duration::from_secs(60);

/// The records that a server keeps.
pub(crate) struct Asked(pub(crate) Client);

impl Asked {
    async fn ask(&self, lease: Lease, ask: Ask) -> Result<Told, String> {
        let asked = AskEnvironment { lease, ask };
        let until_ms = boot_ms() + ASK_FOR.as_millis() as u64;
        let mut backoff = Backoff::default();
        loop {
            match self.0.post("/v1/work/environment", &asked, SHORT).await {
                Ok(told) => return Ok(told),
                // A repeated request changes nothing.
                Err(error) if error.is_unknown() && boot_ms() < until_ms => {
                    tracing::warn!(%error, "asking the server about an environment failed");
                    pause(backoff.next(error.after())).await;
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

fn strange<T>(told: Told) -> Result<T, String> {
    Err(format!("the server answered something else than it was asked: {told:?}"))
}

impl Records for Asked {
    fn new_id(&self) -> Id {
        (random() >> 2) as Id + 1
    }

    fn plan(&self, lease: Lease, run: RunId) -> RecordsFuture<'_, Option<Arc<Plan>>> {
        Box::pin(async move {
            match self.ask(lease, Ask::Plan { run }).await? {
                Told::Plan(plan) => Ok(plan),
                told => strange(told),
            }
        })
    }

    fn find(&self, lease: Lease, run: RunId, scope: Option<StepNo>) -> RecordsFuture<'_, Option<OnRecord>> {
        Box::pin(async move {
            match self.ask(lease, Ask::Find { run, scope }).await? {
                Told::Found(site) => Ok(site),
                told => strange(told),
            }
        })
    }

    fn provide(
        &self,
        lease: Lease,
        wanted: EnvironmentRequest,
        seen: Option<Sighting>,
    ) -> RecordsFuture<'_, Provided> {
        Box::pin(async move {
            match self.ask(lease, Ask::Provide { wanted, seen }).await? {
                Told::Provided(provided) => Ok(provided),
                told => strange(told),
            }
        })
    }

    fn describe(&self, lease: Lease, id: Id, details: Arc<str>) -> RecordsFuture<'_, ()> {
        Box::pin(async move {
            match self.ask(lease, Ask::Describe { environment: id, details }).await? {
                Told::Noted(_) => Ok(()),
                told => strange(told),
            }
        })
    }

    fn made(&self, lease: Lease, id: Id, attempt: u32, how: Made) -> RecordsFuture<'_, bool> {
        Box::pin(async move {
            match self.ask(lease, Ask::Made { environment: id, attempt, how }).await? {
                Told::Noted(counts) => Ok(counts),
                told => strange(told),
            }
        })
    }

    fn take_from_dead(
        &self,
        lease: Lease,
        _: Id,
        _: String,
        path: String,
    ) -> RecordsFuture<'_, Option<Taken>> {
        Box::pin(async move {
            match self.ask(lease, Ask::TakeFromDead { path }).await? {
                Told::Taken(taken) => Ok(taken),
                told => strange(told),
            }
        })
    }

    fn removed(&self, _: Lease, id: Id, attempt: u32, wrong: Option<String>) -> RecordsFuture<'_, ()> {
        Box::pin(async move {
            let told = Destroyed { environment: id, attempt, wrong };
            let sent = self.0.post::<Done>("/v1/work/destroyed", &told, SHORT).await;
            sent.map(drop).map_err(|error| error.to_string())
        })
    }

    fn last_finished(&self, lease: Lease, run: RunId) -> RecordsFuture<'_, Vec<String>> {
        Box::pin(async move {
            match self.ask(lease, Ask::LastFinished { run }).await? {
                Told::Steps(steps) => Ok(steps),
                told => strange(told),
            }
        })
    }

    fn enter_thread(&self, lease: Lease, thread: ThreadOf) -> RecordsFuture<'_, ThreadEntry> {
        Box::pin(async move {
            match self.ask(lease, Ask::EnterThread { thread }).await? {
                Told::Thread(entry) => Ok(entry),
                told => strange(told),
            }
        })
    }

    fn thread_event(&self, lease: Lease, thread: ThreadOf, said: ThreadSaid) -> RecordsFuture<'_, bool> {
        Box::pin(async move {
            match self.ask(lease, Ask::ThreadEvent { thread, said }).await? {
                Told::Noted(counts) => Ok(counts),
                told => strange(told),
            }
        })
    }

    fn ask_permission(&self, lease: Lease, asked: PermissionAsk) -> RecordsFuture<'_, PermissionState> {
        Box::pin(async move {
            match self.ask(lease, Ask::Permission { asked }).await? {
                Told::Permission(state) => Ok(state),
                told => strange(told),
            }
        })
    }

    fn withdraw_permission(&self, lease: Lease) -> RecordsFuture<'_, ()> {
        Box::pin(async move {
            match self.ask(lease, Ask::WithdrawPermission {}).await? {
                Told::Noted(_) => Ok(()),
                told => strange(told),
            }
        })
    }

    fn step_token(&self, lease: Lease) -> RecordsFuture<'_, String> {
        Box::pin(async move {
            match self.ask(lease, Ask::StepToken {}).await? {
                Told::StepToken(token) => Ok(token),
                told => strange(told),
            }
        })
    }

    /// Only waits: the server itself detects dead workers.
    fn wait(&self, _: RunId, _: Option<Id>, limit: Duration) -> RecordsFuture<'_, ()> {
        Box::pin(async move {
            pause(limit).await;
            Ok(())
        })
    }
}
