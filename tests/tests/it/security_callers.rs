//! Information that a caller must not get about other callers, the server's files and its network.

use serde_json::{Value, json};
use sprag_tests::{HandWorker, Reply, Sandbox, Server, Signal, until};

/// Returns a token with these scopes.
fn token(sandbox: &Sandbox, name: &str, scopes: &[&str]) -> String {
    let mut args = vec!["token", "new", name, "--json"];
    scopes.iter().for_each(|scope| args.extend(["--scope", scope]));
    sandbox.json(args)["token"].as_str().expect("a token").to_owned()
}

/// Returns a server with a board `b` of two tasks.
fn with_board(sandbox: &Sandbox) -> Server {
    let server = Server::start(sandbox, &["--no-worker"]);
    server.post("/v1/boards", &json!({ "name": "b" })).expect(201);
    let tasks = json!({ "tasks": [{ "text": "first" }, { "text": "second" }] });
    server.post("/v1/boards/b/tasks", &tasks).expect(200);
    server
}

#[test]
fn e04_a_claim_is_repeated_by_the_token_that_made_it_alone() {
    let sandbox = Sandbox::new();
    let server = with_board(&sandbox);
    let [ada, eve] = ["ada-token", "eve-token"].map(|name| token(&sandbox, name, &["work", "run"]));
    let wanted = json!({ "name": "ada", "board": "b", "request": 1 });
    let claim = |token: &str| {
        let told = server.request("POST", "/v1/tasks/claim").token(token).json(&wanted).send().expect(200);
        told.json()["task"]["token"].as_str().map(str::to_owned)
    };
    let hers = claim(&ada).expect("a task");
    assert_eq!(claim(&ada).as_ref(), Some(&hers), "a repeated request gets the same task");
    let other = claim(&eve).expect("another task");
    assert_ne!(other, hers);
    assert_eq!(claim(&eve), Some(other), "that of its own");
    // Over MCP the agents are the same, and so are the tokens that they are bound to.
    assert_eq!(server.call_as(&ada, "task_claim", &wanted)["token"], hers.as_str());
    let third = token(&sandbox, "third", &["work", "run"]);
    assert_eq!(server.call_as(&third, "task_claim", &wanted)["token"], Value::Null, "nothing is left");
    // The server's own user is neither of them.
    assert_eq!(server.post("/v1/tasks/claim", &wanted).expect(200).json()["task"], Value::Null);
    let tasks = server.get("/v1/boards/b/tasks").to_string();
    assert!(tasks.contains("ada@ada-token") && tasks.contains("ada@eve-token"), "{tasks}");
}

#[test]
fn e04_the_request_log_holds_no_task_token() {
    let sandbox = Sandbox::new();
    let mut server = with_board(&sandbox);
    let claimed = server.post("/v1/tasks/claim", &json!({ "name": "ada", "board": "b" })).expect(200).json();
    let token = claimed["task"]["token"].as_str().expect("a token").to_owned();
    server.post(&format!("/v1/tasks/{token}/heartbeat"), &json!({})).expect(200);
    server.post(&format!("/v1/tasks/{token}/nothing"), &json!({}));
    server.post(&format!("/v1/tasks/{token}/done"), &json!({})).expect(200);
    server.post(&format!("/v1/tasks/{token}/done"), &json!({})).expect(200);
    until("the requests are logged", || server.process().stderr().matches("/done").count() == 2);
    let log = server.process().stderr();
    let (place, signature) = token.rsplit_once('.').expect("a signature");
    assert!(!log.contains(signature), "{log}");
    assert!(log.contains(&format!("/v1/tasks/{place}.***/heartbeat")), "{log}");
}

#[test]
fn a_key_is_for_one_request() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    let yaml = "steps:\n  - id: a\n    run: 'true'\n";
    let start = |body: Value| -> Reply {
        server.request("POST", "/v1/runs").header("idempotency-key", "k").json(&body).send()
    };
    let first = json!({ "yaml": yaml, "dir": "/tmp", "priority": 3 });
    let run = start(first.clone()).expect(201).json()["id"].clone();
    assert_eq!(start(first).expect(200).json()["id"], run);
    for (body, what) in [
        (json!({ "yaml": yaml, "dir": "/", "priority": 3 }), "folder"),
        (json!({ "yaml": yaml, "priority": 3 }), "folder"),
        (json!({ "yaml": yaml, "dir": "/tmp", "priority": 4 }), "priority"),
        (
            json!({ "yaml": format!("{yaml}  - id: b\n    run: 'true'\n"), "dir": "/tmp", "priority": 3 }),
            "pipeline",
        ),
    ] {
        let told = start(body).problem(422, "invalid");
        assert!(told["message"].as_str().is_some_and(|told| told.contains(what)), "{told}");
    }
    // Over MCP, and on the command line.
    let start = |yaml: &str| {
        let wanted = json!({ "yaml": yaml, "idempotency_key": "m" });
        server.call("run_start", &wanted)
    };
    let run = start(yaml)["run"].clone();
    assert_eq!(start(yaml), json!({ "run": run, "existing": true }));
    let told = start("steps:\n  - id: z\n    run: 'true'\n");
    assert!(told["error"] == "invalid" && told["message"].to_string().contains("pipeline"), "{told}");
    let detach =
        |file: &str| sandbox.sprag(["run", file, "--detach", "--idempotency-key", "c", "--input", "x=1"]);
    let inputs = "inputs: { x: integer }\n";
    let one = sandbox.yaml("one", &format!("{inputs}{yaml}")).display().to_string();
    let run = detach(&one).expect(0).stdout;
    assert_eq!(detach(&one).expect(0).stdout, run);
    let two = sandbox.yaml("two", &format!("{inputs}steps:\n  - id: z\n    run: 'true'\n"));
    assert!(detach(&two.display().to_string()).expect(2).stderr.contains("another pipeline"));
}

#[test]
fn a_workers_name_does_not_steer_a_terminal() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    let evil = "\u{1b}]0;pwned\u{7}\u{1b}[2J";
    // Workers and agents that speak HTTP cannot have such a name at all.
    let worker = HandWorker::unregistered(&server, 'e', None, "default");
    for field in ["name", "process", "queues", "labels"] {
        let mut new = json!({ "id": 1, "name": "n", "process": "", "queues": "default", "labels": "", "slots": 1, "lease_ms": 60_000 });
        new[field] = evil.into();
        worker.post("register", &new).problem(422, "invalid");
    }
    server.post("/v1/tasks/claim", &json!({ "name": evil, "queues": ["q"] })).problem(422, "invalid");
    let told = server.call("worker_register", &json!({ "name": evil }));
    assert_eq!(told["error"], "invalid", "{told}");
    // One of the same user may, and is shown without its escapes.
    let worker = sandbox.start(["worker", "--name", evil]);
    let run = server.run("steps:\n  - id: a\n    run: sleep 60\n");
    sandbox.until_step(&run, "a", "running");
    for args in [&["explain", &run][..], &["status", &run], &["worker", "ls"], &["doctor"]] {
        let told = sandbox.sprag(args.iter().copied());
        assert!(
            !told.stdout.contains('\u{1b}') && !told.stdout.contains('\u{7}'),
            "{args:?}: {:?}",
            told.stdout
        );
    }
    assert!(sandbox.sprag(["explain", &run]).expect(0).stdout.contains("pwned"), "it is shown");
    sandbox.sprag(["cancel", &run]).expect(0);
    server.until(&run, "cancelled");
    worker.signal(Signal::TERM);
    worker.finish().expect(0);
}

#[test]
fn e04_an_agent_reads_no_file_by_calling_it_a_pipeline() {
    let sandbox = Sandbox::new();
    let project = sandbox.path("project");
    std::fs::create_dir(&project).expect("a folder");
    std::fs::write(project.join("good.yaml"), "steps:\n  - id: a\n    run: 'true'\n").expect("a file");
    let secret = "password: of the database";
    let outside = sandbox.write("secret.yaml", secret);
    let plain = sandbox.write("project/notes.txt", secret);
    std::os::unix::fs::symlink(&outside, project.join("link.yaml")).expect("a link");
    std::os::unix::fs::symlink(&plain, project.join("text.yaml")).expect("a link");
    // The project's own pipelines name others, and may be links.
    let own = project.join(".sprag/pipelines");
    std::fs::create_dir_all(&own).expect("a folder");
    let naming = |name: &str, file: &str| {
        let text = format!("steps:\n  - {{ id: a, pipeline: '{file}' }}\n");
        std::fs::write(own.join(name), text).expect("a file");
    };
    naming("up.yaml", "../../../secret.yaml");
    naming("link.yaml", "../../link.yaml");
    naming("text.yaml", "../../notes.txt");
    naming("system.yaml", "/etc/passwd");
    naming("nephew.yaml", "up.yaml");
    naming("none.yaml", "../../../none.yaml");
    std::os::unix::fs::symlink(&outside, own.join("own-link.yaml")).expect("a link");
    naming("fine.yaml", "../../good.yaml");
    let server = Server::start(&sandbox, &["--no-worker", "--project", &project.display().to_string()]);
    let start = |wanted: Value| server.call("run_start", &wanted);
    let outside = outside.display().to_string();
    let listed = server.get("/v1/pipelines");
    let mut names = Vec::new();
    for one in listed["pipelines"].as_array().expect("pipelines") {
        let name = one["name"].as_str().expect("a name");
        assert_eq!(one["valid"], name == "fine", "{listed}");
        names.push(name.to_owned());
    }
    assert_eq!(names.len(), 8, "{listed}");
    for name in names.iter().filter(|name| *name != "fine") {
        let told = server.post("/v1/runs", &json!({ "pipeline": name })).expect(422).text();
        let shown = format!("{told}{}", start(json!({ "file": format!(".sprag/pipelines/{name}.yaml") })));
        assert!(shown.contains("there is no such .yaml file below"), "{name}: {shown}");
        assert!(!shown.contains("password") && !shown.contains("root:"), "{name}: {shown}");
    }
    server.post("/v1/runs", &json!({ "pipeline": "fine" })).expect(201);
    for wanted in [
        json!({ "file": outside }),
        json!({ "file": "../secret.yaml" }),
        json!({ "file": "secret.yaml", "dir": sandbox.path("").display().to_string() }),
        json!({ "file": "link.yaml" }),
        json!({ "file": "text.yaml" }),
        json!({ "file": "notes.txt" }),
        json!({ "file": "/etc/passwd" }),
    ] {
        let told = start(wanted.clone());
        assert_eq!(told["error"], "invalid", "{wanted}: {told}");
        assert!(!told.to_string().contains("password") && !told.to_string().contains("root:"), "{told}");
    }
    let absolute = project.join("good.yaml").display().to_string();
    for file in ["good.yaml", &absolute] {
        let told = start(json!({ "file": file }));
        assert!(told["run"].is_string(), "{told}");
    }
}

#[test]
fn e04_hooks_are_not_sent_to_link_local_or_private_addresses() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker", "--hook-tries", "1"]);
    let add = |server: &Server, url: &str| server.post("/v1/hooks", &json!({ "url": url }));
    for url in [
        "http://169.254.169.254/latest",
        "http://[fe80::1]/",
        "http://[::ffff:169.254.169.254]/",
        "http://0.0.0.0/",
    ] {
        add(&server, url).problem(422, "invalid");
    }
    let told = add(&server, "http://10.255.255.1:9/").problem(422, "invalid");
    assert!(told["message"].to_string().contains("--allow-private-hooks"), "{told}");
    add(&server, "http://127.0.0.1:9/").expect(201);
    // A name, or a number that a resolver takes for an address, is looked at when it is sent.
    let hook =
        add(&server, "http://2852039166:9/").expect(201).json()["id"].as_str().expect("an id").to_owned();
    server.run("steps:\n  - id: a\n    run: 'true'\n");
    until("it is parked", || !server.get(&format!("/v1/hooks/{hook}"))["parked"].is_null());
    let error = server.get(&format!("/v1/hooks/{hook}"))["error"].to_string();
    assert!(error.contains("link-local") || error.contains("cannot resolve"), "{error}");
    drop(server);
    let server = Server::start(&sandbox, &["--no-worker", "--allow-private-hooks"]);
    add(&server, "http://169.254.169.254/").problem(422, "invalid");
    add(&server, "http://10.255.255.1:9/").expect(201);
}
