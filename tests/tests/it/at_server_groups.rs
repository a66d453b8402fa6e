//! `--server` of the commands about boards, tasks, rules, queues, workers, accounts, threads and acts: they print the same
//! as from the data directory.

use serde_json::Value;
use sprag_tests::{Sandbox, Server, until};

const RULED: &str = "on: [{ id: r, schedule: { cron: '0 0 1 1 *' } }]\nsteps:\n  - { id: a, run: echo a }\n";

/// Asserts that a command prints the same with and without a server, for people and for programs.
#[track_caller]
fn assert_same(sandbox: &Sandbox, url: &str, line: &str) {
    for json in [&[][..], &["--json"]] {
        let words: Vec<&str> = line.split(' ').chain(json.iter().copied()).collect();
        let here = sandbox.sprag(&words).expect(0).stdout;
        let there = sandbox.sprag([&words[..], &["--server", url]].concat()).expect(0).stdout;
        assert_eq!(there, here, "{line} {json:?}");
        assert!(!here.is_empty(), "{line}");
    }
}

#[test]
fn lists_of_a_server_are_those_of_its_data_directory() {
    let sandbox = Sandbox::new();
    sandbox.yaml("ruled", RULED);
    sandbox.sprag(["rule", "apply", "ruled.yaml"]).expect(0);
    sandbox.sprag(["board", "new", "release", "--goal", "Ship it", "--plan", "First\nthen"]).expect(0);
    sandbox
        .sprag(["task", "add", "release", "Write the notes", "--key", "notes", "--hint", "short"])
        .expect(0);
    sandbox.sprag(["task", "add", "release", "Publish", "--needs", "notes"]).expect(0);
    sandbox.sprag(["board", "note", "release", "Mind the gap", "--tag", "care"]).expect(0);
    sandbox.sprag(["account", "hold", "work", "--for", "1h", "--reason", "too dear"]).expect(0);
    let server = Server::start(&sandbox, &[]);
    let url = format!("http://{}", server.addr);
    let decision = sandbox.json(["rule", "fire", "r", "--json", "--server", &url]);
    let run = decision["run"].as_str().expect("a run").to_owned();
    sandbox.sprag(["wait", &run, "--timeout", "60s", "--server", &url]).expect(0);
    let event = format!("delivery show {}", decision["event"].as_str().expect("an id"));
    for line in [
        "audit",
        "audit --act run.created --limit 1",
        &format!("audit --run {run}"),
        "board ls",
        "board ls --all",
        "board show release",
        "board plan release",
        "board notes release",
        "board notes release --tag care",
        "board report release",
        "task ls release",
        "task ls release --status waiting",
        "task show release notes",
        "rule ls",
        "rule ls --all",
        "rule show r",
        "rule show ruled/r --next 2",
        "rule explain r",
        "rule test r",
        "delivery ls",
        "delivery ls ruled/r --limit 1",
        &event,
        "account ls",
        "thread ls",
    ] {
        assert_same(&sandbox, &url, line);
    }
    // Ages and heartbeats go on between two looks.
    let both = |line: &str, changing: &str| {
        let words: Vec<&str> = line.split(' ').chain(["--json"]).collect();
        let looks = [sandbox.json(&words), sandbox.json([&words[..], &["--server", &url]].concat())];
        looks.map(|mut told| {
            let entries = told.as_array_mut().expect("a list");
            assert!(!entries.is_empty(), "{line}");
            entries.iter_mut().for_each(|entry| entry[changing] = Value::Null);
            told
        })
    };
    let queue = sandbox.json(["board", "show", "release", "--json"])["queue"].clone();
    let of_queue = format!("task ls --queue {}", queue.as_str().expect("a name"));
    for (line, changing) in [
        ("queue ls", "oldest_ms"),
        ("worker ls", "heartbeat_until"),
        ("task ls", "none"),
        (&of_queue, "none"),
    ] {
        let [here, there] = both(line, changing);
        assert_eq!(there, here, "{line}");
    }
    let workers = sandbox.sprag(["worker", "ls", "--server", &url]).expect(0).stdout;
    assert!(workers.starts_with("WORKER") && workers.contains("0/"), "{workers}");
    // What is not there is told in the same way.
    for line in ["board show relaese", "rule show nosuch", "task show release nosuch", "thread show nosuch/a"]
    {
        let words: Vec<&str> = line.split(' ').collect();
        let here = sandbox.sprag(&words).expect(2).stderr;
        let there = sandbox.sprag([&words[..], &["--server", &url]].concat()).expect(2).stderr;
        assert_eq!(there.lines().next(), here.lines().next(), "{line}");
    }
}

#[test]
fn boards_tasks_rules_and_queues_are_managed_at_a_server() {
    let sandbox = Sandbox::new();
    sandbox.yaml("ruled", RULED);
    sandbox.sprag(["rule", "apply", "ruled.yaml"]).expect(0);
    let server = Server::start(&sandbox, &["--no-worker"]);
    let url = format!("http://{}", server.addr);
    let sprag = |line: &str| {
        let words: Vec<&str> = line.split(' ').chain(["--server", &url]).collect();
        sandbox.sprag(&words)
    };
    let made = sprag("board new release --goal Ship").expect(0);
    assert!(made.stderr.contains("sprag task add release 'what is to be done' --server"), "{made:?}");
    assert_eq!(sprag("task add release Write --key notes").expect(0).stdout, "1\n");
    let again = sprag("task add release Write --key notes").expect(0);
    assert!(again.stderr.contains("task notes already exists"), "{again:?}");
    sprag("board note release careful --as ada").expect(0);
    sprag("board plan release --goal Better").expect(0);
    let claimed = sprag("task claim release --as ada").expect(0);
    assert!(claimed.stderr.contains("notes of run ") && claimed.stderr.contains("--server"), "{claimed:?}");
    let token = claimed.stdout.trim().to_owned();
    assert!(sprag("task claim release --as bob").expect(4).stderr.contains("all tasks are claimed"));
    assert_eq!(sandbox.json(["task", "ls", "--json"])[0]["status"], "claimed");
    assert_eq!(sprag(&format!("task start {token}")).expect(0).stdout.trim(), token);
    assert_eq!(sprag(&format!("task heartbeat {token}")).expect(0).stderr, "held\n");
    assert_eq!(sprag(&format!("task done {token} --summary written")).expect(0).stderr, "reported\n");
    sprag(&format!("task done {token}")).expect(1);
    let report = sandbox.sprag(["board", "report", "release"]).expect(0).stdout;
    for words in ["goal: Better", "notes: done by ada", "written", "careful"] {
        assert!(report.contains(words), "{words}: {report}");
    }
    sprag("board close release").expect(0);
    assert_eq!(sandbox.sprag(["board", "ls"]).expect(0).stdout, "no boards are open\n");
    // Queues, accounts and rules.
    let held = sprag("queue hold later").expect(0);
    assert!(held.stderr.contains("queue later is new") && held.stdout.contains("held"), "{held:?}");
    sprag("queue limit later 3").expect(0);
    sprag("queue release later").expect(0);
    let later = sandbox.json(["queue", "ls", "--json"]);
    let later = later.as_array().expect("queues").iter().find(|queue| queue["name"] == "later").cloned();
    let later = later.expect("the queue");
    assert_eq!((&later["held"], &later["limit"]), (&false.into(), &3.into()));
    sprag("account hold work --for 1h").expect(0);
    sprag("account release work").expect(0);
    assert_eq!(sprag("rule pause r --reason holidays").expect(0).stdout, "ruled/r is paused\n");
    assert!(sprag("rule explain r").expect(0).stdout.contains("holidays"));
    assert_eq!(sprag("rule resume ruled/r").expect(0).stdout, "ruled/r is active\n");
    let run = sprag("rule fire r").expect(0).stdout;
    assert_eq!(run.trim(), sandbox.newest().expect("a run"));
    assert_eq!(sprag("rule rm r").expect(0).stdout, "ruled/r is retired\n");
    // A claim waits for a task that comes later.
    sprag("board new second").expect(0);
    let claim = sandbox.start(["task", "claim", "second", "--wait", "60s", "--server", &url]);
    sprag("task add second Later").expect(0);
    until("it is claimed", || claim.stdout().contains('\n'));
    claim.finish().expect(0);
    for command in ["rule apply ruled.yaml", "rule tick", "delivery send ruled/r ruled.yaml"] {
        let told = sprag(command).expect(2).stderr;
        assert!(told.contains("has no --server:") && told.contains("next:"), "{command}: {told}");
    }
}
