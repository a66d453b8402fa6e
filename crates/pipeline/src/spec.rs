//! The work of a step, as a worker reads it from the plan.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sprag_lifecycle::Answerers;

use crate::agent::AgentSpec;
use crate::child::Definition;
use crate::inputs::Input;
use crate::sandbox::SandboxSpec;
use crate::secret::SecretSource;
use crate::services::ServiceSpec;
use crate::template::{self, Piece};

/// The work of a step. Texts may contain templates until [`crate::render_step`] has rendered them.
///
/// A worker refuses a spec with a field that it does not know, because it could not act on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepSpec {
    /// The kind of work with its own parameters.
    pub kind: Kind,
    /// Environment variables, including those of the pipeline.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The working directory, relative to the run's environment; absent for its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// The time limit of one attempt in milliseconds; absent for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Secrets that the step gets as variables of the same names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// The sources of those secrets that are not variables of the worker's environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sources: BTreeMap<String, SecretSource>,
    /// The inputs of the run whose values are secret.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secret_inputs: Vec<String>,
    /// The values of the secret inputs, once the step is rendered; never stored.
    #[serde(skip)]
    pub private: Vec<String>,
    /// All secrets that any step of the pipeline, its parent or its children use. Workers mask them in everything that
    /// this step outputs, and the step does not inherit them unless they are its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub masks: Vec<String>,
    /// All agents that the pipeline uses. The credentials of an agent reach its own steps alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<String>,
    /// Variables that the step inherits from its worker's environment, in addition to the few that all steps inherit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inherit: Vec<String>,
    /// An expression; the step is skipped if it is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// The outputs, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, Output>,
    /// Conditions that must hold after the work for the step to succeed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// The places in `checks` of those that only warn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warns: Vec<usize>,
    /// Files with further variables, relative to the run's environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dotenv: Vec<String>,
    /// The fan-out; absent for a step that runs once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fan_out: Option<FanOut>,
    /// The condition for further rounds after a success; absent for a step that runs once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat: Option<RepeatCondition>,
    /// Files that the step keeps between runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Cache>,
    /// The bounds of the step's processes; absent if they reach everything that their user does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxSpec>,
    /// Whether a retry continues with the files that the last attempt left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retry_here: bool,
    /// The part that makes it a service, which runs beside the other steps; absent for other steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceSpec>,
}

/// Files that a step keeps between runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// The key: runs with the same key share the files.
    pub key: String,
    /// The files and folders, relative to the step's folder.
    pub paths: Vec<String>,
}

/// The condition that decides after each successful round whether the step runs again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepeatCondition {
    /// The rounds end when this expression is true.
    Until(String),
    /// The rounds end when this expression is false.
    While(String),
}

impl RepeatCondition {
    /// Returns the expression.
    pub fn expression(&self) -> &str {
        match self {
            RepeatCondition::Until(expression) | RepeatCondition::While(expression) => expression,
        }
    }
}

/// The kinds of work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A command text, run by a shell.
    Run {
        /// The command text.
        command: String,
        /// The program that runs the command text.
        shell: Shell,
    },
    /// A program and its arguments, run without a shell.
    Exec {
        /// The program, then each argument.
        argv: Vec<String>,
        /// The places in `argv` of templates whose lists become several arguments; empty once they are rendered.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        each: Vec<usize>,
    },
    /// A handler of the embedding program.
    Call {
        /// The name under which the handler is registered.
        handler: String,
        /// The handler's arguments.
        with: Value,
    },
    /// A turn of a coding agent.
    Agent(Box<AgentSpec>),
    /// Work that an agent or a person claims.
    Task {
        /// The work to do, for the agent or person that claims it.
        prompt: String,
        /// Further data for the agent or person that claims it.
        with: Value,
    },
    /// A question to a person.
    Gate {
        /// The question, for a person.
        ask: String,
        /// The possible answers; the first one lets the run continue.
        choices: Vec<String>,
        /// The choice that counts if there is no answer in time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        default: Option<String>,
        /// The values that an answer gives.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        fields: Vec<Input>,
        /// The steps at which the run continues, by the choices that lead to them.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        routes: BTreeMap<String, String>,
        /// The people who may answer.
        #[serde(default, skip_serializing_if = "Answerers::is_everyone")]
        answerers: Answerers,
    },
    /// A wait for a time or a signal.
    Wait(Wait),
    /// A child run.
    Pipeline {
        /// The path of its pipeline file, relative to the parent's.
        file: String,
        /// The inputs of the child run.
        inputs: BTreeMap<String, Value>,
        /// The file's content when the parent was loaded; until `file` is rendered, that of the first of `files`.
        definition: Box<Definition>,
        /// The files that `file` may name, if it is a template; empty once it is rendered.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        files: BTreeMap<String, Definition>,
    },
    /// The end of the run.
    End {
        /// Whether the run has succeeded; otherwise the step fails.
        completed: bool,
        /// The reason, for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// Lands the work of the run's worktree on a branch.
    Land {
        /// The branch to land on.
        into: String,
        /// The way commits are added.
        strategy: LandStrategy,
        /// A command that must succeed on the result before the branch moves; always [`Kind::Run`] or [`Kind::Exec`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        verify: Option<Box<Kind>>,
        /// The message of the commits that it creates.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        /// A remote to push the branch to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        push: Option<String>,
        /// Whether the step fails when the push is refused.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        push_required: bool,
    },
}

/// The way commits are added to a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LandStrategy {
    /// The commits, one by one, on top of the branch.
    #[default]
    Rebase,
    /// A merge commit.
    Merge,
    /// One commit with all changes.
    Squash,
}

/// The event that a step waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// A span of time.
    For {
        /// The duration in milliseconds.
        ms: u64,
    },
    /// A time.
    Until {
        /// The time in RFC 3339, possibly a template.
        time: String,
    },
    /// A signal that a user or program sends.
    Signal {
        /// The signal's name.
        name: String,
    },
}

/// An output of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// A file that the step wrote.
    File {
        /// The path, relative to the step's directory.
        path: String,
        /// The format of its content; absent if the file itself is stored.
        format: Option<Format>,
    },
    /// The step's standard output.
    Stdout {
        /// The format of the output.
        format: Format,
    },
}

/// The format of an output's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Plain text.
    Text,
    /// JSON.
    Json,
}

/// A condition that must hold after the work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// A command that must succeed; always [`Kind::Run`] or [`Kind::Exec`].
    Command(Kind),
    /// A file that must exist.
    File {
        /// The path, relative to the step's directory.
        path: String,
        /// Whether the file must not be empty.
        not_empty: bool,
    },
    /// An output that must match a JSON schema.
    Schema {
        /// The output's name.
        output: String,
        /// The schema.
        schema: Value,
    },
}

/// A step that runs once for each of several items.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FanOut {
    /// The source of the items.
    pub over: FanOutItems,
    /// The most items that run at once; absent for no limit but the number of workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_parallel: Option<u32>,
    /// Whether a failing item stops its siblings.
    #[serde(default)]
    pub fail_fast: bool,
    /// Entries that extend the combinations of a matrix, or add further ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<Map<String, Value>>,
    /// Entries whose combinations a matrix leaves out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<Map<String, Value>>,
}

/// The source of a fan-out's items.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FanOutItems {
    /// Each combination of the values of these axes, each a list or a template; templates use them as `matrix.NAME`.
    Matrix(BTreeMap<String, Value>),
    /// Each item of a list, or of the list that a template produces; templates use it as `item`.
    Each(Value),
}

impl Default for FanOutItems {
    fn default() -> Self {
        FanOutItems::Each(Value::Array(Vec::new()))
    }
}

/// A program and its arguments; the command text is appended as the last argument.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shell(pub Vec<String>);

/// The shells whose quoting is known, so that values can be passed to them safely.
const POSIX_SHELLS: [&str; 5] = ["sh", "bash", "dash", "zsh", "ksh"];

impl Shell {
    /// Returns the shell with this name. It stops at the first command that fails, as on CI systems.
    pub(crate) fn named(name: &str) -> Shell {
        let flags: &[&str] = if name == "bash" { &["-eo", "pipefail", "-c"] } else { &["-e", "-c"] };
        Shell(std::iter::once(name).chain(flags.iter().copied()).map(str::to_owned).collect())
    }

    /// Returns whether it reads command texts as a POSIX shell does.
    pub(crate) fn is_posix(&self) -> bool {
        self.0.first().is_some_and(|program| POSIX_SHELLS.contains(&base_name(program)))
    }
}

impl Default for Shell {
    fn default() -> Self {
        Shell::named("sh")
    }
}

/// Returns a program's name without its directory.
pub(crate) fn base_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

impl StepSpec {
    /// Returns a step with this work and no options.
    pub fn new(kind: Kind) -> StepSpec {
        StepSpec {
            kind,
            env: BTreeMap::new(),
            dir: None,
            timeout_ms: None,
            secrets: Vec::new(),
            sources: BTreeMap::new(),
            secret_inputs: Vec::new(),
            private: Vec::new(),
            masks: Vec::new(),
            agents: Vec::new(),
            inherit: Vec::new(),
            when: None,
            outputs: BTreeMap::new(),
            checks: Vec::new(),
            warns: Vec::new(),
            dotenv: Vec::new(),
            fan_out: None,
            repeat: None,
            cache: None,
            sandbox: None,
            retry_here: false,
            service: None,
        }
    }

    /// Returns the program and its arguments, or `None` if the work is not a process.
    pub fn argv(&self) -> Option<Vec<String>> {
        self.kind.argv()
    }
}

impl StepSpec {
    /// Renames `item` in a template context to the name under which this step's fan-out makes it available.
    pub fn template_context(&self, names: Value) -> Value {
        match (&self.fan_out, names.get("item").cloned()) {
            (Some(fan_out), Some(item)) => fan_out.item_context(&names, &item),
            _ => names,
        }
    }

    /// Returns all names in its templates and its condition.
    pub(crate) fn names(&self) -> Vec<String> {
        let conditions =
            self.when.as_deref().into_iter().chain(self.repeat.as_ref().map(RepeatCondition::expression));
        let conditions = conditions.filter_map(|text| template::condition(text).ok().map(str::to_owned));
        self.expressions()
            .into_iter()
            .chain(conditions)
            .flat_map(|expression| template::names(&expression))
            .collect()
    }

    /// Returns all expressions in its templates.
    pub(crate) fn expressions(&self) -> Vec<String> {
        // Every template is a text in the JSON, and a text without templates yields no expressions.
        let mut json = serde_json::to_value(self).unwrap_or_default();
        // A child run renders its own templates.
        for key in ["/kind/pipeline/definition", "/kind/pipeline/files"] {
            if let Some(child) = json.pointer_mut(key) {
                child.take();
            }
        }
        let mut found = Vec::new();
        let mut todo = vec![&json];
        while let Some(next) = todo.pop() {
            match next {
                Value::String(text) => {
                    let pieces = template::split(text).unwrap_or_default();
                    found.extend(pieces.into_iter().filter_map(|piece| match piece {
                        Piece::Value(expression) => Some(expression.to_owned()),
                        Piece::Literal(_) => None,
                    }));
                }
                Value::Array(items) => todo.extend(items),
                Value::Object(entries) => todo.extend(entries.values()),
                _ => {}
            }
        }
        found
    }
}

impl Kind {
    /// Returns the program and its arguments, or `None` if the work is not a process.
    pub fn argv(&self) -> Option<Vec<String>> {
        match self {
            Kind::Run { command, shell } => Some(shell.0.iter().chain([command]).cloned().collect()),
            Kind::Exec { argv, .. } => Some(argv.clone()),
            _ => None,
        }
    }
}
