//! Rules on every store: a tick fires once, with its event, its decision, its run and the next tick in one commit.

use std::sync::Arc;

use sprag_lifecycle::{EnforcementStatus, Plan, PlanStep, RuleEvent, RuleStatus};
use sprag_store::{
    FireEvent, FireTick, Fired, NewDelivery, NewRule, NextTick, Overlap, Row, RuleApplied, RuleChange,
    RuleRow, RuleSeen, Settled, Store, TriggerDecision, TriggeredRun, Window, plan_hash,
};

use crate::common::on_every_store;

fn new_rule(store: &Store, name: &str, hash: &str) -> NewRule {
    NewRule {
        id: store.new_id(),
        name: name.into(),
        definition: "{}".into(),
        hash: hash.into(),
        source: "schedule",
        next: Some(NextTick { due_ms: 1, key: "tick 1".into() }),
        cursor: Some(0),
    }
}

fn event(store: &Store, key: &str) -> NewDelivery {
    NewDelivery {
        id: store.new_id(),
        enforcement: store.new_id(),
        key: key.into(),
        kind: "tick",
        body: "{}".into(),
        chain: "[]".into(),
    }
}

fn start(store: &Store, overlap: Overlap, window: Option<Window>) -> TriggerDecision {
    let plan = Arc::new(Plan::new("p", vec![PlanStep::new("a", vec![])]).unwrap());
    let plan_hash = plan_hash(&plan);
    let new = store.person().new_run(plan);
    TriggerDecision::Start(Box::new(TriggeredRun { new, plan_hash, overlap, window, rate: None }))
}

/// Returns the commit of tick `n` by a process that read the rule as it is.
fn tick(store: &Store, rule: &RuleRow, n: i64, decision: TriggerDecision) -> FireTick {
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
        assert_eq!(store.queries().enforcements_due(0, 10).unwrap().len(), 1);
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
