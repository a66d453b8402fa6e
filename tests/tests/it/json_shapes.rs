//! `--json` of every command has the shape that docs/cli.md documents.

use std::collections::BTreeMap;

use serde_json::Value;
use sprag_tests::{Answer, Project, Sandbox, Server, Signal, until};

const PAGE: &str = include_str!("../../../docs/cli.md");

/// A row of the table: the command, the shape of its JSON, and keys that each value has.
struct Documented {
    command: String,
    shape: String,
    keys: Vec<String>,
}

impl Documented {
    /// Asserts that an answer has the documented shape, and returns its values.
    #[track_caller]
    fn checked(&self, told: &Answer) -> Vec<Value> {
        let name = &self.command;
        let values: Vec<Value> = match self.shape.as_str() {
            "array" => told.json().as_array().unwrap_or_else(|| panic!("{name}: {}", told.stdout)).clone(),
            "object" => {
                let one = told.json();
                assert!(one.is_object(), "{name}: {}", told.stdout);
                vec![one]
            }
            "lines" => told.lines(),
            other => panic!("{name} has the shape {other:?}"),
        };
        let may_be_empty = MAY_BE_EMPTY.contains(&name.as_str());
        assert!(may_be_empty || !values.is_empty(), "{name} has no element to check");
        // The last line of a command that follows a run is its result; the lines before it are entries of the journal.
        let is_alike = self.shape == "array" || ["logs", "events"].contains(&name.as_str());
        let checked = if is_alike { &values[..] } else { &values[values.len().saturating_sub(1)..] };
        for value in checked {
            for key in &self.keys {
                assert!(value.get(key).is_some(), "{name}: no {key:?} in {value}");
            }
        }
        values
    }
}

/// The lists that are empty here: nothing to remove, and no conversation.
const MAY_BE_EMPTY: [&str; 2] = ["env gc", "thread ls"];

/// The commands that need a server or an agent step: `webhooks::`, `threads::`, `transcripts::` and `trust::` check their answers.
const ELSEWHERE: [&str; 8] = [
    "delivery send",
    "thread show",
    "thread send",
    "thread stop",
    "thread log",
    "thread archive",
    "thread rm",
    "trust",
];

/// Asserts that the answer of one of the commands that other tests run has the documented shape.
#[track_caller]
pub(crate) fn check_shape(command: &str, told: &Answer) {
    assert!(ELSEWHERE.contains(&command), "{command} is checked here");
    let rows = documented();
    let row = rows.iter().find(|row| row.command == command).expect("a row in docs/cli.md");
    row.checked(told);
}

fn documented() -> Vec<Documented> {
    let table = PAGE.split("<!-- shapes -->").nth(1).expect("a table");
    let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let rows = table.lines().filter(|line| line.starts_with("| `sprag "));
    rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let command = quoted(cells[0])[0].trim_start_matches("sprag ").to_owned();
        Documented { command, shape: cells[2].to_owned(), keys: quoted(cells[3]) }
    })
    .collect()
}

/// Every command that the help lists, and every one below those.
fn commands(sandbox: &Sandbox) -> Vec<String> {
    let names = |text: &str| {
        let lines =
            text.lines().filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
        let names = lines.filter_map(|line| line.split_whitespace().next());
        names.filter(|name| *name != "help").map(str::to_owned).collect::<Vec<String>>()
    };
    let help = sandbox.sprag(["--help"]).expect(0).stdout;
    let groups = help.split("Examples:").next().expect("groups").split_once("Start:").expect("a group").1;
    let mut all = Vec::new();
    for command in names(groups) {
        let help = sandbox.sprag([&command, "--help"]).expect(0).stdout;
        let below =
            help.split_once("\nCommands:\n").map(|(_, rest)| rest.split("\n\n").next().expect("a list"));
        all.extend(below.map(names).unwrap_or_default().iter().map(|name| format!("{command} {name}")));
        // A command with others below it may do something of its own.
        if below.is_none() || command == "worker" {
            all.push(command);
        }
    }
    all
}

/// What is run for each row, in this order; the exit code.
fn tried() -> Vec<(&'static str, Vec<&'static str>, i32)> {
    let words = |line: &'static str| line.split(' ').collect::<Vec<_>>();
    vec![
        ("init", words("init first"), 0),
        ("validate", words("validate ok.yaml"), 0),
        ("run", words("run ok.yaml"), 0),
        ("run (no name)", words("run"), 0),
        ("run --detach", words("run ok.yaml --detach"), 0),
        ("worker ls", words("worker ls"), 0),
        ("run --dry", words("run ok.yaml --dry"), 0),
        ("ls", words("ls"), 0),
        ("cancel", vec!["cancel", "DETACHED"], 0),
        ("wait", vec!["wait", "RUN"], 0),
        ("status", vec!["status", "RUN"], 0),
        ("logs", vec!["logs", "RUN"], 0),
        ("explain", vec!["explain", "RUN"], 0),
        ("events", vec!["events", "--run", "RUN"], 0),
        ("graph", vec!["graph", "RUN"], 0),
        ("watch RUN", vec!["watch", "RUN"], 0),
        ("retry", vec!["retry", "RUN", "--step", "b"], 0),
        ("rewind", vec!["rewind", "RUN", "--to", "b"], 0),
        ("resume", vec!["resume", "DETACHED"], 0),
        ("fork", vec!["fork", "RUN", "--from", "a"], 0),
        ("questions", words("questions"), 0),
        ("approve", vec!["approve", "ASKS"], 0),
        ("reject", vec!["reject", "ASKED"], 100),
        ("skip", vec!["skip", "SIGNALLED", "rest", "--detach"], 0),
        ("signal", vec!["signal", "SIGNALLED", "go", "--detach"], 0),
        ("diff", vec!["diff", "WORKED"], 0),
        ("do", words("do anything --agents fake --yes"), 0),
        ("env ls", words("env ls"), 0),
        ("env show", vec!["env", "show", "WORKED"], 0),
        ("env rm", vec!["env", "rm", "WORKED"], 0),
        ("env gc", words("env gc --dry-run"), 0),
        ("queue ls", words("queue ls"), 0),
        ("queue hold", words("queue hold later"), 0),
        ("queue release", words("queue release later"), 0),
        ("queue limit", words("queue limit later 2"), 0),
        ("account hold", words("account hold work --for 1h"), 0),
        ("account ls", words("account ls"), 0),
        ("account release", words("account release work"), 0),
        ("thread ls", words("thread ls"), 0),
        ("board new", words("board new b"), 0),
        ("board ls", words("board ls"), 0),
        ("board show", words("board show b"), 0),
        ("board plan", words("board plan b"), 0),
        ("board note", words("board note b hello"), 0),
        ("board notes", words("board notes b"), 0),
        ("task add", words("task add b one --key k"), 0),
        ("task ls", words("task ls"), 0),
        ("task ls BOARD", words("task ls b"), 0),
        ("task show", words("task show b k"), 0),
        ("task batch", words("task batch b tasks.json"), 0),
        ("task claim", words("task claim --board b"), 0),
        ("task start", vec!["task", "start", "TOKEN"], 0),
        ("task heartbeat", vec!["task", "heartbeat", "TOKEN"], 0),
        ("task release", vec!["task", "release", "TOKEN"], 0),
        ("task claim", words("task claim --board b"), 0),
        ("task done", vec!["task", "done", "TOKEN"], 0),
        ("task claim", words("task claim --board b"), 0),
        ("task fail", vec!["task", "fail", "TOKEN"], 0),
        ("task retry", words("task retry b late"), 0),
        ("task cancel", words("task cancel b late"), 0),
        ("board report", words("board report b"), 0),
        ("board close", words("board close b --cancel-waiting"), 0),
        ("token new", words("token new t"), 0),
        ("token rotate", words("token rotate t"), 0),
        ("token ls", words("token ls"), 0),
        ("token rm", words("token rm t"), 0),
        ("audit", words("audit"), 0),
        ("hook add", words("hook add --run true"), 0),
        ("hook ls", words("hook ls"), 0),
        ("hook test", vec!["hook", "test", "HOOK"], 0),
        ("hook retry", vec!["hook", "retry", "HOOK"], 0),
        ("hook rm", vec!["hook", "rm", "HOOK"], 0),
        ("rule apply", words("rule apply ruled.yaml"), 0),
        ("rule ls", words("rule ls"), 0),
        ("rule show", words("rule show r"), 0),
        ("rule explain", words("rule explain r"), 0),
        ("rule test", words("rule test r"), 0),
        ("rule fire", words("rule fire r"), 0),
        ("delivery ls", words("delivery ls"), 0),
        ("delivery show", vec!["delivery", "show", "EVENT"], 0),
        ("delivery replay", vec!["delivery", "replay", "EVENT"], 0),
        ("rule backfill", words("rule backfill r --from 2030-01-01T00:00:00Z --to 2020-01-01T00:00:00Z"), 0),
        ("rule tick", words("rule tick"), 0),
        ("rule pause", words("rule pause r"), 0),
        ("rule resume", words("rule resume r"), 0),
        ("rule rm", words("rule rm r"), 0),
        ("gc", words("gc --keep 30d --dry-run"), 0),
        ("doctor", words("doctor"), 0),
        ("config", words("config"), 0),
        ("schema", words("schema"), 0),
        ("lifecycle", words("lifecycle run"), 0),
        ("manual", words("manual share"), 0),
    ]
}

/// Starts the runs that the commands are about; their names, and their ids.
fn runs(project: &Project) -> BTreeMap<&'static str, String> {
    let sandbox = &project.sandbox;
    let repo = project.repo();
    for (name, text) in [
        ("ok", "steps:\n  - { id: a, run: echo a }\n  - { id: b, run: echo b }\n"),
        ("ruled", "on: [{ id: r, schedule: { cron: '0 0 1 1 *' } }]\nsteps:\n  - { id: a, run: echo a }\n"),
        ("asks", "steps:\n  - { id: ask, gate: { ask: 'Really?' } }\n"),
        ("signalled", "steps:\n  - { id: go, wait: { signal: go } }\n  - { id: rest, run: echo rest }\n"),
        (
            "worked",
            "environment: { worktree: { keep: always } }\nsteps:\n  - { id: a, run: echo new > new.txt }\n",
        ),
    ] {
        std::fs::write(repo.join(format!("{name}.yaml")), text).expect("a file");
    }
    std::fs::create_dir_all(repo.join(".sprag/pipelines")).expect("a folder");
    std::fs::write(repo.join(".sprag/pipelines/named.yaml"), "steps:\n  - { id: a, run: echo a }\n")
        .expect("a file");
    std::fs::write(repo.join("tasks.json"), r#"[{"text": "later", "key": "late"}]"#).expect("a file");
    project.git(["add", "."]);
    project.git(["commit", "--quiet", "--message", "pipelines"]);
    let mut ids = BTreeMap::new();
    for (name, file, code) in [
        ("RUN", "ok.yaml", 0),
        ("ASKS", "asks.yaml", 5),
        ("ASKED", "asks.yaml", 5),
        ("WORKED", "worked.yaml", 0),
    ] {
        project.sprag(["run", file]).expect(code);
        ids.insert(name, sandbox.newest().expect("a run"));
    }
    for (name, file) in [("SIGNALLED", "signalled.yaml"), ("DETACHED", "ok.yaml")] {
        project.sprag(["run", file, "--detach"]).expect(0);
        ids.insert(name, sandbox.newest().expect("a run"));
    }
    ids
}

#[test]
fn json_of_every_command_has_the_documented_shape() {
    let project = Project::new();
    let (rows, mut ids) = (documented(), runs(&project));
    // It serves no queue of these runs.
    let _worker = project.sandbox.start(["worker", "--queue", "other"]);
    until("it is online", || project.sandbox.sprag(["worker", "ls"]).stdout.contains("online"));
    let mut seen = Vec::new();
    for (name, args, code) in tried() {
        let row =
            rows.iter().find(|row| row.command == name).unwrap_or_else(|| panic!("{name} is not documented"));
        let args: Vec<String> = args
            .iter()
            .map(|word| ids.get(word).cloned().unwrap_or_else(|| (*word).to_owned()))
            .chain(["--json".to_owned()])
            .collect();
        let told = project.sprag(&args).expect(code);
        let values = row.checked(&told);
        if name == "task claim" {
            ids.insert("TOKEN", values[0]["token"].as_str().expect("a token").to_owned());
        }
        if name == "rule fire" {
            ids.insert("EVENT", values[0]["event"].as_str().expect("an id").to_owned());
        }
        if name == "hook ls" {
            ids.insert("HOOK", values[0]["id"].as_str().expect("an id").to_owned());
        }
        seen.push(name);
    }
    // `watch` alone continues until it is stopped.
    project.sandbox.detach(&project.repo().join("ok.yaml"));
    let watch = project.sandbox.start(["watch", "--json"]);
    until("a live run is shown", || watch.stdout().contains('\n'));
    watch.signal(Signal::INT);
    let told = watch.finish().expect(0);
    let row = rows.iter().find(|row| row.command == "watch").expect("a row");
    for (value, key) in
        told.lines::<Value>().iter().flat_map(|value| row.keys.iter().map(move |key| (value, key)))
    {
        assert!(value.get(key).is_some(), "watch: no {key:?} in {value}");
    }
    seen.push("watch");
    let is_unseen = |row: &&Documented| {
        !seen.contains(&row.command.as_str()) && !["text", "none"].contains(&row.shape.as_str())
    };
    let mut unseen: Vec<&String> = rows.iter().filter(is_unseen).map(|row| &row.command).collect();
    unseen.retain(|command| !ELSEWHERE.contains(&command.as_str()));
    assert!(unseen.is_empty(), "no test has seen the JSON of {unseen:?}");
    let all = commands(&project.sandbox);
    assert!(all.len() > 75, "{all:?}");
    for command in all {
        assert!(
            rows.iter().any(|row| row.command == command),
            "{command} is not in the table of docs/cli.md"
        );
    }
}

#[test]
fn a_broken_pipeline_is_told_as_objects() {
    let sandbox = Sandbox::new();
    sandbox.yaml("broken", "steps:\n  - { id: a, rum: x }\n");
    let told = sandbox.sprag(["run", "broken.yaml", "--json"]).expect(2);
    let error: Value = serde_json::from_str(&told.stderr).expect("JSON on stderr");
    assert_eq!(error["diagnostics"][0]["line"], 2, "{error}");
    assert!(!error["message"].as_str().expect("a text").contains("-->"), "{error}");
}

#[test]
fn status_has_the_same_keys_with_and_without_a_server() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "ok",
        "inputs: { n: { type: integer, default: 1 } }\nsteps:\n  - { id: a, run: echo a }\n  - { id: b, run: exit 3 }\n",
    );
    let run = sandbox.run(&["ok.yaml"], 100);
    let server = Server::start(&sandbox, &[]);
    let url = format!("http://{}", server.addr);
    let here = sandbox.json(["status", &run, "--json"]);
    let there = sandbox.json(["status", &run, "--json", "--server", &url]);
    assert_eq!(here, there);
    assert_eq!(here["inputs"]["n"], 1, "{here}");
}
