//! Recording and saving during a user's `git prune --expire=now`, and broken refs after one.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use sprag_worktree::{BranchPolicy, Cancel};

use crate::common::*;

/// The number of states recorded while a user prunes without a pause.
const STATES: usize = 25;

pub(crate) fn is_whole(place: &Place, name: &str) -> bool {
    git_output(&place.repo(), &["rev-list", "--objects", "--quiet", name]).status.success()
}

/// Does something while a user prunes in the main checkout repeatedly. Returns the number of prunes.
pub(crate) fn beside_prunes(place: &Place, work: impl FnOnce()) -> usize {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let pruner = scope.spawn(|| {
            let mut count = 0;
            while !done.load(Ordering::SeqCst) {
                git_output(&place.repo(), &["prune", "--expire=now"]);
                count += 1;
            }
            count
        });
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        done.store(true, Ordering::SeqCst);
        let count = pruner.join().expect("pruned");
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        count
    })
}

fn change(folder: &Path, number: usize) {
    for file in 0..5 {
        let inner = folder.join(format!("new{number}"));
        fs::create_dir_all(&inner).expect("a folder");
        fs::write(inner.join(format!("{file}.txt")), format!("{number} {file}\n")).expect("a file");
    }
}

#[test]
fn w15_checkpoints_and_saved_work_survive_a_concurrent_prune() {
    let place = Place::new(20);
    let worktrees = place.worktrees();
    let no = Cancel::default();
    let mut names = Vec::new();
    let prunes = beside_prunes(&place, || {
        let worktree = create(&worktrees, "work", "work").expect("a worktree");
        for number in 0..STATES {
            change(worktree.path(), number);
            let state = worktree.checkpoint("work", &format!("s{number}"), &no);
            names.push(state.unwrap_or_else(|error| panic!("{number}: {error}")).name);
        }
        for number in 1..=5 {
            let old = (number > 1).then_some(number - 1);
            worktrees.repository().move_fence("work", old, number).expect("moved");
        }
        change(worktree.path(), STATES);
        let removed = worktrees.remove(worktree, BranchPolicy::Delete, &no).expect("removed");
        names.push(removed.salvaged.expect("saved").name);
    });
    assert!(prunes > STATES, "the person pruned {prunes} times only");
    for name in &names {
        assert!(is_whole(&place, name), "an object of {name} is missing");
    }
    let fence = worktrees.repository().fence("work").expect("read").expect("a fence");
    assert_eq!(fence.number, 5);
    assert_eq!(worktrees.repository().broken_refs().expect("looked"), []);
    place.git(&["gc", "--quiet", "--prune=now"]);
    place.git(&["fsck", "--no-dangling"]);
}

/// The remains of an older version, or of one that was killed.
#[test]
fn broken_refs_are_found_and_deleted_and_intact_ones_stay() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    let no = Cancel::default();
    let mut lost = Vec::new();
    for (number, of) in ["", "^{tree}", ":new2/0.txt"].into_iter().enumerate() {
        change(worktree.path(), number);
        let state = worktree.checkpoint("work", &format!("s{number}"), &no).expect("recorded");
        lost.push((state.name.clone(), place.git(&["rev-parse", &format!("{}{of}", state.name)])));
    }
    fs::remove_dir_all(worktree.path().join("new2")).expect("ours");
    change(worktree.path(), 3);
    let whole = worktree.checkpoint("work", "whole", &no).expect("recorded");
    for (_, object) in &lost {
        let (folder, file) = object.split_at(2);
        fs::remove_file(place.common().join("objects").join(folder).join(file)).expect("a loose object");
    }
    assert!(!git_output(&place.repo(), &["gc", "--quiet"]).status.success(), "git cannot do with them");
    let broken = worktrees.repository().broken_refs().expect("looked");
    let mut names: Vec<&str> = broken.iter().map(|broken| broken.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, lost.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>());
    for one in &broken {
        worktrees.repository().delete_broken_ref(one).expect("deleted");
    }
    assert_eq!(worktrees.repository().broken_refs().expect("looked"), []);
    assert!(is_whole(&place, &whole.name));
    place.git(&["gc", "--quiet"]);
}
