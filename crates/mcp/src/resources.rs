//! The resources that agents can read without a tool: status, tasks, notes and plan of boards, runs and their logs.

use rmcp::model::{Resource, ResourceContents, ResourceTemplate};
use serde_json::json;
use sprag_app::{RunFilter, Subject, boards};

use crate::tool_error::ToolError;
use crate::{Agents, tools};

/// The largest number of boards and of runs in a list.
const MOST: usize = 50;

/// The resources of each board: the end of the URI, and the description.
const OF_BOARD: [(&str, &str); 5] = [
    ("status", "the board, with the number of its tasks in each status"),
    ("tasks", "the board's tasks"),
    ("notes", "the notes of its workers for each other"),
    ("plan", "the goal and the plan"),
    ("report", "all results"),
];

pub(crate) fn list(agents: &Agents) -> Result<Vec<Resource>, ToolError> {
    let mut found = vec![
        resource("sprag://boards", "boards", "the open boards"),
        resource("sprag://runs", "runs", "the newest runs"),
    ];
    for board in tools::boards_in_reach(agents, false, MOST)? {
        for (what, about) in OF_BOARD {
            let name = format!("{} {what}", board.name);
            found.push(resource(&format!("sprag://board/{}/{what}", board.name), &name, about));
        }
    }
    Ok(found)
}

fn resource(uri: &str, name: &str, about: &str) -> Resource {
    Resource::new(uri, name).with_description(about).with_mime_type("application/json")
}

pub(crate) fn templates() -> Vec<ResourceTemplate> {
    let mut all: Vec<ResourceTemplate> = OF_BOARD
        .iter()
        .map(|(what, about)| {
            let uri = format!("sprag://board/{{board}}/{what}");
            ResourceTemplate::new(uri, format!("board {what}")).with_description(*about)
        })
        .collect();
    all.push(ResourceTemplate::new("sprag://run/{run}", "run").with_description("a run and its steps"));
    all.push(
        ResourceTemplate::new("sprag://run/{run}/logs/{step}", "run logs")
            .with_description("the end of a step's log"),
    );
    all
}

pub(crate) fn read(agents: &Agents, uri: &str) -> Result<ResourceContents, ToolError> {
    let app = &agents.app;
    let none = || {
        let next = "list the resources, or use a template: sprag://board/NAME/tasks, sprag://run/ID";
        ToolError::new("not_found", format!("there is no resource {uri}"), next)
    };
    let path: Vec<&str> = uri.strip_prefix("sprag://").ok_or_else(none)?.split('/').collect();
    let value = match path.as_slice() {
        ["boards"] => json!(tools::boards_in_reach(agents, false, MOST)?),
        ["runs"] => tools::runs(agents, RunFilter::default(), MOST)?,
        ["board", board, what] => {
            let board = boards::known(app, board)?;
            app.require_reach(&agents.permit.reach, Subject::Run(board.run))?;
            match *what {
                "status" => json!(boards::view(app, &board)?),
                "tasks" => json!(boards::tasks(app, &board, &[], 0, 1000)?),
                "notes" => json!(boards::notes(app, &board, None, 0, 1000)?),
                "plan" => json!({ "goal": &*board.goal, "plan": &*board.plan }),
                "report" => json!(boards::report(app, &board)?),
                _ => return Err(none()),
            }
        }
        ["run", run] => tools::status(agents, run)?,
        ["run", run, "logs", step] => {
            let (text, _) = tools::log_tail(agents, run, step, 64 * 1024)?;
            return Ok(ResourceContents::text(text, uri));
        }
        _ => return Err(none()),
    };
    Ok(ResourceContents::text(value.to_string(), uri).with_mime_type("application/json"))
}
