//! What every command needs: the data directory, the store in it, and the run that the user means.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sprag_lifecycle::{Plan, RunId};
use sprag_store::{Row, RunRow, Store, Table};
use sprag_worker::Files;

use crate::args::Args;
use crate::exit::Failure;
use crate::show::Style;

/// How many runs are looked through for the one whose id ends as the user wrote.
const LOOK_BACK: usize = 10_000;

pub(crate) struct Context {
    pub(crate) data: PathBuf,
    pub(crate) json: bool,
    pub(crate) style: Style,
}

impl Context {
    pub(crate) fn new(args: &Args) -> Result<Self, Failure> {
        let data = match &args.data {
            Some(data) => data.clone(),
            None => default_data()?,
        };
        let data = std::path::absolute(&data)
            .map_err(|error| Failure::usage(format!("{}: {error}", data.display())))?;
        Style::choose(args.color);
        Ok(Context { data, json: args.json, style: Style::stdout() })
    }

    pub(crate) fn store(&self) -> Result<Store, Failure> {
        sprag::open(&self.data).map_err(|error| {
            Failure::error(error.to_string()).next("choose another folder with --data DIR or SPRAG_DATA")
        })
    }

    pub(crate) fn files(&self) -> Files {
        Files::new(&self.data)
    }
}

/// `$XDG_DATA_HOME/sprag`, or where that usually is.
fn default_data() -> Result<PathBuf, Failure> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_DATA_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/share")));
    base.map(|base| base.join("sprag")).ok_or_else(|| {
        Failure::usage("neither XDG_DATA_HOME nor HOME is set").next("name a folder with --data DIR")
    })
}

/// A run and its plan.
pub(crate) struct Known {
    pub(crate) run: RunRow,
    pub(crate) plan: Arc<Plan>,
}

impl Known {
    pub(crate) fn id(&self) -> RunId {
        self.run.id
    }

    pub(crate) fn step_no(&self, id: &str) -> Result<u32, Failure> {
        let found = self.plan.steps.iter().position(|step| step.id == id);
        found.map(|no| no as u32).ok_or_else(|| {
            let known: Vec<&str> = self.plan.steps.iter().map(|step| step.id.as_str()).collect();
            Failure::usage(format!("run {} has no step {id:?}", self.run.id))
                .next(format!("its steps are: {}", known.join(", ")))
        })
    }
}

/// The run that the user means: by id, by the end of an id, or the newest.
pub(crate) fn find_run(store: &Store, wanted: Option<&str>) -> Result<Known, Failure> {
    let run = match wanted {
        None => {
            let newest = store.read(|db| db.runs(None, &[], 1))?;
            let none = || Failure::error("there are no runs yet").next("start one: sprag run FILE");
            newest.into_iter().next().ok_or_else(none)?
        }
        Some(text) => match text.parse::<RunId>() {
            Ok(id) => {
                store.read(|db| Table::<RunRow>::load(db, id))?.map_or_else(|| by_ending(store, text), Ok)?
            }
            Err(_) => by_ending(store, text)?,
        },
    };
    let plan = store.read(|db| db.plan(run.plan))?;
    let plan = plan
        .ok_or_else(|| Failure::error(format!("run {} has no plan: the database is incomplete", run.id)))?;
    Ok(Known { run, plan })
}

fn by_ending(store: &Store, text: &str) -> Result<RunRow, Failure> {
    let runs = store.read(|db| db.runs(None, &[], LOOK_BACK))?;
    let wanted = text.to_ascii_lowercase();
    let matching: Vec<&RunRow> =
        runs.iter().filter(|run| !wanted.is_empty() && run.id.to_string().ends_with(&wanted)).collect();
    match matching.as_slice() {
        [one] => Ok((*one).clone()),
        [] => {
            let failure = Failure::error(format!("there is no run {text:?}"));
            let nearest = runs.iter().min_by_key(|run| distance(&run.id.to_string(), &wanted));
            Err(match nearest {
                Some(run) => failure.next(format!(
                    "the nearest is {} ({}, {}); `sprag ls` lists them",
                    run.id,
                    run.pipeline,
                    run.status()
                )),
                None => failure.next("there are no runs yet; start one: sprag run FILE"),
            })
        }
        several => {
            let ids: Vec<String> = several.iter().take(5).map(|run| run.id.to_string()).collect();
            Err(Failure::usage(format!("several runs end in {text:?}: {}", ids.join(", ")))
                .next("write more of the id"))
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

/// The program that supervises steps: this one.
pub(crate) fn this_program() -> Result<PathBuf, Failure> {
    // The file may have been replaced by an upgrade since; the kernel still knows the one that runs.
    let running = Path::new("/proc/self/exe");
    match std::fs::read_link(running) {
        Ok(path) if path.exists() => Ok(path),
        _ => Ok(running.to_owned()),
    }
}
