//! Boards on every store: tasks that are added while the run is live.

use std::sync::Arc;

use crate::common::*;
use sprag_lifecycle::{Backoff, Growth, Plan, PlanStep, Policy, RunId, Spread, StepNo, WorkKind};
use sprag_store::testing::Table;
use sprag_store::{
    Added, Assignment, Claimer, Created, Ending, Error, Got, Lease, NewBoard, NewTask, NewWorker, Row,
    RunRow, Store, TaskMoved,
};

fn board_plan(policy: Policy) -> Arc<Plan> {
    let step = PlanStep {
        policy,
        work: WorkKind::Task,
        spread: Some(Spread { open: true, ..Spread::default() }),
        ..PlanStep::new("task", Vec::new())
    };
    Arc::new(Plan::new("board", vec![step]).unwrap())
}

async fn board_with(store: &Store, name: &str, policy: Policy) -> RunId {
    let mut run = store.person().new_run(board_plan(policy));
    run.open = true;
    let text: Arc<str> = "".into();
    let new = NewBoard { run, name: name.into(), goal: text.clone(), plan: text, queue: "default".into() };
    match store.person().create_board(new).await.unwrap() {
        Created::New(run) => run,
        other => panic!("{other:?}"),
    }
}

async fn board(store: &Store) -> RunId {
    board_with(store, "b", Policy::default()).await
}

fn task(needs: &[&str]) -> NewTask {
    NewTask {
        needs: needs.iter().map(|need| (*need).into()).collect(),
        value: "{}".into(),
        ..NewTask::default()
    }
}

fn called(key: &str, needs: &[&str]) -> NewTask {
    NewTask { key: Some(key.into()), ..task(needs) }
}

async fn add(store: &Store, board: RunId, tasks: &[NewTask]) -> Vec<StepNo> {
    numbers(&store.person().add_tasks(board, tasks.to_vec()).await.unwrap())
}

fn numbers(added: &[Added]) -> Vec<StepNo> {
    added.iter().map(|added| added.no).collect()
}

async fn take(store: &Store) -> Option<Assignment> {
    store.claims().claim(claimer(1), 1).await.unwrap().pop()
}

async fn take_task(store: &Store, no: StepNo) -> Assignment {
    let taken = take(store).await.expect("something can be claimed");
    assert_eq!(taken.lease.execution.step, no);
    taken
}

/// Asserts that an operation was refused with a message that contains this.
fn refused<T: std::fmt::Debug>(done: Result<T, Error>, words: &str) {
    match done {
        Err(Error::Refused { why, .. } | Error::Invalid { why, .. }) => assert!(why.contains(words), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn c03_needs_then_priority_then_first_in_first_out() {
    on_every_store(|store, _| async move {
        let board = board(&store).await;
        let urgent = NewTask { value: r#"{"priority":5}"#.into(), ..task(&[]) };
        add(&store, board, &[task(&[]), task(&["1"]), urgent, task(&[])]).await;
        assert_eq!(steps(&store, board), ["running", "pending", "waiting", "pending", "pending"]);
        let order = [3, 1, 4];
        let mut taken = Vec::new();
        for no in order {
            taken.push(take_task(&store, no).await);
        }
        assert!(take(&store).await.is_none(), "the other one waits for the first");
        let _ = finish(&store, &taken[1], well()).await;
        let _ = take_task(&store, 2).await;
    });
}

#[test]
fn c03_a_task_waits_in_a_queue_of_its_own() {
    on_every_store(|store, _| async move {
        let board = board(&store).await;
        let elsewhere = NewTask { value: r#"{"queue":"reviewers"}"#.into(), ..task(&[]) };
        add(&store, board, &[elsewhere]).await;
        assert!(take(&store).await.is_none());
        let mut reviewer = claimer(2);
        reviewer.queues = vec!["reviewers".into()];
        assert_eq!(store.claims().claim(reviewer, 1).await.unwrap().len(), 1);
    });
}

#[test]
fn c07_a_failed_need_skips_or_not_and_the_board_ends() {
    on_every_store(|store, _| async move {
        let board = board(&store).await;
        let anyway = NewTask { tolerant: true, ..task(&["1"]) };
        add(&store, board, &[task(&[]), task(&["1"]), task(&["2"]), anyway]).await;
        let first = take_task(&store, 1).await;
        let _ = finish(&store, &first, badly()).await;
        assert_eq!(steps(&store, board), ["running", "failed", "skipped", "skipped", "pending"]);
        let other = take_task(&store, 4).await;
        let _ = finish(&store, &other, well()).await;
        assert_eq!(status(&store, board), "running", "it is open");
        store.person().close_board(board, false).await.unwrap();
        assert_eq!(status(&store, board), "failed");
    });
}

#[test]
fn c07_a_closed_board_ends_with_its_last_task_and_takes_no_more() {
    on_every_store(|store, _| async move {
        let board = board(&store).await;
        add(&store, board, &[task(&[])]).await;
        store.person().close_board(board, false).await.unwrap();
        assert_eq!(status(&store, board), "running");
        refused(store.person().add_tasks(board, vec![task(&[])]).await, "closed");
        refused(store.person().close_board(board, false).await, "closed");
        let last = take_task(&store, 1).await;
        let _ = finish(&store, &last, well()).await;
        assert_eq!(status(&store, board), "completed");
        let empty = board_with(&store, "empty", Policy::default()).await;
        store.person().close_board(empty, false).await.unwrap();
        assert_eq!(status(&store, empty), "completed", "an empty board completes");
    });
}

#[test]
fn c06_a_cancelled_task_stays_with_its_holder_until_it_is_released() {
    on_every_store(|store, _| async move {
        let board = board(&store).await;
        add(&store, board, &[task(&[]), task(&["1"]), task(&[])]).await;
        let first = take_task(&store, 1).await;
        assert_eq!(store.person().cancel_task(board, 1).await.unwrap(), TaskMoved::Moved);
        assert_eq!(steps(&store, board), ["running", "running", "waiting", "pending"]);
        let _ = finish(&store, &first, Ending::Cancelled).await;
        assert_eq!(steps(&store, board), ["running", "cancelled", "skipped", "pending"]);
        assert_eq!(store.person().cancel_task(board, 3).await.unwrap(), TaskMoved::Moved);
        assert_eq!(steps(&store, board)[3], "cancelled");
        assert!(matches!(store.person().cancel_task(board, 3).await.unwrap(), TaskMoved::Already(_)));
        refused(store.person().cancel_task(board, 0).await, "no task 0");
        refused(store.person().cancel_task(board, 9).await, "no task 9");
        store.person().close_board(board, false).await.unwrap();
        assert_eq!(status(&store, board), "completed", "what was taken back was not wanted any more");
    });
}

#[test]
fn p15_a_retried_task_restores_the_tasks_that_it_made_skip() {
    on_every_store(|store, _| async move {
        let board = board(&store).await;
        add(&store, board, &[task(&[]), task(&["1"]), task(&["2"]), task(&["2", "3"])]).await;
        let first = take_task(&store, 1).await;
        let _ = finish(&store, &first, badly()).await;
        assert_eq!(steps(&store, board), ["running", "failed", "skipped", "skipped", "skipped"]);
        assert_eq!(store.person().retry_task(board, 1).await.unwrap(), TaskMoved::Moved);
        assert_eq!(steps(&store, board), ["running", "pending", "waiting", "waiting", "waiting"]);
        assert!(matches!(store.person().retry_task(board, 1).await.unwrap(), TaskMoved::Already(_)));
        for no in 1..=4 {
            store.executor().heal_run(board).await.unwrap();
            let taken = take_task(&store, no).await;
            assert!(take(&store).await.is_none());
            let _ = finish(&store, &taken, well()).await;
        }
        store.person().close_board(board, false).await.unwrap();
        assert_eq!(status(&store, board), "completed");
        refused(store.person().retry_task(board, 1).await, "ended");
    });
}

#[test]
fn c08_the_wait_between_two_tries_of_a_task_is_kept() {
    on_every_store(|store, clock| async move {
        let backoff = Backoff { growth: Growth::Fixed, delay_ms: 5_000, max_delay_ms: 0, jitter_percent: 0 };
        let policy = Policy { attempts: 2, backoff, ..Policy::default() };
        let board = board_with(&store, "slow", policy).await;
        add(&store, board, &[task(&[])]).await;
        let first = take_task(&store, 1).await;
        let _ = finish(&store, &first, badly()).await;
        assert!(take(&store).await.is_none());
        clock.advance(5_001);
        let due = look(&store, |db| {
            let now = db.now().steady_ms;
            db.timers_due(now, 10)
        });
        for timer in due {
            store.executor().schedule(timer.execution).await.unwrap();
        }
        let again = take_task(&store, 1).await;
        assert_eq!(again.lease.execution.attempt, 2);
        assert!(again.feedback.is_some());
    });
}

#[test]
fn i25_a_key_names_one_task_and_a_cycle_is_refused() {
    on_every_store(|store, _| async move {
        let board = board(&store).await;
        assert_eq!(add(&store, board, &[called("a", &["b"]), called("b", &[])]).await, [1, 2]);
        assert_eq!(steps(&store, board), ["running", "waiting", "pending"]);
        let again =
            store.person().add_tasks(board, vec![called("c", &["a"]), called("a", &[])]).await.unwrap();
        assert_eq!(again, [Added { no: 3, existing: false }, Added { no: 1, existing: true }]);
        let circle = vec![called("x", &["y"]), called("y", &["z"]), called("z", &["x"])];
        refused(store.person().add_tasks(board, circle).await, "cycle");
        refused(store.person().add_tasks(board, vec![called("x", &["x"])]).await, "cycle");
        refused(store.person().add_tasks(board, vec![called("x", &[]), called("x", &[])]).await, "two tasks");
        refused(store.person().add_tasks(board, vec![task(&["nobody"])]).await, "nobody");
        refused(store.person().add_tasks(board, vec![task(&["0"])]).await, "\"0\"");
        refused(store.person().add_tasks(board, vec![task(&["5"])]).await, "\"5\"");
        assert_eq!(steps(&store, board).len(), 4, "nothing of what was refused stays");
        assert_eq!(add(&store, board, &[called("x", &["3"])]).await, [4]);
    });
}

#[test]
fn a_name_means_one_open_board() {
    on_every_store(|store, _| async move {
        let first = board(&store).await;
        let mut run = store.person().new_run(board_plan(Policy::default()));
        run.open = true;
        let text: Arc<str> = "".into();
        let again =
            NewBoard { run, name: "b".into(), goal: text.clone(), plan: text, queue: "default".into() };
        refused(store.person().create_board(again).await, "open board");
        let _ = store.person().cancel_run(first).await.unwrap();
        assert_eq!(status(&store, first), "cancelled");
        let second = board(&store).await;
        assert_eq!(look(&store, |db| db.board_called("b")).unwrap().run, second);
        assert_eq!(look(&store, |db| db.boards(false, 10)).len(), 1);
        assert_eq!(look(&store, |db| db.boards(true, 10)).len(), 2);
    });
}

#[test]
fn a_failed_board_is_resumed_with_its_failed_and_skipped_tasks() {
    on_every_store(|store, _| async move {
        let board = board(&store).await;
        add(&store, board, &[task(&[]), task(&["1"]), task(&[])]).await;
        let first = take_task(&store, 1).await;
        let _ = finish(&store, &first, badly()).await;
        let third = take_task(&store, 3).await;
        let _ = finish(&store, &third, well()).await;
        store.person().close_board(board, false).await.unwrap();
        assert_eq!(status(&store, board), "failed");
        store.person().resume_run(board, None).await.unwrap().require_applied().unwrap();
        assert_eq!(steps(&store, board), ["running", "pending", "waiting", "done"]);
        for no in [1, 2] {
            let taken = take_task(&store, no).await;
            let _ = finish(&store, &taken, well()).await;
        }
        assert_eq!(status(&store, board), "completed");
    });
}

#[test]
fn a_resumed_board_keeps_cancelled_tasks_cancelled() {
    on_every_store(|store, _| async move {
        let board = board(&store).await;
        add(&store, board, &[task(&[]), task(&[])]).await;
        let _ = store.person().cancel_task(board, 2).await.unwrap();
        let first = take_task(&store, 1).await;
        let _ = finish(&store, &first, badly()).await;
        store.person().close_board(board, true).await.unwrap();
        store.person().resume_run(board, None).await.unwrap().require_applied().unwrap();
        assert_eq!(steps(&store, board), ["running", "pending", "cancelled"]);
        store.executor().heal_run(board).await.unwrap();
        let first = take_task(&store, 1).await;
        let _ = finish(&store, &first, well()).await;
        assert_eq!(status(&store, board), "completed");
        refused(store.person().rewind_run(board, 0, None).await, "cannot be rewound");
    });
}

#[test]
fn notes_are_read_in_order_by_tag_and_after_a_number() {
    on_every_store(|store, _| async move {
        let board = board(&store).await;
        for (tag, text) in [("api", "one"), ("", "two"), ("api", "three")] {
            store.person().add_note(board, "ada".into(), tag.into(), text.into()).await.unwrap();
        }
        let texts = |tag: Option<&str>, after| {
            let notes = look(&store, |db| db.notes(board, tag, after, 10));
            notes.iter().map(|note| note.text.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(texts(None, 0), ["one", "two", "three"]);
        assert_eq!(texts(Some("api"), 0), ["one", "three"]);
        let first = look(&store, |db| db.notes(board, None, 0, 1))[0].id;
        assert_eq!(texts(None, first), ["two", "three"]);
        let run = create(&store, &sequence(1)).await;
        refused(store.person().add_note(run, "ada".into(), "".into(), "x".into()).await, "not a board");
    });
}

/// Random boards: whatever is added, done, failed, taken back and retried, healing finds nothing to mend, no task
/// begins before what it needs, and the board ends.
#[test]
fn p10_random_boards_need_no_healing_and_end() {
    on_every_store(|store, _| async move {
        for seed in 1..=60_u64 {
            random_board(&store, seed).await;
        }
    });
}

async fn random_board(store: &Store, seed: u64) {
    let mut state = seed;
    let mut draw = move |below: u64| {
        state = sprag_store::mix(state);
        state % below
    };
    let policy = Policy { attempts: 1 + draw(2) as u32, ..Policy::default() };
    let board = board_with(store, &format!("r{seed}"), policy).await;
    let mut tasks: StepNo = 0;
    let mut held: Vec<Assignment> = Vec::new();
    for _ in 0..40 {
        match draw(7) {
            0 | 1 => {
                let mut new = Vec::new();
                for _ in 0..=draw(3) {
                    let needs: Vec<Arc<str>> = (0..draw(3))
                        .filter(|_| tasks > 0)
                        .map(|_| (1 + draw(u64::from(tasks))).to_string().into())
                        .collect();
                    new.push(NewTask { needs, tolerant: draw(3) == 0, value: "{}".into(), key: None });
                }
                tasks += add(store, board, &new).await.len() as StepNo;
            }
            2 | 3 => held.extend(take(store).await),
            4 if !held.is_empty() => {
                let taken = held.swap_remove(draw(held.len() as u64) as usize);
                let ending = if draw(3) == 0 { badly() } else { well() };
                let _ = finish(store, &taken, ending).await;
            }
            5 if tasks > 0 => {
                let _ =
                    store.person().cancel_task(board, 1 + draw(u64::from(tasks)) as StepNo).await.unwrap();
            }
            6 if tasks > 0 => {
                let _ = store.person().retry_task(board, 1 + draw(u64::from(tasks)) as StepNo).await.unwrap();
            }
            _ => {}
        }
        let before = look(store, |db| db.steps(board));
        store.executor().heal_run(board).await.unwrap();
        assert_eq!(before, look(store, |db| db.steps(board)), "seed {seed}: healing found something");
        for step in
            before.iter().filter(|step| matches!(step.status().to_string().as_str(), "pending" | "running"))
        {
            let needs = look(store, |db| db.task_needs(board, step.no));
            for need in needs {
                // One that a person sent back later is waited for by those that had not begun.
                let need = &before[need.item as usize];
                let fine = need.status().is_settled() || need.attempt > 1;
                assert!(fine, "seed {seed}: task {} began before {}", step.no, need.no);
            }
        }
    }
    store.person().close_board(board, false).await.unwrap();
    for _ in 0..1_000 {
        held.extend(take(store).await);
        let Some(taken) = held.pop() else { break };
        let _ = finish(store, &taken, well()).await;
    }
    let row = look(store, |db| Table::<RunRow>::load(db, board)).unwrap();
    assert!(row.status().is_terminal(), "seed {seed}: {row:?}");
}

#[test]
fn c05_a_repeated_claim_gets_the_same_task() {
    on_every_store(|store, _| async move {
        let board = board(&store).await;
        add(&store, board, &[task(&[]), task(&[])]).await;
        let worker = NewWorker {
            id: 7,
            name: "agent".into(),
            process: "".into(),
            queues: "default".into(),
            labels: "".into(),
            slots: 1,
            lease_ms: 60_000,
        };
        let ask = async |nonce| {
            let claimer = Claimer { nonce, ..claimer(7) };
            store.claims().claim_once(claimer, 1, Some(worker.clone())).await.map(Got::one)
        };
        let first = ask(1).await.unwrap().expect("there are two");
        let again = ask(1).await.unwrap().expect("the answer may have been lost");
        assert_eq!(first.lease, again.lease);
        let second = ask(2).await.unwrap().expect("there are two");
        assert_ne!(second.lease.execution, first.lease.execution);
        assert!(ask(3).await.unwrap().is_none(), "and no third");
        finish(&store, &first, well()).await;
        assert!(ask(1).await.unwrap().is_none(), "what has ended is not given again");
    });
}

#[test]
fn a_claimer_is_registered_once_it_gets_something() {
    on_every_store(|store, _| async move {
        let board = board(&store).await;
        let worker = NewWorker {
            id: 7,
            name: "agent".into(),
            process: "".into(),
            queues: "default".into(),
            labels: "".into(),
            slots: 0,
            lease_ms: 60_000,
        };
        let claim = async |worker: NewWorker| {
            store.claims().claim_once(claimer(7), 1, Some(worker)).await.map(Got::one)
        };
        assert!(claim(worker.clone()).await.unwrap().is_none());
        let there = || look(&store, |db| db.workers());
        assert!(there().is_empty(), "{:?}", there());
        add(&store, board, &[task(&[]), task(&[])]).await;
        assert!(claim(worker.clone()).await.unwrap().is_some());
        assert!(claim(NewWorker { queues: "default,other".into(), ..worker }).await.unwrap().is_some());
        assert_eq!(there().iter().map(|row| &*row.queues).collect::<Vec<_>>(), ["default,other"]);
    });
}

#[test]
fn e17_f2_a_repeated_report_of_a_task_is_accepted_and_a_different_one_refused() {
    on_every_store(|store, _| async move {
        let board = board(&store).await;
        add(&store, board, &[task(&[])]).await;
        let held = claim(&store, 7).await;
        let report = |result: &str| Ending::Completed { result: Some(result.into()) };
        let finish = |ending| store.worker(held.lease).finish_by_token(ending);
        let first = finish(report("1")).await.unwrap();
        assert!(first.finished.outcome.is_applied() && !first.before);
        let before = journal(&store);
        assert!(finish(report("1")).await.unwrap().before, "the answer may have been lost");
        for ending in [report("2"), Ending::Failed { result: Some("1".into()), retriable: true }] {
            let other = finish(ending).await.unwrap();
            assert!(!other.before && !other.finished.outcome.is_applied(), "{other:?}");
        }
        let stale = Lease { fence: held.lease.fence - 1, ..held.lease };
        assert!(!store.worker(stale).finish_by_token(report("1")).await.unwrap().before);
        assert_eq!(journal(&store), before, "nothing was written");
    });
}
