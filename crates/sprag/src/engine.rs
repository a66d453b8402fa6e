//! The engine and its settings.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sprag_app::{App, Context, Effect, EffectFuture, HandlerError, RunId};

use crate::handler::{read_input, write_output};
use crate::{Error, Events, NewRun, Pipeline, Run};

/// A running engine: a store of runs, and a worker in this process that executes them. Cloning it is cheap; all clones
/// are one engine.
///
/// An engine starts with one of its stores: [`Engine::sqlite`], `Engine::postgres` (feature `postgres`) or
/// [`Engine::in_memory`]. Any number of processes may use the same folder or database. They share the work, and take
/// over the runs of a process that died.
///
/// ```
/// # use sprag::{Engine, Pipeline};
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let folder = tempfile::tempdir()?;
/// let engine = Engine::sqlite(folder.path())
///     .slots(8)
///     .handler("greet", |_, name: String| async move { Ok(format!("hello, {name}")) })
///     .start()
///     .await?;
/// let pipeline = Pipeline::parse("steps: [{ id: a, call: { handler: greet, with: you } }]")?;
/// let id = engine.new_run(&pipeline).start().await?.id();
/// let run = engine.run(id)?;
/// run.wait().await?;
/// assert_eq!(run.output::<String>("a")?.as_deref(), Some("hello, you"));
/// engine.shutdown().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Engine {
    app: App,
    running: Arc<Mutex<Option<sprag_app::Engine>>>,
    /// The folder of an engine in memory, which is removed with its last clone.
    _folder: Option<Arc<tempfile::TempDir>>,
}

impl Engine {
    /// Returns the settings of an engine whose runs, logs and worktrees are kept in a folder. It is made if it does not
    /// exist, and closed to other users.
    pub fn sqlite(folder: impl AsRef<Path>) -> EngineBuilder {
        EngineBuilder::new(Place::Sqlite, Some(folder.as_ref().to_owned()))
    }

    /// Returns the settings of an engine whose runs are kept in the PostgreSQL database that a URL names, such as
    /// `postgres://user@host/database`. Logs and worktrees are kept in the folder on this machine.
    #[cfg(feature = "postgres")]
    pub fn postgres(url: impl Into<String>, folder: impl AsRef<Path>) -> EngineBuilder {
        EngineBuilder::new(Place::Postgres(url.into()), Some(folder.as_ref().to_owned()))
    }

    /// Returns the settings of an engine that keeps nothing: for tests. Its logs are in a temporary folder that is
    /// removed with the engine.
    pub fn in_memory() -> EngineBuilder {
        EngineBuilder::new(Place::Memory, None)
    }

    /// Prepares a run of a pipeline: give it inputs, then [`NewRun::start`] it.
    pub fn new_run(&self, pipeline: &Pipeline) -> NewRun {
        NewRun::new(self.app.clone(), pipeline)
    }

    /// Returns the handle of a run that was started before, by this process or another.
    pub fn run(&self, id: RunId) -> Result<Run, Error> {
        self.app.require_run(id)?;
        Ok(Run::new(self.app.clone(), id))
    }

    /// Follows the events of all runs after the one with this number; 0 is the beginning.
    pub fn events(&self, since: u64) -> Events {
        Events::new(&self.app, None, since)
    }

    /// Takes no more work, finishes the steps that run in this process, and stops. Runs that have not ended continue
    /// when an engine is started again. A second call has nothing to do.
    ///
    /// A process that exits without this behaves like one that was killed: its steps are attempted again once their
    /// lease has lapsed.
    pub async fn shutdown(&self) -> Result<(), Error> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        match running {
            Some(engine) => Ok(engine.shutdown().await?),
            None => Ok(()),
        }
    }

    pub(crate) fn app(&self) -> &App {
        &self.app
    }

    #[cfg(feature = "server")]
    pub(crate) fn pulse(&self) -> Option<sprag_app::Pulse> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(sprag_app::Engine::pulse)
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("data", &self.app.data()).finish_non_exhaustive()
    }
}

/// The store of an engine.
enum Place {
    Sqlite,
    #[cfg(feature = "postgres")]
    Postgres(String),
    Memory,
}

/// The settings of an engine that is about to start.
#[must_use = "an engine starts with `start`"]
pub struct EngineBuilder {
    place: Place,
    /// The data folder; none if it is a temporary one.
    folder: Option<PathBuf>,
    #[cfg(feature = "nats")]
    nats: Option<String>,
    /// The settings that need no store, in the order of their calls.
    settings: Vec<Setting>,
}

type Setting = Box<dyn FnOnce(sprag_app::Builder) -> sprag_app::Builder + Send>;

impl EngineBuilder {
    fn new(place: Place, folder: Option<PathBuf>) -> Self {
        EngineBuilder {
            place,
            folder,
            #[cfg(feature = "nats")]
            nats: None,
            settings: Vec::new(),
        }
    }

    fn set(
        mut self,
        setting: impl FnOnce(sprag_app::Builder) -> sprag_app::Builder + Send + 'static,
    ) -> Self {
        self.settings.push(Box::new(setting));
        self
    }

    /// Runs `call: NAME` steps with this function. It gets the step's `with`, with its templates filled in, as any type
    /// that serde can read, and returns any type that serde can write. A `with` that the type does not fit fails the
    /// step without a retry, with a message that names the handler and the field. [`serde_json::Value`] fits
    /// everything.
    ///
    /// The engine renews the step's lease while the handler runs. It drops the handler's future when the step's time is
    /// over, when its lease is lost, and when its run is cancelled: see [`Context::cancelled`]. A handler that panics
    /// fails its step.
    ///
    /// ```
    /// # use sprag::{Context, Engine, HandlerError};
    /// # use serde::{Deserialize, Serialize};
    /// #[derive(Deserialize)]
    /// struct Order {
    ///     id: String,
    ///     cents: u64,
    /// }
    ///
    /// #[derive(Serialize)]
    /// struct Receipt {
    ///     key: String,
    /// }
    ///
    /// let builder = Engine::in_memory()
    ///     .handler("charge", |ctx: Context, order: Order| async move {
    ///         if order.cents == 0 {
    ///             return Err(HandlerError::permanent(format!("order {} costs nothing", order.id)));
    ///         }
    ///         // The same for all attempts, so that the bank charges once.
    ///         Ok(Receipt { key: ctx.idempotency_key() })
    ///     })
    ///     .handler("untyped", |_, with: serde_json::Value| async move { Ok(with) });
    /// # drop(builder);
    /// ```
    pub fn handler<F, I, O, Fut>(self, name: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Context, I) -> Fut + Send + Sync + 'static,
        I: DeserializeOwned + Send + 'static,
        O: Serialize + 'static,
        Fut: Future<Output = Result<O, HandlerError>> + Send + 'static,
    {
        let name = name.into();
        let handler = Arc::new(handler);
        self.set(move |builder| {
            let of = Arc::<str>::from(name.as_str());
            builder.handler(name, move |context, with| {
                let (handler, of) = (Arc::clone(&handler), Arc::clone(&of));
                async move {
                    let input = read_input(&of, with)?;
                    let output = handler(context, input).await?;
                    write_output(&of, &output)
                }
            })
        })
    }

    /// Runs the commands of pipelines too, each below a supervisor process that ends its whole process tree. `program`
    /// is the supervisor: a program that calls [`run_if_supervisor`](crate::run_if_supervisor) first in its `main`,
    /// such as this one (`std::env::current_exe()`) or the program `sprag`.
    pub fn commands(self, program: impl Into<PathBuf>) -> Self {
        let program = program.into();
        self.set(move |builder| builder.commands(program))
    }

    /// Calls a function after the end of each run, and retries it until it succeeds. It may be called again for the
    /// same run: after a crash between its work and its record, or because several engines are running. `name` stands
    /// for it in log lines.
    ///
    /// ```
    /// # use sprag::{Engine, RunId};
    /// let builder = Engine::in_memory().after_run("mail", |run: RunId| async move {
    ///     println!("run {run} has ended");
    ///     Ok::<(), std::io::Error>(())
    /// });
    /// # drop(builder);
    /// ```
    pub fn after_run<F, Fut, E>(self, name: &'static str, function: F) -> Self
    where
        F: Fn(RunId) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: std::fmt::Display,
    {
        let call = move |run| {
            let done = function(run);
            let done: EffectFuture<'static> =
                Box::pin(async move { done.await.map_err(|error| error.to_string()) });
            done
        };
        self.set(move |builder| builder.effect(Arc::new(AfterRun { name, call: Box::new(call) })))
    }

    /// Sets the name of this engine's worker, as `sprag worker ls` shows it.
    pub fn name(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.set(move |builder| builder.name(name))
    }

    /// Sets the queues that the worker serves; `default` if none is named.
    pub fn queues(self, queues: impl IntoIterator<Item = impl Into<Arc<str>>>) -> Self {
        let queues: Vec<Arc<str>> = queues.into_iter().map(Into::into).collect();
        self.set(move |builder| builder.queues(queues))
    }

    /// Sets the labels that the worker has, which steps may require.
    pub fn labels(self, labels: impl IntoIterator<Item = impl Into<Arc<str>>>) -> Self {
        let labels: Vec<Arc<str>> = labels.into_iter().map(Into::into).collect();
        self.set(move |builder| builder.labels(labels))
    }

    /// Sets the number of steps that the worker executes at once; four for each processor if none is set.
    pub fn slots(self, slots: usize) -> Self {
        self.set(move |builder| builder.slots(slots))
    }

    /// Sets the time for which this process may be silent before other processes take over its steps: at least five
    /// seconds, and thirty if none is set. The engine renews the leases of running steps by itself.
    pub fn lease(self, lease: Duration) -> Self {
        self.set(move |builder| builder.lease(lease))
    }

    /// Sets the time between asking a command or a handler to stop and ending it; ten seconds if none is set.
    pub fn grace(self, grace: Duration) -> Self {
        self.set(move |builder| builder.grace(grace))
    }

    /// Starts no worker: the engine starts and follows runs that other processes execute.
    pub fn without_worker(self) -> Self {
        self.set(sprag_app::Builder::without_worker)
    }

    /// Has a NATS broker tell workers of new work, and other programs of events. `url` is like
    /// `nats://user:password@host:4222/prefix`. While the broker is out of reach, everything continues as usual.
    #[cfg(feature = "nats")]
    pub fn nats(mut self, url: impl Into<String>) -> Self {
        self.nats = Some(url.into());
        self
    }

    /// Opens the store and starts to work, on the present tokio runtime.
    pub async fn start(self) -> Result<Engine, Error> {
        let (data, folder) = match self.folder {
            Some(data) => (data, None),
            None => {
                let temporary = tempfile::Builder::new().prefix("sprag-").tempdir().map_err(|error| {
                    Error::invalid(format!("no temporary folder can be made for logs: {error}"))
                })?;
                (temporary.path().to_owned(), Some(Arc::new(temporary)))
            }
        };
        let app = match self.place {
            Place::Sqlite => App::open(&data)?,
            #[cfg(feature = "postgres")]
            Place::Postgres(url) => App::open_postgres(&url, &data)?,
            Place::Memory => App::in_memory(&data),
        };
        let mut builder = sprag_app::Engine::builder(&data).app(app.clone());
        #[cfg(feature = "nats")]
        if let Some(url) = self.nats {
            let address =
                url.parse().map_err(|error| Error::invalid(format!("the broker's address: {error}")))?;
            builder = builder.bus(address);
        }
        builder = self.settings.into_iter().fold(builder, |builder, set| set(builder));
        let running = builder.start().await?;
        Ok(Engine { app, running: Arc::new(Mutex::new(Some(running))), _folder: folder })
    }
}

/// A function to call after each run.
struct AfterRun {
    name: &'static str,
    call: Box<dyn Fn(RunId) -> EffectFuture<'static> + Send + Sync>,
}

impl Effect for AfterRun {
    fn name(&self) -> &'static str {
        self.name
    }

    fn run_ended(&self, run: RunId) -> EffectFuture<'_> {
        (self.call)(run)
    }
}
