//! The changes that a run's steps made in its worktree, as a patch.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use sprag_worker::before;
use sprag_worktree::{ChangedFile, Checkpoint, Repository};

use crate::App;
use crate::error::{Error, ErrorKind};
use crate::known::RunWithPlan;
use crate::resume::{host_elsewhere, repository_of, run_environment};

/// The changes between two recorded states of a run's worktree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunDiff {
    /// The run.
    pub run: String,
    /// The commit of the first state.
    pub from: String,
    /// The commit of the second state.
    pub to: String,
    /// The changed files.
    pub files: Vec<FileChange>,
    /// The changes, as git prints them; empty if there are none.
    pub patch: String,
}

/// The change of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileChange {
    /// Its path in the repository; the new one if it was renamed.
    pub path: String,
    /// Its path before it was renamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_path: Option<String>,
    /// The number of added lines.
    pub added: usize,
    /// The number of removed lines.
    pub removed: usize,
    /// Whether it is not text. Its lines are not counted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub binary: bool,
}

/// The most bytes of a patch that a server answers with. It holds the whole of it in memory.
pub const MOST_OVER_HTTP: usize = 32 << 20;

/// The files that a run's steps changed, and the changes of one of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunChanges {
    /// The run.
    pub run: String,
    /// The commit of the first state.
    pub from: String,
    /// The commit of the second state.
    pub to: String,
    /// The changed files; only the one that was asked for, if one was.
    pub files: Vec<FileChange>,
    /// The changes of the file that was asked for, as git prints them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
}

/// Returns what a run changed in its worktree: all of it so far, what one step changed (`STEP`), what one attempt at a step
/// changed (`STEP@2`), or the changes between the ends of two (`STEP..STEP`). A patch of more than `most` bytes is refused.
pub fn run_diff(app: &App, known: &RunWithPlan, steps: Option<&str>, most: usize) -> Result<RunDiff, Error> {
    let Compared { repository, from, to } = compared(app, known, steps)?;
    let patch =
        repository.diff(&from, &to, &[], most).map_err(|error| too_large(known, error, Hint::OneStep))?;
    Ok(RunDiff { run: known.id().to_string(), from, to, files: files_of(&patch), patch })
}

/// Returns the files that a run changed, for the same `steps` as [`run_diff`]. With a path, returns only that file, with its
/// changes; `old_path` is its path before it was renamed.
pub fn run_changes(
    app: &App,
    known: &RunWithPlan,
    steps: Option<&str>,
    path: Option<(&str, Option<&str>)>,
    most: usize,
) -> Result<RunChanges, Error> {
    let Compared { repository, from, to } = compared(app, known, steps)?;
    let too_large = |error| too_large(known, error, Hint::OnThatMachine);
    let Some((path, old_path)) = path else {
        let files = match known_files(&repository, &from, &to) {
            Some(files) => files,
            None => {
                let files = repository.changed_files(&from, &to, most).map_err(too_large)?;
                let files: Vec<FileChange> = files.into_iter().map(FileChange::from).collect();
                remember_files(&repository, &from, &to, &files);
                files
            }
        };
        return Ok(RunChanges { run: known.id().to_string(), from, to, files, patch: None });
    };
    let paths: Vec<&str> = [path].into_iter().chain(old_path).collect();
    let patch = repository.diff(&from, &to, &paths, most).map_err(too_large)?;
    let files = files_of(&patch);
    Ok(RunChanges { run: known.id().to_string(), from, to, files, patch: Some(patch) })
}

/// The comparisons whose files are remembered: two commits never differ in other files later.
const REMEMBERED: usize = 8;
/// The most files of a comparison that is remembered.
const MOST_REMEMBERED_FILES: usize = 10_000;

/// The repository and the two commits of a comparison, and the files in which they differ.
type Remembered = ([String; 3], Vec<FileChange>);
static COMPARISONS: Mutex<VecDeque<Remembered>> = Mutex::new(VecDeque::new());

fn key(repository: &Repository, from: &str, to: &str) -> [String; 3] {
    [repository.common_dir().display().to_string(), from.to_owned(), to.to_owned()]
}

/// Returns the files of a comparison that was made lately. Each reader of a large change asks for the same one.
fn known_files(repository: &Repository, from: &str, to: &str) -> Option<Vec<FileChange>> {
    let key = key(repository, from, to);
    let all = COMPARISONS.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().find(|(known, _)| *known == key).map(|(_, files)| files.clone())
}

fn remember_files(repository: &Repository, from: &str, to: &str, files: &[FileChange]) {
    if files.len() > MOST_REMEMBERED_FILES {
        return;
    }
    let mut all = COMPARISONS.lock().unwrap_or_else(PoisonError::into_inner);
    if all.len() == REMEMBERED {
        all.pop_front();
    }
    all.push_back((key(repository, from, to), files.to_vec()));
}

/// Two recorded states of a run's worktree.
struct Compared {
    repository: Repository,
    from: String,
    to: String,
}

fn compared(app: &App, known: &RunWithPlan, steps: Option<&str>) -> Result<Compared, Error> {
    let id = known.id();
    let Some(repository) = repository_of(app, id)? else {
        if let Some(host) = host_elsewhere(app, id)? {
            let host = crate::text::plain(&host);
            return Err(Error::new(ErrorKind::Refused, format!("the worktree of run {id} is on {host}"))
                .next("look at it there"));
        }
        let none = Error::new(ErrorKind::Refused, format!("run {id} has no worktree"));
        return Err(Error { code: "no_worktree", ..none }
            .next("only runs of pipelines with `environment: { worktree: … }` have one"));
    };
    let state = |name: &str| state(&repository, known, name).map(|state| state.commit);
    let (from, to) = match steps {
        Some(pair) if pair.contains("..") => {
            let (from, to) = pair.split_once("..").unwrap_or_default();
            (state(from)?, state(to)?)
        }
        Some(step) => {
            let of_step = step.split_once('@').map_or(step, |(step, _)| step);
            (state(&before(of_step))?, state(step)?)
        }
        None => whole_run(app, known, &repository)?,
    };
    Ok(Compared { repository, from, to })
}

/// Returns the state after a step (`STEP`) or after one attempt at it (`STEP@2`).
fn state(repository: &Repository, known: &RunWithPlan, name: &str) -> Result<Checkpoint, Error> {
    let run = known.id().to_string();
    let Some((step, attempt)) = name.split_once('@') else {
        return repository.find_checkpoint(&run, name).map_err(|_| no_state(known, repository, name));
    };
    let Ok(attempt) = attempt.parse() else {
        return Err(Error::invalid(format!("{attempt:?} is not the number of an attempt"))
            .next("write the second attempt at a step as STEP@2"));
    };
    repository.find_attempt(&run, step, attempt).map_err(|_| {
        Error::invalid(format!("nothing is recorded of attempt {attempt} at step {step:?} of run {run}"))
            .next("earlier attempts are kept as long as git keeps them, on the machine that ran them")
    })
}

/// Returns the commits before a run's first step and after its last finished one.
fn whole_run(app: &App, known: &RunWithPlan, repository: &Repository) -> Result<(String, String), Error> {
    let id = known.id();
    let last = app.last_finished(id)?.iter().find_map(|step| state(repository, known, step).ok());
    let begun = repository.recorded_uncommitted(&id.to_string());
    let base = match begun.map_err(|error| Error::failed(error.to_string()))? {
        Some(begun) => Some(begun.commit),
        None => run_environment(app, id)?.and_then(|(_, details)| details.base_commit),
    };
    match (base, last) {
        (Some(base), Some(last)) => Ok((base, last.commit)),
        _ => Err(Error::new(ErrorKind::Refused, format!("no step of run {id} has been recorded yet"))),
    }
}

/// The advice about changes that are too large.
#[derive(Clone, Copy)]
enum Hint {
    OneStep,
    OnThatMachine,
}

fn too_large(known: &RunWithPlan, error: sprag_worktree::Error, hint: Hint) -> Error {
    let sprag_worktree::Kind::TooMuchOutput { most, .. } = error.kind else {
        return Error::failed(error.to_string());
    };
    let why = format!("the changes of run {} are larger than {} MB", known.id(), most >> 20);
    Error::new(ErrorKind::Refused, why).next(match hint {
        Hint::OneStep => "look at one step, or use `sprag diff` on the machine with the worktree",
        Hint::OnThatMachine => "use `sprag diff` on the machine with the worktree",
    })
}

impl From<ChangedFile> for FileChange {
    fn from(file: ChangedFile) -> Self {
        let (added, removed) = file.lines.unwrap_or_default();
        let binary = file.lines.is_none();
        FileChange { path: file.path, old_path: file.old_path, added, removed, binary }
    }
}

/// Returns the files of a patch, with the number of their changed lines.
fn files_of(patch: &str) -> Vec<FileChange> {
    let mut files: Vec<FileChange> = Vec::new();
    let mut in_lines = false;
    let name = |text: &str, side: &str| text.trim_matches('"').strip_prefix(side).map(str::to_owned);
    for line in patch.lines() {
        if let Some(names) = line.strip_prefix("diff --git ") {
            // Both names are the same here, unless a line below has the new one.
            let path = names.rsplit_once(" b/").map_or(names, |(_, path)| path).trim_matches('"');
            files.push(FileChange {
                path: path.to_owned(),
                old_path: None,
                added: 0,
                removed: 0,
                binary: false,
            });
            in_lines = false;
            continue;
        }
        let Some(file) = files.last_mut() else { continue };
        match line.as_bytes().first() {
            Some(b'@') => in_lines = true,
            Some(b'+') if in_lines => file.added += 1,
            Some(b'-') if in_lines => file.removed += 1,
            _ if in_lines => {}
            _ if line.starts_with("GIT binary patch") => file.binary = true,
            _ => {
                if let Some(old) = line.strip_prefix("rename from ") {
                    file.old_path = Some(old.trim_matches('"').to_owned());
                }
                let renamed = line.strip_prefix("rename to ").map(|path| path.trim_matches('"').to_owned());
                let created = line.strip_prefix("+++ ").and_then(|text| name(text, "b/"));
                if let Some(path) = renamed.or(created) {
                    file.path = path;
                }
            }
        }
    }
    files
}

fn no_state(known: &RunWithPlan, repository: &Repository, step: &str) -> Error {
    let all = repository.checkpoints(&known.id().to_string()).unwrap_or_default();
    let names: Vec<&str> = all
        .iter()
        .filter_map(|state| state.name.rsplit('/').next())
        .filter(|name| !name.starts_with('_'))
        .collect();
    let step = step.trim_start_matches('_');
    Error::invalid(format!("nothing is recorded of step {step:?} of run {}", known.id()))
        .next(format!("there is: {}", if names.is_empty() { "nothing yet".into() } else { names.join(", ") }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_lines_are_counted_by_file() {
        let patch = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n same\n--- a/old\n+++ b/new\n\
                     diff --git a/old name b/new name\nsimilarity index 100%\nrename from old name\nrename to new name\n\
                     diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n\
                     diff --git a/pic b/pic\nGIT binary patch\nliteral 3\n+abc\n";
        let counted: Vec<(String, usize, usize, bool)> = files_of(patch)
            .into_iter()
            .map(|file| (file.path, file.added, file.removed, file.binary))
            .collect();
        let of = |path: &str, added, removed, binary| (path.to_owned(), added, removed, binary);
        assert_eq!(
            counted,
            [
                of("x", 1, 1, false),
                of("new name", 0, 0, false),
                of("gone", 0, 1, false),
                of("pic", 0, 0, true)
            ]
        );
        assert!(files_of("").is_empty());
    }
}
