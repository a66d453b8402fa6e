//! Many machines: PostgreSQL, a broker, two executors and three workers, each killed repeatedly while they run steps.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use sprag_testkit::{Database, Postgres};
use sprag_tests::{Journal, Nats, Random, SOON, Sandbox, Started, nightly, until, within};

const STEPS: usize = 4;
/// So many runs are on their way at once.
const IN_FLIGHT: usize = 8;

/// Writes a pipeline whose steps record their start and end, each for a worker other than the one before.
fn pipeline(client: &Sandbox) -> std::path::PathBuf {
    let ledger = client.path("ledger");
    let tell = |word: &str| {
        format!("echo {word} $SPRAG_RUN_ID $SPRAG_STEP_ID $SPRAG_ATTEMPT >> '{}'", ledger.display())
    };
    let run = format!("run: {}; sleep 0.02; {}", tell("begin"), tell("end"));
    let steps: Vec<(String, String)> = (0..STEPS)
        .map(|step| (format!("s{step}"), format!("queue: {}\n{run}", ["a", "b"][step % 2])))
        .collect();
    let steps: Vec<(&str, &str)> = steps.iter().map(|(id, keys)| (id.as_str(), keys.as_str())).collect();
    client.pipeline("work", &steps)
}

/// A supervised process: when it has ended, it is started again.
struct Kept {
    machine: Sandbox,
    args: Vec<String>,
    process: Started,
    starts: usize,
}

impl Kept {
    fn new(store: &str, args: &str) -> Self {
        let machine = Sandbox::on(store);
        let args: Vec<String> = args.split(' ').map(str::to_owned).collect();
        let process = machine.start(&args);
        Kept { machine, args, process, starts: 1 }
    }

    fn kill(&mut self) {
        let next = self.machine.start(&self.args);
        std::mem::replace(&mut self.process, next).kill();
        self.starts += 1;
    }

    /// Restarts it if it has ended: one that started without the database has given up and said so.
    fn see_to(&mut self) {
        if !self.process.is_running() {
            self.kill();
        }
    }
}

/// Asks for runs until told to stop, each under its own key and as often as it takes to get an answer; their ids.
fn ask_for_runs(client: &Sandbox, file: &Path, over: &AtomicBool) -> BTreeMap<String, String> {
    let mut told: BTreeMap<String, String> = BTreeMap::new();
    let last = format!(" s{} ", STEPS - 1);
    while !over.load(Ordering::SeqCst) {
        let ended = || {
            let ledger = client.lines("ledger");
            told.values()
                .filter(|run| {
                    ledger
                        .iter()
                        .any(|line| line.starts_with("end") && line.contains(&last) && line.contains(*run))
                })
                .count()
        };
        let room =
            within(SOON, || (over.load(Ordering::SeqCst) || told.len() - ended() < IN_FLIGHT).then_some(()));
        assert!(room.is_some(), "nothing ends: {} of {} have", ended(), told.len());
        let key = format!("k{}", told.len());
        let args = ["run", "--detach", "--json", "--idempotency-key", &key].map(OsStr::new);
        let run = within(SOON, || {
            let answer = client.sprag(args.iter().copied().chain([file.as_os_str()]));
            let known = answer.code == 0;
            known.then(|| answer.json()["run"].as_str().expect("an id").to_owned())
        });
        told.insert(key, run.expect("it is accepted in the end"));
    }
    told
}

/// Returns the ledger's attempts of one step that were started or finished, in order.
fn attempts<'l>(ledger: &'l [String], word: &str, run: &str, step: usize) -> Vec<(usize, &'l str)> {
    let wanted = format!("{word} {run} s{step} ");
    let lines = ledger.iter().enumerate();
    lines.filter_map(|(nth, line)| Some((nth, line.strip_prefix(&wanted)?))).collect()
}

/// Asserts that no attempt ran twice, none after the one that counts, and no step before its predecessor ended.
fn expect_in_order(ledger: &[String], journal: &Journal, run: &str) {
    let mut over = 0;
    for step in 0..STEPS {
        let begun = attempts(ledger, "begin", run, step);
        let ended = attempts(ledger, "end", run, step);
        let completed: Vec<&str> = journal
            .entries
            .iter()
            .filter(|entry| entry.event == "execution.completed")
            .filter_map(|entry| entry.id.strip_prefix(&format!("{run}/s{step}/")))
            .collect();
        let [counts] = completed[..] else { panic!("run {run} s{step}: {completed:?}") };
        let mut names: Vec<&str> = begun.iter().map(|(_, attempt)| *attempt).collect();
        assert_eq!(names.last(), Some(&counts), "run {run} s{step} was begun again after it was finished");
        names.dedup();
        assert_eq!(names.len(), begun.len(), "run {run} s{step}: an attempt ran twice: {begun:?}");
        assert!(begun[0].0 >= over, "run {run} s{step} was begun before s{} had ended", step.max(1) - 1);
        let end = ended.iter().find(|(_, attempt)| *attempt == counts);
        over = end.unwrap_or_else(|| panic!("run {run} s{step}: {counts} has no end")).0;
        assert!(ended.iter().all(|(nth, _)| *nth <= over), "run {run} s{step}: {ended:?}");
    }
}

fn count(postgres: &Postgres, Database { schema, .. }: &Database, what: &str) -> usize {
    let counted = postgres.sql(&format!("SET search_path = {schema}; SELECT count(*) FROM {what}"));
    counted.parse().unwrap_or_else(|_| panic!("{what}: {counted}"))
}

#[test]
fn o14_two_executors_three_workers_the_database_and_the_broker_killed_twenty_times_each() {
    let kills = nightly(20, 60);
    let (postgres, mut nats) = (Postgres::start(&[]), Nats::start());
    let database = postgres.database();
    let client = Sandbox::on(&database.url);
    let bus = nats.url();
    let kept = |args: &str| Kept::new(&database.url, &format!("{args} --bus {bus}"));
    let serve = "serve --listen 127.0.0.1:0 --no-worker";
    let mut servers = [kept(serve), kept(serve)];
    let work = "worker --lease 5s --slots 3";
    let mut workers = [
        kept(&format!("{work} --queue a")),
        kept(&format!("{work} --queue b")),
        kept(&format!("{work} --queue a --queue b")),
    ];
    let file = pipeline(&client);
    let over = AtomicBool::new(false);
    let mut random = Random::new(97);
    let told = std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask_for_runs(&client, &file, &over));
        for kill in 0..kills * 4 {
            servers.iter_mut().chain(&mut workers).for_each(Kept::see_to);
            let before = client.lines("ledger").len();
            let more = 1 + random.below(3) as usize;
            until("some work is done", || {
                client.lines("ledger").len() >= before + more || asking.is_finished()
            });
            if asking.is_finished() {
                // It tells why.
                break;
            }
            match kill % 4 {
                0 => workers[random.below(3) as usize].kill(),
                1 => servers[random.below(2) as usize].kill(),
                2 => {
                    nats.kill();
                    nats.again();
                }
                _ => {
                    postgres.crash();
                    postgres.start_again();
                }
            }
        }
        over.store(true, Ordering::SeqCst);
        asking.join().expect("every run is accepted")
    });
    let of = |what: &str| count(&postgres, &database, what);
    until("every run has ended", || {
        servers.iter_mut().chain(&mut workers).for_each(Kept::see_to);
        of("runs WHERE status NOT IN ('completed', 'failed', 'cancelled')") == 0
    });
    // What was acknowledged is there, once, and nothing else.
    let runs = told.len();
    assert_eq!((of("runs"), of("runs WHERE status = 'completed'")), (runs, runs));
    assert_eq!((of("steps"), of("steps WHERE status = 'done'")), (runs * STEPS, runs * STEPS));
    assert_eq!(of("executions WHERE status = 'completed'"), runs * STEPS);
    assert_eq!(of("executions WHERE status IN ('requested', 'scheduling', 'scheduled', 'running')"), 0);
    let journal = client.journal(None);
    journal.replay();
    for event in ["run.created", "run.succeeded"] {
        assert_eq!(journal.events(event), runs, "{event}");
    }
    let ledger = client.lines("ledger");
    told.values().for_each(|run| expect_in_order(&ledger, &journal, run));
    let lost = journal.events("owner.died") + journal.events("lease.expired");
    let starts: usize = servers.iter().chain(&workers).map(|kept| kept.starts).sum();
    println!("{runs} runs, {} kills, {starts} starts, {lost} attempts taken from the dead", kills * 4);
}
