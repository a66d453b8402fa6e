//! The log of real commands: streams, pieces, secrets, floods, full disks.

use sprag_process::{Capture, Error, Stream, spawn};

use crate::common::{Bench, eventually, run, start, supervisor, wait};

#[tokio::test]
async fn both_streams_are_logged_with_their_times() {
    let bench = Bench::new();
    assert!(bench.run("echo one; echo two >&2; printf three").await.success());
    assert_eq!(bench.text(Stream::Out), "one\nthree\n");
    assert_eq!(bench.text(Stream::Err), "two\n");
    assert!(bench.log().iter().all(|entry| entry.at.starts_with("20") && entry.at.ends_with('Z')));
}

#[tokio::test]
async fn a_line_without_an_end_is_logged_while_the_command_waits() {
    let bench = Bench::new();
    let mut running =
        start(bench.order("printf 50%%; while [ ! -e go ]; do sleep 0.02; done; echo ' 100%'")).await;
    eventually("the piece is logged", || {
        bench.log().first().is_some_and(|entry| entry.partial && entry.text == "50%")
    })
    .await;
    std::fs::write(bench.path("go"), "").expect("a file");
    wait(&mut running).await;
    assert_eq!(bench.text(Stream::Out), "50% 100%\n");
}

#[tokio::test]
async fn secrets_are_masked_also_across_writes() {
    let bench = Bench::new();
    let mut order = bench
        .order("echo token=hunter2secret; printf hunter2; sleep 0.3; echo secret; echo x hunter2secret >&2");
    order.secrets = vec!["hunter2secret".into()];
    order.capture_stdout = Some(Capture { path: bench.path("captured"), max_bytes: 1 << 20 });
    assert!(run(order).await.success());
    assert_eq!(bench.text(Stream::Out), "token=***\n***\n");
    assert_eq!(bench.text(Stream::Err), "x ***\n");
    let file = std::fs::read_to_string(bench.path("log")).expect("a log");
    assert!(!file.contains("hunter2"));
    let captured = std::fs::read_to_string(bench.path("captured")).expect("a file");
    assert_eq!(captured, "token=hunter2secret\nhunter2secret\n", "an output is kept as it is");
}

#[tokio::test]
async fn captured_output_is_cut_at_its_limit() {
    let bench = Bench::new();
    let mut order = bench.order("printf 0123456789; echo noise >&2");
    order.capture_stdout = Some(Capture { path: bench.path("captured"), max_bytes: 4 });
    let ended = run(order).await;
    assert_eq!((ended.capture_dropped_bytes, ended.capture_error), (6, None));
    assert_eq!(std::fs::read_to_string(bench.path("captured")).expect("a file"), "0123");
}

#[tokio::test]
async fn a_flood_is_cut_at_the_limit_and_costs_no_memory() {
    const LIMIT: u64 = 4 << 20;
    let bench = Bench::new();
    let script = "yes 'some text that fills a line of the log and is not very interesting' | head -c 200000000; \
                  head -c 1000000 /dev/zero; touch flooded; while [ ! -e go ]; do sleep 0.02; done";
    let mut order = bench.order(script);
    order.log_limit_bytes = LIMIT;
    order.secrets = vec!["a secret that does not occur".into()];
    let mut running = start(order).await;
    eventually("all is written", || bench.path("flooded").exists()).await;
    let pid = running.supervisor_pid().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).expect("a peak");
    let peak_kb: u64 = peak.split_whitespace().nth(1).expect("a number").parse().expect("a number");
    assert!(peak_kb < 5 << 10, "{peak}");
    std::fs::write(bench.path("go"), "").expect("a file");
    let ended = wait(&mut running).await;
    assert!(ended.success());
    let size = std::fs::metadata(bench.path("log")).expect("a log").len();
    assert!(size <= LIMIT + 1024, "{size}");
    assert!(ended.log_dropped_bytes > 190_000_000);
    let last = bench.log().pop().expect("a note");
    let expected =
        format!("sprag: log limit of 4 MiB reached, {} more bytes were dropped", ended.log_dropped_bytes);
    assert_eq!((last.stream, last.text), (Stream::Note, expected));
}

#[tokio::test]
async fn a_device_is_refused_as_a_log() {
    let bench = Bench::new();
    let mut order = bench.order("true");
    order.log = "/dev/full".into();
    match spawn(order, supervisor()).await.err() {
        Some(Error::Refused { message, .. }) => assert!(message.contains("not a regular file"), "{message}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn invalid_bytes_and_endless_lines_are_logged_in_bounded_pieces() {
    let bench = Bench::new();
    assert!(bench.run("head -c 100000 /dev/zero | tr '\\0' x; echo; printf '\\377\\376\\n'").await.success());
    let text = bench.text(Stream::Out);
    assert_eq!(text, format!("{}\n\u{FFFD}\u{FFFD}\n", "x".repeat(100_000)));
    assert!(bench.log().iter().all(|entry| entry.text.len() <= 16 << 10));
}

#[tokio::test]
async fn all_that_was_written_before_the_end_is_logged() {
    let bench = Bench::new();
    assert!(bench.run("seq 1 20000").await.success());
    let expected: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(bench.text(Stream::Out), expected);
}
