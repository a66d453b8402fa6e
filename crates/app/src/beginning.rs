//! The files with which a resumed, rewound or forked run begins: a recorded state, or an error that names it.
//!
//! A step begins again with the files from before it. Where several steps were interrupted, the files from before the
//! first of them are right for all. Where a step that stays done has worked beside them, there is no such state: then
//! the run continues with the files as they are, and the person is told so.

use serde_json::Value;
use sprag_lifecycle::{EnvironmentStatus, Plan, RunId, StepNo, StepStatus, WorkKind};
use sprag_pipeline::{Kind, StepSpec};
use sprag_store::{ExecutionRow, Row, RunInFull, StepRow, is_current, step_name};
use sprag_worker::{before, worked};
use sprag_worktree::{Checkpoint, Kind as GitKind, Repository};

use crate::App;
use crate::error::{Error, ErrorKind, Hint};
use crate::known::RunWithPlan;
use crate::local_files::LocalFiles;

/// A step that works in the worktree of a run: a step of the run itself, or of a child run.
struct Leaf {
    run: RunId,
    name: String,
    /// The step's number, and that of its fan-out, in its run.
    no: StepNo,
    item_of: Option<StepNo>,
    status: StepStatus,
    ended_ms: Option<i64>,
    always: bool,
    /// Whether a coding agent does its work, and continues with the files of its last attempt.
    is_agent: bool,
    /// Whether the step is known to have been in the worktree: then its states were recorded.
    was_there: bool,
}

/// The worktree of a run, for choosing the files with which the run begins.
pub(crate) struct Beginning<'b> {
    known: &'b RunWithPlan,
    repository: Repository,
    leaves: Vec<Leaf>,
    /// Whether the files of the run are still there.
    has_files: bool,
    /// The run, and the runs that it was forked from. States that those recorded are part of its past too.
    lineage: Vec<RunId>,
}

impl<'b> Beginning<'b> {
    /// Looks at a run. Returns none if it has no worktree, and a message if its worktree is on another host.
    pub(crate) fn of(app: &App, known: &'b RunWithPlan) -> Result<Result<Option<Self>, String>, Error> {
        let id = known.id();
        let rows = app.store.queries().environments_of(id)?;
        let Some(row) = rows.iter().find(|row| row.scope.is_none()) else { return Ok(Ok(None)) };
        let Some(files) = LocalFiles::of(row) else {
            let elsewhere =
                || format!("the run's files are on {}: its steps start with their current state", row.host);
            return Ok(if row.host.is_empty() { Ok(None) } else { Err(elsewhere()) });
        };
        let Some(path) = files.repository else { return Ok(Ok(None)) };
        let repository = Repository::discover(&path)?;
        let runs = app.store.queries().runs_in_environment(id)?;
        let leaves = runs.iter().flat_map(leaves_of).collect();
        let lineage = lineage(app, known)?;
        let has_files = row.status() == EnvironmentStatus::Ready;
        Ok(Ok(Some(Beginning { known, repository, leaves, has_files, lineage })))
    }

    /// Has the run, which resumes what was interrupted or failed, begin with the files from before that. Returns what
    /// a person should know.
    pub(crate) fn before_the_broken(&self) -> Result<Option<String>, Error> {
        let broken: Vec<&Leaf> = self.own().filter(|leaf| is_broken(leaf.status)).collect();
        if !broken.is_empty() && broken.iter().all(|leaf| leaf.is_agent) {
            // An agent continues its session, with the files that it knows and that people may have changed since. If they
            // were removed, the state that it left is restored.
            let numbers: Vec<StepNo> = broken.iter().map(|leaf| leaf.no).collect();
            if !self.has_files
                && let Some(state) = self.latest(&numbers)?
            {
                self.choose(&state)?;
            }
            return Ok(None);
        }
        let mut first: Option<(u64, Checkpoint)> = None;
        for leaf in self.leaves.iter().filter(|leaf| is_broken(leaf.status)) {
            let Some(state) = self.find(leaf, &before(&leaf.name))? else { continue };
            let at_ms = self.recorded_at(&state)?;
            if first.as_ref().is_none_or(|(earliest, _)| at_ms < *earliest) {
                first = Some((at_ms, state));
            }
        }
        let Some((at_ms, state)) = first else { return Ok(None) };
        match self.done_since(at_ms, |_| false).as_slice() {
            [] => self.choose(&state).map(|()| None),
            beside => Ok(Some(format!(
                "it continues with the current files: {} ran beside the steps that run again",
                beside.join(", ")
            ))),
        }
    }

    /// Has the run, which goes back to a step, begin with the files from before it. Returns what a person should
    /// know.
    pub(crate) fn before_step(&self, no: StepNo) -> Result<Option<String>, Error> {
        let plan = &self.known.plan;
        let mut of_step: Vec<&Leaf> =
            self.own().filter(|leaf| leaf.no == no || leaf.item_of == Some(no)).collect();
        if plan.step(no).own_environment {
            of_step.clear();
        }
        let mut first: Option<(u64, Checkpoint)> = None;
        for leaf in of_step {
            let Some(state) = self.find(leaf, &before(&leaf.name))? else { continue };
            let at_ms = self.recorded_at(&state)?;
            if first.as_ref().is_none_or(|(earliest, _)| at_ms < *earliest) {
                first = Some((at_ms, state));
            }
        }
        let Some((at_ms, state)) = first else {
            // A question, a wait or a child run records no state: the files that the steps before it have left are
            // used.
            return match self.after_needs_of(no)? {
                Some(state) => self.choose(&state).map(|()| None),
                None => Ok(None),
            };
        };
        self.choose(&state)?;
        let again = plan.with_descendants(no);
        let beside = self.done_since(at_ms, |leaf| {
            leaf.run == self.known.id() && again.contains(&leaf.item_of.unwrap_or(leaf.no))
        });
        Ok((!beside.is_empty()).then(|| {
            format!(
                "the files from before the step do not contain the changes of {}, which ran beside it",
                beside.join(", ")
            )
        }))
    }

    /// Has the run, which goes back to a step inside one of its steps, begin with the files from before that. Returns what a
    /// person should know.
    pub(crate) fn before_inner(&self, run: RunId, no: StepNo) -> Result<Option<String>, Error> {
        let of_step =
            self.leaves.iter().filter(|leaf| leaf.run == run && (leaf.no == no || leaf.item_of == Some(no)));
        let mut first: Option<(u64, Checkpoint)> = None;
        for leaf in of_step {
            let Some(state) = self.find(leaf, &before(&leaf.name))? else { continue };
            let at_ms = self.recorded_at(&state)?;
            if first.as_ref().is_none_or(|(earliest, _)| at_ms < *earliest) {
                first = Some((at_ms, state));
            }
        }
        let Some((at_ms, state)) = first else {
            return Ok(Some("it continues with the current files: the step has recorded no state".into()));
        };
        // The steps after it run again; those of other items have worked beside it.
        match self.done_since(at_ms, |leaf| leaf.run == run || leaf.run == self.known.id()).as_slice() {
            [] => self.choose(&state).map(|()| None),
            beside => Ok(Some(format!(
                "it continues with the current files: {} ran after the step, and stay done",
                beside.join(", ")
            ))),
        }
    }

    /// Has another run begin with the files that a step of this one has left. Returns the repository in which that is
    /// recorded; none if there are no files.
    pub(crate) fn after_step(&self, no: StepNo, of: RunId) -> Result<Option<Repository>, Error> {
        let state = match self.latest(&[no])? {
            Some(state) => Some(state),
            None => self.after_needs_of(no)?,
        };
        match state {
            Some(state) => self.choose_for(of, &state).map(|()| Some(self.repository.clone())),
            None => Ok(None),
        }
    }

    /// Forgets the state that was chosen.
    pub(crate) fn forget(&self) -> Result<(), Error> {
        let run = self.known.id().to_string();
        Ok(self.repository.clear_start(&run)?)
    }

    fn own(&self) -> impl Iterator<Item = &Leaf> {
        self.leaves.iter().filter(|leaf| leaf.run == self.known.id())
    }

    /// Returns the state that the steps before a step have left.
    fn after_needs_of(&self, no: StepNo) -> Result<Option<Checkpoint>, Error> {
        let plan = &self.known.plan;
        let mut needs: Vec<StepNo> = plan.step(no).needs.clone();
        let mut at = 0;
        while let Some(need) = needs.get(at).copied() {
            at += 1;
            for further in &plan.step(need).needs {
                if !needs.contains(further) {
                    needs.push(*further);
                }
            }
        }
        self.latest(&needs)
    }

    /// Returns the state that the last one of these steps to end has left.
    fn latest(&self, steps: &[StepNo]) -> Result<Option<Checkpoint>, Error> {
        let of_these =
            |leaf: &&Leaf| steps.contains(&leaf.no) || leaf.item_of.is_some_and(|of| steps.contains(&of));
        let mut ended: Vec<&Leaf> = self.own().filter(of_these).filter(|leaf| leaf.was_there).collect();
        ended.sort_by_key(|leaf| std::cmp::Reverse(leaf.ended_ms));
        match ended.first() {
            Some(leaf) => self.find(leaf, &leaf.name),
            None => Ok(None),
        }
    }

    /// Returns a state of a step. A state that was recorded and is gone is an error; one that was never recorded is
    /// none.
    fn find(&self, leaf: &Leaf, name: &str) -> Result<Option<Checkpoint>, Error> {
        let runs = if leaf.run == self.known.id() { self.lineage.clone() } else { vec![leaf.run] };
        let mut missing = String::new();
        for run in runs {
            match self.repository.find_checkpoint(&run.to_string(), name) {
                Ok(state) => return Ok(Some(state)),
                Err(error) => match error.kind {
                    GitKind::NoSuchCheckpoint { name } => {
                        missing = if missing.is_empty() { name } else { missing }
                    }
                    _ => return Err(error.into()),
                },
            }
        }
        if leaf.was_there { Err(self.gone(&leaf.name, &missing)) } else { Ok(None) }
    }

    fn gone(&self, step: &str, name: &str) -> Error {
        let (run, place) = (self.known.id(), self.repository.common_dir().display());
        let what =
            format!("the recorded state {name} of step {step} of run {run} is not in {place} any more");
        Error::new(ErrorKind::Refused, what).hint(Hint::StatesForgotten)
    }

    fn recorded_at(&self, state: &Checkpoint) -> Result<u64, Error> {
        Ok(self.repository.recorded_at(state)?)
    }

    /// Returns the steps that stay done and worked after this moment.
    fn done_since(&self, at_ms: u64, runs_again: impl Fn(&Leaf) -> bool) -> Vec<&str> {
        let since = |leaf: &&Leaf| {
            leaf.status == StepStatus::Done
                && !leaf.always
                && leaf.was_there
                && leaf.ended_ms.is_some_and(|ended_ms| ended_ms > at_ms as i64)
                && !runs_again(leaf)
        };
        self.leaves.iter().filter(since).map(|leaf| leaf.name.as_str()).collect()
    }

    fn choose(&self, state: &Checkpoint) -> Result<(), Error> {
        self.choose_for(self.known.id(), state)
    }

    fn choose_for(&self, run: RunId, state: &Checkpoint) -> Result<(), Error> {
        Ok(self.repository.set_start(&run.to_string(), state)?)
    }
}

fn is_broken(status: StepStatus) -> bool {
    matches!(status, StepStatus::Failed | StepStatus::Cancelled)
}

/// Returns the run, and the runs that it was forked from.
fn lineage(app: &App, known: &RunWithPlan) -> Result<Vec<RunId>, Error> {
    let mut runs = vec![known.id()];
    let mut context = known.run.context.clone();
    loop {
        let told: Value = serde_json::from_str(&context).unwrap_or_default();
        let from: Option<RunId> = told["forked_from"]["run"].as_str().and_then(|run| run.parse().ok());
        let Some(from) = from.filter(|from| !runs.contains(from)) else { return Ok(runs) };
        runs.push(from);
        match app.store.queries().run(from)? {
            Some(row) => context = row.context.clone(),
            None => return Ok(runs),
        }
    }
}

/// Returns the steps of a run that work in the run's environment.
fn leaves_of(run: &RunInFull) -> Vec<Leaf> {
    let Some(plan) = &run.plan else { return Vec::new() };
    let works_there = |step: &&StepRow| {
        let planned = plan.step(step.node());
        planned.work == WorkKind::Execution
            && !planned.service
            && step.items.is_none()
            && !planned.own_environment
    };
    let current = run.steps.iter().filter(|step| is_current(&run.steps, step));
    current.filter(works_there).map(|step| leaf(plan, step, &run.executions)).collect()
}

fn leaf(plan: &Plan, step: &StepRow, executions: &[ExecutionRow]) -> Leaf {
    let own = executions.iter().filter(|row| row.id.step == step.no);
    Leaf {
        run: step.run,
        name: step_name(plan, step),
        no: step.no,
        item_of: step.item_of,
        status: step.status(),
        ended_ms: step.ended_ms,
        always: plan.step(step.node()).policy.always,
        is_agent: is_agent(&plan.step(step.node()).spec),
        was_there: own.into_iter().any(worked),
    }
}

/// Whether a step's spec is that of a coding agent whose attempts continue with the files of the last one.
fn is_agent(spec: &str) -> bool {
    let spec: Result<StepSpec, _> = serde_json::from_str(spec);
    spec.is_ok_and(|spec| spec.retry_here && matches!(spec.kind, Kind::Agent(_)))
}
