//! The packed journal: every reader sees single entries, whatever packs they are in. On every store.

use std::cell::RefCell;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::child::{self, Child, Part, say};
use crate::common::*;
use crate::declared::places::{Place, each_place};
use sprag_lifecycle::{Policy, RunId};
use sprag_store::testing::RawStore as _;
use sprag_store::{JournalEntry, Lease, NewWorker, Store};

#[test]
fn child_role() {
    let Some(Part { folder, .. }) = child::part() else { return };
    say("opening");
    drop(open(&folder));
    say("opened");
}

/// Opens the store in a folder or at an address.
fn open(at: &Path) -> Store {
    match at.to_str().filter(|at| at.starts_with("postgres")) {
        Some(url) => Store::open_postgres(url).unwrap(),
        None => Store::open(at).unwrap(),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Works off everything that can be claimed.
async fn work_off(store: &Store) {
    while let Some(held) = store.claims().claim(claimer(1), 1).await.unwrap().pop() {
        finish(store, &held, well()).await;
    }
}

#[test]
fn a_reader_stops_and_resumes_in_the_middle_of_a_pack() {
    on_every_store(|store, _| async move {
        let runs = [create(&store, &sequence(3)).await, create(&store, &sequence(2)).await];
        work_off(&store).await;
        let whole = journal(&store);
        let numbers: Vec<u64> = whole.iter().map(|entry| entry.seq).collect();
        assert_eq!(numbers, (1..=whole.len() as u64).collect::<Vec<_>>(), "no gaps");
        for since in 0..=whole.len() as u64 + 1 {
            for limit in [0, 1, 2, 3, 7, 8, 1_000] {
                for run in [None, Some(runs[0]), Some(runs[1]), Some(RunId::from_i64(9))] {
                    let wanted = whole.iter().filter(|entry| entry.seq > since);
                    let wanted = wanted.filter(|entry| run.is_none() || entry.place.run == run);
                    let wanted: Vec<JournalEntry> = wanted.take(limit).cloned().collect();
                    let found = look(&store, |db| db.journal(since, run, limit));
                    assert_eq!(found, wanted, "{limit} after {since} of {run:?}");
                }
            }
        }
    });
}

#[test]
fn a_commit_with_more_entries_than_fit_into_a_pack_is_read_as_one() {
    on_every_store(|store, _| async move {
        let run = create(&store, &graph(&vec![&[][..]; 300], |_| Policy::default())).await;
        let whole = journal(&store);
        assert!(whole.len() > 900, "{} entries", whole.len());
        assert!(whole.windows(2).all(|pair| pair[0].seq + 1 == pair[1].seq));
        let mut pages = Vec::new();
        while let Some(page) = Some(look(&store, |db| {
            db.journal(pages.last().map_or(0, |entry: &JournalEntry| entry.seq), Some(run), 100)
        }))
        .filter(|page| !page.is_empty())
        {
            pages.extend(page);
        }
        assert_eq!(pages, whole);
    });
}

#[test]
fn an_entry_of_an_execution_names_its_worker_and_fence() {
    on_every_store(|store, _| async move {
        create(&store, &sequence(1)).await;
        let held = claim(&store, 7).await;
        let Lease { fence, .. } = held.lease;
        let _ = store.worker(held.lease).release().await.unwrap();
        let again = claim(&store, 8).await;
        finish(&store, &again, well()).await;
        let whole = journal(&store);
        let of = |event: &str| -> Vec<(Option<i64>, Option<u32>)> {
            let these = whole.iter().filter(|entry| entry.entity == "execution" && entry.event == event);
            these.map(|entry| (entry.worker, entry.fence)).collect()
        };
        let second = again.lease.fence;
        assert_eq!(of("handoff.received"), [(Some(7), Some(fence)), (Some(8), Some(second))]);
        let ended: Vec<_> = whole.iter().filter(|entry| entry.to == "completed").collect();
        let ended: Vec<_> = ended.iter().filter(|entry| entry.entity == "execution").collect();
        assert_eq!(
            ended.iter().map(|entry| (entry.worker, entry.fence)).collect::<Vec<_>>(),
            [(Some(8), Some(second))]
        );
        let others = whole.iter().filter(|entry| entry.entity != "execution");
        assert!(others.into_iter().all(|entry| entry.worker.is_none() && entry.fence.is_none()));
        assert!(whole.iter().all(|entry| entry.by.is_none()), "the author is not known");
    });
}

#[test]
fn an_agents_claim_names_the_agent() {
    on_every_store(|store, _| async move {
        create(&store, &sequence(1)).await;
        let agent = NewWorker {
            id: 5,
            name: "reviewer".into(),
            process: "".into(),
            queues: "default".into(),
            labels: "".into(),
            slots: 0,
            lease_ms: 60_000,
        };
        store.claims().claim_once(claimer(5), 1, Some(agent)).await.unwrap();
        let whole = journal(&store);
        let received = whole.iter().find(|entry| entry.event == "handoff.received").expect("a claim");
        assert_eq!(received.by.as_deref(), Some("agent:reviewer"));
        assert_eq!(whole[0].by, None, "the run's creator is not known");
    });
}

#[test]
fn every_store_keeps_the_same_entries_when_runs_are_forgotten() {
    const DAY_MS: i64 = 86_400_000;
    let left: RefCell<Vec<Vec<String>>> = RefCell::default();
    on_every_store(|store, clock| {
        let left = &left;
        async move {
            let mut kept = Vec::new();
            for n in 1..=4 {
                store.person().create_run(named(n, &sequence(2))).await.unwrap();
                work_off(&store).await;
                for effect in look(&store, |db| db.outbox_due(i64::MAX, 1_000)) {
                    store.executor().effect_done(effect.id).await.unwrap();
                }
                // The runs end one after the other, and the last entry is that of the last one.
                clock.advance(DAY_MS);
                let before_ms = store.now().wall_ms;
                let bite = || sprag_store::Bite::of(100);
                if n % 2 == 0 {
                    let runs = vec![RunId::from_i64(n)];
                    store.person().forget_runs(runs, before_ms, bite()).await.unwrap();
                    while store.person().forget_entries(bite()).await.unwrap() {}
                }
                kept.extend(story(&store));
                kept.extend(journal(&store).iter().map(|entry| entry.seq.to_string()));
                kept.push(look(&store, |db| db.last_seq()).to_string());
            }
            left.borrow_mut().push(kept);
        }
    });
    let left = left.into_inner();
    assert!(left.windows(2).all(|pair| pair[0] == pair[1]), "{left:#?}");
}

fn entries_by_sql(place: &Place) -> u64 {
    let sum = "SELECT CAST(coalesce(sum(last_seq - first_seq + 1), 0) AS TEXT) FROM journal_packs";
    place.lines(sum)[0].parse().unwrap()
}

#[test]
fn what_a_commit_adds_for_a_run_is_one_row() {
    each_place(|place| {
        let packs = || place.lines("SELECT CAST(count(*) AS TEXT) FROM journal_packs")[0].clone();
        runtime().block_on(async {
            create(&place.store, &sequence(2)).await;
            assert_eq!(packs(), "1", "{}: created", place.name);
            let held = claim(&place.store, 1).await;
            assert_eq!(packs(), "2", "{}: received", place.name);
            finish(&place.store, &held, well()).await;
            assert_eq!(packs(), "3", "{}: finished", place.name);
        });
        assert_eq!(entries_by_sql(place), journal(&place.store).len() as u64);
    });
}

#[test]
fn p07_a_damaged_pack_is_told_with_its_row() {
    each_place(|place| {
        runtime().block_on(create(&place.store, &sequence(1)));
        let last = journal(&place.store).last().expect("entries").seq;
        let cut = if place.is_sqlite() {
            "CAST(substr(body, 1, length(body) - 1) AS BLOB)"
        } else {
            "substr(body, 1, length(body) - 1)"
        };
        for (column, damage) in [("body", cut), ("first_seq", "2"), ("first_seq", "-1")] {
            place.run("CREATE TABLE before AS SELECT * FROM journal_packs");
            place.run(&format!("UPDATE journal_packs SET {column} = {damage}"));
            let told = place.store.read(|db| db.journal(0, None, 10)).unwrap_err().to_string();
            assert!(told.contains(&format!("journal pack {last}")), "{damage} on {}: {told}", place.name);
            place.run(
                "DELETE FROM journal_packs; INSERT INTO journal_packs (last_seq, first_seq, run, body) \
                 SELECT last_seq, first_seq, run, body FROM before; DROP TABLE before",
            );
        }
    });
}

#[test]
fn p07_an_entry_whose_sentence_is_damaged_or_gone_is_told() {
    each_place(|place| {
        runtime().block_on(create(&place.store, &sequence(1)));
        // A process that has not learned the sentences before.
        let told = || {
            let store = open(&place.at());
            store.read(|db| db.journal(0, None, 10)).unwrap_err().to_string()
        };
        place.run("UPDATE sentences SET actor = 'nobody' WHERE event = 'run.created'");
        let error = told();
        for expected in ["sentence", "actor", "nobody"] {
            assert!(error.contains(expected), "{}: {error}", place.name);
        }
        place.run("DELETE FROM sentences WHERE event = 'run.created'");
        let error = told();
        assert!(error.contains("journal entry 1") && error.contains("no sentence"), "{error}");
    });
}

/// The number of entries in a journal that takes several transactions to pack.
const MANY: usize = 60_000;

/// The statements that undo what the schemas after the packed journal added.
const LATER_SCHEMAS_UNDONE: &str = "\
    DROP INDEX executions_of_account; DROP TABLE accounts; DROP TABLE rules; DROP TABLE deliveries; DROP TABLE acts; \
    ALTER TABLE steps DROP COLUMN repeats; ALTER TABLE steps DROP COLUMN last_round; \
    ALTER TABLE executions DROP COLUMN account; ALTER TABLE executions DROP COLUMN account_generation; \
    ALTER TABLE executions DROP COLUMN limited_since_ms; ALTER TABLE executions DROP COLUMN limited_ms; \
    ALTER TABLE executions DROP COLUMN thread; ALTER TABLE threads DROP COLUMN holder_run; \
    ALTER TABLE threads DROP COLUMN holder_step; ALTER TABLE threads DROP COLUMN holder_attempt; \
    ALTER TABLE threads DROP COLUMN holder_fence";

/// Puts a place's journal back into the tables that it had before it was packed, with many more entries. Returns what
/// the journal then tells.
fn unpack(place: &Place) -> Vec<JournalEntry> {
    let mut whole = journal(&place.store);
    let number = if place.is_sqlite() { "INTEGER" } else { "BIGINT" };
    place.run(&format!(
        "CREATE TABLE journal (seq {number} PRIMARY KEY, at_ms {number} NOT NULL, sentence {number} NOT NULL, \
         run {number}, step {number}, attempt {number}, entity {number}); \
         CREATE TABLE journal_notes (seq {number} PRIMARY KEY, note TEXT NOT NULL); DROP TABLE journal_packs"
    ));
    let or_null = |number: Option<i64>| number.map_or("NULL".to_owned(), |number| number.to_string());
    for entry in &mut whole {
        (entry.worker, entry.fence, entry.by) = (None, None, None);
        let JournalEntry { seq, at_ms, entity, place: at, event, from, to, actor, .. } = entry;
        place.run(&format!(
            "INSERT INTO journal SELECT {seq}, {at_ms}, id, {}, {}, {}, {} FROM sentences WHERE entity = '{entity}' \
             AND event = '{event}' AND was = '{}' AND became = '{to}' AND actor = '{actor}'",
            or_null(at.run.map(RunId::to_i64)),
            or_null(at.step.map(Into::into)),
            or_null(at.attempt.map(Into::into)),
            or_null(at.id),
            from.unwrap_or("")
        ));
    }
    let last = whole.last().expect("entries").clone();
    // Some numbers are gone, as after a run was forgotten.
    let gap = 1_000;
    place.run(&format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MANY}) \
         INSERT INTO journal SELECT seq + {gap} + i, at_ms + i / 10, sentence, run, step, attempt, entity \
         FROM journal, n WHERE seq = {}; \
         INSERT INTO journal_notes SELECT seq, '{{\"path\":\"' || seq || '\"}}' FROM journal \
         WHERE seq > {} AND seq % 50 = 0",
        last.seq, last.seq
    ));
    whole.extend((1..=MANY as u64).map(|i| {
        let seq = last.seq + gap + i;
        let note = seq.is_multiple_of(50).then(|| format!("{{\"path\":\"{seq}\"}}").into());
        JournalEntry { seq, at_ms: last.at_ms + i as i64 / 10, note, ..last.clone() }
    }));
    let end = last.seq + gap + MANY as u64;
    place.run(LATER_SCHEMAS_UNDONE);
    if place.is_sqlite() {
        place.run("PRAGMA user_version = 10");
    } else {
        place.run(&format!(
            "UPDATE meta SET value = '6' WHERE name = 'schema'; UPDATE journal_head SET schema = 6, seq = {end}"
        ));
    }
    whole
}

fn has_table(place: &Place, name: &str) -> bool {
    let sql = if place.is_sqlite() {
        format!("SELECT name FROM sqlite_schema WHERE name = '{name}'")
    } else {
        format!(
            "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace \
             AND relname = '{name}'"
        )
    };
    !place.lines(&sql).is_empty()
}

/// Waits until something holds, for a bounded time.
#[expect(clippy::disallowed_methods, reason = "another process does it, in real time")]
fn until(what: &str, holds: impl Fn() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::yield_now();
    }
}

/// Asserts that a place has these entries and continues behind them.
fn is_whole(place: &Place, expected: &[JournalEntry]) {
    let store = open(&place.at());
    assert!(!has_table(place, "journal") && !has_table(place, "journal_notes"), "{}", place.name);
    let found = journal(&store);
    assert_eq!(found.len(), expected.len(), "{}", place.name);
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected, "{}", place.name);
    }
    let last = expected.last().expect("entries").seq;
    assert_eq!(look(&store, |db| db.last_seq()), last);
    runtime().block_on(create(&store, &sequence(1)));
    let after = look(&store, |db| db.journal(last, None, 1));
    assert_eq!(after.first().map(|entry| entry.seq), Some(last + 1), "{}", place.name);
}

#[test]
fn i24_a_kill_while_an_old_journal_is_packed_loses_and_doubles_nothing() {
    each_place(|place| {
        runtime().block_on(async {
            create(&place.store, &sequence(2)).await;
            work_off(&place.store).await;
        });
        let expected = unpack(place);
        let mut cut_short = 0;
        for round in 1..=3 {
            let before = if round > 1 { entries_by_sql(place) } else { 0 };
            let child = Child::start("packs::open", &place.at(), 0);
            child.expect("opening");
            until("a part of the journal is packed", || {
                has_table(place, "journal_packs") && entries_by_sql(place) > before
            });
            let opened = child.kill().contains(&"opened".to_owned());
            cut_short += usize::from(!opened && has_table(place, "journal"));
            if opened {
                break;
            }
        }
        println!("figure: kill -9, packing the journal on {}: {cut_short} of 3 were cut short", place.name);
        is_whole(place, &expected);
    });
}

#[test]
fn several_processes_pack_an_old_journal_together() {
    each_place(|place| {
        runtime().block_on(create(&place.store, &sequence(2)));
        let expected = unpack(place);
        let children: Vec<Child> = (0..4).map(|n| Child::start("packs::open", &place.at(), n)).collect();
        for child in &children {
            child.expect("opening");
            child.expect("opened");
        }
        is_whole(place, &expected);
    });
}

#[test]
fn an_older_program_refuses_a_journal_that_is_being_packed() {
    each_place(|place| {
        runtime().block_on(create(&place.store, &sequence(1)));
        unpack(place);
        let child = Child::start("packs::open", &place.at(), 0);
        child.expect("opening");
        until("the first part is packed", || has_table(place, "journal_packs"));
        let version = if place.is_sqlite() {
            "SELECT CAST(user_version AS TEXT) FROM pragma_user_version"
        } else {
            "SELECT schema::text FROM journal_head"
        };
        // Schemas after the packed journal may have been applied too.
        let packed = if place.is_sqlite() { 11 } else { 7 };
        let version: i64 = place.lines(version)[0].parse().expect("a number");
        assert!(version >= packed, "{}: {version}", place.name);
        child.kill();
    });
}

#[test]
fn a_new_store_has_no_tables_of_the_old_journal() {
    each_place(|place| assert!(!has_table(place, "journal") && !has_table(place, "journal_notes")));
}
