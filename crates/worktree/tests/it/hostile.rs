//! Foreign repositories and marks: git does not run with their settings, and nothing is removed because of
//! them.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use serde_json::Value;
use sprag_worktree::{Kind, Repository, Worktrees};

use crate::common::*;

/// Creates a bare repository inside the checkout, as a branch can contain one.
fn embedded(place: &Place) -> PathBuf {
    let bare = place.repo().join("vendor");
    git(&place.repo(), &["init", "--quiet", "--bare", "vendor"]);
    bare
}

#[test]
fn e04_a_bare_repository_in_a_checkout_is_not_used() {
    let place = Place::new(3);
    let bare = embedded(&place);
    fs::create_dir(bare.join("refs/deep")).expect("a folder");
    for path in [bare.clone(), bare.join("objects"), bare.join("refs/deep")] {
        let error = Repository::discover(&path).expect_err("it is part of a checkout");
        assert!(matches!(error.kind, Kind::EmbeddedRepository { .. }), "{}: {error}", path.display());
        assert!(error.to_string().contains("name the checkout that contains it"), "{error}");
    }
    let worktrees = place.worktrees();
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    for path in [worktree.path(), &place.common(), &place.repo().join("dir0")] {
        let found = Repository::discover(path).expect("the repository of the checkout");
        assert_eq!(found.common_dir(), place.common(), "{}", path.display());
    }
    remove(&worktrees, worktree);
    // Outside of any checkout it is an ordinary repository.
    let outside = place.path().join("outside.git");
    fs::rename(&bare, &outside).expect("moved");
    assert!(Repository::discover(&outside).expect("a bare repository").is_bare());
}

/// Returns the paths of a repository's entries.
fn entry(place: &Place) -> PathBuf {
    let folder = place.common().join("worktrees");
    let name = children(&folder).into_iter().find(|name| name.starts_with("sprag-")).expect("an entry");
    folder.join(name)
}

/// Changes the mark of an entry.
fn forge(entry: &Path, change: impl FnOnce(&mut Value)) {
    let path = entry.join("sprag.json");
    let mut mark: Value = serde_json::from_slice(&fs::read(&path).expect("a mark")).expect("a mark");
    change(&mut mark);
    fs::write(&path, mark.to_string()).expect("a mark");
}

#[track_caller]
fn assert_refused(worktrees: &Worktrees, path: &Path, run: &str, why: &str) {
    let error = worktrees.adopt_to_remove(path, run).expect_err("refused");
    assert!(matches!(error.kind, Kind::NotOurs { .. }), "{error}");
    assert!(error.to_string().contains(why), "{error}");
}

#[test]
fn e04_a_worktree_is_removed_only_if_run_root_and_place_match() {
    let place = Place::new(3);
    let worktrees = place.worktrees();
    let path = create(&worktrees, "work", "work").expect("a worktree").keep("look at it").expect("kept");
    let entry = entry(&place);
    let genuine = fs::read(entry.join("sprag.json")).expect("a mark");
    let restore = || fs::write(entry.join("sprag.json"), &genuine).expect("a mark");
    assert_refused(&worktrees, &path, "other", "it belongs to run work");
    let elsewhere = open(&place.repo(), &place.path().join("data-2"), settings());
    assert_refused(&elsewhere, &path, "work", "it belongs to the data directory");
    // A mark that names a folder outside, and one with `..`.
    let outside = place.path().join("outside");
    fs::create_dir(&outside).expect("a folder");
    fs::write(outside.join("precious"), "x").expect("a file");
    forge(&entry, |mark| mark["path"] = outside.display().to_string().into());
    assert_refused(&worktrees, &outside, "work", "it is not below");
    let dotted = place.data().join("../outside");
    forge(&entry, |mark| mark["path"] = dotted.display().to_string().into());
    assert_refused(&worktrees, &dotted, "work", "it is not below");
    let link = place.data().join("link");
    symlink(&outside, &link).expect("a link");
    forge(&entry, |mark| mark["path"] = link.display().to_string().into());
    assert_refused(&worktrees, &link, "work", "a symbolic link");
    // The folder of another worktree.
    restore();
    let other = create(&worktrees, "zother", "other").expect("a worktree").keep("look at it").expect("kept");
    forge(&entry, |mark| mark["path"] = other.display().to_string().into());
    assert_refused(&worktrees, &other, "work", "its `.git` leads to");
    restore();
    assert!(outside.join("precious").exists() && other.exists() && path.exists());
    let worktree = worktrees.adopt_to_remove(&path, "work").expect("its own");
    remove(&worktrees, worktree);
    assert!(!path.exists());
}

/// The clean-up of dead runs looks at every mark, so a forged one must not lead it to another folder.
#[test]
fn e04_clean_up_follows_no_forged_mark() {
    let place = Place::new(3);
    let worktrees = place.worktrees();
    let kept =
        |run: &str| create(&worktrees, run, run).expect("a worktree").keep("look at it").expect("kept");
    let path = kept("work");
    let forged = entry(&place);
    let genuine = fs::read(forged.join("sprag.json")).expect("a mark");
    let other = kept("zother");
    let outside = place.path().join("outside");
    fs::create_dir(&outside).expect("a folder");
    fs::write(outside.join("precious"), "x").expect("a file");
    let link = place.data().join("link");
    symlink(&outside, &link).expect("a link");
    for target in [&outside, &place.data().join("../outside"), &link, &other] {
        forge(&forged, |mark| {
            mark["path"] = target.display().to_string().into();
            mark["state"] = "ready".into();
        });
        // Only the forged entry belongs to a dead run.
        let recovered = worktrees.recover(&|mark| mark.run != "work").expect("recovered");
        let is_told = recovered.skipped.iter().any(|(path, _)| path == target);
        assert!(is_told && recovered.removed.is_empty(), "{}: {recovered:?}", target.display());
        assert!(outside.join("precious").exists() && other.join(".git").exists(), "{}", target.display());
        fs::write(forged.join("sprag.json"), &genuine).expect("a mark");
    }
    assert!(path.exists());
}
