//! Trees that try to escape: separate sessions, double forks, stopped processes, fork storms.

use sprag_process::Reason;

use crate::common::{Bench, eventually, is_running, signal, start, wait};

/// Forks twice into its own session, and ignores TERM.
const DAEMON: &str = "(setsid sh -c 'trap \"\" TERM HUP; (echo $$ >leader; exec sleep 1000) & sh -c \"echo \\$\\$ >daemon; exec sleep 1000\" & ' &)";

#[tokio::test]
async fn a_daemon_in_its_own_session_is_stopped_on_cancel() {
    let bench = Bench::new();
    let mut running = start(bench.order(&format!("{DAEMON}; exec sleep 1000"))).await;
    let daemon = bench.pid("daemon").await;
    assert!(is_running(daemon));
    running.cancel().expect("it listens");
    assert_eq!(wait(&mut running).await.reason, Reason::Cancelled);
    assert!(!is_running(daemon));
    bench.assert_no_process_is_left();
}

#[tokio::test]
async fn leftovers_are_killed_and_reported_after_a_normal_exit() {
    let bench = Bench::new();
    let ended = bench.run(&format!("{DAEMON}; while [ ! -s daemon ]; do sleep 0.01; done; exit 5")).await;
    assert_eq!((ended.reason, ended.exit_code), (Reason::Exited, Some(5)));
    assert!(ended.leftovers >= 2, "{}", ended.leftovers);
    assert!(!is_running(bench.pid("daemon").await));
    bench.assert_no_process_is_left();
}

#[tokio::test]
async fn a_daemon_without_its_environment_is_stopped() {
    let bench = Bench::new();
    let script = "env -i setsid /bin/sh -c 'echo $$ >daemon; exec /bin/sleep 1000' & \
                  while [ ! -s daemon ]; do sleep 0.01; done; exit 0";
    let ended = bench.run(script).await;
    assert_eq!((ended.exit_code, ended.leftovers), (Some(0), 1));
    assert!(!is_running(bench.pid("daemon").await));
}

#[tokio::test]
async fn a_stopped_process_is_terminated() {
    let bench = Bench::new();
    let mut order = bench.order("echo $$ >pid; exec sleep 1000");
    order.grace_ms = 3_600_000;
    let mut running = start(order).await;
    let pid = bench.pid("pid").await;
    signal(pid, libc::SIGSTOP);
    eventually("it is stopped", || {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "))
    })
    .await;
    running.cancel().expect("it listens");
    let ended = wait(&mut running).await;
    assert_eq!((ended.reason, ended.signal), (Reason::Cancelled, Some(libc::SIGTERM)));
}

#[tokio::test]
async fn a_stopped_process_that_ignores_term_is_killed() {
    let bench = Bench::new();
    let mut running = start(bench.order("trap '' TERM; echo $$ >pid; kill -STOP $$; exec sleep 1000")).await;
    bench.pid("pid").await;
    running.cancel().expect("it listens");
    assert_eq!(wait(&mut running).await.signal, Some(libc::SIGKILL));
}

/// Each process forks the next and ends at once, ignoring TERM, so that no pid lives long enough to be hit.
#[tokio::test]
async fn a_fork_storm_is_stopped() {
    let bench = Bench::new();
    let script = "trap '' TERM; next() { next & }; for i in 1 2 3 4; do next & done; echo $$ >pid; \
                  while :; do sleep 1000; done";
    let mut running = start(bench.order(script)).await;
    bench.pid("pid").await;
    running.cancel().expect("it listens");
    assert_eq!(wait(&mut running).await.reason, Reason::Cancelled);
    bench.assert_no_process_is_left();
}

/// The same, with a new session for every process.
#[tokio::test]
async fn a_storm_of_sessions_is_stopped() {
    let bench = Bench::new();
    std::fs::write(bench.path("next"), "trap '' TERM\nsetsid sh ./next &\n").expect("a script");
    let script = "trap '' TERM; sh ./next; sh ./next; echo $$ >pid; while :; do sleep 1000; done";
    let mut running = start(bench.order(script)).await;
    bench.pid("pid").await;
    running.cancel().expect("it listens");
    assert_eq!(wait(&mut running).await.reason, Reason::Cancelled);
    bench.assert_no_process_is_left();
}

#[tokio::test]
async fn many_processes_are_stopped() {
    let bench = Bench::new();
    let script =
        "trap '' TERM; i=0; while [ $i -lt 300 ]; do sleep 1000 & i=$((i+1)); done; echo $$ >pid; wait";
    let mut running = start(bench.order(script)).await;
    bench.pid("pid").await;
    running.kill().expect("it listens");
    assert_eq!(wait(&mut running).await.reason, Reason::Cancelled);
    bench.assert_no_process_is_left();
}
