//! The fake agent as a separate program, for tests: `sprag-fake-agent SCRIPT|builtin --speak claude|codex|acp --home
//! DIR [the driver's arguments]`.

use std::path::PathBuf;
use std::process::ExitCode;

use sprag_agent::fake;

fn main() -> ExitCode {
    match fake::options(std::env::args().skip(1), PathBuf::from(".")) {
        Ok(options) => fake::main(&options),
        Err(problem) => {
            eprintln!("sprag-fake-agent: {problem}");
            ExitCode::from(64)
        }
    }
}
