//! Pipeline files: YAML in, a checked graph of typed steps out, and good words about what is wrong.
//!
//! ```text
//!   file ── source ── yaml ── form + language ── decode ── Pipeline ── plan ──▶ lifecycle::Plan
//!            bytes    tree     one table of       graph,     typed      inputs    (frozen in the run)
//!            bounded  with     keys; also the     names                 checked
//!                     places   JSON schema                                   StepSpec ── render_step ──▶ worker
//! ```
//!
//! Everything that is wrong is gathered into [`Diagnostics`], each with its place in the file. A key that
//! nothing acts on is refused, never ignored.

mod board;
mod branch;
mod child;
mod decode;
mod diagnostic;
mod duration;
mod evaluators;
mod fan_out;
mod form;
mod graph;
mod inputs;
mod kinds;
mod language;
mod names;
mod nearest;
mod parts;
mod pipeline;
mod preview;
mod render;
mod schema;
mod shell;
mod source;
mod spec;
mod template;
mod warnings;
mod workplace;
mod yaml;

use std::path::Path;

pub use board::board_plan;
pub use branch::branch_problem;
pub use child::Definition;
pub use diagnostic::{Diagnostic, Diagnostics, Severity};
pub use inputs::{Input, InputType};
pub use pipeline::{ConcurrencyRule, Pipeline, Step};
pub use preview::{preview, spread_text};
pub use render::{RenderError, render_step, when_holds};
pub use schema::schema;
pub use spec::{Check, FanOut, Format, Kind, Landing, Output, Over, Shell, StepSpec, Wait};
pub use workplace::{Keep, Setup, Workplace, WorktreeSpec};

use child::Children;
use diagnostic::{Problem, Report};
use form::Rule;
use source::Source;

/// A pipeline that can be used, and what is suspicious about it.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The pipeline.
    pub pipeline: Pipeline,
    /// What is legal and probably not what was meant.
    pub warnings: Diagnostics,
}

/// The pipeline in the file at `path`.
pub fn load(path: &Path) -> Result<Loaded, Diagnostics> {
    read(Report::new(Source::read(path)?).with_children(Children::of(path)))
}

/// The pipeline in a text; `name_for_messages` stands for the file's path. It has no folder, so no children.
pub fn parse(name_for_messages: &str, source: &str) -> Result<Loaded, Diagnostics> {
    read(Report::new(Source::new(name_for_messages, source)))
}

fn read(mut report: Report) -> Result<Loaded, Diagnostics> {
    let source = report.source.clone();
    source.check_characters(&mut report);
    if report.has_errors() {
        return Err(report.finish());
    }
    let pipeline = match yaml::read(&mut report) {
        Some(root) => decode::decode(&root, &default_name(&source.name), &mut report),
        None if report.has_errors() => None,
        None => {
            let problem = Problem::nowhere("the file is empty").expected("a pipeline with `steps:`");
            report.error(problem);
            None
        }
    };
    match pipeline {
        Some(pipeline) if !report.has_errors() => Ok(Loaded { pipeline, warnings: report.finish() }),
        _ => Err(report.finish()),
    }
}

/// The file's name without its ending, made into a name that a pipeline may have.
fn default_name(file: &str) -> String {
    let stem = Path::new(file).file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
    let fitting: String =
        stem.chars().map(|c| if Rule::Name.keeps(&format!("a{c}")) { c } else { '-' }).collect();
    let name: String = fitting.trim_start_matches(['-', '.', '_']).chars().take(64).collect();
    if name.is_empty() { "pipeline".into() } else { name }
}

/// A time as people write it, in milliseconds since 1970.
pub fn time_ms(text: &str) -> Option<i64> {
    kinds::time_ms(text)
}

/// A span of time as people write it: `500ms`, `30s`, `1h30m`.
pub fn parse_duration(text: &str) -> Result<std::time::Duration, String> {
    duration::parse_ms(text).map(std::time::Duration::from_millis)
}

/// The pipeline in a text, beside which there is a file `child.yaml`, and those that the examples name.
#[cfg(test)]
pub(crate) fn parse_beside_child(name: &str, source: &str) -> Result<Loaded, Diagnostics> {
    use std::collections::BTreeMap;
    use std::sync::OnceLock;

    static CHILDREN: OnceLock<BTreeMap<String, Definition>> = OnceLock::new();
    let children = CHILDREN.get_or_init(|| {
        let page = include_str!("../../../docs/pipelines.md");
        let greet = page.split_once("<!-- file: greet.yaml -->").and_then(|(_, rest)| {
            let (_, block) = rest.split_once("```yaml\n")?;
            Some(block.split_once("```")?.0)
        });
        [
            ("child.yaml", include_str!("../tests/data/child.yaml")),
            ("parts/component.yaml", include_str!("../../../examples/parts/component.yaml")),
            ("parts/tidy-file.yaml", include_str!("../../../examples/parts/tidy-file.yaml")),
            ("greet.yaml", greet.expect("the page has it")),
        ]
        .map(|(file, text)| {
            let (name, text, children) = (file.to_owned(), text.to_owned(), BTreeMap::new());
            (name.clone(), Definition { name, text, children })
        })
        .into()
    });
    Definition { name: name.into(), text: source.into(), children: children.clone() }.parse()
}
