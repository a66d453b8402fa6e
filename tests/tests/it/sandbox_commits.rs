//! The commits of sandboxed steps: those of a setup and of an agent stay, those of a lost attempt move no branch, and none
//! is deleted before it is taken over.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use sprag_process::sandbox_support;
use sprag_tests::{Project, until};

/// Returns whether sandboxes work on this machine; otherwise prints why the test is skipped.
fn works() -> bool {
    match sandbox_support() {
        Ok(()) => true,
        Err(why) => {
            println!("SKIPPED: no sandbox can be made here: {why}");
            false
        }
    }
}

fn subject(project: &Project, revision: &str) -> String {
    project.git(["log", "-1", "--format=%s", revision]).trim().to_owned()
}

/// Returns the folders that the sandboxes of a run have left.
fn left_of(project: &Project, run: &str) -> Vec<String> {
    let folder = project.sandbox.data().join("runs").join(run).join("sandbox");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn s19_a_worker_that_lost_a_sandboxed_step_moves_no_branch() {
    if !works() {
        return;
    }
    let project = Project::new();
    let sandbox = &project.sandbox;
    let out = sandbox.path("out");
    fs::create_dir_all(&out).unwrap();
    let steps = format!(
        r#"  - id: work
    sandbox: {{ write: [worktree, '{out}'] }}
    run: |
      echo $SPRAG_ATTEMPT > f.txt; git add f.txt; git commit -qm attempt-$SPRAG_ATTEMPT
      echo up > {out}/up$SPRAG_ATTEMPT
      while ! test -e {out}/go; do sleep 0.1; done"#,
        out = out.display()
    );
    let file = project.pipeline("lost", "environment: {worktree: {branch: work, keep: always}}", &steps);
    let run = project.sprag(["run".as_ref(), file.as_os_str(), "--detach".as_ref()]).expect(0);
    let run = run.stdout.split_whitespace().next().map(str::to_owned).expect("an id");
    let first = project.start(["worker", "--lease", "5s"]);
    until("the first attempt has committed", || out.join("up1").exists());
    first.signal(Signal::STOP);
    let second = project.start(["worker", "--lease", "5s"]);
    until("the second attempt has committed", || out.join("up2").exists());
    let base = project.git(["rev-parse", "main"]);
    assert_eq!(project.git(["rev-parse", "work"]), base);
    first.signal(Signal::CONT);
    until("the commits of the first attempt are kept", || !project.refs("refs/sprag/salvage").is_empty());
    assert_eq!(project.git(["rev-parse", "work"]), base, "the branch belongs to the second attempt");
    fs::write(out.join("go"), "").unwrap();
    sandbox.ends_as(&run, "completed");
    assert_eq!(subject(&project, "work"), "attempt-2");
    assert_eq!(subject(&project, &format!("refs/sprag/salvage/{run}")), "attempt-1");
    until("no folder is left", || left_of(&project, &run).is_empty());
    for worker in [first, second] {
        worker.signal(Signal::TERM);
        worker.finish().expect(0);
    }
    project.git(["fsck", "--no-dangling"]);
}

#[test]
fn s19_a_sandboxed_setup_keeps_its_commits() {
    if !works() {
        return;
    }
    let project = Project::new();
    let head = "environment:\n  worktree: {branch: work, keep: always}\n  \
                setup: 'echo made > made.txt; git add made.txt; git commit -qm by-setup'\nsandbox: {}";
    let steps = "  - {id: a, run: 'test \"$(git log -1 --format=%s)\" = by-setup'}\n  \
                 - {id: b, run: 'echo b > b.txt; git add b.txt; git commit -qm by-step'}";
    let file = project.pipeline("setup", head, steps);
    let run = project.run(&file, 0);
    assert_eq!(project.git(["log", "--format=%s", "main..work"]).trim(), "by-step\nby-setup");
    assert_eq!(left_of(&project, &run), [""; 0]);
    project.git(["fsck", "--no-dangling"]);
}

#[test]
fn s19_commits_that_cannot_be_taken_over_stay_and_fail_the_step() {
    if !works() {
        return;
    }
    let project = Project::new();
    // The branch of the sandbox names a commit that does not exist; the commit before it does.
    let steps = r#"  - id: work
    run: |
      echo made > made.txt; git add made.txt; git commit -qm made
      git rev-parse HEAD > kept-name
      mkdir -p "$(git rev-parse --git-common-dir)/refs/heads"
      printf '%040d\n' 7 > "$(git rev-parse --git-common-dir)/refs/heads/work""#;
    let file =
        project.pipeline("kept", "environment: {worktree: {branch: work, keep: always}}\nsandbox: {}", steps);
    let run = project.run(&file, 100);
    let explained = project.sprag(["explain", &run]).stdout;
    assert!(explained.contains("its commits are only in the git folder"), "{explained}");
    assert_eq!(project.git(["rev-parse", "work"]), project.git(["rev-parse", "main"]));
    let left = left_of(&project, &run);
    assert_eq!(left.len(), 1, "{left:?}");
    let git = project.sandbox.data().join("runs").join(&run).join("sandbox").join(&left[0]).join("git");
    assert!(explained.contains(&shown(&git)), "{explained}");
    let name = fs::read_to_string(project.worktree(&run).join("kept-name")).unwrap();
    let (folder, rest) = name.trim().split_at(2);
    assert!(git.join("objects").join(folder).join(rest).exists(), "the only copy of the commit");
}
