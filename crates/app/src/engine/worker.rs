//! The worker of an engine, whatever its source of work: the store, or a broker in front of it.

use std::sync::Arc;

use sprag_worker::{Handlers, WorkSource, Worker};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::Error;

/// A worker that is about to start.
pub(crate) struct StartWorker {
    pub(crate) config: sprag_worker::Config,
    pub(crate) handlers: Arc<Handlers>,
    pub(crate) process: String,
    pub(crate) stop: watch::Receiver<bool>,
    /// Told when the worker has ended.
    pub(crate) ended: watch::Sender<bool>,
}

impl StartWorker {
    /// Registers the worker and has it claim work from this source.
    pub(crate) async fn with<S>(self, source: S) -> Result<RunningWorker, Error>
    where
        S: WorkSource<Error = sprag_store::Error>,
    {
        let StartWorker { config, handlers, process, stop, ended } = self;
        let worker = Worker::register(source, config, handlers, &process).await?;
        let control: Arc<dyn WorkerControl> = Arc::new(worker.clone());
        let working = tokio::spawn(async move {
            let worked = worker.run(stop).await;
            let _ = ended.send(true);
            worked
        });
        Ok(RunningWorker { control, working })
    }
}

/// The worker of an engine, whatever its source of work.
pub(crate) struct RunningWorker {
    pub(crate) control: Arc<dyn WorkerControl>,
    pub(crate) working: JoinHandle<sprag_store::Result<()>>,
}

/// The operations on a worker that do not depend on its source of work.
pub(crate) trait WorkerControl: Send + Sync {
    fn drop_all(&self);
    fn busy(&self) -> usize;
}

impl<S: WorkSource> WorkerControl for Worker<S> {
    fn drop_all(&self) {
        Worker::drop_all(self);
    }

    fn busy(&self) -> usize {
        Worker::busy(self)
    }
}
