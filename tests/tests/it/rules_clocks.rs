//! Rules while the clock is set: no burst, and no tick twice. The clock of a database can be set for one test.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use sprag_testkit::Postgres;
use sprag_tests::{Sandbox, Server, nightly, until, within};

const EVERY_SECOND: &str = "name: beat
on:
  - id: second
    schedule: { every: 1s }
    overlap: allow
    missed: { run: all }
steps:
  - id: a
    run: 'true'
";

fn decisions(sandbox: &Sandbox) -> Vec<Value> {
    let all = sandbox.sprag(["delivery", "ls", "second", "--limit", "1000", "--json"]).expect(0).json();
    all.as_array().expect("a list").clone()
}

#[test]
fn r05_a_clock_that_is_set_makes_no_burst_and_repeats_no_tick_on_postgres() {
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
    sandbox.yaml("beat", EVERY_SECOND);
    sandbox.sprag(["rule", "apply", "beat.yaml"]).expect(0);
    let _servers = [Server::start(&sandbox, &["--no-worker"]), Server::start(&sandbox, &["--no-worker"])];
    until("ticks fire", || decisions(&sandbox).len() >= 3);
    for (by, told) in [("1 day", "set forward by"), ("-1 hour", "set back by")] {
        postgres.sql(&format!("UPDATE {schema}.shift SET by = by + '{by}'"));
        until("the jump is seen", || {
            sandbox.sprag(["explain", "beat/second"]).expect(0).stdout.contains(told)
        });
        let before = decisions(&sandbox).len();
        let later = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(4);
        until("some seconds have passed", || jiff::Timestamp::now() > later);
        let after = decisions(&sandbox).len();
        assert!(after <= before + 2, "{after} decisions after a jump by {by}, and {before} before");
    }
    // Firing resumes a minute later; the ticks of the last hour are missed ones or known.
    if nightly(false, true) {
        let before = decisions(&sandbox).len();
        let again = || (decisions(&sandbox).len() > before).then_some(());
        within(Duration::from_secs(120), again).expect("it fires again");
    }
    let all = decisions(&sandbox);
    let keys: BTreeSet<&str> = all.iter().filter_map(|one| one["key"].as_str()).collect();
    assert_eq!(keys.len(), all.len(), "a tick has fired twice: {all:?}");
}
