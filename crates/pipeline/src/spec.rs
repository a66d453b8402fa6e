//! What a step does, as a worker reads it from the plan.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A step's work. Texts may hold templates until [`crate::render_step`] has filled them in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepSpec {
    /// The work itself.
    pub kind: Kind,
    /// Environment variables, those of the pipeline included.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The working directory, relative to where the run works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// The longest that one attempt may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// The kinds of work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A command text, run by a shell.
    Run {
        /// The text.
        command: String,
        /// What runs it.
        shell: Shell,
    },
    /// A program and its arguments, run without a shell.
    Exec {
        /// The program, then each argument.
        argv: Vec<String>,
    },
    /// A handler of the embedding program.
    Call {
        /// The name under which it was registered.
        handler: String,
        /// What it is given.
        with: serde_json::Value,
    },
}

/// A program and arguments that a command text is appended to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shell(pub Vec<String>);

/// The shells whose quoting is known, so that values can be passed to them safely.
const POSIX_SHELLS: [&str; 5] = ["sh", "bash", "dash", "zsh", "ksh"];

impl Shell {
    /// The shell of this name: it ends at the first command that fails, as on CI systems.
    pub(crate) fn named(name: &str) -> Shell {
        let flags: &[&str] = if name == "bash" { &["-eo", "pipefail", "-c"] } else { &["-e", "-c"] };
        Shell(std::iter::once(name).chain(flags.iter().copied()).map(str::to_owned).collect())
    }

    /// Whether it reads command texts as a POSIX shell does.
    pub(crate) fn is_posix(&self) -> bool {
        self.0.first().is_some_and(|program| POSIX_SHELLS.contains(&base_name(program)))
    }
}

impl Default for Shell {
    fn default() -> Self {
        Shell::named("sh")
    }
}

/// A program's name without its directory.
pub(crate) fn base_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

impl StepSpec {
    /// The program to start and its arguments; none for work that is no process.
    pub fn argv(&self) -> Option<Vec<String>> {
        match &self.kind {
            Kind::Run { command, shell } => Some(shell.0.iter().chain([command]).cloned().collect()),
            Kind::Exec { argv } => Some(argv.clone()),
            Kind::Call { .. } => None,
        }
    }
}
