//! Landing on a branch that is checked out: files, index and branch move together, and no change of a user is
//! lost.

use std::{fs, path::Path, process::Command};

use sprag_worktree::{Blocked, Cancel, Kind, LandOptions, Obstacle, Worktree};

use crate::{common::*, helper, land::with_file};

fn land(worktree: &mut Worktree) -> Result<sprag_worktree::Landed, sprag_worktree::Error> {
    worktree.land(&LandOptions::new("work", "main"), &Cancel::default())
}

#[track_caller]
fn blocked<T: std::fmt::Debug>(result: Result<T, sprag_worktree::Error>) -> Blocked {
    match kind(result) {
        Kind::Blocked(blocked) => *blocked,
        other => panic!("{other}"),
    }
}

fn status(checkout: &Path) -> String {
    git(checkout, &["status", "--porcelain"])
}

#[test]
fn e01_a_landing_that_touches_a_users_changes_moves_nothing() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let mut worktree = with_file(&worktrees, "work", "dir0/file0.txt", "landed\n");
    let before = place.git(&["rev-parse", "main"]);
    let file = place.repo().join("dir0/file0.txt");
    for staged in [false, true] {
        fs::write(&file, "mine\n").expect("a file");
        if staged {
            place.git(&["add", "."]);
        }
        let said = status(&place.repo());
        let found = blocked(land(&mut worktree));
        assert_eq!(found.obstacle, Obstacle::Changes { files: vec!["dir0/file0.txt".to_owned()] });
        assert_eq!(found.checkout, Some(fs::canonicalize(place.repo()).expect("a folder")));
        assert_eq!((status(&place.repo()), place.git(&["rev-parse", "main"])), (said, before.clone()));
        assert_eq!(fs::read_to_string(&file).expect("a file"), "mine\n");
    }
    // The content to land is staged, and the file is changed further: the user's version stays.
    fs::write(&file, "landed\n").expect("a file");
    place.git(&["add", "."]);
    fs::write(&file, "landed\nand more\n").expect("a file");
    blocked(land(&mut worktree));
    // The content to land is already there: nothing is lost by replacing it.
    fs::write(&file, "landed\n").expect("a file");
    place.git(&["reset", "--quiet"]);
    land(&mut worktree).expect("the same text is not in the way");
    assert!(is_clean(&place.repo()));
}

#[test]
fn e01_folders_and_files_in_the_way_are_detected() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let mut worktree = create(&worktrees, "work", "work").expect("a worktree");
    fs::create_dir(worktree.path().join("new")).expect("a folder");
    fs::write(worktree.path().join("new/inner"), "x").expect("a file");
    // A file that becomes a folder, and a folder that becomes a file, are not obstacles.
    fs::remove_file(worktree.path().join("dir0/file0.txt")).expect("a file");
    fs::create_dir(worktree.path().join("dir0/file0.txt")).expect("a folder");
    fs::write(worktree.path().join("dir0/file0.txt/inner"), "x").expect("a file");
    worktree.commit_all("folders", &Cancel::default()).expect("committed");
    fs::write(place.repo().join("new"), "a file of the person's\n").expect("a file");
    let found = blocked(land(&mut worktree));
    assert_eq!(found.files(), ["new"]);
    fs::remove_file(place.repo().join("new")).expect("a file");
    fs::create_dir_all(place.repo().join("new/inner")).expect("a folder");
    fs::write(place.repo().join("new/inner/mine"), "x").expect("a file");
    assert_eq!(blocked(land(&mut worktree)).files(), ["new/inner"]);
    assert!(place.repo().join("new/inner/mine").exists());
    fs::remove_dir_all(place.repo().join("new")).expect("a folder");
    land(&mut worktree).expect("landed");
    assert!(is_clean(&place.repo()) && place.repo().join("dir0/file0.txt/inner").exists());
    let mut back = create(&worktrees, "back", "back").expect("a worktree");
    fs::remove_dir_all(back.path().join("new")).expect("a folder");
    fs::write(back.path().join("new"), "a file now").expect("a file");
    back.commit_all("files", &Cancel::default()).expect("committed");
    land(&mut back).expect("landed");
    assert!(is_clean(&place.repo()) && place.repo().join("new").is_file());
}

#[test]
fn e01_odd_names_modes_links_and_hidden_changes() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let mut worktree = create(&worktrees, "work", "work").expect("a worktree");
    for name in ["with space", "with\nnewline", "-dash", "ü \"quoted\"", "*star"] {
        fs::write(worktree.path().join(name), "x").expect("a file");
    }
    symlink("dir0", worktree.path().join("link")).expect("a link");
    fs::set_permissions(worktree.path().join("dir0/file1.txt"), fs::Permissions::from_mode(0o755))
        .expect("ours");
    worktree.commit_all("odd", &Cancel::default()).expect("committed");
    land(&mut worktree).expect("landed");
    assert!(is_clean(&place.repo()), "{}", status(&place.repo()));
    // A file that is marked as unchanged is a user's change too.
    place.git(&["update-index", "--assume-unchanged", "dir0/file0.txt"]);
    fs::write(place.repo().join("dir0/file0.txt"), "hidden\n").expect("a file");
    let mut hidden = with_file(&worktrees, "hidden", "dir0/file0.txt", "landed\n");
    let found = blocked(land(&mut hidden));
    assert!(found.files()[0].contains("dir0/file0.txt"), "{found:?}");
    assert_eq!(fs::read_to_string(place.repo().join("dir0/file0.txt")).expect("a file"), "hidden\n");
}

#[test]
fn e01_a_missing_checkout_blocks_a_landing_only_if_it_may_come_back() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let second = place.path().join("second");
    place.git(&["worktree", "add", "--quiet", "--force", second.to_str().expect("text"), "main"]);
    fs::rename(&second, place.path().join("away")).expect("ours");
    let mut worktree = with_file(&worktrees, "work", "one", "1");
    place.git(&["worktree", "lock", second.to_str().expect("text")]);
    assert_eq!(blocked(land(&mut worktree)).obstacle, Obstacle::Missing);
    place.git(&["worktree", "unlock", second.to_str().expect("text")]);
    land(&mut worktree).expect("a deleted checkout blocks nothing");
    assert!(is_clean(&place.repo()));
}

#[test]
fn e01_a_landing_works_without_a_checkout_of_the_branch() {
    let place = Place::new(5);
    let bare = place.path().join("bare.git");
    place.git(&["clone", "--quiet", "--bare", ".", bare.to_str().expect("text")]);
    let worktrees = open(&bare, &place.data(), settings());
    let mut worktree = with_file(&worktrees, "work", "one", "1");
    let landed = land(&mut worktree).expect("landed");
    assert!(landed.checkouts.is_empty());
    assert_eq!(git(&bare, &["rev-parse", "main"]), landed.commit);
}

#[test]
fn e01_submodules_of_a_checkout_follow_too() {
    let (place, config) = with_submodule();
    helper::run(with_config(helper::command(&place, "land-submodule"), &config)).expect("landed");
    assert!(is_clean(&place.repo()), "{}", status(&place.repo()));
    assert_eq!(fs::read_to_string(place.repo().join("sub/inner.txt")).expect("a file"), "changed in sub\n");
    // `git commit --all` takes the submodule as it is there, and so reverts nothing.
    fs::write(place.repo().join("mine"), "x").expect("a file");
    place.git(&["add", "mine"]);
    place.git(&["commit", "--quiet", "--all", "--message=mine"]);
    assert_eq!(place.git(&["show", "--format=", "--name-only"]), "mine");
}

#[test]
fn e01_a_submodule_with_a_users_changes_blocks_the_landing() {
    let (place, config) = with_submodule();
    fs::write(place.repo().join("sub/inner.txt"), "mine\n").expect("a file");
    let before = place.git(&["rev-parse", "main"]);
    let told =
        helper::run(with_config(helper::command(&place, "land-submodule"), &config)).expect_err("blocked");
    assert!(told.contains("Changes { files: [\"sub\"] }"), "{told}");
    assert_eq!(place.git(&["rev-parse", "main"]), before);
    assert_eq!(fs::read_to_string(place.repo().join("sub/inner.txt")).expect("a file"), "mine\n");
}

/// A git command that is running in the checkout while the branch would move.
#[test]
fn e01_a_landing_waits_for_a_users_git_command() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let mut worktree = with_file(&worktrees, "work", "one", "1");
    // As a `git stash` or a `git rebase` between two of its steps.
    let (begun, go) = (place.path().join("begun"), place.path().join("go"));
    let waits = format!("!touch {}; until [ -e {} ]; do sleep 0.01; done", begun.display(), go.display());
    let mut person = Command::new("git");
    person.args(["-c", &format!("alias.slow={waits}"), "slow"]).current_dir(place.repo());
    let mut person = person.spawn().expect("git");
    wait_for("the command", || begun.exists());
    let landed = std::thread::scope(|scope| {
        let landing = scope.spawn(|| land(&mut worktree));
        // The landing locks nothing and moves nothing while the command runs.
        for _ in 0..40 {
            assert!(!place.common().join("index.lock").exists());
            pause_ms(5);
        }
        fs::write(&go, "").expect("a file");
        landing.join().expect("no panic")
    });
    landed.expect("landed");
    assert!(person.wait().expect("ours").success());
}

fn with_config(mut command: Command, config: &Path) -> Command {
    command.env("GIT_CONFIG_GLOBAL", config);
    command
}
