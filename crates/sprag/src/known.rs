//! A run and its plan, found by what somebody wrote.

use std::collections::BTreeMap;
use std::sync::Arc;

use sprag_lifecycle::{Plan, RunId, StepNo};
use sprag_store::{JournalEntry, Row, RunRow, StepRow, Store, Table, is_task, step_name};

use crate::complaint::{Complaint, Kind};
use crate::view::EntryView;

/// How many runs are looked through for the one whose id ends as the user wrote.
const LOOK_BACK: usize = 10_000;

/// A run and its plan.
#[derive(Clone)]
pub struct Known {
    /// The run, as it was when it was looked up.
    pub run: RunRow,
    /// What it runs.
    pub plan: Arc<Plan>,
}

impl Known {
    /// The run with this id.
    pub fn load(store: &Store, id: RunId) -> Result<Known, Complaint> {
        let row = store.read(|db| Table::<RunRow>::load(db, id))?;
        let row = row.ok_or_else(|| {
            Complaint::new(Kind::NotFound, format!("there is no run {id}")).next("list the runs")
        })?;
        Known::of(store, row)
    }

    fn of(store: &Store, run: RunRow) -> Result<Known, Complaint> {
        let plan = store.read(|db| db.plan(run.plan))?.ok_or_else(|| {
            Complaint::failed(format!("run {} has no plan: the database is incomplete", run.id))
        })?;
        Ok(Known { run, plan })
    }

    /// The run's id.
    pub fn id(&self) -> RunId {
        self.run.id
    }

    /// A step's name: its id, and which item of a fan-out it is.
    pub fn name_of(&self, store: &Store, no: StepNo) -> String {
        if let Some(step) = self.plan.steps.get(no as usize) {
            return step.id.clone();
        }
        let row = store.read(|db| Table::<StepRow>::load(db, (self.run.id, no)));
        row.ok().flatten().map_or_else(|| no.to_string(), |row| step_name(&self.plan, &row))
    }

    /// The step of this id, as it was planned.
    pub fn step_no(&self, id: &str) -> Result<StepNo, Complaint> {
        self.find_step(id, None)
    }

    /// The step of this id; with a store, also an item of a fan-out, by its name.
    pub fn find_step(&self, id: &str, store: Option<&Store>) -> Result<StepNo, Complaint> {
        let found = self.plan.steps.iter().position(|step| step.id == id).map(|no| no as StepNo);
        let of_items = || -> Option<StepNo> {
            let steps = store.filter(|_| id.ends_with(']'))?.read(|db| db.steps(self.run.id)).ok()?;
            // The last one of that name: a list that was made anew has items of its own.
            steps.iter().rfind(|row| row.item.is_some() && step_name(&self.plan, row) == id).map(|row| row.no)
        };
        // A task of a board is called after its number.
        let task = || -> Option<StepNo> {
            let no: StepNo = id.rsplit_once('-')?.1.parse().ok()?;
            let row = store?.read(|db| Table::<StepRow>::load(db, (self.run.id, no))).ok()??;
            (is_task(&self.plan, &row) && step_name(&self.plan, &row) == id).then_some(no)
        };
        found.or_else(of_items).or_else(task).ok_or_else(|| {
            let known: Vec<&str> = self.plan.steps.iter().map(|step| step.id.as_str()).collect();
            Complaint::new(Kind::Wrong, format!("run {} has no step {id:?}", self.run.id))
                .next(format!("its steps are: {}", known.join(", ")))
        })
    }
}

/// The run that the user means: by id, by the end of an id, or the newest.
pub fn find_run(store: &Store, wanted: Option<&str>) -> Result<Known, Complaint> {
    let run = match wanted {
        None => {
            let newest = store.read(|db| db.runs(None, &[], 1))?;
            let none = || Complaint::failed("there are no runs yet").next("start one: sprag run FILE");
            newest.into_iter().next().ok_or_else(none)?
        }
        Some(text) => match text.parse::<RunId>() {
            Ok(id) => {
                store.read(|db| Table::<RunRow>::load(db, id))?.map_or_else(|| by_ending(store, text), Ok)?
            }
            Err(_) => by_ending(store, text)?,
        },
    };
    Known::of(store, run)
}

fn by_ending(store: &Store, text: &str) -> Result<RunRow, Complaint> {
    let runs = store.read(|db| db.runs(None, &[], LOOK_BACK))?;
    let wanted = text.to_ascii_lowercase();
    let matching: Vec<&RunRow> =
        runs.iter().filter(|run| !wanted.is_empty() && run.id.to_string().ends_with(&wanted)).collect();
    match matching.as_slice() {
        [one] => Ok((*one).clone()),
        [] => {
            let none = Complaint::new(Kind::NotFound, format!("there is no run {text:?}"));
            let nearest = runs.iter().min_by_key(|run| distance(&run.id.to_string(), &wanted));
            Err(match nearest {
                Some(run) => none.next(format!(
                    "the nearest is {} ({}, {}); `sprag ls` lists them",
                    run.id,
                    run.pipeline,
                    run.status()
                )),
                None => none.next("there are no runs yet; start one: sprag run FILE"),
            })
        }
        several => {
            let ids: Vec<String> = several.iter().take(5).map(|run| run.id.to_string()).collect();
            let message = format!("several runs end in {text:?}: {}", ids.join(", "));
            Err(Complaint::new(Kind::Wrong, message).next("write more of the id"))
        }
    }
}

/// How many characters must be changed, added or removed to make one text the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, a) in a.chars().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, b) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = (before + usize::from(a != *b)).min(above + 1).min(row[j] + 1);
            before = above;
        }
    }
    row[b.len()]
}

/// The steps' ids by run, read once each.
pub struct Names {
    store: Store,
    plans: BTreeMap<RunId, Option<Arc<Plan>>>,
}

/// How many runs' plans are remembered: those of the moment.
const PLANS_KEPT: usize = 4096;

impl Names {
    /// The names of this store's steps.
    pub fn new(store: &Store) -> Self {
        Names { store: store.clone(), plans: BTreeMap::new() }
    }

    fn plan(&mut self, run: RunId) -> sprag_store::Result<Option<Arc<Plan>>> {
        if let Some(plan) = self.plans.get(&run) {
            return Ok(plan.clone());
        }
        let plan = self.store.read(|db| match Table::<RunRow>::load(db, run)? {
            Some(row) => db.plan(row.plan),
            None => Ok(None),
        })?;
        if self.plans.len() >= PLANS_KEPT {
            self.plans.pop_first();
        }
        self.plans.insert(run, plan.clone());
        Ok(plan)
    }

    /// A journal entry with the names of its steps.
    pub fn view(&mut self, entry: &JournalEntry) -> sprag_store::Result<EntryView> {
        let plan = entry.place.run.map(|run| self.plan(run)).transpose()?.flatten();
        let name = |no: StepNo| {
            let plan = plan.as_ref()?;
            let id = plan.steps.get(no as usize).map(|step| step.id.clone());
            id.or_else(|| {
                let run = entry.place.run?;
                let row = self.store.read(|db| Table::<StepRow>::load(db, (run, no)));
                row.ok().flatten().map(|row| step_name(plan, &row))
            })
        };
        Ok(EntryView::of(entry, name))
    }
}
