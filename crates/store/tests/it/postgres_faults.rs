//! Failures around PostgreSQL: the server is killed, connections are cut, the answer to a commit is lost.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::check::check;
use crate::common::*;
use sprag_lifecycle::{ExecutionId, ExecutionStatus, RunId};
use sprag_store::{Clock, Row, Store, System};
use sprag_testkit::Postgres;
use tokio::task::JoinSet;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// The changes that were acknowledged to callers.
#[derive(Default)]
struct Acknowledged {
    runs: Mutex<BTreeSet<RunId>>,
    finished: Mutex<BTreeSet<ExecutionId>>,
    errors: AtomicUsize,
}

/// Takes runs from their creation to their end, whatever happens, until told to stop.
async fn work(store: Store, worker: i64, told: Arc<Acknowledged>, over: Arc<AtomicBool>) {
    while !over.load(Ordering::SeqCst) {
        let mut new = store.person().new_run(sequence(3));
        new.pin = Some(worker);
        let id = new.id;
        match store.person().create_run(new).await {
            Ok(_) => drop(told.runs.lock().unwrap().insert(id)),
            Err(_) => drop(told.errors.fetch_add(1, Ordering::SeqCst)),
        }
        let mut held = store.claims().claim(claimer(worker), 1).await.ok().and_then(|mut got| got.pop());
        while let Some(one) = held.take() {
            match store.worker(one.lease).finish(well(), Some(claimer(worker))).await {
                Ok(end) => {
                    if end.outcome.is_applied() {
                        let new = told.finished.lock().unwrap().insert(one.lease.execution);
                        assert!(new, "{} was acknowledged twice", one.lease.execution);
                    }
                    held = end.next;
                }
                Err(_) => drop(told.errors.fetch_add(1, Ordering::SeqCst)),
            }
        }
    }
}

/// Asserts that every acknowledged change is there, once.
fn expect_nothing_lost(store: &Store, told: &Acknowledged) {
    let completed: Vec<ExecutionId> = journal(store)
        .iter()
        .filter(|entry| entry.event == "execution.completed")
        .map(|entry| ExecutionId {
            run: entry.place.run.unwrap(),
            step: entry.place.step.unwrap(),
            attempt: entry.place.attempt.unwrap(),
        })
        .collect();
    let distinct: BTreeSet<ExecutionId> = completed.iter().copied().collect();
    assert_eq!(distinct.len(), completed.len(), "no completion is committed twice");
    for run in told.runs.lock().unwrap().iter() {
        let executions = look(store, |db| db.executions(*run));
        assert!(!executions.is_empty(), "run {run} was acknowledged and is lost");
    }
    for execution in told.finished.lock().unwrap().iter() {
        assert!(distinct.contains(execution), "{execution} was acknowledged and is lost");
        let rows = look(store, |db| db.executions(execution.run));
        let row = rows.iter().find(|row| row.id == *execution).unwrap();
        assert_eq!(row.status(), ExecutionStatus::Completed);
    }
    check(store, 0);
}

#[test]
fn o14_postgresql_killed_twenty_times_loses_nothing_and_repeats_nothing() {
    const KILLS: u64 = 20;
    let server = Postgres::start(&[]);
    let database = server.database();
    let store = Store::open_postgres(&database.url).unwrap();
    let (told, over) = (Arc::new(Acknowledged::default()), Arc::new(AtomicBool::new(false)));
    let runtime = runtime();
    let mut workers = JoinSet::new();
    for worker in 1..=6 {
        workers.spawn_on(work(store.clone(), worker, Arc::clone(&told), Arc::clone(&over)), runtime.handle());
    }
    for kill in 0..KILLS {
        let before = told.finished.lock().unwrap().len();
        // Some work is acknowledged between two kills, so that there is something to lose.
        let mut waits = 0;
        while told.finished.lock().unwrap().len() < before + 20 {
            std::thread::park_timeout(Duration::from_millis(5));
            waits += 1;
            assert!(waits < 6_000, "nothing goes on after {kill} kills: {}", server.log());
        }
        std::thread::park_timeout(Duration::from_millis(sprag_store::mix(kill) % 40));
        server.crash();
        server.start_again();
    }
    over.store(true, Ordering::SeqCst);
    runtime.block_on(async { while workers.join_next().await.transpose().unwrap().is_some() {} });
    expect_nothing_lost(&store, &told);
    let (finished, errors) = (told.finished.lock().unwrap().len(), told.errors.load(Ordering::SeqCst));
    println!("{finished} acknowledged ends, {errors} errors, {KILLS} kills");
    // A process that connects later finds the same.
    check(&Store::open_postgres(&database.url).unwrap(), 0);
}

#[test]
fn connections_that_were_ended_are_made_again() {
    let server = Postgres::shared();
    let database = server.database();
    let store = Store::open_postgres(&format!("{}&application_name=cut_me", database.url)).unwrap();
    let runtime = runtime();
    runtime.block_on(async {
        for round in 1..=10_usize {
            create(&store, &sequence(1)).await;
            assert_eq!(look(&store, |db| db.runs(None, &[], 100)).len(), round);
            server.sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'cut_me'");
        }
        // The listener comes back as well: a commit elsewhere is heard of.
        let other = Store::open_postgres(&database.url).unwrap();
        let mut waits = 0;
        let listening = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'cut_me' AND query LIKE '%LISTEN%'";
        while server.sql(listening) == "0" {
            std::thread::park_timeout(Duration::from_millis(20));
            waits += 1;
            assert!(waits < 500, "nobody listens");
        }
        let waiting = store.subscribe(vec![sprag_store::Topic::Queue("default".into())]);
        waiting.wait(Duration::from_millis(200)).await;
        let since_ms = System.boot_ms();
        create(&other, &sequence(1)).await;
        waiting.wait(Duration::from_secs(20)).await;
        let took_ms = System.boot_ms() - since_ms;
        assert!(took_ms < 5_000, "woken after {took_ms} ms");
    });
}

/// Passes bytes on, and loses the answer to a commit when told to.
struct Loser {
    port: u16,
    armed: Arc<AtomicBool>,
    lost: Arc<AtomicUsize>,
}

impl Loser {
    fn to(server: std::net::SocketAddr) -> Loser {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (armed, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (is_armed, count) = (Arc::clone(&armed), Arc::clone(&lost));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(server) else { continue };
                let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
                let (armed, lost) = (Arc::clone(&is_armed), Arc::clone(&count));
                std::thread::spawn(move || answers(server, client, &armed, &lost));
            }
        });
        Loser { port, armed, lost }
    }
}

fn answers(mut server: TcpStream, mut client: TcpStream, armed: &AtomicBool, lost: &AtomicUsize) {
    let mut buffer = [0; 65_536];
    while let Ok(read @ 1..) = server.read(&mut buffer) {
        let bytes = &buffer[..read];
        // The command that was completed, as PostgreSQL says it.
        if bytes.windows(7).any(|word| word == b"COMMIT\0") && armed.swap(false, Ordering::SeqCst) {
            lost.fetch_add(1, Ordering::SeqCst);
            break;
        }
        if client.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

#[test]
fn o14_a_commit_whose_answer_was_lost_is_looked_up() {
    const ROUNDS: usize = 20;
    let server = Postgres::shared();
    let database = server.database();
    let proxy = Loser::to(server.address());
    let url = database.tcp_url.replace(&server.address().port().to_string(), &proxy.port.to_string());
    let store = Store::open_postgres(&url).unwrap();
    runtime().block_on(async {
        for round in 1..=ROUNDS {
            let run = create(&store, &sequence(1)).await;
            let held = claim(&store, 1).await;
            proxy.armed.store(true, Ordering::SeqCst);
            let end = finish(&store, &held, well()).await;
            assert!(end.outcome.is_applied(), "it was committed: {:?}", end.outcome);
            assert_eq!(proxy.lost.load(Ordering::SeqCst), round, "the answer was lost");
            assert_eq!(status(&store, run), "completed");
        }
        // What is not told in the journal is looked up as well.
        let worker = sprag_store::NewWorker {
            id: 1,
            name: "w".into(),
            process: "".into(),
            queues: "default".into(),
            labels: "".into(),
            slots: 1,
            lease_ms: 60_000,
        };
        store.claims().register(worker).await.unwrap();
        proxy.armed.store(true, Ordering::SeqCst);
        assert!(store.claims().heartbeat(1, Vec::new(), 60_000).await.unwrap().0);
        assert_eq!(proxy.lost.load(Ordering::SeqCst), ROUNDS + 1, "the answer was lost");
    });
    check(&store, 0);
}

/// Forwards bytes while it is open; refuses new connections while it is shut.
struct Gate {
    port: u16,
    open: Arc<AtomicBool>,
}

impl Gate {
    fn to(server: std::net::SocketAddr) -> Gate {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let open = Arc::new(AtomicBool::new(true));
        let is_open = Arc::clone(&open);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if !is_open.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(server) else { continue };
                let ends = [(client.try_clone(), server.try_clone()), (Ok(server), Ok(client))];
                for (from, to) in ends {
                    let (mut from, mut to) = (from.unwrap(), to.unwrap());
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Gate { port, open }
    }
}

/// One of PostgreSQL's processes dies while it commits; the others are ended, what was not on the disk is undone, and
/// the numbers of undone transactions are given again to others, which do commit.
#[test]
fn o14_a_reused_transaction_number_does_not_count_as_a_commit() {
    const ROUNDS: u64 = 6;
    // A commit waits a moment before the sync, and no other request arrives meanwhile.
    let server = Postgres::start(&["commit_delay = 100000", "commit_siblings = 0", "wal_writer_delay = 10s"]);
    let database = server.database();
    let gate = Gate::to(server.address());
    let url = database.tcp_url.replace(&server.address().port().to_string(), &gate.port.to_string());
    let store = Store::open_postgres(&format!("{url}&application_name=commits")).unwrap();
    let runtime = runtime();
    let mut unknown = 0;
    for round in 0..ROUNDS {
        let (run, lease) = runtime.block_on(async {
            let run = create(&store, &sequence(1)).await;
            (run, claim(&store, 1).await.lease)
        });
        let writes = "SELECT pid FROM pg_stat_activity WHERE application_name = 'commits' AND query = 'COMMIT' LIMIT 1";
        let pid: i32 = server.sql(writes).parse().unwrap();
        let ending = runtime.spawn({
            let store = store.clone();
            async move { store.worker(lease).finish(well(), None).await }
        });
        std::thread::park_timeout(Duration::from_millis(20 + sprag_store::mix(round) % 60));
        gate.open.store(false, Ordering::SeqCst);
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        // Others take whatever numbers are free now.
        let mut waits = 0;
        while server
            .try_sql("DO $$ BEGIN FOR i IN 1..40 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
            .is_err()
        {
            std::thread::park_timeout(Duration::from_millis(20));
            waits += 1;
            assert!(waits < 1_000, "it does not come back: {}", server.log());
        }
        gate.open.store(true, Ordering::SeqCst);
        let told = runtime.block_on(ending).unwrap();
        let completed = status(&store, run) == "completed";
        match told {
            Ok(end) => {
                assert!(!end.outcome.is_applied() || completed, "acknowledged and lost, in round {round}")
            }
            Err(sprag_store::Error::Unknown { .. }) => unknown += 1,
            Err(other) => panic!("{other}"),
        }
        // Whatever became of it, its worker may say so again.
        let _ = runtime.block_on(store.worker(lease).finish(well(), None));
    }
    println!("{unknown} of {ROUNDS} commits remained unknown");
    check(&store, 0);
}
