//! The agents of this machine: which of them can be started, and their state for `doctor`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use sprag_agent::catalog::{Login, probe};
use sprag_agent::{AgentSettings, Agents};
use sprag_lifecycle::Plan;
use sprag_pipeline::Pipeline;
use sprag_worker::MissingAgent;

use crate::error::Error;

/// The longest time that an agent may take to tell its version or its login.
const PROBE_TIMEOUT: Duration = Duration::from_secs(15);

/// Returns the agents of a pipeline that cannot be started on this machine. A run that this machine executes would fail.
pub fn missing_agents(pipeline: &Pipeline) -> Result<Vec<MissingAgent>, Error> {
    sprag_worker::check_agents(pipeline.agents(), here().as_deref()).map_err(Error::failed)
}

/// Returns the folder of this process, in whose repository agents are looked for.
fn here() -> Option<PathBuf> {
    std::env::current_dir().ok()
}

/// The agents of this machine, as this process has read them last. A child run is planned inside the store's
/// transaction, which must not wait for a file.
static KNOWN: RwLock<Option<Arc<Agents>>> = RwLock::new(None);

/// Reads the agents.toml of this machine, for the child runs that are planned later too.
pub(crate) fn read_agents() -> Arc<Agents> {
    // A broken file is reported by the agent step itself.
    let agents = Arc::new(sprag_worker::agents(here().as_deref()).unwrap_or_default());
    *KNOWN.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&agents));
    agents
}

/// Names the accounts of a plan's agents, and limits them, as the agents.toml of this machine does.
pub(crate) fn name_accounts(plan: &mut Plan) {
    if plan.steps.iter().any(|step| step.account.is_some()) {
        name_accounts_as(&read_agents(), plan);
    }
}

/// Names the accounts as [`name_accounts`] does, with the agents that were read last: reads no file.
pub(crate) fn name_known_accounts(plan: &mut Plan) {
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner).clone();
    name_accounts_as(&known.unwrap_or_default(), plan);
}

fn name_accounts_as(agents: &Agents, plan: &mut Plan) {
    for account in plan.steps.iter_mut().filter_map(|step| step.account.as_mut()) {
        for other in &mut account.fallbacks {
            if let Some(settings) = agents.get(&other.agent) {
                other.account.clone_from(&settings.account);
                other.max_parallel = settings.max_parallel.unwrap_or(other.max_parallel);
            }
        }
        if let Some(settings) = agents.get(&account.name) {
            account.name.clone_from(&settings.account);
            account.max_parallel = settings.max_parallel.unwrap_or(account.max_parallel);
        }
    }
}

/// The state of an agent on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentState {
    /// The name in pipeline files.
    pub name: String,
    /// Whether its program was found.
    pub is_installed: bool,
    /// The version, the login and known problems, or how to install it.
    pub text: String,
}

/// Examines all agents that this machine knows by name. Runs the version and login commands of the installed ones.
pub async fn agent_states() -> Result<Vec<AgentState>, Error> {
    let agents = sprag_worker::agents(here().as_deref()).map_err(Error::failed)?;
    let env: BTreeMap<String, String> = sprag_process::inherited(&["*".to_owned()], &[])
        .into_iter()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let mut examined = tokio::task::JoinSet::new();
    for agent in real_agents(&agents) {
        examined.spawn(examine(agent.clone(), env.clone()));
    }
    let mut states = examined.join_all().await;
    states.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(states)
}

/// Returns the agents without the fake one, which is a part of Sprag.
fn real_agents(agents: &Agents) -> impl Iterator<Item = &AgentSettings> {
    agents.iter().filter(|agent| agent.name != "fake")
}

async fn examine(agent: AgentSettings, mut env: BTreeMap<String, String>) -> AgentState {
    env.extend(agent.env.clone());
    let program = agent.command.first().cloned().unwrap_or_default();
    let Some(known) = agent.catalog_entry() else {
        let path = env.get("PATH").cloned().unwrap_or_default();
        let found = sprag_agent::catalog::find_program(&program, &path);
        let text = match &found {
            Some(path) => format!("{} ({})", path.display(), agent.driver),
            None => format!("not installed: {program:?} was not found"),
        };
        return AgentState { name: agent.name, is_installed: found.is_some(), text };
    };
    let found = probe(known, &program, &env, PROBE_TIMEOUT).await;
    if found.program.is_none() {
        let text = format!("not installed: {}", known.install);
        return AgentState { name: agent.name, is_installed: false, text };
    }
    let version = found.version.map_or_else(|| "unknown version".to_owned(), |version| version.to_string());
    let tested = if found.is_older_than_tested {
        format!(" (older than {}, which was tested)", known.tested)
    } else {
        String::new()
    };
    let login = match found.login {
        Login::Yes { by } => format!("logged in ({by})"),
        Login::No { reason } => format!("not logged in: {reason}"),
        Login::Unknown { reason } => format!("login unknown: {reason}"),
    };
    AgentState { name: agent.name, is_installed: true, text: format!("{version}{tested}, {login}") }
}

#[cfg(test)]
mod tests {
    use sprag_lifecycle::{PlanAccount, PlanStep};

    use super::*;

    #[test]
    fn accounts_are_named_and_limited_as_the_file_says() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("agents.toml");
        std::fs::write(
            &file,
            "[robot]\ndriver = \"acp\"\ncommand = [\"robot\"]\naccount = \"shared\"\nmax_parallel = 3\n",
        )
        .expect("a file");
        let agents = Agents::read(&file, None).expect("it is right");
        let account = PlanAccount {
            name: "robot".into(),
            max_parallel: 1,
            longest_wait_ms: None,
            fallbacks: Vec::new(),
        };
        let step = PlanStep { account: Some(account), ..PlanStep::new("work", Vec::new()) };
        let mut plan = Plan::new("p", vec![step]).expect("a plan");
        name_accounts_as(&agents, &mut plan);
        let named = plan.steps[0].account.as_ref().expect("an account");
        assert_eq!((named.name.as_str(), named.max_parallel), ("shared", 3));
    }
}
