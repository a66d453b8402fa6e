//! Packing the journal of an older schema, which had one row for each entry.
//!
//! Each transaction moves some entries from the old table to packs. So the lock is free in between, and a process that
//! is killed leaves every entry in exactly one of the two tables. From the first transaction on the schema has the new
//! version, which older programs refuse. A newer program moves the rest before it serves.

use std::path::Path;

use rusqlite::{Connection, params};

use super::{journal, open, translate};
use crate::columns::Reader;
use crate::error::Result;
use crate::journal::{EntryRow, pack};

/// The first schema whose journal is packed.
pub(super) const PACKED: i64 = 11;
/// The number of entries that one transaction moves: some tens of milliseconds.
const AT_ONCE: usize = 10_000;

const OLD_TABLE: &str = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'journal'";
const OLDEST: &str = "SELECT seq, at_ms, sentence, run, step, attempt, entity, \
     (SELECT note FROM journal_notes WHERE journal_notes.seq = journal.seq) \
     FROM journal ORDER BY seq LIMIT ?1";

/// Packs the whole old journal, if there is one.
pub(super) fn pack_old_journal(conn: &Connection, path: &Path) -> Result<()> {
    let fail = |error: rusqlite::Error| translate(path, "opening", &error);
    while is_there(conn).map_err(fail)? {
        conn.execute_batch("BEGIN IMMEDIATE").map_err(fail)?;
        let moved = open::refuse_newer(conn, path)
            .and_then(|()| move_some(conn, path))
            .and_then(|()| conn.execute_batch("COMMIT").map_err(fail));
        if moved.is_err() {
            let _ = conn.execute_batch("ROLLBACK");
            return moved;
        }
    }
    Ok(())
}

fn is_there(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row(OLD_TABLE, [], |columns| columns.get::<_, i64>(0)).map(|tables| tables > 0)
}

/// Moves the oldest entries inside a transaction, and drops the old tables when they are empty. Changes nothing if
/// another process has dropped them.
pub(super) fn move_some(conn: &Connection, path: &Path) -> Result<()> {
    let fail = |error: rusqlite::Error| translate(path, "packing the journal", &error);
    if !is_there(conn).map_err(fail)? {
        return Ok(());
    }
    let entries = oldest(conn, path)?;
    if let Some(last) = entries.last().map(|entry| entry.seq as i64) {
        let all = entries.len() < AT_ONCE;
        journal::insert_packs(conn, &pack(entries)).map_err(fail)?;
        conn.execute("DELETE FROM journal WHERE seq <= ?1", [last]).map_err(fail)?;
        conn.execute("DELETE FROM journal_notes WHERE seq <= ?1", [last]).map_err(fail)?;
        tracing::info!(last, "packed a part of the journal");
        if !all {
            return Ok(());
        }
    }
    conn.execute_batch("DROP TABLE journal; DROP TABLE journal_notes").map_err(fail)
}

fn oldest(conn: &Connection, path: &Path) -> Result<Vec<EntryRow>> {
    let fail = |error: rusqlite::Error| translate(path, "packing the journal", &error);
    let mut statement = conn.prepare(OLDEST).map_err(fail)?;
    let mut rows = statement.query(params![AT_ONCE as i64]).map_err(fail)?;
    let mut entries = Vec::new();
    while let Some(columns) = rows.next().map_err(fail)? {
        entries.push(EntryRow::read_unpacked(&mut Reader::few(OLDEST, columns))?);
    }
    Ok(entries)
}
