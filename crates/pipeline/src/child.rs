//! Child pipelines: loaded from the parent's folder together with the parent, and stored with it from then on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::diagnostic::{Diagnostics, Problem, Report};
use crate::inputs::Input;
use crate::nearest::nearest;
use crate::source::{MAX_FILE_BYTES, Source};
use crate::yaml::{Node, quoted};
use crate::{LoadedPipeline, Pipeline, read};

/// The deepest nesting of child pipelines. Deeper nesting is a mistake.
const MAX_DEPTH: usize = 16;

/// A pipeline file's text together with the texts of its children, as a run stores it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// The file's name, for messages.
    pub name: String,
    /// The content of the file.
    pub text: String,
    /// The child files that this file refers to, keyed by the path as written in this file.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub children: BTreeMap<String, Definition>,
    /// The texts of the prompt files that this file refers to, keyed by the path as written in this file.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub prompts: BTreeMap<String, String>,
    /// The names around the step in which the pipeline is written; absent for a pipeline of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outer: Option<crate::inline::Outer>,
}

impl Definition {
    /// Parses the stored text. Reads no file.
    pub fn parse(&self) -> Result<LoadedPipeline, Diagnostics> {
        let children = ChildSource::Stored(self.children.clone(), self.prompts.clone());
        let mut report = Report::new(Source::new(&self.name, &self.text)).with_children(children);
        report.outer.clone_from(&self.outer);
        read(report)
    }
}

/// A loaded child, or the reason why it cannot be used.
pub(crate) type Load = Result<(Definition, Pipeline), String>;
/// Loaded children by absolute path.
type Loads = Arc<Mutex<BTreeMap<PathBuf, Load>>>;

/// The source from which child pipelines are loaded.
#[derive(Debug, Clone, Default)]
pub(crate) enum ChildSource {
    /// None: the parent was not read from a file.
    #[default]
    None,
    /// Files in the parent's folder.
    Folder {
        /// The parent's folder.
        folder: PathBuf,
        /// The parent, its parent, and so on up to the outermost file.
        above: Vec<PathBuf>,
        /// The folder that every file must be in, if there is one; its path has no links.
        within: Option<PathBuf>,
        /// All files loaded so far, shared by the whole tree, so that each file is read once.
        loaded: Loads,
    },
    /// Texts that a run has stored together with the parent's: child pipelines and prompt files.
    Stored(BTreeMap<String, Definition>, BTreeMap<String, String>),
}

impl ChildSource {
    /// Returns the children of the file at `path`.
    pub(crate) fn of(path: &Path) -> ChildSource {
        ChildSource::below(path, Vec::new(), None, Loads::default())
    }

    /// Returns the children of the file at `path`, as far as they are below a folder.
    pub(crate) fn within(path: &Path, folder: PathBuf) -> ChildSource {
        ChildSource::below(path, Vec::new(), Some(folder), Loads::default())
    }

    fn below(path: &Path, mut above: Vec<PathBuf>, within: Option<PathBuf>, loaded: Loads) -> ChildSource {
        let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        above.push(whole);
        ChildSource::Folder {
            folder: path.parent().unwrap_or(Path::new("")).to_owned(),
            above,
            within,
            loaded,
        }
    }

    /// Returns the text of a prompt file, or the reason why it cannot be used.
    pub(crate) fn find_text(&self, file: &str) -> Result<String, String> {
        match self {
            ChildSource::None => {
                Err("it is read from the pipeline's folder, and this pipeline was not read from a file"
                    .into())
            }
            ChildSource::Stored(_, prompts) => {
                prompts.get(file).cloned().ok_or_else(|| "its text was not stored with its pipeline".into())
            }
            ChildSource::Folder { folder, within, .. } => {
                let path = folder.join(file);
                if let Some(root) = within
                    && !path.canonicalize().is_ok_and(|whole| whole.starts_with(root))
                {
                    return Err(format!("there is no such file below {}", root.display()));
                }
                Source::read(&path).map(|source| source.text.clone()).map_err(|wrong| first_of(&wrong))
            }
        }
    }

    /// Returns the child's definition and pipeline, or the reason why it cannot be used.
    pub(crate) fn find(&self, file: &str) -> Load {
        match self {
            ChildSource::None => {
                Err("a child pipeline is loaded from its parent's folder, and this pipeline was not read from a file".into())
            }
            ChildSource::Stored(stored, _) => {
                let definition = stored.get(file).ok_or("its text was not stored with its parent")?.clone();
                let pipeline = definition.parse().map_err(|wrong| first_of(&wrong))?.pipeline;
                Ok((definition, pipeline))
            }
            ChildSource::Folder { folder, above, within, loaded } => {
                let path = folder.join(file);
                let whole = path.canonicalize();
                if let Some(root) = within
                    && !whole.as_ref().is_ok_and(|whole| is_pipeline_below(whole, root))
                {
                    return Err(format!("there is no such .yaml file below {}", root.display()));
                }
                let whole = whole.unwrap_or_else(|_| path.clone());
                if above.contains(&whole) {
                    return Err("it contains itself, directly or through another pipeline".into());
                }
                if above.len() >= MAX_DEPTH {
                    return Err(format!("more than {MAX_DEPTH} levels of child pipelines"));
                }
                if let Some(known) = loaded.lock().unwrap_or_else(PoisonError::into_inner).get(&whole) {
                    return known.clone();
                }
                let load = || {
                    let source = Source::read(&path).map_err(|wrong| first_of(&wrong))?;
                    let children = ChildSource::below(&path, above.clone(), within.clone(), Arc::clone(loaded));
                    let report = Report::new(source.clone()).with_children(children);
                    let pipeline = read(report).map_err(|wrong| first_of(&wrong))?.pipeline;
                    let definition = Definition {
                        name: source.name.clone(),
                        text: source.text.clone(),
                        children: pipeline.children().collect(),
                        prompts: pipeline.prompts().collect(),
                        outer: None,
                    };
                    if size_of(&definition) > MAX_FILE_BYTES {
                        return Err(format!("it and its own children have more than {MAX_FILE_BYTES} bytes"));
                    }
                    Ok((definition, pipeline))
                };
                let found = load();
                loaded.lock().unwrap_or_else(PoisonError::into_inner).insert(whole, found.clone());
                found
            }
        }
    }
}

/// Returns whether a path without links is that of a pipeline file below a folder.
pub(crate) fn is_pipeline_below(whole: &Path, folder: &Path) -> bool {
    whole.starts_with(folder) && whole.extension().is_some_and(|ending| ending == "yaml" || ending == "yml")
}

/// Returns the first error with its position.
pub(crate) fn first_of(wrong: &Diagnostics) -> String {
    match wrong.iter().next() {
        Some(first) => match first.line {
            Some(line) => format!("{}:{line}: {}", first.file, first.message),
            None => first.message.clone(),
        },
        None => "it cannot be loaded".into(),
    }
}

/// Returns the child that a step refers to. Reports a child that cannot be loaded, and inputs that do not match.
pub(crate) fn resolve(file: &Node, inputs: Option<&Node>, report: &mut Report) -> Option<Definition> {
    let name = file.text()?;
    if name.contains("{{") {
        let problem = Problem::at(
            file.span,
            "the path of a child pipeline cannot contain templates without `files`: the file is loaded with its parent",
        );
        report.error(problem.help("list the files that it may be: `files: [a.yaml, b.yaml]`"));
        return None;
    }
    let (definition, child) = match report.children.clone().find(name) {
        Ok(found) => found,
        Err(why) => {
            report.error(Problem::at(
                file.span,
                format!("the child pipeline {} cannot be used: {why}", quoted(name)),
            ));
            return None;
        }
    };
    check_inputs(file, inputs, &child.inputs, report);
    report.child_secrets.extend(child.secrets.iter().cloned());
    report.child_agents.extend(child.agents.iter().cloned());
    Some(definition)
}

fn size_of(definition: &Definition) -> u64 {
    let prompts = definition.prompts.values().map(|text| text.len() as u64);
    definition.text.len() as u64
        + definition.children.values().map(size_of).sum::<u64>()
        + prompts.sum::<u64>()
}

pub(crate) fn check_inputs(file: &Node, given: Option<&Node>, declared: &[Input], report: &mut Report) {
    if let Some(secret) = declared.iter().find(|input| input.secret) {
        let message = format!("the child pipeline has the secret input `{}`", secret.name);
        let problem = Problem::at(file.span, message);
        report.error(problem.help("a parent cannot pass on secrets: use `secrets` in the child pipeline"));
    }
    let given = given.map(Node::entries).unwrap_or_default();
    for (key, _) in given {
        if !declared.iter().any(|input| input.name == key.text) {
            let names = declared.iter().map(|input| input.name.as_str());
            let problem =
                Problem::at(key.span, format!("the child pipeline has no input {}", quoted(&key.text)));
            report.error(problem.nearest(nearest(&key.text, names)).help("declare it under its `inputs:`"));
        }
    }
    let missing = declared
        .iter()
        .filter(|input| input.required && !given.iter().any(|(key, _)| key.text == input.name));
    for input in missing {
        let problem = Problem::at(file.span, format!("the child pipeline needs the input `{}`", input.name));
        report.error(problem.help(format!("give it: `inputs: {{ {}: … }}`", input.name)));
    }
}
