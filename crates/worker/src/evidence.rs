//! What a command leaves behind: its outputs, and whether what must hold after it does.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use sprag_pipeline::{Format, Output, StepSpec};
use sprag_process::{LogReader, Stream};

/// What a value may have at most: it is kept in the store, and read by the steps that name it.
pub(crate) const MAX_VALUE_BYTES: u64 = 1 << 20;
/// How much of the end of a log goes with a failure, for whoever tries again.
const TAIL_BYTES: usize = 4096;
/// How much of a log is looked at for its end.
const TAIL_LOOK_BYTES: u64 = 64 << 10;

/// Where a step's command ran, and where what it leaves behind goes.
pub(crate) struct Places {
    /// The step's folder; relative paths start there.
    pub(crate) dir: Option<PathBuf>,
    /// What it printed, if that is wanted.
    pub(crate) stdout: PathBuf,
    /// Where kept files go: a folder of this attempt alone.
    pub(crate) kept: PathBuf,
    /// What must not be kept.
    pub(crate) secrets: Vec<String>,
}

impl Places {
    /// A path of the step's.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        match &self.dir {
            Some(dir) => dir.join(path),
            None => PathBuf::from(path),
        }
    }
}

/// Whether anything that the step hands on is what it printed.
pub(crate) fn wants_stdout(spec: &StepSpec) -> bool {
    spec.outputs.values().any(|output| matches!(output, Output::Stdout { .. }))
}

/// The step's outputs by name, or which of them cannot be had and why.
pub(crate) fn outputs(spec: &StepSpec, places: &Places, stdout_dropped: u64) -> Result<Value, String> {
    let mut outputs = Map::new();
    for (name, output) in &spec.outputs {
        let value = match output {
            Output::File { path, format: None } => keep(name, &places.path(path), &places.kept),
            Output::File { path, format: Some(format) } => {
                read_bounded(&places.path(path)).and_then(|text| read_as(text, *format, &places.secrets))
            }
            Output::Stdout { .. } if stdout_dropped > 0 => Err(format!(
                "it printed more than {MAX_VALUE_BYTES} bytes: write them to a file and hand that on"
            )),
            Output::Stdout { format } => {
                read_bounded(&places.stdout).and_then(|text| read_as(text, *format, &places.secrets))
            }
        };
        outputs.insert(name.clone(), value.map_err(|why| format!("output `{name}`: {why}"))?);
    }
    Ok(Value::Object(outputs))
}

/// Copies a file to where it is kept; the value is the copy's path.
fn keep(name: &str, from: &Path, folder: &Path) -> Result<Value, String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", from.display());
    if !from.metadata().map_err(wrong)?.is_file() {
        return Err(format!("{} is not a file", from.display()));
    }
    let file_name = from.file_name().map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
    // In a folder of its own: two outputs may be files of one name.
    let folder = folder.join(name);
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let to = folder.join(file_name);
    std::fs::copy(from, &to).map_err(wrong)?;
    Ok(Value::String(to.display().to_string()))
}

fn read_bounded(path: &Path) -> Result<String, String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(wrong)?;
    file.take(MAX_VALUE_BYTES + 1).read_to_end(&mut bytes).map_err(wrong)?;
    if bytes.len() as u64 > MAX_VALUE_BYTES {
        return Err(format!(
            "{} has more than {MAX_VALUE_BYTES} bytes: hand on the file instead, without `as`",
            path.display()
        ));
    }
    String::from_utf8(bytes).map_err(|_| format!("{} is not UTF-8 text", path.display()))
}

fn read_as(mut text: String, format: Format, secrets: &[String]) -> Result<Value, String> {
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
        text = text.replace(secret.as_str(), "***");
    }
    match format {
        Format::Text => {
            let end = text.trim_end_matches(['\n', '\r']).len();
            text.truncate(end);
            Ok(Value::String(text))
        }
        Format::Json => {
            let mut value = serde_json::from_str(&text).map_err(|error| {
                let begin: String = text.chars().take(40).collect();
                format!("not JSON ({error}); it begins with {begin:?}")
            })?;
            mask(&mut value, secrets);
            Ok(value)
        }
    }
}

/// Takes secrets out of every text: escaped, they did not look like themselves before.
fn mask(value: &mut Value, secrets: &[String]) {
    match value {
        Value::String(text) => {
            for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
                *text = text.replace(secret.as_str(), "***");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| mask(item, secrets)),
        Value::Object(entries) => entries.values_mut().for_each(|entry| mask(entry, secrets)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Whether a file is there, and holds something if it must; else what is wrong.
pub(crate) fn file_is_there(path: &Path, not_empty: bool) -> Result<(), String> {
    match path.metadata() {
        Err(error) => Err(format!("{}: {error}", path.display())),
        Ok(found) if not_empty && found.is_file() && found.len() == 0 => {
            Err(format!("{} is empty", path.display()))
        }
        Ok(found)
            if not_empty
                && found.is_dir()
                && std::fs::read_dir(path).is_ok_and(|mut all| all.next().is_none()) =>
        {
            Err(format!("{} is an empty folder", path.display()))
        }
        Ok(_) => Ok(()),
    }
}

/// Whether an output fits a JSON schema; else the first places where it does not.
pub(crate) fn fits_schema(value: &Value, schema: &Value) -> Result<(), String> {
    let validator =
        jsonschema::validator_for(schema).map_err(|error| format!("the schema itself is wrong: {error}"))?;
    let wrong: Vec<String> = validator
        .iter_errors(value)
        .take(3)
        .map(|error| match error.instance_path().to_string() {
            whole if whole.is_empty() => error.to_string(),
            place => format!("{place}: {error}"),
        })
        .collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

/// The end of what an attempt printed.
pub(crate) fn tail(log: &Path) -> String {
    let length = log.metadata().map_or(0, |found| found.len());
    let mut reader = LogReader::at(log, length.saturating_sub(TAIL_LOOK_BYTES));
    let entries = reader.read_all().unwrap_or_default();
    let mut text = String::new();
    for entry in entries.iter().filter(|entry| entry.stream != Stream::Note) {
        text.push_str(&entry.text);
        if !entry.partial {
            text.push('\n');
        }
    }
    let mut from = text.len().saturating_sub(TAIL_BYTES);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text.split_off(from).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_read_as_told() {
        assert_eq!(read_as("a\n".into(), Format::Text, &[]), Ok(json!("a")));
        assert_eq!(read_as("[1, 2]\n".into(), Format::Json, &[]), Ok(json!([1, 2])));
        assert!(read_as("oops".into(), Format::Json, &[]).unwrap_err().contains("it begins with \"oops\""));
        let escaped = read_as(r#"{"a": ["x\"y"]}"#.into(), Format::Json, &["x\"y".into()]);
        assert_eq!(escaped, Ok(json!({ "a": ["***"] })));
        assert_eq!(read_as("the s3cret".into(), Format::Text, &["s3cret".into()]), Ok(json!("the ***")));
    }

    #[test]
    fn a_schema_says_where_a_value_does_not_fit() {
        let schema = json!({ "type": "array", "items": { "type": "integer" } });
        assert_eq!(fits_schema(&json!([1]), &schema), Ok(()));
        assert!(fits_schema(&json!([1, "x"]), &schema).unwrap_err().starts_with("/1: "));
        assert!(fits_schema(&json!(1), &json!({ "type": "no such" })).unwrap_err().contains("schema itself"));
    }
}
