//! Copies ignored files that a run needs from the main checkout.

use std::{
    fs,
    path::{Component, Path},
};

use crate::{
    error::Kind,
    git::{Cancel, Git},
    read,
};

/// The file in the main checkout with patterns, one per line, as in `.gitignore`.
const INCLUDE_FILE: &str = ".worktreeinclude";

/// Copies the ignored files that match the patterns, and returns their number.
pub(crate) fn copy(from: &Path, to: &Path, patterns: &[String], cancel: &Cancel) -> Result<usize, Kind> {
    let include = from.join(INCLUDE_FILE);
    let listed = read::text_if_there(&include).map_err(Kind::io("read", &include))?.unwrap_or_default();
    let listed = listed.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let patterns: Vec<&str> = patterns.iter().map(String::as_str).chain(listed).collect();
    patterns.iter().try_for_each(|pattern| check(pattern))?;
    if patterns.is_empty() {
        return Ok(0);
    }
    // The files that match a pattern, and of these the ones that git ignores.
    let ours = patterns.iter().map(|pattern| format!("--exclude={pattern}"));
    let named = Git::new(from, "ls-files").args(["--others", "--ignored", "-z"]).args(ours).run()?;
    if named.stdout.is_empty() {
        return Ok(0);
    }
    let ignored = Git::new(from, "check-ignore").args(["-z", "--stdin"]).input(named.stdout).output()?;
    let files = ignored.fields();
    for file in &files {
        if cancel.is_cancelled() {
            return Err(Kind::Cancelled);
        }
        copy_file(from, to, Path::new(file))?;
    }
    Ok(files.len())
}

/// Refuses a pattern that leads out of the repository.
fn check(pattern: &str) -> Result<(), Kind> {
    let refuse =
        |reason: &str| Err(Kind::IncludeRefused { pattern: pattern.to_owned(), reason: reason.to_owned() });
    let path = Path::new(pattern.trim_start_matches('!'));
    if path.components().any(|part| part == Component::ParentDir) {
        return refuse("it leads out of the repository with `..`");
    }
    // In a `.gitignore` a leading slash means the top folder, so only refuse what looks like an absolute path.
    if path.is_absolute() && path.components().count() > 2 && path.parent().is_some_and(Path::exists) {
        return refuse("it is an absolute path; name it relative to the repository");
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path, file: &Path) -> Result<(), Kind> {
    let refuse = |reason: &str| {
        Err(Kind::IncludeRefused { pattern: file.display().to_string(), reason: reason.to_owned() })
    };
    if file.is_absolute() || file.components().any(|part| !matches!(part, Component::Normal(_))) {
        return refuse("it is outside the repository");
    }
    let (source, target) = (from.join(file), to.join(file));
    // Links on the way are followed, but the target must be inside.
    let real = fs::canonicalize(&source).map_err(Kind::io("find", &source))?;
    let inside = fs::canonicalize(from).map_err(Kind::io("find", from))?;
    if !real.starts_with(&inside) {
        return refuse("a symbolic link on the way leads out of the repository");
    }
    if target.symlink_metadata().is_ok() {
        return Ok(());
    }
    let folder = target.parent().unwrap_or(to);
    fs::create_dir_all(folder).map_err(Kind::io("create", folder))?;
    let there = fs::canonicalize(folder).map_err(Kind::io("find", folder))?;
    if !there.starts_with(fs::canonicalize(to).map_err(Kind::io("find", to))?) {
        return refuse("a symbolic link in the worktree leads out of it");
    }
    if real.is_dir() {
        return refuse("it is a link to a folder");
    }
    read::copy(&real, &target).map_err(Kind::io("copy to", &target))
}
