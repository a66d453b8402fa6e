//! Runs a step's command under a supervisor, with its log and its lock.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use sprag_pipeline::{StepSpec, render_step};
use sprag_process::{Error as ProcessError, LEASE_GRACE_MS, Order, Reason, Running, end_orphans, spawn};
use sprag_store::ops::{Assignment, Ending};

use crate::control::{Control, Signal};
use crate::files::Files;
use crate::slots::Ended;

/// How long processes of a former attempt get to be gone before the next one may start.
const ORPHAN_DEADLINE: Duration = Duration::from_secs(30);

/// What a run's context holds for its steps.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Context {
    /// Where the run was started.
    dir: Option<PathBuf>,
}

/// Runs commands.
#[derive(Debug, Clone)]
pub struct Commands {
    files: Files,
    supervisor: PathBuf,
    grace: Duration,
}

impl Commands {
    /// Runs commands with this program as their supervisor.
    pub fn new(files: Files, supervisor: PathBuf, grace: Duration) -> Self {
        Commands { files, supervisor, grace }
    }

    /// Runs the command of a step; returns when no process of it is left.
    pub async fn run(&self, assignment: &Assignment, spec: &StepSpec, control: Control) -> Ended {
        match control.now() {
            Signal::Renewed { .. } => {}
            Signal::Cancel => return Ended::Report(Ending::Cancelled),
            Signal::Lost => return Ended::Lost,
        }
        let rendered = match render(assignment, spec) {
            Ok(rendered) => rendered,
            Err(message) => return failed(&json!({ "reason": "template", "message": message }), false),
        };
        let order = match self.order(assignment, &rendered, &control) {
            Ok(order) => order,
            Err(message) => {
                return failed(&json!({ "reason": "could_not_start", "message": message }), false);
            }
        };
        match self.start(order, assignment).await {
            Ok(running) => watch(running, control, assignment).await,
            Err(message) => failed(&json!({ "reason": "could_not_start", "message": message }), true),
        }
    }

    fn order(&self, assignment: &Assignment, spec: &StepSpec, control: &Control) -> Result<Order, String> {
        let id = assignment.lease.execution;
        let step = &assignment.step().id;
        let argv = spec.argv().ok_or("the step has no command")?;
        std::fs::create_dir_all(self.files.run(id.run))
            .map_err(|error| format!("cannot make {}: {error}", self.files.run(id.run).display()))?;
        let mut order = Order::new(argv, self.files.log(id.run, step, id.attempt));
        let context: Context = serde_json::from_str(&assignment.context).unwrap_or_default();
        let dir = match (&context.dir, &spec.dir) {
            (Some(base), Some(dir)) => Some(base.join(dir)),
            (base, dir) => base.clone().or_else(|| dir.as_ref().map(PathBuf::from)),
        };
        order.dir = dir;
        order.label = format!("{} {step}", id.run);
        order.grace_ms = self.grace.as_millis() as u64;
        order.timeout_ms = spec.timeout_ms;
        order.owner_lock = Some(self.files.lock(id.run, step));
        order.lease_ms = match control.now() {
            Signal::Renewed { lease, .. } => Some(guard_ms(lease)),
            Signal::Cancel | Signal::Lost => Some(0),
        };
        for name in &spec.secrets {
            let value = std::env::var(name)
                .map_err(|_| format!("the secret {name} is not set in the worker's environment"))?;
            order.env.insert(name.clone(), value.clone());
            order.secrets.push(value);
        }
        order.env.extend(spec.env.clone());
        order.env.insert("SPRAG_RUN_ID".into(), id.run.to_string());
        order.env.insert("SPRAG_STEP_ID".into(), step.clone());
        order.env.insert("SPRAG_ATTEMPT".into(), id.attempt.to_string());
        order.env.insert("SPRAG_FENCE".into(), assignment.lease.fence.to_string());
        Ok(order)
    }

    /// Starts the command; first ends what is left of a former attempt, and sees it gone.
    async fn start(&self, order: Order, assignment: &Assignment) -> Result<Running, String> {
        let lock = order.owner_lock.clone().unwrap_or_default();
        match spawn(order.clone(), &self.supervisor).await {
            Err(ProcessError::LockHeld { .. }) => {}
            started => return started.map_err(|error| error.to_string()),
        }
        let run = assignment.lease.execution.run.to_string();
        let step = assignment.step().id.clone();
        let grace = self.grace;
        tracing::info!(run, step, "processes of a former attempt are still there: ending them");
        let ended = tokio::task::spawn_blocking(move || {
            let markers = [("SPRAG_RUN_ID", run.as_str()), ("SPRAG_STEP_ID", step.as_str())];
            end_orphans(&markers, Some(&lock), grace, ORPHAN_DEADLINE)
        });
        ended.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        spawn(order, &self.supervisor).await.map_err(|error| error.to_string())
    }
}

/// The supervisor adds its own grace after the lease: it must be over before the store's.
fn guard_ms(lease: Duration) -> u64 {
    (lease.as_millis() as u64).saturating_sub(LEASE_GRACE_MS).max(1)
}

fn render(assignment: &Assignment, spec: &StepSpec) -> Result<StepSpec, String> {
    let inputs: Value = serde_json::from_str(&assignment.inputs).unwrap_or(Value::Null);
    let run = assignment.lease.execution.run.to_string();
    let context =
        json!({ "inputs": inputs, "run": { "id": run, "name": format!("{}-{run}", assignment.plan.name) } });
    render_step(spec, &context).map_err(|error| error.to_string())
}

/// Waits for the end, passing on what the worker says.
async fn watch(mut running: Running, mut control: Control, assignment: &Assignment) -> Ended {
    let mut killed = false;
    let ended = loop {
        tokio::select! {
            ended = running.wait() => break ended,
            signal = control.next(), if !killed => {
                let told = match signal {
                    Signal::Renewed { lease, .. } => running.renew(Duration::from_millis(guard_ms(lease))),
                    Signal::Cancel => running.cancel(),
                    Signal::Lost => {
                        killed = true;
                        running.kill()
                    }
                };
                if let Err(error) = told {
                    tracing::warn!(execution = %assignment.lease.execution, %error, "telling the supervisor");
                }
            }
        }
    };
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) => {
            tracing::error!(execution = %assignment.lease.execution, %error, "the end of the tree was not seen");
            return Ended::Lost;
        }
    };
    let facts = json!({
        "reason": ended.reason,
        "exit_code": ended.exit_code,
        "signal": ended.signal,
        "leftovers": ended.leftovers,
        "usage": ended.usage,
        "log_dropped_bytes": ended.log_dropped_bytes,
        "log_error": ended.log_error,
    });
    let result = Some(Arc::from(facts.to_string()));
    match ended.reason {
        _ if control.now() == Signal::Lost => Ended::Lost,
        Reason::Exited if ended.success() => Ended::Report(Ending::Completed { result }),
        Reason::Exited => {
            let wanted = &assignment.step().policy.retry_exit_codes;
            let retriable = wanted.is_empty() || ended.exit_code.is_some_and(|code| wanted.contains(&code));
            Ended::Report(Ending::Failed { result, retriable })
        }
        Reason::Timeout => Ended::Report(Ending::TimedOut { result }),
        Reason::Cancelled => Ended::Report(Ending::Cancelled),
        Reason::LeaseLost | Reason::ParentGone => Ended::Lost,
        // Killed from outside: the tree is gone, and not by its own doing.
        Reason::Signalled | Reason::SupervisorLost => Ended::Vanished,
        Reason::CouldNotStart { .. } => Ended::Report(Ending::Failed { result, retriable: false }),
    }
}

fn failed(facts: &Value, retriable: bool) -> Ended {
    Ended::Report(Ending::Failed { result: Some(facts.to_string().into()), retriable })
}
