//! Workers and supervisors that are killed or stopped: the tree is stopped in every case.

use std::{process::Stdio, time::Duration};

use sprag_process::{Error, Order, Reason, become_subreaper, boot_ms, kill_orphans};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::common::{Bench, SOON, eventually, is_alone, is_running, run, signal, start, supervisor, wait};

const DAEMON: &str = "(setsid sh -c 'trap \"\" TERM; echo $$ >daemon; while :; do sleep 1000; done' &)";

/// Starts a worker in its own process, which runs the order.
async fn worker(bench: &Bench, order: &Order) -> (Child, i32) {
    let file = bench.path("order.json");
    std::fs::write(&file, serde_json::to_vec(order).expect("json")).expect("a file");
    let mut worker = Command::new(supervisor())
        .arg("hold")
        .arg(&file)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a worker");
    let mut lines = BufReader::new(worker.stdout.take().expect("a pipe")).lines();
    let line = lines.next_line().await.expect("a pipe").expect("a started command");
    let (_, supervisor) = line.split_once(' ').expect("two numbers");
    (worker, supervisor.parse().expect("a number"))
}

#[tokio::test]
async fn o09_the_tree_of_a_killed_worker_is_stopped() {
    let bench = Bench::new();
    let mut order = bench.order(&format!("{DAEMON}; trap '' TERM; while :; do sleep 1000; done"));
    order.grace_ms = 3_600_000;
    let (mut worker, supervisor) = worker(&bench, &order).await;
    let daemon = bench.pid("daemon").await;
    worker.start_kill().expect("it is there");
    worker.wait().await.expect("it ends");
    eventually("the supervisor is gone", || !is_running(supervisor)).await;
    assert!(!is_running(daemon));
    bench.assert_no_process_is_left();
}

#[tokio::test]
async fn o13_the_tree_of_a_stopped_worker_is_stopped() {
    let bench = Bench::new();
    let mut order = bench.order(&format!("{DAEMON}; sleep 1000"));
    order.lease_until_ms = Some(boot_ms() + 1_500);
    let (mut worker, supervisor) = worker(&bench, &order).await;
    bench.pid("daemon").await;
    let worker_pid = worker.id().expect("it runs") as i32;
    signal(worker_pid, libc::SIGSTOP);
    eventually("the tree is gone", || bench.marked_processes().is_empty()).await;
    eventually("the supervisor is done", || !is_running(supervisor)).await;
    signal(worker_pid, libc::SIGCONT);
    let status = tokio::time::timeout(SOON, worker.wait()).await.expect("in time").expect("an end");
    assert_eq!(status.code(), Some(1), "it heard of the end that was reported while it was stopped");
}

#[tokio::test]
async fn dropping_the_handle_stops_the_tree() {
    let bench = Bench::new();
    let running = start(bench.order(&format!("{DAEMON}; sleep 1000"))).await;
    bench.pid("daemon").await;
    drop(running);
    eventually("the tree is gone", || bench.marked_processes().is_empty()).await;
}

#[tokio::test]
async fn the_tree_of_a_killed_supervisor_is_killed() {
    let bench = Bench::new();
    let mut running = start(bench.order(&format!("{DAEMON}; sleep 1000 & exec sleep 1000"))).await;
    let daemon = bench.pid("daemon").await;
    signal(running.supervisor_pid().expect("it runs") as i32, libc::SIGKILL);
    let ended = wait(&mut running).await;
    assert_eq!((ended.reason, ended.exit_code), (Reason::SupervisorLost, None));
    assert!(ended.leftovers >= 1);
    assert!(!is_running(daemon));
    bench.assert_no_process_is_left();
}

#[tokio::test]
async fn the_owner_lock_identifies_a_process_without_environment() {
    if !is_alone("deaths::the_owner_lock_identifies_a_process_without_environment") {
        return;
    }
    become_subreaper().expect("a right every process has");
    let bench = Bench::new();
    let script = "env -i setsid /bin/sh -c 'echo $$ >daemon; while :; do /bin/sleep 1000; done' & sleep 1000";
    let mut order = bench.order(script);
    order.owner_lock = Some(bench.path("owner"));
    let mut running = start(order).await;
    let daemon = bench.pid("daemon").await;
    signal(running.supervisor_pid().expect("it runs") as i32, libc::SIGKILL);
    assert_eq!(wait(&mut running).await.reason, Reason::SupervisorLost);
    assert!(!is_running(daemon));
    assert!(!sprag_process::is_held(&bench.path("owner")).expect("a lock"));
}

#[tokio::test]
async fn a_supervisor_stops_its_tree_on_term() {
    for signal_number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let bench = Bench::new();
        let mut running = start(bench.order(&format!("{DAEMON}; sleep 1000"))).await;
        bench.pid("daemon").await;
        signal(running.supervisor_pid().expect("it runs") as i32, signal_number);
        assert_eq!(wait(&mut running).await.reason, Reason::Signalled);
        bench.assert_no_process_is_left();
    }
}

#[tokio::test]
async fn o09_orphans_of_a_dead_worker_and_a_dead_supervisor_are_killed() {
    let bench = Bench::new();
    let (mut worker, supervisor) = worker(&bench, &bench.order(&format!("{DAEMON}; sleep 1000"))).await;
    let daemon = bench.pid("daemon").await;
    // Both are stopped first, so that neither notices the other's end.
    signal(supervisor, libc::SIGSTOP);
    worker.start_kill().expect("it is there");
    worker.wait().await.expect("it ends");
    signal(supervisor, libc::SIGKILL);
    eventually("the supervisor is gone", || !is_running(supervisor)).await;
    assert!(is_running(daemon), "a session of its own survives");
    let mut other = Command::new("sleep").arg("1000").kill_on_drop(true).spawn().expect("a bystander");
    let ended = end(&bench.markers(), SOON).await.expect("all are ended");
    assert!(ended >= 1);
    assert!(!is_running(daemon));
    bench.assert_no_process_is_left();
    assert!(other.try_wait().expect("ours").is_none(), "a bystander is not touched");
    assert_eq!(end(&bench.markers(), SOON).await.expect("none are left"), 0);
}

#[tokio::test]
async fn orphans_must_carry_all_markers() {
    let bench = Bench::new();
    let mut running = start(bench.order("echo $$ >pid; exec sleep 1000")).await;
    let pid = bench.pid("pid").await;
    let other_step = [bench.markers()[0], ("SPRAG_STEP_ID", "another")];
    assert_eq!(end(&other_step, SOON).await.expect("none match"), 0);
    assert_eq!(end(&[], SOON).await.expect("nothing is asked for"), 0);
    assert!(is_running(pid));
    match end(&bench.markers(), Duration::ZERO).await {
        Err(Error::OrphansRemain { pids }) => assert!(pids.contains(&pid)),
        other => panic!("{other:?}"),
    }
    running.kill().expect("it listens");
    wait(&mut running).await;
}

/// Kills worker and supervisor at random times: the rest is found and killed, and the next attempt can start.
#[tokio::test]
async fn o09_killed_at_any_moment_nothing_is_left() {
    for round in 0..24_u64 {
        let bench = Bench::new();
        let mut order = bench.order(&format!("{DAEMON}; (setsid sleep 1000 &); sleep 1000"));
        order.owner_lock = Some(bench.path("owner"));
        let mut running = start(order.clone()).await;
        let supervisor_pid = running.supervisor_pid().expect("it runs") as i32;
        // A random delay within the first moments of the tree.
        let moment = tokio::time::timeout(Duration::from_millis(round / 3 * 2), running.wait()).await;
        assert!(moment.is_err(), "it does not end by itself");
        match round % 3 {
            0 => drop(running),
            1 => {
                signal(supervisor_pid, libc::SIGKILL);
                assert_eq!(wait(&mut running).await.reason, Reason::SupervisorLost);
            }
            _ => {
                signal(supervisor_pid, libc::SIGKILL);
                drop(running);
            }
        }
        eventually("the supervisor is gone", || !is_running(supervisor_pid)).await;
        end(&bench.markers(), SOON).await.expect("all are ended");
        bench.assert_no_process_is_left();
        order.argv = vec!["true".into()];
        assert!(run(order).await.success(), "round {round}: the next attempt starts");
    }
}

#[tokio::test]
async fn a_stopped_supervisor_is_woken_by_the_next_command() {
    let bench = Bench::new();
    let mut running = start(bench.order("sleep 1000")).await;
    signal(running.supervisor_pid().expect("it runs") as i32, libc::SIGSTOP);
    running.cancel().expect("there is room in the pipe");
    assert_eq!(wait(&mut running).await.reason, Reason::Cancelled);
}

#[tokio::test]
async fn a_command_is_not_started_for_a_worker_without_a_lease() {
    let bench = Bench::new();
    let mut order = bench.order("echo started >proof");
    order.lease_until_ms = Some(0);
    let mut running = start(order).await;
    assert_eq!(running.started(), None);
    assert_eq!(wait(&mut running).await.reason, Reason::LeaseLost);
    assert!(!bench.path("proof").exists());
}

/// A worker that is stopped between its claim and the start of the command continues when its lease is over, and another
/// worker may have done the step.
#[tokio::test]
async fn e21_a_lease_that_ended_between_the_order_and_its_start_starts_nothing() {
    let bench = Bench::new();
    let mut order = bench.order("echo started >proof");
    order.lease_until_ms = Some(boot_ms() + 100);
    eventually("the lease is over", || boot_ms() > order.lease_until_ms.unwrap_or_default()).await;
    let mut running = start(order).await;
    assert_eq!(wait(&mut running).await.reason, Reason::LeaseLost);
    assert!(!bench.path("proof").exists());
}

async fn end(markers: &[(&str, &str)], deadline: Duration) -> Result<usize, Error> {
    let markers: Vec<(String, String)> =
        markers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    tokio::task::spawn_blocking(move || {
        let markers: Vec<(&str, &str)> = markers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        kill_orphans(&markers, None, Duration::from_millis(200), deadline).map(|ended| ended.processes)
    })
    .await
    .expect("no panic")
}
