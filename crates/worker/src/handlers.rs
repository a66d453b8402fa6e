//! Runs steps: commands under a supervisor, `call` steps by the program's own handlers.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_lifecycle::{ExecutionId, RunId};
use sprag_pipeline::{Kind, StepSpec};
use sprag_process::withhold;
use sprag_store::ops::{Assignment, Ending};

use crate::command::{Commands, render};
use crate::control::{Control, Signal, left, pause};
use crate::secrets::{mask, masker};
use crate::slots::{Ended, Runner, RunnerFuture};

/// The arguments of a handler.
#[derive(Debug, Clone)]
pub struct Call {
    /// The run that the step belongs to.
    pub run: RunId,
    /// The step's id.
    pub step: String,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The fence that proves the right to act. Pass it to any service that can check that it only grows; it grows
    /// over all attempts at the step.
    pub fence: u64,
    /// The step's `with`, with its templates filled in.
    pub with: Value,
    /// The run's inputs.
    pub inputs: Value,
    /// The message of the step that sent this one back; none if it was not sent back.
    pub feedback: Option<String>,
}

impl Call {
    /// Returns a key that names the effect of this step. It is the same for all attempts.
    pub fn idempotency_key(&self) -> String {
        format!("{}/{}", self.run, self.step)
    }
}

/// The failure of a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallError {
    /// The error message, which the step's result contains.
    pub message: String,
    /// Whether a retry makes sense.
    pub retriable: bool,
}

impl<E: std::fmt::Display> From<E> for CallError {
    fn from(error: E) -> Self {
        CallError { message: error.to_string(), retriable: true }
    }
}

/// The future of a handler's output or error.
pub type CallFuture = Pin<Box<dyn Future<Output = Result<Value, CallError>> + Send>>;

type Handler = Arc<dyn Fn(Call) -> CallFuture + Send + Sync>;

/// The runner of steps in this program: commands, and `call` steps by registered handlers.
#[derive(Clone, Default)]
pub struct Handlers {
    commands: Option<Commands>,
    handlers: BTreeMap<String, Handler>,
}

impl Handlers {
    /// Runs commands too.
    pub fn with_commands(mut self, commands: Commands) -> Self {
        self.commands = Some(commands);
        self
    }

    /// Runs `call: NAME` steps with this function. The runner drops its future when the step is cancelled, exceeds
    /// its timeout, or loses its lease.
    pub fn with_handler<F, Fut>(mut self, name: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Call) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Value, CallError>> + Send + 'static,
    {
        self.handlers.insert(name.into(), Arc::new(move |call| Box::pin(handler(call))));
        self
    }

    async fn call(&self, assignment: &Assignment, name: &str, with: &Value, limits: Limits) -> Ended {
        let Some(handler) = self.handlers.get(name) else {
            let known: Vec<&str> = self.handlers.keys().map(String::as_str).collect();
            let message = format!("no handler is called {name:?}; registered are: {}", known.join(", "));
            return failed(json!({ "reason": "no_handler", "message": message }), false);
        };
        let ExecutionId { run, attempt, .. } = assignment.lease.execution;
        let work = handler(Call {
            run,
            step: assignment.name.clone(),
            attempt,
            fence: assignment.lease.guard(),
            with: with.clone(),
            inputs: serde_json::from_str(&assignment.inputs).unwrap_or(Value::Null),
            feedback: assignment.feedback.as_deref().map(str::to_owned),
        });
        // In a task of its own, so that a handler that panics fails only its step.
        let mut task = tokio::spawn(work);
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
        task.abort();
        // Wait until the task is gone before the ending is reported.
        let _ = task.await;
        ended
    }
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
                    commands.marks.guarded(&what, || render(assignment, &spec)).and_then(|done| done)
                }
                None => render(assignment, &spec),
            };
            let spec = match rendered {
                Ok(rendered) => rendered,
                Err(message) => return failed(json!({ "reason": "template", "message": message }), false),
            };
            let secrets = masker(&spec);
            // Git runs hooks and filters, which are not steps of the pipeline, so they must not see the secrets.
            withhold(spec.masks.iter().map(String::as_str));
            let ended = match (&spec.kind, &self.commands) {
                (Kind::Call { handler, with }, _) => {
                    let timeout = spec.timeout_ms.map(Duration::from_millis);
                    self.call(assignment, handler, with, Limits { control, timeout }).await
                }
                (Kind::Land { .. }, Some(commands)) => commands.land(assignment, &spec, control).await,
                (Kind::Run { .. } | Kind::Exec { .. }, Some(commands)) => {
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
