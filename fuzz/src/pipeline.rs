//! The loader of pipeline files under libFuzzer: no text makes it panic, hang, or take much memory.

#![no_main]

mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    exercise::exercise(bytes);
});
