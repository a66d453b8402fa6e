//! Reports of how work ended, by the workers that did it.

use sprag_store::Lease;
use sprag_worker::wire;

use super::logs::forget_log;
use super::{RemoteWorker, checked, given, refused};
use crate::error::{Error, ErrorKind};

/// The most bytes of a step's result: its outputs, which workers keep below 4 MiB, with secrets masked.
const MOST_RESULT_BYTES: usize = 16 << 20;

impl RemoteWorker {
    /// Reports the end of an execution, and receives the next one of the same run. The same report a second time gets
    /// the same answer as the first, because that answer may have been lost.
    pub async fn finish(&self, told: wire::Finish) -> Result<wire::Finished, Error> {
        if told.ending.result().is_some_and(|result| result.len() > MOST_RESULT_BYTES) {
            let message = format!("the result has more than {MOST_RESULT_BYTES} bytes");
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        let received_ms = self.app.now().steady_ms;
        let next = told.next.map(|next| checked(next, self.id)).transpose()?;
        let heard = self.app.store.worker(told.lease).finish_of(self.id, told.ending, next).await?;
        if !heard.before && !heard.finished.outcome.is_applied() {
            return Err(refused(heard.finished.outcome));
        }
        let next = heard.finished.next.map(|assignment| given(&self.app, assignment, received_ms));
        Ok(wire::Finished { before: heard.before, next })
    }

    /// Returns an unfinished execution to its queue, and deletes its log: the next worker writes the log of the same
    /// attempt from the start.
    pub async fn release(&self, lease: Lease) -> Result<wire::Done, Error> {
        let worker = self.id;
        self.app.blocking(move |app| forget_log(app, worker, lease)).await?;
        self.give_up(lease, false).await
    }

    /// Records that the processes that executed something are gone, so that its end is unknown.
    pub async fn vanished(&self, lease: Lease) -> Result<wire::Done, Error> {
        self.give_up(lease, true).await
    }

    async fn give_up(&self, lease: Lease, processes_gone: bool) -> Result<wire::Done, Error> {
        let outcome = self.app.store.worker(lease).give_up(self.id, processes_gone).await?;
        if outcome.is_applied() { Ok(wire::Done { applied: true }) } else { Err(refused(outcome)) }
    }
}
