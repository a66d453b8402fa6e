//! The files that a sandboxed step leaves for Sprag's own git, which runs outside of the sandbox.
//!
//! ```text
//!   in the sandbox    own/objects: new objects            COMMON/objects: borrowed, read-only
//!   afterwards        links are removed ─▶ each object gets the name of its content (take_loose.rs)
//!                     a pack, or much   ─▶ the same by pack-objects and unpack-objects
//! ```
//!
//! Git trusts the names of objects in its store: a step that could write there could change the files of every branch.
//! A repository inside the worktree has settings of its own, which can name commands. In a worktree in which a sandboxed
//! step has worked, Sprag enters only those whose git directory the step could not write.

use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    error::Kind,
    git::{Cancel, Git},
    index::Index,
    mark::Mark,
    modules,
    prune::StagedObjects,
    read,
    repository::Repository,
    take_loose::take_loose,
};

/// The file in a worktree's entry which says that a sandboxed step has worked there. No sandboxed step can remove it.
pub(crate) const GUARDED: &str = "sprag-sandboxed";
/// The path below the step's git directory at which it sees the objects of the repository.
pub(crate) const BORROWED: &str = "sprag-borrowed";
/// The depth of folders that are searched for links. Git's own are three levels deep, branch names deeper.
const MAX_DEPTH: u32 = 64;
/// The time limit for taking over the objects of a step.
const TAKE_OVER: Duration = Duration::from_secs(600);
/// The most bytes of the packed objects of one step, which pass through memory.
const MAX_PACK_BYTES: usize = 2 << 30;

/// Whether a sandboxed step has worked in a worktree.
pub(crate) fn is_guarded(repository: &Repository, mark: &Mark) -> bool {
    repository.entries_dir().join(&mark.id).join(GUARDED).exists()
}

/// Creates a folder for the objects of a step, in which git finds those of the repository too.
pub(crate) fn make_objects(own: &Path, common: &Path) -> Result<(), Kind> {
    let (info, borrowed) = (own.join("objects/info"), own.join(BORROWED));
    for folder in [&info, &own.join("objects/pack"), &borrowed] {
        fs::create_dir_all(folder).map_err(Kind::io("create", folder))?;
    }
    let alternates = info.join("alternates");
    let mut path = common.join(BORROWED).into_os_string().into_vec();
    path.push(b'\n');
    fs::write(&alternates, path).map_err(Kind::io("write", &alternates))
}

/// Takes over the objects that a step has written in its own folder, into the repository or a staging folder. The step's
/// processes have ended.
pub(crate) fn take_objects(
    repository: &Repository,
    run: &str,
    own: &Path,
    staged: Option<&StagedObjects>,
) -> Result<(), Kind> {
    let objects = own.join("objects");
    // A link, or another store that the folder names, would bring in the objects of other repositories.
    remove_links(run, &objects, &[], MAX_DEPTH);
    let _ = fs::remove_dir_all(objects.join("info"));
    if !has_files(&objects) || take_loose(repository, &objects, staged) {
        return Ok(());
    }
    let git = |subcommand: &str| repository.git(subcommand).env("GIT_OBJECT_DIRECTORY", &objects);
    let cancel = Cancel::default();
    let listed = git("cat-file").args(["--batch-all-objects", "--batch-check=%(objectname)", "--unordered"]);
    let names = listed.long(TAKE_OVER, &cancel).run()?.stdout;
    if names.is_empty() {
        return Ok(());
    }
    let pack = git("pack-objects").args(["--stdout", "--quiet", "--window=0"]).input(names);
    let pack = pack.at_most(MAX_PACK_BYTES).long(TAKE_OVER, &cancel).run()?.stdout;
    // The names of the objects are computed from their contents here.
    let unpack = repository.git("unpack-objects").args(["-q"]).input(pack).long(TAKE_OVER, &cancel);
    staged.into_iter().fold(unpack, |git, staged| staged.write_here(git)).run().map(drop)
}

/// Removes everything below a folder that is neither a file nor a folder: git and Sprag would follow a link to a file
/// elsewhere, and wait for a pipe. Folders with the names in `except` are not searched.
pub(crate) fn remove_links(run: &str, folder: &Path, except: &[&str], depth: u32) {
    let Some(depth) = depth.checked_sub(1) else {
        let _ = fs::remove_dir_all(folder);
        return;
    };
    // A link in place of the folder itself.
    if fs::symlink_metadata(folder).is_ok_and(|found| !found.is_dir()) {
        let _ = fs::remove_file(folder);
        return;
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && except.iter().any(|name| entry.file_name() == **name) => {}
            Ok(kind) if kind.is_dir() => remove_links(run, &entry.path(), &[], depth),
            Ok(kind) if kind.is_file() => {}
            _ => {
                tracing::warn!(run, path = %entry.path().display(), "removed what a sandboxed step left in place of a file");
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Whether there is a file below a folder of objects.
pub(crate) fn has_files(objects: &Path) -> bool {
    let folders = fs::read_dir(objects).into_iter().flatten().flatten();
    folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten().flatten()).next().is_some()
}

/// Returns git's `add` for all files of a worktree. With `guarded`, the path of the index that it uses, it leaves out the
/// repositories inside the worktree that the index names: git would start another git in each, with the settings there.
pub(crate) fn add_all<'a>(git: &dyn Fn(&str) -> Git<'a>, guarded: Option<&Path>) -> Result<Git<'a>, Kind> {
    let add = git("add").args(["--all", "--sparse"]);
    if !guarded.is_some_and(may_name_repositories) {
        return Ok(add.args(["--", "."]));
    }
    let mut paths = b".\0".to_vec();
    for inside in modules::gitlinks(git("ls-files"))? {
        paths.extend(b":(exclude,literal)");
        paths.extend(OsString::from(inside).into_vec());
        paths.push(0);
    }
    Ok(add.args(["--pathspec-from-file=-", "--pathspec-file-nul"]).input(paths))
}

/// Whether an index may name a repository. The step may have written it by hand, so only the plain form counts as one that
/// does not. Most indexes have it, and need no further git.
pub(crate) fn may_name_repositories(index: &Path) -> bool {
    let parsed = read::bytes(index).ok().and_then(Index::parse);
    !parsed.is_some_and(|index| index.has_files_alone())
}

/// Whether a sandboxed step could not have written the git directory of a repository inside a worktree: it belongs to
/// the submodules that git itself has made.
pub(crate) fn is_fixed(repository: &Repository, mark: &Mark, git_dir: &Path) -> bool {
    let real = |path: PathBuf| fs::canonicalize(path).ok();
    let homes =
        [repository.entries_dir().join(&mark.id).join("modules"), repository.common_dir().join("modules")];
    let Some(git_dir) = real(git_dir.to_owned()) else { return false };
    homes.into_iter().filter_map(real).any(|home| git_dir.starts_with(home))
}
