//! `sprag diff`: the changes that a run's steps made in its worktree.

use sprag_app::repository_of;
use sprag_worker::before;
use sprag_worktree::{Checkpoint, Repository};

use crate::context::{Context, RunWithPlan, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{contents, line, plain};

pub(crate) fn diff(context: &Context, run: Option<&str>, steps: Option<&str>) -> Result<Exit, Failure> {
    let app = context.app()?;
    let known = find_run(&app, run)?;
    let id = known.id();
    let Some(repository) = repository_of(&app, id)? else {
        if let Some(host) = sprag_app::host_elsewhere(&app, id)? {
            return Err(Failure::error(format!("the worktree of run {id} is on {}", plain(&host)))
                .next("look at it there"));
        }
        return Err(Failure::error(format!("run {id} has no worktree"))
            .next("only runs of pipelines with `environment: { worktree: … }` have one"));
    };
    let state = |step: &str| -> Result<Checkpoint, Failure> {
        repository.find_checkpoint(&id.to_string(), step).map_err(|_| no_state(&known, &repository, step))
    };
    let (from, to) = match steps {
        Some(pair) if pair.contains("..") => {
            let (from, to) = pair.split_once("..").unwrap_or_default();
            (state(from)?.commit, state(to)?.commit)
        }
        Some(step) => (state(&before(step))?.commit, state(step)?.commit),
        None => {
            let last = app.last_finished(id)?.iter().find_map(|step| state(step).ok());
            let begun = repository.recorded_uncommitted(&id.to_string());
            let begun = begun.map_err(|error| Failure::error(error.to_string()))?.map(|state| state.commit);
            let base = || {
                sprag_app::run_environment(&app, id)
                    .map(|found| found.and_then(|(_, details)| details.base_commit))
            };
            let base = if begun.is_some() { begun } else { base()? };
            match (base, last) {
                (Some(base), Some(last)) => (base, last.commit),
                _ => return Err(Failure::error(format!("no step of run {id} has been recorded yet"))),
            }
        }
    };
    let patch = repository.diff(&from, &to).map_err(|error| Failure::error(error.to_string()))?;
    if context.json {
        line(&serde_json::json!({ "run": id, "from": from, "to": to, "patch": patch }).to_string());
    } else if !patch.is_empty() {
        contents(&format!("{}\n", patch.trim_end_matches('\n')));
    }
    Ok(Exit::Ok)
}

fn no_state(known: &RunWithPlan, repository: &Repository, step: &str) -> Failure {
    let all = repository.checkpoints(&known.id().to_string()).unwrap_or_default();
    let names: Vec<&str> = all
        .iter()
        .filter_map(|state| state.name.rsplit('/').next())
        .filter(|name| !name.starts_with('_'))
        .collect();
    let step = step.trim_start_matches('_');
    Failure::usage(format!("nothing is recorded of step {step:?} of run {}", known.id()))
        .next(format!("there is: {}", if names.is_empty() { "nothing yet".into() } else { names.join(", ") }))
}
