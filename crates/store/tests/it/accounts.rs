//! Accounts on every store: limits, holds, places.

use std::sync::Arc;

use sprag_lifecycle::{AccountStatus, Plan, PlanAccount, PlanFallback, PlanStep, RunId};
use sprag_store::{AccountBusy, AccountState, Ending, NewHold, Row, Store, UsageLimit};

use crate::common::*;

const MINUTE_MS: i64 = 60_000;

/// Returns a plan of independent steps with this account, each in this queue.
fn agents(account: &str, max_parallel: u32, steps: usize, longest_wait_ms: Option<u64>) -> Arc<Plan> {
    let account = PlanAccount { name: account.into(), max_parallel, longest_wait_ms, fallbacks: Vec::new() };
    let step = |no| PlanStep { account: Some(account.clone()), ..step(no, &[], tries(1)) };
    Arc::new(Plan::new("agents", (0..steps).map(step).collect()).unwrap())
}

fn account(store: &Store, name: &str) -> AccountState {
    let all = store.queries().accounts().unwrap();
    all.into_iter().find(|state| &*state.row.name == name).expect("the account is known")
}

fn is(store: &Store, name: &str) -> AccountStatus {
    account(store, name).row.status()
}

fn limit(until_ms: Option<i64>) -> Ending {
    Ending::Limited(UsageLimit { until_ms, message: "5-hour limit reached".into() })
}

fn hold(name: &str) -> NewHold {
    NewHold { account: name.into(), until_ms: None, reason: Some("lunch".into()) }
}

async fn fill(store: &Store) -> usize {
    store.executor().fill_queue("default".into(), 10).await.unwrap()
}

async fn claimed(store: &Store) -> Vec<sprag_store::Assignment> {
    store.claims().claim(claimer(1), 10).await.unwrap()
}

fn now_ms(store: &Store) -> i64 {
    store.now().wall_ms
}

fn attempt(store: &Store, run: RunId) -> (u32, u32, u32) {
    let step = store.queries().step(run, 0).unwrap().unwrap();
    (step.attempt, step.tries, step.losses)
}

#[test]
fn t04_a_limit_holds_the_account_for_all_runs_until_its_reset_and_loses_no_try() {
    on_every_store(|store, clock| async move {
        let runs = [
            create(&store, &agents("work", 3, 1, None)).await,
            create(&store, &agents("work", 3, 1, None)).await,
        ];
        let got = claimed(&store).await;
        assert_eq!(got.len(), 2);
        let until_ms = now_ms(&store) + 10 * MINUTE_MS;
        let finished = finish(&store, &got[0], limit(Some(until_ms))).await;
        assert!(finished.outcome.is_applied(), "{finished:?}");
        // One commit: it is held, and the execution waits again.
        let row = account(&store, "work").row;
        assert_eq!(
            (row.status(), row.run, row.until_wall_ms),
            (AccountStatus::Held, Some(runs[0]), Some(until_ms))
        );
        assert_eq!(row.reason.as_deref(), Some("5-hour limit reached"));
        assert_eq!(attempt(&store, runs[0]), (1, 0, 0), "no try is lost");
        let told: Vec<String> = story(&store).into_iter().rev().take(2).collect();
        assert!(told[0].contains("execution.released") && told[1].contains("limit.hit"), "{told:?}");
        // It holds back every run, however often executors look, and writes nothing for it.
        let third = create(&store, &agents("work", 3, 1, None)).await;
        let seq = look(&store, |db| db.last_seq());
        for run in [runs[0], third] {
            store.executor().heal_run(run).await.unwrap();
        }
        assert_eq!(fill(&store).await, 0);
        assert_eq!(look(&store, |db| db.last_seq()), seq, "asking writes nothing");
        assert!(claimed(&store).await.is_empty());
        let facts = store.queries().wait_facts(&store.queries().run(third).unwrap().unwrap()).unwrap();
        assert!(facts.accounts.values().all(|wait| wait.why == AccountBusy::Held), "{facts:?}");
        // One that works meanwhile ends as usual.
        assert!(finish(&store, &got[1], well()).await.outcome.is_applied());
        // After the reset one execution tries it, and the other waits for the answer.
        clock.advance(10 * MINUTE_MS);
        assert_eq!(fill(&store).await, 1);
        assert_eq!(is(&store, "work"), AccountStatus::Probing);
        let probe = claimed(&store).await;
        assert_eq!((probe.len(), probe[0].tries_account), (1, true));
        assert_eq!(fill(&store).await, 0);
        assert!(store.worker(probe[0].lease).account_answered().await.unwrap());
        assert!(!store.worker(probe[0].lease).account_answered().await.unwrap(), "once");
        assert_eq!(fill(&store).await, 1);
        let rest = claimed(&store).await;
        assert!(!rest[0].tries_account);
        for held in [&probe[0], &rest[0]] {
            assert!(finish(&store, held, well()).await.outcome.is_applied());
        }
        for run in [runs[0], runs[1], third] {
            assert_eq!(status(&store, run), "completed");
        }
    });
}

#[test]
fn ha4_a_late_report_does_not_hold_an_account_that_was_released() {
    on_every_store(|store, clock| async move {
        let _runs = (
            create(&store, &agents("late", 3, 1, None)).await,
            create(&store, &agents("late", 3, 1, None)).await,
        );
        let got = claimed(&store).await;
        let until_ms = now_ms(&store) + 60 * MINUTE_MS;
        let _ = finish(&store, &got[0], limit(Some(until_ms))).await;
        assert!(store.person().release_account("late".into()).await.unwrap().is_applied());
        assert!(!store.person().release_account("late".into()).await.unwrap().is_applied(), "it is free");
        // The second agent started before the release: its report returns its execution, and holds nothing.
        assert!(finish(&store, &got[1], limit(Some(until_ms))).await.outcome.is_applied());
        assert_eq!(is(&store, "late"), AccountStatus::Free);
        // A worker whose lease was taken away holds nothing either.
        fill(&store).await;
        let lost = claimed(&store).await;
        assert_eq!(lost.len(), 2);
        clock.advance(60_001);
        assert!(store.reaper().expire(lost[0].lease).await.unwrap().is_applied());
        assert!(!finish(&store, &lost[0], limit(Some(until_ms))).await.outcome.is_applied());
        assert_eq!(is(&store, "late"), AccountStatus::Free);
        // The same report in time holds it.
        assert!(finish(&store, &lost[1], limit(Some(until_ms))).await.outcome.is_applied());
        assert_eq!(is(&store, "late"), AccountStatus::Held);
        assert_eq!(account(&store, "late").row.until_wall_ms, Some(until_ms));
    });
}

#[test]
fn of_several_limits_the_last_to_end_counts() {
    on_every_store(|store, clock| async move {
        let _run = create(&store, &agents("several", 4, 4, None)).await;
        let got = claimed(&store).await;
        let at = |minutes: i64| now_ms(&store) + minutes * MINUTE_MS;
        for (held, minutes, expected) in
            [(&got[0], Some(60), 60), (&got[1], Some(30), 60), (&got[2], None, 60)]
        {
            assert!(finish(&store, held, limit(minutes.map(at))).await.outcome.is_applied());
            assert_eq!(account(&store, "several").row.until_wall_ms, Some(at(expected)));
        }
        // The first hold is over, although no execution has tried the account yet.
        clock.advance(60 * MINUTE_MS);
        assert!(finish(&store, &got[3], limit(Some(at(90)))).await.outcome.is_applied());
        assert_eq!(account(&store, "several").row.until_wall_ms, Some(at(90)));
        assert_eq!(fill(&store).await, 0);
    });
}

#[test]
fn ha1_limits_without_an_end_are_held_longer_each_time_and_never_loop() {
    on_every_store(|store, clock| async move {
        let run = create(&store, &agents("unsaid", 3, 1, None)).await;
        let mut lengths = Vec::new();
        for _ in 0..7 {
            fill(&store).await;
            let got = claimed(&store).await;
            assert!(finish(&store, &got[0], limit(None)).await.outcome.is_applied());
            let row = account(&store, "unsaid").row;
            let for_ms = row.until_ms.unwrap() - store.now().steady_ms;
            lengths.push(for_ms / MINUTE_MS);
            assert_eq!(fill(&store).await, 0);
            clock.advance(for_ms);
        }
        assert_eq!(lengths, [15, 30, 60, 120, 240, 300, 300]);
        // A limit that ended before it was reported holds nothing, but its execution pauses.
        fill(&store).await;
        let got = claimed(&store).await;
        let past = limit(Some(now_ms(&store) - 1));
        assert!(finish(&store, &got[0], past).await.outcome.is_applied());
        assert_eq!(is(&store, "unsaid"), AccountStatus::Probing);
        assert_eq!(fill(&store).await, 0);
        clock.advance(MINUTE_MS);
        assert_eq!(fill(&store).await, 1);
        // An end in the far future is a mistake.
        let got = claimed(&store).await;
        let _ = finish(&store, &got[0], limit(Some(i64::MAX))).await;
        let row = account(&store, "unsaid").row;
        assert!(row.until_ms.unwrap() - store.now().steady_ms <= 8 * 24 * 60 * MINUTE_MS);
        assert_eq!(attempt(&store, run), (1, 0, 0));
        // A step that completes has shown that the account works.
        clock.advance(8 * 24 * 60 * MINUTE_MS);
        fill(&store).await;
        let got = claimed(&store).await;
        assert!(finish(&store, &got[0], well()).await.outcome.is_applied());
        assert_eq!((is(&store, "unsaid"), account(&store, "unsaid").row.strikes), (AccountStatus::Free, 0));
    });
}

#[test]
fn t12_ha2_places_are_the_accounts_and_a_held_account_does_not_block_its_queue() {
    on_every_store(|store, clock| async move {
        let many = create(&store, &agents("busy", 2, 5, None)).await;
        let got = claimed(&store).await;
        assert_eq!(got.len(), 2, "at most two at once");
        // What waits for the account stands first in the queue, and does not hold back what comes after it.
        clock.advance(1);
        store
            .executor()
            .set_queue(sprag_store::QueueRow { name: "default".into(), limit: Some(2), held: false })
            .await
            .unwrap();
        let other = create(&store, &sequence(1)).await;
        assert_eq!(fill(&store).await, 0, "the queue is full");
        store
            .executor()
            .set_queue(sprag_store::QueueRow { name: "default".into(), limit: Some(3), held: false })
            .await
            .unwrap();
        assert_eq!(fill(&store).await, 1);
        let of_other = claimed(&store).await;
        assert_eq!(of_other[0].lease.execution.run, other);
        let _ = finish(&store, &of_other[0], well()).await;
        store
            .executor()
            .set_queue(sprag_store::QueueRow { name: "default".into(), limit: None, held: false })
            .await
            .unwrap();
        // Pages smaller than the line are read to the end.
        let _ = store.person().hold_account(hold("busy")).await.unwrap();
        let beside = create(&store, &agents("beside", 1, 2, None)).await;
        let more: usize = store.executor().fill_queue("default".into(), 1).await.unwrap();
        let got_beside = claimed(&store).await;
        assert_eq!((more, got_beside.len()), (0, 1), "the first was handed over when its run was created");
        let _ = finish(&store, &got_beside[0], well()).await;
        assert_eq!(store.executor().fill_queue("default".into(), 1).await.unwrap(), 1);
        let got_beside = claimed(&store).await;
        assert_eq!(got_beside[0].lease.execution.run, beside);
        let _ = finish(&store, &got_beside[0], well()).await;
        let _ = store.person().release_account("busy".into()).await.unwrap();
        // A place is free as soon as its execution ends, however it ends.
        assert_eq!(fill(&store).await, 0);
        let _ = finish(&store, &got[0], well()).await;
        assert_eq!(fill(&store).await, 1);
        assert!(store.reaper().owner_died(got[1].lease).await.unwrap().is_applied());
        assert_eq!(account(&store, "busy").out, 2, "a lost worker is replaced at once");
        let cancelled = store.person().cancel_run(many).await.unwrap();
        assert!(cancelled.is_applied());
        assert_eq!((account(&store, "busy").out, account(&store, "busy").waiting), (0, 0));
    });
}

#[test]
fn ha6_a_step_waits_for_holds_only_as_long_as_its_plan_allows() {
    on_every_store(|store, clock| async move {
        let run = create(&store, &agents("bound", 3, 1, Some(60 * MINUTE_MS as u64))).await;
        let got = claimed(&store).await;
        let _ = finish(&store, &got[0], limit(Some(now_ms(&store) + 40 * MINUTE_MS))).await;
        clock.advance(40 * MINUTE_MS);
        fill(&store).await;
        // The time at work does not count.
        let got = claimed(&store).await;
        clock.advance(300 * MINUTE_MS);
        let _ = finish(&store, &got[0], limit(Some(now_ms(&store) + 40 * MINUTE_MS))).await;
        let timers = look(&store, |db| db.timers_due(i64::MAX, 10));
        assert_eq!(timers.len(), 1);
        assert_eq!(timers[0].due_ms, store.now().steady_ms + 20 * MINUTE_MS);
        clock.advance(20 * MINUTE_MS);
        let _ = store.executor().timer_fired(timers[0].execution).await.unwrap();
        assert_eq!(status(&store, run), "failed");
        let execution = store.queries().execution(timers[0].execution).unwrap().unwrap();
        assert!(execution.result.unwrap().contains("account bound was held"));
        assert_eq!(is(&store, "bound"), AccountStatus::Held);
    });
}

#[test]
fn a_person_holds_an_account_before_its_first_use_and_replaces_a_hold() {
    on_every_store(|store, clock| async move {
        assert!(store.person().hold_account(hold("new")).await.unwrap().is_applied());
        let run = create(&store, &agents("new", 3, 1, None)).await;
        clock.advance(48 * 60 * MINUTE_MS);
        assert_eq!(fill(&store).await, 0, "only a person ends it");
        let until_ms = Some(now_ms(&store) + MINUTE_MS);
        let again = NewHold { until_ms, ..hold("new") };
        assert!(store.person().hold_account(again).await.unwrap().is_applied());
        assert_eq!(fill(&store).await, 0);
        clock.advance(MINUTE_MS);
        assert_eq!(fill(&store).await, 1);
        let got = claimed(&store).await;
        let _ = finish(&store, &got[0], well()).await;
        assert_eq!(status(&store, run), "completed");
    });
}

/// Returns a plan of one step that may fall back on another account.
fn with_fallback(longest_wait_ms: Option<u64>) -> Arc<Plan> {
    let spare = PlanFallback { agent: "codex".into(), account: "spare".into(), max_parallel: 1 };
    let account =
        PlanAccount { name: "work".into(), max_parallel: 3, longest_wait_ms, fallbacks: vec![spare] };
    let step = PlanStep { account: Some(account), ..step(0, &[], tries(1)) };
    Arc::new(Plan::new("agents", vec![step]).unwrap())
}

#[test]
fn t04_ha7_a_fallback_takes_over_a_limited_attempt_and_the_own_agent_comes_first_again() {
    on_every_store(|store, clock| async move {
        let run = create(&store, &with_fallback(None)).await;
        let own = claimed(&store).await;
        assert_eq!((own.len(), own[0].stand_in.as_deref()), (1, None));
        let until_ms = now_ms(&store) + 10 * MINUTE_MS;
        assert!(finish(&store, &own[0], limit(Some(until_ms))).await.outcome.is_applied());
        // The same attempt goes to the other agent, in the commit that holds the account.
        assert_eq!((is(&store, "work"), is(&store, "spare")), (AccountStatus::Held, AccountStatus::Free));
        let other = claimed(&store).await;
        assert_eq!((other.len(), other[0].stand_in.as_deref()), (1, Some("codex")));
        assert_eq!(other[0].lease.execution, own[0].lease.execution);
        assert_eq!(attempt(&store, run), (1, 0, 0), "no try is lost");
        // A second run finds the fallback full, and waits for its place rather than for the hold.
        let second = create(&store, &with_fallback(None)).await;
        assert!(claimed(&store).await.is_empty());
        let facts = store.queries().wait_facts(&store.queries().run(second).unwrap().unwrap()).unwrap();
        let waits: Vec<_> = facts.accounts.values().map(|wait| (&*wait.account.name, wait.why)).collect();
        assert_eq!(waits, [("spare", AccountBusy::Full)]);
        assert!(finish(&store, &other[0], well()).await.outcome.is_applied());
        assert_eq!(status(&store, run), "completed");
        fill(&store).await;
        let next = claimed(&store).await;
        assert_eq!((next.len(), next[0].stand_in.as_deref()), (1, Some("codex")));
        // Both are held: it waits for the hold that ends first.
        let later_ms = now_ms(&store) + 5 * MINUTE_MS;
        assert!(finish(&store, &next[0], limit(Some(later_ms))).await.outcome.is_applied());
        assert!(claimed(&store).await.is_empty());
        let facts = store.queries().wait_facts(&store.queries().run(second).unwrap().unwrap()).unwrap();
        let waits: Vec<_> = facts.accounts.values().map(|wait| (&*wait.account.name, wait.why)).collect();
        assert_eq!(waits, [("spare", AccountBusy::Held)]);
        // When both are over, the step's own agent comes first.
        clock.advance(11 * MINUTE_MS);
        assert_eq!(fill(&store).await, 1);
        let last = claimed(&store).await;
        assert_eq!((last[0].stand_in.as_deref(), last[0].tries_account), (None, true));
        assert!(finish(&store, &last[0], well()).await.outcome.is_applied());
        assert_eq!(status(&store, second), "completed");
    });
}

#[test]
fn t04_a_step_that_waits_for_a_place_falls_back_when_its_account_is_held_and_returns_when_it_is_released() {
    on_every_store(|store, _| async move {
        for _ in 0..4 {
            create(&store, &with_fallback(None)).await;
        }
        let out = claimed(&store).await;
        assert_eq!(out.len(), 3, "the fourth waits for a place");
        assert_eq!(fill(&store).await, 0);
        assert!(store.person().hold_account(hold("work")).await.unwrap().is_applied());
        assert_eq!(fill(&store).await, 1);
        let fourth = claimed(&store).await;
        assert_eq!((fourth.len(), fourth[0].stand_in.as_deref()), (1, Some("codex")));
        for one in out.iter().chain(&fourth) {
            assert!(finish(&store, one, well()).await.outcome.is_applied());
        }
        // Both are held: the fifth waits for the fallback, whose hold ends first, until a person releases its own.
        let until_ms = Some(now_ms(&store) + 10 * MINUTE_MS);
        let spare = NewHold { until_ms, ..hold("spare") };
        assert!(store.person().hold_account(spare).await.unwrap().is_applied());
        create(&store, &with_fallback(None)).await;
        assert!(claimed(&store).await.is_empty());
        assert_eq!(fill(&store).await, 0);
        assert!(store.person().release_account("work".into()).await.unwrap().is_applied());
        assert_eq!(fill(&store).await, 1);
        let fifth = claimed(&store).await;
        assert_eq!((fifth.len(), fifth[0].stand_in.as_deref()), (1, None));
    });
}

#[test]
fn ha6_a_step_whose_fallbacks_are_held_too_waits_only_as_long_as_its_plan_allows() {
    on_every_store(|store, clock| async move {
        for name in ["work", "spare"] {
            assert!(store.person().hold_account(hold(name)).await.unwrap().is_applied());
        }
        let run = create(&store, &with_fallback(Some(MINUTE_MS as u64))).await;
        assert!(claimed(&store).await.is_empty());
        clock.advance(MINUTE_MS);
        store.executor().heal_run(run).await.unwrap();
        assert_eq!(status(&store, run), "failed");
        let id = sprag_lifecycle::ExecutionId { run, step: 0, attempt: 1 };
        let result = store.queries().execution(id).unwrap().unwrap().result.unwrap();
        assert!(result.contains("the accounts work, spare were held"), "{result}");
    });
}
