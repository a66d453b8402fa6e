//! Runs a step's command under a supervisor, with its log and its lock, and then the step's checks.

mod end;
mod service;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use sprag_pipeline::{Kind, Shell, StepSpec, render_step};
use sprag_process::{
    Capture, CrashMarks, Duplex, Error as ProcessError, LEASE_GRACE_MS, Order, Running, Secrets,
    append_notes, kill_orphans, make_private_folder, spawn, spawn_duplex,
};
use sprag_store::{Assignment, Ending};

use crate::agent::StepTools;
use crate::cache::Cache;
use crate::control::{Control, Signal};
use crate::entered::{Begin, Entered};
use crate::environment::{EnterError, Environments, RunEnvironment, Setup};
use crate::evidence::{self, MAX_VALUE_BYTES, Places, wants_stdout};
use crate::files::Files;
use crate::records::Records;
use crate::sandbox::GitAccess;
use crate::sealed::open_inputs;
use crate::secrets::{equip, masker};
use crate::services::Services;
use crate::slots::Ended;

pub(crate) use end::{Work, failed, first_line, with_warning};

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
    /// The tools for agents of steps with `mcp: [sprag]`; none if this program has none.
    pub(crate) step_tools: Option<Arc<dyn StepTools>>,
    pub(crate) marks: Arc<CrashMarks>,
    /// The services of this process.
    pub(crate) services: Services,
}

impl Commands {
    /// Creates a runner that starts this program as the supervisor of each command. A command that is asked to stop
    /// has `grace` before it is killed.
    pub fn new(files: Files, supervisor: PathBuf, grace: Duration) -> Self {
        let marks = CrashMarks::of(files.data());
        Commands {
            files,
            supervisor,
            grace,
            environments: None,
            fake_agent: None,
            step_tools: None,
            marks,
            services: Services::default(),
        }
    }

    /// Uses this program as the fake agent: a program that has `sprag agent fake`.
    pub fn with_fake_agent(mut self, program: Option<PathBuf>) -> Self {
        self.fake_agent = program;
        self
    }

    /// Offers these tools to the agents of steps with `mcp: [sprag]`.
    pub fn with_step_tools(mut self, tools: Option<Arc<dyn StepTools>>) -> Self {
        self.step_tools = tools;
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
        if let Err(ended) = self.check_sandboxes(assignment).and_then(|()| self.preflight(assignment, spec)) {
            return ended;
        }
        let entered = match self.enter(assignment, spec, &control).await {
            Ok(entered) => entered,
            Err(ended) => return ended,
        };
        let Some(entered) = entered else {
            let ended = self.run_in(assignment, spec, None, &mut control).await;
            return self.open_up(assignment, spec, None, &control, ended).await;
        };
        let ended = match self.begin(assignment, spec, &entered, &mut control).await {
            Ok(()) => {
                let ended = self.run_in(assignment, spec, Some(&entered.place), &mut control).await;
                let place = Some(&*entered.place);
                let ended = self.open_up(assignment, spec, place, &control, ended).await;
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
        self.prepare(assignment, spec, &entered.place, control).await?;
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

    /// Runs the setup of an environment, if it is due.
    async fn prepare(
        &self,
        assignment: &Assignment,
        spec: &StepSpec,
        place: &Arc<RunEnvironment>,
        control: &mut Control,
    ) -> Result<(), Ended> {
        let mut open = place.setup.lock().await;
        if let Some(due) = open.clone() {
            self.set_up(assignment, spec, &due, place, control).await?;
            let key = due.key;
            let noted = place.with_worktree(move |worktree| worktree.set_prepared(Some(&key))).await;
            if let Some(Err(error)) = noted {
                let message = error.to_string();
                return Err(failed(&json!({ "reason": "environment", "message": message }), true));
            }
            *open = None;
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
            sandbox: of.sandbox.clone(),
            ..StepSpec::new(kind)
        };
        let (mut order, places) = self
            .order(assignment, &spec, Some(place), control)
            .map_err(|message| failed(&json!({ "reason": "environment", "message": message }), true))?;
        order.log = self.files.log(assignment.lease.execution, "_setup");
        let work = Work { commands: self, assignment, order: &order, places: &places };
        let ended = work.see_to_end(order.clone(), control).await;
        // The step starts with the commits of its setup.
        let so_far = match &ended {
            Ok(_) => Ended::Report(Ending::Completed { result: None }),
            Err(ended) => ended.clone(),
        };
        let closed = self.open_up(assignment, &spec, Some(place), control, so_far).await;
        let ended = match (ended, closed) {
            (Ok(ended), Ended::Report(Ending::Completed { .. })) => ended,
            (_, closed) => return Err(closed),
        };
        if ended.success() {
            return Ok(());
        }
        let code = ended.exit_code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
        let message =
            format!("the setup of the environment ended with {code}: {}", first_line(&due.setup.run));
        let tail = evidence::tail(&order.log);
        Err(failed(&json!({ "reason": "environment", "message": message, "tail": tail }), true))
    }

    /// Runs the step's work in `place`, or in the folder where the run was started, with the files of its cache.
    async fn run_in(
        &self,
        assignment: &Assignment,
        spec: &StepSpec,
        place: Option<&RunEnvironment>,
        control: &mut Control,
    ) -> Ended {
        let Some(cached) = &spec.cache else {
            return self.run_uncached(assignment, spec, place, control).await;
        };
        let dir = step_dir(assignment, spec, place).unwrap_or_else(|| PathBuf::from("."));
        let use_cache = |save: bool| {
            let (cache, cached, dir) = (Cache::of(self.files.data()), cached.clone(), dir.clone());
            async move {
                let work = move || {
                    let (key, paths) = (&cached.key, &cached.paths);
                    if save { cache.save(key, paths, &dir) } else { cache.restore(key, paths, &dir) }
                };
                tokio::task::spawn_blocking(work)
                    .await
                    .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            }
        };
        let found = use_cache(false).await;
        let told = match &found {
            Ok(Some(count)) => format!("cache {}: {count} files restored", cached.key),
            Ok(None) => format!("cache {}: not found", cached.key),
            Err(error) => format!("cache {}: not restored: {error}", cached.key),
        };
        self.remark(assignment, spec, &[told]);
        let ended = self.run_uncached(assignment, spec, place, control).await;
        if !matches!(ended, Ended::Report(Ending::Completed { .. })) || matches!(found, Ok(Some(_))) {
            return ended;
        }
        match use_cache(true).await {
            Ok(Some(count)) => {
                self.remark(assignment, spec, &[format!("cache {}: {count} files kept", cached.key)]);
                ended
            }
            Ok(None) => ended,
            Err(error) => with_warning(ended, format!("cache {}: not kept: {error}", cached.key)),
        }
    }

    /// Runs the command and its checks in `place`, or in the folder where the run was started.
    async fn run_uncached(
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
        places.warnings.iter().cloned().fold(ending, with_warning)
    }

    /// Returns the order for a step's command, and the places of its files.
    pub(crate) fn order(
        &self,
        assignment: &Assignment,
        spec: &StepSpec,
        place: Option<&RunEnvironment>,
        control: &Control,
    ) -> Result<(Order, Places), String> {
        self.order_with(assignment, spec, place, control, GitAccess::Commit)
    }

    /// Returns an order as [`Commands::order`] does, with this access to the repository in a sandbox.
    pub(crate) fn order_with(
        &self,
        assignment: &Assignment,
        spec: &StepSpec,
        place: Option<&RunEnvironment>,
        control: &Control,
        access: GitAccess,
    ) -> Result<(Order, Places), String> {
        let id = assignment.lease.execution;
        let step = &assignment.name;
        let argv = spec.argv().ok_or("the step has no command")?;
        make_private_folder(&self.files.run(id.run))
            .map_err(|error| format!("cannot make {}: {error}", self.files.run(id.run).display()))?;
        let mut order = Order::new(argv, self.files.log(id, step));
        let context: Context = serde_json::from_str(&assignment.context).unwrap_or_default();
        let started_in = place.map(|place| place.dir.clone()).or(context.dir);
        let dir = step_dir(assignment, spec, place);
        order.dir = dir.clone();
        order.label = format!("{} {step}", id.run);
        order.grace_ms = self.grace.as_millis() as u64;
        order.timeout_ms = spec.timeout_ms;
        order.owner_lock = Some(self.files.lock(id.run, step));
        order.lease_until_ms = match control.now() {
            Signal::Renewed { until_ms } => Some(guard_until_ms(until_ms)),
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
        let mut places = Places {
            dir,
            base: started_in,
            warnings: Vec::new(),
            stdout: self.files.stdout(id, step),
            written: self.files.written(id, step),
            kept: self.files.kept(id, step),
            withheld: self.files.withheld(id, step),
        };
        self.enclose(&mut order, &mut places, assignment, spec, place, access)?;
        Ok((order, places))
    }

    /// Starts the command. If processes of an earlier attempt hold the lock, kills them first and waits until they
    /// are gone.
    async fn start(&self, order: Order, assignment: &Assignment) -> Result<Running, String> {
        let lock = order.owner_lock.clone().unwrap_or_default();
        tracing::debug!(execution = %assignment.lease.execution, dir = ?order.dir, "starts the command under a supervisor");
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

/// Returns the end of the lease for a supervisor. The supervisor adds its own grace, which must be over before the
/// store's lease ends.
pub(crate) fn guard_until_ms(until_ms: u64) -> u64 {
    until_ms.saturating_sub(LEASE_GRACE_MS)
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
///
/// `data` is the data directory with the key of secret inputs.
pub fn render(assignment: &Assignment, spec: &StepSpec, data: Option<&Path>) -> Result<StepSpec, String> {
    if let Some(why) = &assignment.unreadable {
        return Err(why.clone());
    }
    let mut names = assignment.names();
    let private = match data.filter(|_| !spec.secret_inputs.is_empty()) {
        Some(data) => open_inputs(data, &spec.secret_inputs, &mut names["inputs"])?,
        None => Vec::new(),
    };
    let rendered = render_step(spec, &spec.template_context(names)).map_err(|error| {
        // The reason of a failed expression may show its values.
        Secrets::new(&private).mask(&error.to_string())
    })?;
    Ok(StepSpec { private, ..rendered })
}

/// Returns the folder that a step works in; none if its run was started in no known folder.
fn step_dir(assignment: &Assignment, spec: &StepSpec, place: Option<&RunEnvironment>) -> Option<PathBuf> {
    let context: Context = serde_json::from_str(&assignment.context).unwrap_or_default();
    let base = place.map(|place| place.dir.clone()).or(context.dir);
    match (base, &spec.dir) {
        (Some(base), Some(dir)) => Some(base.join(dir)),
        (base, dir) => base.or_else(|| dir.as_ref().map(PathBuf::from)),
    }
}
