//! Landing: onto a moving target, verified, fenced, and without losing a user's changes.

use std::{
    cell::Cell,
    fs,
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use sprag_worktree::{Cancel, Kind, LandOptions, Push, PushFate, Strategy, Worktree, Worktrees};

use crate::common::*;

pub fn with_file(worktrees: &Worktrees, run: &str, file: &str, text: &str) -> Worktree {
    let worktree = create(worktrees, run, run).expect("a worktree");
    commit_file(worktree.path(), file, text);
    worktree
}

/// Returns a repository that can be pushed to, and a clone of it.
fn remote_and_clone() -> (Place, Place) {
    let remote = Place::new(3);
    remote.git(&["config", "receive.denyCurrentBranch", "ignore"]);
    let place = Place { folder: tempfile::tempdir().expect("a folder") };
    git(place.path(), &["clone", "--quiet", remote.repo().to_str().expect("text"), "repo"]);
    place.git(&["config", "user.name", "Somebody"]);
    place.git(&["config", "user.email", "somebody@example.com"]);
    (remote, place)
}

/// Adds an empty commit to the remote's branch, and returns it.
fn commit_to(remote: &Place, message: &str) -> String {
    let tree = remote.git(&["rev-parse", "main^{tree}"]);
    let commit = remote.git(&["commit-tree", "-p", "main", "-m", message, &tree]);
    remote.git(&["update-ref", "refs/heads/main", &commit]);
    commit
}

/// Moves the remote's branch during each verification until the landing gives up, and returns the attempts.
fn land_on_a_remote_that_never_holds_still(patience: Duration) -> u32 {
    let (remote, place) = remote_and_clone();
    let worktrees = place.worktrees();
    let mut worktree = with_file(&worktrees, "work", "one", "1");
    let before = place.git(&["rev-parse", "main"]);
    let moves = Cell::new(0);
    let verify = |_: &Path| {
        moves.set(moves.get() + 1);
        commit_to(&remote, &format!("m{}", moves.get()));
        Ok(())
    };
    let mut options = LandOptions::new("work", "main");
    options.verify = Some(&verify);
    options.push = Some(Push { remote: "origin".to_owned(), required: true });
    options.patience = patience;
    let error = worktree.land(&options, &Cancel::default()).expect_err("it never holds still");
    let Kind::TargetMoved { tries, .. } = error.kind else { panic!("{error}") };
    assert_eq!(place.git(&["rev-parse", "main"]), before);
    let theirs = remote.git(&["rev-list", "--count", "main"]);
    assert_eq!(theirs, (1 + moves.get()).to_string(), "all of theirs stay");
    assert!(is_clean(worktree.path()));
    tries
}

pub fn commit_file(checkout: &Path, file: &str, text: &str) {
    fs::write(checkout.join(file), text).expect("a file");
    git(checkout, &["add", file]);
    git(checkout, &["commit", "--quiet", &format!("--message={file}: {text}")]);
}

#[test]
fn each_strategy_lands_on_a_target_that_moved_and_updates_a_clean_checkout() {
    for (strategy, parents, commits) in
        [(Strategy::Rebase, 1, 4), (Strategy::Merge, 2, 5), (Strategy::Squash, 1, 3)]
    {
        let place = Place::new(5);
        let worktrees = place.worktrees();
        let mut worktree = with_file(&worktrees, "work", "one", "1");
        commit_file(worktree.path(), "two", "2");
        commit_file(&place.repo(), "theirs", "x");
        let before = place.git(&["rev-parse", "main"]);
        let verify = |path: &Path| -> Result<(), String> {
            let all = ["one", "two", "theirs"].iter().all(|file| path.join(file).exists());
            if all { Ok(()) } else { Err("a file is missing".to_owned()) }
        };
        let mut options = LandOptions::new("work", "main");
        options.strategy = strategy;
        options.verify = Some(&verify);
        options.message = "What it does".to_owned();
        let landed = worktree.land(&options, &Cancel::default()).expect("landed");
        assert_eq!((landed.before.as_str(), landed.moved), (before.as_str(), true));
        assert_eq!(place.git(&["rev-parse", "main"]), landed.commit);
        assert_eq!(place.git(&["rev-list", "--count", "main"]), commits.to_string(), "{strategy:?}");
        assert_eq!(place.git(&["show", "--no-patch", "--format=%P", "main"]).split(' ').count(), parents);
        if strategy != Strategy::Rebase {
            assert_eq!(place.git(&["log", "-1", "--format=%s", "main"]), "What it does");
        }
        assert_eq!(landed.checkouts, [fs::canonicalize(place.repo()).expect("a folder")]);
        assert!(is_clean(&place.repo()) && place.repo().join("two").exists());
        assert!(is_clean(worktree.path()));
        assert_eq!(git(worktree.path(), &["branch", "--show-current"]), "work");
        // Landing again changes nothing.
        assert!(!worktree.land(&options, &Cancel::default()).expect("nothing to do").moved);
        remove(&worktrees, worktree);
        place.assert_nothing_left();
    }
}

#[test]
fn a_conflict_names_files_and_hunks_and_leaves_the_worktree_as_it_was() {
    for strategy in [Strategy::Rebase, Strategy::Merge, Strategy::Squash] {
        let place = Place::new(5);
        let worktrees = place.worktrees();
        let mut worktree = with_file(&worktrees, "work", "fine", "x");
        commit_file(worktree.path(), "dir0/file0.txt", "ours\n");
        commit_file(&place.repo(), "dir0/file0.txt", "theirs\n");
        let before = (git(worktree.path(), &["rev-parse", "HEAD"]), place.git(&["rev-parse", "main"]));
        fs::write(worktree.path().join("untracked"), "stays").expect("a file");
        let mut options = LandOptions::new("work", "main");
        options.strategy = strategy;
        let error = worktree.land(&options, &Cancel::default()).expect_err("a conflict");
        let Kind::Conflict { files, hunks } = &error.kind else { panic!("{error}") };
        assert_eq!(files, &["dir0/file0.txt"], "{strategy:?}");
        assert!(hunks.contains("ours") && hunks.contains("theirs") && hunks.contains("<<<<<<<"), "{hunks}");
        assert_eq!((git(worktree.path(), &["rev-parse", "HEAD"]), place.git(&["rev-parse", "main"])), before);
        assert_eq!(git(worktree.path(), &["branch", "--show-current"]), "work");
        assert_eq!(git(worktree.path(), &["status", "--porcelain"]), "?? untracked");
        assert!(!git(worktree.path(), &["status"]).contains("in progress"));
    }
}

#[test]
fn a_failing_check_and_uncommitted_changes_land_nothing() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let mut worktree = with_file(&worktrees, "work", "one", "1");
    commit_file(&place.repo(), "theirs", "x");
    let before = (git(worktree.path(), &["rev-parse", "HEAD"]), place.git(&["rev-parse", "main"]));
    let verify = |_: &Path| Err("tests fail".to_owned());
    let mut options = LandOptions::new("work", "main");
    options.verify = Some(&verify);
    let error = worktree.land(&options, &Cancel::default()).expect_err("refused");
    assert!(matches!(&error.kind, Kind::VerifyFailed { message } if message == "tests fail"), "{error}");
    assert_eq!((git(worktree.path(), &["rev-parse", "HEAD"]), place.git(&["rev-parse", "main"])), before);
    fs::write(worktree.path().join("one"), "changed").expect("a file");
    let error =
        worktree.land(&LandOptions::new("work", "main"), &Cancel::default()).expect_err("uncommitted");
    assert!(matches!(&error.kind, Kind::Uncommitted { files } if files == &["one"]), "{error}");
    let nowhere = worktree.land(&LandOptions::new("work", "nowhere"), &Cancel::default());
    assert!(nowhere.is_err());
}

#[test]
fn a_moving_target_is_retried_until_the_deadline() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let mut worktree = with_file(&worktrees, "work", "one", "1");
    let moves = Cell::new(0);
    let moves_at_most = Cell::new(12);
    let verify = |_: &Path| {
        // A user who ignores the landing lock commits to the target.
        if moves.get() < moves_at_most.get() {
            moves.set(moves.get() + 1);
            let tree = place.git(&["rev-parse", "main^{tree}"]);
            let commit = place.git(&["commit-tree", "-p", "main", "-m", &format!("m{}", moves.get()), &tree]);
            place.git(&["update-ref", "refs/heads/main", &commit]);
        }
        Ok(())
    };
    let mut options = LandOptions::new("work", "main");
    options.verify = Some(&verify);
    let landed = worktree.land(&options, &Cancel::default()).expect("landed");
    assert_eq!((landed.moved, moves.get()), (true, 12), "a busy branch is waited for");
    assert_eq!(place.git(&["rev-list", "--count", "main"]), "14");
    commit_file(worktree.path(), "two", "2");
    moves_at_most.set(u32::MAX);
    options.patience = Duration::from_millis(500);
    let error = worktree.land(&options, &Cancel::default()).expect_err("it never holds still");
    assert!(matches!(error.kind, Kind::TargetMoved { tries: 2.., .. }), "{error}");
    assert!(is_clean(worktree.path()));
}

#[test]
fn a_fenced_off_run_cannot_land() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let repository = worktrees.repository();
    let mut worktree = with_file(&worktrees, "work", "one", "1");
    let before = place.git(&["rev-parse", "main"]);
    let mut options = LandOptions::new("work", "main");
    options.fence = Some(("work".to_owned(), 1));
    let error = worktree.land(&options, &Cancel::default()).expect_err("no fence yet");
    assert!(matches!(error.kind, Kind::Fenced { expected: 1, .. }), "{error}");
    repository.move_fence("work", None, 1).expect("the first");
    let other = repository.move_fence("work", None, 1);
    assert!(matches!(kind(other), Kind::Fenced { .. }));
    // Fenced off at the last moment: after the verification, before the target moves.
    let verify = |_: &Path| {
        repository.move_fence("work", Some(1), 2).expect("the second");
        Ok(())
    };
    options.verify = Some(&verify);
    let error = worktree.land(&options, &Cancel::default()).expect_err("fenced off");
    assert!(matches!(&error.kind, Kind::Fenced { expected: 1, found } if found == "2"), "{error}");
    assert_eq!(place.git(&["rev-parse", "main"]), before);
    options.fence = Some(("work".to_owned(), 2));
    options.verify = None;
    let landed = worktree.land(&options, &Cancel::default()).expect("the new owner lands");
    let fence = repository.fence("work").expect("read").expect("a fence");
    assert_eq!((fence.number, fence.landed), (2, vec![("main".to_owned(), landed.commit)]));
    repository.delete_fence("work").expect("deleted");
    assert_eq!(repository.fence("work").expect("read"), None);
}

#[test]
fn ten_concurrent_landings_all_succeed() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let made: Vec<_> =
        (0..10).map(|n| with_file(&worktrees, &format!("r{n}"), &format!("f{n}"), "x")).collect();
    std::thread::scope(|scope| {
        for mut worktree in made {
            scope.spawn(move || {
                let run = worktree.mark().run.clone();
                worktree.land(&LandOptions::new(&run, "main"), &Cancel::default()).expect("landed");
            });
        }
    });
    assert_eq!(place.git(&["rev-list", "--count", "main"]), "11");
    assert!((0..10).all(|n| place.repo().join(format!("f{n}")).exists()) && is_clean(&place.repo()));
    let recovered = recover(&worktrees);
    assert!(recovered.removed.iter().all(|removed| removed.salvaged.is_none()), "all is landed");
    place.assert_nothing_left();
}

/// A remote whose branch moves each time before the push arrives is given up in the end, and nothing has moved here.
#[test]
fn e01_a_remote_that_never_holds_still_is_given_up_after_a_bounded_time() {
    assert!((1..30).contains(&land_on_a_remote_that_never_holds_still(Duration::from_millis(500))));
}

#[test]
fn e01_a_remote_that_never_holds_still_is_given_up_after_thirty_pushes() {
    assert_eq!(land_on_a_remote_that_never_holds_still(Duration::from_secs(3_600)), 30);
}

/// A git that is killed leaves its lock files. Those on refs would stop every later landing and clean-up.
#[test]
fn e20_locks_that_a_killed_git_left_on_refs_block_nothing() {
    let (remote, place) = remote_and_clone();
    let worktrees = place.worktrees();
    let mut worktree = with_file(&worktrees, "work", "one", "1");
    let repository = worktrees.repository();
    let locks = ["packed-refs.new", "packed-refs.lock", "refs/sprag/remote/main.lock"];
    let locks = locks.map(|name| place.repo().join(".git").join(name));
    let leave = |is_old: bool| {
        for lock in &locks {
            fs::create_dir_all(lock.parent().expect("a folder")).expect("a folder");
            let file = fs::File::create(lock).expect("a lock");
            if is_old {
                file.set_modified(UNIX_EPOCH).expect("ours");
            }
        }
    };
    repository.move_fence("old", None, 1).expect("a fence");
    leave(true);
    repository.delete_fence("old").expect("the lock of packed refs is removed");
    let mut options = LandOptions::new("work", "main");
    options.push = Some(Push { remote: "origin".to_owned(), required: true });
    let landed = worktree.land(&options, &Cancel::default()).expect("the lock of the fetched ref is removed");
    assert_eq!((landed.push, landed.commit), (Some(PushFate::Pushed), remote.git(&["rev-parse", "main"])));
    assert!(locks.iter().all(|lock| !lock.exists()), "{locks:?}");
    // A git that still works may have a young lock.
    repository.move_fence("new", None, 1).expect("a fence");
    leave(false);
    let error = repository.delete_fence("new").expect_err("refs are locked");
    assert!(matches!(error.kind, Kind::StaleGitLock { .. }), "{error}");
    assert!(locks.iter().all(|lock| lock.exists()), "{locks:?}");
}

/// While another fetch writes the remote's new commits to the repository, newest first, git cannot tell whether a push
/// is a fast-forward, and fails without saying why.
#[test]
fn e01_a_push_beside_a_fetch_that_is_not_complete_is_retried() {
    let (remote, place) = remote_and_clone();
    let worktrees = place.worktrees();
    let mut worktree = with_file(&worktrees, "work", "one", "1");
    let tip = Cell::new(None);
    let verify = |_: &Path| {
        if tip.take().is_none() {
            commit_to(&remote, "older");
            let newest = commit_to(&remote, "newest");
            let object = format!(".git/objects/{}/{}", &newest[..2], &newest[2..]);
            let copy = place.repo().join(&object);
            fs::create_dir_all(copy.parent().expect("a folder")).expect("a folder");
            fs::copy(remote.repo().join(&object), copy).expect("copied");
        }
        tip.set(Some(remote.git(&["rev-parse", "main"])));
        Ok(())
    };
    let mut options = LandOptions::new("work", "main");
    options.verify = Some(&verify);
    options.push = Some(Push { remote: "origin".to_owned(), required: true });
    let landed = worktree.land(&options, &Cancel::default()).expect("landed");
    assert_eq!(remote.git(&["rev-parse", "main^"]), tip.take().expect("their commit"));
    assert_eq!(remote.git(&["rev-parse", "main"]), landed.commit);
    assert_eq!(place.git(&["rev-parse", "main"]), landed.commit);
}

#[test]
fn e01_a_push_never_forces_and_the_local_branch_follows_the_remote() {
    let (remote, place) = remote_and_clone();
    let worktrees = place.worktrees();
    let mut worktree = with_file(&worktrees, "work", "one", "1");
    let mut options = LandOptions::new("work", "main");
    options.push = Some(Push { remote: "origin".to_owned(), required: true });
    let landed = worktree.land(&options, &Cancel::default()).expect("landed");
    assert_eq!(landed.push, Some(PushFate::Pushed));
    assert_eq!(remote.git(&["rev-parse", "main"]), landed.commit);
    // A user pushes during the verification: their commit stays, and the work lands on top of it.
    let theirs = Cell::new(None);
    let verify = |_: &Path| {
        if theirs.take().is_none() {
            theirs.set(Some(commit_to(&remote, "theirs")));
            // A user's fetch must not make it look as if it had been landed on.
            place.git(&["fetch", "--quiet"]);
        } else {
            theirs.set(Some(remote.git(&["rev-parse", "main"])));
        }
        Ok(())
    };
    options.verify = Some(&verify);
    commit_file(worktree.path(), "two", "2");
    let landed = worktree.land(&options, &Cancel::default()).expect("landed");
    assert_eq!(remote.git(&["rev-parse", "main^"]), theirs.take().expect("their commit"));
    assert_eq!(
        (remote.git(&["rev-parse", "main"]), place.git(&["rev-parse", "main"])),
        (landed.commit.clone(), landed.commit)
    );
    assert!(is_clean(&place.repo()));
    // Pushed, and killed before the local branch moved: the next attempt completes it, without a second
    // verification.
    options.verify = None;
    commit_file(worktree.path(), "three", "3");
    let commit = git(worktree.path(), &["rev-parse", "HEAD"]);
    git(worktree.path(), &["push", "--quiet", "origin", "HEAD:main"]);
    let fails = |_: &Path| Err("verified twice".to_owned());
    options.verify = Some(&fails);
    let landed = worktree.land(&options, &Cancel::default()).expect("completed");
    assert_eq!((landed.commit, landed.moved), (commit.clone(), true));
    assert_eq!(place.git(&["rev-parse", "main"]), commit);
    assert!(is_clean(&place.repo()) && place.repo().join("three").exists());
    assert_eq!(place.git(&["for-each-ref", "refs/sprag/salvage"]), "");
}
