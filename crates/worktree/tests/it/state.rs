//! Checkpoints: their content, what they leave alone, and restoring them.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use sprag_worktree::{Cancel, Kind};

use crate::common::*;

#[test]
fn a_checkpoint_holds_all_files_and_leaves_branch_index_and_stash_alone() {
    let place = Place::new(10);
    let worktrees = place.worktrees();
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    let path = worktree.path();
    fs::write(path.join("dir0/file0.txt"), "changed\n").expect("a file");
    fs::write(path.join("untracked"), "new").expect("a file");
    fs::write(path.join("staged"), "x").expect("a file");
    git(path, &["add", "staged"]);
    let before =
        (git(path, &["status", "--porcelain"]), git(path, &["rev-parse", "HEAD"]), place.git(&["show-ref"]));
    let checkpoint = worktree.checkpoint("work", "build", &Cancel::default()).expect("recorded");
    assert_eq!(checkpoint.name, "refs/sprag/runs/work/build");
    let refs = place
        .git(&["show-ref"])
        .lines()
        .filter(|line| !line.contains("refs/sprag"))
        .collect::<Vec<_>>()
        .join("\n");
    assert_eq!((git(path, &["status", "--porcelain"]), git(path, &["rev-parse", "HEAD"]), refs), before);
    for (file, text) in [("dir0/file0.txt", "changed"), ("untracked", "new"), ("staged", "x")] {
        assert_eq!(place.git(&["show", &format!("{}:{file}", checkpoint.name)]), text);
    }
    assert!(children(&entry_of(&place, "work")).iter().all(|name| !name.contains("sprag-index")));
}

/// Without retries about one in fifty of these checkpoints fails.
#[test]
fn a_checkpoint_succeeds_while_another_step_rewrites_and_removes_files() {
    const CHECKPOINTS: u32 = 200;
    let place = Place::new(10);
    let worktrees = place.worktrees();
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    let path = worktree.path().to_owned();
    fs::write(path.join("kept"), "kept").expect("a file");
    let done = AtomicBool::new(false);
    let rewrite = || {
        while !done.load(Ordering::Relaxed) {
            for name in 0..8 {
                fs::write(path.join(format!("scratch{name}")), "a line\n").expect("a file");
                if name % 2 == 0 {
                    fs::remove_file(path.join(format!("scratch{name}"))).expect("a file");
                }
            }
            // Steps write in bursts: git needs a moment in which no file changes.
            pause_ms(5);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(rewrite);
        let record = |n| {
            let step = format!("step{n}");
            worktree.checkpoint("work", &step, &Cancel::default()).map(|state| state.name)
        };
        let recorded: Vec<_> = (0..CHECKPOINTS).map(record).collect();
        done.store(true, Ordering::Relaxed);
        for state in recorded {
            let state = state.expect("recorded");
            assert_eq!(place.git(&["show", &format!("{state}:kept")]), "kept");
        }
    });
}

#[test]
fn a_checkpoint_is_restored_exactly() {
    let place = Place::new(10);
    let worktrees = place.worktrees();
    let no = Cancel::default();
    let mut worktree = create(&worktrees, "work", "work").expect("a worktree");
    let path = worktree.path().to_owned();
    fs::write(path.join("dir0/file0.txt"), "first\n").expect("a file");
    fs::write(path.join("untracked"), "first").expect("a file");
    fs::remove_file(path.join("dir0/file1.txt")).expect("a file");
    fs::create_dir(path.join("ignored")).expect("a folder");
    fs::write(path.join("ignored/cache"), "stays").expect("a file");
    let head = git(&path, &["rev-parse", "HEAD"]);
    let status = git(&path, &["status", "--porcelain"]);
    let first = worktree.checkpoint("work", "one", &no).expect("recorded");

    git(&path, &["add", "--all"]);
    git(&path, &["commit", "--quiet", "--message=later"]);
    fs::write(path.join("untracked"), "second").expect("a file");
    fs::create_dir(path.join("more")).expect("a folder");
    fs::write(path.join("more/later"), "x").expect("a file");
    git(&path, &["checkout", "--quiet", "--detach"]);
    // An aborted merge, and the lock of a killed git.
    fs::write(entry_of(&place, "work").join("MERGE_HEAD"), format!("{head}\n")).expect("ours");
    fs::write(entry_of(&place, "work").join("index.lock"), "").expect("ours");
    let second = worktree.checkpoint("work", "two", &no).expect("recorded");

    worktree.restore(&first, &no).expect("restored");
    assert_eq!(git(&path, &["rev-parse", "HEAD"]), head);
    assert_eq!(git(&path, &["branch", "--show-current"]), "work");
    assert_eq!(git(&path, &["status", "--porcelain"]), status);
    assert_eq!(fs::read_to_string(path.join("untracked")).expect("a file"), "first");
    assert_eq!(fs::read_to_string(path.join("ignored/cache")).expect("a file"), "stays");
    assert!(!path.join("more").exists());
    assert_eq!(worktree.checkpoint("work", "again", &no).expect("recorded").commit.len(), 40);
    let tree = |name: &str| place.git(&["rev-parse", &format!("{name}^{{tree}}")]);
    assert_eq!(tree("refs/sprag/runs/work/again"), tree(&first.commit));

    let repository = worktrees.repository();
    let diff = repository.diff(&first.commit, &second.name, &[], usize::MAX).expect("compared");
    let error = repository.diff(&first.commit, &second.name, &[], diff.len() - 1).expect_err("too long");
    assert!(matches!(error.kind, Kind::TooMuchOutput { .. }), "{error}");
    assert_eq!(repository.diff(&first.commit, &second.name, &[], diff.len()).expect("compared"), diff);
    assert!(diff.contains("+second") && diff.contains("more/later"), "{diff}");
    assert_eq!(repository.find_checkpoint("work", "two").expect("found"), second);
    assert_eq!(repository.checkpoints("work").expect("listed").len(), 3);
    assert_eq!(repository.delete_checkpoints("work").expect("deleted"), 3);
    assert!(repository.checkpoints("work").expect("listed").is_empty());
    assert!(matches!(kind(repository.find_checkpoint("work", "two")), Kind::NoSuchCheckpoint { .. }));
}

#[test]
fn a_run_can_start_from_another_ones_checkpoint() {
    let place = Place::new(10);
    let worktrees = place.worktrees();
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    fs::write(worktree.path().join("untracked"), "x").expect("a file");
    let checkpoint = worktree.checkpoint("work", "one", &Cancel::default()).expect("recorded");
    let mut fork = options("fork", "fork");
    fork.base = checkpoint.name;
    let fork = worktrees.create(&fork, &Cancel::default()).expect("a worktree");
    assert_eq!(fs::read_to_string(fork.path().join("untracked")).expect("a file"), "x");
}

#[test]
fn sparse_worktrees_hold_only_their_folders() {
    let place = Place::new(250);
    let worktrees = place.worktrees();
    let config = fs::read(place.common().join("config")).expect("a file");
    let mut options = options("work", "work");
    options.sparse = vec!["dir1".to_owned()];
    let worktree = worktrees.create(&options, &Cancel::default()).expect("a worktree");
    assert_eq!(children(worktree.path()), [".git", ".gitignore", "dir1"]);
    let mut status = std::process::Command::new("git");
    worktree.prepare(status.args(["status", "--porcelain"]));
    assert!(status.output().expect("git").stdout.is_empty());
    fs::write(worktree.path().join("dir1/new"), "x").expect("a file");
    let checkpoint = worktree.checkpoint("work", "one", &Cancel::default()).expect("recorded");
    let files = place.git(&["ls-tree", "-r", "--name-only", &checkpoint.commit]);
    assert_eq!(files.lines().count(), 252, "what is not checked out is not deleted");
    assert_eq!(fs::read(place.common().join("config")).expect("a file"), config);
    remove(&worktrees, worktree);
}
