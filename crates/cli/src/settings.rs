//! The configuration files: one of the user, one of the project, in a small part of TOML.
//!
//! ```text
//!   $XDG_CONFIG_HOME/sprag/config.toml ─▶ .sprag/config.toml ─▶ environment ─▶ command line
//!              the user's                     the project's            the last one counts
//! ```
//!
//! A project's file comes with a repository that others wrote, so it cannot say where runs are stored.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use sprag_app::text::nearest;

use crate::args::Colour;
use crate::exit::Failure;

/// A key: its name, the type of its value, and whether a project's file may set it.
struct Key {
    name: &'static str,
    kind: Kind,
    in_projects: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Flag,
    Number,
}

const KEYS: &[Key] = &[
    Key { name: "data", kind: Kind::Text, in_projects: false },
    Key { name: "store", kind: Kind::Text, in_projects: false },
    Key { name: "color", kind: Kind::Text, in_projects: true },
    Key { name: "input", kind: Kind::Flag, in_projects: true },
    Key { name: "slots", kind: Kind::Number, in_projects: true },
];

/// A value, and the file that set it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) value: SettingValue,
    pub(crate) file: PathBuf,
}

/// A value in a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SettingValue {
    Text(String),
    Flag(bool),
    Number(u32),
}

/// All settings of both files.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    set: BTreeMap<&'static str, Setting>,
}

impl Settings {
    /// Reads both files, as far as they exist.
    pub(crate) fn load() -> Result<Settings, Failure> {
        let mut settings = Settings::default();
        if let Some(path) = user_file() {
            settings.read(&path, false)?;
        }
        if let Some(path) = project_file() {
            settings.read(&path, true)?;
        }
        Ok(settings)
    }

    fn read(&mut self, path: &Path, is_project: bool) -> Result<(), Failure> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                let failure = Failure::usage(format!("cannot read {}: {error}", path.display()));
                return Err(if is_project {
                    failure
                } else {
                    failure.next("make it readable, or name another folder for settings with XDG_CONFIG_HOME")
                });
            }
        };
        for (at, line) in text.lines().enumerate() {
            let wrong = |why: String| Failure::usage(format!("{}:{}: {why}", path.display(), at + 1));
            let Some((name, value)) = parse_line(line).map_err(wrong)? else { continue };
            let Some(key) = KEYS.iter().find(|key| key.name == name) else {
                let error = wrong(format!("there is no setting {name:?}"));
                let names = || KEYS.iter().map(|key| key.name);
                return Err(match nearest(&name, names()) {
                    Some(near) => error.next(format!("did you mean {near:?}?")),
                    None => error.next(format!("use one of: {}", names().collect::<Vec<_>>().join(", "))),
                });
            };
            if is_project && !key.in_projects {
                return Err(wrong(format!("a project cannot set {name:?}"))
                    .next("set it in your own configuration file: `sprag config` shows its place"));
            }
            let value = match (key.kind, value) {
                (Kind::Text, SettingValue::Text(text)) => SettingValue::Text(text),
                (Kind::Flag, SettingValue::Flag(flag)) => SettingValue::Flag(flag),
                (Kind::Number, SettingValue::Number(number)) if number > 0 => SettingValue::Number(number),
                (Kind::Text, _) => return Err(wrong(format!("{name} must be a text in quotes"))),
                (Kind::Flag, _) => return Err(wrong(format!("{name} must be true or false"))),
                (Kind::Number, _) => return Err(wrong(format!("{name} must be a number above 0"))),
            };
            self.set.insert(key.name, Setting { value, file: path.to_owned() });
        }
        Ok(())
    }

    /// Returns what each setting is, in the order of the names.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, Option<&Setting>)> {
        KEYS.iter().map(|key| (key.name, self.set.get(key.name)))
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        match &self.set.get(name)?.value {
            SettingValue::Text(text) => Some(text.clone()),
            _ => None,
        }
    }

    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        match self.set.get(name)?.value {
            SettingValue::Flag(flag) => Some(flag),
            _ => None,
        }
    }

    /// Returns the number of steps to run at once, if a file sets it.
    pub(crate) fn slots(&self) -> Option<usize> {
        match self.set.get("slots")?.value {
            SettingValue::Number(number) => usize::try_from(number).ok(),
            _ => None,
        }
    }

    /// Returns the data directory. `~/` stands for the user's home.
    pub(crate) fn data(&self) -> Option<PathBuf> {
        let text = self.text("data")?;
        Some(match (text.strip_prefix("~/"), std::env::var_os("HOME")) {
            (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
            _ => text.into(),
        })
    }

    /// Returns when to use colours: as the command line says, else as a file says.
    pub(crate) fn colour(&self, given: Colour) -> Result<Colour, Failure> {
        match self.text("color").filter(|_| given == Colour::Auto) {
            None => Ok(given),
            Some(word) => Colour::from_str(&word, true)
                .map_err(|_| Failure::usage(format!("color = {word:?} is not auto, always or never"))),
        }
    }
}

/// Returns the place of the user's file, whether it exists or not.
pub(crate) fn user_file() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
    base.map(|base| base.join("sprag/config.toml"))
}

/// Returns the project's file: the nearest one in the working folder and those above it.
pub(crate) fn project_file() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    here.ancestors().map(|folder| folder.join(".sprag/config.toml")).find(|path| path.is_file())
}

/// Parses a line: `key = value`, or nothing of meaning.
fn parse_line(line: &str) -> Result<Option<(String, SettingValue)>, String> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    if line.starts_with('[') {
        return Err("tables are not supported: write `key = value`".into());
    }
    let (key, value) = line.split_once('=').ok_or("write `key = value`")?;
    let (key, value) = (key.trim(), value.trim());
    let quoted = |quote: char| -> Option<Result<String, String>> {
        let rest = value.strip_prefix(quote)?;
        let Some(end) = rest.find(quote) else { return Some(Err("the text has no closing quote".into())) };
        let after = rest[end + 1..].trim();
        if !after.is_empty() && !after.starts_with('#') {
            return Some(Err(format!("{after:?} follows the text")));
        }
        if quote == '"' && rest[..end].contains('\\') {
            return Some(Err("write a text with backslashes in single quotes".into()));
        }
        Some(Ok(rest[..end].to_owned()))
    };
    let value = match quoted('"').or_else(|| quoted('\'')) {
        Some(text) => SettingValue::Text(text?),
        None => match value.split('#').next().unwrap_or_default().trim() {
            "true" => SettingValue::Flag(true),
            "false" => SettingValue::Flag(false),
            number => SettingValue::Number(
                number.parse().map_err(|_| format!("{number:?} is neither a text in quotes nor a number"))?,
            ),
        },
    };
    Ok(Some((key.to_owned(), value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_keys_and_values() {
        let text = |text: &str| Ok(Some(("a".to_owned(), SettingValue::Text(text.to_owned()))));
        assert_eq!(parse_line("a = \"b c\" # why"), text("b c"));
        assert_eq!(parse_line("a='x\\y'"), text("x\\y"));
        assert_eq!(parse_line("a = true"), Ok(Some(("a".to_owned(), SettingValue::Flag(true)))));
        assert_eq!(parse_line("a = 4 # slots"), Ok(Some(("a".to_owned(), SettingValue::Number(4)))));
        assert_eq!(parse_line("  # nothing"), Ok(None));
        for wrong in ["a", "[a]", "a = b", "a = \"b", "a = \"b\" c", "a = \"\\n\"", "a = -1", "a ="] {
            assert!(parse_line(wrong).is_err(), "{wrong}");
        }
    }
}
