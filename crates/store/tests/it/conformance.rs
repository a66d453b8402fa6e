//! The conformance suite for runs and steps: every store passes the same tests.

use crate::common::*;
use sprag_lifecycle::{ExecutionPredicate, ExecutionStatus, OnFail, Policy, RunId};
use sprag_store::{Created, Ending, Lease, Outcome, Renewal};

#[test]
fn p01_predecessor_done_and_the_next_becomes_pending() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(3)).await;
        assert_eq!(steps(&store, run), ["pending", "waiting", "waiting"]);
        let first = claim(&store, 1).await;
        let _ = finish(&store, &first, well()).await;
        assert_eq!(steps(&store, run), ["done", "pending", "waiting"]);
    });
}

#[test]
fn p02_nothing_after_the_first_step_that_is_not_done_changes() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(4)).await;
        let first = claim(&store, 1).await;
        for _ in 0..5 {
            store.executor().heal_run(run).await.unwrap();
            assert_eq!(steps(&store, run), ["running", "waiting", "waiting", "waiting"]);
            assert!(store.claims().claim(claimer(2), 10).await.unwrap().is_empty());
        }
        let _ = finish(&store, &first, well()).await;
    });
}

#[test]
fn p05_an_unreported_failure_is_healed_once_and_torn_down() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(2)).await;
        let first = claim(&store, 1).await;
        let _ = finish(&store, &first, badly()).await;
        assert_eq!(status(&store, run), "failed");
        assert_eq!(steps(&store, run), ["failed", "cancelled"]);
        let ended = look(&store, |db| db.outbox_due(i64::MAX, 10));
        assert_eq!(ended.iter().filter(|row| &*row.kind == "run.ended" && row.run == run).count(), 1);
        for _ in 0..3 {
            store.executor().heal_run(run).await.unwrap();
        }
        assert_eq!(told(&store, "failure.observed", run, None), 1);
    });
}

#[test]
fn p06_ended_and_missing_runs_are_left_alone() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(1)).await;
        let only = claim(&store, 1).await;
        let _ = finish(&store, &only, well()).await;
        let before = story(&store);
        store.executor().heal_run(run).await.unwrap();
        store.executor().heal_run(RunId::from_i64(12345)).await.unwrap();
        assert_eq!(story(&store), before);
    });
}

#[test]
fn p10_one_journal_entry_for_each_transition() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(2)).await;
        for _ in 0..2 {
            let next = claim(&store, 1).await;
            let _ = finish(&store, &next, well()).await;
        }
        let events: Vec<&str> =
            journal(&store).iter().filter(|e| e.place.run == Some(run)).map(|e| e.event).collect();
        let of_a_step = [
            "step.ready",
            "execution.requested",
            "scheduling.started",
            "handoff.published",
            "handoff.received",
            "step.started",
            "execution.completed",
            "step.succeeded",
        ];
        let expected: Vec<&str> = ["run.created", "run.started"]
            .into_iter()
            .chain(of_a_step)
            .chain(of_a_step)
            .chain(["run.succeeded"])
            .collect();
        assert_eq!(events, expected);
        let seqs: Vec<u64> = journal(&store).iter().map(|e| e.seq).collect();
        assert!(seqs.windows(2).all(|pair| pair[1] == pair[0] + 1), "{seqs:?}");
    });
}

#[test]
fn p11_o01_only_the_holder_of_a_running_execution_completes_it() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(1)).await;
        let guess = Lease { execution: sprag_lifecycle::ExecutionId { run, step: 0, attempt: 1 }, fence: 1 };
        let early = store.worker(guess).finish(well(), None).await.unwrap();
        assert!(
            matches!(early.outcome, Outcome::Illegal { status: ExecutionStatus::Scheduled, .. }),
            "{early:?}"
        );
        let held = claim(&store, 1).await;
        let stranger = Lease { fence: held.lease.fence + 1, ..held.lease };
        let refused = store.worker(stranger).finish(well(), None).await.unwrap();
        assert_eq!(refused.outcome, Outcome::Superseded(ExecutionPredicate::MatchingFence));
        assert_eq!(status(&store, run), "running");
        assert!(finish(&store, &held, well()).await.outcome.is_applied());
        let again = store.worker(held.lease).finish(well(), None).await.unwrap();
        assert!(
            matches!(again.outcome, Outcome::Illegal { status: ExecutionStatus::Completed, .. }),
            "{again:?}"
        );
    });
}

#[test]
fn p15_ended_runs_stay_ended_without_an_explicit_command() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(2)).await;
        let first = claim(&store, 1).await;
        let _ = finish(&store, &first, well()).await;
        let second = claim(&store, 1).await;
        let _ = finish(&store, &second, badly()).await;
        assert_eq!(status(&store, run), "failed");
        assert!(!store.person().cancel_run(run).await.unwrap().is_applied());
        assert!(store.person().resume_run(run, None).await.unwrap().is_applied());
        assert_eq!(
            (status(&store, run), steps(&store, run)),
            ("running".into(), vec!["done".into(), "pending".into()])
        );
        let late = store.worker(second.lease).finish(well(), None).await.unwrap();
        assert!(!late.outcome.is_applied(), "what was in flight before is over");
        let again = claim(&store, 1).await;
        assert_eq!(again.lease.execution.attempt, 2);
        let _ = finish(&store, &again, well()).await;
        assert_eq!(status(&store, run), "completed");
        assert!(
            !store.person().resume_run(run, None).await.unwrap().is_applied(),
            "nothing is left to resume"
        );
        assert!(store.person().rewind_run(run, 1, None).await.unwrap().is_applied());
        assert_eq!(steps(&store, run), ["done", "pending"]);
    });
}

#[test]
fn p17_two_needs_that_end_at_once_ready_the_step_after_them_once() {
    on_every_store(|store, _| async move {
        let run = create(&store, &graph(&[&[], &[], &[0, 1]], |_| Policy::default())).await;
        let (a, b) = (claim(&store, 1).await, claim(&store, 2).await);
        let (a, b) = tokio::join!(
            store.worker(a.lease).finish(well(), None),
            store.worker(b.lease).finish(well(), None)
        );
        assert!(a.unwrap().outcome.is_applied() && b.unwrap().outcome.is_applied());
        assert_eq!(steps(&store, run), ["done", "done", "pending"]);
        let readied =
            journal(&store).iter().filter(|e| e.event == "step.ready" && e.place.step == Some(2)).count();
        assert_eq!(readied, 1);
    });
}

#[test]
fn o02_o05_cancel_before_and_after_receipt() {
    on_every_store(|store, _| async move {
        let before = create(&store, &sequence(2)).await;
        assert!(store.person().cancel_run(before).await.unwrap().is_applied());
        assert_eq!(status(&store, before), "cancelled");
        assert!(store.claims().claim(claimer(1), 1).await.unwrap().is_empty(), "no worker ever sees it");

        let after = create(&store, &sequence(2)).await;
        let held = claim(&store, 1).await;
        assert!(store.person().cancel_run(after).await.unwrap().is_applied());
        assert_eq!(status(&store, after), "cancelling");
        assert!(matches!(
            store.worker(held.lease).renew(60_000).await.unwrap(),
            Renewal::Held { cancel_requested: true, .. }
        ));
        let wrote = store.worker(held.lease).finish(Ending::Cancelled, None).await.unwrap();
        assert!(wrote.outcome.is_applied());
        assert_eq!(
            (status(&store, after), steps(&store, after)),
            ("cancelled".into(), vec!["cancelled".into(), "cancelled".into()])
        );
        assert!(
            !store.worker(held.lease).finish(Ending::Cancelled, None).await.unwrap().outcome.is_applied()
        );
    });
}

#[test]
fn o07_a_duplicated_completion_starts_the_next_step_once() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(2)).await;
        let first = claim(&store, 1).await;
        for _ in 0..3 {
            let _ = finish(&store, &first, well()).await;
        }
        assert_eq!(told(&store, "execution.requested", run, Some(1)), 1);
    });
}

#[test]
fn one_commit_completes_readies_hands_over_and_receives() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(3)).await;
        let mut held = claim(&store, 1).await;
        let mut steps_done = 1;
        while let Some(next) = store.worker(held.lease).finish(well(), Some(claimer(1))).await.unwrap().next {
            held = next;
            steps_done += 1;
        }
        assert_eq!((steps_done, status(&store, run)), (3, "completed".into()));
    });
}

#[test]
fn rework_sends_back_with_feedback_at_most_so_often() {
    on_every_store(|store, _| async move {
        let plan = graph(&[&[], &[0]], |no| match no {
            1 => Policy { on_fail: OnFail::Rework { step: 0, max: 2 }, ..Policy::default() },
            _ => Policy::default(),
        });
        let run = create(&store, &plan).await;
        for round in 0..3u32 {
            let work = claim(&store, 1).await;
            assert_eq!(work.lease.execution.step, 0);
            assert_eq!(work.feedback.is_some(), round > 0, "feedback from the second round on");
            let _ = finish(&store, &work, well()).await;
            let check = claim(&store, 1).await;
            let _ = finish(&store, &check, badly()).await;
        }
        assert_eq!(
            (status(&store, run), steps(&store, run)),
            ("failed".into(), vec!["done".into(), "failed".into()])
        );
    });
}

#[test]
fn a_run_is_created_once_per_key_and_a_taken_name_is_refused() {
    on_every_store(|store, _| async move {
        let plan = sequence(1);
        let mut new = named(77, &plan);
        new.idempotency_key = Some("k".into());
        assert!(matches!(store.person().create_run(new.clone()).await.unwrap(), Created::New(_)));
        new.id = RunId::from_i64(78);
        assert_eq!(store.person().create_run(new).await.unwrap(), Created::Existing(RunId::from_i64(77)));
        let Created::New(other) = store.person().create_run(named(77, &plan)).await.unwrap() else {
            panic!()
        };
        assert_ne!(other, RunId::from_i64(77), "another name was drawn");
    });
}

#[test]
fn a_rewind_also_retries_other_broken_steps() {
    on_every_store(|store, _| async move {
        // a → b, and d beside them: d fails while a runs, so b never starts.
        let run = create(&store, &graph(&[&[], &[0], &[]], |_| Policy::default())).await;
        let (a, d) = (claim(&store, 1).await, claim(&store, 1).await);
        assert_eq!((a.lease.execution.step, d.lease.execution.step), (0, 2));
        let _ = finish(&store, &d, badly()).await;
        let _ = finish(&store, &a, well()).await;
        assert_eq!(steps(&store, run), ["done", "cancelled", "failed"]);
        assert!(store.person().rewind_run(run, 2, None).await.unwrap().is_applied());
        for _ in 0..2 {
            let next = claim(&store, 1).await;
            let _ = finish(&store, &next, well()).await;
        }
        assert_eq!((status(&store, run), steps(&store, run)), ("completed".into(), vec!["done".into(); 3]));
    });
}

#[test]
fn o12_an_execution_without_a_worker_fails_with_the_reason() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(2)).await;
        let waiting = look(&store, |db| db.unclaimed_since(i64::MAX, 1))[0];
        assert!(store.executor().fail_unserved(waiting).await.unwrap());
        assert!(!store.executor().fail_unserved(waiting).await.unwrap(), "once");
        assert_eq!(
            (status(&store, run), steps(&store, run)),
            ("failed".into(), vec!["failed".into(), "cancelled".into()])
        );
        let told = look(&store, |db| db.executions(run))[0].result.clone().unwrap();
        assert!(told.contains("no worker serves its queue"), "{told}");
    });
}

#[test]
fn a_rework_passes_feedback_to_its_step_wherever_the_file_has_it() {
    on_every_store(|store, _| async move {
        // The step that sends back is written above the one that it needs.
        let plan = graph(&[&[1], &[]], |no| match no {
            0 => Policy { on_fail: OnFail::Rework { step: 1, max: 1 }, ..Policy::default() },
            _ => Policy::default(),
        });
        let _run = create(&store, &plan).await;
        let work = claim(&store, 1).await;
        let _ = finish(&store, &work, well()).await;
        let check = claim(&store, 1).await;
        let _ = finish(&store, &check, badly()).await;
        let again = claim(&store, 1).await;
        assert_eq!(again.lease.execution.step, 1);
        assert!(again.feedback.is_some_and(|feedback| feedback.contains("exit code")));
    });
}
