//! Clocks that are wrong, or are set during a wait: waits keep their length.

use std::process::Command;

use sprag_testkit::Postgres;
use sprag_tests::{Sandbox, Server, through, until};

/// Writes a pipeline that waits for this time and then runs a command.
fn waits(sandbox: &Sandbox, time: &str) -> std::path::PathBuf {
    sandbox.pipeline("waits", &[("pause", &format!("wait: {time}")), ("done", "run: echo done")])
}

/// The database's clock is put back by a day while a run waits.
#[test]
fn i17_a_database_clock_that_is_set_back_a_day_stops_no_wait() {
    let postgres = Postgres::shared();
    let database = postgres.database();
    let schema = &database.schema;
    // A clock of the database's own, found before the server's.
    postgres.sql(&format!(
        "CREATE TABLE {schema}.shift (by INTERVAL NOT NULL); INSERT INTO {schema}.shift VALUES ('0'); \
         CREATE FUNCTION {schema}.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
         $$ SELECT pg_catalog.clock_timestamp() + (SELECT by FROM {schema}.shift) $$"
    ));
    let url = database.tcp_url.replace(schema.as_str(), &format!("{schema}%2Cpg_catalog"));
    let sandbox = Sandbox::on(&url);
    let server = Server::start(&sandbox, &[]);
    let yaml = std::fs::read_to_string(waits(&sandbox, "6s")).expect("a file");
    let first = server.run(&yaml);
    sandbox.until_step(&first, "pause", "running");
    postgres.sql(&format!("UPDATE {schema}.shift SET by = '-1 day'"));
    server.until(&first, "completed");
    // A process that starts afterwards finds the same time.
    let second = server.run(&yaml);
    sandbox.until_step(&second, "pause", "running");
    drop(server);
    let later = Server::start(&sandbox, &[]);
    later.until(&second, "completed");
    // If no process was running at the jump, time continues from the last commit.
    let third = later.run(&yaml);
    sandbox.until_step(&third, "pause", "running");
    drop(later);
    postgres.sql(&format!("UPDATE {schema}.shift SET by = '-9 days'"));
    let last = Server::start(&sandbox, &[]);
    last.until(&third, "completed");
}

/// A process in a time namespace sees another time since the machine's start: it agrees with the others all the same.
#[test]
fn i17_a_process_with_another_boot_clock_sets_no_wait_a_day_too_late() {
    let tried = Command::new("unshare").args(["--time", "--boottime", "86400", "true"]).output();
    match tried {
        Ok(tried) if tried.status.success() => {}
        _ => return println!("not tried: this machine makes no time namespaces"),
    }
    let sandbox = Sandbox::new();
    let file = waits(&sandbox, "2s");
    for ahead in ["86400", "-1"] {
        let run = sandbox.command(["run", &file.to_string_lossy(), "--detach", "--json"]);
        let shifted = through(&["unshare", "--time", "--boottime", ahead], &run);
        let told = sandbox.start_command(shifted).finish().expect(0).json();
        let run = told["run"].as_str().expect("an id").to_owned();
        let worker = sandbox.start(["worker"]);
        until("the worker serves", || worker.stderr().contains("serves"));
        sandbox.ends_as(&run, "completed");
    }
}
