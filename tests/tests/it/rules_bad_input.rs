//! Bad input to rules: a clear reason in `rule ls` and `explain`, nothing started, nothing lost.

use std::io::{Read, Write};
use std::net::SocketAddr;

use serde_json::json;
use sprag_tests::{Request, Sandbox, Server, connect, peak_mib, until};

use crate::rules_missed::Scene;
use crate::serve_hooks::hmac;

const RULES: &str = "name: p
on:
  - id: year
    schedule: { cron: '0 0 1 1 *' }
    missed: { run: latest, within: 400d }
    overlap: allow
  - id: asked
    webhook: { kind: generic, secrets: [HOOK], max_body: 1000 }
    overlap: allow
  - id: large
    webhook: { kind: generic, secrets: [HOOK], max_body: 5242880 }
    overlap: allow
steps:
  - id: a
    run: 'true'
";

fn serve(sandbox: &Sandbox, secret: Option<&str>) -> Server {
    let mut command = sandbox.command(["serve", "--listen", "127.0.0.1:0", "--no-worker"]);
    command.envs(secret.map(|secret| ("HOOK", secret)));
    Server::from_process(sandbox, sandbox.start_command(command))
}

fn signed(addr: SocketAddr, rule: &str, body: &str) -> Request {
    let request = Request::to(addr, "POST", &format!("/in/p/{rule}"));
    request.header("x-signature-256", &hmac("secret", body)).body("application/json", body.as_bytes())
}

/// Returns what `rule ls` and `explain` tell people about a rule.
fn told(sandbox: &Sandbox, rule: &str) -> (String, String) {
    let listed = sandbox.sprag(["rule", "ls"]).expect(0).stdout;
    let line = listed.lines().find(|line| line.starts_with(rule)).unwrap_or_default().to_owned();
    (line, sandbox.sprag(["explain", rule]).expect(0).stdout)
}

#[test]
fn schedules_that_never_fire_and_zones_that_do_not_exist_are_refused_with_their_place() {
    let sandbox = Sandbox::new();
    sandbox.yaml("p", RULES);
    sandbox.sprag(["rule", "apply", "p.yaml"]).expect(0);
    let before = sandbox.json(["rule", "ls", "--json"]);
    for (schedule, why) in [
        ("{ cron: '0 0 30 2 *' }", "the schedule never fires"),
        ("{ cron: '0 0 31 4,6 *' }", "the schedule never fires"),
        ("{ cron: '61 * * * *' }", "61"),
        ("{ cron: '* * * *' }", "4 fields instead of five"),
        ("{ cron: '0 0 * * *', zone: Mars/Olympus }", "there is no time zone `Mars/Olympus`"),
        ("{ cron: '0 0 * * *', zone: ../../etc/passwd }", "there is no time zone"),
        ("{ at: '2030-02-30T00:00:00Z' }", "is not a time"),
        ("{ every: 0s }", "shorter than a second"),
    ] {
        sandbox.yaml("p", &RULES.replace("{ cron: '0 0 1 1 *' }", schedule));
        for command in [["validate", "p.yaml"].as_slice(), &["rule", "apply", "p.yaml"]] {
            let refused = sandbox.sprag(command).expect(2);
            let all = refused.stdout.clone() + &refused.stderr;
            assert!(all.contains(why) && all.contains("p.yaml:4"), "{schedule}: {all}");
        }
    }
    assert_eq!(sandbox.json(["rule", "ls", "--json"]), before, "the applied rules stay as they are");
    // The file no longer loads; the rule works as it was applied.
    let (_, explained) = told(&sandbox, "p/year");
    assert!(explained.contains("no longer loads") && explained.contains("its next tick"), "{explained}");
}

#[test]
fn r17_a_secret_that_is_missing_is_told_and_the_endpoint_stays_closed() {
    let sandbox = Sandbox::new();
    sandbox.yaml("p", RULES);
    sandbox.sprag(["rule", "apply", "p.yaml"]).expect(0);
    // A rule without a secret is refused where it is written.
    sandbox.yaml("open", &RULES.replace("secrets: [HOOK]", "secrets: []"));
    let refused = sandbox.sprag(["rule", "apply", "open.yaml"]).expect(2);
    assert!((refused.stdout.clone() + &refused.stderr).contains("secrets"), "{refused:?}");
    let server = serve(&sandbox, None);
    for _ in 0..2 {
        signed(server.addr, "asked", "{}").send().problem(503, "unavailable");
    }
    let (listed, explained) = told(&sandbox, "p/asked");
    for all in [&listed, &explained] {
        assert!(all.contains("this server has no variable HOOK"), "{all}");
    }
    assert!(listed.contains("refused ×2"), "{listed}");
    assert_eq!(sandbox.json(["delivery", "ls", "--json"]), json!([]));
    drop(server);
    // An empty secret is none.
    let server = serve(&sandbox, Some(""));
    signed(server.addr, "asked", "{}").send().problem(503, "unavailable");
    drop(server);
    // With the secret the sender's next try is taken.
    let server = serve(&sandbox, Some("secret"));
    signed(server.addr, "asked", "{}").send().expect(202);
    until("its run is started", || sandbox.json(["delivery", "ls", "--json"])[0]["run"].is_string());
    let (listed, explained) = told(&sandbox, "p/asked");
    assert!(listed.contains("requested") && !explained.contains("HOOK"), "{listed}\n{explained}");
}

/// Sends the head of a request and pieces of its body until the server ends the connection. Returns the status.
fn pour(addr: SocketAddr, head: &str, piece: &[u8], pieces: usize) -> String {
    let mut stream = connect(addr).expect("a connection");
    stream.write_all(head.as_bytes()).expect("sent");
    for _ in 0..pieces {
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let mut answer = [0; 12];
    // A server that closes before it has read everything may take its answer back.
    match stream.read_exact(&mut answer) {
        Ok(()) => String::from_utf8_lossy(&answer[9..]).into_owned(),
        Err(_) => "closed".to_owned(),
    }
}

#[test]
fn a_body_of_100_mb_is_refused_without_being_kept() {
    let sandbox = Sandbox::new();
    sandbox.yaml("p", RULES);
    sandbox.sprag(["rule", "apply", "p.yaml"]).expect(0);
    let mut server = serve(&sandbox, Some("secret"));
    let addr = server.addr;
    let before = peak_mib(server.process().pid());
    let head = |rule: &str, length: &str| {
        format!(
            "POST /in/p/{rule} HTTP/1.1\r\nhost: {addr}\r\ncontent-type: application/json\r\n{length}\r\n\r\n"
        )
    };
    let megabyte = vec![b' '; 1 << 20];
    let chunk = [format!("{:x}\r\n", megabyte.len()).as_bytes(), &megabyte, b"\r\n"].concat();
    for rule in ["asked", "large"] {
        // Announced, and then announced but never sent.
        let announced = head(rule, "content-length: 104857600");
        assert!(["413", "closed"].contains(&pour(addr, &announced, &megabyte, 100).as_str()));
        assert_eq!(pour(addr, &announced, b"", 0), "413");
        // Without a length.
        let chunked = head(rule, "transfer-encoding: chunked");
        assert!(["413", "closed"].contains(&pour(addr, &chunked, &chunk, 100).as_str()));
        let small = [b"7d1\r\n".as_slice(), &[b' '; 0x7d1], b"\r\n0\r\n\r\n"].concat();
        if rule == "asked" {
            assert_eq!(pour(addr, &chunked, &small, 1), "413", "one byte in a thousand too many");
        }
    }
    let more = peak_mib(server.process().pid()) - before;
    assert!(more < 40, "{more} MiB more for bodies that were refused");
    assert_eq!(sandbox.json(["delivery", "ls", "--json"]), json!([]), "nothing is stored");
    signed(addr, "asked", "{}").send().expect(202);
}

fn broken_definition(scene: &Scene) {
    let sandbox = &scene.sandbox;
    sandbox.yaml("p", RULES);
    sandbox.sprag(["rule", "apply", "p.yaml"]).expect(0);
    let server = serve(sandbox, Some("secret"));
    signed(server.addr, "asked", r#"{"n": 0}"#).send().expect(202);
    until("the first event has its run", || scene.list(&["delivery", "ls"])[0]["run"].is_string());
    drop(server);
    // Another version of the program stored what this one cannot read, and a tick is due.
    scene.sql(
        "UPDATE rules SET definition = replace(definition, 'steps:', 'stepz:'), hash = 'of another version'",
    );
    scene.sql(&format!(
        "UPDATE rules SET seen = seen - {0}, next_ms = next_ms - {0}",
        366_i64 * 24 * 3_600_000
    ));
    sandbox.sprag(["rule", "tick", "--detach"]).expect(0);
    let (listed, explained) = told(sandbox, "p/year");
    for all in [&listed, &explained] {
        assert!(all.contains("broken") && all.contains("its stored pipeline cannot be used"), "{all}");
    }
    // Its webhook asks the sender to try again later.
    let server = serve(sandbox, Some("secret"));
    let refused = signed(server.addr, "asked", r#"{"n": 1}"#).send().problem(503, "unavailable");
    assert!(refused["message"].as_str().is_some_and(|why| why.contains("stored pipeline")), "{refused}");
    let (listed, _) = told(sandbox, "p/asked");
    assert!(listed.contains("its stored pipeline cannot be used"), "{listed}");
    assert_eq!(scene.list(&["ls"]).len(), 1, "nothing is started");
    sandbox.sprag(["rule", "resume", "p/year"]).expect(1);
    // Applied again, both work: the sender's next try is taken, and the event from before can be decided again.
    let applied = scene.ask(&["rule", "apply", "p.yaml"]);
    let outcomes: Vec<&str> = applied["rules"]
        .as_array()
        .expect("rules")
        .iter()
        .filter_map(|one| one["outcome"].as_str())
        .collect();
    assert_eq!(outcomes.len(), 3, "{applied}");
    signed(server.addr, "asked", r#"{"n": 1}"#).send().expect(202);
    until("the second event has its run", || scene.list(&["ls"]).len() == 2);
    let (listed, _) = told(sandbox, "p/year");
    assert!(listed.contains("active") && !listed.contains("cannot be used"), "{listed}");
    assert_eq!(scene.ask(&["rule", "fire", "p/year"])["status"], "requested");
}

#[test]
fn r23_a_rule_whose_pipeline_no_longer_loads_is_broken_until_it_is_applied_again() {
    broken_definition(&Scene::on_sqlite());
}

#[test]
fn r23_a_rule_whose_pipeline_no_longer_loads_on_postgres() {
    broken_definition(&Scene::on_postgres());
}
