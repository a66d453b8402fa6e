//! Templates and expressions under libFuzzer: no text makes parsing or rendering panic, hang, or take much memory, and
//! no value gets into a command.

#![no_main]

mod template_exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    template_exercise::exercise(bytes);
});
