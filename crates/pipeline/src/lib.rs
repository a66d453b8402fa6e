//! Pipeline files: reads YAML, checks it and produces a graph of typed steps, with a diagnostic for each mistake.
//!
//! ```text
//!   file ── source ── yaml ── form + language ── decode ── Pipeline ── plan ──▶ lifecycle::Plan
//!            bytes    tree     one table of       graph,     typed      inputs    (frozen in the run)
//!            bounded  with     keys; also the     names                 checked
//!                     places   JSON schema                                   StepSpec ── render_step ──▶ worker
//! ```
//!
//! The loader collects every mistake into [`Diagnostics`], each with its position in the file. It refuses a key that
//! has no effect instead of ignoring it.

mod agent;
mod board;
mod branch;
mod child;
mod contest;
mod decode;
mod diagnostic;
mod documents;
mod duration;
mod expand;
mod expression;
mod fan_out;
mod fields;
mod foreign;
mod form;
mod gate;
mod graph;
mod inline;
mod inputs;
mod json_schema;
mod kinds;
mod language;
mod names;
mod nearest;
mod parts;
mod pipeline;
mod preview;
mod render;
mod sandbox;
mod schema;
mod secret;
mod selection;
mod services;
mod shell;
mod source;
mod spec;
mod template;
mod triggers;
mod warnings;
mod workplace;
mod yaml;

use std::collections::BTreeMap;
use std::path::Path;

pub use agent::{AgentBudget, AgentPermissions, AgentSpec};
pub use board::board_plan;
pub use branch::branch_problem;
pub use child::Definition;
pub use diagnostic::{Diagnostic, Diagnostics, Severity};
pub use expression::Budget;
pub use fields::{FieldError, complete_fields};
pub use inline::Outer;
pub use inputs::{Input, InputBounds, InputType};
pub use json_schema::{JsonSchema, SchemaError, Violation};
pub use pipeline::{ConcurrencyRule, OwnLabels, Pipeline, Step};
pub use preview::{fan_out_text, preview};
pub use render::{
    RenderError, render_outputs, render_step, render_step_within, repeats_within, when_holds,
    when_holds_within,
};
pub use sandbox::{SandboxNetwork, SandboxSpec};
pub use schema::schema;
pub use secret::SecretSource;
pub use selection::Selection;
pub use services::{LogPattern, Ready, ServiceSpec};
pub use spec::{
    Cache, Check, FanOut, FanOutItems, Format, Kind, LandStrategy, Output, RepeatCondition, Shell, StepSpec,
    Wait,
};
pub use triggers::{
    Debounce, GitSource, Missed, MissedRuns, OverlapPolicy, RateLimit, RunSource, Schedule, Tick, Trigger,
    TriggerSource, Webhook, WebhookKind,
};
pub use workplace::{DirtyPolicy, KeepPolicy, Setup, Workplace, WorktreeSpec};

use child::ChildSource;
use diagnostic::{Problem, Report};
use form::Rule;
use source::Source;

/// A pipeline that passed all checks, with its warnings.
#[derive(Debug, Clone)]
pub struct LoadedPipeline {
    /// The decoded pipeline.
    pub pipeline: Pipeline,
    /// Constructs that are legal but probably not what the author meant.
    pub warnings: Diagnostics,
}

/// Renders a template with these values, such as the text of a notification. Unknown names are errors.
pub fn render_text(template: &str, context: &serde_json::Value) -> Result<String, String> {
    template::text(template, context, &Budget::default())
}

/// Loads the pipeline in the regular file at `path`.
pub fn load(path: &Path) -> Result<LoadedPipeline, Diagnostics> {
    read(Report::new(Source::read(path)?).with_children(ChildSource::of(path)))
}

/// Loads the pipeline in the regular file at `path`. It and all files that it names must be `.yaml` files below a folder,
/// after links are resolved: diagnostics quote a file, and remote callers must not read arbitrary files that way.
pub fn load_within(path: &Path, folder: &Path) -> Result<LoadedPipeline, Diagnostics> {
    let refuse = |why: String| {
        let problem = Problem::nowhere(why).help("give the path of a pipeline file in the project");
        Diagnostics::without_source(&path.display().to_string(), problem)
    };
    let root = folder.canonicalize().map_err(|error| refuse(format!("{}: {error}", folder.display())))?;
    if !path.canonicalize().is_ok_and(|whole| child::is_pipeline_below(&whole, &root)) {
        return Err(refuse(format!("there is no such .yaml file below {}", root.display())));
    }
    read(Report::new(Source::read(path)?).with_children(ChildSource::within(path, root)))
}

/// Loads the pipeline at a path that a person named: a regular file, or a pipe such as `/dev/stdin`, which is read to
/// its end.
pub fn load_stream(path: &Path) -> Result<LoadedPipeline, Diagnostics> {
    read(Report::new(Source::read_stream(path)?).with_children(ChildSource::of(path)))
}

/// Parses the pipeline in a text. `name_for_messages` stands for the file's path. A text has no folder, so it cannot
/// refer to child pipelines.
pub fn parse(name_for_messages: &str, source: &str) -> Result<LoadedPipeline, Diagnostics> {
    read(Report::new(Source::new(name_for_messages, source)))
}

/// Parses the pipeline in a text that came with the texts of the child pipelines and prompt files that it needs, by their
/// paths from its folder. Reads no file.
pub fn parse_with_files(
    name_for_messages: &str,
    source: &str,
    files: &BTreeMap<String, String>,
) -> Result<LoadedPipeline, Diagnostics> {
    let report = Report::new(Source::new(name_for_messages, source));
    read(if files.is_empty() { report } else { report.with_children(ChildSource::sent(files)) })
}

fn read(mut report: Report) -> Result<LoadedPipeline, Diagnostics> {
    let source = report.source.clone();
    source.check_characters(&mut report);
    if report.has_errors() {
        return Err(report.finish());
    }
    report.documents = documents::Documents::find(&mut report);
    decode_document(report)
}

/// Decodes the first document of the report's source.
fn decode_document(mut report: Report) -> Result<LoadedPipeline, Diagnostics> {
    let source = report.source.clone();
    let further = report.documents.clone();
    let pipeline = match yaml::read(&mut report) {
        Some(root) => decode::decode(&root, &default_name(&source.name), &mut report),
        None if report.has_errors() => None,
        None => {
            let problem = Problem::nowhere("the file is empty").expected("a pipeline with `steps:`");
            report.error(problem);
            None
        }
    };
    if further.is_outermost() {
        further.check_uncalled(&mut report);
    }
    match pipeline {
        Some(pipeline) if !report.has_errors() => Ok(LoadedPipeline { pipeline, warnings: report.finish() }),
        _ => Err(report.finish()),
    }
}

/// Derives a valid pipeline name from the file's name without its extension.
fn default_name(file: &str) -> String {
    let stem = Path::new(file).file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
    let fitting: String =
        stem.chars().map(|c| if Rule::Name.keeps(&format!("a{c}")) { c } else { '-' }).collect();
    let name: String = fitting.trim_start_matches(['-', '.', '_']).chars().take(64).collect();
    if name.is_empty() { "pipeline".into() } else { name }
}

/// Parses a time in RFC 3339 and returns it in milliseconds since 1970.
pub fn time_ms(text: &str) -> Option<i64> {
    kinds::time_ms(text)
}

/// Parses a duration such as `500ms`, `30s` or `1h30m`.
pub fn parse_duration(text: &str) -> Result<std::time::Duration, String> {
    duration::parse_ms(text).map(std::time::Duration::from_millis)
}

/// Parses a pipeline that can refer to a file `child.yaml` and to the child pipelines of the examples.
#[cfg(test)]
pub(crate) fn parse_beside_child(name: &str, source: &str) -> Result<LoadedPipeline, Diagnostics> {
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
            // As another pipeline of the same file.
            ("#part", include_str!("../tests/data/child.yaml")),
            ("parts/build-rust.yaml", include_str!("../../../examples/parts/build-rust.yaml")),
            ("parts/build-web.yaml", include_str!("../../../examples/parts/build-web.yaml")),
            ("parts/component.yaml", include_str!("../../../examples/parts/component.yaml")),
            ("parts/one-issue.yaml", include_str!("../../../examples/parts/one-issue.yaml")),
            ("parts/tidy-file.yaml", include_str!("../../../examples/parts/tidy-file.yaml")),
            ("greet.yaml", greet.expect("the docs page has this pipeline")),
        ]
        .map(|(file, text)| {
            let (name, text, children) = (file.to_owned(), text.to_owned(), BTreeMap::new());
            (name.clone(), Definition { name, text, children, prompts: BTreeMap::new(), outer: None })
        })
        .into()
    });
    let prompts = BTreeMap::from([("prompt.md".to_owned(), "Work on {{ run.name }}".to_owned())]);
    let text = source.into();
    Definition { name: name.into(), text, children: children.clone(), prompts, outer: None }.parse()
}
