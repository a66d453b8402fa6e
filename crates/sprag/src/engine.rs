//! The engine: a store, an executor and a worker in one process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sprag_bus::{Address, Bus, BusDesk, Relay};
use sprag_executor::{Effect, Executor, Hosts};
use sprag_lifecycle::{Plan, RunId, RunStatus};
use sprag_pipeline::{Diagnostics, Pipeline};
use sprag_process::{Liveness, ProcessId};
use sprag_store::ops::{Created, NewRun};
use sprag_store::{DEFAULT_QUEUE, Id, JournalEntry, Reach, Row, RunRow, Store, Table, Topic};
use sprag_worker::{Call, CallError, Commands, Files, Handlers, Worker};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::environments::{Environments, RemoveEnvironments};
use crate::events::Events;
use crate::known::Names;
use crate::tidy::RemoveLocks;

/// What can go wrong in an engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] sprag_store::Error),
    /// The pipeline or its inputs are not right.
    #[error("{0}")]
    Pipeline(#[from] Diagnostics),
    /// An event was refused.
    #[error(transparent)]
    NotApplied(#[from] sprag_store::NotApplied),
    /// There is no such run.
    #[error("there is no run {0}")]
    NoSuchRun(RunId),
    /// This process cannot be identified.
    #[error("cannot tell who this process is: {0}")]
    Process(#[from] std::io::Error),
    /// The broker's address makes no sense.
    #[error(transparent)]
    Bus(#[from] sprag_bus::Trouble),
}

/// Looks at processes of this host.
struct ThisHost;

impl Hosts for ThisHost {
    fn is_gone(&self, process: &str) -> bool {
        process.parse::<ProcessId>().is_ok_and(|id| sprag_process::is_alive(&id) == Liveness::Dead)
    }
}

/// Sets an engine up.
pub struct Builder {
    data: PathBuf,
    store: Option<Store>,
    handlers: Handlers,
    effects: Vec<Arc<dyn Effect>>,
    supervisor: Option<PathBuf>,
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
    /// Uses a store that is already open.
    pub fn store(mut self, store: Store) -> Self {
        self.store = Some(store);
        self
    }

    /// Runs `call: NAME` steps with this function. It is dropped where it stands when its step is
    /// cancelled, takes too long, or is taken away.
    pub fn handler<F, Fut>(mut self, name: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Call) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Value, CallError>> + Send + 'static,
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

    /// Carries out an effect after each run's end.
    pub fn effect(mut self, effect: Arc<dyn Effect>) -> Self {
        self.effects.push(effect);
        self
    }

    /// What the worker calls itself.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The queues to serve; `default` if none is named.
    pub fn queues(mut self, queues: impl IntoIterator<Item = impl Into<Arc<str>>>) -> Self {
        self.queues = queues.into_iter().map(Into::into).collect();
        self
    }

    /// What the worker has that steps may ask for.
    pub fn labels(mut self, labels: impl IntoIterator<Item = impl Into<Arc<str>>>) -> Self {
        self.labels = labels.into_iter().map(Into::into).collect();
        self
    }

    /// How many steps to work on at once.
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots;
        self
    }

    /// How long this process may be silent before others take its work. At least five seconds.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.max(Duration::from_secs(5));
        self
    }

    /// How long a step may wait for a worker before it is handed over again, and a host where nobody works any more
    /// is given up.
    pub fn dispatch_deadline(mut self, deadline: Duration) -> Self {
        self.dispatch_deadline = deadline;
        self
    }

    /// How long a command has between being asked to end and being killed.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Works off this run alone, which is reserved to worker `id`.
    pub fn attached_to(mut self, run: RunId, id: Id) -> Self {
        self.attached_to = Some(run);
        self.id = Some(id);
        self
    }

    /// Does no work itself: it only looks after runs that others work on.
    pub fn without_worker(mut self) -> Self {
        self.works = false;
        self
    }

    /// Has a broker tell workers of what there is to do, and others of what happens. Without it, or while it is out of
    /// reach, everything goes on as it does otherwise.
    pub fn bus(mut self, address: Address) -> Self {
        self.bus = Some(address);
        self
    }

    /// Opens the store and begins to work.
    pub async fn start(self) -> Result<Engine, Error> {
        let store = match self.store {
            Some(store) => store,
            None => crate::open(&self.data)?,
        };
        let files = Files::new(&self.data);
        let id = self.id.unwrap_or_else(|| store.new_id());
        let supervisor = self.supervisor.unwrap_or_default();
        let mut handlers = self.handlers;
        if !supervisor.as_os_str().is_empty() {
            let environments = sprag_worker::Environments::new(Arc::new(store.clone()), &self.data, id);
            let commands = Commands::new(files.clone(), supervisor, self.grace).in_environments(environments);
            handlers = handlers.with_commands(commands);
        }
        let config = sprag_worker::Config {
            id,
            name: self.name,
            queues: if self.queues.is_empty() { vec![DEFAULT_QUEUE.into()] } else { self.queues },
            labels: self.labels,
            only: self.attached_to,
            slots: self.slots,
            lease: self.lease,
        };
        let bus = match &self.bus {
            Some(address) => Some(Bus::connect(address).await?),
            None => None,
        };
        let desk = BusDesk::new(store.clone(), bus.clone(), self.attached_to.is_some());
        let environments = Environments::new(store.clone(), &self.data, id);
        let process = sprag_process::current()?.to_string();
        let worker = match self.works {
            true => Some(Worker::register(desk, config, Arc::new(handlers), &process).await?),
            false => None,
        };
        let executor = sprag_executor::Config {
            only: self.attached_to,
            dispatch_deadline: self.dispatch_deadline,
            ..sprag_executor::Config::default()
        };
        let executor = Executor::new(store.clone(), executor, Arc::new(ThisHost))
            .with_effect(Arc::new(RemoveLocks(files.clone())))
            .with_effect(Arc::new(RemoveEnvironments(environments.clone())));
        let executor = self.effects.into_iter().fold(executor, Executor::with_effect);
        let (stop_worker, worker_stops) = watch::channel(false);
        let (stop_executor, executor_stops) = watch::channel(false);
        let working =
            worker.clone().map(|worker| tokio::spawn(async move { worker.run(worker_stops).await }));
        let executing = tokio::spawn(executor.run(executor_stops.clone()));
        let relaying = bus.map(|bus| tokio::spawn(relay(&store, bus, id).run(executor_stops.clone())));
        if self.attached_to.is_none() {
            tokio::spawn(look_after(environments, executor_stops));
        }
        Ok(Engine { store, files, id, worker, stop_worker, stop_executor, working, executing, relaying })
    }
}

/// Tells a broker of what happens, in the words that programs see everywhere.
fn relay(store: &Store, bus: Bus, id: Id) -> Relay {
    let mut names = Names::new(store);
    let write_out = move |entry: &JournalEntry| {
        Ok(serde_json::to_value(names.view(entry)?).expect("an entry is plain data"))
    };
    Relay::new(store.clone(), bus, id, Box::new(write_out))
}

/// Tries again to remove what could not be removed, until told to stop.
async fn look_after(environments: Environments, mut stop: watch::Receiver<bool>) {
    const EVERY: Duration = Duration::from_secs(30);
    while !*stop.borrow() {
        if let Err(error) = environments.sweep().await {
            tracing::warn!(error, "looking after environments");
        }
        let _ = tokio::time::timeout(EVERY, stop.wait_for(|stop| *stop)).await;
    }
}

/// Ends all work of an engine at once; others may take it over.
pub struct Abandoner(Option<Worker<BusDesk>>);

impl Abandoner {
    /// Ends it.
    pub fn abandon(&self) {
        self.0.iter().for_each(Worker::drop_all);
    }
}

/// Whether an engine goes on.
pub struct Pulse(Vec<tokio::task::AbortHandle>);

impl Pulse {
    /// Whether its executor and its worker go on.
    pub fn is_felt(&self) -> bool {
        self.0.iter().all(|task| !task.is_finished())
    }
}

/// A running engine.
pub struct Engine {
    store: Store,
    files: Files,
    id: Id,
    worker: Option<Worker<BusDesk>>,
    stop_worker: watch::Sender<bool>,
    stop_executor: watch::Sender<bool>,
    working: Option<JoinHandle<sprag_store::Result<()>>>,
    executing: JoinHandle<()>,
    relaying: Option<JoinHandle<()>>,
}

impl Engine {
    /// An engine whose data lies in this folder.
    pub fn builder(data: impl AsRef<Path>) -> Builder {
        Builder {
            data: data.as_ref().to_owned(),
            store: None,
            handlers: Handlers::default(),
            effects: Vec::new(),
            supervisor: None,
            name: format!("worker-{}", std::process::id()),
            queues: Vec::new(),
            labels: Vec::new(),
            slots: std::thread::available_parallelism().map_or(4, usize::from).max(2) * 4,
            lease: Duration::from_secs(30),
            dispatch_deadline: sprag_executor::Config::default().dispatch_deadline,
            grace: Duration::from_secs(10),
            attached_to: None,
            id: None,
            works: true,
            bus: None,
        }
    }

    /// The store, for everything that has no shorthand here.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Where logs lie.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// This engine's worker number.
    pub fn worker_id(&self) -> Id {
        self.id
    }

    /// Something that tells whether the executor and the worker go on, even when the engine is elsewhere.
    pub fn pulse(&self) -> Pulse {
        let working = self.working.as_ref().map(JoinHandle::abort_handle);
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
        let mut new = self.store.person().new_run(Arc::new(plan));
        new.inputs = serde_json::to_string(&inputs).expect("inputs are JSON").into();
        // Where an environment's repository is looked for.
        if let (true, Ok(dir)) = (new.plan.environment.is_some(), std::env::current_dir()) {
            new.context = serde_json::json!({ "dir": dir }).to_string().into();
        }
        self.create(new).await
    }

    /// Starts a run of a plan.
    pub async fn submit_plan(&self, plan: Arc<Plan>) -> Result<RunId, Error> {
        self.create(self.store.person().new_run(plan)).await
    }

    async fn create(&self, new: NewRun) -> Result<RunId, Error> {
        match self.store.person().create_run(new).await? {
            Created::New(run) | Created::Existing(run) => Ok(run),
            Created::NameTaken => {
                Err(Error::Store(sprag_store::Error::Refused("the run's name is taken".into())))
            }
        }
    }

    /// A run's status.
    pub fn status(&self, run: RunId) -> Result<RunStatus, Error> {
        let row = self.store.read(|db| Table::<RunRow>::load(db, run))?;
        row.map(|row| row.status()).ok_or(Error::NoSuchRun(run))
    }

    /// Waits until a run has ended.
    pub async fn wait(&self, run: RunId) -> Result<RunStatus, Error> {
        // The executor listens to the whole journal, so that other processes' changes are heard here too.
        let changes = self.store.subscribe_from(vec![Topic::Run(run)], Reach::Here);
        loop {
            let status = self.status(run)?;
            if status.is_terminal() {
                return Ok(status);
            }
            changes.wait(Duration::from_secs(2)).await;
        }
    }

    /// What a step's last attempt produced; none if it has not ended well.
    pub fn output(&self, run: RunId, step: &str) -> Result<Option<Value>, Error> {
        let found = self.store.read(|db| {
            let Some(row) = Table::<RunRow>::load(db, run)? else { return Ok(None) };
            let plan = db.plan(row.plan)?;
            let no = plan.and_then(|plan| plan.steps.iter().position(|planned| planned.id == step));
            let executions = db.executions(run)?;
            let last = executions.into_iter().rev().find(|row| Some(row.id.step as usize) == no);
            Ok(last.and_then(|row| row.result))
        })?;
        let result: Option<Value> = found.and_then(|text| serde_json::from_str(&text).ok());
        Ok(result.and_then(|mut facts| facts.get_mut("output").map(Value::take)))
    }

    /// Asks a run to end.
    pub async fn cancel(&self, run: RunId) -> Result<(), Error> {
        self.store.person().cancel_run(run).await?.require_applied()?;
        Ok(())
    }

    /// Follows the journal after `since`, of one run or all.
    pub fn events(&self, run: Option<RunId>, since: u64) -> Events {
        Events::new(&self.store, run, since)
    }

    /// Something with which to end all work even while the engine shuts down.
    pub fn abandoner(&self) -> Abandoner {
        Abandoner(self.worker.clone())
    }

    /// Takes no more work, finishes what it has, and closes the store.
    pub async fn shutdown(self) -> Result<(), Error> {
        let _ = self.stop_worker.send(true);
        if let Some(working) = self.working
            && let Ok(worked) = working.await
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
