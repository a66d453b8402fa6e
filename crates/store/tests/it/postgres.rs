//! PostgreSQL only: opening it, its journal with many writers, and the changes that its triggers refuse.

use std::sync::Arc;

use crate::common::child::{self, Part, say, start_together};
use crate::common::*;
use sprag_store::testing::RawStore;
use sprag_store::{Error, Manual, Store, System};
use sprag_testkit::Postgres;
use tokio::task::JoinSet;

#[test]
fn child_role() {
    let Some(Part { role, folder, given }) = child::part() else { return };
    let store = open_shared(&folder);
    runtime().block_on(async {
        match role.as_str() {
            "write_runs" => write_runs(&store, given).await,
            other => panic!("no role {other}"),
        }
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

const WRITERS: i64 = 8;
const RUNS_EACH: usize = 60;

/// Runs several callers that take runs from creation to end.
async fn write_runs(store: &Store, worker: i64) {
    child::ready();
    let mut callers = JoinSet::new();
    for caller in 0..4 {
        let (store, worker) = (store.clone(), worker * 10 + caller);
        callers.spawn(async move {
            for _ in 0..RUNS_EACH / 4 {
                let mut new = store.person().new_run(sequence(3));
                new.pin = Some(worker);
                store.person().create_run(new).await.unwrap();
                let mut held = store.claims().claim(claimer(worker), 1).await.unwrap().pop();
                while let Some(one) = held {
                    held = store.worker(one.lease).finish(well(), Some(claimer(worker))).await.unwrap().next;
                }
            }
        });
    }
    while let Some(caller) = callers.join_next().await {
        caller.unwrap();
    }
    say("done");
}

#[test]
fn p10_no_journal_entry_ever_appears_behind_a_reader() {
    let database = Postgres::shared().database();
    let store = Store::open_postgres(&database.url).unwrap();
    let children = start_together(WRITERS, "postgres::write_runs", std::path::Path::new(&database.url));
    let over = std::thread::scope(|scope| {
        let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (ends, reader) = (Arc::clone(&over), store.clone());
        let tail = scope.spawn(move || {
            let (mut seen, mut looks) = (Vec::new(), 0);
            loop {
                let was_over = ends.load(std::sync::atomic::Ordering::SeqCst);
                let since = seen.len() as u64;
                let more = look(&reader, |db| db.journal(since, None, 1_000));
                for (entry, seq) in more.iter().zip(since + 1..) {
                    assert_eq!(entry.seq, seq, "an entry was not there when a later one was");
                }
                looks += 1;
                let nothing = more.is_empty();
                seen.extend(more);
                if was_over && nothing {
                    return (seen, looks);
                }
            }
        });
        children.into_iter().for_each(|child| assert_eq!(child.end(), ["done"]));
        over.store(true, std::sync::atomic::Ordering::SeqCst);
        tail.join().unwrap()
    });
    let (seen, looks) = over;
    assert_eq!(seen, journal(&store), "what was read while it was written is what was written");
    let ended = seen.iter().filter(|entry| entry.event == "run.succeeded").count();
    assert_eq!(ended, WRITERS as usize * RUNS_EACH);
    println!("{} entries of {WRITERS} processes, read in {looks} looks", seen.len());
    crate::common::check::check(&store, 0);
}

#[test]
fn o02_a_status_is_not_moved_by_hand_nor_by_the_executor_after_receipt() {
    let server = Postgres::shared();
    let database = server.database();
    let schema = &database.schema;
    let store = Store::open_postgres(&database.url).unwrap();
    let held = runtime().block_on(async {
        create(&store, &sequence(2)).await;
        claim(&store, 1).await
    });
    let before = look(&store, |db| db.executions(held.lease.execution.run));
    for table in ["runs", "steps", "executions"] {
        let by_hand = format!("UPDATE {schema}.{table} SET status = 'completed', version = version + 1");
        let refused = server.try_sql(&by_hand).unwrap_err();
        assert!(refused.contains(&format!("the status of {table} moves through Sprag alone")), "{refused}");
    }
    let as_who = |who: &str| {
        server.try_sql(&format!(
            "SET sprag.actor = '{who}'; UPDATE {schema}.executions SET status = 'requested', owner = NULL"
        ))
    };
    let refused = as_who("executor").unwrap_err();
    assert!(refused.contains("is running, and not the executor's any more"), "{refused}");
    assert_eq!(look(&store, |db| db.executions(held.lease.execution.run)), before, "nothing was changed");
    // Other columns can be changed freely, and an actor that may move the status names itself.
    server.sql(&format!("UPDATE {schema}.executions SET priority = 7"));
    as_who("worker").unwrap();
}

#[test]
fn a_store_that_cannot_be_opened_is_reported_with_the_remedy() {
    let server = Postgres::shared();
    let port = server.address().port();
    server.sql(
        "CREATE ROLE ann LOGIN PASSWORD 'ann'; CREATE ROLE bob LOGIN PASSWORD 'bob' CONNECTION LIMIT 0; \
         REVOKE CREATE ON SCHEMA public FROM public",
    );
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let cases = [
        (format!("postgres://sprag:hush@127.0.0.1:{free}/postgres"), "is a PostgreSQL server running there"),
        (format!("postgres://sprag:wrong@127.0.0.1:{port}/postgres"), "see the user and the password"),
        (format!("postgres://sprag:hush@127.0.0.1:{port}/nowhere"), "make it with `createdb nowhere`"),
        (
            format!("postgres://ann:ann@127.0.0.1:{port}/postgres"),
            "GRANT CREATE, USAGE ON SCHEMA public TO ann",
        ),
        (format!("postgres://bob:bob@127.0.0.1:{port}/postgres"), "raise max_connections"),
        (format!("postgres://sprag:hush@127.0.0.1:{port}/postgres?sslmode=require"), "authority"),
        ("postgres://sprag:hush@127.0.0.1:port/postgres".to_owned(), "cannot open the PostgreSQL URL"),
    ];
    for (url, wanted) in cases {
        let Err(error) = Store::open_postgres(&url) else { panic!("{url} was opened") };
        let error = error.to_string();
        assert!(error.contains(wanted), "{url}: {error}");
        assert!(!error.contains("hush") && !error.contains("wrong@"), "no password is shown: {error}");
    }
}

#[test]
fn an_encrypted_connection_requires_a_certificate_that_names_the_host() {
    let server = Postgres::start_encrypted();
    let url = format!("{}&sslmode=verify-full", server.database().tcp_url);
    let trusted = format!("{url}&sslrootcert={}", server.authority().display());
    let store = Store::open_postgres(&trusted).unwrap();
    runtime().block_on(async {
        let run = create(&store, &sequence(2)).await;
        for _ in 0..2 {
            finish(&store, &claim(&store, 1).await, well()).await;
        }
        assert_eq!(status(&store, run), "completed");
    });
    let encrypted = "SELECT count(*) || ' of ' || sum(ssl::int) FROM pg_stat_ssl \
                     JOIN pg_stat_activity USING (pid) WHERE application_name = 'sprag'";
    let told = server.sql(encrypted);
    let (all, with) = told.split_once(" of ").unwrap();
    assert!(all == with && all != "0", "every connection is encrypted: {told}");
    let other_name = trusted.replace("127.0.0.1", "localhost");
    for (refused, why) in [(&url, "UnknownIssuer"), (&other_name, "not valid for name")] {
        let Err(error) = Store::open_postgres(refused) else { panic!("{refused} was opened") };
        let error = error.to_string();
        assert!(error.contains(why) && error.contains("sslrootcert=FILE"), "{error}");
        assert!(!error.contains("hush"), "{error}");
    }
}

#[test]
fn a_newer_schema_and_another_programs_tables_are_left_alone() {
    let server = Postgres::shared();
    let newer = server.database();
    drop(Store::open_postgres(&newer.url).unwrap());
    server.sql(&format!("UPDATE {}.meta SET value = '99' WHERE name = 'schema'", newer.schema));
    let Err(error) = Store::open_postgres(&newer.url) else { panic!("a newer schema was opened") };
    assert!(matches!(error, Error::Newer { found: 99, .. }), "{error}");
    assert!(
        error.to_string().contains("has schema version 99, and this sprag knows versions up to"),
        "{error}"
    );
    let foreign = server.database();
    server.sql(&format!("CREATE TABLE {}.runs (distance BIGINT)", foreign.schema));
    let Err(error) = Store::open_postgres(&foreign.url) else {
        panic!("another program's tables were taken")
    };
    assert!(error.to_string().contains("another program's tables"), "{error}");
    let tables = format!("SELECT count(*) FROM pg_tables WHERE schemaname = '{}'", foreign.schema);
    assert_eq!(server.sql(&tables), "1");
}

#[test]
fn concurrent_first_starts_create_the_tables_once() {
    let database = Postgres::shared().database();
    std::thread::scope(|scope| {
        let opening: Vec<_> =
            (0..8).map(|_| scope.spawn(|| Store::open_postgres(&database.url).map(drop))).collect();
        opening.into_iter().for_each(|opened| opened.join().unwrap().unwrap());
    });
    let store = Store::open_postgres(&database.url).unwrap();
    runtime().block_on(create(&store, &sequence(1)));
    let health = store.health().unwrap();
    // One migration per file.
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/postgres")).unwrap();
    let is_migration = |name: &str| name.starts_with("schema") && name.ends_with(".sql");
    let newest =
        files.filter(|file| is_migration(&file.as_ref().unwrap().file_name().to_string_lossy())).count();
    assert!(health.contains(&format!("schema {newest}")) && health.contains("fsync on"), "{health}");
    assert!(!health.contains("LOOK"), "{health}");
}

#[test]
fn a_text_that_it_cannot_keep_fails_alone() {
    let database = Postgres::shared().database();
    let store = Store::open_postgres(&database.url).unwrap();
    runtime().block_on(async {
        let mut calls = JoinSet::new();
        for n in 0..20 {
            let store = store.clone();
            calls.spawn(async move {
                let mut new = store.person().new_run(sequence(1));
                if n == 10 {
                    new.inputs = "{\"\0\":1}".into();
                }
                (n, store.person().create_run(new).await)
            });
        }
        while let Some(done) = calls.join_next().await {
            match done.unwrap() {
                (10, made) => assert!(matches!(made, Err(Error::Invalid { .. })), "{made:?}"),
                (_, made) => drop(made.unwrap()),
            }
        }
    });
    assert_eq!(look(&store, |db| db.runs(None, &[], 100)).len(), 19);
}

/// Time is the database's: a process whose own clock is wrong does not matter.
#[test]
fn leases_are_measured_by_the_databases_clock() {
    let server = Postgres::shared();
    let database = server.database();
    let store = Store::open_postgres(&database.url).unwrap();
    let held = runtime().block_on(async {
        create(&store, &sequence(1)).await;
        claim(&store, 1).await
    });
    let now: i64 =
        server.sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint").parse().unwrap();
    let until = held.lease_until_ms - 60_000;
    assert!((now - 10_000..=now).contains(&until), "{until} is about {now}");
    assert!((store.now().steady_ms - now).abs() < 10_000);
    // A clock of one's own is for tests alone.
    let clock = Arc::new(Manual::new(1_000, 1));
    let other = Store::open_postgres_with(&database.url, Some(clock), Arc::new(System)).unwrap();
    assert_eq!(other.now().steady_ms, 1_000);
}

/// A newer program changes the schema while this one is connected.
#[test]
fn a_schema_that_became_newer_is_seen_before_anything_is_written_or_read() {
    let server = Postgres::shared();
    let database = server.database();
    let store = Store::open_postgres(&database.url).unwrap();
    let schema = &database.schema;
    let entries = || server.sql(&format!("SELECT max(last_seq) FROM {schema}.journal_packs"));
    runtime().block_on(async {
        create(&store, &sequence(1)).await;
        let before = entries();
        server.sql(&format!("UPDATE {schema}.journal_head SET schema = 999"));
        let refused = store.person().create_run(store.person().new_run(sequence(1))).await.unwrap_err();
        assert!(matches!(refused, Error::Newer { found: 999, .. }), "{refused:?}");
        let refused = store.read(|db| db.live_runs(None, 10)).unwrap_err();
        assert!(matches!(refused, Error::Newer { .. }), "{refused:?}");
        assert_eq!(entries(), before, "nothing was written");
    });
}

/// The server's clock is put back by a day, then by nine, under a store that is open and one that opens later.
#[test]
fn i17_a_clock_that_is_set_back_does_not_stop_the_stores_time() {
    const DAY_MS: i64 = 86_400_000;
    let server = Postgres::shared();
    let database = server.database();
    let schema = &database.schema;
    // Found before the server's own, which is what the second name in the path is for.
    server.sql(&format!(
        "CREATE TABLE {schema}.shift (by INTERVAL NOT NULL); INSERT INTO {schema}.shift VALUES ('0'); \
         CREATE FUNCTION {schema}.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
         $$ SELECT pg_catalog.clock_timestamp() + (SELECT by FROM {schema}.shift) $$"
    ));
    let url = database.url.replace(schema.as_str(), &format!("{schema}%2Cpg_catalog"));
    let store = Store::open_postgres(&url).unwrap();
    let steady = |store: &Store| look(store, |db| Ok(db.now().steady_ms));
    runtime().block_on(async {
        create(&store, &sequence(1)).await;
        let before_ms = steady(&store);
        server.sql(&format!("UPDATE {schema}.shift SET by = '-1 day'"));
        create(&store, &sequence(1)).await;
        let after_ms = steady(&store);
        assert!((before_ms..before_ms + DAY_MS / 2).contains(&after_ms), "{before_ms} became {after_ms}");
        assert!(store.now().wall_ms < before_ms - DAY_MS / 2, "people see the server's clock");
        let late = Store::open_postgres(&url).unwrap();
        assert!((steady(&late) - steady(&store)).abs() < 5_000, "all agree");
        let last_ms = steady(&store);
        drop((store, late));
        server.sql(&format!("UPDATE {schema}.shift SET by = '-9 days'"));
        let later = Store::open_postgres(&url).unwrap();
        create(&later, &sequence(1)).await;
        let now_ms = steady(&later);
        assert!((last_ms - 5_000..last_ms + DAY_MS / 2).contains(&now_ms), "{last_ms} became {now_ms}");
        let noted: i64 =
            server.sql(&format!("SELECT ahead_ms FROM {schema}.store_state")).trim().parse().unwrap();
        assert!(noted > 8 * DAY_MS, "{noted}");
    });
}
