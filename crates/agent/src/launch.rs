//! One start of an agent: the program, the session and the permissions. This module spawns nothing.
//!
//! ```text
//!   Launch ──▶ command_line() ─▶ argv, environment, private files   the worker spawns it under its supervisor
//!          └─▶ conversation() ─▶ the state machine that talks over its stdin and stdout
//! ```
//!
//! Prompts, system prompts and secrets never go into argv, which every process of the machine can read and which is
//! limited to 128 KiB. They go over the wire, or into a file that only the user can read.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::catalog;
use crate::conversation::{Conversation, Limits};

/// The MCP server of Sprag through which a step reports; its tools are allowed without asking.
pub const OWN_SERVER: &str = "sprag";

/// The wire that an agent speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Driver {
    /// Claude Code's stream of JSON lines.
    ClaudeStream,
    /// Codex's app server, JSON-RPC on stdio.
    CodexAppServer,
    /// The Agent Client Protocol, version 1.
    Acp,
}

impl Driver {
    /// All drivers.
    pub const ALL: [Driver; 3] = [Driver::ClaudeStream, Driver::CodexAppServer, Driver::Acp];

    /// Returns the driver's name in `agents.toml`.
    pub fn name(self) -> &'static str {
        match self {
            Driver::ClaudeStream => "claude-stream",
            Driver::CodexAppServer => "codex-app-server",
            Driver::Acp => "acp",
        }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Driver {
    type Err = String;

    fn from_str(name: &str) -> Result<Driver, String> {
        let found = Driver::ALL.into_iter().find(|driver| driver.name() == name);
        found.ok_or_else(|| format!("no driver {name:?}; there are claude-stream, codex-app-server and acp"))
    }
}

/// The session to work in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Session {
    /// A new session. Claude Code uses this id (a UUID); the other agents choose their own.
    New {
        /// The id to use if the agent lets its caller choose.
        id: String,
    },
    /// An existing session.
    Resume {
        /// The id from [`crate::SessionInfo::session`].
        id: String,
    },
}

impl Session {
    /// Returns whether the session existed before.
    pub fn is_resumed(&self) -> bool {
        matches!(self, Session::Resume { .. })
    }
}

/// The permissions of an agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Permissions {
    /// Everything is allowed.
    #[default]
    Auto,
    /// The agent asks, and the caller answers.
    Ask,
    /// The agent may read but not change anything.
    ReadOnly,
}

/// An MCP server that the agent starts or connects to.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct McpServer {
    /// The name under which the agent lists its tools.
    pub name: String,
    /// The connection to the server.
    #[serde(flatten)]
    pub transport: McpTransport,
}

/// The connection to an MCP server.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum McpTransport {
    /// A program that speaks over its stdin and stdout.
    Stdio {
        /// The program.
        command: String,
        /// The arguments of the program.
        #[serde(default)]
        args: Vec<String>,
        /// Variables to set; the values may be secret.
        #[serde(default)]
        env: BTreeMap<String, String>,
    },
    /// A server that speaks streamable HTTP.
    Http {
        /// The URL of the endpoint.
        url: String,
        /// Headers to send; the values may be secret.
        #[serde(default)]
        headers: BTreeMap<String, String>,
    },
}

impl fmt::Debug for McpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match &self.transport {
            McpTransport::Stdio { command, .. } => command,
            McpTransport::Http { url, .. } => url,
        };
        write!(f, "McpServer({}: {what})", self.name)
    }
}

/// One start of an agent.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The agent's name, which selects its quirks: `claude`, `codex`, `gemini`, `opencode`, `qwen`, `fake`, or
    /// any other.
    pub agent: String,
    /// The wire that it speaks.
    pub driver: Driver,
    /// The program and its first arguments.
    pub command: Vec<String>,
    /// Arguments that are added to those of the driver.
    pub args: Vec<String>,
    /// The absolute path of the folder in which the agent works.
    pub dir: PathBuf,
    /// An existing folder that only this user can read, for files that the agent reads at its start. It must live as
    /// long as the agent.
    pub scratch: PathBuf,
    /// The session to start or resume.
    pub session: Session,
    /// The permissions of the agent.
    pub permissions: Permissions,
    /// The model; absent for the agent's own choice.
    pub model: Option<String>,
    /// A text that is added to the agent's system prompt. ACP has no field for it, so there it precedes the first
    /// prompt.
    pub system: Option<String>,
    /// The MCP servers to offer.
    pub mcp_servers: Vec<McpServer>,
    /// The JSON schema that the output of each turn must match.
    pub output_schema: Option<Value>,
    /// Whether to send [`crate::Event::TextDelta`] while a message is being written.
    pub deltas: bool,
    /// Whether the agent runs as root, which Claude Code only accepts with a variable that declares a sandbox.
    pub is_root: bool,
}

impl Launch {
    /// Returns a launch with the usual command of a known agent, or of an unknown agent that speaks ACP.
    pub fn new(agent: &str, dir: &Path, scratch: &Path, session: Session) -> Launch {
        let known = catalog::agent(agent);
        Launch {
            agent: agent.to_owned(),
            driver: known.map_or(Driver::Acp, |known| known.driver),
            command: vec![known.map_or(agent, |known| known.program).to_owned()],
            args: Vec::new(),
            dir: dir.to_owned(),
            scratch: scratch.to_owned(),
            session,
            permissions: Permissions::default(),
            model: None,
            system: None,
            mcp_servers: Vec::new(),
            output_schema: None,
            deltas: false,
            is_root: false,
        }
    }

    /// Returns the process to start.
    pub fn command_line(&self) -> CommandLine {
        let mut line = CommandLine { argv: self.command.clone(), ..CommandLine::default() };
        match self.driver {
            Driver::ClaudeStream => crate::claude::command_line(self, &mut line),
            Driver::CodexAppServer => crate::codex::command_line(self, &mut line),
            Driver::Acp => crate::acp::command_line(self, &mut line),
        }
        line.argv.extend(self.args.iter().cloned());
        line
    }

    /// Returns the state machine that talks to the process.
    pub fn conversation(&self, limits: Limits) -> Conversation {
        Conversation::new(self, limits)
    }
}

/// Returns whether this process runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A process to start: its stdin and stdout are pipes that carry the conversation, its stderr is a log.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// The program and its arguments. They contain no prompt and no secret.
    pub argv: Vec<String>,
    /// Variables to set.
    pub env: BTreeMap<String, String>,
    /// Variables that must not be inherited.
    pub env_remove: Vec<String>,
    /// Files to write before the start, with mode 0600.
    pub files: Vec<PrivateFile>,
}

/// A file that the agent reads at its start.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateFile {
    /// The path, in [`Launch::scratch`].
    pub path: PathBuf,
    /// The content, which may be secret.
    pub content: String,
}

impl CommandLine {
    pub(crate) fn arg(&mut self, arg: impl Into<String>) -> &mut CommandLine {
        self.argv.push(arg.into());
        self
    }

    pub(crate) fn env(&mut self, name: &str, value: impl Into<String>) -> &mut CommandLine {
        self.env.insert(name.to_owned(), value.into());
        self
    }
}

impl fmt::Debug for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: Vec<_> = self.files.iter().map(|file| &file.path).collect();
        f.debug_struct("CommandLine")
            .field("argv", &self.argv)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("env_remove", &self.env_remove)
            .field("files", &files)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t11_neither_prompts_nor_secrets_are_in_argv_or_debug() {
        for agent in ["claude", "codex", "gemini", "opencode", "qwen", "fake", "some-acp-agent"] {
            for permissions in [Permissions::Auto, Permissions::Ask, Permissions::ReadOnly] {
                let session = Session::New { id: "0".to_owned() };
                let mut launch = Launch::new(agent, Path::new("/wt"), Path::new("/scratch"), session);
                launch.permissions = permissions;
                launch.system = Some("SECRET-system".to_owned());
                launch.output_schema = Some(serde_json::json!({"type": "SECRET-schema"}));
                launch.mcp_servers = vec![
                    McpServer {
                        name: "a".to_owned(),
                        transport: McpTransport::Stdio {
                            command: "x".to_owned(),
                            args: Vec::new(),
                            env: BTreeMap::from([("TOKEN".to_owned(), "SECRET-env".to_owned())]),
                        },
                    },
                    McpServer {
                        name: "b".to_owned(),
                        transport: McpTransport::Http {
                            url: "http://127.0.0.1".to_owned(),
                            headers: BTreeMap::from([(
                                "authorization".to_owned(),
                                "SECRET-header".to_owned(),
                            )]),
                        },
                    },
                ];
                let line = launch.command_line();
                assert!(!line.argv.join(" ").contains("SECRET"), "{agent}: {:?}", line.argv);
                assert!(!format!("{line:?} {:?}", launch.mcp_servers).contains("SECRET"), "{agent}");
            }
        }
    }

    #[test]
    fn drivers_have_names() {
        for driver in Driver::ALL {
            assert_eq!(driver.name().parse::<Driver>(), Ok(driver));
            assert_eq!(serde_json::to_value(driver).expect("JSON"), driver.name());
        }
        assert!("telnet".parse::<Driver>().is_err());
    }
}
