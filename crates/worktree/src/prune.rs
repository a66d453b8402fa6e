//! Writing new objects during a user's `git prune`, and refs whose objects are missing.
//!
//! ```text
//!   write objects ─▶ create the ref ─▶ wait for running prunes ─▶ is an object missing? ── no ─▶ done
//!        ▲                                                            │ yes
//!        └──────── write all again, with a copy in a staging folder ──┘
//! ```
//!
//! Git writes objects before the ref that leads to them. A `git prune --expire=now` that has listed the refs
//! earlier deletes such objects, even if the ref exists by then. A prune that starts later finds the ref: it
//! keeps the objects of the ref, or stops because one is missing. So the staged objects are linked into the
//! repository once more after the ref exists.

use std::{
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    clock,
    entry::names,
    error::{Attempt, Error, Kind},
    foreign_git,
    git::Git,
    modules::{in_git_dir, shared_git_dirs},
    repository::{Repository, update_refs_in},
};

/// The attempts to write objects before the operation fails with [`Kind::Pruned`].
const TRIES: u32 = 5;
/// The attempts to create a ref or a folder that prunes keep breaking.
const MAX_POINTS: u32 = 100;
/// The longest wait for prunes. They take seconds in the largest repositories.
const MAX_WAIT_MS: u64 = 30_000;
/// The prefix of the staging folders, and the age after which one belongs to a dead process.
const STAGING_PREFIX: &str = "objects-";
const MAX_STAGING_AGE: Duration = Duration::from_secs(24 * 3600);
/// The interval between two checks for running prunes.
const POLL_INTERVAL_MS: u64 = 5;

/// Parts of git's messages about a missing object.
const MISSING_MESSAGES: [&str; 10] = [
    "invalid object",
    "error building trees",
    "not a valid object",
    "bad object",
    "bad tree object",
    "missing blob object",
    "nonexistent object",
    "unable to read",
    "Could not read",
    // The folder of the object, which a prune removes while it is empty.
    "unable to write file",
];

/// The result of writing objects.
pub(crate) struct Written {
    /// The commit for the ref.
    pub(crate) commit: String,
    /// The commits whose objects existed before.
    pub(crate) known: Vec<String>,
}

/// A ref of Sprag to an object that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenRef {
    /// The full name of the ref.
    pub name: String,
    /// The missing object.
    pub object: String,
    /// The git directory with the ref: that of the repository or of one of its submodules.
    pub git_dir: PathBuf,
}

/// Writes objects and creates a ref to them, until no object is missing. `write` creates the commit, with its
/// objects in the staging folder if one is given; `point` creates the ref.
pub(crate) fn write_despite_prunes<T>(
    repository: &Repository,
    write: impl Fn(Option<&StagedObjects>) -> Result<Written, Kind>,
    point: impl Fn(&str) -> Result<T, Kind>,
) -> Result<T, Kind> {
    let is_complete = |written: &Written| {
        let known: Vec<&str> = written.known.iter().map(String::as_str).collect();
        repository.is_complete(&written.commit, &known)
    };
    let first = write(None).and_then(|written| Ok((point(&written.commit)?, written)));
    match first {
        Ok((value, written)) if is_complete(&written)? => return Ok(value),
        Err(kind) if !misses_object(&kind) => return Err(kind),
        Ok(_) | Err(_) => {}
    }
    let staged = StagedObjects::create(repository)?;
    for _ in 1..TRIES {
        let written = match write(Some(&staged)) {
            Err(kind) if misses_object(&kind) => continue,
            other => other?,
        };
        let Some(value) = point_at(&staged, || point(&written.commit))? else { continue };
        repository.wait_for_prunes();
        staged.link_into_repository()?;
        if is_complete(&written)? {
            return Ok(value);
        }
    }
    Err(Kind::Pruned { path: repository.common_dir().to_owned() })
}

/// Creates a ref right after linking its objects. Returns `None` if a prune was faster each time.
fn point_at<T>(staged: &StagedObjects, point: impl Fn() -> Result<T, Kind>) -> Result<Option<T>, Kind> {
    for _ in 0..MAX_POINTS {
        staged.link_into_repository()?;
        match point() {
            Err(kind) if misses_object(&kind) => {}
            other => return other.map(Some),
        }
    }
    Ok(None)
}

/// A staging folder for new objects, which no prune searches. It is removed on drop.
pub(crate) struct StagedObjects {
    folder: PathBuf,
    /// The repository's object folder.
    objects: PathBuf,
}

impl StagedObjects {
    fn create(repository: &Repository) -> Result<StagedObjects, Kind> {
        remove_old(&repository.sprag_dir());
        let folder = repository.sprag_dir().join(format!("{STAGING_PREFIX}{}", clock::random_hex()));
        let staged = StagedObjects { folder, objects: repository.common_dir().join("objects") };
        let info = staged.folder.join("info");
        fs::create_dir_all(&info).map_err(Kind::io("create", &info))?;
        let known = [staged.objects.as_os_str().as_bytes(), b"\n"].concat();
        let alternates = info.join("alternates");
        fs::write(&alternates, known).map_err(Kind::io("write", &alternates))?;
        Ok(staged)
    }

    /// Makes a git command write new objects to this folder.
    pub(crate) fn write_here<'a>(&self, git: Git<'a>) -> Git<'a> {
        git.env("GIT_OBJECT_DIRECTORY", &self.folder)
    }

    /// Returns the folder, which has the layout of a repository's objects.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Links the objects into the repository, where they are missing.
    fn link_into_repository(&self) -> Result<(), Kind> {
        for folder in names(&self.folder)?.into_iter().filter(|name| name.len() == 2 || name == "pack") {
            let mut files = names(&self.folder.join(&folder))?;
            files.retain(|name| !name.as_bytes().starts_with(b"tmp_"));
            // Packs before their indexes, because git opens a pack when it finds its index.
            files.sort_by_key(|name| name.as_bytes().ends_with(b".idx"));
            for file in files {
                let (from, to) = (self.folder.join(&folder).join(&file), self.objects.join(&folder));
                link(&from, &to, &to.join(&file))?;
            }
        }
        Ok(())
    }
}

impl Drop for StagedObjects {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Removes staging folders of dead processes.
fn remove_old(sprag_dir: &Path) {
    let folders = names(sprag_dir).unwrap_or_default().into_iter();
    for name in folders.filter(|name| name.as_bytes().starts_with(STAGING_PREFIX.as_bytes())) {
        let path = sprag_dir.join(name);
        let age = fs::metadata(&path).and_then(|found| found.modified()).map(|at| at.elapsed());
        if matches!(age, Ok(Ok(age)) if age > MAX_STAGING_AGE) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Links a file into a folder that a prune may remove while it is empty.
fn link(from: &Path, folder: &Path, to: &Path) -> Result<(), Kind> {
    let mut last = Ok(());
    for _ in 0..MAX_POINTS {
        last = fs::create_dir_all(folder).and_then(|()| fs::hard_link(from, to));
        match &last {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => break,
        }
    }
    last.map_err(Kind::io("create", to))
}

/// Returns whether git failed because an object is missing.
pub(crate) fn misses_object(kind: &Kind) -> bool {
    matches!(kind, Kind::Git { stderr, .. } if MISSING_MESSAGES.iter().any(|sign| stderr.contains(sign)))
}

impl Repository {
    /// Waits until each `git prune` of this repository that is running now has ended.
    pub(crate) fn wait_for_prunes(&self) {
        let deadline_ms = clock::now_ms() + MAX_WAIT_MS;
        let mut running = foreign_git::prunes(self.common_dir());
        while !running.is_empty() && clock::now_ms() < deadline_ms {
            clock::pause_ms(POLL_INTERVAL_MS);
            let now = foreign_git::prunes(self.common_dir());
            running.retain(|number| now.contains(number));
        }
    }

    /// Returns whether all objects of a commit exist, apart from those of the known commits, after the prunes
    /// that are running now.
    pub(crate) fn is_complete(&self, commit: &str, known: &[&str]) -> Result<bool, Kind> {
        self.wait_for_prunes();
        let look = self.git("rev-list").args(["--objects", "--quiet", commit, "--not"]).args(known);
        Ok(look.output()?.status.success())
    }

    /// Returns the refs under `refs/sprag/` whose objects are missing. `git gc` fails while there is one.
    pub fn broken_refs(&self) -> Result<Vec<BrokenRef>, Error> {
        let find = || {
            let mut found = Vec::new();
            for git_dir in [self.common_dir().to_owned()].into_iter().chain(shared_git_dirs(self)) {
                found.extend(broken_in(&git_dir)?);
            }
            Ok(found)
        };
        find().attempt(|| format!("look for broken refs in {}", self.common_dir().display()))
    }

    /// Deletes a broken ref if it has not changed.
    pub fn delete_broken_ref(&self, broken: &BrokenRef) -> Result<(), Error> {
        let lines = format!("delete {} {}\n", broken.name, broken.object);
        let deleted = update_refs_in(&broken.git_dir, "sprag: its objects are gone", &lines);
        deleted.attempt(|| format!("delete {} in {}", broken.name, broken.git_dir.display()))
    }
}

/// Returns the broken refs of one git directory. Fails if other refs are broken too.
fn broken_in(git_dir: &Path) -> Result<Vec<BrokenRef>, Kind> {
    const OTHERS: [&str; 3] = ["--branches", "--tags", "--remotes"];
    let format = "--format=%(objectname) %(refname)";
    let listed = in_git_dir(git_dir, "for-each-ref").args([format, "refs/sprag/"]).run()?.line();
    let refs: Vec<(&str, &str)> = listed.lines().filter_map(|line| line.split_once(' ')).collect();
    let reaches = |objects: &[&str]| -> Result<bool, Kind> {
        let look = in_git_dir(git_dir, "rev-list").args(["--objects", "--quiet", "--stdin", "--not"]);
        let input: String = objects.iter().map(|object| format!("{object}\n")).collect();
        Ok(look.args(OTHERS).input(input).output()?.status.success())
    };
    let all: Vec<&str> = refs.iter().map(|(object, _)| *object).collect();
    if all.is_empty() || reaches(&all)? {
        return Ok(Vec::new());
    }
    in_git_dir(git_dir, "rev-list").args(["--quiet", "--max-count=1"]).args(OTHERS).run()?;
    let mut found = Vec::new();
    for (object, name) in refs {
        if !reaches(&[object])? {
            let (name, object, git_dir) = (name.to_owned(), object.to_owned(), git_dir.to_owned());
            found.push(BrokenRef { name, object, git_dir });
        }
    }
    Ok(found)
}
