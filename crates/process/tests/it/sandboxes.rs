//! Sandboxed commands: their trees, locks and leases are those of any command, and their start is not much slower.

use sprag_process::{
    Limits, Mount, Network, Order, Reason, Sandbox, Stream, boot_ms, is_held, machine_secrets,
    missing_limits, sandbox_support,
};

use crate::common::{Bench, eventually, run, signal, start, wait};

/// The starts that are timed, of each kind.
const STARTS: usize = 20;

fn works() -> bool {
    match sandbox_support() {
        Ok(()) => true,
        Err(why) => {
            println!("SKIPPED: no sandbox can be made here: {why}");
            false
        }
    }
}

/// Returns an order in a sandbox that may write the bench's folder.
fn enclosed(bench: &Bench, script: &str) -> Order {
    let mut order = bench.order(script);
    let mounts = machine_secrets().iter().cloned().chain([Mount::Writable(bench.path(""))]).collect();
    order.sandbox =
        Some(Sandbox { isolated: true, mounts, network: Network::Loopback, ..Sandbox::default() });
    order.owner_lock = Some(bench.path("lock"));
    order
}

#[tokio::test]
async fn s19_the_whole_namespace_ends_with_its_command_its_lease_and_its_supervisor() {
    if !works() {
        return;
    }
    // Daemons without environment, session, parent or files of the step.
    let daemons = "for i in 1 2 3; do (setsid env -i sh -c 'exec 0<&- 1<&- 2<&-; for f in 3 4 5 6; do eval \"exec $f<&-\"; done; \
                   touch up$0; exec sleep 3600' $i &) ; done; while ! test -e up1 -a -e up2 -a -e up3; do sleep 0.01; done";
    for (ending, tail) in
        [("exit", "exit 7"), ("lease", "sleep 3600"), ("kill -9", "touch ready; sleep 3600")]
    {
        let bench = Bench::new();
        let mut order = enclosed(&bench, &format!("{daemons}; {tail}"));
        if ending == "lease" {
            order.lease_until_ms = Some(sprag_process::boot_ms() + 1_500);
        }
        let mut running = start(order).await;
        if ending == "kill -9" {
            eventually("it is ready", || bench.path("ready").exists()).await;
            assert!(is_held(&bench.path("lock")).unwrap());
            signal(running.supervisor_pid().expect("it runs") as i32, libc::SIGKILL);
        }
        let ended = wait(&mut running).await;
        match ending {
            "exit" => assert_eq!((&ended.reason, ended.exit_code), (&Reason::Exited, Some(7)), "{ended:?}"),
            "lease" => assert_eq!(ended.reason, Reason::LeaseLost, "{ended:?}"),
            _ => assert_eq!(ended.reason, Reason::SupervisorLost, "{ended:?}"),
        }
        eventually("no process is left", || sleeping_in(&bench.path("")) == 0).await;
        assert!(!is_held(&bench.path("lock")).unwrap(), "{ending}: the lock is free");
    }
}

/// Returns the processes whose working folder is this one.
fn sleeping_in(folder: &std::path::Path) -> usize {
    let folder = std::fs::canonicalize(folder).unwrap();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter(|entry| std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == folder))
        .count()
}

#[tokio::test]
async fn s19_a_sandboxed_command_holds_no_descriptor_of_its_supervisor() {
    if !works() {
        return;
    }
    let bench = Bench::new();
    let ended = run(enclosed(&bench, "ls -l /proc/self/fd > fds; exit 0")).await;
    assert!(ended.success(), "{ended:?} {:?}", bench.log());
    let open = std::fs::read_to_string(bench.path("fds")).unwrap();
    assert!(!open.contains("/lock") && !open.contains("memfd"), "{open}");
    assert_eq!(ended.leftovers, 0, "bubblewrap is not a process that the command left behind");
}

#[tokio::test]
async fn s19_after_a_memory_kill_no_process_counts_as_left_behind() {
    if !missing_limits().is_empty() {
        println!("SKIPPED: limits cannot be enforced here: {}", missing_limits().join("; "));
        return;
    }
    // The kernel kills `tail`, and the shell ends at once, with a process in the background.
    let hog = "sleep 3600 & head -c 400m /dev/zero | tail -c 399m > /dev/null; exit 1";
    let limits = Limits { memory_bytes: Some(48 << 20), ..Limits::default() };
    for isolated in [false, true] {
        if isolated && !works() {
            return;
        }
        let bench = Bench::new();
        let mut order = enclosed(&bench, hog);
        order.sandbox = order.sandbox.map(|sandbox| Sandbox { isolated, limits, ..sandbox });
        let ended = run(order).await;
        assert_eq!((&ended.reason, ended.leftovers), (&Reason::MemoryLimit, 0), "{ended:?}");
        let notes = bench.text(Stream::Note);
        assert!(notes.contains("memory limit of 48 MiB") && !notes.contains("left behind"), "{notes}");
    }
}

#[tokio::test]
async fn s19_the_start_of_a_sandbox_takes_milliseconds() {
    if !works() {
        return;
    }
    let bench = Bench::new();
    // By turns, so that the load of the machine is the same for both.
    let mut took_ms = [0, 0];
    for _ in 0..STARTS {
        for (no, order) in [bench.order("true"), enclosed(&bench, "true")].into_iter().enumerate() {
            let began_ms = boot_ms();
            assert!(run(order).await.success());
            took_ms[no] += boot_ms() - began_ms;
        }
    }
    let [plain, sandboxed] = took_ms.map(|all| all as f64 / STARTS as f64);
    println!(
        "a command that does nothing: {plain:.1} ms, in a sandbox {sandboxed:.1} ms: {:.1} ms more, ratio {:.2}",
        sandboxed - plain,
        sandboxed / plain
    );
}
