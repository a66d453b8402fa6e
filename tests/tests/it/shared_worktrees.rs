//! Several processes that run steps of one run: they share its worktree, and none removes files that another uses.

use std::ffi::OsStr;

use sprag_tests::{Project, until};

/// Waits for a file, without a process of its own.
fn wait_for(name: &str) -> String {
    format!("until [ -e $OUT/{name} ]; do read -t 0.02 x < /dev/null || :; done")
}

fn running(project: &Project, run: &str) -> usize {
    let entries = project.sandbox.journal(Some(run)).entries;
    entries.iter().filter(|entry| entry.entity == "execution" && entry.event == "handoff.received").count()
}

#[test]
fn a_second_process_starts_after_the_setup_and_both_record_their_files() {
    let project = Project::new();
    let setup = format!("echo set >> $OUT/setups; {}; echo made > ignored.setup", wait_for("go"));
    let steps = "  - {id: a, needs: [], run: 'cat ignored.setup >> $OUT/seen; echo a > a.txt'}
  - {id: b, needs: [], run: 'cat ignored.setup >> $OUT/seen; echo b > b.txt'}";
    let head = format!("environment:\n  worktree: {{}}\n  setup: {{run: '{setup}'}}");
    let file = project.pipeline("two", &head, steps);
    project.sprag([OsStr::new("run"), file.as_os_str(), "--detach".as_ref()]).expect(0);
    let run = project.sandbox.newest().expect("a run");
    let workers = [0, 1].map(|_| project.start(["worker", "--slots", "1", "--until-idle"]));
    until("both are at it", || running(&project, &run) == 2);
    until("one sets up", || !project.sandbox.lines("setups").is_empty());
    assert_eq!(project.sandbox.read("seen"), "");
    project.sandbox.write("go", "");
    for worker in workers {
        worker.finish().expect(0);
    }
    project.sandbox.ends_as(&run, "completed");
    assert_eq!(project.sandbox.lines("seen"), ["made", "made"]);
    assert_eq!(project.sandbox.lines("setups"), ["set"]);
    let states: Vec<String> =
        ["_a", "_b", "a", "b"].map(|step| format!("refs/sprag/runs/{run}/{step}")).into();
    assert_eq!(project.refs("refs/sprag/runs"), states);
    for step in ["a", "b"] {
        let text = project.git(["show", &format!("refs/sprag/runs/{run}/{step}:{step}.txt")]);
        assert_eq!(text, step);
    }
}

#[test]
fn a_further_try_takes_no_files_from_a_step_of_another_process() {
    let project = Project::new();
    let steps = format!(
        "  - id: a
    needs: []
    retry: {{attempts: 2, delay: 1ms}}
    run: |
      touch $OUT/a-begun
      if [ $SPRAG_ATTEMPT = 1 ]; then {}; exit 3; fi
      cat b.txt > $OUT/seen-by-a
      touch $OUT/a-again
  - id: b
    needs: []
    run: |
      {}
      echo b > b.txt
      touch $OUT/b-begun
      {}
      cat b.txt > $OUT/seen-by-b",
        wait_for("b-begun"),
        wait_for("a-begun"),
        wait_for("a-again")
    );
    let file = project.pipeline("two", "environment: {worktree: {}}", &steps);
    project.sprag([OsStr::new("run"), file.as_os_str(), "--detach".as_ref()]).expect(0);
    let run = project.sandbox.newest().expect("a run");
    // The one that tries again has the worktree; the other is its guest.
    let first = project.start(["worker", "--slots", "1", "--until-idle"]);
    until("a works", || project.sandbox.path("a-begun").exists());
    let second = project.start(["worker", "--slots", "1", "--until-idle"]);
    first.finish().expect(0);
    second.finish().expect(0);
    project.sandbox.ends_as(&run, "completed");
    assert_eq!(
        (project.sandbox.read("seen-by-a"), project.sandbox.read("seen-by-b")),
        ("b\n".into(), "b\n".into())
    );
    let log = project.sprag(["logs", &run, "a"]).expect(0).stdout;
    assert!(log.contains("other steps run in the same worktree"), "{log}");
}

#[test]
fn a_worktree_owner_is_killed_and_the_other_process_continues() {
    let project = Project::new();
    let steps = format!(
        "  - {{id: a, needs: [], run: 'touch $OUT/a-begun; sleep 300'}}
  - {{id: b, needs: [], run: 'echo b > b.txt; touch $OUT/b-begun; {}; cat b.txt > $OUT/seen'}}",
        wait_for("go")
    );
    let file = project.pipeline("two", "environment: {worktree: {branch: wanted}}", &steps);
    project.sprag([OsStr::new("run"), file.as_os_str(), "--detach".as_ref()]).expect(0);
    let run = project.sandbox.newest().expect("a run");
    let owner = project.start(["worker", "--slots", "1"]);
    until("a works", || project.sandbox.path("a-begun").exists());
    let guest = project.start(["worker", "--slots", "1"]);
    until("b works", || project.sandbox.path("b-begun").exists());
    owner.kill();
    // Its owner is dead, and another run wants its branch: a step of the run still works there.
    let other =
        project.pipeline("other", "environment: {worktree: {branch: wanted}}", "  - {id: a, run: 'true'}");
    let told = project.start([OsStr::new("run"), other.as_os_str()]).finish().expect(100);
    assert!(told.stderr.contains(&format!("by run {run}")), "{}", told.stderr);
    project.sandbox.write("go", "");
    project.sandbox.until_step(&run, "b", "done");
    assert_eq!(project.sandbox.read("seen"), "b\n");
    drop(guest);
}
