//! What a transition costs when a million finished runs lie in the file, against a thousand.
//!
//! The finished runs are copies of one that the store itself made, multiplied in SQL: every row that a
//! real run leaves behind is there, in the real tables with their real indexes.

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
/// How many copies one transaction makes.
const CHUNK: i64 = 50_000;
/// Between the names of two copies: like real ones, they do not follow each other closely.
const NAME_GAP: i64 = 997;
/// Looks at the newest page of runs per round, and how long that page is.
const LOOKS: usize = 50;
const PAGE: usize = 50;

/// A file, what it is called in the table, and what is in it.
struct Filled {
    folder: tempfile::TempDir,
    system: &'static str,
}

/// Fills two files and measures them by turns.
pub(crate) async fn measure(effort: Effort) -> Result<Board> {
    let time = effort.pick(Duration::from_millis(2000), Duration::from_millis(1000));
    let (many, called) = effort.pick((1_000_000, "1 M finished"), (100_000, "100 k finished"));
    let small = fill(FEW, "1 k finished").await?;
    let large = fill(many, called).await?;
    let mut board = Board::default();
    for round in 0..effort.rounds {
        // Whoever comes second finds a warmer machine: they take turns.
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
    // The first run of a process learns the plan and the journal's sentences.
    whole_runs(&store, 1, Until::Runs(1)).await?;
    let before = last_seq(file.folder.path())?;
    let done = whole_runs(&store, CALLERS, Until::Time(time)).await?;
    let transitions = last_seq(file.folder.path())? - before;
    let cost_us = done.elapsed.as_secs_f64() * 1e6 / transitions as f64;
    board.add(key(WORKLOAD, file.system, CALLERS, "us/transition"), cost_us);
    let mut looks = Vec::new();
    for _ in 0..LOOKS {
        let watch = Stopwatch::start();
        let page = store.read(|db| db.runs(None, &[], PAGE))?;
        looks.push(watch.elapsed());
        if page.len() != PAGE {
            return Err(format!("a page of {PAGE} runs held {}", page.len()).into());
        }
    }
    let list_us = percentile(&mut looks, 50).as_secs_f64() * 1e6;
    board.add(key(WORKLOAD, file.system, CALLERS, "us/list"), list_us);
    Ok(())
}

/// The number of the last journal entry: entries have no gaps.
fn last_seq(folder: &Path) -> Result<i64> {
    let conn = Connection::open(folder.join(FILE_NAME))?;
    Ok(conn.query_row("SELECT max(seq) FROM journal", [], |columns| columns.get(0))?)
}

/// A file with so many finished runs.
async fn fill(runs: i64, system: &'static str) -> Result<Filled> {
    let folder = files::scratch()?;
    let store = Store::open(folder.path())?;
    whole_runs(&store, 1, Until::Runs(1)).await?;
    drop(store);
    let one = Written::read(folder.path())?.check(1, STEPS)?;
    multiply(&folder.path().join(FILE_NAME), runs - 1, one.journal)?;
    let all = Written::read(folder.path())?.check(runs as usize, STEPS)?;
    if all.journal != runs * one.journal || all.row_writes != runs * one.row_writes {
        return Err(format!("{runs} copies of {one:?} came out as {all:?}").into());
    }
    Ok(Filled { folder, system })
}

/// Copies the file's only run `copies` times; its journal has `entries` entries.
fn multiply(path: &Path, copies: i64, entries: i64) -> Result<()> {
    let conn = Connection::open(path)?;
    // Nobody else looks, and a crash only costs the benchmark.
    conn.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -400000")?;
    // Copies lie before the original, which keeps the journal's first entries.
    let name = format!("run - ({copies} + 1 - n.i) * {NAME_GAP}");
    let id = format!("id - ({copies} + 1 - n.i) * {NAME_GAP}");
    let seq = |column: &str| format!("{column} + n.i * {entries}");
    let (first, last, seq) = (seq("first_seq"), seq("last_seq"), seq("seq"));
    let inserts = [
        copy_of(&conn, "runs", &[("id", &id), ("first_seq", &first), ("last_seq", &last)])?,
        copy_of(&conn, "steps", &[("run", &name)])?,
        copy_of(&conn, "executions", &[("run", &name)])?,
        copy_of(&conn, "journal", &[("seq", &seq), ("run", &name)])?,
    ];
    // The original, to copy from while its own table grows.
    for table in ["runs", "steps", "executions", "journal"] {
        conn.execute_batch(&format!("CREATE TEMP TABLE one_{table} AS SELECT * FROM main.{table}"))?;
    }
    for from in (1..=copies).step_by(CHUNK as usize) {
        let to = copies.min(from + CHUNK - 1);
        conn.execute_batch("BEGIN")?;
        for insert in &inserts {
            conn.execute(insert, [from, to])?;
        }
        conn.execute_batch("COMMIT")?;
    }
    // The copies' effects are done: a finished run leaves nothing in the outbox.
    conn.execute_batch("DELETE FROM outbox")?;
    Ok(())
}

/// The statement that copies the original's rows of a table, with these columns computed.
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
