//! The pool: clean worktrees that are reused instead of created.

use std::fs;

use sprag_worktree::{BranchFate, BranchPolicy, Cancel, Parked, Settings, Worktrees, snapshot};

use crate::common::*;

fn park(worktrees: &Worktrees, worktree: sprag_worktree::Worktree, caches: &[&str]) -> Parked {
    let caches: Vec<String> = caches.iter().map(|&cache| cache.to_owned()).collect();
    worktrees.park(worktree, BranchPolicy::Delete, &caches, &Cancel::default()).expect("parked")
}

#[test]
fn a_parked_worktree_is_clean_renamed_and_on_its_new_branch() {
    let place = Place::new(50);
    let worktrees = place.worktrees();
    let mut worktree = create(&worktrees, "first", "first").expect("a worktree");
    let old = worktree.path().to_owned();
    fs::write(old.join("dir0/file0.txt"), "changed\n").expect("a file");
    fs::write(old.join("untracked"), "x").expect("a file");
    for folder in ["ignored/modules", "ignored/other"] {
        fs::create_dir_all(old.join(folder)).expect("a folder");
        fs::write(old.join(folder).join("file"), "x").expect("a file");
    }
    let files = ["dir0/file1.txt".to_owned(), "none".to_owned()];
    let key = worktree.setup_key(&files).expect("a key");
    assert_eq!(
        worktrees.repository().setup_key("main", &files).expect("a key"),
        key,
        "known before it is made"
    );
    worktree.set_prepared(Some(&key)).expect("recorded");
    let parked = park(&worktrees, worktree, &["ignored/modules"]);
    let Parked::Ready { salvaged, branch, .. } = parked else { panic!("{parked:?}") };
    assert_eq!(place.git(&["show", &format!("{}:untracked", salvaged.expect("saved").name)]), "x");
    assert_eq!(branch, BranchFate::Deleted);
    assert!(!old.exists());
    assert!(recover(&worktrees).removed.is_empty(), "a pooled worktree is not a leftover");
    place.git(&["worktree", "prune", "--expire=now"]);

    // The target has moved meanwhile.
    fs::write(place.repo().join("dir0/file2.txt"), "newer\n").expect("a file");
    place.git(&["commit", "--quiet", "--all", "--message=newer"]);
    let hits = snapshot().pool_hits;
    let mut second = options("second", "second");
    second.use_pool = true;
    let worktree = worktrees.create(&second, &Cancel::default()).expect("a worktree");
    assert!(worktree.from_pool && snapshot().pool_hits > hits);
    let path = worktree.path().to_owned();
    assert_eq!(path, worktrees.root().join("second"));
    assert!(is_clean(&path));
    assert_eq!(git(&path, &["branch", "--show-current"]), "second");
    assert_eq!(git(&path, &["rev-parse", "HEAD"]), place.git(&["rev-parse", "main"]));
    assert_eq!(fs::read_to_string(path.join("dir0/file2.txt")).expect("a file"), "newer\n");
    assert!(path.join("ignored/modules/file").exists(), "a declared cache stays");
    assert!(!path.join("ignored/other").exists(), "anything else does not");
    let same = worktree.setup_key(&files).expect("a key");
    assert_eq!(worktree.mark().setup_key, Some(same), "its setup can be skipped");
    let other = worktree.setup_key(&["dir0/file2.txt".to_owned()]).expect("a key");
    assert_ne!(worktree.mark().setup_key, Some(other));
    let listed = place.git(&["worktree", "list", "--porcelain"]);
    assert!(listed.contains(path.to_str().expect("text")), "{listed}");
    remove(&worktrees, worktree);
    place.assert_nothing_left();
}

#[test]
fn caches_are_visible_only_to_runs_with_the_same_key() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let take = |run: &str, key: Option<&str>| {
        let mut wanted = options(run, run);
        wanted.use_pool = true;
        wanted.cache_key = key.map(str::to_owned);
        worktrees.create(&wanted, &Cancel::default()).expect("a worktree")
    };
    let mut worktree = take("first", Some("one"));
    let cache = |worktree: &sprag_worktree::Worktree| worktree.path().join("ignored/cache/file");
    for (run, key, sees) in [
        ("same", Some("one"), true),
        ("other", Some("two"), false),
        ("none", None, false),
        ("back", Some("one"), false),
    ] {
        fs::create_dir_all(worktree.path().join("ignored/cache")).expect("a folder");
        fs::write(cache(&worktree), "x").expect("a file");
        worktree.set_prepared(Some("setup")).expect("recorded");
        park(&worktrees, worktree, &["ignored/cache"]);
        place.until_unowned();
        worktree = take(run, key);
        assert!(worktree.from_pool, "{run}");
        assert_eq!((cache(&worktree).exists(), worktree.mark().setup_key.is_some()), (sees, sees), "{run}");
        assert!(is_clean(worktree.path()));
    }
    remove(&worktrees, worktree);
    place.assert_nothing_left();
}

#[test]
fn the_pool_is_bounded_and_a_failed_take_leaves_it_intact() {
    let place = Place::new(10);
    let worktrees = place.worktrees_with(Settings { pool_size: 2, ..settings() });
    let made: Vec<_> =
        (0..3).map(|n| create(&worktrees, &format!("r{n}"), &format!("b{n}")).expect("a worktree")).collect();
    let parked: Vec<_> = made.into_iter().map(|worktree| park(&worktrees, worktree, &[])).collect();
    assert!(
        matches!(parked.as_slice(), [Parked::Ready { .. }, Parked::Ready { .. }, Parked::Removed(_)]),
        "{parked:?}"
    );
    place.git(&["branch", "taken"]);
    let mut taken = options("work", "taken");
    taken.use_pool = true;
    worktrees.create(&taken, &Cancel::default()).expect_err("the branch exists");
    for run in ["a", "b", "c"] {
        let mut options = options(run, run);
        options.use_pool = true;
        let worktree = worktrees.create(&options, &Cancel::default()).expect("a worktree");
        assert_eq!(worktree.from_pool, run != "c");
        assert!(is_clean(worktree.path()));
        std::mem::forget(worktree);
    }
    assert_eq!(worktrees.trim_pool(0).expect("trimmed"), 0);
}

#[test]
fn concurrent_takes_from_the_pool_succeed() {
    let place = Place::new(20);
    let worktrees = place.worktrees();
    let made: Vec<_> =
        (0..8).map(|n| create(&worktrees, &format!("r{n}"), &format!("b{n}")).expect("a worktree")).collect();
    for worktree in made {
        park(&worktrees, worktree, &[]);
    }
    let taken: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..12)
            .map(|number| {
                let worktrees = &worktrees;
                scope.spawn(move || {
                    let mut options = options(&format!("n{number}"), &format!("n{number}"));
                    options.use_pool = true;
                    worktrees.create(&options, &Cancel::default()).expect("a worktree")
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(taken.iter().filter(|worktree| worktree.from_pool).count(), 8);
    assert!(taken.iter().all(|worktree| is_clean(worktree.path())));
    for worktree in taken {
        remove(&worktrees, worktree);
    }
    place.assert_nothing_left();
}
