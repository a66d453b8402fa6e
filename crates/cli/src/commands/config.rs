//! `sprag config`: the settings, and where each value comes from.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::args::Colour;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::settings::{Setting, SettingValue, Settings, project_file, user_file};
use crate::show::{line, plain, table};

/// The values that the command line or the environment gave, as far as they did.
pub(crate) struct Given {
    pub(crate) data: Option<PathBuf>,
    pub(crate) store: Option<String>,
    pub(crate) color: Colour,
    pub(crate) no_input: bool,
}

/// A value that counts, and its source: an option, a variable, a file, or the default.
struct Effective {
    value: Value,
    source: String,
    file: Option<PathBuf>,
}

pub(crate) fn config(context: &Context, given: &Given) -> Result<Exit, Failure> {
    let settings = Settings::load()?;
    let all: Vec<(&str, Effective)> =
        settings.all().map(|(name, setting)| (name, effective(context, given, name, setting))).collect();
    if context.json {
        let view = |(name, one): &(&str, Effective)| json!({ "key": name, "value": one.value, "source": one.source, "file": one.file });
        line(&Value::Array(all.iter().map(view).collect()).to_string());
        return Ok(Exit::Ok);
    }
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|(name, one)| {
            let text = one.value.as_str().map_or_else(|| one.value.to_string(), str::to_owned);
            let text = if one.value.is_null() { "-".to_owned() } else { text };
            vec![(*name).to_owned(), plain(&text), plain(&one.source)]
        })
        .collect();
    table(context.style, &["KEY", "VALUE", "SOURCE"], &rows);
    if let Some(path) = user_file() {
        let state = if path.exists() { "" } else { " (does not exist)" };
        eprintln!("your file: {}{state}", path.display());
    }
    if let Some(path) = project_file() {
        eprintln!("the project's file: {}", path.display());
    }
    Ok(Exit::Ok)
}

/// Returns the value of a setting that counts.
fn effective(context: &Context, given: &Given, name: &str, setting: Option<&Setting>) -> Effective {
    let from = |value: Value, source: &str| Effective { value, source: source.to_owned(), file: None };
    let variable = |name: &str| sprag_process::variable(name).filter(|value| !value.is_empty());
    let data = || json!(context.data);
    match name {
        "data" if given.data.is_some() => return from(data(), "--data"),
        "data" if variable("SPRAG_DATA").is_some() => return from(data(), "SPRAG_DATA"),
        "store" => {
            if let Some(url) = given.store.as_deref().filter(|url| !url.is_empty()) {
                // Credentials are erased from the environment at the start, so both look the same here.
                return from(json!(without_password(url)), "--store or SPRAG_STORE");
            }
        }
        "color" if given.color == Colour::Always => return from(json!("always"), "--color"),
        "color" if given.color == Colour::Never => return from(json!("never"), "--color"),
        "input" if given.no_input => {
            let is_variable = variable("SPRAG_NO_INPUT").is_some();
            return from(json!(false), if is_variable { "SPRAG_NO_INPUT" } else { "--no-input" });
        }
        _ => {}
    }
    let Some(setting) = setting else {
        return from(
            match name {
                "data" => data(),
                "color" => json!("auto"),
                "input" => json!(true),
                _ => Value::Null,
            },
            "default",
        );
    };
    let value = match &setting.value {
        _ if name == "data" => data(),
        SettingValue::Text(text) if name == "store" => json!(without_password(text)),
        SettingValue::Text(text) => json!(text),
        SettingValue::Flag(flag) => json!(flag),
        SettingValue::Number(number) => json!(number),
    };
    let file = setting.file.clone();
    Effective { value, source: file.display().to_string(), file: Some(file) }
}

/// Returns the URL of a database without the password in it.
fn without_password(url: &str) -> String {
    let hidden = || -> Option<String> {
        let (scheme, rest) = url.split_once("://")?;
        let (user, place) = rest.rsplit_once('@')?;
        let (user, _) = user.split_once(':')?;
        Some(format!("{scheme}://{user}:…@{place}"))
    };
    hidden().unwrap_or_else(|| url.to_owned())
}

#[cfg(test)]
mod tests {
    use super::without_password;

    #[test]
    fn a_password_is_not_shown() {
        for (url, shown) in [
            ("postgres://ada:se:cr@t@host/db", "postgres://ada:…@host/db"),
            ("postgres://ada@host/db", "postgres://ada@host/db"),
            ("postgres://host/db", "postgres://host/db"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
