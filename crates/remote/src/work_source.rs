//! A server as a worker's source. A request is retried until there is an answer, in ways that are safe to repeat.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use sprag_lifecycle::RunId;
use sprag_process::boot_ms;
use sprag_store::{Claimer, Ending, Id, Lease, NewWorker, Topic};
use sprag_worker::{
    HeartbeatReply, Holding, LeaseState, LeasedWork, WorkSource, WorkSourceError, pause, wire,
};
use tokio::sync::watch;

use crate::backoff::{Backoff, random};
use crate::client::Client;
use crate::error::Error;
use crate::unsent::Backlog;

/// The time that a claim waits at the server.
const POLL: Duration = Duration::from_secs(20);
/// The time that an answer may take beyond the wait at the server.
const SLACK: Duration = Duration::from_secs(5);
/// The time limit of a short request.
const SHORT: Duration = Duration::from_secs(10);
/// The time for which a report is retried. If another worker owns the execution by then, the fence decides.
const REPORT_FOR: Duration = Duration::from_secs(120);
/// The time for which a worker retries to drain, to deregister, or to report that processes are gone.
const GOODBYE: Duration = Duration::from_secs(10);
/// The shortest remaining lease with which an execution is started, in ms.
const TOO_SHORT_MS: u64 = 1_000;

/// A server. Cloning it is cheap.
#[derive(Clone)]
pub struct Remote {
    client: Client,
    backlog: Backlog,
    /// Whether requests are no longer retried.
    hurried: Arc<AtomicBool>,
}

impl Remote {
    /// Creates a source that uses this client. While too much of the backlog waits to be sent, it claims nothing.
    pub(crate) fn new(client: Client, backlog: Backlog) -> Self {
        Remote { client, backlog, hurried: Arc::default() }
    }

    /// Whether requests are no longer retried.
    pub(crate) fn is_hurried(&self) -> bool {
        self.hurried.load(Ordering::Acquire)
    }

    /// Stops all retries from now on.
    pub fn hurry(&self) {
        self.hurried.store(true, Ordering::Release);
    }

    /// Retries a request until its outcome is known or the time is over.
    async fn insist<R: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        told: &impl serde::Serialize,
        for_up_to: Duration,
    ) -> Result<R, Error> {
        let until_ms = boot_ms() + for_up_to.as_millis() as u64;
        let mut backoff = Backoff::default();
        loop {
            let left = Duration::from_millis(until_ms.saturating_sub(boot_ms()));
            let error = match self.client.post(path, told, SHORT.min(left)).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let wait = backoff.next(error.after());
            let over = boot_ms() + wait.as_millis() as u64 >= until_ms;
            if !error.is_unknown() || over || self.is_hurried() {
                return Err(error);
            }
            tracing::warn!(%error, path, "no answer from the server: retrying");
            pause(wait).await;
        }
    }

    /// Converts leases from the server to this machine's clock. Leases that are about to lapse are renewed first, and
    /// executions whose lease is too short are not started.
    async fn granted(&self, given: Vec<wire::GivenWork>, sent_ms: u64, lease_ms: i64) -> Vec<LeasedWork> {
        let mut granted: Vec<LeasedWork> = given
            .into_iter()
            .map(|given| {
                let until_ms = sent_ms.saturating_add_signed(given.lease_ms);
                LeasedWork { assignment: given.assignment, until_ms }
            })
            .collect();
        let lease = Duration::from_millis(lease_ms.max(0) as u64);
        let soon_ms = boot_ms() + lease.as_millis() as u64 / 2;
        if granted.iter().any(|granted| granted.until_ms < soon_ms) {
            let leases = granted.iter().map(|granted| granted.assignment.lease).collect();
            if let Ok(beat) = self.heartbeat(self.client.id(), leases, lease).await {
                for (granted, kept) in granted.iter_mut().zip(&beat.kept) {
                    granted.until_ms = if *kept == LeaseState::Lost { 0 } else { beat.until_ms };
                }
            }
        }
        granted.retain(|granted| {
            let held = granted.until_ms > boot_ms() + TOO_SHORT_MS;
            if !held {
                let execution = granted.assignment.lease.execution;
                tracing::warn!(%execution, "the lease expired before the step could start: left to other workers");
            }
            held
        });
        granted
    }
}

impl WorkSource for Remote {
    type Error = Error;
    type Listener = ();

    fn listen(&self, _: Vec<Topic>) {}

    /// Returns at once, because a claim has waited at the server already.
    async fn rest(&self, (): &(), _: Duration) {}

    async fn disturbed(&self, (): &(), held: Holding, limit: Duration) {
        let wait_ms = limit.as_millis() as u64;
        let asked = wire::Watch { going: held.going, ending: held.ending, wait_ms };
        let watching = async {
            let watched = self.client.post::<wire::Watched>("/v1/work/watch", &asked, limit).await;
            if !matches!(watched, Ok(wire::Watched { changed: true })) {
                // Spend the rest of the time without the server.
                std::future::pending::<()>().await;
            }
        };
        let _ = tokio::time::timeout(limit, watching).await;
    }

    fn nonce(&self) -> i64 {
        ((random() >> 1) as i64).max(1)
    }

    async fn register(&self, new: NewWorker) -> Result<(), Error> {
        let registered = self.client.post::<wire::Registered>("/v1/work/register", &new, SHORT).await?;
        self.client.set_store(registered.store);
        Ok(())
    }

    async fn claim(
        &self,
        claimer: Claimer,
        limit: usize,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<Vec<LeasedWork>, Error> {
        let lease_ms = claimer.lease_ms;
        let wanted = wire::Claim { claimer, limit, wait_ms: POLL.as_millis() as u64 };
        let mut backoff = Backoff::default();
        // The nonce stays the same: if an answer was lost, the next one repeats it.
        while !*stop.borrow() {
            tokio::select! {
                () = self.backlog.room() => {}
                _ = stop.changed() => continue,
            }
            let sent_ms = boot_ms();
            let answer = tokio::select! {
                answer = self.client.post::<wire::Claimed>("/v1/work/claim", &wanted, POLL + SLACK) => answer,
                // Executions that the server grants meanwhile go back to the queue, because the answer is not
                // received.
                () = self.backlog.full() => continue,
                _ = stop.changed() => continue,
            };
            match answer {
                Ok(claimed) => return Ok(self.granted(claimed.given, sent_ms, lease_ms).await),
                Err(error) if error.is_unknown() => {
                    tracing::warn!(%error, "claiming work failed");
                    let wait = backoff.next(error.after());
                    tokio::select! {
                        () = pause(wait) => {}
                        _ = stop.changed() => {}
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Vec::new())
    }

    async fn heartbeat(&self, _: Id, leases: Vec<Lease>, lease: Duration) -> Result<HeartbeatReply, Error> {
        let told = wire::Heartbeat { leases, lease_ms: lease.as_millis() as i64 };
        // Retry until the next heartbeat is due.
        let give_up_ms = boot_ms() + lease.as_millis() as u64 / 3;
        let mut backoff = Backoff::default();
        loop {
            let sent_ms = boot_ms();
            let answer = self.client.post::<wire::Beaten>("/v1/work/heartbeat", &told, lease / 5).await;
            match answer {
                Ok(wire::Beaten { known, lease_ms, kept }) => {
                    return Ok(HeartbeatReply {
                        known,
                        until_ms: sent_ms.saturating_add_signed(lease_ms),
                        kept,
                    });
                }
                Err(error) => {
                    let wait = backoff.next(error.after());
                    if !error.is_unknown() || boot_ms() + wait.as_millis() as u64 >= give_up_ms {
                        return Err(error);
                    }
                    tracing::warn!(%error, "heartbeat failed");
                    pause(wait).await;
                }
            }
        }
    }

    async fn finish(
        &self,
        lease: Lease,
        ending: Ending,
        next: Option<Claimer>,
    ) -> Result<Option<LeasedWork>, Error> {
        let lease_ms = next.as_ref().map_or(0, |next| next.lease_ms);
        let told = wire::Finish { lease, ending, next };
        // Counted from the first try. If that was long ago, the lease of the next execution is renewed at once.
        let sent_ms = boot_ms();
        match self.insist::<wire::Finished>("/v1/work/finish", &told, REPORT_FOR).await {
            Ok(finished) => {
                if finished.before {
                    tracing::info!(execution = %lease.execution, "the server had already accepted the report");
                }
                let next = finished.next.into_iter().collect();
                Ok(self.granted(next, sent_ms, lease_ms).await.pop())
            }
            Err(Error::TooLarge(message)) => {
                let message = format!("what it hands on is too large for the server: {message}");
                let facts = json!({ "reason": "output", "message": message }).to_string();
                let ending = Ending::Failed { result: Some(facts.into()), retriable: false };
                let told = wire::Finish { lease, ending, next: None };
                self.insist::<wire::Finished>("/v1/work/finish", &told, REPORT_FOR).await.map(|_| None)
            }
            Err(Error::Refused(reason) | Error::Gone(reason)) => {
                tracing::warn!(execution = %lease.execution, reason, "result refused");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn vanished(&self, lease: Lease) -> Result<(), Error> {
        let told = wire::Held { lease };
        match self.insist::<wire::Done>("/v1/work/vanished", &told, GOODBYE).await {
            Ok(_) | Err(Error::Refused(_) | Error::Gone(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn release(&self, lease: Lease) -> Result<(), Error> {
        let told = wire::Held { lease };
        match self.insist::<wire::Done>("/v1/work/release", &told, GOODBYE).await {
            Ok(_) | Err(Error::Refused(_) | Error::Gone(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Does nothing, because only a process that started a run has a run of its own.
    async fn reclaim(&self, _: RunId, _: Id) -> Result<(), Error> {
        Ok(())
    }

    async fn drain(&self, _: Id) -> Result<(), Error> {
        self.insist::<wire::Done>("/v1/work/drain", &json!({}), GOODBYE).await.map(drop)
    }

    async fn leave(&self, _: Id) -> Result<(), Error> {
        match self.insist::<wire::Done>("/v1/work/leave", &json!({}), GOODBYE).await {
            Err(error) if error.is_final() => Err(error),
            Err(error) => {
                tracing::warn!(%error, "could not deregister from the server");
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }
}
