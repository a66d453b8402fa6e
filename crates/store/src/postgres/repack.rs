//! Packing the journal of an older schema, which had one row for each entry.
//!
//! Each transaction copies some entries from the old table to packs, after the last entry that is in a pack. So no lock
//! is held for long, and a process that is killed leaves a beginning from which the next one continues. From the first
//! transaction on the schema has the new version, which older programs refuse. A newer program copies the rest before
//! it writes, so that nothing is added behind the copies meanwhile. The old table is dropped at the end.

use super::address::DatabaseAddress;
use super::cells::{Cell, Table, owned};
use super::fault::Fault;
use super::open::{MIGRATING, number};
use super::wire::{Ask, Wire};
use crate::columns::{Declared, Reader};
use crate::error::Result;
use crate::journal::{EntryRow, PackRow, pack};

/// The number of entries that one transaction copies: some tens of milliseconds.
const AT_ONCE: usize = 10_000;

const OLD_TABLE: &str = "SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace \
     AND relkind = 'r' AND relname = 'journal'";
const NEXT: &str = "SELECT seq, at_ms, sentence, run, step, attempt, entity, \
     (SELECT note FROM journal_notes WHERE journal_notes.seq = journal.seq) FROM journal \
     WHERE seq > (SELECT coalesce(max(last_seq), 0) FROM journal_packs) ORDER BY seq LIMIT $1";

/// Whether entries of the old journal may still have to be packed.
pub(super) fn is_unfinished(wire: &Wire, address: &DatabaseAddress) -> Result<bool> {
    Ok(number(wire, OLD_TABLE).map_err(|fault| fault.told(address, "opening"))? > 0)
}

/// Packs the whole old journal, if there is one.
pub(super) fn pack_old_journal(wire: &Wire, address: &DatabaseAddress) -> Result<()> {
    let told = |fault: Fault| fault.told(address, "opening");
    while is_unfinished(wire, address)? {
        wire.script("BEGIN").map_err(told)?;
        let copied = copy_some(wire, address).and_then(|()| wire.script("COMMIT").map_err(told));
        if copied.is_err() {
            let _ = wire.script("ROLLBACK");
            return copied;
        }
    }
    Ok(())
}

/// Copies the next entries inside a transaction, and drops the old tables when there are no more.
fn copy_some(wire: &Wire, address: &DatabaseAddress) -> Result<()> {
    let told = |fault: Fault| fault.told(address, "opening");
    wire.ask(&[Ask::new("SELECT pg_advisory_xact_lock($1)", [Cell::from(MIGRATING)])]).map_err(told)?;
    // Another process may have finished it first.
    if !is_unfinished(wire, address)? {
        return Ok(());
    }
    let found = wire.ask(&[Ask::new(NEXT, [Cell::from(AT_ONCE)])]).map_err(told)?.remove(0);
    let entries: Vec<EntryRow> = found
        .iter()
        .map(|row| EntryRow::read_unpacked(&mut Reader::few(NEXT, row)))
        .collect::<Result<_>>()?;
    if entries.is_empty() {
        return wire.script("DROP TABLE journal, journal_notes").map_err(told);
    }
    let packs = pack(entries);
    let mut table = Table::new(&PackRow::statements().columns, &[]);
    for pack in &packs {
        pack.write_all(&mut |value| table.push(owned(value)));
    }
    wire.ask(&[Ask::over(&PackRow::statements().postgres_insert, table)]).map_err(told)?;
    tracing::info!(last = packs.last().map(|pack| pack.last_seq), "packed a part of the journal");
    Ok(())
}
