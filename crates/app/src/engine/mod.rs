//! The engine: a store, an executor and a worker in one process.

#[cfg(feature = "nats")]
mod nats;
#[cfg(not(feature = "nats"))]
#[path = "no_nats.rs"]
mod nats;
mod worker;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sprag_lifecycle::{Plan, RunId, RunStatus};
use sprag_pipeline::Pipeline;
use sprag_process::{Liveness, ProcessId};
use sprag_store::{DEFAULT_QUEUE, Id, NewWorker};
use sprag_sweeper::{Effect, Executor, Hosts};
use sprag_worker::{Commands, Context, HandlerError, Handlers, StepTools};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::App;
use crate::environments::{Environments, RemoveEnvironments};
use crate::error::Error;
use crate::labels::RunLabels;
use crate::rules::RuleKeeper;
use crate::tidy::RemoveLocks;
use nats::{Address, Broker};
use worker::{RunningWorker, StartWorker, WorkerControl};

/// Returns the identity of this process, as workers are registered with it.
fn own_process() -> Result<String, Error> {
    let process = sprag_process::current()
        .map_err(|error| Error::failed(format!("cannot read the identity of this process: {error}")))?;
    Ok(process.to_string())
}

/// The check of whether processes of this host are alive.
pub(crate) struct ThisHost;

impl Hosts for ThisHost {
    fn is_gone(&self, process: &str) -> bool {
        process.parse::<ProcessId>().is_ok_and(|id| sprag_process::is_alive(&id) == Liveness::Dead)
    }
}

/// The settings of an engine that is about to start.
pub struct Builder {
    data: PathBuf,
    app: Option<App>,
    handlers: Handlers,
    effects: Vec<Arc<dyn Effect>>,
    supervisor: Option<PathBuf>,
    fake_agent: Option<PathBuf>,
    step_tools: Option<Arc<dyn StepTools>>,
    name: String,
    queues: Vec<Arc<str>>,
    labels: Vec<Arc<str>>,
    slots: usize,
    lease: Duration,
    dispatch_deadline: Duration,
    grace: Duration,
    attached_to: Option<RunId>,
    id: Option<Id>,
    works: bool,
    bus: Option<Address>,
}

impl Builder {
    /// Uses an application that is already open, instead of the SQLite store in the data directory.
    pub fn app(mut self, app: App) -> Self {
        self.app = Some(app);
        self
    }

    /// Runs `call: NAME` steps with this function, which gets the step's `with`. See
    /// [`sprag_worker::Handlers::with_handler`].
    pub fn handler<F, Fut>(mut self, name: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Context, Value) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Value, HandlerError>> + Send + 'static,
    {
        self.handlers = self.handlers.with_handler(name, handler);
        self
    }

    /// Runs commands, with `program` as the supervisor of each: a program that calls
    /// [`crate::run_if_supervisor`] first in its `main`, such as this one.
    pub fn commands(mut self, program: impl Into<PathBuf>) -> Self {
        self.supervisor = Some(program.into());
        self
    }

    /// Plays the fake agent with this program, which has `sprag agent fake`.
    pub fn fake_agent(mut self, program: impl Into<PathBuf>) -> Self {
        self.fake_agent = Some(program.into());
        self
    }

    /// Offers these tools to the agents of steps with `mcp: [sprag]`.
    pub fn step_tools(mut self, tools: Arc<dyn StepTools>) -> Self {
        self.step_tools = Some(tools);
        self
    }

    /// Carries out an effect after each run's end.
    pub fn effect(mut self, effect: Arc<dyn Effect>) -> Self {
        self.effects.push(effect);
        self
    }

    /// Sets the worker's name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the queues to serve; `default` if none is named.
    pub fn queues(mut self, queues: impl IntoIterator<Item = impl Into<Arc<str>>>) -> Self {
        self.queues = queues.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the labels that the worker has, which steps may require.
    pub fn labels(mut self, labels: impl IntoIterator<Item = impl Into<Arc<str>>>) -> Self {
        self.labels = labels.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the number of steps that the worker executes at once.
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots;
        self
    }

    /// Sets the time for which this process may be silent before other processes take its work: at least five
    /// seconds.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.max(Duration::from_secs(5));
        self
    }

    /// Sets the time after which a step that waits for a worker is dispatched again, and a host without live workers
    /// is given up.
    pub fn dispatch_deadline(mut self, deadline: Duration) -> Self {
        self.dispatch_deadline = deadline;
        self
    }

    /// Sets the time between asking a command or a handler to stop and ending it.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Works on this run alone, which is reserved to worker `id`: see [`Builder::worker`].
    pub fn attached_to(mut self, run: RunId, id: Id) -> Self {
        self.attached_to = Some(run);
        self.id = Some(id);
        self
    }

    /// Returns the worker of the future engine. The transaction that creates or takes over its run registers the
    /// worker, so that there is never a run with a worker that is not monitored, nor a worker without its run.
    pub fn worker(&self) -> Result<NewWorker, Error> {
        let id = self.id.unwrap_or_default();
        Ok(self.config(id).new_worker(&own_process()?))
    }

    fn config(&self, id: Id) -> sprag_worker::Config {
        sprag_worker::Config {
            id,
            name: self.name.clone(),
            queues: if self.queues.is_empty() { vec![DEFAULT_QUEUE.into()] } else { self.queues.clone() },
            labels: self.labels.clone(),
            only: self.attached_to,
            slots: self.slots,
            lease: self.lease,
        }
    }

    /// Starts no worker: the engine only looks after runs that other processes execute.
    pub fn without_worker(mut self) -> Self {
        self.works = false;
        self
    }

    /// Has a broker notify workers of new work, and other programs of events. Without a broker, or while it is out of
    /// reach, everything continues as usual.
    #[cfg(feature = "nats")]
    pub fn bus(mut self, address: Address) -> Self {
        self.bus = Some(address);
        self
    }

    /// Opens the store and starts to work.
    pub async fn start(mut self) -> Result<Engine, Error> {
        let app = match self.app.take() {
            Some(app) => app,
            None => App::open(&self.data)?,
        };
        let (store, files) = (app.store.clone(), app.files().clone());
        crate::retention::note_store(&store, app.data());
        let id = self.id.unwrap_or_else(|| store.new_id());
        let config = self.config(id);
        let supervisor = self.supervisor.unwrap_or_default();
        let mut handlers = self.handlers.with_grace(self.grace).with_logs(files.clone());
        if !supervisor.as_os_str().is_empty() {
            let environments = sprag_worker::Environments::new(Arc::new(store.clone()), &self.data, id);
            let commands = Commands::new(files.clone(), supervisor, self.grace)
                .with_fake_agent(self.fake_agent)
                .with_step_tools(self.step_tools)
                .in_environments(environments);
            handlers = handlers.with_commands(commands);
        }
        let handlers = Arc::new(handlers);
        let environments = Environments::new(&app, id);
        let process = own_process()?;
        let broker = Broker::connect(self.bus.as_ref()).await?;
        let (stop_worker, stop) = watch::channel(false);
        let (ended, over) = watch::channel(false);
        let worker = if self.works {
            let start = StartWorker { config, handlers, process, stop, ended };
            Some(broker.start_worker(start, &store, self.attached_to.is_some()).await?)
        } else {
            None
        };
        let executor = sprag_sweeper::Config {
            only: self.attached_to,
            worker: self.attached_to.and(worker.as_ref().map(|_| id)),
            dispatch_deadline: self.dispatch_deadline,
            ..sprag_sweeper::Config::default()
        };
        let executor = executor_with_effects(&app, executor, environments.clone());
        let mut executor = self.effects.into_iter().fold(executor, Executor::with_effect);
        if self.attached_to.is_none() {
            executor = executor.with_triggers(Arc::new(RuleKeeper::new(&app)));
        }
        let (stop_executor, executor_stops) = watch::channel(false);
        let executing = tokio::spawn(executor.run(executor_stops.clone()));
        let relaying = broker.relay(&app, id, executor_stops.clone());
        if self.attached_to.is_none() {
            tokio::spawn(look_after(environments, executor_stops));
        }
        Ok(Engine { app, id, worker, stop_worker, stop_executor, over, executing, relaying })
    }
}

/// Returns an executor that carries out the effects after a run's end.
fn executor_with_effects(app: &App, config: sprag_sweeper::Config, environments: Environments) -> Executor {
    Executor::new(app.store.clone(), config, Arc::new(ThisHost))
        .with_effect(Arc::new(RemoveLocks(app.files().clone())))
        .with_effect(Arc::new(RemoveEnvironments(environments)))
}

/// Carries out the effects of ended runs that no process was left to carry out.
pub(crate) async fn finish_effects(app: &App) -> sprag_store::Result<()> {
    let environments = Environments::new(app, app.new_id());
    executor_with_effects(app, sprag_sweeper::Config::default(), environments).finish_effects().await
}

/// Retries the removal of what could not be removed, until told to stop.
async fn look_after(environments: Environments, mut stop: watch::Receiver<bool>) {
    const EVERY: Duration = Duration::from_secs(30);
    while !*stop.borrow() {
        // The file may have changed.
        let _ = tokio::task::spawn_blocking(crate::agents::read_agents).await;
        if let Err(error) = environments.sweep().await {
            tracing::warn!(%error, "cleaning up environments failed");
        }
        let _ = tokio::time::timeout(EVERY, stop.wait_for(|stop| *stop)).await;
    }
}

/// A handle that stops all work of an engine at once, so that other processes may take it over.
pub struct Abandoner(Option<Arc<dyn WorkerControl>>);

impl Abandoner {
    /// Stops the work.
    pub fn abandon(&self) {
        self.0.iter().for_each(|worker| worker.drop_all());
    }
}

/// A handle that tells whether an engine is still running.
pub struct Pulse(Vec<tokio::task::AbortHandle>);

impl Pulse {
    /// Whether the engine's executor and worker are still running.
    pub fn is_felt(&self) -> bool {
        self.0.iter().all(|task| !task.is_finished())
    }
}

/// A running engine.
pub struct Engine {
    app: App,
    id: Id,
    worker: Option<RunningWorker>,
    stop_worker: watch::Sender<bool>,
    stop_executor: watch::Sender<bool>,
    /// Becomes true when the worker has ended.
    over: watch::Receiver<bool>,
    executing: JoinHandle<()>,
    relaying: Option<JoinHandle<()>>,
}

impl Engine {
    /// Returns the settings of an engine whose data is stored in this folder.
    pub fn builder(data: impl AsRef<Path>) -> Builder {
        Builder {
            data: data.as_ref().to_owned(),
            app: None,
            handlers: Handlers::default(),
            effects: Vec::new(),
            supervisor: None,
            fake_agent: None,
            step_tools: None,
            name: format!("worker-{}", std::process::id()),
            queues: Vec::new(),
            labels: Vec::new(),
            slots: std::thread::available_parallelism().map_or(4, usize::from).max(2) * 4,
            lease: Duration::from_secs(30),
            dispatch_deadline: sprag_sweeper::Config::default().dispatch_deadline,
            grace: Duration::from_secs(10),
            attached_to: None,
            id: None,
            works: true,
            bus: None,
        }
    }

    /// Returns the application, for everything that has no shorthand here.
    pub fn app(&self) -> &App {
        &self.app
    }

    /// Returns the number of this engine's worker.
    pub fn worker_id(&self) -> Id {
        self.id
    }

    /// Returns a handle that tells whether the executor and the worker are still running, even after the engine has
    /// moved.
    pub fn pulse(&self) -> Pulse {
        let working = self.worker.as_ref().map(|worker| worker.working.abort_handle());
        Pulse(working.into_iter().chain([self.executing.abort_handle()]).collect())
    }

    /// Starts a run of a pipeline. When this returns, the run is on disk.
    pub async fn submit(
        &self,
        pipeline: &Pipeline,
        inputs: &BTreeMap<String, Value>,
    ) -> Result<RunId, Error> {
        let inputs = pipeline.complete(inputs)?;
        let plan = pipeline.plan(&inputs)?;
        let has_environment = plan.environment.is_some();
        let labels = RunLabels::default().or_those_of(pipeline, &inputs)?;
        let mut start = self.app.new_run(plan, &inputs)?.labelled(labels);
        // The repository of an environment is looked for in this folder.
        if let (true, Ok(dir)) = (has_environment, std::env::current_dir()) {
            start = start.in_folder(dir);
        }
        Ok(self.app.start_run(start).await?.run.id)
    }

    /// Starts a run of a plan.
    pub async fn submit_plan(&self, plan: Arc<Plan>) -> Result<RunId, Error> {
        let start = self.app.new_run(plan, &BTreeMap::new())?;
        Ok(self.app.start_run(start).await?.run.id)
    }

    /// Waits until a run has ended. See [`App::wait_for_run`].
    pub async fn wait(&self, run: RunId) -> Result<RunStatus, Error> {
        self.app.wait_for_run(run).await
    }

    /// Returns the number of executions that run in this process.
    pub fn busy(&self) -> usize {
        self.worker.as_ref().map_or(0, |worker| worker.control.busy())
    }

    /// Returns a handle that stops all work, even while the engine shuts down.
    pub fn abandoner(&self) -> Abandoner {
        Abandoner(self.worker.as_ref().map(|worker| Arc::clone(&worker.control)))
    }

    /// Waits until the worker ends without having been told to, because the store refuses it for good.
    /// [`Engine::shutdown`] returns the worker's error.
    pub fn worker_ends(&self) -> impl Future<Output = ()> + use<> {
        let mut over = self.over.clone();
        async move {
            if over.wait_for(|over| *over).await.is_err() {
                // There is no worker.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Takes no more work, finishes what the worker holds, and closes the store.
    pub async fn shutdown(self) -> Result<(), Error> {
        let _ = self.stop_worker.send(true);
        if let Some(worker) = self.worker
            && let Ok(worked) = worker.working.await
        {
            worked?;
        }
        let _ = self.stop_executor.send(true);
        let _ = self.executing.await;
        if let Some(relaying) = self.relaying {
            let _ = relaying.await;
        }
        Ok(())
    }
}
