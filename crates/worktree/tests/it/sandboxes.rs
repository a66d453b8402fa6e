//! The git folder of a sandboxed step: opened, changed as a step changes it, and closed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use sprag_worktree::{SharedWorktree, Worktree};

use crate::{
    common::*,
    prune::{beside_prunes, is_whole},
};

/// The commits that a sandboxed step makes beside a user's prunes.
const COMMITS: usize = 12;

/// Runs git as a step does, with objects in the folder of its own.
fn git_inside(place: &Place, folder: &Path, args: &[&str], index: &Path) -> String {
    let mut git = Command::new("git");
    git.args(args).current_dir(place.repo()).env("GIT_INDEX_FILE", index);
    git.env("GIT_OBJECT_DIRECTORY", folder.join("git/objects"));
    git.env("GIT_ALTERNATE_OBJECT_DIRECTORIES", place.common().join("objects"));
    let output = git.output().expect("git");
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Commits a few files on the branch `work`, in the folder of a sandbox alone.
fn commit_inside(place: &Place, folder: &Path, number: usize) -> String {
    let index = folder.join("index");
    let git = |args: &[&str]| git_inside(place, folder, args, &index);
    let parent = place.git(&["rev-parse", "work"]);
    git(&["read-tree", &parent]);
    for file in 0..5 {
        let path = folder.join("file");
        fs::write(&path, format!("{number} {file}\n")).expect("a file");
        let blob = git(&["hash-object", "-w", path.to_str().expect("a path")]);
        git(&["update-index", "--add", "--cacheinfo", &format!("100644,{blob},new{number}/{file}.txt")]);
    }
    let tree = git(&["write-tree"]);
    let commit = git(&["commit-tree", "-p", &parent, "-m", &format!("step {number}"), &tree]);
    fs::write(folder.join("git/refs/heads/work"), format!("{commit}\n")).expect("a ref");
    commit
}

fn open(place: &Place, worktree: &Worktree, name: &str) -> (SharedWorktree, PathBuf) {
    let (shared, folder) = (worktree.as_shared(), place.path().join(name));
    shared.open_sandbox(&folder).expect("opened");
    (shared, folder)
}

#[test]
fn s19_commits_of_sandboxed_steps_survive_a_concurrent_prune() {
    let place = Place::new(20);
    let worktrees = place.worktrees();
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    let prunes = beside_prunes(&place, || {
        for number in 0..COMMITS {
            let (shared, folder) = open(&place, &worktree, &format!("s{number}"));
            let commit = commit_inside(&place, &folder, number);
            assert_eq!(
                shared.close_sandbox(&folder).unwrap_or_else(|error| panic!("{number}: {error}")),
                None
            );
            assert_eq!(place.git(&["rev-parse", "work"]), commit);
            assert!(is_whole(&place, "work"), "an object of commit {number} is missing");
        }
    });
    assert!(prunes > COMMITS, "the person pruned {prunes} times only");
    place.git(&["fsck", "--no-dangling"]);
    let log = place.git(&["reflog", "show", "--format=%H", "refs/heads/work"]);
    assert_eq!(log.lines().count(), COMMITS + 1, "{log}");
}

#[test]
fn s19_packs_and_objects_with_wrong_names_are_taken_over_by_their_contents() {
    let place = Place::new(20);
    let worktrees = place.worktrees();
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    let (shared, folder) = open(&place, &worktree, "packed");
    let commit = commit_inside(&place, &folder, 1);
    let pack = folder.join("git/objects/pack/pack");
    let names =
        git_inside(&place, &folder, &["rev-list", "--objects", &commit, "^main"], &folder.join("index"));
    let listed = folder.join("names");
    fs::write(&listed, names.lines().map(|line| format!("{}\n", &line[..40])).collect::<String>()).unwrap();
    let script = format!("git pack-objects -q {} < {}", pack.display(), listed.display());
    let mut packing = Command::new("sh");
    packing.args(["-c", &script]).current_dir(place.repo());
    packing.env("GIT_OBJECT_DIRECTORY", folder.join("git/objects"));
    packing.env("GIT_ALTERNATE_OBJECT_DIRECTORIES", place.common().join("objects"));
    assert!(packing.status().expect("packed").success());
    for entry in children(&folder.join("git/objects")).iter().filter(|name| name.len() == 2) {
        fs::remove_dir_all(folder.join("git/objects").join(entry)).expect("ours");
    }
    shared.close_sandbox(&folder).expect("closed");
    assert!(is_whole(&place, "work") && place.git(&["rev-parse", "work"]) == commit);

    // An object of the main branch, replaced.
    let (shared, folder) = open(&place, &worktree, "wrong");
    let victim = place.git(&["rev-parse", "main:dir0/file0.txt"]);
    let commit = commit_inside(&place, &folder, 2);
    let evil = git_inside(
        &place,
        &folder,
        &["hash-object", "-w", "-t", "blob", "/etc/hostname"],
        &folder.join("index"),
    );
    let path = |name: &str| folder.join("git/objects").join(&name[..2]).join(&name[2..]);
    fs::create_dir_all(path(&victim).parent().expect("a folder")).expect("a folder");
    fs::copy(path(&evil), path(&victim)).expect("copied");
    shared.close_sandbox(&folder).expect("closed");
    assert_eq!(place.git(&["rev-parse", "work"]), commit);
    assert_eq!(place.git(&["cat-file", "blob", &victim]), "file 0");
    place.git(&["fsck", "--no-dangling"]);
}

#[test]
fn s19_an_abandoned_sandbox_moves_no_branch_and_keeps_its_commits() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    let (shared, folder) = open(&place, &worktree, "lost");
    assert_eq!(shared.abandon_sandbox(&folder).expect("abandoned"), None, "it has no commits");
    let base = place.git(&["rev-parse", "work"]);
    let commit = commit_inside(&place, &folder, 1);
    let saved = shared.abandon_sandbox(&folder).expect("abandoned").expect("commits");
    assert_eq!((saved.commit, saved.name.as_str()), (commit, "refs/sprag/salvage/work"));
    assert_eq!(place.git(&["rev-parse", "work"]), base);
    assert!(is_whole(&place, "refs/sprag/salvage/work"));
}

#[test]
fn s19_a_branch_does_not_move_to_a_commit_that_is_not_whole() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    let base = place.git(&["rev-parse", "work"]);
    let (shared, folder) = open(&place, &worktree, "none");
    fs::write(folder.join("git/refs/heads/work"), format!("{:040}\n", 7)).expect("a ref");
    let error = shared.close_sandbox(&folder).expect_err("no such commit").to_string();
    assert!(error.contains("find all objects of the commits in"), "{error}");
    let (shared, folder) = open(&place, &worktree, "partial");
    let commit = commit_inside(&place, &folder, 1);
    let blob =
        git_inside(&place, &folder, &["rev-parse", &format!("{commit}:new1/3.txt")], &folder.join("index"));
    fs::remove_file(folder.join("git/objects").join(&blob[..2]).join(&blob[2..])).expect("a loose object");
    shared.close_sandbox(&folder).expect_err("an object is missing");
    assert_eq!(place.git(&["rev-parse", "work"]), base);
}

#[test]
fn s19_the_branches_of_a_sandbox_are_one_file() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    place.git(&["tag", "-a", "-m", "tag", "v1"]);
    place.git(&["branch", "old"]);
    place.git(&["pack-refs", "--all"]);
    let head = place.git(&["rev-parse", "main"]);
    let lines: String = (0..200).map(|number| format!("create refs/heads/b/{number} {head}\n")).collect();
    fs::write(place.path().join("lines"), lines).expect("a file");
    let script = format!("git update-ref --stdin < {}", place.path().join("lines").display());
    assert!(
        Command::new("sh").args(["-c", &script]).current_dir(place.repo()).status().expect("git").success()
    );
    place.git(&["commit", "--quiet", "--allow-empty", "--message=second"]);
    place.git(&["symbolic-ref", "refs/heads/link", "refs/heads/main"]);
    let (_, folder) = open(&place, &worktree, "many");
    let own = folder.join("git");
    assert_eq!(children(&own.join("refs/heads")), ["link"], "the name of another ref cannot be packed");
    // The step sees the objects at another path.
    fs::write(own.join("objects/info/alternates"), format!("{}\n", place.common().join("objects").display()))
        .unwrap();
    fs::write(own.join("HEAD"), "ref: refs/heads/work\n").expect("a file");
    let listed = |git_dir: &Path| git(git_dir, &["--git-dir=.", "for-each-ref", "refs/heads", "refs/tags"]);
    assert_eq!(listed(&own), listed(&place.common()));
}
