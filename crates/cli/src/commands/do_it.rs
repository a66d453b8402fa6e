//! `sprag do`: one agent, a worktree, a check guessed from the project, then the diff and the question whether to land it.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::inputs::RawInputs;
use super::run::{Options, start_loaded};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::Style;
use crate::starter::{find, test_command};

/// The command that shows what the agent has done, before the question to the person.
const SHOW: &str =
    r#"git --no-pager diff --stat "$BASE" HEAD; echo; git --no-pager diff "$BASE" HEAD | head -n 200"#;

/// The task of one agent.
pub(crate) struct Task {
    /// The work to do.
    pub(crate) text: String,
    /// The agent's name, or the names of several with commas between them: one of their results counts.
    pub(crate) agent: String,
    /// The command that must succeed; guessed from the project if absent.
    pub(crate) check: Option<String>,
    /// Whether to land without a question.
    pub(crate) yes: bool,
}

pub(crate) async fn do_it(context: &Context, task: Task, options: Options) -> Result<Exit, Failure> {
    if task.text.trim().is_empty() {
        return Err(Failure::usage("the task is empty").next("sprag do \"fix the flaky test\""));
    }
    let branch = git(&["symbolic-ref", "--quiet", "--short", "HEAD"]).map_err(|_| {
        Failure::error("this folder is on no branch to land on").next("git switch BRANCH, then try again")
    })?;
    let base = git(&["rev-parse", "HEAD"])
        .map_err(|why| Failure::error(format!("this repository has no commit to start from: {why}")))?;
    let check = task.check.clone().or_else(|| test_command(&find(Path::new("."))));
    if !context.json {
        let told = match &check {
            Some(check) => format!("check: {check}"),
            None => "check: none was found; give one with --check COMMAND".to_owned(),
        };
        eprintln!("{}", Style::stderr().dim(&told));
    }
    let text = pipeline(&task, check.as_deref(), &branch).to_string();
    let loaded = sprag_pipeline::parse("sprag do", &text).map_err(|problems| super::drawn(&problems))?;
    let inputs = json!({ "task": task.text, "base": base }).to_string();
    let given = RawInputs { pairs: &[], all: Some(&inputs) };
    start_loaded(context, loaded, "the pipeline of `sprag do`", given, options).await
}

/// Returns the pipeline of a task.
fn pipeline(task: &Task, check: Option<&str>, branch: &str) -> serde_json::Value {
    let names: Vec<&str> = task.agent.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let used = if let [name] = names.as_slice() { json!(name) } else { json!(names) };
    let mut work = json!({
        "id": "work",
        "agent": {
            "use": used,
            "prompt": "{{ inputs.task }}\n\nCommit your work in this repository when it is done.",
        },
        "retry": { "attempts": 3 },
    });
    if let Some(check) = check {
        work["check"] = json!({ "run": check });
    }
    let mut steps = vec![
        work,
        json!({
            "id": "changes",
            "run": SHOW,
            "env": { "BASE": "{{ inputs.base }}" },
        }),
    ];
    if !task.yes {
        let ask = format!("Land this on {branch}?");
        steps.push(json!({ "id": "approve", "gate": { "ask": ask } }));
    }
    let mut land = json!({ "id": "land", "land": branch });
    if names.len() == 1 {
        land["on_fail"] = json!({ "rework": "work", "max": 3 });
    }
    steps.push(land);
    json!({
        "name": "do",
        "inputs": { "task": { "required": true }, "base": { "required": true } },
        "environment": { "worktree": { "keep": "on_failure" } },
        "steps": steps,
    })
}

/// Runs git in the working folder and returns its output.
fn git(args: &[&str]) -> Result<String, String> {
    let mut command = Command::new("git");
    command.args(args).env_clear().envs(sprag_process::inherited_by_git());
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_pipeline_loads_without_a_warning() {
        for yes in [false, true] {
            for (check, agent) in [(None, "claude"), (Some("cargo test"), "claude,codex")] {
                let task = Task { text: "x".to_owned(), agent: agent.to_owned(), check: None, yes };
                let text = pipeline(&task, check, "main").to_string();
                let loaded = sprag_pipeline::parse("do", &text).unwrap_or_else(|wrong| panic!("{wrong}"));
                assert!(loaded.warnings.is_empty(), "{}", loaded.warnings);
            }
        }
    }
}
