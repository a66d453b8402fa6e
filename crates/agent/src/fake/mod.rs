//! The fake agent: a program that speaks like Claude Code, Codex or an ACP agent and follows a script.
//!
//! ```text
//!   SCRIPT ─▶ Actor ─▶ Speaker (claude | codex | acp) ─▶ stdout
//!               ▲  ├─▶ tools, each in a separate session, as real agents start them
//!   stdin ──────┘  └─▶ Home: sessions on disk, and a record of everything that the agent was given
//! ```
//!
//! It runs offline and costs nothing. It serves tests of the drivers, dry runs of pipelines, and demonstrations. It can
//! also reproduce every fault that was seen in real agents, and more: see [`Step`].

mod actor;
mod export;
mod faults;
mod home;
mod mcp;
mod output;
mod sample;
mod script;
mod step;
mod tool;
mod wire;
mod yaml;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

pub use export::script_of;
pub use script::{Script, ScriptError, ScriptTurn};
pub use step::{Ending, Step};

use crate::launch::Driver;

/// The wire that the fake agent speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// Claude Code's.
    #[default]
    Claude,
    /// Codex's.
    Codex,
    /// ACP.
    Acp,
}

impl Dialect {
    /// All dialects.
    pub const ALL: [Dialect; 3] = [Dialect::Claude, Dialect::Codex, Dialect::Acp];

    /// Returns the name for `--speak`.
    pub fn name(self) -> &'static str {
        match self {
            Dialect::Claude => "claude",
            Dialect::Codex => "codex",
            Dialect::Acp => "acp",
        }
    }

    /// Returns the driver that speaks it.
    pub fn driver(self) -> Driver {
        match self {
            Dialect::Claude => Driver::ClaudeStream,
            Dialect::Codex => Driver::CodexAppServer,
            Dialect::Acp => Driver::Acp,
        }
    }
}

impl FromStr for Dialect {
    type Err = String;

    fn from_str(name: &str) -> Result<Dialect, String> {
        let found = Dialect::ALL.into_iter().find(|dialect| dialect.name() == name);
        found
            .ok_or_else(|| format!("the fake agent does not speak {name:?}; it speaks claude, codex and acp"))
    }
}

/// The options of a fake agent.
#[derive(Debug, Clone)]
pub struct FakeOptions {
    /// The script that it follows.
    pub script: Script,
    /// The wire that it speaks.
    pub speak: Dialect,
    /// The folder for its sessions and records; created if it does not exist.
    pub home: PathBuf,
    /// The arguments that the driver added. The Claude dialect reads its session, rights and MCP servers from them.
    pub args: Vec<String>,
}

/// Reads the options from a command line: `SCRIPT|builtin [--speak WIRE] [--home DIR] [the driver's arguments]`.
pub fn options(mut args: impl Iterator<Item = String>, home: PathBuf) -> Result<FakeOptions, String> {
    let file = args.next().ok_or("name a script, or `builtin`")?;
    let script = match file.as_str() {
        "builtin" => Script::builtin(),
        file => {
            let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
            Script::parse(&text).map_err(|error| format!("{file}: {error}"))?
        }
    };
    let mut options = FakeOptions { script, speak: Dialect::Claude, home, args: Vec::new() };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--speak" => options.speak = args.next().ok_or("--speak needs claude, codex or acp")?.parse()?,
            "--home" => options.home = args.next().ok_or("--home needs a folder")?.into(),
            _ => options.args.push(arg),
        }
    }
    Ok(options)
}

/// Plays the script on this process's stdin and stdout until stdin ends or the script exits. Returns the exit code.
pub fn main(options: &FakeOptions) -> ExitCode {
    match actor::play(options) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // Stderr is the agent's log; if it is closed, the error cannot be reported.
            writeln!(std::io::stderr(), "fake agent: {error}").ok();
            ExitCode::from(70)
        }
    }
}
