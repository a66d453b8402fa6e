//! Worktrees under failures: kill -9, full disks, files that cannot be deleted, processes that keep running.
//! No work is lost, no other run is blocked, and leftovers are reclaimed.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sprag_tests::{Disk, Project, Random, Started, is_running, nightly, until, within};

/// Waits for a file, without a process of its own.
const UNTIL_GO: &str = "until [ -e $OUT/go ]; do read -t 0.02 x < /dev/null || :; done";

fn start(project: &Project, file: &Path) -> Started {
    project.start([OsStr::new("run"), file.as_os_str()])
}

fn on_branch(project: &Project, name: &str, run: &str) -> PathBuf {
    project.pipeline(
        name,
        "environment: {worktree: {branch: wanted}}",
        &format!("  - {{id: a, run: '{run}'}}"),
    )
}

#[test]
fn w09_the_branch_of_a_live_run_is_refused_by_name() {
    let project = Project::new();
    let live = on_branch(&project, "live", &format!("touch $OUT/begun; {UNTIL_GO}"));
    let live = start(&project, &live);
    until("it works", || project.sandbox.path("begun").exists());
    let holder = project.sandbox.newest().expect("a run");
    let told = start(&project, &on_branch(&project, "next", "true")).finish().expect(100);
    assert!(
        told.stderr.contains("wanted") && told.stderr.contains(&format!("run {holder}")),
        "{}",
        told.stderr
    );
    assert_eq!(project.environments().len(), 1, "{:?}", project.environments());
    project.sandbox.write("go", "");
    live.finish().expect(0);
    project.assert_clean();
}

#[test]
fn w09_the_branch_of_a_dead_run_is_free_and_its_work_is_saved() {
    for directory_is_gone in [false, true] {
        let project = Project::new();
        let dead = on_branch(&project, "dead", "echo precious > precious.txt; touch $OUT/begun; sleep 300");
        let dead = start(&project, &dead);
        until("it works", || project.sandbox.path("begun").exists());
        let run = project.sandbox.newest().expect("a run");
        let path = project.worktree(&run);
        dead.kill();
        if directory_is_gone {
            until("its processes are gone", || project.sandbox.processes_of(&run).is_empty());
            std::fs::remove_dir_all(&path).expect("it can be deleted");
        }
        start(&project, &on_branch(&project, "next", "ls > $OUT/files")).finish().expect(0);
        assert_eq!(project.sandbox.read("files"), "shared.txt\n");
        if !directory_is_gone {
            let saved = format!("refs/sprag/salvage/{run}:precious.txt");
            assert_eq!(project.git(["show", &saved]), "precious");
        }
    }
}

#[test]
fn w14_i24_kill_in_the_middle_of_provisioning() {
    let project = Project::new();
    // Enough files that a kill hits the checkout as well.
    for number in 0..300 {
        std::fs::write(project.repo().join(format!("file-{number}")), "text\n".repeat(200)).expect("a file");
    }
    project.git(["add", "."]);
    project.git(["commit", "--quiet", "--message", "files"]);
    let file = on_branch(&project, "killed", "ls | wc -l > $OUT/count");
    let mut random = Random::new(14);
    for round in 0..nightly(4, 100) {
        let mut started = start(&project, &file);
        let moment = Duration::from_millis(random.below(250));
        within(moment, || (!started.is_running()).then_some(()));
        started.kill();
        let killed = project.sandbox.newest();
        // The next one on the same branch succeeds unaided, wherever the kill hit.
        start(&project, &file).finish().expect(0);
        assert_eq!(project.sandbox.read("count").trim(), "301", "round {round}");
        // And so does the killed one, if it had begun.
        if let Some(run) = killed.filter(|run| project.status_is_live(run)) {
            project.sprag(["resume", &run]).expect(0);
        }
    }
    project.sprag(["env", "gc"]).expect(0);
    project.assert_clean();
}

#[test]
fn w14_a_full_disk_fails_cleanly_and_the_next_run_repairs() {
    let project = Project::new();
    let big = vec![b'x'; 4 << 20];
    std::fs::write(project.repo().join("big"), &big).expect("a file");
    project.git(["add", "."]);
    project.git(["commit", "--quiet", "--message", "big"]);
    // Only the worktrees' disk is small: the store has its own room.
    let Some(disk) = Disk::mount(&project.sandbox.data().join("worktrees"), "2m") else { return };
    let file = on_branch(&project, "full", "ls > $OUT/files");
    let told = start(&project, &file).finish().expect(100);
    assert!(told.stderr.contains("full") || told.stderr.contains("No space"), "{}", told.stderr);
    project.assert_clean();
    disk.resize("64m");
    start(&project, &file).finish().expect(0);
    assert_eq!(project.sandbox.read("files"), "big\nshared.txt\n");
    project.assert_clean();
}

#[test]
fn w15_uncommitted_work_is_saved() {
    for (name, end, code) in [("done", "true", 0), ("failed", "exit 3", 100)] {
        let project = Project::new();
        let work = "echo changed > shared.txt; echo new > new.txt; echo no > ignored.txt; git add new.txt";
        let file = project.pipeline(
            name,
            "environment: {worktree: {}}",
            &format!("  - {{id: a, run: '{work}; {end}'}}"),
        );
        let run = project.run(&file, code);
        let saved = format!("refs/sprag/salvage/{run}");
        assert_eq!(project.git(["show", &format!("{saved}:shared.txt")]), "changed");
        assert_eq!(project.git(["show", &format!("{saved}:new.txt")]), "new");
        assert_eq!(project.git(["ls-tree", "--name-only", &saved, "ignored.txt"]), "");
        assert_eq!(project.git(["stash", "list"]), "");
        assert_eq!(project.read("shared.txt"), "first\n");
        project.assert_clean();
    }
}

#[test]
fn w15_commits_that_nothing_else_holds_keep_their_branch() {
    let project = Project::new();
    let file = on_branch(&project, "work", "echo x > x; git add x; git commit -qm mine");
    project.run(&file, 0);
    assert_eq!(project.git(["log", "-1", "--format=%s", "wanted"]), "mine");
    // A second run is not to have it.
    let told = start(&project, &file).finish().expect(100);
    assert!(told.stderr.contains("`wanted`"), "{}", told.stderr);
    assert_eq!(project.git(["log", "-1", "--format=%s", "wanted"]), "mine");
    assert!(project.environments().is_empty());
}

#[test]
fn w17_i23_writing_processes_are_killed_before_the_worktree_is_removed() {
    let project = Project::new();
    let writer = "(trap \"\" TERM; echo $BASHPID > $OUT/pid; while :; do echo x >> out.txt; done) < /dev/null > /dev/null 2>&1 &";
    let steps = format!(
        "  - id: a\n    shell: bash\n    run: |\n      setsid bash -c '{}' &\n      until [ -s $OUT/pid ]; do :; done",
        writer.replace('\'', "").trim_end_matches('&')
    );
    let file = project.pipeline("writing", "environment: {worktree: {}}", &steps);
    project.run(&file, 0);
    let pid = project.sandbox.pid_in("pid");
    assert!(!is_running(pid), "{pid} goes on");
    project.assert_clean();
}

#[test]
fn w17_processes_of_a_killed_run_are_killed_before_its_worktree_is_removed() {
    let project = Project::new();
    let file = on_branch(&project, "killed", "echo $$ > $OUT/pid; while :; do echo x >> out.txt; done");
    let started = start(&project, &file);
    let pid = project.sandbox.pid_in("pid");
    let run = project.sandbox.newest().expect("a run");
    started.kill();
    start(&project, &on_branch(&project, "next", "ls > $OUT/files")).finish().expect(0);
    assert!(!is_running(pid), "{pid} goes on");
    assert_eq!(project.sandbox.read("files"), "shared.txt\n");
    assert!(project.git(["show", "--stat", &format!("refs/sprag/salvage/{run}")]).contains("out.txt"));
}

/// Makes files undeletable for as long as it lives.
struct Immutable(PathBuf);

impl Drop for Immutable {
    fn drop(&mut self) {
        let _ = Command::new("chattr").args(["-R", "-i"]).arg(&self.0).output();
    }
}

#[test]
fn w11_an_undeletable_file_is_shown_and_tried_again() {
    let project = Project::new();
    let probe = project.sandbox.write("probe", "");
    let can =
        Command::new("chattr").arg("+i").arg(&probe).output().is_ok_and(|output| output.status.success());
    let guard = Immutable(project.sandbox.path(""));
    if !can {
        return println!("skipped: chattr +i is not possible here");
    }
    let file = on_branch(&project, "stuck", "echo x > stuck.txt; chattr +i stuck.txt");
    let run = project.run(&file, 0);
    let shown = |project: &Project| {
        let listed = project.environments();
        listed.iter().any(|one| {
            one["run"] == run.as_str()
                && one["why"].as_str().is_some_and(|why| why.contains("stuck.txt") && why.contains("rm -rf"))
        })
    };
    assert!(shown(&project), "{:?}", project.environments());
    // Nothing else is blocked: the branch is free.
    start(&project, &on_branch(&project, "next", "true")).finish().expect(0);
    // Tried again without luck, it is still shown.
    let told = project.sprag(["env", "gc"]).expect(1);
    assert!(told.stdout.contains("not removed"), "{}", told.stdout);
    assert!(shown(&project), "{:?}", project.environments());
    drop(guard);
    // A worker tries again by itself.
    let worker = project.start(["worker"]);
    until("a worker has removed it", || project.environments().is_empty());
    until("its files are gone", || {
        std::fs::read_dir(project.sandbox.data().join("worktrees/.trash"))
            .is_ok_and(|mut left| left.next().is_none())
    });
    drop(worker);
    project.assert_clean();
}
