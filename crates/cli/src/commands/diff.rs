//! `sprag diff`: the changes that a run's steps made in its worktree.

use serde_json::{Value, json};
use sprag_app::run_diff;

use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::pager;
use crate::show::{Style, columns_of, contents, counted, line, padded, plain, shortened, width};

/// How the changes are shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// Whether only the changed files are listed.
    pub(crate) stat: bool,
    /// Whether a long patch is shown in a pager.
    pub(crate) pager: bool,
}

pub(crate) fn diff(
    context: &Context,
    run: Option<&str>,
    steps: Option<&str>,
    options: Options,
) -> Result<Exit, Failure> {
    let app = context.app()?;
    let known = find_run(&app, run)?;
    print(context, &json!(run_diff(&app, &known, steps, usize::MAX)?), options)?;
    Ok(Exit::Ok)
}

/// Prints the changes of a run, from the answer that programs see.
pub(super) fn print(context: &Context, told: &Value, options: Options) -> Result<(), Failure> {
    if context.json {
        line(&told.to_string());
        return Ok(());
    }
    if told["files"].as_array().is_none_or(Vec::is_empty) && told["patch"].as_str().is_none_or(str::is_empty)
    {
        eprintln!("no changes: run {}", plain(told["run"].as_str().unwrap_or_default()));
        return Ok(());
    }
    let text = if options.stat {
        stat(context.style, told, width())
    } else {
        let patch = told["patch"].as_str().unwrap_or_default().trim_end_matches('\n');
        let patch = if patch.is_empty() { String::new() } else { format!("{patch}\n") };
        if context.style.coloured() { coloured(context.style, &patch) } else { patch }
    };
    if !options.pager || !pager::show(&text)? {
        contents(&text);
    }
    Ok(())
}

/// Returns one line for each changed file, and their sum, as `git diff --stat` prints them.
fn stat(style: Style, told: &Value, width: usize) -> String {
    let files: Vec<&Value> = told["files"].as_array().into_iter().flatten().collect();
    if files.is_empty() {
        return String::new();
    }
    let count = |file: &Value, key: &str| file[key].as_u64().unwrap_or(0) as usize;
    let path = |file: &Value| plain(file["path"].as_str().unwrap_or_default());
    let names: Vec<String> = files.iter().map(|file| shortened(&path(file), width / 2)).collect();
    let name_width = names.iter().map(|name| columns_of(name)).max().unwrap_or(0);
    let most = files.iter().map(|file| count(file, "added") + count(file, "removed")).max().unwrap_or(0);
    let digits = most.to_string().len().max(3);
    let room = width.saturating_sub(name_width + digits + 6).max(10);
    let mut text = String::new();
    let (mut added, mut removed) = (0, 0);
    for (file, name) in files.iter().zip(&names) {
        let (plus, minus) = (count(file, "added"), count(file, "removed"));
        added += plus;
        removed += minus;
        let bar = |part: usize| if most <= room { part } else { part * room / most };
        let (total, bars) = if file["binary"] == true {
            ("Bin".to_owned(), String::new())
        } else {
            let bars = style.green(&"+".repeat(bar(plus))) + &style.red(&"-".repeat(bar(minus)));
            ((plus + minus).to_string(), bars)
        };
        text += format!(" {} | {total:>digits$} {bars}", padded(name, name_width)).trim_end();
        text.push('\n');
    }
    let sum = counted(files.len(), "file");
    let (added, removed) = (counted(added, "line"), counted(removed, "line"));
    text + &format!(" {sum} changed, {added} added, {removed} removed\n")
}

/// Colours the lines of a patch as git does.
fn coloured(style: Style, patch: &str) -> String {
    // Lines of a file may look like the head of the next one, so a head is known by the line that starts it.
    let mut is_head = true;
    let mut painted = String::with_capacity(patch.len() * 2);
    for text in patch.split_inclusive('\n') {
        let (text, end) = text.strip_suffix('\n').map_or((text, ""), |text| (text, "\n"));
        if text.starts_with("diff --git ") {
            is_head = true;
        } else if text.starts_with("@@ ") {
            is_head = false;
        }
        painted += &match text.as_bytes().first() {
            _ if is_head => style.bold(text),
            Some(b'@') => style.cyan(text),
            Some(b'+') => style.green(text),
            Some(b'-') => style.red(text),
            _ => text.to_owned(),
        };
        painted += end;
    }
    painted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_fits_its_width() {
        let files = json!([
            { "path": "src/a/very/long/path/of/a/file/that/does/not/fit/main.rs", "added": 300, "removed": 100 },
            { "path": "x", "added": 1, "removed": 0 },
            { "path": "pic.png", "added": 0, "removed": 0, "binary": true },
        ]);
        let text = stat(Style::plain(), &json!({ "files": files }), 60);
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert!(text.contains("…") && text.contains("| 400 +") && text.contains("| Bin\n"), "{text}");
        assert!(text.ends_with(" 3 files changed, 301 lines added, 100 lines removed\n"), "{text}");
        assert_eq!(stat(Style::plain(), &json!({ "files": [] }), 60), "");
    }

    #[test]
    fn a_patch_has_the_colours_of_git() {
        let patch = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n same\n-old\n+new\n";
        let shown = coloured(Style::colourful(), patch);
        assert_eq!(
            shown,
            "\x1b[1mdiff --git a/x b/x\x1b[0m\n\x1b[1m--- a/x\x1b[0m\n\x1b[1m+++ b/x\x1b[0m\n\
             \x1b[36m@@ -1,2 +1,2 @@\x1b[0m\n same\n\x1b[31m-old\x1b[0m\n\x1b[32m+new\x1b[0m\n"
        );
    }
}
