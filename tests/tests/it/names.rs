//! Runs, boards and pipelines by a part of their name; suggestions for close ones only; settings and manuals.

use sprag_tests::Sandbox;

#[test]
fn a_run_is_named_by_the_start_or_the_end_of_its_id_or_by_its_board() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("ok", &[("a", "run: echo a")]);
    let run = sandbox.run(&["ok.yaml"], 0);
    for part in [&run[..11], &run[3..], &run.to_uppercase()] {
        assert_eq!(sandbox.status(part)["id"], run.as_str(), "{part}");
    }
    sandbox.sprag(["board", "new", "release"]).expect(0);
    assert_eq!(sandbox.status("release")["pipeline"], "release");
    sandbox.sprag(["cancel", "release"]).expect(0);
    let named = sandbox.run(&["ok.yaml", "--name", "nightly"], 0);
    assert_eq!(sandbox.status("nightly")["id"], named.as_str());
    let told = sandbox.sprag(["status", "zzzz"]).expect(2).stderr;
    assert!(!told.contains("did you mean") && told.contains("sprag ls"), "{told}");
    let mut wrong = run.clone();
    wrong.replace_range(5..6, if &run[5..6] == "z" { "y" } else { "z" });
    let told = sandbox.sprag(["status", &wrong]).expect(2).stderr;
    assert!(told.contains(&format!("did you mean {run} (ok, completed)?")), "{told}");
}

#[test]
fn a_pipeline_is_named_by_its_file_name() {
    let sandbox = Sandbox::new();
    let none = sandbox.sprag(["run"]).expect(2).stderr;
    assert!(none.contains("sprag init"), "{none}");
    std::fs::create_dir_all(sandbox.path(".sprag/pipelines/deep")).expect("a folder");
    sandbox.write(
        ".sprag/pipelines/ci.yaml",
        "inputs: { n: { type: integer, default: 1 } }\nsteps:\n  - { id: a, run: echo ci >> ran }\n",
    );
    sandbox.write(".sprag/pipelines/broken.yaml", "steps: []\n");
    let listed = sandbox.sprag(["run"]).expect(0).stdout;
    assert!(listed.contains("ci") && listed.contains("1 step, inputs: n?"), "{listed}");
    assert!(listed.contains("sprag validate broken"), "{listed}");
    let all = sandbox.json(["run", "--json"]);
    assert_eq!(
        (&all[0]["name"], &all[0]["valid"], &all[1]["name"]),
        (&"broken".into(), &false.into(), &"ci".into())
    );
    sandbox.sprag(["run", "ci"]).expect(0);
    let mut below = sandbox.command(["run", "ci"]);
    below.current_dir(sandbox.path(".sprag/pipelines/deep"));
    sandbox.start_command(below).finish().expect(0);
    let wrong = sandbox.sprag(["run", "cj"]).expect(2).stderr;
    assert!(wrong.contains("did you mean `ci`?"), "{wrong}");
    sandbox.sprag(["validate", "ci"]).expect(0);
    assert_eq!(sandbox.json(["graph", "ci", "--json"])["pipeline"], "ci");
    let mut piped = sandbox.command(["run", "-"]);
    piped.stdin(std::fs::File::open(sandbox.path(".sprag/pipelines/ci.yaml")).expect("a file"));
    sandbox.start_command(piped).finish().expect(0);
    assert_eq!(sandbox.lines("ran").len() + sandbox.lines(".sprag/pipelines/deep/ran").len(), 3);
}

#[test]
fn a_hook_for_an_event_that_does_not_exist_is_refused() {
    let sandbox = Sandbox::new();
    let add = |option: &str, word: &str| sandbox.sprag(["hook", "add", "http://127.0.0.1:9/", option, word]);
    let told = add("--event", "run.suceeded").expect(2).stderr;
    assert!(told.contains("did you mean \"run.succeeded\"?"), "{told}");
    let told = add("--event", "run.failed").expect(2).stderr;
    assert!(told.contains("run.succeeded") && told.contains("failure.settled"), "{told}");
    add("--entity", "runs").expect(2);
    assert_eq!(sandbox.json(["hook", "ls", "--json"]), serde_json::json!([]));
    for event in ["run.succeeded", "run.created", "gate.opened", "worker.registered"] {
        add("--event", event).expect(0);
    }
}

#[test]
fn settings_are_read_from_the_users_and_the_projects_file() {
    let sandbox = Sandbox::new();
    std::fs::create_dir_all(sandbox.path("config/sprag")).expect("a folder");
    std::fs::create_dir_all(sandbox.path(".sprag")).expect("a folder");
    let sprag = |args: &[&str]| {
        let mut command = sandbox.command(args);
        command.env("XDG_CONFIG_HOME", sandbox.path("config")).env_remove("SPRAG_DATA");
        sandbox.start_command(command).finish()
    };
    let data = sandbox.path("elsewhere");
    sandbox.write("config/sprag/config.toml", &format!("# mine\ndata = \"{}\"\nslots = 2\n", data.display()));
    sandbox.write(".sprag/config.toml", "slots = 3\ncolor = \"never\"\n");
    let told = sprag(&["config", "--json"]).expect(0).json();
    let of = |key: &str| {
        told.as_array().expect("a list").iter().find(|one| one["key"] == key).expect("a key").clone()
    };
    assert_eq!((&of("slots")["value"], &of("color")["value"]), (&3.into(), &"never".into()));
    assert_eq!(of("data")["value"], data.to_str().expect("a path"));
    assert!(sprag(&["config"]).expect(0).stdout.contains("slots"));
    sandbox.pipeline("ok", &[("a", "run: echo a")]);
    sprag(&["run", "ok.yaml"]).expect(0);
    assert!(data.join("sprag.db").exists(), "the data directory of the file is used");
    for (wrong, words) in [
        ("slot = 3\n", "did you mean \"slots\"?"),
        ("store = \"postgres://x/y\"\n", "a project cannot set \"store\""),
        ("slots = \"many\"\n", "slots must be a number"),
    ] {
        sandbox.write(".sprag/config.toml", wrong);
        let told = sprag(&["ls"]).expect(2).stderr;
        assert!(told.contains(words) && told.contains("config.toml:1"), "{told}");
    }
}

#[test]
fn man_pages_and_completions_are_written_as_files() {
    let sandbox = Sandbox::new();
    let written = sandbox.json(["manual", "share", "--json"]);
    assert!(written.as_array().is_some_and(|files| files.len() > 30), "{written}");
    let page = sandbox.read("share/man/man1/sprag-run.1");
    assert!(page.starts_with(".TH SPRAG\\-RUN 1") && page.contains("\\-\\-detach"), "{page}");
    for file in [
        "bash-completion/completions/sprag",
        "zsh/site-functions/_sprag",
        "fish/vendor_completions.d/sprag.fish",
    ] {
        assert!(sandbox.read(&format!("share/{file}")).contains("sprag"), "{file}");
    }
}

#[test]
fn times_have_a_zone_and_another_year() {
    let sandbox = Sandbox::new();
    sandbox.yaml("waits", "steps:\n  - { id: nap, wait: { until: '2031-01-31T03:00:00Z' } }\n");
    let run = sandbox.detach(&sandbox.path("waits.yaml"));
    let sprag = |args: &[&str]| {
        let mut command = sandbox.command(args);
        command.env("TZ", "UTC");
        sandbox.start_command(command).finish().expect(0).stdout
    };
    let told = sprag(&["explain", &run]);
    assert!(told.contains("until      2031-01-31 03:00:00 UTC"), "{told}");
    assert!(sprag(&["ls"]).contains(" UTC"));
}

#[test]
fn commands_that_look_and_start_work_against_a_server() {
    let sandbox = Sandbox::new();
    let server = sprag_tests::Server::start(&sandbox, &[]);
    let url = format!("http://{}", server.addr);
    sandbox.yaml(
        "hello",
        "inputs: { who: string }\nsteps:\n  - { id: greet, run: 'echo hello {{ inputs.who }}' }\n",
    );
    sandbox.yaml("asks", "steps:\n  - { id: ask, gate: { ask: 'Really?' } }\n");
    let at = |args: &[&str]| sandbox.sprag([args, &["--server", &url]].concat());
    let told = at(&["run", "hello.yaml", "-i", "who=ada"]).expect(0);
    assert_eq!(told.stdout, "hello ada\n", "{told:?}");
    let listed = at(&["ls", "--json"]).expect(0).json();
    assert_eq!((&listed[0]["pipeline"], &listed[0]["status"]), (&"hello".into(), &"completed".into()));
    let run = listed[0]["id"].as_str().expect("an id").to_owned();
    assert!(at(&["status", &run[..10]]).expect(0).stdout.contains("✓ greet"));
    assert_eq!(at(&["logs", &run, "greet"]).expect(0).stdout, "hello ada\n");
    assert!(at(&["events", "--run", &run]).expect(0).stdout.contains("run.succeeded"));
    at(&["run", "asks.yaml"]).expect(5);
    assert!(at(&["questions"]).expect(0).stdout.contains("Really?"));
    let asks = at(&["ls", "--waiting=person", "--json"]).expect(0).json()[0]["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    assert!(at(&["explain", &asks]).expect(0).stdout.contains("Really?"));
    at(&["approve", &asks]).expect(0);
    at(&["wait", &asks, "--timeout", "30s"]).expect(0);
    at(&["cancel", &asks]).expect(4);
    at(&["status", "nosuchrun"]).expect(2);
    let told = at(&["ls", "--token", "wrong"]).expect(1).stderr;
    assert!(told.contains("--token"), "{told}");
}
