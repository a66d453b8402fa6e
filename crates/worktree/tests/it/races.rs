//! Many creations at once, in one process and in several, beside users who run git themselves.

use std::{process::Command, sync::Barrier};

use sprag_worktree::{Branch, Cancel, Kind};

use crate::{common::*, helper};

const PROCESSES: usize = 10;
const THREADS: usize = 5;

fn many(place: &Place, process: usize) -> Command {
    let mut command = helper::command(place, "create-many");
    command.env("SPRAG_TEST_NAME", format!("p{process}")).env("SPRAG_TEST_THREADS", THREADS.to_string());
    command
}

/// Starts processes that create worktrees at once, and does something beside them until all have succeeded.
fn beside(place: &Place, fault: Option<&str>, mut something: impl FnMut()) {
    let helpers: Vec<helper::Helper> = (0..PROCESSES)
        .map(|process| {
            let mut command = many(place, process);
            command.envs(fault.map(|fault| ("SPRAG_WORKTREE_FAULT", fault)));
            helper::start(command)
        })
        .collect();
    for mut helper in helpers {
        let mut status = None;
        for _ in 0..60_000 {
            status = helper.0.try_wait().expect("a helper");
            if status.is_some() {
                break;
            }
            something();
        }
        let mut said = String::new();
        std::io::Read::read_to_string(&mut helper.0.stderr.take().expect("stderr"), &mut said).expect("text");
        assert!(status.is_some_and(|status| status.success()), "{status:?}: {said}");
    }
    let list = place.git(&["worktree", "list", "--porcelain"]);
    assert_eq!(list.lines().filter(|line| line.starts_with("worktree ")).count(), 1 + PROCESSES * THREADS);
    place.git(&["fsck", "--no-dangling"]);
}

#[test]
fn wt01_w02_fifty_creates_from_ten_processes_under_delays_all_succeed() {
    let place = Place::new(30);
    beside(&place, Some("delay:branch-made:5"), || pause_ms(5));
    for process in 0..PROCESSES {
        for thread in 0..THREADS {
            let path = place.data().join(format!("p{process}x{thread}"));
            let mine = std::fs::read_to_string(path.join("mine.txt")).expect("its file");
            assert_eq!(mine, format!("p{process}x{thread}"));
            assert_eq!(children(&path), [".git", ".gitignore", "dir0", "mine.txt"]);
        }
    }
}

#[test]
fn wt02_foreign_commands_never_see_a_partial_entry() {
    let place = Place::new(30);
    let mut failures = Vec::new();
    let mut rounds = 0;
    // Slow enough that the state can be observed, however busy the machine is.
    beside(&place, Some("delay:branch-made:20"), || {
        for args in [&["worktree", "list", "--porcelain"][..], &["log", "--all", "-1"], &["branch", "--list"]]
        {
            let output = git_output(&place.repo(), args);
            if !output.status.success() {
                failures.push(format!("{args:?}: {}", String::from_utf8_lossy(&output.stderr)));
            }
        }
        rounds += 1;
    });
    assert!(failures.is_empty(), "{failures:?}");
    assert!(rounds > 3, "only {rounds} looks");
}

#[test]
fn wt03_foreign_prune_beside_creates_loses_none() {
    let place = Place::new(30);
    beside(&place, None, || {
        git_output(&place.repo(), &["worktree", "prune", "--expire=now"]);
        // Succeeds only while it is empty, as in prune itself.
        let _ = std::fs::remove_dir(place.common().join("worktrees"));
    });
}

/// Lets twenty threads do the same at once, and counts the successes.
fn race<T: Send>(twenty: impl Fn(usize) -> Result<T, sprag_worktree::Error> + Sync) -> (Vec<T>, Vec<Kind>) {
    let start = Barrier::new(20);
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..20)
            .map(|number| {
                let (start, twenty) = (&start, &twenty);
                scope.spawn(move || {
                    start.wait();
                    twenty(number)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let (won, lost): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    let lost = lost.into_iter().filter_map(Result::err).map(|error| error.kind).collect();
    (won.into_iter().filter_map(Result::ok).collect(), lost)
}

#[test]
fn wt04_the_same_new_branch_twice_has_one_winner() {
    let place = Place::new(10);
    let worktrees = place.worktrees();
    let (won, lost) = race(|number| create(&worktrees, &format!("r{number}"), "same"));
    assert_eq!((won.len(), lost.len()), (1, 19));
    for kind in lost {
        // Which of the two depends on whether the winner was registered when the loser checked.
        let (Kind::BranchExists { branch } | Kind::BranchInUse { branch, .. }) = &kind else {
            panic!("{kind}");
        };
        assert_eq!(branch, "same");
    }
    assert!(is_clean(won[0].path()));
    assert_eq!(children(&place.common().join("worktrees")).len(), 1);
    assert_eq!(children(&place.data()).iter().filter(|name| !name.starts_with('.')).count(), 1);
}

#[test]
fn wt05_the_same_existing_branch_has_one_winner_and_the_error_names_it() {
    let place = Place::new(10);
    place.git(&["branch", "same"]);
    let worktrees = place.worktrees();
    let (won, lost) = race(|number| {
        let mut options = options(&format!("r{number}"), "same");
        options.branch = Branch::Existing("same".to_owned());
        worktrees.create(&options, &Cancel::default())
    });
    assert_eq!((won.len(), lost.len()), (1, 19));
    let winner = format!("run {}", won[0].mark().run);
    for kind in lost {
        assert!(
            matches!(&kind, Kind::BranchInUse { holder, path, .. } if *holder == winner && path == won[0].path()),
            "{kind}"
        );
    }
}

#[test]
fn wt06_the_same_path_has_one_winner_whose_files_are_intact() {
    let place = Place::new(10);
    let worktrees = place.worktrees();
    let (won, lost) = race(|number| {
        let mut options = options("same", &format!("b{number}"));
        options.run = format!("r{number}");
        worktrees.create(&options, &Cancel::default())
    });
    assert_eq!((won.len(), lost.len()), (1, 19));
    assert!(lost.iter().all(|kind| matches!(kind, Kind::PathExists { .. })), "{lost:?}");
    assert!(is_clean(won[0].path()));
    // The losers of the path left no branch.
    assert_eq!(place.git(&["branch", "--list", "b*"]).lines().count(), 1);
}

#[test]
fn w03_create_and_remove_from_processes_are_serialised() {
    let place = Place::new(10);
    let rounds = if is_nightly() { 200 } else { 20 };
    let helpers: Vec<_> = (0..8)
        .map(|process| {
            let mut command = helper::command(&place, "create-and-remove");
            command
                .env("SPRAG_TEST_NAME", format!("p{process}"))
                .env("SPRAG_TEST_ROUNDS", rounds.to_string());
            std::thread::spawn(move || helper::run(command))
        })
        .collect();
    for helper in helpers {
        helper.join().expect("no panic").expect("no error");
    }
    place.assert_nothing_left();
}

#[test]
fn w07_filters_that_hang_in_some_runs_do_not_stop_the_others() {
    let place = Place::new(2);
    let go = place.path().join("go");
    let hangs = format!(
        "case $PWD in *x0|*x1) i=0; while [ ! -e {} ] && [ $i -lt 6000 ]; do i=$((i+1)); sleep 0.01; done;; esac; cat",
        go.display()
    );
    script(&place.path().join("filter.sh"), &hangs);
    place.git(&["config", "filter.slow.smudge", place.path().join("filter.sh").to_str().expect("text")]);
    std::fs::create_dir_all(place.common().join("info")).expect("a folder");
    std::fs::write(place.common().join("info/attributes"), "*.txt filter=slow\n").expect("a file");
    let mut command = many(&place, 0);
    command.env("SPRAG_TEST_THREADS", "3");
    let mut helper = helper::start(command);
    wait_for("the run that does not hang", || place.data().join("p0x2/mine.txt").exists());
    assert!(!place.data().join("p0x0/mine.txt").exists());
    std::fs::write(&go, "").expect("a file");
    assert!(helper.0.wait().expect("ours").success());
}
