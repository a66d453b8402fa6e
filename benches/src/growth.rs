//! The cost of a transition with a million finished runs in the file, compared to a thousand.
//!
//! The finished runs are copies of one that the store made, multiplied in SQL. Every row of a real run is there, in the
//! real tables with their real indexes.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use sprag_store::{FILE_NAME, Store};

use crate::board::{Board, key, percentile};
use crate::clock::Stopwatch;
use crate::load::{STEPS, Until, Written, whole_runs};
use crate::{Effort, Result, files};

const WORKLOAD: &str = "growth";
const FEW: i64 = 1_000;
const CALLERS: usize = 8;
/// The number of copies in one transaction.
const CHUNK: i64 = 50_000;
/// The distance between the ids of two copies: like real ones, they are not consecutive.
const NAME_GAP: i64 = 997;
/// The number of queries of the newest page of runs per round, and the length of that page.
const LOOKS: usize = 50;
const PAGE: usize = 50;

/// A filled file, with its name in the table.
pub(crate) struct Filled {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) system: &'static str,
}

/// The order of the copies' entries in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JournalOrder {
    /// One run after the other.
    OneByOne,
    /// Interleaved: the first pack of each run, then the second of each, as if all had been submitted together.
    Interleaved,
}

/// Fills two files and measures them alternately.
pub(crate) async fn measure(effort: Effort) -> Result<Board> {
    let time = effort.pick(Duration::from_millis(2000), Duration::from_millis(1000));
    let (many, called) = effort.pick((1_000_000, "1 M finished"), (100_000, "100 k finished"));
    let small = fill(FEW, "1 k finished", JournalOrder::OneByOne).await?;
    let large = fill(many, called, JournalOrder::OneByOne).await?;
    let mut board = Board::default();
    for round in 0..effort.rounds {
        // The second measurement finds a warmer machine, so the order alternates.
        let order = if round % 2 == 0 { [&small, &large] } else { [&large, &small] };
        for file in order {
            measure_one(file, time, &mut board).await?;
        }
    }
    for unit in ["us/transition", "us/list"] {
        board
            .compare(&key(WORKLOAD, large.system, CALLERS, unit), key(WORKLOAD, small.system, CALLERS, unit));
    }
    for file in [&small, &large] {
        let bytes = std::fs::metadata(file.folder.path().join(FILE_NAME))?.len();
        board.note(format!("{}: a file of {} MB", file.system, bytes / 1_000_000));
    }
    crate::growth_postgres::measure(effort, &mut board).await?;
    Ok(board)
}

async fn measure_one(file: &Filled, time: Duration, board: &mut Board) -> Result<()> {
    let store = Store::open(file.folder.path())?;
    // The first run of a process loads the plan and prepares the statements.
    whole_runs(&store, 1, Until::Runs(1)).await?;
    let before = last_seq(file.folder.path())?;
    let done = whole_runs(&store, CALLERS, Until::Time(time)).await?;
    let transitions = last_seq(file.folder.path())? - before;
    let cost_us = done.elapsed.as_secs_f64() * 1e6 / transitions as f64;
    board.add(key(WORKLOAD, file.system, CALLERS, "us/transition"), cost_us);
    let mut looks = Vec::new();
    for _ in 0..LOOKS {
        let watch = Stopwatch::start();
        let page = store.queries().runs(None, &[], PAGE)?;
        looks.push(watch.elapsed());
        if page.len() != PAGE {
            return Err(format!("a page of {PAGE} runs held {}", page.len()).into());
        }
    }
    let list_us = percentile(&mut looks, 50).as_secs_f64() * 1e6;
    board.add(key(WORKLOAD, file.system, CALLERS, "us/list"), list_us);
    Ok(())
}

/// Returns the number of the last journal entry. Entries have no gaps.
fn last_seq(folder: &Path) -> Result<i64> {
    let conn = Connection::open(folder.join(FILE_NAME))?;
    Ok(conn.query_row("SELECT max(last_seq) FROM journal_packs", [], |columns| columns.get(0))?)
}

/// Returns a file with this many finished runs.
pub(crate) async fn fill(runs: i64, system: &'static str, order: JournalOrder) -> Result<Filled> {
    let folder = files::scratch()?;
    let store = Store::open(folder.path())?;
    whole_runs(&store, 1, Until::Runs(1)).await?;
    drop(store);
    let one = Written::read(folder.path())?.check(1, STEPS)?;
    multiply(&folder.path().join(FILE_NAME), runs - 1, one.journal, order)?;
    let all = Written::read(folder.path())?.check(runs as usize, STEPS)?;
    if all.journal != runs * one.journal || all.row_writes != runs * one.row_writes {
        return Err(format!("{runs} copies of {one:?} came out as {all:?}").into());
    }
    Ok(Filled { folder, system })
}

/// Copies the file's only run `copies` times. Its journal has `entries` entries.
fn multiply(path: &Path, copies: i64, entries: i64, order: JournalOrder) -> Result<()> {
    let conn = Connection::open(path)?;
    // No other process reads the file, and a crash only costs the benchmark.
    conn.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -400000")?;
    // The ids of copies are smaller than the original's, which keeps the journal's first entries.
    let name = format!("run - ({copies} + 1 - n.i) * {NAME_GAP}");
    let id = format!("id - ({copies} + 1 - n.i) * {NAME_GAP}");
    let seq = |table: &str, column: &str| match order {
        JournalOrder::OneByOne => format!("{column} + n.i * {entries}"),
        JournalOrder::Interleaved => interleaved(&format!("one_{table}.{column}"), copies, "n.i"),
    };
    let (first, last) = (seq("runs", "first_seq"), seq("runs", "last_seq"));
    let (pack_first, pack_last) = (seq("journal_packs", "first_seq"), seq("journal_packs", "last_seq"));
    let pack = |name| [("first_seq", pack_first.as_str()), ("last_seq", pack_last.as_str()), ("run", name)];
    // The original, to copy from while its own table grows.
    for table in ["runs", "steps", "executions", "journal_packs"] {
        conn.execute_batch(&format!("CREATE TEMP TABLE one_{table} AS SELECT * FROM main.{table}"))?;
    }
    let inserts = [
        copy_of(&conn, "runs", &[("id", &id), ("first_seq", &first), ("last_seq", &last)])?,
        copy_of(&conn, "steps", &[("run", &name)])?,
        copy_of(&conn, "executions", &[("run", &name)])?,
    ];
    let chunks =
        |from: i64| (from..=copies).step_by(CHUNK as usize).map(|at| (at, copies.min(at + CHUNK - 1)));
    for (from, to) in chunks(1) {
        let rows = conn.unchecked_transaction()?;
        inserts.iter().try_for_each(|insert| rows.execute(insert, [from, to]).map(drop))?;
        rows.commit()?;
    }
    // Written in the order of its numbers, each at the end of what is there.
    match order {
        JournalOrder::OneByOne => {
            let insert = copy_of(&conn, "journal_packs", &pack(&name))?;
            for (from, to) in chunks(1) {
                let rows = conn.unchecked_transaction()?;
                rows.execute(&insert, [from, to])?;
                rows.commit()?;
            }
        }
        JournalOrder::Interleaved => {
            // The original is the first of each.
            conn.execute_batch(&format!(
                "DELETE FROM main.journal_packs; UPDATE main.runs SET first_seq = {}, last_seq = {} \
                 WHERE id = (SELECT id FROM temp.one_runs)",
                interleaved("runs.first_seq", copies, "0"),
                interleaved("runs.last_seq", copies, "0")
            ))?;
            let name = format!("CASE n.i WHEN 0 THEN run ELSE {name} END");
            let insert = copy_of(&conn, "journal_packs", &pack(&name))?;
            let insert = format!("{insert} WHERE one_journal_packs.last_seq = ?3");
            let packs: Vec<i64> = conn
                .prepare("SELECT last_seq FROM temp.one_journal_packs ORDER BY last_seq")?
                .query_map([], |columns| columns.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            for pack in packs {
                for (from, to) in chunks(0) {
                    let rows = conn.unchecked_transaction()?;
                    rows.execute(&insert, [from, to, pack])?;
                    rows.commit()?;
                }
            }
        }
    }
    // The copies' effects are done: a finished run has no rows in the outbox.
    conn.execute_batch("DELETE FROM outbox")?;
    Ok(())
}

/// Returns the number of an entry of the copy `i`, if the copies of each of the original's packs follow each other.
fn interleaved(seq: &str, copies: i64, i: &str) -> String {
    format!(
        "(SELECT (p.first_seq - 1) * ({copies} + 1) + {i} * (p.last_seq - p.first_seq + 1) + 1 \
         + {seq} - p.first_seq FROM temp.one_journal_packs AS p WHERE {seq} BETWEEN p.first_seq AND p.last_seq)"
    )
}

/// Returns the statement that copies the original's rows of a table, with these computed columns.
fn copy_of(conn: &Connection, table: &str, computed: &[(&str, &str)]) -> Result<String> {
    let mut statement = conn.prepare("SELECT name FROM pragma_table_info(?1)")?;
    let columns: Vec<String> =
        statement.query_map([table], |columns| columns.get(0))?.collect::<rusqlite::Result<_>>()?;
    let values: Vec<&str> = columns
        .iter()
        .map(|column| {
            computed.iter().find(|(name, _)| name == column).map_or(column.as_str(), |(_, value)| value)
        })
        .collect();
    Ok(format!(
        "WITH RECURSIVE n (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2) \
         INSERT INTO main.{table} ({}) SELECT {} FROM n CROSS JOIN temp.one_{table}",
        columns.join(", "),
        values.join(", ")
    ))
}
