//! The small tool set for the agent of a step (`mcp: [sprag]`), and its two transports: the store itself, or a server.

use std::sync::Arc;

use rmcp::ServiceExt;
use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sprag_app::{App, ServedTools, StepAgent, StepQuestion, StepTools, boards};
use sprag_tls::Connector;
use tokio::io::BufReader;
use tokio::net::UnixStream;

use crate::Agents;
use crate::params::{Complete, Fail, Keep, Token};
use crate::relay::{Relay, ShownToken};
use crate::tool_error::ToolError;
use crate::tools::{Done, parse, schema};

/// The instructions for the agent of a step.
pub(crate) const INSTRUCTIONS: &str = "\
These tools belong to the step that you work on. report: tell people what you did, once at the end and after long parts. \
note: leave a note for the other agents. ask: ask a person, if you cannot continue without the answer. If a call says \
that the attempt is over or was cancelled, stop.";

/// The end of the instructions, if the step has a board.
pub(crate) const BOARD_INSTRUCTIONS: &str = " \
Your board has tasks: read its plan with `plan`, get a task with `claim`, do what its prompt says, and report it with \
`done` or `fail`; `heartbeat` before its lease ends. Stop when `claim` finds none.";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReportText {
    /// The work that was done, and the work that is left.
    text: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LeaveNote {
    /// The text of the note.
    text: String,
    /// The subject in one word; for notes on a board.
    #[serde(default)]
    tag: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadNotes {
    /// Only notes after this number.
    #[serde(default)]
    after: i64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ClaimTask {
    /// The seconds to wait for a task if there is none [default: 0; at most 50].
    #[serde(default)]
    wait_s: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}

macro_rules! step_tools {
    ($($name:ident($params:ty) $board:literal: $about:literal;)+) => {
        /// Returns the tools of a step.
        pub(crate) fn list(has_board: bool) -> Vec<Tool> {
            let mut tools = Vec::new();
            $(if has_board || !$board {
                tools.push(Tool::new(stringify!($name), $about, schema::<$params>()));
            })+
            tools
        }

        /// Calls a tool of a step by its name.
        async fn dispatch(app: &App, agent: &StepAgent, name: &str, arguments: Value) -> Done {
            match name {
                $(stringify!($name) if agent.has_board() || !$board => {
                    $name(app, agent, parse::<$params>(name, arguments)?).await
                })+
                _ => {
                    let known: Vec<String> =
                        list(agent.has_board()).into_iter().map(|tool| tool.name.to_string()).collect();
                    let message = format!("this step has no tool {name:?}");
                    Err(ToolError::new("no_tool", message, format!("use one of: {}", known.join(", "))))
                }
            }
        }
    };
}

step_tools! {
    report(ReportText) false: "Report to people what you did in this step. Shown by `sprag status`.";
    note(LeaveNote) false: "Leave a note for the other agents of this run, or of your board.";
    notes(ReadNotes) false: "Read the notes of the other agents.";
    ask(StepQuestion) false: "Ask a person a question and wait a while for the answer. `open` means: no answer yet; ask the same again to wait longer.";
    plan(Nothing) true: "Read the goal and the plan of your board.";
    claim(ClaimTask) true: "Claim one task of your board, and get a token for it.";
    heartbeat(Keep) true: "Extend the lease of your task, well before it ends.";
    done(Complete) true: "Report that your task is done.";
    fail(Fail) true: "Report that your task failed.";
    release(Token) true: "Release your task unfinished.";
}

/// The name by which a worker has the server release the tasks of an agent that has ended. It is not listed.
const RELEASE_ALL: &str = "release_all";

/// Calls a tool with the token of a step. The token is checked first, and again in the transaction of each write.
pub(crate) async fn call(app: &App, token: &str, name: &str, arguments: Value) -> Done {
    if name == RELEASE_ALL {
        // It gives back what this attempt claimed, also after the attempt.
        return Ok(json!({ "released": app.release_step_tasks(token).await? }));
    }
    let agent = app.step_agent(token).await?;
    agent.act(dispatch(app, &agent, name, arguments)).await
}

async fn report(app: &App, agent: &StepAgent, given: ReportText) -> Done {
    agent.report(app, &given.text).await?;
    Ok(json!({ "reported": true }))
}

async fn note(app: &App, agent: &StepAgent, given: LeaveNote) -> Done {
    agent.note(app, &given.text, given.tag.as_deref()).await?;
    Ok(json!({ "noted": true }))
}

async fn notes(app: &App, agent: &StepAgent, given: ReadNotes) -> Done {
    Ok(json!({ "notes": agent.notes(app, given.after)? }))
}

async fn ask(app: &App, agent: &StepAgent, given: StepQuestion) -> Done {
    Ok(json!(agent.ask(app, given).await?))
}

async fn plan(app: &App, agent: &StepAgent, _: Nothing) -> Done {
    let board = agent.board(app)?;
    Ok(json!({ "board": &*board.name, "goal": &*board.goal, "plan": &*board.plan, "open": board.open }))
}

async fn claim(app: &App, agent: &StepAgent, given: ClaimTask) -> Done {
    Ok(match agent.claim(app, given.wait_s).await? {
        Ok(claimed) => json!(claimed),
        Err(nothing) => {
            json!({ "token": null, "why": nothing.why, "retry_after_s": nothing.retry_after_s })
        }
    })
}

async fn heartbeat(app: &App, agent: &StepAgent, given: Keep) -> Done {
    agent.check_task(app, &given.token)?;
    Ok(json!(boards::heartbeat(app, &given.token, boards::lease_of(given.lease_s)).await?))
}

async fn done(app: &App, agent: &StepAgent, given: Complete) -> Done {
    agent.check_task(app, &given.token)?;
    boards::done(app, &given.token, &given.result).await?;
    Ok(json!({ "outcome": "done", "next": "claim another task" }))
}

async fn fail(app: &App, agent: &StepAgent, given: Fail) -> Done {
    agent.check_task(app, &given.token)?;
    boards::fail(app, &given.token, &given.reason, !given.for_good).await?;
    Ok(json!({ "outcome": "failed", "next": "claim another task" }))
}

async fn release(app: &App, agent: &StepAgent, given: Token) -> Done {
    agent.check_task(app, &given.token)?;
    boards::release(app, &given.token).await?;
    Ok(json!({ "outcome": "released" }))
}

/// The tools of steps on a store that this process has open.
pub struct LocalStepTools(App);

impl LocalStepTools {
    /// Returns the tools of the steps of a store.
    pub fn new(app: &App) -> Arc<LocalStepTools> {
        Arc::new(LocalStepTools(app.clone()))
    }
}

impl std::fmt::Debug for LocalStepTools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LocalStepTools")
    }
}

impl StepTools for LocalStepTools {
    fn serve(&self, token: Arc<str>, client: BufReader<UnixStream>) -> ServedTools {
        let agents = Agents::for_step(self.0.clone(), token);
        Box::pin(async move {
            let (from, to) = tokio::io::split(client);
            let served = agents.serve((from, to)).await;
            if let Ok(serving) = served
                && let Err(error) = serving.waiting().await
            {
                tracing::debug!(%error, "serving the agent of a step ended");
            }
        })
    }

    fn release(&self, token: Arc<str>) -> ServedTools {
        let app = self.0.clone();
        Box::pin(async move {
            if let Err(error) = app.release_step_tasks(&token).await {
                tracing::warn!(%error, "the tasks of a step's agent were not released; their leases will lapse");
            }
        })
    }
}

/// The tools of steps through a server, for a worker without a store.
#[derive(Debug)]
pub struct RemoteStepTools {
    server: String,
    connector: Connector,
}

impl RemoteStepTools {
    /// Returns the tools that the server at this address offers.
    pub fn new(server: &str, connector: Connector) -> Arc<RemoteStepTools> {
        Arc::new(RemoteStepTools { server: server.to_owned(), connector })
    }

    fn relay(&self, token: &str) -> Option<Relay> {
        let made = Relay::new(&self.server, ShownToken::Given(token.to_owned()), self.connector.clone());
        made.inspect_err(|error| tracing::warn!(%error, "the tools of a step cannot reach the server")).ok()
    }
}

impl StepTools for RemoteStepTools {
    fn serve(&self, token: Arc<str>, client: BufReader<UnixStream>) -> ServedTools {
        let relay = self.relay(&token);
        Box::pin(async move {
            let (from, to) = tokio::io::split(client);
            if let Some(relay) = relay
                && let Err(error) = relay.run_over(from, to).await
            {
                tracing::debug!(%error, "relaying for the agent of a step ended");
            }
        })
    }

    /// Has the server release the tasks, which it does with the token of an attempt that is over, too.
    fn release(&self, token: Arc<str>) -> ServedTools {
        let relay = self.relay(&token);
        Box::pin(async move {
            let message = json!({ "jsonrpc": "2.0", "id": 0, "method": "tools/call",
                "params": { "name": RELEASE_ALL, "arguments": {} } });
            if let Some(relay) = relay {
                let answers = relay.pass_on(message.to_string().as_bytes()).await;
                tracing::debug!(?answers, "the tasks of a step's agent are released");
            }
        })
    }
}
