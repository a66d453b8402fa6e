//! Stands for `nats.rs` in a program that is built without the feature `nats`: there is never a broker.

use sprag_store::{Id, Store};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::worker::{RunningWorker, StartWorker};
use crate::App;
use crate::error::Error;

/// The address of a broker, which does not exist.
pub(crate) enum Address {}

/// No broker.
pub(crate) struct Broker;

impl Broker {
    pub(crate) async fn connect(_: Option<&Address>) -> Result<Broker, Error> {
        Ok(Broker)
    }

    pub(crate) async fn start_worker(
        &self,
        start: StartWorker,
        store: &Store,
        _: bool,
    ) -> Result<RunningWorker, Error> {
        start.with(store.clone()).await
    }

    pub(crate) fn relay(self, _: &App, _: Id, _: watch::Receiver<bool>) -> Option<JoinHandle<()>> {
        None
    }
}
