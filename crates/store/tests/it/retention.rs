//! Retention: runs that ended long ago are deleted, and nothing else.

use std::sync::Arc;

use crate::common::evaluator::Plain;
use crate::common::*;
use sprag_lifecycle::{Plan, PlanStep, Policy, RunId, Spread, WorkKind};
use sprag_store::testing::{RawStore, Table, ops};
use sprag_store::{Bite, Created, Ending, Forgettable, HookRow, NewRun, RunRow, Store};

const DAY_MS: i64 = 86_400_000;

/// Returns a share of the work that is enough for any test.
fn all() -> Bite {
    Bite::of(100_000)
}

/// Forgets everything that ended before this moment and may go: rows, entries and plans.
async fn forget(store: &Store, before_ms: i64) -> Forgettable {
    let told = store.person().forgettable_runs(before_ms, None, 1_000).unwrap();
    let forgot = store.person().forget_runs(told.runs.clone(), before_ms, all()).await.unwrap();
    assert!(!forgot.rows_left && forgot.looked_at == told.runs.len());
    let mut gone = forgot.runs;
    gone.sort_unstable();
    let mut expected: Vec<RunId> = told.runs.iter().chain(&told.children).copied().collect();
    expected.sort_unstable();
    assert_eq!(gone, expected);
    assert_eq!(look(store, |db| db.forgotten(None, 1_000)), gone, "their files are left");
    store.person().files_are_gone(gone).await.unwrap();
    assert!(!store.person().forget_entries(all()).await.unwrap());
    told
}

async fn forget_plans(store: &Store) -> usize {
    let done = store.person().forget_plans(None, all()).await.unwrap();
    assert_eq!(done.next, None);
    done.gone
}

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
fn an_old_run_is_deleted_with_all_its_rows() {
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
        let told = forget(&store, before_ms).await;
        assert_eq!((told.runs, told.kept, told.next), (vec![old], vec![], None));
        assert!(!is_there(&store, old) && is_there(&store, live) && is_there(&store, young));
        assert!(look(&store, |db| db.steps(old)).is_empty());
        assert!(look(&store, |db| db.executions(old)).is_empty());
        let journal = look(&store, |db| db.journal(0, None, 10_000));
        assert!(journal.iter().all(|entry| entry.place.run != Some(old)));
        assert!(journal.iter().any(|entry| entry.place.run == Some(live)));
        assert_eq!(forget_plans(&store).await, 0, "both plans are in use");
        assert!(forget(&store, before_ms).await.runs.is_empty());
    });
}

#[test]
fn i26_no_journal_number_is_reused() {
    on_every_store(|store, clock| async move {
        let run = create(&store, &sequence(1)).await;
        complete(&store, run).await;
        work_off_effects(&store).await;
        let last = look(&store, |db| db.last_seq());
        clock.advance(DAY_MS);
        assert_eq!(forget(&store, store.now().wall_ms).await.runs, vec![run]);
        assert_eq!(look(&store, |db| db.last_seq()), last);
        create(&store, &sequence(1)).await;
        let after = look(&store, |db| db.journal(last, None, 10));
        assert_eq!(after.first().map(|entry| entry.seq), Some(last + 1));
    });
}

#[test]
fn a_key_is_kept_for_as_long_as_its_starter_may_repeat_the_request() {
    on_every_store(|store, clock| async move {
        let plan = sequence(1);
        let request =
            || NewRun { idempotency_key: Some("once".into()), ..store.person().new_run(Arc::clone(&plan)) };
        let first = request();
        store.person().create_run(first.clone()).await.unwrap();
        complete(&store, first.id).await;
        work_off_effects(&store).await;
        let without_key = create(&store, &plan).await;
        complete(&store, without_key).await;
        work_off_effects(&store).await;
        clock.advance(DAY_MS - 60_000);
        let told = forget(&store, store.now().wall_ms).await;
        assert_eq!(told.runs, [without_key], "whatever is to be kept");
        assert_eq!(told.kept, [(first.id, "its idempotency key may still be repeated")]);
        // One that has looked before, or does not look, forgets it no sooner.
        let forgot = store.person().forget_runs(vec![first.id], store.now().wall_ms, all()).await.unwrap();
        assert!(forgot.runs.is_empty(), "{forgot:?}");
        assert_eq!(store.person().create_run(request()).await.unwrap(), Created::Existing(first.id));
        clock.advance(60_000);
        assert_eq!(forget(&store, store.now().wall_ms).await.runs, [first.id]);
        assert!(matches!(store.person().create_run(request()).await.unwrap(), Created::New(_)));
    });
}

#[test]
fn retention_deletes_a_run_with_its_children_and_frees_its_key() {
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
        let told = forget(&store, store.now().wall_ms).await;
        assert!(told.runs.is_empty(), "the parent has not heard of its child's end");
        work_off_effects(&store).await;
        work_off_effects(&store).await;
        assert_eq!(status(&store, parent), "completed");
        clock.advance(DAY_MS);
        let told = forget(&store, store.now().wall_ms).await;
        assert_eq!((told.runs, told.children), (vec![parent], vec![child]));
        assert!(!is_there(&store, parent) && !is_there(&store, child));
        assert!(look(&store, |db| db.steps(child)).is_empty());
        assert!(look(&store, |db| db.run_by_key("once")).is_none());
        assert_eq!(forget_plans(&store).await, 2);
    });
}

/// Creates an ended run, and the hook with this number, which has received nothing. Returns the run.
async fn untold(store: &Store, hook: i64) -> RunId {
    let run = create(store, &sequence(1)).await;
    complete(store, run).await;
    work_off_effects(store).await;
    let hook = HookRow::new(hook, "http://127.0.0.1:1/".into(), "s".into(), "{}".into(), 0);
    store.write(move |session| session.db().put_hook(&hook)).await.unwrap();
    run
}

#[test]
fn runs_that_a_hook_has_not_received_stay_for_a_week() {
    on_every_store(|store, clock| async move {
        let run = untold(&store, 7).await;
        clock.advance(6 * DAY_MS);
        let told = forget(&store, store.now().wall_ms).await;
        assert_eq!(told.kept, vec![(run, "it has not been delivered to a webhook")]);
        assert!(is_there(&store, run));
        clock.advance(2 * DAY_MS);
        assert!(store.service().take_hook(7, 1, 60_000).await.unwrap());
        let told = forget(&store, store.now().wall_ms).await;
        assert_eq!(
            told.kept,
            vec![(run, "it has not been delivered to a webhook")],
            "a server delivers it now"
        );
        store.service().leave_hook(7, 1).await.unwrap();
        let told = forget(&store, store.now().wall_ms).await;
        assert_eq!((told.runs, told.untold.get(&7)), (vec![run], Some(&1)), "and it is said");
    });
}

#[test]
fn a_broker_that_no_process_uses_keeps_no_run_after_a_day() {
    on_every_store(|store, clock| async move {
        let run = untold(&store, HookRow::RELAY).await;
        clock.advance(DAY_MS / 2);
        let told = forget(&store, store.now().wall_ms).await;
        assert_eq!(told.kept, vec![(run, "it has not been published to the broker")]);
        clock.advance(DAY_MS);
        let told = forget(&store, store.now().wall_ms).await;
        assert_eq!((told.runs, told.untold.get(&HookRow::RELAY)), (vec![run], Some(&1)));
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
        let (mut seen, mut after) = (0, None);
        for _ in 0..10 {
            let told = store.person().forgettable_runs(store.now().wall_ms, after, 3).unwrap();
            seen += told.runs.len();
            match told.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(seen, 7);
    });
}

#[test]
fn a_run_that_is_resumed_after_the_check_is_not_deleted() {
    on_every_store(|store, clock| async move {
        let run = create(&store, &sequence(2)).await;
        complete(&store, run).await;
        work_off_effects(&store).await;
        clock.advance(DAY_MS);
        let before_ms = store.now().wall_ms;
        let told = store.person().forgettable_runs(before_ms, None, 10).unwrap();
        assert_eq!(told.runs, vec![run]);
        assert!(store.person().rewind_run(run, 0, None).await.unwrap().is_applied());
        let forgot = store.person().forget_runs(told.runs, before_ms, all()).await.unwrap();
        assert_eq!((forgot.runs, forgot.looked_at), (vec![], 1));
        assert!(is_there(&store, run));
        complete(&store, run).await;
        assert_eq!(status(&store, run), "completed");
    });
}

/// The remaining rows of a run are deleted in small parts, and no query finds the run meanwhile.
#[test]
fn a_large_run_goes_in_several_transactions() {
    on_every_store(|store, clock| async move {
        let store = Plain::on(store);
        let spec = serde_json::json!({ "items": 600, "when": true }).to_string();
        let step = PlanStep { spread: Some(Spread::default()), spec, ..PlanStep::new("all", Vec::new()) };
        let plan = Arc::new(Plan::new("wide", vec![step]).unwrap());
        let run = create(&store, &plan).await;
        while status(&store, run) != "completed" {
            for held in store.claims().claim(claimer(1), 64).await.unwrap() {
                finish(&store, &held, well()).await;
            }
        }
        let small = create(&store, &sequence(1)).await;
        complete(&store, small).await;
        work_off_effects(&store).await;
        clock.advance(DAY_MS);
        let before_ms = store.now().wall_ms;
        let told = store.person().forgettable_runs(before_ms, None, 10).unwrap();
        let mut left = told.runs;
        let (mut gone, mut bites) = (Vec::new(), 0);
        // A new process after every transaction: all that it knows is in the store.
        for _ in 0..100 {
            bites += 1;
            let forgot = store.person().forget_runs(left.clone(), before_ms, Bite::of(1)).await.unwrap();
            left.drain(..forgot.looked_at);
            gone.extend(forgot.runs);
            assert!(gone.iter().all(|run| !is_there(&store, *run)));
            if left.is_empty() && !forgot.rows_left {
                break;
            }
        }
        assert_eq!(gone, vec![run, small]);
        assert!(bites > 2 || store.path().is_none(), "{bites}");
        assert!(look(&store, |db| db.steps(run)).is_empty());
        assert!(look(&store, |db| db.executions(run)).is_empty());
        let mut rounds = 0;
        while store.person().forget_entries(Bite::of(1)).await.unwrap() {
            rounds += 1;
            assert!(rounds < 1_000, "the journal has an end");
        }
        let left = journal(&store).into_iter().filter(|entry| entry.place.run == Some(run)).count();
        assert_eq!(left, 0);
    });
}

/// Returns the number of rows in all tables of a file, and the total size of its executions' results in bytes.
fn rows_and_bytes(path: &std::path::Path) -> (i64, i64) {
    let conn = rusqlite::Connection::open(path).unwrap();
    let mut tables = conn.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").unwrap();
    let tables = tables.query_map([], |columns| columns.get::<_, String>(0)).unwrap();
    let count = |sql: &str| conn.query_row(sql, [], |columns| columns.get::<_, i64>(0)).unwrap();
    let rows = tables.map(|table| count(&format!("SELECT count(*) FROM {}", table.unwrap()))).sum();
    (rows, count("SELECT coalesce(sum(octet_length(result)), 0) FROM executions"))
}

/// The work between two looks at the clock is bounded, so that one small transaction on SQLite takes a few
/// milliseconds whatever runs hold: many steps, large outputs, many children, a large board.
#[test]
fn e12_one_part_of_retention_is_bounded_in_rows_and_bytes() {
    const MOST_ROWS: i64 = 250;
    const MOST_BYTES: i64 = 256 << 10;
    const OUTPUT: usize = 64 << 10;
    let stores = Stores::new();
    let store = stores.all.iter().find(|(name, _)| *name == "sqlite").unwrap().1.clone();
    let path = store.path().expect("a file").to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Plain::on(store);
        // Runs with many steps, of which some leave much.
        let spec = serde_json::json!({ "items": 150, "when": true }).to_string();
        let step = PlanStep { spread: Some(Spread::default()), spec, ..PlanStep::new("all", Vec::new()) };
        let wide = Arc::new(Plan::new("wide", vec![step]).unwrap());
        // Runs that are nothing but the work of other runs.
        let inner = serde_json::to_value(&*sequence(1)).unwrap();
        let spec = serde_json::json!({ "child": inner }).to_string();
        let child = |no: usize| PlanStep {
            work: WorkKind::Child,
            spec: spec.clone(),
            ..PlanStep::new(format!("c{no}"), Vec::new())
        };
        let parents = Arc::new(Plan::new("parents", (0..60).map(child).collect()).unwrap());
        let mut runs = Vec::new();
        for plan in [&wide, &parents, &wide, &wide, &wide] {
            runs.push(create(&store, plan).await);
        }
        let signalled = create(&store, &sequence(1)).await;
        for no in 0..300 {
            store.person().signal(signalled, format!("s{no}").into(), "{}".into()).await.unwrap();
        }
        runs.push(signalled);
        let mut settled = 0;
        for _ in 0..1_000 {
            let claimed = store.claims().claim(claimer(1), 64).await.unwrap();
            for held in &claimed {
                settled += 1;
                let text = format!("\"{}\"", "x".repeat(if settled % 3 == 0 { OUTPUT } else { 1 }));
                finish(&store, held, Ending::Completed { result: Some(text.into()) }).await;
            }
            work_off_effects(&store).await;
            if runs.iter().all(|run| status(&store, *run) == "completed") {
                break;
            }
        }
        assert!(runs.iter().all(|run| status(&store, *run) == "completed"));
        // The end of the last child was one effect, and that of its parent is another.
        work_off_effects(&store).await;
        stores.clock.advance(DAY_MS);
        let before_ms = store.now().wall_ms;
        let mut left = store.person().forgettable_runs(before_ms, None, 100).unwrap().runs;
        assert_eq!(left.len(), runs.len());
        let bound = |what: &str, before: (i64, i64)| {
            let after = rows_and_bytes(&path);
            let (rows, bytes) = (before.0 - after.0, before.1 - after.1);
            assert!(rows <= MOST_ROWS, "{what}: {rows} rows in one part");
            assert!(bytes <= MOST_BYTES + OUTPUT as i64 + 2, "{what}: {bytes} bytes in one part");
        };
        for parts in 0.. {
            assert!(parts < 1_000, "it comes to an end");
            let before = rows_and_bytes(&path);
            let forgot = store.person().forget_runs(left.clone(), before_ms, Bite::of(1)).await.unwrap();
            bound("rows", before);
            left.drain(..forgot.looked_at);
            if left.is_empty() && !forgot.rows_left {
                break;
            }
        }
        for parts in 0.. {
            assert!(parts < 1_000, "it comes to an end");
            let before = rows_and_bytes(&path);
            let more = store.person().forget_entries(Bite::of(1)).await.unwrap();
            bound("journal", before);
            if !more {
                break;
            }
        }
        for table in ["runs", "steps", "executions", "items", "signals"] {
            let conn = rusqlite::Connection::open(&path).unwrap();
            let sql = format!("SELECT count(*) FROM {table}");
            let rows: i64 = conn.query_row(&sql, [], |columns| columns.get(0)).unwrap();
            assert_eq!(rows, 0, "{table}");
        }
    });
}

/// Returns this thread's processor time, which a busy machine does not affect.
fn thread_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}

/// Forgets everything in transactions with the share that `sprag gc` gives them at most; the processor time of those that
/// remove runs, of those that remove journal entries, and of the longest.
async fn forgetting_us(store: &Store, before_ms: i64) -> ([u64; 2], u64) {
    const SHARE: std::time::Duration = std::time::Duration::from_millis(8);
    let (mut runs_us, mut entries_us, mut longest_us) = (0, 0, 0);
    let mut left = store.person().forgettable_runs(before_ms, None, 100_000).unwrap().runs;
    for transactions in 0.. {
        assert!(transactions < 10_000, "it comes to an end");
        let (runs, bite) = (left.clone(), Bite::lasting(SHARE));
        let done = store.write(move |session| {
            let since_us = thread_us();
            let forgot = ops::forget_runs(session, &runs, before_ms, &bite)?;
            Ok((forgot, thread_us() - since_us))
        });
        let (forgot, took_us) = done.await.unwrap();
        (runs_us, longest_us) = (runs_us + took_us, longest_us.max(took_us));
        left.drain(..forgot.looked_at);
        if left.is_empty() && !forgot.rows_left {
            break;
        }
    }
    for transactions in 0.. {
        assert!(transactions < 10_000, "it comes to an end");
        let bite = Bite::lasting(SHARE);
        let done = store.write(move |session| {
            let since_us = thread_us();
            let more = ops::forget_entries(session, &bite)?;
            Ok((more, thread_us() - since_us))
        });
        let (more, took_us) = done.await.unwrap();
        (entries_us, longest_us) = (entries_us + took_us, longest_us.max(took_us));
        if !more {
            break;
        }
    }
    ([runs_us, entries_us], longest_us)
}

/// A run costs the same in a large store as in a small one, and no transaction works for 20 ms. SQLite has statistics
/// from when the store was nearly empty: a server that runs for long does not renew them.
#[test]
fn e12_retention_is_linear_and_its_transactions_are_short() {
    const FEW: usize = 300;
    const MANY: usize = 6_000;
    const LONGEST_US: u64 = 20_000;
    /// A cost that grows with the store would be twenty times as high.
    const BOUND: f64 = 3.0;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let costs = [FEW, MANY].map(|runs| {
        let stores = Stores::new();
        let store = stores.all.iter().find(|(name, _)| *name == "sqlite").unwrap().1.clone();
        runtime.block_on(async {
            let plan = sequence(1);
            // All submitted first: the whole journal is between a run's first and its last entry.
            for no in 0..runs {
                create(&store, &plan).await;
                if no == 0 {
                    let path = stores.folder.path().join(sprag_store::FILE_NAME);
                    rusqlite::Connection::open(path).unwrap().execute_batch("ANALYZE").unwrap();
                }
            }
            let mut left = runs;
            while left > 0 {
                let claimed = store.claims().claim(claimer(1), 64).await.unwrap();
                assert!(!claimed.is_empty());
                left -= claimed.len();
                let leases: Vec<_> = claimed.iter().map(|held| held.lease).collect();
                let reported = store.write(move |session| {
                    leases.iter().try_for_each(|lease| ops::finish(session, *lease, &well(), None).map(drop))
                });
                reported.await.unwrap();
            }
            for row in look(&store, |db| db.outbox_due(i64::MAX, 10 * runs)) {
                store.executor().effect_done(row.id).await.unwrap();
            }
            stores.clock.advance(DAY_MS);
            let (parts_us, longest_us) = forgetting_us(&store, store.now().wall_ms).await;
            let [run_us, entries_us] = parts_us.map(|part_us| part_us as f64 / runs as f64);
            println!("{runs} runs: {run_us:.1} us each and {entries_us:.1} us for its entries, the longest transaction {longest_us} us");
            assert!(longest_us < LONGEST_US, "a transaction worked for {longest_us} us");
            [run_us, entries_us]
        })
    });
    for (few_us, many_us) in costs[0].iter().zip(costs[1]) {
        let ratio = many_us / few_us;
        assert!(ratio < BOUND, "a run costs {ratio:.2} times as much in a large store: {costs:?}");
    }
}

/// Plans go by their size too.
#[test]
fn e12_large_plans_go_in_several_parts() {
    on_every_store(|store, clock| async move {
        for no in 0..4 {
            let spec = format!("{{\"text\":\"{no}{}\"}}", "x".repeat(200 << 10));
            let plan = Arc::new(
                Plan::new("large", vec![PlanStep { spec, ..PlanStep::new("one", Vec::new()) }]).unwrap(),
            );
            let run = create(&store, &plan).await;
            complete(&store, run).await;
        }
        work_off_effects(&store).await;
        clock.advance(DAY_MS);
        forget(&store, store.now().wall_ms).await;
        let (mut after, mut gone, mut parts) = (None, 0, 0);
        for _ in 0..10 {
            let done = store.person().forget_plans(after, Bite::of(1)).await.unwrap();
            (after, gone, parts) = (done.next, gone + done.gone, parts + 1);
            if after.is_none() {
                break;
            }
        }
        assert_eq!(gone, 4);
        let is_sqlite = store.path().is_some_and(std::path::Path::is_file);
        assert_eq!(parts, if is_sqlite { 2 } else { 1 });
    });
}

/// Another process removes a plan that this one remembers, and keeps another under its number.
#[test]
fn a_plan_that_another_process_removed_is_not_remembered() {
    on_shared_stores(|place| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (here, there) = (open_shared(place), open_shared(place));
            let (first, second) = (sequence(1), sequence(2));
            let create_as = |store: &Store, plan: &Arc<Plan>, hash: i64| {
                let (store, new) = (store.clone(), store.person().new_run(Arc::clone(plan)));
                async move {
                    let made = store.write_on(vec![new.id], move |s| ops::create_run(s, &new, hash)).await;
                    match made.unwrap() {
                        Created::New(run) => run,
                        other => panic!("{other:?}"),
                    }
                }
            };
            let run = create_as(&here, &first, 42).await;
            complete(&here, run).await;
            work_off_effects(&here).await;
            let later_ms = here.now().wall_ms + 1_000;
            assert_eq!(forget(&there, later_ms).await.runs, vec![run]);
            assert_eq!(forget_plans(&there).await, 1);

            let again = create_as(&here, &first, 42).await;
            complete(&here, again).await;
            assert_eq!(status(&here, again), "completed");
            work_off_effects(&here).await;
            forget(&there, there.now().wall_ms + 1_000).await;
            assert_eq!(forget_plans(&there).await, 1);

            let other = create_as(&there, &second, 42).await;
            let held = claim(&here, 1).await;
            assert_eq!(held.lease.execution.run, other);
            assert_eq!(held.plan.steps.len(), 2, "the plan that has this number now");
        });
    });
}
