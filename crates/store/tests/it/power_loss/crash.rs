//! The states of a disk after a power loss, at every moment of a history.

use std::collections::BTreeMap;

use sprag_store::{Entropy, Manual};

use super::vfs::Op;

/// The smallest piece that a disk writes whole.
const SECTOR: usize = 512;

/// The fate of writes that were not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// All of them are lost.
    All,
    /// None of them.
    None,
    /// Some of them, in any order.
    Some,
    /// All after one that was written in part.
    Torn,
    /// Some, and of the others any sectors.
    Shredded,
}

/// Every kind.
pub const LOSSES: [Loss; 5] = [Loss::All, Loss::None, Loss::Some, Loss::Torn, Loss::Shredded];

/// The files that are found after a loss of power, by name.
pub type Image = BTreeMap<String, Vec<u8>>;

/// A disk at a moment of a history.
#[derive(Debug, Clone, Default)]
pub struct Medium {
    files: BTreeMap<String, Kept>,
}

#[derive(Debug, Clone, Default)]
struct Kept {
    synced: Vec<u8>,
    pending: Vec<Op>,
}

impl Medium {
    /// Applies the next operation.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Write { file, .. } | Op::Truncate { file, .. } => {
                self.files.entry(file.clone()).or_default().pending.push(op.clone());
            }
            Op::Sync { file } => {
                let kept = self.files.entry(file.clone()).or_default();
                for op in std::mem::take(&mut kept.pending) {
                    write(&mut kept.synced, &op, None);
                }
            }
            Op::Delete { file } => {
                self.files.remove(file);
            }
            Op::Answered(_) => {}
        }
    }

    /// Returns how many writes could be lost now.
    pub fn pending(&self) -> usize {
        self.files.values().map(|kept| kept.pending.len()).sum()
    }

    /// Returns the state of the disk if the power goes now.
    pub fn image(&self, loss: Loss, chance: &Manual) -> Image {
        let draw = |n: usize| (chance.next_u64() % n.max(1) as u64) as usize;
        self.files
            .iter()
            .map(|(name, kept)| {
                let mut bytes = kept.synced.clone();
                let last = draw(kept.pending.len() + 1);
                for (no, op) in kept.pending.iter().enumerate() {
                    match loss {
                        Loss::All => {}
                        Loss::None => write(&mut bytes, op, None),
                        Loss::Some if draw(2) == 0 => write(&mut bytes, op, None),
                        Loss::Torn if no < last => write(&mut bytes, op, None),
                        Loss::Torn if no == last => {
                            let whole = draw(sectors(op) + 1);
                            write(&mut bytes, op, Some(&mut |sector| sector < whole));
                        }
                        Loss::Shredded => write(&mut bytes, op, Some(&mut |_| draw(2) == 0)),
                        Loss::Some | Loss::Torn => {}
                    }
                }
                (name.clone(), bytes)
            })
            .collect()
    }
}

fn sectors(op: &Op) -> usize {
    match op {
        Op::Write { data, .. } => data.len().div_ceil(SECTOR),
        _ => 1,
    }
}

/// Does what an operation asks, or only those sectors of it that are wanted.
fn write(bytes: &mut Vec<u8>, op: &Op, mut wanted: Option<&mut dyn FnMut(usize) -> bool>) {
    let mut is_wanted = |sector: usize| wanted.as_mut().is_none_or(|wanted| wanted(sector));
    match op {
        Op::Write { offset, data, .. } => {
            let start = *offset as usize;
            for (no, sector) in data.chunks(SECTOR).enumerate() {
                if is_wanted(no) {
                    let from = start + no * SECTOR;
                    if bytes.len() < from + sector.len() {
                        bytes.resize(from + sector.len(), 0);
                    }
                    bytes[from..from + sector.len()].copy_from_slice(sector);
                }
            }
        }
        Op::Truncate { size, .. } if is_wanted(0) => bytes.resize(*size as usize, 0),
        _ => {}
    }
}
