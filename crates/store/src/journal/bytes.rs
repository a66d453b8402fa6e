//! The bytes of a pack: a version, the entries, and a checksum.
//!
//! ```text
//!   1           the version of the format
//!   time        the first entry's time                     signed, in milliseconds since 1970 by the wall clock
//!   entry …     as many as the row's numbers say
//!   checksum    CRC-32 of all bytes before it              4 bytes, the lowest first
//!
//!   entry = flags     one byte: the fields that follow
//!           sentence  the number of its sentence           unsigned: the 64 bits of the stored number
//!           time      0x80: the difference from the entry before     signed
//!           step      0x01                                 unsigned
//!           attempt   0x02                                 unsigned
//!           entity    0x04: the number of an entity that is no run, step or execution     signed
//!           worker    0x08: the difference from the worker before in this pack, or from 0  signed
//!           fence     0x10                                 unsigned
//!           by        0x20: 0 for the same text as before in this pack, or its length + 1, and the text
//!           note      0x40: its length, and the text
//! ```
//!
//! Numbers are LEB128: seven bits in a byte, the lowest first, and 0x80 while more follow. A signed number is folded
//! first (0, -1, 1, -2, …). Texts are UTF-8. The bytes contain neither the run nor the entries' numbers, which are
//! columns of the row.

use std::sync::Arc;

use sprag_lifecycle::RunId;

use super::pack::EntryRow;
use crate::rows::Position;

/// The version of the format that this program writes.
const VERSION: u8 = 1;
/// The length of the checksum.
const CHECKSUM: usize = 4;

const STEP: u8 = 0x01;
const ATTEMPT: u8 = 0x02;
const ENTITY: u8 = 0x04;
const WORKER: u8 = 0x08;
const FENCE: u8 = 0x10;
const BY: u8 = 0x20;
const NOTE: u8 = 0x40;
const TIME: u8 = 0x80;

/// The bytes of a pack that is being filled.
pub(super) struct Writer {
    out: Vec<u8>,
    at_ms: i64,
    worker: i64,
    by: Option<Arc<str>>,
}

impl Writer {
    /// Starts a pack whose first entry has this time.
    pub(super) fn new(at_ms: i64) -> Writer {
        let mut writer = Writer { out: vec![VERSION], at_ms, worker: 0, by: None };
        writer.signed(at_ms);
        writer
    }

    /// Returns the number of bytes so far.
    pub(super) fn len(&self) -> usize {
        self.out.len()
    }

    /// Adds an entry.
    pub(super) fn push(&mut self, entry: &EntryRow) {
        let Position { step, attempt, id, .. } = entry.place;
        let present = [
            (STEP, step.is_some()),
            (ATTEMPT, attempt.is_some()),
            (ENTITY, id.is_some()),
            (WORKER, entry.worker.is_some()),
            (FENCE, entry.fence.is_some()),
            (BY, entry.by.is_some()),
            (NOTE, entry.note.is_some()),
            (TIME, entry.at_ms != self.at_ms),
        ];
        let flags = present.into_iter().filter(|(_, is)| *is).fold(0, |flags, (flag, _)| flags | flag);
        self.out.push(flags);
        self.unsigned(entry.sentence as u64);
        if flags & TIME != 0 {
            self.signed(entry.at_ms.wrapping_sub(self.at_ms));
            self.at_ms = entry.at_ms;
        }
        for number in [step, attempt].into_iter().flatten() {
            self.unsigned(number.into());
        }
        if let Some(id) = id {
            self.signed(id);
        }
        if let Some(worker) = entry.worker {
            self.signed(worker.wrapping_sub(self.worker));
            self.worker = worker;
        }
        if let Some(fence) = entry.fence {
            self.unsigned(fence.into());
        }
        if let Some(by) = &entry.by {
            if self.by.as_ref() == Some(by) {
                self.unsigned(0);
            } else {
                self.unsigned(by.len() as u64 + 1);
                self.out.extend_from_slice(by.as_bytes());
                self.by = Some(Arc::clone(by));
            }
        }
        if let Some(note) = &entry.note {
            self.unsigned(note.len() as u64);
            self.out.extend_from_slice(note.as_bytes());
        }
    }

    /// Returns the whole pack.
    pub(super) fn finish(self) -> Vec<u8> {
        sealed(self.out)
    }

    fn unsigned(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.out.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.out.push(number as u8);
    }

    fn signed(&mut self, number: i64) {
        self.unsigned(((number << 1) ^ (number >> 63)) as u64);
    }
}

/// Returns these bytes with their checksum.
pub(super) fn sealed(mut content: Vec<u8>) -> Vec<u8> {
    let checksum = crc32(&content);
    content.extend_from_slice(&checksum.to_le_bytes());
    content
}

/// Reads the `count` entries of a pack, the first of which is `first`; or returns the reason why they cannot be read.
pub(super) fn read(
    body: &[u8],
    run: Option<RunId>,
    first: u64,
    count: usize,
) -> Result<Vec<EntryRow>, String> {
    let Some((content, checksum)) = body.split_last_chunk::<CHECKSUM>() else {
        return Err("it is too short".into());
    };
    if crc32(content) != u32::from_le_bytes(*checksum) {
        return Err("its checksum is wrong".into());
    }
    let mut left = Reader(content);
    match left.byte()? {
        VERSION => {}
        other => return Err(format!("it has format {other}, and this program knows {VERSION}")),
    }
    let mut at_ms = left.signed()?;
    let (mut worker, mut by) = (0i64, None);
    let mut entries = Vec::new();
    for seq in (first..).take(count) {
        let flags = left.byte()?;
        let has = |flag: u8| flags & flag != 0;
        let sentence = left.unsigned()? as i64;
        if has(TIME) {
            at_ms = at_ms.wrapping_add(left.signed()?);
        }
        let step = has(STEP).then(|| left.small()).transpose()?;
        let attempt = has(ATTEMPT).then(|| left.small()).transpose()?;
        let id = has(ENTITY).then(|| left.signed()).transpose()?;
        if has(WORKER) {
            worker = worker.wrapping_add(left.signed()?);
        }
        let fence = has(FENCE).then(|| left.small()).transpose()?;
        if has(BY) {
            match left.unsigned()? {
                0 if by.is_none() => return Err("it repeats a text that it does not have".into()),
                0 => {}
                more => by = Some(left.text(more - 1)?),
            }
        }
        let note = if has(NOTE) {
            let length = left.unsigned()?;
            Some(left.text(length)?)
        } else {
            None
        };
        entries.push(EntryRow {
            seq,
            at_ms,
            sentence,
            place: Position { run, step, attempt, id },
            worker: has(WORKER).then_some(worker),
            fence,
            by: if has(BY) { by.clone() } else { None },
            note,
        });
    }
    if left.0.is_empty() { Ok(entries) } else { Err(format!("it has more than {count} entries")) }
}

/// The bytes that are not read yet.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, length: usize) -> Result<&'b [u8], String> {
        let (taken, left) = self.0.split_at_checked(length).ok_or("it ends too early")?;
        self.0 = left;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.take(1)?[0])
    }

    fn unsigned(&mut self) -> Result<u64, String> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err("a number in it is too large".into())
    }

    fn signed(&mut self) -> Result<i64, String> {
        let folded = self.unsigned()?;
        Ok((folded >> 1) as i64 ^ -((folded & 1) as i64))
    }

    fn small(&mut self) -> Result<u32, String> {
        u32::try_from(self.unsigned()?).map_err(|_| "a number in it is too large".into())
    }

    fn text(&mut self, length: u64) -> Result<Arc<str>, String> {
        let length = usize::try_from(length).map_err(|_| "it ends too early")?;
        let text = std::str::from_utf8(self.take(length)?);
        text.map(Into::into).map_err(|error| format!("a text in it is damaged: {error}"))
    }
}

/// Returns the CRC-32 (IEEE 802.3) of these bytes.
fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = crc32_table();
    !bytes.iter().fold(!0u32, |crc, byte| TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8))
}

const fn crc32_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut at = 0;
    while at < table.len() {
        let mut crc = at as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { 0xedb8_8320 ^ (crc >> 1) } else { crc >> 1 };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_well_known_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
