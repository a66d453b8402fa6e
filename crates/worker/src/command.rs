//! Runs a step's command under a supervisor, with its log and its lock, and then whatever checks it.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use sprag_pipeline::{Check, Kind, Shell, StepSpec, render_step};
use sprag_process::{
    Capture, Ended as ProcessEnded, Error as ProcessError, LEASE_GRACE_MS, Order, Reason, Running,
    end_orphans, remark, spawn,
};
use sprag_store::ops::{Assignment, Ending};

use crate::control::{Control, Signal, left};
use crate::entered::{Begin, Entered};
use crate::environment::{Environments, Place, Setup, Without};
use crate::evidence::{self, MAX_VALUE_BYTES, Places, wants_stdout};
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
    pub(crate) files: Files,
    supervisor: PathBuf,
    grace: Duration,
    environments: Option<Environments>,
}

impl Commands {
    /// Runs commands with this program as their supervisor.
    pub fn new(files: Files, supervisor: PathBuf, grace: Duration) -> Self {
        Commands { files, supervisor, grace, environments: None }
    }

    /// Runs them in the environments of their runs.
    pub fn in_environments(mut self, environments: Environments) -> Self {
        self.environments = Some(environments);
        self
    }

    /// The environment that a step works in, if its run has one.
    pub(crate) async fn enter(
        &self,
        assignment: &Assignment,
        control: &Control,
    ) -> Result<Option<Entered>, Ended> {
        let entered = match &self.environments {
            Some(environments) => environments.enter(assignment, control).await,
            None if assignment.plan.environment.is_some() => {
                Err(Without::Failed("this program makes no environments for runs".to_owned()))
            }
            None => Ok(None),
        };
        entered.map_err(|without| match (without, control.now()) {
            (Without::Failed(message), _) => {
                failed(&json!({ "reason": "environment", "message": message }), true)
            }
            (Without::Stopped, Signal::Lost) => Ended::Lost,
            (Without::Stopped, _) => Ended::Report(Ending::Cancelled),
        })
    }

    /// Runs the command of a step and what checks it; returns when no process of it is left. The spec's
    /// texts are filled in.
    pub async fn run(&self, assignment: &Assignment, spec: &StepSpec, mut control: Control) -> Ended {
        match control.now() {
            Signal::Renewed { .. } => {}
            Signal::Cancel => return Ended::Report(Ending::Cancelled),
            Signal::Lost => return Ended::Lost,
        }
        let entered = match self.enter(assignment, &control).await {
            Ok(entered) => entered,
            Err(ended) => return ended,
        };
        let Some(entered) = entered else { return self.run_in(assignment, spec, None, &mut control).await };
        let ended = match self.begin(assignment, spec, &entered, &mut control).await {
            Ok(()) => {
                let ended = self.run_in(assignment, spec, Some(&entered.place), &mut control).await;
                if ended != Ended::Lost {
                    self.record(assignment, &entered).await;
                }
                ended
            }
            Err(ended) => ended,
        };
        entered.leave().await;
        ended
    }

    /// Makes the environment ready for a step: set up, and with the right files.
    pub(crate) async fn begin(
        &self,
        assignment: &Assignment,
        spec: &StepSpec,
        entered: &Entered,
        control: &mut Control,
    ) -> Result<(), Ended> {
        let wrong = |message: String| failed(&json!({ "reason": "environment", "message": message }), true);
        let mut open = entered.place.setup.lock().await;
        if let Some(due) = open.clone() {
            self.set_up(assignment, &due, &entered.place, control).await?;
            let key = due.key;
            let noted = entered.place.with_worktree(move |worktree| worktree.set_prepared(Some(&key))).await;
            if let Some(Err(error)) = noted {
                return Err(wrong(error.to_string()));
            }
            *open = None;
        }
        drop(open);
        // A landing that was cut off is recognised by what it has left.
        let here = spec.retry_here || matches!(spec.kind, Kind::Land { .. });
        if assignment.is_retry {
            self.end_former(assignment).await.map_err(wrong)?;
        }
        let context: Value = serde_json::from_str(&assignment.context).unwrap_or_default();
        let begin = Begin {
            run: assignment.lease.execution.run,
            step: &assignment.name,
            is_retry: assignment.is_retry,
            here,
            forked_from: context["forked_from"]["run"].as_str().map(str::to_owned),
        };
        if let Some(remark) = entered.begin(begin).await.map_err(wrong)? {
            self.remark(assignment, &[remark]);
        }
        Ok(())
    }

    /// Records what the step has left.
    pub(crate) async fn record(&self, assignment: &Assignment, entered: &Entered) {
        if let Some(remark) = entered.record(assignment.lease.execution.run, &assignment.name).await {
            self.remark(assignment, &[remark]);
        }
    }

    /// Tells something in a step's log.
    pub(crate) fn remark(&self, assignment: &Assignment, remarks: &[String]) {
        let id = assignment.lease.execution;
        let log = self.files.log(id, &assignment.name);
        let written = std::fs::create_dir_all(self.files.run(id.run)).and_then(|()| remark(&log, remarks));
        if let Err(error) = written {
            tracing::warn!(run = %id.run, log = %log.display(), %error, "writing to a step's log");
        }
    }

    /// Runs the command that a new worktree needs, with a log of its own.
    async fn set_up(
        &self,
        assignment: &Assignment,
        due: &Setup,
        place: &Place,
        control: &mut Control,
    ) -> Result<(), Ended> {
        /// The longest that a setup may take unless it says otherwise.
        const LONGEST_MS: u64 = 30 * 60 * 1000;
        let kind = Kind::Run { command: due.setup.run.clone(), shell: Shell::default() };
        let spec =
            StepSpec { timeout_ms: Some(due.setup.timeout_ms.unwrap_or(LONGEST_MS)), ..StepSpec::new(kind) };
        let (mut order, places) = self
            .order(assignment, &spec, Some(place), control)
            .map_err(|message| failed(&json!({ "reason": "environment", "message": message }), true))?;
        order.log = self.files.log(assignment.lease.execution, "_setup");
        let work = Work { commands: self, assignment, order: &order, places: &places };
        let ended = work.see_to_end(order.clone(), control).await?;
        if ended.success() {
            return Ok(());
        }
        let code = ended.exit_code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
        let message =
            format!("the setup of the environment ended with {code}: {}", first_line(&due.setup.run));
        let tail = evidence::tail(&order.log);
        Err(failed(&json!({ "reason": "environment", "message": message, "tail": tail }), true))
    }

    /// Runs the command and what checks it, there.
    async fn run_in(
        &self,
        assignment: &Assignment,
        spec: &StepSpec,
        place: Option<&Place>,
        control: &mut Control,
    ) -> Ended {
        let began_ms = sprag_process::boot_ms();
        let (mut order, places) = match self.order(assignment, spec, place, control) {
            Ok(order) => order,
            Err(message) => {
                return failed(&json!({ "reason": "could_not_start", "message": message }), false);
            }
        };
        if wants_stdout(spec) {
            order.capture_stdout = Some(Capture { path: places.stdout.clone(), max_bytes: MAX_VALUE_BYTES });
        }
        let order = order;
        let command = Work { commands: self, assignment, order: &order, places: &places };
        let ended = match command.see_to_end(order.clone(), control).await {
            Ok(ended) => ended,
            Err(ended) => return ended,
        };
        let ending = command.judge(ended, spec, began_ms, control).await;
        if wants_stdout(spec) {
            let _ = std::fs::remove_file(&places.stdout);
        }
        ending
    }

    pub(crate) fn order(
        &self,
        assignment: &Assignment,
        spec: &StepSpec,
        place: Option<&Place>,
        control: &Control,
    ) -> Result<(Order, Places), String> {
        let id = assignment.lease.execution;
        let step = &assignment.name;
        let argv = spec.argv().ok_or("the step has no command")?;
        std::fs::create_dir_all(self.files.run(id.run))
            .map_err(|error| format!("cannot make {}: {error}", self.files.run(id.run).display()))?;
        let mut order = Order::new(argv, self.files.log(id, step));
        let context: Context = serde_json::from_str(&assignment.context).unwrap_or_default();
        let started_in = place.map(|place| place.dir.clone()).or(context.dir);
        let dir = match (&started_in, &spec.dir) {
            (Some(base), Some(dir)) => Some(base.join(dir)),
            (base, dir) => base.clone().or_else(|| dir.as_ref().map(PathBuf::from)),
        };
        order.dir = dir.clone();
        order.label = format!("{} {step}", id.run);
        order.grace_ms = self.grace.as_millis() as u64;
        order.timeout_ms = spec.timeout_ms;
        order.owner_lock = Some(self.files.lock(id.run, step));
        order.lease_ms = match control.now() {
            Signal::Renewed { until_ms } => Some(guard_ms(until_ms)),
            Signal::Cancel | Signal::Lost => Some(0),
        };
        for name in &spec.secrets {
            let value = std::env::var(name)
                .map_err(|_| format!("the secret {name} is not set in the worker's environment"))?;
            order.env.insert(name.clone(), value.clone());
            order.secrets.push(value);
        }
        if let Some(place) = place {
            order.env.extend(place.env.clone());
        }
        order.env.extend(spec.env.clone());
        order.env.insert("SPRAG_RUN_ID".into(), id.run.to_string());
        order.env.insert("SPRAG_STEP_ID".into(), step.clone());
        order.env.insert("SPRAG_ATTEMPT".into(), id.attempt.to_string());
        order.env.insert("SPRAG_FENCE".into(), assignment.lease.fence.to_string());
        if let Some(feedback) = &assignment.feedback {
            order.env.insert("SPRAG_FEEDBACK".into(), bounded(feedback));
        }
        let places = Places {
            dir,
            stdout: self.files.stdout(id, step),
            kept: self.files.kept(id, step),
            secrets: order.secrets.clone(),
        };
        Ok((order, places))
    }

    /// Starts the command; first ends what is left of a former attempt, and sees it gone.
    async fn start(&self, order: Order, assignment: &Assignment) -> Result<Running, String> {
        let lock = order.owner_lock.clone().unwrap_or_default();
        match spawn(order.clone(), &self.supervisor).await {
            Err(ProcessError::LockHeld { .. }) => {}
            started => return started.map_err(|error| error.to_string()),
        }
        self.end_orphans_of(assignment, lock).await?;
        spawn(order, &self.supervisor).await.map_err(|error| error.to_string())
    }

    /// Ends what is left of a former attempt, if anything is: it must not write beside the next one.
    async fn end_former(&self, assignment: &Assignment) -> Result<(), String> {
        let lock = self.files.lock(assignment.lease.execution.run, &assignment.name);
        match sprag_process::is_held(&lock) {
            Ok(true) => self.end_orphans_of(assignment, lock).await,
            _ => Ok(()),
        }
    }

    async fn end_orphans_of(&self, assignment: &Assignment, lock: PathBuf) -> Result<(), String> {
        let run = assignment.lease.execution.run.to_string();
        let step = assignment.name.clone();
        let grace = self.grace;
        tracing::info!(run, step, "processes of a former attempt are still there: ending them");
        let ended = tokio::task::spawn_blocking(move || {
            let markers = [("SPRAG_RUN_ID", run.as_str()), ("SPRAG_STEP_ID", step.as_str())];
            end_orphans(&markers, Some(&lock), grace, ORPHAN_DEADLINE)
        });
        ended.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string()).map(drop)
    }
}

/// The supervisor adds its own grace after the lease: it must be over before the store's.
fn guard_ms(until_ms: u64) -> u64 {
    (left(until_ms).as_millis() as u64).saturating_sub(LEASE_GRACE_MS).max(1)
}

/// A variable that the kernel passes on: the end of a long text is what counts.
fn bounded(text: &str) -> String {
    const MOST: usize = 100 << 10;
    let mut from = text.len().saturating_sub(MOST);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].replace('\0', "\u{fffd}")
}

/// The step with its texts filled in.
pub fn render(assignment: &Assignment, spec: &StepSpec) -> Result<StepSpec, String> {
    render_step(spec, &spec.names_seen(assignment.names())).map_err(|error| error.to_string())
}

/// A command that is being run for a step.
pub(crate) struct Work<'w> {
    pub(crate) commands: &'w Commands,
    pub(crate) assignment: &'w Assignment,
    pub(crate) order: &'w Order,
    pub(crate) places: &'w Places,
}

impl Work<'_> {
    /// Starts a command and waits for its end, passing on what the worker says. Without an end of its own,
    /// the step's is known already.
    pub(crate) async fn see_to_end(
        &self,
        order: Order,
        control: &mut Control,
    ) -> Result<ProcessEnded, Ended> {
        let mut running = match self.commands.start(order, self.assignment).await {
            Ok(running) => running,
            Err(message) => {
                return Err(failed(&json!({ "reason": "could_not_start", "message": message }), true));
            }
        };
        let execution = self.assignment.lease.execution;
        let mut killed = false;
        let ended = loop {
            tokio::select! {
                ended = running.wait() => break ended,
                signal = control.next(), if !killed => {
                    let told = match signal {
                        Signal::Renewed { until_ms } => running.renew(Duration::from_millis(guard_ms(until_ms))),
                        Signal::Cancel => running.cancel(),
                        Signal::Lost => {
                            killed = true;
                            running.kill()
                        }
                    };
                    if let Err(error) = told {
                        tracing::warn!(%execution, %error, "telling the supervisor");
                    }
                }
            }
        };
        let ended = ended.map_err(|error| {
            tracing::error!(%execution, %error, "the end of the tree was not seen");
            Ended::Lost
        })?;
        match ended.reason {
            _ if control.now() == Signal::Lost => Err(Ended::Lost),
            Reason::Exited => Ok(ended),
            Reason::Timeout => {
                let result = self.facts(&ended, None).to_string();
                Err(Ended::Report(Ending::TimedOut { result: Some(result.into()) }))
            }
            Reason::Cancelled => Err(Ended::Report(Ending::Cancelled)),
            Reason::LeaseLost | Reason::ParentGone => Err(Ended::Lost),
            // Killed from outside: the tree is gone, and not by its own doing.
            Reason::Signalled | Reason::SupervisorLost => Err(Ended::Vanished),
            Reason::CouldNotStart { .. } => Err(failed(&self.facts(&ended, None), false)),
        }
    }

    /// What the command's end means for the step, once it is checked.
    async fn judge(
        &self,
        ended: ProcessEnded,
        spec: &StepSpec,
        began_ms: u64,
        control: &mut Control,
    ) -> Ended {
        if !ended.success() {
            let wanted = &self.assignment.step().policy.retry_exit_codes;
            let retriable = wanted.is_empty() || ended.exit_code.is_some_and(|code| wanted.contains(&code));
            return failed(&self.facts(&ended, None), retriable);
        }
        let outputs = match evidence::outputs(spec, self.places, ended.capture_dropped_bytes) {
            Ok(outputs) => outputs,
            Err(why) => {
                let mut facts = self.facts(&ended, None);
                facts["reason"] = "output".into();
                facts["message"] = why.into();
                return failed(&facts, true);
            }
        };
        for (at, check) in spec.checks.iter().enumerate() {
            let held = match check {
                Check::Command(kind) => match self.check_command(kind, spec, began_ms, control).await {
                    Ok(held) => held,
                    Err(ended) => return ended,
                },
                Check::File { path, not_empty } => {
                    evidence::file_is_there(&self.places.path(path), *not_empty)
                }
                Check::Schema { output, schema } => evidence::fits_schema(&outputs[output], schema)
                    .map_err(|why| format!("output `{output}` does not fit its schema: {why}")),
            };
            if let Err(why) = held {
                let mut facts = self.facts(&ended, Some(&outputs));
                facts["reason"] = "check".into();
                facts["message"] =
                    format!("check {} of {} does not hold: {why}", at + 1, spec.checks.len()).into();
                facts["tail"] = evidence::tail(&self.order.log).into();
                return failed(&facts, true);
            }
        }
        let result = self.facts(&ended, Some(&outputs)).to_string();
        Ended::Report(Ending::Completed { result: Some(result.into()) })
    }

    /// Runs a command that must succeed, in what is left of the step's time.
    async fn check_command(
        &self,
        kind: &Kind,
        spec: &StepSpec,
        began_ms: u64,
        control: &mut Control,
    ) -> Result<Result<(), String>, Ended> {
        let argv = kind.argv().unwrap_or_default();
        let mut order = self.order.clone();
        let shown = argv.last().cloned().unwrap_or_default();
        order.argv = argv;
        order.capture_stdout = None;
        let took_ms = sprag_process::boot_ms().saturating_sub(began_ms);
        order.timeout_ms = spec.timeout_ms.map(|limit_ms| limit_ms.saturating_sub(took_ms).max(1));
        order.lease_ms = match control.now() {
            Signal::Renewed { until_ms } => Some(guard_ms(until_ms)),
            Signal::Cancel => return Err(Ended::Report(Ending::Cancelled)),
            Signal::Lost => return Err(Ended::Lost),
        };
        let ended = self.see_to_end(order, control).await?;
        Ok(match ended.success() {
            true => Ok(()),
            false => {
                let code =
                    ended.exit_code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
                Err(format!("{} ended with {code}", first_line(&shown)))
            }
        })
    }

    /// What is known of a command's end.
    fn facts(&self, ended: &ProcessEnded, outputs: Option<&Value>) -> Value {
        let mut facts = json!({
            "reason": ended.reason,
            "exit_code": ended.exit_code,
            "signal": ended.signal,
            "leftovers": ended.leftovers,
            "usage": ended.usage,
            "log_dropped_bytes": ended.log_dropped_bytes,
            "log_error": ended.log_error,
        });
        match outputs {
            Some(outputs) if outputs.as_object().is_some_and(|outputs| !outputs.is_empty()) => {
                facts["outputs"] = outputs.clone();
            }
            Some(_) => {}
            None => facts["tail"] = evidence::tail(&self.order.log).into(),
        }
        facts
    }
}

/// The first line of a command, as it is shown.
pub(crate) fn first_line(command: &str) -> String {
    const MOST: usize = 60;
    let line = command.lines().next().unwrap_or_default();
    match line.chars().count() > MOST || line.len() < command.trim_end().len() {
        true => format!("`{}…`", line.chars().take(MOST).collect::<String>()),
        false => format!("`{line}`"),
    }
}

pub(crate) fn failed(facts: &Value, retriable: bool) -> Ended {
    Ended::Report(Ending::Failed { result: Some(facts.to_string().into()), retriable })
}
