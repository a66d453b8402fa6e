//! Runs that ended long ago are forgotten, and nothing else is.

use std::sync::Arc;

use crate::common::language::Plain;
use crate::common::*;
use sprag_lifecycle::{Plan, PlanStep, Policy, RunId, WorkKind};
use sprag_store::ops::NewRun;
use sprag_store::{HookRow, RunRow, Store, Table};

const DAY_MS: i64 = 86_400_000;

async fn complete(store: &Store, run: RunId) {
    for _ in 0..20 {
        if !store.read(|db| db.live_runs(None, 100)).unwrap().contains(&run) {
            return;
        }
        let held = claim(store, 1).await;
        finish(store, &held, well()).await;
    }
    panic!("run {run} does not end");
}

/// Does what was left to be done after the end of runs.
async fn work_off_effects(store: &Store) {
    for row in look(store, |db| db.outbox_due(i64::MAX, 1_000)) {
        if &*row.kind == "child.ended" {
            let payload: serde_json::Value = serde_json::from_str(&row.payload).unwrap();
            let step = payload["step"].as_u64().unwrap() as u32;
            store.executor().look_at_step(row.run, step).await.unwrap();
        }
        store.executor().effect_done(row.id).await.unwrap();
    }
}

fn is_there(store: &Store, run: RunId) -> bool {
    look(store, |db| Table::<RunRow>::load(db, run)).is_some()
}

#[test]
fn what_ended_long_ago_goes_with_all_that_was_its_own() {
    on_every_store(|store, clock| async move {
        let plan = sequence(3);
        let old = create(&store, &plan).await;
        complete(&store, old).await;
        let live = create(&store, &graph(&[&[], &[0]], |_| Policy::default())).await;
        work_off_effects(&store).await;
        clock.advance(40 * DAY_MS);
        let young = create(&store, &plan).await;
        let held = claim(&store, 1).await;
        assert_eq!(held.lease.execution.run, live, "the older one comes first");
        finish(&store, &held, well()).await;
        for _ in 0..4 {
            let held = claim(&store, 1).await;
            finish(&store, &held, well()).await;
        }
        work_off_effects(&store).await;
        let before_ms = store.now().wall_ms - 30 * DAY_MS;
        let told = store.person().forget_runs(before_ms, None, 100).await.unwrap();
        assert_eq!((told.runs, told.kept, told.next), (vec![old], vec![], None));
        assert!(!is_there(&store, old) && is_there(&store, live) && is_there(&store, young));
        assert!(look(&store, |db| db.steps(old)).is_empty());
        assert!(look(&store, |db| db.executions(old)).is_empty());
        let journal = look(&store, |db| db.journal(0, None, 10_000));
        assert!(journal.iter().all(|entry| entry.place.run != Some(old)));
        assert!(journal.iter().any(|entry| entry.place.run == Some(live)));
        assert_eq!(store.person().forget_plans().await.unwrap(), 0, "both plans are in use");
        assert!(store.person().forget_runs(before_ms, None, 100).await.unwrap().runs.is_empty());
    });
}

#[test]
fn i26_no_number_of_the_journal_is_given_again() {
    on_every_store(|store, clock| async move {
        let run = create(&store, &sequence(1)).await;
        complete(&store, run).await;
        work_off_effects(&store).await;
        let last = look(&store, |db| db.last_seq());
        clock.advance(DAY_MS);
        let told = store.person().forget_runs(store.now().wall_ms, None, 10).await.unwrap();
        assert_eq!(told.runs, vec![run]);
        assert_eq!(look(&store, |db| db.last_seq()), last);
        create(&store, &sequence(1)).await;
        let after = look(&store, |db| db.journal(last, None, 10));
        assert_eq!(after.first().map(|entry| entry.seq), Some(last + 1));
    });
}

#[test]
fn a_run_goes_with_its_children_and_a_key_is_free_again() {
    on_every_store(|store, clock| async move {
        let store = Plain::on(store);
        let inner = serde_json::to_value(&*sequence(1)).unwrap();
        let spec = serde_json::json!({ "child": inner }).to_string();
        let step = PlanStep { work: WorkKind::Child, spec, ..PlanStep::new("child", Vec::new()) };
        let plan = Arc::new(Plan::new("parent", vec![step]).unwrap());
        let key: Option<Arc<str>> = Some("once".into());
        let new = NewRun { idempotency_key: key.clone(), ..store.person().new_run(Arc::clone(&plan)) };
        let parent = new.id;
        store.person().create_run(new).await.unwrap();
        let held = claim(&store, 1).await;
        let child = held.lease.execution.run;
        assert_ne!(child, parent);
        finish(&store, &held, well()).await;
        clock.advance(DAY_MS);
        let now_ms = store.now().wall_ms;
        let told = store.person().forget_runs(now_ms, None, 10).await.unwrap();
        assert!(told.runs.is_empty(), "the parent has not heard of its child's end");
        work_off_effects(&store).await;
        work_off_effects(&store).await;
        assert_eq!(status(&store, parent), "completed");
        clock.advance(DAY_MS);
        let told = store.person().forget_runs(store.now().wall_ms, None, 10).await.unwrap();
        assert_eq!(told.runs, vec![parent, child]);
        assert!(look(&store, |db| db.run_by_key("once")).is_none());
        assert_eq!(store.person().forget_plans().await.unwrap(), 2);
    });
}

#[test]
fn what_a_hook_has_not_been_told_of_stays() {
    on_every_store(|store, clock| async move {
        let run = create(&store, &sequence(1)).await;
        complete(&store, run).await;
        work_off_effects(&store).await;
        clock.advance(DAY_MS);
        let hook = HookRow::new(1, "http://127.0.0.1:1/".into(), "s".into(), "{}".into(), 0);
        store.write(move |session| session.db().put_hook(&hook)).await.unwrap();
        let told = store.person().forget_runs(store.now().wall_ms, None, 10).await.unwrap();
        assert_eq!(told.kept, vec![(run, "a hook has not been told of it")]);
        assert!(is_there(&store, run));
    });
}

#[test]
fn a_page_at_a_time_comes_to_the_end() {
    on_every_store(|store, clock| async move {
        for _ in 0..7 {
            let run = create(&store, &sequence(1)).await;
            complete(&store, run).await;
        }
        work_off_effects(&store).await;
        clock.advance(DAY_MS);
        let (mut gone, mut after) = (0, None);
        for _ in 0..10 {
            let told = store.person().forget_runs(store.now().wall_ms, after, 3).await.unwrap();
            gone += told.runs.len();
            match told.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(gone, 7);
    });
}
