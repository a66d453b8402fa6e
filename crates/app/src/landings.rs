//! Landings: the steps that bring runs' work onto branches, whose turn it is, and what was refused.
//!
//! Landings on one branch of one repository take turns. The turn is a lock of the repository, so its holder is read
//! from there; everything else comes from the rows of the runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};
use sprag_lifecycle::{ExecutionId, RunId, RunStatus, StepNo, StepStatus, Word};
use sprag_pipeline::{Kind, StepSpec, render_step};
use sprag_store::{ExecutionRow, Row, RunRow};
use sprag_worktree::{LockHolder, Repository};

use crate::App;
use crate::error::Error;
use crate::failures::why_attempt_failed;
use crate::labels::RunLabels;
use crate::local_files::LocalFiles;
use crate::reach::Reach;
use crate::runs::RunFilter;
use crate::text::{plain, rfc3339};

/// The most live runs that are searched for landings.
const MOST_LIVE: usize = 2_000;
/// The most runs, the newest ones, that are searched for landings that have ended.
const MOST_ENDED: usize = 500;

/// The landings of live runs and of the newest runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LandingsView {
    /// The branches on which a run lands at this moment.
    pub turns: Vec<TurnView>,
    /// The landings: those that have not ended first, then the newest.
    pub landings: Vec<LandingView>,
}

/// The run whose turn it is to land on a branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TurnView {
    /// The repository's git directory.
    pub repository: String,
    /// The branch.
    pub branch: String,
    /// The run that lands.
    pub run: String,
    /// The time since which it has the turn.
    pub since: String,
    /// The runs that wait for the turn.
    pub waiting: Vec<String>,
}

/// One landing: the last attempt at a step that lands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LandingView {
    /// The run.
    pub run: String,
    /// The pipeline's name.
    pub pipeline: String,
    /// The run's own name, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The step.
    pub step: String,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The branch to land on.
    pub branch: String,
    /// The repository's git directory; absent if the run has no worktree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// The state.
    pub state: LandingState,
    /// The run that this one waits for; only in the state `waiting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
    /// The command that the result must pass before the branch moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<String>,
    /// The remote that the branch is pushed to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push: Option<String>,
    /// The time when the attempt was created.
    pub created_at: String,
    /// The time when a worker started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// The time when it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// The branch's commit after the landing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Whether the branch was pushed; absent if it has not landed, or is not to be pushed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pushed: Option<bool>,
    /// The kind of refusal, in one word: `conflict`, `verify`, `push`, `fenced`, `blocked` or `land`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The refusal in a sentence, or a warning about a landing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The files that were in the way.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
}

/// The state of a landing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum LandingState {
    /// It has the turn: it rebases, verifies, pushes and moves the branch.
    Landing,
    /// It waits until another run has landed.
    Waiting,
    /// A worker has it, and prepares the worktree.
    Preparing,
    /// It waits for a worker.
    Queued,
    /// A person has to remove an obstacle.
    Blocked,
    /// The branch has the work.
    Landed,
    /// The work did not land.
    Refused,
    /// It was cancelled.
    Cancelled,
}

/// A step that lands, as its plan describes it.
struct LandStep {
    no: StepNo,
    id: String,
    spec: StepSpec,
}

impl App {
    /// Returns the landings of live runs and of the newest runs that the caller reaches, and whose turn it is.
    pub fn landings(&self, reach: &Reach) -> Result<LandingsView, Error> {
        let statuses = RunStatus::ALL.iter().copied().filter(|status| !status.is_terminal()).collect();
        let within = RunFilter { reach: reach.clone(), ..RunFilter::default() };
        let live = self.all_runs(&RunFilter { statuses, ..within.clone() }, MOST_LIVE)?;
        let newest = self.all_runs(&within, MOST_ENDED)?;
        let mut search = Search { app: self, plans: BTreeMap::new(), turns: BTreeMap::new(), found: vec![] };
        let mut seen: BTreeSet<RunId> = BTreeSet::new();
        for run in live.iter().chain(&newest).filter(|run| seen.insert(run.id)) {
            search.look_at(run)?;
        }
        let mut found = search.result();
        let mut turns = Vec::new();
        for turn in std::mem::take(&mut found.turns) {
            if self.reaches_shown(reach, &turn.run)? {
                turns.push(turn);
            }
        }
        found.turns = turns;
        for landing in &mut found.landings {
            if let Some(run) = landing.behind.as_deref()
                && !self.reaches_shown(reach, run)?
            {
                landing.behind = None;
            }
        }
        Ok(found)
    }
}

/// The landings found so far.
struct Search<'a> {
    app: &'a App,
    /// The landing steps of each plan, by its hash.
    plans: BTreeMap<i64, Vec<LandStep>>,
    /// The holder of the turn on each branch of each repository; absent if no run has it.
    turns: BTreeMap<(PathBuf, String), Option<LockHolder>>,
    found: Vec<LandingView>,
}

impl Search<'_> {
    fn look_at(&mut self, run: &RunRow) -> Result<(), Error> {
        if !self.plans.contains_key(&run.plan) {
            let plan = self.app.store.queries().plan_of(run.id)?;
            let steps = plan.iter().flat_map(|plan| plan.steps.iter().enumerate());
            let lands = steps.filter_map(|(no, step)| {
                let spec: StepSpec = serde_json::from_str(&step.spec).ok()?;
                let is_land = matches!(spec.kind, Kind::Land { .. });
                is_land.then(|| LandStep { no: no as StepNo, id: step.id.clone(), spec })
            });
            self.plans.insert(run.plan, lands.collect());
        }
        for step in self.plans.remove(&run.plan).into_iter().flatten().collect::<Vec<_>>() {
            self.look_at_step(run, &step)?;
            self.plans.entry(run.plan).or_default().push(step);
        }
        self.plans.entry(run.plan).or_default();
        Ok(())
    }

    fn look_at_step(&mut self, run: &RunRow, step: &LandStep) -> Result<(), Error> {
        let queries = self.app.store.queries();
        let Some(row) = queries.step(run.id, step.no)?.filter(|row| row.attempt > 0) else { return Ok(()) };
        let id = ExecutionId { run: run.id, step: step.no, attempt: row.attempt };
        let Some(execution) = queries.execution(id)? else { return Ok(()) };
        let environments = queries.environments_of(run.id)?;
        let own = environments.iter().find(|row| row.scope == Some(step.no));
        let environment = own.or_else(|| environments.iter().find(|row| row.scope.is_none()));
        let repository = environment.and_then(LocalFiles::of).and_then(|files| files.repository);
        let (branch, verify, push) = order(run, step);
        let turn = match (&repository, execution.status().is_terminal()) {
            (Some(repository), false) => self.turn(repository, &branch),
            _ => None,
        };
        let state = state_of(row.status(), &execution, run.id, turn.as_ref());
        let facts: Value =
            execution.result.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let is_refused = matches!(state, LandingState::Refused | LandingState::Blocked);
        let warning = || facts["warnings"][0].as_str().map(plain);
        let files = facts["files"].as_array().into_iter().flatten().filter_map(Value::as_str);
        self.found.push(LandingView {
            run: run.id.to_string(),
            pipeline: run.pipeline.to_string(),
            name: RunLabels::of(run).name,
            step: step.id.clone(),
            attempt: row.attempt,
            repository: repository.map(|path| path.display().to_string()),
            state,
            behind: turn.filter(|_| state == LandingState::Waiting).map(|holder| holder.run),
            verify,
            pushed: push.as_ref().and_then(|_| facts["outputs"]["pushed"].as_bool()),
            push,
            branch,
            created_at: rfc3339(execution.created_ms),
            started_at: execution.started_ms.map(rfc3339),
            ended_at: execution.ended_ms.map(rfc3339),
            commit: facts["outputs"]["commit"].as_str().map(str::to_owned),
            reason: facts["reason"].as_str().filter(|_| is_refused).map(str::to_owned),
            message: if is_refused { Some(why_attempt_failed(&execution)) } else { warning() },
            files: files.map(plain).collect(),
        });
        Ok(())
    }

    /// Returns the run whose turn it is on a branch.
    fn turn(&mut self, repository: &Path, branch: &str) -> Option<LockHolder> {
        let key = (repository.to_owned(), branch.to_owned());
        let look = || Repository::discover(repository).ok()?.landing_on(branch);
        self.turns.entry(key).or_insert_with(look).clone()
    }

    fn result(self) -> LandingsView {
        let mut landings = self.found;
        let is_over = |landing: &LandingView| landing.state > LandingState::Blocked;
        landings
            .sort_by(|a, b| (is_over(a), &b.created_at, &b.run).cmp(&(is_over(b), &a.created_at, &a.run)));
        let turns = self.turns.into_iter().filter_map(|((repository, branch), holder)| {
            let (holder, repository) = (holder?, repository.display().to_string());
            let waits = |landing: &&LandingView| {
                landing.state == LandingState::Waiting
                    && landing.branch == branch
                    && landing.repository.as_deref() == Some(&repository)
            };
            let waiting = landings.iter().filter(waits).map(|landing| landing.run.clone()).collect();
            let since = rfc3339(holder.since_unix_ms as i64);
            Some(TurnView { run: plain(&holder.run), since, waiting, repository, branch })
        });
        LandingsView { turns: turns.collect(), landings }
    }
}

fn state_of(
    status: StepStatus,
    execution: &ExecutionRow,
    run: RunId,
    turn: Option<&LockHolder>,
) -> LandingState {
    match status {
        StepStatus::Done => LandingState::Landed,
        StepStatus::Failed if execution.blocked => LandingState::Blocked,
        StepStatus::Failed => LandingState::Refused,
        StepStatus::Cancelled | StepStatus::Skipped => LandingState::Cancelled,
        // Between two attempts, or sent back after a refusal.
        _ if execution.status().is_terminal() && execution.blocked => LandingState::Blocked,
        _ if execution.status().is_terminal() => LandingState::Refused,
        _ if execution.owner.is_none() => LandingState::Queued,
        _ => match turn {
            Some(holder) if holder.run == run.to_string() => LandingState::Landing,
            Some(_) => LandingState::Waiting,
            None => LandingState::Preparing,
        },
    }
}

/// Returns the branch, the command that verifies and the remote of a landing, with the run's inputs filled in.
fn order(run: &RunRow, step: &LandStep) -> (String, Option<String>, Option<String>) {
    let inputs = crate::secret_inputs::shown(&run.inputs);
    let names = step.spec.template_context(json!({ "inputs": inputs }));
    // A template that needs more than the inputs is shown as it is written.
    let rendered = render_step(&step.spec, &names).map_or_else(|_| step.spec.kind.clone(), |spec| spec.kind);
    let Kind::Land { into, verify, push, .. } = rendered else { return Default::default() };
    let command = verify.and_then(|kind| kind.argv().and_then(|argv| argv.last().cloned()));
    (plain(&into), command.map(|command| plain(&command)), push.map(|remote| plain(&remote)))
}
