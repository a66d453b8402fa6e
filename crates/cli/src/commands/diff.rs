//! `sprag diff`: the changes that a run's steps made in its worktree.

use serde_json::{Value, json};
use sprag_app::run_diff;

use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{Style, contents, line};

pub(crate) fn diff(context: &Context, run: Option<&str>, steps: Option<&str>) -> Result<Exit, Failure> {
    let app = context.app()?;
    let known = find_run(&app, run)?;
    print(context, &json!(run_diff(&app, &known, steps, usize::MAX)?));
    Ok(Exit::Ok)
}

/// Prints the changes of a run, from the answer that programs see.
pub(super) fn print(context: &Context, told: &Value) {
    let patch = told["patch"].as_str().unwrap_or_default();
    if context.json {
        line(&told.to_string());
    } else if !patch.is_empty() {
        let patch = format!("{}\n", patch.trim_end_matches('\n'));
        contents(&if context.style.coloured() { coloured(context.style, &patch) } else { patch });
    }
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
