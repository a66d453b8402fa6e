//! Items of a fan-out with a worktree each: they start with their own files, whatever happens to the run.

use sprag_tests::Project;

const STEPS: &str = "  - {id: prep, run: 'echo prep > prep.txt'}
  - id: all
    needs: [prep]
    foreach: [one, two]
    environment: own
    fail_fast: false
    run: |
      echo {{ item }} >> own.txt
      ls > $OUT/files.{{ item }}
      cat own.txt > $OUT/own.{{ item }}
      [ {{ item }} = one ] || test -e $OUT/go
  - {id: last, needs: [all], run: 'ls > $OUT/files.last'}";

fn seen(project: &Project, what: &str) -> Vec<String> {
    ["one", "two"].iter().map(|item| project.sandbox.read(&format!("{what}.{item}"))).collect()
}

#[test]
fn own_items_begin_with_their_own_files_after_a_resume() {
    let project = Project::new();
    let file = project.pipeline("fan", "environment: {worktree: {}}", STEPS);
    let run = project.run(&file, 100);
    // The branch that they began with has moved meanwhile.
    project.commit("later.txt", "later\n");
    project.sandbox.write("go", "");
    project.sprag(["resume", &run]).expect(0);
    assert_eq!(seen(&project, "own"), ["one\n", "two\n"]);
    assert_eq!(seen(&project, "files"), ["own.txt\nshared.txt\n", "own.txt\nshared.txt\n"]);
    assert_eq!(project.sandbox.read("files.last"), "prep.txt\nshared.txt\n");
}

#[test]
fn own_items_begin_with_their_own_files_after_a_rewind() {
    for keep in ["never", "always"] {
        let project = Project::new();
        project.sandbox.write("go", "");
        let file = project.pipeline("fan", &format!("environment: {{worktree: {{keep: {keep}}}}}"), STEPS);
        let run = project.run(&file, 0);
        project.commit("later.txt", "later\n");
        project.sprag(["rewind", &run, "--to", "all"]).expect(0);
        assert_eq!(seen(&project, "own"), ["one\n", "two\n"], "{keep}");
        assert_eq!(seen(&project, "files"), ["own.txt\nshared.txt\n", "own.txt\nshared.txt\n"], "{keep}");
        project.sprag(["rewind", &run, "--to", "prep"]).expect(0);
        assert_eq!(seen(&project, "own"), ["one\n", "two\n"], "{keep}");
    }
}

#[test]
fn own_items_of_a_fork_begin_with_their_own_files_and_the_run_with_its_start() {
    let project = Project::new();
    project.sandbox.write("go", "");
    let run = project.run(&project.pipeline("fan", "environment: {worktree: {}}", STEPS), 0);
    project.commit("later.txt", "later\n");
    project.sprag(["fork", &run, "--from", "prep"]).expect(0);
    assert_eq!(seen(&project, "own"), ["one\n", "two\n"]);
    assert_eq!(seen(&project, "files"), ["own.txt\nshared.txt\n", "own.txt\nshared.txt\n"]);
    assert!(
        project.sandbox.read("files.last").contains("prep.txt"),
        "{}",
        project.sandbox.read("files.last")
    );
}
