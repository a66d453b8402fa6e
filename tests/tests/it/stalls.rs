//! A store that cannot be written to for longer than a lease, because of a held lock or a full disk. No step
//! is stopped for it, none runs again, and everything continues by itself.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rusqlite::Connection;
use sprag_testkit::Postgres;
use sprag_tests::{Disk, Sandbox, Signal, Started, is_running, now_ms, until, within};

const LEASE: &str = "10s";
/// Longer than the lease and what its holder is given after it.
const STALL: Duration = Duration::from_secs(25);

/// Writes to a ledger, waits for a file, and writes to the ledger again.
const STEP: &str = "at_most_once: true
run: |
  echo begin >> ledger
  for i in $(seq 2400); do [ -e go ] && break; sleep 0.05; done
  echo end >> ledger";

/// Starts a worker with a short lease on a run of one step. Returns it and the run's id.
fn working(sandbox: &Sandbox) -> (Started, String) {
    sandbox.pipeline("one", &[("a", STEP)]);
    let mut worker = sandbox.command(["worker", "--lease", LEASE]);
    worker.env("SPRAG_LOG", "warn");
    let worker = sandbox.start_command(worker);
    let run = sandbox.detach(Path::new("one.yaml"));
    until("the step runs", || sandbox.lines("ledger") == ["begin"]);
    (worker, run)
}

fn assert_ran_once(sandbox: &Sandbox, run: &str) {
    sandbox.sprag(["wait", run, "--timeout", "60s"]).expect(0);
    assert_eq!(sandbox.lines("ledger"), ["begin", "end"]);
    assert_eq!(sandbox.step(run, "a")["attempt"], 1, "{}", sandbox.status(run));
    assert_eq!(sandbox.status_word(run), "completed");
}

/// Checks everything while a process holds the write lock for longer than the lease: the step continues, reads do not
/// wait, and a process that wants to write names the blocking one. `holder` is the start of that name.
fn assert_step_stays(sandbox: &Sandbox, worker: &mut Started, holder: &str) {
    let since_ms = now_ms();
    let waiting = sandbox.start(["run", "one.yaml", "--detach"]);

    // Reading does not wait, and neither does the end of a process that has read.
    let listed = sandbox.sprag(["ls", "-n", "5000"]).expect(0);
    assert!(listed.stdout.contains("one"), "{}", listed.stdout);
    let examined = sandbox.sprag(["doctor"]).expect(1);
    assert!(examined.stdout.contains(holder), "{holder}: {}", examined.stdout);
    let took_ms = now_ms() - since_ms;
    assert!(took_ms < 8_000, "`ls` and `doctor` took {took_ms} ms");

    let refused = waiting.finish().expect(1);
    let named = refused.stderr.contains(holder) && refused.stderr.contains("was locked by");
    assert!(named, "{holder}: {}", refused.stderr);

    let left = STALL.saturating_sub(Duration::from_millis(now_ms() - since_ms));
    let ended = within(left, || (sandbox.lines("ledger").len() > 1 || !worker.is_running()).then_some(()));
    assert_eq!(ended, None, "the step goes on: {:?} {}", sandbox.lines("ledger"), worker.stderr());
}

/// Lets other processes commit first after the lock is free: they must not take away a lease that expired meanwhile.
fn assert_not_taken(sandbox: &Sandbox, run: &str) {
    let others: Vec<Started> = (0..3).map(|_| sandbox.start(["worker", "--lease", LEASE])).collect();
    for other in &others {
        until("it serves", || other.stderr().contains("serves"));
    }
    let ended = within(Duration::from_secs(3), || (sandbox.lines("ledger").len() > 1).then_some(()));
    assert_eq!(ended, None, "{:?}", sandbox.lines("ledger"));
    sandbox.write("go", "");
    assert_ran_once(sandbox, run);
}

#[test]
fn e15_a_lock_that_is_held_beyond_the_lease_ends_no_step() {
    let sandbox = Sandbox::new();
    let (mut worker, run) = working(&sandbox);
    let other = Connection::open(sandbox.data().join(sprag_store::FILE_NAME)).expect("the file");
    other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    assert_step_stays(&sandbox, &mut worker, &format!("process {} (", std::process::id()));
    other.execute_batch("ROLLBACK").expect("the lock is free");
    assert_not_taken(&sandbox, &run);
}

/// Uses the file as any other program does; says `held`, and waits for the file `on` in the middle of its work.
fn start_python(sandbox: &Sandbox, script: &str) -> Started {
    const COMMON: &str = "
import os, sqlite3, sys, time
path = sys.argv[1]
con = sqlite3.connect(path, isolation_level=None, timeout=30)
def hold():
    if not os.path.exists('on'):
        print('held', flush=True)
    for _ in range(6000):
        if os.path.exists('on'):
            break
        time.sleep(0.02)
";
    let mut command = Command::new("python3");
    command.arg("-c").arg(format!("{COMMON}{script}")).arg(sandbox.data().join(sprag_store::FILE_NAME));
    command.current_dir(sandbox.path(""));
    let started = sandbox.start_command(command);
    until("it is in the middle of its work", || started.stdout().contains("held"));
    started
}

#[test]
fn e15_a_vacuum_that_takes_longer_than_the_lease_ends_no_step() {
    let sandbox = Sandbox::new();
    let (mut worker, run) = working(&sandbox);
    // SQLite calls the handler while it copies; another connection sees whether it has the lock by then.
    let script = "
other = sqlite3.connect(path, isolation_level=None, timeout=0)
def look():
    try:
        other.execute('BEGIN IMMEDIATE')
        other.execute('ROLLBACK')
    except sqlite3.OperationalError:
        hold()
    return 0
con.set_progress_handler(look, 10)
con.execute('VACUUM')
";
    let vacuum = start_python(&sandbox, script);
    assert_step_stays(&sandbox, &mut worker, &format!("process {} (", vacuum.pid()));
    sandbox.write("on", "");
    vacuum.finish().expect(0);
    assert_not_taken(&sandbox, &run);
}

/// A backup only reads, in steps: no process waits for it, however long it takes, and the backup is complete.
#[test]
fn e15_a_backup_longer_than_the_lease_blocks_no_process() {
    let sandbox = Sandbox::new();
    let (mut worker, run) = working(&sandbox);
    let script = "
os.makedirs('copy')
to = sqlite3.connect('copy/' + os.path.basename(path))
con.backup(to, pages=1, progress=lambda *_: hold(), sleep=0)
to.close()
";
    let backup = start_python(&sandbox, script);
    let since_ms = now_ms();
    sandbox.yaml("two", "steps:\n  - { id: b, run: 'true' }\n");
    sandbox.sprag(["run", "two.yaml"]).expect(0);
    sandbox.sprag(["doctor"]).expect(0);
    let left = STALL.saturating_sub(Duration::from_millis(now_ms() - since_ms));
    let ended = within(left, || (sandbox.lines("ledger").len() > 1 || !worker.is_running()).then_some(()));
    assert_eq!(ended, None, "the step goes on: {:?} {}", sandbox.lines("ledger"), worker.stderr());
    sandbox.write("on", "");
    backup.finish().expect(0);
    sandbox.write("go", "");
    assert_ran_once(&sandbox, &run);
    let copied = sandbox.json(["ls", "--json", "--data", &sandbox.path("copy").display().to_string()]);
    assert_eq!(copied.as_array().map(Vec::len), Some(2), "{copied}");
}

#[test]
fn e15_a_process_that_is_stopped_in_a_write_ends_no_step_of_others() {
    let sandbox = Sandbox::new();
    let (mut worker, run) = working(&sandbox);
    let (data, runtime) = (sandbox.data(), tokio::runtime::Runtime::new().expect("a runtime"));
    let store = sprag_store::Store::open(&data).expect("a store");
    runtime.block_on(crate::retention::finished(&store, &data, 1_000));
    drop(store);
    let mut gc = sandbox.start(["gc", "--keep", "0s"]);
    gc.stop_in_a_write();
    assert_step_stays(&sandbox, &mut worker, &format!("process {} (", gc.pid()));
    gc.signal(Signal::CONT);
    gc.finish().expect(0);
    assert_not_taken(&sandbox, &run);
}

/// A database that stands still looks like one that cannot be reached, whose other workers go on and take over what lapses.
/// So a worker ends its step before the lease lapses, and the step is tried again when the database is back.
#[test]
fn o13_a_database_that_is_paused_beyond_the_lease_has_steps_ended_and_tried_again() {
    let postgres = Postgres::start(&[]);
    let sandbox = Sandbox::on(&postgres.database().tcp_url);
    let again = STEP.replace("at_most_once: true", "at_most_once: false");
    sandbox.pipeline("one", &[("a", &again), ("b", "needs: a\nrun: echo after >> ledger")]);
    let mut worker = sandbox.start(["worker", "--lease", LEASE]);
    let run = sandbox.detach(Path::new("one.yaml"));
    until("the step runs", || sandbox.lines("ledger") == ["begin"]);
    let first = sandbox.processes_of(&run);
    assert!(!first.is_empty(), "its processes are seen");
    let others: Vec<Started> = (0..2).map(|_| sandbox.start(["worker", "--lease", LEASE])).collect();
    for other in &others {
        until("it serves", || other.stderr().contains("serves"));
    }
    postgres.pause();
    let gone = within(STALL, || first.iter().all(|pid| !is_running(*pid)).then_some(()));
    assert_eq!(gone, Some(()), "the step is ended while nothing is known of its lease: {}", worker.stderr());
    assert!(worker.is_running(), "{}", worker.stderr());
    postgres.resume();
    until("it is tried again", || sandbox.lines("ledger").len() == 2);
    sandbox.write("go", "");
    sandbox.sprag(["wait", &run, "--timeout", "60s"]).expect(0);
    assert_eq!(sandbox.lines("ledger"), ["begin", "begin", "end", "after"]);
    sandbox.check(&run);
}

#[test]
fn e15_a_database_that_is_paused_for_less_than_the_lease_ends_no_step() {
    const PAUSE: Duration = Duration::from_secs(10);
    let postgres = Postgres::start(&[]);
    let sandbox = Sandbox::on(&postgres.database().tcp_url);
    sandbox.pipeline("one", &[("a", STEP)]);
    let mut worker = sandbox.start(["worker", "--lease", "30s"]);
    let run = sandbox.detach(Path::new("one.yaml"));
    until("the step runs", || sandbox.lines("ledger") == ["begin"]);
    postgres.pause();
    let ended = within(PAUSE, || (sandbox.lines("ledger").len() > 1 || !worker.is_running()).then_some(()));
    assert_eq!(ended, None, "{:?} {}", sandbox.lines("ledger"), worker.stderr());
    postgres.resume();
    sandbox.write("go", "");
    assert_ran_once(&sandbox, &run);
}

#[test]
fn e15_a_step_that_ends_while_the_disk_is_full_is_reported_when_there_is_room() {
    let sandbox = Sandbox::new();
    let Some(disk) = Disk::mount(&sandbox.data(), "8m") else { return };
    let (mut worker, run) = working(&sandbox);
    let ballast = disk.fill();
    sandbox.write("go", "");
    until("the step has ended", || sandbox.lines("ledger") == ["begin", "end"]);
    until("the disk is full", || worker.stderr().contains("no space left"));
    let again = within(STALL, || (sandbox.lines("ledger").len() > 2 || !worker.is_running()).then_some(()));
    assert_eq!(again, None, "{:?} {}", sandbox.lines("ledger"), worker.stderr());
    std::fs::remove_file(ballast).expect("room");
    assert_ran_once(&sandbox, &run);
}

#[test]
fn e15_a_step_that_runs_while_the_disk_is_full_keeps_its_lease() {
    let sandbox = Sandbox::new();
    let Some(disk) = Disk::mount(&sandbox.data(), "8m") else { return };
    let (mut worker, run) = working(&sandbox);
    let ballast = disk.fill();
    until("the disk is full", || worker.stderr().contains("no space left"));
    let ended = within(STALL, || (sandbox.lines("ledger").len() > 1 || !worker.is_running()).then_some(()));
    assert_eq!(ended, None, "{:?} {}", sandbox.lines("ledger"), worker.stderr());
    std::fs::remove_file(ballast).expect("room");
    sandbox.write("go", "");
    assert_ran_once(&sandbox, &run);
}

#[test]
fn e15_a_log_leaves_the_database_its_room() {
    let sandbox = Sandbox::new();
    let Some(_disk) = Disk::mount(&sandbox.data(), "8m") else { return };
    let loud = "run: head -c 20000000 /dev/zero | tr '\\0' 'x' | fold -w 100";
    sandbox.pipeline("loud", &[("a", loud), ("b", "run: echo after >> ledger\nneeds: a")]);
    let run = sandbox.run(&["loud.yaml"], 0);
    assert_eq!(sandbox.lines("ledger"), ["after"]);
    let told = sandbox.sprag(["logs", &run]).expect(0).stdout;
    let last = told.lines().last().expect("a log");
    assert!(last.contains("bytes of the log were lost") && last.contains("kept for the database"), "{last}");
}
