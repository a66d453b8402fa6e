//! Removal: work is saved, writers are stopped, undeletable files are reported, and nothing else is changed.

use std::{fs, os::unix::process::CommandExt, process::Command};

use sprag_worktree::{BranchFate, BranchPolicy, Cancel, snapshot};

use crate::{common::*, helper};

#[test]
fn w15_removing_loses_no_work() {
    let place = Place::new(10);
    let worktrees = place.worktrees();
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    let path = worktree.path().to_owned();
    fs::write(path.join("dir0/file0.txt"), "changed\n").expect("a file");
    fs::remove_file(path.join("dir0/file1.txt")).expect("a file");
    fs::write(path.join("untracked"), "new").expect("a file");
    fs::write(path.join("staged"), "staged").expect("a file");
    git(&path, &["add", "staged"]);
    fs::create_dir(path.join("ignored")).expect("a folder");
    fs::write(path.join("ignored/cache"), "x").expect("a file");
    git(&path, &["commit", "--quiet", "--allow-empty", "--message=committed"]);
    fs::write(path.join("staged"), "changed again").expect("a file");
    let head = git(&path, &["rev-parse", "HEAD"]);
    let removed = remove(&worktrees, worktree);
    let salvaged = removed.salvaged.expect("saved");
    assert_eq!((salvaged.name.as_str(), salvaged.was_dirty), ("refs/sprag/salvage/work", true));
    assert_eq!(place.git(&["rev-parse", &format!("{}^", salvaged.commit)]), head);
    for (file, text) in [("dir0/file0.txt", "changed"), ("untracked", "new"), ("staged", "changed again")] {
        assert_eq!(place.git(&["show", &format!("{}:{file}", salvaged.name)]), text);
    }
    for file in ["dir0/file1.txt", "ignored/cache"] {
        assert!(
            !git_output(&place.repo(), &["cat-file", "-e", &format!("{}:{file}", salvaged.name)])
                .status
                .success()
        );
    }
    assert_eq!(removed.branch, BranchFate::Deleted);
    place.assert_nothing_left();
    // A second worktree of the same run saves beside the first.
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    fs::write(worktree.path().join("more"), "x").expect("a file");
    assert_eq!(remove(&worktrees, worktree).salvaged.expect("saved").name, "refs/sprag/salvage/work-2");
}

#[test]
fn branches_are_deleted_only_if_ours_and_merged_or_saved() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let no = Cancel::default();
    let with_commit = |run: &str| {
        let worktree = create(&worktrees, run, run).expect("a worktree");
        git(worktree.path(), &["commit", "--quiet", "--allow-empty", &format!("--message={run}")]);
        worktree
    };
    let removed =
        worktrees.remove(with_commit("unmerged"), BranchPolicy::DeleteIfMerged, &no).expect("removed");
    assert!(matches!(&removed.branch, BranchFate::Kept(why) if why.contains("not merged")), "{removed:?}");
    assert_eq!(removed.salvaged, None, "the branch holds it");
    let repository = worktrees.repository();
    assert!(matches!(repository.delete_merged_branch("unmerged").expect("looked at"), BranchFate::Kept(_)));
    place.git(&["merge", "--quiet", "--ff-only", "unmerged"]);
    assert_eq!(repository.delete_merged_branch("unmerged").expect("looked at"), BranchFate::Deleted);
    let removed = worktrees.remove(with_commit("saved"), BranchPolicy::Delete, &no).expect("removed");
    assert_eq!(removed.branch, BranchFate::Deleted);
    assert!(removed.salvaged.is_some_and(|salvaged| !salvaged.was_dirty));
    place.git(&["branch", "theirs"]);
    assert!(matches!(repository.delete_merged_branch("theirs").expect("looked at"), BranchFate::Kept(_)));
    let mut existing = options("theirs", "theirs");
    existing.branch = sprag_worktree::Branch::Existing("theirs".to_owned());
    let worktree = worktrees.create(&existing, &no).expect("a worktree");
    assert!(matches!(remove(&worktrees, worktree).branch, BranchFate::Kept(_)));
    place.git(&["rev-parse", "--verify", "theirs"]);
}

#[test]
fn merged_branches_are_those_that_would_be_deleted() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let no = Cancel::default();
    let repository = worktrees.repository();
    let names =
        ["at-main", "in-main", "alone", "below", "above", "twin", "other-twin", "tagged", "saved", "used"];
    for name in names {
        let worktree = create(&worktrees, name, name).expect("a worktree");
        if name != "at-main" {
            git(worktree.path(), &["commit", "--quiet", "--allow-empty", &format!("--message={name}")]);
        }
        worktrees.remove(worktree, BranchPolicy::Keep, &no).expect("removed");
    }
    place.git(&["merge", "--quiet", "--ff-only", "in-main"]);
    place.git(&["update-ref", "refs/heads/other-twin", "twin"]);
    place.git(&["tag", "--annotate", "--message=x", "v1", "tagged"]);
    place.git(&["update-ref", "refs/sprag/salvage/x", "saved"]);
    place.git(&["worktree", "add", "--quiet", "../used", "used"]);
    place.git(&["tag", "used-too", "used"]);
    place.git(&["branch", "theirs"]);
    let above = place.git(&["commit-tree", "-p", "below", "-m", "above", "below^{tree}"]);
    place.git(&["update-ref", "refs/heads/above", &above]);
    let all = || names.into_iter().chain(["theirs", "missing", "main"]).map(str::to_owned).collect();
    let expected = ["at-main", "below", "in-main", "other-twin", "saved", "tagged", "twin"];
    for packed in [false, true] {
        let merged = repository.merged_branches(all()).expect("looked for");
        assert_eq!(merged.iter().map(String::as_str).collect::<Vec<_>>(), expected, "packed: {packed}");
        place.git(&["pack-refs", "--all"]);
    }
    // Without a main branch to compare with.
    place.git(&["checkout", "--quiet", "--detach"]);
    let merged = repository.merged_branches(all()).expect("looked for");
    assert_eq!(merged.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    place.git(&["checkout", "--quiet", "main"]);
    let deleted: Vec<String> = Vec::from_iter::<std::collections::BTreeSet<String>>(all())
        .into_iter()
        .filter(|name| repository.delete_merged_branch(name).expect("looked at") == BranchFate::Deleted)
        .collect();
    // The last of two branches on one commit stays.
    assert_eq!(deleted, ["at-main", "below", "in-main", "other-twin", "saved", "tagged"]);
}

#[test]
fn e01_the_lock_of_a_dead_git_does_not_keep_a_merged_branch() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    worktrees.remove(worktree, BranchPolicy::Keep, &Cancel::default()).expect("removed");
    let lock = place.common().join("refs/heads/work.lock");
    let file = fs::File::create(&lock).expect("a file");
    // It may belong to a git that works.
    let error = worktrees.repository().delete_merged_branch("work").expect_err("locked");
    assert!(matches!(error.kind, sprag_worktree::Kind::StaleGitLock { .. }), "{error}");
    assert!(lock.exists());
    file.set_modified(std::time::UNIX_EPOCH).expect("ours");
    assert_eq!(worktrees.repository().delete_merged_branch("work").expect("deleted"), BranchFate::Deleted);
    assert!(!lock.exists());
}

#[test]
fn wt18_an_active_writer_is_stopped_before_the_removal() {
    let place = Place::new(10);
    let worktrees = place.worktrees();
    for round in 0..4 {
        let worktree = create(&worktrees, "work", "work").expect("a worktree");
        let path = worktree.path().to_owned();
        let mut writer = Command::new("sh");
        worktree.prepare(writer.args([
            "-c",
            "trap '' TERM; i=0; while [ $i -lt 60000 ]; do mkdir -p ignored/$i; echo x > ignored/$i/f; i=$((i+1)); done",
        ]));
        let mut writer = writer.process_group(0).spawn().expect("a writer");
        wait_for("the writer", || path.join("ignored/3").exists());
        let removed = remove(&worktrees, worktree);
        assert!(removed.leftovers.is_empty(), "{round}: {removed:?}");
        assert!(!is_running(writer.id() as i32) && !path.exists());
        // The process that stopped it may have reaped it as well.
        let _ = writer.wait();
    }
    place.assert_nothing_left();
}

#[test]
fn wt19_w11_an_undeletable_file_is_reported_with_a_remedy_and_blocks_no_other_run() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    fs::create_dir(worktree.path().join("ignored")).expect("a folder");
    let file = worktree.path().join("ignored/stuck");
    fs::write(&file, "x").expect("a file");
    let chattr = |how: &str, path: &std::path::Path| {
        Command::new("chattr").arg(how).arg(path).output().is_ok_and(|output| output.status.success())
    };
    if !chattr("+i", &file) {
        println!("skipped: files cannot be made undeletable here");
        return;
    }
    let failures = snapshot().cleanup_failures;
    let removed = remove(&worktrees, worktree);
    let [leftover] = removed.leftovers.as_slice() else { panic!("{removed:?}") };
    let stuck = leftover.path.join("ignored/stuck");
    assert!(leftover.remedy.contains("rm -rf") && leftover.reason.contains("stuck"), "{leftover:?}");
    assert!(snapshot().cleanup_failures > failures);
    let next = create(&worktrees, "next", "work").expect("the branch is free");
    assert!(!recover(&worktrees).leftovers.is_empty(), "tried again");
    assert!(chattr("-i", &stuck));
    assert!(recover(&worktrees).leftovers.is_empty());
    remove(&worktrees, next);
    place.assert_nothing_left();
}

#[test]
fn wt20_folders_without_write_permission_are_deleted() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new(5);
    // Root may write anywhere, so another user does it.
    const NOBODY: u32 = 65_534;
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    fs::create_dir_all(place.data()).expect("a folder");
    let chown = Command::new("chown").args(["-R", "65534:65534"]).arg(place.path()).status();
    if !chown.is_ok_and(|status| status.success()) {
        println!("skipped: only root can become another user");
        return;
    }
    let mut command = helper::command(&place, "remove-readonly");
    command.uid(NOBODY).gid(NOBODY).env("HOME", place.path());
    match helper::run(command) {
        Ok(()) => {}
        Err(said) if said.contains("Permission denied (os error 13)") && said.contains("execute") => {
            println!("skipped: {said}")
        }
        Err(said) => panic!("{said}"),
    }
}

#[test]
fn wt21_a_worktree_without_its_git_file_is_still_removable() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    fs::write(worktree.path().join("precious"), "x").expect("a file");
    fs::remove_file(worktree.path().join(".git")).expect("ours");
    let removed = remove(&worktrees, worktree);
    assert!(removed.salvaged.is_some() && removed.leftovers.is_empty(), "{removed:?}");
    place.assert_nothing_left();
}

#[test]
fn wt37_changes_of_a_run_to_shared_state_are_reported() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let quiet = create(&worktrees, "quiet", "quiet").expect("a worktree");
    assert_eq!(remove(&worktrees, quiet).warnings, Vec::<String>::new());
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    fs::write(worktree.path().join("dir0/file0.txt"), "changed").expect("a file");
    git(worktree.path(), &["stash"]);
    git(worktree.path(), &["config", "sprag.test", "1"]);
    let warnings = remove(&worktrees, worktree).warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("stash") && warnings[1].contains("config"), "{warnings:?}");
}

#[test]
fn wt38_cleaning_the_main_checkout_cannot_reach_our_worktrees() {
    let place = Place::new(5);
    // Even with the data directory inside of it, and without its being ignored there.
    fs::write(place.repo().join(".gitignore"), "").expect("a file");
    let worktrees = open(&place.repo(), &place.repo().join("data"), settings());
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    fs::write(worktree.path().join("precious"), "x").expect("a file");
    place.git(&["clean", "-ffdq"]);
    assert!(worktree.path().join("precious").exists());
    assert!(worktree.path().join("dir0/file0.txt").exists());
}

#[test]
fn w15_a_repository_inside_of_a_worktree_is_not_lost() {
    let place = Place::new(3);
    let worktrees = place.worktrees();
    for has_commit in [true, false] {
        let worktree = create(&worktrees, "work", "work").expect("a worktree");
        let nested = worktree.path().join("nested");
        init(&nested, 1);
        if !has_commit {
            fs::remove_dir_all(nested.join(".git")).expect("ours");
            git(&nested, &["init", "--quiet"]);
        }
        let error =
            worktrees.remove(worktree, BranchPolicy::Delete, &Cancel::default()).expect_err("refused");
        assert!(error.to_string().contains("is a separate repository"), "{error}");
        assert!(nested.join("dir0/file0.txt").exists());
        let recovered = recover(&worktrees);
        assert!(recovered.removed.is_empty() && !recovered.skipped.is_empty(), "{recovered:?}");
        fs::rename(&nested, place.path().join(format!("saved-{has_commit}"))).expect("ours");
        // A lock that another test's child process has inherited for a moment counts as held, so check again.
        let removed = (0..50).find_map(|_| {
            let gone = recover(&worktrees).removed.len();
            std::thread::park_timeout(std::time::Duration::from_millis(if gone == 0 { 20 } else { 0 }));
            (gone > 0).then_some(gone)
        });
        assert_eq!(removed, Some(1));
        place.assert_nothing_left();
    }
}

#[test]
fn w15_commits_and_files_in_a_submodule_are_saved_in_its_own_repository() {
    for checked_out in [true, false] {
        let (place, config) = with_submodule();
        let modules = place.common().join("modules/sub");
        if !checked_out {
            // Only the run has the submodule: then the repository itself stores its work.
            place.git(&["submodule", "deinit", "--quiet", "--force", "sub"]);
            fs::remove_dir_all(&modules).expect("ours");
        }
        let keeper = if checked_out { modules } else { place.common() };
        let mut command = helper::command(&place, "leave-submodule");
        command.env("GIT_CONFIG_GLOBAL", &config);
        helper::run(command).expect("saved, and begun with again");
        let saved = |path: &str| git(&keeper, &["show", &format!("refs/sprag/salvage/work-sub:{path}")]);
        assert_eq!((saved("inner.txt"), saved("new.txt")), ("changed".to_owned(), "untracked".to_owned()));
        let listed =
            git(&keeper, &["for-each-ref", "--format=%(refname) %(contents:subject)", "refs/sprag/salvage/"]);
        assert!(listed.contains(" on a branch"), "{listed}");
        // The commits that the repository's own ref names exist.
        let named = place.git(&["rev-parse", "refs/sprag/salvage/work:sub"]);
        git(&keeper, &["cat-file", "-e", &named]);
        assert_eq!(git(&keeper, &["show", &format!("{named}:inner.txt")]), "committed");
        // All these refs are listed, and are deleted on request.
        let repository = sprag_worktree::Repository::discover(&place.repo()).expect("a repository");
        let refs = repository.run_refs().expect("listed");
        assert!(
            refs.iter()
                .filter(
                    |kept| kept.run == "work" && kept.git_dir.ends_with(keeper.file_name().expect("a name"))
                )
                .count()
                >= 2
        );
        repository.delete_run_refs(&refs).expect("deleted");
        assert_eq!(git(&keeper, &["for-each-ref", "refs/sprag/salvage/"]), "");
    }
}
