//! The ways a command ends: by itself, by a failed start, by a timeout, by request.

use std::{os::unix::fs::PermissionsExt, time::Duration};

use sprag_process::{Error, NotStarted, Reason, RefusalKind, boot_ms, spawn};

use crate::common::{Bench, run, start, supervisor, wait};

#[tokio::test]
async fn exit_codes_and_signals_are_distinguished() {
    for (script, exit_code, signal) in [
        ("exit 0", Some(0), None),
        ("exit 7", Some(7), None),
        ("exit 255", Some(255), None),
        ("kill -TERM $$", None, Some(libc::SIGTERM)),
        ("kill -KILL $$", None, Some(libc::SIGKILL)),
        ("kill -PIPE $$", None, Some(libc::SIGPIPE)),
    ] {
        let ended = Bench::new().run(script).await;
        assert_eq!((ended.exit_code, ended.signal), (exit_code, signal), "{script}");
        assert_eq!(ended.reason, Reason::Exited, "{script}");
        assert_eq!(ended.success(), exit_code == Some(0), "{script}");
        assert_eq!((ended.leftovers, ended.log_error), (0, None), "{script}");
    }
}

#[tokio::test]
async fn a_command_that_cannot_start_says_what_is_missing() {
    let bench = Bench::new();
    let plain = bench.path("plain");
    std::fs::write(&plain, "text").expect("a file");
    let script = bench.path("script");
    std::fs::write(&script, "#!/nowhere/interpreter\n").expect("a file");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    let path = |path: &std::path::Path| path.to_str().expect("text").to_owned();
    for (program, dir, kind) in [
        ("no-such-program-anywhere".to_owned(), None, NotStarted::NotFound),
        ("./missing".to_owned(), None, NotStarted::NotFound),
        (path(&plain), None, NotStarted::NotExecutable),
        (path(&script), None, NotStarted::NotExecutable),
        ("true".to_owned(), Some(bench.path("no-folder")), NotStarted::NoDir),
        ("true".to_owned(), Some(plain.clone()), NotStarted::NoDir),
        ("tr\0ue".to_owned(), None, NotStarted::Other),
    ] {
        let mut order = bench.order("");
        order.argv = vec![program.clone()];
        order.dir = dir.or(order.dir);
        match run(order).await.reason {
            Reason::CouldNotStart { kind: found, message } => {
                assert_eq!(found, kind, "{program}: {message}");
                assert!(!message.is_empty());
            }
            other => panic!("{program}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn an_invalid_order_is_refused() {
    let bench = Bench::new();
    let mut order = bench.order("true");
    order.log = bench.path("no-folder/log");
    match spawn(order, supervisor()).await.err() {
        Some(Error::Refused { kind: RefusalKind::Log, message }) => assert!(message.contains("no-folder")),
        other => panic!("{other:?}"),
    }
    let mut order = bench.order("true");
    order.argv.clear();
    assert!(matches!(spawn(order, supervisor()).await, Err(Error::BadOrder { .. })));
    let missing = bench.path("no-supervisor");
    assert!(matches!(spawn(bench.order("true"), &missing).await, Err(Error::Supervisor { .. })));
}

#[tokio::test]
async fn the_timeout_stops_the_tree() {
    let bench = Bench::new();
    let mut order = bench.order("sleep 1000 & sleep 1000");
    order.timeout_ms = Some(200);
    let ended = run(order).await;
    assert_eq!(ended.reason, Reason::Timeout);
    assert_eq!(ended.signal, Some(libc::SIGTERM));
    assert!(ended.usage.wall_ms >= 200);
    bench.assert_no_process_is_left();
}

#[tokio::test]
async fn o04_cancel_kills_a_tree_that_ignores_term() {
    let bench = Bench::new();
    let script = "trap '' TERM; sh -c 'sleep 1000; true' & echo $$ >pid; while :; do sleep 1000; done";
    let mut running = start(bench.order(script)).await;
    let pid = bench.pid("pid").await;
    assert_eq!(running.started().map(|started| started.pid), Some(pid));
    running.cancel().expect("it listens");
    let ended = wait(&mut running).await;
    assert_eq!((ended.reason, ended.signal), (Reason::Cancelled, Some(libc::SIGKILL)));
    assert!(ended.usage.wall_ms >= 300, "it had its grace");
    bench.assert_no_process_is_left();
}

#[tokio::test]
async fn o04_cancel_lets_a_command_clean_up() {
    let bench = Bench::new();
    let mut order =
        bench.order("trap 'echo cleaned >done; exit 3' TERM; echo $$ >pid; while :; do sleep 0.01; done");
    order.grace_ms = 60_000;
    let mut running = start(order).await;
    bench.pid("pid").await;
    running.cancel().expect("it listens");
    let ended = wait(&mut running).await;
    assert_eq!((ended.reason, ended.exit_code), (Reason::Cancelled, Some(3)));
    assert!(bench.path("done").exists());
}

#[tokio::test]
async fn kill_does_not_wait_for_the_grace() {
    let bench = Bench::new();
    let mut order = bench.order("trap '' TERM; echo $$ >pid; while :; do sleep 1000; done");
    order.grace_ms = 3_600_000;
    let mut running = start(order).await;
    bench.pid("pid").await;
    running.cancel().expect("it listens");
    running.kill().expect("it listens");
    assert_eq!(wait(&mut running).await.reason, Reason::Cancelled);
}

#[tokio::test]
async fn o13_i14_an_unrenewed_lease_stops_the_tree() {
    let bench = Bench::new();
    let mut order = bench.order("sleep 1000");
    order.lease_until_ms = Some(boot_ms() + 150);
    let ended = run(order).await;
    assert_eq!(ended.reason, Reason::LeaseLost);
    bench.assert_no_process_is_left();
}

#[tokio::test]
async fn a_renewed_lease_lasts() {
    let bench = Bench::new();
    let mut order = bench.order("while [ ! -e go ]; do sleep 0.02; done");
    order.lease_until_ms = Some(boot_ms() + 1_500);
    let mut running = start(order).await;
    running.renew(boot_ms() + 60_000).expect("it listens");
    let beyond = tokio::time::timeout(Duration::from_millis(1_700), running.wait()).await;
    assert!(beyond.is_err(), "it goes on");
    std::fs::write(bench.path("go"), "").expect("a file");
    assert!(wait(&mut running).await.success());
}

#[tokio::test]
async fn the_environment_is_that_of_the_order() {
    let bench = Bench::new();
    let mut order = bench.order("");
    order.argv = vec!["/usr/bin/env".into()];
    order.inherits = Some(Vec::new());
    order.env.insert("GREETING".into(), "hello there".into());
    assert!(run(order).await.success());
    let text = bench.text(sprag_process::Stream::Out);
    assert!(text.contains("GREETING=hello there\n"));
    assert!(!text.contains("PATH="), "{text}");
}

#[tokio::test]
async fn stdin_is_closed_and_signals_are_as_usual() {
    let bench = Bench::new();
    let script = "cat; echo read; grep -E '^Sig(Ign|Blk)' /proc/self/status";
    assert!(bench.run(script).await.success());
    let text = bench.text(sprag_process::Stream::Out);
    assert_eq!(text, "read\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

#[tokio::test]
async fn the_resources_of_the_tree_are_reported() {
    let bench = Bench::new();
    let ended = bench.run("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done").await;
    assert!(ended.usage.user_ms + ended.usage.sys_ms > 0, "{:?}", ended.usage);
    assert!(ended.usage.max_rss_kb > 0);
}
