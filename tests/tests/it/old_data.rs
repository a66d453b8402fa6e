//! A data directory that an earlier version wrote opens unchanged, and everything in it continues.

use std::fs;

use rusqlite::Connection;
use sprag_tests::{Sandbox, Server};

/// The token that the earlier version made, with the scope `read`.
const TOKEN: &str = "sprag_401640e955874e12667cc5da3d1d4b54bb47ba3297a3197abf97469bb97f7a79";

/// Puts the data directory of the earlier version into a sandbox, and returns its journal: one line per entry.
fn unpack(sandbox: &Sandbox) -> Vec<String> {
    let project = sandbox.path("project");
    fs::create_dir_all(&project).expect("a folder");
    fs::create_dir_all(sandbox.data()).expect("a folder");
    let dump = include_str!("../../data/schema-7.sql")
        .replace("@PROJECT@", project.to_str().expect("text"))
        .replace("@DATA@", sandbox.data().to_str().expect("text"));
    let file = Connection::open(sandbox.data().join("sprag.db")).expect("a database");
    file.execute_batch(&dump).expect("the dump is SQL");
    let sql = "SELECT seq || ' ' || sentences.entity || ' ' || event || ' ' || was || ' ' || became || ' ' || actor \
               || ' ' || coalesce((SELECT note FROM journal_notes WHERE journal_notes.seq = journal.seq), '') \
               FROM journal JOIN sentences ON sentences.id = sentence ORDER BY seq";
    let mut entries = file.prepare(sql).expect("the old tables");
    let entries = entries.query_map([], |row| row.get(0)).expect("entries");
    entries.collect::<Result<_, _>>().expect("lines")
}

/// Returns an entry of `sprag events --json` as a line.
fn line(entry: &serde_json::Value) -> String {
    let word = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let [entity, event, from, to, actor] = ["entity", "event", "from", "to", "actor"].map(word);
    let note =
        entry.get("path").map_or_else(String::new, |path| serde_json::json!({ "path": path }).to_string());
    format!("{} {entity} {event} {from} {to} {actor} {note}", entry["seq"])
}

#[test]
fn data_of_an_earlier_version_opens_unchanged_and_continues() {
    let sandbox = Sandbox::new();
    let entries = unpack(&sandbox);

    let runs = sandbox.json(["ls", "--boards", "--json"]);
    let runs: Vec<String> = runs
        .as_array()
        .expect("a list")
        .iter()
        .map(|run| {
            format!("{} {} {}", run["id"].as_str().unwrap_or_default(), run["pipeline"], run["status"])
                .replace('"', "")
        })
        .collect();
    assert_eq!(
        runs,
        [
            "0ajemp87c2v1 sprint running",
            "0ajemn5w498j chain cancelled",
            "0ajemn5qyjwx waits running",
            "0ajemn5m1rhf chain running",
            "0ajemn48nsjy tree completed",
            "0ajemn3vyy3h fans completed",
            "0ajemn3k9c67 asks running",
            "0ajemn3395me breaks failed",
            "0ajemn2q1dmh chain completed",
        ]
    );
    let events = sandbox.sprag(["events", "--json"]).expect(0).lines::<serde_json::Value>();
    assert_eq!(events.iter().map(line).collect::<Vec<_>>(), entries);
    assert!(events.iter().all(|entry| entry.get("worker").is_none() && entry.get("by").is_none()));

    // What waited continues: a question, a signal, a run without a worker, a failure, a board.
    sandbox.sprag(["approve", "0ajemn3k9c67", "ask"]).expect(0);
    sandbox.sprag(["signal", "0ajemn5qyjwx", "go"]).expect(0);
    sandbox.sprag(["worker", "--until-idle"]).expect(0);
    for run in ["0ajemn3k9c67", "0ajemn5qyjwx", "0ajemn5m1rhf"] {
        assert_eq!(sandbox.status_word(run), "completed", "{run}");
    }
    let later =
        sandbox.sprag(["events", "--run", "0ajemn5m1rhf", "--json"]).expect(0).lines::<serde_json::Value>();
    let received = later.iter().find(|entry| entry["event"] == "handoff.received").expect("a hand-off");
    assert!(received["worker"].is_string() && received["fence"].is_u64(), "{received}");
    sandbox.write("project/mended", "");
    sandbox.sprag(["resume", "0ajemn3395me"]).expect(0);
    // The claim of task 2 may have lapsed since.
    let claimed = sandbox.json(["task", "claim", "--board", "sprint", "--json"]);
    assert!(["do two", "do three"].map(Into::into).contains(&claimed["prompt"]), "{claimed}");
    sandbox.sprag(["task", "done", claimed["token"].as_str().expect("a token")]).expect(0);

    let server = Server::start(&sandbox, &["--no-worker"]);
    server.anonymous("GET", "/v1/runs").token(TOKEN).send().expect(200);
    server.anonymous("GET", "/v1/runs").token(&TOKEN.replace('4', "5")).send().expect(401);
    drop(server);
    sandbox.sprag(["gc", "--keep", "0s"]).expect(0);
}
