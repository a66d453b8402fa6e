//! Commands whose stdin and stdout are pipes to the worker.

use sprag_process::{Duplex, Reason, Stream, spawn_duplex};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::common::{Bench, SOON, supervisor};

#[tokio::test]
async fn a_conversation_is_not_logged_and_its_end_is_seen() {
    let bench = Bench::new();
    let script = "echo diagnosis >&2; while read line; do echo \"got $line\"; done; exit 3";
    let (mut running, duplex) = spawn_duplex(bench.order(script), supervisor()).await.expect("it starts");
    let Duplex { mut stdin, stdout } = duplex;
    let mut lines = BufReader::new(stdout).lines();
    for word in ["one", "two"] {
        stdin.write_all(format!("{word}\n").as_bytes()).await.expect("it reads");
        let line = tokio::time::timeout(SOON, lines.next_line()).await.expect("an answer").expect("a pipe");
        assert_eq!(line.as_deref(), Some(format!("got {word}").as_str()));
    }
    // The end of its input makes it exit: neither the supervisor nor this process holds another end.
    drop(stdin);
    let ended = tokio::time::timeout(SOON, running.wait()).await.expect("an end").expect("a report");
    assert_eq!((ended.reason, ended.exit_code), (Reason::Exited, Some(3)));
    assert_eq!(lines.next_line().await.expect("a pipe"), None, "its output has ended");
    let log = bench.log();
    assert!(log.iter().all(|entry| entry.stream != Stream::Out), "{log:?}");
    assert!(log.iter().any(|entry| entry.text == "diagnosis"), "{log:?}");
}

#[tokio::test]
async fn a_worker_that_drops_it_ends_the_whole_tree() {
    let bench = Bench::new();
    let script = "setsid sh -c 'echo $$ > tool; exec sleep 600' & cat > /dev/null; wait";
    let (running, duplex) = spawn_duplex(bench.order(script), supervisor()).await.expect("it starts");
    let tool = bench.pid("tool").await;
    let seen = running.supervisor_pid().and_then(sprag_process::Running::activity).expect("a tree");
    assert!(seen.processes.iter().any(|(pid, _)| *pid == tool), "{seen:?}");
    drop((running, duplex));
    crate::common::eventually("the tool is gone", || !crate::common::is_running(tool)).await;
}
