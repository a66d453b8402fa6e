//! Separate processes on one SQLite file and on one PostgreSQL database, through the store's ordinary interface.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::check::check;
use crate::common::child::{self, Child, Part, hear, say, start_together};
use crate::common::*;
use sprag_lifecycle::{
    Concurrency, ExecutionId, ExecutionStatus, OnConflict, Policy, RunId, RunStatus, StepStatus,
};
use sprag_store::testing::{RawStore, Table, ops};
use sprag_store::{Clock, Lease, NewRun, QueueRow, Row, RunRow, StepRow, Store, System, Topic};
use tokio::task::JoinSet;

#[test]
fn child_role() {
    let Some(Part { role, folder, given }) = child::part() else { return };
    let store = open_shared(&folder);
    runtime().block_on(async {
        match role.as_str() {
            "claim_all" => claim_all(&store, given).await,
            "claim_and_finish" => claim_and_finish(&store, given).await,
            "heal" => heal(&store).await,
            "finish_told" => finish_told(&store).await,
            "schedule" => schedule(&store, given).await,
            "wait_for_work" => wait_for_work(&store).await,
            other => panic!("no role {other}"),
        }
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn nightly() -> bool {
    std::env::var_os("SPRAG_NIGHTLY").is_some()
}

/// Returns a plan of `n` steps without needs, so that all claimers meet in one run's row.
fn roots(n: usize) -> Arc<sprag_lifecycle::Plan> {
    graph(&vec![&[][..]; n], |_| Policy::default())
}

fn named_lease(lease: Lease) -> String {
    let ExecutionId { run, step, attempt } = lease.execution;
    format!("{} {step} {attempt} {}", run.to_i64(), lease.fence)
}

fn lease_named(text: &str) -> Lease {
    let mut numbers = text.split(' ').map(|number| number.parse::<i64>().unwrap());
    let mut next = || numbers.next().unwrap();
    let (run, step, attempt, fence) = (RunId::from_i64(next()), next() as u32, next() as u32, next() as u32);
    Lease { execution: ExecutionId { run, step, attempt }, fence }
}

/// Claims until nothing is left, and reports each claim.
async fn claim_all(store: &Store, worker: i64) {
    child::ready();
    loop {
        let limit = 1 + (worker % 3) as usize;
        let got = store.claims().claim(claimer(worker), limit).await.unwrap();
        if got.is_empty() {
            return;
        }
        got.iter().for_each(|one| say(named_lease(one.lease)));
    }
}

#[test]
fn c01_many_processes_claim_each_task_exactly_once() {
    on_shared_stores(|place| {
        let (processes, tasks) = if nightly() { (64, 10_000) } else { (16, 2_000) };
        let store = open_shared(place);
        let run = runtime().block_on(create(&store, &roots(tasks)));
        let mut owners: BTreeMap<Lease, Vec<i64>> = BTreeMap::new();
        for (child, worker) in start_together(processes, "processes::claim_all", place).into_iter().zip(1..) {
            for line in child.end() {
                owners.entry(lease_named(&line)).or_default().push(worker);
            }
        }
        assert_eq!(owners.len(), tasks, "every task was claimed");
        let rows = look(&store, |db| db.executions(run));
        assert_eq!(rows.len(), tasks);
        for row in rows {
            let lease = Lease { execution: row.id, fence: row.fence };
            assert_eq!(row.status(), ExecutionStatus::Running);
            assert_eq!(owners.get(&lease), Some(&vec![row.owner.unwrap()]), "{lease:?}");
        }
        let received = journal(&store).iter().filter(|entry| entry.event == "handoff.received").count();
        assert_eq!(received, tasks);
        check(&store, 0);
    });
}

/// Runs eight callers that claim and finish executions; each continues with the next step of its run.
async fn claim_and_finish(store: &Store, worker: i64) {
    const CALLERS: usize = 8;
    child::ready();
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let store = store.clone();
        callers.spawn(async move {
            let mut done = 0;
            while let Some(first) = store.claims().claim(claimer(worker), 1).await.unwrap().pop() {
                let mut held = Some(first);
                while let Some(one) = held {
                    let end = store.worker(one.lease).finish(well(), Some(claimer(worker))).await.unwrap();
                    assert!(end.outcome.is_applied(), "{:?}", end.outcome);
                    held = end.next;
                    done += 1;
                }
            }
            done
        });
    }
    let mut done = 0;
    while let Some(caller) = callers.join_next().await {
        done += caller.unwrap();
    }
    say(done);
}

/// Lets `n` processes finish everything. Returns how many executions they finished.
fn finish_everything(n: i64, folder: &Path) -> usize {
    let children = start_together(n, "processes::claim_and_finish", folder);
    children.into_iter().map(|child| child.end()[0].parse::<usize>().unwrap()).sum()
}

#[test]
fn c04_claims_and_completions_at_once_lose_nothing() {
    on_shared_stores(|place| {
        const TASKS: usize = 2_000;
        let store = open_shared(place);
        let run = runtime().block_on(create(&store, &roots(TASKS)));
        assert_eq!(finish_everything(8, place), TASKS);
        assert_eq!(status(&store, run), "completed");
        for event in ["handoff.received", "execution.completed", "step.succeeded"] {
            assert_eq!(journal(&store).iter().filter(|entry| entry.event == event).count(), TASKS, "{event}");
        }
        check(&store, 0);
    });
}

#[test]
fn p03_read_as_waiting_raced_to_running_the_cas_changes_no_row() {
    on_shared_stores(|place| {
        let (slow, fast) = (open_shared(place), open_shared(place));
        runtime().block_on(async {
            let run = create(&slow, &sequence(2)).await;
            let stale = look(&slow, |db| Table::<StepRow>::load(db, (run, 1))).unwrap();
            assert_eq!(stale.status(), StepStatus::Waiting);
            let first = claim(&fast, 1).await;
            let end = fast.worker(first.lease).finish(well(), Some(claimer(1))).await.unwrap();
            assert!(end.next.is_some());
            let before = look(&slow, |db| Ok((db.steps(run)?, db.last_seq()?)));
            assert_eq!(before.0[1].status(), StepStatus::Running);
            let late = slow
                .write(move |session| {
                    let mut readied = stale.clone();
                    Row::set_status(&mut readied, StepStatus::Pending, sprag_store::testing::writer_token());
                    Row::touch(&mut readied, sprag_store::testing::writer_token());
                    Table::<StepRow>::update(session.db(), &readied, (stale.status(), stale.version()))
                })
                .await;
            assert!(!late.unwrap(), "the compare-and-set loses");
            assert_eq!(look(&slow, |db| Ok((db.steps(run)?, db.last_seq()?))), before, "no row, no event");
        });
    });
}

#[test]
fn p03_a_walk_that_loses_a_step_undoes_all_of_itself() {
    on_shared_stores(|place| {
        let store = open_shared(place);
        runtime().block_on(async {
            let run = create(&store, &sequence(2)).await;
            let first = claim(&store, 1).await;
            let before = look(&store, |db| Ok((db.steps(run)?, db.executions(run)?, db.last_seq()?)));
            let walked = store
                .write(move |session| {
                    let end = ops::finish(session, first.lease, &well(), None)?;
                    let mut other = Table::<StepRow>::load(session.db(), (run, 1))?.expect("it is there");
                    let was = (other.status(), other.version());
                    Row::set_status(&mut other, StepStatus::Running, sprag_store::testing::writer_token());
                    Row::touch(&mut other, sprag_store::testing::writer_token());
                    assert!(Table::<StepRow>::update(session.db(), &other, was)?);
                    Ok(end.outcome)
                })
                .await;
            assert!(matches!(walked, Err(sprag_store::Error::Conflict { entity: "step", .. })), "{walked:?}");
            assert_eq!(look(&store, |db| Ok((db.steps(run)?, db.executions(run)?, db.last_seq()?))), before);
        });
    });
}

const HEALED_RUNS: usize = 40;

/// Creates runs whose steps are all done, and whose writer died before it could complete them.
async fn half_done_runs(store: &Store) -> (Vec<RunId>, u64) {
    for _ in 0..HEALED_RUNS {
        create(store, &sequence(1)).await;
    }
    let mut runs = Vec::new();
    while let Some(held) = store.claims().claim(claimer(1), 1).await.unwrap().pop() {
        assert!(finish(store, &held, well()).await.outcome.is_applied());
        runs.push(held.lease.execution.run);
    }
    let half = runs.clone();
    store.write(move |session| half.iter().try_for_each(|run| unfinish(session.db(), *run))).await.unwrap();
    (runs, look(store, |db| db.last_seq()))
}

fn unfinish(db: &mut dyn sprag_store::testing::Backend, run: RunId) -> sprag_store::Result<()> {
    let mut row = Table::<RunRow>::load(db, run)?.expect("it is there");
    let was = (row.status(), row.version());
    row.ended_ms = None;
    Row::set_status(&mut row, RunStatus::Running, sprag_store::testing::writer_token());
    Row::touch(&mut row, sprag_store::testing::writer_token());
    assert!(Table::<RunRow>::update(db, &row, was)?);
    Ok(())
}

fn expect_one_success_each(store: &Store, runs: &[RunId], since: u64) {
    let told = look(store, |db| db.journal(since, None, 1_000_000));
    let mut healed: Vec<RunId> = told.iter().filter_map(|entry| entry.place.run).collect();
    healed.sort_unstable();
    let mut runs = runs.to_vec();
    runs.sort_unstable();
    assert_eq!(healed, runs, "one entry for each run");
    assert!(told.iter().all(|entry| entry.event == "run.succeeded"));
    assert!(runs.iter().all(|run| status(store, *run) == "completed"));
}

/// Runs callers of one process that all heal every live run at once.
async fn heal_all(store: &Store, runs: &[RunId], callers: usize) {
    let mut healing = JoinSet::new();
    for run in runs {
        for _ in 0..callers {
            let (store, run) = (store.clone(), *run);
            healing.spawn(async move { store.executor().heal_run(run).await });
        }
    }
    while let Some(healed) = healing.join_next().await {
        healed.unwrap().unwrap();
    }
}

async fn heal(store: &Store) {
    let runs = look(store, |db| db.live_runs(None, 10_000));
    assert_eq!(runs.len(), HEALED_RUNS);
    child::ready();
    heal_all(store, &runs, 4).await;
}

#[test]
fn p04_many_callers_in_one_process_complete_a_run_once() {
    on_shared_stores(|place| {
        let store = open_shared(place);
        runtime().block_on(async {
            let (runs, since) = half_done_runs(&store).await;
            heal_all(&store, &runs, 32).await;
            expect_one_success_each(&store, &runs, since);
        });
    });
}

#[test]
fn p04_eight_processes_complete_a_run_once() {
    on_shared_stores(|place| {
        let store = open_shared(place);
        let (runs, since) = runtime().block_on(half_done_runs(&store));
        start_together(8, "processes::heal", place).into_iter().for_each(|child| drop(child.end()));
        expect_one_success_each(&store, &runs, since);
    });
}

#[test]
fn p08_no_step_is_ever_ahead_of_an_earlier_one() {
    on_shared_stores(|place| {
        const RUNS: usize = 10_000;
        const STEPS: u32 = 5;
        const TOGETHER: usize = 500;
        let store = open_shared(place);
        let plan = sequence(STEPS as usize);
        let hash = ops::plan_hash(&plan);
        let started_ms = System.boot_ms();
        runtime().block_on(async {
            for first in (0..RUNS).step_by(TOGETHER) {
                let plan = Arc::clone(&plan);
                let all = move |session: &mut sprag_store::testing::Session<'_>| {
                    (first..first + TOGETHER).try_for_each(|n| {
                        let new = NewRun::new(RunId::from_i64(1 + n as i64), Arc::clone(&plan));
                        ops::create_run(session, &new, hash).map(drop)
                    })
                };
                store.write(all).await.unwrap();
            }
        });
        assert_eq!(finish_everything(2, place), RUNS * STEPS as usize);
        println!("{RUNS} runs took {} ms", System.boot_ms() - started_ms);
        let mut next: BTreeMap<RunId, (u32, bool)> = BTreeMap::new();
        for entry in journal(&store).iter().filter(|entry| entry.entity == "step") {
            let (step, running) = next.entry(entry.place.run.unwrap()).or_insert((0, false));
            assert_eq!(entry.place.step, Some(*step), "{entry:?}: only the next step moves");
            match entry.event {
                "step.ready" => assert!(!*running),
                "step.started" => assert!(!std::mem::replace(running, true), "{entry:?}: once"),
                "step.succeeded" => {
                    assert!(std::mem::replace(running, false), "{entry:?}: after its start");
                    *step += 1;
                }
                other => panic!("{other}"),
            }
        }
        assert_eq!(next.len(), RUNS);
        assert!(next.values().all(|state| *state == (STEPS, false)));
        let limit_ms = 60_000;
        assert!(System.boot_ms() - started_ms < limit_ms, "{RUNS} runs take less than {limit_ms} ms");
    });
}

const NARROW: &str = "narrow";
const NARROW_LIMIT: u32 = 3;
const GROUP: &str = "few at once";
const GROUP_LIMIT: u32 = 5;
const RUNS_OF_EACH: usize = 25;

/// Makes runs that need a place in a group and in a queue, and does for all runs what executors and workers do.
async fn schedule(store: &Store, worker: i64) {
    let mut plan = (*sequence(2)).clone();
    plan.steps.iter_mut().for_each(|step| step.queue = NARROW.into());
    let on_conflict = OnConflict::Queue;
    plan.concurrency = Some(Concurrency { group: GROUP.into(), limit: GROUP_LIMIT, on_conflict });
    let plan = Arc::new(plan);
    let claimer = ops::Claimer { queues: vec![NARROW.into()], ..claimer(worker) };
    child::ready();
    for _ in 0..RUNS_OF_EACH {
        create(store, &plan).await;
    }
    // Bounded: every round of all processes together ends something, or nothing is left.
    for _ in 0..100_000 {
        if look(store, |db| db.live_runs(None, 1)).is_empty() {
            return;
        }
        store.executor().fill_group(GROUP.into(), Vec::new()).await.unwrap();
        store.executor().fill_queue(NARROW.into(), 10).await.unwrap();
        for held in store.claims().claim(claimer.clone(), 2).await.unwrap() {
            assert!(finish(store, &held, well()).await.outcome.is_applied());
        }
    }
    panic!("the runs do not end");
}

#[test]
fn c10_limits_hold_with_eight_schedulers_at_once() {
    const PROCESSES: i64 = 8;
    on_shared_stores(|place| {
        let store = open_shared(place);
        let queue = QueueRow { name: NARROW.into(), limit: Some(NARROW_LIMIT), held: false };
        runtime().block_on(store.executor().set_queue(queue)).unwrap();
        start_together(PROCESSES, "processes::schedule", place)
            .into_iter()
            .for_each(|child| drop(child.end()));
        let (mut out, mut started) = (BTreeSet::new(), BTreeSet::new());
        let (mut most_out, mut most_started) = (0, 0);
        for entry in journal(&store) {
            match entry.entity {
                "execution" => match entry.to {
                    "scheduled" | "running" => drop(out.insert(entry.place)),
                    _ => drop(out.remove(&entry.place)),
                },
                "run" => match entry.to {
                    "running" => drop(started.insert(entry.place)),
                    _ => drop(started.remove(&entry.place)),
                },
                _ => {}
            }
            (most_out, most_started) = (most_out.max(out.len()), most_started.max(started.len()));
        }
        assert_eq!(
            most_out, NARROW_LIMIT as usize,
            "the queue's places were used, and no more than there are"
        );
        assert_eq!(
            most_started, GROUP_LIMIT as usize,
            "the group's places were used, and no more than there are"
        );
        let ended = look(&store, |db| db.runs(None, &[RunStatus::Completed], 10_000)).len();
        assert_eq!(ended, PROCESSES as usize * RUNS_OF_EACH);
        check(&store, 0);
    });
}

/// Finishes the executions that the parent names.
async fn finish_told(store: &Store) {
    while let Some(line) = hear() {
        let end = store.worker(lease_named(&line)).finish(well(), None).await.unwrap();
        say(end.outcome.is_applied());
    }
}

#[test]
fn p17_two_needs_completed_at_once_in_two_processes_ready_the_third_once() {
    on_shared_stores(|place| {
        const ROUNDS: usize = 200;
        let store = open_shared(place);
        let mut children: Vec<Child> =
            (1..=2).map(|worker| Child::start("processes::finish_told", place, worker)).collect();
        let plan = graph(&[&[], &[], &[0, 1]], |_| Policy::default());
        runtime().block_on(async {
            for _ in 0..ROUNDS {
                let run = create(&store, &plan).await;
                let mut new = store.claims().claim(claimer(9), 10).await.unwrap();
                new.retain(|one| one.lease.execution.run == run);
                assert_eq!(new.len(), 2);
                for (child, held) in children.iter_mut().zip(&new) {
                    child.tell(&named_lease(held.lease));
                }
                children.iter().for_each(|child| child.expect("true"));
                assert_eq!(steps(&store, run), ["done", "done", "pending"]);
                let told = look(&store, |db| db.journal(0, Some(run), 1_000));
                let third = |entry: &&sprag_store::JournalEntry| {
                    entry.event == "step.ready" && entry.place.step == Some(2)
                };
                assert_eq!(told.iter().filter(third).count(), 1);
            }
        });
        children.into_iter().for_each(|child| drop(child.end()));
        check(&store, 0);
    });
}

const LONGEST_WAIT: Duration = Duration::from_secs(30);

fn cpu_ms() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}

/// Waits for work, and claims it when woken; then once more for nothing, and tells what that cost.
async fn wait_for_work(store: &Store) {
    let work = store.subscribe(vec![Topic::Queue("default".into())]);
    while let Some(line) = hear() {
        if line == "idle" {
            let nothing = store.subscribe(vec![Topic::Queue("nothing".into())]);
            let before_ms = cpu_ms();
            nothing.wait(Duration::from_secs(2)).await;
            say(cpu_ms() - before_ms);
            continue;
        }
        say("waiting");
        loop {
            work.wait(LONGEST_WAIT).await;
            // A wake-up is a hint: the last round's may still have been on its way.
            if !store.claims().claim(claimer(1), 1).await.unwrap().is_empty() {
                break;
            }
        }
        say("claimed");
    }
}

#[test]
fn a_waiting_process_is_woken_by_another_ones_commit_and_costs_nothing() {
    on_shared_stores(|place| {
        let store = open_shared(place);
        let mut child = Child::start("processes::wait_for_work", place, 1);
        runtime().block_on(async {
            for round in 0..20 {
                child.tell("wait");
                child.expect("waiting");
                let before_ms = System.boot_ms();
                create(&store, &sequence(1)).await;
                child.expect("claimed");
                let took_ms = System.boot_ms() - before_ms;
                assert!(took_ms < 1_000, "round {round}: woken after {took_ms} ms");
            }
        });
        child.tell("idle");
        let cpu_ms: i64 = child.line().unwrap().parse().unwrap();
        assert!(cpu_ms <= 20, "two seconds of waiting cost {cpu_ms} ms of CPU time");
        child.end();
    });
}

/// Folder times are coarse: a bell hung in the same tick as the last look must be seen all the same.
#[test]
fn a_bell_hung_right_after_a_commit_elsewhere_is_rung() {
    on_shared_stores(|place| {
        let (teller, waiter) = (open_shared(place), open_shared(place));
        runtime().block_on(async {
            for round in 0..100 {
                let mut plan = (*sequence(1)).clone();
                plan.steps[0].queue = format!("q{round}");
                let early = waiter.subscribe(vec![Topic::Queue(format!("early{round}").into())]);
                create(&teller, &sequence(1)).await;
                let waiting = waiter.subscribe(vec![Topic::Queue(format!("q{round}").into())]);
                let before_ms = System.boot_ms();
                create(&teller, &Arc::new(plan)).await;
                waiting.wait(Duration::from_secs(5)).await;
                let took_ms = System.boot_ms() - before_ms;
                assert!(took_ms < 1_000, "round {round}: woken after {took_ms} ms");
                drop(early);
            }
        });
    });
}
