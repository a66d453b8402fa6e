//! Pipelines by name: `.sprag/pipelines/NAME.yaml` in the working folder or the nearest folder above it.

use std::path::{Path, PathBuf};

use serde_json::json;
use sprag_app::text::nearest;

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{counted, line, plain, table};

/// The folder of a project's pipelines.
const FOLDER: &str = ".sprag/pipelines";

/// Returns the file of a pipeline that the user named: a path, a name, or `-` for stdin.
pub(crate) fn find(named: &Path) -> Result<PathBuf, Failure> {
    if named == Path::new("-") {
        return Ok("/dev/stdin".into());
    }
    let name = named.to_string_lossy();
    let is_name = !name.contains(['/', '.']) && !name.is_empty();
    // A path is read as it is, so that its error names it.
    if !is_name || named.exists() {
        return Ok(named.to_owned());
    }
    let known = all();
    if let Some((_, path)) = known.iter().find(|(one, _)| *one == *name) {
        return Ok(path.clone());
    }
    let error = Failure::usage(format!("there is neither a file nor a pipeline {name:?}"));
    let beside = ["yaml", "yml"].map(|end| format!("{name}.{end}"));
    if let Some(file) = beside.iter().find(|file| Path::new(file).is_file()) {
        return Err(error.next(format!("did you mean {}?", plain(file))));
    }
    Err(match nearest(&name, known.iter().map(|(one, _)| one.as_str())) {
        Some(near) => error.next(format!("did you mean `{near}`? `sprag run` lists the pipelines")),
        None if known.is_empty() => {
            error.next(format!("write {FOLDER}/{name}.yaml, or let `sprag init {name}` write one"))
        }
        None => error.next("list the pipelines: sprag run"),
    })
}

/// Returns the folder of the project, if the user named one of its pipelines: that is where its runs work, from whatever
/// folder below it they are started.
pub(crate) fn project_of(named: &Path) -> Option<PathBuf> {
    let name = named.to_str().filter(|name| !name.contains(['/', '.']) && !named.exists())?;
    self::named(name)?;
    let here = std::env::current_dir().ok()?;
    here.ancestors().find(|folder| folder.join(FOLDER).is_dir()).map(Path::to_owned)
}

/// Returns the file of the project's pipeline with this name, if there is one.
pub(crate) fn named(name: &str) -> Option<PathBuf> {
    all().into_iter().find(|(one, _)| one == name).map(|(_, path)| path)
}

/// Returns the project's pipelines by name.
fn all() -> Vec<(String, PathBuf)> {
    let Ok(here) = std::env::current_dir() else { return Vec::new() };
    let Some(folder) = here.ancestors().map(|folder| folder.join(FOLDER)).find(|folder| folder.is_dir())
    else {
        return Vec::new();
    };
    let files = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut found: Vec<(String, PathBuf)> = files
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|end| end == "yaml"))
        .filter_map(|path| Some((path.file_stem()?.to_str()?.to_owned(), path)))
        .collect();
    found.sort();
    // Paths below the working folder are shorter to read.
    for (_, path) in &mut found {
        if let Ok(short) = path.strip_prefix(&here) {
            *path = short.to_owned();
        }
    }
    found
}

/// `sprag run` without a name: lists the project's pipelines. `at` is added to the command that it names.
pub(crate) fn list(context: &Context, at: &str) -> Result<Exit, Failure> {
    let known = all();
    if known.is_empty() {
        return Err(Failure::usage(format!("name a pipeline: there are none in {FOLDER}"))
            .next("run a file with `sprag run FILE`, or let `sprag init` write a first pipeline"));
    }
    let (mut rows, mut told) = (Vec::new(), Vec::new());
    for (name, path) in &known {
        let loaded = sprag_pipeline::load(path);
        let about = match &loaded {
            Ok(loaded) => {
                let inputs = loaded.pipeline.inputs.iter();
                let inputs: Vec<String> = inputs
                    .map(|input| format!("{}{}", input.name, if input.required { "" } else { "?" }))
                    .collect();
                let steps = counted(loaded.pipeline.steps.len(), "step");
                let with =
                    if inputs.is_empty() { String::new() } else { format!(", inputs: {}", inputs.join(" ")) };
                let about = loaded.pipeline.description.as_deref().and_then(|text| text.lines().next());
                let about = about.map(|about| format!("{} · ", about.trim_end())).unwrap_or_default();
                format!("{about}{steps}{with}")
            }
            Err(_) => format!("not valid: sprag validate {name}"),
        };
        let description = loaded.as_ref().ok().and_then(|loaded| loaded.pipeline.description.as_deref());
        told.push(json!({ "name": name, "file": path, "valid": loaded.is_ok(), "description": description }));
        rows.push(vec![plain(name), plain(&about)]);
    }
    if context.json {
        line(&json!(told).to_string());
    } else {
        table(context.style, &["PIPELINE", "CONTENTS"], &rows);
        let valid = told.iter().find(|one| one["valid"] == true).and_then(|one| one["name"].as_str());
        match valid {
            Some(name) => eprintln!("run one: sprag run {}{at}", plain(name)),
            None => eprintln!("none of them is valid: sprag validate {}", known[0].0),
        }
    }
    Ok(Exit::Ok)
}
