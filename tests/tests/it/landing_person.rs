//! A person and a colleague who use git as usual, during sixty landings with push.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sprag_tests::{Project, Random, git, nightly, try_git, within};

use crate::landing::TREE;

/// The number of concurrent landings.
const LANDERS: usize = 4;

/// A person in a checkout, and what the person has committed.
struct Person<'p> {
    checkout: &'p Path,
    own: &'static str,
    random: Random,
    lines: BTreeSet<String>,
    /// Lines that are in the stash or in the file, and not committed yet.
    open: Vec<String>,
    stashed: bool,
    /// Commands that met a landing's lock, and were repeated.
    disturbed: usize,
}

impl<'p> Person<'p> {
    fn new(checkout: &'p Path, own: &'static str, seed: u64) -> Self {
        let (lines, open) = (BTreeSet::new(), Vec::new());
        Person { checkout, own, random: Random::new(seed), lines, open, stashed: false, disturbed: 0 }
    }

    /// Runs a git command, and repeats it while another git command has a lock, as a person does.
    fn git(&mut self, args: &[&str]) -> Output {
        let mut last = try_git(self.checkout, args);
        for _ in 0..3_000 {
            let said = String::from_utf8_lossy(&last.stderr).into_owned();
            let signs = [".lock", "cannot lock ref", "could not write index"];
            if last.status.success() || !signs.iter().any(|sign| said.contains(sign)) {
                break;
            }
            self.disturbed += 1;
            last = try_git(self.checkout, args);
        }
        last
    }

    fn must(&mut self, args: &[&str]) {
        let output = self.git(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {args:?}: {said}\n{}", git(self.checkout, ["status"]));
    }

    /// Writes a line into the person's own file.
    fn write(&mut self) {
        let line = format!("{} {}", self.own, self.lines.len() + self.open.len());
        let file = OpenOptions::new().append(true).create(true).open(self.checkout.join(self.own));
        writeln!(file.expect("a file"), "{line}").expect("written");
        self.open.push(line);
    }

    fn commit(&mut self) {
        if self.open.is_empty() || self.stashed {
            return;
        }
        // Sometimes all that is changed, sometimes only what is staged.
        if self.random.below(2) == 0 {
            self.must(&["add", self.own]);
            self.must(&["commit", "--quiet", "--message", self.own]);
        } else {
            self.must(&["add", "--intent-to-add", self.own]);
            self.must(&["commit", "--quiet", "--all", "--message", self.own]);
        }
        self.lines.extend(self.open.drain(..));
    }

    fn stash(&mut self) {
        if !self.stashed && !self.open.is_empty() {
            self.must(&["stash", "push", "--quiet", "--include-untracked", "--", self.own]);
            self.stashed = true;
        } else if self.stashed {
            self.must(&["stash", "pop", "--quiet"]);
            self.stashed = false;
        }
    }

    fn pull(&mut self) -> bool {
        let how = ["--no-rebase", "--rebase", "--ff-only"][self.random.below(3) as usize];
        let pulled = self.git(&["pull", "--quiet", how, "origin", "main"]).status.success();
        if !pulled {
            for unfinished in ["rebase", "merge"] {
                self.git(&[unfinished, "--abort"]);
            }
        }
        pulled
    }

    /// Does something that a person does.
    fn act(&mut self) {
        match self.random.below(8) {
            0..=2 if !self.stashed => self.write(),
            0..=2 => self.stash(),
            3 | 4 => self.commit(),
            5 => self.stash(),
            6 => drop(self.git(&["fetch", "--quiet", "origin"])),
            _ => {
                self.pull();
                self.git(&["push", "--quiet", "origin", "main"]);
            }
        }
    }

    /// Commits and pushes all that is left.
    fn finish(&mut self) {
        if self.stashed {
            self.stash();
        }
        self.commit();
        for _ in 0..20 {
            let pushed = self.git(&["pull", "--quiet", "--rebase", "origin", "main"]).status.success()
                && self.git(&["push", "--quiet", "origin", "main"]).status.success();
            if pushed {
                return;
            }
        }
        panic!("{} cannot push: {}", self.own, git(self.checkout, ["status"]));
    }
}

/// Returns the text of a file in which each landing changes its own line, far from the others.
fn slots(count: usize) -> String {
    (0..count).map(|n| format!("slot {n}: open\n{}", "-\n".repeat(6))).collect()
}

/// Lands one run, and resumes it as long as it is blocked.
fn land(project: &Project, file: &Path, n: usize) {
    let input = format!("n={n}");
    let args = ["run", file.to_str().expect("text"), "--input", &input, "--json"];
    let told = project.start(args).finish();
    let result = told.lines::<serde_json::Value>().pop().expect("a result");
    let run = result["run"].as_str().expect("a run").to_owned();
    if told.code == 0 {
        return;
    }
    let landed = within(std::time::Duration::from_secs(120), || {
        let shown = project.sprag(["status", &run]).stdout;
        assert!(shown.contains("blocked"), "{shown}");
        (project.sprag(["resume", &run]).code == 0).then_some(())
    });
    assert!(landed.is_some(), "run {run} is blocked for ever: {}", project.sprag(["status", &run]).stdout);
}

#[test]
fn e01_a_persons_git_during_sixty_landings_loses_and_undoes_nothing() {
    let count = nightly(60, 240);
    let project = Project::new();
    project.commit("slots.txt", &slots(count));
    project.git(["clone", "--quiet", "--bare", ".", "../remote.git"]);
    project.git(["remote", "add", "origin", "../remote.git"]);
    project.git(["fetch", "--quiet", "origin"]);
    project.git(["branch", "--quiet", "--set-upstream-to=origin/main"]);
    let remote = project.sandbox.path("remote.git");
    git(&project.sandbox.path(""), ["clone", "--quiet", "remote.git", "colleague"]);
    let (repo, other) = (project.repo(), project.sandbox.path("colleague"));
    git(&other, ["config", "user.name", "A Colleague"]);
    git(&other, ["config", "user.email", "colleague@example.org"]);
    let steps = "  - {id: work, run: 'sed -i \"s/^slot $N: open/slot $N: done/\" slots.txt; echo $N > landed-$N.txt', env: {N: '{{ inputs.n }}'}}
  - {id: land, needs: [work], land: {into: main, push: {remote: origin, required: true}}}";
    let file: PathBuf = project.pipeline("lands", &format!("inputs: {{n: integer}}\n{TREE}"), steps);
    let mut person = Person::new(&repo, "person.txt", 7);
    let mut colleague = Person::new(&other, "colleague.txt", 8);
    let (next, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let landers: Vec<_> = (0..LANDERS)
            .map(|_| {
                scope.spawn(|| {
                    while let Some(n) = Some(next.fetch_add(1, Ordering::SeqCst)).filter(|n| *n < count) {
                        land(&project, &file, n);
                    }
                })
            })
            .collect();
        let theirs = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                match colleague.random.below(3) {
                    0 => colleague.act(),
                    // A colleague is not as busy as the person here.
                    _ => drop(within(std::time::Duration::from_millis(50), || None::<()>)),
                }
            }
        });
        let ours = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                person.act();
            }
        });
        let ended: Vec<_> = landers.into_iter().map(|lander| lander.join()).collect();
        done.store(true, Ordering::SeqCst);
        for ended in ended.into_iter().chain([ours.join(), theirs.join()]) {
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    colleague.finish();
    person.finish();
    println!(
        "{} of the person's commands met a landing's lock, {} lines",
        person.disturbed,
        person.lines.len()
    );
    // Every landed line, every line of the person and of the colleague are on main and on the remote.
    assert_eq!(git(&remote, ["rev-parse", "main"]), project.git(["rev-parse", "main"]));
    let lines = |name: &str| -> BTreeSet<String> {
        git(&remote, ["show", &format!("main:{name}")]).lines().map(str::to_owned).collect()
    };
    let slots = lines("slots.txt");
    for n in 0..count {
        assert!(slots.contains(&format!("slot {n}: done")), "slot {n} was undone");
        assert_eq!(git(&remote, ["show", &format!("main:landed-{n}.txt")]), n.to_string());
    }
    for writer in [&person, &colleague] {
        assert!(!writer.lines.is_empty(), "{} wrote nothing", writer.own);
        assert!(writer.lines.is_subset(&lines(writer.own)), "lines of {} are lost", writer.own);
    }
    // No commit of theirs changes anything but their own file.
    for (author, own) in [("A Person", "person.txt"), ("A Colleague", "colleague.txt")] {
        let args = ["log", "--no-merges", "--format=", "--name-only", &format!("--author={author}"), "main"];
        let message = format!("--grep=^{own}$");
        let changed = git(&repo, args.into_iter().chain([message.as_str()]));
        let changed: BTreeSet<&str> = changed.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(changed, BTreeSet::from([own]), "{author} committed what is not theirs");
    }
    assert_eq!(project.git(["status", "--porcelain"]), "");
    assert_eq!(project.git(["stash", "list"]), "");
    project.git(["fsck", "--no-dangling"]);
    assert!(!project.sprag(["env", "ls"]).expect(0).stdout.contains("to repair it"));
    assert!(
        fs::read_dir(repo.join(".git/sprag/land"))
            .expect("a folder")
            .flatten()
            .all(|file| { !file.file_name().to_string_lossy().ends_with(".json") })
    );
}
