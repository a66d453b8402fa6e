//! W5 on PostgreSQL: the cost of a step with many finished runs in the database, compared to a thousand.
//!
//! As with the file (see [`crate::growth`]), the finished runs are copies of one that the store made, multiplied in
//! SQL, with every row of a real run.

use std::time::Duration;

use sprag_store::Store;
use sprag_testkit::{Database, Postgres};

use crate::board::Target::AtMost;
use crate::board::{Board, key};
use crate::load::{STEPS, Until, whole_runs};
use crate::{Effort, Result, postgres};

const WORKLOAD: &str = "W5 postgres";
const UNIT: &str = "us/step";
const CALLERS: usize = 8;
/// The distance between the ids of two copies: like real ones, they are not consecutive.
const NAME_GAP: i64 = 997;

/// A filled database, with its name in the table and its number of finished runs.
struct Filled {
    database: Database,
    system: &'static str,
    store: Store,
}

/// Fills the databases and measures them alternately.
pub(crate) async fn measure(effort: Effort, board: &mut Board) -> Result<()> {
    let time = effort.pick(Duration::from_millis(2000), Duration::from_millis(1000));
    let server = Postgres::start(postgres::SETTINGS);
    let mut sizes = vec![(1_000, "1 k finished"), (100_000, "100 k finished")];
    // Fifty-five million rows are for the nightly run.
    if std::env::var_os("SPRAG_NIGHTLY").is_some() {
        sizes.push((1_000_000, "1 M finished"));
    }
    let mut all = Vec::new();
    for (runs, system) in sizes {
        all.push(fill(&server, runs, system).await?);
    }
    for round in 0..effort.rounds as usize {
        // The second measurement finds a warmer machine, so the order alternates.
        for nth in 0..all.len() {
            let Filled { store, system, .. } = &all[(round + nth) % all.len()];
            let done = whole_runs(store, CALLERS, Until::Time(time)).await?;
            let steps = (done.runs.len() * STEPS) as f64;
            board.add(key(WORKLOAD, system, CALLERS, UNIT), done.elapsed.as_secs_f64() * 1e6 / steps);
        }
    }
    let few = key(WORKLOAD, all[0].system, CALLERS, UNIT);
    for (filled, called) in all[1..].iter().zip(["100 k ÷ 1 k", "1 M ÷ 1 k"]) {
        let many = key(WORKLOAD, filled.system, CALLERS, UNIT);
        board.ratio(called, &many, &few, Some(AtMost(1.2)));
    }
    for Filled { database, system, .. } in &all {
        let size = format!(
            "SELECT round(sum(pg_total_relation_size(oid)) / 1000000) FROM pg_class \
             WHERE relnamespace = '{}'::regnamespace AND relkind = 'r'",
            database.schema
        );
        board.note(format!("{system}: {} MB of tables and indexes", server.sql(&size)));
    }
    Ok(())
}

/// Returns a database with this many finished runs.
async fn fill(server: &Postgres, runs: i64, system: &'static str) -> Result<Filled> {
    let database = server.database();
    let store = Store::open_postgres(&database.url)?;
    whole_runs(&store, 1, Until::Runs(1)).await?;
    drop(store);
    let schema = &database.schema;
    let (copies, entries) =
        (runs - 1, server.sql(&format!("SELECT max(last_seq) FROM {schema}.journal_packs")));
    // The ids of copies are smaller than the original's, and their journal entries come after its own.
    let name = |column: &str| (column.to_owned(), format!("o.{column} - ({copies} + 1 - i) * {NAME_GAP}"));
    let seq = |column: &str| (column.to_owned(), format!("o.{column} + i * {entries}"));
    let mut script = format!("SET search_path = {schema}; SET synchronous_commit = off; ");
    for (table, changed) in [
        ("runs", vec![name("id"), seq("first_seq"), seq("last_seq")]),
        ("steps", vec![name("run")]),
        ("executions", vec![name("run")]),
        ("journal_packs", vec![seq("last_seq"), seq("first_seq"), name("run")]),
    ] {
        let columns = server.sql(&format!(
            "SELECT string_agg(column_name, ',' ORDER BY ordinal_position) FROM information_schema.columns \
             WHERE table_schema = '{schema}' AND table_name = '{table}'"
        ));
        let values: Vec<String> = columns
            .split(',')
            .map(|column| match changed.iter().find(|(name, _)| name == column) {
                Some((_, value)) => value.clone(),
                // The original is the last of its kind.
                None => format!("o.{column}"),
            })
            .collect();
        script.push_str(&format!(
            "CREATE TEMP TABLE one_{table} AS SELECT * FROM {table}; \
             INSERT INTO {table} ({columns}) SELECT {} FROM one_{table} AS o, generate_series(1, {copies}) AS i; ",
            values.join(", ")
        ));
    }
    script.push_str("UPDATE journal_head SET seq = (SELECT max(last_seq) FROM journal_packs); ANALYZE");
    server.sql(&script);
    server.sql("CHECKPOINT");
    let found = server.sql(&format!("SELECT count(*) FROM {schema}.runs WHERE status = 'completed'"));
    if found != runs.to_string() {
        return Err(format!("{runs} finished runs came out as {found}").into());
    }
    let store = Store::open_postgres(&database.url)?;
    // The first run of a process loads the plan and prepares the statements.
    whole_runs(&store, 1, Until::Runs(1)).await?;
    Ok(Filled { database, system, store })
}
