//! The MCP servers of an agent step: the user's own, from agents.toml.

use std::path::PathBuf;

use sprag_agent::{Agents, McpServer, OWN_SERVER, catalog};
use sprag_pipeline::AgentSpec;
use sprag_process::variable;

/// The beginning of the name of a server in the list of a pipeline's agents.
const PREFIX: &str = "mcp.";

/// Returns the MCP servers of a step, with their secrets, or what is wrong.
pub(super) fn servers(agents: &Agents, agent: &AgentSpec) -> Result<Vec<McpServer>, String> {
    let secret = |name: &str| variable(name)?.into_string().ok();
    let named = agent.mcp.iter().filter(|name| *name != OWN_SERVER);
    named.map(|name| agents.server(name).ok_or_else(|| unknown(agents, name))?.server(secret)).collect()
}

/// Returns the server that a name in the list of a pipeline's agents means; `None` for an agent.
pub(super) fn server_in(name: &str) -> Option<&str> {
    name.strip_prefix(PREFIX)
}

/// Returns what is wrong with a server on this machine; `None` if nothing is.
pub(super) fn problem(agents: &Agents, name: &str, path: &str) -> Option<String> {
    if name == OWN_SERVER {
        return None;
    }
    let Some(server) = agents.server(name) else { return Some(unknown(agents, name)) };
    let found = |program: &String| catalog::find_program(program, path);
    match server.command.first().map(|program| (program, found(program))) {
        Some((program, None::<PathBuf>)) => {
            Some(format!("MCP server {name}: the program {program:?} was not found"))
        }
        _ => None,
    }
}

fn unknown(agents: &Agents, name: &str) -> String {
    let known: Vec<&str> = agents.server_names().collect();
    let known = match known.as_slice() {
        [] => "there are none yet".to_owned(),
        known => format!("there are {}", known.join(", ")),
    };
    format!(
        "there is no MCP server {name:?}: add `[mcp.{name}]` to agents.toml (`sprag config` shows the folder); {known}"
    )
}
