//! `sprag init`: a first pipeline, fitted to the folder.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::line;
use crate::starter::{Found, agents_pipeline, find, pipeline};

/// The folder of the pipelines, relative to the project's folder.
const FOLDER: &str = ".sprag/pipelines";

/// The options of `sprag init`.
pub(crate) struct Options {
    /// Whether to replace an existing file.
    pub(crate) force: bool,
    /// Whether to print the pipeline instead.
    pub(crate) stdout: bool,
    /// Whether to write a pipeline of coding agents.
    pub(crate) agents: bool,
}

pub(crate) fn init(context: &Context, name: Option<&str>, options: &Options) -> Result<Exit, Failure> {
    let Options { force, stdout, agents } = *options;
    let name = name.unwrap_or(if agents { "feature" } else { "ci" });
    check_name(name)?;
    let found = find(Path::new("."));
    let text = if agents { agents_pipeline(name, &found) } else { pipeline(name, &found) };
    if stdout {
        if context.json {
            let files: Vec<&str> = found.iter().map(Found::told).collect();
            line(&json!({ "file": null, "found": files, "text": text }).to_string());
        } else {
            line(text.trim_end());
        }
        return Ok(Exit::Ok);
    }
    let path = PathBuf::from(FOLDER).join(format!("{name}.yaml"));
    write(&path, &text, force)?;
    tell(context, name, &path, &found);
    Ok(Exit::Ok)
}

fn check_name(name: &str) -> Result<(), Failure> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins && name.len() <= 64 && name.chars().all(fits) {
        return Ok(());
    }
    Err(Failure::usage(format!("{name:?} cannot be a pipeline's name"))
        .next("use up to 64 letters, digits, `-`, `_` and `.`, starting with a letter or digit"))
}

fn write(path: &Path, text: &str, force: bool) -> Result<(), Failure> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::error(format!("{} is already there", path.display()))
            .next("give another name (sprag init NAME), or replace it with --force"),
        _ => Failure::error(format!("{}: {error}", path.display())),
    };
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)
        .map_err(|error| Failure::error(format!("cannot make {}: {error}", folder.display())))?;
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    let mut file = options.open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}

fn tell(context: &Context, name: &str, path: &Path, found: &[Found]) {
    let files: Vec<&str> = found.iter().map(Found::told).collect();
    if context.json {
        line(&json!({ "file": path, "found": files }).to_string());
        return;
    }
    let why = if files.is_empty() {
        "an example: nothing here says how it is built".to_owned()
    } else {
        format!("from {}", files.join(", "))
    };
    let (style, path) = (context.style, path.display());
    line(&format!("{} {path} {}", style.green("wrote"), style.dim(&format!("({why})"))));
    line("");
    line("next:");
    for (command, what) in
        [(format!("sprag graph {path}"), "draw its steps"), (format!("sprag run {name}"), "run it")]
    {
        line(&format!("  {command:<42} {}", style.dim(what)));
    }
    if Path::new(".git").exists() {
        line(&format!("  {:<42} {}", format!("git add {path}"), style.dim("keep it with the code")));
    }
}
