//! Helpers of the store's tests: plans, stores of every kind, and common operations.

#![allow(dead_code, reason = "a program that shares it uses its own part")]

pub mod check;
pub mod child;
pub mod evaluator;

use std::path::Path;
use std::sync::Arc;

use sprag_lifecycle::{OnFail, Plan, PlanStep, Policy, RunId, StepNo};
use sprag_store::testing::{Backend, RawStore};
use sprag_store::{
    Assignment, Claimer, Created, Ending, Finished, JournalEntry, Manual, NewRun, Result, Row, SqliteOptions,
    Store,
};
use sprag_testkit::{Database, Postgres};

/// Returns a step named after its number.
pub fn step(no: usize, needs: &[StepNo], policy: Policy) -> PlanStep {
    PlanStep { policy, spec: "{}".into(), ..PlanStep::new(format!("s{no}"), needs.to_vec()) }
}

/// Returns a plan with these needs and one policy for all.
pub fn graph(needs: &[&[StepNo]], policy: impl Fn(usize) -> Policy) -> Arc<Plan> {
    let steps = needs.iter().enumerate().map(|(no, needs)| step(no, needs, policy(no)));
    Arc::new(Plan::new("test", steps.collect()).unwrap())
}

/// Returns a plan of `n` sequential steps.
pub fn sequence(n: usize) -> Arc<Plan> {
    let steps = (0..n).map(|no| {
        let needs: Vec<StepNo> = no.checked_sub(1).map(|before| before as StepNo).into_iter().collect();
        step(no, &needs, Policy::default())
    });
    Arc::new(Plan::new("sequence", steps.collect()).unwrap())
}

/// Returns a policy with `attempts` tries.
pub fn tries(attempts: u32) -> Policy {
    Policy { attempts, ..Policy::default() }
}

/// Returns a policy that tolerates failure.
pub fn tolerant() -> Policy {
    Policy { on_fail: OnFail::Continue, ..Policy::default() }
}

/// Returns a worker that serves the default queue.
pub fn claimer(worker: i64) -> Claimer {
    Claimer {
        worker,
        queues: vec!["default".into()],
        reserved_only: false,
        services_only: false,
        lease_ms: 60_000,
        nonce: 0,
    }
}

/// Returns a successful ending.
pub fn well() -> Ending {
    Ending::Completed { result: None }
}

/// Returns a failed ending.
pub fn badly() -> Ending {
    Ending::Failed { result: Some("{\"exit_code\":1}".into()), retriable: true }
}

/// A store of each kind, with a clock that moves only when told.
pub struct Stores {
    /// The PostgreSQL one's database.
    pub database: Database,
    /// The stores, by name.
    pub all: Vec<(&'static str, Store)>,
    /// Their clock.
    pub clock: Arc<Manual>,
    /// The folder of the SQLite one's file.
    pub folder: tempfile::TempDir,
}

impl Stores {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(Manual::new(1_800_000_000_000, 7));
        let sqlite = Store::open_with(
            folder.path(),
            SqliteOptions::simulated(),
            clock.clone(),
            Arc::new(Manual::new(0, 1)),
        );
        let memory = Store::in_memory(clock.clone(), Arc::new(Manual::new(0, 1)));
        let database = Postgres::shared().database();
        let postgres =
            Store::open_postgres_with(&database.url, Some(clock.clone()), Arc::new(Manual::new(0, 1)));
        let all = vec![("memory", memory), ("sqlite", sqlite.unwrap()), ("postgres", postgres.unwrap())];
        Stores { all, clock, database, folder }
    }
}

/// Opens what several processes share: a folder with a SQLite file, or a PostgreSQL database.
pub fn open_shared(place: &Path) -> Store {
    match place.to_str().filter(|url| url.starts_with("postgres:")) {
        Some(url) => Store::open_postgres(url).unwrap(),
        None => Store::open(place).unwrap(),
    }
}

/// Runs the same test on every store that processes can share.
pub fn on_shared_stores(test: impl Fn(&Path)) {
    let folder = tempfile::tempdir().unwrap();
    println!("on sqlite");
    test(folder.path());
    println!("on postgres");
    test(Path::new(&Postgres::shared().database().url));
}

/// Runs the same test on every store.
pub fn on_every_store<F: Future<Output = ()>>(test: impl Fn(Store, Arc<Manual>) -> F) {
    let stores = Stores::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (name, store) in &stores.all {
        println!("on {name}");
        runtime.block_on(test(store.clone(), stores.clock.clone()));
    }
}

/// Makes a run.
pub async fn create(store: &Store, plan: &Arc<Plan>) -> RunId {
    match store.person().create_run(store.person().new_run(Arc::clone(plan))).await.unwrap() {
        Created::New(id) => id,
        other => panic!("{other:?}"),
    }
}

/// Makes a run of this name.
pub fn named(n: i64, plan: &Arc<Plan>) -> NewRun {
    NewRun::new(RunId::from_i64(n), Arc::clone(plan))
}

/// Receives one execution, which must be there.
pub async fn claim(store: &Store, worker: i64) -> Assignment {
    store.claims().claim(claimer(worker), 1).await.unwrap().pop().expect("something can be claimed")
}

/// Reports an end.
pub async fn finish(store: &Store, assignment: &Assignment, ending: Ending) -> Finished {
    store.worker(assignment.lease).finish(ending, None).await.unwrap()
}

/// Returns the statuses of a run's steps, in order.
pub fn steps(store: &Store, run: RunId) -> Vec<String> {
    look(store, |db| db.steps(run)).iter().map(|step| step.status().to_string()).collect()
}

/// Returns a run's status.
pub fn status(store: &Store, run: RunId) -> String {
    store.queries().run(run).unwrap().expect("the run is there").status().to_string()
}

/// Looks at a store.
pub fn look<T>(store: &Store, look: impl FnOnce(&mut dyn Backend) -> Result<T>) -> T {
    store.read(look).unwrap()
}

/// Returns the whole journal.
pub fn journal(store: &Store) -> Vec<JournalEntry> {
    look(store, |db| db.journal(0, None, 1_000_000))
}

/// Returns how often an event happened to a run, or to one of its steps.
pub fn told(store: &Store, event: &str, run: RunId, step: Option<StepNo>) -> usize {
    let of = |entry: &&JournalEntry| {
        entry.event == event && entry.place.run == Some(run) && (step.is_none() || entry.place.step == step)
    };
    journal(store).iter().filter(of).count()
}

/// Returns the journal, one line per entry.
pub fn story(store: &Store) -> Vec<String> {
    journal(store)
        .iter()
        .map(|e| {
            format!(
                "{} {:?} {} {} -> {} by {}",
                e.entity,
                e.place,
                e.event,
                e.from.unwrap_or("nothing"),
                e.to,
                e.actor
            )
        })
        .collect()
}
