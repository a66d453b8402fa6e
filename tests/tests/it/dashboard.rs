//! The dashboard: what it needs of the API. Its pages in a real browser are in `dashboard_browser`.

use serde_json::{Value, json};
use sprag_tests::{Sandbox, Server, until, until_some};

const HELLO: &str = "name: hello\nsteps:\n  - id: say\n    run: echo hello\n  - id: end\n    run: echo bye\n";
const ASKS: &str = "name: asks\nsteps:\n  - id: ask\n    gate: { ask: Sure?, choices: [yes, no] }\n  - id: go\n    run: 'true'\n";
const FAILS: &str =
    "name: sad\nsteps:\n  - id: ok\n    run: 'true'\n  - id: bad\n    run: echo no luck; exit 3\n";
const FAN: &str = "name: fan\nlabels: { team: web }\nsteps:\n  - id: start\n    run: 'true'\n  - id: each\n    needs: [start]\n    \
    matrix: { n: [1, 2, 3] }\n    run: echo $N\n  - id: end\n    needs: [each]\n    run: 'true'\n";

fn ids(page: &Value) -> Vec<&str> {
    page["runs"].as_array().expect("runs").iter().map(|run| run["id"].as_str().expect("an id")).collect()
}

#[test]
fn e24_runs_are_found_counted_and_described() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let (hello, asks, sad) = (server.run(HELLO), server.run(ASKS), server.run(FAILS));
    server.until(&hello, "completed");
    server.until(&sad, "failed");
    until("the run asks", || server.get(&format!("/v1/runs/{asks}"))["waiting_for"] == "person");
    let page = server.get("/v1/runs?counts=true");
    assert_eq!(
        page["counts"],
        json!({ "by_status": { "completed": 1, "running": 1, "failed": 1 }, "more": false })
    );
    let one = |id: &str| {
        page["runs"].as_array().expect("runs").iter().find(|run| run["id"] == id).expect("it").clone()
    };
    assert_eq!(one(&hello)["progress"], json!({ "total": 2, "settled": 2, "broken": 0 }));
    assert_eq!(one(&asks)["progress"], json!({ "total": 2, "settled": 0, "broken": 0 }));
    assert_eq!((&one(&asks)["questions"], &one(&hello)["questions"]), (&json!(1), &Value::Null));
    // A filter of the statuses does not change the counts of the others.
    let failed = server.get("/v1/runs?counts=true&status=failed");
    assert_eq!((ids(&failed), &failed["counts"]), (vec![sad.as_str()], &page["counts"]));
    assert_eq!(ids(&server.get("/v1/runs?text=HELL")), [hello.as_str()]);
    assert_eq!(ids(&server.get(&format!("/v1/runs?text={sad}"))), [sad.as_str()]);
    let created = one(&asks)["created_at"].as_str().expect("a time").to_owned();
    assert_eq!(ids(&server.get(&format!("/v1/runs?since={created}"))), [sad.as_str(), asks.as_str()]);
    assert_eq!(ids(&server.get(&format!("/v1/runs?until={created}"))), [hello.as_str()]);
    assert_eq!(ids(&server.get(&format!("/v1/runs?parent={hello}"))), [""; 0]);
    for wrong in ["since=yesterday", "until=1", "parent=zz", "counts=2"] {
        server.request("GET", &format!("/v1/runs?{wrong}")).send().problem(400, "malformed");
    }
    let live = server.get("/v1/waiting");
    assert_eq!((&live["live"], &live["executing"], &live["unserved"]), (&json!(1), &json!([]), &json!([])));
    assert_eq!(live["causes"], json!([{ "waiting_for": "person", "count": 1, "runs": [asks] }]));
    // The tasks of a board are claimed by agents and people: that no worker serves their queue is as it should be.
    server.post("/v1/boards", &json!({ "name": "demo", "goal": "A goal" })).expect(201);
    server.post("/v1/boards/demo/tasks", &json!({ "tasks": [{ "text": "Write it" }] })).expect(200);
    until("the task waits", || server.get("/v1/waiting")["causes"][1]["waiting_for"] == "task");
    assert_eq!(server.get("/v1/waiting")["unserved"], json!([]));
    let slow = server.run("name: slow\nsteps:\n  - id: nap\n    run: echo first; echo napping; sleep 60\n");
    let executing = until_some("a step is executed", || {
        server.get("/v1/waiting")["executing"].as_array().and_then(|all| all.first().cloned())
    });
    assert_eq!(
        (&executing["run"], &executing["step"], &executing["attempt"]),
        (&json!(slow), &json!("nap"), &json!(1))
    );
    assert!(executing["worker"].as_str().is_some_and(|name| name.starts_with("serve-")), "{executing}");
    until("its last line is told", || server.get("/v1/waiting")["executing"][0]["last_line"] == "napping");
    server.post(&format!("/v1/runs/{slow}/cancel"), &json!({})).expect(200);
}

#[test]
fn e24_a_pipeline_has_usual_times_from_its_completed_runs() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let of = |pipeline: &str| server.get(&format!("/v1/durations?pipeline={pipeline}"));
    assert_eq!(of("hello"), json!({ "pipeline": "hello", "runs": 0, "run_ms": null, "steps": {} }));
    let runs = [server.run(HELLO), server.run(HELLO), server.run(FAILS)];
    server.until(&runs[0], "completed");
    server.until(&runs[1], "completed");
    server.until(&runs[2], "failed");
    let usual = of("hello");
    assert_eq!(usual["runs"], 2, "{usual}");
    assert!(usual["run_ms"].as_i64().is_some_and(|ms| ms > 0), "{usual}");
    let steps: Vec<&String> = usual["steps"].as_object().expect("steps").keys().collect();
    assert_eq!(steps, ["end", "say"], "{usual}");
    // A run that failed says nothing about the usual time.
    assert_eq!(of("sad")["runs"], 0);
    server.request("GET", "/v1/durations").send().problem(400, "malformed");
}

#[test]
fn e24_a_snapshot_and_the_entries_after_it_have_everything() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let steps: String = (0..12).map(|no| format!("  - id: s{no}\n    run: 'true'\n")).collect();
    let run = server.run(&format!("name: chain\nsteps:\n{steps}"));
    // Each snapshot contains at least the entries up to its number.
    let mut seen: Vec<(u64, Value)> = Vec::new();
    until("the run has ended", || {
        let reply = server.request("GET", &format!("/v1/runs/{run}")).send().expect(200);
        let seq = reply.headers["sprag-seq"].parse().expect("a number");
        seen.push((seq, reply.json()));
        seen.last().is_some_and(|(_, told)| told["status"] == "completed")
    });
    let entries = server.get(&format!("/v1/journal?run={run}&limit=1000"))["entries"].clone();
    let entries = entries.as_array().expect("entries");
    for (seq, told) in &seen {
        for step in told["steps"].as_array().expect("steps") {
            let of_step = |entry: &&Value| entry["entity"] == "step" && entry["step"] == step["id"];
            let upto = |entry: &&Value| entry["seq"].as_u64().is_some_and(|at| at <= *seq);
            let done_by_then = entries.iter().filter(of_step).filter(upto).any(|entry| entry["to"] == "done");
            assert!(!done_by_then || step["status"] == "done", "{seq}: {step}");
        }
    }
    // An answer that is no success, and other paths, have no number.
    let missing = server.request("GET", "/v1/runs/000000000000").send();
    assert!(!missing.headers.contains_key("sprag-seq"));
}

#[test]
fn e24_a_browser_signs_in_with_a_cookie_that_only_its_own_page_can_use() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let host = server.addr.to_string();
    let origin = format!("http://{host}");
    server.anonymous("GET", "/v1/me").send().problem(401, "unauthorized");
    let sign_in =
        |token: &str| server.anonymous("POST", "/v1/session").json(&json!({ "token": token })).send();
    sign_in("wrong").problem(401, "unauthorized");
    server
        .anonymous("POST", "/v1/session")
        .json(&json!({ "code": "wrong" }))
        .send()
        .problem(401, "unauthorized");
    server.anonymous("POST", "/v1/session").json(&json!({})).send().problem(422, "invalid");
    let reply = sign_in(&server.token).expect(200);
    let set = reply.headers["set-cookie"].clone();
    assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict") && set.contains("Path=/"), "{set}");
    assert!(!set.contains(&server.token), "{set}");
    let cookie = set.split(';').next().expect("a cookie").to_owned();
    let with = |method: &str, path: &str| server.anonymous(method, path).header("cookie", &cookie);
    let me = with("GET", "/v1/me").send().expect(200).json();
    assert_eq!((&me["name"], &me["auth"]), (&json!("local"), &json!(true)));
    assert!(
        me["page"].is_string() && me["scopes"].as_array().is_some_and(|scopes| scopes.len() == 4),
        "{me}"
    );
    // Reading needs no origin, but another page of the same host may not even read.
    with("GET", "/v1/runs").header("sec-fetch-site", "same-origin").send().expect(200);
    with("GET", "/v1/runs").header("sec-fetch-site", "same-site").send().problem(403, "wrong_origin");
    let body = json!({ "yaml": HELLO });
    with("POST", "/v1/runs").json(&body).send().problem(403, "wrong_origin");
    with("POST", "/v1/runs")
        .header("origin", "http://127.0.0.1:1")
        .json(&body)
        .send()
        .problem(403, "wrong_origin");
    with("POST", "/v1/runs").header("origin", "null").json(&body).send().problem(403, "wrong_origin");
    with("POST", "/v1/runs").header("origin", &origin).json(&body).send().expect(201);
    let forged = format!("{}0", &cookie[..cookie.len() - 1]);
    let forged = if forged == cookie { format!("{}1", &cookie[..cookie.len() - 1]) } else { forged };
    server.anonymous("GET", "/v1/me").header("cookie", &forged).send().problem(401, "unauthorized");

    // A session has the scopes of its token, and ends with it.
    let reader =
        sandbox.sprag(["token", "new", "reader", "--scope", "read"]).expect(0).stdout.trim().to_owned();
    let set = sign_in(&reader).expect(200).headers["set-cookie"].clone();
    let read_only = set.split(';').next().expect("a cookie").to_owned();
    let post = server.anonymous("POST", "/v1/runs").header("cookie", &read_only).header("origin", &origin);
    post.json(&body).send().problem(403, "forbidden");
    sandbox.sprag(["token", "rm", "reader"]).expect(0);
    until("the session has ended", || {
        server.anonymous("GET", "/v1/me").header("cookie", &read_only).send().status == 401
    });
    let out = with("DELETE", "/v1/session").header("origin", &origin).send().expect(204);
    assert!(out.headers["set-cookie"].contains("Max-Age=0"));
}

#[test]
fn e24_the_pages_need_no_token_and_no_other_server() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    for path in [
        "/",
        "/runs",
        "/runs/abc/steps/x",
        "/questions",
        "/landing",
        "/lifecycles",
        "/environments",
        "/agents",
        "/agents/abc/work",
        "/rules",
        "/rules/ci/nightly",
        "/pipelines/x",
        "/settings",
    ] {
        let page = server.anonymous("GET", path).send().expect(200);
        assert_eq!(page.headers["content-type"], "text/html; charset=utf-8", "{path}");
        let policy = &page.headers["content-security-policy"];
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
        let links = &page.headers["link"];
        assert!(links.contains("rel=modulepreload") && !links.contains("//"), "{path}: {links}");
        let text = page.text();
        let script = text.split("src=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a script");
        let script = server.anonymous("GET", script).header("accept-encoding", "gzip").send().expect(200);
        assert_eq!(script.headers["content-encoding"], "gzip");
        assert!(script.headers["cache-control"].contains("immutable"));
        let again = server.anonymous("GET", path).header("if-none-match", &page.headers["etag"]).send();
        again.expect(304);
    }
    for path in ["/assets/none.js", "/assets/../token", "/assets/%2e%2e/token"] {
        assert_eq!(server.anonymous("GET", path).send().status, 404, "{path}");
    }
    for path in ["/v1/runs", "/metrics", "/nothing"] {
        server.anonymous("GET", path).send().problem(401, "unauthorized");
    }
    server.anonymous("POST", "/runs").send().problem(401, "unauthorized");
}

#[test]
fn e24_serve_open_gives_the_browser_a_code_in_a_private_file() {
    let sandbox = Sandbox::new();
    let browser = sandbox.write(
        "browser",
        "#!/bin/sh\ncp \"$1\" \"$0.page\"\necho \"$1\" > \"$0.tmp\"\nmv \"$0.tmp\" \"$0.started\"\n",
    );
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&browser, mode).expect("executable");
    let mut command = sandbox.command(["serve", "--listen", "127.0.0.1:0", "--open"]);
    command.env("BROWSER", &browser);
    let server = Server::from_process(&sandbox, sandbox.start_command(command));
    until("the browser was started", || sandbox.path("browser.started").exists());
    assert!(!sandbox.read("browser.started").contains('#'), "the code is in no command line");
    let page = sandbox.read("browser.page");
    let code = page.split("/sign-in#").nth(1).and_then(|rest| rest.split('"').next()).expect("a code");
    let sign_in = || server.anonymous("POST", "/v1/session").json(&json!({ "code": code })).send();
    assert_eq!(sign_in().expect(200).json()["name"], "local");
    sign_in().problem(401, "unauthorized");
}

#[test]
fn e24_a_graph_has_positions_and_a_log_has_numbered_lines() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let fan = server.run(FAN);
    let loud = server.run(
        "name: loud\nsteps:\n  - id: say\n    run: |\n      seq 1 3000\n      printf '\\033[31mNee\\033[0mdle\\n'\n",
    );
    server.until(&fan, "completed");
    server.until(&loud, "completed");
    let graph = server.get(&format!("/v1/runs/{fan}/graph?layout=true"));
    assert_eq!(server.get(&format!("/v1/runs/{fan}/graph"))["layout"], Value::Null);
    let layout = &graph["layout"];
    assert_eq!(layout["edges"], json!([[0, 1], [1, 2]]));
    let x = |no: usize| layout["boxes"][no][0].as_i64().expect("a number");
    assert!(x(0) < x(1) && x(1) < x(2) && layout["width"].as_i64() > Some(x(2)), "{layout}");
    assert_eq!(layout["lines"].as_array().map(Vec::len), Some(2));

    let lines = |query: &str| server.get(&format!("/v1/runs/{loud}/steps/say/log/lines{query}"));
    let part = lines("?from=1500&count=2");
    assert_eq!(part["total"], 3001);
    assert_eq!((&part["lines"][0]["no"], &part["lines"][0]["text"]), (&json!(1500), &json!("1500")));
    assert_eq!(
        (&part["lines"][0]["stream"], part["lines"].as_array().map(Vec::len)),
        (&json!("out"), Some(2))
    );
    let last = lines("?count=1");
    assert_eq!(last["lines"][0]["no"], 3001);
    let size = server.request("GET", &format!("/v1/runs/{loud}/steps/say/log")).send().expect(200);
    assert_eq!(last["end"].as_u64(), size.headers["x-file-size"].parse().ok());
    assert_eq!(lines("?from=9000")["lines"], json!([]));
    let search = |query: &str| server.get(&format!("/v1/runs/{loud}/steps/say/log/search?{query}"));
    assert_eq!(search("q=needle"), json!({ "lines": [3001], "more": false, "total": 3001 }));
    assert_eq!(search("q=2999&after=2999")["lines"], json!([]));
    for wrong in ["lines?count=0", "lines?count=2001", "lines?from=x", "search", "search?q="] {
        let path = format!("/v1/runs/{loud}/steps/say/log/{wrong}");
        server.request("GET", &path).send().problem(400, "malformed");
    }
    server.request("GET", &format!("/v1/runs/{loud}/steps/nope/log/lines")).send().problem(404, "not_found");
}
