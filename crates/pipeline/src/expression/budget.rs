//! The limit on the work of evaluations. One number bounds both memory and time.

use std::cell::Cell;

use super::patterns::LastPattern;

/// The budget in bytes for rendering one step: about a few hundredths of a second, and at most this much memory.
const WORK_BYTES: u64 = 32 << 20;

/// The budget in bytes for work that a shared thread does at once: about one millisecond.
const SMALL_BYTES: u64 = 512 << 10;

/// The cost of looking at or making one value, whatever it contains: about its size in memory.
pub(super) const VALUE_BYTES: u64 = 64;

/// The remaining budget for one step. Making, copying or comparing one byte costs one unit.
#[derive(Debug)]
pub struct Budget {
    left: Cell<u64>,
    spent: Cell<bool>,
    pub(super) patterns: LastPattern,
}

impl Default for Budget {
    fn default() -> Self {
        Budget::of(WORK_BYTES)
    }
}

impl Budget {
    fn of(bytes: u64) -> Budget {
        Budget { left: Cell::new(bytes), spent: Cell::new(false), patterns: LastPattern::default() }
    }

    /// Returns a budget that is small enough for a thread that others wait for.
    pub fn small() -> Budget {
        Budget::of(SMALL_BYTES)
    }

    /// Takes the cost of some work from the budget before the work is done.
    pub(super) fn pay(&self, bytes: u64) -> Result<(), String> {
        match self.left.get().checked_sub(bytes) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                self.left.set(0);
                self.spent.set(true);
                Err("the expressions of this step exceed their evaluation limit: pass large data in files"
                    .into())
            }
        }
    }

    /// Takes the cost of this many values.
    pub(crate) fn pay_values(&self, count: usize) -> Result<(), String> {
        self.pay((count as u64).saturating_mul(VALUE_BYTES))
    }

    /// Takes the cost of a text of this length.
    pub(crate) fn pay_text(&self, length: usize) -> Result<(), String> {
        self.pay(VALUE_BYTES.saturating_add(length as u64))
    }

    /// Returns whether an evaluation failed because the budget was used up.
    pub fn is_spent(&self) -> bool {
        self.spent.get()
    }
}
