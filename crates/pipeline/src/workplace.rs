//! The environment of a run: `environment:` as written in the file, and as a run stores it.
//!
//! Its texts are rendered when the run is created, except for the run's name and id, which are assigned later: a
//! rendered text contains markers in their place.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::decode::{duration_ms, texts};
use crate::diagnostic::{Problem, Report};
use crate::expression::Budget;
use crate::kinds::one_of;
use crate::names::{TemplateRole, Uses};
use crate::template;
use crate::yaml::{Node, Scalar, Yaml};

/// The marker for the run's id.
const RUN_ID: &str = "\u{e000}id\u{e000}";
/// The marker for the run's name.
const RUN_NAME: &str = "\u{e000}name\u{e000}";

/// The environment in which a run works.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workplace {
    /// A separate git worktree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worktree: Option<WorktreeSpec>,
    /// An existing folder, or one that is created and never removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Ignored files to copy into a worktree.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// The command that prepares a new worktree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setup: Option<Setup>,
    /// Names of ports that are reserved for the run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// Environment variables for every command.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// The settings of a git worktree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorktreeSpec {
    /// The branch, tag or commit that it starts from.
    pub base: String,
    /// The branch that is created for it.
    pub branch: String,
    /// Whether it is kept after the run.
    pub keep: KeepPolicy,
    /// Whether submodules are checked out too.
    pub submodules: bool,
    /// The folders to check out; empty for all.
    pub sparse: Vec<String>,
    /// Whether git commands of Sprag run the repository's hooks.
    #[serde(skip_serializing_if = "Clone::clone")]
    pub hooks: bool,
    /// The remote to which the state is pushed after each step, so that another host can continue the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// The treatment of uncommitted changes in the checkout in which the run is started.
    #[serde(skip_serializing_if = "DirtyPolicy::is_ignored")]
    pub dirty: DirtyPolicy,
}

impl Default for WorktreeSpec {
    fn default() -> Self {
        WorktreeSpec {
            base: "HEAD".into(),
            branch: format!("sprag/{RUN_NAME}"),
            keep: KeepPolicy::Never,
            submodules: false,
            sparse: Vec::new(),
            hooks: true,
            remote: None,
            dirty: DirtyPolicy::Ignore,
        }
    }
}

/// Whether a worktree is kept after its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeepPolicy {
    /// It is removed. Uncommitted changes are saved as a ref.
    #[default]
    Never,
    /// It is kept unless the run completed.
    OnFailure,
    /// It is kept until a person removes it.
    Always,
}

/// The treatment of uncommitted changes in the checkout in which a run is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DirtyPolicy {
    /// The run starts with the committed files of its base.
    #[default]
    Ignore,
    /// The run does not start while there are any.
    Refuse,
    /// The run starts with them, still uncommitted.
    Include,
}

impl DirtyPolicy {
    fn is_ignored(&self) -> bool {
        *self == DirtyPolicy::Ignore
    }
}

/// The command that prepares a worktree before any step runs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Setup {
    /// The command text, run by a shell.
    pub run: String,
    /// The files whose change makes the command run again.
    pub files: Vec<String>,
    /// Ignored paths that the command creates and that a reused worktree keeps.
    pub caches: Vec<String>,
    /// The time limit in milliseconds; absent for the default of 30 minutes.
    pub timeout_ms: Option<u64>,
}

impl Workplace {
    /// Returns the environment of one run, with its id and name filled in.
    pub fn for_run(&self, run: &str, pipeline: &str) -> Workplace {
        let name = format!("{pipeline}-{run}");
        let fill = |text: &String| text.replace(RUN_ID, run).replace(RUN_NAME, &name);
        let mut filled = self.clone();
        if let Some(worktree) = &mut filled.worktree {
            worktree.base = fill(&worktree.base);
            worktree.branch = fill(&worktree.branch);
        }
        filled.directory = filled.directory.as_ref().map(fill);
        filled.env.values_mut().for_each(|value| *value = fill(value));
        filled
    }

    /// Renders the inputs and leaves markers for the run's id and name.
    pub(crate) fn pattern(&self, inputs: &Value) -> Result<Workplace, String> {
        let context = json!({ "inputs": inputs, "run": { "id": RUN_ID, "name": RUN_NAME } });
        let budget = Budget::default();
        let fill = |text: &String| template::text(text, &context, &budget);
        let mut filled = self.clone();
        if let Some(worktree) = &mut filled.worktree {
            worktree.base = fill(&worktree.base)?;
            worktree.branch = fill(&worktree.branch)?;
        }
        filled.directory = filled.directory.as_ref().map(fill).transpose()?;
        for value in filled.env.values_mut() {
            *value = fill(value)?;
        }
        Ok(filled)
    }
}

pub(crate) fn decode<'n>(node: &'n Node, uses: &mut Uses<'n>, report: &mut Report) -> Option<Workplace> {
    let mut found = Workplace { include: texts(node.get("include")), ..Workplace::default() };
    match one_of(node, &["worktree", "directory"], report)? {
        ("worktree", worktree) => {
            found.worktree = Some(worktree_spec(worktree, uses));
            if let Some(branch) = worktree.get("branch") {
                crate::branch::check(branch, report);
            }
            if let Some(remote) = worktree.get("remote").filter(|node| !is_remote(node)) {
                let problem = Problem::at(remote.span, "this is not a valid git remote");
                report.error(problem.expected("a remote's name such as `origin`, or its address"));
            }
        }
        (_, directory) => {
            uses.add(directory, TemplateRole::Workplace);
            found.directory = directory.text().map(str::to_owned);
            for key in ["include", "setup"] {
                if let Some(wrong) = node.get(key) {
                    let problem =
                        Problem::at(wrong.span, format!("`{key}` has no effect without a worktree"));
                    report.error(problem.help("remove it, or use `worktree`"));
                }
            }
        }
    }
    for pattern in node.get("include").map(Node::items).unwrap_or_default() {
        let text = pattern.text().unwrap_or_default();
        if text.split('/').any(|part| part == "..") || text.starts_with("//") {
            let problem = Problem::at(pattern.span, "`include` only takes files inside the repository");
            report.error(problem.expected("a path or pattern without `..`"));
        }
    }
    found.setup = node.get("setup").map(setup);
    found.ports = texts(node.get("ports"));
    let variables = node.get("env").map(Node::entries).unwrap_or_default();
    variables.iter().for_each(|(_, value)| uses.add(value, TemplateRole::Workplace));
    found.env = variables
        .iter()
        .filter_map(|(key, value)| match &value.yaml {
            Yaml::Scalar(Scalar { text, .. }) => Some((key.text.clone(), text.clone())),
            _ => None,
        })
        .collect();
    Some(found)
}

fn worktree_spec<'n>(node: &'n Node, uses: &mut Uses<'n>) -> WorktreeSpec {
    let mut spec = WorktreeSpec::default();
    for (key, part) in [("base", &mut spec.base), ("branch", &mut spec.branch)] {
        if let Some(written) = node.get(key) {
            uses.add(written, TemplateRole::Workplace);
            *part = written.text().unwrap_or_default().to_owned();
        }
    }
    spec.keep = match node.get("keep").and_then(Node::text) {
        Some("always") => KeepPolicy::Always,
        Some("on_failure") => KeepPolicy::OnFailure,
        _ => KeepPolicy::Never,
    };
    spec.dirty = match node.get("dirty").and_then(Node::text) {
        Some("refuse") => DirtyPolicy::Refuse,
        Some("include") => DirtyPolicy::Include,
        _ => DirtyPolicy::Ignore,
    };
    spec.submodules = node.get("submodules").and_then(Node::boolean).unwrap_or(false);
    spec.sparse = texts(node.get("sparse"));
    spec.hooks = node.get("hooks").and_then(Node::boolean).unwrap_or(true);
    spec.remote = node.get("remote").and_then(Node::text).map(str::to_owned);
    spec
}

/// Returns whether the text can be a remote: not an option for git, and without characters that no name or address has.
fn is_remote(node: &Node) -> bool {
    let text = node.text().unwrap_or_default();
    !text.starts_with('-') && !text.chars().any(|c| c.is_whitespace() || c.is_control())
}

fn setup(node: &Node) -> Setup {
    match node.text() {
        // The result depends on the script that the command names.
        Some(run) => {
            let script = run.split_whitespace().next().unwrap_or_default();
            Setup {
                run: run.to_owned(),
                files: vec![script.trim_start_matches("./").to_owned()],
                ..Setup::default()
            }
        }
        None => Setup {
            run: node.get("run").and_then(Node::text).unwrap_or_default().to_owned(),
            files: texts(node.get("files")),
            caches: texts(node.get("caches")),
            timeout_ms: node.get("timeout").and_then(duration_ms),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_workplace_is_filled_in_for_its_run() {
        let source = "inputs: {issue: integer}\nenvironment:\n  worktree: {base: main, branch: 'fix/{{ inputs.issue }}-{{ run.id }}', keep: on_failure}\n  setup: ./scripts/bootstrap --fast\n  ports: [web]\n  env: {WHO: '{{ run.name }}'}\nsteps: [{id: a, run: x}]\n";
        let pipeline = crate::parse("p.yaml", source).unwrap_or_else(|wrong| panic!("{wrong}")).pipeline;
        let plan = pipeline.plan(&BTreeMap::from([("issue".into(), json!(7))])).unwrap();
        let kept: Workplace = serde_json::from_str(&plan.environment.unwrap().spec).unwrap();
        let for_run = kept.for_run("r1", "p");
        let worktree = for_run.worktree.unwrap();
        assert_eq!((worktree.base.as_str(), worktree.branch.as_str()), ("main", "fix/7-r1"));
        assert_eq!(for_run.env["WHO"], "p-r1");
        assert_eq!(for_run.setup.unwrap().files, ["scripts/bootstrap"]);
    }

    #[test]
    fn a_workplace_that_makes_no_sense_is_refused() {
        for (environment, expected) in [
            ("{worktree: {}, directory: x}", "only one of these keys is allowed"),
            ("{ports: [web]}", "one of these keys is required"),
            ("{worktree: {}, include: [../x]}", "`include` only takes files inside the repository"),
            ("{directory: x, setup: y}", "`setup` has no effect without a worktree"),
            ("{worktree: {branch: a..b}}", "invalid branch name: git reads `..` as a range"),
            (
                "{worktree: {branch: '{{ run.id }}/x.lock'}}",
                "invalid branch name: a part of it ends in `.lock`, like git's lock files",
            ),
            ("{worktree: {remote: --exec=x}}", "this is not a valid git remote"),
            ("{worktree: {branch: HEAD}}", "invalid branch name: git reads it as the current commit"),
            ("{worktree: {branch: '{{ steps.a.status }}'}}", "`steps` is not available here"),
        ] {
            let source = format!("environment: {environment}\nsteps: [{{id: a, run: x}}]\n");
            let wrong = crate::parse("p.yaml", &source).map(|_| ()).unwrap_err();
            assert_eq!(wrong.iter().next().unwrap().message, expected, "{wrong}");
        }
    }
}
