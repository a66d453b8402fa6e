//! `sprag validate`: errors and warnings about pipeline files, without running them.

use std::path::PathBuf;

use serde_json::{Value, json};
use sprag_pipeline::Diagnostics;

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{Style, counted, line};

pub(crate) fn validate(context: &Context, files: &[PathBuf], strict: bool) -> Result<Exit, Failure> {
    let (mut refused, mut suspicious) = (false, false);
    let mut told: Vec<Value> = Vec::new();
    for file in files {
        let (summary, problems): (Option<String>, Diagnostics) = match sprag_pipeline::load_stream(file) {
            Ok(loaded) => {
                let name = &loaded.pipeline.name;
                let steps = counted(loaded.pipeline.steps.len(), "step");
                let all = loaded.warnings.len() + loaded.warnings.omitted();
                let warnings = if all > 0 { format!(", {}", counted(all, "warning")) } else { String::new() };
                suspicious |= all > 0;
                let told = format!("{}: ok, pipeline {name:?} with {steps}{warnings}", file.display());
                (Some(told), loaded.warnings)
            }
            Err(problems) => {
                refused = true;
                (None, problems)
            }
        };
        if context.json {
            told.push(json!({ "file": file, "valid": summary.is_some(), "diagnostics": problems }));
            continue;
        }
        if !problems.is_empty() {
            eprintln!("{}", problems.render(Style::stderr().coloured()));
        }
        summary.iter().for_each(|summary| line(summary));
    }
    if context.json {
        line(&Value::Array(told).to_string());
    }
    Ok(if refused || strict && suspicious { Exit::Usage } else { Exit::Ok })
}
