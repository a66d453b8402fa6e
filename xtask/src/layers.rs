//! Which layer of the proof sees which fault.

use std::fmt;

/// A test program, and the tests of it that are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// The crate it belongs to.
    pub package: &'static str,
    /// Its name.
    pub binary: &'static str,
    /// Which tests; empty for all.
    pub tests: &'static str,
}

const fn layer(package: &'static str, binary: &'static str, tests: &'static str) -> Layer {
    Layer { package, binary, tests }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.package, self.binary)?;
        if self.tests.is_empty() { Ok(()) } else { write!(f, " {}", self.tests) }
    }
}

/// Where a search for who sees a fault looks, the quickest first.
pub const SEARCHED: &[Layer] = &[
    layer("lifecycle", "tables", ""),
    layer("sim", "models", "sequence_given_back"),
    layer("sim", "models", "i10_a_gate"),
    layer("sim", "models", "i16_a_child"),
    layer("sim", "models", "p14_two_items"),
    layer("sim", "models", "sequence_resumed"),
    layer("sim", "linearizable", ""),
    layer("store", "conformance", ""),
    layer("store", "boards", ""),
    layer("store", "environments", ""),
    layer("store", "group_commit", ""),
    layer("store", "service", ""),
    layer("store", "equality", ""),
    layer("store", "power_loss", ""),
    layer("sim", "graphs", ""),
    layer("sim", "models", "diamond"),
    layer("sim", "models", "sequence_reworked"),
    layer("sim", "models", "join_with"),
    layer("sim", "models", "sequence_with"),
    layer("store", "bad_input", ""),
];

/// Who is known to see a fault.
pub const CAUGHT_BY: &[(&str, Layer)] = &[];
