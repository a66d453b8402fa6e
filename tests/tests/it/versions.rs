//! A newer program has changed the schema while an older one runs: the older one stops, and says so.

use rusqlite::Connection;
use serde_json::json;
use sprag_testkit::Postgres;
use sprag_tests::{Sandbox, Server, is_running, until};

const YAML: &str = "name: hello\nsteps:\n  - id: say\n    run: echo hello\n";

/// The number of entries in the journal, asked without Sprag.
type Count<'a> = &'a dyn Fn() -> i64;

/// Asserts how a server behaves once the schema is newer than it knows.
fn stops(sandbox: &Sandbox, raise: &dyn Fn(), entries: Count<'_>) {
    let server = Server::start(sandbox, &[]);
    let before = server.run(YAML);
    server.until(&before, "completed");
    let mut worker = sandbox.start(["worker"]);
    until("the worker serves", || worker.stderr().contains("serves"));
    let long = "steps:\n  - id: wait\n    run: 'echo $$ > pid; until [ -e go ]; do sleep 0.05; done'\n";
    server.run(long);
    let step = sandbox.pid_in("pid");
    raise();
    // Whichever process has it ends it: newer ones are to try it again.
    until("its step is ended", || !is_running(step));
    // Whatever was on its way has arrived.
    until("the worker ends", || !worker.is_running());
    let told = worker.finish();
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.stderr.contains("schema version 999"), "{}", told.stderr);
    let written = entries();

    let refused = server.post("/v1/runs", &json!({ "yaml": YAML })).problem(503, "unavailable");
    let message = refused["message"].as_str().expect("a message");
    assert!(message.contains("schema version 999"), "{message}");
    assert!(refused["next"].as_str().is_some_and(|next| next.contains("restart")), "{refused}");
    let told = server.request("GET", &format!("/v1/runs/{before}")).send().problem(503, "unavailable");
    assert!(told["message"].as_str().is_some_and(|message| message.contains("999")), "{told}");
    let ready = server.request("GET", "/readyz").send().problem(503, "unavailable");
    assert!(ready["message"].as_str().is_some_and(|message| message.contains("999")), "{ready}");
    assert_eq!(server.get("/healthz")["status"], "ok", "the process itself is well");
    let told = sandbox.sprag(["ls"]).expect(1);
    assert!(told.stderr.contains("schema version 999"), "{}", told.stderr);
    assert_eq!(entries(), written, "nothing was written");
}

#[test]
fn e18_an_older_process_stops_writing_to_a_file_whose_schema_became_newer() {
    let sandbox = Sandbox::new();
    let connect = || Connection::open(sandbox.data().join(sprag_store::FILE_NAME)).expect("the file");
    let raise = || connect().execute_batch("PRAGMA user_version = 999").expect("it is raised");
    let entries = || {
        let count =
            connect().query_row("SELECT sum(last_seq - first_seq + 1) FROM journal_packs", [], |columns| {
                columns.get(0)
            });
        count.expect("a number")
    };
    stops(&sandbox, &raise, &entries);
}

#[test]
fn e18_an_older_process_stops_writing_to_a_database_whose_schema_became_newer() {
    let postgres = Postgres::shared();
    let database = postgres.database();
    let schema = &database.schema;
    let sandbox = Sandbox::on(&database.tcp_url);
    let raise = || {
        postgres.sql(&format!(
            "UPDATE {schema}.meta SET value = '999' WHERE name = 'schema'; UPDATE {schema}.journal_head SET schema = 999"
        ));
    };
    let sum = format!("SELECT sum(last_seq - first_seq + 1) FROM {schema}.journal_packs");
    let entries = || postgres.sql(&sum).trim().parse().expect("a number");
    stops(&sandbox, &raise, &entries);
}
