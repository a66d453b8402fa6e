//! A server that is killed during live runs loses nothing, and its readers resume exactly.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use sprag_tests::{Random, Sandbox, Server, nightly, until};

const STEPS: usize = 4;

/// Returns a pipeline whose steps append their names to a file of the run.
fn pipeline(sandbox: &Sandbox, nth: usize) -> String {
    let file = sandbox.path(&format!("out-{nth}"));
    let steps: String = (0..STEPS)
        .map(|step| format!("  - id: s{step}\n    run: echo s{step} >> '{}'\n", file.display()))
        .collect();
    format!("name: killed\nsteps:\n{steps}")
}

#[test]
fn o14_killed_servers_lose_no_run_and_readers_resume_exactly() {
    let (runs, kills) = nightly((60, 3), (200, 8));
    let sandbox = Sandbox::new();
    // Ports are given by the system: each server has its own, and readers are told.
    let first = Server::start(&sandbox, &["--lease", "5s"]);
    let done = AtomicBool::new(false);
    let addr = std::sync::Mutex::new(first.addr);
    let mut random = Random::new(23);
    let keys: Vec<String> = (0..runs).map(|nth| format!("key-{nth}")).collect();
    let mut ids: Vec<Option<String>> = vec![None; runs];
    let (seen, server) = std::thread::scope(|scope| {
        let mut server = first;
        let token = server.token.clone();
        let (addr, done) = (&addr, &done);
        let reader = scope.spawn(move || follow(addr, &token, done));
        for kill in 0..=kills {
            // Those whose answer was lost are asked for again, with the same key.
            let upto = runs * (kill + 1) / (kills + 1);
            for nth in 0..upto {
                if ids[nth].is_some() {
                    continue;
                }
                let request = server
                    .request("POST", "/v1/runs")
                    .json(&json!({ "yaml": pipeline(&sandbox, nth) }))
                    .header("idempotency-key", &keys[nth]);
                let reply = request.send();
                assert!(matches!(reply.status, 200 | 201), "{}", reply.text());
                ids[nth] = reply.json()["id"].as_str().map(str::to_owned);
            }
            if kill < kills {
                let mark = random.below(20) as usize;
                until("some steps are done", || {
                    sandbox.path(&format!("out-{}", upto.saturating_sub(1 + mark))).exists()
                });
                server.into_process().kill();
                server = Server::start(&sandbox, &["--lease", "5s"]);
                *addr.lock().expect("an address") = server.addr;
            }
        }
        for run in ids.iter().flatten() {
            server.until(run, "completed");
        }
        done.store(true, Ordering::Release);
        // One more entry wakes the reader.
        let last = server.run("steps:\n  - id: last\n    run: 'true'\n");
        server.until(&last, "completed");
        (reader.join().expect("a reader"), server)
    });
    let distinct: BTreeSet<&String> = ids.iter().flatten().collect();
    assert_eq!(distinct.len(), runs, "each key has its own run");
    let mut after = 0;
    let mut journal: Vec<u64> = Vec::new();
    for _ in 0..10_000 {
        let page = server.get(&format!("/v1/journal?limit=1000&after={after}"));
        let entries = page["entries"].as_array().expect("entries");
        if entries.is_empty() {
            break;
        }
        journal.extend(entries.iter().filter_map(|entry| entry["seq"].as_u64()));
        after = page["next_after"].as_u64().expect("a number");
    }
    assert_eq!(seen, journal[..seen.len()], "the reader saw every entry once, in order");
    for (nth, run) in ids.iter().enumerate() {
        let run = run.as_deref().expect("an id");
        let entries = server.get(&format!("/v1/journal?limit=1000&run={run}"));
        let of = |event: &str| {
            let all = entries["entries"].as_array().expect("entries").iter();
            all.filter(|entry| entry["event"] == event).count()
        };
        assert_eq!(
            (of("run.succeeded"), of("step.succeeded"), of("run.created")),
            (1, STEPS, 1),
            "run {nth}"
        );
        // A step that was done is not done again; one that was killed may be begun again.
        let mut lines = sandbox.lines(&format!("out-{nth}"));
        lines.dedup();
        assert_eq!(lines, ["s0", "s1", "s2", "s3"], "run {nth}");
    }
    assert_eq!(server.get("/v1/runs?status=queued,running,failing,cancelling")["runs"], json!([]));
}

/// Follows all events through every restart; their numbers.
fn follow(addr: &std::sync::Mutex<std::net::SocketAddr>, token: &str, done: &AtomicBool) -> Vec<u64> {
    let mut seen: Vec<u64> = Vec::new();
    for _ in 0..100_000 {
        let at = *addr.lock().expect("an address");
        let after = seen.last().copied().unwrap_or(0);
        let request = sprag_tests::Request::to(at, "GET", "/v1/events").token(token);
        let request = request.header("last-event-id", &after.to_string());
        let Ok(mut stream) = request.open() else {
            std::thread::yield_now();
            continue;
        };
        while let Ok(Some(event)) = stream.event() {
            seen.push(event.id);
            if done.load(Ordering::Acquire) && event.data["event"] == "run.succeeded" {
                return seen;
            }
        }
    }
    panic!("the end was never told");
}
