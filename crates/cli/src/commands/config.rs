//! `sprag config`: the settings, and the files that they come from.

use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::settings::{Setting, SettingValue, Settings, project_file, user_file};
use crate::show::{line, plain, table};

pub(crate) fn config(context: &Context) -> Result<Exit, Failure> {
    let settings = Settings::load()?;
    let value = |setting: &Setting| match &setting.value {
        SettingValue::Text(text) => json!(text),
        SettingValue::Flag(flag) => json!(flag),
        SettingValue::Number(number) => json!(number),
    };
    if context.json {
        let all: Vec<Value> = settings
            .all()
            .map(|(name, setting)| {
                json!({ "key": name, "value": setting.map(value), "file": setting.map(|setting| &setting.file) })
            })
            .collect();
        line(&json!(all).to_string());
        return Ok(Exit::Ok);
    }
    let rows: Vec<Vec<String>> = settings
        .all()
        .map(|(name, setting)| {
            let (text, file) = match setting {
                Some(setting) => (value(setting).to_string(), setting.file.display().to_string()),
                // The data directory has a value in any case: that of an option, of SPRAG_DATA, or the default.
                None if name == "data" => (context.data.display().to_string(), "not in a file".to_owned()),
                None => ("-".to_owned(), String::new()),
            };
            vec![name.to_owned(), plain(&text), plain(&file)]
        })
        .collect();
    table(context.style, &["KEY", "VALUE", "FILE"], &rows);
    if let Some(path) = user_file() {
        let state = if path.exists() { "" } else { " (does not exist)" };
        eprintln!("your file: {}{state}", path.display());
    }
    if let Some(path) = project_file() {
        eprintln!("the project's file: {}", path.display());
    }
    Ok(Exit::Ok)
}
