//! Claims and reports by several callers at once, on the store as it ships: every answer is one that callers who come
//! one after the other could have had.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sprag_lifecycle::{Plan, PlanStep, Policy, RunId, StepStatus};
use sprag_sim::graphs::Chance;
use sprag_sim::linear::{Operation, Right, What, is_linearizable};
use sprag_store::ops::{Claimer, Created, Ending, Lease, Renewal};
use sprag_store::{Row, Store};

const TASKS: usize = 3;
const CALLERS: u64 = 4;
const CALLS: usize = 5;

fn right(lease: Lease) -> Right {
    u64::from(lease.execution.attempt) << 32 | u64::from(lease.fence)
}

/// A moment on the clock that all callers share.
struct Counter(AtomicU64);

impl Counter {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// What one caller does: claims, renews, reports, gives back, reports again, reports what it never had, and takes from others
/// as a reaper would.
async fn call(
    store: Store,
    queue: Arc<str>,
    tasks: Arc<Vec<RunId>>,
    known: Arc<Mutex<Vec<Lease>>>,
    clock: Arc<Counter>,
    seed: u64,
) -> Vec<Operation> {
    let mut chance = Chance(seed);
    let mut done = Vec::new();
    for _ in 0..CALLS {
        let lease = {
            let known = known.lock().unwrap();
            (!known.is_empty()).then(|| known[chance.below(known.len())])
        };
        // Otherwise the answer does not reach anybody.
        let heard = !chance.one_in(12);
        let called = clock.next();
        let mut what = match (chance.below(10), lease) {
            (0..=4, _) | (_, None) => {
                let claimer = Claimer {
                    worker: seed as i64 % 1_000 + 1,
                    queues: vec![Arc::clone(&queue)],
                    reserved_only: false,
                    lease_ms: 60_000,
                    nonce: 0,
                };
                let got = store.claims().claim(claimer, 1).await.unwrap().pop();
                What::Claim(Some(got.map(|got| {
                    known.lock().unwrap().extend(heard.then_some(got.lease));
                    let no = tasks.iter().position(|run| *run == got.lease.execution.run);
                    (no.expect("one of ours"), right(got.lease))
                })))
            }
            (kind, Some(lease)) => {
                let no = tasks.iter().position(|run| *run == lease.execution.run).expect("one of ours");
                let ending = Ending::Completed { result: None };
                match kind {
                    5 => {
                        let renewed = store.worker(lease).renew(60_000).await.unwrap();
                        What::Renew(no, right(lease), Some(renewed != Renewal::Lost))
                    }
                    6..=7 => {
                        let ended = store.worker(lease).finish(ending, None).await.unwrap();
                        What::Complete(no, right(lease), Some(ended.outcome.is_applied()))
                    }
                    8 => {
                        let given = store.worker(lease).release().await.unwrap();
                        What::Release(no, right(lease), Some(given.is_applied()))
                    }
                    _ => {
                        let taken = store.reaper().owner_died(lease).await.unwrap();
                        What::Take(no, right(lease), Some(taken.is_applied()))
                    }
                }
            }
        };
        let answered = heard.then(|| clock.next());
        if !heard {
            match &mut what {
                What::Claim(got) => *got = None,
                What::Complete(.., stands)
                | What::Renew(.., stands)
                | What::Release(.., stands)
                | What::Take(.., stands) => *stands = None,
                What::Look(_) => {}
            }
        }
        done.push(Operation { called, answered, what });
    }
    done
}

/// One history, on tasks of its own.
async fn history(stores: &[Store], number: u64) -> Vec<Operation> {
    let queue: Arc<str> = format!("q{number}").into();
    let step = PlanStep {
        policy: Policy { losses: 100, ..Policy::default() },
        queue: queue.to_string(),
        spec: "{}".into(),
        ..PlanStep::new("task", Vec::new())
    };
    let plan = Arc::new(Plan::new("task", vec![step]).unwrap());
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        let new = stores[0].person().new_run(Arc::clone(&plan));
        match stores[0].person().create_run(new).await.unwrap() {
            Created::New(run) => tasks.push(run),
            other => panic!("{other:?}"),
        }
    }
    let tasks = Arc::new(tasks);
    let clock = Arc::new(Counter(AtomicU64::new(0)));
    let known = Arc::new(Mutex::new(Vec::new()));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let store = stores[caller as usize % stores.len()].clone();
            let (queue, tasks) = (Arc::clone(&queue), Arc::clone(&tasks));
            let seed = number * CALLERS + caller;
            tokio::spawn(call(store, queue, tasks, Arc::clone(&known), Arc::clone(&clock), seed))
        })
        .collect();
    let mut done = Vec::new();
    for caller in callers {
        done.extend(caller.await.unwrap());
    }
    let called = clock.next();
    let look = |run: &RunId| stores[0].read(|db| db.steps(*run)).unwrap()[0].status() == StepStatus::Done;
    let what = What::Look(tasks.iter().map(look).collect());
    done.push(Operation { called, answered: Some(clock.next()), what });
    done
}

#[test]
fn c01_i04_every_history_of_claims_and_reports_is_linearizable() {
    let histories = if std::env::var_os("SPRAG_NIGHTLY").is_some() { 1_000_000 } else { 5_000 };
    /// After so many, the store is a new one.
    const EACH: u64 = 1_000;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (mut overlapping, mut lost) = (0, 0);
    for first in (0..histories).step_by(EACH as usize) {
        let folder = match std::path::Path::new("/dev/shm").is_dir() {
            true => tempfile::tempdir_in("/dev/shm").unwrap(),
            false => tempfile::tempdir().unwrap(),
        };
        // Opened twice: two writers that know nothing of each other, as in two processes.
        let stores = [Store::open(folder.path()).unwrap(), Store::open(folder.path()).unwrap()];
        runtime.block_on(async {
            for number in first..(first + EACH).min(histories) {
                let history = history(&stores, number).await;
                overlapping += overlaps(&history);
                lost += history.iter().filter(|operation| operation.answered.is_none()).count();
                assert!(is_linearizable(TASKS, &history), "history {number}: {history:#?}");
            }
        });
    }
    println!(
        "figure: linearizability: {histories} histories, {overlapping} overlapping pairs, {lost} lost answers"
    );
    assert!(overlapping > histories as usize, "callers were there at once");
}

/// How many pairs of operations went on at the same time.
fn overlaps(history: &[Operation]) -> usize {
    let pairs =
        history.iter().enumerate().flat_map(|(no, one)| history[no + 1..].iter().map(move |two| (one, two)));
    pairs
        .filter(|(one, two)| {
            one.answered.is_none_or(|end| two.called < end) && two.answered.is_none_or(|end| one.called < end)
        })
        .count()
}
