//! A worker that serves queues of a server elsewhere, from its start to its end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sprag_store::Id;
use sprag_worker::{Commands, Config, Environments, Files, Handlers, Worker};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::backoff::{Backoff, pause};
use crate::client::{Address, Client};
use crate::desk::Remote;
use crate::error::Error;
use crate::logs::Streaming;
use crate::records::Asked;
use crate::tidy;

/// How long a command has between being asked to end and being killed.
const GRACE: Duration = Duration::from_secs(10);

/// How a worker behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// The server.
    pub server: Address,
    /// What it wants to be shown.
    pub token: Option<String>,
    /// What the worker calls itself.
    pub name: String,
    /// The queues it serves.
    pub queues: Vec<Arc<str>>,
    /// What it has that steps may ask for.
    pub labels: Vec<Arc<str>>,
    /// How much it takes at once.
    pub slots: usize,
    /// How long it may be silent.
    pub lease: Duration,
    /// Where it keeps logs until they are sent, worktrees, and files that steps hand on.
    pub data: PathBuf,
    /// The program that supervises commands.
    pub supervisor: PathBuf,
}

/// A worker that works.
pub struct Elsewhere {
    id: Id,
    desk: Remote,
    worker: Worker<Remote>,
    stop: watch::Sender<bool>,
    working: JoinHandle<Result<(), Error>>,
    tidying: JoinHandle<()>,
}

/// Ends all work of a worker at once; others may take it over.
pub struct Abandoner(Worker<Remote>, Remote);

impl Abandoner {
    /// Ends it.
    pub fn abandon(&self) {
        self.1.hurry();
        self.0.drop_all();
    }
}

impl Elsewhere {
    /// Presents itself to the server, however long that takes to be there, and begins to work.
    pub async fn start(options: Options) -> Result<Elsewhere, Error> {
        let Options { server, token, name, queues, labels, slots, lease, data, supervisor } = options;
        std::fs::create_dir_all(&data)
            .map_err(|error| Error::Local(format!("cannot make {}: {error}", data.display())))?;
        let client = Client::new(server, token.as_deref())?;
        let (id, files) = (client.id(), Files::new(&data));
        let environments = Environments::new(Arc::new(Asked(client.clone())), &data, id);
        let commands = Commands::new(files.clone(), supervisor, GRACE).in_environments(environments);
        let inner = Handlers::default().with_commands(commands);
        let runner = Arc::new(Streaming { inner, client: client.clone(), files });
        let config = Config { id, name, queues, labels, only: None, slots, lease };
        let process = sprag_process::current().map_err(|error| Error::Local(error.to_string()))?.to_string();
        let desk = Remote::new(client.clone());
        let mut backoff = Backoff::default();
        let worker = loop {
            match Worker::register(desk.clone(), config.clone(), runner.clone(), &process).await {
                Ok(worker) => break worker,
                Err(error @ Error::Away { .. }) => {
                    tracing::warn!(%error, "waiting for the server");
                    pause(backoff.next(error.after())).await;
                }
                Err(error) => return Err(error),
            }
        };
        let (stop, stops) = watch::channel(false);
        let tidying = tokio::spawn(tidy::look_after(client, data, stops.clone()));
        let working = tokio::spawn({
            let worker = worker.clone();
            async move { worker.run(stops).await }
        });
        Ok(Elsewhere { id, desk, worker, stop, working, tidying })
    }

    /// Its number.
    pub fn id(&self) -> Id {
        self.id
    }

    /// Something with which to end all work even while the worker shuts down.
    pub fn abandoner(&self) -> Abandoner {
        Abandoner(self.worker.clone(), self.desk.clone())
    }

    /// Waits until the worker cannot go on, and says why.
    pub async fn failed(&mut self) -> Error {
        match (&mut self.working).await {
            Ok(Err(error)) => error,
            Ok(Ok(())) => Error::Local("the worker has left".into()),
            Err(error) => Error::Local(format!("the worker's task is gone: {error}")),
        }
    }

    /// Takes no more work, finishes what it has, and leaves.
    pub async fn shutdown(self) -> Result<(), Error> {
        let _ = self.stop.send(true);
        let worked = self.working.await;
        self.tidying.abort();
        worked.unwrap_or_else(|error| Err(Error::Local(format!("the worker's task is gone: {error}"))))
    }
}
