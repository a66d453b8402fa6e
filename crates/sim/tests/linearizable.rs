//! Claims and reports by several concurrent callers on the shipped store are linearizable: callers that come one after
//! the other could have received the same answers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sprag_lifecycle::{Plan, PlanStep, Policy, RunId, StepStatus};
use sprag_sim::graphs::Chance;
use sprag_sim::linear::{Call, FenceToken, Operation, is_linearizable};
use sprag_store::{Claimer, Created, Ending, Lease, Renewal, Row, Store};

const TASKS: usize = 3;
const CALLERS: u64 = 4;
const CALLS: usize = 5;

fn token(lease: Lease) -> FenceToken {
    u64::from(lease.execution.attempt) << 32 | u64::from(lease.fence)
}

/// The clock that all callers share.
struct Counter(AtomicU64);

impl Counter {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// Acts as one caller: claims, renews, reports, releases, reports again, reports work that it never had, and takes work
/// from others as a reaper would.
async fn act_as_caller(
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
        // Otherwise the answer is lost.
        let heard = !chance.one_in(12);
        let called = clock.next();
        let mut call = match (chance.below(10), lease) {
            (0..=4, _) | (_, None) => {
                let claimer = Claimer {
                    worker: seed as i64 % 1_000 + 1,
                    queues: vec![Arc::clone(&queue)],
                    reserved_only: false,
                    services_only: false,
                    lease_ms: 60_000,
                    nonce: 0,
                };
                let got = store.claims().claim(claimer, 1).await.unwrap().pop();
                Call::Claim(Some(got.map(|got| {
                    known.lock().unwrap().extend(heard.then_some(got.lease));
                    let no = tasks.iter().position(|run| *run == got.lease.execution.run);
                    (no.expect("one of ours"), token(got.lease))
                })))
            }
            (kind, Some(lease)) => {
                let no = tasks.iter().position(|run| *run == lease.execution.run).expect("one of ours");
                let ending = Ending::Completed { result: None };
                match kind {
                    5 => {
                        let renewed = store.worker(lease).renew(60_000).await.unwrap();
                        Call::Renew(no, token(lease), Some(renewed != Renewal::Lost))
                    }
                    6..=7 => {
                        let ended = store.worker(lease).finish(ending, None).await.unwrap();
                        Call::Complete(no, token(lease), Some(ended.outcome.is_applied()))
                    }
                    8 => {
                        let given = store.worker(lease).release().await.unwrap();
                        Call::Release(no, token(lease), Some(given.is_applied()))
                    }
                    _ => {
                        let taken = store.reaper().owner_died(lease).await.unwrap();
                        Call::Take(no, token(lease), Some(taken.is_applied()))
                    }
                }
            }
        };
        let answered = heard.then(|| clock.next());
        if !heard {
            match &mut call {
                Call::Claim(got) => *got = None,
                Call::Complete(.., stands)
                | Call::Renew(.., stands)
                | Call::Release(.., stands)
                | Call::Take(.., stands) => *stands = None,
                Call::Look(_) => {}
            }
        }
        done.push(Operation { called, answered, call });
    }
    done
}

/// Records one history on its own tasks.
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
            tokio::spawn(act_as_caller(store, queue, tasks, Arc::clone(&known), Arc::clone(&clock), seed))
        })
        .collect();
    let mut done = Vec::new();
    for caller in callers {
        done.extend(caller.await.unwrap());
    }
    let called = clock.next();
    let look = |run: &RunId| stores[0].queries().steps(*run).unwrap()[0].status() == StepStatus::Done;
    let call = Call::Look(tasks.iter().map(look).collect());
    done.push(Operation { called, answered: Some(clock.next()), call });
    done
}

#[test]
fn c01_i04_every_history_of_claims_and_reports_is_linearizable() {
    let histories = if std::env::var_os("SPRAG_NIGHTLY").is_some() { 1_000_000 } else { 5_000 };
    /// The number of histories after which the store is replaced.
    const EACH: u64 = 1_000;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (mut overlapping, mut lost) = (0, 0);
    for first in (0..histories).step_by(EACH as usize) {
        let folder = if std::path::Path::new("/dev/shm").is_dir() {
            tempfile::tempdir_in("/dev/shm").unwrap()
        } else {
            tempfile::tempdir().unwrap()
        };
        // The file is opened twice: two independent writers, as in two processes.
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

/// Returns the number of pairs of operations that overlap in time.
fn overlaps(history: &[Operation]) -> usize {
    let pairs =
        history.iter().enumerate().flat_map(|(no, one)| history[no + 1..].iter().map(move |two| (one, two)));
    pairs
        .filter(|(one, two)| {
            one.answered.is_none_or(|end| two.called < end) && two.answered.is_none_or(|end| one.called < end)
        })
        .count()
}
