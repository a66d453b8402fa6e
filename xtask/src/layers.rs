//! The layers of the proof, and the faults that each detects.

use std::fmt;

/// A test program, and a selection of its tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// The short name of its crate.
    pub package: &'static str,
    /// The name of the test program.
    pub binary: &'static str,
    /// The filter of test names; empty for all.
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

/// The layers that a search for a fault tries, the quickest first.
pub const SEARCHED: &[Layer] = &[
    layer("sim", "simulation", "the_same_seed"),
    layer("lifecycle", "tables", ""),
    layer("sim", "models", "sequence_given_back"),
    layer("sim", "models", "i10_a_gate"),
    layer("sim", "models", "i16_a_child"),
    layer("sim", "models", "p14_two_items"),
    layer("sim", "models", "sequence_resumed"),
    layer("sim", "linearizable", ""),
    layer("store", "store", "conformance:: claims:: contracts::"),
    layer("store", "store", "accounts::"),
    layer("store", "store", "boards::"),
    layer("store", "store", "environments::"),
    layer("store", "store", "group_commit::"),
    layer("store", "store", "service::"),
    layer("store", "store", "equality::"),
    layer("store", "store", "power_loss::"),
    layer("sim", "graphs", ""),
    layer("sim", "models", "diamond"),
    layer("sim", "models", "sequence_reworked"),
    layer("sim", "models", "join_with"),
    layer("sim", "models", "sequence_with"),
    layer("store", "store", "bad_input::"),
];

/// The layer that must detect each fault.
pub const CAUGHT_BY: &[(&str, Layer)] = &[
    ("M01", layer("sim", "linearizable", "")),
    ("M01", layer("lifecycle", "tables", "")),
    ("M02", layer("lifecycle", "tables", "")),
    ("M03", layer("lifecycle", "tables", "")),
    ("M04", layer("lifecycle", "tables", "")),
    ("M05", layer("lifecycle", "tables", "")),
    ("M06", layer("sim", "models", "sequence_given_back")),
    ("M07", layer("sim", "models", "sequence_given_back")),
    ("M08", layer("sim", "models", "i10_a_gate")),
    ("M09", layer("sim", "graphs", "")),
    ("M10", layer("sim", "models", "sequence_given_back")),
    ("M11", layer("sim", "models", "sequence_given_back")),
    ("M12", layer("store", "store", "equality::")),
    ("M13", layer("store", "store", "fan_out::p14_a_fail_fast")),
    ("M14", layer("sim", "models", "p14_two_items")),
    ("M15", layer("store", "store", "boards::")),
    ("M16", layer("sim", "models", "sequence_given_back")),
    ("M17", layer("sim", "models", "sequence_given_back")),
    ("M18", layer("sim", "models", "sequence_given_back")),
    ("M19", layer("sim", "models", "sequence_given_back")),
    ("M20", layer("sim", "linearizable", "")),
    ("M21", layer("sim", "models", "sequence_given_back")),
    ("M22", layer("store", "store", "claims::c08_")),
    ("M23", layer("store", "store", "claims::c08_")),
    ("M24", layer("store", "store", "conformance::a_run_is_created_once")),
    ("M25", layer("store", "store", "claims::c10_")),
    ("M26", layer("store", "store", "claims::c10_")),
    ("M27", layer("store", "store", "claims::c10_")),
    ("M28", layer("sim", "models", "i16_a_child")),
    ("M29", layer("sim", "models", "i10_a_gate")),
    ("M30", layer("store", "store", "boards::c05_")),
    ("M31", layer("store", "store", "bad_input::a_wall_clock_that_jumps")),
    ("M32", layer("sim", "models", "i10_a_gate")),
    ("M33", layer("store", "store", "contracts::l04_")),
    ("M34", layer("store", "store", "contracts::l05_")),
    ("M35", layer("store", "store", "group_commit::")),
    ("M36", layer("store", "store", "conformance:: claims:: contracts::")),
    ("M37", layer("store", "store", "power_loss::a_full_or_broken")),
    ("M38", layer("store", "store", "power_loss::i26_")),
    ("M39", layer("store", "store", "environments::")),
    ("M54", layer("store", "store", "environments::")),
    ("M40", layer("store", "store", "outside::a_signal")),
    ("M41", layer("store", "store", "outside::a_question")),
    ("M42", layer("sim", "models", "i16_a_child")),
    ("M43", layer("sim", "simulation", "i20_")),
    ("M44", layer("store", "store", "boards::e17_f2_")),
    ("M45", layer("sim", "simulation", "i10_without_a_server")),
    ("M46", layer("store", "store", "retention::a_run_that_is_resumed_after")),
    ("M47", layer("store", "store", "retention::a_plan_that_another_process_removed")),
    ("M48", layer("store", "store", "a_schema_that_became_newer")),
    ("M49", layer("store", "store", "bad_input::i17_a_clock")),
    ("M50", layer("store", "store", "postgres::i17_a_clock")),
    ("M51", layer("sim", "graphs", "")),
    ("M51", layer("store", "store", "fan_out::e09_a_blocked")),
    ("M52", layer("store", "store", "stalls::")),
    ("M53", layer("store", "store", "answers::")),
    ("M55", layer("sim", "graphs", "")),
    ("M55", layer("store", "store", "fan_out::i26_")),
    ("M56", layer("store", "store", "retention::a_key")),
    ("M57", layer("store", "store", "packs::a_reader_stops")),
    ("M58", layer("store", "store", "power_loss::i26_")),
    ("M60", layer("sim", "models", "ha1_ha5_an_account")),
    ("M60", layer("store", "store", "accounts::t04_")),
    ("M61", layer("lifecycle", "tables", "")),
    ("M61", layer("store", "store", "accounts::ha4_")),
    ("M62", layer("store", "store", "accounts::t12_")),
    ("M64", layer("sim", "models", "l09_l10_")),
    ("M65", layer("lifecycle", "tables", "")),
    ("M65", layer("sim", "models", "l09_l10_")),
    ("M66", layer("sim", "models", "l09_l10_")),
    ("M67", layer("sim", "models", "l09_l10_")),
    ("M63", layer("store", "store", "accounts::t04_")),
    ("M68", layer("store", "store", "permissions::t05_an_answer")),
    ("M69", layer("store", "store", "permissions::t05_an_answer")),
    ("M90", layer("store", "store", "permissions::t05_a_parked")),
    ("M70", layer("sim", "models", "r01_r02_r10_")),
    ("M71", layer("sim", "models", "r01_r02_r10_")),
    ("M72", layer("sim", "models", "r01_r02_r10_")),
    ("M73", layer("store", "store", "rules::r26_")),
    ("M74", layer("store", "store", "rules::r20_")),
    ("M75", layer("store", "store", "rules::r15_")),
    ("M78", layer("sim", "models", "r19_r21_")),
    ("M79", layer("sim", "models", "r19_r21_")),
    ("M80", layer("sim", "graphs", "")),
    ("M81", layer("sim", "graphs", "")),
    ("M82", layer("sim", "graphs", "")),
    ("M83", layer("sim", "graphs", "")),
    ("M84", layer("sim", "graphs", "")),
    ("M85", layer("sim", "graphs", "")),
    ("M86", layer("sim", "graphs", "")),
    ("M87", layer("pipeline", "expanded", "")),
    ("M100", layer("app", "reach", "")),
    ("M101", layer("store", "store", "outside::i02_")),
    ("M88", layer("pipeline", "expanded", "")),
    ("M93", layer("pipeline", "expanded", "s19_")),
    ("M94", layer("pipeline", "expanded", "s19_")),
    ("M104", layer("sim", "graphs", "")),
    ("M105", layer("sim", "graphs", "")),
];
