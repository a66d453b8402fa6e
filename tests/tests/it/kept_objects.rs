//! Objects of runs that git could lose: those of submodules at clean-up, and those during a person's `git prune`.

use std::ffi::OsStr;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use sprag_tests::{Project, git, try_git};

const TREE: &str = "environment: {worktree: {}}";

#[test]
fn w15_commits_and_files_in_a_submodule_outlive_the_run() {
    let project = Project::new();
    let inner = project.repository("inner");
    let allowed = "protocol.file.allow=always";
    let url = inner.to_str().expect("text");
    project.git(["-c", allowed, "submodule", "--quiet", "add", url, "sub"]);
    project.git(["commit", "--quiet", "--message=with a submodule"]);
    let config = project.sandbox.write(
        "gitconfig",
        "[protocol \"file\"]\n\tallow = always\n[user]\n\tname = A\n\temail = a@example.org\n",
    );
    let steps = "  - id: work
    run: cd sub && echo committed > inner.txt && git add . && git commit -qm inner && echo new > new.txt";
    let file = project.pipeline("sub", "environment: {worktree: {submodules: true}}", steps);
    let mut command = project.sandbox.command([OsStr::new("run"), file.as_os_str()]);
    command.current_dir(project.repo()).env("GIT_CONFIG_GLOBAL", config);
    project.sandbox.start_command(command).finish().expect(0);
    let run = project.sandbox.newest().expect("a run");
    assert!(!project.worktree(&run).exists());
    let kept = project.repo().join(".git/modules/sub");
    let saved = format!("refs/sprag/salvage/{run}-sub");
    assert_eq!(git(&kept, ["show", &format!("{saved}:inner.txt")]), "committed");
    assert_eq!(git(&kept, ["show", &format!("{saved}:new.txt")]), "new");
    // The commit that the repository's own ref names for the submodule is there.
    let named = project.git(["rev-parse", &format!("refs/sprag/salvage/{run}:sub")]);
    assert_eq!(git(&kept, ["show", &format!("{named}:inner.txt")]), "committed");
}

#[test]
fn git_prune_during_runs_breaks_no_state_and_no_later_gc() {
    let project = Project::new();
    let steps = "  - {id: a, run: 'for n in 1 2 3 4; do echo $SPRAG_RUN_ID $n > a$n.txt; done'}
  - {id: b, needs: [a], run: 'echo b >> a1.txt; echo $SPRAG_RUN_ID > b.txt'}";
    let file = project.pipeline("records", TREE, steps);
    let done = AtomicBool::new(false);
    let runs: Vec<String> = std::thread::scope(|scope| {
        let pruner = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                try_git(&project.repo(), ["prune", "--expire=now"]);
            }
        });
        let ended: Vec<_> =
            (0..5).map(|_| project.sprag([OsStr::new("run"), file.as_os_str(), "--json".as_ref()])).collect();
        done.store(true, Ordering::SeqCst);
        pruner.join().expect("pruned");
        let run = |told: &serde_json::Value| told["run"].as_str().expect("a run").to_owned();
        ended.into_iter().map(|ended| run(&ended.expect(0).lines().pop().expect("a result"))).collect()
    });
    for run in runs {
        for name in ["a", "b"] {
            project.git(["rev-list", "--objects", "--quiet", &format!("refs/sprag/runs/{run}/{name}")]);
        }
        assert_eq!(project.git(["show", &format!("refs/sprag/salvage/{run}:b.txt")]), run);
    }
    project.git(["gc", "--quiet", "--prune=now"]);
    project.git(["fsck", "--no-dangling"]);
}

#[test]
fn env_gc_deletes_refs_whose_objects_are_gone_and_names_them() {
    let project = Project::new();
    let steps = "  - {id: a, run: 'echo a > a.txt'}\n  - {id: b, needs: [a], run: 'echo b > b.txt'}";
    let run = project.run(&project.pipeline("records", TREE, steps), 0);
    let broken = format!("refs/sprag/runs/{run}/b");
    let object = project.git(["rev-parse", &format!("{broken}:b.txt")]);
    let (folder, file) = object.split_at(2);
    // The saved work holds the same file.
    project.git(["update-ref", "-d", &format!("refs/sprag/salvage/{run}")]);
    fs::remove_file(project.repo().join(".git/objects").join(folder).join(file)).expect("a loose object");
    assert!(!try_git(&project.repo(), ["gc", "--quiet"]).status.success(), "git cannot do with it");
    let all = project.refs("refs/sprag");
    let told = project.sprag(["env", "gc", "--dry-run"]).expect(0).stdout;
    assert!(told.contains(&format!("broken ref {broken}: would be removed")), "{told}");
    assert_eq!(project.refs("refs/sprag"), all);
    let told = project.sprag(["env", "gc"]).expect(0).stdout;
    assert!(told.contains(&format!("broken ref {broken}: deleted")), "{told}");
    let left: Vec<String> = all.into_iter().filter(|name| *name != broken).collect();
    assert_eq!(project.refs("refs/sprag"), left);
    project.git(["gc", "--quiet"]);
    // The run cannot begin with what is gone, and says so.
    let told = project.sprag(["fork", &run, "--from", "b"]).expect(1);
    assert!(told.stderr.contains(&broken), "{}", told.stderr);
}
