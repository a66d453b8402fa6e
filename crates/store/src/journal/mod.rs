//! The packed journal: consecutive entries of one run that one commit adds are one row.
//!
//! ```text
//!   Session ──entries──▶ EntryRow (a sentence's number instead of words) ──pack──▶ PackRow ──▶ journal_packs
//!   readers ◀──entries── EntryRow                                        ◀─unpack─ PackRow ◀── journal_packs
//! ```
//!
//! A pack's numbers have no gaps, and no two packs overlap. So a reader that starts or stops in the middle of a pack
//! reads the packs by their last numbers and leaves out the entries that it has. `bytes.rs` describes the format.

mod bytes;
mod pack;

pub(crate) use pack::{EntryRow, MOST_ENTRIES, PackRow, Page, pack};
