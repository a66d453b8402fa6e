//! Points that a second look at the first hour found: names of items and workers, sources of settings, exit codes,
//! pipelines of several files on a server, several runs at one terminal.

use serde_json::{Value, json};
use sprag_tests::{Project, Sandbox, Server, until};

const FRUIT: &str =
    "steps:\n  - id: each\n    foreach: [apple, banana]\n    run: 'test {{ item }} = apple'\n";

#[test]
fn items_of_a_fan_out_are_named_by_their_values() {
    let sandbox = Sandbox::new();
    sandbox.yaml("fruit", FRUIT);
    let told = sandbox.sprag(["run", "fruit.yaml"]).expect(100).stderr;
    assert!(told.contains("✓ each[0] (apple) "), "{told}");
    let end = told.split("\nfailed in ").nth(1).expect("an end");
    assert!(end.contains("✗ each[1] (banana) failed: exit code 1\n"), "{end}");
    let run = sandbox.newest().expect("a run");
    assert_eq!(sandbox.step(&run, "each[1]")["item"], "banana");
    assert_eq!(sandbox.step(&run, "each").get("item"), None);
    let failed = &sandbox.json(["explain", &run, "--json"])["failed"][0];
    assert_eq!((&failed["step"], &failed["item"]), (&"each[1]".into(), &"banana".into()));
    let server = Server::start(&sandbox, &[]);
    let url = format!("http://{}", server.addr);
    for at in [&[][..], &["--server", &url]] {
        let status = sandbox.sprag([&["status", &run], at].concat()).expect(0).stdout;
        assert!(status.contains("✗ each[1] (banana)  failed"), "{status}");
        let why = sandbox.sprag([&["explain", &run], at].concat()).expect(0).stdout;
        assert!(why.contains("✗ each[1] (banana) failed: exit code 1\n"), "{why}");
    }
    let told = sandbox.sprag(["run", "fruit.yaml", "--server", &url]).expect(100).stderr;
    assert!(told.contains("\n✗ each[1] (banana) failed: exit code 1\n"), "{told}");
    assert!(told.contains(&format!("--failed --server {url} · sprag retry ")), "{told}");
    // Of a combination, the values are enough; an item that waits is named too.
    sandbox.yaml(
        "matrix",
        "steps:\n  - id: test\n    matrix: { os: [linux], rust: ['1.80'] }\n    task: { prompt: Look. }\n",
    );
    let run = sandbox.detach(&sandbox.path("matrix.yaml"));
    let why = sandbox.sprag(["explain", &run]).expect(0).stdout;
    assert!(why.contains("test[0] (linux, 1.80) ("), "{why}");
}

#[test]
fn events_show_the_names_of_workers() {
    let sandbox = Sandbox::new();
    sandbox.yaml("one", "steps:\n  - { id: only, run: echo }\n");
    sandbox.detach(&sandbox.path("one.yaml"));
    sandbox.sprag(["worker", "--until-idle", "--name", "w1"]).expect(0);
    let people = sandbox.sprag(["events"]).expect(0).stdout;
    let line = people.lines().find(|line| line.contains("worker.left")).expect("its end");
    assert!(line.ends_with(" w1"), "{line}");
    let all: Vec<Value> = sandbox.sprag(["events", "--json"]).expect(0).lines();
    let of_worker = all.iter().find(|entry| entry["event"] == "worker.left").expect("its end");
    assert_eq!(of_worker["name"], "w1", "{of_worker}");
    assert!(of_worker["id"].as_str().is_some_and(|id| id.parse::<i64>().is_ok()), "{of_worker}");
}

#[test]
fn a_run_without_a_worktree_has_nothing_to_show_in_every_command() {
    let sandbox = Sandbox::new();
    sandbox.yaml("one", "steps:\n  - { id: only, run: echo }\n");
    let run = sandbox.run(&["one.yaml"], 0);
    let server = Server::start(&sandbox, &[]);
    let url = format!("http://{}", server.addr);
    for args in [&["diff", &run][..], &["env", "show", &run], &["env", "rm", &run]] {
        sandbox.sprag(args).expect(4);
    }
    let told = sandbox.sprag(["diff", &run, "--server", &url]).expect(4).stderr;
    assert!(told.contains("has no worktree"), "{told}");
}

#[test]
fn config_names_the_source_of_each_setting() {
    let sandbox = Sandbox::new();
    sandbox.write("config/sprag/config.toml", "store = \"postgres://ada:hush@host/db\"\nslots = 2\n");
    let sprag = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = sandbox.command(args);
        command.env("XDG_CONFIG_HOME", sandbox.path("config")).envs(variables.iter().copied());
        sandbox.start_command(command).finish().expect(0)
    };
    let of = |told: &Value, key: &str| {
        let one = told.as_array().expect("a list").iter().find(|one| one["key"] == key);
        let one = one.expect("a key").clone();
        (one["value"].clone(), one["source"].as_str().expect("a source").to_owned())
    };
    let told = sprag(&["config", "--json"], &[]).json();
    let file = sandbox.path("config/sprag/config.toml").display().to_string();
    assert_eq!(of(&told, "data"), (json!(sandbox.data()), "SPRAG_DATA".to_owned()));
    assert_eq!(of(&told, "store"), (json!("postgres://ada:…@host/db"), file.clone()));
    assert_eq!(of(&told, "slots"), (json!(2), file.clone()));
    assert_eq!(of(&told, "color"), (json!("auto"), "default".to_owned()));
    assert_eq!(of(&told, "input"), (json!(true), "default".to_owned()));
    let data = sandbox.path("given").display().to_string();
    let args = ["config", "--json", "--data", &data, "--color", "never", "--no-input"];
    let told = sprag(&args, &[("SPRAG_STORE", "postgres://bo:hush@host/db")]).json();
    assert_eq!(of(&told, "data"), (json!(data), "--data".to_owned()));
    let store = (json!("postgres://bo:…@host/db"), "--store or SPRAG_STORE".to_owned());
    assert_eq!(of(&told, "store"), store);
    assert_eq!(of(&told, "color"), (json!("never"), "--color".to_owned()));
    assert_eq!(of(&told, "input"), (json!(false), "--no-input".to_owned()));
    let people = sprag(&["config"], &[]).stdout;
    assert!(people.starts_with("KEY    VALUE") && people.contains("  SPRAG_DATA\n"), "{people}");
    assert!(!people.contains("hush"), "{people}");
}

#[test]
fn each_v_logs_more() {
    let sandbox = Sandbox::new();
    sandbox.yaml("one", "steps:\n  - { id: only, run: echo }\n");
    let of = |option: &str| sandbox.sprag(["run", "one.yaml", option]).expect(0).stderr;
    let (some, more) = (of("-v"), of("-vv"));
    assert!(some.contains("starts a step") && !some.contains("DEBUG"), "{some}");
    for words in ["starts a step", "starts the command under a supervisor", "reports the end of a step"] {
        assert!(more.contains(words), "{words}: {more}");
    }
}

#[test]
fn a_pipeline_is_sent_to_a_server_with_the_files_that_it_refers_to() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let url = format!("http://{}", server.addr);
    let out = sandbox.path("out").display().to_string();
    sandbox.write(
        "p/child.yaml",
        "steps:\n  - { id: below, pipeline: { file: ../shared/leaf.yaml, inputs: { word: leaf } } }\n",
    );
    let leaf = format!(
        "inputs: {{ word: string }}\nsteps:\n  - {{ id: say, run: 'echo {{{{ inputs.word }}}} >> {out}' }}\n"
    );
    sandbox.write("shared/leaf.yaml", &leaf);
    sandbox.write("p/prompt.md", "Look at it.");
    sandbox.write(
        "p/parent.yaml",
        "steps:\n  - { id: one, pipeline: child.yaml }\n\
         \x20 - { id: two, pipeline: { name: second } }\n\
         \x20 - { id: never, when: 'false', agent: { use: claude, prompt_file: prompt.md, permissions: ask } }\n\
         ---\nname: second\nsteps:\n  - { id: a, pipeline: { file: ../shared/leaf.yaml, inputs: { word: second } } }\n",
    );
    let told = sandbox.sprag(["run", "p/parent.yaml", "--server", &url]).expect(0);
    assert!(told.stderr.contains("✓ one") && told.stderr.contains("✓ two"), "{told:?}");
    assert_eq!(sandbox.lines("out"), ["leaf", "second"]);
    // Texts are data: the server reads no file for them, and refuses what does not fit together.
    let parent = "steps:\n  - { id: one, pipeline: child.yaml }\n";
    let start = |body: Value| server.post("/v1/runs", &body);
    for (body, words) in [
        (json!({ "yaml": parent, "files": { "other.yaml": leaf } }), "was not sent with its pipeline"),
        (json!({ "yaml": parent, "files": { "./x/../child.yaml": parent } }), "it contains itself"),
        (json!({ "pipeline": "ci", "files": { "child.yaml": leaf } }), "only `yaml` can have them"),
        (json!({ "yaml": parent }), "was not read from a file"),
    ] {
        let answer = start(body);
        assert_eq!(answer.status, 422, "{}", answer.text());
        assert!(answer.text().contains(words), "{words}: {}", answer.text());
    }
}

#[test]
fn runs_in_the_background_of_a_terminal_draw_no_progress() {
    let sandbox = Sandbox::new();
    sandbox.yaml("nap", "steps:\n  - { id: nap, run: 'echo begun; until [ -e go ]; do sleep 0.02; done' }\n");
    let lines = "for no in 1 2 3; do sprag run nap.yaml & done; wait";
    let terminal = sandbox.bash_on_terminal(1, &sandbox.path(""), lines);
    until("all have begun", || terminal.shown().matches("begun\n").count() == 3);
    // A run in the foreground draws its line meanwhile.
    let watching = sandbox.on_terminal(2, ["run", "nap.yaml"]);
    watching.shows("0/1  nap");
    sandbox.write("go", "");
    let (code, shown) = terminal.finish();
    assert_eq!((code, shown.matches("completed").count()), (0, 3), "{shown}");
    assert!(!shown.contains("0/1  nap") && !shown.contains("\u{1b}[2K"), "{shown:?}");
    assert_eq!(watching.finish().0, 0);
}

#[test]
fn every_choice_but_the_last_lets_the_run_continue() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "gate",
        "steps:\n  - { id: ask, gate: { ask: 'Where?', choices: [canary, all, hold] } }\n  - { id: ship, run: 'echo {{ steps.ask.outputs.choice }} >> shipped' }\n",
    );
    let answered = |no: u32, choice: &str, comment: &str| {
        let mut terminal = sandbox.on_terminal(no, ["run", "gate.yaml"]);
        terminal.shows("(Ctrl-C leaves it open): ");
        terminal.types(&format!("{choice}\n"));
        terminal.shows("comment (optional): ");
        terminal.types(&format!("{comment}\n"));
        terminal.finish()
    };
    let (code, shown) = answered(1, "2", "");
    assert_eq!((code, sandbox.lines("shipped")), (0, vec!["all".to_owned()]), "{shown}");
    let (code, shown) = answered(2, "hold", "not on a Friday");
    assert_eq!(code, 100, "{shown}");
    assert!(shown.contains("ask failed: it was answered \"hold\": not on a Friday"), "{shown}");
    let why = sandbox.sprag(["explain"]).expect(0).stdout;
    assert!(why.contains("it was answered \"hold\": not on a Friday"), "{why}");
}

#[test]
fn typos_get_the_nearest_word_and_numbers_a_plain_answer() {
    let project = Project::new();
    let sandbox = &project.sandbox;
    sandbox.yaml("ok", "steps:\n  - { id: greet, run: echo }\n  - { id: look, run: echo }\n");
    let run = sandbox.run(&["ok.yaml"], 0);
    for (args, words) in [
        (&["rn"][..], "'run'"),
        (&["board", "nw"], "'new'"),
        (&["task", "clam"], "'claim'"),
        (&["logs", &run, "gret"], "did you mean \"greet\"? its steps are: greet, look"),
        (&["events", "--since", "x"], "next: write a whole number"),
        (&["delivery", "show", "x"], "next: write a whole number"),
        (&["ls", "-n", "0"], "write a whole number above 0"),
        (&["board", "show", "nosuch"], "`sprag board ls` lists the boards"),
    ] {
        let told = sandbox.sprag(args).expect(2).stderr;
        assert!(told.contains(words), "{args:?}: {told}");
    }
    let told = sandbox.sprag(["queue", "hold", "defualt"]).expect(0);
    assert!(told.stderr.contains("queue defualt is new"), "{told:?}");
    assert!(!sandbox.sprag(["queue", "release", "defualt"]).expect(0).stderr.contains("is new"));
}

#[test]
fn a_new_folder_for_data_is_closed_without_a_word() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("new")).expect("a folder");
    let folder = sandbox.path("new").display().to_string();
    let told = sandbox.sprag(["ls", "--data", &folder]).expect(0);
    assert!(!told.stderr.contains("other users"), "{told:?}");
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(sandbox.path("new")).expect("a folder").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    // A folder with data in it was readable: its user should know.
    std::fs::set_permissions(sandbox.path("new"), std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let told = sandbox.sprag(["ls", "--data", &folder]).expect(0);
    assert!(told.stderr.contains("other users could read"), "{told:?}");
}

#[test]
fn watching_ends_on_a_line_of_its_own() {
    let sandbox = Sandbox::new();
    let mut terminal = sandbox.on_echoing_terminal(1, ["watch"]);
    terminal.shows("no live runs");
    terminal.types("\u{3}");
    let (code, shown) = terminal.finish();
    assert_eq!(code, 0, "{shown}");
    let after = shown.rsplit("^C").next().expect("a rest");
    assert!(shown.contains("^C") && after.ends_with('\n'), "{shown:?}");
}

#[test]
fn a_resumed_run_counts_the_steps_that_are_done() {
    let sandbox = Sandbox::new();
    sandbox.pipeline(
        "two",
        &[("one", "run: echo"), ("two", "run: '[ -e go ] || exit 1; until [ -e on ]; do sleep 0.02; done'")],
    );
    sandbox.sprag(["run", "two.yaml"]).expect(100);
    sandbox.write("go", "");
    let terminal = sandbox.on_terminal(1, ["resume"]);
    terminal.shows("1/2  two ");
    sandbox.write("on", "");
    let (code, shown) = terminal.finish();
    assert_eq!(code, 0, "{shown}");
    assert!(!shown.contains("0/2"), "{shown:?}");
}
