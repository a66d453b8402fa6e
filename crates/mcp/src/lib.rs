//! Sprag for agents: boards, tasks, runs and questions over the Model Context Protocol.
//!
//! ```text
//!   agent ──stdio──▶ `sprag mcp` ────────────────┐
//!   agent ──stdio──▶ `sprag mcp --server URL` ─┐ │
//!   agent ──HTTP───▶ /mcp of `sprag serve` ◀───┘ ├──▶ Agents: one table of tools ──▶ the library, the store
//! ```
//!
//! A tool is a function with a schema and a description; it makes no decision that the store does not make.

mod params;
mod permit;
mod relay;
mod resources;
mod rules;
mod step;
mod tool_error;
mod tools;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::http::request::Parts;
use rmcp::model::{
    CallToolRequestParams, CallToolResult, Implementation, ListResourceTemplatesResult, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResult,
    ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt};
use sprag_app::{App, Author, CheckoutLooks, Error, RunWithPlan, acting_as, find_run_within};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::watch;

pub use permit::Permit;
pub use relay::{Relay, RelayError, ShownToken, TokenError};
pub use step::{LocalStepTools, RemoteStepTools};

/// The longest time that an agent may wait for a task in one call.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// The instructions that an agent receives first.
const INSTRUCTIONS: &str = "\
Sprag shares tasks between agents and people. Each task has one holder at a time, and no task is lost. \
As a leader: board_create, then task_add with the tasks (tasks may need others), then board_status and \
note_list to watch, board_close at the end, board_report for the results. \
As a worker: task_claim with your name and the board; you get one task and a token. Do what its prompt says, call \
task_heartbeat with the token before the lease ends, then task_complete, task_fail or task_release. If a call says \
that the token is lost or the task was cancelled, stop working on it and claim another. When there is nothing to \
claim, the answer gives the reason and when to try again. Read the goal with plan_get, and leave notes for others with \
note_add. Runs of pipelines: run_start, run_status, run_explain (what does it wait for?), run_logs, gate_answer.";

/// The caller of an HTTP request, as the server knows it.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The receiver that shows whether the caller is still connected: the sender is dropped with the request.
    pub there: watch::Receiver<()>,
    /// The name of the token that it shows; empty for the server's own user. Agents are bound to this name.
    pub scope: Arc<str>,
    /// The author of what it has the tools do.
    pub author: Author,
    /// The scopes and the reach of its token.
    pub permit: Permit,
    /// The token of a step, if the caller is the agent of one: it gets the tools of its step alone.
    pub step: Option<Arc<str>>,
}

/// Returns the caller of an HTTP request; none on stdin.
fn caller_of(context: &RequestContext<RoleServer>) -> Option<&Caller> {
    context.extensions.get::<Parts>().and_then(|parts| parts.extensions.get::<Caller>())
}

/// Waits until the caller has disconnected; forever if there is no HTTP caller.
async fn gone(caller: Option<&Caller>) {
    match caller.cloned() {
        // No value is ever sent: it changes when the sender is dropped.
        Some(Caller { mut there, .. }) => while there.changed().await.is_ok() {},
        None => std::future::pending().await,
    }
}

/// The MCP server for agents.
#[derive(Clone)]
pub struct Agents {
    app: App,
    dir: PathBuf,
    longest_wait: Duration,
    /// The name of the token that the caller shows; empty on stdin, where the caller is the store's own user.
    scope: Arc<str>,
    /// The scopes and the reach of the caller; everything on stdin.
    permit: Permit,
    /// The token of the step whose agent the caller is; none for all other callers.
    step: Option<Arc<str>>,
    checkouts: CheckoutLooks,
}

impl Agents {
    /// Creates a server for agents. Runs whose request names no folder work in `dir`.
    pub fn new(app: App, dir: &Path) -> Agents {
        let dir = dir.to_owned();
        let checkouts = CheckoutLooks::new(true);
        Agents {
            app,
            dir,
            longest_wait: LONGEST_WAIT,
            scope: "".into(),
            permit: Permit::everything(),
            step: None,
            checkouts,
        }
    }

    /// Creates a server for the agent of a step, which shows the step's token.
    pub(crate) fn for_step(app: App, token: Arc<str>) -> Agents {
        Agents { step: Some(token), permit: Permit::nothing(), ..Agents::new(app, Path::new("/")) }
    }

    /// Uses these to check for uncommitted changes where agents start runs.
    pub fn looking_through(self, checkouts: CheckoutLooks) -> Agents {
        Agents { checkouts, ..self }
    }

    /// Limits the time that an agent may wait for a task in one call.
    pub fn waiting_at_most(self, longest_wait: Duration) -> Agents {
        Agents { longest_wait, ..self }
    }

    /// Returns the server for the caller of a request.
    fn for_caller(&self, context: &RequestContext<RoleServer>) -> Agents {
        match caller_of(context) {
            None => self.clone(),
            Some(caller) => {
                let (scope, permit) = (Arc::clone(&caller.scope), caller.permit.clone());
                Agents { scope, permit, step: caller.step.clone(), ..self.clone() }
            }
        }
    }

    /// Returns the run that the caller means, among those that it reaches.
    fn find_run(&self, run: &str) -> Result<RunWithPlan, Error> {
        find_run_within(&self.app, Some(run), &self.permit.reach)
    }

    /// Returns the full name of the thread that the caller means, in a run that it reaches.
    fn thread(&self, name: &str) -> Result<String, Error> {
        match name.split_once('/') {
            Some((run, step)) => Ok(format!("{}/{step}", self.find_run(run)?.id())),
            None => Ok(name.to_owned()),
        }
    }

    /// Talks with one agent over stdin and stdout, until the agent closes them.
    pub async fn serve_stdio(self) -> std::io::Result<()> {
        let (messages, checked) = tokio::io::duplex(CHECKED_BYTES);
        tokio::spawn(async move {
            if let Err(error) = pass_messages(tokio::io::stdin(), checked, tokio::io::stdout()).await {
                tracing::warn!(%error, "stdin cannot be read");
            }
        });
        let serving = self.serve((messages, tokio::io::stdout())).await.map_err(std::io::Error::other)?;
        serving.waiting().await.map(drop).map_err(std::io::Error::other)
    }
}

/// The bytes of messages that wait between the check and the protocol.
const CHECKED_BYTES: usize = 64 << 10;

/// Passes on each line that is JSON. A line that is not is answered with the protocol's error for it; the protocol's
/// library ignores such lines.
async fn pass_messages(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut answers: impl AsyncWrite + Unpin,
) -> std::io::Result<()> {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        if from.read_until(b'\n', &mut line).await? == 0 {
            return Ok(());
        }
        let is_blank = line.iter().all(u8::is_ascii_whitespace);
        match serde_json::from_slice::<serde::de::IgnoredAny>(&line) {
            Err(error) if !is_blank => {
                let answer = relay::failure(&serde_json::Value::Null, -32700, &format!("not JSON: {error}"));
                answers.write_all(format!("{answer}\n").as_bytes()).await?;
                answers.flush().await?;
            }
            _ => to.write_all(&line).await?,
        }
    }
}

impl ServerHandler for Agents {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let instructions = match &self.step {
            Some(_) => [step::INSTRUCTIONS, step::BOARD_INSTRUCTIONS].concat(),
            None => INSTRUCTIONS.to_owned(),
        };
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("sprag", env!("CARGO_PKG_VERSION")))
            .with_instructions(instructions)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let agents = self.for_caller(&context);
        let listed = match &agents.step {
            None => tools::list(&agents.permit),
            Some(token) => {
                let agent = agents.app.step_agent(token).await;
                let agent = agent.map_err(|error| tool_error::ToolError::from(error).into_error())?;
                step::list(agent.has_board())
            }
        };
        Ok(ListToolsResult::with_all_items(listed))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<rmcp::model::CallToolResponse, ErrorData> {
        let arguments = serde_json::Value::Object(request.arguments.unwrap_or_default());
        let caller = caller_of(&context);
        let agents = self.for_caller(&context);
        let calling = async {
            if let Some(token) = &agents.step {
                return step::call(&agents.app, token, &request.name, arguments).await;
            }
            let call = tools::call(&agents, &request.name, arguments);
            match caller {
                // The protocol's library works in a task of its own, which does not know the request's author.
                Some(caller) => acting_as(caller.author.clone(), call).await,
                None => call.await,
            }
        };
        // A call whose caller is gone stops here. The task that it was about to receive goes to other agents.
        let done = tokio::select! {
            done = calling => done,
            () = context.ct.cancelled() => Err(tool_error::ToolError::gone()),
            () = gone(caller) => Err(tool_error::ToolError::gone()),
        };
        let answer = match done {
            Ok(value) => CallToolResult::structured(value),
            Err(tool_error) => CallToolResult::structured_error(tool_error.told()),
        };
        Ok(answer.into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let agents = self.for_caller(&context);
        if agents.step.is_some() {
            return Ok(ListResourcesResult::with_all_items(Vec::new()));
        }
        let listed = resources::list(&agents).map_err(|tool_error| tool_error.into_error())?;
        Ok(ListResourcesResult::with_all_items(listed))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(resources::templates()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<rmcp::model::ReadResourceResponse, ErrorData> {
        let agents = self.for_caller(&context);
        if agents.step.is_some() {
            let error = tool_error::ToolError::new("forbidden", "a step has no resources", "use its tools");
            return Err(error.into_error());
        }
        let contents =
            resources::read(&agents, &request.uri).map_err(|tool_error| tool_error.into_error())?;
        Ok(ReadResourceResult::new(vec![contents]).into())
    }
}
