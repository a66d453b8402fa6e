//! The agents of this machine: those that Sprag knows by name, and those of `agents.toml`.
//!
//! ```toml
//! [claude-work]                       # the name in pipeline files
//! driver = "claude-stream"            # or codex-app-server, acp
//! command = ["claude"]                # the program and its first arguments
//! args = []                           # added to what the driver needs
//! account = "work"                    # limits are per account; by default the agent's name
//! env = { CLAUDE_CONFIG_DIR = "~/.claude-work" }
//! secrets = ["CLAUDE_CODE_OAUTH_TOKEN"]
//! ```
//!
//! The file also has the MCP servers that steps may give to their agents: `[mcp.NAME]`, see [`McpSettings`].
//!
//! The file is read in a small part of TOML: tables, texts, numbers, lists of texts, and inline tables of texts. A key
//! that is left out has the value of the known agent with the same name or driver.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::catalog::{self, KnownAgent};
use crate::launch::Driver;
use crate::servers::{self, McpSettings};
use crate::toml::{Value, without_comment};

/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 256 << 10;
/// The keys of an agent.
const KEYS: [&str; 7] = ["driver", "command", "args", "account", "env", "secrets", "max_parallel"];

/// An agent as a step can use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentSettings {
    /// The name in pipeline files.
    pub name: String,
    /// The wire that it speaks.
    pub driver: Driver,
    /// The program and its first arguments.
    pub command: Vec<String>,
    /// Arguments that are added to those of the driver.
    pub args: Vec<String>,
    /// The account that its limits belong to.
    pub account: String,
    /// Variables of its process.
    pub env: BTreeMap<String, String>,
    /// The variables with its credentials, which no other process gets.
    pub secrets: Vec<String>,
    /// The most processes at once; absent for the default.
    pub max_parallel: Option<u32>,
}

impl AgentSettings {
    /// Returns the settings of an agent that is known by name.
    pub fn known(agent: &KnownAgent) -> AgentSettings {
        AgentSettings {
            name: agent.name.to_owned(),
            driver: agent.driver,
            command: vec![agent.program.to_owned()],
            args: Vec::new(),
            account: agent.name.to_owned(),
            env: BTreeMap::new(),
            secrets: agent.credentials.iter().map(|&name| name.to_owned()).collect(),
            max_parallel: None,
        }
    }

    /// Returns the known agent that it is: by its name, else by the name of its program.
    pub fn catalog_entry(&self) -> Option<&'static KnownAgent> {
        let program = self.command.first().and_then(|program| Path::new(program).file_name()?.to_str());
        catalog::agent(&self.name).filter(|known| known.driver == self.driver).or_else(|| {
            catalog::AGENTS.iter().find(|known| Some(known.program) == program && known.driver == self.driver)
        })
    }
}

/// All agents of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agents {
    all: BTreeMap<String, AgentSettings>,
    servers: BTreeMap<String, McpSettings>,
}

impl Default for Agents {
    /// Returns the agents that are known by name.
    fn default() -> Self {
        let known = catalog::AGENTS.iter().map(|known| (known.name.to_owned(), AgentSettings::known(known)));
        Agents { all: known.collect(), servers: BTreeMap::new() }
    }
}

impl Agents {
    /// Returns the path of the user's file, whether it exists or not.
    pub fn user_file(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
        let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
        let base = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
        base.map(|base| base.join("sprag/agents.toml"))
    }

    /// Reads a file, if it exists. `home` stands for `~` in variables and commands.
    pub fn read(file: &Path, home: Option<&Path>) -> Result<Agents, String> {
        let wrong = |why: String| format!("{}: {why}", file.display());
        match std::fs::metadata(file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Agents::default()),
            Err(error) => return Err(wrong(error.to_string())),
            Ok(meta) if !meta.is_file() => return Err(wrong("it is not a file".to_owned())),
            Ok(meta) if meta.len() > MAX_FILE_BYTES => {
                return Err(wrong(format!("it has more than {MAX_FILE_BYTES} bytes")));
            }
            Ok(_) => {}
        }
        let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
        Agents::parse(&text, home).map_err(|(line, why)| format!("{}:{line}: {why}", file.display()))
    }

    /// Reads the text of a file. An error has the line.
    pub fn parse(text: &str, home: Option<&Path>) -> Result<Agents, (usize, String)> {
        Agents::default().and(text, home)
    }

    /// Adds the agents and servers of another file, which replace those with the same names.
    pub fn and(self, text: &str, home: Option<&Path>) -> Result<Agents, (usize, String)> {
        let mut agents = self;
        let mut table: Option<(usize, String, BTreeMap<String, Value>)> = None;
        for (at, line) in text.lines().enumerate() {
            let number = at + 1;
            let line = without_comment(line).trim();
            if line.is_empty() {
                continue;
            }
            if let Some(name) = line.strip_prefix('[') {
                if let Some(done) = table.take() {
                    agents.add(done, home)?;
                }
                let name = name.strip_suffix(']').map(|name| name.trim().trim_matches('"'));
                let name = name.filter(|name| is_name(name)).ok_or((number, "write `[NAME]`".to_owned()))?;
                table = Some((number, name.to_owned(), BTreeMap::new()));
                continue;
            }
            let (key, value) = line.split_once('=').ok_or((number, "write `key = value`".to_owned()))?;
            let key = key.trim();
            let Some((_, name, values)) = &mut table else {
                return Err((number, "start with the agent's name: `[NAME]`".to_owned()));
            };
            let keys: &[&str] = if servers::name_in(name).is_some() { &servers::KEYS } else { &KEYS };
            if !keys.contains(&key) {
                return Err((number, format!("there is no key {key:?}; there are {}", keys.join(", "))));
            }
            let value = Value::parse(value.trim()).map_err(|why| (number, format!("{key}: {why}")))?;
            if values.insert(key.to_owned(), value).is_some() {
                return Err((number, format!("{key} is there twice")));
            }
        }
        if let Some(done) = table {
            agents.add(done, home)?;
        }
        Ok(agents)
    }

    fn add(
        &mut self,
        (line, name, mut values): (usize, String, BTreeMap<String, Value>),
        home: Option<&Path>,
    ) -> Result<(), (usize, String)> {
        let wrong = |why: &str| (line, format!("[{name}]: {why}"));
        if let Some(server) = servers::name_in(&name) {
            let found = McpSettings::of(server, values, home).map_err(|why| wrong(&why))?;
            self.servers.insert(server.to_owned(), found);
            return Ok(());
        }
        let driver = match values.remove("driver") {
            Some(Value::Text(driver)) => Some(driver.parse::<Driver>().map_err(|why| wrong(&why))?),
            Some(_) => return Err(wrong("driver must be a text")),
            None => None,
        };
        let command = match values.remove("command") {
            Some(Value::Texts(command)) if !command.is_empty() => Some(command),
            Some(Value::Text(program)) if !program.is_empty() => Some(vec![program]),
            Some(_) => return Err(wrong("command must be a list of texts")),
            None => None,
        };
        let base = match (catalog::agent(&name), driver) {
            (Some(known), None) => Some(known),
            (Some(known), Some(driver)) if known.driver == driver => Some(known),
            (_, Some(driver)) => {
                let program = command.as_ref().and_then(|command| command.first()).cloned();
                let same =
                    |known: &&KnownAgent| known.driver == driver && Some(known.program) == program.as_deref();
                catalog::AGENTS.iter().find(same)
            }
            (None, None) => {
                return Err(wrong("needs `driver`: claude-stream, codex-app-server or acp"));
            }
        };
        let mut agent = match base {
            Some(known) => AgentSettings::known(known),
            None => AgentSettings {
                name: String::new(),
                driver: driver.unwrap_or(Driver::Acp),
                command: Vec::new(),
                args: Vec::new(),
                account: String::new(),
                env: BTreeMap::new(),
                secrets: Vec::new(),
                max_parallel: None,
            },
        };
        agent.name.clone_from(&name);
        agent.account.clone_from(&name);
        if let Some(command) = command {
            agent.command = command.iter().map(|part| at_home(part, home)).collect();
        }
        if agent.command.is_empty() {
            return Err(wrong("needs `command`: the program and its arguments"));
        }
        for (key, value) in values {
            match (key.as_str(), value) {
                ("args", Value::Texts(args)) => {
                    agent.args = args.iter().map(|part| at_home(part, home)).collect();
                }
                ("secrets", Value::Texts(secrets)) => agent.secrets = secrets,
                ("account", Value::Text(account)) if is_name(&account) => agent.account = account,
                ("env", Value::Table(env)) => {
                    agent.env = env.into_iter().map(|(name, value)| (name, at_home(&value, home))).collect();
                }
                ("max_parallel", Value::Number(number)) if number > 0 => agent.max_parallel = Some(number),
                ("account", _) => return Err(wrong("account must be a name")),
                ("env", _) => return Err(wrong("env must be a table: { NAME = \"value\" }")),
                ("max_parallel", _) => return Err(wrong("max_parallel must be a number above 0")),
                (key, _) => return Err(wrong(&format!("{key} must be a list of texts"))),
            }
        }
        self.all.insert(name, agent);
        Ok(())
    }

    /// Returns the agent with this name.
    pub fn get(&self, name: &str) -> Option<&AgentSettings> {
        self.all.get(name)
    }

    /// Returns all agents, by name.
    pub fn iter(&self) -> impl Iterator<Item = &AgentSettings> {
        self.all.values()
    }

    /// Returns the MCP server with this name.
    pub fn server(&self, name: &str) -> Option<&McpSettings> {
        self.servers.get(name)
    }

    /// Returns the names of the MCP servers.
    pub fn server_names(&self) -> impl Iterator<Item = &str> {
        self.servers.keys().map(String::as_str)
    }

    /// Returns the names of the variables with credentials of these agents, and of MCP servers named as `mcp.NAME`.
    pub fn credentials<'a>(&'a self, names: &'a [String]) -> impl Iterator<Item = &'a str> {
        let of = |name: &'a String| match servers::name_in(name) {
            Some(server) => self.servers.get(server).map(|server| server.secrets.as_slice()),
            None => self.all.get(name).map(|agent| agent.secrets.as_slice()),
        };
        names.iter().filter_map(of).flatten().map(String::as_str)
    }
}

/// Returns whether a text can be the name of an agent in a pipeline file.
fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// Replaces a leading `~/` by the user's home.
pub(crate) fn at_home(text: &str, home: Option<&Path>) -> String {
    match (text.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest).display().to_string(),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_adds_and_changes_agents() {
        let text = r#"
# Two accounts.
[claude]
account = "work"                  # not "private"
env = { CLAUDE_CONFIG_DIR = "~/.claude-work", X = 'a # b' }
secrets = ["CLAUDE_CODE_OAUTH_TOKEN"]
max_parallel = 3

[mine]
driver = "acp"
command = ["~/bin/mine", "--acp",]
args = []
"#;
        let agents = Agents::parse(text, Some(Path::new("/home/u"))).expect("a file");
        let claude = agents.get("claude").expect("it is known");
        assert_eq!(
            (claude.account.as_str(), claude.command.as_slice()),
            ("work", &["claude".to_owned()][..])
        );
        assert_eq!(claude.env["CLAUDE_CONFIG_DIR"], "/home/u/.claude-work");
        assert_eq!(claude.env["X"], "a # b");
        assert_eq!(
            (claude.secrets.as_slice(), claude.max_parallel),
            (&["CLAUDE_CODE_OAUTH_TOKEN".to_owned()][..], Some(3))
        );
        let mine = agents.get("mine").expect("it was added");
        assert_eq!((mine.driver, mine.command.join(" ")), (Driver::Acp, "/home/u/bin/mine --acp".to_owned()));
        assert_eq!(mine.account, "mine");
        assert_eq!(mine.catalog_entry(), None);
        assert_eq!(agents.get("codex"), Agents::default().get("codex"));
        let names = ["claude".to_owned(), "codex".to_owned()];
        assert!(agents.credentials(&names).eq([
            "CLAUDE_CODE_OAUTH_TOKEN",
            "OPENAI_API_KEY",
            "CODEX_API_KEY"
        ]));
    }

    #[test]
    fn mistakes_name_their_line() {
        for (text, line, expected) in [
            ("x = 1", 1, "start with"),
            ("[a b]", 1, "[NAME]"),
            ("[x]\ncommand = [\"x\"]", 1, "needs `driver`"),
            ("[x]\ndriver = \"telnet\"", 1, "telnet"),
            ("[x]\ndriver = \"acp\"", 1, "needs `command`"),
            ("[claude]\ncomand = [\"x\"]", 2, "there is no key"),
            ("[claude]\nargs = \"x\"", 1, "args must be a list"),
            ("[claude]\nargs = [\"x\" \"y\"]", 2, "between values"),
            ("[claude]\nargs = [\"x\"] y", 2, "follows"),
            ("[claude]\nargs = [\"x]", 2, "closing quote"),
            ("[claude]\nenv = { A = 1 }", 2, "in quotes"),
            ("[claude]\nmax_parallel = 0", 1, "above 0"),
            ("[claude]\nargs = []\nargs = []", 3, "twice"),
            ("[claude]\nargs", 2, "key = value"),
            ("[mcp.a]\nargs = []", 2, "there is no key"),
            ("[mcp.a]\nenv = { A = \"b\" }", 1, "needs `command` or `url`"),
            ("[mcp.a]\ncommand = [\"x\"]\nurl = \"http://127.0.0.1\"", 1, "not both"),
            ("[mcp.a]\nurl = \"ftp://x\"", 1, "http://"),
            ("[mcp.a]\ncommand = [\"x\"]\nheaders = { A = \"b\" }", 1, "headers"),
            ("[mcp.a.b]\ncommand = [\"x\"]", 1, "letters"),
            ("[mcp.sprag]\ncommand = [\"x\"]", 1, "Sprag's own"),
        ] {
            let (found, why) = Agents::parse(text, None).expect_err(text);
            assert!(found == line && why.contains(expected), "{text}: {found}: {why}");
        }
    }
}
