//! Bugs that the simulation has found, each as its own test, because seeds change their meaning and tests do not.

use std::sync::Arc;

use crate::common::*;
use sprag_lifecycle::{
    Concurrency, EnvironmentEvent, OnConflict, Plan, PlanEnvironment, PlanStep, Policy, WorkKind,
};
use sprag_store::testing::{RawStore, Table};
use sprag_store::{
    Created, EnvironmentReport, EnvironmentRequest, EnvironmentRow, ExecutionRow, Id, NewWorker, Prepared,
    Provide, Row, RunRow, Sighting, SpecError, SpecEvaluator, Store,
};

async fn register(store: &Store, id: Id, host: &str) {
    let process = format!("{host}/{id}");
    let new = NewWorker {
        id,
        name: "one".into(),
        process: process.into(),
        queues: "default".into(),
        labels: "".into(),
        slots: 1,
        lease_ms: 1000,
    };
    store.claims().register(new).await.unwrap();
}

async fn provide(store: &Store, run: sprag_lifecycle::RunId, worker: Id, host: &str) -> Provide {
    let wanted = EnvironmentRequest {
        id: 1,
        run,
        scope: None,
        host: host.into(),
        worker,
        managed: true,
        path: "/w".into(),
        details: "{}".into(),
    };
    let rows = look(store, |db| db.environments_of(run));
    let seen = rows.first().map(|row| Sighting { version: row.version(), is_present: false });
    store.claims().provide_environment(wanted, seen).await.unwrap()
}

async fn report(store: &Store, event: EnvironmentEvent, attempt: u32) {
    let given = EnvironmentReport { attempt, ..EnvironmentReport::default() };
    assert!(store.claims().environment(1, event, given, None).await.unwrap().is_applied());
}

fn with_environment(plan: &Plan) -> Arc<Plan> {
    let mut plan = plan.clone();
    plan.environment = Some(PlanEnvironment { spec: "{}".into() });
    Arc::new(plan)
}

/// A run that waited for its group's place, and was cancelled there, says of its steps what is so.
#[test]
fn i03_a_queued_run_that_is_cancelled_counts_its_steps_rightly() {
    on_every_store(|store, _| async move {
        let mut plan = (*sequence(3)).clone();
        let (group, on_conflict) = ("g".into(), OnConflict::Queue);
        plan.concurrency = Some(Concurrency { group, limit: 1, on_conflict });
        let plan = Arc::new(plan);
        let first = create(&store, &plan).await;
        let second = create(&store, &plan).await;
        assert_eq!((status(&store, first), status(&store, second)), ("running".into(), "queued".into()));
        let _ = store.person().cancel_run(second).await.unwrap();
        let steps = look(&store, |db| db.steps(second));
        let needs: Vec<(u32, u32)> = steps.iter().map(|step| (step.needs.open, step.needs.broken)).collect();
        assert_eq!(needs, [(0, 0), (0, 1), (0, 1)]);
        let run = look(&store, |db| Table::<RunRow>::load(db, second)).unwrap();
        assert_eq!((run.tally.unsettled, run.tally.broken), (0, 3));
    });
}

/// An environment that is made anew on another host is on that host from then on.
#[test]
fn i23_an_environment_rebuilt_on_another_host_names_that_host() {
    on_every_store(|store, _| async move {
        register(&store, 7, "a").await;
        register(&store, 8, "b").await;
        let run = create(&store, &with_environment(&sequence(2))).await;
        assert!(matches!(provide(&store, run, 7, "a").await, Provide::Make(_)));
        report(&store, EnvironmentEvent::ProvisionFailed, 1).await;
        let Provide::Make(row) = provide(&store, run, 8, "b").await else { panic!("it is to be made") };
        assert_eq!(&*row.host, "b");
        report(&store, EnvironmentEvent::ProvisionSucceeded, 2).await;
        let kept = look(&store, |db| Table::<EnvironmentRow>::load(db, 1)).unwrap();
        assert_eq!(&*kept.host, "b");
        // Only a worker on that host gets its steps.
        assert!(store.claims().claim(claimer(7), 1).await.unwrap().is_empty());
        assert_eq!(store.claims().claim(claimer(8), 1).await.unwrap().len(), 1);
    });
}

/// A run that is reserved for a worker of one host, while its files are on another: a worker of the other host gets it.
#[test]
fn i20_a_run_reserved_for_a_worker_without_its_files_goes_to_others() {
    on_every_store(|store, _| async move {
        register(&store, 7, "a").await;
        register(&store, 8, "b").await;
        let mut new = store.person().new_run(with_environment(&sequence(1)));
        new.pin = Some(7);
        let Created::New(run) = store.person().create_run(new).await.unwrap() else { panic!() };
        assert!(matches!(provide(&store, run, 8, "b").await, Provide::Make(_)));
        let nobody = |worker: Id| {
            let store = store.clone();
            async move { store.claims().claim(claimer(worker), 1).await.unwrap().is_empty() }
        };
        assert!(nobody(7).await && nobody(8).await);
        let id = look(&store, |db| db.executions(run)).pop().unwrap().id;
        assert!(store.executor().redispatch(id).await.unwrap());
        assert!(nobody(7).await);
        assert!(!nobody(8).await);
        let row = look(&store, |db| Table::<ExecutionRow>::load(db, id)).unwrap();
        assert_eq!(row.pin, None);
    });
}

/// A run that is reserved for a process that died before it registered goes to others.
#[test]
fn i20_a_run_reserved_for_an_unregistered_worker_goes_to_others() {
    on_every_store(|store, _| async move {
        register(&store, 8, "b").await;
        let mut new = store.person().new_run(sequence(1));
        new.pin = Some(7);
        let Created::New(run) = store.person().create_run(new).await.unwrap() else { panic!() };
        assert!(store.claims().claim(claimer(8), 1).await.unwrap().is_empty());
        let id = look(&store, |db| db.executions(run)).pop().unwrap().id;
        assert!(store.executor().redispatch(id).await.unwrap());
        assert_eq!(store.claims().claim(claimer(8), 1).await.unwrap().len(), 1);
    });
}

#[derive(Debug)]
struct Child(Arc<Plan>);

impl SpecEvaluator for Child {
    fn wanted(&self, _: &PlanStep, _: &serde_json::Value) -> Result<bool, SpecError> {
        Ok(true)
    }

    fn items(&self, _: &PlanStep, _: &serde_json::Value) -> Result<Vec<serde_json::Value>, SpecError> {
        Ok(Vec::new())
    }

    fn prepare(&self, _: &PlanStep, _: &serde_json::Value) -> Result<Prepared, SpecError> {
        Ok(Prepared::Child { plan: Arc::clone(&self.0), inputs: "{}".into() })
    }
}

/// The bound of a child run ends with the child: no timer is left for a step that is done.
#[test]
fn i16_i17_the_bound_of_a_child_run_ends_with_it() {
    on_every_store(|store, _| async move {
        let store = store.with_evaluator(Arc::new(Child(sequence(1))));
        let policy = Policy { timeout_ms: Some(1_000_000), ..Policy::default() };
        let step = PlanStep { policy, work: WorkKind::Child, ..PlanStep::new("child", Vec::new()) };
        let run = create(&store, &Arc::new(Plan::new("parent", vec![step]).unwrap())).await;
        assert_eq!(look(&store, |db| db.timers_due(i64::MAX, 10)).len(), 1);
        let only = claim(&store, 1).await;
        let _ = finish(&store, &only, well()).await;
        store.executor().look_at_step(run, 0).await.unwrap();
        assert_eq!(status(&store, run), "completed");
        assert_eq!(look(&store, |db| db.timers_due(i64::MAX, 10)), []);
    });
}

/// An operation that fails takes back everything, also what it wrote to the outbox.
#[test]
fn p09_an_effect_that_was_not_marked_as_done_runs_again() {
    on_every_store(|store, _| async move {
        create(&store, &sequence(1)).await;
        let only = claim(&store, 1).await;
        let _ = finish(&store, &only, well()).await;
        let due = look(&store, |db| db.outbox_due(i64::MAX, 10));
        assert_eq!(due.len(), 1);
        let id = due[0].id;
        let full = || sprag_store::Error::Full { path: "a disk".into() };
        let dropped =
            store.write(move |session| session.db().drop_outbox(id).and(Err::<(), _>(full()))).await;
        assert!(dropped.is_err());
        let put_off = store
            .write(move |session| session.db().postpone_outbox(id, 7, "no").and(Err::<(), _>(full())))
            .await;
        assert!(put_off.is_err());
        assert_eq!(look(&store, |db| db.outbox_due(i64::MAX, 10)), due);
    });
}
