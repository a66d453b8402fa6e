//! `environment:` and `sprag env`: what runs get to work in, and how people see to what is left of it.

use std::ffi::OsStr;
use std::fs;

use sprag_tests::{Project, Started, git, until};

const TREE: &str = "environment: {worktree: {}}";
const COMMIT: &str = "echo x > x; git add x; git commit -qm mine";
/// Waits for a file, without a process of its own.
const UNTIL_GO: &str = "until [ -e $OUT/go ]; do read -t 0.02 x < /dev/null || :; done";

fn one(project: &Project, environment: &str, run: &str) -> std::path::PathBuf {
    project.pipeline(
        "one",
        &format!("environment: {environment}"),
        &format!("  - id: a\n    run: |\n      {run}"),
    )
}

fn start(project: &Project, file: &std::path::Path) -> Started {
    project.start([OsStr::new("run"), file.as_os_str()])
}

#[test]
fn environment_of_ignored_files() {
    let project = Project::new();
    for (name, text) in [("ignored.env", "1"), ("ignored.too", "2"), ("ignored.not", "3")] {
        fs::write(project.repo().join(name), text).expect("a file");
    }
    fs::write(project.repo().join(".worktreeinclude"), "ignored.too\n").expect("a file");
    project.run(&one(&project, "{worktree: {}, include: [ignored.env]}", "ls > $OUT/files"), 0);
    assert_eq!(project.sandbox.read("files"), "ignored.env\nignored.too\nshared.txt\n");
    // A link does not lead out of the repository.
    std::os::unix::fs::symlink("/etc/hostname", project.repo().join("ignored.link")).expect("a link");
    let told = start(&project, &one(&project, "{worktree: {}, include: [ignored.link]}", "true"))
        .finish()
        .expect(100);
    assert!(told.stderr.contains("ignored.link"), "{}", told.stderr);
    project.assert_clean();
}

#[test]
fn environment_setup_runs_once_for_its_files() {
    let project = Project::new();
    project
        .commit("setup.sh", "echo set >> $OUT/setups; mkdir -p ignored.cache; echo made > ignored.cache/x\n");
    let environment = "{worktree: {}, setup: {run: sh setup.sh, files: [setup.sh], caches: [ignored.cache]}}";
    let file = one(&project, environment, "cat ignored.cache/x >> $OUT/seen");
    for _ in 0..3 {
        project.run(&file, 0);
    }
    assert_eq!((project.sandbox.lines("setups").len(), project.sandbox.lines("seen").len()), (1, 3));
    project.commit("setup.sh", "echo again >> $OUT/setups; echo made > ignored.cache/x\n");
    project.run(&file, 0);
    assert_eq!(project.sandbox.lines("setups"), ["set", "again"]);
}

#[test]
fn environment_setup_that_fails_or_hangs() {
    let project = Project::new();
    let file = one(&project, "{worktree: {}, setup: {run: 'echo no luck; exit 5'}}", "touch $OUT/ran");
    let told = start(&project, &file).finish().expect(100);
    assert!(told.stderr.contains("setup") && told.stderr.contains("exit code 5"), "{}", told.stderr);
    let file = one(&project, "{worktree: {}, setup: {run: sleep 300, timeout: 200ms}}", "touch $OUT/ran");
    start(&project, &file).finish().expect(100);
    assert!(!project.sandbox.path("ran").exists());
    project.assert_clean();
}

#[test]
fn environment_ports_and_variables() {
    let project = Project::new();
    let environment = "{worktree: {}, ports: [web, db], env: {WHO: '{{ run.id }}', WEB: x}}";
    let run =
        format!("echo $SPRAG_PORT_WEB $SPRAG_PORT_DB >> $OUT/ports; test $WHO = $SPRAG_RUN_ID; {UNTIL_GO}");
    let file = one(&project, environment, &run);
    let both = [start(&project, &file), start(&project, &file)];
    until("both have ports", || project.sandbox.lines("ports").len() == 2);
    let leased = fs::read_to_string(project.sandbox.data().join("ports.json")).expect("leases");
    let ports = project.sandbox.read("ports");
    let mut ports: Vec<&str> = ports.split_whitespace().collect();
    assert!(ports.iter().all(|port| leased.contains(port)), "{leased}");
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 4);
    project.sandbox.write("go", "");
    for started in both {
        started.finish().expect(0);
    }
    assert_eq!(fs::read_to_string(project.sandbox.data().join("ports.json")).expect("leases"), "{}");
}

#[test]
fn environment_that_is_a_folder() {
    let project = Project::new();
    let file = one(&project, "{directory: '../place-{{ run.id }}'}", "echo mine > mine.txt");
    let run = project.run(&file, 0);
    assert_eq!(project.sandbox.read(&format!("place-{run}/mine.txt")), "mine\n");
    project.assert_clean();
}

#[test]
fn environment_behind_a_link_to_the_data_directory() {
    let project = Project::new();
    fs::create_dir(project.sandbox.path("real")).expect("a folder");
    std::os::unix::fs::symlink("real", project.sandbox.path("data")).expect("a link");
    let steps = "  - {id: a, run: 'echo a > a.txt'}\n  - {id: b, needs: [a], run: 'cat a.txt'}";
    project.run(&project.pipeline("two", TREE, steps), 0);
    project.assert_clean();
}

#[test]
fn environment_that_cannot_be_made() {
    let project = Project::new();
    let file = one(&project, "{worktree: {base: nowhere}}", "true");
    let told = start(&project, &file).finish().expect(100);
    assert!(told.stderr.contains("`nowhere` names no commit"), "{}", told.stderr);
    for branch in ["a..b", "x.lock", "@", "HEAD", "a b"] {
        let told = start(&project, &one(&project, &format!("{{worktree: {{branch: '{branch}'}}}}"), "true"))
            .finish();
        assert!(told.code != 0 && told.stderr.contains(&format!("`{branch}`")), "{branch}: {}", told.stderr);
    }
    project.assert_clean();
    let file = one(&project, "{worktree: {}}", "true");
    let plain = project.sandbox.path("plain");
    let empty = project.sandbox.path("empty");
    fs::create_dir(&plain).expect("a folder");
    fs::create_dir(&empty).expect("a folder");
    git(&empty, ["init", "--quiet"]);
    for (folder, told) in [(&plain, "is not in a git repository"), (&empty, "has no commits yet")] {
        let answer = project.start_in(folder, [OsStr::new("run"), file.as_os_str()]).finish().expect(100);
        assert!(answer.stderr.contains(told), "{}", answer.stderr);
    }
    assert!(git(&empty, ["for-each-ref"]).is_empty() && project.environments().is_empty());
    // A bare one is as good as any.
    project.git(["clone", "--quiet", "--bare", ".", "../bare.git"]);
    project
        .start_in(&project.sandbox.path("bare.git"), [OsStr::new("run"), file.as_os_str()])
        .finish()
        .expect(0);
    assert!(project.environments().is_empty());
}

#[test]
fn env_keep_never_on_failure_always() {
    for (keep, code, stays) in [
        ("never", 0, false),
        ("never", 100, false),
        ("on_failure", 0, false),
        ("on_failure", 100, true),
        ("always", 0, true),
    ] {
        let project = Project::new();
        let file = one(
            &project,
            &format!("{{worktree: {{keep: {keep}}}}}"),
            &format!("echo x > x; exit {}", code.min(1)),
        );
        let run = project.run(&file, code);
        assert_eq!(project.worktree(&run).join("x").exists(), stays, "{keep} {code}");
        let why = project.sprag(["env", "ls"]).expect(0).stdout;
        assert_eq!(why.contains(&format!("keep: {keep}")), stays, "{why}");
        project.sprag(["env", "gc"]).expect(0);
        assert_eq!(project.environments().len(), usize::from(stays), "gc respects `keep`");
        project.sprag(["env", "rm", &run]).expect(0);
        project.assert_clean();
        assert_eq!(project.refs("refs/sprag/salvage"), [format!("refs/sprag/salvage/{run}")]);
    }
}

#[test]
fn env_rm_is_refused_while_the_run_lives() {
    let project = Project::new();
    let started = start(
        &project,
        &one(&project, "{worktree: {}}", &format!("touch $OUT/begun; {UNTIL_GO}; test -e shared.txt")),
    );
    until("it works", || project.sandbox.path("begun").exists());
    let run = project.sandbox.newest().expect("a run");
    let told = project.sprag(["env", "rm", &run]).expect(1);
    assert!(told.stderr.contains("in use"), "{}", told.stderr);
    project.sprag(["env", "gc"]).expect(0);
    let shown = project.sprag(["env", "show", &run]).expect(0).stdout;
    assert!(shown.contains("its run is running"), "{shown}");
    project.sandbox.write("go", "");
    started.finish().expect(0);
    project.assert_clean();
}

#[test]
fn env_gc_does_what_its_dry_run_says() {
    let project = Project::new();
    // A branch with work that nothing else holds, one that was merged since, one that is pooled.
    project.run(&one(&project, "{worktree: {branch: unmerged}}", COMMIT), 0);
    project.run(&one(&project, "{worktree: {branch: merged}}", COMMIT), 0);
    project.git(["merge", "--quiet", "merged"]);
    project.git(["pack-refs", "--all"]);
    let kept = project.run(&one(&project, "{worktree: {keep: always}}", "echo x > x"), 0);
    let lines = |args: &[&str]| -> Vec<String> {
        let told = project.sprag(args).expect(0).stdout;
        told.lines().filter_map(|line| line.rsplit_once(": ").map(|(what, _)| what.to_owned())).collect()
    };
    let said = lines(&["env", "gc", "--dry-run"]);
    assert!(said.iter().any(|line| line == "branch merged"), "{said:?}");
    assert!(!said.iter().any(|line| line.contains("unmerged") || line.contains(&kept)), "{said:?}");
    assert_eq!(said, lines(&["env", "gc", "--dry-run"]), "looking changes nothing");
    assert_eq!(said, lines(&["env", "gc"]));
    assert_eq!(lines(&["env", "gc", "--dry-run"]), Vec::<String>::new());
    assert_eq!(project.git(["log", "-1", "--format=%s", "unmerged"]), "mine");
    assert_eq!(project.environments().len(), 1);
}
