//! Several machines on one PostgreSQL database: a server without a worker, workers, and clients, each killed in turn.

use sprag_testkit::{Database, Postgres};
use sprag_tests::{Random, Sandbox, Server, Started, until};

const STEPS: usize = 3;

/// Writes a pipeline whose steps record their start and end.
fn pipeline(client: &Sandbox) -> std::path::PathBuf {
    let ledger = client.path("ledger");
    let ledger = ledger.display();
    let steps: Vec<(String, String)> = (0..STEPS)
        .map(|step| {
            let run = format!(
                "run: |\n  echo begin $SPRAG_RUN_ID $SPRAG_STEP_ID $SPRAG_ATTEMPT >> '{ledger}'\n  sleep 0.05\n  \
                 echo end $SPRAG_RUN_ID $SPRAG_STEP_ID $SPRAG_ATTEMPT store=$SPRAG_STORE. >> '{ledger}'"
            );
            (format!("s{step}"), run)
        })
        .collect();
    let steps: Vec<(&str, &str)> = steps.iter().map(|(id, keys)| (id.as_str(), keys.as_str())).collect();
    client.pipeline("work", &steps)
}

fn worker(machine: &Sandbox) -> Started {
    let worker = machine.start(["worker", "--lease", "5s", "--slots", "3"]);
    until("the worker serves", || worker.stderr().contains("serves"));
    worker
}

/// Asserts the invariants of an ended run, whichever processes were killed meanwhile.
fn expect_done_once(client: &Sandbox, run: &str) {
    client.ends_as(run, "completed");
    let journal = client.check(run);
    let of = |event: &str| journal.entries.iter().filter(|entry| entry.event == event).count();
    assert_eq!((of("run.created"), of("run.succeeded"), of("step.succeeded")), (1, 1, STEPS), "run {run}");
    let ledger = client.lines("ledger");
    let begun = |step: usize| {
        let wanted = format!("begin {run} s{step} ");
        ledger.iter().position(|line| line.starts_with(&wanted)).expect("it was begun")
    };
    let ended = |step: usize| {
        let wanted = format!("end {run} s{step} ");
        ledger.iter().rposition(|line| line.starts_with(&wanted)).expect("it was ended")
    };
    for step in 1..STEPS {
        assert!(ended(step - 1) < begun(step), "run {run}: a finished step ran again, or one ran too early");
    }
}

struct Machines {
    database: Database,
    server: Sandbox,
    first: Sandbox,
    second: Sandbox,
    client: Sandbox,
}

impl Machines {
    fn new() -> Self {
        let database = Postgres::shared().database();
        let machine = || Sandbox::on(&database.tcp_url);
        let (server, first, second, client) = (machine(), machine(), machine(), machine());
        Machines { database, server, first, second, client }
    }
}

#[test]
fn o14_a_server_two_workers_and_a_client_killed_in_turn_lose_nothing() {
    const RUNS: usize = 24;
    const KILLS: usize = 8;
    let machines = Machines::new();
    let Machines { server: on_server, first, second, client, .. } = &machines;
    let no_worker = ["--no-worker", "--lease", "5s"];
    let mut server = Server::start(on_server, &no_worker);
    let mut workers = [worker(first), worker(second)];
    let file = pipeline(client);
    let mut random = Random::new(7);
    let mut runs = Vec::new();
    for kill in 0..KILLS {
        for _ in 0..RUNS / KILLS {
            runs.push(client.detach(&file));
        }
        // A waiting client is killed as well; the next client gets the correct answer.
        let waiting = client.start(["wait", runs.last().expect("a run"), "--timeout", "60s"]);
        let begun = client.lines("ledger").len();
        let some = 1 + random.below(4) as usize;
        until("some work is done", || client.lines("ledger").len() >= begun + some);
        match kill % 3 {
            0 => {
                std::mem::replace(&mut workers[0], worker(second)).kill();
                workers[0] = worker(first);
            }
            1 => {
                let process =
                    std::mem::replace(&mut server, Server::start(on_server, &no_worker)).into_process();
                process.kill();
            }
            _ => {
                std::mem::replace(&mut workers[1], worker(second)).kill();
            }
        }
        waiting.kill();
    }
    for run in &runs {
        expect_done_once(client, run);
        assert_eq!(server.get(&format!("/v1/runs/{run}"))["status"], "completed");
    }
    assert!(client.journal(None).entries.windows(2).all(|two| two[0].seq + 1 == two[1].seq));
    let secrets = client.lines("ledger").iter().filter(|line| line.contains("store=p")).count();
    assert_eq!(secrets, 0, "steps do not see the database's URL");
}

#[test]
fn o14_postgresql_killed_under_a_server_and_its_workers() {
    const KILLS: usize = 5;
    let postgres = Postgres::start(&[]);
    let database = postgres.database();
    let machine = || Sandbox::on(&database.url);
    let (on_server, first, second, client) = (machine(), machine(), machine(), machine());
    let server = Server::start(&on_server, &["--no-worker"]);
    let _workers = [worker(&first), worker(&second)];
    let file = pipeline(&client);
    let mut runs = Vec::new();
    for _ in 0..KILLS {
        for _ in 0..4 {
            runs.push(client.detach(&file));
        }
        let begun = client.lines("ledger").len();
        until("some work is done", || client.lines("ledger").len() > begun + 2);
        postgres.crash();
        postgres.start_again();
    }
    for run in &runs {
        expect_done_once(&client, run);
    }
    assert_eq!(
        server.get("/v1/runs?status=queued,running,failing,cancelling")["runs"],
        serde_json::json!([])
    );
}

#[test]
fn doctor_checks_the_database_and_reports_a_wrong_url_without_its_password() {
    let machines = Machines::new();
    let told = machines.client.sprag(["doctor"]).expect(0);
    assert!(told.stdout.contains("PostgreSQL 1") && told.stdout.contains("fsync on"), "{}", told.stdout);
    assert!(!told.stdout.contains("hush"), "{}", told.stdout);
    let wrong = Sandbox::on(&machines.database.tcp_url.replace("hush", "hushed"));
    let told = wrong.sprag(["ls"]).expect(1);
    assert!(told.stderr.contains("see the user and the password"), "{}", told.stderr);
    assert!(!told.stderr.contains("hushed"), "{}", told.stderr);
    let told = Sandbox::on("mysql://ann:hush@host/work").sprag(["ls"]).expect(2);
    assert!(told.stderr.contains("not the URL of a PostgreSQL database"), "{}", told.stderr);
    assert!(!told.stderr.contains("hush"), "{}", told.stderr);
    let careless = Postgres::start(&["fsync = off"]);
    let told = Sandbox::on(&careless.database().url).sprag(["doctor"]).expect(1);
    assert!(told.stdout.contains("fsync is off: a crash of its machine loses"), "{}", told.stdout);
}

/// From a step's end to the next step's start in another process: through a notification, without any polling.
#[test]
fn the_next_step_starts_in_another_process_within_milliseconds() {
    let machines = Machines::new();
    let Machines { server: on_server, client, .. } = &machines;
    let _server = Server::start(on_server, &["--no-worker"]);
    let worker = machines.first.start(["worker", "--slots", "1", "--queue", "odd"]);
    let other = machines.second.start(["worker", "--slots", "1", "--queue", "even"]);
    until("the workers serve", || worker.stderr().contains("serves") && other.stderr().contains("serves"));
    let steps: Vec<(String, String)> = (0..12)
        .map(|step| (format!("s{step}"), format!("run: 'true'\nqueue: {}", ["even", "odd"][step % 2])))
        .collect();
    let steps: Vec<(&str, &str)> = steps.iter().map(|(id, keys)| (id.as_str(), keys.as_str())).collect();
    let run = client.detach(&client.pipeline("fro", &steps));
    client.ends_as(&run, "completed");
    let journal = client.check(&run);
    let mut handed: Vec<i64> = Vec::new();
    let mut published = None;
    for entry in &journal.entries {
        match entry.event.as_str() {
            "handoff.published" => published = Some(day_ms(&entry.at)),
            "handoff.received" => handed.extend(published.take().map(|at| day_ms(&entry.at) - at)),
            _ => {}
        }
    }
    handed.sort_unstable();
    assert_eq!(handed.len(), 12);
    let median = handed[handed.len() / 2];
    println!("from published to received by another process: {handed:?} ms");
    assert!(median < 100, "no polling interval lies in between: {handed:?}");
}

/// Returns the milliseconds since midnight of a time such as `2026-11-16T07:32:12.345Z`.
fn day_ms(at: &str) -> i64 {
    let digits = |from: usize, to: usize| at[from..to].parse::<i64>().expect("digits");
    ((digits(11, 13) * 60 + digits(14, 16)) * 60 + digits(17, 19)) * 1000 + digits(20, 23)
}
