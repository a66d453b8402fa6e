//! Runs steps: commands under a supervisor, `call` steps by the program's own handlers.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_pipeline::{Kind, StepSpec};
use sprag_process::{Secrets, withhold};
use sprag_store::{Assignment, Ending};

use crate::agent::{credentials, start_folder};
use crate::command::{Commands, render};
use crate::context::{CallFacts, Context, StepLog};
use crate::control::{Control, Signal, left, pause};
use crate::files::Files;
use crate::sealed::hide_sealed;
use crate::secret_sources;
use crate::secrets::{mask, masker};
use crate::slots::{Ended, Runner, RunnerFuture};

/// The failure of a handler. Every error that can be shown becomes one with `?` or `.into()`, and a retry of the step
/// is worthwhile then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerError {
    /// The error message, which the step's result contains.
    pub message: String,
    /// Whether a retry makes sense.
    pub retriable: bool,
}

impl HandlerError {
    /// Returns an error after which no retry makes sense, whatever the step's `retry` says.
    pub fn permanent(message: impl std::fmt::Display) -> Self {
        HandlerError { message: message.to_string(), retriable: false }
    }
}

impl<E: std::fmt::Display> From<E> for HandlerError {
    fn from(error: E) -> Self {
        HandlerError { message: error.to_string(), retriable: true }
    }
}

/// The future of a handler's output or error.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<Value, HandlerError>> + Send>>;

type Handler = Arc<dyn Fn(Context, Value) -> HandlerFuture + Send + Sync>;

/// The time that a handler has to stop by itself, if no other is set.
const GRACE: Duration = Duration::from_secs(10);

/// The runner of steps in this program: commands, and `call` steps by registered handlers.
#[derive(Clone)]
pub struct Handlers {
    commands: Option<Commands>,
    handlers: BTreeMap<String, Handler>,
    files: Option<Files>,
    grace: Duration,
}

impl Default for Handlers {
    fn default() -> Self {
        Handlers { commands: None, handlers: BTreeMap::new(), files: None, grace: GRACE }
    }
}

impl Handlers {
    /// Runs commands too.
    pub fn with_commands(mut self, commands: Commands) -> Self {
        self.commands = Some(commands);
        self
    }

    /// Keeps the lines that handlers log, in the logs of their steps.
    pub fn with_logs(mut self, files: Files) -> Self {
        self.files = Some(files);
        self
    }

    /// Sets the time that a cancelled handler has to stop by itself, if it has asked about cancellation.
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Runs `call: NAME` steps with this function, which gets the step's `with` with its templates filled in. The
    /// runner drops its future when the step exceeds its timeout or loses its lease, and when it is cancelled: see
    /// [`Context::cancelled`].
    pub fn with_handler<F, Fut>(mut self, name: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Context, Value) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Value, HandlerError>> + Send + 'static,
    {
        self.handlers.insert(name.into(), Arc::new(move |context, with| Box::pin(handler(context, with))));
        self
    }

    async fn call(&self, assignment: &Assignment, call: Call<'_>, limits: Limits) -> Ended {
        let Call { name, with, secrets } = call;
        let Some(handler) = self.handlers.get(name) else {
            let known: Vec<&str> = self.handlers.keys().map(String::as_str).collect();
            let message = format!("no handler is called {name:?}; registered are: {}", known.join(", "));
            return failed(json!({ "reason": "no_handler", "message": message }), false);
        };
        let id = assignment.lease.execution;
        let facts = CallFacts {
            run: id.run,
            step: assignment.name.clone(),
            attempt: id.attempt,
            fence: assignment.lease.guard(),
            inputs: shown_inputs(&assignment.inputs),
            feedback: assignment.feedback.as_deref().map(str::to_owned),
        };
        let log = self.files.as_ref().map(|files| files.log(id, &assignment.name));
        let context = Context::new(facts, StepLog::new(log, secrets.clone()));
        // In a task of its own, so that a handler that panics fails only its step.
        let mut task = tokio::spawn(handler(context.clone(), with.clone()));
        let Limits { mut control, timeout } = limits;
        let ended = tokio::select! {
            done = &mut task => match done {
                Ok(Ok(output)) => {
                    let result = Some(json!({ "output": output }).to_string().into());
                    return Ended::Report(Ending::Completed { result });
                }
                Ok(Err(error)) => {
                    return failed(json!({ "reason": "error", "message": error.message }), error.retriable);
                }
                Err(error) => return failed(json!({ "reason": "panic", "message": error.to_string() }), true),
            },
            signal = guarded(&mut control) => match signal {
                Signal::Cancel => Ended::Report(Ending::Cancelled),
                Signal::Renewed { .. } | Signal::Lost => Ended::Lost,
            },
            () = elapsed(timeout) => Ended::Report(Ending::TimedOut { result: None }),
        };
        let listens = context.cancel();
        let ended = if listens && ended == Ended::Report(Ending::Cancelled) {
            tokio::select! {
                _ = &mut task => return ended,
                () = control.lost() => Ended::Lost,
                () = pause(self.grace) => ended,
            }
        } else {
            ended
        };
        task.abort();
        // Wait until the task is gone before the ending is reported.
        let _ = task.await;
        ended
    }
}

/// A `call` step, with its templates filled in.
struct Call<'c> {
    name: &'c str,
    with: &'c Value,
    secrets: &'c Secrets,
}

struct Limits {
    control: Control,
    timeout: Option<Duration>,
}

/// Waits until the execution has to stop. A renewal that does not arrive in time counts as a loss, by this machine's
/// clock.
async fn guarded(control: &mut Control) -> Signal {
    loop {
        let until_ms = match control.now() {
            Signal::Renewed { until_ms } => until_ms,
            end => return end,
        };
        if tokio::time::timeout(left(until_ms), control.next()).await.is_err() {
            return Signal::Lost;
        }
    }
}

async fn elapsed(timeout: Option<Duration>) {
    match timeout {
        Some(limit) => pause(limit).await,
        None => std::future::pending().await,
    }
}

fn failed(facts: Value, retriable: bool) -> Ended {
    Ended::Report(Ending::Failed { result: Some(facts.to_string().into()), retriable })
}

/// Returns the inputs of a run for a handler, without the values of secret ones.
fn shown_inputs(inputs: &str) -> Value {
    let mut inputs = serde_json::from_str(inputs).unwrap_or(Value::Null);
    hide_sealed(&mut inputs);
    inputs
}

impl Runner for Handlers {
    fn run<'a>(&'a self, assignment: &'a Assignment, control: Control) -> RunnerFuture<'a> {
        Box::pin(async move {
            let spec: StepSpec = match serde_json::from_str(&assignment.step().spec) {
                Ok(spec) => spec,
                Err(error) => {
                    let message = format!("this version cannot read the step: {error}");
                    return failed(json!({ "reason": "spec", "message": message }), false);
                }
            };
            let rendered = match &self.commands {
                Some(commands) => {
                    let what = format!("{} {}", assignment.lease.execution.run, assignment.step().id);
                    let data = Some(commands.files.data());
                    commands.marks.guarded(&what, || render(assignment, &spec, data)).and_then(|done| done)
                }
                None => render(assignment, &spec, None),
            };
            let mut spec = match rendered {
                Ok(rendered) => rendered,
                Err(message) => return failed(json!({ "reason": "template", "message": message }), false),
            };
            spec.masks.extend(credentials(&spec.agents, start_folder(assignment).as_deref()));
            if let Err(message) = secret_sources::read(&spec).await {
                return failed(json!({ "reason": "secret", "message": message }), true);
            }
            let secrets = masker(&spec);
            // Git runs hooks and filters, which are not steps of the pipeline, so they must not see the secrets.
            withhold(spec.masks.iter().map(String::as_str));
            let using = match (&assignment.services, &self.commands) {
                (Some(used), Some(commands)) => {
                    let on_wait =
                        || commands.remark(assignment, &spec, &["waits for the services of its run".into()]);
                    match commands.services.join(used, &control, on_wait).await {
                        Ok(using) => Some(using),
                        Err(ended) => return ended,
                    }
                }
                _ => None,
            };
            for (name, port) in using.iter().flat_map(|using| &using.env) {
                spec.env.entry(name.clone()).or_insert_with(|| port.clone());
            }
            let ended = match (&spec.kind, &self.commands) {
                (_, Some(commands)) if spec.service.is_some() => {
                    let service = spec.service.clone().unwrap_or_default();
                    commands.serve(assignment, &spec, &service, control).await
                }
                (Kind::Call { handler, with }, _) => {
                    let timeout = spec.timeout_ms.map(Duration::from_millis);
                    let call = Call { name: handler, with, secrets: &secrets };
                    self.call(assignment, call, Limits { control, timeout }).await
                }
                (Kind::Land { .. }, Some(commands)) => commands.land(assignment, &spec, control).await,
                (Kind::Run { .. } | Kind::Exec { .. } | Kind::Agent(_), Some(commands)) => {
                    commands.run(assignment, &spec, control).await
                }
                _ => {
                    let message = "this worker cannot run steps of this kind".to_owned();
                    failed(json!({ "reason": "kind", "message": message }), false)
                }
            };
            mask(ended, &secrets)
        })
    }
}
