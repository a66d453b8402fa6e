//! Runs with a name, labels and a priority, over the command line and HTTP: they are shown, found and compared.

use serde_json::{Value, json};
use sprag_tests::{Sandbox, Server};

const HELLO: &str = "name: hello\nsteps:\n  - id: say\n    run: echo hello\n";

#[test]
fn the_command_line_gives_shows_and_finds_them() {
    let sandbox = Sandbox::new();
    sandbox.write("hello.yaml", HELLO);
    let start = |more: &[&str]| {
        let mut args = vec!["run", "hello.yaml", "--detach", "--json"];
        args.extend(more);
        sandbox.json(args)["run"].as_str().expect("a run").to_owned()
    };
    let named = start(&["--name", "Nightly build", "--label", "team=web", "--label", "kind=night"]);
    let other = start(&["--label", "team=core", "--priority", "-3"]);
    let plain = start(&[]);

    let shown = sandbox.json(["status", &named, "--json"]);
    assert_eq!(shown["name"], "Nightly build");
    assert_eq!(shown["labels"], json!({ "kind": "night", "team": "web" }));
    let told = sandbox.sprag(["status", &named]).expect(0).stdout;
    assert!(told.contains("name: Nightly build") && told.contains("labels: kind=night, team=web"), "{told}");
    assert_eq!(sandbox.json(["status", &plain, "--json"])["name"], Value::Null);

    let listed = |args: &[&str]| -> Vec<String> {
        let runs = sandbox.json([&["ls", "--json"], args].concat());
        let ids = runs.as_array().expect("runs").iter();
        ids.map(|run| run["id"].as_str().expect("an id").to_owned()).collect()
    };
    assert_eq!(listed(&["--label", "team=web"]), std::slice::from_ref(&named));
    assert_eq!(listed(&["--label", "team=core"]), [other]);
    assert_eq!(listed(&["--label", "team=web", "--label", "kind=day"]), Vec::<String>::new());
    assert_eq!(listed(&[]).len(), 3);
    let table = sandbox.sprag(["ls"]).expect(0).stdout;
    assert!(table.contains("Nightly build") && table.contains("team=core"), "{table}");

    for wrong in [
        ["--name", ""],
        ["--name", &"n".repeat(129)],
        ["--label", "team"],
        ["--label", "=web"],
        ["--label", "team="],
        ["--label", &format!("team={}", "x".repeat(65))],
    ] {
        sandbox.sprag([&["run", "hello.yaml", "--detach"], &wrong[..]].concat()).expect(2);
    }
    sandbox.sprag(["ls", "--label", "team"]).expect(2);
    assert_eq!(listed(&[]).len(), 3, "nothing was started");
}

#[test]
fn the_api_gives_shows_finds_and_compares_them() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let wanted = json!({ "yaml": HELLO, "name": "one", "labels": { "team": "web" }, "priority": 7 });
    let send =
        |body: &Value| server.request("POST", "/v1/runs").header("idempotency-key", "k1").json(body).send();
    let made = send(&wanted).expect(201).json();
    assert_eq!((&made["name"], &made["labels"]), (&json!("one"), &json!({ "team": "web" })));
    assert_eq!(send(&wanted).expect(200).json()["id"], made["id"]);
    for (field, value) in
        [("name", json!("two")), ("labels", json!({ "team": "core" })), ("labels", json!({}))]
    {
        let mut changed = wanted.clone();
        changed[field] = value;
        send(&changed).problem(422, "invalid");
    }
    server.post("/v1/runs", &json!({ "yaml": HELLO })).expect(201);

    let run = made["id"].as_str().expect("an id");
    let detail = server.get(&format!("/v1/runs/{run}"));
    assert_eq!((&detail["name"], &detail["labels"]["team"]), (&json!("one"), &json!("web")));
    let found = server.get("/v1/runs?label=team=web");
    assert_eq!(found["runs"].as_array().map(Vec::len), Some(1));
    assert_eq!(found["runs"][0]["id"], made["id"]);
    assert_eq!(server.get("/v1/runs?label=team=web,kind=x")["runs"], json!([]));

    let many: serde_json::Map<String, Value> = (0..33).map(|n| (format!("k{n}"), json!("v"))).collect();
    for (field, value) in [("name", json!("")), ("name", json!("a\u{1b}")), ("labels", json!(many))] {
        let mut wrong = json!({ "yaml": HELLO });
        wrong[field] = value;
        let problem = server.post("/v1/runs", &wrong).problem(422, "invalid");
        assert_eq!(problem["field"], field, "{problem}");
    }
    server.request("GET", "/v1/runs?label=team").send().problem(422, "invalid");
}
