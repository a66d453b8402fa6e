//! Workers claim work, send heartbeats, and wait to hear that something has to end.

use std::time::Duration;

use sprag_store::{ExecutionRow, Lease, Reach, Topic};
use sprag_worker::{LeaseState, wire};
use tokio::sync::watch;

use super::{MOST_HELD, RemoteWorker, check_count, check_lease, checked, given};
use crate::claims::{Claim, LOOK_ANYWAY, claim};
use crate::error::Error;

impl RemoteWorker {
    /// Receives work; waits for some, if asked to. Returns nothing if nothing came in time, or once `stopping` becomes
    /// true. The same nonce gets what it got before, for as long as that is held.
    pub async fn claim(
        &self,
        wanted: wire::Claim,
        stopping: watch::Receiver<bool>,
    ) -> Result<wire::Claimed, Error> {
        let received_ms = self.app.now().steady_ms;
        let claimer = checked(wanted.claimer, self.id)?;
        if !(1..=MOST_HELD).contains(&wanted.limit) {
            return Err(Error::field("limit", format!("between 1 and {MOST_HELD}")));
        }
        let wait_ms = wanted.wait_ms.min(wire::LONGEST_WAIT_MS) as i64;
        let wanted = Claim {
            claimer,
            limit: wanted.limit,
            agent: None,
            until_ms: received_ms + wait_ms,
            turn: Some(self.app.turns.start(self.id)),
            stopping: Some(stopping),
        };
        let claimed = claim(&self.app, wanted).await?;
        let given = claimed.into_iter().map(|assignment| given(&self.app, assignment, received_ms)).collect();
        Ok(wire::Claimed { given })
    }

    /// Records that the worker is there, and renews what it holds.
    pub async fn heartbeat(&self, told: wire::Heartbeat) -> Result<wire::Beaten, Error> {
        check_lease(told.lease_ms)?;
        check_count(told.leases.len())?;
        let received_ms = self.app.now().steady_ms;
        let beat = self.app.store.claims().heartbeat_of(self.id, told.leases, told.lease_ms).await?;
        Ok(wire::Beaten {
            known: beat.known,
            lease_ms: beat.until_ms - received_ms,
            kept: beat.renewals.into_iter().map(LeaseState::from).collect(),
        })
    }

    /// Waits until something that the worker holds has to end or was lost, or `stopping` becomes true.
    pub async fn watch(
        &self,
        asked: wire::Watch,
        mut stopping: watch::Receiver<bool>,
    ) -> Result<wire::Watched, Error> {
        check_count(asked.going.len() + asked.ending.len())?;
        let id = self.id;
        let wake = self.app.store.subscribe_from(vec![Topic::Worker(id)], Reach::Here);
        let until_ms = self.app.now().steady_ms + asked.wait_ms.min(wire::LONGEST_WAIT_MS) as i64;
        loop {
            let held = self.app.blocking(move |app| Ok::<_, Error>(app.store.queries().held_by(id)?)).await?;
            let changed = has_changed(&held, &asked);
            let left_ms = until_ms - self.app.now().steady_ms;
            if changed || left_ms <= 0 || *stopping.borrow() {
                return Ok(wire::Watched { changed });
            }
            tokio::select! {
                () = wake.wait(LOOK_ANYWAY.min(Duration::from_millis(left_ms as u64))) => {}
                _ = stopping.wait_for(|stop| *stop) => {}
            }
        }
    }
}

/// Whether a heartbeat would tell the worker of a change.
fn has_changed(held: &[ExecutionRow], asked: &wire::Watch) -> bool {
    let lease = |row: &ExecutionRow| Lease { execution: row.id, fence: row.fence };
    // The worker may hold more by now than it did when it asked.
    let to_end = held.iter().any(|row| row.cancel_requested && !asked.ending.contains(&lease(row)));
    let lost = |wanted: &Lease| !held.iter().any(|row| lease(row) == *wanted);
    to_end || asked.going.iter().any(lost)
}
