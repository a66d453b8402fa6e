//! The broker of an engine: it announces work to the worker, and receives the journal.

use sprag_bus::{Bus, BusWorkSource, Relay};
use sprag_store::{Id, JournalEntry, Store};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::worker::{RunningWorker, StartWorker};
use crate::App;
use crate::error::Error;
use crate::known::Names;

pub use sprag_bus::Address;

/// A connection to a broker, if the engine has one.
pub(crate) struct Broker(Option<Bus>);

impl Broker {
    /// Connects to the broker at this address.
    pub(crate) async fn connect(address: Option<&Address>) -> Result<Broker, Error> {
        let Some(address) = address else { return Ok(Broker(None)) };
        let bus = Bus::connect(address).await.map_err(|error| Error::invalid(error.to_string()))?;
        Ok(Broker(Some(bus)))
    }

    /// Starts a worker that the broker tells of work. With `reserved_only` it serves no queue.
    pub(crate) async fn start_worker(
        &self,
        start: StartWorker,
        store: &Store,
        reserved_only: bool,
    ) -> Result<RunningWorker, Error> {
        match &self.0 {
            Some(bus) => start.with(BusWorkSource::new(store.clone(), bus.clone(), reserved_only)).await,
            None => start.with(store.clone()).await,
        }
    }

    /// Sends the journal to the broker until told to stop, in the words that programs see everywhere.
    pub(crate) fn relay(self, app: &App, id: Id, stop: watch::Receiver<bool>) -> Option<JoinHandle<()>> {
        let bus = self.0?;
        let mut names = Names::new(app);
        let write_out = move |entry: &JournalEntry| {
            Ok(serde_json::to_value(names.entry(entry)?).expect("an entry is plain data"))
        };
        let relay = Relay::new(app.store.clone(), bus, id, Box::new(write_out));
        Some(tokio::spawn(relay.run(stop)))
    }
}
