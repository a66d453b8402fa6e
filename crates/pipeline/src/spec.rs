//! What a step does, as a worker reads it from the plan.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::child::Definition;
use crate::template::{self, Piece};

/// A step's work. Texts may hold templates until [`crate::render_step`] has filled them in.
///
/// A worker refuses a spec with a part that it does not know: it would not act on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepSpec {
    /// The work itself.
    pub kind: Kind,
    /// Environment variables, those of the pipeline included.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The working directory, relative to where the run works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// The longest that one attempt may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Secrets that it sees as variables of these names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// An expression; the step is skipped where it is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// What it hands on, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, Output>,
    /// What must hold after the work for it to count as done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// One step for each of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fan_out: Option<FanOut>,
    /// A further try goes on with the files as the last one left them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retry_here: bool,
}

/// The kinds of work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A command text, run by a shell.
    Run {
        /// The text.
        command: String,
        /// What runs it.
        shell: Shell,
    },
    /// A program and its arguments, run without a shell.
    Exec {
        /// The program, then each argument.
        argv: Vec<String>,
    },
    /// A handler of the embedding program.
    Call {
        /// The name under which it was registered.
        handler: String,
        /// What it is given.
        with: Value,
    },
    /// Work that is claimed from outside, by an agent or a person.
    Task {
        /// What is to be done.
        prompt: String,
        /// More for who claims it.
        with: Value,
    },
    /// A question to a person.
    Gate {
        /// The question.
        ask: String,
        /// The answers; the first lets the run go on.
        choices: Vec<String>,
    },
    /// A wait for a time or a signal.
    Wait(Wait),
    /// A child run.
    Pipeline {
        /// The path of its pipeline file, relative to the parent's.
        file: String,
        /// What it is given.
        inputs: BTreeMap<String, Value>,
        /// The file's content, as it was when the parent was loaded.
        definition: Box<Definition>,
    },
    /// Brings the work of the run's worktree onto a branch.
    Land {
        /// The branch.
        into: String,
        /// How.
        strategy: Landing,
        /// A command that must succeed on the result, before the branch moves; always [`Kind::Run`] or [`Kind::Exec`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        verify: Option<Box<Kind>>,
        /// The message of a commit that it makes.
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

/// How work gets onto a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Landing {
    /// Its commits, one by one, on top.
    #[default]
    Rebase,
    /// A merge commit.
    Merge,
    /// One commit with all of its changes.
    Squash,
}

/// What a step waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// A span of time.
    For {
        /// Its length.
        ms: u64,
    },
    /// A time.
    Until {
        /// The time in RFC 3339, perhaps from a template.
        time: String,
    },
    /// A signal from outside.
    Signal {
        /// Its name.
        name: String,
    },
}

/// What a step hands on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// A file that it wrote.
    File {
        /// The path, relative to the step's directory.
        path: String,
        /// How its content is read; none where the file itself is kept.
        format: Option<Format>,
    },
    /// What it printed.
    Stdout {
        /// How that is read.
        format: Format,
    },
}

/// How a content is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// As it is.
    Text,
    /// As JSON.
    Json,
}

/// What must hold after the work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// A command succeeds; always [`Kind::Run`] or [`Kind::Exec`].
    Command(Kind),
    /// A file is there.
    File {
        /// Its path, relative to the step's directory.
        path: String,
        /// Whether it must hold something.
        not_empty: bool,
    },
    /// An output fits a JSON schema.
    Schema {
        /// The output's name.
        output: String,
        /// The schema.
        schema: Value,
    },
}

/// One step for each of several items.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FanOut {
    /// The items.
    pub over: Over,
    /// How many run at once; as many as there are workers if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_parallel: Option<u32>,
    /// Whether one failing item ends its siblings.
    #[serde(default)]
    pub fail_fast: bool,
}

/// The items of a fan-out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// Each combination of these values, known to templates as `matrix.NAME`.
    Matrix(BTreeMap<String, Vec<Value>>),
    /// Each item of a list, or of the list that a template gives; known to templates as `item`.
    Each(Value),
}

/// A program and arguments that a command text is appended to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shell(pub Vec<String>);

/// The shells whose quoting is known, so that values can be passed to them safely.
const POSIX_SHELLS: [&str; 5] = ["sh", "bash", "dash", "zsh", "ksh"];

impl Shell {
    /// The shell of this name: it ends at the first command that fails, as on CI systems.
    pub(crate) fn named(name: &str) -> Shell {
        let flags: &[&str] = if name == "bash" { &["-eo", "pipefail", "-c"] } else { &["-e", "-c"] };
        Shell(std::iter::once(name).chain(flags.iter().copied()).map(str::to_owned).collect())
    }

    /// Whether it reads command texts as a POSIX shell does.
    pub(crate) fn is_posix(&self) -> bool {
        self.0.first().is_some_and(|program| POSIX_SHELLS.contains(&base_name(program)))
    }
}

impl Default for Shell {
    fn default() -> Self {
        Shell::named("sh")
    }
}

/// A program's name without its directory.
pub(crate) fn base_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

impl StepSpec {
    /// A step that does this and no more.
    pub fn new(kind: Kind) -> StepSpec {
        StepSpec {
            kind,
            env: BTreeMap::new(),
            dir: None,
            timeout_ms: None,
            secrets: Vec::new(),
            when: None,
            outputs: BTreeMap::new(),
            checks: Vec::new(),
            fan_out: None,
            retry_here: false,
        }
    }

    /// The program to start and its arguments; none for work that is no process.
    pub fn argv(&self) -> Option<Vec<String>> {
        self.kind.argv()
    }
}

impl StepSpec {
    /// The names that its texts see, an item's value under the name that its fan-out has for it; it comes as `item`.
    pub fn names_seen(&self, names: Value) -> Value {
        match (&self.fan_out, names.get("item").cloned()) {
            (Some(fan_out), Some(item)) => fan_out.item_context(&names, &item),
            _ => names,
        }
    }

    /// All names in its templates and its condition.
    pub(crate) fn names(&self) -> Vec<String> {
        let when = self.when.as_deref().and_then(|when| template::condition(when).ok().map(str::to_owned));
        self.expressions()
            .into_iter()
            .chain(when)
            .flat_map(|expression| template::names(&expression))
            .collect()
    }

    /// All expressions in its templates.
    pub(crate) fn expressions(&self) -> Vec<String> {
        // Every template is a text somewhere in the JSON, and a text that is none splits into nothing.
        let mut json = serde_json::to_value(self).unwrap_or_default();
        // A child's templates are filled in by its own run.
        if let Some(child) = json.pointer_mut("/kind/pipeline/definition") {
            child.take();
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
    /// The program to start and its arguments; none for work that is no process.
    pub fn argv(&self) -> Option<Vec<String>> {
        match self {
            Kind::Run { command, shell } => Some(shell.0.iter().chain([command]).cloned().collect()),
            Kind::Exec { argv } => Some(argv.clone()),
            _ => None,
        }
    }
}
