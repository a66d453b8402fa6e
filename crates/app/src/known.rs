//! Finding a run and its plan by what a user wrote.

use std::collections::BTreeMap;
use std::sync::Arc;

use sprag_lifecycle::{Actor, OUTER_INPUT, Plan, RunId, StepNo, WorkKind};
use sprag_store::{
    Id, JournalEntry, PlannedRun, Position, Row, RunRow, StepRow, Store, TaskState, is_task, step_name,
};

use crate::App;
use crate::boards::TaskSpec;
use crate::error::{Error, ErrorKind, Hint};
use crate::labels::RunLabels;
use crate::reach::{Reach, Subject};
use crate::runs::RunFilter;
use crate::text::nearest;
use crate::view::EntryView;

/// The number of runs that are searched for the one whose id starts or ends as the user wrote.
const LOOK_BACK: usize = 10_000;

/// The most tasks of a board whose keys are shown.
const MOST_TASKS: usize = 1_000;

/// The most steps that an error names.
const STEPS_NAMED: usize = 20;

/// The way to a step of a run, or to a step inside one of its steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepPath {
    /// The numbers of the steps and items on the way, each in the child run of the one before; the last one is the step.
    pub(crate) rows: Vec<StepNo>,
    /// The run that has the step.
    pub(crate) run: RunId,
    /// The step's number in it.
    pub(crate) no: StepNo,
}

/// A run and its plan.
#[derive(Clone)]
pub struct RunWithPlan {
    /// The run, as it was when it was looked up.
    pub run: RunRow,
    /// The plan that the run executes.
    pub plan: Arc<Plan>,
}

impl RunWithPlan {
    /// Loads the run with this id.
    pub fn load(app: &App, id: RunId) -> Result<RunWithPlan, Error> {
        // In one read: between two reads, another process may forget the run and its plan.
        let found = app.store.queries().planned_run(id)?;
        let PlannedRun { run, plan } = found.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("there is no run {id}")).next("list the runs")
        })?;
        let plan =
            plan.ok_or_else(|| Error::bug(format!("run {id} has no plan: the database is incomplete")))?;
        Ok(RunWithPlan { run, plan })
    }

    /// Returns the run's id.
    pub fn id(&self) -> RunId {
        self.run.id
    }

    /// Returns whether the run is a board: tasks are added to it.
    pub fn is_board(&self) -> bool {
        self.plan.steps.iter().any(|step| step.spread.is_some_and(|spread| spread.open))
    }

    /// Returns the keys of a board's tasks, by number: those of its first thousand tasks. None for other runs.
    pub fn task_keys(&self, app: &App) -> Result<BTreeMap<StepNo, String>, Error> {
        if !self.is_board() {
            return Ok(BTreeMap::new());
        }
        let tasks = app.store.queries().tasks(self.run.id, 0, MOST_TASKS, &|_| true)?;
        let key = |task: &TaskState| {
            let spec: TaskSpec = serde_json::from_str(task.value.as_deref()?).ok()?;
            Some((task.step.no, spec.key?))
        };
        Ok(tasks.iter().filter_map(key).collect())
    }

    /// Returns a step's name: its id, and which item of a fan-out it is.
    pub fn name_of(&self, app: &App, no: StepNo) -> String {
        if let Some(step) = self.plan.steps.get(no as usize) {
            return step.id.clone();
        }
        let row = app.store.queries().step(self.run.id, no);
        row.ok().flatten().map_or_else(|| no.to_string(), |row| step_name(&self.plan, &row))
    }

    /// Returns the name of a step in a run around this one: `each[0].ask` if this run is that of the steps inside
    /// `each[0]`. A step of a child pipeline has the name that it has there.
    pub fn whole_name_of(&self, app: &App, no: StepNo, around: RunId) -> Result<String, Error> {
        let name = self.name_of(app, no);
        match self.run.parent.filter(|_| self.is_inside() && self.run.id != around) {
            Some((parent, step)) => {
                let outer = RunWithPlan::load(app, parent)?.whole_name_of(app, step, around)?;
                Ok(format!("{outer}.{name}"))
            }
            None => Ok(name),
        }
    }

    /// Returns whether its steps are written inside a step of its parent.
    pub fn is_inside(&self) -> bool {
        self.run.parent.is_some() && is_inside(&self.run)
    }

    /// Returns the run that has a step, and the step's name in it: for `each[0].build` the run of the steps inside
    /// `each[0]`, and `build`. Any other name is of this run.
    pub fn enter(self, app: &App, step: &str) -> Result<(RunWithPlan, String), Error> {
        let Some((outer, inner)) = step.split_once('.') else { return Ok((self, step.to_owned())) };
        let no = self.find_step(outer, Some(app))?;
        self.inside(app, no)?.enter(app, inner)
    }

    /// Returns the run of the steps inside a step or an item.
    fn inside(&self, app: &App, no: StepNo) -> Result<RunWithPlan, Error> {
        let row = app.store.queries().step(self.run.id, no)?;
        let is_child = |row: &StepRow| self.plan.step(row.node()).work == WorkKind::Child;
        let child = row.filter(is_child).and_then(|row| row.work).map(RunId::from_i64);
        let child = child.map(|child| RunWithPlan::load(app, child)).transpose()?;
        child.filter(RunWithPlan::is_inside).ok_or_else(|| {
            let name = self.name_of(app, no);
            let message =
                format!("step {name} of run {} has no steps inside it that have begun", self.run.id);
            Error::invalid(message).next("look at the run's status")
        })
    }

    /// Returns the way to the planned step with this name: of the run itself, or inside a step, such as `each[0].build`.
    pub fn path_to(&self, app: &App, step: &str) -> Result<StepPath, Error> {
        let mut known = self.clone();
        let mut rows = Vec::new();
        let mut rest = step;
        while let Some((outer, inner)) = rest.split_once('.') {
            let no = known.find_step(outer, Some(app))?;
            rows.push(no);
            known = known.inside(app, no)?;
            rest = inner;
        }
        let no = known.step_no(rest)?;
        rows.push(no);
        Ok(StepPath { rows, run: known.id(), no })
    }

    /// Returns the number of the planned step with this id.
    pub fn step_no(&self, id: &str) -> Result<StepNo, Error> {
        self.find_step(id, None)
    }

    /// Returns the number of the step with this id; with an app, also of an item of a fan-out by its name, and of a task
    /// by its key.
    pub fn find_step(&self, id: &str, app: Option<&App>) -> Result<StepNo, Error> {
        let found = self.plan.steps.iter().position(|step| step.id == id).map(|no| no as StepNo);
        let of_items = || -> Option<StepNo> {
            let steps = app.filter(|_| id.ends_with(']'))?.store.queries().steps(self.run.id).ok()?;
            // The last one of that name: a list that was made again has items of its own.
            steps.iter().rfind(|row| row.item.is_some() && step_name(&self.plan, row) == id).map(|row| row.no)
        };
        // A task of a board is named by its number.
        let task = || -> Option<StepNo> {
            let no: StepNo = id.rsplit_once('-')?.1.parse().ok()?;
            let row = app?.store.queries().step(self.run.id, no).ok()??;
            (is_task(&self.plan, &row) && step_name(&self.plan, &row) == id).then_some(no)
        };
        let keyed =
            || app.filter(|_| self.is_board())?.store.queries().find_task(self.run.id, id, None).ok()?;
        found.or_else(of_items).or_else(task).or_else(keyed).ok_or_else(|| {
            let known = || self.plan.steps.iter().map(|step| step.id.as_str());
            let near =
                nearest(id, known()).map(|near| format!("did you mean {near:?}? ")).unwrap_or_default();
            let more = known().count().saturating_sub(STEPS_NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let names: Vec<&str> = known().take(STEPS_NAMED).collect();
            Error::invalid(format!("run {} has no step {id:?}", self.run.id))
                .next(format!("{near}its steps are: {}{more}", names.join(", ")))
        })
    }
}

/// Returns whether the steps of a run are written inside a step: it has the names around that step.
pub(crate) fn is_inside(run: &RunRow) -> bool {
    // Its only input. No pipeline can declare one of this name.
    run.inputs.strip_prefix("{\"").is_some_and(|inputs| inputs.starts_with(OUTER_INPUT))
}

/// Returns the run that the user means: by id, by the start or the end of an id, by the name of a board or of a run, or the newest.
pub fn find_run(app: &App, wanted: Option<&str>) -> Result<RunWithPlan, Error> {
    find_run_within(app, wanted, &Reach::default())
}

/// Returns the run that a caller means, as [`find_run`] does, among those that it reaches.
pub fn find_run_within(app: &App, wanted: Option<&str>, reach: &Reach) -> Result<RunWithPlan, Error> {
    let run = match wanted {
        None => {
            // A board is a run too, and not the one that a person means who names none.
            let filter = RunFilter { reach: reach.clone(), without_boards: true, ..RunFilter::default() };
            let newest = app.runs(&filter, 1)?.runs.pop();
            let any = RunFilter { without_boards: false, ..filter };
            newest.map_or_else(|| app.runs(&any, 1)?.runs.pop().ok_or_else(no_runs), Ok)?
        }
        Some(text) => match text.parse::<RunId>() {
            Ok(id) => app.store.queries().run(id)?.map_or_else(|| by_part(app, text, reach), Ok)?,
            Err(_) => by_part(app, text, reach)?,
        },
    };
    app.require_reach(reach, Subject::Run(run.id))?;
    RunWithPlan::load(app, run.id)
}

fn no_runs() -> Error {
    Error::new(ErrorKind::Refused, "there are no runs yet").hint(Hint::StartARun)
}

fn by_part(app: &App, text: &str, reach: &Reach) -> Result<RunRow, Error> {
    if let Some(run) = app.board_run(text)?
        && let Some(row) = app.store.queries().run(run)?
    {
        return Ok(row);
    }
    let listed = app.store.queries().runs(None, &[], LOOK_BACK)?;
    let mut runs: Vec<RunRow> = Vec::new();
    for row in listed.into_iter().filter_map(|listed| listed.row.ok()) {
        if app.reaches_row(reach, &row)? {
            runs.push(row);
        }
    }
    // The newest run of that name: runs of the same kind often share one.
    if let Some(run) = runs.iter().find(|run| RunLabels::of(run).name.as_deref() == Some(text)) {
        return Ok(run.clone());
    }
    let wanted = text.to_ascii_lowercase();
    let is_meant = |run: &&RunRow| {
        let id = run.id.to_string();
        !wanted.is_empty() && (id.starts_with(&wanted) || id.ends_with(&wanted))
    };
    let matching: Vec<&RunRow> = runs.iter().filter(is_meant).collect();
    match matching.as_slice() {
        [one] => Ok((*one).clone()),
        [] => {
            let none = Error::new(ErrorKind::NotFound, format!("there is no run {text:?}"));
            let ids: Vec<String> = runs.iter().map(|run| run.id.to_string()).collect();
            let near = nearest(&wanted, ids.iter().map(String::as_str));
            let near = near.and_then(|near| runs.iter().find(|run| run.id.to_string() == near));
            // The name of a pipeline means no run, but probably its newest one.
            let near = near.or_else(|| runs.iter().find(|run| &*run.pipeline == text));
            Err(match near {
                Some(run) => none.hint(Hint::NearestRun {
                    run: run.id,
                    pipeline: run.pipeline.to_string(),
                    status: run.status(),
                }),
                None if runs.is_empty() => none.hint(Hint::StartARun),
                None => none.hint(Hint::ListRuns),
            })
        }
        several => {
            let ids: Vec<String> = several.iter().take(5).map(|run| run.id.to_string()).collect();
            let message = format!("several runs start or end with {text:?}: {}", ids.join(", "));
            Err(Error::invalid(message).next("write more of the id"))
        }
    }
}

/// The ids of steps, by run, and the names of workers. Each is read once.
pub struct Names {
    store: Store,
    plans: BTreeMap<RunId, Arc<Plan>>,
    /// The names of workers and agents, and whether each is an agent, by their numbers.
    workers: BTreeMap<Id, (String, &'static str)>,
}

/// The most plans that are remembered: those of the runs that are active now.
const PLANS_KEPT: usize = 4096;
/// The most names of workers that are remembered.
const WORKERS_KEPT: usize = 4096;

impl Names {
    /// Returns the names of this store's steps.
    pub fn new(app: &App) -> Self {
        Names { store: app.store.clone(), plans: BTreeMap::new(), workers: BTreeMap::new() }
    }

    pub(crate) fn plan(&mut self, run: RunId) -> sprag_store::Result<Option<Arc<Plan>>> {
        if let Some(plan) = self.plans.get(&run) {
            return Ok(Some(Arc::clone(plan)));
        }
        let plan = self.store.queries().plan_of(run)?;
        // A run's plan never changes, and no other run gets its id. A plan that does not exist is read again.
        if let Some(plan) = &plan {
            if self.plans.len() >= PLANS_KEPT {
                self.plans.pop_first();
            }
            self.plans.insert(run, Arc::clone(plan));
        }
        Ok(plan)
    }

    /// Returns a journal entry with the names of its steps.
    pub fn view(&mut self, entry: &JournalEntry) -> Result<EntryView, Error> {
        Ok(self.entry(entry)?)
    }

    /// Returns the id of the step at a position.
    pub(crate) fn step_of(&mut self, place: &Position) -> sprag_store::Result<Option<String>> {
        let (Some(run), Some(no)) = (place.run, place.step) else { return Ok(None) };
        let Some(plan) = self.plan(run)? else { return Ok(None) };
        if let Some(step) = plan.steps.get(no as usize) {
            return Ok(Some(step.id.clone()));
        }
        Ok(self.store.queries().step(run, no)?.map(|row| step_name(&plan, &row)))
    }

    pub(crate) fn entry(&mut self, entry: &JournalEntry) -> sprag_store::Result<EntryView> {
        let plan = entry.place.run.map(|run| self.plan(run)).transpose()?.flatten();
        let name = |no: StepNo| {
            let plan = plan.as_ref()?;
            let id = plan.steps.get(no as usize).map(|step| step.id.clone());
            id.or_else(|| {
                let run = entry.place.run?;
                let row = self.store.queries().step(run, no);
                row.ok().flatten().map(|row| step_name(plan, &row))
            })
        };
        let mut view = EntryView::of(entry, name);
        if let (None, Some(worker), Actor::Worker) = (&entry.by, entry.worker, entry.actor) {
            view.by = Some(match self.worker(worker)? {
                Some((name, kind)) => format!("{kind}:{name}"),
                None => format!("worker:{worker}"),
            });
        }
        if let Some(worker) = entry.place.id.filter(|_| entry.entity == "worker") {
            view.name = self.worker(worker)?.map(|(name, _)| name);
        }
        Ok(view)
    }

    /// Returns the name of a worker, or of an agent that claimed a task, and which of the two it is; none if it is not known
    /// any more.
    fn worker(&mut self, id: Id) -> sprag_store::Result<Option<(String, &'static str)>> {
        if let Some(known) = self.workers.get(&id) {
            return Ok(Some(known.clone()));
        }
        let Some(row) = self.store.queries().worker(id)? else { return Ok(None) };
        let kind = if row.process.is_empty() { "agent" } else { "worker" };
        let known = (row.name.to_string(), kind);
        if self.workers.len() >= WORKERS_KEPT {
            self.workers.pop_first();
        }
        self.workers.insert(id, known.clone());
        Ok(Some(known))
    }
}
