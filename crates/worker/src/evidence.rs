//! The outputs and checks after a command: reads the step's outputs, and tests the conditions that must hold.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use sprag_pipeline::{Format, JsonSchema, Output, StepSpec, Violation};
use sprag_process::{
    LogReader, Secrets, Stream, boot_ms, copy_private, make_private_folder, normalized, open_below,
    open_regular,
};
use sprag_worktree::Cancel;

/// The largest size of one output value: it is stored in the store and read by the steps that name it.
pub(crate) const MAX_VALUE_BYTES: u64 = 1 << 20;
/// The largest size of all output values of a step together.
const MAX_OUTPUTS_BYTES: u64 = 4 << 20;
/// The size of the log's end that goes with a failure, as information for the next attempt.
const TAIL_BYTES: usize = 4096;
/// The number of bytes at the end of a log that are searched for its last lines.
const TAIL_LOOK_BYTES: u64 = 64 << 10;
/// The largest number of log entries in those bytes. More do not fit, unless the file grows meanwhile.
const TAIL_ENTRIES: usize = 4096;

/// The limit on reading a step's files.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    /// The cancellation of the step.
    pub(crate) cancel: Cancel,
    /// The end of the step's time, by this machine's boot clock; none if it has no limit.
    pub(crate) until_ms: Option<u64>,
}

impl Patience {
    /// Fails once the step is cancelled or its time is over.
    fn check(&self) -> io::Result<()> {
        if self.cancel.is_cancelled() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "the step must stop"));
        }
        match self.until_ms {
            Some(until_ms) if boot_ms() >= until_ms => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "the step's timeout has passed"))
            }
            _ => Ok(()),
        }
    }
}

/// The folders of a step's command: its working directory, and the destinations of its outputs.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// The step's working directory; relative paths start there. None if the run has none.
    pub(crate) dir: Option<PathBuf>,
    /// The folder of the run, in which `dir` starts. None if the run has none.
    pub(crate) base: Option<PathBuf>,
    /// Warnings about the step that are known before it starts.
    pub(crate) warnings: Vec<String>,
    /// The captured stdout; written only if an output needs it.
    pub(crate) stdout: PathBuf,
    /// The file to which the command writes outputs by name; it exists only if the command has created it.
    pub(crate) written: PathBuf,
    /// The folder for output files, used by this attempt alone.
    pub(crate) kept: PathBuf,
    /// The folder for output files that contain a secret.
    pub(crate) withheld: PathBuf,
}

impl Places {
    /// Resolves a path against the step's working directory.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        match &self.dir {
            Some(dir) => dir.join(path),
            None => PathBuf::from(path),
        }
    }

    /// Opens a file that the step has written. It must be a regular file. A path inside the step's folder must not
    /// pass through a symbolic link, because the step could have created one that leads anywhere. The pipeline's
    /// author is responsible for an absolute path.
    fn open(&self, path: &str) -> io::Result<File> {
        let whole = self.path(path);
        match &self.dir {
            Some(dir) if Path::new(path).is_relative() => {
                let plain = normalized(&std::fs::canonicalize(dir)?.join(path));
                open_below(Path::new("/"), plain.strip_prefix("/").unwrap_or(&plain))
            }
            _ => open_regular(&whole),
        }
    }
}

impl Places {
    /// Returns whether the command has written outputs by name.
    pub(crate) fn has_written(&self) -> bool {
        self.written.symlink_metadata().is_ok_and(|found| !found.is_file() || found.len() > 0)
    }
}

/// Whether any output of the step is its stdout.
pub(crate) fn wants_stdout(spec: &StepSpec) -> bool {
    spec.outputs.values().any(|output| matches!(output, Output::Stdout { .. }))
}

/// The outputs of a step.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    /// The values by name; files by the paths of their copies.
    pub(crate) values: Value,
    /// Warnings about the outputs that a person should read.
    pub(crate) warnings: Vec<String>,
}

/// The treatment of an output that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// It fails the step.
    Fails,
    /// It is left out: the step has failed already.
    LeftOut,
}

/// Reads the step's outputs by name, or returns which of them cannot be read and why. Reading takes as long as the
/// files take, so call it on a blocking thread; it stops when `patience` ends.
pub(crate) fn outputs(
    wanted: &BTreeMap<String, Output>,
    places: &Places,
    stdout_dropped: u64,
    secrets: &Secrets,
    patience: &Patience,
    missing: Missing,
) -> Result<Outputs, String> {
    let mut outputs = Map::new();
    let mut warnings = Vec::new();
    let mut left = MAX_OUTPUTS_BYTES;
    for (name, output) in wanted {
        let value = match output {
            Output::File { path, format: None } => {
                keep(name, path, places, secrets, patience).map(|(kept, holds_secret)| {
                    if holds_secret {
                        warnings.push(format!(
                            "the file of output `{name}` contains a secret: steps get it unchanged, and it is not served over HTTP"
                        ));
                    }
                    Value::String(kept.display().to_string())
                })
            }
            Output::File { path, format: Some(format) } => {
                read_bounded(&places.path(path), places.open(path)).and_then(|text| read_as(text, *format))
            }
            Output::Stdout { .. } if stdout_dropped > 0 => Err(format!(
                "it printed more than {MAX_VALUE_BYTES} bytes: write them to a file and pass that on"
            )),
            Output::Stdout { format } => {
                let file = open_regular(&places.stdout);
                read_bounded(&places.stdout, file).and_then(|text| read_as(text, *format))
            }
        };
        let value = match value {
            Ok(value) => value,
            Err(_) if missing == Missing::LeftOut => continue,
            Err(why) => return Err(format!("output `{name}`: {why}")),
        };
        left = left.checked_sub(value.to_string().len() as u64).ok_or_else(|| {
            format!(
                "the outputs up to `{name}` have more than {MAX_OUTPUTS_BYTES} bytes: pass on files instead"
            )
        })?;
        outputs.insert(name.clone(), value);
    }
    if places.has_written() {
        match written_outputs(places, &outputs, left) {
            Ok(more) => outputs.extend(more),
            Err(_) if missing == Missing::LeftOut => {}
            Err(why) => return Err(why),
        }
    }
    Ok(Outputs { values: Value::Object(outputs), warnings })
}

/// Reads the outputs that the command has written by name.
fn written_outputs(
    places: &Places,
    declared: &Map<String, Value>,
    left: u64,
) -> Result<Map<String, Value>, String> {
    let text = read_bounded(Path::new("$SPRAG_OUTPUT"), open_regular(&places.written))?;
    let written = crate::written::outputs(&text)?;
    if let Some(name) = written.keys().find(|name| declared.contains_key(*name)) {
        return Err(format!(
            "output `{name}` is declared in the file and written to $SPRAG_OUTPUT: rename one"
        ));
    }
    if text.len() as u64 > left {
        return Err(format!("the outputs have more than {MAX_OUTPUTS_BYTES} bytes: pass on files instead"));
    }
    Ok(written)
}

/// Copies an output file to its destination. Returns the copy's path, and whether the file contains a secret. Steps
/// need their files unchanged, so a secret in one is not masked; such a file is stored where no server serves it.
fn keep(
    name: &str,
    path: &str,
    places: &Places,
    secrets: &Secrets,
    patience: &Patience,
) -> Result<(PathBuf, bool), String> {
    let from = places.path(path);
    let file_name = from.file_name().map(PathBuf::from).unwrap_or_default();
    // In a folder per output, because two outputs may be files of the same name.
    let (kept, withheld) = (places.kept.join(name), places.withheld.join(name));
    let mut search = secrets.search();
    let copied = places.open(path).and_then(|file| {
        make_private_folder(&withheld)?;
        copy_private(&file, &withheld.join(&file_name), &mut |piece| {
            search.push(piece);
            patience.check()
        })?;
        if search.found() {
            return Ok((withheld.join(&file_name), true));
        }
        make_private_folder(&kept)?;
        std::fs::rename(withheld.join(&file_name), kept.join(&file_name))?;
        let _ = std::fs::remove_dir(&withheld);
        let _ = std::fs::remove_dir(&places.withheld);
        Ok((kept.join(&file_name), false))
    });
    copied.map_err(|error| cannot_read(&from, &error))
}

/// Returns a message that a file of the step cannot be read, with a hint.
fn cannot_read(path: &Path, error: &io::Error) -> String {
    let hint = if error.to_string().contains("symbolic link") {
        ": copy the file, or name it by a path without links"
    } else {
        ""
    };
    format!("{}: {error}{hint}", path.display())
}

fn read_bounded(path: &Path, file: io::Result<File>) -> Result<String, String> {
    let wrong = |error: io::Error| cannot_read(path, &error);
    let mut bytes = Vec::new();
    let file = file.map_err(wrong)?;
    file.take(MAX_VALUE_BYTES + 1).read_to_end(&mut bytes).map_err(wrong)?;
    if bytes.len() as u64 > MAX_VALUE_BYTES {
        return Err(format!(
            "{} has more than {MAX_VALUE_BYTES} bytes: pass on the file instead, without `as`",
            path.display()
        ));
    }
    String::from_utf8(bytes).map_err(|_| format!("{} is not UTF-8 text", path.display()))
}

/// Parses a text as an output value. A secret in it is masked later, with the step's whole result.
fn read_as(mut text: String, format: Format) -> Result<Value, String> {
    match format {
        Format::Text => {
            let end = text.trim_end_matches(['\n', '\r']).len();
            text.truncate(end);
            Ok(Value::String(text))
        }
        Format::Json => serde_json::from_str(&text).map_err(|error| format!("not JSON ({error})")),
    }
}

/// Checks that a file exists, and that it is not empty if `not_empty` is set. The error says what is wrong.
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

/// Checks an output against a JSON schema. The error names the first places that do not match.
pub(crate) fn fits_schema(value: &Value, schema: &Value) -> Result<(), String> {
    /// The largest number of places in the message.
    const MOST: usize = 3;
    let schema = JsonSchema::new(schema).map_err(|error| format!("the schema itself is wrong: {error}"))?;
    let wrong: Vec<String> = schema.violations(value, MOST).iter().map(Violation::to_string).collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

/// Returns the end of an attempt's log.
pub(crate) fn tail(log: &Path) -> String {
    let length = log.metadata().map_or(0, |found| found.len());
    let mut reader = LogReader::at(log, length.saturating_sub(TAIL_LOOK_BYTES));
    let entries = reader.read(TAIL_ENTRIES).unwrap_or_default();
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
    fn values_are_parsed_as_documented() {
        assert_eq!(read_as("a\n".into(), Format::Text), Ok(json!("a")));
        assert_eq!(read_as("[1, 2]\n".into(), Format::Json), Ok(json!([1, 2])));
        assert!(read_as("oops".into(), Format::Json).unwrap_err().starts_with("not JSON (expected value"));
    }

    #[test]
    fn a_schema_says_where_a_value_does_not_fit() {
        let schema = json!({ "type": "array", "items": { "type": "integer" } });
        assert_eq!(fits_schema(&json!([1]), &schema), Ok(()));
        assert!(fits_schema(&json!([1, "x"]), &schema).unwrap_err().starts_with("/1: "));
        assert!(fits_schema(&json!(1), &json!({ "type": "no such" })).unwrap_err().contains("schema itself"));
    }

    #[test]
    fn e03_a_schema_does_no_harm() {
        // The work doubles with each rung.
        let ladder = |rungs: usize, keyword: &str| {
            let mut defs = Map::new();
            for n in 0..rungs {
                let next = json!({ "$ref": format!("#/$defs/d{}", n + 1) });
                defs.insert(format!("d{n}"), json!({ keyword: [next.clone(), next] }));
            }
            defs.insert(format!("d{rungs}"), json!({ "type": "object" }));
            json!({ "$ref": "#/$defs/d0", "$defs": defs })
        };
        let many = |count: usize, part: &dyn Fn(usize) -> Value| (0..count).map(part).collect::<Value>();
        let numbers = many(500_000, &|n| n.into());
        let long = "x".repeat(400_000);
        let names: Map<String, Value> = (0..40_000).map(|n| (format!("n{n}"), json!(true))).collect();
        let patterns: Map<String, Value> =
            (0..10_000).map(|n| (format!("^\\w{{20}}{n}"), json!(true))).collect();
        let began_ms = boot_ms();
        for (value, schema) in [
            (numbers.clone(), ladder(50, "allOf")),
            (numbers.clone(), ladder(50, "anyOf")),
            (numbers.clone(), ladder(50, "oneOf")),
            // Each item is compared with each of these, and a full message would name them all.
            (numbers.clone(), json!({ "items": { "enum": many(40_000, &|n| format!("a{n}").into()) } })),
            (numbers.clone(), json!({ "items": { "allOf": many(100, &|_| json!({ "type": "string" })) } })),
            (numbers.clone(), json!({ "anyOf": many(40_000, &|_| json!({ "type": "string" })) })),
            (numbers.clone(), json!({ "allOf": many(40_000, &|_| json!({ "uniqueItems": true })) })),
            (json!(long), json!({ "allOf": many(40_000, &|_| json!({ "minLength": 500_000 })) })),
            (json!(long), json!({ "allOf": many(60, &|_| json!({ "pattern": "(x+x+)+y" })) })),
            (json!(long), json!({ "patternProperties": patterns })),
            // The path of each place would contain the long name.
            (json!({}), json!({ "properties": { long.clone(): { "properties": names } } })),
        ] {
            let told = fits_schema(&value, &schema).expect_err("it does not fit, or takes too long");
            assert!(told.len() < 500_000, "{} bytes", told.len());
        }
        let took_ms = boot_ms() - began_ms;
        assert!(took_ms < 60_000, "{took_ms} ms");
        for schema in [
            json!({ "multipleOf": 1e-320 }),
            json!({ "multipleOf": 5e-324, "maximum": 1e308 }),
            json!({ "$ref": "#" }),
            json!({ "allOf": [{ "$ref": "#" }] }),
            json!({ "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } }, "$ref": "#/$defs/a" }),
            json!({ "$ref": "file:///etc/passwd" }),
            json!({ "$ref": "http://127.0.0.1:9/schema" }),
            json!({ "$dynamicRef": "#" }),
            json!({ "pattern": "(a+)+$" }),
            json!({ "patternProperties": { "((a*)*)*b": {} } }),
            json!({ "not": { "$ref": "#" } }),
            json!({ "pattern": "a{1000}{1000}{1000}" }),
        ] {
            for value in [json!("a".repeat(50) + "!"), json!({ "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": [1] })] {
                let _ = fits_schema(&value, &schema);
            }
        }
    }
}
