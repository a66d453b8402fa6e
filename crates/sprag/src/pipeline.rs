//! Pipelines, read from YAML.

use std::path::Path;
use std::sync::Arc;

use crate::Error;

/// A pipeline: the steps of a run, read from YAML and checked. Cloning it is cheap.
///
/// `docs/pipelines.md` describes the language. A `call` step runs a handler of this program; a `run` step runs a command,
/// if the engine has [`EngineBuilder::commands`](crate::EngineBuilder::commands).
///
/// ```
/// let pipeline = sprag::Pipeline::parse("
/// name: nightly
/// steps:
///   - id: report
///     call: report
/// ")?;
/// assert_eq!(pipeline.name(), "nightly");
/// # Ok::<(), sprag::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Pipeline(pub(crate) Arc<sprag_app::Pipeline>);

impl Pipeline {
    /// Reads a pipeline from a text. An error names the line and the column of each problem.
    pub fn parse(text: &str) -> Result<Pipeline, Error> {
        Ok(Pipeline(Arc::new(sprag_app::parse("pipeline.yaml", text)?)))
    }

    /// Reads a pipeline file, and the files that it names.
    pub fn load(path: impl AsRef<Path>) -> Result<Pipeline, Error> {
        Ok(Pipeline(Arc::new(sprag_app::load(path.as_ref())?)))
    }

    /// Returns the pipeline's name: its `name`, or else that of its file.
    pub fn name(&self) -> &str {
        &self.0.name
    }
}
