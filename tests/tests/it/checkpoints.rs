//! Checkpoints: the files that a step left are recorded, can be shown, and are the start of later steps and runs.

use std::path::{Path, PathBuf};

use sprag_tests::{Project, until};

const TREE: &str = "environment: {worktree: {keep: always}}";

fn three(project: &Project) -> PathBuf {
    let steps = "  - {id: a, run: 'echo a > log.txt'}
  - {id: b, needs: [a], run: 'echo b >> log.txt; echo b > b.txt'}
  - {id: c, needs: [b], run: 'cat log.txt > $OUT/seen; echo c >> log.txt; rm b.txt'}";
    project.pipeline("three", TREE, steps)
}

fn file(path: &Path, name: &str) -> String {
    std::fs::read_to_string(path.join(name)).unwrap_or_default()
}

#[test]
fn checkpoints_are_shown_by_diff() {
    let project = Project::new();
    let run = project.run(&three(&project), 0);
    let added = |args: &[&str]| -> Vec<String> {
        let told = project.sprag(args).expect(0).stdout;
        let lines = told.lines().filter(|line| {
            line.starts_with(['+', '-']) && !line.starts_with("+++") && !line.starts_with("---")
        });
        lines.map(str::to_owned).collect()
    };
    assert_eq!(added(&["diff", &run]), ["+a", "+b", "+c"]);
    assert_eq!(added(&["diff", &run, "b"]), ["+b", "+b"]);
    assert_eq!(added(&["diff", &run, "a..c"]), ["+b", "+c"]);
    assert_eq!(added(&["diff", &run, "c"]), ["-b", "+c"]);
    let none =
        project.pipeline("none", "environment: {worktree: {keep: always}}", "  - id: a\n    run: 'true'\n");
    let unchanged = project.run(&none, 0);
    let told = project.sprag(["diff", &unchanged]).expect(0);
    assert!(told.stdout.is_empty() && told.stderr.contains("no changes"), "{told:?}");
    let told = project.sprag(["diff", &run, "nothing"]).expect(2);
    assert!(told.stderr.contains("a, b, c"), "{}", told.stderr);
    // Neither branch nor index nor stash is any the worse for it.
    let worktree = project.worktree(&run);
    assert_eq!(sprag_tests::git(&worktree, ["log", "--format=%s"]), "first");
    assert_eq!(sprag_tests::git(&worktree, ["diff", "--cached", "--name-only"]), "");
    assert_eq!(project.git(["stash", "list"]), "");
}

#[test]
fn checkpoints_of_a_run_without_a_worktree() {
    let project = Project::new();
    let run = project.run(&project.pipeline("plain", "", "  - {id: a, run: 'true'}"), 0);
    let told = project.sprag(["diff", &run]).expect(4);
    assert!(told.stderr.contains("has no worktree"), "{}", told.stderr);
}

#[test]
fn retry_starts_with_the_files_from_before_the_step_or_the_current_ones() {
    for (from, seen) in [("", "1\n"), (", from: here", "1\n1\n")] {
        let project = Project::new();
        let steps = format!(
            "  - id: a
    retry: {{attempts: 2, delay: 1ms{from}}}
    run: |
      echo 1 >> log.txt
      if [ $SPRAG_ATTEMPT = 1 ]; then git commit --quiet --allow-empty --message half; exit 3; fi
      cat log.txt > $OUT/seen
      git log --format=%s > $OUT/log"
        );
        project.run(&project.pipeline("again", TREE, &steps), 0);
        assert_eq!(project.sandbox.read("seen"), seen);
        assert_eq!(project.sandbox.lines("log").len(), if from.is_empty() { 1 } else { 2 });
    }
}

#[test]
fn rewind_restores_the_files() {
    let project = Project::new();
    let run = project.run(&three(&project), 0);
    let path = project.worktree(&run);
    assert_eq!((file(&path, "log.txt"), file(&path, "b.txt")), ("a\nb\nc\n".into(), String::new()));
    std::fs::write(path.join("by-hand.txt"), "x\n").expect("a file");
    project.sprag(["rewind", &run, "--to", "c"]).expect(0);
    assert_eq!(project.sandbox.read("seen"), "a\nb\n");
    assert_eq!(file(&path, "log.txt"), "a\nb\nc\n");
    assert_eq!(file(&path, "by-hand.txt"), "");
    project.sprag(["rewind", &run, "--to", "a"]).expect(0);
    assert_eq!(file(&path, "log.txt"), "a\nb\nc\n");
}

#[test]
fn rewind_after_the_worktree_was_removed() {
    let project = Project::new();
    let run = project.run(&three(&project), 0);
    project.sprag(["env", "rm", &run]).expect(0);
    assert!(project.environments().is_empty());
    project.sprag(["rewind", &run, "--to", "c"]).expect(0);
    assert_eq!(project.sandbox.read("seen"), "a\nb\n");
    // The diff of the run still begins where the run did.
    assert!(project.sprag(["diff", &run]).expect(0).stdout.contains("+a"));
}

#[test]
fn resume_continues_from_the_last_state_when_the_worktree_is_gone() {
    for commit in ["true", "git add . && git commit -qm work"] {
        let project = Project::new();
        let steps = format!(
            "  - {{id: a, run: 'echo a > log.txt; {commit}'}}\n  - {{id: b, needs: [a], run: 'echo half >> log.txt; test -e $OUT/go; cat log.txt > $OUT/seen'}}"
        );
        let file = project.pipeline("two", "environment: {worktree: {}}", &steps);
        let run = project.run(&file, 100);
        assert!(project.environments().is_empty(), "{:?}", project.environments());
        project.sandbox.write("go", "");
        project.sprag(["resume", &run]).expect(0);
        assert_eq!(project.sandbox.read("seen"), "a\nhalf\n");
        let diff = project.sprag(["diff", &run]).expect(0).stdout;
        assert!(diff.contains("+a") && diff.contains("+half"), "{diff}");
    }
}

#[test]
fn resume_after_a_kill_in_the_middle_of_a_step() {
    let project = Project::new();
    let steps = "  - {id: a, run: 'echo a > log.txt'}
  - {id: b, needs: [a], run: 'echo half >> log.txt; touch $OUT/begun; test -e $OUT/go || sleep 300; cat log.txt > $OUT/seen'}";
    let file = project.pipeline("two", "environment: {worktree: {}}", steps);
    let started = project.start([std::ffi::OsStr::new("run"), file.as_os_str()]);
    until("b works", || project.sandbox.path("begun").exists());
    let run = project.sandbox.newest().expect("a run");
    started.kill();
    project.sandbox.write("go", "");
    project.sprag(["resume", &run]).expect(0);
    assert_eq!(project.sandbox.read("seen"), "a\nhalf\n");
    project.assert_clean();
}

#[test]
fn fork_begins_with_the_files_of_the_step_on_a_branch_of_its_own() {
    let project = Project::new();
    let first = project.run(&three(&project), 0);
    project.sprag(["fork", &first, "--from", "a"]).expect(0);
    let second = project.sandbox.newest().expect("a run");
    assert_ne!(first, second);
    let (one, two) = (project.worktree(&first), project.worktree(&second));
    assert_ne!(one, two);
    assert_eq!((file(&one, "log.txt"), file(&two, "log.txt")), ("a\nb\nc\n".into(), "a\nb\nc\n".into()));
    let branch = |path: &Path| sprag_tests::git(path, ["branch", "--show-current"]);
    assert_eq!(branch(&one), format!("sprag/three-{first}"));
    assert_eq!(branch(&two), format!("sprag/three-{second}"));
}
