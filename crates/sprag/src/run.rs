//! Runs: a request to start one, and the handle of one that was started.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sprag_app::{App, Row, RunId, RunLabels, RunStatus, Selection, StepState};

use crate::{Error, Events, Pipeline};

/// A request to start a run. [`Engine::new_run`](crate::Engine::new_run) makes one.
#[must_use = "a run starts with `start`"]
pub struct NewRun {
    app: App,
    pipeline: Pipeline,
    inputs: Result<BTreeMap<String, Value>, Error>,
    key: Option<String>,
    priority: i32,
    folder: Option<PathBuf>,
    labels: RunLabels,
    selection: Selection,
}

impl NewRun {
    pub(crate) fn new(app: App, pipeline: &Pipeline) -> Self {
        let pipeline = pipeline.clone();
        NewRun {
            app,
            pipeline,
            inputs: Ok(BTreeMap::new()),
            key: None,
            priority: 0,
            folder: None,
            labels: RunLabels::default(),
            selection: Selection::default(),
        }
    }

    /// Sets one of the run's inputs.
    pub fn input(mut self, name: impl Into<String>, value: impl Serialize) -> Self {
        let name = name.into();
        let value = serde_json::to_value(value)
            .map_err(|error| Error::invalid(format!("input {name:?} cannot be written as JSON: {error}")));
        match (&mut self.inputs, value) {
            (Ok(inputs), Ok(value)) => drop(inputs.insert(name, value)),
            (Ok(_), Err(error)) => self.inputs = Err(error),
            (Err(_), _) => {}
        }
        self
    }

    /// Sets the inputs from the fields of a value, such as a struct or a map.
    pub fn inputs(mut self, values: impl Serialize) -> Self {
        match serde_json::to_value(values) {
            Ok(Value::Object(values)) => {
                values.into_iter().fold(self, |request, (name, value)| request.input(name, value))
            }
            Ok(_) => {
                self.inputs = Err(Error::invalid("the inputs of a run must be a struct or a map"));
                self
            }
            Err(error) => {
                self.inputs = Err(Error::invalid(format!("the inputs cannot be written as JSON: {error}")));
                self
            }
        }
    }

    /// Starts at most one run for this key, however often the request is repeated, by this process or another. The
    /// repetition gets the run that the first request started. A key that was used for another pipeline or other inputs
    /// is refused.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Adds to the priority of the run's steps; workers claim higher ones first.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Gives the run a name of 1 to 128 characters, which lists show. Several runs may have the same name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.labels.name = Some(name.into());
        self
    }

    /// Gives the run a label, by which lists find it; at most 32. Keys and values have 1 to 64 characters.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.labels.insert(key.into(), value.into());
        self
    }

    /// Runs only this step, and those of further calls; the others are skipped.
    pub fn only(mut self, step: impl Into<String>) -> Self {
        self.selection.only.push(step.into());
        self
    }

    /// Runs only this step and the steps that need it, directly or through others.
    pub fn from_step(mut self, step: impl Into<String>) -> Self {
        self.selection.from = Some(step.into());
        self
    }

    /// Skips this step, and those of further calls.
    pub fn skip(mut self, step: impl Into<String>) -> Self {
        self.selection.skip.push(step.into());
        self
    }

    /// Sets the folder in which the run's commands run, and in which the repository of its worktree is looked for. If
    /// none is set, commands run in this process's folder.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Starts the run. When this returns, the run is on disk, and the engine executes it even after a crash.
    pub async fn start(self) -> Result<Run, Error> {
        let NewRun { app, pipeline, inputs, key, priority, folder, labels, selection } = self;
        let inputs = pipeline.0.complete(&inputs?)?;
        let plan = if selection.is_all() {
            pipeline.0.plan(&inputs)?
        } else {
            (*pipeline.0).clone().select(&selection)?.plan(&inputs)?
        };
        // The repository of an environment is looked for in this process's folder.
        let folder = match folder {
            None if plan.environment.is_some() => std::env::current_dir().ok(),
            folder => folder,
        };
        let mut start = app.new_run(plan, &inputs)?.priority(priority).idempotency_key(key.as_deref());
        start = start.labelled(labels.or_those_of(&pipeline.0, &inputs)?);
        if let Some(folder) = folder {
            start = start.in_folder(folder);
        }
        let id = app.start_run(start).await?.run.id;
        Ok(Run { app, id })
    }
}

/// The handle of a run. Cloning it is cheap, and dropping it does nothing to the run.
///
/// ```
/// # use sprag::{Context, Engine, Pipeline, RunStatus};
/// # use serde_json::json;
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let engine = Engine::in_memory()
/// #     .handler("add", |_: Context, numbers: Vec<i64>| async move { Ok(numbers.iter().sum::<i64>()) })
/// #     .start().await?;
/// let pipeline = Pipeline::parse("steps: [{ id: sum, call: { handler: add, with: [1, 2, 39] } }]")?;
/// let run = engine.new_run(&pipeline).idempotency_key("sum-7").start().await?;
/// assert_eq!(run.wait().await?, RunStatus::Completed);
/// assert_eq!(run.output::<i64>("sum")?, Some(42));
///
/// let again = engine.new_run(&pipeline).idempotency_key("sum-7").start().await?;
/// assert_eq!(again.id(), run.id(), "the key has started it already");
/// # engine.shutdown().await?;
/// # Ok::<(), sprag::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Run {
    app: App,
    id: RunId,
}

impl Run {
    pub(crate) fn new(app: App, id: RunId) -> Self {
        Run { app, id }
    }

    pub(crate) fn app(&self) -> &App {
        &self.app
    }

    /// Returns the run's id, which [`Engine::run`](crate::Engine::run) finds again.
    pub fn id(&self) -> RunId {
        self.id
    }

    /// Returns the run's status.
    pub fn status(&self) -> Result<RunStatus, Error> {
        Ok(self.app.require_run(self.id)?.status())
    }

    /// Waits until the run has ended, and returns its status then.
    pub async fn wait(&self) -> Result<RunStatus, Error> {
        Ok(self.app.wait_for_run(self.id).await?)
    }

    /// Returns the run's steps, in the order of the pipeline.
    pub fn steps(&self) -> Result<Vec<StepState>, Error> {
        Ok(self.app.step_states(self.id)?)
    }

    /// Returns what a step produced; none if it has not succeeded, or not yet. Any type that fits will do, also
    /// [`serde_json::Value`].
    ///
    /// Of a handler that is the value that it returned, of a command the object of its declared outputs, of a question
    /// the answer, of a signal its payload, of a child run the outputs that its pipeline declares (without a declaration
    /// those of its steps, by their ids), and of a fan-out the list of its items' outputs. An item is named like `each[2]`.
    pub fn output<T: DeserializeOwned>(&self, step: &str) -> Result<Option<T>, Error> {
        let Some(output) = self.app.output(self.id, step)? else { return Ok(None) };
        serde_path_to_error::deserialize(output).map(Some).map_err(|error| {
            let place = error.path().to_string();
            Error::invalid(format!("the output of step {step:?} does not fit at {place}: {}", error.inner()))
        })
    }

    /// Returns the outputs that the run's pipeline declares under `outputs`; none if it declares none, or if the run has
    /// not ended.
    pub fn outputs<T: DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        let row = self.app.require_run(self.id)?;
        let Some(outputs) = self.app.run_outputs(&row)? else { return Ok(None) };
        serde_path_to_error::deserialize(outputs).map(Some).map_err(|error| {
            let place = error.path().to_string();
            Error::invalid(format!("the run's outputs do not fit at {place}: {}", error.inner()))
        })
    }

    /// Returns the lines of the log of a step's last attempt: what its handler logged, or what its command printed.
    pub fn log(&self, step: &str) -> Result<Vec<String>, Error> {
        Ok(self.app.log_lines(self.id, step)?)
    }

    /// Asks the run to stop: its running steps are cancelled and the rest is skipped. [`Run::wait`] returns once that
    /// is done. It is an error if the run has ended.
    pub async fn cancel(&self) -> Result<(), Error> {
        self.app.cancel_run(self.id, None).await?;
        Ok(())
    }

    /// Skips a step or an item of the live run: it counts as done for the steps that need it. A step that has begun is
    /// stopped first, and one whose needs are open is skipped when they are met.
    pub async fn skip(&self, step: &str) -> Result<(), Error> {
        self.app.skip_step(self.id, step).await?;
        Ok(())
    }

    /// Starts the next try or round of a step that waits for the delay before it. It is an error if it does not wait.
    pub async fn retry_now(&self, step: &str) -> Result<(), Error> {
        self.app.retry_now(self.id, step).await?;
        Ok(())
    }

    /// Follows the run's events from its first one on.
    pub fn events(&self) -> Events {
        Events::new(&self.app, Some(self.id), 0)
    }
}
