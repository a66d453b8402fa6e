//! The crate `agent` under libFuzzer: no stream, text or script makes it panic, hang, or break a guarantee of its
//! events.

#![no_main]

mod agent_exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    agent_exercise::exercise(bytes);
});
