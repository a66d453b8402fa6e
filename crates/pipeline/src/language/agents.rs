//! The keys of steps that coding agents do.

use super::{TIMEOUT, key, planned, required, word};
use crate::form::Form::{self, Any, Either, Integer, Positive, Text};
use crate::form::{Record, Rule};

/// A turn of a coding agent: exactly one of `prompt` and `prompt_file`.
#[rustfmt::skip]
pub(crate) static AGENT: Record = Record {
    what: "`agent`",
    keys: &[
        required("use",    Text(Rule::Name),   "The agent: `claude`, `codex`, `gemini`, `opencode`, `qwen`, `fake`, or a name in agents.toml."),
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
        planned("mcp",      "The MCP servers that the agent gets."),
        key("on_limit",    Either(&[Form::Word(&[word("wait"), word("fail")]), Form::Record(&ON_LIMIT)]),
                                               "The reaction to a usage limit of the account: `wait` for its reset, which is the default, at most for a time, or `fail` at once."),
    ],
};

/// The reaction to a usage limit.
#[rustfmt::skip]
pub(crate) static ON_LIMIT: Record = Record {
    what: "`on_limit`",
    keys: &[
        required("wait", TIMEOUT, "The longest wait for the reset; then the step fails."),
        planned("fallback", "Other agents that take over."),
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
        planned("on_over", "The reaction to a spent budget; the step fails."),
    ],
};
