//! kill -9 at any point, and remains of other processes: the next process succeeds, and no work is lost.

use std::{fs, os::unix::process::CommandExt, process::Command};

use sprag_worktree::{Branch, Cancel, Kind, State};

use crate::{common::*, helper};

/// All fault points of a create, in order.
const CREATE_POINTS: [&str; 12] = [
    "owner-locked",
    "staging-made",
    "mark-written",
    "staged",
    "folder-staged",
    "folder-made",
    "locked",
    "branch-made",
    "published",
    "checked-out",
    "filled",
    "ready",
];

#[test]
fn wt09_w14_killed_at_any_of_twelve_points_the_next_create_on_that_branch_succeeds() {
    let place = Place::new(20);
    let worktrees = place.worktrees();
    for point in CREATE_POINTS {
        helper::killed_at(&place, "create", point);
        let worktree = create(&worktrees, "work", "work").unwrap_or_else(|error| panic!("{point}: {error}"));
        assert!(is_clean(worktree.path()), "{point}");
        remove(&worktrees, worktree);
        recover(&worktrees);
        place.assert_nothing_left();
    }
    assert_eq!(place.git(&["for-each-ref", "refs/sprag"]), "", "nothing was worth saving");
    place.git(&["fsck", "--no-dangling"]);
}

#[test]
fn wt09_killed_while_removing_parking_or_taking_from_the_pool_is_recovered() {
    for (job, points) in [
        ("remove", &["salvaged", "branch-released", "folder-moved", "moved-aside"][..]),
        ("park", &["parked"]),
        ("create-pooled", &["pool-marked", "pool-branch-made", "published", "checked-out"]),
    ] {
        for point in points {
            let place = Place::new(10);
            let worktrees = place.worktrees();
            let worktree = create(&worktrees, "work", "work").expect("a worktree");
            if job == "create-pooled" {
                let parked = worktrees.park(worktree, Default::default(), &[], &Cancel::default());
                assert!(matches!(parked, Ok(sprag_worktree::Parked::Ready { .. })), "{parked:?}");
                place.until_unowned();
            } else {
                fs::write(worktree.path().join("precious"), "x").expect("a file");
                drop(worktree);
            }
            helper::killed_at(&place, job, point);
            recover(&worktrees);
            let worktree =
                create(&worktrees, "work", "work").unwrap_or_else(|error| panic!("{job} {point}: {error}"));
            assert!(is_clean(worktree.path()), "{job} {point}");
            remove(&worktrees, worktree);
            worktrees.trim_pool(0).expect("trimmed");
            recover(&worktrees);
            place.assert_nothing_left();
            if job != "create-pooled" {
                assert_eq!(place.git(&["show", "refs/sprag/salvage/work:precious"]), "x", "{job} {point}");
            }
        }
    }
}

#[test]
fn wt10_an_entry_with_empty_files_is_recovered() {
    for file in ["commondir", "gitdir", "locked", "HEAD", "sprag.json", "index"] {
        let place = Place::new(10);
        let worktrees = place.worktrees();
        let path = dead(&worktrees, "work", "work");
        fs::write(path.join("precious"), "x").expect("a file");
        fs::write(entry_of(&place, "work").join(file), "").expect("ours");
        let recovered = recover(&worktrees);
        assert_eq!(recovered.removed.len(), 1, "{file}: {recovered:?}");
        let saved = recovered.removed[0].salvaged.as_ref().map(|salvaged| salvaged.name.clone());
        let saved = saved.unwrap_or_else(|| panic!("{file}: nothing was saved"));
        assert_eq!(place.git(&["show", &format!("{saved}:precious")]), "x", "{file}");
        drop(create(&worktrees, "work", "work").expect("the branch is free"));
        place.git(&["worktree", "list"]);
    }
}

#[test]
fn wt11_sigterm_during_a_checkout_stops_the_group_first() {
    let place = Place::new(3);
    let pid_file = place.path().join("pid");
    slow_filter(&place, &format!("echo $$ > {}; sleep 600 & sleep 600", pid_file.display()));
    let mut helper = helper::start(helper::command(&place, "create-cancelled"));
    wait_for("the filter", || fs::read_to_string(&pid_file).is_ok_and(|text| text.ends_with('\n')));
    let filter: i32 = fs::read_to_string(&pid_file).expect("a pid").trim().parse().expect("a number");
    assert!(is_running(filter));
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(helper.0.id() as i32).expect("a pid"),
        rustix::process::Signal::TERM,
    )
    .expect("ours");
    assert!(helper.0.wait().expect("ours").success());
    assert!(!is_running(filter));
    place.assert_nothing_left();
}

/// Makes all files go through a filter that runs this script.
fn slow_filter(place: &Place, does: &str) {
    script(&place.path().join("filter.sh"), does);
    let filter = place.path().join("filter.sh");
    place.git(&["config", "filter.slow.smudge", filter.to_str().expect("text")]);
    place.git(&["config", "filter.slow.required", "true"]);
    fs::create_dir_all(place.common().join("info")).expect("a folder");
    fs::write(place.common().join("info/attributes"), "*.txt filter=slow\n").expect("a file");
}

#[test]
fn wt12_w17_a_writer_that_outlives_its_killed_run_is_stopped_and_reclaimed() {
    let place = Place::new(3);
    let pid_file = place.path().join("pid");
    // It ignores the TERM of git's guard, which would stop it at a moment that no test can know.
    let writes = format!(
        "trap '' TERM; echo $$ > {}; i=0; while [ $i -lt 6000 ]; do echo x >> written; i=$((i+1)); sleep 0.01; done",
        pid_file.display()
    );
    script(&place.common().join("hooks/post-checkout"), &writes);
    let mut helper = helper::start(helper::command(&place, "create"));
    wait_for("the writer", || fs::read_to_string(&pid_file).is_ok_and(|text| text.ends_with('\n')));
    helper.0.kill().expect("ours");
    helper.0.wait().expect("ours");
    let writer: i32 = fs::read_to_string(&pid_file).expect("a pid").trim().parse().expect("a number");
    assert!(is_running(writer), "it goes on without its run");
    fs::remove_file(place.common().join("hooks/post-checkout")).expect("ours");
    let worktrees = place.worktrees();
    let worktree = create(&worktrees, "work", "work").expect("unaided");
    assert!(!is_running(writer));
    remove(&worktrees, worktree);
    place.assert_nothing_left();
}

#[test]
fn wt16_w09_a_folder_deleted_by_hand_leaves_the_branch_reusable_at_once() {
    let place = Place::new(10);
    let worktrees = place.worktrees();
    let path = dead(&worktrees, "work", "work");
    git(&path, &["commit", "--quiet", "--allow-empty", "--message=kept"]);
    let tip = git(&path, &["rev-parse", "HEAD"]);
    fs::remove_dir_all(&path).expect("ours");
    let worktree = create(&worktrees, "again", "work").expect("reusable at once");
    assert!(is_clean(worktree.path()));
    // The commits made there are not lost.
    assert_eq!(place.git(&["rev-parse", "refs/sprag/salvage/work"]), tip);
}

#[test]
fn wt17_a_missing_data_directory_keeps_its_entries() {
    let place = Place::new(10);
    let worktrees = place.worktrees();
    let path = dead(&worktrees, "work", "work");
    let away = place.path().join("away");
    fs::rename(place.data(), &away).expect("ours");
    // An empty mount point, as when the disk is not mounted.
    fs::create_dir(place.data()).expect("a folder");
    place.git(&["worktree", "prune", "--expire=now"]);
    let recovered = place.worktrees().recover(&|_| false).expect("recovered");
    assert!(recovered.removed.is_empty(), "{recovered:?}");
    assert!(recovered.skipped.iter().any(|(skipped, why)| *skipped == path && why.contains("is missing")));
    fs::remove_dir_all(place.data()).expect("ours");
    fs::rename(&away, place.data()).expect("ours");
    assert!(is_clean(&path));
    drop(worktrees.adopt(path.to_str().expect("text"), "work").expect("it is still there"));
}

#[test]
fn wt24_a_stale_ref_lock_of_a_dead_run_is_cleared() {
    let place = Place::new(10);
    let worktrees = place.worktrees();
    dead(&worktrees, "work", "work");
    let lock = place.common().join("refs/heads/work.lock");
    fs::write(&lock, "").expect("a file");
    drop(create(&worktrees, "again", "work").expect("unaided"));
    assert!(!lock.exists());
    // It belongs to no run: reported, not deleted.
    let lock = place.common().join("refs/heads/other.lock");
    fs::write(&lock, "").expect("a file");
    let error = create(&worktrees, "other", "other").expect_err("locked");
    assert!(
        matches!(&error.kind, Kind::StaleGitLock { path } if path.ends_with("refs/heads/other.lock")),
        "{error}"
    );
    assert!(error.to_string().contains("delete"), "{error}");
    assert!(lock.exists());
}

#[test]
fn wt39_a_reused_pid_or_a_reboot_is_not_mistaken_for_alive() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    let entry = entry_of(&place, "work");
    // A process of the run still holds the lock, and the mark names this process as the owner.
    let mut command = Command::new("sleep");
    worktree.prepare(command.arg("600"));
    let mut orphan = command.process_group(0).spawn().expect("a process");
    let mut mark = worktree.mark().clone();
    drop(worktree);
    let process = mark.process.as_mut().expect("us");
    process.start_time_ticks += 1;
    fs::write(entry.join("sprag.json"), serde_json::to_vec(&mark).expect("json")).expect("ours");
    let recovered = recover(&worktrees);
    assert_eq!(recovered.removed.len(), 1, "{recovered:?}");
    assert!(!is_running(orphan.id() as i32));
    let _ = orphan.wait();
    // After a reboot no lock is held, whatever the mark says.
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    let entry = entry_of(&place, "work");
    let mut mark = worktree.mark().clone();
    drop(worktree);
    mark.process.as_mut().expect("us").boot_id = "0123".to_owned();
    fs::write(entry.join("sprag.json"), serde_json::to_vec(&mark).expect("json")).expect("ours");
    assert_eq!(recover(&worktrees).removed.len(), 1);
    place.assert_nothing_left();
}

#[test]
fn w09_live_kept_spared_and_foreign_worktrees_are_left_alone() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let helper = helper::start(helper::command(&place, "create-and-wait"));
    wait_for("its worktree", || {
        worktrees
            .list()
            .expect("a list")
            .iter()
            .any(|listed| listed.mark.state == State::Ready && listed.is_held)
    });
    assert!(recover(&worktrees).removed.is_empty());
    let mut existing = options("other", "work");
    existing.branch = Branch::Existing("work".to_owned());
    let error = worktrees.create(&existing, &Cancel::default()).expect_err("in use");
    assert!(error.to_string().contains("already checked out by run work"), "{error}");
    let foreign = place.path().join("foreign");
    place.git(&["worktree", "add", "--quiet", "-b", "foreign", foreign.to_str().expect("text")]);
    fs::remove_dir_all(&foreign).expect("ours");
    let kept = create(&worktrees, "kept", "kept").expect("a worktree").keep("to look at").expect("kept");
    let spared = dead(&worktrees, "spared", "spared");
    let recovered = worktrees.recover(&|mark| mark.run == "spared").expect("recovered");
    assert!(recovered.removed.is_empty(), "{recovered:?}");
    assert!(kept.exists() && spared.exists() && place.common().join("worktrees/foreign").exists());
    drop(helper);
    assert_eq!(recover(&worktrees).removed.len(), 2, "the killed one and the one that was spared");
}

#[test]
fn random_kills_leave_nothing_that_blocks() {
    let place = Place::new(300);
    let worktrees = place.worktrees();
    let rounds = if is_nightly() { 300 } else { 12 };
    for round in 0..rounds {
        let mut helper = helper::start(helper::command(&place, "create"));
        pause_ms(2 + (round * 7) % 60);
        helper.0.kill().expect("ours");
        helper.0.wait().expect("ours");
        let worktree = create(&worktrees, "work", "work").unwrap_or_else(|error| panic!("{round}: {error}"));
        assert!(is_clean(worktree.path()), "{round}");
        remove(&worktrees, worktree);
        recover(&worktrees);
        place.assert_nothing_left();
    }
}
