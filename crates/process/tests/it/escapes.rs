//! Processes that drop everything they inherited and kill their supervisors are killed in every case.

use std::{
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
    time::Duration,
};

use sprag_process::{
    OnParentExit, Order, Reason, become_subreaper, cgroup_support, guard, kill_abandoned_cgroups,
};

use crate::common::{Bench, eventually, is_alone, is_running, run, signal, start, supervisor, wait};

/// Starts ten daemons without environment and inherited files, each in its own session.
const CLEAN_DAEMONS: &str = "for n in 0 1 2 3 4 5 6 7 8 9; do
    env -i PATH=\"$PATH\" setsid bash -c \"exec 0<&- 1>&- 2>&- 200>&-; echo \\$\\$ >daemon$n; while :; do sleep 1000; done\" &
done
for n in 0 1 2 3 4 5 6 7 8 9; do while [ ! -s daemon$n ]; do sleep 0.01; done; done";

async fn daemons(bench: &Bench) -> Vec<i32> {
    let mut all = Vec::new();
    for n in 0..10 {
        all.push(bench.pid(&format!("daemon{n}")).await);
    }
    all
}

/// Returns an order whose command leaves clean daemons behind and then kills these processes.
fn escape(bench: &Bench, victims: &str, cgroup: bool) -> Order {
    let mut order = bench.order("");
    let script = format!("{CLEAN_DAEMONS}\nkill -9 {victims}\nsleep 1000");
    order.argv = vec!["bash".into(), "-c".into(), script];
    order.owner_lock = Some(bench.path("owner"));
    order.cgroup = cgroup;
    order
}

#[tokio::test]
async fn clean_daemons_of_a_killed_supervisor_are_killed() {
    if !is_alone("escapes::clean_daemons_of_a_killed_supervisor_are_killed") {
        return;
    }
    become_subreaper().expect("a right every process has");
    for cgroup in [true, false] {
        let bench = Bench::new();
        let mut running = start(escape(&bench, "$PPID", cgroup)).await;
        let ended = wait(&mut running).await;
        assert_eq!(ended.reason, Reason::SupervisorLost);
        for daemon in daemons(&bench).await {
            assert!(!is_running(daemon), "with a cgroup: {cgroup}");
        }
    }
}

#[tokio::test]
async fn clean_daemons_of_a_killed_supervisor_and_worker_are_killed_by_the_next_attempt() {
    if let Err(why) = cgroup_support() {
        eprintln!("not tried: {why}");
        return;
    }
    let bench = Bench::new();
    let mut order = escape(&bench, "$(cut -d' ' -f4 /proc/$PPID/stat) $PPID", true);
    let file = bench.path("order.json");
    std::fs::write(&file, serde_json::to_vec(&order).expect("json")).expect("a file");
    let mut worker = tokio::process::Command::new(supervisor())
        .arg("hold")
        .arg(&file)
        .stdout(Stdio::null())
        .spawn()
        .expect("one");
    worker.wait().await.expect("it ends");
    let daemons = daemons(&bench).await;
    assert!(daemons.iter().all(|daemon| is_running(*daemon)), "nobody was left to end them");
    order.argv = vec!["true".into()];
    assert!(run(order).await.success());
    assert!(!daemons.iter().any(|daemon| is_running(*daemon)), "the next attempt begins without them");
    bench.assert_no_process_is_left();
}

#[tokio::test]
async fn clean_daemons_of_a_killed_supervisor_and_worker_are_found_by_their_cgroup() {
    if let Err(why) = cgroup_support() {
        eprintln!("not tried: {why}");
        return;
    }
    let bench = Bench::new();
    let order = escape(&bench, "$(cut -d' ' -f4 /proc/$PPID/stat) $PPID", true);
    let file = bench.path("order.json");
    std::fs::write(&file, serde_json::to_vec(&order).expect("json")).expect("a file");
    let mut worker = tokio::process::Command::new(supervisor())
        .arg("hold")
        .arg(&file)
        .stdout(Stdio::null())
        .spawn()
        .expect("one");
    worker.wait().await.expect("it ends");
    let daemons = daemons(&bench).await;
    // The supervisor was killed a moment ago, and may not have ended yet.
    eventually("they are found and ended", || {
        kill_abandoned_cgroups(Duration::from_secs(10));
        !daemons.iter().any(|daemon| is_running(*daemon))
    })
    .await;
}

/// Returns a shell script in the bench's folder, with a guard.
fn guarded(bench: &Bench, script: &str) -> Command {
    let mut command = Command::new("bash");
    command.args(["-c", script]).current_dir(bench.path("")).stdin(Stdio::null());
    guard(&mut command, OnParentExit::Stop);
    command
}

#[tokio::test]
async fn a_guarded_command_leaves_nothing_behind() {
    let bench = Bench::new();
    let script = format!("{CLEAN_DAEMONS}\necho done; exit 7");
    let mut command = guarded(&bench, &script);
    let output =
        tokio::task::spawn_blocking(move || command.output()).await.expect("no panic").expect("bash");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(7), &b"done\n"[..]));
    for daemon in daemons(&bench).await {
        assert!(!is_running(daemon));
    }
}

#[tokio::test]
async fn a_guard_exits_with_the_status_of_its_command() {
    let bench = Bench::new();
    for (script, code, signal) in
        [("exit 0", Some(0), None), ("exit 3", Some(3), None), ("kill -9 $$", None, Some(9))]
    {
        let mut command = guarded(&bench, script);
        let status =
            tokio::task::spawn_blocking(move || command.status()).await.expect("no panic").expect("bash");
        assert_eq!((status.code(), status.signal()), (code, signal), "{script}");
    }
    let mut missing = Command::new("/nonexistent/program");
    guard(&mut missing, OnParentExit::Stop);
    assert_eq!(missing.spawn().expect_err("it is not there").kind(), std::io::ErrorKind::NotFound);
}

#[tokio::test]
async fn a_guard_stops_the_tree_on_term() {
    let bench = Bench::new();
    let script = format!("trap '' TERM; {CLEAN_DAEMONS}\necho $$ >pid; while :; do sleep 1000; done");
    let mut child = guarded(&bench, &script).stdout(Stdio::null()).spawn().expect("bash");
    let (pid, daemons) = (bench.pid("pid").await, daemons(&bench).await);
    signal(child.id() as i32, libc::SIGTERM);
    tokio::task::spawn_blocking(move || child.wait()).await.expect("no panic").expect("it ends");
    assert!(!is_running(pid) && !daemons.iter().any(|daemon| is_running(*daemon)));
}

#[tokio::test]
async fn the_starter_of_a_killed_guard_kills_its_tree() {
    if !is_alone("escapes::the_starter_of_a_killed_guard_kills_its_tree") {
        return;
    }
    become_subreaper().expect("a right every process has");
    let bench = Bench::new();
    let script = format!("{CLEAN_DAEMONS}\nkill -9 $PPID; sleep 1000");
    let mut child = guarded(&bench, &script).stdout(Stdio::null()).spawn().expect("bash");
    let status = tokio::task::spawn_blocking(move || child.wait()).await.expect("no panic").expect("it ends");
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    let end = || tokio::task::spawn_blocking(|| sprag_process::kill_adopted(Duration::from_secs(10)));
    end().await.expect("no panic").expect("all are gone");
    for daemon in daemons(&bench).await {
        assert!(!is_running(daemon));
    }
}

/// In a container that was entered, the leaders of this session and group have no PID here.
#[test]
fn adopted_processes_are_killed_if_the_session_leader_is_in_another_namespace() {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]);
        command
    };
    if !unshare().arg("true").output().is_ok_and(|tried| tried.status.success()) {
        eprintln!("not tried: this host allows no namespaces");
        return;
    }
    let this_program = std::env::current_exe().expect("a program");
    let test = "escapes::the_starter_of_a_killed_guard_kills_its_tree";
    let output = unshare().arg(this_program).args(["--exact", test]).output().expect("unshare");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test]
async fn a_guarded_command_is_stopped_when_its_program_is_killed() {
    let bench = Bench::new();
    let script = format!("{CLEAN_DAEMONS}\necho $$ >pid; sleep 1000");
    let mut program = tokio::process::Command::new(supervisor());
    program.arg("guard").arg(&script).current_dir(bench.path("")).stdin(Stdio::null()).kill_on_drop(true);
    let mut program = program.spawn().expect("a program");
    let (pid, daemons) = (bench.pid("pid").await, daemons(&bench).await);
    program.start_kill().expect("it is there");
    program.wait().await.expect("it ends");
    eventually("the tree is gone", || !is_running(pid) && !daemons.iter().any(|daemon| is_running(*daemon)))
        .await;
}
