//! The sources of events that are no schedule: the ends of other runs, and the moves of git refs.

use std::collections::BTreeMap;

use super::Webhook;
use super::decode::webhook;
use crate::decode::{duration_ms, texts};
use crate::diagnostic::{Problem, Report};
use crate::expression::{check_glob, fits_glob};
use crate::yaml::{Node, Yaml, quoted};

/// The names of an ended run.
pub(super) const ENDED_RUN: [&str; 8] =
    ["run", "status", "pipeline", "name", "labels", "inputs", "outputs", "reason"];

/// The ends of other runs.
#[derive(Debug, Clone)]
pub struct RunSource {
    /// Patterns of names of pipelines; a run counts if any of them fits.
    pub pipelines: Vec<String>,
    /// The statuses with which a run has to end; any if it is empty.
    pub ended: Vec<String>,
    /// The labels that a run has to have.
    pub labels: BTreeMap<String, String>,
}

impl RunSource {
    /// Returns whether a run with this status counts.
    pub fn counts(&self, status: &str) -> bool {
        self.ended.is_empty() || self.ended.iter().any(|word| word == status)
    }

    /// Returns whether a run of this pipeline with these labels counts.
    pub fn matches(&self, pipeline: &str, labels: &BTreeMap<String, String>) -> bool {
        fits_any(&self.pipelines, pipeline)
            && self.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}

/// The names of the move of a ref.
pub(super) const MOVE: [&str; 6] = ["ref", "branch", "old", "new", "paths", "repository"];
/// The pause between two looks at a repository, unless the file says otherwise.
const EVERY_MS: i64 = 60_000;
/// The shortest pause between two looks, in milliseconds.
const SHORTEST_MS: u64 = 1_000;

/// The moves of git refs.
#[derive(Debug, Clone)]
pub struct GitSource {
    /// Patterns of full names of refs.
    pub refs: Vec<String>,
    /// A path, the name of a remote or an address; empty for the project's own repository.
    pub repository: String,
    /// The pause between two looks, in milliseconds.
    pub every_ms: i64,
    /// Patterns of paths, one of which a move has to change; any move counts if it is empty.
    pub paths: Vec<String>,
    /// Whether a ref that appears later starts a run too.
    pub created: bool,
    /// Whether the changed paths are needed: by `paths`, or by a template.
    pub needs_paths: bool,
    /// The requests that make the next look due at once.
    pub told_by: Option<Webhook>,
}

impl GitSource {
    /// Returns whether a ref is watched.
    pub fn watches(&self, name: &str) -> bool {
        fits_any(&self.refs, name)
    }

    /// Returns whether a move that changes these paths counts. Unknown paths may be any.
    pub fn counts(&self, paths: Option<&[String]>) -> bool {
        let Some(paths) = paths.filter(|_| !self.paths.is_empty()) else { return true };
        paths.iter().any(|path| fits_any(&self.paths, path))
    }
}

/// Whether a text fits one of the patterns.
fn fits_any(patterns: &[String], text: &str) -> bool {
    patterns.iter().any(|pattern| fits_glob(pattern, text))
}

/// Decodes `run`.
pub(super) fn run(node: &Node, report: &mut Report) -> Option<RunSource> {
    let pipelines = patterns(node.get("pipeline")?, report)?;
    let labels = node.get("labels").map(Node::entries).unwrap_or_default();
    let labels = labels.iter().filter_map(|(key, value)| Some((key.text.clone(), value.text()?.to_owned())));
    Some(RunSource { pipelines, ended: texts(node.get("ended")), labels: labels.collect() })
}

/// Decodes `git`.
pub(super) fn git(node: &Node, rule: &Node, report: &mut Report) -> Option<GitSource> {
    let refs = patterns(node.get("refs")?, report)?;
    if let Some(wrong) = refs.iter().find(|name| !name.starts_with("refs/")) {
        let problem = Problem::at(node.span, format!("{} is not the full name of a ref", quoted(wrong)));
        report.error(
            problem.expected("a name such as refs/heads/main, or a pattern such as refs/heads/release-*"),
        );
        return None;
    }
    let repository = node.get("repository").and_then(Node::text).unwrap_or_default().to_owned();
    if repository.starts_with('-') || repository.contains("::") || repository.chars().any(char::is_control) {
        let problem = Problem::at(node.span, format!("{} is not a repository", quoted(&repository)));
        report.error(
            problem.expected("a path, the name of a remote, or an address such as https://host/name.git"),
        );
        return None;
    }
    let user = repository.split_once("://").and_then(|(_, rest)| rest.split('/').next()?.rsplit_once('@'));
    if user.is_some_and(|(user, _)| user.contains(':')) {
        let problem = Problem::at(node.span, "the address of the repository contains a password");
        report.error(problem.help("use a credential helper of git, or an ssh key"));
        return None;
    }
    let every = node.get("every");
    let every_ms = every.and_then(duration_ms);
    if let (Some(node), Some(..SHORTEST_MS)) = (every, every_ms) {
        let problem = Problem::at(node.span, "`every` is shorter than a second");
        report.error(problem.expected("a duration of at least 1s"));
        return None;
    }
    let paths = match node.get("paths") {
        Some(paths) => patterns(paths, report)?,
        None => Vec::new(),
    };
    let told_by = match (node.get("told_by"), node.get("secrets")) {
        (Some(_), Some(_)) => Some(webhook(node, "told_by", report)?),
        (None, None) => None,
        (one, other) => {
            let span = one.or(other).map_or(node.span, |node| node.span);
            let problem = Problem::at(span, "`told_by` and `secrets` belong together");
            report.error(
                problem.help("name the sender, and the variables of the server that hold its secrets"),
            );
            return None;
        }
    };
    let needs_paths = !paths.is_empty() || mentions(rule, "event.paths");
    Some(GitSource {
        refs,
        repository,
        every_ms: every_ms.map_or(EVERY_MS, |ms| ms as i64),
        paths,
        created: node.get("created").and_then(Node::boolean).unwrap_or(false),
        needs_paths,
        told_by,
    })
}

/// Whether a text of a rule contains a name.
fn mentions(node: &Node, name: &str) -> bool {
    match &node.yaml {
        Yaml::Scalar(scalar) => scalar.text.contains(name),
        Yaml::List(items) => items.iter().any(|item| mentions(item, name)),
        Yaml::Map(entries) => entries.iter().any(|(_, value)| mentions(value, name)),
    }
}

/// Decodes one pattern or a list of patterns.
fn patterns(node: &Node, report: &mut Report) -> Option<Vec<String>> {
    let nodes = match &node.yaml {
        Yaml::List(items) => items.iter().collect(),
        _ => vec![node],
    };
    let mut patterns = Vec::new();
    for node in nodes {
        let pattern = node.text()?;
        if let Err(why) = check_glob(pattern) {
            let problem = Problem::at(node.span, format!("{} is not a pattern: {why}", quoted(pattern)));
            report.error(problem.expected("a name, or a pattern such as build-*"));
            return None;
        }
        patterns.push(pattern.to_owned());
    }
    Some(patterns)
}
