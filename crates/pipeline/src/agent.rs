//! Steps of coding agents: the `agent:` key, its prompt file, and the sessions that steps share.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sprag_lifecycle::StepNo;
use sprag_lifecycle::graph::come_before;

use crate::decode::duration_ms;
use crate::diagnostic::{Problem, Report};
use crate::graph::{Graph, Vertex};
use crate::kinds::one_of;
use crate::names::{TemplateRole, Uses};
use crate::nearest::nearest;
use crate::parts;
use crate::source::Span;
use crate::spec::Kind;
use crate::yaml::{Node, Scalar, ScalarKind, Yaml, quoted};

/// The outputs that every agent step has.
pub(crate) const OUTPUTS: [&str; 4] = ["text", "session", "tokens", "cost_usd"];
/// The silence after which an agent counts as stalled, if the step names none: 15 minutes.
const STALL_MS: u64 = 15 * 60 * 1000;

/// Returns the longest wait for an answer, if the step names none: a day.
fn answer_within_ms() -> u64 {
    24 * 3600 * 1000
}

/// Returns the wait after which an agent that asks is stopped, if the step names none: 10 minutes.
fn park_after_ms() -> u64 {
    10 * 60 * 1000
}

/// A turn of a coding agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// The agent's name: a known one, or one of `agents.toml`.
    #[serde(rename = "use")]
    pub agent: String,
    /// The model; absent for the agent's own choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The prompt: the text of `prompt`, or of the file when the pipeline was loaded.
    pub prompt: String,
    /// The path of the prompt's file, as written; absent if the prompt is in the pipeline file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_file: Option<String>,
    /// A text that is added to the agent's system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The permissions of the agent.
    #[serde(default)]
    pub permissions: AgentPermissions,
    /// The longest wait for the answer to a question of the agent, in milliseconds.
    #[serde(default = "answer_within_ms")]
    pub answer_within_ms: u64,
    /// The wait after which an agent that asks is stopped until there is an answer, in milliseconds.
    #[serde(default = "park_after_ms")]
    pub park_after_ms: u64,
    /// The longest wait for the reset of a usage limit, in milliseconds; absent for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_wait_ms: Option<u64>,
    /// The agents that take over while the account of the agent is held, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallback: Vec<String>,
    /// The agent step whose session this one continues; absent for a session of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<String>,
    /// The JSON schema of the structured output; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// The silence after which the agent counts as stalled, in milliseconds.
    pub stall_ms: u64,
    /// The limits on what the step may use.
    #[serde(default, skip_serializing_if = "AgentBudget::is_unlimited")]
    pub budget: AgentBudget,
    /// The names of the MCP servers that the agent gets; `sprag` is the small tool set for the step itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mcp: Vec<String>,
    /// The board on which the tools of `sprag` claim tasks, a template; absent for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub board: Option<String>,
}

/// The name of the tool set for the step itself.
const SPRAG_TOOLS: &str = "sprag";

impl AgentSpec {
    /// Whether the agent gets the small tool set for the step itself.
    pub fn has_sprag_tools(&self) -> bool {
        self.mcp.iter().any(|name| name == SPRAG_TOOLS)
    }

    /// Returns the names in agents.toml that the step uses: its agent, those that may take over, and its MCP servers as
    /// `mcp.NAME`.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        let agents = std::iter::once(&self.agent).chain(&self.fallback).cloned();
        agents.chain(self.mcp.iter().map(|server| format!("mcp.{server}")))
    }
}

/// The permissions of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentPermissions {
    /// Everything is allowed.
    #[default]
    Auto,
    /// The agent may read but not change anything.
    ReadOnly,
    /// A person decides about each tool that the agent asks for.
    Ask,
}

/// The limits on what all attempts of a step may use together. Each is a hard stop as soon as the agent reports it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentBudget {
    /// The most tool calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<u64>,
    /// The most tokens, input and output together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The most US dollars, as the agent computes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd: Option<f64>,
    /// Whether a person is asked for the same budget again, instead of a failure.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub asks: bool,
}

impl AgentBudget {
    fn is_unlimited(&self) -> bool {
        *self == AgentBudget::default()
    }
}

/// Decodes the `agent` of a step.
pub(crate) fn decode<'n>(
    step: &'n Node,
    node: &'n Node,
    uses: &mut Uses<'n>,
    report: &mut Report,
) -> Option<Kind> {
    let text = |key: &str| node.get(key).and_then(Node::text).map(str::to_owned);
    for key in ["model", "system", "board"] {
        if let Some(template) = node.get(key) {
            uses.add(template, TemplateRole::Text);
        }
    }
    refuse_streams(step, report);
    let prompt = prompt(node, uses, report);
    let output_schema = node.get("output").and_then(|output| output.get("schema")).map(|schema| {
        refuse_reserved(schema, report);
        parts::checked_schema(schema, report)
    });
    let budget = node.get("budget");
    let limit = |key: &str| budget.and_then(|budget| budget.get(key)).and_then(Node::integer);
    let (prompt, prompt_file) = prompt?;
    Some(Kind::Agent(Box::new(AgentSpec {
        agent: text("use")?,
        model: text("model"),
        prompt,
        prompt_file,
        system: text("system"),
        permissions: match node.get("permissions").and_then(Node::text) {
            Some("read_only") => AgentPermissions::ReadOnly,
            Some("ask") => AgentPermissions::Ask,
            _ => AgentPermissions::Auto,
        },
        answer_within_ms: node.get("answer_within").and_then(duration_ms).unwrap_or_else(answer_within_ms),
        park_after_ms: node.get("park_after").and_then(duration_ms).unwrap_or_else(park_after_ms),
        limit_wait_ms: match node.get("on_limit") {
            Some(reaction) if reaction.text() == Some("fail") => Some(0),
            reaction => reaction.and_then(|reaction| reaction.get("wait")).and_then(duration_ms),
        },
        fallback: names(node.get("on_limit").and_then(|reaction| reaction.get("fallback"))),
        continues: continued(node).map(|(name, _)| name.to_owned()),
        output_schema,
        stall_ms: node.get("stall").and_then(duration_ms).unwrap_or(STALL_MS),
        budget: AgentBudget {
            turns: limit("turns").map(i64::unsigned_abs),
            tokens: limit("tokens").map(i64::unsigned_abs),
            usd: budget.and_then(|budget| budget.get("usd")).and_then(Node::number),
            asks: budget.and_then(|budget| budget.get("on_over")).and_then(Node::text) == Some("ask"),
        },
        mcp: names(node.get("mcp")),
        board: text("board"),
    })))
}

/// Returns the names of a list.
fn names(list: Option<&Node>) -> Vec<String> {
    let named = list.map(Node::items).unwrap_or_default();
    named.iter().filter_map(Node::text).map(str::to_owned).collect()
}

/// Returns the prompt, and the path of its file if it has one.
fn prompt<'n>(node: &'n Node, uses: &mut Uses<'n>, report: &mut Report) -> Option<(String, Option<String>)> {
    let (key, value) = one_of(node, &["prompt", "prompt_file"], report)?;
    let text = value.text()?;
    if key == "prompt" {
        uses.add(value, TemplateRole::Text);
        return Some((text.to_owned(), None));
    }
    if text.contains("{{") {
        let message =
            "the path of a prompt file cannot contain templates: the file is read with the pipeline";
        report.error(Problem::at(value.span, message).expected("a path without templates"));
        return None;
    }
    match report.children.clone().find_text(text) {
        Ok(content) if content.trim().is_empty() => {
            report.error(Problem::at(value.span, format!("the prompt file {} is empty", quoted(text))));
            None
        }
        Ok(content) => {
            let scalar = Scalar { text: content.clone(), kind: ScalarKind::Text };
            uses.add_owned(Node::new(value.span, Yaml::Scalar(scalar)), TemplateRole::Text);
            Some((content, Some(text.to_owned())))
        }
        Err(why) => {
            let message = format!("the prompt file {} cannot be used: {why}", quoted(text));
            report.error(Problem::at(value.span, message));
            None
        }
    }
}

/// Refuses outputs that an agent step cannot have: its standard output is its protocol.
fn refuse_streams(step: &Node, report: &mut Report) {
    for (name, output) in step.get("outputs").map(Node::entries).unwrap_or_default() {
        if output.get("stdout").is_some() {
            let problem = Problem::at(output.span, "an agent's standard output is its protocol");
            report.error(problem.help("use its output `text`, or `agent: { output: { schema: … } }`"));
        }
        if OUTPUTS.contains(&name.text.as_str()) {
            let message = format!("every agent step has an output `{}` already", name.text);
            report.error(Problem::at(name.span, message).help("give this one another name"));
        }
    }
}

/// Refuses a schema that declares a name which every agent step uses for something else.
fn refuse_reserved(schema: &Node, report: &mut Report) {
    for (name, _) in schema.get("properties").map(Node::entries).unwrap_or_default() {
        if OUTPUTS.contains(&name.text.as_str()) {
            let message = format!("every agent step has an output `{}` already", name.text);
            report.error(Problem::at(name.span, message).help("give this property another name"));
        }
    }
}

/// Returns the names of an agent step's outputs.
pub(crate) fn output_names<'n>(step: &'n Node) -> Vec<&'n str> {
    let keys = |node: Option<&'n Node>| {
        node.map(Node::entries).unwrap_or_default().iter().map(|(key, _)| key.text.as_str())
    };
    let schema = step.get("agent").and_then(|agent| agent.get("output")?.get("schema"));
    let declared = keys(schema.and_then(|schema| schema.get("properties")));
    OUTPUTS.into_iter().chain(declared).chain(keys(step.get("outputs"))).collect()
}

/// Returns the step whose session an agent continues, with its position.
fn continued(agent: &Node) -> Option<(&str, Span)> {
    let named = agent.get("session")?.get("continue")?;
    Some((named.text()?, named.span))
}

/// Checks everything about agent steps that concerns several steps: permissions outside a worktree, and sessions.
pub(crate) fn check(steps: &[Node], vertices: &[Vertex], graph: &Graph, report: &mut Report) {
    let has_worktree = report.own.worktree;
    for (step, agent) in steps.iter().filter_map(|step| Some((step, step.get("agent")?))) {
        let asks = agent.get("permissions").and_then(Node::text) == Some("ask");
        let on_over = agent.get("budget").and_then(|budget| budget.get("on_over"));
        let asks_for_more = on_over.and_then(Node::text) == Some("ask");
        for (key, has_effect) in [("answer_within", asks || asks_for_more), ("park_after", asks)] {
            if let Some(value) = agent.get(key).filter(|_| !has_effect) {
                let problem = Problem::at(value.span, format!("`{key}` has no effect: the agent never asks"));
                report.error(problem.help("remove it, or add `permissions: ask`"));
            }
        }
        if !has_worktree && agent.get("permissions").is_none() && !agent.entries().is_empty() {
            let span = agent.get("use").map_or(step.span, |name| name.span);
            let message = "this agent would work outside a worktree: its permissions must be written down";
            report.error(
                Problem::at(span, message)
                    .help("add `environment: { worktree: {} }` to the pipeline, or `permissions: ask` here"),
            );
        }
    }
    for (step, agent) in steps.iter().filter_map(|step| Some((step, step.get("agent")?))) {
        check_names(step, agent, report);
    }
    check_sessions(steps, vertices, graph, report);
}

/// Refuses lists of agents and of servers that name one twice, and reactions to a limit without effect.
fn check_names(step: &Node, agent: &Node, report: &mut Report) {
    if let Some(pick) = agent.get("pick") {
        let problem = Problem::at(pick.span, "`pick` has no effect: the step has one agent");
        report.error(problem.help("remove it, or list several agents in `use`"));
    }
    let reaction = agent.get("on_limit");
    let fallback = reaction.and_then(|reaction| reaction.get("fallback"));
    let mut seen: Vec<&str> = agent.get("use").and_then(Node::text).into_iter().collect();
    for name in fallback.map(Node::items).unwrap_or_default() {
        let Some(text) = name.text() else { continue };
        if seen.contains(&text) {
            let message = format!("{} is listed already: it would be held too", quoted(text));
            report.error(Problem::at(name.span, message).help("name agents of other accounts"));
        }
        seen.push(text);
    }
    if let Some(budget) = agent.get("budget")
        && let Some(on_over) = budget.get("on_over")
        && !["turns", "tokens", "usd"].iter().any(|key| budget.get(key).is_some())
    {
        let problem = Problem::at(on_over.span, "`on_over` has no effect: nothing is limited");
        report.error(problem.help("add `turns`, `tokens` or `usd`"));
    }
    let mut servers: Vec<&str> = Vec::new();
    for name in agent.get("mcp").map(Node::items).unwrap_or_default() {
        let Some(text) = name.text() else { continue };
        if servers.contains(&text) {
            report.error(Problem::at(name.span, format!("{} is listed twice", quoted(text))));
        }
        servers.push(text);
    }
    if let Some(board) = agent.get("board").filter(|_| !servers.contains(&SPRAG_TOOLS)) {
        let problem = Problem::at(board.span, "`board` has no effect: the agent has no tools for tasks");
        report.error(problem.help("add `mcp: [sprag]`"));
    }
    if let Some(empty) = reaction.filter(|reaction| {
        reaction.text().is_none() && reaction.get("wait").is_none() && reaction.get("fallback").is_none()
    }) {
        let problem = Problem::at(empty.span, "`on_limit` says nothing");
        report.error(problem.expected("`wait`, `fail`, or a map with `wait` or `fallback`"));
    }
    if let (Some(fallback), Some(_)) = (fallback, continued(agent)) {
        let problem = Problem::at(
            fallback.span,
            "a step that continues a session cannot fall back on another agent, which does not have it",
        );
        report.error(problem.help(format!(
            "remove `fallback`, or `session` of step `{}`",
            step.get("id").and_then(Node::text).unwrap_or("?")
        )));
    }
}

/// Refuses sessions that two processes could hold at once, and sessions that cannot be continued.
fn check_sessions(steps: &[Node], vertices: &[Vertex], graph: &Graph, report: &mut Report) {
    let numbers: HashMap<&str, usize> = vertices
        .iter()
        .enumerate()
        .filter_map(|(no, vertex)| Some((vertex.id.as_ref()?.name.as_str(), no)))
        .collect();
    let is_fan_out = |no: usize| ["matrix", "foreach"].iter().any(|key| steps[no].get(key).is_some());
    // The step in which each session begins, for every step that continues one.
    let mut users: Vec<(usize, usize, Span)> = Vec::new();
    for (no, step) in steps.iter().enumerate() {
        let Some(agent) = step.get("agent") else { continue };
        let Some((name, span)) = continued(agent) else { continue };
        let mut refuse = |message: String, help: &str| {
            report.error(Problem::at(span, message).help(help));
        };
        let Some(from) = numbers.get(name).copied() else {
            let near = nearest(name, numbers.keys().copied());
            let problem = Problem::at(span, format!("there is no step {}", quoted(name))).nearest(near);
            report.error(problem.help("name an agent step that this one needs"));
            continue;
        };
        let Some(other) = steps[from].get("agent") else {
            refuse(format!("step `{name}` is no agent step"), "name a step with `agent`");
            continue;
        };
        if is_fan_out(no) || is_fan_out(from) {
            refuse(
                "a session cannot be continued by or from a fan-out: its items would share it".to_owned(),
                "give each item a session of its own",
            );
            continue;
        }
        if other.get("use").and_then(Node::text) != agent.get("use").and_then(Node::text) {
            refuse(
                format!("step `{name}` has another agent, which cannot share its session"),
                "use the same agent in both steps",
            );
            continue;
        }
        if other.get("on_limit").is_some_and(|reaction| reaction.get("fallback").is_some()) {
            refuse(
                format!(
                    "step `{name}` may fall back on another agent, whose session this one cannot continue"
                ),
                "remove `fallback` there, or `session` here",
            );
            continue;
        }
        if step.get("environment").is_some() || steps[from].get("environment").is_some() {
            refuse(
                format!("step `{name}` works in another environment, and its session with it"),
                "remove `environment: own` from both steps",
            );
            continue;
        }
        if graph.is_circular {
            continue;
        }
        if !come_before(&graph.needs, &[(from as StepNo, no as StepNo)])[0] {
            refuse(
                format!("step `{name}` may not have finished when this one starts"),
                "add it to the `needs` of this step",
            );
            continue;
        }
        let root = users.iter().find(|(user, ..)| *user == from).map_or(from, |(_, root, _)| *root);
        users.push((no, root, span));
    }
    check_order(&users, vertices, graph, report);
}

/// Refuses two steps that continue one session and may run at the same time.
fn check_order(users: &[(usize, usize, Span)], vertices: &[Vertex], graph: &Graph, report: &mut Report) {
    let mut last: HashMap<usize, usize> = HashMap::new();
    for (no, root, span) in users {
        // Steps are in the order of the file, and each user of a session must come after the one before it.
        if let Some(before) = last.insert(*root, *no) {
            let pairs = [(before as StepNo, *no as StepNo), (*no as StepNo, before as StepNo)];
            if !come_before(&graph.needs, &pairs).contains(&true) {
                let other = vertices[before].id.as_ref().map_or("?", |id| id.name.as_str());
                let message =
                    format!("this step and `{other}` continue the same session and may run at once");
                report.error(Problem::at(*span, message).help("let one of them need the other"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads steps in a worktree.
    fn load(steps: &str) -> Result<crate::Pipeline, String> {
        let source = format!("environment: {{ worktree: {{}} }}\nsteps:\n{steps}");
        crate::parse("p.yaml", &source).map(|loaded| loaded.pipeline).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn an_agent_step_is_decoded() {
        let pipeline = load(
            "- id: plan\n  agent: {use: claude, prompt: 'Plan {{ run.id }}', output: {schema: {type: object, properties: {verdict: {type: string}}}}}\n\
             - id: work\n  agent:\n    use: claude\n    model: opus\n    prompt: 'Do {{ steps.plan.outputs.verdict }} {{ steps.plan.outputs.text }}'\n    session: {continue: plan}\n    permissions: read_only\n    budget: {turns: 3, tokens: 100, usd: 0.5}\n    stall: 1m\n  outputs: {notes: n.md}\n",
        )
        .unwrap();
        let Kind::Agent(work) = &pipeline.steps[1].spec.kind else { panic!() };
        assert_eq!((work.agent.as_str(), work.model.as_deref()), ("claude", Some("opus")));
        assert_eq!(work.continues.as_deref(), Some("plan"));
        assert_eq!(work.permissions, AgentPermissions::ReadOnly);
        assert_eq!(
            work.budget,
            AgentBudget { turns: Some(3), tokens: Some(100), usd: Some(0.5), asks: false }
        );
        assert_eq!(work.stall_ms, 60_000);
        assert!(pipeline.steps[1].spec.retry_here, "a retry continues with the files that the agent knows");
        assert_eq!(pipeline.steps[0].spec.agents, ["claude"]);
        let again: crate::StepSpec =
            serde_json::from_str(&serde_json::to_string(&pipeline.steps[1].spec).unwrap()).unwrap();
        assert_eq!(again, pipeline.steps[1].spec);
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let plan = "- {id: plan, agent: {use: claude, prompt: x}}\n";
        for (steps, expected) in [
            ("- {id: a, agent: {use: claude}}", "one of these keys is required"),
            ("- {id: a, agent: {prompt: x}}", "use"),
            ("- {id: a, agent: {use: claude, prompt: x, park_after: 1m}}", "the agent never asks"),
            ("- {id: a, agent: {use: claude, prompt: x, mcp: [github, github]}}", "is listed twice"),
            ("- {id: a, agent: {use: claude, prompt: x, mcp: []}}", "mcp"),
            ("- {id: a, agent: {use: claude, prompt: x, on_limit: {}}}", "says nothing"),
            ("- {id: a, agent: {use: claude, prompt: x, board: b}}", "no tools for tasks"),
            (
                "- {id: a, agent: {use: claude, prompt: x, on_limit: {wait: 1h, fallback: [codex, claude]}}}",
                "it would be held too",
            ),
            (
                "- {id: a, agent: {use: claude, prompt: x, session: {continue: plan}, on_limit: {fallback: [codex]}}}",
                "cannot fall back on another agent",
            ),
            (
                "- {id: a, agent: {use: claude, prompt: x, on_limit: {fallback: [codex]}}}\n- {id: z, agent: {use: claude, prompt: x, session: {continue: a}}}",
                "whose session this one cannot continue",
            ),
            ("- {id: a, agent: {use: claude, prompt: x, on_limit: stop}}", "on_limit"),
            ("- {id: a, agent: {use: claude, prompt: x, budget: {usd: 0}}}", "`usd` cannot be"),
            ("- {id: a, agent: {use: claude, prompt: x, budget: {on_over: ask}}}", "`on_over` has no effect"),
            ("- {id: a, agent: {use: claude, prompt: x, pick: ask}}", "the step has one agent"),
            ("- {id: a, agent: {use: [claude, claude], prompt: x}}", "is listed twice"),
            ("- {id: a, agent: {use: [claude], prompt: x}}", "use"),
            ("- {id: a, foreach: [1], agent: {use: [claude, codex], prompt: x}}", "`foreach` does not work"),
            (
                "- {id: a, agent: {use: [claude, codex], prompt: x}}\n- {id: z, land: main, on_fail: {rework: a}}",
                "cannot be reworked",
            ),
            (
                "- {id: a, agent: {use: [claude, codex], prompt: x, session: {continue: plan}}}",
                "cannot continue one session",
            ),
            (
                "- {id: a, agent: {use: claude, prompt: x, output: {schema: {typ: object}}}}",
                "the schema is wrong",
            ),
            (
                "- {id: a, agent: {use: claude, prompt: x, output: {schema: {properties: {text: {}}}}}}",
                "an output `text` already",
            ),
            ("- {id: a, agent: {use: claude, prompt: x}, outputs: {o: {stdout: text}}}", "is its protocol"),
            (
                "- {id: a, agent: {use: claude, prompt: x}, outputs: {session: f}}",
                "an output `session` already",
            ),
            ("- {id: a, agent: {use: claude, prompt_file: p.md}}", "cannot be used"),
            ("- {id: a, agent: {use: claude, prompt: '{{ inputs.no }}'}}", "no input `no`"),
            (
                "- {id: a, agent: {use: claude, prompt: x}, retry: {attempts: 2, exit_codes: [1]}}",
                "`exit_codes` has no effect",
            ),
            (
                "- {id: z, agent: {use: claude, prompt: x, session: {continue: pla}}}",
                "there is no step `pla`",
            ),
            (
                "- {id: r, run: x}\n- {id: z, agent: {use: claude, prompt: x, session: {continue: r}}}",
                "is no agent step",
            ),
            ("- {id: z, agent: {use: codex, prompt: x, session: {continue: plan}}}", "another agent"),
            (
                "- {id: z, needs: [], agent: {use: claude, prompt: x, session: {continue: plan}}}",
                "may not have finished",
            ),
            (
                "- {id: z, environment: own, agent: {use: claude, prompt: x, session: {continue: plan}}}",
                "another environment",
            ),
            (
                "- {id: z, foreach: [1], agent: {use: claude, prompt: '{{ item }}', session: {continue: plan}}}",
                "a fan-out",
            ),
            (
                "- {id: y, needs: plan, agent: {use: claude, prompt: x, session: {continue: plan}}}\n- {id: z, needs: plan, agent: {use: claude, prompt: x, session: {continue: plan}}}",
                "may run at once",
            ),
        ] {
            let wrong = load(&format!("{plan}{steps}\n")).unwrap_err();
            assert!(wrong.contains(expected), "{steps}\n{wrong}");
        }
        let outside =
            crate::parse("p.yaml", "steps:\n- {id: a, agent: {use: claude, prompt: x}}\n").unwrap_err();
        assert!(outside.to_string().contains("outside a worktree"), "{outside}");
        let explicit = "steps:\n- {id: a, agent: {use: claude, prompt: x, permissions: read_only}}\n";
        assert!(crate::parse("p.yaml", explicit).is_ok());
    }
}
