//! Pipelines of new runs: text in the request, or files of the project's folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sprag_app::{LoadedPipeline, Pipeline, Plan};

use crate::problem::{Answer, Problem};

/// The folder of a project's pipelines, below the project.
const FOLDER: &str = ".sprag/pipelines";
/// The most pipelines that are listed.
const MOST: usize = 1_000;

/// Parses the pipeline in a text.
pub(crate) fn inline(text: &str) -> Answer<LoadedPipeline> {
    Ok(sprag_pipeline::parse("pipeline.yaml", text)?)
}

/// Returns the pipeline of a request: its text with the texts of the files it refers to, or the name of one of the
/// project's pipelines.
pub(crate) fn given(
    project: Option<&Path>,
    text: Option<&str>,
    files: &BTreeMap<String, String>,
    name: Option<&str>,
) -> Answer<LoadedPipeline> {
    match (text, name) {
        (Some(text), None) => Ok(sprag_pipeline::parse_with_files("pipeline.yaml", text, files)?),
        (None, Some(_)) if !files.is_empty() => Err(Problem::invalid("files: only `yaml` can have them")),
        (None, Some(name)) => named(project, name),
        _ => Err(Problem::invalid("give either `yaml` or `pipeline`")),
    }
}

/// Returns the file of the project's pipeline of this name.
pub(crate) fn file_of(project: &Path, name: &str) -> Option<PathBuf> {
    files(project).into_iter().find(|path| name_of(path).as_deref() == Some(name))
}

/// Loads the project's pipeline of this name.
pub(crate) fn named(project: Option<&Path>, name: &str) -> Answer<LoadedPipeline> {
    let project = project.ok_or_else(no_project)?;
    let folder = project.join(FOLDER);
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let there = || list(&folder).into_iter().filter_map(|path| name_of(&path)).collect::<Vec<_>>().join(", ");
    let none = || {
        Problem::invalid(format!("the project has no pipeline {name:?}"))
            .next(format!("the project has: {}", there()))
    };
    if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
        return Err(none());
    }
    Ok(sprag_pipeline::load_within(&file_of(project, name).ok_or_else(none)?, project)?)
}

/// Returns the problem for a server without a project folder.
pub(crate) fn no_project() -> Problem {
    Problem::invalid("the server was started without a project")
        .next("send the pipeline itself as `yaml`, or start the server with --project DIR")
}

/// Returns the files of a project's pipelines, in order.
pub fn files(project: &Path) -> Vec<PathBuf> {
    list(&project.join(FOLDER))
}

fn list(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let yaml = |path: &PathBuf| {
        path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml") && path.is_file()
    };
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(yaml).take(MOST).collect();
    found.sort();
    found
}

/// Returns the name by which a file is requested.
pub(crate) fn name_of(path: &Path) -> Option<String> {
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned())
}

/// Returns the plan of a pipeline and its complete inputs.
pub(crate) fn plan(
    pipeline: &Pipeline,
    inputs: &BTreeMap<String, Value>,
) -> Answer<(Plan, BTreeMap<String, Value>)> {
    let inputs = pipeline.complete(inputs)?;
    let plan = pipeline.plan(&inputs)?;
    Ok((plan, inputs))
}
