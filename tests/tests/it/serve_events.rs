//! Live events: exact resumption, slow readers, growing logs.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

use serde_json::Value;
use sprag_tests::{Random, Sandbox, Server, connect, until, until_some};

const HELLO: &str = "name: hello\nsteps:\n  - id: say\n    run: echo hello\n  - id: end\n    run: echo bye\n";

/// Reads events from `after` on until `enough` says so; what was read.
fn read(server: &Server, query: &str, enough: impl Fn(&[(u64, Value)]) -> bool) -> Vec<(u64, Value)> {
    let mut answer = server.request("GET", &format!("/v1/events?{query}")).open().expect("a stream");
    assert_eq!((answer.status, answer.headers["content-type"].as_str()), (200, "text/event-stream"));
    let mut seen = Vec::new();
    while !enough(&seen) {
        let event = answer.event().expect("an event").expect("no end");
        assert_eq!(event.data["event"], event.name);
        assert_eq!(event.data["seq"], event.id);
        seen.push((event.id, event.data));
    }
    answer.cut();
    seen
}

fn journal(server: &Server, query: &str) -> Vec<(u64, Value)> {
    let told = server.get(&format!("/v1/journal?limit=1000{query}"));
    let entries = told["entries"].as_array().expect("entries").iter();
    entries.map(|entry| (entry["seq"].as_u64().expect("a number"), entry.clone())).collect()
}

#[test]
fn a_reader_that_is_cut_off_at_random_sees_every_event_once() {
    const RUNS: usize = 12;
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let seed = 7;
    let ended =
        |seen: &[(u64, Value)]| seen.iter().filter(|(_, entry)| entry["event"] == "run.succeeded").count();
    let (cut, whole) = std::thread::scope(|scope| {
        let cut = scope.spawn(|| {
            let mut random = Random::new(seed);
            let mut seen: Vec<(u64, Value)> = Vec::new();
            for _ in 0..10_000 {
                if ended(&seen) == RUNS {
                    break;
                }
                let after = seen.last().map_or(0, |(seq, _)| *seq);
                let most = 1 + random.below(9) as usize;
                // By header or by query: both say where to go on.
                let request = match random.below(2) {
                    0 => server.request("GET", "/v1/events").header("last-event-id", &after.to_string()),
                    _ => server.request("GET", &format!("/v1/events?after={after}")),
                };
                let mut answer = request.open().expect("a stream");
                for _ in 0..most {
                    if ended(&seen) == RUNS {
                        break;
                    }
                    let event = answer.event().expect("an event").expect("no end");
                    seen.push((event.id, event.data));
                }
                answer.cut();
            }
            seen
        });
        let whole = scope.spawn(|| read(&server, "after=0", |seen| ended(seen) == RUNS));
        for _ in 0..RUNS {
            server.run(HELLO);
        }
        (cut.join().expect("a reader"), whole.join().expect("a reader"))
    });
    let all = journal(&server, "");
    assert_eq!(cut, all[..cut.len()], "no gap, nothing twice");
    assert_eq!(whole, all[..whole.len()]);
    assert!(ended(&cut) == RUNS);
}

#[test]
fn events_are_filtered() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let other = server.run(HELLO);
    let run = server.run(HELLO);
    server.until(&run, "completed");
    server.until(&other, "completed");
    let is_end =
        |seen: &[(u64, Value)]| seen.last().is_some_and(|(_, entry)| entry["event"] == "run.succeeded");
    let of_run = read(&server, &format!("after=0&run={run}"), is_end);
    assert_eq!(of_run, journal(&server, &format!("&run={run}")));
    let of_runs = read(&server, &format!("after=0&run={run}&entity=run"), is_end);
    assert!(of_runs.iter().all(|(_, entry)| entry["entity"] == "run") && of_runs.len() == 3, "{of_runs:?}");
    let ends = read(&server, "after=0&event=run.succeeded,run.started", |seen| seen.len() == 4);
    assert_eq!(ends.len(), 4);
    for odd in ["run=x", "after=x", "odd=1", "run=000000000000&board=b"] {
        server.request("GET", &format!("/v1/events?{odd}")).send().problem(400, "malformed");
    }
    server.request("GET", "/v1/events?board=none").send().problem(404, "not_found");
    server.request("GET", "/v1/events").header("last-event-id", "x").send().problem(400, "malformed");
}

#[test]
fn a_reader_that_does_not_read_is_disconnected_and_can_reconnect() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--idle-timeout", "1s"]);
    // Enough for every buffer between here and there.
    let items: Vec<String> = (0..400).map(|n| n.to_string()).collect();
    let many = format!("steps:\n  - id: many\n    foreach: [{}]\n    run: 'true'\n", items.join(", "));
    let run = server.run(&many);
    let mut slow = connect(server.addr).expect("a connection");
    rustix::net::sockopt::set_socket_recv_buffer_size(&slow, 4096).expect("a small buffer");
    for _ in 0..60 {
        let request = server.request("GET", "/v1/events?after=0");
        slow.write_all(&request.bytes()).ok();
    }
    server.until(&run, "completed");
    let open = || {
        let text = server.request("GET", "/metrics").send().expect(200).text();
        let line = text
            .lines()
            .find(|line| line.starts_with("sprag_streams_open"))
            .expect("it is counted")
            .to_owned();
        line.ends_with(" 0")
    };
    // The stream is larger than what is buffered, so its reader is noticed.
    for _ in 0..40 {
        if open() {
            break;
        }
        let more = server.run(&many);
        server.until(&more, "completed");
    }
    until("the reader that does not read is cut off", open);
    // A client that reads continues from its position.
    let all = journal(&server, "");
    let seen = read(&server, "after=5", |seen| seen.len() == 500);
    assert_eq!(seen[..], all[5..505]);
}

#[test]
fn streams_end_with_the_server_and_show_that_they_live() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let mut answer = server.request("GET", "/v1/events").open().expect("a stream");
    let run = server.run(HELLO);
    let event = answer.event().expect("an event").expect("no end");
    assert_eq!((event.name.as_str(), event.data["run"].as_str()), ("run.created", Some(run.as_str())));
    server.until(&run, "completed");
    let process = server.into_process();
    process.signal(sprag_tests::Signal::TERM);
    let end = until_some("the stream ends", || match answer.event() {
        Ok(Some(_)) => None,
        end => Some(end),
    });
    assert!(matches!(end, Ok(None)), "in good order: {end:?}");
    process.finish().expect(0);
}

#[test]
fn a_log_is_followed_to_its_end_and_from_an_offset() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let yaml = format!(
        "steps:\n  - id: count\n    run: |\n      for i in $(seq 1 50); do echo line $i; done\n      while ! test -e '{}'; do sleep 0.05; done\n      echo last\n",
        sandbox.path("go").display()
    );
    let run = server.run(&yaml);
    until("it prints", || {
        server.request("GET", &format!("/v1/runs/{run}/steps/count/log")).send().text().contains("line 50")
    });
    let follow = |from: Option<u64>| {
        let request = server.request("GET", &format!("/v1/runs/{run}/steps/count/log?follow=true"));
        let request =
            from.iter().fold(request, |request, from| request.header("last-event-id", &from.to_string()));
        request.open().expect("a stream")
    };
    let mut first = follow(None);
    let mut lines = Vec::new();
    let mut at = 0;
    for _ in 0..20 {
        let event = first.event().expect("an event").expect("no end");
        at = event.id;
        lines.push(event.data["text"].as_str().expect("a text").to_owned());
    }
    first.cut();
    sandbox.write("go", "");
    let mut second = follow(Some(at));
    while let Some(event) = second.event().expect("an event") {
        lines.push(event.data["text"].as_str().expect("a text").to_owned());
    }
    let expected: Vec<String> = (1..=50).map(|i| format!("line {i}")).chain(["last".to_owned()]).collect();
    assert_eq!(lines, expected);
    server
        .request("GET", &format!("/v1/runs/{run}/steps/count/log?attempt=9"))
        .send()
        .problem(404, "not_found");
}

#[test]
fn many_readers_fit_into_little_memory() {
    const READERS: usize = 1_000;
    let sandbox = Sandbox::new();
    let mut server = Server::start(&sandbox, &[]);
    let readers: Vec<_> =
        (0..READERS).map(|_| server.request("GET", "/v1/events").open().expect("a stream")).collect();
    let run = server.run(HELLO);
    server.until(&run, "completed");
    let mut last = BTreeSet::new();
    let mut open = Vec::new();
    for mut reader in readers {
        reader.patience(Duration::from_secs(60));
        let event = loop {
            let event = reader.event().expect("an event").expect("no end");
            if event.name == "run.succeeded" {
                break event;
            }
        };
        last.insert(event.id);
        open.push(reader);
    }
    assert_eq!(last.len(), 1);
    let pid = server.process().pid();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a number");
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().expect("a number");
    eprintln!("{READERS} readers: {} MB", kib / 1024);
    assert!(kib < 150 * 1024, "{kib} KiB for {READERS} readers");
}
