//! Landing on a branch that a person has checked out: the checkout follows, and the person's changes stay.

use std::fs;
use std::path::Path;

use sprag_tests::{Project, git, try_git, until};

use crate::landing::{TREE, lands, start};

/// Commits only what is staged, as a person does, and returns the files that the commit changed.
fn commit_staged(checkout: &Path, message: &str) -> Vec<String> {
    git(checkout, ["commit", "--quiet", "--message", message]);
    git(checkout, ["show", "--format=", "--name-only"]).lines().map(str::to_owned).collect()
}

fn status(checkout: &Path) -> String {
    git(checkout, ["status", "--porcelain"])
}

#[test]
fn e01_a_persons_next_commit_undoes_nothing_that_landed() {
    let project = Project::new();
    project.commit("notes.txt", "one\n");
    fs::write(project.repo().join("notes.txt"), "one\nmine\n").expect("a file");
    let run = project.run(&lands(&project, "lands", "main"), 0);
    // The landed file is there, and only the person's own change is open.
    assert_eq!(project.read(&format!("{run}.txt")), format!("{run}\n"));
    assert_eq!(status(&project.repo()), " M notes.txt");
    project.git(["add", "notes.txt"]);
    assert_eq!(commit_staged(&project.repo(), "only my note"), ["notes.txt"]);
    assert_eq!(project.git(["show", &format!("main:{run}.txt")]), run);
    // Nothing in the log sends the person to `git reset --hard`.
    let told = project.sprag(["logs", &run]).expect(0).stdout;
    assert!(!told.contains("reset --hard"), "{told}");
}

#[test]
fn e01_staged_unstaged_and_untracked_changes_stay_unchanged() {
    let project = Project::new();
    for name in ["staged.txt", "unstaged.txt", "both.txt", "gone.txt"] {
        project.commit(name, "first\n");
    }
    let repo = project.repo();
    fs::write(repo.join("staged.txt"), "staged\n").expect("a file");
    fs::write(repo.join("both.txt"), "staged\n").expect("a file");
    fs::write(repo.join("added.txt"), "added\n").expect("a file");
    project.git(["add", "staged.txt", "both.txt", "added.txt"]);
    project.git(["rm", "--quiet", "gone.txt"]);
    fs::write(repo.join("both.txt"), "staged\nand more\n").expect("a file");
    fs::write(repo.join("unstaged.txt"), "unstaged\n").expect("a file");
    fs::write(repo.join("untracked.txt"), "untracked\n").expect("a file");
    fs::write(repo.join("ignored.log"), "ignored\n").expect("a file");
    let before = status(&repo);
    let run = project.run(&lands(&project, "lands", "main"), 0);
    assert_eq!(status(&repo), before);
    assert_eq!(project.read(&format!("{run}.txt")), format!("{run}\n"));
    for (name, text) in [("both.txt", "staged\nand more\n"), ("ignored.log", "ignored\n")] {
        assert_eq!(project.read(name), text);
    }
    let mut changed = commit_staged(&repo, "what was staged");
    changed.sort();
    assert_eq!(changed, ["added.txt", "both.txt", "gone.txt", "staged.txt"]);
    assert_eq!(project.git(["show", "main:both.txt"]), "staged");
    assert_eq!(project.git(["show", &format!("main:{run}.txt")]), run);
}

/// Returns a pipeline whose landing changes `shared.txt`, has three tries, and a rework on failure.
fn overlaps(project: &Project) -> std::path::PathBuf {
    let steps = "  - {id: work, run: 'echo x >> $OUT/worked; echo landed > shared.txt'}
  - id: land
    needs: [work]
    land: main
    retry: {attempts: 3, delay: 1ms}
    on_fail: {rework: work, max: 2}";
    project.pipeline("overlaps", TREE, steps)
}

#[test]
fn e01_overlapping_changes_block_the_landing_until_a_person_has_settled_them() {
    let project = Project::new();
    fs::write(project.repo().join("shared.txt"), "being edited\n").expect("a file");
    let before = project.git(["rev-parse", "main"]);
    let told = start(&project, &overlaps(&project)).finish().expect(100);
    let run = project.sandbox.newest().expect("a run");
    // Nothing moved, nothing was overwritten, and no step was reworked.
    assert_eq!(project.git(["rev-parse", "main"]), before);
    assert_eq!(project.read("shared.txt"), "being edited\n");
    assert_eq!(project.sandbox.lines("worked").len(), 1);
    assert_eq!(project.sandbox.step(&run, "land")["attempt"], 1);
    // It is shown wherever a person looks: checkout, file and what to do.
    let repo = fs::canonicalize(project.repo()).expect("a folder").display().to_string();
    let shown = project.sprag(["status", &run]).expect(0).stdout;
    let explained = project.sprag(["explain", &run]).expect(0).stdout;
    for (where_, text) in [("run", &told.stderr), ("status", &shown), ("explain", &explained)] {
        for part in [&repo, "shared.txt", "commit or stash", &format!("sprag resume {run}")] {
            assert!(text.contains(part), "{where_} does not say {part:?}:\n{text}");
        }
    }
    let explained = project.sandbox.json(["explain", &run, "--json"]);
    let blocked = &explained["blocked"][0];
    assert_eq!(
        (&blocked["step"], &blocked["files"][0]),
        (&"land".into(), &"shared.txt".into()),
        "{explained}"
    );
    // Once the person has settled it, a resume lands.
    project.git(["checkout", "--quiet", "shared.txt"]);
    project.sprag(["resume", &run]).expect(0);
    assert_eq!(project.read("shared.txt"), "landed\n");
    assert_eq!(status(&project.repo()), "");
    assert_eq!(project.sandbox.lines("worked").len(), 1);
}

#[test]
fn e01_a_file_that_git_does_not_know_is_never_overwritten() {
    for name in ["new.txt", "ignored.txt"] {
        let project = Project::new();
        fs::write(project.repo().join(name), "mine\n").expect("a file");
        let steps = format!(
            "  - {{id: work, run: 'echo landed > {name}; git add -f {name}; git commit -qm work'}}\n  - {{id: land, needs: [work], land: main}}"
        );
        let file = project.pipeline("lands", TREE, &steps);
        let told = start(&project, &file).finish().expect(100);
        assert!(told.stderr.contains(name), "{}", told.stderr);
        assert_eq!(project.read(name), "mine\n");
        // The same text loses nothing.
        fs::write(project.repo().join(name), "landed\n").expect("a file");
        project.sprag(["resume", &project.sandbox.newest().expect("a run")]).expect(0);
        assert_eq!(status(&project.repo()), "");
    }
}

#[test]
fn e01_nothing_lands_while_a_merge_a_rebase_or_a_bisect_is_in_progress() {
    /// An operation that a person started: its commands, its name, and the command that ends it.
    type Unfinished = (&'static str, &'static [&'static str], &'static [&'static str]);
    const ALL: [Unfinished; 5] = [
        ("merge", &["merge", "--no-commit", "--no-ff", "side"], &["merge", "--abort"]),
        ("rebase", &["rebase", "--exec", "false", "HEAD~1"], &["rebase", "--abort"]),
        ("cherry-pick", &["cherry-pick", "conflicts"], &["cherry-pick", "--abort"]),
        ("revert", &["revert", "--no-commit", "HEAD"], &["revert", "--abort"]),
        ("bisect", &["bisect", "start", "HEAD", "HEAD~2"], &["bisect", "reset"]),
    ];
    let project = Project::new();
    project.git(["branch", "side"]);
    project.git(["branch", "conflicts"]);
    project.commit("two.txt", "2\n");
    project.commit("shared.txt", "second\n");
    for (branch, file) in [("side", "side.txt"), ("conflicts", "shared.txt")] {
        project.git(["checkout", "--quiet", branch]);
        project.commit(file, "of another branch\n");
    }
    project.git(["checkout", "--quiet", "main"]);
    let file = lands(&project, "lands", "main");
    for (name, begin, end) in ALL {
        let main = project.git(["rev-parse", "main"]);
        try_git(&project.repo(), begin);
        let before = status(&project.repo());
        let told = start(&project, &file).finish().expect(100);
        assert!(told.stderr.contains(name), "{name}: {}", told.stderr);
        assert_eq!(project.git(["rev-parse", "main"]), main, "{name}");
        assert_eq!(status(&project.repo()), before, "{name}");
        project.git(end);
        let run = project.sandbox.newest().expect("a run");
        project.sprag(["resume", &run]).expect(0);
        assert_eq!(project.git(["show", &format!("main:{run}.txt")]), run, "{name}");
        assert_eq!(status(&project.repo()), "", "{name}");
    }
}

#[test]
fn e01_every_checkout_of_the_branch_follows_or_none_does() {
    let project = Project::new();
    project.commit("wide/inner.txt", "x\n");
    // A second checkout of main, and one that holds only some folders.
    let (second, sparse) = (project.sandbox.path("second"), project.sandbox.path("sparse"));
    for path in [&second, &sparse] {
        let path = path.to_str().expect("text");
        project.git(["worktree", "add", "--quiet", "--force", path, "main"]);
    }
    git(&sparse, ["sparse-checkout", "set", "wide"]);
    fs::write(second.join("shared.txt"), "in the second\n").expect("a file");
    let steps = "  - {id: work, run: 'mkdir narrow; echo 1 > narrow/new.txt; echo 2 > wide/new.txt; echo $SPRAG_RUN_ID > top.txt'}
  - {id: land, needs: [work], land: main}";
    project.run(&project.pipeline("lands", TREE, steps), 0);
    assert_eq!(status(&project.repo()), "");
    assert_eq!(status(&second), " M shared.txt");
    assert_eq!(status(&sparse), "");
    assert!(second.join("narrow/new.txt").exists() && sparse.join("wide/new.txt").exists());
    assert!(!sparse.join("narrow").exists(), "a sparse checkout stays sparse");
    // What stands in the way in one of them keeps the branch where it is in all of them.
    let before = project.git(["rev-parse", "main"]);
    fs::write(sparse.join("wide/more.txt"), "mine\n").expect("a file");
    let steps = "  - {id: work, run: 'echo landed > wide/more.txt; echo changed > two.txt'}
  - {id: land, needs: [work], land: main}";
    let told = start(&project, &project.pipeline("blocked", TREE, steps)).finish().expect(100);
    assert!(told.stderr.contains("wide/more.txt"), "{}", told.stderr);
    assert_eq!(project.git(["rev-parse", "main"]), before);
    assert!(!project.repo().join("two.txt").exists() && status(&project.repo()).is_empty());
}

#[test]
fn e01_a_landing_killed_while_it_updates_a_checkout_is_reported_and_repaired() {
    for by_resume in [false, true] {
        let project = Project::new();
        // The checkout is being written when the process is killed.
        let waits = "touch $OUT/begun; until [ -e $OUT/go ]; do read -t 0.02 x < /dev/null || :; done; cat";
        project.git(["config", "filter.slow.smudge", &format!("bash -c '{waits}'")]);
        fs::write(project.repo().join(".git/info/attributes"), "*.dat filter=slow\n").expect("a file");
        fs::write(project.repo().join("mine.md"), "mine\n").expect("a file");
        project.git(["add", "mine.md"]);
        let steps = "  - {id: work, run: 'echo landed > new.dat'}\n  - {id: land, needs: [work], land: main}";
        let landing = start(&project, &project.pipeline("lands", TREE, steps));
        until("the checkout is being written", || project.sandbox.path("begun").exists());
        landing.kill();
        let run = project.sandbox.newest().expect("a run");
        let repo = project.repo();
        // Git refuses to commit there, and both commands say why and what to do.
        assert!(!try_git(&repo, ["commit", "--message", "mine"]).status.success());
        for (command, code) in [(vec!["env", "ls"], 0), (vec!["doctor"], 1)] {
            let told = project.sprag(command).expect(code).stdout;
            for part in [&repo.display().to_string(), &run, "sprag env gc"] {
                assert!(told.contains(part), "not said: {part}\n{told}");
            }
        }
        project.sandbox.write("go", "");
        match by_resume {
            true => drop(project.sprag(["resume", &run]).expect(0)),
            false => {
                let told = project.sprag(["env", "gc"]).expect(0).stdout;
                assert!(told.contains("repaired"), "{told}");
                assert_eq!(status(&repo), "A  mine.md");
                project.sprag(["resume", &run]).expect(0);
            }
        }
        assert_eq!(status(&repo), "A  mine.md");
        assert_eq!(project.git(["show", "main:new.dat"]), "landed");
        assert_eq!(commit_staged(&repo, "mine"), ["mine.md"]);
        assert!(!project.sprag(["env", "ls"]).expect(0).stdout.contains("to repair it"));
    }
}

#[test]
fn e01_a_checkout_left_behind_is_reported_with_its_repair() {
    let project = Project::new();
    project.commit("words.txt", "one\n");
    let steps = "  - {id: work, run: 'echo two >> words.txt; echo new > new.txt; rm shared.txt'}\n  - {id: land, needs: [work], land: main}";
    project.run(&project.pipeline("lands", TREE, steps), 0);
    assert!(!project.sprag(["env", "ls"]).expect(0).stdout.contains("to repair it"));
    // The index goes back behind the branch, as after a `git update-ref`.
    project.git(["read-tree", "HEAD~1"]);
    fs::write(project.repo().join("mine.txt"), "mine\n").expect("a file");
    project.git(["add", "mine.txt"]);
    let told = project.sprag(["doctor"]).expect(1).stdout;
    assert!(told.contains("the next commit would undo it: new.txt, shared.txt, words.txt"), "{told}");
    let told = project.sprag(["env", "ls"]).expect(0).stdout;
    let repair = told.lines().find_map(|line| line.trim().strip_prefix("to repair it: ")).expect("a command");
    assert!(std::process::Command::new("sh").args(["-c", repair]).status().expect("sh").success());
    assert_eq!(status(&project.repo()), "A  mine.txt");
    assert_eq!(project.read("words.txt"), "one\ntwo\n");
    // A person's own version of such a file is nothing to be overwritten.
    project.git(["read-tree", "HEAD~1"]);
    fs::write(project.repo().join("words.txt"), "my own\n").expect("a file");
    assert!(!project.sprag(["env", "ls"]).expect(0).stdout.contains("to repair it"));
}
