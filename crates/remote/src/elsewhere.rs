//! A worker that serves queues of a remote server, from its start to its shutdown.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sprag_app::text::size;
use sprag_process::boot_ms;
use sprag_store::Id;
use sprag_tls::Connector;
use sprag_worker::{Commands, Config, Environments, Files, Handlers, StepTools, Worker, pause};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::backoff::Backoff;
use crate::client::{Address, Client};
use crate::error::Error;
use crate::logs::{Streaming, send_backlog};
use crate::records::Asked;
use crate::tidy;
use crate::unsent::Backlog;
use crate::work_source::Remote;

/// The time that a worker has at shutdown to send the logs that wait.
const SEND_WITHIN: Duration = Duration::from_secs(30);
/// The interval of checks whether all of them were sent.
const LOOK: Duration = Duration::from_millis(100);
/// The time that a command has between the request to stop and being killed.
const GRACE: Duration = Duration::from_secs(10);

/// The configuration of a worker.
#[derive(Debug, Clone)]
pub struct Options {
    /// The address of the server.
    pub server: Address,
    /// The token that the server requires; none if it requires none.
    pub token: Option<String>,
    /// A PEM file with the authorities that may have signed the server's certificate; none for the machine's own.
    pub authorities: Option<PathBuf>,
    /// The name that users see.
    pub name: String,
    /// The queues it serves.
    pub queues: Vec<Arc<str>>,
    /// The capabilities that steps may require.
    pub labels: Vec<Arc<str>>,
    /// The number of executions that it runs at once.
    pub slots: usize,
    /// The time without a heartbeat after which its executions are given to other workers.
    pub lease: Duration,
    /// The folder for unsent logs, worktrees and output files of steps.
    pub data: PathBuf,
    /// The program that is started as the supervisor of each command.
    pub supervisor: PathBuf,
    /// The number of bytes in logs of ended steps that may wait to be sent; with more, the worker takes no further
    /// steps.
    pub most_unsent: u64,
    /// The tools for agents of steps with `mcp: [sprag]`; none if this program has none.
    pub step_tools: Option<Arc<dyn StepTools>>,
}

/// A running worker.
pub struct Elsewhere {
    id: Id,
    source: Remote,
    worker: Worker<Remote>,
    stop: watch::Sender<bool>,
    working: JoinHandle<Result<(), Error>>,
    tidying: JoinHandle<()>,
    backlog: Backlog,
    sending: JoinHandle<()>,
    data: PathBuf,
}

/// A handle that stops all executions of a worker at once, so that other workers may take them over.
pub struct Abandoner(Worker<Remote>, Remote);

impl Abandoner {
    /// Stops all executions and all retries.
    pub fn abandon(&self) {
        self.1.hurry();
        self.0.drop_all();
    }
}

impl Elsewhere {
    /// Registers at the server, waits as long as the server cannot be reached, and starts to work.
    pub async fn start(options: Options) -> Result<Elsewhere, Error> {
        let Options {
            server,
            token,
            authorities,
            name,
            queues,
            labels,
            slots,
            lease,
            data,
            supervisor,
            most_unsent,
            step_tools,
        } = options;
        sprag_process::make_private_folder(&data)
            .map_err(|error| Error::Local(format!("cannot make {}: {error}", data.display())))?;
        let client = Client::new(server, token.as_deref(), Connector::new(authorities))?;
        let (id, files) = (client.id(), Files::new(&data));
        let environments = Environments::new(Arc::new(Asked(client.clone())), &data, id);
        let commands = Commands::new(files.clone(), supervisor.clone(), GRACE)
            .with_fake_agent(Some(supervisor))
            .with_step_tools(step_tools)
            .in_environments(environments);
        let inner = Handlers::default().with_commands(commands);
        let backlog = Backlog::new(&data, most_unsent);
        let runner = Arc::new(Streaming { inner, client: client.clone(), files, backlog: backlog.clone() });
        let config = Config { id, name, queues, labels, only: None, slots, lease };
        let process = sprag_process::current().map_err(|error| Error::Local(error.to_string()))?.to_string();
        let source = Remote::new(client.clone(), backlog.clone());
        let mut backoff = Backoff::default();
        let worker = loop {
            match Worker::register(source.clone(), config.clone(), runner.clone(), &process).await {
                Ok(worker) => break worker,
                Err(error @ Error::Away { .. }) => {
                    tracing::warn!(%error, "waiting for the server");
                    pause(backoff.next(error.after())).await;
                }
                Err(error) => return Err(error),
            }
        };
        let (stop, stops) = watch::channel(false);
        let tidying = tokio::spawn(tidy::look_after(client.clone(), data.clone(), stops.clone()));
        let sending = tokio::spawn(send_backlog(client, backlog.clone(), data.clone()));
        let working = tokio::spawn({
            let worker = worker.clone();
            async move { worker.run(stops).await }
        });
        Ok(Elsewhere { id, source, worker, stop, working, tidying, backlog, sending, data })
    }

    /// Returns the worker's id.
    pub fn id(&self) -> Id {
        self.id
    }

    /// Returns a handle that stops all executions, even while the worker shuts down.
    pub fn abandoner(&self) -> Abandoner {
        Abandoner(self.worker.clone(), self.source.clone())
    }

    /// Returns the reason why the worker takes no steps, as a value to watch; none while it takes steps.
    pub fn notice(&self) -> watch::Receiver<Option<String>> {
        self.backlog.notice()
    }

    /// Waits until the worker cannot continue, and returns the reason.
    pub async fn failed(&mut self) -> Error {
        match (&mut self.working).await {
            Ok(Err(error)) => error,
            Ok(Ok(())) => Error::Local("the worker has left".into()),
            Err(error) => Error::Local(format!("the worker's task is gone: {error}")),
        }
    }

    /// Takes no more work, finishes the running executions, sends the logs that wait, and deregisters. Returns a
    /// message about the logs that are left, if any.
    pub async fn shutdown(self) -> Result<Option<String>, Error> {
        let _ = self.stop.send(true);
        let worked = self.working.await;
        self.tidying.abort();
        let until_ms = boot_ms() + SEND_WITHIN.as_millis() as u64;
        while self.backlog.size().0 > 0 && boot_ms() < until_ms && !self.source.is_hurried() {
            pause(LOOK).await;
        }
        self.sending.abort();
        worked.unwrap_or_else(|error| Err(Error::Local(format!("the worker's task is gone: {error}"))))?;
        Ok(match self.backlog.size() {
            (0, _) => None,
            (logs, bytes) => Some(format!(
                "{logs} log{} ({}) not sent: kept in {}, and sent when a worker runs there again",
                if logs == 1 { "" } else { "s" },
                size(bytes),
                self.data.display()
            )),
        })
    }
}
