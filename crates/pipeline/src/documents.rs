//! Several pipelines in one file: the first document is the file's pipeline, and steps call the others by their names.
//!
//! A further document is read as a text of its own, with a blank line for each line before it, so that diagnostics name
//! the lines of the file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use granit_parser::{Event, Parser};

use crate::child::{self, ChildSource, Definition, Unusable};
use crate::diagnostic::{Diagnostics, Problem, Report};
use crate::kinds;
use crate::names::Uses;
use crate::nearest::nearest;
use crate::source::{Source, Span};
use crate::spec::Kind;
use crate::yaml::{self, Node, quoted};
use crate::{Pipeline, decode_document};

/// The most pipelines in one file.
const MAX_DOCUMENTS: usize = 100;

/// The further pipelines of a file, shared by all of its documents.
#[derive(Debug, Clone, Default)]
pub(crate) struct Documents {
    texts: Arc<BTreeMap<String, Document>>,
    /// The pipelines that are being read, from the outermost on.
    calling: Vec<String>,
    /// The pipelines that are called from somewhere.
    called: Arc<Mutex<BTreeSet<String>>>,
}

#[derive(Debug)]
struct Document {
    text: String,
    place: Span,
}

impl Documents {
    /// Finds the further documents of the report's source. Reports documents without a name, and names that occur twice.
    pub(crate) fn find(report: &mut Report) -> Documents {
        let source = report.source.clone();
        let starts = starts(&source.text);
        let mut texts = BTreeMap::new();
        if starts.len() >= MAX_DOCUMENTS {
            let problem = Problem::nowhere(format!("more than {MAX_DOCUMENTS} pipelines in one file"));
            report.error(problem.help("split it into several files"));
            return Documents::default();
        }
        for (at, start) in starts.iter().enumerate() {
            let end = starts.get(at + 1).copied().unwrap_or(source.text.len());
            let before = source.text[..*start].lines().count();
            let text = "\n".repeat(before) + &source.text[*start..end];
            let place = Span { start: *start, end: *start + 3 };
            let mut own = Report::new(Source::new(&source.name, &text));
            let Some(root) = yaml::read(&mut own) else {
                if own.has_errors() {
                    report.adopt(own.finish(), place.start);
                }
                continue;
            };
            let Some(name) = root.get("name").and_then(Node::text).map(str::to_owned) else {
                let problem = Problem::at(place, "a further pipeline of a file needs a name");
                report.error(problem.help("add `name:` after this line; steps call it by that name"));
                continue;
            };
            if texts.contains_key(&name) {
                report.error(Problem::at(
                    place,
                    format!("two pipelines of the file are named {}", quoted(&name)),
                ));
            }
            texts.insert(name, Document { text, place });
        }
        Documents { texts: Arc::new(texts), ..Documents::default() }
    }

    /// Returns whether the pipeline of the file itself is read, and not one of the others.
    pub(crate) fn is_outermost(&self) -> bool {
        self.calling.is_empty()
    }

    /// Reports pipelines that no step calls: with their errors, or with a warning.
    pub(crate) fn check_uncalled(&self, report: &mut Report) {
        for (name, document) in self.texts.iter() {
            if self.called.lock().unwrap_or_else(PoisonError::into_inner).contains(name) {
                continue;
            }
            match self.load(name, document, report) {
                Ok(_) => {
                    let problem =
                        Problem::at(document.place, format!("no step runs the pipeline {}", quoted(name)));
                    report.warn(
                        problem.help(format!("call it with `pipeline: {{ name: {name} }}`, or remove it")),
                    );
                }
                Err(wrong) => report.adopt(wrong, document.place.start),
            }
        }
    }

    /// Reads a document, or returns its errors.
    fn load(
        &self,
        name: &str,
        document: &Document,
        report: &Report,
    ) -> Result<(Definition, Pipeline), Diagnostics> {
        self.called.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        let mut inner = self.clone();
        inner.calling.push(name.to_owned());
        let source = Source::new(&report.source.name, &document.text);
        let own = Report::new(source.clone()).with_children(report.children.clone()).with_documents(inner);
        let loaded = decode_document(own)?;
        let definition = Definition {
            name: source.name.clone(),
            text: document.text.clone(),
            children: loaded.pipeline.children().collect(),
            prompts: loaded.pipeline.prompts().collect(),
            outer: None,
        };
        Ok((definition, loaded.pipeline))
    }
}

/// Returns the key of a pipeline of the same file among the children of a definition.
fn key(name: &str) -> String {
    format!("{}{name}", child::SAME_FILE)
}

/// Decodes a step that runs another pipeline of the same file.
pub(crate) fn child<'n>(
    node: &'n Node,
    name: &'n Node,
    uses: &mut Uses<'n>,
    report: &mut Report,
) -> Option<Kind> {
    for other in ["file", "files"] {
        if let Some(wrong) = node.get(other) {
            let problem = Problem::at(wrong.span, format!("`{other}` has no effect beside `name`"));
            report.error(problem.help("remove one of them"));
        }
    }
    let given = node.get("inputs");
    let inputs = given.map(Node::entries).unwrap_or_default();
    let inputs = inputs.iter().map(|(key, value)| (key.text.clone(), kinds::json(Some(value), uses)));
    let inputs = inputs.collect();
    let wanted = name.text()?;
    let documents = report.documents.clone();
    let found = match (documents.texts.get(wanted), &report.children) {
        (Some(_), _) if documents.calling.iter().any(|calling| calling == wanted) => {
            Err("it calls itself, directly or through another pipeline".into())
        }
        (Some(document), _) => match documents.load(wanted, document, report) {
            Ok(found) => Ok(found),
            // The errors are in the same file, which says enough.
            Err(wrong) => {
                report.adopt(wrong, document.place.start);
                return None;
            }
        },
        (None, ChildSource::Stored(stored, _)) if stored.contains_key(&key(wanted)) => {
            report.children.clone().find(&key(wanted))
        }
        (None, _) => {
            let known = documents.texts.keys().map(String::as_str);
            let problem = Problem::at(name.span, format!("the file has no pipeline {}", quoted(wanted)));
            report.error(
                problem
                    .nearest(nearest(wanted, known))
                    .help("write it behind a line `---` with that `name`, or give its `file`"),
            );
            return None;
        }
    };
    let (definition, pipeline) = match found {
        Ok(found) => found,
        Err(Unusable::Because(why)) => {
            let message = format!("the pipeline {} cannot be used: {why}", quoted(wanted));
            report.error(Problem::at(name.span, message));
            return None;
        }
        Err(Unusable::Wrong(wrong)) => {
            report.adopt(wrong, name.span.start);
            return None;
        }
    };
    child::check_inputs(name, given, &pipeline.inputs, report);
    report.child_secrets.extend(pipeline.secrets.iter().cloned());
    report.child_agents.extend(pipeline.agents.iter().cloned());
    Some(Kind::Pipeline {
        inputs,
        file: key(wanted),
        definition: Box::new(definition),
        files: BTreeMap::new(),
    })
}

/// Returns the offsets at which the further documents of a text start. A text that is not YAML has none: reading it
/// reports the error.
fn starts(text: &str) -> Vec<usize> {
    if !text.contains("\n---") {
        return Vec::new();
    }
    let mut found = Vec::new();
    for next in Parser::new_from_str(text) {
        let Ok((event, span)) = next else { return Vec::new() };
        if matches!(event, Event::DocumentStart(..)) {
            found.push(Span::from(span.byte_range().unwrap_or_default()).start);
        }
    }
    found.into_iter().skip(1).collect()
}
