//! `sprag validate`: what is wrong with a file, without running it.

use std::path::PathBuf;

use serde_json::{Value, json};
use sprag_pipeline::Diagnostics;

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{Style, line};

pub(crate) fn validate(context: &Context, files: &[PathBuf]) -> Result<Exit, Failure> {
    let mut exit = Exit::Ok;
    let mut told: Vec<Value> = Vec::new();
    for file in files {
        let (problems, summary): (Option<Diagnostics>, String) = match sprag_pipeline::load(file) {
            Ok(loaded) => {
                let steps = loaded.pipeline.steps.len();
                let name = loaded.pipeline.name.clone();
                let warnings = loaded.warnings;
                let s = if steps == 1 { "" } else { "s" };
                (Some(warnings), format!("{}: ok, pipeline {name:?} with {steps} step{s}", file.display()))
            }
            Err(problems) => {
                exit = Exit::Usage;
                (Some(problems), String::new())
            }
        };
        if context.json {
            let list = problems.as_ref().map_or(json!([]), |all| json!(all));
            told.push(json!({ "file": file, "valid": !summary.is_empty(), "diagnostics": list }));
            continue;
        }
        if let Some(problems) = problems
            && !problems.is_empty()
        {
            eprintln!("{}", problems.render(Style::stderr().coloured()));
        }
        if !summary.is_empty() {
            line(&summary);
        }
    }
    if context.json {
        line(&Value::Array(told).to_string());
    }
    Ok(exit)
}
