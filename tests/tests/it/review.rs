//! Changes of runs over HTTP, comments on them, landings, and refused reports as they happen.

use std::time::Duration;

use serde_json::{Value, json};
use sprag_tests::{Project, Sandbox, Server, until, until_some};

fn start(project: &Project, server: &Server, yaml: &str) -> String {
    let body = json!({ "yaml": yaml, "dir": project.repo() });
    server.post("/v1/runs", &body).expect(201).json()["id"].as_str().expect("an id").to_owned()
}

#[test]
fn e24_changes_are_shown_per_run_step_attempt_range_and_file() {
    let project = Project::new();
    let server = Server::start(&project.sandbox, &[]);
    let run = start(
        &project,
        &server,
        "name: tries\nenvironment: { worktree: {} }\nsteps:\n  - id: work\n    retry: { attempts: 2, delay: 1ms }\n    \
         run: |\n      echo \"attempt $SPRAG_ATTEMPT\" > work.txt; git mv shared.txt 'moved here.txt'\n      \
         printf '\\000\\001' > blob.bin; test \"$SPRAG_ATTEMPT\" = 2\n  \
         - id: more\n    needs: [work]\n    run: echo more >> work.txt; mkdir '*'; echo star > '*/f'\n",
    );
    server.until(&run, "completed");
    let changes = |query: &str| server.get(&format!("/v1/runs/{run}/changes{query}"));
    let paths = |told: &Value| -> Vec<String> {
        let files = told["files"].as_array().expect("files").iter();
        files.map(|file| file["path"].as_str().expect("a path").to_owned()).collect()
    };
    let whole = changes("");
    assert_eq!(paths(&whole), ["*/f", "blob.bin", "moved here.txt", "work.txt"]);
    assert_eq!(whole["files"][1]["binary"], true);
    assert_eq!(
        (&whole["files"][2]["old_path"], &whole["files"][2]["added"]),
        (&json!("shared.txt"), &json!(0))
    );
    assert_eq!(whole["patch"], Value::Null);
    let diff = server.get(&format!("/v1/runs/{run}/diff"));
    assert_eq!((&diff["from"], &diff["to"]), (&whole["from"], &whole["to"]));
    // One file: a path is a name and not a pattern, and a renamed file needs both of its paths.
    let one = changes("?path=work.txt");
    assert_eq!(paths(&one), ["work.txt"]);
    assert!(one["patch"].as_str().is_some_and(|patch| patch.contains("+attempt 2\n+more")), "{one}");
    assert_eq!(paths(&changes("?path=*/f")), ["*/f"]);
    assert_eq!(paths(&changes("?path=..%2F..%2Fetc%2Fpasswd")), [""; 0]);
    let renamed = changes("?path=moved%20here.txt&old_path=shared.txt");
    assert!(renamed["patch"].as_str().is_some_and(|patch| patch.contains("rename from shared.txt")));
    // One attempt, one step, and ranges of both.
    let first = changes("?steps=work@1&path=work.txt");
    assert!(first["patch"].as_str().is_some_and(|patch| patch.contains("+attempt 1")), "{first}");
    assert_eq!(changes("?steps=work@2")["to"], changes("?steps=work")["to"]);
    assert_eq!(paths(&changes("?steps=work@1..work@2")), ["work.txt"]);
    assert_eq!(paths(&changes("?steps=work..more")), ["*/f", "work.txt"]);
    for wrong in ["steps=work@3", "steps=work@x", "steps=nope", "steps=work..nope"] {
        let path = format!("/v1/runs/{run}/changes?{wrong}");
        server.request("GET", &path).send().problem(422, "invalid");
    }
    server.request("GET", "/v1/runs/000000000000/changes").send().problem(404, "not_found");
    // The command line shows the same.
    let shown = project.sprag(["diff", &run, "work@1", "--no-pager"]).expect(0).stdout;
    assert!(shown.contains("+attempt 1") && !shown.contains("+attempt 2"), "{shown}");
    let bare = server.run("name: bare\nsteps:\n  - id: say\n    run: echo hi\n");
    server.request("GET", &format!("/v1/runs/{bare}/changes")).send().problem(409, "no_worktree");
}

#[test]
fn e24_comments_on_changes_survive_the_server_and_reach_other_readers() {
    let project = Project::new();
    let server = Server::start(&project.sandbox, &[]);
    let run = server.run("name: plain\nsteps:\n  - id: say\n    run: echo hi\n");
    server.until(&run, "completed");
    let mut stream = server.request("GET", "/v1/events?hints=true").open().expect("a stream");
    stream.patience(Duration::from_secs(30));
    let path = format!("/v1/runs/{run}/comments");
    let (from, to) = ("a".repeat(40), "b".repeat(40));
    let comment = |text: &str| json!({ "from": from, "to": to, "path": "notes.txt", "side": "new", "first": 2, "last": 3, "text": text });
    let first = server.post(&path, &comment("why?")).expect(201).json();
    assert_eq!(
        (&first["author"], &first["sent"], &first["last"]),
        (&json!("local"), &json!(false), &json!(3))
    );
    let told = stream.event().expect("an event").expect("one");
    assert_eq!((told.id, told.name.as_str(), &told.data["run"]), (0, "review", &json!(run)));
    // A comment is replaced, another one removed, and what is left is marked as sent.
    let mut better = comment("why so?");
    better["replaces"] = first["id"].clone();
    let better = server.post(&path, &better).expect(201).json();
    let second = server.post(&path, &comment("gone")).expect(201).json();
    let of = |id: &Value| format!("{path}/{id}");
    server.request("DELETE", &of(&second["id"])).send().expect(204);
    server.request("DELETE", &of(&second["id"])).send().problem(404, "not_found");
    server.post(&format!("{path}/sent"), &json!({ "ids": [first["id"]] })).problem(404, "not_found");
    server.post(&format!("{path}/sent"), &json!({ "ids": [better["id"]] })).expect(200);
    for wrong in [
        json!({ "first": 0 }),
        json!({ "last": 1 }),
        json!({ "from": "main" }),
        json!({ "text": " " }),
        json!({ "text": "x".repeat(20_000) }),
        json!({ "path": "x".repeat(10_000) }),
    ] {
        let mut body = comment("x");
        for (key, value) in wrong.as_object().expect("fields") {
            body[key] = value.clone();
        }
        server.post(&path, &body).problem(422, "invalid");
    }
    server.post("/v1/runs/000000000000/comments", &comment("x")).problem(404, "not_found");
    let addr = server.addr.to_string();
    server.into_process().kill();
    let server = Server::start_at(&project.sandbox, &addr, &[]);
    let kept = server.get(&path)["comments"].clone();
    assert_eq!(kept.as_array().map(Vec::len), Some(1), "{kept}");
    assert_eq!((&kept[0]["text"], &kept[0]["sent"]), (&json!("why so?"), &json!(true)));
}

#[test]
fn e24_a_refused_report_reaches_the_stream_and_is_listed() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let run = server.run("name: short\nsteps:\n  - id: say\n    run: echo hi\n");
    server.until(&run, "completed");
    let open = |query: &str| {
        let stream = server.request("GET", &format!("/v1/events{query}")).open().expect("a stream");
        stream.patience(Duration::from_secs(30));
        stream
    };
    let (mut with, mut without) = (open("?hints=true"), open(""));
    server.request("POST", &format!("/v1/runs/{run}/resume")).send().problem(409, "refused");
    let told = with.event().expect("an event").expect("one");
    assert_eq!((told.id, told.name.as_str()), (0, "refused"));
    assert_eq!((&told.data["run"], &told.data["entity"]), (&json!(run), &json!("run")));
    let listed = server.get("/v1/refusals?limit=5")["refused"].clone();
    assert_eq!((&listed[0]["run"], &listed[0]["event"]), (&json!(run), &told.data["event"]));
    // A reader that did not ask for hints sees entries alone, and each with its number.
    server.run("name: next\nsteps:\n  - id: say\n    run: echo hi\n");
    assert!(without.event().expect("an event").expect("one").id > 0);
    server.request("GET", "/v1/refusals?limit=0").send().problem(400, "malformed");
}

#[test]
fn e24_landings_show_the_turn_what_waits_and_what_was_refused() {
    let project = Project::new();
    let server = Server::start(&project.sandbox, &["--slots", "4"]);
    let out = project.sandbox.path("");
    let out = out.display();
    let yaml = |name: &str, work: &str, verify: &str| {
        format!(
            "name: {name}\ninputs: {{ branch: {{ type: string, default: main }} }}\nenvironment: {{ worktree: {{}} }}\nsteps:\n  \
             - id: work\n    run: {work}\n  - id: land\n    needs: [work]\n    \
             land: {{ into: \"{{{{ inputs.branch }}}}\", verify: '{verify}' }}\n"
        )
    };
    let slow = format!("touch {out}/begun; until [ -e {out}/go ]; do read -t 0.02 x < /dev/null || :; done");
    let first = start(&project, &server, &yaml("first", "echo 1 > shared.txt", &slow));
    until("the first one verifies", || project.sandbox.path("begun").exists());
    let second = start(&project, &server, &yaml("second", "echo 2 > other.txt", "true"));
    let landing = |run: &str| -> Option<Value> {
        let all = server.get("/v1/landings")["landings"].clone();
        all.as_array().expect("landings").iter().find(|one| one["run"] == run).cloned()
    };
    let waits = until_some("the second one waits for its turn", || {
        landing(&second).filter(|one| one["state"] == "waiting")
    });
    assert_eq!((&waits["behind"], &waits["branch"]), (&json!(first), &json!("main")));
    let told = server.get("/v1/landings");
    assert_eq!(told["turns"].as_array().map(Vec::len), Some(1), "{told}");
    assert_eq!((&told["turns"][0]["run"], &told["turns"][0]["waiting"]), (&json!(first), &json!([second])));
    let holds = landing(&first).expect("the first one");
    assert_eq!(holds["state"], "landing");
    assert!(holds["verify"].as_str().is_some_and(|verify| verify.starts_with("touch ")), "{holds}");
    // This one is based on the branch before the first one lands, and changes the same line.
    let clash = start(&project, &server, &yaml("clash", "echo 3 > shared.txt", "true"));
    until("the third one has its worktree", || landing(&clash).is_some());
    project.sandbox.write("go", "");
    server.until(&first, "completed");
    server.until(&second, "completed");
    server.until(&clash, "failed");
    let refused = landing(&clash).expect("it");
    assert_eq!((&refused["state"], &refused["reason"]), (&json!("refused"), &json!("conflict")));
    assert_eq!(refused["files"], json!(["shared.txt"]));
    let landed = landing(&first).expect("it");
    assert_eq!((&landed["state"], landed["commit"].is_string()), (&json!("landed"), true));
    assert_eq!(server.get("/v1/landings")["turns"], json!([]));
}

#[test]
fn e24_a_pipeline_of_the_project_shows_its_inputs_and_its_graph() {
    let sandbox = Sandbox::new();
    sandbox.write(
        ".sprag/pipelines/ship.yaml",
        "description: Ships it\ninputs:\n  place: { type: string, enum: [here, there], default: here, description: Where to }\n  \
         count: { type: integer, required: true, min: 1 }\nsteps:\n  - id: a\n    run: echo {{ inputs.place }} {{ inputs.count }}\n  \
         - id: b\n    needs: [a]\n    run: echo b\n",
    );
    sandbox.write(".sprag/pipelines/broken.yaml", "steps: [{ id: a }]\n");
    let folder = sandbox.path("");
    let server = Server::start(&sandbox, &["--project", folder.to_str().expect("a path")]);
    let told = server.get("/v1/pipelines/ship");
    assert_eq!((&told["description"], &told["inputs"][0]["name"]), (&json!("Ships it"), &json!("place")));
    assert_eq!(told["inputs"][0]["allowed"], json!(["here", "there"]));
    let count = &told["inputs"][1];
    assert_eq!(
        (&count["type"], &count["required"], &count["min"]),
        (&json!("integer"), &json!(true), &json!(1))
    );
    assert_eq!(told["graph"]["layout"]["edges"], json!([[0, 1]]));
    server.request("GET", "/v1/pipelines/broken").send().problem(422, "pipeline");
    for none in ["nope", "..%2Fship", "%2e%2e"] {
        server.request("GET", &format!("/v1/pipelines/{none}")).send().problem(404, "not_found");
    }
}
