//! The keys of steps that coding agents do.

use super::{TIMEOUT, key, required, word};
use crate::form::Form::{self, Any, Either, Integer, Positive, Text};
use crate::form::{Record, Rule};

/// Names of agents.toml.
const NAMES: Form = Form::List(&Text(Rule::Name), 1);

/// A turn of a coding agent: exactly one of `prompt` and `prompt_file`.
#[rustfmt::skip]
pub(crate) static AGENT: Record = Record {
    what: "`agent`",
    keys: &[
        required("use",    Either(&[Text(Rule::Name), Form::List(&Text(Rule::Name), 2)]),
                                               "The agent: `claude`, `codex`, `gemini`, `opencode`, `qwen`, `fake`, or a name in agents.toml. A list gives the same work to several agents, each in a worktree of its own; one result counts."),
        key("pick",        Either(&[Form::Word(&[word("ask")]), Form::Record(&PICK)]),
                                               "The choice between the results of several agents: `ask` a person, which is the default, or an agent that judges."),
        key("model",       Text(Rule::Filled), "The model; by default the agent's own choice."),
        key("prompt",      Text(Rule::Filled), "The work to do, a template; the failure of the last attempt is added to it."),
        key("prompt_file", Text(Rule::Filled), "A file with the prompt, relative to this one; it is read when the pipeline is loaded."),
        key("system",      Text(Rule::Filled), "A text that is added to the agent's system prompt, a template."),
        key("session",     Either(&[Form::Word(&[word("new")]), Form::Record(&SESSION)]),
                                               "The session: `new` for one of its own, which all attempts continue, or that of an earlier step."),
        key("permissions", Form::Word(&[word("auto"), word("read_only"), word("ask")]),
                                               "The rights of the agent: `auto` allows everything, `read_only` no changes, `ask` asks a person about each tool; required outside a worktree, where there is no default."),
        key("answer_within", TIMEOUT,          "The longest wait for a person's answer with `permissions: ask`; a day by default. Then the step fails."),
        key("park_after",  TIMEOUT,            "The wait after which an agent that asks is stopped until there is an answer; 10 minutes by default."),
        key("output",      Form::Record(&AGENT_OUTPUT), "The structured output, whose properties become outputs of the step."),
        key("budget",      Form::Record(&BUDGET), "Limits for all attempts of the step together, at which the agent is stopped."),
        key("stall",       TIMEOUT,            "The silence after which the agent is stopped; silence means no events, no processor time and no new processes."),
        key("mcp",         NAMES,              "The MCP servers that the agent gets: names of `[mcp.NAME]` in agents.toml, and `sprag`, a small set of tools for the step itself."),
        key("board",       Text(Rule::Filled), "The board on which the tools of `mcp: [sprag]` claim tasks, a template."),
        key("on_limit",    Either(&[Form::Word(&[word("wait"), word("fail")]), Form::Record(&ON_LIMIT)]),
                                               "The reaction to a usage limit of the account: `wait` for its reset, which is the default, at most for a time, or `fail` at once."),
    ],
};

/// An agent that judges the work of others.
#[rustfmt::skip]
pub(crate) static PICK: Record = Record {
    what: "`pick`",
    keys: &[
        required("use", Text(Rule::Name),   "The agent that judges."),
        key("model",    Text(Rule::Filled), "Its model; by default the agent's own choice."),
        key("prompt",   Text(Rule::Filled), "The criteria, a template; the comparison of the results is added to it."),
    ],
};

/// The reaction to a usage limit.
#[rustfmt::skip]
pub(crate) static ON_LIMIT: Record = Record {
    what: "`on_limit`",
    keys: &[
        key("wait",     TIMEOUT, "The longest wait for the reset; then the step fails."),
        key("fallback", NAMES,   "The agents that take over while the account is held: the first whose account is not held. The step waits only if all are held."),
    ],
};

/// The structured output of an agent.
#[rustfmt::skip]
pub(crate) static AGENT_OUTPUT: Record = Record {
    what: "`output`",
    keys: &[
        required("schema", Any, "The JSON schema of the output."),
    ],
};

/// The session of an earlier step.
#[rustfmt::skip]
pub(crate) static SESSION: Record = Record {
    what: "`session`",
    keys: &[
        required("continue", Text(Rule::Id), "The agent step whose session this one continues."),
    ],
};

/// Limits for all attempts of an agent step.
#[rustfmt::skip]
pub(crate) static BUDGET: Record = Record {
    what: "`budget`",
    keys: &[
        key("turns",  Integer(1, 1_000_000),         "The most tool calls."),
        key("tokens", Integer(1, 1_000_000_000_000), "The most tokens, input and output together, as the agent reports them."),
        key("usd",    Positive(1_000_000.0),         "The most US dollars, as the agent computes them."),
        key("on_over", Form::Word(&[word("fail"), word("ask")]),
                                                     "The reaction to a spent budget: the step fails, which is the default, or asks a person whether to continue with the same budget again."),
    ],
};
