//! Rules and deliveries over HTTP and MCP: the same answers as on the command line, and the scopes that they need.

use serde_json::{Value, json};
use sprag_testkit::Postgres;
use sprag_tests::{Request, Sandbox, Server, until};

const RULES: &str = "name: site
inputs: { why: string }
on:
  - id: daily
    schedule: { cron: '0 12 * * *' }
    overlap: allow
    inputs: { why: \"{{ tick.date }}\" }
  - id: push
    webhook: { kind: github, secrets: [HOOK_SECRET] }
    when: event.headers['x-github-event'] == 'push'
    overlap: allow
    inputs: { why: \"{{ event.body.ref }}\" }
steps:
  - id: build
    run: 'true'
";

#[test]
fn r11_r12_r24_rules_over_http_and_mcp_do_what_commands_do() {
    let sandbox = Sandbox::new();
    sandbox.yaml("site", RULES);
    sandbox.sprag(["rule", "apply", "site.yaml"]).expect(0);
    let server = Server::start(&sandbox, &[]);
    let listed = server.get("/v1/rules");
    let names: Vec<&Value> =
        listed["rules"].as_array().expect("rules").iter().map(|rule| &rule["name"]).collect();
    assert_eq!(names, ["site/daily", "site/push"]);
    assert_eq!(server.get("/v1/rules/site/push")["url"], "/in/site/push");
    let shown = server.get("/v1/rules/site/daily?next=4");
    assert_eq!(shown["next"].as_array().expect("ticks").len(), 4);
    assert_eq!(shown, sandbox.json(["rule", "show", "daily", "--next", "4", "--json"]));
    server.request("GET", "/v1/rules/site/none").send().problem(404, "not_found");

    // A test writes nothing, and decides as firing does.
    let event = json!({ "event": { "body": { "ref": "main" }, "headers": { "X-GitHub-Event": "push" } } });
    let tested = server.post("/v1/rules/site/push/test", &event).expect(200).json();
    assert_eq!((&tested["decision"], &tested["inputs"]["why"]), (&json!("start"), &json!("main")));
    let at = json!({ "at": "2030-01-31T12:00:00Z" });
    let tested = server.post("/v1/rules/site/daily/test", &at).expect(200).json();
    assert_eq!(tested["inputs"]["why"], "2030-01-31");
    server.post("/v1/rules/site/daily/test", &json!({ "at": "noon" })).problem(422, "invalid");
    server
        .post("/v1/rules/site/daily/test", &json!({ "at": "noon", "recorded": "1" }))
        .problem(422, "invalid");
    server.post("/v1/rules/site/daily/test", &event).problem(422, "invalid");
    assert_eq!(server.get("/v1/deliveries")["deliveries"], json!([]));

    let paused =
        server.post("/v1/rules/site/daily/pause", &json!({ "reason": "holidays" })).expect(200).json();
    assert_eq!((&paused["status"], &paused["reason"]), (&json!("paused"), &json!("holidays")));
    server.post("/v1/rules/site/daily/pause", &json!({})).problem(409, "refused");
    server.post("/v1/rules/site/daily/fire", &json!({})).problem(409, "refused");
    let resumed = server.request("POST", "/v1/rules/site/daily/resume").send().expect(200).json();
    assert_eq!(resumed["status"], "active");
    let fired = server.request("POST", "/v1/rules/site/daily/fire").send().expect(200).json();
    assert_eq!(fired["status"], "requested");
    assert_eq!(server.get("/v1/rules/site/daily?next=4")["next"], shown["next"], "the next tick stays");
    server.until(fired["run"].as_str().expect("a run"), "completed");
    server.request("POST", "/v1/rules/site/push/fire").send().problem(422, "invalid");
    let pushed = server.post("/v1/rules/site/push/fire", &event).expect(200).json();
    assert_eq!(pushed["status"], "requested");

    let deliveries = server.get("/v1/deliveries?rule=site/push");
    assert_eq!(deliveries["deliveries"].as_array().expect("events").len(), 1);
    assert_eq!(deliveries["deliveries"], sandbox.json(["delivery", "ls", "push", "--json"]));
    let number = pushed["event"].as_str().expect("a number");
    let shown = server.get(&format!("/v1/deliveries/{number}"));
    assert_eq!(shown["event"]["event"]["body"]["ref"], "main");
    assert_eq!(shown, sandbox.json(["delivery", "show", number, "--json"]));
    let replayed = server.post(&format!("/v1/deliveries/{number}/replay"), &json!({})).expect(200).json();
    assert_ne!(replayed["run"], pushed["run"], "a replay is a decision of its own");
    let recorded = json!({ "recorded": number });
    assert_eq!(server.post("/v1/rules/site/push/test", &recorded).expect(200).json()["decision"], "start");
    server.request("GET", "/v1/deliveries/1").send().problem(404, "not_found");

    // Reading needs the scope `read`, changes need `run`.
    let made = sandbox.json(["token", "new", "reader", "--scope", "read", "--json"]);
    let reader = made["token"].as_str().expect("a token");
    let as_reader = |method: &str, path: &str| Request::to(server.addr, method, path).token(reader).send();
    as_reader("GET", "/v1/rules").expect(200);
    as_reader("GET", "/v1/deliveries").expect(200);
    for path in ["pause", "resume", "fire", "test"] {
        as_reader("POST", &format!("/v1/rules/site/daily/{path}")).problem(403, "forbidden");
    }
    as_reader("POST", &format!("/v1/deliveries/{number}/replay")).problem(403, "forbidden");

    // Explain, apply, backfill and remove.
    let told = server.get("/v1/rules/site/daily/explain");
    assert_eq!(told, sandbox.json(["rule", "explain", "daily", "--json"]));
    assert_eq!((&told["watched"], &told["last"]["status"]), (&json!(true), &json!("requested")), "{told}");
    let other = "name: other\non:\n  - id: noon\n    schedule: { cron: '0 12 * * *' }\nsteps:\n  - id: a\n    run: echo other >> others\n";
    let dry = server.post("/v1/rules", &json!({ "yaml": other, "dry": true })).expect(200).json();
    assert_eq!(dry["rules"], json!([{ "name": "other/noon", "outcome": "new" }]));
    server.request("GET", "/v1/rules/other/noon").send().problem(404, "not_found");
    server.post("/v1/rules", &json!({ "yaml": other })).expect(200);
    server.post("/v1/rules", &json!({ "pipeline": "site" })).problem(422, "invalid");
    server.post("/v1/rules", &json!({ "yaml": "name: other\non: 3\n" })).problem(422, "pipeline");
    let span = json!({ "from": "2026-03-01T00:00:00Z", "to": "2026-03-01T23:00:00Z" });
    let filled = server.post("/v1/rules/other/noon/backfill", &span).expect(200).json();
    assert_eq!(filled, json!({ "new": ["2026-03-01T12:00 UTC"], "known": 0 }));
    let filled = server.call("rule_backfill", &with(&span, "rule", "other/noon"));
    assert_eq!(filled, json!({ "new": [], "known": 1 }));
    until("the run of the backfill has ended", || sandbox.lines("others").len() == 1);
    let again = with(&span, "again", true);
    server.post("/v1/rules/other/noon/backfill", &again).expect(200);
    until("the tick was decided again", || sandbox.lines("others").len() == 2);
    server.post("/v1/rules/other/noon/backfill", &json!({ "from": "x", "to": "y" })).problem(422, "invalid");
    server.post("/v1/rules/site/push/backfill", &span).problem(422, "invalid");
    let gone = server.request("DELETE", "/v1/rules/other/noon").send().expect(200).json();
    assert_eq!(gone["status"], "retired");
    server.request("DELETE", "/v1/rules/other/noon").send().problem(409, "refused");
    assert_eq!(server.call("rule_apply", &json!({ "yaml": other }))["rules"][0]["outcome"], "changed");
    assert_eq!(server.call("rule_explain", &json!({ "rule": "noon" }))["status"], "active");
    assert_eq!(server.call("rule_remove", &json!({ "rule": "noon" }))["status"], "retired");
    for (method, path) in [("POST", ""), ("DELETE", "/site/daily"), ("POST", "/site/daily/backfill")] {
        as_reader(method, &format!("/v1/rules{path}")).problem(403, "forbidden");
    }
    as_reader("GET", "/v1/rules/site/daily/explain").expect(200);

    // A file that was changed since is told of.
    sandbox.yaml("site", &RULES.replace("'true'", "'false'"));
    let told = server.get("/v1/rules/site/daily/explain");
    assert!(
        told["reason"].as_str().expect("a reason").contains("has changed since it was applied"),
        "{told}"
    );

    // The tools of agents.
    let rule = json!({ "rule": "daily" });
    assert_eq!(server.call("rule_list", &json!({}))["rules"].as_array().expect("rules").len(), 2);
    assert_eq!(server.call("rule_show", &rule)["status"], "active");
    assert_eq!(server.call("rule_pause", &rule)["status"], "paused");
    assert_eq!(server.call("rule_resume", &rule)["status"], "active");
    assert_eq!(server.call("rule_test", &rule)["decision"], "start");
    assert_eq!(server.call("rule_fire", &rule)["status"], "requested");
    let given = json!({ "rule": "push", "event": { "body": {} } });
    assert_eq!(server.call("rule_test", &given)["decision"], "fail");
    assert_eq!(server.call("rule_fire", &given)["status"], "failed");
    let all = server.call("delivery_list", &json!({ "rule": "push" }));
    assert_eq!(all["deliveries"].as_array().expect("events").len(), 2);
    assert_eq!(server.call("delivery_show", &json!({ "event": number }))["rule"], "site/push");
    assert_eq!(server.call("delivery_replay", &json!({ "event": number }))["status"], "requested");
}

/// Returns the object with one more field.
fn with(object: &Value, name: &str, value: impl Into<Value>) -> Value {
    let mut object = object.clone();
    object[name] = value.into();
    object
}

#[test]
fn a_server_applies_the_rules_of_its_project_and_one_bad_file_stops_none() {
    let sandbox = Sandbox::new();
    sandbox.write(".sprag/pipelines/site.yaml", RULES);
    sandbox.write(".sprag/pipelines/bad.yaml", "name: bad\non: 3\n");
    let mut server = Server::start(&sandbox, &["--project", ".", "--apply-rules"]);
    assert_eq!(server.get("/v1/rules")["rules"].as_array().expect("rules").len(), 2);
    let told = server.process().stderr();
    assert!(told.contains("rule site/daily: new"), "{told}");
    assert!(told.contains("bad.yaml stay as they were"), "{told}");
    // The project's pipeline can be applied by its name, and its file is shown.
    let applied = server.post("/v1/rules", &json!({ "pipeline": "site" })).expect(200).json();
    assert_eq!(applied["rules"][0]["outcome"], "unchanged", "{applied}");
    sandbox.sprag(["serve", "--apply-rules"]).expect(2);
}

/// Starts a server that applies the rules of a folder and has no worker, and ends it. Returns what it told.
fn applied_by_server(sandbox: &Sandbox, project: &str) -> String {
    let mut server = Server::start(sandbox, &["--project", project, "--apply-rules", "--no-worker"]);
    let told = server.process().stderr();
    server.into_process().kill();
    told
}

fn applied_by_itself(sandbox: &Sandbox) {
    sandbox.write("a/.sprag/pipelines/site.yaml", RULES);
    sandbox.write("b/.sprag/pipelines/site.yaml", RULES);
    assert!(applied_by_server(sandbox, "a").contains("rule site/daily: new"));
    let show = || sandbox.sprag(["rule", "show", "site/daily", "--json"]).expect(0).json();
    let first = show();
    // HR8: the same file in another folder changes nothing, however often servers start.
    for project in ["b", "a", "b"] {
        let told = applied_by_server(sandbox, project);
        assert!(!told.contains("rule site/"), "{told}");
        assert_eq!(show(), first);
    }
    // A person may move it, and its ticks stay as they are.
    let file = sandbox.path("b/.sprag/pipelines/site.yaml");
    let applied = sandbox.sprag(["rule", "apply", file.to_str().expect("a path"), "--json"]).expect(0).json();
    assert_eq!(applied["rules"][0]["outcome"], "changed", "{applied}");
    let moved = show();
    assert_eq!((&moved["next"], &moved["generation"]), (&first["next"], &json!(2)), "{moved}");
    assert_ne!(moved["file"], first["file"]);

    // A rule that a person has removed stays so until a person brings it back.
    sandbox.sprag(["rule", "rm", "site/daily"]).expect(0);
    let told = applied_by_server(sandbox, "a");
    assert!(told.contains("rule site/daily stays retired; bring it back: sprag rule apply"), "{told}");
    assert_eq!(show()["status"], "retired");
    sandbox.sprag(["rule", "apply", file.to_str().expect("a path")]).expect(0);
    assert_eq!(show()["status"], "active");

    // A file that is gone: its rules work as they were applied, and that is said.
    std::fs::remove_file(&file).expect("removed");
    let told = sandbox.sprag(["explain", "site/daily"]).expect(0).stdout;
    assert!(told.contains("site.yaml is gone, and the rule works as it was applied"), "{told}");
    let told = applied_by_server(sandbox, "b");
    assert!(told.contains("is gone; remove it: sprag rule rm site/daily"), "{told}");

    // A server without a worker watches, too.
    let told = sandbox.sprag(["explain", "site/daily"]).expect(0).stdout;
    assert!(told.contains("no process watches"), "{told}");
    let server = Server::start(sandbox, &["--no-worker"]);
    until("the server is seen to watch", || {
        let told = sandbox.sprag(["explain", "site/daily"]).expect(0).stdout;
        !told.contains("no process watches")
    });
    server.into_process().kill();
    let told = sandbox.sprag(["explain", "site/daily"]).expect(0).stdout;
    assert!(told.contains("no process watches"), "{told}");
}

#[test]
fn hr8_servers_apply_a_file_once_and_leave_removed_rules_removed() {
    applied_by_itself(&Sandbox::new());
}

#[test]
fn hr8_servers_apply_a_file_once_on_postgres() {
    let database = Postgres::shared().database();
    applied_by_itself(&Sandbox::on(&database.url));
}
