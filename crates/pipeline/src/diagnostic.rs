//! Diagnostics about a pipeline file: shown to people with the source line, and to programs as JSON.

use std::fmt;
use std::sync::Arc;

use annotate_snippets::{AnnotationKind, Level, Origin, Renderer, Snippet};
use serde::Serialize;

use crate::child::ChildSource;
use crate::documents::Documents;
use crate::inline::Outer;
use crate::source::{Source, Span};

/// The most diagnostics stored for one file; a broken file can have thousands.
const MAX_KEPT: usize = 50;
/// The most characters shown of a long line around the marked span, because one line can be the whole file.
const MAX_SHOWN_CHARS: usize = 240;
/// The width of a text. What is expected goes below the source line where it would be longer beside the mark.
const COLUMNS: usize = 80;

/// Whether a diagnostic prevents the file's use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file is legal, but probably not what the author meant.
    Warning,
}

/// A message about a pipeline file, or about the inputs given to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// Whether the diagnostic prevents the file's use.
    pub severity: Severity,
    /// The file's path as the caller gave it.
    pub file: String,
    /// The line, from 1; absent if the message concerns no position in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The column in characters, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
    /// The line on which the marked span ends, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_line: Option<usize>,
    /// The column after the end of the marked span, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_column: Option<usize>,
    /// The mistake, in one sentence.
    pub message: String,
    /// The form or values that are accepted here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// The valid name that is most similar to the one in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<String>,
    /// The correction to make.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

/// The diagnostics of one file, in the order of their positions.
#[derive(Debug, Clone, Default)]
pub struct Diagnostics {
    items: Vec<Located>,
    omitted: usize,
}

/// A diagnostic with the text that it is about: that of the file, or of a child pipeline.
#[derive(Debug, Clone)]
struct Located {
    diagnostic: Diagnostic,
    source: Arc<Source>,
}

impl Diagnostics {
    pub(crate) fn without_source(file: &str, problem: Problem) -> Diagnostics {
        let mut report = Report::new(Source::new(file, ""));
        report.error(problem);
        report.finish()
    }

    /// Iterates over the stored diagnostics in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.items.iter().map(|item| &item.diagnostic)
    }

    /// Returns the number of stored diagnostics, at most 50.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns whether there are no diagnostics.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns how many more diagnostics were found than are stored.
    pub fn omitted(&self) -> usize {
        self.omitted
    }

    /// Renders the diagnostics for people, each with its source line and a mark under the span.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let mut text: Vec<String> = self.items.iter().map(|item| self.picture(item, &renderer)).collect();
        if self.omitted > 0 {
            text.push(format!("… and {} more", self.omitted));
        }
        text.join("\n\n")
    }

    fn picture(&self, located: &Located, renderer: &Renderer) -> String {
        let Located { diagnostic: item, source } = located;
        let level = match item.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let title = level.primary_title(item.message.as_str());
        let file = printable(&item.file);
        let mut group = match (item.line, item.column) {
            (Some(line), Some(column)) => {
                let end = if item.end_line == Some(line) { item.end_column } else { None };
                let label = item.expected.as_ref().map(|expected| format!("expected {expected}"));
                let text = source.line(line);
                let (shown, mark) = crop(text, column - 1, end.map(|end| end - 1));
                let gutter = line.to_string().len();
                let marked = shown[..mark.end].chars().count();
                let is_long = |label: &String| gutter + marked + label.chars().count() + 4 > COLUMNS;
                let (below, label) = (label.clone().filter(is_long), label.filter(|label| !is_long(label)));
                let snippet = Snippet::source(shown).line_start(line);
                let snippet = snippet.annotation(AnnotationKind::Primary.span(mark).label(label));
                let group = if shown.len() == text.len() {
                    title.element(snippet.path(file))
                } else {
                    // The renderer would count columns from the start of the cropped line.
                    title.element(Origin::path(format!("{file}:{line}:{column}"))).element(snippet)
                };
                match below {
                    // The renderer puts the line's gutter and "= note: " before it.
                    Some(text) => group.element(Level::NOTE.message(wrapped(&text, COLUMNS - gutter - 9))),
                    None => group,
                }
            }
            _ => {
                let group = title.element(Origin::path(file));
                match &item.expected {
                    Some(expected) => group.element(Level::NOTE.message(format!("expected {expected}"))),
                    None => group,
                }
            }
        };
        if let Some(nearest) = &item.nearest {
            group = group.element(Level::HELP.message(format!("did you mean `{nearest}`?")));
        }
        if let Some(help) = &item.help {
            group = group.element(Level::HELP.message(wrapped(help, COLUMNS - 12)));
        }
        renderer.render(&[group])
    }
}

/// Returns the part of a line around the marked span, and the span's byte range within it.
fn crop(line: &str, from: usize, to: Option<usize>) -> (&str, std::ops::Range<usize>) {
    let byte = |column: usize| line.char_indices().nth(column).map_or(line.len(), |(at, _)| at);
    let (mark_start, mark_end) = (byte(from), to.map_or(line.len(), byte));
    if line.len() <= MAX_SHOWN_CHARS {
        return (line, mark_start..mark_end.max(mark_start));
    }
    let first = from.saturating_sub(MAX_SHOWN_CHARS / 2);
    let (start, end) = (byte(first), byte(first + MAX_SHOWN_CHARS));
    (&line[start..end], mark_start - start..mark_end.clamp(mark_start, end) - start)
}

/// Returns a text in lines of at most `width` characters, broken between words.
fn wrapped(text: &str, width: usize) -> String {
    let (mut lines, mut column) = (String::with_capacity(text.len()), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            lines.push('\n');
            column = 0;
        } else if column > 0 {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += length;
    }
    lines
}

/// Returns a file name without characters that a terminal would interpret.
fn printable(name: &str) -> String {
    name.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Diagnostics {}

impl Serialize for Diagnostics {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// A diagnostic whose position is still a byte span.
#[derive(Debug)]
pub(crate) struct Problem {
    span: Option<Span>,
    message: String,
    expected: Option<String>,
    nearest: Option<String>,
    help: Option<String>,
}

impl Problem {
    pub(crate) fn at(span: Span, message: impl Into<String>) -> Problem {
        Problem { span: Some(span), ..Problem::nowhere(message) }
    }

    pub(crate) fn nowhere(message: impl Into<String>) -> Problem {
        Problem { span: None, message: message.into(), expected: None, nearest: None, help: None }
    }

    pub(crate) fn expected(mut self, expected: impl Into<String>) -> Problem {
        self.expected = Some(expected.into());
        self
    }

    pub(crate) fn nearest(mut self, nearest: Option<&str>) -> Problem {
        self.nearest = nearest.map(str::to_owned);
        self
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Problem {
        self.help = Some(help.into());
        self
    }
}

/// Collects the diagnostics about one source.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) source: Arc<Source>,
    /// With the byte of the source at which each is listed.
    found: Vec<(usize, Located)>,
    errors: usize,
    warnings: usize,
    omitted: usize,
    pub(crate) children: ChildSource,
    /// The further pipelines of the file.
    pub(crate) documents: Documents,
    /// Secrets used by the child pipelines loaded so far.
    pub(crate) child_secrets: std::collections::BTreeSet<String>,
    /// The agents of the child pipelines.
    pub(crate) child_agents: std::collections::BTreeSet<String>,
    /// The names around the step whose inner steps are being decoded.
    pub(crate) outer: Option<Outer>,
    /// The names of the pipeline that is being decoded, for the steps inside its steps.
    pub(crate) own: Outer,
    /// The regular expressions in the schemas that were found so far.
    pub(crate) patterns: usize,
}

impl Report {
    pub(crate) fn new(source: Arc<Source>) -> Report {
        Report {
            source,
            found: Vec::new(),
            errors: 0,
            warnings: 0,
            omitted: 0,
            children: ChildSource::default(),
            documents: Documents::default(),
            child_secrets: Default::default(),
            child_agents: Default::default(),
            outer: None,
            own: Outer::default(),
            patterns: 0,
        }
    }

    /// Sets the source of child pipelines.
    pub(crate) fn with_children(self, children: ChildSource) -> Report {
        Report { children, ..self }
    }

    /// Sets the further pipelines of the file.
    pub(crate) fn with_documents(self, documents: Documents) -> Report {
        Report { documents, ..self }
    }

    pub(crate) fn error(&mut self, problem: Problem) {
        self.errors += 1;
        self.add(Severity::Error, self.errors, problem);
    }

    pub(crate) fn warn(&mut self, problem: Problem) {
        self.warnings += 1;
        self.add(Severity::Warning, self.warnings, problem);
    }

    pub(crate) fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// Returns whether further diagnostics are only counted, so that searching for similar names is pointless.
    pub(crate) fn is_full(&self) -> bool {
        self.errors >= MAX_KEPT
    }

    fn add(&mut self, severity: Severity, count: usize, problem: Problem) {
        if count > MAX_KEPT {
            self.omitted += 1;
            return;
        }
        let start = problem.span.map(|span| self.source.position(span.start));
        let end = problem.span.map(|span| self.source.position(span.end));
        let diagnostic = Diagnostic {
            severity,
            file: self.source.name.clone(),
            line: start.map(|place| place.line),
            column: start.map(|place| place.column),
            end_line: end.map(|place| place.line),
            end_column: end.map(|place| place.column),
            message: problem.message,
            expected: problem.expected,
            nearest: problem.nearest,
            help: problem.help,
        };
        let located = Located { diagnostic, source: self.source.clone() };
        self.found.push((problem.span.map_or(0, |span| span.start), located));
    }

    /// Adds the errors of another pipeline, with their own places, behind the byte of this source that refers to it.
    /// Several references to a pipeline report it once.
    pub(crate) fn adopt(&mut self, wrong: Diagnostics, place: usize) {
        self.omitted += wrong.omitted;
        for located in wrong.items {
            let is_error = located.diagnostic.severity == Severity::Error;
            let known = |(_, known): &(usize, Located)| known.diagnostic == located.diagnostic;
            if !is_error || self.found.iter().any(known) {
                continue;
            }
            self.errors += 1;
            if self.errors > MAX_KEPT {
                self.omitted += 1;
            } else {
                self.found.push((place, located));
            }
        }
    }

    pub(crate) fn finish(mut self) -> Diagnostics {
        self.found.sort_by_key(|(at, _)| *at);
        let items = self.found.into_iter().map(|(_, located)| located).collect();
        Diagnostics { items, omitted: self.omitted }
    }
}
