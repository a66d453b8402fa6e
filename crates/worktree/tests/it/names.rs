//! Names of branches, folders and runs, however odd.

use sprag_worktree::{Branch, Cancel, Kind};

use crate::common::*;

#[test]
fn wt32_odd_names_of_folders_and_runs_work() {
    let longest = "x".repeat(255);
    let place = Place::new(3);
    let worktrees = place.worktrees();
    let paths = ["with blank", "ünïcödé", "new\nline", "quo'te\"", "-dash", "$HOME", longest.as_str()];
    for (number, path) in paths.into_iter().enumerate() {
        let mut options = options("run", &format!("b{number}"));
        path.clone_into(&mut options.run);
        options.path = path.into();
        let worktree = worktrees
            .create(&options, &Cancel::default())
            .unwrap_or_else(|error| panic!("{path:?}: {error}"));
        assert!(is_clean(worktree.path()), "{path:?}");
        std::fs::write(worktree.path().join("new"), "x").expect("a file");
        let checkpoint = worktree.checkpoint(path, path, &Cancel::default()).expect("recorded");
        assert_eq!(worktrees.repository().checkpoints(path).expect("listed"), [checkpoint]);
        let removed = remove(&worktrees, worktree);
        assert!(removed.leftovers.is_empty() && removed.salvaged.is_some(), "{path:?}: {removed:?}");
    }
    place.assert_nothing_left();
}

#[test]
fn wt32_branch_names_that_git_refuses_are_refused() {
    let place = Place::new(3);
    let worktrees = place.worktrees();
    let names = [
        "@", "-x", "x.lock", "", "a..b", "a b", "a~1", "HEAD", "@{-1}", "a/.b", "a/", "/a", "a//b",
        "a.lock/b",
    ];
    for name in names {
        for branch in [Branch::New(name.to_owned()), Branch::Existing(name.to_owned())] {
            let mut options = options("run", "unused");
            options.branch = branch;
            let error = worktrees.create(&options, &Cancel::default()).expect_err(name);
            assert!(matches!(&error.kind, Kind::BadBranchName { .. }), "{name}: {error}");
        }
    }
    for name in ["feature/ü", "a-b_c.d", "x@y"] {
        remove(&worktrees, create(&worktrees, "run", name).unwrap_or_else(|error| panic!("{name}: {error}")));
    }
    place.assert_nothing_left();
}

#[test]
fn wt33_a_branch_beside_one_of_its_folders_is_a_clear_conflict() {
    let place = Place::new(3);
    let worktrees = place.worktrees();
    place.git(&["branch", "feature"]);
    let error = create(&worktrees, "r1", "feature/x").expect_err("in the way");
    assert!(
        matches!(&error.kind, Kind::BranchConflict { branch, existing } if branch == "feature/x" && existing == "feature"),
        "{error}"
    );
    place.git(&["branch", "other/x"]);
    let error = create(&worktrees, "r2", "other").expect_err("in the way");
    assert!(matches!(&error.kind, Kind::BranchConflict { existing, .. } if existing == "other/x"), "{error}");
    place.git(&["branch", "-D", "feature", "other/x"]);
    place.assert_nothing_left();
}
