//! Kills at every operation of firing and of receiving: each event has one run then, and each answer its event.
//!
//! The processes are traced, so that the kill hits before their first, second, third … write, sync or message. The next
//! process finds what the killed one left.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use sprag_testkit::Postgres;
use sprag_tests::{Request, Sandbox, Traced, git, until, until_some};

use crate::serve_hooks::hmac;

/// One rule for each kind of event.
const RULES: &str = "name: p
on:
  - id: year
    schedule: { cron: '0 0 1 1 *' }
    missed: { run: latest, within: 400d }
    overlap: allow
  - id: ended
    run: { pipeline: other, ended: [cancelled] }
    overlap: allow
  - id: moved
    git: { refs: [refs/heads/main], repository: library, every: 1s }
    overlap: allow
  - id: asked
    webhook: { kind: generic, secrets: [HOOK] }
    debounce: { for: 1h }
    overlap: allow
steps:
  - id: a
    run: 'true'
";
const OTHER: &str = "name: other\nsteps:\n  - id: a\n    run: 'true'\n";
/// The kinds of the events, one of each rule.
const KINDS: [&str; 4] = ["manual", "move", "run", "tick"];
/// The most kills of one test, apart from the nightly run.
const MOST: usize = 40;
/// The number of threads that share the kills.
const THREADS: usize = 3;

/// Returns what a command tells with `--json`.
fn ask(sandbox: &Sandbox, args: &[&str]) -> Value {
    sandbox.sprag(args.iter().copied().chain(["--json"])).expect(0).json()
}

/// Returns the events of all rules, without the count of those that were missed.
fn events(sandbox: &Sandbox) -> Vec<Value> {
    let all = ask(sandbox, &["delivery", "ls", "--limit", "1000"]);
    all.as_array().expect("a list").iter().filter(|event| event["kind"] != "missed").cloned().collect()
}

fn runs(sandbox: &Sandbox) -> usize {
    ask(sandbox, &["ls", "--limit", "1000"]).as_array().expect("runs").len()
}

fn commit(library: &Path) {
    let author = ["-c", "user.name=t", "-c", "user.email=t@t"];
    git(library, author.into_iter().chain(["commit", "--quiet", "--allow-empty", "-m", "a commit"]));
}

/// Prepares a store in which each rule has one event that no process has fired: a tick that is due, a run that has
/// ended, a ref that has moved, and an event whose window is over.
fn prepare(sandbox: &Sandbox, sql: impl Fn(&str)) {
    git(&sandbox.path("."), ["init", "--quiet", "--initial-branch=main", "library"]);
    let library = sandbox.path("library");
    commit(&library);
    sandbox.yaml("p", RULES);
    sandbox.yaml("other", OTHER);
    sandbox.sprag(["rule", "apply", "p.yaml"]).expect(0);
    until("the first look", || {
        sandbox.sprag(["rule", "tick", "--detach"]).expect(0);
        ask(sandbox, &["rule", "show", "p/moved"])["refs"].is_object()
    });
    let run = sandbox.detach(&sandbox.path("other.yaml"));
    sandbox.write("event.json", "{}");
    sandbox.sprag(["rule", "fire", "p/asked", "--event", "event.json"]).expect(0);
    sandbox.sprag(["cancel", &run]).expect(0);
    sandbox.ends_as(&run, "cancelled");
    commit(&library);
    let days = 366_i64 * 24 * 3_600_000;
    sql(&format!("UPDATE rules SET seen = seen - {days}, next_ms = next_ms - {days} WHERE name = 'p/year'"));
    sql("UPDATE rules SET next_ms = 1 WHERE name = 'p/moved'");
    sql("UPDATE enforcements SET due_ms = 0 WHERE status = 'held'");
    let before = events(sandbox);
    assert_eq!((before.len(), runs(sandbox)), (1, 1), "one event is held, and one run has ended: {before:?}");
}

/// Checks that each event has one decision and one run, after a process that was not killed.
fn check_fired(sandbox: &Sandbox, nth: usize) {
    // A look that was killed is made again when the next one is due.
    let all = until_some("every event has its run", || {
        sandbox.sprag(["rule", "tick", "--detach"]).expect(0);
        let all = events(sandbox);
        (all.iter().filter(|event| event["run"].is_string()).count() == KINDS.len()).then_some(all)
    });
    let mut kinds: Vec<&str> = all.iter().filter_map(|event| event["kind"].as_str()).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, KINDS, "killed before operation {nth}: {all:?}");
    assert!(all.iter().all(|event| event["status"] == "requested"), "operation {nth}: {all:?}");
    let of: BTreeSet<&str> = all.iter().filter_map(|event| event["run"].as_str()).collect();
    assert_eq!((of.len(), runs(sandbox)), (KINDS.len(), KINDS.len() + 1), "operation {nth}: {all:?}");
}

/// Kills `sprag rule tick` before each of its operations, each time on a copy of the prepared store.
fn kill_firing(copy: &(dyn Fn() -> Sandbox + Sync)) {
    let start =
        |sandbox: &Sandbox, nth| Traced::start(sandbox, sandbox.command(["rule", "tick", "--detach"]), nth);
    let points = {
        let sandbox = copy();
        let Some(traced) = start(&sandbox, None) else { return };
        until("it ends by itself", || traced.has_ended());
        check_fired(&sandbox, 0);
        traced.points(MOST)
    };
    let (next, killed, seen) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(nth) = points.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let sandbox = copy();
                    let end = start(&sandbox, Some(*nth)).expect("a process").end();
                    assert!(end.was_killed || end.code == 0, "operation {nth}: {end:?}");
                    killed.fetch_add(usize::from(end.was_killed), Ordering::SeqCst);
                    seen.lock().expect("a set").insert(runs(&sandbox));
                    check_fired(&sandbox, *nth);
                }
            });
        }
    });
    let (killed, seen) = (killed.into_inner(), seen.into_inner().expect("a set"));
    println!("figure: kill -9 at every operation of firing: {killed} kills, runs found after them: {seen:?}");
    assert!(killed > points.len() / 2, "{killed} of {} were killed", points.len());
    // Kills hit before the first commit and after the last one.
    assert!(seen.contains(&1) && seen.contains(&(KINDS.len() + 1)), "{killed} kills: {seen:?}");
}

/// Copies the files of a data directory.
fn copy_data(from: &Sandbox, to: &Sandbox) {
    let status = std::process::Command::new("cp").arg("-a").arg(from.data()).arg(to.data()).status();
    assert!(status.is_ok_and(|status| status.success()), "the data directory is copied");
}

#[test]
fn r02_r19_r22_a_kill_at_every_operation_of_firing_leaves_one_run_for_each_event() {
    let prepared = Sandbox::new();
    prepare(&prepared, |sql| {
        let conn = rusqlite::Connection::open(prepared.data().join("sprag.db")).expect("the database");
        assert_eq!(conn.execute(sql, []).expect("SQL"), 1, "{sql}");
    });
    kill_firing(&|| {
        let sandbox = Sandbox::new();
        copy_data(&prepared, &sandbox);
        sandbox
    });
}

#[test]
fn r02_r19_r22_a_kill_at_every_operation_of_firing_on_postgres() {
    let postgres = Postgres::shared();
    let (name, url) = postgres.whole_database();
    let prepared = Sandbox::on(&url);
    prepare(&prepared, |sql| drop(postgres.sql_in(&name, sql)));
    let made = Mutex::new(vec![name.clone()]);
    kill_firing(&|| {
        // The last process of the prepared store may still be about to disconnect.
        let (copy, url) = until_some("the database is copied", || postgres.copy_of(&name).ok());
        made.lock().expect("a list").push(copy);
        let sandbox = Sandbox::on(&url);
        copy_data(&prepared, &sandbox);
        sandbox
    });
    made.into_inner().expect("a list").iter().for_each(|name| postgres.drop_database(name));
}

/// A traced server with the secret of the rule.
struct Killable {
    traced: Traced,
    addr: SocketAddr,
}

impl Killable {
    fn start(sandbox: &Sandbox) -> Option<Killable> {
        let mut command = sandbox.command(["serve", "--listen", "127.0.0.1:0", "--no-worker"]);
        command.env("HOOK", "secret");
        let traced = Traced::start(sandbox, command, None)?;
        let addr = until_some("the server listens", || {
            let told = traced.stdout();
            told.lines().find_map(|line| line.split_once("://"))?.1.parse().ok()
        });
        Some(Killable { traced, addr })
    }

    /// Sends request `n`. Returns the status and the event of an answer that was acknowledged.
    fn send(&self, n: usize) -> Option<(u16, String)> {
        let body = json!({ "n": n }).to_string();
        let request =
            Request::to(self.addr, "POST", "/in/p/asked").header("x-signature-256", &hmac("secret", &body));
        let reply = request.body("application/json", body.as_bytes()).try_send().ok()?;
        let event = reply.json()["event"].as_str()?.to_owned();
        matches!(reply.status, 200 | 202).then_some((reply.status, event))
    }
}

/// Kills a server before each of its operations from a request to the run that it starts.
fn kill_receiving(sandbox: &Sandbox) {
    sandbox.yaml("p", "name: p\non:\n  - id: asked\n    webhook: { kind: generic, secrets: [HOOK] }\n    overlap: allow\nsteps:\n  - id: a\n    run: 'true'\n");
    sandbox.sprag(["rule", "apply", "p.yaml"]).expect(0);
    let Some(mut server) = Killable::start(sandbox) else { return };
    let is_decided = |event: &str| {
        let told = ask(sandbox, &["delivery", "show", event]);
        told["decisions"][0]["status"] == "requested"
    };
    let (mut acknowledged, mut killed, mut taken) = (0, 0, BTreeMap::new());
    // The first request shows what there is to kill at.
    server.traced.kill_before(usize::MAX);
    let (_, event) = until_some("the first request is taken", || server.send(0));
    until("the event is decided", || is_decided(&event));
    taken.insert(event, 0);
    let points = server.traced.points(MOST);
    for nth in points {
        server.traced.kill_before(nth);
        let first = server.send(nth);
        acknowledged += usize::from(first.is_some());
        if let Some((_, event)) = &first {
            until("the server was killed, or has decided", || server.traced.has_ended() || is_decided(event));
        }
        // A server that has decided before it came to its operation stays.
        if first.is_none() || !server.traced.spare() {
            let end =
                std::mem::replace(&mut server, Killable::start(sandbox).expect("a server")).traced.end();
            assert!(end.was_killed, "{end:?}");
            killed += 1;
        }
        // The sender repeats a request without an answer, and any other.
        let (status, event) = until_some("the next server takes the request", || server.send(nth));
        if let Some((_, before)) = first {
            assert_eq!(
                (status, &event),
                (200, &before),
                "an acknowledged event is there, before operation {nth}"
            );
        }
        until("the event is decided", || is_decided(&event));
        taken.insert(event, nth);
    }
    println!(
        "figure: kill -9 at every operation of receiving: {killed} kills, {acknowledged} answers before them"
    );
    assert!(acknowledged > 1 && killed > acknowledged / 2, "{acknowledged} answers, {killed} kills");
    assert!(
        acknowledged < taken.len() - 1,
        "some kills come before the answer: {acknowledged} of {}",
        taken.len()
    );
    let all = events(sandbox);
    let stored: BTreeSet<&str> = all.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(stored, taken.keys().map(String::as_str).collect(), "one event for each request");
    let of: BTreeSet<&str> = all.iter().filter_map(|event| event["run"].as_str()).collect();
    assert_eq!((all.len(), of.len(), runs(sandbox)), (taken.len(), taken.len(), taken.len()), "{all:?}");
}

#[test]
fn r02_r14_a_kill_at_every_operation_of_receiving_loses_no_answered_request() {
    kill_receiving(&Sandbox::new());
}

#[test]
fn r02_r14_a_kill_at_every_operation_of_receiving_on_postgres() {
    let database = Postgres::shared().database();
    kill_receiving(&Sandbox::on(&database.url));
}
