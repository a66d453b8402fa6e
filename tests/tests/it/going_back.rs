//! Starting files: a step that runs again starts with the files from before it, and a missing state is reported.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sprag_tests::{Answer, Project, until};

const TREE: &str = "environment: {worktree: {}}";
const UNTIL_GO: &str = "until [ -e $OUT/go ]; do sleep 0.02; done";

/// Returns a step that commits something, and then waits for a file.
fn commits_and_waits() -> String {
    format!(
        "if [ -e $OUT/go ]; then cat log.txt > $OUT/seen; echo whole >> log.txt; git commit -qam whole; exit 0; fi
      echo half >> log.txt; git commit -qam half; echo more >> log.txt; touch $OUT/begun; {UNTIL_GO}"
    )
}

fn cancelled_in_the_middle(project: &Project, file: &Path) -> String {
    let started = project.start([OsStr::new("run"), file.as_os_str()]);
    until("b works", || project.sandbox.path("begun").exists());
    let run = project.sandbox.newest().expect("a run");
    project.sprag(["cancel", &run]).expect(0);
    started.finish().expect(130);
    project.sandbox.write("go", "");
    run
}

#[test]
fn e10_resume_after_a_cancel_begins_with_the_files_from_before_the_step() {
    for keep in ["never", "always"] {
        let project = Project::new();
        project.commit("log.txt", "first\n");
        let steps = format!(
            "  - {{id: a, run: 'echo a >> log.txt; git commit -qam a'}}
  - id: b
    needs: [a]
    run: |
      {}
  - {{id: land, needs: [b], land: main}}",
            commits_and_waits()
        );
        let file =
            project.pipeline("cancelled", &format!("environment: {{worktree: {{keep: {keep}}}}}"), &steps);
        let run = cancelled_in_the_middle(&project, &file);
        project.sprag(["resume", &run]).expect(0);
        assert_eq!(project.sandbox.read("seen"), "first\na\n", "keep: {keep}");
        assert_eq!(project.git(["show", "main:log.txt"]), "first\na\nwhole");
        assert_eq!(project.git(["log", "--format=%s", "-3", "main"]), "whole\na\nlog.txt by a person");
    }
}

#[test]
fn resume_after_a_cancel_inside_a_child_run_begins_with_the_files_from_before_the_step() {
    let project = Project::new();
    project.commit("log.txt", "first\n");
    let inner = format!("name: inner\nsteps:\n  - id: b\n    run: |\n      {}\n", commits_and_waits());
    project.sandbox.write("inner.yaml", &inner);
    let steps = "  - {id: a, run: 'echo a >> log.txt; git commit -qam a'}
  - {id: child, needs: [a], pipeline: {file: inner.yaml}}";
    let run = cancelled_in_the_middle(&project, &project.pipeline("outer", TREE, steps));
    project.sprag(["resume", &run]).expect(0);
    assert_eq!(project.sandbox.read("seen"), "first\na\n");
}

#[test]
fn resume_keeps_changes_of_a_done_parallel_step_and_says_so() {
    let project = Project::new();
    let steps = "  - {id: broken, needs: [], run: 'touch $OUT/begun; echo half > half.txt; until [ -e $OUT/beside ]; do sleep 0.02; done; test -e $OUT/go'}
  - {id: beside, needs: [], run: 'until [ -e $OUT/begun ]; do sleep 0.02; done; echo done > beside.txt'}
  - {id: tell, needs: [beside], run: 'touch $OUT/beside'}
  - {id: last, needs: [broken, tell], run: 'cat beside.txt > $OUT/seen'}";
    let file = project.pipeline("beside", TREE, steps);
    project.sprag([OsStr::new("run"), file.as_os_str(), "--slots=3".as_ref()]).expect(100);
    let run = project.sandbox.newest().expect("a run");
    project.sandbox.write("go", "");
    let told = project.sprag(["resume", &run]).expect(0);
    assert!(told.stderr.contains("ran beside the steps that run again"), "{}", told.stderr);
    assert_eq!(project.sandbox.read("seen"), "done\n");
}

fn three(project: &Project, last: &str) -> PathBuf {
    let steps = format!(
        "  - {{id: a, run: 'echo a > log.txt'}}
  - {{id: b, needs: [a], run: 'echo b >> log.txt'}}
  - {{id: c, needs: [b], run: '{last}'}}"
    );
    project.pipeline("three", TREE, &steps)
}

#[test]
fn e10_a_recorded_state_that_is_gone_is_an_error_that_names_it() {
    let project = Project::new();
    let run = project.run(&three(&project, "cat log.txt >> $OUT/seen"), 0);
    let failed = project.run(&three(&project, "test -e $OUT/go && cat log.txt >> $OUT/seen"), 100);
    assert!(project.environments().is_empty());
    project.sprag(["env", "gc", "--older-than", "0s"]).expect(0);
    assert_eq!(project.refs("refs/sprag/runs"), Vec::<String>::new());
    let seen = project.sandbox.read("seen");
    project.sandbox.write("go", "");
    for (args, state) in [
        (vec!["rewind", &run, "--to", "b"], format!("refs/sprag/runs/{run}/_b")),
        (vec!["retry", &run, "--step", "c"], format!("refs/sprag/runs/{run}/_c")),
        (vec!["fork", &run, "--from", "b"], format!("refs/sprag/runs/{run}/b")),
        (vec!["resume", &failed], format!("refs/sprag/runs/{failed}/_c")),
    ] {
        let told = project.sprag(args.clone()).expect(1);
        assert!(told.stderr.contains(&state), "{args:?} does not name {state}: {}", told.stderr);
        assert!(told.stderr.contains("start a new run"), "{}", told.stderr);
    }
    assert_eq!(project.sandbox.read("seen"), seen, "nothing ran with the wrong files");
    assert_eq!(project.sandbox.status_word(&run), "completed");
    assert_eq!(project.sandbox.status_word(&failed), "failed");
}

#[test]
fn the_same_key_never_forks_a_run_twice() {
    let project = Project::new();
    let result = |answer: &Answer| answer.lines::<Value>().pop().expect("a result");
    let file = three(&project, "echo c >> $OUT/ran");
    let started =
        project.sprag(["run", file.to_str().expect("text"), "--idempotency-key", "source", "--json"]);
    let run = result(&started.expect(0))["run"].as_str().expect("an id").to_owned();
    let fork = |from: &str| project.sprag(["fork", &run, "--from", from, "--idempotency-key", "k", "--json"]);
    let first = fork("b").expect(0);
    let refs = project.refs("refs/sprag");
    // The fork has ended. A run that a key has started is kept, so that a repeated request finds it.
    project.sprag(["gc", "--keep", "0s"]).expect(0);
    let again = fork("b").expect(0);
    assert_eq!(result(&first), result(&again));
    assert_eq!(project.sandbox.lines("ran").len(), 2);
    // Neither a repeated request nor a refused one leaves files that were chosen for a run.
    let told = fork("a").expect(2);
    assert!(told.stderr.contains("another step to continue after"), "{}", told.stderr);
    assert_eq!(project.refs("refs/sprag"), refs);
    assert_eq!(project.sandbox.lines("ran").len(), 2);
}

#[test]
fn e10_a_run_whose_worktree_and_states_are_gone_does_not_continue_from_its_base() {
    let project = Project::new();
    let steps = "  - {id: a, run: 'echo a > log.txt'}
  - {id: ask, needs: [a], gate: {ask: 'go on?'}}
  - {id: b, needs: [ask], run: 'cat log.txt > $OUT/seen'}";
    let run = project.run(&project.pipeline("asks", TREE, steps), 5);
    // A person removes both by hand while the run waits.
    std::fs::remove_dir_all(project.worktree(&run)).expect("the worktree");
    for name in project.refs("refs/sprag/runs") {
        project.git(["update-ref", "-d", &name]);
    }
    let told = project.sprag(["approve", &run, "ask"]).expect(100);
    assert!(told.stderr.contains(&format!("refs/sprag/runs/{run}/a")), "{}", told.stderr);
    assert_eq!(project.sandbox.read("seen"), "");
}

#[test]
fn e10_a_recording_that_failed_is_a_warning_in_status() {
    let project = Project::new();
    // A ref of this name is in the way of the one that is to be recorded.
    let steps = "  - {id: a, run: 'git update-ref refs/sprag/runs/$SPRAG_RUN_ID/a/in-the-way HEAD'}";
    let run = project.run(&project.pipeline("unrecorded", TREE, steps), 0);
    let shown = project.sprag(["status", &run]).expect(0).stdout;
    assert!(shown.contains("warning: the files of this step were not recorded"), "{shown}");
    let told = project.sprag(["fork", &run, "--from", "a"]).expect(1);
    assert!(told.stderr.contains(&format!("refs/sprag/runs/{run}/a")), "{}", told.stderr);
}

/// The first attempt at `b` ends before the state before it is recorded, because a ref is in the way until `clears`
/// removes it. The second one leaves a file and fails.
#[test]
fn e10_a_retry_records_the_state_that_the_first_attempt_could_not_record() {
    let project = Project::new();
    let ref_name = "refs/sprag/runs/$SPRAG_RUN_ID/_b/in-the-way";
    let steps = format!(
        "  - {{id: a, run: 'git update-ref {ref_name} HEAD'}}
  - {{id: clears, needs: [a], run: 'until [ -e $OUT/failed ]; do sleep 0.05; done; git update-ref -d {ref_name}'}}
  - id: b
    needs: [a]
    retry: {{attempts: 4, delay: 2s}}
    run: 'ls >> $OUT/seen; touch left-by-b; [ $SPRAG_ATTEMPT -gt 2 ]'"
    );
    let file = project.pipeline("retries", TREE, &steps);
    let started = project.start(["run", file.to_str().expect("text"), "--json"]);
    until("the first attempt has failed", || {
        let events = |run: String| project.sprag(["events", "--run", &run, "--json"]).stdout;
        project.sandbox.newest().is_some_and(|run| events(run).contains("step.retried"))
    });
    project.sandbox.write("failed", "");
    started.finish().expect(0);
    assert!(!project.sandbox.read("seen").contains("left-by-b"), "{}", project.sandbox.read("seen"));
}

#[test]
fn going_back_to_a_step_that_leaves_no_files_takes_those_of_the_steps_before_it() {
    let project = Project::new();
    let steps = "  - {id: a, run: 'echo a > log.txt'}
  - {id: ask, needs: [a], gate: {ask: 'go on?'}}
  - {id: b, needs: [ask], run: 'cat log.txt >> $OUT/seen; echo b >> log.txt'}";
    let file = project.pipeline("asks", "environment: {worktree: {keep: always}}", steps);
    let run = project.run(&file, 5);
    project.sprag(["approve", &run, "ask"]).expect(0);
    project.sprag(["rewind", &run, "--to", "ask"]).expect(5);
    project.sprag(["approve", &run, "ask"]).expect(0);
    assert_eq!(project.sandbox.read("seen"), "a\na\n");
    project.sprag(["fork", &run, "--from", "ask"]).expect(0);
    assert_eq!(project.sandbox.read("seen"), "a\na\na\n");
}
