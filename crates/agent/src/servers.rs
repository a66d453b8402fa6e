//! The MCP servers of `agents.toml`, which a step gives to its agent by name.
//!
//! ```toml
//! [mcp.github]                        # `mcp: [github]` in a pipeline file
//! command = ["github-mcp-server", "stdio"]
//! env = { GITHUB_TOOLSETS = "issues" }
//! secrets = ["GITHUB_TOKEN"]          # variables of the worker that the server gets; masked everywhere
//!
//! [mcp.docs]
//! url = "https://docs.example.com/mcp"
//! headers = { Authorization = "Bearer ${DOCS_TOKEN}" }
//! secrets = ["DOCS_TOKEN"]
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use crate::launch::{McpServer, McpTransport, OWN_SERVER};
use crate::settings::at_home;
use crate::toml::Value;

/// The keys of a server.
pub(crate) const KEYS: [&str; 5] = ["command", "url", "env", "headers", "secrets"];
/// The beginning of the name of a server's table.
const PREFIX: &str = "mcp.";

/// An MCP server as a step can give it to its agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpSettings {
    /// The name in pipeline files, under which the agent lists its tools.
    pub name: String,
    /// The program and its arguments; empty for a server with a URL.
    pub command: Vec<String>,
    /// The URL of a server that speaks streamable HTTP; absent for a program.
    pub url: Option<String>,
    /// Variables of the program.
    pub env: BTreeMap<String, String>,
    /// Headers of each request; `${NAME}` stands for the value of a secret.
    pub headers: BTreeMap<String, String>,
    /// Variables of the worker with credentials: the program gets them, and headers may name them.
    pub secrets: Vec<String>,
}

/// Returns the name of the server whose table has this name; `None` for the table of an agent.
pub(crate) fn name_in(table: &str) -> Option<&str> {
    table.strip_prefix(PREFIX)
}

impl McpSettings {
    /// Reads the keys of a table.
    pub(crate) fn of(
        name: &str,
        values: BTreeMap<String, Value>,
        home: Option<&Path>,
    ) -> Result<McpSettings, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_plain) {
            return Err("the name of a server has 1 to 64 letters, digits, `-` and `_`".to_owned());
        }
        if name == OWN_SERVER {
            return Err("this name is of Sprag's own tools: choose another".to_owned());
        }
        let mut server = McpSettings {
            name: name.to_owned(),
            command: Vec::new(),
            url: None,
            env: BTreeMap::new(),
            headers: BTreeMap::new(),
            secrets: Vec::new(),
        };
        for (key, value) in values {
            match (key.as_str(), value) {
                ("command", Value::Texts(command)) if !command.is_empty() => {
                    server.command = command.iter().map(|part| at_home(part, home)).collect();
                }
                ("command", Value::Text(program)) if !program.is_empty() => {
                    server.command = vec![at_home(&program, home)];
                }
                ("url", Value::Text(url)) if url.starts_with("http://") || url.starts_with("https://") => {
                    server.url = Some(url);
                }
                ("env", Value::Table(env)) => {
                    server.env = env.into_iter().map(|(name, value)| (name, at_home(&value, home))).collect();
                }
                ("headers", Value::Table(headers)) => server.headers = headers,
                ("secrets", Value::Texts(secrets)) => server.secrets = secrets,
                ("url", _) => return Err("url must start with http:// or https://".to_owned()),
                ("env" | "headers", _) => {
                    return Err(format!("{key} must be a table: {{ NAME = \"value\" }}"));
                }
                (key, _) => return Err(format!("{key} must be a list of texts")),
            }
        }
        match (server.command.is_empty(), &server.url) {
            (true, None) => Err("needs `command` or `url`".to_owned()),
            (false, Some(_)) => Err("has `command` or `url`, not both".to_owned()),
            (false, None) if !server.headers.is_empty() => Err("headers need `url`".to_owned()),
            (true, Some(_)) if !server.env.is_empty() => Err("env needs `command`".to_owned()),
            _ => Ok(server),
        }
    }

    /// Returns the server for an agent, with the secrets that `variable` knows.
    pub fn server(&self, variable: impl Fn(&str) -> Option<String>) -> Result<McpServer, String> {
        let mut values = BTreeMap::new();
        for name in &self.secrets {
            let value = variable(name).ok_or_else(|| {
                format!(
                    "the MCP server {} needs {name}, which is not set in the worker's environment",
                    self.name
                )
            })?;
            values.insert(name.clone(), value);
        }
        let transport = match &self.url {
            Some(url) => {
                let fill = |text: &String| {
                    values.iter().fold(text.clone(), |text, (name, value)| {
                        text.replace(&format!("${{{name}}}"), value)
                    })
                };
                let headers = self.headers.iter().map(|(name, value)| (name.clone(), fill(value)));
                McpTransport::Http { url: url.clone(), headers: headers.collect() }
            }
            None => McpTransport::Stdio {
                command: self.command.first().cloned().unwrap_or_default(),
                args: self.command.iter().skip(1).cloned().collect(),
                env: self.env.clone().into_iter().chain(values).collect(),
            },
        };
        Ok(McpServer { name: self.name.clone(), transport })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Agents;

    #[test]
    fn servers_get_their_secrets_and_no_others() {
        let text = r#"
[mcp.github]
command = ["~/bin/github-mcp", "stdio"]
env = { MODE = "issues" }
secrets = ["TOKEN"]

[mcp.docs]
url = "https://docs.example.com/mcp"
headers = { Authorization = "Bearer ${TOKEN}", Other = "${HOME}" }
secrets = ["TOKEN"]
"#;
        let agents = Agents::parse(text, Some(Path::new("/home/u"))).expect("a file");
        assert!(agents.server_names().eq(["docs", "github"]));
        let secret = |name: &str| (name == "TOKEN").then(|| "t0ken".to_owned());
        let github = agents.server("github").expect("it is there").server(secret).expect("it is set");
        let env = BTreeMap::from([("MODE".into(), "issues".into()), ("TOKEN".into(), "t0ken".into())]);
        let transport =
            McpTransport::Stdio { command: "/home/u/bin/github-mcp".into(), args: vec!["stdio".into()], env };
        assert!(github.transport == transport, "{github:?}");
        let docs = agents.server("docs").expect("it is there").server(secret).expect("it is set");
        let McpTransport::Http { headers, .. } = docs.transport else { panic!("it has a URL") };
        assert_eq!((&*headers["Authorization"], &*headers["Other"]), ("Bearer t0ken", "${HOME}"));
        let missing =
            agents.server("docs").expect("it is there").server(|_| None).expect_err("it is not set");
        assert!(missing.contains("needs TOKEN"), "{missing}");
        assert!(agents.credentials(&["mcp.github".to_owned()]).eq(["TOKEN"]));
    }
}
