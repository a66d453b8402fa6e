//! The branch of a run that no process continues is free for the next one, and none of its work is lost; that of
//! a run that only waits is not.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use sprag_tests::{Project, Started, until};

const ON_WANTED: &str = "environment: {worktree: {branch: wanted}}";

fn start(project: &Project, file: &Path) -> Started {
    project.start([OsStr::new("run"), file.as_os_str()])
}

/// Writes a pipeline that commits on the wanted branch and records its files.
fn next(project: &Project) -> PathBuf {
    let steps = "  - {id: a, run: 'ls > $OUT/files; echo n > n.txt; git add n.txt; git commit -qm next'}";
    project.pipeline("next", ON_WANTED, steps)
}

/// Waits until no step owns a run's worktree: between two steps.
fn until_left(project: &Project, run: &str) {
    let entries = project.repo().join(".git/worktrees");
    until("its worktree was left", || {
        let marks = std::fs::read_dir(&entries).into_iter().flatten().flatten();
        let mut marks =
            marks.filter_map(|entry| std::fs::read_to_string(entry.path().join("sprag.json")).ok());
        marks.any(|mark| mark.contains(&format!("\"run\":\"{run}\"")) && mark.contains("\"state\":\"kept\""))
    });
}

#[test]
fn w09_a_run_killed_between_two_steps_releases_its_branch_and_can_be_resumed() {
    for directory_is_gone in [false, true] {
        let project = Project::new();
        let steps = "  - {id: a, run: 'echo a > a.txt; git add a.txt; git commit -qm mine; echo precious > precious.txt'}
  - id: b
    needs: [a]
    retry: {attempts: 5, delay: 3s}
    run: |
      test -e $OUT/go
      git branch --show-current > $OUT/branch
      cat a.txt precious.txt > $OUT/seen";
        let file = project.pipeline("dead", ON_WANTED, steps);
        let dead = start(&project, &file);
        until("it has a run", || project.sandbox.newest().is_some());
        let run = project.sandbox.newest().expect("a run");
        // It waits for its second try, in no step.
        until("b was tried", || {
            project.sandbox.journal(Some(&run)).entries.iter().any(|entry| entry.event == "step.retried")
        });
        until_left(&project, &run);
        let path = project.worktree(&run);
        dead.kill();
        if directory_is_gone {
            std::fs::remove_dir_all(&path).expect("it can be deleted");
        }
        start(&project, &next(&project)).finish().expect(0);
        assert_eq!(project.sandbox.read("files"), "shared.txt\n");
        assert_eq!(project.git(["log", "-1", "--format=%s", "wanted"]), "next");
        let saved = project.refs("refs/sprag/salvage");
        assert_eq!(saved, [format!("refs/sprag/salvage/{run}")], "work or commits are saved");
        assert_eq!(project.git(["show", &format!("{}:a.txt", saved[0])]), "a");
        if !directory_is_gone {
            assert_eq!(project.git(["show", &format!("{}:precious.txt", saved[0])]), "precious");
        }
        assert!(!path.exists());
        // It goes on with its own files on a branch of its own, and the other's work stays.
        project.sandbox.write("go", "");
        project.sprag(["resume", &run]).expect(0);
        assert_eq!(project.sandbox.read("seen"), "a\nprecious\n");
        assert_eq!(project.sandbox.read("branch"), "wanted-2\n");
        assert_eq!(project.git(["log", "-1", "--format=%s", "wanted"]), "next");
        let shown = project.sandbox.json(["env", "show", &run, "--json"]);
        assert_eq!(shown[0]["branch"], "wanted-2");
    }
}

#[test]
fn w09_a_run_that_waits_at_a_gate_without_a_process_is_not_dead() {
    let project = Project::new();
    let steps = "  - {id: a, run: 'echo a > a.txt'}
  - {id: ask, needs: [a], gate: {ask: 'Go on?', choices: [yes, no]}}
  - {id: b, needs: [ask], run: 'cat a.txt > $OUT/seen'}";
    let file = project.pipeline("waits", ON_WANTED, steps);
    start(&project, &file).finish().expect(5);
    let holder = project.sandbox.newest().expect("a run");
    let told = start(&project, &next(&project)).finish().expect(100);
    let expected = format!("branch `wanted` is already checked out by run {holder}");
    assert!(told.stderr.contains(&expected), "{}", told.stderr);
    project.sprag(["approve", &holder]).expect(0);
    assert_eq!(project.sandbox.read("seen"), "a\n");
}

#[test]
fn w09_a_kept_worktree_keeps_its_branch() {
    let project = Project::new();
    let kept = "environment: {worktree: {branch: wanted, keep: always}}";
    let run = project.run(&project.pipeline("kept", kept, "  - {id: a, run: 'echo a > a.txt'}"), 0);
    let told = start(&project, &next(&project)).finish().expect(100);
    assert!(told.stderr.contains(&format!("by run {run}")), "{}", told.stderr);
    assert!(project.worktree(&run).join("a.txt").exists());
}

#[test]
fn w09_a_run_that_was_left_to_workers_is_not_dead() {
    let project = Project::new();
    let steps = "  - {id: a, run: 'true'}\n  - {id: b, needs: [a], queue: nobody, run: 'true'}";
    let file = project.pipeline("left", ON_WANTED, steps);
    project.sprag([OsStr::new("run"), file.as_os_str(), "--detach".as_ref()]).expect(0);
    let holder = project.sandbox.newest().expect("a run");
    let worker = project.start(["worker"]);
    project.sandbox.until_step(&holder, "a", "done");
    until_left(&project, &holder);
    worker.kill();
    let told = start(&project, &next(&project)).finish().expect(100);
    assert!(told.stderr.contains(&format!("by run {holder}")), "{}", told.stderr);
}
