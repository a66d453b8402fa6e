//! Landing, killed or failing between any two of its operations.

use std::{
    fs,
    path::{Path, PathBuf},
};

use sprag_worktree::{Cancel, LandOptions};

use crate::{
    common::*,
    helper,
    land::{commit_file, with_file},
};

/// All fault points of a landing that moves a branch with a checkout, in order, and whether it has landed by
/// then.
const POINTS: [(&str, bool); 9] = [
    ("verified", false),
    ("recorded", false),
    ("locked-index", false),
    ("saved-index", false),
    ("updated-files", false),
    ("put-index", false),
    ("landed", true),
    ("released", true),
    ("unlocked", true),
];

/// Creates a repository in which a user has changes of every kind, and a run whose work changes, adds and
/// removes files. Returns its entry.
fn busy() -> (Place, String) {
    let place = Place::new(10);
    let worktrees = place.worktrees();
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    fs::write(worktree.path().join("dir0/file0.txt"), "landed\n").expect("a file");
    fs::remove_file(worktree.path().join("dir0/file1.txt")).expect("a file");
    fs::create_dir(worktree.path().join("more")).expect("a folder");
    fs::write(worktree.path().join("more/new.txt"), "landed\n").expect("a file");
    git(worktree.path(), &["add", "--all"]);
    git(worktree.path(), &["commit", "--quiet", "--message=work"]);
    let repo = place.repo();
    fs::write(repo.join("dir0/file2.txt"), "staged\n").expect("a file");
    fs::write(repo.join("staged-new"), "staged\n").expect("a file");
    place.git(&["add", "."]);
    fs::write(repo.join("dir0/file3.txt"), "unstaged\n").expect("a file");
    fs::write(repo.join("untracked"), "untracked\n").expect("a file");
    let id = worktree.id().to_owned();
    drop(worktree);
    place.until_unowned();
    (place, id)
}

/// Creates the same with a bare remote, which has a commit that has not been fetched.
fn busy_with_remote() -> (Place, String, PathBuf) {
    let (place, id) = busy();
    let remote = place.path().join("remote.git");
    let url = remote.to_str().expect("text");
    place.git(&["clone", "--quiet", "--bare", ".", url]);
    place.git(&["remote", "add", "origin", url]);
    let tree = git(&remote, &["rev-parse", "main^{tree}"]);
    let theirs = ["-c", "user.name=A", "-c", "user.email=a@example.com", "commit-tree"];
    let theirs = [&theirs[..], &["-p", "main", "-m", "theirs", &tree]].concat();
    let theirs = git(&remote, &theirs);
    git(&remote, &["update-ref", "refs/heads/main", &theirs]);
    (place, id, remote)
}

/// Checks that all the work is on both branches once, on top of the remote's commit, and that the user's
/// changes are unchanged.
#[track_caller]
fn assert_landed_and_pushed(place: &Place, remote: &Path, what: &str) {
    assert_in_order(place, what);
    assert!(is_landed(place), "{what}");
    assert_eq!(git(remote, &["rev-parse", "main"]), place.git(&["rev-parse", "main"]), "{what}");
    assert_eq!(git(remote, &["log", "--format=%s", "main"]), "work\ntheirs\nfirst", "{what}");
}

const MINE: &str = "M  dir0/file2.txt\n M dir0/file3.txt\nA  staged-new\n?? untracked";

fn status(place: &Place) -> String {
    place.git(&["status", "--porcelain"])
}

fn is_landed(place: &Place) -> bool {
    git_output(&place.repo(), &["cat-file", "-e", "main:more/new.txt"]).status.success()
}

/// Checks that no lock, record or index of Sprag is left.
#[track_caller]
fn assert_in_order(place: &Place, what: &str) {
    assert_eq!(status(place), MINE, "{what}");
    let left: Vec<String> =
        children(&place.common()).into_iter().filter(|name| name.contains("index.")).collect();
    assert!(left.is_empty(), "{what}: {left:?}");
    let land = children(&place.common().join("sprag/land"));
    assert!(land.iter().all(|name| !name.ends_with(".json")), "{what}: {land:?}");
    assert_eq!(is_landed(place), place.repo().join("more/new.txt").exists(), "{what}");
}

#[test]
fn e01_killed_at_any_point_the_next_landing_repairs_everything() {
    for (point, landed) in POINTS {
        let (place, id) = busy();
        helper::killed_at(&place, "land", point);
        assert_eq!(is_landed(&place), landed, "{point}");
        let mut worktree = place.worktrees().adopt(&id, "work").expect("it has no owner");
        let again = worktree.land(&LandOptions::new("work", "main"), &Cancel::default());
        let again = again.unwrap_or_else(|error| panic!("{point}: {error}"));
        assert_eq!(again.moved, !landed, "{point}");
        assert!(is_landed(&place), "{point}");
        assert_in_order(&place, point);
    }
}

/// A merge driver of the repository runs in the middle of a rebase. By then, git has checked out the target's commit.
#[test]
fn e01_killed_in_the_middle_of_a_rebase_the_next_landing_lands_all_the_work() {
    let place = Place::new(3);
    let worktree = with_file(&place.worktrees(), "work", "dir0/file0.txt", "of the run\n");
    let id = worktree.id().to_owned();
    drop(worktree);
    place.until_unowned();
    commit_file(&place.repo(), "dir0/file0.txt", "of the user\n");
    let reached = place.path().join("reached");
    fs::write(place.common().join("info/attributes"), "dir0/file0.txt merge=stuck\n").expect("a file");
    place.git(&["config", "merge.stuck.driver", &format!("touch {}; exec sleep 60", reached.display())]);
    let mut landing = helper::start(helper::command(&place, "land"));
    wait_for("the merge driver", || reached.exists());
    landing.0.kill().expect("killed");
    drop(landing);
    place.until_unowned();
    place.git(&["config", "merge.stuck.driver", "cat %B >> %A"]);
    let mut worktree = place.worktrees().adopt(&id, "work").expect("it has no owner");
    let landed = worktree.land(&LandOptions::new("work", "main"), &Cancel::default()).expect("landed");
    assert!(landed.moved);
    assert_eq!(place.git(&["show", "main:dir0/file0.txt"]), "of the user\nof the run");
    assert_eq!(place.git(&["log", "--format=%s", "-1", "main"]), "dir0/file0.txt: of the run");
    assert!(is_clean(worktree.path()) && is_clean(&place.repo()));
    assert!(!children(&place.common().join("worktrees").join(&id)).contains(&"sprag-landing".to_owned()));
}

#[test]
fn e01_killed_at_any_point_a_sweep_repairs_the_checkout() {
    for (point, landed) in POINTS {
        let (place, _) = busy();
        helper::killed_at(&place, "land", point);
        let worktrees = place.worktrees();
        let is_open = !matches!(point, "verified" | "unlocked");
        let told = worktrees.repository().interrupted_moves();
        assert_eq!(told.len(), usize::from(is_open), "{point}: {told:?}");
        let recovered = worktrees.recover(&|_| true).expect("recovered");
        assert_eq!(recovered.repaired.len(), usize::from(is_open), "{point}: {recovered:?}");
        assert_eq!(is_landed(&place), landed, "{point}");
        assert_in_order(&place, point);
        assert!(worktrees.repository().interrupted_moves().is_empty());
    }
}

#[test]
fn e01_killed_at_any_point_of_a_landing_with_push_the_next_one_completes_it() {
    let points = POINTS.iter().map(|(point, _)| *point).chain(["pushed"]);
    for point in points {
        let (place, id, remote) = busy_with_remote();
        helper::killed_at(&place, "land-push", point);
        let has_it = git_output(&remote, &["cat-file", "-e", "main:more/new.txt"]).status.success();
        assert_eq!(has_it, point != "verified", "{point}: the remote comes first");
        let mut worktree = place.worktrees().adopt(&id, "work").expect("it has no owner");
        let again = worktree.land(&helper::land_and_push(), &Cancel::default());
        again.unwrap_or_else(|error| panic!("{point}: {error}"));
        assert_landed_and_pushed(&place, &remote, point);
    }
}

/// Git advises users to remove `index.lock` and continue. Even then nothing that has landed is reverted.
#[test]
fn e01_killed_at_any_point_a_user_who_continues_by_hand_reverts_nothing() {
    for (point, _) in POINTS {
        for all in [false, true] {
            let (place, id) = busy();
            helper::killed_at(&place, "land", point);
            place.git(&["status"]);
            let _ = fs::remove_file(place.common().join("index.lock"));
            let mut args = vec!["commit", "--quiet", "--message=mine"];
            args.extend(all.then_some("--all"));
            place.git(&args);
            let undone =
                place.git(&["log", "--format=", "--name-only", "--diff-filter=D", "main", "--", "more"]);
            assert_eq!(undone, "", "{point}: a landed file was deleted");
            let mut worktree = place.worktrees().adopt(&id, "work").expect("it has no owner");
            let again = worktree.land(&LandOptions::new("work", "main"), &Cancel::default());
            if let Err(error) = &again {
                // Files that the user has taken over are in the way until the user resolves them.
                assert!(matches!(error.kind, sprag_worktree::Kind::Blocked(_)), "{point}: {error}");
                place.git(&["add", "--all"]);
                place.git(&["commit", "--quiet", "--message=settled"]);
                worktree.land(&LandOptions::new("work", "main"), &Cancel::default()).expect("landed");
            }
            for (file, text) in [
                ("dir0/file0.txt", "landed"),
                ("more/new.txt", "landed"),
                ("dir0/file2.txt", "staged"),
                ("staged-new", "staged"),
            ] {
                assert_eq!(place.git(&["show", &format!("main:{file}")]), text, "{point}, all: {all}");
            }
            assert!(
                git_output(&place.repo(), &["cat-file", "-e", "main:dir0/file1.txt"]).status.code()
                    != Some(0)
            );
        }
    }
}

/// Returns a `git` program that fails once, at its nth call, and otherwise runs git.
fn git_failing_at(place: &Place, n: u32, how: &str) -> PathBuf {
    let folder = place.path().join(format!("bin{n}"));
    let count = folder.join("count");
    let text = format!(
        "n=$(cat {0} 2>/dev/null || echo 0); n=$((n + 1)); echo $n > {0}\nif [ $n = {n} ]; then {how}; fi\nPATH=${{PATH#*:}} exec git \"$@\"",
        count.display()
    );
    script(&folder.join("git"), &text);
    folder
}

/// Fails before it has done anything, or after it has done everything.
const HOW: [&str; 2] = [
    "echo \"fatal: Unable to create '/x/index.lock': File exists.\" >&2; exit 128",
    "PATH=${PATH#*:} git \"$@\" > /dev/null 2>&1; exit 128",
];

/// Runs a job with a git whose nth call fails. Returns the result and the number of calls.
fn with_failing_git(place: &Place, job: &str, n: u32, how: &str) -> (Result<(), String>, u32) {
    let folder = git_failing_at(place, n, how);
    let mut command = helper::command(place, job);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([folder.clone()].into_iter().chain(std::env::split_paths(&path)));
    command.env("PATH", path.expect("a path"));
    let result = helper::run(command);
    let calls = fs::read_to_string(folder.join("count")).expect("counted").trim().parse().expect("a number");
    (result, calls)
}

#[test]
fn e01_whichever_call_of_git_fails_once_a_landing_with_push_succeeds_or_is_completed_by_the_next() {
    for how in HOW {
        for n in 1.. {
            assert!(n < 200, "a landing takes fewer calls than this");
            let (place, id, remote) = busy_with_remote();
            let (result, calls) = with_failing_git(&place, "land-push", n, how);
            let what = format!("call {n} of {calls}: {result:?}");
            if result.is_err() {
                assert_in_order(&place, &what);
                let mut worktree = place.worktrees().adopt(&id, "work").expect("it has no owner");
                let again = worktree.land(&helper::land_and_push(), &Cancel::default());
                again.unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            assert_landed_and_pushed(&place, &remote, &what);
            if calls < n {
                result.expect("nothing failed");
                break;
            }
        }
    }
}

#[test]
fn e01_whichever_call_of_git_fails_once_the_landing_succeeds_or_changes_nothing() {
    for how in HOW {
        let mut n = 0;
        loop {
            n += 1;
            assert!(n < 200, "a landing takes fewer calls than this");
            let (place, _) = busy();
            let (result, calls) = with_failing_git(&place, "land", n, how);
            assert_in_order(&place, &format!("call {n} of {calls}: {result:?}"));
            assert_eq!(result.is_ok(), is_landed(&place), "call {n}: {result:?}");
            if calls < n {
                result.expect("nothing failed");
                break;
            }
        }
    }
}

/// Git removes a file and writes it again in pieces. Killed in between, it leaves a partial file.
#[test]
fn e01_a_git_killed_while_it_writes_leaves_no_partial_file() {
    let tears = [
        ("more/new.txt", ": > FILE"),
        ("more/new.txt", "printf lan > FILE"),
        ("dir0/file0.txt", "rm FILE"),
        ("dir0/file0.txt", ": > FILE"),
        ("dir0/file0.txt", "printf lan > FILE"),
    ];
    for (file, tear) in tears {
        let (place, id) = busy();
        let tear = tear.replace("FILE", &place.repo().join(file).display().to_string());
        let how = format!("PATH=${{PATH#*:}} git \"$@\"; {tear}; exit 137");
        let folder = place.path().join("bin");
        let text = format!(
            "case \" $* \" in *\" read-tree \"*\" -u \"*) {how};; esac\nPATH=${{PATH#*:}} exec git \"$@\""
        );
        script(&folder.join("git"), &text);
        let mut command = helper::command(&place, "land");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths([folder].into_iter().chain(std::env::split_paths(&path)));
        command.env("PATH", path.expect("a path"));
        helper::run(command).expect_err("git fails each time");
        assert!(!is_landed(&place), "{tear}");
        assert_in_order(&place, &tear);
        let mut worktree = place.worktrees().adopt(&id, "work").expect("it has no owner");
        let again = worktree.land(&LandOptions::new("work", "main"), &Cancel::default());
        again.unwrap_or_else(|error| panic!("{tear}: {error}"));
        assert_in_order(&place, &tear);
    }
}

#[test]
fn a_recognised_landing_repairs_its_checkout() {
    let place = Place::new(5);
    let worktrees = place.worktrees();
    let mut worktree = with_file(&worktrees, "work", "one", "1");
    let id = worktree.id().to_owned();
    drop(worktree);
    place.until_unowned();
    helper::killed_at(&place, "land", "landed");
    assert!(place.common().join("index.lock").exists(), "no commit is possible before the repair");
    worktree = worktrees.adopt(&id, "work").expect("it has no owner");
    let again = worktree.land(&LandOptions::new("work", "main"), &Cancel::default()).expect("recognised");
    assert!(!again.moved && is_clean(&place.repo()));
    commit_file(&place.repo(), "mine", "x");
    assert_eq!(place.git(&["show", "--format=", "--name-only"]), "mine");
    // The next landing finds an inconsistent state.
    let mut next = with_file(&worktrees, "next", "two", "2");
    next.land(&LandOptions::new("next", "main"), &Cancel::default()).expect("landed");
    assert!(is_clean(&place.repo()));
}
