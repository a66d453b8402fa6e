//! Child pipelines: loaded from the parent's folder together with the parent, and stored with it from then on.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
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

/// The start of a child's key that is another pipeline of the same file. No path starts with this sign.
pub(crate) const SAME_FILE: char = '#';

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

    /// Returns the texts of all files that it needs, by their paths from the folder of its own file; an error if one path
    /// leads to two files, which links can do.
    pub fn files(&self) -> Result<BTreeMap<String, String>, String> {
        let mut files = BTreeMap::new();
        self.add_files(Path::new(""), &mut files)?;
        Ok(files)
    }

    fn add_files(&self, folder: &Path, files: &mut BTreeMap<String, String>) -> Result<(), String> {
        let mut add = |path: &Path, text: &str| {
            let path = path.to_string_lossy().into_owned();
            let known = files.entry(path.clone()).or_insert_with(|| text.to_owned());
            if known == text { Ok(()) } else { Err(format!("{path} leads to two different files")) }
        };
        for (path, text) in &self.prompts {
            add(&lexical(&folder.join(path)), text)?;
        }
        // Another pipeline of the same file is part of that file's text.
        let (same, others) =
            self.children.iter().partition::<Vec<_>, _>(|(path, _)| path.starts_with(SAME_FILE));
        for (path, child) in &others {
            add(&lexical(&folder.join(path)), &child.text)?;
        }
        for (_, child) in same {
            child.add_files(folder, files)?;
        }
        for (path, child) in others {
            child.add_files(lexical(&folder.join(path)).parent().unwrap_or(Path::new("")), files)?;
        }
        Ok(())
    }
}

/// A loaded child, or the reason why it cannot be used.
pub(crate) type Load = Result<(Definition, Pipeline), Unusable>;

/// The reason why a pipeline cannot be used by another one.
#[derive(Debug, Clone)]
pub(crate) enum Unusable {
    /// It has errors.
    Wrong(Diagnostics),
    /// It was not read.
    Because(String),
}

impl From<String> for Unusable {
    fn from(why: String) -> Unusable {
        Unusable::Because(why)
    }
}

impl From<&str> for Unusable {
    fn from(why: &str) -> Unusable {
        Unusable::Because(why.to_owned())
    }
}
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
        /// The place of the files' texts.
        files: Files,
        /// All files loaded so far, shared by the whole tree, so that each file is read once.
        loaded: Loads,
    },
    /// Texts that a run has stored together with the parent's: child pipelines and prompt files.
    Stored(BTreeMap<String, Definition>, BTreeMap<String, String>),
}

impl ChildSource {
    /// Returns the children of the file at `path`.
    pub(crate) fn of(path: &Path) -> ChildSource {
        let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        ChildSource::below(path, vec![whole], Files::OnDisk { within: None }, Loads::default())
    }

    /// Returns the children of the file at `path`, as far as they are below a folder.
    pub(crate) fn within(path: &Path, folder: PathBuf) -> ChildSource {
        let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        ChildSource::below(path, vec![whole], Files::OnDisk { within: Some(folder) }, Loads::default())
    }

    /// Returns the children of a text that came with the texts of the files it needs, by their paths from its folder.
    pub(crate) fn sent(files: &BTreeMap<String, String>) -> ChildSource {
        let files = files.iter().map(|(path, text)| (lexical(Path::new(path)), text.clone())).collect();
        ChildSource::below(Path::new(""), Vec::new(), Files::Sent(Arc::new(files)), Loads::default())
    }

    fn below(path: &Path, above: Vec<PathBuf>, files: Files, loaded: Loads) -> ChildSource {
        ChildSource::Folder {
            folder: path.parent().unwrap_or(Path::new("")).to_owned(),
            above,
            files,
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
            ChildSource::Folder { folder, files, .. } => {
                let path = folder.join(file);
                if let Files::OnDisk { within: Some(root) } = files
                    && !path.canonicalize().is_ok_and(|whole| whole.starts_with(root))
                {
                    return Err(format!("there is no such file below {}", root.display()));
                }
                files.read(&path).map(|source| source.text.clone())
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
                let pipeline = definition.parse().map_err(Unusable::Wrong)?.pipeline;
                Ok((definition, pipeline))
            }
            ChildSource::Folder { folder, above, files, loaded } => {
                let path = folder.join(file);
                let whole = files.whole(&path)?;
                if above.contains(&whole) {
                    return Err("it contains itself, directly or through another pipeline".into());
                }
                if above.len() >= MAX_DEPTH {
                    return Err(format!("more than {MAX_DEPTH} levels of child pipelines").into());
                }
                if let Some(known) = loaded.lock().unwrap_or_else(PoisonError::into_inner).get(&whole) {
                    return known.clone();
                }
                let load = || {
                    let source = files.read(&path)?;
                    let above = above.iter().cloned().chain([whole.clone()]).collect();
                    let children = ChildSource::below(&path, above, files.clone(), Arc::clone(loaded));
                    let report = Report::new(source.clone()).with_children(children);
                    let pipeline = read(report).map_err(Unusable::Wrong)?.pipeline;
                    let definition = Definition {
                        name: source.name.clone(),
                        text: source.text.clone(),
                        children: pipeline.children().collect(),
                        prompts: pipeline.prompts().collect(),
                        outer: None,
                    };
                    if size_of(&definition) > MAX_FILE_BYTES {
                        let why = format!("it and its own children have more than {MAX_FILE_BYTES} bytes");
                        return Err(why.into());
                    }
                    Ok((definition, pipeline))
                };
                let found = load();
                loaded.lock().unwrap_or_else(PoisonError::into_inner).insert(whole.clone(), found.clone());
                found
            }
        }
    }
}

/// The place of the texts of child pipelines and prompt files.
#[derive(Debug, Clone)]
pub(crate) enum Files {
    /// Files of this machine.
    OnDisk {
        /// The folder that every file must be in, if there is one; its path has no links.
        within: Option<PathBuf>,
    },
    /// Texts that came with the outermost pipeline, by their paths from its folder.
    Sent(Arc<BTreeMap<PathBuf, String>>),
}

impl Files {
    /// Returns the path that identifies a file, or the reason why it cannot be used.
    fn whole(&self, path: &Path) -> Result<PathBuf, String> {
        match self {
            Files::OnDisk { within: None } => Ok(path.canonicalize().unwrap_or_else(|_| path.to_owned())),
            Files::OnDisk { within: Some(root) } => {
                let whole = path.canonicalize().ok().filter(|whole| is_pipeline_below(whole, root));
                whole.ok_or_else(|| format!("there is no such .yaml file below {}", root.display()))
            }
            Files::Sent(_) => Ok(lexical(path)),
        }
    }

    /// Returns the text at a path, or the reason why it cannot be read.
    fn read(&self, path: &Path) -> Result<Arc<Source>, String> {
        match self {
            Files::OnDisk { .. } => Source::read(path).map_err(|wrong| first_of(&wrong)),
            Files::Sent(texts) => {
                let text = texts.get(&lexical(path)).ok_or("its text was not sent with its pipeline")?;
                Ok(Source::new(&path.display().to_string(), text))
            }
        }
    }
}

/// Returns a path without `.` and, as far as it has names before them, without `..`. Reads no links.
fn lexical(path: &Path) -> PathBuf {
    let mut whole = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(whole.components().next_back(), Some(Component::Normal(_))) => {
                whole.pop();
            }
            _ => whole.push(part),
        }
    }
    whole
}

/// Returns whether a path without links is that of a pipeline file below a folder.
pub(crate) fn is_pipeline_below(whole: &Path, folder: &Path) -> bool {
    whole.starts_with(folder) && whole.extension().is_some_and(|ending| ending == "yaml" || ending == "yml")
}

/// Returns the first error with its position.
fn first_of(wrong: &Diagnostics) -> String {
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
        Err(unusable) => {
            let why = match &unusable {
                Unusable::Wrong(wrong) => first_of(wrong),
                Unusable::Because(why) => why.clone(),
            };
            let message = format!("the child pipeline {} cannot be used: {why}", quoted(name));
            report.error(Problem::at(file.span, message));
            if let Unusable::Wrong(wrong) = unusable {
                report.adopt(wrong, file.span.start);
            }
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
