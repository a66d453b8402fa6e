//! Where a run works: `environment:` as it is written, and as a run keeps it.
//!
//! Its texts are filled in when the run is made, but for the run's own name and id, which are only known then:
//! a pattern holds marks in their place.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::decode::{duration_ms, texts};
use crate::diagnostic::{Problem, Report};
use crate::kinds::one_of;
use crate::names::{Place, Uses};
use crate::template;
use crate::yaml::{Node, Scalar, Yaml};

/// Stands for the run's id in a pattern.
const RUN_ID: &str = "\u{e000}id\u{e000}";
/// Stands for the run's name in a pattern.
const RUN_NAME: &str = "\u{e000}name\u{e000}";

/// Where a run works.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workplace {
    /// A git worktree of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worktree: Option<WorktreeSpec>,
    /// A folder that is there, or is made and never removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Ignored files that a worktree needs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// What must have been run in it before anything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setup: Option<Setup>,
    /// Names of ports that the run has for itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// Variables of every command in it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// A git worktree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorktreeSpec {
    /// What it begins with.
    pub base: String,
    /// The branch that is made for it.
    pub branch: String,
    /// When it stays after the run has ended.
    pub keep: Keep,
    /// Whether submodules are checked out too.
    pub submodules: bool,
    /// Folders to which its files are limited.
    pub sparse: Vec<String>,
    /// The remote that is sent the state after each step, so that the run can go on where this host is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
}

impl Default for WorktreeSpec {
    fn default() -> Self {
        WorktreeSpec {
            base: "HEAD".into(),
            branch: format!("sprag/{RUN_NAME}"),
            keep: Keep::Never,
            submodules: false,
            sparse: Vec::new(),
            remote: None,
        }
    }
}

/// When a worktree stays after its run has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// It goes; what was not committed is saved as a ref.
    #[default]
    Never,
    /// Unless the run completed.
    OnFailure,
    /// It stays until a person removes it.
    Always,
}

/// What must have been run in a worktree before anything else.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Setup {
    /// The command.
    pub run: String,
    /// It is run again when one of these files has changed.
    pub files: Vec<String>,
    /// Ignored paths that it makes, which stay with a worktree that is used again.
    pub caches: Vec<String>,
    /// The longest that it may take.
    pub timeout_ms: Option<u64>,
}

impl Workplace {
    /// The workplace of one run.
    pub fn of_run(&self, run: &str, pipeline: &str) -> Workplace {
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

    /// With the inputs filled in.
    pub(crate) fn pattern(&self, inputs: &Value) -> Result<Workplace, String> {
        let context = json!({ "inputs": inputs, "run": { "id": RUN_ID, "name": RUN_NAME } });
        let fill = |text: &String| template::text(text, &context);
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
                let problem = Problem::at(remote.span, "git would not take this for a remote");
                report.error(problem.expected("a remote's name such as `origin`, or its address"));
            }
        }
        (_, directory) => {
            uses.add(directory, Place::Workplace);
            found.directory = directory.text().map(str::to_owned);
            for key in ["include", "setup"] {
                if let Some(wrong) = node.get(key) {
                    let problem =
                        Problem::at(wrong.span, format!("`{key}` means nothing without a worktree"));
                    report.error(problem.help("remove it, or use `worktree`"));
                }
            }
        }
    }
    for pattern in node.get("include").map(Node::items).unwrap_or_default() {
        let text = pattern.text().unwrap_or_default();
        if text.split('/').any(|part| part == "..") || text.starts_with("//") {
            let problem = Problem::at(pattern.span, "a file to include lies in the repository");
            report.error(problem.expected("a path or pattern without `..`"));
        }
    }
    found.setup = node.get("setup").map(setup);
    found.ports = texts(node.get("ports"));
    let variables = node.get("env").map(Node::entries).unwrap_or_default();
    variables.iter().for_each(|(_, value)| uses.add(value, Place::Workplace));
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
            uses.add(written, Place::Workplace);
            *part = written.text().unwrap_or_default().to_owned();
        }
    }
    spec.keep = match node.get("keep").and_then(Node::text) {
        Some("always") => Keep::Always,
        Some("on_failure") => Keep::OnFailure,
        _ => Keep::Never,
    };
    spec.submodules = node.get("submodules").and_then(Node::boolean).unwrap_or(false);
    spec.sparse = texts(node.get("sparse"));
    spec.remote = node.get("remote").and_then(Node::text).map(str::to_owned);
    spec
}

/// Nothing that git could take for an option, nor what no name or address has in it.
fn is_remote(node: &Node) -> bool {
    let text = node.text().unwrap_or_default();
    !text.starts_with('-') && !text.chars().any(|c| c.is_whitespace() || c.is_control())
}

fn setup(node: &Node) -> Setup {
    match node.text() {
        // The script that it names is what it depends on.
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
        let of_run = kept.of_run("r1", "p");
        let worktree = of_run.worktree.unwrap();
        assert_eq!((worktree.base.as_str(), worktree.branch.as_str()), ("main", "fix/7-r1"));
        assert_eq!(of_run.env["WHO"], "p-r1");
        assert_eq!(of_run.setup.unwrap().files, ["scripts/bootstrap"]);
    }

    #[test]
    fn a_workplace_that_makes_no_sense_is_refused() {
        for (environment, expected) in [
            ("{worktree: {}, directory: x}", "only one of these keys can be here"),
            ("{ports: [web]}", "a key is missing here"),
            ("{worktree: {}, include: [../x]}", "a file to include lies in the repository"),
            ("{directory: x, setup: y}", "`setup` means nothing without a worktree"),
            ("{worktree: {branch: a..b}}", "no branch can be called this: git reads `..` as a range"),
            (
                "{worktree: {branch: '{{ run.id }}/x.lock'}}",
                "no branch can be called this: a part of it ends in `.lock`, like git's lock files",
            ),
            ("{worktree: {remote: --exec=x}}", "git would not take this for a remote"),
            (
                "{worktree: {branch: HEAD}}",
                "no branch can be called this: git reads it as the current commit",
            ),
            ("{worktree: {branch: '{{ steps.a.status }}'}}", "`steps` is not known when this is filled in"),
        ] {
            let source = format!("environment: {environment}\nsteps: [{{id: a, run: x}}]\n");
            let wrong = crate::parse("p.yaml", &source).map(|_| ()).unwrap_err();
            assert_eq!(wrong.iter().next().unwrap().message, expected, "{wrong}");
        }
    }
}
