//! Finds the agent of a step on this machine, and prepares its process: program, arguments, variables, credentials.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sprag_agent::{AgentSettings, Agents, Launch, McpServer, Permissions, Session, catalog};
use sprag_lifecycle::ExecutionId;
use sprag_pipeline::{AgentPermissions, AgentSpec, Kind, StepSpec};
use sprag_process::{Order, inherited, make_private_folder, replace_private, variable};
use sprag_store::Assignment;

use super::servers::{self, server_in};
use super::trust;
use crate::command::{Commands, failed};
use crate::control::Control;
use crate::environment::RunEnvironment;
use crate::files::Files;
use crate::slots::Ended;

/// The key of a run's context that replaces every agent by this one.
pub const FAKE_AGENTS: &str = "agents";
/// The name of the agent that costs nothing.
const FAKE: &str = "fake";

/// An agent that cannot be started on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingAgent {
    /// The agent's name.
    pub name: String,
    /// The problem, and what to do.
    pub message: String,
}

/// Reads the agents of this machine, and those of the repository that a folder is in, if they are trusted.
pub fn agents(folder: Option<&Path>) -> Result<Agents, String> {
    let path = |name: &str| variable(name).map(PathBuf::from);
    let home = path("HOME");
    let agents = match Agents::user_file(path) {
        Some(file) => Agents::read(&file, home.as_deref())?,
        None => Agents::default(),
    };
    match folder {
        Some(folder) => trust::with_repository(agents, folder, home.as_deref()),
        None => Ok(agents),
    }
}

/// Returns the folder in which a run was started.
pub(crate) fn start_folder(assignment: &Assignment) -> Option<PathBuf> {
    let context: Value = serde_json::from_str(&assignment.context).unwrap_or_default();
    context["dir"].as_str().map(PathBuf::from)
}

/// Returns the variables with the credentials of these agents. No other step gets them, and they are masked everywhere.
pub(crate) fn credentials(names: &[String], folder: Option<&Path>) -> Vec<String> {
    if names.is_empty() {
        return Vec::new();
    }
    // A broken file is reported by the agent step itself.
    agents(folder).unwrap_or_default().credentials(names).map(str::to_owned).collect()
}

/// Returns the agents of this list that cannot be started on this machine, by a step that inherits its environment.
pub fn check_agents<'a>(
    names: impl Iterator<Item = &'a str>,
    folder: Option<&Path>,
) -> Result<Vec<MissingAgent>, String> {
    let agents = agents(folder)?;
    let path = variable("PATH").unwrap_or_default();
    let path = path.to_string_lossy();
    let missing = names.filter(|name| *name != FAKE).filter_map(|name| {
        let message = match server_in(name) {
            Some(server) => servers::problem(&agents, server, &path)?,
            None => find(&agents, name, &path).err()?,
        };
        let message = match trust::hint(folder, name) {
            Some(hint) => format!("{message}; {hint}"),
            None => message,
        };
        Some(MissingAgent { name: name.to_owned(), message })
    });
    Ok(missing.collect())
}

/// Returns an agent and the path of its program, or what is wrong.
fn find(agents: &Agents, name: &str, path: &str) -> Result<(AgentSettings, PathBuf), String> {
    let Some(settings) = agents.get(name) else {
        let known: Vec<&str> = agents.iter().map(|agent| agent.name.as_str()).collect();
        return Err(format!(
            "there is no agent {name:?}: add it to agents.toml (`sprag config` shows the folder), or use one of {}",
            known.join(", ")
        ));
    };
    let program = settings.command.first().map(String::as_str).unwrap_or_default();
    match catalog::find_program(program, path) {
        Some(found) => Ok((settings.clone(), found)),
        None => {
            let install = settings.catalog_entry().map(|known| known.install);
            let hint = install.map(|install| format!(": install it with `{install}`")).unwrap_or_default();
            Err(format!("agent {name}: the program {program:?} was not found{hint}"))
        }
    }
}

/// An agent that can be started here.
pub(crate) struct Resolved {
    pub(crate) settings: AgentSettings,
    program: PathBuf,
    /// Whether the step's `model` is one of this agent, and not only of the one that it stands in for.
    knows_model: bool,
    /// The MCP servers that it gets.
    servers: Vec<McpServer>,
}

impl Commands {
    /// Finds the agent of a step, or returns the step's ending.
    pub(super) fn resolve(
        &self,
        assignment: &Assignment,
        agent: &AgentSpec,
        spec: &StepSpec,
    ) -> Result<Resolved, Ended> {
        let wrong = |message: String| failed(&json!({ "reason": "agent", "message": message }), false);
        let folder = start_folder(assignment);
        let agents = agents(folder.as_deref()).map_err(wrong)?;
        let context: Value = serde_json::from_str(&assignment.context).unwrap_or_default();
        let stand_in = assignment.stand_in.as_deref();
        let name = context[FAKE_AGENTS].as_str().or(stand_in).unwrap_or(&agent.agent);
        if name == FAKE && agents.get(FAKE) == Agents::default().get(FAKE) {
            return self.fake_agent().map_err(wrong);
        }
        let path = spec.env.get("PATH").cloned().or_else(|| variable("PATH")?.into_string().ok());
        let (settings, program) = find(&agents, name, &path.unwrap_or_default()).map_err(|why| {
            wrong(match trust::hint(folder.as_deref(), name) {
                Some(hint) => format!("{why}; {hint}"),
                None => why,
            })
        })?;
        let own_driver = agents.get(&agent.agent).map(|own| own.driver);
        let knows_model = stand_in.is_none() || own_driver == Some(settings.driver);
        let servers = servers::servers(&agents, agent).map_err(wrong)?;
        Ok(Resolved { settings, program, knows_model, servers })
    }

    /// Returns the fake agent with its built-in script, which this program plays.
    fn fake_agent(&self) -> Result<Resolved, String> {
        let Some(program) = self.fake_agent.clone() else {
            return Err("this program has no fake agent: name one in agents.toml".to_owned());
        };
        let known = catalog::agent(FAKE).ok_or("there is no fake agent")?;
        let mut settings = AgentSettings::known(known);
        let home = self.files.data().join("fake-agent").display().to_string();
        settings.command = ["sprag", "agent", "fake", "builtin", "--speak", "claude", "--home", &home]
            .map(str::to_owned)
            .into();
        Ok(Resolved { settings, program, knows_model: true, servers: Vec::new() })
    }
}

impl Resolved {
    /// Returns the launch of the agent in a session.
    pub(super) fn launch(&self, agent: &AgentSpec, dir: PathBuf, scratch: &Path, session: Session) -> Launch {
        let mut launch = Launch::new(&self.settings.name, &dir, scratch, session);
        launch.driver = self.settings.driver;
        let program = self.program.display().to_string();
        launch.command =
            std::iter::once(program).chain(self.settings.command.iter().skip(1).cloned()).collect();
        launch.args.clone_from(&self.settings.args);
        launch.permissions = match agent.permissions {
            AgentPermissions::Auto => Permissions::Auto,
            AgentPermissions::ReadOnly => Permissions::ReadOnly,
            AgentPermissions::Ask => Permissions::Ask,
        };
        launch.model = agent.model.clone().filter(|_| self.knows_model);
        launch.mcp_servers.clone_from(&self.servers);
        launch.system.clone_from(&agent.system);
        launch.output_schema.clone_from(&agent.output_schema);
        launch.is_root = sprag_agent::is_root();
        launch
    }

    /// Returns the order for the supervisor. It alone has the agent's credentials.
    pub(super) fn order(
        &self,
        commands: &Commands,
        assignment: &Assignment,
        spec: &StepSpec,
        place: Option<&RunEnvironment>,
        control: &Control,
        launch: &Launch,
    ) -> Result<Order, String> {
        let line = launch.command_line();
        for file in &line.files {
            replace_private(&file.path, file.content.as_bytes())
                .map_err(|error| format!("cannot write {}: {error}", file.path.display()))?;
        }
        let own = self.settings.secrets.iter().filter(|name| variable(name).is_some());
        let own: Vec<String> = own.filter(|name| !spec.secrets.contains(name)).cloned().collect();
        let secrets: Vec<String> = spec.secrets.iter().chain(&own).cloned().collect();
        let mut spec =
            StepSpec { kind: Kind::Exec { argv: line.argv, each: Vec::new() }, secrets, ..spec.clone() };
        if let Some(sandbox) = &mut spec.sandbox {
            // The agent starts this program to reach its tools.
            let own = commands.fake_agent.iter().filter(|_| launch.mcp_servers.iter().any(is_sprag));
            sandbox.read.extend(own.map(|program| program.display().to_string()));
        }
        let (mut order, _) = commands.order(assignment, &spec, place, control)?;
        let others: Vec<String> = spec
            .masks
            .iter()
            .filter(|name| !spec.secrets.contains(name))
            .chain(&line.env_remove)
            .cloned()
            .collect();
        order.inherits = Some(inherited(&spec.inherit, &others));
        order.env.extend(self.settings.env.clone());
        order.env.extend(line.env);
        Ok(order)
    }

    /// Returns what to do about a refused login.
    pub(super) fn login_remedy(&self) -> String {
        let program = self.program.file_name().unwrap_or_default().to_string_lossy();
        match self.settings.secrets.as_slice() {
            [] => format!("Log in with `{program}`, then `sprag resume`"),
            names => format!("Log in with `{program}`, or set {}, then `sprag resume`", names.join(" or ")),
        }
    }
}

/// Whether a server of an agent is the one with the tools of the step.
fn is_sprag(server: &McpServer) -> bool {
    server.name == super::SPRAG_TOOLS
}

/// A folder for files that the agent reads at its start; removed when dropped.
pub(super) struct ScratchFolder(PathBuf);

impl ScratchFolder {
    pub(super) fn make(files: &Files, id: ExecutionId, step: &str) -> std::io::Result<ScratchFolder> {
        let folder = files.scratch(id, step);
        make_private_folder(&folder)?;
        Ok(ScratchFolder(folder))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "a private folder of an agent was not removed");
        }
    }
}
