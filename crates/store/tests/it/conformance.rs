//! What every store does alike: one suite, run on memory and on SQLite.

use crate::common::*;
use sprag_lifecycle::{
    Actor, Backoff, EnvironmentEvent, ExecutionPredicate, ExecutionStatus, OnFail, Policy, RunId, RunStatus,
    ThreadEvent, Word,
};
use sprag_store::ops::{self, Created, Ending, Lease, Provide, Renewal, ThreadIntent, Wanted};
use sprag_store::{
    EnvironmentGiven, Error, NotApplied, Outcome, QueueRow, Row, RunRow, StepRow, Table, ThreadGiven,
    ThreadRow,
};

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
        let observed = journal(&store)
            .iter()
            .filter(|e| e.event == "failure.observed" && e.place.run == Some(run))
            .count();
        assert_eq!(observed, 1);
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
fn p15_what_has_ended_stays_until_a_person_says_otherwise() {
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
fn c02_c03_claims_follow_needs_then_priority_then_age() {
    on_every_store(|store, clock| async move {
        let low = create(&store, &sequence(2)).await;
        clock.advance(5);
        let mut new = store.person().new_run(sequence(1));
        new.priority = 5;
        let Created::New(high) = store.person().create_run(new).await.unwrap() else { panic!() };
        clock.advance(5);
        let late = create(&store, &sequence(1)).await;
        let order: Vec<RunId> = store
            .claims()
            .claim(claimer(1), 10)
            .await
            .unwrap()
            .iter()
            .map(|assignment| assignment.lease.execution.run)
            .collect();
        assert_eq!(order, [high, low, late], "the second step of the first run waits for its need");
        assert!(store.claims().claim(claimer(2), 10).await.unwrap().is_empty(), "a clean none, at once");
    });
}

#[test]
fn c06_once_the_lease_was_taken_away_its_token_is_refused() {
    on_every_store(|store, clock| async move {
        let run = create(&store, &graph(&[&[]], |_| tries(3))).await;
        let lost = claim(&store, 1).await;
        assert!(matches!(store.worker(lost.lease).renew(60_000).await.unwrap(), Renewal::Held { .. }));
        assert!(!store.reaper().expire(lost.lease).await.unwrap().is_applied(), "the lease is live");
        clock.advance(60_001);
        assert!(store.reaper().expire(lost.lease).await.unwrap().is_applied());
        assert!(!store.reaper().expire(lost.lease).await.unwrap().is_applied(), "once");
        assert_eq!(store.worker(lost.lease).renew(60_000).await.unwrap(), Renewal::Lost);
        assert!(!store.worker(lost.lease).release().await.unwrap().is_applied());
        assert!(!finish(&store, &lost, well()).await.outcome.is_applied());
        let next = claim(&store, 2).await;
        assert_eq!(next.lease.execution.attempt, 2, "lost work is tried again");
        assert!(finish(&store, &next, well()).await.outcome.is_applied());
        assert_eq!(status(&store, run), "completed");
        let kept = look(&store, |db| db.refusals(run));
        assert!(kept.iter().any(|refusal| refusal.event == "execution.completed"), "{kept:?}");
    });
}

#[test]
fn c08_a_backoff_is_enforced_when_claiming() {
    on_every_store(|store, clock| async move {
        let policy = Policy { backoff: Backoff { delay_ms: 1_000, ..Backoff::default() }, ..tries(2) };
        let run = create(&store, &graph(&[&[]], |_| policy.clone())).await;
        let first = claim(&store, 1).await;
        let _ = finish(&store, &first, badly()).await;
        assert_eq!(steps(&store, run), ["pending"]);
        let timers = look(&store, |db| db.timers_due(i64::MAX, 10));
        assert_eq!(timers.len(), 1);
        assert!(!store.executor().schedule(timers[0].execution).await.unwrap(), "too early");
        store.executor().heal_run(run).await.unwrap();
        assert!(store.claims().claim(claimer(1), 1).await.unwrap().is_empty(), "not before its time");
        clock.advance(1_000);
        assert!(store.executor().schedule(timers[0].execution).await.unwrap());
        assert!(look(&store, |db| db.timers_due(i64::MAX, 10)).is_empty());
        let second = claim(&store, 1).await;
        let _ = finish(&store, &second, well()).await;
        assert_eq!(status(&store, run), "completed");
    });
}

#[test]
fn c10_a_queue_and_a_group_hold_their_limits() {
    on_every_store(|store, _| async move {
        let queue = QueueRow { name: "default".into(), limit: Some(2), held: false };
        store.executor().set_queue(queue.clone()).await.unwrap();
        let run = create(&store, &graph(&[&[], &[], &[], &[]], |_| Policy::default())).await;
        let got = store.claims().claim(claimer(1), 10).await.unwrap();
        assert_eq!(got.len(), 2);
        assert_eq!(store.executor().fill_queue("default".into(), 10).await.unwrap(), 0);
        let _ = finish(&store, &got[0], well()).await;
        assert_eq!(store.executor().fill_queue("default".into(), 10).await.unwrap(), 1);
        assert_eq!(store.claims().claim(claimer(1), 10).await.unwrap().len(), 1);
        let _ = store.person().cancel_run(run).await.unwrap();
        store.executor().set_queue(QueueRow { limit: None, ..queue }).await.unwrap();

        let mut plan = (*sequence(1)).clone();
        plan.concurrency = Some(sprag_lifecycle::Concurrency {
            group: "g".into(),
            limit: 1,
            on_conflict: Default::default(),
        });
        let plan = std::sync::Arc::new(plan);
        let (first, second) = (create(&store, &plan).await, create(&store, &plan).await);
        assert_eq!((status(&store, first), status(&store, second)), ("running".into(), "queued".into()));
        assert_eq!(store.executor().fill_group("g".into(), vec![]).await.unwrap(), None);
        let held = claim_of(&store, first).await;
        let _ = finish(&store, &held, well()).await;
        assert_eq!(store.executor().fill_group("g".into(), vec![]).await.unwrap(), Some(second));
        assert!(store.person().cancel_run(second).await.unwrap().is_applied());
    });
}

/// Receives what this run has to offer.
async fn claim_of(store: &sprag_store::Store, run: RunId) -> ops::Assignment {
    let all = store.claims().claim(claimer(9), 100).await.unwrap();
    all.into_iter().find(|got| got.lease.execution.run == run).expect("it has something to offer")
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
fn o06_a_doubled_hand_off_message_runs_once() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(1)).await;
        let told = Lease { execution: sprag_lifecycle::ExecutionId { run, step: 0, attempt: 1 }, fence: 1 };
        let first = store.claims().receive(claimer(1), told).await.unwrap().expect("the first is in time");
        for worker in 1..4 {
            assert!(store.claims().receive(claimer(worker), told).await.unwrap().is_err());
        }
        let _ = finish(&store, &first, well()).await;
        assert!(store.claims().receive(claimer(2), told).await.unwrap().is_err());
        assert_eq!(status(&store, run), "completed");
    });
}

#[test]
fn o07_a_doubled_completion_starts_what_follows_once() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(2)).await;
        let first = claim(&store, 1).await;
        for _ in 0..3 {
            let _ = finish(&store, &first, well()).await;
        }
        let requested = journal(&store)
            .iter()
            .filter(|e| {
                e.event == "execution.requested" && e.place.run == Some(run) && e.place.step == Some(1)
            })
            .count();
        assert_eq!(requested, 1);
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
fn a_run_is_made_once_per_key_and_a_taken_name_is_refused() {
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
fn l04_an_unknown_id_is_not_found() {
    on_every_store(|store, _| async move {
        let nobody = RunId::from_i64(4711);
        assert_eq!(store.person().cancel_run(nobody).await.unwrap(), Outcome::NotFound);
        let lease =
            Lease { execution: sprag_lifecycle::ExecutionId { run: nobody, step: 0, attempt: 1 }, fence: 1 };
        assert_eq!(store.worker(lease).finish(well(), None).await.unwrap().outcome, Outcome::NotFound);
        assert_eq!(store.person().answer_gate(1, "{}".into()).await.unwrap(), Outcome::NotFound);
    });
}

#[test]
fn l04_a_write_between_load_and_cas_is_a_conflict_and_the_others_value_stands() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(1)).await;
        let tried = store
            .write(move |session| {
                let outcome = ops::cancel_run(session, run)?;
                // Somebody else writes the same row behind this session's back.
                let mut other = Table::<RunRow>::load(session.db(), run)?.expect("it is there");
                let was = (other.status(), other.version());
                other.priority += 1;
                Row::touch(&mut other, sprag_store::testing::writer_token());
                assert!(Table::<RunRow>::update(session.db(), &other, was)?);
                Ok(outcome)
            })
            .await;
        assert!(matches!(tried, Err(Error::Conflict { entity: "run", .. })), "{tried:?}");
        assert_eq!(status(&store, run), "running");
        assert!(
            store.person().cancel_run(run).await.unwrap().is_applied(),
            "the next look finds it as it is"
        );
    });
}

/// Lets wake-ups that are still on their way arrive: a commit may ring twice, here and by its bell.
async fn settle(watching: &sprag_store::Subscription) {
    for _ in 0..4 {
        watching.wait(std::time::Duration::from_millis(30)).await;
    }
}

#[test]
fn l05_a_refused_event_leaves_the_row_as_it_was() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(1)).await;
        let held = claim(&store, 1).await;
        let row = |store: &sprag_store::Store| {
            look(store, |db| Ok((db.executions(run)?, db.steps(run)?, db.last_seq()?)))
        };
        let before = row(&store);
        let watching = store.subscribe(vec![sprag_store::Topic::Run(run), sprag_store::Topic::Journal]);
        settle(&watching).await;
        for _ in 0..3 {
            assert!(
                !store
                    .worker(Lease { fence: 99, ..held.lease })
                    .finish(well(), None)
                    .await
                    .unwrap()
                    .outcome
                    .is_applied()
            );
            assert!(!store.reaper().expire(held.lease).await.unwrap().is_applied());
        }
        assert_eq!(row(&store), before);
        let waited = tokio::time::timeout(
            std::time::Duration::from_millis(50),
            watching.wait(std::time::Duration::from_secs(9)),
        )
        .await;
        assert!(waited.is_err(), "nobody is notified");
        let kept = look(&store, |db| db.refusals(run));
        assert_eq!(kept.len(), 6);
        assert!(kept.iter().all(|r| !r.detail.is_empty() && r.place.run == Some(run)), "{kept:?}");
    });
}

#[test]
fn l05_refusals_are_bounded() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(1)).await;
        for _ in 0..50 {
            assert!(!store.person().resume_run(run, None).await.unwrap().is_applied());
        }
        assert_eq!(look(&store, |db| db.refusals(run)).len(), sprag_store::REFUSALS_KEPT);
    });
}

#[test]
fn l06_an_applied_event_notifies_once_and_only_after_the_commit() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(1)).await;
        let watching = store.subscribe(vec![sprag_store::Topic::Run(run)]);
        settle(&watching).await;
        let failed = store
            .write(move |session| {
                let _ = ops::cancel_run(session, run)?;
                Err::<(), _>(Error::Refused("the caller's transaction fails".into()))
            })
            .await;
        assert!(failed.is_err());
        let quiet = tokio::time::timeout(
            std::time::Duration::from_millis(50),
            watching.wait(std::time::Duration::from_secs(9)),
        )
        .await;
        assert!(quiet.is_err(), "an undone change notifies nobody");
        assert_eq!(status(&store, run), "running");
        let _ = store.person().cancel_run(run).await.unwrap();
        tokio::time::timeout(
            std::time::Duration::from_secs(5),
            watching.wait(std::time::Duration::from_secs(9)),
        )
        .await
        .expect("told");
    });
}

#[test]
fn l07_a_refusal_is_a_typed_4xx() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(1)).await;
        let refused = store.person().resume_run(run, None).await.unwrap().require_applied().unwrap_err();
        assert_eq!(refused, NotApplied::Illegal { entity: "run", status: "running", wrong_actor: false });
        assert_eq!(refused.http_status(), 409);
        let missing =
            store.person().cancel_run(RunId::from_i64(1)).await.unwrap().require_applied().unwrap_err();
        assert_eq!(missing.http_status(), 404);
    });
}

/// Reports an event on a thread, as whoever may.
async fn thread(store: &sprag_store::Store, id: i64, event: ThreadEvent, who: Actor, turn: u32) -> bool {
    let given = ThreadGiven { turn, runtime: 1 };
    store.write(move |session| ops::thread_event(session, id, event, who, &given)).await.unwrap().is_applied()
}

fn thread_row(store: &sprag_store::Store, id: i64) -> ThreadRow {
    look(store, |db| Table::<ThreadRow>::load(db, id)).unwrap()
}

#[test]
fn l09_l11_l12_threads_refuse_what_comes_late() {
    on_every_store(|store, _| async move {
        store.executor().create_thread(1, None).await.unwrap();
        assert!(thread(&store, 1, ThreadEvent::TurnStarted, Actor::Worker, 1).await);
        assert!(store.person().thread_intent(1, ThreadIntent::Stop).await.unwrap());
        assert!(
            !thread(&store, 1, ThreadEvent::StartSucceeded, Actor::Worker, 1).await,
            "a stop is in flight"
        );
        assert!(thread(&store, 1, ThreadEvent::StopCompleted, Actor::Worker, 1).await);
        let settled = thread_row(&store, 1);
        let seq = look(&store, |db| db.last_seq());
        assert!(!thread(&store, 1, ThreadEvent::StopCompleted, Actor::Worker, 1).await, "once");
        assert!(!thread(&store, 1, ThreadEvent::TurnCompleted, Actor::Worker, 1).await, "redelivered");
        assert!(!thread(&store, 1, ThreadEvent::TurnStarted, Actor::Worker, 1).await, "a late start");
        assert_eq!((thread_row(&store, 1), look(&store, |db| db.last_seq())), (settled, seq));
    });
}

#[test]
fn l15_l16_a_batch_of_interruptions_skips_the_stale_and_repeats_nothing() {
    on_every_store(|store, _| async move {
        for id in 1..=3 {
            store.executor().create_thread(id, None).await.unwrap();
            assert!(thread(&store, id, ThreadEvent::TurnStarted, Actor::Worker, 1).await);
        }
        assert!(thread(&store, 2, ThreadEvent::TurnCompleted, Actor::Worker, 1).await);
        let interrupt = || {
            store.write(|session| {
                let given = ThreadGiven { turn: 1, runtime: 1 };
                (1..=3)
                    .map(|id| {
                        Ok(ops::thread_event(
                            session,
                            id,
                            ThreadEvent::TurnInterrupted,
                            Actor::Reaper,
                            &given,
                        )?
                        .is_applied())
                    })
                    .collect::<sprag_store::Result<Vec<bool>>>()
            })
        };
        assert_eq!(interrupt().await.unwrap(), [true, false, true]);
        let seq = look(&store, |db| db.last_seq());
        assert_eq!(interrupt().await.unwrap(), [false, false, false]);
        assert_eq!(look(&store, |db| db.last_seq()), seq);
    });
}

#[test]
fn environments_refuse_stale_attempts_and_live_users() {
    on_every_store(|store, _| async move {
        let given = |attempt| EnvironmentGiven { attempt, path_present: true, ..EnvironmentGiven::default() };
        let run = create(&store, &sequence(1)).await;
        let (host, path, details) = ("here".into(), "/w".into(), "{}".into());
        let wanted = Wanted { id: 1, run, scope: None, host, worker: 7, managed: true, path, details };
        let made = store.claims().provide_environment(wanted, false).await.unwrap();
        assert!(matches!(made, Provide::Make(_)));
        let event = |event, who, attempt| {
            let store = store.clone();
            async move {
                store
                    .write(move |s| ops::environment_event(s, 1, event, who, &given(attempt)))
                    .await
                    .unwrap()
                    .is_applied()
            }
        };
        assert!(!event(EnvironmentEvent::ProvisionSucceeded, Actor::Worker, 7).await, "a stale attempt");
        assert!(event(EnvironmentEvent::ProvisionSucceeded, Actor::Worker, 1).await);
        assert!(store.person().request_cleanup(1).await.unwrap());
        let used = EnvironmentGiven { live_users: 1, ..given(0) };
        let refused = store
            .write(move |s| {
                ops::environment_event(s, 1, EnvironmentEvent::DestroyDispatched, Actor::Worker, &used)
            })
            .await
            .unwrap();
        assert!(!refused.is_applied(), "somebody uses it");
        assert!(event(EnvironmentEvent::DestroyDispatched, Actor::Worker, 0).await);
        assert!(event(EnvironmentEvent::DestroyFailed, Actor::Worker, 1).await);
        assert!(event(EnvironmentEvent::ProvisionRequested, Actor::Executor, 0).await);
        assert!(!event(EnvironmentEvent::DestroySucceeded, Actor::Worker, 1).await, "revived meanwhile");
    });
}

#[test]
fn an_orphaned_run_is_reserved_to_whoever_takes_it_over() {
    on_every_store(|store, _| async move {
        let mut new = store.person().new_run(sequence(1));
        new.pin = Some(5);
        let Created::New(run) = store.person().create_run(new).await.unwrap() else { panic!() };
        assert!(store.claims().claim(claimer(1), 1).await.unwrap().is_empty(), "it belongs to worker 5");
        assert!(store.executor().pin_run(run, Some(6)).await.unwrap());
        assert!(store.claims().claim(claimer(5), 1).await.unwrap().is_empty());
        let held = claim(&store, 6).await;
        let _ = finish(&store, &held, well()).await;
        assert_eq!(status(&store, run), RunStatus::Completed.as_str());
    });
}

#[test]
fn a_released_execution_goes_back_and_its_old_token_is_void() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(1)).await;
        let first = claim(&store, 1).await;
        assert!(store.worker(first.lease).release().await.unwrap().is_applied());
        assert!(!store.worker(first.lease).release().await.unwrap().is_applied());
        let second = claim(&store, 2).await;
        assert_eq!(second.lease.execution, first.lease.execution, "the same attempt");
        assert!(second.lease.fence > first.lease.fence);
        assert_eq!(store.worker(first.lease).renew(60_000).await.unwrap(), Renewal::Lost);
        assert!(!finish(&store, &first, well()).await.outcome.is_applied());
        assert!(finish(&store, &second, well()).await.outcome.is_applied());
        assert_eq!(status(&store, run), "completed");
        let step = look(&store, |db| Table::<StepRow>::load(db, (run, 0))).unwrap();
        assert_eq!(step.attempt, 1);
    });
}

#[test]
fn c10_a_full_queue_is_asked_without_writing_anything() {
    on_every_store(|store, _| async move {
        store
            .executor()
            .set_queue(QueueRow { name: "default".into(), limit: Some(1), held: false })
            .await
            .unwrap();
        let _run = create(&store, &graph(&[&[], &[]], |_| Policy::default())).await;
        let seq = look(&store, |db| db.last_seq());
        for _ in 0..3 {
            assert_eq!(store.executor().fill_queue("default".into(), 10).await.unwrap(), 0);
        }
        assert_eq!(look(&store, |db| db.last_seq()), seq);
    });
}

#[test]
fn c10_a_resume_waits_for_a_place_in_its_group() {
    on_every_store(|store, _| async move {
        let mut plan = (*sequence(1)).clone();
        plan.concurrency = Some(sprag_lifecycle::Concurrency {
            group: "g".into(),
            limit: 1,
            on_conflict: Default::default(),
        });
        let plan = std::sync::Arc::new(plan);
        let failed = create(&store, &plan).await;
        let held = claim(&store, 1).await;
        let _ = finish(&store, &held, badly()).await;
        let other = create(&store, &plan).await;
        assert_eq!((status(&store, failed), status(&store, other)), ("failed".into(), "running".into()));
        let refused = store.person().resume_run(failed, None).await;
        assert!(matches!(&refused, Err(Error::Refused(why)) if why.contains("full")), "{refused:?}");
        assert_eq!(status(&store, failed), "failed");
        let held = claim(&store, 1).await;
        let _ = finish(&store, &held, well()).await;
        assert!(store.person().resume_run(failed, None).await.unwrap().is_applied());
    });
}

#[test]
fn a_rewind_also_tries_again_what_else_was_broken() {
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
fn c03_a_second_hand_over_keeps_its_place_in_line() {
    on_every_store(|store, clock| async move {
        let first = create(&store, &sequence(1)).await;
        clock.advance(10);
        let second = create(&store, &sequence(1)).await;
        clock.advance(10);
        let waiting = look(&store, |db| db.unclaimed_since(i64::MAX, 1));
        assert_eq!(waiting[0].run, first);
        assert!(store.executor().redispatch(waiting[0]).await.unwrap());
        let order: Vec<RunId> = store
            .claims()
            .claim(claimer(1), 2)
            .await
            .unwrap()
            .iter()
            .map(|got| got.lease.execution.run)
            .collect();
        assert_eq!(order, [first, second]);
    });
}

#[test]
fn o12_what_nobody_can_be_found_for_fails_with_its_reason() {
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
fn a_rework_hands_on_its_feedback_wherever_its_step_was_written() {
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

#[test]
fn a_run_is_given_back_to_its_own_worker_only_if_it_is_nobodys() {
    on_every_store(|store, _| async move {
        let mut new = store.person().new_run(sequence(1));
        new.pin = Some(5);
        let Created::New(run) = store.person().create_run(new).await.unwrap() else { panic!() };
        assert!(!store.claims().reclaim(run, 6).await.unwrap(), "it is another's");
        assert!(store.executor().pin_run(run, None).await.unwrap());
        assert!(store.claims().reclaim(run, 5).await.unwrap());
        assert!(store.claims().claim(claimer(6), 1).await.unwrap().is_empty());
        let held = claim(&store, 5).await;
        let _ = finish(&store, &held, well()).await;
    });
}
