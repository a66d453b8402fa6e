//! Runs a step's command under a supervisor, with its log and its lock, and then the step's checks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use sprag_pipeline::{Check, Kind, Shell, StepSpec, render_step};
use sprag_process::{
    Capture, CrashMarks, Duplex, Ended as ProcessEnded, Error as ProcessError, LEASE_GRACE_MS, Order, Reason,
    Running, append_notes, kill_orphans, make_private_folder, spawn, spawn_duplex,
};
use sprag_store::{Assignment, Ending};

use crate::control::{Control, Signal, left};
use crate::entered::{Begin, Entered};
use crate::environment::{EnterError, Environments, RunEnvironment, Setup, Stop};
use crate::evidence::{self, MAX_VALUE_BYTES, Missing, Outputs, Patience, Places, wants_stdout};
use crate::files::Files;
use crate::records::Records;
use crate::secrets::{equip, masker};
use crate::slots::Ended;

/// The time that processes of an earlier attempt get to exit before the next attempt may start.
const ORPHAN_DEADLINE: Duration = Duration::from_secs(30);
/// The time for reading the outputs of a step that has failed.
const LEFT_OUTPUTS_MS: u64 = 10_000;

/// The part of a run's context that its steps need.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Context {
    /// The folder in which the run was started.
    dir: Option<PathBuf>,
}

/// The runner of commands: one supervisor process per command.
#[derive(Debug, Clone)]
pub struct Commands {
    pub(crate) files: Files,
    supervisor: PathBuf,
    grace: Duration,
    environments: Option<Environments>,
    /// The program that plays the fake agent as `PROGRAM agent fake`; none if this program cannot.
    pub(crate) fake_agent: Option<PathBuf>,
    pub(crate) marks: Arc<CrashMarks>,
}

impl Commands {
    /// Creates a runner that starts this program as the supervisor of each command. A command that is asked to stop
    /// has `grace` before it is killed.
    pub fn new(files: Files, supervisor: PathBuf, grace: Duration) -> Self {
        let marks = CrashMarks::of(files.data());
        Commands { files, supervisor, grace, environments: None, fake_agent: None, marks }
    }

    /// Uses this program as the fake agent: a program that has `sprag agent fake`.
    pub fn with_fake_agent(mut self, program: Option<PathBuf>) -> Self {
        self.fake_agent = program;
        self
    }

    /// Runs each command in the environment of its run.
    pub fn in_environments(mut self, environments: Environments) -> Self {
        self.environments = Some(environments);
        self
    }

    /// Returns the records of the engine; none in a program without environments.
    pub(crate) fn records(&self) -> Option<Arc<dyn Records>> {
        self.environments.as_ref().map(|environments| Arc::clone(&environments.0.records))
    }

    /// Enters the environment that a step works in. Returns none if its run has none.
    pub(crate) async fn enter(
        &self,
        assignment: &Assignment,
        spec: &StepSpec,
        control: &Control,
    ) -> Result<Option<Entered>, Ended> {
        let entered = match &self.environments {
            Some(environments) => environments.enter(assignment, &masker(spec), control).await,
            None if assignment.plan.environment.is_some() => {
                Err(EnterError::Failed("this program cannot create environments for runs".to_owned()))
            }
            None => Ok(None),
        };
        entered.map_err(|without| match (without, control.now()) {
            (EnterError::Failed(message), _) => {
                failed(&json!({ "reason": "environment", "message": message }), true)
            }
            (EnterError::Blocked(kind), _) => {
                let facts = json!({
                    // The step never entered its environment, so no state of it is recorded.
                    "reason": "blocked", "in_environment": false,
                    "message": kind.to_string(), "remedy": kind.remedy(),
                });
                Ended::Report(Ending::Blocked { result: Some(facts.to_string().into()) })
            }
            (EnterError::Stopped | EnterError::Draining, Signal::Lost) => Ended::Lost,
            (EnterError::Draining, Signal::Renewed { .. }) => Ended::Returned,
            (EnterError::Stopped | EnterError::Draining, _) => Ended::Report(Ending::Cancelled),
        })
    }

    /// Runs the command of a step and its checks, and returns when none of its processes is left. The texts of `spec`
    /// must be filled in already.
    pub async fn run(&self, assignment: &Assignment, spec: &StepSpec, mut control: Control) -> Ended {
        match control.now() {
            Signal::Renewed { .. } => {}
            Signal::Cancel => return Ended::Report(Ending::Cancelled),
            Signal::Lost => return Ended::Lost,
        }
        if let Err(ended) = self.preflight(assignment, spec) {
            return ended;
        }
        let entered = match self.enter(assignment, spec, &control).await {
            Ok(entered) => entered,
            Err(ended) => return ended,
        };
        let Some(entered) = entered else { return self.run_in(assignment, spec, None, &mut control).await };
        let ended = match self.begin(assignment, spec, &entered, &mut control).await {
            Ok(()) => {
                let ended = self.run_in(assignment, spec, Some(&entered.place), &mut control).await;
                self.record(assignment, spec, &entered, ended).await
            }
            Err(ended) => ended,
        };
        entered.leave().await;
        ended
    }

    /// Prepares the environment for a step: runs a setup that is due, and restores the files that the step starts
    /// with.
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
            self.set_up(assignment, spec, &due, &entered.place, control).await?;
            let key = due.key;
            let noted = entered.place.with_worktree(move |worktree| worktree.set_prepared(Some(&key))).await;
            if let Some(Err(error)) = noted {
                return Err(wrong(error.to_string()));
            }
            *open = None;
        }
        drop(open);
        // A landing settles what an interrupted one has left, so the files are not restored before it.
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
            later_round: assignment.repeat_round.is_some_and(|round| round > 1),
            forked_from: context["forked_from"]["run"].as_str().map(str::to_owned),
        };
        if let Some(remark) = entered.begin(begin).await.map_err(wrong)? {
            self.remark(assignment, spec, &[remark]);
        }
        Ok(())
    }

    /// Records the state that the step has left, unless the step belongs to another worker, now or soon. A problem that a
    /// person should know about becomes a warning of the step.
    pub(crate) async fn record(
        &self,
        assignment: &Assignment,
        spec: &StepSpec,
        entered: &Entered,
        ended: Ended,
    ) -> Ended {
        if matches!(ended, Ended::Lost | Ended::Returned) {
            return ended;
        }
        match entered.record(assignment.lease.execution, &assignment.name).await {
            Some(warning) => {
                self.remark(assignment, spec, std::slice::from_ref(&warning));
                with_warning(ended, warning)
            }
            None => ended,
        }
    }

    /// Appends remarks to a step's log, with secrets masked.
    pub(crate) fn remark(&self, assignment: &Assignment, spec: &StepSpec, remarks: &[String]) {
        let secrets = masker(spec);
        let remarks: Vec<String> = remarks.iter().map(|remark| secrets.mask(remark)).collect();
        let id = assignment.lease.execution;
        let log = self.files.log(id, &assignment.name);
        let written =
            make_private_folder(&self.files.run(id.run)).and_then(|()| append_notes(&log, &remarks));
        if let Err(error) = written {
            tracing::warn!(run = %id.run, log = %log.display(), %error, "writing to a step's log failed");
        }
    }

    /// Runs the setup command that a new worktree needs before step `of` starts. It has a log of its own.
    async fn set_up(
        &self,
        assignment: &Assignment,
        of: &StepSpec,
        due: &Setup,
        place: &RunEnvironment,
        control: &mut Control,
    ) -> Result<(), Ended> {
        /// The time limit of a setup that names none.
        const LONGEST_MS: u64 = 30 * 60 * 1000;
        let kind = Kind::Run { command: due.setup.run.clone(), shell: Shell::default() };
        let spec = StepSpec {
            timeout_ms: Some(due.setup.timeout_ms.unwrap_or(LONGEST_MS)),
            masks: of.masks.clone(),
            inherit: of.inherit.clone(),
            ..StepSpec::new(kind)
        };
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

    /// Runs the command and its checks in `place`, or in the folder where the run was started.
    async fn run_in(
        &self,
        assignment: &Assignment,
        spec: &StepSpec,
        place: Option<&RunEnvironment>,
        control: &mut Control,
    ) -> Ended {
        if let Kind::Agent(_) = spec.kind {
            return self.agent_in(assignment, spec, place, control).await;
        }
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
        order.env.insert("SPRAG_OUTPUT".into(), places.written.display().to_string());
        // An earlier owner of this attempt may have written there.
        let _ = std::fs::remove_file(&places.written);
        let order = order;
        let command = Work { commands: self, assignment, order: &order, places: &places };
        let ending = match command.see_to_end(order.clone(), control).await {
            Ok(ended) => command.judge(ended, spec, began_ms, control).await,
            Err(ended) => command.with_outputs_so_far(ended, spec, control).await,
        };
        if wants_stdout(spec) {
            let _ = std::fs::remove_file(&places.stdout);
        }
        let _ = std::fs::remove_file(&places.written);
        ending
    }

    pub(crate) fn order(
        &self,
        assignment: &Assignment,
        spec: &StepSpec,
        place: Option<&RunEnvironment>,
        control: &Control,
    ) -> Result<(Order, Places), String> {
        let id = assignment.lease.execution;
        let step = &assignment.name;
        let argv = spec.argv().ok_or("the step has no command")?;
        make_private_folder(&self.files.run(id.run))
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
        for file in &spec.dotenv {
            let path = started_in.as_ref().map_or_else(|| PathBuf::from(file), |base| base.join(file));
            order.env.extend(crate::written::dotenv(&path)?);
        }
        equip(&mut order, spec)?;
        if let Some(place) = place {
            order.env.extend(place.env.clone());
        }
        order.env.extend(spec.env.clone());
        order.env.insert("SPRAG_RUN_ID".into(), id.run.to_string());
        order.env.insert("SPRAG_STEP_ID".into(), step.clone());
        order.env.insert("SPRAG_ATTEMPT".into(), id.attempt.to_string());
        if let Some(round) = assignment.repeat_round {
            order.env.insert("SPRAG_ROUND".into(), round.to_string());
        }
        order.env.insert("SPRAG_FENCE".into(), assignment.lease.guard().to_string());
        if let Some(feedback) = &assignment.feedback {
            order.env.insert("SPRAG_FEEDBACK".into(), bounded(feedback));
        }
        let places = Places {
            dir,
            stdout: self.files.stdout(id, step),
            written: self.files.written(id, step),
            kept: self.files.kept(id, step),
            withheld: self.files.withheld(id, step),
        };
        Ok((order, places))
    }

    /// Starts the command. If processes of an earlier attempt hold the lock, kills them first and waits until they
    /// are gone.
    async fn start(&self, order: Order, assignment: &Assignment) -> Result<Running, String> {
        let lock = order.owner_lock.clone().unwrap_or_default();
        match spawn(order.clone(), &self.supervisor).await {
            Err(ProcessError::LockHeld { .. }) => {}
            started => return started.map_err(|error| error.to_string()),
        }
        self.end_orphans_of(assignment, lock).await?;
        spawn(order, &self.supervisor).await.map_err(|error| error.to_string())
    }

    /// Starts a command as [`Commands::start`] does, with pipes to this process as its stdin and stdout.
    pub(crate) async fn start_duplex(
        &self,
        order: Order,
        assignment: &Assignment,
    ) -> Result<(Running, Duplex), String> {
        let lock = order.owner_lock.clone().unwrap_or_default();
        match spawn_duplex(order.clone(), &self.supervisor).await {
            Err(ProcessError::LockHeld { .. }) => {}
            started => return started.map_err(|error| error.to_string()),
        }
        self.end_orphans_of(assignment, lock).await?;
        spawn_duplex(order, &self.supervisor).await.map_err(|error| error.to_string())
    }

    /// Kills the remaining processes of an earlier attempt, if any: they must not write while the next attempt runs.
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
        tracing::info!(run, step, "killing processes of an earlier attempt");
        let ended = tokio::task::spawn_blocking(move || {
            let markers = [("SPRAG_RUN_ID", run.as_str()), ("SPRAG_STEP_ID", step.as_str())];
            kill_orphans(&markers, Some(&lock), grace, ORPHAN_DEADLINE)
        });
        ended.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string()).map(drop)
    }
}

/// Returns the lease for a supervisor, in ms. The supervisor adds its own grace, which must be over before the
/// store's lease lapses.
pub(crate) fn guard_ms(until_ms: u64) -> u64 {
    (left(until_ms).as_millis() as u64).saturating_sub(LEASE_GRACE_MS).max(1)
}

/// Returns a text that fits into an environment variable. Only the end of a long text is kept, because the end
/// matters most.
fn bounded(text: &str) -> String {
    const MOST: usize = 100 << 10;
    let mut from = text.len().saturating_sub(MOST);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].replace('\0', "\u{fffd}")
}

/// Returns the step with its templates filled in.
pub fn render(assignment: &Assignment, spec: &StepSpec) -> Result<StepSpec, String> {
    if let Some(why) = &assignment.unreadable {
        return Err(why.clone());
    }
    render_step(spec, &spec.template_context(assignment.names())).map_err(|error| error.to_string())
}

/// The time that a step has left after its command has exited.
struct TimeLeft {
    stop: Stop,
    control: Control,
    /// The end of the step's time, by this machine's boot clock; none if the step has no limit.
    until_ms: Option<u64>,
}

impl TimeLeft {
    fn new(spec: &StepSpec, began_ms: u64, control: &Control) -> Self {
        let until_ms = spec.timeout_ms.map(|limit_ms| began_ms.saturating_add(limit_ms));
        TimeLeft { stop: Stop::listen(control), control: control.clone(), until_ms }
    }

    /// Waits for work on a blocking thread, but no longer than the step lasts: a slow file system must not hold up
    /// the step. Returns the step's ending as the error if the time is over or the step is stopped.
    async fn wait<T>(
        &self,
        work: &Work<'_>,
        ended: &ProcessEnded,
        not_done: &str,
        doing: impl Future<Output = T>,
    ) -> Result<T, Ended> {
        let limit = self.until_ms.map_or(Duration::MAX, left);
        match tokio::time::timeout(limit, self.stop.or(doing)).await {
            Ok(Ok(done)) if self.until_ms.is_none_or(|until_ms| sprag_process::boot_ms() < until_ms) => {
                Ok(done)
            }
            Ok(Err(_)) if self.control.now() == Signal::Lost => Err(Ended::Lost),
            Ok(Err(_)) => Err(Ended::Report(Ending::Cancelled)),
            Ok(Ok(_)) | Err(_) => {
                let mut facts = work.facts(ended, None);
                facts["reason"] = "timeout".into();
                facts["message"] = format!("{not_done} before its time was over").into();
                Err(Ended::Report(Ending::TimedOut { result: Some(facts.to_string().into()) }))
            }
        }
    }
}

/// A command that runs for a step.
pub(crate) struct Work<'w> {
    pub(crate) commands: &'w Commands,
    pub(crate) assignment: &'w Assignment,
    pub(crate) order: &'w Order,
    pub(crate) places: &'w Places,
}

impl Work<'_> {
    /// Starts a command and waits for its exit, and forwards the worker's signals to it. Returns the step's ending as
    /// the error if the command did not exit by itself.
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
                        tracing::warn!(%execution, %error, "sending a message to the supervisor failed");
                    }
                }
            }
        };
        let ended = ended.map_err(|error| {
            tracing::error!(%execution, %error, "could not see the end of the process tree");
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
            // Killed from outside: the process tree is gone, but not by its own doing.
            Reason::Signalled | Reason::SupervisorLost => Err(Ended::Vanished),
            Reason::CouldNotStart { .. } => Err(failed(&self.facts(&ended, None), false)),
        }
    }

    /// Runs the checks after the command has exited, and returns the step's ending.
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
            let dropped = ended.capture_dropped_bytes;
            let outputs = self.outputs_so_far(spec, dropped, control).await;
            return failed(&with_outputs(self.facts(&ended, None), outputs), retriable);
        }
        self.settle(ended, spec, Map::new(), began_ms, control).await
    }

    /// Reads the outputs and runs the checks of a step whose work has succeeded, and returns its ending. `given` are
    /// the outputs that the work itself has.
    pub(crate) async fn settle(
        &self,
        ended: ProcessEnded,
        spec: &StepSpec,
        given: Map<String, Value>,
        began_ms: u64,
        control: &mut Control,
    ) -> Ended {
        let time = TimeLeft::new(spec, began_ms, control);
        let Outputs { values: mut outputs, mut warnings } = match self.outputs(&ended, spec, &time).await {
            Ok(Ok(outputs)) => outputs,
            Err(ended) => return ended,
            Ok(Err(why)) => {
                let outputs = self.outputs_so_far(spec, ended.capture_dropped_bytes, control).await;
                let mut facts = with_outputs(self.facts(&ended, None), outputs);
                facts["reason"] = "output".into();
                facts["message"] = why.into();
                return failed(&facts, true);
            }
        };
        if let Value::Object(outputs) = &mut outputs {
            outputs.extend(given);
        }
        for (at, check) in spec.checks.iter().enumerate() {
            let held = match check {
                Check::Command(kind) => match self.check_command(kind, spec, began_ms, control).await {
                    Ok(held) => held,
                    Err(ended) => return ended,
                },
                Check::File { path, not_empty } => {
                    let (path, not_empty) = (self.places.path(path), *not_empty);
                    let looking =
                        tokio::task::spawn_blocking(move || evidence::file_is_there(&path, not_empty));
                    match time.wait(self, &ended, "a file was not looked for", looking).await {
                        Ok(held) => held.unwrap_or_else(|error| Err(error.to_string())),
                        Err(ended) => return ended,
                    }
                }
                Check::Schema { output, schema } => {
                    let (value, schema) = (outputs[output].clone(), schema.clone());
                    let checking =
                        tokio::task::spawn_blocking(move || evidence::fits_schema(&value, &schema));
                    match time.wait(self, &ended, "a schema was not checked", checking).await {
                        Ok(held) => held
                            .unwrap_or_else(|error| Err(error.to_string()))
                            .map_err(|why| format!("output `{output}` does not fit its schema: {why}")),
                        Err(ended) => return ended,
                    }
                }
            };
            if let (Err(why), true) = (&held, spec.warns.contains(&at)) {
                warnings.push(format!("check {} of {} does not hold: {why}", at + 1, spec.checks.len()));
            } else if let Err(why) = held {
                let mut facts = self.facts(&ended, Some(&outputs));
                facts["reason"] = "check".into();
                facts["message"] =
                    format!("check {} of {} does not hold: {why}", at + 1, spec.checks.len()).into();
                facts["tail"] = evidence::tail(&self.order.log).into();
                return failed(&facts, true);
            }
        }
        let result = self.facts(&ended, Some(&outputs)).to_string();
        let completed = Ended::Report(Ending::Completed { result: Some(result.into()) });
        if !warnings.is_empty() {
            self.commands.remark(self.assignment, spec, &warnings);
        }
        warnings.into_iter().fold(completed, with_warning)
    }

    /// Reads the step's outputs in the time that the step has left. Returns the step's ending as the error if that
    /// time is over.
    async fn outputs(
        &self,
        ended: &ProcessEnded,
        spec: &StepSpec,
        time: &TimeLeft,
    ) -> Result<Result<Outputs, String>, Ended> {
        if spec.outputs.is_empty() && !self.places.has_written() {
            return Ok(Ok(Outputs { values: json!({}), warnings: Vec::new() }));
        }
        let patience = Patience { cancel: time.stop.cancel.clone(), until_ms: time.until_ms };
        let (wanted, places, dropped) =
            (spec.outputs.clone(), self.places.clone(), ended.capture_dropped_bytes);
        let secrets = masker(spec);
        let reading = tokio::task::spawn_blocking(move || {
            evidence::outputs(&wanted, &places, dropped, &secrets, &patience, Missing::Fails)
        });
        let read = time.wait(self, ended, "its outputs were not read", reading).await?;
        Ok(read.unwrap_or_else(|error| Err(format!("the outputs were not read: {error}"))))
    }

    /// Reads the outputs of a step that has failed, as far as they exist.
    async fn outputs_so_far(&self, spec: &StepSpec, dropped: u64, control: &Control) -> Value {
        if spec.outputs.is_empty() && !self.places.has_written() {
            return json!({});
        }
        let until_ms = sprag_process::boot_ms().saturating_add(LEFT_OUTPUTS_MS);
        let stop = Stop::listen(control);
        let patience = Patience { cancel: stop.cancel.clone(), until_ms: Some(until_ms) };
        let (wanted, places, secrets) = (spec.outputs.clone(), self.places.clone(), masker(spec));
        let reading = tokio::task::spawn_blocking(move || {
            evidence::outputs(&wanted, &places, dropped, &secrets, &patience, Missing::LeftOut)
        });
        match tokio::time::timeout(left(until_ms), stop.or(reading)).await {
            Ok(Ok(Ok(Ok(outputs)))) => outputs.values,
            _ => json!({}),
        }
    }

    /// Adds the outputs, as far as they exist, to the report of a step that has exceeded its timeout.
    async fn with_outputs_so_far(&self, ended: Ended, spec: &StepSpec, control: &Control) -> Ended {
        let Ended::Report(Ending::TimedOut { result: Some(result) }) = &ended else { return ended };
        let outputs = self.outputs_so_far(spec, 0, control).await;
        let facts = with_outputs(serde_json::from_str(result).unwrap_or_default(), outputs);
        Ended::Report(Ending::TimedOut { result: Some(facts.to_string().into()) })
    }

    /// Runs a command that must succeed, in the time that the step has left.
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
        // The outputs have been read already.
        order.env.remove("SPRAG_OUTPUT");
        let took_ms = sprag_process::boot_ms().saturating_sub(began_ms);
        order.timeout_ms = spec.timeout_ms.map(|limit_ms| limit_ms.saturating_sub(took_ms).max(1));
        order.lease_ms = match control.now() {
            Signal::Renewed { until_ms } => Some(guard_ms(until_ms)),
            Signal::Cancel => return Err(Ended::Report(Ending::Cancelled)),
            Signal::Lost => return Err(Ended::Lost),
        };
        let ended = self.see_to_end(order, control).await?;
        Ok(if ended.success() {
            Ok(())
        } else {
            let code =
                ended.exit_code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
            Err(format!("{} ended with {code}", first_line(&shown)))
        })
    }

    /// Returns the facts about a command's exit as JSON: outputs if there are any, else the end of the log.
    pub(crate) fn facts(&self, ended: &ProcessEnded, outputs: Option<&Value>) -> Value {
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

/// Adds outputs to the facts about a command, if there are any.
fn with_outputs(mut facts: Value, outputs: Value) -> Value {
    if outputs.as_object().is_some_and(|outputs| !outputs.is_empty()) {
        facts["outputs"] = outputs;
    }
    facts
}

/// Returns the first line of a command, shortened for messages.
pub(crate) fn first_line(command: &str) -> String {
    const MOST: usize = 60;
    let line = command.lines().next().unwrap_or_default();
    if line.chars().count() > MOST || line.len() < command.trim_end().len() {
        format!("`{}…`", line.chars().take(MOST).collect::<String>())
    } else {
        format!("`{line}`")
    }
}

/// Adds a warning to the result that is reported for a step.
fn with_warning(ended: Ended, warning: String) -> Ended {
    let Ended::Report(mut ending) = ended else { return ended };
    if let Ending::Completed { result }
    | Ending::Failed { result, .. }
    | Ending::Blocked { result }
    | Ending::TimedOut { result } = &mut ending
    {
        let told = result.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
        let mut facts = told.filter(Value::is_object).unwrap_or_else(|| json!({}));
        match facts["warnings"].as_array_mut() {
            Some(warnings) => warnings.push(warning.into()),
            None => facts["warnings"] = json!([warning]),
        }
        *result = Some(facts.to_string().into());
    }
    Ended::Report(ending)
}

pub(crate) fn failed(facts: &Value, retriable: bool) -> Ended {
    Ended::Report(Ending::Failed { result: Some(facts.to_string().into()), retriable })
}
