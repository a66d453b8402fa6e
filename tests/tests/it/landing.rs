//! Landing: the work of a run's worktree goes onto a branch, verified and in turns, without harm to a person's work.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use sprag_tests::{Project, Server, Signal, Started, git, until};

/// A process that was told to stop, and has nothing to finish, ends within this time on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const TREE: &str = "environment: {worktree: {}}";

/// Waits for a file, without a process of its own.
pub(crate) const UNTIL_GO: &str = "until [ -e $OUT/go ]; do read -t 0.02 x < /dev/null || :; done";

/// Returns a pipeline that commits its own file, and lands.
pub(crate) fn lands(project: &Project, name: &str, land: &str) -> PathBuf {
    lands_and(project, name, land, "")
}

/// Returns the same, with steps after it.
pub(crate) fn lands_and(project: &Project, name: &str, land: &str, after: &str) -> PathBuf {
    let work = "echo $SPRAG_RUN_ID > $SPRAG_RUN_ID.txt; git add .; git commit -qm \"work of $SPRAG_RUN_ID\"";
    let steps = format!(
        "  - {{id: work, run: '{work}'}}\n  - id: land\n    needs: [work]\n    land: {land}\n{after}"
    );
    project.pipeline(name, TREE, &steps)
}

pub(crate) fn start(project: &Project, file: &std::path::Path) -> Started {
    project.start([OsStr::new("run"), file.as_os_str()])
}

#[test]
fn land_by_rebase_merge_and_squash() {
    let subjects = |project: &Project| project.git(["log", "--format=%s", "--first-parent", "main"]);
    let parents = |project: &Project| project.git(["log", "-1", "--format=%P", "main"]).split(' ').count();
    for (strategy, subject, many) in
        [("rebase", "work of RUN", 1), ("merge", "Land it", 2), ("squash", "Land it", 1)]
    {
        let project = Project::new();
        let file =
            lands(&project, "lands", &format!("{{into: main, strategy: {strategy}, message: Land it}}"));
        let run = project.run(&file, 0);
        assert_eq!(subjects(&project), format!("{}\nfirst", subject.replace("RUN", &run)));
        assert_eq!(parents(&project), many, "{strategy}");
        // The main checkout was clean: it has the new files now.
        assert_eq!(project.read(&format!("{run}.txt")), format!("{run}\n"));
        assert_eq!(project.git(["status", "--porcelain"]), "");
        assert_eq!(project.git(["branch", "--show-current"]), "main");
        if strategy != "squash" {
            project.assert_clean();
        }
    }
}

#[test]
fn land_commits_uncommitted_changes() {
    let project = Project::new();
    let steps = "  - {id: work, run: 'echo new > new.txt; echo changed > shared.txt'}\n  - {id: land, needs: [work], land: {into: main, message: All of it}}";
    project.run(&project.pipeline("lands", TREE, steps), 0);
    assert_eq!((project.read("new.txt"), project.read("shared.txt")), ("new\n".into(), "changed\n".into()));
    assert_eq!(project.git(["log", "--format=%s", "main"]), "All of it\nfirst");
    project.assert_clean();
}

#[test]
fn land_is_refused_when_verify_fails() {
    let project = Project::new();
    let file = lands(&project, "lands", "{into: main, verify: 'ls; echo it is wrong; exit 7'}");
    let before = project.git(["rev-parse", "main"]);
    let told = start(&project, &file).finish().expect(100);
    assert!(told.stderr.contains("exit code 7"), "{}", told.stderr);
    assert_eq!(project.git(["rev-parse", "main"]), before);
    let run = project.sandbox.newest().expect("a run");
    // Its work is not lost: the branch stays.
    assert_eq!(project.refs("refs/heads/sprag"), [format!("refs/heads/sprag/lands-{run}")]);
    // Verify sees the result on top of what came meanwhile.
    project.commit("theirs.txt", "theirs\n");
    let file = lands(&project, "again", "{into: main, verify: 'test -e theirs.txt'}");
    project.run(&file, 0);
}

#[test]
fn land_on_a_branch_that_does_not_exist() {
    let project = Project::new();
    let told = start(&project, &lands(&project, "lands", "nowhere")).finish().expect(100);
    assert!(told.stderr.contains("`nowhere`"), "{}", told.stderr);
    assert_eq!(project.refs("refs/heads/nowhere"), Vec::<String>::new());
}

#[test]
fn land_conflict_goes_back_to_the_step_with_files_and_hunks() {
    for strategy in ["rebase", "merge", "squash"] {
        let project = Project::new();
        let steps = format!(
            "  - id: work
    run: |
      if [ -n \"$SPRAG_FEEDBACK\" ]; then
        printf '%s' \"$SPRAG_FEEDBACK\" > $OUT/feedback
        git reset --quiet --hard main
      fi
      echo ours > shared.txt
      git commit --quiet --all --message ours
      if [ -z \"$SPRAG_FEEDBACK\" ]; then
        echo theirs > $REPO/shared.txt
        git -C $REPO commit --quiet --all --message theirs
      fi
  - id: land
    needs: [work]
    land: {{into: main, strategy: {strategy}, message: Land it}}
    on_fail: {{rework: work, max: 2}}"
        );
        project.run(&project.pipeline("lands", TREE, &steps), 0);
        let feedback = project.sandbox.read("feedback");
        for part in ["shared.txt", "<<<<<<<", "ours", "theirs"] {
            assert!(feedback.contains(part), "{strategy}: no {part} in {feedback}");
        }
        assert_eq!(project.git(["show", "main:shared.txt"]), "ours");
        assert_eq!(
            project.git(["log", "--format=%s", "--first-parent", "main"]).lines().nth(1),
            Some("theirs")
        );
    }
}

#[test]
fn land_many_at_once() {
    let project = Project::new();
    // A slow `verify` gives the others time to land first.
    let file = lands(&project, "lands", "{into: main, verify: 'git log --oneline | wc -l'}");
    let started: Vec<Started> = (0..4).map(|_| start(&project, &file)).collect();
    for one in started {
        one.finish().expect(0);
    }
    assert_eq!(project.git(["log", "--format=%s", "main"]).lines().count(), 5);
    assert_eq!(project.git(["status", "--porcelain"]), "");
    project.assert_clean();
}

#[test]
fn land_again_when_the_branch_moved_meanwhile() {
    let project = Project::new();
    let verify = format!("echo >> $OUT/verified; {UNTIL_GO}");
    let file = lands(&project, "lands", &format!("{{into: main, verify: '{verify}'}}"));
    let lander = start(&project, &file);
    until("it verifies", || project.sandbox.lines("verified").len() == 1);
    // A person, who knows nothing of landers, is quicker.
    project.commit("theirs.txt", "theirs\n");
    project.sandbox.write("go", "");
    lander.finish().expect(0);
    assert_eq!(project.sandbox.lines("verified").len(), 2);
    assert_eq!(project.git(["log", "--format=%s", "main"]).lines().nth(1), Some("theirs.txt by a person"));
}

#[test]
fn land_of_a_fenced_off_attempt_does_not_count() {
    let project = Project::new();
    let verify = format!(
        "echo $SPRAG_ATTEMPT >> $OUT/verified; if [ $SPRAG_ATTEMPT = 1 ]; then touch $OUT/begun; {UNTIL_GO}; fi"
    );
    let file = lands(&project, "lands", &format!("{{into: main, verify: '{verify}'}}"));
    project.sprag([OsStr::new("run"), file.as_os_str(), "--detach".as_ref()]).expect(0);
    let run = project.sandbox.newest().expect("a run");
    let worker = ["worker", "--lease", "5s"];
    let stopped = project.start(worker);
    until("it verifies", || project.sandbox.path("begun").exists());
    stopped.stop_between_writes();
    let successor = project.start(worker);
    // The successor has the step, and has fenced off the one before.
    let fence = format!("refs/sprag/fence/{run}-s1");
    let first = project.git(["rev-parse", &fence]);
    until("the successor has the fence", || project.git(["rev-parse", &fence]) != first);
    let before = project.git(["rev-parse", "main"]);
    project.sandbox.write("go", "");
    stopped.signal(Signal::CONT);
    project.sandbox.ends_as(&run, "completed");
    assert_eq!(project.git(["log", "--format=%P", "-1", "main"]), before);
    assert_eq!(project.sandbox.lines("verified"), ["1", "2"]);
    drop((stopped, successor));
    project.sandbox.check(&run);
}

#[test]
fn land_example_as_the_readme_shows_it() {
    let project = Project::new();
    let scratch = project.sandbox.path("scratch");
    std::fs::create_dir(&scratch).expect("a folder");
    git(&scratch, ["init", "--quiet", "--initial-branch=main"]);
    git(&scratch, ["config", "user.name", "A Person"]);
    git(&scratch, ["config", "user.email", "person@example.org"]);
    git(&scratch, ["commit", "--quiet", "--allow-empty", "--message", "first"]);
    let example = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/land.yaml");
    std::fs::copy(example, scratch.join("land.yaml")).expect("the example is there");
    let words = ["red", "green", "blue"];
    let started = words
        .map(|word| project.start_in(&scratch, ["run", "land.yaml", "--input", &format!("word={word}")]));
    for one in started {
        one.finish().expect(0);
    }
    assert_eq!(std::fs::read_to_string(scratch.join("words.txt")).expect("landed"), "blue\ngreen\nred\n");
    assert_eq!(git(&scratch, ["log", "--format=%s", "main"]).lines().count(), 4);
    assert_eq!(git(&scratch, ["status", "--porcelain"]), "?? land.yaml");
    assert_eq!(git(&scratch, ["for-each-ref", "--format=%(refname)", "refs/heads"]), "refs/heads/main");
}

/// A landing may wait long for its turn. A worker that is told to stop returns it, so that another one lands it: the same
/// attempt, which has not failed.
#[test]
fn e19_a_worker_that_stops_returns_a_landing_that_waits_its_turn() {
    let project = Project::new();
    let sandbox = &project.sandbox;
    let verify = format!("echo $SPRAG_RUN_ID >> $OUT/verified; {UNTIL_GO}");
    let file = lands(&project, "lands", &format!("{{into: main, verify: '{verify}'}}"));
    let far = project.pipeline(
        "far",
        TREE,
        "  - {id: work, queue: far, run: 'echo far > far.txt'}\n  \
           - {id: land, queue: far, needs: [work], land: {into: main}}",
    );
    let holder = start(&project, &file);
    until("a landing has its turn", || sandbox.lines("verified").len() == 1);
    let detach = |file: &PathBuf| {
        let told =
            project.sprag([OsStr::new("run"), file.as_os_str(), "--detach".as_ref(), "--json".as_ref()]);
        told.expect(0).json()["run"].as_str().expect("an id").to_owned()
    };
    // The worker that does it is the n-th.
    let waits = |run: &str, nth: usize| {
        let log = ["logs", run, "land"];
        until("the landing waits", || {
            project.sprag(log).stdout.matches("which lands on main").count() == nth
        });
    };
    // A process that is told to stop ends while the other landing still has its turn, and the step is free again.
    let stops = |process: &mut Started, run: &str| {
        process.signal(Signal::TERM);
        assert!(process.ends_within(PATIENCE), "it waits for its turn: {}", process.stderr());
        let land = sandbox.step(run, "land");
        assert_eq!((&land["waiting_for"], &land["attempt"]), (&json!("worker"), &json!(1)), "{land}");
    };
    let run = detach(&file);
    let mut worker = project.start(["worker"]);
    waits(&run, 1);
    stops(&mut worker, &run);
    let mut serving = project.start(["serve", "--listen", "127.0.0.1:0"]);
    waits(&run, 2);
    stops(&mut serving, &run);
    // A worker without a database does the same, and the log of the attempt starts again.
    let server = Server::start(sandbox, &["--no-worker"]);
    let away = || {
        let url = format!("http://{}", server.addr);
        let mut command = project.command_in(&project.repo(), ["worker", "--server", &url, "--queue", "far"]);
        command.env("SPRAG_DATA", sandbox.path("elsewhere")).env("SPRAG_TOKEN", &server.token);
        sandbox.start_command(command)
    };
    let far_run = detach(&far);
    let mut remote = away();
    waits(&far_run, 1);
    stops(&mut remote, &far_run);
    assert_eq!(project.sprag(["logs", &far_run, "land"]).stdout, "");
    assert_eq!(sandbox.lines("verified").len(), 1);

    sandbox.write("go", "");
    holder.finish().expect(0);
    let _remote = away();
    project.sprag(["worker", "--until-idle"]).expect(0);
    for run in [&run, &far_run] {
        sandbox.ends_as(run, "completed");
        assert_eq!(sandbox.step(run, "land")["attempt"], 1);
        let log = project.sprag(["logs", run, "land"]).stdout;
        assert!(log.lines().any(|line| line.contains("landed ")), "{log}");
        sandbox.check(run);
    }
    assert_eq!(project.git(["log", "--format=%s", "main"]).lines().count(), 4);
    assert_eq!(project.read("far.txt"), "far\n");
}
