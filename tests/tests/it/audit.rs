//! Every request has an author, and `sprag audit` reads back who did what.

use std::ffi::OsStr;

use serde_json::{Value, json};
use sprag_tests::{Project, Sandbox, Server};

const HELLO: &str = "name: hello\nsteps:\n  - { id: say, run: echo hello }\n";
const ASKS: &str = "name: asks\nsteps:\n  - { id: ship, gate: { ask: 'Ship it?', choices: [ship, wait] } }\n";

/// Returns the acts as pairs of author and act, oldest first.
fn pairs(acts: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or("not recorded").to_owned();
    let acts = acts.as_array().expect("a list").iter().rev();
    acts.map(|act| (text(&act["by"]), text(&act["act"]))).collect()
}

/// Returns the rows of a table of acts without times, ids and the name of the local user, sorted: acts of one millisecond
/// have no order.
fn rows(table: &str) -> Vec<String> {
    let word = |word: &str| {
        let is_id = word.len() == 12 && word.starts_with("0a");
        let is_number = word.len() > 12 && word.bytes().all(|byte| byte.is_ascii_digit());
        match word {
            _ if is_id || is_number => "ID".to_owned(),
            user if user.starts_with("user:") => "user:NAME".to_owned(),
            word => word.to_owned(),
        }
    };
    // A time has three words: the day, the time and the zone.
    let row = |line: &str| line.split_whitespace().skip(3).map(word).collect::<Vec<_>>().join(" ");
    let mut rows: Vec<String> = table.lines().skip(1).map(row).collect();
    rows.sort();
    rows
}

#[test]
fn i01_a_day_of_five_users_and_three_agents_is_read_back_with_who_did_what() {
    let sandbox = Sandbox::new();
    let mut tokens = Vec::new();
    for name in ["ada", "bo", "cy", "di"] {
        let made = sandbox.sprag(["token", "new", name, "--scope", "run", "--scope", "work"]).expect(0);
        tokens.push(made.stdout.trim().to_owned());
    }
    let admin = sandbox.sprag(["token", "new", "eve", "--scope", "admin"]).expect(0).stdout.trim().to_owned();
    let server = Server::start(&sandbox, &[]);
    let post =
        |token: &str, path: &str, body: &Value| server.request("POST", path).token(token).json(body).send();
    // ada starts a run; bo starts one that asks, cy answers it; di starts one and cancels it.
    let started = post(&tokens[0], "/v1/runs", &json!({ "yaml": HELLO })).expect(201).json();
    server.until(started["id"].as_str().expect("an id"), "completed");
    let asked = post(&tokens[1], "/v1/runs", &json!({ "yaml": ASKS })).expect(201).json();
    let asked = asked["id"].as_str().expect("an id").to_owned();
    let gate =
        server.get(&format!("/v1/gates?run={asked}"))["gates"][0]["id"].as_str().expect("a gate").to_owned();
    let answer = json!({ "choice": "ship" });
    post(&tokens[2], &format!("/v1/gates/{gate}/answer"), &answer).expect(200);
    server.until(&asked, "completed");
    let stopped = post(&tokens[3], "/v1/runs", &json!({ "yaml": ASKS })).expect(201).json();
    let stopped = stopped["id"].as_str().expect("an id").to_owned();
    post(&tokens[3], &format!("/v1/runs/{stopped}/cancel"), &json!({})).expect(200);
    server.until(&stopped, "cancelled");
    // eve administers.
    let hook = json!({ "url": "http://127.0.0.1:9/x?key=secret" });
    let hook = post(&admin, "/v1/hooks", &hook).expect(201).json();
    let hook = hook["id"].as_str().expect("an id").to_owned();
    server.request("DELETE", &format!("/v1/hooks/{hook}")).token(&admin).send().expect(204);
    let made = post(&admin, "/v1/tokens", &json!({ "name": "bot", "scopes": ["read"] })).expect(201).json();
    let made = made["id"].as_str().expect("an id").to_owned();
    server.request("DELETE", &format!("/v1/tokens/{made}")).token(&admin).send().expect(204);
    // A board of ada, over MCP; three agents claim its tasks.
    server.call_as(&tokens[0], "board_create", &json!({ "name": "b" }));
    let tasks = json!({ "board": "b", "tasks": [{ "text": "1" }, { "text": "2" }, { "text": "3" }] });
    let added = server.call_as(&tokens[0], "task_add", &tasks);
    assert_eq!(added["tasks"].as_array().map(Vec::len), Some(3), "{added}");
    for agent in ["fox", "owl", "elk"] {
        let got = server.call_as(&tokens[1], "task_claim", &json!({ "board": "b", "name": agent }));
        assert!(got["token"].is_string(), "{got}");
    }

    let all = server.request("GET", "/v1/audit").token(&admin).send().expect(200).json();
    assert_eq!(all["looked_back_to"], Value::Null);
    let local = sandbox.json(["audit", "--json"]);
    assert_eq!(local, all["acts"], "the command and the API answer the same");
    let seen = pairs(&local);
    let user = seen.first().map(|(by, _)| by.clone()).expect("an act");
    assert!(user.starts_with("user:"), "{user}");
    let expected = [
        [(&*user, "token.created"); 5].as_slice(),
        &[
            ("token:ada", "run.created"),
            ("token:bo", "run.created"),
            ("token:cy", "gate.answered"),
            ("token:di", "run.created"),
            ("token:di", "cancel.requested"),
            ("token:eve", "hook.created"),
            ("token:eve", "hook.removed"),
            ("token:eve", "token.created"),
            ("token:eve", "token.removed"),
        ],
    ]
    .concat();
    for (by, act) in &expected {
        let pair = ((*by).to_owned(), (*act).to_owned());
        assert!(seen.contains(&pair), "{pair:?} is missing in {seen:#?}");
    }
    for agent in ["agent:fox@bo", "agent:owl@bo", "agent:elk@bo"] {
        assert!(seen.iter().any(|(by, _)| by == agent), "{agent} is missing in {seen:#?}");
    }
    assert!(!seen.iter().any(|(by, _)| by == "not recorded"), "{seen:#?}");
    assert!(!local.to_string().contains("secret"), "an address may hold a secret: {local}");

    // The filters; the table; the answer of the gate; the same author in the journal.
    let only = |args: &[&str]| pairs(&sandbox.json([&["audit", "--json"], args].concat()));
    assert_eq!(only(&["--by", "cy"]), [("token:cy".to_owned(), "gate.answered".to_owned())]);
    assert_eq!(only(&["--by", "token:cy", "--act", "gate"]).len(), 1);
    assert_eq!(only(&["--by", "cy", "--act", "run"]), []);
    assert_eq!(only(&["--act", "token.removed"]).len(), 1);
    assert_eq!(only(&["--run", &stopped]).len(), 2);
    assert_eq!(only(&["--since", "1h"]).len(), seen.len());
    assert_eq!(only(&["--since", "2030-01-01T00:00:00Z"]), []);
    assert_eq!(only(&["--limit", "3"]).len(), 3);
    let table = sandbox.sprag(["audit", "--by", "cy"]).expect(0).stdout;
    assert!(table.contains("gate.answered") && table.contains(&format!("asks {asked} ship ship")), "{table}");
    let events = sandbox.sprag(["events", "--json", "--run", &stopped]).expect(0).stdout;
    assert!(
        events
            .lines()
            .any(|line| line.contains("\"cancel.requested\"") && line.contains("\"by\":\"token:di\"")),
        "{events}"
    );
    // The whole day is the table of the page about security, up to times, ids and the name of this user.
    const PAGE: &str = include_str!("../../../docs/security.md");
    let (_, day) = PAGE.split_once("## The audit of a day").expect("a section");
    let (_, day) = day.split_once("```text\n").expect("a table");
    let (day, _) = day.split_once("```").expect("an end");
    let table = sandbox.sprag(["audit"]).expect(0).stdout;
    println!("{table}");
    assert_eq!(rows(&table), rows(day), "the day is told in docs/security.md");
    // Only an administrator reads the audit over HTTP.
    server.request("GET", "/v1/audit").token(&tokens[0]).send().problem(403, "forbidden");
    server.request("GET", "/v1/audit?since=yesterday").token(&admin).send().problem(400, "malformed");
}

#[test]
fn i01_a_local_user_a_rule_and_a_landing_are_named() {
    let project = Project::new();
    let sandbox = &project.sandbox;
    project.run(&super::landing::lands(&project, "lands", "{into: main}"), 0);
    let rule = "on: [{ id: r, schedule: { cron: '0 0 1 1 *' } }]";
    let ruled = project.pipeline("ruled", rule, "  - { id: a, run: echo a }");
    project.sprag([OsStr::new("rule"), OsStr::new("apply"), ruled.as_os_str()]).expect(0);
    project.sprag(["rule", "fire", "r"]).expect(0);
    let acts = sandbox.json(["audit", "--json"]);
    let seen = pairs(&acts);
    let kinds: Vec<(&str, &str)> =
        seen.iter().map(|(by, act)| (by.split(':').next().unwrap_or_default(), act.as_str())).collect();
    for wanted in
        [("user", "run.created"), ("worker", "landed"), ("user", "rule.created"), ("rule", "run.created")]
    {
        assert!(kinds.contains(&wanted), "{wanted:?} is missing in {seen:#?}");
    }
}
