//! Many worktrees of one commit at once: git fills the first, the others are copies of it, and they are
//! indistinguishable.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
};

use sprag_worktree::{Cancel, Error, Kind, Worktree, Worktrees, snapshot};

use crate::{common::*, disk, helper};

/// Returns a number of worktrees that is larger than git fills at once on any machine.
fn many() -> usize {
    8 * std::thread::available_parallelism().map_or(1, usize::from).max(2)
}

/// Creates worktrees in one thread each, all starting together.
fn at_once(worktrees: &Worktrees, cancel: impl Fn(usize) -> Cancel + Sync) -> Vec<Result<Worktree, Error>> {
    let start = Barrier::new(many());
    std::thread::scope(|scope| {
        let one = |number: usize| {
            start.wait();
            let name = format!("run{number}");
            worktrees.create(&options(&name, &name), &cancel(number))
        };
        let threads: Vec<_> = (0..many()).map(|number| scope.spawn(move || one(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn all_at_once(worktrees: &Worktrees) -> Vec<Worktree> {
    let made = at_once(worktrees, |_| Cancel::default()).into_iter();
    made.map(|made| made.expect("a worktree")).collect()
}

/// Returns the number of worktrees that git did not fill.
fn copies(made: &[Worktree]) -> usize {
    made.iter().filter(|worktree| worktree.is_copy).count()
}

fn remove_all(worktrees: &Worktrees, made: Vec<Worktree>) {
    for worktree in made {
        remove(worktrees, worktree);
    }
}

fn commit_all(place: &Place) {
    place.git(&["add", "--all"]);
    place.git(&["commit", "--quiet", "--message=more"]);
}

/// Returns type, owner and content of each path.
fn contents(folder: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(folder).expect("inside").to_owned();
            let there = path.symlink_metadata().expect("there");
            let bytes = match there.file_type() {
                kind if kind.is_symlink() => {
                    fs::read_link(&path).expect("a link").into_os_string().into_encoded_bytes()
                }
                kind if kind.is_dir() => {
                    folders.push(path.clone());
                    Vec::new()
                }
                _ => fs::read(&path).expect("a file"),
            };
            if name != Path::new(".git") {
                found.insert(name, (there.mode(), bytes));
            }
        }
    }
    found
}

/// Checks that git sees no difference, without reading any file.
fn assert_as_git_made_it(place: &Place, checkout: &Path) {
    assert_eq!(git(checkout, &["diff-files"]), "", "what the index knows of the files");
    assert_eq!(git(checkout, &["status", "--porcelain", "--ignored"]), "");
    assert_eq!(git(checkout, &["write-tree"]), place.git(&["rev-parse", "main^{tree}"]));
}

/// Fills a repository with all kinds of content.
fn varied(repo: &Path) {
    init(repo, 40);
    let write = |name: &str, bytes: &[u8]| {
        let path = repo.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, bytes).expect("a file");
        path
    };
    write("empty", b"");
    write("a/b", b"b");
    write("a.c", b"before a/b in the index");
    write("a/deeper/and/deeper/file", b"x");
    write("a name with spaces, \u{e4}\u{f6} and\na new line", b"x");
    write(&format!("{0}/{0}", "long".repeat(60)), b"x");
    write("dir0/binary", &(0..=255).cycle().take(70_000).collect::<Vec<u8>>());
    write("windows.bat", b"one\ntwo\n");
    write("mixed.txt", b"one\r\ntwo\n");
    write(".gitattributes", b"* -text\n*.bat text eol=crlf\n");
    let program = write("bin/program", b"#!/bin/sh\n");
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).expect("executable");
    symlink("a/b", repo.join("link")).expect("a link");
    symlink("../a", repo.join("bin/folder-link")).expect("a link");
    symlink("nowhere/at/all", repo.join("broken-link")).expect("a link");
    let commit = git(repo, &["rev-parse", "HEAD"]);
    git(repo, &["add", "--all"]);
    git(repo, &["update-index", "--add", "--cacheinfo", &format!("160000,{commit},vendor/sub")]);
    git(repo, &["commit", "--quiet", "--message=varied"]);
}

#[test]
fn w01_concurrent_worktrees_equal_those_of_git() {
    let place = Place { folder: tempfile::tempdir().expect("a folder") };
    varied(&place.repo());
    let plain = place.path().join("plain");
    place.git(&["worktree", "add", "--quiet", "--detach", plain.to_str().expect("text"), "main"]);
    let worktrees = place.worktrees();
    for _ in 0..3 {
        let made = all_at_once(&worktrees);
        assert!(copies(&made) >= many() / 4, "{} of {} are copies", copies(&made), many());
        for worktree in &made {
            assert_eq!(contents(worktree.path()), contents(&plain), "{}", worktree.path().display());
            assert_as_git_made_it(&place, worktree.path());
        }
        // Each worktree has its own files: a change in one is not visible in another, and git sees it in the
        // first.
        let (one, other) = (made[0].path(), made[many() - 1].path());
        fs::write(one.join("a/b"), "B").expect("a file");
        fs::write(other.join("a.c"), "Before a/b in the index").expect("a file");
        assert_eq!(git(one, &["status", "--porcelain"]), " M a/b");
        assert_eq!(git(other, &["status", "--porcelain"]), " M a.c");
        fs::write(one.join("a/b"), "b").expect("a file");
        fs::write(other.join("a.c"), "before a/b in the index").expect("a file");
        remove_all(&worktrees, made);
    }
}

#[test]
fn git_checks_out_a_few_and_not_all() {
    let place = Place::new(300);
    let mut command = helper::command(&place, "create-many");
    let trace = place.path().join("trace");
    command
        .env("SPRAG_TEST_NAME", "p")
        .env("SPRAG_TEST_THREADS", (many() * 2).to_string())
        .env("GIT_TRACE", &trace);
    helper::run(command).expect("all worktrees");
    let trace = fs::read_to_string(trace).expect("what git did");
    let checkouts = trace.lines().filter(|line| line.contains("git read-tree")).count();
    assert!((1..=many()).contains(&checkouts), "git checked out {checkouts} of {}", many() * 2);
}

/// Creates a repository with a file `filtered`; its filter logs to the returned path.
fn filtered(smudge: impl FnOnce(&str) -> String, clean: &str, text: &str) -> (Place, PathBuf) {
    let place = Place::new(5);
    let (filter, ran) = (place.path().join("filter"), place.path().join("ran"));
    script(&filter, &smudge(ran.to_str().expect("text")));
    place.git(&["config", "filter.test.smudge", filter.to_str().expect("text")]);
    place.git(&["config", "filter.test.clean", clean]);
    fs::write(place.repo().join(".gitattributes"), "filtered filter=test\n").expect("a file");
    fs::write(place.repo().join("filtered"), text).expect("a file");
    commit_all(&place);
    (place, ran)
}

#[test]
fn a_filter_runs_for_every_worktree() {
    let smudge = |ran: &str| format!("echo x >> '{ran}'; sed s/secret/SECRET/");
    let (place, ran) = filtered(smudge, "sed s/SECRET/secret/", "a secret\n");
    let worktrees = place.worktrees();
    let made = all_at_once(&worktrees);
    assert_eq!(fs::read_to_string(&ran).expect("it ran").lines().count(), many());
    for worktree in &made {
        let text = fs::read_to_string(worktree.path().join("filtered")).expect("a file");
        assert_eq!(text, "a SECRET\n");
        assert_as_git_made_it(&place, worktree.path());
    }
    remove_all(&worktrees, made);
}

#[test]
fn every_kind_of_index_works() {
    for (is_copied, settings) in [
        (false, &[("index.version", "4")][..]),
        (false, &[("core.splitIndex", "true")]),
        (false, &[("core.untrackedCache", "true")]),
        (true, &[("index.skipHash", "true")]),
        (true, &[("core.sharedRepository", "group")]),
        (true, &[("core.fileMode", "false"), ("core.checkStat", "minimal")]),
        (false, &[("core.symlinks", "false")]),
        (true, &[("core.autocrlf", "true")]),
    ] {
        let place = Place { folder: tempfile::tempdir().expect("a folder") };
        varied(&place.repo());
        for (key, value) in settings {
            place.git(&["config", key, value]);
        }
        let worktrees = place.worktrees();
        // Git fills a worktree that is created alone.
        let alone = create(&worktrees, "alone", "alone").expect("a worktree");
        let made = all_at_once(&worktrees);
        assert_eq!(copies(&made) > 0, is_copied, "{settings:?}");
        for worktree in &made {
            assert_eq!(contents(worktree.path()), contents(alone.path()), "{settings:?}");
            assert_eq!(git(worktree.path(), &["diff-files"]), "", "{settings:?}");
        }
        let mode = |run: &str| {
            fs::metadata(entry_of(&place, run).join("index")).expect("an index").permissions().mode()
        };
        assert!((0..many()).all(|number| mode(&format!("run{number}")) == mode("alone")), "{settings:?}");
        remove_all(&worktrees, made);
    }
}

#[test]
fn a_replaced_object_is_checked_out_as_git_does() {
    let place = Place::new(20);
    let old = place.git(&["rev-parse", "main:dir0/file7.txt"]);
    fs::write(place.repo().join("other"), "something else\n").expect("a file");
    let new = place.git(&["hash-object", "-w", "other"]);
    fs::remove_file(place.repo().join("other")).expect("ours");
    place.git(&["replace", &old, &new]);
    let worktrees = place.worktrees();
    let made = all_at_once(&worktrees);
    for worktree in &made {
        let text = fs::read_to_string(worktree.path().join("dir0/file7.txt")).expect("a file");
        assert_eq!(text, "something else\n");
    }
    assert_eq!(copies(&made), 0);
    remove_all(&worktrees, made);
}

#[test]
fn a_filter_that_fails_once_fails_one_creation() {
    let smudge = |ran: &str| format!("mkdir '{ran}' 2>/dev/null && exit 1; tr a-z A-Z");
    let (place, _) = filtered(smudge, "tr A-Z a-z", "hello\n");
    let worktrees = place.worktrees();
    let made = all_at_once(&worktrees);
    let text = |worktree: &Worktree| fs::read_to_string(worktree.path().join("filtered")).expect("a file");
    assert_eq!(made.iter().filter(|worktree| text(worktree) == "hello\n").count(), 1);
    assert_eq!(made.iter().filter(|worktree| text(worktree) == "HELLO\n").count(), many() - 1);
    remove_all(&worktrees, made);
}

#[test]
fn an_unused_filter_does_not_prevent_copies() {
    let place = Place::new(100);
    place.git(&["config", "filter.test.smudge", "false"]);
    let worktrees = place.worktrees();
    let made = all_at_once(&worktrees);
    assert!(copies(&made) > 0);
    remove_all(&worktrees, made);
}

#[test]
fn settings_that_depend_on_the_branch_hold_for_that_branch() {
    let place = Place::new(20);
    let windows = place.path().join("windows");
    fs::write(&windows, "[core]\n\tautocrlf = true\n").expect("a file");
    place.git(&["config", "includeIf.onbranch:run*[02468].path", windows.to_str().expect("text")]);
    let worktrees = place.worktrees();
    let made = all_at_once(&worktrees);
    for worktree in &made {
        let text = fs::read_to_string(worktree.path().join("dir0/file7.txt")).expect("a file");
        let is_even = worktree.path().to_string_lossy().ends_with(['0', '2', '4', '6', '8']);
        assert_eq!(text, if is_even { "file 7\r\n" } else { "file 7\n" }, "{}", worktree.path().display());
    }
    remove_all(&worktrees, made);
}

#[test]
fn a_hook_on_indexes_runs_for_each_worktree() {
    let place = Place::new(20);
    let ran = place.path().join("ran");
    script(&place.common().join("hooks/post-index-change"), &format!("echo x >> '{}'", ran.display()));
    let worktrees = place.worktrees();
    let made = all_at_once(&worktrees);
    assert!(fs::read_to_string(&ran).expect("it ran").lines().count() >= many());
    remove_all(&worktrees, made);
}

#[test]
fn folders_that_differ_only_in_case_are_left_to_git() {
    let place = Place::new(5);
    for folder in ["Case", "case"] {
        fs::create_dir(place.repo().join(folder)).expect("a folder");
        fs::write(place.repo().join(folder).join(folder), "x").expect("a file");
    }
    commit_all(&place);
    let worktrees = place.worktrees();
    let made = all_at_once(&worktrees);
    assert_eq!(copies(&made), 0);
    made.iter().for_each(|worktree| assert_as_git_made_it(&place, worktree.path()));
    remove_all(&worktrees, made);
}

/// Branches that move before their files are checked out: only their own worktrees get the new files.
#[test]
fn a_change_of_one_branch_is_not_seen_in_the_others() {
    let place = Place::new(300);
    let base = place.git(&["rev-parse", "main"]);
    fs::write(place.repo().join("dir0/file7.txt"), "moved\n").expect("a file");
    place.git(&["commit", "--quiet", "--all", "--message=later"]);
    let later = place.git(&["rev-parse", "main"]);
    place.git(&["reset", "--quiet", "--hard", &base]);
    let hold = place.path().join("hold");
    fs::write(&hold, "").expect("a file");
    let mut command = helper::command(&place, "create-many");
    command.env("SPRAG_TEST_NAME", "p").env("SPRAG_TEST_THREADS", many().to_string());
    command.env("SPRAG_WORKTREE_FAULT", format!("hold:published:{}", hold.display()));
    std::thread::scope(|scope| {
        // Each worktree checks whether its files are those of its HEAD.
        let helper = scope.spawn(move || helper::run(command));
        wait_for("the branches", || children(&place.common().join("refs/heads/agent")).len() == many());
        let moves = (0..many()).step_by(2).map(|run| format!("update refs/heads/agent/px{run} {later}\n"));
        let moved = place.path().join("moves");
        fs::write(&moved, moves.collect::<String>()).expect("a file");
        let stdin = fs::File::open(&moved).expect("a file");
        let mut git = std::process::Command::new("git");
        let status = git.args(["update-ref", "--stdin"]).current_dir(place.repo()).stdin(stdin).status();
        assert!(status.expect("git").success());
        fs::remove_file(&hold).expect("ours");
        helper.join().expect("no panic").expect("all worktrees");
    });
}

/// Starts a process that pauses between fork and exec.
fn start_slowly() {
    use std::os::unix::process::CommandExt;
    let mut command = std::process::Command::new("true");
    // SAFETY: sleeping is allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::usleep(5_000);
            Ok(())
        });
    }
    assert!(command.status().expect("true").success());
}

/// Other threads start processes, which inherit every open file of this process for a moment.
#[test]
fn an_executable_file_can_be_run_at_once() {
    let place = Place::new(3);
    script(&place.repo().join("program"), "exit 7");
    commit_all(&place);
    let worktrees = place.worktrees();
    let mut shared = 0;
    for _ in 0..4 {
        let start = Barrier::new(many());
        let is_over = AtomicBool::new(false);
        let made: Vec<Worktree> = std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    start_slowly();
                }
            });
            let one = |number: usize| {
                start.wait();
                let name = format!("run{number}");
                let worktree = create(&worktrees, &name, &name).expect("a worktree");
                let ran = std::process::Command::new(worktree.path().join("program")).status();
                assert_eq!(ran.expect("it runs").code(), Some(7));
                worktree
            };
            let threads: Vec<_> = (0..many()).map(|number| scope.spawn(move || one(number))).collect();
            let made: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            is_over.store(true, Ordering::Relaxed);
            made.into_iter().map(|made| made.expect("no panic")).collect()
        });
        shared += copies(&made);
        remove_all(&worktrees, made);
    }
    assert!(shared > 0);
}

#[test]
fn wt09_killed_in_the_middle_of_a_copy_nothing_is_left() {
    let place = Place::new(600);
    for _ in 0..3 {
        let mut command = helper::command(&place, "create-many");
        command.env("SPRAG_TEST_NAME", "p").env("SPRAG_TEST_THREADS", (many() * 2).to_string());
        command.env("SPRAG_WORKTREE_FAULT", "kill:copying");
        helper::run(command).expect_err("it was killed");
        let worktrees = place.worktrees();
        wait_for("git to end with its process", || {
            recover(&worktrees);
            children(&place.common().join("worktrees")).is_empty()
        });
        recover(&worktrees);
        place.assert_nothing_left();
    }
}

#[test]
fn wt11_cancelled_in_the_middle_of_a_copy_nothing_is_left() {
    let place = Place::new(1_500);
    let worktrees = place.worktrees();
    for _ in 0..2 {
        let before = snapshot().copies;
        let cancels: Vec<Cancel> = (0..many()).map(|_| Cancel::default()).collect();
        let made = std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_for("a copy", || snapshot().copies > before);
                cancels.iter().step_by(2).for_each(Cancel::cancel);
            });
            at_once(&worktrees, |number| cancels[number].clone())
        });
        let mut cancelled = 0;
        for (number, made) in made.into_iter().enumerate() {
            match made {
                Ok(worktree) => {
                    assert_as_git_made_it(&place, worktree.path());
                    remove(&worktrees, worktree);
                }
                Err(error) if number % 2 == 0 => {
                    assert!(matches!(error.kind, Kind::Cancelled), "{error}");
                    cancelled += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(cancelled > 0, "no creation was cancelled in time");
        place.assert_nothing_left();
    }
}

#[test]
fn wt13_a_disk_that_is_too_small_for_all_fails_each_and_nothing_is_left() {
    let place = Place { folder: tempfile::tempdir().expect("a folder") };
    disk::big_repository(&place.repo());
    let Some(_disk) = disk::Disk::mount(&place.data(), "6m") else { return };
    let worktrees = place.worktrees();
    let mut full = 0;
    for made in at_once(&worktrees, |_| Cancel::default()) {
        match made {
            Ok(worktree) => {
                assert_as_git_made_it(&place, worktree.path());
                remove(&worktrees, worktree);
            }
            Err(error) => {
                assert!(disk::is_full(&error), "{error}");
                full += 1;
            }
        }
    }
    assert!(full > 0, "so many do not fit");
    place.assert_nothing_left();
    assert!(is_clean(create(&worktrees, "work", "work").expect("room again").path()));
}
