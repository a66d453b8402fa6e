//! All kinds of repositories, and their defects.

use std::fs;

use sprag_worktree::{Branch, Cancel, Kind, Repository};

use crate::{common::*, helper};

#[test]
fn wt07_a_remote_base_leaves_the_shared_config_alone() {
    let place = Place::new(5);
    let clone = Place { folder: tempfile::tempdir().expect("a folder") };
    let from = place.repo();
    git(clone.path(), &["clone", "--quiet", from.to_str().expect("text"), "repo"]);
    clone.git(&["config", "branch.autoSetupMerge", "always"]);
    let before = fs::read(clone.common().join("config")).expect("a file");
    let worktrees = clone.worktrees();
    let mut options = options("work", "work");
    options.base = "origin/main".to_owned();
    let worktree = worktrees.create(&options, &Cancel::default()).expect("a worktree");
    assert_eq!(fs::read(clone.common().join("config")).expect("a file"), before);
    assert_eq!(git(worktree.path(), &["rev-parse", "HEAD"]), place.git(&["rev-parse", "main"]));
}

#[test]
fn wt08_a_failed_create_leaves_nothing() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let mut unknown = options("work", "work");
    unknown.base = "nowhere".to_owned();
    let result = worktrees.create(&unknown, &Cancel::default());
    assert!(matches!(kind(result), Kind::UnknownBase { .. }));
    let cancelled = Cancel::default();
    cancelled.cancel();
    let result = worktrees.create(&options("work", "work"), &cancelled);
    assert!(matches!(kind(result), Kind::Cancelled));
    let mut refused = options("work", "work");
    refused.include = vec!["../secret".to_owned()];
    assert!(matches!(kind(worktrees.create(&refused, &Cancel::default())), Kind::IncludeRefused { .. }));
    for path in ["../outside", "a/b", "/tmp", "..", ".trash", ""] {
        let mut outside = options("work", "work");
        outside.path = path.into();
        let error = worktrees.create(&outside, &Cancel::default()).expect_err("outside");
        assert!(matches!(error.kind, Kind::PathOutside { .. }), "{path}: {error}");
    }
    place.assert_nothing_left();
    assert!(!place.path().join("outside").exists());
}

#[test]
fn wt22_wt23_stale_locks_of_git_do_not_stop_a_create_and_are_reported() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    for lock in ["packed-refs.lock", "config.lock"] {
        let path = place.common().join(lock);
        fs::write(&path, "").expect("a file");
        let worktree = create(&worktrees, "work", "work").expect("unaffected");
        assert_eq!(worktree.warnings.len(), 1, "{:?}", worktree.warnings);
        assert!(worktree.warnings[0].contains(lock) && worktree.warnings[0].contains("delete"));
        assert!(path.exists(), "it is not ours");
        fs::remove_file(&path).expect("ours");
        remove(&worktrees, worktree);
    }
    place.assert_nothing_left();
}

#[test]
fn wt25_submodules_are_checked_out_and_removed() {
    let inner = Place::new(0);
    fs::write(inner.repo().join("inner.txt"), "x").expect("a file");
    inner.git(&["add", "."]);
    inner.git(&["commit", "--quiet", "--message=inner"]);
    let place = Place::new(3);
    let url = inner.repo();
    place.git(&[
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "--quiet",
        "add",
        url.to_str().expect("text"),
        "sub",
    ]);
    place.git(&["commit", "--quiet", "--message=with a submodule"]);
    let config = place.path().join("gitconfig");
    fs::write(&config, "[protocol \"file\"]\n\tallow = always\n").expect("a file");
    let mut command = helper::command(&place, "create-submodules");
    command.env("GIT_CONFIG_GLOBAL", &config);
    helper::run(command).expect("created and removed");
    place.assert_nothing_left();
}

#[test]
fn wt26_a_required_filter_that_fails_is_rolled_back() {
    let place = Place::new(5);
    place.git(&["config", "filter.bad.smudge", "false"]);
    place.git(&["config", "filter.bad.required", "true"]);
    fs::create_dir_all(place.common().join("info")).expect("a folder");
    fs::write(place.common().join("info/attributes"), "*.txt filter=bad\n").expect("a file");
    let error = create(&place.worktrees(), "work", "work").expect_err("a failing filter");
    assert!(error.to_string().contains("smudge filter bad failed"), "{error}");
    place.assert_nothing_left();
}

#[test]
fn wt28_a_failing_post_checkout_hook_is_reported() {
    let place = Place::new(5);
    script(&place.common().join("hooks/post-checkout"), "echo no good >&2; exit 3");
    let error = create(&place.worktrees(), "work", "work").expect_err("a failing hook");
    assert!(matches!(error.kind, Kind::Hook { hook: "post-checkout", .. }), "{error}");
    assert!(error.to_string().contains("no good"), "{error}");
    place.assert_nothing_left();
    // A hook that succeeds runs in the worktree, with git's own arguments.
    script(
        &place.common().join("hooks/post-checkout"),
        "echo \"$@\" > ignored.env; git rev-parse HEAD >> ignored.env",
    );
    let worktree = create(&place.worktrees(), "work", "work").expect("a worktree");
    let told = fs::read_to_string(worktree.path().join("ignored.env")).expect("written by the hook");
    let head = place.git(&["rev-parse", "main"]);
    assert_eq!(told, format!("{} {head} 1\n{head}\n", "0".repeat(40)));
}

#[test]
fn wt29_a_partial_clone_whose_remote_is_away_fails_cleanly() {
    let place = Place::new(5);
    place.git(&["config", "uploadpack.allowFilter", "true"]);
    let clone = Place { folder: tempfile::tempdir().expect("a folder") };
    let url = format!("file://{}", place.repo().display());
    git(clone.path(), &["clone", "--quiet", "--no-checkout", "--filter=blob:none", &url, "repo"]);
    fs::rename(place.repo(), place.path().join("away")).expect("ours");
    let error = create(&clone.worktrees(), "work", "work").expect_err("the remote is away");
    assert!(matches!(error.kind, Kind::Git { .. }), "{error}");
    assert_eq!(clone.worktrees().repository().lock_holder(), None);
    clone.assert_nothing_left();
    fs::rename(place.path().join("away"), place.repo()).expect("ours");
    assert!(is_clean(create(&clone.worktrees(), "work", "work").expect("the remote is back").path()));
}

#[test]
fn wt30_a_repository_without_commits_is_a_clear_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = Place { folder };
    fs::create_dir(place.repo()).expect("a folder");
    place.git(&["init", "--quiet", "--initial-branch=main"]);
    for base in ["main", "HEAD"] {
        let mut options = options("work", "work");
        options.base = base.to_owned();
        let error = place.worktrees().create(&options, &Cancel::default()).expect_err("no commits");
        assert!(matches!(error.kind, Kind::NoCommits { .. }), "{error}");
        assert!(error.to_string().contains("make a first commit"), "{error}");
    }
    assert!(children(&place.common().join("worktrees")).is_empty());
}

#[test]
fn wt31_detached_shallow_and_bare_repositories_work() {
    let place = Place::new(5);
    place.git(&["commit", "--quiet", "--allow-empty", "--message=second"]);
    let mut detached = options("work", "unused");
    detached.branch = Branch::Detached;
    detached.base = "HEAD~1".to_owned();
    let worktrees = place.worktrees();
    let worktree = worktrees.create(&detached, &Cancel::default()).expect("a worktree");
    assert_eq!(git(worktree.path(), &["branch", "--show-current"]), "");
    assert_eq!(git(worktree.path(), &["rev-parse", "HEAD"]), place.git(&["rev-parse", "HEAD~1"]));
    git(worktree.path(), &["commit", "--quiet", "--allow-empty", "--message=on no branch"]);
    let head = git(worktree.path(), &["rev-parse", "HEAD"]);
    assert_eq!(remove(&worktrees, worktree).salvaged.expect("no branch holds it").commit, head);
    let url = format!("file://{}", place.repo().display());
    for args in [&["--depth=1"][..], &["--bare"]] {
        let clone = Place { folder: tempfile::tempdir().expect("a folder") };
        let all: Vec<&str> =
            ["clone", "--quiet"].iter().chain(args).chain(&[url.as_str(), "repo"]).copied().collect();
        git(clone.path(), &all);
        let worktrees = clone.worktrees();
        assert_eq!(worktrees.repository().is_bare(), args == ["--bare"]);
        let worktree = create(&worktrees, "work", "work").expect("a worktree");
        assert!(is_clean(worktree.path()), "{args:?}");
        // The HEAD of a bare repository is not a checkout.
        if args == ["--bare"] {
            let mut main = options("main", "main");
            main.branch = Branch::Existing("main".to_owned());
            drop(worktrees.create(&main, &Cancel::default()).expect("it is free"));
        }
        remove(&worktrees, worktree);
    }
}

#[test]
fn wt34_variables_that_lead_git_elsewhere_are_ignored() {
    let place = Place::new(5);
    let other = Place::new(1);
    let mut command = helper::command(&place, "create-and-remove");
    command.env("SPRAG_TEST_NAME", "leaked");
    command.env("GIT_DIR", other.common()).env("GIT_WORK_TREE", other.repo());
    command.env("GIT_INDEX_FILE", other.common().join("index")).env("GIT_COMMON_DIR", other.common());
    // The check in the helper runs git as a user would, and would be misled.
    command.env("SPRAG_TEST_ROUNDS", "0");
    helper::run(command).expect("not led astray");
    let mut command = helper::command(&place, "create");
    command.env("GIT_DIR", other.common()).env("GIT_WORK_TREE", other.repo());
    command.env("GIT_INDEX_FILE", place.path().join("index")).env("GIT_OBJECT_DIRECTORY", "/nonexistent");
    helper::run(command).expect("not led astray");
    assert!(is_clean(&place.data().join("work")));
    assert!(!place.path().join("index").exists());
    assert!(children(&other.common().join("worktrees")).is_empty());
    assert!(is_clean(&other.repo()));
}

#[test]
fn wt40_a_repository_of_another_user_is_reported_with_the_remedy() {
    let place = Place::new(1);
    let chown = std::process::Command::new("chown").args(["-R", "65534"]).arg(place.repo()).status();
    if !chown.is_ok_and(|status| status.success()) {
        println!("skipped: only root can give files away");
        return;
    }
    let error = match Repository::discover(&place.repo()) {
        Err(error) => error,
        Ok(_) => return println!("skipped: this git trusts every repository"),
    };
    assert!(matches!(error.kind, Kind::DubiousOwnership { .. }), "{error}");
    assert!(error.to_string().contains("safe.directory"), "{error}");
}

#[test]
fn a_path_outside_of_a_repository_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    for path in [folder.path().to_owned(), folder.path().join("missing")] {
        let error = Repository::discover(&path).expect_err("no repository");
        assert!(matches!(error.kind, Kind::NotARepository { .. }), "{error}");
        assert!(error.to_string().contains(path.to_str().expect("text")), "{error}");
    }
    git(folder.path(), &["init", "--quiet", "--ref-format=reftable"]);
    let error = Repository::discover(folder.path()).expect_err("not supported");
    assert!(matches!(error.kind, Kind::RefFormat { .. }), "{error}");
}
