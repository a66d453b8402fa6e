//! Many runs on one repository: each has its own worktree, none disturbs another, and none leaves anything behind.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use sprag_tests::{Project, Started, git, nightly, try_git, until};

/// Writes a file of its own, commits it, and tells what else is there.
const OWN: &str = "  - id: write
    run: |
      echo $SPRAG_RUN_ID > own-$SPRAG_RUN_ID.txt
      git add .
      git commit --quiet --message own
  - id: look
    needs: [write]
    run: |
      git status --porcelain > $OUT/status.$SPRAG_RUN_ID
      ls own-* > $OUT/files.$SPRAG_RUN_ID
      git log -1 --format=%s > $OUT/log.$SPRAG_RUN_ID
      pwd > $OUT/pwd.$SPRAG_RUN_ID
      git branch --show-current > $OUT/branch.$SPRAG_RUN_ID";

/// Waits for these processes, which must end well; how many there were.
fn finish(started: Vec<Started>) -> usize {
    let many = started.len();
    for one in started {
        let told = one.finish().expect(0);
        assert!(!told.stderr.contains("WARN"), "{}", told.stderr);
    }
    many
}

/// Asserts that each run had its own files, path and branch.
fn each_its_own(project: &Project, many: usize) {
    let dir = &project.repo();
    let runs = project.sandbox.json(["ls", "--json", "-n", "1000"]);
    let runs: Vec<&str> =
        runs.as_array().expect("runs").iter().filter_map(|run| run["id"].as_str()).collect();
    assert_eq!(runs.len(), many);
    let told = |what: &str| -> Vec<String> {
        let mut all: Vec<String> =
            runs.iter().map(|run| project.sandbox.read(&format!("{what}.{run}")).trim().to_owned()).collect();
        all.sort();
        all.dedup();
        all
    };
    assert_eq!((told("pwd").len(), told("branch").len()), (many, many));
    assert_eq!((told("status"), told("log")), (vec![String::new()], vec!["own".into()]));
    for run in &runs {
        assert_eq!(project.sandbox.read(&format!("files.{run}")).trim(), format!("own-{run}.txt"));
        // What it has committed is on its branch, and on no other.
        let branch = project.sandbox.read(&format!("branch.{run}"));
        let files = git(dir, ["diff", "--name-only", "main", branch.trim()]);
        assert_eq!(files, format!("own-{run}.txt"));
    }
    assert_eq!(git(dir, ["fsck", "--no-dangling"]), "");
    assert!(project.environments().is_empty(), "{:?}", project.environments());
    assert!(project.registered().is_empty(), "{:?}", project.registered());
}

fn worktrees(project: &Project) -> PathBuf {
    project.pipeline("own", "environment: {worktree: {}}", OWN)
}

fn processes(project: &Project, file: &Path, many: usize) -> Vec<Started> {
    (0..many).map(|_| project.start([OsStr::new("run"), file.as_os_str()])).collect()
}

#[test]
fn w01_runs_at_once_in_one_worker() {
    for many in nightly(vec![3, 10], vec![3, 10, 50]) {
        let project = Project::new();
        let file = worktrees(&project);
        for _ in 0..many {
            project.sprag([OsStr::new("run"), file.as_os_str(), "--detach".as_ref()]).expect(0);
        }
        let worker = project.start(["worker", "--until-idle", "--slots", "16"]);
        let told = worker.finish().expect(0);
        assert!(!told.stderr.contains("WARN"), "{}", told.stderr);
        let runs = project.sandbox.json(["ls", "--json", "-n", "1000"]);
        assert!(runs.as_array().expect("runs").iter().all(|run| run["status"] == "completed"), "{runs}");
        each_its_own(&project, many);
    }
}

#[test]
fn w02_processes_at_once() {
    let project = Project::new();
    let file = worktrees(&project);
    let started = processes(&project, &file, 10);
    each_its_own(&project, finish(started));
}

#[test]
fn w02_processes_beside_ordinary_git() {
    let project = Project::new();
    project.git(["clone", "--quiet", "--bare", ".", "../remote.git"]);
    project.git(["remote", "add", "origin", "../remote.git"]);
    let file = worktrees(&project);
    let mut started = processes(&project, &file, 20);
    let mut rounds = 0;
    while started.iter_mut().any(Started::is_running) && rounds < 1000 {
        rounds += 1;
        for args in [
            &["log", "--all", "--oneline"][..],
            &["worktree", "list", "--porcelain"],
            &["fetch", "--quiet", "origin"],
            &["branch", "--all"],
            &["branch", "a-person's"],
            &["branch", "-D", "a-person's"],
            &["gc", "--quiet"],
            &["status"],
        ] {
            let output = try_git(&project.repo(), args);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            // Plain git's own: gc stops when a branch goes while it packs, and says so.
            let allowed = args[0] == "gc" && said.contains("refs/");
            assert!(output.status.success() || allowed, "git {args:?}: {said}");
        }
    }
    assert!(rounds > 0);
    each_its_own(&project, finish(started));
}

#[test]
fn w04_all_ways_to_a_repository_are_one() {
    let project = Project::new();
    let file = worktrees(&project);
    let repo = project.repo();
    std::os::unix::fs::symlink(&repo, project.sandbox.path("link")).expect("a link");
    std::fs::create_dir(repo.join("folder")).expect("a folder");
    project.git(["worktree", "add", "--quiet", "--detach", "../linked"]);
    let ways =
        [repo.clone(), project.sandbox.path("link"), repo.join("folder"), project.sandbox.path("linked")];
    let run = [OsStr::new("run"), file.as_os_str()];
    let started: Vec<Started> = ways.iter().map(|way| project.start_in(way, run)).collect();
    each_its_own(&project, finish(started));
    // One repository: the worktree that the last run left ready is listed once, from every folder.
    let listed = project.sandbox.json(["env", "ls", "--json"]);
    let mut paths: Vec<&str> =
        listed.as_array().expect("a list").iter().filter_map(|one| one["path"].as_str()).collect();
    let all = paths.len();
    paths.dedup();
    assert!(all > 0 && paths.len() == all, "{listed}");
}

#[test]
fn w04_repositories_do_not_wait_for_each_other() {
    let project = Project::new();
    let other = project.repository("other");
    let file = worktrees(&project);
    project.run(&file, 0);
    // A process holds the first one's lock, for as long as the test needs.
    let held = std::fs::File::open(project.repo().join(".git/sprag/lock")).expect("the lock");
    held.lock().expect("it is free");
    let mut waiting = project.start([OsStr::new("run"), file.as_os_str()]);
    let free = project.start_in(&other, [OsStr::new("run"), file.as_os_str()]);
    free.finish().expect(0);
    assert!(waiting.is_running(), "{}", waiting.stderr());
    drop(held);
    waiting.finish().expect(0);
}

#[test]
fn w07_the_lock_is_free_while_a_step_runs() {
    let project = Project::new();
    let file = project.pipeline(
        "slow",
        "environment: {worktree: {}}",
        "  - {id: a, run: 'touch $OUT/begun; until [ -e $OUT/go ]; do read -t 0.02 x < /dev/null || :; done'}",
    );
    let slow = project.start([OsStr::new("run"), file.as_os_str()]);
    until("the step runs", || project.sandbox.path("begun").exists());
    let held = std::fs::File::open(project.repo().join(".git/sprag/lock")).expect("the lock");
    held.try_lock().expect("nobody has the lock");
    drop(held);
    // And another run gets through.
    let quick = project.pipeline("quick", "environment: {worktree: {}}", "  - {id: a, run: 'true'}");
    project.run(&quick, 0);
    project.sandbox.write("go", "");
    slow.finish().expect(0);
    project.assert_clean();
}

#[test]
fn w08_the_worktree_of_a_failed_or_cancelled_run_goes_and_others_stay() {
    let project = Project::new();
    let wait = "until [ -e $OUT/go ]; do read -t 0.02 x < /dev/null || :; done";
    let live = project.pipeline(
        "live",
        "environment: {worktree: {}}",
        &format!(
            "  - {{id: a, run: 'echo mine > mine.txt; touch $OUT/live; {wait}; cat mine.txt > $OUT/seen'}}"
        ),
    );
    let live = project.start([OsStr::new("run"), live.as_os_str()]);
    until("it works", || project.sandbox.path("live").exists());
    let failing = project.pipeline(
        "failing",
        "environment: {worktree: {branch: wanted}}",
        "  - {id: a, run: 'exit 3'}",
    );
    project.run(&failing, 100);
    assert_eq!(project.environments().len(), 1);
    let cancelled = project.pipeline(
        "cancelled",
        "environment: {worktree: {branch: wanted}}",
        "  - {id: a, run: 'touch $OUT/begun; sleep 300'}",
    );
    let started = project.start([OsStr::new("run"), cancelled.as_os_str()]);
    until("it works", || project.sandbox.path("begun").exists());
    let run = project.sandbox.newest().expect("a run");
    project.sprag(["cancel", &run]).expect(0);
    started.finish().expect(130);
    assert_eq!(project.environments().len(), 1, "{:?}", project.environments());
    assert!(!project.refs("refs/heads").contains(&"refs/heads/wanted".to_owned()));
    project.sandbox.write("go", "");
    live.finish().expect(0);
    assert_eq!(project.sandbox.read("seen"), "mine\n");
    project.assert_clean();
}

#[test]
fn w10_a_leftover_path_is_not_reused() {
    let project = Project::new();
    let file = project.pipeline("own", "environment: {worktree: {}}", "  - {id: a, run: 'ls > $OUT/files'}");
    let first = project.run(&file, 0);
    // What a person left where a worktree was.
    let path = project.worktree(&first);
    std::fs::create_dir_all(&path).expect("a folder");
    std::fs::write(path.join("theirs.txt"), "keep me\n").expect("a file");
    project.sprag(["rewind", &first, "--to", "a"]).expect(0);
    assert_eq!(project.sandbox.read("files"), "shared.txt\n");
    assert_eq!(std::fs::read_to_string(path.join("theirs.txt")).unwrap(), "keep me\n");
}

#[test]
fn w12_a_fan_out_with_environments_of_their_own_beside_three_runs() {
    let project = Project::new();
    let fan = project.pipeline(
        "fan",
        "environment: {worktree: {}}",
        "  - id: all
    foreach: [one, two, three, four, five]
    environment: own
    fail_fast: false
    run: |
      echo {{ item }} > own.txt
      pwd >> $OUT/places
      [ {{ item }} != three ]
      cat own.txt >> $OUT/done",
    );
    let file = worktrees(&project);
    let fan = project.start([OsStr::new("run"), fan.as_os_str()]);
    for started in processes(&project, &file, 3) {
        started.finish().expect(0);
    }
    let told = fan.finish();
    let mut done = project.sandbox.lines("done");
    done.sort();
    assert_eq!(done, ["five", "four", "one", "two"], "{}", told.stderr);
    let mut places = project.sandbox.lines("places");
    places.sort();
    places.dedup();
    assert_eq!(places.len(), 5);
    assert!(project.environments().is_empty(), "{:?}", project.environments());
    assert!(project.registered().is_empty());
}

#[test]
fn w13_log_lines_and_events_have_run_and_path() {
    let project = Project::new();
    let file = project.pipeline("own", "environment: {worktree: {}}", "  - {id: a, run: 'exit 3'}");
    let mut command = project.sandbox.command([OsStr::new("run"), file.as_os_str()]);
    command.current_dir(project.repo()).env("SPRAG_LOG", "info");
    let told = project.sandbox.start_command(command).finish().expect(100);
    let run = project.sandbox.newest().expect("a run");
    let path = project.worktree(&run).display().to_string();
    for what in ["worktree created", "environment removed"] {
        let line = told
            .stderr
            .lines()
            .find(|line| line.contains(what))
            .unwrap_or_else(|| panic!("{what}: {}", told.stderr));
        assert!(line.contains(&run) && line.contains(&path), "{line}");
    }
    let journal = project.sandbox.journal(Some(&run));
    // Which worktree it had, and how its clean-up went.
    let told: Vec<&str> = journal
        .entries
        .iter()
        .filter(|entry| entry.entity == "environment")
        .inspect(|entry| assert_eq!(entry.path.as_deref(), Some(path.as_str()), "{entry:?}"))
        .map(|entry| entry.event.as_str())
        .collect();
    assert_eq!(
        told,
        ["environment.created", "provision.succeeded", "destroy.dispatched", "destroy.succeeded"]
    );
    assert!(journal.entries.iter().all(|entry| entry.run.as_deref() == Some(&run)));
    let shown = project.sprag(["events", "--run", &run]).expect(0).stdout;
    assert!(shown.lines().any(|line| line.contains("destroy.succeeded") && line.contains(&path)), "{shown}");
}

#[test]
fn w13_events_have_the_reason_of_a_failed_worktree() {
    let project = Project::new();
    let head = "environment: {worktree: {base: nowhere}}";
    let file = project.pipeline("own", head, "  - {id: a, run: 'true'}");
    // With a key the run may exist already, so the base is not looked for before the start.
    let file = file.to_str().expect("text");
    project.sprag(["run", file, "--idempotency-key", "once"]).expect(100);
    let run = project.sandbox.newest().expect("a run");
    let journal = project.sandbox.journal(Some(&run));
    let failed = journal.entries.iter().find(|entry| entry.event == "provision.failed").expect("it is told");
    assert!(
        failed.reason.as_deref().is_some_and(|why| why.contains("`nowhere` names no commit")),
        "{failed:?}"
    );
    assert!(failed.path.as_deref().is_some_and(|path| path.ends_with(&run)), "{failed:?}");
}

#[test]
fn a_worker_prints_its_figures_when_it_stops() {
    let project = Project::new();
    let file = worktrees(&project);
    for _ in 0..2 {
        project.sprag([OsStr::new("run"), file.as_os_str(), "--detach".as_ref()]).expect(0);
        let told = project.start(["worker", "--until-idle"]).finish().expect(0).stderr;
        let line =
            told.lines().find(|line| line.starts_with("worktrees: ")).unwrap_or_else(|| panic!("{told}"));
        assert!(line.contains("1 made") && line.contains("repository lock: "), "{line}");
    }
}
