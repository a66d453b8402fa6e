//! Common mistakes of users: the message names the place and the remedy, and nothing is lost.

use std::fs::File;

use sprag_tests::{Answer, Sandbox, now_ms};

/// Runs a file that must be refused: code 2, these words, and no run.
#[track_caller]
fn refused(sandbox: &Sandbox, file: &str, words: &[&str]) -> Answer {
    let told = sandbox.sprag(["run", file]).expect(2);
    for word in words {
        assert!(told.stderr.contains(word), "{word:?} is missing:\n{}", told.stderr);
    }
    assert!(!told.stderr.contains('\x1b'), "nothing from outside reaches the terminal: {:?}", told.stderr);
    assert!(!sandbox.data().exists(), "nothing was made");
    sandbox.sprag(["validate", file]).expect(2);
    told
}

#[track_caller]
fn refused_text(text: &str, words: &[&str]) -> Answer {
    let sandbox = Sandbox::new();
    sandbox.write("bad.yaml", text);
    refused(&sandbox, "bad.yaml", words)
}

#[test]
fn files_that_cannot_be_read() {
    let sandbox = Sandbox::new();
    refused(&sandbox, "missing.yaml", &["missing.yaml"]);
    refused(&sandbox, ".", &["."]);
    std::fs::write(sandbox.path("binary.yaml"), [0xff, 0xfe, 0x00, 0x80]).expect("a file");
    refused(&sandbox, "binary.yaml", &["binary.yaml", "UTF-8"]);
}

#[test]
fn files_that_are_no_pipeline() {
    refused_text("steps: [", &["bad.yaml:1"]);
    refused_text("steps:\n  - id: a\n\trun: echo\n", &["bad.yaml"]);
    refused_text("", &["steps"]);
    refused_text("- a\n- b\n", &["bad.yaml"]);
    refused_text("steps: []\n", &["bad.yaml:1", "step"]);
    refused_text("name: x\n", &["steps"]);
}

#[test]
fn unknown_keys_and_names_are_reported() {
    refused_text("steps:\n  - id: a\n    rum: echo\n", &["bad.yaml:3:5", "rum", "run"]);
    refused_text(
        "steps:\n  - id: build\n    run: echo\n  - id: b\n    needs: [biuld]\n    run: echo\n",
        &["bad.yaml:5", "biuld", "build"],
    );
    refused_text(
        "steps:\n  - id: a\n    run: echo\n  - id: a\n    run: echo\n",
        &["bad.yaml:4", "`a`", "line 2"],
    );
    refused_text(
        "steps:\n  - id: a\n    needs: [b]\n    run: echo\n  - id: b\n    needs: [a]\n    run: echo\n",
        &["bad.yaml:3", "a → b → a", "remove one"],
    );
    refused_text("steps:\n  - id: a\n    agent: x\n", &["bad.yaml:3"]);
}

#[test]
fn ids_that_would_leave_their_folder() {
    for id in ["../up", "a/b", "..", "/etc/passwd", ".hidden/../x"] {
        refused_text(&format!("steps:\n  - id: {id:?}\n    run: echo\n"), &["bad.yaml:2"]);
    }
    refused_text("name: ../../etc\nsteps:\n  - id: a\n    run: echo\n", &["bad.yaml:1"]);
}

#[test]
fn control_characters_are_neither_taken_nor_shown() {
    refused_text("steps:\n  - id: \"a\\e[2Jb\"\n    run: echo\n", &["bad.yaml:2"]);
    refused_text("name: \"x\\ny\"\nsteps:\n  - id: a\n    run: echo\n", &["bad.yaml:1"]);
    refused_text("steps:\n  - id: a\n    run: echo\n    \"\\e[31mkey\": 1\n", &["bad.yaml:4"]);
    let sandbox = Sandbox::new();
    let told = sandbox.sprag(["run", "\x1b[31mno.yaml"]).expect(2);
    assert!(!told.stderr.contains('\x1b'), "{told:?}");
    let told = sandbox.sprag(["status", "\x1b[31mrun"]).expect(2);
    assert!(!told.stderr.contains('\x1b'), "{told:?}");
}

#[test]
fn a_file_of_a_hundred_megabytes_is_refused_fast_and_in_little_memory() {
    let sandbox = Sandbox::new();
    let file = File::create(sandbox.path("huge.yaml")).expect("a file");
    file.set_len(100 << 20).expect("a sparse file");
    let began_ms = now_ms();
    refused(&sandbox, "huge.yaml", &["huge.yaml", "1 MiB"]);
    assert!(now_ms() - began_ms < 10_000);
    // The same with no more address space than a small program needs.
    let sprag = sprag_tests::program();
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -v 131072; exec \"$0\" validate huge.yaml"]).arg(sprag);
    limited.current_dir(sandbox.path(""));
    sandbox.start_command(limited).finish().expect(2);
}

#[test]
fn alias_bombs_are_refused_fast() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for no in 1..20 {
        let row = vec![format!("*a{}", no - 1); 10].join(", ");
        text += &format!("a{no}: &a{no} [{row}]\n");
    }
    text += "steps: *a19\n";
    let began_ms = now_ms();
    refused_text(&text, &["bad.yaml:"]);
    let deep = format!("steps: {}{}\n", "[".repeat(20_000), "]".repeat(20_000));
    refused_text(&deep, &["bad.yaml:"]);
    assert!(now_ms() - began_ms < 20_000);
}

#[test]
fn a_command_that_is_not_there_fails_its_step_with_the_reason() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("none", &[("a", "run: [no-such-program, x]\nretry: { attempts: 3 }")]);
    let told = sandbox.sprag(["run", "none.yaml"]).expect(100);
    assert!(told.stderr.contains("no-such-program"), "{told:?}");
    let run = sandbox.newest().expect("a run");
    assert_eq!(sandbox.status(&run)["steps"][0]["attempt"], 1, "another try would find it no more");
    assert!(sandbox.sprag(["status"]).expect(0).stdout.contains("no-such-program"));
    sandbox.check(&run);
}

#[test]
fn a_working_folder_that_is_not_there_fails_its_step_with_the_reason() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("nowhere", &[("a", "dir: not/there\nrun: echo")]);
    let told = sandbox.sprag(["run", "nowhere.yaml"]).expect(100);
    assert!(told.stderr.contains("not/there"), "{told:?}");
    sandbox.write("mend", "");
    std::fs::create_dir_all(sandbox.path("not/there")).expect("a folder");
    sandbox.sprag(["resume"]).expect(0);
}

#[test]
fn a_data_folder_that_cannot_be_used() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("ok", &[("a", "run: echo ran >> ran")]);
    sandbox.write("file", "mine");
    for data in ["file", "file/below", "/proc/nowhere"] {
        for command in [vec!["run", "ok.yaml"], vec!["ls"], vec!["worker", "--until-idle"]] {
            let args = command.iter().copied().chain(["--data", data]);
            let told = sandbox.sprag(args).expect(1);
            assert!(told.stderr.contains(data) && told.stderr.contains("--data"), "{told:?}");
        }
        assert_eq!(sandbox.sprag(["doctor", "--data", data]).expect(1).code, 1);
    }
    assert_eq!((sandbox.read("file"), sandbox.read("ran")), ("mine".into(), String::new()));
}

#[test]
fn a_file_that_is_not_a_database_stays_unchanged() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("ok", &[("a", "run: echo")]);
    sandbox.sprag(["run", "ok.yaml"]).expect(0);
    let database = std::fs::read_dir(sandbox.data())
        .expect("a folder")
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|ending| ending == "db"))
        .expect("a database");
    let other = sandbox.path("other");
    std::fs::create_dir(&other).expect("a folder");
    let copy = other.join(database.file_name().expect("a name"));
    std::fs::write(&copy, "not a database, but somebody's words\n".repeat(300)).expect("a file");
    let told = sandbox.sprag(["ls", "--data", "other"]).expect(1);
    assert!(told.stderr.contains("other") && told.stderr.contains("nothing was changed"), "{told:?}");
    assert!(std::fs::read_to_string(&copy).expect("a file").starts_with("not a database"));
}

#[test]
fn a_run_that_is_not_there_is_answered_with_the_nearest() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("ok", &[("a", "run: echo")]);
    sandbox.sprag(["run", "ok.yaml"]).expect(0);
    let run = sandbox.newest().expect("a run");
    let mut wrong = run.clone();
    wrong.replace_range(0..1, if run.starts_with('z') { "y" } else { "z" });
    for command in ["status", "logs", "wait", "cancel", "retry", "resume", "explain"] {
        let told = sandbox.sprag([command, &wrong]).expect(2);
        assert!(told.stderr.contains(&wrong) && told.stderr.contains(&run), "{command}: {told:?}");
    }
    let told = sandbox.sprag(["events", "--run", &wrong]).expect(2);
    assert!(told.stderr.contains(&run), "{told:?}");
    let before = sandbox.journal(None).entries.len();
    sandbox.sprag(["cancel", &wrong]).expect(2);
    assert_eq!(sandbox.journal(None).entries.len(), before);
}

#[test]
fn options_that_make_no_sense() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("ok", &[("a", "run: echo")]);
    for wrong in [
        vec!["run", "ok.yaml", "--slots", "0"],
        vec!["run", "ok.yaml", "--slots", "many"],
        vec!["worker", "--slots", "0"],
        vec!["events", "--since", "-1"],
        vec!["run", "ok.yaml", "--input", "nothing=1"],
        vec!["run", "ok.yaml", "--lease", "1s"],
        vec!["worker", "--lease", "soon"],
    ] {
        let told = sandbox.sprag(&wrong).expect(2);
        assert!(!told.stderr.is_empty());
    }
    assert!(!sandbox.data().exists(), "nothing was made");
}

#[test]
fn a_damaged_run_is_listed_as_such_beside_the_others() {
    let sandbox = Sandbox::new();
    sandbox.yaml("ok", "steps:\n  - { id: a, run: echo a }\n");
    let [good, bad] = [(); 2].map(|()| sandbox.run(&["ok.yaml"], 0));
    let id = bad.parse::<sprag_lifecycle::RunId>().expect("an id").to_i64();
    for column in ["context", "inputs"] {
        let db = rusqlite::Connection::open(sandbox.data().join("sprag.db")).expect("the database");
        let before: String = db
            .query_row(&format!("SELECT {column} FROM runs WHERE id = ?1"), [id], |row| row.get(0))
            .expect("a value");
        let set = |text: &str| {
            db.execute(&format!("UPDATE runs SET {column} = ?1 WHERE id = ?2"), rusqlite::params![text, id])
                .expect("written");
        };
        set("{\"a\": ");
        let told = sandbox.sprag(["ls"]).expect(0);
        assert!(told.stdout.contains(&good) && !told.stdout.contains(&bad), "{told:?}");
        assert!(told.stderr.contains(&format!("{bad} is damaged: ")), "{told:?}");
        assert!(told.stderr.contains(&format!("column {column}: it is no JSON")), "{told:?}");
        let listed = sandbox.json(["ls", "--json"]);
        assert_eq!((&listed[0]["id"], &listed[1]["status"]), (&good.as_str().into(), &"damaged".into()));
        let told = sandbox.sprag(["status", &bad]);
        assert!(told.code != 0 && told.stderr.contains(&format!("column {column}")), "{told:?}");
        sandbox.sprag(["status", &good]).expect(0);
        set(&before);
    }
    sandbox.sprag(["status", &bad]).expect(0);
    // The same for what a step returned.
    let db = rusqlite::Connection::open(sandbox.data().join("sprag.db")).expect("the database");
    db.execute("UPDATE executions SET result = '{' WHERE run = ?1", [id]).expect("written");
    let told = sandbox.sprag(["status", &bad]);
    assert!(told.code != 0 && told.stderr.contains("column result: it is no JSON"), "{told:?}");
}
