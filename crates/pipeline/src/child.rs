//! Child pipelines: found beside their parent when it is loaded, and kept with it from then on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::diagnostic::{Diagnostics, Problem, Report};
use crate::inputs::Input;
use crate::nearest::nearest;
use crate::source::{MAX_FILE_BYTES, Source};
use crate::yaml::{Node, quoted};
use crate::{Loaded, Pipeline, read};

/// A child of a child of a child: what is deeper is a mistake.
const MAX_DEPTH: usize = 16;

/// A pipeline file's text with those of its children, as a run keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// The file's name, for messages.
    pub name: String,
    /// Its text.
    pub text: String,
    /// The files that it names, by the names it has for them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub children: BTreeMap<String, Definition>,
}

impl Definition {
    /// The pipeline in it. No file is read.
    pub fn parse(&self) -> Result<Loaded, Diagnostics> {
        read(
            Report::new(Source::new(&self.name, &self.text))
                .with_children(Children::Kept(self.children.clone())),
        )
    }
}

/// A child that was loaded, or why it cannot be used.
type Load = Result<(Definition, Pipeline), String>;
/// Children by their whole path.
type Loads = Arc<Mutex<BTreeMap<PathBuf, Load>>>;

/// Where child pipelines are found.
#[derive(Debug, Clone, Default)]
pub(crate) enum Children {
    /// Nowhere: the parent is no file.
    #[default]
    Nowhere,
    /// Beside their parent.
    Beside {
        /// The parent's folder.
        folder: PathBuf,
        /// The parent, its parent, and so on.
        above: Vec<PathBuf>,
        /// Those that were loaded already, for whichever of them: a file that many name is read once.
        loaded: Loads,
    },
    /// With their parent, as a run has kept them.
    Kept(BTreeMap<String, Definition>),
}

impl Children {
    /// Those of the file at `path`.
    pub(crate) fn of(path: &Path) -> Children {
        Children::below(path, Vec::new(), Loads::default())
    }

    fn below(path: &Path, mut above: Vec<PathBuf>, loaded: Loads) -> Children {
        let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        above.push(whole);
        Children::Beside { folder: path.parent().unwrap_or(Path::new("")).to_owned(), above, loaded }
    }

    /// The child's definition and the child itself, or why it cannot be had.
    fn find(&self, file: &str) -> Load {
        match self {
            Children::Nowhere => {
                Err("a child pipeline is found beside its parent's file, and this one has none".into())
            }
            Children::Kept(kept) => {
                let definition = kept.get(file).ok_or("it was not kept with its parent")?.clone();
                let pipeline = definition.parse().map_err(|wrong| first_of(&wrong))?.pipeline;
                Ok((definition, pipeline))
            }
            Children::Beside { folder, above, loaded } => {
                let path = folder.join(file);
                let whole = path.canonicalize().unwrap_or_else(|_| path.clone());
                if above.contains(&whole) {
                    return Err("it would run itself again and again".into());
                }
                if above.len() >= MAX_DEPTH {
                    return Err(format!("more than {MAX_DEPTH} pipelines inside each other"));
                }
                if let Some(known) = loaded.lock().unwrap_or_else(PoisonError::into_inner).get(&whole) {
                    return known.clone();
                }
                let load = || {
                    let source = Source::read(&path).map_err(|wrong| first_of(&wrong))?;
                    let children = Children::below(&path, above.clone(), Arc::clone(loaded));
                    let report = Report::new(source.clone()).with_children(children);
                    let pipeline = read(report).map_err(|wrong| first_of(&wrong))?.pipeline;
                    let definition = Definition {
                        name: source.name.clone(),
                        text: source.text.clone(),
                        children: pipeline.children().collect(),
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

/// The first thing that is wrong, with its place.
fn first_of(wrong: &Diagnostics) -> String {
    match wrong.iter().next() {
        Some(first) => match first.line {
            Some(line) => format!("{}:{line}: {}", first.file, first.message),
            None => first.message.clone(),
        },
        None => "it cannot be loaded".into(),
    }
}

/// The child that a step names, if it can be had and is given what it asks for; reported if not.
pub(crate) fn resolve(file: &Node, inputs: Option<&Node>, report: &mut Report) -> Option<Definition> {
    let name = file.text()?;
    if name.contains("{{") {
        let problem =
            Problem::at(file.span, "the file of a child pipeline is known when its parent is loaded");
        report.error(problem.expected("a path without templates"));
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
    Some(definition)
}

fn size_of(definition: &Definition) -> u64 {
    definition.text.len() as u64 + definition.children.values().map(size_of).sum::<u64>()
}

fn check_inputs(file: &Node, given: Option<&Node>, declared: &[Input], report: &mut Report) {
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
