//! A power loss, and a full or broken disk, at every operation of firing and receiving: an acknowledged event is there
//! once, and each tick has one run.

use std::collections::BTreeSet;
use std::path::Path;

use sprag_lifecycle::{EnforcementStatus, RunId};
use sprag_store::{Error, Fired, Id, NewRule, Overlap, Row, RuleRow, Settled, Store};

use super::vfs::{self, Fault, Op};
use super::{ALONE, Image, Losses, Told, check, folder, found, nightly, open, runtime};
use crate::rules::{event, new_rule, start, tick};

/// The number of ticks, and of requests, in a history.
const EACH: i64 = 4;

/// Something that a caller was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleFact {
    /// A sender got the number of its event.
    Taken(i64, Id),
    /// A server has fired a tick, with this run.
    Fired(i64, RunId),
    /// A server has decided an event, with this run.
    Decided(Id, RunId),
}

fn rule(store: &Store, name: &str) -> Result<Option<RuleRow>, Error> {
    store.queries().rule_called(name)
}

/// Applies the rules that are not there, and returns both: one with ticks, one with requests.
async fn rules(store: &Store) -> Result<(RuleRow, RuleRow), Error> {
    store.person().apply_rule(new_rule(store, "p/tick", "h")).await?;
    let asked = NewRule { source: "webhook", next: None, ..new_rule(store, "p/asked", "h") };
    store.person().apply_rule(asked).await?;
    let missing = || Error::Conflict { entity: "rule", id: "p".into() };
    let (tick, asked) = (rule(store, "p/tick")?, rule(store, "p/asked")?);
    Ok((tick.ok_or_else(missing)?, asked.ok_or_else(missing)?))
}

/// Takes request `n`.
async fn take(store: &Store, rule: Id, n: i64) -> Result<RuleFact, Error> {
    let receipt = store.person().receive_event(rule, event(store, &format!("request {n}"))).await?;
    Ok(RuleFact::Taken(n, receipt.event))
}

/// Fires the tick after the rule's cursor.
async fn fire(store: &Store, rule: &RuleRow) -> Result<Option<RuleFact>, Error> {
    let n = rule.cursor + 1;
    let fire = tick(store, rule, n, start(store, Overlap::Allow, None));
    match store.executor().fire_tick(fire).await? {
        Fired::Decided { run: Some(run), .. } => Ok(Some(RuleFact::Fired(n, run))),
        _ => Ok(None),
    }
}

/// Decides all events that wait.
async fn decide(store: &Store, told: &mut Told<RuleFact>) -> Result<(), Error> {
    for (row, rule, _) in store.queries().enforcements_due(i64::MAX, 100)? {
        let decision = start(store, Overlap::Allow, None);
        if let Settled::Requested(run) = store.executor().decide(row.id, rule.generation, decision).await? {
            told.tell(RuleFact::Decided(row.event, run));
        }
    }
    Ok(())
}

/// Work on a store: ticks and requests by turns, some of them in one commit, and the decisions about them.
async fn work(folder: &Path, seed: u64, told: &mut Told<RuleFact>) -> Result<(), Error> {
    let store = open(folder, seed)?;
    let (_, asked) = rules(&store).await?;
    for n in 1..=EACH {
        let Some(due) = rule(&store, "p/tick")?.filter(|rule| rule.cursor < EACH) else { return Ok(()) };
        if (seed + n as u64).is_multiple_of(2) {
            // Both wait for one commit.
            let (fired, taken) = tokio::join!(fire(&store, &due), take(&store, asked.id, n));
            fired?.into_iter().chain([taken?]).for_each(|fact| told.tell(fact));
        } else {
            fire(&store, &due).await?.into_iter().for_each(|fact| told.tell(fact));
            told.tell(take(&store, asked.id, n).await?);
        }
        decide(&store, told).await?;
    }
    Ok(())
}

/// Asserts that every acknowledged change is in the store.
fn expect(store: &Store, facts: &[RuleFact]) {
    let queries = || store.queries();
    for fact in facts {
        match *fact {
            RuleFact::Taken(n, id) => {
                let asked = rule(store, "p/asked").unwrap().expect("its rule");
                let found = queries().delivery_called(asked.id, &format!("request {n}")).unwrap();
                assert_eq!(found.map(|found| found.id), Some(id), "request {n} was answered");
                assert_eq!(queries().enforcements_of(id).unwrap().len(), 1, "request {n} is decided once");
            }
            RuleFact::Fired(n, run) => {
                let due = rule(store, "p/tick").unwrap().expect("its rule");
                assert!(due.cursor >= n, "tick {n} was answered, and the cursor is {}", due.cursor);
                assert!(queries().run(run).unwrap().is_some(), "the run of tick {n} was answered");
            }
            RuleFact::Decided(event, run) => {
                let last = queries().enforcements_of(event).unwrap().remove(0);
                assert_eq!((last.status(), last.run), (EnforcementStatus::Requested, Some(run)), "{event}");
                assert!(queries().run(run).unwrap().is_some(), "the run of event {event} was answered");
            }
        }
    }
}

/// Continues as servers and senders do, and asserts that each tick and each request has one run.
async fn go_on(store: &Store) {
    let (_, asked) = rules(store).await.unwrap();
    while let Some(due) = rule(store, "p/tick").unwrap().filter(|rule| rule.cursor < EACH) {
        fire(store, &due).await.unwrap();
    }
    for n in 1..=EACH {
        // A sender that got no answer repeats its request.
        take(store, asked.id, n).await.unwrap();
    }
    decide(store, &mut Told::default()).await.unwrap();
    let mut runs = BTreeSet::new();
    for (name, kind) in [("p/tick", "tick"), ("p/asked", "request")] {
        let rule = rule(store, name).unwrap().expect("a rule");
        let decisions = store.queries().decisions(rule.id, 100).unwrap();
        let keys: BTreeSet<String> = decisions.iter().map(|(_, event)| event.key.to_string()).collect();
        assert_eq!(keys, (1..=EACH).map(|n| format!("{kind} {n}")).collect(), "each event of {name}");
        assert_eq!(decisions.len(), keys.len(), "each event of {name} once: {decisions:?}");
        for (row, _) in decisions {
            assert_eq!(row.status(), EnforcementStatus::Requested, "{row:?}");
            assert!(runs.insert(row.run.expect("a run")), "a run of two events: {row:?}");
        }
    }
    let all: BTreeSet<RunId> =
        store.queries().runs(None, &[], 100).unwrap().into_iter().map(|run| run.id).collect();
    assert_eq!(all, runs, "each run belongs to one event");
}

/// Opens a disk as it was found. Numbers are drawn from another seed, as another process would.
fn recover(image: &Image, facts: &[RuleFact], seed: u64) {
    let folder = folder();
    let store = found(&folder, image, seed + 1_000_000);
    check(&store, 0);
    expect(&store, facts);
    runtime().block_on(go_on(&store));
    check(&store, 0);
}

fn record(seed: u64) -> (Vec<Op>, Vec<RuleFact>) {
    let folder = folder();
    let mut told = Told::default();
    vfs::watch(folder.path(), None);
    runtime().block_on(work(folder.path(), seed, &mut told)).unwrap();
    (vfs::unwatch().0, told.0)
}

#[test]
fn r02_r14_the_power_goes_at_every_operation_of_firing_and_receiving() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let wanted = if nightly() { 50_000 } else { 1_500 };
    let (mut losses, mut seed, mut answers) = (Losses::default(), 0, 0);
    while losses.points < wanted {
        let (ops, facts) = record(seed);
        assert_eq!(facts.len() as i64, 3 * EACH, "every tick, request and decision was answered: {facts:?}");
        losses.at_every_operation(&ops, seed, |image, known| recover(image, &facts[..known], seed));
        (seed, answers) = (seed + 1, answers + facts.len());
    }
    let Losses { points, losable } = losses;
    println!("figure: power loss, rules: {points} crash points, {answers} answers, {losable} writes to lose");
    assert!(losable > 500, "there was something to lose");
}

#[test]
fn r02_r14_a_full_or_broken_disk_at_every_operation_of_firing_and_receiving() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // Every operation in the nightly run, otherwise one in this many.
    let stride = if nightly() { 1 } else { 3 };
    let (mut tried, mut told_of) = (0, 0);
    for (seed, fault) in [(1, Fault::Full), (2, Fault::Broken)] {
        let asked = {
            let folder = folder();
            vfs::watch(folder.path(), None);
            runtime().block_on(work(folder.path(), seed, &mut Told::default())).unwrap();
            vfs::unwatch().1
        };
        for number in (1..=asked).skip(seed as usize).step_by(stride) {
            let folder = folder();
            let mut told = Told::default();
            vfs::watch(folder.path(), Some((number, fault)));
            let done = runtime().block_on(work(folder.path(), seed, &mut told));
            vfs::unwatch();
            (tried, told_of) = (tried + 1, told_of + usize::from(done.is_err()));
            // The disk is well again: nothing that was answered is gone, nothing is half done.
            let store = open(folder.path(), seed + 1_000_000).unwrap_or_else(|error| {
                panic!("operation {number} of seed {seed}, {fault:?}: cannot be opened again: {error}")
            });
            check(&store, 0);
            expect(&store, &told.0);
            runtime().block_on(go_on(&store));
        }
    }
    println!("figure: disk faults, rules: {tried} operations failed, {told_of} of them were reported");
    assert!(told_of > tried / 4, "faults reach the callers: {told_of} of {tried}");
}
