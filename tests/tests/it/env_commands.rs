//! `environment:` and `sprag env`: the environments of runs, and their clean-up by people.

use std::ffi::OsStr;
use std::fs;

use sprag_tests::{Project, Started, git, until};

const TREE: &str = "environment: {worktree: {}}";
const COMMIT: &str = "echo $SPRAG_RUN_ID > x; git add x; git commit -qm mine";
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
fn environment_that_was_set_up_for_the_same_files_is_preferred() {
    let project = Project::new();
    let setup = |name: &str| {
        format!("echo {name} >> $OUT/setups; mkdir -p ignored.cache; echo {name} > ignored.cache/x\n")
    };
    project.commit("setup.sh", &setup("main"));
    project.git(["switch", "--quiet", "--create", "other"]);
    project.commit("setup.sh", &setup("other"));
    project.git(["switch", "--quiet", "main"]);
    let of = |base: &str, run: &str| {
        let environment = format!(
            "{{worktree: {{base: {base}}}, setup: {{run: sh setup.sh, files: [setup.sh], caches: [ignored.cache]}}}}"
        );
        let steps = format!("  - id: a\n    run: |\n      {run}");
        project.pipeline(base, &format!("environment: {environment}"), &steps)
    };
    // Both at once, so that two are kept ready.
    let wait = format!("touch $OUT/$(cat ignored.cache/x); {UNTIL_GO}");
    let both = ["main", "other"].map(|base| start(&project, &of(base, &wait)));
    until("both work", || ["main", "other"].iter().all(|base| project.sandbox.path(base).exists()));
    project.sandbox.write("go", "");
    for started in both {
        started.finish().expect(0);
    }
    for base in ["main", "other", "other", "main"] {
        project.run(&of(base, "cat ignored.cache/x >> $OUT/seen"), 0);
    }
    assert_eq!(project.sandbox.lines("seen"), ["main", "other", "other", "main"]);
    assert_eq!(
        project.sandbox.lines("setups").len(),
        2,
        "once for each: {:?}",
        project.sandbox.lines("setups")
    );
}

#[test]
fn caches_of_one_pipeline_or_base_are_not_read_by_another() {
    let project = Project::new();
    project.commit("setup.sh", "echo set >> $OUT/setups; mkdir -p ignored.cache\n");
    project.git(["branch", "other"]);
    let of = |name: &str, base: &str| {
        let environment = format!(
            "{{worktree: {{base: {base}}}, setup: {{run: sh setup.sh, files: [setup.sh], caches: [ignored.cache]}}}}"
        );
        let run = format!(
            "cat ignored.cache/* >> $OUT/seen-{name}-{base} || true; echo {name}-{base} >> ignored.cache/x"
        );
        project.pipeline(
            name,
            &format!("environment: {environment}"),
            &format!("  - id: a\n    run: |\n      {run}"),
        )
    };
    let runs = [("one", "main"), ("one", "main"), ("two", "main"), ("two", "other"), ("one", "main")];
    for (name, base) in runs {
        project.run(&of(name, base), 0);
    }
    let seen = |name: &str| project.sandbox.lines(&format!("seen-{name}"));
    assert_eq!(
        seen("one-main"),
        ["one-main"],
        "its own, once: those of the last run were removed for another"
    );
    assert_eq!((seen("two-main").len(), seen("two-other").len()), (0, 0));
    assert_eq!(project.sandbox.lines("setups").len(), 4, "what it needs is made again");
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
    // It is told before a run starts, once, with what to do.
    let told = start(&project, &file).finish().expect(2).stderr;
    assert_eq!(
        told,
        "error: the base `nowhere` names no commit\nnext: name a branch, tag or commit that exists, or fetch it first\n"
    );
    for branch in ["a..b", "x.lock", "@", "HEAD", "a b"] {
        // Told before anything is made, with its place; and at the first step, if it comes from an input.
        let file = one(&project, &format!("{{worktree: {{branch: '{branch}'}}}}"), "true");
        let told = project.sprag([OsStr::new("validate"), file.as_os_str()]).expect(2);
        assert!(told.stderr.contains("one.yaml:2:") && told.stderr.contains(branch), "{}", told.stderr);
        let head = "inputs: {name: string}\nenvironment: {worktree: {branch: '{{ inputs.name }}'}}";
        let file = project.pipeline("given", head, "  - {id: a, run: 'true'}");
        let input = format!("name={branch}");
        let args = [OsStr::new("run"), file.as_os_str(), "--input".as_ref(), input.as_ref()];
        let told = project.sprag(args);
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
        let answer = project.start_in(folder, [OsStr::new("run"), file.as_os_str()]).finish().expect(1);
        assert_eq!(answer.stderr.matches(told).count(), 1, "{}", answer.stderr);
    }
    assert!(!project.sprag(["ls"]).expect(0).stdout.contains(" one "), "no run was started");
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

#[test]
fn env_gc_deletes_refs_of_old_runs() {
    let project = Project::new();
    let steps = "  - {id: work, run: 'echo x > x.txt; git add .; git commit -qm x; echo more > more.txt'}
  - {id: land, needs: [work], land: main}";
    let landed = project.run(&project.pipeline("lands", TREE, steps), 0);
    let lost = project.run(&one(&project, "{worktree: {}}", "echo x > lost.txt"), 0);
    let kept = project.run(&one(&project, "{worktree: {keep: always}}", "echo x > x"), 0);
    // Saved work of a step that was brought onto a branch later.
    project.git(["update-ref", &format!("refs/sprag/salvage/{landed}-2"), "main"]);
    // What another data directory keeps in the same repository.
    project.git(["update-ref", "refs/sprag/runs/00000000000z/a", "main"]);
    let all = project.refs("refs/sprag");
    let gc = |args: &[&str]| {
        let answer = project.sprag(["env", "gc"].iter().chain(args)).expect(0);
        let lines =
            answer.stdout.lines().filter_map(|line| line.rsplit_once(": ").map(|(what, _)| what.to_owned()));
        (
            lines.filter(|line| line.contains("run ") || line.contains("saved")).collect::<Vec<_>>(),
            answer.stderr,
        )
    };
    // They are too young.
    assert_eq!(gc(&[]).0, Vec::<String>::new());
    assert_eq!(project.refs("refs/sprag"), all);
    let (said, freed) = gc(&["--dry-run", "--older-than", "0s"]);
    assert_eq!(project.refs("refs/sprag"), all, "looking changes nothing");
    assert!(freed.contains("would free") && freed.contains("8 refs"), "{freed}");
    assert_eq!(
        said,
        [
            format!("4 recorded states, 0 starts, 1 fences of run {landed}"),
            format!("saved work refs/sprag/salvage/{landed}-2 (a branch contains it)"),
            format!("2 recorded states, 0 starts, 0 fences of run {lost}"),
        ]
    );
    assert_eq!(gc(&["--older-than", "0s"]).0, said);
    let left = project.refs("refs/sprag");
    let of_kept = left.iter().filter(|name| name.contains(&kept)).count();
    assert_eq!((of_kept, left.len()), (2, 4), "{left:?}");
    assert!(left.contains(&"refs/sprag/runs/00000000000z/a".to_owned()), "{left:?}");
    assert_eq!(project.git(["show", &format!("refs/sprag/salvage/{lost}:lost.txt")]), "x");
    // What nothing else holds goes when it is asked for.
    let (said, _) = gc(&["--older-than", "0s", "--salvage"]);
    assert_eq!(said, [format!("saved work refs/sprag/salvage/{lost} (asked for)")]);
    assert_eq!(project.refs("refs/sprag").len(), 3);
    // Without its states a run has nothing to show, and says so.
    let told = project.sprag(["diff", &landed]).expect(1);
    assert!(told.stderr.contains("no step"), "{}", told.stderr);
}

/// Runs `sprag env gc` beside a `git` that counts its calls; returns the answer and the number of calls.
fn counted_gc(project: &Project, args: &[&str]) -> (String, usize) {
    use std::os::unix::fs::PermissionsExt;
    let real = std::env::var("PATH").unwrap_or_default();
    let folder = project.sandbox.path("counting");
    fs::create_dir_all(&folder).expect("a folder");
    let counter = project.sandbox.write(
        "counting/git",
        "#!/bin/sh\necho called >> \"$COUNTED\"\nPATH=$REAL_PATH\nexport PATH\nexec git \"$@\"\n",
    );
    fs::set_permissions(&counter, fs::Permissions::from_mode(0o755)).expect("a file of ours");
    let calls = project.sandbox.path("calls");
    fs::write(&calls, "").expect("a file");
    let mut command = project.command_in(&project.repo(), ["env", "gc"].iter().chain(args));
    let folder = project.sandbox.path("counting");
    command
        .env("PATH", format!("{}:{real}", folder.display()))
        .env("REAL_PATH", &real)
        .env("COUNTED", &calls);
    let told = project.sandbox.start_command(command).finish();
    (told.stdout + &told.stderr, project.sandbox.lines("calls").len())
}

#[test]
fn env_gc_starts_no_git_for_each_branch_or_run() {
    let project = Project::new();
    let pipeline = one(&project, "{worktree: {}}", COMMIT);
    let mut counted = Vec::new();
    for runs in [2, 5] {
        for _ in 0..runs {
            project.run(&pipeline, 0);
        }
        // Unmerged branches stay, so the second time there are more of them.
        let (told, calls) = counted_gc(&project, &["--older-than", "0s"]);
        assert_eq!(told.matches("recorded states").count(), runs, "{told}");
        assert_eq!(told.matches(": deleted").count(), runs, "{told}");
        counted.push(calls);
    }
    assert!(counted[0] > 0 && counted[1] <= counted[0], "{counted:?}");
    assert_eq!(project.refs("refs/sprag"), Vec::<String>::new());
    assert_eq!(project.refs("refs/heads/sprag").len(), 7);
}

#[test]
fn env_gc_waits_once_for_a_lock_that_a_dead_git_left() {
    let project = Project::new();
    let pipeline = one(&project, "{worktree: {}}", "echo x > x");
    for _ in 0..4 {
        project.run(&pipeline, 0);
    }
    project.git(["pack-refs", "--all"]);
    let lock = project.repo().join(".git/packed-refs.lock");
    fs::write(&lock, "").expect("a file");
    let kept = project.refs("refs/sprag");
    let (told, calls) = counted_gc(&project, &["--older-than", "0s"]);
    assert_eq!(told.matches("not removed: could not delete 8 refs").count(), 4, "{told}");
    assert!(told.contains("delete ") && told.contains("packed-refs.lock"), "{told}");
    assert_eq!(project.refs("refs/sprag"), kept);
    fs::remove_file(&lock).expect("ours");
    assert!(counted_gc(&project, &["--older-than", "0s"]).1 <= calls + 1);
    assert!(project.refs("refs/sprag").len() < kept.len());
}
