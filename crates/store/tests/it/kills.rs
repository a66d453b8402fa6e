//! Processes that are killed (SIGKILL) while they write: acknowledged changes are there, the others are complete
//! or absent.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::check::check;
use crate::common::child::{self, Child, Part, say};
use crate::common::*;
use sprag_lifecycle::{ExecutionId, ExecutionStatus, Policy, RunId};
use sprag_store::testing::Table;
use sprag_store::{Claimer, ExecutionRow, Row, RunRow, SCHEMA_VERSION, Store, mix};
use tokio::task::JoinSet;

#[test]
fn child_role() {
    let Some(Part { role, folder, given }) = child::part() else { return };
    if role == "open" {
        say("opening");
        drop(Store::open(&folder).unwrap());
        return say("opened");
    }
    let store = Store::open(&folder).unwrap();
    runtime().block_on(async {
        match role.as_str() {
            "claim" => claim_telling(&store, given).await,
            "work" => work_telling(&store, given).await,
            other => panic!("no role {other}"),
        }
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn text(id: ExecutionId) -> String {
    format!("{} {} {}", id.run.to_i64(), id.step, id.attempt)
}

fn numbers(text: &str) -> Vec<i64> {
    text.split(' ').map(|number| number.parse().unwrap()).collect()
}

fn execution(numbers: &[i64]) -> ExecutionId {
    ExecutionId { run: RunId::from_i64(numbers[0]), step: numbers[1] as u32, attempt: numbers[2] as u32 }
}

/// Claims one after the other, each under a name of its own; tells before and after.
async fn claim_telling(store: &Store, worker: i64) {
    for n in 1..10_000 {
        let nonce = worker * 10_000 + n;
        say(format_args!("try {nonce}"));
        let got = store.claims().claim(Claimer { nonce, ..claimer(worker) }, 1).await.unwrap();
        let Some(one) = got.first() else { return };
        say(format_args!("got {nonce} {}", text(one.lease.execution)));
    }
}

#[test]
fn c05_a_claim_that_a_kill_cut_short_is_durable_or_never_happened() {
    const ROUNDS: i64 = 40;
    const MOST_CLAIMS: u64 = 20;
    const TASKS: usize = 4_000;
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let run = runtime().block_on(create(&store, &graph(&vec![&[][..]; TASKS], |_| Policy::default())));
    // While no other process has the file open, the process that opens it after a kill has to recover it.
    drop(store);
    let (mut tried, mut got) = (BTreeSet::new(), BTreeMap::new());
    for round in 0..ROUNDS {
        let pair: Vec<Child> = [2 * round + 1, 2 * round + 2]
            .map(|worker| Child::start("kills::claim", folder.path(), worker))
            .into();
        for (child, worker) in pair.into_iter().zip(1u64..) {
            let enough = 1 + mix(round as u64 * 2 + worker) % (2 * MOST_CLAIMS);
            let mut said: Vec<String> = (0..enough).filter_map(|_| child.line()).collect();
            said.extend(child.kill());
            for line in said {
                match line.split_once(' ') {
                    Some(("try", nonce)) => drop(tried.insert(nonce.parse::<i64>().unwrap())),
                    Some(("got", what)) => {
                        let what = numbers(what);
                        assert_eq!(got.insert(what[0], execution(&what[1..])), None, "claimed once");
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    let store = Store::open(folder.path()).unwrap();
    let rows = look(&store, |db| db.executions(run));
    let mut held: BTreeMap<i64, ExecutionId> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.status() != ExecutionStatus::Scheduled) {
        assert_eq!((row.status(), row.owner), (ExecutionStatus::Running, Some(row.nonce / 10_000)));
        assert_eq!(held.insert(row.nonce, row.id), None, "one claim, one execution");
    }
    assert!(got.len() >= ROUNDS as usize, "{} claims were answered", got.len());
    for (nonce, execution) in &got {
        assert_eq!(held.get(nonce), Some(execution), "an answered claim is there");
    }
    assert!(held.keys().all(|nonce| tried.contains(nonce)), "nobody else claimed");
    let unanswered = held.len() - got.len();
    println!("figure: kill -9, claims: {} answered, {unanswered} made but not answered", got.len());
    check(&store, 0);
}

/// Runs four callers that create and execute runs; each reports its answers.
async fn work_telling(store: &Store, worker: i64) {
    const CALLERS: i64 = 4;
    const MOST_RUNS: u64 = 2_000;
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let store = store.clone();
        callers.spawn(async move {
            for n in 0..MOST_RUNS {
                let run = create(&store, &sequence(3)).await;
                say(format_args!("created {} 0 0", run.to_i64()));
                if mix(n ^ (worker + caller) as u64).is_multiple_of(8) {
                    let outcome = store.person().cancel_run(run).await.unwrap();
                    say(format_args!("cancelled {} {} 0", run.to_i64(), i64::from(outcome.is_applied())));
                }
                let mut held = store.claims().claim(claimer(worker), 1).await.unwrap().pop();
                while let Some(one) = held {
                    let end = store.worker(one.lease).finish(well(), Some(claimer(worker))).await.unwrap();
                    if end.outcome.is_applied() {
                        say(format_args!("finished {}", text(one.lease.execution)));
                    }
                    held = end.next;
                }
            }
        });
    }
    while let Some(caller) = callers.join_next().await {
        caller.unwrap();
    }
}

/// Asserts that a change that a process was told of is in the store.
fn expect_there(store: &Store, line: &str) {
    let (what, which) = line.split_once(' ').unwrap();
    let which = numbers(which);
    look(store, |db| {
        let run = Table::<RunRow>::load(db, RunId::from_i64(which[0]))?;
        let run = run.unwrap_or_else(|| panic!("{line}: the run is gone"));
        match what {
            "created" => {}
            "cancelled" => {
                let ended = run.status().is_terminal() || run.status().to_string() == "cancelling";
                assert!(ended, "{line}: the run is {}", run.status());
            }
            "finished" => {
                let row = Table::<ExecutionRow>::load(db, execution(&which))?;
                assert_eq!(row.map(|row| row.status()), Some(ExecutionStatus::Completed), "{line}");
            }
            other => panic!("{other}"),
        }
        Ok(())
    });
}

#[test]
fn killed_writers_lose_nothing_acknowledged_and_leave_nothing_half_done() {
    const ROUNDS: u64 = 100;
    const MOST_ANSWERS: u64 = 60;
    let folder = tempfile::tempdir().unwrap();
    let (mut checked, mut answers) = (0, 0);
    for round in 0..ROUNDS {
        let pair = [1, 2].map(|n| Child::start("kills::work", folder.path(), (2 * round + n) as i64));
        let mut said = Vec::new();
        for (child, n) in pair.into_iter().zip(0..) {
            let enough = 1 + mix(round * 2 + n) % MOST_ANSWERS;
            said.extend((0..enough).filter_map(|_| child.line()));
            said.extend(child.kill());
        }
        // Every process is gone: the next one opens the file in this state.
        let store = Store::open(folder.path()).unwrap();
        said.iter().for_each(|line| expect_there(&store, line));
        checked = check(&store, checked);
        answers += said.len();
    }
    println!("figure: kill -9, pipelines: {ROUNDS} kills, {answers} answers, {checked} journal entries");
    assert!(answers >= ROUNDS as usize);
}

#[test]
fn a_kill_in_the_middle_of_the_first_opening_is_harmless() {
    const ROUNDS: u64 = 30;
    let mut cut_short = 0;
    for round in 0..ROUNDS {
        let folder = tempfile::tempdir().unwrap();
        let pair = [1, 2].map(|n| Child::start("kills::open", folder.path(), n));
        for child in &pair {
            child.expect("opening");
        }
        // The time that opening takes is spent in spinning, a little more in each round.
        for n in 0..round * round * 10_000 {
            std::hint::black_box(mix(n));
        }
        for child in pair {
            cut_short += usize::from(!child.kill().contains(&"opened".to_owned()));
        }
        let store = Store::open(folder.path()).unwrap();
        let run = runtime().block_on(create(&store, &sequence(1)));
        assert_eq!(status(&store, run), "running", "schema version {SCHEMA_VERSION} is whole");
    }
    println!("figure: kill -9, opening: {cut_short} of {} openings were cut short", 2 * ROUNDS);
}
