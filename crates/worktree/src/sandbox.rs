//! The repository of a sandboxed step: commits work, and nothing that belongs to others can be changed.
//!
//! ```text
//!   .git                        a folder of this step alone, with the branches and the packed refs in one file
//!   .git/hooks, config, …       read-only
//!   .git/objects                a folder of this step alone, which borrows the repository's objects (quarantine.rs)
//!   .git/worktrees/ID           writable: HEAD, index; read-only: its links, its mark, its config
//!   WORKTREE/.git               read-only
//! ```
//!
//! After the step, the branch of the worktree moves to the commit that the copy has, in one compare-and-set. Other
//! branches of the copy are dropped: a step cannot move them. The records of landings, the locks of other runs and their
//! entries are not there at all. The commits of an attempt that belongs to another worker by then move no branch; a
//! salvage ref keeps them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use sprag_process::{Mount, make_private_folder};

use crate::{
    SharedWorktree,
    entry::write_head,
    error::{Attempt, Error, Kind},
    loose,
    mark::MARK,
    name::check_branch,
    prune::{StagedObjects, Written, write_despite_prunes},
    quarantine::{BORROWED, GUARDED, has_files, make_objects, remove_links, take_objects},
    read,
    repository::Repository,
    salvage::{Salvaged, save},
    visit::VISITS,
};

/// The most branches that are copied. A repository with more should pack them.
const MAX_BRANCHES: usize = 20_000;
/// The depth of the folders of branch names.
const MAX_DEPTH: u32 = 32;
/// The longest content of a ref or HEAD.
const MAX_REF_BYTES: usize = 4096;

/// The file beside the step's git folder with the object of the worktree's branch at the start.
const BEFORE: &str = "before";
/// The file with the refs that are not files of their own.
const PACKED: &str = "packed-refs";
/// The parts of a repository of which a step has its own, or none.
const PRIVATE: [&str; 11] = [
    "objects",
    "refs",
    "logs",
    PACKED,
    "worktrees",
    "sprag",
    "index",
    "gc.pid",
    "COMMIT_EDITMSG",
    "FETCH_HEAD",
    "ORIG_HEAD",
];
/// The most parts of a repository that are mounted one by one; a usual one has ten.
const MAX_PARTS: usize = 100;

/// The files of an entry that a step must not change: they lead git, or Sprag, elsewhere.
const FIXED: [&str; 5] = ["commondir", "gitdir", MARK, VISITS, GUARDED];

impl SharedWorktree {
    /// Prepares the refs of a sandboxed step in a folder of its own, and returns the parts of the repository that the
    /// step sees. The mounts belong after that of the worktree.
    pub fn open_sandbox(&self, folder: &Path) -> Result<Vec<Mount>, Error> {
        let open = || {
            let common = self.repository().common_dir();
            let own = folder.join("git");
            for part in ["refs/heads", "refs/tags", "refs/remotes", "logs"] {
                make(&own.join(part))?;
            }
            make_objects(&own, common)?;
            copy_refs(common, &own)?;
            if let Some(branch) = &self.mark().branch {
                let before = value_of(self.repository(), branch)?.unwrap_or_default();
                write(&folder.join(BEFORE), before.as_bytes())?;
            }
            self.mounts(Some(&own))
        };
        open().attempt(|| format!("prepare the sandbox of {}", self.path().display()))
    }

    /// Returns the parts of the repository that a sandboxed command sees if it commits nothing.
    pub fn read_only_sandbox(&self) -> Result<Vec<Mount>, Error> {
        self.mounts(None).attempt(|| format!("prepare the sandbox of {}", self.path().display()))
    }

    /// Returns the parts of the repository that a further command of a sandboxed step sees. [`Self::open_sandbox`] has
    /// prepared the folder.
    pub fn reopen_sandbox(&self, folder: &Path) -> Result<Vec<Mount>, Error> {
        let mounts = self.mounts(Some(&folder.join("git")));
        mounts.attempt(|| format!("prepare the sandbox of {}", self.path().display()))
    }

    /// Moves the branch to the commit that a sandboxed step has left in its folder. Returns a warning if the step left
    /// HEAD on a branch that only it had.
    pub fn close_sandbox(&self, folder: &Path) -> Result<Option<String>, Error> {
        let own = folder.join("git");
        let close = || {
            // The submodules' git directories are read-only for the step.
            remove_links(&self.mark().run, &self.entry(), &["modules"], MAX_DEPTH);
            let (branch, before) = (self.mark().branch.as_deref(), before_of(folder));
            let after = branch.and_then(|branch| branch_in(&own, branch)).filter(|after| *after != before);
            if let (Some(branch), Some(after)) = (branch, after) {
                let take = |staged: Option<&StagedObjects>| self.take(&own, &after, &before, staged);
                let point = |commit: &str| self.move_branch(branch, commit, &before);
                write_despite_prunes(self.repository(), take, point)?;
            } else {
                // The index may name new objects.
                take_objects(self.repository(), &self.mark().run, &own, None)?;
            }
            self.settle_head(&own, branch)
        };
        close().attempt(|| self.taking_over())
    }

    /// Keeps the commits that a sandboxed step has left in its folder under a salvage ref, and moves no branch: another
    /// worker has the step now, and may be running it. Returns `None` if there are none.
    pub fn abandon_sandbox(&self, folder: &Path) -> Result<Option<Salvaged>, Error> {
        let own = folder.join("git");
        let abandon = || {
            let tip = match &self.mark().branch {
                Some(branch) => branch_in(&own, branch),
                None => object_in(&self.entry().join("HEAD")),
            };
            let before = before_of(folder);
            let Some(after) = tip.filter(|tip| *tip != before) else { return Ok(None) };
            let take = |staged: Option<&StagedObjects>| self.take(&own, &after, &before, staged);
            let point = |commit: &str| save(self.repository(), self.mark(), commit, false);
            write_despite_prunes(self.repository(), take, point).map(Some)
        };
        abandon().attempt(|| self.taking_over())
    }

    fn taking_over(&self) -> String {
        format!("take over the commits of a sandboxed step in {}", self.path().display())
    }

    /// Takes over the objects of a step, and checks that none is missing that the commit `after` needs and `before` does
    /// not have: a step can name any commit, also one that it has not written.
    fn take(
        &self,
        own: &Path,
        after: &str,
        before: &str,
        staged: Option<&StagedObjects>,
    ) -> Result<Written, Kind> {
        take_objects(self.repository(), &self.mark().run, own, staged)?;
        let known: Vec<String> =
            Some(before).filter(|before| !before.is_empty()).map(str::to_owned).into_iter().collect();
        let look = self.repository().git("rev-list").args(["--objects", "--quiet", after, "--not"]);
        let look = staged.into_iter().fold(look.args(&known), |git, staged| staged.write_here(git));
        let output = look.output()?;
        match (output.status.success(), staged) {
            (true, _) => Ok(Written { commit: after.to_owned(), known }),
            // A prune may have deleted it. The next attempt stages the objects.
            (false, None) => Err(output.failure()),
            (false, Some(_)) => Err(Kind::Io {
                doing: "find all objects of the commits in",
                path: own.to_owned(),
                source: io::Error::other(output.stderr.trim_end().to_owned()),
            }),
        }
    }

    /// Moves the worktree's branch, unless it has moved since `before`.
    fn move_branch(&self, branch: &str, after: &str, before: &str) -> Result<(), Kind> {
        const MESSAGE: &str = "sprag: commits of a sandboxed step";
        let repository = self.repository();
        // An earlier try has moved it, before a prune deleted objects.
        if branch_in(repository.common_dir(), branch).as_deref() == Some(after) {
            return Ok(());
        }
        let is_moved = if before.is_empty() {
            loose::create(repository, branch, after, MESSAGE)
        } else {
            loose::update(repository, branch, after, before, MESSAGE)
        };
        if is_moved {
            return Ok(());
        }
        // An unusual repository, or a conflict.
        let name = format!("refs/heads/{branch}");
        let change = if before.is_empty() {
            format!("create {name} {after}\n")
        } else {
            format!("update {name} {after} {before}\n")
        };
        repository.update_refs(MESSAGE, &change)
    }

    /// Makes HEAD name something that exists outside of the sandbox.
    fn settle_head(&self, git: &Path, own: Option<&str>) -> Result<Option<String>, Kind> {
        let head = read::text(self.entry().join("HEAD")).unwrap_or_default();
        let head = head.trim_end();
        if own.is_some_and(|own| head == format!("ref: refs/heads/{own}")) {
            return Ok(None);
        }
        let keep = |object: &str, point: &dyn Fn(&str) -> Result<(), Kind>| {
            let base = &self.mark().base;
            let take = |staged: Option<&StagedObjects>| self.take(git, object, base, staged);
            write_despite_prunes(self.repository(), take, point)
        };
        if is_object(head) && !has_files(&git.join("objects")) {
            return Ok(None);
        }
        if is_object(head) {
            // HEAD itself keeps the objects.
            return keep(head, &|_| Ok(())).map(|()| None);
        }
        let other = head.strip_prefix("ref: refs/heads/").filter(|other| check_branch(other).is_ok());
        if let Some((other, object)) = other.and_then(|other| Some((other, branch_in(git, other)?))) {
            keep(&object, &|object| write_head(&self.entry(), None, object))?;
            return Ok(Some(format!(
                "the branch `{other}` was only in the sandbox: its commit {} is checked out without it",
                &object[..10.min(object.len())]
            )));
        }
        write_head(&self.entry(), own, &self.mark().base)?;
        Ok(Some("HEAD named no commit, and names the branch of the worktree again".to_owned()))
    }

    fn mounts(&self, own: Option<&Path>) -> Result<Vec<Mount>, Kind> {
        let common = self.repository().common_dir();
        let (entries, entry) = (self.repository().entries_dir(), self.entry());
        let mut mounts = Vec::new();
        match own {
            Some(own) => {
                mounts.push(Mount::WritableAt { from: own.to_owned(), to: common.to_owned() });
                mounts.extend(shared_parts(common)?.into_iter().map(Mount::ReadOnly));
                let objects = (common.join("objects"), common.join(BORROWED));
                mounts.push(Mount::ReadOnlyAt { from: objects.0, to: objects.1 });
                let others = ["refs/tags", "refs/remotes"].map(|part| common.join(part));
                mounts.extend(others.into_iter().filter(|path| path.is_dir()).map(Mount::ReadOnly));
                // Git reads it if the repository says so, and it can name programs to run.
                let config = entry.join("config.worktree");
                for file in [&config, &entry.join(GUARDED)] {
                    if !file.exists() {
                        write(file, b"")?;
                    }
                }
                // The git directories of submodules, which the step must not be the one to create.
                make(&entry.join("modules"))?;
                mounts.push(Mount::Writable(entry.clone()));
                let fixed =
                    FIXED.map(|name| entry.join(name)).into_iter().chain([config, entry.join("modules")]);
                mounts.extend(fixed.filter(|path| path.exists()).map(Mount::ReadOnly));
            }
            None => {
                mounts.push(Mount::ReadOnly(common.to_owned()));
                let hidden = [common.join("sprag"), entries];
                mounts.extend(hidden.into_iter().filter(|path| path.is_dir()).map(Mount::Empty));
                mounts.push(Mount::ReadOnly(entry));
            }
        }
        let link = self.path().join(".git");
        if fs::symlink_metadata(&link).is_ok_and(|found| found.is_file()) {
            mounts.push(Mount::ReadOnly(link));
        }
        Ok(mounts)
    }
}

/// Returns the parts of a repository that a step sees as they are: config, hooks and whatever else is there.
fn shared_parts(common: &Path) -> Result<Vec<PathBuf>, Kind> {
    let failed = |source| Kind::Io { doing: "read the folder", path: common.to_owned(), source };
    let mut parts: Vec<PathBuf> = fs::read_dir(common)
        .map_err(failed)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            !PRIVATE.contains(&&*name) && !name.ends_with(".lock")
        })
        .filter(|path| path.is_file() || path.is_dir())
        .collect();
    parts.sort();
    parts.truncate(MAX_PARTS);
    Ok(parts)
}

/// Writes all branches and the packed refs into the packed refs of the step's own git folder: one file, however many
/// branches there are.
fn copy_refs(common: &Path, own: &Path) -> Result<(), Kind> {
    let packed = read::bytes(common.join(PACKED)).unwrap_or_default();
    let mut loose = Vec::new();
    collect_branches(&common.join("refs/heads"), "refs/heads", own, MAX_DEPTH, &mut loose)?;
    if loose.is_empty() && packed.is_empty() {
        return Ok(());
    }
    if loose.is_empty() {
        return write(&own.join(PACKED), &packed);
    }
    write(&own.join(PACKED), &merge_refs(&packed, &loose))
}

/// Adds the name and the object of each branch that is a file of its own. A file with something else, such as the name of
/// another ref, is copied.
fn collect_branches(
    folder: &Path,
    prefix: &str,
    own: &Path,
    depth: u32,
    found: &mut Vec<(String, String)>,
) -> Result<(), Kind> {
    let Some(depth) = depth.checked_sub(1) else { return Ok(()) };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (Ok(kind), Ok(name)) = (entry.file_type(), entry.file_name().into_string()) else { continue };
        let name = format!("{prefix}/{name}");
        if kind.is_dir() {
            collect_branches(&entry.path(), &name, own, depth, found)?;
        } else if !name.ends_with(".lock") {
            if found.len() == MAX_BRANCHES {
                let told = format!("it has more than {MAX_BRANCHES}: run `git pack-refs --all`");
                let (path, source) = (folder.to_owned(), io::Error::other(told));
                return Err(Kind::Io { doing: "copy the branches of", path, source });
            }
            let Ok(content) = read::text(entry.path()) else { continue };
            let object = content.trim_end();
            if is_object(object) {
                found.push((name, object.to_owned()));
            } else {
                let target = own.join(&name);
                make(target.parent().unwrap_or(own))?;
                write(&target, &content.as_bytes()[..content.len().min(MAX_REF_BYTES)])?;
            }
        }
    }
    Ok(())
}

/// Returns packed refs to which branches are added. A branch replaces the packed one of its name.
fn merge_refs(packed: &[u8], loose: &[(String, String)]) -> Vec<u8> {
    const HEADER: &[u8] = b"# pack-refs with:";
    let mut traits: &[u8] = b" peeled fully-peeled ";
    // A ref with its line and, for a tag, the line of the tagged object. Later entries of a name replace earlier ones.
    let mut refs: Vec<(&[u8], &[u8], &[u8])> = Vec::new();
    for line in packed.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        if let Some(found) = line.strip_prefix(HEADER) {
            traits = found;
        } else if line[0] == b'^' {
            if let Some((_, _, peeled)) = refs.last_mut() {
                *peeled = line;
            }
        } else if let Some(space) = line.iter().position(|&byte| byte == b' ').filter(|_| line[0] != b'#') {
            refs.push((&line[space + 1..], &line[..space], b""));
        }
    }
    refs.extend(loose.iter().map(|(name, object)| (name.as_bytes(), object.as_bytes(), &b""[..])));
    // It is stable, and fast because packed refs are sorted as a rule.
    refs.sort_by_key(|(name, ..)| *name);
    let mut text = [HEADER, traits].concat();
    if !traits.split(|&byte| byte == b' ').any(|word| word == b"sorted") {
        text.extend(b" sorted ");
    }
    text.push(b'\n');
    for (at, (name, object, peeled)) in refs.iter().enumerate() {
        if refs.get(at + 1).is_some_and(|(next, ..)| next == name) {
            continue;
        }
        for part in [object, &b" "[..], name, b"\n"] {
            text.extend(part);
        }
        if !peeled.is_empty() {
            text.extend(*peeled);
            text.push(b'\n');
        }
    }
    text
}

/// Returns the object that the branch of a worktree pointed at when its sandbox was opened; empty if there was none.
fn before_of(folder: &Path) -> String {
    read::text_if_there(&folder.join(BEFORE)).unwrap_or_default().unwrap_or_default()
}

/// Returns the object that a branch points at; `None` if there is no such branch.
fn value_of(repository: &Repository, branch: &str) -> Result<Option<String>, Kind> {
    match branch_in(repository.common_dir(), branch) {
        Some(object) => Ok(Some(object)),
        None => repository.read_ref(&format!("refs/heads/{branch}")),
    }
}

/// Returns the object that a branch of a git folder points at.
fn branch_in(git: &Path, branch: &str) -> Option<String> {
    let packed = || {
        let text = read::text(git.join(PACKED)).ok()?;
        let name = format!("refs/heads/{branch}");
        let found =
            text.lines().filter_map(|line| line.split_once(' ')).find(|(_, ref_name)| *ref_name == name);
        found.map(|(object, _)| object.to_owned()).filter(|object| is_object(object))
    };
    object_in(&git.join("refs/heads").join(branch)).or_else(packed)
}

/// Returns the object in the file of a ref.
fn object_in(file: &Path) -> Option<String> {
    let text = read::text(file).ok()?;
    Some(text.trim_end().to_owned()).filter(|text| is_object(text))
}

fn is_object(text: &str) -> bool {
    matches!(text.len(), 40 | 64)
        && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn make(folder: &Path) -> Result<(), Kind> {
    let made = if folder.is_dir() { Ok(()) } else { make_private_folder(folder) };
    made.map_err(|source| Kind::Io { doing: "create", path: folder.to_owned(), source })
}

fn write(path: &Path, content: &[u8]) -> Result<(), Kind> {
    fs::write(path, content).map_err(|source| Kind::Io { doing: "write", path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_are_merged_into_the_packed_refs_in_order() {
        let (a, b, c) = ("a".repeat(40), "b".repeat(40), "c".repeat(40));
        let packed = format!(
            "# pack-refs with: peeled fully-peeled sorted \n{a} refs/heads/main\n{a} refs/heads/z\n{b} refs/tags/v1\n^{a}\n"
        );
        let loose =
            [("refs/heads/x/y".to_owned(), c.clone()), ("refs/heads/main".to_owned(), b.clone())].to_vec();
        let merged = String::from_utf8(merge_refs(packed.as_bytes(), &loose)).unwrap();
        let expected = format!(
            "# pack-refs with: peeled fully-peeled sorted \n{b} refs/heads/main\n{c} refs/heads/x/y\n\
             {a} refs/heads/z\n{b} refs/tags/v1\n^{a}\n"
        );
        assert_eq!(merged, expected);
        let merged = String::from_utf8(merge_refs(b"", &loose[..1])).unwrap();
        assert_eq!(merged, format!("# pack-refs with: peeled fully-peeled  sorted \n{c} refs/heads/x/y\n"));
    }
}
