//! Landing with `push`: the remote decides, no commit is overwritten, and the local branch follows.

use std::fs;
use std::path::PathBuf;

use sprag_tests::{Project, git, try_git, until};

use crate::landing::{UNTIL_GO, lands, lands_and, start};

/// A project whose `origin` is a bare repository that it has in common with a colleague's clone.
struct Team {
    project: Project,
    remote: PathBuf,
    colleague: PathBuf,
}

impl Team {
    fn new() -> Self {
        let project = Project::new();
        project.git(["clone", "--quiet", "--bare", ".", "../remote.git"]);
        project.git(["remote", "add", "origin", "../remote.git"]);
        project.git(["fetch", "--quiet", "origin"]);
        let (remote, colleague) = (project.sandbox.path("remote.git"), project.sandbox.path("colleague"));
        git(&project.sandbox.path(""), ["clone", "--quiet", "remote.git", "colleague"]);
        git(&colleague, ["config", "user.name", "A Colleague"]);
        git(&colleague, ["config", "user.email", "colleague@example.org"]);
        Team { project, remote, colleague }
    }

    /// Lets the colleague push a file, and returns the commit.
    fn colleague_pushes(&self, name: &str) -> String {
        git(&self.colleague, ["pull", "--quiet", "--rebase"]);
        fs::write(self.colleague.join(name), "theirs\n").expect("a file");
        git(&self.colleague, ["add", name]);
        git(&self.colleague, ["commit", "--quiet", "--message", name]);
        git(&self.colleague, ["push", "--quiet"]);
        git(&self.colleague, ["rev-parse", "HEAD"])
    }

    fn at_remote(&self, revision: &str) -> String {
        git(&self.remote, ["rev-parse", revision])
    }

    fn remote_holds(&self, path: &str) -> bool {
        try_git(&self.remote, ["cat-file", "-e", &format!("main:{path}")]).status.success()
    }

    /// Asserts that remote, local branch and checkout are at one commit, and that the checkout is clean.
    #[track_caller]
    fn assert_in_step(&self) {
        assert_eq!(self.at_remote("main"), self.project.git(["rev-parse", "main"]));
        assert_eq!(self.project.git(["status", "--porcelain"]), "");
    }
}

#[test]
fn e01_a_colleagues_commit_that_was_only_fetched_stays_on_the_remote() {
    let team = Team::new();
    team.colleague_pushes("theirs.txt");
    // The remote-tracking branch knows of it, the local branch does not.
    team.project.git(["fetch", "--quiet", "origin"]);
    let run = team.project.run(&lands(&team.project, "lands", "{into: main, push: origin}"), 0);
    assert!(team.remote_holds("theirs.txt"), "the colleague's commit was removed from the remote");
    assert!(team.remote_holds(&format!("{run}.txt")));
    team.assert_in_step();
    // A commit that has not even been fetched here.
    team.colleague_pushes("more.txt");
    let run = team.project.run(&lands(&team.project, "again", "{into: main, push: origin}"), 0);
    assert!(team.remote_holds("more.txt") && team.remote_holds(&format!("{run}.txt")));
    team.assert_in_step();
    let told = team.project.sandbox.step(&run, "land");
    assert_eq!(told["status"], "done");
}

#[test]
fn push_includes_commits_that_only_the_local_branch_has() {
    let team = Team::new();
    team.project.commit("mine.txt", "not pushed yet\n");
    team.project.run(&lands(&team.project, "lands", "{into: main, push: origin}"), 0);
    assert!(team.remote_holds("mine.txt"));
    team.assert_in_step();
}

#[test]
fn e09_push_is_blocked_while_local_and_remote_branch_have_diverged() {
    let team = Team::new();
    let theirs = team.colleague_pushes("theirs.txt");
    team.project.commit("mine.txt", "mine\n");
    let mine = team.project.git(["rev-parse", "main"]);
    let file = lands(&team.project, "lands", "{into: main, push: origin}");
    let told = start(&team.project, &file).finish().expect(100);
    for part in ["origin", "1 commit", "git pull", "sprag resume"] {
        assert!(told.stderr.contains(part), "not said: {part}\n{}", told.stderr);
    }
    assert_eq!((team.at_remote("main"), team.project.git(["rev-parse", "main"])), (theirs, mine));
    team.project.git(["pull", "--quiet", "--rebase", "origin", "main"]);
    let run = team.project.sandbox.newest().expect("a run");
    team.project.sprag(["resume", &run]).expect(0);
    for name in ["theirs.txt", "mine.txt", &format!("{run}.txt")] {
        assert!(team.remote_holds(name), "{name}");
    }
    team.assert_in_step();
}

#[test]
fn push_begins_again_when_the_remote_moved_meanwhile() {
    let team = Team::new();
    let verify = format!("echo >> $OUT/verified; {UNTIL_GO}");
    let land = format!("{{into: main, push: origin, verify: '{verify}'}}");
    let lander = start(&team.project, &lands(&team.project, "lands", &land));
    until("it verifies", || team.project.sandbox.lines("verified").len() == 1);
    let theirs = team.colleague_pushes("theirs.txt");
    team.project.sandbox.write("go", "");
    lander.finish().expect(0);
    // It was verified on top of the colleague's commit, and pushed without force.
    assert_eq!(team.project.sandbox.lines("verified").len(), 2);
    assert_eq!(git(&team.remote, ["rev-parse", "main~1"]), theirs);
    team.assert_in_step();
}

#[test]
fn push_to_a_remote_that_cannot_be_reached() {
    let team = Team::new();
    let away = team.project.sandbox.path("away.git");
    fs::rename(&team.remote, &away).expect("ours");
    // Where it may be missing, the work lands here, and what is not pushed is told.
    let after = "  - {id: tell, needs: [land], run: 'echo {{ steps.land.outputs.pushed }} \"{{ steps.land.outputs.push_error }}\" > $OUT/told'}";
    let file = lands_and(&team.project, "lands", "{into: main, push: origin}", after);
    let run = team.project.run(&file, 0);
    assert_eq!(team.project.git(["show", &format!("main:{run}.txt")]), run);
    let landed = team.project.git(["rev-parse", "--short", "main"]);
    let shown = team.project.sprag(["status", &run]).expect(0).stdout;
    for part in ["warning: not pushed", &landed, "git push origin main"] {
        assert!(shown.contains(part), "not said: {part}\n{shown}");
    }
    assert!(team.project.sandbox.read("told").starts_with("false "), "{}", team.project.sandbox.read("told"));
    // Where it must be pushed, nothing moves here either.
    let before = team.project.git(["rev-parse", "main"]);
    let must = lands(&team.project, "must", "{into: main, push: {remote: origin, required: true}}");
    let told = start(&team.project, &must).finish().expect(100);
    assert!(told.stderr.contains("origin"), "{}", told.stderr);
    assert_eq!(team.project.git(["rev-parse", "main"]), before);
    // The next landing takes along what could not be pushed.
    fs::rename(&away, &team.remote).expect("ours");
    let late = team.project.sandbox.newest().expect("a run");
    team.project.sprag(["resume", &late]).expect(0);
    assert!(team.remote_holds(&format!("{run}.txt")) && team.remote_holds(&format!("{late}.txt")));
    team.assert_in_step();
}

#[test]
fn a_refused_push_is_reported_and_moves_nothing_if_it_is_required() {
    let team = Team::new();
    let hook = team.remote.join("hooks/pre-receive");
    fs::write(&hook, "#!/bin/sh\necho no entry >&2; exit 1\n").expect("a hook");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&hook, mode).expect("ours");
    let before = team.project.git(["rev-parse", "main"]);
    let must = lands(&team.project, "must", "{into: main, push: {remote: origin, required: true}}");
    let told = start(&team.project, &must).finish().expect(100);
    assert!(told.stderr.contains("no entry"), "{}", told.stderr);
    assert_eq!(
        (team.at_remote("main"), team.project.git(["rev-parse", "main"])),
        (before.clone(), before.clone())
    );
    let run = team.project.run(&lands(&team.project, "may", "{into: main, push: origin}"), 0);
    assert_eq!(team.at_remote("main"), before);
    assert_eq!(team.project.git(["show", &format!("main:{run}.txt")]), run);
    let shown = team.project.sprag(["status", &run]).expect(0).stdout;
    assert!(shown.contains("warning: not pushed"), "{shown}");
}
