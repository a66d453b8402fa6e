//! The fake agent as a separate program, for tests: `sprag-fake-agent SCRIPT|builtin --speak claude|codex|acp --home
//! DIR [the driver's arguments]`.

use std::path::PathBuf;
use std::process::ExitCode;

use sprag_agent::fake::{self, Dialect, FakeOptions, Script};

fn main() -> ExitCode {
    match options(std::env::args().skip(1)) {
        Ok(options) => fake::main(&options),
        Err(problem) => {
            eprintln!("sprag-fake-agent: {problem}");
            ExitCode::from(64)
        }
    }
}

fn options(mut args: impl Iterator<Item = String>) -> Result<FakeOptions, String> {
    let file = args.next().ok_or("want a script")?;
    let script = match file.as_str() {
        "builtin" => Script::builtin(),
        file => {
            let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
            Script::parse(&text).map_err(|error| format!("{file}: {error}"))?
        }
    };
    let mut options =
        FakeOptions { script, speak: Dialect::Claude, home: PathBuf::from("."), args: Vec::new() };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--speak" => options.speak = args.next().ok_or("--speak what?")?.parse()?,
            "--home" => options.home = args.next().ok_or("--home where?")?.into(),
            _ => options.args.push(arg),
        }
    }
    Ok(options)
}
