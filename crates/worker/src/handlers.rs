//! Runs steps: commands by a supervisor, calls by the program's own handlers.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_lifecycle::{ExecutionId, RunId};
use sprag_pipeline::{Kind, StepSpec};
use sprag_store::ops::{Assignment, Ending};

use crate::command::{Commands, render};
use crate::control::{Control, Signal, left, pause};
use crate::slots::{Ended, Runner, RunnerFuture};

/// What a handler is called with.
#[derive(Debug, Clone)]
pub struct Call {
    /// The run.
    pub run: RunId,
    /// The step's id.
    pub step: String,
    /// The attempt, from 1.
    pub attempt: u32,
    /// Proves the right to act: give it to whatever can check that it only grows.
    pub fence: u32,
    /// The step's `with`.
    pub with: Value,
    /// The run's inputs.
    pub inputs: Value,
    /// What the step that sent this one back had to say.
    pub feedback: Option<String>,
}

impl Call {
    /// Names the effect of this step: the same for all its attempts.
    pub fn idempotency_key(&self) -> String {
        format!("{}/{}", self.run, self.step)
    }
}

/// Why a handler failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallError {
    /// What went wrong.
    pub message: String,
    /// Whether another try makes sense.
    pub retriable: bool,
}

impl<E: std::fmt::Display> From<E> for CallError {
    fn from(error: E) -> Self {
        CallError { message: error.to_string(), retriable: true }
    }
}

/// What a handler returns: what it produced, or why it failed.
pub type CallFuture = Pin<Box<dyn Future<Output = Result<Value, CallError>> + Send>>;

type Handler = Arc<dyn Fn(Call) -> CallFuture + Send + Sync>;

/// The steps that this program can run.
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

    /// Runs `call: NAME` steps with this function. It is dropped where it stands when the step is
    /// cancelled, takes too long, or its lease is lost.
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
            fence: assignment.lease.fence,
            with: with.clone(),
            inputs: serde_json::from_str(&assignment.inputs).unwrap_or(Value::Null),
            feedback: assignment.feedback.as_deref().map(str::to_owned),
        });
        // In a task of its own, so that a handler that panics fails its step and nothing else.
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
        // Seen to be gone before anybody is told.
        let _ = task.await;
        ended
    }
}

struct Limits {
    control: Control,
    timeout: Option<Duration>,
}

/// Waits until the work is to end; a renewal that does not come in time is a loss, by our own clock.
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
            let spec = match render(assignment, &spec) {
                Ok(rendered) => rendered,
                Err(message) => return failed(json!({ "reason": "template", "message": message }), false),
            };
            match (&spec.kind, &self.commands) {
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
            }
        })
    }
}
