//! Unusual names of branches, folders and runs.

use sprag_worktree::{Branch, BranchPolicy, Cancel, Kind};

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
        let log = place.git(&["reflog", "show", "--format=%gs", &format!("b{number}")]);
        let told: Vec<&str> = log.lines().collect();
        assert!(matches!(&told[..], [made] if made.starts_with("sprag: made for")), "{path:?}: {log}");
        let raw = std::fs::read_to_string(place.common().join(format!("logs/refs/heads/b{number}")));
        assert_eq!(raw.expect("a reflog").lines().count(), 1, "{path:?}");
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

#[test]
fn wt33_packed_branches_conflict_like_loose_ones() {
    let place = Place::new(3);
    let worktrees = place.worktrees();
    for branch in ["taken", "folder", "below/x"] {
        place.git(&["branch", branch]);
    }
    place.git(&["pack-refs", "--all"]);
    let error = create(&worktrees, "r1", "taken").expect_err("it is there");
    assert!(matches!(&error.kind, Kind::BranchExists { branch } if branch == "taken"), "{error}");
    for (branch, in_the_way) in [("folder/x", "folder"), ("below", "below/x")] {
        let error = create(&worktrees, "r2", branch).expect_err("in the way");
        assert!(
            matches!(&error.kind, Kind::BranchConflict { existing, .. } if existing == in_the_way),
            "{error}"
        );
    }
    place.git(&["branch", "-D", "taken", "folder", "below/x"]);
    place.assert_nothing_left();
}

#[test]
fn a_branch_equals_one_that_git_creates() {
    let place = Place::new(3);
    let worktrees = place.worktrees();
    // The log of an earlier branch of this name is not this one's.
    let log = place.repo().join(".git/logs/refs/heads/team/x");
    std::fs::create_dir_all(log.parent().expect("a folder")).expect("a folder");
    std::fs::write(&log, "left over\n").expect("a file");
    let made = create(&worktrees, "r1", "team/x").expect("a worktree");
    let tip = place.git(&["rev-parse", "refs/heads/team/x"]);
    assert_eq!(tip, place.git(&["rev-parse", "main"]));
    let told = place.git(&["reflog", "show", "--format=%H %gs", "team/x"]);
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(
        told.starts_with(tip.trim()) && told.contains("sprag: made for") && told.contains("r1"),
        "{told}"
    );
    place.git(&["fsck", "--strict", "--no-progress"]);
    place.git(&["pack-refs", "--all", "--prune"]);
    assert_eq!(place.git(&["rev-parse", "refs/heads/team/x"]), tip);
    worktrees.remove(made, BranchPolicy::Delete, &Cancel::default()).expect("removed");
    place.assert_nothing_left();
}

#[test]
fn a_hook_on_refs_can_refuse_a_branch() {
    let place = Place::new(3);
    let worktrees = place.worktrees();
    let hook = place.repo().join(".git/hooks/reference-transaction");
    std::fs::create_dir_all(hook.parent().expect("a folder")).expect("a folder");
    script(&hook, "! grep -q refs/heads/refused");
    create(&worktrees, "r1", "refused").expect_err("the hook refuses it");
    let made = create(&worktrees, "r2", "welcome").expect("a worktree");
    worktrees.remove(made, BranchPolicy::Delete, &Cancel::default()).expect("removed");
    place.assert_nothing_left();
}

#[test]
fn a_branch_that_git_creates_at_the_same_time_is_created_once() {
    const ROUNDS: usize = 60;
    let place = Place::new(3);
    let worktrees = place.worktrees();
    let (mut ours, mut theirs) = (0, 0);
    for round in 0..ROUNDS {
        let name = format!("race/{round}");
        let (made, git) = std::thread::scope(|scope| {
            let git = scope.spawn(|| {
                let branch = ["branch", "--quiet", &name, "main"];
                std::process::Command::new("git")
                    .args(branch)
                    .current_dir(place.repo())
                    .output()
                    .expect("git")
            });
            // Each of the two is first in some rounds.
            std::thread::park_timeout(std::time::Duration::from_micros(600 * (round as u64 % 16)));
            let made = create(&worktrees, &format!("r{round}"), &name);
            (made, git.join().expect("git").status.success())
        });
        assert_ne!(made.is_ok(), git, "{name} was created by both or by neither: {made:?}");
        match made {
            Ok(worktree) => {
                ours += 1;
                worktrees.remove(worktree, BranchPolicy::Delete, &Cancel::default()).expect("removed");
            }
            Err(error) => {
                theirs += 1;
                assert!(matches!(&error.kind, Kind::BranchExists { .. }), "{error}");
                place.git(&["branch", "-D", &name]);
            }
        }
    }
    println!("{ours} by us, {theirs} by git");
    place.assert_nothing_left();
}
