//! Claiming, for workers and for agents alike: one long poll, one look-up by nonce, and one release when the caller
//! goes away.
//!
//! ```text
//!   caller ── claim ─▶ a task of its own: claim_once ─▶ received, or wait for a wake-up and claim again
//!     └── goes away ─▶ that task ends, and returns to the queue what it has just received
//! ```
//!
//! A claim with a nonce returns nothing: its caller may be repeating it, and the repeat may have found the execution and
//! started it. If no repeat comes, the lease lapses.

mod turns;

use std::sync::Arc;
use std::time::Duration;

use sprag_lifecycle::mutant;
use sprag_store::{Assignment, Claimer, Got, NewWorker, Overdue, Reach, Topic, in_this_request};
use tokio::sync::{oneshot, watch};

use crate::App;
use crate::error::{Error, ErrorKind};

pub(crate) use turns::{Turn, Turns};

/// The longest wait for a wake-up before the store is read again anyway.
pub(crate) const LOOK_ANYWAY: Duration = Duration::from_secs(2);

/// A claim, and the conditions under which it waits.
pub(crate) struct Claim {
    /// The claimer, its queues, its lease and its nonce.
    pub(crate) claimer: Claimer,
    /// The most executions to receive.
    pub(crate) limit: usize,
    /// The presence of an agent or a person, which is registered once it receives something. None for a worker, which
    /// has registered itself.
    pub(crate) agent: Option<NewWorker>,
    /// The moment at which the wait ends (steady).
    pub(crate) until_ms: i64,
    /// The worker's turn, if it may wait only once: the wait ends when the worker asks again.
    pub(crate) turn: Option<Turn>,
    /// Becomes true when the process is stopping: the wait ends then.
    pub(crate) stopping: Option<watch::Receiver<bool>>,
}

impl Claim {
    /// Whether the claimer has asked again since.
    fn is_outdated(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| !turn.is_last())
    }

    fn is_stopping(&self) -> bool {
        self.stopping.as_ref().is_some_and(|stopping| *stopping.borrow())
    }

    /// Whether a caller that went away may be sending the same claim again at this very moment: agents and remote workers
    /// repeat a claim by its nonce.
    fn may_be_repeated(&self) -> bool {
        self.claimer.nonce != 0 && !mutant!(GivenBackThoughRepeated)
    }

    /// Waits until the claimer asks again, or the process is stopping.
    async fn ended(&mut self) {
        let Claim { turn, stopping, .. } = self;
        let asked_again = async {
            match turn {
                Some(turn) => turn.over().await,
                None => std::future::pending().await,
            }
        };
        let stopping = async {
            match stopping {
                Some(stopping) => drop(stopping.wait_for(|stop| *stop).await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = asked_again => {}
            () = stopping => {}
        }
    }
}

/// Claims for a caller that may go away while it waits: a dropped future ends the wait, and executions that were just
/// received for it return to their queues at once, unless the caller may repeat its claim.
pub(crate) async fn claim(app: &App, mut claim: Claim) -> Result<Vec<Assignment>, Error> {
    let (mut tell, hear) = oneshot::channel();
    let app = app.clone();
    // The author and the step of the request are those of the claim, too.
    tokio::spawn(in_this_request(async move {
        let got = poll(&app, &mut claim, &mut tell).await;
        // The caller may have received these executions by an earlier claim, and may be working on them.
        if let Err(Ok(unheard)) = tell.send(got)
            && !unheard.before
            && !claim.may_be_repeated()
        {
            give_back(&app, unheard.assignments).await;
        }
    }));
    match hear.await {
        Ok(got) => Ok(got?.assignments),
        Err(_) => Err(Error::new(ErrorKind::Unavailable, "the process is shutting down").next("try again")),
    }
}

/// Claims until something is received or the wait is over.
async fn poll(app: &App, claim: &mut Claim, caller: &mut oneshot::Sender<Answer>) -> Answer {
    let topics = claim.claimer.queues.iter().map(|queue| Topic::Queue(Arc::clone(queue))).collect();
    // Workers claim from a server, whose executor listens to the whole journal.
    let reach = if claim.agent.is_some() { Reach::Everywhere } else { Reach::Here };
    let wake = app.store.subscribe_from(topics, reach);
    let nothing = Got { assignments: Vec::new(), before: false };
    while !caller.is_closed() && !claim.is_outdated() {
        let got =
            app.store.claims().claim_once(claim.claimer.clone(), claim.limit, claim.agent.clone()).await?;
        if !got.assignments.is_empty() {
            return Ok(got);
        }
        if claim.agent.is_some() && mind_the_clock(app).await? {
            continue;
        }
        let left_ms = claim.until_ms - app.store.now().steady_ms;
        if left_ms <= 0 || claim.is_stopping() {
            break;
        }
        tokio::select! {
            () = wake.wait(LOOK_ANYWAY.min(Duration::from_millis(left_ms as u64))) => {}
            () = claim.ended() => {}
            () = caller.closed() => {}
        }
    }
    Ok(nothing)
}

type Answer = Result<Got, Error>;

/// Returns executions to their queues, because their claimer has gone away.
async fn give_back(app: &App, unheard: Vec<Assignment>) {
    for assignment in unheard {
        let execution = assignment.lease.execution;
        tracing::info!(%execution, "its claimer has gone away: it goes back to its queue");
        if let Err(error) = app.store.worker(assignment.lease).release().await {
            tracing::warn!(%execution, %error, "returning an execution to its queue");
        }
    }
}

/// Fires due timers and expires lapsed leases. Where no server and no worker runs, the claimer has to do this itself,
/// so that tasks of dead holders and tasks whose backoff is over become available. Returns whether anything was due.
async fn mind_the_clock(app: &App) -> Result<bool, Error> {
    /// At most this many of each at once: other processes want to write too.
    const SOME: usize = 64;
    let now_ms = app.store.now().steady_ms;
    let Overdue { timers, lapsed } = app.store.queries().overdue(now_ms, SOME)?;
    let mut acted = false;
    for timer in timers {
        acted |= app.store.executor().timer_fired(timer.execution).await.unwrap_or_else(|error| {
            tracing::warn!(run = %timer.execution.run, %error, "a timer could not be handled");
            false
        });
    }
    for lease in lapsed {
        match app.store.reaper().expire(lease).await {
            Ok(outcome) => acted |= outcome.is_applied(),
            Err(error) => {
                tracing::warn!(run = %lease.execution.run, %error, "a lapsed lease could not be expired")
            }
        }
    }
    Ok(acted)
}
