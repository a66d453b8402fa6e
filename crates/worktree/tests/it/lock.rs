//! The repository's lock: waiting, deadlines, and release.

use std::time::{Duration, Instant};

use sprag_worktree::{Kind, Repository, snapshot};

use crate::{common::*, helper};

#[expect(clippy::disallowed_methods, reason = "the test measures real time")]
fn now() -> Instant {
    Instant::now()
}

#[test]
fn wt35_one_repository_has_one_lock_and_others_do_not_wait() {
    let place = Place::new(3);
    let other = Place::new(3);
    let linked = place.path().join("linked");
    place.git(&["worktree", "add", "--quiet", linked.to_str().expect("text")]);
    let symlink = place.path().join("symlink");
    std::os::unix::fs::symlink(place.repo(), &symlink).expect("a link");
    let here = Repository::discover(&place.repo()).expect("a repository");
    for path in [symlink, place.repo().join("dir0"), linked, place.common()] {
        let found = Repository::discover(&path).expect("a repository");
        assert_eq!(
            (found.identity(), found.common_dir()),
            (here.identity(), here.common_dir()),
            "{}",
            path.display()
        );
        let held = here.lock("first", Duration::from_secs(5)).expect("free");
        let second = std::thread::scope(|scope| {
            let second = scope.spawn(|| kind(found.lock("second", Duration::from_millis(50)).map(drop)));
            second.join().expect("no panic")
        });
        assert!(matches!(second, Kind::LockTimeout { .. }), "{second}");
        let elsewhere = Repository::discover(&other.repo()).expect("a repository");
        assert_ne!(elsewhere.identity(), here.identity());
        drop(elsewhere.lock("third", Duration::ZERO).expect("does not wait"));
        drop(held);
    }
}

#[test]
fn wt36_w06_a_timeout_names_the_holder_and_comes_in_time() {
    let place = Place::new(3);
    let worktrees = place.worktrees();
    let helper = helper::start(helper::command(&place, "hold-lock"));
    wait_for("the holder", || place.data().join("locked").exists());
    for deadline_ms in [0, 300, 700] {
        let began = now();
        let error =
            worktrees.repository().lock("late", Duration::from_millis(deadline_ms)).expect_err("held");
        let waited_ms = began.elapsed().as_millis() as u64;
        assert!(waited_ms >= deadline_ms && waited_ms <= deadline_ms + 100, "{deadline_ms}: {waited_ms}");
        let said = error.to_string();
        assert!(said.contains(&format!("run holder (pid {}", helper.0.id())), "{said}");
        assert!(said.contains(worktrees.repository().common_dir().to_str().expect("text")), "{said}");
    }
    let holder = worktrees.repository().lock_holder().expect("a holder");
    assert_eq!((holder.run.as_str(), holder.process.pid), ("holder", helper.0.id() as i32));
    assert!(snapshot().lock_timeouts >= 3);
}

#[test]
fn w05_a_killed_holder_or_a_panic_releases_the_lock() {
    let place = Place::new(3);
    let worktrees = place.worktrees();
    let mut helper = helper::start(helper::command(&place, "hold-lock"));
    wait_for("the holder", || place.data().join("locked").exists());
    helper.0.kill().expect("ours");
    helper.0.wait().expect("ours");
    drop(worktrees.repository().lock("next", Duration::from_secs(2)).expect("released by the kernel"));
    assert_eq!(worktrees.repository().lock_holder(), None);
    let repository = worktrees.repository().clone();
    let panicked = std::thread::spawn(move || {
        let _held = repository.lock("panics", Duration::from_secs(2)).expect("free");
        std::panic::resume_unwind(Box::new("as the test wants it"));
    });
    assert!(panicked.join().is_err());
    drop(worktrees.repository().lock("next", Duration::from_secs(2)).expect("released by the unwinding"));
}

#[test]
fn w16_the_lock_costs_next_to_nothing() {
    let place = Place::new(1);
    let worktrees = place.worktrees();
    let mut took: Vec<Duration> = (0..1_000)
        .map(|_| {
            let began = now();
            drop(worktrees.repository().lock("r", Duration::from_secs(1)).expect("free"));
            began.elapsed()
        })
        .collect();
    took.sort();
    // Machines that run tests are busy, so the median counts here, and the benchmark measures the rest.
    assert!(took[500] < Duration::from_micros(500), "{:?}", took[500]);
}

#[test]
fn wt27_a_slow_filter_or_hook_does_not_prolong_the_lock() {
    let place = Place::new(3);
    let worktrees = place.worktrees();
    let begun = place.path().join("begun");
    script(&place.common().join("hooks/post-checkout"), &format!("touch {}; sleep 1", begun.display()));
    let repository = Repository::discover(&place.repo()).expect("a repository");
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| create(&place.worktrees(), "slow", "slow").expect("a worktree"));
        wait_for("the hook", || begun.exists());
        drop(repository.lock("quick", Duration::from_millis(100)).expect("it is free"));
        assert!(!slow.is_finished());
        slow.join().expect("no panic");
    });
    drop(worktrees);
}
