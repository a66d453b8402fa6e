//! The inputs of a run: `--input KEY=VALUE`, and `--inputs` with JSON from a file, from stdin or as it is.

use std::collections::BTreeMap;
use std::io::Read;

use serde_json::Value;
use sprag_lifecycle::Plan;
use sprag_pipeline::Pipeline;

use super::drawn;
use crate::exit::Failure;

/// The largest size of `--inputs`, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The inputs as they were written on the command line.
pub(crate) struct RawInputs<'a> {
    /// Each `KEY=VALUE`.
    pub(crate) pairs: &'a [String],
    /// A path, `-`, or JSON.
    pub(crate) all: Option<&'a str>,
}

/// Returns the plan and the complete inputs of a run.
pub(crate) fn prepare(
    pipeline: &Pipeline,
    given: &RawInputs<'_>,
    interactive: bool,
) -> Result<(Plan, BTreeMap<String, Value>), Failure> {
    let mut values = given.all.map(read).transpose()?.unwrap_or_default();
    let mut texts = BTreeMap::new();
    for pair in given.pairs {
        let (key, value) = pair.split_once('=').ok_or_else(|| {
            Failure::usage(format!("--input {pair:?} has no value")).next("write it as --input KEY=VALUE")
        })?;
        if texts.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(Failure::usage(format!("--input {key} is given twice")));
        }
    }
    if interactive {
        let is_given = |name: &str| values.contains_key(name) || texts.contains_key(name);
        let typed = super::ask::missing_inputs(pipeline, is_given)?;
        texts.extend(typed);
    }
    // A single `--input` overrides the value in `--inputs`.
    values.extend(pipeline.coerce(&texts).map_err(|problems| drawn(&problems))?);
    let inputs = pipeline.complete(&values).map_err(|problems| drawn(&problems))?;
    let plan = pipeline.plan(&inputs).map_err(|problems| drawn(&problems))?;
    Ok((plan, inputs))
}

fn read(source: &str) -> Result<BTreeMap<String, Value>, Failure> {
    let (name, text) = match source {
        json if json.trim_start().starts_with('{') => ("--inputs", json.to_owned()),
        "-" => ("stdin", bounded(std::io::stdin().lock(), "stdin")?),
        path => {
            let file = std::fs::File::open(path).map_err(|error| {
                Failure::usage(format!("--inputs {path}: {error}"))
                    .next("give the path of a JSON file, `-` for stdin, or JSON that begins with `{`")
            })?;
            (path, bounded(file, path)?)
        }
    };
    serde_json::from_str(&text).map_err(|error| {
        Failure::usage(format!("{name} is not a JSON object: {error}"))
            .next("write it like {\"version\": \"1.2\", \"dry\": true}")
    })
}

fn bounded(from: impl Read, name: &str) -> Result<String, Failure> {
    let mut text = String::new();
    from.take(MAX_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(Failure::usage(format!("{name} has more than {MAX_BYTES} bytes")));
    }
    Ok(text)
}
