//! Runs: start, list, cancel.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use sprag_lifecycle::{Plan, RunId, RunStatus, Word};
use sprag_pipeline::{Kind, StepSpec, Wait};
use sprag_store::{Created, ENFORCEMENT_KEY, IfCurrent, NewRun, NewWorker, Row, RunRow, Signalled, Topic};
use sprag_worktree::Repository;

use crate::App;
use crate::agents::name_accounts;
use crate::error::{Error, ErrorKind};
use crate::idempotency::RunRequest;
use crate::known::RunWithPlan;
use crate::labels::RunLabels;
use crate::reach::Reach;
use crate::resume::{abandon_the_dead, is_attended};
use crate::text::nearest;
use crate::waiting::keep_time;

/// The most runs in one page of a list.
pub const MOST_RUNS: usize = 500;
/// The most runs that are read for one page.
const LOOKED_THROUGH: usize = 20_000;

/// A request to start a run.
#[derive(Debug, Clone)]
pub struct StartRun {
    new: NewRun,
    labels: RunLabels,
}

/// A run that a request has started, now or before.
#[derive(Debug, Clone)]
pub struct Started {
    /// The run as it was when the request was answered.
    pub run: RunRow,
    /// Whether this request started it. If not, an earlier one with the same idempotency key did.
    pub is_new: bool,
}

impl StartRun {
    /// Returns the id that the run will have.
    pub fn id(&self) -> RunId {
        self.new.id
    }

    /// Sets the folder in which its commands run, and in which the repository of its worktree is looked for.
    pub fn in_folder(mut self, folder: PathBuf) -> Self {
        self.new.context = with_context(&self.new.context, |context| {
            context.insert("dir".into(), json!(folder));
        });
        self
    }

    /// Sets the whole context of the run.
    pub(crate) fn in_context(mut self, context: Value) -> Self {
        self.new.context = context.to_string().into();
        self
    }

    /// Replaces all agents of the run and of its child runs by the fake one.
    pub fn with_fake_agents(mut self) -> Self {
        self.new.context = with_context(&self.new.context, |context| {
            context.insert(sprag_worker::FAKE_AGENTS.into(), json!("fake"));
        });
        // The fake agent has no account.
        for step in &mut Arc::make_mut(&mut self.new.plan).steps {
            step.account = None;
        }
        self
    }

    /// Gives the run a name and labels, to find it again.
    pub fn labelled(mut self, labels: RunLabels) -> Self {
        self.labels = labels;
        self
    }

    /// Adds to the priority of its steps.
    pub fn priority(mut self, priority: i32) -> Self {
        self.new.priority = priority;
        self
    }

    /// Starts at most one run, however often the request is repeated with this key.
    pub fn idempotency_key(mut self, key: Option<&str>) -> Self {
        self.new.idempotency_key = key.map(Into::into);
        self
    }

    /// Returns the run that a rule starts. Its context names the rule, and the rules whose runs led to it.
    pub(crate) fn triggered_by(self, rule: &str, chain: &[String]) -> Result<NewRun, Error> {
        let StartRun { mut new, labels } = self;
        labels.check()?;
        new.context = with_context(&new.context, |context| {
            labels.write(context);
            context.insert("trigger".into(), json!({ "rule": rule, "chain": chain }));
        });
        Ok(new)
    }

    /// Reserves the run to a worker, which the same transaction registers.
    pub fn reserved_to(mut self, worker: NewWorker) -> Self {
        self.new.worker = Some(worker);
        self
    }
}

/// The runs that a list holds.
#[derive(Debug, Clone, Default)]
pub struct RunFilter {
    /// Only runs in one of these statuses; any if it is empty.
    pub statuses: Vec<RunStatus>,
    /// Only runs of the pipeline with this name.
    pub pipeline: Option<String>,
    /// Only runs that have all of these labels.
    pub labels: BTreeMap<String, String>,
    /// Only runs with this text in their id, pipeline, name or a label, in any case.
    pub text: Option<String>,
    /// Only runs created at this time or later, in milliseconds of the wall clock.
    pub since_ms: Option<i64>,
    /// Only runs created before this time, in milliseconds of the wall clock.
    pub until_ms: Option<i64>,
    /// Only child runs of this run.
    pub parent: Option<RunId>,
    /// Only runs that are no boards.
    pub without_boards: bool,
    /// Only runs that are older than this one.
    pub before: Option<RunId>,
    /// Only runs that the caller reaches.
    pub reach: Reach,
}

impl RunFilter {
    /// Whether a run in one of the statuses belongs to the list.
    fn holds(&self, row: &RunRow) -> bool {
        self.pipeline.as_deref().is_none_or(|pipeline| pipeline == &*row.pipeline)
            && (self.labels.is_empty() || RunLabels::of(row).has(&self.labels))
            && self.since_ms.is_none_or(|since| row.created_ms >= since)
            && self.until_ms.is_none_or(|until| row.created_ms < until)
            && self.parent.is_none_or(|parent| row.parent.is_some_and(|(run, _)| run == parent))
            && self.text.as_deref().is_none_or(|text| has_text(row, text))
    }
}

/// Whether a run's id, pipeline, name or a label contains a text, in any case.
fn has_text(row: &RunRow, text: &str) -> bool {
    let wanted = text.to_lowercase();
    let has = |shown: &str| shown.to_lowercase().contains(&wanted);
    let RunLabels { name, labels } = RunLabels::of(row);
    has(&row.id.to_string())
        || has(&row.pipeline)
        || name.as_deref().is_some_and(has)
        || labels.iter().any(|(key, value)| has(&format!("{key}={value}")))
}

/// The number of runs in each status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunCounts {
    /// The numbers, by status; a status without runs is absent.
    pub by_status: BTreeMap<&'static str, usize>,
    /// Whether older runs were not counted, because there are too many.
    pub more: bool,
}

/// One page of a list of runs, newest first.
#[derive(Debug, Clone)]
pub struct RunPage {
    /// The runs.
    pub runs: Vec<RunRow>,
    /// The runs of this page whose rows cannot be read.
    pub damaged: Vec<DamagedRun>,
    /// The run after which the next page starts; none if this is the last one.
    pub next: Option<RunId>,
}

/// A run whose row cannot be read.
#[derive(Debug, Clone)]
pub struct DamagedRun {
    /// Its id.
    pub id: RunId,
    /// The row, the column, and what is wrong with the value.
    pub why: String,
}

impl App {
    /// Prepares a request to start a run of a plan with its complete inputs.
    pub fn new_run(
        &self,
        plan: impl Into<Arc<Plan>>,
        inputs: &BTreeMap<String, Value>,
    ) -> Result<StartRun, Error> {
        let mut plan = plan.into();
        if plan.steps.iter().any(|step| step.account.is_some()) {
            name_accounts(Arc::make_mut(&mut plan));
        }
        let inputs = self.sealed_inputs(&plan, inputs)?;
        let mut new = self.store.person().new_run(plan);
        new.inputs = json!(inputs).to_string().into();
        Ok(StartRun { new, labels: RunLabels::default() })
    }

    /// Starts a run. When this returns, the run is on disk.
    ///
    /// A request whose idempotency key has started a run before gets that run. It is refused if the key was used for
    /// another pipeline, other inputs, another folder, another priority, or another name or label.
    pub async fn start_run(&self, start: StartRun) -> Result<Started, Error> {
        let StartRun { mut new, labels } = start;
        labels.check()?;
        check_key(&new)?;
        new.context = with_context(&new.context, |context| labels.write(context));
        let request = RunRequest::of(&new);
        let created = self.store.person().create_run(new).await?;
        self.started(created, &request)
    }

    /// Starts a run that continues after the step `from` of another run, with a copy of its results and files. When this
    /// returns, the run is on disk.
    ///
    /// A request whose idempotency key has started a run before gets that run. It is refused if the key was used for
    /// another run, another step, or for a run that is no fork.
    pub async fn fork_run(&self, fork: ForkRun) -> Result<Started, Error> {
        let ForkRun { source, step, start: StartRun { new, .. }, files } = fork;
        let (id, request) = (new.id, RunRequest::of(&new));
        let started = match check_key(&new) {
            Ok(()) => self.store.person().fork_run(source, step, new).await.map_err(Error::from),
            Err(error) => Err(error),
        };
        let started = started.and_then(|created| self.started(created, &request));
        if let (Some(repository), false) = (files, started.as_ref().is_ok_and(|started| started.is_new)) {
            // No run of this id begins with the files that were chosen for it.
            repository.clear_start(&id.to_string())?;
        }
        started
    }

    /// Returns the run that a request got. A run that its key has started before must be the requested one.
    fn started(&self, created: Created, request: &RunRequest) -> Result<Started, Error> {
        match created {
            Created::New(run) => Ok(Started { run: self.require_run(run)?, is_new: true }),
            Created::Existing(run) => {
                let run = self.require_run(run)?;
                request.check(&run)?;
                Ok(Started { run, is_new: false })
            }
            Created::NameTaken => Err(id_taken()),
        }
    }

    /// Returns the run with this id, if there is one.
    pub fn run(&self, id: RunId) -> Result<Option<RunRow>, Error> {
        Ok(self.store.queries().run(id)?)
    }

    /// Returns the run with this id; an error if there is none.
    pub fn require_run(&self, id: RunId) -> Result<RunRow, Error> {
        self.run(id)?.ok_or_else(|| no_run(id))
    }

    /// Waits until a run has ended. An engine of this process must be running, because the notifications come from its
    /// executor; without one, the run is looked at every two seconds.
    pub async fn wait_for_run(&self, run: RunId) -> Result<RunStatus, Error> {
        // The executor listens to the whole journal, so changes of other processes arrive here too.
        let changes = self.subscribe_here(vec![Topic::Run(run)]);
        loop {
            let status = self.require_run(run)?.status();
            if status.is_terminal() {
                return Ok(status);
            }
            changes.wait(Duration::from_secs(2)).await;
        }
    }

    /// Lists runs, newest first: at most `limit` of them.
    pub fn runs(&self, filter: &RunFilter, limit: usize) -> Result<RunPage, Error> {
        let limit = limit.min(MOST_RUNS);
        let mut before = filter.before;
        let mut found: Vec<RunRow> = Vec::new();
        let mut damaged: Vec<DamagedRun> = Vec::new();
        let mut looked = 0;
        loop {
            let page = self.store.queries().runs(before, &filter.statuses, MOST_RUNS)?;
            looked += page.len();
            let last_page = page.len() < MOST_RUNS;
            for listed in page {
                if found.len() == limit {
                    break;
                }
                before = Some(listed.id);
                match listed.row {
                    Ok(row) if filter.holds(&row) && !self.leaves_out(filter, &row)? => found.push(row),
                    Ok(_) => {}
                    // Whether it is within the limits cannot be told.
                    Err(_) if !filter.reach.is_everything() => {}
                    Err(error) => damaged.push(DamagedRun { id: listed.id, why: error.to_string() }),
                }
            }
            if found.len() == limit || last_page || looked >= LOOKED_THROUGH {
                let more = found.len() == limit || !last_page;
                return Ok(RunPage { runs: found, damaged, next: before.filter(|_| more) });
            }
        }
    }

    /// Returns whether a run is beyond the caller's reach, or a board that the list leaves out.
    fn leaves_out(&self, filter: &RunFilter, row: &RunRow) -> Result<bool, Error> {
        if !self.reaches_row(&filter.reach, row)? {
            return Ok(true);
        }
        Ok(filter.without_boards && (row.open || self.store.queries().board(row.id)?.is_some()))
    }

    /// Counts runs by status, whatever statuses the filter names: the newest 20,000.
    pub fn count_runs(&self, filter: &RunFilter) -> Result<RunCounts, Error> {
        let mut counts = RunCounts::default();
        let mut before = None;
        let mut looked = 0;
        loop {
            let page = self.store.queries().runs(before, &[], MOST_RUNS)?;
            looked += page.len();
            for row in
                page.iter().filter_map(|listed| listed.row.as_ref().ok()).filter(|row| filter.holds(row))
            {
                if self.leaves_out(filter, row)? {
                    continue;
                }
                *counts.by_status.entry(row.status().as_str()).or_default() += 1;
            }
            before = page.last().map(|row| row.id);
            if page.len() < MOST_RUNS {
                return Ok(counts);
            }
            if looked >= LOOKED_THROUGH {
                counts.more = true;
                return Ok(counts);
            }
        }
    }

    /// Lists runs, newest first, page by page until `limit` is reached.
    pub fn all_runs(&self, filter: &RunFilter, limit: usize) -> Result<Vec<RunRow>, Error> {
        Ok(self.all_runs_and_damaged(filter, limit)?.0)
    }

    /// Lists runs as [`App::all_runs`] does, and the runs among them whose rows cannot be read.
    pub fn all_runs_and_damaged(
        &self,
        filter: &RunFilter,
        limit: usize,
    ) -> Result<(Vec<RunRow>, Vec<DamagedRun>), Error> {
        let mut filter = filter.clone();
        let (mut found, mut damaged) = (Vec::new(), Vec::new());
        while found.len() < limit {
            let page = self.runs(&filter, limit - found.len())?;
            found.extend(page.runs);
            damaged.extend(page.damaged);
            match page.next {
                Some(next) => filter.before = Some(next),
                None => break,
            }
        }
        Ok((found, damaged))
    }

    /// Refuses to retry what failed in a run that has not ended: the table of runs says so.
    pub async fn require_retryable(&self, run: RunId) -> Result<(), Error> {
        if self.require_run(run)?.status().is_terminal() {
            return Ok(());
        }
        self.store.person().resume_run(run, None).await?.require_applied()?;
        Ok(())
    }

    /// Asks a run to stop, and does not wait for it. A run that has ended stays as it is.
    pub async fn request_cancel(&self, run: RunId) -> Result<(), Error> {
        let _ = self.store.person().cancel_run(run).await?;
        Ok(())
    }

    /// Cancels a run: stops its running steps and skips the rest. Where `version` is given, only if the run's row
    /// still has it; otherwise nothing is done.
    pub async fn cancel_run(&self, run: RunId, version: Option<u32>) -> Result<Cancelled, Error> {
        let outcome = match version {
            Some(version) => match self.store.person().cancel_run_at(run, version).await? {
                IfCurrent::Done(outcome) => outcome,
                IfCurrent::Changed { version } => return Ok(Cancelled::Changed { version }),
            },
            None => self.store.person().cancel_run(run).await?,
        };
        outcome.require_applied()?;
        // Where no server runs, no other process abandons a dead process's work.
        abandon_the_dead(self, run).await?;
        let row = self.require_run(run)?;
        keep_time(self, row.root).await?;
        let row = self.require_run(run)?;
        let is_attended = row.status().is_terminal() || is_attended(self, &row).unwrap_or(true);
        Ok(Cancelled::Done { run: Box::new(row), is_attended })
    }

    /// Sends a signal to a run. Returns the name of the step that had waited for it; none if the store keeps the
    /// signal for a step that will. A name that no step of the run waits for, now or later, is refused.
    pub async fn signal(&self, run: RunId, name: &str, payload: &Value) -> Result<Option<String>, Error> {
        self.check_signal(run, name)?;
        let sent = self.store.person().signal(run, name.into(), payload.to_string().into()).await?;
        match sent {
            Signalled::Received(step) => Ok(Some(RunWithPlan::load(self, run)?.name_of(self, step))),
            Signalled::Kept => Ok(None),
        }
    }
}

impl App {
    /// Refuses a signal that no step of a run waits for.
    fn check_signal(&self, run: RunId, name: &str) -> Result<(), Error> {
        let known = RunWithPlan::load(self, run)?;
        if known.run.status().is_terminal() {
            return Ok(());
        }
        let names: BTreeSet<String> =
            known.plan.steps.iter().filter_map(|step| awaited_signal(&step.spec)).collect();
        // The name of a signal may be a template, which is known only when its step begins.
        if names.iter().any(|one| one == name || one.contains("{{")) {
            return Ok(());
        }
        let error = Error::invalid(format!("no step of run {run} waits for a signal {name:?}"));
        let near = nearest(name, names.iter().map(String::as_str));
        let all = names.iter().cloned().collect::<Vec<_>>().join(", ");
        Err(match near {
            Some(near) => error.next(format!("did you mean {near:?}? Its steps wait for: {all}")),
            None if names.is_empty() => error.next("none of its steps waits for a signal"),
            None => error.next(format!("its steps wait for: {all}")),
        })
    }
}

/// Returns the name of the signal that a step waits for, if its work is to wait for one.
fn awaited_signal(spec: &str) -> Option<String> {
    let spec: StepSpec = serde_json::from_str(spec).ok()?;
    match spec.kind {
        Kind::Wait(Wait::Signal { name }) => Some(name),
        _ => None,
    }
}

/// The effect of a request to cancel a run.
#[derive(Debug, Clone)]
pub enum Cancelled {
    /// The run is cancelled, or will be as soon as its steps have stopped.
    Done {
        /// The run afterwards.
        run: Box<RunRow>,
        /// Whether a process is there that executes what is left, such as `always` steps.
        is_attended: bool,
    },
    /// The run has changed since the caller looked at it; nothing was done.
    Changed {
        /// The version of its row.
        version: u32,
    },
}

/// A request to fork a run.
#[derive(Debug, Clone)]
pub struct ForkRun {
    pub(crate) source: RunId,
    pub(crate) step: sprag_lifecycle::StepNo,
    pub(crate) start: StartRun,
    /// The repository in which the files of the new run were chosen; none if it starts with no files.
    files: Option<Repository>,
}

impl ForkRun {
    /// Returns the id that the new run will have.
    pub fn id(&self) -> RunId {
        self.start.id()
    }

    /// Reserves the new run to a worker, which the same transaction registers.
    pub fn reserved_to(mut self, worker: NewWorker) -> Self {
        self.start = self.start.reserved_to(worker);
        self
    }

    /// Sets the key that never starts a second run.
    pub fn idempotency_key(mut self, key: Option<&str>) -> Self {
        self.start = self.start.idempotency_key(key);
        self
    }

    pub(crate) fn new(
        source: RunId,
        step: sprag_lifecycle::StepNo,
        new: NewRun,
        files: Option<Repository>,
    ) -> Self {
        ForkRun { source, step, start: StartRun { new, labels: RunLabels::default() }, files }
    }
}

/// Returns a run's context with a change.
fn with_context(context: &str, change: impl FnOnce(&mut Map<String, Value>)) -> Arc<str> {
    let mut object: Map<String, Value> = serde_json::from_str(context).unwrap_or_default();
    change(&mut object);
    Value::Object(object).to_string().into()
}

/// Returns the error for a run that does not exist.
pub(crate) fn no_run(id: RunId) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no run {id}")).next("list the runs")
}

/// Refuses an idempotency key that is reserved for the runs of rules.
fn check_key(new: &NewRun) -> Result<(), Error> {
    if new.idempotency_key.as_deref().is_some_and(|key| key.starts_with(ENFORCEMENT_KEY)) {
        let message = format!("an idempotency key cannot start with {ENFORCEMENT_KEY:?}");
        return Err(Error::invalid(message).next("choose another key"));
    }
    Ok(())
}

fn id_taken() -> Error {
    Error::new(ErrorKind::Unavailable, "the generated id of the run already exists").next("try again")
}
