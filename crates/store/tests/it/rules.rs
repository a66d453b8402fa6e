//! Rules on every store: a tick fires once, with its event, its decision, its run and the next tick in one commit.

use std::sync::Arc;

use sprag_lifecycle::{
    Concurrency, EnforcementStatus, OnConflict, Plan, PlanStep, RuleEvent, RuleStatus, RunId, RunStatus,
};
use sprag_store::{
    EnforcementRow, FireEvent, FireTick, Fired, Id, Manual, NewDelivery, NewRule, NextTick, Overlap, Rate,
    Row, RuleApplied, RuleChange, RuleRow, RuleSeen, Settled, Store, TriggerDecision, TriggeredRun, Window,
    plan_hash,
};

use crate::common::on_every_store;

pub(crate) fn new_rule(store: &Store, name: &str, hash: &str) -> NewRule {
    NewRule {
        id: store.new_id(),
        name: name.into(),
        definition: "{}".into(),
        hash: hash.into(),
        auto: false,
        source: "schedule",
        next: Some(NextTick { due_ms: 1, key: "tick 1".into() }),
        cursor: Some(0),
    }
}

pub(crate) fn event(store: &Store, key: &str) -> NewDelivery {
    NewDelivery {
        id: store.new_id(),
        enforcement: store.new_id(),
        key: key.into(),
        kind: "tick",
        body: "{}".into(),
        chain: "[]".into(),
    }
}

pub(crate) fn start(store: &Store, overlap: Overlap, window: Option<Window>) -> TriggerDecision {
    let plan = Arc::new(Plan::new("p", vec![PlanStep::new("a", vec![])]).unwrap());
    let plan_hash = plan_hash(&plan);
    let new = store.person().new_run(plan);
    TriggerDecision::Start(Box::new(TriggeredRun { new, plan_hash, overlap, window, rate: None }))
}

/// Returns the commit of tick `n` by a process that read the rule as it is.
pub(crate) fn tick(store: &Store, rule: &RuleRow, n: i64, decision: TriggerDecision) -> FireTick {
    FireTick {
        seen: RuleSeen::of(rule),
        missed: None,
        tick: Some((event(store, &format!("tick {n}")), decision)),
        next: Some(NextTick { due_ms: n + 1, key: format!("tick {}", n + 1).into() }),
        cursor: n,
    }
}

fn rule(store: &Store) -> RuleRow {
    store.queries().rule_called("p/r").unwrap().unwrap()
}

async fn applied(store: &Store) -> RuleRow {
    store.person().apply_rule(new_rule(store, "p/r", "h1")).await.unwrap();
    rule(store)
}

fn pause(row: &RuleRow, event: RuleEvent) -> RuleChange {
    RuleChange { event, generation: row.generation, reason: None, next: None }
}

#[test]
fn r01_two_servers_that_read_one_tick_fire_it_once() {
    on_every_store(|store, _| async move {
        let seen = applied(&store).await;
        let both = [
            tick(&store, &seen, 1, start(&store, Overlap::Allow, None)),
            tick(&store, &seen, 1, start(&store, Overlap::Allow, None)),
        ];
        let [one, other] = both.map(|fire| {
            let store = store.clone();
            tokio::spawn(async move { store.executor().fire_tick(fire).await.unwrap() })
        });
        let fired = [one.await.unwrap(), other.await.unwrap()];
        assert_eq!(fired.iter().filter(|fired| **fired == Fired::Superseded).count(), 1, "{fired:?}");
        let row = rule(&store);
        assert_eq!((row.cursor, row.next_ms, &*row.next_key), (1, Some(2), "tick 2"));
        let decisions = store.queries().decisions(row.id, 10).unwrap();
        assert_eq!(decisions.len(), 1);
        assert_eq!(decisions[0].0.status(), EnforcementStatus::Requested);
        let run = decisions[0].0.run.unwrap();
        assert_eq!(row.run, Some(run));
        assert_eq!(store.queries().runs(None, &[], 10).unwrap().len(), 1);
        let key = store.queries().run(run).unwrap().unwrap().idempotency_key.unwrap();
        assert_eq!(*key, format!("enforcement:{}", decisions[0].0.id));
    });
}

#[test]
fn r02_a_tick_and_its_run_are_one_commit() {
    on_every_store(|store, _| async move {
        let seen = applied(&store).await;
        store
            .executor()
            .fire_tick(tick(&store, &seen, 1, start(&store, Overlap::Allow, None)))
            .await
            .unwrap();
        let row = rule(&store);
        let runs = store.queries().runs(None, &[], 10).unwrap();
        // The cursor passes a tick only together with its run, and no run starts without the cursor.
        assert_eq!((row.cursor, runs.len()), (1, 1));
        let entries = store.queries().journal(0, None, 100).unwrap().entries;
        let events: Vec<&str> = entries.iter().map(|entry| entry.event).collect();
        for event in ["rule.created", "enforcement.created", "run.created", "enforcement.requested"] {
            assert!(events.contains(&event), "{events:?}");
        }
        // A tick whose key is known fires no second time, even if the cursor is moved back.
        let next = NextTick { due_ms: 1, key: "tick 1".into() };
        assert!(store.executor().reschedule_rule(RuleSeen::of(&row), next, 0).await.unwrap());
        let again = tick(&store, &rule(&store), 1, start(&store, Overlap::Allow, None));
        let fired = store.executor().fire_tick(again).await.unwrap();
        assert_eq!(fired, Fired::Decided { enforcement: None, run: None });
        assert_eq!(store.queries().runs(None, &[], 10).unwrap().len(), 1);
        assert_eq!(rule(&store).cursor, 1);
    });
}

#[test]
fn r07_overlap_skips_queues_or_replaces() {
    on_every_store(|store, _| async move {
        applied(&store).await;
        let mut runs = Vec::new();
        for (n, overlap, expected) in [
            (1, Overlap::Skip, EnforcementStatus::Requested),
            (2, Overlap::Skip, EnforcementStatus::Skipped),
            (3, Overlap::CancelOlder, EnforcementStatus::Requested),
            (4, Overlap::Allow, EnforcementStatus::Requested),
        ] {
            let fire = tick(&store, &rule(&store), n, start(&store, overlap, None));
            store.executor().fire_tick(fire).await.unwrap();
            let decisions = store.queries().decisions(rule(&store).id, 10).unwrap();
            let (row, _) = decisions.iter().find(|(_, event)| *event.key == *format!("tick {n}")).unwrap();
            assert_eq!(row.status(), expected, "{n}: {row:?}");
            if expected == EnforcementStatus::Skipped {
                let reason = row.reason.as_deref().unwrap();
                assert!(reason.ends_with("of this rule has not ended"), "{reason}");
            }
            runs.extend(row.run);
        }
        assert_eq!(runs.len(), 3);
        let first = store.queries().run(runs[0]).unwrap().unwrap();
        assert!(first.reason.unwrap().contains("replaces it"));
    });
}

/// A group of a pipeline whose rule has a group of its own.
const OWN: &str = "mine";

/// Returns the decision of a rule with an overlap policy, whose pipeline has a group with five places.
fn start_in_own_group(store: &Store, overlap: Overlap) -> TriggerDecision {
    let mut plan = Plan::new("p", vec![PlanStep::new("a", vec![])]).unwrap();
    plan.concurrency = Some(Concurrency { group: OWN.to_owned(), limit: 5, on_conflict: OnConflict::Queue });
    plan.second_group = Some("rule:p/r".into());
    let plan = Arc::new(plan);
    let plan_hash = plan_hash(&plan);
    let new = store.person().new_run(plan);
    TriggerDecision::Start(Box::new(TriggeredRun { new, plan_hash, overlap, window: None, rate: None }))
}

/// Fires tick `n`. Returns its decision.
async fn fired(store: &Store, n: i64, decision: TriggerDecision) -> EnforcementRow {
    let fire = tick(store, &rule(store), n, decision);
    let fired = store.executor().fire_tick(fire).await.unwrap();
    let Fired::Decided { enforcement: Some(id), .. } = fired else { panic!("{fired:?}") };
    let decisions = store.queries().decisions(rule(store).id, 100).unwrap();
    decisions.into_iter().find(|(row, _)| row.id == id).unwrap().0
}

fn status(store: &Store, run: RunId) -> RunStatus {
    store.queries().run(run).unwrap().unwrap().status()
}

#[test]
fn r07_hr9_a_resumed_run_never_runs_beside_a_newer_one_of_its_rule() {
    on_every_store(|store, _| async move {
        applied(&store).await;
        let skip = || start_in_own_group(&store, Overlap::Skip);
        let first = fired(&store, 1, skip()).await.run.unwrap();
        let _ = store.person().cancel_run(first).await.unwrap();
        assert_eq!(status(&store, first), RunStatus::Cancelled);
        let second = fired(&store, 2, skip()).await.run.unwrap();
        let refused = store.person().resume_run(first, None).await.unwrap_err();
        assert!(refused.to_string().contains("\"rule:p/r\" is full"), "{refused}");
        assert_eq!(
            (status(&store, first), status(&store, second)),
            (RunStatus::Cancelled, RunStatus::Running)
        );
        // The other way round: an older run that was resumed is in the way of the next tick.
        let _ = store.person().cancel_run(second).await.unwrap();
        let _ = store.person().resume_run(first, None).await.unwrap();
        let third = fired(&store, 3, skip()).await;
        assert_eq!(third.reason, Some(format!("run {first} of this rule has not ended").into()));
        // `queue`: the next run waits, although its group has places, and a further one is skipped.
        let queue = || start_in_own_group(&store, Overlap::Queue);
        let fourth = fired(&store, 4, queue()).await.run.unwrap();
        assert_eq!(status(&store, fourth), RunStatus::Queued);
        assert_eq!(fired(&store, 5, queue()).await.run, None);
        assert_eq!(store.executor().fill_group(OWN.into(), vec![]).await.unwrap(), None);
        let row = store.queries().run(fourth).unwrap().unwrap();
        let facts = store.queries().wait_facts(&row).unwrap();
        assert_eq!((facts.group.as_deref(), facts.place_holders), (Some("rule:p/r"), vec![first]));
        let _ = store.person().cancel_run(first).await.unwrap();
        assert_eq!(store.executor().fill_group(OWN.into(), vec![]).await.unwrap(), Some(fourth));
        // `cancel_older` cancels the run that has the place.
        let fifth = fired(&store, 6, start_in_own_group(&store, Overlap::CancelOlder)).await.run.unwrap();
        assert_eq!(status(&store, fourth), RunStatus::Cancelled);
        assert!(matches!(status(&store, fifth), RunStatus::Queued | RunStatus::Running));
    });
}

#[test]
fn r10_nothing_starts_after_a_pause() {
    on_every_store(|store, _| async move {
        let seen = applied(&store).await;
        let late = tick(&store, &seen, 1, start(&store, Overlap::Allow, None));
        let waiting = event(&store, "request 1");
        let receipt = store.person().receive_event(seen.id, waiting.clone()).await.unwrap();
        assert!(receipt.is_new);
        let _ = store.person().change_rule(seen.id, pause(&seen, RuleEvent::Paused)).await.unwrap();
        assert_eq!(rule(&store).status(), RuleStatus::Paused);
        assert_eq!(store.executor().fire_tick(late).await.unwrap(), Fired::Superseded);
        let decision = start(&store, Overlap::Allow, None);
        let settled = store.executor().decide(waiting.enforcement, seen.generation, decision).await.unwrap();
        assert_eq!(settled, Settled::Skipped);
        assert!(store.queries().runs(None, &[], 10).unwrap().is_empty());
        assert!(store.queries().rules_due(i64::MAX, 10).unwrap().is_empty());
        let again = store.person().change_rule(seen.id, pause(&seen, RuleEvent::Paused)).await.unwrap();
        assert!(!again.is_applied());
        let _ = store.person().change_rule(seen.id, pause(&seen, RuleEvent::Resumed)).await.unwrap();
        assert_eq!(rule(&store).status(), RuleStatus::Active);
    });
}

#[test]
fn r15_an_event_that_is_repeated_is_stored_once() {
    on_every_store(|store, _| async move {
        let seen = applied(&store).await;
        let mut calls = Vec::new();
        for _ in 0..10 {
            let (store, event) = (store.clone(), event(&store, "request 1"));
            calls.push(tokio::spawn(
                async move { store.person().receive_event(seen.id, event).await.unwrap() },
            ));
        }
        let mut receipts = Vec::new();
        for call in calls {
            receipts.push(call.await.unwrap());
        }
        assert_eq!(receipts.iter().filter(|receipt| receipt.is_new).count(), 1, "{receipts:?}");
        assert!(receipts.iter().all(|receipt| receipt.event == receipts[0].event), "{receipts:?}");
        // R14: what was acknowledged is there.
        assert!(store.queries().delivery(receipts[0].event).unwrap().is_some());
        assert_eq!(store.queries().enforcements_due(store.now().steady_ms, 10).unwrap().len(), 1);
        // R26: a key is kept while its event may be repeated.
        assert_eq!(store.person().forget_events(0, 100).await.unwrap(), 0);
        assert!(store.queries().delivery(receipts[0].event).unwrap().is_some());
    });
}

#[test]
fn r26_decided_events_are_forgotten_after_their_time_and_not_before() {
    on_every_store(|store, _| async move {
        let seen = applied(&store).await;
        let fire = tick(&store, &seen, 1, TriggerDecision::Skip("no".into()));
        store.executor().fire_tick(fire).await.unwrap();
        let received_ms = store.queries().deliveries(None, 10).unwrap()[0].received_ms;
        assert_eq!(store.person().forget_events(received_ms, 100).await.unwrap(), 0);
        assert!(store.queries().delivery_called(seen.id, "tick 1").unwrap().is_some());
        assert_eq!(store.person().forget_events(received_ms + 1, 100).await.unwrap(), 1);
        assert!(store.queries().delivery_called(seen.id, "tick 1").unwrap().is_none());
        assert!(store.queries().decisions(seen.id, 10).unwrap().is_empty());
    });
}

#[test]
fn r20_a_condition_without_an_answer_is_failed() {
    on_every_store(|store, _| async move {
        let seen = applied(&store).await;
        let fire = tick(&store, &seen, 1, TriggerDecision::Fail("no value for event.x".into()));
        store.executor().fire_tick(fire).await.unwrap();
        let decisions = store.queries().decisions(seen.id, 10).unwrap();
        assert_eq!(decisions[0].0.status(), EnforcementStatus::Failed);
        assert_eq!(decisions[0].0.reason.as_deref(), Some("no value for event.x"));
    });
}

#[test]
fn r22_events_of_one_window_become_one_run_with_the_last() {
    on_every_store(|store, _| async move {
        let seen = applied(&store).await;
        let window = |for_ms| Some(Window { key: "k".into(), for_ms, at_most_ms: 3_600_000 });
        let mut enforcements = Vec::new();
        for n in 0..3 {
            let event = event(&store, &format!("request {n}"));
            store.person().receive_event(seen.id, event.clone()).await.unwrap();
            let decision = start(&store, Overlap::Allow, window(if n < 2 { 3_600_000 } else { 0 }));
            let settled = store.executor().decide(event.enforcement, 1, decision).await.unwrap();
            assert_eq!(settled, Settled::Held);
            enforcements.push(event.enforcement);
        }
        let decisions = store.queries().decisions(seen.id, 10).unwrap();
        let of = |id| decisions.iter().find(|(row, _)| row.id == id).unwrap().0.clone();
        assert_eq!(of(enforcements[0]).status(), EnforcementStatus::Skipped);
        assert!(of(enforcements[0]).reason.unwrap().starts_with("merged into event"));
        assert_eq!(of(enforcements[1]).status(), EnforcementStatus::Skipped);
        let decision = start(&store, Overlap::Allow, window(0));
        let settled = store.executor().decide(enforcements[2], 1, decision).await.unwrap();
        assert!(settled.run().is_some(), "{settled:?}");
        assert_eq!(store.queries().runs(None, &[], 10).unwrap().len(), 1);
    });
}

/// Returns the decision to start a run with these limits.
fn limited(store: &Store, window: Option<Window>, rate: Option<Rate>) -> TriggerDecision {
    let TriggerDecision::Start(run) = start(store, Overlap::Allow, window) else { panic!("a run") };
    TriggerDecision::Start(Box::new(TriggeredRun { rate, ..*run }))
}

/// Stores an event of the rule. Returns its enforcement.
async fn received(store: &Store, key: &str) -> Id {
    let event = event(store, key);
    store.person().receive_event(rule(store).id, event.clone()).await.unwrap();
    event.enforcement
}

fn enforcement(store: &Store, id: Id) -> EnforcementRow {
    let decisions = store.queries().decisions(rule(store).id, 1_000).unwrap();
    decisions.into_iter().find(|(row, _)| row.id == id).unwrap().0
}

#[test]
fn r22_a_window_ends_at_its_longest_time_whatever_arrives() {
    on_every_store(|store, clock| async move {
        applied(&store).await;
        let window = || Some(Window { key: "k".into(), for_ms: 20_000, at_most_ms: 50_000 });
        let mut last = 0;
        let first_ms = store.now().steady_ms;
        for n in 0..6 {
            last = received(&store, &format!("request {n}")).await;
            let settled = store.executor().decide(last, 1, limited(&store, window(), None)).await.unwrap();
            assert_eq!(settled, Settled::Held);
            let expected = (store.now().steady_ms + 20_000).min(first_ms + 50_000);
            assert_eq!(enforcement(&store, last).due_ms, expected, "event {n}");
            clock.advance(9_000);
        }
        let settled = store.executor().decide(last, 1, limited(&store, window(), None)).await.unwrap();
        assert!(settled.run().is_some(), "its longest time is over: {settled:?}");
        assert_eq!(store.queries().runs(None, &[], 10).unwrap().len(), 1);
    });
}

#[test]
fn hr10_events_that_wait_for_a_rate_start_in_their_order() {
    on_every_store(|store, clock| async move {
        applied(&store).await;
        let rate = Some(Rate { limit: 1, per_ms: 300, hold: true });
        let decide = |id: Id| {
            let (store, decision) = (store.clone(), limited(&store, None, rate));
            async move { store.executor().decide(id, 1, decision).await.unwrap() }
        };
        let mut waiting = Vec::new();
        for n in 0..4 {
            let id = received(&store, &format!("request {n}")).await;
            let settled = decide(id).await;
            assert_eq!(settled.run().is_some(), n == 0, "{settled:?}");
            if n > 0 {
                waiting.push(id);
            }
            pass(&store, &clock, store.now().steady_ms + 2);
        }
        // Each has a time of its own, so none wakes in vain.
        let due: Vec<i64> = waiting.iter().map(|id| enforcement(&store, *id).due_ms).collect();
        assert!(due.windows(2).all(|pair| pair[1] >= pair[0] + 300), "{due:?}");
        let mut order = Vec::new();
        pass(&store, &clock, due[0]);
        // A newcomer that is decided first waits behind all of them.
        let newcomer = received(&store, "newcomer").await;
        assert_eq!(decide(newcomer).await, Settled::Held);
        assert!(enforcement(&store, newcomer).due_ms >= due[2] + 300);
        waiting.push(newcomer);
        // All of them are due, as after a time without a server: they are decided in the wrong order, and start in
        // the right one, as far apart as the rate wants.
        pass(&store, &clock, enforcement(&store, newcomer).due_ms);
        for _ in 0..40 {
            for id in waiting.iter().rev() {
                if decide(*id).await.run().is_some() {
                    order.push((*id, store.now().steady_ms));
                }
            }
            if order.len() == waiting.len() {
                break;
            }
            pass(&store, &clock, store.now().steady_ms + 100);
        }
        assert_eq!(order.iter().map(|(id, _)| *id).collect::<Vec<_>>(), waiting);
        assert!(order.windows(2).all(|pair| pair[1].1 >= pair[0].1 + 290), "{order:?}");
        assert_eq!(store.queries().runs(None, &[], 10).unwrap().len(), 5);
    });
}

/// Lets time pass until the store's clock has this time.
fn pass(store: &Store, clock: &Manual, until_ms: i64) {
    clock.advance((until_ms - store.now().steady_ms).max(0));
}

#[test]
fn hr3_an_event_that_is_held_is_decided_by_what_the_rule_is_then() {
    on_every_store(|store, clock| async move {
        let seen = applied(&store).await;
        let window = || Some(Window { key: "k".into(), for_ms: 20, at_most_ms: 100 });
        let held = received(&store, "request 1").await;
        store.executor().decide(held, 1, limited(&store, window(), None)).await.unwrap();
        // A new definition: what was decided by the old one does not count.
        store.person().apply_rule(new_rule(&store, "p/r", "h2")).await.unwrap();
        pass(&store, &clock, enforcement(&store, held).due_ms);
        let stale = store.executor().decide(held, 1, limited(&store, window(), None)).await.unwrap();
        assert_eq!(stale, Settled::Superseded);
        let now = store.executor().decide(held, 2, limited(&store, window(), None)).await.unwrap();
        assert!(now.run().is_some(), "{now:?}");
        // A pause: the event is skipped when it is due, and does not wait for ever.
        let held = received(&store, "request 2").await;
        store.executor().decide(held, 2, limited(&store, window(), None)).await.unwrap();
        let change = RuleChange { generation: 2, ..pause(&seen, RuleEvent::Paused) };
        let _ = store.person().change_rule(seen.id, change).await.unwrap();
        pass(&store, &clock, enforcement(&store, held).due_ms);
        let settled = store.executor().decide(held, 2, limited(&store, window(), None)).await.unwrap();
        assert_eq!(settled, Settled::Skipped);
        assert_eq!(enforcement(&store, held).reason.as_deref(), Some("the rule is paused"));
    });
}

#[test]
fn a_definition_is_applied_once_and_a_new_one_counts_from_now() {
    on_every_store(|store, _| async move {
        let first = store.person().apply_rule(new_rule(&store, "p/r", "h1")).await.unwrap();
        assert!(matches!(first, RuleApplied::New(_)));
        let before = rule(&store);
        let same = store.person().apply_rule(new_rule(&store, "p/r", "h1")).await.unwrap();
        assert_eq!(same, RuleApplied::Unchanged(first.id()));
        assert_eq!(rule(&store), before, "the same definition writes nothing");
        let stale = tick(&store, &before, 1, start(&store, Overlap::Allow, None));
        let changed = store.person().apply_rule(new_rule(&store, "p/r", "h2")).await.unwrap();
        assert_eq!(changed, RuleApplied::Changed(first.id()));
        assert_eq!(rule(&store).generation, 2);
        assert_eq!(store.executor().fire_tick(stale).await.unwrap(), Fired::Superseded);
        // A stale report does not break the new definition.
        let broke = store.executor().rule_broke(first.id(), 1, "old".into()).await.unwrap();
        assert!(!broke.is_applied());
        let broke = store.executor().rule_broke(first.id(), 2, "unreadable".into()).await.unwrap();
        assert!(broke.is_applied());
        assert_eq!(rule(&store).reason.as_deref(), Some("unreadable"));
        store.person().apply_rule(new_rule(&store, "p/r", "h2")).await.unwrap();
        assert_eq!((rule(&store).status(), rule(&store).reason), (RuleStatus::Active, None));
    });
}

#[test]
fn hr8_a_server_that_applies_a_file_neither_moves_a_rule_nor_revives_it() {
    on_every_store(|store, _| async move {
        let before = applied(&store).await;
        let elsewhere = |auto: bool| NewRule {
            definition: "{\"file\":\"b\"}".into(),
            auto,
            next: Some(NextTick { due_ms: 9, key: "tick 9".into() }),
            cursor: Some(8),
            ..new_rule(&store, "p/r", "h1")
        };
        let same = store.person().apply_rule(elsewhere(true)).await.unwrap();
        assert_eq!((same, rule(&store)), (RuleApplied::Unchanged(before.id), before.clone()));
        let moved = store.person().apply_rule(elsewhere(false)).await.unwrap();
        assert_eq!(moved, RuleApplied::Changed(before.id));
        let row = rule(&store);
        assert_eq!((row.generation, row.cursor, row.next_ms), (2, before.cursor, before.next_ms));
        let change = RuleChange { generation: 2, ..pause(&row, RuleEvent::Retired) };
        let _ = store.person().change_rule(row.id, change).await.unwrap();
        let left = store.person().apply_rule(elsewhere(true)).await.unwrap();
        assert_eq!(left, RuleApplied::StaysRetired(row.id));
        assert_eq!(rule(&store).status(), RuleStatus::Retired);
        store.person().apply_rule(elsewhere(false)).await.unwrap();
        let row = rule(&store);
        assert_eq!((row.status(), row.cursor, row.next_ms), (RuleStatus::Active, 8, Some(9)));
    });
}

#[test]
fn r24_a_test_decides_as_firing_does_and_writes_nothing() {
    on_every_store(|store, _| async move {
        let seen = applied(&store).await;
        let tried = |overlap: Overlap, window: Option<Window>| {
            let (store, event) = (store.clone(), event(&store, "test"));
            let decision = start(&store, overlap, window);
            async move { store.person().try_event(seen.id, event, decision).await.unwrap() }
        };
        let counted = || {
            let queries = store.queries();
            let journal = queries.journal(0, None, 1_000).unwrap().entries.len();
            let events = queries.deliveries(None, 10).unwrap().len();
            (journal, events, queries.decisions(seen.id, 10).unwrap().len())
        };
        let before = counted();
        assert_eq!(tried(Overlap::Skip, None).await.status(), EnforcementStatus::Requested);
        let window = Window { key: "k".into(), for_ms: 60_000, at_most_ms: 60_000 };
        assert_eq!(tried(Overlap::Skip, Some(window)).await.status(), EnforcementStatus::Held);
        assert_eq!(counted(), before);
        assert_eq!(rule(&store), seen);
        let run = fired(&store, 1, start(&store, Overlap::Skip, None)).await.run.unwrap();
        let before = counted();
        let skipped = tried(Overlap::Skip, None).await;
        assert_eq!(skipped.reason, Some(format!("run {run} of this rule has not ended").into()));
        assert_eq!(tried(Overlap::CancelOlder, None).await.status(), EnforcementStatus::Requested);
        assert_eq!(counted(), before);
        assert!(!status(&store, run).is_terminal(), "the run goes on");
        let _ = store.person().change_rule(seen.id, pause(&seen, RuleEvent::Paused)).await.unwrap();
        assert_eq!(tried(Overlap::Allow, None).await.reason.as_deref(), Some("the rule is paused"));
    });
}

#[test]
fn r19_an_event_that_a_rule_finds_counts_once_with_its_cursor() {
    on_every_store(|store, _| async move {
        let new = |hash: &str| NewRule { source: "git", ..new_rule(&store, "p/r", hash) };
        store.person().apply_rule(new("h1")).await.unwrap();
        let seen = RuleSeen::of(&rule(&store));
        assert!(store.queries().rules_due(i64::MAX, 10).unwrap().is_empty(), "it has no ticks");
        assert_eq!(store.queries().looks_due(i64::MAX, 10).unwrap().len(), 1);
        // One of two processes claims a look that is due. It is due again at the time that was given.
        let later_ms = store.now().wall_ms + 60_000;
        assert!(store.executor().claim_look(seen, later_ms).await.unwrap());
        assert!(!store.executor().claim_look(seen, later_ms).await.unwrap());
        assert!(store.queries().looks_due(later_ms - 1, 10).unwrap().is_empty());
        let found = |seen: RuleSeen, key: &str| FireEvent {
            seen,
            event: Some((event(&store, key), start(&store, Overlap::Allow, None))),
            cursor: seen.cursor + 1,
            watched: Some("{\"main\":1}".into()),
        };
        store.executor().note_sight(seen, Some("gone".into())).await.unwrap();
        assert_eq!(rule(&store).reason.as_deref(), Some("gone"));
        let [one, other] = [found(seen, "main 0"), found(seen, "main 0")].map(|fire| {
            let store = store.clone();
            tokio::spawn(async move { store.executor().fire_event(fire).await.unwrap() })
        });
        let fired = [one.await.unwrap(), other.await.unwrap()];
        assert_eq!(fired.iter().filter(|fired| **fired == Fired::Superseded).count(), 1, "{fired:?}");
        let row = rule(&store);
        assert_eq!((row.cursor, row.next_ms, row.reason.as_deref()), (1, Some(later_ms), None));
        assert_eq!(row.watched.as_deref(), Some("{\"main\":1}"));
        // A key that is known fires no second time, whatever the cursor says.
        let again = store.executor().fire_event(found(RuleSeen::of(&row), "main 0")).await.unwrap();
        assert_eq!(again, Fired::Decided { enforcement: None, run: None });
        assert_eq!(store.queries().runs(None, &[], 10).unwrap().len(), 1);
        // A changed rule keeps what it has seen; a rule with another source begins anew.
        store.person().apply_rule(new("h2")).await.unwrap();
        let row = rule(&store);
        assert_eq!((row.cursor, row.watched.is_some()), (2, true));
        let stale = found(RuleSeen { generation: 1, ..RuleSeen::of(&row) }, "main 2");
        assert_eq!(store.executor().fire_event(stale).await.unwrap(), Fired::Superseded);
        let new = NewRule { source: "run", next: None, cursor: Some(7), ..new("h3") };
        store.person().apply_rule(new).await.unwrap();
        let row = rule(&store);
        assert_eq!((row.cursor, row.watched.as_deref(), row.next_ms), (7, None, None));
        assert_eq!(store.queries().rules_about_runs().unwrap().len(), 1);
        let paused = store.person().change_rule(row.id, pause(&row, RuleEvent::Paused)).await.unwrap();
        assert!(paused.is_applied());
        assert!(store.queries().rules_about_runs().unwrap().is_empty());
        let late = found(RuleSeen::of(&rule(&store)), "main 3");
        assert_eq!(store.executor().fire_event(late).await.unwrap(), Fired::Superseded);
    });
}
