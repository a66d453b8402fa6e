//! The arguments of `sprag agent`.

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// Play a coding agent: follow a script, speak the protocol of a real one
    #[command(after_help = "\
It costs nothing, works offline, and keeps its sessions in a folder. docs/agents.md
describes the scripts. `builtin` makes a small commit.

Examples:
  sprag run feature --agents fake      replaces the agents of a pipeline
  sprag agent fake script.yaml --speak codex --home /tmp/fake")]
    Fake {
        /// The script: a file, or `builtin`
        script: String,
        /// The protocol: claude, codex or acp
        #[arg(long, default_value = "claude")]
        speak: String,
        /// The folder for its sessions [default: fake-agent in the data directory]
        #[arg(long, value_name = "DIR")]
        home: Option<String>,
        /// The arguments of the agent that it plays
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        args: Vec<String>,
    },
}
