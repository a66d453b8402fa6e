//! Runs that are started in a checkout with uncommitted changes, which `dirty` ignores, refuses or includes.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use sprag_tests::{Answer, Project, Server};

/// A step that shows which files it begins with.
const SHOWS: &str = "  - {id: show, run: 'git status --porcelain > $OUT/seen; cat shared.txt >> $OUT/seen'}";

fn tree(dirty: &str) -> String {
    format!("environment: {{worktree: {{dirty: {dirty}}}}}")
}

/// Changes of every kind, and a file that git ignores; what git says of them.
fn make_changes(project: &Project) -> String {
    for name in ["gone.txt", "staged.txt"] {
        project.commit(name, "old\n");
    }
    let repo = project.repo();
    fs::write(repo.join("shared.txt"), "first\nmine\n").expect("a file");
    fs::write(repo.join("staged.txt"), "staged\n").expect("a file");
    project.git(["add", "staged.txt"]);
    fs::remove_file(repo.join("gone.txt")).expect("a file");
    fs::write(repo.join("new.txt"), "new\n").expect("a file");
    fs::write(repo.join("ignored.txt"), "ignored\n").expect("a file");
    project.git(["status", "--porcelain"])
}

fn run(project: &Project, file: &Path) -> Answer {
    project.sprag([OsStr::new("run"), file.as_os_str()])
}

#[test]
fn e11_dirty_ignore_reports_uncommitted_changes_in_one_line() {
    for head in ["environment: {worktree: {}}".to_owned(), tree("ignore")] {
        let project = Project::new();
        let before = make_changes(&project);
        let told = run(&project, &project.pipeline("ignores", &head, SHOWS)).expect(0);
        let lines: Vec<&str> =
            told.stderr.lines().filter(|line| line.contains("4 uncommitted changes")).collect();
        assert_eq!(lines.len(), 1, "{}", told.stderr);
        assert!(lines[0].contains("not part of this run") && lines[0].contains("new.txt"), "{}", lines[0]);
        assert_eq!(project.sandbox.read("seen"), "first\n");
        assert_eq!(project.git(["status", "--porcelain"]), before);
    }
}

/// The same over HTTP and MCP, where no person reads the output of a process.
#[test]
fn e11_http_and_mcp_report_uncommitted_changes() {
    let project = Project::new();
    make_changes(&project);
    let folder = project.repo().display().to_string();
    let server = Server::start(&project.sandbox, &["--project", &folder]);
    let yaml = |head: &str| format!("name: told\n{head}\nsteps:\n  - {{id: one, run: 'true'}}\n");
    for (dirty, words, end) in [
        ("ignore", "not part of this run: 4 uncommitted changes", "completed"),
        ("include", "this run starts with 4 uncommitted changes", "completed"),
        ("refuse", "the run does not start because of 4 uncommitted changes", "failed"),
    ] {
        let yaml = yaml(&tree(dirty));
        let http = server.post("/v1/runs", &json!({ "yaml": yaml })).expect(201).json();
        let mcp = server.call("run_start", &json!({ "yaml": yaml }));
        for (told, run) in [(&http, &http["id"]), (&mcp, &mcp["run"])] {
            assert_eq!(told["uncommitted"]["count"], 4, "{told}");
            let message = told["uncommitted"]["message"].as_str().expect("a line");
            assert!(message.starts_with(words) && message.contains(&folder), "{told}");
            let files = told["uncommitted"]["files"].to_string();
            assert!(files.contains("new.txt") && !files.contains("ignored"), "{told}");
            server.until(run.as_str().expect("an id"), end);
        }
    }
    // A run that a key names, and one without a worktree, begin nothing in the checkout.
    let keyed = |yaml: &str| {
        let request = server.request("POST", "/v1/runs").header("idempotency-key", "k");
        request.json(&json!({ "yaml": yaml })).send().json()
    };
    assert_eq!(keyed(&yaml(&tree("ignore")))["uncommitted"]["count"], 4);
    for told in [keyed(&yaml(&tree("ignore"))), server.post("/v1/runs", &json!({ "yaml": yaml("") })).json()]
    {
        assert!(told["id"].is_string() && told.get("uncommitted").is_none(), "{told}");
    }
    project.git(["stash", "--include-untracked", "--quiet"]);
    let told = server.post("/v1/runs", &json!({ "yaml": yaml(&tree("ignore")) })).expect(201).json();
    assert!(told.get("uncommitted").is_none(), "{told}");
}

/// A server without a worker runs no git for its callers: its folders are not those in which runs begin.
#[test]
fn e04_a_server_without_a_worker_looks_at_no_checkout() {
    let project = Project::new();
    make_changes(&project);
    let folder = project.repo().display().to_string();
    let server = Server::start(&project.sandbox, &["--no-worker"]);
    let yaml = format!("{}\nsteps:\n{SHOWS}\n", tree("ignore"));
    let wanted = json!({ "yaml": yaml, "dir": folder });
    for told in [server.post("/v1/runs", &wanted).expect(201).json(), server.call("run_start", &wanted)] {
        assert!(told.get("uncommitted").is_none() && !told.to_string().contains("new.txt"), "{told}");
    }
}

#[test]
fn e11_json_output_reports_uncommitted_changes() {
    let project = Project::new();
    make_changes(&project);
    let file = project.pipeline("told", &tree("ignore"), SHOWS);
    let args = ["run", file.to_str().expect("text"), "--json"];
    let told: Vec<Value> = project.sprag(args).expect(0).lines();
    let uncommitted: Vec<&Value> = told.iter().filter(|line| line["type"] == "uncommitted").collect();
    assert_eq!(uncommitted.len(), 1, "{told:?}");
    assert_eq!(uncommitted[0]["count"], 4, "{told:?}");
    // A run that is left to workers is told of in one value.
    let told = project.sprag(args.into_iter().chain(["--detach"])).expect(0).json();
    assert_eq!((&told["type"], &told["uncommitted"]["count"]), (&"result".into(), &4.into()), "{told}");
}

#[test]
fn a_run_in_a_clean_checkout_reports_no_uncommitted_changes() {
    let project = Project::new();
    for dirty in ["ignore", "refuse", "include"] {
        let told = run(&project, &project.pipeline("clean", &tree(dirty), SHOWS)).expect(0);
        assert!(!told.stderr.contains("uncommitted"), "{}", told.stderr);
        assert_eq!(project.sandbox.read("seen"), "first\n");
    }
}

#[test]
fn e11_dirty_refuse_does_not_start_with_uncommitted_changes() {
    let project = Project::new();
    make_changes(&project);
    let file = project.pipeline("refuses", &tree("refuse"), SHOWS);
    let told = run(&project, &file).expect(1);
    assert!(told.stderr.contains("4 uncommitted changes"), "{}", told.stderr);
    assert!(told.stderr.contains("commit or stash them"), "{}", told.stderr);
    assert_eq!(project.sandbox.newest(), None, "no run was made");
    // One that another process has made is blocked by its worker, and goes on when the person has put them away.
    let args = ["run", file.to_str().expect("text"), "--idempotency-key", "one"];
    project.sprag(args).expect(100);
    let blocked = project.sandbox.newest().expect("a run");
    let shown = project.sprag(["status", &blocked]).expect(0).stdout;
    assert!(shown.contains("blocked: 4 uncommitted changes"), "{shown}");
    project.sprag(["resume", &blocked]).expect(100);
    project.git(["stash", "--include-untracked", "--quiet"]);
    project.sprag(["resume", &blocked]).expect(0);
    assert_eq!(project.sandbox.read("seen"), "first\n");
}

#[test]
fn e11_dirty_include_starts_with_uncommitted_changes_and_keeps_the_checkout() {
    let project = Project::new();
    let before = make_changes(&project);
    let (index, head) = (fs::read(project.repo().join(".git/index")), project.git(["rev-parse", "HEAD"]));
    let steps = format!(
        "{SHOWS}\n  - {{id: more, needs: [show], retry: {{attempts: 2, delay: 10ms}}, run: 'cat shared.txt >> $OUT/tries; echo half >> shared.txt; test -e $OUT/tried || {{ touch $OUT/tried; exit 1; }}; echo run > by-run.txt; git checkout -q shared.txt 2> /dev/null; printf \"first\\nmine\\n\" > shared.txt'}}"
    );
    let file = project.pipeline("includes", &tree("include"), &steps);
    let told = run(&project, &file).expect(0);
    assert!(told.stderr.contains("this run starts with 4 uncommitted changes"), "{}", told.stderr);
    let seen = project.sandbox.read("seen");
    assert_eq!(seen, " D gone.txt\n M shared.txt\n M staged.txt\n?? new.txt\nfirst\nmine\n");
    assert_eq!(project.sandbox.read("tries"), "first\nmine\n".repeat(2), "a retry begins with them too");
    // The checkout is as it was, to the byte.
    assert_eq!(project.git(["status", "--porcelain"]), before);
    assert_eq!(fs::read(project.repo().join(".git/index")).ok(), index.ok());
    assert_eq!(project.git(["rev-parse", "HEAD"]), head);
    // The person's changes are not what the run has changed.
    let newest = project.sandbox.newest().expect("a run");
    let patch = project.sprag(["diff", &newest]).expect(0).stdout;
    assert!(patch.contains("by-run.txt") && !patch.contains("gone.txt"), "{patch}");
    // A state that the run began with goes when its other states go.
    project.sprag(["env", "gc", "--older-than", "0s", "--salvage"]).expect(0);
    assert_eq!(project.refs("refs/sprag/runs"), Vec::<String>::new());
}

#[test]
fn included_uncommitted_changes_land_beside_the_persons_own_copy() {
    let project = Project::new();
    make_changes(&project);
    let steps = "  - {id: work, run: 'echo work > work.txt'}\n  - {id: land, needs: [work], land: main}";
    run(&project, &project.pipeline("lands", &tree("include"), steps)).expect(0);
    assert_eq!(project.git(["show", "main:shared.txt"]), "first\nmine");
    assert_eq!(project.git(["show", "main:work.txt"]), "work");
    assert_eq!(project.git(["status", "--porcelain"]), "", "what was the person's is committed now");
}

#[test]
fn all_worktrees_of_a_run_begin_with_the_same_uncommitted_changes() {
    let project = Project::new();
    make_changes(&project);
    let steps = "  - {id: change, run: 'echo later >> $REPO/shared.txt'}
  - {id: all, needs: [change], foreach: [one, two], environment: own, run: 'cat shared.txt > $OUT/seen.{{ item }}'}";
    run(&project, &project.pipeline("fan", &tree("include"), steps)).expect(0);
    for item in ["one", "two"] {
        assert_eq!(project.sandbox.read(&format!("seen.{item}")), "first\nmine\n");
    }
}

#[test]
fn e09_changes_that_cannot_be_taken_along_block_the_run_and_are_named() {
    let project = Project::new();
    project.git(["branch", "other"]);
    make_changes(&project);
    let head = "environment: {worktree: {base: other, dirty: include}}";
    let file = project.pipeline("elsewhere", head, SHOWS);
    run(&project, &file).expect(100);
    let newest = project.sandbox.newest().expect("a run");
    let shown = project.sprag(["status", &newest]).expect(0).stdout;
    assert!(shown.contains("blocked") && shown.contains("not at the base `other`"), "{shown}");
    project.git(["commit", "--quiet", "--all", "--message=mine"]);
    project.git(["clean", "--quiet", "--force"]);
    project.sprag(["resume", &newest]).expect(0);
    assert_eq!(project.sandbox.read("seen"), "first\n");
}
