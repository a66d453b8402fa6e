//! The contract of a single event on every store: it is applied once and journaled, or refused with a reason.

use crate::common::*;
use sprag_lifecycle::{Actor, EnvironmentEvent, RunId, ThreadEvent, ThreadStatus};
use sprag_store::testing::{RawStore, Table, ops};
use sprag_store::{
    EnvironmentReport, EnvironmentRequest, Error, Lease, NotApplied, Outcome, Provide, Row, RunRow,
    ThreadIntent, ThreadReport, ThreadRow,
};

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
                // Another writer changes the same row behind this session's back.
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
        assert_eq!(look(&store, |db| db.refusals(run)).len(), sprag_store::testing::REFUSALS_KEPT);
        // A reader of all runs continues after the last one that it saw.
        let all = store.queries().refusals_after(0, 1_000).unwrap();
        assert_eq!(all.len(), sprag_store::testing::REFUSALS_KEPT);
        assert!(all.is_sorted_by_key(|(id, _)| *id), "{all:?}");
        let last = store.queries().last_refusal().unwrap();
        assert_eq!(all.last().map(|(id, _)| *id), Some(last));
        assert!(store.queries().refusals_after(last, 1_000).unwrap().is_empty());
        assert!(!store.person().resume_run(run, None).await.unwrap().is_applied());
        let next = store.queries().refusals_after(last, 1).unwrap();
        assert_eq!(next.iter().map(|(_, refusal)| refusal.place.run).collect::<Vec<_>>(), [Some(run)]);
        // A comment on a run's changes needs the run, and is read like a note.
        store.person().add_review_comment(run, "ann".into(), "why".into()).await.unwrap();
        let notes = store.queries().notes(run, Some(sprag_store::REVIEW_TAG), 0, 10).unwrap();
        assert_eq!(notes.iter().map(|note| &*note.text).collect::<Vec<_>>(), ["why"]);
        let none = sprag_lifecycle::RunId::new(1, 1);
        assert!(store.person().add_review_comment(none, "ann".into(), "why".into()).await.is_err());
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
                Err::<(), _>(Error::Bug("the caller's transaction fails".into()))
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

/// Reports an event on a thread, as the worker that has this lease.
async fn thread(store: &sprag_store::Store, lease: Lease, id: i64, event: ThreadEvent, turn: u32) -> bool {
    let report = ThreadReport { turn, runtime: 1, ..ThreadReport::default() };
    store.worker(lease).thread(id, event, report).await.unwrap().is_applied()
}

fn thread_row(store: &sprag_store::Store, id: i64) -> ThreadRow {
    look(store, |db| Table::<ThreadRow>::load(db, id)).unwrap()
}

#[test]
fn l09_l11_l12_threads_refuse_what_comes_late() {
    on_every_store(|store, _| async move {
        let _run = create(&store, &sequence(1)).await;
        let held = claim(&store, 1).await;
        store.executor().create_thread(1, None).await.unwrap();
        assert!(thread(&store, held.lease, 1, ThreadEvent::ReprovisionStarted, 0).await);
        assert!(store.person().thread_intent(1, ThreadIntent::Stop).await.unwrap());
        assert!(!thread(&store, held.lease, 1, ThreadEvent::StartSucceeded, 1).await, "a stop is in flight");
        assert!(thread(&store, held.lease, 1, ThreadEvent::StopCompleted, 1).await);
        let settled = thread_row(&store, 1);
        let seq = look(&store, |db| db.last_seq());
        assert!(!thread(&store, held.lease, 1, ThreadEvent::StopCompleted, 1).await, "once");
        assert!(!thread(&store, held.lease, 1, ThreadEvent::TurnCompleted, 1).await, "redelivered");
        assert!(!thread(&store, held.lease, 1, ThreadEvent::TurnStarted, 1).await, "a late start");
        assert_eq!((thread_row(&store, 1), look(&store, |db| db.last_seq())), (settled, seq));
        let _ = finish(&store, &held, well()).await;
    });
}

#[test]
fn ht1_ht3_whatever_ends_an_execution_frees_its_thread_for_the_next_one() {
    on_every_store(|store, clock| async move {
        let _runs = (create(&store, &graph(&[&[]], |_| tries(3))).await, create(&store, &sequence(1)).await);
        store.executor().create_thread(1, None).await.unwrap();
        let (first, other) = (claim(&store, 1).await, claim(&store, 1).await);
        assert!(thread(&store, first.lease, 1, ThreadEvent::ReprovisionStarted, 0).await);
        assert!(!thread(&store, other.lease, 1, ThreadEvent::ReprovisionStarted, 1).await, "it has a holder");
        assert!(thread(&store, first.lease, 1, ThreadEvent::StartSucceeded, 1).await);
        // A lost worker: the next attempt starts the agent, and the late report of the first changes nothing.
        clock.advance(60_001);
        assert!(store.reaper().expire(first.lease).await.unwrap().is_applied());
        let row = thread_row(&store, 1);
        assert_eq!((row.status(), row.turn_open, row.holder), (ThreadStatus::Error, false, None));
        assert_eq!(story(&store).iter().filter(|line| line.contains("session.lost")).count(), 1);
        let second = claim(&store, 2).await;
        assert!(thread(&store, second.lease, 1, ThreadEvent::ReprovisionStarted, 1).await);
        assert!(!thread(&store, first.lease, 1, ThreadEvent::TurnCompleted, 2).await, "not its holder");
        let row = thread_row(&store, 1);
        assert_eq!((row.turn, row.runtime, row.holder), (2, 2, Some(second.lease)));
        // A release interrupts the turn; the same attempt continues the session.
        assert!(store.worker(second.lease).release().await.unwrap().is_applied());
        let row = thread_row(&store, 1);
        assert_eq!((row.status(), row.turn_open, row.holder), (ThreadStatus::Idle, false, None));
        let third = claim(&store, 2).await;
        assert!(thread(&store, third.lease, 1, ThreadEvent::ReprovisionStarted, 2).await);
        // Deleting stops the turn, and no agent is started for it again.
        assert!(store.person().thread_intent(1, ThreadIntent::Delete).await.unwrap());
        assert!(!thread(&store, third.lease, 1, ThreadEvent::TurnStarted, 3).await);
        let _ = finish(&store, &third, well()).await;
        let row = thread_row(&store, 1);
        assert_eq!((row.status(), row.stop_requested, row.holder), (ThreadStatus::Idle, false, None));
        assert!(store.reaper().expire(other.lease).await.unwrap().is_applied());
        let last = claim(&store, 3).await;
        assert!(!thread(&store, last.lease, 1, ThreadEvent::ReprovisionStarted, 3).await, "it is deleted");
        let _ = finish(&store, &last, well()).await;
    });
}

#[test]
fn l15_l16_a_batch_of_interruptions_skips_the_stale_and_repeats_nothing() {
    on_every_store(|store, _| async move {
        let mut leases = Vec::new();
        for id in 1..=3 {
            let _run = create(&store, &sequence(1)).await;
            let held = claim(&store, 1).await;
            store.executor().create_thread(id, None).await.unwrap();
            assert!(thread(&store, held.lease, id, ThreadEvent::ReprovisionStarted, 0).await);
            assert!(thread(&store, held.lease, id, ThreadEvent::TurnStarted, 1).await);
            leases.push(held.lease);
        }
        assert!(thread(&store, leases[1], 2, ThreadEvent::TurnCompleted, 1).await);
        let interrupt = || {
            let leases = leases.clone();
            store.write(move |session| {
                let mut applied = Vec::new();
                for (id, lease) in (1..).zip(&leases) {
                    let given =
                        ThreadReport { holder: Some(*lease), turn: 1, runtime: 1, provision_attempt: 0 };
                    let event = ThreadEvent::TurnInterrupted;
                    applied.push(ops::thread_event(session, id, event, Actor::Worker, &given)?.is_applied());
                }
                Ok(applied)
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
        let given =
            |attempt| EnvironmentReport { attempt, path_present: true, ..EnvironmentReport::default() };
        let run = create(&store, &sequence(1)).await;
        let (host, path, details) = ("here".into(), "/w".into(), "{}".into());
        let wanted =
            EnvironmentRequest { id: 1, run, scope: None, host, worker: 7, managed: true, path, details };
        let made = store.claims().provide_environment(wanted, None).await.unwrap();
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
        let used = EnvironmentReport { live_users: 1, ..given(0) };
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
