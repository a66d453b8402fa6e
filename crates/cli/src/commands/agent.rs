//! `sprag agent fake`: plays a coding agent.

use std::path::PathBuf;
use std::process::ExitCode;

use sprag_app::fake;

use crate::agent_args::AgentCommand;
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Plays the fake agent if this process was started as one, and returns its exit code. The arguments of the agent that it
/// plays follow its own, so they are not parsed with those of `sprag`.
pub(crate) fn run_if_fake() -> Option<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [agent, fake, own @ ..] = args.as_slice() else { return None };
    let asks_for_help = own.first().is_none_or(|first| first.starts_with('-'));
    if agent != "agent" || fake != "fake" || asks_for_help {
        return None;
    }
    Some(match fake::options(own.iter().cloned(), default_home()) {
        Ok(options) => fake::main(&options),
        Err(problem) => {
            eprintln!("sprag agent fake: {problem}");
            crate::stderr::flush();
            ExitCode::from(64)
        }
    })
}

/// Plays the fake agent after options that all commands have.
pub(crate) fn agent(context: &Context, command: AgentCommand) -> Result<Exit, Failure> {
    let AgentCommand::Fake { script, speak, home, args } = command;
    let home = home.map_or_else(|| context.data.join("fake-agent"), PathBuf::from);
    let own = [script, "--speak".to_owned(), speak].into_iter().chain(args);
    let options = fake::options(own, home).map_err(Failure::usage)?;
    fake::main(&options);
    Ok(Exit::Ok)
}

fn default_home() -> PathBuf {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = absolute("SPRAG_DATA")
        .or_else(|| absolute("XDG_DATA_HOME").map(|base| base.join("sprag")))
        .or_else(|| absolute("HOME").map(|home| home.join(".local/share/sprag")));
    data.unwrap_or_default().join("fake-agent")
}
