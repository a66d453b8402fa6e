//! `sprag trust`: lets the agents.toml of this repository count.

use serde_json::json;
use sprag_app::{RepositoryAgents, repository_agents, set_trust};

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{line, plain};

pub(crate) fn trust(context: &Context, remove: bool) -> Result<Exit, Failure> {
    let here = std::env::current_dir().map_err(|error| Failure::error(format!("this folder: {error}")))?;
    let Some(found) = repository_agents(&here) else {
        return Err(Failure::error("there is no .sprag/agents.toml in this repository")
            .next("agents of this machine are in agents.toml of the folder that `sprag config` shows"));
    };
    set_trust(&found, !remove)
        .map_err(|error| Failure::error(format!("the list of trusted files was not written: {error}")))?;
    if context.json {
        let facts = json!({ "file": found.file, "trusted": !remove, "commands": commands(&found) });
        line(&facts.to_string());
        return Ok(Exit::Ok);
    }
    if remove {
        eprintln!("no longer trusted: {}", found.file.display());
        return Ok(Exit::Ok);
    }
    for command in commands(&found) {
        line(&plain(&command));
    }
    eprintln!("trusted until it changes: {}", found.file.display());
    Ok(Exit::Ok)
}

/// Returns the lines that name programs, arguments and variables: all that makes the file worth a look.
fn commands(found: &RepositoryAgents) -> Vec<String> {
    let lines = found.text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}
